//! Lines for the operator, as many of them as policy lets through.

use kern::accept::Key;
use policy::Nanos;
use policy::accept::said::{Minute, Once, Say};

/// Lines that wait to be printed.
#[derive(Debug)]
pub struct Lines {
    once: Once<(&'static str, Key)>,
    minute: Minute,
    list: Vec<String>,
}

impl Lines {
    pub fn new(now: Nanos) -> Lines {
        Lines { once: Once::default(), minute: Minute::new(now), list: Vec::new() }
    }

    /// A line that is said once of each group.
    pub fn once(&mut self, what: &'static str, of: Key, line: impl FnOnce() -> String) {
        if self.once.is_new((what, of)) {
            self.list.push(line());
        }
    }

    /// A line that may come again.
    pub fn say(&mut self, now: Nanos, line: impl FnOnce() -> String) {
        match self.minute.line(now) {
            Say::Line => self.list.push(line()),
            Say::More => self.list.push("weir: more happens than is told in this minute".into()),
            Say::Nothing => {}
        }
    }

    /// Those since the last call.
    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.list)
    }
}
