//! The layout as a picture, what is wrong with it, and the plan.

use super::look::{Looked, Window};
use super::name;
use crate::out::{Paint, count, grouped, shown};
use policy::place::{Cpus, Nic, Plan, Source, Strategy, Value, What, Why};

/// CPUs that stand side by side; of the others only those that do something are told below.
const COLUMNS: usize = 16;

/// `0-1,4`.
pub fn list(cpus: &Cpus) -> String {
    match cpus.is_empty() {
        true => "none".into(),
        false => cpus.iter().copied().collect::<kern::cpus::CpuSet>().to_string(),
    }
}

/// `0-1,4`, or how a table parts flows.
pub fn value(value: &Value) -> String {
    match value {
        Value::Cpus(cpus) => list(cpus),
        Value::Entries(0) => "off".into(),
        Value::Queues(_) | Value::Entries(_) => super::act::value(value).to_string(),
    }
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".into(),
        _ => format!("{}%", (part.saturating_mul(1000) / whole + 5) / 10),
    }
}

/// CPUs across, figures, sources and programs down.
pub fn picture(looked: &Looked, window: &Window) -> String {
    let cpus: Vec<usize> = looked.cpus.iter().map(|cpu| cpu.id).take(COLUMNS).collect();
    let mut text = String::new();
    let mut row = |what: &str, cell: &dyn Fn(usize) -> String| {
        let cells: String = cpus.iter().map(|&cpu| format!(" {:>5}", cell(cpu))).collect();
        text += &format!("{:<22}{}\n", shown(what), cells);
    };
    row("CPU", &|cpu| cpu.to_string());
    let of = |id: usize| looked.cpus.iter().find(|cpu| cpu.id == id);
    row("core", &|id| of(id).map_or(String::new(), |cpu| cpu.core.to_string()));
    row("last cache", &|id| of(id).map_or(String::new(), |cpu| cpu.cache.to_string()));
    if looked.cpus.iter().any(|cpu| cpu.node.is_some()) {
        row("node", &|id| of(id).and_then(|cpu| cpu.node).map_or("-".into(), |n| n.to_string()));
    }
    if looked.cpus.iter().any(|cpu| cpu.isolated || !cpu.allowed) {
        row("use", &|id| match of(id) {
            Some(cpu) if cpu.isolated => "isol".into(),
            Some(cpu) if !cpu.allowed => "cpuset".into(),
            _ => "yes".into(),
        });
    }
    let rates = &window.rates;
    let total = rates.measured.total();
    let packets =
        |id: usize| rates.measured.packets.iter().find(|(cpu, _)| *cpu == id).map_or(0, |(_, n)| *n);
    row("packets, all of host", &|id| percent(packets(id), total));
    let all = rates.all_interrupts();
    row("interrupts", &|id| percent(rates.interrupts_on(id), all));
    row("softirq time", &|id| percent(rates.softirq.get(&id).copied().unwrap_or(0), 1000));
    for source in &looked.layout.sources {
        row(&label(source), &|id| mark(source, id));
    }
    for program in &looked.layout.programs {
        let may = |id: usize| program.threads.iter().any(|thread| thread.cpus.contains(&id));
        let here = |id: usize| window.ran_on.get(&program.pid) == Some(&id);
        row(&format!("{} {}", program.name, program.pid), &|id| {
            if here(id) {
                "P"
            } else if may(id) {
                "p"
            } else {
                "."
            }
            .into()
        });
    }
    if looked.cpus.len() > COLUMNS {
        text += &format!("{} more CPUs: weir place --json\n", looked.cpus.len() - COLUMNS);
    }
    text + "I interrupt, T NAPI thread, R spread to (RPS), P ran there, p may run there\n"
}

fn label(source: &Source) -> String {
    match (&source.thread, &source.irq) {
        (Some(thread), _) => format!("{} thread {}", source.name, thread.tid),
        (None, Some(irq)) if !irq.settable => format!("{} irq {} managed", source.name, irq.irq),
        (None, Some(irq)) => format!("{} irq {}", source.name, irq.irq),
        (None, None) if source.as_sender => format!("{} as sender", source.name),
        (None, None) => format!("{} irq unknown", source.name),
    }
}

fn mark(source: &Source, cpu: usize) -> String {
    let first = match (&source.thread, &source.irq) {
        (Some(thread), _) if thread.cpus.contains(&cpu) => "T",
        (None, Some(irq)) if irq.cpus.contains(&cpu) => "I",
        _ => "",
    };
    let rps = if source.rps.contains(&cpu) { "R" } else { "" };
    match (first, rps) {
        ("", "") => ".".into(),
        (a, b) => format!("{a}{b}"),
    }
}

