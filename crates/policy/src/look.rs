//! The look: turns of a source that stands in a pause, in order to find what is not the flood's among what is shed (MR-34,
//! MR-37).
//!
//! A pause costs nothing because the NIC drops, and the NIC drops blindly. So a source that carries anything else is looked at
//! during a pause too: its ring is drained, what is for full consumers or for nobody is shed before a buffer is allocated
//! for it, and the rest passes. Between two looks the ring is left alone for as long as it can hold what arrives.
//!
//! Nobody knows beforehand which sources carry more than a flood. So a source is looked at for [`FIRST`] when it has just come,
//! and afterwards the heartbeats of a pause, which are due anyway, look at [`LOOK_PACKETS`].
//!
//! # Properties
//! - A source without a protected packet in the last [`MEMORY`], and without an innocent's in the last [`SEEN`], is not looked at:
//!   the look costs nothing then.
//! - Looks take at most their share of the CPU, over any whole number of periods, plus one turn.
//! - A nap between two looks is at least [`NAP_MIN`] and at most [`NAPS`] naps of an empty ring, and no longer than five
//!   eighths of the ring last at the rate seen.

use crate::budget::Budget;
use crate::poller::{JOIN, SOURCES_MAX};
use crate::{MILLISECOND, Nanos, Permille};

/// How long one protected packet keeps the look going. What keeps a host in its network is rare: a bond's peer speaks every 30 s and
/// is given up after 90 (LACP), a router every 10 and after 40 (OSPF), a session every 60 and after 180 (BGP), and a gateway is asked
/// for after a minute. In a pause each would be a draw at the share that the ring lets in.
pub const MEMORY: Nanos = 100_000 * MILLISECOND;
/// How long after one protected packets are found: the hold time of the quickest sessions.
pub const RECENT: Nanos = 3000 * MILLISECOND;
/// How long the look goes on for a packet that is neither the flood's nor protected. Who is asked ten times a second is seen again by
/// then; a consumer that has just come to be flooded is not known yet, and looks like somebody else's.
pub const SEEN: Nanos = 200 * MILLISECOND;
/// The look at a source that has just come to be polled: fifty packets a second are found if they are regular, at a rate
/// that the look can follow. Programs wait for it, so it is short.
pub const FIRST: Nanos = 20 * MILLISECOND;
/// Packets of one turn of a look: what is shed does not fill a consumer, so only the time of the turn counts.
pub const LOOK_PACKETS: u32 = 128;
/// Longest nap between two looks, in naps of an empty ring: each wake interrupts the programs that read.
pub const NAPS: Nanos = 4;
/// Shortest nap between two looks, ns: a shorter one costs more than it saves.
pub const NAP_MIN: Nanos = 10_000;

/// The nap between two turns that found the ring empty at their end, by what they found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nap {
    nap: Nanos,
    /// End of the last turn that found the ring empty.
    since: Nanos,
    /// Time of the turns since then.
    turns: Nanos,
    /// Frames since then.
    burst: u32,
}

impl Nap {
    /// Begins with `nap` ns; the default with the shortest.
    pub fn of(nap: Nanos) -> Self {
        Self { nap, ..Self::default() }
    }

