//! Losses at full consumers: who did not read, and why.

use super::{Case, Cause, Rule, name, percent};
use crate::model::{Consumer, Kind, Policy, Process, Snapshot};
use kern::shell::quoted;

mod starved;
use starved::{cpu_quota, ready, starved_by_priority, starved_by_softirq};

pub(super) static RULES: [Rule; 15] = [
    Rule {
        name: "syn-flood",
        of: &["tcp"],
        source: "WU-30; tcp_syn_flood_action, tcp_conn_request, net/ipv4/tcp_input.c",
        test: syn_flood,
    },
    Rule { name: "stopped", of: READERS, source: "WU-14; TASK_STOPPED, proc_pid_stat(5)", test: stopped },
    Rule {
        name: "memory",
        of: &["udp", "gone socket"],
        source: "WU-16; udp_mem, __sk_mem_raise_allocated, net/core/sock.c",
        test: memory,
    },
    Rule {
        name: "tcp-memory",
        of: &["tcp memory"],
        source: "WU-16; tcp_mem, tcp_prune_queue, net/ipv4/tcp_input.c",
        test: tcp_memory,
    },
    Rule {
        name: "cpu-quota",
        of: READERS,
        source: "WU-17; throttle_cfs_rq, kernel/sched/fair.c; cpu.max, cgroups(7)",
        test: cpu_quota,
    },
    Rule {
        name: "starved-by-softirq",
        of: READERS,
        source: "WU-17, MR-06; handle_softirqs, kernel/softirq.c",
        test: starved_by_softirq,
    },
    Rule {
        name: "starved-by-priority",
        of: READERS,
        source: "WU-18 (EEVDF since 6.6); sched_prio_to_weight, kernel/sched/core.c",
        test: starved_by_priority,
    },
    Rule {
        name: "accept-uneven",
        of: &["tcp"],
        source: "BH-17, BH-20; reuseport_select_sock, net/core/sock_reuseport.c",
        test: accept_uneven,
    },
    Rule { name: "program-full", of: READERS, source: "WU-13, R_s > R_d; WU-14", test: program_full },
    Rule {
        name: "reader-unknown",
        of: READERS,
        source: "WU-14; proc(5), /proc/PID/fd: of other users for root only",
        test: reader_unknown,
    },
    Rule {
        name: "accept-idle",
        of: &["tcp"],
        source: "WU-14 for accept queues; tcp_conn_request, net/ipv4/tcp_input.c",
        test: accept_idle,
    },
    Rule {
        name: "accept-small",
        of: &["tcp"],
        source: "WU-15 for accept queues; inet_csk_listen_start, net/ipv4/inet_connection_sock.c",
        test: accept_small,
    },
    Rule { name: "asleep", of: READERS, source: "WU-14; WU-13, R_d near 0", test: asleep },
    Rule {
        name: "filter-small",
        of: &["filter"],
        source: "WU-15; nfqnl_enqueue_packet, net/netfilter/nfnetlink_queue.c",
        test: filter_small,
    },
    Rule {
        name: "buffer-small",
        of: &["udp", "capture", "xdp", "gone socket"],
        source: "WU-15; __udp_enqueue_schedule_skb, net/ipv4/udp.c",
        test: buffer_small,
    },
];

const READERS: &[&str] = &["udp", "tcp", "filter", "capture", "xdp"];

/// Share of time that a program waits for a CPU, ready to run, from which that is the cause.
const WAITS: f64 = 0.2;
/// Share of one CPU from which a program cannot read faster.
const FULL: f64 = 0.8;
/// Share below which it does next to nothing.
const IDLE: f64 = 0.1;
/// Share of what comes for a queue from which its loss is more than that of bursts.
const MUCH: f64 = 0.1;
/// Level below which a queue would have had room for the connections of another one.
const ROOM: f64 = 0.5;
/// Level from which a queue stands full.
const STANDS: f64 = 0.8;

