//! The keeper: a small process beside the guard that puts every setting back when the guard dies.
//!
//! The guard holds one end of a socket pair, the keeper the other. The guard tells which journals it has made
//! and passes a duplicate of each handle socket. When its end closes without a dismissal, by a crash or by
//! SIGKILL, the keeper restores the journals, makes one turn on each handle (without it a queue stays dead until
//! its old flush timer fires), removes the journals and exits. Until then it sleeps in one system call.
//!
//! While the guard polls it beats ([`Pulse`]). One that stops beating but lives (stopped, frozen, hung) polls nothing any
//! more, so the keeper restores as well, but keeps the journals and goes on watching.
//!
//! Requests and answers are a tag, a number and contents: an answer that comes too late belongs to no later request.

use crate::{
    error::{Error, Result},
    journal::{Journal, Owner},
    restore,
    settings::Access,
};
use apart::{isolate, leave_cgroup};
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
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

mod apart;
#[cfg(fuzzing)]
pub mod fuzz;
mod peer;
mod pulse;

use peer::Leader;
use pulse::{Next, Watch};
pub use pulse::{PULSE_PATIENCE, Pulse};

/// Most handles one keeper holds.
pub const MAX_HANDLES: usize = 512;
/// Most journals one keeper watches.
pub const KEPT_JOURNALS: usize = 64;

/// Longest message: a tag and a path.
const MAX_MESSAGE: usize = 1024;
/// How long the guard waits for a keeper to get ready, and to exit.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// How long the guard waits for an answer of a keeper that is ready.
pub const PATIENCE: Duration = Duration::from_millis(200);
/// A guard that seems not to move is looked at once more after this time.
pub const SECOND_LOOK: Duration = Duration::from_millis(8);
/// Most datagrams that are taken out of a handle before its last turn.
const MAX_STRAY: usize = 256;

mod tag {
    pub const HELLO: u8 = b'A';
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
    pulse: Pulse,
    /// Number of the last request: an answer to an earlier one, which came too late, is dropped.
    asked: AtomicU32,
}

impl Keeper {
    /// Starts `exe keeper --fd N` in a session of its own and waits until it is ready (at most 2 s). It works
    /// in the calling thread's network namespace and keeps the caller's standard error for its report.
    ///
    /// # Errors
    /// [`Error::Lost`] if it does not get ready, else what the system or the keeper says.
    pub fn spawn(exe: &Path) -> Result<Keeper> {
        Self::spawn_with(exe, &Pulse::new()?)
    }

    /// As [`Keeper::spawn`], in place of a keeper that is lost: it watches the same pulse.
    ///
    /// # Errors
    /// As [`Keeper::spawn`].
    pub fn spawn_with(exe: &Path, pulse: &Pulse) -> Result<Keeper> {
        let what = || format!("keeper ({})", exe.display());
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(|e| Error::io("socketpair", e.into()))?;
        let fd = theirs.as_raw_fd();
        // Waits in the socket for the keeper: who its guard is, also if that one is dead by then.
        let me = Owner::me()?;
        let hello = [&[tag::HELLO][..], &0u32.to_le_bytes(), &me.pid.to_le_bytes(), &me.start.to_le_bytes()];
        let hello = [hello.concat(), peer::witness().to_le_bytes().to_vec()].concat();
        transmit(&ours, &hello, &pulse.hand_over())?;
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
        let mut keeper = Keeper { sock: ours, child, pulse: pulse.clone(), asked: AtomicU32::new(0) };
        match keeper.answer(0, START_PATIENCE) {
            Ok(()) => Ok(keeper),
            Err(e) => {
                keeper.abandon();
                Err(e)
            }
        }
    }

    /// Puts a journal into its care. Do this before the first change.
    ///
    /// # Errors
    /// [`Error::Lost`] if it does not answer within [`PATIENCE`], as for every request; else why it refuses.
    pub fn journal(&self, journal: &Journal) -> Result<()> {
        let path = std::path::absolute(journal.path())
            .map_err(|e| Error::io(journal.path().display().to_string(), e))?;
        self.ask(tag::JOURNAL, path.as_os_str().as_bytes(), None)
    }

    /// Gives it a duplicate of the handle socket of a NAPI, in place of an earlier one for the same id.
    ///
    /// # Errors
    /// As [`Keeper::journal`].
    pub fn handle(&self, napi_id: u32, handle: BorrowedFd<'_>) -> Result<()> {
        self.ask(tag::HANDLE, &napi_id.to_le_bytes(), Some(handle))
    }