/// What is wrong with the layout, one line each.
pub fn findings(looked: &Looked, window: &Window) -> Vec<String> {
    let mut found = Vec::new();
    let rates = &window.rates;
    let measured = &rates.measured;
    let total = measured.total();
    let cpus = looked.cpus.len() as u64;
    if total < policy::place::LEAST_PPS {
        let least = policy::place::LEAST_PPS;
        found.push(format!("{} packets/s arrive: fewer than {least}, so shares say little", grouped(total)));
    }
    if let Some((cpu, share)) = measured.uneven(looked.cpus.len()) {
        let packets: Vec<f64> = measured.packets.iter().map(|(_, n)| *n as f64).collect();
        found.push(format!(
            "CPU {cpu} takes {} % of {} packets/s; even were {} % (evenness {:.2} of 1)",
            (share + 5) / 10,
            grouped(total),
            (100 + cpus / 2) / cpus.max(1),
            results::stats::jain(&packets).unwrap_or(1.0)
        ));
    }
    let online: Vec<usize> = looked.cpus.iter().map(|cpu| cpu.id).collect();
    if let Some(cpu) = rates.piled_on(&online) {
        let part = percent(rates.interrupts_on(cpu), rates.all_interrupts());
        found.push(format!("CPU {cpu} has {part} of the interrupts of these sources"));
    }
    for nic in &looked.layout.nics {
        if let Some(interface) = looked.interfaces.iter().find(|i| i.ifindex == nic.ifindex) {
            found.extend(parted(&interface.name, nic));
            let of = |source: &&Source| source.ifindex == nic.ifindex && source.rfs > 0;
            if looked.layout.rfs_table > Some(0) && looked.layout.sources.iter().any(|source| of(&source)) {
                found.push(format!(
                    "RFS of {} sends packets to the CPU on which their reader ran last, and not to that of RPS",
                    shown(&interface.name)
                ));
            }
        }
    }
    for program in &looked.layout.programs {
        if let (Some(&cpu), true) = (window.ran_on.get(&program.pid), total > 0) {
            let here = measured.packets.iter().find(|(id, _)| *id == cpu).map_or(0, |(_, n)| *n);
            found.push(format!(
                "{}, pid {}, ran on CPU {cpu}, which takes {} of the packets: if its packets are like all, {} of \
                 them cross from one CPU to another",
                shown(&program.name),
                program.pid,
                percent(here, total),
                percent(total - here, total)
            ));
        }
    }
    if measured.is_losing() {
        found.push(format!(
            "{} packets/s are lost, {} of those that arrive; weir explain says where",
            grouped(measured.lost),
            percent(measured.loss(), 1000)
        ));
    }
    for rival in &looked.rivals {
        found.push(format!("{}, pid {}, runs and sets such things itself", shown(&rival.name), rival.pid));
    }
    found
}

/// What a NIC does with flows before any CPU sees them.
fn parted(name: &str, nic: &Nic) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(uneven) = nic.uneven() {
        found.push(format!(
            "RSS of {} gives flows to {} of {} queues, {} of them to queue {}",
            shown(name),
            uneven.used,
            nic.queues,
            percent(uneven.share, 1000),
            uneven.most,
        ));
    }
    if nic.rules > 0 {
        found.push(format!(
            "{} of {} choose queues for some packets, whatever RSS says: ethtool -n {}",
            count(nic.rules as usize, "rule"),
            shown(name),
            kern::shell::line(&[name.to_owned()])
        ));
    }
    found
}

/// Why something stays as it is.
pub fn why(why: Why) -> &'static str {
    match why {
        Why::Managed => "the kernel manages it",
        Why::Unknown => "it is not known where it goes",
        Why::On => "it is on: packets go to the CPU of their reader; what weir set, weir undo takes back",
        Why::Rules => "rules choose queues too, and may count on those that RSS leaves out",
        Why::Xdp => "an XDP program may count on the queues that RSS leaves out",
        Why::Classes => "the queues are parted among traffic classes",
        Why::Driver => "its driver takes no table",
        Why::Cpuset => "their cpuset has none of the CPUs that the plan has for them",
        Why::Threads => "packets of NAPIs with a thread are not sent on",
    }
}

/// The plan, setting by setting.
pub fn plan(looked: &Looked, plan: &Plan, paint: Paint) -> String {
    let mut text = format!("plan: {}", plan.strategy.name());
    if plan.strategy == Strategy::Dedicate {
        text += &format!(", net CPUs {}, host CPUs {}", list(&plan.net), list(&plan.host));
    }
    text.push('\n');
    for kept in &plan.kept {
        text += &format!("  {:<24}stays: {}\n", kept.what, why(kept.why));
    }
    if plan.settings.is_empty() {
        return text + "  nothing to change\n";
    }
    for set in &plan.settings {
        let (target, label) = name(looked, set.what);
        let off = |of: &Value| match (set.what, of) {
            (What::Rps { .. } | What::Xps { .. }, Value::Cpus(cpus)) if cpus.is_empty() => "off".into(),
            _ => value(of),
        };
        let to = paint.cyan(&off(&set.to));
        text += &format!("  {target:<24}{label:<22} {} -> {to}\n", off(&set.from));
    }
    text + &format!("  {}\n", count(plan.settings.len(), "setting"))
}

/// The guard that polls on the net CPUs of a plan that has them, as a command; `None` without.
pub fn guard(looked: &Looked, plan: &Plan) -> Option<Vec<String>> {
    if plan.strategy != Strategy::Dedicate {
        return None;
    }
    let has = |ifindex| looked.layout.sources.iter().any(|source| source.ifindex == ifindex);
    let placed = looked.interfaces.iter().filter(|interface| has(interface.ifindex));
    let mut command = vec!["weir".to_owned(), "guard".to_owned()];
    command.extend(placed.map(|interface| interface.name.clone()));
    command.extend(["--mode", "net", "--cpu"].map(String::from));
    command.push(list(&plan.net));
    Some(command)
}
