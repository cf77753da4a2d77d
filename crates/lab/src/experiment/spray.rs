//! The experiment `spray` (ES-06, BH-12): the packets of one queue on one CPU, on the CPU of their flow, and on the next CPU in
//! turn whatever their flow.
//!
//! The last two are one XDP program with two ways to choose, in front of the same CPU map, so that nothing else differs. The wire
//! and a sender need a CPU too, and there are two: both give way to all else there, as in `steering`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kern::wire::source::{Class, Load, Phase, Spread, Target};
use kern::wire::{counters, ethtool, tasks};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use results::{Document, Id, Mark, Panel, Point, Role, Scale, Trial, Verdict, stats};

use crate::arm::{Arm, Host};
use crate::consumer;
use crate::experiment::steering::{FIREWALLED, RULES, WORK, at_least, firewall, ratio};
use crate::experiment::{Experiment, Simulated, names};
use crate::ledger::Ledger;
use crate::livelock;
use crate::options::Options;
use crate::plan::{Progress, Runner, claim, result_of};
use crate::rig::{Rig, Wiring};
use crate::takes::Choice;
use crate::trial::{Bench, Cast, Scene, burst};
use crate::{Error, Result};

/// The experiment `spray`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "spray",
    about: "packets on one CPU, on the CPU of their flow, and on any: goodput, order, evenness, one TCP connection",
    takes: "about 2 minutes",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Seed],
    arms: |_| names(arms()),
    run,
    simulated_by: Simulated::No { lacks: "CPUs that packets of one flow take turns on", nearest: "steering" },
};

/// Packets that wait for a CPU: as many as a CPU's backlog holds (net.core.netdev_max_backlog).
const QUEUE: u32 = 1000;
/// Programs, each with a port and on a CPU of its own.
const PROGRAMS: u8 = 2;
/// To each program. An odd number: with two CPUs in turn and an even number of flows in turn, each flow would have its CPU.
const FLOWS: u32 = 63;
/// For the same reason two packets in a row go to one program.
const SCHEDULE: [u8; 4] = [0, 0, 1, 1];
/// The longest wait for what is queued at the end.
const DRAINED: Duration = Duration::from_secs(2);
const TAIL: Duration = Duration::from_millis(50);

/// Of the one TCP connection. Chosen so that its flow and the one of UDP fall to the host CPU, where the reader is.
const SOURCE_PORT: u16 = 20_003;
const PORT: u16 = 9100;
const CHUNK: usize = 64 << 10;
/// No call of sender or receiver lasts longer.
const PATIENCE: Duration = Duration::from_millis(500);

const FIRST: usize = 0;
const FLOW: usize = 1;
const MESSAGE: usize = 2;
const ARMS: [(Option<Spread>, &str, Role, &str); 3] = [
    (None, "one-cpu", Role::Stock, "the queue's interrupt and softirq on the host CPU"),
    (
        Some(Spread::Flow),
        "per-connection",
        Role::Alternative,
        "XDP and a CPU map, the CPU by a hash of the flow",
    ),
    (Some(Spread::Packet), "per-message", Role::Alternative, "the same, the next CPU for each packet"),
];

/// What comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offered {
    /// Datagrams of so many flows to each of so many programs.
    Udp { flows: u32, programs: u8 },
    /// As much as one connection gives.
    Tcp,
}

const ONE: usize = 0;
const MANY: usize = 1;
const BULK: usize = 2;
const LOADS: [(Offered, &str); 3] = [
    (Offered::Udp { flows: 1, programs: 1 }, "one"),
    (Offered::Udp { flows: FLOWS, programs: PROGRAMS }, "many"),
    (Offered::Tcp, "TCP"),
];

fn arms() -> Vec<Arm> {
    let arm = |(_, name, role, note): &(Option<Spread>, &str, Role, &str)| Arm {
        name: (*name).into(),
        role: *role,
        note: Some((*note).into()),
        wiring: Wiring::Timer,
        host: Host::Plain,
        slow_output: false,
        rcvbuf: None,
        unscreened: false,
    };
    ARMS.iter().map(arm).collect()
}

/// What a TCP connection did in the window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Bulk {
    megabits: f64,
    /// Segments that came before one that precedes them.
    early: f64,
    retransmitted: f64,
}

