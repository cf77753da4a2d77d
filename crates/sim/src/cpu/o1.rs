//! The O(1) scheduler of Linux 2.6: an active and an expired array, slices by nice (WU-18).
//!
//! A slice is 100 ms at nice 0, `20 (20 - nice)` ms below, `5 (20 - nice)` ms above, at least 5 ms. A thread whose
//! slice is used up waits in the expired array until the active one is empty; an interactive one, that has slept much,
//! goes back to the active array. Rules and constants are those of 2.6.12:
//!
//! - Sleep earns credit, `10 - bonus` times as fast the less there is; running costs it, `bonus` times as slowly. A
//!   single long sleep gives all but one slice.
//! - A new thread has 80 % of the credit: it is the child of one that slept, at 95 % of its parent's bonus.
//! - Interactive threads stop going back when the expired array has waited for 1 s per runnable thread, or holds one
//!   of a better nice value.
//! - A tick is charged to the thread that it interrupts, also when it interrupts a softirq: slices are wall time.

use super::{Class, Requeue, Scheduler, Thread};
use crate::engine::{MS, NEVER, Nanos, SEC};
use std::collections::VecDeque;

/// Most credit for sleeping, ns.
const SLEEP_MAX: Nanos = SEC;
/// Most levels of bonus, half of them to either side.
const BONUS: u64 = 10;
/// Credit of a new thread, ns.
const CHILD: Nanos = SLEEP_MAX * 8 / BONUS;
/// Credit after one long sleep, ns.
const LONG_SLEEP: Nanos = SLEEP_MAX - 100 * MS;
/// How long the expired array waits for interactive threads, ns per runnable thread.
const STARVATION: Nanos = SEC;
/// Worse than any nice value.
const NOBODY: i8 = 20;

#[derive(Clone, Copy, Debug)]
struct State {
    class: Class,
    left: Nanos,
    slept: Nanos,
    blocked_at: Nanos,
}

impl State {
    /// 0 to 10.
    fn bonus(&self) -> u64 {
        self.slept * BONUS / SLEEP_MAX
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct O1 {
    threads: Vec<State>,
    active: VecDeque<Thread>,
    expired: VecDeque<Thread>,
    expired_since: Option<Nanos>,
    best_expired: i8,
}

impl Default for O1 {
    fn default() -> Self {
        Self {
            threads: Vec::new(),
            active: VecDeque::new(),
            expired: VecDeque::new(),
            expired_since: None,
            best_expired: NOBODY,
        }
    }
}

/// The slice of a nice value, ns.
pub fn slice(nice: i8) -> Nanos {
    let steps = (20 - i64::from(nice).clamp(-20, 19)) as u64;
    (if nice < 0 { 20 * steps } else { (5 * steps).max(5) }) * MS
}

/// Levels of bonus above which a thread of this nice value is interactive: DELTA of the kernel.
fn delta(nice: i8) -> i32 {
    i32::from(nice) * BONUS as i32 / 40 + 2
}

impl O1 {
    /// The thread has run for so long before, since it last slept: its credit is smaller.
    pub fn has_run(&mut self, thread: Thread, ran: Nanos) {
        let state = &mut self.threads[thread.0 as usize];
        state.slept = state.slept.saturating_sub(ran / state.bonus().max(1));
    }

    fn nice(&self, thread: Thread) -> i8 {
        match self.threads[thread.0 as usize].class {
            Class::Normal(nice) => nice,
            _ => 19,
        }
    }

    /// 0 to 139, smaller first; sleeping earns up to 5 levels, running costs up to 5.
    fn priority(&self, thread: Thread) -> i32 {
        let state = &self.threads[thread.0 as usize];
        match state.class {
            Class::Fifo(priority) => 99 - i32::from(priority).min(99),
            Class::Idle => 140,
            Class::Normal(nice) => {
                let bonus = state.bonus() as i32 - BONUS as i32 / 2;
                (120 + i32::from(nice) - bonus).clamp(100, 139)
            }
        }
    }

    /// TASK_INTERACTIVE: the bonus outweighs the nice value.
    fn interactive(&self, thread: Thread) -> bool {
        let nice = self.nice(thread);
        matches!(self.threads[thread.0 as usize].class, Class::Normal(_))
            && self.priority(thread) <= 120 + i32::from(nice) - delta(nice)
    }

    /// EXPIRED_STARVING, for a thread that has just used up its slice.
    fn starving(&self, now: Nanos, thread: Thread) -> bool {
        let runnable = (self.active.len() + self.expired.len() + 1) as u64;
        self.expired_since.is_some_and(|since| now.saturating_sub(since) >= STARVATION * runnable)
            || self.nice(thread) > self.best_expired
    }
}

impl Scheduler for O1 {
    fn add(&mut self, class: Class) {
        let nice = if let Class::Normal(nice) = class { nice } else { 0 };
        self.threads.push(State { class, left: slice(nice), slept: CHILD, blocked_at: 0 });
    }

    fn wake(&mut self, now: Nanos, thread: Thread, current: Option<Thread>) -> bool {
        let long = SLEEP_MAX / BONUS * (BONUS as i32 / 2 + delta(self.nice(thread)) + 1).max(0) as u64;
        let state = &mut self.threads[thread.0 as usize];
        let sleep = now.saturating_sub(state.blocked_at);
        state.slept = if sleep > long {
            LONG_SLEEP.max(state.slept)
        } else {
            (state.slept + sleep * (BONUS - state.bonus()).max(1)).min(SLEEP_MAX)
        };
        self.active.push_back(thread);
        current.is_some_and(|current| self.priority(thread) < self.priority(current))
    }

    fn charge(&mut self, thread: Thread, ran: Nanos) {
        let state = &mut self.threads[thread.0 as usize];
        state.left = state.left.saturating_sub(ran);
        state.slept = state.slept.saturating_sub(ran / state.bonus().max(1));
    }

    fn block(&mut self, now: Nanos, thread: Thread) {
        self.threads[thread.0 as usize].blocked_at = now;
    }

    fn requeue(&mut self, now: Nanos, thread: Thread, why: Requeue) {
        let nice = self.nice(thread);
        match why {
            Requeue::Preempted => self.active.push_front(thread),
            Requeue::Yield => self.active.push_back(thread),
            Requeue::Expired => {
                self.threads[thread.0 as usize].left = slice(nice);
                if self.interactive(thread) && !self.starving(now, thread) {
                    self.active.push_back(thread);
                } else {
                    self.expired_since.get_or_insert(now);
                    self.best_expired = self.best_expired.min(nice);
                    self.expired.push_back(thread);
                }
            }
        }
    }

    fn pick(&mut self, _now: Nanos) -> Option<(Thread, Nanos)> {
        if self.active.is_empty() {
            std::mem::swap(&mut self.active, &mut self.expired);
            self.expired_since = None;
            self.best_expired = NOBODY;
        }
        let (index, thread) = (0..self.active.len())
            .map(|index| (index, self.active[index]))
            .min_by_key(|(_, thread)| self.priority(*thread))?;
        self.active.remove(index);
        let state = &self.threads[thread.0 as usize];
        Some((thread, if matches!(state.class, Class::Fifo(_)) { NEVER } else { state.left.max(1) }))
    }

    fn charges_interrupts(&self) -> bool {
        true
    }
}
