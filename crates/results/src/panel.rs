//! One measured quantity over one variable, by arm: printed as a table and drawn as a chart. For experiments whose
//! result is not goodput over offered rate.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};
use serde::{Deserialize, Serialize};

use crate::chart::{Axis, Chart, Size};
use crate::document::{Arm, Document, Role};
use crate::{format, stats, style, table};

/// Most panels of a document.
pub const MAX_PANELS: usize = 64;
/// Most lines of a panel.
pub const MAX_LINES: usize = 64;
/// Most marks of a line.
pub const MAX_MARKS: usize = 1024;

/// Width of a line's name and of a column in the terminal.
const NAME: usize = 20;
const COLUMN: usize = 8;
/// Lowest value on a logarithmic axis, as a share of the highest: zero has no place there.
const DECADES: f64 = 1e-5;

/// One quantity over one variable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// What is shown, such as `loss of the protected flow`.
    pub title: String,
    /// The variable.
    pub x: Scale,
    /// The quantity.
    pub y: Scale,
    /// One per arm, and bounds.
    pub lines: Vec<Line>,
    /// What a reader must know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A variable or a quantity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Name and unit.
    pub label: String,
    /// Drawn on a logarithmic axis.
    #[serde(default)]
    pub log: bool,
    /// Digits after the point.
    #[serde(default)]
    pub digits: u8,
    /// Names of the values 0, 1, 2, ... of a variable that is no number; then there is no chart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// One line of a panel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The arm, or what the line says.
    pub name: String,
    /// A bound that is claimed, not a measurement.
    #[serde(default)]
    pub bound: bool,
    /// Marks of a published figure: drawn over the line of the same name, in no table.
    #[serde(default, skip_serializing_if = "crate::measure::is_false")]
    pub reference: bool,
    /// By rising x.
    pub marks: Vec<Mark>,
}

/// One value of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// The variable.
    pub x: f64,
    /// Median of the trials.
    pub y: f64,
    /// Lowest and highest of the trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// See `low`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

impl Scale {
    /// A variable or quantity that is a number.
    #[must_use]
    pub fn of(label: &str, digits: u8, log: bool) -> Scale {
        Scale { label: label.into(), log, digits, names: Vec::new() }
    }

    /// A variable whose values have names.
    #[must_use]
    pub fn named(label: &str, names: &[&str]) -> Scale {
        let names = names.iter().map(|name| (*name).to_string()).collect();
        Scale { label: label.into(), names, ..Scale::default() }
    }

    pub(crate) fn show(&self, value: f64) -> String {
        match self.names.get(value as usize) {
            Some(name) if !self.names.is_empty() => name.clone(),
            _ => format::trimmed(value, usize::from(self.digits)),
        }
    }
}

impl Mark {
    /// The median of trials with its spread; `None` without a trial.
    #[must_use]
    pub fn of(x: f64, trials: &[f64]) -> Option<Mark> {
        let (y, spread) = (stats::median(trials)?, stats::spread(trials)?);
        Some(Mark { x, y, low: Some(spread.min), high: Some(spread.max) })
    }
}

impl Panel {
    /// Adds a mark to the line of that name, which is made if it is not there.
    pub fn add(&mut self, line: &str, mark: Option<Mark>) {
        let Some(mark) = mark else { return };
        if !self.lines.iter().any(|l| l.name == line) {
            self.lines.push(Line { name: line.into(), ..Line::default() });
        }
        if let Some(line) = self.lines.iter_mut().find(|l| l.name == line) {
            line.marks.push(mark);
        }
    }

    /// The value of a line at `x`.
    #[must_use]
    pub fn at(&self, line: &str, x: f64) -> Option<f64> {
        let line = self.lines.iter().find(|l| l.name == line)?;
        line.marks.iter().find(|mark| mark.x == x).map(|mark| mark.y)
    }

    /// What is too much, if anything is.
    pub(crate) fn excess(&self) -> Option<String> {
        let marks = self.lines.iter().map(|line| line.marks.len()).max().unwrap_or(0);
        (self.lines.len() > MAX_LINES || marks > MAX_MARKS)
            .then(|| format!("a panel has more than {MAX_LINES} lines or {MAX_MARKS} marks"))
    }

