//! The structs that Rust and BPF share lie in memory as the compiled objects say: each object has its types with it (BTF),
//! and each Rust mirror is compared with them, field by field. Nothing is loaded, so no root is needed.
//!
//! Records that are only ever local variables in BPF, `weir_event` and `weir_held`, are in no object's types: of these both
//! sides assert the size.

use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};

/// A struct on the Rust side.
pub(crate) struct Layout {
    /// Its name in C.
    pub name: String,
    /// Bytes.
    pub size: usize,
    /// Name in C, with the names of structs around it, offset and size of each field.
    pub fields: Vec<(String, usize, usize)>,
}

/// `layout!(Type, "weir_type", { field, other = "inner.name_in_c" })`
macro_rules! layout {
    ($type:ty, $name:expr, { $($field:ident $(= $other:literal)?),* $(,)? }) => {
        $crate::abi_tests::Layout {
            name: $name.to_owned(),
            size: size_of::<$type>(),
            fields: vec![$({
                let name: [&str; 1] = [$crate::abi_tests::layout!(@name $field $($other)?)];
                let size = $crate::abi_tests::size_of_field(|whole: &$type| &whole.$field);
                (name[0].to_owned(), std::mem::offset_of!($type, $field), size)
            }),*],
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $other:literal) => { $other };
}
pub(crate) use layout;

pub(crate) fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// `SourceCtl` is `weir_source_ctl`.
pub(crate) fn name_in_c(name: &str) -> String {
    name.chars().fold("weir".into(), |text, c| match c.is_ascii_uppercase() {
        true => format!("{text}_{}", c.to_ascii_lowercase()),
        false => format!("{text}{c}"),
    })
}

/// Offset and length of each member, those of structs in it by `outer.inner` too. The length is up to the next one.
fn members(btf: &Btf<'_>, of: &Struct<'_>, prefix: &str, base: usize) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    let all: Vec<_> = of
        .iter()
        .map(|member| {
            let MemberAttr::Normal { offset } = member.attr else { panic!("{prefix}: a bit field") };
            let name = member.name.unwrap_or_default().to_string_lossy();
            (format!("{prefix}{name}"), base + offset as usize / 8, member.ty)
        })
        .collect();
    for (at, (name, offset, id)) in all.iter().enumerate() {
        let end = all.get(at + 1).map_or(base + of.size(), |(_, next, _)| *next);
        if let Some(inner) = btf.type_by_id::<Struct<'_>>(*id) {
            found.extend(members(btf, &inner, &format!("{name}."), *offset));
        }
        found.push((name.clone(), *offset, end - offset));
    }
    found
}

#[test]
fn mirrors_lie_as_the_objects_say() {
    let objects = ["guard", "rx", "steer", "probes", "accept", "listeners", "wire"];
    let layouts: Vec<Layout> = [
        crate::guard::layouts(),
        crate::probes::layouts(),
        crate::accept::layouts(),
        crate::wire::source::layouts(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut seen = vec![0; layouts.len()];
    for object in objects {
        let btf =
            Btf::from_path(format!("{}/{object}.bpf.o", env!("OUT_DIR"))).expect("an object with types");
        for (layout, seen) in layouts.iter().zip(&mut seen) {
            let Some(there) = btf.type_by_name::<Struct<'_>>(&layout.name) else { continue };
            *seen += 1;
            let what = format!("struct {} in {object}.bpf.o", layout.name);
            assert_eq!(there.size(), layout.size, "{what}: size");
            let members = members(&btf, &there, "", 0);
            for (name, offset, size) in &layout.fields {
                let member = members.iter().find(|(other, _, _)| other == name);
                let (_, at, room) = member.unwrap_or_else(|| panic!("{what} has no {name}"));
                assert_eq!(at, offset, "{what}: offset of {name}");
                assert!(size <= room, "{what}: {name} has {size} bytes here and {room} there");
            }
        }
    }
    for (layout, seen) in layouts.iter().zip(seen) {
        assert!(seen > 0, "no object has struct {}", layout.name);
        assert!(!layout.fields.is_empty(), "{} is compared by nothing", layout.name);
    }
}
