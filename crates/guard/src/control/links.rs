//! Interfaces that come, go, and change, and how their sources are known.

use super::*;
use crate::plan;
use kern::journal::Fate;

/// Of a queue that is polled for good the others would get their packets by its timer.
const SHARED: &str = "before Linux 6.13 the settings of a queue are those of all queues";
const FOLLOWED: &str = "its settings are as before, in the namespace where it is now";

/// First of `count` slots that nobody has; those from `before` on if they are free, because totals are kept by slot, and the XDP program
/// is loaded for them.
fn room(taken: &[(usize, usize)], before: usize, count: usize) -> Option<usize> {
    let last = SOURCES.checked_sub(count)?;
    let free = |first: &usize| {
        *first <= last && taken.iter().all(|(start, len)| first + count <= *start || *first >= start + len)
    };
    std::iter::once(before).chain(0..=last).find(free)
}

impl Control {
    pub(super) fn set_up(&mut self, index: usize) -> anyhow::Result<()> {
        let taken: Vec<(usize, usize)> = self
            .interfaces
            .iter()
            .enumerate()
            .filter(|(i, f)| *i != index && f.state != State::Gone)
            .map(|(_, f)| f.slots())
            .collect();
        let before = self.interfaces[index].first_slot;
        let slots = |count: usize| room(&taken, before, count);
        let own = self.interfaces[index].thread_because.clone();
        let threads = match self.opts.mode {
            Mode::Thread => Threads::All,
            Mode::Auto => Threads::Fallback(own.or_else(|| self.no_poll.clone())),
            Mode::Net => {
                let whole = plan::is_of_device(&mut self.access, &self.interfaces[index].wanted);
                let shared = || whole.then(|| SHARED.to_owned());
                Threads::Fallback(own.or_else(|| self.no_poll.clone()).or_else(shared))
            }
            _ => Threads::Never,
        };
        let full_polls = if self.opts.mode.takes_over() { FULL_POLLS } else { 0 };
        let mut timing = self.host().timing();
        let mut setup = Setup {
            gauges: &self.gauges,
            access: &mut self.access,
            journal_dir: &self.opts.journal_dir,
            flush_timeout: self.opts.flush.as_nanos() as Nanos,
            full_polls,
            cpus: self.opts.cpu.clone(),
            sheds: self.opts.mode == Mode::Shed,
            threads,
            watch_irqs: matches!(self.opts.mode, Mode::Auto | Mode::Net),
            steers: self.steering.is_some(),
            keeper: &self.keeper,
        };
        let interface = &mut self.interfaces[index];
        let result = interface.set_up(&mut setup, slots);
        if result.is_err() {
            interface.tear_down(&self.gauges, State::Gone);
            return result;
        }
        if self.opts.ablate.contains(&Ablate::Release) {
            timing = timing.unreleased();
        }
        // The hands know a source before anybody can order its takeover.
        if full_polls > 0 {
            for source in interface.sources.iter().filter(|s| !s.is_left_alone() && !s.threaded) {
                let _ = self.orders.send(Order::Add(Arc::clone(source)));
            }
        }
        if let (Ok(mut dispatch), true) = (self.dispatch.lock(), full_polls > 0) {
            let known =
                |s: &&Arc<Source>| !s.is_left_alone() && !s.threaded && s.now.napi_id.load(Relaxed) != 0;
            for source in interface.sources.iter().filter(known) {
                dispatch.add(source, timing);
            }
        }
        self.pulse.wake();
        if (full_polls > 0 || self.opts.mode == Mode::Shed) && interface.is_learning() {
            let (ifindex, first, count) = (interface.ifindex, interface.first_slot, interface.sources.len());
            if let Err(e) = self.gauges.learn(ifindex, first, count) {
                let name = &self.interfaces[index].name;
                let why = format!("its NAPI id cannot be learnt: {}", kern::guard::short(&e));
                self.log.line("warning", name, &why);
            }
        }
        self.interfaces[index].failed = false;
        if let Some(why) = self.interfaces[index].unbound.take() {
            let name = self.interfaces[index].name.clone();
            self.log.line("warning", &name, &why);
        }
        self.look_at_evidence();
        let config = self.config();
        for worker in &self.workers {
            let _ = worker.commands.send(Command::Configure(config));
        }
        Ok(())
    }
    pub(super) fn look_at(&mut self, index: usize, thorough: bool) {
        let interface = &self.interfaces[index];
        let name = kern::netns::name_of(interface.ifindex).ok().filter(|_| interface.state != State::Gone);
        let (was, wanted) = (interface.state, interface.wanted.clone());
        let Some(name) = name else {
            // It is here, under whatever name: that one is tried again before another device that has the user's.
            if interface.failed && kern::netns::name_of(interface.ifindex).is_ok_and(|name| self.is_up(&name))
            {
                self.find_again(index);
                return;
            }
            // Whether it lives on elsewhere the kernel says a moment later, and one look later it has said so.
            let untold = interface.moved.is_none() && !interface.missed;
            if was != State::Gone && untold {
                self.interfaces[index].missed = true;
                return;
            }
            if was != State::Gone {
                self.lose(index, State::Gone, "gone; weir waits for the name");
            }
            if kern::netns::index_of(&wanted).is_ok() && self.is_up(&wanted) {
                match self.set_up(index) {
                    Ok(()) => self.log.line("back", &wanted, "guarded again"),
                    Err(e) => self.log.line("warning", &wanted, &format!("{e:#}")),
                }
            }
            return;
        };
        if name != interface.name {
            self.log.line("renamed", &interface.name, &format!("now {name}; guarded on"));
            self.interfaces[index].name.clone_from(&name);
        }
        let up = self.is_up(&name);
        match (was, up) {
            (State::Guarded, false) => self.lose(index, State::Down, "down"),
            (State::Guarded, true)
                if self.interfaces[index].doubtful
                    || thorough && self.interfaces[index].is_stale(&mut self.access) =>
            {
                self.lose(index, State::Down, "its NAPIs, or what stands on it, are others now");
                self.find_again(index);
            }
            (State::Guarded, true) if thorough => {
                self.interfaces[index].tell_addresses(&self.gauges);
                self.look_at_rps(index);
                self.ask_again(index);
            }
            (State::Down, true) => self.find_again(index),
            _ => {}
        }
    }
    /// Has packets tell the ids once more where no NAPI that is known polls: between two looks, unless some are learnt anyway. In mode
    /// shed no source is known by its id.
    fn ask_again(&mut self, index: usize) {
        let interface = &mut self.interfaces[index];
        if !self.opts.mode.takes_over() {
            return;
        }
        let (ifindex, first, count) = (interface.ifindex, interface.first_slot, interface.sources.len());
        let learns = interface.is_learning();
        if interface.is_told_otherwise(&self.gauges) {
            interface.doubtful = true;
        } else if interface.is_deaf(&self.gauges, &mut self.access) {
            for source in interface.sources.iter().filter(|s| s.now.napi_id.load(Relaxed) != 0) {
                self.gauges.views.source_stats[source.slot].napi_id.store(0, Relaxed);
            }
            interface.ask();
            // What it cannot do now it may the next time.
            let _ = self.gauges.learn(ifindex, first, count);
        } else if !learns {
            self.gauges.unlearn(ifindex);
        }
    }
    /// Asks packets for the ids, or leaves them in peace.
    fn ask_in_turn(&mut self, index: usize) {
        let interface = &mut self.interfaces[index];
        let (ifindex, first, count) = (interface.ifindex, interface.first_slot, interface.sources.len());
        match interface.asks(&self.gauges, &mut self.access) {
            // What it cannot do now it may the next time.
            true => drop(self.gauges.learn(ifindex, first, count)),
            false => self.gauges.unlearn(ifindex),
        }
    }

