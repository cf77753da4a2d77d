//! What is counted, and what is made of it.

use super::host::Host;
use super::plan::{NET, SOFTIRQ, SOFTIRQ_SPIN, SPIN, SYS, USER};
use crate::check;
use crate::cpu::{BUCKETS, Bucket, IDLE};
use crate::engine::Nanos;
use crate::machine::Outcome;
use hdrhistogram::Histogram;
use results::Trial;
use std::collections::BTreeMap;

/// Counted between warm-up and the end of the load.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    on: bool,
    closed: bool,
    before: Vec<[Nanos; BUCKETS]>,
    after: Vec<[Nanos; BUCKETS]>,
    interrupts: Vec<u64>,
    interrupt_time: Vec<Nanos>,
    accepts: Vec<u64>,
    affine: u64,
    replies: u64,
    inside: u128,
    response: Option<Histogram<u64>>,
    waits: Option<Histogram<u64>>,
    /// Flow groups that moved, over the whole run.
    pub moves: u64,
    /// Requests that were given up after too many losses, over the whole run.
    pub given_up: u64,
    /// Connections that a full queue refused while another one was below half, over the whole run.
    pub needless: u64,
}

impl Counts {
    pub(super) fn new(cores: usize) -> Self {
        Self {
            on: false,
            closed: false,
            before: vec![[0; BUCKETS]; cores],
            after: vec![[0; BUCKETS]; cores],
            interrupts: vec![0; cores],
            interrupt_time: vec![0; cores],
            accepts: vec![0; cores],
            affine: 0,
            replies: 0,
            inside: 0,
            // 1 us to 10 minutes in three digits.
            response: Histogram::new_with_bounds(1, 600_000_000, 3).ok(),
            waits: Histogram::new_with_bounds(1, 600_000_000, 3).ok(),
            moves: 0,
            given_up: 0,
            needless: 0,
        }
    }

    pub(super) fn open(&mut self, accounts: Vec<[Nanos; BUCKETS]>) {
        self.before = accounts;
        self.on = true;
    }

    pub(super) fn close(&mut self, accounts: Vec<[Nanos; BUCKETS]>) {
        self.after = accounts;
        self.on = false;
        self.closed = true;
    }

    pub(super) fn closed(&self) -> bool {
        self.closed
    }

    #[inline]
    pub(super) fn interrupt(&mut self, core: usize, device: bool) {
        self.interrupts[core] += u64::from(device && self.on);
    }

    #[inline]
    pub(super) fn handled(&mut self, core: usize, time: Nanos) {
        if self.on {
            self.interrupt_time[core] += time;
        }
    }

    #[inline]
    pub(super) fn accepted(&mut self, core: usize, affine: bool, waited: Nanos) {
        if self.on {
            if let Some(histogram) = &mut self.waits {
                histogram.saturating_record(waited / 1000);
            }
            self.accepts[core] += 1;
            self.affine += u64::from(affine);
        }
    }

