//! How a NIC parts flows over its receive queues: what of its table of RSS is worth a word, and which entries move.
//!
//! A flow's hash chooses an entry, so that all flows of an entry, a **flow group**, go to one queue. What a group carries no NIC
//! tells; each is taken to carry its part of its queue. Where one of them is heavier, the next plan finds its queue heavy still and
//! takes others away from it, until it has the queue for itself.

use super::{Kept, LEAST_PPS, Layout, Nic, Output, Plan, Value, WORTH, What, Why};
use std::collections::BTreeMap;

/// Of the queue that gets most, in parts of what it has at least if all are alike, permille: from here on the table is uneven.
const UNEVEN: u64 = 1500;
/// Parts of a packet, as a power of two.
const PARTS: u32 = 20;

/// What the table of RSS does to the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parted {
    /// Queues that get flows at all.
    pub used: usize,
    /// The queue that gets most.
    pub most: u32,
    /// Its share of the table, permille.
    pub share: u64,
}

impl Nic {
    /// How the table parts flows, if that is worth a word: a queue gets none, or half more than its share.
    #[must_use]
    pub fn uneven(&self) -> Option<Parted> {
        let entries = self.table.len() as u64;
        if entries == 0 || self.queues < 2 {
            return None;
        }
        let of = self.groups();
        // Of equals the first one.
        let (&most, &count) = of.iter().max_by_key(|(queue, count)| (**count, std::cmp::Reverse(**queue)))?;
        let shared = u64::from(self.queues).min(entries);
        // A table is seldom a multiple of the queues.
        let alike = entries.div_ceil(shared);
        let uneven = (of.len() as u64) < shared || count * 1000 >= alike * UNEVEN;
        uneven.then_some(Parted { used: of.len(), most, share: count * 1000 / entries })
    }

    /// Flow groups of each queue that has some.
    fn groups(&self) -> BTreeMap<u32, u64> {
        let mut of = BTreeMap::new();
        self.table.iter().for_each(|queue| *of.entry(*queue).or_default() += 1);
        of
    }

    /// The same loads in all as that table parts them, if all groups weigh the same.
    fn by_table(&self, table: &[u32], loads: &[u64]) -> Vec<u64> {
        let total = loads.iter().fold(0u64, |sum, load| sum.saturating_add(*load));
        let entries = table.len() as u64;
        if entries == 0 || table.iter().any(|queue| *queue >= self.queues) {
            return loads.to_vec();
        }
        // Of all up to a queue, so that no packet is lost to rounding.
        let upto = |queue: u32| {
            let groups = table.iter().filter(|of| **of < queue).count() as u64;
            (u128::from(total) * u128::from(groups) / u128::from(entries)) as u64
        };
        (0..self.queues).map(|queue| upto(queue + 1) - upto(queue)).collect()
    }

    /// The table and the loads of the queues once groups have moved from the heaviest queues to the lightest; `None` if that is not
    /// worth it on so many CPUs. As few move as can be.
    fn evened(&self, loads: &[u64], cpus: usize) -> Option<(Vec<u32>, Vec<u64>)> {
        let queues = loads.len();
        if queues < 2 || self.table.iter().any(|queue| *queue as usize >= queues) {
            return None;
        }
        let has = self.groups();
        let has = |queue: usize| has.get(&(queue as u32)).copied().unwrap_or(0);
        let total = loads.iter().fold(0u64, |sum, load| sum.saturating_add(*load));
        if total < LEAST_PPS {
            // Too few packets to tell: a queue that gets no flow at all is all that is mended, by the table that drivers begin with.
            // Of queues beyond the CPUs that the plan has, none is missed.
            let used = (0..queues).filter(|queue| has(*queue) > 0).count();
            let left_out = used < queues.min(cpus) && self.uneven().is_some();
            let default = (0..self.table.len()).map(|entry| (entry % queues) as u32).collect();
            return left_out.then(|| (default, loads.to_vec()));
        }
        // In parts of a packet: a table can have more entries than a queue has packets.
        let mut carries: Vec<u128> = loads.iter().map(|load| u128::from(*load) << PARTS).collect();
        let weights: Vec<u128> =
            carries.iter().enumerate().map(|(queue, load)| load / u128::from(has(queue).max(1))).collect();
        let heaviest = |carries: &[u128]| carries.iter().copied().max().unwrap_or(0);
        let before = heaviest(&carries);
        // Several queues on one CPU part its load already.
        if before * cpus as u128 * 1000 < (u128::from(total) << PARTS) * u128::from(UNEVEN) {
            return None;
        }
        let mut of: Vec<Vec<usize>> = vec![Vec::new(); queues];
        self.table.iter().enumerate().for_each(|(entry, queue)| of[*queue as usize].push(entry));
        let mut table = self.table.clone();
        for _ in 0..self.table.len() {
            let key = |queue: &usize| (carries[*queue], of[*queue].len());
            let Some(from) = (0..queues).filter(|queue| !of[*queue].is_empty()).max_by_key(key) else {
                break;
            };
            let Some(to) = (0..queues).min_by_key(key) else { break };
            // The last one: those that have moved here already are at the end.
            let Some(&entry) = of[from].last() else { break };
            let weight = weights[from];
            let moved = table[entry] != self.table[entry];
            if moved || weight == 0 || carries[to] + weight >= carries[from] {
                break;
            }
            of[from].pop();
            of[to].push(entry);
            table[entry] = to as u32;
            carries[from] -= weight;
            carries[to] += weight;
        }
        let worth = heaviest(&carries) * 1000 < before * u128::from(WORTH);
        worth.then(|| (table, whole(&carries)))
    }
}

