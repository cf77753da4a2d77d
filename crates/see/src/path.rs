//! Stages from left to right: of one interface, and of the host.

use crate::ledger::{self, Arrival, moved32, moved64};
use crate::model::{Consumer, Cpu, Interface, Ledger, Place, Qdisc, Queue, Stage};
use kern::raw::{self, Device, Raw};
use std::collections::BTreeMap;

fn drops(arrival: &Arrival, wanted: &[&str]) -> BTreeMap<String, u64> {
    let of = arrival.drops.iter().filter(|(place, _)| wanted.contains(&place.as_str()));
    of.map(|(place, n)| (place.clone(), *n)).collect()
}

fn stage(place: Place, came: u64, drops: BTreeMap<String, u64>) -> Stage {
    let lost: u64 = drops.values().sum();
    Stage { place, r#in: Some(came), out: Some(came.saturating_sub(lost)), drops, ..Stage::default() }
}

/// By how much the counters of one interface moved, and what that says.
pub struct Moved<'a> {
    /// Those that all interfaces have.
    pub device: &'a BTreeMap<String, u64>,
    /// The driver's own.
    pub driver: &'a BTreeMap<String, u64>,
    /// What arrived.
    pub arrival: &'a Arrival,
}

/// One interface. It may have got another name since `before`.
pub fn interface(before: &Device, after: &Device, moved: &Moved<'_>, raws: (&Raw, &Raw)) -> Interface {
    let Moved { device, driver, arrival } = *moved;
    let at = |name: &str| device.get(name).copied().unwrap_or(0);
    let mut stages = Vec::new();
    let mut came = arrival.offered;
    let mut next = |place, reasons: &[&str], came: &mut u64| {
        let stage = stage(place, *came, drops(arrival, reasons));
        *came = stage.out.unwrap_or(0);
        stages.push(stage);
    };
    next(Place::Ring, &["ring", "broken", ledger::OVERSIZE], &mut came);
    next(Place::Napi, &["memory"], &mut came);
    if after.xdp || arrival.drops.contains_key("xdp") {
        next(Place::Xdp, &["xdp"], &mut came);
    }
    let qdiscs = qdiscs(after.ifindex, raws);
    let full = at("tx_dropped") + qdiscs.iter().map(|q| q.drops).sum::<u64>();
    let mut output = stage(Place::Output, at("tx_packets") + full, BTreeMap::new());
    for (reason, n) in [("device", at("tx_dropped")), ("queue", qdiscs.iter().map(|q| q.drops).sum())] {
        if n > 0 {
            output.drops.insert(reason.into(), n);
        }
    }
    output.out = Some(at("tx_packets"));
    let waiting = qdiscs.iter().map(|q| q.waiting).max();
    output.level =
        waiting.filter(|_| after.txqlen > 0).map(|w| (w as f64 / f64::from(after.txqlen)).min(1.0));
    stages.push(output);
    let mut counters: BTreeMap<String, u64> = device.clone();
    counters.extend(driver.iter().map(|(name, n)| (format!("driver.{name}"), *n)));
    Interface {
        name: after.name.clone(),
        ifindex: after.ifindex,
        kind: after.kind.clone(),
        up: after.up,
        stacked: !ledger::counts(after),
        ring: after.ring.map(|r| r.rx),
        ring_max: after.ring.map(|r| r.rx_max),
        xdp: after.xdp,
        offered: arrival.offered,
        bytes: at("rx_bytes"),
        sent: at("tx_packets"),
        stages,
        queues: after.queues.iter().map(|q| queue(q, driver, arrival, before)).collect(),
        qdiscs,
        counters,
    }
}

/// Names of drivers for the packets of one receive queue.
const QUEUE_PACKETS: [&str; 5] = [
    "rx_queue_{q}_packets",
    "rx_queue_{q}_xdp_packets",
    "rx{q}_packets",
    "rx-{q}.packets",
    "queue_{q}_rx_cnt",
];

/// Packets of one receive queue since the device was made, among the statistics of its driver.
#[must_use]
pub fn queue_packets(driver: &BTreeMap<String, u64>, queue: u32) -> Option<u64> {
    let named = |pattern: &&str| driver.get(&pattern.replace("{q}", &queue.to_string())).copied();
    QUEUE_PACKETS.iter().find_map(named)
}

