//! Consumers behind the host: which lost packets of other network namespaces are evidence, and whose room a frame for them is judged
//! by (MR-22, MR-23).
//!
//! As the gate, the judgement is a C header, `src/c/behind.h`, since the packet path must make it. This module is its mirror.
//!
//! # Properties
//! - No more losses are evidence than packets that a guarded interface brought for the same destination in the present window,
//!   whatever others send there.
//! - A frame of an unknown flow is shed only if every member that packets went to lately is full, the set of members is known whole,
//!   and [`STRAYS`] others have passed in the same tick.
//! - A route ends [`CARRIED_TICKS`] after the last packet that went by it: what is shed confirms nothing.
//! - What no packet confirms is forgotten, and then everything passes.
//! - Losses that are no evidence are a reason to watch what leaves the host once in [`VAIN`] only.

use crate::{MILLISECOND, Nanos};

/// `WEIR_CARRIED_TICKS`.
pub const CARRIED_TICKS: u32 = 6;
/// `WEIR_CARRIED_MOST`.
pub const CARRIED_MOST: u32 = 1024;
/// `WEIR_MEMBERS`.
pub const MEMBERS: usize = 8;
/// `WEIR_MEMBER_TICKS`.
pub const MEMBER_TICKS: u32 = 600;
/// `WEIR_OUTER_TICKS`.
pub const OUTER_TICKS: u32 = 60;
/// `WEIR_STRAY_MOST`.
pub const STRAYS: u32 = 16;

/// Losses of other namespaces from one look to the next that are a reason to watch what leaves the host.
pub const LOSSES: u64 = 64;
/// Unless some of them were evidence, they are none again for so long: anybody can make a namespace whose sockets lose.
pub const VAIN: Nanos = 30_000 * MILLISECOND;

/// Whether what leaves the host is watched for the sake of containers, while no source is polled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    lost: u64,
    evident: u64,
    vain_until: Nanos,
}

impl Watch {
    /// So many packets have sockets of other namespaces lost until `now`, and so many of them were evidence; true if that is a reason.
    pub fn look(&mut self, now: Nanos, lost: u64, evident: u64) -> bool {
        let more = lost.wrapping_sub(std::mem::replace(&mut self.lost, lost));
        if std::mem::replace(&mut self.evident, evident) != evident {
            self.vain_until = 0;
            return true;
        }
        if more < LOSSES || now < self.vain_until {
            return false;
        }
        self.vain_until = now.saturating_add(VAIN);
        true
    }
}

/// What guarded interfaces brought for an inner destination: `struct weir_carried`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    mark: u32,
    begun: u32,
    carried: u32,
    claimed: u32,
}

/// `struct weir_member`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    inner: u32,
    seen: u32,
    consumer: u32,
}

/// Where packets for an outer destination go: `struct weir_outer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Outer {
    mark: u32,
    born: u32,
    seen: u32,
    crowded: u32,
    tick: u32,
    strays: u32,
    pad: [u32; 2],
    members: [Member; MEMBERS],
}
const _: () = assert!(size_of::<Outer>() == 128);

/// Where the packets of a flow go: `struct weir_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    mark: u32,
    seen: u32,
    inner: u32,
    consumer: u32,
}

unsafe extern "C" {
    fn weir_host_carry(carried: *mut Carried, mark: u32, now: u32) -> u32;
    fn weir_host_claim(carried: *mut Carried, mark: u32, now: u32) -> u32;
    fn weir_host_outer_learn(outer: *mut Outer, mark: u32, inner: u32, consumer: u32, now: u32) -> u32;
    fn weir_host_outer_known(outer: *const Outer, mark: u32, now: u32) -> u32;
    fn weir_host_route_learn(route: *mut Route, mark: u32, inner: u32, consumer: u32, now: u32);
    fn weir_host_routed(route: *const Route, mark: u32, now: u32) -> u32;
    fn weir_host_outer_member(outer: *mut Outer, left: *const u32, now: u32) -> u32;
}

impl Carried {
    /// A guarded interface brought a packet for the destination; false if another one has the place.
    pub fn carry(&mut self, mark: u32, now: u32) -> bool {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_carry(self, mark, now) != 0 }
    }

    /// The destination refused a packet: true if that is evidence.
    pub fn claim(&mut self, mark: u32, now: u32) -> bool {
        // SAFETY: as above.
        unsafe { weir_host_claim(self, mark, now) != 0 }
    }
}

/// What a frame of an unknown flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charged {
    /// It passes, and is charged to nobody.
    Nobody,
    /// To this member, which has room or, if all are full, has none.
    Member(usize),
}

