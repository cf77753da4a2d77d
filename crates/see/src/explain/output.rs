//! Losses on the way out, and connections whose window is the limit.

use super::{Case, Cause, Finding, Rule, name};
use crate::model::{Place, Snapshot};
use kern::shell::quoted;

pub(super) static RULES: [Rule; 2] = [
    Rule {
        name: "queue-full",
        of: &["queue"],
        source: "MR-05, ES-22; __dev_xmit_skb, net/core/dev.c, net/sched/sch_generic.c",
        test: queue_full,
    },
    Rule {
        name: "output-full",
        of: &["device"],
        source: "MR-05, ES-22; tx_dropped of the driver",
        test: output_full,
    },
];

fn row(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

fn sent(case: &Case<'_>) -> (String, String) {
    row("sent", case.per_second(case.loss.interface.map_or(0, |i| i.sent)))
}

fn queue_full(case: &Case<'_>) -> Option<Cause> {
    let interface = case.loss.interface?;
    let worst = interface.qdiscs.iter().max_by_key(|q| q.drops)?;
    let shaped = ["tbf", "htb", "cake", "netem"].contains(&worst.kind.as_str());
    let change = if shaped {
        format!(
            "tc -s qdisc show dev {}     # its rate or its limit is smaller than what is to be sent",
            quoted(&interface.name)
        )
    } else {
        format!(
            "sudo ip link set {} txqueuelen 4000     # for bursts; a slow link stays slow",
            quoted(&interface.name)
        )
    };
    Some(Cause {
        key: interface.name.clone(),
        title: format!("The queue to transmit of {} ({}) is full", interface.name, worst.kind),
        evidence: vec![
            row("lost there", case.per_second(case.loss.packets)),
            sent(case),
            row("queue", format!("{} {}: {} packets wait", worst.kind, worst.handle, worst.waiting)),
        ],
        change: vec![change],
        effect:
            "the bottleneck is the output, not the reception; more is lost here only if more is to be sent"
                .into(),
    })
}

fn output_full(case: &Case<'_>) -> Option<Cause> {
    let interface = case.loss.interface?;
    // A queue that is there is somebody's choice.
    let queued = interface.qdiscs.iter().any(|q| q.kind != "noqueue");
    let device = quoted(&interface.name);
    let look = format!("tc -s qdisc show dev {device}     # its limit, and what waits in it");
    let add = format!("sudo tc qdisc replace dev {device} root pfifo limit 1000");
    Some(Cause {
        key: interface.name.clone(),
        title: format!("The device {} does not take packets as fast as they are sent", interface.name),
        evidence: vec![row("lost there", case.per_second(case.loss.packets)), sent(case)],
        change: vec![
            if queued { look } else { add },
            "# a queue absorbs bursts; a receiver or link that is slower than the input stays so".into(),
        ],
        effect: "bursts wait instead of being lost".into(),
    })
}

/// Part of a window from which the peer is held up by it.
const FILLED: f64 = 0.7;
/// Round-trip times below this are of this host itself or its rack: no window limits there, us.
const RTT_MIN_US: u32 = 2_000;

/// Connections whose receive buffer is below bandwidth times delay (WU-15): nothing is lost, but they could be faster.
pub(super) fn windows(s: &Snapshot) -> Vec<Finding> {
    let one = |c: &crate::model::Consumer| {
        let tcp = c.tcp.filter(|t| t.rtt_us >= RTT_MIN_US && t.window > 0)?;
        let rate = tcp.received as f64 / s.interval_s.max(1e-9);
        let in_flight = rate * f64::from(tcp.rtt_us) / 1e6;
        let rmem = s.limits.get("net.ipv4.tcp_rmem")?;
        let most = rmem.get(2).copied()?;
        let limit = |name: &str| s.limits.get(name).and_then(|l| l.first()).copied();
        // A program that does not read fills its buffer: then it is the limit, and no window helps.
        let reads = c.level.is_some_and(|l| l < 0.5);
        // A buffer that grows by itself keeps the window at twice what is on the way (`tcp_rcv_space_adjust`).
        (reads && in_flight > FILLED * f64::from(tcp.window)).then(|| {
            let want = (rate * 2.0 * f64::from(tcp.rtt_us) / 1e6 * 2.0) as u64;
            Finding {
                rule: "window".into(),
                place: Place::Consumer,
                title: format!("The receive buffer of {} is below bandwidth x delay", name(c)),
                lost: 0,
                evidence: vec![
                    row("received", format!("{:.1} Mb/s", rate * 8.0 / 1e6)),
                    row("round trip", format!("{:.1} ms", f64::from(tcp.rtt_us) / 1e3)),
                    row(
                        "on the way",
                        format!(
                            "{:.0} kB of a window of {:.0} kB",
                            in_flight / 1e3,
                            f64::from(tcp.window) / 1e3
                        ),
                    ),
                    row("buffer", format!("{} kB, tcp_rmem allows {} kB", c.limit / 1000, most / 1000)),
                ],
                change: if limit("net.ipv4.tcp_moderate_rcvbuf") == Some(0) && rmem.get(1) == Some(&c.limit) {
                    vec!["sudo sysctl -w net.ipv4.tcp_moderate_rcvbuf=1".into()]
                } else if c.limit < most {
                    vec![format!(
                        "# {} has set SO_RCVBUF: without it the kernel lets the buffer grow",
                        name(c)
                    )]
                } else {
                    let at = |i: usize| rmem.get(i).copied().unwrap_or(0);
                    vec![format!(
                        "sudo sysctl -w net.ipv4.tcp_rmem=\"{} {} {}\"",
                        at(0),
                        at(1),
                        want.max(most.saturating_mul(2))
                    )]
                },
                effect: "twice the window is up to twice the rate, until the sender or the path is the limit"
                    .into(),
                source: "WU-15; tcp_select_window, net/ipv4/tcp_output.c; docs/explain.md#window".into(),
                also: Vec::new(),
            }
        })
    };
    s.consumers.iter().filter_map(one).take(8).collect()
}
