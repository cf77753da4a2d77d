//! `weir lab`: runs experiments, shows and compares their results.

use crate::cli::{LabBackend, LabCommand, LabCompareArgs, LabConsumer, LabRunArgs, LabShowArgs};
use crate::error::{failed, missing, usage};
use crate::out::{self, shown};
use crate::parse::choose;
use lab::{Cpus, Error, Experiment, Interrupt, Kind, Options, Progress};
use results::{Document, Tolerances};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs one of the lab's commands.
///
/// # Errors
/// 2 for wrong names and files, 3 without the privileges, 1 if the experiment breaks off.
pub fn run(command: &LabCommand) -> anyhow::Result<ExitCode> {
    match command {
        LabCommand::List(args) => list(args.json),
        LabCommand::Run(args) => experiment(args),
        LabCommand::Show(args) => show(args),
        LabCommand::Compare(args) => compare(args),
    }
}

fn compare(args: &LabCompareArgs) -> anyhow::Result<ExitCode> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    if let Some(arm) = args.arms.iter().flatten().find(|arm| a.arm(arm).is_none()) {
        let why = choose(arm, a.arms.iter().map(|arm| arm.name.as_str()));
        return Err(usage(format!("--arms {}: {why}", shown(arm))));
    }
    let comparison = results::compare(&a, &b, &Tolerances::default(), args.arms.as_deref());
    out::data(&comparison.table())?;
    Ok(ExitCode::from(u8::from(!comparison.agrees())))
}

