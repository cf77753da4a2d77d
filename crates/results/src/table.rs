//! The terminal report: goodput per arm and rate, the claims, and what to know about the run. 80 columns, no
//! colour.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::document::{Arm, Backend, Base, Document, Role, Summary};
use crate::measure::Point;
use crate::{format, stats, verdict};

/// Widest line.
pub const WIDTH: usize = 80;
/// Width of the arm's name; longer names are cut.
const NAME: usize = 18;
/// Width of a claim's text.
const CLAIM: usize = 43;
/// Width of a column of numbers.
const COLUMN: usize = 6;
/// Most rates that fit beside the name, the MLFRR, the peak and two flatness columns.
const MAX_RATES: usize = (WIDTH - NAME - 4 * COLUMN) / COLUMN;
/// Points below this share of the highest goodput of the table do not count for the widest spread: a host
/// that reads three packets instead of two has a spread of 50 % that says nothing about the machine.
const SPREAD_FLOOR: f64 = 0.05;
/// Spread from which the report says that something may have disturbed the run.
const WIDE: f64 = 0.10;
/// Share of the most that an arm reaches, below which its MLFRR says more about the machine than about the arm.
const LOW: f64 = 0.4;
/// Arms that were offered at least this share of the most were offered the same.
const SAME_OFFER: f64 = 0.9;

/// A rate that most arms were measured at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Multiple of the base MLFRR, rounded as it is shown.
    pub label: String,
    /// The same as a number.
    pub multiple: f64,
    /// All that the wire gives.
    pub wire_max: bool,
}

/// The key under which points of the same nominal rate meet.
fn key(point: &Point) -> Option<(u64, bool)> {
    let multiple = point.multiple?;
    // Arms reach different maxima; they meet in one column all the same.
    Some(if point.wire_max { (0, true) } else { ((multiple * 100.0).round() as u64, false) })
}

/// Rates at which at least half of the arms with `hogs` hogs have a point, ascending.
///
/// The search for the MLFRR leaves points that only one arm has; those are for the curves, not for a table.
pub(crate) fn rates(document: &Document, hogs: u32) -> Vec<Rate> {
    let mut arms_at: BTreeMap<(u64, bool), Vec<f64>> = BTreeMap::new();
    let mut arms = 0;
    for arm in &document.arms {
        let keys: BTreeMap<(u64, bool), f64> = arm
            .points
            .iter()
            .filter(|point| point.hogs == hogs)
            .filter_map(|point| Some((key(point)?, point.multiple?)))
            .collect();
        arms += usize::from(!keys.is_empty());
        for (key, multiple) in keys {
            arms_at.entry(key).or_default().push(multiple);
        }
    }
    let mut rates: Vec<Rate> = arms_at
        .into_iter()
        .filter(|(_, multiples)| 2 * multiples.len() >= arms)
        .filter_map(|((_, wire_max), multiples)| {
            let multiple = stats::median(&multiples)?;
            Some(Rate { label: format::multiple(multiple), multiple, wire_max })
        })
        .collect();
    rates.sort_by(|a, b| a.multiple.total_cmp(&b.multiple));
    rates
}

/// The point of `arm` at a rate of [`rates`].
pub(crate) fn at<'a>(arm: &'a Arm, hogs: u32, rate: &Rate) -> Option<&'a Point> {
    let wanted = if rate.wire_max { (0, true) } else { ((rate.multiple * 100.0).round() as u64, false) };
    arm.points.iter().find(|point| point.hogs == hogs && key(point) == Some(wanted))
}

/// Numbers of hogs that occur in the document, ascending.
pub(crate) fn hog_counts(document: &Document) -> Vec<u32> {
    let counts: std::collections::BTreeSet<u32> = document.arms.iter().flat_map(stats::hog_counts).collect();
    counts.into_iter().collect()
}

