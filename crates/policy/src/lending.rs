//! When a poller runs behind its programs instead of before them, so that a pause needs no sleep and no wake-up.
//!
//! On an idle CPU nobody else runs and nothing is left to read: there the poller may lend its priority to the programs that read.
//! The risk is another program that takes the CPU for long later. So a poller that has not run for [`LATE`] is promoted from
//! outside, and is not lent again for a while, twice as long each time while being lent does not last.
//!
//! # Properties
//! - After a promotion the poller is not lent for [`HOLD`] at least; the time doubles up to its limit while lending lasts less
//!   than ten times as long, and begins anew when it lasts longer.
//! - A poller is lent only on an idle CPU, and never while it looks for others' packets or other programs compete.

use crate::poller::{Poller, WakeOn};
use crate::{MILLISECOND, Nanos};

/// A poller that has not run for this long is kept from running, ns: half of the default flush timeout.
pub const LATE: Nanos = 5 * MILLISECOND / 2;
/// How often somebody looks whether a lent poller still runs, ns.
pub const LOOK: Nanos = 2 * MILLISECOND;
/// How long a poller that was kept from running is not lent, ns: at first, and at most.
pub const HOLD: (Nanos, Nanos) = (20 * MILLISECOND, 10_000 * MILLISECOND);

/// True if a lent poller is to be promoted that was last `seen` to run, or meant to run then, ns.
pub fn is_kept_from_running(now: Nanos, seen: Nanos) -> bool {
    now.saturating_sub(seen) > LATE
}

/// What a poller does when it has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It sleeps, lent or not.
    Sleep,
    /// It is not lent any more, and sleeps.
    EndAndSleep,
    /// It lets the programs run before it.
    Yield,
}

/// The state of one poller.
#[derive(Clone, Copy, Debug)]
pub struct Lending {
    hold: Nanos,
    hold_until: Nanos,
    since: Nanos,
    lent: bool,
}

impl Default for Lending {
    fn default() -> Self {
        Self { hold: HOLD.0, hold_until: 0, since: 0, lent: false }
    }
}

impl Lending {
    /// True while programs run before the poller.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// True if the poller may be lent on an idle CPU. `alone`: no other programs compete, and the poller has a priority to lend.
    pub fn may(&self, now: Nanos, poller: &Poller, alone: bool) -> bool {
        let wants = poller.was_full(now) && alone && !poller.looks(now);
        wants && !self.lent && now >= self.hold_until
    }

    /// The CPU is idle: true if the poller is lent by that.
    pub fn idle(&mut self, now: Nanos, poller: &Poller, alone: bool) -> bool {
        let lends = self.may(now, poller, alone);
        if lends {
            (self.lent, self.since) = (true, now);
        }
        lends
    }

    /// It was kept from running and has been promoted: it is not lent any more, for a while.
    pub fn promoted(&mut self, now: Nanos) {
        if self.lent {
            let lasted = now.saturating_sub(self.since) > 10 * self.hold;
            self.hold = if lasted { HOLD.0 } else { (2 * self.hold).min(HOLD.1) };
            self.hold_until = now.saturating_add(self.hold);
            self.lent = false;
        }
    }

    /// True if the poller, about to act, must not be lent any more: others' packets come. Programs that it waits for are fed
    /// what the ring has left, and are never full, so no pause would end that.
    pub fn must_end(&self, now: Nanos, poller: &Poller) -> bool {
        self.lent && poller.looks(now)
    }

    /// What to do in place of a sleep that `wake` may end.
    pub fn pause(&self, now: Nanos, poller: &Poller, wake: WakeOn, alone: bool) -> Pause {
        if wake.on_time {
            // Looks do not wait for programs.
            return Pause::EndAndSleep;
        }
        if !(wake.idle && wake.level) {
            return Pause::Sleep;
        }
        match (alone && !poller.looks(now), self.lent) {
            (false, _) => Pause::EndAndSleep,
            (true, false) => Pause::Sleep,
            (true, true) => Pause::Yield,
        }
    }

