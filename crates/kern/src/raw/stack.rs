//! Counters and limits of the network stack, and times of CPUs, from procfs.

use super::CpuTime;
use crate::{
    error::Result,
    proc::{self, FilterQueue, Softnet},
    wire::counters::snmp_lines,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
};

/// Longest file that is read here, bytes; `/proc/stat` of thousands of interrupts is below it.
const FILE_MAX: u64 = 4 * 1024 * 1024;
/// Limits that are read; the last part of each is its name.
const LIMITS: [&str; 18] = [
    "net/core/netdev_max_backlog",
    "net/core/netdev_budget",
    "net/core/netdev_budget_usecs",
    "net/core/rmem_max",
    "net/core/rmem_default",
    "net/core/somaxconn",
    "net/ipv4/tcp_mem",
    "net/ipv4/udp_mem",
    "net/ipv4/tcp_rmem",
    "net/ipv4/ip_forward",
    "net/ipv4/tcp_moderate_rcvbuf",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/ipfrag_high_thresh",
    "net/ipv6/ip6frag_high_thresh",
    "net/netfilter/nf_conntrack_max",
    "net/ipv4/tcp_syncookies",
    "kernel/sched_autogroup_enabled",
    "vm/min_free_kbytes",
];

pub(super) fn read(path: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A file of the caller's namespace below `/proc/net`; empty where the kernel has none.
fn of_namespace(file: &str) -> String {
    read(&format!("/proc/thread-self/net/{file}")).unwrap_or_default()
}

/// Counters of IPv4, IPv6, TCP, UDP and ICMP, and what sockets and the machine have of memory. Here and below `bad` counts lines and numbers that are none.
pub(super) fn counters(bad: &mut u64) -> Result<BTreeMap<String, u64>> {
    let snmp = "/proc/thread-self/net/snmp";
    let mut all = snmp_lines(&read(snmp).map_err(|e| crate::error::Error::io(snmp, e))?, bad);
    // Kernels without IPv6 have no snmp6.
    all.extend(snmp_lines(&of_namespace("netstat"), bad));
    all.extend(parse_snmp6(&of_namespace("snmp6"), bad));
    all.extend(parse_sockstat(&of_namespace("sockstat"), bad));
    all.extend(parse_sockstat(&of_namespace("sockstat6"), bad));
    all.extend(parse_conntrack(&of_namespace("stat/nf_conntrack"), bad));
    all.extend(memory(&read("/proc/meminfo").unwrap_or_default()));
    Ok(all)
}

/// Datagrams of UDP that programs have read, which `recv` counts (`udp_recvmsg` in net/ipv4/udp.c), of the counters in `all`.
pub(super) fn datagrams_of(all: &BTreeMap<String, u64>) -> u64 {
    ["Udp.InDatagrams", "Udp6.InDatagrams"].iter().filter_map(|name| all.get(*name)).sum()
}

/// The same, read now.
pub(super) fn datagrams(bad: &mut u64) -> Result<u64> {
    let snmp = "/proc/thread-self/net/snmp";
    let mut all = snmp_lines(&read(snmp).map_err(|e| crate::error::Error::io(snmp, e))?, bad);
    all.extend(parse_snmp6(&of_namespace("snmp6"), bad));
    Ok(datagrams_of(&all))
}

/// Packets received, by interface.
pub(super) fn received(bad: &mut u64) -> BTreeMap<String, u64> {
    parse_dev(&of_namespace("dev"), bad)
}

pub(super) fn parse_dev(text: &str, bad: &mut u64) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        // Bytes come first.
        Some((name.trim().to_owned(), rest.split_ascii_whitespace().nth(1)?.parse().ok()?))
    };
    // Two lines of names.
    let rest = text.splitn(3, '\n').nth(2).unwrap_or_default();
    each(rest, bad, line).into_iter().collect()
}

/// What `parse` makes of each line that is not empty.
fn each<T>(text: &str, bad: &mut u64, mut parse: impl FnMut(&str) -> Option<T>) -> Vec<T> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut one = |line| {
        let parsed = parse(line);
        *bad += u64::from(parsed.is_none());
        parsed
    };
    lines.filter_map(&mut one).collect()
}

/// Receive counters per CPU.
pub(super) fn softnet(bad: &mut u64) -> Vec<Softnet> {
    parse_softnet(&of_namespace("softnet_stat"), bad)
}

pub(super) fn parse_softnet(text: &str, bad: &mut u64) -> Vec<Softnet> {
    let mut rows = 0..;
    each(text, bad, |line| proc::parse_softnet(rows.next()?, line))
}

/// Queues to packet filters; none if the kernel has no NFQUEUE.
pub(super) fn filters(bad: &mut u64) -> Vec<FilterQueue> {
    each(&of_namespace("netfilter/nfnetlink_queue"), bad, proc::parse_filter)
}

