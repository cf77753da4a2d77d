//! When the supervisor may hear that the guard is alive: only while every one of its threads answers. A thread
//! that hangs or has ended keeps the ping back, and the supervisor starts the guard anew.
//!
//! ```text
//! each tick: step = watchdog.step(now, slowest)
//!            step.ask  -> tell every thread the number; each stores it when it gets there
//!            step.ping -> tell the supervisor
//! ```
//!
//! # Properties
//! - A ping comes at most once per `every`, and only after every thread has answered a number asked since the last one.
//! - A thread that never answers ends the pings for good; one that answers late only delays them.

use crate::Nanos;

/// What to do now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Ask every thread for this number.
    pub ask: Option<u64>,
    /// All threads have answered: tell the supervisor.
    pub ping: bool,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Watchdog {
    every: Nanos,
    asked: u64,
    answered: bool,
    ask_at: Nanos,
}

impl Watchdog {
    /// For a supervisor that loses patience after `patience`: it hears of the guard four times as often.
    pub fn new(patience: Nanos) -> Self {
        Self { every: patience / 4, asked: 0, answered: true, ask_at: 0 }
    }

    /// What to do at `now`, when the slowest thread has answered the number `slowest` so far; `None` if one has ended.
    pub fn step(&mut self, now: Nanos, slowest: Option<u64>) -> Step {
        let mut step = Step::default();
        if !self.answered && slowest.is_some_and(|number| number >= self.asked) {
            self.answered = true;
            step.ping = true;
        }
        if self.answered && now >= self.ask_at {
            self.asked += 1;
            self.answered = false;
            self.ask_at = now.saturating_add(self.every);
            step.ask = Some(self.asked);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;
    use proptest::prelude::*;

    const PATIENCE: Nanos = 10_000 * MILLISECOND;
    const TICK: Nanos = 200 * MILLISECOND;

    /// Pings by time, if a thread answers as `answer(now, asked)` tells.
    fn pings(mut answer: impl FnMut(Nanos, u64) -> Option<u64>, ticks: u64) -> Vec<Nanos> {
        let mut watchdog = Watchdog::new(PATIENCE);
        let (mut asked, mut pings) = (0, Vec::new());
        for now in (0..ticks).map(|n| n * TICK) {
            let step = watchdog.step(now, answer(now, asked));
            asked = step.ask.unwrap_or(asked);
            if step.ping {
                pings.push(now);
            }
        }
        pings
    }

    #[test]
    fn threads_that_answer_keep_the_supervisor_quiet() {
        let heard = pings(|_, asked| Some(asked), 500);
        assert!(heard.len() > 30, "{heard:?}");
        assert!(heard.windows(2).all(|p| p[1] - p[0] <= PATIENCE / 2), "{heard:?}");
    }

    #[test]
    fn a_thread_that_hangs_or_ends_ends_the_pings() {
        let hang = 20_000 * MILLISECOND;
        let mut last = 0;
        let hung = |now, asked| {
            last = if now < hang { asked } else { last };
            Some(last)
        };
        let ended = |now, asked| (now < hang).then_some(asked);
        for heard in [pings(hung, 1000), pings(ended, 1000)] {
            assert!(!heard.is_empty() && heard.iter().all(|at| *at <= hang + TICK), "{heard:?}");
        }
        assert!(pings(|_, _| None, 1000).is_empty());
    }

    proptest! {
        /// However late the answers are: no ping without an answer to a number asked since the last ping.
        #[test]
        fn every_ping_has_its_own_answer(lags in prop::collection::vec(0u64..200, 300)) {
            let mut watchdog = Watchdog::new(PATIENCE);
            let (mut asked, mut answered, mut due) = (0, 0, 0);
            let mut pinged = 0;
            for (n, lag) in lags.iter().enumerate() {
                let now = n as Nanos * TICK;
                if now >= due {
                    answered = asked;
                }
                let step = watchdog.step(now, Some(answered));
                if step.ping {
                    prop_assert!(answered > pinged);
                    pinged = answered;
                }
                if let Some(number) = step.ask {
                    prop_assert_eq!(number, asked + 1);
                    asked = number;
                    due = now + lag * TICK / 10;
                }
            }
        }
    }
}
