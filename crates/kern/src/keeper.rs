//! The keeper: a small process beside the guard that puts every setting back when the guard dies.
//!
//! The guard holds one end of a socket pair, the keeper the other. The guard tells which journals it has made
//! and passes a duplicate of each handle socket. When its end closes without a dismissal, by a crash or by
//! SIGKILL, the keeper restores the journals, makes one turn on each handle (without it a queue stays dead until
//! its old flush timer fires), removes the journals and exits. Until then it sleeps in one system call.

use crate::{
    cpus,
    error::{Error, Result},
    journal::{Journal, Lock, Outcome, Owner},
    settings::Access,
};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv, recvmsg,
        send, sendmsg, socketpair,
    },
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Most handles one keeper holds.
pub const MAX_HANDLES: usize = 512;
/// Most journals one keeper watches.
pub const MAX_JOURNALS: usize = 64;

/// Longest message: a tag and a path.
const MAX_MESSAGE: usize = 1024;
/// How long the guard waits for an answer of its keeper.
const PATIENCE: Duration = Duration::from_secs(2);
/// Attempts to restore what could not be restored at first, 10 ms apart.
const ATTEMPTS: u32 = 5;
/// Most datagrams that are taken out of a handle before its last turn.
const MAX_STRAY: usize = 256;

mod tag {
    pub const JOURNAL: u8 = b'J';
    pub const HANDLE: u8 = b'H';
    pub const DROP_HANDLE: u8 = b'h';
    pub const DISMISS: u8 = b'X';
    pub const OK: u8 = b'K';
    pub const ERROR: u8 = b'E';
}

/// The guard's side of its keeper. Dropping it without [`Keeper::dismiss`] makes the keeper restore.
#[derive(Debug)]
pub struct Keeper {
    sock: OwnedFd,
    child: Child,
}

