//! Queues of netfilter (NFQUEUE): the kernel asks a program about packets, as it asked screend (MR-25). Plain netlink, as
//! libnetfilter_queue does it; `weir screen` and the screen that the lab measures are both built on this.
//!
//! One thread owns a [`Queue`]. It reads messages into a [`Room`] and answers every packet, in the order in which they
//! came. Netlink gives one packet per message and one message per read, so a batch is one call of `recvmmsg`.

mod message;
mod room;

pub use message::{Id, Message, Packet, Verdict, Verdicts};
pub use room::Room;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use message::{ACK, CONFIG, REQUEST, VERDICT_BATCH, put};

/// Attributes of a configuration, NFQA_CFG_*.
const CMD: u16 = 1;
const PARAMS: u16 = 2;
const LENGTH: u16 = 3;
const MASK: u16 = 4;
const FLAGS: u16 = 5;
/// `NFQNL_CFG_CMD_BIND`, for all families.
const BIND: [u8; 4] = [1, 0, 0, 0];
/// `NFQA_CFG_F_FAIL_OPEN`, `NFQA_CFG_F_GSO`.
const ACCEPT_WHEN_FULL: u32 = 1;
const WHOLE_SEGMENTS: u32 = 4;
/// Messages before the kernel's answer to a request that are kept; there are only those of the first microseconds.
const EARLY_MAX: usize = 4096;
/// How long the kernel's answer to a request is waited for.
const ANSWER: Duration = Duration::from_secs(2);
/// Tries to send verdicts while the kernel has no memory for them.
const TRIES: u32 = 3;

/// How a queue is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// First bytes of each packet that are wanted.
    pub copy: u32,
    /// Packets that may wait for a verdict; `None` for the kernel's default, 1024.
    pub length: Option<u32>,
    /// Bytes of the socket's receive buffer; `None` for the kernel's default.
    pub buffer: Option<u32>,
    /// A packet that finds the queue full goes on; otherwise it is dropped.
    pub accept_when_full: bool,
    /// Segments of one send come as one packet, with checksums left to the device (Linux 3.10).
    pub whole_segments: bool,
    /// A full socket is no error of the next read; the kernel counts what it has dropped anyway.
    pub quiet: bool,
    /// Runs of the same verdict share a message, where the kernel can (Linux 3.1).
    pub batches: bool,
}

impl Default for Options {
    /// As a program that knows only the queue's number: one packet, one verdict.
    fn default() -> Options {
        Options {
            copy: 128,
            length: None,
            buffer: None,
            accept_when_full: false,
            whole_segments: false,
            quiet: false,
            batches: false,
        }
    }
}

/// A queue that this thread answers for.
#[derive(Debug)]
pub struct Queue {
    socket: OwnedFd,
    number: u16,
    batches: bool,
    /// Messages that came before the kernel had answered the request that opened the queue.
    early: VecDeque<Vec<u8>>,
}

