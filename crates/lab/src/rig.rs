//! The lab's world: a wire side and a host side, joined by one veth pair per input, and the ways in which packets
//! can reach the host CPU.
//!
//! All receive work of the host side must run on the host CPU. A veth's NAPI runs on the CPU of the sender unless
//! something else wakes it, so each wiring says what does.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use kern::wire::link::{self, End};
use kern::wire::netns::Namespace;
use kern::wire::source::{Attached, Load, Meter, Phase, Target, Wire};
use kern::wire::tasks::{self, Policy};
use kern::wire::{counters, ethtool};

use crate::Result;
use crate::frame;

/// Frames that the hop queues: as deep as the veth's own ring, so that the two together are no deeper than the
/// rings of a common NIC.
pub const HOP_QUEUE: u32 = 256;

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
    /// A CPU map hop with a queue of so many frames, whose thread has real-time priority, as an interrupt would; its cost
    /// falls on the host CPU.
    Hop(u32),
    /// Receive packet steering; the driver's part falls on the wire CPU.
    Rps,
    /// The device's flush timer, bound to the host CPU, as an interrupt with moderation.
    Timer,
    /// The same with another period: clocked interrupts, or pure polling.
    Clocked(Duration),
    /// As it comes: no NAPI by GRO, and the driver's part runs on the sender's CPU.
    Plain,
    /// As it comes, with NAPI: all of the kernel's receive work is done on the sender's CPU.
    Sender,
    /// [`Wiring::Timer`] with another period, bound to the wire CPU.
    Apart(Duration),
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

/// The output of a forwarding host: a veth pair to the wire side, where packets are counted and taken off.
///
/// The pair stands for a NIC's transmit ring: the sink empties it in the softirq of the CPU that sent, as a driver
/// reclaims descriptors, so that work falls on the host CPU in every arm.
#[derive(Debug)]
pub struct Output {
    /// The host's end.
    pub near: End,
    /// The far end.
    pub far: End,
    /// The sink's program and the rule sets of the inputs.
    _programs: Vec<Attached>,
}

