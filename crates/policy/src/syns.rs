//! The gate for TCP at a port that is open: which SYNs for a listener pass, and which segments the kernel can only refuse (MR-22, MR-23).
//!
//! The judgement itself is the C header `src/c/syns.h`, since the packet path must make it: one text, compiled for BPF and for the
//! host. This module is its mirror. How much flooded listeners are given is what [`crate::admission`] leaves, as of a full consumer's
//! room.
//!
//! # Properties
//! - While the budget lasts every SYN passes, however many come.
//! - A listener for which at most [`FREE`] SYNs come in each tick loses none of them, whatever floods others.
//! - A flooded listener gets as many SYNs of a poll as a flooded consumer gets packets ([`crate::gate::room_given`]), and at most
//!   one more in the long run.
//! - Beside one sender of most of its SYNs ([`crate::vote`]), others lose none as long as they send no more than one for each poll.
//! - A listener that is flooded stays known, whatever comes for others: who is new displaces the one with the fewest SYNs.
//! - A destination for which nearly all datagrams are refused gets of a flood at most one packet in fifteen polls, once the budget has
//!   run out, and all as long as it lasts.
//! - A segment of a connection, of one that begins or of one that has ended is never refused, nor is one that may make a connection.

use crate::Permille;
use crate::vote::Vote;

/// SYNs of a tick that make no flood.
pub const FREE: u32 = 64;
/// For so many ticks after the budget ran out last, or [`REFUSED_FLOOD`] segments of one tick were refused, segments are looked up.
pub const SHORT_TICKS: u32 = 60;
/// See [`SHORT_TICKS`].
pub const REFUSED_FLOOD: u32 = 64;
/// One of so many of them, and all for [`REFUSED_TICKS`] after one was refused.
pub const SAMPLE: u32 = 16;
/// See [`SAMPLE`].
pub const REFUSED_TICKS: u32 = 6;
/// For so many ticks after the budget ran out last a destination for which nearly all is refused gets next to nothing.
#[cfg(test)]
const REFUSED_SHORT: u32 = 240;
/// Listeners that share a place of the table, and all of them.
pub const WAYS: usize = 4;
const LISTENERS: usize = 32 * WAYS;

/// Flags of a segment.
pub mod flag {
    /// It resets.
    pub const RST: u32 = 0x04;
    /// It acknowledges.
    pub const ACK: u32 = 0x10;
}

/// What the kernel's own search finds for a frame: `enum weir_taker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Taker {
    /// No socket.
    None = 0,
    /// A listener, and no connection.
    Listens = 1,
    /// The same, and its accept queue is full.
    Full = 2,
    /// A connection, one that begins or has ended, or it cannot be told.
    Other = 3,
}

/// SYNs for one listener: `struct weir_listener`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Listener {
    key: u32,
    tick: u32,
    seen: u32,
    before: u32,
    poll: u32,
    left: u16,
    quiet: u16,
    vote: Vote,
}
const _: () = assert!(size_of::<Listener>() == 32);

unsafe extern "C" {
    fn weir_host_accept_full(queued: u32, most: u32) -> u32;
    fn weir_host_segment_asked(syns: *mut Syns, now: u32, admit: u32) -> u32;
    fn weir_host_segment_was_refused(syns: *mut Syns, now: u32);
    fn weir_host_listener_find(set: *const Listener, key: u32) -> u32;
    fn weir_host_listener_take(set: *mut Listener, key: u32, now: u32) -> u32;
    fn weir_host_syn_fits(listener: *mut Listener, sender: u64, now: u32, poll: u32, admit: u32) -> u32;
    fn weir_host_refused_admit(syns: *mut Syns, now: u32, admit: u32, sheds: u32) -> u32;
    fn weir_host_segment_refused(taker: u32, flags: u32, cookie: u32, used: u32) -> u32;
}

/// Listeners that share a place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Set([Listener; WAYS]);

impl Set {
    /// One more SYN of `sender` for the listener `key` (not 0) in `poll` of its source, at tick `now`, while `admit` is what admission
    /// leaves (0: it is not known): true if it passes.
    pub fn syn(&mut self, key: u32, sender: u64, now: u32, poll: u32, admit: Permille) -> bool {
        // SAFETY: it is an array of as many as the header says, whose layout is that of the header.
        let way = unsafe { weir_host_listener_find(self.0.as_ptr(), key) } as usize;
        if let Some(listener) = self.0.get_mut(way) {
            // SAFETY: only this struct is written.
            return unsafe { weir_host_syn_fits(listener, sender, now, poll, admit.into()) != 0 };
        }
        // SAFETY: as above; only this array is written.
        unsafe { weir_host_listener_take(self.0.as_mut_ptr(), key, now) };
        true
    }

