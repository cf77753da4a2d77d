//! What `weir accept` prints: the plan, the progress, both as text and as JSON.

use super::follow::{Attached, Following};
use super::targets::server;
use crate::out;
use kern::accept::{Group, LEASE_OVER, MEMBERS_OTHER, MIGRATED, Member, PLACED, REFUSED, UNMOVED, Where};
use policy::accept::queues::{STALLED, Why};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The largest over the mean, and Jain's index; `None` without anything.
pub fn evenness(counts: &[u64]) -> Option<(f64, f64)> {
    let counts: Vec<f64> = counts.iter().map(|n| *n as f64).collect();
    let sum: f64 = counts.iter().sum();
    let most = counts.iter().copied().max_by(f64::total_cmp)?;
    Some((most * counts.len() as f64 / sum, results::stats::jain(&counts)?)).filter(|_| sum > 0.0)
}

fn core(member: &Member) -> String {
    match member.owner.as_ref() {
        Some(owner) => match (owner.core, owner.known) {
            (Some(core), Where::Pinned) => format!("{core} pinned"),
            (Some(core), Where::Ran) => format!("{core} last"),
            (None, _) => "?".into(),
        },
        None => "?".into(),
    }
}

/// What is wrong with a group, each with what to do.
fn wrong(group: &Group) -> Vec<String> {
    let mut list = Vec::new();
    let unknown = group.members.iter().filter(|m| m.owner.is_none()).count();
    if unknown > 0 {
        list.push(format!(
            "{} without a known worker: it gets connections only when others are long",
            out::count(unknown, "listener")
        ));
    }
    let loose = group.members.iter().filter(|m| m.owner.as_ref().is_some_and(|o| o.known == Where::Ran));
    let loose = loose.count();
    if loose > 0 {
        let line = match server(group).as_str() {
            "nginx" => "\"worker_cpu_affinity auto;\"",
            "haproxy" => "\"cpu-map auto:1/1-N 0-M\"",
            _ => "taskset, or the server's own setting",
        };
        list.push(format!(
            "{} not pinned: connections follow the core it ran on last; pin it by {line}",
            out::count(loose, "worker")
        ));
    }
    let mut per: BTreeMap<usize, usize> = BTreeMap::new();
    group.members.iter().filter_map(Member::core).for_each(|core| *per.entry(core).or_default() += 1);
    let cores = kern::accept::own_cpus();
    if per.len() < cores && unknown == 0 {
        list.push(format!(
            "workers on {} of {cores} cores: connections of the others have no own one",
            per.len()
        ));
    }
    for member in group.members.iter().filter(|m| m.waiting > m.limit / 2 && m.limit > 0) {
        list.push(format!(
            "a queue holds {} of {}: its worker is slow or stands",
            member.waiting, member.limit
        ));
    }
    list
}

/// Groups of the plan that are named as left alone.
const SKIPPED_MAX: usize = 20;
/// Why a group of UDP is, and what to do.
const SESSIONS: &str = "its datagrams may belong to sessions of one worker (QUIC, DTLS, SIP, media); if each stands alone: --udp";

/// The plan of `--dry-run`; `skipped` are groups of UDP that are left alone.
pub fn planned(groups: &[Group], skipped: &[Group]) -> String {
    let mut text = String::new();
    for group in groups {
        let _ = writeln!(
            text,
            "{}  {}, {}\n  to the own core's queue, unless it is busy or its worker stands",
            group.name(),
            server(group),
            out::count(group.members.len(), "listener")
        );
        if group.program != 0 {
            let _ = writeln!(text, "  replaces program {} of a weir that was killed", group.program);
        }
        let _ = writeln!(
            text,
            "  {:>8}  {:<10} {:>7} {:>7}  connections  affine",
            "worker", "core", "queue", "of"
        );
        for member in &group.members {
            let worker = member.owner.as_ref().map_or("?".into(), |o| o.tid.to_string());
            let _ = writeln!(
                text,
                "  {worker:>8}  {:<10} {:>7} {:>7}  {:>11}  {:>6}",
                core(member),
                member.waiting,
                member.limit,
                member.connections,
                member.affine
            );
        }
        let counts: Vec<u64> = group.members.iter().map(|m| u64::from(m.connections)).collect();
        let _ = match evenness(&counts) {
            Some((most, jain)) => {
                let affine: u32 = group.members.iter().map(|m| m.affine).sum();
                let share = 100.0 * f64::from(affine) / counts.iter().sum::<u64>() as f64;
                writeln!(text, "  today: max/mean {most:.2}, Jain {jain:.2}, affine {share:.0} %")
            }
            None => writeln!(text, "  today: no connections that can be told by worker"),
        };
        for line in wrong(group) {
            let _ = writeln!(text, "  note: {}", out::wrap(&line, 8));
        }
    }
    for group in skipped.iter().take(SKIPPED_MAX) {
        let left = format!("{}  {}: left alone, {SESSIONS}", group.name(), server(group));
        let _ = writeln!(text, "{}", out::wrap(&left, 2));
    }
    if skipped.len() > SKIPPED_MAX {
        let _ = writeln!(text, "and {} groups of UDP more", skipped.len() - SKIPPED_MAX);
    }
    text
}

