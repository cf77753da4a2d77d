//! Probes: `probes.bpf.c` on tracepoints of the kernel, and what they have counted. Nothing is pinned: they end with the
//! process, and with [`Probes`].
//!
//! Needs CAP_BPF and CAP_PERFMON, and a kernel with BTF. A tracepoint that a kernel does not have costs what it measures,
//! and nothing else: [`Probes::missing`] says so.

#[cfg_attr(no_bpf, allow(dead_code, reason = "nothing is counted in this build"))]
mod abi;
#[cfg(all(test, not(no_bpf)))]
pub(crate) use abi::layouts;
#[cfg(not(no_bpf))]
mod load;

pub use abi::{BUCKETS, REASONS, SOCKETS, WAITS, Wait, middle_ns};
#[cfg(not(no_bpf))]
pub use load::{Probes, count_costs};
#[cfg(not(no_bpf))]
pub(crate) use load::{arguments, cost, verified};

use std::collections::BTreeMap;

/// Why there are no probes: one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Built without BPF programs.
    #[error("probes: this weir was built without BPF programs; install clang and libelf-dev and build again")]
    NotBuilt,
    /// The kernel does not describe itself.
    #[error("probes: this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf,
    /// Programs are refused.
    #[error("probes: needs root (CAP_BPF and CAP_PERFMON)")]
    Denied,
    /// Anything else that the kernel refuses.
    #[error("probes: {0}")]
    Refused(String),
}

/// What one CPU has counted since the probes were attached; 32 bits, which run over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub cpu: u32,
    /// Samples by [`Wait`].
    pub samples: Vec<u32>,
    /// [`BUCKETS`] of each [`Wait`], one after the other: packets (softirqs, wake-ups) that samples stand for.
    pub wait: Vec<u32>,
    /// Drops of this network namespace, by [`REASONS`].
    pub drops: Vec<u32>,
    /// Drops of packets that do not tell their network namespace.
    pub unplaced: Vec<u32>,
    /// Looks that found no room to follow a packet.
    pub lost: u32,
}

/// What the probes have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// CPUs that are online.
    pub cpus: Vec<Cpu>,
    /// Datagrams read from UDP sockets, by inode; 32 bits. Not there: the socket's place is another one's, or reads are
    /// not counted here.
    pub reads: BTreeMap<u64, u32>,
    /// Runs that the kernel left out because a probe was interrupted by itself; 0 on kernels that do not.
    pub missed: u64,
}

/// What a probe costs, counted since [`count_costs`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Name of the BPF program.
    pub name: String,
    /// Runs.
    pub runs: u64,
    /// Time in them, ns, without what it takes to come there.
    pub ns: u64,
}

#[cfg(no_bpf)]
mod absent {
    use super::{Cost, Error, Reading};

    /// There are none in this build.
    #[derive(Debug)]
    pub enum Probes {}

    impl Probes {
        /// # Errors
        /// Always [`Error::NotBuilt`].
        pub fn load(_netns_inode: u32) -> Result<Probes, Error> {
            Err(Error::NotBuilt)
        }

        /// # Errors
        /// Always [`Error::NotBuilt`].
        pub fn load_those(_netns_inode: u32, _wanted: impl Fn(&str) -> bool) -> Result<Probes, Error> {
            Err(Error::NotBuilt)
        }

        /// # Errors
        /// Cannot be called.
        pub fn steer(&mut self, _rps: bool) -> Result<(), Error> {
            match *self {}
        }

        /// Cannot be called.
        pub fn read(&mut self, _cpus: &[u32], _sockets: &[u64]) -> Reading {
            match *self {}
        }

        /// Cannot be called.
        #[must_use]
        pub fn reason(&self, _slot: usize) -> String {
            match *self {}
        }

        /// Cannot be called.
        #[must_use]
        pub fn missing(&self) -> &[String] {
            match *self {}
        }

        /// Cannot be called.
        #[must_use]
        pub fn costs(&self) -> Vec<Cost> {
            match *self {}
        }
    }
}
#[cfg(no_bpf)]
pub use absent::Probes;
