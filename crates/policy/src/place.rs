//! Where receive work runs: from what a host has and what was measured to a list of settings, or one sentence why not
//! (ES-07, ES-08, ES-18, BH-12).
//!
//! A **seat** is the CPU of a source: its interrupt, its NAPI thread, or, where softirq follows the sender, its RPS mask is
//! that CPU. The heaviest source takes its seat first, on the CPU that has the least so far, near its device, one CPU per
//! core before siblings. What each source carries is worked out of two readings of the host's counters ([`rates()`]).
//!
//! # Properties
//! - No mask is empty unless it means "off" (RPS), and none names a CPU that is offline, isolated or forbidden.
//! - A setting that has its value already is not in the plan: the plan of a host in the planned state is empty.
//! - A table of RSS names only queues that there are.
//! - Sources that sit well enough stay: a change must make the heaviest CPU lighter by a third.
//! - At most [`MOST`] settings.
//!
//! This runs once per plan and never in the packet path, so it allocates.

mod auto;
mod keep;
mod nic;
mod rates;
#[cfg(test)]
#[path = "place/tests.rs"]
mod tests;
mod trial;
mod types;

pub use auto::{Course, Host, Planner, Trial, auto};
pub use keep::{Barred, Whose, barred, is_a_guards, is_somebody_elses};
pub use nic::Parted;
pub use rates::{Counters, Device, Queue, Rates, Received, rates};
pub use trial::{LEAST_PPS, Measured, Verdict, candidates, judge};
pub use types::{
    Cpu, Cpus, Impossible, Irq, Kept, Layout, Nic, Output, Plan, Program, Request, Seat, Set, Source, State,
    Strategy, Task, Value, What, Why,
};

use std::collections::{BTreeMap, BTreeSet};

/// Most settings of one plan, as many as a journal holds.
pub const MOST: usize = 1024;
/// Most interfaces that are placed at once.
pub const INTERFACES_MAX: usize = 64;
/// Most processes that one name stands for.
pub const PROGRAMS_MAX: usize = 64;
/// Flows that RFS remembers, in all and for a queue at least: what the kernel's documentation advises. Powers of two.
const FOLLOWED: u64 = 32_768;
const FOLLOWED_LEAST: u64 = 2_048;
/// Of the heaviest CPU's or queue's load, permille: what new seats or a new table must bring it down to before anything is moved.
/// Heaviest first is at most a third worse than the best, so seats that it has chosen are not moved again by a load that wavers.
const WORTH: u64 = 667;

/// The plan for a host.
///
/// # Errors
/// If it is impossible: then nothing is to be changed.
pub fn plan(layout: &Layout, request: &Request) -> Result<Plan, Impossible> {
    let usable = usable(layout, request)?;
    if layout.sources.is_empty() {
        return Err(Impossible::NoSource);
    }
    match (request.strategy, layout.rfs_table, &request.cpus) {
        (Strategy::Follow, None, _) => return Err(Impossible::NoRfs),
        (Strategy::Follow, _, Some(_)) => return Err(Impossible::RfsAnywhere),
        _ => {}
    }
    let (net, host) = match request.strategy {
        Strategy::Spread | Strategy::Affine | Strategy::Follow => (usable.clone(), usable.clone()),
        Strategy::Dedicate => split(layout, &usable, request.net)?,
    };
    let mut plan = Plan { strategy: request.strategy, net, host, ..Plan::default() };
    let mut parted;
    let layout = match request.strategy {
        // One CPU may be all that they shall have.
        Strategy::Affine => layout,
        Strategy::Spread | Strategy::Dedicate | Strategy::Follow => {
            parted = layout.clone();
            nic::part(&mut plan, &mut parted);
            &parted
        }
    };
    let spread = matches!(request.strategy, Strategy::Spread | Strategy::Follow);
    let seats = seats(layout, &plan.net, spread)?;
    let fans = match request.strategy {
        Strategy::Spread => fans(layout, &seats, &plan.net),
        // The reader may be on any of them.
        Strategy::Follow => {
            let fan = |(source, &seat): (&Source, &usize)| match can_fan(source) {
                true => plan.net.clone(),
                false => Cpus::from([seat]),
            };
            layout.sources.iter().zip(&seats).map(fan).collect()
        }
        _ => seats.iter().map(|&seat| Cpus::from([seat])).collect(),
    };
    for ((source, &seat), fan) in layout.sources.iter().zip(&seats).zip(&fans) {
        place(&mut plan, source, seat, fan);
        plan.seats.push(Seat { source: source.name.clone(), cpu: seat, rps: fan.clone(), load: source.load });
    }
    let followed = layout.sources.iter().any(|source| source.rfs > 0) && layout.rfs_table > Some(0);
    if request.strategy == Strategy::Follow {
        follow(&mut plan, layout);
    } else if followed {
        plan.kept.push(Kept { what: "RFS".into(), why: Why::On });
    }
    outputs(&mut plan, layout, &usable);
    programs(&mut plan, layout, &seats);
    match plan.settings.len() {
        0..=MOST => Ok(plan),
        settings => Err(Impossible::TooMany { settings }),
    }
}

