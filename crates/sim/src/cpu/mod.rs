//! One CPU: interrupt levels above threads, every nanosecond of it in one named bucket.
//!
//! Work comes in pieces with a cost. A piece at a higher level preempts all below and never one of its own level; what
//! is preempted goes on where it stopped. Threads run when no level is active, in the order of a [`Scheduler`].
//!
//! ```text
//! event loop: cpu.advance(now) is done by every call that takes `now`
//!             agenda.set_or_cancel(timer, cpu.next()) after every event that touched the CPU
//!             on the timer: while let Some(done) = cpu.done(now) { what comes after that piece }
//! ```
//!
//! A thread whose piece is done stays on the CPU until the machine gives it another ([`Cpu::burst`]) or blocks it
//! ([`Cpu::block`]); the machine does one of the two before it returns to the event loop.
//!
//! A slice ends when it is used up, or on a CPU that is [`Cpu::ticked`] only when somebody looks: at the next tick, and when
//! a thread wakes up, as in a kernel without high-resolution preemption.
//!
//! # Properties
//! - The buckets sum to the time that has passed ([`Cpu::accounts`], checked by [`crate::check::time`]).
//! - At most one piece runs at a time.
//! - Limits: [`LEVELS`] levels, [`BUCKETS`] buckets, [`THREADS_MAX`] threads.

mod bsd;
mod eevdf;
mod o1;

pub use bsd::Bsd;
pub use eevdf::Eevdf;
pub use o1::O1;

use crate::engine::{NEVER, Nanos};

/// Interrupt levels, 0 to `LEVELS - 1`, the last one highest.
pub const LEVELS: usize = 6;
/// Buckets of time.
pub const BUCKETS: usize = 16;
/// Most threads of one CPU.
pub const THREADS_MAX: usize = 4096;

/// Where time is counted. Machines name their own from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket(pub u8);

/// Nothing to do.
pub const IDLE: Bucket = Bucket(0);

/// A thread of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Thread(pub u32);

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Before all others, by priority (higher first), never preempted by its equal.
    Fifo(u8),
    /// By the scheduler's rules, nice -20 to 19.
    Normal(i8),
    /// Only when nothing else is runnable.
    Idle,
}

/// Chooses among runnable threads. The one that runs is not in its queue.
pub trait Scheduler {
    /// A new thread, blocked. Threads are numbered from 0 in this order.
    fn add(&mut self, class: Class);
    /// A blocked thread becomes runnable; true if it takes the CPU from `current`.
    fn wake(&mut self, now: Nanos, thread: Thread, current: Option<Thread>) -> bool;
    /// The thread that runs has used so much CPU time.
    fn charge(&mut self, thread: Thread, ran: Nanos);
    /// The thread that runs blocks.
    fn block(&mut self, now: Nanos, thread: Thread);
    /// The thread that runs goes back among the runnable ones.
    fn requeue(&mut self, now: Nanos, thread: Thread, why: Requeue);
    /// A thread that waits for the CPU leaves for another one. Only schedulers of machines that move threads have it.
    fn withdraw(&mut self, _thread: Thread) {}
    /// Takes the next thread, and how long it may run before [`Requeue::Expired`].
    fn pick(&mut self, now: Nanos) -> Option<(Thread, Nanos)>;
    /// True if the time of interrupt levels counts as that of the thread they preempt.
    fn charges_interrupts(&self) -> bool {
        false
    }
}

/// Why a running thread goes back among the runnable ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Another one woke up that goes first.
    Preempted,
    /// Its slice is used up.
    Expired,
    /// It asked for it.
    Yield,
}

/// What has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The piece at this interrupt level.
    Level(usize),
    /// The thread's piece: give it another one or block it.
    Thread(Thread),
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    left: Nanos,
    bucket: Bucket,
}

/// See [`Cpu::refilling`].
#[derive(Clone, Copy, Debug)]
struct Refill {
    thread: Thread,
    away: Nanos,
    cost: Nanos,
    /// Busy time of the CPU when the thread had it last.
    seen: Nanos,
}

