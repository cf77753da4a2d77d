//! What can be set on the machine.

use crate::engine::SEC;
use crate::settings::{Share, Time, choice, settings};

choice! {
    /// Who polls the ring.
    pub enum Receive {
        /// Softirq, and ksoftirqd when it takes too long.
        Stock = "stock",
        /// A NAPI kthread of normal priority.
        Threaded = "threaded",
        /// A NAPI kthread that runs when nothing else does.
        ThreadedIdle = "threaded-idle",
        /// A kthread of real-time priority that hands packets on, in place of an interrupt per packet.
        Hop = "hop",
        /// Softirq, started by a clock and by nothing else.
        Clocked = "clocked",
        /// weir: the kernel's own way until it is overloaded, then the poller.
        Weir = "weir",
    }
}

choice! {
    /// What the packets are for.
    pub enum Workload {
        /// Programs that read datagrams.
        Udp = "udp",
        /// The host forwards.
        Router = "router",
    }
}

choice! {
    /// What the packets of a flood are for.
    pub enum Flood {
        /// Programs that read.
        Reader = "reader",
        /// A program that is stopped.
        Hung = "hung",
        /// A UDP port that nobody has.
        ClosedPort = "closed-port",
        /// A TCP port that nobody has.
        SynClosed = "syn-closed",
        /// An address that is not the host's.
        OtherHost = "other-host",
        /// Datagrams whose other fragments never come.
        Fragments = "fragments",
        /// A port that a firewall refuses.
        Firewall = "firewall",
        /// A program that reads, by connections without end: those for which the connection table has no place are refused.
        Connections = "connections",
        /// Three programs: of 20 packets one is for one that is stopped, and one for one that is slow.
        Mixed = "mixed",
    }
}

impl Flood {
    /// Programs that it is for.
    pub fn programs(self) -> u32 {
        if self == Self::Mixed { 3 } else { 1 }
    }

    /// True if no program and no address takes it.
    pub fn is_nobodys(self) -> bool {
        matches!(self, Self::ClosedPort | Self::SynClosed | Self::OtherHost | Self::Firewall)
    }
}

const ANY_TIME: std::ops::RangeInclusive<Time> = Time(0)..=Time(SEC);
const MORE: std::ops::RangeInclusive<Time> = Time(1)..=Time(SEC);

