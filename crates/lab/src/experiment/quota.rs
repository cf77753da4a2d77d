//! The experiment `quota`.

use crate::experiment::router::{CHOICES, QUOTA};
use crate::experiment::{Experiment, Simulated};

/// The experiment `quota`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "quota",
    about: "a router with quotas from 4 to none: packets forwarded, and how long one takes",
    takes: "about 3 minutes, --quick 1",
    choices: CHOICES,
    arms: |options| QUOTA.names(options),
    run: |options, progress| QUOTA.run(options, progress),
    simulated_by: Simulated::By {
        scenario: "modern-quota",
        hogs: [&[0], &[0]],
        quick: &["quota-4", "quota-10", "weir", "quota-100", "no-quota"],
    },
};
