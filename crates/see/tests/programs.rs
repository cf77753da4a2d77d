//! What is said of a program that does not get the CPU, and what is advised about those beside it.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use common::{Pair, change};
use kern::raw::{Task, Thread};

#[test]
fn packet_work_is_no_rival_of_the_program_that_reads() {
    let beside = |name: &str| {
        change(|p| {
            p.socket_full(500, 1.0);
            p.reader(0.3, 0.5, 'R');
            let rival = Task { pid: 9, name: name.into(), state: 'R', cpu: 1, threads: 1, ..Task::default() };
            p.before.tasks.push(rival.clone());
            p.after.tasks.push(Task { run_ns: 400_000_000, ..rival });
        })
    };
    assert_eq!(beside("hog"), ["sudo renice -n 10 -p 9", "sudo taskset -acp 0 9     # or move it away"]);
    for name in ["weir", "weir-guard", "ksoftirqd/1", "napi/eth7-8193", "cpumap/1/map:5"] {
        assert_eq!(beside(name), ["sudo renice -n -10 -p 5"], "{name}");
    }
}

/// A guard's poller fills CPU 1, softirq has a fifth of CPU 0: it is the full CPU whose ring overflows.
#[test]
fn packets_that_a_guard_polls_are_work_too() {
    let mut host = Pair::new();
    host.device("rx_missed_errors", 500);
    host.busy(0, 0.2, 0.0);
    host.busy(1, 0.0, 0.95);
    let guard = Task { pid: 9, name: "weir-guard".into(), state: 'R', cpu: 1, threads: 1, ..Task::default() };
    host.before.tasks.push(guard.clone());
    host.after.tasks.push(Task { run_ns: 900_000_000, ..guard });
    let report = host.report();
    assert_eq!(report.findings[0].title, "CPU 1 has no time left to empty the ring of eth7");
}

/// A program of `threads` threads beside the one that reads, each of which runs and waits a tenth.
fn rival(p: &mut Pair, nice: i32, policy: i32, threads: u32) {
    p.socket_full(500, 1.0);
    p.reader(0.3, 0.5, 'R');
    let tenth = 100_000_000;
    let each = |ns| (0..threads).map(move |tid| Thread { tid, run_ns: ns, wait_ns: ns }).collect();
    let task = Task {
        pid: 9,
        name: "hog".into(),
        state: 'R',
        cpu: 1,
        nice,
        policy,
        threads,
        each: each(0),
        ..Task::default()
    };
    let all = u64::from(threads) * tenth;
    p.after.tasks.push(Task { run_ns: all, wait_ns: all, each: each(tenth), ..task.clone() });
    p.before.tasks.push(task);
}

#[test]
fn what_is_advised_about_a_rival_helps() {
    let advised = |nice, policy, threads| change(|p| rival(p, nice, policy, threads)).remove(0);
    assert_eq!(advised(0, 0, 1), "sudo renice -n 10 -p 9");
    assert_eq!(advised(0, 0, 4), "sudo renice -n 10 -p $(ls /proc/9/task)", "all of its threads");
    assert_eq!(advised(15, 0, 12), "sudo renice -n -10 -p 5", "it is nicer already");
    assert_eq!(advised(0, 1, 1), "sudo chrt -o -a -p 0 9", "SCHED_FIFO has no nice value");
}

#[test]
fn shares_are_of_one_thread() {
    let mut host = Pair::new();
    rival(&mut host, 15, 0, 12);
    let report = host.report();
    let said = |name: &str| report.findings[0].evidence.iter().find(|(n, _)| n == name).unwrap().1.clone();
    assert!(
        said("hog").starts_with("ran 10 % of the time in the busiest of its 12 threads, "),
        "{report:#?}"
    );
    assert!(
        said("hog").contains("waiting for CPU 1 10 %") && said("hog").ends_with("nice 15"),
        "{report:#?}"
    );
    // A wait that began before the interval is longer than that.
    host.reader(0.3, 11.71, 'R');
    let report = host.report();
    assert!(report.findings[0].evidence[1].1.contains("waiting for CPU 1 70 %"), "{report:#?}");
    let mut host = Pair::new();
    rival(&mut host, 0, 1, 1);
    assert!(
        format!("{:?}", host.report()).contains("whose class SCHED_FIFO goes before"),
        "{:#?}",
        host.report()
    );
}

#[test]
fn one_that_is_ready_to_run_does_not_sleep() {
    let mut host = Pair::new();
    host.socket_full(9_500, 1.0);
    // A wait that has not ended is counted nowhere.
    host.reader(0.0, 0.0, 'R');
    (host.before.tasks[0].policy, host.after.tasks[0].policy) = (5, 5);
    let report = host.report();
    assert_eq!(report.findings[0].rule, "starved-by-priority", "{report:#?}");
    assert!(report.findings[0].title.contains("is SCHED_IDLE"), "{report:#?}");
    assert_eq!(report.findings[0].change, ["sudo chrt -o -a -p 0 5"]);
}
