//! Which net CPU polls which source while their set resizes (ES-17).
//!
//! [`crate::netset`] says how many of the CPUs are net CPUs: the first of the list whose pollers are there. One that is away (its
//! CPU is offline, or it does not run) is no part of the set: nobody would take what it is given. What moves is a whole source: a NAPI is
//! polled by one CPU at a time and each turn runs to completion, so the packets of a flow keep their order. The set of none
//! is the sources' own doing: those that rest are the kernel's ([`crate::netcpu`]), so that here the least is one CPU.
//!
//! Looks five times a second are soon enough to shrink, and to grow for a load that still fits. A poller that has no time left says so
//! itself ([`Pressure`]), within [`PRESSED_MOST`], and one CPU is added at once.
//!
//! # Properties
//! - A CPU is added only if some source would move there and leave the busiest CPU no less than it takes.
//! - After a change every polled source is on a CPU of the set, and none has moved twice.
//! - No source moves to a poller that is away, and the set is no larger than those that are there.
//! - A load that does not change is followed by at most as many changes as there are CPUs.
//! - After a CPU was taken away none is added by pressure for [`CALM`]: gusts do not move sources to and fro.
//! - In a set that cannot grow pressure moves sources to the lightest pollers, once per [`CALM`], as far as that evens the load.

use crate::host::TICK;
use crate::netset::{NetSet, Rules};
use crate::poller::{HEARTBEAT_PACKETS, SOURCES_MAX};
use crate::{MILLISECOND, Nanos, Permille};

/// Most net CPUs.
pub const CPUS_MAX: usize = 64;
/// Share of the set's time from which on it grows: a poller keeps a reserve of 200 permille by default where others want its
/// CPU.
pub const HIGH: Permille = 750;
/// Share of a set smaller by one below which it shrinks.
pub const LOW: Permille = 500;
/// Shares from which on the set grows and shrinks beside a reserve for programs, permille. A poller that waits for its next budget has
/// no time left either, so the first is below any budget.
#[must_use]
pub fn shares(reserve: Permille) -> (Permille, Permille) {
    (HIGH.min(1000u16.saturating_sub(reserve) / 8 * 7), LOW)
}

/// Looks in a row that must agree; with five a second that is 0.4 to 0.6 s.
pub const HOLD: u32 = 2;

/// Span in which a poller tells how busy it is, ns, and spans in a row that must agree.
pub const PRESSED: (Nanos, u32) = (2 * MILLISECOND, 2);
/// From the beginning of a load that takes all of a poller's time until it has said so, ns, and one turn.
pub const PRESSED_MOST: Nanos = PRESSED.0 * (PRESSED.1 as Nanos + 1);
/// Between two CPUs that pressure adds, and between two times that a poller tells, ns: the sources have moved, and what their packets say is of the new set.
pub const PRESSED_EVERY: Nanos = TICK / 10;
/// After a CPU was taken away, ns.
pub const CALM: Nanos = 2000 * MILLISECOND;

/// How busy one poller is, told by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressure {
    from: Nanos,
    spent: Nanos,
    spans: u32,
    told: Nanos,
    /// The last turn was work.
    works: bool,
}

impl Pressure {
    /// A turn of `frames` that ended at `now` took `spent`: true if packets have taken more than `high` of the poller's time for
    /// long enough. A peek is no work: a poller has time for it that has nothing else to do. A small turn is: where sockets are
    /// nearly full there is no other.
    pub fn turned(&mut self, now: Nanos, frames: u32, spent: Nanos, high: Permille) -> bool {
        self.works = frames > HEARTBEAT_PACKETS;
        self.spent += if self.works { spent } else { 0 };
        let span = now.saturating_sub(self.from);
        if span < PRESSED.0 {
            return false;
        }
        // A span much longer than asked for is one in which the poller slept.
        let busy = u128::from(self.spent) * 1000 > u128::from(span) * u128::from(high);
        let spans = if busy { self.spans + 1 } else { 0 };
        let pressed = spans >= PRESSED.1 && now.saturating_sub(self.told) >= PRESSED_EVERY;
        let told = if pressed { now } else { self.told };
        *self = Self { from: now, spent: 0, spans, told, works: self.works };
        pressed
    }