fn row(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

fn lost(case: &Case<'_>) -> (String, String) {
    row("lost", format!("{} at {}", case.per_second(case.loss.packets), case.consumer_name()))
}

fn level(case: &Case<'_>) -> (String, String) {
    let text = case.loss.consumer.map_or(String::new(), |c| {
        let unit = match c.kind {
            Kind::Accept => "connections",
            Kind::Filter => "packets",
            _ => "bytes",
        };
        format!("{} of {} {unit} at the end", c.waiting, c.limit)
    });
    row("queue", text)
}

fn runs(p: &Process) -> (String, String) {
    let one = p.one();
    let of = match p.threads {
        0 | 1 => String::new(),
        n => format!(" in the busiest of its {n} threads"),
    };
    let rank = match p.policy {
        Policy::Other | Policy::Batch => format!("nice {}", p.nice),
        class => class.name().to_owned(),
    };
    row(
        &p.name,
        format!(
            "ran {} of the time{of}, ready but waiting for CPU {} {}, state {}, {rank}",
            percent(one.runs),
            p.cpu,
            percent(one.waits),
            p.state
        ),
    )
}

fn cause(
    key: u32,
    title: String,
    evidence: Vec<(String, String)>,
    change: Vec<String>,
    effect: &str,
) -> Option<Cause> {
    Some(Cause { key: key.to_string(), title, evidence, change, effect: effect.into() })
}

fn stopped(case: &Case<'_>) -> Option<Cause> {
    let p = case.process().filter(|p| p.state.starts_with(['T', 't']))?;
    cause(
        p.pid,
        format!("{} {} is stopped: it reads nothing", p.name, p.pid),
        vec![lost(case), runs(p), level(case)],
        vec![format!("sudo kill -CONT {}", p.pid)],
        "it reads again; what waits in its queue is not lost",
    )
}

fn memory(case: &Case<'_>) -> Option<Cause> {
    let errors = case.s.ledger.drops.get("socket memory").copied().unwrap_or(0);
    if errors * 2 < case.loss.packets {
        return None;
    }
    let limits = case.s.limits.get("net.ipv4.udp_mem").cloned().unwrap_or_default();
    let used = case.s.gauges.get("sockstat.UDP.mem").copied().unwrap_or(0);
    let (pressure, most) = (limits.get(1).copied().unwrap_or(0), limits.get(2).copied().unwrap_or(0));
    Some(Cause {
        key: String::new(),
        title: "All UDP sockets together may not have more memory (udp_mem)".into(),
        evidence: vec![
            lost(case),
            row("Udp.MemErrors", case.per_second(errors)),
            row("memory", format!("{used} pages used, udp_mem allows {pressure} to {most}")),
        ],
        change: vec![more_memory("udp_mem", &limits, case.memory_kb())],
        effect: "datagrams are lost at full sockets only, not for want of memory; make sure that the machine has the memory \
                 (a page is 4 kB)"
            .into(),
    })
}

/// One part in so many of the memory is for all sockets of a protocol together at most.
const PROTOCOL_PART: u64 = 2;
/// A page is 4 kB on most machines; where it is larger less is proposed than there could be.
const PAGE_KB: u64 = 4;

/// Twice as many pages for `net.ipv4.NAME`, as far as the machine has them.
fn more_memory(name: &str, limits: &[u64], memory_kb: Option<u64>) -> String {
    let most = memory_kb.map_or(u64::MAX, |kb| kb / PAGE_KB / PROTOCOL_PART);
    let doubled: Vec<u64> = limits.iter().map(|pages| pages.saturating_mul(2).min(most)).collect();
    match doubled[..] {
        [low, pressure, high] if high > limits.last().copied().unwrap_or(0) => {
            format!("sudo sysctl -w net.ipv4.{name}=\"{low} {pressure} {high}\"")
        }
        _ => format!(
            "# fewer or smaller receive buffers (SO_RCVBUF), or more memory: {name} is much of what there is"
        ),
    }
}

/// Segments that TCP received and threw away for want of memory. `RcvPruned` is the same segments once more: it counts
/// where the buffer could not be made smaller, the others where the segment is then dropped (`tcp_prune_queue`,
/// `tcp_data_queue`, net/ipv4/tcp_input.c; older kernels have `RcvPruned` alone).
pub(super) fn thrown_away(s: &Snapshot) -> u64 {
    let at = |name: &str| s.stack.get(name).copied().unwrap_or(0);
    let dropped = at("TcpExt.TCPRcvQDrop").saturating_add(at("TcpExt.TCPOFODrop"));
    dropped.max(at("TcpExt.RcvPruned")).saturating_add(at("TcpExt.OfoPruned"))
}

fn tcp_memory(case: &Case<'_>) -> Option<Cause> {
    let limits = case.s.limits.get("net.ipv4.tcp_mem").cloned().unwrap_or_default();
    let used = case.s.gauges.get("sockstat.TCP.mem").copied().unwrap_or(0);
    let at = |i: usize| limits.get(i).copied().unwrap_or(0);
    Some(Cause {
        key: String::new(),
        title: "TCP throws received segments away for want of buffer memory".into(),
        evidence: vec![
            row("thrown away", case.per_second(case.loss.packets)),
            row("memory", format!("{used} pages used, tcp_mem: pressure at {}, most {}", at(1), at(2))),
        ],
        change: vec![more_memory("tcp_mem", &limits, case.memory_kb())],
        effect: "segments are kept; make sure that the machine has the memory (a page is 4 kB)".into(),
    })
}

fn program_full(case: &Case<'_>) -> Option<Cause> {
    let p = case.process().filter(|p| p.one().runs >= FULL)?;
    cause(
        p.pid,
        format!("{} {} is the limit: it reads as fast as it can", p.name, p.pid),
        vec![lost(case), runs(p), level(case)],
        vec![
            "# less work per packet, or more threads with a socket each (SO_REUSEPORT)".into(),
            "# what it cannot read costs nothing with a guard:".into(),
            case.guard(&case.busiest_interface()),
        ],
        "no buffer helps: it would fill a little later",
    )
}

/// A queue that stands full, or that loses much, says nothing about its buffer as long as nobody knows whether its program
/// reads.
fn reader_unknown(case: &Case<'_>) -> Option<Cause> {
    let c = case.loss.consumer.filter(|c| c.pid == 0)?;
    let came = c.r#in.unwrap_or(case.s.ledger.offered);
    let much = case.loss.packets as f64 >= MUCH * came as f64;
    if case.s.hidden == 0 || !(much || c.level.is_some_and(|l| l >= STANDS)) {
        return None;
    }
    Some(Cause {
        key: c.id.to_string(),
        title: format!("{} is full, and only root sees which program reads it", name(c)),
        evidence: vec![lost(case), level(case)],
        change: vec![format!("sudo weir explain {}", quoted(&case.busiest_interface()))],
        effect: "it names the program, and says whether that sleeps, waits for a CPU, is too slow, or has too small a \
                 buffer"
            .into(),
    })
}

/// A listener per worker (SO_REUSEPORT): the kernel's hash gives connections to a full queue while others have room.
fn accept_uneven(case: &Case<'_>) -> Option<Cause> {
    let c = accept_queue(case).filter(|c| !c.local.is_empty())?;
    // What it would recommend runs already.
    if case.s.accepts.iter().flat_map(|accept| &accept.groups).any(|group| group.address == c.local) {
        return None;
    }
    let others: Vec<_> = case
        .s
        .consumers
        .iter()
        .filter(|o| o.kind == Kind::Accept && o.local == c.local && o.id != c.id)
        .collect();
    let roomy = others.iter().filter(|o| o.level.is_some_and(|l| l < ROOM));
    let best = roomy.clone().min_by_key(|o| o.waiting)?;
    let port = c.local.rsplit(':').next().unwrap_or_default();
    Some(Cause {
        key: c.local.clone(),
        title: format!(
            "{} cannot take its connections while {} of the {} other listeners of {} can",
            name(c),
            roomy.count(),
            others.len(),
            c.local
        ),
        evidence: vec![
            lost(case),
            level(case),
            row(&name(best), format!("{} of {} connections at the end", best.waiting, best.limit)),
        ],
        change: vec![format!("sudo weir accept {port}")],
        effect: "connections pass by a worker that stands or is late, to one that waits".into(),
    })
}

/// SYNs that found no room in the queue of half-open connections, which are counted as drops of the listener too: no
/// program can accept these.
fn syn_flood(case: &Case<'_>) -> Option<Cause> {
    accept_queue(case)?;
    let at = |name: &str| case.s.stack.get(name).copied().unwrap_or(0);
    let (overflows, refused) = (at("TcpExt.ListenOverflows"), at("TcpExt.TCPReqQFullDrop"));
    let cookies = case.limit("net.ipv4.tcp_syncookies", 0);
    // With cookies a full queue refuses nothing.
    if overflows * 2 >= case.loss.packets || (refused == 0 && cookies != Some(0)) {
        return None;
    }
    let most = case.limit("net.ipv4.tcp_max_syn_backlog", 0).unwrap_or(0);
    let mut change = Vec::new();
    if cookies == Some(0) {
        change.push("sudo sysctl -w net.ipv4.tcp_syncookies=1".into());
    }
    change.push(format!("# if so many clients are real: a longer queue, tcp_max_syn_backlog above {most}"));
    Some(Cause {
        key: String::new(),
        title: format!(
            "SYNs that are never answered fill the SYN queue of {}: a SYN flood",
            case.consumer_name()
        ),
        evidence: vec![
            lost(case),
            level(case),
            row("SYN queue full", case.per_second(case.loss.packets.saturating_sub(overflows))),
            row("accept queue full", case.per_second(overflows)),
            row("limits", format!("tcp_syncookies {}, tcp_max_syn_backlog {most}", cookies.unwrap_or(0))),
        ],
        change,
        effect:
            "with cookies a SYN needs no place in the queue: clients that answer are served during the flood"
                .into(),
    })
}

/// The consumer, if it is an accept queue.
fn accept_queue<'a>(case: &'a Case<'_>) -> Option<&'a Consumer> {
    case.loss.consumer.filter(|c| c.kind == Kind::Accept)
}

fn accept_idle(case: &Case<'_>) -> Option<Cause> {
    // One that is empty in the end was full for a burst.
    accept_queue(case).filter(|c| c.level.is_some_and(|l| l >= STANDS))?;
    let p = case.process().filter(|p| p.runs < IDLE)?;
    cause(
        p.pid,
        format!("{} {} does not accept its connections, although it has time", p.name, p.pid),
        vec![lost(case), runs(p), level(case)],
        vec![
            format!(
                "# what does it wait for? sudo cat /proc/{}/stack; a lock, a disk, another server",
                p.pid
            ),
            "# a longer accept queue only lets clients wait longer".into(),
        ],
        "it accepts, and clients no longer wait for a second SYN (1 s)",
    )
}

fn accept_small(case: &Case<'_>) -> Option<Cause> {
    let c = accept_queue(case)?;
    let most = case.limit("net.core.somaxconn", 0).unwrap_or(0);
    let mut change = Vec::new();
    if c.limit >= most {
        change.push(format!("sudo sysctl -w net.core.somaxconn={}", most.saturating_mul(4).max(4096)));
    }
    let and = if change.is_empty() { "" } else { "and " };
    change.push(format!("# {and}listen() of {} with a longer backlog than {}", name(c), c.limit));
    Some(Cause {
        key: c.id.to_string(),
        title: format!("The accept queue of {} is too short for bursts of connections", name(c)),
        evidence: vec![lost(case), level(case), row("somaxconn", most.to_string())],
        change,
        effect: "bursts wait in the queue; their SYNs are not lost".into(),
    })
}

fn asleep(case: &Case<'_>) -> Option<Cause> {
    let c = case.loss.consumer?;
    let p = case.process().filter(|p| p.runs < IDLE && p.waits < IDLE && !ready(p))?;
    let reads = c.out.is_some_and(|out| out > c.lost.unwrap_or(0));
    if reads || c.level.is_none_or(|l| l < STANDS) {
        return None;
    }
    cause(
        p.pid,
        format!("{} {} sleeps while its queue is full", p.name, p.pid),
        vec![lost(case), runs(p), level(case)],
        vec![format!(
            "# what does it wait for? sudo cat /proc/{}/stack; a lock, a disk, another server",
            p.pid
        )],
        "no buffer helps: a program that does not read fills any",
    )
}

fn filter_small(case: &Case<'_>) -> Option<Cause> {
    let c = case.loss.consumer?;
    cause(
        c.pid,
        format!("The queue of {} is too short for bursts", name(c)),
        vec![lost(case), level(case)],
        vec![format!("# give {} a longer queue (nfq_set_queue_maxlen) and a larger socket buffer", name(c))],
        "bursts wait for their verdict instead of being dropped",
    )
}

/// Most that `SO_RCVBUF` can be: it is an `int`, and the kernel doubles it.
const BUFFER_MAX: u64 = 1 << 30;

fn buffer_small(case: &Case<'_>) -> Option<Cause> {
    let c = case.loss.consumer?;
    let most = case.limit("net.core.rmem_max", 0).unwrap_or(0);
    // What a program sets is doubled by the kernel (sock_setsockopt).
    let want = c.limit.saturating_mul(4).min(BUFFER_MAX).next_power_of_two();
    let mut change = Vec::new();
    if want / 2 > most {
        change.push(format!("sudo sysctl -w net.core.rmem_max={}", want / 2));
    }
    if Some(c.limit) == case.limit("net.core.rmem_default", 0) {
        let program = if c.pid == 0 { format!("the program of {}", c.socket) } else { name(c) };
        change.push(format!("sudo sysctl -w net.core.rmem_default={want}     # then restart {program}"));
    } else {
        change.push(format!("# {} sets SO_RCVBUF: to {} or more", name(c), want / 2));
    }
    let mut evidence = vec![lost(case), level(case)];
    evidence.extend(case.process().map(runs));
    Some(Cause {
        key: c.id.to_string(),
        title: format!("The receive buffer of {} is too small for its bursts", name(c)),
        evidence,
        change,
        effect: "four times the buffer holds bursts four times as long; the program has time to read them"
            .into(),
    })
}
