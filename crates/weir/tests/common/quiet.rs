//! Whether something else ran on the host CPU, or another machine had the CPU: then a rate says nothing about weir, and is
//! taken again.

use std::time::{Duration, Instant};

use kern::wire::{counters, tasks};

use super::{HOST_CPU, WIRE_CPU, ms};

/// Share of the host CPU that other programs may have had in a measurement.
const OTHERS_MAX: f64 = 0.05;
/// A machine that is busy for longer than this is what the test fails for.
const LONGEST: Duration = ms(60_000);
/// And so long a test waits for a machine that is not; what it measures then is compared with what it measured there before.
const SHORTER: Duration = ms(10_000);

/// CPU time on the host CPU from here on.
pub struct Quiet {
    at: Instant,
    all: Option<u64>,
    pids: Vec<u32>,
    ours: u64,
    stolen: u64,
}

/// What the hypervisor gave to others so far, of these CPUs, ns; 0 where it does not tell.
pub fn stolen(cpus: &[usize]) -> u64 {
    const TICK: u64 = 10_000_000;
    cpus.iter().filter_map(|cpu| counters::cpu_times(*cpu).ok()).map(|t| t.steal * TICK).sum()
}

const BOTH: [usize; 2] = [HOST_CPU, WIRE_CPU];

fn used(pids: &[u32]) -> u64 {
    // One that has ended meanwhile is missed, and its time counts as that of others.
    pids.iter().map(|pid| tasks::process_cpu_ns(*pid as i32).unwrap_or(0)).sum()
}

impl Quiet {
    /// Starts to watch; `pids` are the test's own programs.
    pub fn watch(pids: &[u32]) -> Quiet {
        let softirqd = format!("ksoftirqd/{HOST_CPU}");
        let softirqd = tasks::find(|name| name == softirqd).unwrap();
        let pids: Vec<u32> = pids.iter().copied().chain(softirqd.map(|p| p as u32)).collect();
        let (all, ours) = (counters::tasks_ns(HOST_CPU), used(&pids));
        Quiet { at: Instant::now(), all, ours, pids, stolen: stolen(&BOTH) }
    }

    /// Share of the CPU that other programs and other machines had since, as far as the kernel tells.
    pub fn others(&self) -> f64 {
        let programs = counters::tasks_ns(HOST_CPU)
            .zip(self.all)
            .map_or(0, |(to, from)| (to - from).saturating_sub(used(&self.pids).saturating_sub(self.ours)));
        (programs + stolen(&BOTH).saturating_sub(self.stolen)) as f64 / self.at.elapsed().as_nanos() as f64
    }

    /// True if there was nobody else.
    pub fn was(&self) -> bool {
        self.others() <= OTHERS_MAX
    }
}

/// True if nobody else uses the host CPU; else, after some patience, says that the test is skipped for that. For what weir
/// does only on a CPU that nobody else wants.
pub fn quiet_or_skip(name: &str) -> bool {
    let begin = Instant::now();
    loop {
        let quiet = Quiet::watch(&[]);
        std::thread::sleep(ms(500));
        let others = quiet.others();
        if others <= OTHERS_MAX {
            return true;
        }
        if begin.elapsed() > SHORTER {
            eprintln!("skipped: {name} needs CPU {HOST_CPU}, of which others have {:.0} %", others * 100.0);
            return false;
        }
    }
}

/// Repeats a measurement until nobody else was there, or for [`SHORTER`]: then it is the one with the fewest others.
pub fn undisturbed<T>(pids: &[u32], mut measure: impl FnMut() -> T) -> T {
    let begin = Instant::now();
    let mut best: Option<(f64, T)> = None;
    for again in 0.. {
        let quiet = Quiet::watch(pids);
        let result = measure();
        let others = quiet.others();
        let (least, result) = match best.take() {
            Some((least, kept)) if least <= others => (least, kept),
            _ => (others, result),
        };
        if least <= OTHERS_MAX || begin.elapsed() > SHORTER {
            if again > 0 {
                println!("measured {again} times again, until others had {:.0} % of the CPU", least * 100.0);
            }
            return result;
        }
        best = Some((least, result));
    }
    unreachable!("the loop has no end")
}

/// Waits until `holds`, which takes some time itself; time in which others had the CPU does not count. The time that
/// counts, and all of it. `late` tells what is wrong when `limit` has passed.
pub fn settles(
    pids: &[u32],
    limit: Duration,
    mut holds: impl FnMut() -> bool,
    late: impl FnOnce() -> String,
) -> (Duration, Duration) {
    let begin = Instant::now();
    let mut counted = Duration::ZERO;
    loop {
        let quiet = Quiet::watch(pids);
        let at = Instant::now();
        if holds() {
            return (counted, begin.elapsed());
        }
        if quiet.was() {
            counted += at.elapsed();
        }
        if counted > limit || begin.elapsed() > LONGEST {
            panic!("{} {counted:?} later, {:?} with other programs", late(), begin.elapsed());
        }
    }
}
