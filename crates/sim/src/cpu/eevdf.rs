//! EEVDF with nice (Linux 6.6 and later): the eligible thread with the earliest virtual deadline runs for a slice.
//!
//! Virtual time runs at `1024 / weight`; weights change by 1.25 per step of nice. A thread is eligible while it is not
//! ahead of the average. Lag is kept over a sleep, as the kernel does with delayed dequeue: what a thread owes it pays
//! while others run, what it is owed is limited to two slices. Who wakes up takes the CPU from a thread that is ahead of
//! the average; one that is not is protected to the end of its slice (`RUN_TO_PARITY`). As `place_entity`,
//! `wakeup_preempt_fair` and `pick_eevdf` in kernel/sched/fair.c of Linux 6.18 have it.
//!
//! Interrupts and softirqs count as time of the thread that they preempt if [`Eevdf::charging_interrupts`] says so.

use super::{Class, Requeue, Scheduler, Thread};
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

#[derive(Clone, Copy, Debug)]
struct State {
    class: Class,
    weight: u64,
    virtual_time: i128,
    deadline: i128,
    /// Distance to the average when it went to sleep.
    lag: i128,
    /// The average then.
    average: i128,
    /// Part of a virtual nanosecond, in 1/weight.
    rest: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Eevdf {
    slice: Nanos,
    threads: Vec<State>,
    runnable: Vec<Thread>,
    current: Option<Thread>,
    /// Members of the task group, and the CPUs that it is busy on.
    group: Vec<Thread>,
    group_cpus: u64,
    charges_interrupts: bool,
}

impl Eevdf {
    /// With this base slice, ns; the kernel's is 0.7 ms times 1 + log2 of the CPUs, at most 4 of these: 2.8 ms.
    pub fn new(slice: Nanos) -> Self {
        Self {
            slice: slice.max(1),
            threads: Vec::new(),
            runnable: Vec::new(),
            current: None,
            group: Vec::new(),
            group_cpus: 1,
            charges_interrupts: false,
        }
    }

    /// A kernel without `CONFIG_IRQ_TIME_ACCOUNTING`: what interrupts a thread counts as its time.
    pub fn charging_interrupts(self) -> Self {
        Self { charges_interrupts: true, ..self }
    }

    /// Puts blocked threads of nice 0 into a task group that is busy on so many CPUs, one thread on each of the others. A
    /// group has the weight of one thread, split by load among its CPUs (`calc_group_shares` in kernel/sched/fair.c); here
    /// what falls on this CPU is split evenly among the members that are runnable.
    pub fn group(&mut self, members: Vec<Thread>, cpus: u32) {
        self.group = members;
        self.group_cpus = u64::from(cpus.max(1));
    }

    /// Weights follow who of the group is runnable.
    fn weigh(&mut self, thread: Thread) {
        if !self.group.contains(&thread) {
            return;
        }
        let awake = |thread: &&Thread| self.runnable.contains(thread) || self.current == Some(**thread);
        let awake = self.group.iter().filter(awake).count() as u64;
        let weight = NICE_0 / (awake + self.group_cpus - 1).max(1);
        for member in &self.group {
            self.threads[member.0 as usize].weight = weight;
        }
    }

    fn state(&self, thread: Thread) -> &State {
        &self.threads[thread.0 as usize]
    }

    fn fifo(&self, thread: Thread) -> Option<u8> {
        if let Class::Fifo(priority) = self.state(thread).class { Some(priority) } else { None }
    }

    /// Weighted average of virtual times over runnable threads and the current one.
    fn average(&self) -> Option<i128> {
        self.load().map(|(average, _)| average)
    }

    /// The average, and the sum of weights.
    fn load(&self) -> Option<(i128, i128)> {
        let fair = self.runnable.iter().chain(&self.current).filter(|thread| self.fifo(**thread).is_none());
        let (mut sum, mut weights) = (0_i128, 0_i128);
        for thread in fair {
            let state = self.state(*thread);
            sum += state.virtual_time * i128::from(state.weight);
            weights += i128::from(state.weight);
        }
        (weights > 0).then(|| (sum.div_euclid(weights), weights))
    }

