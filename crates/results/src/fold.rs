//! From trials to points, and from points to a finished document.

use crate::document::{Document, Mode};
use crate::measure::{CpuShares, Drops, Interval, LatencyUs, OutputWait, Pair, Point, Trial};
use crate::{stats, verdict};

impl Point {
    /// The point of these trials: counts are summed, so that the ledger closes; rates, shares and times are
    /// medians.
    ///
    /// Void trials are left out of both, but stay in `trials`. If fewer than half of the trials are left the
    /// point is void, and shows the numbers of all of them. The caller fills in `multiple`, `wire_max`,
    /// `hogs` and `burst`.
    pub fn fold(trials: Vec<Trial>, mode: Option<Mode>) -> Point {
        let valid = trials.iter().filter(|trial| trial.void.is_none()).count();
        let void = if trials.is_empty() {
            Some("no trial".to_string())
        } else if 2 * valid < trials.len() {
            let reason = trials.iter().find_map(|trial| trial.void.clone()).unwrap_or_default();
            Some(format!("{} of {} trials void: {reason}", trials.len() - valid, trials.len()))
        } else {
            None
        };
        let used: Vec<&Trial> =
            trials.iter().filter(|trial| void.is_some() || trial.void.is_none()).collect();
        let mut drops = Drops::new();
        for (place, count) in used.iter().flat_map(|trial| &trial.drops) {
            *drops.entry(place.clone()).or_default() += count;
        }
        let goodput: Vec<f64> = used.iter().map(|trial| trial.goodput_pps).collect();
        let polls: Vec<u64> = used.iter().filter_map(|trial| trial.polls).collect();
        Point {
            offered_pps: middle(&used, |trial| Some(trial.offered_pps)).unwrap_or(0.0),
            sent: used.iter().map(|trial| trial.sent).sum(),
            delivered: used.iter().map(|trial| trial.delivered).sum(),
            goodput_pps: stats::median(&goodput).unwrap_or(0.0),
            spread: stats::spread(&goodput),
            drops,
            unaccounted: used.iter().map(|trial| trial.unaccounted).sum(),
            user_share: middle(&used, |trial| trial.user_share),
            net_share: middle(&used, |trial| trial.net_share),
            cpu: fold_cpu(&used),
            user_of_alone: middle(&used, |trial| trial.user_of_alone),
            wasted_share: middle(&used, |trial| trial.wasted_share),
            latency_us: fold_latency(&used),
            output: fold_output(&used),
            polls: (!polls.is_empty()).then(|| polls.iter().sum()),
            mode,
            rate_missed_percent: middle(&used, |trial| trial.rate_missed_percent),
            steal_share: middle(&used, |trial| trial.steal_share),
            void,
            trials,
            ..Point::default()
        }
    }
}

fn middle(trials: &[&Trial], value: impl Fn(&Trial) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = trials.iter().filter_map(|trial| value(trial)).collect();
    stats::median(&values)
}

fn fold_cpu(trials: &[&Trial]) -> Option<CpuShares> {
    let part = |value: fn(&CpuShares) -> f64| middle(trials, |trial| trial.cpu.as_ref().map(value));
    Some(CpuShares {
        irq: part(|cpu| cpu.irq)?,
        softirq: part(|cpu| cpu.softirq)?,
        weir: part(|cpu| cpu.weir)?,
        program: part(|cpu| cpu.program)?,
        hog: part(|cpu| cpu.hog)?,
        idle: part(|cpu| cpu.idle)?,
    })
}

fn fold_latency(trials: &[&Trial]) -> Option<LatencyUs> {
    let part = |value: fn(&LatencyUs) -> f64| middle(trials, |trial| trial.latency_us.as_ref().map(value));
    Some(LatencyUs { p50: part(|us| us.p50)?, p99: part(|us| us.p99)?, p999: part(|us| us.p999)? })
}

fn fold_output(trials: &[&Trial]) -> Option<OutputWait> {
    let longest = trials.iter().filter_map(|trial| Some(trial.output?.longest_us)).max_by(f64::total_cmp)?;
    let starved_share = middle(trials, |trial| Some(trial.output?.starved_share))?;
    Some(OutputWait { starved_share, longest_us: longest })
}

impl Document {
    /// Fills in everything that follows from the points: what 1 x means, the multiples that are absent, the
    /// summary of each arm, the intervals of the pairs, and the verdict on the claims (`required` as in
    /// [`crate::judge`]).
    ///
    /// Calling it twice changes nothing more.
    pub fn finish(&mut self, required: &[crate::Id]) {
        self.base = stats::base(self);
        let base_pps = self.base.as_ref().map(|base| base.mlfrr_pps).filter(|rate| *rate > 0.0);
        for arm in &mut self.arms {
            for point in &mut arm.points {
                point.multiple = point.multiple.or(base_pps.map(|base| point.offered_pps / base));
            }
            arm.points.sort_by(|a, b| a.hogs.cmp(&b.hogs).then(a.offered_pps.total_cmp(&b.offered_pps)));
            let counts = stats::hog_counts(arm);
            let mut summaries = counts.iter().map(|hogs| stats::summarise(arm, *hogs, base_pps));
            let first = summaries.next().unwrap_or_default();
            let rest = counts.iter().skip(1).map(u32::to_string).zip(summaries).collect();
            arm.summary = first;
            arm.with_hogs = rest;
        }
        for rate in &mut self.pairs {
            let interval = |value: &dyn Fn(&Pair) -> Option<f64>| -> Option<Interval> {
                let valid = rate.pairs.iter().filter(|pair| pair.void.is_none());
                stats::median_interval(&valid.filter_map(value).collect::<Vec<f64>>())
            };
            let goodput = interval(&|pair| Some(pair.goodput_ratio));
            let p50 = interval(&|pair| pair.p50_ratio);
            let p99 = interval(&|pair| pair.p99_ratio);
            let cpu = interval(&|pair| pair.extra_cpu_points);
            let switches = interval(&|pair| pair.mode_switches_per_s);
            rate.goodput_ratio = goodput;
            rate.p50_ratio = p50;
            rate.p99_ratio = p99;
            rate.extra_cpu_points = cpu;
            rate.mode_switches_per_s = switches;
        }
        self.verdict = verdict::judge(self, required);
    }
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;
