//! What the gate costs does not grow: the decision not with the sockets that are open, its memory not with what arrives; and how
//! much a socket that is bound pays for it.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod bed;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bed::{Behind, Found, HOST, frame, now, packets, send, until};
use kern::guard::{Gauges, Nobody, Rx, Taker, list_ports, mode};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use policy::classes::Table;
use policy::gate::UNTIL_BOUND;
use testkit::NetNs;
use testkit::frames::Random;

/// Port of a socket that is full, of none, and of two sockets.
const FULL: u16 = 9000;
const CLOSED: u16 = 9100;
const SHARED: u16 = 9200;
/// Frames of one span, some milliseconds, and spans of a turn.
const SPAN: u32 = 10_000;
const SPANS: usize = 24;

/// The tests of this file measure: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn soak() -> bool {
    std::env::var("WEIR_SOAK").is_ok_and(|v| v == "1")
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Programs that judge what comes by interface `guarded` of the caller's namespace as that of source 0, which is polled.
fn judge(guarded: u32) -> (Gauges, Rx) {
    let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
    let mut gauges = Gauges::load(cpus, kern::netns::current_inode().unwrap() as u32).unwrap();
    gauges.set_rules(&Table::new(&[]).unwrap()).unwrap();
    gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([guarded])).unwrap();
    let ctl = &gauges.views.source_ctls[0];
    ctl.mode.store(mode::POLL, Relaxed);
    ctl.lease.store(u64::MAX, Relaxed);
    ctl.exact.store(1, Relaxed);
    watch(&mut gauges, true);
    gauges.views.guard[0].nobody_ticks.store(UNTIL_BOUND, Relaxed);
    gauges.views.guard[0].slices.store(1, Relaxed);
    let rx = gauges.load_rx(0, 1).unwrap();
    (gauges, rx)
}

fn watch(gauges: &mut Gauges, on: bool) {
    let root = kern::cgroups::root();
    let answer = gauges.watch_nobody(on, root.as_ref().map(AsFd::as_fd));
    assert_eq!(
        answer,
        if on { Nobody::UntilBound } else { Nobody::Off },
        "the tests run at the root of all cgroups"
    );
}

/// Lists the ports of UDP or of TCP; the time it took. Not the thread's CPU time: time that a hypervisor takes is subtracted from that,
/// too much at once.
fn list(gauges: &Gauges, tcp: bool) -> Duration {
    let (begun, from) = (now(), Instant::now());
    assert!(list_ports(&gauges.views, tcp, begun, || true).unwrap());
    from.elapsed()
}

/// Time of a look at the sockets of so many ports, as the guard looks once a second whether its consumers are still there.
fn look(ports: u16) -> Duration {
    let (ports, from) = ((0..ports).map(|n| FULL + n).collect(), Instant::now());
    assert!(!kern::raw::udp_at(&ports).unwrap().is_empty());
    from.elapsed()
}

/// Does `work` while `count` more UDP sockets are open in the namespace, on two addresses of the loopback. They are held by threads
/// with tables of files of their own, so that no limit of this process counts but the one for each table.
fn beside<T>(ns: &NetNs, count: usize, work: impl FnOnce() -> T) -> Result<T, String> {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).unwrap().0;
    // This process has some open already.
    let each = (limit.saturating_sub(300) as usize).clamp(1, 20_000);
    let socket = |n: usize| {
        let port = match 1000 + (n % 60_000) as u16 {
            FULL => 900,
            CLOSED => 901,
            SHARED => 902,
            port => port,
        };
        UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2 + (n / 60_000) as u8), port))
    };
    std::thread::scope(|scope| {
        let (ready, opened) = mpsc::channel();
        let holders: Vec<_> = (0..count.div_ceil(each))
            .map(|table| {
                let ((end, ends), ready) = (mpsc::channel::<()>(), ready.clone());
                scope.spawn(move || {
                    unshare(CloneFlags::CLONE_FILES).unwrap();
                    let _inside = ns.enter();
                    let mine = table * each..count.min((table + 1) * each);
                    let sockets: Result<Vec<UdpSocket>, _> = mine.map(socket).collect();
                    ready.send(sockets.as_ref().map(Vec::len).map_err(ToString::to_string)).unwrap();
                    drop(ready);
                    let _ = ends.recv();
                });
                end
            })
            .collect();
        drop(ready);
        let opened: usize = opened.iter().collect::<Vec<_>>().into_iter().sum::<Result<usize, _>>()?;
        assert_eq!(opened, count);
        let out = work();
        drop(holders);
        Ok(out)
    })
}

