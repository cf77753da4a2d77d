//! From TOML to a [`Scenario`].

use super::item::{Entry, Fault, Item, Text, choose, entries};
use super::library;
use super::marks;
use super::{
    ARMS_MAX, Arm, KINDS_MAX, Kind, LOAD_MAX, Load, Marks, PACKETS_ALL_MAX, PACKETS_MAX, PanelPlan,
    SWEEP_MAX, Scenario, Shows, Sweep, TRIALS_MAX,
};
use crate::claims::{self, Claims};
use crate::machine::Machine;
use crate::settings::{Given, Refused, Time, Value};
use crate::source::Trace;
use results::Role;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the longest scenario that is read.
pub const FILE_MAX: u64 = 256 * 1024;
/// Highest offered rate, packets/s.
const RATE_MAX: u64 = 1_000_000_000;

/// Sets one setting from a file.
pub(super) fn set(
    machine: &mut dyn Machine,
    keys: &[&str],
    key_span: &Range<usize>,
    item: &Item<'_>,
) -> Result<(), Fault> {
    let given = item.given()?;
    machine.set(item.name, &given).map_err(|refused| match refused {
        Refused::Unknown => {
            let fix = choose(item.name, keys);
            item.text.fault(key_span, &format!("unknown setting \"{}\"; {fix}", item.name))
        }
        Refused::Wrong(why) => item.wrong(&format!("{given}: {why}")),
    })
}

const KEYS: [&str; 17] = [
    "one_x",
    "hogs",
    "experiment",
    "about",
    "requirements",
    "machine",
    "load",
    "packets",
    "trace",
    "trials",
    "offered",
    "settings",
    "sweep",
    "arm",
    "kind",
    "marks",
    "claims",
];

