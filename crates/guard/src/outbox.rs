//! A bounded queue before a writer that may hang: a pipe whose reader stops, a stopped terminal, a disk that does not answer.
//!
//! Who has something to say never waits: what does not fit into the queue is dropped and counted. The thread behind the
//! queue waits instead, and its hanging keeps no process from ending. O_NONBLOCK would do without a thread, but it belongs
//! to the open file, which a terminal or pipe shares with the user's shell.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Stack of a writer's thread, bytes.
const STACK: usize = 64 * 1024;
/// Between two looks of [`Outbox::drain`].
const LOOK: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Shared {
    /// Lines that were taken in and are not written yet.
    waiting: AtomicUsize,
    dropped: AtomicU64,
    /// Nothing is written any more, and why.
    over: AtomicBool,
    why: Mutex<String>,
}

/// The end where lines are put in.
#[derive(Debug)]
pub struct Outbox {
    lines: SyncSender<Vec<u8>>,
    shared: Arc<Shared>,
}

impl Outbox {
    /// A queue of at most `most` lines before `to`, written by a thread of this name.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub fn new(name: &str, most: usize, to: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (lines, inbox) = sync_channel(most);
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK);
        thread.spawn(move || write_all(&inbox, to, &own))?;
        Ok(Self { lines, shared })
    }

    /// Puts a line in, without waiting; false if it is dropped.
    pub fn send(&self, line: Vec<u8>) -> bool {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        let taken = self.lines.try_send(line).is_ok();
        if !taken {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Lines dropped so far: the queue was full, or the writer refused them.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Why nothing is written any more, if its reader is gone.
    pub fn over(&self) -> Option<String> {
        let over = self.shared.over.load(Ordering::Acquire);
        over.then(|| self.shared.why.lock().map(|why| why.clone()).unwrap_or_default())
    }

    /// Waits until all lines are written, at most for `patience`; false if some are not.
    pub fn drain(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let busy = || self.shared.waiting.load(Ordering::Acquire) > 0 && self.over().is_none();
        while busy() && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        !busy()
    }
}

/// Leaves the class that the calling thread may have inherited from one that must not wait: what waits has no place before
/// programs.
pub fn ordinary() {
    // Giving priority up is always permitted.
    let _ = kern::schedule::set(0, libc::SCHED_OTHER, 0);
    // SAFETY: plain system call on the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) };
}

fn write_all(inbox: &Receiver<Vec<u8>>, mut to: impl Write, shared: &Shared) {
    ordinary();
    // A line that was cut short ends before the next one begins.
    let mut cut = false;
    for line in inbox {
        let whole = if cut { [b"\n", &line[..]].concat() } else { line };
        let mut left = &whole[..];
        let result = loop {
            match to.write(left) {
                Ok(n) if n == left.len() => break to.flush(),
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(n) => left = &left[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
        };
        match result {
            Ok(()) => cut = false,
            Err(e) => {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
                cut |= left.len() < whole.len();
                // A reader that is gone does not come back; a disk that is full may have room again.
                if e.kind() == ErrorKind::BrokenPipe {
                    if let Ok(mut why) = shared.why.lock() {
                        *why = e.to_string();
                    }
                    shared.over.store(true, Ordering::Release);
                    return;
                }
            }
        }
        shared.waiting.fetch_sub(1, Ordering::Release);
    }
}

/// Standard output or error without the buffer and the lock that the standard library puts before them: a thread that hangs
/// in one must not hold it while the process ends.
#[derive(Clone, Copy, Debug)]
pub enum Standard {
    /// Standard output.
    #[cfg_attr(no_bpf, allow(dead_code, reason = "only the guard's status goes there"))]
    Out = 1,
    /// Standard error.
    Error = 2,
}

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // SAFETY: the pointer and the length are those of `bytes`; a closed descriptor is an error.
        let n = unsafe { libc::write(*self as i32, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(n).map_err(|_| std::io::Error::last_os_error())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    /// Longest wait for what happens at once unless the machine is busy.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn pipe() -> (std::fs::File, std::fs::File) {
        let (read, write): (OwnedFd, OwnedFd) = nix::unistd::pipe().unwrap();
        (read.into(), write.into())
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_no_time() {
        let (mut read, write) = pipe();
        let outbox = Outbox::new("test", 4, write).unwrap();
        let line = [b'x'; 1000];
        // A pipe holds 64 KiB, the queue four lines: one of the next finds both full. None of them waits, or this would not end.
        let (mut sent, begin) = (0, Instant::now());
        while outbox.dropped() == 0 && begin.elapsed() < PATIENCE {
            sent += usize::from(outbox.send(line.to_vec()));
            std::thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(outbox.dropped(), 1);
        let mut text = vec![0; 1000 * sent];
        read.read_exact(&mut text).unwrap();
        assert!(outbox.drain(PATIENCE));
        assert_eq!(outbox.over(), None);
    }

    #[test]
    fn a_reader_that_is_gone_is_told_once() {
        let (read, write) = pipe();
        drop(read);
        let outbox = Outbox::new("test", 4, write).unwrap();
        outbox.send(b"x\n".to_vec());
        // It is over before the limit, however slow the machine is.
        assert!(outbox.drain(PATIENCE));
        assert!(outbox.over().unwrap().contains("Broken pipe"));
        assert_eq!(outbox.dropped(), 1);
    }

    /// Takes three bytes of a line, then is full until it is told otherwise.
    struct Full(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            let n = bytes.len().min(disk.1);
            if n == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            disk.1 -= n;
            disk.0.extend(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn after_a_full_disk_lines_are_whole_again() {
        let disk = Arc::new(Mutex::new((Vec::new(), 3)));
        let outbox = Outbox::new("test", 4, Full(Arc::clone(&disk))).unwrap();
        outbox.send(b"first\n".to_vec());
        assert!(outbox.drain(PATIENCE));
        disk.lock().unwrap().1 = 100;
        outbox.send(b"second\n".to_vec());
        assert!(outbox.drain(PATIENCE));
        assert_eq!(disk.lock().unwrap().0, b"fir\nsecond\n");
        assert_eq!((outbox.dropped(), outbox.over()), (1, None));
    }
}
