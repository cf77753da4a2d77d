//! Opens each object, prepares it as those who use it do, and loads one program of it at a time.

use std::os::fd::AsFd;
use std::sync::Mutex;

use libbpf_rs::btf::Btf;
use libbpf_rs::{MapHandle, MapType, OpenObject, PrintLevel};

use super::Verdict;
use crate::guard::object::{Aligned, failed, open, tells_cookies, wake_ring, write_rodata};
use crate::guard::{Connections, Error, Told, connections};
use crate::probes::{arguments, verified};

macro_rules! object {
    ($name:literal) => {
        ($name, {
            const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o"));
            static OBJECT: &Aligned<{ BYTES.len() }> =
                &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")));
            &OBJECT.0
        })
    };
}

static OBJECTS: [(&str, &[u8]); 7] = [
    object!("guard"),
    object!("rx"),
    object!("steer"),
    object!("probes"),
    object!("listeners"),
    object!("accept"),
    object!("wire"),
];

/// What the library and the verifier have said since it was emptied.
static SAID: Mutex<String> = Mutex::new(String::new());

/// Loads every program, one at a time; attaches nothing.
///
/// # Errors
/// [`Error::Bpf`] if an object cannot be read at all. A program that is refused is a [`Verdict`].
pub fn all() -> Result<Vec<Verdict>, Error> {
    those(|_| true)
}

/// Those of the objects that are `wanted`.
pub(super) fn those(wanted: impl Fn(&str) -> bool) -> Result<Vec<Verdict>, Error> {
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, listen)));
    let objects = OBJECTS.iter().filter(|(object, _)| wanted(object));
    let verdicts = objects.map(|(object, bytes)| of(object, bytes)).collect::<Result<Vec<_>, _>>();
    libbpf_rs::set_print(before);
    Ok(verdicts?.concat())
}

fn listen(_: PrintLevel, text: String) {
    if let Ok(mut said) = SAID.lock() {
        said.push_str(&text);
    }
}

fn of(object: &str, bytes: &[u8]) -> Result<Vec<Verdict>, Error> {
    let programs: Vec<String> =
        open(bytes, object)?.progs().map(|p| p.name().to_string_lossy().into_owned()).collect();
    programs
        .iter()
        .map(|program| {
            if let Ok(mut said) = SAID.lock() {
                said.clear();
            }
            let answer = alone(object, bytes, program);
            let said = SAID.lock().map(|said| said.clone()).unwrap_or_default();
            let answer = answer.map_err(|error| last_line(&said).unwrap_or_else(|| error.to_string()));
            Ok(Verdict { name: format!("{object}/{program}"), answer, said })
        })
        .collect()
}

fn alone(object: &str, bytes: &[u8], program: &str) -> Result<u32, Error> {
    let mut open = open(bytes, object)?;
    let inner = prepare(object, &mut open)?;
    for mut other in open.progs_mut() {
        other.set_autoload(other.name() == program);
    }
    let loaded = open.load().map_err(failed(program))?;
    drop(inner);
    Ok(loaded.progs().find(|p| p.name() == program).map_or(0, |p| verified(&p.as_fd())))
}

/// Sizes and constants as those who load the object choose them; code behind a constant that is 0 is never verified.
fn prepare(object: &str, open: &mut OpenObject) -> Result<Option<MapHandle>, Error> {
    let btf = Btf::from_vmlinux().map_err(failed("BTF"))?;
    let constants = match object {
        "guard" => vec![1, 0, 1, 0, 0, u32::from(Told::here(&btf) == Told::ByDrop), 1],
        "rx" => {
            vec![0, 1, 1, u32::from(tells_cookies()), u32::from(connections() == Connections::Told)]
        }
        "probes" => vec![1, arguments(&btf, "kfree_skb")],
        _ => Vec::new(),
    };
    let mut inner = None;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name.ends_with(".rodata") && !constants.is_empty() {
            write_rodata(&mut map, &constants)?;
        } else if map.map_type() == MapType::ArrayOfMaps {
            let ring = wake_ring()?;
            map.set_inner_map_fd(ring.as_fd()).map_err(failed(name))?;
            inner = Some(ring);
        } else if map.map_type() == MapType::Array && map.max_entries() == 0 {
            map.set_max_entries(1).map_err(failed(name))?;
        }
    }
    Ok(inner)
}

/// What a verifier's log ends with, without its statistics; without a log, the library's first complaint.
fn last_line(said: &str) -> Option<String> {
    const STATISTICS: [&str; 6] =
        ["processed ", "verification time", "stack depth", "max_states", "-- END", "libbpf: "];
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let log = lines().skip_while(|line| !line.contains("-- BEGIN PROG LOAD LOG")).skip(1);
    let log = log.take_while(|line| !line.contains("-- END PROG LOAD LOG"));
    let line = log.filter(|line| !STATISTICS.iter().any(|s| line.starts_with(s))).last();
    line.or_else(|| lines().next()).map(str::to_owned)
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a step that fails is a test that fails")]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_verifiers() {
        let said = "libbpf: prog 'a': BPF program load failed: Invalid argument\n\
                    libbpf: prog 'a': -- BEGIN PROG LOAD LOG --\n0: R1=ctx()\n\
                    func 'x' doesn't have 3-th argument\nprocessed 9 insns (limit 1000000)\n\
                    -- END PROG LOAD LOG --\nlibbpf: prog 'a': failed to load: -22\n";
        assert_eq!(last_line(said).as_deref(), Some("func 'x' doesn't have 3-th argument"));
        let early =
            "libbpf: prog 'a': failed to find kernel BTF type ID of 'x': -3\nlibbpf: failed to load\n";
        assert_eq!(last_line(early), early.lines().next().map(str::to_owned));
        assert_eq!(last_line("\n"), None);
    }

    /// Else two machines build two programs of the same tree.
    #[test]
    fn no_object_tells_where_it_was_built() {
        let root = env!("CARGO_MANIFEST_DIR").trim_end_matches("crates/kern");
        for (name, bytes) in OBJECTS {
            let tells = |part: &str| {
                bytes.windows(root.len() + part.len()).any(|w| w == format!("{root}{part}").as_bytes())
            };
            assert!(!bytes.is_empty() && !tells("crates") && !tells("target"), "{name}");
        }
    }

    /// This kernel is as new as any program wants, but for those of two ways of which it has one.
    #[test]
    fn every_program_is_loaded_here_root() {
        if !testkit::root_or_skip("every_program_is_loaded_here_root") {
            return;
        }
        let verdicts = all().expect("objects");
        assert!(verdicts.len() > 40, "{} programs", verdicts.len());
        for verdict in verdicts {
            println!("{verdict:?}");
            assert!(verdict.answer.is_ok(), "{verdict:?}");
        }
    }
}
