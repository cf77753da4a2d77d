//! Where the CPUs are, sampled: the kernel's call chain on each CPU at a fixed rate (`perf_event_open`, cpu-clock).
//!
//! The clock is a timer interrupt: a section with interrupts off is seen at its end, as the function that turns them on
//! again, and once however long it was. Needs `CAP_PERFMON` (or root), and `/proc/kallsyms` with addresses.

mod ring;
mod symbols;

pub use symbols::Symbols;

use crate::cpus::CpuSet;
use crate::error::{Error, Result};
use ring::{Record, Ring};

/// Time between two samples of one CPU, ns: 499 per second, which is no multiple of any tick.
pub const PERIOD_NS: u64 = 1_000_000_000 / 499;

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// The CPU.
    pub cpu: u32,
    /// Process that ran or was interrupted; 0: the idle task.
    pub pid: u32,
    /// True if the CPU was outside the kernel, in a program or a guest; then `chain` is empty.
    pub user: bool,
    /// Addresses in the kernel, innermost first. All but the first are addresses to return to.
    pub chain: &'a [u64],
}

/// What was not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Samples that found their buffer full.
    pub lost: u64,
    /// Records that are not as they must be.
    pub malformed: u64,
}

/// Samples all CPUs of a set, from when it is opened until it is dropped.
#[derive(Debug)]
pub struct Profiler {
    rings: Vec<Ring>,
    bytes: Vec<u8>,
    chain: Vec<u64>,
}

impl Profiler {
    /// Begins to sample `cpus`; those that are offline are left out.
    ///
    /// # Errors
    /// [`Error::Denied`] without the privilege, [`Error::Unsupported`] on a kernel without perf events.
    pub fn open(cpus: &CpuSet) -> Result<Profiler> {
        let mut rings = Vec::new();
        for cpu in cpus.iter() {
            match Ring::open(cpu as u32, PERIOD_NS) {
                Ok(ring) => rings.push(ring),
                Err(Error::Gone { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(Profiler { rings, bytes: Vec::new(), chain: Vec::new() })
    }

    /// CPUs that are sampled, in ascending order.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.rings.iter().map(|ring| ring.cpu)
    }

    /// Hands all samples since the last call to `each`, CPU by CPU. The buffer of a CPU holds them for 200 ms at least.
    pub fn drain(&mut self, mut each: impl FnMut(&Sample<'_>)) -> Unseen {
        let mut unseen = Unseen::default();
        for ring in &mut self.rings {
            ring.take(&mut self.bytes);
            unseen.malformed += ring::records(&self.bytes, &mut self.chain, |record| match record {
                Record::Sample(sample) => each(&sample),
                Record::Lost(n) => unseen.lost += n,
            });
        }
        unseen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_busy_cpu_is_sampled_root() {
        if !testkit::root_or_skip("a_busy_cpu_is_sampled_root") {
            return;
        }
        let cpu = nix::sched::sched_getcpu().unwrap();
        let mut set = nix::sched::CpuSet::new();
        set.set(cpu).unwrap();
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).unwrap();
        let mut profiler = Profiler::open(&CpuSet::from_iter([cpu])).unwrap();
        assert_eq!(profiler.cpus().collect::<Vec<_>>(), [cpu as u32]);
        let symbols = Symbols::read().unwrap();
        let own = std::process::id();
        profiler.drain(|_| ());
        let begin = Instant::now();
        let (mut all, mut ours, mut named, mut lost) = (0u32, 0u32, 0u32, 0);
        while begin.elapsed() < Duration::from_millis(500) {
            // In the kernel and outside it.
            for _ in 0..2000 {
                std::hint::black_box(nix::unistd::getppid());
            }
            let unseen = profiler.drain(|sample| {
                all += 1;
                ours += u32::from(sample.pid == own);
                named += u32::from(sample.chain.first().is_some_and(|a| symbols.at(*a).is_some()));
                assert_eq!(sample.cpu as usize, cpu);
                assert!(!sample.user || sample.chain.is_empty());
            });
            lost += unseen.lost + unseen.malformed;
        }
        println!("{all} samples, {ours} of this process, {named} in functions with names");
        assert_eq!(lost, 0);
        // A hypervisor that takes the CPU away takes its samples too.
        let expected = begin.elapsed().as_secs_f64() * 499.0;
        assert!((0.6..1.1).contains(&(f64::from(all) / expected)), "{all} of {expected}");
        assert!(ours > 10 && named > 0, "{ours} {named} of {all}");
    }
}
