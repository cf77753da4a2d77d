//! From readings of a running host to what the model needs: windows of rates and shares, and the shape of the path.
//! Pure: the readings are arguments.

use kern::raw::{CpuTime, Device, Kind, Raw, Task};
use model::line::Line;
use model::observe::Window;
use model::path::Path;
use model::share::{Rival, weight};
use model::whatif::Facts;
use std::collections::{BTreeMap, BTreeSet};

/// One reading, and what happened since the one before.
#[derive(Default)]
pub struct Reading {
    /// Counters.
    pub raw: Raw,
    /// What waited in UDP sockets when they were looked at, bytes; zeros left out.
    pub waiting: Vec<u64>,
    /// CPU time of this process, ns: no part of the host's work.
    pub own_ns: u64,
}

/// A program that reads packets.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Reader {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Share of a CPU, with the softirq that interrupted it.
    pub share: f64,
    /// Packets/s over the whole time that its sockets lost.
    pub lost: f64,
}

/// What was seen of one interface.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Its name.
    pub interface: String,
    /// Length of all windows together.
    pub seconds: f64,
    /// Packets in all windows.
    pub packets: u64,
    /// Mean packets/s of the interface.
    pub rate: f64,
    /// The CPU that receives most of them.
    pub cpu: u32,
    /// Its part of the packets, 0 to 1: the model's rates are of this CPU.
    pub part: f64,
    /// One per stretch between two readings.
    pub windows: Vec<Window>,
    /// The path without its costs.
    pub path: Path,
    /// For what-ifs.
    pub facts: Facts,
    /// Programs that read, by CPU time.
    pub readers: Vec<Reader>,
    /// What is not known, and what it needs.
    pub missing: Vec<String>,
    /// Sockets of interest whose programs only root sees.
    pub hidden: u64,
}

/// Ticks of /proc/stat per second (USER_HZ).
const TICKS: f64 = 100.0;
/// A program below this share of a CPU does not count.
const SHARE_MIN: f64 = 0.002;
/// A program that runs or wants to run for this part of the time only computes.
const HOG: f64 = 0.9;
/// Most that the memory of a packet is larger than the packet: the page that it came in and the structures beside.
const CHARGE_OVER: f64 = 4608.0;
/// Least charge of a packet in a socket that is believed: the structure that describes it alone is 256 bytes.
const CHARGE_MIN: u64 = 512;
/// A program keeps the CPU for so long while another waits: the slice of EEVDF, cut by the next tick of the slowest
/// common tick rate (250 per second). Kernels do not tell either without debugfs.
const OFF: f64 = 4e-3;

/// What a small queue costs where nobody else wants the CPU: with 0.1 ms the median error of the 72 hosts of `weir predict
/// --check` (seeds 6001, 7001 and 8001) is smallest, with 0.05 to 0.15 below 10 %.
const AWAY: f64 = 0.1e-3;

fn since(get: impl Fn(&CpuTime) -> u64, a: &CpuTime, b: &CpuTime) -> f64 {
    get(b).saturating_sub(get(a)) as f64 / TICKS
}

fn device<'a>(raw: &'a Raw, name: &str) -> Option<&'a Device> {
    raw.devices.iter().find(|d| d.name == name)
}

fn counter(device: &Device, name: &str) -> u64 {
    device.counters.get(name).copied().unwrap_or(0)
}

/// Packets handed to the stack per CPU between two readings.
fn handed_up(a: &Raw, b: &Raw) -> BTreeMap<u32, u64> {
    let then: BTreeMap<u32, u32> = a.softnet.iter().map(|s| (s.cpu, s.processed)).collect();
    // The counters are 32 bits wide and run over.
    let moved =
        |s: &kern::proc::Softnet| Some((s.cpu, u64::from(s.processed.wrapping_sub(*then.get(&s.cpu)?))));
    b.softnet.iter().filter_map(moved).collect()
}

/// Kernel threads that do receive work outside softirq, by name.
fn carries(name: &str) -> bool {
    name.starts_with("napi/") || name.starts_with("cpumap/")
}

