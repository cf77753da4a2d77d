//! The output interface: queue, descriptors, wire.

use super::state::place;
use crate::check::{Ledger, Packet};
use crate::engine::Nanos;
use results::OutputWait;
use std::collections::VecDeque;

/// A wait longer than this counts as starvation, ns.
const STARVED: Nanos = 2_000_000;

/// See the module.
#[derive(Clone, Debug)]
pub struct Output {
    queue: VecDeque<Packet>,
    queue_max: usize,
    /// Packets in descriptors, the first one on the wire.
    loaded: VecDeque<Packet>,
    descriptors: usize,
    /// Descriptors whose packet is sent and whose completion is not handled.
    pub done: usize,
    /// When the packet on the wire is sent.
    sending_until: Option<Nanos>,
    frame: Nanos,
    /// Since when packets wait and nothing is sent.
    stuck_since: Option<Nanos>,
    starved: Nanos,
    longest: Nanos,
}

impl Output {
    /// With a queue, descriptors, and the time of a frame.
    pub fn new(queue_max: usize, descriptors: usize, frame: Nanos) -> Self {
        Self {
            queue: VecDeque::new(),
            queue_max,
            loaded: VecDeque::new(),
            descriptors,
            done: 0,
            sending_until: None,
            frame,
            stuck_since: None,
            starved: 0,
            longest: 0,
        }
    }

    /// A packet is to be sent; it is lost if the queue is full.
    pub fn send(&mut self, now: Nanos, packet: Packet, ledger: &mut Ledger) {
        if self.queue.len() >= self.queue_max {
            ledger.drop(&packet, place::OUTPUT);
            return;
        }
        self.queue.push_back(packet);
        self.load(now);
    }

    /// Fills free descriptors.
    pub fn load(&mut self, now: Nanos) {
        while self.loaded.len() + self.done < self.descriptors {
            let Some(packet) = self.queue.pop_front() else { break };
            self.loaded.push_back(packet);
        }
        if self.sending_until.is_none() && !self.loaded.is_empty() {
            self.sending_until = Some(now + self.frame);
        }
        self.watch(now);
    }

    /// One completion is handled: its descriptor is free, and filled by the next [`Self::load`]. An interrupt may find
    /// nothing, since the polling loop was there first.
    pub fn reclaim(&mut self) {
        self.done = self.done.saturating_sub(1);
    }

    /// When the wire is next free.
    pub fn sent_at(&self) -> Option<Nanos> {
        self.sending_until
    }

    /// The packet on the wire is sent.
    pub fn sent(&mut self, now: Nanos) -> Option<Packet> {
        self.sending_until = None;
        let packet = self.loaded.pop_front();
        self.done += usize::from(packet.is_some());
        self.load(now);
        packet
    }

    /// Packets that wait or are being sent.
    pub fn len(&self) -> usize {
        self.queue.len() + self.loaded.len()
    }

    /// True if a packet waits for a descriptor that a completion would free.
    pub fn waits(&self) -> bool {
        !self.queue.is_empty() && self.done > 0
    }

    fn watch(&mut self, now: Nanos) {
        let stuck = !self.queue.is_empty() && self.sending_until.is_none();
        match (self.stuck_since, stuck) {
            (None, true) => self.stuck_since = Some(now),
            (Some(since), false) => {
                self.stuck_since = None;
                self.count(now - since);
            }
            _ => {}
        }
    }

    fn count(&mut self, waited: Nanos) {
        self.longest = self.longest.max(waited);
        if waited > STARVED {
            self.starved += waited;
        }
    }

    /// Waits of packets behind descriptors that nobody freed (MR-05), up to `now`.
    pub fn starvation(&mut self, now: Nanos) -> OutputWait {
        if let Some(since) = self.stuck_since.take() {
            self.count(now - since);
            self.stuck_since = Some(now);
        }
        OutputWait {
            starved_share: self.starved as f64 / now.max(1) as f64,
            longest_us: self.longest as f64 / 1000.0,
        }
    }
}
