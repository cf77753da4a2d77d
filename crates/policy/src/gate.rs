//! The gate: where a frame would end, judged before a buffer exists for it (MR-22, MR-23).
//!
//! The judgement itself is the C header `src/c/gate.h`, since the packet path must make it: one text, compiled for BPF and for the
//! host. This module is its mirror, and says how long what was learnt holds.
//!
//! # Properties
//! - A port that a socket has by the list, or that a packet has left from since the list was begun, is never nobody's: of what no
//!   socket took there the kernel's search tells frame by frame whose it is.
//! - A packet that leaves from a port ends at once what was learnt of it.
//! - What a filter drops for a port that no socket has by the list is nobody's, whoever sends it; where a socket may have come since,
//!   the kernel's search tells.
//! - What no drop confirms for [`UNTIL_BOUND`] (or [`BRIEFLY`]) ends by itself.
//! - A flow of which a filter takes one packet of seven or more is never nobody's, however fast the rest is refused. What a limit of
//!   its rate takes of a flow it gets with the gate too, after some seconds: the trickle brings as much, or it is nobody's no more.
//! - A full consumer judges only frames for destinations of which it has refused a packet within a second.
//! - Where a socket of a port is bound to an interface that stands on a guarded one and another one is not, no consumer judges frames
//!   for that port.
//! - Of the room of a consumer no poll is given more than fits, and each gets at least one packet if one fits.

use crate::host::STAYS;
use crate::{MILLISECOND, Nanos, Permille};

/// Nanoseconds of a tick, as a power of two.
pub const TICK_SHIFT: u32 = 24;
/// For how many ticks a port counts as nobody's after the last packet that no socket took, where a bind ends it: one second.
pub const UNTIL_BOUND: u32 = 60;
/// The same where nothing tells of a bind: 50 ms, as long as a lease.
pub const BRIEFLY: u32 = 3;
/// A list of sockets counts for so many ticks, 2 minutes: what came later is seen when it is bound or sends.
pub const LISTED_MOST: u32 = 7200;
/// One of so many frames of a source passes whatever is known of it.
pub const TRICKLE: u64 = 256;
/// Time between the beginnings of two lists of sockets.
pub const LIST_EVERY: Nanos = 1000 * MILLISECOND;
/// Longest such time: half as long as a list counts.
pub const LIST_LATEST: Nanos = 60_000 * MILLISECOND;
/// Part of the time that lists may take: they come less often where they take long. The kernel walks its table of TCP connections,
/// 2 x 4.5 ms for an empty one of 262,144 places.
pub const LIST_SHARE: Nanos = 1000;
/// That one is read in time that nobody else wants; after so long in the time of programs too.
pub const LIST_IDLE: Nanos = 200 * MILLISECOND;

/// The tick of a time; never 0, which stands for "never".
pub fn tick(now: Nanos) -> u32 {
    ((now >> TICK_SHIFT) as u32).max(1)
}

/// Permille of the connections a table holds from which on it counts as full: there the kernel begins to throw some out.
const FULL: u64 = 950;

/// True if a table of at most `most` connections (0: any number) that holds `count` refuses packets for want of a place, so that a
/// refusal says nothing about the packet.
pub fn is_full(count: u64, most: u64) -> bool {
    most > 0 && count.saturating_mul(1000) >= most.saturating_mul(FULL)
}

/// When the next list is begun, if the last one was begun at `begun` and `took` so much CPU time.
pub fn next_list(begun: Nanos, took: Nanos) -> Nanos {
    begun.saturating_add(took.saturating_mul(LIST_SHARE).clamp(LIST_EVERY, LIST_LATEST))
}

/// A socket of UDP, as one that has a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnPort {
    /// It takes datagrams of one peer only.
    pub connected: bool,
    /// Index of the interface that it is bound to; 0: none.
    pub interface: u32,
}

/// Who tells which consumer gets a datagram for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The port: one socket takes all.
    Port,
    /// The kernel's search for a socket.
    Search,
    /// Nobody can: the search is told the interface that a frame came by, not one that stands on it.
    Nobody,
}

