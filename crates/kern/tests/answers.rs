//! The gate against the kernel's own answer, frame by frame: each frame is judged by the XDP program, run without a device, and then
//! sent to the host by an interface that has no XDP program. So both see the same sockets in the same state, and what the kernel
//! does with the frame says whether the gate was right. 100,000 frames, a million with `WEIR_SOAK=1`.
//!
//! Why it cannot flake: nothing is measured by time. The answer to each frame is waited for; the gate's memory of what nobody took
//! lasts for a second by its own rule, so a frame that comes more than half a second after the last one of its kind, because something
//! else had the CPU, is not counted.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod bed;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bed::{Behind, Found, HOST, frame, now, packets, send, until};
use kern::guard::{Gauges, Nobody, Rx, list_ports, mode};
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
use policy::classes::{Rule, Table};
use policy::gate::UNTIL_BOUND;
use testkit::NetNs;
use testkit::frames::Random;

/// Whom the firewall refuses.
const REFUSED: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(198, 18, 9, 66), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x66));
const XDP_DROP: u32 = 1;
/// Most frames of a poll, as of a driver's.
const POLL: usize = 64;
/// Refusals of a flow until it is nobody's, and some.
const LEARNT: u32 = 1100;
/// For how long what was learnt certainly holds.
const HOLDS: Duration = Duration::from_millis(500);

/// What a program does with its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// It hangs.
    Nothing,
    /// All of it before the next poll.
    All,
    /// Some of it, now and then.
    Some,
}

struct Server {
    socket: UdpSocket,
    port: u16,
    reads: Reads,
}

/// Sockets that are tracked, in the order of their slots, and after them two that have never lost anything.
const SERVERS: [Reads; 12] = [
    Reads::Nothing,
    Reads::Nothing,
    Reads::Nothing,
    Reads::Nothing,
    Reads::All,
    Reads::All,
    Reads::All,
    Reads::Some,
    Reads::Some,
    Reads::Some,
    Reads::All,
    Reads::All,
];
const TRACKED: usize = 10;
const CLOSED: usize = 16;

/// What the kernel did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Queued,
    /// The socket was full.
    Full,
}

/// How many frames got this answer, and how many of them the gate shed.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u64,
    shed: u64,
}

impl Count {
    fn add(&mut self, shed: bool) {
        self.all += 1;
        self.shed += u64::from(shed);
    }

    fn share(self) -> f64 {
        self.shed as f64 / self.all.max(1) as f64
    }
}

/// Memory of what waits in the socket, and packets that it has refused.
fn meminfo(socket: &UdpSocket) -> (u32, u32) {
    const RMEM_ALLOC: usize = 0;
    const DROPS: usize = 8;
    let mut all = [0u32; 9];
    let mut length = size_of_val(&all) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the pointer and the length describe `all`.
    let rc = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, all.as_mut_ptr().cast(), &raw mut length)
    };
    assert_eq!((rc, length as usize), (0, size_of_val(&all)));
    (all[RMEM_ALLOC], all[DROPS])
}

/// Datagrams of both families that no socket of the caller's namespace took.
fn no_ports() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:")).map(str::split_whitespace);
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let four: u64 = values.nth(names.position(|name| name == "NoPorts").unwrap()).unwrap().parse().unwrap();
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap();
    let six = text.lines().find_map(|line| line.strip_prefix("Udp6NoPorts")).unwrap();
    four + six.trim().parse::<u64>().unwrap()
}

/// Packets that the firewall has refused.
fn refusals(host: &NetNs) -> u64 {
    let text = host.sh("nft", &["list", "chain", "inet", "w", "in"]);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).filter(|w| w[0] == "packets").map(|w| w[1].parse::<u64>().unwrap()).sum()
}

struct Bed {
    gauges: Gauges,
    rx: Rx,
    wire: OwnedFd,
    servers: Vec<Server>,
}