/// Time on a CPU and time ready but waiting of each task between two readings, seconds.
fn ran<'a>(a: &Raw, b: &'a Raw) -> Vec<(&'a Task, f64, f64)> {
    let then: BTreeMap<(u32, u64), &Task> = a.tasks.iter().map(|t| ((t.pid, t.start), t)).collect();
    let one = |now: &'a Task| {
        let old = then.get(&(now.pid, now.start))?;
        let ns = |now: u64, old: u64| now.saturating_sub(old) as f64 / 1e9;
        Some((now, ns(now.run_ns, old.run_ns), ns(now.wait_ns, old.wait_ns)))
    };
    b.tasks.iter().filter_map(one).collect()
}

/// Processes that read packets.
fn readers(raw: &Raw) -> BTreeSet<u32> {
    let me = std::process::id();
    let held =
        raw.sockets.iter().filter(|s| s.kind != Kind::Accept).filter_map(|s| raw.holders.get(&s.inode));
    held.map(|h| h.pid).chain(raw.filters.iter().map(|f| f.port)).filter(|pid| *pid != me).collect()
}

fn lost(device: &str, a: &Raw, b: &Raw) -> u64 {
    const STACK: [&str; 4] = ["Udp.RcvbufErrors", "Udp.MemErrors", "Udp6.RcvbufErrors", "Udp6.MemErrors"];
    let of = |raw: &Raw, name: &str| raw.stack.get(name).copied().unwrap_or(0);
    let stack: u64 = STACK.iter().map(|name| of(b, name).saturating_sub(of(a, name))).sum();
    let backlog: u64 = b
        .softnet
        .iter()
        .filter_map(|now| {
            let old = a.softnet.iter().find(|s| s.cpu == now.cpu)?;
            Some(u64::from(now.dropped.wrapping_sub(old.dropped)))
        })
        .sum();
    let ring = |name| match (self::device(a, device), self::device(b, device)) {
        (Some(a), Some(b)) => counter(b, name).saturating_sub(counter(a, name)),
        _ => 0,
    };
    stack + backlog + ring("rx_missed_errors") + ring("rx_over_errors") + ring("rx_fifo_errors")
}

/// Bytes that one packet of `length` is charged with in a socket: all that waits is a multiple of it while packets are alike;
/// of several of them, if they come in bursts.
fn charge(waiting: &[u64], length: f64) -> Option<f64> {
    let common = waiting.iter().copied().reduce(|mut a, mut b| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    })?;
    let least = waiting.iter().copied().min()?;
    let together = if common >= CHARGE_MIN { common } else { least } as f64;
    Some(together / (together / (length + CHARGE_OVER)).ceil().max(1.0))
}

