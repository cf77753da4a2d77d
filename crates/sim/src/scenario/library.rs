//! The scenarios and machines in the binary.

use super::item::{Fault, Item, Text, choose, entries};
use super::read::set;
use crate::machine::{self, Machine};

/// Machines by name, with the text of their files.
#[rustfmt::skip]
const MACHINES: &[(&str, &str)] = &[
    ("mogul96", include_str!("../../machines/mogul96.toml")),
    ("modern", include_str!("../../machines/modern.toml")),
    ("wu05", include_str!("../../machines/wu05.toml")),
    ("beihang13", include_str!("../../machines/beihang13.toml")),
    ("manycore", include_str!("../../machines/manycore.toml")),
    ("activo07", include_str!("../../machines/activo07.toml")),
    ("placed", include_str!("../../machines/placed.toml")),
];

/// Scenarios by name, in the order in which they are listed.
const SCENARIOS: &[(&str, &str)] = &[
    ("livelock-router", include_str!("../../scenarios/livelock-router.toml")),
    ("screen", include_str!("../../scenarios/screen.toml")),
    ("quota", include_str!("../../scenarios/quota.toml")),
    ("cycle-limit", include_str!("../../scenarios/cycle-limit.toml")),
    ("alternatives", include_str!("../../scenarios/alternatives.toml")),
    ("interrupt-limit", include_str!("../../scenarios/interrupt-limit.toml")),
    ("tick-sampling", include_str!("../../scenarios/tick-sampling.toml")),
    ("clocked", include_str!("../../scenarios/clocked.toml")),
    ("polled-completions", include_str!("../../scenarios/polled-completions.toml")),
    ("tx-starvation", include_str!("../../scenarios/tx-starvation.toml")),
    ("burst-latency", include_str!("../../scenarios/burst-latency.toml")),
    ("fairness", include_str!("../../scenarios/fairness.toml")),
    ("low-water", include_str!("../../scenarios/low-water.toml")),
    ("mogul96-weir", include_str!("../../scenarios/mogul96-weir.toml")),
    ("mogul96-weir-router", include_str!("../../scenarios/mogul96-weir-router.toml")),
    ("trains", include_str!("../../scenarios/trains.toml")),
    ("livelock-udp", include_str!("../../scenarios/livelock-udp.toml")),
    ("modern-router", include_str!("../../scenarios/modern-router.toml")),
    ("modern-burst", include_str!("../../scenarios/modern-burst.toml")),
    ("modern-quota", include_str!("../../scenarios/modern-quota.toml")),
    ("modern-cycle-limit", include_str!("../../scenarios/modern-cycle-limit.toml")),
    ("modern-clocked", include_str!("../../scenarios/modern-clocked.toml")),
    ("innocents", include_str!("../../scenarios/innocents.toml")),
    ("innocents-router", include_str!("../../scenarios/innocents-router.toml")),
    ("many-consumers", include_str!("../../scenarios/many-consumers.toml")),
    ("full-consumer", include_str!("../../scenarios/full-consumer.toml")),
    ("protected-flow", include_str!("../../scenarios/protected-flow.toml")),
    ("refused-takeover", include_str!("../../scenarios/refused-takeover.toml")),
    ("hung-consumer", include_str!("../../scenarios/hung-consumer.toml")),
    ("first-drop", include_str!("../../scenarios/first-drop.toml")),
    ("socket-buffer", include_str!("../../scenarios/socket-buffer.toml")),
    ("ring-refill", include_str!("../../scenarios/ring-refill.toml")),
    ("memory-limit", include_str!("../../scenarios/memory-limit.toml")),
    ("cpu-share", include_str!("../../scenarios/cpu-share.toml")),
    ("wu05-udp", include_str!("../../scenarios/wu05-udp.toml")),
    ("wu05-udp-200", include_str!("../../scenarios/wu05-udp-200.toml")),
    ("wu05-memory", include_str!("../../scenarios/wu05-memory.toml")),
    ("wu05-livelock-udp", include_str!("../../scenarios/wu05-livelock-udp.toml")),
    ("steering", include_str!("../../scenarios/steering.toml")),
    ("affinity", include_str!("../../scenarios/affinity.toml")),
    ("accept", include_str!("../../scenarios/accept.toml")),
    ("accept-skew", include_str!("../../scenarios/accept-skew.toml")),
    ("accept-zipf", include_str!("../../scenarios/accept-zipf.toml")),
    ("accept-stall", include_str!("../../scenarios/accept-stall.toml")),
    ("accept-mixed", include_str!("../../scenarios/accept-mixed.toml")),
    ("beihang13-weir", include_str!("../../scenarios/beihang13-weir.toml")),
    ("cores", include_str!("../../scenarios/cores.toml")),
    ("modern-cores", include_str!("../../scenarios/modern-cores.toml")),
    ("cpu-net", include_str!("../../scenarios/cpu-net.toml")),
    ("cpu-net-resize", include_str!("../../scenarios/cpu-net-resize.toml")),
    ("place-auto", include_str!("../../scenarios/place-auto.toml")),
    ("place-rss", include_str!("../../scenarios/place-rss.toml")),
    ("place-spread", include_str!("../../scenarios/place-spread.toml")),
];

