//! An io_uring that sends datagrams, by system calls alone, as any program could have it.
//!
//! A datagram lives in a slot until the kernel has sent it: the ring owns the slots, so that nothing else can write to what the
//! kernel may be reading.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Bytes of a datagram.
pub const PAYLOAD: usize = 64;
/// Datagrams on their way at most; the completion ring has room for twice as many.
pub const SLOTS: u32 = 256;

const SETUP_SQPOLL: u32 = 1 << 1;
const SETUP_SQ_AFF: u32 = 1 << 2;
const FEAT_SINGLE_MMAP: u32 = 1;
const ENTER_GETEVENTS: u32 = 1;
const ENTER_SQ_WAKEUP: u32 = 1 << 1;
const SQ_NEED_WAKEUP: u32 = 1;
const OP_SEND: u8 = 26;
const OFFSET_RINGS: i64 = 0;
const OFFSET_SQES: i64 = 0x1000_0000;

/// The kernel thread that takes submissions, instead of a system call of the program.
#[derive(Debug, Clone, Copy)]
pub struct Poller {
    /// Where it runs.
    pub cpu: u32,
    /// How long it looks for more before it sleeps, ms.
    pub idle_ms: u32,
}

/// `struct io_sqring_offsets`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv1: u32,
    user_addr: u64,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    resv1: u32,
    user_addr: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    sq_off: SqOffsets,
    cq_off: CqOffsets,
}

/// `struct io_uring_sqe`, as far as a send has it.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    msg_flags: u32,
    user_data: u64,
    rest: [u64; 3],
}

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Cqe {
    user_data: u64,
    res: i32,
    flags: u32,
}

/// Memory shared with the kernel.
#[derive(Debug)]
struct Shared {
    start: NonNull<u8>,
    bytes: usize,
}

