//! A real Prometheus over four hosts with guards: the alert rules as they are shipped, but for their times, fire when their
//! cause is there and clear when it is gone. Run by `make monitor-test`.
//!
//! Each host is a network namespace with its flooded interface and, apart from that, a line to the monitor. Times of the rules
//! are a sixth of the shipped ones, which promtool plays in full (`make rules-test`).
//!
//! Cannot flake: what must come is waited for as a state, five times as long as the rules say; nothing is asserted about how
//! soon. The host that must stay silent receives nothing.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::procs::Guard;
use common::world::{FLOOD, PORT, World, bind_to};
use common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};
use kern::wire::link;
use kern::wire::netns::Namespace;
use serde_json::Value;

/// Hosts. The first is flooded, the second loses guard and keeper, the third its metrics; the last stays well.
const HOSTS: u8 = 4;
const METRICS: u16 = 9495;
/// Without it no metrics are given.
const TOKEN: &str = "only-this-monitor-knows";
/// The shipped rules take so many times as long.
const FASTER: u32 = 6;

/// Address of the line between the monitor and host `n`: 1 is the monitor's end, 2 the host's.
fn line(n: u8, end: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 4 * n + end)
}

/// What the monitor calls host `n`.
fn instance(n: u8) -> String {
    format!("{}:{METRICS}", line(n, 2))
}

/// A child that is ended, by its process id, when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program inside a namespace, on both CPUs.
fn start(ns: &Namespace, mut command: Command) -> Running {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let spawn = || {
        bind_to(&[WIRE_CPU, HOST_CPU]);
        Ok(command.spawn())
    };
    Running(ns.run(spawn).unwrap().unwrap())
}

/// `weir watch --metrics` of a host.
fn metrics(world: &World, n: u8) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["watch", "--interval", "1s", "--metrics", &instance(n)]).arg(&world.dirs()[1]);
    let token = world.dir.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    command.arg("--token").arg(token);
    command.stderr(Stdio::null());
    start(&world.host, command)
}

/// Prometheus in its namespace.
struct Monitor {
    ns: Namespace,
    _program: Running,
    /// Every alert that was ever seen to fire.
    seen: BTreeSet<(String, String)>,
}

/// The shipped rules with shorter times.
fn rules() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus/weir.rules.yml");
    let text = std::fs::read_to_string(path).unwrap();
    let times = BTreeMap::from([("[1m]", 60), ("for: 1m", 60), ("for: 2m", 120)]);
    let shorter = |text: String, (long, seconds): (&&str, &u32)| {
        let minutes = seconds / 60;
        assert!(text.contains(*long), "the rules have no {long} any more");
        text.replace(*long, &long.replace(&format!("{minutes}m"), &format!("{}s", seconds / FASTER)))
    };
    let text = times.iter().fold(text, shorter);
    let left = text.lines().filter(|l| l.trim().starts_with("for: ") && l.ends_with('m')).count();
    assert_eq!(left, 0, "a time that this test does not know");
    text
}

/// The monitor's namespace, with a line to each host.
fn lines(worlds: &[World]) -> Namespace {
    let ns = Namespace::create("mon").unwrap();
    ns.run(|| link::up(1)).unwrap();
    for (n, world) in (0u8..).zip(worlds) {
        let name = format!("host{n}");
        let ends = ((name.as_str(), [2, 0, 0, 9, 1, n]), ("line", [2, 0, 0, 9, 2, n]));
        let (near, far) = link::veth(&ns, ends.0, &world.host, ends.1).unwrap();
        ns.run(|| link::address(near.index, line(n, 1), 30)).unwrap();
        world.host.run(|| link::address(far.index, line(n, 2), 30)).unwrap();
    }
    ns
}

impl Monitor {
    fn start(ns: Namespace, dir: &Path) -> Monitor {
        let targets: Vec<String> = (0..HOSTS).map(|n| format!("\"{}\"", instance(n))).collect();
        let config = format!(
            "global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s}}\n\
             rule_files: [rules.yml]\n\
             scrape_configs: [{{job_name: weir, authorization: {{credentials: {TOKEN}}}, \
             static_configs: [{{targets: [{}]}}]}}]\n",
            targets.join(", ")
        );
        std::fs::write(dir.join("prometheus.yml"), config).unwrap();
        std::fs::write(dir.join("rules.yml"), rules()).unwrap();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        command.args(["--web.listen-address=127.0.0.1:9090", "--log.level=warn"]);
        let program = start(&ns, command);
        let monitor = Monitor { ns, _program: program, seen: BTreeSet::new() };
        within("Prometheus answers", ms(10_000), || monitor.get("/-/ready").is_some());
        monitor
    }

    /// The body of a page of Prometheus; `None` if it does not answer 200.
    fn get(&self, path: &str) -> Option<String> {
        let ask = || {
            let ask = || -> std::io::Result<String> {
                let mut stream = TcpStream::connect("127.0.0.1:9090")?;
                stream.set_read_timeout(Some(ms(10_000)))?;
                write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
                let mut text = String::new();
                stream.read_to_string(&mut text)?;
                Ok(text)
            };
            Ok(ask())
        };
        let text = self.ns.run(ask).unwrap().ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
    }

