//! A program on a terminal of its own: what it draws, what is typed, what it leaves behind.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::{Pid, setsid};

/// Longest wait for anything.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks.
const STEP_MS: u16 = 10;

fn window(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// A running program and its terminal; the program is killed when this is dropped.
pub struct Pty {
    master: File,
    /// Kept open, so that what was written last can still be read.
    _slave: OwnedFd,
    child: Child,
    screen: Arc<Mutex<vt100::Parser>>,
    held: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Pty {
    /// Starts `command` as leader of a session on a new terminal of `columns` x `rows`.
    ///
    /// # Panics
    /// If there is no terminal, or the program does not start.
    #[must_use]
    pub fn start(command: &mut Command, columns: u16, rows: u16) -> Pty {
        let pair = openpty(&window(columns, rows), None).unwrap_or_else(|e| panic!("openpty: {e}"));
        let stdio = || Stdio::from(pair.slave.try_clone().unwrap_or_else(|e| panic!("dup: {e}")));
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let lead = || {
            setsid()?;
            // SAFETY: the argument of TIOCSCTTY is a number; standard input is the new terminal.
            if unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        };
        // SAFETY: only system calls between fork and exec.
        unsafe { command.pre_exec(lead) };
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let master = File::from(pair.master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (held, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let input = master.try_clone().unwrap_or_else(|e| panic!("dup: {e}"));
        let reader = {
            let (screen, held, stop) = (Arc::clone(&screen), Arc::clone(&held), Arc::clone(&stop));
            std::thread::spawn(move || read(input, &screen, &held, &stop))
        };
        Pty { master, _slave: pair.slave, child, screen, held, stop, reader: Some(reader) }
    }

    /// Types.
    ///
    /// # Panics
    /// If the terminal is gone.
    pub fn keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap_or_else(|e| panic!("keys: {e}"));
    }

    /// Changes the size of the window.
    ///
    /// # Panics
    /// If the terminal is gone.
    pub fn resize(&self, columns: u16, rows: u16) {
        self.with(|parser| parser.screen_mut().set_size(rows, columns));
        let size = window(columns, rows);
        // SAFETY: TIOCSWINSZ reads one winsize, which lives until the call returns.
        let done = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(done, 0, "TIOCSWINSZ");
    }

    fn with<T>(&self, look: impl FnOnce(&mut vt100::Parser) -> T) -> T {
        look(&mut self.screen.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// All text on the screen.
    #[must_use]
    pub fn text(&self) -> String {
        self.with(|parser| parser.screen().contents())
    }

    /// Looks at the screen.
    pub fn look<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        self.with(|parser| look(parser.screen()))
    }

    /// Waits until the screen is as `test` says.
    ///
    /// # Panics
    /// After [`LIMIT`], or when the program has ended, with the screen.
    pub fn wait(&mut self, what: &str, test: impl Fn(&vt100::Screen) -> bool) {
        let end = Instant::now() + LIMIT;
        loop {
            let ended = self.child.try_wait().ok().flatten();
            std::thread::sleep(Duration::from_millis(STEP_MS.into()));
            if self.look(&test) {
                return;
            }
            assert!(ended.is_none(), "{what}: ended, {ended:?}\n{}", self.text());
            assert!(Instant::now() < end, "{what}: not within {LIMIT:?}\n{}", self.text());
        }
    }

    /// Waits until `part` is on the screen.
    ///
    /// # Panics
    /// As [`Pty::wait`].
    pub fn wait_for(&mut self, part: &str) {
        self.wait(part, |screen| screen.contents().contains(part));
    }

    /// Sends a signal to the program.
    ///
    /// # Panics
    /// If it has gone.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap_or_else(|e| panic!("pid: {e}"));
        kill(Pid::from_raw(pid), signal).unwrap_or_else(|e| panic!("{signal}: {e}"));
    }

    /// Waits for the end of the program, and until all that it wrote has been read.
    ///
    /// # Panics
    /// After [`LIMIT`], with the screen.
    pub fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        loop {
            let status = self.child.try_wait().unwrap_or_else(|e| panic!("wait: {e}"));
            if let Some(status) = status.filter(|_| self.unread() == 0) {
                // The reader may still have in its hands what it took last.
                self.with(|_| ());
                return status;
            }
            assert!(Instant::now() < end, "no end within {LIMIT:?}\n{}", self.text());
            std::thread::sleep(Duration::from_millis(STEP_MS.into()));
        }
    }

    /// True if keys reach programs at once and without echo.
    ///
    /// # Panics
    /// If the terminal is gone.
    #[must_use]
    pub fn raw(&self) -> bool {
        let flags = tcgetattr(self.master.as_fd()).unwrap_or_else(|e| panic!("tcgetattr: {e}")).local_flags;
        !flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO)
    }

    /// A terminal that takes nothing any more (`true`), or reads on.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
        // From here on the reader has seen it, and holds nothing.
        self.with(|_| ());
    }

    /// Bytes that the program has written and nobody has read.
    ///
    /// # Panics
    /// If the terminal is gone.
    #[must_use]
    pub fn unread(&self) -> usize {
        let mut bytes: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int, which lives until the call returns.
        let done = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
        assert_eq!(done, 0, "FIONREAD");
        usize::try_from(bytes).unwrap_or(0)
    }
}

fn read(mut input: File, screen: &Mutex<vt100::Parser>, held: &AtomicBool, stop: &AtomicBool) {
    let mut bytes = [0; 4096];
    while !stop.load(Ordering::SeqCst) {
        let mut fds = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::from(STEP_MS)).is_ok_and(|n| n > 0);
        let mut parser = screen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Under the lock, so that nothing is taken between a look and what it found.
        if !ready || held.load(Ordering::SeqCst) {
            drop(parser);
            std::thread::sleep(Duration::from_millis(STEP_MS.into()));
            continue;
        }
        match input.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(n) => parser.process(&bytes[..n]),
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stop.store(true, Ordering::SeqCst);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_has_a_terminal_with_a_size() {
        let script =
            "stty size; read go; stty raw -echo; printf 'ready\\033[?1049h'; head -c 1; stty sane; exit 3";
        let mut pty = Pty::start(Command::new("sh").args(["-c", script]), 91, 17);
        pty.wait_for("17 91");
        pty.keys("\n");
        pty.wait("raw and alternate", |screen| screen.alternate_screen());
        assert!(pty.raw());
        pty.keys("x");
        assert_eq!(pty.end().code(), Some(3));
        assert!(!pty.raw());
    }

    #[test]
    fn what_is_held_is_not_read() {
        let mut pty =
            Pty::start(Command::new("sh").args(["-c", "read line; echo got $line; read line"]), 80, 24);
        pty.hold(true);
        pty.keys("x\n");
        let end = Instant::now() + LIMIT;
        while pty.unread() < "x\r\ngot x\r\n".len() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(pty.text(), "");
        pty.hold(false);
        pty.wait_for("got x");
    }
}
