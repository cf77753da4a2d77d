//! What CPUs do: interrupts, softirqs, programs, and the loop of a CPU-NET (ES-09).

use super::settings::Arrangement;
use super::state::{Function, State, bucket};
use crate::check::Packet;
use crate::engine::Nanos;

const IRQ: usize = 2;
const SOFTIRQ: usize = 1;
/// Buffers that a CPU keeps for itself: array_cache of mm/slab.c, for objects of at most 256 bytes.
const SPARE_MAX: u32 = 120;

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// It sleeps in recv().
    Waits,
    /// It is about to look, after it was woken or has moved.
    Looks,
    /// It copies a segment.
    Copies,
    /// It gives the CPU to the idle thread or another program.
    Leaves,
}

/// What the loop of a CPU-NET does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// It is not a CPU-NET.
    Idle,
    /// It looks at interface `0`; the number of interfaces stands for the transmit ring.
    Polls(usize),
    /// It takes a segment of this interface to its socket.
    Receives(usize, Packet),
    /// It transmits a request.
    Transmits,
}

impl Task {
    /// The segment in its hand.
    pub fn packet(&self) -> Option<&Packet> {
        if let Task::Receives(_, packet) = self { Some(packet) } else { None }
    }
}

impl State<'_> {
    fn counted(&mut self, function: Function, time: Nanos) -> Nanos {
        self.busy += time;
        self.spend(function, time)
    }

    /// A segment is in an interface's ring: an interrupt, unless a CPU-NET looks there.
    pub(super) fn signal(&mut self, now: Nanos, n: usize) {
        if self.net() > 0 {
            return;
        }
        let c = match self.s.arrangement {
            Arrangement::Spread => {
                self.next_cpu = (self.next_cpu + 1) % self.cores.len();
                self.next_cpu
            }
            _ => self.streams[n].wanted,
        };
        let Some(packet) = self.streams[n].ring.pop_front() else { return };
        self.streams[n].visible = self.streams[n].ring.len();
        self.cores[c].backlog.push_back(packet);
        self.streams[n].other += self.s.irq_other;
        let other = self.streams[n].other / 1000;
        self.streams[n].other %= 1000;
        self.cores[c].interrupts += 1 + other;
        if !self.cores[c].cpu.is_active(IRQ) {
            self.interrupt(now, c);
        }
    }

    fn interrupt(&mut self, now: Nanos, c: usize) {
        self.interrupts += 1;
        let cost = self.counted(Function::Irq, self.s.irq.0);
        self.cores[c].cpu.raise(now, IRQ, cost, bucket::IRQ);
    }

    pub(super) fn level_done(&mut self, now: Nanos, c: usize, level: usize) {
        if level == IRQ {
            self.cores[c].interrupts -= 1;
            if self.cores[c].interrupts > 0 {
                return self.interrupt(now, c);
            }
        } else if let Some(packet) = self.cores[c].softirq.take() {
            self.reaches_socket(now, c, packet);
        }
        self.softirq(now, c);
    }

    fn softirq(&mut self, now: Nanos, c: usize) {
        if self.cores[c].cpu.is_active(SOFTIRQ) || self.cores[c].cpu.is_active(IRQ) {
            return;
        }
        if let Some(packet) = self.cores[c].backlog.pop_front() {
            let cost = self.receive(now, c, packet.flow as usize);
            self.cores[c].softirq = Some(packet);
            self.cores[c].cpu.raise(now, SOFTIRQ, cost, bucket::SOFTIRQ);
        }
    }

    /// The lines and locks of the whole kernel that a segment needs on CPU `c`.
    fn contend(&mut self, now: Nanos, c: usize) -> Nanos {
        let (lock, hold, miss) = (self.s.lock.0, self.s.hold.0, self.s.miss.0);
        let mut locked = 0;
        for n in 0..self.locks.len() {
            locked += self.locks[n].take(now + locked, c, lock, hold, miss);
        }
        let lines = self.shared.write(c, self.s.shared_lines, miss);
        self.counted(Function::Lock, locked) + self.counted(Function::Rest, lines)
    }

    /// CPU `c` takes a buffer for the ring: one that it freed itself, else one that another CPU has in its cache.
    fn buffer(&mut self, c: usize) -> Nanos {
        if self.cores[c].spare > 0 {
            self.cores[c].spare -= 1;
            return 0;
        }
        let Some(other) = self.cores.iter_mut().max_by_key(|core| core.spare).filter(|core| core.spare > 0)
        else {
            return 0;
        };
        other.spare -= 1;
        let misses = u64::from(self.s.buffer_lines) * self.s.miss.0;
        self.counted(Function::Rest, misses)
    }

    /// A segment from the driver to its socket.
    fn receive(&mut self, now: Nanos, c: usize, n: usize) -> Nanos {
        let s = self.s;
        let buffer = self.buffer(c);
        let elsewhere = self.streams[n].lines.write(c, 1, s.miss.0);
        buffer
            + self.contend(now, c)
            + self.counted(Function::Rest, s.receive.0)
            + self.counted(Function::Tcp, s.tcp.0 + u64::from(s.tcp_lines) * elsewhere)
            + self
                .counted(Function::Established, s.established.0 + u64::from(s.established_lines) * elsewhere)
    }

    fn reaches_socket(&mut self, now: Nanos, c: usize, packet: Packet) {
        let n = packet.flow as usize;
        self.streams[n].socket.push_back(packet);
        if self.streams[n].doing == Doing::Waits {
            self.wake(now, c, n);
        }
    }

    /// CPU `c` wakes the program of stream `n`. Its own time for that is part of the piece that the program begins with,
    /// if both are on one CPU, else of the waker's next.
    fn wake(&mut self, now: Nanos, c: usize, n: usize) {
        let s = self.s;
        self.streams[n].home = self.streams[n].wanted;
        let home = self.streams[n].home;
        let misses = self.cores[home].queue.write(c, s.wake_lines, s.miss.0);
        let woken = self.counted(Function::Wake, s.wake.0 + misses);
        let mut cost = woken;
        if self.cores[home].cpu.current().is_none() {
            if home != c {
                cost += self.spend(Function::Rest, s.resume.0);
            }
            cost += self.spend(Function::Schedule, s.schedule.0) + self.enters(home, n);
        }
        self.streams[n].doing = Doing::Looks;
        let thread = self.streams[n].threads[home];
        self.cores[home].cpu.burst(now, thread, cost, bucket::PROGRAM);
    }

    /// The CPU changes to the program of stream `n`; schedule() itself is paid for by who leaves.
    fn enters(&mut self, c: usize, n: usize) -> Nanos {
        let misses = self.cores[c].queue.write(c, self.s.queue_lines, self.s.miss.0);
        if self.cores[c].ran.replace(n) == Some(n) {
            return self.spend(Function::Schedule, misses);
        }
        self.switches += 1;
        self.spend(Function::Schedule, misses) + self.spend(Function::Switch, self.s.switch.0)
    }

    pub(super) fn program_done(&mut self, now: Nanos, c: usize, n: usize) {
        let thread = self.streams[n].threads[c];
        let doing = self.streams[n].doing;
        let mut cost = 0;
        if doing == Doing::Copies {
            if let Some(packet) = self.streams[n].in_hand.take() {
                self.ledger.deliver(now, &packet);
                self.cores[c].spare = (self.cores[c].spare + 1).min(SPARE_MAX);
            }
            self.streams[n].unacknowledged += 1;
            if self.streams[n].unacknowledged >= 2 {
                self.streams[n].unacknowledged = 0;
                cost += self.acknowledge(now, c, n);
            }
        }
        if self.cores[c].ran != Some(n) {
            cost += self.enters(c, n);
        }
        if self.streams[n].wanted != c {
            // It moves; the next segment, or what waits, wakes it there.
            self.streams[n].doing = Doing::Waits;
            self.cores[c].cpu.block(now, thread);
            self.start_loops(now);
            if !self.streams[n].socket.is_empty() {
                self.wake(now, c, n);
            }
            return;
        }
        if let Some(packet) = self.streams[n].socket.pop_front() {
            if doing != Doing::Copies {
                cost += self.spend(Function::Rest, self.s.call.0);
            }
            let elsewhere = self.streams[n].lines.write(c, 1, self.s.miss.0);
            let lines = |count: u32| u64::from(count) * elsewhere;
            let (program, free, window) =
                (lines(self.s.program_lines), lines(self.s.free_lines), lines(self.s.window_lines));
            cost += self.spend(Function::Rest, self.s.consume.0 + program);
            cost += self.spend(Function::Free, self.s.free.0 + free);
            cost += self.spend(Function::Window, window / 2);
            cost += self.spend(Function::Copy, self.s.copy.0);
            self.streams[n].in_hand = Some(packet);
            self.streams[n].doing = Doing::Copies;
            self.cores[c].cpu.burst(now, thread, cost, bucket::PROGRAM);
            return;
        }
        if doing == Doing::Leaves && cost == 0 {
            self.streams[n].doing = Doing::Waits;
            self.cores[c].cpu.block(now, thread);
            if self.cores[c].cpu.current().is_none() {
                // To the idle thread: schedule() was paid for by leaving, __switch_to falls into idle time.
                self.switches += 1;
                self.cores[c].ran = None;
            }
            return;
        }
        // schedule() is on its way; a segment that comes meanwhile is still seen.
        cost += self.spend(Function::Schedule, self.s.schedule.0);
        self.streams[n].doing = Doing::Leaves;
        self.cores[c].cpu.burst(now, thread, cost, bucket::PROGRAM);
    }

    /// An acknowledgement of stream `n`: what the program's CPU does for it.
    fn acknowledge(&mut self, now: Nanos, c: usize, n: usize) -> Nanos {
        let s = self.s;
        self.acknowledgements += 1;
        let upper = self.spend(Function::Window, s.upper.0);
        if self.net() == 0 {
            let lower = self.counted(Function::Transmit, s.qdisc.0);
            return upper
                + lower
                + self.counted(Function::Rest, s.lower.0 + s.handoff.0)
                + self.contend(now, c);
        }
        let lower = if s.arrangement == Arrangement::Variant1 {
            self.spend(Function::Transmit, s.qdisc.0) + self.spend(Function::Rest, s.lower.0)
        } else {
            0
        };
        let ring = self.request_lines.write(c, 1, s.miss.0);
        self.requests.push_back(n);
        upper + lower + self.spend(Function::Rest, ring)
    }

    /// A program is runnable on this CPU.
    fn in_use(&self, c: usize) -> bool {
        self.streams.iter().any(|stream| stream.home == c && stream.doing != Doing::Waits)
    }

    /// Loops run on CPU-NETs that their programs have left, and end elsewhere by themselves.
    pub(super) fn start_loops(&mut self, now: Nanos) {
        for c in 0..self.net() {
            if matches!(self.cores[c].task, Task::Idle) && !self.in_use(c) {
                self.cores[c].task = Task::Polls(c);
                let thread = self.cores[c].loops;
                let cost = self.spend(Function::Poll, self.s.poll.0);
                self.cores[c].cpu.burst(now, thread, cost, bucket::NET);
            }
        }
    }

    pub(super) fn loop_done(&mut self, now: Nanos, c: usize) {
        let (thread, net, nics) = (self.cores[c].loops, self.net(), self.streams.len());
        let here = match self.cores[c].task {
            Task::Idle => 0,
            Task::Polls(n) => n,
            Task::Receives(n, packet) => {
                self.cores[c].task = Task::Polls(n);
                self.reaches_socket(now, c, packet);
                n
            }
            Task::Transmits => nics,
        };
        // A set that shrinks and grows again while interrupts keep the loop from ending finds programs that came here
        // meanwhile: they run first, and the last one to leave starts the loop again.
        if c >= net || self.in_use(c) {
            self.cores[c].task = Task::Idle;
            self.cores[c].cpu.block(now, thread);
            return;
        }
        // A segment or a request where it looks, else the next place: interfaces are dealt out among the CPU-NETs.
        let (task, cost) = if here < nics {
            match self.handed_back(now, here) {
                Some(packet) => (Task::Receives(here, packet), self.receive(now, c, here)),
                None if here + net < nics => {
                    (Task::Polls(here + net), self.spend(Function::Poll, self.s.poll.0))
                }
                None => (Task::Polls(nics), self.spend(Function::Look, self.s.look.0)),
            }
        } else {
            match self.requests.pop_front() {
                Some(_) => (Task::Transmits, self.transmit(now, c)),
                // One beyond the interfaces only transmits: two at one interface would overtake each other.
                None if c >= nics => (Task::Polls(nics), self.spend(Function::Look, self.s.look.0)),
                None => (Task::Polls(c), self.spend(Function::Poll, self.s.poll.0)),
            }
        };
        self.cores[c].task = task;
        self.cores[c].cpu.burst(now, thread, cost, bucket::NET);
    }

    /// The next segment that the interface has handed back.
    fn handed_back(&mut self, now: Nanos, n: usize) -> Option<Packet> {
        let delay = self.s.writeback_delay.0;
        let stream = &mut self.streams[n];
        let front = stream.ring.front()?;
        if stream.visible == 0 {
            if now - front.born < delay {
                return None;
            }
            stream.visible = stream.ring.len();
        }
        stream.visible -= 1;
        stream.ring.pop_front()
    }

    /// CPU-NET's part of an acknowledgement.
    fn transmit(&mut self, now: Nanos, c: usize) -> Nanos {
        let s = self.s;
        let ring = self.request_lines.write(c, 1, s.miss.0);
        let lower = if s.arrangement == Arrangement::Variant1 {
            0
        } else {
            // The request was written by CPU-HOST.
            let misses = u64::from(s.request_lines) * s.miss.0;
            self.counted(Function::Transmit, s.qdisc.0 + misses) + self.counted(Function::Rest, s.lower.0)
        };
        lower + self.counted(Function::Rest, s.handoff.0 + ring) + self.contend(now, c)
    }
}
