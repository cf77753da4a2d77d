//! Which packet filter in user space decides whether input pauses for frames in transit (MR-22, MR-23).
//!
//! Only a filter's rules know which frames it is asked about, so a frame in transit cannot be told to be for a full one. Input may
//! pause for filters if (nearly) all that arrives ends in them, and then only if all of them are full: the least full one decides.
//! So one that hangs costs its own packets, and what these cost the CPU.
//!
//! # Properties
//! - While a filter got a packet in the last [`MEMORY`], input pauses for no filter that is fuller than it.
//! - While a queue got one whose level nobody knows, input pauses for none.

use crate::poller::CONSUMERS_MAX;
use crate::{Nanos, Permille};

/// Share of the packets of all guarded sources from which on filters count as what all of them end in.
const NEARLY_ALL: u64 = 950;
/// Fewer packets than this between two looks tell no share.
const PACKETS_MIN: u64 = 200;
/// A queue without a packet for so long has none to lose, ns: for as long protected packets count as found.
pub const MEMORY: Nanos = crate::look::RECENT;

/// A queue at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its number.
    pub queue: u16,
    /// Packets that came to it so far, refused ones included.
    pub came: u64,
    /// Its place among the consumers and its level, if it has one.
    pub place: Option<(usize, Permille)>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    queue: u16,
    came: u64,
    /// When its last packet was noticed.
    fed: Option<Nanos>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Filters {
    known: Vec<Known>,
    packets: u64,
    /// (Nearly) all that arrives ends in filters.
    all: bool,
}

impl Default for Filters {
    fn default() -> Self {
        Self { known: Vec::with_capacity(CONSUMERS_MAX), packets: 0, all: false }
    }
}

impl Filters {
    /// A look at `now`, when guarded sources have handed up `packets` so far: the consumer that decides, if any does.
    pub fn look(&mut self, now: Nanos, packets: u64, queues: &[Seen]) -> Option<usize> {
        let handed_up = packets.wrapping_sub(std::mem::replace(&mut self.packets, packets));
        self.known.retain(|known| queues.iter().any(|seen| seen.queue == known.queue));
        let (mut came, mut least) = (0, None::<(Permille, usize)>);
        // A queue without a place here has no memory either: it counts as one that is fed.
        let mut unknown = false;
        for seen in queues {
            let Some(index) = self.index(seen) else {
                unknown = true;
                continue;
            };
            let known = &mut self.known[index];
            let more = seen.came.saturating_sub(known.came);
            known.came = seen.came;
            came += more;
            if more > 0 {
                known.fed = Some(now);
            }
            if known.fed.is_none_or(|at| now.saturating_sub(at) >= MEMORY) {
                continue;
            }
            match seen.place {
                Some((slot, level)) => {
                    least = Some(least.map_or((level, slot), |least| least.min((level, slot))));
                }
                None => unknown = true,
            }
        }
        if handed_up >= PACKETS_MIN {
            self.all = came * 1000 >= handed_up * NEARLY_ALL;
        }
        least.filter(|_| self.all && !unknown).map(|(_, slot)| slot)
    }

    /// The only queue that there is has just been found: until a look tells its share all that arrives ends in it. It is full in the
    /// first milliseconds of a flood.
    pub fn only(&mut self, now: Nanos, seen: &Seen) -> Option<usize> {
        let index = self.index(seen)?;
        self.known[index].fed = Some(now);
        self.all = true;
        seen.place.map(|(slot, _)| slot)
    }

