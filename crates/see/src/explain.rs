//! Why packets are lost here: one report from what the host shows, first cause first.
//!
//! Each loss of an interval is put to the rules of its place, the most special first, and the first rule whose
//! conditions hold gives the finding. What several losses have as their common cause is one finding. No rule knows
//! more than the [`Snapshot`]: no experiment, no port, no name.

mod output;
mod place;
mod profiled;
mod receiver;
mod stack;
mod wire;

pub use profiled::profiled;

use crate::accept::{Accept, Group};
use crate::guard;
use crate::model::{Consumer, Cpu, Interface, Kind, Place, Process, SHED, Snapshot};
use kern::shell::quoted;
use serde::{Deserialize, Serialize};

/// Value of [`Report::schema`].
pub const SCHEMA: &str = "weir.explain/1";
/// Losses below this many packets, or this share of what was offered, are told but are no finding.
const LOSS_MIN: u64 = 10;
const SHARE_MIN: f64 = 1e-4;

/// One report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Name of the host.
    pub host: String,
    /// Seconds that were looked at.
    pub seconds: f64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// Of these, those on their way out, which need not have arrived.
    pub lost_output: u64,
    /// Packets that the ledger cannot place, and how well it can know.
    pub unaccounted: i64,
    /// See [`Report::unaccounted`].
    pub skew: u64,
    /// Packets that no counter places, where they are too many for the skew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unplaced: Option<Unplaced>,
    /// What loses packets, or is about to limit a connection; the first cause first. Empty: nothing is wrong.
    pub findings: Vec<Finding>,
    /// What guards shed on purpose, one line for each interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<String>,
    /// What looks like trouble and is none.
    pub harmless: Vec<String>,
    /// What is nearest to its limit.
    pub closest: Vec<String>,
    /// Listeners between which a running `weir accept` chooses, with their workers, one line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepts: Vec<String>,
    /// Rules that were tried.
    pub rules: usize,
    /// What was not measured.
    pub missing: Vec<String>,
}

/// Packets that no counter places: dropped where nothing counts, or passed on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unplaced {
    /// How many.
    pub packets: u64,
    /// Of them: devices received them, and IP did not.
    pub below_ip: u64,
    /// Interfaces by which they can have come, those that received most first.
    pub interfaces: Vec<String>,
}

/// One finding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// The rule's short name, which is its section in docs/explain.md too.
    pub rule: String,
    /// Stage that loses.
    pub place: Place,
    /// What is wrong, in one line.
    pub title: String,
    /// Packets lost by it.
    pub lost: u64,
    /// Names and numbers that say so.
    pub evidence: Vec<(String, String)>,
    /// Commands, the smallest change first; a line that is not a command begins with `#`.
    pub change: Vec<String>,
    /// What they should do to the numbers.
    pub effect: String,
    /// Requirement, kernel source.
    pub source: String,
    /// Other losses that have the same cause.
    pub also: Vec<String>,
}

/// A loss that wants a cause.
#[derive(Clone, Debug)]
pub(crate) struct Loss<'a> {
    place: Place,
    /// The ledger's word: `ring`, `backlog`, `socket`, ...
    what: String,
    packets: u64,
    interface: Option<&'a Interface>,
    consumer: Option<&'a Consumer>,
}

/// What a rule sees.
pub(crate) struct Case<'a> {
    pub s: &'a Snapshot,
    pub loss: &'a Loss<'a>,
}

/// What a rule that holds says; the rest of the finding is the rule's and the loss's.
pub(crate) struct Cause {
    /// Losses of the same rule with the same key are one finding.
    pub key: String,
    pub title: String,
    pub evidence: Vec<(String, String)>,
    pub change: Vec<String>,
    pub effect: String,
}

/// One rule.
pub(crate) struct Rule {
    pub name: &'static str,
    /// Losses that it can explain, by the ledger's words.
    pub of: &'static [&'static str],
    pub source: &'static str,
    pub test: fn(&Case<'_>) -> Option<Cause>,
}

