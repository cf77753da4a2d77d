//! Status objects, made of what the guard knows.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, SystemTime};

use kern::guard::{Views, When};
use policy::Nanos;

use super::Control;
use crate::arrived::Arrived;
use crate::interface::Interface;
use crate::poller::mode_name;
use crate::source::Source as Taken;
use crate::status::{
    Change, Consumer, Cpu, Interface as IfStatus, Poller, SCHEMA, Source, SourceTotal, Status,
};

/// Where the driver has refused the XDP program.
const GENERIC: &str =
    "the driver refuses it, so the kernel's generic hook runs it: a shed frame costs a buffer";

/// Totals at the start of a status interval.
#[derive(Default)]
struct Totals {
    time: Nanos,
    sources: BTreeMap<usize, Seen>,
    /// By place, with the socket's cookie: a place that another socket has by now begins anew.
    overflows: BTreeMap<usize, (u64, [u64; 2])>,
    steered: BTreeMap<usize, u64>,
    cpu: BTreeMap<usize, [u64; 2]>,
}

/// Makes status objects; counts are those since the last one it made.
#[derive(Default)]
pub struct Maker {
    last: Totals,
    arrived: Arrived,
    /// Inode of this network namespace; 0: not looked for yet, or not known.
    netns: u64,
}

impl Maker {
    /// One whose first interval begins at `now`.
    pub fn begin(now: Nanos) -> Self {
        Self { last: Totals { time: now, ..Totals::default() }, ..Self::default() }
    }

    /// The status at `now`, with what happened since the last one.
    pub fn status(
        &mut self,
        control: &Control,
        now: Nanos,
        changes: Vec<Change>,
        events: Vec<String>,
    ) -> Status {
        let views = &control.gauges.views;
        if self.netns == 0 {
            self.netns = kern::netns::current_inode().unwrap_or(0);
        }
        let interval = now.saturating_sub(self.last.time).max(1);
        self.last.time = now;
        let mut status = Status {
            schema: SCHEMA.to_owned(),
            pid: std::process::id(),
            time: rfc3339(SystemTime::now()),
            time_ns: now,
            netns: self.netns,
            interval_s: interval as f64 / 1e9,
            mode_switches: control.mode_switches,
            log_lines_dropped: crate::out::dropped(),
            messages_lost: control.reports_lost.load(Relaxed),
            consumers_refused: control.consumers.refused,
            consumers_evicted: control.consumers.evicted,
            consumers_untold: views.overflow_stats.iter().map(|s| s.untold.load(Relaxed)).sum(),
            losses_behind: views.gate[0].evidence.load(Relaxed),
            behind_unknown: views.gate[0].crowded.load(Relaxed) + views.gate[0].untranslated.load(Relaxed),
            listeners_crowded: views.gate[0].listeners.load(Relaxed),
            losses_foreign: views.overflow_stats.iter().map(|s| s.foreign.load(Relaxed)).sum(),
            missing: control
                .missing()
                .into_iter()
                .map(|(subject, why)| format!("{subject}: {why}"))
                .collect(),
            protect: control.opts.protect.clone(),
            changes,
            events,
            ..Status::default()
        };
        for interface in &control.interfaces {
            status.interfaces.push(self.interface(control, interface));
        }
        self.consumers(control, &mut status);
        self.cpus(control, interval, &mut status);
        status.settings_changed = control.interfaces.iter().map(Interface::changed).sum();
        status
    }

    fn interface(&mut self, control: &Control, interface: &Interface) -> IfStatus {
        let mut row = IfStatus {
            name: interface.name.clone(),
            wanted: Some(&interface.wanted).filter(|w| **w != interface.name).cloned().unwrap_or_default(),
            gate: interface.rx.as_ref().is_some_and(|rx| rx.attached()),
            state: interface.state.name().to_owned(),
            xdp: interface.rx.as_ref().map_or_else(String::new, |rx| {
                match (rx.attached(), interface.is_marking()) {
                    (true, true) => "attached, until packets have marked its handles".to_owned(),
                    (true, false) if rx.generic() => {
                        format!("attached, {}; {GENERIC}", interface.rx_when.1)
                    }
                    (true, false) => format!("attached, {}", interface.rx_when.1),
                    (false, _) if interface.rx_when.0 == When::Never => {
                        format!("not attached: {}", interface.rx_when.1)
                    }
                    (false, _) => format!("waits, {}", interface.rx_when.1),
                }
            }),
            taps: control.taps.status(interface.ifindex),
            ..IfStatus::default()
        };
        // A datagram that was steered to a handle is lost to its socket, as a frame that was rewritten.
        let steered = control.steered(interface.first_slot);
        let mut dropped = [0, steered];
        let mut moved =
            [0, steered.saturating_sub(self.last.steered.insert(interface.first_slot, steered).unwrap_or(0))];
        for source in &interface.sources {
            let last = self.last.sources.get(&source.slot).copied().unwrap_or_default();
            let now = Seen::read(&control.gauges.views, source).after(&last);
            self.last.sources.insert(source.slot, now);
            let delta = now.since(&last);
            for (sums, counts) in [(&mut dropped, &now), (&mut moved, &delta)] {
                sums[0] += counts.shed;
                sums[1] += counts.marked;
            }
            row.sources.push(source_row(control, &interface.name, source, &now, &delta));
        }
        let drops = |[shed, marked]: [u64; 2]| {
            BTreeMap::from([("shed".to_owned(), shed), ("handle".to_owned(), marked)])
        };
        row.drops = drops(moved);
        row.drops_total = drops(dropped);
        if let Some((moved, total)) = self.arrived.look(interface.ifindex) {
            row.offered = Some(moved.offered);
            row.drops.extend(moved.drops);
            row.drops_total.extend(total);
        }
        row
    }

