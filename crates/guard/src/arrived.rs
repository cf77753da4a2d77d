//! What arrived at a guarded device, by the counters that every device has. What NAPI handed up is less: under a flood the
//! device drops most of it before.
//!
//! They are read from sysfs, which waits for nobody. The driver's own counters (`ethtool -S`) would be more exact on some
//! NICs, but asking for them takes the lock that every change of a link holds (RTNL), and the status may not wait for it.

use std::collections::BTreeMap;

use kern::sysfs::{Device, Sysfs};

/// What moved between two looks at one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Packets that came: those received and those that the device dropped before.
    pub offered: u64,
    /// Packets that the device dropped before they counted as received, by place.
    pub drops: BTreeMap<String, u64>,
}

/// One device.
struct Seen {
    device: Device,
    /// Driver, or the kind of a virtual device.
    kind: String,
    counters: BTreeMap<String, u64>,
    /// Drops since the first look, by place.
    drops: BTreeMap<String, u64>,
}

/// The devices that were looked at, by index.
#[derive(Default)]
pub struct Arrived {
    sysfs: Option<Sysfs>,
    seen: BTreeMap<u32, Seen>,
}

/// Most devices that are remembered; a guard has fewer, but those that it had may be gone.
const DEVICES_MAX: usize = 256;

impl Arrived {
    /// What moved at the device since the last look, and all its drops since the first; `None` at the first look, and for a
    /// device that is not there.
    pub fn look(&mut self, ifindex: u32) -> Option<(Moved, BTreeMap<String, u64>)> {
        let Some(seen) = self.seen.get_mut(&ifindex) else {
            if self.seen.len() >= DEVICES_MAX {
                self.seen.clear();
            }
            if self.sysfs.is_none() {
                self.sysfs = Sysfs::for_current_netns().ok();
            }
            let device = self.sysfs.as_ref()?.device(ifindex).ok()?;
            let kind = kern::link::get(ifindex).ok().and_then(|link| link.kind);
            let kind = kind.or_else(|| kern::ethtool::driver(device.name()).ok()).unwrap_or_default();
            let counters = read(&device, &kind);
            self.seen.insert(ifindex, Seen { device, counters, kind, drops: BTreeMap::new() });
            return None;
        };
        let now = read(&seen.device, &seen.kind);
        if now.is_empty() {
            // It is gone; the index may be another's one day.
            self.seen.remove(&ifindex);
            return None;
        }
        let moved = moved(&seen.kind, &see::ledger::moved(&seen.counters, &now));
        seen.counters = now;
        for (place, n) in &moved.drops {
            *seen.drops.entry(place.clone()).or_default() += n;
        }
        Some((moved, seen.drops.clone()))
    }
}

/// The counters of a device that tell what came; none if it is gone.
fn read(device: &Device, kind: &str) -> BTreeMap<String, u64> {
    names(kind).filter_map(|name| Some((name.to_owned(), device.statistic(name).ok()?))).collect()
}

/// Names of the counters of a device that tell what came.
fn names(kind: &str) -> impl Iterator<Item = &'static str> {
    let rows = see::truth::rows(kind).into_iter();
    let told = rows.filter(|row| row.scope == see::truth::Scope::Device && !row.in_packets);
    std::iter::once("rx_packets").chain(told.map(|row| row.name.as_str()))
}

/// What came, by counters that moved.
fn moved(kind: &str, counters: &BTreeMap<String, u64>) -> Moved {
    let mut moved = Moved { offered: counters.get("rx_packets").copied().unwrap_or(0), ..Moved::default() };
    for told in see::truth::told(kind, counters, &BTreeMap::new()) {
        if !told.row.in_packets {
            moved.offered += told.packets;
            *moved.drops.entry(told.row.loss.name().to_owned()).or_default() += told.packets;
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
        list.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
    }

    #[test]
    fn what_the_device_dropped_has_arrived_too() {
        // On a NIC the core's drops are inside rx_packets, on veth a full ring is not.
        let nic =
            moved("e1000e", &counters(&[("rx_packets", 100), ("rx_missed_errors", 900), ("rx_dropped", 7)]));
        assert_eq!((nic.offered, nic.drops), (1000, counters(&[("ring", 900)])));
        let veth = moved("veth", &counters(&[("rx_packets", 100), ("rx_dropped", 900)]));
        assert_eq!((veth.offered, veth.drops), (1000, counters(&[("ring", 900)])));
        assert_eq!(moved("veth", &BTreeMap::new()), Moved::default());
    }

    #[test]
    fn only_counters_that_tell_what_came_are_read() {
        let of = |kind| names(kind).collect::<Vec<_>>();
        assert!(of("veth").contains(&"rx_packets") && of("veth").contains(&"rx_dropped"));
        assert!(of("e1000e").contains(&"rx_missed_errors") && !of("e1000e").contains(&"rx_nohandler"));
    }

    #[test]
    fn a_device_that_is_not_there_has_nothing() {
        let mut arrived = Arrived::default();
        assert!(arrived.look(u32::MAX).is_none() && arrived.look(u32::MAX).is_none());
    }
}
