//! How a handle learns the id of its NAPI, and for how long it is tried.
//!
//! A datagram of a flow that the firewall lets through is steered to it; that costs one datagram and no time. An io_uring that polls
//! by the id costs more system calls per turn. A frame that XDP rewrites takes attaching the program, and a firewall may drop it.
//!
//! A source that is polled through an io_uring gets a handle that costs less as soon as a datagram can mark one: that costs one
//! datagram more.
//!
//! # Properties
//! - One takeover tries for [`PATIENCE`] at most and takes no more than [`HANDLES_MAX`] datagrams and [`MARKS_MAX`] frames.
//! - Packets of other queues never keep the second way from being tried, and neither does a CPU that comes late.

use crate::{MILLISECOND, Nanos};

/// Longest wait for a packet that marks the handle, ns.
pub const PATIENCE: Nanos = 10 * MILLISECOND;
/// So long a takeover waits for a steered datagram before it takes what costs more, ns.
pub const STEERED: Nanos = 3 * MILLISECOND;
/// Frames that may be rewritten per takeover in vain; each is lost to its consumer.
pub const MARKS_MAX: u16 = 4;
/// Handles that may be replaced per takeover: with queues loaded alike each try hits the right one by chance.
pub const HANDLES_MAX: u32 = 128;
/// Between two looks at a handle, ns.
pub const NAP: Nanos = 50_000;
/// Frames that somebody would miss and that are spared before one of them marks a handle in peace.
pub const SPARE: u32 = 64;
/// Between two looks at handles that are marked in peace, at first and at most, ns: where no packet comes it doubles at each
/// look. 50 looks a second at 32 silent sources cost 1 % of a CPU.
pub const LOOKS: (Nanos, Nanos) = (20 * MILLISECOND, 200 * MILLISECOND);
/// A queue that gets no packets must not keep the XDP program attached for longer, nor the others of its interface from asking: it is
/// marked at takeover. ns.
pub const IN_PEACE_MAX: Nanos = 10_000 * MILLISECOND;

/// Packets of an interface without a NAPI id after which no more are waited for.
pub const MUTE_PACKETS: u64 = 32;

/// What a handle has learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The id of its source.
    Id(u32),
    /// Nothing yet.
    Nothing,
    /// A packet of another queue, or past every NAPI: it never will.
    Never,
}

/// What a handle has learnt that knows `id` and `got` a packet. `expected` is the id that the kernel lists for its source, 0 if it
/// lists none.
pub fn told(id: Option<u32>, got: bool, expected: u32) -> Told {
    match id {
        None if got => Told::Never,
        None => Told::Nothing,
        Some(id) if expected != 0 && id != expected => Told::Never,
        Some(id) => Told::Id(id),
    }
}

/// What is tried next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A steered datagram may come.
    Steer,
    /// An io_uring, if the kernel has it; else as [`Way::Rewrite`].
    IoUring,
    /// One frame is rewritten.
    Rewrite,
    /// The takeover is refused.
    GiveUp,
}

/// The way after `waited` ns and `strangers` packets of other queues or past every NAPI. `steers`: datagrams can be steered
/// here; `listed`: the kernel lists the NAPI's id. A frame is not rewritten beside: both would be taken, and one in vain.
pub fn way(waited: Nanos, strangers: u32, steers: bool, listed: bool) -> Way {
    let tries = strangers < HANDLES_MAX;
    if tries && steers && waited <= STEERED {
        Way::Steer
    } else if listed {
        // It waits for nothing: whoever was kept from its CPU for longer than anybody waits can still have it.
        Way::IoUring
    } else if tries && waited <= PATIENCE {
        Way::Rewrite
    } else {
        Way::GiveUp
    }
}

/// True while a handle in place of an io_uring is looked for, `waited` ns after the takeover and `strangers` datagrams of other
/// queues or past every NAPI, each of which was lost to its socket.
pub fn improves(waited: Nanos, strangers: u32) -> bool {
    waited <= IN_PEACE_MAX && strangers < u32::from(MARKS_MAX)
}

