//! Goodput over offered rate, arms interleaved point by point: `livelock-udp`, and all experiments of that form.

use std::collections::BTreeMap;
use std::time::Duration;

use results::{Base, Document, Id, Mode, Point, Role, Trial};

use crate::arm::{self, Arm, Host};
use crate::consumer::Kind;
use crate::options::Options;
use crate::plan::{Progress, Runner, result_of};
use crate::search;
use crate::trial::{Offer, burst};
use crate::{Error, Result};

/// Arms of a quick run.
const QUICK: [&str; 3] = ["stock-rps", "stock-timer", "weir"];
/// The arm whose setting is searched for.
const RATE_LIMIT: &str = "rate-limit";
/// Trials that one search for an MLFRR takes, as an estimate for the progress.
const SEARCH_TRIALS: u64 = 28;
const SEARCH_TRIALS_QUICK: u64 = 16;

/// An experiment of this form.
#[derive(Clone, Copy)]
pub(crate) struct Sweep {
    /// As `weir lab run` takes it.
    pub(crate) name: &'static str,
    /// What the host does with packets; `None`: the user chooses the program that reads them.
    pub(crate) consumer: Option<Kind>,
    /// All its arms, but for the rate limit.
    pub(crate) arms: fn(u8) -> Vec<Arm>,
    /// Whether a static rate limit is searched for and becomes an arm.
    pub(crate) rate_limit: bool,
    /// Arms of a quick run.
    pub(crate) quick: &'static [&'static str],
    /// Numbers of hogs, if the user gives none.
    pub(crate) hogs: &'static [u32],
    /// Multiples if the user gives none; empty: those of the design.
    pub(crate) multiples: &'static [f64],
    /// Whether waits in the output are measured.
    pub(crate) watch_output: bool,
    /// Claims that a run with these arms must be able to judge.
    pub(crate) required: fn(&[Arm]) -> Vec<Id>,
    /// Claims of its own, added to a judged document.
    pub(crate) claims: fn(&mut Document),
}

/// The experiment `livelock-udp`.
pub(crate) const UDP: Sweep = Sweep {
    name: "livelock-udp",
    consumer: None,
    arms: arm::udp,
    rate_limit: true,
    quick: &QUICK,
    hogs: &[],
    multiples: &[],
    watch_output: false,
    required,
    claims: |_| (),
};

/// A rate of the sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rate {
    Multiple(f64),
    Max,
}

/// Trials of each point, and the mode of the last, by arm, hogs and rate.
type Taken = BTreeMap<(usize, u32, usize), (Vec<Trial>, Option<Mode>)>;

impl Sweep {
    /// The names of all arms, in the order in which they are shown.
    pub(crate) fn names(&self, options: &Options) -> Vec<String> {
        let mut names: Vec<String> = self.candidates(options).into_iter().map(|a| a.name).collect();
        // Where the results show it: among what a user could choose.
        let at = names.iter().position(|n| n == "no-op").unwrap_or(names.len());
        if self.rate_limit {
            names.insert(at, RATE_LIMIT.into());
        }
        names
    }

    fn candidates(&self, options: &Options) -> Vec<Arm> {
        let mut arms = (self.arms)(options.reserve);
        let more = options.reserves.iter().filter(|r| **r != options.reserve);
        arms.extend(more.map(|r| arm::reserve(*r)));
        for arm in &mut arms {
            if let Host::Guard(own) = &mut arm.host {
                own.extend(options.guard.iter().cloned());
            }
        }
        arms
    }

    /// The arms that the options ask for, but for the rate limit; and whether that is asked for.
    ///
    /// # Errors
    /// If a name is unknown, or an arm needs weir and there is none.
    fn choose(&self, options: &Options, weir: bool, default: Option<&[&str]>) -> Result<(Vec<Arm>, bool)> {
        let known = self.names(options);
        let wanted: Vec<String> = match (&options.arms, default) {
            (Some(arms), _) => arms.clone(),
            (None, Some(default)) => default.iter().map(|n| (*n).to_string()).collect(),
            (None, None) => known.clone(),
        };
        if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
            return Err(Error::Usage(format!("no arm {unknown}; there are {}", known.join(", "))));
        }
        let reserves: Vec<String> = options.reserves.iter().map(|r| arm::reserve(*r).name).collect();
        let extra = |a: &Arm| reserves.contains(&a.name);
        let arms: Vec<Arm> =
            self.candidates(options).into_iter().filter(|a| wanted.contains(&a.name) || extra(a)).collect();
        if let Some(arm) = arms.iter().find(|a| matches!(a.host, Host::Guard(_)) && !weir) {
            return Err(Error::Missing(format!(
                "arm {} needs the program weir beside this one; build it",
                arm.name
            )));
        }
        Ok((arms, wanted.iter().any(|n| n == RATE_LIMIT)))
    }

    /// Runs the experiment.
    ///
    /// # Errors
    /// If nothing could be measured. An interrupt after the first round gives a partial document instead.
    pub(crate) fn run(&self, options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
        if self.consumer.is_some() && options.consumer != Kind::default() {
            return Err(Error::Usage(format!("{}: no other consumer is possible", self.name)));
        }
        let mut options = options.clone();
        options.consumer = self.consumer.unwrap_or(options.consumer);
        if options.hogs.is_none() && !self.hogs.is_empty() {
            options.hogs = Some(self.hogs.to_vec());
        }
        if options.multiples.is_none() && !self.multiples.is_empty() {
            options.multiples = Some(self.multiples.to_vec());
        }
        sweep(self, &options, progress)
    }
}

