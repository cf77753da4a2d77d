//! What experiments have in common that take a few figures at points: arms interleaved, medians, panels.

use results::{Document, Id, MAX_PANELS, Mark, Panel, Role, Scale, Verdict, stats};
use serde_json::Value;

use crate::arm::{self, Arm, Host};
use crate::innocents::at_least;
use crate::livelock;
use crate::options::Options;
use crate::plan::{Runner, result_of};
use crate::trial::Bench;
use crate::{Error, Result};

/// A figure of a trial: what its panel is called, and its unit.
pub(crate) type Figure = (&'static str, &'static str);

/// What one trial saw, in the order of the experiment's figures; `None`: not known.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) figures: Vec<Option<f64>>,
    pub(crate) void: Option<String>,
}

/// Trials of arms at points.
pub(crate) struct Grid {
    /// Of the experiment.
    pub(crate) name: &'static str,
    pub(crate) figures: &'static [Figure],
    /// Name of the variable.
    pub(crate) x: &'static str,
    /// Each has panels of its own.
    pub(crate) kinds: Vec<String>,
    /// Values of the variable, as they are shown.
    pub(crate) xs: Vec<f64>,
    pub(crate) arms: Vec<Arm>,
    /// By arm, kind and value.
    pub(crate) taken: Vec<Vec<Vec<Vec<Sample>>>>,
}

/// Those of all arms that have these names. Compared are arms whose whole cost falls on the host CPU: stock-rps is only shown.
pub(crate) fn arms(reserve: u8, names: &[&str]) -> Vec<Arm> {
    let mut arms = arm::all(reserve);
    arms.retain(|arm| names.contains(&arm.name.as_str()));
    for arm in arms.iter_mut().filter(|arm| arm.name == "stock-rps") {
        arm.role = Role::Shown;
    }
    arms
}

/// The rates asked for, or those of the experiment, packets/s.
pub(crate) fn rates(options: &Options, all: &[f64], quick: &[f64]) -> Vec<f64> {
    options.rates.clone().unwrap_or_else(|| if options.quick { quick } else { all }.to_vec())
}

/// The arms asked for of those that there are, with the guard's own options: all, or in a quick run those named.
pub(crate) fn chosen(options: &Options, mut all: Vec<Arm>, quick: &[&str]) -> Result<Vec<Arm>> {
    let names: Vec<String> = all.iter().map(|arm| arm.name.clone()).collect();
    let default = || match options.quick {
        true => quick.iter().map(|name| (*name).to_string()).collect(),
        false => names.clone(),
    };
    let wanted = options.arms.clone().unwrap_or_else(default);
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(name)) {
        return Err(Error::Usage(format!("no arm {unknown}; there are {}", names.join(", "))));
    }
    all.retain(|arm| wanted.contains(&arm.name));
    for arm in &mut all {
        if let Host::Guard(own) = &mut arm.host {
            own.extend(options.guard.iter().cloned());
        }
    }
    Ok(all)
}

/// The kinds asked for with `--kind`, or all.
pub(crate) fn kinds(options: &Options, all: &[&str]) -> Result<Vec<String>> {
    let wanted = options.kinds.clone().unwrap_or_else(|| all.iter().map(|k| (*k).to_string()).collect());
    match wanted.iter().find(|kind| !all.contains(&kind.as_str())) {
        Some(kind) => Err(Error::Usage(format!("--kind {kind}: no such kind; there are {}", all.join(", ")))),
        None => Ok(wanted),
    }
}

/// Trials of each point.
fn rounds(options: &Options) -> u32 {
    if options.quick { options.repeat.unwrap_or(1) } else { options.repeat() }
}