    /// Takes note of the ids that packets have told, where some have not.
    pub(super) fn learn(&mut self, index: usize) {
        match self.opts.mode {
            Mode::Shed if self.interfaces[index].all_told(&self.gauges) => {
                self.gauges.unlearn(self.interfaces[index].ifindex);
                return;
            }
            Mode::Shed => return self.ask_in_turn(index),
            mode if !mode.takes_over() => return,
            _ => self.ask_in_turn(index),
        }
        let timing = self.host().timing();
        let interface = &mut self.interfaces[index];
        let learnt = interface.learnt(&self.gauges, &mut self.access);
        if !learnt.is_empty() {
            if let Ok(mut dispatch) = self.dispatch.lock() {
                for source in &learnt {
                    dispatch.add(source, timing);
                }
            }
            if !interface.is_learning() {
                self.gauges.unlearn(interface.ifindex);
            }
        } else if matches!(self.opts.mode, Mode::Auto | Mode::Net) && interface.is_mute(&mut self.access) {
            let lro = kern::ethtool::lro(&interface.name).unwrap_or(false);
            let name = interface.name.clone();
            let why = match lro {
                true => format!("its packets tell no NAPI id while LRO is on (ethtool -K {name} lro off)"),
                false => "its packets tell no NAPI id".to_owned(),
            };
            self.go_thread(index, why, None);
        }
    }

