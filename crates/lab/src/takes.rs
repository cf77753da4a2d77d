//! Which experiment takes which option. One that would ignore an option refuses it: a result that was measured with other
//! arms or rates than its command says would be believed.

use std::fmt;

use crate::experiment::Experiment;
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
pub fn refuse_ignored(experiment: &Experiment, options: &Options) -> Result<()> {
    match options.given().into_iter().find(|choice| !experiment.choices.contains(choice)) {
        None => Ok(()),
        Some(choice) => {
            let others = crate::experiments().iter().filter(|other| other.choices.contains(&choice));
            let others: Vec<&str> = others.map(|other| other.name).collect();
            Err(Error::Usage(format!(
                "lab run {}: {choice} has no effect on it; leave it out, it is for {}",
                experiment.name,
                others.join(", ")
            )))
        }
    }
}

/// Refuses options that a simulated run of an experiment would ignore.
///
/// # Errors
/// [`Error::Usage`] about the first of them.
pub fn refuse_not_simulated(experiment: &Experiment, options: &Options) -> Result<()> {
    match options.given().into_iter().find(|choice| !SIMULATED.contains(choice)) {
        None if options.cpus.is_none() => Ok(()),
        choice => {
            let name = choice.map_or_else(|| "--cpus".into(), |choice| choice.to_string());
            Err(Error::Usage(format!(
                "lab run {} --backend sim: {name} has no effect on it; leave it out, a simulated run takes --quick, \
                 --arms, --hogs, --seed, --json and --html",
                experiment.name
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(name: &str) -> &'static Experiment {
        crate::experiment(name).unwrap()
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
            let (takers, others): (Vec<&Experiment>, Vec<&Experiment>) =
                crate::experiments().iter().partition(|experiment| experiment.choices.contains(&choice));
            assert!(!takers.is_empty(), "{choice}");
            for taker in &takers {
                assert!(refuse_ignored(taker, &options).is_ok(), "{} {choice}", taker.name);
            }
            for other in others {
                let answer = refuse_ignored(other, &options);
                let Err(Error::Usage(text)) = answer else { panic!("{} {choice}: {answer:?}", other.name) };
                assert!(text.contains(&choice.to_string()) && text.contains(takers[0].name), "{text}");
                assert!(!text.contains('\n'), "{text}");
            }
            assert_eq!(
                refuse_not_simulated(experiment("quota"), &options).is_err(),
                !SIMULATED.contains(&choice),
                "{choice}"
            );
        }
        assert!(refuse_ignored(experiment("onset"), &Options { quick: true, ..Options::default() }).is_ok());
    }
}
