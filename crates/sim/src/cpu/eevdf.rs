//! EEVDF with nice (Linux 6.6 and later): the eligible thread with the earliest virtual deadline runs for a slice.
//!
//! Virtual time runs at `1024 / weight`; weights change by 1.25 per step of nice. A thread is eligible while it is not
//! ahead of the average. Lag is kept over a sleep, as the kernel does with delayed dequeue: what a thread owes it pays
//! while others run, what it is owed is limited to two slices. Who wakes up takes the CPU from a thread that is ahead of
//! the average; one that is not is protected to the end of its slice (`RUN_TO_PARITY`). As `place_entity`,
//! `wakeup_preempt_fair` and `pick_eevdf` in kernel/sched/fair.c of Linux 6.18 have it.
//!
//! A task group is a thread like others among those outside it, and its members share by the same rules what it gets.
//!
//! Interrupts and softirqs count as time of the thread that they preempt if [`Eevdf::charging_interrupts`] says so.

use super::{Class, Cpu, Requeue, Scheduler, Thread};
use crate::engine::{NEVER, Nanos};

/// The kernel's weights, nice -20 to 19.
const WEIGHTS: [u64; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121,
    2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29,
    23, 18, 15,
];
/// Weight of SCHED_IDLE.
const WEIGHT_IDLE: u64 = 3;
/// Weight of nice 0, at which virtual time is real time.
const NICE_0: u64 = 1024;

/// What is scheduled: the number of a thread, or [`GROUP`].
type Id = usize;
/// The task group.
const GROUP: Id = Id::MAX;
/// The queue that the task group is in, and its own.
const ROOT: usize = 0;
const INNER: usize = 1;

#[derive(Clone, Copy, Debug)]
struct State {
    class: Class,
    weight: u64,
    /// [`ROOT`] or [`INNER`].
    queue: usize,
    virtual_time: i128,
    deadline: i128,
    /// Distance to the average when it went to sleep.
    lag: i128,
    /// The average then.
    average: i128,
    /// Part of a virtual nanosecond, in 1/weight.
    rest: u64,
}

impl State {
    fn new(class: Class, weight: u64) -> Self {
        Self { class, weight, queue: ROOT, virtual_time: 0, deadline: 0, lag: 0, average: 0, rest: 0 }
    }

    /// Time that it may run until its deadline, ns.
    fn left(&self) -> Nanos {
        (self.deadline - self.virtual_time).max(0) as u64 * self.weight / NICE_0
    }
}

/// Who is runnable.
#[derive(Clone, Debug, Default)]
struct Queue {
    waiting: Vec<Id>,
    current: Option<Id>,
}

