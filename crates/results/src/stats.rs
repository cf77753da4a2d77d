//! Statistics over trials and curves. Pure functions: no randomness, so the same numbers always give the same
//! result.
//!
//! A *curve* is the points of one arm at one number of hogs, without the void ones, by offered rate. Rules:
//! - **MLFRR**: the largest offered rate whose loss, in the median of its trials, is at most [`LOSS_FREE`].
//! - **peak**: the highest goodput of any point.
//! - **goodput at a rate**: the nearest point whose offered rate is within [`SAME_RATE`] of it; else on the
//!   straight line between its two neighbours; never beyond the ends of the curve. A void point is
//!   not bridged.
//! - **flatness at a rate**: goodput there / peak. It is 1 by definition where the curve begins there, so it needs
//!   [`MIN_RATES`] points that are not void, one of them at a lower rate.
//! - **class**: ideal if every point delivers at least 1 - [`IDEAL_LOSS`] of what is offered; livelock if
//!   some point beyond the peak is below [`REALIZABLE_FLOOR`] of it; else realizable. No class without a
//!   point beyond the peak, unless the curve is ideal.
//! - **livelock point**: where goodput crosses [`LIVELOCKED`] of the peak; if the sweep ends before, the line
//!   through the last two points is drawn on to 0, if it falls and gets there within [`FARTHEST`] of the last
//!   rate.
//! - **decline**: where goodput crosses [`DECLINED`] of the peak for the last time.

use crate::document::{Arm, Base, Class, Document, Role, Summary};
use crate::measure::{Interval, Point, Spread};

/// Loss that still counts as none: 0.1 %.
pub const LOSS_FREE: f64 = 0.001;
/// Two rates within this share of each other are the same rate; the source may miss its rate by so much.
pub const SAME_RATE: f64 = 0.05;
/// Largest loss of an ideal curve.
pub const IDEAL_LOSS: f64 = 0.01;
/// Lowest goodput beyond the peak, as a share of it, that still counts as constant.
pub const REALIZABLE_FLOOR: f64 = 0.75;
/// Share of the peak at which a host counts as livelocked.
pub const LIVELOCKED: f64 = 0.01;
/// Share of the peak below which goodput has declined.
pub const DECLINED: f64 = 0.95;
/// Farthest extrapolation of the livelock point, in multiples of the highest offered rate.
pub const FARTHEST: f64 = 10.0;
/// Fewest points of a curve whose flatness says something.
pub const MIN_RATES: usize = 3;
/// Fewest values of which a 95 % interval of the median exists.
pub const MIN_INTERVAL: usize = 6;

/// The quantile `q` (0 to 1), linear between the neighbouring values; `None` for no values.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    // Equal neighbours come back as they are: the mean of two equal values may differ from them in the last
    // bit.
    Some(if low == high { low } else { low + (high - low) * at.fract() })
}

/// The median; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Lowest and highest; `None` for no values.
pub fn spread(values: &[f64]) -> Option<Spread> {
    let min = values.iter().copied().min_by(f64::total_cmp)?;
    let max = values.iter().copied().max_by(f64::total_cmp)?;
    Some(Spread { min, max })
}

/// Mean and standard deviation of the sample (0 for one value); `None` for no values.
pub fn mean_sd(values: &[f64]) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 }))
}

/// The median with its 95 % interval from order statistics, which assumes nothing about the distribution: the
/// k-th lowest and k-th highest value, with the largest k for which a fair coin tossed n times shows fewer
/// than k heads with a probability of at most 2.5 %. With 20 values these are the 6th and the 15th, and the
/// interval covers 95.9 %. `None` below [`MIN_INTERVAL`] values.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let n = values.len();
    if n < MIN_INTERVAL {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut probability = 0.5_f64.powi(n as i32);
    let mut below = probability;
    let mut k = 0;
    while below <= 0.025 {
        k += 1;
        probability *= (n - k + 1) as f64 / k as f64;
        below += probability;
    }
    // n >= 6 makes k at least 1; k stays below n / 2 because the sum passes 2.5 % long before the middle.
    Some(Interval { low: sorted[k - 1], median: median(values)?, high: sorted[n - k] })
}

