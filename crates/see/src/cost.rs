//! Where the CPU goes: samples of the kernel's call chains, by what they work for (ES-02) and by mechanism (ES-01).
//!
//! [`Folder`] turns samples into a [`Profile`] of one interval, by the table in `components.toml`. [`Profile`] is what is
//! shown, recorded and compared ([`diff`]). One sample stands for [`Profile::period_ns`] of one CPU.

pub mod diff;
mod folder;
mod sharpen;
mod table;

pub use folder::Folder;
pub use sharpen::sharpen;
pub use table::{Class, Component, Context, Mechanism, On, Placed, class, place};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Value of [`Profile::schema`].
pub const SCHEMA: &str = "weir.cpu/1";
/// Most functions in a profile; the samples of the others are in [`Profile::others`].
pub const FUNCTIONS_MAX: usize = 2048;
/// Name of the function of all samples outside the kernel.
pub const OUTSIDE: &str = "[program]";
/// Name of the function of samples in no function that has a name.
pub const UNKNOWN: &str = "[unknown]";
/// Of a normal distribution within this many standard deviations: 90 %.
const NINETY: f64 = 1.645;

/// One interval. Serialised as `weir.cpu/1`: fields are added, never renamed or removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Name of the host.
    pub host: String,
    /// When the interval ended, seconds since 1970.
    pub time_s: f64,
    /// Its length, seconds.
    pub interval_s: f64,
    /// Time between two samples of one CPU, ns.
    pub period_ns: u64,
    /// Interfaces whose packets are counted.
    pub interfaces: Vec<String>,
    /// Packets that they received and handed to the host.
    pub received: u64,
    /// Packets that they sent.
    pub sent: u64,
    /// CPUs that were sampled.
    pub cpus: Vec<Cpu>,
    /// Samples of packet work (the components of ES-02) by mechanism; what is left of it is protocol work.
    pub mechanisms: BTreeMap<Mechanism, u64>,
    /// Functions, those of most samples first.
    pub functions: Vec<Function>,
    /// Samples of functions for which there was no room.
    pub others: u64,
    /// Samples that the kernel dropped because their buffer was full.
    pub lost: u64,
    /// Records that could not be parsed.
    pub malformed: u64,
}

/// One CPU: samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Number.
    pub cpu: u32,
    /// All samples.
    pub samples: u64,
    /// By component; those that are absent are 0.
    pub components: BTreeMap<Component, u64>,
    /// Interrupts, softirqs and the packet work in them that ran on top of a program (ES-01).
    pub taken: u64,
    /// The same on top of anybody.
    pub softirq: u64,
    /// Packet work in kernel threads: ksoftirqd, those of NAPIs and cpumaps.
    pub threads: u64,
}

/// Samples whose innermost function this was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Function {
    /// Its name, or [`OUTSIDE`], or [`UNKNOWN`].
    pub name: String,
    /// What it worked for.
    pub component: Component,
    /// Samples.
    pub samples: u64,
}

/// Time per packet, ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerPacket {
    /// The estimate.
    pub ns: f64,
    /// Half the width of its interval of 90 %, by the number of samples alone.
    pub noise: f64,
}

impl Profile {
    /// Samples of a component on all CPUs.
    #[must_use]
    pub fn of(&self, component: Component) -> u64 {
        self.cpus.iter().map(|c| c.of(component)).sum()
    }

