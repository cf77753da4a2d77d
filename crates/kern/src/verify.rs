//! Every BPF program of every object, loaded alone: what the running kernel's verifier says to each.
//!
//! For tests of kernels. The guard, the probes and the lab leave out what a kernel cannot have; here nothing is left out.

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
