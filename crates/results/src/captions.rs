//! The sentence under each chart: the result, in numbers of the document.

use crate::document::{Arm, Document, Role};
use crate::figures::{ablations, best_stock, highest_rate, mechanism, weir};
use crate::measure::{Onset, Point};
use crate::table::{Rate, at, rates};
use crate::verdict::{Wasted, verb, wasted_at};
use crate::{format, stats};

/// The rate that sentences speak of: 10 x if it was measured, else the highest.
fn spoken_rate(document: &Document, hogs: u32) -> Option<Rate> {
    let rates = rates(document, hogs);
    let ten = rates.iter().find(|rate| rate.label == "10x" && !rate.wire_max).cloned();
    ten.or_else(|| rates.last().cloned())
}

fn valid<'a>(arm: &'a Arm, hogs: u32, rate: &Rate) -> Option<&'a Point> {
    at(arm, hogs, rate).filter(|point| point.void.is_none())
}

fn hogs_words(hogs: u32) -> String {
    match hogs {
        0 => String::new(),
        1 => " and with 1 hog".to_string(),
        n => format!(" and with {n} hogs"),
    }
}

/// "At 10 times the stock MLFRR and with 1 hog,", or "At 10x and with 1 hog," where 1 x is nobody's MLFRR.
fn at_rate(document: &Document, hogs: u32, rate: &Rate) -> String {
    let hogs = hogs_words(hogs);
    match stats::base(document).is_some_and(|base| base.is_given()) {
        true => format!("At {}{hogs},", rate.label),
        false => format!("At {} times the stock MLFRR{hogs},", rate.label.trim_end_matches('x')),
    }
}

/// The stock arm that reads most at a rate.
fn stock_at<'a>(document: &'a Document, hogs: u32, rate: &Rate) -> Option<(&'a Arm, &'a Point)> {
    let stock = document.arms.iter().filter(|arm| arm.role == Role::Stock);
    stock
        .filter_map(|arm| Some((arm, valid(arm, hogs, rate)?)))
        .max_by(|a, b| a.1.goodput_pps.total_cmp(&b.1.goodput_pps))
}

/// Under chart 1, and the first sentence of the report.
pub(crate) fn goodput(document: &Document, hogs: u32) -> Option<String> {
    let rate = spoken_rate(document, hogs)?;
    let (arm, stock) = stock_at(document, hogs, &rate)?;
    let verb = verb(document);
    let said = format::kilo_said(stock.goodput_pps);
    let stock_text = format!("{} {} {verb} {said} k/s", at_rate(document, hogs, &rate), arm.name);
    let Some(weir) = weir(document) else { return Some(format!("{stock_text}.")) };
    let Some(point) = valid(weir, hogs, &rate) else { return Some(format!("{stock_text}.")) };
    let points = stats::curve(weir, hogs);
    let of_peak = stats::peak(&points).filter(|peak| peak.goodput_pps > 0.0).map_or(String::new(), |peak| {
        format!(", {} % of its peak", format::percent(point.goodput_pps / peak.goodput_pps))
    });
    let said = format::kilo_said(point.goodput_pps);
    Some(format!("{stock_text}; weir {verb} {said} k/s{of_peak}."))
}

/// Under chart 1 where nothing is compared with a stock arm: the highest and the lowest end.
pub(crate) fn curves(document: &Document, hogs: u32) -> Option<String> {
    let rate = rates(document, hogs).pop()?;
    let ends = document.arms.iter().filter_map(|arm| Some((arm, valid(arm, hogs, &rate)?)));
    let ends: Vec<(&Arm, &Point)> = ends.collect();
    let by_goodput = |a: &&(&Arm, &Point), b: &&(&Arm, &Point)| a.1.goodput_pps.total_cmp(&b.1.goodput_pps);
    let (most, least) = (ends.iter().max_by(by_goodput)?, ends.iter().min_by(by_goodput)?);
    let said = |point: &Point| format::kilo_said(point.goodput_pps);
    Some(format!(
        "At {} k/s offered {} {} {} k/s and {} {} k/s.",
        format::kilo_said(most.1.offered_pps),
        most.0.name,
        verb(document),
        said(most.1),
        least.0.name,
        said(least.1)
    ))
}

