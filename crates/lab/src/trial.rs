//! One trial: a fresh world, one load, one ledger.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kern::wire::counters::{self, CpuTimes};
use kern::wire::source::{Class, Meter, Phase, Sent, Wire};
use kern::wire::{ethtool, tasks};
use results::{CpuShares, Drops, LatencyUs, Trial};
use serde_json::Value;

use crate::arm::{Arm, Host};
use crate::guard::Guard;
use crate::program::Program;
use crate::rig::{Cpus, Rig, Wiring};
use crate::signal::Interrupt;
use crate::{Error, Result};

/// Port of the sink.
pub const PORT: u16 = 9000;
/// The load goes on this long after the window, so that the reading at its end is taken under load.
const TAIL: Duration = Duration::from_millis(50);
/// Queues count as drained when nothing has moved for this long: longer than any flush timeout.
const QUIET: Duration = Duration::from_millis(30);
/// Longest wait for queues to drain.
const DRAIN: Duration = Duration::from_secs(3);
/// A trial is void beyond this shortfall of the rate, in percent.
const RATE_MISSED_MAX: f64 = 5.0;
/// A trial is void beyond this share of other work on the wire CPU.
const OTHER_WORK_MAX: f64 = 0.02;

/// What all trials of a run share.
#[derive(Debug)]
pub struct Bench {
    /// The source and the meters.
    pub wire: Wire,
    /// The CPUs.
    pub cpus: Cpus,
    /// Path of udp-sink.
    pub sink: PathBuf,
    /// Path of hog.
    pub hog: PathBuf,
    /// Path of weir, if any arm needs it.
    pub weir: Option<PathBuf>,
    /// Rounds of work per datagram, the same in all trials.
    pub loops: u64,
    /// Set by SIGINT and SIGTERM.
    pub interrupt: Interrupt,
}

/// The load of a trial.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Packets/s; `None` for all that the wire gives.
    pub rate: Option<f64>,
    /// Frames back to back.
    pub burst: u32,
    /// Not counted in rates, but in the ledger.
    pub warm_up: Duration,
    /// The window.
    pub window: Duration,
    /// Compute-bound programs on the host CPU.
    pub hogs: u32,
}

/// What a trial gave.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The numbers for the results.
    pub trial: Trial,
    /// What the guard said about itself.
    pub status: Vec<Value>,
    /// Share of the window that the programs of class hog and consumer really ran, softirq taken off.
    pub programs_share: f64,
    /// Polls of the device on CPUs other than the host's.
    pub foreign_polls: u64,
    /// Packets handed up there.
    pub foreign_packets: u64,
}

/// Readings at one end of the window.
struct Edge {
    at: Instant,
    host: Meter,
    cpu: CpuTimes,
    carriers_ns: u64,
    guard_ns: u64,
}

/// The programs of a trial.
struct Cast {
    sink: Program,
    hogs: Vec<Program>,
    guard: Option<Guard>,
}

impl Bench {
    /// Runs one trial of `arm`.
    ///
    /// # Errors
    /// If the world cannot be built or a program fails; everything that was built is gone again.
    pub fn trial(&self, arm: &Arm, offer: &Offer) -> Result<Outcome> {
        self.interrupt.check()?;
        let rig = Rig::new(&self.wire, self.cpus, arm.wiring, 1)?;
        let input = &rig.inputs[0];
        // Dropped, and so detached, before the rig.
        let _program = match &arm.host {
            Host::Drop => Some(self.wire.attach_drop(&rig.host, input.far.index)?),
            Host::Limit(rate) => Some(self.wire.attach_limit(&rig.host, input.far.index, *rate, 64)?),
            Host::Plain | Host::Guard(_) => None,
        };
        self.wire.meter(&rig.host, input.far.index)?;
        let mut cast = self.cast(&rig, arm, offer.hogs)?;
        let before = Ledger::read(self, &rig)?;
        let outcome = self.run(&rig, arm, offer, &mut cast, before);
        self.dismiss(&rig, &cast);
        outcome
    }

