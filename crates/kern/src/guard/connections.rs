//! Whether the gate can ask the kernel's table of connections who has a place there.

use std::path::Path;

#[cfg(not(no_bpf))]
use libbpf_rs::libbpf_sys as sys;

/// What the kernel tells an XDP program of its table of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Whether a frame belongs to one.
    Told,
    /// There was no table.
    NoTable,
    /// It would tell: the table is a module, which takes CAP_SYS_ADMIN to ask.
    Hidden,
    /// It would tell, and refuses the program that asks.
    Refused,
    /// Nothing (before Linux 5.18, without types of modules, or built without).
    Untold,
}

impl Connections {
    /// Why it is not asked; `None` where it is, and where there is nothing to ask.
    #[must_use]
    pub fn why_not(self) -> Option<&'static str> {
        match self {
            Connections::Told => None,
            Connections::NoTable if !table() => None,
            Connections::NoTable if !hidden() => {
                Some("nf_conntrack was loaded after this guard; restart it to ask")
            }
            Connections::NoTable | Connections::Hidden => {
                Some("nf_conntrack is a module, which takes CAP_SYS_ADMIN to ask")
            }
            Connections::Refused => Some("this kernel refuses the program that asks"),
            Connections::Untold => Some("this kernel does not tell; Linux 5.18 does, with types of modules"),
        }
    }
}

fn table() -> bool {
    Path::new("/sys/module/nf_conntrack").exists()
}

/// To load a program that calls a module takes the id of its types, which takes this privilege; anybody may read the types.
fn hidden() -> bool {
    let module = Path::new("/sys/kernel/btf/nf_conntrack").exists();
    module && !crate::tier::lacking(&[caps::Capability::CAP_SYS_ADMIN]).is_empty()
}

/// What the kernel tells now, since the table is a module in most kernels. Takes tens of milliseconds.
#[cfg(not(no_bpf))]
pub fn connections() -> Connections {
    // SAFETY: plain calls of libbpf with strings that end in 0; what they give is freed once, the module's first.
    let (kernel, module) = unsafe {
        let has = |btf: *mut sys::btf| {
            let (name, kind) = (c"bpf_xdp_ct_lookup".as_ptr(), sys::BTF_KIND_FUNC);
            !btf.is_null() && sys::btf__find_by_name_kind(btf, name, kind) > 0
        };
        let kernel = sys::btf__load_vmlinux_btf();
        if kernel.is_null() {
            return Connections::Untold;
        }
        let module = sys::btf__load_module_btf(c"nf_conntrack".as_ptr(), kernel);
        let told = (has(kernel), has(module));
        sys::btf__free(module);
        sys::btf__free(kernel);
        told
    };
    match (kernel, module) {
        (true, _) => Connections::Told,
        _ if !table() => Connections::NoTable,
        (false, true) if hidden() => Connections::Hidden,
        (false, true) => Connections::Told,
        (false, false) => Connections::Untold,
    }
}

/// What the kernel tells now: nothing is built that could ask.
#[cfg(no_bpf)]
pub fn connections() -> Connections {
    Connections::Untold
}
