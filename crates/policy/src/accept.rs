//! Which core's accept queue takes a new connection, who accepts from it, and which flows move (BH-17, BH-18, BH-20).
//!
//! Every core has a queue of its own. A connection belongs to the core that receives its packets; there it is placed
//! unless a rule sends it elsewhere. A worker accepts from its own core's queue; with stealing, a core with nothing
//! of its own, and now and then one that is not busy, takes from a busy one. Flow groups follow the load: at each
//! period a core that stole takes one group over from the core it stole most from.
//!
//! What a live server gets of this is [`queues`], and [`Placing::Spill`] is that choice; all else here is the simulator's. How
//! `weir accept` follows live servers is [`pace`] (when it looks), [`watch`] (what it sees is an event), [`groups`] (how many it
//! follows), [`obstacle`] (which it leaves alone) and [`said`] (how much it says).
//!
//! # Properties
//! - A connection in a queue is never given out twice, and no empty queue is named: the lengths are counted here.
//! - No queue starves: its own core serves it in at least `local` of `local + 1` takes, and a busy queue whose own
//!   core does not take is found by any other core that has nothing, within `cores / scan` takes.
//! - One call looks at no more than `scan` other cores, [`Accept::migrate`] at each core and group once.

pub mod groups;
pub mod obstacle;
pub mod pace;
pub mod queues;
pub mod said;
pub mod watch;

use queues::{Choice, Queue, Worker};

/// Where a new connection is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// In the queue of the core that receives it.
    Own,
    /// In the shorter one of that queue and of one that is drawn; its own if they are equal.
    ShortestOfTwo,
    /// As `weir accept` does it on live servers: in its own unless that is busy or its worker stalled ([`queues`]).
    Spill,
}

/// The rules of balancing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Where a new connection is placed.
    pub placing: Placing,
    /// Length at which a queue becomes busy, at least 1.
    pub high: u32,
    /// Length at which it is no longer busy, below `high`.
    pub low: u32,
    /// Whether cores take connections from busy ones.
    pub steal: bool,
    /// Takes from its own queue between two of another, at least 1.
    pub local: u32,
    /// Most other cores that one call looks at, at least 1; a choice of [`queues`] never looks at more than its own bound.
    pub scan: u32,
    /// Longest queue, at least 1: the listener's backlog.
    pub limit: u32,
}

impl Rules {
    /// Own queue only, nothing is balanced.
    pub const OWN: Rules =
        Rules { placing: Placing::Own, high: 4, low: 1, steal: false, local: 5, scan: 8, limit: 4096 };

    /// Whether the values fit together.
    pub fn is_valid(&self) -> bool {
        self.low < self.high && self.local > 0 && self.scan > 0 && self.limit > 0
    }
}

/// A flow group that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The group.
    pub group: usize,
    /// The core that received it.
    pub from: usize,
    /// The core that receives it from now on.
    pub to: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Core {
    length: u32,
    /// Workers that wait for a connection, that run or want to, and that sleep elsewhere.
    waiting: u32,
    running: u32,
    sleeping: u32,
    /// Takes from its own queue since it last stole.
    local: u32,
    /// Where it looks next.
    cursor: u32,
    /// Connections taken from its queue: the name of the oldest one.
    taken: u64,
    /// Times that a worker began to wait.
    rests: u64,
}

/// The state of all cores. Memory: 130 bytes a core, 4 per pair of cores, 2 per flow group.
#[derive(Clone, Debug)]
pub struct Accept {
    rules: Rules,
    cores: Box<[Core]>,
    /// The same queues as a live choice sees them.
    queues: Box<[Queue]>,
    choice: Choice,
    /// Connections stolen since the last migration, thief by thief.
    stolen: Box<[u32]>,
    groups: Box<[u16]>,
    group_cursor: usize,
    looked: u32,
}

