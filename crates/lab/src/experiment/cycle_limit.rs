//! The experiment `cycle-limit`.

use crate::experiment::router::{CHOICES, CYCLE_LIMIT};
use crate::experiment::{Experiment, Simulated};

/// The experiment `cycle-limit`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "cycle-limit",
    about: "a router with budgets of 25 to 100 %: what a program that computes gets",
    takes: "about 3 minutes, --quick 1",
    choices: CHOICES,
    arms: |options| CYCLE_LIMIT.names(options),
    run: |options, progress| CYCLE_LIMIT.run(options, progress),
    simulated_by: Simulated::By {
        scenario: "modern-cycle-limit",
        hogs: [&[1], &[1]],
        quick: &["stock-timer", "budget-25", "budget-50", "budget-75", "budget-100"],
    },
};
