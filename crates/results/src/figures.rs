//! The charts of the report. Each takes a document and gives SVG; none decides what a reader should think of
//! it.

use crate::chart::{Axis, Chart, Side, Size};
use crate::document::{Arm, Document, Role};
use crate::measure::{CpuShares, LatencyUs, Onset, Point};
use crate::table::{Rate, at, importance, rates, with_hogs};
use crate::{format, stats, style};

/// Arms of the overview charts: all but those with one mechanism off, which have a chart of their own.
pub(crate) fn shown(document: &Document, hogs: u32) -> Vec<&Arm> {
    let overview = |arm: &&Arm| !matches!(arm.role, Role::Ablation | Role::Variant);
    let arms = document.arms.iter().filter(overview);
    arms.filter(|arm| !drawn(arm, hogs).is_empty()).collect()
}

/// The points of a curve that have a place on a logarithmic axis.
fn drawn(arm: &Arm, hogs: u32) -> Vec<&Point> {
    stats::curve(arm, hogs).into_iter().filter(|point| point.offered_pps > 0.0).collect()
}

/// Lowest and highest offered rate of the arms, in k/s.
fn offered_range(arms: &[&Arm], hogs: u32) -> Option<(f64, f64)> {
    let offered: Vec<f64> = arms
        .iter()
        .flat_map(|arm| &arm.points)
        .filter(|point| point.hogs == hogs && point.offered_pps > 0.0)
        .map(|point| point.offered_pps / 1000.0)
        .collect();
    let spread = stats::spread(&offered)?;
    // One rate alone still needs an axis with a width.
    Some(if spread.max > 1.01 * spread.min {
        (spread.min, spread.max)
    } else {
        (spread.min / 2.0, spread.max * 2.0)
    })
}

fn offered_axis(range: (f64, f64), label: &str) -> Axis {
    Axis { label: label.to_string(), min: range.0, max: range.1, log: true }
}

/// The multiples of the base MLFRR that are marked above a chart, the most important first.
fn multiples(document: &Document, hogs: u32) -> Vec<(f64, String)> {
    let Some(base) = stats::base(document).filter(|base| base.mlfrr_pps > 0.0) else { return Vec::new() };
    let mut rates = rates(document, hogs);
    rates.sort_by_key(|rate| std::cmp::Reverse(importance(rate)));
    rates.into_iter().map(|rate| (rate.multiple * base.mlfrr_pps / 1000.0, rate.label)).collect()
}

/// Pixels that the longest name needs.
fn room(names: &[String]) -> f64 {
    26.0 + 7.0 * names.iter().map(|name| name.chars().count()).max().unwrap_or(0) as f64
}

/// Chart 1: goodput over offered rate, one line per arm.
pub(crate) fn goodput(document: &Document, hogs: u32, size: Size, id: &str, caption: &str) -> Option<String> {
    let chart = goodput_chart(document, hogs, &shown(document, hogs), size)?;
    Some(chart.svg(id, &format!("Goodput over offered rate, {}", with_hogs(hogs)), caption))
}