/// What a trial gave beside the ledger.
#[derive(Debug, Clone, Default)]
struct Seen {
    trial: Trial,
    /// Time in softirq and in threads that stand for it, by CPU, as a share of the window.
    receive: Vec<f64>,
    read: u64,
    overtaken: u64,
    bulk: Option<Bulk>,
}

impl Seen {
    fn jain(&self) -> Option<f64> {
        stats::jain(&self.receive)
    }

    fn hottest(&self) -> Option<f64> {
        self.receive.iter().copied().max_by(f64::total_cmp)
    }

    /// Of the datagrams that were read, those that another of their flow had overtaken.
    fn overtaken(&self) -> Option<f64> {
        (self.read > 0).then(|| self.overtaken as f64 / self.read as f64)
    }

    fn goodput(&self) -> Option<f64> {
        self.bulk.is_none().then_some(self.trial.goodput_pps)
    }
}

/// By arm and load.
type Taken = BTreeMap<(usize, usize), Vec<Seen>>;

/// # Errors
/// If nothing could be measured. An interrupt gives what was measured so far, marked as partial.
fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = arms();
    let mut runner = Runner::new(options, progress)?;
    let host = runner.bench.cpus.host;
    runner.bench.consumer.calibrate(host, WORK)?;
    runner.bench.consumer.sockets = PROGRAMS;
    runner.total = (arms.len() * LOADS.len()) as u64 * u64::from(options.repeat());
    let mut taken = Taken::new();
    let cut_short = match take(&mut runner, &arms, options, &mut taken) {
        Ok(()) => false,
        Err(Error::Interrupted) if !taken.is_empty() => true,
        Err(e) => return Err(e),
    };
    let mut document = runner.document("spray")?;
    document.parameters.insert("rules".into(), RULES.into());
    document.parameters.insert("queue".into(), QUEUE.into());
    for (a, arm) in arms.iter().enumerate() {
        let mut result = result_of(arm, options.reserve);
        // What TCP sends is in no ledger: it sends again what is lost.
        for load in [ONE, MANY] {
            let trials: Vec<Trial> =
                taken.get(&(a, load)).into_iter().flatten().map(|s| s.trial.clone()).collect();
            if !trials.is_empty() {
                result.points.push(Point::fold(trials, None));
            }
        }
        document.arms.push(result);
    }
    document.panels = panels(&arms, &taken);
    runner.finish(&mut document, &[Id::Ledger], cut_short);
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    document.verdict.extend(verdict(&taken));
    Ok(document)
}

fn take(runner: &mut Runner<'_>, arms: &[Arm], options: &Options, taken: &mut Taken) -> Result<()> {
    for round in 0..u64::from(options.repeat()) {
        for (l, (load, name)) in LOADS.iter().enumerate() {
            if let Offered::Udp { flows, .. } = load {
                runner.bench.consumer.flows = *flows;
            }
            for a in livelock::order(arms.len(), options.seed, round << 8 | l as u64) {
                runner.say(&format!("{}: {name}", arms[a].name));
                let seen = runner.again_if_void(
                    |bench| one(bench, &arms[a], ARMS[a].0, *load, options),
                    |s| s.trial.void.is_some(),
                )?;
                runner.step();
                taken.entry((a, l)).or_default().push(seen);
            }
        }
    }
    Ok(())
}

fn one(bench: &Bench, arm: &Arm, spread: Option<Spread>, load: Offered, options: &Options) -> Result<Seen> {
    let (wire, host) = (bench.cpus.wire, bench.cpus.host);
    bench.stage(arm, &Scene::default(), |rig, cast, before| {
        // One program for each CPU.
        if let Some(second) = cast.consumers.get(1) {
            second.ids().iter().try_for_each(|pid| tasks::pin(*pid as i32, wire))?;
        }
        firewall(rig, if load == Offered::Tcp { "tcp" } else { "udp" }, RULES)?;
        let index = rig.inputs[0].far.index;
        // Ends before the rig does.
        let spreading = match spread {
            Some(by) => Some(bench.wire.spread(&rig.host, index, by, &[wire, host], QUEUE)?),
            None => None,
        };
        let mut carriers = spreading.as_ref().map(|s| s.threads().to_vec()).unwrap_or_default();
        // As softirq does, and the hop of other experiments, they come before programs.
        carriers.iter().try_for_each(|(_, pid)| tasks::schedule(*pid, tasks::Policy::Fifo(50)))?;
        for cpu in [wire, host] {
            let ksoftirqd = format!("ksoftirqd/{cpu}");
            carriers.extend(tasks::find(|name| name == ksoftirqd)?.map(|pid| (cpu, pid)));
        }
        carriers.iter().try_for_each(|(_, pid)| bench.wire.watch(*pid as u32, Class::Carrier))?;
        match load {
            Offered::Udp { flows, programs } => {
                datagrams(bench, rig, arm, (flows, programs), options, cast, before, &carriers)
            }
            Offered::Tcp => bulk(bench, rig, options, &carriers),
        }
    })
}