/// What the readings say of the interface `name`; an error is one line without its name.
pub fn observe(name: &str, readings: &[Reading]) -> Result<Observed, String> {
    let gone = || "it vanished while it was watched; try again".to_owned();
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else { return Err(gone()) };
    let (start, end) =
        (device(&first.raw, name).ok_or_else(gone)?, device(&last.raw, name).ok_or_else(gone)?);
    let packets = counter(end, "rx_packets").saturating_sub(counter(start, "rx_packets"));
    let bytes = counter(end, "rx_bytes").saturating_sub(counter(start, "rx_bytes"));
    let seconds = last.raw.begin_ns.saturating_sub(first.raw.begin_ns).max(1) as f64 / 1e9;
    let by_cpu = handed_up(&first.raw, &last.raw);
    let all: u64 = by_cpu.values().sum();
    let (cpu, most) = by_cpu.iter().max_by_key(|(_, n)| **n).map(|(cpu, n)| (*cpu, *n)).ok_or_else(gone)?;
    let part = if all > 0 { most as f64 / all as f64 } else { 1.0 };

    let reading = readers(&last.raw);
    let mut shares: BTreeMap<u32, Reader> = BTreeMap::new();
    let (mut here, mut elsewhere) = (0.0, 0.0);
    for (task, run, _) in ran(&first.raw, &last.raw).into_iter().filter(|(t, ..)| reading.contains(&t.pid)) {
        let share = run / seconds;
        if share < SHARE_MIN {
            continue;
        }
        *if task.cpu == cpu { &mut here } else { &mut elsewhere } += share;
        let reader = Reader {
            pid: task.pid,
            name: task.name.clone(),
            share,
            lost: socket_loss(task.pid, first, last) / seconds,
        };
        shares.insert(task.pid, reader);
    }
    let together = here >= elsewhere;
    let windows: Vec<Window> = readings
        .windows(2)
        .filter_map(|pair| window(name, &pair[0], &pair[1], cpu, part, &reading, together))
        .collect();

    let rivals = rivals(&first.raw, &last.raw, cpu, seconds, &reading);
    // Each program is one of those who share.
    let own_weight: f64 = last.raw.tasks.iter().filter(|t| shares.contains_key(&t.pid)).map(of_task).sum();
    let threads: f64 = last
        .raw
        .tasks
        .iter()
        .filter(|t| shares.contains_key(&t.pid))
        .map(|t| f64::from(t.threads))
        .sum::<f64>()
        .clamp(1.0, by_cpu.len().max(1) as f64);
    let waiting: Vec<u64> = readings.iter().flat_map(|r| r.waiting.iter().copied()).collect();
    let length = if packets > 0 { bytes as f64 / packets as f64 } else { 0.0 };
    let charge = charge(&waiting, length);
    let sockets: Vec<u64> = last
        .raw
        .sockets
        .iter()
        .filter(|s| s.kind == Kind::Udp && s.limit > 0)
        .filter(|s| last.raw.holders.get(&s.inode).is_some_and(|h| shares.contains_key(&h.pid)))
        .map(|s| s.limit)
        .collect();
    let smallest = sockets.iter().min().copied();
    let mut missing = last.raw.missing.clone();
    if shares.is_empty() && here + elsewhere == 0.0 {
        missing.push("no program reads these packets, as far as can be seen".into());
    } else if charge.is_none() {
        missing.push("memory per packet: nothing waited in a socket when it was looked at".into());
    }
    let threaded = last.raw.tasks.iter().any(|t| t.name.starts_with(&format!("napi/{name}-")));
    let path = Path {
        program_cpus: if together { 1.0 } else { threads },
        together,
        threaded,
        weight: if own_weight > 0.0 { own_weight } else { weight(0) },
        off: OFF * rivals.len() as f64,
        away: AWAY,
        rivals,
        ring: end.ring.map(|ring| f64::from(ring.rx)),
        holds: smallest.zip(charge).map(|(limit, charge)| (limit as f64 / charge).floor() + 1.0),
        sockets: sockets.len().max(1) as f64,
        // The costs are fitted later.
        ..Path::of(Line::default(), Line::default())
    };
    let facts = Facts { charge, packet: length, per_byte: PER_BYTE, link_bits: None };
    let mut readers: Vec<Reader> = shares.into_values().collect();
    readers.sort_by(|a, b| b.share.total_cmp(&a.share));
    Ok(Observed {
        interface: name.into(),
        seconds,
        packets,
        rate: packets as f64 / seconds,
        cpu,
        part,
        windows,
        path,
        facts,
        readers,
        missing,
        hidden: last.raw.hidden,
    })
}

/// Seconds per byte of a packet: one copy at 10 GB/s.
const PER_BYTE: f64 = 1e-10;

fn socket_loss(pid: u32, first: &Reading, last: &Reading) -> f64 {
    let held = |raw: &Raw| -> u64 {
        let mine = raw.sockets.iter().filter(|s| raw.holders.get(&s.inode).is_some_and(|h| h.pid == pid));
        // Those of a connection are duplicates, which nobody has lost.
        mine.filter(|s| s.kind != kern::raw::Kind::Tcp).filter_map(|s| s.drops).sum()
    };
    held(&last.raw).saturating_sub(held(&first.raw)) as f64
}