/// Goodput over offered rate of these arms.
pub(crate) fn goodput_chart(document: &Document, hogs: u32, arms: &[&Arm], size: Size) -> Option<Chart> {
    let range = offered_range(arms, hogs)?;
    let top = arms
        .iter()
        .flat_map(|arm| drawn(arm, hogs))
        .map(|point| point.spread.map_or(point.goodput_pps, |spread| spread.max.max(point.goodput_pps)))
        .max_by(f64::total_cmp)?;
    let top = (1.08 * top / 1000.0).max(1e-3);
    let y = Axis { label: "goodput, k/s".to_string(), min: 0.0, max: top, log: false };
    let names: Vec<String> = arms.iter().map(|arm| arm.name.clone()).collect();
    let mut chart = Chart::new(size, offered_axis(range, "offered, k/s"), y, room(&names));
    chart.upper_axis("x MLFRR", &multiples(document, hogs));
    let ideal_to = range.1.min(top);
    if range.0 < ideal_to {
        let ideal: Vec<(f64, f64)> = (0..=40)
            .map(|step| range.0 * (ideal_to / range.0).powf(f64::from(step) / 40.0))
            .map(|x| (x, x))
            .collect();
        chart.line(&ideal, "var(--axis)", 1.0, "");
        let at = 0.97 * ideal_to;
        // Away from the upright line of the MLFRR.
        let mlfrr = stats::base(document).map_or(0.0, |base| base.mlfrr_pps / 1000.0);
        chart.word((at, at), if at < mlfrr { Side::Left } else { Side::Right }, "ideal", "var(--dim)");
    }
    // weir last, so that it lies on top.
    let mut order = arms.to_vec();
    order.sort_by_key(|arm| arm.role == Role::Weir);
    for arm in order {
        let points = drawn(arm, hogs);
        let (color, dash) = style::arm_line(&document.arms, arm);
        let is_weir = arm.role == Role::Weir;
        let band: Vec<(f64, f64, f64)> = points
            .iter()
            .filter_map(|point| {
                let spread = point.spread?;
                Some((point.offered_pps / 1000.0, spread.min / 1000.0, spread.max / 1000.0))
            })
            .collect();
        chart.band(&straight(&band), color);
        let line: Vec<(f64, f64)> =
            points.iter().map(|point| (point.offered_pps / 1000.0, point.goodput_pps / 1000.0)).collect();
        chart.line(&straight(&line), color, if is_weir { 3.4 } else { 1.6 }, dash);
        chart.dots(&line, color, if is_weir { 3.4 } else { 1.9 }, false);
        let void: Vec<(f64, f64)> = arm
            .points
            .iter()
            .filter(|point| point.hogs == hogs && point.void.is_some() && point.offered_pps > 0.0)
            .map(|point| (point.offered_pps / 1000.0, point.goodput_pps / 1000.0))
            .collect();
        chart.dots(&void, color, 3.2, true);
        let marks: Vec<(f64, f64)> = arm
            .reference
            .iter()
            .filter(|_| hogs == 0)
            .flat_map(|reference| &reference.points)
            .map(|(x, y)| (x / 1000.0, y / 1000.0))
            .filter(|(x, y)| (range.0..=range.1).contains(x) && *y <= top)
            .collect();
        chart.dots(&marks, color, 2.6, true);
        if let Some(&(x, y)) = line.last() {
            chart.name(x, y, &arm.name, color, is_weir);
        }
    }
    if let Some(base) = stats::base(document) {
        let word = if size.width >= Size::WIDE.width { "MLFRR of the best stock arm" } else { "MLFRR" };
        chart.upright(base.mlfrr_pps / 1000.0, word, false, Side::Left);
    }
    Some(chart)
}

/// Points on a straight line between two others, on an axis that is logarithmic.
trait Between: Copy {
    /// The point at `share` of the way to `other`.
    fn between(self, other: Self, share: f64) -> Self;
}

impl Between for (f64, f64) {
    fn between(self, other: Self, share: f64) -> Self {
        (self.0 + (other.0 - self.0) * share, self.1 + (other.1 - self.1) * share)
    }
}

impl Between for (f64, f64, f64) {
    fn between(self, other: Self, share: f64) -> Self {
        let (x, low) = (self.0, self.1).between((other.0, other.1), share);
        (x, low, self.2 + (other.2 - self.2) * share)
    }
}

/// A line that stays straight between its points when the x axis is logarithmic: without it, a chord between
/// two lossless points would lie above the ideal.
fn straight<P: Between>(line: &[P]) -> Vec<P> {
    const STEPS: u32 = 8;
    let steps = |pair: &[P]| {
        let (from, to) = (pair[0], pair[1]);
        (0..STEPS).map(move |step| from.between(to, f64::from(step) / f64::from(STEPS)))
    };
    line.windows(2).flat_map(steps).chain(line.last().copied()).collect()
}

/// Places of the ledger that occur, in the order in which a packet meets them, after what is delivered.
pub(crate) fn places(document: &Document) -> Vec<String> {
    const ORDER: [&str; 7] = ["delivered", "shed", "ring", "wire", "backlog", "stack", "socket"];
    let points = document.arms.iter().flat_map(|arm| &arm.points);
    let mut names: std::collections::BTreeSet<String> =
        points.flat_map(|point| point.drops.keys().cloned()).collect();
    names.insert("delivered".to_string());
    let mut places: Vec<String> = names.into_iter().collect();
    places.sort_by_key(|place| ORDER.iter().position(|known| known == place).unwrap_or(ORDER.len()));
    places
}