const NOTHING: Piece = Piece { left: 0, bucket: IDLE };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    Idle,
    Level(usize),
    Switch,
    Thread,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Cpu<S> {
    levels: [Piece; LEVELS],
    active: u8,
    threads: Vec<Piece>,
    blocked: Vec<bool>,
    current: Option<Thread>,
    slice: Nanos,
    /// What is left of a change of threads.
    switching: Nanos,
    switch_cost: Nanos,
    switch_bucket: Bucket,
    last: Option<Thread>,
    refill: Option<Refill>,
    /// This thread keeps the CPU once it has it.
    held: Option<Thread>,
    resched: bool,
    ticked: bool,
    /// A tick has found the slice used up.
    due: bool,
    running: Running,
    since: Nanos,
    accounts: [Nanos; BUCKETS],
    switches: u64,
    /// No thread was runnable when one was looked for last.
    idle: bool,
    idled: u64,
    scheduler: S,
}

impl<S: Scheduler> Cpu<S> {
    /// An idle CPU at time 0. A change from one thread to another costs `switch_cost` in `switch_bucket`.
    pub fn new(scheduler: S, switch_cost: Nanos, switch_bucket: Bucket) -> Self {
        Self {
            levels: [NOTHING; LEVELS],
            active: 0,
            threads: Vec::new(),
            blocked: Vec::new(),
            current: None,
            slice: 0,
            switching: 0,
            switch_cost,
            switch_bucket,
            last: None,
            refill: None,
            held: None,
            resched: false,
            ticked: false,
            due: false,
            running: Running::Idle,
            since: 0,
            accounts: [0; BUCKETS],
            switches: 0,
            idle: false,
            idled: 0,
            scheduler,
        }
    }

    /// Slices end after a [`Self::tick`] and when a thread wakes up.
    pub fn ticked(self) -> Self {
        Self { ticked: true, ..self }
    }

    /// This thread needs `cost` ns more when it gets the CPU after more than `away` ns of work of others: its cache is gone.
    pub fn refilling(&mut self, thread: Thread, away: Nanos, cost: Nanos) {
        self.refill = Some(Refill { thread, away, cost, seen: 0 });
    }

    /// Time up to the last [`Self::advance`] in which the CPU was not idle.
    fn busy(&self) -> Nanos {
        self.since - self.accounts[usize::from(IDLE.0)]
    }

    /// The CPU goes from `last` to this thread.
    fn refill(&mut self, to: Thread) {
        let busy = self.busy();
        let Some(refill) = &mut self.refill else { return };
        if self.last == Some(refill.thread) {
            refill.seen = busy;
        } else if to == refill.thread && busy - refill.seen > refill.away {
            self.threads[to.0 as usize].left += refill.cost;
        }
    }

    /// A new thread, blocked.
    ///
    /// # Panics
    /// With more than [`THREADS_MAX`].
    pub fn thread(&mut self, class: Class) -> Thread {
        assert!(self.threads.len() < THREADS_MAX);
        self.scheduler.add(class);
        self.threads.push(NOTHING);
        self.blocked.push(true);
        Thread(self.threads.len() as u32 - 1)
    }

    /// Charges the time since the last call to what ran; `now` is at most [`Self::next`].
    #[inline]
    pub fn advance(&mut self, now: Nanos) {
        let ran = now - self.since;
        if ran == 0 {
            return;
        }
        self.since = now;
        let bucket = match self.running {
            Running::Idle => IDLE,
            Running::Level(level) => {
                self.levels[level].left -= ran;
                if let Some(thread) = self.current
                    && self.scheduler.charges_interrupts()
                {
                    self.slice = self.slice.saturating_sub(ran);
                    self.scheduler.charge(thread, ran);
                }
                self.levels[level].bucket
            }
            Running::Switch => {
                self.switching -= ran;
                self.switch_bucket
            }
            Running::Thread => match self.current {
                Some(thread) => {
                    let piece = &mut self.threads[thread.0 as usize];
                    piece.left -= ran;
                    self.slice = self.slice.saturating_sub(ran);
                    self.scheduler.charge(thread, ran);
                    piece.bucket
                }
                None => IDLE,
            },
        };
        self.accounts[usize::from(bucket.0)] += ran;
    }

