//! Losses before IP: ring, refill, XDP, backlog.

use super::{Case, Cause, Rule, packet_work, percent, place};
use crate::model::{Cpu, Queue};
use kern::shell::quoted;

pub(super) static RULES: [Rule; 10] = [
    Rule {
        name: "bus",
        of: &["ring"],
        source: "ES-22; rx_discards_phy, drivers/net/ethernet/mellanox/mlx5/core/en_stats.c",
        test: bus,
    },
    Rule {
        name: "cpu-full",
        of: &["ring"],
        source: "BH-07, MR-06; napi_poll, net/core/dev.c",
        test: cpu_full,
    },
    Rule {
        name: "ring-small",
        of: &["ring"],
        source: "WU-05, D > delay x rate; rx_missed_errors",
        test: ring_small,
    },
    Rule { name: "broken", of: &["broken"], source: "WU-30; rx_crc_errors", test: broken },
    Rule {
        name: "oversize",
        of: &[crate::ledger::OVERSIZE],
        source: "WU-30; is_skb_forwardable, net/core/dev.c",
        test: oversize,
    },
    Rule { name: "refill", of: &["memory"], source: "WU-04; page_pool, net/core/page_pool.c", test: refill },
    Rule { name: "xdp", of: &["xdp"], source: "MR-18; XDP_DROP", test: xdp },
    Rule {
        name: "one-cpu",
        of: &["backlog"],
        source: "BH-07, BH-08; enqueue_to_backlog, net/core/dev.c",
        test: one_cpu,
    },
    Rule {
        name: "backlog-small",
        of: &["backlog"],
        source: "WU-05 for the backlog; netdev_max_backlog, net/core/dev.c",
        test: backlog_small,
    },
    Rule {
        name: "backlog-full",
        of: &["backlog"],
        source: "MR-06; enqueue_to_backlog, net/core/dev.c",
        test: backlog_full,
    },
];

/// Share of its time from which a CPU has no room for more packets.
const FULL: f64 = 0.85;
/// Share from which a CPU has room for others' work.
const ROOM: f64 = 0.5;