/// The arms of `livelock-udp` that the options ask for.
///
/// # Errors
/// If a name is unknown, or an arm needs weir and there is none.
pub(crate) fn choose(options: &Options, weir: bool, default: Option<&[&str]>) -> Result<(Vec<Arm>, bool)> {
    UDP.choose(options, weir, default)
}

/// Measures 1 x: the MLFRR of the best stock arm among `arms`, with the points of the search by arm.
pub(crate) fn base(runner: &mut Runner<'_>, arms: &[Arm]) -> Result<(Base, BTreeMap<String, Vec<Point>>)> {
    let mut points = BTreeMap::new();
    if let Some(given) = runner.options.base_pps {
        return Ok((Base::given(given), points));
    }
    let mut stock: Vec<Arm> = arms.iter().filter(|a| a.role == Role::Stock).cloned().collect();
    if stock.is_empty() {
        // Multiples need a base also where only weir is asked for.
        stock = arm::stock();
    }
    let each = if runner.options.quick { SEARCH_TRIALS_QUICK } else { SEARCH_TRIALS };
    runner.total += each * stock.len() as u64;
    let mut best: Option<Base> = None;
    let goal = search::Goal::mlfrr(runner.options.quick);
    for arm in &stock {
        let end = runner.done() + each;
        let (tried, rate) = search::mlfrr(runner, arm, &goal)?;
        // The estimate gives way to what it took.
        runner.total = (runner.total + runner.done()).saturating_sub(end);
        if let Some(rate) = rate
            && best.as_ref().is_none_or(|best| rate > best.mlfrr_pps)
        {
            best = Some(Base { arm: arm.name.clone(), mlfrr_pps: rate });
        }
        points.insert(arm.name.clone(), tried);
    }
    let best = best.ok_or_else(|| {
        Error::Usage(
            "no stock arm carries any rate without loss: other programs take the CPUs; stop them".into(),
        )
    })?;
    Ok((best, points))
}

/// A fixed permutation of `0..n` for a seed and a round.
pub(crate) fn order(n: usize, seed: u64, round: u64) -> Vec<usize> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round.wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1;
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        // xorshift64, good enough to shuffle a dozen arms.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}

