//! Settings of the machine.

use crate::engine::{MS, SEC};
use crate::settings::{Share, Time, choice, settings};

choice! {
    /// Who does which work.
    pub enum Arrangement {
        /// Every CPU does everything; each interface interrupts the CPU of its program (ES-07, test A).
        Affinity = "affinity",
        /// As affinity, but interrupts go to the CPUs in turn, without regard to the connection (ES-06).
        Spread = "spread",
        /// One CPU does all networking, its programs too.
        OneCpu = "one-cpu",
        /// CPU-NET polls, CPU-HOST runs programs and does upper and lower transmit (ES-11).
        Variant1 = "variant-1",
        /// CPU-NET polls and does lower transmit, CPU-HOST copies only (ES-12, test B).
        Variant2 = "variant-2",
        /// Variant 2 with a set of CPU-NETs that follows the load, from none on (ES-17).
        Resize = "resize",
    }
}

settings! {
    /// Several CPUs, one stream per interface, one program per stream.
    pub struct Active {
        /// who does which work
        arrangement: Arrangement = Arrangement::Affinity, any;
        /// CPUs
        cpus: u32 = 2, (2..=16);
        /// CPUs that do networking only, in the variants
        net: u32 = 1, (1..=15);
        /// interfaces
        nics: u32 = 3, (1..=32);
        /// receive descriptors of each
        ring: u32 = 256, (1..=4096);
        /// descriptors that an interface hands back together while its interrupt is off
        writeback: u32 = 1, (1..=64);
        /// the longest that one waits for the others
        writeback_delay: Time = Time(100_000), (Time(0)..=Time(10 * MS));
        /// payload of a segment, bytes
        segment: u32 = 1448, (1..=65495);
        /// interrupt: save, dispatch, handler
        irq: Time = Time(1_390), (Time(0)..=Time(MS));
        /// interrupts of 1000 that are no segment's: transmit completions, ticks
        irq_other: u32 = 14, (0..=1000);
        /// driver and IP of a segment
        receive: Time = Time(1_900), (Time(0)..=Time(MS));
        /// tcp_v4_rcv
        tcp: Time = Time(300), (Time(0)..=Time(MS));
        /// tcp_rcv_established
        established: Time = Time(200), (Time(0)..=Time(MS));
        /// try_to_wake_up
        wake: Time = Time(250), (Time(0)..=Time(MS));
        /// schedule
        schedule: Time = Time(350), (Time(0)..=Time(MS));
        /// __switch_to
        switch: Time = Time(200), (Time(0)..=Time(MS));
        /// a halted CPU until it runs a program that another one woke
        resume: Time = Time(800), (Time(0)..=Time(MS));
        /// recv(), without copying
        call: Time = Time(900), (Time(0)..=Time(MS));
        /// the program's work for a segment, without copying and freeing
        consume: Time = Time(1_300), (Time(0)..=Time(MS));
        /// kfree
        free: Time = Time(150), (Time(0)..=Time(MS));
        /// a segment copied to the program
        copy: Time = Time(1_430), (Time(0)..=Time(MS));
        /// upper transmit of an acknowledgement: __tcp_select_window
        upper: Time = Time(300), (Time(0)..=Time(MS));
        /// lower transmit: TCP and IP
        lower: Time = Time(400), (Time(0)..=Time(MS));
        /// lower transmit: qdisc_restart
        qdisc: Time = Time(500), (Time(0)..=Time(MS));
        /// handing a finished request to the interface
        handoff: Time = Time(300), (Time(0)..=Time(MS));
        /// an empty look at an interface
        poll: Time = Time(150), (Time(0)..=Time(MS));
        /// an empty look at the shared transmit ring
        look: Time = Time(360), (Time(0)..=Time(MS));
        /// a lock that is free and in the own cache
        lock: Time = Time(20), (Time(0)..=Time(MS));
        /// how long it is held
        hold: Time = Time(150), (Time(0)..=Time(MS));
        /// a line that another CPU wrote last
        miss: Time = Time(120), (Time(0)..=Time(MS));
        /// shared locks that a segment takes, and an acknowledgement
        locks: u32 = 8, (0..=64);
        /// lines of shared kernel state that a segment writes: allocator, routes, counters
        shared_lines: u32 = 4, (0..=64);
        /// lines of its connection that tcp_v4_rcv writes
        tcp_lines: u32 = 2, (0..=64);
        /// lines of its connection that tcp_rcv_established writes
        established_lines: u32 = 2, (0..=64);
        /// lines of its connection that the program writes
        program_lines: u32 = 2, (0..=64);
        /// lines of its connection that choosing the window writes
        window_lines: u32 = 3, (0..=64);
        /// lines of a buffer that freeing it writes
        free_lines: u32 = 2, (0..=64);
        /// lines of a buffer that its next user finds in the cache of the CPU that freed it
        buffer_lines: u32 = 0, (0..=64);
        /// lines of a request that qdisc_restart writes
        request_lines: u32 = 6, (0..=64);
        /// lines of another CPU's run queue and thread that a wake-up writes
        wake_lines: u32 = 8, (0..=64);
        /// lines of its run queue that schedule writes
        queue_lines: u32 = 6, (0..=64);
        /// how often the set of CPU-NETs is looked at
        period: Time = Time(10 * MS), (Time(MS)..=Time(SEC));
        /// share of one CPU of packet work from which on there is a CPU-NET
        first: Share = Share(400), any;
        /// share of the CPU-NETs from which on there is one more
        high: Share = Share(850), any;
        /// share below which there is one fewer
        low: Share = Share(250), any;
        /// periods in a row that must agree
        periods: u32 = 3, (1..=1000);
        /// the offered rate is this share of itself in the middle third of the load
        dip: Share = Share(1000), any;
    }
}
