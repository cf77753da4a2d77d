//! What tests of the gate share: frames of both families, a packet socket that sends them, and sockets that are tracked.

#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kern::guard::{Event, EventRing, Gauges, Taker};
use policy::gate::tick;
use testkit::NetNs;
use testkit::packet::checksum;

pub const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 9, 2];
/// The host's addresses.
pub const HOST: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(198, 18, 9, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
/// Longest wait for what the kernel does at once, unless something else has the CPU.
const PATIENCE: Duration = Duration::from_secs(20);

/// What stands behind the IP header.
#[derive(Clone, Copy, Debug)]
pub enum Behind<'a> {
    /// A datagram with this payload.
    Udp(&'a [u8]),
    /// A segment without data and with these flags.
    Tcp(u8),
}

/// A frame as the peer sends it; all checksums are right.
pub fn frame(from: SocketAddr, to: SocketAddr, behind: Behind<'_>) -> Vec<u8> {
    let mut packet = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let (protocol, at) = match behind {
        Behind::Udp(payload) => {
            packet.extend((8 + payload.len() as u16).to_be_bytes());
            packet.extend([0, 0]);
            packet.extend(payload);
            (17, 6)
        }
        Behind::Tcp(flags) => {
            packet.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
            (6, 16)
        }
    };
    let length = packet.len() as u16;
    let addresses = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
        _ => panic!("two families"),
    };
    let [high, low] = length.to_be_bytes();
    // Zero means "no checksum", so a sum of zero is sent as its other form.
    let sum = match checksum(&[&addresses, &[0, protocol, high, low], &packet]) {
        0 => 0xffff,
        sum => sum,
    };
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [HOST_MAC, PEER_MAC].concat();
    if from.is_ipv4() {
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend((20 + length).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        frame.extend(&addresses);
        let sum = checksum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, high, low, protocol, 64]);
        frame.extend(&addresses);
    }
    frame.extend(&packet);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A veth from `in0` of the host to `out0` of the wire. All answers of the host leave by it.
pub fn connect(host: &NetNs, wire: &NetNs) {
    let ip = |ns: &NetNs, line: &str| ns.sh("ip", &line.split(' ').collect::<Vec<_>>());
    let mac = |mac: [u8; 6]| mac.map(|b| format!("{b:02x}")).join(":");
    let ends = (mac(HOST_MAC), mac(PEER_MAC));
    let pair = format!("link add in0 address {} type veth peer name out0 address {}", ends.0, ends.1);
    ip(host, &format!("{pair} netns {}", wire.name()));
    ip(host, &format!("address add {}/24 dev in0", HOST.0));
    ip(host, &format!("address add {}/64 dev in0 nodad", HOST.1));
    ip(host, "link set in0 up");
    ip(wire, "link set out0 up");
    for (way, gateway) in [("-4", "198.18.9.2"), ("-6", "fd00::2")] {
        ip(host, &format!("{way} neighbour replace {gateway} lladdr {} dev in0", ends.1));
        ip(host, &format!("{way} route add default via {gateway}"));
    }
}

/// A packet socket on interface `name` of the caller's namespace.
pub fn packets(name: &str) -> OwnedFd {
    let index = kern::netns::index_of(name).unwrap();
    // SAFETY: plain system calls on a new descriptor; the address is of the length that is told.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(fd);
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = index as i32;
        assert_eq!(libc::bind(fd, (&raw const to).cast(), size_of_val(&to) as u32), 0);
        socket
    }
}

/// Sends it; false if the device's queue was full.
pub fn send(from: &OwnedFd, frame: &[u8]) -> bool {
    // SAFETY: the frame lives through the call.
    let sent = unsafe { libc::send(from.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    sent == frame.len() as isize
}

/// Waits until it holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Tick of the packet path's clock.
pub fn now() -> u32 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
    tick(Duration::from(now).as_nanos() as u64)
}

/// What the kernel tells of sockets that lose.
pub struct Found {
    ring: EventRing,
    sockets: BTreeMap<u16, (u64, u64)>,
}

impl Found {
    pub fn new(gauges: &Gauges) -> Found {
        Found { ring: gauges.events().unwrap().open().unwrap(), sockets: BTreeMap::new() }
    }

    /// Tracks the socket at `port` as consumer `slot`, which is shed for; `more` sends one datagram for it. The socket is full
    /// when this returns, and what a packet takes of its buffer is known.
    pub fn track(&mut self, gauges: &Gauges, port: u16, slot: usize, mut more: impl FnMut()) {
        until("the socket overflows", || {
            (0..400).for_each(|_| more());
            for event in self.ring.take() {
                if let Event::NewConsumer { sk, cookie, port, .. } = event {
                    self.sockets.insert(port, (sk, cookie));
                }
            }
            self.sockets.contains_key(&port)
        });
        let (sk, cookie) = self.sockets[&port];
        gauges.track_consumer(sk, slot).unwrap();
        let views = &gauges.views;
        until("it is known what a packet takes", || {
            (0..100).for_each(|_| more());
            views.consumer_stats[slot].truesize.load(Relaxed) > 0
        });
        let ctl = &views.consumer_ctls[slot];
        ctl.cookie.store(cookie, Relaxed);
        ctl.shed.store(1, Relaxed);
        // As by a list that was read since it was bound; the coarse clock may be a tick behind.
        ctl.alone.store(now() + 2, Relaxed);
        ctl.sk.store(sk, Relaxed);
        views.guard[0].consumers.fetch_max(slot as u32 + 1, Relaxed);
        gauges.set_port(port, Taker::Only(slot)).unwrap();
    }
}