    /// The way into the sleep after a turn and out of it took `spent`: it is of that turn, as in the time that looks go by.
    pub fn slept(&mut self, spent: Nanos) {
        self.spent += if self.works { spent } else { 0 };
    }
}

/// A source that is polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Its slot.
    pub slot: usize,
    /// Which poller, by the order of the CPUs; below [`CPUS_MAX`].
    pub poller: usize,
    /// Packets since the last look.
    pub packets: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Resizer {
    set: NetSet,
    /// All CPUs, a bit each.
    cpus: u64,
    /// Those whose pollers take nothing.
    away: u64,
    /// The set as it was told last.
    told: u64,
    high: Permille,
    low: Permille,
    last: Option<(Nanos, Nanos)>,
    /// When it grew last by pressure, and when it shrank last.
    pressed: Option<Nanos>,
    shrunk: Option<Nanos>,
    /// When pressure moved a source within a set that could not grow.
    evened: Option<Nanos>,
}

impl Resizer {
    /// For `cpus` pollers, from one on; `high` and `low` as [`HIGH`] and [`LOW`], `low` below `high`.
    #[must_use]
    pub fn new(cpus: usize, high: Permille, low: Permille) -> Self {
        let most = u32::try_from(cpus.min(CPUS_MAX)).unwrap_or(1).max(1);
        let all = u64::MAX >> (u64::BITS - most);
        // An empty set is not met here, so `first` says nothing.
        let rules = Rules { most, first: high, high, low: low.min(high.saturating_sub(1)), hold: HOLD };
        Self {
            set: NetSet::new(rules, 1),
            cpus: all,
            away: 0,
            told: first(all, 1),
            high,
            low: rules.low,
            last: None,
            pressed: None,
            shrunk: None,
            evened: None,
        }
    }

    /// Other shares from here on, as in [`Self::new`].
    pub fn tune(&mut self, high: Permille, low: Permille) {
        let rules = self.set.tune(high, low.min(high.saturating_sub(1)));
        (self.high, self.low) = (rules.high, rules.low);
    }

    /// Net CPUs now.
    #[must_use]
    pub fn size(&self) -> usize {
        self.set.size() as usize
    }

