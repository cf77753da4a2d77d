//! What `weir place` reads: the layout of the host, and what two readings say of it.

use kern::cpus::CpuSet;
use kern::discover::{self, DiscoverError, Interface};
use kern::raw::{Raw, Reader, Want};
use kern::settings::Access;
use kern::{irq, layout};
use policy::place::{Cpu, Cpus, Irq, Layout, Measured, Output, Program, Source, State, Task};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{failed, usage};
use crate::out::shown;

/// Most interfaces that are placed at once.
const INTERFACES_MAX: usize = 64;
/// Most processes that one name stands for.
const PROGRAMS_MAX: usize = 64;
/// Counters of programs that have read, and of packets that were sent on.
const TAKEN: [&str; 5] =
    ["Udp.InDatagrams", "Udp6.InDatagrams", "Tcp.InSegs", "Ip.ForwDatagrams", "Ip6.OutForwDatagrams"];
/// Counters of packets that were lost after their device.
const LOST: [&str; 3] = ["Udp.RcvbufErrors", "Udp6.RcvbufErrors", "TcpExt.ListenDrops"];
/// Counters of packets that a device has lost.
const LOST_BEFORE: [&str; 2] = ["rx_dropped", "rx_missed_errors"];
/// Packets of one interrupt from which on interrupts do not tell how much a queue carries.
const FEW_PER_INTERRUPT: u64 = 8;
/// One tick of [`kern::raw::CpuTime`], ns.
const TICK_NS: u64 = 10_000_000;

/// The host as it stands.
pub struct Looked {
    /// CPUs that are online.
    pub cpus: Vec<layout::Cpu>,
    /// Interfaces with their sources.
    pub interfaces: Vec<Interface>,
    /// What the planner is told.
    pub layout: Layout,
    /// Programs that set such things too.
    pub rivals: Vec<layout::Rival>,
}

/// What was measured between two readings.
#[derive(Default)]
pub struct Window {
    /// What the planner judges by.
    pub measured: Measured,
    /// Interrupts per second and CPU, by source.
    pub interrupts: BTreeMap<String, Vec<u64>>,
    /// Share of each CPU that went into interrupts and softirqs, permille.
    pub softirq: BTreeMap<usize, u64>,
    /// Packets or interrupts per second, by source.
    pub loads: BTreeMap<String, u64>,
    /// The CPU that each of the named programs was last seen on, with its threads.
    pub ran_on: BTreeMap<u32, usize>,
}

/// The interfaces that are meant: those named, or all that receive.
pub fn interfaces(access: &mut Access, names: &[String]) -> anyhow::Result<Vec<Interface>> {
    let all = || -> anyhow::Result<Vec<String>> {
        Ok(kern::netns::interfaces()?.into_iter().map(|(name, _)| name).collect())
    };
    let asked = if names.is_empty() { all()? } else { names.to_vec() };
    let mut found: Vec<Interface> = Vec::new();
    for name in asked {
        match discover::resolve(access, &name) {
            Ok(more) => found.extend(more),
            Err(DiscoverError::Other(err)) if !names.is_empty() => return Err(err.into()),
            Err(err) if !names.is_empty() => return Err(usage(err)),
            // Only those that are named must be there.
            Err(_) => {}
        }
    }
    found.sort_by_key(|interface| interface.ifindex);
    found.dedup_by_key(|interface| interface.ifindex);
    found.truncate(INTERFACES_MAX);
    Ok(found)
}

