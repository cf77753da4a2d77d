//! Receive interrupts, softirqs, and what the protocol does with a train of frames.

use super::host::{Event, Host, Queued, Softirqs};
use super::lock::Owner;
use super::plan::{SOFTIRQ, Then, Train};
use super::settings::{Queues, Steering};
use super::steps::LEVEL_SOFTIRQ;
use crate::check::Place as Lost;
use crate::engine::Nanos;

const ACCEPT: Lost = Lost(1);
const BACKLOG: Lost = Lost(2);

impl Host<'_> {
    /// A softirq is to run on `core`, with the cost of an interrupt before it.
    pub(super) fn raise(&mut self, now: Nanos, core: usize, interrupt: bool) {
        let at = &mut self.cores[core];
        if at.softirqs != Softirqs::Free || at.receive.burst.is_some() {
            at.receive.pending = Some(interrupt || at.receive.pending == Some(true));
            return;
        }
        at.receive.burst = Some(0);
        at.receive.started = now;
        at.receive.from_backlog = !interrupt;
        let cost = if interrupt { self.s.irq.0 } else { self.s.rps_ipi.0 };
        self.counts.interrupt(core, interrupt);
        self.softirq_piece(now, core, cost);
    }

    /// Softirqs are on again.
    pub(super) fn pending(&mut self, now: Nanos, core: usize) {
        if self.cores[core].softirqs == Softirqs::Free
            && self.cores[core].receive.burst.is_none()
            && let Some(interrupt) = self.cores[core].receive.pending.take()
        {
            self.raise(now, core, interrupt);
        }
    }

    pub(super) fn softirq_piece(&mut self, now: Nanos, core: usize, cost: Nanos) {
        let cost = self.scaled(core, cost);
        let at = &mut self.cores[core];
        at.softirqs = Softirqs::Softirq;
        at.cpu.raise(now, LEVEL_SOFTIRQ, cost, SOFTIRQ);
        self.touch(core);
    }

    /// A piece of a softirq is done.
    pub(super) fn softirq_done(&mut self, now: Nanos, core: usize) {
        let Some((queued, step)) = self.cores[core].receive.current else {
            return self.next_train(now, core);
        };
        let steps = self.plan.softirq(queued.train);
        let (done, next) = (steps[step], steps.get(step + 1).copied());
        if let Some(lock) = self.lock_of(&done) {
            self.release(now, lock, queued.request);
        }
        let extra = self.softirq_then(now, core, &queued, done.then);
        if let Some(next) = next {
            self.cores[core].receive.current = Some((queued, step + 1));
            return self.step(now, Owner::Softirq(core), core, queued.request, &next);
        }
        self.cores[core].receive.current = None;
        if extra > 0 { self.softirq_piece(now, core, extra) } else { self.next_train(now, core) }
    }

    /// What follows a softirq's step; the cost of wake-ups.
    pub(super) fn softirq_then(&mut self, now: Nanos, core: usize, queued: &Queued, then: Then) -> Nanos {
        let index = queued.request as usize;
        if then == Then::Established {
            return self.established(now, core, queued);
        }
        if then == Then::Next {
            return 0;
        }
        self.ledger.deliver(now, &queued.packet);
        let request = &mut self.requests[index];
        request.tries = 0;
        match then {
            Then::AnswerClient => {
                request.inside += now - request.entered;
                request.lines[0] = core as u16;
                self.agenda.once(now + self.s.rtt.0, Event::Arrive(queued.request, Train::Open));
                0
            }
            Then::Wake(ready) => {
                let worker = usize::from(request.worker);
                self.workers[worker].ready.push_back((queued.request, ready));
                self.wake(now, core, worker)
            }
            Then::End => {
                request.in_use = false;
                self.free.push(queued.request);
                0
            }
            _ => 0,
        }
    }

    /// A connection is established: `policy` places it, unless there is one queue only.
    pub(super) fn established(&mut self, now: Nanos, core: usize, queued: &Queued) -> Nanos {
        let global = self.s.accept != Queues::PerCore;
        let draw = (self.draws.bits() >> 32) as u32;
        let to = if global {
            (self.established[0].len() < self.s.backlog as usize).then_some(0)
        } else {
            self.accept.place(core, draw, now)
        };
        let Some(to) = to else {
            let has_room = |queue| !global && 2 * self.accept.length(queue) < self.s.backlog;
            self.counts.needless += u64::from((0..self.cores.len()).any(has_room));
            self.again(now, queued, ACCEPT);
            return 0;
        };
        self.ledger.deliver(now, &queued.packet);
        let request = &mut self.requests[queued.request as usize];
        request.tries = 0;
        request.queue = to as u16;
        request.received = core as u16;
        request.established = now;
        self.established[to].push_back(queued.request);
        let woken = if global {
            self.idle[0].pop_front()
        } else {
            self.accept.wake(to, draw).and_then(|core| self.idle[core].pop_front())
        };
        woken.map_or(0, |worker| {
            self.accept.leaves(self.workers[usize::from(worker)].core, now);
            self.wake(now, core, usize::from(worker))
        })
    }

    /// The next train of a burst, or its end.
    pub(super) fn next_train(&mut self, now: Nanos, core: usize) {
        let limit = self.s.poll_frames;
        let receive = &mut self.cores[core].receive;
        let done = receive.burst.unwrap_or(0);
        let queue = if receive.from_backlog { &mut receive.backlog } else { &mut receive.ring };
        let next = if done < limit { queue.pop_front() } else { None };
        if let Some(queued) = next {
            if !receive.from_backlog {
                receive.ring_frames -= queued.frames;
            }
            receive.burst = Some(done + queued.frames);
            return self.train(now, core, queued);
        }
        self.end_burst(now, core);
    }

    pub(super) fn end_burst(&mut self, now: Nanos, core: usize) {
        let receive = &mut self.cores[core].receive;
        receive.burst = None;
        let started = receive.started;
        let (backlog, ring) = (!receive.backlog.is_empty(), !receive.ring.is_empty());
        if backlog {
            receive.pending = Some(receive.pending == Some(true));
        }
        if !receive.from_backlog {
            self.counts.handled(core, now - started);
            self.cores[core].receive.coming = ring;
            if ring {
                self.agenda.once(now + self.s.irq_gap.0, Event::Interrupt(core as u16));
            }
        }
        self.pending(now, core);
    }

    pub(super) fn train(&mut self, now: Nanos, core: usize, queued: Queued) {
        let request = self.requests[queued.request as usize];
        let (_, protocol) = self.steer(&request, queued.train);
        if protocol != core && self.s.steering == Steering::Rps && !self.cores[core].receive.from_backlog {
            let cost = self.s.rps_frame.0 * Nanos::from(queued.frames);
            let receive = &mut self.cores[protocol].receive;
            if receive.backlog.len() >= self.s.rps_backlog as usize {
                self.again(now, &queued, BACKLOG);
                return self.softirq_piece(now, core, cost);
            }
            receive.backlog.push_back(queued);
            let ipi = receive.backlog.len() == 1;
            if ipi {
                self.raise(now, protocol, false);
            }
            let cost = cost + if ipi { self.s.rps_ipi.0 } else { 0 };
            return self.softirq_piece(now, core, cost);
        }
        if self.s.accept == Queues::PerCore && matches!(queued.train, Train::Syn | Train::Open) {
            self.requests[queued.request as usize].queue = core as u16;
        }
        self.cores[core].receive.current = Some((queued, 0));
        let step = self.plan.softirq(queued.train)[0];
        self.step(now, Owner::Softirq(core), core, queued.request, &step);
    }
}
