//! Where packets wait and are lost, as the kernel counts it: every number read once, close together in time, and
//! kept as it is. What it means is worked out elsewhere, from two of these readings.
//!
//! Needs no privilege; what more root would show is in [`Raw::missing`]. A line that cannot be parsed, a process or
//! an interface that vanishes meanwhile is left out and counted in [`Raw::skipped`].

mod arp;
mod device;
#[cfg(fuzzing)]
pub mod fuzz;
#[cfg(test)]
mod mutated_tests;
pub(crate) mod netlink;
mod reader;
mod sockets;
mod stack;
mod tasks;

pub use device::{Device, Qdisc, Queue};
pub use reader::{Reader, Want};
pub(crate) use sockets::udp_ports;
pub use sockets::{Kind, Socket, Tcp, connections, udp_at};
pub use tasks::{Task, Thread};

use crate::proc::{FilterQueue, Holder, Softnet};
use std::collections::BTreeMap;

/// Most interfaces that are read.
pub const MAX_DEVICES: usize = 1024;

/// Times of one CPU in ticks of 10 ms, from `/proc/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// The CPU.
    pub cpu: u32,
    /// In programs, nice ones too; kernel threads are in `system`.
    pub user: u64,
    /// In programs of a nice value above 0, part of `user`.
    pub nice: u64,
    /// In the kernel, for programs and in kernel threads.
    pub system: u64,
    /// Idle and waiting for disks.
    pub idle: u64,
    /// In hard interrupts.
    pub irq: u64,
    /// In softirqs, all kinds; without `CONFIG_IRQ_TIME_ACCOUNTING` sampled at the tick.
    pub softirq: u64,
    /// Taken by the hypervisor.
    pub steal: u64,
    /// `NET_RX` softirqs that ran; `None`: not known.
    pub net_rx: Option<u64>,
}

/// One reading.
#[derive(Clone, Debug, Default)]
pub struct Raw {
    /// `CLOCK_MONOTONIC` before the first number was read, ns.
    pub begin_ns: u64,
    /// The same after the last one.
    pub end_ns: u64,
    /// Interfaces of this network namespace, by index.
    pub devices: Vec<Device>,
    /// Queues to transmit.
    pub qdiscs: Vec<Qdisc>,
    /// Neighbours whose hardware address is asked for, or was in vain: interface and address.
    pub unresolved: Vec<(u32, std::net::IpAddr)>,
    /// CPUs that are online.
    pub cpus: Vec<CpuTime>,
    /// Receive counters per CPU, over all namespaces.
    pub softnet: Vec<Softnet>,
    /// Counters of IP and of what stands on it, such as `Udp.RcvbufErrors`, `Ip6.InReceives`.
    pub stack: BTreeMap<String, u64>,
    /// Limits, by the name `sysctl` has for them, each with its numbers.
    pub limits: BTreeMap<String, Vec<u64>>,
    /// Packets of ARP since the reader was opened; `None` without CAP_NET_RAW.
    pub arp: Option<u64>,
    /// Sockets that receive.
    pub sockets: Vec<Socket>,
    /// Queues to packet filters.
    pub filters: Vec<FilterQueue>,
    /// Verdicts that they gave while the counters were read: those packets are in some counters and not in others.
    pub verdicts: u64,
    /// Datagrams of UDP that programs read after [`Raw::stack`] was read and until [`Raw::sockets`] had been: at most so many
    /// are neither delivered nor in a queue here.
    pub reads: u64,
    /// Processes that hold sockets, by inode of the socket.
    pub holders: BTreeMap<u64, Holder>,
    /// Those processes, and what else was asked for.
    pub tasks: Vec<Task>,
    /// What could not be parsed or vanished, by kind.
    pub skipped: BTreeMap<&'static str, u64>,
    /// What could not be read, and what it needs; one line each.
    pub missing: Vec<String>,
    /// Sockets of interest whose processes only root sees.
    pub hidden: u64,
}

/// `CLOCK_MONOTONIC`, ns.
pub fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}
