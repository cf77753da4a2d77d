//! The queues of a TCP receiver in 2.6 (WU-08 to WU-11), and of a UDP socket (WU-12), which has only the receive
//! queue.
//!
//! ```text
//! softirq   socket locked?           -> backlog
//!           program sleeps in recv?  -> prequeue, and wake it
//!           else TCP now: in sequence -> receive queue; beyond a hole -> out-of-sequence queue
//! program   receive queue, then prequeue, then (as it unlocks) backlog, through TCP
//! ```

use crate::check::Packet;
use crate::engine::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// What TCP did with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// In the receive queue, with this many from the out-of-sequence queue.
    Queued,
    /// Next in sequence and copied straight to the program.
    Direct,
    /// In the out-of-sequence queue.
    Beyond,
    /// It was there already.
    Duplicate,
}

/// One socket.
#[derive(Clone, Debug, Default)]
pub(super) struct Socket {
    /// Next segment in sequence.
    pub next: u64,
    /// Right edge of the advertised window.
    pub edge: u64,
    /// In order, acknowledged, without holes.
    pub receive: VecDeque<Packet>,
    /// For the program that sleeps.
    pub prequeue: VecDeque<Packet>,
    /// For the program that has the socket locked.
    pub backlog: VecDeque<Packet>,
    /// Beyond a hole, by sequence.
    pub beyond: BTreeMap<u64, Packet>,
    /// The program works on the socket.
    pub locked: bool,
    /// The program sleeps in recv().
    pub waiting: bool,
    /// Segments that are not acknowledged yet.
    pub unacknowledged: u32,
    /// When the last segment came that was next in sequence.
    pub newest: Nanos,
    /// Packets in receive and out-of-sequence queue and in the program's hand.
    pub held: u64,
}

impl Socket {
    /// TCP takes a segment; `direct` if the program waits for it with its buffer.
    pub fn segment(&mut self, packet: Packet, direct: bool) -> Taken {
        let sequence = u64::from(packet.tag);
        if sequence < self.next || self.beyond.contains_key(&sequence) {
            return Taken::Duplicate;
        }
        if sequence > self.next {
            self.beyond.insert(sequence, packet);
            self.held += 1;
            return Taken::Beyond;
        }
        self.next += 1;
        self.newest = packet.born;
        let direct = direct && self.receive.is_empty() && self.beyond.is_empty();
        if !direct {
            self.receive.push_back(packet);
            self.held += 1;
            while let Some(packet) = self.beyond.remove(&self.next) {
                self.next += 1;
                self.receive.push_back(packet);
            }
        }
        if direct { Taken::Direct } else { Taken::Queued }
    }

    /// Segments that a buffer of `limit` packets has room for.
    pub fn room(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.held)
    }

    /// Packets in all queues.
    pub fn queued(&self) -> u64 {
        (self.receive.len() + self.prequeue.len() + self.backlog.len() + self.beyond.len()) as u64
    }

    /// Takes everything out.
    pub fn clear(&mut self) -> Vec<Packet> {
        self.held -= (self.receive.len() + self.beyond.len()) as u64;
        let queues = [&mut self.receive, &mut self.prequeue, &mut self.backlog];
        let mut all: Vec<Packet> = queues.into_iter().flat_map(|queue| queue.drain(..)).collect();
        all.extend(std::mem::take(&mut self.beyond).into_values());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(tag: u32) -> Packet {
        Packet { tag, ..Packet::default() }
    }

    #[test]
    fn a_hole_is_filled() {
        let mut s = Socket::default();
        assert_eq!(s.segment(packet(1), false), Taken::Beyond);
        assert_eq!(s.segment(packet(1), false), Taken::Duplicate);
        assert_eq!(s.segment(packet(0), true), Taken::Queued);
        assert_eq!((s.next, s.receive.len(), s.held), (2, 2, 2));
        assert_eq!(s.segment(packet(0), false), Taken::Duplicate);
        assert_eq!(s.segment(packet(2), true), Taken::Queued, "others wait before it");
        assert_eq!((s.clear().len(), s.held, s.room(10)), (3, 0, 10));
        assert_eq!(s.segment(packet(3), true), Taken::Direct);
    }
}
