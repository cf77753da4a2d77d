//! `weir guard`: where policy meets the kernel.
//!
//! ```text
//! BPF events --> watch thread --> poller of a CPU --> turns, settings
//!                    |                   |
//!                    +--> control loop <-+ reports
//! ```
//! The watch thread decides on takeover. The control loop (the main thread) looks after links and consumers, writes
//! the status and answers `weir status`; it needs neither the guarded CPU nor the guarded interface.

#[cfg(not(no_bpf))]
mod clock;
#[cfg(not(no_bpf))]
mod consumers;
#[cfg(not(no_bpf))]
mod control;
#[cfg(not(no_bpf))]
mod cpuclaim;
#[cfg(not(no_bpf))]
mod dispatch;
#[cfg(not(no_bpf))]
mod filters;
#[cfg(not(no_bpf))]
mod interface;
#[cfg(not(no_bpf))]
mod lend;
#[cfg(not(no_bpf))]
mod near;
#[cfg(not(no_bpf))]
mod poller;
#[cfg(not(no_bpf))]
mod report;
#[cfg(not(no_bpf))]
mod sched;
#[cfg(not(no_bpf))]
mod source;
#[cfg(not(no_bpf))]
mod start;
#[cfg(not(no_bpf))]
mod supervisor;
#[cfg(not(no_bpf))]
mod takeover;

#[cfg(not(no_bpf))]
pub use control::run;

/// Guards until stopped.
///
/// # Errors
/// Always: this build has no BPF programs.
#[cfg(no_bpf)]
pub fn run(_opts: crate::options::GuardOptions) -> anyhow::Result<std::process::ExitCode> {
    Err(crate::error::missing(
        "guard: this weir was built without BPF programs; install clang and libelf-dev and build again",
    ))
}
