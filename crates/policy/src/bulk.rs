//! Whether a source that was taken over because its polls were full, or sockets lost a little, carries bulk TCP, which slows
//! itself down.
//!
//! A bulk transfer fills poll after poll and is no overload: the receiver's window holds the sender. Small turns undo
//! what GRO merges, so that poll mode harms it. A flood is not answered and does not slow down, whatever it is dressed
//! as; one of TCP segments takes the CPU from programs instead, and that sign is judged apart.
//!
//! Where nothing counts frames the two look alike, and full polls alone are no evidence ([`crate::dispatch::Dispatch::was_bulk`]).

use crate::{MILLISECOND, Nanos, Permille};

/// Time between two judgements.
pub const WINDOW: Nanos = 10 * MILLISECOND;
/// Fewer frames in a window say nothing.
const FRAMES_MIN: u64 = 64;
/// Share of TCP segments of connections that stand, from which on the load is bulk TCP.
const BULK: Permille = 900;

/// Counts at the last judgement.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    at: Nanos,
    frames: u64,
    tcp: u64,
}

impl Bulk {
    /// A source that was taken over at `now`, with its counts of frames and of TCP segments of connections that stand.
    #[must_use]
    pub fn new(now: Nanos, frames: u64, tcp: u64) -> Self {
        Self { at: now, frames, tcp }
    }

    /// True if what came in the last [`WINDOW`] was bulk TCP.
    pub fn is(&mut self, now: Nanos, frames: u64, tcp: u64) -> bool {
        if now.saturating_sub(self.at) < WINDOW {
            return false;
        }
        let seen = frames.saturating_sub(self.frames);
        let segments = tcp.saturating_sub(self.tcp);
        *self = Self::new(now, frames, tcp);
        seen >= FRAMES_MIN && segments * 1000 >= seen * u64::from(BULK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_tcp_is_told_from_floods() {
        let mut bulk = Bulk::new(0, 100, 0);
        assert!(!bulk.is(WINDOW - 1, 1100, 1000), "too early");
        assert!(bulk.is(WINDOW, 1100, 1000));
        assert!(!bulk.is(2 * WINDOW, 2100, 1899), "one frame in ten is something else");
        assert!(!bulk.is(3 * WINDOW, 2110, 1909), "ten frames say nothing");
        assert!(!bulk.is(4 * WINDOW, 9000, 1909), "a flood of datagrams");
    }
}