/// Jain's fairness index: 1 if all shares are equal, 1/n if one has all. `None` for no values, 1 if all are
/// 0.
pub fn jain(shares: &[f64]) -> Option<f64> {
    if shares.is_empty() {
        return None;
    }
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    Some(if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) })
}

/// Points of `arm` with `hogs` hogs that are not void, by offered rate.
pub fn curve(arm: &Arm, hogs: u32) -> Vec<&Point> {
    let mut points: Vec<&Point> =
        arm.points.iter().filter(|point| point.hogs == hogs && point.void.is_none()).collect();
    points.sort_by(|a, b| a.offered_pps.total_cmp(&b.offered_pps));
    points
}

/// The numbers of hogs that occur in `arm`, ascending.
pub fn hog_counts(arm: &Arm) -> Vec<u32> {
    let counts: std::collections::BTreeSet<u32> = arm.points.iter().map(|point| point.hogs).collect();
    counts.into_iter().collect()
}

/// Share of the packets offered that did not reach their consumer, in the median of the trials.
pub fn loss(point: &Point) -> f64 {
    let share = |sent: u64, delivered: u64| {
        if sent == 0 { 0.0 } else { sent.saturating_sub(delivered) as f64 / sent as f64 }
    };
    let trials: Vec<f64> = point
        .trials
        .iter()
        .filter(|trial| trial.void.is_none())
        .map(|trial| share(trial.sent, trial.delivered))
        .collect();
    median(&trials).unwrap_or_else(|| match point.sent {
        // A document without counts (a curve read off a paper) still has its two rates.
        0 if point.offered_pps > 0.0 => (1.0 - point.goodput_pps / point.offered_pps).max(0.0),
        sent => share(sent, point.delivered),
    })
}

/// Largest offered rate that loses at most [`LOSS_FREE`] in the median of its trials.
pub fn mlfrr(curve: &[&Point]) -> Option<f64> {
    curve.iter().rev().find(|point| loss(point) <= LOSS_FREE).map(|point| point.offered_pps)
}

/// Largest offered rate at which no trial lost a packet.
pub fn mlfrr_zero(curve: &[&Point]) -> Option<f64> {
    let none_lost = |point: &&&Point| {
        if point.trials.is_empty() {
            loss(point) == 0.0
        } else {
            point
                .trials
                .iter()
                .filter(|trial| trial.void.is_none())
                .all(|trial| trial.delivered >= trial.sent)
        }
    };
    curve.iter().rev().find(none_lost).map(|point| point.offered_pps)
}

/// The point of highest goodput; the first of them if there are several.
pub fn peak<'a>(curve: &[&'a Point]) -> Option<&'a Point> {
    let best = curve.iter().map(|point| point.goodput_pps).max_by(f64::total_cmp)?;
    curve.iter().copied().find(|point| point.goodput_pps == best)
}

/// A value read off a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Offered rate that it was read at.
    pub offered_pps: f64,
    /// Goodput in packets/s.
    pub goodput_pps: f64,
    /// Whether it stands between two points rather than at one.
    pub interpolated: bool,
}

impl Reading {
    fn at(point: &Point) -> Reading {
        Reading { offered_pps: point.offered_pps, goodput_pps: point.goodput_pps, interpolated: false }
    }
}

/// Why a value could not be read off a curve.
#[derive(Clone, Debug, PartialEq)]
pub enum Unread {
    /// The curve does not reach so far.
    NotMeasured,
    /// The point at that rate is void, for this reason.
    Void(String),
    /// The curve has only so many points of use, or none at a lower rate.
    TooFew(usize),
}