/// "without hogs", "with 4 hogs".
pub(crate) fn with_hogs(hogs: u32) -> String {
    match hogs {
        0 => "without hogs".to_string(),
        1 => "with 1 hog".to_string(),
        n => format!("with {n} hogs"),
    }
}

/// The widest spread of the points that count.
pub(crate) struct Widest<'a> {
    /// As a share of the point's median.
    pub share: f64,
    arm: &'a Arm,
    point: &'a Point,
    /// Repeats of a point, the median.
    pub repeats: usize,
}

/// `None`: no point was measured twice.
pub(crate) fn widest_spread(document: &Document) -> Option<Widest<'_>> {
    let points = || {
        let all = document.arms.iter().flat_map(|arm| arm.points.iter().map(move |point| (arm, point)));
        all.filter(|(_, point)| point.void.is_none())
    };
    let highest = points().map(|(_, point)| point.goodput_pps).max_by(f64::total_cmp)?;
    let counted = points().filter(|(_, point)| {
        point.goodput_pps > 0.0 && point.goodput_pps >= SPREAD_FLOOR * highest && point.trials.len() > 1
    });
    let (share, arm, point) = counted
        .filter_map(|(arm, point)| {
            point.spread.map(|spread| ((spread.max - spread.min) / point.goodput_pps, arm, point))
        })
        .max_by(|(a, ..), (b, ..)| a.total_cmp(b))?;
    let repeats: Vec<f64> = points().map(|(_, point)| point.trials.len() as f64).collect();
    Some(Widest { share, arm, point, repeats: stats::median(&repeats)? as usize })
}

/// How much a rate matters where not all fit: the ends and the powers of two most, the lowest rates least.
pub(crate) fn importance(rate: &Rate) -> u8 {
    match rate {
        rate if rate.wire_max => 6,
        rate if rate.label == "10x" => 5,
        rate if rate.label == "1x" => 4,
        rate if rate.label == "4x" => 3,
        rate if rate.label == "2x" => 2,
        rate if rate.label == "0.5x" => 1,
        _ => 0,
    }
}

/// The rates that fit into the table, and those that do not.
fn fitting(mut rates: Vec<Rate>) -> (Vec<Rate>, Vec<Rate>) {
    let mut left_out = Vec::new();
    while rates.len() > MAX_RATES {
        // Of equal importance, the lowest rate goes: there all arms are alike.
        let lowest = rates.iter().map(importance).min().unwrap_or(0);
        let Some(index) = rates.iter().position(|rate| importance(rate) == lowest) else { break };
        left_out.push(rates.remove(index));
    }
    left_out.sort_by(|a, b| a.multiple.total_cmp(&b.multiple));
    (rates, left_out)
}

/// The whole report as it is printed at the end of a run.
pub fn table(document: &Document) -> String {
    let mut out = String::new();
    head(document, &mut out);
    let mut left_out = std::collections::BTreeSet::new();
    let curves = if document.panels.is_empty() { hog_counts(document) } else { Vec::new() };
    for hogs in curves {
        left_out.extend(goodput(document, hogs, &mut out).into_iter().map(|rate| rate.label));
    }
    if !left_out.is_empty() {
        let labels: Vec<String> = left_out.into_iter().collect();
        wrap(
            &mut out,
            "",
            &format!("left out for width: {}; --json and --html have every rate", labels.join(", ")),
        );
    }
    for hogs in hog_counts(document) {
        let alone = |point: &Point| point.user_of_alone.map(|share| 100.0 * share);
        values(document, hogs, "programs' CPU / the same alone, %", alone, &mut out);
        let starved = |point: &Point| point.output.map(|output| 100.0 * output.starved_share);
        values(document, hogs, "output waits longer than 2 ms, % of the time", starved, &mut out);
        let longest = |point: &Point| point.output.map(|output| output.longest_us);
        waits(document, hogs, "output's longest wait", longest, &mut out);
        // Where the wait is what the experiment is about.
        if document.experiment == "quota" {
            waits(document, hogs, "wait, p50", |p| p.latency_us.map(|us| us.p50), &mut out);
            waits(document, hogs, "wait, p99", |p| p.latency_us.map(|us| us.p99), &mut out);
        }
    }
    pairs(document, &mut out);
    onsets(document, &mut out);
    document.panels.iter().for_each(|panel| panel.text(&mut out));
    out.push_str(&claims(document));
    notes(document, &mut out);
    out
}

