//! What is measured while packets arrive.

use super::state::bucket;
use crate::check::{Ledger, Packet};
use crate::cpu::{BUCKETS, Bucket, IDLE};
use crate::engine::Nanos;
use crate::machine::Outcome;
use hdrhistogram::Histogram;
use results::{CpuShares, LatencyUs, OutputWait, Trial, stats};

/// Highest latency that is told apart, ns.
const LATENCY_MAX: u64 = 60_000_000_000;

/// The window of the load.
#[derive(Clone, Debug, Default)]
pub struct Window {
    length: Nanos,
    accounts: [Nanos; BUCKETS],
    output: OutputWait,
    latency: Option<Histogram<u64>>,
    /// Sum and number of the latencies of first packets of bursts.
    first: (u64, u64),
}

impl Window {
    /// A packet has left.
    pub fn forwarded(&mut self, now: Nanos, packet: &Packet, loading: bool) {
        let took = now - packet.born;
        if packet.tag == 1 {
            self.first = (self.first.0 + took, self.first.1 + 1);
        }
        if !loading {
            return;
        }
        if self.latency.is_none() {
            self.latency = Histogram::new_with_max(LATENCY_MAX, 3).ok();
        }
        if let Some(latency) = &mut self.latency {
            latency.saturating_record(took);
        }
    }

    /// The load stops.
    pub fn ends(&mut self, now: Nanos, accounts: [Nanos; BUCKETS], output: OutputWait) {
        self.length = now;
        self.accounts = accounts;
        self.output = output;
    }

    fn share(&self, bucket: Bucket) -> f64 {
        self.accounts[usize::from(bucket.0)] as f64 / self.length.max(1) as f64
    }

    fn latency_us(&self) -> Option<LatencyUs> {
        let latency = self.latency.as_ref()?;
        let quantile = |q| latency.value_at_quantile(q) as f64 / 1000.0;
        Some(LatencyUs { p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999) })
    }

    /// The trial's result.
    pub fn outcome(
        &self,
        ledger: &Ledger,
        by_input: &[(u64, u64)],
        events: u64,
        faults: Vec<String>,
    ) -> Outcome {
        let seconds = self.length.max(1) as f64 / 1e9;
        // The counter of the output is read when everything has drained (MR-30).
        let goodput = ledger.delivered() as f64 / seconds;
        let program = self.share(bucket::SCREEN);
        let user = self.share(bucket::USER);
        let net = self.share(bucket::NET);
        let device = self.share(bucket::DEVICE);
        let trial = Trial {
            offered_pps: ledger.offered() as f64 / seconds,
            sent: ledger.offered(),
            delivered: ledger.delivered(),
            goodput_pps: goodput,
            drops: ledger.drops(),
            unaccounted: ledger.unaccounted(),
            user_share: Some(user),
            net_share: Some(net + device),
            cpu: Some(CpuShares {
                irq: device,
                softirq: net,
                weir: 0.0,
                program,
                hog: user,
                idle: self.share(IDLE) + self.share(bucket::SYSTEM),
            }),
            latency_us: self.latency_us(),
            output: Some(self.output),
            ..Trial::default()
        };
        let mut outcome =
            Outcome { trial, events, faults, over_time: ledger.over_time().clone(), ..Outcome::default() };
        let values = &mut outcome.values;
        values.insert("user_percent", 100.0 * user);
        values.insert("net_percent", 100.0 * (net + device));
        values.insert("goodput", goodput);
        values.insert("starved_percent", 100.0 * self.output.starved_share);
        values.insert("longest_wait_ms", self.output.longest_us / 1000.0);
        let lost = ledger.offered() - ledger.delivered();
        values.insert("lost_percent", 100.0 * lost as f64 / ledger.offered().max(1) as f64);
        let untouched = outcome.trial.drops.get("ring").copied().unwrap_or(0);
        values.insert(
            "wasted_percent",
            100.0 * (lost - untouched.min(lost)) as f64 / ledger.offered().max(1) as f64,
        );
        if let Some(latency) = outcome.trial.latency_us {
            values.insert("p50_us", latency.p50);
            values.insert("p99_us", latency.p99);
        }
        if self.first.1 > 0 {
            values.insert("first_us", self.first.0 as f64 / self.first.1 as f64 / 1000.0);
        }
        let shares: Vec<f64> = by_input.iter().map(|(_, delivered)| *delivered as f64).collect();
        if let Some((offered, delivered)) = by_input.iter().min_by_key(|(offered, _)| *offered) {
            values.insert("lightest_percent", 100.0 * *delivered as f64 / (*offered).max(1) as f64);
        }
        if let Some(jain) = stats::jain(&shares).filter(|_| shares.len() > 1) {
            values.insert("jain", jain);
        }
        outcome
    }
}
