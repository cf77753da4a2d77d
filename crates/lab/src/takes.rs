//! Which experiment takes which option. One that would ignore an option refuses it: a result that was measured with other
//! arms or rates than its command says would be believed.

use std::fmt;

use crate::options::Options;
use crate::{Error, Result};

/// An option of `weir lab run` that not every experiment takes. `--quick`, `--json`, `--html` and the CPUs are for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// `Options::duration`.
    Duration,
    /// `Options::repeat`.
    Repeat,
    /// `Options::pairs`.
    Pairs,
    /// `Options::onsets`.
    Onsets,
    /// `Options::arms`.
    Arms,
    /// `Options::hogs`.
    Hogs,
    /// `Options::consumer`.
    Consumer,
    /// `Options::rcvbuf`.
    Rcvbuf,
    /// `Options::work`.
    Work,
    /// `Options::multiples`.
    Multiples,
    /// `Options::reserves`.
    Reserves,
    /// `Options::guard`.
    Guard,
    /// `Options::base_pps`.
    BasePps,
    /// `Options::kinds`.
    Kinds,
    /// `Options::rates`.
    Rates,
    /// `Options::seed`.
    Seed,
}

use Choice::{
    Arms, BasePps, Consumer, Duration, Guard, Hogs, Kinds, Multiples, Onsets, Pairs, Rates, Rcvbuf, Repeat,
    Reserves, Seed, Work,
};

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Duration => "--duration",
            Repeat => "--repeat",
            Pairs => "--pairs",
            Onsets => "--onsets",
            Arms => "--arms",
            Hogs => "--hogs",
            Consumer => "--consumer",
            Rcvbuf => "--rcvbuf",
            Work => "--work",
            Multiples => "--multiples",
            Reserves => "--reserves",
            Guard => "--guard",
            BasePps => "--base-pps",
            Kinds => "--kind",
            Rates => "--rates",
            Seed => "--seed",
        })
    }
}

/// What a router takes: the kernel forwards, so that no program and no buffer of it can be chosen.
const ROUTER: &[Choice] = &[Duration, Repeat, Arms, Hogs, Work, Multiples, Reserves, Guard, BasePps, Seed];

/// The options of each experiment.
const TAKES: &[(&str, &[Choice])] = &[
    (
        "livelock-udp",
        &[Duration, Repeat, Arms, Hogs, Consumer, Rcvbuf, Work, Multiples, Reserves, Guard, BasePps, Seed],
    ),
    ("livelock-router", ROUTER),
    ("screen", ROUTER),
    ("quota", ROUTER),
    ("cycle-limit", ROUTER),
    ("tx-starvation", ROUTER),
    ("below-saturation", &[Duration, Pairs, Consumer, Rcvbuf, Work, Guard, BasePps]),
    ("onset", &[Onsets, Rcvbuf, Work, Guard, BasePps]),
    ("fairness", &[Duration, Repeat, Rcvbuf, Work, Guard, BasePps, Seed]),
    ("no-harm", &[Duration, Pairs, Guard, Seed]),
    ("control-traffic", &[Duration, Repeat, Arms, Consumer, Rcvbuf, Work, Multiples, Guard, BasePps, Seed]),
    ("innocents", &[Duration, Repeat, Arms, Rcvbuf, Work, Guard, Kinds, Rates, Seed]),
    ("syn-flood", &[Duration, Repeat, Arms, Guard, Rates, Seed]),
    ("fair-sources", &[Duration, Repeat, Arms, Guard, Rates, Seed]),
    ("many-consumers", &[Duration, Repeat, Arms, Guard, Rates, Seed]),
    ("small-buffers", &[Duration, Repeat, Arms, Work, Guard, Rates, Seed]),
    ("capture", &[Duration, Repeat, Arms, Guard, Kinds, Rates, Seed]),
    ("containers", &[Duration, Repeat, Arms, Guard, Kinds, Rates, Seed]),
    ("real-programs", &[Duration, Repeat, Arms, Guard, Kinds, Rates, Seed]),
    ("accept", &[Duration, Repeat, Arms, Seed]),
    ("accept-skew", &[Duration, Repeat, Arms, Kinds, Seed]),
    ("mlfrr", &[Arms, Seed]),
    ("shed-cost", &[Duration, Repeat, Guard, Seed]),
    ("burst-latency", &[Duration, Repeat, Rcvbuf, Work, Seed]),
    ("clocked", &[Duration, Repeat, Consumer, Rcvbuf, Work, BasePps, Seed]),
    ("cpu-net", &[Duration, Repeat, Arms, Work, Guard, Seed]),
    ("cpu-net-resize", &[Duration, Repeat, Arms, Work, Guard, Seed]),
    ("cpu-share", &[Duration, Repeat, Seed]),
    ("steering", &[Duration, Repeat, Seed]),
    ("cpus", &[Duration, Repeat, Seed]),
];
/// What a simulated run of an experiment takes.
const SIMULATED: &[Choice] = &[Arms, Hogs, Seed];

