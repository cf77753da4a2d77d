//! Which accept queue takes a new connection: the choice that `weir accept` attaches to a server's listeners, and that the simulator's
//! machines run for [`super::Placing::Spill`].
//!
//! The choice itself is the C header `src/c/accept.h`, since the kernel's packet path must make it: one text, compiled for BPF and for the
//! host. This module is its mirror. Stealing, waking and moving flow groups cannot be done to an unmodified server from outside; they are
//! the simulator's alone.
//!
//! # Properties
//! - An empty queue of the own core takes it unless its worker has gone and that of another one has not, which is empty too or holds
//!   no more than the worker has been away for, in milliseconds; no load that all cores share equally moves a connection elsewhere.
//! - It never goes to a queue whose worker stands while one that was looked at moves and has room.
//! - A busy queue gives only to one that is below half of it.
//! - It never goes to a full queue while one that was looked at is not full: none overflows while such a one is below half.
//! - At most `looks` other queues are looked at.
//! - Who is moved from a closed listener goes to no queue that is near full, and to none whose worker stands, has gone, or was never seen
//!   to wait, unless what workers do is not looked at.

/// Queues of one group.
pub const QUEUES: usize = 512;
/// Most other queues that one choice looks at.
pub const LOOKS: u32 = 8;
/// The oldest connection has waited so long that an empty queue elsewhere is better, ns.
pub const LATE: u64 = 500_000;
/// The worker has taken nothing for so long that it counts as stalled, ns.
pub const STALLED: u64 = 5_000_000;
/// The worker has been at work for so long, without a rest and without taking a connection, that one which waits for events is better, ns.
pub const AWAY: u64 = 300_000;
/// Length at which a queue becomes busy.
pub const HIGH: u32 = 16;
/// Length at which it is no longer.
pub const LOW: u32 = 4;
/// The two marks for a queue of datagrams, of which a burst brings hundreds.
pub const DATAGRAMS_HIGH: u32 = 256;
/// See [`DATAGRAMS_HIGH`].
pub const DATAGRAMS_LOW: u32 = 64;
const NONE: u32 = u32::MAX;

/// `struct weir_accept_rules`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// See [`LATE`]; 0: never.
    pub late: u64,
    /// See [`STALLED`]; 0: never.
    pub stalled: u64,
    /// See [`HIGH`].
    pub high: u32,
    /// See [`LOW`].
    pub low: u32,
    /// Other queues that are looked at, 1 to [`LOOKS`].
    pub looks: u32,
    /// Nothing.
    pub pad: u32,
    /// See [`AWAY`]; 0: what workers do is not asked.
    pub away: u64,
}

impl Choice {
    /// The defaults.
    pub const DEFAULT: Choice =
        Choice { late: LATE, stalled: STALLED, high: HIGH, low: LOW, looks: LOOKS, pad: 0, away: AWAY };
    /// Without all that passes by a worker because it stands.
    pub const NO_STALL: Choice = Choice { late: 0, stalled: 0, away: 0, ..Choice::DEFAULT };

    /// The same for queues of datagrams, which come in bursts that are no sign of a slow worker.
    #[must_use]
    pub const fn for_datagrams(self) -> Choice {
        Choice { high: DATAGRAMS_HIGH, low: DATAGRAMS_LOW, ..self }
    }
}

impl Default for Choice {
    fn default() -> Self {
        Choice::DEFAULT
    }
}

/// What the worker of a queue does: `enum weir_accept_worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// It cannot be told.
    Unknown,
    /// It waits for events of its listener: it takes the next connection at once.
    Waits,
    /// It runs, or wants to.
    Runs,
    /// It sleeps somewhere else, or is stopped.
    Sleeps,
}

impl Worker {
    /// All, by their number in the header.
    pub const ALL: [Worker; 4] = [Worker::Unknown, Worker::Waits, Worker::Runs, Worker::Sleeps];

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Worker::Unknown => "unknown",
            Worker::Waits => "waits",
            Worker::Runs => "runs",
            Worker::Sleeps => "sleeps",
        }
    }
}

/// What is known of one accept queue: `struct weir_accept_queue`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Queue {
    cookie: u64,
    head: u64,
    since: u64,
    /// Connections that wait.
    pub length: u32,
    busy: u32,
    place: u32,
    placed: u32,
    affine: u32,
    worker: u32,
    seen: u64,
    born: u64,
    away: u64,
    rests: u64,
    ran: u64,
    waits_in: u64,
    task: u64,
    came: u32,
    epoch: u32,
    gives: u32,
    limit: u32,
}
const _: () = assert!(size_of::<Queue>() == 120 && size_of::<Choice>() == 40);

