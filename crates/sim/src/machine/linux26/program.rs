//! The program that reads: recv() in 2.6 (WU-09), segment by segment.

use super::state::{State, bucket, place};
use crate::check::Packet;
use crate::engine::Nanos;

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// It waits, or is about to look.
    Nothing,
    /// It gets ready before its first read.
    Starting,
    /// Copies a packet from the receive queue.
    Copy(Packet),
    /// Takes a segment from the prequeue through TCP and copies it.
    Prequeue(Packet),
    /// Takes a segment from the backlog (or the rest of the prequeue) through TCP, as it unlocks the socket.
    Backlog(Packet),
}

impl Doing {
    /// The packet in its hand.
    pub fn packet(&self) -> Option<&Packet> {
        match self {
            Doing::Nothing | Doing::Starting => None,
            Doing::Copy(packet) | Doing::Prequeue(packet) | Doing::Backlog(packet) => Some(packet),
        }
    }
}

impl State<'_> {
    /// Data for a program that sleeps. The socket is not locked before it runs.
    pub(super) fn wake(&mut self, now: Nanos, c: usize) {
        let thread = self.connections[c].thread;
        if self.cpu.is_blocked(thread) {
            let (cost, doing) = if self.is_udp() && !std::mem::replace(&mut self.connections[c].started, true)
            {
                (self.s.udp_start.0, Doing::Starting)
            } else {
                (0, Doing::Nothing)
            };
            self.connections[c].doing = doing;
            self.give(now, thread, cost, bucket::PROGRAM);
        }
    }

    pub(super) fn program_done(&mut self, now: Nanos, c: usize) {
        let doing = std::mem::replace(&mut self.connections[c].doing, Doing::Nothing);
        let killed = self.connections[c].killed;
        match doing {
            Doing::Nothing | Doing::Starting => {}
            Doing::Copy(packet) => {
                self.connections[c].socket.held -= 1;
                self.count(1, false);
                if killed {
                    self.drop(&packet, place::KILLED);
                } else {
                    self.ledger.deliver(now, &packet);
                    self.record.read(now);
                }
            }
            Doing::Prequeue(packet) | Doing::Backlog(packet) if killed => self.drop(&packet, place::KILLED),
            Doing::Prequeue(packet) => {
                if self.tcp(now, packet, true) {
                    let left = &mut self.connections[c].call_left;
                    *left = left.saturating_sub(1);
                }
            }
            Doing::Backlog(packet) => {
                self.tcp(now, packet, false);
            }
        }
        self.step(now, c);
        if matches!(doing, Doing::Copy(_)) {
            // May wake weir's poller, which takes the CPU.
            self.told(now);
        }
    }

    /// What the program does next.
    fn step(&mut self, now: Nanos, c: usize) {
        let thread = self.connections[c].thread;
        let (doing, cost) = if self.is_udp() { self.next_datagram() } else { self.next_segment(now, c) };
        let connection = &mut self.connections[c];
        connection.doing = doing;
        connection.socket.waiting = doing == Doing::Nothing;
        if connection.socket.waiting {
            self.cpu.block(now, thread);
        } else {
            self.give(now, thread, cost, bucket::PROGRAM);
        }
    }

    fn next_datagram(&mut self) -> (Doing, Nanos) {
        match self.connections[0].socket.receive.pop_front() {
            Some(packet) => {
                let cold = std::mem::take(&mut self.nic.ran);
                (Doing::Copy(packet), self.s.udp_read.0 + if cold { self.s.udp_cold.0 } else { 0 })
            }
            None => (Doing::Nothing, 0),
        }
    }

    fn next_segment(&mut self, now: Nanos, c: usize) -> (Doing, Nanos) {
        let (copy, protocol) = (self.s.tcp_copy.0, self.s.tcp_protocol.0);
        let connection = &mut self.connections[c];
        if connection.call_left > 0 {
            connection.socket.locked = true;
            if let Some(packet) = connection.socket.receive.pop_front() {
                connection.call_left -= 1;
                return (Doing::Copy(packet), copy);
            }
            if let Some(packet) = connection.socket.prequeue.pop_front() {
                return (Doing::Prequeue(packet), protocol + copy);
            }
        }
        // The call returns or sleeps: what it does not copy goes through TCP in order, and the socket is unlocked once the
        // backlog is empty.
        let socket = &mut connection.socket;
        if let Some(packet) = socket.prequeue.pop_front().or_else(|| socket.backlog.pop_front()) {
            return (Doing::Backlog(packet), protocol);
        }
        connection.socket.locked = false;
        self.open_window(now, c);
        let connection = &mut self.connections[c];
        connection.call_left = self.s.read_size;
        if connection.socket.receive.is_empty() && connection.socket.prequeue.is_empty() {
            return (Doing::Nothing, 0);
        }
        self.next_segment(now, c)
    }

    /// A reader that has made much room says so at once.
    fn open_window(&mut self, now: Nanos, c: usize) {
        let room = self.window(c);
        let socket = &self.connections[c].socket;
        let open = socket.edge - socket.next.min(socket.edge);
        if room > 0 && room >= 2 * open && !self.connections[c].killed {
            self.acknowledge(now, c, None);
        }
    }
}