impl Accept {
    /// Empty queues of `cores` cores; flow group `g` is received by core `g % cores`. `None` unless the rules are
    /// valid, and cores and groups between 1 and 4096.
    pub fn new(cores: usize, groups: usize, rules: Rules) -> Option<Self> {
        let fits = |count| (1..=4096).contains(&count);
        (rules.is_valid() && fits(cores) && fits(groups)).then(|| Self {
            rules,
            cores: vec![Core::default(); cores].into(),
            queues: vec![Queue::default(); cores].into(),
            choice: Choice {
                high: rules.high,
                low: rules.low,
                looks: rules.scan.min(queues::LOOKS),
                ..Choice::default()
            },
            stolen: vec![0; cores * cores].into(),
            groups: (0..groups).map(|group| (group % cores) as u16).collect(),
            group_cursor: 0,
            looked: 0,
        })
    }

    /// The core that receives a flow group.
    #[inline]
    pub fn steer(&self, group: usize) -> usize {
        usize::from(self.groups[group % self.groups.len()])
    }

    /// Connections in the queue of `core`.
    pub fn length(&self, core: usize) -> u32 {
        self.cores[core].length
    }

    /// Cores that the last call looked at, beside the one it was asked about.
    pub fn looked(&self) -> u32 {
        self.looked
    }

    /// Core `draw` scaled to `0..cores`.
    #[inline]
    fn drawn(&self, draw: u32) -> usize {
        ((u64::from(draw) * self.cores.len() as u64) >> 32) as usize
    }

    #[inline]
    fn is_busy(&self, core: usize) -> bool {
        self.queues[core].is_busy()
    }

    #[inline]
    fn changed(&mut self, core: usize, now: u64) {
        let state = self.cores[core];
        let head = if state.length > 0 { state.taken + 1 } else { 0 };
        self.queues[core].seen(&self.choice, (head, now), (state.length, self.rules.limit), now);
    }

    /// A connection is established on `core` at `now` (ns); the queue that takes it, `None` if that is full. `draw` is random.
    pub fn place(&mut self, core: usize, draw: u32, now: u64) -> Option<usize> {
        self.looked = 0;
        let mut to = core;
        match self.rules.placing {
            Placing::Own => {}
            Placing::ShortestOfTwo => {
                self.looked = 1;
                let other = self.drawn(draw);
                if self.cores[other].length < self.cores[core].length {
                    to = other;
                }
            }
            Placing::Spill => {
                if let Some((other, why)) =
                    queues::choose(&mut self.queues, &self.choice, Some(core), draw, now)
                {
                    to = other;
                    let looks = self.choice.looks.min(self.cores.len() as u32);
                    self.looked = if why == queues::Why::Own { 0 } else { looks };
                }
            }
        }
        if self.cores[to].length >= self.rules.limit {
            return None;
        }
        self.cores[to].length += 1;
        self.changed(to, now);
        Some(to)
    }

    /// A busy core that `core` may take from, not itself.
    fn victim(&mut self, core: usize) -> Option<usize> {
        let count = self.cores.len();
        let mut at = self.cores[core].cursor as usize;
        let mut found = None;
        for _ in 0..self.rules.scan.min(count as u32) {
            self.looked += 1;
            let other = at % count;
            at = other + 1;
            if other != core && self.is_busy(other) && self.cores[other].length > 0 {
                // Found once, it is likely to be so again.
                at = other;
                found = Some(other);
                break;
            }
        }
        self.cores[core].cursor = at as u32;
        found
    }

    /// A worker of `core` wants a connection at `now`: the queue that it takes one from, `None` if it gets none now.
    pub fn take(&mut self, core: usize, now: u64) -> Option<usize> {
        self.looked = 0;
        let state = self.cores[core];
        let turn = state.length == 0 || (!self.is_busy(core) && state.local >= self.rules.local);
        let victim = if self.rules.steal && turn { self.victim(core) } else { None };
        let from = match victim {
            Some(victim) => {
                self.cores[core].local = 0;
                let pair = &mut self.stolen[core * self.cores.len() + victim];
                *pair = pair.saturating_add(1);
                victim
            }
            None if state.length > 0 => {
                self.cores[core].local = state.local.saturating_add(1);
                core
            }
            None => return None,
        };
        self.cores[from].length -= 1;
        self.cores[from].taken += 1;
        self.changed(from, now);
        Some(from)
    }

