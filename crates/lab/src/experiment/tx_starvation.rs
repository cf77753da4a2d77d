//! The experiment `tx-starvation`.

use crate::experiment::router::{CHOICES, TX_STARVATION};
use crate::experiment::{Experiment, Simulated};

/// The experiment `tx-starvation`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "tx-starvation",
    about: "whether a router's output stands still while its input is flooded",
    takes: "about 2 minutes, --quick 1",
    choices: CHOICES,
    arms: |options| TX_STARVATION.names(options),
    run: |options, progress| TX_STARVATION.run(options, progress),
    simulated_by: Simulated::No {
        lacks: "an output that fills, on a host of today,",
        nearest: "tx-starvation",
    },
};