settings! {
    /// Kernel, workload, queues and costs of one CPU of a host of today.
    pub struct Settings {
        /// who polls the ring
        receive: Receive = Receive::Stock, any;
        /// what the packets are for
        workload: Workload = Workload::Udp, any;
        /// compute-bound programs
        hogs: u32 = 0, (0..=64);
        /// what the flood is for
        flood: Flood = Flood::Reader, any;
        /// programs that read, each from a socket of its own
        consumers: u32 = 1, (1..=16);
        /// packets/s among those offered that are for servers beside the flood; 0: there are none
        asked: u32 = 0, (0..=1_000_000);
        /// servers that are asked in turn
        servers: u32 = 1, (1..=60);
        /// what a server needs for a question, and its answer
        answer: Time = Time(1_450), ANY_TIME;
        /// questions of the last part of the window do not count: they may be answered after the flood
        tail: Time = Time(0), ANY_TIME;
        /// packets/s among those offered that the host forwards; 0: none
        transit: u32 = 0, (0..=1_000_000);
        /// what the slow program of a mixed flood needs for a packet
        slow: Time = Time(200_000), ANY_TIME;
        /// flows of a flood that the host tells apart
        flows: u32 = 64, (1..=131_072);
        /// connections of a flood of connections for which the connection table has places
        places: u32 = 0, (0..=131_072);
        /// addresses that send the flood
        senders: u32 = 1, (1..=1000);
        /// share of the flood that the first of them sends beside its turn
        loud: Share = Share(0), (Share(0)..=Share(1000));
        /// the first of them stops reading for good after the warm-up
        hang: bool = false, any;
        /// share of the packets that go to the first of them; 0: each gets the same
        first: Share = Share(0), (Share(0)..=Share(1000));
        /// protected packets/s beside, evenly, for one more program; 0: nothing is protected
        protected: u32 = 0, (0..=1_000_000);
        /// receive descriptors
        ring: u32 = 256, (1..=65536);
        /// datagrams that a socket holds
        socket: u32 = 49, (1..=1_000_000);
        /// time before the window of the measurement
        warm_up: Time = Time(100_000_000), (Time(0)..=Time(10 * SEC));
        /// shortest time from the end of polling to the next interrupt
        moderation: Time = Time(50_000), ANY_TIME;
        /// packets of one NAPI poll
        weight: u32 = 64, (1..=256);
        /// packets of one softirq
        softirq_packets: u32 = 300, (1..=100_000);
        /// time of one softirq
        softirq_time: Time = Time(8_000_000), MORE;
        /// softirqs in a row, for at most 2 ms, before ksoftirqd is woken
        softirq_restarts: u32 = 10, (0..=1000);
        /// a ksoftirqd that is runnable keeps softirqs to itself: Linux 4.9 to 6.4, before the revert
        ksoftirqd_first: bool = false, any;
        /// base slice of the scheduler
        slice: Time = Time(2_800_000), MORE;
        /// clock tick
        tick: Time = Time(4_000_000), MORE;
        /// an interrupt that starts polling, with its exits to the hypervisor
        interrupt: Time = Time(10_000), ANY_TIME;
        /// starting the timer of a moderated interrupt when polling ends
        arm: Time = Time(0), ANY_TIME;
        /// one NAPI poll without packets
        poll: Time = Time(300), ANY_TIME;
        /// a packet from the ring to a socket
        deliver: Time = Time(260), ANY_TIME;
        /// a packet that nobody takes, until the kernel has dropped it
        refuse: Time = Time(600), ANY_TIME;
        /// the hop's own work on a packet
        hop: Time = Time(0), ANY_TIME;
        /// waking the hop on a CPU that runs something, until it works
        preempt: Time = Time(0), ANY_TIME;
        /// packets/s that a filter before the stack lets through, in bursts of 64; 0: no filter
        limit: u32 = 0, any;
        /// a packet from the ring to the output
        forward: Time = Time(1_750), ANY_TIME;
        /// a system call that reads a datagram, and the program's work on it
        read: Time = Time(1_450), ANY_TIME;
        /// waking a program up
        wake: Time = Time(2_000), ANY_TIME;
        /// changing from one thread to another
        switch: Time = Time(1_500), ANY_TIME;
        /// work of others after which the cache of a NAPI kthread is gone
        away: Time = Time(1_000_000), ANY_TIME;
        /// what a NAPI kthread needs more for its first work after that
        refill: Time = Time(0), ANY_TIME;
        /// packets handled later that evict a packet from the cache
        cold_after: u32 = 64, (1..=1_000_000);
        /// reading a packet that was evicted
        cold: Time = Time(0), ANY_TIME;
        /// packets that the source hands over at once: those after one that finds no place are lost too
        bulk: u32 = 1, (1..=64);
        /// what taking a packet costs more after the source has found the ring full: both sides use the same cache lines
        bounce: Time = Time(0), (Time(0)..=Time(10_000));
        /// CPUs on which the task group of programs and hogs is busy, which share its weight by load; 0: no group
        group_cpus: u32 = 0, (0..=1024);
        /// weir: one turn without packets
        turn: Time = Time(1_500), ANY_TIME;
        /// a frame that weir or the filter sheds before a buffer is allocated for it
        shed: Time = Time(80), ANY_TIME;
        /// weir: a sleep of the poller: its timer is armed, and interrupts
        nap: Time = Time(0), ANY_TIME;
        /// weir: the gate's work on a frame that passes
        judge: Time = Time(0), ANY_TIME;
        /// weir: from the evidence of overload to the first turn
        takeover: Time = Time(10_000_000), ANY_TIME;
        /// weir: takeovers that fail at first, because the handle learns no id
        refusals: u32 = 0, (0..=1000);
        /// weir: it runs behind the programs while nothing else wants the CPU
        lending: bool = true, any;
        /// weir: each read is watched at all times, not only while other programs compete
        watched: bool = false, any;
        /// weir: the source is taken over at the start and never given back
        polled: bool = false, any;
        /// weir: packets per turn
        quota: u32 = 32, (2..=256);
        /// weir: share of the CPU that programs are sure to get
        reserve: Share = Share(200), (Share(10)..=Share(950));
        /// weir: full sockets hold input back
        feedback: bool = true, any;
        /// weir: sources are left to the kernel and the gate where that will do
        sheds: bool = true, any;
        /// weir: the budget is kept
        budget: bool = true, any;
    }
}
