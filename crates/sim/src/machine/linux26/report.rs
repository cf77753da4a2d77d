//! What is measured: rates over the load, series over load and drain.

use super::memory::Memory;
use super::settings::{Linux26, Protocol};
use super::state::{State, bucket, place};
use crate::check::Ledger;
use crate::cpu::{BUCKETS, Bucket, IDLE};
use crate::engine::{MS, Nanos};
use crate::machine::Outcome;
use results::{CpuShares, Trial};
use std::collections::BTreeMap;

/// A pause of the reader of at least this is a running cycle's.
const PAUSE: Nanos = 50 * MS;
/// Most points of a series.
const POINTS_MAX: usize = 4000;

/// Highest lengths since the last sample, and in all.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    lately: u64,
    ever: u64,
}

impl Peak {
    fn see(&mut self, value: u64) {
        self.lately = self.lately.max(value);
        self.ever = self.ever.max(value);
    }
}

/// See the module.
pub(super) struct Record {
    /// Between two samples, ns.
    pub interval: Nanos,
    /// Turns of weir's poller.
    pub turns: u64,
    payload: u64,
    load: Nanos,
    ring: Peak,
    prequeue: Peak,
    backlog: Peak,
    beyond: Peak,
    last_read: Option<Nanos>,
    /// Begin of each running period of the reader, and packets read in it.
    periods: Vec<(Nanos, u64)>,
    series: BTreeMap<&'static str, Vec<(f64, f64)>>,
    window: Nanos,
    accounts: [Nanos; BUCKETS],
    delivered: u64,
    offered: u64,
    halfway: Option<(u64, u64)>,
    full_at: Option<Nanos>,
    end: Nanos,
}

impl Record {
    pub fn new(s: &Linux26, load: Nanos) -> Self {
        let payload = if s.protocol == Protocol::Udp { s.datagram } else { s.segment };
        Self {
            interval: (load / u64::from(s.samples)).max(MS),
            turns: 0,
            payload: u64::from(payload),
            load,
            ring: Peak::default(),
            prequeue: Peak::default(),
            backlog: Peak::default(),
            beyond: Peak::default(),
            last_read: None,
            periods: Vec::new(),
            series: BTreeMap::new(),
            window: 0,
            accounts: [0; BUCKETS],
            delivered: 0,
            offered: 0,
            halfway: None,
            full_at: None,
            end: 0,
        }
    }

    pub fn ring(&mut self, used: u32) {
        self.ring.see(u64::from(used));
    }

    pub fn prequeue(&mut self, length: usize) {
        self.prequeue.see(length as u64);
    }

    pub fn backlog(&mut self, length: usize) {
        self.backlog.see(length as u64);
    }

    pub fn beyond(&mut self, length: usize) {
        self.beyond.see(length as u64);
    }

    /// A packet was read.
    pub fn read(&mut self, now: Nanos) {
        if self.last_read.is_none_or(|last| now - last >= PAUSE) && self.periods.len() < POINTS_MAX {
            self.periods.push((now, 0));
        }
        if let Some((_, count)) = self.periods.last_mut() {
            *count += 1;
        }
        self.last_read = Some(now);
        self.end = now;
    }

    pub fn load_ends(&mut self, now: Nanos, accounts: [Nanos; BUCKETS], delivered: u64, offered: u64) {
        (self.window, self.accounts, self.delivered, self.offered) = (now, accounts, delivered, offered);
    }

    fn share(&self, bucket: Bucket) -> f64 {
        self.accounts[usize::from(bucket.0)] as f64 / self.window.max(1) as f64
    }

    fn point(&mut self, name: &'static str, now: Nanos, value: f64) {
        let series = self.series.entry(name).or_default();
        if series.len() < POINTS_MAX {
            series.push((now as f64 / 1e9, value));
        }
    }

    /// Mean length of a running cycle in the second half of the load, ms.
    fn cycle(&self) -> Option<f64> {
        let late: Vec<Nanos> = self
            .periods
            .iter()
            .map(|(begin, _)| *begin)
            .filter(|begin| (self.load / 2..self.load).contains(begin))
            .collect();
        let (first, last) = (late.first()?, late.last()?);
        (late.len() > 1).then(|| (last - first) as f64 / (late.len() - 1) as f64 / 1e6)
    }

