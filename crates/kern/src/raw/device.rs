//! Interfaces with their counters, and queues to transmit.

use super::MAX_DEVICES;
use super::netlink::{Dump, bytes, each, word};
use crate::{
    cpus::CpuSet,
    discover::Role,
    error::{Error, Result},
    ethtool::Ring,
    link::{self, Link},
};
use netlink_bindings::{
    rt_link::{Ifinfomsg, Request, RtnlLinkStats64},
    utils::find_attr,
};
use netlink_socket2::NetlinkSocket;
use std::{collections::BTreeMap, net::IpAddr};

const NETLINK_ROUTE: u16 = 0;
const RTM_GETQDISC: u16 = 38;
const IFLA_STATS64: u16 = 23;
const IFLA_TXQLEN: u16 = 13;
const TCA_KIND: u16 = 1;
const TCA_STATS: u16 = 3;
const TCMSG: usize = 20;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDMSG: usize = 12;
/// Most neighbours that are kept.
const MAX_NEIGHBOURS: usize = 64;
/// Most queues to transmit that are read.
const MAX_QDISCS: usize = 16_384;

/// One receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Number.
    pub queue: u32,
    /// `eth0/1`.
    pub name: String,
    /// NAPI id, if known.
    pub napi_id: Option<u32>,
    /// Interrupt, if it has one.
    pub irq: Option<u32>,
    /// Interrupts since boot.
    pub interrupts: Option<u64>,
    /// CPUs that the interrupt goes to.
    pub cpus: CpuSet,
    /// Kernel thread of its NAPI.
    pub thread: Option<u32>,
    /// CPUs that its packets are spread over (RPS).
    pub rps: CpuSet,
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Driver, or kind of a virtual device.
    pub kind: String,
    /// What it is to weir.
    pub role: Role,
    /// Interfaces directly below one that stands on others.
    pub lower: Vec<String>,
    /// Set up by the administrator.
    pub up: bool,
    /// True if packets reach it through a NAPI of its own; veth has one only with GRO or XDP.
    pub napi: bool,
    /// An XDP program is attached.
    pub xdp: bool,
    /// Receive ring, if known.
    pub ring: Option<Ring>,
    /// Longest queue to transmit, packets.
    pub txqlen: u32,
    /// Receive queues; empty if they are not looked at.
    pub queues: Vec<Queue>,
    /// Counters that all interfaces have (`rtnl_link_stats64`).
    pub counters: BTreeMap<String, u64>,
    /// The driver's own (`ethtool -S`); empty if they are not looked at.
    pub driver: BTreeMap<String, u64>,
    /// Packets by which `rx_packets` moved while the other counters of this reading were read.
    pub late: u64,
}

/// One queue to transmit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Qdisc {
    /// Interface.
    pub ifindex: u32,
    /// `pfifo_fast`, `fq_codel`, ...
    pub kind: String,
    /// Handle, major in the upper half.
    pub handle: u32,
    /// Handle of the class it hangs on; `0xffffffff` at the root.
    pub parent: u32,
    /// Packets sent.
    pub packets: u32,
    /// Packets lost because it was full.
    pub drops: u32,
    /// Packets that wait.
    pub waiting: u32,
}

/// An interface of the list, with what changes.
pub(super) struct Listed {
    pub link: Link,
    pub txqlen: u32,
    pub counters: BTreeMap<String, u64>,
}

/// All interfaces of the caller's namespace, at most [`MAX_DEVICES`].
pub(super) fn list(sock: &mut NetlinkSocket) -> Result<Vec<Listed>> {
    let what = "list of interfaces";
    let request = Request::new().op_getlink_dump(&Ifinfomsg::new());
    let mut reply = sock.request(&request).map_err(|e| Error::io(what, e))?;
    let mut all = Vec::new();
    while let Some(item) = reply.recv() {
        let (header, attrs) = item.map_err(|e| Error::io(what, e.into()))?;
        if all.len() < MAX_DEVICES {
            let buf = attrs.get_buf();
            all.push(Listed {
                link: link::decode(&header, &attrs),
                txqlen: find_attr(buf, IFLA_TXQLEN).and_then(|a| word(a, 0)).unwrap_or(0),
                counters: find_attr(buf, IFLA_STATS64).map(counters).unwrap_or_default(),
            });
        }
    }
    Ok(all)
}

