//! The table of consumers: UDP sockets that overflowed at least once, found by BPF, named and retired here; and the
//! sockets of packet filters, which `filters` finds.
//!
//! A socket that never overflows costs nothing and is never tracked. At most [`CONSUMERS`] are tracked; one more is
//! not, and has no feedback.

use std::sync::atomic::Ordering::Relaxed;

use kern::guard::{CONSUMERS, Gauges, Taker};
use policy::Nanos;

use super::dispatch::NewConsumer;
use super::names::Names;

/// A consumer without overflow or inhibit for this long is forgotten, ns.
const QUIET: Nanos = 60_000_000_000;

/// One tracked consumer.
#[derive(Clone, Debug)]
pub struct Consumer {
    sk: u64,
    /// Local UDP port.
    pub port: u16,
    /// Program, once found.
    pub process: String,
    /// Its process id, 0 if not found.
    pub pid: u32,
    /// Inode of the socket; 0: nobody holds it.
    inode: u64,
    /// True while its process is looked for.
    sought: bool,
    /// Of a packet filter: the queue that it reads, and its netlink port.
    pub filter: Option<(u16, u32)>,
    /// False where several sockets share the port: then the kernel is asked which of them gets a datagram.
    alone: bool,
    last_overflow: Nanos,
    seen_overflows: u64,
}

/// See the module.
pub struct Consumers {
    slots: Vec<Option<Consumer>>,
    high: u32,
    low: u32,
    names: Names,
}

impl Consumers {
    /// An empty table; water marks in permille.
    pub fn new(high: u32, low: u32) -> Self {
        Self { slots: (0..CONSUMERS).map(|_| None).collect(), high, low, names: Names::default() }
    }

    /// New water marks for all, permille.
    pub fn set_marks(&mut self, gauges: &Gauges, high: u32, low: u32) {
        (self.high, self.low) = (high, low);
        for ctl in gauges.views.consumer_ctls.iter() {
            ctl.low.store(low, Relaxed);
            ctl.high.store(high, Relaxed);
        }
    }

