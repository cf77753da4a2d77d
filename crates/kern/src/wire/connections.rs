//! Fills a namespace's table of connections, as somebody does who opens connections until there is no place for another one.
//! Written by hand, since the requests are so many that each must be short and none is answered.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Context, Error, Result, read};

/// IPCTNL_MSG_CT_NEW of the subsystem NFNL_SUBSYS_CTNETLINK.
const NEW: u16 = 1 << 8;
/// Request, create, exclusive.
const FLAGS: u16 = 0x1 | 0x400 | 0x200;
const NESTED: u16 = 0x8000;
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const TIMEOUT: u16 = 7;
/// In the table; answered, and so not thrown out when it is full.
const ASSURED: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// Seconds that a connection stays: longer than a trial.
const STAYS: u32 = 600;
/// Largest table that is filled: each place takes some 300 bytes of the kernel's memory.
const MOST: u64 = 1 << 20;
/// Bytes of requests that are sent at once.
const AT_ONCE: usize = 60_000;
/// Ports of an address that makes up connections.
const PORTS: u32 = 60_000;

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend((4 + value.len() as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// One way of a UDP connection.
fn way(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let (mut ip, mut protocol, mut way) = (Vec::new(), Vec::new(), Vec::new());
    attribute(&mut ip, 1, &from.ip().octets());
    attribute(&mut ip, 2, &to.ip().octets());
    attribute(&mut protocol, 1, &[libc::IPPROTO_UDP as u8]);
    attribute(&mut protocol, 2, &from.port().to_be_bytes());
    attribute(&mut protocol, 3, &to.port().to_be_bytes());
    attribute(&mut way, 1 | NESTED, &ip);
    attribute(&mut way, 2 | NESTED, &protocol);
    way
}

/// The request for an answered UDP connection.
fn request(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(NEW.to_ne_bytes());
    bytes.extend(FLAGS.to_ne_bytes());
    bytes.extend([0; 8]);
    // Family, version, resource.
    bytes.extend([libc::AF_INET as u8, 0, 0, 0]);
    attribute(&mut bytes, ORIGINAL | NESTED, &way(from, to));
    attribute(&mut bytes, REPLY | NESTED, &way(to, from));
    attribute(&mut bytes, STATUS, &ASSURED.to_be_bytes());
    attribute(&mut bytes, TIMEOUT, &STAYS.to_be_bytes());
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes
}

/// Sends `requests` and returns the error of the first that the kernel refused, 0 if it took all.
fn send(socket: &OwnedFd, requests: &[u8]) -> io::Result<i32> {
    // SAFETY: the pointer and length describe the live requests.
    if unsafe { libc::send(socket.as_raw_fd(), requests.as_ptr().cast(), requests.len(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // Only what is refused is answered, and at once.
    let mut reply = [0u8; 64];
    loop {
        let (to, most) = (reply.as_mut_ptr().cast(), reply.len());
        // SAFETY: the pointer and length describe the live buffer.
        let got = unsafe { libc::recv(socket.as_raw_fd(), to, most, libc::MSG_DONTWAIT) };
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            _ if got >= 20 => return Ok(-i32::from_ne_bytes([reply[16], reply[17], reply[18], reply[19]])),
            Some(libc::EAGAIN) => return Ok(0),
            // More were refused than there is room to say; the first comes next.
            Some(libc::ENOBUFS) if got < 0 => {}
            _ => return Err(error),
        }
    }
}

/// Why the table of the caller's namespace cannot be filled; `None` if it can.
///
/// # Errors
/// If the kernel does not say how large it is: it has none.
pub fn impossible() -> Result<Option<String>> {
    let path = "/proc/sys/net/netfilter/nf_conntrack_max";
    let most: u64 = read(path)?.trim().parse().unwrap_or(0);
    let why = (most == 0 || most > MOST).then(|| format!("{path} is {most}, at most {MOST} are filled"));
    Ok(why)
}

/// Makes the UDP connections `known` in the table of the caller's namespace, and then so many others that there is no place left.
///
/// # Errors
/// If the kernel has no such table, or one of more than a million places.
pub fn fill(known: impl Iterator<Item = (SocketAddrV4, SocketAddrV4)>) -> Result<()> {
    if let Some(why) = impossible()? {
        return Err(Error::Missing(why));
    }
    // SAFETY: socket() takes no pointers; the descriptor is checked before it is owned.
    let socket = unsafe {
        match libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    };
    let (socket, what) = (socket.what(|| "netlink".into())?, || "make connections".to_string());
    let none = |number: u32| Ipv4Addr::from(0x0a00_0000 + number);
    let others = (0..2 * MOST as u32).map(|n| {
        let from = SocketAddrV4::new(none(n / PORTS), 1024 + (n % PORTS) as u16);
        (from, SocketAddrV4::new(none(1 << 16), 9))
    });
    let mut requests = Vec::with_capacity(AT_ONCE + 256);
    for (from, to) in known.chain(others) {
        requests.extend(request(from, to));
        if requests.len() < AT_ONCE {
            continue;
        }
        match send(&socket, &requests).what(what)? {
            0 => requests.clear(),
            libc::ENOMEM => return Ok(()),
            error => return Err(io::Error::from_raw_os_error(error)).what(what),
        }
    }
    Err(Error::Missing("the table of connections has no end".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_whole() {
        let bytes = request("10.0.0.1:5".parse().unwrap(), "10.0.0.2:7".parse().unwrap());
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize, bytes.len());
        assert!(AT_ONCE + bytes.len() < u16::MAX.into(), "one of the kernel's buffers holds them");
    }
}