fn queue(now: &raw::Queue, driver: &BTreeMap<String, u64>, arrival: &Arrival, before: &Device) -> Queue {
    // By number: the name changes with that of the interface, and another one may have got it.
    let then = before.queues.iter().find(|q| q.queue == now.queue && q.irq == now.irq);
    Queue {
        name: now.name.clone(),
        queue: now.queue,
        napi_id: now.napi_id,
        cpus: now.cpus.to_string(),
        rps: now.rps.to_string(),
        thread: now.thread,
        mode: String::new(),
        interrupts: now.interrupts.zip(then.and_then(|q| q.interrupts)).map(|(n, t)| moved64(t, n)),
        packets: queue_packets(driver, now.queue),
        drops: arrival.queues.get(&now.queue).cloned().unwrap_or_default(),
    }
}

fn qdiscs(ifindex: u32, (before, after): (&Raw, &Raw)) -> Vec<Qdisc> {
    let one = |now: &raw::Qdisc| {
        let same = |q: &&raw::Qdisc| (q.ifindex, q.handle, q.parent) == (ifindex, now.handle, now.parent);
        let then = before.qdiscs.iter().find(same).cloned().unwrap_or_default();
        Qdisc {
            kind: now.kind.clone(),
            handle: format!("{:x}:{:x}", now.handle >> 16, now.handle & 0xffff),
            sent: moved32(then.packets.into(), now.packets.into()),
            drops: moved32(then.drops.into(), now.drops.into()),
            waiting: now.waiting.into(),
        }
    };
    // A queue inside another one passes its drops on to it (`qdisc_tree_reduce_backlog`): the root has them all.
    const ROOT: u32 = u32::MAX;
    let roots = after.qdiscs.iter().filter(|q| q.ifindex == ifindex && q.parent == ROOT);
    roots.map(one).filter(|q| q.drops > 0 || q.waiting > 0 || q.sent > 0).collect()
}

/// The whole host.
pub fn host(
    interfaces: &[Interface],
    cpus: &[Cpu],
    consumers: &[Consumer],
    ledger: &Ledger,
    after: &Raw,
) -> Vec<Stage> {
    // A packet of a bond or VLAN is one of the interface below it too, where that is shown.
    let below = interfaces.iter().any(|i| !i.stacked);
    let interfaces: Vec<&Interface> = interfaces.iter().filter(|i| !(below && i.stacked)).collect();
    let sum = |place: Place| {
        let mut total = Stage { place, r#in: Some(0), out: Some(0), ..Stage::default() };
        for stage in interfaces.iter().flat_map(|i| &i.stages).filter(|s| s.place == place) {
            total.r#in = total.r#in.zip(stage.r#in).map(|(a, b)| a + b);
            total.out = total.out.zip(stage.out).map(|(a, b)| a + b);
            total.level = total.level.into_iter().chain(stage.level).reduce(f64::max);
            for (reason, n) in &stage.drops {
                *total.drops.entry(reason.clone()).or_default() += n;
            }
        }
        total
    };
    let at = |place: &str| ledger.drops.get(place).copied().unwrap_or(0);
    let named = |places: &[&str]| -> BTreeMap<String, u64> {
        places.iter().filter(|p| at(p) > 0).map(|p| ((*p).to_owned(), at(p))).collect()
    };
    let depth = after.limits.get("net.core.netdev_max_backlog").and_then(|l| l.first()).copied();
    let fullest = cpus.iter().filter_map(|c| c.backlog).max();
    let backlog = Stage {
        place: Place::Backlog,
        level: fullest.zip(depth).map(|(n, max)| (f64::from(n) / max.max(1) as f64).min(1.0)),
        drops: named(&["backlog"]),
        ..Stage::default()
    };
    let early: u64 = ["ring", "xdp", "memory", "broken", ledger::OVERSIZE, "backlog", "ignored"]
        .iter()
        .map(|p| at(p))
        .sum();
    let stack_drops = named(&[
        "header",
        "address",
        "reverse path",
        "protocol",
        "route",
        "stack",
        "checksum",
        "no port",
        "too big",
        "reassembly",
        "conntrack",
        "filter",
        "vanished",
        "ignored",
    ]);
    let mut stack = stage(Place::Stack, ledger.offered.saturating_sub(early), stack_drops);
    let late: u64 = at("socket") + at("socket memory");
    let delivered = ledger.delivered();
    stack.out = Some(delivered + late);
    let fullest = consumers.iter().filter_map(|c| c.level).reduce(f64::max);
    let mut consumer = stage(Place::Consumer, delivered + late, named(&["socket", "socket memory"]));
    consumer.level = fullest;
    consumer.out = Some(delivered);
    let program = Stage { place: Place::Program, r#in: Some(delivered), ..Stage::default() };
    let mut path = vec![sum(Place::Ring), sum(Place::Napi)];
    if interfaces.iter().any(|i| i.stages.iter().any(|s| s.place == Place::Xdp)) {
        path.push(sum(Place::Xdp));
    }
    path.extend([backlog, stack, consumer, program, sum(Place::Output)]);
    path
}