    fn cast(&self, rig: &Rig<'_>, arm: &Arm, hogs: u32) -> Result<Cast> {
        let cpus = ["--cpu".into(), self.cpus.host.to_string(), "--control-cpu".into(), self.cpus.wire.to_string()];
        let bind = format!("{}:{PORT}", rig.inputs[0].address);
        let sink_args = [&cpus[..], &["--bind".into(), bind, "--work-loops".into(), self.loops.to_string()]].concat();
        let sink = Program::start(&self.sink, &rig.host, &sink_args)?;
        self.wire.watch(sink.id(), Class::Consumer)?;
        let mut cast = Cast { sink, hogs: Vec::new(), guard: None };
        for _ in 0..hogs {
            let hog = Program::start(&self.hog, &rig.host, &cpus)?;
            self.wire.watch(hog.id(), Class::Hog)?;
            cast.hogs.push(hog);
        }
        for carrier in &rig.carriers {
            self.wire.watch(*carrier as u32, Class::Carrier)?;
        }
        if let Host::Guard(options) = &arm.host {
            let weir = self.weir.as_deref();
            let weir = weir.ok_or_else(|| Error::Usage(format!("arm {} needs the weir program", arm.name)))?;
            let guard = Guard::start(weir, &rig.host, self.cpus.host, &[&rig.inputs[0].far.name], options)?;
            self.wire.watch(guard.id(), Class::Guard)?;
            cast.guard = Some(guard);
        }
        Ok(cast)
    }

    fn dismiss(&self, rig: &Rig<'_>, cast: &Cast) {
        let programs = cast.hogs.iter().map(Program::id).chain([cast.sink.id()]);
        let guard = cast.guard.iter().map(Guard::id);
        programs.chain(guard).chain(rig.carriers.iter().map(|c| *c as u32)).for_each(|pid| self.wire.unwatch(pid));
    }

    fn edge(&self, rig: &Rig<'_>, cast: &Cast) -> Result<Edge> {
        let mut carriers_ns = 0;
        for carrier in &rig.carriers {
            carriers_ns += tasks::cpu_ns(*carrier)?;
        }
        let guard_ns = cast.guard.as_ref().map_or(Ok(0), |g| tasks::process_cpu_ns(g.id() as i32))?;
        Ok(Edge {
            at: Instant::now(),
            host: rig.meter(|cpu| cpu == self.cpus.host)?,
            cpu: counters::cpu_times(self.cpus.host)?,
            carriers_ns,
            guard_ns,
        })
    }

    fn run(
        &self,
        rig: &Rig<'_>,
        arm: &Arm,
        offer: &Offer,
        cast: &mut Cast,
        before: Ledger,
    ) -> Result<Outcome> {
        let phase = |duration| Phase { duration, rate: offer.rate };
        let phases = vec![phase(offer.warm_up), phase(offer.window), phase(TAIL)];
        let load = rig.load(phases, offer.burst, rig.target(0, PORT, 1));
        let wire_before = rig.meter(|cpu| cpu == self.cpus.wire)?;
        let foreign_before = rig.meter(|cpu| cpu != self.cpus.host)?;
        let running = self.wire.start(&rig.wire_side, self.cpus.wire, &load)?;
        self.interrupt.sleep(offer.warm_up)?;
        cast.sink.ask("reset")?;
        for hog in &mut cast.hogs {
            hog.ask("reset")?;
        }
        let from = self.edge(rig, cast)?;
        self.interrupt.sleep(offer.window)?;
        let window = cast.sink.ask("report")?;
        let hog_reports = cast.hogs.iter_mut().map(|h| h.ask("report")).collect::<Result<Vec<_>>>()?;
        let to = self.edge(rig, cast)?;
        let sent = running.wait()?;
        let wire_meter = rig.meter(|cpu| cpu == self.cpus.wire)?.since(&wire_before);
        let last = self.drain(cast)?;
        let foreign = rig.meter(|cpu| cpu != self.cpus.host)?.since(&foreign_before);
        let status = cast.guard.as_ref().map(Guard::status).unwrap_or_default();

        let after = Ledger::read(self, rig)?;
        let mut trial = after.since(&before).close(arm, &sent, &last);
        let shares = Shares::new(&from, &to, &window, &hog_reports);
        let seconds = offer.window.as_secs_f64();
        trial.offered_pps = sent.by_phase.get(1).map_or(0.0, |n| *n as f64 / seconds);
        let window_ns = number(&window, "window_ns").max(1) as f64;
        trial.goodput_pps = match arm.host {
            // Nothing is read; what reached the end of the way counts.
            Host::Drop => to.host.since(&from.host).packets as f64 / (to.at - from.at).as_secs_f64(),
            _ => number(&window, "received") as f64 / window_ns * 1e9,
        };
        trial.user_share = Some(shares.cpu.program + shares.cpu.hog);
        trial.net_share = Some(shares.cpu.softirq + shares.cpu.weir);
        trial.cpu = Some(shares.cpu);
        trial.steal_share = Some(shares.steal);
        trial.polls = Some(to.host.since(&from.host).polls);
        trial.latency_us = latency(&window);
        trial.rate_missed_percent = offer.rate.map(|rate| (1.0 - trial.offered_pps / rate) * 100.0);
        let void = trial.void.take().or_else(|| void(rig.wiring, &trial, &sent, &wire_meter));
        trial.void = void;
        Ok(Outcome {
            programs_share: shares.cpu.program + shares.cpu.hog,
            foreign_polls: foreign.polls,
            foreign_packets: foreign.packets,
            trial,
            status,
        })
    }

