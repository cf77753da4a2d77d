//! Runs scenarios for the tests of machines, and keeps the tables of the documentation as they come out.
#![allow(dead_code, reason = "not every test uses all of it")]
#![allow(clippy::unwrap_used, reason = "a test")]

use results::Document;
use sim::scenario;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Tests of one file run side by side; the documentation is one file.
static DOCS: Mutex<()> = Mutex::new(());

/// Scenarios that a file's tests run whole, by file: `the_checkers_find_nothing` of mogul96.rs leaves them to it.
pub const WHOLE: &[(&str, &[&str])] = &[
    (
        "wu05",
        &[
            "socket-buffer",
            "cpu-share",
            "wu05-memory",
            "wu05-udp",
            "wu05-udp-200",
            "ring-refill",
            "memory-limit",
            "wu05-livelock-udp",
            "first-drop",
        ],
    ),
    (
        "beyond",
        &[
            "burst-latency",
            "trains",
            "tx-starvation",
            "tick-sampling",
            "interrupt-limit",
            "clocked",
            "alternatives",
            "fairness",
            "low-water",
            "polled-completions",
            "mogul96-weir",
            "mogul96-weir-router",
            "beihang13-weir",
            "cores",
            "modern-cores",
            "modern-quota",
            "modern-cycle-limit",
            "modern-clocked",
        ],
    ),
    ("activo07", &["cpu-net", "cpu-net-resize"]),
    ("modern", &["modern-burst", "hung-consumer", "full-consumer", "protected-flow", "refused-takeover"]),
];

/// What this file is said to run is run and checked, whatever its other tests do; they share the documents.
#[test]
fn the_checkers_find_nothing_in_what_this_file_runs() {
    for (_, names) in WHOLE.iter().filter(|(file, _)| *file == env!("CARGO_CRATE_NAME")) {
        for name in *names {
            run(name);
        }
    }
}

/// The document of the whole scenario, every packet checked. It is run once for all tests of a file.
pub fn run(name: &str) -> Document {
    static RAN: Mutex<BTreeMap<String, Arc<OnceLock<Document>>>> = Mutex::new(BTreeMap::new());
    let ran =
        Arc::clone(RAN.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default());
    ran.get_or_init(|| checked(name)).clone()
}

fn checked(name: &str) -> Document {
    check(&scenario::named(name, &[]).unwrap().unwrap_or_else(|fault| panic!("{fault}")))
}

/// The document of a scenario, every packet checked.
pub fn check(scenario: &sim::Scenario) -> Document {
    let name = &scenario.name;
    let options = sim::Options { jobs: 2, strict: true, ..sim::Options::default() };
    let ran = sim::run(scenario, &options, &AtomicBool::new(false), &|_| {});
    assert_eq!(ran.faults, Vec::<String>::new(), "{name}");
    let mut points = ran.document.arms.iter().flat_map(|arm| &arm.points);
    assert!(points.all(|point| point.unaccounted == 0), "{name}");
    ran.document
}

/// The curve of `arm` in the panel whose title begins so.
pub fn curve(document: &Document, title: &str, arm: &str) -> Vec<(f64, f64)> {
    let panel = document.panels.iter().find(|panel| panel.title.starts_with(title));
    let panel = panel.unwrap_or_else(|| panic!("no panel {title}"));
    let line = panel.lines.iter().find(|line| line.name == arm);
    line.unwrap_or_else(|| panic!("no line {arm}")).marks.iter().map(|mark| (mark.x, mark.y)).collect()
}

/// The curve's value at `x`, which it has.
pub fn at(curve: &[(f64, f64)], x: f64) -> f64 {
    curve.iter().find(|(other, _)| (other - x).abs() < 1e-6).unwrap_or_else(|| panic!("nothing at {x}")).1
}

/// The marks of a series.
pub fn marks(path: &str) -> Vec<(f64, f64)> {
    scenario::series(path).unwrap().unwrap_or_else(|| panic!("no series {path}")).points
}

/// Difference in percent of `expected`.
pub fn off(got: f64, expected: f64) -> f64 {
    100.0 * (got - expected) / expected
}

/// Root mean square of the differences at the marks, in percent of the marks' peak.
pub fn error(pairs: &[(f64, f64)]) -> f64 {
    let peak = pairs.iter().map(|(_, paper)| *paper).fold(0.0, f64::max);
    let sum: f64 = pairs.iter().map(|(got, paper)| (got - paper) * (got - paper)).sum();
    100.0 * (sum / pairs.len() as f64).sqrt() / peak
}

/// Straight between the points.
pub fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let after = points.partition_point(|(px, _)| *px < x).clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (points[after - 1], points[after]);
    y0 + (y1 - y0) * ((x - x0) / (x1 - x0)).clamp(0.0, 1.0)
}

/// The block `name` of the machine's page in docs/machines, which its first word names, is this table; with
/// `SIM_DOCS=write` it is written.
pub fn documented(name: &str, table: &str) {
    let _guard = DOCS.lock().unwrap_or_else(PoisonError::into_inner);
    let page = format!("docs/machines/{}.md", name.split(' ').next().unwrap_or_default());
    let path = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let start = text.find(&begin).unwrap_or_else(|| panic!("no block {name} in {path}")) + begin.len();
    let stop = start + text[start..].find(&end).unwrap();
    let block: String =
        table.lines().map(|line| format!("    {line}").trim_end().to_string() + "\n").collect();
    let block = format!("\n{block}\n");
    if std::env::var("SIM_DOCS").as_deref() == Ok("write") {
        std::fs::write(&path, format!("{}{block}{}", &text[..start], &text[stop..])).unwrap();
        return;
    }
    let hint = format!("{page}, {name}: run this test with SIM_DOCS=write; it is now\n{table}");
    assert_eq!(&text[start..stop], block, "{hint}");
}
