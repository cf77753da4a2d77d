//! The newest interval, and what is left of those before it: one place from which every client takes what it needs.

use crate::http::{Event, Feed};
use crate::metrics::{Seen, Store};
use see::accept::{Accept, Group};
use see::explain::{Finding, Report, explain};
use see::guard::Guard;
use see::model::Place;
use see::{SCHEMA, Snapshot};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Intervals that the page's curves go back.
pub const HISTORY: usize = 600;
/// Consumers whose levels a point keeps.
const LEVELS: usize = 4;
/// Consumers that an event has.
const CONSUMERS: usize = 48;
/// CPUs that an event has.
const CPUS: usize = 256;
/// Interfaces that an event has.
const INTERFACES: usize = 64;
/// Guards, and programs of `weir accept`, that an event has.
const GUARDS: usize = 4;
/// Sources, and CPUs, of a guard that an event has; and workers of a group of listeners.
const SOURCES: usize = 64;
/// Groups of listeners of a `weir accept` that an event has.
const GROUPS: usize = 8;

/// One interval as the curves show it. Packets are counts of the interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Number of the interval since weir started, from 1.
    pub seq: u64,
    /// When it ended, seconds since 1970.
    pub time_s: f64,
    /// Its length, seconds.
    pub interval_s: f64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets that reached their end.
    pub delivered: u64,
    /// Packets lost, by place.
    pub lost: BTreeMap<String, u64>,
    /// The CPU that is idle least.
    pub cpu: u32,
    /// Its share for packets before any program: interrupts, softirqs, their threads; 0 to 1.
    pub cpu_packets: f64,
    /// Its share for weir.
    pub cpu_weir: f64,
    /// Its share for programs and the rest of the kernel.
    pub cpu_programs: f64,
    /// Its share that the hypervisor took.
    pub cpu_steal: f64,
    /// Levels of the worst consumers, 0 to 1, by socket and program.
    pub levels: BTreeMap<String, f64>,
    /// 99th percentiles of what probes measured, microseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub waits: BTreeMap<&'static str, f64>,
}

impl Point {
    fn new(seq: u64, s: &Snapshot) -> Point {
        let fullest = s.cpus.iter().min_by(|a, b| a.idle.total_cmp(&b.idle));
        let cpu = fullest.cloned().unwrap_or_default();
        let mut levels = BTreeMap::new();
        for consumer in s.consumers.iter().filter(|c| c.level.is_some()) {
            let level: &mut f64 =
                levels.entry(format!("{} {}", consumer.socket, consumer.process)).or_default();
            *level = level.max(consumer.level.unwrap_or(0.0));
            if levels.len() == LEVELS {
                break;
            }
        }
        Point {
            seq,
            time_s: s.time_s,
            interval_s: s.interval_s,
            offered: s.ledger.offered,
            delivered: s.ledger.delivered(),
            lost: s.ledger.drops.clone(),
            cpu: cpu.cpu,
            cpu_packets: cpu.irq + cpu.softirq + cpu.threads,
            cpu_weir: cpu.weir,
            cpu_programs: cpu.programs,
            cpu_steal: cpu.steal,
            levels,
            waits: s.probes.iter().flat_map(|p| &p.waits).map(|w| (w.of.name(), w.p99_us)).collect(),
        }
    }
}

/// One interval with what is said about it.
pub struct Entry {
    /// The interval as a point of the curves.
    pub point: Arc<Point>,
    /// The whole of it.
    pub snapshot: Snapshot,
    report: Report,
    event: OnceLock<Arc<str>>,
}

/// What an event of the page's stream carries.
#[derive(Serialize)]
struct Live<'a> {
    run: &'a str,
    recorded: bool,
    point: &'a Point,
    finding: Option<&'a Finding>,
    findings: usize,
    bottleneck: Option<&'static str>,
    snapshot: &'a Snapshot,
}

#[derive(Default)]
struct State {
    newest: Option<Arc<Entry>>,
    history: VecDeque<Arc<Point>>,
    store: Arc<Store>,
    ended: bool,
}

/// See the module.
pub struct Hub {
    run: String,
    recorded: bool,
    state: Mutex<State>,
    came: Condvar,
}

