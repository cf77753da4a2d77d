//! The handle of a source: a UDP socket that knows the source's NAPI id, so that one `recv` on it is one turn.
//!
//! With `SO_PREFER_BUSY_POLL` a non-blocking `recv` on an empty marked socket runs the driver's poll function in
//! the caller (net/core/dev.c `napi_busy_loop`): one call, at most 2 x `SO_BUSY_POLL_BUDGET` packets up to 6.19,
//! at most the budget from 7.2 on. The socket must stay empty: data would end the turn before it polls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::io_uring;

const SO_INCOMING_NAPI_ID: i32 = 56;
const SO_BUSY_POLL: i32 = 46;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;

/// Busy-poll budgets below this are refused by nothing, but 0 polls without end.
const BUDGET_MIN: u32 = 1;

/// How a turn ended, as far as the system call tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// The call polled, or found the NAPI owned by somebody else; the NAPI counters tell which.
    Done,
    /// A datagram lay in the socket: nothing was polled. It was thrown away.
    Data,
    /// A pending signal or an error made the call a no-op.
    Nothing,
}

/// One handle. Closing it does not end poll mode: settings do.
pub struct Handle {
    fd: OwnedFd,
    port: u16,
    budget: u32,
    /// It is an io_uring that polls this NAPI.
    io_uring: Option<u32>,
}

fn set(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn socket(family: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the result is checked.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is new and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Where a handle may be reached before it is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By [`super::Steering`] only: it is bound to the loopback address, so that it is no open port.
    Steered,
    /// By frames that are rewritten to its port too: it is bound to all addresses.
    Rewritten,
}

fn bind(fd: &OwnedFd, family: i32, reach: Reach) -> io::Result<u16> {
    // SAFETY: all-zero is a valid sockaddr_in6 and stands for "any address, any port".
    let mut addr: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    addr.sin6_family = family as libc::sa_family_t;
    let mut len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    if family == libc::AF_INET {
        len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // sin_addr lies where sin6_flowinfo does.
        addr.sin6_flowinfo = if reach == Reach::Steered { u32::from_ne_bytes([127, 0, 0, 1]) } else { 0 };
    } else if reach == Reach::Steered {
        // IPv4's: a socket that is bound to an address of IPv6 takes no packet of IPv4.
        addr.sin6_addr.s6_addr[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
    }
    // SAFETY: `addr` is large enough for both families and `len` tells how much of it counts.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above; the kernel writes at most `len` bytes.
    let rc = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut addr).cast(), &raw mut len) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // sin_port and sin6_port share their place.
    Ok(u16::from_be(addr.sin6_port))
}

/// A socket filter that lets through what comes from one of `interfaces` only, at most 128 of them.
fn only_from(fd: &OwnedFd, interfaces: &[u32]) -> io::Result<()> {
    const LOAD_ABSOLUTE: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // SKF_AD_OFF + SKF_AD_IFINDEX.
    const INTERFACE: u32 = (-0x1000i32 + 8) as u32;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let known = &interfaces[..interfaces.len().min(128)];
    let mut code = vec![op(LOAD_ABSOLUTE, 0, 0, INTERFACE)];
    code.extend(known.iter().enumerate().map(|(i, ifindex)| {
        // To the last instruction, over those that are left and the one that rejects.
        op(JUMP_EQUAL, (known.len() - i) as u8, 0, *ifindex)
    }));
    code.extend([op(RETURN, 0, 0, 0), op(RETURN, 0, 0, u32::MAX)]);
    filter(fd, &code)
}

