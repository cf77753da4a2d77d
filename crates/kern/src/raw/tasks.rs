//! Processes that are of interest to the path: who runs, who waits for a CPU.

use super::stack::read;
use crate::cgroups::Quota;
use crate::proc;

/// Most threads that are read of one process.
pub const MAX_THREADS: usize = 256;

/// Times of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Time on a CPU, ns.
    pub run_ns: u64,
    /// Time ready to run and waiting for a CPU, ns.
    pub wait_ns: u64,
}

/// One process (its threads together) or kernel thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// State of its main thread: `R`, `S`, `D`, `T` (stopped), ...
    pub state: char,
    /// Nice value of its main thread.
    pub nice: i32,
    /// Scheduling class of its main thread: `SCHED_OTHER`, `SCHED_FIFO`, ... of sched.h.
    pub policy: i32,
    /// Session, setsid(2).
    pub session: i32,
    /// CPU on which the thread that has run most ran last.
    pub cpu: u32,
    /// Threads.
    pub threads: u32,
    /// Clock ticks since boot when it was started.
    pub start: u64,
    /// Time on a CPU, all threads that are read, ns.
    pub run_ns: u64,
    /// Time ready to run and waiting for a CPU, ns.
    pub wait_ns: u64,
    /// How often one of them was given a CPU.
    pub turns: u64,
    /// Its threads, if it has several.
    pub each: Vec<Thread>,
    /// Limits of CPU time of its control group and of those above, if they were asked for; the innermost first.
    pub quotas: Vec<Quota>,
}

/// Process `pid`; `None` if there is none.
pub(super) fn task(pid: u32) -> Option<Task> {
    let mut task = parse_stat(&read(&format!("/proc/{pid}/stat")).ok()?)?;
    task.pid = pid;
    task.name = proc::name(pid)?;
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut busiest = (0, String::new());
    for thread in threads.flatten().take(MAX_THREADS) {
        let path = format!("/proc/{pid}/task/{}", thread.file_name().to_string_lossy());
        let times = read(&format!("{path}/schedstat"));
        // A thread that has ended meanwhile.
        let Some((run, wait, turns)) = times.ok().as_deref().and_then(parse_schedstat) else { continue };
        task.run_ns += run;
        task.wait_ns += wait;
        task.turns += turns;
        if task.threads > 1
            && let Some(tid) = thread.file_name().to_str().and_then(|name| name.parse().ok())
        {
            task.each.push(Thread { tid, run_ns: run, wait_ns: wait });
        }
        if run > busiest.0 {
            busiest = (run, path);
        }
    }
    if task.threads > 1
        && let Some(thread) = read(&format!("{}/stat", busiest.1)).ok().as_deref().and_then(parse_stat)
    {
        task.cpu = thread.cpu;
    }
    Some(task)
}

/// Ids of all processes, kernel threads too, at most `most`.
pub(super) fn pids(most: usize) -> Vec<u32> {
    let dir = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    dir.filter_map(|e| e.file_name().to_str()?.parse().ok()).take(most).collect()
}

pub(super) fn parse_stat(stat: &str) -> Option<Task> {
    // The command name may hold anything, also spaces and parentheses: fields count from the last ')'.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    // man 5 proc_pid_stat counts from 1, and the first field here is number 3.
    let field = |number: usize| fields.get(number - 3);
    Some(Task {
        state: field(3)?.chars().next()?,
        session: field(6)?.parse().ok()?,
        nice: field(19)?.parse().ok()?,
        threads: field(20)?.parse().ok()?,
        start: field(22)?.parse().ok()?,
        cpu: field(39)?.parse().ok()?,
        policy: field(41)?.parse().ok()?,
        ..Task::default()
    })
}

/// Time on a CPU and time waiting for one, ns; times it was given one.
pub(super) fn parse_schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map_while(|n| n.parse().ok());
    Some((numbers.next()?, numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let tail = "T 1 1 12 0 -1 4 0 0 0 0 1 2 0 0 39 19 3 0 4711 0 0 18 0 0 0 0 0 0 0 0 0 0 0 0 17 5 0 1";
        let task = parse_stat(&format!("12 (a) b (c)) {tail}")).unwrap();
        assert_eq!((task.state, task.nice, task.threads, task.start, task.cpu), ('T', 19, 3, 4711, 5));
        assert_eq!((task.policy, task.session), (libc::SCHED_FIFO, 12));
        assert!(parse_stat("12 (a) S 1").is_none() && parse_stat("").is_none());
        assert_eq!(parse_schedstat("170319 531646 3\n"), Some((170_319, 531_646, 3)));
        assert_eq!(parse_schedstat("1 2\n"), None);
    }

    #[test]
    fn own_process() {
        let me = task(std::process::id()).unwrap();
        assert!(me.threads >= 1 && me.run_ns > 0 && me.start > 0);
        // The one that runs the test is beside the main thread.
        assert!(me.each.len() > 1 && me.each.iter().map(|t| t.run_ns).sum::<u64>() == me.run_ns);
        assert!(task(u32::MAX).is_none());
        assert!(pids(100_000).contains(&std::process::id()));
    }
}