pub(super) fn scenario(
    name: &str,
    path: &str,
    text: &str,
    sets: &[(String, String)],
    beside: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Scenario, Fault> {
    let text = Text { path, text };
    let table = text.table()?;
    let all = entries(text, &table);
    for (key, span, _) in &all {
        if !KEYS.contains(key) && *key != "panel" {
            let names: Vec<&str> = KEYS.into_iter().chain(["panel"]).collect();
            return Err(text.fault(span, &format!("unknown key \"{key}\"; {}", choose(key, &names))));
        }
    }
    let find = |key: &str| all.iter().find(|(name, ..)| *name == key).map(|(_, _, item)| item);
    let need = |key: &str, fix: &str| {
        find(key).ok_or_else(|| Fault(format!("{path}:1:1: the key {key} is missing; give {fix}")))
    };
    let item = need("machine", "the name of a machine")?;
    let machine_name = item.string()?;
    let Some(file) = library::machine(machine_name) else {
        let names = library::machines();
        return Err(item.wrong(&format!("{machine_name}: no such machine; {}", choose(machine_name, &names))));
    };
    let mut machine = library::build(machine_name, file)?;
    let kind = library::kind(machine_name, file)?;
    let keys = library::keys(kind);
    if let Some(settings) = find("settings") {
        for (_, span, item) in settings.entries()? {
            set(machine.as_mut(), &keys, &span, &item)?;
        }
    }
    if let Some(item) = find("trace") {
        let trace = trace(item, path, beside)?;
        if !machine.replay(&Arc::new(trace)) {
            return Err(item.wrong("no packets come to this machine from outside; leave it out"));
        }
    }
    let load = match (find("load"), find("packets")) {
        (Some(item), None) => {
            let Time(ns) = Time::read(&item.given()?).map_err(|why| item.wrong(&why))?;
            if ns == 0 || ns > LOAD_MAX {
                return Err(item.wrong("out of range; give more than 0s and at most 3600s"));
            }
            Load::Time(ns)
        }
        (None, Some(item)) => Load::Packets(item.whole(1..=PACKETS_MAX)?),
        (Some(item), Some(_)) => return Err(item.wrong("load and packets exclude each other; give one")),
        (None, None) => {
            let fix = "load = \"2s\" or packets = 10000";
            return Err(Fault(format!("{path}:1:1: the key load is missing; give {fix}")));
        }
    };
    let trials = find("trials").map_or(Ok(1), |item| item.whole(1..=u64::from(TRIALS_MAX)))? as u32;
    let offered = find("offered").map_or(Ok(1), |item| item.whole(1..=RATE_MAX))?;
    let sweep = sweep(need("sweep", "[sweep] with offered or a setting")?, machine.as_ref(), &keys, offered)?;
    check_packets(text, &all, load, &sweep)?;
    let mut arms = Vec::new();
    for item in need("arm", "[[arm]] with a name")?.list()? {
        let arm = arm(&item, machine.clone(), &keys, sets)?;
        if arms.iter().any(|other: &Arm| other.name == arm.name) {
            return Err(item.wrong(&format!("two arms are called {}; name one otherwise", arm.name)));
        }
        if arms.len() == ARMS_MAX {
            return Err(item.wrong(&format!("more than {ARMS_MAX} arms; make two scenarios")));
        }
        arms.push(arm);
    }
    check_sweep(need("sweep", "")?, &sweep, &arms)?;
    let one_x = find("one_x").map(|item| item.whole(1..=RATE_MAX)).transpose()?;
    let experiment = find("experiment").map_or(Ok(name), Item::string)?.to_owned();
    let hogs = find("hogs").map_or(Ok(Vec::new()), |item| hogs(item, &arms))?;
    let kinds = find("kind").map_or(Ok(Vec::new()), |item| kinds(item, &arms, &keys, sets))?;
    let times = arms.len() * hogs.len().max(1) * kinds.len().max(1) * trials as usize;
    check_all(text, &all, load, &sweep, times as u64)?;
    let mut marks = Vec::new();
    for item in find("marks").map_or(Ok(Vec::new()), Item::list)? {
        marks.push(mark(&item, &arms)?);
    }
    let mut panels = Vec::new();
    for item in find("panel").map_or(Ok(Vec::new()), Item::list)? {
        panels.push(panel(&item, &kinds)?);
    }
    let claims = find("claims").map(claims_of).transpose()?;
    let about = need("about", "one line about the experiment")?.string()?.to_string();
    let requirements = find("requirements").map_or(Ok(Vec::new()), Item::list)?;
    let requirements: Result<Vec<String>, Fault> =
        requirements.iter().map(|item| item.string().map(str::to_owned)).collect();
    Ok(Scenario {
        name: name.to_owned(),
        about,
        requirements: requirements?,
        machine: machine_name.to_owned(),
        kind,
        experiment,
        one_x,
        hogs,
        load,
        trials,
        arms,
        kinds,
        sweep,
        marks,
        panels,
        claims,
    })
}

fn claims_of(item: &Item<'_>) -> Result<&'static Claims, Fault> {
    let name = item.string()?;
    let names: Vec<&str> = claims::ALL.iter().map(|claims| claims.name).collect();
    let found = claims::ALL.iter().find(|claims| claims.name == name);
    found.ok_or_else(|| item.wrong(&format!("{name}: no such claims; {}", choose(name, &names))))
}

/// Kinds of load. What the command line sets, it sets for all of them.
fn kinds(
    item: &Item<'_>,
    arms: &[Arm],
    keys: &[&str],
    sets: &[(String, String)],
) -> Result<Vec<Kind>, Fault> {
    let mut kinds: Vec<Kind> = Vec::new();
    for item in item.list()? {
        differ_in(&item, sets)?;
        let kind = kind(&item, arms, keys, sets)?;
        if kinds.iter().any(|other| other.name == kind.name) {
            return Err(item.wrong(&format!("two kinds are called {}; name one otherwise", kind.name)));
        }
        if kinds.len() == KINDS_MAX {
            return Err(item.wrong(&format!("more than {KINDS_MAX} kinds; make two scenarios")));
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

/// What tells a kind of load from the others is not for the command line to set: its first setting.
fn differ_in(item: &Item<'_>, sets: &[(String, String)]) -> Result<(), Fault> {
    for (key, _, settings) in item.entries()? {
        if key != "settings" {
            continue;
        }
        let first = settings.entries()?.first().map(|(key, ..)| *key);
        if let Some((key, _)) = sets.iter().find(|(key, _)| first == Some(key.as_str())) {
            return Err(Fault(format!("--set {key}: in it the kinds of load differ; give --kind LIST")));
        }
    }
    Ok(())
}

fn kind(item: &Item<'_>, arms: &[Arm], keys: &[&str], sets: &[(String, String)]) -> Result<Kind, Fault> {
    let (mut name, mut settings) = (String::new(), Vec::new());
    let mut machines: Vec<Box<dyn Machine>> = arms.iter().map(|arm| arm.machine.clone()).collect();
    for (key, span, entry) in item.entries()? {
        match key {
            "name" => name = entry.string()?.to_owned(),
            "settings" => {
                for (key, span, entry) in entry.entries()? {
                    if sets.iter().any(|(set, _)| set == key) {
                        continue;
                    }
                    for machine in &mut machines {
                        set(machine.as_mut(), keys, &span, &entry)?;
                    }
                    settings.push((key.to_owned(), entry.given()?));
                }
            }
            _ => return Err(unknown(item, key, &span, &["name", "settings"])),
        }
    }
    if name.is_empty() {
        return Err(item.wrong("a kind without a name; give name = \"...\""));
    }
    for (machine, arm) in machines.iter().zip(arms) {
        machine.check().map_err(|why| item.wrong(&format!("{name}, arm {}: {why}", arm.name)))?;
    }
    Ok(Kind { name, settings })
}

fn hogs(item: &Item<'_>, arms: &[Arm]) -> Result<Vec<u32>, Fault> {
    let mut hogs = Vec::new();
    for value in item.list()? {
        let number = value.whole(0..=64)? as u32;
        for arm in arms {
            let set = arm.machine.boxed().set("hogs", &Given::Number(i128::from(number)));
            set.map_err(|_| item.wrong("this machine has no setting hogs; leave it out"))?;
        }
        hogs.push(number);
    }
    Ok(hogs)
}

/// Packets of a trial at `rate`.
fn packets_at(load: Load, rate: u64) -> u128 {
    match load {
        Load::Packets(packets) => u128::from(packets),
        Load::Time(ns) => u128::from(ns) * u128::from(rate) / 1_000_000_000,
    }
}

/// Where the load stands.
fn load_span(all: &[Entry<'_>]) -> Range<usize> {
    let place = all.iter().find(|(name, ..)| *name == "load" || *name == "packets");
    place.map_or(0..0, |(_, _, item)| item.span.clone())
}

/// The offered rate of each value of the sweep.
fn rates(sweep: &Sweep) -> Vec<u64> {
    match sweep {
        Sweep::Offered(rates) => rates.clone(),
        Sweep::Setting { values, offered, .. } => vec![*offered; values.len()],
    }
}

/// A scenario that would take days is refused before it starts; `times` is how often the sweep is run.
fn check_all(text: Text<'_>, all: &[Entry<'_>], load: Load, sweep: &Sweep, times: u64) -> Result<(), Fault> {
    let once: u128 = rates(sweep).iter().map(|rate| packets_at(load, *rate)).sum();
    let packets = once * u128::from(times);
    if packets <= u128::from(PACKETS_ALL_MAX) {
        return Ok(());
    }
    let message = format!(
        "{packets} packets in all trials, at most {PACKETS_ALL_MAX}; give fewer arms, values or trials"
    );
    Err(text.fault(&load_span(all), &message))
}

/// The trace of a scenario.
fn trace(
    item: &Item<'_>,
    path: &str,
    beside: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Trace, Fault> {
    let file = item.string()?;
    if file.is_empty() || file.contains('/') {
        return Err(item.wrong("not the name of a file beside the scenario; give one without a slash"));
    }
    let text = beside(file)
        .map_err(|why| item.wrong(&format!("{file}: {why}; give a text file beside the scenario")))?;
    let directory = path.rfind('/').map_or("", |at| &path[..=at]);
    super::trace::read(Text { path: &format!("{directory}{file}"), text: &text })
}

/// A trial that would take hours is refused before it starts.
fn check_packets(text: Text<'_>, all: &[Entry<'_>], load: Load, sweep: &Sweep) -> Result<(), Fault> {
    let rates = rates(sweep);
    let most = rates.iter().copied().max().unwrap_or(1);
    let least = rates.iter().copied().min().unwrap_or(1);
    let packets = packets_at(load, most);
    let time = match load {
        Load::Packets(packets) => u128::from(packets) * 1_000_000_000 / u128::from(least),
        Load::Time(ns) => u128::from(ns),
    };
    let span = load_span(all);
    if packets > u128::from(PACKETS_MAX) {
        let message = format!("{packets} packets in a trial, at most {PACKETS_MAX}; give a shorter load");
        return Err(text.fault(&span, &message));
    }
    if time > u128::from(LOAD_MAX) {
        let message = format!("a trial of {} s, at most 3600 s; give fewer packets", time / 1_000_000_000);
        return Err(text.fault(&span, &message));
    }
    Ok(())
}

fn sweep(item: &Item<'_>, machine: &dyn Machine, keys: &[&str], offered: u64) -> Result<Sweep, Fault> {
    let entries = item.entries()?;
    let [(key, span, values)] = entries.as_slice() else {
        return Err(item.wrong("not exactly one key; give offered or one setting with its values"));
    };
    let whole = values;
    let values = whole.list()?;
    if values.is_empty() || values.len() > SWEEP_MAX {
        return Err(whole.wrong(&format!("{} values; give 1 to {SWEEP_MAX}", values.len())));
    }
    if *key == "offered" {
        let rates: Result<Vec<u64>, Fault> = values.iter().map(|value| value.whole(1..=RATE_MAX)).collect();
        return Ok(Sweep::Offered(rates?));
    }
    let mut trial = machine.boxed();
    let mut given = Vec::new();
    for value in &values {
        set(trial.as_mut(), keys, span, value)?;
        given.push(value.given()?);
    }
    Ok(Sweep::Setting { key: (*key).to_owned(), values: given, offered })
}

fn check_sweep(item: &Item<'_>, sweep: &Sweep, arms: &[Arm]) -> Result<(), Fault> {
    let Sweep::Setting { key, values, .. } = sweep else { return Ok(()) };
    for arm in arms {
        for value in values {
            let mut machine = arm.machine.boxed();
            // The value itself was checked when it was read.
            let _ = machine.set(key, value);
            machine
                .check()
                .map_err(|why| item.wrong(&format!("{key} = {value}, arm {}: {why}", arm.name)))?;
        }
    }
    Ok(())
}

fn role(item: &Item<'_>) -> Result<Role, Fault> {
    const NAMES: [&str; 7] = ["stock", "alternative", "shown", "control", "weir", "ablation", "variant"];
    const ROLES: [Role; 7] = [
        Role::Stock,
        Role::Alternative,
        Role::Shown,
        Role::Control,
        Role::Weir,
        Role::Ablation,
        Role::Variant,
    ];
    let word = item.string()?;
    let index = NAMES.iter().position(|name| *name == word);
    index
        .map(|index| ROLES[index])
        .ok_or_else(|| item.wrong(&format!("no such role; {}", choose(word, &NAMES))))
}

fn unknown(item: &Item<'_>, key: &str, span: &Range<usize>, names: &[&str]) -> Fault {
    item.text.fault(span, &format!("unknown key \"{key}\"; {}", choose(key, names)))
}

fn arm(
    item: &Item<'_>,
    mut machine: Box<dyn Machine>,
    keys: &[&str],
    sets: &[(String, String)],
) -> Result<Arm, Fault> {
    let (mut name, mut note, mut what) = (String::new(), None, Role::Shown);
    for (key, span, entry) in item.entries()? {
        match key {
            "name" => name = entry.string()?.to_owned(),
            "note" => note = Some(entry.string()?.to_owned()),
            "role" => what = role(&entry)?,
            "settings" => {
                for (_, span, entry) in entry.entries()? {
                    set(machine.as_mut(), keys, &span, &entry)?;
                }
            }
            _ => return Err(unknown(item, key, &span, &["name", "role", "note", "settings"])),
        }
    }
    if name.is_empty() {
        return Err(item.wrong("an arm without a name; give name = \"...\""));
    }
    for (key, value) in sets {
        machine.set(key, &Given::word(value)).map_err(|refused| match refused {
            Refused::Unknown => Fault(format!("--set {key}: no such setting; {}", choose(key, keys))),
            Refused::Wrong(why) => Fault(format!("--set {key}={value}: {why}")),
        })?;
    }
    machine.check().map_err(|why| item.wrong(&format!("{name}: {why}")))?;
    Ok(Arm { name, role: what, note, machine })
}

fn mark(item: &Item<'_>, arms: &[Arm]) -> Result<Marks, Fault> {
    let (mut arm, mut series, mut value) = (None, None, None);
    for (key, span, entry) in item.entries()? {
        match key {
            "arm" => {
                let name = entry.string()?;
                let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
                if !names.contains(&name) {
                    return Err(entry.wrong(&format!("{name}: no such arm; {}", choose(name, &names))));
                }
                arm = Some(name.to_owned());
            }
            "series" => {
                let path = entry.string()?;
                let found = marks::series(path)?;
                series = Some(found.ok_or_else(|| entry.wrong("no such series; see crates/sim/marks"))?);
            }
            "value" => value = Some(entry.string()?.to_owned()),
            _ => return Err(unknown(item, key, &span, &["arm", "series", "value"])),
        }
    }
    match (arm, series) {
        (Some(arm), Some(series)) => Ok(Marks { arm, series, value }),
        _ => Err(item.wrong("marks need arm and series")),
    }
}

fn panel(item: &Item<'_>, kinds: &[Kind]) -> Result<PanelPlan, Fault> {
    let mut plan = PanelPlan {
        title: String::new(),
        shows: Shows::Value(String::new()),
        unit: String::new(),
        digits: 0,
        note: None,
        kind: None,
    };
    for (key, span, entry) in item.entries()? {
        match key {
            "title" => plan.title = entry.string()?.to_owned(),
            "value" => plan.shows = Shows::Value(entry.string()?.to_owned()),
            "series" => plan.shows = Shows::Series(entry.string()?.to_owned()),
            "unit" => plan.unit = entry.string()?.to_owned(),
            "digits" => plan.digits = entry.whole(0..=9)? as u8,
            "note" => plan.note = Some(entry.string()?.to_owned()),
            "kind" => {
                let name = entry.string()?;
                let names: Vec<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
                if !names.contains(&name) {
                    return Err(entry.wrong(&format!("{name}: no such kind; {}", choose(name, &names))));
                }
                plan.kind = Some(name.to_owned());
            }
            _ => {
                let names = ["title", "value", "series", "unit", "digits", "note", "kind"];
                return Err(unknown(item, key, &span, &names));
            }
        }
    }
    let (Shows::Value(what) | Shows::Series(what)) = &plan.shows;
    if plan.title.is_empty() || what.is_empty() {
        return Err(item.wrong("a panel needs title, and value or series"));
    }
    Ok(plan)
}
