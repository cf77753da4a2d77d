//! One trial: a fresh world, one load, one ledger.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kern::wire::source::{Class, Edges, Load, Meter, Phase, Sent, Wire};
use kern::wire::{counters, tasks};
use results::{CpuShares, Mode, OutputWait, Trial};
use serde_json::Value;

use crate::arm::{Arm, Host};
use crate::consumer::{self, Consumer, Kind, Report, Setup};
use crate::guard::Guard;
use crate::ledger::Ledger;
use crate::program::Program;
use crate::rig::{Cpus, Rig, Wiring};
use crate::signal::Interrupt;
use crate::{Error, Result};

/// The load goes on this long after the window, so that the reading at its end is taken under load.
const TAIL: Duration = Duration::from_millis(50);
/// A trial is void beyond this shortfall of the rate, in percent.
const RATE_MISSED_MAX: f64 = 5.0;
/// A trial is void beyond this share of other work on the wire CPU.
const WIRE_OTHER_MAX: f64 = 0.02;
/// A trial is void beyond this share of work on the host CPU that belongs neither to the experiment nor to
/// packets. Only known where cpuacct tells CPU time by CPU.
const HOST_OTHER_MAX: f64 = 0.03;
/// Time between two bursts of a load, as far as the burst's limit allows.
const BURST_EVERY: Duration = Duration::from_micros(20);
/// Most frames back to back, the kernel's own default for live frames.
const BURST_MAX: u32 = 64;

/// What all trials of a run share.
#[derive(Debug)]
pub struct Bench {
    /// The source and the meters.
    pub wire: Wire,
    /// The CPUs.
    pub cpus: Cpus,
    /// The program that reads.
    pub consumer: Setup,
    /// Whether waits in the output of a forwarding host are measured; that costs time for each packet.
    pub watch_output: bool,
    /// Path of hog.
    pub hog: PathBuf,
    /// Path of weir, if any arm needs it.
    pub weir: Option<PathBuf>,
    /// Raised by SIGINT and SIGTERM.
    pub interrupt: Interrupt,
}

/// The load of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// Packets/s; `None` for all that the wire gives.
    pub rate: Option<f64>,
    /// Not counted in rates, but in the ledger.
    pub warm_up: Duration,
    /// The window.
    pub window: Duration,
    /// Compute-bound programs on the host CPU.
    pub hogs: u32,
}

/// Frames back to back at a rate: those of 20 us, from 1 to 64.
#[must_use]
pub fn burst(rate: Option<f64>) -> u32 {
    rate.map_or(BURST_MAX, |r| ((r * BURST_EVERY.as_secs_f64()) as u32).clamp(1, BURST_MAX))
}

/// What a trial gave.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The numbers for the results.
    pub trial: Trial,
    /// How the source was served for most of the window.
    pub mode: Option<Mode>,
    /// What the guard said about itself.
    pub status: Vec<Value>,
    /// Polls of the device on CPUs other than the host's.
    pub foreign_polls: u64,
    /// Packets handed up there.
    pub foreign_packets: u64,
    /// Share of the window's packets that the guard's own turns handed up.
    pub own_share: f64,
    /// Share of the host CPU that went to neither the experiment nor packets, where it is known.
    pub host_other: Option<f64>,
    /// Length of the whole load in seconds.
    pub seconds: f64,
    /// Takeovers and releases by the guard during the load.
    pub switches: u64,
    /// Datagrams that the program read in the window, and those that its full socket dropped.
    pub window: (u64, u64),
}

/// Readings at one end of the window.
pub(crate) struct Edge {
    at: Instant,
    host: Meter,
    cpu: counters::CpuTimes,
    tasks_ns: Option<u64>,
    carriers_ns: u64,
    guard_ns: u64,
}

impl Edge {
    /// Receive work of the host CPU so far.
    pub(crate) fn meter(&self) -> &Meter {
        &self.host
    }

    /// Time to a later reading.
    pub(crate) fn until(&self, to: &Edge) -> Duration {
        to.at - self.at
    }
}

/// What a trial's world holds beside its arm.
pub(crate) struct Scene {
    /// Compute-bound programs.
    pub(crate) hogs: u32,
    /// Veth pairs, each with a consumer of its own.
    pub(crate) inputs: u8,
    /// Whether the consumers count per millisecond.
    pub(crate) series: bool,
    /// Where the guard runs; `None`: on the host CPU.
    pub(crate) guard_cpus: Option<Vec<usize>>,
}

impl Default for Scene {
    fn default() -> Scene {
        Scene { hogs: 0, inputs: 1, series: false, guard_cpus: None }
    }
}

