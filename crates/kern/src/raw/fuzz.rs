//! Files of procfs and replies of netlink of any bytes, each reader chosen by the first: none panics. Built by scripts/fuzz.sh.

use super::{device, sockets, stack, tasks};
use crate::{cpus::CpuSet, host_files, irq, proc, wire::counters::snmp_lines};

/// Has one of the readers read the bytes behind the first.
///
/// # Panics
/// That is the finding.
pub fn read(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    let mut bad = 0;
    match which % 20 {
        0 => _ = snmp_lines(&text, &mut bad),
        1 => _ = stack::parse_snmp6(&text, &mut bad),
        2 => _ = stack::parse_sockstat(&text, &mut bad),
        3 => _ = stack::parse_stat(&text, &mut bad),
        4 => _ = stack::parse_softirqs(&text, "NET_RX", &mut bad),
        5 => _ = stack::parse_softnet(&text, &mut bad),
        6 => _ = stack::parse_dev(&text, &mut bad),
        7 => _ = stack::parse_limit(&text, &mut bad),
        8 => _ = tasks::parse_stat(&text),
        9 => _ = tasks::parse_schedstat(&text),
        10 => _ = proc::parse_udp(&text),
        11 => _ = proc::parse_filters(&text),
        12 => _ = proc::parse_packet(&text),
        13 => _ = proc::parse_stat(&text),
        14 => irq::parse(&text).iter().for_each(|irq| _ = irq::rx_queue(&irq.name)),
        15 => {
            if let Ok(set) = CpuSet::from_mask(&text) {
                assert_eq!(CpuSet::from_mask(&set.to_mask()).ok(), Some(set));
            }
        }
        16 => _ = host_files::known(&text),
        17 => {
            for protocol in [libc::IPPROTO_UDP, libc::IPPROTO_TCP] {
                _ = sockets::inet_socket(bytes, protocol as u8);
            }
        }
        18 => _ = (sockets::packet(7, bytes), sockets::xdp(7, bytes)),
        _ => _ = (device::qdisc(bytes), device::neighbour(bytes), device::counters(bytes)),
    }
}
