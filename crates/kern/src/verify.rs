//! Every BPF program of every object, loaded alone: what the running kernel's verifier says to each.
//!
//! For tests of kernels. The guard, the probes and the lab leave out what a kernel cannot have; here nothing is left out.

use std::io;

use caps::{CapSet, Capability};

use crate::guard::{Connections, Error};

#[cfg(not(no_bpf))]
mod load;
#[cfg(not(no_bpf))]
pub use load::all;
#[cfg(not(no_bpf))]
use load::those;

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
pub fn all() -> Result<Vec<Verdict>, Error> {
    those(|_| true)
}

/// What the kernel tells the packaged service, one without CAP_SYS_ADMIN, of its table of connections, and what it says to its XDP
/// program.
///
/// # Errors
/// As [`all`], and if a thread cannot drop that.
pub fn packaged() -> Result<(Connections, Vec<Verdict>), Error> {
    let failed = |source| Error::Bpf { what: "a thread without CAP_SYS_ADMIN".into(), source };
    let asked = std::thread::Builder::new().spawn(move || {
        caps::drop(None, CapSet::Effective, Capability::CAP_SYS_ADMIN)
            .map_err(|e| failed(io::Error::other(e)))?;
        Ok((crate::guard::connections(), those(|object| object == "rx")?))
    });
    asked.map_err(failed)?.join().unwrap_or_else(|_| Err(failed(io::Error::other("it panicked"))))
}

/// There is nothing to load.
///
/// # Errors
/// Always.
#[cfg(no_bpf)]
fn those(_: impl Fn(&str) -> bool) -> Result<Vec<Verdict>, Error> {
    Err(Error::NotBuilt)
}