/// The point nearest to `rate` among those within [`SAME_RATE`] of it.
pub fn point_at(arm: &Arm, hogs: u32, rate: f64) -> Option<&Point> {
    // A search for the MLFRR leaves several points near 1 x; a void one gives way to any other.
    let distance = |point: &&Point| (point.offered_pps / rate - 1.0).abs();
    arm.points
        .iter()
        .filter(|point| point.hogs == hogs && distance(point) <= SAME_RATE)
        .min_by(|a, b| a.void.is_some().cmp(&b.void.is_some()).then(distance(a).total_cmp(&distance(b))))
}

/// Goodput of `arm` with `hogs` hogs at an offered rate, by the rule in the head of this file.
///
/// # Errors
/// The rate lies beyond the curve, or the point there is void.
pub fn goodput_at(arm: &Arm, hogs: u32, rate: f64) -> Result<Reading, Unread> {
    if rate <= 0.0 {
        return Err(Unread::NotMeasured);
    }
    if let Some(point) = point_at(arm, hogs, rate) {
        return match &point.void {
            Some(reason) => Err(Unread::Void(reason.clone())),
            None => Ok(Reading::at(point)),
        };
    }
    let points = curve(arm, hogs);
    let between = points.windows(2).find(|pair| pair[0].offered_pps < rate && rate < pair[1].offered_pps);
    let Some(pair) = between else { return Err(Unread::NotMeasured) };
    // A source that missed its rate by more than that stands beside it, and is void for this very reason.
    let (from, to) = (pair[0].offered_pps, pair[1].offered_pps);
    let mut inside =
        arm.points.iter().filter(|p| p.hogs == hogs && from < p.offered_pps && p.offered_pps < to);
    match inside.find_map(|point| point.void.clone()) {
        Some(reason) => Err(Unread::Void(reason)),
        None => {
            let goodput_pps = on_line(rate, pair[0], pair[1]);
            Ok(Reading { offered_pps: rate, goodput_pps, interpolated: true })
        }
    }
}

/// Goodput at the wire's maximum: the unpaced point with the highest offered rate.
///
/// # Errors
/// There is no such point, or it is void.
pub fn goodput_at_max(arm: &Arm, hogs: u32) -> Result<Reading, Unread> {
    let unpaced = arm.points.iter().filter(|point| point.hogs == hogs && point.wire_max);
    let best = unpaced
        .max_by(|a, b| b.void.is_some().cmp(&a.void.is_some()).then(a.offered_pps.total_cmp(&b.offered_pps)));
    match best {
        None => Err(Unread::NotMeasured),
        Some(point) => match &point.void {
            Some(reason) => Err(Unread::Void(reason.clone())),
            None => Ok(Reading::at(point)),
        },
    }
}

/// Flatness at what was read off the curve of `arm`, by the rule in the head of this file.
///
/// # Errors
/// Nothing was read, nothing arrived at any rate, or the curve has too few points.
pub fn flatness(arm: &Arm, hogs: u32, read: Result<Reading, Unread>) -> Result<f64, Unread> {
    let reading = read?;
    let points = curve(arm, hogs);
    let peak = peak(&points).map_or(0.0, |point| point.goodput_pps);
    if peak <= 0.0 {
        return Err(Unread::NotMeasured);
    }
    let lower = points.iter().any(|point| point.offered_pps < (1.0 - SAME_RATE) * reading.offered_pps);
    if points.len() < MIN_RATES || !lower {
        return Err(Unread::TooFew(points.len()));
    }
    Ok(reading.goodput_pps / peak)
}

fn on_line(rate: f64, a: &Point, b: &Point) -> f64 {
    let share = (rate - a.offered_pps) / (b.offered_pps - a.offered_pps);
    a.goodput_pps + (b.goodput_pps - a.goodput_pps) * share
}

/// Offered rate at which the line between two points crosses `goodput`.
fn crossing(goodput: f64, a: &Point, b: &Point) -> f64 {
    let fall = a.goodput_pps - b.goodput_pps;
    if fall <= 0.0 {
        return b.offered_pps;
    }
    let share = ((a.goodput_pps - goodput) / fall).clamp(0.0, 1.0);
    a.offered_pps + (b.offered_pps - a.offered_pps) * share
}

