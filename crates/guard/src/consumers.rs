//! The table of consumers: UDP sockets that overflowed at least once, found by BPF, named and retired here; and the
//! sockets of packet filters, which `filters` finds.
//!
//! A socket that never overflows costs nothing and is never tracked. At most [`CONSUMERS`] are tracked; `policy::seats`
//! says which, by what they lose and by user. The others have no feedback; they ask again once a second.
//!
//! Sockets of other network namespaces, which the host sends packets on to, are consumers too. BPF knows one by where its packets go;
//! frames are judged by it only while the list of sockets of its namespace has no other one on its port.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use kern::guard::{Behind, CONSUMERS, Gauges, Taker};
use kern::proc::UdpSocket;
use kern::spaces::Spaces;
use policy::Nanos;
use policy::gate::{self, Judge, OnPort, next_look, tick};
use policy::seats::{self, Refused, Seat};

use crate::clock;
use crate::dispatch::NewConsumer;
use crate::names::Names;

/// A consumer without overflow or inhibit for this long is forgotten, ns.
const QUIET: Nanos = 60_000_000_000;

/// One tracked consumer.
#[derive(Clone, Debug)]
pub struct Consumer {
    sk: u64,
    cookie: u64,
    uid: u32,
    /// Packets lost or shed lately: of the last second, and half as many of each second before.
    lost: u64,
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
    /// Where it is, if it is in another network namespace.
    pub behind: Option<Behind>,
    judge: Judge,
    last_overflow: Nanos,
    seen_overflows: u64,
    /// What had been shed for others in its place.
    shed_before: u64,
}

impl Consumer {
    /// Packets of guarded interfaces that it has refused, in this place.
    pub fn refused(&self, gauges: &Gauges, slot: usize) -> u64 {
        gauges.views.refused_by(slot, self.sk)
    }

    /// Frames shed for it, which has `slot`, since it is tracked.
    pub fn shed(&self, gauges: &Gauges, slot: usize) -> u64 {
        gauges.views.shed_for(slot).wrapping_sub(self.shed_before)
    }

    /// Of its socket.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }
}

/// See the module.
pub struct Consumers {
    slots: Vec<Option<Consumer>>,
    low: u32,
    sheds: bool,
    names: Names,
    spaces: Spaces,
    around: Around,
    /// When closed sockets are looked for again.
    look_at: Nanos,
    /// Times a socket got no place, since the start.
    pub refused: u64,
    /// Times one made room for another, since the start.
    pub evicted: u64,
}

/// Nobody holds input back for this slot any more; its pollers hear of it by [`crate::messages::Command::Forget`].
fn lift(gauges: &Gauges, slot: usize) {
    let held = gauges.views.consumer_ctls[slot].inhibited.swap(0, Relaxed);
    gauges.views.guard[0].inhibited.fetch_sub(held.count_ones(), Relaxed);
}

/// What packets meet before they come to a socket of this namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// Interfaces that stand on guarded ones.
    pub above: BTreeSet<u32>,
    /// Programs choose sockets.
    pub redirects: bool,
}

impl Around {
    fn judge<'a>(&self, sockets: impl Iterator<Item = &'a UdpSocket>) -> Judge {
        let sockets = sockets.map(|s| OnPort { connected: s.remote.is_some(), interface: s.interface });
        gate::judge(sockets, |index| self.above.contains(&index), self.redirects)
    }
}

/// What BPF is told of the port of the consumer in `slot`.
fn taker(slot: usize, judge: Judge) -> Taker {
    match judge {
        Judge::Port => Taker::Only(slot),
        Judge::Search => Taker::Shared,
        Judge::Nobody => Taker::Untracked,
    }
}

/// By the list of sockets of another namespace: it is judged by its port only if it is this one, else not at all.
fn judge_behind(sockets: &[UdpSocket], inode: u64) -> Judge {
    match Around::default().judge(sockets.iter()) {
        Judge::Port if sockets[0].inode != inode => Judge::Search,
        judge => judge,
    }
}

