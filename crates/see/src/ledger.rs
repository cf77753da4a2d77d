//! The ledger: every packet of one network namespace, from its devices to its end. Each number is a counter of the
//! kernel, or a difference of two that count the same packets; what does not fit stays in `unaccounted`.
//!
//! Packets before GRO and segments after it are told apart by IP's own two counters: `In*Pkts` by ECN field counts
//! segments, `InReceives` what GRO made of them (`ip_rcv_core` in net/ipv4/ip_input.c).

use crate::guard;
use crate::model::{Ledger, Place, Snapshot, Stage};
use crate::truth::{self, Told};
use kern::discover::Role;
use kern::raw::{Device, Raw};
use std::collections::BTreeMap;

/// No counter moves by more in the longest interval: bytes of an 800 Gb/s link in 60 s are a fortieth of it. What seems to is
/// no reading of a counter, and the limit keeps every sum below 64 bits.
const MOVES_MAX: u64 = 1 << 48;

/// What a 64-bit counter moved by; 0 if it ran backwards, as one that was reset, or moved by more than any can.
pub fn moved64(then: u64, now: u64) -> u64 {
    Some(now.saturating_sub(then)).filter(|n| *n <= MOVES_MAX).unwrap_or(0)
}

/// What a counter of 32 bits moved by; such counters run over. One that seems to have moved by half of its range or more
/// ran backwards: it was reset, and counts as 0.
pub fn moved32(then: u64, now: u64) -> u64 {
    let n = (now as u32).wrapping_sub(then as u32);
    if n < 1 << 31 { n.into() } else { 0 }
}

/// Differences of counters between two readings, those above 0.
pub fn moved(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let since = |(name, now): (&String, &u64)| {
        // A counter that is new has begun at 0 with its device: what it holds is of an unknown time.
        let then = before.get(name)?;
        let n = moved64(*then, *now);
        (n > 0).then(|| (name.clone(), n))
    };
    after.iter().filter_map(since).collect()
}

/// What arrived at one device, and where it was lost before IP.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrival {
    /// Packets that came.
    pub offered: u64,
    /// Packets that the device counted as received.
    pub packets: u64,
    /// Losses by place: ring, xdp, memory, broken, ignored, backlog.
    pub drops: BTreeMap<String, u64>,
    /// Losses of single queues.
    pub queues: BTreeMap<u32, BTreeMap<String, u64>>,
}

/// What arrived at `after`, whose counters moved by `device` and `driver`. Packets that found a backlog full are
/// taken from `backlog`, the drops that the CPUs counted and no device has yet.
pub fn arrival(
    after: &Device,
    device: &BTreeMap<String, u64>,
    driver: &BTreeMap<String, u64>,
    backlog: &mut u64,
) -> Arrival {
    let packets = device.get("rx_packets").copied().unwrap_or(0);
    let mut found = Arrival { offered: packets, packets, ..Arrival::default() };
    let told = truth::told(&after.kind, device, driver);
    let inside = told.iter().filter(|t| t.row.in_dropped).map(|t| t.packets).sum();
    // `rx_dropped` is the driver's and the core's drops in one number (`dev_get_stats` in net/core/dev.c).
    let mut rest = device.get("rx_dropped").copied().unwrap_or(0).saturating_sub(inside);
    let late = rest.min(*backlog);
    (rest, *backlog) = (rest - late, *backlog - late);
    *found.drops.entry("backlog".into()).or_default() += late;
    if !after.napi {
        // Without a NAPI the backlog stands before the place that counts `rx_packets`.
        found.offered += late;
    }
    for Told { row, queue, packets } in told {
        let dropped = row.name == "rx_dropped";
        let packets = if dropped { rest } else { packets };
        if !row.in_packets {
            found.offered += packets;
        }
        *found.drops.entry(row.loss.name().into()).or_default() += packets;
        if let Some(queue) = queue {
            *found.queues.entry(queue).or_default().entry(row.loss.name().into()).or_default() += packets;
        }
    }
    found.drops.retain(|_, n| *n > 0);
    found
}

/// Whether packets of a device are counted by the ledger: those of an interface on top of another one are its lower
/// device's already.
pub fn counts(device: &Device) -> bool {
    device.role != Role::Stacked
}

/// Counters by which IP refuses packets that it has received, and the place that each is.
const REFUSED: [(&str, &str); 13] = [
    ("Ip.InHdrErrors", "header"),
    ("Ip.InAddrErrors", "address"),
    ("Ip.InUnknownProtos", "protocol"),
    ("Ip.InDiscards", "stack"),
    ("IpExt.InNoRoutes", "route"),
    ("IpExt.InTruncatedPkts", "header"),
    ("Ip6.InHdrErrors", "header"),
    ("Ip6.InAddrErrors", "address"),
    ("Ip6.InUnknownProtos", "protocol"),
    ("Ip6.InDiscards", "stack"),
    ("Ip6.InNoRoutes", "route"),
    ("Ip6.InTruncatedPkts", "header"),
    ("TcpExt.IPReversePathFilter", "reverse path"),
];