/// Receive work of the wire's CPU and the host's so far, in ns: softirq, and the threads that carry packets outside of it.
fn work(bench: &Bench, carriers: &[(usize, i32)]) -> Result<Vec<u64>> {
    let meters = bench.wire.meters()?;
    let mut all = Vec::new();
    for cpu in [bench.cpus.wire, bench.cpus.host] {
        let mut threads = 0;
        for (_, pid) in carriers.iter().filter(|(at, _)| *at == cpu) {
            threads += tasks::cpu_ns(*pid)?;
        }
        let meter = meters.get(cpu).copied().unwrap_or_default();
        // Softirq work that interrupted a thread is in that thread's time too.
        let own = threads.saturating_sub(meter.stolen_ns[Class::Carrier as usize]);
        all.push(meter.softirq_ns + own);
    }
    Ok(all)
}

fn shares(from: &[u64], to: &[u64], wall: Duration) -> Vec<f64> {
    let wall = wall.as_nanos().max(1) as f64;
    from.iter().zip(to).map(|(from, to)| to.saturating_sub(*from) as f64 / wall).collect()
}

/// Packets in the queues of the CPU map, with those that the queue of an earlier trial has taken along.
fn queued(bench: &Bench) -> Result<u64> {
    let given: u64 = bench.wire.spread_given()?.iter().sum();
    let gone: u64 = bench.wire.meters()?.iter().map(|m| m.hop_enqueue_drops + m.hop_packets).sum();
    Ok(given.saturating_sub(gone))
}

#[allow(clippy::too_many_arguments, reason = "what a trial is made of")]
fn datagrams(
    bench: &Bench,
    rig: &Rig<'_>,
    arm: &Arm,
    (flows, programs): (u32, u8),
    options: &Options,
    cast: &mut Cast,
    before: &Ledger,
    carriers: &[(usize, i32)],
) -> Result<Seen> {
    let phase = |duration| Phase { duration, rate: Some(FIREWALLED) };
    let phases = [options.warm_up(), options.window(), TAIL].map(phase).to_vec();
    let targets = bench.consumer.targets(&rig.inputs[0]);
    let mut load = Load { gentle: true, ..rig.load(phases, burst(Some(FIREWALLED)), targets[0].clone()) };
    load.schedule = SCHEDULE.into_iter().filter(|program| *program < programs).collect();
    load.targets = targets.into_iter().map(|target| Target { flows, ..target }).collect();
    let idle = queued(bench)?;
    let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
    bench.interrupt.sleep(options.warm_up())?;
    cast.consumers.iter_mut().try_for_each(|c| c.reset(rig))?;
    let (at, from) = (Instant::now(), work(bench, carriers)?);
    bench.interrupt.sleep(options.window())?;
    let reports = cast.consumers.iter_mut().map(|c| c.report(rig)).collect::<Result<Vec<_>>>()?;
    let receive = shares(&from, &work(bench, carriers)?, at.elapsed());
    let sent = running.wait()?;
    let end = Instant::now() + DRAINED;
    while (rig.in_rings()? > 0 || queued(bench)? != idle) && Instant::now() < end {
        bench.interrupt.sleep(Duration::from_millis(3))?;
    }
    let last = consumer::drain(&mut cast.consumers, rig, |t| bench.interrupt.sleep(t))?;
    let mut trial = Ledger::read(&bench.wire, rig)?.since(before).close(&arm.host, &sent, &last, 0);
    // The queue of the CPU map is the host's here and not the wire's.
    if let Some(lost) = trial.drops.remove("wire") {
        trial.drops.insert("cpumap".into(), lost);
    }
    let offered = sent.by_phase.get(1).copied().unwrap_or(0) as f64;
    trial.offered_pps = offered / options.window().as_secs_f64();
    let read = consumer::together(&reports);
    trial.goodput_pps = read.served as f64 / read.window_ns.max(1) as f64 * 1e9;
    trial.latency_us = read.latency;
    Ok(Seen {
        trial,
        receive,
        read: reports.iter().map(|r| r.served).sum(),
        overtaken: reports.iter().map(|r| r.out_of_order).sum(),
        bulk: None,
    })
}

