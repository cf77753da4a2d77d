//! The XDP program of one interface: loaded once, attached while it is needed.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use libbpf_rs::libbpf_sys;

use super::{Connections, Error};

#[derive(Default)]
struct State {
    link: Option<OwnedFd>,
    closed: bool,
}

/// What the kernel's generic hook switches off for good, LRO and its like: whoever attaches the program there owes it back.
pub trait Offloads: Send + Sync {
    /// Writes down what is on, and switches it off: before the program is attached.
    ///
    /// # Errors
    /// If that cannot be; then the program is not attached.
    fn off(&self) -> io::Result<()>;
    /// Puts it back: after the program is detached.
    fn back(&self);
}

/// A loaded program. Dropping it detaches it.
pub struct Rx {
    program: OwnedFd,
    connections: Connections,
    ifindex: u32,
    offloads: Option<Box<dyn Offloads>>,
    /// The driver is asked to run it first.
    asks_driver: bool,
    /// Held while it is attached or detached, which waits for the whole kernel.
    state: Mutex<State>,
    /// Apart, as all that follows, because the threads that ask or release cannot wait for that.
    attached: AtomicBool,
    /// Those for whom it is being attached too.
    users: AtomicU32,
    /// Clock of the last release, ns.
    idle_since: AtomicU64,
    /// The driver has refused it.
    generic: AtomicBool,
}

impl Rx {
    pub(super) fn new(program: OwnedFd, connections: Connections) -> Rx {
        let (state, attached, generic) = Default::default();
        let (users, idle_since) = Default::default();
        let (ifindex, offloads, asks_driver) = (0, None, true);
        Rx {
            program,
            connections,
            ifindex,
            offloads,
            asks_driver,
            state,
            attached,
            users,
            idle_since,
            generic,
        }
    }

    /// The program as that of an interface.
    #[must_use]
    pub fn of(self, ifindex: u32) -> Rx {
        Rx { ifindex, ..self }
    }

    /// The same, with what the generic hook would switch off there.
    #[must_use]
    pub fn owing(self, offloads: Box<dyn Offloads>) -> Rx {
        Rx { offloads: Some(offloads), ..self }
    }

    /// The same, whose driver runs it only if it `asks` that.
    #[must_use]
    pub fn asking_driver(self, asks: bool) -> Rx {
        Rx { asks_driver: asks, ..self }
    }