/// Who judges frames for a port that these sockets have. `stands`: whether an interface stands on a guarded one; `redirects`: programs
/// choose sockets, which the search asks.
pub fn judge(
    sockets: impl IntoIterator<Item = OnPort>,
    stands: impl Fn(u32) -> bool,
    redirects: bool,
) -> Judge {
    let (mut count, mut connected, mut above) = (0u32, false, 0u32);
    for socket in sockets {
        count += 1;
        connected |= socket.connected;
        above += u32::from(stands(socket.interface));
    }
    match (count, above) {
        (_, above) if above > 0 && above < count => Judge::Nobody,
        (1, _) if !connected && !redirects => Judge::Port,
        _ => Judge::Search,
    }
}

/// Part of the time that looks for closed sockets may take.
pub const LOOK_SHARE: Nanos = 100;
/// Longest time between two of them.
pub const LOOK_LATEST: Nanos = 30_000 * MILLISECOND;

/// From when on it is looked again which consumers are closed, if the last look began at `begun` and took `took`. Among a few thousand
/// sockets that is at once, whenever somebody asks.
pub fn next_look(begun: Nanos, took: Nanos) -> Nanos {
    begun.saturating_add(took.saturating_mul(LOOK_SHARE).min(LOOK_LATEST))
}

/// So long after they were detached the programs that learn stay away.
pub const BLIND: Nanos = (UNTIL_BOUND as Nanos + 2) << TICK_SHIFT;

/// What is to be done about the programs that learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// They are attached: what leaves and what is bound is seen from here on.
    Attach,
    /// They are detached: from here on nothing that was learnt counts.
    Detach,
}

/// When the programs that learn are attached: while a source is polled or sheds, or containers lose, and [`STAYS`] longer. While they
/// are not, nobody sees what leaves, so they come back only when everything that was learnt before has run out ([`BLIND`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Watching {
    attached: bool,
    needed_at: Nanos,
    detached_at: Option<Nanos>,
}

impl Watching {
    /// What is to be done at `now`; `needed`: sources are polled or shed, or programs of other namespaces lose.
    pub fn next(&mut self, now: Nanos, needed: bool) -> Option<Watch> {
        if needed {
            self.needed_at = now;
        }
        if self.attached {
            let over = now.saturating_sub(self.needed_at) > STAYS;
            return over.then(|| {
                self.detached(now);
                Watch::Detach
            });
        }
        let fresh = self.detached_at.is_none_or(|at| now.saturating_sub(at) > BLIND);
        (needed && fresh).then(|| {
            self.attached = true;
            Watch::Attach
        })
    }

    /// They are gone by `now`: detaching waits for the whole kernel, and until then they learn.
    pub fn detached(&mut self, now: Nanos) {
        self.attached = false;
        self.detached_at = Some(now);
    }

    /// Nothing can be learnt of what came: they need not stay for the next onset.
    pub fn learn_nothing(&mut self) {
        self.needed_at = 0;
    }

    /// The kernel has refused them.
    pub fn refused(&mut self) {
        self.attached = false;
    }
}

/// Local addresses that a port is remembered for.
const WAYS: usize = 3;

/// One local address of a port, and when no socket took a packet for it last.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    address: u32,
    dropped: u32,
}

/// What is known of one port of one protocol: `struct weir_port`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Port {
    left: u32,
    bound: u32,
    ways: [Way; WAYS],
}
const _: () = assert!(size_of::<Port>() == 32);

unsafe extern "C" {
    #[cfg(test)]
    fn weir_host_recent(tick: u32, now: u32, most: u32) -> u32;
    #[cfg(test)]
    fn weir_host_size_learnt(size: u32, seen: u32) -> u32;
    fn weir_host_nobodys(port: *const Port, address: u32, now: u32, most: u32) -> u32;
    fn weir_host_learns(port: *const Port, used: u32, listed: u32, now: u32, most: u32) -> u32;
    fn weir_host_learn(port: *mut Port, address: u32, now: u32) -> u32;
    fn weir_host_whose(
        port: *const Port,
        address: u32,
        used: u32,
        listed: u32,
        now: u32,
        most: u32,
        listed_most: u32,
    ) -> u32;
    #[cfg(test)]
    fn weir_host_port_ticks(key: u32, most: u32) -> u32;
    #[cfg(test)]
    fn weir_host_whose_refused(port: *const Port, listed: u32, now: u32, most: u32, listed_most: u32) -> u32;
    fn weir_host_refuse(refusal: *mut Refusal, flow: u32, now: u32) -> u32;
    fn weir_host_refuse_for(refusal: *mut Refusal, destination: u32, now: u32) -> u32;
    fn weir_host_mostly_refused(refusal: *const Refusal, destination: u32, now: u32, most: u32) -> u32;
    #[cfg(test)]
    fn weir_host_beyond(port: u32, full: u32, translated: u32, told: u32) -> u32;
    #[cfg(test)]
    fn weir_host_refusals_tell(spoken: u32, full: u32, told: u32) -> u32;
    fn weir_host_ended(end: *mut End, mark: u32, now: u32);
    fn weir_host_ends(end: *const End, mark: u32, now: u32) -> u32;
    fn weir_host_refused(refusal: *const Refusal, flow: u32, left: u32, now: u32, most: u32) -> u32;
    fn weir_host_room(size: u32, held: u32, truesize: u32, slices: u32) -> u32;
    fn weir_host_room_given(room: u32, admit: u32, poll: u32, flooded: u32) -> u32;
    fn weir_host_fragments(admit: u32) -> u32;
}