/// The CPUs that the plan may use; at least two.
fn usable(layout: &Layout, request: &Request) -> Result<Cpus, Impossible> {
    let state = |id: usize| layout.cpus.iter().find(|cpu| cpu.id == id).map(|cpu| cpu.state);
    for &cpu in request.cpus.iter().flatten() {
        match state(cpu) {
            Some(State::Usable) => {}
            Some(State::Isolated) => return Err(Impossible::Isolated { cpu }),
            Some(State::Forbidden) => return Err(Impossible::Forbidden { cpu }),
            None => return Err(Impossible::Offline { cpu }),
        }
    }
    let asked = |id: &usize| request.cpus.as_ref().is_none_or(|cpus| cpus.contains(id));
    let usable: Cpus = layout.usable().into_iter().filter(asked).collect();
    let count = |state| layout.cpus.iter().filter(|cpu| cpu.state == state).count();
    match usable.len() {
        0 | 1 => Err(Impossible::OneCpu {
            usable: usable.len(),
            online: layout.cpus.len(),
            isolated: count(State::Isolated),
            forbidden: count(State::Forbidden),
        }),
        _ => Ok(usable),
    }
}

/// The CPUs in the order in which they are taken: those of the node first, then one of each core before its siblings.
fn order(layout: &Layout, cpus: &Cpus, node: Option<u32>) -> Vec<usize> {
    let mut met = BTreeMap::<usize, usize>::new();
    let mut keyed: Vec<(bool, usize, usize)> = Vec::new();
    for cpu in layout.cpus.iter().filter(|cpu| cpus.contains(&cpu.id)) {
        let nth = met.entry(cpu.core).or_default();
        let far = node.is_some() && cpu.node.is_some() && cpu.node != node;
        keyed.push((far, *nth, cpu.id));
        *nth += 1;
    }
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, _, id)| id).collect()
}

/// Net and host CPUs: whole cores, near the device of the first source.
fn split(layout: &Layout, usable: &Cpus, asked: Option<usize>) -> Result<(Cpus, Cpus), Impossible> {
    let most = usable.len() - 1;
    if let Some(net) = asked.filter(|net| *net == 0 || *net > most) {
        return Err(Impossible::NoHostCpu { net, usable: usable.len() });
    }
    // A quarter more than what packets take today.
    let needed = (layout.net_permille.saturating_mul(5) / 4).div_ceil(1000) as usize;
    let size = asked.unwrap_or(needed.clamp(1, most));
    let node = layout.sources.first().and_then(|source| source.node);
    // Siblings share a core's execution units: they get the same role where the number allows it.
    let mut ranked = order(layout, usable, node);
    let rank: BTreeMap<usize, usize> = ranked.iter().enumerate().map(|(n, &id)| (id, n)).collect();
    let core = |id: usize| layout.cpus.iter().find(|cpu| cpu.id == id).map_or(id, |cpu| cpu.core);
    let first = |id: usize| ranked_first(&rank, layout, core(id));
    ranked.sort_by_key(|&id| (first(id), rank.get(&id).copied()));
    let net: Cpus = ranked.into_iter().take(size).collect();
    let host = usable.difference(&net).copied().collect();
    Ok((net, host))
}

/// The rank of the first CPU of a core.
fn ranked_first(rank: &BTreeMap<usize, usize>, layout: &Layout, core: usize) -> Option<usize> {
    layout.cpus.iter().filter(|cpu| cpu.core == core).filter_map(|cpu| rank.get(&cpu.id).copied()).min()
}

/// The one CPU that a source has today, if it has one.
fn today(source: &Source) -> Option<usize> {
    let only = |cpus: &Cpus| cpus.first().copied().filter(|_| cpus.len() == 1);
    match (&source.thread, &source.irq) {
        (Some(thread), _) => only(&thread.cpus),
        (None, Some(irq)) => only(&irq.cpus),
        (None, None) => only(&source.rps),
    }
}

/// A managed interrupt's CPU: the kernel's choice.
fn fixed(source: &Source) -> Option<(u32, usize)> {
    let irq = source.irq.as_ref().filter(|irq| !irq.settable && source.thread.is_none())?;
    irq.cpus.first().map(|&cpu| (irq.irq, cpu))
}

