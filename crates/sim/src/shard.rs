//! Runs in parts: each part is a process of its own, on any machine, and all together give the bytes of one run.
//!
//! Every trial is a function of scenario, settings and seed, and a document is put together by the index of its trials: so
//! a part is the trials whose index leaves the same remainder, and a shard is what the document takes of them.

use crate::run::{Options, Progress, Ran, Taken, chosen, collect, jobs, taken};
use crate::scenario::{Fault, Scenario, Texts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The schema string of every shard.
pub const SCHEMA: &str = "weir.shard/1";
/// Most parts of a run.
pub const PARTS_MAX: u32 = 1024;

/// One of several parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Which one, from 0.
    pub index: u32,
    /// How many there are, at most [`PARTS_MAX`].
    pub of: u32,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

/// What is run, and everything that its result depends on: the same in all parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The command of the whole run.
    pub command: String,
    /// The scenario.
    pub scenario: Texts,
    /// Settings of the command line, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<(String, String)>,
    /// Only these kinds of load; all if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    /// Only these arms; all if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arms: Option<Vec<String>>,
    /// For every random stream.
    pub seed: u64,
    /// Check packet by packet.
    pub strict: bool,
}

impl Plan {
    /// The scenario, with the settings and without the kinds that were left out.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn scenario(&self) -> Result<Scenario, Fault> {
        let mut scenario = self.scenario.scenario(&self.sets)?;
        if let Some(kinds) = &self.kinds {
            scenario.only(kinds)?;
        }
        Ok(scenario)
    }

    /// The same as options, for so many threads.
    pub fn options(&self, threads: usize) -> Options {
        Options { seed: self.seed, jobs: threads, arms: self.arms.clone(), strict: self.strict }
    }
}

/// One part of a run that has been run, as it stands in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    schema: String,
    /// Of the weir that ran it.
    version: String,
    part: Part,
    plan: Plan,
    /// In the order of their index.
    trials: Vec<Taken>,
}

impl Shard {
    /// Runs a part; `None` if `stop` ended it early: half a part is of no use to anybody.
    ///
    /// # Errors
    /// What is wrong with the scenario.
    pub fn run(
        plan: Plan,
        part: Part,
        threads: usize,
        stop: &AtomicBool,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Option<Shard>, Fault> {
        let (scenario, options) = (plan.scenario()?, plan.options(threads));
        let arms = chosen(&scenario, &options);
        let all = jobs(&scenario, &arms, &options, stop);
        // Series are shown of the last point alone, and are most of a shard's bytes.
        let last = all.iter().map(|job| job.point).max();
        let ours: Vec<_> = all.into_iter().skip(part.index as usize).step_by(part.of as usize).collect();
        let taken = taken(&scenario, &ours, &options, stop, progress);
        if stop.load(Relaxed) {
            return Ok(None);
        }
        let mut trials: Vec<Taken> = taken.into_iter().flatten().collect();
        for (job, trial) in ours.iter().zip(&mut trials) {
            if Some(job.point) != last {
                trial.series.clear();
            }
        }
        let version = env!("CARGO_PKG_VERSION").into();
        Ok(Some(Shard { schema: SCHEMA.into(), version, part, plan, trials }))
    }

    /// What the checkers found in its trials.
    pub fn faults(&self) -> usize {
        self.trials.iter().map(|trial| trial.faults.len()).sum()
    }

    /// Writes it, in one step.
    ///
    /// # Errors
    /// It is too large, a number in it is not finite, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), results::Error> {
        let limit = |what: String| results::Error::Limit { path: path.display().to_string(), what };
        let mut text = serde_json::to_vec(self).map_err(|err| limit(err.to_string()))?;
        text.push(b'\n');
        // JSON has no infinity: such a number does not come back.
        if !serde_json::from_slice::<Shard>(&text).is_ok_and(|back| back == *self) {
            return Err(limit("a number is not finite".into()));
        }
        if text.len() as u64 > results::MAX_BYTES {
            return Err(limit(format!("larger than {} MiB; use more parts", results::MAX_BYTES >> 20)));
        }
        results::write_whole(path, &text)
    }

