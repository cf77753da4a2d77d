//! Traces: when packets arrived somewhere, as text beside a scenario.

use super::LOAD_MAX;
use super::item::{Fault, Text};
use crate::settings::{Given, Time, Value};
use crate::source::{FRAMES_MAX, Trace};

/// Bytes of the longest trace that is read.
pub const TRACE_MAX: u64 = 32 * 1024 * 1024;

/// The trace in `text`.
///
/// # Errors
/// The first line that is wrong, with the fix.
pub(super) fn read(text: Text<'_>) -> Result<Trace, Fault> {
    let mut frames: Vec<(u64, u32)> = Vec::new();
    let mut start = 0;
    for line in text.text.split_inclusive('\n') {
        let begin = start;
        start += line.len();
        let line = line.trim_end();
        if line.trim_start().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let wrong = |why: &str| text.fault(&(begin..begin + line.len()), why);
        let mut words = line.split_whitespace();
        let (Some(time), Some(bytes), None) = (words.next(), words.next(), words.next()) else {
            return Err(wrong("not a time and a number of bytes; write it as 67.2us 60"));
        };
        let Time(at) =
            Time::read(&Given::Text(time.to_owned())).map_err(|why| wrong(&format!("{time}: {why}")))?;
        let bytes = bytes.parse().ok().filter(|bytes| (1..=65_535).contains(bytes));
        let bytes = bytes.ok_or_else(|| wrong("bytes out of range; give 1 to 65535"))?;
        if at > LOAD_MAX {
            return Err(wrong("time out of range; give at most 3600s"));
        }
        if frames.last().is_some_and(|(last, _)| at < *last) {
            return Err(wrong("before the frame above it; sort the lines by time"));
        }
        if frames.len() == FRAMES_MAX {
            return Err(wrong(&format!("more than {FRAMES_MAX} frames; make the trace shorter")));
        }
        frames.push((at, bytes));
    }
    let end = text.text.len().saturating_sub(1)..text.text.len();
    Trace::new(frames).ok_or_else(|| text.fault(&end, "no rate; give two frames at different times"))
}