/// True if frames are rewritten in this search as well, `packets` of the source after a datagram was asked for: a flow that a
/// socket reads has marked the handle by then.
pub fn improves_by_frames(packets: u64) -> bool {
    packets >= MUTE_PACKETS
}

/// How long packets are asked for their ids, ns: from the start on, and each time later on; and the pause between two times. Asking
/// costs each packet of the host, and a queue may stay silent for good.
const ASKED: (Nanos, Nanos) = (10_000 * MILLISECOND, 1_000 * MILLISECOND);
const UNASKED: Nanos = 10_000 * MILLISECOND;
/// A pause ends if in such a time one packet of so many comes by a NAPI that is not known.
const STRANGERS: (Nanos, u64) = (1_000 * MILLISECOND, 16);

/// When the packets of an interface are asked which NAPI polls them, while one of its queues has not told it.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// The end of the present time of asking, or of the last one.
    until: Nanos,
    /// Since then: packets that the interface had received, and those of them that known NAPIs had polled.
    since: Option<(Nanos, u64, u64)>,
    /// Strangers have ended the last pause. They may have no id to tell, so they do not end the next one.
    stranger: bool,
}

impl Asking {
    /// From `now` on, when the source is new.
    pub fn begin(now: Nanos) -> Asking {
        Asking { until: now + ASKED.0, since: None, stranger: false }
    }

    /// True while they are asked. The interface has `received` packets so far, and known NAPIs have `polled` so many of them.
    pub fn is_on(&mut self, now: Nanos, received: u64, polled: u64) -> bool {
        if now < self.until {
            return true;
        }
        let (at, received_then, polled_then) = *self.since.get_or_insert((now, received, polled));
        let came = received.saturating_sub(received_then);
        let strangers = came.saturating_sub(polled.saturating_sub(polled_then));
        let many = !self.stranger && strangers >= MUTE_PACKETS.max(came / STRANGERS.1);
        if !many && now < self.until + UNASKED {
            if now - at >= STRANGERS.0 {
                self.since = Some((now, received, polled));
            }
            return false;
        }
        (self.until, self.since, self.stranger) = (now + ASKED.1, None, many);
        true
    }
}

/// Most looks between two times that packets are asked for new ids, where none tells one.
const ASK_MOST: u32 = 64;

/// Whether the NAPIs that are known still poll. A driver may make its NAPIs anew, with other ids, when somebody changes its rings or its
/// MTU; before Linux 6.8 the kernel does not list them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    /// At the last look: packets that the interface had received, and those of them that known NAPIs had polled.
    at: Option<(u64, u64)>,
    /// Looks until packets are asked again, and between two times.
    waits: u32,
    between: u32,
}

