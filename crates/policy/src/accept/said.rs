//! How much `weir accept` says: bounded, whatever the users of the host open and close.
//!
//! # Properties
//! - What is said once is never said again, and of at most [`ONCE`] things.
//! - Of other lines a minute has at most [`LINES`] and one that tells of more; so any minute's span has at most twice as many.
//! - After a minute in which nothing was to be said, the next line is said.

use crate::{MILLISECOND, Nanos};

/// Most things of which something is said once.
pub const ONCE: usize = 256;
/// Most other lines in a minute.
pub const LINES: u32 = 60;
const MINUTE: Nanos = 60_000 * MILLISECOND;

/// What has been said once.
#[derive(Clone, Debug)]
pub struct Once<T> {
    said: Vec<T>,
}

impl<T: PartialEq> Default for Once<T> {
    fn default() -> Self {
        Once { said: Vec::with_capacity(ONCE) }
    }
}

impl<T: PartialEq> Once<T> {
    /// True if it is to be said now.
    pub fn is_new(&mut self, what: T) -> bool {
        let new = self.said.len() < ONCE && !self.said.contains(&what);
        if new {
            self.said.push(what);
        }
        new
    }
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// It is said.
    Line,
    /// That there is more is said instead.
    More,
    /// Nothing is.
    Nothing,
}

/// The lines of a minute.
#[derive(Clone, Debug)]
pub struct Minute {
    began: Nanos,
    count: u32,
}

impl Minute {
    /// One that begins at `now`.
    #[must_use]
    pub fn new(now: Nanos) -> Minute {
        Minute { began: now, count: 0 }
    }

    /// A line is to be said at `now`.
    pub fn line(&mut self, now: Nanos) -> Say {
        if now.saturating_sub(self.began) >= MINUTE {
            *self = Minute::new(now);
        }
        self.count = self.count.saturating_add(1);
        match self.count {
            ..=LINES => Say::Line,
            n if n == LINES + 1 => Say::More,
            _ => Say::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_said_twice(all in prop::collection::vec(0u16..600, 0..2000)) {
            let mut once = Once::default();
            let said: Vec<u16> = all.iter().copied().filter(|n| once.is_new(*n)).collect();
            let mut different = all.clone();
            different.sort_unstable();
            different.dedup();
            prop_assert_eq!(said.len(), different.len().min(ONCE));
            let mut sorted = said.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), said.len());
        }

        #[test]
        fn lines_are_bounded(waits in prop::collection::vec(prop_oneof![Just(0), 0..2 * MINUTE / 100, 0..2 * MINUTE], 0..800)) {
            let (mut now, mut minute) = (0, Minute::new(0));
            let mut said = Vec::new();
            for wait in waits {
                now += wait;
                let say = minute.line(now);
                prop_assert!(wait < MINUTE || say == Say::Line);
                if say != Say::Nothing {
                    said.push(now);
                }
            }
            for (n, &from) in said.iter().enumerate() {
                let span = said[n..].iter().take_while(|at| **at - from < MINUTE).count();
                prop_assert!(span <= 2 * (LINES as usize + 1), "{span}");
            }
        }
    }

    #[test]
    fn that_there_is_more_is_told_once_in_a_minute() {
        let mut minute = Minute::new(0);
        let said: Vec<Say> = (0..200).map(|n| minute.line(n)).collect();
        assert!(said[..LINES as usize].iter().all(|say| *say == Say::Line));
        assert_eq!(said.iter().filter(|say| **say == Say::More).count(), 1);
        assert_eq!(minute.line(MINUTE), Say::Line);
    }
}