impl Keeper {
    /// Starts `exe keeper --fd N` in a session of its own and waits until it is ready (at most 2 s). It works
    /// in the calling thread's network namespace and keeps the caller's standard error for its report.
    pub fn spawn(exe: &Path) -> Result<Keeper> {
        let what = || format!("keeper ({})", exe.display());
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(|e| Error::io("socketpair", e.into()))?;
        let fd = theirs.as_raw_fd();
        let mut command = Command::new(exe);
        command.args(["keeper", "--fd"]).arg(fd.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: between fork and exec only two async-signal-safe system calls are made.
        unsafe {
            command.pre_exec(move || {
                if libc::fcntl(fd, libc::F_SETFD, 0) < 0 || libc::setsid() < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().map_err(|e| Error::io(what(), e))?;
        drop(theirs);
        let mut keeper = Keeper { sock: ours, child };
        let patience = nix::sys::time::TimeVal::new(PATIENCE.as_secs() as _, 0);
        nix::sys::socket::setsockopt(&keeper.sock, nix::sys::socket::sockopt::ReceiveTimeout, &patience)
            .map_err(|e| Error::io("SO_RCVTIMEO", e.into()))?;
        match keeper.answer() {
            Ok(()) => Ok(keeper),
            Err(e) => {
                keeper.abandon();
                Err(e)
            }
        }
    }

    /// Puts a journal into its care. Do this before the first change.
    pub fn journal(&self, journal: &Journal) -> Result<()> {
        let path = std::path::absolute(journal.path())
            .map_err(|e| Error::io(journal.path().display().to_string(), e))?;
        self.ask(&[&[tag::JOURNAL], path.as_os_str().as_bytes()].concat(), None)
    }

    /// Gives it a duplicate of the handle socket of a NAPI, in place of an earlier one for the same id.
    pub fn handle(&self, napi_id: u32, handle: BorrowedFd<'_>) -> Result<()> {
        self.ask(&[&[tag::HANDLE][..], &napi_id.to_le_bytes()].concat(), Some(handle.as_raw_fd()))
    }

    /// Makes it close the handle of a NAPI, if it has one: a stale id, or a source that is no longer guarded.
    pub fn drop_handle(&self, napi_id: u32) -> Result<()> {
        self.ask(&[&[tag::DROP_HANDLE][..], &napi_id.to_le_bytes()].concat(), None)
    }

    /// Ends it: everything is restored already. Waits at most 2 s for its exit.
    pub fn dismiss(mut self) -> Result<()> {
        let sent = self.ask(&[tag::DISMISS], None);
        self.abandon();
        sent
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// False once it has exited or was killed: then start another one.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn ask(&self, message: &[u8], fd: Option<RawFd>) -> Result<()> {
        if message.len() > MAX_MESSAGE {
            return Err(Error::Invalid { what: "message to the keeper".into(), why: "too long".into() });
        }
        let fds = fd.map(|f| [f]);
        let rights: Vec<ControlMessage<'_>> = fds.iter().map(|f| ControlMessage::ScmRights(f)).collect();
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(self.sock.as_raw_fd(), &[IoSlice::new(message)], &rights, flags, None)
            .map_err(|e| Error::io("keeper", e.into()))?;
        self.answer()
    }

    fn answer(&self) -> Result<()> {
        let mut buf = [0u8; MAX_MESSAGE];
        let refused = |why: String| Err(Error::Invalid { what: "keeper".into(), why });
        loop {
            return match recv(self.sock.as_raw_fd(), &mut buf, MsgFlags::empty()) {
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => refused(format!("no answer for {} s", PATIENCE.as_secs())),
                Err(e) => Err(Error::io("keeper", e.into())),
                Ok(0) => refused("it has exited".into()),
                Ok(n) if buf[0] == tag::ERROR => refused(String::from_utf8_lossy(&buf[1..n]).into_owned()),
                Ok(_) => Ok(()),
            };
        }
    }

    /// Waits for its exit and reaps it; kills it after 2 s, so that it never stays as a zombie.
    fn abandon(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.alive() {
            if Instant::now() >= until {
                // Both fail only if it has exited meanwhile.
                _ = self.child.kill();
                _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl AsFd for Keeper {
    /// Becomes readable (hang-up) when the keeper dies; for epoll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }
}

/// What the keeper is responsible for.
struct Care {
    access: Access,
    journals: BTreeMap<PathBuf, Owner>,
    handles: BTreeMap<u32, OwnedFd>,
}

/// The keeper process: `weir keeper --fd N`. Returns after a dismissal or after everything is restored.
/// [`Error::Invalid`] if `fd` is not the socket that a guard hands over.
pub fn main(fd: RawFd) -> Result<()> {
    let sock = adopt(fd)?;
    isolate(fd);
    let mut care = match Access::for_current_netns() {
        Ok(access) => Care { access, journals: BTreeMap::new(), handles: BTreeMap::new() },
        Err(e) => {
            reply(&sock, Err(e));
            return Ok(());
        }
    };
    reply(&sock, Ok(()));
    let guard = Leader::parent();
    let mut dies = false;
    loop {
        if !dies && guard.dies_before(&sock) {
            dies = true;
            guard.hurry();
        }
        match receive(&sock) {
            Ok(Some((message, _))) if message.first() == Some(&tag::DISMISS) => {
                reply(&sock, Ok(()));
                return Ok(());
            }
            Ok(Some((message, passed))) => {
                let result = care.take(&message, passed);
                reply(&sock, result);
            }
            // A broken socket is a lost guard as well.
            Ok(None) | Err(_) => {
                // A thread that has closed the socket has other files to close before it is gone.
                guard.hurry();
                let report = care.restore();
                say(&report);
                return Ok(());
            }
        }
    }
}

/// First thread of the guard. The guard's end of the socket closes when its last thread lets go of it, and a thread that
/// is SCHED_IDLE, as a poller without competitors is, may take long to die on a busy CPU.
struct Leader {
    tid: i32,
    /// Keeps the number from meaning somebody else.
    itself: Option<OwnedFd>,
    /// `itself` becomes readable when the thread has ended, though others of the process have not; from Linux 6.9.
    tells: bool,
}

impl Leader {
    /// How often the thread is looked at where the kernel does not tell.
    const LOOK_MS: u16 = 100;

    fn parent() -> Leader {
        const PIDFD_THREAD: libc::c_int = libc::O_EXCL;
        let tid = nix::unistd::getppid().as_raw();
        let open = |flags: libc::c_int| {
            // SAFETY: plain numbers; the result is checked.
            let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, flags) };
            // SAFETY: the descriptor is new and nobody else's.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
        };
        let thread = open(PIDFD_THREAD);
        Leader { tid, tells: thread.is_some(), itself: thread.or_else(|| open(0)) }
    }

    /// Waits until the thread has ended (true) or the socket has something to say.
    fn dies_before(&self, sock: &OwnedFd) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = vec![PollFd::new(sock.as_fd(), PollFlags::POLLIN)];
        let end = self.itself.iter().filter(|_| self.tells);
        fds.extend(end.map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
        let timeout = if self.tells { PollTimeout::NONE } else { PollTimeout::from(Self::LOOK_MS) };
        loop {
            let woken = poll(&mut fds, timeout);
            let said = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
            match woken {
                Err(Errno::EINTR) => {}
                Ok(0) if !self.is_dead() => {}
                Ok(0) => return true,
                _ => return !said(fds.first()) && said(fds.get(1)),
            }
        }
    }

    fn is_dead(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.tid));
        stat.map_or(true, |s| s.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])))
    }

    /// False once it is reaped, and its number free for another process.
    fn is_there(&self) -> bool {
        self.itself.as_ref().is_some_and(|fd| {
            let none = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: signal 0 only asks; no information goes with it.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), 0, none, 0) == 0 }
        })
    }

    /// Lets the threads that are left die before everything else.
    fn hurry(&self) {
        if !self.is_there() {
            return;
        }
        let fifo = libc::sched_param { sched_priority: 1 };
        for task in std::fs::read_dir(format!("/proc/{}/task", self.tid)).into_iter().flatten().flatten() {
            let Some(tid) = task.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            // SAFETY: `fifo` lives through the call; a thread that is gone is an error that changes nothing.
            unsafe { libc::sched_setscheduler(tid, libc::SCHED_FIFO, &raw const fifo) };
        }
    }
}

