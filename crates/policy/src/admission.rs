//! How much a flooded consumer gets of one poll while the source carries others too (MR-28, P11).
//!
//! Every packet that is handed up takes as much of the CPU as several that are shed. Where a consumer is given all that its buffer holds,
//! the poller spends its budget on the flood, the ring overflows while it waits for the next period, and it overflows blindly. So what a
//! consumer is given is halved each time that the budget was spent before its period ended and more than [`DEAR`] of it went for packets
//! that were handed up, those not counted that nothing can be kept away from: segments of connections, bridged frames, other protocols
//! (ESP). It grows again by a quarter, at most [`GROWTH`], in each period that leaves something, from the second one on, and where less
//! than half of [`DEAR`] went for them: what is beyond the look is lost with nothing handed up too, and a program that is flooded is to get
//! something.
//!
//! What a packet costs depends on where it goes, a container's several times as much as a socket's of the host, so it is measured:
//! turns differ in how many packets they shed and hand up, and in the time they take. Several consumers may be flooded,
//! so that one packet for each of them in each poll is more than that: then one in several polls has one
//! ([`crate::gate::room_given`]).
//!
//! # Properties
//! - Never below [`LEAST`] and never above all of it.
//! - Spent budgets of one period count once, however often they are seen.
//! - Whatever a packet costs, of a budget that is always spent it settles where they take between a half of [`DEAR`] and that, or
//!   at [`LEAST`].

use crate::{Nanos, Permille};

/// A program that is flooded gets something in every few polls.
pub const LEAST: Permille = 1;
/// The same while it is not known what a packet costs.
pub const LEAST_UNKNOWN: Permille = 10;
/// Most growth per period.
pub const GROWTH: Permille = 50;
/// Of a budget that is spent, what packets that are handed up may take.
pub const DEAR: Permille = 100;
/// Turns that the measured costs are of.
const TURNS: i128 = 256;

/// What a frame that is shed and a packet that is handed up take, ns, by least squares over the last turns.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    /// Sums of squares and products, of which older turns count less: shed, handed up, spent.
    shed2: i128,
    both: i128,
    passed2: i128,
    shed_ns: i128,
    passed_ns: i128,
}

impl Costs {
    fn turned(&mut self, shed: u32, passed: u32, spent: Nanos) {
        // Larger turns are none of a poller; no product of theirs overflows.
        let [shed, passed] = [shed, passed].map(|count| i128::from(count.min(1 << 12)));
        let ns = i128::from(spent.min(1 << 34));
        // Scaled, so that what a division leaves over is nothing beside the smallest square.
        let one = |sum: &mut i128, more: i128| *sum += (more << 16) - *sum / TURNS;
        one(&mut self.shed2, shed * shed);
        one(&mut self.both, shed * passed);
        one(&mut self.passed2, passed * passed);
        one(&mut self.shed_ns, shed * ns);
        one(&mut self.passed_ns, passed * ns);
    }

    /// Of a packet that is handed up; `None` while all turns are alike, or none was.
    fn packet(&self) -> Option<Nanos> {
        let square = self.shed2 * self.passed2;
        let apart = square - self.both * self.both;
        if apart <= square / 100 {
            return None;
        }
        let ns = (self.passed_ns * self.shed2 - self.shed_ns * self.both) / apart;
        Some(Nanos::try_from(ns).unwrap_or(0))
    }
}

/// Of one poller.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    permille: Permille,
    /// When the budget was found spent last, in a period of its own; 0: never.
    spent_at: Nanos,
    /// When it grew last for a budget that was not.
    grown: Nanos,
    costs: Costs,
    /// What a packet costs, as told last.
    packet: Option<Nanos>,
    /// Since the budget was found spent last: packets handed up but for those that are not asked about, and the time of all turns.
    passed: u64,
    ns: Nanos,
}

impl Default for Admission {
    fn default() -> Self {
        let (costs, packet) = (Costs::default(), None);
        Self { permille: 1000, spent_at: 0, grown: 0, costs, packet, passed: 0, ns: 0 }
    }
}

impl Admission {
    /// Permille of a poll that one consumer may get of it.
    pub fn permille(&self) -> Permille {
        self.permille
    }

    /// A turn has ended while somebody else's packets were looked for: frames shed, packets handed up, how many of these no room was
    /// asked for, and the time it took.
    pub fn turned(&mut self, shed: u32, passed: u32, unasked: u32, spent: Nanos) {
        self.costs.turned(shed, passed, spent);
        // A transfer takes all that it can get, and what is admitted for others changes nothing of that.
        self.passed += u64::from(passed.saturating_sub(unasked));
        self.ns = self.ns.saturating_add(spent);
    }

    fn grow(&mut self) {
        self.permille = (self.permille + (self.permille / 4).clamp(1, GROWTH)).min(1000);
    }

