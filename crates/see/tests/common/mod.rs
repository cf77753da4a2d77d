//! A host as two readings of its counters, one second apart: healthy until a test plants something in it.
#![allow(dead_code, reason = "each test program uses its part")]

use kern::discover::Role;
use kern::ethtool::Ring;
use kern::proc::{Holder, Softnet};
use kern::raw::{CpuTime, Device, Kind, Qdisc, Queue, Raw, Socket, Task, Tcp};
use see::explain::{Report, explain};
use see::guard::{Guard, Source};
use see::{Snapshot, snapshot};

/// What every counter holds when the interval begins.
pub const BASE: u64 = 1_000_000;
/// Packets of the interval.
pub const PACKETS: u64 = 10_000;
/// The program that reads, and the inode of its socket.
pub const READER: u32 = 5;
pub const INODE: u64 = 3;

/// Two readings.
#[derive(Clone)]
pub struct Pair {
    pub before: Raw,
    pub after: Raw,
}

fn device(ifindex: u32, name: &str) -> Device {
    let counters = [
        "rx_packets",
        "rx_bytes",
        "tx_packets",
        "rx_dropped",
        "tx_dropped",
        "rx_missed_errors",
        "rx_crc_errors",
        "rx_nohandler",
    ];
    Device {
        ifindex,
        name: name.into(),
        kind: "igb".into(),
        role: Role::Source,
        lower: Vec::new(),
        up: true,
        napi: true,
        xdp: false,
        ring: Some(Ring { rx: 256, rx_max: 4096 }),
        txqlen: 1000,
        queues: vec![Queue {
            queue: 0,
            name: format!("{name}/0"),
            irq: Some(40),
            interrupts: Some(BASE),
            ..Queue::default()
        }],
        counters: counters.map(|n| (n.to_owned(), BASE)).into(),
        driver: Default::default(),
        late: 0,
    }
}

pub fn socket(kind: Kind, port: u16, inode: u64) -> Socket {
    Socket {
        kind,
        local: ([10, 0, 0, 1], port).into(),
        remote: None,
        inode,
        uid: 0,
        interface: 0,
        waiting: 0,
        limit: 212_992,
        backlog: 0,
        drops: Some(0),
        tcp: None,
    }
}

impl Pair {
    /// 10 000 datagrams arrive at `eth7` and are read by one program on CPU 1; both CPUs are idle otherwise.
    pub fn new() -> Pair {
        let cpu = |cpu| CpuTime { cpu, ..CpuTime::default() };
        let softnet = |cpu| Softnet { cpu, processed: 0, dropped: 7, time_squeeze: 0, backlog: Some(0) };
        let reader =
            Task { pid: READER, name: "reader".into(), state: 'S', cpu: 1, threads: 1, ..Task::default() };
        let limits = [
            ("net.core.netdev_max_backlog", vec![1000]),
            ("net.core.rmem_max", vec![212_992]),
            ("net.core.rmem_default", vec![212_992]),
            ("net.core.somaxconn", vec![4096]),
            ("net.ipv4.udp_mem", vec![100, 200, 300]),
            ("net.ipv4.tcp_mem", vec![100, 200, 300]),
            ("net.ipv4.tcp_rmem", vec![4096, 131_072, 6_291_456]),
            ("net.ipv4.tcp_moderate_rcvbuf", vec![1]),
            ("net.ipv4.ip_forward", vec![0]),
        ];
        let before = Raw {
            begin_ns: 1_000_000_000,
            end_ns: 1_000_000_000,
            devices: vec![device(7, "eth7")],
            cpus: vec![cpu(0), cpu(1)],
            softnet: vec![softnet(0), softnet(1)],
            limits: limits.map(|(name, n)| (name.to_owned(), n)).into(),
            sockets: vec![socket(Kind::Udp, 7000, INODE)],
            holders: [(INODE, Holder { pid: READER, name: "reader".into() })].into(),
            tasks: vec![reader],
            ..Raw::default()
        };
        let mut after = before.clone();
        (after.begin_ns, after.end_ns) = (2_000_000_000, 2_000_000_000);
        let mut pair = Pair { before, after };
        pair.device("rx_packets", PACKETS);
        for name in ["Ip.InReceives", "IpExt.InNoECTPkts", "Ip.InDelivers", "Udp.InDatagrams"] {
            pair.count(name, PACKETS);
        }
        pair.busy(0, 0.0, 0.0);
        pair.busy(1, 0.1, 0.1);
        pair.reader(0.1, 0.0, 'S');
        pair
    }

    /// A counter of the stack moves by `n` more.
    pub fn count(&mut self, name: &str, n: u64) {
        self.before.stack.entry(name.into()).or_insert(BASE);
        *self.after.stack.entry(name.into()).or_insert(BASE) += n;
    }

    /// `n` datagrams fewer reach the program: they were lost before.
    pub fn less(&mut self, names: &[&str], n: u64) {
        for name in names {
            *self.after.stack.get_mut(*name).unwrap() -= n;
        }
    }

    /// A counter of the interface moves by `n` more.
    pub fn device(&mut self, name: &str, n: u64) {
        *self.after.devices[0].counters.get_mut(name).unwrap() += n;
    }

    /// The same of its driver.
    pub fn driver(&mut self, name: &str, n: u64) {
        self.before.devices[0].driver.entry(name.into()).or_insert(BASE);
        *self.after.devices[0].driver.entry(name.into()).or_insert(BASE) += n;
    }