impl Bed {
    /// Inside the host.
    fn new(wire: OwnedFd) -> Bed {
        let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
        let mut gauges = Gauges::load(cpus, kern::netns::current_inode().unwrap() as u32).unwrap();
        // Replies of resolvers are protected.
        gauges.set_rules(&Table::new(&Rule::defaults()).unwrap()).unwrap();
        let index = kern::netns::index_of("in0").unwrap();
        gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([index])).unwrap();
        let ctl = &gauges.views.source_ctls[0];
        ctl.mode.store(mode::POLL, Relaxed);
        ctl.lease.store(u64::MAX, Relaxed);
        ctl.mark_v4.store(u32::from_ne_bytes(HOST.0.octets()), Relaxed);
        for (word, to) in HOST.1.octets().chunks_exact(4).zip(&ctl.mark_v6) {
            to.store(u32::from_ne_bytes(word.try_into().unwrap()), Relaxed);
        }
        let root = kern::cgroups::root();
        let nobody = gauges.watch_nobody(true, root.as_ref().map(AsFd::as_fd));
        assert_eq!(nobody, Nobody::UntilBound, "the tests run at the root of all cgroups");
        gauges.views.guard[0].nobody_ticks.store(UNTIL_BOUND, Relaxed);
        gauges.views.guard[0].slices.store(1, Relaxed);
        let server = |(n, reads): (usize, Reads)| {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 9000 + n as u16)).unwrap();
            socket.set_nonblocking(true).unwrap();
            if reads != Reads::All {
                // Doubled by the kernel.
                setsockopt(&socket, RcvBuf, &(45 * 768)).unwrap();
            }
            Server { socket, port: 9000 + n as u16, reads }
        };
        let rx = gauges.load_rx(0, 1).unwrap();
        let bed = Bed { gauges, rx, wire, servers: SERVERS.into_iter().enumerate().map(server).collect() };
        let mut found = Found::new(&bed.gauges);
        for (slot, server) in bed.servers.iter().enumerate().take(TRACKED) {
            let from = (Ipv4Addr::new(198, 18, 9, 2), 4000).into();
            let ask = frame(from, (HOST.0, server.port).into(), Behind::Udp(&[0; 18]));
            found.track(&bed.gauges, server.port, slot, || assert!(send(&bed.wire, &ask)));
        }
        bed.read(&mut Random::new(1), true);
        bed.list();
        bed
    }

    fn list(&self) {
        for tcp in [false, true] {
            assert!(list_ports(&self.gauges.views, tcp, now(), || true).unwrap());
        }
    }

    /// The programs read.
    fn read(&self, random: &mut Random, all: bool) {
        for server in &self.servers {
            let most = match server.reads {
                Reads::Nothing => 0,
                Reads::Some if !all => [0, 0, 3, 10, 40][random.below(5)],
                _ => usize::MAX,
            };
            (0..most).take_while(|_| server.socket.recv(&mut [0; 8]).is_ok()).count();
        }
    }

    fn sheds(&self, frame: &[u8]) -> bool {
        self.rx.run(frame, 1).unwrap().0 == XDP_DROP
    }
}

/// Both families in turn at random, from an address that nobody has sent from before, and a port that no rule protects.
fn addresses(random: &mut Random, port: u16) -> (SocketAddr, SocketAddr) {
    let number = random.number();
    let from_port = 10_000 + (number >> 48) as u16 % 50_000;
    let (from, to): (IpAddr, IpAddr) = match number & 1 {
        0 => (Ipv4Addr::from(0x0a00_0000 | (number >> 8) as u32 & 0x00ff_ffff).into(), HOST.0.into()),
        _ => (Ipv6Addr::from(0xfd01_u128 << 112 | u128::from(number >> 16) << 64 | 1).into(), HOST.1.into()),
    };
    ((from, from_port).into(), (to, port).into())
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    Server(usize),
    /// The same, protected by its source port.
    Protected(usize),
    Closed(usize),
    /// A sender whom the firewall refuses, at a server that reads.
    Refused(usize),
}

#[test]
fn what_is_shed_is_what_the_kernel_would_drop_root() {
    let name = "what_is_shed_is_what_the_kernel_would_drop_root";
    if !testkit::root_or_skip(name) {
        return;
    }
    if !testkit::nft_or_skip(name) {
        return;
    }
    let wanted = if std::env::var("WEIR_SOAK").is_ok_and(|v| v == "1") { 1_000_000 } else { 100_000u64 };
    let (host, wire) = (NetNs::new("ansh"), NetNs::new("answ"));
    bed::connect(&host, &wire);
    for line in [
        "add table inet w".to_owned(),
        "add chain inet w in { type filter hook input priority 0 ; policy accept ; }".to_owned(),
        format!("add rule inet w in ip saddr {} counter drop", REFUSED.0),
        format!("add rule inet w in ip6 saddr {} counter drop", REFUSED.1),
    ] {
        host.sh("nft", &line.split(' ').collect::<Vec<_>>());
    }
    let end = wire.run(|| packets("out0"));
    host.run(|| judge(&host, end, wanted));
}

/// What the kernel does with a frame whose socket had `before`.
fn answer(server: &UdpSocket, before: (u32, u32)) -> Answer {
    let mut answer = Answer::Full;
    // Nobody reads meanwhile: one of the two grows.
    let mut look = || {
        let (waits, drops) = meminfo(server);
        answer = match (waits > before.0, drops.wrapping_sub(before.1)) {
            (true, 0) => Answer::Queued,
            (false, 1) => Answer::Full,
            (false, 0) => return false,
            other => panic!("{other:?}: more than one frame came"),
        };
        true
    };
    // Most often it has come by the end of the system call that sent it.
    if !look() {
        until("the kernel's answer", look);
    }
    answer
}

