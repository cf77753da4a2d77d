//! Programs that would read, and are not given the CPU: by packet work, by other programs, or by a limit.

use super::{Case, Cause, IDLE, STANDS, WAITS, cause, level, lost, row, runs};
use crate::cpus::works_on_packets;
use crate::explain::{packet_share, percent};
use crate::model::{Policy, Process};
use kern::shell::quoted;

/// Share of a CPU that packets take from which its programs starve.
const STARVED: f64 = 0.5;
/// Share of the periods in which a quota is used up from which that is the cause.
const THROTTLED: f64 = 0.2;
/// Nice value for a program that others are to run before.
const NICE: i32 = 10;
/// A nice value that moves by less makes little difference: 5 is a third of the weight.
const STEP: i32 = 5;
/// The lowest nice value.
const NICE_LEAST: i32 = -20;

/// It is ready to run: a wait that has not ended is counted nowhere.
pub(super) fn ready(p: &Process) -> bool {
    p.state.starts_with('R')
}

pub(super) fn cpu_quota(case: &Case<'_>) -> Option<Cause> {
    let p = case.process()?;
    let quota = p.quota.as_ref().filter(|q| q.throttled >= THROTTLED)?;
    let doubled = quota.quota_us.saturating_mul(2);
    // Version 2 has the period in the same file.
    let value = match quota.file.ends_with("/cpu.max") {
        true => format!("\"{doubled} {}\"", quota.period_us),
        false => doubled.to_string(),
    };
    let ms = |us: u64| us as f64 / 1e3;
    cause(
        p.pid,
        format!(
            "{} {} is held back by the CPU quota of its control group, {:.2} CPUs",
            p.name,
            p.pid,
            quota.quota_us as f64 / quota.period_us.max(1) as f64
        ),
        vec![
            lost(case),
            row(
                "quota",
                format!(
                    "{} ms in each {} ms, used up in {} of the periods: {}",
                    ms(quota.quota_us),
                    ms(quota.period_us),
                    percent(quota.throttled),
                    quota.file
                ),
            ),
            runs(p),
            level(case),
        ],
        vec![
            format!("echo {value} | sudo tee {}", quoted(&quota.file)),
            "# to keep it: CPUQuota= of the unit, docker update --cpus, limits.cpu of the pod".into(),
        ],
        "with twice the quota it can read twice as much, until the CPU is the limit",
    )
}

pub(super) fn starved_by_softirq(case: &Case<'_>) -> Option<Cause> {
    let p = case.process()?;
    let cpu = case.cpu(p.cpu)?;
    let packets = packet_share(cpu);
    // One that sleeps of its own will is not starved.
    if packets < STARVED || (p.runs < 0.02 && p.waits < 0.02) {
        return None;
    }
    let interface = case.busiest_interface();
    Some(Cause {
        key: cpu.cpu.to_string(),
        title: format!("{} starves behind the packet work of CPU {}", p.name, cpu.cpu),
        evidence: vec![
            lost(case),
            row(
                &format!("CPU {}", cpu.cpu),
                format!(
                    "interrupts, softirq and its threads {}, programs {}, idle {}",
                    percent(packets),
                    percent(cpu.programs),
                    percent(cpu.idle)
                ),
            ),
            runs(p),
            level(case),
        ],
        change: vec![case.guard(&interface)],
        effect: "programs on this CPU keep at least 20 % of it (--reserve); packets that they cannot read are lost earlier, at less cost".into(),
    })
}

/// Why another program runs before the one that reads.
#[derive(Debug, PartialEq)]
enum Why {
    /// The reader is `SCHED_IDLE`.
    OwnClass,
    /// The rival has a real-time class, and the reader has none.
    RivalClass(Policy),
    /// The reader is nicer than the rival.
    OwnNice,
    /// There is more to run than one CPU can.
    Share,
}

/// `apart`: their nice values do not count against each other.
fn why(p: &Process, rival: Option<&Process>, apart: bool) -> Why {
    let class = rival.map(|r| r.policy).filter(|class| class.is_realtime());
    let before = rival.is_none_or(|r| r.policy != Policy::Idle && r.nice <= p.nice);
    match class {
        _ if p.policy == Policy::Idle => Why::OwnClass,
        _ if p.policy.is_realtime() => Why::Share,
        Some(class) => Why::RivalClass(class),
        None if p.nice >= STEP && before && !apart => Why::OwnNice,
        None => Why::Share,
    }
}

/// Gives all threads of a process a nice value: of several, renice reaches the one that is named only.
fn renice(nice: i32, p: &Process) -> String {
    match p.threads {
        0 | 1 => format!("sudo renice -n {nice} -p {}", p.pid),
        _ => format!("sudo renice -n {nice} -p $(ls /proc/{}/task)", p.pid),
    }
}

/// Takes all threads of a process into the class of most.
fn as_others(p: &Process) -> String {
    format!("sudo chrt -o -a -p 0 {}", p.pid)
}

/// Changes the order of two programs: the rival is nicer afterwards, or else the reader is less nice. `None`: no nice value
/// does.
fn reorder(p: &Process, rival: Option<&Process>, apart: bool) -> Option<String> {
    if p.policy.is_realtime() {
        return None;
    }
    if apart {
        return rival.map(|r| format!("echo {NICE} | sudo tee /proc/{}/autogroup     # its session", r.pid));
    }
    match rival.filter(|r| r.policy != Policy::Idle && r.nice <= NICE - STEP) {
        Some(r) => Some(renice(NICE, r)),
        None => {
            let nice = (p.nice - NICE).max(NICE_LEAST);
            (nice <= p.nice - STEP).then(|| renice(nice, p))
        }
    }
}

