//! The report as one HTML file: no script, no other file, light and dark, phone and print.
//!
//! From the verdict to the proof: the result in a sentence, the claims, the circumstances, the charts, then
//! every point as a table and the document itself as a download.

use std::path::Path;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::Size;
use crate::document::{Backend, Document, Error, Role, write_whole};
use crate::measure::{Interval, Point};
use crate::{captions, figures, format, stats, style, table, verdict};

/// Words of a report that its readers may not know; docs/words.md has all of them.
const WORDS: [(&str, &str); 10] = [
    ("MLFRR", "loss-free rate: the largest rate that a host takes without loss"),
    (
        "1x",
        "the rate that the run is measured in: the loss-free rate of the best stock arm in the same run, if none \
         was given; 10x is ten times that",
    ),
    ("arm", "one of the set-ups that are compared; a point is an arm at one rate"),
    ("stock", "the kernel without weir"),
    ("hog", "a program that only computes"),
    ("goodput", "packets per second that the programs have read"),
    ("flatness", "goodput at a rate over the highest goodput: 1 is ideal, near 0 is a livelock"),
    ("ledger", "the account: what arrived was delivered, was lost at a named place, or still waits"),
    ("handle", "the socket or io_uring by which weir polls a receive queue"),
    ("void", "of a trial that something disturbed, so that it proves nothing"),
];

/// Words at the head of a column, which every report has.
const COLUMNS: [(&str, &str); 7] = [
    ("zero loss", "the largest rate at which no trial lost a packet"),
    ("plateau", "mean goodput at the rates beyond the MLFRR, or beyond the peak if there is no MLFRR"),
    ("sd", "standard deviation of the plateau, from rate to rate"),
    ("user", "share of the host CPU that programs had: those that read, and hogs"),
    ("net", "share of the host CPU that packet work took: interrupts, softirq, weir's poller"),
    ("rate missed", "how far the source stayed below the rate that it was to offer"),
    ("steal", "share of the time that the hypervisor took from the host CPU"),
];

/// Most rows of the table of points; the rest is in the download, and the page says so.
const MAX_ROWS: usize = 2000;

/// The report of a finished document, as a whole HTML file.
///
/// # Errors
/// As [`Document::to_json`]: the document is part of the page.
pub fn html(document: &Document) -> Result<String, Error> {
    let json = document.to_json()?;
    let title = title(document);
    let hogs = table::hog_counts(document);
    let first = hogs.first().copied().unwrap_or(0);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content="weir";
                title { (title) }
                style { (PreEscaped(style::css())) (PreEscaped(include_str!("report.css"))) }
            }
            body {
                main {
                    header {
                        p.kind { (title) }
                        @if let Some(sentence) = captions::goodput(document, first) { h1 { (tied(&sentence)) } }
                        @else { h1 { (document.experiment) } }
                        (beaten(document))
                    }
                    (claims(document))
                    (circumstances(document))
                    @if document.panels.is_empty() { (charts(document, &hogs)) }
                    @for (nth, panel) in document.panels.iter().enumerate() { (panel.markup(document, nth)) }
                    (pairs(document))
                    (arms(document))
                    (points(document))
                    (words(&json))
                    (download(document, &json))
                }
            }
        }
    };
    Ok(page.into_string())
}

/// Writes the report to `path`, whole or not at all.
///
/// # Errors
/// As [`html()`], or the file cannot be written.
pub fn write_html(document: &Document, path: &Path) -> Result<(), Error> {
    write_whole(path, html(document)?.as_bytes())
}

fn title(document: &Document) -> String {
    match document.backend {
        Backend::Kernel => format!("weir lab: {}", document.experiment),
        Backend::Sim => format!("weir sim: {}, simulated", document.experiment),
    }
}

/// Text whose units do not part from their numbers at the end of a line.
fn tied(text: &str) -> String {
    [" %", " k/s", " µs", " ms", " points"]
        .iter()
        .fold(text.to_string(), |text, unit| text.replace(unit, &unit.replace(' ', "\u{a0}")))
}

/// Arms that read more than weir, said at the top and not hidden.
fn beaten(document: &Document) -> Markup {
    let beating = table::beating(document);
    html! {
        @for (arm, lead) in beating {
            p.beaten {
                strong { (arm) " " (verdict::verb(document)) " more than weir" }
                " at " (format::multiple(lead.multiple)) ", " (table::with_hogs(lead.hogs)) ": "
                (format::kilo_said(lead.other_pps)) " against " (format::kilo_said(lead.weir_pps)) " k/s."
            }
        }
        @if let Some(partial) = document.partial {
            p.beaten { strong { "Partial" } ": " (partial.done) " of " (partial.total) " trials." }
        }
    }
}

