//! The Rust side of `src/bpf/guard.h`: the same structs, with atomics, since the other side writes concurrently.
//!
//! A `*Ctl` is written here and read by BPF; a `*Stat` is written by BPF and read here. All loads and stores are
//! relaxed: each field stands for itself.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Most sources of one guard.
pub const SOURCES: usize = 64;
/// Most consumers whose level is tracked; more degrade to "no feedback for that socket".
pub const CONSUMERS: usize = 64;
/// `WEIR_PORT_SHARED`.
#[cfg(not(no_bpf))]
pub(super) const PORT_SHARED: u8 = 255;

/// Which consumer gets the datagrams for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// None that is tracked.
    Untracked,
    /// This one, whatever the address.
    Only(usize),
    /// Several sockets share the port: the kernel is asked for each datagram.
    Shared,
}
/// Most pollers, one per CPU.
pub const POLLERS: usize = 64;

/// Values of [`GuardCtl::table`].
pub mod table {
    /// There is no table of connections, or nothing is in it.
    pub const EMPTY: u32 = 0;
    /// Connections are tracked: what was dropped behind the routes without one may be made up.
    pub const USED: u32 = 1;
    /// It is nearly full, or what is not in it may be invalid wherever it is dropped: that says nothing about the packet.
    pub const SILENT: u32 = 2;
    /// It has no place.
    pub const FULL: u32 = 3;
}

/// Values of [`SourceCtl::mode`].
pub mod mode {
    /// Not guarded.
    pub const NONE: u32 = 0;
    /// The kernel's own interrupts.
    pub const INTERRUPT: u32 = 1;
    /// Taken over by a poller.
    pub const POLL: u32 = 2;
    /// NAPI kthread.
    pub const THREAD: u32 = 3;
    /// The kernel's own interrupts, and XDP drops what is for full sockets.
    pub const SHED: u32 = 4;
}

/// Bits of [`PollerCtl::wait`].
pub mod wake {
    /// A consumer read down to its low water.
    pub const LEVEL: u32 = 1;
    /// The poller's CPU has nothing else to run.
    pub const IDLE: u32 = 2;
}

macro_rules! shared {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[repr(C, align(64))]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() % 64 == 0);
        #[cfg(all(test, not(no_bpf)))]
        impl $name {
            fn layout() -> crate::abi_tests::Layout {
                let name = crate::abi_tests::name_in_c(stringify!($name));
                crate::abi_tests::layout!($name, name, { $($field),* })
            }
        }
    };
}

shared!(
    /// What the guard tells BPF about one source.
    SourceCtl {
        /// One of [`mode`].
        mode: AtomicU32,
        /// Thread whose turns count as the poller's own.
        poller_tid: AtomicU32,
        /// Consecutive full polls that raise [`Event::Saturated`]; 0: never.
        full_polls: AtomicU32,
        /// Port of the handle, host order.
        mark_port: AtomicU16,
        /// Frames that may have been rewritten in all.
        marks: AtomicU32,
        /// IPv4 address of the interface that frames in transit are rewritten to, in memory order; 0: none.
        mark_v4: AtomicU32,
        /// The same for IPv6.
        mark_v6: [AtomicU32; 4],
        /// Index of the poller: whose bound for protected frames counts.
        poller: AtomicU32,
        /// [`RxStat::spared`] up to which a frame that somebody would miss is not rewritten.
        spare: AtomicU32,
        /// Until then frames may be shed or rewritten, CLOCK_MONOTONIC ns: what BPF holds back ends by itself.
        lease: AtomicU64,
        /// 1 if who gets a TCP frame is who the kernel's search finds where the XDP program runs; else only the share of a flooded
        /// listener is judged.
        exact: AtomicU32,
        /// Tick up to which full polls are no evidence, and not told.
        quiet: AtomicU32,
        /// Ethernet addresses of the interface and of those that stand on it, in memory order, 0 after the last; all 0: not told.
        mac: [AtomicU64; MACS],
    }
);
const _: () = assert!(size_of::<SourceCtl>() == 128);

/// Ethernet addresses of a source that BPF is told.
pub const MACS: usize = 8;

