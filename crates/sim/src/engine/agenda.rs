//! The agenda: what happens next.
//!
//! A 4-ary heap of 16-byte keys with the place of each event remembered, so that a timer is moved or cancelled in
//! place and no dead entry is ever popped.
//!
//! # Properties
//! - Events at the same time come in the order in which they were set: the order is total and the same on every
//!   machine.
//! - Time never runs backwards: an event set into the past happens now.
//! - Limits: 2^24 - 1 events pending, 2^40 settings in one run.

use super::Nanos;

const SLOT_BITS: u32 = 24;
const SEQ_BITS: u32 = 40;
const SLOT_MASK: u128 = (1 << SLOT_BITS) - 1;
const NOWHERE: u32 = u32::MAX;
const ARITY: usize = 4;

/// A timer of an [`Agenda`]: an event of its own that is set, moved and cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer(u32);

/// Pending events of type `E`, by time.
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    /// time << 64 | sequence << 24 | slot.
    heap: Vec<u128>,
    /// Place in the heap of each slot.
    place: Vec<u32>,
    /// Event of each slot; the flag is set for one-shot events.
    events: Vec<(E, bool)>,
    free: Vec<u32>,
    sequence: u64,
    now: Nanos,
    fired: u64,
}

impl<E: Copy> Default for Agenda<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Copy> Agenda<E> {
    /// Empty, at time 0.
    pub fn new() -> Self {
        Self {
            heap: Vec::with_capacity(64),
            place: Vec::new(),
            events: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            now: 0,
            fired: 0,
        }
    }

    /// The time of the last event.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Events that have happened.
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Events that are pending.
    pub fn pending(&self) -> usize {
        self.heap.len()
    }

    /// A new timer for `event`, not set.
    ///
    /// # Panics
    /// With 2^24 - 1 events.
    pub fn timer(&mut self, event: E) -> Timer {
        Timer(self.slot(event, false))
    }

