//! Threads of the kernel that carry packets: finding those the lab made, and how they are scheduled.

use std::io;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::{Context, Result, read};

/// A scheduling policy for [`schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_OTHER with a nice value.
    Other(i32),
    /// SCHED_OTHER with a nice value and a slice in nanoseconds, from Linux 6.12; older kernels ignore the slice.
    Sliced(i32, u64),
    /// SCHED_FIFO with a priority from 1 to 99.
    Fifo(u32),
    /// SCHED_IDLE.
    Idle,
    /// SCHED_DEADLINE: runtime and period (= deadline) in nanoseconds.
    Deadline(u64, u64),
}

/// The id of the one task whose full name satisfies `wanted`.
///
/// # Errors
/// If /proc cannot be read.
pub fn find(wanted: impl Fn(&str) -> bool) -> Result<Option<i32>> {
    Ok(find_all(wanted)?.first().copied())
}

/// The ids of all tasks whose full name satisfies `wanted`.
///
/// # Errors
/// If /proc cannot be read.
pub fn find_all(wanted: impl Fn(&str) -> bool) -> Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc").what(|| "/proc".into())?;
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Ok(pids.filter(|pid| wanted(name(pid).trim_end())).collect())
}

/// Puts a task under a policy.
///
/// # Errors
/// If the policy is refused, for instance SCHED_DEADLINE for a bound task.
pub fn schedule(pid: i32, policy: Policy) -> Result<()> {
    let mut attr = SchedAttr { size: size_of::<SchedAttr>() as u32, ..SchedAttr::default() };
    match policy {
        Policy::Other(nice) => attr.nice = nice,
        Policy::Sliced(nice, slice) => (attr.nice, attr.runtime) = (nice, slice),
        Policy::Fifo(priority) => (attr.policy, attr.priority) = (libc::SCHED_FIFO as u32, priority),
        Policy::Idle => attr.policy = libc::SCHED_IDLE as u32,
        Policy::Deadline(runtime, period) => {
            attr.policy = libc::SCHED_DEADLINE as u32;
            (attr.runtime, attr.deadline, attr.period) = (runtime, period, period);
        }
    }
    // SAFETY: `attr` is a live sched_attr whose size field is its size.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const attr, 0) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error()).what(|| format!("{policy:?} for task {pid}"))
    }
}

/// The shortest slice, 0.1 ms, and at least the nice value `least` for the calling thread and those that it starts: a program
/// that wakes meanwhile waits that long for it, not for 1 to 3 ms. A refusal changes nothing, and a thread that is not
/// SCHED_OTHER is left as it is.
pub fn short_slice(least: i32) {
    // SAFETY: plain system call on the calling thread.
    let (policy, nice) = (crate::schedule::policy(), unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) });
    if policy == libc::SCHED_OTHER {
        let _ = schedule(0, Policy::Sliced(nice.max(least), 100_000));
    }
}

/// struct sched_attr, first published size.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Binds a task (0: the calling thread) to one CPU.
///
/// # Errors
/// If the task or the CPU does not exist.
pub fn pin(pid: i32, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(pid), &set)).what(|| format!("CPU {cpu}"))
}

/// CPU time of one task in nanoseconds, from its schedstat.
///
/// # Errors
/// If the task is gone.
pub fn cpu_ns(pid: i32) -> Result<u64> {
    Ok(first_number(&read(&format!("/proc/{pid}/schedstat"))?))
}

/// CPU time of all threads of a process in nanoseconds; threads that have ended are not in it.
///
/// # Errors
/// If the process is gone.
pub fn process_cpu_ns(pid: i32) -> Result<u64> {
    let path = format!("/proc/{pid}/task");
    let threads = std::fs::read_dir(&path).what(|| path.clone())?;
    let stats = threads.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("schedstat")).ok());
    Ok(stats.map(|s| first_number(&s)).sum())
}

/// CPU time of a process in nanoseconds, with that of its threads that have ended.
///
/// # Errors
/// If the process is gone.
pub fn process_ever_ns(pid: i32) -> Result<u64> {
    let clock = nix::time::clock_getcpuclockid(Pid::from_raw(pid));
    let now = clock.and_then(nix::time::clock_gettime).what(|| format!("CPU time of process {pid}"))?;
    Ok(std::time::Duration::from(now).as_nanos() as u64)
}

/// The process and its descendants.
///
/// # Errors
/// If /proc cannot be read.
pub fn family(pid: i32) -> Result<Vec<i32>> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        // A process without the file (no CONFIG_PROC_CHILDREN) or gone has none that matter. A child is listed under
        // the thread that started it.
        for thread in std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(text.split_whitespace().filter_map(|p| p.parse::<i32>().ok()));
        }
        next += 1;
    }
    Ok(found)
}

fn first_number(text: &str) -> u64 {
    text.split_ascii_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}
