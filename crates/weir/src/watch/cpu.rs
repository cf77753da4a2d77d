//! `weir watch --cpu`: where the CPU goes, from samples of the kernel's call chains.

mod text;

use super::replay::{Line, next_line, tell_too_long};
use super::{check_names, stop_flag, with_lower};
use crate::cli::WatchArgs;
use crate::error::{failed, usage};
use crate::out::{self, Paint, shown};
use kern::profile::{Profiler, Symbols};
use kern::raw::Want;
use see::Sampler;
use see::cost::{Folder, Profile, SCHEMA, diff};
use see::model::{Place, Snapshot};
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time for which samples are left in their buffers, which hold 200 ms.
const DRAIN: Duration = Duration::from_millis(100);

/// Runs `weir watch --cpu`.
///
/// # Errors
/// 3 without the privilege to sample the kernel, 2 for an unknown interface or a file that is no recording.
pub fn run(args: &WatchArgs, paint: Paint) -> anyhow::Result<ExitCode> {
    if let [a, b] = args.diff.as_slice() {
        return compare(a, b, args.json, paint);
    }
    let show = |profile: &Profile| match args.json {
        true => out::data(&format!("{}\n", serde_json::to_string(profile)?)),
        false => out::data(&text::profile(profile, paint)),
    };
    if let Some(file) = &args.replay {
        let all = read(file, "--replay")?;
        let from = if args.once { all.len().saturating_sub(1) } else { 0 };
        all[from..].iter().try_for_each(show)?;
        return Ok(ExitCode::SUCCESS);
    }
    check_names(&args.interfaces)?;
    let devices = with_lower(&args.interfaces);
    let mut costs = Costs::open(Want { devices, ..Want::default() })?;
    let mut record = args.record.as_deref().map(super::record_to).transpose()?;
    let stop = stop_flag()?;
    let mut next = Instant::now() + args.interval;
    loop {
        if !costs.watch_until(next, &stop) {
            return Ok(ExitCode::SUCCESS);
        }
        let (profile, _) = costs.finish()?;
        if let Some(file) = &mut record {
            writeln!(file, "{}", serde_json::to_string(&profile)?)?;
        }
        show(&profile)?;
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        next = (next + args.interval).max(Instant::now());
    }
}

/// Samples all CPUs, and counts packets meanwhile.
pub struct Costs {
    profiler: Profiler,
    folder: Folder,
    sampler: Sampler,
}

impl Costs {
    /// Begins. `want.devices`: whose packets count; none: all that receive.
    ///
    /// # Errors
    /// [`kern::error::Error::Denied`] or `Unsupported` if the kernel cannot be sampled.
    pub fn open(want: Want) -> anyhow::Result<Costs> {
        let mut profiler = Profiler::open(&kern::cpus::online()?)?;
        let mut folder = Folder::new(Symbols::read()?, std::process::id());
        let sampler = Sampler::open(want)?;
        // What was sampled while this began is not of the first interval.
        profiler.drain(|_| ());
        folder.finish([].into_iter());
        Ok(Costs { profiler, folder, sampler })
    }

    /// Counts samples; false if a signal ended it.
    pub fn watch_until(&mut self, then: Instant, stop: &AtomicBool) -> bool {
        loop {
            let left = then.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(DRAIN));
            self.drain();
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            if left.is_zero() {
                return true;
            }
        }
    }

    fn drain(&mut self) {
        let folder = &mut self.folder;
        let unseen = self.profiler.drain(|sample| folder.add(sample));
        self.folder.unseen(unseen);
    }

    /// The profile of the interval that ends now, and what the counters say of it.
    ///
    /// # Errors
    /// If the kernel shows no counters.
    pub fn finish(&mut self) -> anyhow::Result<(Profile, Snapshot)> {
        self.drain();
        let snapshot = self.sampler.sample()?;
        let unnamed = self.folder.lacks_names();
        let mut profile = self.folder.finish(self.profiler.cpus());
        if unnamed {
            self.folder.rename(Symbols::read()?);
        }
        counted(&mut profile, &snapshot);
        Ok((profile, snapshot))
    }
}

/// Times and packets of the interval.
fn counted(profile: &mut Profile, snapshot: &Snapshot) {
    profile.host = snapshot.host.clone();
    profile.time_s = snapshot.time_s;
    profile.interval_s = snapshot.interval_s;
    profile.period_ns = kern::profile::PERIOD_NS;
    profile.interfaces = snapshot.interfaces.iter().map(|i| i.name.clone()).collect();
    // What stands on others has the packets of those once more.
    let below = snapshot.interfaces.iter().any(|i| !i.stacked);
    let interfaces = || snapshot.interfaces.iter().filter(|i| !(below && i.stacked));
    // What the device dropped has cost nothing.
    let rings = interfaces().flat_map(|i| &i.stages).filter(|s| s.place == Place::Ring);
    profile.received = rings.filter_map(|s| s.out).sum();
    profile.sent = interfaces().map(|i| i.sent).sum();
}

/// The intervals of a recording.
fn read(path: &Path, option: &str) -> anyhow::Result<Vec<Profile>> {
    /// A day of intervals of one second.
    const MOST: usize = 86_400;
    let name = shown(&path.display().to_string());
    let fix = "give a file of weir watch --cpu --record";
    let file = File::open(path).map_err(|e| usage(format!("{option} {name}: {e}")))?;
    let mut file = BufReader::new(file);
    let mut all = Vec::new();
    let mut line = Vec::new();
    let mut too_long = 0;
    loop {
        let next = next_line(&mut file, &mut line).map_err(|e| failed(format!("{option} {name}: {e}")))?;
        match next.0 {
            Line::End => break,
            // A recording that was cut off ends within a line: what is whole is taken.
            Line::Cut if !all.is_empty() => break,
            Line::TooLong => {
                too_long += 1;
                continue;
            }
            Line::Cut | Line::Whole => {}
        }
        if all.len() == MOST {
            return Err(usage(format!("{option} {name}: more than {MOST} intervals; give a part of it")));
        }
        let number = all.len() + 1;
        let profile: Profile = serde_json::from_slice(&line)
            .map_err(|e| usage(format!("{option} {name}: line {number} is no profile ({e}); {fix}")))?;
        if profile.schema != SCHEMA {
            return Err(usage(format!("{option} {name}: line {number} is not {SCHEMA}; {fix}")));
        }
        all.push(profile);
    }
    if all.is_empty() {
        return Err(usage(format!("{option} {name}: no interval is in it; {fix}")));
    }
    tell_too_long(option, &name, too_long);
    Ok(all)
}

/// All intervals of a recording as one.
///
/// # Errors
/// 2 if the file, named by `option`, is none.
pub fn recorded(path: &Path, option: &str) -> anyhow::Result<Profile> {
    let mut all = read(path, option)?.into_iter();
    let mut sum = all.next().unwrap_or_default();
    all.for_each(|next| sum.add(&next));
    Ok(sum)
}

fn compare(a: &Path, b: &Path, json: bool, paint: Paint) -> anyhow::Result<ExitCode> {
    let (first, second) = (recorded(a, "--diff")?, recorded(b, "--diff")?);
    let found = diff::diff(&first, &second);
    if found.components.is_empty() {
        return Err(failed(
            "--diff: no packets in one of the recordings, so no cost per packet; record under load",
        ));
    }
    match json {
        true => out::data(&format!("{}\n", serde_json::to_string(&found)?))?,
        false => out::data(&text::diff(&found, [&first, &second], paint))?,
    }
    Ok(ExitCode::SUCCESS)
}