/// A sender on the wire's CPU that gives way, and a receiver on the host's.
fn bulk(bench: &Bench, rig: &Rig<'_>, options: &Options, carriers: &[(usize, i32)]) -> Result<Seen> {
    let failed = |e: std::io::Error| Error::program("the TCP connection", e);
    rig.reach(true)?;
    let near = rig.inputs[0].near.name.clone();
    let wire_mask = format!("{:x}", 1u64 << bench.cpus.wire);
    rig.wire_side.run(|| {
        ethtool::checksums_off(&near)?;
        // The sender's stack is no work of the host.
        counters::set_interface(&near, "queues/rx-0/rps_cpus", &wire_mask)
    })?;
    let here = SocketAddrV4::new(rig.inputs[0].address, PORT);
    let there = SocketAddrV4::new(rig.inputs[0].peer, SOURCE_PORT);
    let listener = rig.host.run(|| Ok(TcpListener::bind(here)))?.map_err(failed)?;
    let mut sender = rig.wire_side.run(|| Ok(connected(there, here)))?.map_err(failed)?;
    let mut receiver = listener.accept().map_err(failed)?.0;
    receiver.set_read_timeout(Some(PATIENCE)).map_err(failed)?;

    let (over, read) = (AtomicBool::new(false), AtomicU64::new(0));
    let (wire, host) = (bench.cpus.wire, bench.cpus.host);
    std::thread::scope(|threads| {
        let sends = threads.spawn(|| {
            tasks::pin(0, wire)?;
            tasks::schedule(0, tasks::Policy::Idle)?;
            until(&over, || sender.write(&[0; CHUNK])).map_err(failed)
        });
        let reads = threads.spawn(|| {
            tasks::pin(0, host)?;
            let mut buffer = vec![0; CHUNK];
            until(&over, || {
                let length = receiver.read(&mut buffer)?;
                read.fetch_add(length as u64, Ordering::Relaxed);
                Ok(length)
            })
            .map_err(failed)
        });
        let seen = watched(bench, rig, options, carriers, &read);
        over.store(true, Ordering::Relaxed);
        let broken = || Error::program("the TCP connection", "a thread panicked");
        let sent: Result<()> = sends.join().map_err(|_| broken())?;
        let received: Result<()> = reads.join().map_err(|_| broken())?;
        sent.and(received).and(seen)
    })
}

/// The window of [`bulk`].
fn watched(
    bench: &Bench,
    rig: &Rig<'_>,
    options: &Options,
    carriers: &[(usize, i32)],
    read: &AtomicU64,
) -> Result<Seen> {
    let count = || -> Result<[u64; 2]> {
        let host = rig.host.run(counters::netstat)?;
        let wire = rig.wire_side.run(counters::snmp)?;
        let named = |map: &BTreeMap<String, u64>, name: &str| map.get(name).copied().unwrap_or(0);
        Ok([named(&host, "TcpExt.TCPOFOQueue"), named(&wire, "Tcp.RetransSegs")])
    };
    bench.interrupt.sleep(options.warm_up())?;
    let (counts, from) = (count()?, work(bench, carriers)?);
    let (at, bytes) = (Instant::now(), read.load(Ordering::Relaxed));
    bench.interrupt.sleep(options.window())?;
    let (wall, bytes) = (at.elapsed(), read.load(Ordering::Relaxed) - bytes);
    let receive = shares(&from, &work(bench, carriers)?, wall);
    let [early, retransmitted] = count()?;
    let bulk = Bulk {
        megabits: bytes as f64 * 8.0 / wall.as_secs_f64() / 1e6,
        early: early.saturating_sub(counts[0]) as f64,
        retransmitted: retransmitted.saturating_sub(counts[1]) as f64,
    };
    Ok(Seen { receive, bulk: Some(bulk), ..Seen::default() })
}

