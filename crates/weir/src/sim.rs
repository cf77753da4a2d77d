//! `weir sim`: experiments on simulated machines.

mod as_lab;

pub use as_lab::as_lab;

use crate::cli::{SimCommand, SimRunArgs, SimTableArgs};
use crate::error::{failed, usage};
use crate::lab::{command_line, writable};
use crate::out::{self, shown};
use crate::parse::choose;
use sim::run::Ran;
use sim::scenario::{FILE_MAX, TRACE_MAX, Texts};
use sim::{Options, Part, Plan, Progress, Scenario, Shard};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Runs one of the simulator's commands.
///
/// # Errors
/// 2 for wrong names, files and settings, 1 if the run is cut short or a checker finds something.
pub fn run(command: &SimCommand) -> anyhow::Result<ExitCode> {
    match command {
        SimCommand::List(args) => list(args.json),
        SimCommand::Run(args) => experiment(args),
        SimCommand::Show(args) => show(&args.name),
        SimCommand::Table(args) => table(args),
    }
}

/// Every scenario of the binary; they are tested, so that none is wrong.
fn library() -> anyhow::Result<Vec<Scenario>> {
    let named = |name: &str| sim::scenario::named(name, &[]);
    sim::scenario::names().into_iter().filter_map(named).map(|s| s.map_err(usage)).collect()
}