/// Why a queue was chosen: `enum weir_accept_why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// That of the own core.
    Own,
    /// The own core's worker stands.
    Stalled,
    /// The own core's worker is late, and this one is empty.
    Late,
    /// The own core's queue is busy.
    Busy,
    /// The own core has no worker.
    NoOwn,
    /// The own core's worker has gone, and that of this empty one has not.
    Away,
    /// The own core brings more than its share.
    Share,
}

impl Why {
    /// All, by their number in the header.
    pub const ALL: [Why; 7] =
        [Why::Own, Why::Stalled, Why::Late, Why::Busy, Why::NoOwn, Why::Away, Why::Share];

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Why::Own => "own",
            Why::Stalled => "stalled",
            Why::Late => "late",
            Why::Busy => "busy",
            Why::NoOwn => "no_own",
            Why::Away => "away",
            Why::Share => "share",
        }
    }
}

unsafe extern "C" {
    fn weir_host_accept_seen(
        queue: *mut Queue,
        rules: *const Choice,
        head: u64,
        born: u64,
        length: u32,
        limit: u32,
        now: u64,
    );
    fn weir_host_accept_worker(queue: *mut Queue, does: u32, rests: u64, ran: u64, now: u64);
    fn weir_host_accept_gone(queue: *const Queue, rules: *const Choice, now: u64) -> i32;
    fn weir_host_accept_choose(
        queues: *mut Queue,
        rules: *const Choice,
        count: u32,
        own: u32,
        draw: u32,
        now: u64,
        why: *mut u32,
    ) -> u32;
}

impl Queue {
    /// It was seen at `now` (ns) with `length` connections of at most `limit` (0: not known), the oldest of which has the name `head`
    /// (0: it is empty) and came at `born`.
    pub fn seen(&mut self, rules: &Choice, (head, born): (u64, u64), (length, limit): (u32, u32), now: u64) {
        // SAFETY: only this struct is written; both layouts are those of the header.
        unsafe { weir_host_accept_seen(self, rules, head, born, length, limit, now) }
    }

    /// Its worker was seen at `now` (ns) to do this; `rests` is any number that changes when the worker sleeps, `ran` its CPU time in
    /// ns, 0 where that is not known. To be called before [`Queue::seen`].
    pub fn worker(&mut self, does: Worker, rests: u64, ran: u64, now: u64) {
        // SAFETY: only this struct is written; its layout is that of the header.
        unsafe { weir_host_accept_worker(self, does as u32, rests, ran, now) }
    }

    /// Its worker will not take a connection now: it sleeps elsewhere, or was at work for too long.
    pub fn is_gone(&self, rules: &Choice, now: u64) -> bool {
        // SAFETY: both are only read; their layouts are those of the header.
        unsafe { weir_host_accept_gone(self, rules, now) != 0 }
    }

    /// It has reached the high mark and not fallen to the low one.
    pub fn is_busy(&self) -> bool {
        self.busy != 0
    }
}

