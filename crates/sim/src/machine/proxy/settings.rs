//! Settings of the proxy: topology, NIC, accept queues, peers, and the cost of every step at one core.

use crate::engine::SEC;
use crate::settings::{Share, Time, choice, settings};

choice! {
    /// Which core receives a packet.
    pub enum Steering {
        /// One queue, one core.
        Single = "single",
        /// One queue; its core hands packets to others by the hash of their flow (BH-09).
        Rps = "rps",
        /// A table of 128 entries and few queues (BH-10).
        Rss = "rss",
        /// A queue per core and a table of flow groups in the NIC (BH-11).
        FlowTable = "flow-table",
    }
}

choice! {
    /// Where established connections wait for accept().
    pub enum Queues {
        /// One queue, any worker (BH-16).
        Global = "global",
        /// A clone of the listener per core (BH-17).
        PerCore = "per-core",
        /// One queue without a lock, which no machine has: what balancing is compared with.
        Ideal = "ideal",
    }
}

choice! {
    /// Where `policy` places a connection among queues per core (BH-20).
    pub enum Place {
        /// On the core that receives it.
        Own = "own",
        /// The shorter one of its own and a drawn one.
        ShortestOfTwo = "shortest-of-two",
        /// Elsewhere while its own is busy.
        Spill = "spill",
    }
}

choice! {
    /// Which core receives the packets of the proxy's own connections (BH-24).
    pub enum Outgoing {
        /// By hash, like any flow.
        Hash = "hash",
        /// The worker's: the source port is chosen so.
        OwnCore = "own-core",
    }
}

choice! {
    /// How a lock goes to the next core.
    pub enum Locks {
        /// All that wait read the line again (Linux before 4.2).
        Ticket = "ticket",
        /// Each waits on a line of its own.
        Queued = "queued",
    }
}

const MS: u64 = 1_000_000;