    /// Runs it `repeat` times over a frame of at least 14 bytes, without a device (BPF_PROG_TEST_RUN): its action,
    /// and what one run took on average.
    ///
    /// # Errors
    /// If the kernel refuses the frame.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<(u32, Duration), Error> {
        let mut opts = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: repeat as i32,
            ..Default::default()
        };
        // SAFETY: `opts` and the frame it points to live through the call; nothing is written but to `opts`.
        let rc = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut opts) };
        if rc < 0 {
            let source = io::Error::from_raw_os_error(-rc);
            return Err(Error::Bpf { what: "a run of the XDP program".into(), source });
        }
        Ok((opts.retval, Duration::from_nanos(u64::from(opts.duration))))
    }

    /// Attaches it for one more user, who may be released before this returns, and is to be released where this fails too. The driver
    /// runs it where it can, the kernel's generic hook otherwise.
    ///
    /// # Errors
    /// `EBUSY` if a program of another owner is there: that one is left alone.
    pub fn hold(&self) -> io::Result<()> {
        self.hold_by(|| self.attach())
    }

    /// The same if the driver runs it; false, and nothing attached and nobody to be released, if it refuses.
    ///
    /// # Errors
    /// As [`Self::hold`].
    pub fn hold_in_driver(&self) -> io::Result<bool> {
        match self.hold_by(|| self.attach_to_driver()) {
            Ok(()) => Ok(true),
            Err(e) if is_final(&e) => Err(e),
            Err(_) => {
                self.release(0);
                Ok(false)
            }
        }
    }

    fn hold_by(&self, attach: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<()> {
        // Before the lock: whoever detaches it idle meanwhile either sees this user, or leaves nothing that this one would keep.
        self.users.fetch_add(1, SeqCst);
        let mut state = self.state.lock().map_err(|_| io::Error::other("a thread broke it"))?;
        if state.closed {
            return Err(io::Error::other("its interface is set up anew"));
        }
        if state.link.is_none() {
            state.link = Some(attach()?);
            self.attached.store(true, SeqCst);
        }
        Ok(())
    }

    /// One user less, at `now` (0: it is not worth keeping); the program stays attached until [`Self::detach_idle`]. Never waits.
    pub fn release(&self, now: u64) {
        self.idle_since.store(now, SeqCst);
        // More released than held would wrap round; it stays at 0.
        let _ = self.users.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
    }

    /// Detaches it if it has had no user since `before`; true if it did.
    pub fn detach_idle(&self, before: u64) -> bool {
        let Ok(mut state) = self.state.lock() else { return false };
        let unused = self.users.load(SeqCst) == 0 && self.idle_since.load(SeqCst) < before;
        let idle = unused && state.link.is_some();
        if idle {
            self.detach(&mut state);
        }
        idle
    }

    /// Detaches it for good, whoever uses it.
    pub fn close(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.closed = true;
            self.detach(&mut state);
        }
    }

    fn detach(&self, state: &mut State) {
        let was = state.link.take().is_some();
        self.attached.store(false, SeqCst);
        if let (true, true, Some(offloads)) = (was, self.generic.load(SeqCst), &self.offloads) {
            offloads.back();
        }
    }

    /// Whether somebody holds it now; never waits.
    #[must_use]
    pub fn held(&self) -> bool {
        self.users.load(SeqCst) > 0
    }

    /// Whether it asks the table of connections, as that was when it was loaded.
    #[must_use]
    pub fn connections(&self) -> Connections {
        self.connections
    }

    /// Index of its interface.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Whether it is attached now; never waits.
    #[must_use]
    pub fn attached(&self) -> bool {
        self.attached.load(SeqCst)
    }

    /// True if the driver refused it when it was attached last, so that the kernel runs it where each frame has a buffer already.
    #[must_use]
    pub fn generic(&self) -> bool {
        self.generic.load(SeqCst)
    }

    /// Without the flag the kernel takes its generic hook for a driver that runs no programs, and says nothing of it.
    fn attach_to_driver(&self) -> io::Result<OwnedFd> {
        const XDP_FLAGS_DRV_MODE: u32 = 4;
        self.generic.store(false, SeqCst);
        if !self.asks_driver {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        self.link(XDP_FLAGS_DRV_MODE)
    }

    /// A driver may refuse what the generic hook takes: a long MTU, too few queues, LRO.
    fn attach(&self) -> io::Result<OwnedFd> {
        const XDP_FLAGS_SKB_MODE: u32 = 2;
        self.attach_to_driver().or_else(|refused| match is_final(&refused) {
            true => Err(refused),
            false => {
                let owed = self.offloads.as_ref();
                owed.map_or(Ok(()), |offloads| offloads.off())?;
                let link = self.link(XDP_FLAGS_SKB_MODE).map_err(|_| refused);
                self.generic.store(link.is_ok(), SeqCst);
                if let (Err(_), Some(offloads)) = (&link, owed) {
                    offloads.back();
                }
                link
            }
        })
    }

    fn link(&self, flags: u32) -> io::Result<OwnedFd> {
        let opts = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags,
            ..Default::default()
        };
        // SAFETY: plain system call; `opts` lives through it.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(
                self.program.as_raw_fd(),
                self.ifindex as i32,
                libbpf_sys::BPF_XDP,
                &raw const opts,
            )
        };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Another hook is no better: a program of somebody else is there, or a right is missing.
fn is_final(refused: &io::Error) -> bool {
    matches!(refused.raw_os_error(), Some(libc::EBUSY | libc::EPERM))
}