impl Outer {
    /// A packet for the destination went to `inner`, whose consumer, if it is tracked, has this number; false if nothing was learnt.
    pub fn learn(&mut self, mark: u32, inner: u32, consumer: Option<u32>, now: u32) -> bool {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_outer_learn(self, mark, inner, consumer.map_or(0, |c| c + 1), now) != 0 }
    }

    /// True if frames for it are judged.
    pub fn is_known(&self, mark: u32, now: u32) -> bool {
        // SAFETY: a pure function of its arguments and of this struct.
        unsafe { weir_host_outer_known(self, mark, now) != 0 }
    }

    /// Inner destinations in the order of their places; 0: a free place.
    pub fn members(&self) -> [u32; MEMBERS] {
        self.members.map(|m| if m.seen == 0 { 0 } else { m.inner })
    }

    /// Whose a frame of an unknown flow is, by what each member has room for; `None`: nobody knows.
    pub fn charge(&mut self, left: &[Option<u32>; MEMBERS], now: u32) -> Charged {
        let left = left.map(|l| l.unwrap_or(u32::MAX));
        // SAFETY: only this struct is written, and `left` has as many elements as the header reads.
        match unsafe { weir_host_outer_member(self, left.as_ptr(), now) } {
            u32::MAX => Charged::Nobody,
            member => Charged::Member(member as usize),
        }
    }
}

