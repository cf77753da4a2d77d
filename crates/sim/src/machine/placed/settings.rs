//! Settings of the machine.

use crate::engine::{MS, SEC};
use crate::settings::{Time, choice, settings};

choice! {
    /// What becomes of the layout.
    pub enum Placing {
        /// It stays as it was drawn.
        Drawn = "drawn",
        /// As `weir place --apply` does: auto, with its trials.
        Auto = "auto",
        /// Auto with a planner that is broken: it puts all receive work on one CPU, and the programs too.
        AutoPiled = "auto-piled",
        /// The plan of the broken planner, and no trial.
        Piled = "piled",
        /// To spread, and no trial.
        Spread = "spread",
        /// Affine, and no trial.
        Affine = "affine",
        /// To dedicate, and no trial.
        Dedicate = "dedicate",
    }
}

settings! {
    /// A host with several CPUs and receive queues whose layout is drawn.
    pub struct Placed {
        /// seed of the layouts
        draw: u32 = 1, any;
        /// which of the layouts of this seed; 1, 4, 7 and so on are planted badly
        layout: u32 = 1, (1..=1000);
        /// CPUs of a host that is not drawn: a queue and a program for each, and one CPU takes all interrupts; 0: it is drawn
        hot: u32 = 0, (0..=64);
        /// receive queues that the NIC's table of RSS gives flows to; 0: all
        rss: u32 = 0, (0..=16);
        /// what becomes of it
        placing: Placing = Placing::Drawn, any;
        /// before the first window of auto: as long as it takes to fill the sockets of 32 programs
        lead: Time = Time(250 * MS), (Time(MS)..=Time(SEC));
        /// a window of auto
        window: Time = Time(50 * MS), (Time(MS)..=Time(SEC));
        /// from a change to the window after it
        settle: Time = Time(15 * MS), (Time(0)..=Time(SEC));
        /// receive descriptors of a queue
        ring: u32 = 512, (1..=65536);
        /// the driver ends a poll on a CPU that the interrupt has left, as those of i40e, ice and mlx5 do
        follows: bool = true, any;
        /// packets that RPS queues on a CPU
        backlog: u32 = 1000, (1..=65536);
        /// datagrams that a socket holds
        socket: u32 = 128, (1..=65536);
        /// packets of a NAPI poll
        weight: u32 = 64, (1..=1024);
        /// packets of a softirq
        budget: u32 = 300, (1..=65536);
        /// softirqs in a row before ksoftirqd
        restarts: u32 = 10, (1..=1000);
        /// time of softirqs in a row before ksoftirqd
        softirq_time: Time = Time(2 * MS), (Time(1)..=Time(SEC));
        /// base slice of the scheduler
        slice: Time = Time(2_800_000), (Time(1_000)..=Time(SEC));
        /// how often the scheduler looks for threads that wait while CPUs idle
        balance: Time = Time(MS), (Time(1_000)..=Time(SEC));
        /// an interrupt of the device
        interrupt: Time = Time(1_500), (Time(0)..=Time(MS));
        /// an interrupt from another CPU
        ipi: Time = Time(900), (Time(0)..=Time(MS));
        /// the fixed part of a NAPI poll
        poll: Time = Time(300), (Time(0)..=Time(MS));
        /// a packet from the device to its socket
        stack: Time = Time(2_000), (Time(1)..=Time(MS));
        /// a packet that is sent on by RPS, on the CPU that sends it
        steer: Time = Time(400), (Time(1)..=Time(MS));
        /// waking a program
        wake: Time = Time(1_000), (Time(1)..=Time(MS));
        /// a halted CPU until it runs
        resume: Time = Time(1_000), (Time(0)..=Time(MS));
        /// from one thread to another
        switch: Time = Time(700), (Time(0)..=Time(MS));
        /// the system call that reads a packet, beside the program's work
        read: Time = Time(1_000), (Time(1)..=Time(MS));
        /// a packet that another CPU has touched last
        cross: Time = Time(300), (Time(0)..=Time(MS));
        /// and one of another NUMA node, beside that
        far: Time = Time(600), (Time(0)..=Time(MS));
    }
}
