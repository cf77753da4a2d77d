//! Makes and sets up veth pairs over rtnetlink. Written by hand because the peer's attributes nest a header that
//! the generated bindings do not know.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::netns::Namespace;
use super::{Context, Result};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWNEIGH: u16 = 28;
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const EXCL: u16 = 0x200;
const CREATE: u16 = 0x400;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const NESTED: u16 = 0x8000;

/// One end of a veth pair.
#[derive(Debug, Clone)]
pub struct End {
    /// Interface name, at most 15 bytes.
    pub name: String,
    /// Hardware address.
    pub mac: [u8; 6],
    /// Index in its namespace.
    pub index: u32,
}

/// Makes a veth pair with one queue each way and puts both ends up: `near` in `here`, `far` in `there`.
///
/// # Errors
/// If a name is taken or a step is refused.
pub fn veth(
    here: &Namespace,
    near: (&str, [u8; 6]),
    there: &Namespace,
    far: (&str, [u8; 6]),
) -> Result<(End, End)> {
    let fd = there.file().as_raw_fd();
    let make = || {
        let mut m = Message::new(RTM_NEWLINK, CREATE | EXCL);
        m.push(&[0; 16]);
        describe(&mut m, near);
        let info = m.open(IFLA_LINKINFO);
        m.attribute(1, b"veth\0");
        let data = m.open(2);
        let peer = m.open(1);
        m.push(&[0; 16]);
        describe(&mut m, far);
        m.attribute(IFLA_NET_NS_FD, &fd.to_ne_bytes());
        m.close(peer);
        m.close(data);
        m.close(info);
        m.send(|| format!("veth {} {}", near.0, far.0))
    };
    here.run(make)?;
    let end = |ns: &Namespace, (name, mac): (&str, [u8; 6])| {
        let index = ns.run(|| {
            let index = nix::net::if_::if_nametoindex(name).what(|| name.into())?;
            up(index)?;
            Ok(index)
        })?;
        Ok(End { name: name.into(), mac, index })
    };
    Ok((end(here, near)?, end(there, far)?))
}

fn describe(m: &mut Message, (name, mac): (&str, [u8; 6])) {
    let mut text = name.as_bytes().to_vec();
    text.push(0);
    m.attribute(IFLA_IFNAME, &text);
    m.attribute(IFLA_ADDRESS, &mac);
    m.attribute(IFLA_NUM_TX_QUEUES, &1u32.to_ne_bytes());
    m.attribute(IFLA_NUM_RX_QUEUES, &1u32.to_ne_bytes());
}

/// Puts the interface up, in the namespace of the calling thread.
///
/// # Errors
/// If there is no such interface.
pub fn up(index: u32) -> Result<()> {
    let mut m = Message::new(RTM_NEWLINK, 0);
    m.push(&[0; 4]);
    m.push(&index.to_ne_bytes());
    let iff_up = 1u32.to_ne_bytes();
    m.push(&iff_up);
    m.push(&iff_up);
    m.send(|| format!("interface {index} up"))
}

/// Deletes the interface, in the namespace of the calling thread.
///
/// # Errors
/// If there is no such interface.
pub fn delete(index: u32) -> Result<()> {
    let mut m = Message::new(RTM_DELLINK, 0);
    m.push(&[0; 4]);
    m.push(&index.to_ne_bytes());
    m.push(&[0; 8]);
    m.send(|| format!("delete interface {index}"))
}

/// Gives the interface an address, in the namespace of the calling thread.
///
/// # Errors
/// If it has the address already.
pub fn address(index: u32, address: Ipv4Addr, prefix: u8) -> Result<()> {
    let mut m = Message::new(RTM_NEWADDR, CREATE | EXCL);
    m.push(&[libc::AF_INET as u8, prefix, 0, 0]);
    m.push(&index.to_ne_bytes());
    m.attribute(2, &address.octets());
    m.attribute(1, &address.octets());
    m.send(|| format!("address {address}/{prefix}"))
}

/// Adds a permanent neighbour, so that no ARP is ever sent, in the namespace of the calling thread.
///
/// # Errors
/// If the neighbour exists.
pub fn neighbour(index: u32, address: Ipv4Addr, mac: [u8; 6]) -> Result<()> {
    let permanent = 0x80u16.to_ne_bytes();
    let mut m = Message::new(RTM_NEWNEIGH, CREATE | EXCL);
    m.push(&[libc::AF_INET as u8, 0, 0, 0]);
    m.push(&index.to_ne_bytes());
    m.push(&[permanent[0], permanent[1], 0, 0]);
    m.attribute(1, &address.octets());
    m.attribute(2, &mac);
    m.send(|| format!("neighbour {address}"))
}

/// One rtnetlink request.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Message {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((REQUEST | ACK | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        Message(bytes)
    }

    fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((4 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.push(value);
    }

    fn open(&mut self, kind: u16) -> usize {
        let at = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NESTED).to_ne_bytes());
        at
    }

    fn close(&mut self, at: usize) {
        let length = (self.0.len() - at) as u16;
        self.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// Sends the request in the calling thread's namespace and waits for the kernel's answer.
    fn send(mut self, what: impl Fn() -> String) -> Result<()> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.exchange().what(what)
    }

    fn exchange(&self) -> io::Result<()> {
        // SAFETY: socket() takes no pointers; the descriptor is checked before it is owned.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: the pointer and length describe the live request.
        if unsafe { libc::send(fd.as_raw_fd(), self.0.as_ptr().cast(), self.0.len(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut reply = [0u8; 4096];
        // SAFETY: the pointer and length describe the live buffer.
        let got = unsafe { libc::recv(fd.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) };
        if got < 20 {
            return Err(io::Error::last_os_error());
        }
        // An acknowledgement is an error message whose error is 0.
        match i32::from_ne_bytes([reply[16], reply[17], reply[18], reply[19]]) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}