/// Parts of packets as packets, so that none is lost to rounding.
fn whole(carries: &[u128]) -> Vec<u64> {
    let mut upto = 0u128;
    let mut next = |part: &u128| {
        let from = upto >> PARTS;
        upto += part;
        ((upto >> PARTS) - from) as u64
    };
    carries.iter().map(&mut next).collect()
}

/// Moves flow groups from heavy queues to light ones: adds the tables to the plan, and gives the sources the loads that they will have.
pub(super) fn part(plan: &mut Plan, layout: &mut Layout) {
    let cpus = plan.net.len();
    for nic in &layout.nics {
        let mut loads = vec![0; nic.queues as usize];
        let of =
            |queue: u32| layout.sources.iter().position(|s| s.ifindex == nic.ifindex && s.queue == queue);
        let of: Vec<Option<usize>> = (0..nic.queues).map(of).collect();
        for (load, source) in loads.iter_mut().zip(&of) {
            *load = source.map_or(0, |n| layout.sources[n].load);
        }
        let loads = if nic.counted { loads } else { nic.by_table(&nic.table, &loads) };
        let (loads, table) = match nic.evened(&loads, cpus) {
            Some((table, moved)) => match counted_on(nic, &layout.outputs) {
                None => (if nic.counted { moved } else { nic.by_table(&table, &loads) }, Some(table)),
                Some(why) => {
                    let source = layout.sources.iter().find(|source| source.ifindex == nic.ifindex);
                    let name =
                        source.and_then(|source| source.name.rsplit_once('/')).map_or("", |(name, _)| name);
                    plan.kept.push(Kept { what: format!("RSS of {name}"), why });
                    (loads, None)
                }
            },
            None => (loads, None),
        };
        for (load, source) in loads.into_iter().zip(of) {
            if let Some(n) = source {
                layout.sources[n].load = load;
            }
        }
        if let Some(table) = table {
            let (from, to) = (Value::Queues(nic.table.clone()), Value::Queues(table));
            plan.give(What::Rss { ifindex: nic.ifindex }, from, to);
        }
    }
}

