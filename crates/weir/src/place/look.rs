//! What `weir place` reads: the layout of the host, and what two readings say of it.

use kern::cpus::CpuSet;
use kern::discover::{self, DiscoverError, Interface};
use kern::journal::{self, Journal};
use kern::raw::{Raw, Reader, Want};
use kern::settings::Access;
use kern::{irq, layout};
use policy::place::{
    self, Counters, Cpu, Cpus, INTERFACES_MAX, Irq, Layout, Nic, Output, PROGRAMS_MAX, Program, Rates,
    Received, Source, State, Task,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::error::{failed, usage};
use crate::out::shown;

/// Counters of programs that have read, and of packets that were sent on.
const TAKEN: [&str; 5] =
    ["Udp.InDatagrams", "Udp6.InDatagrams", "Tcp.InSegs", "Ip.ForwDatagrams", "Ip6.OutForwDatagrams"];
/// Counters of packets that were lost after their device.
const LOST: [&str; 3] = ["Udp.RcvbufErrors", "Udp6.RcvbufErrors", "TcpExt.ListenDrops"];
/// Counters of packets that a device has lost.
const LOST_BEFORE: [&str; 2] = ["rx_dropped", "rx_missed_errors"];
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
    /// What they say.
    pub rates: Rates,
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

fn task(thread: &layout::Thread) -> Task {
    let cpus = set(&thread.cpus);
    Task {
        tid: thread.tid,
        start: thread.start,
        wished: cpus.clone(),
        cpus,
        bound: thread.bound,
        polls: thread.polls,
    }
}

/// A program as it stands, and the CPUs that its threads had before they were placed.
fn program(access: &mut Access, placed: Option<&Journal>, pid: u32) -> Option<Program> {
    let threads = layout::threads(pid);
    let mut tasks: Vec<Task> = threads.iter().map(task).collect();
    if let Some(journal) = placed {
        let found: Vec<_> = threads.into_iter().map(|t| (t.tid, t.start, t.cpus)).collect();
        for (task, before) in tasks.iter_mut().zip(journal.cpus_before(access, &found)) {
            task.wished = set(&before);
        }
    }
    let allowed = layout::cpuset_of(pid).map(|cpus| set(&cpus))?;
    let name = kern::proc::name(pid).unwrap_or_default();
    (!tasks.is_empty()).then_some(Program { pid, name, allowed, threads: tasks })
}

/// The journal of an earlier placement of this host, or of one that is under way.
pub fn placed(dir: &Path) -> Option<Journal> {
    let paths = journal::paths(dir).ok()?.into_iter().filter(|path| journal::is_host(path));
    paths.filter_map(|path| Journal::load(&path).ok()).find(Journal::is_here)
}

/// Reads the host. `loads` are those of an earlier [`Window`]; without them sources count alike. `journals`: where a placement is
/// written down.
pub fn look(
    access: &mut Access,
    journals: &Path,
    names: &[String],
    pids: &[u32],
    window: Option<&Window>,
) -> anyhow::Result<Looked> {
    let interfaces = interfaces(access, names)?;
    let cpus = layout::cpus()?;
    let mut layout = Layout::default();
    for cpu in &cpus {
        let state = State::of(cpu.isolated, cpu.allowed);
        layout.cpus.push(Cpu { id: cpu.id, core: cpu.core, node: cpu.node, state });
    }
    for interface in &interfaces {
        let device = access.sysfs().device(interface.ifindex).ok();
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
                thread: source.thread.and_then(layout::thread).as_ref().map(task),
                as_sender: interface.kind == "veth",
                rps: set(&source.rps),
                rfs: device.as_ref().and_then(|device| device.rfs_entries(source.queue).ok()).unwrap_or(0),
                load: window.map_or(0, |w| w.rates.load(&source.name)),
            });
        }
        let Some(device) = device else { continue };
        for queue in 0..device.tx_queues().unwrap_or(0).min(discover::MAX_QUEUES) {
            if let Ok(xps) = device.xps_cpus(queue) {
                let class = device.traffic_class(queue);
                layout.outputs.push(Output { ifindex: interface.ifindex, queue, xps: set(&xps), class });
            }
        }
    }
    let placed = if pids.is_empty() { None } else { placed(journals) };
    layout.programs = pids.iter().filter_map(|pid| program(access, placed.as_ref(), *pid)).collect();
    layout.rfs_table = kern::sysfs::rfs_table().ok();
    layout.net_permille = window.map_or(0, |w| w.rates.net_permille());
    let counted = |ifindex| window.is_some_and(|w| !w.rates.guessed.contains(&ifindex));
    layout.nics = interfaces
        .iter()
        .map(|interface| Nic { counted: counted(interface.ifindex), ..nic(access, interface) })
        .collect();
    Ok(Looked { cpus, interfaces, layout, rivals: layout::rivals() })
}

