//! `weir predict --check`: predictions against rates that the lab measures, over workloads that a seed draws.

use super::text::rate;
use crate::cli::PredictArgs;
use crate::out::{self, Paint};
use lab::{Compared, Interrupt, Options};
use serde::Serialize;
use std::process::ExitCode;

/// What the predictions must reach: median and largest relative error, share of the intervals that hold the truth.
const AIM: (f64, f64, f64) = (0.10, 0.25, 0.80);

/// One workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Line {
    name: String,
    workload: String,
    /// Geometric mean of the two searches that are nearest to each other.
    measured_pps: Option<f64>,
    /// Rates that a search found before and after the watching, and once more where those are more than a quarter apart.
    searches_pps: Vec<f64>,
    /// The larger of the first two over the smaller, less one: what the machine does to a rate by itself.
    apart: Option<f64>,
    predicted_pps: Option<f64>,
    low_pps: Option<f64>,
    high_pps: Option<f64>,
    limit: Option<String>,
    /// Predicted over measured, less one.
    error: Option<f64>,
    covered: Option<bool>,
    watched_pps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// The interface of the prediction's own document: what was seen and what the model made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<serde_json::Value>,
}

/// All of them together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Summary {
    compared: usize,
    without: usize,
    median_error: Option<f64>,
    worst_error: Option<f64>,
    covered: Option<f64>,
    /// Median and largest of [`Line::apart`].
    median_apart: Option<f64>,
    worst_apart: Option<f64>,
    holds: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    seed: u64,
    goal_loss: f64,
    workloads: &'a [Line],
    summary: &'a Summary,
}

fn line(one: &Compared) -> Line {
    let rows = one.predicted.as_ref().and_then(|p| p["interfaces"][0]["rows"].as_array());
    // What was asked for stands last.
    let row = rows.and_then(|rows| rows.last());
    let number = |name: &str| row.and_then(|r| r["mlfrr_pps"][name].as_f64());
    let (predicted, low, high) = (number("value"), number("low"), number("high"));
    let searches: Vec<f64> = one.measured.into_iter().chain(one.again).chain(one.third).collect();
    let measured = agreed(&searches);
    let both = measured.zip(predicted);
    Line {
        name: one.workload.name.clone(),
        workload: one.workload.text(),
        measured_pps: measured,
        apart: one.measured.zip(one.again).map(|(a, b)| a.max(b) / a.min(b) - 1.0),
        searches_pps: searches,
        predicted_pps: predicted,
        low_pps: low,
        high_pps: high,
        limit: row.and_then(|r| r["limit"].as_str()).map(str::to_owned),
        error: both.map(|(measured, predicted)| predicted / measured - 1.0),
        covered: both
            .and_then(|(measured, _)| Some(low? <= measured && high.is_none_or(|high| measured <= high))),
        watched_pps: one.watched_pps,
        why: one.why.clone(),
        answer: one.predicted.as_ref().map(|p| p["interfaces"][0].clone()),
    }
}

/// The rate that the searches agree on: one of three may be disturbed.
fn agreed(searches: &[f64]) -> Option<f64> {
    let mut sorted = searches.to_vec();
    sorted.sort_by(f64::total_cmp);
    let nearest = sorted.windows(2).min_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
    nearest.map(|pair| (pair[0] * pair[1]).sqrt()).or_else(|| sorted.first().copied())
}

/// A workload without a prediction, or without a rate, counts as missed.
fn summary(lines: &[Line]) -> Summary {
    let errors: Vec<f64> = lines.iter().filter_map(|l| l.error).map(f64::abs).collect();
    let apart: Vec<f64> = lines.iter().filter_map(|l| l.apart).collect();
    let most = |values: &[f64]| values.iter().copied().max_by(f64::total_cmp);
    let median = results::stats::median(&errors);
    let covered = lines.iter().filter(|l| l.covered == Some(true)).count() as f64 / lines.len().max(1) as f64;
    let worst = most(&errors);
    let without = lines.len() - errors.len();
    let holds = without == 0
        && median.is_some_and(|m| m <= AIM.0)
        && worst.is_some_and(|w| w <= AIM.1)
        && covered >= AIM.2;
    Summary {
        compared: errors.len(),
        without,
        median_error: median,
        worst_error: worst,
        covered: (!lines.is_empty()).then_some(covered),
        median_apart: results::stats::median(&apart),
        worst_apart: most(&apart),
        holds,
    }
}

