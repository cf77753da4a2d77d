//! The experiments, each a constant in a file of its name.
//!
//! What the command line lists, what a run refuses, what the simulator has instead and what the tests go through comes from
//! this table.

mod accept;
mod accept_skew;
mod affinity;
mod below_saturation;
mod burst_latency;
mod capture;
mod clocked;
mod containers;
pub(crate) mod control_traffic;
mod cpu_net;
mod cpu_net_resize;
mod cpu_share;
mod cycle_limit;
mod fair_sources;
mod fairness;
pub(crate) mod innocents;
mod livelock_router;
mod livelock_udp;
mod many_consumers;
pub(crate) mod mlfrr;
pub(crate) mod no_harm;
mod onset;
mod proxy;
mod quota;
mod real_programs;
mod router;
mod screen;
pub(crate) mod shed_cost;
mod small_buffers;
mod spray;
mod steering;
pub(crate) mod syn_flood;
mod transmit;
mod tx_starvation;
mod udp_group;

use results::Document;

use crate::Result;
use crate::arm::Arm;
use crate::options::Options;
use crate::plan::Progress;
use crate::takes::Choice;

/// An experiment.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// As `weir lab run NAME` takes it.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    /// Length at default options, in words.
    pub takes: &'static str,
    /// The options that have an effect on it, of those that not every experiment has.
    pub choices: &'static [Choice],
    /// The names of its arms with these options, in the order in which they are shown; none if no arm can be chosen.
    pub arms: fn(&Options) -> Vec<String>,
    /// Runs it; [`crate::run`] has looked at the options.
    pub(crate) run: fn(&Options, &mut dyn FnMut(Progress)) -> Result<Document>,
    /// What `--backend sim` runs.
    pub simulated_by: Simulated,
}

/// What the simulator has for an experiment.
#[derive(Debug, Clone, Copy)]
pub enum Simulated {
    /// A scenario that is the experiment on a simulated host of today.
    By {
        /// Its name.
        scenario: &'static str,
        /// Numbers of hogs, if the user gives none: as the experiment has them, and in a quick run.
        hogs: [&'static [u32]; 2],
        /// Arms of a quick run.
        quick: &'static [&'static str],
    },
    /// No such scenario.
    No {
        /// What is not simulated.
        lacks: &'static str,
        /// The scenario that is nearest, with the settings that make it so.
        nearest: &'static str,
    },
}

/// All of them, in the order in which they are listed.
pub(crate) const ALL: &[Experiment] = &[
    livelock_udp::EXPERIMENT,
    livelock_router::EXPERIMENT,
    screen::EXPERIMENT,
    quota::EXPERIMENT,
    cycle_limit::EXPERIMENT,
    tx_starvation::EXPERIMENT,
    below_saturation::EXPERIMENT,
    onset::EXPERIMENT,
    fairness::EXPERIMENT,
    no_harm::EXPERIMENT,
    control_traffic::EXPERIMENT,
    innocents::EXPERIMENT,
    syn_flood::EXPERIMENT,
    fair_sources::EXPERIMENT,
    many_consumers::EXPERIMENT,
    small_buffers::EXPERIMENT,
    capture::EXPERIMENT,
    containers::EXPERIMENT,
    real_programs::EXPERIMENT,
    accept::EXPERIMENT,
    accept_skew::EXPERIMENT,
    udp_group::EXPERIMENT,
    proxy::EXPERIMENT,
    affinity::EXPERIMENT,
    mlfrr::EXPERIMENT,
    shed_cost::EXPERIMENT,
    burst_latency::EXPERIMENT,
    clocked::EXPERIMENT,
    cpu_net::EXPERIMENT,
    cpu_net_resize::EXPERIMENT,
    transmit::EXPERIMENT,
    cpu_share::EXPERIMENT,
    steering::STEERING,
    steering::CPUS,
    spray::EXPERIMENT,
];

fn names(arms: Vec<Arm>) -> Vec<String> {
    arms.into_iter().map(|arm| arm.name).collect()
}
