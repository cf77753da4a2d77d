//! The experiment `shed-cost` (P5): what a packet costs that is shed, with classes and levels on, against the same
//! device with an XDP program that reads the headers and drops.

use std::time::Duration;

use kern::wire::source::Phase;
use results::{Document, Id, Mark, Panel, Role, Scale, Verdict, stats};

use crate::arm::{self, Arm, Host};
use crate::consumer::{Kind, Report};
use crate::experiment::{Experiment, Simulated};
use crate::options::Options;
use crate::plan::{self, Progress, Runner, result_of};
use crate::probe::Probe;
use crate::rig::Wiring;
use crate::takes::Choice;
use crate::trial::{Bench, Scene, Shares, burst};
use crate::{Error, Result};

/// The experiment `shed-cost`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "shed-cost",
    about: "CPU time of a packet that is shed, against one that XDP reads and drops",
    takes: "about 1 minute",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Guard, Choice::Seed],
    arms: |_| Vec::new(),
    run,
    simulated_by: Simulated::No {
        lacks: "the cost of a shed packet, which is a setting here,",
        nearest: "livelock-udp",
    },
};

/// Cost of a shed packet / cost of a drop that reads the headers, as each must that tells packets apart.
const RATIO_MAX: f64 = 1.3;
/// See [`RATIO_MAX`].
const RATIO_AIM: f64 = 1.1;
/// Offered rates in packets/s. At those that overflow the ring, source and host wait for the lock of the pool that both give
/// packets back to: a third of the host's time then, which no NIC has.
const RATES: [f64; 3] = [1e6, 2e6, 3e6];
/// One at which packets follow one another closely, and the ring does not overflow.
pub const CLOSE: f64 = 2e6;
/// Share of the polled packets that must have been shed, or what they cost is not the cost of a shed one.
const SHED_LEAST: f64 = 0.95;
/// The arm that sheds, and the bare drop.
pub const SHED: &str = "shed";
const DROP: &str = "xdp-drop-all";
/// The least that a drop costs which tells frames apart.
const READ: &str = "xdp-read-and-drop";
/// Before it the guard may still be taking over.
const WARM_UP: Duration = Duration::from_millis(400);
const TAIL: Duration = Duration::from_millis(50);

/// What one trial gave.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// CPU time per packet that was polled, ns.
    pub ns: f64,
    /// Share of the polled packets that XDP dropped.
    pub dropped: f64,
    /// Packets polled per second.
    pub polled_pps: f64,
    /// Share of the host CPU that it took.
    pub cpu: f64,
}

impl Cost {
    /// CPU time of a shed packet, ns; `None` if too many passed.
    pub fn of_shed(&self) -> Option<f64> {
        (self.dropped >= SHED_LEAST).then_some(self.ns)
    }
}

/// Bare drops, and weir with its classes in front of a program that has stopped reading.
fn arms(options: &Options) -> Vec<Arm> {
    let bare = |name: &str, role, note: &str, host| Arm {
        name: name.into(),
        role,
        note: Some(note.into()),
        wiring: Wiring::Timer,
        host,
        slow_output: false,
        unscreened: false,
        rcvbuf: None,
    };
    let drop =
        bare(DROP, Role::Stock, "XDP drops every packet, polled by the kernel", Host::Drop { read: false });
    let read = bare(READ, Role::Shown, "the same, which reads the headers before", Host::Drop { read: true });
    [drop, read].into_iter().chain(weir(options)).collect()
}