    /// Changes so far that the load has asked for.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.set.changes()
    }

    /// The set: a bit for each poller, by the order of the CPUs.
    #[must_use]
    pub fn members(&self) -> u64 {
        first(self.cpus & !self.away, self.size())
    }

    /// The poller that one more CPU would be, if there is one.
    fn next(&self) -> Option<usize> {
        let more = first(self.cpus & !self.away, self.size() + 1) & !self.members();
        (more != 0).then(|| more.trailing_zeros() as usize)
    }

    /// Pollers whose bit is set in `away` take nothing from here on.
    fn sees(&mut self, away: u64) {
        self.away = away;
        // One at least: it is the first that comes back.
        self.set.bound((self.cpus & !away).count_ones().max(1));
    }

    /// The size, if the set is another one than was told last.
    fn changed(&mut self) -> Option<usize> {
        let members = self.members();
        (std::mem::replace(&mut self.told, members) != members).then(|| self.size())
    }

    /// A look at `now`: pollers have spent `busy` ns on packets since they began, and those whose bit is set in `away` take
    /// nothing; at most [`SOURCES_MAX`] sources are looked at. The size if the set changes; `give` gets the slots that move, each
    /// with its new poller.
    pub fn look(
        &mut self,
        now: Nanos,
        busy: Nanos,
        away: u64,
        polled: &[Polled],
        mut give: impl FnMut(usize, usize),
    ) -> Option<usize> {
        self.sees(away);
        let Some((at, was)) = self.last.replace((now, busy)) else { return self.changed() };
        let (period, size) = (now.saturating_sub(at), self.size());
        let (members, next) = (self.members(), self.next());
        let share = |of: Permille, cpus: usize| {
            let ns = u128::from(period) * u128::from(of) * cpus as u128 / 1000;
            Nanos::try_from(ns).unwrap_or(Nanos::MAX)
        };
        let mut seated = Seated::new(polled);
        let mut spent = busy.saturating_sub(was);
        // Nothing would move to one more CPU, so it would be of no use.
        if next.and_then(|next| seated.best(members, next)).is_none() {
            spent = spent.min(share(self.high, size));
        }
        if size == 1 {
            spent = spent.max(share(self.low, 1));
        }
        let new = self.set.observe(period, spent) as usize;
        if new < size {
            self.shrunk = Some(now);
        }
        while let Some(n) = seated.heaviest_outside(self.members())
            && let Some(to) = seated.lightest(self.members())
        {
            give(seated.of[n].slot, to);
            seated.moves(n, to);
        }
        if let Some(next) = next.filter(|_| new > size) {
            seated.spread(members, next, give);
        }
        self.changed()
    }

    /// The poller `from` has said at `now` that it has no time left: as [`Self::look`], for what would wait for two of them. Packets
    /// differ in cost, so it gives first, and not the one that has most of them. Pollers whose bit is set in `away` take nothing.
    pub fn pressed(
        &mut self,
        now: Nanos,
        from: usize,
        away: u64,
        polled: &[Polled],
        mut give: impl FnMut(usize, usize),
    ) -> Option<usize> {
        let lately = |at: Option<Nanos>, span| at.is_some_and(|at| now.saturating_sub(at) < span);
        self.sees(away);
        let (members, mut seated) = (self.members(), Seated::new(polled));
        if lately(self.pressed, PRESSED_EVERY) || lately(self.shrunk, CALM) {
            return self.changed();
        }
        if self.set.is_full() && lately(self.last.map(|(at, _)| at), PRESSED_EVERY) {
            // What was counted since the last look is too little to tell.
            return self.changed();
        }
        let Some(next) = self.next() else {
            while !lately(self.evened, CALM)
                && let Some(to) = seated.lightest(members)
                && let Some(n) = seated.best_of(from, to)
            {
                give(seated.of[n].slot, to);
                seated.moves(n, to);
            }
            self.evened = Some(now).filter(|_| seated.any_moved()).or(self.evened);
            return self.changed();
        };
        if seated.best_of(from, next).is_none() {
            return self.changed();
        }
        self.pressed = Some(now);
        self.set.grow();
        while let Some(n) = seated.best_of(from, next) {
            give(seated.of[n].slot, next);
            seated.moves(n, next);
        }
        seated.spread(members, next, give);
        self.changed()
    }
}

/// The lowest `count` bits of those that are set in `of`.
fn first(of: u64, count: usize) -> u64 {
    let mut rest = of;
    for _ in 0..count.min(CPUS_MAX) {
        rest &= rest.saturating_sub(1);
    }
    of & !rest
}

/// Sources by poller.
struct Seated {
    of: [Polled; SOURCES_MAX],
    count: usize,
    load: [u64; CPUS_MAX],
    /// By place in `of`.
    moved: [bool; SOURCES_MAX],
}

impl Seated {
    fn new(polled: &[Polled]) -> Self {
        let mut seated = Self {
            of: [Polled::default(); SOURCES_MAX],
            count: 0,
            load: [0; CPUS_MAX],
            moved: [false; SOURCES_MAX],
        };
        for (n, source) in polled.iter().filter(|p| p.poller < CPUS_MAX).take(SOURCES_MAX).enumerate() {
            seated.of[n] = *source;
            seated.load[source.poller] += source.packets;
            seated.count = n + 1;
        }
        seated
    }

    fn still(&self) -> impl Iterator<Item = (usize, &Polled)> {
        self.of[..self.count].iter().enumerate().filter(|(n, _)| !self.moved[*n])
    }