fn head(document: &Document, out: &mut String) {
    let simulated = if document.backend == Backend::Sim { ", simulated" } else { "" };
    let machine = document.machine.as_ref().map_or(String::new(), |machine| {
        let device = machine.device.as_ref().map_or(String::new(), |device| format!(", {device}"));
        let cpus = match (machine.wire_cpu, machine.host_cpu) {
            (Some(wire), Some(host)) => format!(": wire on CPU {wire}, host on CPU {host}"),
            _ => String::new(),
        };
        format!("   Linux {}, {} CPUs{cpus}{device}", machine.kernel, machine.cpus)
    });
    wrap(out, "", &format!("{}{simulated}{machine}", document.experiment));
    if let Some(partial) = document.partial {
        line(out, &format!("partial: {} of {} trials", partial.done, partial.total));
    }
    if !document.panels.is_empty() {
        return;
    }
    if let Some(widest) = widest_spread(document) {
        let (repeats, percent) = (widest.repeats, 100.0 * widest.share);
        line(out, &format!("goodput in k/s, median of {repeats}; the widest spread is {percent:.0} %"));
    } else {
        line(out, "goodput in k/s");
    }
}

/// Writes one line without spaces at its end.
fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

/// `text` cut to `width` characters.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    text.chars().take(width - 2).chain("..".chars()).collect()
}

/// Digits after the point that all rates of a table share: none, unless the host is so slow that they are
/// needed.
fn digits(document: &Document) -> usize {
    let points = document.arms.iter().flat_map(|arm| &arm.points);
    let highest = points.map(|point| point.goodput_pps).max_by(f64::total_cmp).unwrap_or(0.0);
    match highest {
        pps if pps >= 100e3 => 0,
        pps if pps >= 10e3 => 1,
        _ => 2,
    }
}