/// Takes over the inherited descriptor, after checking that it is what a guard hands over.
fn adopt(fd: RawFd) -> Result<OwnedFd> {
    use nix::sys::socket::{getsockopt, sockopt::SockType as TypeOf};
    let refused = || Error::Invalid {
        what: format!("--fd {fd}"),
        why: "not a guard's socket; `weir keeper` is started by `weir guard` only".into(),
    };
    if fd <= 2 {
        return Err(refused());
    }
    // SAFETY: the descriptor is only borrowed for this call, which fails cleanly if it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    match getsockopt(&borrowed, TypeOf) {
        // SAFETY: the descriptor is open, it was handed over by the parent for this purpose, and nothing else
        // in this process uses it.
        Ok(SockType::SeqPacket) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(refused()),
    }
}

/// Makes the process independent of what it was started from. Each step is tried: a keeper without it is
/// better than none.
fn isolate(fd: RawFd) {
    use Signal::*;
    use nix::sys::signal::{SigHandler, Signal, signal};
    for s in [SIGINT, SIGHUP, SIGTERM, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2, SIGTSTP, SIGTTIN, SIGTTOU] {
        // SAFETY: ignoring a signal installs no handler code.
        _ = unsafe { signal(s, SigHandler::SigIgn) };
    }
    // An open or current directory would keep its file system from being unmounted.
    _ = std::env::set_current_dir("/");
    let close = |first: RawFd, last: libc::c_uint| {
        if first >= 0 && (first as libc::c_uint) <= last {
            // SAFETY: no object of this process owns a descriptor above 2 besides the adopted one, which is
            // outside the range.
            unsafe { libc::syscall(libc::SYS_close_range, first as libc::c_uint, last, 0) };
        }
    };
    close(3, fd as libc::c_uint - 1);
    close(fd + 1, libc::c_uint::MAX);
    // The guard's thread may have been bound to one CPU; the keeper must run wherever there is time.
    _ = cpus::online().and_then(|all| cpus::set_affinity(0, &all));
    // Under a flood a thread of the normal class can wait for seconds.
    let fifo = libc::sched_param { sched_priority: 1 };
    // SAFETY: `fifo` lives through the call; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const fifo) }
        < 0
    {
        // SAFETY: plain numbers; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
    _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // Only what is touched stays in memory; receiving a journal walks through all of it once.
    // SAFETY: plain flags.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
    if let Ok((_, hard)) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE) {
        _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// A message, and the descriptor that came along.
type Message = (Vec<u8>, Option<OwnedFd>);

/// The next message; `None` when the guard's end is closed.
fn receive(sock: &OwnedFd) -> std::result::Result<Option<Message>, Errno> {
    let mut buf = [0u8; MAX_MESSAGE];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let (len, passed) = loop {
        let mut parts = [IoSliceMut::new(&mut buf)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(sock.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Err(Errno::EINTR) => continue,
            m => m?,
        };
        let mut passed = None;
        for c in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = c {
                for fd in fds {
                    // SAFETY: the kernel has just installed this descriptor for this message.
                    passed = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
        }
        break (message.bytes, passed);
    };
    Ok((len > 0).then(|| (buf[..len].to_vec(), passed)))
}

fn reply(sock: &OwnedFd, result: Result<()>) {
    let message = match result {
        Ok(()) => vec![tag::OK],
        Err(e) => {
            let mut m = vec![tag::ERROR];
            m.extend(e.to_string().bytes().take(MAX_MESSAGE - 1));
            m
        }
    };
    // A guard that has died meanwhile is noticed at the next receive.
    _ = send(sock.as_raw_fd(), &message, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
}

impl Care {
    fn take(&mut self, message: &[u8], passed: Option<OwnedFd>) -> Result<()> {
        let bad = |why: &str| Err(Error::Invalid { what: "message".into(), why: why.into() });
        let Some((&tag, rest)) = message.split_first() else { return bad("empty") };
        let napi_id = || <[u8; 4]>::try_from(rest).map(u32::from_le_bytes);
        match (tag, passed) {
            (tag::JOURNAL, _) => {
                let path = PathBuf::from(OsStr::from_bytes(rest));
                if self.journals.len() >= MAX_JOURNALS && !self.journals.contains_key(&path) {
                    return bad("too many journals");
                }
                let journal = Journal::load(&path)?;
                if !journal.is_here() {
                    return bad("the journal belongs to another network namespace");
                }
                // Reads every setting, so that nothing has to be loaded when it counts.
                journal.dry_run(&mut self.access);
                self.journals.insert(path, journal.owner());
                Ok(())
            }
            (tag::HANDLE, Some(fd)) => match napi_id() {
                Ok(id) if self.handles.len() < MAX_HANDLES || self.handles.contains_key(&id) => {
                    self.handles.insert(id, fd);
                    Ok(())
                }
                Ok(_) => bad("too many handles"),
                Err(_) => bad("no NAPI id"),
            },
            (tag::DROP_HANDLE, _) => match napi_id() {
                Ok(id) => {
                    self.handles.remove(&id);
                    Ok(())
                }
                Err(_) => bad("no NAPI id"),
            },
            _ => bad("unknown"),
        }
    }

    /// Puts everything back; answers one line per interface for the user.
    fn restore(&mut self) -> Vec<String> {
        let journals = std::mem::take(&mut self.journals);
        // Whoever holds the lock restores the same settings; waiting for ever would help nobody.
        let locks: Vec<_> = journals.keys().filter_map(|p| p.parent()).take(1).map(Lock::take).collect();
        let mut done = Vec::new();
        for (path, owner) in &journals {
            // Gone: the guard restored it before it died. Another owner: a new guard has taken over.
            let Ok(journal) = Journal::load(path) else { continue };
            if journal.owner() != *owner || !journal.is_here() {
                continue;
            }
            let mut outcomes = journal.restore(&mut self.access);
            for _ in 1..ATTEMPTS {
                if outcomes.iter().all(Outcome::settled) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
                outcomes = journal.restore(&mut self.access);
            }
            done.push((journal, outcomes));
        }
        // Only now: a turn under weir's settings would start the timer again.
        for handle in self.handles.values() {
            turn(handle.as_fd());
        }
        let mut lines = Vec::new();
        for (journal, outcomes) in &done {
            let open = outcomes.iter().filter(|o| !o.settled()).count();
            let removed = open == 0 && journal.remove().is_ok();
            let rest = if removed { String::new() } else { format!(", {open} not: run `weir undo`") };
            lines.push(format!(
                "weir keeper: guard pid {} is gone; {}: {} settings as before{rest}",
                journal.owner().pid,
                journal.name(),
                outcomes.len() - open
            ));
        }
        drop(locks);
        lines
    }
}

/// One turn: a receive that finds nothing polls the handle's NAPI once. Datagrams that lie in the socket end
/// a receive before it polls, so they are taken out first.
fn turn(handle: BorrowedFd<'_>) {
    let mut byte = [0u8; 1];
    for _ in 0..MAX_STRAY {
        if recv(handle.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT).is_err() {
            return;
        }
    }
}

/// Writes lines to standard error, if that does not block: its reader may be gone or stuck.
fn say(lines: &[String]) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let stderr = io::stderr();
    // A guard that died is a warning.
    let prefix = if crate::proc::stderr_is_journal() { "<4>" } else { "" };
    for line in lines {
        let ready = {
            let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
            poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
        };
        if ready {
            // Nobody is left to tell if this fails.
            _ = nix::unistd::write(&stderr, format!("{prefix}{line}\n").as_bytes());
        }
    }
}
