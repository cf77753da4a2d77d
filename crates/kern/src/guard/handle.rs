//! The handle of a source: a UDP socket that knows the source's NAPI id, so that one `recv` on it is one turn.
//!
//! With `SO_PREFER_BUSY_POLL` a non-blocking `recv` on an empty marked socket runs the driver's poll function in
//! the caller (net/core/dev.c `napi_busy_loop`): one call, at most 2 x `SO_BUSY_POLL_BUDGET` packets up to 6.19,
//! at most the budget from 7.2 on. The socket must stay empty: data would end the turn before it polls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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

fn bind_any(fd: &OwnedFd, family: i32) -> io::Result<u16> {
    // SAFETY: all-zero is a valid sockaddr_in6 and stands for "any address, any port".
    let mut addr: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    addr.sin6_family = family as libc::sa_family_t;
    let mut len = if family == libc::AF_INET6 {
        size_of::<libc::sockaddr_in6>()
    } else {
        size_of::<libc::sockaddr_in>()
    } as libc::socklen_t;
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

impl Handle {
    /// A socket bound to a free port of all addresses (dual stack where IPv6 exists), not marked yet.
    pub fn new() -> io::Result<Self> {
        let dual = socket(libc::AF_INET6).and_then(|fd| {
            set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
            let port = bind_any(&fd, libc::AF_INET6)?;
            Ok((fd, port))
        });
        let (fd, port) = match dual {
            Ok(both) => both,
            Err(_) => {
                let fd = socket(libc::AF_INET)?;
                let port = bind_any(&fd, libc::AF_INET)?;
                (fd, port)
            }
        };
        Ok(Self { fd, port, budget: 0 })
    }

    /// Local port, host order.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// NAPI id the socket has learnt; `None` until a packet came through a NAPI.
    pub fn napi_id(&self) -> io::Result<Option<u32>> {
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
        let reject = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: (&raw const reject).cast_mut() };
        // SAFETY: `program` points to one instruction that lives through the call; the kernel copies it.
        let rc = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
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
        set(&self.fd, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, 1)?;
        set(&self.fd, libc::SOL_SOCKET, SO_BUSY_POLL, 1)?;
        self.set_budget(budget)
    }

    /// Packets per driver call; two calls make a turn up to 6.19.
    pub fn set_budget(&mut self, budget: u32) -> io::Result<()> {
        let budget = budget.max(BUDGET_MIN);
        if budget != self.budget {
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

    /// One turn: one system call, bounded by the budget.
    pub fn turn(&self) -> TurnEnd {
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