/// Writes the table of one number of hogs; returns the rates that did not fit.
fn goodput(document: &Document, hogs: u32, out: &mut String) -> Vec<Rate> {
    let arms: Vec<&Arm> =
        document.arms.iter().filter(|arm| arm.points.iter().any(|point| point.hogs == hogs)).collect();
    let (rates, left_out) = fitting(rates(document, hogs));
    let digits = digits(document);
    let beaten = verdict::leads(document, 4.0);
    if hog_counts(document).len() > 1 {
        line(out, "");
        line(out, &with_hogs(hogs));
    }
    let ten = rates.iter().any(|rate| rate.label == "10x" && !rate.wire_max).then_some("10x");
    let max = rates.iter().find(|rate| rate.wire_max).map(|rate| rate.label.as_str());
    let flatness: Vec<(&str, &str)> = [("10", ten), ("max", max)]
        .into_iter()
        .filter_map(|(key, label)| label.map(|label| (key, label)))
        .collect();
    let mut head = format!("{:<NAME$}{:>COLUMN$}", "arm", "MLFRR");
    for rate in &rates {
        let _ = write!(head, "{:>COLUMN$}", rate.label);
    }
    let _ = write!(head, "{:>COLUMN$}", "peak");
    if !flatness.is_empty() {
        let _ = write!(head, "{:>width$}", "flatness", width = COLUMN * flatness.len().max(2));
    }
    line(out, &head);
    let base = stats::base(document);
    let mut offered = format!("{:<NAME$}{:>COLUMN$}", "offered, k/s", "");
    for rate in &rates {
        let pps: Vec<f64> = arms.iter().filter_map(|arm| Some(at(arm, hogs, rate)?.offered_pps)).collect();
        let text = stats::median(&pps).map_or("-".to_string(), |pps| {
            let fewer = (0..=digits).rev().map(|digits| format::kilo(pps, digits));
            fewer.clone().find(|text| text.len() < COLUMN).unwrap_or_else(|| format::kilo(pps, 0))
        });
        let _ = write!(offered, "{text:>COLUMN$}");
    }
    let _ = write!(offered, "{:>COLUMN$}", "");
    for (_, label) in &flatness {
        let _ = write!(offered, "{label:>COLUMN$}");
    }
    line(out, &offered);
    let mut group = None;
    for arm in arms {
        let this = group_of(arm.role);
        if group.is_some_and(|other| other != this) {
            line(out, "");
        }
        group = Some(this);
        let summary = stats::summarise(arm, hogs, base.as_ref().map(|base| base.mlfrr_pps));
        let beats = beaten.iter().any(|lead| lead.arm == arm.name && lead.hogs == hogs && lead.ratio < 1.0);
        let name = if beats { format!("{} *", cut(&arm.name, NAME - 2)) } else { cut(&arm.name, NAME) };
        let rate_or =
            |value: Option<f64>, none: &str| value.map_or(none.to_string(), |v| format::kilo(v, digits));
        let mut row = format!("{name:<NAME$}{:>COLUMN$}", rate_or(summary.mlfrr_pps, "n/a"));
        for rate in &rates {
            let text = match at(arm, hogs, rate) {
                None => "-".to_string(),
                Some(point) if point.void.is_some() => "void".to_string(),
                Some(point) => format::kilo(point.goodput_pps, digits),
            };
            let _ = write!(row, "{text:>COLUMN$}");
        }
        let _ = write!(row, "{:>COLUMN$}", rate_or(summary.peak_pps, "n/a"));
        for (key, _) in &flatness {
            let text = summary.flatness.get(*key).map_or("n/a".to_string(), |flat| format!("{flat:.3}"));
            let _ = write!(row, "{text:>COLUMN$}");
        }
        line(out, &row);
    }
    if let Some(max) = rates.iter().find(|rate| rate.wire_max) {
        wire_maximum(document, hogs, max, out);
    }
    left_out
}

/// What the wire gave each arm at its maximum, where that is not the same for all: a source that shares its CPU with an arm's
/// receive work offers less.
fn wire_maximum(document: &Document, hogs: u32, max: &Rate, out: &mut String) {
    let offered: Vec<(&str, f64)> = document
        .arms
        .iter()
        .filter_map(|arm| Some((arm.name.as_str(), at(arm, hogs, max)?)))
        .filter(|(_, point)| point.void.is_none())
        .map(|(name, point)| (name, point.offered_pps))
        .collect();
    let most = offered.iter().map(|(_, pps)| *pps).fold(0.0, f64::max);
    if offered.iter().all(|(_, pps)| *pps >= SAME_OFFER * most) {
        return;
    }
    let each: Vec<String> =
        offered.iter().map(|(name, pps)| format!("{name} {}", format::kilo_said(*pps))).collect();
    wrap(out, "", &format!("offered at {}, k/s: {}", max.label, each.join(", ")));
}

/// [`values`] of a time, in us or, if one would not fit into its column, in ms.
fn waits(
    document: &Document,
    hogs: u32,
    title: &str,
    micros: impl Fn(&Point) -> Option<f64>,
    out: &mut String,
) {
    let points = document.arms.iter().flat_map(|arm| &arm.points);
    let longest = points.filter_map(&micros).fold(0.0, f64::max);
    let (unit, one) = if longest < 99_999.5 { ("us", 1.0) } else { ("ms", 1e3) };
    values(document, hogs, &format!("{title}, {unit}"), |point| micros(point).map(|us| us / one), out);
}