    #[inline]
    pub(super) fn reply(&mut self, in_window: bool, response: Nanos, inside: Nanos) {
        if in_window {
            self.replies += 1;
            self.inside += u128::from(inside);
            if let Some(histogram) = &mut self.response {
                histogram.saturating_record(response / 1000);
            }
        }
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

impl Host<'_> {
    pub(super) fn outcome(mut self) -> Outcome {
        let end = self.end();
        let mut faults = self.ledger.faults(self.queued());
        if self.open() > 0 {
            faults.push(format!("{} requests never ended", self.open()));
        }
        for (index, core) in self.cores.iter_mut().enumerate() {
            faults.extend(check::time(index, &core.cpu.accounts(end), end).err());
        }
        if self.locks.iter().any(|lock| !lock.is_free()) {
            faults.push("a lock is held at the end".into());
        }
        let window = self.window() as f64;
        let c = &self.counts;
        let spent = |core: usize, bucket: Bucket| {
            let bucket = usize::from(bucket.0);
            (c.after[core][bucket] - c.before[core][bucket]) as f64
        };
        let all = |bucket: Bucket| (0..self.cores.len()).map(|core| spent(core, bucket)).sum::<f64>();
        let cores = self.cores.len() as f64;
        let replies = c.replies as f64;
        let rate = self.rate(c.replies);
        let irq = usize::from(self.s.irq_core);
        let most = c.accepts.iter().copied().max().unwrap_or(0) as f64;
        let accepts = c.accepts.iter().sum::<u64>() as f64;
        let squares: f64 = c.accepts.iter().map(|count| (*count as f64) * (*count as f64)).sum();
        let kernel = all(SOFTIRQ) + all(SOFTIRQ_SPIN) + all(NET);
        let busy = cores * window - all(IDLE);
        let of = |histogram: &Option<Histogram<u64>>, q: f64| {
            histogram.as_ref().map_or(0.0, |h| h.value_at_quantile(q) as f64 / 1000.0)
        };
        let quantile = |q: f64| of(&c.response, q);
        let percent = |time: f64| 100.0 * ratio(time, cores * window);
        let us = |time: f64| ratio(time, replies) / 1000.0;
        let listeners = &self.locks[3..];
        let sum = |f: fn(&super::lock::Lock) -> u64| listeners.iter().map(f).sum::<u64>() as f64;
        let values = BTreeMap::from([
            ("requests_per_s", rate),
            ("requests_per_s_per_core", rate / cores),
            ("irq_core_percent", 100.0 * (spent(irq, SOFTIRQ) + spent(irq, SOFTIRQ_SPIN)) / window),
            ("interrupts_per_s", self.rate(c.interrupts[irq])),
            ("interrupt_us", ratio(c.interrupt_time[irq] as f64, c.interrupts[irq] as f64) / 1000.0),
            ("interrupts_per_request", ratio(c.interrupts.iter().sum::<u64>() as f64, replies)),
            ("affine_percent", 100.0 * ratio(c.affine as f64, accepts)),
            ("max_over_mean", ratio(most * cores, accepts)),
            ("jain_percent", 100.0 * ratio(accepts * accepts, squares * cores)),
            ("busy_percent", percent(busy)),
            ("softirq_percent", percent(all(SOFTIRQ) + all(SOFTIRQ_SPIN))),
            ("spin_percent", percent(all(SPIN) + all(SOFTIRQ_SPIN))),
            ("user_percent", percent(all(USER))),
            ("kernel_net_us", us(kernel)),
            ("softirq_us", us(all(SOFTIRQ))),
            ("net_us", us(all(NET))),
            ("sys_us", us(all(SYS))),
            ("spin_us", us(all(SPIN) + all(SOFTIRQ_SPIN))),
            ("work_us", us(busy)),
            ("inside_us", ratio(c.inside as f64, replies) / 1000.0),
            ("response_ms_p50", quantile(0.5)),
            ("response_ms_p99", quantile(0.99)),
            ("accept_wait_ms_p99", of(&c.waits, 0.99)),
            ("files_contended_percent", 100.0 * self.locks[0].contention()),
            ("ports_contended_percent", 100.0 * self.locks[1].contention()),
            ("closed_contended_percent", 100.0 * self.locks[2].contention()),
            ("listener_contended_percent", 100.0 * ratio(sum(|l| l.contended), sum(|l| l.taken))),
            ("groups_moved", c.moves as f64),
            ("given_up", c.given_up as f64),
            ("needless_overflows", c.needless as f64),
        ]);
        let trial = Trial {
            offered_pps: self.rate(self.ledger.offered()) * window / end as f64,
            sent: self.ledger.offered(),
            delivered: self.ledger.delivered(),
            goodput_pps: rate,
            drops: self.ledger.drops(),
            unaccounted: self.ledger.unaccounted(),
            user_share: Some(percent(all(USER)) / 100.0),
            net_share: Some(percent(kernel) / 100.0),
            ..Trial::default()
        };
        Outcome { trial, values, events: self.agenda.fired(), faults, ..Outcome::default() }
    }
}
