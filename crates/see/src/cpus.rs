//! Where the time of each CPU went, and the processes that matter to the path.

use crate::ledger::{moved32, moved64};
use crate::model::{Cpu, Policy, Process, Quota, Share};
use kern::raw::{CpuTime, Raw, Task, Thread};
use std::collections::{BTreeMap, BTreeSet};

/// Kernel threads that do softirq work, by name.
fn packet_thread(name: &str) -> bool {
    ["ksoftirqd/", "napi/", "cpumap/"].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether it is one of those or weir itself: part of the packet work, and no program that competes with its reader.
pub fn works_on_packets(name: &str) -> bool {
    packet_thread(name) || is_weir(name)
}

/// The guard is a program of its own; the other commands are weir.
fn is_weir(name: &str) -> bool {
    matches!(name, "weir" | "weir-guard")
}

/// Shares of all CPUs that are in both readings, over `span_ns`.
pub fn cpus(before: &Raw, after: &Raw, processes: &[Process]) -> Vec<Cpu> {
    let then: BTreeMap<u32, &CpuTime> = before.cpus.iter().map(|c| (c.cpu, c)).collect();
    after
        .cpus
        .iter()
        .filter_map(|now| Some(cpu(then.get(&now.cpu)?, now, before, after, processes)))
        .collect()
}

fn cpu(then: &CpuTime, now: &CpuTime, before: &Raw, after: &Raw, processes: &[Process]) -> Cpu {
    let since = |get: fn(&CpuTime) -> u64| moved64(get(then), get(now));
    let [user, system, idle, irq, softirq, steal] = [
        since(|c| c.user),
        since(|c| c.system),
        since(|c| c.idle),
        since(|c| c.irq),
        since(|c| c.softirq),
        since(|c| c.steal),
    ];
    let all = (user + system + idle + irq + softirq + steal).max(1) as f64;
    let share = |ticks: u64| ticks as f64 / all;
    let busy = share(user + system);
    let on_it = |wanted: fn(&str) -> bool| -> f64 {
        processes.iter().filter(|p| p.cpu == now.cpu && wanted(&p.name)).map(|p| p.runs).sum()
    };
    // Threads are measured in ns and CPUs in ticks of 10 ms: one cannot have more than the other.
    let threads = on_it(packet_thread).min(busy);
    let weir = on_it(is_weir).min(busy - threads).max(0.0);
    let net = |raw: &Raw| raw.softnet.iter().find(|s| s.cpu == now.cpu).copied();
    let moved = |get: fn(kern::proc::Softnet) -> u32| match (net(before), net(after)) {
        (Some(a), Some(b)) => moved32(get(a).into(), get(b).into()),
        _ => 0,
    };
    Cpu {
        cpu: now.cpu,
        irq: share(irq),
        softirq: share(softirq),
        threads,
        weir,
        programs: (busy - threads - weir).max(0.0),
        idle: share(idle),
        steal: share(steal),
        net_rx: now.net_rx.zip(then.net_rx).map_or(0, |(n, t)| moved64(t, n)),
        packets: moved(|s| s.processed),
        squeezed: moved(|s| s.time_squeeze),
        backlog: net(after).and_then(|s| s.backlog),
        backlog_drops: moved(|s| s.dropped),
        ..Cpu::default()
    }
}

/// Processes of both readings, those that ran most first.
pub fn processes(before: &Raw, after: &Raw) -> Vec<Process> {
    // A process id can be given out again.
    let then: BTreeMap<(u32, u64), &Task> = before.tasks.iter().map(|t| ((t.pid, t.start), t)).collect();
    let receivers: BTreeSet<u32> = after.holders.values().map(|h| h.pid).collect();
    let span = after.begin_ns.saturating_sub(before.begin_ns).max(1) as f64;
    let one = |now: &Task| {
        let then = then.get(&(now.pid, now.start))?;
        Some(Process {
            pid: now.pid,
            name: now.name.clone(),
            state: now.state.to_string(),
            nice: now.nice,
            policy: Policy::of(now.policy),
            session: now.session,
            cpu: now.cpu,
            // A thread that ended took its times with it.
            runs: now.run_ns.saturating_sub(then.run_ns) as f64 / span,
            waits: now.wait_ns.saturating_sub(then.wait_ns) as f64 / span,
            threads: now.threads,
            busiest: busiest(&then.each, &now.each, span),
            quota: quota(then, now),
            receives: receivers.contains(&now.pid),
        })
    };
    let mut all: Vec<Process> = after.tasks.iter().filter_map(one).collect();
    all.sort_by(|a, b| b.runs.total_cmp(&a.runs).then(a.pid.cmp(&b.pid)));
    all
}

/// The thread that wanted a CPU most, of several.
fn busiest(before: &[Thread], after: &[Thread], span: f64) -> Option<Share> {
    let then: BTreeMap<u32, &Thread> = before.iter().map(|t| (t.tid, t)).collect();
    let one = |now: &Thread| {
        // One that is new has done all of it in this interval.
        let old = then.get(&now.tid).map_or((0, 0), |t| (t.run_ns, t.wait_ns));
        Share::of(
            now.run_ns.saturating_sub(old.0) as f64 / span,
            now.wait_ns.saturating_sub(old.1) as f64 / span,
        )
    };
    after.iter().map(one).max_by(|a, b| (a.runs + a.waits).total_cmp(&(b.runs + b.waits)))
}

/// Of the limits of its groups the one that was used up in the largest share of the periods.
fn quota(before: &Task, after: &Task) -> Option<Quota> {
    let one = |now: &kern::cgroups::Quota| {
        let then = before.quotas.iter().find(|q| q.file == now.file)?;
        let periods = now.periods.saturating_sub(then.periods).max(1) as f64;
        let throttled = now.throttled.saturating_sub(then.throttled) as f64;
        Some(Quota {
            file: now.file.clone(),
            quota_us: now.quota_us,
            period_us: now.period_us,
            throttled: (throttled / periods).min(1.0),
        })
    };
    after.quotas.iter().filter_map(one).max_by(|a, b| a.throttled.total_cmp(&b.throttled))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kern::proc::Softnet;

    #[test]
    fn shares_add_up_and_counters_wrap() {
        let time = |k: u64| CpuTime {
            cpu: 1,
            user: 10 * k,
            nice: 0,
            system: 20 * k,
            idle: 30 * k,
            irq: 5 * k,
            softirq: 25 * k,
            steal: 10 * k,
            net_rx: Some(7 * k),
        };
        let net = |processed| Softnet { cpu: 1, processed, dropped: 0, time_squeeze: 0, backlog: Some(4) };
        let raw = |k: u64, processed| Raw {
            begin_ns: k * 1_000_000_000,
            cpus: vec![time(k)],
            softnet: vec![net(processed)],
            tasks: vec![Task {
                pid: 9,
                name: "ksoftirqd/1".into(),
                cpu: 1,
                run_ns: k * 100_000_000,
                ..Task::default()
            }],
            ..Raw::default()
        };
        let (before, after) = (raw(1, u32::MAX), raw(2, 9));
        let processes = processes(&before, &after);
        let found = &cpus(&before, &after, &processes)[0];
        assert!((found.threads - 0.1).abs() < 1e-9 && (found.programs - 0.2).abs() < 1e-9, "{found:?}");
        let sum = found.irq
            + found.softirq
            + found.threads
            + found.weir
            + found.programs
            + found.idle
            + found.steal;
        assert!((sum - 1.0).abs() < 1e-9);
        assert_eq!((found.packets, found.net_rx, found.backlog), (10, 7, Some(4)));
    }
}
