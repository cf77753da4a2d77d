//! Metrics: what each is called, its unit and type, and where its numbers come from stands once, in [`FAMILIES`]. The
//! exposition (OpenMetrics 1.0 text, written by `prometheus-client`) and `docs/metrics.md` are made from that table.
//!
//! A snapshot tells what happened in one interval; [`Store`] sums that up, because a monitor wants counters that only
//! rise. They begin at 0 when weir starts.

mod families;

pub use families::FAMILIES;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use see::Snapshot;
use see::explain::Report;
use see::model::BOUNDS_US;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Media type of [`Store::text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What every name begins with, and an underscore.
pub const PREFIX: &str = "weir";
/// Longest value of a label, characters.
const LABEL_MAX: usize = 128;

/// Counter, gauge or histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sum since weir started.
    Counter,
    /// Of the last interval, or at its end.
    Gauge,
    /// Counts since weir started, by [`see::model::BOUNDS_US`] in seconds. Behind the values of the labels stands one more:
    /// the number of the bucket, or [`SUM`].
    Histogram,
}

/// In place of a bucket's number: the sum of what was observed.
pub const SUM: &str = "sum";

/// What the numbers of one interval are made from.
pub struct Seen<'a> {
    /// The interval.
    pub snapshot: &'a Snapshot,
    /// What explain says about it.
    pub report: &'a Report,
}

/// Takes one number: values of the labels, in the order of [`Family::labels`], and the value.
pub type Take<'a> = dyn FnMut(&[&str], f64) + 'a;

/// One metric.
pub struct Family {
    /// Name without prefix, unit and `_total`.
    pub name: &'static str,
    /// Unit, which is the end of the name too; empty: it has none.
    pub unit: &'static str,
    /// Type.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Most series. Of a counter that has them all, the series that was not seen for longest gives way.
    pub limit: usize,
    /// What it says, one sentence without its full stop.
    pub help: &'static str,
    /// The numbers of one interval. Numbers with the same labels are added for a counter; of a gauge the largest counts.
    pub of: fn(&Seen<'_>, &mut Take<'_>),
}

impl Family {
    /// Name of its series, as in a query.
    #[must_use]
    pub fn full_name(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!("_{}", self.unit) };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{PREFIX}_{}{unit}{total}", self.name)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Series {
    value: f64,
    /// Number of the interval in which it was told last.
    seen: u64,
}

impl Series {
    fn encode(self, kind: Kind, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        match kind {
            Kind::Gauge => ConstGauge::new(self.value).encode(encoder),
            // Of a histogram each number is one; [`histogram`] writes them together.
            Kind::Counter | Kind::Histogram => ConstCounter::new(self.value).encode(encoder),
        }
    }
}

/// The sums since weir started, and the gauges of the last interval.
#[derive(Clone, Debug, Default)]
pub struct Store {
    intervals: u64,
    refused: u64,
    /// Per family of [`FAMILIES`], by the values of the labels.
    series: Vec<BTreeMap<Vec<String>, Series>>,
}

impl Store {
    /// Adds an interval. Cost: some 100 ns per series.
    pub fn add(&mut self, seen: &Seen<'_>) {
        self.intervals += 1;
        self.series.resize_with(FAMILIES.len(), BTreeMap::new);
        for (family, series) in FAMILIES.iter().zip(&mut self.series) {
            if family.kind == Kind::Gauge {
                series.clear();
            }
            let (now, refused) = (self.intervals, &mut self.refused);
            (family.of)(seen, &mut |labels, value| {
                *refused += u64::from(!take(family, series, labels, value, now));
            });
        }
    }

    /// The exposition, with its end mark.
    #[must_use]
    pub fn text(self: &Arc<Store>) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Scrape(Arc::clone(self))));
        let mut buffer = String::new();
        // Writing into a string does not fail.
        let _ = text::encode(&mut buffer, &registry);
        buffer
    }
}

/// Takes one number; false if there is no room for its series.
fn take(
    family: &Family,
    series: &mut BTreeMap<Vec<String>, Series>,
    labels: &[&str],
    value: f64,
    now: u64,
) -> bool {
    let more = usize::from(family.kind == Kind::Histogram);
    debug_assert_eq!(labels.len(), family.labels.len() + more, "{}", family.name);
    let key: Vec<String> = labels.iter().map(|label| clean(label)).collect();
    if !series.contains_key(&key) && series.len() >= family.limit {
        let oldest = series.iter().min_by_key(|(_, one)| one.seen).map(|(key, one)| (key.clone(), one.seen));
        match oldest {
            Some((old, seen)) if seen < now => series.remove(&old),
            _ => return false,
        };
    }
    let one = series.entry(key).or_default();
    match family.kind {
        Kind::Counter | Kind::Histogram => one.value += value.max(0.0),
        // The first of this interval, or one that is larger.
        Kind::Gauge if one.seen < now || value > one.value => one.value = value,
        Kind::Gauge => {}
    }
    one.seen = now;
    true
}

/// Without what [`see::deceives`]: names of programs come clean from the kernel's files, those of a recording do not.
fn clean(label: &str) -> String {
    label.chars().take(LABEL_MAX).map(|c| if see::deceives(c) { '?' } else { c }).collect()
}

/// What weir says about itself, beside [`FAMILIES`].
const OWN: [(&str, &str, &str); 2] = [
    ("intervals", "", "Intervals since weir started"),
    ("refused_series", "", "Numbers left out because their metric had all the series that it may have"),
];

#[derive(Debug)]
struct Scrape(Arc<Store>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let info = prometheus_client::metrics::info::Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        info.encode(encoder.encode_descriptor("build", "Version of weir", None, MetricType::Info)?)?;
        for ((name, _, help), value) in OWN.iter().zip([self.0.intervals, self.0.refused]) {
            let one = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(one)?;
        }
        for (family, series) in FAMILIES.iter().zip(&self.0.series).filter(|(_, series)| !series.is_empty()) {
            let unit = (!family.unit.is_empty()).then(|| Unit::Other(family.unit.to_owned()));
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut all = encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
            if family.kind == Kind::Histogram {
                histograms(family, series, &mut all)?;
                continue;
            }
            for (values, one) in series {
                let labels: Vec<(&str, &str)> =
                    family.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
                if labels.is_empty() {
                    // The only one, without braces.
                    one.encode(family.kind, all)?;
                    break;
                }
                one.encode(family.kind, all.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The sum of what was observed, and how much of it is up to each bound and above the one before.
type SumAndBuckets = (f64, Vec<(f64, u64)>);

/// Writes the histograms of a family: numbers whose labels are the same.
fn histograms(
    family: &Family,
    series: &BTreeMap<Vec<String>, Series>,
    all: &mut MetricEncoder<'_>,
) -> Result<(), std::fmt::Error> {
    let mut parts: BTreeMap<&[String], SumAndBuckets> = BTreeMap::new();
    for (key, one) in series {
        let Some((place, values)) = key.split_last() else { continue };
        // The encoder adds up what is below a bound.
        let empty = || {
            let bounds = BOUNDS_US.iter().map(|us| us / 1e6).chain([f64::INFINITY]);
            (0.0, bounds.map(|bound| (bound, 0)).collect())
        };
        let (sum, buckets) = parts.entry(values).or_insert_with(empty);
        match place.parse().ok().and_then(|at: usize| buckets.get_mut(at)) {
            Some(bucket) => bucket.1 = one.value as u64,
            None => *sum = one.value,
        }
    }
    for (values, (sum, buckets)) in parts {
        let labels: Vec<(&str, &str)> =
            family.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
        let count = buckets.iter().map(|(_, n)| n).sum();
        all.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

/// Names of all series.
#[must_use]
pub fn names() -> Vec<String> {
    let own = OWN.iter().map(|(name, ..)| format!("{PREFIX}_{name}_total"));
    let build = std::iter::once(format!("{PREFIX}_build_info"));
    build.chain(own).chain(FAMILIES.iter().map(Family::full_name)).collect()
}

/// Columns of a line of `docs/metrics.md`.
const COLUMNS: usize = 100;

/// Adds an entry of a list, in lines of at most [`COLUMNS`].
fn entry(text: &mut String, name: &str, kind: &str, help: &str) {
    let mut line = format!("- `{name}` ({kind}):");
    for word in help.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            *text += &std::mem::replace(&mut line, " ".to_owned());
            text.push('\n');
        }
        line.push(' ');
        line += word;
    }
    *text += &line;
    *text += ".\n";
}

/// The text of `docs/metrics.md`.
#[must_use]
pub fn document() -> String {
    let mut text = String::from(DOCUMENT);
    entry(&mut text, &format!("{PREFIX}_build_info"), "info by `version`", "Version of weir");
    for (name, _, help) in OWN {
        entry(&mut text, &format!("{PREFIX}_{name}_total"), "counter", help);
    }
    for family in &FAMILIES {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let by = if labels.is_empty() { String::new() } else { format!(" by {}", labels.join(", ")) };
        let limit = if family.limit > 1 { format!("; at most {}", family.limit) } else { String::new() };
        entry(&mut text, &family.full_name(), &format!("{kind}{by}{limit}"), family.help);
    }
    text
}

const DOCUMENT: &str = "\
# Metrics

`weir watch --metrics` serves these at `/metrics` as OpenMetrics 1.0 text. How to switch it on, and
who can read it: [watch-web.md](watch-web.md). `packaging/grafana/weir.json` is a dashboard over
them.

- **Counters** begin at 0 when weir starts and count what happened in its intervals. A counter that
  has all the series it may have forgets the one that was not seen for longest.
- **Gauges** are those of the last interval. One that has no number then has no series.
- **Packets** are counted as in [watch.md](watch.md), and the same words name stages and losses.

Each entry has the name, the type with the labels, how many series there are at most, and what it
says. This page is made by `cargo run -p xtask -- metrics` from the table in
`crates/serve/src/metrics/families.rs`; edit that.

";

#[cfg(test)]
mod tests;