/// Processes that `--program` means.
pub fn pids(programs: &[String]) -> anyhow::Result<Vec<u32>> {
    let mut all = Vec::new();
    for program in programs {
        let pids = match program.parse::<u32>() {
            Ok(pid) => vec![pid],
            Err(_) => layout::named(program),
        };
        let alive: Vec<u32> = pids.into_iter().filter(|pid| kern::proc::start_time(*pid).is_some()).collect();
        if alive.is_empty() {
            return Err(usage(format!(
                "--program {}: runs nowhere; give a pid or a command name",
                shown(program)
            )));
        }
        all.extend(alive.into_iter().take(PROGRAMS_MAX));
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

fn set(cpus: &CpuSet) -> Cpus {
    cpus.iter().collect()
}

fn task(thread: layout::Thread) -> Task {
    Task { tid: thread.tid, start: thread.start, cpus: set(&thread.cpus) }
}

/// Reads the host. `loads` are those of an earlier [`Window`]; without them sources count alike.
pub fn look(
    access: &mut Access,
    names: &[String],
    pids: &[u32],
    window: Option<&Window>,
) -> anyhow::Result<Looked> {
    let interfaces = interfaces(access, names)?;
    let cpus = layout::cpus()?;
    let mut layout = Layout::default();
    for cpu in &cpus {
        let state = match (cpu.isolated, cpu.allowed) {
            (true, _) => State::Isolated,
            (_, false) => State::Forbidden,
            _ => State::Usable,
        };
        layout.cpus.push(Cpu { id: cpu.id, core: cpu.core, node: cpu.node, state });
    }
    for interface in &interfaces {
        for source in &interface.sources {
            // Read as it is set: where the interrupt goes of these is the kernel's choice.
            let irq = source.irq.and_then(|irq| {
                let cpus = set(&irq::allowed(irq).ok()?);
                Some(Irq { irq, settable: irq::settable(irq), cpus })
            });
            layout.sources.push(Source {
                name: source.name.clone(),
                ifindex: interface.ifindex,
                queue: source.queue,
                node: source.numa,
                irq,
                thread: source.thread.and_then(layout::thread).map(task),
                as_sender: interface.kind == "veth",
                rps: set(&source.rps),
                load: window.and_then(|w| w.loads.get(&source.name).copied()).unwrap_or(0),
            });
        }
        let Ok(device) = access.sysfs().device(interface.ifindex) else { continue };
        for queue in 0..device.tx_queues().unwrap_or(0).min(discover::MAX_QUEUES) {
            if let Ok(xps) = device.xps_cpus(queue) {
                layout.outputs.push(Output { ifindex: interface.ifindex, queue, xps: set(&xps) });
            }
        }
    }
    for &pid in pids {
        let name = kern::proc::name(pid).unwrap_or_default();
        let threads: Vec<Task> = layout::threads(pid).into_iter().map(task).collect();
        if !threads.is_empty() {
            layout.programs.push(Program { pid, name, threads });
        }
    }
    layout.net_permille = window.map_or(0, |w| w.softirq.values().sum());
    Ok(Looked { cpus, interfaces, layout, rivals: layout::rivals() })
}

struct Reading {
    raw: Raw,
    interrupts: BTreeMap<String, Vec<u64>>,
}

fn read(reader: &mut Reader, looked: &Looked) -> anyhow::Result<Reading> {
    let sources = looked.layout.sources.iter();
    let irqs = sources.filter_map(|s| Some((s.name.clone(), irq::per_cpu(s.irq.as_ref()?.irq).ok()?)));
    let interrupts = irqs.collect();
    let raw = reader.read()?;
    Ok(Reading { raw, interrupts })
}

/// Measures for `length`.
///
/// # Errors
/// If the counters cannot be read, or `sleep` says that a signal has ended it.
pub fn measure(
    looked: &Looked,
    length: Duration,
    sleep: impl FnOnce(Duration) -> bool,
) -> anyhow::Result<Window> {
    let devices = looked.interfaces.iter().map(|i| i.name.clone()).collect();
    let mut reader = Reader::open(Want { devices, tcp: false, all_tasks: false });
    let first = read(&mut reader, looked)?;
    if !sleep(length) {
        return Err(failed("stopped by a signal"));
    }
    let second = read(&mut reader, looked)?;
    Ok(window(looked, &first, &second))
}

fn window(looked: &Looked, first: &Reading, second: &Reading) -> Window {
    let span_ns = second.raw.begin_ns.saturating_sub(first.raw.begin_ns).max(1);
    let rate = |delta: u64| (u128::from(delta) * 1_000_000_000 / u128::from(span_ns)) as u64;
    let moved = |name: &&str| {
        let value = |raw: &Raw| raw.stack.get(*name).copied().unwrap_or(0);
        value(&second.raw).saturating_sub(value(&first.raw))
    };
    let mut window = Window::default();
    let mut lost = LOST.iter().map(&moved).sum::<u64>();
    for now in &second.raw.softnet {
        let Some(then) = first.raw.softnet.iter().find(|then| then.cpu == now.cpu) else { continue };
        let packets = now.processed.wrapping_sub(then.processed);
        window.measured.packets.push((now.cpu as usize, rate(packets.into())));
        lost += u64::from(now.dropped.wrapping_sub(then.dropped));
    }
    for now in &second.raw.cpus {
        let Some(then) = first.raw.cpus.iter().find(|then| then.cpu == now.cpu) else { continue };
        let ticks = (now.softirq + now.irq).saturating_sub(then.softirq + then.irq);
        window.softirq.insert(now.cpu as usize, ticks.saturating_mul(TICK_NS).saturating_mul(1000) / span_ns);
    }
    for interface in &looked.interfaces {
        let device = |raw: &Raw| raw.devices.iter().find(|d| d.ifindex == interface.ifindex).cloned();
        let (Some(then), Some(now)) = (device(&first.raw), device(&second.raw)) else { continue };
        let delta = |name: &str| {
            let value = |d: &kern::raw::Device| d.counters.get(name).copied().unwrap_or(0);
            value(&now).saturating_sub(value(&then))
        };
        lost += LOST_BEFORE.iter().map(|name| delta(name)).sum::<u64>();
        let packets = rate(delta("rx_packets"));
        let queues = interface.sources.len().max(1) as u64;
        let told = |of: &Reading| -> Option<u64> {
            let all = interface.sources.iter().map(|s| Some(of.interrupts.get(&s.name)?.iter().sum::<u64>()));
            all.sum()
        };
        let fired = rate(told(second).zip(told(first)).map_or(0, |(now, then)| now.saturating_sub(then)));
        // A queue that never rests has few interrupts or none, and would count as the lightest.
        let tells = fired.saturating_mul(FEW_PER_INTERRUPT) >= packets;
        let own = |device: &kern::raw::Device, queue| see::path::queue_packets(&device.driver, queue);
        let by_queue =
            |queue| own(&now, queue).zip(own(&then, queue)).map(|(n, t)| rate(n.saturating_sub(t)));
        // Some drivers count what comes through one of several ways.
        let whole: u64 = interface.sources.iter().filter_map(|s| by_queue(s.queue)).sum();
        let whole = whole.saturating_mul(10) >= packets.saturating_mul(9);
        for source in &interface.sources {
            let counted = first.interrupts.get(&source.name).zip(second.interrupts.get(&source.name));
            let per_cpu: Option<Vec<u64>> = counted.map(|(then, now)| {
                now.iter().zip(then).map(|(now, then)| rate(now.saturating_sub(*then))).collect()
            });
            let interrupts: u64 = per_cpu.as_ref().map_or(0, |all| all.iter().sum());
            let counted = by_queue(source.queue).filter(|_| whole);
            // In packets, so that devices compare: what the driver counts, or by its share of the interrupts.
            let load = match counted {
                _ if queues == 1 => packets,
                Some(packets) => packets,
                None if tells && fired > 0 => {
                    (u128::from(packets) * u128::from(interrupts) / u128::from(fired)) as u64
                }
                None => packets / queues,
            };
            window.loads.insert(source.name.clone(), load);
            window.interrupts.extend(per_cpu.map(|all| (source.name.clone(), all)));
        }
    }
    for program in &looked.layout.programs {
        if let Some(task) = second.raw.tasks.iter().find(|task| task.pid == program.pid) {
            window.ran_on.insert(program.pid, task.cpu as usize);
        }
    }
    window.measured.busy = window.softirq.values().copied().max().unwrap_or(0);
    window.measured.goodput = rate(TAKEN.iter().map(&moved).sum());
    window.measured.lost = rate(lost);
    window
}