/// Whom it waits for: one that runs before it by its class or its nice value, or else the one that ran most. Threads move: one
/// that is nicer ran elsewhere for most of its time.
fn rival<'a>(case: &'a Case<'_>, p: &Process) -> Option<&'a Process> {
    let competes =
        |o: &&Process| o.cpu == p.cpu && o.pid != p.pid && o.runs > 0.05 && !works_on_packets(&o.name);
    let rank = |o: &Process| (o.policy.is_realtime(), o.policy != Policy::Idle && o.nice <= p.nice, o.runs);
    let order =
        |a: &&Process, b: &&Process| rank(a).partial_cmp(&rank(b)).unwrap_or(std::cmp::Ordering::Equal);
    case.s.processes.iter().filter(competes).max_by(order)
}

pub(super) fn starved_by_priority(case: &Case<'_>) -> Option<Cause> {
    let stands = case.loss.consumer?.level.is_some_and(|l| l >= STANDS);
    let p = case.process().filter(|p| p.one().waits >= WAITS || (ready(p) && p.runs < IDLE && stands))?;
    let rival = rival(case, p);
    let grouped = case.limit("kernel.sched_autogroup_enabled", 0) == Some(1);
    let apart = grouped && rival.is_some_and(|r| r.session != p.session);
    let mut evidence = vec![lost(case), runs(p)];
    evidence.extend(rival.map(runs));
    let who = rival.map_or("other programs".to_owned(), |r| format!("{} {}", r.name, r.pid));
    let reader = format!("{} {}", p.name, p.pid);
    let free = case.s.cpus.iter().find(|c| c.cpu != p.cpu && c.idle > 0.5);
    let away = || {
        free.zip(rival).map(|(c, r)| format!("sudo taskset -acp {} {}     # or move it away", c.cpu, r.pid))
    };
    let (title, mut change) = match why(p, rival, apart) {
        Why::OwnClass => {
            (format!("{reader} is SCHED_IDLE and runs only when {who} does not"), vec![as_others(p)])
        }
        Why::RivalClass(class) => (
            format!("{reader} waits for {who}, whose class {} goes before any nice value", class.name()),
            rival.map(as_others).into_iter().chain(away()).collect(),
        ),
        Why::OwnNice => (format!("{reader} has nice {} and waits for {who}", p.nice), vec![renice(0, p)]),
        Why::Share => (
            format!("{reader} has to share CPU {} with {who}", p.cpu),
            reorder(p, rival, apart).into_iter().chain(away()).collect(),
        ),
    };
    if change.is_empty() {
        change.push(format!(
            "# no nice value helps: fewer programs on CPU {}, or another CPU for this one",
            p.cpu
        ));
    }
    cause(
        p.pid,
        title,
        evidence,
        change,
        "it runs when packets are there: it can have the time that it now spends waiting",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, nice: i32, policy: Policy) -> Process {
        Process { pid, nice, policy, threads: 1, ..Process::default() }
    }

    #[test]
    fn a_nice_value_that_is_advised_is_one_that_helps() {
        for own in NICE_LEAST..20 {
            for of_rival in NICE_LEAST..20 {
                let (p, r) = (process(5, own, Policy::Other), process(9, of_rival, Policy::Other));
                let command = match why(&p, Some(&r), false) {
                    Why::OwnNice => Some(renice(0, &p)),
                    Why::Share => reorder(&p, Some(&r), false),
                    other => panic!("{other:?}"),
                };
                let Some(command) = command else {
                    assert!(own < NICE_LEAST + STEP && of_rival > NICE - STEP, "{own} {of_rival}");
                    continue;
                };
                let words: Vec<&str> = command.split(' ').collect();
                let nice: i32 = words[3].parse().unwrap();
                match words[5] {
                    "5" => assert!(nice + STEP <= own, "{own} {of_rival}: {command}"),
                    _ => assert!(nice >= of_rival + STEP, "{own} {of_rival}: {command}"),
                }
            }
        }
    }

    #[test]
    fn a_class_goes_before_nice_values() {
        let of = |own, rival| why(&process(5, 0, own), Some(&process(9, 0, rival)), false);
        assert_eq!(of(Policy::Other, Policy::Fifo), Why::RivalClass(Policy::Fifo));
        assert_eq!(of(Policy::Idle, Policy::Other), Why::OwnClass);
        assert_eq!(of(Policy::Fifo, Policy::Fifo), Why::Share);
        assert_eq!(of(Policy::Other, Policy::Idle), Why::Share);
        assert_eq!(why(&process(5, 0, Policy::Idle), None, false), Why::OwnClass);
        let rival = process(9, 0, Policy::Fifo);
        assert_eq!(reorder(&process(5, 0, Policy::Rr), Some(&rival), false), None);
    }

    #[test]
    fn nice_values_of_two_sessions_do_not_count_against_each_other() {
        let (p, r) = (process(5, 19, Policy::Other), process(9, 0, Policy::Other));
        assert_eq!(why(&p, Some(&r), true), Why::Share);
        assert!(reorder(&p, Some(&r), true).unwrap().starts_with("echo 10 | sudo tee /proc/9/autogroup"));
    }
}