impl Grid {
    /// Fills it: every arm at every point, again if void. An interrupt after the first round leaves what is there.
    pub(crate) fn measure(
        &mut self,
        runner: &mut Runner<'_>,
        one: impl Fn(&Bench, &Arm, usize, f64) -> Result<Sample>,
    ) -> Result<()> {
        runner.can_guard(&self.arms)?;
        let panels = self.kinds.len() * self.figures.len();
        if panels > MAX_PANELS {
            return Err(Error::Usage(format!("{panels} panels, at most {MAX_PANELS}; --kind chooses fewer")));
        }
        let options = runner.options;
        let repeat = rounds(options);
        self.taken = vec![vec![vec![Vec::new(); self.xs.len()]; self.kinds.len()]; self.arms.len()];
        runner.total = u64::from(repeat) * (self.arms.len() * self.kinds.len() * self.xs.len()) as u64;
        for round in 0..repeat {
            for (k, kind) in self.kinds.iter().enumerate() {
                for (x, value) in self.xs.iter().enumerate() {
                    let seed = u64::from(round) << 32 | (k << 16 | x) as u64;
                    for a in livelock::order(self.arms.len(), options.seed, seed) {
                        let arm = &self.arms[a];
                        runner.say(&format!("{}, {kind}, {} {value}", arm.name, self.x));
                        let sample = runner.again_if_void(
                            |bench| one(bench, arm, k, *value),
                            |sample| sample.void.is_some(),
                        );
                        match sample {
                            Ok(sample) => self.taken[a][k][x].push(sample),
                            Err(Error::Interrupted) if round > 0 => return Ok(()),
                            Err(e) => return Err(e),
                        }
                        runner.step();
                    }
                }
            }
        }
        Ok(())
    }

    /// Values of a figure, of trials that are not void if there are any.
    pub(crate) fn values(&self, a: usize, k: usize, x: usize, figure: usize) -> Vec<f64> {
        let trials = &self.taken[a][k][x];
        let any = trials.iter().any(|t| t.void.is_none());
        let used = trials.iter().filter(|t| t.void.is_none() || !any);
        used.filter_map(|t| t.figures.get(figure).copied().flatten()).collect()
    }

    /// Their median.
    pub(crate) fn median(&self, a: usize, k: usize, x: usize, figure: usize) -> Option<f64> {
        stats::median(&self.values(a, k, x, figure))
    }

    /// Where weir is among the arms.
    pub(crate) fn ours(&self) -> Option<usize> {
        self.arms.iter().position(|arm| arm.role == Role::Weir)
    }

    /// weir's median of a figure is at least `bound`; the worst trial is the note.
    pub(crate) fn at_least(
        &self,
        id: &str,
        at: (usize, usize, usize),
        text: &str,
        bound: f64,
    ) -> Option<Verdict> {
        let (k, x, figure) = at;
        let values = self.values(self.ours()?, k, x, figure);
        let claim = at_least(id, &format!("weir: {text}"), stats::median(&values), bound);
        let note = stats::spread(&values).map(|s| format!("worst trial {:.1}", s.min));
        Some(Verdict { digits: 1, note, ..claim })
    }

    /// weir's median of a figure against the best stock arm's: the least lead over all points.
    pub(crate) fn lead(&self, id: &str, text: &str, figure: usize, bound: f64) -> Option<Verdict> {
        let ours = self.ours()?;
        let stock: Vec<usize> = (0..self.arms.len()).filter(|a| self.arms[*a].role == Role::Stock).collect();
        let points = (0..self.kinds.len()).flat_map(|k| (0..self.xs.len()).map(move |x| (k, x)));
        let leads = points.filter_map(|(k, x)| {
            let best = stock.iter().filter_map(|a| Some((self.median(*a, k, x, figure)?, *a)));
            let (best, arm) = best.max_by(|a, b| a.0.total_cmp(&b.0))?;
            Some((self.median(ours, k, x, figure)? - best, k, x, arm))
        });
        let (least, k, x, arm) = leads.min_by(|a, b| a.0.total_cmp(&b.0))?;
        let note = format!("{}, {} {}, against {}", self.kinds[k], self.x, self.xs[x], self.arms[arm].name);
        let claim = at_least(id, &format!("weir: {text}"), Some(least), bound);
        Some(Verdict { digits: 1, note: Some(note), ..claim })
    }

    fn panels(&self) -> Vec<Panel> {
        let mut panels = Vec::new();
        for (k, kind) in self.kinds.iter().enumerate() {
            for (f, (title, unit)) in self.figures.iter().enumerate() {
                let title = match self.kinds.len() {
                    1 => (*title).to_string(),
                    _ => format!("{title}, {kind}"),
                };
                let (x, y) = (Scale::of(self.x, 0, false), Scale::of(unit, 1, false));
                let mut panel = Panel { title, x, y, ..Panel::default() };
                for (a, arm) in self.arms.iter().enumerate() {
                    for (x, value) in self.xs.iter().enumerate() {
                        panel.add(&arm.name, Mark::of(*value, &self.values(a, k, x, f)));
                    }
                }
                if !panel.lines.is_empty() {
                    panels.push(panel);
                }
            }
        }
        panels
    }