impl Hub {
    /// An empty one. `run` tells this process from the one before it; `recorded`: intervals are not of now.
    #[must_use]
    pub fn new(run: String, recorded: bool) -> Arc<Hub> {
        Arc::new(Hub { run, recorded, state: Mutex::default(), came: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A client's thread that panicked has changed nothing here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next interval. It waits for no client: they hold the lock only to copy a pointer.
    pub fn publish(&self, snapshot: &Snapshot) {
        let (report, kept) = (explain(snapshot), snapshot.clone());
        let mut state = self.state();
        // A scrape that is being written keeps the sums that it began with.
        Arc::make_mut(&mut state.store).add(&Seen { snapshot, report: &report });
        let seq = state.newest.as_ref().map_or(1, |entry| entry.point.seq + 1);
        let point = Arc::new(Point::new(seq, snapshot));
        if state.history.len() == HISTORY {
            state.history.pop_front();
        }
        state.history.push_back(Arc::clone(&point));
        state.newest = Some(Arc::new(Entry { point, snapshot: kept, report, event: OnceLock::new() }));
        drop(state);
        self.came.notify_all();
    }

    /// Says that no interval will follow: streams end with that word.
    pub fn end(&self) {
        self.state().ended = true;
        self.came.notify_all();
    }

    /// The newest interval; `None`: there is none yet.
    #[must_use]
    pub fn newest(&self) -> Option<Arc<Entry>> {
        self.state().newest.clone()
    }

    /// The sums for a scrape.
    #[must_use]
    pub fn store(&self) -> Arc<Store> {
        Arc::clone(&self.state().store)
    }

    /// The last [`HISTORY`] intervals as JSON: `run` and `points`.
    ///
    /// # Errors
    /// If a number cannot be written as JSON.
    pub fn history(&self) -> serde_json::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct History<'a> {
            run: &'a str,
            points: Vec<&'a Point>,
        }
        let points: Vec<Arc<Point>> = self.state().history.iter().cloned().collect();
        serde_json::to_vec(&History { run: &self.run, points: points.iter().map(AsRef::as_ref).collect() })
    }

    /// The report on the newest interval.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        self.newest().map(|entry| entry.report.clone())
    }

    fn event(&self, entry: &Entry) -> Arc<str> {
        // Made by the first client that wants it; without clients by nobody.
        let make = || {
            let live = Live {
                run: &self.run,
                recorded: self.recorded,
                point: &entry.point,
                finding: entry.report.findings.first(),
                findings: entry.report.findings.len(),
                bottleneck: bottleneck(&entry.snapshot).map(Place::name),
                snapshot: &brief(&entry.snapshot),
            };
            match serde_json::to_string(&live) {
                Ok(json) => format!("data: {json}\n\n").into(),
                Err(_) => ":\n\n".into(),
            }
        };
        Arc::clone(entry.event.get_or_init(make))
    }
}

/// The stage that loses most.
fn bottleneck(s: &Snapshot) -> Option<Place> {
    s.path.iter().filter(|stage| stage.lost() > 0).max_by_key(|stage| stage.lost()).map(|stage| stage.place)
}

/// What the page draws of a snapshot; the rest is at `/snapshot.json`.
fn brief(s: &Snapshot) -> Snapshot {
    let interface = |i: &see::model::Interface| see::model::Interface {
        counters: BTreeMap::new(),
        stages: Vec::new(),
        ..i.clone()
    };
    let guard = |g: &Guard| Guard {
        sources: g.sources.iter().take(SOURCES).cloned().collect(),
        cpus: g.cpus.iter().take(SOURCES).cloned().collect(),
        ..g.clone()
    };
    let group = |g: &Group| Group {
        workers: g.worst_first().into_iter().take(SOURCES).cloned().collect(),
        ..g.clone()
    };
    let accept =
        |a: &Accept| Accept { groups: a.groups.iter().take(GROUPS).map(group).collect(), ..a.clone() };
    Snapshot {
        schema: SCHEMA.to_owned(),
        host: s.host.clone(),
        time_s: s.time_s,
        interval_s: s.interval_s,
        path: s.path.clone(),
        interfaces: s.interfaces.iter().take(INTERFACES).map(interface).collect(),
        cpus: s.cpus.iter().take(CPUS).cloned().collect(),
        consumers: s.consumers.iter().take(CONSUMERS).cloned().collect(),
        consumers_quiet: s.consumers_quiet + s.consumers.len().saturating_sub(CONSUMERS) as u64,
        ledger: s.ledger.clone(),
        guards: s.guards.iter().take(GUARDS).map(guard).collect(),
        accepts: s.accepts.iter().take(GUARDS).map(accept).collect(),
        probes: s.probes.clone(),
        skipped: s.skipped.clone(),
        missing: s.missing.clone(),
        ..Snapshot::default()
    }
}

