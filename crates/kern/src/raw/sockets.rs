//! Sockets that receive, through `sock_diag`: what waits in each, its limit, and what it has lost.

use super::netlink::{Dump, bytes, each, word};
use crate::{
    error::{Error, Result},
    proc::{self, MAX_SOCKETS, UdpSocket},
};
use netlink_bindings::{
    inet_diag::{Msg, TcpInfo},
    utils::find_attr,
};
use netlink_socket2::NetlinkSocket;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

const NETLINK_SOCK_DIAG: u16 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];
const AF_XDP: u8 = 44;
/// `TCP_ESTABLISHED`, `TCP_CLOSE_WAIT`, `TCP_LISTEN` as bits.
const ESTABLISHED: u32 = 1 << 1 | 1 << 8;
const LISTEN: u32 = 1 << 10;
/// Attributes of `inet_diag`, and the bits that ask for them.
const TCP_INFO: u16 = 2;
const SKMEMINFO: u16 = 7;
/// Attributes of `packet_diag`, and the bits that ask for them.
const PACKET_RING: u16 = 2;
const PACKET_MEMINFO: u16 = 6;
const PACKET_SHOW: u32 = 0x1 | 0x4 | 0x10;
/// Attributes of `xdp_diag`, and the bits that ask for them.
const XDP_RING: u16 = 3;
const XDP_STATS: u16 = 9;
const XDP_SHOW: u32 = 0x1 | 0x2 | 0x10;

/// What kind of queue a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// UDP receive buffer, bytes.
    Udp,
    /// Receive buffer of a TCP connection, bytes.
    Tcp,
    /// Accept queue of a TCP listener, connections.
    Accept,
    /// Capture (`AF_PACKET`), bytes; a mapped ring does not show what waits in it.
    Capture,
    /// `AF_XDP`; its ring does not show what waits in it.
    Xdp,
}

/// A TCP connection as seen by its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    /// Round-trip time as measured by the receiver, us; 0: not measured.
    pub receiver_rtt_us: u32,
    /// Round-trip time of the sender's half, us.
    pub rtt_us: u32,
    /// Window that is offered to the peer, bytes; 0 before 6.2.
    pub window: u32,
    /// Bytes received.
    pub received: u64,
    /// Segments received.
    pub segments: u32,
    /// Segments that came out of order.
    pub out_of_order: u32,
}

/// One socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// What kind of queue it is.
    pub kind: Kind,
    /// Address it is bound to; unspecified where it has none.
    pub local: SocketAddr,
    /// Peer, if it has one.
    pub remote: Option<SocketAddr>,
    /// Inode, which also stands in the descriptors of its owner; 0: nobody's yet.
    pub inode: u64,
    /// User id of its owner.
    pub uid: u32,
    /// Index of the interface that it is bound to; 0: none, or not known.
    pub interface: u32,
    /// What waits in it, in the unit of its kind, with overhead.
    pub waiting: u64,
    /// How much may wait; 0: not known.
    pub limit: u64,
    /// Bytes in its backlog, while its owner holds the lock.
    pub backlog: u64,
    /// Packets it has lost since it was made; `None`: the kernel does not tell for this kind.
    pub drops: Option<u64>,
    /// Only of connections, and only if asked for.
    pub tcp: Option<Tcp>,
}

impl Socket {
    fn new(kind: Kind, inode: u64) -> Socket {
        let local = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let nothing = (0, 0, 0);
        let (waiting, limit, backlog) = nothing;
        Socket {
            kind,
            local,
            remote: None,
            inode,
            uid: 0,
            interface: 0,
            waiting,
            limit,
            backlog,
            drops: None,
            tcp: None,
        }
    }
}

/// Numbers of `SK_MEMINFO_*`.
struct Memory {
    rmem: u32,
    rcvbuf: u32,
    backlog: u32,
    drops: Option<u32>,
}

fn memory(attr: &[u8]) -> Option<Memory> {
    let at = |index: usize| word(attr, index * 4);
    // Drops are there since 4.7.
    Some(Memory { rmem: at(0)?, rcvbuf: at(1)?, backlog: at(7)?, drops: at(8) })
}

/// Sockets, and how many replies were none.
#[derive(Default)]
pub(super) struct Found {
    pub list: Vec<Socket>,
    pub bad: u64,
}

impl Found {
    /// Keeps one; false when there is no room for another one.
    fn take(&mut self, one: Option<Socket>) -> bool {
        self.bad += u64::from(one.is_none());
        self.list.extend(one);
        self.list.len() < MAX_SOCKETS
    }
}