fn window(
    name: &str,
    a: &Reading,
    b: &Reading,
    cpu: u32,
    part: f64,
    readers: &BTreeSet<u32>,
    together: bool,
) -> Option<Window> {
    let seconds = b.raw.begin_ns.checked_sub(a.raw.begin_ns).filter(|ns| *ns > 0)? as f64 / 1e9;
    let (from, to) = (device(&a.raw, name)?, device(&b.raw, name)?);
    let packets = counter(to, "rx_packets").saturating_sub(counter(from, "rx_packets"));
    let time = |raw: &Raw| raw.cpus.iter().find(|c| c.cpu == cpu).copied();
    let (then, now) = (time(&a.raw)?, time(&b.raw)?);
    let tasks = ran(&a.raw, &b.raw);
    // A niced program gives way to the others, so what it takes is free. Its time is known exactly over all CPUs, and
    // by CPU as sampled at the tick.
    let niced: f64 = tasks.iter().filter(|(t, ..)| t.nice > 0).map(|(_, run, _)| run).sum();
    let ticks = |raw: &Raw| raw.cpus.iter().map(|c| c.nice).sum::<u64>();
    let all_nice = ticks(&b.raw).saturating_sub(ticks(&a.raw)) as f64 / TICKS;
    let nice = if all_nice > 0.0 { niced * since(|c| c.nice, &then, &now) / all_nice } else { 0.0 };
    let me = std::process::id();
    let own_here = tasks.iter().any(|(t, ..)| t.pid == me && t.cpu == cpu);
    let own = if own_here { b.own_ns.saturating_sub(a.own_ns) as f64 / 1e9 } else { 0.0 };
    let carried: f64 =
        tasks.iter().filter(|(t, ..)| carries(&t.name) && t.cpu == cpu).map(|(_, run, _)| run).sum();
    let program: f64 = tasks
        .iter()
        .filter(|(t, ..)| readers.contains(&t.pid) && (!together || t.cpu == cpu))
        .map(|(_, run, _)| run)
        .sum();
    let before: BTreeMap<u32, u64> = a.raw.tasks.iter().map(|t| (t.pid, t.turns)).collect();
    let turns: u64 = tasks
        .iter()
        .filter(|(t, ..)| readers.contains(&t.pid) && (!together || t.cpu == cpu))
        .map(|(t, ..)| t.turns.saturating_sub(before.get(&t.pid).copied().unwrap_or(t.turns)))
        .sum();
    // Such a thread runs softirqs too, inside its own time: the two are not added up.
    let softirq = since(|c| c.softirq + c.irq, &then, &now).max(carried);
    let away = since(|c| c.idle + c.steal, &then, &now) + nice + own;
    let busy = if together { seconds - away } else { softirq };
    let share = |time: f64| (time / seconds).clamp(0.0, 1.0);
    Some(Window {
        rate: packets as f64 * part / seconds,
        lost: lost(name, &a.raw, &b.raw) as f64 / packets.max(1) as f64,
        busy: share(busy),
        softirq: share(softirq),
        program: share(program),
        turns: turns as f64 / seconds,
        softirqs: (|| now.net_rx?.checked_sub(then.net_rx?))().unwrap_or(0) as f64 / seconds,
        others: share(nice),
    })
}

fn of_task(task: &Task) -> f64 {
    weight(task.nice.clamp(-20, 19) as i8)
}

/// Programs that want more of the CPU than they get, or all of it.
fn rivals(a: &Raw, b: &Raw, cpu: u32, seconds: f64, readers: &BTreeSet<u32>) -> Vec<Rival> {
    let me = std::process::id();
    let hog = |(task, run, wait): &(&Task, f64, f64)| {
        let other = !readers.contains(&task.pid) && task.pid != me && task.nice <= 0;
        (other
            && task.cpu == cpu
            && run + wait >= HOG * seconds
            && *run > SHARE_MIN * seconds
            && !carries(&task.name))
        .then(|| Rival { weight: of_task(task), demand: 1.0 })
    };
    ran(a, b).iter().filter_map(hog).collect()
}

#[cfg(test)]
#[path = "observe_tests.rs"]
mod tests;