/// A small stacked chart over the offered rate; `share` is the part of a point's whole with that number, from
/// the bottom up.
fn shares(
    arm: &Arm,
    hogs: u32,
    range: (f64, f64),
    colors: &[&str],
    share: impl Fn(&Point, usize) -> Option<f64>,
    words: (&str, &str, &str),
) -> Option<String> {
    let has_all = |point: &&Point| (0..colors.len()).all(|part| share(point, part).is_some());
    let points: Vec<&Point> = drawn(arm, hogs).into_iter().filter(has_all).collect();
    if points.len() < 2 {
        return None;
    }
    let y = Axis { label: String::new(), min: 0.0, max: 100.0, log: false };
    let mut chart = Chart::new(Size::SMALL, offered_axis(range, ""), y, 8.0);
    let x: Vec<f64> = points.iter().map(|point| point.offered_pps / 1000.0).collect();
    let stacked: Vec<(&str, Vec<f64>)> = colors
        .iter()
        .enumerate()
        .map(|(part, color)| {
            let values = points.iter().filter_map(|point| share(point, part));
            (*color, values.map(|value| 100.0 * value).collect())
        })
        .collect();
    chart.stack(&x, &stacked);
    let (id, title, description) = words;
    Some(chart.svg(id, title, description))
}

/// Chart 2: where the packets of each arm went; one small chart per arm.
pub(crate) fn ledger(document: &Document, hogs: u32, id: &str) -> Vec<(String, String)> {
    let arms = shown(document, hogs);
    let Some(range) = offered_range(&arms, hogs) else { return Vec::new() };
    let places = places(document);
    let colors: Vec<&str> = places.iter().map(|place| style::place(place)).collect();
    let share = |point: &Point, part: usize| {
        let count = match places[part].as_str() {
            "delivered" => point.delivered,
            place => point.drops.get(place).copied().unwrap_or(0),
        };
        (point.sent > 0).then(|| count as f64 / point.sent as f64)
    };
    let what = "Share of the offered packets, in percent, by where they ended, over the offered rate in k/s.";
    panels(&arms, |nth, arm| {
        let title = format!("Ledger of {}", arm.name);
        shares(arm, hogs, range, &colors, share, (&format!("{id}-{nth}"), &title, what))
    })
}

/// One chart per arm, with its name; arms without data are left out.
fn panels(arms: &[&Arm], draw: impl Fn(usize, &Arm) -> Option<String>) -> Vec<(String, String)> {
    arms.iter().enumerate().filter_map(|(nth, arm)| Some((arm.name.clone(), draw(nth, arm)?))).collect()
}

/// Parts of the host CPU's time with their colours, from the bottom up.
pub(crate) const CPU_PARTS: [(&str, &str); 6] = [
    ("program", "var(--good)"),
    ("hog", "var(--hog)"),
    ("weir", "var(--poller)"),
    ("softirq", "var(--softirq)"),
    ("irq", "var(--irq)"),
    ("idle", "var(--idle)"),
];

/// The parts of [`CPU_PARTS`], in their order.
fn cpu_parts(cpu: &CpuShares) -> [f64; 6] {
    [cpu.program, cpu.hog, cpu.weir, cpu.softirq, cpu.irq, cpu.idle]
}

/// Chart 3: where the time of the host CPU went; one small chart per arm.
pub(crate) fn cpu(document: &Document, hogs: u32, id: &str) -> Vec<(String, String)> {
    let arms = shown(document, hogs);
    let Some(range) = offered_range(&arms, hogs) else { return Vec::new() };
    let colors = CPU_PARTS.map(|(_, color)| color);
    let share = |point: &Point, part: usize| {
        let parts = cpu_parts(point.cpu.as_ref()?);
        // Meters of different kinds may add up to a little more than the window.
        Some(parts[part] / parts.iter().sum::<f64>().max(1.0))
    };
    let what = "Share of the host CPU's time, in percent, over the offered rate in k/s.";
    panels(&arms, |nth, arm| {
        let title = format!("CPU of the host, {}", arm.name);
        shares(arm, hogs, range, &colors, share, (&format!("{id}-{nth}"), &title, what))
    })
}

/// The stock arm that weir is compared with: that of the base, else the one with the highest peak.
pub(crate) fn best_stock(document: &Document) -> Option<&Arm> {
    let named = stats::base(document).and_then(|base| document.arm(&base.arm));
    named.or_else(|| {
        let stock = document.arms.iter().filter(|arm| arm.role == Role::Stock);
        stock.max_by(|a, b| a.summary.peak_pps.unwrap_or(0.0).total_cmp(&b.summary.peak_pps.unwrap_or(0.0)))
    })
}

