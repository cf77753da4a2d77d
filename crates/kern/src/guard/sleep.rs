//! What threads sleep on: BPF ring buffers.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{MapCore, MapHandle, RingBuffer, RingBufferBuilder};

use super::Event;

/// Waits until `fd` is readable or `timeout` is over; true if readable. `None` waits without end.
fn wait_readable(fd: RawFd, timeout: Option<Duration>) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let ts = timeout.map(|t| libc::timespec {
        // Without its name, which changes in musl.
        tv_sec: t.as_secs() as _,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let ts_ptr = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one pollfd and an optional timespec, both alive through the call.
    match unsafe { libc::ppoll(&raw mut poll, 1, ts_ptr, std::ptr::null()) } {
        n if n > 0 => Ok(true),
        0 => Ok(false),
        _ => match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
            e => Err(e),
        },
    }
}

/// A poller's bed: sleeps with nanosecond timeouts, woken by BPF.
///
/// Made by [`super::Gauges::bell`] and then moved to the poller's thread, which calls [`Bell::open`].
pub struct Bell {
    ring: MapHandle,
}

impl Bell {
    pub(super) fn new(ring: MapHandle) -> Self {
        Self { ring }
    }

    /// The ring as this thread consumes it.
    pub fn open(&self) -> io::Result<OpenBell> {
        let reasons = Rc::new(Cell::new(0));
        let sink = Rc::clone(&reasons);
        let mut builder = RingBufferBuilder::new();
        let added = builder.add(&self.ring, move |bytes| {
            if let Some(reason) = bytes.first_chunk::<4>() {
                sink.set(sink.get() | u32::from_ne_bytes(*reason));
            }
            0
        });
        added.map_err(io::Error::other)?;
        Ok(OpenBell { ring: builder.build().map_err(io::Error::other)?, reasons })
    }
}

/// See [`Bell`].
pub struct OpenBell {
    ring: RingBuffer<'static>,
    reasons: Rc<Cell<u32>>,
}

impl OpenBell {
    /// Sleeps at most `timeout`; the [`super::wake`] bits of who ended it early, 0 for nobody. At most a ring's
    /// worth of records is consumed.
    pub fn sleep(&self, timeout: Duration) -> io::Result<u32> {
        if wait_readable(self.ring.epoll_fd(), Some(timeout))? {
            self.ring.consume_raw();
        }
        Ok(self.reasons.take())
    }
}

/// Events for the control loop.
pub struct EventRing {
    ring: RingBuffer<'static>,
    pending: Rc<RefCell<Vec<Event>>>,
    dropped: Rc<Cell<u64>>,
}

/// Events kept from one read; more than this in one go are dropped, and the source raises them again.
const PENDING_MAX: usize = 256;

/// Where [`EventRing`] comes from; made by [`super::Gauges::events`] and moved to the thread that reads.
pub struct EventSource {
    map: MapHandle,
}

impl EventSource {
    pub(super) fn new(map: MapHandle) -> Self {
        Self { map }
    }

    /// The ring as this thread consumes it.
    ///
    /// # Errors
    /// What libbpf says.
    pub fn open(&self) -> io::Result<EventRing> {
        EventRing::new(&self.map).map_err(io::Error::other)
    }
}

impl EventRing {
    fn new(map: &dyn MapCore) -> Result<Self, libbpf_rs::Error> {
        let pending = Rc::new(RefCell::new(Vec::with_capacity(PENDING_MAX)));
        let dropped = Rc::new(Cell::new(0));
        let (sink, lost) = (Rc::clone(&pending), Rc::clone(&dropped));
        let mut builder = RingBufferBuilder::new();
        builder.add(map, move |bytes| {
            let mut pending = sink.borrow_mut();
            match Event::parse(bytes) {
                Some(event) if pending.len() < PENDING_MAX => pending.push(event),
                Some(_) => lost.set(lost.get() + 1),
                None => {}
            }
            0
        })?;
        Ok(Self { ring: builder.build()?, pending, dropped })
    }

    /// Readable when events wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd().as_raw_fd()) }
    }

    /// All events that wait, at most 256.
    pub fn take(&self) -> Vec<Event> {
        self.ring.consume_raw();
        std::mem::take(&mut *self.pending.borrow_mut())
    }

    /// Events that did not fit since the last call.
    pub fn dropped(&self) -> u64 {
        self.dropped.take()
    }
}
