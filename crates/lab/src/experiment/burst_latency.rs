//! The experiment `burst-latency` (MR-04, MR-24): how long the first packet of a burst waits for the rest of it, against
//! the size of the burst and the quota.

use std::time::Duration;

use kern::wire::source::Phase;
use results::{Document, Id, LatencyUs, Mark, Panel, Relation, Role, Scale, Verdict};

use crate::arm::{self, Arm, Host};
use crate::consumer::Kind;
use crate::experiment::{Experiment, Simulated};
use crate::livelock;
use crate::no_harm;
use crate::options::{Options, RCVBUF_LARGE};
use crate::plan::{self, Progress, Runner, result_of};
use crate::takes::Choice;
use crate::trial::{Bench, Scene};
use crate::{Error, Result};

/// The experiment `burst-latency`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "burst-latency",
    about: "wait of the first packet of a burst, over the size of the burst and the quota",
    takes: "about 4 minutes, --quick 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Rcvbuf, Choice::Work, Choice::Seed],
    arms: |_| Vec::new(),
    run,
    simulated_by: Simulated::By {
        scenario: "modern-burst",
        hogs: [&[0], &[0]],
        quick: &["stock-timer", "threaded", "weir", "weir-polled-2", "weir-polled-32"],
    },
};

/// Frames back to back; the largest fits into the ring and into the socket.
const SIZES: [u32; 6] = [1, 4, 16, 64, 128, 224];
const SIZES_QUICK: [u32; 3] = [1, 64, 224];
/// Bursts per second: each finds the host idle.
const BURSTS: f64 = 250.0;
const QUOTAS: [u32; 4] = [2, 8, 32, 128];
const QUOTAS_QUICK: [u32; 2] = [2, 32];
/// The first packet must not wait for longer than on stock by more than this.
const FIRST_MAX: f64 = 1.5;
/// The arm that has the default quota and stays polled.
const DEFAULT: &str = "weir-polled-32";

/// Stock, weir as it is (which leaves such a load to the kernel), and weir held in poll mode at some quotas.
fn arms(options: &Options) -> Vec<Arm> {
    let quotas: &[u32] = if options.quick { &QUOTAS_QUICK } else { &QUOTAS };
    let all = arm::all(options.reserve);
    let mut arms: Vec<Arm> = all
        .iter()
        .filter(|a| ["stock-timer", "threaded", "weir"].contains(&a.name.as_str()))
        .cloned()
        .collect();
    let Some(weir) = all.into_iter().find(|a| a.role == Role::Weir) else { return arms };
    for quota in quotas {
        let mut arm = Arm { name: format!("weir-polled-{quota}"), role: Role::Variant, ..weir.clone() };
        if let Host::Guard(own) = &mut arm.host {
            own.extend(["--ablate".into(), "release".into(), "--quota".into(), quota.to_string()]);
        }
        arms.push(arm);
    }
    arms
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    if options.consumer != Kind::Sink {
        return Err(Error::Usage("burst-latency: only udp-sink tells the first of a burst".into()));
    }
    // A burst must fit into the program's buffer: what is asked is how long its first packet waits, not who loses it.
    let rcvbuf = options.rcvbuf.or(Some(RCVBUF_LARGE));
    let options = &Options { rcvbuf, ..options.clone() };
    let mut runner = Runner::new(options, progress)?;
    if runner.bench.weir.is_none() {
        return Err(Error::Missing("arm weir needs the program weir beside this one; build it".into()));
    }
    let arms = arms(options);
    let sizes: &[u32] = if options.quick { &SIZES_QUICK } else { &SIZES };
    runner.total = (sizes.len() * arms.len()) as u64 * u64::from(options.repeat());
    let mut taken = vec![vec![Vec::<(LatencyUs, LatencyUs)>::new(); sizes.len()]; arms.len()];
    for round in 0..u64::from(options.repeat()) {
        for (s, size) in sizes.iter().enumerate() {
            runner.bench.consumer.first_of = *size;
            for a in livelock::order(arms.len(), options.seed, round << 8 | s as u64) {
                runner.say(&format!("{} at bursts of {size}", arms[a].name));
                let held = arms[a].role == Role::Variant;
                taken[a][s].extend(one(&runner.bench, &arms[a], *size, held, options.window())?);
                runner.step();
            }
        }
    }
    let mut document = runner.document(EXPERIMENT.name)?;
    document.arms = arms.iter().map(|arm| result_of(arm, options.reserve)).collect();
    let show = |title: &str, value: fn(&(LatencyUs, LatencyUs)) -> f64| {
        let mut panel = Panel {
            title: title.into(),
            x: Scale::of("burst", 0, true),
            y: Scale::of("us", 0, true),
            ..Panel::default()
        };
        for (arm, taken) in arms.iter().zip(&taken) {
            for (size, all) in sizes.iter().zip(taken) {
                let values: Vec<f64> = all.iter().map(value).collect();
                panel.add(&arm.name, Mark::of(f64::from(*size), &values));
            }
        }
        panel
    };
    document.panels = vec![
        show("p50 of the first packet of a burst", |(first, _)| first.p50),
        show("p99 of the first packet of a burst", |(first, _)| first.p99),
        show("p50 of all packets", |(_, all)| all.p50),
    ];
    runner.finish(&mut document, &[], false);
    document.verdict.retain(|v| v.id != Id::Ledger.name());
    document.verdict.extend(verdict(&document.panels[0], f64::from(*sizes.last().unwrap_or(&1))));
    Ok(document)
}

