//! Lines for people, and the changes since the last status.

use std::collections::{BTreeMap, VecDeque};

use kern::journal::{Fate, Outcome};
use policy::Nanos;

use crate::clock;
use crate::interface::Interface;
use crate::out::{ColorWhen, Paint, Weight};
use crate::status::Change;

/// Changes kept for the next status; older ones are dropped and counted by `mode_switches` alone.
const CHANGES_MAX: usize = 256;
/// Lines of one kind about one subject: at most one in this time, ns.
const LINE_EVERY: Nanos = 1_000_000_000;
/// Subjects whose last line is remembered.
const SUBJECTS_MAX: usize = 256;

/// Lines for people, and the changes since the last status.
pub struct Log {
    quiet: bool,
    /// A setting stays as somebody else has set it.
    stays: bool,
    last: BTreeMap<(String, String), (Nanos, u64)>,
    changes: VecDeque<Change>,
    lines: VecDeque<String>,
}

impl Log {
    /// `quiet` keeps everything but warnings off standard error.
    pub fn new(quiet: bool) -> Self {
        Self { quiet, stays: false, last: BTreeMap::new(), changes: VecDeque::new(), lines: VecDeque::new() }
    }

    /// One line about `subject`; repeats within a second are counted into the next one.
    pub fn line(&mut self, kind: &str, subject: &str, text: &str) {
        let now = clock::now();
        if self.last.len() >= SUBJECTS_MAX {
            self.last.retain(|_, (at, _)| now.saturating_sub(*at) < LINE_EVERY);
        }
        if self.last.len() >= SUBJECTS_MAX {
            crate::out::left_out();
            return;
        }
        let entry = self.last.entry((kind.to_owned(), subject.to_owned())).or_insert((0, 0));
        if entry.0 != 0 && now.saturating_sub(entry.0) < LINE_EVERY {
            entry.1 += 1;
            return;
        }
        let more = match entry.1 {
            0 => String::new(),
            n => format!(" ({n} more since the last line)"),
        };
        *entry = (now, 0);
        let line = format!("{kind:<9} {subject}  {text}{more}");
        let weight = if matches!(kind, "warning" | "refused") { Weight::Warning } else { Weight::Info };
        if !self.quiet || kind == "warning" {
            crate::out::tell(weight, &line);
        }
        if self.lines.len() >= CHANGES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Changes and lines since the last call.
    pub fn take(&mut self) -> (Vec<Change>, Vec<String>) {
        (self.changes.drain(..).collect(), self.lines.drain(..).collect())
    }

    /// Changes and lines that the next [`Self::take`] will have.
    pub fn peek(&self) -> (Vec<Change>, Vec<String>) {
        (self.changes.iter().cloned().collect(), self.lines.iter().cloned().collect())
    }

    /// A change of mode at `time`, for the status and as a line.
    pub fn event(&mut self, time: Nanos, kind: &str, source: &str, why: &str) {
        if self.changes.len() >= CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(Change {
            time_ns: time,
            kind: kind.to_owned(),
            source: source.to_owned(),
            why: why.to_owned(),
        });
        self.line(kind, source, why);
    }

    /// A setting that somebody else has changed.
    pub fn left(&mut self, outcome: &Outcome) {
        if let Fate::Left { found, old } = &outcome.fate {
            self.stays = true;
            let text = format!("{} is {found}, not weir's and not {old}: left as it is", outcome.setting);
            self.line("left", &outcome.target, &text);
        }
    }

    /// What became of one setting at the end.
    pub fn outcome(&mut self, outcome: &Outcome) {
        self.stays |= matches!(outcome.fate, Fate::Left { .. });
        if self.quiet && outcome.settled() {
            return;
        }
        let weight = if outcome.settled() { Weight::Info } else { Weight::Error };
        let plain = Paint::stdout(ColorWhen::Never);
        crate::out::tell(weight, crate::outcome::line(outcome, false, plain).trim_end());
    }

    /// The last line of a guard.
    pub fn sum(&mut self, interfaces: &[Interface], complete: bool) {
        if !self.quiet {
            let names: Vec<&str> = interfaces.iter().map(|i| i.wanted.as_str()).collect();
            // It must not deny what the lines before name.
            let left = match (complete, self.stays) {
                (true, false) => "nothing left changed",
                (true, true) => "nothing else left changed",
                (false, _) => "some settings are not back",
            };
            crate::out::talk(&format!("weir: guarded {} no more; {left}", names.join(" ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing else of this program's tests leaves lines out.
    #[test]
    fn what_does_not_fit_is_counted() {
        let (mut log, before) = (Log::new(true), crate::out::dropped());
        (0..SUBJECTS_MAX + 10).for_each(|n| log.line("release", &format!("in{n}/0"), "why"));
        assert_eq!(crate::out::dropped() - before, 10);
        assert_eq!(log.take().1.len(), CHANGES_MAX);
    }
}