    /// What polling cannot do for an interface its NAPIs' kernel threads do: until the `lull` after the flood, or until weir ends.
    pub(super) fn go_thread(&mut self, index: usize, why: String, lull: Option<Lull>) {
        let name = self.interfaces[index].name.clone();
        self.log.event(clock::now(), "thread", &name, &why);
        (self.interfaces[index].thread_because, self.interfaces[index].lull) = (Some(why), lull);
        self.lose(index, State::Down, "mode thread from here on");
        self.find_again(index);
    }

    /// Ends the threads that a flood has made needed, once it is over.
    pub(super) fn end_thread(&mut self, index: usize, now: Nanos) {
        let interface = &mut self.interfaces[index];
        let Some(lull) = interface.lull.as_mut().filter(|_| interface.state == State::Guarded) else {
            return;
        };
        let views = &self.gauges.views;
        let of = |s: &Arc<Source>| views.source_stats[s.slot].packets.load(Relaxed);
        if lull.is_over(now, interface.sources.iter().map(of).fold(0, u64::wrapping_add)) {
            (interface.thread_because, interface.lull) = (None, None);
            self.lose(index, State::Down, "the flood is over: no threads any more");
            self.find_again(index);
        }
    }
    /// Tells the watch thread where RPS has packets handled, which an administrator changes at any time. While a source is polled
    /// RPS is off.
    fn look_at_rps(&self, index: usize) {
        let idle = |s: &&Arc<Source>| s.now.changed.load(Relaxed) == 0;
        let interface = &self.interfaces[index];
        let Ok(device) = self.access.sysfs().device(interface.ifindex) else { return };
        for source in interface.sources.iter().filter(idle) {
            let one = plan::only(&device.rps_cpus(source.queue).unwrap_or_default());
            if let Ok(mut dispatch) = self.dispatch.lock() {
                dispatch.handled_on(source.slot, one);
            }
        }
    }

