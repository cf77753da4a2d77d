//! `weir watch`: where packets wait and are lost, interval by interval.

use crate::cli::WatchArgs;
use crate::error::usage;
use crate::out::{self, ColorWhen, Paint, Weight, shown};
use kern::discover::{self, DiscoverError};
use kern::raw::Want;
use see::{Sampler, Snapshot};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

mod accepts;
mod cpu;
mod guards;
mod replay;
mod serve;
mod table;
mod view;
mod waits;

pub use accepts::Accepts;
pub use cpu::{Costs, recorded};
pub use guards::Guards;

/// Longest time between two looks at the signal, so that Ctrl-C is quick.
const STEP: Duration = Duration::from_millis(50);

/// Runs `weir watch`.
///
/// # Errors
/// 2 for an unknown interface or a file that is no recording, 1 if the kernel shows no counters.
pub fn run(args: &WatchArgs, when: ColorWhen) -> anyhow::Result<ExitCode> {
    // It only looks: programs that want the same CPU go before.
    kern::wire::tasks::short_slice(10);
    if args.cpu {
        return cpu::run(args, Paint::stdout(when));
    }
    if args.web.is_some() || args.metrics.is_some() {
        return serve::run(args);
    }
    // A recording in a pipe cannot be gone back in.
    let seekable = args.replay.as_ref().is_none_or(|path| path.is_file());
    if !args.once && !args.json && seekable && view::possible() {
        return view::run(args, when);
    }
    let paint = Paint::stdout(when);
    let mut show = |snapshot: &Snapshot| match args.json {
        true => out::data(&format!("{}\n", serde_json::to_string(snapshot)?)),
        false => out::data(&table::text(snapshot, paint)),
    };
    if let Some(file) = &args.replay {
        replay::replay(file, args.once, &mut show)?;
        return Ok(ExitCode::SUCCESS);
    }
    check_names(&args.interfaces)?;
    let mut record = args.record.as_deref().map(record_to).transpose()?;
    let stop = stop_flag()?;
    let mut host = Host::open(args)?;
    let mut next = Instant::now() + args.interval;
    loop {
        if !sleep_until(next, &stop) {
            return Ok(ExitCode::SUCCESS);
        }
        let snapshot = host.sample()?;
        if let Some(file) = &mut record {
            writeln!(file, "{}", serde_json::to_string(&snapshot)?)?;
        }
        show(&snapshot)?;
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        // A reader that is slow costs intervals, not a backlog of them.
        next = (next + args.interval).max(Instant::now());
    }
}

/// This host: the kernel's counters, what guards and `weir accept`s tell, and what probes count if they were asked for.
pub struct Host {
    sampler: Sampler,
    guards: Guards,
    accepts: Accepts,
}

impl Host {
    /// Takes the first readings, in the caller's network namespace.
    ///
    /// # Errors
    /// If the kernel shows neither interfaces nor counters.
    pub fn open(args: &WatchArgs) -> anyhow::Result<Host> {
        let devices = with_lower(&args.interfaces);
        let mut sampler = Sampler::open(Want { devices, ..Want::default() })?;
        if args.probes {
            // What they cannot tell here is said, and the rest goes on.
            sampler.probe().iter().for_each(|line| out::tell(Weight::Warning, &format!("weir: {line}")));
        }
        let guards = Guards::open(args.control_dir.clone());
        Ok(Host { sampler, guards, accepts: Accepts::open(args.control_dir.clone()) })
    }

    /// The interval since the last call, or since this was opened.
    ///
    /// # Errors
    /// As [`Host::open`].
    pub fn sample(&mut self) -> anyhow::Result<Snapshot> {
        let mut snapshot = self.sampler.sample()?;
        self.guards.add(&mut snapshot);
        self.accepts.add(&mut snapshot);
        Ok(snapshot)
    }
}

/// The names as given, and those of the interfaces that receive for a bond, bridge or VLAN: they have the rings, the queues and the
/// guards. Where the kernel does not tell them, the names alone.
pub fn with_lower(names: &[String]) -> Vec<String> {
    let mut all = crate::undo::lower(names).unwrap_or_else(|_| names.to_vec());
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|name| seen.insert(name.clone()));
    all
}

/// Refuses names that are no interface here.
pub fn check_names(names: &[String]) -> anyhow::Result<()> {
    for name in names {
        if !kern::netns::valid_name(name) || kern::netns::index_of(name).is_err() {
            let name = shown(name);
            return Err(usage(DiscoverError::NoSuchInterface { name, choices: discover::choices() }));
        }
    }
    Ok(())
}

/// A file for a recording. One that is there is not written over, unless it is empty or no plain file.
///
/// # Errors
/// 2 if there can be none.
pub fn record_to(path: &Path) -> anyhow::Result<File> {
    let name = shown(&path.to_string_lossy());
    match path.metadata() {
        Ok(there) if there.is_file() && there.len() > 0 => {
            Err(usage(format!("--record {name}: is there already; give a new file")))
        }
        _ => File::create(path).map_err(|e| usage(format!("--record {name}: {e}"))),
    }
}

/// A flag that SIGINT, SIGTERM and a terminal that closes raise.
pub fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    stop_raises(&stop)?;
    Ok(stop)
}

/// These signals raise the flag. Whoever was started with SIGHUP ignored, as by `nohup`, goes on when the terminal closes.
pub fn stop_raises(stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let stays = ignores(&status, SIGHUP);
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !stays) {
        signal_hook::flag::register(signal, Arc::clone(stop))?;
    }
    Ok(())
}

/// Whether a process with this `/proc/PID/status` ignores the signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Sleeps; false if a signal ended it.
pub fn sleep_until(then: Instant, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(STEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_told_by_its_bit() {
        let status = "Name:\tweir\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(ignores(status, 1) && ignores(status, 13));
        assert!(!ignores(status, 15) && !ignores("", 1));
    }
}