/// weir with a protected flow, so that it looks at what it sheds.
pub fn weir(options: &Options) -> Option<Arm> {
    let mut weir = arm::all(options.reserve).into_iter().find(|a| a.role == Role::Weir)?;
    weir.name = SHED.into();
    weir.note = Some("weir with classes and levels; the program it sheds for has stopped reading".into());
    if let Host::Guard(own) = &mut weir.host {
        own.extend(options.guard.iter().cloned());
    }
    Some(weir)
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    if options.consumer != Kind::Sink {
        return Err(Error::Usage("shed-cost: only udp-sink can be stopped".into()));
    }
    let mut runner = Runner::new(options, progress)?;
    if runner.bench.weir.is_none() {
        return Err(Error::Missing("arm shed needs the program weir beside this one; build it".into()));
    }
    let arms = arms(options);
    runner.total = u64::from(options.repeat()) * (arms.len() * RATES.len()) as u64;
    let mut taken = vec![vec![Vec::<Cost>::new(); RATES.len()]; arms.len()];
    for round in 0..u64::from(options.repeat()) {
        for (r, rate) in RATES.iter().enumerate() {
            for a in crate::livelock::order(arms.len(), options.seed, round << 8 | r as u64) {
                runner.say(&format!("{} at {:.0} k/s", arms[a].name, rate / 1000.0));
                taken[a][r].push(one(&runner.bench, &arms[a], *rate, options.window())?);
                runner.step();
            }
        }
    }
    let mut document = runner.document(EXPERIMENT.name)?;
    document.arms = arms.iter().map(|arm| result_of(arm, options.reserve)).collect();
    let names: Vec<String> = RATES.iter().map(|r| format!("{:.0} k/s", r / 1000.0)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let show = |title: &str, unit: &str, digits, value: fn(&Cost) -> f64| {
        let mut panel = Panel {
            title: title.into(),
            x: Scale::named("offered", &names),
            y: Scale::of(unit, digits, false),
            ..Panel::default()
        };
        for (arm, taken) in arms.iter().zip(&taken) {
            for (r, costs) in taken.iter().enumerate() {
                panel.add(&arm.name, Mark::of(r as f64, &costs.iter().map(value).collect::<Vec<f64>>()));
            }
        }
        panel
    };
    document.panels = vec![
        show("CPU time per packet", "ns", 1, |c| c.ns),
        show("dropped by XDP, share of what was polled", "%", 2, |c| 100.0 * c.dropped),
        show("polled", "k/s", 0, |c| c.polled_pps / 1000.0),
        show("share of the host CPU", "%", 1, |c| 100.0 * c.cpu),
    ];
    runner.finish(&mut document, &[], false);
    document.verdict.retain(|v| v.id != Id::Ledger.name());
    document.verdict.extend(verdict(&document.panels));
    Ok(document)
}

/// The worst rate's ratio, and whether what was shed was all there was.
fn verdict(panels: &[Panel]) -> Vec<Verdict> {
    let rates = (0..RATES.len()).map(|r| r as f64);
    let ratio = |of: &str, r: f64| {
        Some(panels.first()?.at(SHED, r)? / panels.first()?.at(of, r).filter(|cost| *cost > 0.0)?)
    };
    let worst_of = |of: &str| {
        let ratios: Vec<f64> = rates.clone().filter_map(|r| ratio(of, r)).collect();
        stats::spread(&ratios).map(|s| s.max)
    };
    let shed: Vec<f64> = rates.clone().filter_map(|r| panels.get(1)?.at(SHED, r)).collect();
    let least = stats::spread(&shed).map(|s| s.min);
    let text = "CPU time per shed packet / a drop that reads the headers, worst rate";
    // Where packets pass, what was measured is the kernel's cost of them.
    let worst = worst_of(READ).filter(|_| least.is_some_and(|least| least >= 100.0 * SHED_LEAST));
    let p5 = plan::claim("P5", text, worst, RATIO_MAX);
    let note = least.map(|least| {
        let bare = worst_of(DROP).map_or(String::new(), |r| format!("; {r:.2} of a bare XDP_DROP"));
        format!("at least {least:.2} % of what was polled is shed{bare}")
    });
    vec![Verdict { aim: Some(RATIO_AIM), digits: 2, note, ..p5 }]
}

/// CPU time per polled packet of one trial.
///
/// # Errors
/// As a trial's.
pub fn one(bench: &Bench, arm: &Arm, rate: f64, window: Duration) -> Result<Cost> {
    let guarded = matches!(arm.host, Host::Guard(_));
    bench.stage(arm, &Scene::default(), |rig, cast, _| {
        rig.reach(true)?;
        // A bare drop takes the probe's answers too.
        let probe = guarded.then(|| Probe::start(bench, rig, &["--tcp", "--arp"])).transpose()?;
        let pid = nix::unistd::Pid::from_raw(cast.consumers[0].ids()[0] as i32);
        let signal = |what| nix::sys::signal::kill(pid, what).map_err(|e| Error::program("udp-sink", e));
        if guarded {
            // Its socket is full from then on.
            signal(nix::sys::signal::Signal::SIGSTOP)?;
        }
        let phase = |duration| Phase { duration, rate: Some(rate) };
        let target = bench.consumer.kind.target(&rig.inputs[0], 1);
        let load = rig.load(vec![phase(WARM_UP), phase(window), phase(TAIL)], burst(Some(rate)), target);
        let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
        bench.interrupt.sleep(WARM_UP)?;
        let dropped = || rig.dropped();
        let (from, before) = (bench.edge(rig, cast)?, dropped()?);
        bench.interrupt.sleep(window)?;
        let (to, after) = (bench.edge(rig, cast)?, dropped()?);
        running.wait()?;
        drop(probe);
        if guarded {
            signal(nix::sys::signal::Signal::SIGCONT)?;
        }
        let meter = to.meter().since(from.meter());
        let seconds = from.until(&to).as_secs_f64();
        let shares = Shares::new(&from, &to, &Report { window_ns: 1, ..Report::default() }, 0);
        // In mode shed the kernel polls, and the softirq has the cost.
        let (cpu, packets) = (shares.cpu.weir + shares.cpu.softirq, meter.packets.max(1) as f64);
        Ok(Cost {
            ns: cpu * seconds * 1e9 / packets,
            dropped: after.saturating_sub(before) as f64 / meter.packets.max(1) as f64,
            polled_pps: packets / seconds,
            cpu,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_rate_is_judged() {
        let panel = |values: [(f64, f64); 3]| {
            let mut panel = Panel::default();
            for (r, (read, shed)) in values.into_iter().enumerate() {
                panel.add(DROP, Mark::of(r as f64, &[read / 2.0]));
                panel.add(READ, Mark::of(r as f64, &[read]));
                panel.add(SHED, Mark::of(r as f64, &[shed]));
            }
            panel
        };
        let shares = panel([(100.0, 99.0), (100.0, 98.0), (100.0, 97.5)]);
        let p5 = &verdict(&[panel([(50.0, 55.0), (50.0, 60.0), (50.0, 40.0)]), shares.clone()])[0];
        assert!(p5.holds && p5.value == Some(1.2), "{p5:?}");
        assert!(
            p5.note.as_deref().is_some_and(|n| n.contains("97.50") && n.contains("2.40 of a bare")),
            "{p5:?}"
        );
        assert!(!verdict(&[panel([(50.0, 55.0), (50.0, 70.0), (50.0, 40.0)]), shares])[0].holds);
        assert!(!verdict(&[])[0].holds, "nothing measured");
        let passed = panel([(100.0, 99.0), (100.0, 94.0), (100.0, 97.5)]);
        assert_eq!(verdict(&[panel([(50.0, 55.0); 3]), passed])[0].value, None, "packets passed");
    }
}
