//! `weir place`: which CPUs do receive work, what is wrong with that, the plan, its trial and its undo.
//!
//! Decisions are `policy::place`'s; this reads, prints, writes down and carries out.

mod act;
mod keep;
mod look;
mod text;

use crate::cli::{Layout, PlaceArgs};
use crate::error::{failed, missing, usage};
use crate::out::{self, Paint};
use kern::settings::Access;
use look::{Looked, Window};
use policy::place::{self, Cpus, Plan, Request, Strategy, What};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Instant;

/// Runs `weir place`. Exit code 0 if what was asked for is done, also if nothing has to be.
///
/// # Errors
/// 2 for an interface or a program that is not there, 3 if there can be no plan or a privilege is missing, 1 if the plan
/// could not be carried out; then everything is as before.
pub fn run(args: &PlaceArgs, paint: Paint) -> anyhow::Result<ExitCode> {
    let strategy = check(args)?;
    let mut access = Access::for_current_netns()?;
    let pids = look::pids(&args.programs)?;
    let stop = crate::watch::stop_flag()?;
    if args.watch {
        let strategy = strategy.ok_or_else(|| usage("--watch keeps one plan; give --strategy"))?;
        return keep::run(args, &mut access, strategy, &stop);
    }
    let looked = look::look(&mut access, &args.journal_dir, &args.interfaces, &pids, None)?;
    let request = |strategy| Request {
        strategy,
        cpus: args.cpu.as_ref().map(|cpus| cpus.iter().collect::<Cpus>()),
        net: args.net.map(|net| net as usize),
    };
    // What is impossible is said before anybody waits for a measurement.
    place::plan(&looked.layout, &request(strategy.unwrap_or_default())).map_err(missing)?;
    let sleep = |length| crate::watch::sleep_until(Instant::now() + length, &stop);
    let window = look::measure(&looked, args.r#for, sleep)?;
    let looked = look::look(&mut access, &args.journal_dir, &args.interfaces, &pids, Some(&window))?;
    let ended = ended(&pids, &looked.layout.programs)?;
    if !ended.is_empty() {
        out::talk(&format!("weir: place: ended meanwhile and left out: pid {}", out::listed(&ended)));
    }
    let strategies = match strategy {
        Some(strategy) => vec![strategy],
        None => place::candidates(&window.rates.measured, &looked.layout.usable(), !pids.is_empty()),
    };
    let plan = match strategies.first() {
        Some(&first) => Some(place::plan(&looked.layout, &request(first)).map_err(missing)?),
        None => None,
    };
    let changes = args.apply && !args.dry_run;
    if !args.json {
        out::data(&report(&looked, &window, plan.as_ref(), strategy.is_none(), paint))?;
    }
    let outcome = match (changes, strategy, &plan) {
        (true, Some(_), Some(plan)) => act::apply(args, &mut access, &looked, plan)?,
        (true, None, Some(_)) => {
            let plans = strategies.iter().map(|&strategy| request(strategy)).collect::<Vec<_>>();
            act::trial(args, &mut access, &pids, &plans, (&looked, &window), &stop)?
        }
        _ => act::Outcome::default(),
    };
    if args.json {
        let document = document(&looked, &window, plan.as_ref(), &outcome);
        out::data(&format!("{}\n", serde_json::to_string(&document)?))?;
    } else {
        let guard = outcome.plan.as_ref().or(plan.as_ref()).and_then(|plan| text::guard(&looked, plan));
        let planned = plan.as_ref().is_some_and(|plan| !plan.settings.is_empty());
        out::data(&outcome.text(args, changes, planned, guard))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Options that do not go together; the strategy, `None` for auto.
fn check(args: &PlaceArgs) -> anyhow::Result<Option<Strategy>> {
    let strategy = match args.strategy {
        Layout::Auto => None,
        Layout::Spread => Some(Strategy::Spread),
        Layout::Affine => Some(Strategy::Affine),
        Layout::Dedicate => Some(Strategy::Dedicate),
        Layout::Follow => Some(Strategy::Follow),
    };
    if strategy == Some(Strategy::Affine) && args.programs.is_empty() {
        return Err(usage("--strategy affine brings programs to their packets; name them with --program"));
    }
    if args.net.is_some() && strategy != Some(Strategy::Dedicate) {
        return Err(usage("--net is the number of CPUs of --strategy dedicate; give both"));
    }
    if (args.apply || args.watch) && !args.dry_run && !nix::unistd::geteuid().is_root() {
        let option = if args.watch { "--watch" } else { "--apply" };
        return Err(missing(format!(
            "changing settings needs root; run it with sudo, or leave {option} out"
        )));
    }
    Ok(strategy)
}

/// Programs that were asked for and are not there any more.
///
/// # Errors
/// If none is left: a plan for the rest of the host is not what was asked for.
fn ended(pids: &[u32], programs: &[place::Program]) -> anyhow::Result<Vec<String>> {
    let gone = pids.iter().filter(|pid| !programs.iter().any(|program| program.pid == **pid));
    let gone: Vec<String> = gone.map(u32::to_string).collect();
    if !gone.is_empty() && gone.len() == pids.len() {
        return Err(failed(format!(
            "--program: pid {} ended during the measurement; nothing was changed",
            out::listed(&gone)
        )));
    }
    Ok(gone)
}

/// Target and kernel's name of a setting.
fn name(looked: &Looked, what: What) -> (String, &'static str) {
    let device = |ifindex: u32| {
        let found = looked.interfaces.iter().find(|interface| interface.ifindex == ifindex);
        found.map_or_else(|| format!("interface {ifindex}"), |interface| interface.name.clone())
    };
    match what {
        What::Irq { irq } => (format!("irq {irq}"), "smp_affinity"),
        What::Rps { ifindex, queue } => (format!("{}/{queue}", device(ifindex)), "rps_cpus"),
        What::Xps { ifindex, queue } => (format!("{}/tx{queue}", device(ifindex)), "xps_cpus"),
        What::RfsTable => ("host".into(), "rps_sock_flow_entries"),
        What::Rfs { ifindex, queue } => (format!("{}/{queue}", device(ifindex)), "rps_flow_cnt"),
        What::Rss { ifindex } => (device(ifindex), "rss_table"),
        What::Task { tid, .. } => {
            let program = kern::proc::name(tid).unwrap_or_default();
            (format!("task {tid} {}", out::shown(&program)), "affinity")
        }
    }
}

fn report(looked: &Looked, window: &Window, plan: Option<&Plan>, auto: bool, paint: Paint) -> String {
    let mut text = text::picture(looked, window);
    text.push('\n');
    let findings = text::findings(looked, window);
    if findings.is_empty() {
        text += "nothing is wrong with it\n";
    }
    for finding in findings {
        text += &format!("- {}\n", out::wrap(&finding, 2));
    }
    text.push('\n');
    match plan {
        Some(plan) => {
            text += &text::plan(looked, plan, paint);
            if let Some(guard) = text::guard(looked, plan) {
                text += &format!("  then poll on the net CPUs: sudo {}\n", kern::shell::line(&guard));
            }
            if let Some((cpu, share)) = plan.hottest().filter(|_| !plan.settings.is_empty()) {
                text += &format!(
                    "  expected: CPU {cpu} takes the most, {} % of the packets, if flows are many\n",
                    (share + 5) / 10
                );
            }
        }
        None if auto => text += "plan: none; packets are spread well enough, or too few to tell\n",
        None => {}
    }
    text
}

/// CPUs, or the queues of a table.
fn json(value: &place::Value) -> Value {
    match value {
        place::Value::Cpus(cpus) => json!(cpus),
        place::Value::Queues(table) => json!(table),
        place::Value::Entries(entries) => json!(entries),
    }
}

fn document(looked: &Looked, window: &Window, plan: Option<&Plan>, outcome: &act::Outcome) -> Value {
    let sources: Vec<Value> = looked
        .layout
        .sources
        .iter()
        .map(|source| {
            json!({
                "source": source.name,
                "irq": source.irq.as_ref().map(|i| json!({
                    "irq": i.irq, "managed": !i.settable, "cpus": text::list(&i.cpus),
                })),
                "thread": source.thread.as_ref().map(|t| json!({"tid": t.tid, "cpus": text::list(&t.cpus)})),
                "rps": source.rps,
                "rfs_entries": source.rfs,
                "load_per_s": source.load,
                "interrupts_per_s": window.rates.interrupts.get(&source.name),
            })
        })
        .collect();
    let nics: Vec<Value> = looked
        .layout
        .nics
        .iter()
        .map(|nic| {
            let interface = looked.interfaces.iter().find(|i| i.ifindex == nic.ifindex).map(|i| &i.name);
            json!({
                "interface": interface, "queues": nic.queues, "rss_table": nic.table, "rules": nic.rules,
                "xdp": nic.xdp, "rss_fixed": nic.fixed,
            })
        })
        .collect();
    let packets: Vec<Value> =
        window.rates.measured.packets.iter().map(|(cpu, n)| json!({"cpu": cpu, "per_s": n})).collect();
    let programs: Vec<Value> = looked
        .layout
        .programs
        .iter()
        .map(|p| json!({"pid": p.pid, "name": p.name, "threads": p.threads.len(), "cpu": window.ran_on.get(&p.pid)}))
        .collect();
    let plan = plan.map(|plan| {
        let settings: Vec<Value> = plan
            .settings
            .iter()
            .map(|set| {
                let (target, setting) = name(looked, set.what);
                json!({"target": target, "setting": setting, "from": json(&set.from), "to": json(&set.to)})
            })
            .collect();
        json!({
            "strategy": plan.strategy.name(),
            "net": plan.net,
            "host": plan.host,
            "settings": settings,
            "kept": plan.kept.iter().map(|kept| json!({"what": kept.what, "why": text::why(kept.why)})).collect::<Vec<_>>(),
            "guard": text::guard(looked, plan),
        })
    });
    json!({
        "schema": "weir.place/1",
        "cpus": looked.cpus,
        "nics": nics,
        "rfs_table": looked.layout.rfs_table,
        "sources": sources,
        "programs": programs,
        "packets": packets,
        "goodput_per_s": window.rates.measured.goodput,
        "lost_per_s": window.rates.measured.lost,
        "findings": text::findings(looked, window),
        "rivals": looked.rivals,
        "plan": plan,
        "applied": outcome.applied,
        "trials": outcome.trials,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_have_ended_are_named_and_one_must_be_left() {
        let program =
            |pid| place::Program { pid, name: "p".into(), allowed: Cpus::new(), threads: Vec::new() };
        assert!(ended(&[], &[]).unwrap().is_empty());
        assert!(ended(&[5], &[program(5)]).unwrap().is_empty());
        assert_eq!(ended(&[5, 6], &[program(5)]).unwrap(), ["6"]);
        assert!(ended(&[6], &[]).unwrap_err().to_string().contains("pid 6 ended"));
    }
}