    /// Reads one.
    ///
    /// # Errors
    /// Why the file is none, in one line with the fix.
    pub fn read(path: &Path) -> Result<Shard, String> {
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(|err| err.to_string())?;
        file.take(results::MAX_BYTES + 1).read_to_end(&mut text).map_err(|err| err.to_string())?;
        if text.len() as u64 > results::MAX_BYTES {
            return Err(format!("larger than {} MiB", results::MAX_BYTES >> 20));
        }
        Shard::parse(&text)
    }

    /// Reads one from memory.
    ///
    /// # Errors
    /// As [`Shard::read`], but for the file.
    pub fn parse(text: &[u8]) -> Result<Shard, String> {
        // Looked at alone, so that a file of another kind is told as such.
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            schema: String,
            #[serde(default)]
            version: String,
        }
        let fix = "give files written by weir sim run --shard";
        let head: Head = serde_json::from_slice(text).map_err(|err| format!("{err}; {fix}"))?;
        if head.schema != SCHEMA {
            return Err(format!("schema is \"{}\", not \"{SCHEMA}\"; {fix}", head.schema));
        }
        let ours = env!("CARGO_PKG_VERSION");
        if head.version != ours {
            return Err(format!("written by weir {}, and this is {ours}; merge with that one", head.version));
        }
        let shard: Shard = serde_json::from_slice(text).map_err(|err| format!("{err}; {fix}"))?;
        match shard.part {
            Part { index, of } if index < of && of <= PARTS_MAX => Ok(shard),
            part => Err(format!("no part of a run: {part}; {fix}")),
        }
    }
}

/// The document of all parts of one run, each with the name of its file. The same bytes as of a run in one piece.
///
/// # Errors
/// A part that is of another run, is missing or is there twice; what to do about it.
pub fn merge(shards: Vec<(String, Shard)>) -> Result<Ran, String> {
    let Some((first, plan, of)) = shards.first().map(|(name, s)| (name.clone(), s.plan.clone(), s.part.of))
    else {
        return Err("no file; give the files of all parts".into());
    };
    let mut parts: BTreeMap<u32, (String, Vec<Taken>)> = BTreeMap::new();
    for (name, shard) in shards {
        if shard.plan != plan || shard.part.of != of {
            let differs = match shard.plan.command == plan.command {
                true if shard.part.of != of => format!("in {} parts, not {of}", shard.part.of),
                true => "the same command over another file".into(),
                false => format!("\"{}\", not \"{}\"", shard.plan.command, plan.command),
            };
            return Err(format!("{name}: of another run than {first}: {differs}"));
        }
        if let Some((other, _)) = parts.insert(shard.part.index, (name.clone(), shard.trials)) {
            return Err(format!("{name}: part {} again, as in {other}; give one of them", shard.part));
        }
    }
    let missing: Vec<String> =
        (0..of).filter(|i| !parts.contains_key(i)).map(|index| Part { index, of }.to_string()).collect();
    if !missing.is_empty() {
        let (some, more) =
            (missing.iter().take(8).cloned().collect::<Vec<_>>(), missing.len().saturating_sub(8));
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        return Err(format!("no file has part {}{more}; run it and give its file too", some.join(", ")));
    }
    let scenario = plan.scenario().map_err(|fault| format!("{first}: {fault}"))?;
    let (options, stop) = (plan.options(1), AtomicBool::new(false));
    let arms = chosen(&scenario, &options);
    let jobs = jobs(&scenario, &arms, &options, &stop);
    let mut all: Vec<Option<Taken>> = jobs.iter().map(|_| None).collect();
    for (index, (name, trials)) in parts {
        let slots = all.iter_mut().skip(index as usize).step_by(of as usize);
        let (wanted, found) = (slots.len(), trials.len());
        if wanted != found {
            return Err(format!("{name}: has {found} trials, not {wanted}; run this part again"));
        }
        slots.zip(trials).for_each(|(slot, trial)| *slot = Some(trial));
    }
    let mut ran = collect(&scenario, &arms, &jobs, all, &options);
    ran.document.command = Some(plan.command);
    Ok(ran)
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
