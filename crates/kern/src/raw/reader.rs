//! Reads everything, again and again, and keeps what is expensive and seldom changes.

use super::{Device, Queue, Raw, Socket, Task, arp::Arp, device, monotonic_ns, sockets, stack, tasks};
use crate::{
    cgroups,
    discover::{self, Interface, Role},
    error::Result,
    holders::Holders,
    irq,
    link::Link,
    proc::{self, FilterQueue, Holder},
    settings::Access,
    wire,
};
use netlink_socket2::NetlinkSocket;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// What is looked up anew only so often, ns.
const SLOW_NS: u64 = 5_000_000_000;
/// Most interfaces whose driver is asked.
const MAX_DRIVERS: usize = 64;
/// Most sockets whose process is looked for.
const MAX_HELD: usize = 512;
/// Time for the search for the processes of sockets, per reading; the process that is looked at when it is over is
/// finished.
const SEARCH: Duration = Duration::from_millis(100);
/// Most processes that are read if all are wanted.
const MAX_TASKS: usize = 8192;

/// What is read beside the counters.
#[derive(Clone, Debug, Default)]
pub struct Want {
    /// Interfaces whose driver and queues are looked at; none named: all that receive, at most 64.
    pub devices: Vec<String>,
    /// Times and windows of TCP connections.
    pub tcp: bool,
    /// All processes, not only those that receive; and of those that do the limits of their control groups.
    pub all_tasks: bool,
}

/// Kernel threads that work on packets, and weir itself, by name.
fn works_on_packets(name: &str) -> bool {
    name.starts_with("ksoftirqd/")
        || name.starts_with("napi/")
        || name.starts_with("cpumap/")
        || name == "weir"
}

/// See the module. It belongs to the network namespace it was opened in: use it from threads of that one.
pub struct Reader {
    want: Want,
    host: String,
    sock: NetlinkSocket,
    arp: nix::Result<Arp>,
    access: std::result::Result<Access, String>,
    slow_ns: u64,
    /// Interfaces as found, by index, with the state of the link they were found in.
    interfaces: BTreeMap<u32, (Link, Interface)>,
    holders: Holders,
    workers: Vec<u32>,
}

