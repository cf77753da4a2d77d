//! The first thread, which only waits: where the kernel does not tell of threads the keeper learns from its end that the guard has
//! died. It is among the first to end, as the witness in `kern::keeper` is, whose end the keeper hears of elsewhere.

use std::process::ExitCode;

use crate::sched;

/// Runs `control` in a thread of its own, and waits for it before every program. A killed thread must run once more to
/// die: one of the normal class takes seconds for that on a CPU that has just lost its guard.
///
/// # Errors
/// Those of `control`, or no thread can be started.
pub fn lead(control: impl FnOnce() -> anyhow::Result<ExitCode> + Send) -> anyhow::Result<ExitCode> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("weir-control".into()).spawn_scoped(scope, control)?;
        sched::go_fifo();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