/// The programs of a trial.
pub(crate) struct Cast {
    /// One for each input.
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) hogs: Vec<Program>,
    pub(crate) guard: Option<Guard>,
    /// Kernel threads that carry packets for the host, with the host CPU's ksoftirqd.
    pub(crate) carriers: Vec<i32>,
    /// Kernel workers of the host CPU, where they work for packets that wait for a verdict.
    pub(crate) workers: Vec<i32>,
}

impl Bench {
    /// Runs one trial of `arm`.
    ///
    /// # Errors
    /// If the world cannot be built or a program fails; everything that was built is gone again.
    pub fn trial(&self, arm: &Arm, offer: &Offer) -> Result<Outcome> {
        self.stage(arm, &Scene { hogs: offer.hogs, ..Scene::default() }, |rig, cast, before| {
            self.run(rig, arm, offer, cast, before)
        })
    }

    /// Builds the world of `arm`, lets `act` run in it, and takes it down.
    pub(crate) fn stage<T>(
        &self,
        arm: &Arm,
        scene: &Scene,
        act: impl FnOnce(&Rig<'_>, &mut Cast, &Ledger) -> Result<T>,
    ) -> Result<T> {
        self.interrupt.check()?;
        let mut rig = Rig::new(&self.wire, self.cpus, arm.wiring, scene.inputs)?;
        if self.consumer.kind.forwards() {
            rig.forward(self.consumer.rules())?;
            if arm.slow_output {
                rig.slow_output()?;
            }
        }
        let input = &rig.inputs[0];
        // Dropped, and so detached, before the rig.
        let _program = match &arm.host {
            Host::Drop { read } => Some(self.wire.attach_drop(&rig.host, input.far.index, *read)?),
            Host::Limit(rate) => {
                Some(self.wire.attach_limit(&rig.host, input.far.index, *rate, BURST_MAX)?)
            }
            Host::Plain | Host::Guard(_) => None,
        };
        self.wire.meter(&rig.host, input.far.index)?;
        let result = self.cast(&rig, arm, scene).and_then(|mut cast| {
            let before = Ledger::read(&self.wire, &rig)?;
            act(&rig, &mut cast, &before)
        });
        self.wire.unwatch_all()?;
        result
    }

    fn cast(&self, rig: &Rig<'_>, arm: &Arm, scene: &Scene) -> Result<Cast> {
        let sockets = self.consumer.sockets.max(1);
        rig.share_input(sockets)?;
        let kind = if arm.unscreened { Kind::Forward } else { self.consumer.kind };
        let setup = Setup { kind, rcvbuf: arm.rcvbuf.or(self.consumer.rcvbuf), ..self.consumer.clone() };
        let start = |(input, socket)| Consumer::start(&setup, rig, input, socket, scene.series);
        let places = (0..rig.inputs.len()).flat_map(|input| (0..sockets).map(move |socket| (input, socket)));
        let consumers = places.map(start).collect::<Result<Vec<_>>>()?;
        consumers.iter().try_for_each(|consumer| consumer::watch(&self.wire, consumer))?;
        let hogs = consumer::hogs(&self.hog, &rig.host, self.cpus, scene.hogs)?;
        hogs.iter().try_for_each(|hog| self.wire.watch(hog.id(), Class::Hog))?;
        let ksoftirqd = format!("ksoftirqd/{}", self.cpus.host);
        let carriers: Vec<i32> =
            rig.carriers.iter().copied().chain(tasks::find(|name| name == ksoftirqd)?).collect();
        carriers.iter().try_for_each(|pid| self.wire.watch(*pid as u32, Class::Carrier))?;
        // From 6.18 on the kernel resizes the table of what waits for a verdict in its workers, a thousand times a second.
        let worker = format!("kworker/{}:", self.cpus.host);
        let workers = match kind {
            Kind::Screen => tasks::find_all(|name| name.starts_with(&worker))?,
            _ => Vec::new(),
        };
        workers.iter().try_for_each(|pid| self.wire.watch(*pid as u32, Class::Carrier))?;
        let guard = match &arm.host {
            Host::Guard(options) => {
                let weir = self.weir.as_deref();
                let weir =
                    weir.ok_or_else(|| Error::Usage(format!("arm {} needs the weir program", arm.name)))?;
                let names: Vec<&str> = rig.inputs.iter().map(|i| i.far.name.as_str()).collect();
                let host = vec![self.cpus.host];
                let cpus = scene.guard_cpus.as_ref().unwrap_or(&host);
                let guard = Guard::start(weir, &rig.host, cpus, &names, options)?;
                self.wire.watch(guard.id(), Class::Guard)?;
                Some(guard)
            }
            _ => None,
        };
        Ok(Cast { consumers, hogs, guard, carriers, workers })
    }

    pub(crate) fn edge(&self, rig: &Rig<'_>, cast: &Cast) -> Result<Edge> {
        let mut carriers_ns = 0;
        for carrier in &cast.carriers {
            carriers_ns += tasks::cpu_ns(*carrier)?;
        }
        // One that has nothing to do may end.
        carriers_ns += cast.workers.iter().filter_map(|worker| tasks::cpu_ns(*worker).ok()).sum::<u64>();
        let guard_ns = cast.guard.as_ref().map_or(Ok(0), |g| tasks::process_cpu_ns(g.id() as i32))?;
        Ok(Edge {
            at: Instant::now(),
            host: rig.meter(|cpu| cpu == self.cpus.host)?,
            cpu: counters::cpu_times(self.cpus.host)?,
            tasks_ns: counters::tasks_ns(self.cpus.host),
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
        before: &Ledger,
    ) -> Result<Outcome> {
        let phase = |duration| Phase { duration, rate: offer.rate };
        let phases = vec![phase(offer.warm_up), phase(offer.window), phase(TAIL)];
        let load = self.load(rig, phases, burst(offer.rate));
        let wire_before = rig.meter(|cpu| cpu == self.cpus.wire)?;
        let foreign_before = rig.meter(|cpu| cpu != self.cpus.host)?;
        self.wire.look_for_edges(1, 0)?;
        // What it used before belongs to nobody's ledger.
        cast.guard.as_ref().map(Guard::handle_frames);
        let watching =
            rig.output.as_ref().filter(|_| self.watch_output).map(|out| {
                self.wire.watch_output((&rig.host, out.near.index), (&rig.wire_side, out.far.index))
            });
        let watching = watching.transpose()?;
        let running = self.wire.start(&rig.wire_side, self.cpus.wire, &load)?;
        self.interrupt.sleep(offer.warm_up)?;
        cast.consumers.iter_mut().try_for_each(|c| c.reset(rig))?;
        for hog in &mut cast.hogs {
            hog.ask("reset")?;
        }
        let lost_from = Ledger::read(&self.wire, rig)?;
        let from = self.edge(rig, cast)?;
        self.interrupt.sleep(offer.window)?;
        let reports = cast.consumers.iter_mut().map(|c| c.report(rig)).collect::<Result<Vec<_>>>()?;
        let window = consumer::together(&reports);
        let hogs_ns = hogs_ns(cast)?;
        let to = self.edge(rig, cast)?;
        let lost = Ledger::read(&self.wire, rig)?.since(&lost_from);
        let sent = running.wait()?;
        let edges = self.wire.edges()?;
        let wire_meter = rig.meter(|cpu| cpu == self.cpus.wire)?.since(&wire_before);
        // Hogs would keep a NAPI thread of low priority from emptying the ring.
        cast.hogs.clear();
        let last = consumer::drain(&mut cast.consumers, rig, |t| self.interrupt.sleep(t))?;
        let foreign = rig.meter(|cpu| cpu != self.cpus.host)?.since(&foreign_before);
        let status = cast.guard.as_ref().map(Guard::status).unwrap_or_default();

        let handle = cast.guard.as_ref().map_or(0, Guard::handle_frames);
        let mut trial = Ledger::read(&self.wire, rig)?.since(before).close(&arm.host, &sent, &last, handle);
        if watching.is_some() {
            let (starved, longest) = self.wire.output_waits()?;
            let load_ns = sent.end_ns.saturating_sub(sent.start_ns).max(1);
            trial.output = Some(OutputWait {
                starved_share: starved.as_nanos() as f64 / load_ns as f64,
                longest_us: longest.as_secs_f64() * 1e6,
            });
        }
        let shares = Shares::new(&from, &to, &window, hogs_ns);
        let meter = to.host.since(&from.host);
        trial.offered_pps = sent.by_phase.get(1).map_or(0.0, |n| *n as f64 / offer.window.as_secs_f64());
        let offered = sent.by_phase.get(1).copied().filter(|offered| *offered > 0);
        // What a host drops by design is what it delivers.
        let counts = !matches!(arm.host, Host::Drop { .. });
        trial.window_loss = offered.filter(|_| counts).map(|offered| lost.dropped() as f64 / offered as f64);
        trial.goodput_pps = match arm.host {
            // Nothing is read; what reached the end of the way counts.
            Host::Drop { .. } => meter.packets as f64 / (to.at - from.at).as_secs_f64(),
            _ => window.served as f64 / window.window_ns.max(1) as f64 * 1e9,
        };
        trial.user_share = Some(shares.cpu.program + shares.cpu.hog);
        trial.net_share = Some(shares.cpu.softirq + shares.cpu.weir);
        trial.cpu = Some(shares.cpu);
        trial.steal_share = Some(shares.steal);
        trial.polls = Some(meter.polls);
        trial.latency_us = window.latency;
        trial.rate_missed_percent = offer.rate.map(|rate| (1.0 - trial.offered_pps / rate) * 100.0);
        trial.void =
            trial.void.take().or_else(|| void(rig.wiring, &trial, &sent, &wire_meter)).or_else(|| {
                let other = shares.other.filter(|o| *o > HOST_OTHER_MAX)?;
                Some(format!("the host CPU did {:.1} % of other work", other * 100.0))
            });
        let all = meter.packets.max(1) as f64;
        let own_share = meter.packets_by[Class::Guard as usize] as f64 / all;
        Ok(Outcome {
            mode: Some(if own_share > 0.5 {
                Mode::Poll
            } else if meter.packets_by[Class::Carrier as usize] as f64 > 0.5 * all {
                Mode::Thread
            } else {
                Mode::Interrupt
            }),
            own_share,
            foreign_polls: foreign.polls,
            foreign_packets: foreign.packets,
            host_other: shares.other,
            switches: switches(&edges, sent.end_ns),
            window: (window.served, lost.udp),
            seconds: sent.end_ns.saturating_sub(sent.start_ns) as f64 / 1e9,
            trial,
            status,
        })
    }

    /// A load for all sockets of the first input in turn.
    pub(crate) fn load(&self, rig: &Rig<'_>, phases: Vec<Phase>, burst: u32) -> Load {
        let targets = self.consumer.targets(&rig.inputs[0]);
        let mut load = rig.load(phases, burst, targets[0].clone());
        load.schedule = (0..targets.len() as u8).collect();
        load.targets = targets;
        load
    }

    /// Share of the host CPU that `hogs` hogs and an idle consumer get without any load: what "alone" means.
    ///
    /// # Errors
    /// As [`Bench::trial`].
    pub fn alone(&self, arm: &Arm, hogs: u32, window: Duration) -> Result<f64> {
        self.stage(arm, &Scene { hogs, ..Scene::default() }, |rig, cast, _| {
            self.interrupt.sleep(Duration::from_millis(100))?;
            cast.consumers[0].reset(rig)?;
            for hog in &mut cast.hogs {
                hog.ask("reset")?;
            }
            let from = self.edge(rig, cast)?;
            self.interrupt.sleep(window)?;
            let report = cast.consumers[0].report(rig)?;
            let hogs_ns = hogs_ns(cast)?;
            let shares = Shares::new(&from, &self.edge(rig, cast)?, &report, hogs_ns);
            Ok(shares.cpu.program + shares.cpu.hog)
        })
    }
}

/// Takeovers, and the releases that followed them: all but the last if the guard still polled at the end.
fn switches(edges: &Edges, end_ns: u64) -> u64 {
    /// As in the meter: a guard that has not polled for this long has let go.
    const GAP_NS: u64 = 20_000_000;
    let polling = edges.guard_last_ns.is_some_and(|last| last + GAP_NS > end_ns);
    2 * edges.takeovers - u64::from(polling && edges.takeovers > 0)
}

fn hogs_ns(cast: &mut Cast) -> Result<u64> {
    let mut sum = 0;
    for hog in &mut cast.hogs {
        sum += hog.ask("report")?["cpu_ns"].as_u64().unwrap_or(0);
    }
    Ok(sum)
}

/// Why the source of a trial was not what it should be.
pub(crate) fn void(wiring: Wiring, trial: &Trial, sent: &Sent, wire: &Meter) -> Option<String> {
    if let Some(missed) = trial.rate_missed_percent.filter(|m| m.abs() > RATE_MISSED_MAX) {
        return Some(format!("the source missed its rate by {missed:.1} %"));
    }
    let elapsed = sent.end_ns.saturating_sub(sent.start_ns).max(1);
    // Softirq work runs inside the sending thread and in its CPU time. Steering's driver part is the declared
    // exception.
    let inside = if wiring == Wiring::Rps { 0 } else { wire.softirq_ns };
    let own = sent.cpu_ns.saturating_sub(inside).min(elapsed);
    let other = 1.0 - own as f64 / elapsed as f64;
    (other > WIRE_OTHER_MAX).then(|| format!("the wire CPU did {:.1} % of other work", other * 100.0))
}

/// Where the host CPU's time went.
pub(crate) struct Shares {
    pub(crate) cpu: CpuShares,
    pub(crate) steal: f64,
    pub(crate) other: Option<f64>,
}

impl Shares {
    pub(crate) fn new(from: &Edge, to: &Edge, consumer: &Report, hogs_ns: u64) -> Shares {
        let wall = (to.at - from.at).as_nanos().max(1) as f64;
        let meter = to.host.since(&from.host);
        let stolen = |class: Class| meter.stolen_ns[class as usize] as f64;
        // CPU time of a task holds the softirq work that interrupted it. That is taken off, because softirq time
        // is taken whole from its own meter.
        let net = |ns: f64, class: Class| ((ns - stolen(class)) / wall).max(0.0);
        // The consumer's window is its own, a little shorter than ours.
        let consumer_ns = consumer.cpu_ns as f64 * wall / consumer.window_ns.max(1) as f64;
        let carriers_ns = to.carriers_ns.saturating_sub(from.carriers_ns) as f64;
        let guard_ns = to.guard_ns.saturating_sub(from.guard_ns) as f64;
        let other = to.tasks_ns.zip(from.tasks_ns).map(|(to, from)| {
            let known = consumer_ns + hogs_ns as f64 + carriers_ns + guard_ns;
            ((to.saturating_sub(from) as f64 - known) / wall).max(0.0)
        });
        let softirq = meter.softirq_ns as f64 / wall + net(carriers_ns, Class::Carrier);
        let weir = net(guard_ns, Class::Guard);
        let program = net(consumer_ns, Class::Consumer);
        let hog = net(hogs_ns as f64, Class::Hog);
        let idle = (1.0 - softirq - weir - program - hog - other.unwrap_or(0.0)).max(0.0);
        let ticks = (to.cpu.total - from.cpu.total).max(1) as f64;
        Shares {
            cpu: CpuShares { irq: 0.0, softirq, weir, program, hog, idle },
            steal: (to.cpu.steal - from.cpu.steal) as f64 / ticks,
            other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_those_of_twenty_microseconds() {
        assert_eq!(burst(Some(200.0)), 1);
        assert_eq!(burst(Some(400_000.0)), 8);
        assert_eq!(burst(Some(50e6)), 64);
        assert_eq!(burst(None), 64);
    }

    fn sent() -> Sent {
        Sent { start_ns: 0, end_ns: 1_000_000, cpu_ns: 1_000_000, ..Sent::default() }
    }

    #[test]
    fn a_trial_is_void_if_the_wire_did_something_else() {
        let trial = Trial::default();
        let quiet = Meter::default();
        assert_eq!(void(Wiring::Timer, &trial, &sent(), &quiet), None);
        let disturbed = Sent { cpu_ns: 970_000, ..sent() };
        assert!(void(Wiring::Timer, &trial, &disturbed, &quiet).is_some());
        // The host's work on the wire CPU counts as other work, but for the declared exception.
        let polled = Meter { softirq_ns: 100_000, ..Meter::default() };
        assert!(void(Wiring::Timer, &trial, &sent(), &polled).is_some());
        assert_eq!(void(Wiring::Rps, &trial, &sent(), &polled), None);
    }

    #[test]
    fn a_trial_is_void_if_the_rate_was_missed() {
        let trial = |missed| Trial { rate_missed_percent: Some(missed), ..Trial::default() };
        assert_eq!(void(Wiring::Timer, &trial(4.9), &sent(), &Meter::default()), None);
        assert!(void(Wiring::Timer, &trial(5.1), &sent(), &Meter::default()).is_some());
    }

    fn edge(at: Instant, host: Meter, guard_ns: u64, tasks_ns: u64) -> Edge {
        Edge {
            at,
            host,
            cpu: counters::CpuTimes::default(),
            tasks_ns: Some(tasks_ns),
            carriers_ns: 0,
            guard_ns,
        }
    }

    #[test]
    fn shares_count_softirq_time_once() {
        let start = Instant::now();
        let from = edge(start, Meter::default(), 0, 0);
        let mut meter = Meter { softirq_ns: 300, ..Meter::default() };
        meter.stolen_ns[Class::Consumer as usize] = 200;
        let to = edge(start + Duration::from_nanos(1000), meter, 100, 650);
        let report = Report { window_ns: 1000, cpu_ns: 500, ..Report::default() };
        let shares = Shares::new(&from, &to, &report, 0);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(shares.cpu.program, 0.3);
        close(shares.cpu.softirq, 0.3);
        close(shares.cpu.weir, 0.1);
        close(shares.other.unwrap(), 0.05);
        close(shares.cpu.idle, 0.25);
    }
}
