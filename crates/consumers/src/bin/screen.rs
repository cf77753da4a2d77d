//! A packet filter in user space, as `screend` was: the kernel queues each packet that it would forward (NFQUEUE), the
//! program reads it, does a fixed amount of work, and answers with a verdict: one system call each, everything accepted.
//! It talks netlink itself, as libnetfilter_queue does, and knows nothing of the lab. `reset` starts a window, `report`
//! prints one JSON line about the window and the whole run. The process ends when standard input closes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use consumers::{
    Counter, Window, calibrated_as_asked, loops, number, pin_as_asked, stand_aside, thread_clock, work,
};
use serde_json::json;

const USAGE: &str = "screen [--queue N] [--maxlen N] [--cpu N] [--control-cpu N] [--work-ns N | --work-loops N] \
                     | --calibrate [--cpu N]";

const PACKET: u16 = 3 << 8;
const VERDICT: u16 = 3 << 8 | 1;
const CONFIG: u16 = 3 << 8 | 2;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// Message header and nfgenmsg.
const HEAD: usize = 20;
/// NFQA_PACKET_HDR, and NFQA_VERDICT_HDR in the other direction.
const PACKET_HDR: u16 = 1;
const VERDICT_HDR: u16 = 2;
const ACCEPT: u32 = 1;
/// Bytes of each packet that are wanted: what a filter looks at.
const COPY: u32 = 128;

static COUNTS: OnceLock<Counts> = OnceLock::new();

#[derive(Default)]
struct Counts {
    received: Counter,
    refused: Counter,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("screen: {message}; usage: {USAGE}");
        std::process::exit(2);
    }
}

fn run(args: &[String]) -> Result<(), String> {
    pin_as_asked(args)?;
    if calibrated_as_asked(args) {
        return Ok(());
    }
    let loops = loops(args)?;
    let queue: u16 = number(args, "--queue")?.unwrap_or(0);
    let maxlen: Option<u32> = number(args, "--maxlen")?;
    let socket = open(queue, maxlen).map_err(|e| format!("queue {queue}: {e} (it needs CAP_NET_ADMIN)"))?;
    let counts = COUNTS.get_or_init(Counts::default);
    let clock = thread_clock().map_err(|e| format!("thread clock: {e}"))?;
    let control_cpu = number(args, "--control-cpu")?;
    println!("{}", json!({ "ready": true, "loops": loops, "pid": std::process::id() }));
    std::thread::spawn(move || {
        stand_aside(control_cpu);
        let window = Window::new(clock, || counts.received.get());
        window.serve(
            |from, to| {
                json!({
                    "received": to.counts - from.counts,
                    "total_received": to.counts,
                    "refused": counts.refused.get(),
                })
            },
            |_| None,
        )
    });
    filter(&socket, queue, counts, loops)
}

/// The program under measurement.
fn filter(socket: &OwnedFd, queue: u16, counts: &Counts, loops: u64) -> Result<(), String> {
    let mut buffer = [0u8; 8192];
    let mut verdict = message(VERDICT, REQUEST, queue, &[(VERDICT_HDR, &[0; 8])]);
    let at = HEAD + 4;
    verdict[at..at + 4].copy_from_slice(&ACCEPT.to_be_bytes());
    loop {
        // SAFETY: the kernel writes at most the buffer's length into the buffer.
        let got = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let Ok(got) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR | libc::ENOBUFS) => continue,
                _ => return Err(format!("recv: {error}")),
            }
        };
        for id in Packets(&buffer[..got]) {
            counts.received.add(1);
            work(loops);
            verdict[at + 4..at + 8].copy_from_slice(&id);
            // SAFETY: the pointer and length describe the live message.
            let sent = unsafe { libc::send(socket.as_raw_fd(), verdict.as_ptr().cast(), verdict.len(), 0) };
            if sent < 0 {
                counts.refused.add(1);
            }
        }
    }
}

