//! The participants, as the real programs have them: a guard, its keeper, `weir undo`.

use super::{
    choices::{After, Op, Shape},
    kernel::{Crash, DIR, Role, Sim, SimKernel, who},
    world::{DEFER, FIRST_FLUSH, FIRST_PID, Keeper, Link, World},
};
use kern::{
    change::{self, Change},
    cpus::CpuSet,
    error::Error,
    journal::{ClaimError, Journal, Outcome},
    kernel::Kernel,
    restore,
    settings::{Setting, Value},
    undo::{self, Undone},
};
use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

/// Runs a participant; `None` if it dies.
fn alive<T>(sim: &Sim, role: Role, pid: u32, run: impl FnOnce(&mut SimKernel<'_>) -> T) -> Option<T> {
    sim.chooser().depth += 1;
    let result = catch_unwind(AssertUnwindSafe(|| run(&mut sim.kernel(role, pid))));
    sim.chooser().depth -= 1;
    let mut world = sim.world();
    // Dead or done, it does not hold the lock any more.
    if world.lock == Some(who(role, pid)) {
        world.lock = None;
    }
    match result {
        Ok(value) => Some(value),
        Err(payload) if payload.is::<Crash>() => None,
        Err(payload) => {
            let text = text_of(payload.as_ref());
            world.break_rule(format!("{role:?} {pid} panics: {text}"));
            None
        }
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// A guard's own memory.
struct Guard<'s> {
    shape: &'s Shape,
    pid: u32,
    flush: u64,
    journals: Vec<Option<Journal>>,
    /// What an interface has taken along with settings of weir.
    left: Vec<Option<u64>>,
    /// What is changed of a source, how often settings had been put back by then.
    polled: BTreeMap<usize, (Vec<Change>, u32)>,
    /// What an XDP program has the kernel forget, of each interface that has one.
    attached: Vec<Option<Vec<Change>>>,
    /// Settings of whole devices: by how many sources, and what.
    devices: Vec<(u32, Vec<Change>)>,
}

/// One guard's whole life, and its keeper's after it. Its number decides its values.
pub fn guard(sim: &Sim, shape: &Shape) {
    let pid = {
        let mut world = sim.world();
        world.alive.push(true);
        let pid = FIRST_PID + world.alive.len() as u32 - 1;
        world.note(|| format!("-- guard {pid}"));
        pid
    };
    new_keeper(sim, pid);
    let mut guard = Guard {
        shape,
        pid,
        flush: 200_000 + u64::from(pid),
        journals: (0..shape.ifaces).map(|_| None).collect(),
        left: vec![None; shape.ifaces],
        polled: BTreeMap::new(),
        attached: vec![None; shape.ifaces],
        devices: vec![(0, Vec::new()); shape.ifaces],
    };
    let complete = alive(sim, Role::Guard, pid, |kernel| guard.live(kernel));
    let mut world = sim.world();
    world.alive[(pid - FIRST_PID) as usize] = false;
    if complete == Some(true) {
        world.keepers.iter_mut().filter(|k| k.guard == pid).for_each(|k| k.done = true);
    }
    drop(world);
    if !shape.late {
        late_keepers(sim);
    }
}

fn new_keeper(sim: &Sim, guard: u32) {
    let keeper = Keeper {
        guard,
        alive: true,
        done: false,
        care: restore::Journals::new(),
        armed: 0,
        revoked: 0,
        revoking: false,
    };
    sim.world().keepers.push(keeper);
}

impl Guard<'_> {
    /// True if nothing of weir is left at the end.
    fn live(&mut self, kernel: &mut SimKernel<'_>) -> bool {
        if self.start(kernel).is_ok() {
            for op in &self.shape.script {
                self.heed(kernel);
                match *op {
                    Op::Take(source) => self.take(kernel, source),
                    Op::Settle(source) => self.settle(kernel, source),
                    Op::Release(source) => {
                        self.release(kernel, source);
                        self.detach(kernel, source / self.shape.queues);
                    }
                    Op::Look => self.look(kernel),
                }
            }
            self.heed(kernel);
            for source in 0..self.shape.sources() {
                self.release(kernel, source);
            }
        }
        self.end(kernel)
    }

    fn start(&mut self, kernel: &mut SimKernel<'_>) -> Result<(), ()> {
        (0..self.shape.ifaces).try_for_each(|iface| self.begin(kernel, iface))
    }

    fn unlock(&self, kernel: &SimKernel<'_>) {
        let me = who(Role::Guard, self.pid);
        let mut world = kernel.sim.world();
        world.lock = world.lock.filter(|holder| *holder != me);
    }

    fn begin(&mut self, kernel: &mut SimKernel<'_>, iface: usize) -> Result<(), ()> {
        {
            let index = kernel.sim.world().ifaces[iface].index;
            let claimed = Journal::claim(Path::new(DIR), kernel, index);
            // The claim's lock is released.
            self.unlock(kernel);
            let (journal, outcomes) = claimed.map_err(|e| {
                if matches!(e, ClaimError::Guarded { .. }) {
                    kernel.sim.world().counts.rivals_refused += 1;
                }
            })?;
            kernel.sim.world().hear(who(Role::Guard, self.pid), journal.name(), &outcomes);
            (self.left[iface], self.attached[iface]) = (None, None);
            if let Some(k) = self.keeper(kernel) {
                kernel.sim.world().keepers[k].care.insert(journal.path().into(), journal.owner());
            }
            self.journals[iface] = Some(journal);
            let setting = match self.shape.threads {
                true => Setting::DevThreaded { ifindex: index },
                false => Setting::Gro { ifindex: index },
            };
            if kernel.read(&setting).is_ok_and(|v| v == Value::Number(0)) {
                let change = Change { setting, queue: None, new: Value::Number(1), first: None };
                self.make(kernel, iface, &[change]).map_err(|_| ())?;
            }
        }
        Ok(())
    }

    /// The keeper there is, or a new one.
    fn keeper(&self, kernel: &SimKernel<'_>) -> Option<usize> {
        let mine = |k: &Keeper| k.guard == self.pid && k.alive && !k.done;
        if let Some(k) = kernel.sim.world().keepers.iter().position(mine) {
            return Some(k);
        }
        if !self.shape.replaced {
            return None;
        }
        new_keeper(kernel.sim, self.pid);
        let mut world = kernel.sim.world();
        let k = world.keepers.len() - 1;
        let journals = self.journals.iter().flatten();
        world.keepers[k].care = journals.map(|j| (j.path().to_path_buf(), j.owner())).collect();
        world.keepers[k].armed = self.polled.len() as u32;
        Some(k)
    }

    fn revoked(&self, kernel: &SimKernel<'_>) -> u32 {
        kernel.sim.world().keepers.iter().filter(|k| k.guard == self.pid).map(|k| k.revoked).sum()
    }

    fn arm(&self, kernel: &SimKernel<'_>, by: i32) {
        let mut world = kernel.sim.world();
        for k in world.keepers.iter_mut().filter(|k| k.guard == self.pid) {
            k.armed = k.armed.saturating_add_signed(by);
        }
    }

    /// Sources whose settings the keeper has put back are given back.
    fn heed(&mut self, kernel: &mut SimKernel<'_>) {
        let now = self.revoked(kernel);
        let lost = self.polled.iter().filter(|(_, (_, then))| *then != now).map(|(s, _)| *s);
        for source in lost.collect::<Vec<_>>() {
            self.release(kernel, source);
        }
        self.keeper(kernel);
    }

    /// What fails leaves nothing behind, unless more is in the way than what it failed at.
    fn make(&mut self, kernel: &mut SimKernel<'_>, iface: usize, changes: &[Change]) -> Result<(), Error> {
        let Some(journal) = &mut self.journals[iface] else {
            return Err(Error::Lost { what: "no journal".into() });
        };
        let seen = |world: &World| {
            let mine = world.ifaces[iface].cells.iter().map(|c| c.by == self.pid).collect::<Vec<_>>();
            (mine, world.counts.refusals + world.counts.refused_late, world.counts.links)
        };
        let before = seen(&kernel.sim.world());
        let made = change::make(kernel, journal, changes);
        if let Err(e) = &made {
            let mut world = kernel.sim.world();
            let after = seen(&world);
            let refused = u64::from(!matches!(e, Error::Invalid { .. } | Error::Gone { .. }));
            let undisturbed = after.1 == before.1 + refused && after.2 == before.2;
            let left = after.0.iter().zip(&before.0).position(|(now, then)| *now && !then);
            if let (true, Some(cell)) = (undisturbed, left) {
                let shown = world.show((iface, cell));
                world.break_rule(format!("a change that failed ({e}) has left its value: {shown}"));
            }
        }
        made
    }

    /// What a takeover holds longer ends with it.
    fn settle(&mut self, kernel: &mut SimKernel<'_>, source: usize) {
        let Some((changes, _)) = self.polled.get(&source) else { return };
        if change::settle(kernel, changes).is_err() {
            return;
        }
        let mut world = kernel.sim.world();
        for change in changes.iter().filter(|c| c.first.is_some()) {
            let place =
                (source / self.shape.queues, World::flush_of(&change.setting, source % self.shape.queues));
            if world.cell(place).value == FIRST_FLUSH {
                let shown = world.show(place);
                world.break_rule(format!("a takeover that is over has its first value still: {shown}"));
            }
        }
    }

    /// What is changed of a source while it is polled.
    fn plan(&self, kernel: &mut SimKernel<'_>, source: usize) -> Result<Vec<Change>, Error> {
        let (iface, q) = (source / self.shape.queues, (source % self.shape.queues) as u32);
        let (ifindex, napi_id) = {
            let world = kernel.sim.world();
            (world.ifaces[iface].index, world.ifaces[iface].napis[q as usize].id)
        };
        let timer = Setting::NapiFlush { ifindex, napi_id };
        let [timer, defer] = match kernel.read(&timer) {
            Err(Error::Unsupported { .. }) => [Setting::DevFlush { ifindex }, Setting::DevDefer { ifindex }],
            _ => [timer, Setting::NapiDefer { ifindex, napi_id }],
        };
        let first = Some(Value::Number(FIRST_FLUSH));
        let change = |setting, new, first| Change { setting, queue: Some(q), new, first };
        let mut changes =
            vec![change(timer, Value::Number(self.flush), first), change(defer, Value::Number(DEFER), None)];
        let rps = Setting::RpsCpus { ifindex, queue: q };
        if kernel.read(&rps)? != Value::Cpus(CpuSet::new()) {
            changes.push(change(rps, Value::Cpus(CpuSet::new()), None));
        }
        Ok(changes)
    }

    /// Attaches an XDP program generically: the kernel forgets that the NIC's own offloads were wanted, so they are written down.
    fn attach(&mut self, kernel: &mut SimKernel<'_>, iface: usize) -> Result<(), Error> {
        if self.attached[iface].is_some() || !self.shape.generic {
            return Ok(());
        }
        let ifindex = kernel.sim.world().ifaces[iface].index;
        let mut changes = Vec::new();
        for setting in [Setting::Lro { ifindex }, Setting::GroHw { ifindex }] {
            if kernel.read(&setting)? != Value::Number(0) {
                changes.push(Change { setting, queue: None, new: Value::Number(0), first: None });
            }
        }
        self.make(kernel, iface, &changes)?;
        self.attached[iface] = Some(changes);
        Ok(())
    }

    /// Detaches it once none of its sources is polled.
    fn detach(&mut self, kernel: &mut SimKernel<'_>, iface: usize) {
        let first = iface * self.shape.queues;
        if self.polled.range(first..first + self.shape.queues).next().is_some() {
            return;
        }
        if let (Some(changes), Some(journal)) = (self.attached[iface].take(), &self.journals[iface]) {
            change::put_back(kernel, journal, &changes);
        }
    }

    fn take(&mut self, kernel: &mut SimKernel<'_>, source: usize) {
        if self.polled.contains_key(&source) || self.shape.threads {
            return;
        }
        kernel.sim.world().counts.takeovers += 1;
        let iface = source / self.shape.queues;
        let revoked = self.revoked(kernel);
        self.arm(kernel, 1);
        let made = self.attach(kernel, iface).and_then(|()| self.plan(kernel, source)).and_then(|all| {
            let others = self.devices[iface].0 > 0;
            let (of_device, own): (Vec<_>, Vec<_>) = all.iter().cloned().partition(Change::of_device);
            self.make(kernel, iface, if others { &own } else { &all })?;
            if !of_device.is_empty() {
                self.devices[iface].0 += 1;
                self.devices[iface].1 = of_device;
            }
            Ok(all)
        });
        match made {
            Ok(changes) => {
                self.polled.insert(source, (changes, revoked));
                if self.revoked(kernel) != revoked {
                    // This process stood still meanwhile.
                    self.release(kernel, source);
                }
            }
            Err(_) => {
                kernel.sim.world().counts.failed_takeovers += 1;
                self.arm(kernel, -1);
            }
        }
    }

    fn release(&mut self, kernel: &mut SimKernel<'_>, source: usize) {
        let Some((changes, _)) = self.polled.remove(&source) else { return };
        let iface = source / self.shape.queues;
        let (of_device, mut back): (Vec<_>, Vec<_>) = changes.into_iter().partition(Change::of_device);
        let device = &mut self.devices[iface];
        if !of_device.is_empty() {
            device.0 = device.0.saturating_sub(1);
            if device.0 == 0 {
                back.append(&mut device.1);
            }
        }
        if let Some(journal) = &self.journals[iface] {
            change::put_back(kernel, journal, &back);
        }
        self.arm(kernel, -1);
    }

    /// Its interface is not here any more: what was changed is put back where it is now, or kept.
    fn lose(&mut self, kernel: &mut SimKernel<'_>, iface: usize) {
        let Some(journal) = &self.journals[iface] else { return };
        let moved = kernel.sim.world().ifaces[iface].link != Link::Deleted;
        // Where the kernel's message is lost nobody knows.
        let told = journal.let_go(kernel, self.shape.replaced.then_some(moved));
        self.unlock(kernel);
        if let Ok(outcomes) = told {
            kernel.sim.world().hear(who(Role::Guard, self.pid), journal.name(), &outcomes);
            self.left[iface] = journal.device().filter(|_| !outcomes.iter().all(Outcome::settled));
            self.journals[iface] = None;
        }
    }

    /// An interface that is stale is set up anew, with the journal it has.
    fn look(&mut self, kernel: &mut SimKernel<'_>) {
        for iface in 0..self.shape.ifaces {
            for source in iface * self.shape.queues..(iface + 1) * self.shape.queues {
                self.release(kernel, source);
            }
            let (index, link) = {
                let world = kernel.sim.world();
                (world.ifaces[iface].index, world.ifaces[iface].link)
            };
            let here = matches!(link, Link::Up | Link::Down);
            if self.journals[iface].as_ref().is_some_and(|j| !here || j.ifindex() != index) {
                self.lose(kernel, iface);
            }
            if here && self.journals[iface].is_none() {
                _ = self.begin(kernel, iface);
            }
            let Some(journal) = &self.journals[iface] else { continue };
            if kernel.sim.world().ifaces[iface].link != Link::Up {
                continue;
            }
            journal.restore_present(kernel);
            for q in 0..self.shape.queues {
                let source = iface * self.shape.queues + q;
                let Ok(changes) = self.plan(kernel, source) else { continue };
                let Some(journal) = &self.journals[iface] else { continue };
                for change in changes.iter().rev() {
                    let Ok(found) = kernel.read(&change.setting) else { continue };
                    let before = journal.before(&change.setting, change.queue, &found);
                    if before != found && kernel.write(&change.setting, &before).is_err() {
                        break;
                    }
                }
            }
        }
    }

    fn end(&mut self, kernel: &mut SimKernel<'_>) -> bool {
        let mut complete = true;
        for journal in self.journals.iter().flatten() {
            let outcomes = journal.restore(kernel);
            kernel.sim.world().hear(who(Role::Guard, self.pid), journal.name(), &outcomes);
            complete &= outcomes.iter().all(Outcome::settled) && journal.remove_from(kernel).is_ok();
        }
        for (iface, device) in self.left.iter().enumerate().filter_map(|(n, device)| Some((n, (*device)?))) {
            let again = Journal::again(kernel, Path::new(DIR), device);
            self.unlock(kernel);
            if let Ok(Some(outcomes)) = &again {
                kernel.sim.world().hear(who(Role::Guard, self.pid), &format!("if{iface}"), outcomes);
            }
            complete &= again.is_ok_and(|o| o.is_none_or(|o| o.iter().all(Outcome::settled)));
        }
        complete
    }
}

/// A guard does not move: its keeper, if that lives and anything is changed, puts settings back.
pub fn stopped(sim: &Sim, pid: u32) {
    let mine = |k: &Keeper| k.guard == pid && k.alive && !k.done && k.armed > 0 && !k.revoking;
    let Some(n) = sim.world().keepers.iter().position(mine) else { return };
    let care = sim.world().keepers[n].care.clone();
    sim.world().keepers[n].revoking = true;
    let done = alive(sim, Role::Keeper, pid, |kernel| restore::under_stop(kernel, &care, || {}));
    let mut world = sim.world();
    world.keepers[n].revoking = false;
    if done.is_some() {
        world.keepers[n].revoked += 1;
        world.counts.revoked += 1;
    } else {
        world.keepers[n].alive = false;
    }
}

/// Keepers of dead guards that have not begun.
pub fn late_keepers(sim: &Sim) {
    let mut n = 0;
    while n < sim.world().keepers.len() {
        let care = {
            let mut world = sim.world();
            let (guard, alive, done) =
                (world.keepers[n].guard, world.keepers[n].alive, world.keepers[n].done);
            n += 1;
            if world.is_alive(guard) || !alive || done {
                continue;
            }
            world.keepers[n - 1].done = true;
            world.counts.late_keepers += 1;
            world.keepers[n - 1].care.clone()
        };
        let guard = sim.world().keepers[n - 1].guard;
        sim.world().note(|| format!("-- keeper of {guard}"));
        let done = alive(sim, Role::Keeper, guard, |kernel| restore::after_death(kernel, &care, || {}));
        let mut world = sim.world();
        if done.is_none() {
            world.keepers[n - 1].alive = false;
        }
        for d in done.iter().flatten() {
            world.hear(who(Role::Keeper, guard), d.journal.name(), &d.outcomes);
        }
    }
}

/// True if it has looked at everything.
pub fn undo(sim: &Sim) -> bool {
    let pid = {
        let mut world = sim.world();
        world.note(|| "-- undo".into());
        world.undos += 1;
        10_000 + world.undos
    };
    let report = alive(sim, Role::Undo, pid, |kernel| {
        undo::undo_with(kernel, Path::new(DIR), &[], undo::Of::All, true)
    });
    let Some(Ok(report)) = report else { return false };
    let mut world = sim.world();
    for journal in &report.journals {
        if let Undone::Restored { interface, outcomes, .. } = journal {
            world.hear(who(Role::Undo, pid), interface, outcomes);
        }
    }
    true
}

/// `weir undo` while others are at it.
pub fn undo_alongside(sim: &Sim) {
    sim.world().counts.undos_beside += 1;
    undo(sim);
}

/// Another guard starts while others are at it, and ends at once.
pub fn rival(sim: &Sim) {
    sim.world().counts.rivals += 1;
    let (modern, ifaces, queues) = {
        let world = sim.world();
        (world.modern, world.ifaces.len(), world.ifaces[0].napis.len())
    };
    let shape = Shape {
        modern,
        ifaces,
        queues,
        threads: false,
        generic: false,
        sight: true,
        replaced: false,
        late: true,
        script: vec![Op::Take(0)],
        after: vec![After::Undo],
    };
    guard(sim, &shape);
}
