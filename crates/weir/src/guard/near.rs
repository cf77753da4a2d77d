//! Softirq against the budget, as `policy::near` says.

use std::sync::atomic::Ordering::Relaxed;

use kern::guard::Gauges;
use policy::{Nanos, Permille};

/// What was seen of softirq.
#[derive(Debug)]
pub struct Near(policy::near::Near);

impl Near {
    /// For `cpus` CPUs.
    pub fn new(cpus: usize) -> Self {
        Self(policy::near::Near::new(cpus))
    }

    /// BPF has seen a window of 10 ms above half the budget.
    pub fn told(&mut self, now: Nanos) {
        self.0.told(now);
    }

    /// Begins or ends the watch and tells BPF what to look for. `acts`: the guard takes sources over; `polled`: one is.
    pub fn look(&mut self, gauges: &mut Gauges, now: Nanos, acts: bool, polled: bool, budget: Permille) {
        let used = gauges.views.cpu_stats.iter().map(|s| s.net_rx_ns.load(Relaxed));
        let watch = self.0.look(now, used, acts, polled, budget);
        let limits = watch.limits(gauges.watch_idle(watch.idle));
        let guard = &gauges.views.guard[0];
        guard.near.store(limits.near.into(), Relaxed);
        guard.budget.store(limits.held.into(), Relaxed);
    }
}