/// The same as JSON.
pub fn planned_json(groups: &[Group], skipped: &[Group]) -> anyhow::Result<String> {
    let groups: Vec<Value> = groups
        .iter()
        .map(|group| {
            let counts: Vec<u64> = group.members.iter().map(|m| u64::from(m.connections)).collect();
            let even = evenness(&counts);
            let workers: Vec<Value> = group
                .members
                .iter()
                .map(|m| {
                    let owner = m.owner.as_ref();
                    json!({"pid": owner.map(|o| o.pid), "tid": owner.map(|o| o.tid), "core": m.core(),
                        "pinned": owner.is_some_and(|o| o.known == Where::Pinned), "waiting": m.waiting,
                        "limit": m.limit, "connections": m.connections, "affine": m.affine})
                })
                .collect();
            json!({"address": group.name(), "netns": group.netns, "server": server(group),
                "replaces": (group.program != 0).then_some(group.program), "workers": workers,
                "max_over_mean": even.map(|e| e.0), "jain": even.map(|e| e.1), "notes": wrong(group)})
        })
        .collect();
    let skipped: Vec<Value> = skipped
        .iter()
        .take(SKIPPED_MAX)
        .map(|group| {
            json!({"address": group.name(), "netns": group.netns, "server": server(group), "why": SESSIONS})
        })
        .collect();
    let plan = json!({"schema": "weir.accept/1", "plan": true, "groups": groups, "skipped": skipped});
    Ok(format!("{}\n", serde_json::to_string(&plan)?))
}

/// The line when the choice is in force.
pub fn greeting(following: &Following) -> String {
    let names: Vec<String> = following
        .all
        .iter()
        .map(|one| {
            format!(
                "{} ({}, {})",
                one.group.name(),
                server(&one.group),
                out::count(one.group.members.len(), "listener")
            )
        })
        .collect();
    format!("weir: choosing queues of {}", out::listed(&names))
}

fn placed(one: &Attached) -> Vec<u64> {
    (0..one.group.members.len()).map(|slot| u64::from(one.choice.queue(slot).placed)).collect()
}

/// A line per group.
pub fn lines(following: &Following) -> String {
    let mut text = String::new();
    for one in &following.all {
        let chosen = one.choice.chosen();
        let of = |why: Why| chosen.get(why as usize).copied().unwrap_or(0);
        let ours: u64 = chosen.iter().take(PLACED).sum();
        let [migrated, unmoved] = [MIGRATED, UNMOVED].map(|at| chosen.get(at).copied().unwrap_or(0));
        let kernel = chosen.iter().skip(PLACED).sum::<u64>() - migrated - unmoved;
        let _ = write!(text, "{}: ", one.group.name());
        if !one.there() {
            let _ = write!(text, "not there; ");
        }
        let _ = write!(
            text,
            "{} placed, own core {:.1} %, stalled {}, away {}, late {}, busy {}, \
             share {}, no_own {}, by the kernel {kernel}, migrated {migrated}, unmoved {unmoved}",
            out::grouped(ours),
            100.0 * of(Why::Own) as f64 / ours.max(1) as f64,
            of(Why::Stalled),
            of(Why::Away),
            of(Why::Late),
            of(Why::Busy),
            of(Why::Share),
            of(Why::NoOwn),
        );
        if let Some((most, jain)) = evenness(&placed(one)) {
            let _ = write!(text, "; max/mean {most:.2}, Jain {jain:.2}");
        }
        text.push('\n');
    }
    text
}

/// One line of JSON.
pub fn json(following: &Following, end: bool) -> anyhow::Result<String> {
    Ok(format!("{}\n", serde_json::to_string(&told(following, end))?))
}

/// What is done, as JSON; [`see::accept::Accept`] is a part of it.
pub fn told(following: &Following, end: bool) -> Value {
    let now = kern::raw::monotonic_ns();
    let groups: Vec<Value> = following
        .all
        .iter()
        .map(|one| {
            let chosen = one.choice.chosen();
            let mut by: serde_json::Map<String, Value> =
                Why::ALL.iter().zip(chosen).map(|(why, n)| (why.name().into(), n.into())).collect();
            for (name, at) in [
                ("lease_over", LEASE_OVER),
                ("members_other", MEMBERS_OTHER),
                ("refused", REFUSED),
                ("migrated", MIGRATED),
                ("unmoved", UNMOVED),
            ] {
                by.insert(name.into(), chosen.get(at).copied().unwrap_or(0).into());
            }
            let ours: u64 = chosen.iter().take(PLACED).sum();
            let own = chosen.first().copied().unwrap_or(0);
            let even = evenness(&placed(one));
            let workers: Vec<Value> = one
                .group
                .members
                .iter()
                .enumerate()
                .map(|(slot, m)| {
                    let seen = one.choice.queue(slot);
                    let oldest = seen.oldest.filter(|_| seen.waiting > 0);
                    let oldest = oldest.map(|born| now.saturating_sub(born) as f64 / 1e6);
                    let owner = m.owner.as_ref();
                    json!({"pid": owner.map(|o| o.pid), "tid": owner.map(|o| o.tid), "core": m.core(),
                        "pinned": owner.is_some_and(|o| o.known == Where::Pinned), "placed": seen.placed,
                        "affine": seen.affine, "waiting": seen.waiting, "oldest_ms": oldest, "does": seen.does.name(), "limit": m.limit, "stalled": one.choice.stands(slot, now, STALLED)})
                })
                .collect();
            json!({"address": one.group.name(), "netns": one.group.netns, "server": server(&one.group),
                "there": one.there(), "program": one.choice.id(), "chosen": by, "looks": one.choice.looks(),
                "own_percent": (ours > 0).then(|| 100.0 * own as f64 / ours as f64),
                "max_over_mean": even.map(|e| e.0), "jain": even.map(|e| e.1), "workers": workers})
        })
        .collect();
    json!({"schema": "weir.accept/1", "pid": std::process::id(), "end": end, "moves": following.moves, "groups": groups})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenness_of_counts() {
        assert_eq!(evenness(&[]), None);
        assert_eq!(evenness(&[0, 0]), None);
        assert_eq!(evenness(&[5, 5]), Some((1.0, 1.0)));
        assert_eq!(evenness(&[10, 0]), Some((2.0, 0.5)));
    }
}