/// Fragments of IP beyond one for each packet that they became: joined, or without the others.
fn fragments(stack: &BTreeMap<String, u64>, group: &str) -> u64 {
    let of = |counter: &str| stack.get(&format!("{group}.{counter}")).copied().unwrap_or(0);
    of("ReasmReqds").saturating_sub(of("ReasmOKs"))
}

/// Packets that IP received and that no counter saw again: neither delivered, forwarded, refused nor joined from fragments.
/// Those of IPv6 that may be multicast which nobody here has joined (`ip6_mc_input`, net/ipv6/ip6_input.c), and the others:
/// a firewall's verdict (`nf_hook_slow`, net/netfilter/core.c), or such multicast of IPv4.
/// What a packet filter holds or had no room for, `held`, is between the two counters too; on the way out it never arrived.
fn nowhere(stack: &BTreeMap<String, u64>, held: i64, skew: u64) -> (u64, u64) {
    let at = |name: &str| stack.get(name).copied().unwrap_or(0);
    let rest = |group: &str, forwarded: &str| -> i64 {
        let six = |name: &str| name.starts_with("Ip6.");
        let refused =
            REFUSED.iter().filter(|(name, _)| six(name) == (group == "Ip6")).map(|(name, _)| at(name));
        let refused = refused.fold(0, u64::saturating_add);
        let of = |counter: &str| at(&format!("{group}.{counter}"));
        signed(of("InReceives"))
            - signed(of("InDelivers") + of(forwarded) + refused + fragments(stack, group))
    };
    let (rest4, rest6) = (rest("Ip", "ForwDatagrams"), rest("Ip6", "OutForwDatagrams"));
    let unwanted = rest6.clamp(0, signed(at("Ip6.InMcastPkts")));
    let n = rest4 + rest6 - unwanted - held;
    (unwanted.unsigned_abs(), u64::try_from(n).ok().filter(|n| *n > skew).unwrap_or(0))
}

/// The ledger of an interval, from its arrivals and the counters of the stack that moved.
pub fn close(
    arrivals: &[Arrival],
    stack: &BTreeMap<String, u64>,
    before: &Raw,
    after: &Raw,
    filters: u64,
) -> Ledger {
    let at = |name: &str| stack.get(name).copied().unwrap_or(0);
    let both = |name: &str| {
        let (group, counter) = name.split_once('.').unwrap_or((name, ""));
        at(name) + at(&format!("{group}6.{counter}"))
    };
    let mut ledger = Ledger { offered: arrivals.iter().map(|a| a.offered).sum(), ..Ledger::default() };
    for (place, n) in arrivals.iter().flat_map(|a| &a.drops) {
        *ledger.drops.entry(place.clone()).or_default() += n;
    }
    let mut lose = |place: &str, n: u64| *ledger.drops.entry(place.to_owned()).or_default() += n;
    for (counter, place) in REFUSED {
        lose(place, at(counter));
    }
    // Inside InErrors are also those that found the socket full, or memory short, or a wrong checksum.
    let full = both("Udp.RcvbufErrors");
    let memory = both("Udp.MemErrors");
    let checksum = both("Udp.InCsumErrors");
    lose("socket", full);
    lose("socket memory", memory);
    lose("checksum", checksum + at("Tcp.InCsumErrors") + at("Icmp.InCsumErrors"));
    lose("stack", both("Udp.InErrors").saturating_sub(full + memory + checksum));
    lose("no port", both("Udp.NoPorts"));
    lose("filter", filters);
    let fragments = ["Ip", "Ip6"].iter().map(|group| fragments(stack, group)).sum();
    ledger.skew_reading = late(before).saturating_add(late(after));
    let held = waiting_filters(after) - waiting_filters(before) + signed(filters);
    let (unwanted, vanished) = nowhere(stack, held, ledger.skew_reading);
    lose("ignored", unwanted);
    lose("vanished", vanished);
    ledger.drops.retain(|_, n| *n > 0);

    let segments: u64 = ["InNoECTPkts", "InECT1Pkts", "InECT0Pkts", "InCEPkts"]
        .iter()
        .map(|name| at(&format!("IpExt.{name}")) + at(&format!("Ip6.{name}")))
        .sum();
    // InReceives counts what GRO made of segments, and those with a broken header, which the others do not.
    let received = both("Ip.InReceives");
    let merged = segments.saturating_sub(received);
    // A peer on this machine or a NIC with LRO hands over what is merged already: then devices counted fewer than segments,
    // by more than counters of one reading differ by, and only what they have above IP can have been merged here.
    let handed_up = arrivals.iter().map(|a| a.offered.saturating_sub(a.drops.values().sum())).sum::<u64>();
    let merged = match handed_up.saturating_add(ledger.skew_reading) >= segments {
        true => merged,
        // As long as that is more than the skew.
        false => Some(merged.min(handed_up.saturating_sub(received)))
            .filter(|n| *n > ledger.skew_reading)
            .unwrap_or(0),
    };
    let tcp_bad = at("Tcp.InCsumErrors");
    let arp = before.arp.zip(after.arp).map_or(0, |(then, now)| moved64(then, now));
    for (end, n) in [
        ("arp", arp),
        ("fragments", fragments),
        ("udp", both("Udp.InDatagrams")),
        ("tcp", at("Tcp.InSegs").saturating_sub(tcp_bad)),
        ("icmp", at("Icmp.InMsgs") + at("Icmp6.InMsgs")),
        ("forwarded", both_forwarded(stack)),
        ("merged", merged),
    ] {
        if n > 0 {
            ledger.delivered.insert(end.to_owned(), n);
        }
    }
    ledger.in_flight = waiting(after).saturating_sub(waiting(before));
    ledger.skew = ledger.skew_reading.saturating_add(unread(before).max(unread(after)));
    let sum = ledger.delivered() + ledger.lost();
    ledger.unaccounted = signed(ledger.offered) - signed(sum) - ledger.in_flight;
    ledger
}