/// Writes one value of every arm and rate; nothing if there are none.
fn values(
    document: &Document,
    hogs: u32,
    title: &str,
    value: impl Fn(&Point) -> Option<f64>,
    out: &mut String,
) {
    let (rates, _) = fitting(rates(document, hogs));
    let valid = |arm: &Arm, rate: &Rate| {
        let point = at(arm, hogs, rate).filter(|point| point.void.is_none())?;
        value(point)
    };
    let arms: Vec<&Arm> =
        document.arms.iter().filter(|arm| rates.iter().any(|rate| valid(arm, rate).is_some())).collect();
    if arms.is_empty() {
        return;
    }
    line(out, "");
    line(out, &format!("{title}, {}", with_hogs(hogs)));
    let mut head = format!("{:<NAME$}{:>COLUMN$}", "arm", "");
    for rate in &rates {
        let _ = write!(head, "{:>COLUMN$}", rate.label);
    }
    line(out, &head);
    for arm in arms {
        let mut row = format!("{:<NAME$}{:>COLUMN$}", cut(&arm.name, NAME), "");
        for rate in &rates {
            let text = valid(arm, rate).map_or("-".to_string(), |value| format::at_least(value, 0));
            let _ = write!(row, "{text:>COLUMN$}");
        }
        line(out, &row);
    }
}

/// Arms that stand together: stock first, then what people use instead, then weir, then weir with one
/// mechanism off.
fn group_of(role: Role) -> u8 {
    match role {
        Role::Stock => 0,
        Role::Alternative | Role::Shown | Role::Control => 1,
        Role::Weir => 2,
        Role::Ablation | Role::Variant => 3,
    }
}

fn pairs(document: &Document, out: &mut String) {
    let Some(first) = document.pairs.first() else { return };
    let n = first.pairs.len();
    line(out, "");
    line(
        out,
        &format!("below saturation, {} / {}, medians of {n} interleaved pairs", first.arm, first.against),
    );
    line(out, "of MLFRR  goodput    p50  95 % interval    p99  95 % interval  CPU pts switch/s");
    let mut control = false;
    for rate in &document.pairs {
        if rate.is_control() && !std::mem::replace(&mut control, true) {
            line(out, &format!("{} against itself", rate.arm));
        }
        let one =
            |value: Option<f64>, digits: usize| value.map_or("n/a".to_string(), |v| format!("{v:.digits$}"));
        let ends = |interval: &Option<crate::Interval>| {
            interval.map_or("n/a".to_string(), |i| format!("{:.3} - {:.3}", i.low, i.high))
        };
        let median = |interval: &Option<crate::Interval>| interval.map(|i| i.median);
        line(
            out,
            &format!(
                "{:>6.0} % {:>8} {:>6}  {:>13} {:>6}  {:>13} {:>8} {:>8}",
                rate.percent_of_mlfrr,
                one(median(&rate.goodput_ratio), 3),
                one(median(&rate.p50_ratio), 3),
                ends(&rate.p50_ratio),
                one(median(&rate.p99_ratio), 3),
                ends(&rate.p99_ratio),
                one(median(&rate.extra_cpu_points), 2),
                one(median(&rate.mode_switches_per_s), 2),
            ),
        );
    }
}

fn onsets(document: &Document, out: &mut String) {
    if document.onset.is_empty() {
        return;
    }
    line(out, "");
    line(out, "onset of a flood, ms, median (slowest)    takeover        release       recovery");
    for onset in &document.onset {
        let cell = |list: &[f64]| match (stats::median(list), stats::spread(list)) {
            (Some(median), Some(spread)) => format!("{median:.1} ({:.1})", spread.max),
            _ => "n/a".to_string(),
        };
        let name = cut(&format!("{}, {}", onset.arm, onset.condition), 34);
        let (takeover, release) = (cell(&onset.takeover_ms), cell(&onset.release_ms));
        line(out, &format!("{name:<35}{takeover:>15}{release:>15}{:>15}", cell(&onset.recovery_ms)));
        let told = [
            (onset.polled_before, "polled before the flood: no takeover"),
            (onset.not_released, "polled when the load ended"),
            (onset.taken_again, "released, and taken over again at the rate after the flood"),
        ];
        for (count, text) in told.into_iter().filter(|(count, _)| *count > 0) {
            line(out, &format!("    {count} of {} {text}", onset.recovery_ms.len()));
        }
        for (why, count) in &onset.again_for {
            line(out, &format!("    taken over {count} times after the flood: {why}"));
        }
    }
}

