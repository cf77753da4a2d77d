use super::*;
use see::accept::{Accept, Group, Worker};
use see::guard::{Guard, Poller, Source};
use see::model::{Consumer, Cpu, Delay, Interface, Ledger, Place, Probes, Queue, Stage, Wait, Waited};
use std::collections::BTreeSet;

/// A snapshot in which every family has a number.
fn snapshot() -> Snapshot {
    let stage = Stage {
        place: Place::Ring,
        r#in: Some(10),
        out: Some(9),
        level: Some(0.5),
        wait: Some(Wait { p50_us: 1.0, p99_us: 2.0, estimated: false }),
        drops: [("ring".to_owned(), 1)].into(),
    };
    let queue = Queue { packets: Some(9), interrupts: Some(3), ..Queue::default() };
    Snapshot {
        interval_s: 2.0,
        path: vec![stage.clone()],
        interfaces: vec![Interface {
            name: "eth\"0\\\n".into(),
            ring: Some(256),
            offered: 10,
            stages: vec![stage],
            queues: vec![queue],
            ..Interface::default()
        }],
        cpus: vec![Cpu { idle: 0.5, programs: 0.5, backlog: Some(1), ..Cpu::default() }],
        consumers: vec![consumer("udp 53", 0.25, 4), consumer("udp 53", 0.75, 3)],
        processes: vec![see::model::Process {
            name: "knotd".into(),
            runs: 0.5,
            receives: true,
            ..Default::default()
        }],
        ledger: Ledger {
            offered: 10,
            delivered: [("udp".to_owned(), 2)].into(),
            drops: [("socket".to_owned(), 7)].into(),
            unaccounted: -1,
            ..Ledger::default()
        },
        guards: vec![Guard {
            pid: 7,
            sources: vec![Source {
                name: "eth0/0".into(),
                mode: "poll".into(),
                packets: Some(9),
                turns: Some(2),
                foreign_polls: Some(1),
                shed: 4,
                nobody: 3,
                over_share: 1,
                over_bound: 2,
                ..Source::default()
            }],
            cpus: vec![Poller {
                cpu: 1,
                budget_used: Some(0.5),
                sleeps: [("feedback".to_owned(), 3)].into(),
                ..Poller::default()
            }],
            ..Guard::default()
        }],
        accepts: vec![Accept {
            pid: 8,
            groups: vec![Group {
                address: "0.0.0.0:443".into(),
                chosen: [("own".to_owned(), 9), ("away".to_owned(), 1)].into(),
                workers: vec![Worker {
                    tid: Some(81),
                    waiting: 3,
                    oldest_ms: Some(250.0),
                    stalled: true,
                    placed: Some(10),
                    affine: Some(9),
                    ..Worker::default()
                }],
                ..Group::default()
            }],
        }],
        probes: Some(Probes {
            waits: vec![Waited {
                of: Delay::Socket,
                samples: 1,
                count: 6,
                sum_us: 2.5e6,
                // Four up to 5 us, two above all bounds.
                buckets: (0..=BOUNDS_US.len())
                    .map(|i| {
                        [(2, 4), (BOUNDS_US.len(), 2)].iter().find(|(at, _)| *at == i).map_or(0, |(_, n)| *n)
                    })
                    .collect(),
                ..Waited::default()
            }],
            drops: [("NO_SOCKET".to_owned(), 3)].into(),
            unplaced: [("NOT_SPECIFIED".to_owned(), 2)].into(),
            lost: 5,
            missed: 1,
        }),
        skipped: [("sockets".to_owned(), 1)].into(),
        missing: vec!["x".into()],
        left_changed: Some(1),
        ..Snapshot::default()
    }
}

fn consumer(socket: &str, level: f64, lost: u64) -> Consumer {
    Consumer {
        socket: socket.into(),
        process: "knotd".into(),
        level: Some(level),
        lost: Some(lost),
        r#in: Some(10),
        out: Some(6),
        ..Consumer::default()
    }
}