/// The arm that is weir.
pub(crate) fn weir(document: &Document) -> Option<&Arm> {
    document.arms.iter().find(|arm| arm.role == Role::Weir)
}

/// Chart 4: quantiles of the wait of weir and of the best stock arm.
pub(crate) fn wait(document: &Document, hogs: u32, size: Size, id: &str, caption: &str) -> Option<String> {
    const QUANTILES: [(&str, &str, f64); 3] = [("p50", "", 2.0), ("p99", "6 3", 1.8), ("p99.9", "2 2", 1.6)];
    let quantile = |us: &LatencyUs, nth: usize| [us.p50, us.p99, us.p999][nth];
    let arms: Vec<&Arm> = best_stock(document).into_iter().chain(weir(document)).collect();
    let waits: Vec<f64> = arms
        .iter()
        .flat_map(|arm| drawn(arm, hogs))
        .filter_map(|point| point.latency_us)
        .flat_map(|us| [us.p50, us.p999])
        .filter(|us| *us > 0.0)
        .collect();
    let spread = stats::spread(&waits)?;
    let range = offered_range(&arms, hogs)?;
    let y =
        Axis { label: "wait, µs".to_string(), min: below(spread.min), max: above(spread.max), log: true };
    let names: Vec<String> = arms.iter().map(|arm| format!("{} p99.9", arm.name)).collect();
    let mut chart = Chart::new(size, offered_axis(range, "offered, k/s"), y, room(&names));
    chart.upper_axis("x MLFRR", &multiples(document, hogs));
    for arm in &arms {
        let is_weir = arm.role == Role::Weir;
        let color = if is_weir { "var(--weir)" } else { "var(--stock)" };
        for (nth, (name, dash, width)) in QUANTILES.into_iter().enumerate() {
            let line: Vec<(f64, f64)> = drawn(arm, hogs)
                .iter()
                .filter_map(|point| {
                    Some((point.offered_pps / 1000.0, quantile(point.latency_us.as_ref()?, nth)))
                })
                .filter(|(_, us)| *us > 0.0)
                .collect();
            chart.line(&line, color, if is_weir { width + 0.8 } else { width }, dash);
            if let Some(&(x, y)) = line.last() {
                chart.name(x, y, &format!("{} {name}", arm.name), color, is_weir);
            }
        }
    }
    if let Some(base) = stats::base(document) {
        chart.upright(base.mlfrr_pps / 1000.0, "MLFRR", true, Side::Left);
    }
    Some(chart.svg(id, "Wait from arrival until read, over offered rate", caption))
}

/// The largest of 1, 2, 5 times a power of ten that is not above `value`.
fn below(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].map(|n| n * decade).into_iter().find(|step| *step <= value).unwrap_or(decade)
}

/// The smallest of 1, 2, 5 times a power of ten that is not below `value`.
fn above(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * decade).into_iter().find(|step| *step >= value).unwrap_or(10.0 * decade)
}

/// The highest rate that most arms have: the wire's maximum if it was measured.
pub(crate) fn highest_rate(document: &Document, hogs: u32) -> Option<Rate> {
    rates(document, hogs).pop()
}

/// Arms with one mechanism off at the highest rate, the worst first, with their points.
pub(crate) fn ablations(document: &Document) -> Vec<(&Arm, &Point)> {
    let Some(rate) = highest_rate(document, 0) else { return Vec::new() };
    let arms = document.arms.iter().filter(|arm| arm.role == Role::Ablation);
    let mut rows: Vec<(&Arm, &Point)> = arms
        .filter_map(|arm| Some((arm, at(arm, 0, &rate)?)))
        .filter(|(_, point)| point.void.is_none())
        .collect();
    rows.sort_by(|a, b| a.1.goodput_pps.total_cmp(&b.1.goodput_pps));
    rows
}

/// The name of an arm with one mechanism off, without the word weir.
pub(crate) fn mechanism(arm: &Arm) -> &str {
    arm.name.strip_prefix("weir, ").or_else(|| arm.name.strip_prefix("weir-")).unwrap_or(&arm.name)
}

