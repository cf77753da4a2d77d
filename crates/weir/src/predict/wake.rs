//! What it costs to wake a thread on this machine: packets that come while a program sleeps cost one each, and under load,
//! when it does not sleep any more, none.

use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::sys::eventfd::EventFd;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Wakes of one measurement, and measurements of which the middle one counts: together less than 10 ms of CPU time, spent
/// before the host is watched.
const WAKES: u32 = 400;
const ROUNDS: usize = 5;

/// CPU time of this process, ns.
fn own_ns() -> nix::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Seconds of CPU time from one thread's sleep to the other's on the same CPU, as the middle of several measurements. An
/// error if there may be no thread.
pub fn cost() -> anyhow::Result<f64> {
    let mut rounds = (0..ROUNDS).map(|_| round()).collect::<anyhow::Result<Vec<f64>>>()?;
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

fn round() -> anyhow::Result<f64> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu()?)?;
    let (there, back) = (EventFd::from_value(0)?, EventFd::from_value(0)?);
    // Each waits for the other; none can be left waiting, for a thread that fails passes the turn on.
    let player = |mine: &EventFd, other: &EventFd, begins: bool| -> nix::Result<()> {
        let mut result = sched_setaffinity(Pid::from_raw(0), &here);
        if begins {
            other.write(1)?;
        }
        for _ in 0..WAKES / 2 {
            mine.read()?;
            result = result.and(other.write(1).map(drop));
        }
        result
    };
    let before = own_ns()?;
    std::thread::scope(|scope| {
        let one = scope.spawn(|| player(&there, &back, false));
        let two = scope.spawn(|| player(&back, &there, true));
        let ended = [one.join(), two.join()];
        ended.into_iter().try_for_each(|thread| thread.unwrap_or(Err(nix::errno::Errno::ECANCELED)))
    })?;
    Ok((own_ns()? - before) as f64 / 1e9 / f64::from(WAKES))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_wake_costs_more_than_a_system_call_and_less_than_a_millisecond() {
        let cost = super::cost().unwrap();
        assert!((1e-7..1e-3).contains(&cost), "{cost}");
    }
}