/// Whose a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Somebody's, or nobody knows.
    Somebodys,
    /// Nobody's.
    Nobodys,
    /// The kernel's search for its socket tells.
    Ask,
}

impl Port {
    /// A packet has left from it, or a socket was bound to it.
    pub fn left(&mut self, now: u32) {
        self.left = now;
    }

    /// True if a frame for it and `address` is nobody's.
    pub fn nobodys(&self, address: u32, now: u32, most: u32) -> bool {
        // SAFETY: a pure function of its arguments and of this struct, whose layout is that of the header.
        unsafe { weir_host_nobodys(self, address, now, most) != 0 }
    }

    /// No socket took a packet for it and `address`, whoever has the port.
    pub fn seen(&mut self, address: u32, now: u32) {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_learn(self, address, now) };
    }

    /// Whose a frame for it and `address` is, if the list of sockets that was begun at `listed` has it or not (`used`).
    pub fn whose(&self, address: u32, used: bool, listed: u32, now: u32, most: u32) -> Whose {
        // SAFETY: a pure function of its arguments and of this struct.
        match unsafe { weir_host_whose(self, address, used.into(), listed, now, most, LISTED_MOST) } {
            1 => Whose::Nobodys,
            2 => Whose::Ask,
            _ => Whose::Somebodys,
        }
    }

    /// Whose a frame for it is where a filter has dropped all that was for it and one of its addresses, and the list of sockets that
    /// was begun at `listed` does not have it.
    #[cfg(test)]
    fn whose_refused(&self, listed: u32, now: u32, most: u32) -> Whose {
        // SAFETY: a pure function of its arguments and of this struct.
        match unsafe { weir_host_whose_refused(self, listed, now, most, LISTED_MOST) } {
            1 => Whose::Nobodys,
            _ => Whose::Ask,
        }
    }

    /// No socket took a packet for it: learnt, if the list of sockets that was begun at `listed` permits. True if it is nobody's.
    pub fn dropped(&mut self, address: u32, used: bool, listed: u32, now: u32, most: u32) -> bool {
        // SAFETY: as above.
        let learns = unsafe { weir_host_learns(self, used.into(), listed, now, most) != 0 };
        if learns {
            // SAFETY: as above; only this struct is written.
            unsafe { weir_host_learn(self, address, now) };
        }
        learns
    }
}

/// Where packets have ended last, of the destinations and consumers that share a place: `struct weir_end`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    mark: u32,
    tick: u32,
}

impl End {
    /// A packet has ended as `mark` says.
    pub fn ended(&mut self, mark: u32, now: u32) {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_ended(self, mark, now) };
    }

    /// True if frames end there, as far as is known.
    pub fn ends(&self, mark: u32, now: u32) -> bool {
        // SAFETY: this struct is only read, and its layout is that of the header.
        unsafe { weir_host_ends(self, mark, now) != 0 }
    }
}

/// What was refused last of the flows that share a place: `struct weir_refusal`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Refusal {
    flow: u32,
    dropped: u32,
    refused: u32,
    passed: u32,
}