fn list(json: bool) -> anyhow::Result<ExitCode> {
    if json {
        let list: Vec<serde_json::Value> = lab::experiments()
            .iter()
            .map(|e| serde_json::json!({"name": e.name, "about": e.about, "takes": e.takes}))
            .collect();
        let document = serde_json::json!({"schema": "weir.lab-list/1", "experiments": list});
        out::data(&format!("{document}\n"))?;
    } else {
        let mut text = String::new();
        for experiment in lab::experiments() {
            text += &format!("{:<18}{}\n", experiment.name, out::wrap(experiment.about, 18));
            text += &format!("{:<18}takes {}\n", "", experiment.takes);
        }
        out::data(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn experiment(args: &LabRunArgs) -> anyhow::Result<ExitCode> {
    let Ok(experiment) = lab::experiment(&args.name) else {
        let names = lab::experiments().iter().map(|e| e.name);
        return Err(usage(format!("lab run {}: {}", shown(&args.name), choose(&args.name, names))));
    };
    if args.backend == LabBackend::Sim {
        return crate::sim::as_lab(experiment, args);
    }
    // A run takes minutes: a result that cannot be written is found before it.
    [&args.json, &args.html].into_iter().flatten().try_for_each(|path| writable(path))?;
    let options = kernel_options(experiment, args)?;
    crate::watch::stop_raises(&options.interrupt.flag())?;
    let mut meter = Meter::new();
    let result = lab::run(&args.name, &options, &mut |progress| meter.show(&progress));
    meter.wipe();
    let mut document = result.map_err(lab_error)?;
    document.command = Some(command_line());
    out::data(&results::table(&document))?;
    if let Some(path) = &args.json {
        document.write(path)?;
        out::talk(&format!("result   {}", shown(&path.to_string_lossy())));
    }
    if let Some(path) = &args.html {
        results::write_html(&document, path)?;
        out::talk(&format!("curves   {}", shown(&path.to_string_lossy())));
    }
    let holds = document.partial.is_none() && document.verdict.iter().all(|claim| claim.holds);
    Ok(ExitCode::from(u8::from(!holds)))
}

/// The options, without any that the run would ignore.
pub(crate) fn options(experiment: &Experiment, args: &LabRunArgs) -> anyhow::Result<Options> {
    let defaults = Options::default();
    let guard = args.guard.iter().flat_map(|words| words.split_whitespace()).map(str::to_owned).collect();
    let options = Options {
        quick: args.quick,
        duration: args.duration,
        repeat: args.repeat,
        arms: args.arms.clone(),
        hogs: args.hogs.clone(),
        consumer: match args.consumer {
            LabConsumer::UdpSink => Kind::Sink,
            LabConsumer::Nsd => Kind::Nsd,
        },
        work: args.work.unwrap_or(defaults.work),
        rcvbuf: args.rcvbuf.and_then(|bytes| u32::try_from(bytes).ok()),
        guard,
        reserves: args.reserves.clone(),
        multiples: args.multiples.clone(),
        base_pps: args.base_pps,
        kinds: args.kind.clone(),
        rates: args.rates.clone(),
        busy: args.busy,
        retries: args.retries.map_or(defaults.retries, u32::from),
        pairs: args.pairs,
        onsets: args.onsets,
        cpus: args.cpus.map(|(wire, host)| Cpus { wire, host }),
        seed: args.seed.unwrap_or(defaults.seed),
        interrupt: Interrupt::new(),
        ..defaults
    };
    let refuse = match args.backend {
        LabBackend::Kernel => lab::refuse_ignored,
        LabBackend::Sim => lab::refuse_not_simulated,
    };
    refuse(experiment, &options).map_err(lab_error)?;
    Ok(options)
}

/// As [`options`], with the names of the arms looked at.
fn kernel_options(experiment: &Experiment, args: &LabRunArgs) -> anyhow::Result<Options> {
    let options = options(experiment, args)?;
    let known = (experiment.arms)(&options);
    match args.arms.iter().flatten().find(|arm| !known.contains(arm)) {
        Some(arm) => {
            let why = choose(arm, known.iter().map(String::as_str));
            Err(usage(format!("--arms {}: {why}", shown(arm))))
        }
        None => Ok(options),
    }
}

pub(crate) fn lab_error(err: Error) -> anyhow::Error {
    match err {
        Error::Interrupted => failed("interrupted before the first round was done; everything is cleaned up"),
        Error::Usage(text) => usage(text),
        err if err.is_missing() => missing(err),
        err => err.into(),
    }
}

/// The command that repeats this run, for the result.
pub(crate) fn command_line() -> String {
    let quoted = |word: String| match word.contains([' ', '\'', '"']) {
        true => format!("'{word}'"),
        false => word,
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(shown(&word.to_string_lossy())));
    std::iter::once("weir".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn show(args: &LabShowArgs) -> anyhow::Result<ExitCode> {
    let document = read(&args.file)?;
    out::data(&results::table(&document))?;
    if let Some(path) = &args.html {
        writable(path)?;
        results::write_html(&document, path)?;
    }
    if let Some(path) = &args.svg {
        writable(path)?;
        let name = shown(&args.file.to_string_lossy());
        let picture = results::picture(&document).ok_or_else(|| {
            usage(format!("{name}: no stock arm or no arm weir to draw; give a result with both"))
        })?;
        std::fs::write(path, picture)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a result. A file that is none is the user's error, exit code 2.
fn read(path: &Path) -> anyhow::Result<Document> {
    Document::read(path).map_err(|err| {
        let fix = "give a file written by weir lab run --json";
        let text = err.to_string();
        usage(if text.contains("; give ") { text } else { format!("{text}; {fix}") })
    })
}

pub(crate) fn writable(path: &Path) -> anyhow::Result<()> {
    let name = shown(&path.to_string_lossy());
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    if path.is_dir() {
        return Err(usage(format!("{name}: is a directory; give a file")));
    }
    if parent.is_some_and(|dir| !dir.is_dir()) {
        return Err(usage(format!("{name}: its directory does not exist; create it or give another file")));
    }
    Ok(())
}

/// Time between two lines when standard error is no terminal, and between two that say the same.
const LINE_EVERY: Duration = Duration::from_secs(5);
const SAME_EVERY: Duration = Duration::from_secs(60);
/// Characters of the bar.
const BAR: u64 = 24;

/// Progress on standard error: one line that is rewritten on a terminal, else a line per finished rate.
pub(crate) struct Meter {
    terminal: bool,
    start: Instant,
    last: Option<(String, Instant)>,
}

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter { terminal: std::io::stderr().is_terminal(), start: Instant::now(), last: None }
    }

    pub(crate) fn show(&mut self, progress: &Progress) {
        if self.terminal {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K{}", bar(progress, self.start.elapsed()));
            let _ = stderr.flush();
            return;
        }
        // An arm's name comes before the rate.
        let rate = progress.text.split_once(" at ").map_or(progress.text.as_str(), |(_, rate)| rate);
        let now = Instant::now();
        let every = |last: &str| if last == rate { SAME_EVERY } else { LINE_EVERY };
        if self.last.as_ref().is_some_and(|(last, at)| now - *at < every(last)) {
            return;
        }
        self.last = Some((rate.to_owned(), now));
        let left = remaining(progress, self.start.elapsed());
        out::talk(&format!("{}/{} trials, {left}; next: {}", progress.done, progress.total, progress.text));
    }

    pub(crate) fn wipe(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

/// One line of at most 80 columns whose parts keep their places.
fn bar(progress: &Progress, elapsed: Duration) -> String {
    let total = progress.total.max(1);
    let full = (progress.done.min(total) * BAR / total) as usize;
    let bar: String = "#".repeat(full) + &".".repeat(BAR as usize - full);
    let counted = format!("{}/{}", progress.done, progress.total);
    let text: String = progress.text.chars().take(27).collect();
    format!("{counted:>9} {bar} {text:<27} {:>15}", remaining(progress, elapsed))
}

/// How long the rest takes if it goes on like this.
fn remaining(progress: &Progress, elapsed: Duration) -> String {
    if progress.done == 0 || progress.total < progress.done {
        return "-".into();
    }
    let seconds = elapsed.as_secs_f64() / progress.done as f64 * (progress.total - progress.done) as f64;
    let seconds = seconds.round() as u64;
    match seconds {
        0..60 => format!("{seconds} s left"),
        _ => format!("{} min {:02} s left", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(done: u64, total: u64) -> Progress {
        Progress { done, total, text: "stock-timer at the wire's maximum, 1 hog".into() }
    }

    #[test]
    fn the_bar_keeps_its_columns() {
        let lines: Vec<String> =
            [(0, 180), (90, 180), (180, 180)].map(|(d, t)| bar(&at(d, t), Duration::from_secs(60))).into();
        for line in &lines {
            assert_eq!(line.chars().count(), 78, "{line}");
        }
        assert!(
            lines[1].contains(" ############............ ") && lines[1].ends_with("1 min 00 s left"),
            "{}",
            lines[1]
        );
        assert!(lines[2].contains(&"#".repeat(24)) && lines[2].ends_with("0 s left"));
        assert!(lines[0].ends_with(" -"));
    }

    #[test]
    fn estimates_never_divide_by_zero_or_run_backwards() {
        assert_eq!(remaining(&at(0, 0), Duration::from_secs(1)), "-");
        assert_eq!(remaining(&at(5, 3), Duration::from_secs(1)), "-");
        assert_eq!(remaining(&at(1, 3), Duration::from_secs(10)), "20 s left");
    }
}
