//! Recordings: a line per interval, read one after the other.

use crate::error::{failed, usage};
use crate::out::{self, Weight, count, shown};
use see::{SCHEMA, Snapshot};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Longest line of a recording, bytes: a snapshot of 256 consumers and 1024 queues is below it.
pub const LINE_MAX: usize = 16 * 1024 * 1024;

/// What [`next_line`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line with its end.
    Whole,
    /// One without: the recording was cut off, or somebody still writes it.
    Cut,
    /// One of more than [`LINE_MAX`] bytes, skipped.
    TooLong,
    /// Nothing more.
    End,
}

/// Reads the next line, its end with it, into `line` and tells how many bytes it has. A line that is too long is read to its
/// end and not kept.
pub fn next_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<(Line, u64)> {
    line.clear();
    let mut bytes = 0u64;
    loop {
        let buffer = file.fill_buf()?;
        if buffer.is_empty() {
            let what = if bytes == 0 { Line::End } else { Line::Cut };
            return Ok((if bytes > LINE_MAX as u64 { Line::TooLong } else { what }, bytes));
        }
        let end = buffer.iter().position(|b| *b == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        bytes += used as u64;
        if bytes <= LINE_MAX as u64 {
            line.extend_from_slice(&buffer[..used]);
        } else {
            line.clear();
        }
        file.consume(used);
        if end.is_some() {
            return Ok((if bytes > LINE_MAX as u64 { Line::TooLong } else { Line::Whole }, bytes));
        }
    }
}

/// The snapshot in line `number` of the recording `name`.
pub fn parse(line: &[u8], name: &str, number: usize) -> anyhow::Result<Snapshot> {
    let snapshot: Snapshot = serde_json::from_slice(line).map_err(|e| {
        usage(format!("--replay {name}: line {number} is no snapshot ({e}); give a file of --record"))
    })?;
    if snapshot.schema != SCHEMA {
        return Err(usage(format!(
            "--replay {name}: line {number} is not {SCHEMA}; give a file of --record"
        )));
    }
    Ok(snapshot)
}

/// The error for a file that cannot be read; none of it was shown.
pub fn unusable(name: &str, why: &std::io::Error) -> anyhow::Error {
    usage(format!("--replay {name}: {why}; give a file of --record"))
}

/// The error for a recording without an interval, of which `too_long` lines were skipped.
pub fn nothing_in(name: &str, too_long: u64) -> anyhow::Error {
    let but = match too_long {
        0 => String::new(),
        n => format!(" but {} of more than 16 MiB", count(n as usize, "line")),
    };
    usage(format!("--replay {name}: no interval is in it{but}; give a file of --record"))
}

/// Says how many lines were skipped.
pub fn tell_too_long(option: &str, name: &str, too_long: u64) {
    if too_long > 0 {
        let lines = count(too_long as usize, "line");
        let what = "weir writes none that long: the file is damaged there";
        out::tell(
            Weight::Warning,
            &format!("weir: {option} {name}: {lines} of more than 16 MiB skipped; {what}"),
        );
    }
}

/// Shows each snapshot of a recording; with `last` only the last one.
///
/// # Errors
/// 2 if it is no recording or no interval is in it, 1 if it cannot be read, and those of `show`.
pub fn replay(
    path: &Path,
    last: bool,
    show: &mut impl FnMut(&Snapshot) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let name = shown(&path.display().to_string());
    let file = File::open(path).map_err(|e| unusable(&name, &e))?;
    let mut file = BufReader::new(file);
    let (mut kept, mut any, mut too_long) = (None, false, 0);
    let mut line = Vec::new();
    for number in 1.. {
        let read = next_line(&mut file, &mut line).map_err(|e| match any {
            true => failed(format!("--replay {name}: {e}")),
            // A directory can be opened and not be read.
            false => unusable(&name, &e),
        });
        match read?.0 {
            Line::End => break,
            Line::TooLong => {
                too_long += 1;
                continue;
            }
            // A recording that was cut off ends within a line: what is whole is shown.
            Line::Cut if any => break,
            Line::Cut | Line::Whole => {}
        }
        let snapshot = parse(&line, &name, number)?;
        any = true;
        match last {
            true => kept = Some(snapshot),
            false => show(&snapshot)?,
        }
    }
    if !any {
        return Err(nothing_in(&name, too_long));
    }
    tell_too_long("--replay", &name, too_long);
    kept.as_ref().map_or(Ok(()), show)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of `text`, with a buffer of a few bytes so that none is read at once.
    fn lines(text: &[u8]) -> Vec<(Line, u64, usize)> {
        let mut file = BufReader::with_capacity(5, text);
        let mut line = Vec::new();
        let mut found = Vec::new();
        loop {
            let (what, bytes) = next_line(&mut file, &mut line).unwrap();
            if what == Line::End {
                return found;
            }
            found.push((what, bytes, line.len()));
        }
    }

    #[test]
    fn lines_are_whole_or_cut_off() {
        assert_eq!(lines(b""), []);
        assert_eq!(lines(b"abcdefgh\n\nxy"), [(Line::Whole, 9, 9), (Line::Whole, 1, 1), (Line::Cut, 2, 2)]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_to_its_end() {
        let long = |n: usize| vec![b'x'; n];
        let mut text = long(LINE_MAX - 1);
        text.push(b'\n');
        assert_eq!(lines(&text), [(Line::Whole, LINE_MAX as u64, LINE_MAX)]);
        let mut text = long(LINE_MAX);
        text.extend(b"\nabc\n");
        assert_eq!(lines(&text), [(Line::TooLong, LINE_MAX as u64 + 1, 0), (Line::Whole, 4, 4)]);
        assert_eq!(lines(&long(LINE_MAX + 7)), [(Line::TooLong, LINE_MAX as u64 + 7, 0)]);
    }
}
