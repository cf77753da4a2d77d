//! `--watch`: keeps a plan while interfaces, queues, NAPI threads and programs come and go.

use super::{act, look};
use crate::cli::PlaceArgs;
use crate::error::missing;
use crate::out::{Weight, count, talk, tell};
use kern::change;
use kern::journal::{self, Journal, MAX_ENTRIES};
use kern::settings::Access;
use policy::place::{self, Cpus, Plan, Request, Strategy, Whose};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// Keeps the plan until a signal comes, then puts everything back. Sources count alike: a plan that followed the load
/// would move interrupts for every gust.
pub fn run(
    args: &PlaceArgs,
    access: &mut Access,
    strategy: Strategy,
    stop: &AtomicBool,
) -> anyhow::Result<ExitCode> {
    let request = Request {
        strategy,
        cpus: args.cpu.as_ref().map(|cpus| cpus.iter().collect::<Cpus>()),
        net: args.net.map(|net| net as usize),
    };
    let pids = look::pids(&args.programs)?;
    let looked = look::look(access, &args.journal_dir, &args.interfaces, &pids, None)?;
    let plan = place::plan(&looked.layout, &request).map_err(missing)?;
    act::permitted(args, &looked, &plan)?;
    let (mut journal, fresh) = act::claim(args, access)?;
    act::carry_out(args, access, (&mut journal, fresh), &plan)?;
    talk(&format!(
        "weir: keeping {} for {}: {} changed",
        strategy.name(),
        count(looked.layout.sources.len(), "source"),
        count(plan.settings.len(), "setting")
    ));
    if let Some(guard) = super::text::guard(&looked, &plan) {
        talk(&format!("weir: next, beside this: sudo {}", kern::shell::line(&guard)));
    }
    let mut told = BTreeSet::new();
    while crate::watch::sleep_until(Instant::now() + EVERY, stop) {
        if let Err(err) = again(args, access, &request, &mut journal, &mut told) {
            // The same trouble is told once, not each second.
            let line = format!("weir: {err:#}");
            if told.len() < MOST_TOLD && told.insert(line.clone()) {
                tell(Weight::Warning, &line);
            }
        }
    }
    let others = act::put_back(args, access, &journal)?;
    talk(&format!("weir: {}", act::as_before(others)));
    Ok(ExitCode::SUCCESS)
}

/// Lines that are remembered as told.
const MOST_TOLD: usize = 1024;

fn again(
    args: &PlaceArgs,
    access: &mut Access,
    request: &Request,
    journal: &mut Journal,
    told: &mut BTreeSet<String>,
) -> anyhow::Result<()> {
    // A program that has ended may come back under another id; that none is there is no error here.
    let pids = look::pids(&args.programs).unwrap_or_default();
    let names: Vec<String> = match args.interfaces.is_empty() {
        true => Vec::new(),
        false => {
            let there = |name: &&String| kern::netns::index_of(name).is_ok();
            args.interfaces.iter().filter(there).cloned().collect()
        }
    };
    if names.is_empty() && !args.interfaces.is_empty() {
        return Ok(());
    }
    let looked = look::look(access, &args.journal_dir, &names, &pids, None)?;
    let Ok(mut plan) = place::plan(&looked.layout, request) else { return Ok(()) };
    let (others, ours): (Vec<_>, Vec<_>) =
        plan.settings.drain(..).partition(|set| somebody_elses(access, journal, set));
    for set in others {
        let line = format!("weir: {}: somebody else has set it, left", act::shown(&looked, &set));
        if told.len() < MOST_TOLD && told.insert(line.clone()) {
            talk(&line);
        }
    }
    let guarded = act::guarded(args, &looked)?;
    let guards = |ifindex: u32| guarded.iter().any(|journal| journal.ifindex() == ifindex);
    plan.settings = ours;
    plan.settings.retain(|set| !place::is_a_guards(&looked.layout, set.what, guards));
    if plan.settings.is_empty() {
        return Ok(());
    }
    if journal.len() + plan.settings.len() > MAX_ENTRIES / 2 {
        journal.forget_gone(access)?;
    }
    for set in &plan.settings {
        talk(&format!("weir: {}", act::shown(&looked, set)));
    }
    Ok(change::make(access, journal, &act::changes(&plan))?)
}

/// It has a value now that somebody wishes it to have.
fn somebody_elses(access: &mut Access, journal: &Journal, set: &place::Set) -> bool {
    let plan = Plan { settings: vec![set.clone()], ..Plan::default() };
    let Some(change) = act::changes(&plan).pop() else { return false };
    let found = act::value(&set.from);
    let whose = match journal.whose(access, &change.setting, &found) {
        Some(journal::Whose::Others) => Whose::Others,
        Some(journal::Whose::Before) => Whose::Before,
        Some(journal::Whose::Ours) | None => Whose::Ours,
    };
    place::is_somebody_elses(set.what, whose)
}