    /// A worker of `core` starts to wait for a connection at `now`.
    pub fn waits(&mut self, core: usize, now: u64) {
        self.cores[core].waiting += 1;
        self.cores[core].running = self.cores[core].running.saturating_sub(1);
        self.cores[core].rests += 1;
        self.does(core, now);
    }

    /// It has got something else to do.
    pub fn leaves(&mut self, core: usize, now: u64) {
        self.cores[core].waiting = self.cores[core].waiting.saturating_sub(1);
        self.cores[core].running += 1;
        self.does(core, now);
    }

    /// One that runs sleeps elsewhere than where it waits for connections, from `now` on.
    pub fn sleeps(&mut self, core: usize, now: u64) {
        self.cores[core].running = self.cores[core].running.saturating_sub(1);
        self.cores[core].sleeping += 1;
        self.cores[core].rests += 1;
        self.does(core, now);
    }

    /// It has slept, and runs.
    pub fn goes_on(&mut self, core: usize, now: u64) {
        self.cores[core].sleeping = self.cores[core].sleeping.saturating_sub(1);
        self.cores[core].running += 1;
        self.does(core, now);
    }

    /// A live choice looks again and again; here it is told.
    fn does(&mut self, core: usize, now: u64) {
        let state = self.cores[core];
        let does = match (state.waiting, state.running, state.sleeping) {
            (0, 0, 1..) => Worker::Sleeps,
            (0, ..) => Worker::Runs,
            _ => Worker::Waits,
        };
        // Here all begins and ends of work are told: no CPU time is needed.
        self.queues[core].worker(does, state.rests, 0, now);
    }

    /// The core of which one waiting worker is to be woken for a connection in `queue`: its own, or if none waits
    /// there, the queue is busy and stealing is on, another one. `draw` is random.
    pub fn wake(&mut self, queue: usize, draw: u32) -> Option<usize> {
        self.looked = 0;
        if self.cores[queue].waiting > 0 {
            return Some(queue);
        }
        if !self.rules.steal || !self.is_busy(queue) {
            return None;
        }
        let (first, count) = (self.drawn(draw), self.cores.len());
        for step in 0..self.rules.scan.min(count as u32) {
            self.looked += 1;
            let other = (first + step as usize) % count;
            if self.cores[other].waiting > 0 && !self.is_busy(other) {
                // It looks there first.
                self.cores[other].cursor = queue as u32;
                return Some(other);
            }
        }
        None
    }