    /// All samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.cpus.iter().map(|c| c.samples).sum()
    }

    /// Samples that the interval had room for on all CPUs.
    #[must_use]
    pub fn room(&self) -> f64 {
        self.cpus.iter().map(|c| c.room(self.interval_s, self.period_ns)).sum()
    }

    /// Samples of packet work.
    #[must_use]
    pub fn work(&self) -> u64 {
        Component::ALL.into_iter().filter(|c| c.packets()).map(|c| self.of(c)).sum()
    }

    /// What interrupts took from programs, of the time that both had; `None` if no program ran.
    #[must_use]
    pub fn taken(&self) -> Option<f64> {
        let taken: u64 = self.cpus.iter().map(|c| c.taken).sum();
        let own = [Component::Program, Component::UpperReceive, Component::UpperTransmit].map(|c| self.of(c));
        let all = taken + own.iter().sum::<u64>();
        (all > 0).then(|| taken as f64 / all as f64)
    }

    /// Share of the packet work that is mechanism and not protocol (ES-01); `None` without packet work.
    #[must_use]
    pub fn mechanism(&self) -> Option<f64> {
        let work = self.work();
        (work > 0).then(|| self.mechanisms.values().sum::<u64>() as f64 / work as f64)
    }

    /// Packets that the time of a component is divided by.
    #[must_use]
    pub fn packets(&self, component: Component) -> u64 {
        if component.sends() { self.sent } else { self.received }
    }

    /// Time of `samples` of a component per packet; `None` without packets.
    #[must_use]
    pub fn per_packet(&self, component: Component, samples: u64) -> Option<PerPacket> {
        let packets = self.packets(component);
        let one = self.period_ns as f64 / packets as f64;
        let noise = NINETY * (samples.max(1) as f64).sqrt() * one;
        (packets > 0).then_some(PerPacket { ns: samples as f64 * one, noise })
    }

    /// Adds an interval of the same host and period. Functions beyond [`FUNCTIONS_MAX`] go to the others.
    pub fn add(&mut self, other: &Profile) {
        self.interval_s += other.interval_s;
        self.time_s = other.time_s;
        self.received += other.received;
        self.sent += other.sent;
        self.others += other.others;
        self.lost += other.lost;
        self.malformed += other.malformed;
        for cpu in &other.cpus {
            match self.cpus.iter_mut().find(|c| c.cpu == cpu.cpu) {
                Some(own) => own.add(cpu),
                None => self.cpus.push(cpu.clone()),
            }
        }
        other.mechanisms.iter().for_each(|(m, n)| *self.mechanisms.entry(*m).or_default() += n);
        let mut functions: BTreeMap<(String, Component), u64> = BTreeMap::new();
        for f in self.functions.drain(..).chain(other.functions.iter().cloned()) {
            *functions.entry((f.name, f.component)).or_default() += f.samples;
        }
        self.functions = functions
            .into_iter()
            .map(|((name, component), samples)| Function { name, component, samples })
            .collect();
        self.limit();
    }

    /// Functions in order, and no more of them than there may be.
    fn limit(&mut self) {
        self.functions.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.name.cmp(&b.name)));
        let left = self.functions.drain(FUNCTIONS_MAX.min(self.functions.len())..);
        self.others += left.map(|f| f.samples).sum::<u64>();
    }
}

impl Cpu {
    /// Samples of a component.
    #[must_use]
    pub fn of(&self, component: Component) -> u64 {
        self.components.get(&component).copied().unwrap_or(0)
    }

    /// Samples that the interval had room for, at least those that there are.
    #[must_use]
    pub fn room(&self, interval_s: f64, period_ns: u64) -> f64 {
        (interval_s * 1e9 / period_ns.max(1) as f64).max(self.samples as f64)
    }

    /// Share of the interval that no sample stands for: the CPU was idle and woken late for its sample, a hypervisor had
    /// it, or interrupts were off for longer than a period.
    #[must_use]
    pub fn missed(&self, interval_s: f64, period_ns: u64) -> f64 {
        1.0 - self.samples as f64 / self.room(interval_s, period_ns).max(1.0)
    }

    fn add(&mut self, other: &Cpu) {
        self.samples += other.samples;
        self.taken += other.taken;
        self.softirq += other.softirq;
        self.threads += other.threads;
        other.components.iter().for_each(|(c, n)| *self.components.entry(*c).or_default() += n);
    }
}

#[cfg(test)]
#[path = "cost/tests.rs"]
mod tests;