    #[inline]
    fn choose(&mut self) {
        self.running = if self.active != 0 {
            Running::Level(7 - self.active.leading_zeros() as usize)
        } else if self.current.is_none() {
            Running::Idle
        } else if self.switching > 0 {
            Running::Switch
        } else {
            Running::Thread
        };
    }

    /// When the CPU next needs attention; [`NEVER`] while it idles.
    #[inline]
    pub fn next(&self) -> Nanos {
        let left = match self.running {
            Running::Idle => return NEVER,
            Running::Level(level) => self.levels[level].left,
            Running::Switch => self.switching,
            Running::Thread => match self.current {
                Some(thread) if self.ticked || self.held == Some(thread) => {
                    self.threads[thread.0 as usize].left
                }
                Some(thread) => self.threads[thread.0 as usize].left.min(self.slice),
                None => return NEVER,
            },
        };
        self.since.saturating_add(left)
    }

    /// Starts a piece of `cost` at an interrupt level that is not active.
    #[inline]
    pub fn raise(&mut self, now: Nanos, level: usize, cost: Nanos, bucket: Bucket) {
        self.advance(now);
        debug_assert!(!self.is_active(level), "level {level} is active");
        self.levels[level] = Piece { left: cost, bucket };
        self.active |= 1 << level;
        self.choose();
    }

    /// Gives an active level another piece instead of its own: the end of a wait that was open.
    #[inline]
    pub fn replace(&mut self, now: Nanos, level: usize, cost: Nanos, bucket: Bucket) {
        self.advance(now);
        debug_assert!(self.is_active(level), "level {level} is not active");
        self.levels[level] = Piece { left: cost, bucket };
    }

    /// True while a piece at this level runs or is preempted.
    #[inline]
    pub fn is_active(&self, level: usize) -> bool {
        self.active & (1 << level) != 0
    }

    /// True while any interrupt level is active.
    pub fn in_interrupt(&self) -> bool {
        self.active != 0
    }

    /// The thread on the CPU, also while it is preempted by a level.
    pub fn current(&self) -> Option<Thread> {
        self.current
    }

    /// True if the thread waits for something, and not for the CPU.
    pub fn is_blocked(&self, thread: Thread) -> bool {
        self.blocked[thread.0 as usize]
    }

    /// Threads that wait for nothing but the CPU, or have it.
    pub fn runnable(&self) -> usize {
        self.blocked.iter().filter(|blocked| !**blocked).count()
    }

    /// True while no level is active and no thread is runnable.
    pub fn is_idle(&self) -> bool {
        self.active == 0 && self.current.is_none()
    }

    /// What has just finished, if anything has; call it until it gives nothing.
    #[inline]
    pub fn done(&mut self, now: Nanos) -> Option<Done> {
        self.advance(now);
        loop {
            match self.running {
                Running::Level(level) if self.levels[level].left == 0 => {
                    self.active &= !(1 << level);
                    self.choose();
                    return Some(Done::Level(level));
                }
                Running::Switch if self.switching == 0 => self.choose(),
                Running::Thread => {
                    let thread = self.current?;
                    if self.threads[thread.0 as usize].left == 0 {
                        return Some(Done::Thread(thread));
                    }
                    if self.slice > 0 || self.ticked || self.held == Some(thread) {
                        return None;
                    }
                    self.scheduler.requeue(now, thread, Requeue::Expired);
                    self.current = None;
                    self.pick(now);
                }
                _ => return None,
            }
        }
    }