    /// Settings of a device hold for all its sources: those that carry packets are polled together.
    pub(super) fn share_device(&mut self, index: usize) {
        let views = Arc::clone(&self.gauges.views);
        let sources = &self.interfaces[index].sources;
        if sources.len() < 2 || !sources.iter().any(|s| s.now.of_device.load(Relaxed)) {
            return;
        }
        let polled = |s: &Source| s.now.changed.load(Relaxed) > 0;
        let Ok(mut dispatch) = self.dispatch.lock() else { return };
        for source in sources.iter().filter(|s| !polled(s)) {
            dispatch.companion(source.slot, &views);
        }
    }
    /// Net CPUs poll what carries packets.
    pub(super) fn call_net(&mut self, index: usize) {
        if self.opts.mode != Mode::Net {
            return;
        }
        let views = Arc::clone(&self.gauges.views);
        let Ok(mut dispatch) = self.dispatch.lock() else { return };
        for source in &self.interfaces[index].sources {
            if let Some(poller) = self.net.as_ref().and_then(|net| net.seat(source.slot)) {
                dispatch.seat(source.slot, poller);
            }
            dispatch.arrives(source.slot, &views);
        }
    }
    pub(super) fn is_up(&self, name: &str) -> bool {
        kern::ethtool::flags(name).is_ok_and(|f| f & libc::IFF_UP != 0)
    }
    pub(super) fn find_again(&mut self, index: usize) {
        let wanted = self.interfaces[index].wanted.clone();
        let known = self.interfaces[index].name.clone();
        let name = kern::netns::name_of(self.interfaces[index].ifindex).unwrap_or(known);
        // A renamed interface is found under its present name and still waited for under the user's.
        self.interfaces[index].wanted.clone_from(&name);
        let result = self.set_up(index);
        self.interfaces[index].wanted = wanted;
        self.interfaces[index].failed = result.is_err();
        match result {
            Ok(()) => self.log.line("found", &name, "sources known anew"),
            Err(e) => self.log.line("warning", &name, &format!("{e:#}")),
        }
    }
    pub(super) fn lose(&mut self, index: usize, state: State, why: &str) {
        let name = self.interfaces[index].name.clone();
        for source in self.interfaces[index].sources.clone() {
            if let Ok(mut dispatch) = self.dispatch.lock() {
                dispatch.remove(source.slot);
            }
            let _ = self.orders.send(Order::Remove(source.slot));
        }
        self.gauges.unlearn(self.interfaces[index].ifindex);
        self.interfaces[index].tear_down(&self.gauges, state);
        // What is seen to arrive by it is no evidence any more.
        self.links_changed = true;
        self.log.line("lost", &name, why);
        if state == State::Gone {
            self.let_go(index);
        }
    }
    /// Its settings went with it: they are put back where it is now.
    fn let_go(&mut self, index: usize) {
        let interface = &mut self.interfaces[index];
        let name = interface.name.clone();
        match interface.let_go(&mut self.access) {
            Err(e) => self.log.line("warning", &name, &format!("its journal stays: {e:#}")),
            Ok(outcomes) => {
                if outcomes.iter().any(|o| matches!(o.fate, Fate::Restored { .. })) {
                    self.log.line("restored", &name, FOLLOWED);
                }
                if let Some(left) = &interface.left {
                    self.log.line("warning", &name, &left.text());
                }
            }
        }
    }
    /// Looks again for what has left with settings of weir.
    pub(super) fn look_for_left(&mut self, index: usize, now: Nanos) {
        let interface = &mut self.interfaces[index];
        if interface.follow(&mut self.access, &self.opts.journal_dir, now) {
            self.log.line(
                "restored",
                &interface.wanted,
                "nothing of weir is left on the device that was here",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_gets_its_slots_again_and_nobody_elses() {
        // Both were down, and the second is up first.
        assert_eq!(room(&[(0, 4)], 4, 2), Some(4));
        assert_eq!(room(&[(4, 2)], 0, 4), Some(0));
        // With more queues than before there is room behind the other only.
        assert_eq!(room(&[(4, 2)], 0, 5), Some(6));
        assert_eq!(room(&[(0, SOURCES - 1)], 0, 1), Some(SOURCES - 1));
        assert_eq!(room(&[(0, SOURCES - 1)], 0, 2), None);
        assert_eq!(room(&[], 0, SOURCES + 1), None);
    }
}
