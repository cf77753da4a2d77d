//! Every BPF program of every object, loaded alone: what the running kernel's verifier says to each.
//!
//! For tests of kernels. The guard, the probes and the lab leave out what a kernel cannot have; here nothing is left out.

use caps::{CapSet, Capability};

use crate::guard::Connections;

#[cfg(not(no_bpf))]
mod load;
#[cfg(not(no_bpf))]
pub use load::all;

/// The kernel's answer to one program.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Object and program, as in `guard/weir_recv`.
    pub name: String,
    /// Instructions that the verifier has walked (0 before Linux 5.16, which does not tell), or its last line.
    pub answer: Result<u32, String>,
    /// All that the library and the verifier said.
    pub said: String,
}

/// There is nothing to load.
///
/// # Errors
/// Always.
#[cfg(no_bpf)]
pub fn all() -> Result<Vec<Verdict>, crate::guard::Error> {
    Err(crate::guard::Error::NotBuilt)
}

/// What the kernel tells the packaged service of its table of connections: one without CAP_SYS_ADMIN.
///
/// # Errors
/// If a thread cannot drop that.
pub fn packaged() -> std::io::Result<Connections> {
    let asked = std::thread::Builder::new().spawn(|| {
        caps::drop(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).map_err(std::io::Error::other)?;
        Ok(crate::guard::connections())
    })?;
    asked.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread panicked")))
}
