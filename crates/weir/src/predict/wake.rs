//! What it costs to wake a thread on this machine: packets that come while a program sleeps cost one each, and under load,
//! when it does not sleep any more, none.

use std::thread::Builder;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Turns of a piece that is measured, 8 wakes in some 16 us: shorter than the 50 us between two interrupts of a busy timer. With
/// half as many the two threads' clocks do not even out.
const TURNS: u32 = 4;
/// Pieces on one CPU, and CPUs that are tried: together less than 40 ms of CPU time, spent before the host is watched.
const PIECES: u32 = 250;
const CPUS: usize = 4;

/// CPU time of this process, ns.
fn own_ns() -> nix::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Seconds of CPU time from one thread's sleep to the other's on the same CPU, where that is least: of many short pieces the
/// one that a quarter are shorter than, since interrupts and their softirqs count as time of whom they interrupt. An error if
/// there may be no thread.
pub fn cost() -> anyhow::Result<f64> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let allowed: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect();
    let mut least = f64::INFINITY;
    for cpu in spread(&allowed) {
        let mut pieces = pieces(cpu)?;
        pieces.sort_unstable();
        least = least.min(pieces[pieces.len() / 4] as f64 / 1e9 / f64::from(2 * TURNS));
    }
    anyhow::ensure!(least.is_finite(), "no CPU is allowed");
    Ok(least)
}

/// At most [`CPUS`] of them, evenly.
fn spread(all: &[usize]) -> impl Iterator<Item = usize> + '_ {
    let some = all.len().min(CPUS);
    (0..some).map(move |i| all[i * all.len() / some])
}

/// CPU time of [`PIECES`] pieces, ns.
fn pieces(cpu: usize) -> anyhow::Result<Vec<u64>> {
    let mut here = CpuSet::new();
    here.set(cpu)?;
    // Each write allows one read, and each thread writes as often as the other reads, whatever fails: none waits for ever.
    let event = || EventFd::from_flags(EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC);
    let (there, back) = (event()?, event()?);
    let player = |mine: &EventFd, other: &EventFd| -> nix::Result<Vec<u64>> {
        let mut result = sched_setaffinity(Pid::from_raw(0), &here);
        let mut times = Vec::with_capacity(PIECES as usize + 1);
        for turn in 0..=PIECES * TURNS {
            if turn % TURNS == 0 {
                times.push(own_ns());
            }
            if turn < PIECES * TURNS {
                result = result.and(mine.read().map(drop));
                result = result.and(other.write(1).map(drop));
            }
        }
        result.and(times.into_iter().collect())
    };
    std::thread::scope(|scope| -> anyhow::Result<Vec<u64>> {
        let start = |mine, other| Builder::new().spawn_scoped(scope, move || player(mine, other));
        let one = start(&there, &back)?;
        let two = start(&back, &there);
        // The first turn; without the second thread, all turns of the first.
        there.write(if two.is_ok() { 1 } else { u64::from(PIECES * TURNS) })?;
        let times = one.join().unwrap_or(Err(Errno::ECANCELED))?;
        two?.join().unwrap_or(Err(Errno::ECANCELED))?;
        Ok(times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn four_cpus_are_tried_wherever_they_are() {
        let of = |all: &[usize]| super::spread(all).collect::<Vec<_>>();
        assert_eq!(of(&[3]), [3]);
        assert_eq!(of(&[0, 1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(of(&(0..64).collect::<Vec<_>>()), [0, 16, 32, 48]);
        assert_eq!(of(&[]), [0; 0]);
    }

    #[test]
    fn a_wake_costs_more_than_a_system_call_and_less_than_a_millisecond() {
        let cost = super::cost().unwrap();
        assert!((1e-7..1e-3).contains(&cost), "{cost}");
    }
}
