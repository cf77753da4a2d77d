//! The ledger: every packet of one network namespace, from its devices to its end. Each number is a counter of the
//! kernel, or a difference of two that count the same packets; what does not fit stays in `unaccounted`.
//!
//! Packets before GRO and segments after it are told apart by IP's own two counters: `In*Pkts` by ECN field counts
//! segments, `InReceives` what GRO made of them (`ip_rcv_core` in net/ipv4/ip_input.c).

use crate::guard;
use crate::model::{Ledger, Place, SHED, Snapshot, Stage};
use crate::truth::{self, Loss, Told};
use kern::discover::Role;
use kern::raw::{Device, Raw};
use std::collections::{BTreeMap, BTreeSet};

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
    /// Losses by place: ring, xdp, memory, broken, oversize, ignored, backlog.
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
        // A veth without NAPI has no ring that could be full.
        let oversize = dropped && row.loss == Loss::Ring && after.kind == "veth" && !after.napi;
        let word = if oversize { OVERSIZE } else { row.loss.name() };
        *found.drops.entry(word.into()).or_default() += packets;
        if let Some(queue) = queue {
            *found.queues.entry(queue).or_default().entry(word.into()).or_default() += packets;
        }
    }
    found.drops.retain(|_, n| *n > 0);
    found
}

/// The ledger's word for frames that a device without a ring refuses: longer than its MTU.
pub const OVERSIZE: &str = "oversize";

/// Packets that devices received and neither IP nor ARP did.
pub fn unhandled<'a>(
    arrivals: impl Iterator<Item = &'a Arrival>,
    stack: &BTreeMap<String, u64>,
    arp: u64,
) -> u64 {
    let handed_up = handed_up(arrivals);
    handed_up.saturating_sub(seen_by_ip(stack, handed_up).saturating_add(arp))
}

/// Tells apart what a device without a ring counts as one: frames that are too long, which it has not received, and those of a
/// protocol that nobody here handles, which it has, and which are taken from `unhandled`.
pub fn settle(arrival: &mut Arrival, unhandled: &mut u64) {
    let Some(refused) = arrival.drops.get_mut(OVERSIZE) else { return };
    let received = (*unhandled).min(*refused);
    *unhandled -= received;
    *refused -= received;
    arrival.offered -= received;
    *arrival.drops.entry(Loss::Ignored.name().into()).or_default() += received;
    arrival.drops.retain(|_, n| *n > 0);
}

/// Packets that reached IP or another protocol, as the devices count them.
fn handed_up<'a>(arrivals: impl Iterator<Item = &'a Arrival>) -> u64 {
    let (offered, lost) = arrivals.fold((0, 0), |(offered, lost): (u64, u64), a| {
        (offered + a.offered, lost + a.drops.values().sum::<u64>())
    });
    offered.saturating_sub(lost)
}

/// Segments that IP received, before GRO merged them.
fn segments(stack: &BTreeMap<String, u64>) -> u64 {
    let names = ["InNoECTPkts", "InECT1Pkts", "InECT0Pkts", "InCEPkts"];
    let at = |name: &str| stack.get(name).copied().unwrap_or(0);
    names.iter().map(|name| at(&format!("IpExt.{name}")) + at(&format!("Ip6.{name}"))).sum()
}

/// Packets that IP received, as devices count them: segments, unless they were merged before a device counted them, and what
/// IP refused before it counted segments.
fn seen_by_ip(stack: &BTreeMap<String, u64>, handed_up: u64) -> u64 {
    let received = ["Ip.InReceives", "Ip6.InReceives"].iter().filter_map(|name| stack.get(*name)).sum();
    Some(segments(stack)).filter(|n| *n <= handed_up).map_or(received, |n| n.max(received))
}