    /// A turn of `spent` ns that ended at `now` found `frames`, and if `drained` the ring empty at its end: the nap from
    /// here on, at most `most` ns; `None` if the ring is not empty. What one nap lets in must fit into the ring of `ring`
    /// packets; the fuller it gets, the fewer wakes interrupt the programs.
    pub fn after(
        &mut self,
        now: Nanos,
        frames: u32,
        spent: Nanos,
        drained: bool,
        most: Nanos,
        ring: u32,
    ) -> Option<Nanos> {
        self.burst = self.burst.saturating_add(frames);
        self.turns += spent;
        if !drained {
            return None;
        }
        let cycle = now.saturating_sub(std::mem::replace(&mut self.since, now)).max(1);
        let wait = cycle.saturating_sub(std::mem::take(&mut self.turns));
        let burst = u64::from(std::mem::take(&mut self.burst));
        // What comes during the turns is taken out at once: it does not fill the ring.
        let held = (u128::from(burst) * u128::from(wait) / u128::from(cycle)) as u64;
        let ring = u64::from(ring);
        let nap = match held {
            held if held < ring * 3 / 8 => self.nap + self.nap / 8,
            // What a wait for something else lets in says nothing about the nap.
            held if held > ring * 5 / 8 && wait <= 4 * self.nap => self.nap * 3 / 4,
            _ => self.nap,
        };
        self.nap = nap.clamp(NAP_MIN, most.max(NAP_MIN));
        Some(self.nap)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Source {
    /// The look goes on until then.
    until: Nanos,
    /// Earliest time of the next one.
    next: Nanos,
    nap: Nap,
    /// Classes are told of its frames.
    classed: bool,
    /// Until then protected packets are expected.
    protected: Nanos,
}

impl Source {
    /// A protected packet has come, or may.
    fn expects(&mut self, now: Nanos) {
        self.until = self.until.max(now.saturating_add(MEMORY));
        self.protected = now.saturating_add(RECENT);
    }
}

/// The looks of one CPU's poller.
#[derive(Clone, Debug)]
pub struct Look {
    sources: [Source; SOURCES_MAX],
    budget: Budget,
    nap_max: Nanos,
    ring: u32,
}

impl Look {
    /// Looks take at most `share` of every `period`; a ring of `ring` packets is left alone for at most [`NAPS`] times `nap` ns.
    pub fn new(period: Nanos, share: Permille, nap: Nanos, ring: u32, now: Nanos) -> Self {
        Self {
            sources: [Source::default(); SOURCES_MAX],
            budget: Budget::new(period, share, now),
            nap_max: nap,
            ring,
        }
    }

    /// Takes new options.
    pub fn set(&mut self, period: Nanos, share: Permille, nap: Nanos, ring: u32) {
        self.budget.set(period, share);
        (self.nap_max, self.ring) = (nap, ring);
    }

    /// A turn of `source` that ended at `now` saw `frames`: `protected` packets among them, and `others` that are no flood's.
    pub fn saw(&mut self, now: Nanos, source: usize, frames: u32, protected: u32, others: u32) {
        let Some(state) = self.sources.get_mut(source).filter(|_| frames > 0) else { return };
        let first = !std::mem::replace(&mut state.classed, true);
        if first {
            state.until = state.until.max(now.saturating_add(FIRST));
        }
        if others > 0 {
            state.until = state.until.max(now.saturating_add(SEEN));
        }
        if protected > 0 {
            state.expects(now);
        }
    }

    /// The host knows of protected packets that may come through `source`: it is looked at as if one had come.
    pub fn expect(&mut self, now: Nanos, source: usize) {
        if let Some(state) = self.sources.get_mut(source) {
            state.expects(now);
        }
    }

    /// True if protected packets come through `source`.
    pub fn finds(&self, now: Nanos, source: usize) -> bool {
        self.sources.get(source).is_some_and(|s| now < s.protected)
    }

    /// True if `source` is looked at in a pause.
    pub fn is_on(&self, now: Nanos, source: usize) -> bool {
        self.sources.get(source).is_some_and(|s| now < s.until)
    }

    /// True if a heartbeat of `source` during a pause tells classes, and sheds what is for full consumers.
    pub fn is_classed(&self, source: usize) -> bool {
        self.sources.get(source).is_some_and(|s| s.classed)
    }

    /// A turn of a source in a pause ended at `now`; it found `frames`, and the ring empty at its end if `drained`.
    pub fn looked(&mut self, now: Nanos, source: usize, frames: u32, spent: Nanos, drained: bool) {
        self.budget.charge(now, spent);
        let (most, ring) = (self.nap_max * NAPS, self.ring);
        let Some(state) = self.sources.get_mut(source) else { return };
        let nap = state.nap.after(now, frames, spent, drained, most, ring).unwrap_or(0);
        state.next = now.saturating_add(nap);
    }

    /// What `source` holds at `now` waits for its consumer to read: it is looked at after a nap.
    pub fn waits(&mut self, now: Nanos, source: usize) {
        if let Some(state) = self.sources.get_mut(source) {
            state.next = state.next.max(now.saturating_add(state.nap.nap.max(NAP_MIN)));
        }
    }

    /// The earliest time from `now` on of a look at `source`, which stands in a pause; `None` if there is nothing to
    /// look for. If the poller is `awake` anyway, the rest of a nap is no reason to sleep again.
    pub fn due(&mut self, now: Nanos, source: usize, awake: bool) -> Option<Nanos> {
        let state = self.sources.get(source).filter(|s| now < s.until)?;
        let early = if awake { state.nap.nap / JOIN } else { 0 };
        let next = state.next.saturating_sub(early).max(now);
        Some(self.budget.resume_at(now).map_or(next, |resume| next.max(resume)))
    }

    /// The source is no longer polled, or anew.
    pub fn forget(&mut self, source: usize) {
        if let Some(state) = self.sources.get_mut(source) {
            *state = Source::default();
        }
    }

    /// The first look at `source` is over, without a packet of anybody else.
    #[cfg(test)]
    pub(crate) fn first_is_over(&mut self, source: usize) {
        self.sources[source].classed = true;
    }

    /// Nothing else wants the CPU: the account is cleared, as that of the budget.
    pub fn idle(&mut self, now: Nanos) {
        self.budget.idle(now);
    }
}

fn half(share: Permille) -> Permille {
    share.min(1000) / 2
}

/// Time that each protected packet may take of the bound of protected packets, which is half the budget.
///
/// The cost of a packet is learnt from turns that handed up enough of them.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// 1/16 ns.
    cost: u64,
}

/// Cost of a packet before one was measured, ns.
const COST_FIRST: u64 = 1000;
/// Range of a cost that is believed, ns.
const COST_RANGE: (u64, u64) = (100, 20_000);
/// A turn with fewer packets is mostly the cost of the turn itself.
const COST_PACKETS: u32 = 8;

impl Default for Bound {
    fn default() -> Self {
        Self { cost: COST_FIRST * 16 }
    }
}

impl Bound {
    /// A turn handed up `packets` in `spent` ns.
    pub fn turned(&mut self, packets: u32, spent: Nanos) {
        if packets >= COST_PACKETS {
            let seen = (spent / u64::from(packets)).clamp(COST_RANGE.0, COST_RANGE.1) * 16;
            self.cost = (self.cost * 15 + seen) / 16;
        }
    }