/// The behaviour of a curve.
pub fn class(curve: &[&Point]) -> Option<Class> {
    let top = peak(curve)?;
    if curve.len() > 1 && curve.iter().all(|point| loss(point) <= IDEAL_LOSS) {
        return Some(Class::Ideal);
    }
    let beyond = curve.iter().filter(|point| point.offered_pps > top.offered_pps);
    let lowest = beyond.map(|point| point.goodput_pps).min_by(f64::total_cmp)?;
    let floor = REALIZABLE_FLOOR * top.goodput_pps;
    Some(if lowest < floor { Class::Livelock } else { Class::Realizable })
}

/// Offered rate from which goodput stays below [`DECLINED`] of the peak; `None` if the curve ends above it.
pub fn decline(curve: &[&Point]) -> Option<f64> {
    falls_below(curve, DECLINED)
}

/// The livelock point, by the rule in the head of this file.
pub fn livelock(curve: &[&Point]) -> Option<f64> {
    if class(curve)? != Class::Livelock {
        return None;
    }
    if let Some(rate) = falls_below(curve, LIVELOCKED) {
        return Some(rate);
    }
    let [.., a, b] = curve else { return None };
    let fall = a.goodput_pps - b.goodput_pps;
    if fall <= 0.0 {
        return None;
    }
    let rate = b.offered_pps + b.goodput_pps * (b.offered_pps - a.offered_pps) / fall;
    (rate <= FARTHEST * b.offered_pps).then_some(rate)
}

/// Offered rate from which goodput stays below this share of the peak; `None` if the curve ends above it.
pub fn falls_below(curve: &[&Point], share: f64) -> Option<f64> {
    let bound = share * peak(curve)?.goodput_pps;
    let last_above = curve.iter().rposition(|point| point.goodput_pps >= bound)?;
    let below = curve.get(last_above + 1)?;
    Some(crossing(bound, curve[last_above], below))
}

/// The summary of `arm` with `hogs` hogs; `base_pps` is what 1 x means.
pub fn summarise(arm: &Arm, hogs: u32, base_pps: Option<f64>) -> Summary {
    let points = curve(arm, hogs);
    let Some(top) = peak(&points) else { return Summary::default() };
    let mlfrr_pps = mlfrr(&points);
    let from = mlfrr_pps.unwrap_or(top.offered_pps);
    let beyond: Vec<f64> =
        points.iter().filter(|point| point.offered_pps > from).map(|point| point.goodput_pps).collect();
    let plateau = mean_sd(&beyond);
    let mut summary = Summary {
        class: class(&points),
        mlfrr_pps,
        mlfrr_zero_pps: mlfrr_zero(&points),
        livelock_pps: livelock(&points),
        peak_pps: Some(top.goodput_pps),
        plateau_pps: plateau.map(|(mean, _)| mean),
        plateau_sd_pps: plateau.map(|(_, sd)| sd),
        decline_pps: decline(&points),
        ..Summary::default()
    };
    let ten = base_pps.and_then(|base| flatness(arm, hogs, goodput_at(arm, hogs, 10.0 * base)).ok());
    let max = flatness(arm, hogs, goodput_at_max(arm, hogs)).ok();
    let known =
        [("10", ten), ("max", max)].into_iter().filter_map(|(at, flat)| Some((at.to_string(), flat?)));
    summary.flatness.extend(known);
    summary
}

/// What 1 x means: as the document says, else the highest MLFRR of a stock arm at its fewest hogs.
pub fn base(document: &Document) -> Option<Base> {
    if document.base.is_some() {
        return document.base.clone();
    }
    let stock = document.arms.iter().filter(|arm| arm.role == Role::Stock);
    stock
        .filter_map(|arm| {
            let hogs = *hog_counts(arm).first()?;
            Some(Base { arm: arm.name.clone(), mlfrr_pps: mlfrr(&curve(arm, hogs))? })
        })
        .filter(|base| base.mlfrr_pps > 0.0)
        .max_by(|a, b| a.mlfrr_pps.total_cmp(&b.mlfrr_pps))
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
