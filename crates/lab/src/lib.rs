//! Experiments on this kernel: a wire, a host under test, programs, arms, and a ledger that closes.
//!
//! A trial builds a fresh pair of namespaces joined by veth. The wire CPU only generates and carries frames; all
//! receive work, the programs and the guard run on the host CPU. Everything is deleted when the trial ends, also by
//! an error, a panic or an interrupt.

mod accept_rig;
mod arm;
mod consumer;
mod error;
mod experiment;
mod flood;
mod frame;
mod grid;
mod guard;
mod ledger;
mod livelock;
mod options;
mod plan;
mod probe;
mod program;
mod proxy_rig;
mod rig;
mod search;
mod signal;
mod sinks;
mod takes;
mod trial;
mod workload;

pub use arm::{Arm, Host};
pub use consumer::{Kind, Setup};
pub use error::{Error, Result};
pub use experiment::mlfrr::{COUNT, COUNT_QUICK, Compared, GOAL_LOSS, compare};
pub use experiment::{Experiment, Simulated};
pub use options::{Options, RCVBUF_LARGE};
pub use plan::Progress;
pub use program::locate;
pub use rig::{Cpus, MODERATION, Wiring};
pub use signal::Interrupt;
pub use takes::{Choice, refuse_ignored, refuse_not_simulated};
pub use trial::{Bench, Offer, Outcome, burst};
pub use workload::Workload;

// What other experiments use of these.
use experiment::{control_traffic, innocents, no_harm, shed_cost, syn_flood};
use results::Document;

/// All experiments.
#[must_use]
pub fn experiments() -> &'static [Experiment] {
    experiment::ALL
}

/// The experiment of this name.
///
/// # Errors
/// [`Error::Usage`] with the names that there are.
pub fn experiment(name: &str) -> Result<&'static Experiment> {
    experiments().iter().find(|experiment| experiment.name == name).ok_or_else(|| {
        let names: Vec<&str> = experiments().iter().map(|experiment| experiment.name).collect();
        Error::Usage(format!("no experiment {name}; there are {}", names.join(", ")))
    })
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
/// [`Error::Usage`] for an unknown name, an option out of range or one that the experiment ignores, [`Error::Missing`] without root, a second CPU, BPF
/// programs or a measured program, and what the kernel refuses.
pub fn run(name: &str, options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let experiment = experiment(name)?;
    refuse_ignored(experiment, options)?;
    let options = Options { experiment: experiment.name, ..options.clone() };
    (experiment.run)(&options, progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_listed_can_be_run_and_no_other() {
        // An option out of range is refused before anything is touched, so this tells names apart without root.
        let options = Options { reserve: 0, ..Options::default() };
        for experiment in experiments() {
            let answer = run(experiment.name, &options, &mut |_| {});
            assert!(matches!(&answer, Err(Error::Usage(text)) if text.contains("reserve")), "{answer:?}");
        }
        let answer = run("livelock", &options, &mut |_| {});
        assert!(matches!(&answer, Err(Error::Usage(text)) if text.contains("livelock-udp")), "{answer:?}");
    }
}