/// Older kernels send fewer.
pub(super) fn counters(attr: &[u8]) -> BTreeMap<String, u64> {
    let s = RtnlLinkStats64::new_from_zeroed(attr);
    [
        ("rx_packets", s.rx_packets),
        ("tx_packets", s.tx_packets),
        ("rx_bytes", s.rx_bytes),
        ("tx_bytes", s.tx_bytes),
        ("rx_errors", s.rx_errors),
        ("tx_errors", s.tx_errors),
        ("rx_dropped", s.rx_dropped),
        ("tx_dropped", s.tx_dropped),
        ("rx_length_errors", s.rx_length_errors),
        ("rx_over_errors", s.rx_over_errors),
        ("rx_crc_errors", s.rx_crc_errors),
        ("rx_frame_errors", s.rx_frame_errors),
        ("rx_fifo_errors", s.rx_fifo_errors),
        ("rx_missed_errors", s.rx_missed_errors),
        ("rx_nohandler", s.rx_nohandler),
        ("rx_otherhost_dropped", s.rx_otherhost_dropped),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Queues to transmit of all interfaces. They need no privilege.
pub(super) fn qdiscs(sock: &mut NetlinkSocket) -> Result<Vec<Qdisc>> {
    let dump = Dump { protonum: NETLINK_ROUTE, kind: RTM_GETQDISC, payload: vec![0; TCMSG] };
    let mut all = Vec::new();
    each(sock, &dump, "list of queues to transmit", |reply| {
        all.extend(qdisc(reply));
        all.len() < MAX_QDISCS
    })?;
    Ok(all)
}

pub(super) fn qdisc(reply: &[u8]) -> Option<Qdisc> {
    let attrs = reply.get(TCMSG..)?;
    // struct tc_stats: bytes, packets, drops, overlimits, two rates, packets that wait, their bytes.
    let stats = find_attr(attrs, TCA_STATS)?;
    let kind = find_attr(attrs, TCA_KIND)?;
    Some(Qdisc {
        ifindex: word(reply, 4)?,
        handle: word(reply, 8)?,
        parent: word(reply, 12)?,
        kind: String::from_utf8_lossy(kind).trim_end_matches('\0').to_owned(),
        packets: word(stats, 8)?,
        drops: word(stats, 12)?,
        waiting: word(stats, 28)?,
    })
}

/// Neighbours whose hardware address is not known: asked for, or asked for in vain. At most [`MAX_NEIGHBOURS`].
pub(super) fn unresolved(sock: &mut NetlinkSocket) -> Result<Vec<(u32, IpAddr)>> {
    let dump = Dump { protonum: NETLINK_ROUTE, kind: RTM_GETNEIGH, payload: vec![0; NDMSG] };
    let mut all = Vec::new();
    each(sock, &dump, "list of neighbours", |reply| {
        all.extend(neighbour(reply));
        all.len() < MAX_NEIGHBOURS
    })?;
    Ok(all)
}

pub(super) fn neighbour(reply: &[u8]) -> Option<(u32, IpAddr)> {
    const INCOMPLETE: u16 = 0x01;
    const FAILED: u16 = 0x20;
    let state = u16::from_ne_bytes(bytes(reply, 8)?);
    if state & (INCOMPLETE | FAILED) == 0 {
        return None;
    }
    let address = find_attr(reply.get(NDMSG..)?, NDA_DST)?;
    let ip: IpAddr = match address.len() {
        4 => bytes::<4>(address, 0)?.into(),
        16 => bytes::<16>(address, 0)?.into(),
        _ => return None,
    };
    Some((word(reply, 4)?, ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_lists() {
        let mut sock = NetlinkSocket::new();
        let all = list(&mut sock).unwrap();
        let lo = all.iter().find(|l| l.link.loopback).unwrap();
        assert!(lo.counters.contains_key("rx_missed_errors"));
        // After another dump on the same socket.
        assert!(qdiscs(&mut sock).is_ok());
        assert_eq!(list(&mut sock).unwrap().len(), all.len());
    }

    #[test]
    fn short_messages() {
        assert!(qdisc(&[0; 19]).is_none() && qdisc(&[0; 20]).is_none());
        let mut one = vec![2, 0, 0, 0, 7, 0, 0, 0, 0x20, 0, 0, 0, 8, 0, 1, 0, 10, 0, 0, 9];
        if cfg!(target_endian = "little") {
            assert_eq!(neighbour(&one), Some((7, "10.0.0.9".parse().unwrap())));
            one[8] = 2;
            assert_eq!(neighbour(&one), None, "reachable");
        }
        assert!(neighbour(&[0x20; 11]).is_none());
        assert_eq!(counters(&[1, 0, 0, 0, 0, 0, 0, 0])["rx_packets"], 1);
    }
}