    /// Makes it close the handle of a NAPI, if it has one: a stale id, or a source that is no longer guarded.
    ///
    /// # Errors
    /// As [`Keeper::journal`].
    pub fn drop_handle(&self, napi_id: u32) -> Result<()> {
        self.ask(tag::DROP_HANDLE, &napi_id.to_le_bytes(), None)
    }

    /// What the guard beats while it polls.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// False if it can be frozen together with the guard: the control group that the guard was started in would not let it
    /// go.
    pub fn left_cgroup(&self) -> bool {
        self.pulse.apart()
    }

    /// Ends it: everything is restored already. Waits at most 2 s for its exit.
    ///
    /// # Errors
    /// As [`Keeper::journal`].
    pub fn dismiss(mut self) -> Result<()> {
        let sent = self.ask(tag::DISMISS, &[], None);
        self.abandon();
        sent
    }

    /// Ends one that is lost, by SIGKILL: it puts nothing back. Another is to be started at once.
    pub fn kill(mut self) {
        // Fails only if it has exited already.
        _ = self.child.kill();
        let until = Instant::now() + PATIENCE;
        // One that hangs in the kernel dies when it comes out; init reaps it when the guard is gone too.
        while self.alive() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// False once it has exited or was killed: then start another one.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn ask(&self, tag: u8, content: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let number = self.asked.fetch_add(1, Relaxed).wrapping_add(1);
        let message = [&[tag][..], &number.to_le_bytes(), content].concat();
        if message.len() > MAX_MESSAGE {
            return Err(Error::Invalid { what: "message to the keeper".into(), why: "too long".into() });
        }
        transmit(&self.sock, &message, fd.as_slice())?;
        self.answer(number, PATIENCE)
    }