impl Refusal {
    /// One more packet of the flow was refused.
    pub fn refuse(&mut self, flow: u32, now: u32) {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_refuse(self, flow, now) };
    }

    /// True if all of the flow is refused, and nothing has left from where it goes since `left`.
    pub fn is_refused(&self, flow: u32, left: u32, now: u32, most: u32) -> bool {
        // SAFETY: a pure function of its arguments and of this struct.
        unsafe { weir_host_refused(self, flow, left, now, most) != 0 }
    }

    /// One more packet for the destination was refused, whoever sent it; false if another one has the place.
    pub fn refuse_for(&mut self, destination: u32, now: u32) -> bool {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_refuse_for(self, destination, now) != 0 }
    }

    /// True if the place is this destination's.
    pub fn is_of(&self, destination: u32) -> bool {
        self.flow == destination
    }

    /// True if nearly all for the destination is refused: it has a share of each poll ([`crate::syns::Syns::refused_admit`]).
    pub fn is_mostly(&self, destination: u32, now: u32, most: u32) -> bool {
        // SAFETY: a pure function of its arguments and of this struct.
        unsafe { weir_host_mostly_refused(self, destination, now, most) != 0 }
    }

    /// The gate let a frame of the flow through.
    pub fn passed(&mut self) {
        self.passed += 1;
    }
}

/// Packets of `truesize` bytes that a consumer has room for whose buffer of `size` bytes holds `held`; all if `truesize` is 0, not
/// known yet, and at least one if it is empty. It is one of `slices` inputs: the others are left an even part each, or [`SPARED`] where
/// that is less, for they may be idle.
pub fn room(size: u32, held: u32, truesize: u32, slices: u32) -> u32 {
    // SAFETY: a pure function of its arguments.
    unsafe { weir_host_room(size, held, truesize, slices) }
}

/// Packets of room that an input leaves to each other one, at most.
pub const SPARED: u32 = 16;

/// As [`room`] of a buffer that is `level` full.
pub fn room_at(size: u32, level: Permille, truesize: u32, slices: u32) -> u32 {
    let held = u64::from(size) * u64::from(level) / 1000;
    room(size, u32::try_from(held).unwrap_or(u32::MAX), truesize, slices)
}

/// Packets of one poll of the kernel.
pub const POLL: u32 = 64;

/// What the poll of this number is given of the `room` of a consumer: `admit` of [`POLL`] packets. Where that is less than a packet,
/// one that is flooded is given one in several polls, any other one in each.
pub fn room_given(room: u32, admit: Permille, poll: u32, flooded: bool) -> u32 {
    // SAFETY: a pure function of its arguments.
    unsafe { weir_host_room_given(room, admit.into(), poll, flooded.into()) }
}

