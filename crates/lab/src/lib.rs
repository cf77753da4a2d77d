//! Experiments on this kernel: a wire, a host under test, programs, arms, and a ledger that closes.
//!
//! A trial builds a fresh pair of namespaces joined by veth. The wire CPU only generates and carries frames; all
//! receive work, the programs and the guard run on the host CPU. Everything is deleted when the trial ends, also by
//! an error, a panic or an interrupt.

mod arm;
mod consumer;
mod error;
mod fairness;
mod frame;
mod guard;
mod ledger;
mod livelock;
mod onset;
mod options;
mod pairs;
mod plan;
mod program;
mod rig;
mod search;
mod signal;
mod trial;

pub use arm::{Arm, Host};
pub use consumer::{Kind, Setup};
pub use error::{Error, Result};
pub use options::{Options, RCVBUF};
pub use plan::Progress;
pub use program::locate;
pub use rig::{Cpus, MODERATION, Wiring};
pub use signal::Interrupt;
pub use trial::{Bench, Offer, Outcome, burst};

use results::Document;

/// An experiment by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExperimentInfo {
    /// As `weir lab run NAME` takes it.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    /// Length at default options, in words.
    pub takes: &'static str,
}

const EXPERIMENTS: [ExperimentInfo; 4] = [
    ExperimentInfo {
        name: "livelock-udp",
        about: "goodput of a UDP server from below saturation to the wire's maximum, all arms",
        takes: "about 15 minutes, --quick 2",
    },
    ExperimentInfo {
        name: "below-saturation",
        about: "latency, CPU and mode switches of weir against stock at 10 to 90 % of the loss-free rate, in pairs",
        takes: "about 6 minutes, --quick 2",
    },
    ExperimentInfo {
        name: "onset",
        about: "a flood begins and ends: takeover, release and goodput per millisecond",
        takes: "about 3 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "fairness",
        about: "two inputs: a flood on one, and equal floods on both",
        takes: "about 1 minute",
    },
];

/// All experiments.
#[must_use]
pub fn experiments() -> &'static [ExperimentInfo] {
    &EXPERIMENTS
}

/// The arms of `livelock-udp` with these options, by name, in the order in which they are shown.
#[must_use]
pub fn arms(options: &Options) -> Vec<String> {
    livelock::names(options)
}

/// All arms but the static rate limit, with the guard's reserve in percent: for single trials with [`Bench`].
#[must_use]
pub fn all_arms(reserve: u8) -> Vec<Arm> {
    arm::all(reserve)
}

/// Runs an experiment and answers its results, judged.
///
/// An interrupt gives what was measured so far, marked as partial.
///
/// # Errors
/// [`Error::Usage`] for an unknown name or an option out of range, [`Error::Missing`] without root, a second CPU, BPF
/// programs or a measured program, and what the kernel refuses.
pub fn run(name: &str, options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    match name {
        "livelock-udp" => livelock::run(options, progress),
        "below-saturation" => pairs::run(options, progress),
        "onset" => onset::run(options, progress),
        "fairness" => fairness::run(options, progress),
        _ => {
            let names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
            Err(Error::Usage(format!("no experiment {name}; there are {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_listed_can_be_run_and_no_other() {
        // An option out of range is refused before anything is touched, so this tells names apart without root.
        let options = Options { repeat: Some(0), ..Options::default() };
        for experiment in experiments() {
            let answer = run(experiment.name, &options, &mut |_| {});
            assert!(matches!(&answer, Err(Error::Usage(text)) if text.contains("repeat")), "{answer:?}");
        }
        let answer = run("livelock", &options, &mut |_| {});
        assert!(matches!(&answer, Err(Error::Usage(text)) if text.contains("livelock-udp")), "{answer:?}");
    }
}