/// What is measured beside so many sockets. What the program takes for a frame is given in what it takes for one that it does not
/// look up.
#[derive(Debug, Default)]
struct Costs {
    full: Vec<f64>,
    nobody: Vec<f64>,
    shared: Vec<f64>,
    /// The least of each.
    lists: [Duration; 2],
    looks: [Duration; 2],
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    assert!(!sorted.is_empty(), "nothing was measured");
    sorted[sorted.len() / 2]
}

/// One run of the program over a frame, in runs over `plain` just before, of several spans. A span whose frames are not shed, where
/// the gate should know them, does not count.
fn cost(
    gauges: &Gauges,
    rx: &Rx,
    [frame, plain]: [&[u8]; 2],
    sheds: bool,
    mut before: impl FnMut(),
) -> Vec<f64> {
    let shed = || gauges.views.rx_stats[0].shed.load(Relaxed);
    let span = |_| {
        let unit = rx.run(plain, SPAN).unwrap().1;
        before();
        let from = shed();
        let took = rx.run(frame, SPAN).unwrap().1;
        let known = !sheds || (shed() - from) * 100 >= u64::from(SPAN) * 99;
        known.then(|| took.as_secs_f64() / unit.as_secs_f64())
    };
    (0..SPANS).filter_map(span).collect()
}

/// Why it cannot flake: each span is compared with one of a millisecond before, of the same program, so that a CPU whose speed changes
/// changes both, and the median drops the spans in which something else ran. They are taken in turns, until the numbers of sockets
/// are as near to each other as they must be, or for eight turns: a cost that grows with the number is never near.
#[test]
fn the_decision_costs_the_same_beside_65536_sockets_root() {
    let name = "the_decision_costs_the_same_beside_65536_sockets_root";
    if !testkit::root_or_skip(name) {
        return;
    }
    const COUNTS: [usize; 4] = [1, 32, 1024, 65_536];
    let _alone = alone();
    let ns = NetNs::new("scale");
    ns.sh("ip", &["link", "set", "lo", "up"]);
    let outcome = ns.run(|| {
        let (gauges, rx) = judge(1);
        // The frames are for the one address that is known to be the interface's.
        gauges.views.source_ctls[0].mark_v4.store(u32::from_ne_bytes([127, 0, 0, 1]), Relaxed);
        let server = UdpSocket::bind(local(FULL)).unwrap();
        setsockopt(&server, sockopt::RcvBuf, &(45 * 768)).unwrap();
        let client = UdpSocket::bind(local(0)).unwrap();
        let ask = |port: u16| drop(client.send_to(&[0; 18], local(port)));
        Found::new(&gauges).track(&gauges, FULL, 0, || ask(FULL));
        gauges.set_port(SHARED, Taker::Shared).unwrap();
        let [to_full, to_closed, to_shared] = [FULL, CLOSED, SHARED]
            .map(|port| frame((Ipv4Addr::LOCALHOST, 4000).into(), local(port), Behind::Udp(&[0; 18])));
        // Of a protocol that the gate leaves alone.
        let mut plain = to_full.clone();
        plain[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
        let measure = |costs: &mut Costs| {
            costs.lists = [false, true].map(|tcp| (0..2).map(|_| list(&gauges, tcp)).min().unwrap());
            // The last tick of a list must be older than what is learnt.
            let listed = now();
            until("a later tick", || now() > listed + 1);
            costs.full.extend(cost(&gauges, &rx, [&to_full, &plain], true, || ()));
            // Each span begins with a drop that confirms it.
            costs.nobody.extend(cost(&gauges, &rx, [&to_closed, &plain], true, || ask(CLOSED)));
            costs.shared.extend(cost(&gauges, &rx, [&to_shared, &plain], false, || ()));
            costs.looks = [1, 64].map(|ports| (0..2).map(|_| look(ports)).min().unwrap());
        };
        println!("a frame that is not looked up takes {:?}", rx.run(&plain, SPAN).unwrap().1);
        let mut all: [Costs; 4] = Default::default();
        for turn in 1.. {
            for (costs, count) in all.iter_mut().zip(COUNTS) {
                // The full one is one of them.
                beside(&ns, count - 1, || measure(costs))?;
            }
            let apart = |of: fn(&Costs) -> &[f64]| {
                let medians = all.each_ref().map(|costs| median(of(costs)));
                medians.iter().copied().fold(0.0, f64::max) / medians.iter().copied().fold(f64::INFINITY, f64::min)
            };
            let [full, nobody] = [apart(|c| &c.full), apart(|c| &c.nobody)];
            let near = full <= 1.1 && nobody <= 1.1;
            if near && turn >= 2 || turn == 8 {
                for (costs, count) in all.iter().zip(COUNTS) {
                    let [full, nobody, shared] = [&costs.full, &costs.nobody, &costs.shared].map(|of| median(of));
                    println!(
                        "{count} sockets: {full:.2} (full), {nobody:.2} (nobody), {shared:.2} (shared), lists {:?}, looks {:?}",
                        costs.lists, costs.looks
                    );
                }
                println!("after {turn} turns apart by a factor of {full:.3} (full), {nobody:.3} (nobody)");
                assert!(near, "the decision costs more beside more sockets: {all:?}");
                break;
            }
        }
        // Far above what they are, so that the speed of the machine is not asked.
        let medians = all.each_ref().map(|costs| median(&costs.full).max(median(&costs.nobody)));
        assert!(medians.iter().all(|cost| *cost < 15.0), "the decision is dear: {medians:?}");
        // A list whose cost grows with the square takes seconds here.
        assert!(all[3].lists[0] < Duration::from_millis(400), "{:?}", all[3].lists);
        assert!(all[3].looks[0].max(all[3].looks[1]) < Duration::from_millis(400), "{:?}", all[3].looks);
        Ok::<_, String>(())
    });
    if let Err(why) = outcome {
        eprintln!("skipped: {name} needs 65,536 sockets: {why}");
    }
}

/// Memory of all BPF maps that this process has open, bytes; by type and number of entries, so that a reader sees which they are.
fn maps() -> (u64, BTreeMap<String, u64>) {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        // Descriptors come and go.
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let of = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().parse::<u64>().ok()
        };
        if let (Some(id), Some(bytes)) = (of("map_id"), of("memlock")) {
            let [kind, value, most] = ["map_type", "value_size", "max_entries"].map(|n| of(n).unwrap_or(0));
            all.insert(id, (format!("type {kind}, {most} x {value} bytes"), bytes));
        }
    }
    let total = all.values().map(|(_, bytes)| bytes).sum();
    let mut kinds = BTreeMap::new();
    all.into_values().for_each(|(kind, bytes)| *kinds.entry(kind).or_insert(0) += bytes);
    (total, kinds)
}