/// All rules; of one place the most special first.
fn rules() -> impl Iterator<Item = &'static Rule> {
    wire::RULES.iter().chain(&stack::RULES).chain(&receiver::RULES).chain(&output::RULES)
}

impl Case<'_> {
    pub fn per_second(&self, packets: u64) -> String {
        let rate = packets as f64 / self.s.interval_s.max(1e-9);
        if rate >= 1e3 { format!("{:.1} k/s", rate / 1e3) } else { format!("{rate:.0} /s") }
    }

    /// The process behind the consumer.
    pub fn process(&self) -> Option<&Process> {
        let pid = self.loss.consumer?.pid;
        self.s.processes.iter().find(|p| p.pid == pid && pid != 0)
    }

    pub fn cpu(&self, number: u32) -> Option<&Cpu> {
        self.s.cpus.iter().find(|c| c.cpu == number)
    }

    pub fn consumer_name(&self) -> String {
        self.loss.consumer.map_or("a socket".into(), name)
    }

    pub fn interface_name(&self) -> String {
        self.loss.interface.map_or("the interface".into(), |i| i.name.clone())
    }

    /// Interface by which most packets come: one that has sources, as long as there is any.
    pub fn busiest_interface(&self) -> String {
        let busiest = self.s.interfaces.iter().max_by_key(|i| (!i.stacked, i.offered));
        busiest.map_or("IF".into(), |i| i.name.clone())
    }

    /// What protects `interface`: a guard, or where one runs already the way to see what keeps it from doing more.
    pub fn guard(&self, interface: &str) -> String {
        match guard::sources_of(&self.s.guards, interface).next() {
            Some(_) => "# a guard runs here: sudo weir status".into(),
            None => format!("sudo weir guard {}", quoted(interface)),
        }
    }

    /// Memory of the machine, kB, if it is known.
    pub fn memory_kb(&self) -> Option<u64> {
        self.s.gauges.get("meminfo.MemTotal").copied()
    }

    pub fn limit(&self, name: &str, index: usize) -> Option<u64> {
        self.s.limits.get(name)?.get(index).copied()
    }
}

/// Time of a CPU that went into packets before any program: interrupts, softirqs, their threads.
pub(crate) fn packet_share(cpu: &Cpu) -> f64 {
    cpu.irq + cpu.softirq + cpu.threads
}

/// What packets keep of a CPU, weir's pollers too.
pub(crate) fn packet_work(cpu: &Cpu) -> f64 {
    packet_share(cpu) + cpu.weir
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

pub(crate) fn name(c: &Consumer) -> String {
    if c.pid == 0 { c.socket.clone() } else { format!("{} {} ({})", c.process, c.pid, c.socket) }
}

/// The report on one window. `s` is the whole window, from its first reading to its last.
#[must_use]
pub fn explain(s: &Snapshot) -> Report {
    let losses = losses(s);
    let enough = |loss: &Loss<'_>| {
        loss.packets >= LOSS_MIN && loss.packets as f64 >= SHARE_MIN * s.ledger.offered as f64
    };
    let (big, small): (Vec<&Loss<'_>>, Vec<&Loss<'_>>) = losses.iter().partition(|loss| enough(loss));
    let mut findings: Vec<(String, Finding)> = Vec::new();
    for loss in big {
        let case = Case { s, loss };
        let of_place = rules().filter(|r| r.of.contains(&loss.what.as_str()));
        let Some((rule, cause)) = of_place.filter_map(|r| Some((r, (r.test)(&case)?))).next() else {
            continue;
        };
        add(&mut findings, &case, rule, cause);
    }
    findings.sort_by_key(|(_, f)| (noise(f), std::cmp::Reverse(f.lost)));
    let mut harmless = harmless(s);
    for loss in small {
        let of = loss.consumer.map_or(String::new(), |c| format!(" of {}", name(c)));
        harmless.push(format!("{} lost, {}{of}: too few to be a finding", loss.packets, loss.what));
    }
    Report {
        schema: SCHEMA.into(),
        host: s.host.clone(),
        seconds: s.interval_s,
        offered: s.ledger.offered,
        lost: losses.iter().map(|l| l.packets).sum(),
        lost_output: losses.iter().filter(|l| l.place == Place::Output).map(|l| l.packets).sum(),
        unaccounted: s.ledger.unaccounted,
        skew: s.ledger.skew,
        unplaced: unplaced(s),
        findings: findings.into_iter().map(|(_, f)| f).chain(output::windows(s)).collect(),
        guards: s
            .interfaces
            .iter()
            .filter_map(|i| guard::shed_sentence(&s.guards, &i.name))
            .take(SHED_MAX)
            .collect(),
        harmless,
        closest: closest(s),
        accepts: s.accepts.iter().flat_map(accepts).collect(),
        // The one about windows needs no loss.
        rules: rules().count() + 1,
        missing: s.missing.clone(),
    }
}

