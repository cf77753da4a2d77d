//! `weir predict --scaling`: how throughput grows with CPUs, by the universal scalability law (ES-05).

use crate::error::{failed, usage};
use crate::out::{self, shown, wrap};
use model::scaling::Scaling;
use results::{Document, Panel};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

/// One arm of the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Arm {
    name: String,
    /// The law; throughput in the unit of the result.
    #[serde(flatten)]
    law: Scaling,
    /// Relative, root of the mean square.
    residual: f64,
    /// CPU counts that were fitted.
    points: usize,
    /// CPUs at which throughput is highest; absent if it never falls.
    #[serde(skip_serializing_if = "Option::is_none")]
    best_cpus: Option<f64>,
    /// The most that any number of CPUs does.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak: Option<f64>,
}

/// The `--json` document.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    schema: &'static str,
    experiment: &'a str,
    quantity: &'a str,
    unit: &'a str,
    arms: Vec<Arm>,
}

/// Fits each arm of the first panel over CPUs.
///
/// # Errors
/// 2 for a file that is no result or has no such panel, 1 if no arm has three CPU counts.
pub fn run(file: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let document = Document::read(file).map_err(|e| usage(format!("--scaling {e}")))?;
    let name = shown(&file.display().to_string());
    let panel = over_cpus(&document).ok_or_else(|| {
        usage(format!("--scaling {name}: no panel over cores or cpus; try weir sim run cores --json FILE"))
    })?;
    let arms = arms(panel);
    if arms.is_empty() {
        return Err(failed(format!("--scaling {name}: no arm has three CPU counts; run it with more")));
    }
    let (experiment, quantity, unit) = (&document.experiment, &panel.title, &panel.y.label);
    if json {
        let answer = Answer { schema: "weir.scaling/1", experiment, quantity, unit, arms };
        out::data(&format!("{}\n", serde_json::to_string(&answer)?))?;
    } else {
        out::data(&text(experiment, quantity, unit, &arms))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn over_cpus(document: &Document) -> Option<&Panel> {
    let of_cpus = |panel: &&Panel| matches!(panel.x.label.as_str(), "cores" | "cpus" | "CPUs");
    document.panels.iter().filter(|panel| panel.x.names.is_empty()).find(of_cpus)
}

fn arms(panel: &Panel) -> Vec<Arm> {
    let lines = panel.lines.iter().filter(|line| !line.bound && !line.reference);
    let arm = |line: &results::Line| {
        let points: Vec<(f64, f64)> = line.marks.iter().map(|mark| (mark.x, mark.y)).collect();
        let law = Scaling::fit(&points)?;
        Some(Arm {
            name: line.name.clone(),
            law,
            residual: law.residual(&points),
            points: points.len(),
            best_cpus: law.best(),
            peak: law.peak(),
        })
    };
    lines.filter_map(arm).collect()
}

fn text(experiment: &str, quantity: &str, unit: &str, arms: &[Arm]) -> String {
    let mut text = format!("{}: {} over CPUs, {}\n\n", shown(experiment), shown(quantity), shown(unit));
    text += &format!(
        "{:<20}{:>10}{:>9}{:>10}{:>9}{:>11}{:>10}\n",
        "arm", "one CPU", "sigma", "kappa", "peak at", "peak", "residual"
    );
    for arm in arms {
        let best = arm.best_cpus.map_or("none".into(), |cpus| format!("{cpus:.0}"));
        let peak = arm.peak.map_or("none".into(), |peak| format!("{peak:.0}"));
        let name: String = shown(&arm.name).chars().take(19).collect();
        text += &format!(
            "{name:<20}{:>10.0}{:>9.4}{:>10.6}{best:>9}{peak:>11}{:>8.1} %\n",
            arm.law.lambda,
            arm.law.sigma,
            arm.law.kappa,
            100.0 * arm.residual
        );
    }
    let law = "X(N) = X(1) N / (1 + sigma (N - 1) + kappa N (N - 1)). sigma: what is done one after another; kappa: what \
               each CPU pays for each other one. A residual of more than 10 % says that the law does not hold here: \
               something else, such as a full link, ends the curve.";
    text + &format!("\n{}\n", wrap(law, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::WIDTH;
    use results::{Mark, Scale};

    fn panel() -> Panel {
        let law = Scaling { lambda: 1000.0, sigma: 0.02, kappa: 0.001 };
        let mut panel = Panel {
            title: "requests".into(),
            x: Scale::of("cores", 0, true),
            y: Scale::of("/s", 0, false),
            ..Panel::default()
        };
        for n in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0] {
            panel.add("multi", Mark::of(n, &[law.throughput(n)]));
            panel.add("normal", Mark::of(n, &[(1000.0 * n).min(3000.0)]));
        }
        panel.add("once", Mark::of(1.0, &[1000.0]));
        panel
    }

    #[test]
    fn arms_have_their_law_and_its_residual() {
        let arms = arms(&panel());
        assert_eq!(arms.iter().map(|a| a.name.as_str()).collect::<Vec<_>>(), ["multi", "normal"]);
        assert!((arms[0].law.sigma - 0.02).abs() < 1e-6 && arms[0].residual < 1e-6);
        assert!((arms[0].best_cpus.unwrap() - 31.3).abs() < 0.1, "{arms:?}");
        // A link that is full is no such law, and the residual says so.
        assert!(arms[1].residual > 0.1, "{arms:?}");
        let text = text("cores", "requests", "/s", &arms);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn only_panels_over_cpus_count() {
        let other = Panel { x: Scale::of("offered, /s", 0, false), ..panel() };
        let mut document = Document::new("cores", results::Backend::Sim);
        document.panels.push(other);
        assert_eq!(over_cpus(&document), None);
        document.panels.push(panel());
        assert!(over_cpus(&document).is_some());
    }
}