/// Why the table of a NIC is not weir's to change: somebody may count on which flows come by which queue.
fn counted_on(nic: &Nic, outputs: &[Output]) -> Option<Why> {
    let parted = |output: &Output| output.ifindex == nic.ifindex && output.class != Some(0);
    if nic.fixed {
        Some(Why::Driver)
    } else if nic.rules > 0 {
        Some(Why::Rules)
    } else if nic.xdp {
        Some(Why::Xdp)
    } else {
        outputs.iter().any(parted).then_some(Why::Classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nic(queues: u32, table: &[u32]) -> Nic {
        Nic { queues, table: table.to_vec(), ..Nic::default() }
    }

    #[test]
    fn a_table_that_leaves_queues_out_or_prefers_one_is_uneven() {
        let all_on_one = nic(4, &[2; 128]).uneven().unwrap();
        assert_eq!(all_on_one, Parted { used: 1, most: 2, share: 1000 });
        assert_eq!(nic(3, &[0, 0, 1, 1, 2, 0]).uneven().unwrap(), Parted { used: 3, most: 0, share: 500 });
        assert_eq!(nic(4, &[0, 1, 2, 2]).uneven().unwrap().used, 3);
    }

    #[test]
    fn the_drivers_own_table_is_even_and_stays() {
        // Some have more queues than entries: the rest cannot be had.
        for (queues, entries) in
            (1..=256).flat_map(|queues| [4, 64, 128, 512].map(|entries| (queues, entries)))
        {
            let table: Vec<u32> = (0..entries).map(|entry| entry % queues).collect();
            let nic = nic(queues, &table);
            assert_eq!(nic.uneven(), None, "{queues} queues, {entries} entries");
            for cpus in [2, 8, 512] {
                assert_eq!(nic.evened(&vec![0; queues as usize], cpus), None, "{queues} queues, {entries}");
            }
        }
        assert_eq!(nic(1, &[0; 8]).uneven(), None);
        assert_eq!(nic(8, &[]).uneven(), None, "the driver does not tell");
        assert_eq!(nic(8, &[]).evened(&[1 << 20, 0, 0, 0, 0, 0, 0, 0], 8), None, "it has none");
    }

    #[test]
    fn groups_of_one_queue_are_parted_and_a_heavy_queue_gives_some_away() {
        let (table, loads) = nic(2, &[1; 8]).evened(&[0, 80_000], 2).unwrap();
        assert_eq!((table, loads), (vec![1, 1, 1, 1, 0, 0, 0, 0], vec![40_000, 40_000]));
        let unmeasured = nic(2, &[1; 8]).evened(&[0, 5], 2).unwrap();
        assert_eq!(unmeasured, (vec![0, 1, 0, 1, 0, 1, 0, 1], vec![0, 5]));
        // Two CPUs miss no third queue.
        assert_eq!(nic(8, &[0, 1, 0, 1]).evened(&[0, 5, 0, 0, 0, 0, 0, 0], 2), None);
        assert!(nic(8, &[0, 1, 0, 1]).evened(&[0, 5, 0, 0, 0, 0, 0, 0], 3).is_some());
        // One that a heavy flow has for itself keeps it while nothing comes.
        assert_eq!(nic(2, &[0, 1, 1, 1, 1, 1, 1, 1]).evened(&[0, 5], 2), None);
        let heavy = nic(4, &[0, 1, 2, 3, 0, 1, 2, 3]).evened(&[8000, 200, 200, 200], 4).unwrap();
        assert_eq!(heavy.0, [0, 1, 2, 3, 1, 1, 2, 3], "one of two groups");
        assert_eq!(
            nic(8, &[0, 1, 2, 3, 4, 5, 6, 7]).evened(&[9000, 0, 0, 0, 0, 0, 0, 0], 8),
            None,
            "one group"
        );
        // Two CPUs can share four queues of which one carries half.
        assert_eq!(nic(4, &[0, 1, 2, 3, 0, 1, 2, 3]).evened(&[3000, 1000, 1000, 1000], 2), None);
        assert_eq!(nic(2, &[5; 8]).evened(&[0, 80_000], 2), None, "a queue that is not there");
    }

    /// What each group carries is not known to the planner.
    fn measured(table: &[u32], groups: &[u64], queues: usize) -> Vec<u64> {
        let mut loads = vec![0; queues];
        table.iter().zip(groups).for_each(|(queue, load)| loads[*queue as usize] += load);
        loads
    }

    proptest! {
        #[test]
        fn it_comes_to_rest_and_never_leaves_a_queue_heavier(
            queues in 2usize..9,
            picks in prop::collection::vec((0usize..64, 0u64..40_000), 8..513),
            elephant in 0u64..2_000_000,
        ) {
            let mut table: Vec<u32> = picks.iter().map(|(pick, _)| (pick % queues) as u32).collect();
            let mut groups: Vec<u64> = picks.iter().map(|(_, load)| *load).collect();
            groups[0] += elephant;
            let nic = |table: &[u32]| Nic { queues: queues as u32, table: table.to_vec(), ..Nic::default() };
            let mut rounds = 0;
            while let Some((next, told)) = nic(&table).evened(&measured(&table, &groups, queues), queues) {
                prop_assert!(next.iter().all(|queue| (*queue as usize) < queues));
                prop_assert_eq!(next.len(), table.len());
                prop_assert!(next != table);
                prop_assert_eq!(told.len(), queues);
                // By what the planner can know the heaviest queue gets clearly lighter.
                let before = measured(&table, &groups, queues).into_iter().max().unwrap();
                prop_assert!(told.into_iter().max().unwrap() < before);
                table = next;
                rounds += 1;
                prop_assert!(rounds <= 64, "it does not come to rest");
            }
        }

        /// Also where a group carries less than a packet a second.
        #[test]
        fn groups_alike_end_even(
            queues in 2usize..9,
            picks in prop::collection::vec(0usize..64, 16..2049),
            packets in 1000u64..200_000,
        ) {
            let mut table: Vec<u32> = picks.iter().map(|pick| (pick % queues) as u32).collect();
            let entries = table.len() as u64;
            let groups: Vec<u64> =
                (0..entries).map(|n| packets * (n + 1) / entries - packets * n / entries).collect();
            for _ in 0..2 {
                let nic = Nic { queues: queues as u32, table: table.clone(), ..Nic::default() };
                let Some((next, _)) = nic.evened(&measured(&table, &groups, queues), queues) else { break };
                table = next;
            }
            let loads = measured(&table, &groups, queues);
            // A group or a packet more or less is what whole groups and packets make of it.
            let (most, mean) = (*loads.iter().max().unwrap(), packets / queues as u64);
            let one = packets / entries + table.len() as u64 / 64 + 2;
            prop_assert!(most <= mean * UNEVEN / 1000 + 2 * one, "{loads:?}");
        }
    }
}