/// `Ip6InReceives 12`: the group ends behind the first 6.
pub(super) fn parse_snmp6(text: &str, bad: &mut u64) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, number) = line.split_once(char::is_whitespace)?;
        let (group, counter) = name.split_once('6')?;
        Some((format!("{group}6.{counter}"), number.trim().parse().ok()?))
    };
    each(text, bad, line).into_iter().collect()
}

/// `TCP: inuse 1 orphan 0 tw 0 alloc 7 mem 67` as `sockstat.TCP.mem` and so on; `mem` in pages.
pub(super) fn parse_sockstat(text: &str, bad: &mut u64) -> BTreeMap<String, u64> {
    let mut wrong = 0;
    let line = |line: &str| {
        let (group, rest) = line.split_once(':')?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let one = |pair: &[&str]| match pair {
            [name, number] => Some((format!("sockstat.{group}.{name}"), number.parse().ok()?)),
            _ => None,
        };
        let all: Vec<Option<(String, u64)>> = words.chunks(2).map(one).collect();
        wrong += all.iter().filter(|pair| pair.is_none()).count() as u64;
        Some(all)
    };
    let all = each(text, bad, line).into_iter().flatten().flatten().collect();
    *bad += wrong;
    all
}

/// Columns of the table of connections that are kept, as `nf_conntrack.drop` and so on.
const CONNTRACK: [&str; 3] = ["drop", "insert_failed", "early_drop"];

/// A line of names, and one of hexadecimal numbers for each CPU: counters are added up, and `entries` is that of the namespace
/// in each line (`ct_cpu_seq_show`, net/netfilter/nf_conntrack_standalone.c).
pub(super) fn parse_conntrack(text: &str, bad: &mut u64) -> BTreeMap<String, u64> {
    let (head, rest) = text.split_once('\n').unwrap_or_default();
    let names: Vec<&str> = head.split_ascii_whitespace().collect();
    let line = |line: &str| {
        let numbers: Option<Vec<u64>> =
            line.split_ascii_whitespace().map(|n| u64::from_str_radix(n, 16).ok()).collect();
        numbers.filter(|n| n.len() == names.len())
    };
    let mut all = BTreeMap::new();
    for numbers in each(rest, bad, line) {
        for (name, n) in names.iter().zip(numbers) {
            let sum: &mut u64 = match *name {
                "entries" => all.entry("nf_conntrack.entries".into()).or_default(),
                name if CONNTRACK.contains(&name) => all.entry(format!("nf_conntrack.{name}")).or_default(),
                _ => continue,
            };
            *sum = if *name == "entries" { n } else { sum.saturating_add(n) };
        }
    }
    all
}

/// `MemTotal:  16318180 kB` as `meminfo.MemTotal`, kB.
fn memory(text: &str) -> Option<(String, u64)> {
    let rest = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(("meminfo.MemTotal".into(), rest.trim().strip_suffix("kB")?.trim_end().parse().ok()?))
}

/// Limits of the caller's namespace, as far as it has them.
pub(super) fn limits(bad: &mut u64) -> BTreeMap<String, Vec<u64>> {
    let mut one = |path: &&str| {
        let text = read(&format!("/proc/sys/{path}")).ok()?;
        Some((path.replace('/', "."), parse_limit(&text, bad)?))
    };
    LIMITS.iter().filter_map(&mut one).collect()
}

/// The numbers of a limit stand for what they are by their place: all of them, or none.
pub(super) fn parse_limit(text: &str, bad: &mut u64) -> Option<Vec<u64>> {
    let numbers: Option<Vec<u64>> = text.split_ascii_whitespace().map(|n| n.parse().ok()).collect();
    *bad += u64::from(numbers.is_none());
    numbers.filter(|n| !n.is_empty())
}

/// Times of all CPUs that are online.
pub(super) fn cpus(bad: &mut u64) -> Vec<CpuTime> {
    let mut cpus = parse_stat(&read("/proc/stat").unwrap_or_default(), bad);
    let counts = parse_softirqs(&read("/proc/softirqs").unwrap_or_default(), "NET_RX", bad);
    for cpu in &mut cpus {
        cpu.net_rx = counts.get(&cpu.cpu).copied();
    }
    cpus
}

pub(super) fn parse_stat(text: &str, bad: &mut u64) -> Vec<CpuTime> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let cpu = name.strip_prefix("cpu")?.parse().ok()?;
        let ticks: Vec<u64> = rest.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
        // Guest time (fields 8 and 9) is inside user and nice.
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
        Some(CpuTime {
            cpu,
            user: user.wrapping_add(nice),
            nice,
            system,
            idle: idle.wrapping_add(iowait),
            irq,
            softirq,
            steal,
            net_rx: None,
        })
    };
    // The first line is of all CPUs, and other lines count other things.
    let of_one = text.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu "));
    each(&of_one.collect::<Vec<_>>().join("\n"), bad, line)
}

