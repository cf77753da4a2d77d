//! The table of metrics.

use super::{Family, Kind, SUM, Seen, Take};
use see::accept::Worker;
use see::guard::{Poller, Source};
use see::model::{BOUNDS_US, Consumer, Cpu, Interface, Place};
use std::collections::BTreeMap;

/// Interfaces that are told.
const INTERFACES: usize = 64;
/// Receive queues that are told.
const QUEUES: usize = 256;
/// CPUs that are told.
const CPUS: usize = 512;
/// Consumers of one interval that are told, the worst ones.
pub const CONSUMERS: usize = 32;
/// Series of consumers: those that were among the worst lately stay.
const CONSUMER_SERIES: usize = 64;
/// Listeners of servers under `weir accept`.
const LISTENERS: usize = 64;
/// Their workers.
const WORKERS: usize = 512;
/// Processes that are told, those that receive.
const PROCESSES: usize = 32;
/// Reasons of the kernel for drops; it has some 130.
const REASONS: usize = 256;
/// Waiting times of [`see::model::Delay`], each with its buckets and their sum.
const WAITS: usize = 7 * (BOUNDS_US.len() + 2);
/// Reasons, places, rules and ends are words of weir: a handful.
const WORDS: usize = 64;

/// Words of the ledger for losses: each has a series from the start, so that its first packet is a rise.
const LOSSES: [&str; 19] = [
    "address",
    "backlog",
    "broken",
    "checksum",
    "filter",
    "header",
    "ignored",
    "memory",
    "no port",
    "protocol",
    "reverse path",
    "ring",
    "route",
    "shed",
    "socket",
    "socket memory",
    "stack",
    "vanished",
    "xdp",
];

fn n(count: u64) -> f64 {
    count as f64
}

fn one(seen: &Seen<'_>, take: &mut Take<'_>, value: fn(&see::Snapshot) -> f64) {
    take(&[], value(seen.snapshot));
}

fn interfaces(seen: &Seen<'_>, take: &mut Take<'_>, value: fn(&Interface) -> Option<f64>) {
    for interface in seen.snapshot.interfaces.iter().take(INTERFACES) {
        if let Some(value) = value(interface) {
            take(&[&interface.name], value);
        }
    }
}

fn cpus(seen: &Seen<'_>, take: &mut Take<'_>, value: fn(&Cpu) -> Option<f64>) {
    for cpu in seen.snapshot.cpus.iter().take(CPUS) {
        if let Some(value) = value(cpu) {
            take(&[&cpu.cpu.to_string()], value);
        }
    }
}

fn kind(c: &Consumer) -> &'static str {
    use see::model::Kind::{Accept, Capture, Filter, Tcp, Udp, Xdp};
    match c.kind {
        Udp => "udp",
        Tcp => "tcp",
        Accept => "accept",
        Filter => "filter",
        Capture => "capture",
        Xdp => "xdp",
    }
}

/// The worst consumers. Sockets of one port and program (`SO_REUSEPORT`, connections) are one series: numbers of a counter are
/// added, of a gauge the largest counts.
fn consumers(seen: &Seen<'_>, take: &mut Take<'_>, value: fn(&Consumer) -> Option<f64>) {
    let mut told: Vec<[&str; 3]> = Vec::new();
    for consumer in &seen.snapshot.consumers {
        let labels = [kind(consumer), &consumer.socket, &consumer.process];
        if !told.contains(&labels) {
            if told.len() == CONSUMERS {
                continue;
            }
            told.push(labels);
        }
        if let Some(value) = value(consumer) {
            take(&labels, value);
        }
    }
}

fn stages(seen: &Seen<'_>, take: &mut Take<'_>, value: fn(&see::model::Stage) -> Option<f64>) {
    for stage in &seen.snapshot.path {
        if let Some(value) = value(stage) {
            take(&[stage.place.name()], value);
        }
    }
}

fn processes(seen: &Seen<'_>, take: &mut Take<'_>, value: fn(&see::model::Process) -> f64) {
    let interval = seen.snapshot.interval_s;
    for process in seen.snapshot.processes.iter().filter(|p| p.receives).take(PROCESSES) {
        take(&[&process.name], value(process) * interval);
    }
}

