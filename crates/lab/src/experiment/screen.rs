//! The experiment `screen`.

use crate::experiment::router::{CHOICES, SCREEN};
use crate::experiment::{Experiment, Simulated};

/// The experiment `screen`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "screen",
    about: "a router that asks a program about each packet (NFQUEUE), up to the wire's maximum",
    takes: "about 20 minutes, --quick 1",
    choices: CHOICES,
    arms: |options| SCREEN.names(options),
    run: |options, progress| SCREEN.run(options, progress),
    simulated_by: Simulated::No { lacks: "a host of today with a packet filter", nearest: "screen" },
};
