//! The set of net CPUs resizes itself: policy decides, sources move through interrupts from one poller to another.

use policy::netmove::{self, CPUS_MAX, Polled, Resizer};

use super::*;

/// Shares from which on the set grows and shrinks where no CPU can be filled.
const PART: (policy::Permille, policy::Permille) = (250, 100);

/// The set, and what each source had carried at the last look.
pub(super) struct NetCpus {
    resizer: Resizer,
    high: policy::Permille,
    /// All of these, all the time.
    fixed: Option<usize>,
    seen: [u64; SOURCES],
}

impl NetCpus {
    /// For the pollers of mode net; `None` where nothing can be resized. From the first CPU of the list on.
    pub(super) fn new(opts: &GuardOptions, cpus: usize) -> Option<Self> {
        let (high, low) = shares(opts);
        let fixed = opts.ablate.contains(&Ablate::Resize).then_some(cpus);
        let resizes = opts.mode == Mode::Net && cpus > 1;
        resizes.then(|| Self { resizer: Resizer::new(cpus, high, low), high, fixed, seen: [0; SOURCES] })
    }

    /// CPUs of the set.
    pub(super) fn size(&self) -> usize {
        self.fixed.unwrap_or_else(|| self.resizer.size())
    }

    /// Whether a poller is of the set.
    fn has(&self, poller: usize) -> bool {
        self.fixed.is_some() || poller < CPUS_MAX && self.resizer.members() >> poller & 1 == 1
    }

    /// Which poller is to have a source, if the set is fixed.
    pub(super) fn seat(&self, slot: usize) -> Option<usize> {
        self.fixed.map(|cpus| slot % cpus)
    }

    /// Share of a CPU's time from which on there are too few; 0 if there will be no more.
    pub(super) fn high(&self) -> u32 {
        if self.fixed.is_none() { self.high.into() } else { 0 }
    }
}

/// Shares from which on the set grows and shrinks.
fn shares(opts: &GuardOptions) -> (policy::Permille, policy::Permille) {
    let full = netmove::shares(10 * policy::Permille::from(opts.reserve));
    if opts.ablate.contains(&Ablate::FullCpu) { PART } else { full }
}

impl Control {
    /// The reserve may be another one.
    pub(super) fn tune_net(&mut self) {
        let (high, low) = shares(&self.opts);
        let Some(net) = self.net.as_mut() else { return };
        net.resizer.tune(high, low);
        net.high = high;
        let high = net.high();
        self.workers.iter().for_each(|worker| worker.gauge.high.store(high, Relaxed));
    }

    /// What the CPU of a poller is for, by the order of the pollers; empty outside of mode net.
    pub(super) fn role(&self, poller: usize) -> &'static str {
        match &self.net {
            _ if self.opts.mode != Mode::Net => "",
            Some(net) if !net.has(poller) => "host",
            _ => "net",
        }
    }

    /// Makes the set larger or smaller, and tells the pollers which sources go elsewhere.
    pub(super) fn resize_net(&mut self, now: Nanos) {
        let polled = self.polled_net(true);
        let busy = self.workers.iter().map(|worker| worker.gauge.busy_ns.load(Relaxed)).sum();
        let away = self.away();
        let Some(net) = self.net.as_mut().filter(|net| net.fixed.is_none()) else { return };
        let mut moves = Vec::new();
        let changed = net.resizer.look(now, busy, away, &polled, |slot, poller| moves.push((slot, poller)));
        self.move_net(now, &polled, &moves, changed.is_some());
    }

    /// The poller on `cpu` has no time left: what the next look would do if it were so until then.
    pub(super) fn press_net(&mut self, now: Nanos, cpu: usize) {
        let polled = self.polled_net(false);
        let Some(from) = self.workers.iter().position(|worker| worker.cpu == cpu) else { return };
        let away = self.away();
        let Some(net) = self.net.as_mut() else { return };
        let mut moves = Vec::new();
        let changed =
            net.resizer.pressed(now, from, away, &polled, |slot, poller| moves.push((slot, poller)));
        self.move_net(now, &polled, &moves, changed.is_some());
    }

    /// Pollers that take nothing, a bit each.
    fn away(&self) -> u64 {
        let bits = self.workers.iter().take(CPUS_MAX).enumerate();
        bits.fold(0, |all, (n, worker)| all | u64::from(!worker.takes()) << n)
    }

    /// The sources that are polled, with what they carried since the last look; `look`: this is one.
    fn polled_net(&mut self, look: bool) -> Vec<Polled> {
        let mut polled = Vec::new();
        let Some(net) = self.net.as_mut() else { return polled };
        for source in self.interfaces.iter().flat_map(|interface| &interface.sources) {
            let packets = self.gauges.views.source_stats[source.slot].packets.load(Relaxed);
            let since = packets.wrapping_sub(net.seen[source.slot]);
            if look {
                net.seen[source.slot] = packets;
            }
            let cpu = source.now.cpu.load(Relaxed) as usize;
            let poller = self.workers.iter().position(|worker| worker.cpu == cpu);
            if let Some(poller) = poller.filter(|_| source.now.changed.load(Relaxed) > 0) {
                polled.push(Polled { slot: source.slot, poller, packets: since });
            }
        }
        polled
    }

    fn move_net(&mut self, now: Nanos, polled: &[Polled], moves: &[(usize, usize)], changed: bool) {
        let Some(net) = self.net.as_ref().filter(|_| changed || !moves.is_empty()) else { return };
        let size = net.size();
        // Where it goes is known before its poller can give it back.
        if let Ok(mut dispatch) = self.dispatch.lock() {
            dispatch.resize(size);
            moves.iter().for_each(|&(slot, poller)| dispatch.seat(slot, poller));
        }
        for (slot, _) in moves {
            let from = polled.iter().find(|p| p.slot == *slot).map(|p| p.poller);
            if let Some(worker) = from.and_then(|poller| self.workers.get(poller)) {
                let _ = worker.commands.send(Command::Move(*slot));
            }
        }
        if changed {
            let members = self.workers.iter().enumerate().filter(|(n, _)| net.has(*n));
            let cpus: kern::cpus::CpuSet = members.map(|(_, worker)| worker.cpu).collect();
            let text = match moves.len() {
                1 => "1 source moves".to_owned(),
                n => format!("{n} sources move"),
            };
            self.log.event(now, "net", &format!("CPUs {cpus}"), &text);
        }
    }

    /// A source was given back for another net CPU, which takes it at once.
    pub(super) fn follow(&self, slot: usize) {
        if let Ok(mut dispatch) = self.dispatch.lock() {
            dispatch.follow(slot);
        }
    }
}