    /// Waits until the sink has read all that is still queued, and answers its last report.
    fn drain(&self, cast: &mut Cast) -> Result<Value> {
        let end = Instant::now() + DRAIN;
        let mut last = (u64::MAX, Instant::now());
        loop {
            let report = cast.sink.ask("report")?;
            let total = number(&report, "total_received");
            let queued = number(&report, "queued_bytes");
            if total != last.0 {
                last = (total, Instant::now());
            }
            // The kernel takes read datagrams off the queue's size late, so a rest without movement is no queue.
            let quiet = last.1.elapsed() > if queued == 0 { QUIET } else { QUIET * 4 };
            if quiet || Instant::now() > end {
                return Ok(report);
            }
            self.interrupt.sleep(Duration::from_millis(3))?;
        }
    }
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or(0)
}

fn latency(report: &Value) -> Option<LatencyUs> {
    let us = |name: &str| report["latency_us"][name].as_f64();
    if number(report, "latency_count") == 0 {
        return None;
    }
    Some(LatencyUs { p50: us("p50")?, p99: us("p99")?, p999: us("p999")? })
}

fn void(wiring: Wiring, trial: &Trial, sent: &Sent, wire: &Meter) -> Option<String> {
    if let Some(missed) = trial.rate_missed_percent.filter(|m| m.abs() > RATE_MISSED_MAX) {
        return Some(format!("the source missed its rate by {missed:.1} %"));
    }
    let elapsed = sent.end_ns.saturating_sub(sent.start_ns).max(1);
    // Softirq work runs inside the sending thread and in its CPU time. Steering's driver part is the declared
    // exception.
    let inside = if wiring == Wiring::Rps { 0 } else { wire.softirq_ns };
    let own = sent.cpu_ns.saturating_sub(inside).min(elapsed);
    let other = 1.0 - own as f64 / elapsed as f64;
    (other > OTHER_WORK_MAX).then(|| format!("the wire CPU did {:.1} % of other work", other * 100.0))
}

/// Where the host CPU's time went.
struct Shares {
    cpu: CpuShares,
    steal: f64,
}

impl Shares {
    fn new(from: &Edge, to: &Edge, sink: &Value, hogs: &[Value]) -> Shares {
        let wall = (to.at - from.at).as_nanos().max(1) as f64;
        let meter = to.host.since(&from.host);
        let stolen = |class: Class| meter.stolen_ns[class as usize] as f64;
        // CPU time of a task holds the softirq work that interrupted it; that is taken off once, and softirq
        // time is taken whole from its own meter.
        let net = |ns: f64, class: Class| ((ns - stolen(class)) / wall).max(0.0);
        let ticks = (to.cpu.total - from.cpu.total).max(1) as f64;
        let consumer_window = number(sink, "window_ns").max(1) as f64 / wall;
        let hog_ns: u64 = hogs.iter().map(|h| number(h, "cpu_ns")).sum();
        let cpu = CpuShares {
            irq: 0.0,
            softirq: meter.softirq_ns as f64 / wall
                + net((to.carriers_ns - from.carriers_ns) as f64, Class::Carrier),
            weir: net(to.guard_ns.saturating_sub(from.guard_ns) as f64, Class::Guard),
            program: net(number(sink, "cpu_ns") as f64 / consumer_window, Class::Consumer),
            hog: net(hog_ns as f64, Class::Hog),
            idle: (to.cpu.idle - from.cpu.idle) as f64 / ticks,
        };
        Shares { cpu, steal: (to.cpu.steal - from.cpu.steal) as f64 / ticks }
    }
}