    /// The source to move to the poller `to`, by place: the heaviest of the busiest other one of the set that leaves the busiest no
    /// less than the new one gets.
    fn best(&self, members: u64, to: usize) -> Option<usize> {
        let from = pollers(members).filter(|p| *p != to).max_by_key(|p| self.load[*p])?;
        self.best_of(from, to)
    }

    /// The same, of the poller `from`.
    fn best_of(&self, from: usize, to: usize) -> Option<usize> {
        let (there, here) = (self.load.get(to)?, self.load.get(from)?);
        let fits = |p: &&Polled| p.packets > 0 && there + p.packets <= here.saturating_sub(p.packets);
        let of = self.still().filter(|(_, p)| p.poller == from && fits(p));
        of.max_by_key(|(_, p)| p.packets).map(|(n, _)| n)
    }

    /// The poller `to` gets what evens its load with that of the set.
    fn spread(&mut self, members: u64, to: usize, mut give: impl FnMut(usize, usize)) {
        while let Some(n) = self.best(members, to) {
            give(self.of[n].slot, to);
            self.moves(n, to);
        }
    }

    /// The heaviest source of pollers outside of the set.
    fn heaviest_outside(&self, members: u64) -> Option<usize> {
        let outside = |p: &Polled| members >> p.poller & 1 == 0;
        self.still().filter(|(_, p)| outside(p)).max_by_key(|(_, p)| p.packets).map(|(n, _)| n)
    }

    fn any_moved(&self) -> bool {
        self.moved[..self.count].contains(&true)
    }

    fn lightest(&self, members: u64) -> Option<usize> {
        pollers(members).min_by_key(|p| self.load[*p])
    }

    fn moves(&mut self, n: usize, to: usize) {
        let source = &mut self.of[n];
        self.load[source.poller] = self.load[source.poller].saturating_sub(source.packets);
        self.load[to] += source.packets;
        (source.poller, self.moved[n]) = (to, true);
    }
}