    /// The document, judged.
    pub(crate) fn document(
        &self,
        runner: &Runner<'_>,
        more: Vec<(&str, Value)>,
        verdict: Vec<Verdict>,
    ) -> Result<Document> {
        let mut document = runner.document(self.name)?;
        document.arms = self.arms.iter().map(|arm| result_of(arm, runner.options.reserve)).collect();
        document.parameters.insert("kinds".into(), self.kinds.clone().into());
        document.parameters.insert("values".into(), self.xs.clone().into());
        let trials = self.taken.iter().flatten().flatten().flatten();
        let void = trials.filter(|t| t.void.is_some()).count();
        document.parameters.insert("void_trials_used".into(), void.into());
        document.parameters.extend(more.into_iter().map(|(name, value)| (name.to_string(), value)));
        document.panels = self.panels();
        let rounds = rounds(runner.options) as usize;
        let partial = self.taken.iter().flatten().flatten().any(|trials| trials.len() < rounds);
        runner.finish(&mut document, &[], partial);
        document.verdict.retain(|v| v.id != Id::Ledger.name());
        document.verdict.extend(verdict);
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(weir: f64, stock: f64) -> Grid {
        let mut arms = crate::arm::all(20);
        arms.retain(|arm| ["stock-irq", "stock-timer", "weir"].contains(&arm.name.as_str()));
        let sample = |arm: &Arm| {
            let value = if arm.role == Role::Weir { weir } else { stock };
            Sample { figures: vec![Some(value), None], void: None }
        };
        let taken = arms.iter().map(|arm| vec![vec![vec![sample(arm); 3]; 2]]).collect();
        let (kinds, xs) = (vec!["one".into()], vec![300.0, 1000.0]);
        Grid { name: "x", figures: &[("answered", "%"), ("unknown", "us")], x: "k/s", kinds, xs, arms, taken }
    }

    #[test]
    fn weir_is_judged_by_its_share_and_against_stock() {
        let holds = |weir, stock| {
            let grid = grid(weir, stock);
            let at = grid.at_least("P11", (0, 1, 0), "answered, %", 99.0).unwrap();
            let lead = grid.lead("P11", "lead, points", 0, -1.0).unwrap();
            (at.holds, lead.holds)
        };
        assert_eq!(holds(99.5, 10.0), (true, true));
        assert_eq!(holds(98.5, 98.6), (false, true));
        assert_eq!(holds(90.0, 95.0), (false, false));
        // A figure that nobody knows has no panel.
        assert_eq!(grid(1.0, 1.0).panels().len(), 1);
    }

    #[test]
    fn void_trials_count_only_where_there_are_no_others() {
        let mut grid = grid(99.0, 10.0);
        grid.taken[0][0][0] = vec![
            Sample { figures: vec![Some(1.0)], void: Some("late".into()) },
            Sample { figures: vec![Some(2.0)], void: None },
        ];
        assert_eq!(grid.values(0, 0, 0, 0), [2.0]);
        grid.taken[0][0][0].pop();
        assert_eq!(grid.values(0, 0, 0, 0), [1.0]);
    }

    #[test]
    fn arms_and_kinds_are_chosen_by_name() {
        let all = || crate::arm::all(20);
        let named = |arms: &[&str]| Options {
            arms: Some(arms.iter().map(|a| (*a).to_string()).collect()),
            guard: vec!["--quota".into(), "8".into()],
            ..Options::default()
        };
        let arms = chosen(&named(&["weir", "stock-irq"]), all(), &[]).unwrap();
        assert_eq!(arms.len(), 2);
        assert!(arms.iter().any(|a| matches!(&a.host, Host::Guard(own) if own.contains(&"8".into()))));
        assert!(chosen(&named(&["wier"]), all(), &[]).is_err());
        let quick = Options { quick: true, ..Options::default() };
        assert_eq!(chosen(&quick, all(), &["weir"]).unwrap().len(), 1);
        let kind = |name: &str| Options { kinds: Some(vec![name.into()]), ..Options::default() };
        assert_eq!(kinds(&kind("a"), &["a", "b"]).unwrap(), ["a"]);
        assert!(kinds(&kind("c"), &["a", "b"]).is_err());
    }
}
