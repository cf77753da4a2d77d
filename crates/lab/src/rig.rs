//! The lab's world: a wire side and a host side, joined by one veth pair per input, and the ways in which packets
//! can reach the host CPU.
//!
//! All receive work of the host side must run on the host CPU. A veth's NAPI runs on the CPU of the sender unless
//! something else wakes it, so each wiring says what does.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kern::wire::link::{self, End};
use kern::wire::netns::Namespace;
use kern::wire::source::{Load, Meter, Phase, Target, Wire};
use kern::wire::tasks::{self, Policy};
use kern::wire::{counters, ethtool};

use crate::Result;
use crate::frame;

/// Frames that the hop queues: as deep as the veth's own ring, so that the two together are no deeper than the
/// rings of a common NIC.
const HOP_QUEUE: u32 = 256;

/// Period of the flush timer that stands for interrupt moderation in [`Wiring::Timer`].
pub const MODERATION: Duration = Duration::from_micros(50);

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// The CPUs of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpus {
    /// Generates and carries packets.
    pub wire: usize,
    /// The machine under test.
    pub host: usize,
}

/// How receive work gets to the host CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// A CPU map hop whose thread has real-time priority, as an interrupt would; its cost falls on the host CPU.
    Hop,
    /// Receive packet steering; the driver's part falls on the wire CPU.
    Rps,
    /// The device's flush timer, bound to the host CPU, as an interrupt with moderation.
    Timer,
    /// Threaded NAPI under a policy, bound to the host CPU if `bound`.
    Threaded {
        /// Of the NAPI's thread.
        policy: Policy,
        /// False for policies that the kernel refuses to bound threads.
        bound: bool,
    },
}

/// One input of the host: a veth pair and the target number that reaches it.
#[derive(Debug)]
pub struct Input {
    /// The wire's end.
    pub near: End,
    /// The host's end.
    pub far: End,
    /// The host's address on it.
    pub address: Ipv4Addr,
    /// Where the frames say they come from.
    pub peer: Ipv4Addr,
}

/// Namespaces, devices and wiring of one point; everything is gone when it is dropped.
#[derive(Debug)]
pub struct Rig<'a> {
    /// The source and the meters.
    pub wire: &'a Wire,
    /// The CPUs.
    pub cpus: Cpus,
    /// How frames travel.
    pub wiring: Wiring,
    /// The inputs, by target number.
    pub inputs: Vec<Input>,
    /// Kernel threads that carry packets for the host: the hop's and those of threaded NAPI.
    pub carriers: Vec<i32>,
    /// The machine under test.
    pub host: Namespace,
    /// The other side.
    pub wire_side: Namespace,
}

impl<'a> Rig<'a> {
    /// Builds `inputs` veth pairs and wires them.
    ///
    /// # Errors
    /// If the kernel refuses a step; what was built is gone again.
    pub fn new(wire: &'a Wire, cpus: Cpus, wiring: Wiring, inputs: u8) -> Result<Rig<'a>> {
        let wire_side = Namespace::create("wire")?;
        let host = Namespace::create("host")?;
        let mut rig = Rig { wire, cpus, wiring, inputs: Vec::new(), carriers: Vec::new(), host, wire_side };
        for n in 0..inputs {
            let input = rig.input(n)?;
            rig.inputs.push(input);
        }
        rig.wire_up()?;
        Ok(rig)
    }

    fn input(&self, n: u8) -> Result<Input> {
        // Kernel threads are found by the interface's name. Those of the trial before may still be there, so the
        // name is new each time.
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed) & 0xfff;
        let name = |side: char| format!("{side}{:x}n{n}x{serial:x}", std::process::id());
        let names = (name('w'), name('h'));
        let near = (names.0.as_str(), frame::wire_mac(n));
        let far = (names.1.as_str(), frame::host_mac(n));
        let (near, far) = link::veth(&self.wire_side, near, &self.host, far)?;
        let (address, peer) = (Ipv4Addr::new(198, 18, n, 1), Ipv4Addr::new(198, 18, n, 2));
        self.host.run(|| {
            // Index 1 is the loopback of a new namespace; a server may need it.
            link::up(1)?;
            ethtool::gro_on(&far.name)?;
            link::address(far.index, address, 24)?;
            link::neighbour(far.index, peer, near.mac)
        })?;
        self.wire.output(u32::from(n), &self.wire_side, near.index)?;
        Ok(Input { near, far, address, peer })
    }