fn filter(fd: &OwnedFd, code: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut() };
    // SAFETY: `program` points to `code`, which lives through the call; the kernel copies it.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Handle {
    /// A socket for both families where IPv6 exists, bound to a free port, not marked yet. It takes nothing but what
    /// comes in by `interfaces`: the guarded one and those that stand on it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(interfaces: &[u32], reach: Reach) -> io::Result<Self> {
        const IP_FREEBIND: i32 = 15;
        const IPV6_FREEBIND: i32 = 78;
        let made = |family: i32| -> io::Result<Self> {
            let fd = socket(family)?;
            // Before it has a port: nothing may come in unfiltered.
            only_from(&fd, interfaces)?;
            // The loopback device may be down.
            if family == libc::AF_INET6 {
                set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
                let _ = set(&fd, libc::IPPROTO_IPV6, IPV6_FREEBIND, 1);
            } else {
                let _ = set(&fd, libc::IPPROTO_IP, IP_FREEBIND, 1);
            }
            let port = bind(&fd, family, reach)?;
            Ok(Self { fd, port, budget: 0, io_uring: None })
        };
        made(libc::AF_INET6).or_else(|_| made(libc::AF_INET))
    }

    /// A handle for the NAPI `id` that no packet has to mark: an io_uring instead of a socket. Its turns are made of calls of 16
    /// packets, so that they cost more.
    ///
    /// # Errors
    /// `EINVAL` before 6.13, `EPERM` where io_uring is disabled.
    pub fn by_id(id: u32) -> io::Result<Self> {
        Ok(Self { fd: io_uring::open(id)?, port: 0, budget: 0, io_uring: Some(id) })
    }

    /// True if it is an io_uring.
    pub fn is_io_uring(&self) -> bool {
        self.io_uring.is_some()
    }

    /// True if datagrams wait in it: a handle without an id that got one can never learn it.
    pub fn got_something(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that lives through the call, which does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 && poll.revents & libc::POLLIN != 0 }
    }

    /// Local port, host order.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// NAPI id the socket has learnt; `None` until a packet came through a NAPI.
    pub fn napi_id(&self) -> io::Result<Option<u32>> {
        if self.io_uring.is_some() {
            return Ok(self.io_uring);
        }
        let mut id: u32 = 0;
        let mut len = size_of::<u32>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes into `id`.
        let rc = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_INCOMING_NAPI_ID,
                (&raw mut id).cast(),
                &raw mut len,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((id != 0).then_some(id))
    }

    /// Closes the intake: from here on the socket accepts no datagram, and what lies in it is thrown away.
    ///
    /// At most 64 datagrams are read; the kernel's own limit is the receive buffer.
    pub fn seal(&self) -> io::Result<()> {
        if self.io_uring.is_some() {
            return Ok(());
        }
        filter(&self.fd, &[libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }])?;
        for _ in 0..64 {
            if self.recv() < 0 {
                break;
            }
        }
        Ok(())
    }

    /// Makes each following [`Self::turn`] a poll of at most `budget` packets per driver call.
    ///
    /// # Errors
    /// `ENOPROTOOPT` on kernels before 5.11; `EPERM` without CAP_NET_ADMIN.
    pub fn arm(&mut self, budget: u32) -> io::Result<()> {
        if self.io_uring.is_some() {
            return self.set_budget(budget);
        }
        set(&self.fd, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, 1)?;
        set(&self.fd, libc::SOL_SOCKET, SO_BUSY_POLL, 1)?;
        self.set_budget(budget)
    }

    /// Packets per driver call; two calls make a turn up to 6.19.
    pub fn set_budget(&mut self, budget: u32) -> io::Result<()> {
        let budget = budget.max(BUDGET_MIN);
        if budget != self.budget && self.io_uring.is_some() {
            self.budget = budget;
        } else if budget != self.budget {
            set(&self.fd, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, budget as i32)?;
            self.budget = budget;
        }
        Ok(())
    }

    fn recv(&self) -> isize {
        let mut byte = 0u8;
        // SAFETY: at most one byte is written into `byte`.
        unsafe { libc::recv(self.fd.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) }
    }

    /// One turn, bounded by the budget: one system call, of an io_uring several.
    pub fn turn(&self) -> TurnEnd {
        if self.io_uring.is_some() {
            // What a socket hands up in two polls of the budget.
            let packets = 2 * self.budget;
            let long = packets > io_uring::PER_CALL;
            let calls = if long { packets.div_ceil(io_uring::PER_LONG_CALL) } else { 1 };
            let polled = (0..calls).all(|_| io_uring::poll(self.fd.as_fd(), long));
            return if polled { TurnEnd::Done } else { TurnEnd::Nothing };
        }
        if self.recv() >= 0 {
            return TurnEnd::Data;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN) => TurnEnd::Done,
            _ => TurnEnd::Nothing,
        }
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