    fn slot(&mut self, event: E, once: bool) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.events[slot as usize] = (event, once);
            return slot;
        }
        let slot = self.place.len() as u32;
        assert!(u128::from(slot) < SLOT_MASK, "more than 2^24 events pending: a machine has lost its bounds");
        self.place.push(NOWHERE);
        self.events.push((event, once));
        slot
    }

    fn key(&mut self, at: Nanos, slot: u32) -> u128 {
        self.sequence += 1;
        debug_assert!(self.sequence < 1 << SEQ_BITS);
        u128::from(at.max(self.now)) << 64 | u128::from(self.sequence) << SLOT_BITS | u128::from(slot)
    }

    /// `event` happens once, at `at`.
    pub fn once(&mut self, at: Nanos, event: E) {
        let slot = self.slot(event, true);
        self.insert(at, slot);
    }

    /// The timer's event happens at `at`, instead of when it was set for before.
    #[inline]
    pub fn set(&mut self, timer: Timer, at: Nanos) {
        let place = self.place[timer.0 as usize];
        if place == NOWHERE {
            self.insert(at, timer.0);
            return;
        }
        let place = place as usize;
        let key = self.key(at, timer.0);
        let old = self.heap[place];
        if key < old {
            self.up(place, key);
        } else {
            self.down(place, key);
        }
    }

    /// When the timer's event will happen.
    pub fn when(&self, timer: Timer) -> Option<Nanos> {
        let place = self.place[timer.0 as usize];
        self.heap.get(place as usize).map(|key| (key >> 64) as Nanos)
    }

    /// The timer's event does not happen.
    pub fn cancel(&mut self, timer: Timer) {
        let place = self.place[timer.0 as usize];
        if place != NOWHERE {
            self.place[timer.0 as usize] = NOWHERE;
            self.remove(place as usize);
        }
    }

    /// Sets the timer, or cancels it if `at` is [`super::NEVER`].
    #[inline]
    pub fn set_or_cancel(&mut self, timer: Timer, at: Nanos) {
        if at == Nanos::MAX { self.cancel(timer) } else { self.set(timer, at) }
    }

    /// The time of the next event.
    #[inline]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.first().map(|key| (key >> 64) as Nanos)
    }

    /// The next event; time moves to it.
    #[inline]
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        let key = *self.heap.first()?;
        let slot = (key & SLOT_MASK) as u32;
        self.place[slot as usize] = NOWHERE;
        self.remove(0);
        self.now = (key >> 64) as Nanos;
        self.fired += 1;
        let (event, once) = self.events[slot as usize];
        if once {
            self.free.push(slot);
        }
        Some((self.now, event))
    }

    #[inline]
    fn insert(&mut self, at: Nanos, slot: u32) {
        let key = self.key(at, slot);
        self.heap.push(key);
        self.up(self.heap.len() - 1, key);
    }

    #[inline]
    fn remove(&mut self, place: usize) {
        let Some(last) = self.heap.pop() else { return };
        if place < self.heap.len() {
            if place > 0 && last < self.heap[(place - 1) / ARITY] {
                self.up(place, last);
            } else {
                self.down(place, last);
            }
        }
    }

    #[inline]
    fn put(&mut self, place: usize, key: u128) {
        self.heap[place] = key;
        self.place[(key & SLOT_MASK) as usize] = place as u32;
    }

    #[inline]
    fn up(&mut self, mut place: usize, key: u128) {
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.heap[parent] <= key {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, key);
    }

    #[inline]
    fn down(&mut self, mut place: usize, key: u128) {
        let len = self.heap.len();
        loop {
            let first = place * ARITY + 1;
            if first >= len {
                break;
            }
            let mut least = first;
            for child in first + 1..(first + ARITY).min(len) {
                if self.heap[child] < self.heap[least] {
                    least = child;
                }
            }
            if key <= self.heap[least] {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_times_keep_their_order_and_the_past_is_now() {
        let mut agenda = Agenda::new();
        agenda.once(5, 'a');
        agenda.once(5, 'b');
        agenda.once(3, 'c');
        assert_eq!(agenda.pop(), Some((3, 'c')));
        agenda.once(1, 'd');
        assert_eq!(agenda.pop(), Some((3, 'd')));
        assert_eq!(agenda.pop(), Some((5, 'a')));
        assert_eq!(agenda.pop(), Some((5, 'b')));
        assert_eq!(agenda.pop(), None);
        assert_eq!(agenda.fired(), 4);
    }

    #[test]
    fn a_timer_moves_and_is_cancelled() {
        let mut agenda = Agenda::new();
        let timer = agenda.timer('t');
        agenda.set(timer, 10);
        agenda.once(20, 'x');
        agenda.set(timer, 30);
        assert_eq!(agenda.when(timer), Some(30));
        assert_eq!(agenda.pop(), Some((20, 'x')));
        agenda.cancel(timer);
        assert_eq!((agenda.when(timer), agenda.pop()), (None, None));
        agenda.set_or_cancel(timer, 40);
        assert_eq!(agenda.pop(), Some((40, 't')));
    }

    proptest! {
        /// Against a sorted list: any mixture of settings, moves, cancellations and pops.
        #[test]
        fn behaves_like_a_sorted_list(steps in prop::collection::vec((0u8..4, 0usize..40, 0u64..50), 1..600)) {
            let mut agenda = Agenda::new();
            let timers: Vec<Timer> = (0..40).map(|n| agenda.timer(n)).collect();
            let mut list: Vec<(Nanos, usize, usize)> = Vec::new();
            for (order, (what, which, at)) in steps.into_iter().enumerate() {
                match what {
                    0 | 1 => {
                        let at = at.max(agenda.now());
                        list.retain(|(_, _, n)| *n != which);
                        list.push((at, order, which));
                        agenda.set(timers[which], at);
                    }
                    2 => { list.retain(|(_, _, n)| *n != which); agenda.cancel(timers[which]); }
                    _ => {
                        list.sort_unstable();
                        let expected = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(agenda.pop(), expected.map(|(at, _, n)| (at, n)));
                    }
                }
                prop_assert_eq!(agenda.pending(), list.len());
            }
        }
    }
}