    /// Nanoseconds per protected packet at which they take half of `share` of the CPU; at least 1.
    pub fn per_packet(&self, share: Permille) -> Nanos {
        (self.cost * 1000 / 16 / u64::from(half(share)).max(1)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAP: Nanos = 50_000;

    #[test]
    fn nothing_protected_no_look() {
        let mut look = Look::new(MILLISECOND, 800, NAP, 256, 0);
        assert_eq!(look.due(5, 3, false), None);
        look.saw(10, 3, 0, 0, 0);
        assert_eq!(look.due(11, 3, false), None, "no frame told its class");
        assert!(!look.is_classed(3));
        look.saw(12, 3, 5, 0, 0);
        assert!(look.is_classed(3));
        assert_eq!(look.due(13, 3, false), Some(13), "the first look");
        look.saw(14, 3, 5, 0, 0);
        assert_eq!(look.due(12 + FIRST, 3, false), None, "nothing was found");
        let late = 12 + FIRST + 1;
        look.saw(late, 3, 5, 0, 0);
        assert_eq!(look.due(late + 1, 3, false), None, "the first one is over");
        look.saw(20, 3, 1, 1, 0);
        assert_eq!(look.due(21, 3, false), Some(21));
        assert_eq!(look.due(21, 4, false), None, "another source");
        assert!(look.finds(19 + RECENT, 3) && !look.finds(20 + RECENT, 3), "it is rare");
        assert_eq!(look.due(19 + MEMORY, 3, false), Some(19 + MEMORY), "and looked for all the same");
        assert_eq!(look.due(20 + MEMORY, 3, false), None, "forgotten");
        look.saw(30, 3, 1, 1, 0);
        look.forget(3);
        assert_eq!(look.due(31, 3, false), None);
        look.saw(30, 5, 8, 0, 1);
        assert_eq!(look.due(31, 5, false), Some(31), "an innocent's");
        look.saw(30 + FIRST, 5, 8, 0, 1);
        assert_eq!(look.due(29 + FIRST + SEEN, 5, false), Some(29 + FIRST + SEEN));
        assert!(!look.finds(31, 5), "it is not protected");
        assert_eq!(look.due(30 + FIRST + SEEN, 5, false), None, "it is seen no more");
        look.saw(40, 99, 1, 1, 0);
        assert_eq!(look.due(41, 99, false), None, "no such source");
    }

    #[test]
    fn bound_is_half_the_share() {
        let mut bound = Bound::default();
        assert_eq!(bound.per_packet(800), 2500);
        for _ in 0..200 {
            bound.turned(32, 16_000);
            bound.turned(2, 16_000);
        }
        let per = bound.per_packet(800);
        assert!((1250..1290).contains(&per), "{per}");
        assert!(bound.per_packet(0) > 0 && bound.per_packet(1) > 0);
    }

    proptest! {
        /// A poller that asks before each look spends at most its share on looks, and an idle CPU lends.
        #[test]
        fn looks_take_at_most_their_share(share in 50u16..1000, turn in 2_000u64..20_000, arrivals in 1u32..3000, period in 1u64..10) {
            let period = period * MILLISECOND;
            let mut look = Look::new(period, share, NAP, 256, 0);
            look.saw(0, 0, 1, 1, 0);
            let (mut now, mut spent, mut last) = (0, 0, 0);
            let end = (20 * period).min(MEMORY - 1);
            while now < end {
                match look.due(now, 0, false) {
                    Some(at) if at <= now => {
                        now += turn;
                        spent += turn;
                        let came = ((now - last) * u64::from(arrivals) / 1_000_000) as u32;
                        last = now;
                        look.looked(now, 0, came.min(LOOK_PACKETS), turn, came < LOOK_PACKETS);
                    }
                    Some(at) => now = at,
                    None => break,
                }
            }
            let periods = end / period + 1;
            let allowed = periods * period * u64::from(share) / 1000;
            prop_assert!(spent <= allowed + 2 * turn, "{spent} of {allowed}");
        }

        /// The nap settles where the ring is three to five eighths full, if a nap within its range can do so.
        #[test]
        fn nap_follows_the_rate(rate in 100_000u64..20_000_000) {
            let mut look = Look::new(MILLISECOND, 1000, NAP, 256, 0);
            let mut now = 0;
            for _ in 0..200 {
                look.saw(now, 0, 1, 1, 0);
                look.idle(now);
                let at = look.due(now, 0, false).unwrap();
                let came = ((at - now) * rate / 1_000_000_000) as u32;
                // A quarter of the cycle is the turn itself, which takes out what comes meanwhile.
                let spent = (at - now) / 3;
                now = at + spent;
                look.looked(now, 0, came + (spent * rate / 1_000_000_000) as u32, spent, true);
            }
            let nap = look.sources[0].nap.nap;
            let held = nap * rate / 1_000_000_000;
            prop_assert!((NAP_MIN..=NAPS * NAP).contains(&nap));
            prop_assert!(held <= 256 * 5 / 8 + 16 || nap == NAP_MIN, "{held} in {nap}");
            // Three eighths, less what the last growth and whole frames leave: frames of the turns do not count.
            prop_assert!(held >= 90 || nap == NAPS * NAP, "{held} in {nap}");
        }
    }
}