fn sweep(what: &Sweep, options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let mut runner = Runner::new(options, progress)?;
    runner.bench.watch_output = what.watch_output;
    let default = options.quick.then_some(what.quick);
    let (mut arms, limited) = what.choose(options, runner.bench.weir.is_some(), default)?;
    runner.can_guard(&arms)?;
    let mut rates: Vec<Rate> = options.multiples().into_iter().map(Rate::Multiple).collect();
    rates.extend(options.wire_max.then_some(Rate::Max));
    let hogs = options.hogs();
    let sweep = (rates.len() * hogs.len() * options.repeat() as usize) as u64;
    runner.total = sweep * (arms.len() as u64 + u64::from(limited)) + if limited { 12 } else { 0 };

    let (one_x, searched) = base(&mut runner, &arms)?;
    let base_pps = one_x.mlfrr_pps;
    if limited {
        let at = arms.iter().position(|a| a.role == Role::Control).unwrap_or(arms.len());
        arms.insert(at, search::rate_limit(&mut runner, base_pps)?);
    }
    let mut document = runner.document(what.name)?;
    document.base = Some(one_x);
    let mut alone = BTreeMap::new();
    for n in hogs.iter().filter(|n| **n > 0) {
        runner.say(&format!("{n} hogs alone"));
        let share =
            runner.bench.alone(&arm::stock()[1], *n, options.window().max(Duration::from_millis(500)))?;
        alone.insert(*n, share);
    }

    let mut taken: Taken = BTreeMap::new();
    let mut sweep = || -> Result<()> {
        for round in 0..u64::from(options.repeat()) {
            for (r, rate) in rates.iter().enumerate() {
                for hogs in &hogs {
                    let seed = round << 32 | (r as u64) << 8 | u64::from(*hogs);
                    for a in order(arms.len(), options.seed, seed) {
                        let outcome = point(&mut runner, &arms[a], *rate, base_pps, *hogs)?;
                        let mut trial = outcome.0;
                        trial.user_of_alone = alone
                            .get(hogs)
                            .filter(|share| **share > 0.0)
                            .and_then(|share| trial.user_share.map(|user| user / share));
                        let entry = taken.entry((a, *hogs, r)).or_default();
                        entry.0.push(trial);
                        entry.1 = outcome.1.or(entry.1);
                    }
                }
            }
        }
        Ok(())
    };
    let cut_short = match sweep() {
        Ok(()) => false,
        Err(Error::Interrupted) if !taken.is_empty() => true,
        Err(e) => return Err(e),
    };

    let mut searched = searched;
    for (a, arm) in arms.iter().enumerate() {
        let mut result = result_of(arm, options.reserve);
        result.points = searched.remove(&arm.name).unwrap_or_default();
        for ((_, hogs, r), (trials, mode)) in taken.iter().filter(|((i, _, _), _)| *i == a) {
            let mut point = Point::fold(trials.clone(), *mode);
            point.hogs = *hogs;
            match rates[*r] {
                Rate::Multiple(m) => {
                    point.multiple = Some(m);
                    point.burst = Some(burst(Some(m * base_pps)));
                }
                Rate::Max => {
                    point.wire_max = true;
                    point.burst = Some(burst(None));
                }
            }
            result.points.push(point);
        }
        document.arms.push(result);
    }
    let required = if cut_short { vec![Id::Ledger] } else { (what.required)(&arms) };
    runner.finish(&mut document, &required, cut_short);
    (what.claims)(&mut document);
    Ok(document)
}

/// The claims that a run with these arms must be able to judge.
pub(crate) fn required(arms: &[Arm]) -> Vec<Id> {
    let has = |role| arms.iter().any(|a| a.role == role);
    let mut ids = vec![Id::Ledger];
    if has(Role::Weir) {
        ids.extend([Id::P1, Id::P8]);
        if has(Role::Stock) {
            ids.extend([Id::P2, Id::P9]);
        }
    }
    if has(Role::Control) {
        ids.push(Id::NoOp);
    }
    ids
}

fn point(
    runner: &mut Runner<'_>,
    arm: &Arm,
    rate: Rate,
    base_pps: f64,
    hogs: u32,
) -> Result<(Trial, Option<Mode>)> {
    let (rate, text) = match rate {
        Rate::Multiple(m) => (Some(m * base_pps), format!("{} at {m} x", arm.name)),
        Rate::Max => (None, format!("{} at the wire's maximum", arm.name)),
    };
    let hogs_text = match hogs {
        0 => String::new(),
        1 => ", 1 hog".into(),
        n => format!(", {n} hogs"),
    };
    let (warm_up, window) = (runner.options.warm_up(), runner.options.window());
    let offer = Offer { rate, warm_up, window, hogs };
    let outcome = runner.trial(arm, &offer, &format!("{text}{hogs_text}"))?;
    Ok((outcome.trial, outcome.mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_permutation_that_its_seed_fixes() {
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..20 {
            let o = order(7, 1, round);
            let mut sorted = o.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..7).collect::<Vec<_>>());
            assert_eq!(o, order(7, 1, round));
            seen.insert(o);
        }
        assert!(seen.len() > 10, "{} different orders of 20", seen.len());
    }

    #[test]
    fn arms_are_chosen_by_name() {
        let with = |arms: &[&str]| Options {
            arms: Some(arms.iter().map(|a| (*a).to_string()).collect()),
            ..Options::default()
        };
        let (arms, limited) = choose(&with(&["weir", "rate-limit"]), true, None).unwrap();
        assert_eq!((arms.len(), limited), (1, true));
        assert!(choose(&with(&["wier"]), true, None).is_err());
        assert!(choose(&with(&["weir"]), false, None).is_err(), "weir is not there");
        assert!(choose(&with(&["stock-rps"]), false, None).is_ok());
        let more = Options { reserves: vec![50, 75], ..Options::default() };
        let (arms, limited) = choose(&more, true, None).unwrap();
        assert_eq!((arms.len() + usize::from(limited), limited), (UDP.names(&more).len(), true));
        assert!(arms.iter().any(|a| a.name == "weir-reserve-75"));
        // In addition to those that are named.
        let more = Options { reserves: vec![50], ..with(&["stock-rps"]) };
        let names: Vec<String> = choose(&more, true, None).unwrap().0.into_iter().map(|a| a.name).collect();
        assert_eq!(names, ["stock-rps", "weir-reserve-50"]);
    }
}
