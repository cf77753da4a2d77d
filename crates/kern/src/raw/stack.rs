//! Counters and limits of the network stack, and times of CPUs, from procfs.

use super::CpuTime;
use crate::{error::Result, wire::counters};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
};

/// Longest file that is read here, bytes; `/proc/stat` of thousands of interrupts is below it.
const FILE_MAX: u64 = 4 * 1024 * 1024;
/// Limits that are read; the last part of each is its name.
const LIMITS: [&str; 12] = [
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
];

pub(super) fn read(path: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Counters of IPv4, IPv6, TCP, UDP and ICMP.
pub(super) fn counters() -> Result<BTreeMap<String, u64>> {
    let path = |file: &str| format!("/proc/thread-self/net/{file}");
    let snmp = path("snmp");
    let mut all = counters::parse_snmp(&read(&snmp).map_err(|e| crate::error::Error::io(snmp, e))?);
    // Kernels without IPv6 have no snmp6.
    all.extend(counters::parse_snmp(&read(&path("netstat")).unwrap_or_default()));
    all.extend(parse_snmp6(&read(&path("snmp6")).unwrap_or_default()));
    all.extend(parse_sockstat(&read(&path("sockstat")).unwrap_or_default()));
    Ok(all)
}

/// `Ip6InReceives 12`: the group ends behind the first 6.
fn parse_snmp6(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, number) = line.split_once(char::is_whitespace)?;
        let (group, counter) = name.split_once('6')?;
        Some((format!("{group}6.{counter}"), number.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// `TCP: inuse 1 orphan 0 tw 0 alloc 7 mem 67` as `sockstat.TCP.mem` and so on; `mem` in pages.
fn parse_sockstat(text: &str) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (group, rest) in text.lines().filter_map(|l| l.split_once(':')) {
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        for pair in words.chunks_exact(2) {
            if let Ok(number) = pair[1].parse() {
                all.insert(format!("sockstat.{group}.{}", pair[0]), number);
            }
        }
    }
    all
}

/// Limits of the caller's namespace, as far as it has them.
pub(super) fn limits() -> BTreeMap<String, Vec<u64>> {
    let number = |text: &str| text.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
    let one = |path: &&str| {
        let text = read(&format!("/proc/sys/{path}")).ok()?;
        Some((path.replace('/', "."), number(&text)))
    };
    LIMITS.iter().filter_map(one).collect()
}

/// Times of all CPUs that are online.
pub(super) fn cpus() -> Vec<CpuTime> {
    let mut cpus = parse_stat(&read("/proc/stat").unwrap_or_default());
    let counts = parse_softirqs(&read("/proc/softirqs").unwrap_or_default(), "NET_RX");
    for cpu in &mut cpus {
        cpu.net_rx = counts.get(&cpu.cpu).copied().unwrap_or(0);
    }
    cpus
}

fn parse_stat(text: &str) -> Vec<CpuTime> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let cpu = name.strip_prefix("cpu")?.parse().ok()?;
        let ticks: Vec<u64> = rest.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
        // Guest time (fields 8 and 9) is inside user and nice.
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
        Some(CpuTime {
            cpu,
            user: user + nice,
            nice,
            system,
            idle: idle + iowait,
            irq,
            softirq,
            steal,
            net_rx: 0,
        })
    };
    text.lines().filter_map(line).collect()
}

/// The row called `name`, by CPU.
fn parse_softirqs(text: &str, name: &str) -> BTreeMap<u32, u64> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let cpus = head.split_ascii_whitespace().map_while(|c| c.strip_prefix("CPU")?.parse().ok());
    let row = lines.filter_map(|l| l.split_once(':')).find(|(n, _)| n.trim() == name);
    let counts = row.map_or("", |(_, rest)| rest).split_ascii_whitespace().map_while(|n| n.parse().ok());
    cpus.zip(counts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_stack() {
        let six = parse_snmp6("Ip6InReceives \t 12\nUdp6RcvbufErrors 3\nUdpLite6NoPorts 4\nx\nIp6 y\n");
        assert_eq!(six["Ip6.InReceives"], 12);
        assert_eq!(six["Udp6.RcvbufErrors"], 3);
        assert_eq!(six.len(), 3);
        let stat = parse_sockstat("sockets: used 3\nTCP: inuse 1 mem 67\nUDP: inuse x mem 4\n");
        assert_eq!((stat["sockstat.TCP.mem"], stat["sockstat.UDP.mem"]), (67, 4));
        assert!(!stat.contains_key("sockstat.UDP.inuse"));
    }

    #[test]
    fn times_of_cpus() {
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2 x\ncpux 1\nintr 5\n";
        let want =
            CpuTime { cpu: 0, user: 3, nice: 2, system: 3, idle: 9, irq: 6, softirq: 7, steal: 8, net_rx: 0 };
        assert_eq!(parse_stat(text), [want]);
        let rows = "      CPU0  CPU2\n NET_TX: 1 2\n NET_RX: 30 40\n";
        assert_eq!(parse_softirqs(rows, "NET_RX"), BTreeMap::from([(0, 30), (2, 40)]));
        assert!(parse_softirqs("", "NET_RX").is_empty());
    }

    #[test]
    fn live_files() {
        let all = counters().unwrap();
        assert!(all.contains_key("Udp.InDatagrams") && all.contains_key("TcpExt.ListenDrops"));
        assert!(limits()["net.core.rmem_max"][0] > 0);
        assert!(!cpus().is_empty());
    }
}
