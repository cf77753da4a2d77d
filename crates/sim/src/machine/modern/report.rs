//! What is measured in the window.

use super::settings::{Receive, Settings};
use super::state::{Consumer, FIRST, bucket};
use crate::check::{Ledger, Packet};
use crate::cpu::{BUCKETS, Bucket, IDLE};
use crate::engine::Nanos;
use crate::machine::Outcome;
use hdrhistogram::Histogram;
use results::{CpuShares, LatencyUs, Mode, Trial, stats};

/// Highest latency that is told apart, ns.
const LATENCY_MAX: u64 = 10_000_000_000;

/// The window of the measurement.
#[derive(Clone, Debug, Default)]
pub struct Window {
    open: bool,
    from: Nanos,
    length: Nanos,
    before: [Nanos; BUCKETS],
    accounts: [Nanos; BUCKETS],
    read_before: Vec<u64>,
    read: Vec<u64>,
    /// Packets by flow.
    offered: Vec<u64>,
    delivered: u64,
    latency: Option<Histogram<u64>>,
    /// Length of the window, and of its last part, whose questions do not count.
    until: Nanos,
    tail: Nanos,
    first_server: u64,
    sockets: u64,
    /// Questions that count, and those answered in time, by server.
    asked: Vec<u64>,
    in_time: Vec<u64>,
    waits: Option<Histogram<u64>>,
    /// Packets to forward that came in the window, and those of them that were forwarded at any time.
    transit: (u64, u64),
    /// What others than the first sender sent to the first program, and what of it was read.
    quiet: (u64, u64),
    /// Of those that begin a burst.
    first: Option<Histogram<u64>>,
}

/// Quantiles of the recorded times, us.
fn quantiles(of: &Histogram<u64>) -> LatencyUs {
    let quantile = |q| of.value_at_quantile(q) as f64 / 1000.0;
    LatencyUs { p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999) }
}

/// An answer later than this is none, ns.
const IN_TIME: Nanos = 1_000_000_000;

impl Window {
    /// Not begun; it lasts `load` ns.
    pub fn new(s: &Settings, load: Nanos) -> Self {
        let sockets = super::state::State::sockets(s);
        let servers = if s.asked > 0 { s.servers } else { 0 };
        Self {
            until: load,
            tail: s.tail.0,
            sockets: sockets.into(),
            first_server: (sockets - servers).into(),
            asked: vec![0; servers as usize],
            in_time: vec![0; servers as usize],
            ..Self::default()
        }
    }

    /// True if the question counts.
    fn counts(&self, born: Nanos) -> bool {
        born >= self.from && born < self.from + self.until.saturating_sub(self.tail)
    }

    /// A server has answered.
    pub fn answered(&mut self, now: Nanos, packet: &Packet, server: usize) {
        let waited = now - packet.born;
        if !self.open || !self.counts(packet.born) || waited > IN_TIME {
            return;
        }
        self.in_time[server] += 1;
        if self.waits.is_none() {
            self.waits = Histogram::new_with_max(LATENCY_MAX, 3).ok();
        }
        if let Some(waits) = &mut self.waits {
            waits.saturating_record(waited);
        }
    }

    /// The warm-up is over.
    pub fn begins(&mut self, now: Nanos, accounts: [Nanos; BUCKETS], consumers: &[Consumer]) {
        self.open = true;
        self.from = now;
        self.before = accounts;
        self.read_before = consumers.iter().map(|consumer| consumer.read).collect();
    }

    /// The load stops.
    pub fn ends(&mut self, now: Nanos, accounts: [Nanos; BUCKETS], consumers: &[Consumer]) {
        self.open = false;
        self.length = now - self.from;
        self.accounts = std::array::from_fn(|index| accounts[index] - self.before[index]);
        let read = consumers.iter().zip(&self.read_before);
        self.read = read.map(|(consumer, before)| consumer.read - before).collect();
    }

    /// A packet to forward arrived.
    pub fn in_transit(&mut self) {
        self.transit.0 += u64::from(self.open);
    }

    /// One that was born then was forwarded.
    pub fn forwarded(&mut self, born: Nanos) {
        let begun = self.open || self.length > 0;
        self.transit.1 += u64::from(begun && born >= self.from && born < self.from + self.until);
    }

    /// A packet arrived.
    pub fn offered(&mut self, socket: u64, flow: u32, now: Nanos) {
        if self.open {
            if socket >= self.first_server && self.counts(now) {
                self.asked[(socket - self.first_server) as usize] += 1;
            }
            self.quiet.0 += u64::from(socket == 0 && u64::from(flow) >= self.sockets);
            let flow = socket as usize;
            self.offered.resize(self.offered.len().max(flow + 1), 0);
            self.offered[flow] += 1;
        }
    }