    pub fn outcome(
        mut self,
        ledger: &Ledger,
        memory: &Memory,
        timeouts: u64,
        events: u64,
        faults: Vec<String>,
    ) -> Outcome {
        let seconds = self.window.max(1) as f64 / 1e9;
        let goodput = self.delivered as f64 / seconds;
        let program = self.share(bucket::PROGRAM);
        let (softirq, poller) = (self.share(bucket::SOFTIRQ), self.share(bucket::POLLER));
        let jobs = self.share(bucket::JOBS);
        let trial = Trial {
            offered_pps: self.offered as f64 / seconds,
            sent: ledger.offered(),
            delivered: ledger.delivered(),
            goodput_pps: goodput,
            drops: ledger.drops(),
            unaccounted: ledger.unaccounted(),
            user_share: Some(program + jobs),
            net_share: Some(softirq + poller),
            cpu: Some(CpuShares {
                irq: 0.0,
                softirq,
                weir: poller,
                program,
                hog: jobs,
                idle: self.share(IDLE),
            }),
            polls: (self.turns > 0).then_some(self.turns),
            ..Trial::default()
        };
        let drain: Vec<(f64, f64)> = self
            .periods
            .iter()
            .filter(|(begin, _)| *begin > self.load)
            .map(|(begin, count)| (*begin as f64 / 1e9, *count as f64))
            .collect();
        let over_time = ledger.over_time().clone();
        let mut outcome = Outcome { trial, over_time, events, faults, ..Outcome::default() };
        let values = &mut outcome.values;
        let lost: u64 = ledger.drops().values().sum();
        let mib = |bytes: u64| bytes as f64 / 1024.0 / 1024.0;
        let of_offered = |packets: u64| 100.0 * packets as f64 / ledger.offered().max(1) as f64;
        values.insert("socket_percent", of_offered(ledger.dropped(place::SOCKET)));
        values.insert("ring_percent", of_offered(ledger.dropped(place::RING)));
        // As iperf's server reports it: what was read, up to the last read.
        let took = self.end.max(self.window) as f64 / 1e9;
        values.insert("mbps", ledger.delivered() as f64 * self.payload as f64 * 8.0 / took.max(1e-9) / 1e6);
        values.insert("drop_percent", of_offered(lost));
        values.insert("program_percent", 100.0 * program);
        values.insert("jobs_percent", 100.0 * jobs);
        values.insert("softirq_percent", 100.0 * (softirq + poller));
        values.insert("backlog_peak", self.backlog.ever as f64);
        values.insert("beyond_peak", self.beyond.ever as f64);
        values.insert("prequeue_peak", self.prequeue.ever as f64);
        values.insert("ring_peak", self.ring.ever as f64);
        values.insert("killed", memory.kills as f64);
        values.insert("timeouts", timeouts as f64);
        values.insert("drain_s", self.end.saturating_sub(self.load) as f64 / 1e9);
        if let Some(cycle) = self.cycle() {
            values.insert("cycle_ms", cycle);
        }
        if let Some((free, cache)) = self.halfway {
            values.insert("free_mib", mib(free));
            values.insert("cache_mib", mib(cache));
            values.insert("free_and_cache_mib", mib(free + cache));
            values.insert("free_and_cache_kib", (free + cache) as f64 / 1024.0);
        }
        if let Some(at) = self.full_at {
            values.insert("full_s", at as f64 / 1e9);
        }
        self.series.insert("drain", drain);
        outcome.series = self.series;
        outcome
    }
}

impl State<'_> {
    /// The series' next points.
    pub(super) fn sample(&mut self, now: Nanos) {
        let length = |of: fn(&super::socket::Socket) -> usize| -> f64 {
            self.connections.iter().map(|c| of(&c.socket)).sum::<usize>() as f64
        };
        let receive = length(|s| s.receive.len());
        let committed = self.memory.accounted as f64;
        let backlog = length(|s| s.backlog.len());
        let record = &mut self.record;
        // A queue that stood longer than a sample has no new peak.
        record.backlog.see(backlog as u64);
        record.ring.see(u64::from(self.nic.used()));
        let peaks = [
            ("ring", &mut record.ring),
            ("prequeue", &mut record.prequeue),
            ("backlog", &mut record.backlog),
            ("beyond", &mut record.beyond),
        ];
        let taken = peaks.map(|(name, peak)| (name, std::mem::take(&mut peak.lately) as f64));
        for (name, value) in taken.into_iter().chain([("receive", receive), ("committed", committed)]) {
            record.point(name, now, value);
        }
        if record.full_at.is_none() && receive >= 0.99 * self.buffer as f64 {
            record.full_at = Some(now);
        }
        if self.loading && record.halfway.is_none() && now * 2 >= record.load {
            record.halfway = Some((self.memory.free(), self.memory.cache));
        }
        let next = now + record.interval;
        self.agenda.once(next, super::state::Event::Sample);
    }
}