    /// Waits for the answer to request `number`.
    fn answer(&self, number: u32, patience: Duration) -> Result<()> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut buf = [0u8; MAX_MESSAGE];
        let lost = |what: String| Err(Error::Lost { what });
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up: a wait of less than a millisecond would be none.
            let left = PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::ZERO);
            match poll(&mut [PollFd::new(self.sock.as_fd(), PollFlags::POLLIN)], left) {
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(Error::io("keeper", e.into())),
                Ok(0) => return lost(format!("no answer for {} ms", patience.as_millis())),
                Ok(_) => {}
            }
            let n = match recv(self.sock.as_raw_fd(), &mut buf, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EINTR | Errno::EAGAIN) => continue,
                Err(Errno::ECONNRESET) | Ok(0) => return lost("it has exited".into()),
                Err(e) => return Err(Error::io("keeper", e.into())),
                Ok(n) => n,
            };
            let Some((tag, answers, text)) = split(&buf[..n]) else { return lost("no answer".into()) };
            if answers != number {
                continue;
            }
            return match tag {
                tag::OK => Ok(()),
                _ => Err(Error::Invalid {
                    what: "keeper".into(),
                    why: String::from_utf8_lossy(text).into_owned(),
                }),
            };
        }
    }

    /// Waits for its exit and reaps it; kills it after 2 s, so that it never stays as a zombie.
    fn abandon(&mut self) {
        let until = Instant::now() + START_PATIENCE;
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

/// Sends without waiting: a keeper that reads nothing is lost.
fn transmit(sock: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    match sendmsg::<()>(sock.as_raw_fd(), &[IoSlice::new(message)], rights, flags, None) {
        Ok(_) => Ok(()),
        Err(Errno::EAGAIN) => Err(Error::Lost { what: "it reads nothing".into() }),
        Err(Errno::EPIPE | Errno::ECONNRESET) => Err(Error::Lost { what: "it has exited".into() }),
        Err(e) => Err(Error::io("keeper", e.into())),
    }
}

/// Tag, number and contents of a message.
fn split(message: &[u8]) -> Option<(u8, u32, &[u8])> {
    let (&tag, rest) = message.split_first()?;
    let (number, content) = rest.split_first_chunk::<4>()?;
    Some((tag, u32::from_le_bytes(*number), content))
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
    let apart = leave_cgroup();
    let Some(((says, witness), mut watch)) = greeted(&sock)? else { return Ok(()) };
    watch.set_apart(apart);
    let mut care = match Access::for_current_netns() {
        Ok(access) => Care { access, journals: BTreeMap::new(), handles: BTreeMap::new() },
        Err(e) => {
            reply(&sock, 0, Err(e));
            return Ok(());
        }
    };
    let mut guard = Leader::peer(&sock, says, witness);
    reply(&sock, 0, Ok(()));
    loop {
        match event(&sock, &watch, guard.as_ref()) {
            Event::Rung => watch.silence(),
            Event::Frozen => {
                // A machine that stood still as a whole has two processes that look late; the guard's beat comes first then.
                std::thread::sleep(SECOND_LOOK);
                if !matches!(watch.next(), Next::Missed) {
                    continue;
                }
                watch.give_up();
                // Before the first write too: a keeper that dies between the two has told.
                watch.count();
                let report = care.revoke();
                watch.count();
                say(&report);
            }
            Event::Dies => guard.iter_mut().for_each(Leader::hurry),
            Event::Said => match receive(&sock) {
                Ok(Some((message, mut passed))) => match split(&message) {
                    Some((tag::DISMISS, number, _)) => {
                        reply(&sock, number, Ok(()));
                        return Ok(());
                    }
                    Some((tag, number, content)) => {
                        let result = care.take(tag, content, passed.pop());
                        reply(&sock, number, result);
                        care.warm(tag, content);
                    }
                    None => reply(&sock, 0, bad("too short")),
                },
                // A broken socket is a lost guard as well.
                Ok(None) | Err(_) => {
                    // A thread that has closed the socket has other files to close before it is gone.
                    guard.iter_mut().for_each(Leader::hurry);
                    let report = care.restore();
                    say(&report);
                    return Ok(());
                }
            },
        }
    }
}

/// What the guard said before this process was there; `None` without a word, when it is gone.
fn greeted(sock: &OwnedFd) -> Result<Option<((Owner, u32), Watch)>> {
    let hello = receive(sock).map_err(|e| Error::io("keeper", e.into()))?;
    let Some((message, mut passed)) = hello else { return Ok(None) };
    let content = split(&message).filter(|(tag, ..)| *tag == tag::HELLO).map(|(_, _, content)| content);
    match (content.and_then(greeting), passed.pop(), passed.pop()) {
        (Some(owner), Some(bell), Some(memory)) => Ok(Some((owner, Watch::new(&memory, bell)?))),
        _ => bad("no greeting").map(|()| None),
    }
}

/// The guard that a greeting names, and its witness: 0 where the guard of before an upgrade has none.
fn greeting(content: &[u8]) -> Option<(Owner, u32)> {
    let (pid, content) = content.split_first_chunk::<4>()?;
    let (start, witness) = content.split_first_chunk::<8>()?;
    let owner = Owner { pid: u32::from_le_bytes(*pid), start: u64::from_le_bytes(*start) };
    let witness = if witness.is_empty() { Some([0; 4]) } else { witness.try_into().ok() };
    Some((owner, u32::from_le_bytes(witness?)))
}

enum Event {
    /// The socket has a message, or its other end is closed.
    Said,
    /// The bell of the pulse.
    Rung,
    /// The guard has not beaten for too long.
    Frozen,
    /// A thread of the guard is dead that ends by a kill only; others may not be.
    Dies,
}

/// Waits for the next thing to do: in one system call, as long as nothing is polled.
fn event(sock: &OwnedFd, watch: &Watch, guard: Option<&Leader>) -> Event {
    use nix::poll::{PollFd, PollFlags, poll};
    loop {
        let look = match watch.next() {
            Next::Missed => return Event::Frozen,
            Next::Look(left) => Some(left),
            Next::Sleep => None,
        };
        let asked = guard.filter(|g| g.must_be_asked());
        let timeout = timeout(look, asked.is_some());
        let mut fds = vec![PollFd::new(sock.as_fd(), PollFlags::POLLIN)];
        fds.push(PollFd::new(watch.bell(), PollFlags::POLLIN));
        fds.extend(guard.and_then(Leader::end).map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let woken = poll(&mut fds, timeout);
        let said = |index: usize| fds.get(index).and_then(PollFd::any).unwrap_or(false);
        match woken {
            Err(Errno::EINTR) => {}
            // The socket says what is wrong with it.
            Err(_) => return Event::Said,
            Ok(0) if asked.is_some_and(Leader::is_dead) => return Event::Dies,
            Ok(0) => {}
            // The beat is judged before what else there is: a guard that asks and asks may hang all the same.
            Ok(_) if said(0) => return Event::Said,
            Ok(_) if said(1) => return Event::Rung,
            Ok(_) => return Event::Dies,
        }
    }
}

fn timeout(look: Option<Duration>, asks: bool) -> nix::poll::PollTimeout {
    use nix::poll::PollTimeout;
    // Rounded up, so that the beat is too old by then.
    let look = look.map(|d| d.as_micros().div_ceil(1000) as u16);
    match (look, asks) {
        (Some(look), true) => look.min(Leader::LOOK_MS).into(),
        (Some(look), false) => look.into(),
        (None, true) => Leader::LOOK_MS.into(),
        (None, false) => PollTimeout::NONE,
    }
}

fn bad(why: &str) -> Result<()> {
    Err(Error::Invalid { what: "message".into(), why: why.into() })
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

/// A message, and the descriptors that came along.
type Message = (Vec<u8>, Vec<OwnedFd>);

/// The next message; `None` when the guard's end is closed.
fn receive(sock: &OwnedFd) -> std::result::Result<Option<Message>, Errno> {
    let mut buf = [0u8; MAX_MESSAGE];
    let mut space = nix::cmsg_space!([RawFd; 2]);
    let (len, passed) = loop {
        let mut parts = [IoSliceMut::new(&mut buf)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(sock.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Err(Errno::EINTR) => continue,
            m => m?,
        };
        let mut passed = Vec::new();
        for c in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = c {
                for fd in fds {
                    // SAFETY: the kernel has just installed this descriptor for this message.
                    passed.push(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
        }
        break (message.bytes, passed);
    };
    Ok((len > 0).then(|| (buf[..len].to_vec(), passed)))
}

fn reply(sock: &OwnedFd, number: u32, result: Result<()>) {
    let (tag, text) = match result {
        Ok(()) => (tag::OK, String::new()),
        Err(e) => (tag::ERROR, e.to_string()),
    };
    let mut message = vec![tag];
    message.extend(number.to_le_bytes());
    message.extend(text.bytes().take(MAX_MESSAGE - message.len()));
    // A guard that has died meanwhile is noticed at the next receive.
    _ = send(sock.as_raw_fd(), &message, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
}

impl Care {
    fn take(&mut self, tag: u8, rest: &[u8], passed: Option<OwnedFd>) -> Result<()> {
        let napi_id = || <[u8; 4]>::try_from(rest).map(u32::from_le_bytes);
        match (tag, passed) {
            (tag::JOURNAL, _) => {
                let path = PathBuf::from(OsStr::from_bytes(rest));
                // Those of interfaces that are gone.
                self.journals.retain(|known, _| known.exists());
                if self.journals.len() >= KEPT_JOURNALS && !self.journals.contains_key(&path) {
                    return bad("too many journals");
                }
                let journal = Journal::load(&path)?;
                if !journal.is_here() {
                    return bad("the journal belongs to another network namespace");
                }
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

    /// Reads every setting of a new journal, so that nothing has to be loaded when it counts. The guard does not wait for
    /// it.
    fn warm(&mut self, tag: u8, content: &[u8]) {
        let path = Path::new(OsStr::from_bytes(content));
        if tag == tag::JOURNAL
            && self.journals.contains_key(path)
            && let Ok(journal) = Journal::load(path)
        {
            journal.dry_run(&mut self.access);
        }
    }

    /// Puts everything back under a guard that does not move but lives.
    fn revoke(&mut self) -> Vec<String> {
        let handles = &self.handles;
        let (access, journals) = (&mut self.access, &self.journals);
        let done =
            apart::gently(spins(journals), || restore::under_stop(access, journals, || turns(handles)));
        done.iter().map(|d| d.line("does not move", ", {open} not")).collect()
    }

    /// Puts everything back; answers one line per interface for the user.
    fn restore(&mut self) -> Vec<String> {
        let handles = &self.handles;
        let (access, journals) = (&mut self.access, &self.journals);
        let done =
            apart::gently(spins(journals), || restore::after_death(access, journals, || turns(handles)));
        done.iter().map(|d| d.line("is gone", ", {open} not: run `weir undo --guards`")).collect()
    }
}

/// True if a setting that is to be put back is one whose write may spin.
fn spins(journals: &restore::Journals) -> bool {
    journals.keys().filter_map(|path| Journal::load(path).ok()).any(|journal| journal.spins())
}

fn turns(handles: &BTreeMap<u32, OwnedFd>) {
    for handle in handles.values() {
        turn(handle.as_fd());
    }
}

/// One turn: a receive that finds nothing polls the handle's NAPI once. Datagrams that lie in the socket end
/// a receive before it polls, so they are taken out first. A handle that is no socket is a ring.
pub fn turn(handle: BorrowedFd<'_>) {
    let mut byte = [0u8; 1];
    for _ in 0..MAX_STRAY {
        match recv(handle.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT) {
            Ok(_) => {}
            Err(Errno::ENOTSOCK) => {
                crate::guard::io_uring::poll(handle, false);
                return;
            }
            Err(_) => return,
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