/// The words that this report uses.
fn words(json: &str) -> Markup {
    let used = WORDS.iter().filter(|(word, _)| matches!(*word, "MLFRR" | "1x") || json.contains(word));
    html! {
        section {
            h2 { "Words" }
            dl {
                @for (word, meaning) in used.chain(&COLUMNS) { dt { (word) } dd { (meaning) } }
                dt { "bound, aim" } dd { "what a claim must reach to hold, and what it is meant to reach" }
                dt { "id" } dd { "the requirement that a claim proves; weir's docs/sources.md explains each" }
            }
        }
    }
}

fn claims(document: &Document) -> Markup {
    let held = document.verdict.iter().filter(|verdict| verdict.holds).count();
    let all = document.verdict.len();
    if all == 0 {
        return html! {};
    }
    html! {
        section {
            h2 {
                @if held == all { "All " (all) " claims hold" } @else { (held) " of " (all) " claims hold" }
            }
            div.scroll { table.claims {
                thead { tr { th { "claim" } th.n { "value" } th { "bound" } th { "aim" } th { "" } th { "id" } } }
                tbody {
                    @for verdict in &document.verdict {
                        tr.short[!verdict.holds] {
                            td {
                                (verdict.claim)
                                @if !verdict.unit.is_empty() { ", " (verdict.unit) }
                                @if let Some(note) = &verdict.note { span.note { (note) } }
                            }
                            td.n { (aligned(&format::value(verdict))) }
                            td.bound { (format::bound(verdict)) }
                            td.bound { (format::aim(verdict)) }
                            td { @if verdict.holds { (format::judged(verdict)) } @else { strong { (format::judged(verdict)) } } }
                            td { (verdict.id) }
                        }
                    }
                }
            } }
        }
    }
}

/// A number with spaces as wide as digits behind it, so that the points of a column stand under each other.
fn aligned(number: &str) -> String {
    let fraction = number.split_once('.').map_or(0, |(_, digits)| digits.len() + 1);
    let fill = (4_usize.saturating_sub(fraction), fraction == 0);
    // The point itself is as wide as a punctuation space.
    let point = if fill.1 { "\u{2008}" } else { "" };
    let digits = "\u{2007}".repeat(fill.0 - usize::from(fill.1));
    format!("{number}{point}{digits}")
}

fn circumstances(document: &Document) -> Markup {
    let machine = document.machine.as_ref();
    let mut rows: Vec<(&str, String)> = Vec::new();
    if let Some(machine) = machine {
        rows.push(("kernel", format!("Linux {}", machine.kernel)));
        let cpus = match (machine.wire_cpu, machine.host_cpu) {
            (Some(wire), Some(host)) => format!("; wire on CPU {wire}, host on CPU {host}"),
            _ => String::new(),
        };
        rows.push(("machine", format!("{} CPUs, {}{cpus}", machine.cpus, machine.model)));
        rows.extend(machine.device.clone().map(|device| ("device", device)));
    }
    rows.extend(document.started.clone().map(|started| ("started", started)));
    if let Some(base) = stats::base(document) {
        let rate = format::kilo_said(base.mlfrr_pps);
        let text = match base.is_given() {
            true => format!("given as {rate} k/s"),
            false => format!("{rate} k/s, the MLFRR of {}, the best stock arm", base.arm),
        };
        rows.push(("1x", text));
    }
    if let Some(widest) = table::widest_spread(document) {
        let percent = format::percent(widest.share);
        rows.push((
            "spread",
            format!("median of {}; lowest to highest differ by {percent} % at most", widest.repeats),
        ));
    }
    let points = || document.arms.iter().flat_map(|arm| &arm.points);
    let void = points().filter(|point| point.void.is_some()).count();
    rows.push(("void", format!("{void} of {} points", points().count())));
    html! {
        section {
            h2 { "The run" }
            dl {
                @for (name, value) in rows { dt { (name) } dd { (value) } }
                @if !document.parameters.is_empty() {
                    dt { "parameters" }
                    dd {
                        @for (nth, (name, value)) in document.parameters.iter().enumerate() {
                            @if nth > 0 { ", " } (name) " " (plain(value))
                        }
                    }
                }
                @if let Some(command) = &document.command { dt { "repeat it" } dd { code { (command) } } }
            }
        }
    }
}