/// Ids of the packets in what one read gave, in network order.
struct Packets<'a>(&'a [u8]);

impl Iterator for Packets<'_> {
    type Item = [u8; 4];

    fn next(&mut self) -> Option<[u8; 4]> {
        while self.0.len() >= HEAD {
            let length = u32::from_ne_bytes(self.0[..4].try_into().ok()?) as usize;
            let kind = u16::from_ne_bytes([self.0[4], self.0[5]]);
            if length < HEAD || length > self.0.len() {
                return None;
            }
            let message = &self.0[HEAD..length];
            self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
            if kind == PACKET
                && let Some(header) = attribute(message, PACKET_HDR)
                && let Some(id) = header.get(..4)
            {
                return id.try_into().ok();
            }
        }
        None
    }
}

fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while attributes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([attributes[0], attributes[1]]));
        let kind = u16::from_ne_bytes([attributes[2], attributes[3]]) & 0x3fff;
        let value = attributes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn message(kind: u16, flags: u16, queue: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut m = vec![0; 4];
    m.extend(kind.to_ne_bytes());
    m.extend(flags.to_ne_bytes());
    m.extend([0; 8]);
    // Any family, version 0, the queue in network order.
    m.extend([0, 0]);
    m.extend(queue.to_be_bytes());
    for (kind, value) in attributes {
        m.extend((4 + value.len() as u16).to_ne_bytes());
        m.extend(kind.to_ne_bytes());
        m.extend(*value);
        m.resize(m.len().next_multiple_of(4), 0);
    }
    let length = m.len() as u32;
    m[..4].copy_from_slice(&length.to_ne_bytes());
    m
}

/// A socket that gets what is queued on `queue`.
fn open(queue: u16, maxlen: Option<u32>) -> io::Result<OwnedFd> {
    // SAFETY: socket() takes no pointers; the descriptor is checked before it is owned.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // NFQNL_CFG_CMD_BIND, then copies of the packets' first bytes, then the length of the queue.
    configure(&socket, &message(CONFIG, REQUEST | ACK, queue, &[(1, &[1, 0, 0, 0])]))?;
    let mut copy = COPY.to_be_bytes().to_vec();
    copy.push(2);
    configure(&socket, &message(CONFIG, REQUEST | ACK, queue, &[(2, &copy)]))?;
    if let Some(maxlen) = maxlen {
        configure(&socket, &message(CONFIG, REQUEST | ACK, queue, &[(3, &maxlen.to_be_bytes())]))?;
    }
    Ok(socket)
}

fn configure(socket: &OwnedFd, request: &[u8]) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    // SAFETY: the pointer and length describe the live request.
    if unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut reply = [0u8; 8192];
    // Packets may come before the acknowledgement; none is queued for long before the rule is there.
    for _ in 0..64 {
        // SAFETY: the pointer and length describe the live buffer.
        let got = unsafe { libc::recv(fd, reply.as_mut_ptr().cast(), reply.len(), 0) };
        if got < 20 {
            return Err(io::Error::last_os_error());
        }
        if u16::from_ne_bytes([reply[4], reply[5]]) == libc::NLMSG_ERROR as u16 {
            return match i32::from_ne_bytes([reply[16], reply[17], reply[18], reply[19]]) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(-error)),
            };
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_found_among_other_messages() {
        let packet = |id: u32| {
            message(
                PACKET,
                0,
                0,
                &[(10, b"payload"), (PACKET_HDR, &[&id.to_be_bytes()[..], &[8, 0, 1]].concat())],
            )
        };
        let read = [packet(7), message(CONFIG, 0, 0, &[]), packet(8)].concat();
        assert_eq!(Packets(&read).collect::<Vec<_>>(), [7u32.to_be_bytes(), 8u32.to_be_bytes()]);
        for cut in 0..read.len() {
            assert!(Packets(&read[..cut]).count() <= 1, "{cut}");
        }
    }
}
