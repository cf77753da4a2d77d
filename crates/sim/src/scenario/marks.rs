//! Marks read off the papers' figures: what a curve is compared with.
//!
//! `marks/MACHINE.toml` has tables `[[series]]` with `figure`, `name`, an optional `note`, an optional `curve`, and `points`, pairs of
//! offered rate and value. A series is named `MACHINE/FIGURE/NAME`.

use super::item::{Fault, Text, entries};
use toml::de::DeValue;

/// Files of marks, by machine.
#[rustfmt::skip]
const FILES: &[(&str, &str)] = &[
    ("mogul96", include_str!("../../marks/mogul96.toml")),
    ("wu05", include_str!("../../marks/wu05.toml")),
    ("beihang13", include_str!("../../marks/beihang13.toml")),
];

/// Marks of one curve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// `MACHINE/FIGURE/NAME`.
    pub path: String,
    /// What a reader should know.
    pub note: String,
    /// Points of a curve: of a series by a setting, the error over all of them counts, and not each entry.
    pub curve: bool,
    /// Offered rate in packets/s, and the value.
    pub points: Vec<(f64, f64)>,
}

/// The series of that path; `None` if there is none.
///
/// # Errors
/// The file in the binary is wrong, which a test excludes.
pub fn series(path: &str) -> Result<Option<Series>, Fault> {
    let Some((machine, _)) = path.split_once('/') else { return Ok(None) };
    let Some((_, text)) = FILES.iter().find(|(name, _)| *name == machine) else { return Ok(None) };
    Ok(all(machine, text)?.into_iter().find(|series| series.path == path))
}

/// All series of all files.
///
/// # Errors
/// As [`series`].
pub fn all_series() -> Result<Vec<Series>, Fault> {
    let lists: Result<Vec<Vec<Series>>, Fault> = FILES.iter().map(|(name, text)| all(name, text)).collect();
    Ok(lists?.concat())
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(number) => number.as_str().parse().ok(),
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => None,
    }
}

fn all(machine: &str, text: &str) -> Result<Vec<Series>, Fault> {
    let path = format!("{machine}.toml");
    let text = Text { path: &path, text };
    let table = text.table()?;
    let mut found = Vec::new();
    for (key, span, item) in entries(text, &table) {
        let DeValue::Array(list) = item.value else { return Err(item.wrong("not an array of tables")) };
        if key != "series" {
            return Err(text.fault(&span, "unknown key; give [[series]]"));
        }
        for entry in list.iter() {
            let DeValue::Table(table) = entry.get_ref() else { return Err(item.wrong("not a table")) };
            let mut series = Series::default();
            let (mut figure, mut name) = (String::new(), String::new());
            for (key, span, item) in entries(text, table) {
                match (key, item.value) {
                    ("figure", DeValue::String(word)) => figure = word.to_string(),
                    ("name", DeValue::String(word)) => name = word.to_string(),
                    ("note", DeValue::String(word)) => series.note = word.to_string(),
                    ("curve", DeValue::Boolean(curve)) => series.curve = *curve,
                    ("points", DeValue::Array(points)) => {
                        for point in points.iter() {
                            let pair = match point.get_ref() {
                                DeValue::Array(pair) if pair.len() == 2 => {
                                    number(pair[0].get_ref()).zip(number(pair[1].get_ref()))
                                }
                                _ => None,
                            };
                            series.points.push(
                                pair.ok_or_else(|| text.fault(&point.span(), "not a pair of numbers"))?,
                            );
                        }
                    }
                    _ => {
                        return Err(
                            text.fault(&span, "unknown key; give figure, name, note, curve and points")
                        );
                    }
                }
            }
            series.path = format!("{machine}/{figure}/{name}");
            found.push(series);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_is_read_and_named_once() {
        let all = all_series().unwrap_or_else(|fault| panic!("{fault}"));
        let mut paths: Vec<&str> = all.iter().map(|series| series.path.as_str()).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), all.len());
        assert!(all.iter().all(|series| series.points.len() > 1));
        assert_eq!(series("mogul96/no/such"), Ok(None));
    }
}