/// Under chart 2.
pub(crate) fn ledger(document: &Document, hogs: u32) -> Option<String> {
    let rate = spoken_rate(document, hogs)?;
    let late = |point: &Point| {
        let places = point
            .drops
            .iter()
            .filter(|(place, _)| *place != crate::SHED && !crate::AT_THE_NIC.contains(&place.as_str()));
        let lost: u64 = places.map(|(_, count)| count).sum();
        (point.sent > 0).then(|| lost as f64 / point.sent as f64)
    };
    let early = |point: &Point| {
        let ring: u64 = crate::AT_THE_NIC.iter().filter_map(|place| point.drops.get(*place)).sum();
        (point.sent > 0).then(|| ring as f64 / point.sent as f64)
    };
    let (arm, stock) = stock_at(document, hogs, &rate)?;
    let mut text = format!(
        "{} {} loses {} % of the packets after the NIC, when work was done for them",
        at_rate(document, hogs, &rate),
        arm.name,
        format::percent(late(stock)?)
    );
    if let Some(point) = weir(document).and_then(|arm| valid(arm, hogs, &rate)) {
        let shed = point.drops.get(crate::SHED).map_or(0.0, |count| *count as f64 / point.sent.max(1) as f64);
        let shed = if shed > 0.0 { format!(" and sheds {} %", format::percent(shed)) } else { String::new() };
        text += &format!(
            "; weir loses {} % there, leaves {} % to the NIC, where a loss costs nothing{shed}",
            format::percent(late(point)?),
            format::percent(early(point)?)
        );
        text += &match wasted_at(point) {
            None => String::new(),
            Some(Wasted::Time(share)) => {
                format!(", and wastes {} % of packet CPU time", format::percent(share))
            }
            Some(Wasted::Packets(share)) => {
                format!(", and loses {} % of the packets it hands up", format::percent(share))
            }
        };
    }
    Some(text + ".")
}

/// Under chart 3.
pub(crate) fn cpu(document: &Document, hogs: u32) -> Option<String> {
    let rate = spoken_rate(document, hogs)?;
    let programs = |point: &Point| {
        let shares = point.cpu.map(|cpu| cpu.program + cpu.hog);
        shares.or(point.user_share).map(format::percent)
    };
    let (arm, stock) = stock_at(document, hogs, &rate)?;
    let who = if hogs == 0 { "the program has" } else { "programs have" };
    let stock = programs(stock)?;
    let weir = weir(document).and_then(|arm| valid(arm, hogs, &rate)).and_then(programs);
    let weir = weir.map_or(String::new(), |share| format!("{share} % of the CPU under weir, "));
    Some(format!("{} {who} {weir}{stock} % under {}.", at_rate(document, hogs, &rate), arm.name))
}

/// Under chart 4.
pub(crate) fn wait(document: &Document, hogs: u32) -> Option<String> {
    let worst = document
        .pairs
        .iter()
        .filter(|rate| !rate.is_control())
        .filter_map(|rate| Some((rate, rate.p99_ratio?)))
        .max_by(|a, b| a.1.high.total_cmp(&b.1.high));
    if let Some((rate, interval)) = worst {
        return Some(format!(
            "Below the MLFRR the p99 of {} is {:.2} times that of {}, 95 % interval {:.2} to {:.2}, at its worst, \
             {:.0} % of the MLFRR ({} interleaved pairs).",
            rate.arm,
            interval.median,
            rate.against,
            interval.low,
            interval.high,
            rate.percent_of_mlfrr,
            rate.pairs.len()
        ));
    }
    let rate = spoken_rate(document, hogs)?;
    let stock_arm = best_stock(document)?;
    let stock = valid(stock_arm, hogs, &rate)?.latency_us?;
    let weir = weir(document).and_then(|arm| valid(arm, hogs, &rate))?.latency_us?;
    Some(format!(
        "{} the p99 of the wait is {} µs under weir, {} µs under {}.",
        at_rate(document, hogs, &rate),
        format::micros(weir.p99),
        format::micros(stock.p99),
        stock_arm.name
    ))
}

/// Under chart 5.
pub(crate) fn worth(document: &Document) -> Option<String> {
    let rate = highest_rate(document, 0)?;
    let whole = weir(document).and_then(|arm| valid(arm, 0, &rate))?;
    let rows = ablations(document);
    if rows.is_empty() {
        return None;
    }
    let parts: Vec<String> = rows
        .iter()
        .map(|(arm, point)| {
            format!("with {} {} k/s remain", mechanism(arm), format::kilo_said(point.goodput_pps))
        })
        .collect();
    let whole = format::kilo_said(whole.goodput_pps);
    Some(format!(
        "{} weir {} {whole} k/s; {}.",
        at_rate(document, 0, &rate),
        verb(document),
        parts.join(", ")
    ))
}

/// Under chart 6.
pub(crate) fn takeover(onset: &Onset) -> String {
    let part = |what: &str, list: &[f64]| {
        let (median, spread) = (stats::median(list)?, stats::spread(list)?);
        Some(format!("{what} after {median:.1} ms (slowest {:.1})", spread.max))
    };
    let parts: Vec<String> = [
        part("takeover", &onset.takeover_ms),
        part("full goodput", &onset.recovery_ms),
        part("release", &onset.release_ms).map(|text| format!("{text} of quiet")),
    ]
    .into_iter()
    .flatten()
    .collect();
    let n = onset.takeover_ms.len().max(onset.recovery_ms.len()).max(onset.series.len());
    let mut text = format!("{}: {}; {n} onsets.", onset.condition, parts.join(", "));
    if let Some(first) = text.get(..1).map(str::to_uppercase) {
        text.replace_range(..1, &first);
    }
    text
}
