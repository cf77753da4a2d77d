//! What is counted, and what is made of it.

use super::host::{Host, bucket};
use super::place::{self, Snapshot};
use crate::check;
use crate::cpu::{Bucket, IDLE};
use crate::engine::Nanos;
use crate::machine::Outcome;
use hdrhistogram::Histogram;
use results::{CpuShares, Trial};
use std::collections::BTreeMap;

/// Shown for a wait that never ends, ns.
const NEVER: Nanos = 10_000_000_000;

/// Counted over the run, and within the window.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    on: bool,
    wait: Option<Histogram<u64>>,
    /// Packets that the host has lost.
    pub lost: u64,
}

impl Counts {
    pub fn open(&mut self) {
        self.on = true;
        // 1 ns to a minute in three digits.
        self.wait = Histogram::new_with_bounds(1, 60_000_000_000, 3).ok();
    }

    pub fn close(&mut self) {
        self.on = false;
    }

    #[inline]
    pub fn deliver(&mut self, waited: Nanos) {
        if self.on
            && let Some(wait) = &mut self.wait
        {
            wait.saturating_record(waited);
        }
    }
}

impl Host<'_> {
    pub(super) fn outcome(
        &mut self,
        placed: &place::Outcome,
        before: &Snapshot,
        after: &Snapshot,
    ) -> Outcome {
        let now = self.agenda.now();
        let mut faults = Vec::new();
        for (c, core) in self.cores.iter_mut().enumerate() {
            let accounts = core.cpu.accounts(now);
            faults.extend(check::time(c, &accounts, now).err());
        }
        faults.extend(self.ledger.faults(self.queued()));
        let span = (after.at - before.at) as f64;
        let cpus = self.cores.len() as f64;
        let share = |bucket: Bucket| -> f64 {
            let of = |snapshot: &Snapshot| -> Nanos {
                snapshot.accounts.iter().map(|accounts| accounts[usize::from(bucket.0)]).sum()
            };
            (of(after) - of(before)) as f64 / span / cpus
        };
        let rate = |count: fn(&Snapshot) -> u64| (count(after) - count(before)) as f64 / span * 1e9;
        let (program, idle) = (share(bucket::PROGRAM), share(IDLE));
        let cpu = CpuShares {
            irq: share(bucket::IRQ),
            softirq: share(bucket::SOFTIRQ),
            weir: 0.0,
            program: program + share(bucket::SWITCH),
            hog: 0.0,
            idle,
        };
        let goodput = rate(|snapshot| snapshot.delivered);
        let trial = Trial {
            offered_pps: rate(|snapshot| snapshot.offered),
            sent: self.ledger.offered(),
            delivered: self.ledger.delivered(),
            goodput_pps: goodput,
            drops: self.ledger.drops(),
            unaccounted: self.ledger.unaccounted(),
            user_share: Some(program),
            net_share: Some(cpu.irq + cpu.softirq),
            cpu: Some(cpu),
            ..Trial::default()
        };
        let mut values = BTreeMap::from([
            ("goodput_kpps", goodput / 1e3),
            ("offered_kpps", rate(|snapshot| snapshot.offered) / 1e3),
            ("idle_percent", 100.0 * idle),
            ("planted", f64::from(u8::from(self.drawn.planted.is_some()))),
            ("cpus", cpus),
            ("settings", placed.kept as f64),
            ("trials", placed.tried as f64),
        ]);
        if let Some(wait) = self.counts.wait.as_ref().filter(|wait| !wait.is_empty()) {
            values.insert("p99_arrived_us", wait.value_at_quantile(0.99) as f64 / 1e3);
            // A packet that is lost never arrives: who drops more must not look faster.
            let arrived = wait.len() as f64;
            let of_arrived = 0.99 * (arrived + (after.lost - before.lost) as f64) / arrived;
            let wait = if of_arrived > 1.0 { NEVER } else { wait.value_at_quantile(of_arrived) };
            values.insert("p99_us", wait as f64 / 1e3);
        }
        Outcome {
            trial,
            values,
            over_time: self.ledger.over_time().clone(),
            events: self.agenda.fired(),
            faults,
            ..Outcome::default()
        }
    }
}