    /// True if the SYNs of `key` are counted.
    pub fn knows(&self, key: u32) -> bool {
        self.0.iter().any(|listener| listener.key == key)
    }
}

/// True if the kernel refuses a SYN because `queued` connections wait to be accepted, of a listener for which `most` may.
pub fn accept_full(queued: u32, most: u32) -> bool {
    // SAFETY: a pure function of its arguments.
    unsafe { weir_host_accept_full(queued, most) != 0 }
}

/// What is counted of one source: `struct weir_syns`.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Syns {
    of: [Listener; LISTENERS],
    short_at: u32,
    refused_at: u32,
    refused: u32,
    segments: u32,
    share_at: u32,
    pad: [u32; 11],
}
const _: () = assert!(size_of::<Syns>() == 32 * LISTENERS + 64);

impl Default for Syns {
    fn default() -> Self {
        let of = [Listener::default(); LISTENERS];
        Self { of, short_at: 0, refused_at: 0, refused: 0, segments: 0, share_at: 0, pad: [0; 11] }
    }
}

impl Syns {
    /// True if a segment, which is no SYN, is looked up at tick `now`.
    pub fn asked(&mut self, now: u32, admit: Permille) -> bool {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_segment_asked(self, now, admit.into()) != 0 }
    }

    /// How much of a poll a destination gets for which nearly all is refused, while `admit` is what admission leaves (0: it is not
    /// known), in mode shed or not.
    pub fn refused_admit(&mut self, now: u32, admit: Permille, sheds: bool) -> Permille {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_refused_admit(self, now, admit.into(), sheds.into()) as Permille }
    }

    /// One was refused at tick `now`.
    pub fn refused(&mut self, now: u32) {
        // SAFETY: as above.
        unsafe { weir_host_segment_was_refused(self, now) };
    }
}