    pub(crate) fn columns(&self) -> Vec<f64> {
        let mut all: Vec<f64> = self
            .lines
            .iter()
            .filter(|l| !l.bound && !l.reference)
            .flat_map(|l| l.marks.iter().map(|mark| mark.x))
            .collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    }

    pub(crate) fn cell(&self, line: &Line, x: f64) -> String {
        let mark = line.marks.iter().find(|mark| mark.x == x);
        mark.map_or("-".to_string(), |mark| format!("{:.*}", usize::from(self.y.digits), mark.y))
    }

    /// For the terminal. Columns that do not fit are left for the other forms.
    pub(crate) fn text(&self, out: &mut String) {
        let mut columns = self.columns();
        // A column is as wide as its widest value and a blank.
        let lines = || self.lines.iter().filter(|line| !line.reference);
        let cells = lines().flat_map(|line| columns.iter().map(|x| self.cell(line, *x).len()));
        let column = cells.max().map_or(COLUMN, |widest| COLUMN.max(widest + 1));
        let most = (table::WIDTH - NAME) / column;
        let left_out = columns.len().saturating_sub(most);
        columns.truncate(most);
        let _ = writeln!(out, "\n{}, {}", self.title, self.y.label);
        let mut head = cut(&self.x.label, NAME - 1);
        head = format!("{head:<NAME$}");
        columns.iter().for_each(|x| head += &format!("{:>column$}", cut(&self.x.show(*x), column - 1)));
        out.push_str(head.trim_end());
        out.push('\n');
        for line in lines() {
            let mut row = format!("{:<NAME$}", cut(&line.name, NAME - 1));
            columns.iter().for_each(|x| row += &format!("{:>column$}", self.cell(line, *x)));
            out.push_str(row.trim_end());
            out.push('\n');
        }
        if left_out > 0 {
            let _ = writeln!(out, "{left_out} more columns are in --json and --html");
        }
        if let Some(note) = &self.note {
            table::wrap(out, "", note);
        }
    }

    /// For the report: the chart, if the variable is a number, and the table.
    pub(crate) fn markup(&self, document: &Document, nth: usize) -> Markup {
        let columns = self.columns();
        html! {
            section {
                h2 { (self.title) ", " (self.y.label) }
                @if let Some(svg) = self.svg(document, Size::WIDE, &format!("panel-{nth}-w")) { div.wide { (PreEscaped(svg)) } }
                @if let Some(svg) = self.svg(document, Size::NARROW, &format!("panel-{nth}-n")) { div.narrow { (PreEscaped(svg)) } }
                div.scroll { table.points {
                    thead { tr { th { (self.x.label) } @for x in &columns { th.n { (self.x.show(*x)) } } } }
                    tbody {
                        @for line in self.lines.iter().filter(|line| !line.reference) {
                            tr { td { (line.name) } @for x in &columns { td.n { (self.cell(line, *x)) } } }
                        }
                    }
                } }
                @if let Some(note) = &self.note { p { (note) } }
            }
        }
    }

