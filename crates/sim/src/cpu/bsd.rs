//! 4.2BSD's scheduler: fixed priorities for kernel threads, decaying ones for programs, round robin every quantum.

use super::{Class, Requeue, Scheduler, Thread};
use crate::engine::{MS, NEVER, Nanos, SEC};
use std::collections::VecDeque;

/// Round robin among equals, ns.
const QUANTUM: Nanos = 10 * MS;
/// CPU time that worsens a priority by one step, ns: 4 ticks of 10 ms.
const STEP: Nanos = 40 * MS;
/// Worst priority; smaller is better.
const WORST: u32 = 127;
/// Best priority of a program.
const USER: u32 = 50;

#[derive(Clone, Copy, Debug)]
struct State {
    class: Class,
    /// CPU time that has not decayed yet.
    used: Nanos,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Bsd {
    threads: Vec<State>,
    runnable: VecDeque<Thread>,
    decayed: Nanos,
}

impl Bsd {
    /// Smaller goes first; kernel threads before programs.
    fn priority(&self, thread: Thread) -> u32 {
        let state = &self.threads[thread.0 as usize];
        match state.class {
            Class::Fifo(priority) => USER - 1 - u32::from(priority).min(USER - 1),
            Class::Normal(nice) => {
                let used = (state.used / STEP) as u32;
                (USER + used).saturating_add_signed(2 * i32::from(nice)).clamp(USER, WORST)
            }
            Class::Idle => WORST + 1,
        }
    }

    fn decay(&mut self, now: Nanos) {
        while self.decayed + SEC <= now {
            self.decayed += SEC;
            // 2 load / (2 load + 1)
            let load = 2 * (self.runnable.len() as u64 + 1);
            self.threads.iter_mut().for_each(|state| state.used = state.used * load / (load + 1));
        }
    }
}

impl Scheduler for Bsd {
    fn add(&mut self, class: Class) {
        self.threads.push(State { class, used: 0 });
    }

    fn wake(&mut self, now: Nanos, thread: Thread, current: Option<Thread>) -> bool {
        self.decay(now);
        self.runnable.push_back(thread);
        current.is_some_and(|current| self.priority(thread) < self.priority(current))
    }

    fn charge(&mut self, thread: Thread, ran: Nanos) {
        let state = &mut self.threads[thread.0 as usize];
        state.used = (state.used + ran).min(u64::from(WORST) * STEP);
    }

    fn block(&mut self, _now: Nanos, _thread: Thread) {}

    fn requeue(&mut self, now: Nanos, thread: Thread, why: Requeue) {
        self.decay(now);
        match why {
            Requeue::Preempted => self.runnable.push_front(thread),
            Requeue::Expired | Requeue::Yield => self.runnable.push_back(thread),
        }
    }

    fn pick(&mut self, _now: Nanos) -> Option<(Thread, Nanos)> {
        // The first of the best: min_by_key keeps the first of equals.
        let (index, thread) = (0..self.runnable.len())
            .map(|index| (index, self.runnable[index]))
            .min_by_key(|(_, thread)| self.priority(*thread))?;
        self.runnable.remove(index);
        let fixed = matches!(self.threads[thread.0 as usize].class, Class::Fifo(_));
        // Alone on the CPU there is nobody to give way to; a thread that wakes up asks anew.
        Some((thread, if fixed { NEVER } else { QUANTUM }))
    }
}