    fn json(&self, path: &str) -> Value {
        self.get(path).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Alerts that fire now, with their instances.
    fn firing(&mut self) -> BTreeSet<(String, String)> {
        let answer = self.json("/api/v1/alerts");
        let all = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let label = |alert: &Value, name: &str| alert["labels"][name].as_str().unwrap_or_default().to_owned();
        let fires = all.iter().filter(|alert| alert["state"] == "firing");
        let now: BTreeSet<_> = fires.map(|a| (label(a, "alertname"), label(a, "instance"))).collect();
        self.seen.extend(now.iter().cloned());
        now
    }

    /// Values of a query, by instance.
    fn query(&self, query: &str) -> BTreeMap<String, f64> {
        let answer = self.json(&format!("/api/v1/query?query={query}"));
        let list = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let value = |one: &Value| {
            Some((one["metric"]["instance"].as_str()?.to_owned(), one["value"][1].as_str()?.parse().ok()?))
        };
        list.iter().filter_map(value).collect()
    }

    /// Waits until the alert of host `n` fires, or does not any more.
    fn wait(&mut self, alert: &str, n: u8, fires: bool) {
        let wanted = (alert.to_owned(), instance(n));
        let what = format!("{alert} of host {n} {}", if fires { "fires" } else { "clears" });
        let took = within(&what, ms(30_000), || self.firing().contains(&wanted) == fires);
        println!("{what} after {took:.1?}");
    }
}

#[test]
#[ignore = "make monitor-test"]
fn alerts_fire_and_clear_in_a_real_prometheus_root() {
    let name = "alerts_fire_and_clear_in_a_real_prometheus_root";
    if !possible(name) {
        return;
    }
    if Command::new("prometheus").arg("--version").output().is_err() {
        eprintln!("skipped: {name} needs prometheus: apt-get install prometheus");
        return;
    }
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let worlds: Vec<World> = (0..HOSTS).map(|n| World::new(&format!("mon{n}"), 1)).collect();
    let ns = lines(&worlds);
    let mut guards: Vec<Option<Guard>> = worlds.iter().map(|world| Some(world.guard(&[]))).collect();
    let mut watches: Vec<Option<Running>> =
        (0u8..).zip(&worlds).map(|(n, world)| Some(metrics(world, n))).collect();
    let mut monitor = Monitor::start(ns, dir.path());

    // All are seen, each with its guard, and recorded rules have a value for each; nothing fires.
    within("every host is scraped", ms(10_000), || {
        let guards = monitor.query("weir_guards");
        (0..HOSTS).all(|n| guards.get(&instance(n)) == Some(&1.0))
    });
    within("rules are recorded", ms(20_000), || {
        monitor.query("instance:weir_offered_packets:rate1m").len() == usize::from(HOSTS)
    });
    assert_eq!(monitor.firing(), BTreeSet::new());

    // The third cannot be seen, though its guard works; the first has no guard.
    drop(watches[2].take());
    drop(guards[0].take());
    monitor.wait("WeirUnseen", 2, true);
    monitor.wait("WeirGuardAbsent", 0, true);
    watches[2] = Some(metrics(&worlds[2], 2));
    monitor.wait("WeirUnseen", 2, false);

    // A flood without a guard: livelock. A guard ends it under the same flood.
    let sink = worlds[0].sink(0, PORT);
    let load = worlds[0].send(&[(0, PORT)], &[], &[(ms(600_000), FLOOD)]);
    monitor.wait("WeirLivelockNear", 0, true);
    guards[0] = Some(worlds[0].guard(&[]));
    monitor.wait("WeirLivelockNear", 0, false);
    monitor.wait("WeirGuardAbsent", 0, false);
    drop(load);
    // Where nothing but the flood of one program comes a poller may pause and shed little; beside packets of another it sheds.
    let other = worlds[0].sink(0, PORT + 1);
    let schedule: Vec<u8> = (0..32).map(|n| u8::from(n == 31)).collect();
    let load = worlds[0].send(&[(0, PORT), (0, PORT + 1)], &schedule, &[(ms(600_000), FLOOD)]);
    monitor.wait("WeirGateSheds", 0, true);
    drop(load);
    monitor.wait("WeirGateSheds", 0, false);
    drop((sink, other));

    // Guard and keeper of the second die together while it is polled.
    let sink = worlds[1].sink(0, PORT);
    let load = worlds[1].send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
    within("takeover", ms(500), || worlds[1].taken(0));
    guards[1].as_mut().unwrap().kill_both();
    drop(load);
    drop(sink);
    monitor.wait("WeirSettingsLeft", 1, true);
    let (code, text, error) = worlds[1].undo();
    assert_eq!(code, 0, "{text}{error}");
    monitor.wait("WeirSettingsLeft", 1, false);
    guards[1] = Some(worlds[1].guard(&[]));
    monitor.wait("WeirGuardAbsent", 1, false);

    println!("fired: {:?}", monitor.seen);
    let last: Vec<_> = monitor.seen.iter().filter(|(_, of)| *of == instance(HOSTS - 1)).collect();
    assert!(last.is_empty(), "of a host that was well: {last:?}");
    within("nothing fires", ms(30_000), || monitor.firing().is_empty());
}