settings! {
    /// See the module.
    pub struct Settings {
        /// cores in use
        cores: u16 = 64, (1..=128);
        /// cores of a module: they share a level 2 cache and slow each other down
        module: u16 = 2, (1..=16);
        /// cores of a die
        die: u16 = 8, (1..=128);
        /// cores of a chip
        chip: u16 = 16, (1..=128);
        /// transfer of a modified cache line within a module
        line_module: Time = Time(10), (Time(0)..=Time(10_000));
        /// within a die
        line_die: Time = Time(40), (Time(0)..=Time(10_000));
        /// between dies of a chip
        line_chip: Time = Time(80), (Time(0)..=Time(10_000));
        /// between neighbouring chips
        line_near: Time = Time(85), (Time(0)..=Time(10_000));
        /// between chips that are not neighbours in the ring of chips
        line_far: Time = Time(120), (Time(0)..=Time(10_000));
        /// how much longer work takes while the module's other core works
        sibling: Share = Share(0), any;
        /// which core receives a packet
        steering: Steering = Steering::FlowTable, any;
        /// queues that RSS has
        rss_queues: u16 = 16, (1..=128);
        /// core of the interrupt with one queue
        irq_core: u16 = 0, (0..=127);
        /// descriptors per receive queue
        ring: u32 = 512, (1..=65_536);
        /// frames after which a burst of receive work ends and the interrupt is enabled again
        poll_frames: u32 = 12, (1..=10_000);
        /// from enabling the interrupt, or a packet, to the handler
        irq_gap: Time = Time(3_400), (Time(0)..=Time(MS));
        /// where established connections wait
        accept: Queues = Queues::Global, any;
        /// connections that a listener's queue takes
        backlog: u32 = 511, (1..=65_535);
        /// where a connection is placed among queues per core
        place: Place = Place::Own, any;
        /// length at which a queue is busy
        busy_high: u32 = 4, (1..=65_535);
        /// length at which it no longer is
        busy_low: u32 = 1, (0..=65_534);
        /// cores take connections from busy ones
        steal: bool = false, any;
        /// accepts from the own queue between two stolen ones
        steal_local: u32 = 5, (1..=1000);
        /// most cores that one decision looks at
        scan: u32 = 8, (1..=128);
        /// period of moving flow groups to the cores that steal; 0s for never
        migrate: Time = Time(0), (Time(0)..=Time(10 * SEC));
        /// which core receives the packets of the proxy's own connections
        outgoing: Outgoing = Outgoing::Hash, any;
        /// connections whose flow groups all belong to one core, the hot one
        hot_share: Share = Share(0), any;
        /// the hot core
        hot_core: u16 = 1, (0..=127);
        /// halves of the exponent by which the cores differ in the connections that they receive (Zipf); 0: not at all
        zipf: u16 = 0, (0..=6);
        /// worker processes per core, bound to it
        workers: u16 = 3, (1..=16);
        /// first core that has workers
        workers_from: u16 = 0, (0..=127);
        /// last core that has workers
        workers_to: u16 = 127, (0..=127);
        /// clients, each with one request at a time
        clients: u32 = 1000, (1..=100_000);
        /// connections/s for each core in an open loop: their times do not depend on answers; 0: the clients' closed loops
        rate: u32 = 0, (0..=1_000_000);
        /// from a response to the client's next request
        think: Time = Time(0), (Time(0)..=Time(10 * SEC));
        /// links to clients, and as many to servers
        links: u16 = 3, (1..=64);
        /// Mb/s of each
        link_rate: u32 = 1000, (1..=1_000_000);
        /// bytes of a response on the wire
        response: u32 = 19_970, (64..=10_000_000);
        /// frames of a response
        response_frames: u32 = 14, (1..=10_000);
        /// acknowledgements of a response, with the end of the connection
        ack_frames: u32 = 8, (1..=10_000);
        /// round trip to a client or a server
        rtt: Time = Time(200_000), (Time(0)..=Time(SEC));
        /// what a server needs for a response
        server: Time = Time(500_000), (Time(0)..=Time(SEC));
        /// lost frames are sent again after
        rto: Time = Time(200 * MS), (Time(MS)..=Time(10 * SEC));
        /// lost connection requests are sent again after
        syn_rto: Time = Time(SEC), (Time(MS)..=Time(10 * SEC));
        /// interrupt: handler, start and end of its softirq
        irq: Time = Time(4_000), (Time(0)..=Time(MS));
        /// a received frame: driver and IP
        frame: Time = Time(1_600), (Time(0)..=Time(MS));
        /// RPS: bursts of frames that wait for a core
        rps_backlog: u32 = 1000, (1..=1_000_000);
        /// RPS: a frame on the core of the interrupt
        rps_frame: Time = Time(1_000), (Time(0)..=Time(MS));
        /// RPS: an interrupt to another core
        rps_ipi: Time = Time(1_500), (Time(0)..=Time(MS));
        /// TCP's work for a connection request
        tcp_syn: Time = Time(3_000), (Time(0)..=Time(MS));
        /// TCP's work for a new connection and its request
        tcp_open: Time = Time(5_000), (Time(0)..=Time(MS));
        /// TCP's work for any other burst of frames
        tcp: Time = Time(3_000), (Time(0)..=Time(MS));
        /// waking a worker of the same core
        wake: Time = Time(500), (Time(0)..=Time(MS));
        /// waking one of another core
        wake_remote: Time = Time(2_000), (Time(0)..=Time(MS));
        /// accept and read of the request: TCP
        net_accept: Time = Time(3_000), (Time(0)..=Time(MS));
        /// connect: TCP
        net_connect: Time = Time(3_000), (Time(0)..=Time(MS));
        /// sending the request: TCP
        net_send: Time = Time(2_000), (Time(0)..=Time(MS));
        /// reading the response: TCP
        net_read: Time = Time(3_000), (Time(0)..=Time(MS));
        /// sending the response: TCP
        net_reply: Time = Time(4_000), (Time(0)..=Time(MS));
        /// system calls other than TCP, and copies, until the request is sent on
        sys_request: Time = Time(20_000), (Time(0)..=Time(MS));
        /// the same until the response is sent
        sys_response: Time = Time(30_000), (Time(0)..=Time(MS));
        /// the program until the request is sent on
        user_request: Time = Time(30_000), (Time(0)..=Time(MS));
        /// the program until the response is sent
        user_response: Time = Time(20_000), (Time(0)..=Time(MS));
        /// requests that take the program longer, by `long`
        long_share: Share = Share(0), any;
        /// by how much
        long: Time = Time(0), (Time(0)..=Time(SEC));
        /// a worker sleeps now and then, in a system call, for so long; 0s: never
        stall: Time = Time(0), (Time(0)..=Time(SEC));
        /// once in so long, each worker at a moment of its own
        stall_period: Time = Time(SEC), (Time(MS)..=Time(10 * SEC));
        /// the workers of one core in so many do
        stall_every: u16 = 2, (1..=128);
        /// how a lock goes to the next core
        locks: Locks = Locks::Ticket, any;
        /// listener's lock: a connection request
        hold_syn: Time = Time(5_000), (Time(0)..=Time(MS));
        /// listener's lock: an established connection
        hold_open: Time = Time(5_000), (Time(0)..=Time(MS));
        /// listener's lock: accept
        hold_accept: Time = Time(5_000), (Time(0)..=Time(MS));
        /// lock of open files: each of accept, socket and two closes
        hold_files: Time = Time(10_000), (Time(0)..=Time(MS));
        /// lock of local ports: connect
        hold_port: Time = Time(20_000), (Time(0)..=Time(MS));
        /// lock of closed connections: each of two
        hold_close: Time = Time(20_000), (Time(0)..=Time(MS));
        /// part of each hold that is exponential: searches and lists
        hold_jitter: Share = Share(0), any;
        /// lines of the data under a lock that come from the core that held it before
        lines_lock: u32 = 20, (0..=10_000);
        /// lines of a connection that a softirq reads after the worker
        lines_softirq: u32 = 50, (0..=10_000);
        /// lines that the worker reads of a new connection and its request
        lines_accept: u32 = 250, (0..=10_000);
        /// lines of a new connection that opening its file touches under the lock
        lines_file: u32 = 60, (0..=10_000);
        /// lines that the worker reads once connected
        lines_connected: u32 = 50, (0..=10_000);
        /// lines that the worker reads of a response
        lines_response: u32 = 500, (0..=10_000);
        /// lines of a connection that closing touches under the lock
        lines_close: u32 = 50, (0..=10_000);
    }
}

