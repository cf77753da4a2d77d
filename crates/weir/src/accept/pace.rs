//! When `weir accept` searches, what it forgets and how much it says: bounded, whatever the users of the host open and close.

use kern::accept::Key;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Between two searches when nothing has happened, while something happens, and for how long that is.
const CALM: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_millis(100);
pub const LIVELY: Duration = Duration::from_secs(3);
/// Between two searches while something happens all the time.
const LEAN: Duration = Duration::from_secs(1);
/// Searches after [`SOON`] that may be made at once; one comes back each second.
const CREDIT: u64 = 100;
/// A group that has been gone for so long is forgotten. Nothing is to be detached from it.
pub const GONE: Duration = Duration::from_secs(60);
/// Most groups of which something is said once.
const SAID_MAX: usize = 256;
/// Most other lines in a minute.
const LINES_MAX: u32 = 60;
const MINUTE: Duration = Duration::from_secs(60);

/// When to search.
#[derive(Debug)]
pub struct Pace {
    next: Instant,
    last: Instant,
    lively: Instant,
    gap: Duration,
    credit: u64,
    credited: Instant,
}

impl Pace {
    pub fn new(now: Instant) -> Pace {
        Pace { next: now + SOON, last: now, lively: now, gap: SOON, credit: CREDIT, credited: now }
    }

    /// Something has happened: searches come soon for a while.
    pub fn event(&mut self, now: Instant) {
        self.lively = now + LIVELY;
        self.gap = SOON;
        if self.credit > 0 {
            self.next = self.next.min(self.last + SOON);
        }
    }

    /// True if a search is due, which is to be made then. Without an event they become rarer.
    pub fn due(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        let seconds = now.saturating_duration_since(self.credited).as_secs();
        self.credited += Duration::from_secs(seconds);
        self.credit = (self.credit + seconds).min(CREDIT);
        self.gap = match (now < self.lively, self.credit > 0) {
            (true, true) => SOON,
            (true, false) => LEAN,
            (false, _) => (self.gap * 2).min(CALM),
        };
        if self.gap == SOON {
            self.credit -= 1;
        }
        self.last = now;
        self.next = now + self.gap;
        true
    }
}

/// What is wrong with one group: that it is still so is no event.
#[derive(Debug, Default)]
pub struct Watch {
    ended: bool,
    /// Members that the kernel's group has, and since when they are others than are known.
    other: Option<(u32, Instant)>,
}

impl Watch {
    /// True if something has happened since the last look: a worker has ended, or the kernel has `seen` other members than are `known`;
    /// 0: it has seen none yet.
    pub fn look(&mut self, seen: u32, known: u32, ended: bool, now: Instant) -> bool {
        let before = (self.ended, self.other.map(|(seen, _)| seen));
        let since = self.other.map_or(now, |(_, since)| since);
        self.ended = ended;
        self.other = (seen != 0 && seen != known).then_some((seen, since));
        let other = self.other.map(|(seen, _)| seen);
        ended && !before.0 || other.is_some() && other != before.1
    }

    /// Members that the kernel's group has, if searches have not found them.
    pub fn stands(&self, now: Instant) -> Option<u32> {
        self.other.filter(|(_, since)| now.saturating_duration_since(*since) >= LIVELY).map(|(seen, _)| seen)
    }
}

/// Makes room for one more among at most `max`: of those that are gone the first to go is forgotten. False if all are there.
pub fn make_room<T>(all: &mut Vec<T>, max: usize, gone: impl Fn(&T) -> Option<Instant>) -> bool {
    if all.len() < max {
        return true;
    }
    let first = all.iter().enumerate().filter_map(|(at, one)| Some((gone(one)?, at))).min();
    first.map(|(_, at)| all.remove(at)).is_some()
}

/// Lines for the operator.
#[derive(Debug)]
pub struct Lines {
    said: BTreeSet<(&'static str, Key)>,
    minute: Instant,
    count: u32,
    list: Vec<String>,
}

impl Lines {
    pub fn new(now: Instant) -> Lines {
        Lines { said: BTreeSet::new(), minute: now, count: 0, list: Vec::new() }
    }

    /// A line that is said once of each group.
    pub fn once(&mut self, what: &'static str, of: Key, line: impl FnOnce() -> String) {
        if self.said.len() < SAID_MAX && self.said.insert((what, of)) {
            self.list.push(line());
        }
    }

