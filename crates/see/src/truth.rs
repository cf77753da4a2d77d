//! What a driver's counters really count: a table as data, used by the ledger and shown by `weir check`.
//!
//! A counter called `rx_dropped` is packets that found the ring full on one driver, packets of unknown protocols on
//! the next, and both on a third. Each row cites the source file that counts.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::LazyLock};

/// Where the counter is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// In the counters that every interface has (`ip -s -s link`).
    Device,
    /// In the driver's own (`ethtool -S`).
    Driver,
}

/// What the ledger does with the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// Ring full: the packet came and found no descriptor, or the NIC's own memory full.
    Ring,
    /// An XDP program dropped it.
    Xdp,
    /// The driver had no memory for it: the refill is starved (WU-04).
    Memory,
    /// Broken on the wire: checksum of the frame, length.
    Broken,
    /// Nothing here wanted it: unknown protocol, or for another host.
    Ignored,
    /// Not a loss, or counted already by another row.
    None,
}

impl Loss {
    /// Its word in the ledger.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Loss::Ring => "ring",
            Loss::Xdp => "xdp",
            Loss::Memory => "memory",
            Loss::Broken => "broken",
            Loss::Ignored => "ignored",
            Loss::None => "none",
        }
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Drivers; `*`: all that have no row of their own for this name.
    pub drivers: Vec<String>,
    /// Where it is found.
    pub scope: Scope,
    /// Its name; `{q}` stands for the number of a queue.
    pub name: String,
    /// What the ledger does with it.
    pub loss: Loss,
    /// True if these packets are inside `rx_packets` too.
    pub in_packets: bool,
    /// True if these packets are inside `rx_dropped` too.
    #[serde(default)]
    pub in_dropped: bool,
    /// A counter of the same scope that is inside this one and has a row of its own.
    #[serde(default)]
    pub without: Option<String>,
    /// What it counts, in words.
    pub counts: String,
    /// Source file in the kernel.
    pub source: String,
}

#[derive(Deserialize)]
struct Table {
    counter: Vec<Row>,
}

static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let table: Result<Table, _> = toml::from_str(include_str!("counters.toml"));
    // The file is part of the program, and a test parses it.
    table.map(|t| t.counter).unwrap_or_default()
});

/// The rows for `driver`: its own, then the general ones whose names it has no row for.
pub fn rows(driver: &str) -> Vec<&'static Row> {
    let own: Vec<&Row> = TABLE.iter().filter(|r| r.drivers.iter().any(|d| d == driver)).collect();
    let general = TABLE.iter().filter(|r| r.drivers.iter().any(|d| d == "*"));
    let missing = general.filter(|g| !own.iter().any(|o| o.name == g.name && o.scope == g.scope));
    own.iter().copied().chain(missing).collect()
}

/// The queue number in `name` if it matches `pattern`: `Some(None)` for a pattern without a queue.
pub fn matches(pattern: &str, name: &str) -> Option<Option<u32>> {
    match pattern.split_once("{q}") {
        None => (pattern == name).then_some(None),
        Some((before, after)) => {
            let number = name.strip_prefix(before)?.strip_suffix(after)?;
            let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| number.parse().ok()).flatten().map(Some)
        }
    }
}

/// A loss of one device, told by one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The row.
    pub row: &'static Row,
    /// Queue, if the counter is of one.
    pub queue: Option<u32>,
    /// Packets.
    pub packets: u64,
}

/// What the rows for `driver` tell of counters that moved: `device` and `driver_counters` are differences.
pub fn told(
    driver: &str,
    device: &BTreeMap<String, u64>,
    driver_counters: &BTreeMap<String, u64>,
) -> Vec<Told> {
    let mut all = Vec::new();
    for row in rows(driver).into_iter().filter(|r| r.loss != Loss::None) {
        let counters = if row.scope == Scope::Device { device } else { driver_counters };
        for (name, &moved) in counters {
            let Some(queue) = matches(&row.name, name) else { continue };
            let inside = row.without.as_ref().map_or(0, |pattern| {
                let same = |other: &String| matches(pattern, other) == Some(queue);
                counters.iter().filter(|(other, _)| same(other)).map(|(_, n)| *n).sum()
            });
            let packets = moved.saturating_sub(inside);
            if packets > 0 {
                all.push(Told { row, queue, packets });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
        list.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect()
    }

    #[test]
    fn the_table_is_whole() {
        let table: Table = toml::from_str(include_str!("counters.toml")).unwrap();
        assert!(table.counter.len() > 15);
        for row in &table.counter {
            assert!(row.source.contains('/') && row.counts.len() > 10, "{row:?}");
            assert!(!row.drivers.is_empty(), "{row:?}");
        }
    }

    #[test]
    fn names_with_queues() {
        assert_eq!(matches("rx{q}_drops", "rx12_drops"), Some(Some(12)));
        assert_eq!(matches("rx{q}_drops", "rx_drops"), None);
        assert_eq!(matches("rx{q}_drops", "rx1_xdp_drops"), None);
        assert_eq!(matches("rx_missed_errors", "rx_missed_errors"), Some(None));
    }

    #[test]
    fn a_counter_inside_another_is_counted_once() {
        let driver =
            counters(&[("rx0_drops", 10), ("rx0_xdp_drops", 7), ("rx1_drops", 2), ("rx1_xdp_drops", 2)]);
        let told = told("virtio_net", &BTreeMap::new(), &driver);
        let sum = |loss| told.iter().filter(|t| t.row.loss == loss).map(|t| t.packets).sum::<u64>();
        assert_eq!((sum(Loss::Xdp), sum(Loss::Memory)), (9, 3));
    }

    #[test]
    fn cloud_nics_tell_what_found_no_descriptor() {
        let oob = counters(&[("  pkts rx OOB", 35)]);
        let found = told("vmxnet3", &BTreeMap::new(), &oob);
        assert_eq!((found[0].row.loss, found[0].packets, found[0].row.in_packets), (Loss::Ring, 35, false));
        let dropped = counters(&[("rx_dropped", 500)]);
        let found = told("ena", &dropped, &BTreeMap::new());
        assert_eq!((found[0].row.loss, found[0].packets, found[0].row.in_packets), (Loss::Ring, 500, false));
    }

    #[test]
    fn a_driver_without_rows_has_the_general_ones() {
        let missed = counters(&[("rx_missed_errors", 5)]);
        let told = told("no such driver", &missed, &BTreeMap::new());
        assert_eq!((told[0].row.loss, told[0].packets), (Loss::Ring, 5));
    }
}