fn table(lines: &[Line], summary: &Summary) -> String {
    // Markdown, so that it can be pasted into a page of docs/measurements as it is.
    let mut text = String::from(
        "| host | measured | again | predicted | interval | error | limited by |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let shown = |pps: Option<f64>| pps.map_or_else(|| "-".into(), rate);
    for l in lines {
        let interval = match (l.low_pps, l.high_pps) {
            (Some(low), Some(high)) => format!("{} to {}", rate(low), rate(high)),
            (Some(low), None) => format!("at least {}", rate(low)),
            _ => l.why.clone().unwrap_or_else(|| "-".into()),
        };
        let again: Vec<String> = l.searches_pps.iter().skip(1).map(|pps| rate(*pps)).collect();
        let again = if again.is_empty() { "-".into() } else { again.join(", ") };
        let missed = if l.covered == Some(false) { ", missed" } else { "" };
        let error = l.error.map_or_else(|| "-".into(), |e| format!("{:+.0} %", 100.0 * e));
        text += &format!(
            "| {} {} | {} | {} | {} | {interval}{missed} | {error} | {} |\n",
            l.name,
            l.workload,
            shown(l.searches_pps.first().copied()),
            again,
            shown(l.predicted_pps),
            l.limit.as_deref().unwrap_or("-")
        );
    }
    let percent = |share: Option<f64>| share.map_or_else(|| "-".into(), |s| format!("{:.0} %", 100.0 * s));
    text += &format!(
        "\n{} compared, {} without a comparison: median error {} (aim {:.0} %), worst {} (aim {:.0} %), interval holds the measured \
         rate in {} (aim {:.0} %)\n",
        summary.compared,
        summary.without,
        percent(summary.median_error),
        100.0 * AIM.0,
        percent(summary.worst_error),
        100.0 * AIM.1,
        percent(summary.covered),
        100.0 * AIM.2,
    );
    if summary.worst_apart.is_some() {
        text += &format!(
            "Measured before and after the prediction, a host's two rates are {} apart in the median, {} at worst; the error is against \
             the mean of the two that agree best\n",
            percent(summary.median_apart),
            percent(summary.worst_apart),
        );
    }
    text
}

/// Runs the comparison.
///
/// # Errors
/// 3 without the privileges, 1 if it breaks off before the first workload is done.
pub(super) fn run(args: &PredictArgs, _paint: Paint) -> anyhow::Result<ExitCode> {
    let options = Options {
        quick: args.quick,
        seed: args.seed.unwrap_or(Options::default().seed),
        arms: args.hosts.clone(),
        interrupt: Interrupt::new(),
        ..Options::default()
    };
    crate::watch::stop_raises(&options.interrupt.flag())?;
    let mut meter = crate::lab::Meter::new();
    let result = lab::compare(&options, &mut |progress| meter.show(&progress));
    meter.wipe();
    let compared = result.map_err(crate::lab::lab_error)?;
    let lines: Vec<Line> = compared.iter().map(line).collect();
    let summary = summary(&lines);
    if args.json {
        let document = Document {
            schema: "weir.predict-check/1",
            seed: options.seed,
            goal_loss: lab::GOAL_LOSS,
            workloads: &lines,
            summary: &summary,
        };
        out::data(&format!("{}\n", serde_json::to_string(&document)?))?;
    } else {
        out::data(&table(&lines, &summary))?;
    }
    Ok(ExitCode::from(u8::from(!summary.holds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn compared(measured: f64, predicted: Option<f64>) -> Compared {
        let predicted = predicted.map(|p| {
            json!({"interfaces": [{"rows": [
                {"mlfrr_pps": {"value": 1.0, "low": 0.0, "high": 2.0}, "limit": "cpu"},
                {"mlfrr_pps": {"value": p, "low": 0.9 * p, "high": 1.1 * p}, "limit": "socket"},
            ]}]})
        });
        Compared {
            workload: lab::Workload::draw(1, 1).remove(0),
            measured: Some(measured),
            again: None,
            third: None,
            points: Vec::new(),
            predicted,
            why: None,
            watched_pps: 0.4 * measured,
        }
    }

    #[test]
    fn errors_and_intervals_are_judged() {
        let good: Vec<Line> = [100e3, 95e3, 105e3, 92e3].map(|p| line(&compared(100e3, Some(p)))).into();
        let judged = summary(&good);
        assert!(judged.holds && judged.covered == Some(1.0), "{judged:?}");
        assert!(
            (judged.median_error.unwrap() - 0.05).abs() < 1e-9
                && (judged.worst_error.unwrap() - 0.08).abs() < 1e-9
        );
        assert_eq!(good[0].limit.as_deref(), Some("socket"), "the row that was asked for");
        let far = [good.clone(), vec![line(&compared(100e3, Some(130e3)))]].concat();
        let judged = summary(&far);
        assert!(!judged.holds && judged.covered == Some(0.8), "{judged:?}");
        let silent = [good, vec![line(&compared(100e3, None))]].concat();
        assert_eq!((summary(&silent).holds, summary(&silent).without), (false, 1));
        assert!(!summary(&[]).holds);
        let twice = line(&Compared { again: Some(144e3), ..compared(100e3, Some(120e3)) });
        assert!(twice.error.unwrap().abs() < 1e-9 && (twice.apart.unwrap() - 0.44).abs() < 1e-9, "{twice:?}");
        assert_eq!((agreed(&[]), agreed(&[7.0])), (None, Some(7.0)));
        assert!((agreed(&[154e3, 384e3, 400e3]).unwrap() / 392e3 - 1.0).abs() < 1e-3);
        let judged = summary(std::slice::from_ref(&twice));
        assert_eq!(judged.worst_apart, twice.apart);
        assert!(table(&[twice], &judged).contains("| 100 k/s | 144 k/s | 120 k/s |"));
        assert!(table(&far, &judged).contains("missed | +30 %"), "{}", table(&far, &judged));
    }
}
