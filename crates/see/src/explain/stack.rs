//! Losses in IP: headers, addresses, routes, checksums, fragments, firewalls, neighbours.

use super::{Case, Cause, Rule};
use crate::model::Snapshot;
use kern::shell::quoted;

pub(super) static RULES: [Rule; 12] = [
    Rule {
        name: "checksum",
        of: &["checksum"],
        source: "WU-07; Udp.InCsumErrors, __skb_checksum_complete, net/core/skbuff.c",
        test: checksum,
    },
    Rule {
        name: "header",
        of: &["header"],
        source: "WU-07; Ip.InHdrErrors, ip_rcv_core, net/ipv4/ip_input.c",
        test: header,
    },
    Rule {
        name: "route",
        of: &["route"],
        source: "WU-07; IpExt.InNoRoutes, ip_error, net/ipv4/route.c",
        test: route,
    },
    Rule {
        name: "address",
        of: &["address"],
        source: "WU-07; Ip.InAddrErrors, ip_error, net/ipv4/route.c",
        test: address,
    },
    Rule {
        name: "reverse-path",
        of: &["reverse path"],
        source: "WU-07; TcpExt.IPReversePathFilter, fib_validate_source, net/ipv4/fib_frontend.c",
        test: reverse_path,
    },
    Rule {
        name: "no-port",
        of: &["no port"],
        source: "WU-12; Udp.NoPorts, __udp4_lib_rcv, net/ipv4/udp.c",
        test: no_port,
    },
    Rule {
        name: "refused",
        of: &["stack", "protocol"],
        source: "WU-07; Ip.InDiscards, Ip.InUnknownProtos, Udp.InErrors",
        test: refused,
    },
    Rule {
        name: "neighbour",
        of: &["neighbour"],
        source: "WU-30; NEIGH_FAILED, __neigh_event_send, net/core/neighbour.c",
        test: neighbour,
    },
    Rule {
        name: "too-big",
        of: &["too big"],
        source: "WU-30; Ip.FragFails, Ip6.InTooBigErrors, ip_forward, net/ipv4/ip_forward.c",
        test: too_big,
    },
    Rule {
        name: "reassembly",
        of: &["reassembly"],
        source: "WU-30; Ip.ReasmFails, ip_expire, net/ipv4/ip_fragment.c",
        test: reassembly,
    },
    Rule {
        name: "conntrack",
        of: &["conntrack"],
        source: "WU-30; __nf_conntrack_alloc, net/netfilter/nf_conntrack_core.c",
        test: conntrack,
    },
    Rule {
        name: "firewall",
        of: &["vanished"],
        source: "WU-30; nf_hook_slow, net/netfilter/core.c",
        test: firewall,
    },
];

/// Fewer packets per second that vanish may be multicast that nobody here has joined.
const VANISHED_MIN: f64 = 50.0;

fn at(s: &Snapshot, name: &str) -> u64 {
    s.stack.get(name).copied().unwrap_or(0)
}

/// Packets that vanished in IP, if they are too many for multicast that nobody here has joined.
pub(super) fn vanished(s: &Snapshot) -> u64 {
    let n = s.ledger.drops.get("vanished").copied().unwrap_or(0);
    let received = at(s, "Ip.InReceives") + at(s, "Ip6.InReceives");
    let enough = n as f64 >= VANISHED_MIN * s.interval_s && n > received / 100;
    if enough { n } else { 0 }
}

/// Packets that were forwarded and never sent, while the address of a neighbour is not known.
pub(super) fn unsent(s: &Snapshot) -> u64 {
    if s.unresolved.is_empty() {
        return 0;
    }
    let forwarded = s.ledger.delivered.get("forwarded").copied().unwrap_or(0);
    let full: u64 = s
        .interfaces
        .iter()
        .flat_map(|i| &i.stages)
        .filter(|t| t.place == crate::model::Place::Output)
        .map(crate::model::Stage::lost)
        .sum();
    forwarded.saturating_sub(s.ledger.sent + full)
}