    /// A line that may come again.
    pub fn say(&mut self, now: Instant, line: impl FnOnce() -> String) {
        if now.saturating_duration_since(self.minute) >= MINUTE {
            (self.minute, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
        match self.count {
            ..=LINES_MAX => self.list.push(line()),
            n if n == LINES_MAX + 1 => {
                self.list.push("weir: more happens than is told in this minute".into());
            }
            _ => (),
        }
    }

    /// Those since the last call.
    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    const STEP: Duration = Duration::from_millis(50);

    /// Searches in a minute whose steps have an event where `eventful` says so.
    fn searches(mut eventful: impl FnMut(Instant) -> bool) -> usize {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut count = 0;
        for step in 0..MINUTE.as_millis() / STEP.as_millis() {
            let now = start + STEP * step as u32;
            if eventful(now) {
                pace.event(now);
            }
            count += usize::from(pace.due(now));
        }
        count
    }

    #[test]
    fn what_stays_as_it_is_becomes_calm() {
        let quiet = searches(|_| false);
        assert!(quiet < 20, "{quiet}");
        // A group has gone: one event.
        let mut events = 1;
        let gone = searches(|_| std::mem::take(&mut events) > 0);
        assert!((30..60).contains(&gone), "{gone}");
        // The kernel has other members than are known, and a worker has ended, all the time.
        let mut watch = Watch::default();
        let stands = searches(|now| watch.look(4, 2, true, now));
        assert!((30..60).contains(&stands), "{stands}");
    }

    #[test]
    fn what_happens_all_the_time_is_looked_at_each_second() {
        let mut seen = 2;
        let mut watch = Watch::default();
        let count = searches(|now| {
            seen = if seen == 2 { 3 } else { 2 };
            watch.look(seen, 2, false, now)
        });
        assert!((100..240).contains(&count), "{count}");
    }

    #[test]
    fn an_event_is_followed_at_once_after_a_calm_time() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut now = start;
        while now < start + MINUTE {
            now += STEP;
            pace.due(now);
        }
        pace.event(now);
        assert!(pace.due(now.max(pace.last + SOON)));
    }

    #[test]
    fn a_mismatch_stands_until_it_is_over() {
        let now = Instant::now();
        let mut watch = Watch::default();
        assert!(!watch.look(0, 2, false, now) && !watch.look(2, 2, false, now));
        assert!(watch.look(3, 2, false, now) && !watch.look(3, 2, false, now));
        assert_eq!(watch.stands(now), None);
        assert!(watch.look(4, 2, false, now + LIVELY));
        assert_eq!(watch.stands(now + LIVELY), Some(4));
        assert!(!watch.look(2, 2, false, now + LIVELY));
        assert_eq!(watch.stands(now + LIVELY * 2), None);
        assert!(watch.look(2, 2, true, now) && !watch.look(2, 2, true, now));
    }

    fn key(netns: u32) -> Key {
        (false, netns, SocketAddr::from(([127, 0, 0, 1], 80)))
    }

    #[test]
    fn the_sixty_fifth_group_finds_room_and_lines_are_bounded() {
        let start = Instant::now();
        let (mut all, mut lines) = (Vec::new(), Lines::new(start));
        // A container restarts: each time its group is another one, and that before has gone.
        for n in 0..65u32 {
            let now = start + STEP * n;
            assert!(make_room(&mut all, 64, |one: &(u32, Option<Instant>)| one.1));
            all.iter_mut().for_each(|one| one.1 = one.1.or(Some(now)));
            all.push((n, None));
            lines.say(now, || "attached".into());
            lines.say(now, || "gone".into());
        }
        assert!(all.len() == 64 && all.iter().any(|one| one.0 == 64) && all.iter().all(|one| one.0 != 0));
        assert_eq!(lines.take().len(), LINES_MAX as usize + 1);
        lines.say(start + MINUTE, || "gone".into());
        assert_eq!(lines.take(), ["gone"]);
        // All are there: the 65th is left alone, which is said once, however often it is seen.
        all.iter_mut().for_each(|one| one.1 = None);
        for n in 0..10_000 {
            assert!(!make_room(&mut all, 64, |one| one.1));
            lines.once("full", key(n % 1000), || "left alone".into());
        }
        assert_eq!(lines.take().len(), SAID_MAX);
    }
}
