//! The set of net CPUs resizes itself: policy decides, sources move through interrupts from one poller to another.

use policy::netmove::{HIGH, LOW, Polled, Resizer};

use super::*;

/// Shares from which on the set grows and shrinks. In a build with debug assertions `WEIR_TEST_NET` names others, as `HIGH,LOW` in
/// permille: a test cannot fill a CPU of a machine that others use.
fn shares() -> (policy::Permille, policy::Permille) {
    #[cfg(debug_assertions)]
    if let Some(text) = std::env::var("WEIR_TEST_NET").ok().as_deref()
        && let Some((high, low)) = text.split_once(',')
        && let (Ok(high), Ok(low)) = (high.parse(), low.parse())
    {
        return (high, low);
    }
    (HIGH, LOW)
}

/// The set, and what each source had carried at the last look.
pub(super) struct NetCpus {
    resizer: Resizer,
    seen: [u64; SOURCES],
}

impl NetCpus {
    /// For the pollers of mode net; `None` where nothing can be resized. From the first CPU of the list on.
    pub(super) fn new(opts: &GuardOptions, cpus: usize) -> Option<Self> {
        let (high, low) = shares();
        let resizes = opts.mode == Mode::Net && cpus > 1;
        resizes.then(|| Self { resizer: Resizer::new(cpus, high, low), seen: [0; SOURCES] })
    }

    /// CPUs of the set.
    pub(super) fn size(&self) -> usize {
        self.resizer.size()
    }
}

impl Control {
    /// What the CPU of a poller is for, by the order of the pollers; empty outside of mode net.
    pub(super) fn role(&self, poller: usize) -> &'static str {
        match &self.net {
            _ if self.opts.mode != Mode::Net => "",
            Some(net) if poller >= net.size() => "host",
            _ => "net",
        }
    }

    /// Makes the set larger or smaller, and tells the pollers which sources go elsewhere.
    pub(super) fn resize_net(&mut self, now: Nanos) {
        let Some(net) = self.net.as_mut() else { return };
        let mut polled = Vec::new();
        for source in self.interfaces.iter().flat_map(|interface| &interface.sources) {
            let packets = self.gauges.views.source_stats[source.slot].packets.load(Relaxed);
            let since = packets.wrapping_sub(std::mem::replace(&mut net.seen[source.slot], packets));
            let cpu = source.now.cpu.load(Relaxed) as usize;
            let poller = self.workers.iter().position(|worker| worker.cpu == cpu);
            if let Some(poller) = poller.filter(|_| source.now.changed.load(Relaxed) > 0) {
                polled.push(Polled { slot: source.slot, poller, packets: since });
            }
        }
        let busy = self.workers.iter().map(|worker| worker.gauge.busy_ns.load(Relaxed)).sum();
        let mut moves = Vec::new();
        let changed = net.resizer.look(now, busy, &polled, |slot, poller| moves.push((slot, poller)));
        if moves.is_empty() && changed.is_none() {
            return;
        }
        let size = net.size();
        // Where it goes is known before its poller can give it back.
        if let Ok(mut dispatch) = self.dispatch.lock() {
            dispatch.resize(size);
            moves.iter().for_each(|&(slot, poller)| dispatch.seat(slot, poller));
        }
        for (slot, _) in &moves {
            let from = polled.iter().find(|p| p.slot == *slot).map(|p| p.poller);
            if let Some(worker) = from.and_then(|poller| self.workers.get(poller)) {
                let _ = worker.commands.send(Command::Move(*slot));
            }
        }
        if changed.is_some() {
            let cpus: kern::cpus::CpuSet = self.workers.iter().take(size).map(|worker| worker.cpu).collect();
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
