//! The experiment `accept-skew`; its parts are those of `accept`.

use crate::experiment::{Experiment, Simulated, accept, names};
use crate::takes::Choice;

/// The experiment `accept-skew`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "accept-skew",
    about: "one of two workers stands now and then, gets long requests, or most connections or packets: latency",
    takes: "about 10 minutes, --quick under 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Arms, Choice::Kinds, Choice::Seed],
    arms: |_| names(accept::arms()),
    run: accept::skew,
    simulated_by: Simulated::No { lacks: "a live server's listeners", nearest: "accept-skew" },
};
