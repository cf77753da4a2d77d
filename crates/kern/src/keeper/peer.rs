//! Who the keeper's guard is, and when it ends.

use crate::journal::Owner;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// First thread of the guard. The guard's end of the socket closes when its last thread lets go of it, and a thread that
/// is SCHED_IDLE, as a poller without competitors is, may take long to die on a busy CPU.
pub(super) struct Leader {
    tid: i32,
    /// Keeps the number from meaning somebody else.
    itself: OwnedFd,
    /// `itself` becomes readable when the thread has ended, though others of the process have not; from Linux 6.9.
    tells: bool,
    ended: bool,
}

impl Leader {
    /// How often the thread is looked at where the kernel does not tell, ms.
    pub const LOOK_MS: u16 = 100;

    /// The process that made the socket pair, if it says itself that it is that one, and runs: a parent that has died
    /// before this process was there has left it to another. Never PID 1, which dies only with everything.
    pub fn peer(sock: &OwnedFd, says: Owner) -> Option<Leader> {
        const PIDFD_THREAD: libc::c_int = libc::O_EXCL;
        let tid = getsockopt(sock, PeerCredentials).ok()?.pid();
        if tid <= 1 || tid as u32 != says.pid || tid as u32 == std::process::id() {
            return None;
        }
        let open = |flags: libc::c_int| {
            // SAFETY: plain numbers; the result is checked.
            let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, flags) };
            // SAFETY: the descriptor is new and nobody else's.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
        };
        let thread = open(PIDFD_THREAD);
        let tells = thread.is_some();
        let itself = thread.or_else(|| open(0))?;
        // Looked at when the descriptor holds it: the number cannot have passed to another since.
        says.alive().then_some(Leader { tid, itself, tells, ended: false })
    }

    /// What becomes readable when the thread ends, unless it has been seen to.
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        (self.tells && !self.ended).then(|| self.itself.as_fd())
    }

    /// It must be looked at every [`Leader::LOOK_MS`].
    pub fn must_be_asked(&self) -> bool {
        !self.tells && !self.ended
    }

    /// The thread is dead; looked at where the kernel does not tell.
    pub fn is_dead(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.tid));
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
        for task in std::fs::read_dir(format!("/proc/{}/task", self.tid)).into_iter().flatten().flatten() {
            let Some(tid) = task.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            // A thread that is gone is an error that changes nothing.
            let _ = crate::schedule::set(tid, policy, 1);
        }
    }
}
