//! What `weir guard` is to do: the command line over the file over the defaults, checked as a whole.

pub mod rows;

use crate::args::GuardArgs;
use crate::config::{At, File};
use crate::error::{Error, usage};
use crate::out::shown;
use crate::parse::{self, Ablate, Mode, Period, Sched};
use kern::cpus::CpuSet;
use kern::discover::{self, DiscoverError};
use kern::settings::Access;
use policy::classes::{RULES_MAX, Rule, Table};
use policy::host::DEFAULTS;
use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interfaces that one guard protects.
pub const INTERFACES_MAX: usize = 64;

/// Tells whether the interface of that name can be guarded.
pub type Check = dyn Fn(&str) -> Result<(), DiscoverError>;

/// What the host has that options can name.
pub struct Host {
    /// For interfaces of the caller's network namespace.
    pub check: Box<Check>,
    /// Some interfaces that can.
    pub choices: Vec<String>,
    /// CPUs that are online.
    pub cpus: CpuSet,
}

impl Host {
    /// This machine, in the caller's network namespace.
    ///
    /// # Errors
    /// The kernel does not tell its interfaces or CPUs.
    pub fn here() -> kern::error::Result<Host> {
        let access = RefCell::new(Access::for_current_netns()?);
        let check = move |name: &str| discover::resolve(&mut access.borrow_mut(), name).map(drop);
        Ok(Host { check: Box::new(check), choices: discover::choices(), cpus: kern::cpus::online()? })
    }
}

/// Where the status lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatusTo {
    /// Standard output.
    Stdout,
    /// Appended to this file.
    File(PathBuf),
}

/// A guard's options, checked.
#[derive(Debug, Clone)]
#[cfg_attr(no_bpf, allow(dead_code, reason = "the guard reads them"))]
pub struct GuardOptions {
    /// Names, each once, in the order given; none is a loopback; 1 to [`INTERFACES_MAX`]. They existed when read.
    pub interfaces: Vec<String>,
    /// Share of each CPU that programs keep, percent, 1 to 95.
    pub reserve: u8,
    /// Packets of one turn, even, 2 to 256.
    pub quota: u16,
    /// The same while the poller lends its priority.
    pub lent_quota: u16,
    /// Span over which the budget holds.
    pub period: Period,
    /// Level at which input is inhibited, percent, 2 to 99.
    pub high: u8,
    /// Level at which it is enabled again, percent, 1 to 98, below `high`.
    pub low: u8,
    /// Longest inhibit, 1 ms to 1 s.
    pub timeout: Duration,
    /// Share of each CPU that may be spent on what is shed, percent, 1 to 99; the reserve is never touched.
    pub look: u8,
    /// CPUs the pollers may use; all of them if absent. Each is online.
    pub cpu: Option<CpuSet>,
    /// How busy sources are handled.
    pub mode: Mode,
    /// Texts of the rules in force.
    pub protect: Vec<String>,
    /// Classes of frames by these rules.
    pub classes: Table,
    /// Where a status line goes each second.
    pub status: Option<StatusTo>,
    /// Print every change, make none.
    pub dry_run: bool,
    /// Errors only.
    pub quiet: bool,
    /// Mechanisms that are off, for the lab.
    pub ablate: Vec<Ablate>,
    /// Flush timeout of a source in poll mode: the kernel's own poll when weir does not come.
    pub flush: std::time::Duration,
    /// How the poller is scheduled.
    pub sched: Sched,
    /// Directory of the journal of changed settings.
    pub journal_dir: PathBuf,
    /// Directory of the socket that `weir status` asks.
    pub control_dir: PathBuf,
    args: GuardArgs,
}

/// Default of `--reserve`, percent.
pub const RESERVE: u8 = (DEFAULTS.reserve / 10) as u8;
/// Packets of a turn while the poller lends its priority, unless a quota was given.
pub const LENT_QUOTA: u16 = DEFAULTS.lent_quota as u16;
/// Default of `--quota`, packets.
pub const QUOTA: u16 = DEFAULTS.quota as u16;
/// Default of `--high`, percent.
pub const HIGH: u8 = (DEFAULTS.high / 10) as u8;
/// Default of `--low`, percent.
pub const LOW: u8 = (DEFAULTS.low / 10) as u8;
/// Default of `--timeout`.
pub const TIMEOUT: Duration = Duration::from_nanos(DEFAULTS.timeout);
/// Default of `--look`, percent: the whole budget.
pub const LOOK: u8 = 99;
/// Default of `--journal-dir` and `--control-dir`.
pub const RUN_DIR: &str = "/run/weir";

