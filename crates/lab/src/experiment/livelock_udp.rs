//! The experiment `livelock-udp`: the sweep as it is.

use crate::experiment::{Experiment, Simulated};
use crate::livelock::UDP;
use crate::takes::Choice;

/// The experiment `livelock-udp`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "livelock-udp",
    about: "goodput of a UDP server from below saturation to the wire's maximum, all arms",
    takes: "about 15 minutes, --quick 2",
    choices: &[
        Choice::Duration,
        Choice::Repeat,
        Choice::Arms,
        Choice::Hogs,
        Choice::Consumer,
        Choice::Rcvbuf,
        Choice::Work,
        Choice::Multiples,
        Choice::Reserves,
        Choice::Guard,
        Choice::BasePps,
        Choice::Seed,
    ],
    arms: |options| UDP.names(options),
    run: |options, progress| UDP.run(options, progress),
    simulated_by: Simulated::By {
        scenario: "livelock-udp",
        hogs: [&[0], &[0, 1]],
        quick: &["stock-timer", "weir"],
    },
};