/// Fewer packets per second, or a smaller share, that no counter places may be protocols that the kernel does not count.
const UNPLACED_MIN: f64 = 50.0;
const UNPLACED_SHARE: f64 = 0.01;
/// Interfaces that are named with them.
const UNPLACED_NAMES: usize = 4;

fn unplaced(s: &Snapshot) -> Option<Unplaced> {
    let ledger = &s.ledger;
    let packets = u64::try_from(ledger.unaccounted).unwrap_or(0).saturating_sub(ledger.passed_on);
    let enough = packets > ledger.skew.saturating_mul(2)
        && packets as f64 >= UNPLACED_MIN * s.interval_s
        && packets as f64 >= UNPLACED_SHARE * ledger.offered as f64;
    let mut by_rate: Vec<&Interface> = s.interfaces.iter().filter(|i| !i.stacked && i.offered > 0).collect();
    by_rate.sort_by_key(|i| std::cmp::Reverse(i.offered));
    enough.then(|| Unplaced {
        packets,
        below_ip: ledger.below_ip.saturating_sub(ledger.passed_on),
        interfaces: by_rate.into_iter().take(UNPLACED_NAMES).map(|i| i.name.clone()).collect(),
    })
}

/// Packets that nobody wanted are told after those that a program misses.
fn noise(f: &Finding) -> bool {
    f.rule == "no-port"
}

fn add(findings: &mut Vec<(String, Finding)>, case: &Case<'_>, rule: &Rule, cause: Cause) {
    let key = format!("{} {}", rule.name, cause.key);
    if let Some((_, known)) = findings.iter_mut().find(|(k, _)| *k == key) {
        known.lost += case.loss.packets;
        let of = case.loss.consumer.map_or(case.interface_name(), name);
        known.also.push(format!("{} lost at {of}", case.per_second(case.loss.packets)));
        return;
    }
    let finding = Finding {
        rule: rule.name.into(),
        place: case.loss.place,
        title: cause.title,
        lost: case.loss.packets,
        evidence: cause.evidence,
        change: cause.change,
        effect: cause.effect,
        source: format!("{}; docs/explain.md#{}", rule.source, rule.name),
        also: Vec::new(),
    };
    findings.push((key, finding));
}

