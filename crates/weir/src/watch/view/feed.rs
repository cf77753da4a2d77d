//! Where snapshots come from: a thread that reads this host, or a recording.

use crate::error::failed;
use crate::out::shown;
use crate::watch::Host;
use crate::watch::replay::{self, LINE_MAX, Line, next_line};
use see::Snapshot;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most intervals of a recording that are shown: eleven days at the default interval.
const INTERVALS_MAX: usize = 1_000_000;
/// Most bytes of a recording that are read for the curves after a jump.
const PAST_MAX: u64 = 4 * 1024 * 1024;

/// One place for what was made last; what nobody took in time is replaced.
pub struct Slot<T>(Mutex<Option<T>>);

impl<T> Slot<T> {
    /// An empty one.
    pub fn new() -> Slot<T> {
        Slot(Mutex::new(None))
    }

    /// Puts `value` there.
    pub fn put(&self, value: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    }

    /// Takes what is there.
    pub fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What the thread that reads this host shares with the view.
pub struct Live {
    /// The newest interval.
    pub newest: Slot<Arc<Snapshot>>,
    /// Ends the thread, at most 50 ms later.
    pub stop: Arc<AtomicBool>,
    /// Bytes written to the recording.
    pub recorded: AtomicU64,
}

/// Reads this host every `interval` until told to stop, whatever the terminal does; `wake` is called after each
/// interval.
///
/// # Errors
/// If the kernel shows no counters any more, or the recording cannot be written.
pub fn sample(
    live: &Live,
    host: &mut Host,
    interval: Duration,
    record: &mut Option<File>,
    wake: impl Fn(),
) -> anyhow::Result<()> {
    let mut next = Instant::now() + interval;
    while crate::watch::sleep_until(next, &live.stop) {
        let snapshot = host.sample()?;
        if let Some(file) = record {
            let line = format!("{}\n", serde_json::to_string(&snapshot)?);
            file.write_all(line.as_bytes()).map_err(|e| failed(format!("--record: {e}")))?;
            live.recorded.fetch_add(line.len() as u64, Ordering::Relaxed);
        }
        live.newest.put(Arc::new(snapshot));
        wake();
        next = (next + interval).max(Instant::now());
    }
    Ok(())
}

/// A recording in which one can go back and forth. It keeps the places of its lines, not the lines.
pub struct Recording {
    file: BufReader<File>,
    name: String,
    /// Where each line begins, and the end of the last one, bytes.
    places: Vec<u64>,
    /// Lines of more than [`LINE_MAX`] bytes; they keep their places, but cannot be read.
    too_long: u64,
}

impl Recording {
    /// Looks for the lines of a file and reads the first one that is not too long.
    ///
    /// # Errors
    /// 2 if it cannot be read or is no recording.
    pub fn open(path: &Path) -> anyhow::Result<Recording> {
        let name = shown(&path.display().to_string());
        let file = File::open(path).map_err(|e| replay::unusable(&name, &e))?;
        let mut recording = Recording { file: BufReader::new(file), name, places: vec![0], too_long: 0 };
        let (mut line, mut first, mut end) = (Vec::new(), None, 0);
        while recording.len() < INTERVALS_MAX {
            let read = next_line(&mut recording.file, &mut line);
            let (what, bytes) = read.map_err(|e| replay::unusable(&recording.name, &e))?;
            match what {
                // What was cut off at the end is none.
                Line::Cut | Line::End => break,
                Line::TooLong => recording.too_long += 1,
                Line::Whole => first = first.or(Some(recording.len())),
            }
            end += bytes;
            recording.places.push(end);
        }
        match first {
            Some(first) => recording.read(first).map(|_| recording),
            None => Err(replay::nothing_in(&recording.name, recording.too_long)),
        }
    }

    /// Says what could not be shown.
    pub fn tell(&self) {
        replay::tell_too_long("--replay", &self.name, self.too_long);
    }

    /// Intervals; one that was cut off at the end is none.
    pub fn len(&self) -> usize {
        self.places.len() - 1
    }

