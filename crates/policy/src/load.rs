//! Whether a source that was taken over because its polls were full, or sockets lost a little, carries a load that polling does no
//! good.
//!
//! [`Load::Bulk`]: a bulk transfer over TCP fills poll after poll and is no overload, since the receiver's window holds the sender.
//! Small turns undo what GRO merges, so that poll mode harms it. A flood is not answered and does not slow down, whatever it is
//! dressed as; one of TCP segments takes the CPU from programs instead, and that sign is judged apart.
//!
//! [`Load::Unknown`]: of hardly any datagram the gate knows where it would end, so it has nothing to shed, and no socket is full that
//! it knows. A poller then hands up what the kernel's own NAPI would, at a higher price. If programs lack CPU time, or sockets
//! overflow, that is evidence of its own.
//!
//! Where nothing counts frames, full polls alone are no evidence ([`crate::dispatch::Dispatch::carries`]).

use crate::gate::tick;
use crate::{MILLISECOND, Nanos, Permille};

/// Fewer frames in a window say nothing.
const FRAMES_MIN: u64 = 64;

/// What polling does no good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// TCP segments of connections that stand.
    Bulk,
    /// Datagrams of which the gate knows nothing.
    Unknown,
}

impl Load {
    /// Each of them.
    pub const ALL: [Load; 2] = [Load::Bulk, Load::Unknown];

    /// Time between two judgements. That a datagram is nobody's takes a thousand refusals to learn, and that a socket is full a look.
    pub fn window(self) -> Nanos {
        match self {
            Load::Bulk => 10 * MILLISECOND,
            Load::Unknown => 200 * MILLISECOND,
        }
    }

    /// Share of such frames from which on the source carries this load.
    fn least(self) -> Permille {
        900
    }
}

/// One flow in so many that is new, of the datagrams of which nothing is known, leaves nothing to learn.
const NEW: u64 = 16;

/// True if the gate is about to learn whose the datagrams are, of which it knows nothing yet: the kernel has `refused` some lately, in
/// ticks, and of so many `unknown` ones since the takeover only `flows` were the first of their flow.
pub fn learns(now: u32, refused: u32, flows: u64, unknown: u64) -> bool {
    // Another CPU may be a tick ahead.
    let lately = refused != 0 && now.saturating_sub(refused) < tick(Load::Unknown.window());
    lately && flows.saturating_mul(NEW) < unknown
}

/// Counts of one load at the last judgement.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    load: Load,
    at: Nanos,
    frames: u64,
    part: u64,
}

impl Share {
    /// A source that was taken over at `now`, with its counts of frames and of those of this load.
    #[must_use]
    pub fn new(load: Load, now: Nanos, frames: u64, part: u64) -> Self {
        Self { load, at: now, frames, part }
    }

    /// Which.
    #[must_use]
    pub fn load(&self) -> Load {
        self.load
    }

    /// True if what came in the last [`Load::window`] was that.
    pub fn is(&mut self, now: Nanos, frames: u64, part: u64) -> bool {
        if now.saturating_sub(self.at) < self.load.window() {
            return false;
        }
        let seen = frames.saturating_sub(self.frames);
        let of_load = part.saturating_sub(self.part);
        *self = Self::new(self.load, now, frames, part);
        seen >= FRAMES_MIN && of_load * 1000 >= seen * u64::from(self.load.least())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_come_again_are_learnt() {
        assert!(learns(500, 499, 1000, 140_000), "a thousand flows");
        assert!(learns(500, 501, 1000, 140_000), "told by another CPU");
        assert!(!learns(500, 499, 60_000, 140_000), "sixty thousand");
        assert!(!learns(500, 488, 0, 140_000) && !learns(5, 0, 0, 140_000), "nobody refuses them");
    }

    #[test]
    fn a_load_is_told_from_floods_of_something_else() {
        for load in Load::ALL {
            let window = load.window();
            let mut carried = Share::new(load, 0, 100, 0);
            assert!(!carried.is(window - 1, 1100, 1000), "too early");
            assert!(carried.is(window, 1100, 1000));
            assert!(!carried.is(2 * window, 2100, 1899), "one frame in ten is something else");
            assert!(!carried.is(3 * window, 2110, 1909), "ten frames say nothing");
            assert!(!carried.is(4 * window, 9000, 1909), "a flood of something else");
        }
    }
}