/// Calls `step` until `over`; a call that waits ends by its timeout.
fn until(over: &AtomicBool, mut step: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<()> {
    use std::io::ErrorKind::{Interrupted, TimedOut, UnexpectedEof, WouldBlock};
    while !over.load(Ordering::Relaxed) {
        match step() {
            Ok(0) => return Err(UnexpectedEof.into()),
            Err(e) if !matches!(e.kind(), Interrupted | TimedOut | WouldBlock) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// A connection from `there` to `here`.
fn connected(there: SocketAddrV4, here: SocketAddrV4) -> std::io::Result<TcpStream> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // It bounds connect as well.
    setsockopt(&fd, sockopt::SendTimeout, &TimeVal::milliseconds(PATIENCE.as_millis() as i64))?;
    bind(fd.as_raw_fd(), &SockaddrIn::from(there))?;
    connect(fd.as_raw_fd(), &SockaddrIn::from(here))?;
    Ok(TcpStream::from(fd))
}

fn panels(arms: &[Arm], taken: &Taken) -> Vec<Panel> {
    let loads = LOADS.map(|(_, name)| name);
    let show = |title: &str, unit: &str, digits, value: &dyn Fn(&Seen) -> Option<f64>| {
        let mut panel = Panel {
            title: title.into(),
            x: Scale::named("flows", &loads),
            y: Scale::of(unit, digits, false),
            ..Panel::default()
        };
        for (a, arm) in arms.iter().enumerate() {
            for load in 0..LOADS.len() {
                let values: Vec<f64> =
                    taken.get(&(a, load)).into_iter().flatten().filter_map(value).collect();
                panel.add(&arm.name, Mark::of(load as f64, &values));
            }
        }
        panel
    };
    let of_bulk = |value: fn(&Bulk) -> f64| move |seen: &Seen| seen.bulk.as_ref().map(value);
    vec![
        show("offered", "k/s", 0, &|s| s.goodput().map(|_| s.trial.offered_pps / 1e3)),
        show("goodput", "k/s", 0, &|s| s.goodput().map(|pps| pps / 1e3)),
        show("overtaken by others of their flow", "% of the datagrams read", 2, &|s| {
            s.overtaken().map(|share| 100.0 * share)
        }),
        show("wait", "ms, median", 1, &|s| s.trial.latency_us.map(|wait| wait.p50 / 1e3)),
        show("goodput of TCP", "Mbit/s", 0, &of_bulk(|b| b.megabits)),
        show("TCP segments out of order", "in the window", 0, &of_bulk(|b| b.early)),
        show("TCP segments sent again", "in the window", 0, &of_bulk(|b| b.retransmitted)),
        show("receive work of the hottest CPU", "% of its time", 1, &|s| {
            s.hottest().map(|share| 100.0 * share)
        }),
        show("evenness of receive work over the CPUs", "Jain's index, 1 is even", 3, &Seen::jain),
    ]
}

/// Medians of the trials that count.
fn median(taken: &Taken, a: usize, load: usize, value: impl Fn(&Seen) -> Option<f64>) -> Option<f64> {
    let of = taken.get(&(a, load)).into_iter().flatten().filter(|s| s.trial.void.is_none());
    stats::median(&of.filter_map(value).collect::<Vec<_>>())
}

/// The report says that connections are the better unit.
const BETTER: f64 = 1.0;
/// As in `steering`: two CPUs in place of one, less the wire's part.
const GAIN_MIN: f64 = 1.2;
const JAIN_MIN: f64 = 0.9;
/// One datagram of a thousand: that order is lost must be seen, else that it is kept says nothing.
const OVERTAKEN_MIN: f64 = 0.001;

fn verdict(taken: &Taken) -> Vec<Verdict> {
    let goodput = |a| median(taken, a, MANY, Seen::goodput);
    let tcp = |a| median(taken, a, BULK, |s| s.bulk.map(|b| b.megabits));
    let all = || [ONE, MANY].iter().filter_map(|load| taken.get(&(FLOW, *load))).flatten();
    let read: u64 = all().map(|s| s.read).sum();
    let overtaken = (read > 0).then(|| all().map(|s| s.overtaken as f64).sum());
    let sprayed = |load| median(taken, MESSAGE, load, Seen::overtaken);
    vec![
        claim("ES-06", &format!("per-connection: overtaken of {read} datagrams read"), overtaken, 0.0),
        at_least("ES-06", "per-message: share overtaken, one flow", sprayed(ONE), OVERTAKEN_MIN),
        at_least("ES-06", "per-message: share overtaken, 126 flows", sprayed(MANY), OVERTAKEN_MIN),
        at_least(
            "ES-06",
            "goodput of TCP, per-connection / per-message",
            ratio(tcp(FLOW), tcp(MESSAGE)),
            BETTER,
        ),
        at_least(
            "ES-06",
            "goodput of 126 UDP flows, per-connection / per-message",
            ratio(goodput(FLOW), goodput(MESSAGE)),
            BETTER,
        ),
        at_least(
            "BH-12",
            "goodput of 126 UDP flows, per-connection / one-cpu",
            ratio(goodput(FLOW), goodput(FIRST)),
            GAIN_MIN,
        ),
        at_least(
            "BH-08",
            "evenness of receive work, 126 UDP flows, per-connection",
            median(taken, FLOW, MANY, Seen::jain),
            JAIN_MIN,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagrams(goodput: f64, receive: [f64; 2], overtaken: u64) -> Vec<Seen> {
        let trial = Trial { goodput_pps: goodput, ..Trial::default() };
        vec![Seen { trial, receive: receive.to_vec(), read: 1000, overtaken, bulk: None }]
    }

    fn tcp(megabits: f64) -> Vec<Seen> {
        vec![Seen { bulk: Some(Bulk { megabits, ..Bulk::default() }), ..Seen::default() }]
    }

    fn holds(taken: &Taken) -> Vec<bool> {
        verdict(taken).iter().map(|v| v.holds).collect()
    }

    #[test]
    fn flows_keep_their_order_and_are_the_better_unit() {
        let mut taken = Taken::from([
            ((FIRST, MANY), datagrams(100.0, [0.0, 0.9], 0)),
            ((FLOW, ONE), datagrams(100.0, [0.0, 0.9], 0)),
            ((FLOW, MANY), datagrams(200.0, [0.8, 0.9], 0)),
            ((MESSAGE, ONE), datagrams(190.0, [0.9, 0.9], 300)),
            ((MESSAGE, MANY), datagrams(190.0, [0.9, 0.9], 30)),
            ((FLOW, BULK), tcp(900.0)),
            ((MESSAGE, BULK), tcp(500.0)),
        ]);
        assert_eq!(holds(&taken), [true; 7]);
        assert_eq!(verdict(&taken)[0].claim, "per-connection: overtaken of 2000 datagrams read");
        // One datagram of one flow is enough for a miss.
        taken.insert((FLOW, ONE), datagrams(100.0, [0.0, 0.9], 1));
        taken.insert((FLOW, MANY), datagrams(110.0, [0.1, 0.9], 0));
        taken.insert((MESSAGE, ONE), datagrams(190.0, [0.9, 0.9], 0));
        taken.insert((MESSAGE, MANY), datagrams(190.0, [0.9, 0.9], 0));
        taken.insert((MESSAGE, BULK), tcp(901.0));
        assert_eq!(holds(&taken), [false; 7]);
        assert_eq!(holds(&Taken::new()), [false; 7], "what was not measured does not hold");
    }

    #[test]
    fn no_flow_has_a_cpu_by_the_order_of_its_packets() {
        let mut cpus = BTreeMap::<(u8, u32), Vec<usize>>::new();
        let mut next = [0u32; PROGRAMS as usize];
        for packet in 0..2 * 2 * FLOWS as usize {
            let program = SCHEDULE[packet % SCHEDULE.len()];
            let number = &mut next[usize::from(program)];
            cpus.entry((program, *number % FLOWS)).or_default().push(packet % 2);
            *number += 1;
        }
        assert_eq!(cpus.len(), 126);
        assert!(cpus.values().all(|at| at.len() == 2 && at[0] != at[1]), "{cpus:?}");
    }

    #[test]
    fn a_call_that_waits_ends_with_the_load() {
        let over = AtomicBool::new(false);
        let mut calls = 0;
        let waits = until(&over, || {
            calls += 1;
            over.store(calls == 2, Ordering::Relaxed);
            Err(std::io::ErrorKind::WouldBlock.into())
        });
        assert!(waits.is_ok() && calls == 2);
        assert!(until(&AtomicBool::new(false), || Ok(0)).is_err(), "a connection that ended");
    }
}