/// The row called `name`, by CPU.
pub(super) fn parse_softirqs(text: &str, name: &str, bad: &mut u64) -> BTreeMap<u32, u64> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let cpus = head.split_ascii_whitespace().map(|c| c.strip_prefix("CPU")?.parse().ok());
    let row = lines.filter_map(|l| l.split_once(':')).find(|(n, _)| n.trim() == name);
    let counts = row.map_or("", |(_, rest)| rest).split_ascii_whitespace().map(|n| n.parse().ok());
    let mut one = |(cpu, count): (Option<u32>, Option<u64>)| {
        let both = cpu.zip(count);
        *bad += u64::from(both.is_none());
        both
    };
    cpus.zip(counts).filter_map(&mut one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_stack() {
        let mut bad = 0;
        let text = "Ip6InReceives \t 12\nUdp6RcvbufErrors 3\nUdpLite6NoPorts 4\nx\nIp6 y\n";
        let six = parse_snmp6(text, &mut bad);
        assert_eq!(six["Ip6.InReceives"], 12);
        assert_eq!(six["Udp6.RcvbufErrors"], 3);
        assert_eq!((six.len(), bad), (3, 2));
        bad = 0;
        let text = "sockets: used 3\nTCP: inuse 1 mem 67\nUDP: inuse x mem 4\nRAW: inuse\nnothing\n";
        let stat = parse_sockstat(text, &mut bad);
        assert_eq!((stat["sockstat.TCP.mem"], stat["sockstat.UDP.mem"]), (67, 4));
        assert!(!stat.contains_key("sockstat.UDP.inuse"));
        assert_eq!(bad, 3);
    }

    #[test]
    fn the_table_of_connections() {
        let mut bad = 0;
        let text = "entries  clashres new insert_failed drop early_drop\n0000000a 1 2 3 00000010 5\n0000000a 1 2 3 00000001 5\n0a 1\nx 1 2 3 4 5\n";
        let all = parse_conntrack(text, &mut bad);
        let want = [("drop", 17), ("early_drop", 10), ("entries", 10), ("insert_failed", 6)];
        assert_eq!(all, want.map(|(name, n)| (format!("nf_conntrack.{name}"), n)).into());
        assert_eq!((bad, parse_conntrack("", &mut bad).len()), (2, 0));
    }

    #[test]
    fn memory_of_the_machine() {
        let text = "MemFree:         1 kB\nMemTotal:       16318180 kB\n";
        assert_eq!(memory(text), Some(("meminfo.MemTotal".into(), 16_318_180)));
        assert_eq!((memory(""), memory("MemTotal: x kB")), (None, None));
    }

    #[test]
    fn limits_are_whole_or_absent() {
        let mut bad = 0;
        assert_eq!(parse_limit("4096\t131072\t6291456\n", &mut bad), Some(vec![4096, 131_072, 6_291_456]));
        assert_eq!((parse_limit("4096\tx\t1\n", &mut bad), bad), (None, 1));
        assert_eq!((parse_limit("\n", &mut bad), bad), (None, 1));
    }

    #[test]
    fn times_of_cpus() {
        let mut bad = 0;
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2 x\ncpux 1\nintr 5\n";
        let want = CpuTime {
            cpu: 0,
            user: 3,
            nice: 2,
            system: 3,
            idle: 9,
            irq: 6,
            softirq: 7,
            steal: 8,
            net_rx: None,
        };
        assert_eq!((parse_stat(text, &mut bad), bad), (vec![want], 2));
        bad = 0;
        let rows = "      CPU0  CPU2 CPU3\n NET_TX: 1 2 3\n NET_RX: 30 x 40\n";
        assert_eq!(parse_softirqs(rows, "NET_RX", &mut bad), BTreeMap::from([(0, 30), (3, 40)]));
        assert_eq!((parse_softirqs("", "NET_RX", &mut bad).len(), bad), (0, 1));
    }

    #[test]
    fn a_row_that_cannot_be_parsed_costs_its_cpu_only() {
        let mut bad = 0;
        let text = "0000000a 00000001 00000002\nzz\n0000000b 00000003 00000004\n";
        let rows = parse_softnet(text, &mut bad);
        assert_eq!(rows.iter().map(|r| (r.cpu, r.dropped)).collect::<Vec<_>>(), [(0, 1), (2, 3)]);
        assert_eq!(bad, 1);
    }

    #[test]
    fn live_files() {
        let mut bad = 0;
        let all = counters(&mut bad).unwrap();
        assert!(all.contains_key("Udp.InDatagrams") && all.contains_key("TcpExt.ListenDrops"));
        assert!(all["meminfo.MemTotal"] > 0);
        assert!(
            limits(&mut bad)["net.core.rmem_max"][0] > 0 && limits(&mut bad)["vm.min_free_kbytes"][0] > 0
        );
        assert!(cpus(&mut bad).iter().all(|c| c.net_rx.is_some()));
        assert!(!cpus(&mut bad).is_empty() && !softnet(&mut bad).is_empty());
        assert!(received(&mut bad).contains_key("lo"));
        let _ = filters(&mut bad);
        assert_eq!(bad, 0, "a live kernel's files are understood whole");
    }
}
