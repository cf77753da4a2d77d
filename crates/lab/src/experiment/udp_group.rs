//! The experiment `udp-group`; its parts are those of `accept`.

use crate::experiment::{Experiment, Simulated, accept, names};
use crate::takes::Choice;

/// The experiment `udp-group`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "udp-group",
    about: "a group of four datagram sockets, one of which nobody reads for 10 s: questions that are answered",
    takes: "about 3 minutes, --quick under 1",
    choices: &[Choice::Repeat, Choice::Arms, Choice::Seed],
    arms: |_| names(accept::group_arms()),
    run: accept::group,
    simulated_by: Simulated::No { lacks: "a live server's sockets", nearest: "accept-skew" },
};