fn store(snapshots: &[Snapshot]) -> Arc<Store> {
    let mut store = Store::default();
    let report = Report {
        findings: vec![see::explain::Finding { rule: "ring-small".into(), lost: 1, ..Default::default() }],
        ..Report::default()
    };
    snapshots.iter().for_each(|snapshot| store.add(&Seen { snapshot, report: &report }));
    Arc::new(store)
}

#[test]
fn the_exposition_is_openmetrics() {
    let samples = testkit::openmetrics::parse(&store(&[snapshot(), snapshot()]).text()).unwrap();
    assert!(samples.iter().any(|s| s.labels.get("interface").is_some_and(|name| name == "eth\"0\\?")));
    // Before the first interval it is one too.
    let samples = testkit::openmetrics::parse(&Arc::new(Store::default()).text()).unwrap();
    assert_eq!(samples.len(), 1 + OWN.len());
}

/// Value of a series, whose text before the value is `series`.
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
}

#[test]
fn counters_add_up_and_gauges_do_not() {
    let text = store(&[snapshot(), snapshot()]).text();
    assert_eq!(value(&text, "weir_ledger_offered_packets_total"), 20.0);
    assert_eq!(value(&text, "weir_ledger_lost_packets_total{place=\"socket\"}"), 14.0);
    assert_eq!(value(&text, "weir_ledger_lost_packets_total{place=\"no port\"}"), 0.0);
    assert_eq!(value(&text, "weir_ledger_unaccounted_packets"), -1.0);
    assert_eq!(value(&text, "weir_cpu_time_seconds_total{cpu=\"0\",mode=\"idle\"}"), 2.0);
    assert_eq!(value(&text, "weir_intervals_total"), 2.0);
    assert_eq!(value(&text, "weir_guard_shed_packets_total{source=\"eth0/0\"}"), 8.0);
    assert_eq!(value(&text, "weir_guard_nobodys_packets_total{source=\"eth0/0\"}"), 6.0);
    assert_eq!(value(&text, "weir_guard_over_share_packets_total{source=\"eth0/0\"}"), 2.0);
    assert_eq!(value(&text, "weir_guard_over_bound_packets_total{source=\"eth0/0\"}"), 4.0);
    assert_eq!(value(&text, "weir_guard_mode{source=\"eth0/0\",mode=\"poll\"}"), 1.0);
    assert_eq!(value(&text, "weir_guard_budget_used_ratio{cpu=\"1\"}"), 0.5);
    assert_eq!(value(&text, "weir_accept_placed_total{listener=\"0.0.0.0:443\",why=\"away\"}"), 2.0);
    let worker = |name: &str| {
        value(&text, &format!("weir_accept_worker_{name}{{listener=\"0.0.0.0:443\",worker=\"81\"}}"))
    };
    assert_eq!((worker("placed_total"), worker("affine_total")), (20.0, 18.0));
    assert_eq!((worker("waiting"), worker("oldest_seconds"), worker("stalled")), (3.0, 0.25, 1.0));
    // Two sockets of one port and program.
    let labels = "{kind=\"udp\",socket=\"udp 53\",process=\"knotd\"}";
    assert_eq!(value(&text, &format!("weir_consumer_lost_packets_total{labels}")), 14.0);
    assert_eq!(value(&text, &format!("weir_consumer_level_ratio{labels}")), 0.75);
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn waiting_times_are_a_histogram() {
    let text = store(&[snapshot(), snapshot()]).text();
    let bucket = |le: &str| value(&text, &format!("weir_wait_seconds_bucket{{le=\"{le}\",of=\"socket\"}}"));
    assert_eq!(
        (bucket("0.000002"), bucket("0.000005"), bucket("20.0"), bucket("+Inf")),
        (0.0, 8.0, 8.0, 12.0),
        "{text}"
    );
    assert_eq!(value(&text, "weir_wait_seconds_count{of=\"socket\"}"), 12.0);
    assert_eq!(value(&text, "weir_wait_seconds_sum{of=\"socket\"}"), 5.0);
    assert_eq!(value(&text, "weir_kernel_dropped_packets_total{reason=\"NO_SOCKET\"}"), 6.0);
    assert_eq!(value(&text, "weir_probe_unfollowed_packets_total"), 10.0);
    // Without probes there is nothing of theirs.
    let text = store(&[Snapshot { probes: None, ..snapshot() }]).text();
    let of_probes = ["weir_wait_seconds_", "weir_kernel_dropped", "weir_probe_"];
    assert!(!text.lines().any(|line| of_probes.iter().any(|name| line.starts_with(name))), "{text}");
}

#[test]
fn what_only_root_may_know_is_absent_and_not_zero() {
    let count = |snapshot| {
        let text = store(&[snapshot]).text();
        ["weir_guards ", "weir_left_changed "]
            .map(|name| text.lines().filter(|l| l.starts_with(name)).count())
    };
    let none = Snapshot { guards: Vec::new(), left_changed: Some(0), ..snapshot() };
    assert_eq!(count(none.clone()), [1, 1]);
    assert_eq!(count(Snapshot { guards_hidden: true, left_changed: None, ..none }), [0, 0]);
}

#[test]
fn labels_are_escaped_and_bounded() {
    let text = store(&[snapshot()]).text();
    assert_eq!(value(&text, "weir_interface_offered_packets_total{interface=\"eth\\\"0\\\\?\"}"), 10.0);
    assert_eq!(clean(&"ä".repeat(200)).chars().count(), LABEL_MAX);
    assert_eq!(clean("x\u{202e}hss\n"), "x?hss?");
}

#[test]
fn every_metric_is_made_by_some_interval() {
    let text = store(&[snapshot()]).text();
    for name in names() {
        let told = text.lines().any(|line| line.starts_with(&name) && !line.starts_with('#'));
        assert!(told, "{name} is never told");
    }
}

#[test]
fn names_units_and_limits_hold_together() {
    let all: Vec<String> = names();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "two of one name");
    for family in &FAMILIES {
        assert!(
            !family.help.ends_with('.') && !family.help.contains(['\n', '"', '\\', '|']),
            "{}",
            family.name
        );
        assert!(family.limit > 0 && (family.limit == 1) == family.labels.is_empty(), "{}", family.name);
        assert!(["", "packets", "bytes", "seconds", "ratio"].contains(&family.unit), "{}", family.unit);
    }
}