    /// A program has read a packet, or it was forwarded.
    pub fn delivered(&mut self, now: Nanos, packet: &Packet, loading: bool) {
        if !self.open || !loading {
            return;
        }
        self.delivered += 1;
        let flow = u64::from(packet.flow);
        self.quiet.1 += u64::from(flow % self.sockets == 0 && flow >= self.sockets);
        let first = (packet.tag & FIRST != 0).then_some(&mut self.first);
        for histogram in std::iter::once(&mut self.latency).chain(first) {
            if histogram.is_none() {
                *histogram = Histogram::new_with_max(LATENCY_MAX, 2).ok();
            }
            if let Some(histogram) = histogram {
                histogram.saturating_record(now - packet.born);
            }
        }
    }

    fn share(&self, bucket: Bucket) -> f64 {
        self.accounts[usize::from(bucket.0)] as f64 / self.length.max(1) as f64
    }

    /// The trial's result.
    pub fn outcome(
        &self,
        ledger: &Ledger,
        events: u64,
        faults: Vec<String>,
        settings: &Settings,
        mode: Option<Mode>,
    ) -> Outcome {
        let programs = settings.consumers as usize;
        let seconds = self.length.max(1) as f64 / 1e9;
        let latency_us = self.latency.as_ref().map(quantiles);
        let cpu = CpuShares {
            irq: self.share(bucket::IRQ),
            softirq: self.share(bucket::SOFTIRQ),
            weir: self.share(bucket::WEIR),
            program: self.share(bucket::PROGRAM),
            hog: self.share(bucket::HOG),
            idle: self.share(IDLE) + self.share(bucket::SWITCH),
        };
        let goodput = self.delivered as f64 / seconds;
        let trial = Trial {
            offered_pps: self.offered.iter().sum::<u64>() as f64 / seconds,
            sent: ledger.offered(),
            delivered: ledger.delivered(),
            goodput_pps: goodput,
            drops: ledger.drops(),
            unaccounted: ledger.unaccounted(),
            user_share: Some(cpu.program + cpu.hog),
            net_share: Some(cpu.irq + cpu.softirq + cpu.weir),
            cpu: Some(cpu),
            latency_us,
            ..Trial::default()
        };
        let mode = match settings.receive {
            Receive::Threaded | Receive::ThreadedIdle => Mode::Thread,
            _ => mode.unwrap_or(Mode::Interrupt),
        };
        let mut outcome = Outcome {
            trial,
            events,
            faults,
            mode: Some(mode),
            over_time: ledger.over_time().clone(),
            ..Outcome::default()
        };
        let values = &mut outcome.values;
        values.insert("goodput", goodput);
        values.insert("hog_percent", 100.0 * cpu.hog);
        values.insert("net_percent", 100.0 * (cpu.irq + cpu.softirq + cpu.weir));
        if let Some(latency) = latency_us {
            values.insert("p50_us", latency.p50);
            values.insert("p99_us", latency.p99);
        }
        if let Some(first) = self.first.as_ref().map(quantiles) {
            values.insert("first_p50_us", first.p50);
            values.insert("first_p99_us", first.p99);
        }
        // The first one may hang, or be the flooded one.
        let skip = usize::from(programs > 1 && (settings.hang || settings.first.0 > 0));
        let reads: Vec<f64> = self.read.iter().take(programs).skip(skip).map(|read| *read as f64).collect();
        if let Some(jain) = stats::jain(&reads).filter(|_| reads.len() > 1) {
            values.insert("jain", jain);
            values.insert("others_pps", reads.iter().sum::<f64>() / seconds);
        }
        let read = |from: usize, to: usize| -> u64 { self.read.iter().take(to).skip(from).sum() };
        let sent = |from: usize, to: usize| -> u64 { self.offered.iter().take(to).skip(from).sum() };
        let percent = |from, to| 100.0 * read(from, to) as f64 / sent(from, to).max(1) as f64;
        if settings.first.0 > 0 {
            values.insert("first_pps", read(0, 1) as f64 / seconds);
            values.insert("others_percent", percent(1, programs));
        }
        if settings.senders > 1 {
            values.insert("quiet_percent", 100.0 * self.quiet.1 as f64 / self.quiet.0.max(1) as f64);
        }
        if settings.asked > 0 {
            let share = |(asked, got): (&u64, &u64)| 100.0 * *got as f64 / (*asked).max(1) as f64;
            let each = self.asked.iter().zip(&self.in_time);
            values.insert("worst_percent", each.map(share).fold(100.0, f64::min));
            let (asked, got) = (self.asked.iter().sum(), self.in_time.iter().sum());
            values.insert("answered_percent", share((&asked, &got)));
            values.insert("idle_percent", 100.0 * self.share(IDLE));
            values.insert("flooded_kpps", read(0, 1) as f64 / seconds / 1000.0);
            if settings.flood.programs() > 2 {
                values.insert("slow_kpps", read(2, 3) as f64 / seconds / 1000.0);
            }
            if let Some(waits) = self.waits.as_ref().map(quantiles) {
                values.insert("answer_p50_us", waits.p50);
                values.insert("answer_p99_us", waits.p99);
            }
        }
        if self.transit.0 > 0 {
            values.insert("forwarded_percent", 100.0 * self.transit.1 as f64 / self.transit.0 as f64);
        }
        if settings.protected > 0 {
            values.insert("protected_percent", percent(programs, programs + 1));
        }
        outcome
    }
}
