//! Status objects, made of what the guard knows.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use policy::Nanos;
use policy::classes::Class;

use super::Control;
use crate::arrived::Arrived;
use crate::interface::Interface;
use crate::poller::mode_name;
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
    packets: BTreeMap<usize, [u64; 15]>,
    overflows: BTreeMap<usize, [u64; 2]>,
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
            let mut row = IfStatus {
                name: interface.wanted.clone(),
                state: interface.state.name().to_owned(),
                xdp: interface.rx.as_ref().map_or_else(String::new, |rx| {
                    match (rx.attached(), interface.is_marking()) {
                        (true, true) => "attached, until packets have marked its handles".to_owned(),
                        (true, false) if rx.generic() => {
                            format!("attached, {}; {GENERIC}", interface.rx_when.1)
                        }
                        (true, false) => format!("attached, {}", interface.rx_when.1),
                        (false, _) => format!("waits, {}", interface.rx_when.1),
                    }
                }),
                ..IfStatus::default()
            };
            let (mut shed, mut marked) = (0, 0);
            // A datagram that was steered to a handle is lost to its socket, as a frame that was rewritten.
            let steered = control.steered(interface.first_slot);
            let mut shed_total = 0;
            let mut marked_total = steered;
            marked +=
                steered.saturating_sub(self.last.steered.insert(interface.first_slot, steered).unwrap_or(0));
            for source in &interface.sources {
                let (stat, rx) = (&views.source_stats[source.slot], &views.rx_stats[source.slot]);
                let now = [
                    stat.packets.load(Relaxed),
                    source.counts.turns.load(Relaxed),
                    stat.polls.load(Relaxed).saturating_sub(stat.own_polls.load(Relaxed)),
                    rx.shed.load(Relaxed),
                    rx.marked.load(Relaxed),
                    rx.by_class[0].load(Relaxed),
                    rx.by_class[1].load(Relaxed),
                    rx.by_class[2].load(Relaxed),
                    rx.over_bound.load(Relaxed),
                    rx.shed_class[0].load(Relaxed),
                    rx.shed_class[1].load(Relaxed),
                    rx.shed_class[2].load(Relaxed),
                    rx.nobody.load(Relaxed),
                    rx.syns.load(Relaxed),
                    rx.over_share.load(Relaxed),
                ];
                let before = self.last.packets.insert(source.slot, now).unwrap_or_default();
                let delta: Vec<u64> = now.iter().zip(before).map(|(n, b)| n.saturating_sub(b)).collect();
                shed += delta[3];
                marked += delta[4];
                shed_total += now[3];
                marked_total += now[4];
                let class = |counts: &[u64]| {
                    let names = [Class::Normal, Class::Bulk, Class::Protected];
                    names.iter().map(|c| c.name().to_owned()).zip(counts.iter().copied()).collect()
                };
                let mode = mode_name(views, source.slot);
                row.sources.push(Source {
                    name: source.name.clone(),
                    cpu: match source.now.cpu.load(Relaxed) {
                        u32::MAX => stat.softirq_cpu.load(Relaxed),
                        cpu => cpu,
                    },
                    mode: mode.to_owned(),
                    reason: source.why(),
                    packets: Some(delta[0]),
                    turns: Some(delta[1]),
                    foreign_polls: (mode == "poll").then_some(delta[2]),
                    handle: match (mode, source.now.by_io_uring.load(Relaxed)) {
                        ("poll", false) => "socket".to_owned(),
                        ("poll", true) => "io_uring".to_owned(),
                        _ => String::new(),
                    },
                    napi_id: source.now.napi_id.load(Relaxed),
                    mode_switches: source.switches(),
                    refused_turns: source.counts.refused.load(Relaxed),
                    classes: class(&delta[5..8]),
                    over_bound: delta[8],
                    shed: class(&delta[9..12]),
                    nobody: delta[12],
                    syns: delta[13],
                    over_share: delta[14],
                    total: Some(SourceTotal {
                        packets: now[0],
                        turns: now[1],
                        other_polls: now[2],
                        classes: class(&now[5..8]),
                        shed: class(&now[9..12]),
                        nobody: now[12],
                        syns: now[13],
                        over_share: now[14],
                        over_bound: now[8],
                    }),
                });
            }
            let drops =
                |shed, marked| BTreeMap::from([("shed".to_owned(), shed), ("handle".to_owned(), marked)]);
            row.taps = control.taps.status(interface.ifindex);
            row.drops = drops(shed, marked);
            row.drops_total = drops(shed_total, marked_total);
            if let Some((moved, total)) = self.arrived.look(interface.ifindex) {
                row.offered = Some(moved.offered);
                row.drops.extend(moved.drops);
                row.drops_total.extend(total);
            }
            status.interfaces.push(row);
        }
        // Levels are read in turns and in polls that shed; what stands there afterwards is of the last overload.
        let read = status
            .interfaces
            .iter()
            .flat_map(|i| &i.sources)
            .any(|source| matches!(source.mode.as_str(), "poll" | "shed"));
        for (slot, consumer) in control.consumers.iter() {
            let (stat, ctl) = (&views.consumer_stats[slot], &views.consumer_ctls[slot]);
            let lost = stat.overflows.load(Relaxed).wrapping_add(stat.foreign.load(Relaxed));
            let now = [lost, stat.shed.load(Relaxed)];
            let before = self.last.overflows.insert(slot, now).unwrap_or_default();
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
        for (index, worker) in control.workers.iter().enumerate() {
            let counts = worker.gauge.counts.lock().map(|c| *c).unwrap_or_default();
            let softirq = views.cpu_stats.get(worker.cpu).map_or(0, |c| c.net_rx_ns.load(Relaxed));
            let now = [worker.gauge.busy_ns.load(Relaxed), softirq];
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
        status.settings_changed = control.interfaces.iter().map(Interface::changed).sum();
        status
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