/// The claims alone: one line each, a note below where the number needs one, and a sum.
pub fn claims(document: &Document) -> String {
    let mut out = String::new();
    if document.verdict.is_empty() {
        return out;
    }
    line(&mut out, "");
    line(&mut out, &format!("{:<CLAIM$}{:>9}  bound", "claim", "value"));
    for verdict in &document.verdict {
        let unit = if verdict.unit.is_empty() { String::new() } else { format!(", {}", verdict.unit) };
        let mut text = format!("{}{unit}", verdict.claim);
        // A long claim has a line of its own, so that the columns stay where they are.
        if text.chars().count() > CLAIM {
            wrap(&mut out, "", &text);
            text.clear();
        }
        let holds = format::judged(verdict);
        let (value, bound) = (aligned(&format::value(verdict)), format::bound(verdict));
        line(&mut out, &format!("{text:<CLAIM$}{value}  {bound:<8}{holds:<12}{}", verdict.id));
        // Intervals and medians of P4 and P7 stand in the block above; beside a claim that holds they only
        // take room.
        let has_block = matches!(verdict.id.as_str(), "P4" | "P7");
        if let Some(note) = verdict.note.as_ref().filter(|_| !(has_block && verdict.holds)) {
            wrap(&mut out, "    ", note);
        }
    }
    let held = document.verdict.iter().filter(|verdict| verdict.holds).count();
    let all = document.verdict.len();
    if held == all {
        line(&mut out, &format!("all {all} claims hold"));
    } else {
        let failed = |measured: bool| {
            let fails = document.verdict.iter().filter(|v| !v.holds && v.value.is_some() == measured);
            fails.map(|v| format!("{} ({})", v.claim, v.id)).collect::<Vec<_>>().join("; ")
        };
        let kinds = [("falls short", failed(true)), ("not measured", failed(false))];
        let kinds = kinds.iter().filter(|(_, claims)| !claims.is_empty());
        let texts: Vec<String> = kinds.map(|(kind, claims)| format!("{kind}: {claims}")).collect();
        wrap(&mut out, &format!("{held} of {all} claims hold; "), &texts.join("; "));
    }
    out
}

/// A number in 9 columns with its point in the fifth; one with an exponent at the right.
fn aligned(number: &str) -> String {
    if number.contains('e') {
        return format!("{number:>9}");
    }
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    format!("{whole:>5}{rest:<4}")
}

/// Writes `first` and `text`, broken between words.
pub(crate) fn wrap(out: &mut String, first: &str, text: &str) {
    let mut row = first.to_string();
    for word in text.split(' ') {
        if row.chars().count() + word.chars().count() > WIDTH {
            line(out, &row);
            row = "    ".to_string();
        }
        row.push_str(word);
        row.push(' ');
    }
    line(out, &row);
}

