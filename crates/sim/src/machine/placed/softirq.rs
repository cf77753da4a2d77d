//! Interrupts, NAPI in softirq and in ksoftirqd, RPS, and the way to the socket.

use super::host::{BACKLOG, Host, IRQ, SOCKET, SOFT, bucket};
use crate::check::Packet;
use crate::engine::Nanos;

/// Something that softirq polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Napi {
    /// A receive queue.
    Queue(usize),
    /// What RPS has sent to this CPU.
    Backlog,
}

/// Where softirq runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    None,
    /// On the way out of an interrupt.
    Inline,
    Ksoftirqd,
}

/// What the piece of softirq is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    /// The fixed part of a poll.
    Poll,
    /// It is sent on to that CPU.
    Steer(Packet, usize),
    /// It goes up to its socket.
    Stack(Packet),
    /// Waking this program.
    Wake(usize),
}

impl Doing {
    pub fn has_packet(&self) -> bool {
        matches!(self, Doing::Steer(..) | Doing::Stack(_))
    }
}

impl Host<'_> {
    /// An interrupt that puts `napi` on the list of CPU `c`.
    pub fn interrupt(&mut self, now: Nanos, c: usize, napi: Napi) {
        self.cores[c].interrupts.push_back(napi);
        if self.cores[c].interrupts.len() == 1 {
            self.handle(now, c, napi);
        }
    }

    fn handle(&mut self, now: Nanos, c: usize, napi: Napi) {
        let cost = if napi == Napi::Backlog { self.s.ipi.0 } else { self.s.interrupt.0 };
        let halted = if self.cores[c].cpu.is_idle() { self.s.resume.0 } else { 0 };
        self.cores[c].cpu.raise(now, IRQ, (cost + halted).max(1), bucket::IRQ);
        self.touch(c);
    }

    pub fn interrupt_done(&mut self, now: Nanos, c: usize) {
        let core = &mut self.cores[c];
        let handled = core.interrupts.pop_front();
        core.list.extend(handled);
        if let Some(&next) = core.interrupts.front() {
            self.handle(now, c, next);
        }
        // Softirq runs on the way out of the interrupt.
        if self.cores[c].context == Context::None {
            self.begin(now, c, Context::Inline);
        }
    }

    fn begin(&mut self, now: Nanos, c: usize, context: Context) {
        let core = &mut self.cores[c];
        core.context = context;
        core.since = now;
        core.restarts = self.s.restarts;
        core.packets = 0;
        core.polled = None;
        self.next(now, c);
    }

    fn piece(&mut self, now: Nanos, c: usize, cost: Nanos, doing: Doing) {
        let core = &mut self.cores[c];
        core.doing = doing;
        match core.context {
            Context::Ksoftirqd => core.cpu.burst(now, core.ksoftirqd, cost.max(1), bucket::SOFTIRQ),
            _ => core.cpu.raise(now, SOFT, cost.max(1), bucket::SOFTIRQ),
        }
        self.touch(c);
    }

    /// A poll begins. It runs without preemption; between two of them ksoftirqd gives way to who is due.
    fn poll(&mut self, now: Nanos, c: usize) {
        let core = &mut self.cores[c];
        if core.context == Context::Ksoftirqd {
            core.cpu.release(now);
            core.cpu.hold(core.ksoftirqd);
        }
        self.piece(now, c, self.s.poll.0, Doing::Poll);
    }

    /// The next piece of softirq, if there is one.
    fn next(&mut self, now: Nanos, c: usize) {
        loop {
            let core = &mut self.cores[c];
            let Some(&napi) = core.list.front() else {
                let was = std::mem::replace(&mut core.context, Context::None);
                core.doing = Doing::Nothing;
                if was == Context::Ksoftirqd {
                    core.cpu.block(now, core.ksoftirqd);
                    core.cpu.release(now);
                    self.touch(c);
                }
                return;
            };
            let Some(polled) = core.polled else {
                if core.packets >= self.s.budget && self.give_way(now, c) {
                    return;
                }
                return self.poll(now, c);
            };
            // A driver that looks ends its poll where the interrupt has been moved, and its next interrupt goes there.
            if let Napi::Queue(q) = napi
                && self.s.follows
                && polled > 0
                && !self.drawn.queues[q].irq.contains(&c)
            {
                let core = &mut self.cores[c];
                core.list.pop_front();
                core.polled = None;
                let to = self.irq_cpu(q);
                self.interrupt(now, to, napi);
                continue;
            }
            if polled >= self.s.weight {
                core.list.rotate_left(1);
                core.polled = None;
                continue;
            }
            let packet = match napi {
                Napi::Queue(q) => self.queues[q].ring.pop_front(),
                Napi::Backlog => core.backlog.pop_front(),
            };
            let Some(packet) = packet else {
                core.list.pop_front();
                core.polled = None;
                match napi {
                    Napi::Queue(q) => self.queues[q].scheduled = false,
                    Napi::Backlog => core.backlog_scheduled = false,
                }
                continue;
            };
            core.polled = Some(polled + 1);
            core.packets += 1;
            let to = if let Napi::Queue(q) = napi { self.rps(q, &packet) } else { None };
            return match to {
                Some(to) => self.piece(now, c, self.s.steer.0, Doing::Steer(packet, to)),
                None => self.piece(now, c, self.s.stack.0, Doing::Stack(packet)),
            };
        }
    }

    /// A softirq has had its packets: there may be another one, or ksoftirqd goes on; then true.
    fn give_way(&mut self, now: Nanos, c: usize) -> bool {
        let core = &mut self.cores[c];
        core.packets = 0;
        core.restarts = core.restarts.saturating_sub(1);
        let over = core.restarts == 0 || now - core.since >= self.s.softirq_time.0;
        if core.context == Context::Inline && over {
            core.context = Context::Ksoftirqd;
            self.poll(now, c);
            return true;
        }
        false
    }

    /// The CPU that RPS chooses for a packet.
    fn rps(&self, q: usize, packet: &Packet) -> Option<usize> {
        let mask = &self.drawn.queues[q].rps;
        if mask.is_empty() {
            return None;
        }
        let hash = self.drawn.flows[packet.flow as usize].hash;
        mask.iter().nth((hash % mask.len() as u64) as usize).copied()
    }

    pub fn softirq_done(&mut self, now: Nanos, c: usize, context: Context) {
        debug_assert_eq!(context, self.cores[c].context);
        let doing = std::mem::replace(&mut self.cores[c].doing, Doing::Nothing);
        match doing {
            Doing::Nothing => {}
            Doing::Poll => self.cores[c].polled = Some(0),
            Doing::Steer(packet, to) => self.enqueue(now, c, packet, to),
            Doing::Stack(packet) => {
                self.cores[c].taken += 1;
                let p = self.drawn.flows[packet.flow as usize].program;
                let program = &mut self.programs[p];
                if program.socket.len() >= self.s.socket as usize {
                    self.ledger.drop(&packet, SOCKET);
                    self.counts.lost += 1;
                } else {
                    program.socket.push_back((packet, c));
                    if program.blocked {
                        return self.piece(now, c, self.s.wake.0, Doing::Wake(p));
                    }
                }
            }
            Doing::Wake(p) => self.wake(now, c, p),
        }
        self.next(now, c);
    }

    fn enqueue(&mut self, now: Nanos, c: usize, packet: Packet, to: usize) {
        let core = &mut self.cores[to];
        if core.backlog.len() >= self.s.backlog as usize {
            self.ledger.drop(&packet, BACKLOG);
            self.counts.lost += 1;
            return;
        }
        core.backlog.push_back(packet);
        if !std::mem::replace(&mut core.backlog_scheduled, true) {
            if to == c {
                core.list.push_back(Napi::Backlog);
            } else {
                self.interrupt(now, to, Napi::Backlog);
            }
        }
    }
}