/// The pollers whose bits are set.
fn pollers(members: u64) -> impl Iterator<Item = usize> {
    (0..CPUS_MAX).filter(move |p| members >> p & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;
    use proptest::prelude::*;

    const TICK: Nanos = 200 * MILLISECOND;

    /// A host whose pollers spend `cost` ns on a packet, as far as they have time.
    struct Net {
        resizer: Resizer,
        sources: Vec<Polled>,
        now: Nanos,
        busy: Nanos,
        away: u64,
        moved: Vec<(usize, usize)>,
    }

    impl Net {
        fn new(cpus: usize, rates: &[u64]) -> Self {
            let source = |(slot, packets): (usize, &u64)| Polled { slot, poller: 0, packets: *packets };
            let sources = rates.iter().enumerate().map(source).collect();
            let resizer = Resizer::new(cpus, HIGH, LOW);
            Self { resizer, sources, now: 0, busy: 0, away: 0, moved: Vec::new() }
        }

        /// Looks `n` times; packets are per look and take a microsecond each.
        fn looks(&mut self, n: usize) {
            for _ in 0..n {
                self.now += TICK;
                for cpu in 0..CPUS_MAX {
                    let of = self.sources.iter().filter(|s| s.poller == cpu);
                    self.busy += (of.map(|s| s.packets).sum::<u64>() * 1000).min(TICK);
                }
                let mut moves = Vec::new();
                self.resizer
                    .look(self.now, self.busy, self.away, &self.sources, |slot, to| moves.push((slot, to)));
                for &(slot, to) in &moves {
                    self.sources[slot].poller = to;
                }
                self.moved.extend(moves);
            }
        }

        fn offer(&mut self, rates: &[u64]) {
            self.sources.iter_mut().zip(rates).for_each(|(s, rate)| s.packets = *rate);
        }
    }

    #[test]
    fn a_second_cpu_takes_the_source_that_evens_the_load_and_gives_it_back() {
        let mut net = Net::new(2, &[100_000, 60_000, 20_000]);
        net.looks(5);
        assert_eq!((net.resizer.size(), net.resizer.changes()), (2, 1));
        // 60,000 there leaves 120,000; 20,000 more leaves 100,000.
        assert_eq!(net.moved, [(1, 1), (2, 1)]);
        net.offer(&[10_000, 10_000, 10_000]);
        net.looks(20);
        assert_eq!((net.resizer.size(), net.resizer.changes()), (1, 2));
        assert!(net.sources.iter().all(|s| s.poller == 0), "{:?}", net.sources);
    }

    #[test]
    fn pressure_adds_a_cpu_at_once_and_not_soon_after_one_was_taken_away() {
        let ms = MILLISECOND;
        let mut net = Net::new(3, &[90_000, 80_000, 70_000]);
        let mut moved = Vec::new();
        let mut pressed = |net: &mut Net, now| {
            moved.clear();
            let size = net.resizer.pressed(now, 0, 0, &net.sources, |slot, to| moved.push((slot, to)));
            moved.iter().for_each(|&(slot, to)| net.sources[slot].poller = to);
            size
        };
        assert_eq!(pressed(&mut net, ms), Some(2));
        assert_eq!(pressed(&mut net, 2 * ms), None, "the sources have not moved yet");
        assert_eq!(pressed(&mut net, ms + PRESSED_EVERY), Some(3));
        assert_eq!(pressed(&mut net, 500 * ms), None, "there are no more");
        net.now = 500 * ms;
        net.offer(&[1000, 1000, 1000]);
        net.looks(10);
        assert_eq!(net.resizer.size(), 1);
        let now = net.now;
        assert_eq!(pressed(&mut net, now), None, "a gust");
        assert_eq!(pressed(&mut net, now + CALM), Some(2));
        assert_eq!(pressed(&mut Net::new(2, &[100_000]), ms), None, "nothing would move");
    }

    #[test]
    fn the_poller_that_is_pressed_gives_and_not_the_one_with_most_packets() {
        // Poller 0 sheds a flood at little cost; poller 1 has no time left.
        let seat = |(slot, (poller, packets)): (usize, (usize, u64))| Polled { slot, poller, packets };
        let sources: Vec<Polled> =
            [(0, 900_000), (0, 800_000), (1, 6_000), (1, 5_000)].into_iter().enumerate().map(seat).collect();
        let mut resizer = Resizer::new(3, HIGH, LOW);
        let mut first = None;
        assert_eq!(resizer.pressed(MILLISECOND, 0, 0, &sources, |slot, _| first = Some(slot)), Some(2));
        let mut moved = Vec::new();
        let size = resizer.pressed(500 * MILLISECOND, 1, 0, &sources, |slot, to| moved.push((slot, to)));
        assert_eq!((size, moved.first()), (Some(3), Some(&(3, 2))));
    }

    #[test]
    fn a_set_that_cannot_grow_is_evened_once() {
        let seat = |(slot, packets): (usize, u64)| Polled { slot, poller: 0, packets };
        let mut sources: Vec<Polled> = [40_000, 30_000, 20_000].into_iter().enumerate().map(seat).collect();
        let mut resizer = Resizer::new(2, HIGH, LOW);
        assert_eq!(resizer.pressed(MILLISECOND, 0, 0, &sources, |_, _| ()), Some(2));
        // All are hot on the first again, as after a rest.
        let mut now = MILLISECOND + CALM;
        let mut moves = 0;
        for _ in 0..50 {
            let mut moved = Vec::new();
            for poller in 0..2 {
                let size = resizer.pressed(now, poller, 0, &sources, |slot, to| moved.push((slot, to)));
                assert_eq!(size, None);
            }
            moved.iter().for_each(|&(slot, to)| sources[slot].poller = to);
            moves += moved.len();
            now += PRESSED_EVERY;
        }
        assert_eq!((moves, sources[0].poller), (1, 1), "{sources:?}");
        // All of many at once.
        let mut resizer = Resizer::new(2, HIGH, LOW);
        let sources: Vec<Polled> = (0..8).map(|slot| Polled { slot, poller: 0, packets: 10_000 }).collect();
        assert_eq!(resizer.pressed(MILLISECOND, 0, 0, &sources, |_, _| ()), Some(2));
        let mut moved = 0;
        assert_eq!(resizer.pressed(now, 0, 0, &sources, |_, to| moved += to), None);
        assert_eq!(moved, 4);
    }

    /// Whatever the reserve is, a poller that uses its budget up is full, and so it stays after the reserve has changed.
    #[test]
    fn a_budget_that_is_used_up_is_a_full_cpu() {
        for reserve in (10..=950u16).step_by(10) {
            let (high, low) = shares(reserve);
            assert!(high > 0 && high < 1000 - reserve, "{reserve}");
            let mut net = Net::new(2, &[100_000, 60_000]);
            net.resizer.tune(high, low);
            for look in 1..4 {
                let busy = look * TICK * u64::from(1000 - reserve) / 1000;
                net.resizer.look(look * TICK, busy, 0, &net.sources, |_, _| ());
            }
            assert_eq!(net.resizer.size(), 2, "{reserve}");
        }
    }

    #[test]
    fn one_source_is_not_parted() {
        let mut net = Net::new(4, &[190_000]);
        net.looks(50);
        assert_eq!((net.resizer.size(), net.resizer.changes(), net.moved.len()), (1, 0, 0));
    }

    #[test]
    fn a_gust_of_one_look_changes_nothing() {
        let mut net = Net::new(2, &[1000, 1000]);
        for _ in 0..10 {
            net.offer(&[100_000, 90_000]);
            net.looks(1);
            net.offer(&[60_000, 60_000]);
            net.looks(1);
        }
        assert_eq!(net.resizer.changes(), 0);
    }

    #[test]
    fn a_poller_that_is_away_is_passed_over_and_gets_its_part_back() {
        let sources: Vec<Polled> = (0..4).map(|slot| Polled { slot, poller: 0, packets: 10_000 }).collect();
        let mut resizer = Resizer::new(3, HIGH, LOW);
        let size = resizer.pressed(MILLISECOND, 0, 0b010, &sources, |slot, to| assert_eq!(to, 2, "{slot}"));
        assert_eq!((size, resizer.members()), (Some(2), 0b101));
        // The same by looks.
        let mut net = Net::new(3, &[60_000; 3]);
        net.away = 0b010;
        net.looks(3);
        assert_eq!((net.resizer.members(), net.moved.clone()), (0b101, vec![(2, 2)]));
        // Only the last one is there, and then all are again: the first two poll.
        net.away = 0b011;
        net.looks(1);
        assert_eq!(net.resizer.members(), 0b100);
        assert!(net.sources.iter().all(|s| s.poller == 2), "{:?}", net.sources);
        net.away = 0;
        net.looks(3);
        assert_eq!(net.resizer.members(), 0b011);
        assert!(net.sources.iter().all(|s| s.poller < 2), "{:?}", net.sources);
        // With all away nothing can move.
        net.away = u64::MAX;
        let moved = net.moved.len();
        net.looks(3);
        assert_eq!((net.resizer.members(), net.moved.len()), (0, moved));
    }

    proptest! {
        /// A poller whose turns take all of its time says so in time, and one that sleeps a third of it never does.
        #[test]
        fn pressure_is_told_in_time(
            turns in prop::collection::vec(1_000u64..400_000, 200),
            frames in HEARTBEAT_PACKETS + 1..100,
        ) {
            let (mut busy, mut rests) = (Pressure::default(), Pressure::default());
            let (mut now, mut told) = (7_000_000_000, None);
            busy.turned(now, 0, 0, HIGH);
            rests.turned(now, 0, 0, HIGH);
            let mut peeks = busy;
            let begun = now;
            for turn in turns {
                now += turn;
                busy.slept(turn / 4);
                if busy.turned(now, frames, turn * 3 / 4, HIGH) {
                    told = told.or(Some(now));
                }
                prop_assert!(told.is_some() || now - begun < PRESSED_MOST);
                prop_assert!(!rests.turned(now, 64, turn * 2 / 3, HIGH));
                peeks.slept(turn / 2);
                prop_assert!(!peeks.turned(now, HEARTBEAT_PACKETS, turn / 2, HIGH));
            }
        }

        /// A step of load, up or down: at most two changes with up to three CPUs, and then all is still.
        #[test]
        fn a_step_is_followed_by_two_changes_at_most(
            cpus in 1usize..4,
            before in prop::collection::vec(0u64..200_000, 6),
            after in prop::collection::vec(0u64..200_000, 6),
        ) {
            let mut net = Net::new(cpus, &before);
            net.looks(100);
            prop_assert!(net.resizer.changes() <= 2);
            let changes = net.resizer.changes();
            net.offer(&after);
            net.looks(50);
            prop_assert!(net.resizer.changes() <= changes + 2);
            let still = (net.resizer.changes(), net.moved.len());
            net.looks(50);
            prop_assert_eq!((net.resizer.changes(), net.moved.len()), still);
        }

        /// Whoever comes and goes, and whatever is looked at and told: sources move to pollers that are there and of the set, each
        /// once, and after a look none that can be is outside of it.
        #[test]
        fn no_source_goes_to_a_poller_that_is_away(
            steps in prop::collection::vec(
                (0u64..16, prop::collection::vec(0u64..100_000, 5), 0u64..400_000_000, prop::option::of(0usize..4)),
                1..60,
            ),
        ) {
            let (mut net, mut looked) = (Net::new(4, &[0; 5]), false);
            for (away, rates, busy, pressed) in steps {
                net.offer(&rates);
                net.now += TICK;
                net.busy += busy;
                let (mut moves, before) = (Vec::new(), net.resizer.members());
                let give = |slot, to| moves.push((slot, to));
                let told = match pressed {
                    Some(from) => net.resizer.pressed(net.now, from, away, &net.sources, give),
                    None => net.resizer.look(net.now, net.busy, away, &net.sources, give),
                };
                let members = net.resizer.members();
                prop_assert_eq!(told.is_some(), members != before, "the set is told when it changes");
                prop_assert_eq!(members & away, 0);
                prop_assert_eq!(members == 0, away == 15);
                for (n, (slot, to)) in moves.iter().enumerate() {
                    prop_assert!(members >> to & 1 == 1, "{moves:?} {away:b}");
                    prop_assert!(moves[..n].iter().all(|(other, _)| other != slot));
                    net.sources[*slot].poller = *to;
                }
                // The first look only begins to count.
                if pressed.is_none() && std::mem::replace(&mut looked, true) && members != 0 {
                    prop_assert!(net.sources.iter().all(|s| members >> s.poller & 1 == 1));
                }
            }
        }

        /// Whatever is looked at, a source moves to a CPU of the set, and once per look.
        #[test]
        fn sources_are_in_the_set(
            looks in prop::collection::vec((prop::collection::vec(0u64..100_000, 5), 0u64..300_000_000), 1..60),
        ) {
            let mut net = Net::new(3, &[0; 5]);
            for (rates, busy) in looks {
                net.offer(&rates);
                net.now += TICK;
                net.busy += busy;
                let mut moves = Vec::new();
                net.resizer.look(net.now, net.busy, 0, &net.sources, |slot, to| moves.push((slot, to)));
                for (n, (slot, to)) in moves.iter().enumerate() {
                    prop_assert!(moves[..n].iter().all(|(other, _)| other != slot));
                    net.sources[*slot].poller = *to;
                }
                let size = net.resizer.size();
                prop_assert!((1..=3).contains(&size));
                prop_assert!(net.sources.iter().all(|s| s.poller < size));
            }
        }
    }
}
