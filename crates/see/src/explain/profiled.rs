//! The report with a profile of the same window: rules about CPUs see sampled shares, and say what the time went into.

use super::{Report, explain};
use crate::cost::{Component, Cpu, Profile, sharpen};
use crate::model::Snapshot;

/// Components that are named, at most.
const NAMED: usize = 4;

/// As [`explain()`], with the shares of the CPUs as `profile` has them.
#[must_use]
pub fn profiled(s: &Snapshot, profile: &Profile) -> Report {
    let mut s = s.clone();
    sharpen(&mut s, profile);
    let mut report = explain(&s);
    for finding in &mut report.findings {
        let cpu_of = |name: &str| name.strip_prefix("CPU ").and_then(|number| number.parse::<u32>().ok());
        let named: Vec<u32> = finding.evidence.iter().filter_map(|(name, _)| cpu_of(name)).collect();
        let cpus = named.iter().filter_map(|number| profile.cpus.iter().find(|c| c.cpu == *number));
        finding.evidence.extend(cpus.map(|cpu| (format!("samples of CPU {}", cpu.cpu), went(cpu))));
    }
    report
}

/// What most of the time of a CPU went into.
fn went(cpu: &Cpu) -> String {
    let mut parts: Vec<(Component, u64)> = cpu.components.iter().map(|(c, n)| (*c, *n)).collect();
    parts.sort_by_key(|(component, samples)| (std::cmp::Reverse(*samples), *component));
    let share = |samples: u64| format!("{:.0} %", 100.0 * samples as f64 / cpu.samples.max(1) as f64);
    let named: Vec<String> = parts
        .iter()
        .take(NAMED)
        .map(|(component, n)| format!("{} {}", component.name(), share(*n)))
        .collect();
    format!("{}; {} ran on top of programs", named.join(", "), share(cpu.taken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn a_starved_program_is_found_by_samples_where_ticks_see_nothing() {
        let consumer = model::Consumer {
            socket: "udp 53".into(),
            pid: 7,
            process: "named".into(),
            lost: Some(5_000),
            level: Some(1.0),
            ..model::Consumer::default()
        };
        let process = model::Process {
            pid: 7,
            name: "named".into(),
            cpu: 1,
            runs: 0.1,
            waits: 0.8,
            ..model::Process::default()
        };
        let ticks = model::Cpu { cpu: 1, programs: 1.0, ..model::Cpu::default() };
        let s = Snapshot {
            interval_s: 1.0,
            consumers: vec![consumer],
            processes: vec![process],
            cpus: vec![ticks],
            ledger: model::Ledger {
                offered: 10_000,
                drops: [("socket".to_owned(), 5_000)].into(),
                ..model::Ledger::default()
            },
            ..Snapshot::default()
        };
        let components = [(Component::Stack, 380), (Component::Napi, 70), (Component::UpperReceive, 49)];
        let cpu =
            Cpu { cpu: 1, samples: 499, components: components.into(), taken: 440, softirq: 450, threads: 0 };
        let profile = Profile { cpus: vec![cpu], ..Profile::default() };
        let by_ticks = explain(&s);
        assert_ne!(
            by_ticks.findings.first().map(|f| f.rule.as_str()),
            Some("starved-by-softirq"),
            "{by_ticks:#?}"
        );
        let report = profiled(&s, &profile);
        let first = &report.findings[0];
        assert_eq!(first.rule, "starved-by-softirq", "{report:#?}");
        let said = first.evidence.iter().find(|(name, _)| name == "samples of CPU 1").unwrap();
        assert!(
            said.1.starts_with("lower receive: stack 76 %, lower receive: NAPI 14 %")
                && said.1.contains("88 % ran on top"),
            "{said:?}"
        );
    }
}