/// One option's value and who gave it, for errors about two options together.
struct Given<T> {
    value: T,
    file: Option<Range<usize>>,
    given: bool,
}

fn pick<T: Clone>(args: Option<&T>, file: Option<&At<T>>, default: T) -> Given<T> {
    match (args, file) {
        (Some(value), _) => Given { value: value.clone(), file: None, given: true },
        (None, Some(at)) => Given { value: at.value.clone(), file: Some(at.span.clone()), given: true },
        (None, None) => Given { value: default, file: None, given: false },
    }
}

impl GuardOptions {
    /// Reads the file that `args` names, merges and checks. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Usage`] with the fix, and the place if the file is at fault.
    pub fn resolve(args: GuardArgs, host: &Host) -> anyhow::Result<GuardOptions> {
        GuardOptions::read(args, host, &[])
    }

    /// Reads the file again, with the command line that this guard was started with. The interfaces need not exist
    /// any more: a guard waits for a name that has gone. Others need a restart, so a file without any keeps those in force.
    ///
    /// # Errors
    /// As [`GuardOptions::resolve`]; the guard keeps what it has.
    #[cfg_attr(no_bpf, allow(dead_code, reason = "the guard calls it on SIGHUP"))]
    pub fn reload(&self, host: &Host) -> anyhow::Result<GuardOptions> {
        GuardOptions::read(self.args.clone(), host, &self.interfaces)
    }

    /// `known` interfaces are not looked for, and kept if none is named.
    fn read(args: GuardArgs, host: &Host, known: &[String]) -> anyhow::Result<GuardOptions> {
        let file = args.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
        let file = &file;
        let (protect, classes) = classes(&args, file)?;
        let mode = pick(args.given.mode.as_ref(), file.given.mode.as_ref(), Mode::Auto);
        let (high, low) = water_marks(&args, file)?;
        let cpu = cpus(&args, file, host)?;
        if mode.value == Mode::Net && cpu.is_none() {
            let why = "needs the CPUs that are to do networking only; name them, as --cpu 0";
            return Err(at_fault(file, &mode, "mode", "net", why).into());
        }
        let status = status(&args, file)?;
        Ok(GuardOptions {
            interfaces: interfaces(&args, file, host, known)?,
            reserve: pick(args.given.reserve.as_ref(), file.given.reserve.as_ref(), RESERVE).value,
            quota: pick(args.given.quota.as_ref(), file.given.quota.as_ref(), QUOTA).value,
            lent_quota: pick(args.given.quota.as_ref(), file.given.quota.as_ref(), LENT_QUOTA).value,
            period: pick(args.given.period.as_ref(), file.given.period.as_ref(), Period::Auto).value,
            high,
            low,
            timeout: pick(args.given.timeout.as_ref(), file.given.timeout.as_ref(), TIMEOUT).value,
            look: pick(args.given.look.as_ref(), file.given.look.as_ref(), LOOK).value,
            cpu,
            mode: mode.value,
            protect,
            classes,
            status,
            dry_run: args.dry_run,
            quiet: args.quiet,
            ablate: args.ablate.clone(),
            flush: args.flush,
            sched: args.sched,
            journal_dir: args.journal_dir.clone(),
            control_dir: args.control_dir.clone(),
            args,
        })
    }
}

/// The error of one option: at its place in the file, or with its name on the command line.
fn at_fault<T>(file: &File, from: &Given<T>, name: &str, value: &str, why: &str) -> Error {
    match &from.file {
        Some(span) => file.error(span, &format!("{name} {value}: {why}")),
        None => Error::Usage(format!("--{name} {value}: {why}")),
    }
}

/// The rules in force: the default and those given, those given alone after `none`.
fn classes(args: &GuardArgs, file: &File) -> Result<(Vec<String>, Table), Error> {
    let given: Vec<(&str, Option<&Range<usize>>)> = if args.given.protect.is_empty() {
        file.given.protect.iter().map(|at| (at.value.as_str(), Some(&at.span))).collect()
    } else {
        args.given.protect.iter().map(|text| (text.as_str(), None)).collect()
    };
    let wrong = |text: &str, span: Option<&Range<usize>>, why: &str| match span {
        Some(span) => file.error(span, &format!("protect \"{}\": {why}", shown(text))),
        None => Error::Usage(format!("--protect {}: {why}", shown(text))),
    };
    let mut rules = if given.iter().any(|(text, _)| *text == "none") { Vec::new() } else { Rule::defaults() };
    let own = rules.len();
    let given: Vec<_> = given.into_iter().filter(|(text, _)| *text != "none").collect();
    for (text, span) in &given {
        rules.push(parse::rule(text).map_err(|why| wrong(text, *span, &why))?);
    }
    let table = Table::new(&rules).map_err(|full| {
        let (text, span) = given[full.rule.saturating_sub(own).min(given.len() - 1)];
        let why = format!("the table of {RULES_MAX} matches is full; leave rules out, or begin with none");
        wrong(text, span, &why)
    })?;
    Ok((rules.iter().map(|r| r.text().to_owned()).collect(), table))
}