    /// It is not lent from here on; true if it was.
    pub fn end(&mut self) -> bool {
        std::mem::take(&mut self.lent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::look::{FIRST, SEEN};
    use crate::poller::{Config, Turned};
    use crate::switch::{ModeSwitch, Timing};
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    /// A poller one of whose consumers was full at 1 ms.
    fn full() -> Poller {
        let mut poller = Poller::new(Config::for_host(&Host::default()), 0);
        poller.level(MS, 0, 1000, None);
        poller
    }

    #[test]
    fn lent_on_an_idle_cpu_after_a_full_consumer_only() {
        let calm = Poller::new(Config::for_host(&Host::default()), 0);
        let mut lending = Lending::default();
        assert!(!lending.idle(2 * MS, &calm, true), "nobody was full");
        assert!(!lending.idle(2 * MS, &full(), false), "others compete");
        assert!(!lending.idle(2000 * MS, &full(), true), "long ago");
        assert!(lending.idle(2 * MS, &full(), true));
        assert!(!lending.idle(3 * MS, &full(), true), "already");
    }

    #[test]
    fn pauses() {
        let mut lending = Lending::default();
        let poller = full();
        let wake = |level, idle, on_time| WakeOn { level, idle, on_time };
        assert_eq!(lending.pause(MS, &poller, wake(true, true, false), true), Pause::Sleep);
        assert!(lending.idle(2 * MS, &poller, true));
        for (on, alone, pause) in [
            (wake(true, true, false), true, Pause::Yield),
            (wake(true, true, false), false, Pause::EndAndSleep),
            (wake(true, true, true), true, Pause::EndAndSleep),
            (wake(false, true, false), true, Pause::Sleep),
            (wake(false, false, false), false, Pause::Sleep),
        ] {
            assert_eq!(lending.pause(3 * MS, &poller, on, alone), pause, "{on:?} {alone}");
        }
        assert!(lending.end() && !lending.end());
    }

    /// An innocent is no protected packet, and comes while no consumer is full: nothing but this ends the lending then.
    #[test]
    fn a_lent_poller_ends_when_anybody_elses_packet_comes() {
        let mut poller = full();
        let source = ModeSwitch::new(Timing::default());
        poller.taken_over(MS, 0, source);
        let mut lending = Lending::default();
        assert!(lending.idle(2 * MS, &poller, true));
        let flood = Turned { packets: 32, frames: 32, known: 32, ..Turned::default() };
        poller.turned(2 * MS, 0, flood);
        let late = 3 * MS + FIRST;
        assert!(!lending.must_end(late, &poller));
        poller.turned(late, 0, Turned { known: 31, ..flood });
        assert!(lending.must_end(late, &poller) && lending.end());
        assert!(!lending.idle(late, &poller, true), "while it is looked for");
        assert!(lending.idle(late + SEEN, &poller, true), "no longer");
    }

    #[test]
    fn a_lent_poller_that_does_not_run_is_found() {
        assert!(!is_kept_from_running(LATE, 0) && is_kept_from_running(LATE + 1, 0));
        assert!(!is_kept_from_running(5, 9), "it means to run later");
    }

    proptest! {
        /// After a promotion nothing lends for the hold, which is within its limits.
        #[test]
        fn holds_after_promotions(steps in prop::collection::vec((0u64..3000, any::<bool>(), any::<bool>()), 1..200)) {
            let (mut lending, mut now, mut held) = (Lending::default(), MS, 0);
            for (gap, alone, promote) in steps {
                now += gap * MS / 4;
                let mut poller = Poller::new(Config::for_host(&Host::default()), 0);
                poller.level(now, 0, 1000, None);
                let lent = lending.idle(now, &poller, alone);
                prop_assert!(!lent || now >= held && alone);
                if promote {
                    let was = lending.is_lent();
                    lending.promoted(now);
                    prop_assert!(!lending.is_lent());
                    if was {
                        held = now + lending.hold;
                    }
                }
                prop_assert!((HOLD.0..=HOLD.1).contains(&lending.hold));
            }
        }
    }
}