/// A place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Which.
    pub slot: usize,
    /// Another consumer had it until now.
    pub evicted: bool,
}

/// Why a socket is not tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untracked {
    /// The table has no place for it.
    Refused(Refused),
    /// BPF's tables have none.
    Full,
}

impl fmt::Display for Untracked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untracked::Refused(why) => why.fmt(f),
            Untracked::Full => f.write_str("a table of BPF is full"),
        }
    }
}

impl Consumers {
    /// An empty table; low water in permille. If it `sheds` XDP drops what a socket has no room for.
    pub fn new(low: u32, sheds: bool) -> Self {
        let slots = (0..CONSUMERS).map(|_| None).collect();
        let (names, spaces, around) = (Names::default(), Spaces::default(), Around::default());
        Self { slots, low, sheds, names, spaces, around, look_at: 0, refused: 0, evicted: 0 }
    }

    /// A new low water for all, permille.
    pub fn set_low(&mut self, gauges: &Gauges, low: u32) {
        self.low = low;
        for ctl in gauges.views.consumer_ctls.iter() {
            ctl.low.store(low, Relaxed);
        }
    }

    /// From now on, and for those that are tracked at the next look at the list of sockets, which is at once if it changes anything.
    pub fn set_around(&mut self, around: Around) {
        if self.around != around {
            (self.around, self.look_at) = (around, 0);
        }
    }

