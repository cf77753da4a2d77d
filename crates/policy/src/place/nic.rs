//! How a NIC parts flows over its receive queues, as its driver or an administrator has set it. It is shown, not set.

/// Of the queue that gets most, in parts of what it has at least if all are alike, permille: from here on the table is uneven.
const UNEVEN: u64 = 1500;

/// What is set for one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// Receive queues.
    pub queues: u32,
    /// The queue of each entry of the table of RSS; empty if the driver does not tell.
    pub table: Vec<u32>,
    /// Rules that choose a queue for some packets (ntuple, Flow Director).
    pub rules: u32,
    /// Entries of the tables by which RFS sends packets to the CPU of their reader, of all queues; 0: off.
    pub rfs: u32,
}

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
        let mut of = std::collections::BTreeMap::<u32, u64>::new();
        self.table.iter().for_each(|queue| *of.entry(*queue).or_default() += 1);
        // Of equals the first one.
        let (&most, &count) = of.iter().max_by_key(|(queue, count)| (**count, std::cmp::Reverse(**queue)))?;
        let shared = u64::from(self.queues).min(entries);
        // A table is seldom a multiple of the queues.
        let alike = entries.div_ceil(shared);
        let uneven = (of.len() as u64) < shared || count * 1000 >= alike * UNEVEN;
        uneven.then_some(Parted { used: of.len(), most, share: count * 1000 / entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_drivers_own_table_is_even() {
        // Some have more queues than entries: the rest cannot be had.
        for (queues, entries) in
            (1..=256).flat_map(|queues| [4, 64, 128, 512].map(|entries| (queues, entries)))
        {
            let table: Vec<u32> = (0..entries).map(|entry| entry % queues).collect();
            assert_eq!(nic(queues, &table).uneven(), None, "{queues} queues, {entries} entries");
        }
        assert_eq!(nic(1, &[0; 8]).uneven(), None);
        assert_eq!(nic(8, &[]).uneven(), None, "the driver does not tell");
    }
}
