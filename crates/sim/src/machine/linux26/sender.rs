//! A TCP sender of 2004: slow start, congestion avoidance, selective acknowledgements, timeout. Counts in segments.
//!
//! It is as fast as its window and the link allow; its own CPU is no limit (two at 3 GHz).

use crate::engine::Nanos;
use std::collections::VecDeque;

const SACKED: u8 = 1;
const LOST: u8 = 2;
const AGAIN: u8 = 4;
/// Segments that must have arrived behind a missing one before it is sent again.
const REORDERING: u64 = 3;
/// First congestion window.
const FIRST: u64 = 2;
/// A slow-start threshold from here on is none.
const UNLIMITED: u64 = 0xffff;
/// Longest timeout as a power of two of the shortest.
const BACKOFF_MAX: u32 = 9;

/// An acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    /// Next segment that the receiver waits for.
    pub next: u64,
    /// First segment that it has no room for.
    pub edge: u64,
    /// The segment out of order that caused it.
    pub sacked: Option<u64>,
    /// When the segment that it acknowledges was sent: the time stamp's echo.
    pub echo: Nanos,
}

/// State of one connection's sender.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    una: u64,
    next: u64,
    edge: u64,
    window: u64,
    threshold: u64,
    grown: u64,
    /// Flags of `una..next`.
    sent: VecDeque<u8>,
    sacked: u64,
    /// Lost and not sent again.
    lost: u64,
    highest: u64,
    /// Up to here losses are marked.
    marked: u64,
    /// No segment below is lost and not sent again.
    hint: u64,
    recovery: Option<u64>,
    /// Time of the first timeout, window and threshold before it: what is undone if it was needless.
    prior: Option<(Nanos, u64, u64)>,
    backoff: u32,
    last: Nanos,
    rto: Nanos,
    ended: bool,
    /// Timeouts so far.
    pub timeouts: u64,
}

impl Sender {
    /// With this first right edge of the receiver's window, shortest timeout and first slow-start threshold.
    pub fn new(edge: u64, rto: Nanos, threshold: u64) -> Self {
        Self {
            una: 0,
            next: 0,
            edge,
            window: FIRST,
            threshold,
            grown: 0,
            sent: VecDeque::new(),
            sacked: 0,
            lost: 0,
            highest: 0,
            marked: 0,
            hint: 0,
            recovery: None,
            prior: None,
            backoff: 0,
            last: 0,
            rto,
            ended: false,
            timeouts: 0,
        }
    }

    /// What the route remembers as slow-start threshold once this connection is closed: tcp_update_metrics() of 2.6.12.
    /// `known` is what it knew, [`u64::MAX`] for nothing.
    pub fn remembered(&self, known: u64) -> u64 {
        let more = |value: u64| if known == u64::MAX { known } else { known.max(value) };
        if self.threshold >= UNLIMITED {
            more(self.window / 2)
        } else if self.window > self.threshold && self.recovery.is_none() && self.prior.is_none() {
            self.threshold.max(self.window / 2)
        } else {
            more(self.threshold)
        }
    }

    /// No new data from now on.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Everything sent is acknowledged.
    pub fn is_done(&self) -> bool {
        self.una == self.next
    }

    fn in_flight(&self) -> u64 {
        (self.next - self.una) - self.sacked - self.lost
    }

    /// The segment to send at `now`, until there is none.
    pub fn send(&mut self, now: Nanos) -> Option<u64> {
        if self.una == self.next && now.saturating_sub(self.last) > self.rto && self.window > FIRST {
            // After a pause the old window says nothing about the path.
            self.threshold = self.threshold.min(u64::MAX / 4).max(self.window * 3 / 4);
            self.window = FIRST;
        }
        if self.in_flight() >= self.window {
            return None;
        }
        if self.lost > 0 {
            self.hint = self.hint.max(self.una);
            while self.hint < self.next {
                let flags = &mut self.sent[(self.hint - self.una) as usize];
                self.hint += 1;
                if *flags & (LOST | AGAIN | SACKED) == LOST {
                    *flags |= AGAIN;
                    self.lost -= 1;
                    self.last = now;
                    return Some(self.hint - 1);
                }
            }
        }
        if self.ended || self.next >= self.edge {
            return None;
        }
        self.sent.push_back(0);
        self.next += 1;
        self.last = now;
        Some(self.next - 1)
    }

    /// An acknowledgement arrives.
    pub fn acknowledged(&mut self, ack: Ack) {
        self.edge = self.edge.max(ack.edge);
        let limited = self.in_flight() >= self.window;
        let mut fresh = 0;
        while self.una < ack.next.min(self.next) {
            let flags = self.sent.pop_front().unwrap_or(0);
            self.una += 1;
            fresh += 1;
            self.sacked -= u64::from(flags & SACKED != 0);
            self.lost -= u64::from(flags & (LOST | AGAIN | SACKED) == LOST);
        }
        if fresh > 0 {
            self.backoff = 0;
            if let Some((at, window, threshold)) = self.prior.take()
                && ack.echo < at
            {
                self.undo(window, threshold);
            }
        }
        if let Some(flags) =
            ack.sacked.and_then(|n| n.checked_sub(self.una)).and_then(|n| self.sent.get_mut(n as usize))
            && *flags & SACKED == 0
        {
            self.lost -= u64::from(*flags & (LOST | AGAIN) == LOST);
            *flags |= SACKED;
            self.sacked += 1;
            self.highest = self.highest.max(ack.sacked.unwrap_or(0));
            self.mark();
        }
        if self.recovery.is_some_and(|end| self.una >= end) {
            self.recovery = None;
        }
        if self.recovery.is_none() && limited && fresh > 0 {
            self.grow();
        }
    }