/// A CPU for each source, in the order of the sources. To `spread`, packets of an interrupt that cannot move can be sent on.
fn seats(layout: &Layout, cpus: &Cpus, spread: bool) -> Result<Vec<usize>, Impossible> {
    let sources = &layout.sources;
    for source in sources {
        if let Some((irq, cpu)) = fixed(source)
            && !spread
            && !cpus.contains(&cpu)
        {
            return Err(Impossible::Managed { source: source.name.clone(), irq, cpu });
        }
    }
    let mut heaviest: Vec<usize> = (0..sources.len()).collect();
    // Those that cannot move first: the others sit around them.
    heaviest.sort_by_key(|&n| (fixed(&sources[n]).is_none(), std::cmp::Reverse(sources[n].load), n));
    let mut load: BTreeMap<usize, (u64, u64)> = cpus.iter().map(|&cpu| (cpu, (0, 0))).collect();
    let mut seats = vec![0; sources.len()];
    for n in heaviest {
        let source = &sources[n];
        let chosen = match fixed(source) {
            Some((_, cpu)) => Some(cpu),
            None => order(layout, cpus, source.node)
                .into_iter()
                .min_by_key(|cpu| load.get(cpu).copied().unwrap_or_default()),
        };
        let Some(cpu) = chosen else { return Err(Impossible::NoSource) };
        let entry = load.entry(cpu).or_default();
        entry.0 = entry.0.saturating_add(source.load);
        entry.1 += 1;
        seats[n] = cpu;
    }
    // Of a mask of several CPUs nobody can tell which one was the seat: then loads alone decide, the same way each time.
    let told = !spread || sources.iter().all(|source| source.thread.is_some() || source.irq.is_some());
    Ok(if told { keep_if_good(layout, cpus, seats) } else { seats })
}

/// Today's seats, unless the new ones are clearly better: what sits well is left.
fn keep_if_good(layout: &Layout, cpus: &Cpus, new: Vec<usize>) -> Vec<usize> {
    let old: Option<Vec<usize>> = layout.sources.iter().map(today).collect();
    let Some(old) = old.filter(|old| old.iter().all(|cpu| cpus.contains(cpu))) else { return new };
    let heaviest = |seats: &[usize]| {
        let mut load = BTreeMap::<usize, (u64, u64)>::new();
        for (source, &cpu) in layout.sources.iter().zip(seats) {
            let entry = load.entry(cpu).or_default();
            entry.0 = entry.0.saturating_add(source.load);
            entry.1 += 1;
        }
        let most = load.values().map(|l| l.0).max().unwrap_or(0);
        (most, load.values().map(|l| l.1).max().unwrap_or(0))
    };
    let (was, will) = (heaviest(&old), heaviest(&new));
    // Without a load their number decides.
    let worth = if was.0 == 0 { will.1 < was.1 } else { will.0 < was.0.saturating_mul(WORTH) / 1000 };
    if worth { new } else { old }
}

/// Whether its packets may be sent on to other CPUs: a NAPI thread sends the interrupts of RPS late up to 6.3.
fn can_fan(source: &Source) -> bool {
    source.thread.is_none()
}

/// The CPUs that the packets of each source are spread over: its seat, and its part of the CPUs that are no seat.
fn fans(layout: &Layout, seats: &[usize], cpus: &Cpus) -> Vec<Cpus> {
    let mut fans: Vec<Cpus> = seats.iter().map(|&seat| Cpus::from([seat])).collect();
    let taken: BTreeSet<usize> = seats.iter().copied().collect();
    let free: Cpus = cpus.difference(&taken).copied().collect();
    let mut able: Vec<usize> = (0..seats.len()).filter(|&n| can_fan(&layout.sources[n])).collect();
    able.sort_by_key(|&n| (std::cmp::Reverse(layout.sources[n].load), n));
    if able.is_empty() {
        return fans;
    }
    for (n, cpu) in order(layout, &free, None).into_iter().enumerate() {
        fans[able[n % able.len()]].insert(cpu);
    }
    // The kernel's choice of a managed interrupt may be a CPU that the plan must not use.
    for (fan, seat) in fans.iter_mut().zip(seats) {
        if !cpus.contains(seat) {
            fan.remove(seat);
            if fan.is_empty() {
                fan.extend(cpus);
            }
        }
    }
    fans
}

