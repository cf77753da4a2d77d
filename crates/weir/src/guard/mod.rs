//! `weir guard`: where policy meets the kernel.
//!
//! ```text
//! BPF events --> watch thread --> poller of a CPU --> turns, settings
//!                    |                   |
//!                    +--> control loop <-+ reports
//! ```
//! The watch thread decides on takeover. The control loop (the main thread) looks after links and consumers, writes
//! the status and answers `weir status`; it needs neither the guarded CPU nor the guarded interface.

mod clock;
#[cfg(feature = "bpf")]
mod consumers;
#[cfg(feature = "bpf")]
mod control;
#[cfg(feature = "bpf")]
mod cpuclaim;
#[cfg(feature = "bpf")]
mod dispatch;
#[cfg(feature = "bpf")]
mod interface;
#[cfg(feature = "bpf")]
mod poller;
#[cfg(feature = "bpf")]
mod report;
mod sched;
#[cfg(feature = "bpf")]
mod source;
#[cfg(feature = "bpf")]
mod takeover;

#[cfg(feature = "bpf")]
pub use control::run;

/// Guards until stopped.
///
/// # Errors
/// Always: this build has no BPF programs.
#[cfg(not(feature = "bpf"))]
pub fn run(_opts: crate::options::GuardOptions) -> anyhow::Result<std::process::ExitCode> {
    Err(crate::error::missing(
        "guard: this weir was built without BPF programs; install clang and libelf-dev and build again",
    ))
}