/// Resident memory of this process, KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A frame of a flow that nobody has seen before, for a random port of the host; one of eight is for another address, as many for
/// a full socket.
fn random_frame(random: &mut Random) -> Vec<u8> {
    let (number, kind) = (random.number(), random.number());
    let ports = ((number >> 32) as u16, if kind % 8 == 0 { FULL } else { (number >> 48) as u16 });
    let behind = match kind >> 3 & 3 {
        0 => Behind::Tcp([0x02, 0x10, 0x12, 0x01][(kind >> 5 & 3) as usize]),
        _ => Behind::Udp(&[0; 18]),
    };
    let (from, to): (IpAddr, IpAddr) = match kind >> 8 & 3 {
        0 => (Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number) << 1 | 1 << 70).into(), HOST.1.into()),
        _ => {
            let last = if kind >> 12 & 7 == 0 { (kind >> 16) as u8 } else { 1 };
            let from = 0x0a00_0000 | number as u32 & 0x00ff_ffff;
            (Ipv4Addr::from(from).into(), Ipv4Addr::new(198, 18, 9, last).into())
        }
    };
    frame((from, ports.0).into(), (to, ports.1).into(), behind)
}

/// Cannot flake: what is compared is what the kernel accounts to the maps, exactly, and the process's memory after it has done all
/// of this before.
#[test]
fn millions_of_random_flows_take_no_memory_root() {
    if !testkit::root_or_skip("millions_of_random_flows_take_no_memory_root") {
        return;
    }
    let _alone = alone();
    let frames = if soak() { 10_000_000 } else { 1_000_000u64 };
    let (host, wire) = (NetNs::new("memh"), NetNs::new("memw"));
    // Answers leave, and are lost there.
    bed::connect(&host, &wire);
    let wire_end = wire.run(|| packets("out0"));
    host.run(|| {
        let (gauges, rx) = judge(kern::netns::index_of("in0").unwrap());
        let _server = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, FULL)).unwrap();
        let to_full = frame((Ipv4Addr::new(198, 18, 9, 2), 4000).into(), (HOST.0, FULL).into(), Behind::Udp(&[0; 18]));
        Found::new(&gauges).track(&gauges, FULL, 0, || assert!(send(&wire_end, &to_full)));
        list(&gauges, false);
        list(&gauges, true);
        let gate = || {
            let gate = &gauges.views.gate[0];
            [&gate.ports, &gate.flows].map(|c| c.load(Relaxed))
        };
        let (mut random, mut refused, mut before) = (Random::new(22), 0u64, None);
        let from = Instant::now();
        for n in 0..frames {
            // The second half is learnt by flow.
            if n == frames / 2 {
                gauges.views.guard[0].by_flow.store(1, Relaxed);
            }
            if n == frames / 10 {
                before = Some((maps(), resident()));
            }
            gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
            // Each is judged; one of a few arrives too, and teaches what the kernel says of it.
            let frame = random_frame(&mut random);
            rx.run(&frame, 1).unwrap();
            if n % 4 == 0 {
                refused += u64::from(!send(&wire_end, &frame));
            }
        }
        let took = from.elapsed();
        let ((total, kinds), resident_before) = before.unwrap();
        let (after, resident_after) = (maps(), resident());
        let stat = &gauges.views.rx_stats[0];
        let [seen, shed, nobody] = [&stat.normal, &stat.shed, &stat.nobody].map(|c| c.load(Relaxed));
        let [ports, flows] = gate();
        kinds.iter().filter(|(_, bytes)| **bytes >= 64 * 1024).for_each(|(kind, bytes)| println!("{bytes:>9} {kind}"));
        println!(
            "{frames} frames in {took:.1?}, {refused} not sent; {seen} judged, {shed} shed, {nobody} of them nobody's; {ports} \
             ports and {flows} flows learnt; maps {} KiB, resident {resident_before} -> {resident_after} KiB",
            total / 1024
        );
        assert_eq!(after, (total, kinds), "the maps have grown");
        assert!(resident_after <= resident_before + 512, "the process has grown");
        assert!(total <= MAPS_MAX, "{total} bytes: more than docs/gate.md says");
        assert!(seen >= frames / 10 * 9 && shed > frames / 20, "the frames were not judged");
        assert!(ports > 40_000 && flows > frames / 100, "nothing was learnt");
    });
}