fn sources(seen: &Seen<'_>, take: &mut Take<'_>, value: fn(&Source) -> Option<u64>) {
    for source in seen.snapshot.guards.iter().flat_map(|guard| &guard.sources).take(QUEUES) {
        if let Some(value) = value(source) {
            take(&[&source.name], n(value));
        }
    }
}

fn pollers(seen: &Seen<'_>, take: &mut Take<'_>, value: fn(&Poller) -> Option<f64>) {
    for poller in seen.snapshot.guards.iter().flat_map(|guard| &guard.cpus).take(CPUS) {
        if let Some(value) = value(poller) {
            take(&[&poller.cpu.to_string()], value);
        }
    }
}

fn workers(seen: &Seen<'_>, take: &mut Take<'_>, value: fn(&Worker) -> Option<f64>) {
    let groups = seen.snapshot.accepts.iter().flat_map(|accept| &accept.groups);
    let all = groups.flat_map(|group| group.workers.iter().map(move |worker| (group, worker)));
    for (group, worker) in all.take(WORKERS) {
        if let (Some(tid), Some(value)) = (worker.tid, value(worker)) {
            take(&[&group.address, &tid.to_string()], value);
        }
    }
}

fn each(map: &BTreeMap<String, u64>, take: &mut Take<'_>) {
    for (word, packets) in map {
        take(&[word], n(*packets));
    }
}

