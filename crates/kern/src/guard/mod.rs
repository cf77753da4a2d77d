//! The guard's gauges and wake-ups: loads `guard.bpf.c` and `rx.bpf.c`, and gives typed views of their maps.
//!
//! Phases as in libbpf: [`Gauges::load`] creates maps and attaches the tracepoints; [`Gauges::load_rx`] loads the
//! XDP program of one interface, which [`Rx`] attaches. All links die with the process.

mod abi;
#[cfg(all(test, not(no_bpf)))]
pub(crate) use abi::layouts;
mod connections;
#[cfg(not(no_bpf))]
mod evidence;
mod handle;
pub(crate) mod io_uring;
#[cfg(not(no_bpf))]
mod ports;
#[cfg(not(no_bpf))]
mod rx;
mod shared;
#[cfg(not(no_bpf))]
mod sleep;
#[cfg(not(no_bpf))]
mod steer;
mod when;

pub use abi::{
    Behind, CONSUMERS, ConsumerCtl, ConsumerStat, CpuStat, Event, GateStat, GuardCtl, MACS, OverflowStat,
    POLLERS, PORT_WORDS, PollerCtl, PortsUsed, RxStat, SOURCES, Sheds, SourceCtl, SourceStat, Steer, Taker,
    mode, own, table, wake,
};
pub use connections::{Connections, connections};
#[cfg(not(no_bpf))]
pub use evidence::Told;
pub use handle::{Handle, Reach, TurnEnd};
#[cfg(not(no_bpf))]
pub use ports::list as list_ports;
pub use shared::Shared;
#[cfg(not(no_bpf))]
pub use sleep::{Bell, EventRing, EventSource, OpenBell};
#[cfg(not(no_bpf))]
pub use steer::{Steering, UPPERS};
pub use when::{NEVER, REFUSED, When};

/// Why the gauges cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Built without BPF programs.
    #[error("this weir was built without BPF programs; install clang and libelf-dev and build again")]
    NotBuilt,
    /// The kernel refused a program or a map.
    #[error("{what}: {source}")]
    Bpf {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
}

/// The kernel's own words of an error, without the library's.
pub fn short(error: &Error) -> String {
    match error {
        Error::Bpf { source, .. } => {
            let text = source.to_string();
            text.rsplit(": ").next().unwrap_or_default().to_owned()
        }
        other => other.to_string(),
    }
}

/// For how long a port counts as nobody's once no socket took a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nobody {
    /// Not at all.
    Off,
    /// For a moment: nothing tells when a socket is bound to it.
    Briefly,
    /// Until a socket is bound to it.
    UntilBound,
}

#[cfg(not(no_bpf))]
pub use load::{Gauges, Probes, Views, program_name, redirects_sockets};
#[cfg(not(no_bpf))]
pub use rx::{Offloads, Rx};
/// What loading an object takes, for other objects too.
#[cfg(not(no_bpf))]
pub(crate) mod object {
    pub(crate) use super::load::{Aligned, failed, open, program_id, tells_cookies, wake_ring, write_rodata};
}

/// Name of a loaded BPF program.
#[cfg(no_bpf)]
pub fn program_name(_id: u32) -> Option<String> {
    None
}

/// True if programs of the caller's network namespace choose sockets.
#[cfg(no_bpf)]
pub fn redirects_sockets(_own: Option<u32>) -> bool {
    false
}

#[cfg(not(no_bpf))]
mod load;