fn row(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

/// The CPU that works most on packets.
fn hottest<'a>(case: &'a Case<'_>) -> Option<&'a Cpu> {
    case.s.cpus.iter().max_by(|a, b| packet_work(a).total_cmp(&packet_work(b)))
}

fn cpu_row(cpu: &Cpu) -> (String, String) {
    let text = format!(
        "softirq {}, irq {}, kernel threads {}, programs {}, idle {}",
        percent(cpu.softirq),
        percent(cpu.irq),
        percent(cpu.threads),
        percent(cpu.programs),
        percent(cpu.idle)
    );
    row(&format!("CPU {}", cpu.cpu), text)
}

/// CPUs that have room for packets.
fn idle_cpus(case: &Case<'_>) -> Vec<u32> {
    case.s.cpus.iter().filter(|c| c.idle > ROOM).map(|c| c.cpu).collect()
}

fn mask(cpus: &[u32]) -> String {
    let set: kern::cpus::CpuSet = cpus.iter().map(|c| *c as usize).collect();
    set.to_mask()
}

fn bus(case: &Case<'_>) -> Option<Cause> {
    let interface = case.loss.interface?;
    let phy = *interface.counters.get("driver.rx_discards_phy")?;
    let idle = hottest(case).is_some_and(|c| packet_work(c) < ROOM);
    (phy * 2 > case.loss.packets && idle).then(|| Cause {
        key: interface.name.clone(),
        title: format!("The bottleneck of {} is not the CPU: the port's buffers overflow", interface.name),
        evidence: vec![row("port", case.per_second(phy)), row("CPUs", "no CPU is near its limit")],
        change: vec![format!(
            "# check the PCIe width and speed of {} (lspci -vv), and pause frames",
            interface.name
        )],
        effect: "with a bus as fast as the wire, nothing is lost at the port".into(),
    })
}

fn cpu_full(case: &Case<'_>) -> Option<Cause> {
    let cpu = hottest(case).filter(|c| packet_work(c) > FULL)?;
    let interface = case.interface_name();
    let mut change = vec![case.guard(&interface)];
    let mut evidence =
        vec![row("lost in the ring", case.per_second(case.loss.packets)), cpu_row(cpu), queues(case)];
    if !idle_cpus(case).is_empty() {
        evidence.extend(place::rows(case));
        change.extend(place::plan(&interface));
    }
    Some(Cause {
        key: format!("{}", cpu.cpu),
        title: format!("CPU {} has no time left to empty the ring of {interface}", cpu.cpu),
        evidence,
        change,
        effect:
            "programs keep their share of the CPU; what cannot be handled is lost in the ring, at no cost"
                .into(),
    })
}

/// How evenly packets are spread over queues: max over mean (BH-08).
fn queues(case: &Case<'_>) -> (String, String) {
    let queues: &[Queue] = case.loss.interface.map_or(&[], |i| &i.queues);
    let counts: Vec<u64> = queues.iter().filter_map(|q| q.packets).collect();
    let sum: u64 = counts.iter().sum();
    let text = match counts.iter().max() {
        Some(max) if counts.len() > 1 && sum > 0 => {
            let ratio = *max as f64 * counts.len() as f64 / sum as f64;
            format!("{} queues, the fullest has {ratio:.1} times the mean", counts.len())
        }
        _ => format!("{} receive queue{}", queues.len(), if queues.len() == 1 { "" } else { "s" }),
    };
    row("queues", text)
}

fn ring_small(case: &Case<'_>) -> Option<Cause> {
    let interface = case.loss.interface?;
    let (ring, max) = (interface.ring.unwrap_or(0), interface.ring_max.unwrap_or(0));
    let name = &interface.name;
    let offered = interface.offered as f64 / case.s.interval_s.max(1e-9);
    let holds = if ring > 0 && offered > 0.0 {
        format!(
            "{ring} packets, {:.2} ms at the mean rate of {:.1} k/s",
            f64::from(ring) / offered * 1e3,
            offered / 1e3
        )
    } else {
        "depth not known".into()
    };
    let change = if ring > 0 && ring <= max / 2 {
        vec![format!("sudo ethtool -G {} rx {}", quoted(name), ring.saturating_mul(4).min(max))]
    } else if ring == 0 || max == 0 {
        vec![
            format!("# how deep the ring of {name} is, and how deep it may be: ethtool -g {}", quoted(name)),
            case.guard(name),
        ]
    } else {
        vec![
            format!(
                "# the ring of {name} is as deep as its driver allows: receive earlier, or with less at once"
            ),
            case.guard(name),
        ]
    };
    let mut change = change;
    if interface.kind == "veth" {
        change.push(format!(
            "# or frames are longer than its MTU, which a veth counts alike: ip link show {}",
            quoted(name)
        ));
    }
    let busy = hottest(case).map_or(0.0, packet_work);
    Some(Cause {
        key: name.clone(),
        title: format!("The ring of {name} is too small for the delay of its softirq"),
        evidence: vec![
            row("lost in the ring", case.per_second(case.loss.packets)),
            row("ring", holds),
            row("not the load", format!("no CPU is full of packet work: at most {}", percent(busy))),
            queues(case),
        ],
        change,
        effect: "a ring that holds the longest delay loses nothing; the delay stays".into(),
    })
}

fn broken(case: &Case<'_>) -> Option<Cause> {
    Some(Cause {
        key: case.interface_name(),
        title: format!("Frames reach {} broken", case.interface_name()),
        evidence: vec![row("broken", case.per_second(case.loss.packets))],
        change: vec![format!(
            "# cable, transceiver or duplex: sudo ethtool {}",
            quoted(&case.interface_name())
        )],
        effect: "these packets are lost on the wire, not by this host".into(),
    })
}

fn oversize(case: &Case<'_>) -> Option<Cause> {
    let name = case.interface_name();
    Some(Cause {
        key: name.clone(),
        title: format!("Frames for {name} are longer than its MTU: it refuses them"),
        evidence: vec![
            row("refused", case.per_second(case.loss.packets)),
            row(
                "rx_dropped",
                "of a veth without a ring (GRO off, no XDP), of frames that it did not receive",
            ),
        ],
        change: vec![
            format!("ip link show {}     # its MTU: has the other end the same?", quoted(&name)),
            format!("# sudo ip link set {} mtu N     # N as at the other end", quoted(&name)),
        ],
        effect: "frames that fit are received".into(),
    })
}

/// One part in so many of the memory is kept free at most: programs cannot have it.
const FREE_PART: u64 = 20;

fn refill(case: &Case<'_>) -> Option<Cause> {
    let now = case.limit("vm.min_free_kbytes", 0);
    let most = case.memory_kb().map_or(0, |kb| kb / FREE_PART);
    let want = now.map_or(0, |now| now.saturating_mul(2).min(most));
    let change = if want > now.unwrap_or(0) {
        format!("sudo sysctl -w vm.min_free_kbytes={want}")
    } else {
        "# less memory for programs, or more for the machine: vm.min_free_kbytes, which packets come out of, cannot grow much"
            .into()
    };
    let mut evidence = vec![row("lost for want of memory", case.per_second(case.loss.packets))];
    evidence.extend(now.map(|kb| row("vm.min_free_kbytes", format!("{kb} kB"))));
    Some(Cause {
        key: case.interface_name(),
        title: format!("The driver of {} finds no memory for packets", case.interface_name()),
        evidence,
        change: vec![change],
        effect: "the ring is refilled at once, and packets are no longer lost here".into(),
    })
}

fn xdp(case: &Case<'_>) -> Option<Cause> {
    let interface = case.interface_name();
    Some(Cause {
        key: interface.clone(),
        title: format!("An XDP program on {interface} drops packets"),
        evidence: vec![row("dropped by it", case.per_second(case.loss.packets))],
        change: vec![format!(
            "# if they are wanted: whose program is it? ip -details link show {}; its owner can stop it",
            quoted(&interface)
        )],
        effect: "without the program these packets reach IP".into(),
    })
}

/// CPUs that lost packets at their backlog.
fn losers<'a>(case: &'a Case<'_>) -> Vec<&'a Cpu> {
    let mut all: Vec<&Cpu> = case.s.cpus.iter().filter(|c| c.backlog_drops > 0).collect();
    all.sort_by_key(|c| std::cmp::Reverse(c.backlog_drops));
    all
}

fn one_cpu(case: &Case<'_>) -> Option<Cause> {
    let [only] = losers(case)[..] else { return None };
    if packet_work(only) < ROOM {
        return None;
    }
    let idle: Vec<u32> = idle_cpus(case).into_iter().filter(|c| *c != only.cpu).collect();
    // Without RPS a backlog is that of the CPU that hands packets over: there is nothing to spread.
    let spread: Vec<(&str, &Queue)> = case
        .s
        .interfaces
        .iter()
        .flat_map(|i| i.queues.iter().map(|q| (i.name.as_str(), q)))
        .filter(|(_, q)| q.rps == only.cpu.to_string())
        .collect();
    if idle.is_empty() || spread.is_empty() {
        return None;
    }
    let mut cpus = idle.clone();
    cpus.push(only.cpu);
    let write = |(interface, q): &(&str, &Queue)| {
        let name = quoted(interface);
        format!("echo {} | sudo tee /sys/class/net/{name}/queues/rx-{}/rps_cpus", mask(&cpus), q.queue)
    };
    Some(Cause {
        key: only.cpu.to_string(),
        title: format!("RPS puts all packets on CPU {}, whose backlog is full", only.cpu),
        evidence: vec![
            row("lost at the backlog", case.per_second(case.loss.packets)),
            cpu_row(only),
            row("idle", format!("CPU {idle:?}")),
        ],
        change: spread.iter().map(write).collect(),
        effect: format!("the packets of many flows are shared by {} CPUs", cpus.len()),
    })
}

/// The kernel's default of `netdev_max_backlog`.
const BACKLOG_DEFAULT: u64 = 1000;

fn backlog_small(case: &Case<'_>) -> Option<Cause> {
    let limit = case.limit("net.core.netdev_max_backlog", 0)?;
    let losers = losers(case);
    let busy = losers.iter().map(|c| packet_work(c)).fold(0.0, f64::max);
    // Work that fills a CPU fills any backlog.
    if busy > FULL && limit >= BACKLOG_DEFAULT {
        return None;
    }
    let mut evidence = vec![
        row("lost at the backlog", case.per_second(case.loss.packets)),
        row("limit", format!("net.core.netdev_max_backlog = {limit} packets per CPU")),
    ];
    evidence.extend(losers.iter().take(3).map(|c| cpu_row(c)));
    Some(Cause {
        key: String::new(),
        title: format!("The backlog of {limit} packets per CPU is too small for bursts"),
        evidence,
        change: vec![format!(
            "sudo sysctl -w net.core.netdev_max_backlog={}",
            limit.saturating_mul(4).max(BACKLOG_DEFAULT)
        )],
        effect: "bursts wait in the backlog instead of being lost; they wait longer".into(),
    })
}

fn backlog_full(case: &Case<'_>) -> Option<Cause> {
    let losers = losers(case);
    let first = losers.first()?;
    let mut evidence = vec![row("lost at the backlog", case.per_second(case.loss.packets))];
    evidence.extend(losers.iter().take(3).map(|c| cpu_row(c)));
    let interface = case.busiest_interface();
    let mut change = vec![case.guard(&interface)];
    if !idle_cpus(case).is_empty() {
        evidence.extend(place::rows(case));
        change.extend(place::plan(&interface));
    }
    Some(Cause {
        key: first.cpu.to_string(),
        title: format!("CPU {} cannot keep up with its backlog", first.cpu),
        evidence,
        change,
        effect: "packets stay in the ring until they can be handled, and are lost there at no cost".into(),
    })
}