/// Whether an XDP program is attached to what stands on it: a bond has its ports run its own, and they do not tell.
fn below_xdp(access: &Access, ifindex: u32) -> bool {
    let above = kern::sysfs::stack(access.sysfs(), ifindex, INTERFACES_MAX);
    above
        .into_iter()
        .filter(|index| *index != ifindex)
        .any(|index| kern::link::get(index).is_ok_and(|l| l.xdp.is_some()))
}

/// What parts the flows of an interface over its queues.
fn nic(access: &Access, interface: &Interface) -> Nic {
    let device = access.sysfs().device(interface.ifindex).ok();
    let queues = device.as_ref().and_then(|device| device.rx_queues().ok()).unwrap_or(0);
    let table = kern::ethtool::rss_table(&interface.name).unwrap_or_default();
    Nic {
        ifindex: interface.ifindex,
        // Some drivers have queues that RSS may not name.
        queues: kern::ethtool::rings(&interface.name).map_or(queues, |rings| rings.min(queues)),
        table,
        counted: false,
        rules: kern::ethtool::flow_rules(&interface.name),
        xdp: interface.foreign_xdp().is_some() || below_xdp(access, interface.ifindex),
        fixed: kern::ethtool::sets_rss_table(&interface.name) == Some(false),
    }
}

/// Counters, and the CPUs of programs.
fn read(reader: &mut Reader, looked: &Looked) -> anyhow::Result<(Counters, BTreeMap<u32, usize>)> {
    let interrupts = looked.layout.sources.iter().map(|s| irq::per_cpu(s.irq.as_ref()?.irq).ok()).collect();
    let raw = reader.read()?;
    let programs = looked.layout.programs.iter().map(|program| program.pid);
    let cpu_of = |pid| Some((pid, raw.tasks.iter().find(|task| task.pid == pid)?.cpu as usize));
    let ran_on = programs.filter_map(cpu_of).collect();
    Ok((counters(looked, &raw, interrupts), ran_on))
}

/// A reading as policy wants it; `interrupts` are those of the sources, in their order.
fn counters(looked: &Looked, raw: &Raw, interrupts: Vec<Option<Vec<u64>>>) -> Counters {
    let of_stack = |names: &[&str]| names.iter().map(|name| of(&raw.stack, name)).collect();
    let received = raw.softnet.iter().map(|now| Received {
        cpu: now.cpu as usize,
        packets: now.processed,
        dropped: now.dropped,
    });
    let times =
        raw.cpus.iter().map(|now| (now.cpu as usize, (now.softirq + now.irq).saturating_mul(TICK_NS)));
    let mut interrupts = interrupts.into_iter();
    let devices = looked.interfaces.iter().filter_map(|interface| {
        let mut interrupts =
            interrupts.by_ref().take(interface.sources.len()).collect::<Vec<_>>().into_iter();
        let device = raw.devices.iter().find(|device| device.ifindex == interface.ifindex)?;
        let queues = interface.sources.iter().map(|source| place::Queue {
            source: source.name.clone(),
            packets: see::path::queue_packets(&device.driver, source.queue),
            interrupts: interrupts.next().flatten(),
        });
        Some(place::Device {
            ifindex: interface.ifindex,
            packets: of(&device.counters, "rx_packets"),
            queues: queues.collect(),
            lost: LOST_BEFORE.iter().map(|name| of(&device.counters, name)).collect(),
        })
    });
    Counters {
        at: raw.begin_ns,
        taken: of_stack(&TAKEN),
        lost: of_stack(&LOST),
        received: received.collect(),
        times: times.collect(),
        devices: devices.collect(),
    }
}

/// A counter that the kernel does not have counts nothing.
fn of(counters: &BTreeMap<String, u64>, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
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
    let (first, _) = read(&mut reader, looked)?;
    if !sleep(length) {
        return Err(failed("stopped by a signal"));
    }
    let (second, ran_on) = read(&mut reader, looked)?;
    Ok(Window { rates: place::rates(&first, &second), ran_on })
}