/// Traces of these scenarios, by file name.
const TRACES: &[(&str, &str)] = &[("trains.trace", include_str!("../../scenarios/trains.trace"))];

/// The text of a trace.
pub fn trace_of(name: &str) -> Option<&'static str> {
    TRACES.iter().find(|(other, _)| *other == name).map(|(_, text)| *text)
}

/// Names of the scenarios.
pub fn names() -> Vec<&'static str> {
    SCENARIOS.iter().map(|(name, _)| *name).collect()
}

/// The text of a scenario.
pub fn text_of(name: &str) -> Option<&'static str> {
    SCENARIOS.iter().find(|(other, _)| *other == name).map(|(_, text)| *text)
}

/// The scenario of that name; `None` if there is none.
///
/// # Errors
/// A wrong `--set`; the scenarios themselves are tested.
pub fn named(name: &str, sets: &[(String, String)]) -> Option<Result<super::Scenario, Fault>> {
    Some(super::Texts::named(name)?.scenario(sets))
}

/// Names of the machines.
pub(super) fn machines() -> Vec<&'static str> {
    MACHINES.iter().map(|(name, _)| *name).collect()
}

/// The text of a machine's file.
pub(super) fn machine(name: &str) -> Option<&'static str> {
    MACHINES.iter().find(|(other, _)| *other == name).map(|(_, text)| *text)
}

pub(super) fn kind(path: &str, text: &str) -> Result<&'static machine::Kind, Fault> {
    let text = Text { path, text };
    let table = text.table()?;
    let all = entries(text, &table);
    let missing = || Fault(format!("{path}:1:1: the key kind is missing; give a kind of machine"));
    let (_, _, item) = all.iter().find(|(key, ..)| *key == "kind").ok_or_else(missing)?;
    let name = item.given()?.to_string();
    machine::kind(&name).ok_or_else(|| {
        let names: Vec<&str> = machine::KINDS.iter().map(|kind| kind.name).collect();
        item.wrong(&format!("{name}: no such kind; {}", choose(&name, &names)))
    })
}

/// Names of the settings of a kind.
pub(super) fn keys(kind: &machine::Kind) -> Vec<&'static str> {
    (kind.keys)().iter().map(|key| key.name).collect()
}

/// The machine of a file: `kind`, `about` and `[settings]`.
pub(super) fn build(name: &str, text: &str) -> Result<Box<dyn Machine>, Fault> {
    let path = format!("{name}.toml");
    let kind = kind(&path, text)?;
    let mut machine = (kind.new)();
    let names = keys(kind);
    let text = Text { path: &path, text };
    let table = text.table()?;
    for (key, span, item) in entries(text, &table) {
        match key {
            "kind" | "about" => {}
            "settings" => {
                for (_, span, item) in Item::entries(&item)? {
                    set(machine.as_mut(), &names, &span, &item)?;
                }
            }
            _ => {
                let fix = choose(key, &["kind", "about", "settings"]);
                return Err(text.fault(&span, &format!("unknown key \"{key}\"; {fix}")));
            }
        }
    }
    Ok(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file in the binary is right; a wrong one would only be found when somebody runs it.
    #[test]
    fn all_scenarios_and_machines_are_accepted() {
        for (name, text) in MACHINES {
            build(name, text).unwrap_or_else(|fault| panic!("{fault}"));
        }
        for (name, _) in SCENARIOS {
            let scenario = named(name, &[]).unwrap().unwrap_or_else(|fault| panic!("{fault}"));
            assert!(!scenario.about.is_empty() && !scenario.arms.is_empty(), "{name}");
        }
    }
}