fn list(json: bool) -> anyhow::Result<ExitCode> {
    let all = library()?;
    if json {
        let list: Vec<serde_json::Value> = all
            .iter()
            .map(|s| {
                let arms: Vec<&str> = s.arms.iter().map(|arm| arm.name.as_str()).collect();
                serde_json::json!({"name": s.name, "about": s.about, "machine": s.machine, "arms": arms,
                                   "requirements": s.requirements})
            })
            .collect();
        let document = serde_json::json!({"schema": "weir.sim-list/1", "experiments": list});
        out::data(&format!("{document}\n"))?;
    } else {
        let mut text = String::new();
        for s in &all {
            text += &format!("{:<22}{}\n", s.name, out::wrap(&s.about, 22));
            let from = format!("{}; {}", s.machine, s.requirements.join(", "));
            text += &format!("{:<22}{}\n", "", out::wrap(&from, 22));
        }
        out::data(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown(name: &str) -> anyhow::Error {
    let why = choose(name, sim::scenario::names().into_iter());
    usage(format!("{}: {why}", shown(name)))
}

fn show(name: &str) -> anyhow::Result<ExitCode> {
    let text = sim::scenario::text_of(name).ok_or_else(|| unknown(name))?;
    let Some(scenario) = sim::scenario::named(name, &[]).transpose().map_err(usage)? else {
        return Err(unknown(name));
    };
    out::data(text)?;
    let mut settings = format!("\n# Settings of {} and their values in the first arm:\n", scenario.machine);
    for (key, value) in sim::scenario::settings_of(&scenario) {
        settings += &format!("# {:<16} {value:<10} {}\n", key.name, key.help);
    }
    out::data(&settings)?;
    Ok(ExitCode::SUCCESS)
}

/// The scenario of that name, or in that file.
fn scenario(name: &str, sets: &[(String, String)]) -> anyhow::Result<Scenario> {
    texts(name, sets)?.scenario(sets).map_err(usage)
}

/// The texts of the scenario of that name, or in that file; which files it has beside it depends on the settings.
fn texts(name: &str, sets: &[(String, String)]) -> anyhow::Result<Texts> {
    if let Some(texts) = Texts::named(name) {
        return Ok(texts);
    }
    let path = Path::new(name);
    if !name.contains(['/', '.']) {
        return Err(unknown(name));
    }
    let shown_name = shown(name);
    let text =
        text_file(path, FILE_MAX).map_err(|why| usage(format!("{shown_name}: {why}; give a TOML file")))?;
    let stem = path.file_stem().map_or_else(|| "scenario".into(), |stem| stem.to_string_lossy().into_owned());
    let read = RefCell::new(BTreeMap::new());
    // A scenario that `show` printed has its trace in the binary.
    let beside = |file: &str| match sim::scenario::trace_of(file) {
        Some(text) if !path.with_file_name(file).exists() => Ok(text.to_owned()),
        _ => {
            let text = text_file(&path.with_file_name(file), TRACE_MAX)?;
            read.borrow_mut().insert(file.to_owned(), text.clone());
            Ok(text)
        }
    };
    Scenario::parse(&stem, &shown_name, &text, sets, &beside).map_err(usage)?;
    Ok(Texts { name: stem, path: shown_name, text, beside: read.into_inner() })
}

/// The text of a regular file of at most `most` bytes, or why there is none.
fn text_file(path: &Path, most: u64) -> Result<String, String> {
    let unreadable = |err: std::io::Error| format!("cannot be read ({err})");
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("not a regular file".into());
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > most {
        return Err(format!("longer than {} KiB", most / 1024));
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8".into())
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn experiment(args: &SimRunArgs) -> anyhow::Result<ExitCode> {
    let plan = Plan {
        // How many threads and processes ran it must not be seen in the result.
        command: without_jobs(&command_line()),
        scenario: texts(&args.name, &args.set)?,
        sets: args.set.clone(),
        kinds: args.kind.clone(),
        arms: args.arms.clone(),
        seed: args.seed.unwrap_or(1),
        strict: args.strict,
    };
    let scenario = plan.scenario().map_err(usage)?;
    match (args.shard, &args.json) {
        (Some(part), Some(path)) => {
            known_arms(args, &scenario)?;
            writable(path)?;
            shard(plan, part, threads(args), path)
        }
        _ => perform(args, &scenario),
    }
}

fn known_arms(args: &SimRunArgs, scenario: &Scenario) -> anyhow::Result<()> {
    let known = || scenario.arms.iter().map(|arm| arm.name.as_str());
    match args.arms.iter().flatten().find(|arm| !known().any(|name| name == **arm)) {
        Some(arm) => Err(usage(format!("--arms {}: {}", shown(arm), choose(arm, known())))),
        None => Ok(()),
    }
}

fn threads(args: &SimRunArgs) -> usize {
    args.jobs.map_or_else(cpus, |jobs| jobs as usize)
}

/// Runs one part and writes it; claims are judged when all parts are merged.
fn shard(plan: Plan, part: Part, threads: usize, path: &Path) -> anyhow::Result<ExitCode> {
    let stop = crate::watch::stop_flag()?;
    let meter = Meter::new();
    let ran = Shard::run(plan, part, threads, &stop, &|progress| meter.show(progress));
    meter.wipe();
    let Some(shard) = ran.map_err(usage)? else {
        return Err(failed("interrupted; nothing was written: run this part again"));
    };
    shard.write(path)?;
    out::talk(&format!(
        "part     {}; all {} together: weir results merge",
        shown(&path.to_string_lossy()),
        part.of
    ));
    match shard.faults() {
        0 => Ok(ExitCode::SUCCESS),
        faults => Err(failed(format!("a checker found {faults} faults; weir results merge names them"))),
    }
}

fn perform(args: &SimRunArgs, scenario: &Scenario) -> anyhow::Result<ExitCode> {
    known_arms(args, scenario)?;
    [&args.json, &args.html].into_iter().flatten().try_for_each(|path| writable(path))?;
    let options = Options {
        seed: args.seed.unwrap_or(1),
        jobs: threads(args),
        arms: args.arms.clone(),
        strict: args.strict,
    };
    let stop = crate::watch::stop_flag()?;
    let meter = Meter::new();
    let mut ran = sim::run(scenario, &options, &stop, &|progress| meter.show(progress));
    meter.wipe();
    if ran.document.partial.is_some_and(|partial| partial.done == 0) {
        return Err(failed("interrupted before the first trial was done"));
    }
    ran.document.command = Some(without_jobs(&command_line()));
    finish(&ran, args.json.as_deref(), args.html.as_deref())
}

/// Shows and writes what a run gave; the exit code is that of its claims.
pub fn finish(ran: &Ran, json: Option<&Path>, html: Option<&Path>) -> anyhow::Result<ExitCode> {
    out::data(&results::table(&ran.document))?;
    if let Some(path) = json {
        ran.document.write(path)?;
        out::talk(&format!("result   {}", shown(&path.to_string_lossy())));
    }
    if let Some(path) = html {
        results::write_html(&ran.document, path)?;
        out::talk(&format!("curves   {}", shown(&path.to_string_lossy())));
    }
    if let Some(partial) = ran.document.partial {
        return Err(failed(format!(
            "interrupted: partial, {} of {} trials are in the result",
            partial.done, partial.total
        )));
    }
    if let Some(fault) = ran.faults.first() {
        return Err(failed(format!("a checker found: {fault} ({} in all)", ran.faults.len())));
    }
    let holds = ran.document.verdict.iter().all(|claim| claim.holds);
    Ok(ExitCode::from(u8::from(!holds)))
}

/// The command without what has no part in the result: threads, parts and files.
fn without_jobs(command: &str) -> String {
    let mut words = Vec::new();
    let mut skip = false;
    for word in command.split(' ') {
        let leave_out = std::mem::take(&mut skip);
        let is = |name: &str| word == name || word.starts_with(&format!("{name}="));
        if ["--jobs", "--shard", "--json", "--html", "--color"].into_iter().any(is) {
            skip = !word.contains('=');
        } else if !leave_out {
            words.push(word);
        }
    }
    words.join(" ")
}

fn table(args: &SimTableArgs) -> anyhow::Result<ExitCode> {
    let names: Vec<String> = if args.names.is_empty() {
        library()?.into_iter().filter(|s| !s.marks.is_empty()).map(|s| s.name).collect()
    } else {
        args.names.clone()
    };
    let options = Options { seed: args.seed.unwrap_or(1), jobs: cpus(), ..Options::default() };
    let (mut misses, mut proxy) = (0, false);
    for name in &names {
        let scenario = scenario(name, &args.set)?;
        proxy |= scenario.machine == "beihang13";
        let rows = sim::table::rows(&scenario, &options);
        out::data(&format!("{name}\n{}\n", sim::table::text(&rows)))?;
        misses += rows.iter().filter(|row| !row.misses.is_empty()).count();
    }
    if proxy && args.set.is_empty() {
        let (rows, _) = sim::machine::proxy::paper::compare(&options)?;
        out::data(&format!("beihang13\n{}", sim::machine::proxy::paper::table(&rows)))?;
        misses += rows.iter().filter(|row| !row.holds()).count();
    }
    Ok(ExitCode::from(u8::from(misses > 0)))
}

/// Progress on standard error, on a terminal only: a run takes seconds.
struct Meter {
    terminal: bool,
    shown: AtomicUsize,
}

impl Meter {
    fn new() -> Meter {
        Meter { terminal: std::io::stderr().is_terminal(), shown: AtomicUsize::new(0) }
    }

    fn show(&self, progress: Progress) {
        let percent = progress.done * 100 / progress.total.max(1);
        if self.terminal && self.shown.swap(percent, Relaxed) != percent {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K{}/{} trials", progress.done, progress.total);
        }
    }

    fn wipe(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_files_are_no_part_of_the_result() {
        let command = "weir sim run quota --jobs 3 --seed 2 --shard 3/8 --json=a.json --html b.html";
        assert_eq!(without_jobs(command), "weir sim run quota --seed 2");
    }
}