/// All of them, at most [`MAX_SOCKETS`]; what is refused or left out adds a line to `missing`. `tcp`: the connections with
/// their times.
pub(super) fn all(sock: &mut NetlinkSocket, tcp: bool, missing: &mut Vec<String>) -> Found {
    let mut list = Found::default();
    for family in FAMILIES {
        if let Err(e) = inet(sock, family, libc::IPPROTO_UDP as u8, u32::MAX, false, &mut list) {
            missing.push(format!("limits of UDP sockets: {e}; needs the kernel's udp_diag"));
            plain_udp(family, &mut list.list);
        }
        for states in [LISTEN, ESTABLISHED] {
            let with = tcp && states == ESTABLISHED;
            if let Err(e) = inet(sock, family, libc::IPPROTO_TCP as u8, states, with, &mut list) {
                missing.push(format!("TCP sockets: {e}; needs the kernel's tcp_diag"));
            }
        }
    }
    // Kernels without the modules for these have no such sockets in use, or do not show them.
    let _ = special(sock, libc::AF_PACKET as u8, PACKET_SHOW, packet, &mut list);
    let _ = special(sock, AF_XDP, XDP_SHOW, xdp, &mut list);
    if list.list.len() >= MAX_SOCKETS {
        missing.push(format!("sockets beyond the first {MAX_SOCKETS}: they are not looked at"));
    }
    list
}

/// Up to so many ports are looked for one by one: such a look takes a tenth of what the whole list takes.
const FEW_PORTS: usize = 8;

/// UDP sockets of the caller's network namespace that are bound to one of `ports`. The kernel picks them out, at 60 ns for each other
/// socket; or, of many ports, the whole list is read once. Without the kernel's `udp_diag` it is read for each.
///
/// # Errors
/// If the kernel has no list of UDP sockets at all.
pub fn udp_at(ports: &BTreeSet<u16>) -> Result<Vec<UdpSocket>> {
    let mut found = Found::default();
    let (protocol, memory) = (libc::IPPROTO_UDP as u8, 1 << (SKMEMINFO - 1));
    // Port 0 stands for all.
    let asked = if ports.len() <= FEW_PORTS { ports.iter().copied().collect() } else { vec![0] };
    let looks = asked.iter().flat_map(|port| FAMILIES.map(|family| (*port, family)));
    let looked = looks.into_iter().try_for_each(|(port, family)| {
        let dump = request(family, protocol, memory, u32::MAX, port);
        each(&mut NetlinkSocket::new(), &dump, "sock_diag", |reply| match inet_socket(reply, protocol) {
            Some(socket) if !ports.contains(&socket.local.port()) => true,
            socket => found.take(socket),
        })
    });
    if looked.is_err() || found.bad > 0 {
        let lists: Result<Vec<_>> = ports.iter().map(|port| proc::udp_sockets(Some(*port))).collect();
        return Ok(lists?.into_iter().flatten().collect());
    }
    let plain = |s: Socket| UdpSocket {
        local: s.local,
        remote: s.remote,
        rx_queue: s.waiting,
        uid: s.uid,
        inode: s.inode,
        drops: s.drops.unwrap_or(0),
        interface: s.interface,
    };
    Ok(found.list.into_iter().map(plain).collect())
}

/// Local ports of all UDP sockets of the caller's network namespace, one by one and in any order. Unlike the list in procfs, which the
/// kernel searches from its beginning for every 4 KiB that are read, this takes as long for each socket however many there are, and
/// sockets that are closed meanwhile do not hide others.
///
/// # Errors
/// If the kernel has no `udp_diag`; some ports may have been told by then.
pub(crate) fn udp_ports(mut take: impl FnMut(u16)) -> Result<()> {
    for family in FAMILIES {
        let dump = request(family, libc::IPPROTO_UDP as u8, 0, u32::MAX, 0);
        let mut bad = false;
        each(&mut NetlinkSocket::new(), &dump, "sock_diag", |reply| {
            match reply.get(..Msg::len()).and_then(Msg::new_from_slice) {
                Some(msg) => take(msg.sockid.sport()),
                None => bad = true,
            }
            true
        })?;
        if bad {
            return Err(Error::io("sock_diag", std::io::ErrorKind::InvalidData.into()));
        }
    }
    Ok(())
}

/// Ends of the established TCP connections of this network namespace, local and remote, at most [`MAX_SOCKETS`].
///
/// # Errors
/// If the kernel has no `tcp_diag`.
pub fn connections() -> Result<Vec<(SocketAddr, SocketAddr)>> {
    let mut list = Found::default();
    for family in FAMILIES {
        let (protocol, mut sock) = (libc::IPPROTO_TCP as u8, NetlinkSocket::new());
        inet(&mut sock, family, protocol, ESTABLISHED, false, &mut list)?;
    }
    Ok(list.list.into_iter().filter_map(|s| Some((s.local, s.remote?))).collect())
}

