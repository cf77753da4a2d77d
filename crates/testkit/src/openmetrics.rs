//! A strict reader of OpenMetrics 1.0 text, for tests of an exposition.

use std::collections::{BTreeMap, BTreeSet};

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name with its suffix.
    pub name: String,
    /// Labels, unescaped.
    pub labels: BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    unit: String,
    parts: BTreeSet<String>,
}

/// Samples of `text` in their order.
///
/// # Errors
/// The line that breaks a rule, and which: families one after the other with type before samples, suffixes of their type, a
/// unit that ends the name, no series twice, counters not negative, escaped labels, the end mark last.
pub fn parse(text: &str) -> Result<Vec<Sample>, String> {
    let Some(text) = text.strip_suffix("# EOF\n") else { return Err("no # EOF at the end".into()) };
    let (mut samples, mut known, mut series) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let mut family = Family::default();
    for line in text.split_inclusive('\n') {
        let bad = |why: &str| format!("{why}: {line:?}");
        let Some(line) = line.strip_suffix('\n') else { return Err(bad("no end of line")) };
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let (part, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let value = words.next().ok_or_else(|| bad("no value"))?;
            if family.name != name {
                if !known.insert(name.to_owned()) {
                    return Err(bad("family begins twice"));
                }
                family = Family { name: name.to_owned(), ..Family::default() };
            }
            if !family.parts.insert(part.to_owned()) || family.parts.contains("sample") {
                return Err(bad("said twice or too late"));
            }
            match part {
                "TYPE" if ["counter", "gauge", "histogram", "info"].contains(&value) => {
                    family.kind = value.to_owned()
                }
                "UNIT" if name.ends_with(&format!("_{value}")) => family.unit = value.to_owned(),
                "HELP" if !value.trim().is_empty() => {}
                _ => return Err(bad("no such metadata")),
            }
            continue;
        }
        let sample = sample(line).ok_or_else(|| bad("no sample"))?;
        let suffixes: &[&str] = match family.kind.as_str() {
            "counter" => &["_total"],
            "info" => &["_info"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_count", "_sum"],
            _ => return Err(bad("sample without a type")),
        };
        let suffix = sample.name.strip_prefix(&family.name).unwrap_or("?");
        if !suffixes.contains(&suffix) || (suffix == "_bucket") != sample.labels.contains_key("le") {
            return Err(bad("not of this family, or the wrong suffix"));
        }
        if !sample.value.is_finite() || (family.kind != "gauge" && sample.value < 0.0) {
            return Err(bad("bad value"));
        }
        if !series.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(bad("series told twice"));
        }
        family.parts.insert("sample".into());
        samples.push(sample);
    }
    Ok(samples)
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            if !is_name(key) || labels.insert(key.to_owned(), value).is_some() {
                return None;
            }
            rest = match after.strip_prefix(',') {
                Some(more) if !more.starts_with('}') => more,
                Some(_) => return None,
                None => after,
            };
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ')?;
    let value = if value.contains(' ') { None } else { value.parse().ok() }?;
    is_name(name).then(|| Sample { name: name.to_owned(), labels, value })
}

/// A value up to its closing quote, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\n' => return None,
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('"' | '\\') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_seconds x\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total{b=\"c\\\"\\\\\"} 1.5\n# EOF\n";

    #[test]
    fn good_text_is_read() {
        let samples = parse(GOOD).unwrap();
        assert_eq!((samples[0].labels["b"].as_str(), samples[0].value), ("c\"\\", 1.5));
    }

    #[test]
    fn each_fault_is_found() {
        for (from, to) in [
            ("# EOF\n", ""),
            ("_total", ""),
            (" 1.5", " -1.5"),
            (" 1.5", " NaN"),
            (" 1.5", ""),
            ("\\\\\"}", "\\\"}"),
            ("# TYPE a_seconds counter\n", ""),
            ("# UNIT a_seconds seconds", "# UNIT a_seconds bytes"),
            ("# EOF", "a_seconds_total{b=\"c\\\"\\\\\"} 2\n# EOF"),
            ("# EOF", "# TYPE a_seconds counter\n# EOF"),
            ("b=", "1b="),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD);
            assert!(parse(&text).is_err(), "{text}");
        }
    }
}