fn losses(s: &Snapshot) -> Vec<Loss<'_>> {
    let mut all = Vec::new();
    let mut push = |place, what: &str, packets: u64, interface, consumer| {
        if packets > 0 {
            all.push(Loss { place, what: what.to_owned(), packets, interface, consumer });
        }
    };
    let below = s.interfaces.iter().any(|i| !i.stacked);
    for interface in &s.interfaces {
        for stage in &interface.stages {
            for (what, n) in &stage.drops {
                // What weir's gate has shed was not to be kept; and a bond or VLAN repeats what is lost below it, but for what its
                // own queue loses.
                let again = below && interface.stacked && what != "queue";
                if what != SHED && !again {
                    push(stage.place, what, *n, Some(interface), None);
                }
            }
        }
    }
    for stage in s.path.iter().filter(|stage| matches!(stage.place, Place::Backlog | Place::Stack)) {
        for (what, n) in
            stage.drops.iter().filter(|(what, _)| !matches!(what.as_str(), "filter" | "ignored" | "vanished"))
        {
            push(stage.place, what, *n, None, None);
        }
    }
    push(Place::Stack, "vanished", stack::vanished(s), None, None);
    push(Place::Stack, "neighbour", stack::unsent(s), None, None);
    let at = |place: &str| s.ledger.drops.get(place).copied().unwrap_or(0);
    let counted = at("socket") + at("socket memory");
    let udp = s.consumers.iter().filter(|c| c.kind == Kind::Udp);
    let named: u64 = udp.filter_map(|c| c.lost).sum();
    // What the socket's own filter refuses, or its checksum, the socket counts as its drop too: no queue was full.
    let refused =
        counted * 2 < named && named <= counted.saturating_add(at("checksum")).saturating_add(at("stack"));
    for consumer in s.consumers.iter().filter(|c| !refused || c.kind != Kind::Udp) {
        let lost = consumer.lost.unwrap_or(0);
        push(Place::Consumer, crate::consumers::word(consumer.kind), lost, None, Some(consumer));
    }
    // Memory that is short is counted for all sockets together where the socket has gone, or does not tell.
    push(Place::Consumer, "gone socket", counted.saturating_sub(named), None, None);
    push(Place::Consumer, "tcp memory", receiver::thrown_away(s), None, None);
    all
}

/// Interfaces whose shed frames are told.
const SHED_MAX: usize = 8;

/// What people search for, and need not.
fn harmless(s: &Snapshot) -> Vec<String> {
    let mut list = Vec::new();
    let squeezed: u64 = s.cpus.iter().map(|c| c.squeezed).sum();
    let backlog: u64 = s.cpus.iter().map(|c| c.backlog_drops).sum();
    if squeezed > 0 && backlog == 0 {
        list.push(format!(
            "time_squeeze rose by {squeezed}: softirq used its budget and went on; no packet was lost by it (net_rx_action, net/core/dev.c)"
        ));
    }
    if let Some(n) = s.ledger.drops.get("ignored").filter(|n| **n > 0) {
        list.push(format!(
            "{n} packets of protocols, VLANs, addresses or multicast groups that nobody here wants (rx_dropped, rx_otherhost_dropped, Ip6.InMcastPkts)"
        ));
    }
    list
}

/// Workers of a group that are told, the worst ones.
const WORKERS: usize = 16;

fn accepts(accept: &Accept) -> Vec<String> {
    let line = |group: &Group| {
        let mut workers: Vec<String> =
            group.worst_first().into_iter().take(WORKERS).map(|worker| group.describe(worker)).collect();
        let more = group.workers.len().saturating_sub(WORKERS);
        workers.extend((more > 0).then(|| format!("{more} more")));
        format!("{} {}, chosen by pid {}: {}", group.address, group.server, accept.pid, workers.join("; "))
    };
    accept.groups.iter().filter(|group| group.there).map(line).collect()
}

/// The fullest CPU and the fullest queue.
fn closest(s: &Snapshot) -> Vec<String> {
    let mut list = Vec::new();
    if let Some(cpu) = s.cpus.iter().min_by(|a, b| a.idle.total_cmp(&b.idle)) {
        list.push(format!("CPU {}, {} busy", cpu.cpu, percent(1.0 - cpu.idle)));
    }
    let fullest = s.consumers.iter().filter(|c| c.level.is_some_and(|l| l > 0.0)).max_by(|a, b| {
        let level = |c: &Consumer| c.level.unwrap_or(0.0);
        level(a).total_cmp(&level(b))
    });
    if let Some(c) = fullest {
        list.push(format!("{}, {} full", name(c), percent(c.level.unwrap_or(0.0))));
    }
    list
}

#[cfg(test)]
mod tests;