    /// The budget of the `period` was spent at `now`, while somebody else's packets were looked for.
    pub fn exhausted(&mut self, now: Nanos, period: Nanos) {
        if now.saturating_sub(self.spent_at) < period && self.spent_at != 0 {
            return;
        }
        self.spent_at = now.max(1);
        self.packet = self.costs.packet().or(self.packet);
        let (passed, ns) = (std::mem::take(&mut self.passed), std::mem::take(&mut self.ns));
        let dear = ns / 1000 * Nanos::from(DEAR);
        match self.packet.map(|packet| packet.saturating_mul(passed)) {
            None => self.permille = (self.permille / 2).max(LEAST_UNKNOWN),
            Some(cost) if cost > dear => self.permille = (self.permille / 2).max(LEAST),
            Some(cost) if cost < dear / 2 => self.grow(),
            Some(_) => {}
        }
        // Who is beyond a share, and whose segments have no connection, is asked while it is not all.
        self.permille = self.permille.min(999);
    }

    /// Something of the budget is left at `now`.
    pub fn calm(&mut self, now: Nanos, period: Nanos) {
        let left = now.saturating_sub(self.spent_at) >= 2 * period;
        if self.permille < 1000 && left && now.saturating_sub(self.grown) >= period {
            self.grown = now;
            self.grow();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn halves_once_a_period_and_comes_back() {
        let mut admission = Admission::default();
        admission.exhausted(100, 1000);
        admission.exhausted(600, 1000);
        assert_eq!(admission.permille(), 500);
        admission.exhausted(1100, 1000);
        assert_eq!(admission.permille(), 250);
        admission.calm(2200, 1000);
        assert_eq!(admission.permille(), 250, "a part of a period says nothing");
        // Something is left early in each period, and nothing at its end.
        let mut spent = admission;
        for n in 2..20 {
            spent.calm(n * 1000 + 100, 1000);
            spent.exhausted(n * 1000 + 900, 1000);
        }
        assert_eq!(spent.permille(), LEAST_UNKNOWN);
        (2..=17).for_each(|n| admission.calm(1100 + n * 1000, 1000));
        assert_eq!(admission.permille(), 1000);
        let periods = (22..).find(|n| {
            spent.calm(n * 1000, 1000);
            spent.permille() == 1000
        });
        assert!(periods.is_some_and(|n| n < 22 + 40), "from the least: {periods:?}");
    }

    /// A budget of 8 ms that a flood of 3 M/s always spends, for some programs behind buffers of 277 packets; turns of 256 frames.
    /// What a period hands up, and of its time the share that this takes, after a second.
    /// Each turn hands up so many `others` too.
    fn settles(shed_ns: u64, packet_ns: u64, consumers: u32, others: u32) -> (u32, f64) {
        let (mut admission, mut poll, mut last) = (Admission::default(), 0u32, (0, 0.0));
        for period in 1..=200u64 {
            let (mut ns, mut own) = (0, 0);
            while ns < 8_000_000 {
                let mut turn = 0;
                for _ in 0..4 {
                    poll += 1;
                    let given = |n| {
                        crate::gate::room_given(277, admission.permille(), poll.wrapping_add(n * 7), true)
                    };
                    turn += (0..consumers).map(given).sum::<u32>().min(64);
                }
                // Of others come more and less, which tells what a packet costs.
                let passed = (turn + others * (poll % 3) / 2).min(256);
                let shed = 256 - passed;
                let spent = u64::from(shed) * shed_ns + u64::from(passed) * packet_ns + 2000;
                admission.turned(shed, passed, passed - turn, spent);
                (ns, own) = (ns + spent, own + turn);
            }
            admission.exhausted(period * 10_000_000, 10_000_000);
            last = (own, (u64::from(own) * packet_ns) as f64 / ns as f64);
        }
        last
    }

    #[test]
    fn what_is_handed_up_takes_about_a_tenth_of_a_spent_budget_wherever_it_goes() {
        for (packet_ns, consumers) in [(1_000, 1), (2_000, 1), (4_000, 1), (4_000, 3), (8_000, 3), (2_000, 8)]
        {
            let (passed, share) = settles(300, packet_ns, consumers, 0);
            println!("{consumers} at {packet_ns} ns: {passed} in a period, {share:.3} of the time");
            assert!((0.03..0.13).contains(&share), "{consumers} at {packet_ns} ns: {share}");
        }
    }

    /// A transfer is no consumer's that is flooded: what it takes of the budget is not taken from one that is.
    #[test]
    fn what_others_take_is_not_taken_from_the_flooded() {
        let (passed, share) = settles(300, 2_000, 1, 100);
        assert!((0.03..0.13).contains(&share), "{passed} in a period, {share:.3} of the time");
    }

    proptest! {
        #[test]
        fn keeps_to_its_range(steps in proptest::collection::vec((0u64..3000, any::<bool>(), 0u32..300, 0u32..300, 0u64..1 << 40), 1..300)) {
            let (mut admission, mut now) = (Admission::default(), 0);
            for (gap, spent, shed, passed, ns) in steps {
                now += gap;
                admission.turned(shed, passed, passed / 3, ns);
                if spent { admission.exhausted(now, 1000) } else { admission.calm(now, 1000) }
                prop_assert!((LEAST..=1000).contains(&admission.permille()));
                prop_assert!(!spent || admission.permille() < 1000);
            }
        }
    }
}
