//! Worker processes: each waits for its connections and for new ones, and runs one thing at a time to its end.

use super::host::{Event, Host};
use super::lock::Owner;
use super::plan::{Ready, SYS, Then};
use super::settings::Queues;
use crate::cpu::Thread;
use crate::engine::Nanos;
use std::collections::VecDeque;

/// The way back to the event loop, ns.
const LOOP: Nanos = 1;

/// One worker.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub core: usize,
    pub thread: Thread,
    /// Its connections that have something for it.
    pub ready: VecDeque<(u32, Ready)>,
    /// Request at work, what for (`None`: accept), and the step.
    current: Option<(u32, Option<Ready>, usize)>,
    idle: bool,
    /// It sleeps until then, from the end of what it is at.
    stalled: Nanos,
}

impl Worker {
    /// An idle worker.
    pub(super) fn new(core: usize, thread: Thread) -> Self {
        Self { core, thread, ready: VecDeque::new(), current: None, idle: true, stalled: 0 }
    }
}

impl Host<'_> {
    /// Wakes a worker from `core`, if it waits; what that costs there.
    pub(super) fn wake(&mut self, now: Nanos, core: usize, index: usize) -> Nanos {
        let worker = &mut self.workers[index];
        if !std::mem::take(&mut worker.idle) {
            return 0;
        }
        let (to, thread) = (worker.core, worker.thread);
        let list = if self.s.accept == Queues::PerCore { to } else { 0 };
        if let Some(at) = self.idle[list].iter().position(|other| usize::from(*other) == index) {
            self.idle[list].remove(at);
            self.accept.leaves(to, now);
        }
        self.cores[to].cpu.burst(now, thread, LOOP, SYS);
        self.touch(to);
        if to == core { self.s.wake.0 } else { self.s.wake_remote.0 }
    }

    /// A worker is to sleep: at once if it waits, else as soon as it is done with what it is at.
    pub(super) fn stall(&mut self, now: Nanos, index: usize) {
        if now < self.load {
            self.agenda.once(now + self.s.stall_period.0, Event::Stall(index as u16));
        }
        self.workers[index].stalled = now + self.s.stall.0;
        let core = self.workers[index].core;
        self.wake(now, core, index);
    }

    /// It has slept.
    pub(super) fn resume(&mut self, now: Nanos, index: usize) {
        let (core, thread) = (self.workers[index].core, self.workers[index].thread);
        self.accept.goes_on(core, now);
        self.cores[core].cpu.burst(now, thread, LOOP, SYS);
        self.touch(core);
    }

    /// A thread's piece is done.
    pub(super) fn thread_done(&mut self, now: Nanos, core: usize, thread: Thread) {
        let worker = self.worker_of(core, thread);
        if self.workers[worker].current.is_some() {
            self.worker_done(now, worker);
        } else {
            self.next_event(now, worker);
        }
    }

    /// A step of a worker is done.
    pub(super) fn worker_done(&mut self, now: Nanos, index: usize) {
        let Some((request, ready, step)) = self.workers[index].current else { return };
        let steps = self.plan.worker(ready);
        let (done, next) = (steps[step], steps.get(step + 1).copied());
        if let Some(lock) = self.lock_of(&done) {
            self.release(now, lock, request);
        }
        if done.then != Then::Next {
            self.send(now, request, done.then);
        }
        let core = self.workers[index].core;
        if let Some(next) = next {
            self.workers[index].current = Some((request, ready, step + 1));
            return self.step(now, Owner::Worker(index), core, request, &next);
        }
        self.workers[index].current = None;
        let thread = self.workers[index].thread;
        self.cores[core].cpu.burst(now, thread, LOOP, SYS);
        self.touch(core);
    }

    /// The event loop: what is ready, then a new connection, else it waits.
    fn next_event(&mut self, now: Nanos, index: usize) {
        let core = self.workers[index].core;
        if now < self.workers[index].stalled {
            self.agenda.once(self.workers[index].stalled, Event::Resume(index as u16));
            self.accept.sleeps(core, now);
            self.cores[core].cpu.block(now, self.workers[index].thread);
            return self.touch(core);
        }
        let (request, ready) = if let Some((request, ready)) = self.workers[index].ready.pop_front() {
            (request, Some(ready))
        } else if let Some(request) = self.take(now, core) {
            self.requests[request as usize].worker = index as u16;
            self.accepted(now, core, request);
            (request, None)
        } else {
            let worker = &mut self.workers[index];
            worker.idle = true;
            let list = if self.s.accept == Queues::PerCore { core } else { 0 };
            self.idle[list].push_back(index as u16);
            self.accept.waits(core, now);
            self.cores[core].cpu.block(now, self.workers[index].thread);
            return self.touch(core);
        };
        self.workers[index].current = Some((request, ready, 0));
        let step = self.plan.worker(ready)[0];
        self.step(now, Owner::Worker(index), core, request, &step);
    }

    /// A connection for a worker of `core`: from the one queue, or where `policy` says.
    fn take(&mut self, now: Nanos, core: usize) -> Option<u32> {
        let from = if self.s.accept == Queues::PerCore { self.accept.take(core, now)? } else { 0 };
        self.established[from].pop_front()
    }
}