/// Puts what gates of guards have shed into the ledger as `shed`, where the driver does not tell what XDP drops. At most what is
/// unaccounted: guards answer a moment after the counters are read.
pub fn shed(s: &mut Snapshot) {
    for interface in &mut s.interfaces {
        let tells = truth::rows(&interface.kind).iter().any(|row| row.loss == truth::Loss::Xdp);
        let shed = guard::shed_on(&s.guards, &interface.name);
        let n = shed.min(u64::try_from(s.ledger.unaccounted).unwrap_or(0));
        if tells || n == 0 {
            continue;
        }
        s.ledger.unaccounted -= signed(n);
        *s.ledger.drops.entry(SHED.into()).or_default() += n;
        lose_at_xdp(&mut interface.stages, n);
        lose_at_xdp(&mut s.path, n);
    }
}

/// The ledger's word for what a gate has shed and no counter of the driver has.
pub const SHED: &str = "shed";

/// Adds to a path, or to that of an interface, what was shed in XDP.
fn lose_at_xdp(stages: &mut Vec<Stage>, n: u64) {
    let Some(at) = stages.iter().position(|stage| stage.place >= Place::Xdp) else { return };
    if stages[at].place > Place::Xdp {
        let came = at.checked_sub(1).and_then(|before| stages[before].out);
        stages.insert(at, Stage { place: Place::Xdp, r#in: came, out: came, ..Stage::default() });
    }
    let less = |out: &mut Option<u64>| *out = out.map(|out| out.saturating_sub(n));
    *stages[at].drops.entry(SHED.into()).or_default() += n;
    less(&mut stages[at].out);
    // IP is the next stage that tells what comes to it; the backlog does not.
    if let Some(stack) = stages.iter_mut().find(|stage| stage.place == Place::Stack) {
        less(&mut stack.r#in);
    }
}

/// Bytes that the smallest datagram takes of a receive buffer: `SKB_TRUESIZE` of a small packet, net/core/skbuff.c.
const TRUESIZE_MIN: u64 = 512;

/// Datagrams of UDP that a reading has at most in no counter: those in queues, of which the kernel tells bytes, and those
/// that left a queue after the counters were read and before the queue was.
fn unread(raw: &Raw) -> u64 {
    (waiting_bytes(raw) / TRUESIZE_MIN).saturating_add(raw.reads)
}

fn both_forwarded(stack: &BTreeMap<String, u64>) -> u64 {
    ["Ip.ForwDatagrams", "Ip6.OutForwDatagrams"].iter().filter_map(|name| stack.get(*name)).sum()
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Packets that a driver hands up before it counts them: those of one poll (`NAPI_POLL_WEIGHT`, include/linux/netdevice.h).
const POLL: u64 = 64;

/// Packets that arrived, or left a packet filter, while the counters were read one after the other: some counters have them and
/// some have not. Where some did arrive, a poll of each queue may have been under way besides.
fn late(raw: &Raw) -> u64 {
    let one = |d: &Device| match d.late {
        0 => 0,
        n if d.napi => n.saturating_add(POLL * d.queues.len().max(1) as u64),
        n => n,
    };
    raw.devices.iter().filter(|d| counts(d)).map(one).fold(raw.verdicts, u64::saturating_add)
}

/// Packets in queues that count packets: backlogs, and those to packet filters, where IP has received them and nothing has
/// delivered them yet.
fn waiting(raw: &Raw) -> i64 {
    let backlogs = raw.softnet.iter().filter_map(|s| s.backlog).map(u64::from);
    signed(backlogs.fold(0, u64::saturating_add)) + waiting_filters(raw)
}

fn waiting_filters(raw: &Raw) -> i64 {
    // The kernel counts them in 32 bits.
    signed(raw.filters.iter().map(|f| f.waiting.min(u32::MAX.into())).fold(0, u64::saturating_add))
}

fn waiting_bytes(raw: &Raw) -> u64 {
    let udp = raw.sockets.iter().filter(|s| s.kind == kern::raw::Kind::Udp);
    udp.map(|s| s.waiting).fold(0, u64::saturating_add)
}