/// True if the kernel can only refuse a segment with these flags, which is no SYN. `cookie`: it acknowledges a number that this host may
/// have sent as a cookie. `used`: the list of sockets has its port.
pub fn segment_refused(taker: Taker, flags: u32, cookie: bool, used: bool) -> bool {
    // SAFETY: a pure function of its arguments.
    unsafe { weir_host_segment_refused(taker as u32, flags, cookie.into(), used.into()) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{POLL, room_given};
    use proptest::prelude::*;

    #[test]
    fn a_flood_gets_its_share_of_each_poll() {
        let mut set = Set::default();
        let (mut passed, now) = (0, 1000);
        for _ in 0..FREE {
            assert!(set.syn(5, 1, now, 1, 10), "no flood yet");
        }
        for poll in 2..102 {
            passed += (0..64).filter(|_| set.syn(5, 1, now, poll, 250)).count();
            assert!(set.syn(7, 1, now, poll, 250) || poll > FREE, "a quiet one");
        }
        assert_eq!(passed, 100 * 16);
        // It goes on being a flood at the beginning of the next tick, and ends a tick after it has stopped.
        let count = |set: &mut Set, now| (0..10).filter(|_| set.syn(5, 1, now, 1, 10)).count();
        assert_eq!(count(&mut set, now + 1), 1);
        assert_eq!(count(&mut set, now + 2), 10);
    }

    /// One sender of 64 SYNs in each poll, others of one each: they have places of their own, however little is admitted.
    #[test]
    fn quiet_senders_pass_beside_a_loud_one() {
        let mut set = Set::default();
        let (mut passed, mut lost) = (0, 0);
        for poll in 0..10_000 {
            let now = 1000 + poll / 100;
            passed += (0..64).filter(|_| set.syn(5, 9, now, poll, 10)).count();
            // Known as a flood, and the loud one as loud.
            let known = poll > 20;
            lost += usize::from(!set.syn(5, 100 + u64::from(poll % 50), now, poll, 10) && known);
        }
        assert_eq!(lost, 0);
        assert!((10_000..10_000 + 2 * 64).contains(&passed), "{passed}");
    }

    /// A flood of 64 datagrams of each poll for a destination for which nearly all is refused: how many pass of 10,000 polls, of which the
    /// budget ran out in the first one.
    #[test]
    fn what_is_refused_costs_next_to_nothing() {
        let (mut set, mut syns) = (Set::default(), Syns::default());
        set.syn(5, 1, 999, 0, 1000);
        let mut passed = 0;
        for poll in 0..10_000u32 {
            let now = 1000 + poll / 100;
            let admit = syns.refused_admit(now, if poll == 0 { 999 } else { 1000 }, false);
            passed += (0..64).filter(|sender| set.syn(5, *sender, now, poll, admit)).count();
        }
        assert!(passed <= FREE as usize + 10_000 / 15 + 1, "{passed}");
    }

    #[test]
    fn a_destination_has_all_while_the_budget_lasts() {
        let mut syns = Syns::default();
        assert_eq!((syns.refused_admit(1000, 1000, false), syns.refused_admit(1001, 0, false)), (1000, 1000));
        assert_eq!(syns.refused_admit(1002, 999, false), 1);
        assert_eq!(
            syns.refused_admit(1002 + REFUSED_SHORT, 1000, false),
            1,
            "it may last because of what is shed"
        );
        assert_eq!(syns.refused_admit(1003 + REFUSED_SHORT, 1000, false), 1000);
        assert_eq!(syns.refused_admit(2000, 0, true), 1, "in mode shed it does");
    }

    /// Where nobody is loud a poll gives no more than it did: those that are spoofed have no places of their own.
    #[test]
    fn a_spoofed_flood_has_one_share() {
        let mut set = Set::default();
        let (mut passed, mut sender) = (0, 0u64);
        for poll in 0..10_000 {
            for _ in 0..64 {
                sender =
                    sender.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                passed += u32::from(set.syn(5, sender >> 32, 1000, poll, 10));
            }
        }
        assert!(passed <= 10_000 + 2 * 64, "{passed}");
    }

    #[test]
    fn the_accept_queue_holds_one_more_than_its_maximum() {
        assert!(!accept_full(0, 0) && accept_full(1, 0));
        assert!(!accept_full(128, 128) && accept_full(129, 128));
    }

    #[test]
    fn segments_are_looked_up_while_the_budget_is_short() {
        let mut syns = Syns::default();
        let asked = |syns: &mut Syns, now, admit| (0..160).filter(|_| syns.asked(now, admit)).count();
        assert_eq!((asked(&mut syns, 100, 1000), asked(&mut syns, 100, 0)), (0, 0), "the budget lasts");
        assert_eq!(asked(&mut syns, 100, 999), 10, "a sample");
        assert_eq!(asked(&mut syns, 100 + SHORT_TICKS, 1000), 10, "it was short");
        syns.refused(100 + SHORT_TICKS);
        assert_eq!(asked(&mut syns, 100 + SHORT_TICKS, 1000), 160, "one was refused");
        assert_eq!(asked(&mut syns, 101 + SHORT_TICKS, 1000), 0, "a second is over");
        assert_eq!(asked(&mut syns, 100 + SHORT_TICKS + REFUSED_TICKS, 10), 160);
        assert_eq!(asked(&mut syns, 101 + SHORT_TICKS + REFUSED_TICKS, 10), 10, "none any more");
    }

    /// Shedding is why the budget lasts, and mode shed has none: the look-ups go on while the flood does, and end a second after it.
    #[test]
    fn segments_are_looked_up_for_as_long_as_many_are_refused() {
        let mut syns = Syns::default();
        assert!((0..SAMPLE).any(|_| syns.asked(100, 10)));
        // As many as are asked about of `frames` in a tick are refused.
        let tick = |syns: &mut Syns, now, frames| {
            (0..frames).filter(|_| syns.asked(now, 0).then(|| syns.refused(now)).is_some()).count()
        };
        for now in 100..1100 {
            let asked = tick(&mut syns, now, 1000);
            assert!(asked > 900, "{asked} of 1000 in tick {now}");
        }
        let late = |syns: &mut Syns, ticks| (0..160).filter(|_| syns.asked(1099 + ticks, 1000)).count();
        assert_eq!((late(&mut syns, SHORT_TICKS), late(&mut syns, SHORT_TICKS + 1)), (10, 0));
        // Those few that any host gets do not make it go on.
        assert!((0..SAMPLE).any(|_| syns.asked(2000, 10)));
        for now in 2000..=2000 + SHORT_TICKS {
            tick(&mut syns, now, REFUSED_FLOOD - 1);
        }
        assert_eq!(tick(&mut syns, 2001 + SHORT_TICKS, 160), 0);
    }

    #[test]
    fn only_what_no_connection_can_have_is_refused() {
        use flag::{ACK, RST};
        for flags in 0..256 {
            for cookie in [false, true] {
                assert!(!segment_refused(Taker::Other, flags, cookie, true), "it is a connection's");
                assert!(!segment_refused(Taker::None, flags, cookie, false), "nobody lists the port");
                for taker in [Taker::None, Taker::Listens, Taker::Full] {
                    let makes_one = cookie && flags & ACK != 0 && flags & RST == 0;
                    assert_eq!(
                        segment_refused(taker, flags, cookie, true),
                        !makes_one,
                        "{taker:?} {flags:#x}"
                    );
                }
            }
        }
    }

    proptest! {
        /// Whatever comes: nothing is shed while the budget lasts.
        #[test]
        fn below_saturation_nothing_is_shed(steps in proptest::collection::vec((1u32..9, 0u32..3, 0u32..3), 1..2000)) {
            let (mut set, mut now, mut poll) = (Set::default(), 100, 1);
            for (key, ticks, polls) in steps {
                (now, poll) = (now + ticks, poll + polls);
                prop_assert!(set.syn(key, 1, now, poll, 1000) && set.syn(key, 1, now, poll, 0));
            }
        }

        /// A quiet listener loses none, whoever floods beside it in the same set and however little is admitted.
        #[test]
        fn a_quiet_listener_loses_nothing(
            admit in 1u16..1000,
            floods in 1u32..9,
            steps in proptest::collection::vec((0u32..3, 0u32..300, 0u32..=FREE), 1..40),
        ) {
            let (mut set, mut now, mut poll) = (Set::default(), 100, 1);
            for (ticks, flood, quiet) in steps {
                now += 1 + ticks;
                for n in 0..flood.max(quiet) {
                    poll += u32::from(n % 16 == 0);
                    if n < flood {
                        for other in 0..floods {
                            set.syn(100 + other, 1, now, poll, admit);
                        }
                    }
                    if n < quiet {
                        prop_assert!(set.syn(7, 1, now, poll, admit), "{n} of {quiet} in tick {now}");
                    }
                }
            }
        }

        /// Each poll of a flood passes its share, which is none in most polls where that is less than one.
        #[test]
        fn the_share_is_kept(admit in 0u16..1200, polls in proptest::collection::vec(1u32..200, 1..50)) {
            let (mut set, now) = (Set::default(), 100);
            (0..=FREE).for_each(|_| { set.syn(5, 1, now, 1, admit); });
            for (poll, arrive) in (2..).zip(polls) {
                let share = room_given(POLL, admit, poll, true);
                let passed = (0..arrive).filter(|_| set.syn(5, 1, now, poll, admit)).count() as u32;
                let expected = if admit == 0 || admit >= 1000 { arrive } else { arrive.min(share) };
                prop_assert_eq!(passed, expected);
            }
        }

        /// Whoever sends: what passes in the long run is bounded.
        #[test]
        fn quiet_senders_are_bounded(
            admit in 1u16..1000,
            polls in proptest::collection::vec(proptest::collection::vec(0u64..3, 0..100), 1..100),
        ) {
            let (mut set, now, mut passed, all) = (Set::default(), 100, 0, polls.len() as u32);
            (0..=FREE).for_each(|_| { set.syn(5, 1, now, 1, admit); });
            for (poll, senders) in (2..).zip(polls) {
                passed += senders.iter().filter(|s| set.syn(5, **s, now, poll, admit)).count() as u32;
            }
            let shares: u32 = (1..2 + all).map(|poll| room_given(POLL, admit, poll, true)).sum();
            prop_assert!(passed <= shares + all + 1, "{passed} in {all}");
        }

        /// One flood stays known beside any number of quiet listeners that come and go.
        #[test]
        fn a_flood_stays_known(others in proptest::collection::vec(1000u32..1_000_000, 1..500)) {
            let (mut set, now) = (Set::default(), 100);
            (0..1000).for_each(|_| { set.syn(5, 1, now, 1, 100); });
            for other in others {
                set.syn(other, 1, now + 1, 2, 100);
                prop_assert!(set.knows(5));
                set.syn(5, 1, now + 1, 2, 100);
            }
        }
    }
}
