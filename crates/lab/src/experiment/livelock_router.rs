//! The experiment `livelock-router`.

use crate::experiment::router::{CHOICES, LIVELOCK};
use crate::experiment::{Experiment, Simulated};

/// The experiment `livelock-router`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "livelock-router",
    about: "packets that a router forwards, and what is left for a program, up to the wire's maximum",
    takes: "about 15 minutes, --quick 1",
    choices: CHOICES,
    arms: |options| LIVELOCK.names(options),
    run: |options, progress| LIVELOCK.run(options, progress),
    simulated_by: Simulated::By {
        scenario: "modern-router",
        hogs: [&[0, 1], &[0, 1]],
        quick: &["stock-timer", "weir"],
    },
};