    /// Driver of the interface.
    pub fn kind(&mut self, kind: &str) {
        for raw in [&mut self.before, &mut self.after] {
            raw.devices[0].kind = kind.into();
        }
    }

    /// Shares of a CPU; the rest is idle.
    pub fn busy(&mut self, cpu: usize, softirq: f64, programs: f64) {
        let ticks = |share: f64| (share * 100.0).round() as u64;
        let idle = 100 - ticks(softirq) - ticks(programs);
        let cpu = &mut self.after.cpus[cpu];
        (cpu.softirq, cpu.user, cpu.idle) = (ticks(softirq), ticks(programs), idle);
    }

    /// What the program did.
    pub fn reader(&mut self, runs: f64, waits: f64, state: char) {
        let ns = |share: f64| (share * 1e9) as u64;
        let task = &mut self.after.tasks[0];
        (task.run_ns, task.wait_ns, task.state) = (ns(runs), ns(waits), state);
    }

    /// `n` datagrams find a socket full that stands at `level` in the end.
    pub fn socket_full(&mut self, n: u64, level: f64) {
        for name in ["Udp.RcvbufErrors", "Udp.InErrors"] {
            self.count(name, n);
        }
        self.less(&["Udp.InDatagrams"], n);
        let one = &mut self.after.sockets[0];
        one.drops = Some(n);
        one.waiting = (one.limit as f64 * level) as u64;
    }

    /// The only socket is another one.
    pub fn only(&mut self, one: Socket) {
        self.before.sockets = vec![one.clone()];
        self.after.sockets = vec![one];
    }

    /// A TCP connection instead, which received `bytes` with a round trip of `rtt_us` and a window of `window` bytes.
    pub fn connection(&mut self, bytes: u64, rtt_us: u32, window: u32) {
        let mut one = socket(Kind::Tcp, 443, INODE);
        one.remote = Some(([10, 0, 0, 2], 50_000).into());
        one.limit = u64::from(window) * 2;
        let tcp = Tcp { receiver_rtt_us: rtt_us, window, received: BASE, ..Tcp::default() };
        one.tcp = Some(tcp);
        self.only(one);
        self.after.sockets[0].tcp = Some(Tcp { received: BASE + bytes, ..tcp });
    }

    /// `n` packets are lost at the queue to transmit.
    pub fn transmit_full(&mut self, n: u32) {
        let root = Qdisc {
            ifindex: 7,
            kind: "pfifo_fast".into(),
            parent: u32::MAX,
            drops: u32::MAX - 5,
            ..Qdisc::default()
        };
        self.before.qdiscs = vec![root.clone()];
        self.after.qdiscs = vec![Qdisc { drops: root.drops.wrapping_add(n), ..root }];
    }

    /// Half of the packets are to be sent on, of which IP sends all but `lost`, `big` of them because they are too long.
    pub fn routed(&mut self, lost: u64, big: u64) {
        self.less(&["Ip.InDelivers", "Udp.InDatagrams"], PACKETS / 2);
        self.count("Ip.ForwDatagrams", PACKETS / 2);
        self.count("Ip.FragFails", big);
        self.count("Ip.OutTransmits", PACKETS / 2 - lost);
        self.device("tx_packets", PACKETS / 2 - lost);
    }

    /// `n` fragments, of which one of each packet that is given up.
    pub fn in_pieces(&mut self, n: u64, failed: u64, late: u64) {
        self.count("Ip.ReasmReqds", n);
        self.count("Ip.ReasmFails", failed);
        self.count("Ip.ReasmTimeout", late);
        self.less(&["Ip.InDelivers", "Udp.InDatagrams"], n);
        self.after.limits.insert("net.ipv4.ipfrag_high_thresh".into(), vec![1000]);
    }

    /// A bond of the interface, which repeats its counters.
    pub fn bonded(&mut self) {
        for raw in [&mut self.before, &mut self.after] {
            let eth = &raw.devices[0];
            let bond = Device {
                ifindex: 9,
                name: "bond0".into(),
                kind: "bond".into(),
                role: Role::Stacked,
                lower: vec![eth.name.clone()],
                napi: false,
                ring: None,
                queues: Vec::new(),
                ..eth.clone()
            };
            raw.devices.push(bond);
        }
    }

    /// Memory of the machine, kB.
    pub fn memory(&mut self, kb: u64) {
        self.after.stack.insert("meminfo.MemTotal".into(), kb);
    }

    /// The interval of a host on which a guard has `interface` and has shed `shed` frames.
    pub fn guarded(&self, interface: &str, shed: u64) -> Snapshot {
        let source = Source { name: format!("{interface}/0"), shed, ..Source::default() };
        let guard = Guard { pid: 9, sources: vec![source], ..Guard::default() };
        Snapshot { guards: vec![guard], ..self.seen() }
    }

    /// The interval.
    pub fn seen(&self) -> Snapshot {
        snapshot(&self.before, &self.after, &[], "h", 0.0)
    }

    /// What `explain` says.
    pub fn report(&self) -> Report {
        explain(&self.seen())
    }

    /// Rules of its findings, the first cause first.
    pub fn rules(&self) -> Vec<String> {
        self.report().findings.into_iter().map(|f| f.rule).collect()
    }
}

/// What the first finding says to do.
pub fn change(plant: impl FnOnce(&mut Pair)) -> Vec<String> {
    let mut host = Pair::new();
    plant(&mut host);
    host.report().findings.remove(0).change
}