impl Shared {
    fn map(fd: RawFd, offset: i64, bytes: usize) -> io::Result<Shared> {
        // SAFETY: a new mapping of the ring's descriptor at a place that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd,
                offset,
            )
        };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Shared { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The `index`-th `T` from `offset` on.
    fn at<T>(&self, offset: u32, index: u32) -> *mut T {
        let from = offset as usize + index as usize * size_of::<T>();
        assert!(from + size_of::<T>() <= self.bytes, "the kernel's offsets are inside its mapping");
        // SAFETY: inside the mapping, as just checked; the kernel aligns what it places there.
        unsafe { self.start.as_ptr().add(from).cast() }
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: an aligned u32 inside the mapping, which lives as long as `self`; both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.at::<u32>(offset, 0)) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A ring that sends to the peer of one connected socket.
#[derive(Debug)]
pub struct Ring {
    fd: OwnedFd,
    socket: RawFd,
    polled: bool,
    params: Params,
    rings: Shared,
    sqes: Shared,
    slots: Vec<[u8; PAYLOAD]>,
    free: Vec<u32>,
    tail: u32,
    /// Written to the ring and not yet handed over.
    ready: u32,
    /// System calls.
    pub calls: u64,
    /// Datagrams that the kernel would not send.
    pub failed: u64,
}

impl Ring {
    /// One for `socket`, with a kernel thread that takes what is submitted or without.
    ///
    /// # Errors
    /// `EPERM` where io_uring is disabled, `ENOSYS` where there is none.
    pub fn new(socket: &impl AsRawFd, poller: Option<Poller>) -> io::Result<Ring> {
        let mut params = Params::default();
        if let Some(poller) = poller {
            params.flags = SETUP_SQPOLL | SETUP_SQ_AFF;
            params.sq_thread_cpu = poller.cpu;
            params.sq_thread_idle = poller.idle_ms;
        }
        // SAFETY: the kernel reads and writes one `Params`, which lives through the call.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, SLOTS, &raw mut params) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        if params.features & FEAT_SINGLE_MMAP == 0 {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let sq = params.sq_off.array as usize + params.sq_entries as usize * size_of::<u32>();
        let cq = params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
        let rings = Shared::map(fd.as_raw_fd(), OFFSET_RINGS, sq.max(cq))?;
        let sqes = Shared::map(fd.as_raw_fd(), OFFSET_SQES, params.sq_entries as usize * size_of::<Sqe>())?;
        for n in 0..params.sq_entries {
            // SAFETY: an aligned u32 of the array inside the mapping; nothing is submitted yet, so that the kernel reads none.
            unsafe { rings.at::<u32>(params.sq_off.array, n).write(n) };
        }
        let count = SLOTS.min(params.sq_entries);
        Ok(Ring {
            tail: rings.word(params.sq_off.tail).load(Ordering::Relaxed),
            fd,
            socket: socket.as_raw_fd(),
            polled: poller.is_some(),
            params,
            rings,
            sqes,
            slots: vec![[0; PAYLOAD]; count as usize],
            free: (0..count).collect(),
            ready: 0,
            calls: 0,
            failed: 0,
        })
    }

    /// Slots that no datagram is in.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Has `fill` write a datagram into a slot, and puts it on the ring. False: there is no room now.
    pub fn push(&mut self, fill: impl FnOnce(&mut [u8; PAYLOAD])) -> bool {
        // Of a kernel thread that is behind the entry may not be free yet, though a slot is.
        let taken = self.rings.word(self.params.sq_off.head).load(Ordering::Acquire);
        if self.tail.wrapping_sub(taken) >= self.params.sq_entries {
            return false;
        }
        let Some(slot) = self.free.pop() else { return false };
        let datagram = &mut self.slots[slot as usize];
        fill(datagram);
        let sqe = Sqe {
            opcode: OP_SEND,
            fd: self.socket,
            addr: datagram.as_ptr() as u64,
            len: PAYLOAD as u32,
            user_data: u64::from(slot),
            ..Sqe::default()
        };
        let place = self.tail & (self.params.sq_entries - 1);
        // SAFETY: an aligned entry inside the mapping; the kernel has taken what was in it and reads it again only after the tail
        // has moved on.
        unsafe { self.sqes.at::<Sqe>(0, place).write(sqe) };
        self.tail = self.tail.wrapping_add(1);
        self.ready += 1;
        true
    }

    /// Hands over what was pushed: by a system call, or by a store if a kernel thread is looking.
    ///
    /// # Errors
    /// Of `io_uring_enter`.
    pub fn submit(&mut self) -> io::Result<()> {
        let ready = std::mem::take(&mut self.ready);
        self.rings.word(self.params.sq_off.tail).store(self.tail, Ordering::Release);
        if !self.polled {
            return self.enter(ready, 0, 0);
        }
        match self.asleep() {
            true => self.enter(0, 0, ENTER_SQ_WAKEUP),
            false => Ok(()),
        }
    }

    /// True if the kernel thread has to be woken.
    fn asleep(&self) -> bool {
        // It looks at the tail after it has set the flag: one of the two must see the other's.
        fence(Ordering::SeqCst);
        self.polled && self.rings.word(self.params.sq_off.flags).load(Ordering::Relaxed) & SQ_NEED_WAKEUP != 0
    }

    /// Takes what is done, without waiting.
    pub fn reap(&mut self) {
        let (at, end) = (self.params.cq_off.head, self.params.cq_off.tail);
        let mut head = self.rings.word(at).load(Ordering::Relaxed);
        let tail = self.rings.word(end).load(Ordering::Acquire);
        while head != tail {
            let place = head & (self.params.cq_entries - 1);
            // SAFETY: an aligned entry inside the mapping, which the kernel has written before it moved the tail past it.
            let done = unsafe { self.rings.at::<Cqe>(self.params.cq_off.cqes, place).read() };
            self.failed += u64::from(done.res != PAYLOAD as i32);
            self.free.push(done.user_data as u32);
            head = head.wrapping_add(1);
        }
        self.rings.word(at).store(head, Ordering::Release);
    }

    /// Waits until `count` more are done, or all that are on their way, and takes them.
    ///
    /// # Errors
    /// Of `io_uring_enter`.
    pub fn wait(&mut self, count: usize) -> io::Result<()> {
        let flying = self.slots.len() - self.free.len() - self.ready as usize;
        let wake = if self.asleep() { ENTER_SQ_WAKEUP } else { 0 };
        self.enter(0, count.min(flying) as u32, ENTER_GETEVENTS | wake)?;
        self.reap();
        Ok(())
    }

    fn enter(&mut self, submit: u32, wait: u32, flags: u32) -> io::Result<()> {
        self.calls += 1;
        let none = std::ptr::null::<libc::c_void>();
        // SAFETY: no pointer but a null one, with size 0.
        let rc = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, self.fd.as_raw_fd(), submit, wait, flags, none, 0usize)
        };
        match io::Error::last_os_error() {
            error if rc < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // What the kernel may still read is not freed: at most 16 KiB of a program that ends.
        if self.free.len() < self.slots.len() {
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    /// Fewer than a receive buffer holds: the loopback hands each datagram to the socket before its send is done, so that none
    /// depends on when the reader runs. 160 of 64 bytes are charged with at most 768 bytes each, of 212,992.
    const DATAGRAMS: u32 = 160;

    fn arrive(poller: Option<Poller>) {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        to.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        let mut ring = match Ring::new(&from, poller) {
            Ok(ring) => ring,
            // Refused by the machine; a structure that the kernel does not understand is a failure.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES)) => {
                return eprintln!("skipped: io_uring: {e}");
            }
            Err(e) => panic!("{e}"),
        };
        for n in 0..DATAGRAMS {
            assert!(ring.push(|datagram| datagram[..4].copy_from_slice(&n.to_ne_bytes())));
            if n % 32 == 31 {
                ring.submit().unwrap();
            }
        }
        // Waits for completions, not for time; each wait ends with one more done.
        for _ in 0..DATAGRAMS {
            if ring.free() == SLOTS as usize {
                break;
            }
            ring.wait(1).unwrap();
        }
        assert_eq!((ring.free(), ring.failed), (SLOTS as usize, 0));
        let mut buffer = [0; 128];
        let seen: BTreeSet<u32> = (0..DATAGRAMS)
            .map(|_| {
                assert_eq!(to.recv(&mut buffer).unwrap(), PAYLOAD);
                u32::from_ne_bytes(buffer[..4].try_into().unwrap())
            })
            .collect();
        assert_eq!(seen, (0..DATAGRAMS).collect());
    }

    #[test]
    fn what_is_submitted_arrives() {
        arrive(None);
    }

    #[test]
    fn what_a_kernel_thread_takes_arrives() {
        // It sleeps after a millisecond, so that it is woken too.
        let own = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
        let cpu = (0..nix::sched::CpuSet::count()).find(|cpu| own.is_set(*cpu).unwrap()).unwrap();
        arrive(Some(Poller { cpu: cpu as u32, idle_ms: 1 }));
    }

    #[test]
    fn a_full_ring_says_so() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        let Ok(mut ring) = Ring::new(&socket, None) else { return eprintln!("skipped: no io_uring") };
        assert_eq!((0..SLOTS + 5).filter(|_| ring.push(|_| ())).count(), SLOTS as usize);
    }
}