impl Route {
    /// A packet of the flow went to `inner`.
    pub fn learn(&mut self, mark: u32, inner: u32, consumer: Option<u32>, now: u32) {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_route_learn(self, mark, inner, consumer.map_or(0, |c| c + 1), now) };
    }

    /// The consumer that the flow goes to, if that is known.
    pub fn consumer(&self, mark: u32, now: u32) -> Option<u32> {
        // SAFETY: a pure function of its arguments and of this struct.
        (unsafe { weir_host_routed(self, mark, now) != 0 }).then(|| self.consumer - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_others_send_is_no_evidence() {
        let mut place = Carried::default();
        assert!(!place.claim(7, 100), "nothing was brought");
        assert!(place.carry(7, 100));
        assert!(!place.claim(8, 100), "for another destination");
        assert!(place.claim(7, 101) && !place.claim(7, 101), "one was brought");
        assert!(place.carry(7, 101) && !place.claim(7, 108), "too long ago");
        assert!(!place.carry(9, 106), "the place is taken");
        assert!(place.carry(9, 108) && place.claim(9, 108));
    }

    #[test]
    fn losses_in_vain_are_no_reason_for_long() {
        let mut watch = Watch::default();
        assert!(!watch.look(1, LOSSES - 1, 0), "few");
        assert!(watch.look(2, 2 * LOSSES, 0));
        // Somebody's own namespace goes on.
        let again = (3..1000).filter(|n| watch.look(n * VAIN / 500, n * LOSSES * 10, 0)).count();
        assert_eq!(again, 1);
        assert!(watch.look(2 * VAIN, 0, 5) && !watch.look(2 * VAIN, 0, 5), "evidence");
        assert!(watch.look(2 * VAIN, LOSSES, 5), "there was evidence");
    }

    /// An outer destination whose only member, consumer 3, has been seen for long.
    fn single() -> Outer {
        let mut outer = Outer::default();
        (100..=120).for_each(|now| assert!(outer.learn(5, 70, Some(3), now)));
        outer
    }

    fn left(of: &[Option<u32>]) -> [Option<u32>; MEMBERS] {
        std::array::from_fn(|i| of.get(i).copied().flatten())
    }

    #[test]
    fn one_member_is_judged_by_its_room() {
        let mut outer = single();
        assert!(outer.is_known(5, 120) && !outer.is_known(6, 120) && !outer.is_known(5, 181));
        assert_eq!(outer.charge(&left(&[Some(9)]), 120), Charged::Member(0));
        let passed = (0..100).filter(|_| outer.charge(&left(&[Some(0)]), 120) == Charged::Nobody).count();
        assert_eq!(passed, STRAYS as usize, "some tell whether there is another member");
        assert_eq!(outer.charge(&left(&[Some(0)]), 121), Charged::Nobody, "in each tick");
        assert_eq!(outer.charge(&left(&[None]), 120), Charged::Nobody, "no level is known");
    }

    #[test]
    fn a_new_member_is_for_all_that_are_not_known() {
        let mut outer = single();
        assert!(outer.learn(5, 71, None, 120));
        assert!((0..100).all(|_| outer.charge(&left(&[Some(0), None]), 120) == Charged::Nobody));
        // Nobody sends to it any more.
        (121..=721).step_by(50).for_each(|now| assert!(outer.learn(5, 70, Some(3), now)));
        let shed = (0..100).filter(|_| outer.charge(&left(&[Some(0), None]), 721) != Charged::Nobody).count();
        assert_eq!(shed, 100 - STRAYS as usize);
    }

    #[test]
    fn what_is_new_or_crowded_passes() {
        let mut outer = Outer::default();
        assert!(!outer.learn(5, 70, None, 100), "nobody behind it is tracked");
        assert!(outer.learn(5, 70, Some(3), 100));
        assert!((0..100).all(|_| outer.charge(&left(&[Some(0)]), 106) == Charged::Nobody), "new");
        assert!(!outer.learn(6, 70, Some(3), 106), "the place is taken");
        let mut outer = single();
        (0..MEMBERS as u32).for_each(|n| assert!(outer.learn(5, 80 + n, Some(n), 120)));
        let full = [Some(0); MEMBERS];
        assert!((0..100).all(|_| outer.charge(&full, 125) == Charged::Nobody), "one more than places");
        assert_eq!(outer.members()[0], 70);
    }

    #[test]
    fn a_route_ends_unless_packets_go_by_it() {
        let mut route = Route::default();
        assert_eq!(route.consumer(9, 100), None);
        route.learn(9, 70, Some(3), 100);
        assert_eq!(
            (route.consumer(9, 106), route.consumer(8, 106), route.consumer(9, 107)),
            (Some(3), None, None)
        );
        route.learn(9, 71, None, 106);
        assert_eq!(route.consumer(9, 106), None, "to somebody who is not tracked");
    }

    #[test]
    fn a_flood_is_evidence_without_a_gap_and_a_stock_is_small() {
        let mut place = Carried::default();
        let refused = (0..10_000).filter(|_| place.carry(1, 100) && place.claim(1, 100)).count();
        assert_eq!(refused, 10_000, "in one tick");
        // What was accepted is no stock for those who send from here.
        (0..10_000).for_each(|_| _ = place.carry(1, 100));
        let foreign = (0..10_000).filter(|_| place.claim(1, 100)).count();
        assert!(foreign <= CARRIED_MOST as usize, "{foreign}");
    }

    proptest! {
        /// However packets come and are lost: of any run of ticks no more losses are evidence than packets were brought in it and in
        /// the window that was open when it began.
        #[test]
        fn evidence_is_carried(steps in prop::collection::vec((prop::bool::ANY, 0u32..3, 0u32..4), 1..300)) {
            let (mut place, mut now, mut brought, mut claimed) = (Carried::default(), 100, [0u64; 3], [0u64; 3]);
            for (carries, mark, wait) in steps {
                now += wait;
                if carries {
                    brought[mark as usize] += u64::from(place.carry(mark + 1, now));
                } else {
                    claimed[mark as usize] += u64::from(place.claim(mark + 1, now));
                }
                prop_assert!((0..3).all(|m| claimed[m] <= brought[m]));
            }
        }

        /// Members come and go, each with a level of its own or none. A frame of an unknown flow is charged to a full member only if
        /// no member of the last 10 s may have room for it.
        #[test]
        fn nobody_with_room_loses(
            steps in prop::collection::vec((0u32..12, 0u32..80, prop::collection::vec(0u32..3, 12)), 1..200),
        ) {
            let (mut outer, mut now) = (Outer::default(), 1000u32);
            let mut seen = [0u32; 12];
            let (mut born, mut last) = (0u32, 0u32);
            for (to, wait, rooms) in steps {
                now += wait;
                // Even ones are tracked.
                let consumer = to.is_multiple_of(2).then_some(to);
                let gap = last == 0 || now - last > OUTER_TICKS;
                if outer.learn(5, to + 100, consumer, now) {
                    if gap {
                        (born, seen) = (now, [0; 12]);
                    }
                    last = now;
                    seen[to as usize] = now;
                }
                if !outer.is_known(5, now) {
                    continue;
                }
                let left: [Option<u32>; MEMBERS] = outer.members().map(|inner| {
                    let of = inner.checked_sub(100)?;
                    of.is_multiple_of(2).then(|| rooms[of as usize])
                });
                for _ in 0..3 * STRAYS {
                    if let Charged::Member(i) = outer.charge(&left, now)
                        && left[i] == Some(0)
                    {
                        prop_assert!(now - born > CARRIED_TICKS);
                        for of in (0..12).filter(|of| seen[*of] != 0 && now - seen[*of] <= MEMBER_TICKS) {
                            prop_assert!(of % 2 == 0 && rooms[of] == 0, "{of} may have room");
                        }
                    }
                }
            }
        }
    }
}