/// Every place where a packet can be lost, each with its own counter.
#[derive(Debug, Clone, Copy)]
struct Ledger {
    /// Frames that the hop's queue or its thread dropped (tracepoints xdp_cpumap_*).
    wire: u64,
    /// Frames that found the device's ring full (driver statistic of the sending end).
    ring: u64,
    /// Frames that an XDP program dropped (driver statistic).
    xdp: u64,
    /// Frames for which the driver had no memory (driver statistic).
    memory: u64,
    /// Packets that found a CPU's backlog full (softnet_stat, the whole machine).
    backlog: u64,
    /// Packets that the IP and UDP layers refused for other reasons than a full socket (snmp).
    ip: u64,
    /// Datagrams that the UDP layer dropped for full sockets (snmp).
    udp: u64,
}

impl Ledger {
    fn read(bench: &Bench, rig: &Rig<'_>) -> Result<Ledger> {
        let input = &rig.inputs[0];
        let near = rig.wire_side.run(|| ethtool::statistics(&input.near.name))?;
        let (far, snmp) =
            rig.host.run(|| Ok((ethtool::statistics(&input.far.name)?, counters::snmp()?)))?;
        let meters = bench.wire.meters()?;
        let named = |map: &std::collections::BTreeMap<String, u64>, name: &str| {
            map.get(name).copied().ok_or_else(|| Error::Missing(format!("this kernel has no counter {name}")))
        };
        let full = named(&snmp, "Udp.RcvbufErrors")? + snmp.get("Udp.MemErrors").copied().unwrap_or(0);
        let ip = ["Ip.InHdrErrors", "Ip.InAddrErrors", "Ip.InUnknownProtos", "Ip.InDiscards", "Udp.NoPorts"];
        let refused = ip.iter().map(|name| named(&snmp, name)).sum::<Result<u64>>()?;
        Ok(Ledger {
            wire: meters.iter().map(|m| m.hop_enqueue_drops + m.hop_thread_drops).sum(),
            ring: named(&near, "tx_queue_0_xdp_xmit_errors")?,
            xdp: named(&far, "rx_queue_0_xdp_drops")?,
            memory: named(&far, "rx_queue_0_drops")?,
            backlog: counters::backlog_drops()?,
            ip: refused + named(&snmp, "Udp.InErrors")?.saturating_sub(full),
            udp: full,
        })
    }

    fn since(&self, before: &Ledger) -> Ledger {
        Ledger {
            wire: self.wire - before.wire,
            ring: self.ring - before.ring,
            xdp: self.xdp - before.xdp,
            memory: self.memory - before.memory,
            backlog: self.backlog - before.backlog,
            ip: self.ip - before.ip,
            udp: self.udp - before.udp,
        }
    }

    /// The trial's ledger. The socket's own drop counter is the bucket; the UDP layer's must agree with it.
    fn close(&self, arm: &Arm, sent: &Sent, sink: &Value) -> Trial {
        let socket = number(sink, "drops");
        let mut delivered = number(sink, "total_received");
        let mut drops = Drops::new();
        let xdp = match arm.host {
            Host::Drop => {
                delivered += self.xdp;
                None
            }
            Host::Limit(_) => Some("limit"),
            Host::Plain | Host::Guard(_) => Some(results::SHED),
        };
        let places = [
            ("wire", self.wire),
            ("ring", self.ring),
            ("memory", self.memory),
            ("backlog", self.backlog),
            ("ip", self.ip),
            ("socket", socket),
        ];
        for (place, count) in places.into_iter().chain(xdp.map(|place| (place, self.xdp))) {
            if count > 0 {
                drops.insert(place.into(), count);
            }
        }
        let accounted = delivered + drops.values().sum::<u64>();
        let void = (socket != self.udp)
            .then(|| format!("the socket counts {socket} drops, the UDP layer {}", self.udp))
            .or_else(|| (sent.refused > 0).then(|| format!("{} frames had no device", sent.refused)));
        Trial {
            sent: sent.total(),
            delivered,
            unaccounted: sent.total() as i64 - accounted as i64,
            drops,
            void,
            ..Trial::default()
        }
    }
}