fn inet(
    sock: &mut NetlinkSocket,
    family: u8,
    protocol: u8,
    states: u32,
    info: bool,
    list: &mut Found,
) -> Result<()> {
    let ext = 1u8 << (SKMEMINFO - 1) | if info { 1 << (TCP_INFO - 1) } else { 0 };
    let dump = request(family, protocol, ext, states, 0);
    each(sock, &dump, "sock_diag", |reply| list.take(inet_socket(reply, protocol)))
}

/// Asks for the sockets in these states, with these attributes; only for those at local port `port` if it is not 0.
fn request(family: u8, protocol: u8, ext: u8, states: u32, port: u16) -> Dump {
    let mut payload = vec![family, protocol, ext, 0];
    payload.extend(states.to_ne_bytes());
    payload.extend(port.to_be_bytes());
    payload.extend([0; 46]);
    Dump { protonum: NETLINK_SOCK_DIAG, kind: SOCK_DIAG_BY_FAMILY, payload }
}

pub(super) fn inet_socket(reply: &[u8], protocol: u8) -> Option<Socket> {
    let (head, attrs) = reply.split_at_checked(Msg::len())?;
    let msg = Msg::new_from_slice(head)?;
    let listens = msg.state == 10;
    let kind = match (i32::from(protocol), listens) {
        (libc::IPPROTO_UDP, _) => Kind::Udp,
        (_, true) => Kind::Accept,
        (_, false) => Kind::Tcp,
    };
    let ip = |bytes: [u8; 16]| -> IpAddr {
        let [a, b, c, d, ..] = bytes;
        match i32::from(msg.family) {
            libc::AF_INET => Ipv4Addr::new(a, b, c, d).into(),
            _ => Ipv6Addr::from(bytes).into(),
        }
    };
    let mut socket = Socket::new(kind, msg.inode.into());
    socket.local = SocketAddr::new(ip(msg.sockid.src), msg.sockid.sport());
    let port = msg.sockid.dport();
    socket.remote = (port != 0).then(|| SocketAddr::new(ip(msg.sockid.dst), port));
    (socket.uid, socket.interface) = (msg.uid, msg.sockid.r#if);
    if let Some(memory) = find_attr(attrs, SKMEMINFO).and_then(memory) {
        (socket.waiting, socket.limit) = (memory.rmem.into(), memory.rcvbuf.into());
        socket.backlog = memory.backlog.into();
        socket.drops = memory.drops.map(u64::from);
    }
    if kind == Kind::Accept {
        // For listeners these are the accept queue and its limit.
        (socket.waiting, socket.limit) = (msg.rqueue.into(), msg.wqueue.into());
    }
    socket.tcp = find_attr(attrs, TCP_INFO).map(|attr| {
        let info = TcpInfo::new_from_zeroed(attr);
        Tcp {
            receiver_rtt_us: info.rcv_rtt,
            rtt_us: info.rtt,
            window: info.rcv_wnd,
            received: info.bytes_received,
            segments: info.segs_in,
            out_of_order: info.rcv_ooopack,
        }
    });
    Some(socket)
}

/// UDP sockets of a kernel without `udp_diag`: their limits are not known.
fn plain_udp(family: u8, list: &mut Vec<Socket>) {
    let v4 = i32::from(family) == libc::AF_INET;
    let sockets = proc::udp_sockets(None).unwrap_or_default();
    list.extend(sockets.into_iter().filter(|s| s.local.is_ipv4() == v4).map(|s| Socket {
        local: s.local,
        remote: s.remote,
        uid: s.uid,
        waiting: s.rx_queue,
        drops: Some(s.drops),
        ..Socket::new(Kind::Udp, s.inode)
    }));
}

/// Families whose request and reply begin alike: family, type, 16 bits, inode, cookie.
fn special(
    sock: &mut NetlinkSocket,
    family: u8,
    show: u32,
    parse: fn(u64, &[u8]) -> Socket,
    list: &mut Found,
) -> Result<()> {
    let mut payload = vec![family, 0, 0, 0, 0, 0, 0, 0];
    payload.extend(show.to_ne_bytes());
    payload.extend([0; 8]);
    let dump = Dump { protonum: NETLINK_SOCK_DIAG, kind: SOCK_DIAG_BY_FAMILY, payload };
    each(sock, &dump, "sock_diag", |reply| {
        let parts = word(reply, 4).zip(reply.get(16..));
        list.take(parts.map(|(inode, attrs)| parse(inode.into(), attrs)))
    })
}

pub(super) fn packet(inode: u64, attrs: &[u8]) -> Socket {
    let mut socket = Socket::new(Kind::Capture, inode);
    // Block size times blocks.
    let ring = find_attr(attrs, PACKET_RING).and_then(|r| Some((word(r, 0)?, word(r, 4)?)));
    match (ring, find_attr(attrs, PACKET_MEMINFO).and_then(memory)) {
        (Some((size, blocks)), _) if blocks > 0 => socket.limit = u64::from(size) * u64::from(blocks),
        (_, Some(memory)) => {
            (socket.waiting, socket.limit) = (memory.rmem.into(), memory.rcvbuf.into());
            socket.drops = memory.drops.map(u64::from);
        }
        _ => {}
    }
    socket
}

pub(super) fn xdp(inode: u64, attrs: &[u8]) -> Socket {
    let mut socket = Socket::new(Kind::Xdp, inode);
    socket.limit = find_attr(attrs, XDP_RING).and_then(|r| word(r, 0)).unwrap_or(0).into();
    // n_rx_dropped, n_rx_invalid, n_rx_full: dropped in all, oversized, ring of the program full.
    let stats = find_attr(attrs, XDP_STATS);
    let at = |i: usize| bytes(stats?, i * 8).map(u64::from_ne_bytes);
    socket.drops = at(0).zip(at(2)).map(|(dropped, full): (u64, u64)| dropped.saturating_add(full));
    socket
}

/// By inode, those that belong to somebody.
pub(super) fn by_inode(sockets: &[Socket]) -> BTreeMap<u64, &Socket> {
    sockets.iter().filter(|s| s.inode != 0).map(|s| (s.inode, s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn own_sockets_are_found() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        // The loopback, which everybody may bind to.
        nix::sys::socket::setsockopt(&udp, nix::sys::socket::sockopt::BindToDevice, &"lo".into()).unwrap();
        udp.send_to(&[0; 100], udp.local_addr().unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut missing = Vec::new();
        let found = all(&mut NetlinkSocket::new(), true, &mut missing);
        assert_eq!(found.bad, 0);
        let list = found.list;
        let find = |kind, address: SocketAddr| {
            list.iter().find(|s| s.kind == kind && s.local == address).unwrap().clone()
        };
        let one = find(Kind::Udp, udp.local_addr().unwrap());
        assert!(one.waiting >= 100 && one.limit > one.waiting && one.drops == Some(0), "{one:?}");
        assert_eq!(one.interface, nix::net::if_::if_nametoindex("lo").unwrap());
        let queue = find(Kind::Accept, listener.local_addr().unwrap());
        assert_eq!((queue.waiting, queue.drops), (1, Some(0)), "{queue:?}");
        assert!(queue.limit >= 1);
        let connection = list.iter().find(|s| s.remote == Some(listener.local_addr().unwrap())).unwrap();
        assert!(connection.kind == Kind::Tcp && connection.tcp.is_some());
        assert!(by_inode(&list).contains_key(&one.inode));
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn sockets_at_a_port_are_those_that_procfs_has() {
        let mut two = [UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("[::]:0").unwrap()];
        two[0].send_to(&[0; 100], two[0].local_addr().unwrap()).unwrap();
        two[1].connect(("::1", 9)).unwrap();
        for socket in &mut two {
            let port = socket.local_addr().unwrap().port();
            let found = udp_at(&[port].into()).unwrap();
            assert_eq!(found, proc::udp_sockets(Some(port)).unwrap());
            assert_eq!(found.len(), 1);
            // Beside so many others that the whole list is read.
            let many = (0..20).map(|n| 1 + n).chain([port]).collect();
            assert_eq!(udp_at(&many).unwrap().iter().filter(|s| s.local.port() == port).count(), 1);
        }
        let mut ports = BTreeSet::new();
        udp_ports(|port| _ = ports.insert(port)).unwrap();
        assert!(two.iter().all(|s| ports.contains(&s.local_addr().unwrap().port())));
    }

    #[test]
    fn short_replies_are_left_out() {
        assert!(inet_socket(&[0; 71], libc::IPPROTO_TCP as u8).is_none());
        let bare = inet_socket(&[0; 72], libc::IPPROTO_TCP as u8).unwrap();
        assert_eq!((bare.limit, bare.drops), (0, None));
        assert!(memory(&[0; 28]).is_none() && memory(&[0; 32]).unwrap().drops.is_none());
        assert_eq!(packet(7, &[]).drops, None);
        assert_eq!(xdp(7, &[1, 2, 3]).limit, 0);
    }
}