shared!(
    /// A handle that waits for a datagram of its interface.
    Steer {
        /// Until then one may be taken, CLOCK_MONOTONIC ns.
        lease: AtomicU64,
        /// Datagrams taken so far.
        taken: AtomicU64,
        /// 1 while one is wanted; BPF clears it.
        wanted: AtomicU32,
        /// Datagrams that are let go before one is taken; BPF counts it down.
        spare: AtomicU32,
        /// Port of the handle, host order: rewritten frames are for it.
        port: AtomicU32,
    }
);

shared!(
    /// NAPI work of one source, counted at `napi:napi_poll`.
    SourceStat {
        /// Calls of the driver's poll function.
        polls: AtomicU64,
        /// Packets they handed up.
        packets: AtomicU64,
        /// Calls made by the poller's turns.
        own_polls: AtomicU64,
        /// Packets of the poller's turns.
        own_packets: AtomicU64,
        /// Calls that used their whole budget.
        full_polls: AtomicU64,
        /// Full polls in a row, outside the poller.
        streak: AtomicU32,
        /// CPU of the last poll that was not the poller's.
        softirq_cpu: AtomicU32,
        /// Last [`Event::Saturated`], ns.
        reported_ns: AtomicU64,
        /// NAPI id that a packet told; 0 before. Cleared here before it is asked for.
        napi_id: AtomicU32,
        /// Calls that were not the poller's, while it polled.
        foreign: AtomicU32,
    }
);

shared!(
    /// What the XDP program counted for one source.
    RxStat {
        /// Frames that no rule protects, or not that many of them.
        normal: AtomicU64,
        /// Frames that a rule protects, within their bound.
        protected: AtomicU64,
        /// Of the normal ones, those for inhibited consumers.
        to_full: AtomicU64,
        /// Frames dropped on purpose.
        shed: AtomicU64,
        /// Frames rewritten to mark the handle.
        marked: AtomicU64,
        /// Of the normal ones, those that a rule protects, but not that many of them.
        over_bound: AtomicU64,
        /// Frames that were not rewritten because somebody would miss them.
        spared: AtomicU32,
        /// Of the last one in `over_bound`: the place of its match, + 1.
        over_rule: AtomicU32,
        /// Of the frames, TCP segments of connections that stand.
        tcp: AtomicU64,
        /// Of the frames dropped on purpose, those that nobody would have taken.
        nobody: AtomicU64,
        /// Frames that passed for tracked consumers: what else passed is somebody else's.
        known: AtomicU64,
        /// Of the frames dropped on purpose, SYNs for listeners that accept nothing more, or that have had their share.
        syns: AtomicU64,
        /// Of the frames dropped on purpose, those that there was room for, which is held for senders that have had less.
        over_share: AtomicU64,
        /// Of the frames, those that a pause would lose, passed or dropped: of quiet senders beside a loud one to the same consumer,
        /// and for tracked consumers that nothing is kept away from beside one that something is.
        innocents: AtomicU64,
        /// Of the frames, datagrams in one piece that passed since nothing is known of where they would end.
        unknown: AtomicU64,
        /// Of the frames, fragments that passed: where they end nobody knows either.
        fragments: AtomicU64,
        /// Of the frames dropped on purpose, fragments, since the budget did not last for them.
        cut: AtomicU64,
        /// Of the frames, those that no socket's room can be asked for: bridged ones, and those of other protocols, as ESP and GRE.
        opaque: AtomicU64,
        /// Of the TCP segments, bridged ones, which are not opaque ones.
        guests: AtomicU64,
        /// Fills the line.
        pad: [AtomicU64; 6],
    }
);
const _: () = assert!(size_of::<RxStat>() == 192);

impl RxStat {
    /// All frames that XDP saw.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.normal.load(Relaxed).wrapping_add(self.protected.load(Relaxed))
    }
}

