//! When softirq is held against the budget (MR-27): only while a source is polled and from half the budget on, because it
//! takes a watch for idle CPUs, which costs each switch of programs.

use std::sync::atomic::Ordering::Relaxed;

use kern::guard::Gauges;
use policy::{MILLISECOND, Nanos, Permille};

/// How long it is held against the budget at least, once it came near.
const HOLD: Nanos = 1000 * MILLISECOND;

/// What was seen of softirq.
#[derive(Debug, Default)]
pub struct Near {
    until: Nanos,
    /// Time and softirq of each CPU at the last look, ns.
    seen: (Nanos, Vec<u64>),
}

impl Near {
    /// BPF has seen a window of 10 ms above half the budget.
    pub fn told(&mut self, now: Nanos) {
        self.until = now + HOLD;
    }

    /// Begins or ends the watch and tells BPF what to look for. `acts`: the guard takes sources over; `polled`: one is.
    pub fn look(&mut self, gauges: &mut Gauges, now: Nanos, acts: bool, polled: bool, budget: Permille) {
        let used: Vec<u64> = gauges.views.cpu_stats.iter().map(|s| s.net_rx_ns.load(Relaxed)).collect();
        let (then, before) = std::mem::replace(&mut self.seen, (now, used));
        let most = self.seen.1.iter().zip(&before).map(|(now, then)| now.saturating_sub(*then)).max();
        let near =
            now < self.until || most.unwrap_or(0) * 2000 >= now.saturating_sub(then) * u64::from(budget);
        let on = gauges.watch_idle(acts && (polled || near && budget < 1000));
        let share = if acts && budget < 1000 { u32::from(budget) } else { 0 };
        // Without the watch no CPU looks idle, and the judgement would be wrong.
        let (held, near) = if on { (share, 0) } else { (0, share / 2) };
        let guard = &gauges.views.guard[0];
        guard.near.store(near, Relaxed);
        guard.budget.store(held, Relaxed);
    }
}
