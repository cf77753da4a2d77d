//! Which CPUs work on packets, which run the programs that read, and how many packets go from the ones to the others.

use super::{Case, percent};
use crate::model::{Kind, Snapshot};
use kern::shell::quoted;

/// Share of the packets, and of a CPU's time, from which on a CPU has a part in it.
const PART: f64 = 0.05;
/// CPUs that are named at most.
const NAMED: usize = 4;

/// Share of the packets that `cpu` has handed to the stack.
fn share(s: &Snapshot, cpu: u32) -> f64 {
    let all: u64 = s.cpus.iter().map(|c| c.packets).sum();
    let here: u64 = s.cpus.iter().filter(|c| c.cpu == cpu).map(|c| c.packets).sum();
    here as f64 / all.max(1) as f64
}

/// Roles of the CPUs that have one, the one with most packets first.
fn roles(s: &Snapshot) -> Vec<String> {
    let mut cpus: Vec<u32> = s.cpus.iter().map(|c| c.cpu).collect();
    cpus.sort_by(|a, b| share(s, *b).total_cmp(&share(s, *a)));
    let one = |cpu: u32| {
        let readers = s.processes.iter().filter(|p| p.receives && p.cpu == cpu && p.runs >= PART);
        let readers: Vec<&str> = readers.map(|p| p.name.as_str()).take(NAMED).collect();
        let packets = share(s, cpu);
        let guard = s.guards.iter().flat_map(|g| &g.cpus).any(|p| p.cpu == cpu && p.role == "net");
        let role = match (packets >= PART || guard, readers.is_empty()) {
            (true, true) => "net",
            (true, false) => "shared",
            (false, false) => "host",
            (false, true) => return None,
        };
        let mut parts = Vec::new();
        if packets >= PART {
            parts.push(format!("{} of the packets", percent(packets)));
        }
        if !readers.is_empty() {
            parts.push(format!("runs {}", readers.join(", ")));
        }
        Some(format!("CPU {cpu} {role}{}{}", if parts.is_empty() { "" } else { ": " }, parts.join(", ")))
    };
    cpus.into_iter().filter_map(one).take(NAMED).collect()
}

/// Of what programs have taken the share whose packets another CPU than the program's has worked on, if all packets are alike.
fn crossings(s: &Snapshot) -> Option<f64> {
    let (mut taken, mut crossed) = (0.0, 0.0);
    for consumer in s.consumers.iter().filter(|c| matches!(c.kind, Kind::Udp)) {
        let Some(process) = s.processes.iter().find(|p| p.pid == consumer.pid && p.receives) else {
            continue;
        };
        let out = consumer.out.unwrap_or(0) as f64;
        taken += out;
        crossed += out * (1.0 - share(s, process.cpu));
    }
    (taken > 0.0).then(|| crossed / taken)
}

/// What is known of where packets and programs are.
pub(super) fn rows(case: &Case<'_>) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let roles = roles(case.s);
    if !roles.is_empty() {
        rows.push(("roles".to_owned(), roles.join("; ")));
    }
    if let Some(crossed) = crossings(case.s) {
        rows.push(("crossings".to_owned(), format!("{} of what programs read, estimated", percent(crossed))));
    }
    rows
}

/// What shows the plan, and what carries it out.
pub(super) fn plan(interface: &str) -> [String; 3] {
    let interface = quoted(interface);
    [
        "# or give other CPUs a part: what is wrong with the layout, and the plan".to_owned(),
        format!("sudo weir place {interface}"),
        format!("sudo weir place {interface} --apply     # tries it, and undoes it unless it helps"),
    ]
}