shared!(
    /// What the guard tells BPF about one consumer.
    ConsumerCtl {
        /// Kernel address of the socket; 0: slot is free.
        sk: AtomicU64,
        /// Socket cookie.
        cookie: AtomicU64,
        /// Bit i: poller i keeps input away; reads down to `low` wake it.
        inhibited: AtomicU64,
        /// Low water, permille.
        low: AtomicU32,
        /// Not 0: XDP drops what this consumer has no room for.
        shed: AtomicU32,
        /// Most packets in a packet filter's queue; 0: only the buffer counts.
        maxlen: AtomicU32,
        /// Port of a consumer behind the host; 0: it is in the guard's own namespace.
        port: AtomicU32,
        /// Where the packets of a consumer behind the host go, by hash; 0: nothing is judged by it.
        inner: AtomicU64,
        /// Tick of the gate in which input was kept away last.
        paused: AtomicU32,
        /// Tick at which the list was begun by which no other socket has its port.
        alone: AtomicU32,
    }
);

shared!(
    /// Level and losses of one consumer.
    ConsumerStat {
        /// Datagrams the socket refused, of those that guarded interfaces carried.
        overflows: AtomicU64,
        /// Permille of the receive buffer.
        level: AtomicU32,
        /// Receive buffer, bytes.
        rcvbuf: AtomicU32,
        /// Not 0: the socket is closed.
        gone: AtomicU32,
        /// Bytes that a packet takes of its buffer, by those that it refused; 0: it refused none since it is tracked.
        truesize: AtomicU32,
        /// Datagrams the socket refused, of others than guarded interfaces carried.
        foreign: AtomicU64,
    }
);

shared!(
    /// Frames that one source shed, ever.
    Sheds {
        /// For each consumer, or for one that had its place before.
        of: [AtomicU64; CONSUMERS],
    }
);

shared!(
    /// What a sleeping poller may be woken for.
    PollerCtl {
        /// Bits of [`wake`].
        wait: AtomicU32,
        /// Permille of a poll that one consumer may get of it; 0: all.
        admit: AtomicU32,
        /// One protected packet per that many ns; 0: no bound.
        protected_ns: AtomicU64,
        /// Packets that one poll may hand up to one consumer, whatever it has room for; 0: no limit.
        quota: AtomicU32,
        /// 1 while others' packets are looked for: then consumers that are inhibited get what fits; else a pause must leave them to
        /// run dry, which tells whether their programs read.
        feeds: AtomicU32,
    }
);

shared!(
    /// NET_RX softirq time of one CPU.
    CpuStat {
        /// Nanoseconds.
        net_rx_ns: AtomicU64,
        /// Runs.
        net_rx_runs: AtomicU64,
        /// Start of the run under way, 0 if none.
        started_ns: AtomicU64,
        /// Datagrams that sockets of the guard's namespace refused on this CPU.
        overflows: AtomicU64,
        /// `overflows` at the last [`Event::Overflow`].
        reported: AtomicU64,
        /// Time of it, ns, or until when none is told.
        reported_ns: AtomicU64,
        /// Datagrams that sockets of other namespaces refused on this CPU.
        elsewhere: AtomicU64,
        /// Written by the poller of this CPU: 1 if every run is to be measured, 0 if a sample will do.
        metered: AtomicU32,
        /// Runs that the one under way stands for.
        weight: AtomicU32,
    }
);

shared!(
    /// Packets that sockets of the guard's namespace refused on one CPU.
    OverflowStat {
        /// Of these, those that came in by no guarded interface: no evidence.
        foreign: AtomicU64,
        /// Of sockets that the control loop did not hear of: too many at once.
        untold: AtomicU64,
        /// Begin of the present window, ns.
        window_ns: AtomicU64,
        /// Sockets told in it.
        told: AtomicU32,
        /// How the packet that was freed last had come in, where that is told apart from its socket.
        dropped: AtomicU32,
        /// What it took of a buffer, bytes.
        truesize: AtomicU32,
        /// Its IPv4 address, in memory order; 0: it has none.
        address: AtomicU32,
        /// Where it went, by hash; 0: not looked for.
        inner: AtomicU64,
        /// A tracked socket that has refused a packet of the guarded interface `again_iif`.
        again_sk: AtomicU64,
        /// Its index.
        again_iif: AtomicU32,
        /// Packets of that interface that the socket has refused since, counted nowhere else yet.
        pending: AtomicU32,
    }
);