/// Weir as it is and held in poll mode against stock, at the largest burst.
fn verdict(panel: &Panel, size: f64) -> Vec<Verdict> {
    let stock = panel.at("stock-timer", size).filter(|us| *us > 0.0);
    let names = ["weir", DEFAULT].into_iter();
    let ratio = |name: &str| panel.at(name, size).zip(stock).map(|(weir, stock)| weir / stock);
    names
        .map(|name| {
            let text = format!("first packet of {size}: p50 of {name} / stock");
            Verdict {
                relation: Relation::AtMost,
                digits: 2,
                ..plan::claim("MR-04", &text, ratio(name), FIRST_MAX)
            }
        })
        .collect()
}

/// The waits of the first packets and of all.
fn one(
    bench: &Bench,
    arm: &Arm,
    size: u32,
    held: bool,
    window: Duration,
) -> Result<Option<(LatencyUs, LatencyUs)>> {
    bench.stage(arm, &Scene::default(), |rig, cast, before| {
        let _ = before;
        if held {
            no_harm::flood(bench, rig)?;
            no_harm::is_polled(cast)?;
        }
        let phase =
            Phase { duration: window + Duration::from_millis(50), rate: Some(BURSTS * f64::from(size)) };
        let target = bench.consumer.kind.target(&rig.inputs[0], 1);
        let load = rig.load(vec![phase], size, target);
        // What the flood has left in the socket is not of this load.
        bench.interrupt.sleep(Duration::from_millis(20))?;
        cast.consumers[0].reset(rig)?;
        bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?.wait()?;
        let report = cast.consumers[0].report(rig)?;
        Ok(report.first.zip(report.latency))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_differ_in_nothing_but_the_quota() {
        let arms = arms(&Options::default());
        assert_eq!(arms.len(), 3 + QUOTAS.len());
        for quota in QUOTAS {
            let arm = arms.iter().find(|a| a.name == format!("weir-polled-{quota}")).unwrap();
            assert!(
                matches!(&arm.host, Host::Guard(own) if own.ends_with(&["--quota".into(), quota.to_string()]))
            );
        }
        assert!(arms.iter().any(|a| a.name == DEFAULT));
    }

    #[test]
    fn the_first_packet_is_compared_at_the_largest_burst() {
        let mut panel = Panel::default();
        panel.add("stock-timer", Mark::of(224.0, &[100.0]));
        panel.add("weir", Mark::of(224.0, &[110.0]));
        panel.add(DEFAULT, Mark::of(224.0, &[160.0]));
        let holds: Vec<bool> = verdict(&panel, 224.0).iter().map(|v| v.holds).collect();
        assert_eq!(holds, [true, false]);
    }
}