/// Chart 5: what remains without one mechanism.
pub(crate) fn worth(document: &Document, size: Size, id: &str, caption: &str) -> Option<String> {
    let rows = ablations(document);
    let whole = weir(document).and_then(|arm| at(arm, 0, &highest_rate(document, 0)?));
    let whole = whole.filter(|point| point.void.is_none())?;
    let highest = rows.iter().map(|(_, point)| point.spread.map_or(point.goodput_pps, |spread| spread.max));
    let top = highest.chain([whole.goodput_pps]).max_by(f64::total_cmp)? / 1000.0;
    if rows.is_empty() {
        return None;
    }
    let n = rows.len() as f64;
    let x = Axis { label: "goodput, k/s".to_string(), min: 0.0, max: (1.12 * top).max(1e-3), log: false };
    let y = Axis { label: String::new(), min: 0.0, max: n, log: false };
    let height = 74.0 + 34.0 * n;
    let mut chart = Chart::new(Size { height: height.max(Size::SMALL.height + 1.0), ..size }, x, y, 20.0);
    let value = whole.goodput_pps / 1000.0;
    chart.line(&[(value, 0.0), (value, n)], "var(--weir)", 3.0, "");
    let whole_text = format!("weir {}", format::kilo_said(whole.goodput_pps));
    chart.word((value, n), Side::Above, &whole_text, "var(--weir)");
    let mut labels = Vec::new();
    for (nth, (arm, point)) in rows.iter().enumerate() {
        let y = n - nth as f64 - 0.5;
        if let Some(spread) = point.spread {
            chart.segment((spread.min / 1000.0, y), (spread.max / 1000.0, y), "var(--fg)", 1.4);
        }
        chart.dots(&[(point.goodput_pps / 1000.0, y)], "var(--fg)", 5.0, false);
        // On the side away from the upright line.
        let side = if point.goodput_pps < 0.6 * whole.goodput_pps { Side::Right } else { Side::Left };
        let text = format::kilo_said(point.goodput_pps);
        chart.word((point.goodput_pps / 1000.0, y), side, &text, "var(--fg)");
        labels.push((y, mechanism(arm).to_string(), false));
    }
    chart.rows(&labels);
    Some(chart.svg(id, "Goodput with one mechanism off", caption))
}

/// Chart 6: goodput around the onset of a flood.
pub(crate) fn takeover(onset: &Onset, size: Size, id: &str, caption: &str) -> Option<String> {
    let lines: Vec<Vec<(f64, f64)>> = onset
        .series
        .iter()
        .filter(|series| series.step_ms > 0.0 && series.goodput_per_ms.len() > 1)
        .map(|series| {
            let time = |nth: usize| series.start_ms + series.step_ms * nth as f64;
            // Packets per ms are thousands of packets per second.
            series.goodput_per_ms.iter().enumerate().map(|(nth, value)| (time(nth), *value)).collect()
        })
        .collect();
    let all = || lines.iter().flatten();
    let x = stats::spread(&all().map(|(x, _)| *x).collect::<Vec<f64>>())?;
    let top = all().map(|(_, y)| *y).max_by(f64::total_cmp)?;
    let axis = Axis { label: "ms after the onset".to_string(), min: x.min, max: x.max, log: false };
    let y = Axis { label: "goodput, k/s".to_string(), min: 0.0, max: (1.15 * top).max(1e-3), log: false };
    let mut chart = Chart::new(size, axis, y, 16.0);
    for line in &lines {
        chart.line(line, "var(--stock2)", 0.8, "");
    }
    let longest = lines.iter().map(Vec::len).min()?;
    let median: Vec<(f64, f64)> = (0..longest)
        .filter_map(|nth| {
            let column: Vec<f64> = lines.iter().map(|line| line[nth].1).collect();
            Some((lines[0][nth].0, stats::median(&column)?))
        })
        .collect();
    chart.line(&median, "var(--weir)", 3.0, "");
    chart.upright(0.0, "onset", true, Side::Right);
    Some(chart.svg(id, &format!("Goodput around the onset of a flood, {}", onset.condition), caption))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_axes_end_at_round_numbers() {
        assert_eq!((below(9.3), above(9.3)), (5.0, 10.0));
        assert_eq!((below(210.0), above(210.0)), (200.0, 500.0));
        assert_eq!((below(1.0), above(1.0)), (1.0, 1.0));
    }
}
