//! Programs, and where the scheduler runs them: on an idle CPU when they wake up, and elsewhere when they wait while CPUs idle, or
//! interrupts take a seventh of their CPU. As `select_idle_sibling`, `newidle_balance` and the load balancer of kernel/sched/fair.c
//! do it in the main.

use super::host::{Event, Host, bucket};
use crate::engine::Nanos;

impl Host<'_> {
    /// The time of the program's next packet, which it takes; none if there is none.
    fn take(&mut self, p: usize) -> Option<Nanos> {
        let program = &mut self.programs[p];
        let (packet, from) = program.socket.pop_front()?;
        program.in_hand = Some(packet);
        let on = program.on;
        let node = |c: usize| self.drawn.cpus[c].node;
        let mut cost = self.s.read.0 + self.drawn.work;
        if from != on {
            cost += self.s.cross.0 + if node(from) == node(on) { 0 } else { self.s.far.0 };
        }
        Some(cost)
    }

    /// CPU `c` wakes a program.
    pub fn wake(&mut self, now: Nanos, c: usize, p: usize) {
        if !self.programs[p].blocked {
            return;
        }
        let to = self.select(p, c);
        self.programs[p].on = to;
        let Some(cost) = self.take(p) else { return };
        self.programs[p].blocked = false;
        let halted = if self.cores[to].cpu.is_idle() && to != c { self.s.resume.0 } else { 0 };
        self.start(now, to, p, cost + halted);
    }

    fn start(&mut self, now: Nanos, c: usize, p: usize, cost: Nanos) {
        let core = &mut self.cores[c];
        core.cpu.burst(now, core.threads[p], cost, bucket::PROGRAM);
        self.touch(c);
    }

    /// A CPU that only interrupts use is idle to the scheduler.
    fn is_idle(&self, c: usize) -> bool {
        self.cores[c].cpu.runnable() == 0
    }

    /// Where a program wakes up.
    fn select(&self, p: usize, waker: usize) -> usize {
        let cpus = &self.drawn.programs[p].cpus;
        let before = self.programs[p].on;
        let idle = |c: &usize| cpus.contains(c) && self.is_idle(*c);
        if let Some(c) = [before, waker].into_iter().find(idle) {
            return c;
        }
        // Within the node; the search begins behind the last CPU.
        let node = self.drawn.cpus[before].node;
        let near = |c: &&usize| self.drawn.cpus[**c].node == node && self.is_idle(**c);
        let found = cpus.range(before + 1..).chain(cpus.range(..=before)).find(near);
        let stays = cpus.contains(&before).then_some(before);
        found.copied().or(stays).or_else(|| cpus.first().copied()).unwrap_or(before)
    }

    pub fn program_done(&mut self, now: Nanos, c: usize, p: usize) {
        if let Some(packet) = self.programs[p].in_hand.take() {
            self.ledger.deliver(now, &packet);
            self.counts.deliver(now - packet.born);
        }
        match self.take(p) {
            Some(cost) => self.start(now, c, p, cost),
            None => {
                self.programs[p].blocked = true;
                let core = &mut self.cores[c];
                core.cpu.block(now, core.threads[p]);
                self.touch(c);
            }
        }
    }

    /// Moves a program that is runnable.
    pub fn migrate(&mut self, now: Nanos, p: usize, to: usize) {
        let from = self.programs[p].on;
        let core = &mut self.cores[from];
        let left = core.cpu.withdraw(now, core.threads[p]);
        self.touch(from);
        self.programs[p].on = to;
        self.start(now, to, p, left + self.s.cross.0);
    }

    /// Programs wait for the CPU on `c`.
    fn waiting(&self, c: usize) -> impl Iterator<Item = usize> {
        let core = &self.cores[c];
        let waits = move |p: &usize| {
            let program = &self.programs[*p];
            program.on == c && !program.blocked && core.cpu.current() != Some(core.threads[*p])
        };
        (0..self.programs.len()).filter(waits)
    }

    /// Threads that wait go to CPUs that idle, and threads on CPUs that interrupts take a part of too.
    pub fn balance(&mut self, now: Nanos) {
        let period = self.s.balance.0;
        let mut pressed = Vec::new();
        for c in 0..self.cores.len() {
            let accounts = self.cores[c].cpu.accounts(now);
            let time = accounts[usize::from(bucket::IRQ.0)] + accounts[usize::from(bucket::SOFTIRQ.0)];
            let taken = time - std::mem::replace(&mut self.cores[c].softirq, time);
            let average = &mut self.cores[c].pressure;
            *average = (*average * 31 + taken) / 32;
            // imbalance_pct of the kernel: less than 100/117 of its capacity is left.
            if period.saturating_sub(*average) * 117 < period * 100 {
                pressed.push(c);
            }
        }
        for c in 0..self.cores.len() {
            if !self.is_idle(c) || !self.drawn.usable.contains(&c) {
                continue;
            }
            let may = |p: &usize| self.drawn.programs[*p].cpus.contains(&c);
            let busiest = (0..self.cores.len())
                .filter(|other| *other != c)
                .filter_map(|other| Some((self.cores[other].cpu.runnable(), self.waiting(other).find(may)?)))
                .max_by_key(|(runnable, p)| (*runnable, std::cmp::Reverse(*p)));
            let under = |p: &usize| {
                let program = &self.programs[*p];
                !program.blocked && pressed.contains(&program.on) && !pressed.contains(&c) && may(p)
            };
            let moved = busiest.map(|(_, p)| p).or_else(|| (0..self.programs.len()).find(under));
            if let Some(p) = moved {
                self.migrate(now, p, c);
            }
        }
        // Where none idles, numbers even out.
        let count = |c: &usize| self.cores[*c].cpu.runnable() + usize::from(pressed.contains(c));
        let most = (0..self.cores.len()).max_by_key(|c| (count(c), std::cmp::Reverse(*c))).unwrap_or(0);
        let to_least = |p: usize| {
            let cpus = &self.drawn.programs[p].cpus;
            let least = cpus.iter().copied().min_by_key(count)?;
            (count(&least) + 1 < count(&most)).then_some((p, least))
        };
        let moved = self.waiting(most).find_map(to_least);
        if let Some((p, to)) = moved {
            self.migrate(now, p, to);
        }
        self.agenda.once(now + period, Event::Balance);
    }
}