fn water_marks(args: &GuardArgs, file: &File) -> Result<(u8, u8), Error> {
    let high = pick(args.given.high.as_ref(), file.given.high.as_ref(), HIGH);
    let low = pick(args.given.low.as_ref(), file.given.low.as_ref(), LOW);
    if low.value < high.value {
        return Ok((high.value, low.value));
    }
    // The default is never at fault; of two given values the low one is named.
    if low.given {
        let why = match high.value {
            1 => "nothing is below the high water, 1; give --high 2 or more".to_owned(),
            top => format!("not below the high water, {top}; give 1 to {}", top - 1),
        };
        Err(at_fault(file, &low, "low", &low.value.to_string(), &why))
    } else {
        let why =
            format!("not above the low water, {}; give {} to 99, or a lower --low", low.value, low.value + 1);
        Err(at_fault(file, &high, "high", &high.value.to_string(), &why))
    }
}

fn cpus(args: &GuardArgs, file: &File, host: &Host) -> Result<Option<CpuSet>, Error> {
    let list = pick(args.given.cpu.as_ref(), file.given.cpu.as_ref(), CpuSet::new());
    if let Some(cpu) = list.value.iter().find(|cpu| !host.cpus.contains(*cpu)) {
        let why = format!("no such CPU is online; choose from {}", host.cpus);
        return Err(at_fault(file, &list, "cpu", &cpu.to_string(), &why));
    }
    Ok(list.given.then_some(list.value))
}

fn interfaces(args: &GuardArgs, file: &File, host: &Host, known: &[String]) -> anyhow::Result<Vec<String>> {
    let given: Vec<(&str, Option<&Range<usize>>)> = if args.given.interfaces.is_empty() {
        file.given.interfaces.iter().map(|at| (at.value.as_str(), Some(&at.span))).collect()
    } else {
        args.given.interfaces.iter().map(|name| (name.as_str(), None)).collect()
    };
    if given.is_empty() && !known.is_empty() {
        return Ok(known.to_vec());
    }
    if given.is_empty() {
        let example = host.choices.first().map_or("eth0", String::as_str);
        return Err(usage(format!("guard: no interface; name one, as weir guard {example}")));
    }
    let mut list: Vec<String> = Vec::new();
    for (name, span) in given {
        let objection = if list.iter().any(|other| other == name) {
            Some(format!("{}: named twice; name it once", shown(name)))
        } else if list.len() == INTERFACES_MAX {
            Some(format!("more than {INTERFACES_MAX} interfaces; start a second guard for the rest"))
        } else if known.iter().any(|other| other == name) {
            None
        } else {
            match (host.check)(name) {
                Ok(()) => None,
                Err(err) if err.is_usage() => Some(err.to_string()),
                Err(err) => return Err(err.into()),
            }
        };
        match (objection, span) {
            (None, _) => list.push(name.to_owned()),
            (Some(text), Some(span)) => return Err(file.error(span, &text).into()),
            (Some(text), None) => return Err(usage(text)),
        }
    }
    Ok(list)
}

fn status(args: &GuardArgs, file: &File) -> Result<Option<StatusTo>, Error> {
    let from = pick(args.given.status.as_ref(), file.given.status.as_ref(), String::new());
    if !from.given {
        return Ok(None);
    }
    if from.value == "-" {
        return Ok(Some(StatusTo::Stdout));
    }
    let path = PathBuf::from(&from.value);
    // The guard makes its own directory before it opens the file.
    let missing = |dir: &Path| !dir.as_os_str().is_empty() && dir != args.control_dir && !dir.is_dir();
    let why = if from.value.is_empty() {
        "no file name; give a file, or - for standard output"
    } else if path.is_dir() {
        "is a directory; give a file, or - for standard output"
    } else if path.parent().is_some_and(missing) {
        "its directory does not exist; create it or give another file"
    } else {
        return Ok(Some(StatusTo::File(path)));
    };
    Err(at_fault(file, &from, "status", &shown(&from.value), why))
}

#[cfg(test)]
mod tests;