impl Settings {
    /// Whether the settings fit together.
    pub(super) fn fits(&self) -> Result<(), String> {
        if self.busy_low >= self.busy_high {
            return Err(format!(
                "busy_low {} is not below busy_high {}; give a lower one",
                self.busy_low, self.busy_high
            ));
        }
        if self.workers_from > self.workers_to || self.workers_from >= self.cores {
            return Err(format!(
                "no core has workers: {} to {} of {} cores; give others",
                self.workers_from, self.workers_to, self.cores
            ));
        }
        if self.irq_core >= self.cores || self.hot_core >= self.cores && self.hot_share.0 > 0 {
            return Err(format!("irq_core or hot_core is not one of {} cores; give a lower one", self.cores));
        }
        let all = self.workers_from == 0 && self.workers_to + 1 >= self.cores;
        if self.accept == Queues::PerCore && !all {
            return Err("a queue of a core without workers is never served; give workers on all cores".into());
        }
        if (1..MS).contains(&self.migrate.0) {
            return Err(
                "flow groups cannot move that often; give migrate = \"1ms\" or more, or \"0s\" for never"
                    .into(),
            );
        }
        if self.stall.0 >= self.stall_period.0 {
            return Err("a worker that always sleeps serves nobody; give a stall below stall_period".into());
        }
        if self.zipf > 0 && self.hot_share.0 > 0 {
            return Err("zipf and hot_share both say which cores receive more; give one of them".into());
        }
        if self.module > self.die || self.die > self.chip {
            return Err("module, die and chip do not contain each other; give growing sizes".into());
        }
        if self.ring < self.response_frames.max(self.ack_frames) {
            return Err(format!("ring {} is shorter than a burst of frames; give a longer one", self.ring));
        }
        Ok(())
    }
}