    /// Interval `at`, from 0; below [`Recording::len`].
    ///
    /// # Errors
    /// 2 if the line is no snapshot, 1 if it cannot be read.
    pub fn read(&mut self, at: usize) -> anyhow::Result<Snapshot> {
        let (Some(begin), Some(end)) = (self.places.get(at), self.places.get(at + 1)) else {
            return Err(failed(format!("--replay {}: it has no line {}", self.name, at + 1)));
        };
        let size = end - begin;
        if size > LINE_MAX as u64 {
            return Err(failed(format!("line {} has more than 16 MiB: skipped", at + 1)));
        }
        let mut line = Vec::new();
        self.file
            .seek(SeekFrom::Start(*begin))
            .and_then(|_| self.file.by_ref().take(size).read_to_end(&mut line))
            .map_err(|e| failed(format!("--replay {}: {e}", self.name)))?;
        replay::parse(&line, &self.name, at + 1)
    }
}

/// Intervals before `at`, the oldest first, as many as [`PAST_MAX`] and `most` allow; what cannot be read is left out.
pub fn past(recording: &mut Recording, at: usize, most: usize) -> Vec<Arc<Snapshot>> {
    let from =
        |first: &usize| recording.places.get(at).zip(recording.places.get(*first)).map_or(0, |(b, a)| b - a);
    let first = (at.saturating_sub(most)..at).find(|first| from(first) <= PAST_MAX).unwrap_or(at);
    (first..at).filter_map(|at| recording.read(at).ok()).map(Arc::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(n: usize) -> String {
        let one = |i| Snapshot { schema: see::SCHEMA.into(), time_s: i as f64, ..Snapshot::default() };
        (0..n).map(|i| serde_json::to_string(&one(i)).unwrap() + "\n").collect()
    }

    fn open(text: &str) -> anyhow::Result<Recording> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Recording::open(file.path())
    }

    #[test]
    fn back_and_forth() {
        let mut recording = open(&lines(5)).unwrap();
        assert_eq!(recording.len(), 5);
        for at in [4, 0, 2, 2, 1] {
            assert_eq!(recording.read(at).unwrap().time_s, at as f64);
        }
        assert!(recording.read(5).is_err());
    }

    #[test]
    fn what_was_before_a_jump() {
        let mut recording = open(&lines(5)).unwrap();
        let times = |past: Vec<Arc<Snapshot>>| past.iter().map(|s| s.time_s).collect::<Vec<_>>();
        assert_eq!(times(past(&mut recording, 3, 2)), [1.0, 2.0]);
        assert_eq!(times(past(&mut recording, 4, 100)), [0.0, 1.0, 2.0, 3.0]);
        assert!(past(&mut recording, 0, 2).is_empty());
        let long =
            format!("{{\"schema\":\"weir.watch/1\",\"host\":\"{}\"}}\n", "x".repeat(PAST_MAX as usize / 2));
        let mut recording = open(&long.repeat(3)).unwrap();
        assert_eq!(past(&mut recording, 2, 100).len(), 1, "no more than {PAST_MAX} bytes");
    }

    #[test]
    fn a_line_that_was_cut_off_is_left_out_and_one_that_is_broken_is_named() {
        let text = lines(3);
        assert_eq!(open(&text[..text.len() - 4]).unwrap().len(), 2);
        let mut broken = open(&(lines(1) + "{\n" + &lines(1))).unwrap();
        assert_eq!(broken.len(), 3);
        assert!(broken.read(1).unwrap_err().to_string().contains("line 2 is no snapshot"));
        assert!(broken.read(2).is_ok());
        for text in ["", "x", "{\"schema\":\"weir.lab/1\"}\n", "\n"] {
            let error = open(text).err().unwrap().to_string();
            assert!(error.contains("give a file of --record"), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_keeps_its_place_and_is_named() {
        let long = "x".repeat(LINE_MAX) + "\n";
        let mut recording = open(&(long.clone() + &lines(2))).unwrap();
        assert_eq!((recording.len(), recording.too_long), (3, 1));
        assert!(recording.read(0).unwrap_err().to_string().contains("line 1 has more than 16 MiB"));
        assert_eq!(recording.read(2).unwrap().time_s, 1.0);
        let times: Vec<f64> = past(&mut recording, 2, 100).iter().map(|s| s.time_s).collect();
        assert_eq!(times, [0.0]);
        let error = open(&long).err().unwrap().to_string();
        assert!(error.contains("no interval is in it but 1 line of more than 16 MiB"), "{error}");
    }

    #[test]
    fn the_slot_has_the_newest() {
        let slot = Slot::new();
        slot.put(1);
        slot.put(2);
        assert_eq!((slot.take(), slot.take()), (Some(2), None));
    }
}
