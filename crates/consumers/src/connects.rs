//! A client that opens connections at a fixed rate, whether the server answers or not, and asks one question on each.

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};

use crate::monotonic_ns;

/// Most connections that wait for their answer; more are left out.
const PENDING_MAX: usize = 4096;
/// A question that a server of web pages answers, and one that sends everything back.
const QUESTION: [u8; 35] = *b"GET / HTTP/1.1\r\nHost: weir.test\r\n\r\n";

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It was asked for.
    Asked,
    /// The server has answered, so many ns after it was asked for.
    Answered(u64),
    /// It was refused, or there was no answer in time.
    GivenUp,
}

struct Pending {
    fd: OwnedFd,
    asked: u64,
    /// It is established, and the question is sent.
    sent: bool,
}

/// Asks `to` for a connection every `every`, and waits for the answer on it for `patience`. Never returns.
pub fn ask(to: SocketAddrV4, every: Duration, patience: Duration, mut told: impl FnMut(Told)) {
    let (every, patience) = (every.as_nanos().max(1) as u64, patience.as_nanos() as u64);
    let mut next = monotonic_ns();
    let mut pending: Vec<Pending> = Vec::new();
    let mut polled: Vec<libc::pollfd> = Vec::new();
    loop {
        let now = monotonic_ns();
        if now >= next {
            // What was late is left out.
            next = (next + every).max(now);
            told(Told::Asked);
            match open(to) {
                Ok(fd) if pending.len() < PENDING_MAX => {
                    pending.push(Pending { fd, asked: now, sent: false })
                }
                _ => told(Told::GivenUp),
            }
        }
        pending.retain(|p| {
            let waits = now.saturating_sub(p.asked) < patience;
            if !waits {
                told(Told::GivenUp);
            }
            waits
        });
        polled.clear();
        polled.extend(pending.iter().map(|p| libc::pollfd {
            fd: p.fd.as_raw_fd(),
            events: if p.sent { libc::POLLIN } else { libc::POLLOUT },
            revents: 0,
        }));
        let end = pending.first().map_or(next, |p| next.min(p.asked + patience));
        let left = end.saturating_sub(monotonic_ns());
        let timeout =
            libc::timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        // SAFETY: as many pollfds as are told, and one timespec, all live.
        let ready = unsafe {
            libc::ppoll(
                polled.as_mut_ptr(),
                polled.len() as libc::nfds_t,
                &raw const timeout,
                std::ptr::null(),
            )
        };
        if ready <= 0 {
            continue;
        }
        let mut events = polled.iter().map(|p| p.revents);
        pending.retain_mut(|p| events.next().unwrap_or(0) == 0 || goes_on(p, &mut told));
    }
}

/// A socket that connects, and is forgotten by both sides when it is closed.
fn open(to: SocketAddrV4) -> nix::Result<OwnedFd> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    setsockopt(&fd, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(nix::Error::EINPROGRESS) => Ok(fd),
        Err(e) => Err(e),
    }
}

/// True if it still waits for something.
fn goes_on(p: &mut Pending, told: &mut impl FnMut(Told)) -> bool {
    let fd = p.fd.as_raw_fd();
    if !p.sent {
        // SAFETY: the pointer and the length describe the question.
        let sent = unsafe { libc::send(fd, QUESTION.as_ptr().cast(), QUESTION.len(), libc::MSG_NOSIGNAL) };
        p.sent = sent > 0;
        if !p.sent {
            told(Told::GivenUp);
        }
        return p.sent;
    }
    let mut answer = [0u8; 64];
    // SAFETY: the pointer and the length describe the buffer.
    let got = unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) };
    told(if got > 0 { Told::Answered(monotonic_ns().saturating_sub(p.asked)) } else { Told::GivenUp });
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::mpsc;

    fn first(to: SocketAddrV4, patience: Duration) -> Vec<Told> {
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            ask(to, Duration::from_secs(3600), patience, |told| {
                let _ = send.send(told);
            })
        });
        // Generous: what is waited for comes, however late.
        (0..2).map(|_| receive.recv_timeout(Duration::from_secs(20)).unwrap()).collect()
    }

    #[test]
    fn an_answer_and_a_refusal_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("IPv4") };
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = [0; QUESTION.len()];
            stream.read_exact(&mut question).unwrap();
            stream.write_all(&question).unwrap();
        });
        let told = first(address, Duration::from_secs(20));
        assert!(matches!(told[..], [Told::Asked, Told::Answered(ns)] if ns > 0), "{told:?}");
        server.join().unwrap();
        // Nobody listens there any more.
        assert_eq!(first(address, Duration::from_secs(20)), [Told::Asked, Told::GivenUp]);
    }
}