    /// Gives a thread a piece of work of `cost`. A blocked thread wakes up.
    pub fn burst(&mut self, now: Nanos, thread: Thread, cost: Nanos, bucket: Bucket) {
        self.advance(now);
        let index = thread.0 as usize;
        self.threads[index] = Piece { left: cost, bucket };
        if std::mem::take(&mut self.blocked[index]) {
            self.woken(now, thread);
        }
    }

    /// A thread that is in no queue becomes runnable.
    fn woken(&mut self, now: Nanos, thread: Thread) {
        if self.scheduler.wake(now, thread, self.current)
            && let Some(current) = self.current
        {
            if self.held == Some(current) {
                self.resched = true;
                return;
            }
            self.current = None;
            let expired = self.ticked && self.slice == 0;
            let why = if expired { Requeue::Expired } else { Requeue::Preempted };
            self.scheduler.requeue(now, current, why);
        }
        if self.current.is_none() {
            self.pick(now);
        } else {
            self.expire(now);
        }
    }

    /// The clock interrupts: a slice that is used up ends once no level is active, at the next [`Self::settle`].
    pub fn tick(&mut self, now: Nanos) {
        self.advance(now);
        self.due = self.ticked && self.slice == 0;
    }

    /// True while the thread on the CPU is to give way when interrupts are done.
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// After every event: what a tick has found happens when no level is active.
    #[inline]
    pub fn settle(&mut self, now: Nanos) {
        if self.due && self.active == 0 {
            self.due = false;
            self.advance(now);
            self.expire(now);
        }
    }

    fn expire(&mut self, now: Nanos) {
        let Some(current) = self.current.filter(|_| self.ticked && self.slice == 0) else { return };
        if self.held == Some(current) {
            self.resched = true;
            return;
        }
        self.scheduler.requeue(now, current, Requeue::Expired);
        self.current = None;
        self.pick(now);
    }

    /// From now on no other thread preempts this one while it runs: preemption is disabled.
    pub fn hold(&mut self, thread: Thread) {
        self.held = Some(thread);
    }

    /// Preemption is enabled again; what was due happens now.
    pub fn release(&mut self, now: Nanos) {
        self.advance(now);
        let Some(thread) = self.held.take() else { return };
        let resched = std::mem::take(&mut self.resched);
        if self.current == Some(thread) && (resched || self.slice == 0 && !self.ticked) {
            let why = if self.slice == 0 { Requeue::Expired } else { Requeue::Preempted };
            self.scheduler.requeue(now, thread, why);
            self.current = None;
            self.pick(now);
        }
    }

    /// The thread on the CPU waits for something.
    pub fn block(&mut self, now: Nanos, thread: Thread) {
        self.advance(now);
        debug_assert_eq!(self.current, Some(thread));
        self.blocked[thread.0 as usize] = true;
        self.scheduler.block(now, thread);
        self.current = None;
        self.pick(now);
    }

    /// A thread that is runnable leaves for another CPU, blocked here; the time that its piece still needs.
    pub fn withdraw(&mut self, now: Nanos, thread: Thread) -> Nanos {
        self.advance(now);
        debug_assert!(!self.is_blocked(thread));
        if self.current == Some(thread) {
            self.block(now, thread);
        } else {
            self.blocked[thread.0 as usize] = true;
            self.scheduler.withdraw(thread);
        }
        std::mem::take(&mut self.threads[thread.0 as usize].left)
    }

    /// The thread on the CPU lets others run.
    pub fn yield_now(&mut self, now: Nanos, thread: Thread) {
        self.advance(now);
        debug_assert_eq!(self.current, Some(thread));
        self.scheduler.requeue(now, thread, Requeue::Yield);
        self.current = None;
        self.pick(now);
    }

    fn pick(&mut self, now: Nanos) {
        self.due = false;
        if let Some((thread, slice)) = self.scheduler.pick(now) {
            self.current = Some(thread);
            self.idled += u64::from(std::mem::take(&mut self.idle));
            self.slice = slice;
            self.switching = 0;
            if self.last != Some(thread) {
                self.switches += 1;
                self.switching = self.switch_cost;
                self.refill(thread);
                self.last = Some(thread);
            }
        } else {
            self.idle = true;
        }
        self.choose();
    }

