//! Files of procfs and replies of netlink with errors in them: what cannot be parsed is left out and counted, what stands
//! beside it is read as ever, and nothing panics.

use super::{device, sockets, stack, tasks};
use crate::{irq, proc, wire::counters::snmp_lines};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What happens to one line.
#[derive(Clone, Debug)]
enum Edit {
    Cut(usize),
    Delete(usize, usize),
    Insert(usize, &'static str),
    Words(usize),
    Twice,
}

fn edit() -> impl Strategy<Value = Edit> {
    let text = prop::sample::select(vec![
        "x",
        " ",
        "\t",
        ":",
        "99999999999999999999",
        "18446744073709551615",
        "\u{e9}",
        "\0",
        "0x10",
        "1.5",
        ")",
        "(",
    ]);
    prop_oneof![
        any::<usize>().prop_map(Edit::Cut),
        (any::<usize>(), 1..20usize).prop_map(|(at, n)| Edit::Delete(at, n)),
        (any::<usize>(), text).prop_map(|(at, text)| Edit::Insert(at, text)),
        any::<usize>().prop_map(Edit::Words),
        Just(Edit::Twice),
    ]
}

fn apply(line: &str, edit: &Edit) -> String {
    let chars: Vec<char> = line.chars().collect();
    let at = |n: usize| n % (chars.len() + 1);
    let text = |part: &[char]| part.iter().collect::<String>();
    match edit {
        Edit::Cut(n) => text(&chars[..at(*n)]),
        Edit::Delete(n, length) => {
            let from = at(*n);
            text(&chars[..from]) + &text(&chars[(from + length).min(chars.len())..])
        }
        Edit::Insert(n, what) => text(&chars[..at(*n)]) + what + &text(&chars[at(*n)..]),
        Edit::Words(n) => {
            let words: Vec<&str> = line.split_whitespace().collect();
            words[..n % (words.len() + 1)].join(" ")
        }
        Edit::Twice => line.to_owned() + line,
    }
}

/// `text` with one line edited; that line as it was, and as it is.
fn mutated(text: &str, line: usize, edit: &Edit) -> (String, String, String) {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let line = line % lines.len();
    let old = lines[line].clone();
    lines[line] = apply(&old, edit);
    (lines.join("\n") + "\n", old, lines[line].clone())
}

const SNMP: &str = "Ip: Forwarding DefaultTTL InReceives InHdrErrors InDelivers\nIp: 1 64 1000 2 990\n\
    Icmp: InMsgs InErrors\nIcmp: 3 4\nTcp: RtoAlgorithm MaxConn InSegs\nTcp: 1 -1 77\n\
    Udp: InDatagrams NoPorts RcvbufErrors\nUdp: 500 6 7\nTcpExt: ListenDrops TCPRcvQDrop\nTcpExt: 8 9\n";
const SNMP6: &str =
    "Ip6InReceives                   \t12\nUdp6InDatagrams \t13\nIcmp6OutType133 \t14\nIp6InCEPkts\t0\n";
const SOCKSTAT: &str =
    "sockets: used 321\nTCP: inuse 1 orphan 0 tw 2 alloc 7 mem 67\nUDP: inuse 3 mem 4\nRAW: inuse 0\n";
const STAT: &str =
    "cpu  30 2 3 4 5 6 7 8 0 0\ncpu0 10 2 3 4 5 6 7 8 0 0\ncpu13 20 2 3 4 5 6 7 8 0 0\nintr 99 1 2\nctxt 7\n";
const SOFTIRQS: &str = "                    CPU0       CPU13\n          HI:          1          2\n      NET_TX:          3          4\n      NET_RX:         50         60\n";
const SOFTNET: &str = "0000000a 00000001 00000002 0 0 0 0 0 0 0 0 00000003 00000000 0 0\n\
    0000000b 00000004 00000005 0 0 0 0 0 0 0 0 00000006 0000000d 0 0\n\
    0000000c 00000007 00000008 0 0 0 0 0 0 0 0 00000009 00000020 0 0\n";
const FILTERS: &str = "    0  31621   200 2   128     5     7    90000  1\n    7   4711     0 2 65531     0     0       12  1\n";
const DEV: &str = "Inter-|   Receive                                                |  Transmit\n \
    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
    lo: 520881498 4637039    0    0    0     0          0         0 520881498 4637039    0    0    0     0       0          0\n\
    enp0s31f6: 612868119   13140    0    0    0     0          0         0   581099    7179    0    0    0     0       0          0\n";
const UDP: &str = "  12: 0100007F:0035 00000000:0000 07 00000000:00003400 00:00000000 00000000  101        0 4711 2 \
    0000000000000000 99";
const TASK: &str =
    "12 (a) b (c)) T 1 1 1 0 -1 4 0 0 0 0 1 2 0 0 39 19 3 0 4711 0 0 18 0 0 0 0 0 0 0 0 0 0 0 0 17 5 0 0";
const INTERRUPTS: &str = "           CPU0       CPU1\n 24:          1          2  IO-APIC   5-edge      ACPI:Ged\n\
    38:  0  3574 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\nNMI:  0  0   Non-maskable interrupts\n";

fn group(name: &str) -> String {
    name.split('.').next().unwrap_or_default().to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_broken_line_costs_its_own_group_of_counters(line in any::<usize>(), edit in edit()) {
        let whole = snmp_lines(SNMP, &mut 0);
        let (text, old, new) = mutated(SNMP, line, &edit);
        let mut bad = 0;
        let found = snmp_lines(&text, &mut bad);
        let own = old.split(':').next().unwrap_or_default();
        let others = |all: &BTreeMap<String, u64>| -> BTreeMap<String, u64> {
            let theirs = all.iter().filter(|(name, _)| whole.contains_key(*name) && group(name) != own);
            theirs.map(|(name, n)| (name.clone(), *n)).collect()
        };
        prop_assert_eq!(others(&found), others(&whole));
        prop_assert!(found.len() >= whole.len() || bad > 0, "{:?} lost nothing that was counted", new);
    }

    #[test]
    fn lines_with_one_counter_each(line in any::<usize>(), edit in edit()) {
        let (text, _, new) = mutated(SNMP6, line, &edit);
        let mut bad = 0;
        let found = stack::parse_snmp6(&text, &mut bad);
        let rest: String = text.lines().filter(|l| *l != new).map(|l| format!("{l}\n")).collect();
        let mut both = stack::parse_snmp6(&rest, &mut 0);
        both.extend(stack::parse_snmp6(&new, &mut 0));
        prop_assert_eq!(&found, &both);
        prop_assert!(found.len() >= 4 || bad > 0 || new.trim().is_empty(), "{:?}", new);
    }

    #[test]
    fn sockets_in_use(line in any::<usize>(), edit in edit()) {
        let whole = stack::parse_sockstat(SOCKSTAT, &mut 0);
        let (text, old, new) = mutated(SOCKSTAT, line, &edit);
        let mut bad = 0;
        let found = stack::parse_sockstat(&text, &mut bad);
        let own = format!("sockstat.{}.", old.split(':').next().unwrap_or_default());
        for (name, n) in whole.iter().filter(|(name, _)| !name.starts_with(&own)) {
            prop_assert_eq!(found.get(name), Some(n));
        }
        let cut = matches!(edit, Edit::Cut(_) | Edit::Delete(..) | Edit::Words(_));
        prop_assert!(found.len() >= whole.len() || bad > 0 || cut, "{:?}", new);
    }

    #[test]
    fn limits(edit in edit()) {
        let text = apply("4096\t131072\t6291456", &edit);
        let mut bad = 0;
        let found = stack::parse_limit(&text, &mut bad);
        prop_assert!(bad == 0 || found.is_none());
        prop_assert!(found.is_none_or(|n| n.len() == text.split_ascii_whitespace().count()));
    }

    #[test]
    fn times_of_cpus(line in any::<usize>(), edit in edit()) {
        let (text, old, new) = mutated(STAT, line, &edit);
        let mut bad = 0;
        let found = stack::parse_stat(&text, &mut bad);
        for one in stack::parse_stat(STAT, &mut 0) {
            let own = format!("cpu{} ", one.cpu);
            prop_assert!(found.contains(&one) || old.starts_with(&own), "{:?}", one);
        }
        prop_assert!(found.len() >= 2 || bad > 0 || !new.starts_with("cpu") || new.starts_with("cpu "), "{:?}", new);
    }

    #[test]
    fn softirqs(line in any::<usize>(), edit in edit()) {
        let (text, old, _) = mutated(SOFTIRQS, line, &edit);
        let found = stack::parse_softirqs(&text, "NET_RX", &mut 0);
        let whole = BTreeMap::from([(0, 50), (13, 60)]);
        let untouched = old.contains("HI") || old.contains("NET_TX");
        // Another row may have become the one that is looked for.
        prop_assert!(!untouched || found == whole || text.matches("NET_RX").count() != 1);
        prop_assert!(found.len() <= 4);
    }

    #[test]
    fn a_broken_row_costs_its_cpu(line in any::<usize>(), edit in edit()) {
        let (text, old, new) = mutated(SOFTNET, line, &edit);
        let mut bad = 0;
        let found = stack::parse_softnet(&text, &mut bad);
        let whole = stack::parse_softnet(SOFTNET, &mut 0);
        for (one, line) in whole.iter().zip(SOFTNET.lines()) {
            prop_assert!(found.contains(one) || line == old);
        }
        prop_assert!(found.len() == whole.len() || bad == 1 || new.trim().is_empty());
    }

    #[test]
    fn packets_by_interface(line in any::<usize>(), edit in edit()) {
        let whole = stack::parse_dev(DEV, &mut 0);
        prop_assert_eq!(&whole, &[("enp0s31f6".to_owned(), 13_140), ("lo".to_owned(), 4_637_039)].into());
        let (text, old, new) = mutated(DEV, line, &edit);
        let mut bad = 0;
        let found = stack::parse_dev(&text, &mut bad);
        for (name, n) in whole.iter().filter(|(name, _)| !old.contains(&format!("{name}:"))) {
            prop_assert_eq!(found.get(name), Some(n));
        }
        prop_assert!(found.len() == 2 || bad > 0 || new.trim().is_empty(), "{:?}", new);
    }

    #[test]
    fn queues_to_filters(line in any::<usize>(), edit in edit()) {
        let (text, old, _) = mutated(FILTERS, line, &edit);
        let found: Vec<_> = text.lines().filter_map(proc::parse_filter).collect();
        for line in FILTERS.lines().filter(|l| *l != old) {
            prop_assert!(proc::parse_filter(line).is_some_and(|one| found.contains(&one)));
        }
    }

    #[test]
    fn single_lines_are_parsed_or_not(edit in edit()) {
        let _ = proc::parse_udp(&apply(UDP, &edit));
        let _ = tasks::parse_schedstat(&apply("170319 531646 3", &edit));
        let task = tasks::parse_stat(&apply(TASK, &edit));
        prop_assert!(task.is_none_or(|t| t.pid == 0 && t.name.is_empty()));
    }

    #[test]
    fn interrupts(line in any::<usize>(), edit in edit()) {
        let (text, ..) = mutated(INTERRUPTS, line, &edit);
        prop_assert!(irq::parse(&text).len() <= 4);
    }

    #[test]
    fn any_text_at_all(text in "\\PC{0,200}", lines in prop::collection::vec("[a-zA-Z0-9: ().-]{0,40}", 0..8)) {
        for text in [text, lines.join("\n")] {
            let mut bad = 0;
            let _ = snmp_lines(&text, &mut bad);
            let _ = stack::parse_snmp6(&text, &mut bad);
            let _ = stack::parse_sockstat(&text, &mut bad);
            let _ = stack::parse_stat(&text, &mut bad);
            let _ = stack::parse_softirqs(&text, "NET_RX", &mut bad);
            let _ = stack::parse_softnet(&text, &mut bad);
            let _ = stack::parse_dev(&text, &mut bad);
            let _ = stack::parse_limit(&text, &mut bad);
            let _ = (tasks::parse_stat(&text), tasks::parse_schedstat(&text));
            let _ = (proc::parse_udp(&text), proc::parse_filter(&text), irq::parse(&text));
        }
    }

    #[test]
    fn replies_of_any_bytes(reply in prop::collection::vec(any::<u8>(), 0..300)) {
        for protocol in [libc::IPPROTO_UDP, libc::IPPROTO_TCP] {
            let socket = sockets::inet_socket(&reply, protocol as u8);
            prop_assert!(socket.is_some() == (reply.len() >= 72));
        }
        let _ = (sockets::packet(7, &reply), sockets::xdp(7, &reply));
        let _ = (device::qdisc(&reply), device::neighbour(&reply), device::counters(&reply));
    }

    /// Attributes whose lengths may be wrong, behind a header that is right.
    #[test]
    fn replies_with_attributes(
        attributes in prop::collection::vec((0..20u16, 0..80u16, prop::collection::vec(any::<u8>(), 0..60)), 0..6),
    ) {
        let mut reply = vec![2; 72];
        for (kind, length, bytes) in attributes {
            reply.extend(length.to_ne_bytes());
            reply.extend(kind.to_ne_bytes());
            reply.extend(bytes);
        }
        for from in [12, 20, 72] {
            let reply = &reply[72 - from..];
            let _ = sockets::inet_socket(reply, libc::IPPROTO_TCP as u8);
            let _ = (sockets::packet(7, &reply[from..]), sockets::xdp(7, &reply[from..]));
            let _ = (device::qdisc(reply), device::neighbour(reply));
        }
    }
}