    /// Tracked consumers with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Consumer)> {
        self.slots.iter().enumerate().filter_map(|(i, c)| c.as_ref().map(|c| (i, c)))
    }

    /// A place for a socket of `uid` that lost `lost` packets lately, cleared for the socket `cookie`; nothing looks at it before
    /// its address is set.
    fn place(
        &mut self,
        gauges: &Gauges,
        (sk, cookie): (u64, u64),
        uid: u32,
        lost: u64,
    ) -> Result<Placed, Untracked> {
        // The memory of a socket that is gone may be another one's by now; a socket that asked twice has its place.
        let same = self.iter().find(|(_, c)| c.sk == sk).map(|(slot, c)| (slot, c.cookie));
        match same {
            Some((slot, known)) if known == cookie => return Ok(Placed { slot, evicted: false }),
            Some((slot, _)) => self.leave(gauges, slot),
            None => {}
        }
        let seats = self.slots.iter().zip(gauges.views.consumer_ctls.iter()).map(|(consumer, ctl)| {
            let consumer = consumer.as_ref()?;
            let (fixed, busy) = (consumer.filter.is_some(), ctl.inhibited.load(Relaxed) != 0);
            Some(Seat { uid: consumer.uid, lost: consumer.lost, fixed, busy })
        });
        let slot = seats::admit(&seats.collect::<Vec<_>>(), uid, lost).map_err(|why| {
            self.refused += 1;
            Untracked::Refused(why)
        })?;
        let evicted = self.slots[slot].is_some();
        if evicted {
            self.evicted += 1;
            self.leave(gauges, slot);
        }
        let stat = &gauges.views.consumer_stats[slot];
        for counter in [&stat.overflows, &stat.foreign] {
            counter.store(0, Relaxed);
        }
        stat.level.store(0, Relaxed);
        stat.truesize.store(0, Relaxed);
        stat.gone.store(0, Relaxed);
        let ctl = &gauges.views.consumer_ctls[slot];
        ctl.cookie.store(cookie, Relaxed);
        ctl.low.store(self.low, Relaxed);
        lift(gauges, slot);
        Ok(Placed { slot, evicted })
    }

    /// Tracks a socket that overflowed.
    ///
    /// # Errors
    /// Why it is not tracked.
    pub fn add(&mut self, gauges: &Gauges, found: &NewConsumer, now: Nanos) -> Result<Placed, Untracked> {
        let NewConsumer { sk, cookie, port, inode, uid, lost, behind, .. } = *found;
        let uid = behind.map_or(uid, |b| seats::user_of_namespace(b.netns));
        let placed = self.place(gauges, (sk, cookie), uid, u64::from(lost))?;
        let slot = placed.slot;
        if self.slots[slot].is_some() {
            return Ok(placed);
        }
        let ctl = &gauges.views.consumer_ctls[slot];
        ctl.port.store(if behind.is_some() { port.into() } else { 0 }, Relaxed);
        ctl.shed.store(self.sheds.into(), Relaxed);
        // The address makes the slot live.
        ctl.sk.store(sk, Relaxed);
        let tracked = gauges.track_consumer(sk, slot);
        // A full socket beside others on its port must not stop theirs: until it is known to be alone the kernel is asked. Lists of
        // sockets take milliseconds where programs keep the CPU busy, and what floods it is handed up meanwhile.
        let set = |()| if behind.is_some() { Ok(()) } else { gauges.set_port(port, Taker::Shared) };
        tracked.and_then(set).map_err(|_| {
            ctl.sk.store(0, Relaxed);
            gauges.untrack_consumer(sk);
            Untracked::Full
        })?;
        gauges.views.guard[0].consumers.fetch_max(slot as u32 + 1, Relaxed);
        self.slots[slot] = Some(Consumer {
            sk,
            cookie,
            uid,
            lost: u64::from(lost),
            port,
            process: String::new(),
            pid: 0,
            inode,
            sought: inode != 0,
            filter: None,
            behind,
            judge: Judge::Search,
            last_overflow: now,
            seen_overflows: 0,
            shed_before: gauges.views.shed_for(slot),
        });
        ctl.alone.store(tick(clock::now()), Relaxed);
        let judge = match behind {
            None => {
                kern::raw::udp_at(&[port].into()).map_or(Judge::Search, |list| self.around.judge(list.iter()))
            }
            Some(behind) => {
                self.spaces.begin();
                let sockets = self.spaces.udp_sockets(behind.netns, port, now);
                sockets.map_or(Judge::Search, |sockets| judge_behind(&sockets, inode))
            }
        };
        if let Some(consumer) = self.slots[slot].as_mut() {
            consumer.judge = judge;
        }
        match behind {
            // Refused it stays with the search, at its cost.
            None => _ = gauges.set_port(port, taker(slot, judge)),
            Some(behind) => self.tell_inner(gauges, behind.inner),
        }
        self.tell_table(gauges);
        Ok(placed)
    }

    /// Tracks the socket of a packet filter whose queue holds at most `maxlen` packets. It stays until it is closed.
    ///
    /// # Errors
    /// Why it is not tracked.
    pub fn add_filter(
        &mut self,
        gauges: &Gauges,
        (sk, cookie): (u64, u64),
        (queue, port): (u16, u32),
        maxlen: u32,
        now: Nanos,
    ) -> Result<Placed, Untracked> {
        let placed = self.place(gauges, (sk, cookie), 0, u64::MAX)?;
        let slot = placed.slot;
        if self.slots[slot].is_some() {
            return Ok(placed);
        }
        let ctl = &gauges.views.consumer_ctls[slot];
        // XDP does not know which frames the rules ask about.
        ctl.shed.store(0, Relaxed);
        ctl.maxlen.store(maxlen, Relaxed);
        ctl.port.store(0, Relaxed);
        ctl.sk.store(sk, Relaxed);
        gauges.track_consumer(sk, slot).map_err(|_| {
            ctl.sk.store(0, Relaxed);
            Untracked::Full
        })?;
        gauges.views.guard[0].consumers.fetch_max(slot as u32 + 1, Relaxed);
        self.slots[slot] = Some(Consumer {
            sk,
            cookie,
            uid: 0,
            lost: 0,
            port: 0,
            // A netlink port is the id of the process that opened it first; a program with several has others.
            process: kern::proc::name(port).unwrap_or_default(),
            pid: port,
            inode: 0,
            sought: false,
            filter: Some((queue, port)),
            behind: None,
            judge: Judge::Port,
            last_overflow: now,
            seen_overflows: 0,
            shed_before: gauges.views.shed_for(slot),
        });
        self.tell_table(gauges);
        Ok(placed)
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

    /// No name is searched for any more.
    pub fn end(&mut self) {
        self.names.end();
    }

    /// Retires closed and quiet consumers; the slots that became free. Looks at every slot once, and is to be called once a
    /// second.
    pub fn retire(&mut self, gauges: &Gauges, now: Nanos) -> Vec<usize> {
        let (mut freed, mut ports, mut inners) = (Vec::new(), Vec::new(), Vec::new());
        self.spaces.begin();
        let filters: Vec<u32> = match self.slots.iter().flatten().any(|c| c.filter.is_some()) {
            true => kern::proc::filter_queues().iter().map(|q| q.port).collect(),
            false => Vec::new(),
        };
        // One look for all of them: a host may have tens of thousands of sockets. Until the next one only BPF tells who is gone.
        let here = (now >= self.look_at).then(|| {
            let own = self.slots.iter().flatten().filter(|c| c.filter.is_none() && c.behind.is_none());
            let (ports, begun) = (own.map(|c| c.port).collect(), clock::now());
            let list = kern::raw::udp_at(&ports).ok();
            self.look_at = next_look(now, clock::now().saturating_sub(begun));
            list.map(|list| (list, tick(begun)))
        });
        let here = here.flatten();
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            let Some(consumer) = entry else { continue };
            let stat = &gauges.views.consumer_stats[slot];
            let ctl = &gauges.views.consumer_ctls[slot];
            // Whose surplus is shed need not overflow.
            let overflows = consumer.refused(gauges, slot).wrapping_add(consumer.shed(gauges, slot));
            // What is counted at once may for a moment be counted in neither place, or in both.
            let more = overflows.saturating_sub(consumer.seen_overflows);
            consumer.seen_overflows = overflows.max(consumer.seen_overflows);
            consumer.lost = consumer.lost / 2 + more;
            if more != 0 || ctl.inhibited.load(Relaxed) != 0 {
                consumer.last_overflow = now;
            }
            let gone = stat.gone.load(Relaxed) != 0;
            let quiet = now.saturating_sub(consumer.last_overflow) > QUIET;
            // The memory of a closed socket may keep its cookie, so the kernel's list is what counts.
            let closed = match (consumer.filter, consumer.behind) {
                (Some((_, port)), _) => !filters.contains(&port),
                (None, Some(behind)) => {
                    let sockets = self.spaces.udp_sockets(behind.netns, consumer.port, now);
                    let judge = sockets.as_ref().map_or(Judge::Search, |s| judge_behind(s, consumer.inode));
                    if std::mem::replace(&mut consumer.judge, judge) != judge {
                        inners.push(behind.inner);
                    }
                    // Without a list BPF tells, or quiet.
                    sockets.is_some_and(|s| !s.iter().any(|s| s.inode == consumer.inode))
                }
                (None, None) => here.as_ref().is_some_and(|(all, begun)| {
                    ctl.alone.store(*begun, Relaxed);
                    let sockets = || all.iter().filter(|s| s.local.port() == consumer.port);
                    let judge = self.around.judge(sockets());
                    if std::mem::replace(&mut consumer.judge, judge) != judge {
                        ports.push(consumer.port);
                    }
                    !sockets().any(|s| s.inode == consumer.inode)
                }),
            };
            // A filter is found by its queue, not by an overflow, so quiet says nothing about it.
            if gone || closed || quiet && consumer.filter.is_none() {
                freed.push(slot);
            }
        }
        for port in ports {
            self.tell_port(gauges, port);
        }
        for inner in inners {
            self.tell_inner(gauges, inner);
        }
        for slot in &freed {
            self.leave(gauges, *slot);
        }
        freed
    }

    /// The consumer is not tracked any more; its place is free.
    fn leave(&mut self, gauges: &Gauges, slot: usize) {
        let Some(consumer) = self.slots[slot].take() else { return };
        let ctl = &gauges.views.consumer_ctls[slot];
        ctl.sk.store(0, Relaxed);
        lift(gauges, slot);
        gauges.views.consumer_stats[slot].level.store(0, Relaxed);
        gauges.untrack_consumer(consumer.sk);
        ctl.maxlen.store(0, Relaxed);
        ctl.inner.store(0, Relaxed);
        ctl.port.store(0, Relaxed);
        match consumer.behind {
            Some(behind) => self.tell_inner(gauges, behind.inner),
            None if consumer.filter.is_none() => self.tell_port(gauges, consumer.port),
            None => {}
        }
        self.tell_table(gauges);
    }

    /// Tells BPF by whom frames are judged that go to `inner`, behind the host: by the one socket that is there, or by none.
    fn tell_inner(&self, gauges: &Gauges, inner: u64) {
        let ctls = &gauges.views.consumer_ctls;
        let here = || self.iter().filter(move |(_, c)| c.behind.is_some_and(|b| b.inner == inner));
        here().for_each(|(slot, _)| ctls[slot].inner.store(0, Relaxed));
        let mut all = here();
        let only = match (all.next(), all.next()) {
            (Some((slot, consumer)), None) if consumer.judge == Judge::Port => Some(slot),
            _ => None,
        };
        if gauges.set_inner(inner, only).is_ok()
            && let Some(slot) = only
        {
            ctls[slot].inner.store(inner, Relaxed);
        }
        let judged = self.iter().filter(|(slot, _)| ctls[*slot].inner.load(Relaxed) != 0).count();
        gauges.views.guard[0].behind.store(judged as u32, Relaxed);
    }

    /// Tells BPF who gets the datagrams for a port now. One left behind would shed for the next socket on it, unless that one is
    /// tracked already.
    fn tell_port(&self, gauges: &Gauges, port: u16) {
        let heir = self.iter().find(|(_, c)| c.filter.is_none() && c.behind.is_none() && c.port == port);
        let heir = heir.map_or(Taker::Untracked, |(slot, consumer)| taker(slot, consumer.judge));
        let _ = gauges.set_port(port, heir);
    }

    /// Tells BPF how far frames are judged and levels watched: to the last place that is taken. And who is the only one: the program that
    /// runs at each read then compares an address instead of searching a table.
    fn tell_table(&self, gauges: &Gauges) {
        let guard = &gauges.views.guard[0];
        let places = self.iter().last().map_or(0, |(slot, _)| slot as u32 + 1);
        guard.consumers.store(places, Relaxed);
        guard.only_sk.store(0, Relaxed);
        let mut tracked = self.iter();
        if let (Some((slot, consumer)), None) = (tracked.next(), tracked.next()) {
            guard.only_slot.store(slot as u32, Relaxed);
            guard.only_sk.store(consumer.sk, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_judged_by_a_socket_that_gets_all_of_its_port_only() {
        let socket = |inode, remote: Option<&str>| UdpSocket {
            local: "0.0.0.0:53".parse().unwrap(),
            remote: remote.map(|r| r.parse().unwrap()),
            rx_queue: 0,
            drops: 0,
            inode,
            uid: 0,
            interface: 0,
        };
        let is_its = |sockets: &[UdpSocket]| judge_behind(sockets, 7) == Judge::Port;
        assert!(is_its(&[socket(7, None)]));
        assert!(!is_its(&[]), "closed");
        assert!(!is_its(&[socket(8, None)]), "another one");
        assert!(!is_its(&[socket(7, None), socket(8, None)]), "one of a group");
        assert!(!is_its(&[socket(7, Some("10.0.0.1:99"))]), "one client's");
    }
}