/// All metrics but those about weir itself.
pub static FAMILIES: [Family; 61] = [
    Family {
        name: "interval",
        unit: "seconds",
        kind: Kind::Gauge,
        labels: &[],
        limit: 1,
        help: "Length of the last interval",
        of: |seen, take| one(seen, take, |s| s.interval_s),
    },
    Family {
        name: "interval_end_timestamp",
        unit: "seconds",
        kind: Kind::Gauge,
        labels: &[],
        limit: 1,
        help: "When the last interval ended, seconds since 1970",
        of: |seen, take| one(seen, take, |s| s.time_s),
    },
    Family {
        name: "skipped",
        unit: "",
        kind: Kind::Counter,
        labels: &["what"],
        limit: WORDS,
        help: "What vanished while it was read, was too slow or could not be parsed",
        of: |seen, take| each(&seen.snapshot.skipped, take),
    },
    Family {
        name: "ledger_offered",
        unit: "packets",
        kind: Kind::Counter,
        labels: &[],
        limit: 1,
        help: "Packets that arrived at the devices of this network namespace",
        of: |seen, take| one(seen, take, |s| n(s.ledger.offered)),
    },
    Family {
        name: "ledger_delivered",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["end"],
        limit: WORDS,
        help: "Packets that reached their end",
        of: |seen, take| each(&seen.snapshot.ledger.delivered, take),
    },
    Family {
        name: "ledger_lost",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["place"],
        limit: WORDS,
        help: "Packets lost, by the ledger's word for the place",
        of: |seen, take| {
            LOSSES.iter().for_each(|place| take(&[place], 0.0));
            each(&seen.snapshot.ledger.drops, take);
        },
    },
    Family {
        name: "ledger_sent",
        unit: "packets",
        kind: Kind::Counter,
        labels: &[],
        limit: 1,
        help: "Packets that all devices sent",
        of: |seen, take| one(seen, take, |s| n(s.ledger.sent)),
    },
    Family {
        name: "ledger_in_flight",
        unit: "packets",
        kind: Kind::Gauge,
        labels: &[],
        limit: 1,
        help: "Packets more in queues than at the start of the last interval; negative: fewer",
        of: |seen, take| one(seen, take, |s| s.ledger.in_flight as f64),
    },
    Family {
        name: "ledger_unaccounted",
        unit: "packets",
        kind: Kind::Gauge,
        labels: &[],
        limit: 1,
        help: "Packets of the last interval that the ledger cannot place; negative: counted twice",
        of: |seen, take| one(seen, take, |s| s.ledger.unaccounted as f64),
    },
    Family {
        name: "ledger_skew",
        unit: "packets",
        kind: Kind::Gauge,
        labels: &[],
        limit: 1,
        help: "Bound of what may be unaccounted because counters are not read at one moment",
        of: |seen, take| one(seen, take, |s| n(s.ledger.skew)),
    },
    Family {
        name: "stage_in",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["stage"],
        limit: Place::ALL.len(),
        help: "Packets that came to a stage of the path",
        of: |seen, take| stages(seen, take, |stage| stage.r#in.map(n)),
    },
    Family {
        name: "stage_out",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["stage"],
        limit: Place::ALL.len(),
        help: "Packets that left a stage for the next one",
        of: |seen, take| stages(seen, take, |stage| stage.out.map(n)),
    },
    Family {
        name: "stage_lost",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["stage", "reason"],
        limit: WORDS,
        help: "Packets lost in a stage",
        of: |seen, take| {
            for stage in &seen.snapshot.path {
                stage.drops.iter().for_each(|(reason, lost)| take(&[stage.place.name(), reason], n(*lost)));
            }
        },
    },
    Family {
        name: "stage_level",
        unit: "ratio",
        kind: Kind::Gauge,
        labels: &["stage"],
        limit: Place::ALL.len(),
        help: "How full the fullest queue of a stage is, 0 to 1",
        of: |seen, take| stages(seen, take, |stage| stage.level),
    },
    Family {
        name: "stage_wait_median",
        unit: "seconds",
        kind: Kind::Gauge,
        labels: &["stage"],
        limit: Place::ALL.len(),
        help: "Median of the time that packets waited in a stage, where it is known",
        of: |seen, take| stages(seen, take, |stage| stage.wait.map(|w| w.p50_us / 1e6)),
    },
    Family {
        name: "stage_wait_p99",
        unit: "seconds",
        kind: Kind::Gauge,
        labels: &["stage"],
        limit: Place::ALL.len(),
        help: "99th percentile of the time that packets waited in a stage, where it is known",
        of: |seen, take| stages(seen, take, |stage| stage.wait.map(|w| w.p99_us / 1e6)),
    },
    Family {
        name: "wait",
        unit: "seconds",
        kind: Kind::Histogram,
        labels: &["of"],
        limit: WAITS,
        help: "With --probes: waiting times of softirq (raised until it runs), of sampled packets in a backlog, of datagrams \
               in stack and socket and in both (whole), of tcp (handed to the stack until read), and of wakeup (a datagram's \
               reader woken until it runs); each counts for the packets it stands for",
        of: |seen, take| {
            for wait in seen.snapshot.probes.iter().flat_map(|p| &p.waits) {
                take(&[wait.of.name(), SUM], wait.sum_us / 1e6);
                for (at, count) in wait.buckets.iter().enumerate() {
                    take(&[wait.of.name(), &at.to_string()], n(*count));
                }
            }
        },
    },
    Family {
        name: "kernel_dropped",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["reason"],
        limit: REASONS,
        help: "With --probes: packets of this network namespace that the kernel dropped, by its own name for the reason; \
               packets to send too",
        of: |seen, take| seen.snapshot.probes.iter().for_each(|p| each(&p.drops, take)),
    },
    Family {
        name: "kernel_dropped_unplaced",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["reason"],
        limit: REASONS,
        help: "With --probes: packets that the kernel dropped and that do not tell their network namespace, by its name for the reason",
        of: |seen, take| seen.snapshot.probes.iter().for_each(|p| each(&p.unplaced, take)),
    },
    Family {
        name: "probe_unfollowed",
        unit: "packets",
        kind: Kind::Counter,
        labels: &[],
        limit: 1,
        help: "With --probes: samples that were not followed because too many were on the way",
        of: |seen, take| seen.snapshot.probes.iter().for_each(|p| take(&[], n(p.lost))),
    },
    Family {
        name: "probe_missed_runs",
        unit: "",
        kind: Kind::Counter,
        labels: &[],
        limit: 1,
        help: "With --probes: runs of probes that the kernel left out because they interrupted themselves",
        of: |seen, take| seen.snapshot.probes.iter().for_each(|p| take(&[], n(p.missed))),
    },
    Family {
        name: "interface_offered",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["interface"],
        limit: INTERFACES,
        help: "Packets that arrived at an interface",
        of: |seen, take| interfaces(seen, take, |i| Some(n(i.offered))),
    },
    Family {
        name: "interface_received",
        unit: "bytes",
        kind: Kind::Counter,
        labels: &["interface"],
        limit: INTERFACES,
        help: "Bytes that arrived at an interface, without those of lost packets",
        of: |seen, take| interfaces(seen, take, |i| Some(n(i.bytes))),
    },
    Family {
        name: "interface_sent",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["interface"],
        limit: INTERFACES,
        help: "Packets that an interface sent",
        of: |seen, take| interfaces(seen, take, |i| Some(n(i.sent))),
    },
    Family {
        name: "interface_lost",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["interface", "stage", "reason"],
        limit: 4 * INTERFACES,
        help: "Packets lost in a stage that belongs to an interface",
        of: |seen, take| {
            for interface in seen.snapshot.interfaces.iter().take(INTERFACES) {
                for stage in &interface.stages {
                    let name = stage.place.name();
                    stage.drops.iter().for_each(|(why, lost)| take(&[&interface.name, name, why], n(*lost)));
                }
            }
        },
    },
    Family {
        name: "interface_ring",
        unit: "packets",
        kind: Kind::Gauge,
        labels: &["interface"],
        limit: INTERFACES,
        help: "Depth of the receive ring",
        of: |seen, take| interfaces(seen, take, |i| i.ring.map(f64::from)),
    },
    Family {
        name: "queue_received",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["interface", "queue"],
        limit: QUEUES,
        help: "Packets that a receive queue handed up, where the driver tells",
        of: |seen, take| {
            let all = seen.snapshot.interfaces.iter().flat_map(|i| i.queues.iter().map(move |q| (i, q)));
            for (interface, queue) in all.take(QUEUES) {
                if let Some(packets) = queue.packets {
                    take(&[&interface.name, &queue.queue.to_string()], n(packets));
                }
            }
        },
    },
    Family {
        name: "queue_interrupts",
        unit: "",
        kind: Kind::Counter,
        labels: &["interface", "queue"],
        limit: QUEUES,
        help: "Interrupts of a receive queue",
        of: |seen, take| {
            let all = seen.snapshot.interfaces.iter().flat_map(|i| i.queues.iter().map(move |q| (i, q)));
            for (interface, queue) in all.take(QUEUES) {
                if let Some(interrupts) = queue.interrupts {
                    take(&[&interface.name, &queue.queue.to_string()], n(interrupts));
                }
            }
        },
    },
    Family {
        name: "cpu_time",
        unit: "seconds",
        kind: Kind::Counter,
        labels: &["cpu", "mode"],
        limit: 7 * CPUS,
        help: "Time of a CPU: irq, softirq, threads (of the kernel, for packets), weir, programs, idle, steal",
        of: |seen, take| {
            for c in seen.snapshot.cpus.iter().take(CPUS) {
                let cpu = c.cpu.to_string();
                for (mode, share) in [
                    ("irq", c.irq),
                    ("softirq", c.softirq),
                    ("threads", c.threads),
                    ("weir", c.weir),
                    ("programs", c.programs),
                    ("idle", c.idle),
                    ("steal", c.steal),
                ] {
                    take(&[&cpu, mode], share * seen.snapshot.interval_s);
                }
            }
        },
    },
    Family {
        name: "cpu_received",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["cpu"],
        limit: CPUS,
        help: "Packets handed to the stack on a CPU",
        of: |seen, take| cpus(seen, take, |c| Some(n(c.packets))),
    },
    Family {
        name: "cpu_net_rx_softirqs",
        unit: "",
        kind: Kind::Counter,
        labels: &["cpu"],
        limit: CPUS,
        help: "NET_RX softirqs that ran on a CPU",
        of: |seen, take| cpus(seen, take, |c| Some(n(c.net_rx))),
    },
    Family {
        name: "cpu_squeezed",
        unit: "",
        kind: Kind::Counter,
        labels: &["cpu"],
        limit: CPUS,
        help: "Softirq runs that ended with work left (time_squeeze); harmless by itself",
        of: |seen, take| cpus(seen, take, |c| Some(n(c.squeezed))),
    },
    Family {
        name: "cpu_backlog",
        unit: "packets",
        kind: Kind::Gauge,
        labels: &["cpu"],
        limit: CPUS,
        help: "Packets that wait in the backlog of a CPU",
        of: |seen, take| cpus(seen, take, |c| c.backlog.map(f64::from)),
    },
    Family {
        name: "cpu_backlog_lost",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["cpu"],
        limit: CPUS,
        help: "Packets lost because the backlog of a CPU was full; of all network namespaces",
        of: |seen, take| cpus(seen, take, |c| Some(n(c.backlog_drops))),
    },
    Family {
        name: "consumers",
        unit: "",
        kind: Kind::Gauge,
        labels: &[],
        limit: 1,
        help: "Queues that received packets end in: sockets, accept queues, packet filters, captures",
        of: |seen, take| one(seen, take, |s| s.consumers.len() as f64 + n(s.consumers_quiet)),
    },
    Family {
        name: "consumer_level",
        unit: "ratio",
        kind: Kind::Gauge,
        labels: &["kind", "socket", "process"],
        limit: CONSUMERS,
        help: "How full a consumer is, 0 to 1; of those with the same labels the fullest",
        of: |seen, take| consumers(seen, take, |c| c.level),
    },
    Family {
        name: "consumer_lost",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["kind", "socket", "process"],
        limit: CONSUMER_SERIES,
        help: "Packets lost because a consumer was full",
        of: |seen, take| consumers(seen, take, |c| c.lost.map(n)),
    },
    Family {
        name: "consumer_in",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["kind", "socket", "process"],
        limit: CONSUMER_SERIES,
        help: "Packets that came for a consumer, with those it lost; where the kernel or a probe tells",
        of: |seen, take| consumers(seen, take, |c| c.r#in.map(n)),
    },
    Family {
        name: "consumer_out",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["kind", "socket", "process"],
        limit: CONSUMER_SERIES,
        help: "Packets that the program took from a consumer; where the kernel or a probe tells",
        of: |seen, take| consumers(seen, take, |c| c.out.map(n)),
    },
    Family {
        name: "process_run",
        unit: "seconds",
        kind: Kind::Counter,
        labels: &["process"],
        limit: PROCESSES,
        help: "Time that processes of this name that hold a consumer were on a CPU",
        of: |seen, take| processes(seen, take, |p| p.runs),
    },
    Family {
        name: "process_wait",
        unit: "seconds",
        kind: Kind::Counter,
        labels: &["process"],
        limit: PROCESSES,
        help: "Time that they were ready and waited for a CPU",
        of: |seen, take| processes(seen, take, |p| p.waits),
    },
    Family {
        name: "guards",
        unit: "",
        kind: Kind::Gauge,
        labels: &[],
        limit: 1,
        help: "Running guards of the interfaces that are watched; absent where they may not be asked, which needs root",
        of: |seen, take| {
            if !seen.snapshot.guards_hidden {
                one(seen, take, |s| s.guards.len() as f64);
            }
        },
    },
    Family {
        name: "left_changed",
        unit: "",
        kind: Kind::Gauge,
        labels: &[],
        limit: 1,
        help: "Interfaces whose guard died and which nobody has put back since: weir undo does; absent where that may not be known, which needs root",
        of: |seen, take| seen.snapshot.left_changed.iter().for_each(|left| take(&[], n(*left))),
    },
    Family {
        name: "guard_mode",
        unit: "",
        kind: Kind::Gauge,
        labels: &["source", "mode"],
        limit: QUEUES,
        help: "1 for the mode in which a guard has a source: interrupt, poll, thread or shed",
        of: |seen, take| {
            for source in seen.snapshot.guards.iter().flat_map(|guard| &guard.sources).take(QUEUES) {
                take(&[&source.name, &source.mode], 1.0);
            }
        },
    },
    Family {
        name: "guard_received",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["source"],
        limit: QUEUES,
        help: "Packets that a guarded source handed up, in any mode",
        of: |seen, take| sources(seen, take, |source| source.packets),
    },
    Family {
        name: "guard_turns",
        unit: "",
        kind: Kind::Counter,
        labels: &["source"],
        limit: QUEUES,
        help: "Turns in which a guard polled a source",
        of: |seen, take| sources(seen, take, |source| source.turns),
    },
    Family {
        name: "guard_foreign_polls",
        unit: "",
        kind: Kind::Counter,
        labels: &["source"],
        limit: QUEUES,
        help: "Polls that were not the guard's while it polled a source all the interval",
        of: |seen, take| sources(seen, take, |source| source.foreign_polls),
    },
    Family {
        name: "guard_shed",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["source"],
        limit: QUEUES,
        help: "Packets that a guard shed",
        of: |seen, take| sources(seen, take, |source| Some(source.shed)),
    },
    Family {
        name: "guard_nobodys",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["source"],
        limit: QUEUES,
        help: "Of the packets that a guard shed, those that nobody would have taken",
        of: |seen, take| sources(seen, take, |source| Some(source.nobody)),
    },
    Family {
        name: "guard_over_share",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["source"],
        limit: QUEUES,
        help: "Of the packets that a guard shed, those of senders that had had more than their share of a full socket",
        of: |seen, take| sources(seen, take, |source| Some(source.over_share)),
    },
    Family {
        name: "guard_over_bound",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["source"],
        limit: QUEUES,
        help: "Packets that a rule protects, beyond the bound of protected ones: they count as normal, and may be shed",
        of: |seen, take| sources(seen, take, |source| Some(source.over_bound)),
    },
    Family {
        name: "guard_budget_used",
        unit: "ratio",
        kind: Kind::Gauge,
        labels: &["cpu"],
        limit: CPUS,
        help: "Share of the packet budget of a guarded CPU that was used; the budget is 1 minus the reserve",
        of: |seen, take| pollers(seen, take, |poller| poller.budget_used),
    },
    Family {
        name: "guard_sleeps",
        unit: "",
        kind: Kind::Counter,
        labels: &["cpu", "cause"],
        limit: 3 * CPUS,
        help: "Sleeps of a poller: ring (drained), budget (spent), feedback (a pause: all was for full consumers)",
        of: |seen, take| {
            for poller in seen.snapshot.guards.iter().flat_map(|guard| &guard.cpus).take(CPUS) {
                let cpu = poller.cpu.to_string();
                poller.sleeps.iter().for_each(|(cause, sleeps)| take(&[&cpu, cause], n(*sleeps)));
            }
        },
    },
    Family {
        name: "accept_placed",
        unit: "",
        kind: Kind::Counter,
        labels: &["listener", "why"],
        limit: 12 * LISTENERS,
        help: "Connections for which weir accept was asked, by why they went where they did: own (the core's own worker), stalled, \
               away, late, busy, share, no_own; by the kernel's hash: lease_over, members_other, refused; \
               migrated: moved from a listener that was closed; unmoved: left to be reset there, since no queue was good",
        of: |seen, take| {
            for group in seen.snapshot.accepts.iter().flat_map(|accept| &accept.groups).take(LISTENERS) {
                group.chosen.iter().for_each(|(why, n)| take(&[&group.address, why], self::n(*n)));
            }
        },
    },
    Family {
        name: "accept_worker_placed",
        unit: "",
        kind: Kind::Counter,
        labels: &["listener", "worker"],
        limit: WORKERS,
        help: "Connections that weir accept put into the queue of a worker, a thread",
        of: |seen, take| workers(seen, take, |w| w.placed.map(n)),
    },
    Family {
        name: "accept_worker_affine",
        unit: "",
        kind: Kind::Counter,
        labels: &["listener", "worker"],
        limit: WORKERS,
        help: "Of these, those that the worker's own core had received",
        of: |seen, take| workers(seen, take, |w| w.affine.map(n)),
    },
    Family {
        name: "accept_worker_waiting",
        unit: "",
        kind: Kind::Gauge,
        labels: &["listener", "worker"],
        limit: WORKERS,
        help: "Connections in the queue of a worker under weir accept",
        of: |seen, take| workers(seen, take, |w| Some(w.waiting.into())),
    },
    Family {
        name: "accept_worker_oldest",
        unit: "seconds",
        kind: Kind::Gauge,
        labels: &["listener", "worker"],
        limit: WORKERS,
        help: "How long ago the oldest of them came; 0 if there is none",
        of: |seen, take| workers(seen, take, |w| Some(w.oldest_ms.unwrap_or(0.0) / 1e3)),
    },
    Family {
        name: "accept_worker_stalled",
        unit: "",
        kind: Kind::Gauge,
        labels: &["listener", "worker"],
        limit: WORKERS,
        help: "1 while a worker has taken no connection for 5 ms and somebody waits",
        of: |seen, take| workers(seen, take, |w| Some(w.stalled.into())),
    },
    Family {
        name: "finding_lost",
        unit: "packets",
        kind: Kind::Counter,
        labels: &["rule"],
        limit: WORDS,
        help: "Packets lost for a cause that explain names, by its rule; see explain.md",
        of: |seen, take| {
            seen.report.findings.iter().for_each(|f| take(&[&f.rule], n(f.lost)));
        },
    },
    Family {
        name: "unmeasured",
        unit: "",
        kind: Kind::Gauge,
        labels: &[],
        limit: 1,
        help: "Things that are not measured, because a right or a kernel feature is missing; watch --once names them",
        of: |seen, take| one(seen, take, |s| s.missing.len() as f64),
    },
];
