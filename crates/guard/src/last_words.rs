//! A panic of any thread ends the whole process, in every build.
//!
//! A guard whose poller is gone would hold settings in force that nobody looks after; the keeper puts them back when the
//! process ends, and not before. So a panic prints one line and aborts.

use std::io::Write;
use std::os::fd::{AsFd, FromRawFd};
use std::panic::PanicHookInfo;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Longest line, bytes: a pipe takes that much whole once it says that it takes anything (PIPE_BUF).
const LINE_MAX: usize = 1024;

/// From here on a panic in any thread ends the process: one line on standard error, then SIGABRT.
pub fn aborts(what: &'static str) {
    std::panic::set_hook(Box::new(move |info| {
        say(&line(what, info));
        std::process::abort();
    }));
}

fn line(what: &str, info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let said = info.payload_as_str().unwrap_or("a panic without words");
    let place = info.location().map(|l| format!(", {}:{}", l.file(), l.line())).unwrap_or_default();
    let name = thread.name().unwrap_or("a thread");
    let mut line = format!("weir: {what} ends: {name} panicked: {}{place}", said.replace('\n', " "));
    line.truncate(line.floor_char_boundary(LINE_MAX));
    line + "\n"
}

/// Writes to standard error if that takes anything at once: nobody may be reading, and the process must end.
fn say(line: &str) {
    // SAFETY: the descriptor is not closed here (see below), and a write to a closed one fails.
    let stderr = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(2) });
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    let ready = poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n == 1)
        && fds[0].revents().is_some_and(|r| r.contains(PollFlags::POLLOUT));
    if ready {
        // Words that nobody hears are none.
        let _ = (&*stderr).write_all(line.as_bytes());
    }
}

/// For tests of this file's promise: `WEIR_TEST_PANIC=poller:MS` in a build with debug assertions makes a poller panic in its
/// first turn that begins MS milliseconds after it was first asked. Costs one look at an atomic per turn there.
#[cfg(all(debug_assertions, not(no_bpf)))]
pub fn test_panic() {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};
    static AT: OnceLock<Option<Instant>> = OnceLock::new();
    let at = AT.get_or_init(|| {
        let wanted = std::env::var("WEIR_TEST_PANIC").ok()?;
        let after = wanted.strip_prefix("poller")?.strip_prefix(':').map_or(Ok(0), str::parse).ok()?;
        Some(Instant::now() + Duration::from_millis(after))
    });
    assert!(at.is_none_or(|at| Instant::now() < at), "told to by WEIR_TEST_PANIC");
}