    fn svg(&self, document: &Document, size: Size, id: &str) -> Option<String> {
        if !self.x.names.is_empty() {
            return None;
        }
        let marks = || self.lines.iter().flat_map(|line| &line.marks);
        let shown = |scale: &Scale, value: f64| value.is_finite() && (!scale.log || value > 0.0);
        let x: Vec<f64> = marks().map(|mark| mark.x).filter(|x| shown(&self.x, *x)).collect();
        let y: Vec<f64> = marks().map(|mark| mark.y).filter(|y| shown(&self.y, *y)).collect();
        let (x, y) = (stats::spread(&x)?, stats::spread(&y)?);
        let top = if y.max > 0.0 { y.max } else { 1.0 };
        let least = if self.y.log { y.min.max(top * DECADES) / 1.5 } else { 0.0 };
        let widest = if x.max > x.min { (x.min, x.max) } else { (x.min * 0.5, x.max * 2.0 + 1.0) };
        let axis = |scale: &Scale, min, max| Axis { label: scale.label.clone(), min, max, log: scale.log };
        let longest = self.lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
        let mut chart = Chart::new(
            size,
            axis(&self.x, widest.0, widest.1),
            axis(&self.y, least, if self.y.log { top * 1.5 } else { top * 1.08 }),
            26.0 + 7.0 * longest as f64,
        );
        for line in &self.lines {
            let arm = document.arms.iter().find(|arm| arm.name == line.name);
            let (color, dash) = match arm {
                Some(arm) => style::arm_line(&document.arms, arm),
                None if line.bound => ("var(--bad)", "5 4"),
                None => ("var(--arm2)", ""),
            };
            let ours = arm.is_some_and(|arm: &Arm| arm.role == Role::Weir);
            let drawn: Vec<&Mark> = line.marks.iter().filter(|mark| shown(&self.x, mark.x)).collect();
            let height = |value: f64| value.clamp(least, top * 1.5);
            let points: Vec<(f64, f64)> = drawn.iter().map(|mark| (mark.x, height(mark.y))).collect();
            let band: Vec<(f64, f64, f64)> = drawn
                .iter()
                .filter_map(|mark| Some((mark.x, height(mark.low?), height(mark.high?))))
                .collect();
            if points.is_empty() {
                continue;
            }
            if line.reference {
                chart.dots(&points, color, 2.6, true);
                continue;
            }
            if band.len() > 1 {
                chart.band(&band, color);
            }
            chart.line(&points, color, if ours { 3.0 } else { 1.6 }, dash);
            if !line.bound {
                chart.dots(&points, color, if ours { 3.2 } else { 1.9 }, false);
            }
            if let Some((x, y)) = points.last() {
                chart.name(*x, *y, &line.name, color, ours);
            }
        }
        let note = self.note.as_deref().unwrap_or(&self.y.label);
        Some(chart.svg(id, &format!("{} over {}", self.title, self.x.label), note))
    }
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    text.chars().take(width.saturating_sub(2)).chain("..".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Backend;

    fn panel() -> Panel {
        let mut panel = Panel {
            title: "loss of the protected flow".into(),
            x: Scale::of("flood, k/s", 0, true),
            y: Scale::of("%", 2, true),
            note: Some("A line for the reader.".into()),
            ..Panel::default()
        };
        panel.add("stock-timer", Mark::of(400.0, &[10.0, 30.0, 20.0]));
        panel.add("weir", Mark::of(400.0, &[0.0]));
        panel.add("weir", Mark::of(1600.0, &[0.25]));
        panel.add("weir", None);
        panel.lines.push(Line {
            name: "bound".into(),
            bound: true,
            marks: vec![Mark { x: 800.0, y: 1.0, ..Mark::default() }],
            ..Line::default()
        });
        panel
    }

    #[test]
    fn a_table_has_a_column_per_value_and_a_gap_for_what_is_missing() {
        let mut out = String::new();
        panel().text(&mut out);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[1], "loss of the protected flow, %");
        assert_eq!(lines[2], "flood, k/s               400    1600");
        assert_eq!(lines[3], "stock-timer            20.00       -");
        assert_eq!(lines[4], "weir                    0.00    0.25");
        assert!(lines.iter().all(|l| l.len() <= table::WIDTH));
        assert_eq!(panel().at("weir", 1600.0), Some(0.25));
    }

    #[test]
    fn wide_numbers_widen_their_columns() {
        let mut wide = panel();
        wide.add("weir", Mark::of(3200.0, &[1_234_567.25]));
        let mut out = String::new();
        wide.text(&mut out);
        let row = out.lines().find(|line| line.starts_with("weir")).unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["weir", "0.00", "0.25", "1234567.25"]);
        assert!(out.lines().all(|l| l.len() <= table::WIDTH), "{out}");
    }

    #[test]
    fn a_chart_is_drawn_for_numbers_only() {
        let mut document = Document::new("control-traffic", Backend::Kernel);
        document.panels.push(panel());
        let page = crate::html(&document).unwrap();
        assert!(page.contains("panel-0-w") && page.contains("loss of the protected flow"), "{page}");
        let mut named = panel();
        named.x = Scale::named("workload", &["a", "b"]);
        assert!(named.svg(&document, Size::WIDE, "x").is_none());
        assert_eq!(named.x.show(1.0), "b");
    }

    #[test]
    fn a_document_with_panels_reads_back_and_has_a_limit() {
        let mut document = Document::new("control-traffic", Backend::Kernel);
        document.panels.push(panel());
        let text = document.to_json().unwrap();
        assert_eq!(Document::parse(text.as_bytes(), "x").unwrap(), document);
        document.panels = vec![panel(); MAX_PANELS + 1];
        assert!(document.to_json().is_err());
    }
}
