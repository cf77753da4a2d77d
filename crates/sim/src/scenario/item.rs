//! Texts and the values in them, with a place for every error.

use crate::settings::Given;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// What is wrong with a scenario: `file:line:column: what; fix`, then the line with a caret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

/// A text and its name, for errors.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub path: &'a str,
    pub text: &'a str,
}

impl Text<'_> {
    /// The error `message` about the bytes of `span`.
    pub(super) fn fault(&self, span: &Range<usize>, message: &str) -> Fault {
        let start = self.text.floor_char_boundary(span.start.min(self.text.len()));
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |at| start + at);
        let number = self.text[..start].matches('\n').count() + 1;
        let before = self.text[line_start..start].chars().count();
        let end = self.text.floor_char_boundary(span.end.clamp(start, line_end));
        let marked = self.text[start..end].chars().count().clamp(1, 200);
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let line: String = self.text[line_start..line_end].chars().take(200).map(printable).collect();
        let message: String = message.chars().map(printable).collect();
        let mut out = format!("{}:{number}:{}: {message}", self.path, before + 1);
        if before < 200 && !line.trim().is_empty() {
            let margin = " ".repeat(number.to_string().len());
            let (pad, caret) = (" ".repeat(before), "^".repeat(marked));
            out += &format!("\n{margin} |\n{number} | {}\n{margin} | {pad}{caret}", line.trim_end());
        }
        Fault(out)
    }

    pub(super) fn table(&self) -> Result<DeTable<'_>, Fault> {
        let table = DeTable::parse(self.text).map_err(|err| {
            let message = err.message().lines().collect::<Vec<_>>().join(", ");
            self.fault(&err.span().unwrap_or(0..0), &message)
        })?;
        Ok(table.into_inner())
    }
}

/// The nearest of `names` to `word`, if one is near.
fn nearest<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let distance = |other: &str| {
        let (a, b): (Vec<char>, Vec<char>) = (word.chars().take(64).collect(), other.chars().collect());
        let mut row: Vec<usize> = (0..=b.len()).collect();
        for (i, x) in a.iter().enumerate() {
            let mut diagonal = std::mem::replace(&mut row[0], i + 1);
            for (j, y) in b.iter().enumerate() {
                let cost = diagonal + usize::from(x != y);
                diagonal = row[j + 1];
                row[j + 1] = cost.min(row[j] + 1).min(row[j + 1] + 1);
            }
        }
        row[b.len()]
    };
    names
        .iter()
        .copied()
        .min_by_key(|name| distance(name))
        .filter(|name| distance(name) <= 2.max(name.len() / 3))
}

/// "did you mean ...?", or the choices.
pub(super) fn choose(word: &str, names: &[&str]) -> String {
    match nearest(word, names) {
        Some(name) => format!("did you mean \"{name}\"?"),
        None => format!("choose from {}", names.join(", ")),
    }
}

/// A key, its place, and its value.
pub(super) type Entry<'a> = (&'a str, Range<usize>, Item<'a>);

/// A value with its place.
pub(super) struct Item<'a> {
    pub text: Text<'a>,
    pub name: &'a str,
    pub value: &'a DeValue<'a>,
    pub span: Range<usize>,
}

impl<'a> Item<'a> {
    pub(super) fn wrong(&self, message: &str) -> Fault {
        self.text.fault(&self.span, &format!("{}: {message}", self.name))
    }

    fn with(&self, value: &'a DeValue<'a>, span: Range<usize>) -> Item<'a> {
        Item { text: self.text, name: self.name, value, span }
    }

    pub(super) fn string(&self) -> Result<&'a str, Fault> {
        match self.value {
            DeValue::String(text) => Ok(text),
            _ => Err(self.wrong("not a string; write it in double quotes")),
        }
    }

    pub(super) fn list(&self) -> Result<Vec<Item<'a>>, Fault> {
        match self.value {
            DeValue::Array(items) => {
                Ok(items.iter().map(|item| self.with(item.get_ref(), item.span())).collect())
            }
            _ => Err(self.wrong("not an array; write it in square brackets")),
        }
    }

    pub(super) fn entries(&self) -> Result<Vec<Entry<'a>>, Fault> {
        match self.value {
            DeValue::Table(table) => Ok(entries(self.text, table)),
            _ => Err(self.wrong("not a table; write [section] or { key = value }")),
        }
    }

    pub(super) fn given(&self) -> Result<Given, Fault> {
        match self.value {
            DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
                .map(Given::Number)
                .map_err(|_| self.wrong("too large")),
            DeValue::String(text) => Ok(Given::Text(text.to_string())),
            DeValue::Boolean(flag) => Ok(Given::Flag(*flag)),
            _ => Err(self.wrong("neither a whole number, a string, true nor false")),
        }
    }

    pub(super) fn whole(&self, range: std::ops::RangeInclusive<u64>) -> Result<u64, Fault> {
        let value = match self.given()? {
            Given::Number(number) => u64::try_from(number).ok().filter(|value| range.contains(value)),
            _ => return Err(self.wrong("not a whole number; write it without quotes")),
        };
        let (start, end) = (range.start(), range.end());
        value.ok_or_else(|| self.wrong(&format!("out of range; give {start} to {end}")))
    }
}

/// Entries of a table in the order of the text.
pub(super) fn entries<'a>(text: Text<'a>, table: &'a DeTable<'a>) -> Vec<Entry<'a>> {
    let mut all: Vec<_> = table
        .iter()
        .map(|(key, value)| {
            let name: &str = key.get_ref();
            (name, key.span(), Item { text, name, value: value.get_ref(), span: value.span() })
        })
        .collect();
    all.sort_by_key(|(_, span, _)| span.start);
    all
}