#[test]
fn a_metric_that_is_full_forgets_the_oldest_series_first() {
    let family = FAMILIES.iter().find(|f| f.name == "consumer_lost").unwrap();
    let mut series = BTreeMap::new();
    for i in 0..family.limit {
        assert!(take(
            family,
            &mut series,
            &["udp", &format!("udp {i}"), "p"],
            1.0,
            if i == 7 { 1 } else { 2 }
        ));
    }
    // All but the eighth were seen in this interval.
    assert!(take(family, &mut series, &["udp", "new", "p"], 1.0, 2));
    assert!(!take(family, &mut series, &["udp", "newer", "p"], 1.0, 2), "nothing older is left");
    assert_eq!(series.len(), family.limit);
    assert!(!series.keys().any(|key| key[1] == "udp 7"));
}

#[test]
fn many_consumers_stay_within_the_limits() {
    let busy = |round: usize| Snapshot {
        consumers: (0..256).map(|i| consumer(&format!("udp {}", round * 1000 + i), 0.5, 5)).collect(),
        ..snapshot()
    };
    let rounds: Vec<Snapshot> = (0..10).map(busy).collect();
    let store = store(&rounds);
    for (family, series) in FAMILIES.iter().zip(&store.series) {
        assert!(series.len() <= family.limit, "{}", family.name);
    }
    assert_eq!(store.refused, 0);
    assert!(store.text().len() < 64 * 1024, "{} bytes", store.text().len());
}