/// Fragments that one poll may hand up while consumers are given `admit` of their room.
pub fn fragments(admit: Permille) -> u32 {
    // SAFETY: a pure function of its argument.
    unsafe { weir_host_fragments(admit.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Beyond the share of a port nobody is cut who may be answered: each state of a host, each kind of sender.
    #[test]
    fn beyond_a_share_who_may_be_answered_passes() {
        const PLACED: u32 = 1;
        const FOREIGN: u32 = 2;
        const ANY: u32 = 4;
        for state in 0..16u32 {
            let [full, translated, told, high] = [1, 2, 4, 8].map(|bit| u32::from(state & bit != 0));
            let port = [53, 33_000][high as usize];
            // SAFETY: pure functions of their arguments.
            let by = unsafe { weir_host_beyond(port, full, translated, told) };
            // SAFETY: as above.
            let [spoken, silent] = [1, 0].map(|s| unsafe { weir_host_refusals_tell(s, full, told) != 0 });
            let passes = |placed: bool, foreign: bool| {
                by & ANY != 0 || (placed && by & PLACED != 0) || (foreign && by & FOREIGN != 0)
            };
            assert!(silent, "what nobody has is judged on every host");
            assert_eq!(spoken, full == 1 && told == 1, "a port in use: only by who has a place");
            assert!(!spoken || passes(true, false), "who has a place in a full table has been let in");
            assert!(full == 1 || passes(false, true), "what is passed on is not this host's to judge");
            let may_be_translated = translated == 1 && high == 1;
            assert!(!may_be_translated || passes(true, false), "an answer to somebody behind this host");
            let unknown = may_be_translated && told == 0;
            assert_eq!(
                passes(false, false),
                unknown,
                "a stranger passes only where nobody can tell him apart"
            );
        }
    }

    proptest! {
        /// Whoever binds what: a port that the search would get wrong has no judge, and one that decides alone has one socket.
        #[test]
        fn a_port_is_judged_by_who_knows(
            sockets in proptest::collection::vec((any::<bool>(), 0u32..4), 0..4),
            redirects: bool,
        ) {
            let sockets = || sockets.iter().map(|(connected, interface)| OnPort { connected: *connected, interface: *interface });
            let stands = |index: u32| index == 3;
            let (above, count) = (sockets().filter(|s| stands(s.interface)).count(), sockets().count());
            let judge = judge(sockets(), stands, redirects);
            prop_assert_eq!(judge == Judge::Nobody, above > 0 && above < count);
            if judge == Judge::Port {
                prop_assert!(count == 1 && !redirects && sockets().all(|s| !s.connected));
            } else if judge == Judge::Search {
                prop_assert!(count != 1 || redirects || sockets().any(|s| s.connected));
            }
        }

        /// However long ago an address was seen last, and whichever others were since: a drop is of now.
        #[test]
        fn a_drop_is_known_however_old_the_last_one_is(then in 1u32.., age: u32, others in 0u32..6) {
            let now = then.wrapping_add(age);
            // 0 stands for never; what is up to a second ahead is another CPU's.
            prop_assume!(now != 0 && age < u32::MAX - 64);
            let mut port = Port::default();
            port.seen(7, then);
            (0..others).for_each(|n| port.seen(100 + n, then));
            port.seen(7, now);
            prop_assert!(port.nobodys(7, now, 1));
        }

        /// However long a guard runs: what is older than asked for, and no lead of a clock, is not recent.
        #[test]
        fn what_is_old_is_not_recent_again(now: u32, age: u32, most in 1u32..10_000) {
            // SAFETY: a pure function of its arguments.
            let recent = unsafe { weir_host_recent(now.wrapping_sub(age), now, most) != 0 };
            let (never, ahead) = (now == age, age >= u32::MAX - 63);
            prop_assert_eq!(recent, !never && (age <= most || ahead));
        }

        /// The size that is learnt is never above the largest one that was refused, and at most the smallest one at once.
        #[test]
        fn a_size_that_is_learnt_is_no_trap(sizes in prop::collection::vec(1u32..200_000, 1..200), last in 1u32..200_000) {
            // SAFETY: a pure function of its arguments.
            let learn = |size, seen| unsafe { weir_host_size_learnt(size, seen) };
            let size = sizes.iter().fold(0, |size, seen| learn(size, *seen));
            prop_assert!(size <= *sizes.iter().max().unwrap());
            prop_assert!(learn(size, last) <= last.max(size) && (last > size || learn(size, last) == last));
            let risen = (0..400).fold(size, |size, _| learn(size, 200_000));
            prop_assert!(risen == 200_000, "{risen}");
        }
    }

    #[test]
    fn the_programs_come_back_only_to_what_has_run_out() {
        let (ms, mut watching) = (MILLISECOND, Watching::default());
        assert_eq!(watching.next(0, false), None);
        assert_eq!(watching.next(ms, true), Some(Watch::Attach));
        assert_eq!(watching.next(2 * ms, true), None);
        assert_eq!(watching.next(2 * ms + STAYS, false), None, "they stay for the next onset");
        assert_eq!(watching.next(3 * ms + STAYS, false), Some(Watch::Detach));
        let detached = 3 * ms + STAYS;
        // Detaching takes time, in which they learn.
        let detached = detached + 70 * ms;
        watching.detached(detached);
        let ticks = Nanos::from(UNTIL_BOUND) << TICK_SHIFT;
        assert_eq!(watching.next(detached + ticks, true), None, "what was learnt before may still count");
        let soon = detached + ticks + 50 * ms;
        assert_eq!(watching.next(soon, true), Some(Watch::Attach));
        watching.refused();
        assert_eq!(watching.next(soon + ms, true), Some(Watch::Attach), "it is tried again");
        watching.learn_nothing();
        assert_eq!(watching.next(soon + 2 * ms, true), None, "another source needs them");
        watching.learn_nothing();
        assert_eq!(watching.next(soon + 3 * ms, false), Some(Watch::Detach));
    }

    #[test]
    fn learnt_confirmed_and_forgotten() {
        let mut port = Port::default();
        assert!(!port.nobodys(7, 1000, UNTIL_BOUND));
        assert!(!port.dropped(7, true, 990, 1000, LISTED_MOST), "a socket has it");
        assert!(!port.dropped(7, false, 0, 1000, LISTED_MOST), "no list");
        assert!(!port.dropped(7, false, 300, 301 + LISTED_MOST, LISTED_MOST), "an old list");
        assert!(!port.nobodys(7, 1000, UNTIL_BOUND));
        assert!(port.dropped(7, false, 990, 1000, LISTED_MOST));
        assert!(port.nobodys(7, 1060, UNTIL_BOUND) && !port.nobodys(8, 1000, UNTIL_BOUND));
        assert!(!port.nobodys(7, 1061, UNTIL_BOUND), "not confirmed");
        port.dropped(7, false, 990, 1061, LISTED_MOST);
        assert!(port.nobodys(7, 1061, UNTIL_BOUND));
        port.left(1061);
        assert!(!port.nobodys(7, 1061, UNTIL_BOUND), "in the same tick too");
        assert!(!port.dropped(7, false, 1061, 1062, LISTED_MOST), "the list may have been read before");
        assert!(port.dropped(7, false, 1062, 1063, LISTED_MOST));
    }

    #[test]
    fn of_a_port_that_a_socket_has_the_kernel_is_asked() {
        let mut port = Port::default();
        assert_eq!(
            port.whose(7, true, 999, 1000, UNTIL_BOUND),
            Whose::Somebodys,
            "nothing was refused there"
        );
        port.seen(7, 1000);
        assert_eq!(port.whose(7, true, 999, 1000, UNTIL_BOUND), Whose::Ask);
        assert_eq!(port.whose(8, true, 999, 1000, UNTIL_BOUND), Whose::Somebodys, "another address");
        assert_eq!(port.whose(7, false, 0, 1000, UNTIL_BOUND), Whose::Ask, "there is no list");
        assert_eq!(port.whose(7, false, 999, 1000, UNTIL_BOUND), Whose::Nobodys);
        port.left(1000);
        assert_eq!(port.whose(7, false, 999, 1000, UNTIL_BOUND), Whose::Somebodys, "its answer comes");
        port.seen(7, 1001);
        assert_eq!(port.whose(7, false, 999, 1001, UNTIL_BOUND), Whose::Ask, "it has left since the list");
        assert_eq!(port.whose(7, true, 999, 1062, UNTIL_BOUND), Whose::Somebodys, "not confirmed");
    }

    #[test]
    fn ports_of_a_scan_do_not_all_pass_again_at_one_time() {
        // SAFETY: plain arithmetic.
        let ticks = |key, most| unsafe { weir_host_port_ticks(key, most) };
        for protocol in [0, 1 << 16] {
            let mut ends = [0; UNTIL_BOUND as usize + 1];
            (0..1 << 16).for_each(|port| ends[ticks(protocol | port, UNTIL_BOUND) as usize] += 1);
            assert_eq!(ends.iter().sum::<u32>(), 1 << 16);
            let least = ends.iter().position(|n| *n > 0).unwrap();
            assert!(least as u32 >= UNTIL_BOUND / 2, "{ends:?}");
            assert!(ends.iter().all(|n| *n < (1 << 16) / 28), "{ends:?}");
        }
        assert!((0..1 << 16).all(|key| ticks(key, BRIEFLY) == BRIEFLY && ticks(key, 0) == 0));
    }

    #[test]
    fn of_what_a_filter_refuses_the_kernel_is_asked_where_binds_are_not_seen() {
        let mut port = Port::default();
        assert_eq!(port.whose_refused(999, 1000, UNTIL_BOUND), Whose::Nobodys);
        assert_eq!(port.whose_refused(999, 1000, BRIEFLY), Whose::Ask, "a socket may have come unseen");
        assert_eq!(port.whose_refused(0, 1000, UNTIL_BOUND), Whose::Ask, "there is no list");
        port.left(1000);
        assert_eq!(
            port.whose_refused(999, 1001, UNTIL_BOUND),
            Whose::Ask,
            "a socket has come since the list"
        );
    }

    #[test]
    fn a_table_is_full_from_95_of_100_on() {
        assert!(!is_full(94, 100) && is_full(95, 100) && is_full(100, 100));
        assert!(!is_full(u64::MAX, 0), "without a limit");
    }

    #[test]
    fn lists_take_their_share() {
        assert_eq!(next_list(5, 1), 5 + LIST_EVERY);
        assert_eq!(next_list(0, 9 * MILLISECOND), 9000 * MILLISECOND);
        assert_eq!(next_list(0, 200 * MILLISECOND), LIST_LATEST);
        assert_eq!(next_look(7, MILLISECOND), 7 + 100 * MILLISECOND);
        assert_eq!(next_look(0, 1000 * MILLISECOND), LOOK_LATEST);
        assert!(LIST_LATEST >> TICK_SHIFT < u64::from(LISTED_MOST) / 2 + 1);
        assert!(tick(0) > 0);
    }

    proptest! {
        /// Whatever an attacker sends: an answer to what has left is never taken for nobody's, as long as lists are true.
        #[test]
        fn no_answer_is_nobodys(steps in proptest::collection::vec((0u8..4, 0u32..3, 0u32..40), 1..200)) {
            let (mut port, mut now, mut listed, mut used, mut has) = (Port::default(), 100u32, 99u32, false, false);
            // What is kept of every packet that no socket took.
            let mut asked = Port::default();
            for (what, address, wait) in steps {
                now += wait;
                match what {
                    // A socket sends, and waits for its answer from here on.
                    0 => { has = true; port.left(now); }
                    1 => { has = false; }
                    2 => { (listed, used) = (now, has); }
                    // A datagram of somebody else, which no socket takes.
                    _ => { port.dropped(address, used, listed, now, LISTED_MOST); asked.seen(address, now); }
                }
                asked.left = port.left;
                if has {
                    for address in 0..3 {
                        prop_assert!(!port.nobodys(address, now, UNTIL_BOUND));
                        // Whoever is asked finds the socket that has sent.
                        let whose = asked.whose(address, used, listed, now, UNTIL_BOUND);
                        prop_assert!(whose != Whose::Nobodys);
                    }
                    if !used {
                        let whose = port.whose_refused(listed, now, UNTIL_BOUND);
                        prop_assert_eq!(whose, Whose::Ask, "a filter drops what others send to the port");
                    }
                }
            }
        }

        /// A rate limit takes some of a flow: it is refused only where that is next to nothing.
        #[test]
        fn what_a_filter_takes_in_part_is_not_refused(period in prop_oneof![2u32..40, 1000u32..5000], start in 0u32..40) {
            let (mut refusal, now) = (Refusal::default(), 1000);
            for n in 0..20_000u32 {
                if refusal.is_refused(7, 0, now, UNTIL_BOUND) && n % 256 != 0 {
                    continue;
                }
                refusal.passed();
                // The kernel takes one of `period`.
                if (n + start) % period != 0 {
                    refusal.refuse(7, now);
                }
            }
            if period <= 7 {
                prop_assert!(!refusal.is_refused(7, 0, now, UNTIL_BOUND), "{refusal:?}");
            }
            if period >= 1000 {
                prop_assert!(refusal.is_refused(7, 0, now, UNTIL_BOUND), "{refusal:?}");
            }
            prop_assert!(!refusal.is_refused(8, 0, now, UNTIL_BOUND) && !refusal.is_refused(7, now, now, UNTIL_BOUND));
            prop_assert!(!refusal.is_refused(7, 0, now + UNTIL_BOUND + 1, UNTIL_BOUND));
        }

        /// A destination of which one packet of eight or more is taken is never mostly refused, and keeps its place while it is
        /// refused.
        #[test]
        fn what_is_taken_in_part_is_not_mostly_refused(period in 2u32..200, start in 0u32..40) {
            let (mut refusal, mut now) = (Refusal::default(), 1000);
            for n in 0..20_000u32 {
                now = 1000 + n / 4000;
                refusal.passed();
                if n < 2 || (n + start) % period != 0 {
                    prop_assert!(refusal.refuse_for(7, now));
                }
                prop_assert!(n < 2 || !refusal.refuse_for(8, now), "its place is taken");
            }
            let is = refusal.is_mostly(7, now, UNTIL_BOUND);
            prop_assert!(period > 8 || !is, "{refusal:?}");
            prop_assert!(period < 20 || is, "{refusal:?}");
            prop_assert!(!refusal.is_mostly(8, now, UNTIL_BOUND));
            prop_assert!(!refusal.is_mostly(7, now + UNTIL_BOUND + 1, UNTIL_BOUND), "it ends");
            prop_assert!(refusal.refuse_for(8, now + 4), "who is not refused any more makes room");
        }

        /// Refusals of what passed uncounted say nothing: of such packets most may be taken.
        #[test]
        fn refusals_count_no_more_than_what_passed(passed in 0u32..3000, refused in 0u32..6000) {
            let mut refusal = Refusal::default();
            refusal.refuse_for(7, 1000);
            (0..passed).for_each(|_| refusal.passed());
            (0..refused).for_each(|_| assert!(refusal.refuse_for(7, 1000)));
            prop_assert_eq!(refusal.refused, refused.min(passed));
        }

        /// A limit of its rate takes as much of a flow as without the gate, some seconds after it began.
        #[test]
        fn a_limited_rate_is_had(rate in 50u32..2000, limit in 1u32..20) {
            let (mut refusal, mut taken) = (Refusal::default(), 0);
            let (ticks, judged) = (2400u32, 1200);
            for now in 1..=ticks {
                let mut tokens = limit;
                for n in 0..rate {
                    if refusal.is_refused(7, 0, now, UNTIL_BOUND) && (now * rate + n) % 256 != 0 {
                        continue;
                    }
                    refusal.passed();
                    if tokens == 0 {
                        refusal.refuse(7, now);
                    } else {
                        tokens -= 1;
                        taken += u32::from(now > ticks - judged);
                    }
                }
            }
            prop_assert!(taken * 10 >= judged * limit.min(rate) * 9, "{taken} {refusal:?}");
        }

        /// A frame is judged only by a consumer that refused a packet for its destination within a second.
        #[test]
        fn frames_end_where_packets_have_lately(ended in proptest::collection::vec((1u32..4, 0u32..40), 1..40)) {
            let (mut end, mut now, mut last) = (End::default(), 1000, None);
            for (mark, later) in ended {
                now += later;
                for asked in 1..4 {
                    let known = last.is_some_and(|(at, tick)| at == asked && now - tick <= UNTIL_BOUND);
                    prop_assert_eq!(end.ends(asked, now), known);
                }
                end.ended(mark, now);
                last = Some((mark, now));
            }
            prop_assert!(!end.ends(last.map_or(0, |(mark, _)| mark), now + UNTIL_BOUND + 1));
        }

        /// The last addresses of a port are known, as many as there is room for.
        #[test]
        fn remembers_the_last_addresses(addresses in proptest::collection::vec(any::<u32>(), 1..50)) {
            let (mut port, mut last) = (Port::default(), Vec::new());
            for (n, address) in addresses.into_iter().enumerate() {
                let now = 100 + n as u32;
                port.dropped(address, false, now, now, LISTED_MOST);
                last.retain(|a| *a != address);
                last.push(address);
                for known in last.iter().rev().take(WAYS) {
                    prop_assert!(port.nobodys(*known, now, 50));
                }
            }
        }

        /// The kernel takes one packet of any size into an empty buffer.
        #[test]
        fn room_never_overfills(size in 0u32..1 << 24, held in 0u32..1 << 24, truesize in 1u32..9000, slices in 0u32..9) {
            let room = room(size, held, truesize, slices);
            let fits = size.saturating_sub(held) / truesize;
            let fits = if held == 0 { fits.max(1) } else { fits };
            prop_assert!(room <= fits.max(u32::from(fits > 0)));
            prop_assert_eq!(room > 0, fits > 0);
            // Each other input is left its even part, or enough for the few packets of an idle one.
            let others = slices.max(1) - 1;
            let (even, spared) = (fits / (others + 1), SPARED * others);
            let most = (2 * even).max(1).min(fits);
            prop_assert!(room >= even && room <= most, "{room} of {fits}");
            prop_assert_eq!(room, fits.saturating_sub(spared).clamp(even.max(1).min(fits), most));
        }

        /// What is admitted is given in the long run; one that is not flooded gets one in each poll.
        #[test]
        fn a_part_of_the_room_is_given(room in 0u32..100_000, admit in 1u16..=1000, first: u16) {
            let polls = 12_000u32;
            let given = |flooded| (0..polls).map(move |n| u64::from(room_given(room, admit, u32::from(first) + n, flooded)));
            prop_assert!(given(false).all(|one| one <= u64::from(room) && (one > 0) == (room > 0)));
            prop_assert!(given(true).all(|one| one <= u64::from(room)));
            let (all, most) = (given(true).sum::<u64>(), u64::from(room) * 1000);
            let wanted = if admit == 1000 { most } else { most.min(64 * u64::from(admit)) } * u64::from(polls) / 1000;
            // Rounded down to whole packets, or up to one in whole polls.
            prop_assert!(all * 2 >= wanted && all <= wanted * 2, "{all} of {wanted}");
        }
    }
}