    /// Called once per period for each core: the flow group that `core` takes over, from the core that it stole most
    /// from since the last call, if it is not busy itself. The counts of `core` start anew.
    pub fn migrate(&mut self, core: usize) -> Option<Move> {
        let count = self.cores.len();
        let row = &mut self.stolen[core * count..(core + 1) * count];
        // The first of the largest.
        let most = row.iter().enumerate().max_by_key(|(index, stolen)| (**stolen, count - index));
        let from = most.filter(|(_, stolen)| **stolen > 0).map(|(index, _)| index);
        row.fill(0);
        let from = from.filter(|_| !self.is_busy(core))?;
        let groups = self.groups.len();
        for step in 0..groups {
            let group = (self.group_cursor + step) % groups;
            if usize::from(self.groups[group]) == from {
                self.group_cursor = (group + 1) % groups;
                self.groups[group] = core as u16;
                return Some(Move { group, from, to: core });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEAL: Rules = Rules { steal: true, ..Rules::OWN };

    fn accept(cores: usize, rules: Rules) -> Accept {
        Accept::new(cores, 64, rules).unwrap()
    }

    #[test]
    fn rules_that_cannot_work_are_refused() {
        assert!(Accept::new(4, 64, Rules { low: 4, ..Rules::OWN }).is_none());
        assert!(Accept::new(4, 64, Rules { scan: 0, ..Rules::OWN }).is_none());
        assert!(Accept::new(0, 64, Rules::OWN).is_none());
        assert!(Accept::new(4, 5000, Rules::OWN).is_none());
    }

    /// BH-18: without stealing a core sees its own queue only.
    #[test]
    fn own_queue_only() {
        let mut a = accept(2, Rules::OWN);
        (0..10).for_each(|n| assert_eq!(a.place(0, n << 28, 0), Some(0)));
        assert_eq!(a.take(1, 0), None);
        assert_eq!(a.take(0, 0), Some(0));
        assert_eq!((a.length(0), a.wake(0, 0)), (9, None));
    }

    #[test]
    fn the_shorter_of_two_takes_it() {
        let mut a = accept(2, Rules { placing: Placing::ShortestOfTwo, ..Rules::OWN });
        let other = u32::MAX;
        assert_eq!(
            [a.place(0, other, 0), a.place(0, other, 0), a.place(0, other, 0)],
            [Some(0), Some(1), Some(0)]
        );
    }

    #[test]
    fn a_busy_core_spills() {
        let mut a = accept(4, Rules { placing: Placing::Spill, ..Rules::OWN });
        let places: Vec<usize> = (0..7).filter_map(|_| a.place(0, 0, 0)).collect();
        assert_eq!(places, [0, 0, 0, 0, 1, 2, 3]);
    }

    /// At work for too long without a rest: one that waits takes it, though nobody waits at the own core.
    #[test]
    fn a_core_whose_worker_has_gone_spills() {
        let mut a = accept(2, Rules { placing: Placing::Spill, ..Rules::OWN });
        a.waits(1, 0);
        a.waits(0, 0);
        a.leaves(0, 10);
        assert_eq!(a.place(0, 0, queues::AWAY), Some(0));
        assert_eq!(a.take(0, queues::AWAY), Some(0), "which takes it at that time");
        assert_eq!(a.place(0, 0, 2 * queues::AWAY - 1), Some(0));
        let mut a = accept(2, Rules { placing: Placing::Spill, ..Rules::OWN });
        a.waits(1, 0);
        a.waits(0, 0);
        a.leaves(0, 10);
        assert_eq!(a.place(0, 0, 10 + queues::AWAY), Some(1));
    }

    #[test]
    fn a_full_queue_takes_nothing() {
        let mut a = accept(2, Rules { limit: 2, ..Rules::OWN });
        assert_eq!([a.place(0, 0, 0), a.place(0, 0, 0), a.place(0, 0, 0)], [Some(0), Some(0), None]);
        assert_eq!((a.take(0, 0), a.place(0, 0, 0)), (Some(0), Some(0)));
    }

    /// BH-20: busy from `high` on until `low`, and 1 in `local + 1` takes is of another core.
    #[test]
    fn idle_cores_take_from_busy_ones_only() {
        let mut a = accept(2, STEAL);
        for _ in 0..3 {
            a.place(0, 0, 0);
        }
        assert_eq!(a.take(1, 0), None);
        a.place(0, 0, 0);
        assert_eq!(
            [a.take(1, 0), a.take(1, 0), a.take(1, 0), a.take(1, 0)],
            [Some(0), Some(0), Some(0), None]
        );
        for _ in 0..20 {
            a.place(0, 0, 0);
        }
        let mut takes = Vec::new();
        for _ in 0..7 {
            a.place(1, 0, 0);
            takes.push(a.take(1, 0));
        }
        assert_eq!(takes.iter().filter(|from| **from == Some(0)).count(), 1, "{takes:?}");
    }

    #[test]
    fn a_thief_takes_over_a_group_of_the_core_it_stole_most_from() {
        let mut a = accept(4, STEAL);
        assert_eq!(a.migrate(1), None);
        for _ in 0..10 {
            a.place(2, 0, 0);
        }
        a.take(1, 0);
        let moved = a.migrate(1).unwrap();
        assert_eq!((moved.from, moved.to, a.steer(moved.group)), (2, 1, 1));
        assert_eq!(a.migrate(1), None);
    }

    fn rules() -> impl Strategy<Value = Rules> {
        let placing = prop::sample::select(vec![Placing::Own, Placing::ShortestOfTwo, Placing::Spill]);
        (placing, 1u32..20, 0u32..20, any::<bool>(), 1u32..8, 1u32..12, 100u32..300).prop_map(
            |(placing, high, low, steal, local, scan, limit)| Rules {
                placing,
                high,
                low: low.min(high - 1),
                steal,
                local,
                scan,
                limit,
            },
        )
    }

    proptest! {
            /// Against counts kept outside: every connection is given out once, and the work per call is bounded.
            #[test]
            fn connections_are_conserved_and_work_is_bounded(
                rules in rules(),
                cores in 1usize..20,
                steps in prop::collection::vec((0u8..5, any::<u16>(), any::<u32>()), 1..800),
            ) {
                let mut a = accept(cores, rules);
                let mut lengths = vec![0_u32; cores];
                let mut groups = vec![0_usize; cores];
                (0..64).for_each(|group| groups[a.steer(group)] += 1);
                for (what, core, draw) in steps {
                    let core = usize::from(core) % cores;
                    match what {
                        0 | 1 => match a.place(core, draw, 0) {
                        Some(to) => lengths[to] += 1,
                        None => prop_assert!(lengths[core] >= rules.limit),
                    },
                        2 => if let Some(from) = a.take(core, 0) {
                            prop_assert!(lengths[from] > 0);
                            prop_assert!(from == core || rules.steal);
                            lengths[from] -= 1;
                        } else {
                            prop_assert_eq!(lengths[core], 0);
                        },
                        3 => { a.waits(core, 0); prop_assert!(a.wake(core, draw).is_some()); a.leaves(core, 0); }
                        _ => if let Some(moved) = a.migrate(core) {
                            prop_assert!(moved.to == core && moved.from != core);
                            groups[moved.from] -= 1;
                            groups[moved.to] += 1;
                        },
                    }
                    prop_assert!(a.looked() <= rules.scan.max(1));
                    for (core, length) in lengths.iter().enumerate() {
                        prop_assert_eq!(a.length(core), *length);
                    }
                }
                let mut after = vec![0_usize; cores];
                (0..64).for_each(|group| after[a.steer(group)] += 1);
                prop_assert_eq!(after, groups);
            }

            /// A queue is drained by its own core in a bounded number of takes, whatever the others hold.
            #[test]
            fn no_queue_starves_with_its_own_core(rules in rules(), own in 1u32..100, others in 0u32..100) {
                let rules = Rules { placing: Placing::Own, ..rules };
                let mut a = accept(4, rules);
                for _ in 0..own {
     a.place(0, 0, 0);
    }
                for n in 0..others {
     a.place(1 + n as usize % 3, 0, 0);
    }
                let bound = own + own / rules.local + 1;
                let takes = (0..bound).take_while(|_| a.length(0) > 0 && a.take(0, 0).is_some()).count();
                prop_assert_eq!(a.length(0), 0, "after {} takes", takes);
            }

            /// With stealing, a busy queue whose own core hangs is found by any other that has nothing.
            #[test]
            fn no_busy_queue_starves_without_its_own_core(
                rules in rules(), cores in 2usize..40, thief in 0usize..40, hung in 0usize..40,
            ) {
                let rules = Rules { placing: Placing::Own, steal: true, ..rules };
                let (thief, hung) = (thief % cores, hung % cores);
                prop_assume!(thief != hung);
                let mut a = accept(cores, rules);
                for _ in 0..rules.high {
     a.place(hung, 0, 0);
    }
                let bound = cores.div_ceil(rules.scan.min(cores as u32) as usize) + 1;
                prop_assert!((0..bound).any(|_| a.take(thief, 0) == Some(hung)));
            }
        }
}