    /// Tracked consumers with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Consumer)> {
        self.slots.iter().enumerate().filter_map(|(i, c)| c.as_ref().map(|c| (i, c)))
    }

    /// A free slot, cleared for the socket `cookie`; nothing looks at it before its address is set.
    fn free(&self, gauges: &Gauges, cookie: u64) -> Option<usize> {
        let slot = self.slots.iter().position(Option::is_none)?;
        let stat = &gauges.views.consumer_stats[slot];
        for counter in [&stat.overflows, &stat.recvs, &stat.shed, &stat.foreign] {
            counter.store(0, Relaxed);
        }
        stat.level.store(0, Relaxed);
        stat.gone.store(0, Relaxed);
        let ctl = &gauges.views.consumer_ctls[slot];
        ctl.cookie.store(cookie, Relaxed);
        ctl.low.store(self.low, Relaxed);
        ctl.high.store(self.high, Relaxed);
        ctl.inhibited.store(0, Relaxed);
        Some(slot)
    }

    /// Tracks a socket that overflowed; its slot, or `None` if the table is full.
    pub fn add(&mut self, gauges: &Gauges, found: &NewConsumer, now: Nanos) -> Option<usize> {
        let NewConsumer { sk, cookie, port, inode, .. } = *found;
        let slot = self.free(gauges, cookie)?;
        let alone = kern::proc::udp_sockets(Some(port)).is_ok_and(|sockets| sockets.len() == 1);
        let ctl = &gauges.views.consumer_ctls[slot];
        ctl.shed.store(1, Relaxed);
        // The address makes the slot live.
        ctl.sk.store(sk, Relaxed);
        if gauges.track_consumer(sk, slot).is_err() {
            return None;
        }
        // A full socket beside others on its port must not stop theirs.
        gauges.set_port(port, if alone { Taker::Only(slot) } else { Taker::Shared }).ok()?;
        gauges.views.guard[0].consumers.fetch_max(slot as u32 + 1, Relaxed);
        self.slots[slot] = Some(Consumer {
            sk,
            port,
            process: String::new(),
            pid: 0,
            inode,
            sought: inode != 0,
            filter: None,
            alone,
            last_overflow: now,
            seen_overflows: 0,
        });
        self.name_the_only(gauges);
        Some(slot)
    }

    /// Tracks the socket of a packet filter whose queue holds at most `maxlen` packets; its slot, or `None` if the table
    /// is full.
    pub fn add_filter(
        &mut self,
        gauges: &Gauges,
        (sk, cookie): (u64, u64),
        (queue, port): (u16, u32),
        maxlen: u32,
        now: Nanos,
    ) -> Option<usize> {
        let slot = self.free(gauges, cookie)?;
        let ctl = &gauges.views.consumer_ctls[slot];
        // XDP does not know which frames the rules ask about.
        ctl.shed.store(0, Relaxed);
        ctl.maxlen.store(maxlen, Relaxed);
        ctl.sk.store(sk, Relaxed);
        gauges.track_consumer(sk, slot).ok()?;
        gauges.views.guard[0].consumers.fetch_max(slot as u32 + 1, Relaxed);
        self.slots[slot] = Some(Consumer {
            sk,
            port: 0,
            // A netlink port is the id of the process that opened it first; a program with several has others.
            process: kern::proc::name(port).unwrap_or_default(),
            pid: port,
            inode: 0,
            sought: false,
            filter: Some((queue, port)),
            alone: true,
            last_overflow: now,
            seen_overflows: 0,
        });
        self.name_the_only(gauges);
        Some(slot)
    }

    /// Looks for the programs behind sockets that have none yet; the answer is taken at a later call.
    pub fn name(&mut self) {
        if !self.names.ready() {
            return;
        }
        for consumer in self.slots.iter_mut().flatten().filter(|c| c.sought) {
            if let Some(holder) = self.names.holder(consumer.inode) {
                (consumer.process, consumer.pid) = (holder.name.clone(), holder.pid);
                consumer.sought = false;
            } else if self.names.given_up(consumer.inode) {
                consumer.sought = false;
            }
        }
        let held = self.slots.iter().flatten().filter(|c| c.inode != 0);
        let wanted = held.clone().filter(|c| c.sought).map(|c| c.inode).collect();
        self.names.search(held.map(|c| c.inode).collect(), wanted);
    }

    /// Retires closed and quiet consumers; the slots that became free. Looks at every slot once.
    pub fn retire(&mut self, gauges: &Gauges, now: Nanos) -> Vec<usize> {
        let (mut freed, mut ports) = (Vec::new(), Vec::new());
        let filters: Vec<u32> = match self.slots.iter().flatten().any(|c| c.filter.is_some()) {
            true => kern::proc::filter_queues().iter().map(|q| q.port).collect(),
            false => Vec::new(),
        };
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            let Some(consumer) = entry else { continue };
            let stat = &gauges.views.consumer_stats[slot];
            let ctl = &gauges.views.consumer_ctls[slot];
            // Whose surplus is shed need not overflow.
            let overflows = stat.overflows.load(Relaxed).wrapping_add(stat.shed.load(Relaxed));
            if overflows != consumer.seen_overflows || ctl.inhibited.load(Relaxed) != 0 {
                consumer.seen_overflows = overflows;
                consumer.last_overflow = now;
            }
            let gone = stat.gone.load(Relaxed) != 0;
            let quiet = now.saturating_sub(consumer.last_overflow) > QUIET;
            // The memory of a closed socket may keep its cookie, so the kernel's list is what counts.
            let closed = match consumer.filter {
                Some((_, port)) => !filters.contains(&port),
                None => kern::proc::udp_sockets(Some(consumer.port)).is_ok_and(|sockets| {
                    let alone = sockets.len() == 1;
                    if std::mem::replace(&mut consumer.alone, alone) != alone {
                        ports.push(consumer.port);
                    }
                    !sockets.iter().any(|s| s.inode == consumer.inode)
                }),
            };
            // A filter is found by its queue, not by an overflow, so quiet says nothing about it.
            if gone || closed || quiet && consumer.filter.is_none() {
                ctl.sk.store(0, Relaxed);
                stat.level.store(0, Relaxed);
                gauges.untrack_consumer(consumer.sk);
                ctl.maxlen.store(0, Relaxed);
                if consumer.filter.is_none() {
                    ports.push(consumer.port);
                }
                *entry = None;
                freed.push(slot);
            }
        }
        for port in ports {
            // A port left behind would shed for the next socket on it, unless that one is tracked already.
            let heir = self.iter().find(|(_, c)| c.filter.is_none() && c.port == port);
            let taker = match heir {
                Some((slot, consumer)) if consumer.alone => Taker::Only(slot),
                Some(_) => Taker::Shared,
                None => Taker::Untracked,
            };
            let _ = gauges.set_port(port, taker);
        }
        if !freed.is_empty() {
            self.name_the_only(gauges);
        }
        freed
    }

    /// With one consumer the program that runs at each read compares an address instead of searching a table.
    fn name_the_only(&self, gauges: &Gauges) {
        let guard = &gauges.views.guard[0];
        guard.only_sk.store(0, Relaxed);
        let mut tracked = self.iter();
        if let (Some((slot, consumer)), None) = (tracked.next(), tracked.next()) {
            guard.only_slot.store(slot as u32, Relaxed);
            guard.only_sk.store(consumer.sk, Relaxed);
        }
    }
}