fn judge(host: &NetNs, wire: OwnedFd, wanted: u64) {
    // What is sent is taken up on the same CPU, in order.
    let cpu = nix::sched::sched_getcpu().unwrap();
    kern::wire::tasks::pin(0, cpu).unwrap();
    let bed = Bed::new(wire);
    let mut random = Random::new(0x22_9b);
    let (mut full, mut nobody, mut firewall, mut protected) = <(Count, Count, Count, Count)>::default();
    let mut queued = [Count::default(); SERVERS.len()];
    // Of each flow that the firewall refuses: refusals without a gap; of each: when it was last refused.
    let (mut refused, mut refused_at) = ([0u32; 4], [None; 4]);
    let (mut closed_at, mut sent_to_closed, mut sent_refused) = ([None; 2 * CLOSED], 0u64, 0u64);
    let (no_ports_before, firewall_before) = (no_ports(), refusals(host));
    let mut listed = Instant::now();
    let holds = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < HOLDS);
    let (mut frames, from) = (0, Instant::now());
    while frames < wanted {
        bed.gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
        for _ in 0..1 + random.below(POLL) {
            let what = match random.below(16) {
                0..=7 => For::Server(random.below(SERVERS.len())),
                8 => For::Protected(random.below(SERVERS.len())),
                9..=12 => For::Closed(random.below(CLOSED)),
                _ => For::Refused(random.below(4)),
            };
            let (n, port) = match what {
                For::Server(n) | For::Protected(n) => (n, bed.servers[n].port),
                For::Closed(n) => (n, 20_000 + n as u16),
                For::Refused(n) => (n, bed.servers[SERVERS.len() - 1 - n / 2].port),
            };
            let (mut source, mut target) = addresses(&mut random, port);
            match what {
                For::Protected(_) => source.set_port(53),
                For::Refused(n) => {
                    (source, target) = match n % 2 {
                        0 => ((REFUSED.0, 5000).into(), (HOST.0, port).into()),
                        _ => ((REFUSED.1, 5000).into(), (HOST.1, port).into()),
                    };
                }
                _ => {}
            }
            // Sockets that are nearly full are compared to the packet: there all packets take the same.
            let mixed =
                !matches!(what, For::Server(n) | For::Protected(n) if bed.servers[n].reads == Reads::Some);
            let payload = vec![0; if mixed { 18 + random.below(1380) } else { 18 }];
            let frame = frame(source, target, Behind::Udp(&payload));
            let socket = matches!(what, For::Server(_) | For::Protected(_)).then(|| &bed.servers[n].socket);
            let before = socket.map(meminfo);

            let shed = bed.sheds(&frame);
            assert!(send(&bed.wire, &frame));
            frames += 1;
            match (what, socket.zip(before).map(|(socket, before)| answer(socket, before))) {
                (For::Protected(_), _) => protected.add(shed),
                (For::Server(_), Some(Answer::Queued)) => queued[n].add(shed),
                (For::Server(_), Some(Answer::Full)) => full.add(shed),
                (For::Closed(_), None) => {
                    sent_to_closed += 1;
                    let at = &mut closed_at[2 * n + usize::from(target.is_ipv6())];
                    if holds(*at) {
                        nobody.add(shed);
                    }
                    *at = Some(Instant::now());
                }
                (For::Refused(_), None) => {
                    sent_refused += 1;
                    if !holds(refused_at[n]) {
                        refused[n] = 0;
                    }
                    if refused[n] >= LEARNT {
                        firewall.add(shed);
                    }
                    refused[n] += 1;
                    refused_at[n] = Some(Instant::now());
                }
                other => panic!("{other:?}"),
            }
        }
        // Nobody's were nobody's: what the kernel counts is what was sent, no more and no less.
        if no_ports() - no_ports_before != sent_to_closed {
            until("all have come", || no_ports() - no_ports_before >= sent_to_closed);
            assert_eq!(no_ports() - no_ports_before, sent_to_closed);
        }
        bed.read(&mut random, false);
        if listed.elapsed() > Duration::from_secs(20) {
            bed.list();
            listed = Instant::now();
        }
    }
    assert_eq!(refusals(host) - firewall_before, sent_refused, "what the firewall was to refuse");
    let reads = |reads: Reads| {
        let of = SERVERS.iter().zip(queued).filter(move |(r, _)| **r == reads).map(|(_, count)| count);
        of.fold(Count::default(), |a, b| Count { all: a.all + b.all, shed: a.shed + b.shed })
    };
    let (room, nearly, hung) = (reads(Reads::All), reads(Reads::Some), reads(Reads::Nothing));
    let over = bed.gauges.views.rx_stats[0].over_share.load(Relaxed);
    println!("{frames} frames in {:.1?}", from.elapsed());
    println!(
        "dropped by full sockets {full:?}, by no socket {nobody:?}, by the firewall {firewall:?}; queued where all is read \
         {room:?}, where some is {nearly:?} ({over} over a share), where nothing is {hung:?}; protected {protected:?}"
    );
    for (what, count) in [("full", full), ("nobody", nobody), ("the firewall", firewall)] {
        assert!(count.all > wanted / 100, "{what}: the frames show nothing");
        assert!(count.share() >= 0.99, "{what}: {:.4} of them were shed", count.share());
    }
    // Before 6.15 a socket took one packet more than it had room for.
    let strict = bed.servers.iter().all(|s| meminfo(&s.socket).0 <= 2 * 45 * 768 || s.reads == Reads::All);
    assert!(!strict || nearly.shed == 0, "of sockets that had room for them");
    assert!(room.all > wanted / 10 && nearly.all > wanted / 100 && protected.all > wanted / 50);
    assert_eq!((room.shed, protected.shed), (0, 0), "somebody's were shed");
}
