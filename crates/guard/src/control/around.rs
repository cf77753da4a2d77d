//! What the host has counted beside the sources, for [`policy::merged`] and [`policy::transit`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use kern::guard::{SOURCES, Views};
use kern::proc;
use policy::dispatch::Surroundings;
use policy::merged::{self, Ip};

use super::{Control, State};
use crate::parse::Mode;

/// What interfaces have received.
#[derive(Default)]
pub struct Received {
    /// Bytes of each when sources last carried many packets.
    bytes: BTreeMap<String, u64>,
    /// Packets of all sources at the last tick.
    packets: u64,
}

impl Received {
    /// Reads it if sources have carried many packets since the last tick: hosts with hundreds of interfaces do so for a millisecond.
    fn look(&mut self, views: &Views) {
        let all = views.source_stats.iter();
        let packets = all.fold(0u64, |sum, stat| sum.wrapping_add(stat.packets.load(Relaxed)));
        let since = packets.wrapping_sub(std::mem::replace(&mut self.packets, packets));
        if since >= merged::ENOUGH || self.bytes.is_empty() {
            self.bytes = proc::received().unwrap_or_default();
        }
    }

    /// Segments that interfaces can have brought which are not `evident`.
    fn elsewhere(&self, evident: &BTreeSet<String>) -> u64 {
        let others = self.bytes.iter().filter(|(name, _)| !evident.contains(*name));
        let brought = others.map(|(name, bytes)| merged::brought(*bytes, name == proc::LOOPBACK));
        brought.fold(0u64, u64::wrapping_add)
    }
}

impl Control {
    /// What sources carry, whether it is only passed on, and what may explain it. Who asks for a poller gets one, and a file that cannot
    /// be read makes no router: then full polls are evidence as anywhere.
    pub(super) fn tick_dispatch(&mut self) {
        let mut around = Surroundings { asked: self.has_filters, ..Surroundings::default() };
        let mut received = [0; SOURCES];
        if self.opts.mode == Mode::Auto {
            self.received.look(&self.gauges.views);
            let evident = self.evident.iter().filter_map(|index| kern::netns::name_of(*index).ok()).collect();
            let elsewhere = self.received.elsewhere(&evident);
            around.ip = proc::ip_counts().ok().map(|ip| Ip { elsewhere, ..ip });
            around.routes = self.others.routes;
            for interface in self.interfaces.iter().filter(|i| i.state == State::Guarded) {
                let bytes = self.received.bytes.get(&interface.name).copied().unwrap_or(0);
                let slots = received.iter_mut().skip(interface.first_slot).take(interface.sources.len());
                slots.for_each(|slot| *slot = bytes);
            }
        }
        if let Ok(mut dispatch) = self.dispatch.lock() {
            dispatch.tick(&self.gauges.views, |slot| received[slot], around);
        }
    }
}
