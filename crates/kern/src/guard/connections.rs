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
    /// It would tell: the table is a module, whose types only CAP_SYS_ADMIN may read.
    Hidden,
    /// Nothing (before Linux 5.18, or built without).
    Untold,
}

impl Connections {
    /// Why it is not asked; `None` where it is, and where there is nothing to ask.
    #[must_use]
    pub fn why_not(self) -> Option<&'static str> {
        match self {
            Connections::Told => None,
            Connections::NoTable => {
                table().then_some("nf_conntrack was loaded after this guard; restart it to ask")
            }
            Connections::Hidden => Some("nf_conntrack is a module, which takes CAP_SYS_ADMIN to ask"),
            Connections::Untold => Some("it takes Linux 5.18 to ask"),
        }
    }
}

fn table() -> bool {
    Path::new("/sys/module/nf_conntrack").exists()
}

/// What the kernel tells now, since the table is a module in most kernels. Takes tens of milliseconds.
#[cfg(not(no_bpf))]
pub fn connections() -> Connections {
    // SAFETY: plain calls of libbpf with strings that end in 0; what they give is freed once, the module's first.
    let (told, opened) = unsafe {
        let has = |btf: *mut sys::btf| {
            let (name, kind) = (c"bpf_xdp_ct_lookup".as_ptr(), sys::BTF_KIND_FUNC);
            !btf.is_null() && sys::btf__find_by_name_kind(btf, name, kind) > 0
        };
        let kernel = sys::btf__load_vmlinux_btf();
        if kernel.is_null() {
            return Connections::Untold;
        }
        let module = sys::btf__load_module_btf(c"nf_conntrack".as_ptr(), kernel);
        let told = (has(kernel) || has(module), !module.is_null());
        sys::btf__free(module);
        sys::btf__free(kernel);
        told
    };
    match (told, opened) {
        (true, _) => Connections::Told,
        _ if !table() => Connections::NoTable,
        // Reading the types of a module is what the privilege is for.
        (false, false) if Path::new("/sys/kernel/btf/nf_conntrack").exists() => Connections::Hidden,
        (false, _) => Connections::Untold,
    }
}

/// What the kernel tells now: nothing is built that could ask.
#[cfg(no_bpf)]
pub fn connections() -> Connections {
    Connections::Untold
}