impl Queue {
    fn runnable(&self) -> impl Iterator<Item = Id> {
        self.waiting.iter().copied().chain(self.current)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Eevdf {
    slice: Nanos,
    threads: Vec<State>,
    group: State,
    /// CPUs that the group is busy on.
    group_cpus: u64,
    /// The group had the CPU when one of its members gave it up: it keeps it to the end of its slice.
    keeps: bool,
    queues: [Queue; 2],
    /// Threads of real-time priority that wait.
    fifo: Vec<Thread>,
    charges_interrupts: bool,
}

impl Eevdf {
    /// With this base slice, ns; the kernel's is 0.7 ms times 1 + log2 of the CPUs, at most 4 of these: 2.8 ms.
    pub fn new(slice: Nanos) -> Self {
        Self {
            slice: slice.max(1),
            threads: Vec::new(),
            group: State::new(Class::Normal(0), NICE_0),
            group_cpus: 1,
            keeps: false,
            queues: Default::default(),
            fifo: Vec::new(),
            charges_interrupts: false,
        }
    }

    /// A kernel without `CONFIG_IRQ_TIME_ACCOUNTING`: what interrupts a thread counts as its time.
    pub fn charging_interrupts(self) -> Self {
        Self { charges_interrupts: true, ..self }
    }

    /// Puts blocked threads into a task group that is busy on so many CPUs, one thread on each of the others. A group has
    /// the weight of one thread, split by load among its CPUs (`calc_group_shares` in kernel/sched/fair.c).
    pub fn group(&mut self, members: Vec<Thread>, cpus: u32) {
        for member in members {
            self.threads[member.0 as usize].queue = INNER;
        }
        self.group_cpus = u64::from(cpus.max(1));
    }

    fn state(&self, id: Id) -> &State {
        if id == GROUP { &self.group } else { &self.threads[id] }
    }

    fn state_mut(&mut self, id: Id) -> &mut State {
        if id == GROUP { &mut self.group } else { &mut self.threads[id] }
    }

    fn fifo(&self, thread: Thread) -> Option<u8> {
        if let Class::Fifo(priority) = self.state(thread.0 as Id).class { Some(priority) } else { None }
    }

    /// The group's weight follows how many of its members are runnable.
    fn weigh(&mut self) {
        let awake = self.queues[INNER].runnable().count() as u64;
        if awake > 0 {
            self.group.weight = NICE_0 * awake / (awake + self.group_cpus - 1);
        }
    }

    /// Weighted average of virtual times over who is runnable, and the sum of weights.
    fn load(&self, queue: usize) -> Option<(i128, i128)> {
        let (mut sum, mut weights) = (0_i128, 0_i128);
        for id in self.queues[queue].runnable() {
            let state = self.state(id);
            sum += state.virtual_time * i128::from(state.weight);
            weights += i128::from(state.weight);
        }
        (weights > 0).then(|| (sum.div_euclid(weights), weights))
    }

    fn average(&self, queue: usize) -> i128 {
        self.load(queue).map_or(0, |(average, _)| average)
    }

    fn renew(&mut self, id: Id) {
        let slice = self.slice;
        let state = self.state_mut(id);
        state.deadline = state.virtual_time + i128::from(slice * NICE_0 / state.weight);
    }

    /// Becomes runnable.
    fn enter(&mut self, id: Id) {
        let queue = self.state(id).queue;
        let load = self.load(queue);
        let average = load.map(|(average, _)| average);
        let weight = self.state(id).weight;
        let limit = i128::from(2 * self.slice * NICE_0 / weight);
        let state = self.state_mut(id);
        // Delayed dequeue: what it owes it has paid once the average has come that far.
        let paid = average.map_or(limit, |now| (now - state.average).max(0));
        let lag = if state.lag < 0 { (state.lag + paid).min(0) } else { state.lag };
        // Its own weight moves the average towards it: the lag is stretched so that it is the same afterwards.
        let stretched = load.map_or(lag, |(_, sum)| lag * (sum + i128::from(weight)) / sum);
        state.virtual_time = average.unwrap_or(state.virtual_time) - stretched.clamp(-limit, limit);
        self.queues[queue].waiting.push(id);
        self.renew(id);
    }

    /// Who has the CPU goes to sleep.
    fn leave(&mut self, id: Id) {
        let queue = self.state(id).queue;
        let average = self.average(queue);
        self.queues[queue].current = None;
        let state = self.state_mut(id);
        state.lag = average - state.virtual_time;
        state.average = average;
    }

    /// Who has the CPU waits for it again.
    fn wait(&mut self, id: Id, first: bool) {
        let queue = &mut self.queues[self.threads.get(id).map_or(ROOT, |state| state.queue)];
        queue.current = None;
        if first { queue.waiting.insert(0, id) } else { queue.waiting.push(id) }
    }

    /// The one that goes next, taken out of its queue.
    fn choose(&mut self, queue: usize) -> Option<Id> {
        let average = self.average(queue);
        let eligible = |id: Id| self.state(id).virtual_time <= average;
        let protected = |id: Id| self.keeps && id == GROUP && eligible(id) && self.group.left() > 0;
        let waiting = &self.queues[queue].waiting;
        let order = |index: &usize| {
            let id = waiting[*index];
            (!protected(id), !eligible(id), self.state(id).deadline)
        };
        let index = (0..waiting.len()).min_by_key(order)?;
        let id = self.queues[queue].waiting.remove(index);
        self.queues[queue].current = Some(id);
        if self.state(id).deadline <= self.state(id).virtual_time {
            self.renew(id);
        }
        Some(id)
    }
}

fn weight(class: Class) -> u64 {
    match class {
        Class::Normal(nice) => WEIGHTS[(i32::from(nice).clamp(-20, 19) + 20) as usize],
        Class::Idle => WEIGHT_IDLE,
        Class::Fifo(_) => NICE_0,
    }
}

impl Eevdf {
    /// A thread that is blocked or has just been taken out is of another class from here on; it owes nothing.
    fn set_class(&mut self, thread: Thread, class: Class) {
        let state = &mut self.threads[thread.0 as usize];
        *state = State { queue: state.queue, ..State::new(class, weight(class)) };
    }

    /// Takes a thread out that waits for the CPU.
    fn take_out(&mut self, thread: Thread) {
        self.fifo.retain(|other| *other != thread);
        let queue = self.threads[thread.0 as usize].queue;
        self.queues[queue].waiting.retain(|id| *id != thread.0 as Id);
    }
}

impl Cpu<Eevdf> {
    /// `sched_setscheduler`: a thread outside the task group is of another class from now on, whether it runs, waits or is blocked.
    pub fn reclass(&mut self, now: Nanos, thread: Thread, class: Class) {
        self.advance(now);
        if self.is_blocked(thread) {
            self.scheduler_mut().set_class(thread, class);
        } else if self.current() == Some(thread) {
            self.scheduler_mut().block(now, thread);
            self.scheduler_mut().set_class(thread, class);
            self.current = None;
            self.scheduler_mut().wake(now, thread, None);
            self.pick(now);
        } else {
            self.scheduler_mut().take_out(thread);
            self.scheduler_mut().set_class(thread, class);
            self.woken(now, thread);
        }
    }
}

impl Scheduler for Eevdf {
    fn add(&mut self, class: Class) {
        self.threads.push(State::new(class, weight(class)));
    }

    fn wake(&mut self, _now: Nanos, thread: Thread, current: Option<Thread>) -> bool {
        let id = thread.0 as Id;
        if let Some(priority) = self.fifo(thread) {
            self.fifo.push(thread);
            return current.is_some_and(|current| self.fifo(current).is_none_or(|other| priority > other));
        }
        self.enter(id);
        if self.state(id).queue == INNER {
            self.weigh();
            if self.queues[INNER].runnable().count() == 1 {
                self.enter(GROUP);
            }
        }
        let Some(current) = current.filter(|current| self.fifo(*current).is_none()) else { return false };
        // Where one is in the group and the other is not, it is the group that they meet with.
        let other = current.0 as Id;
        let (id, other) = match (self.state(id).queue, self.state(other).queue) {
            (INNER, ROOT) => (GROUP, other),
            (ROOT, INNER) => (id, GROUP),
            _ => (id, other),
        };
        let (state, running) = (self.state(id), self.state(other));
        match (matches!(state.class, Class::Idle), matches!(running.class, Class::Idle)) {
            (false, true) => true,
            (true, _) => false,
            (false, false) => {
                let average = self.average(state.queue);
                let eligible = |state: &State| state.virtual_time <= average;
                let first = |other: &Id| {
                    let other = self.state(*other);
                    !eligible(other) || state.deadline <= other.deadline
                };
                eligible(state) && !eligible(running) && self.queues[state.queue].waiting.iter().all(first)
            }
        }
    }

    fn withdraw(&mut self, thread: Thread) {
        self.take_out(thread);
        // It owes nothing when it comes back: what it was owed it has had elsewhere.
        let class = self.threads[thread.0 as usize].class;
        self.set_class(thread, class);
    }

    fn charges_interrupts(&self) -> bool {
        self.charges_interrupts
    }

    fn charge(&mut self, thread: Thread, ran: Nanos) {
        let charge = |state: &mut State| {
            let scaled = ran * NICE_0 + state.rest;
            state.virtual_time += i128::from(scaled / state.weight);
            state.rest = scaled % state.weight;
        };
        let state = &mut self.threads[thread.0 as usize];
        charge(state);
        if state.queue == INNER {
            charge(&mut self.group);
        }
    }

    fn block(&mut self, _now: Nanos, thread: Thread) {
        if self.fifo(thread).is_some() {
            return;
        }
        let id = thread.0 as Id;
        self.leave(id);
        if self.state(id).queue == ROOT {
            return;
        }
        if self.queues[INNER].waiting.is_empty() {
            self.leave(GROUP);
        } else {
            self.weigh();
            self.wait(GROUP, true);
            self.keeps = true;
        }
    }

    fn requeue(&mut self, _now: Nanos, thread: Thread, why: Requeue) {
        // A thread that is preempted stays the first of its equals.
        let first = why == Requeue::Preempted;
        if self.fifo(thread).is_some() {
            if first {
                self.fifo.insert(0, thread)
            } else {
                self.fifo.push(thread)
            }
            return;
        }
        let id = thread.0 as Id;
        let inner = self.state(id).queue == INNER;
        for id in std::iter::once(id).chain(inner.then_some(GROUP)) {
            if self.state(id).left() == 0 || why == Requeue::Yield {
                self.renew(id);
            }
            self.wait(id, first);
        }
        self.keeps = inner;
    }

    fn pick(&mut self, _now: Nanos) -> Option<(Thread, Nanos)> {
        // The first of the highest: min_by_key keeps the first of equals.
        let priority = |index: &usize| 255 - self.fifo(self.fifo[*index]).unwrap_or(0);
        if let Some(index) = (0..self.fifo.len()).min_by_key(priority) {
            self.keeps = false;
            return Some((self.fifo.remove(index), NEVER));
        }
        let id = self.choose(ROOT)?;
        self.keeps = false;
        let left = self.state(id).left();
        let (id, left) = if id == GROUP {
            let member = self.choose(INNER)?;
            (member, left.min(self.state(member).left()))
        } else {
            (id, left)
        };
        Some((Thread(id as u32), left.max(1)))
    }
}