    fn consumers(&mut self, control: &Control, status: &mut Status) {
        let views = &control.gauges.views;
        // Levels are read in turns, and in mode shed once a tick; what stands there afterwards is of the last overload.
        let read = status
            .interfaces
            .iter()
            .flat_map(|i| &i.sources)
            .any(|source| matches!(source.mode.as_str(), "poll" | "shed"));
        for (slot, consumer) in control.consumers.iter() {
            let (stat, ctl) = (&views.consumer_stats[slot], &views.consumer_ctls[slot]);
            let lost = consumer.refused(&control.gauges, slot).wrapping_add(stat.foreign.load(Relaxed));
            let now = [lost, consumer.shed(&control.gauges, slot)];
            let before = self.last.overflows.insert(slot, (consumer.cookie(), now));
            let before = before
                .filter(|(cookie, _)| *cookie == consumer.cookie())
                .map_or([0; 2], |(_, counts)| counts);
            status.consumers.push(Consumer {
                process: if consumer.process.is_empty() { "?".to_owned() } else { consumer.process.clone() },
                pid: consumer.pid,
                socket: match consumer.filter {
                    Some((queue, _)) => format!("nfqueue {queue}"),
                    None => format!("udp {}", consumer.port),
                },
                level: read.then(|| f64::from(stat.level.load(Relaxed)) / 1000.0),
                lost: Some(now[0].saturating_sub(before[0])),
                shed: Some(now[1].saturating_sub(before[1])),
                inhibited: ctl.inhibited.load(Relaxed) != 0,
                netns: consumer.behind.map_or(0, |b| b.netns.into()),
                address: consumer.behind.and_then(|b| b.address).map_or_else(String::new, |a| a.to_string()),
                ..Consumer::default()
            });
        }
    }

    /// CPUs of the workers and what their pollers did, over `interval` ns.
    fn cpus(&mut self, control: &Control, interval: Nanos, status: &mut Status) {
        for (index, worker) in control.workers.iter().enumerate() {
            let counts = worker.gauge.counts.lock().map(|c| *c).unwrap_or_default();
            let cpu = control.gauges.views.cpu_stats.get(worker.cpu);
            let now = [worker.gauge.busy_ns.load(Relaxed), cpu.map_or(0, |c| c.net_rx_ns.load(Relaxed))];
            let before = self.last.cpu.insert(worker.cpu, now).unwrap_or_default();
            let share = |i: usize| now[i].saturating_sub(before[i]) as f64 / interval as f64;
            let reserve = f64::from(control.opts.reserve) / 100.0;
            status.cpus.push(Cpu {
                cpu: worker.cpu as u32,
                weir: Some(share(0)),
                softirq: Some(share(1)),
                budget_used: Some((share(0) + share(1)) / (1.0 - reserve)),
                reserve,
                ..Cpu::default()
            });
            status.pollers.push(Poller {
                cpu: worker.cpu as u32,
                role: control.role(index).to_owned(),
                sched: worker.class.to_owned(),
                polling: worker.gauge.polling.load(Relaxed),
                turns: counts.turns,
                packets: counts.packets,
                heartbeats: counts.heartbeats,
                looks: counts.looks,
                naps: counts.naps,
                budget_sleeps: counts.budget_sleeps,
                feedback_sleeps: counts.feedback_sleeps,
                inhibits: counts.inhibits,
                timeouts: counts.timeouts,
                lent: counts.lent,
                busy_ns: now[0],
                softirq_ns: now[1],
            });
        }
    }
}