shared!(
    /// Switches that turn the gauges off while nobody needs them.
    GuardCtl {
        /// Consumer slots in use.
        consumers: AtomicU32,
        /// How many consumers are inhibited.
        inhibited: AtomicU32,
        /// How many pollers wait for an idle CPU.
        pollers_waiting_idle: AtomicU32,
        /// Overflows on one CPU between two [`Event::Overflow`]; 0: none.
        overflow_step: AtomicU32,
        /// The one consumer that is tracked, 0 if there are more.
        only_sk: AtomicU64,
        /// Its slot.
        only_slot: AtomicU32,
        /// Which of the two tables of rules is in force.
        rules: AtomicU32,
        /// 1 + the consumer that (nearly) all frames in transit end in; 0: none.
        transit: AtomicU32,
        /// Permille of a CPU that softirq may take from programs before it is overload; 0: not watched.
        budget: AtomicU32,
        /// Tick at which the last list of sockets was begun, of UDP and of TCP; 0: there is none.
        listed: [AtomicU32; 2],
        /// What no socket took within so many ticks is somebody's; 0: nothing is nobody's.
        nobody_ticks: AtomicU32,
        /// Not 0: only the very flow that was refused is nobody's.
        by_flow: AtomicU32,
        /// Sources that may feed one consumer at once; 0 counts as 1.
        slices: AtomicU32,
        /// Consumers behind the host by which frames are judged.
        behind: AtomicU32,
        /// The table of connections: what packets without a connection say that were dropped. One of [`table`].
        table: AtomicU32,
        /// The guard's ordinary threads: 1 + the CPU on which each runs or waits to run; 0: it sleeps. One of [`own`].
        own: [AtomicU32; 2],
        /// Guard and keeper, as the PID namespace of the guard numbers them; 0: there is none.
        process: [AtomicU32; 2],
        /// That namespace.
        pidns_inode: AtomicU32,
        /// The device of the file system that has the inode.
        pidns_device: AtomicU32,
        /// Tick in which input was kept away from any consumer last.
        paused: AtomicU32,
        /// Not 0: what is for an address and port of this host may end elsewhere, so it is judged by what has ended in its socket.
        by_end: AtomicU32,
        /// Fills the line.
        pad: [AtomicU32; 7],
    }
);
const _: () = assert!(size_of::<GuardCtl>() == 128);

/// The guard's ordinary threads: they are no programs that starve.
pub mod own {
    /// The control loop.
    pub const CONTROL: usize = 0;
    /// The one that lists the sockets.
    pub const PORTS: usize = 1;
}

/// Words of [`PortsUsed`]: a bit per UDP port, then one per TCP port.
pub const PORT_WORDS: usize = 2 * 65536 / 64;

shared!(
    /// Ports that some socket has.
    PortsUsed {
        /// Bit `port` of the first half for UDP, of the second one for TCP.
        word: [AtomicU64; PORT_WORDS],
    }
);
const _: () = assert!(size_of::<PortsUsed>() == 16384);

shared!(
    /// What the gate has learnt.
    GateStat {
        /// Destinations found to be nobody's.
        ports: AtomicU64,
        /// Flows and addresses found to be refused.
        flows: AtomicU64,
        /// Drops that nothing was learnt from: a socket has the port, or had it lately.
        spoken_for: AtomicU64,
        /// Tick of the last refusal that was learnt.
        refused: AtomicU32,
        /// Tick of the last datagram that a socket of another namespace refused.
        elsewhere: AtomicU32,
        /// Losses of other namespaces that were taken as evidence.
        evidence: AtomicU64,
        /// Packets for consumers behind the host that found a place taken: nothing was learnt from them.
        crowded: AtomicU64,
        /// Of these packets, those whose translation this kernel does not tell.
        untranslated: AtomicU64,
        /// Listeners that made room for another one while their SYNs were counted: the table is crowded, and more SYNs pass.
        listeners: AtomicU64,
    }
);

/// The record BPF sends; decoded by [`Event::parse`].
#[repr(C)]
#[derive(Clone, Copy)]
struct RawEvent {
    kind: u32,
    slot: u32,
    time_ns: u64,
    sk: u64,
    cookie: u64,
    inode: u64,
    port: u16,
    family: u16,
    cpu: u32,
    uid: u32,
    lost: u32,
    inner: u64,
    netns: u32,
    address: u32,
    waited: u64,
}
const _: () = assert!(size_of::<RawEvent>() == 80);