fn notes(document: &Document, out: &mut String) {
    let mut notes: Vec<String> = Vec::new();
    if let Some(base) = stats::base(document) {
        let rate = format::kilo_said(base.mlfrr_pps);
        notes.push(match base.is_given() {
            true => format!("1x was given as {rate} k/s"),
            false if searched(document, &base) => {
                format!("1x is {rate} k/s, the MLFRR of {} by a search before the points above", base.arm)
            }
            false => format!("1x is {rate} k/s, the MLFRR of {}", base.arm),
        });
        if let Some(peak) = far_peak(document, &base) {
            notes.push(format!(
                "* 1x is {:.0} % of the {} k/s that {} reached, so its multiples may be no overload: the arm lost a few \
                 packets at all rates, as where other work on this machine takes the CPU now and then. Quiet it, or \
                 --base-pps {peak:.0}",
                100.0 * base.mlfrr_pps / peak,
                format::kilo_said(peak),
                base.arm,
            ));
        }
    }
    for (arm, lead) in beating(document) {
        notes.push(format!(
            "* {arm} {} more than weir at {}, {}: {} against {} k/s",
            verdict::verb(document),
            format::multiple(lead.multiple),
            with_hogs(lead.hogs),
            format::kilo_said(lead.other_pps),
            format::kilo_said(lead.weir_pps)
        ));
    }
    for arm in &document.arms {
        if let Some(note) = &arm.note {
            notes.push(format!("{}: {note}", arm.name));
        }
    }
    let points = || document.arms.iter().flat_map(|arm| arm.points.iter().map(move |point| (arm, point)));
    let void: Vec<_> = points().filter(|(_, point)| point.void.is_some()).collect();
    if let Some((arm, point)) = void.first() {
        notes.push(format!(
            "{} of {} points are void and prove nothing; {} at {}: {}",
            void.len(),
            points().count(),
            arm.name,
            point.multiple.map_or("n/a".to_string(), format::multiple),
            point.void.as_deref().unwrap_or("")
        ));
    }
    // The spread of a simulated host has no other work as its reason.
    if document.backend == Backend::Kernel
        && let Some(widest) = widest_spread(document)
        && widest.share > WIDE
    {
        notes.push(format!(
            "trials of {} at {} differ by {:.0} %: other work on this machine, or its hypervisor, can be the reason. Quiet \
             it, or --repeat {}",
            widest.arm.name,
            widest.point.multiple.map_or_else(
                || format!("{} k/s", format::kilo_said(widest.point.offered_pps)),
                format::multiple
            ),
            100.0 * widest.share,
            2 * widest.repeats + 3
        ));
    }
    if let Some(command) = &document.command {
        notes.push(format!("repeat: {command}"));
    }
    let has_report = document.command.as_ref().is_some_and(|command| command.contains("--html"));
    let report = if has_report { "end of the HTML report, or " } else { "" };
    notes.push(format!("words: {report}docs/words.md"));
    if !notes.is_empty() {
        line(out, "");
    }
    for note in notes {
        wrap(out, "", &note);
    }
}

/// What the points of the base's arm show, with its fewest hogs.
fn summary_of(document: &Document, base: &Base) -> Option<Summary> {
    let arm = document.arms.iter().find(|arm| arm.name == base.arm)?;
    Some(stats::summarise(arm, *stats::hog_counts(arm).first()?, Some(base.mlfrr_pps)))
}

/// The peak of the base's arm where 1 x is far below it: a multiple of 1 x may be no overload.
fn far_peak(document: &Document, base: &Base) -> Option<f64> {
    let measured = document.backend == Backend::Kernel && !base.is_given();
    let peak = summary_of(document, base).filter(|_| measured)?.peak_pps?;
    (base.mlfrr_pps < LOW * peak).then_some(peak)
}

/// True if 1 x is not the MLFRR that the points of its arm show.
fn searched(document: &Document, base: &Base) -> bool {
    let shown = summary_of(document, base).and_then(|summary| summary.mlfrr_pps);
    shown.is_none_or(|pps| (pps - base.mlfrr_pps).abs() > 0.01 * base.mlfrr_pps)
}

/// For each arm that reads more than weir somewhere from 4 x on: where it does so most.
pub(crate) fn beating(document: &Document) -> Vec<(String, verdict::Lead)> {
    let mut worst: BTreeMap<String, verdict::Lead> = BTreeMap::new();
    for lead in verdict::leads(document, 4.0).into_iter().filter(|lead| lead.ratio < 1.0) {
        match worst.get(&lead.arm) {
            Some(other) if other.ratio <= lead.ratio => {}
            _ => {
                worst.insert(lead.arm.clone(), lead);
            }
        }
    }
    worst.into_iter().collect()
}
