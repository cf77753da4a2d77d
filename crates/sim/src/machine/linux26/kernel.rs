//! Interface, softirq and ksoftirqd, and what the softirq does with a packet.

use super::socket::Taken;
use super::state::{State, bucket, place};
use crate::check::Packet;
use crate::cpu::Thread;
use crate::engine::{Nanos, Timer, US};
use policy::switch::Evidence;
use std::collections::VecDeque;

/// The level of softirqs; hard interrupts are part of a packet's cost.
const SOFTIRQ: usize = 1;
/// ksoftirqd's own work per pass.
const PASS: Nanos = US;

/// The interface and the softirq that polls it.
pub(super) struct Nic {
    pub ksoftirqd: Thread,
    /// Arrived, not yet taken.
    pub ring: VecDeque<Packet>,
    /// Descriptors without a buffer.
    pub empty: u32,
    /// Taken, not yet handed up: by the softirq or by weir's poller.
    pub hand: Option<Packet>,
    /// The device is on the poll list, its interrupt is off.
    masked: bool,
    /// A packet was handled since the program last read.
    pub ran: bool,
    tick: Timer,
    restarts: u32,
    round_left: u32,
    round_began: Nanos,
    poll_left: u32,
    daemon: bool,
}

impl Nic {
    pub fn new(ksoftirqd: Thread, tick: Timer) -> Self {
        Self {
            ksoftirqd,
            ring: VecDeque::new(),
            empty: 0,
            hand: None,
            masked: false,
            ran: false,
            tick,
            restarts: 0,
            round_left: 0,
            round_began: 0,
            poll_left: 0,
            daemon: false,
        }
    }

    /// Packets on the machine below the sockets.
    pub fn queued(&self) -> u64 {
        self.ring.len() as u64 + u64::from(self.hand.is_some())
    }

    /// Descriptors that hold a packet or have no buffer.
    pub fn used(&self) -> u32 {
        self.ring.len() as u32 + self.empty
    }
}