impl Reader {
    /// Opens it in the caller's namespace.
    pub fn open(want: Want) -> Reader {
        Reader {
            want,
            host: stack::read("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
            sock: NetlinkSocket::new(),
            arp: Arp::open(),
            access: Access::for_current_netns().map_err(|e| e.to_string()),
            slow_ns: 0,
            interfaces: BTreeMap::new(),
            holders: Holders::default(),
            workers: Vec::new(),
        }
    }

    /// Name of this machine.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// One reading. Fails only if the kernel shows no interfaces or no counters at all.
    pub fn read(&mut self) -> Result<Raw> {
        let mut raw = Raw { begin_ns: monotonic_ns(), ..Raw::default() };
        let slow = self.slow_ns == 0 || raw.begin_ns.saturating_sub(self.slow_ns) > SLOW_NS;
        if slow {
            self.slow_ns = raw.begin_ns;
            self.workers = self.find_workers();
        }
        // What belongs together in the ledger stands together here, in the order that packets take.
        let listed = device::list(&mut self.sock)?;
        let mut asked = 0;
        for item in listed {
            raw.devices.push(self.device(item, slow, &mut asked, &mut raw.skipped));
        }
        raw.arp = self.arp.as_mut().ok().map(Arp::count);
        let mut bad = 0;
        raw.softnet = stack::softnet(&mut bad);
        let filters = stack::filters(&mut 0);
        raw.stack = stack::counters(&mut bad)?;
        raw.filters = stack::filters(&mut bad);
        raw.verdicts = verdicts(&filters, &raw.filters);
        let sockets = sockets::all(&mut self.sock, self.want.tcp, &mut raw.missing);
        raw.sockets = sockets.list;
        raw.reads = stack::datagrams(&mut bad)?.saturating_sub(stack::datagrams_of(&raw.stack));
        match &self.arp {
            Ok(own) => raw.sockets.retain(|s| s.inode != own.inode),
            Err(_) => raw.missing.push("packets of ARP, which are unaccounted: needs CAP_NET_RAW".into()),
        }
        raw.skipped.insert("sockets", sockets.bad);
        raw.qdiscs = device::qdiscs(&mut self.sock).unwrap_or_default();
        raw.unresolved = device::unresolved(&mut self.sock).unwrap_or_default();
        // Once more: what came since is what the counters of one reading may differ by.
        let received = stack::received(&mut bad);
        for device in &mut raw.devices {
            let then = device.counters.get("rx_packets").copied().unwrap_or(0);
            device.late = received.get(&device.name).map_or(0, |now| now.saturating_sub(then));
        }
        raw.end_ns = monotonic_ns();
        raw.cpus = stack::cpus(&mut bad);
        raw.limits = stack::limits(&mut bad);
        raw.skipped.insert("lines", bad);
        if let Err(why) = &self.access {
            raw.missing.push(format!("queues and interrupts: {why}"));
        }
        self.find_holders(&mut raw);
        raw.tasks = self.tasks(&mut raw.skipped, &raw.holders, &raw.devices);
        Ok(raw)
    }

    fn device(
        &mut self,
        item: device::Listed,
        slow: bool,
        asked: &mut usize,
        skipped: &mut BTreeMap<&'static str, u64>,
    ) -> Device {
        let device::Listed { link, txqlen, counters } = item;
        let index = link.ifindex;
        let known = self.interfaces.get(&index).filter(|(before, _)| !slow && *before == link);
        if known.is_none()
            && let Ok(access) = &mut self.access
        {
            match discover::look(access, index) {
                Ok(found) => _ = self.interfaces.insert(index, (link.clone(), found)),
                Err(_) => {
                    self.interfaces.remove(&index);
                    *skipped.entry("interfaces").or_default() += 1;
                }
            }
        }
        let found = self.interfaces.get(&index).map(|(_, found)| found);
        let role = found.map_or(if link.loopback { Role::Loopback } else { Role::Source }, |f| f.role);
        let wanted = match self.want.devices.as_slice() {
            [] => role == Role::Source,
            names => names.contains(&link.name),
        } && *asked < MAX_DRIVERS;
        let (mut queues, mut driver) = Default::default();
        if wanted {
            *asked += 1;
            // Drivers without statistics answer with an error.
            driver = wire::ethtool::statistics(&link.name).unwrap_or_default();
            queues = found.map(queues_of).unwrap_or_default();
        }
        let kind = found.map(|f| f.kind.clone()).or(link.kind.clone()).unwrap_or_default();
        let napi = match (kind.as_str(), found) {
            ("veth", Some(f)) => f.gro || f.xdp.is_some(),
            (_, _) => role == Role::Source,
        };
        Device {
            ifindex: index,
            kind,
            role,
            lower: found.map(|f| f.lower.clone()).unwrap_or_default(),
            up: link.up,
            napi,
            xdp: link.xdp.is_some(),
            ring: found.and_then(|f| f.ring),
            txqlen,
            queues,
            counters,
            driver,
            late: 0,
            name: link.name,
        }
    }

    /// Looks for the processes of sockets that are of interest.
    fn find_holders(&mut self, raw: &mut Raw) {
        let known = sockets::by_inode(&raw.sockets);
        self.holders.retain(|inode| known.contains_key(&inode));
        let begin = Instant::now();
        let spent = || begin.elapsed().as_secs_f64() / SEARCH.as_secs_f64();
        self.holders.find(&interesting(&raw.sockets), spent);
        let unknown = self.holders.unknown();
        if unknown > 0 && !nix::unistd::geteuid().is_root() {
            raw.hidden = unknown as u64;
            raw.missing.push(format!("processes of sockets of other users ({unknown}): needs root"));
        }
        raw.holders = self.holders.found();
    }

    fn find_workers(&self) -> Vec<u32> {
        let named = |pid: &u32| proc::name(*pid).is_some_and(|n| works_on_packets(&n));
        tasks::pids(MAX_TASKS).into_iter().filter(named).collect()
    }

    fn tasks(
        &self,
        skipped: &mut BTreeMap<&'static str, u64>,
        holders: &BTreeMap<u64, Holder>,
        devices: &[Device],
    ) -> Vec<Task> {
        let threads = devices.iter().flat_map(|d| &d.queues).filter_map(|q| q.thread);
        let mut pids: BTreeSet<u32> = holders.values().map(|h| h.pid).collect();
        pids.extend(self.workers.iter().copied().chain(threads));
        if self.want.all_tasks {
            pids.extend(tasks::pids(MAX_TASKS));
        }
        let all = pids.len();
        let mut found: Vec<Task> = pids.into_iter().filter_map(tasks::task).collect();
        if self.want.all_tasks {
            let readers: BTreeSet<u32> = holders.values().map(|h| h.pid).collect();
            let mut hidden = cgroups::Hidden::default();
            for task in found.iter_mut().filter(|t| readers.contains(&t.pid)) {
                task.quotas = hidden.quotas(task.pid);
            }
        }
        *skipped.entry("processes").or_default() += (all - found.len()) as u64;
        found
    }
}

/// Packets that left queues between two readings. Ids have 32 bits and run over.
fn verdicts(before: &[FilterQueue], after: &[FilterQueue]) -> u64 {
    let left = |now: &FilterQueue| {
        let then = before.iter().find(|f| f.queue == now.queue)?;
        let came = (now.ids as u32).wrapping_sub(then.ids as u32);
        Some(then.waiting.saturating_add(came.into()).saturating_sub(now.waiting))
    };
    after.iter().filter_map(left).fold(0, u64::saturating_add)
}

fn queues_of(found: &Interface) -> Vec<Queue> {
    let queue = |s: &discover::Source| Queue {
        queue: s.queue,
        name: s.name.clone(),
        napi_id: s.napi_id,
        irq: s.irq,
        interrupts: s.irq.and_then(|i| irq::count(i).ok()),
        cpus: s.irq_cpus.clone().unwrap_or_default(),
        thread: s.thread,
        rps: s.rps.clone(),
    };
    found.sources.iter().map(queue).collect()
}

/// Inodes of sockets that lose or hold something, and of those that could: the worst first.
fn interesting(sockets: &[Socket]) -> Vec<u64> {
    let mut list: Vec<(u64, u64, u64)> = sockets
        .iter()
        .filter(|s| s.inode != 0 && (s.kind != super::Kind::Tcp || s.waiting > 0))
        .map(|s| (s.drops.unwrap_or(0), s.waiting, s.inode))
        .collect();
    list.sort_unstable_by(|a, b| b.cmp(a));
    list.into_iter().map(|(_, _, inode)| inode).take(MAX_HELD).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn own_socket_with_its_process() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let local = socket.local_addr().unwrap();
        let mut reader = Reader::open(Want::default());
        let raw = reader.read().unwrap();
        let one = raw.sockets.iter().find(|s| s.local == local).unwrap();
        assert_eq!(raw.holders[&one.inode].pid, std::process::id());
        assert!(raw.tasks.iter().any(|t| t.pid == std::process::id()));
        assert!(raw.end_ns > raw.begin_ns && !raw.cpus.is_empty() && !raw.softnet.is_empty());
        let inode = one.inode;
        drop(socket);
        assert!(!reader.read().unwrap().holders.contains_key(&inode));
    }

    #[test]
    fn packets_that_left_queues_to_filters() {
        let queue =
            |queue, waiting, ids| FilterQueue { queue, port: 7, waiting, queue_full: 0, socket_full: 0, ids };
        // 2 came and 5 left; the second one's ids ran over, and the third is new.
        let (before, after) = (
            [queue(1, 10, 100), queue(2, 0, u64::from(u32::MAX))],
            [queue(1, 7, 102), queue(2, 1, 2), queue(3, 9, 9)],
        );
        assert_eq!(verdicts(&before, &after), 5 + 2);
    }

    #[test]
    fn the_worst_come_first() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut list = sockets::all(&mut NetlinkSocket::new(), false, &mut Vec::new()).list;
        list.retain(|s| s.local == udp.local_addr().unwrap());
        let mut worse = list[0].clone();
        (worse.drops, worse.inode) = (Some(9), 1);
        list.push(worse);
        assert_eq!(interesting(&list)[0], 1);
    }
}
