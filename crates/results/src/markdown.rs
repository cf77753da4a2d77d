//! Tables of pages, made of results. On a page a line
//!
//! `<!-- table RESULT: TITLE -->`
//!
//! is followed by the table of the panel with that title, up to the line `<!-- end -->`. A `*` in the title stands for any text:
//! then each panel that fits has a row per arm. Goodput over offered rate is the panel `goodput`, `goodput with 4 hogs` beside hogs.

use std::collections::BTreeMap;

use crate::document::Document;
use crate::panel::{Line, Mark, Panel, Scale};
use crate::{format, table};

/// Begin of a line after which there is a table.
const TABLE: &str = "<!-- table ";
/// The line behind it.
const END: &str = "<!-- end -->";

/// The page with its tables as the results have them; `read` has a result by the name on the page.
///
/// # Errors
/// Which line of the page is wrong, and why.
pub fn page(text: &str, mut read: impl FnMut(&str) -> Result<Document, String>) -> Result<String, String> {
    let mut made = String::new();
    let mut results: BTreeMap<String, Document> = BTreeMap::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        made += line;
        made.push('\n');
        let Some(given) = line.strip_prefix(TABLE) else { continue };
        let wrong = |why: &str| format!("line {}: {why}", number + 1);
        let given = given.strip_suffix(" -->").ok_or_else(|| wrong("no --> at its end"))?;
        let (name, title) = given.split_once(": ").ok_or_else(|| wrong("not RESULT: TITLE"))?;
        if !results.contains_key(name) {
            results.insert(name.to_owned(), read(name).map_err(|why| wrong(&why))?);
        }
        made += &rows(&results[name], title).ok_or_else(|| wrong(&format!("{name} has no panel {title}")))?;
        if !lines.any(|(_, line)| line == END) {
            return Err(wrong(&format!("no line {END} behind it")));
        }
        made += END;
        made.push('\n');
    }
    Ok(made)
}

fn rows(document: &Document, title: &str) -> Option<String> {
    let goodput = goodput(document);
    let panels = || document.panels.iter().chain(&goodput);
    let Some((before, after)) = title.split_once('*') else {
        let panel = panels().find(|panel| panel.title == title)?;
        let mut text = head(&[&format!("{title}, {}", panel.y.label)], panel, &panel.columns());
        measured(panel).for_each(|line| text += &row(&[&line.name], panel, line, &panel.columns()));
        return Some(text);
    };
    let fitting: Vec<(&str, &Panel)> = panels()
        .filter_map(|panel| Some((panel.title.strip_prefix(before)?.strip_suffix(after)?, panel)))
        .collect();
    let (_, first) = fitting.first()?;
    let mut columns: Vec<f64> = fitting.iter().flat_map(|(_, panel)| panel.columns()).collect();
    columns.sort_by(f64::total_cmp);
    columns.dedup();
    let mut text = head(&[&format!("{}, {}", title.replace('*', "..."), first.y.label), ""], first, &columns);
    for (name, panel) in &fitting {
        for (nth, line) in measured(panel).enumerate() {
            text += &row(&[if nth == 0 { name } else { "" }, &line.name], panel, line, &columns);
        }
    }
    Some(text)
}

fn measured(panel: &Panel) -> impl Iterator<Item = &Line> {
    panel.lines.iter().filter(|line| !line.bound && !line.reference)
}

fn head(first: &[&str], panel: &Panel, columns: &[f64]) -> String {
    // `flood, k/s`: the unit stands with each number, in a form that leaves room.
    let unit = panel.x.label.rsplit_once(", ").map_or("", |(_, unit)| unit);
    let column = |x: &f64| match unit {
        _ if !panel.x.names.is_empty() => panel.x.show(*x),
        "packets/s" => format!("{} k/s", format::trimmed(x / 1000.0, 3)),
        _ => format!("{} {unit}", grouped(&panel.x.show(*x))).trim_end().to_owned(),
    };
    let first = first.iter().map(|text| text.replace(", per second", ", /s"));
    let cells: Vec<String> = first.chain(columns.iter().map(column)).collect();
    format!("| {} |\n|{}\n", cells.join(" | "), " --- |".repeat(cells.len()))
}