    fn wire_up(&mut self) -> Result<()> {
        match self.wiring {
            Wiring::Hop => {
                let thread = self.wire.hop(self.cpus.host, HOP_QUEUE)?;
                tasks::schedule(thread, Policy::Fifo(50))?;
                self.carriers.push(thread);
            }
            Wiring::Rps => {
                let mask = format!("{:x}", 1u64 << self.cpus.host);
                self.each("queues/rx-0/rps_cpus", &mask)?;
            }
            Wiring::Timer => {
                // Never counts down to zero within a run: the timer is the only thing that starts a poll.
                self.each("napi_defer_hard_irqs", &i32::MAX.to_string())?;
                self.each("gro_flush_timeout", &MODERATION.as_nanos().to_string())?;
                self.prime()?;
            }
            Wiring::Threaded { policy, bound } => {
                self.each("threaded", "1")?;
                for input in &self.inputs {
                    let prefix = format!("napi/{}-", input.far.name);
                    let Some(pid) = tasks::find(|name| name.starts_with(&prefix))? else {
                        return Err(crate::Error::Missing(format!("no kernel thread {prefix}*")));
                    };
                    if bound {
                        tasks::pin(pid, self.cpus.host)?;
                    }
                    tasks::schedule(pid, policy)?;
                    self.carriers.push(pid);
                }
            }
        }
        Ok(())
    }

    fn each(&self, attribute: &str, value: &str) -> Result<()> {
        let set =
            || self.inputs.iter().try_for_each(|i| counters::set_interface(&i.far.name, attribute, value));
        Ok(self.host.run(set)?)
    }

    /// Has each input's NAPI polled once on the host CPU, so that its timer belongs to that CPU from then on.
    fn prime(&self) -> Result<()> {
        for (n, input) in self.inputs.iter().enumerate() {
            let frame = frame::stray(input.near.mac, input.far.mac);
            self.wire.prime(&self.wire_side, self.cpus.host, n as u32, frame)?;
        }
        Ok(())
    }

    /// A load for target 0 only.
    #[must_use]
    pub fn load(&self, phases: Vec<Phase>, burst: u32, target: Target) -> Load {
        let hop = (self.wiring == Wiring::Hop).then_some(self.cpus.host);
        Load { phases, burst, targets: vec![target], schedule: Vec::new(), hop }
    }

    /// Frames that the devices' rings have taken and the host has not taken out.
    ///
    /// # Errors
    /// If a driver statistic is missing.
    pub fn in_rings(&self) -> Result<u64> {
        let sum = |far: bool| {
            let (name, counter): (fn(&Input) -> &str, _) = match far {
                true => (|i| &i.far.name, "rx_queue_0_xdp_packets"),
                false => (|i| &i.near.name, "tx_queue_0_xdp_xmit"),
            };
            let value = |i: &Input| Ok(ethtool::statistics(name(i))?.get(counter).copied().unwrap_or(0));
            self.inputs.iter().map(value).sum::<kern::wire::Result<u64>>()
        };
        // What is taken out is read first, so that frames on their way never look like fewer than none.
        let taken_out = self.host.run(|| sum(true))?;
        Ok(self.wire_side.run(|| sum(false))?.saturating_sub(taken_out))
    }

    /// The meters, summed over the CPUs for which `wanted` holds.
    ///
    /// # Errors
    /// Of the map.
    pub fn meter(&self, wanted: impl Fn(usize) -> bool) -> Result<Meter> {
        let mut sum = Meter::default();
        for (_, m) in self.wire.meters()?.iter().enumerate().filter(|(cpu, _)| wanted(*cpu)) {
            sum.add(m);
        }
        Ok(sum)
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        if self.wiring == Wiring::Hop {
            // Fails only if the hop was never made.
            let _ = self.wire.remove_hop(self.cpus.host);
        }
    }
}
