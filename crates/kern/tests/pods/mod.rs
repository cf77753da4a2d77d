//! A host with network namespaces behind a bridge, and a wire before it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kern::guard::{Behind, Event, EventRing, Gauges, Nobody, Rx, Told, list_ports, mode};
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
use policy::behind::CARRIED_TICKS;
use policy::classes::Table;
use policy::gate::{TICK_SHIFT, UNTIL_BOUND, tick};
use testkit::{NetNs, packet::Udp};

pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 10, 1);
pub const PEER: Ipv4Addr = Ipv4Addr::new(198, 18, 10, 2);
pub const PORT: u16 = 9000;
/// The outer destination of what is translated.
pub const OUTER: SocketAddrV4 = SocketAddrV4::new(HOST, PORT);
/// More than the smallest buffer holds.
pub const MANY: usize = 64;
pub const XDP_DROP: u32 = 1;

/// Address of pod `n`.
pub fn inside(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 2 + n)
}

pub struct Bed {
    pub host: NetNs,
    pub wire: NetNs,
    pub pods: Vec<NetNs>,
    pub gauges: Gauges,
    pub ring: EventRing,
    pub rx: Rx,
}

pub fn ip(ns: &NetNs, line: &str) {
    ns.sh("ip", &line.split(' ').collect::<Vec<_>>());
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A program that another test starts has all sockets of this process until it runs: one that was closed may hold its port as long.
pub fn bind(address: (Ipv4Addr, u16)) -> UdpSocket {
    let mut socket = None;
    until("the port is free", || {
        socket = UdpSocket::bind(address).ok();
        socket.is_some()
    });
    socket.unwrap()
}

/// Longer than a route or what was carried is known without a packet.
pub fn routes_end() {
    std::thread::sleep(Duration::from_nanos(u64::from(CARRIED_TICKS + 3) << TICK_SHIFT));
}

impl Bed {
    /// A host with `pods` namespaces behind a bridge.
    pub fn new(pods: u8, told: Option<Told>) -> Bed {
        let (host, wire) = (NetNs::new("bhh"), NetNs::new("bhw"));
        ip(&host, "link set lo up");
        ip(&host, &format!("link add in0 type veth peer name out0 netns {}", wire.name()));
        ip(&host, &format!("address add {HOST}/24 dev in0"));
        ip(&wire, &format!("address add {PEER}/24 dev out0"));
        ip(&host, "link set in0 up");
        ip(&wire, "link set out0 up");
        ip(&host, "link add br9 type bridge");
        ip(&host, "address add 10.77.0.1/24 dev br9");
        ip(&host, "link set br9 up");
        ip(&wire, &format!("route add 10.77.0.0/24 via {HOST}"));
        host.sh("sysctl", &["-q", "-w", "net.ipv4.ip_forward=1"]);
        let pods = (0..pods).map(|n| {
            let pod = NetNs::new("bhp");
            ip(&host, &format!("link add box{n} type veth peer name eth0 netns {}", pod.name()));
            ip(&host, &format!("link set box{n} master br9 up"));
            ip(&pod, &format!("address add {}/24 dev eth0", inside(n)));
            ip(&pod, "link set lo up");
            ip(&pod, "link set eth0 up");
            ip(&pod, "route add default via 10.77.0.1");
            pod
        });
        let pods = pods.collect();
        let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
        let (mut gauges, index) = host.run(move || {
            let inode = kern::netns::current_inode().unwrap() as u32;
            let gauges = match told {
                Some(told) => Gauges::load_told(cpus, inode, told),
                None => Gauges::load(cpus, inode),
            };
            (gauges.unwrap(), kern::netns::index_of("in0").unwrap())
        });
        gauges.set_rules(&Table::new(&[]).unwrap()).unwrap();
        gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([index])).unwrap();
        let ring = gauges.events().unwrap().open().unwrap();
        let ctl = &gauges.views.source_ctls[0];
        ctl.mode.store(mode::POLL, Relaxed);
        ctl.lease.store(u64::MAX, Relaxed);
        assert_ne!(gauges.watch_nobody(true, None), Nobody::Off);
        // As on any host that translates.
        gauges.views.guard[0].by_flow.store(1, Relaxed);
        gauges.views.guard[0].nobody_ticks.store(UNTIL_BOUND, Relaxed);
        gauges.views.guard[0].slices.store(1, Relaxed);
        let rx = gauges.load_rx(0, 1).unwrap();
        let bed = Bed { host, wire, pods, gauges, ring, rx };
        bed.list();
        bed
    }

    /// A list of the host's own sockets; one that is older than two minutes counts no more.
    pub fn list(&self) {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
        let begun = tick(Duration::from(now).as_nanos() as u64);
        let views = &self.gauges.views;
        for tcp in [false, true] {
            assert!(self.host.run(|| list_ports(views, tcp, begun, || true)).unwrap());
        }
    }

    /// What arrives for [`OUTER`] goes to these pods in turn, flow by flow.
    pub fn translate(&self, to: &[u8]) {
        let map = to.iter().enumerate().map(|(i, n)| format!("{i} : {}", inside(*n)));
        let map = map.collect::<Vec<_>>().join(", ");
        let rules = format!(
            "table ip nat {{\n}}\ndelete table ip nat\ntable ip nat {{\n chain pre {{\n  type nat hook prerouting priority -100;\n  \
             udp dport {PORT} dnat to numgen inc mod {} map {{ {map} }}\n }}\n}}\n",
            to.len()
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), rules).unwrap();
        self.host.sh("nft", &["-f", file.path().to_str().unwrap()]);
    }

    /// A program's socket in pod `n`, which holds few datagrams.
    pub fn server(&self, n: u8) -> UdpSocket {
        self.pods[usize::from(n)].run(move || {
            let socket = bind((inside(n), PORT));
            setsockopt(&socket, RcvBuf, &2048).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
    }

    pub fn send(&self, from: u16, to: SocketAddrV4, packets: usize) {
        self.wire.run(move || {
            let socket = bind((PEER, from));
            (0..packets).for_each(|_| drop(socket.send_to(&[0; 200], to)));
        });
    }

    /// The program's answer to a frame of this flow, in a new poll.
    pub fn judge(&self, from: u16, to: SocketAddrV4) -> u32 {
        self.gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
        let frame = Udp::new(SocketAddrV4::new(PEER, from), to).frame();
        self.rx.run(&frame, 1).unwrap().0
    }

    pub fn sheds(&self, from: u16, to: SocketAddrV4) -> bool {
        self.judge(from, to) == XDP_DROP
    }

    /// Sockets that the control loop is told of, of other namespaces.
    pub fn told(&self) -> Vec<(u64, u64, u64, Behind)> {
        let one = |event| match event {
            Event::NewConsumer { sk, cookie, inode, behind: Some(behind), .. } => {
                Some((sk, cookie, inode, behind))
            }
            _ => None,
        };
        self.ring.take().into_iter().filter_map(one).collect()
    }

    /// Fills the socket of pod `slot`, which gets what `from` sends, and tracks it in `slot` as the guard would.
    pub fn track(&self, from: u16, to: SocketAddrV4, slot: usize) -> Behind {
        let (mut found, address) = (None, Some(inside(slot as u8)));
        until("the socket is told", || {
            self.send(from, to, MANY);
            found = self.told().into_iter().find(|told| told.3.address == address);
            found.is_some()
        });
        self.place(found.unwrap(), slot)
    }

    /// Tracks a socket as the guard would.
    pub fn place(&self, (sk, cookie, inode, behind): (u64, u64, u64, Behind), slot: usize) -> Behind {
        assert!(inode != 0);
        let ctl = &self.gauges.views.consumer_ctls[slot];
        ctl.cookie.store(cookie, Relaxed);
        ctl.shed.store(1, Relaxed);
        ctl.port.store(PORT.into(), Relaxed);
        ctl.sk.store(sk, Relaxed);
        self.gauges.track_consumer(sk, slot).unwrap();
        self.gauges.set_inner(behind.inner, Some(slot)).unwrap();
        ctl.inner.store(behind.inner, Relaxed);
        let guard = &self.gauges.views.guard[0];
        guard.consumers.fetch_max(slot as u32 + 1, Relaxed);
        guard.behind.fetch_add(1, Relaxed);
        behind
    }

    /// Sends on until the flow's frames are shed.
    pub fn until_shed(&self, from: u16, to: SocketAddrV4) {
        until("frames of a full socket are shed", || {
            self.send(from, to, 8);
            self.sheds(from, to)
        });
    }

    pub fn evidence(&self) -> u64 {
        self.gauges.views.gate[0].evidence.load(Relaxed)
    }

    pub fn elsewhere(&self) -> u64 {
        self.gauges.views.cpu_stats.iter().map(|c| c.elsewhere.load(Relaxed)).sum()
    }
}

pub fn empty(socket: &UdpSocket) -> BTreeSet<u16> {
    let mut from = BTreeSet::new();
    while let Ok((_, peer)) = socket.recv_from(&mut [0; 256]) {
        from.insert(peer.port());
    }
    from
}
