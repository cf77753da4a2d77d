//! Two readings become one snapshot.

use crate::consumers::consumers;
use crate::cpus;
use crate::ledger::{self, Arrival, moved, moved32};
use crate::model::{Kind, Neighbour, SCHEMA, Snapshot};
use crate::path;
use kern::discover::Role;
use kern::raw::{Device, Raw};
use std::collections::BTreeMap;

/// What happened between `before` and `after`. `watched`: interfaces that are shown, by name; none: all that receive
/// and are up. `time_s` is the wall clock of `after`, seconds since 1970.
#[must_use]
pub fn snapshot(before: &Raw, after: &Raw, watched: &[String], host: &str, time_s: f64) -> Snapshot {
    let then: BTreeMap<u32, &Device> = before.devices.iter().map(|d| (d.ifindex, d)).collect();
    let softnet_drops =
        |raw: &Raw| raw.softnet.iter().map(|s| (s.cpu, u64::from(s.dropped))).collect::<BTreeMap<_, _>>();
    let (old, new) = (softnet_drops(before), softnet_drops(after));
    let mut backlog: u64 = new.iter().filter_map(|(cpu, n)| Some(moved32(*old.get(cpu)?, *n))).sum();
    let shown = |d: &Device| match watched {
        [] => d.role == Role::Source && d.up,
        names => names.contains(&d.name),
    };
    let mut stack = moved(&before.stack, &after.stack);
    let gauge = |name: &str| GAUGES.iter().any(|start| name.starts_with(start));
    stack.retain(|name, _| !gauge(name));
    // One that has come meanwhile is seen from the next interval on.
    let known: Vec<(&Device, &Device)> =
        after.devices.iter().filter_map(|d| Some((*then.get(&d.ifindex)?, d))).collect();
    let counters: Vec<_> = known.iter().map(|(then, now)| moved(&then.counters, &now.counters)).collect();
    let drivers: Vec<_> = known.iter().map(|(then, now)| moved(&then.driver, &now.driver)).collect();
    let moves = || known.iter().zip(counters.iter().zip(&drivers));
    let mut arrivals: Vec<Arrival> = moves()
        .map(|((_, now), (counters, driver))| ledger::arrival(now, counters, driver, &mut backlog))
        .collect();
    let counted = |n: usize| ledger::counts(known[n].1);
    let whole = arrivals.iter().enumerate().filter(|(n, _)| counted(*n)).map(|(_, a)| a);
    let mut unhandled = ledger::unhandled(whole, &stack, ledger::arp(before, after));
    for (_, arrival) in arrivals.iter_mut().enumerate().filter(|(n, _)| counted(*n)) {
        ledger::settle(arrival, &mut unhandled);
    }
    let mut interfaces = Vec::new();
    for (((then, now), (counters, driver)), arrival) in moves().zip(&arrivals) {
        if shown(now) {
            let moved = path::Moved { device: counters, driver, arrival };
            interfaces.push(path::interface(then, now, &moved, (before, after)));
        }
    }
    let mut sent = 0;
    for (((_, now), (counters, _)), arrival) in moves().zip(&mut arrivals) {
        if ledger::counts(now) {
            sent += counters.get("tx_packets").copied().unwrap_or(0);
        } else {
            // Its packets are its lower device's, but for those that only it tells to be for another host.
            *arrival = ledger::other_host(counters);
        }
    }
    let gauges = after.stack.iter().filter(|(name, _)| gauge(name));
    let gauges = gauges.map(|(name, n)| (name.clone(), *n)).collect();
    let read = |name: &str| stack.get(name).copied().unwrap_or(0);
    let processes = cpus::processes(before, after);
    let cpus = cpus::cpus(before, after, &processes);
    let datagrams = read("Udp.InDatagrams") + read("Udp6.InDatagrams");
    let (consumers, consumers_quiet) = consumers(before, after, datagrams);
    let filters = consumers.iter().filter(|c| c.kind == Kind::Filter).filter_map(|c| c.lost).sum();
    let mut ledger = ledger::close(&arrivals, &stack, before, after, filters);
    ledger.sent = sent;
    let passed_on = passed_on(&after.devices);
    if passed_on.is_some() {
        ledger.passed_on = ledger::sent_below_ip(sent, &stack, after).min(ledger.below_ip);
    }
    let path = path::host(&interfaces, &cpus, &consumers, &ledger, after);
    let has = |name: &String| after.devices.iter().any(|d| d.name == *name);
    let vanished = |d: &&Device| after.devices.iter().all(|a| a.ifindex != d.ifindex);
    // One that is watched is missed for as long as nothing has its name: it was removed, or renamed.
    let gone = before.devices.iter().filter(vanished).filter(|d| !watched.contains(&d.name)).count()
        + watched.iter().filter(|name| !has(name)).count();
    let mut skipped: BTreeMap<String, u64> =
        after.skipped.iter().filter(|(_, n)| **n > 0).map(|(what, n)| ((*what).to_owned(), *n)).collect();
    if gone > 0 {
        *skipped.entry("interfaces".into()).or_default() += gone as u64;
    }
    let name = |index: u32| after.devices.iter().find(|d| d.ifindex == index).map(|d| d.name.clone());
    let neighbour = |(index, address): &(u32, std::net::IpAddr)| {
        Some(Neighbour { interface: name(*index)?, address: address.to_string() })
    };
    let unresolved = after.unresolved.iter().filter_map(neighbour).collect();
    Snapshot {
        schema: SCHEMA.to_owned(),
        host: host.to_owned(),
        time_s,
        interval_s: after.begin_ns.saturating_sub(before.begin_ns) as f64 / 1e9,
        path,
        interfaces,
        cpus,
        consumers,
        consumers_quiet,
        processes: processes.into_iter().take(PROCESSES_MAX).collect(),
        ledger,
        guards: Vec::new(),
        guards_hidden: false,
        accepts: Vec::new(),
        left_changed: None,
        stack,
        gauges,
        limits: after.limits.clone(),
        unresolved,
        probes: None,
        skipped,
        missing: after.missing.iter().cloned().chain(passed_on).collect(),
        hidden: after.hidden,
    }
}

/// Kinds of interfaces that take frames from a source and may send them on before IP sees them.
const BELOW_IP: [&str; 6] = ["bridge", "macvlan", "macvtap", "ipvlan", "ipvtap", "openvswitch"];
/// Most of them that are named.
const NAMED: usize = 4;

/// What such interfaces pass on: IP does not count it, and they do not tell it from what ends here.
fn passed_on(devices: &[Device]) -> Option<String> {
    let source = |name: &String| devices.iter().any(|d| d.name == *name && d.role == Role::Source && d.up);
    let takes = |d: &&Device| d.up && BELOW_IP.contains(&d.kind.as_str()) && d.lower.iter().any(source);
    let names: Vec<&str> = devices.iter().filter(takes).map(|d| d.name.as_str()).collect();
    let more = if names.len() > NAMED { ", ..." } else { "" };
    let named = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| format!("frames passed on below IP by {named}{more}, which are unaccounted"))
}

/// What the reading of the stack has beside counters begins so.
const GAUGES: [&str; 3] = ["sockstat.", "meminfo.", "nf_conntrack.entries"];
/// Most processes in a snapshot.
const PROCESSES_MAX: usize = 256;
