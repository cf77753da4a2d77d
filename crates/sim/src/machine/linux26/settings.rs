//! Settings of the machine.

use crate::engine::{MS, SEC};
use crate::settings::{Limit, NO_LIMIT, Share, Time, choice, settings};

choice! {
    /// What the sender speaks.
    pub enum Protocol {
        /// Datagrams at the offered rate, whatever the receiver does.
        Udp = "udp",
        /// Segments in a window that the receiver advertises.
        Tcp = "tcp",
    }
}

settings! {
    /// One CPU with Linux 2.6, one interface, one program per connection.
    pub struct Linux26 {
        /// what the sender speaks
        protocol: Protocol = Protocol::Udp, any;
        /// connections, each with a program that reads it
        connections: u32 = 1, (1..=16);
        /// nice value of the programs that read
        nice: i8 = 0, (-20..=19);
        /// background load: compile jobs that only compute, at nice 0
        jobs: u32 = 0, (0..=64);
        /// receive descriptors
        ring: u32 = 384, (1..=4096);
        /// receive buffer of a socket, MiB
        buffer: u32 = 40, (1..=512);
        /// bytes of the buffer that a packet counts for
        accounted: u32 = 1748, (256..=65536);
        /// payload of a UDP datagram, bytes
        datagram: u32 = 1450, (1..=65507);
        /// payload of a TCP segment, bytes
        segment: u32 = 1448, (1..=65495);
        /// a frame on the link of the sender
        wire_time: Time = Time(12_304), (Time(1)..=Time(MS));
        /// from the sender to the receiver, and back
        delay: Time = Time(250_000), (Time(0)..=Time(SEC));
        /// softirq of a datagram, up to the socket
        udp_softirq: Time = Time(23_250), (Time(0)..=Time(MS));
        /// one datagram read by the program
        udp_read: Time = Time(23_700), (Time(0)..=Time(MS));
        /// more than that if a softirq has run since the last one was read: caches
        udp_cold: Time = Time(0), (Time(0)..=Time(MS));
        /// CPU time before the program first reads UDP
        udp_start: Time = Time(0), (Time(0)..=Time(10 * SEC));
        /// softirq of a segment below TCP
        tcp_driver: Time = Time(14_000), (Time(0)..=Time(MS));
        /// TCP's work for a segment, acknowledgement included
        tcp_protocol: Time = Time(7_400), (Time(0)..=Time(MS));
        /// one segment copied to the program
        tcp_copy: Time = Time(16_100), (Time(0)..=Time(MS));
        /// most segments of one recv()
        read_size: u32 = 6, (1..=65536);
        /// shortest retransmission timeout of the sender
        rto: Time = Time(200 * MS), (Time(MS)..=Time(60 * SEC));
        /// the sender's first slow-start threshold, segments
        threshold: Limit = NO_LIMIT, (Limit(2)..=NO_LIMIT);
        /// transfers like this one before it, whose threshold the route remembers
        before: u32 = 0, (0..=8);
        /// compile jobs during these
        before_jobs: u32 = 0, (0..=64);
        /// longest delay of an acknowledgement
        delayed_ack: Time = Time(40 * MS), (Time(MS)..=Time(SEC));
        /// timer interrupt
        tick: Time = Time(MS), (Time(100_000)..=Time(100 * MS));
        /// most packets of one net_rx_action
        round: u32 = 300, (1..=100_000);
        /// net_rx_action calls of one softirq before ksoftirqd takes over
        restarts: u32 = 10, (1..=1000);
        /// packets of one device poll; a full one is evidence of overload
        weight: u32 = 64, (1..=1024);
        /// memory, KiB
        memory: u64 = 262_144, (1024..=1_073_741_824);
        /// memory that neither is free nor can be freed, KiB
        memory_used: u64 = 24_699, (0..=1_073_741_824);
        /// page and buffer cache, KiB
        cache: u64 = 35_360, (0..=1_073_741_824);
        /// cache that is not given back, KiB
        cache_least: u64 = 9_000, (0..=1_073_741_824);
        /// free memory that the kernel keeps by taking cache, KiB
        free_low: u64 = 3_500, (0..=1_048_576);
        /// free memory below which allocations in interrupts fail, KiB
        free_least: u64 = 1_024, (0..=1_048_576);
        /// memory behind 1000 bytes of buffer that are in use
        real_permille: u32 = 1290, (1000..=10_000);
        /// allocations fail for so long before a program is killed
        kill_after: Time = Time(SEC), (Time(MS)..=Time(60 * SEC));
        /// tcp_mem: pages at which memory pressure begins
        tcp_mem_pressure: u64 = 65_536, (1..=268_435_456);
        /// tcp_mem: most pages
        tcp_mem_high: u64 = 98_304, (1..=268_435_456);
        /// stalls of memory reclaim: start of the first one; 0s for none
        stall_1: Time = Time(0), (Time(0)..=Time(3600 * SEC));
        /// start of the second stall; 0s for none
        stall_2: Time = Time(0), (Time(0)..=Time(3600 * SEC));
        /// start of the third stall; 0s for none
        stall_3: Time = Time(0), (Time(0)..=Time(3600 * SEC));
        /// how long the ring is not refilled in a stall
        stall: Time = Time(20 * MS), (Time(0)..=Time(10 * SEC));
        /// between two clusters of pages that reclaim gives back in a stall; 0s: none before its end
        reclaim: Time = Time(0), (Time(0)..=Time(10 * SEC));
        /// samples of the series over the load
        samples: u32 = 250, (10..=1000);
        /// the policies of weir: takeover, poller, feedback, budget
        weir: bool = false, any;
        /// feedback from the socket to the poller
        feedback: bool = true, any;
        /// share of the CPU for packet work; 100 % for no limit
        budget: Share = Share(800), any;
        /// packets of one turn of the poller
        quota: u32 = 32, (2..=1024);
        /// datagrams that a full socket refuses within 20 ms and that are evidence of overload
        overflows: u32 = 32, (1..=1_000_000);
        /// a turn's own cost
        turn: Time = Time(6_000), (Time(0)..=Time(MS));
        /// a packet that is shed at the driver
        shed: Time = Time(6_000), (Time(0)..=Time(MS));
    }
}