/// Where a forwarding host sends packets to: a host that is not there, known by a permanent neighbour.
pub const PHANTOM: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 2);

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
    /// Where packets leave a forwarding host.
    pub output: Option<Output>,
    /// Whether a program is asked about each packet.
    pub screened: AtomicBool,
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
        let mut rig = Rig {
            wire,
            cpus,
            wiring,
            inputs: Vec::new(),
            output: None,
            screened: AtomicBool::new(false),
            carriers: Vec::new(),
            host,
            wire_side,
        };
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
            if self.wiring != Wiring::Plain {
                ethtool::gro_on(&far.name)?;
            }
            link::address(far.index, address, 24)?;
            link::neighbour(far.index, peer, near.mac)
        })?;
        self.wire.output(u32::from(n), &self.wire_side, near.index)?;
        Ok(Input { near, far, address, peer })
    }

    /// Makes the host a router between its inputs and an output, with `rules` rules for each packet.
    ///
    /// # Errors
    /// If the kernel refuses a step.
    pub fn forward(&mut self, rules: u32) -> Result<()> {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed) & 0xfff;
        let name = |side: char| format!("{side}{:x}x{serial:x}", std::process::id());
        let names = (name('o'), name('s'));
        let near = (names.0.as_str(), frame::OUTPUT_MAC);
        let far = (names.1.as_str(), frame::SINK_MAC);
        let (near, far) = link::veth(&self.host, near, &self.wire_side, far)?;
        // With it the far end has a ring of its own, and the host's end lets the stack segment and sum.
        let mut programs = vec![self.wire.attach_sink(&self.wire_side, far.index)?];
        for input in self.inputs.iter().filter(|_| rules > 0) {
            programs.push(self.wire.attach_rules(&self.host, input.far.index, rules)?);
        }
        self.host.run(|| {
            counters::set_sysctl("net/ipv4/ip_forward", "1")?;
            link::address(near.index, Ipv4Addr::new(198, 19, 0, 1), 24)?;
            link::neighbour(near.index, PHANTOM, far.mac)
        })?;
        self.output = Some(Output { near, far, _programs: programs });
        Ok(())
    }

    /// Has the output emptied by a kernel thread of normal priority on the host CPU.
    ///
    /// # Errors
    /// If the kernel has no threaded NAPI.
    pub fn slow_output(&mut self) -> Result<()> {
        let Some(output) = &self.output else { return Ok(()) };
        let name = output.far.name.clone();
        self.wire_side.run(|| counters::set_interface(&name, "threaded", "1"))?;
        let prefix = format!("napi/{name}-");
        let Some(pid) = tasks::find(|task| task.starts_with(&prefix))? else {
            return Err(crate::Error::Missing(format!("no kernel thread {prefix}*")));
        };
        tasks::pin(pid, self.cpus.host)?;
        self.carriers.push(pid);
        Ok(())
    }

    /// Has the kernel ask the program that reads queue 0 about each packet that it would forward.
    ///
    /// # Errors
    /// Without iptables, or if the kernel has no NFQUEUE.
    pub fn ask_screen(&self) -> Result<()> {
        let path = ["/usr/sbin/iptables", "/sbin/iptables", "/usr/bin/iptables"];
        let Some(path) = path.iter().find(|p| std::path::Path::new(p).is_file()) else {
            return Err(crate::Error::Missing("program iptables not found; apt-get install iptables".into()));
        };
        let mut command = std::process::Command::new(path);
        command.args(["-w", "5", "-A", "FORWARD", "-j", "NFQUEUE", "--queue-num", "0"]);
        let output = self.host.run(|| Ok(command.output()))?;
        let output = output.map_err(|e| crate::Error::program("iptables", e))?;
        if output.status.success() {
            self.screened.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_string();
        Err(crate::Error::Missing(format!("iptables: no NFQUEUE: {why}")))
    }

    /// The queue of [`Rig::ask_screen`]; zeros if there is none.
    ///
    /// # Errors
    /// If the kernel has no NFQUEUE.
    pub fn screen_queue(&self) -> Result<counters::FilterQueue> {
        Ok(self.host.run(counters::filter_queues)?.unwrap_or_default())
    }

    fn wire_up(&mut self) -> Result<()> {
        match self.wiring {
            Wiring::Plain | Wiring::Sender => {}
            Wiring::Hop(queue) => {
                let thread = self.wire.hop(self.cpus.host, queue)?;
                tasks::schedule(thread, Policy::Fifo(50))?;
                self.carriers.push(thread);
            }
            Wiring::Rps => {
                let mask = format!("{:x}", 1u64 << self.cpus.host);
                self.each("queues/rx-0/rps_cpus", &mask)?;
            }
            Wiring::Timer | Wiring::Clocked(_) | Wiring::Apart(_) => {
                let (period, cpu) = match self.wiring {
                    Wiring::Clocked(period) => (period, self.cpus.host),
                    Wiring::Apart(period) => (period, self.cpus.wire),
                    _ => (MODERATION, self.cpus.host),
                };
                // Never counts down to zero within a run: the timer is the only thing that starts a poll.
                self.each("napi_defer_hard_irqs", &i32::MAX.to_string())?;
                self.each("gro_flush_timeout", &period.as_nanos().to_string())?;
                self.prime(cpu)?;
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

    /// Has each input's NAPI polled once on `cpu`, so that its timer belongs to that CPU from then on.
    fn prime(&self, cpu: usize) -> Result<()> {
        for (n, input) in self.inputs.iter().enumerate() {
            let frame = frame::stray(input.near.mac, input.far.mac);
            self.wire.prime(&self.wire_side, cpu, n as u32, frame)?;
        }
        Ok(())
    }

    /// Gives the wire's end of the first input its address, so that programs can run there. `through`: what they send
    /// goes through the host's NAPI as behind a NIC, not past it as it does with TSO.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn reach(&self, through: bool) -> Result<()> {
        let input = &self.inputs[0];
        Ok(self.wire_side.run(|| {
            if through {
                ethtool::tso_off(&input.near.name)?;
            }
            link::address(input.near.index, input.peer, 24)?;
            link::neighbour(input.near.index, input.address, input.far.mac)
        })?)
    }

    /// Has the first `targets` targets sent to the first input: several sockets behind one source.
    ///
    /// # Errors
    /// Of the map.
    pub fn share_input(&self, targets: u8) -> Result<()> {
        let index = self.inputs[0].near.index;
        Ok((1..targets).try_for_each(|n| self.wire.output(u32::from(n), &self.wire_side, index))?)
    }

    /// A load for target 0 only.
    #[must_use]
    pub fn load(&self, phases: Vec<Phase>, burst: u32, target: Target) -> Load {
        let hop = matches!(self.wiring, Wiring::Hop(_)).then_some(self.cpus.host);
        Load { phases, burst, targets: vec![target], schedule: Vec::new(), hop, rare: None, gentle: false }
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

    /// Frames that XDP programs at the host's devices have dropped.
    ///
    /// # Errors
    /// If a driver statistic is missing.
    pub fn dropped(&self) -> Result<u64> {
        let one = |i: &Input| {
            Ok(ethtool::statistics(&i.far.name)?.get("rx_queue_0_xdp_drops").copied().unwrap_or(0))
        };
        Ok(self.host.run(|| self.inputs.iter().map(one).sum::<kern::wire::Result<u64>>())?)
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
        if matches!(self.wiring, Wiring::Hop(_)) {
            // Fails only if the hop was never made.
            let _ = self.wire.remove_hop(self.cpus.host);
        }
    }
}