/// Events of one client.
pub struct Follow {
    hub: Arc<Hub>,
    seen: u64,
}

impl Follow {
    /// From the newest interval on.
    #[must_use]
    pub fn new(hub: Arc<Hub>) -> Follow {
        Follow { hub, seen: 0 }
    }
}

impl Feed for Follow {
    fn next(&mut self, wait: Duration) -> Event {
        let seen = self.seen;
        let waiting = |state: &mut State| {
            !state.ended && state.newest.as_ref().is_none_or(|entry| entry.point.seq == seen)
        };
        let (state, _) = self
            .hub
            .came
            .wait_timeout_while(self.hub.state(), wait, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        let (newest, ended) = (state.newest.clone(), state.ended);
        drop(state);
        match newest.filter(|entry| entry.point.seq != seen) {
            Some(entry) => {
                self.seen = entry.point.seq;
                Event::Text(self.hub.event(&entry))
            }
            None if ended => Event::End("event: end\ndata: {}\n\n"),
            None => Event::Quiet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use see::model::{Consumer, Cpu, Delay, Ledger, Probes, Waited};

    fn snapshot(time_s: f64) -> Snapshot {
        let consumer =
            |i: u32| Consumer { socket: format!("udp {i}"), level: Some(0.5), ..Consumer::default() };
        Snapshot {
            time_s,
            interval_s: 1.0,
            cpus: vec![
                Cpu { cpu: 0, idle: 0.9, ..Cpu::default() },
                Cpu { cpu: 1, idle: 0.1, softirq: 0.5, irq: 0.2, programs: 0.2, ..Cpu::default() },
            ],
            consumers: (0..100).map(consumer).collect(),
            ledger: Ledger { offered: 10, drops: [("socket".to_owned(), 4)].into(), ..Ledger::default() },
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_point_is_of_the_fullest_cpu_and_the_worst_consumers() {
        let point = Point::new(3, &snapshot(7.0));
        assert_eq!((point.cpu, point.levels.len(), point.seq), (1, LEVELS, 3));
        assert!((point.cpu_packets - 0.7).abs() < 1e-9);
        assert!(point.waits.is_empty());
        let waits = vec![Waited { of: Delay::Tcp, p99_us: 7.0, ..Waited::default() }];
        let probes = Some(Probes { waits, ..Probes::default() });
        let point = Point::new(3, &Snapshot { probes, ..snapshot(7.0) });
        assert_eq!(point.waits, [("tcp", 7.0)].into());
    }

    #[test]
    fn history_is_bounded_and_a_slow_client_gets_the_newest() {
        let hub = Hub::new("r".into(), false);
        let mut follow = Follow::new(Arc::clone(&hub));
        assert!(matches!(follow.next(Duration::ZERO), Event::Quiet));
        for i in 0..HISTORY + 5 {
            hub.publish(&snapshot(i as f64));
        }
        let json: serde_json::Value = serde_json::from_slice(&hub.history().unwrap()).unwrap();
        assert_eq!(json["points"].as_array().unwrap().len(), HISTORY);
        assert_eq!(json["points"][0]["seq"], 6);
        let Event::Text(text) = follow.next(Duration::ZERO) else { panic!("no event") };
        let live: serde_json::Value =
            serde_json::from_str(text.strip_prefix("data: ").unwrap().trim_end()).unwrap();
        assert_eq!(live["point"]["seq"], (HISTORY + 5) as u64);
        assert_eq!(live["snapshot"]["consumers"].as_array().unwrap().len(), CONSUMERS);
        assert_eq!(live["snapshot"]["consumers_quiet"], 100 - CONSUMERS as u64);
        assert!(matches!(follow.next(Duration::ZERO), Event::Quiet), "each interval once");
        hub.end();
        assert!(matches!(follow.next(Duration::ZERO), Event::End(_)));
    }

    #[test]
    fn a_scrape_that_is_held_does_not_change_and_does_not_hold_up() {
        let hub = Hub::new("r".into(), false);
        hub.publish(&snapshot(1.0));
        let held = hub.store();
        let before = held.text();
        hub.publish(&snapshot(2.0));
        assert_eq!(held.text(), before);
        assert_ne!(hub.store().text(), before);
    }
}