    fn renew(&mut self, thread: Thread) {
        let slice = self.slice;
        let state = &mut self.threads[thread.0 as usize];
        state.deadline = state.virtual_time + i128::from(slice * NICE_0 / state.weight);
    }
}

impl Scheduler for Eevdf {
    fn add(&mut self, class: Class) {
        let weight = match class {
            Class::Normal(nice) => WEIGHTS[(i32::from(nice).clamp(-20, 19) + 20) as usize],
            Class::Idle => WEIGHT_IDLE,
            Class::Fifo(_) => NICE_0,
        };
        self.threads.push(State { class, weight, virtual_time: 0, deadline: 0, lag: 0, average: 0, rest: 0 });
    }

    fn wake(&mut self, _now: Nanos, thread: Thread, current: Option<Thread>) -> bool {
        let load = self.load();
        let average = load.map(|(average, _)| average);
        let weight = self.state(thread).weight;
        let limit = i128::from(2 * self.slice * NICE_0 / weight);
        let state = &mut self.threads[thread.0 as usize];
        // Delayed dequeue: what it owes it has paid once the average has come that far.
        let paid = average.map_or(limit, |now| (now - state.average).max(0));
        let lag = if state.lag < 0 { (state.lag + paid).min(0) } else { state.lag };
        // Its own weight moves the average towards it: the lag is stretched so that it is the same afterwards.
        let stretched = load.map_or(lag, |(_, sum)| lag * (sum + i128::from(weight)) / sum);
        state.virtual_time = average.unwrap_or(state.virtual_time) - stretched.clamp(-limit, limit);
        self.runnable.push(thread);
        self.weigh(thread);
        self.renew(thread);
        let Some(current) = current else { return false };
        match (self.fifo(thread), self.fifo(current)) {
            (Some(one), Some(other)) => one > other,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => {
                let average = self.average().unwrap_or(0);
                let (state, running) = (self.state(thread), self.state(current));
                match (matches!(state.class, Class::Idle), matches!(running.class, Class::Idle)) {
                    (false, true) => true,
                    (true, _) => false,
                    (false, false) => {
                        let eligible = |state: &State| state.virtual_time <= average;
                        let first = |other: &Thread| {
                            let other = self.state(*other);
                            !eligible(other) || state.deadline <= other.deadline
                        };
                        eligible(state) && !eligible(running) && self.runnable.iter().all(first)
                    }
                }
            }
        }
    }

    fn charges_interrupts(&self) -> bool {
        self.charges_interrupts
    }

    fn charge(&mut self, thread: Thread, ran: Nanos) {
        let state = &mut self.threads[thread.0 as usize];
        let scaled = ran * NICE_0 + state.rest;
        state.virtual_time += i128::from(scaled / state.weight);
        state.rest = scaled % state.weight;
    }

    fn block(&mut self, _now: Nanos, thread: Thread) {
        let average = self.average().unwrap_or(0);
        self.current = None;
        let state = &mut self.threads[thread.0 as usize];
        state.lag = average - state.virtual_time;
        state.average = average;
        self.weigh(thread);
    }

    fn requeue(&mut self, _now: Nanos, thread: Thread, why: Requeue) {
        self.current = None;
        if why != Requeue::Preempted {
            self.renew(thread);
        }
        // A FIFO thread that is preempted stays the first of its priority.
        if why == Requeue::Preempted { self.runnable.insert(0, thread) } else { self.runnable.push(thread) }
    }

    fn pick(&mut self, _now: Nanos) -> Option<(Thread, Nanos)> {
        let average = self.average().unwrap_or(0);
        let order = |thread: &Thread| {
            let state = self.state(*thread);
            match state.class {
                Class::Fifo(priority) => (0, 255 - i128::from(priority)),
                _ if state.virtual_time <= average => (1, state.deadline),
                _ => (2, state.deadline),
            }
        };
        let index = (0..self.runnable.len()).min_by_key(|index| order(&self.runnable[*index]))?;
        let thread = self.runnable.remove(index);
        self.current = Some(thread);
        if self.fifo(thread).is_some() {
            return Some((thread, NEVER));
        }
        if self.state(thread).deadline <= self.state(thread).virtual_time {
            self.renew(thread);
        }
        let state = self.state(thread);
        let left = (state.deadline - state.virtual_time) as u64 * state.weight / NICE_0;
        Some((thread, left.max(1)))
    }
}