    /// Where the queue is known; `None` if there are too many.
    fn index(&mut self, seen: &Seen) -> Option<usize> {
        if let Some(index) = self.known.iter().position(|known| known.queue == seen.queue) {
            return Some(index);
        }
        if self.known.len() == CONSUMERS_MAX {
            return None;
        }
        self.known.push(Known { queue: seen.queue, came: seen.came, fed: None });
        Some(self.known.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;
    use proptest::prelude::*;

    const SECOND: Nanos = 1000 * MILLISECOND;

    fn seen(queue: u16, came: u64, level: Permille) -> Seen {
        Seen { queue, came, place: Some((usize::from(queue), level)) }
    }

    #[test]
    fn one_filter_decides_if_nearly_all_ends_in_it() {
        let mut filters = Filters::default();
        assert_eq!(filters.look(0, 0, &[seen(3, 0, 0)]), None);
        assert_eq!(filters.look(1, 1000, &[seen(3, 949, 0)]), None);
        assert_eq!(filters.look(2, 2000, &[seen(3, 1899, 0)]), Some(3));
        assert_eq!(filters.look(3, 2100, &[seen(3, 1899, 0)]), Some(3), "too few to tell: as before");
        assert_eq!(filters.look(4, 3100, &[seen(3, 1999, 0)]), None);
        assert_eq!(filters.only(5, &seen(3, 1999, 0)), Some(3));
        assert_eq!(filters.look(6, 3150, &[seen(3, 2000, 0)]), Some(3));
        assert_eq!(filters.look(7, 3150, &[]), None);
    }

    #[test]
    fn of_several_the_least_full_decides_while_it_is_fed() {
        let mut filters = Filters::default();
        let flooded = |n: u64| seen(0, 1000 * n, 1000);
        filters.look(0, 0, &[flooded(0), seen(1, 0, 10)]);
        // The other one has got nothing yet.
        assert_eq!(filters.look(SECOND, 1000, &[flooded(1), seen(1, 0, 10)]), Some(0));
        // A single packet.
        assert_eq!(filters.look(2 * SECOND, 2001, &[flooded(2), seen(1, 1, 10)]), Some(1));
        assert_eq!(filters.look(4 * SECOND, 4001, &[flooded(4), seen(1, 1, 10)]), Some(1));
        assert_eq!(filters.look(5 * SECOND, 5001, &[flooded(5), seen(1, 1, 10)]), Some(0), "forgotten");
        // Both are fed, the other one is the fuller.
        let slow = Seen { place: Some((0, 400)), ..flooded(6) };
        assert_eq!(filters.look(6 * SECOND, 7001, &[slow, seen(1, 1001, 900)]), Some(0));
    }

    #[test]
    fn a_queue_without_a_level_lets_nothing_pause() {
        let mut filters = Filters::default();
        let stranger = |came| Seen { queue: 9, came, place: None };
        filters.look(0, 0, &[seen(0, 0, 1000), stranger(0)]);
        assert_eq!(
            filters.look(1, 1000, &[seen(0, 1000, 1000), stranger(0)]),
            Some(0),
            "nothing comes to it"
        );
        assert_eq!(filters.look(2, 2000, &[seen(0, 1999, 1000), stranger(1)]), None);
        let many: Vec<Seen> = (0..=CONSUMERS_MAX as u16).map(|n| seen(n, 1, 1000)).collect();
        let mut filters = Filters::default();
        filters.look(0, 0, &many);
        let fed: Vec<Seen> = many.iter().map(|s| Seen { came: 100, ..*s }).collect();
        assert_eq!(filters.look(1, 6300, &fed), None, "one too many to be known");
    }

    proptest! {
        /// Whatever comes: who decides is fed, and no other one that is fed is less full.
        #[test]
        fn none_that_is_fed_is_less_full(looks in prop::collection::vec(
            (0u64..4000, prop::collection::vec((0u64..500, 0u16..=1000), 3)), 1..60))
        {
            let mut filters = Filters::default();
            let (mut now, mut packets, mut came, mut fed) = (0, 0, [0u64; 3], [None; 3]);
            filters.look(0, 0, &[0, 1, 2].map(|n| seen(n, 0, 0)));
            for (gap, of) in looks {
                now += gap * MILLISECOND;
                let mut queues = Vec::new();
                for (n, (more, level)) in of.iter().enumerate() {
                    came[n] += more;
                    packets += more;
                    if *more > 0 {
                        fed[n] = Some(now);
                    }
                    queues.push(seen(n as u16, came[n], *level));
                }
                let is_fed = |n: usize| fed[n].is_some_and(|at: Nanos| now - at < MEMORY);
                if let Some(slot) = filters.look(now, packets, &queues) {
                    prop_assert!(is_fed(slot));
                    let least = (0..3).filter(|n| is_fed(*n)).map(|n| of[n].1).min();
                    prop_assert_eq!(Some(of[slot].1), least);
                }
            }
        }
    }
}
