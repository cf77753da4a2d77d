//! Whether a source that was taken over because its polls were full, or sockets lost a little, carries a load that polling does no
//! good.
//!
//! [`Load::Bulk`]: a bulk transfer over TCP fills poll after poll and is no overload, since the receiver's window holds the sender.
//! Small turns undo what GRO merges, so that poll mode harms it. A flood is not answered and does not slow down, whatever it is
//! dressed as; one of TCP segments takes the CPU from programs instead, and that sign is judged apart.
//!
//! [`Load::Unknown`]: of hardly any datagram the gate knows where it would end, so it has nothing to shed, and no socket is full that
//! it knows. A poller then hands up what the kernel's own NAPI would, at a higher price. Sockets that overflow are evidence of their
//! own. If programs starve once the kernel has it back, it is polled, and left to the kernel again less and less often.
//!
//! Where nothing counts frames, full polls alone are no evidence ([`crate::dispatch::Dispatch::carries`]).

use crate::gate::tick;
use crate::refusals::RETRY;
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

    /// For how long full polls of it are no evidence, at first. Where programs starve or sockets overflow that is told apart.
    pub fn pause(self) -> Nanos {
        match self {
            Load::Bulk => RETRY.0,
            Load::Unknown => 4 * RETRY.0,
        }
    }

    /// Share of such frames from which on the source carries this load.
    fn least(self) -> Permille {
        900
    }
}

/// One flow in so many that is new, of the datagrams of which nothing is known, leaves nothing to learn.
const NEW: u64 = 16;
/// So many flows, each refused once, are too many to learn: a thousand refusals of each take longer than a flood often lasts.
const MANY: u64 = 16_384;
/// And then it is judged after so long.
const SOON: Nanos = 20 * MILLISECOND;

/// What the kernel's refusals say of the datagrams of which the gate knows nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learning {
    /// Nothing yet.
    Untold,
    /// Flows come again: the gate is about to learn whose they are.
    Learns,
    /// They are of too many flows.
    Hopeless,
}

/// The kernel has `refused` some at this tick, and of so many `unknown` ones since the takeover `flows` were the first of their flow.
pub fn learning(now: u32, refused: u32, flows: u64, unknown: u64) -> Learning {
    // Another CPU may be a tick ahead.
    let lately = refused != 0 && now.saturating_sub(refused) < tick(Load::Unknown.window());
    match lately {
        true if flows.saturating_mul(NEW) < unknown => Learning::Learns,
        true if flows >= MANY => Learning::Hopeless,
        _ => Learning::Untold,
    }
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
    /// A source that is watched from `at` on, with its counts of frames and of those of this load.
    #[must_use]
    pub fn new(load: Load, at: Nanos, frames: u64, part: u64) -> Self {
        Self { load, at, frames, part }
    }

    /// Which.
    #[must_use]
    pub fn load(&self) -> Load {
        self.load
    }

    /// True if what came in the last [`Load::window`] was that; false before it is watched, and while the gate is about to learn. Where
    /// that is hopeless it does not take so long.
    pub fn is(&mut self, now: Nanos, frames: u64, part: u64, learning: Learning) -> bool {
        if now < self.at {
            (self.frames, self.part) = (frames, part);
            return false;
        }
        let window = self.load.window();
        if now - self.at < if learning == Learning::Hopeless { window.min(SOON) } else { window } {
            return false;
        }
        let seen = frames.saturating_sub(self.frames);
        let of_load = part.saturating_sub(self.part);
        *self = Self::new(self.load, now, frames, part);
        learning != Learning::Learns
            && seen >= FRAMES_MIN
            && of_load * 1000 >= seen * u64::from(self.load.least())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_come_again_are_learnt() {
        let told = |refused, flows, unknown| learning(500, refused, flows, unknown);
        assert_eq!(told(499, 1000, 140_000), Learning::Learns, "a thousand flows");
        assert_eq!(told(501, 1000, 140_000), Learning::Learns, "told by another CPU");
        assert_eq!(told(499, 60_000, 140_000), Learning::Hopeless, "sixty thousand");
        assert_eq!(told(499, 9_000, 9_000), Learning::Untold, "all of them are new so far");
        assert_eq!(told(488, 0, 140_000), Learning::Untold, "nobody refuses them");
        assert_eq!(learning(5, 0, 0, 140_000), Learning::Untold, "or ever did");
    }

    #[test]
    fn a_load_is_told_from_floods_of_something_else() {
        for load in Load::ALL {
            let window = load.window();
            let mut carried = Share::new(load, 0, 100, 0);
            let mut is = |now, frames, part| carried.is(now, frames, part, Learning::Untold);
            assert!(!is(window - 1, 1100, 1000), "too early");
            assert!(is(window, 1100, 1000));
            assert!(!is(2 * window, 2100, 1899), "one frame in ten is something else");
            assert!(!is(3 * window, 2110, 1909), "ten frames say nothing");
            assert!(!is(4 * window, 9000, 1909), "a flood of something else");
        }
    }

    #[test]
    fn what_is_hopeless_is_not_waited_for_and_what_is_about_to_be_learnt_is() {
        let window = Load::Unknown.window();
        let share = |at| Share::new(Load::Unknown, at, 0, 0);
        assert!(!share(0).is(SOON - 1, 1000, 1000, Learning::Hopeless));
        assert!(share(0).is(SOON, 1000, 1000, Learning::Hopeless));
        assert!(!share(0).is(SOON, 1000, 1000, Learning::Untold));
        assert!(!share(0).is(2 * window, 1000, 1000, Learning::Learns));
    }

    #[test]
    fn what_came_before_it_is_watched_says_nothing() {
        let window = Load::Unknown.window();
        let mut later = Share::new(Load::Unknown, 1000, 0, 0);
        assert!(!later.is(999, 50_000, 50_000, Learning::Untold));
        assert!(!later.is(1000 + window, 51_000, 50_000, Learning::Untold), "none since");
        assert!(later.is(1000 + 2 * window, 52_000, 51_000, Learning::Untold));
    }
}