    /// Changes from one thread to another.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// How often a thread came while none was runnable.
    pub fn idled(&self) -> u64 {
        self.idled
    }

    /// Time by bucket up to `now`.
    pub fn accounts(&mut self, now: Nanos) -> [Nanos; BUCKETS] {
        self.advance(now);
        self.accounts
    }

    /// The scheduler, to set up what its threads did before.
    pub fn scheduler_mut(&mut self) -> &mut S {
        &mut self.scheduler
    }

    /// The scheduler, for its own figures.
    pub fn scheduler(&self) -> &S {
        &self.scheduler
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Bucket = Bucket(1);
    const B: Bucket = Bucket(2);

    /// Runs until `end`; finished pieces with their times.
    fn play<S: Scheduler>(cpu: &mut Cpu<S>, end: Nanos) -> Vec<(Nanos, Done)> {
        let mut seen = Vec::new();
        while cpu.next() <= end {
            let now = cpu.next();
            while let Some(done) = cpu.done(now) {
                seen.push((now, done));
                if let Done::Thread(thread) = done {
                    cpu.block(now, thread);
                }
            }
        }
        cpu.advance(end);
        seen
    }

    #[test]
    fn levels_preempt_and_what_is_preempted_goes_on() {
        let mut cpu = Cpu::new(Bsd::default(), 0, IDLE);
        let thread = cpu.thread(Class::Normal(0));
        cpu.burst(0, thread, 100, A);
        cpu.advance(10);
        cpu.raise(10, 1, 50, B);
        cpu.raise(20, 3, 5, B);
        assert_eq!(
            play(&mut cpu, 1000),
            [(25, Done::Level(3)), (65, Done::Level(1)), (155, Done::Thread(thread))]
        );
        let accounts = cpu.accounts(1000);
        assert_eq!((accounts[0], accounts[1], accounts[2]), (845, 100, 55));
    }

    #[test]
    fn a_change_of_threads_costs_and_is_counted() {
        let mut cpu = Cpu::new(Bsd::default(), 7, B);
        let (one, two) = (cpu.thread(Class::Fifo(1)), cpu.thread(Class::Fifo(2)));
        cpu.burst(0, one, 100, A);
        assert_eq!(play(&mut cpu, 49), []);
        cpu.burst(50, two, 10, A);
        assert_eq!(play(&mut cpu, 1000), [(67, Done::Thread(two)), (131, Done::Thread(one))]);
        assert_eq!((cpu.switches(), cpu.accounts(1000)[2]), (3, 21));
    }

    #[test]
    fn a_held_thread_is_preempted_when_it_is_released() {
        let mut cpu = Cpu::new(Bsd::default(), 0, IDLE);
        let (low, high) = (cpu.thread(Class::Fifo(1)), cpu.thread(Class::Fifo(2)));
        cpu.burst(0, low, 100, A);
        cpu.hold(low);
        cpu.burst(10, high, 20, B);
        assert_eq!(cpu.current(), Some(low));
        cpu.release(30);
        assert_eq!(cpu.current(), Some(high));
        assert_eq!(play(&mut cpu, 1000), [(50, Done::Thread(high)), (120, Done::Thread(low))]);
    }

    #[test]
    fn a_ticked_cpu_ends_a_slice_when_somebody_looks() {
        let mut cpu = Cpu::new(Eevdf::new(3), 0, IDLE).ticked();
        let [one, two, three] = [(); 3].map(|()| cpu.thread(Class::Normal(0)));
        cpu.burst(0, one, 100, A);
        cpu.burst(0, two, 100, A);
        assert_eq!(cpu.next(), 100);
        cpu.tick(2);
        cpu.settle(2);
        assert_eq!(cpu.current(), Some(one));
        // Not before the interrupt is over.
        cpu.raise(4, 1, 1, B);
        cpu.tick(4);
        cpu.settle(4);
        assert_eq!((cpu.current(), cpu.is_due()), (Some(one), true));
        assert_eq!(cpu.done(5), Some(Done::Level(1)));
        cpu.settle(5);
        assert_eq!((cpu.current(), cpu.is_due()), (Some(two), false));
        cpu.tick(9);
        cpu.settle(9);
        assert_eq!(cpu.current(), Some(one));
        cpu.advance(12);
        assert_eq!(cpu.current(), Some(one));
        cpu.burst(12, three, 100, A);
        assert_eq!(cpu.current(), Some(two));
        // Where preemption is disabled it ends when that is over.
        cpu.hold(two);
        cpu.tick(16);
        cpu.settle(16);
        assert_eq!(cpu.current(), Some(two));
        cpu.release(17);
        assert_ne!(cpu.current(), Some(two));
    }

    #[test]
    fn a_thread_that_was_away_long_fills_its_cache() {
        let mut cpu = Cpu::new(Eevdf::new(1_000), 0, IDLE);
        let [one, two] = [(); 2].map(|()| cpu.thread(Class::Normal(0)));
        cpu.refilling(one, 50, 7);
        // Idle time does not count, nor does work up to the limit.
        cpu.burst(100, one, 10, A);
        assert_eq!(play(&mut cpu, 200), [(110, Done::Thread(one))]);
        cpu.burst(200, two, 50, A);
        assert_eq!(play(&mut cpu, 300), [(250, Done::Thread(two))]);
        cpu.burst(300, one, 10, A);
        assert_eq!(play(&mut cpu, 400), [(310, Done::Thread(one))]);
        cpu.burst(400, two, 51, A);
        assert_eq!(play(&mut cpu, 500), [(451, Done::Thread(two))]);
        cpu.burst(500, one, 10, A);
        assert_eq!(play(&mut cpu, 600), [(517, Done::Thread(one))]);
        cpu.burst(600, two, 10, A);
        assert_eq!(play(&mut cpu, 700), [(610, Done::Thread(two))]);
    }

    fn share(mut cpu: Cpu<impl Scheduler>, classes: &[Class], end: Nanos) -> Vec<u64> {
        let threads: Vec<Thread> = classes.iter().map(|class| cpu.thread(*class)).collect();
        for (n, thread) in threads.iter().enumerate() {
            cpu.burst(0, *thread, end, Bucket(n as u8 + 1));
        }
        play(&mut cpu, end);
        let accounts = cpu.accounts(end);
        assert_eq!(accounts.iter().sum::<u64>(), end);
        (1..=classes.len()).map(|n| accounts[n] * 1000 / end).collect()
    }

    #[test]
    fn equal_threads_share_equally() {
        let ten = 10_000_000_000;
        let two = [Class::Normal(0), Class::Normal(0)];
        for shares in [
            share(Cpu::new(Bsd::default(), 0, IDLE), &two, ten),
            share(Cpu::new(O1::default(), 0, IDLE), &two, ten),
            share(Cpu::new(Eevdf::new(3_000_000), 0, IDLE), &two, ten),
        ] {
            assert!(shares.iter().all(|share| share.abs_diff(500) <= 10), "{shares:?}");
        }
    }

    /// WU-18, equation (10): share = slice / sum of slices.
    #[test]
    fn o1_shares_follow_the_slices() {
        let shares =
            share(Cpu::new(O1::default(), 0, IDLE), &[Class::Normal(-10), Class::Normal(0)], 70_000_000_000);
        assert!(shares[0].abs_diff(857) <= 10, "{shares:?}");
    }

    /// Weights differ by 1.25 per step of nice.
    #[test]
    fn eevdf_shares_follow_the_weights() {
        let cpu = Cpu::new(Eevdf::new(3_000_000), 0, IDLE);
        let shares = share(cpu, &[Class::Normal(0), Class::Normal(5), Class::Idle], 10_000_000_000);
        assert!(shares[0].abs_diff(752) <= 10 && shares[2] <= 5, "{shares:?}");
    }
}
