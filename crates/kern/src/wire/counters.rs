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

/// More counters of it, `TcpExt.TCPOFOQueue` and so on, from /proc/net/netstat.
///
/// # Errors
/// If the file cannot be read.
pub fn netstat() -> Result<BTreeMap<String, u64>> {
    Ok(parse_snmp(&read("/proc/thread-self/net/netstat")?))
}

fn parse_snmp(text: &str) -> BTreeMap<String, u64> {
    snmp_lines(text, &mut 0)
}

/// Each group is a line of names and a line of numbers. What does not fit is left out and counted in `bad`: a number that
/// is taken for 0 would be a jump from there in the next reading.
pub(crate) fn snmp_lines(text: &str, bad: &mut u64) -> BTreeMap<String, u64> {
    let mut values = BTreeMap::new();
    let mut lines = text.lines().peekable();
    while let Some(head) = lines.next() {
        let group = |line: &str| line.split_once(':').map(|(group, _)| group.to_owned());
        let own = group(head);
        if own.is_none() || lines.peek().is_none_or(|next| group(next) != own) {
            *bad += u64::from(!head.is_empty());
            continue;
        }
        let words = |line: &str| -> Vec<String> {
            line.split_ascii_whitespace().skip(1).map(str::to_owned).collect()
        };
        let (names, numbers) = (words(head), words(lines.next().unwrap_or_default()));
        // A line that was cut off may have cut its last number.
        if names.len() != numbers.len() {
            *bad += 1;
            continue;
        }
        for (name, number) in names.iter().zip(&numbers) {
            match number.parse::<u64>() {
                Ok(number) => _ = values.insert(format!("{}.{name}", own.as_deref().unwrap_or("")), number),
                // Tcp.MaxConn is -1; nothing read here is negative.
                Err(_) => *bad += u64::from(number.parse::<i64>().is_err()),
            }
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

/// Model of the first CPU as the kernel names it; empty where it does not.
#[must_use]
pub fn cpu_model() -> String {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let value = |line: &str| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_string());
    text.lines().find_map(value).unwrap_or_default()
}

/// Release of the running kernel.
///
/// # Errors
/// If /proc cannot be read.
pub fn kernel_release() -> Result<String> {
    Ok(read("/proc/sys/kernel/osrelease")?.trim().to_string())
}

/// CPU time of all tasks on `cpu` in nanoseconds, from the cpuacct controller; `None` where there is none (cgroup
/// v2 does not tell it by CPU).
#[must_use]
pub fn tasks_ns(cpu: usize) -> Option<u64> {
    let text = read("/sys/fs/cgroup/cpuacct/cpuacct.usage_percpu").ok()?;
    text.split_whitespace().nth(cpu)?.parse().ok()
}

/// One UDP socket of the namespace, from /proc/net/udp.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UdpSocket {
    /// Memory charged for what waits in its queue.
    pub queued_bytes: u64,
    /// Datagrams dropped because the queue was full.
    pub drops: u64,
}

/// The IPv4 UDP sockets bound to `port`, added up; `None` if there are none.
///
/// # Errors
/// If the file cannot be read.
pub fn udp_socket(port: u16) -> Result<Option<UdpSocket>> {
    Ok(parse_udp(&read("/proc/thread-self/net/udp")?, port))
}

fn parse_udp(text: &str, port: u16) -> Option<UdpSocket> {
    let wanted = format!(":{port:04X}");
    let sockets = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1)?.ends_with(&wanted).then_some(())?;
        let queued_bytes = u64::from_str_radix(fields.get(4)?.split_once(':')?.1, 16).ok()?;
        Some(UdpSocket { queued_bytes, drops: fields.last()?.parse().ok()? })
    });
    sockets
        .reduce(|a, b| UdpSocket { queued_bytes: a.queued_bytes + b.queued_bytes, drops: a.drops + b.drops })
}

/// One queue to a packet filter in user space, from /proc/net/netfilter/nfnetlink_queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilterQueue {
    /// Packets that wait for a verdict.
    pub waiting: u64,
    /// Packets dropped because the queue, or the program's socket, was full.
    pub drops: u64,
}

/// The namespace's queues, added up; `None` if nobody has one open.
///
/// # Errors
/// If the kernel has no NFQUEUE.
pub fn filter_queues() -> Result<Option<FilterQueue>> {
    Ok(parse_filter_queues(&read("/proc/thread-self/net/netfilter/nfnetlink_queue")?))
}

fn parse_filter_queues(text: &str) -> Option<FilterQueue> {
    let queues = text.lines().filter_map(|line| {
        let fields: Vec<u64> = line.split_whitespace().map_while(|f| f.parse().ok()).collect();
        // Number, port, waiting, copy mode, copy range, queue full, socket full, ids given.
        let [_, _, waiting, _, _, queue, socket, ..] = fields[..] else { return None };
        Some(FilterQueue { waiting, drops: queue + socket })
    });
    queues.reduce(|a, b| FilterQueue { waiting: a.waiting + b.waiting, drops: a.drops + b.drops })
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

/// A sysctl; the name uses slashes, for instance `net/core/rmem_default`.
///
/// # Errors
/// If the kernel has no such sysctl.
pub fn sysctl(name: &str) -> Result<String> {
    Ok(read(&format!("/proc/sys/{name}"))?.trim().to_string())
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
        assert!(!values.contains_key("Tcp.MaxConn"));
    }

    #[test]
    fn snmp_lines_that_do_not_fit_are_left_out_and_counted() {
        let mut bad = 0;
        // A number that is none, a group without numbers, numbers without names, a line that was cut off.
        let text = "Ip: A B\nIp: 1 x\nTcp: A\nUdp: A\nUdp: 3\nUdp: 4\nnothing\nIcmp: A B\nIcmp: 5\n";
        let values = snmp_lines(text, &mut bad);
        assert_eq!(values, [("Ip.A".to_owned(), 1), ("Udp.A".to_owned(), 3)].into());
        assert_eq!(bad, 5);
    }

    #[test]
    fn udp_sockets_are_found_by_port() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\
                    ref pointer drops\n\
                    1: 010012C6:0035 00000000:0000 07 00000000:00000100 00:00000000 00000000 0 0 1 2 f 7\n\
                    2: 0100007F:0035 00000000:0000 07 00000000:00000001 00:00000000 00000000 0 0 1 2 f 1\n";
        assert_eq!(parse_udp(text, 53), Some(UdpSocket { queued_bytes: 257, drops: 8 }));
        assert_eq!(parse_udp(text, 54), None);
    }

    #[test]
    fn filter_queues_are_added_up() {
        let text = "    0  31621   200 2   128     5     7    90000  1\n    3  99  1 2 128 0 0 4 1\n";
        assert_eq!(parse_filter_queues(text), Some(FilterQueue { waiting: 201, drops: 12 }));
        assert_eq!(parse_filter_queues(""), None);
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
