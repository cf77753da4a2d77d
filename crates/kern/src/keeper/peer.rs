//! Who the keeper's guard is, and when it ends.

use crate::{journal::Owner, schedule};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{OnceLock, mpsc};

/// Stack of the witness, bytes.
const STACK: usize = 16 * 1024;

/// The guard. Its end of the socket closes when its last thread lets go of it, and a thread that is SCHED_IDLE, as a poller
/// without competitors is, may take long to die on a busy CPU.
pub(super) struct Leader {
    pid: i32,
    /// Keeps the number from meaning somebody else.
    itself: OwnedFd,
    /// Becomes readable when one thread has ended, though others of the process have not; from Linux 6.9.
    thread: Option<OwnedFd>,
    ended: bool,
}

/// A thread of the guard that only waits, before every program, and so is among the first to die: the keeper hears of its end.
/// It is not the first thread: from Linux 6.15 the end of that one is told after all the others. 0 without a thread.
pub(super) fn witness() -> u32 {
    static TID: OnceLock<u32> = OnceLock::new();
    *TID.get_or_init(|| {
        let (tells, tid) = mpsc::sync_channel(1);
        let waits = move || {
            if schedule::set(0, libc::SCHED_FIFO, 1).is_err() {
                // SAFETY: plain numbers; 0 is the calling thread.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
            }
            // SAFETY: plain system call without arguments.
            let _ = tells.send(unsafe { libc::gettid() } as u32);
            loop {
                std::thread::park();
            }
        };
        let thread = std::thread::Builder::new().name("weir-witness".into()).stack_size(STACK).spawn(waits);
        thread.ok().and_then(|_| tid.recv().ok()).unwrap_or_default()
    })
}

/// What becomes readable when this thread has ended, whatever becomes of the others of its process.
fn end_of(tid: i32) -> Option<OwnedFd> {
    const PIDFD_THREAD: libc::c_int = libc::O_EXCL;
    open(tid, PIDFD_THREAD)
}

fn open(pid: i32, flags: libc::c_int) -> Option<OwnedFd> {
    // SAFETY: plain numbers; the result is checked.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
    // SAFETY: the descriptor is new and nobody else's.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

impl Leader {
    /// How often the first thread is looked at where the kernel does not tell, ms.
    pub const LOOK_MS: u16 = 100;

    /// The process that made the socket pair, if it says itself that it is that one, and runs: a parent that has died
    /// before this process was there has left it to another. Never PID 1, which dies only with everything. `witness`: as
    /// [`witness`] of that process.
    pub fn peer(sock: &OwnedFd, says: Owner, witness: u32) -> Option<Leader> {
        let pid = getsockopt(sock, PeerCredentials).ok()?.pid();
        if pid <= 1 || pid as u32 != says.pid || pid as u32 == std::process::id() {
            return None;
        }
        let itself = open(pid, 0)?;
        let thread = end_of(witness as i32);
        // Looked at when the descriptor holds it: neither number can have passed to another since.
        let its = || std::path::Path::new(&format!("/proc/{pid}/task/{witness}")).exists();
        let thread = thread.filter(|_| its());
        says.alive().then_some(Leader { pid, itself, thread, ended: false })
    }

    /// What becomes readable when the witness ends, unless it has been seen to.
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        self.thread.as_ref().filter(|_| !self.ended).map(AsFd::as_fd)
    }

    /// It must be looked at every [`Leader::LOOK_MS`].
    pub fn must_be_asked(&self) -> bool {
        self.thread.is_none() && !self.ended
    }

    /// The first thread is dead; looked at where the kernel does not tell.
    pub fn is_dead(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        stat.map_or(true, |s| s.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])))
    }

    /// False once it is reaped, and its number free for another process.
    fn is_there(&self) -> bool {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: signal 0 only asks; no information goes with it.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.itself.as_raw_fd(), 0, none, 0) == 0 }
    }

    /// Lets the threads that are left die before everything else; what they fork meanwhile is not hurried.
    pub fn hurry(&mut self) {
        self.ended = true;
        if !self.is_there() {
            return;
        }
        let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten() {
            let Some(tid) = task.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            // A thread that is gone is an error that changes nothing.
            let _ = schedule::set(tid, policy, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn told(fd: &OwnedFd, patience: PollTimeout) -> bool {
        poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], patience).unwrap() > 0
    }

    /// The first thread of this process lives all the while. No time is asserted but one that only a loss can reach.
    #[test]
    fn the_end_of_a_thread_is_told_while_others_live() {
        let (ends, end) = mpsc::channel::<()>();
        let (tells, tid) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: plain system call without arguments.
            tells.send(unsafe { libc::gettid() }).unwrap();
            let _ = end.recv();
        });
        let Some(fd) = end_of(tid.recv().unwrap()) else {
            eprintln!("skipped: this kernel tells of processes only");
            return;
        };
        assert!(!told(&fd, PollTimeout::ZERO), "it lives");
        drop(ends);
        thread.join().unwrap();
        assert!(told(&fd, 10_000u16.into()));
    }

    #[test]
    fn the_witness_is_one_thread_of_this_process() {
        let tid = witness();
        assert!(std::path::Path::new(&format!("/proc/self/task/{tid}")).exists());
        assert_eq!(witness(), tid);
    }
}
