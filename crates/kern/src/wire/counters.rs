//! Readings of /proc and settings of /sys and /proc/sys, in the calling thread's namespace.

use std::collections::BTreeMap;

use super::{Result, read, write};

/// Counters of the IPv4 stack, `Udp.RcvbufErrors` and so on, from /proc/net/snmp.
///
/// # Errors
/// If the file cannot be read.
pub fn snmp() -> Result<BTreeMap<String, u64>> {
    Ok(parse_snmp(&read("/proc/thread-self/net/snmp")?))
}

fn parse_snmp(text: &str) -> BTreeMap<String, u64> {
    let mut values = BTreeMap::new();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let (Some((group, names)), Some((_, numbers))) = (pair[0].split_once(':'), pair[1].split_once(':'))
        else {
            continue;
        };
        for (name, number) in names.split_whitespace().zip(numbers.split_whitespace()) {
            // Tcp.MaxConn is -1; nothing read here is negative.
            values.insert(format!("{group}.{name}"), number.parse().unwrap_or(0));
        }
    }
    values
}

/// Packets dropped because a CPU's backlog was full, over all CPUs and namespaces, from softnet_stat.
///
/// # Errors
/// If the file cannot be read.
pub fn backlog_drops() -> Result<u64> {
    Ok(parse_softnet(&read("/proc/net/softnet_stat")?))
}

fn parse_softnet(text: &str) -> u64 {
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().filter_map(dropped).sum()
}

/// Times of one CPU in ticks of 10 ms, from /proc/stat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// All ticks.
    pub total: u64,
    /// Idle and waiting for disks.
    pub idle: u64,
    /// Taken by the hypervisor.
    pub steal: u64,
}

/// Times of `cpu`.
///
/// # Errors
/// If /proc/stat cannot be read.
pub fn cpu_times(cpu: usize) -> Result<CpuTimes> {
    Ok(parse_stat(&read("/proc/stat")?, cpu))
}

fn parse_stat(text: &str, cpu: usize) -> CpuTimes {
    let prefix = format!("cpu{cpu} ");
    let line = text.lines().find_map(|l| l.strip_prefix(&prefix)).unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
    let at = |i: usize| ticks.get(i).copied().unwrap_or(0);
    // Guest time (fields 8 and 9) is already inside user and nice.
    CpuTimes { total: ticks.iter().take(8).sum(), idle: at(3) + at(4), steal: at(7) }
}

/// Counters that the network core keeps for an interface, from /sys/class/net/IF/statistics.
///
/// # Errors
/// If there is no such interface or counter.
pub fn interface(name: &str, counter: &str) -> Result<u64> {
    let text = read(&format!("/sys/class/net/{name}/statistics/{counter}"))?;
    Ok(text.trim().parse().unwrap_or(0))
}

/// Sets an attribute of an interface, for instance `threaded` or `queues/rx-0/rps_cpus`.
///
/// # Errors
/// If the kernel refuses the value or has no such attribute.
pub fn set_interface(name: &str, attribute: &str, value: &str) -> Result<()> {
    write(&format!("/sys/class/net/{name}/{attribute}"), value)
}

/// Sets a sysctl; the name uses slashes, for instance `net/ipv4/conf/all/rp_filter`.
///
/// # Errors
/// If the kernel refuses the value or has no such sysctl.
pub fn set_sysctl(name: &str, value: &str) -> Result<()> {
    write(&format!("/proc/sys/{name}"), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snmp_pairs_names_with_numbers() {
        let text = "Udp: InDatagrams NoPorts RcvbufErrors\nUdp: 7 1 5\nTcp: MaxConn A\nTcp: -1 2\n";
        let values = parse_snmp(text);
        assert_eq!(values["Udp.RcvbufErrors"], 5);
        assert_eq!(values["Udp.NoPorts"], 1);
        assert_eq!(values["Tcp.A"], 2);
    }

    #[test]
    fn softnet_sums_the_second_column_in_hex() {
        assert_eq!(parse_softnet("00000001 0000000a 0 0\n00000002 00000010 0 0\n"), 26);
    }

    #[test]
    fn cpu_times_leave_guest_time_out() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu1 1 2 3 4 5 6 7 8 100 100\n";
        assert_eq!(parse_stat(text, 1), CpuTimes { total: 36, idle: 9, steal: 8 });
        assert_eq!(parse_stat(text, 7), CpuTimes::default());
    }
}