/// The settings that bring a source to its seat.
fn place(plan: &mut Plan, source: &Source, seat: usize, fan: &Cpus) {
    let seated = Cpus::from([seat]);
    match (&source.thread, &source.irq) {
        (Some(thread), _) => {
            plan.set(What::Task { tid: thread.tid, start: thread.start }, &thread.cpus, seated)
        }
        (None, Some(irq)) if irq.settable => plan.set(What::Irq { irq: irq.irq }, &irq.cpus, seated),
        (None, Some(irq)) => {
            plan.kept.push(Kept { what: format!("interrupt {}", irq.irq), why: Why::Managed })
        }
        (None, None) if source.as_sender || fan.len() > 1 => {}
        // Where it begins is not known: RPS to one CPU could only send it away from there.
        (None, None) => {
            plan.kept.push(Kept { what: format!("interrupt of {}", source.name), why: Why::Unknown });
            return;
        }
    }
    // With a thread or an interrupt the rest of the work is done where it begins, unless it is spread.
    let in_place = (source.thread.is_some() || source.irq.is_some()) && *fan == Cpus::from([seat]);
    let rps = if in_place { Cpus::new() } else { fan.clone() };
    plan.set(What::Rps { ifindex: source.ifindex, queue: source.queue }, &source.rps, rps);
}

/// Tables of RFS, that of all flows and those of the queues. Larger ones stay.
fn follow(plan: &mut Plan, layout: &Layout) {
    if !layout.sources.iter().any(can_fan) {
        plan.kept.push(Kept { what: "RFS".into(), why: Why::Threads });
        return;
    }
    let has = layout.rfs_table.unwrap_or(0);
    plan.give(What::RfsTable, Value::Entries(has), Value::Entries(has.max(FOLLOWED)));
    for source in layout.sources.iter().filter(|source| can_fan(source)) {
        let queues = layout.sources.iter().filter(|other| other.ifindex == source.ifindex).count() as u64;
        let part = (FOLLOWED / queues.max(1).next_power_of_two()).max(FOLLOWED_LEAST);
        let what = What::Rfs { ifindex: source.ifindex, queue: source.queue };
        plan.give(what, Value::Entries(source.rfs), Value::Entries(source.rfs.max(part)));
    }
}

/// Transmit queues: each CPU has one, so that completions come back where the packet was sent from.
fn outputs(plan: &mut Plan, layout: &Layout, usable: &Cpus) {
    // A packet takes its traffic class before XPS chooses among the queues of that class.
    let mut by_class = BTreeMap::<(u32, Option<u32>), Vec<&Output>>::new();
    for output in &layout.outputs {
        by_class.entry((output.ifindex, output.class)).or_default().push(output);
    }
    for queues in by_class.values().filter(|queues| queues.len() > 1 && !are_dealt(queues, usable)) {
        let cpus = order(layout, usable, None);
        for (n, output) in queues.iter().enumerate() {
            let own: Cpus = cpus.iter().skip(n).step_by(queues.len()).copied().collect();
            // More queues than CPUs: the others stay as they are.
            if !own.is_empty() {
                plan.set(What::Xps { ifindex: output.ifindex, queue: output.queue }, &output.xps, own);
            }
        }
    }
}

/// Whether each of these CPUs has one of the queues already: by a driver, say, that has its completions on the very CPUs.
fn are_dealt(queues: &[&Output], cpus: &Cpus) -> bool {
    let of = |cpu: &usize| queues.iter().filter(|queue| queue.xps.contains(cpu)).count();
    cpus.iter().all(|cpu| of(cpu) == 1)
}

/// Threads of the named programs: with their sources, or away from the net CPUs.
fn programs<'a>(plan: &mut Plan, layout: &'a Layout, seats: &[usize]) {
    let cpus: Cpus = seats.iter().filter(|seat| plan.net.contains(seat)).copied().collect();
    let cpus: Vec<usize> = cpus.into_iter().collect();
    let own = |program: &'a Program| program.threads.iter().map(move |thread| (program, thread));
    let threads = layout.programs.iter().flat_map(own).filter(|(_, thread)| !thread.stays());
    let mut outside = BTreeMap::<&str, usize>::new();
    for (n, (program, thread)) in threads.enumerate() {
        let to = match plan.strategy {
            // The scheduler does that.
            Strategy::Spread | Strategy::Follow => continue,
            // A thread that polls would take the CPU of its program and of the packets.
            Strategy::Affine if cpus.is_empty() || thread.polls => continue,
            Strategy::Affine => Cpus::from([cpus[n % cpus.len()]]),
            // A worker that is bound to a host CPU stays there.
            Strategy::Dedicate => match &thread.wished & &plan.host {
                none if none.is_empty() => plan.host.clone(),
                own => own,
            },
        };
        let to = &to & &program.allowed;
        if to.is_empty() {
            *outside.entry(&program.name).or_default() += 1;
        } else {
            plan.set(What::Task { tid: thread.tid, start: thread.start }, &thread.cpus, to);
        }
    }
    let kept = |(name, count)| Kept { what: format!("threads of {name} ({count})"), why: Why::Cpuset };
    plan.kept.extend(outside.into_iter().map(kept));
}