    /// The echo is older than the timeout: nothing was lost, the receiver was late.
    fn undo(&mut self, window: u64, threshold: u64) {
        (self.window, self.threshold) = (window, threshold);
        self.lost = 0;
        for flags in &mut self.sent {
            *flags &= SACKED;
        }
        self.marked = self.una;
    }

    /// 2.6.12 counts acknowledgements, not segments.
    fn grow(&mut self) {
        if self.window < self.threshold {
            self.window += 1;
            return;
        }
        self.grown += 1;
        if self.grown >= self.window {
            self.grown -= self.window;
            self.window += 1;
        }
    }

    /// Marks as lost what is missing before the highest segment that has arrived.
    fn mark(&mut self) {
        self.marked = self.marked.max(self.una);
        let mut found = false;
        while self.marked + REORDERING <= self.highest {
            let flags = &mut self.sent[(self.marked - self.una) as usize];
            if *flags & (SACKED | LOST | AGAIN) == 0 {
                *flags |= LOST;
                self.lost += 1;
                self.hint = self.hint.min(self.marked);
                found = true;
            }
            self.marked += 1;
        }
        if found && self.recovery.is_none() {
            self.threshold = (self.window / 2).max(FIRST);
            self.window = self.threshold;
            self.recovery = Some(self.next);
        }
    }

    /// When the timeout comes, if nothing else does; `None` with nothing in flight.
    pub fn deadline(&self) -> Option<Nanos> {
        (self.una < self.next).then(|| self.last + (self.rto << self.backoff))
    }

    /// The timeout.
    pub fn timed_out(&mut self, now: Nanos) {
        self.timeouts += 1;
        if self.prior.is_none() {
            self.prior = Some((now, self.window, self.threshold));
        }
        self.threshold = (self.in_flight() / 2).max(FIRST);
        self.window = 1;
        self.grown = 0;
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.last = now;
        self.recovery = None;
        self.lost = 0;
        for flags in &mut self.sent {
            if *flags & SACKED == 0 {
                *flags = LOST;
                self.lost += 1;
            }
        }
        self.hint = self.una;
        self.marked = self.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(next: u64, sacked: Option<u64>) -> Ack {
        Ack { next, edge: 1000, sacked, echo: 1000 }
    }

    fn all(sender: &mut Sender) -> Vec<u64> {
        std::iter::from_fn(|| sender.send(0)).collect()
    }

    #[test]
    fn slow_start_grows_by_one_per_acknowledgement() {
        let mut s = Sender::new(1000, 200, u64::MAX);
        assert_eq!(all(&mut s), [0, 1]);
        s.acknowledged(ack(1, None));
        s.acknowledged(ack(2, None));
        assert_eq!(all(&mut s), [2, 3, 4]);
        assert!(s.deadline().is_some() && !s.is_done());
    }

    #[test]
    fn the_receiver_s_window_bounds() {
        let mut s = Sender::new(1, 200, u64::MAX);
        assert_eq!(all(&mut s), [0]);
        s.acknowledged(Ack { next: 1, edge: 1, sacked: None, echo: 0 });
        assert_eq!((all(&mut s), s.is_done()), (vec![], true));
    }

    #[test]
    fn a_lost_segment_is_sent_again_once_and_halves_the_window() {
        let mut s = Sender::new(1000, 200, u64::MAX);
        s.window = 10;
        assert_eq!(all(&mut s).len(), 10);
        for n in 1..=3 {
            s.acknowledged(ack(0, Some(n)));
        }
        assert_eq!((s.window, all(&mut s)), (5, vec![]));
        s.acknowledged(ack(0, Some(4)));
        s.acknowledged(ack(0, Some(5)));
        assert_eq!(all(&mut s), [0]);
        s.acknowledged(ack(6, None));
        assert_eq!(s.lost + s.sacked, 0);
    }

    #[test]
    fn a_timeout_sends_everything_again_that_has_not_arrived() {
        let mut s = Sender::new(1000, 200, u64::MAX);
        s.window = 4;
        assert_eq!(all(&mut s).len(), 4);
        s.acknowledged(ack(0, Some(2)));
        s.timed_out(200);
        assert_eq!(all(&mut s), [0]);
        s.acknowledged(ack(1, None));
        assert_eq!(all(&mut s), [1, 3]);
    }

    #[test]
    fn the_route_remembers_congestion_avoidance_and_forgets_slow_start() {
        let mut s = Sender::new(1000, 200, 64);
        (s.window, s.threshold) = (100, 64);
        assert_eq!(s.remembered(640), 64);
        s.window = 200;
        assert_eq!(s.remembered(640), 100);
        s.window = 2;
        assert_eq!((s.remembered(640), s.remembered(10), s.remembered(u64::MAX)), (640, 64, u64::MAX));
        s.threshold = u64::MAX;
        s.window = 3000;
        assert_eq!((s.remembered(640), s.remembered(u64::MAX)), (1500, u64::MAX));
    }

    #[test]
    fn a_needless_timeout_is_undone() {
        let mut s = Sender::new(1000, 200, u64::MAX);
        s.window = 8;
        assert_eq!(all(&mut s).len(), 8);
        s.timed_out(200);
        assert_eq!((all(&mut s), s.window), (vec![0], 1));
        s.acknowledged(Ack { next: 4, edge: 1000, sacked: None, echo: 10 });
        assert_eq!((s.lost, s.window, s.in_flight()), (0, 9, 4));
    }
}