/// The queue for a connection that came to the core whose queue is `own`, `draw` is random; `None` if there is no queue or more than
/// [`QUEUES`].
pub fn choose(
    queues: &mut [Queue],
    rules: &Choice,
    own: Option<usize>,
    draw: u32,
    now: u64,
) -> Option<(usize, Why)> {
    if queues.is_empty() || queues.len() > QUEUES {
        return None;
    }
    let (count, mut why) = (queues.len() as u32, 0);
    let own = own.filter(|own| *own < queues.len()).map_or(NONE, |own| own as u32);
    // SAFETY: the header reads and writes the first `count` queues alone, which is at most the length of the slice.
    let to =
        unsafe { weir_host_accept_choose(queues.as_mut_ptr(), rules, count, own, draw, now, &raw mut why) };
    Some((to as usize, *Why::ALL.get(why as usize)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Choice = Choice::DEFAULT;
    const MS: u64 = 1_000_000;

    unsafe extern "C" {
        fn weir_host_accept_moved(queue: *const Queue, rules: *const Choice, now: u64) -> u32;
    }

    /// Queues of these lengths whose oldest connections were seen first at 1 ms.
    fn queues(lengths: &[u32]) -> Vec<Queue> {
        let mut all = vec![Queue::default(); lengths.len()];
        for (n, (queue, length)) in all.iter_mut().zip(lengths).enumerate() {
            queue.seen(&RULES, (if *length > 0 { n as u64 + 1 } else { 0 }, MS), (*length, 0), MS);
        }
        all
    }

    #[test]
    fn a_stalled_worker_is_passed_by_and_a_slow_one_is_not() {
        let mut all = queues(&[1, 3]);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, MS + 4 * MS), Some((0, Why::Own)), "not yet");
        all[1].seen(&RULES, (9, 3 * MS), (3, 0), 3 * MS);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, 6 * MS), Some((1, Why::Stalled)));
        // Its worker takes one: the head is another one, however long the queue is.
        all[0].seen(&RULES, (7, 6 * MS), (9, 0), 6 * MS);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, 6 * MS), Some((0, Why::Own)));
        let mut all = queues(&[1, 0]);
        assert_eq!(choose(&mut all, &Choice::NO_STALL, Some(0), 0, 1000 * MS), Some((0, Why::Own)));
    }

    /// Nobody looked while the only connection waited.
    #[test]
    fn a_stall_that_began_between_two_looks_counts_from_the_connection_on() {
        let mut all = queues(&[0, 0]);
        all[0].seen(&RULES, (5, 40 * MS), (1, 0), 90 * MS);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, 90 * MS), Some((1, Why::Stalled)));
        // One that came behind others is the oldest since one of them was seen last, at most.
        let mut all = queues(&[2, 0]);
        all[0].seen(&RULES, (6, 0), (1, 0), 88 * MS);
        all[0].seen(&RULES, (7, 40 * MS), (1, 0), 90 * MS);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, 90 * MS), Some((1, Why::Late)));
    }

    #[test]
    fn a_late_one_gives_to_an_empty_queue_only() {
        let mut all = queues(&[2, 1, 0]);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, MS + LATE), Some((2, Why::Late)));
        let mut all = queues(&[2, 1, 1]);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, MS + LATE), Some((0, Why::Own)));
    }

    /// One that nobody has waited in yet: only what its worker does can tell.
    #[test]
    fn a_worker_that_has_gone_is_passed_by_before_a_connection_has_waited() {
        let chosen = |own: &[(Worker, u64, u64)], other: Worker, length: u32, now: u64| {
            let mut all = queues(&[0, length]);
            own.iter().for_each(|(does, rests, at)| all[0].worker(*does, *rests, 0, *at));
            all[1].worker(other, 0, 0, now);
            choose(&mut all, &RULES, Some(0), 0, now)
        };
        use Worker::{Runs, Sleeps, Unknown, Waits};
        let away = Some((1, Why::Away));
        let own = Some((0, Why::Own));
        assert_eq!(chosen(&[(Sleeps, 1, MS)], Waits, 0, MS), away);
        // One that would have to wait there too stays.
        assert_eq!(chosen(&[(Sleeps, 1, MS)], Waits, 1, MS), own);
        assert_eq!(chosen(&[(Sleeps, 1, MS)], Sleeps, 0, MS), own);
        // One that is at work is better than one that sleeps, and no better than one that was so for long.
        assert_eq!(chosen(&[(Sleeps, 1, MS)], Runs, 0, MS), away);
        assert_eq!(chosen(&[(Runs, 1, MS), (Runs, 1, MS + 1)], Runs, 0, MS + AWAY), own);
        assert_eq!(chosen(&[(Runs, 1, MS), (Runs, 1, MS + 1)], Unknown, 0, MS + AWAY), own);
        assert_eq!(chosen(&[(Waits, 1, MS), (Unknown, 0, 2 * MS)], Waits, 0, 9 * MS), own);
        // At work: for too long, too short, with a rest between two looks, first seen to be so now.
        assert_eq!(chosen(&[(Runs, 1, MS), (Runs, 1, MS + 1)], Waits, 0, MS + AWAY), away);
        assert_eq!(chosen(&[(Runs, 1, MS)], Waits, 0, MS + AWAY - 1), own);
        assert_eq!(chosen(&[(Runs, 1, MS), (Runs, 2, MS + AWAY)], Waits, 0, MS + AWAY), own);
        assert_eq!(chosen(&[(Waits, 1, MS), (Runs, 1, 9 * MS)], Waits, 0, 9 * MS), own);
        // For as long as a connection would be late: one that is at work too, if it has just begun.
        assert_eq!(chosen(&[(Runs, 1, MS), (Runs, 1, MS + 1)], Runs, 0, MS + LATE - 1), own);
        assert_eq!(chosen(&[(Runs, 1, MS), (Runs, 1, MS + 1)], Runs, 0, MS + LATE), away);
        // It has taken one meanwhile.
        let mut all = queues(&[1, 0]);
        all[0].worker(Runs, 1, 0, MS);
        all[0].seen(&RULES, (0, 0), (0, 0), MS + AWAY);
        all[1].worker(Waits, 0, 0, MS);
        assert!(!all[0].is_gone(&RULES, MS + AWAY) && all[0].is_gone(&RULES, MS + 2 * AWAY));
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, MS + AWAY), own);
    }

    /// What it has used between two looks counts if they are close, and if it is at work at the second.
    #[test]
    fn cpu_time_between_two_looks_tells_how_long_a_worker_has_been_at_work() {
        let gone = |does: Worker, used: u64, after: u64| {
            let mut queue = Queue::default();
            queue.worker(Worker::Waits, 1, 5 * MS, MS);
            queue.seen(&RULES, (0, 0), (0, 0), MS);
            queue.worker(does, 2, 5 * MS + used, MS + after);
            queue.is_gone(&RULES, MS + after)
        };
        assert!(gone(Worker::Runs, AWAY, 2 * MS));
        assert!(!gone(Worker::Runs, AWAY - 1, 2 * MS));
        assert!(!gone(Worker::Waits, AWAY, 2 * MS));
        assert!(!gone(Worker::Runs, AWAY, 4 * MS), "that long ago it may have been anything");
    }

    /// The longer it has been away the longer it will be, as far as anybody knows; a queue that moves is better up to there.
    #[test]
    fn one_that_has_been_gone_for_milliseconds_gives_to_one_that_holds_a_few() {
        let chosen = |does: Worker, away: u64, length: u32, other: Worker| {
            let now = 100 * MS;
            let mut all = queues(&[0, 0]);
            all[0].worker(Worker::Waits, 1, 0, now - away - 1);
            all[0].worker(does, 1, 0, now - away);
            all[1].worker(other, 0, 0, now);
            all[1].seen(&RULES, (9, now), (length, 0), now);
            choose(&mut all, &RULES, Some(0), 0, now)
        };
        use Worker::{Runs, Sleeps, Waits};
        for does in [Runs, Sleeps] {
            assert_eq!(chosen(does, 2 * MS, 1, Runs), Some((1, Why::Away)));
            assert_eq!(chosen(does, 2 * MS, 2, Runs), Some((0, Why::Own)));
            assert_eq!(chosen(does, 9 * MS, 8, Runs), Some((1, Why::Away)));
            // However long: not behind many, and not behind one that has gone too.
            assert_eq!(chosen(does, 99 * MS, HIGH + 1, Runs), Some((0, Why::Own)));
            assert_eq!(chosen(does, 99 * MS, 1, Sleeps), Some((0, Why::Own)));
        }
        assert_eq!(chosen(Waits, 9 * MS, 1, Runs), Some((0, Why::Own)));
    }

    /// One receive queue brings all connections, seldom, and they stay: no queue is ever long, and still each worker gets its part.
    #[test]
    fn one_core_that_brings_all_gives_what_is_beyond_its_share() {
        for (count, seconds) in [(2, 100), (4, 100), (16, 100), (2, 200)] {
            let mut all = queues(&vec![0; count]);
            let mut got = vec![0u32; count];
            let mut random = 1u64;
            let connections = 2000 * count;
            for n in 0..connections as u64 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let now = MS + n * seconds * 1000 * MS / connections as u64;
                let (to, _) = choose(&mut all, &RULES, Some(0), (random >> 32) as u32, now).unwrap();
                got[to] += 1;
            }
            let most = *got.iter().max().unwrap() as usize;
            assert!(most * count * 10 <= connections * 13, "{count} queues, {seconds} s: {got:?}");
        }
    }

    /// Cores that bring alike, as far as chance goes, keep what is theirs.
    #[test]
    fn cores_that_bring_alike_give_nothing() {
        let mut all = queues(&[0; 8]);
        let (mut random, mut given) = (1u64, 0);
        for n in 0..100_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let own = (random >> 40) as usize % 8;
            let (to, _) =
                choose(&mut all, &RULES, Some(own), (random >> 32) as u32, MS + n * MS / 10).unwrap();
            given += u32::from(to != own);
        }
        assert!(given < 1000, "{given} of 100,000");
    }

    /// Where both hold as many, the one that moves is better; a worker that has been at work for long is as good as gone.
    #[test]
    fn one_that_sleeps_gives_to_one_that_holds_no_more() {
        let chosen = |does: Worker, after: u64, other: u32| {
            let mut all = queues(&[3, other]);
            all[0].worker(does, 1, 0, MS);
            all[1].worker(Worker::Runs, 1, 0, MS + after);
            choose(&mut all, &RULES, Some(0), 0, MS + after)
        };
        assert_eq!(chosen(Worker::Sleeps, 0, 3), Some((1, Why::Away)));
        assert_eq!(chosen(Worker::Sleeps, 0, 4), Some((0, Why::Own)));
        assert_eq!(chosen(Worker::Runs, LATE, 3), Some((1, Why::Away)));
        assert_eq!(chosen(Worker::Runs, AWAY, 3), Some((0, Why::Own)), "it may just be busy");
    }

    /// That a worker has gone does not hide that its queue is busy or late.
    #[test]
    fn one_that_has_gone_gives_as_a_busy_and_a_late_one_too() {
        let mut all = queues(&[HIGH, 2]);
        all[0].worker(Worker::Sleeps, 1, 0, MS);
        all[1].worker(Worker::Runs, 1, 0, MS);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, MS), Some((1, Why::Away)));
        let mut all = queues(&[1, 0]);
        all[0].worker(Worker::Sleeps, 1, 0, MS);
        all[1].worker(Worker::Runs, 1, 0, MS + LATE);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, MS + LATE), Some((1, Why::Away)));
        // Behind one that has gone is worse than behind others.
        let mut all = queues(&[2, 0, 3]);
        all[1].worker(Worker::Sleeps, 1, 0, MS);
        assert_eq!(choose(&mut all, &RULES, None, 0, MS), Some((0, Why::NoOwn)));
    }

    #[test]
    fn a_busy_one_gives_to_one_below_half_of_it_until_the_low_mark() {
        let mut all = queues(&[HIGH, HIGH / 2]);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, MS), Some((0, Why::Own)));
        let mut all = queues(&[HIGH, HIGH / 2 - 1]);
        assert_eq!(choose(&mut all, &RULES, Some(0), 0, MS), Some((1, Why::Busy)));
        let mut all = queues(&[HIGH, 1]);
        all[0].seen(&RULES, (5, 0), (LOW + 1, 0), MS);
        assert!(all[0].is_busy());
        all[0].seen(&RULES, (5, 0), (LOW, 0), MS);
        assert!(!all[0].is_busy());
    }

    /// A listener of a small backlog gives from half of it on; a full one to whoever has room, one that stands too.
    #[test]
    fn a_full_one_gives_to_any_that_has_room() {
        let with = |own: u32, other: u32, stand: bool| {
            let mut all = queues(&[0, 0]);
            let now = if stand { 100 * MS } else { MS };
            for (n, length) in [own, other].into_iter().enumerate() {
                all[n].seen(&RULES, (n as u64 + 1, MS), (length, 9), MS);
            }
            choose(&mut all, &RULES, Some(0), 0, now)
        };
        assert_eq!(with(4, 1, false), Some((0, Why::Own)));
        assert_eq!(with(5, 1, false), Some((1, Why::Busy)));
        assert_eq!(with(6, 5, false), Some((0, Why::Own)));
        assert_eq!(with(7, 6, false), Some((1, Why::Busy)));
        assert_eq!(with(6, 1, true), Some((0, Why::Own)));
        assert_eq!(with(7, 6, true), Some((1, Why::Stalled)));
        assert_eq!(with(7, 7, true), Some((0, Why::Own)));
    }

    #[test]
    fn a_core_without_worker_takes_the_shortest_that_moves() {
        let mut all = queues(&[3, 0, 2]);
        assert_eq!(choose(&mut all, &RULES, None, 0, MS), Some((1, Why::NoOwn)));
        assert_eq!(choose(&mut [], &RULES, None, 0, 0), None);
        // All stand: the shortest too.
        let mut all = queues(&[3, 1, 2]);
        assert_eq!(choose(&mut all, &RULES, None, 0, 100 * MS), Some((1, Why::NoOwn)));
    }

    proptest! {
        /// Who is moved does not wait in vain, and is not refused where nothing is wrong.
        #[test]
        fn a_move_ends_where_somebody_takes_it(
            length in 0u32..40, age in 0u64..10, does in 0usize..4, limit in prop::option::of(1u32..60), no_stall: bool,
        ) {
            let rules = if no_stall { Choice::NO_STALL } else { RULES };
            let (now, at) = (20 * MS, (20 - age) * MS);
            let mut queue = Queue::default();
            queue.worker(Worker::ALL[does], 1, 0, at);
            queue.seen(&rules, (u64::from(length > 0), at), (length, limit.unwrap_or(0)), at);
            // SAFETY: both are only read; their layouts are those of the header.
            let taken = unsafe { weir_host_accept_moved(&queue, &rules, now) != NONE };
            let full = limit.is_some_and(|limit| length >= limit - limit / 4);
            let stands = !no_stall && length > 0 && age * MS >= STALLED;
            let unknown = !no_stall && Worker::ALL[does] == Worker::Unknown;
            prop_assert_eq!(taken, !(full || stands || unknown || queue.is_gone(&rules, now)));
        }

        /// Whatever the queues hold: the promises of the module.
        #[test]
        fn promises(
            lengths in prop::collection::vec((0u32..40, 0u64..10, 0usize..4, prop::option::of(1u32..60)), 1..40),
            own in prop::option::of(0usize..40),
            draw: u32,
            looks in 1u32..=LOOKS,
        ) {
            let rules = Choice { looks, ..RULES };
            let now = 20 * MS;
            let mut all = vec![Queue::default(); lengths.len()];
            for (n, (length, age, does, limit)) in lengths.iter().enumerate() {
                let (at, head) = (now - age * MS, if *length > 0 { n as u64 + 1 } else { 0 });
                all[n].worker(Worker::ALL[*does], 1, 0, at);
                all[n].seen(&rules, (head, at), (*length, limit.unwrap_or(0)), at);
            }
            let stands = |n: usize| lengths[n].0 > 0 && lengths[n].1 * MS >= STALLED;
            let full = |n: usize| lengths[n].3.is_some_and(|limit| lengths[n].0 >= limit - limit / 4);
            let gone: Vec<bool> = all.iter().map(|queue| queue.is_gone(&rules, now)).collect();
            let own = own.filter(|own| *own < all.len());
            let (to, why) = choose(&mut all, &rules, own, draw, now).unwrap();
            prop_assert!(to < all.len());
            let first = ((u64::from(draw) * lengths.len() as u64) >> 32) as usize;
            let looked: Vec<usize> =
                (0..looks.min(lengths.len() as u32) as usize).map(|i| (first + i) % lengths.len()).collect();
            prop_assert!(!full(to) || looked.iter().all(|n| full(*n)));
            if let Some(own) = own {
                prop_assert!(to == own || looked.contains(&to) && !full(to));
                let worth = u32::try_from((lengths[own].1 * MS) >> 20).unwrap();
                prop_assert!(lengths[own].0 > 0 || to == own || gone[own] && lengths[to].0 <= worth && !gone[to]);
                match why {
                    Why::Own => prop_assert_eq!(to, own),
                    Why::Stalled => prop_assert!(stands(own)),
                    Why::Away => prop_assert!(gone[own]),
                    Why::Late => prop_assert_eq!(lengths[to].0, 0),
                    Why::Busy => prop_assert!(all[own].is_busy()),
                    Why::NoOwn => prop_assert!(false, "it has one"),
                    Why::Share => prop_assert!(false, "it is the first one"),
                }
                // Once it is full, anywhere is better.
                match why {
                    Why::Busy if !full(own) => prop_assert!(lengths[to].0 == 0 || lengths[to].0 * 2 < lengths[own].0),
                    Why::Stalled if !full(own) => prop_assert!(!stands(to)),
                    Why::Away if !full(own) => {
                        prop_assert!(!gone[to] && lengths[to].0 <= lengths[own].0.max(worth));
                    }
                    _ => {}
                }
                if stands(own) && looked.iter().any(|n| *n != own && !stands(*n) && !full(*n)) {
                    prop_assert!(to != own && !stands(to));
                }
            } else {
                prop_assert!(!stands(to) || looked.iter().all(|n| stands(*n) || full(*n)));
            }
        }

        /// A load that all cores share equally stays where it came.
        #[test]
        fn even_load_stays(length in 1u32..400, cores in 2usize..40, own in 0usize..40, draw: u32, late in 0u64..4) {
            let own = own % cores;
            let mut all = queues(&vec![length; cores]);
            prop_assert_eq!(choose(&mut all, &RULES, Some(own), draw, MS + late * MS), Some((own, Why::Own)));
        }
    }
}