/// What of the counters of a device on top of another one its lower device does not tell.
pub fn other_host(counters: &BTreeMap<String, u64>) -> Arrival {
    let n = counters.get("rx_otherhost_dropped").copied().filter(|n| *n > 0);
    let drops = n.map(|n| (Loss::Ignored.name().to_owned(), n)).into_iter().collect();
    Arrival { drops, ..Arrival::default() }
}

/// Packets of ARP between two readings.
pub fn arp(before: &Raw, after: &Raw) -> u64 {
    before.arp.zip(after.arp).map_or(0, |(then, now)| moved64(then, now))
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

/// Fragments of the interval by what became of them.
#[derive(Clone, Copy, Debug, Default)]
struct Fragments {
    /// Beyond one for each packet that they became.
    joined: u64,
    /// One at least of each packet that was given up.
    lost: u64,
    /// One at least of each packet that waits for others: more than before, or fewer.
    waiting: i64,
}

/// `frags` is the group's name in sockstat.
fn joined(stack: &BTreeMap<String, u64>, before: &Raw, after: &Raw, group: &str, frags: &str) -> Fragments {
    let all = signed(fragments(stack, group));
    let inuse = |raw: &Raw| raw.stack.get(&format!("sockstat.{frags}.inuse")).copied().unwrap_or(0);
    // The kernel counts them in 32 bits.
    let small = |raw: &Raw| signed(inuse(raw).min(u32::MAX.into()));
    let waiting = (small(after) - small(before)).min(all);
    let ended = (all - waiting).unsigned_abs();
    let lost = stack.get(&format!("{group}.ReasmFails")).copied().unwrap_or(0).min(ended);
    Fragments { joined: ended - lost, lost, waiting }
}

/// Packets that IP was to send on, by what became of them.
#[derive(Clone, Copy, Debug, Default)]
struct Routed {
    /// All of them.
    all: u64,
    /// Longer than the next link takes.
    too_big: u64,
    /// Neither too big nor sent: a firewall's verdict, or held by a packet filter.
    lost: u64,
}

impl Routed {
    fn sent(&self) -> u64 {
        self.all.saturating_sub(self.too_big).saturating_sub(self.lost)
    }
}

/// Forwarded packets are counted before the firewall and, where `OutTransmits` exists (6.6), before the MTU is looked at:
/// `ip_forward` in net/ipv4/ip_forward.c, `ip6_forward` in net/ipv6/ip6_output.c. `OutTransmits` counts what this host sends
/// by itself too, and each fragment: at least so many of the forwarded ones as it lacks were not sent.
fn routed(stack: &BTreeMap<String, u64>, after: &Raw, group: &str) -> Routed {
    let at = |counter: &str| stack.get(&format!("{group}.{counter}")).copied().unwrap_or(0);
    let told = after.stack.contains_key(&format!("{group}.OutTransmits"));
    let counted = at(if group == "Ip6" { "OutForwDatagrams" } else { "ForwDatagrams" });
    let (all, too_big) = match (group, told) {
        ("Ip6", true) => (counted, at("InTooBigErrors").min(counted)),
        ("Ip6", false) => (counted + at("InTooBigErrors"), at("InTooBigErrors")),
        (_, _) => (counted, at("FragFails").min(counted)),
    };
    let more = at("FragCreates").saturating_sub(at("FragOKs"));
    let sent = at("OutTransmits").saturating_sub(more);
    let lost = if told { (all - too_big).saturating_sub(sent) } else { 0 };
    Routed { all, too_big, lost }
}

/// What IP received and no counter saw again.
#[derive(Clone, Copy, Debug, Default)]
struct Nowhere {
    /// Multicast of IPv6 that nobody here has joined.
    unwanted: u64,
    /// What the table of connections refused.
    conntrack: u64,
    /// A firewall's verdict.
    vanished: u64,
}

/// Packets that IP received and that no counter saw again: neither delivered, forwarded, refused nor joined from fragments.
/// Those of IPv6 that may be multicast which nobody here has joined (`ip6_mc_input`, net/ipv6/ip6_input.c), and the others:
/// a firewall's verdict (`nf_hook_slow`, net/netfilter/core.c), or such multicast of IPv4.
/// What a packet filter holds or had no room for, `held`, is between the two counters too; on the way out it never arrived.
fn nowhere(stack: &BTreeMap<String, u64>, routed: [Routed; 2], held: i64, skew: u64) -> Nowhere {
    let at = |name: &str| stack.get(name).copied().unwrap_or(0);
    let rest = |group: &str, routed: Routed| -> i64 {
        let six = |name: &str| name.starts_with("Ip6.");
        let refused =
            REFUSED.iter().filter(|(name, _)| six(name) == (group == "Ip6")).map(|(name, _)| at(name));
        let refused = refused.fold(0, u64::saturating_add);
        let of = |counter: &str| at(&format!("{group}.{counter}"));
        signed(of("InReceives")) - signed(of("InDelivers") + routed.all + refused + fragments(stack, group))
    };
    let [four, six] = routed;
    let (rest4, rest6) = (rest("Ip", four), rest("Ip6", six));
    let unwanted = rest6.clamp(0, signed(at("Ip6.InMcastPkts")));
    let n = rest4 + rest6 + signed(four.lost + six.lost) - unwanted - held;
    let n = u64::try_from(n).unwrap_or(0);
    // It refuses what this host sends too, which has not arrived.
    let conntrack = at("nf_conntrack.drop").min(n);
    let vanished = Some(n - conntrack).filter(|n| *n > skew).unwrap_or(0);
    Nowhere { unwanted: unwanted.unsigned_abs(), conntrack, vanished }
}

/// What devices sent and IP did not, if IP tells: frames that a bridge or the like has passed on are among them.
pub fn sent_below_ip(sent: u64, stack: &BTreeMap<String, u64>, after: &Raw) -> u64 {
    let names = ["Ip.OutTransmits", "Ip6.OutTransmits"];
    let by_ip: u64 = names.iter().filter_map(|name| stack.get(*name)).sum();
    let told = names.iter().any(|name| after.stack.contains_key(*name));
    if told { sent.saturating_sub(by_ip) } else { sent }
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
    let pieces =
        [("Ip", "FRAG"), ("Ip6", "FRAG6")].map(|(ip, frags)| joined(stack, before, after, ip, frags));
    lose("reassembly", pieces.iter().map(|p| p.lost).sum());
    let routed = ["Ip", "Ip6"].map(|group| routed(stack, after, group));
    lose("too big", routed.iter().map(|r| r.too_big).sum());
    ledger.skew_reading = late(before).saturating_add(late(after));
    let held = waiting_filters(after) - waiting_filters(before) + signed(filters);
    let Nowhere { unwanted, conntrack, vanished } = nowhere(stack, routed, held, ledger.skew_reading);
    lose("ignored", unwanted);
    lose("conntrack", conntrack);
    lose("vanished", vanished);
    ledger.vanished_forward = routed.iter().map(|r| r.lost).sum::<u64>().min(vanished);
    ledger.drops.retain(|_, n| *n > 0);

    let segments = segments(stack);
    // InReceives counts what GRO made of segments, and those with a broken header, which the others do not.
    let received = both("Ip.InReceives");
    let merged = segments.saturating_sub(received);
    // A peer on this machine or a NIC with LRO hands over what is merged already: then devices counted fewer than segments,
    // by more than counters of one reading differ by, and only what they have above IP can have been merged here.
    let handed_up = handed_up(arrivals.iter());
    let merged = match handed_up.saturating_add(ledger.skew_reading) >= segments {
        true => merged,
        // As long as that is more than the skew.
        false => Some(merged.min(handed_up.saturating_sub(received)))
            .filter(|n| *n > ledger.skew_reading)
            .unwrap_or(0),
    };
    let tcp_bad = at("Tcp.InCsumErrors");
    let arp = arp(before, after);
    ledger.skew = ledger.skew_reading.saturating_add(unread(before).max(unread(after)));
    let known = both("Udp.InDatagrams")
        + both("Udp.InErrors")
        + both("Udp.NoPorts")
        + at("Tcp.InSegs")
        + at("Icmp.InMsgs")
        + at("Icmp6.InMsgs");
    // What waits in sockets of UDP is delivered by IP and not yet counted above it.
    let other = both("Ip.InDelivers").saturating_sub(known);
    for (end, n) in [
        ("arp", arp),
        ("fragments", pieces.iter().map(|p| p.joined).sum()),
        ("udp", both("Udp.InDatagrams")),
        ("tcp", at("Tcp.InSegs").saturating_sub(tcp_bad)),
        ("icmp", at("Icmp.InMsgs") + at("Icmp6.InMsgs")),
        ("other protocols", Some(other).filter(|n| *n > ledger.skew).unwrap_or(0)),
        ("forwarded", routed.iter().map(Routed::sent).sum()),
        ("merged", merged),
    ] {
        if n > 0 {
            ledger.delivered.insert(end.to_owned(), n);
        }
    }
    let in_pieces: i64 = pieces.iter().map(|p| p.waiting).sum();
    ledger.in_flight = waiting(after).saturating_sub(waiting(before)) + in_pieces;
    let sum = ledger.delivered() + ledger.lost() + ledger.shed();
    ledger.unaccounted = signed(ledger.offered) - signed(sum) - ledger.in_flight;
    // Headers that are broken are not in all of IP's counters of what it received.
    let broken = both("Ip.InHdrErrors") + at("IpExt.InTruncatedPkts") + at("Ip6.InTruncatedPkts");
    let below = unhandled(arrivals.iter(), stack, arp + broken);
    ledger.below_ip = below.min(u64::try_from(ledger.unaccounted).unwrap_or(0));
    ledger
}

/// Puts what gates of guards have shed into the ledger as `shed`. Where the driver tells what XDP drops, that is all of it on the
/// interfaces `gates`, whose XDP program is a guard's; elsewhere at most what is unaccounted, since guards answer a moment after the
/// counters are read.
pub fn shed(s: &mut Snapshot, gates: &BTreeSet<&str>) {
    for interface in &mut s.interfaces {
        if truth::rows(&interface.kind).iter().any(|row| row.loss == truth::Loss::Xdp) {
            if gates.contains(interface.name.as_str()) {
                let n = interface.stages.iter().filter_map(|stage| stage.drops.get(XDP)).sum();
                let maps = [&mut s.ledger.drops].into_iter();
                let stages = interface.stages.iter_mut().chain(&mut s.path);
                maps.chain(stages.map(|stage| &mut stage.drops)).for_each(|drops| rename(drops, n));
                for queue in &mut interface.queues {
                    rename(&mut queue.drops, u64::MAX);
                }
            }
            continue;
        }
        let shed = guard::shed_on(&s.guards, &interface.name);
        let n = shed.min(u64::try_from(s.ledger.unaccounted).unwrap_or(0));
        if n == 0 {
            continue;
        }
        s.ledger.unaccounted -= signed(n);
        *s.ledger.drops.entry(SHED.into()).or_default() += n;
        lose_at_xdp(&mut interface.stages, n);
        lose_at_xdp(&mut s.path, n);
    }
}

/// The driver's word for what XDP programs drop.
const XDP: &str = "xdp";

/// Calls `n` frames that XDP dropped shed.
fn rename(drops: &mut BTreeMap<String, u64>, n: u64) {
    let Some(told) = drops.get_mut(XDP).filter(|_| n > 0) else { return };
    let n = n.min(*told);
    *told -= n;
    if *told == 0 {
        drops.remove(XDP);
    }
    *drops.entry(SHED.into()).or_default() += n;
}

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
