//! Which sources of an overloaded CPU are taken over, where the evidence (a socket that overflows, softirq over its budget)
//! names the CPU only (MR-10, MR-16).
//!
//! Sources that are flooded alike are taken over together, however many they are: while one of them stays with interrupts
//! its softirqs come before every program, and none of the others' packets is read. So a source is measured by the one
//! that carries most, not by its share of all.

use crate::Permille;

/// A source counts as flooded if it carries at least this part of what the largest in interrupt mode does.
pub const LIKE: Permille = 500;
/// Where those in interrupt mode together carry less than this part of the CPU's packets, they are not what overloads it.
pub const MATTERS: Permille = 50;

/// What a source carried lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Which.
    pub slot: usize,
    /// Packets since the last evidence.
    pub packets: u64,
    /// In poll mode already.
    pub polled: bool,
}

/// The slots to take over, of those whose softirq runs on the overloaded CPU. Looks at each source three times.
pub fn flooded(carried: &[Carried]) -> impl Iterator<Item = usize> + '_ {
    let unpolled = || carried.iter().filter(|c| !c.polled);
    let sum = |packets: &mut dyn Iterator<Item = u64>| packets.map(u128::from).sum::<u128>();
    let all = sum(&mut carried.iter().map(|c| c.packets));
    let own = sum(&mut unpolled().map(|c| c.packets));
    let most = unpolled().map(|c| c.packets).max().unwrap_or(0);
    let matter = own > 0 && own * 1000 >= all * u128::from(MATTERS);
    let like = move |c: &&Carried| {
        matter && c.packets > 0 && u128::from(c.packets) * 1000 >= u128::from(most) * u128::from(LIKE)
    };
    unpolled().filter(like).map(|c| c.slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(carried: &[(u64, bool)]) -> Vec<usize> {
        let carried: Vec<Carried> = carried
            .iter()
            .enumerate()
            .map(|(slot, (packets, polled))| Carried { slot, packets: *packets, polled: *polled })
            .collect();
        flooded(&carried).collect()
    }

    #[test]
    fn equal_floods_are_taken_over_together() {
        assert_eq!(found(&[(64, false); 32]), (0..32).collect::<Vec<_>>());
        assert_eq!(found(&[(40, false), (64, false), (80, false), (39, false)]), [0, 1, 2]);
    }

    #[test]
    fn quiet_sources_beside_a_flooded_one_keep_their_interrupts() {
        assert_eq!(found(&[(2000, false), (50, false), (50, false)]), [0]);
        assert_eq!(
            found(&[(2000, true), (50, false), (50, false)]),
            [],
            "it is polled, and they are under 5 %"
        );
    }

    #[test]
    fn what_is_left_with_interrupts_is_blamed_next() {
        assert_eq!(found(&[(700, false), (270, false), (30, false)]), [0]);
        assert_eq!(found(&[(700, true), (270, false), (30, false)]), [1]);
        assert_eq!(found(&[(700, true), (270, true), (0, false)]), [], "it carries nothing");
    }

    proptest! {
        /// Only sources with interrupts are named; the largest of them is, unless they do not matter together.
        #[test]
        fn the_largest_is_named(carried in prop::collection::vec((0u64..u64::MAX / 64, any::<bool>()), 1..32)) {
            let named = found(&carried);
            prop_assert!(named.iter().all(|slot| !carried[*slot].1 && carried[*slot].0 > 0));
            let own: u128 = carried.iter().filter(|c| !c.1).map(|c| u128::from(c.0)).sum();
            let all: u128 = carried.iter().map(|c| u128::from(c.0)).sum();
            let largest = (0..carried.len()).filter(|i| !carried[*i].1).max_by_key(|i| carried[*i].0);
            let matter = own > 0 && own * 1000 >= all * u128::from(MATTERS);
            prop_assert_eq!(largest.is_some_and(|l| named.contains(&l)), matter);
        }
    }
}
