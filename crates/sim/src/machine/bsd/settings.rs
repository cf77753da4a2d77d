//! What can be set on the machine.

use crate::engine::SEC;
use crate::settings::{Limit, NO_LIMIT, Share, Time, choice, settings};

choice! {
    /// Who moves packets.
    pub enum Kernel {
        /// Handlers at device level, an input queue, an IP thread below (MR-01).
        Unmodified = "unmodified",
        /// The modified kernel acting as the unmodified one (MR-20).
        NoPolling = "no-polling",
        /// Interrupts only start a polling thread: (almost) nothing at device level (MR-12 to MR-17).
        Polling = "polling",
        /// The same loop in the handler: (almost) everything at device level (MR-11).
        DeviceLevel = "device-level",
        /// The polling thread runs every `poll_every`; there are no interrupts (MR-09).
        Clocked = "clocked",
    }
}

choice! {
    /// How transmitted packets give their descriptors back.
    pub enum Completion {
        /// By an interrupt at device level.
        Device = "device",
        /// By an interrupt below input (MR-05).
        Below = "below",
        /// Without an interrupt: when the next packet is to be sent, else at the clock tick (MR-39).
        Polled = "polled",
    }
}

const ANY_TIME: std::ops::RangeInclusive<Time> = Time(0)..=Time(SEC);
const MORE: std::ops::RangeInclusive<Time> = Time(1)..=Time(SEC);

settings! {
    /// Kernel, workload, queues and costs. Costs are times on this machine's CPU.
    pub struct Settings {
        /// who moves packets
        kernel: Kernel = Kernel::Unmodified, any;
        /// a screening program sees every packet
        screend: bool = false, any;
        /// a compute-bound program runs
        user: bool = false, any;
        /// input interfaces, each with a source of its own
        inputs: u32 = 1, (1..=16);
        /// share of the load that the first input gets; the others share the rest equally; 0 % for equal shares
        first_share: Share = Share(0), any;
        /// packets of one callback
        quota: Limit = Limit(5), (Limit(1)..=NO_LIMIT);
        /// a full queue inhibits input: the screening queue, and without polling the IP input queue too (MR-06)
        feedback: bool = false, any;
        /// level of the queue at which input stops
        high: Share = Share(750), (Share(1)..=Share(1000));
        /// level at which it starts again
        low: Share = Share(250), (Share(0)..=Share(999));
        /// longest inhibit
        timeout: Time = Time(1_000_000), MORE;
        /// the screening program hangs from half of the load on
        hang: bool = false, any;
        /// share of the CPU for packets (cycle limit); 100 % for no limit
        threshold: Share = Share(1000), (Share(1)..=Share(1000));
        /// period of the cycle limit
        period: Time = Time(10_000_000), MORE;
        /// without polling: packet time that stops input while a program or the IP thread gets no CPU (MR-06); 0s: never
        stall: Time = Time(0), ANY_TIME;
        /// clock ticks in a row that find packet work before input stops (MR-08); 0 for never
        tick_samples: u32 = 0, (0..=1000);
        /// ticks that input then stays off
        tick_pause: u32 = 1, (1..=1000);
        /// interval of kernel clocked
        poll_every: Time = Time(1_000_000), (Time(1_000)..=Time(SEC));
        /// how transmitted packets give their descriptors back
        completion: Completion = Completion::Device, any;
        /// receive descriptors of an input
        ring: u32 = 32, (1..=4096);
        /// transmit descriptors
        tx_ring: u32 = 8, (1..=4096);
        /// packets of the IP input queue
        ip_queue: u32 = 50, (1..=65536);
        /// packets of the output queue
        output_queue: u32 = 50, (1..=65536);
        /// packets of the screening queue
        screen_queue: u32 = 32, (1..=65536);
        /// time of a frame on either wire
        wire: Time = Time(67_200), MORE;
        /// clock tick
        tick: Time = Time(1_000_000), MORE;
        /// other work of the system, every `system_every`, before programs and after packets
        system: Time = Time(0), ANY_TIME;
        /// interval of that work
        system_every: Time = Time(500_000_000), MORE;
        /// unmodified: a received packet at device level
        device: Time = Time(74_000), ANY_TIME;
        /// unmodified: forwarding in the IP thread
        forward: Time = Time(115_000), ANY_TIME;
        /// unmodified: IP input up to the screening queue
        ip_input: Time = Time(82_000), ANY_TIME;
        /// unmodified: the screening program, with its system call and output
        screen: Time = Time(313_000), ANY_TIME;
        /// modified, polling off: a received packet at device level
        np_device: Time = Time(67_000), ANY_TIME;
        /// modified, polling off: forwarding in the IP thread
        np_forward: Time = Time(158_000), ANY_TIME;
        /// a transmitted packet's completion
        complete: Time = Time(35_000), ANY_TIME;
        /// polling: interrupt that starts the thread
        interrupt: Time = Time(75_000), ANY_TIME;
        /// polling: interrupt of a transmitted packet that starts the thread
        tx_interrupt: Time = Time(75_000), ANY_TIME;
        /// polling: one pass over the interfaces
        pass: Time = Time(25_000), ANY_TIME;
        /// polling: a packet from the ring to the output queue
        receive: Time = Time(155_000), ANY_TIME;
        /// polling: a packet from the ring to the screening queue
        receive_screen: Time = Time(110_000), ANY_TIME;
        /// polling: the screening program, with its system call and output
        pm_screen: Time = Time(120_000), ANY_TIME;
        /// the screening program after something else ran: caches
        resume: Time = Time(0), ANY_TIME;
    }
}