impl State<'_> {
    /// A frame arrives at the interface (WU-02).
    pub(super) fn receive(&mut self, now: Nanos, flow: u32, tag: u32) {
        let packet = self.ledger.offer(now, flow, tag);
        if self.nic.used() >= self.s.ring {
            self.drop(&packet, place::RING);
            return;
        }
        self.nic.ring.push_back(packet);
        self.record.ring(self.nic.used());
        if self.polled() {
            return;
        }
        if !self.nic.masked {
            self.nic.masked = true;
            self.invoke(now);
        }
    }

    /// Softirqs run now, unless they do already.
    pub(super) fn invoke(&mut self, now: Nanos) {
        if !self.cpu.is_active(SOFTIRQ) && self.nic.masked {
            self.nic.restarts = 0;
            self.round(now);
            self.take(now);
        }
    }

    fn round(&mut self, now: Nanos) {
        self.nic.round_left = self.s.round;
        self.nic.round_began = now;
        self.nic.poll_left = self.s.weight;
    }

    /// The next packet, or the end of the softirq.
    fn take(&mut self, now: Nanos) {
        let Some(packet) = self.nic.ring.pop_front() else {
            self.nic.masked = false;
            return;
        };
        let cost = self.packet_cost(&packet);
        self.nic.hand = Some(packet);
        self.cpu.raise(now, SOFTIRQ, cost, bucket::SOFTIRQ);
    }

    /// The program cannot run while the softirq does: what the packet will meet is known at its start.
    pub(super) fn packet_cost(&self, packet: &Packet) -> Nanos {
        if self.is_udp() {
            return self.s.udp_softirq.0;
        }
        let socket = &self.connections[packet.flow as usize].socket;
        let now = !socket.locked && !socket.waiting;
        self.s.tcp_driver.0 + if now { self.s.tcp_protocol.0 } else { 0 }
    }

    pub(super) fn softirq_done(&mut self, now: Nanos) {
        self.refill(now);
        if let Some(packet) = self.nic.hand.take() {
            self.hand_up(now, packet);
        }
        if self.polled() {
            // Taken over by what this packet did.
            return;
        }
        self.nic.round_left -= 1;
        self.nic.poll_left -= 1;
        if self.nic.poll_left == 0 {
            self.nic.poll_left = self.s.weight;
            if self.overloaded(now, Evidence::FullPolls) {
                return;
            }
        }
        let over = self.nic.round_left == 0 || now - self.nic.round_began > self.s.tick.0;
        if over && !self.nic.ring.is_empty() {
            self.nic.restarts += 1;
            if self.nic.restarts >= self.s.restarts {
                if !self.nic.daemon {
                    self.nic.daemon = true;
                    self.give(now, self.nic.ksoftirqd, PASS, bucket::SOFTIRQ);
                }
                self.tick_at(now);
                return;
            }
            self.round(now);
        }
        self.take(now);
    }

    /// The device's interrupt is on again, softirqs have nothing to do: weir polls it from now on.
    pub(super) fn unlist(&mut self) {
        self.nic.masked = false;
    }

    /// weir gives the device back: with packets waiting, the softirq runs at once.
    pub(super) fn enlist(&mut self, now: Nanos) {
        if !self.nic.ring.is_empty() {
            self.nic.masked = true;
            self.invoke(now);
        }
    }

    pub(super) fn ksoftirqd_done(&mut self, now: Nanos) {
        if self.nic.masked {
            self.give(now, self.nic.ksoftirqd, PASS, bucket::SOFTIRQ);
            self.invoke(now);
        } else {
            self.nic.daemon = false;
            self.cpu.block(now, self.nic.ksoftirqd);
        }
    }

    fn tick_at(&mut self, now: Nanos) {
        let tick = self.s.tick.0;
        self.agenda.set(self.nic.tick, (now / tick + 1) * tick);
    }

    /// Every interrupt runs pending softirqs on its way out.
    pub(super) fn tick(&mut self, now: Nanos) {
        self.refill(now);
        if self.memory.kill(now) {
            self.kill();
        }
        self.invoke(now);
        let pending = self.nic.masked && !self.cpu.is_active(SOFTIRQ);
        if pending || self.nic.empty > 0 {
            self.tick_at(now);
        }
    }

    /// The descriptor of the packet that was taken gets a new buffer, and so do those that are empty (WU-04).
    pub(super) fn refill(&mut self, now: Nanos) {
        let taken = u32::from(self.nic.hand.is_some());
        let wanted = (self.nic.empty + taken).min(self.s.ring);
        self.nic.empty = wanted - self.memory.refill(now, wanted);
        if self.nic.empty > 0 {
            self.tick_at(now);
        }
    }

    /// The packet has passed the driver and IP.
    pub(super) fn hand_up(&mut self, now: Nanos, packet: Packet) {
        let c = packet.flow as usize;
        self.nic.ran = true;
        if self.connections[c].killed {
            return self.drop(&packet, place::KILLED);
        }
        if self.is_udp() {
            return self.datagram(now, packet);
        }
        let socket = &mut self.connections[c].socket;
        if socket.locked {
            socket.backlog.push_back(packet);
            let length = socket.backlog.len();
            self.record.backlog(length);
        } else if socket.waiting {
            // A prequeue that holds the receive quota is processed at once (WU-11).
            if socket.prequeue.len() as u64 >= self.buffer {
                self.tcp(now, packet, false);
                return;
            }
            socket.prequeue.push_back(packet);
            let length = socket.prequeue.len();
            self.record.prequeue(length);
            if length == 1 {
                self.wake(now, c);
            }
        } else {
            self.tcp(now, packet, false);
        }
    }

    /// WU-12: no room, no datagram.
    fn datagram(&mut self, now: Nanos, packet: Packet) {
        let socket = &mut self.connections[0].socket;
        if socket.room(self.buffer) == 0 {
            self.drop(&packet, place::SOCKET);
            return self.overflowed(now);
        }
        socket.held += 1;
        socket.receive.push_back(packet);
        let waiting = socket.waiting;
        self.count(1, true);
        if waiting {
            self.wake(now, 0);
        }
    }

    /// Buffers take or give back `packets`.
    pub(super) fn count(&mut self, packets: u64, more: bool) {
        let bytes = packets * u64::from(self.s.accounted);
        if more {
            self.memory.accounted += bytes;
        } else {
            self.memory.accounted -= bytes;
        }
        self.memory.changed();
    }

    /// TCP takes a segment, in the softirq or for the program (`direct`); true if the program has it already.
    pub(super) fn tcp(&mut self, now: Nanos, packet: Packet, direct: bool) -> bool {
        let c = packet.flow as usize;
        // The segment that all others wait for is taken in any case, else a full out-of-sequence queue would stay full.
        let socket = &self.connections[c].socket;
        let awaited = u64::from(packet.tag) == socket.next && socket.receive.is_empty();
        if !awaited && !self.memory.allowed(u64::from(self.s.accounted)) {
            self.drop(&packet, place::MEMORY);
            return false;
        }
        let socket = &mut self.connections[c].socket;
        let before = socket.held;
        let holes = !socket.beyond.is_empty();
        let taken = socket.segment(packet, direct);
        let (more, length) = (socket.held - before, socket.beyond.len());
        self.record.beyond(length);
        self.count(more, true);
        match taken {
            Taken::Queued | Taken::Direct => {
                let socket = &mut self.connections[c].socket;
                socket.unacknowledged += 1;
                if holes || socket.unacknowledged >= 2 {
                    self.acknowledge(now, c, None);
                } else {
                    self.agenda.set(self.connections[c].delayed, now + self.s.delayed_ack.0);
                }
            }
            Taken::Beyond => self.acknowledge(now, c, Some(u64::from(packet.tag))),
            Taken::Duplicate => {
                self.drop(&packet, place::DUPLICATE);
                self.acknowledge(now, c, None);
            }
        }
        if taken == Taken::Direct {
            self.ledger.deliver(now, &packet);
            self.record.read(now);
        }
        taken == Taken::Direct
    }

    /// No memory: the program that has most of it is killed, with all its connections.
    fn kill(&mut self) {
        for c in 0..self.connections.len() {
            let connection = &mut self.connections[c];
            connection.killed = true;
            connection.sender.end();
            let before = connection.socket.held;
            let lost = connection.socket.clear();
            let less = before - connection.socket.held;
            self.agenda.cancel(self.connections[c].timeout);
            self.agenda.cancel(self.connections[c].delayed);
            self.count(less, false);
            for packet in lost {
                self.drop(&packet, place::KILLED);
            }
        }
    }
}
