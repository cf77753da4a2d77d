//! The terminal: raw mode and the alternate screen, put back at every end; frames are written by a thread of their own,
//! so that a slow terminal stops nobody.

use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::style::ResetColor;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{Command, terminal};
use ratatui::layout::Size;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use super::draw::MIN;

/// Longest wait at the end for a terminal that does not take what was written.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// The same in a panic.
const PANIC_WAIT_MS: u16 = 200;

/// True while the terminal is ours.
static OURS: AtomicBool = AtomicBool::new(false);

/// Size of the terminal; one that does not tell has 80 x 24.
pub fn size() -> Size {
    match terminal::window_size() {
        Ok(size) if size.columns > 0 && size.rows > 0 => Size::new(size.columns, size.rows),
        _ => MIN,
    }
}

fn sequence(commands: &[&dyn Fn(&mut String) -> std::fmt::Result]) -> Vec<u8> {
    let mut text = String::new();
    for command in commands {
        // Writing to a string cannot fail.
        let _ = command(&mut text);
    }
    text.into_bytes()
}

fn enter_sequence() -> Vec<u8> {
    sequence(&[&|f| EnterAlternateScreen.write_ansi(f), &|f| Hide.write_ansi(f), &|f| {
        Clear(ClearType::All).write_ansi(f)
    }])
}

fn leave_sequence() -> Vec<u8> {
    sequence(&[&|f| ResetColor.write_ansi(f), &|f| Show.write_ansi(f), &|f| {
        LeaveAlternateScreen.write_ansi(f)
    }])
}

/// What clears the whole screen before a frame that is drawn anew.
pub fn clear_sequence() -> Vec<u8> {
    sequence(&[&|f| Clear(ClearType::All).write_ansi(f)])
}

#[derive(Default)]
struct Outbox {
    bytes: Option<Vec<u8>>,
    writing: bool,
    closed: bool,
    failed: bool,
}

#[derive(Default)]
struct Shared {
    outbox: Mutex<Outbox>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The terminal while it is ours.
pub struct Screen {
    shared: Arc<Shared>,
}

impl Screen {
    /// Takes standard output's terminal. `wake` is called when a frame has been written.
    ///
    /// # Errors
    /// If the terminal refuses raw mode.
    pub fn enter(wake: impl Fn() + Send + 'static) -> std::io::Result<Screen> {
        restore_on_panic();
        let output = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
        enable_raw_mode()?;
        OURS.store(true, Ordering::SeqCst);
        let shared = Arc::new(Shared::default());
        let screen = Screen { shared: Arc::clone(&shared) };
        screen.send(enter_sequence());
        std::thread::Builder::new().name("weir-screen".into()).spawn(move || write(&shared, output, wake))?;
        Ok(screen)
    }

    /// True if the last frame has been written.
    pub fn ready(&self) -> bool {
        let outbox = self.shared.lock();
        outbox.bytes.is_none() && !outbox.writing
    }

    /// True if the terminal is gone.
    pub fn failed(&self) -> bool {
        self.shared.lock().failed
    }

    /// Hands bytes to the thread that writes; they are whole frames, one at a time.
    pub fn send(&self, bytes: Vec<u8>) {
        self.shared.lock().bytes.get_or_insert_default().extend(bytes);
        self.shared.changed.notify_all();
    }
}

impl Drop for Screen {
    /// Puts the terminal back, behind what is still to be written. One that takes nothing is waited for 1 s.
    fn drop(&mut self) {
        if !OURS.swap(false, Ordering::SeqCst) {
            return;
        }
        self.send(leave_sequence());
        let mut outbox = self.shared.lock();
        outbox.closed = true;
        self.shared.changed.notify_all();
        let end = Instant::now() + LAST_WAIT;
        while (outbox.bytes.is_some() || outbox.writing) && !outbox.failed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            outbox = self.shared.changed.wait_timeout(outbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(outbox);
        let _ = disable_raw_mode();
    }
}

fn write(shared: &Shared, mut output: File, wake: impl Fn()) {
    loop {
        let mut outbox = shared.lock();
        let bytes = loop {
            match outbox.bytes.take() {
                Some(bytes) => break bytes,
                None if outbox.closed => return,
                None => outbox = shared.changed.wait(outbox).unwrap_or_else(PoisonError::into_inner),
            }
        };
        outbox.writing = true;
        drop(outbox);
        let written = output.write_all(&bytes);
        let mut outbox = shared.lock();
        outbox.writing = false;
        outbox.failed |= written.is_err();
        drop(outbox);
        shared.changed.notify_all();
        wake();
        if written.is_err() {
            return;
        }
    }
}

/// A panic of any thread puts the terminal back before its message is printed.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if OURS.swap(false, Ordering::SeqCst) {
                restore_now();
            }
            before(info);
        }));
    });
}

/// Not through the thread that writes: it may be the one that failed.
fn restore_now() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let stdout = std::io::stdout();
    if let Ok(mut output) = stdout.as_fd().try_clone_to_owned().map(File::from) {
        let mut fds = [PollFd::new(output.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut fds, PollTimeout::from(PANIC_WAIT_MS)).is_ok_and(|ready| ready > 0) {
            let _ = output.write_all(&leave_sequence());
        }
    }
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Command;
    use testkit::pty::Pty;

    /// Set in the program that panics.
    const CHILD: &str = "WEIR_TEST_PANIC";

    #[test]
    fn a_panic_of_any_thread_puts_the_terminal_back() {
        if std::env::var_os(CHILD).is_some() {
            let screen = Screen::enter(|| ()).unwrap();
            screen.send(b"drawn".to_vec());
            std::io::stdin().read_exact(&mut [0]).unwrap();
            let other = std::thread::spawn(|| panic!("on purpose"));
            std::panic::resume_unwind(other.join().unwrap_err());
        }
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args([
            "--exact",
            "--nocapture",
            "watch::view::terminal::tests::a_panic_of_any_thread_puts_the_terminal_back",
        ]);
        let mut pty = Pty::start(program.env(CHILD, "1").env("RUST_BACKTRACE", "0"), 80, 60);
        pty.wait("drawn", |screen| screen.alternate_screen() && screen.contents().contains("drawn"));
        assert!(pty.raw() && pty.look(|screen| screen.hide_cursor()));
        pty.keys("x");
        assert_eq!(pty.end().code(), Some(101));
        assert!(!pty.raw() && !pty.look(|screen| screen.alternate_screen() || screen.hide_cursor()));
        let text = pty.text();
        assert!(text.contains("on purpose") && !text.contains("drawn"), "{text}");
    }

    #[test]
    fn the_sequences_are_those_of_every_terminal() {
        assert_eq!(enter_sequence(), b"\x1b[?1049h\x1b[?25l\x1b[2J");
        assert_eq!(leave_sequence(), b"\x1b[0m\x1b[?25h\x1b[?1049l");
    }
}
