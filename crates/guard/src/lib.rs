//! `weir guard`: where policy meets the kernel.
//!
//! ```text
//! BPF events --> watch thread --> hands --> poller of a CPU --> turns
//!                    |              |            |
//!                    +--> control loop <-- reports
//! ```
//! The watch thread hears of overload and orders takeovers as `policy` decides. The hands change settings, mark handles and
//! put everything back; pollers only poll. The pulse renews what BPF holds back and tells the keeper that the guard lives. The
//! control loop looks after links and consumers, writes the status and answers `weir status`; it needs neither the guarded
//! CPU nor the guarded interface. The first thread waits, for the keeper's sake. docs/safety.md has a table of all threads.

pub mod args;
#[cfg(not(no_bpf))]
mod arrived;
#[cfg(not(no_bpf))]
mod clock;
pub mod config;
#[cfg(not(no_bpf))]
mod consumers;
#[cfg(not(no_bpf))]
mod control;
#[cfg(not(no_bpf))]
mod cpuclaim;
#[cfg(not(no_bpf))]
mod dispatch;
pub mod error;
#[cfg(not(no_bpf))]
mod filters;
#[cfg(not(no_bpf))]
mod gate;
#[cfg(not(no_bpf))]
mod gauge;
#[cfg(not(no_bpf))]
mod hands;
#[cfg(not(no_bpf))]
mod interface;
#[cfg(not(no_bpf))]
mod keeping;
mod last_words;
#[cfg(not(no_bpf))]
mod leader;
#[cfg(not(no_bpf))]
mod lend;
#[cfg(not(no_bpf))]
mod log;
#[cfg(not(no_bpf))]
mod marking;
#[cfg(not(no_bpf))]
mod messages;
#[cfg(not(no_bpf))]
mod names;
#[cfg(not(no_bpf))]
mod offloads;
pub mod options;
pub mod out;
pub mod outbox;
pub mod outcome;
#[cfg(not(no_bpf))]
mod outputs;
pub mod parse;
#[cfg(not(no_bpf))]
mod plan;
#[cfg(not(no_bpf))]
mod poller;
#[cfg(not(no_bpf))]
mod prod;
pub mod program;
#[cfg(not(no_bpf))]
mod pulse;
#[cfg(not(no_bpf))]
mod sched;
#[cfg(not(no_bpf))]
pub mod server;
#[cfg(not(no_bpf))]
mod sessions;
#[cfg(not(no_bpf))]
mod source;
#[cfg(not(no_bpf))]
mod start;
pub mod status;
#[cfg(not(no_bpf))]
mod supervisor;
#[cfg(not(no_bpf))]
mod taps;
pub mod usage;

/// Guards until SIGTERM or SIGINT.
///
/// # Errors
/// 2 for interfaces that cannot be guarded, 3 for privileges and kernel features; nothing stays changed.
#[cfg(not(no_bpf))]
pub fn run(opts: crate::options::GuardOptions) -> anyhow::Result<std::process::ExitCode> {
    leader::lead(|| control::run(opts))
}

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