impl Queue {
    /// Takes queue `number` of the caller's network namespace.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN and where another program has the queue; otherwise what the kernel says.
    pub fn open(number: u16, options: &Options) -> io::Result<Queue> {
        // SAFETY: socket() takes no pointers; the descriptor is checked before it is owned.
        let socket = unsafe {
            let fd =
                libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let mut queue = Queue { socket, number, batches: false, early: VecDeque::new() };
        if let Some(bytes) = options.buffer {
            let bytes = libc::c_int::try_from(bytes / 2).unwrap_or(libc::c_int::MAX);
            // The kernel doubles it. Beyond the host's limit only with CAP_NET_ADMIN, without which nothing works here.
            queue.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)?;
        }
        if options.quiet {
            queue.set(libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, &1i32)?;
        }
        // In one message: packets come as soon as the queue is bound, and then their bytes must be wanted already.
        let copy = [&options.copy.to_be_bytes()[..], &[2]].concat();
        let length = options.length.map(u32::to_be_bytes);
        let flags = [(options.accept_when_full, ACCEPT_WHEN_FULL), (options.whole_segments, WHOLE_SEGMENTS)];
        let flags: u32 = flags.iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| flag).sum();
        let (mask, set) = (flags.to_be_bytes(), flags.to_be_bytes());
        let mut attributes: Vec<(u16, &[u8])> = vec![(CMD, &BIND[..]), (PARAMS, &copy[..])];
        attributes.extend(length.as_ref().map(|length| (LENGTH, &length[..])));
        if flags != 0 {
            attributes.extend([(MASK, &mask[..]), (FLAGS, &set[..])]);
        }
        let mut request = Vec::new();
        put(&mut request, (CONFIG, REQUEST | ACK, 1), number, &attributes);
        queue.send(&request)?;
        queue.answer_to(1)?.map_or(Ok(()), Err)?;
        if options.batches {
            queue.batches = queue.knows_batches()?;
        }
        Ok(queue)
    }

    /// A batch up to id 0, which no packet has: a kernel that knows batches finds none.
    fn knows_batches(&mut self) -> io::Result<bool> {
        let mut request = Vec::new();
        let none = [0, 0, 0, 1, 0, 0, 0, 0];
        put(&mut request, (VERDICT_BATCH, REQUEST | ACK, 2), self.number, &[(2, &none)]);
        self.send(&request)?;
        Ok(self.answer_to(2)?.is_none_or(|error| error.raw_os_error() == Some(libc::ENOENT)))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// True if runs of the same verdict share a message.
    #[must_use]
    pub fn batches(&self) -> bool {
        self.batches
    }

    /// An empty list of answers for this queue.
    #[must_use]
    pub fn verdicts(&self) -> Verdicts {
        Verdicts::new(self.number, self.batches)
    }

    /// Reads for at most `limit`, which is not 0, if nothing comes. Without a call to this a read waits for ever.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_patience(&self, limit: Duration) -> io::Result<()> {
        let time = libc::timeval { tv_sec: limit.as_secs() as _, tv_usec: limit.subsec_micros().max(1) as _ };
        self.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time)
    }

    /// Waits for messages and reads what there is, at most the room. None after the patience of
    /// [`Queue::set_patience`], or a signal.
    ///
    /// # Errors
    /// ENOBUFS once after each time the socket was full, unless the queue is quiet; otherwise what the kernel says.
    pub fn receive(&mut self, room: &mut Room) -> io::Result<()> {
        if let Some(early) = self.early.pop_front() {
            room.put(&early);
            return Ok(());
        }
        let got = room.receive(self.socket.as_raw_fd());
        match got {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => Ok(()),
            other => other,
        }
    }

    /// Sends the answers; afterwards there are none, whether they were sent or not. What the kernel says of a single one,
    /// such as ENOENT for a packet that is gone, is read as [`Message::Done`].
    ///
    /// # Errors
    /// If they could not be sent.
    pub fn answer(&self, verdicts: &mut Verdicts) -> io::Result<()> {
        let message = verdicts.message();
        let sent = if message.is_empty() { Ok(()) } else { self.send(message) };
        verdicts.clear();
        sent
    }

    /// From now on nothing new waits: it goes on if `accept`, else it is dropped. What waits is still to be read and
    /// answered; when a read gives nothing, the queue can be closed and no packet is lost with it.
    ///
    /// # Errors
    /// If it could not be sent.
    pub fn let_nothing_in(&self, accept: bool) -> io::Result<()> {
        let (length, mask) = (0u32.to_be_bytes(), ACCEPT_WHEN_FULL.to_be_bytes());
        let set = (u32::from(accept) * ACCEPT_WHEN_FULL).to_be_bytes();
        let mut request = Vec::new();
        // First what becomes of packets that find it full: of one message the kernel takes the length first, and a packet
        // that comes in between is dropped.
        put(&mut request, (CONFIG, REQUEST, 0), self.number, &[(MASK, &mask), (FLAGS, &set)]);
        put(&mut request, (CONFIG, REQUEST, 0), self.number, &[(LENGTH, &length)]);
        self.send(&request)
    }

    fn set<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointer and the length are those of `value`.
        match unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), level, name, (&raw const *value).cast(), length)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        let mut tries = 0;
        loop {
            // SAFETY: the pointer and length describe the live message.
            let sent =
                unsafe { libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            tries += 1;
            let passing = matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOBUFS | libc::ENOMEM));
            if !passing || tries == TRIES {
                return Err(error);
            }
        }
    }

    /// Waits for the kernel's answer to `request`: `None`, or its error. Packets that come before it are kept.
    fn answer_to(&mut self, request: u32) -> io::Result<Option<io::Error>> {
        self.set_patience(ANSWER)?;
        let mut room = Room::new(1);
        for _ in 0..EARLY_MAX {
            match room.receive(self.socket.as_raw_fd()) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ENOBUFS)) => continue,
                Err(e) => return Err(e),
            }
            for message in room.messages() {
                match message {
                    Message::Done { request: of, errno } if of == request => {
                        let for_ever = libc::timeval { tv_sec: 0, tv_usec: 0 };
                        self.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &for_ever)?;
                        return Ok((errno != 0).then(|| io::Error::from_raw_os_error(errno)));
                    }
                    Message::Done { .. } => {}
                    Message::Packet(_) => self.early.push_back(room.first().to_vec()),
                }
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}