/// Memory of all maps of a guard on two CPUs, bytes.
const MAPS_MAX: u64 = 10 << 20;

/// Sockets of one block, and blocks of each kind.
const BLOCK: u32 = 500;
const BLOCKS: usize = 20;

/// Cannot flake: the best of many short blocks counts, taken in turns, and the bound is fifty times what is expected.
#[test]
fn a_bind_costs_little_more_beside_the_gate_root() {
    if !testkit::root_or_skip("a_bind_costs_little_more_beside_the_gate_root") {
        return;
    }
    let _alone = alone();
    let ns = NetNs::new("binds");
    ns.sh("ip", &["link", "set", "lo", "up"]);
    ns.run(|| {
        let (mut gauges, _rx) = judge(1);
        let block = || {
            let from = Instant::now();
            (0..BLOCK).for_each(|_| drop(UdpSocket::bind(local(0)).unwrap()));
            from.elapsed() / BLOCK
        };
        let mut least = [Duration::MAX; 2];
        for _ in 0..BLOCKS {
            for (least, on) in least.iter_mut().zip([false, true]) {
                watch(&mut gauges, on);
                *least = block().min(*least);
            }
        }
        let [alone, beside] = least;
        let (each, lists) = (beside.saturating_sub(alone), [false, true].map(|tcp| list(&gauges, tcp)));
        println!("a socket opened, bound and closed: {alone:?}, beside the gate {beside:?}; lists {lists:?}");
        assert!(
            each * 1000 <= Duration::from_millis(10),
            "1000 binds a second cost more than 1 % of a CPU: {each:?} each"
        );
    });
}