impl Options {
    /// The options that differ from the defaults.
    fn given(&self) -> Vec<Choice> {
        let usual = Options::default();
        [
            (Duration, self.duration.is_some()),
            (Repeat, self.repeat.is_some()),
            (Pairs, self.pairs.is_some()),
            (Onsets, self.onsets.is_some()),
            (Arms, self.arms.is_some()),
            (Hogs, self.hogs.is_some()),
            (Consumer, self.consumer != usual.consumer),
            (Rcvbuf, self.rcvbuf != usual.rcvbuf),
            (Work, self.work != usual.work),
            (Multiples, self.multiples.is_some()),
            (Reserves, !self.reserves.is_empty()),
            (Guard, !self.guard.is_empty()),
            (BasePps, self.base_pps.is_some()),
            (Kinds, self.kinds.is_some()),
            (Rates, self.rates.is_some()),
            (Seed, self.seed != usual.seed),
        ]
        .into_iter()
        .filter_map(|(choice, given)| given.then_some(choice))
        .collect()
    }
}

/// Refuses options that the experiment would ignore.
///
/// # Errors
/// [`Error::Usage`] about the first of them: one line that names the experiments that take it.
pub fn refuse_ignored(experiment: &str, options: &Options) -> Result<()> {
    let Some((_, takes)) = TAKES.iter().find(|(name, _)| *name == experiment) else { return Ok(()) };
    match options.given().into_iter().find(|choice| !takes.contains(choice)) {
        None => Ok(()),
        Some(choice) => {
            let others = TAKES.iter().filter(|(_, takes)| takes.contains(&choice));
            let others: Vec<&str> = others.map(|(name, _)| *name).collect();
            Err(Error::Usage(format!(
                "lab run {experiment}: {choice} has no effect on it; leave it out, it is for {}",
                others.join(", ")
            )))
        }
    }
}

/// Refuses options that a simulated run of an experiment would ignore.
///
/// # Errors
/// [`Error::Usage`] about the first of them.
pub fn refuse_not_simulated(experiment: &str, options: &Options) -> Result<()> {
    match options.given().into_iter().find(|choice| !SIMULATED.contains(choice)) {
        None if options.cpus.is_none() => Ok(()),
        choice => {
            let name = choice.map_or_else(|| "--cpus".into(), |choice| choice.to_string());
            Err(Error::Usage(format!(
                "lab run {experiment} --backend sim: {name} has no effect on it; leave it out, a simulated run \
                 takes --quick, --arms, --hogs, --seed, --json and --html"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_says_what_it_takes() {
        let ours: Vec<&str> = TAKES.iter().map(|(name, _)| *name).collect();
        let all: Vec<&str> = crate::experiments().iter().map(|e| e.name).collect();
        assert_eq!(ours, all);
    }

    /// One set of options for each choice that differs from the defaults in nothing else.
    fn one_of_each() -> Vec<(Choice, Options)> {
        let with = |choice, set: fn(&mut Options)| {
            let mut options = Options::default();
            set(&mut options);
            (choice, options)
        };
        vec![
            with(Duration, |o| o.duration = Some(std::time::Duration::from_secs(2))),
            with(Repeat, |o| o.repeat = Some(2)),
            with(Pairs, |o| o.pairs = Some(2)),
            with(Onsets, |o| o.onsets = Some(2)),
            with(Arms, |o| o.arms = Some(vec!["weir".into()])),
            with(Hogs, |o| o.hogs = Some(vec![1])),
            with(Consumer, |o| o.consumer = crate::Kind::Nsd),
            with(Rcvbuf, |o| o.rcvbuf = Some(crate::RCVBUF_LARGE)),
            with(Work, |o| o.work = std::time::Duration::ZERO),
            with(Multiples, |o| o.multiples = Some(vec![1.0])),
            with(Reserves, |o| o.reserves = vec![50]),
            with(Guard, |o| o.guard = vec!["--quota".into(), "8".into()]),
            with(BasePps, |o| o.base_pps = Some(1e5)),
            with(Kinds, |o| o.kinds = Some(vec!["hung".into()])),
            with(Rates, |o| o.rates = Some(vec![1e6])),
            with(Seed, |o| o.seed = 7),
        ]
    }

    #[test]
    fn what_has_no_effect_is_refused_with_the_experiments_that_take_it() {
        for (choice, options) in one_of_each() {
            assert_eq!(options.given(), [choice]);
            let (takers, others): (Vec<_>, Vec<_>) =
                TAKES.iter().partition(|(_, takes)| takes.contains(&choice));
            assert!(!takers.is_empty(), "{choice}");
            for (name, _) in &takers {
                assert!(refuse_ignored(name, &options).is_ok(), "{name} {choice}");
            }
            for (name, _) in others {
                let answer = refuse_ignored(name, &options);
                let Err(Error::Usage(text)) = answer else { panic!("{name} {choice}: {answer:?}") };
                assert!(text.contains(&choice.to_string()) && text.contains(takers[0].0), "{text}");
                assert!(!text.contains('\n'), "{text}");
            }
            assert_eq!(
                refuse_not_simulated("quota", &options).is_err(),
                !SIMULATED.contains(&choice),
                "{choice}"
            );
        }
        assert!(refuse_ignored("onset", &Options { quick: true, ..Options::default() }).is_ok());
    }
}