/// What a source has counted since the guard took it in.
#[derive(Clone, Copy, Default)]
struct Seen {
    packets: u64,
    turns: u64,
    other_polls: u64,
    /// Of these, those of poll mode.
    foreign: u64,
    marked: u64,
    normal: u64,
    protected: u64,
    shed: u64,
    over_bound: u64,
    nobody: u64,
    syns: u64,
    over_share: u64,
}

impl Seen {
    fn read(views: &Views, source: &Taken) -> Self {
        let (stat, rx) = (&views.source_stats[source.slot], &views.rx_stats[source.slot]);
        Self {
            packets: stat.packets.load(Relaxed),
            turns: source.counts.turns.load(Relaxed),
            other_polls: stat.polls.load(Relaxed).saturating_sub(stat.own_polls.load(Relaxed)),
            foreign: u64::from(stat.foreign.load(Relaxed)),
            marked: rx.marked.load(Relaxed),
            // Before the frames that it is a part of: it never seems more than they are.
            shed: rx.shed.load(Acquire),
            normal: rx.normal.load(Relaxed),
            protected: rx.protected.load(Relaxed),
            over_bound: rx.over_bound.load(Relaxed),
            nobody: rx.nobody.load(Relaxed),
            syns: rx.syns.load(Relaxed),
            over_share: rx.over_share.load(Relaxed),
        }
    }

    /// What is told after `last`: the difference of two counters that are read one after the other may be one less than it was,
    /// which a monitor takes for a counter that began anew.
    fn after(self, last: &Self) -> Self {
        Self { other_polls: self.other_polls.max(last.other_polls), ..self }
    }

    fn since(&self, before: &Self) -> Self {
        let moved = |of: fn(&Self) -> u64| of(self).saturating_sub(of(before));
        Self {
            packets: moved(|c| c.packets),
            turns: moved(|c| c.turns),
            other_polls: moved(|c| c.other_polls),
            foreign: moved(|c| c.foreign),
            marked: moved(|c| c.marked),
            normal: moved(|c| c.normal),
            protected: moved(|c| c.protected),
            shed: moved(|c| c.shed),
            over_bound: moved(|c| c.over_bound),
            nobody: moved(|c| c.nobody),
            syns: moved(|c| c.syns),
            over_share: moved(|c| c.over_share),
        }
    }

    /// Frames by class.
    fn classes(&self) -> BTreeMap<String, u64> {
        [("normal", self.normal), ("protected", self.protected)].map(|(name, n)| (name.to_owned(), n)).into()
    }
}

/// `interface`: its present name.
fn source_row(control: &Control, interface: &str, source: &Taken, now: &Seen, delta: &Seen) -> Source {
    let views = &control.gauges.views;
    let mode = mode_name(views, source.slot);
    let over = (views.rx_stats[source.slot].over_rule.load(Relaxed) as usize)
        .checked_sub(1)
        .filter(|_| delta.over_bound > 0)
        .and_then(|place| control.opts.classes.rule(place));
    Source {
        name: format!("{interface}/{}", source.queue),
        cpu: match source.now.cpu.load(Relaxed) {
            u32::MAX => views.source_stats[source.slot].softirq_cpu.load(Relaxed),
            cpu => cpu,
        },
        mode: mode.to_owned(),
        reason: source.why(),
        packets: Some(delta.packets),
        turns: Some(delta.turns),
        foreign_polls: (mode == "poll").then_some(delta.foreign),
        handle: match (mode, source.now.by_io_uring.load(Relaxed)) {
            ("poll", false) => "socket".to_owned(),
            ("poll", true) => "io_uring".to_owned(),
            _ => String::new(),
        },
        napi_id: source.now.napi_id.load(Relaxed),
        mode_switches: source.switches(),
        refused_turns: source.counts.refused.load(Relaxed),
        classes: delta.classes(),
        over_bound: delta.over_bound,
        over_bound_rule: over.unwrap_or_default().to_owned(),
        shed: delta.shed,
        nobody: delta.nobody,
        syns: delta.syns,
        over_share: delta.over_share,
        total: Some(SourceTotal {
            packets: now.packets,
            turns: now.turns,
            other_polls: now.other_polls,
            classes: now.classes(),
            shed: now.shed,
            nobody: now.nobody,
            syns: now.syns,
            over_share: now.over_share,
            over_bound: now.over_bound,
        }),
    }
}

fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() as i64;
    // SAFETY: all-zero is a valid tm; gmtime_r writes it and keeps no pointer.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&raw const seconds, &raw mut tm);
        tm
    };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_of_counters_never_goes_back() {
        let of = |other_polls| Seen { other_polls, ..Seen::default() };
        let (first, second) = (of(20_122), of(20_121));
        let told = second.after(&first);
        assert_eq!((told.other_polls, told.since(&first).other_polls), (20_122, 0));
        assert_eq!(of(20_130).after(&told).other_polls, 20_130);
    }
}