fn row(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

fn counters(case: &Case<'_>, names: &[&str]) -> Vec<(String, String)> {
    let moved = names.iter().filter(|n| at(case.s, n) > 0);
    moved.map(|n| row(n, case.per_second(at(case.s, n)))).collect()
}

fn cause(title: &str, evidence: Vec<(String, String)>, change: Vec<String>, effect: &str) -> Option<Cause> {
    Some(Cause { key: String::new(), title: title.into(), evidence, change, effect: effect.into() })
}

fn checksum(case: &Case<'_>) -> Option<Cause> {
    let names = ["Udp.InCsumErrors", "Udp6.InCsumErrors", "Tcp.InCsumErrors", "Icmp.InCsumErrors"];
    let interface = case.busiest_interface();
    cause(
        "Packets arrive with wrong checksums",
        counters(case, &names),
        vec![
            "# the sender or something on the way breaks them: capture there and here, and compare".into(),
            format!(
                "sudo ethtool -K {} rx off     # if the NIC of {interface} is the suspect",
                quoted(&interface)
            ),
        ],
        "with the broken part replaced these packets are delivered; no setting of this host heals them",
    )
}

fn header(case: &Case<'_>) -> Option<Cause> {
    let names = ["Ip.InHdrErrors", "IpExt.InTruncatedPkts", "IpExt.InCsumErrors", "Ip6.InHdrErrors"];
    cause(
        "Packets arrive with headers that IP refuses, or with no hops left",
        counters(case, &names),
        vec!["# a routing loop (TTL) or a broken sender: capture with tcpdump -v".into()],
        "without the loop or the sender these packets stop",
    )
}

fn route(case: &Case<'_>) -> Option<Cause> {
    cause(
        "There is no route to where packets are to be sent on",
        counters(case, &["IpExt.InNoRoutes", "Ip6.InNoRoutes", "Ip.OutNoRoutes"]),
        vec!["ip route get DESTINATION".into(), "sudo ip route add PREFIX via GATEWAY".into()],
        "with the route these packets are forwarded",
    )
}

fn address(case: &Case<'_>) -> Option<Cause> {
    let forwards = case.limit("net.ipv4.ip_forward", 0) == Some(1);
    let change = if forwards { "ip route get DESTINATION" } else { "sudo sysctl -w net.ipv4.ip_forward=1" };
    cause(
        "Packets come for addresses that are not this host's, and it does not forward them",
        counters(case, &["Ip.InAddrErrors", "Ip6.InAddrErrors"]),
        vec![format!("{change}     # if this host is to be a router; else find out who sends them here")],
        "as a router this host forwards them",
    )
}

/// Interfaces that are named as candidates.
const CANDIDATES: usize = 8;

/// Key of the interface's own setting. A point in its name is a slash there (sysctl(8)).
fn rp_filter(interface: &str) -> String {
    format!("net.ipv4.conf.{}.rp_filter", interface.replace('.', "/"))
}

fn reverse_path(case: &Case<'_>) -> Option<Cause> {
    // No counter tells by which interface they came, and those that are looked at need not be all.
    let mut names: Vec<String> =
        case.s.interfaces.iter().map(|i| rp_filter(&i.name)).take(CANDIDATES).collect();
    if names.is_empty() {
        names.push(rp_filter("IF"));
    }
    let any_way = format!(
        "# else, of the interface that they come by (net.ipv4.conf.all.log_martians=1 logs it), set to 2: {}",
        names.join(", ")
    );
    cause(
        "Packets come through an interface by which this host does not reach their sender: rp_filter drops them",
        counters(case, &["TcpExt.IPReversePathFilter"]),
        vec![
            "ip route get SENDER     # the way back; if it should be this one, add the route".into(),
            any_way,
        ],
        "packets from senders that any route leads to are accepted",
    )
}

fn no_port(case: &Case<'_>) -> Option<Cause> {
    let rate = case.loss.packets as f64 / case.s.interval_s.max(1e-9);
    if rate < VANISHED_MIN || case.loss.packets * 100 < case.s.ledger.offered {
        return None;
    }
    let interface = case.busiest_interface();
    cause(
        "Datagrams come for UDP ports on which no program listens",
        counters(case, &["Udp.NoPorts", "Udp6.NoPorts"]),
        vec![
            "# start the program, or keep them out before they cost CPU time:".into(),
            case.guard(&interface),
        ],
        "a guard bounds the CPU time that they take from programs",
    )
}

fn refused(case: &Case<'_>) -> Option<Cause> {
    let names = ["Ip.InDiscards", "Ip6.InDiscards", "Ip.InUnknownProtos", "Udp.InErrors", "Udp6.InErrors"];
    cause(
        "IP or UDP refuses packets for another reason than a full socket",
        counters(case, &names),
        vec!["# socket filters (SO_ATTACH_FILTER), IPsec policies, or want of memory: see dmesg".into()],
        "depends on which of them it is",
    )
}

fn neighbour(case: &Case<'_>) -> Option<Cause> {
    let first = case.s.unresolved.first()?;
    let list: Vec<String> =
        case.s.unresolved.iter().take(4).map(|n| format!("{} on {}", n.address, n.interface)).collect();
    cause(
        &format!("The next hop {} does not answer: packets for it are dropped", first.address),
        vec![
            row("forwarded, not sent", case.per_second(case.loss.packets)),
            row("no hardware address", list.join(", ")),
        ],
        vec![
            format!("ip neigh show dev {}", quoted(&first.interface)),
            format!("sudo ip neigh replace {} lladdr MAC dev {}", first.address, quoted(&first.interface)),
        ],
        "with a neighbour that answers they are sent",
    )
}

fn too_big(case: &Case<'_>) -> Option<Cause> {
    // A sender that learns the MTU of a path loses a packet or two for it.
    let rate = case.loss.packets as f64 / case.s.interval_s.max(1e-9);
    if rate < VANISHED_MIN || case.loss.packets * 100 < case.s.ledger.offered {
        return None;
    }
    cause(
        "Packets to be sent on are longer than the next link takes, and their senders do not learn it",
        counters(case, &["Ip.FragFails", "Ip6.InTooBigErrors", "Icmp.OutDestUnreachs", "Icmp6.OutPktTooBigs"]),
        vec![
            "ip route get DESTINATION     # which link it is; ip link show tells its MTU".into(),
            "# let ICMP's \"fragmentation needed\" (IPv6: \"packet too big\") reach the senders, or give the link a larger MTU"
                .into(),
        ],
        "senders that learn the MTU of the path send packets that fit",
    )
}

fn reassembly(case: &Case<'_>) -> Option<Cause> {
    let names = ["Ip.ReasmFails", "Ip.ReasmTimeout", "Ip.ReasmReqds", "Ip.ReasmOKs"]
        .map(|n| (n, n.replace("Ip.", "Ip6.")));
    let both = |n: usize| at(case.s, names[n].0) + at(case.s, &names[n].1);
    let all: Vec<&str> = names.iter().flat_map(|(four, six)| [*four, six.as_str()]).collect();
    // Those that did not wait in vain found no room.
    let version =
        if at(case.s, names[0].0) >= at(case.s, &names[0].1) { "ipv4.ipfrag" } else { "ipv6.ip6frag" };
    let room = format!("net.{version}_high_thresh");
    let (title, change) = match case.limit(&room, 0) {
        Some(limit) if both(1) * 2 < both(0) => (
            "The memory for fragments is used up: datagrams are given up before they are whole",
            format!("sudo sysctl -w {room}={}", limit.saturating_mul(2)),
        ),
        _ => (
            "Fragments of datagrams come whose other fragments do not: none of them becomes whole",
            "# what loses the others is before this host: a firewall that lets first fragments pass, or a full link"
                .into(),
        ),
    };
    cause(
        title,
        counters(case, &all),
        vec![change, "# datagrams that fit the MTU of the path need no fragments".into()],
        "datagrams of which all fragments come and find room are delivered",
    )
}

/// Bytes of one connection in the table, with its part of the hash.
const CONNECTION: u64 = 512;
/// One part in so many of the memory is given to the table at most.
const TABLE_PART: u64 = 8;

fn conntrack(case: &Case<'_>) -> Option<Cause> {
    let entries = case.s.gauges.get("nf_conntrack.entries").copied();
    let max = case.limit("net.netfilter.nf_conntrack_max", 0);
    let full =
        entries.zip(max).is_none_or(|(entries, max)| entries.saturating_mul(10) >= max.saturating_mul(9));
    let mut evidence =
        counters(case, &["nf_conntrack.drop", "nf_conntrack.early_drop", "nf_conntrack.insert_failed"]);
    evidence.extend(entries.map(|n| row("connections", n.to_string())));
    evidence.extend(max.map(|n| row("net.netfilter.nf_conntrack_max", n.to_string())));
    let most = case.memory_kb().map_or(u64::MAX, |kb| kb.saturating_mul(1024) / CONNECTION / TABLE_PART);
    let want = max.map(|max| max.saturating_mul(2).min(most)).filter(|want| Some(*want) > max);
    let larger = want.map_or(
        "# a larger net.netfilter.nf_conntrack_max needs more memory than there is for it".into(),
        |want| format!("sudo sysctl -w net.netfilter.nf_conntrack_max={want}"),
    );
    let fewer = "# or fewer connections: shorter timeouts (net.netfilter.nf_conntrack_*_timeout), or notrack rules for some";
    let (title, change) = if full {
        (
            "The table of connections (conntrack) is full: packets of new ones are dropped",
            vec![larger, fewer.into()],
        )
    } else {
        (
            "The table of connections (conntrack) refuses packets although it has room",
            vec!["# packets that begin one connection at the same time, or want of memory: see dmesg".into()],
        )
    };
    cause(title, evidence, change, "packets of new connections are let in")
}

fn firewall(case: &Case<'_>) -> Option<Cause> {
    let forward = case.s.ledger.vanished_forward;
    if forward * 2 > case.loss.packets {
        return cause(
            "Packets to be sent on vanish between IP's routing and its output: a firewall drops them",
            vec![
                row(
                    "to be sent on",
                    case.per_second(at(case.s, "Ip.ForwDatagrams") + at(case.s, "Ip6.OutForwDatagrams")),
                ),
                row(
                    "sent by IP",
                    case.per_second(at(case.s, "Ip.OutTransmits") + at(case.s, "Ip6.OutTransmits")),
                ),
                row("in no counter", case.per_second(case.loss.packets)),
                row("not seen", "which rule: only rules with a counter tell"),
            ],
            vec![
                "sudo nft list ruleset     # chains of the hook forward; add the word counter to see which"
                    .into(),
            ],
            "without the rule these packets are sent on",
        );
    }
    cause(
        "Packets vanish between IP's input and their socket: a firewall drops them",
        vec![
            row(
                "received by IP",
                case.per_second(at(case.s, "Ip.InReceives") + at(case.s, "Ip6.InReceives")),
            ),
            row(
                "delivered to sockets",
                case.per_second(at(case.s, "Ip.InDelivers") + at(case.s, "Ip6.InDelivers")),
            ),
            row("in no counter", case.per_second(case.loss.packets)),
            row("not seen", "which rule: only rules with a counter tell"),
        ],
        vec![
            "sudo nft list ruleset     # rules with drop or reject; add the word counter to see which".into(),
        ],
        "without the rule these packets reach their socket; multicast that nobody here has joined ends here too",
    )
}