impl Heard {
    /// A look: true if packets come, and none by a NAPI that is known. Where that goes on it is true less and less often.
    pub fn is_deaf(&mut self, received: u64, polled: u64) -> bool {
        let Some((received_then, polled_then)) = self.at.replace((received, polled)) else { return false };
        if polled != polled_then {
            (self.waits, self.between) = (0, 0);
            return false;
        }
        if received.saturating_sub(received_then) < MUTE_PACKETS {
            return false;
        }
        if self.waits > 0 {
            self.waits -= 1;
            return false;
        }
        self.between = (2 * self.between).clamp(1, ASK_MOST);
        self.waits = self.between;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_silent_queue_costs_the_others_little() {
        let (tick, mut asking) = (200 * MILLISECOND, Asking::begin(0));
        // All packets come by the queues that are known; the two counts are read one after the other.
        let looks = (0..600u64).map(|n| asking.is_on(n * tick, n * 200_000 + 150, n * 200_000));
        let asked = looks.filter(|on| *on).count();
        assert!((95..=110).contains(&asked), "asked at {asked} of 600 looks");
        // Until the silent one carries a flood.
        let mut asking = Asking::begin(0);
        assert!(asking.is_on(ASKED.0 - 1, 1000, 1000) && !asking.is_on(ASKED.0, 2000, 2000));
        assert!(!asking.is_on(ASKED.0 + tick, 100_000, 99_900), "a few are counted late");
        assert!(asking.is_on(ASKED.0 + 2 * tick, 300_000, 200_000));
        assert!(asking.is_on(ASKED.0 + 2 * tick + ASKED.1 - 1, 900_000, 900_000), "for a while");
        // Late in a pause as well, whatever the others have carried in it; but who has nothing to tell does not do so twice.
        let mut asking = Asking::begin(0);
        let at = |n: u64| (ASKED.0 + n * tick, n * 40_000);
        assert!((0..40).all(|n| !asking.is_on(at(n).0, at(n).1, at(n).1)));
        assert!(asking.is_on(at(41).0, at(41).1, at(40).1), "a fifth of a second of a flood");
        let strange = |n: u64| asking.is_on(at(n).0, at(n).1, at(40).1);
        let asked = (42..92).map(strange).filter(|on| *on).count();
        assert!((4..=6).contains(&asked), "asked at {asked} of 50 looks");
    }

    #[test]
    fn napis_that_poll_no_more_are_noticed() {
        let mut heard = Heard::default();
        assert!(!heard.is_deaf(50_000, 0), "what came before says nothing");
        assert!(!heard.is_deaf(60_000, 9_000) && !heard.is_deaf(60_031, 9_000));
        assert!(heard.is_deaf(60_063, 9_000));
        assert!(!heard.is_deaf(70_000, 9_000), "they have been asked");
        assert!(heard.is_deaf(80_000, 9_000), "and had no id to tell");
        let mut asked = 0;
        (0..1000).for_each(|n| asked += u32::from(heard.is_deaf(90_000 + n * 1000, 9_000)));
        assert!((1000 / ASK_MOST..40).contains(&asked), "{asked}");
        assert!(!heard.is_deaf(2_000_000, 9_001), "they poll again");
        assert!(heard.is_deaf(2_001_000, 9_001), "at once the next time");
    }

    #[test]
    fn only_the_source_s_own_packet_marks_a_handle() {
        assert_eq!(told(None, false, 7), Told::Nothing);
        assert_eq!(told(None, true, 7), Told::Never, "by the loopback: it has no id");
        assert_eq!(told(Some(8), true, 7), Told::Never, "of another queue");
        assert_eq!((told(Some(7), true, 7), told(Some(8), true, 0)), (Told::Id(7), Told::Id(8)));
    }

    #[test]
    fn the_search_for_a_better_handle_ends() {
        assert!(improves(0, 0) && improves(IN_PEACE_MAX, 3));
        assert!(!improves(IN_PEACE_MAX + 1, 0) && !improves(0, 4));
        assert!(!improves_by_frames(1) && improves_by_frames(100));
    }

    proptest! {
        /// Whatever comes, the second way has its time, and everything ends.
        #[test]
        fn the_second_way_has_its_time(strangers in 0..HANDLES_MAX, listed: bool, steers: bool) {
            let second = way(STEERED + 1, strangers, steers, listed);
            prop_assert_eq!(second, if listed { Way::IoUring } else { Way::Rewrite });
            let last = if listed { Way::IoUring } else { Way::GiveUp };
            prop_assert_eq!(way(PATIENCE + 1, strangers, steers, listed), last);
            prop_assert_eq!(way(0, HANDLES_MAX, steers, listed), last);
            prop_assert_eq!(way(0, strangers, true, listed), Way::Steer, "one packet is enough");
            // Without steering nothing is waited for.
            prop_assert_eq!(way(0, 0, false, listed), if listed { Way::IoUring } else { Way::Rewrite });
        }
    }
}