/// A parameter without the quotes of JSON.
fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// The same chart for a wide page and for a narrow one; style sheets show one of them.
fn both(draw: impl Fn(Size, &str) -> Option<String>, id: &str) -> Markup {
    html! {
        @if let Some(svg) = draw(Size::WIDE, &format!("{id}-w")) { div.wide { (PreEscaped(svg)) } }
        @if let Some(svg) = draw(Size::NARROW, &format!("{id}-n")) { div.narrow { (PreEscaped(svg)) } }
    }
}

fn charts(document: &Document, hogs: &[u32]) -> Markup {
    let first = hogs.first().copied().unwrap_or(0);
    let busiest = hogs.last().copied().filter(|hogs| *hogs != first);
    html! {
        section {
            h2 { "1. Goodput" }
            @if let Some(caption) = captions::goodput(document, first).or_else(|| captions::curves(document, first)) {
                figure {
                    (both(|size, id| figures::goodput(document, first, size, id, &caption), "goodput"))
                    figcaption {
                        (tied(&caption)) " Line: median; band: lowest to highest trial"
                        @if first == 0 { "; no hogs" }
                        @if document.arms.iter().any(|arm| arm.reference.is_some()) { ". Hollow marks are those of the paper." }
                        @else { ". Hollow marks are void." }
                    }
                }
            }
            div.pair {
                @for &n in hogs.iter().skip(1) {
                    @if let Some(caption) = captions::goodput(document, n) {
                        figure {
                            @let id = format!("goodput-{n}");
                            @if let Some(svg) = figures::goodput(document, n, Size::NARROW, &id, &caption) {
                                (PreEscaped(svg))
                            }
                            figcaption { (tied(&caption)) }
                        }
                    }
                }
            }
        }
        (ledger(document, first))
        (cpu(document, first, busiest))
        @if let Some(caption) = captions::wait(document, first) {
            section {
                h2 { "4. Wait" }
                figure {
                    (both(|size, id| figures::wait(document, first, size, id, &caption), "wait"))
                    figcaption { (tied(&caption)) (wait_of(document)) }
                }
            }
        }
        @if let Some(caption) = captions::worth(document) {
            section {
                h2 { "5. What each part is worth" }
                figure {
                    (both(|size, id| figures::worth(document, size, id, &caption), "worth"))
                    figcaption { (tied(&caption)) " Dot: median; bar: lowest to highest trial." }
                }
            }
        }
        @if document.onset.iter().any(|onset| !onset.series.is_empty()) {
            section {
                h2 { "6. Takeover" }
                div.pair {
                    @for (nth, onset) in document.onset.iter().enumerate() {
                        @let caption = captions::takeover(onset);
                        @if let Some(svg) = figures::takeover(onset, Size::NARROW, &format!("takeover-{nth}"), &caption) {
                            figure {
                                (PreEscaped(svg))
                                figcaption { (tied(&caption)) " Thin: each onset; thick: their median." }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What a wait is, under its chart.
fn wait_of(document: &Document) -> &'static str {
    match verdict::verb(document) {
        "forwards" => " From departure at the source until arrival at the far end of the output.",
        _ => " From arrival at the device until the program has read the packet.",
    }
}

fn key(entries: &[(&str, &str)]) -> Markup {
    html! {
        p.key {
            @for (name, color) in entries {
                span { i style={ "background:" (color) } {} (name) }
            }
        }
    }
}

fn small(panels: Vec<(String, String)>) -> Markup {
    html! {
        div.small {
            @for (name, svg) in panels { div { h3.ours[name == "weir"] { (name) } (PreEscaped(svg)) } }
        }
    }
}

fn ledger(document: &Document, hogs: u32) -> Markup {
    let panels = figures::ledger(document, hogs, "ledger");
    if panels.is_empty() {
        return html! {};
    }
    let places = figures::places(document);
    let entries: Vec<(&str, &str)> =
        places.iter().rev().map(|place| (place.as_str(), style::place(place))).collect();
    html! {
        section {
            h2 { "2. Ledger: where the packets went" }
            figure {
                (key(&entries))
                (small(panels))
                figcaption {
                    @if let Some(caption) = captions::ledger(document, hogs) { (tied(&caption)) " " }
                    "Percent of offered packets over offered rate in k/s."
                }
            }
        }
    }
}

fn cpu(document: &Document, first: u32, busiest: Option<u32>) -> Markup {
    let without = figures::cpu(document, first, "cpu");
    if without.is_empty() {
        return html! {};
    }
    let entries: Vec<(&str, &str)> = figures::CPU_PARTS.iter().rev().copied().collect();
    html! {
        section {
            h2 { "3. CPU of the host" }
            figure {
                (key(&entries))
                (small(without))
                figcaption {
                    @if let Some(caption) = captions::cpu(document, first) { (tied(&caption)) " " }
                    "Percent of the host CPU's time over offered rate in k/s."
                }
            }
            @if let Some(hogs) = busiest {
                @let panels = figures::cpu(document, hogs, "cpu-hogs");
                @if !panels.is_empty() {
                    figure {
                        (small(panels))
                        figcaption {
                            @if let Some(caption) = captions::cpu(document, hogs) { (tied(&caption)) " " }
                            "The same " (table::with_hogs(hogs)) "."
                        }
                    }
                }
            }
        }
    }
}

/// The head of a table; columns of numbers begin with "n ".
fn head(columns: &[&str]) -> Markup {
    html! {
        thead { tr {
            @for column in columns {
                @match column.strip_prefix("n ") {
                    Some(name) => { th.n { (name) } }
                    None => { th { (column) } }
                }
            }
        } }
    }
}

/// A point of a curve that may not exist.
fn crossing(pps: Option<f64>) -> String {
    pps.map_or("-".to_string(), |pps| format::kilo(pps, 1))
}

/// A word of the format, such as the name of a class.
fn lower<T: std::fmt::Debug>(word: Option<T>) -> String {
    word.map_or("n/a".to_string(), |word| format!("{word:?}").to_lowercase())
}

fn interval(interval: Option<Interval>, digits: usize) -> Markup {
    html! {
        @match interval {
            None => { td.n { "n/a" } td.bound { "" } }
            Some(i) => {
                td.n { (format!("{:.digits$}", i.median)) }
                td.bound { (format!("{:.digits$} to {:.digits$}", i.low, i.high)) }
            }
        }
    }
}

fn pairs(document: &Document) -> Markup {
    let Some(first) = document.pairs.first() else { return html! {} };
    html! {
        section {
            h2 { "Below saturation" }
            p {
                (first.arm) " against " (first.against) ", " (first.pairs.len())
                " interleaved pairs per rate. Medians of the ratios, and their 95 % intervals from order statistics."
            }
            div.scroll { table {
                (head(&[
                    "", "n of MLFRR, %", "n offered, k/s", "n goodput", "95 %", "n p50", "95 %", "n p99", "95 %",
                    "n extra CPU, points", "95 %", "n switches/s", "95 %",
                ]))
                tbody {
                    @for rate in &document.pairs {
                        tr {
                            td { (rate.arm) @if rate.is_control() { " against itself" } }
                            td.n { (format!("{:.0}", rate.percent_of_mlfrr)) }
                            td.n { (format::kilo(rate.offered_pps, 1)) }
                            (interval(rate.goodput_ratio, 4))
                            (interval(rate.p50_ratio, 3))
                            (interval(rate.p99_ratio, 3))
                            (interval(rate.extra_cpu_points, 2))
                            (interval(rate.mode_switches_per_s, 2))
                        }
                    }
                }
            } }
        }
    }
}

fn rate(pps: Option<f64>) -> String {
    pps.map_or("n/a".to_string(), |pps| format::kilo(pps, 1))
}

fn arms(document: &Document) -> Markup {
    let base = stats::base(document).map(|base| base.mlfrr_pps);
    html! {
        section {
            h2 { "Every arm" }
            p {
                "Class: ideal if every point delivers at least " (format::percent(1.0 - stats::IDEAL_LOSS))
                " %; livelock if goodput beyond the peak falls below " (format::percent(stats::REALIZABLE_FLOOR))
                " % of it; else realizable. It declines where goodput falls below "
                (format::percent(stats::DECLINED)) " % of the peak for good; the livelock point is where it falls to "
                (format::percent(stats::LIVELOCKED)) " %."
            }
            div.scroll { table.arms {
                (head(&[
                    "arm", "n hogs", "class", "n MLFRR, k/s", "n zero loss, k/s", "n peak, k/s", "n plateau, k/s",
                    "n sd, k/s", "n declines at, k/s", "n livelock at, k/s", "n flatness 10x", "n max", "note",
                ]))
                tbody {
                    @for arm in &document.arms {
                        @for hogs in stats::hog_counts(arm) {
                            @let summary = stats::summarise(arm, hogs, base);
                            tr.weir[arm.role == Role::Weir] {
                                td { (arm.name) } td.n { (hogs) }
                                td { (lower(summary.class)) }
                                td.n { (rate(summary.mlfrr_pps)) } td.n { (rate(summary.mlfrr_zero_pps)) }
                                td.n { (rate(summary.peak_pps)) } td.n { (rate(summary.plateau_pps)) }
                                td.n { (rate(summary.plateau_sd_pps)) }
                                td.n { (crossing(summary.decline_pps)) }
                                td.n { (crossing(summary.livelock_pps)) }
                                @for key in ["10", "max"] {
                                    @let flat = summary.flatness.get(key);
                                    td.n { (flat.map_or("n/a".to_string(), |f| format!("{f:.3}"))) }
                                }
                                td { (arm.note.as_deref().unwrap_or("")) }
                            }
                        }
                    }
                }
            } }
        }
    }
}

fn points(document: &Document) -> Markup {
    let places = figures::places(document);
    let drops: Vec<&String> = places.iter().filter(|place| *place != "delivered").collect();
    let rows = || document.arms.iter().flat_map(|arm| arm.points.iter().map(move |point| (arm, point)));
    let count = rows().count();
    let places: Vec<String> = drops.iter().map(|place| format!("n + {place}")).collect();
    let before = ["arm", "n hogs", "n x", "n offered, k/s", "n goodput, k/s", "n lowest", "n highest"];
    let ledger = ["n sent", "n = delivered"].into_iter().chain(places.iter().map(String::as_str));
    let after = [
        "n + unaccounted",
        "n user %",
        "n net %",
        "n p50, µs",
        "n p99, µs",
        "n p99.9, µs",
        "mode",
        "n rate missed, %",
        "n steal, %",
        "void",
    ];
    let columns: Vec<&str> = before.into_iter().chain(ledger).chain(after).collect();
    html! {
        section {
            h2 { "Every point" }
            p { "Counts are sums over the trials of a point; rates, shares and waits are medians." }
            @if count > MAX_ROWS { p { "The first " (MAX_ROWS) " of " (count) " points; the download has all." } }
            div.scroll { table.points {
                (head(&columns))
                tbody {
                    @for (arm, point) in rows().take(MAX_ROWS) { (row(&arm.name, point, &drops)) }
                }
            } }
        }
    }
}

fn row(arm: &str, point: &Point, drops: &[&String]) -> Markup {
    let or_na = |value: Option<f64>, show: fn(f64) -> String| value.map_or("n/a".to_string(), show);
    let one: fn(f64) -> String = |value| format::at_least(value, 1);
    let us = point.latency_us.as_ref();
    html! {
        tr.void[point.void.is_some()] {
            td { (arm) } td.n { (point.hogs) }
            td.n { (or_na(point.multiple, format::multiple)) }
            td.n { (format::kilo(point.offered_pps, 1)) } td.n { (format::kilo(point.goodput_pps, 1)) }
            td.n { (or_na(point.spread.map(|s| s.min), |pps| format::kilo(pps, 1))) }
            td.n { (or_na(point.spread.map(|s| s.max), |pps| format::kilo(pps, 1))) }
            td.n { (format::count(point.sent)) } td.n { (format::count(point.delivered)) }
            @for place in drops { td.n { (format::count(point.drops.get(*place).copied().unwrap_or(0))) } }
            td.n { (point.unaccounted) }
            td.n { (or_na(point.user_share, format::percent)) } td.n { (or_na(point.net_share, format::percent)) }
            td.n { (or_na(us.map(|us| us.p50), format::micros)) } td.n { (or_na(us.map(|us| us.p99), format::micros)) }
            td.n { (or_na(us.map(|us| us.p999), format::micros)) }
            td { (lower(point.mode)) }
            td.n { (or_na(point.rate_missed_percent, one)) } td.n { (or_na(point.steal_share, format::percent)) }
            td { (point.void.as_deref().unwrap_or("")) }
        }
    }
}

fn download(document: &Document, json: &str) -> Markup {
    // A file name that no system objects to, whatever the experiment is called.
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = document.experiment.chars().take(60).map(safe).collect();
    html! {
        section {
            h2 { "The numbers" }
            p {
                a download={ (name) ".json" } href={ "data:application/json;base64," (base64(json.as_bytes())) } {
                    "Download " (name) ".json"
                }
                ": every trial, schema " code { (document.schema) } ". Compare two runs with "
                code { "weir lab compare A.json B.json" } "."
            }
        }
    }
}

/// Base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |nth: usize| u32::from(chunk.get(nth).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for nth in 0..4 {
            // Six bits at a time, from the top.
            let six = (word >> (18 - 6 * nth) & 63) as usize;
            out.push(if nth <= chunk.len() { char::from(ALPHABET[six]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (text, encoded) in cases {
            assert_eq!(base64(text.as_bytes()), encoded);
        }
    }
}