fn row(first: &[&str], panel: &Panel, line: &Line, columns: &[f64]) -> String {
    let cells = columns.iter().map(|x| grouped(&panel.cell(line, *x)));
    let cells: Vec<String> = first.iter().map(|s| (*s).to_owned()).chain(cells).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Thousands apart: `12,345.6`.
fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    if !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return number.to_owned();
    }
    let mut text = String::new();
    for (nth, digit) in whole.chars().enumerate() {
        if nth > 0 && (whole.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// Goodput over offered rate as panels, one per number of hogs.
fn goodput(document: &Document) -> Vec<Panel> {
    let panel = |hogs: u32| {
        let rates = table::rates(document, hogs);
        let names: Vec<&str> = rates.iter().map(|rate| rate.label.as_str()).collect();
        let beside = if hogs == 0 { String::new() } else { format!(" {}", table::with_hogs(hogs)) };
        let mut panel = Panel {
            title: format!("goodput{beside}"),
            x: Scale::named("offered", &names),
            y: Scale::of("k/s", 0, false),
            ..Panel::default()
        };
        for arm in &document.arms {
            for (nth, rate) in rates.iter().enumerate() {
                let point = table::at(arm, hogs, rate).filter(|point| point.void.is_none());
                let y = |pps: f64| pps / 1000.0;
                panel.add(
                    &arm.name,
                    point.map(|p| Mark { x: nth as f64, y: y(p.goodput_pps), ..Mark::default() }),
                );
            }
        }
        panel
    };
    table::hog_counts(document).into_iter().map(panel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Backend;

    fn document() -> Document {
        let mut document = Document::new("innocents", Backend::Kernel);
        for (kind, y) in [("reader", 99.5), ("hung", 12_345.25)] {
            let mut panel = Panel {
                title: format!("answered beside {kind}"),
                x: Scale::of("flood, k/s", 0, true),
                y: Scale::of("%", 2, false),
                ..Panel::default()
            };
            panel.add("weir", Mark::of(1000.0, &[y]));
            panel.add("P11", Mark::of(1000.0, &[99.0]));
            panel.lines[1].bound = true;
            document.panels.push(panel);
        }
        document
    }

    fn made(text: &str) -> Result<String, String> {
        page(text, |name| if name == "r.json" { Ok(document()) } else { Err(format!("no {name}")) })
    }

    #[test]
    fn what_is_between_the_marks_is_made_and_the_rest_is_kept() {
        let text =
            "# A page\n\n<!-- table r.json: answered beside reader -->\n| old |\n<!-- end -->\nText.\n";
        let expected = "# A page\n\n<!-- table r.json: answered beside reader -->\n\
                        | answered beside reader, % | 1,000 k/s |\n| --- | --- |\n| weir | 99.50 |\n\
                        <!-- end -->\nText.\n";
        assert_eq!(made(text).as_deref(), Ok(expected));
        assert_eq!(made(expected).as_deref(), Ok(expected));
    }

    #[test]
    fn a_star_is_a_row_per_panel() {
        let text = made("<!-- table r.json: answered beside * -->\n<!-- end -->\n").unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[1], "| answered beside ..., % |  | 1,000 k/s |");
        assert_eq!(rows[3..5], ["| reader | weir | 99.50 |", "| hung | weir | 12,345.25 |"]);
    }

    #[test]
    fn what_cannot_be_made_has_its_line() {
        for (text, why) in [
            ("\n<!-- table x.json: a -->\n<!-- end -->", "line 2: no x.json"),
            ("<!-- table r.json: a -->\n<!-- end -->", "line 1: r.json has no panel a"),
            ("<!-- table r.json -->\n<!-- end -->", "line 1: not RESULT: TITLE"),
            ("<!-- table r.json: answered beside reader -->\n", "line 1: no line <!-- end --> behind it"),
        ] {
            assert_eq!(made(text).unwrap_err(), why);
        }
    }
}