/// Where a socket of another network namespace is, whose packets the host sends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Inode of its network namespace.
    pub netns: u32,
    /// Where its packets go, by a hash that only this guard's programs know.
    pub inner: u64,
    /// Address that they go to; `None` for IPv6.
    pub address: Option<std::net::Ipv4Addr>,
}

/// Something the control loop must decide about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A source used its whole budget several times in a row.
    Saturated {
        /// Source slot.
        source: usize,
        /// CLOCK_MONOTONIC ns.
        time_ns: u64,
        /// CPU of the poll.
        cpu: u32,
    },
    /// A UDP socket without a slot overflowed by packets that a guarded interface carried. Told once a second of one socket.
    NewConsumer {
        /// Kernel address.
        sk: u64,
        /// Socket cookie.
        cookie: u64,
        /// Inode, by which /proc lists it; 0: not known.
        inode: u64,
        /// Local port.
        port: u16,
        /// Its user, as the initial user namespace numbers it.
        uid: u32,
        /// Such packets that it refused since it was told last.
        lost: u32,
        /// Where it is, if it is in another namespace than the guard's.
        behind: Option<Behind>,
        /// CLOCK_MONOTONIC ns.
        time_ns: u64,
    },
    /// A netlink socket without a slot has read from netfilter.
    NewFilter {
        /// Kernel address.
        sk: u64,
        /// Socket cookie.
        cookie: u64,
        /// Netlink port, which names it in the kernel's list of queues.
        port: u32,
    },
    /// Softirq took more than the budget from programs that wanted the CPU, for a window of 10 ms and more.
    OverBudget {
        /// The CPU.
        cpu: u32,
        /// CLOCK_MONOTONIC ns.
        time_ns: u64,
        /// How long a task waits for it, on average, ns; the most where the kernel does not tell.
        waited: u64,
    },
    /// Sockets overflowed `overflow_step` times more on one CPU.
    Overflow {
        /// The CPU.
        cpu: u32,
        /// CLOCK_MONOTONIC ns.
        time_ns: u64,
    },
}

impl Event {
    /// Decodes one ring-buffer record; `None` for a record of another size or kind.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<RawEvent>() {
            return None;
        }
        // SAFETY: the length is checked and every bit pattern is a valid RawEvent.
        let raw = unsafe { bytes.as_ptr().cast::<RawEvent>().read_unaligned() };
        let slot = raw.slot as usize;
        match raw.kind {
            1 if slot < SOURCES => Some(Self::Saturated { source: slot, time_ns: raw.time_ns, cpu: raw.cpu }),
            2 => Some(Self::NewConsumer {
                sk: raw.sk,
                cookie: raw.cookie,
                inode: raw.inode,
                port: raw.port,
                uid: raw.uid,
                lost: raw.lost,
                behind: (raw.netns != 0).then(|| Behind {
                    netns: raw.netns,
                    inner: raw.inner,
                    // In the packet's order.
                    address: (raw.address != 0).then(|| raw.address.to_ne_bytes().into()),
                }),
                time_ns: raw.time_ns,
            }),
            3 => Some(Self::Overflow { cpu: raw.cpu, time_ns: raw.time_ns }),
            5 => Some(Self::OverBudget { cpu: raw.cpu, time_ns: raw.time_ns, waited: raw.waited }),
            4 => Some(Self::NewFilter { sk: raw.sk, cookie: raw.cookie, port: raw.slot }),
            _ => None,
        }
    }
}

/// What [`crate::abi_tests`] compares.
#[cfg(all(test, not(no_bpf)))]
pub fn layouts() -> Vec<crate::abi_tests::Layout> {
    vec![
        SourceCtl::layout(),
        Steer::layout(),
        SourceStat::layout(),
        RxStat::layout(),
        ConsumerCtl::layout(),
        ConsumerStat::layout(),
        Sheds::layout(),
        PollerCtl::layout(),
        CpuStat::layout(),
        OverflowStat::layout(),
        GuardCtl::layout(),
        PortsUsed::layout(),
        GateStat::layout(),
    ]
}
