//! The experiment `no-harm`: TCP in both directions, a web server, and request/response through a guarded interface
//! that is not overloaded, interleaved with the same without weir.

use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use kern::wire::netns::Namespace;
use kern::wire::source::Phase;
use results::{Document, Id, Mark, Panel, Relation, Role, Scale, Verdict, stats};

use crate::arm::{self, Arm, Host};
use crate::experiment::{Experiment, Simulated};
use crate::options::Options;
use crate::plan::{self, Progress, Runner, result_of};
use crate::probe::Probe;
use crate::program::Leashed;
use crate::rig::{Rig, Wiring};
use crate::takes::Choice;
use crate::trial::{Bench, Cast, Scene};
use crate::{Error, Result};

/// The experiment `no-harm`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "no-harm",
    about: "TCP both ways, nginx and request/response through a guarded interface without overload, against stock",
    takes: "about 8 minutes, --quick 1",
    choices: &[Choice::Duration, Choice::Pairs, Choice::Guard, Choice::Seed],
    arms: |_| Vec::new(),
    run,
    simulated_by: Simulated::No { lacks: "TCP on a host of today", nearest: "modern-burst" },
};

/// What the lab takes from Debian's packages, with the places where it may be.
const PROGRAMS: [(&str, [&str; 2]); 3] = [
    ("iperf3", ["/usr/bin/iperf3", "/usr/local/bin/iperf3"]),
    ("nginx", ["/usr/sbin/nginx", "/usr/local/sbin/nginx"]),
    ("wrk", ["/usr/bin/wrk", "/usr/local/bin/wrk"]),
];
/// Throughput of weir / stock.
const RATIO_MIN: f64 = 0.97;
/// The guard's flush timeout: the longest that request/response may wait more than on stock, us.
const FLUSH_US: f64 = 5000.0;
const IPERF_PORT: &str = "5201";
const CONNECTIONS: &str = "16";
/// Bytes of the page that the web server sends.
const PAGE: usize = 4096;
const WORKLOADS: [&str; 3] = ["tcp in, Gbit/s", "tcp out, Gbit/s", "nginx, k req/s"];
/// A flood that has the source taken over before request/response is measured in poll mode.
const FLOOD: (f64, Duration) = (1.5e6, Duration::from_millis(300));

/// How the interface is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// As a container's: the peer sends large segments past the NAPI.
    Veth,
    /// As a NIC's: packets as large as the MTU come through the NAPI on the host CPU.
    Nic,
}

impl Way {
    const ALL: [Way; 2] = [Way::Veth, Way::Nic];

    fn name(self) -> &'static str {
        match self {
            Way::Veth => "veth",
            Way::Nic => "as a NIC",
        }
    }

    fn wiring(self) -> Wiring {
        match self {
            Way::Veth => Wiring::Plain,
            Way::Nic => Wiring::Timer,
        }
    }
}

/// The arms; the last shows why XDP waits for the takeover, and is judged by nothing: a quick run does without.
fn arms(options: &Options) -> Vec<Arm> {
    let mut weir = arm::all(options.reserve).into_iter().find(|a| a.role == Role::Weir);
    if let Some(Arm { host: Host::Guard(own), .. }) = &mut weir {
        own.extend(options.guard.iter().cloned());
    }
    let plain = |name: &str, role, note: Option<&str>, host| Arm {
        name: name.into(),
        role,
        note: note.map(str::to_string),
        wiring: Wiring::Plain,
        host,
        slow_output: false,
        unscreened: false,
        rcvbuf: None,
    };
    let mut arms = vec![plain("stock", Role::Stock, None, Host::Plain)];
    arms.extend(weir);
    if !options.quick {
        let note = "a native XDP program that passes everything, attached from the start";
        arms.push(plain("xdp-pass", Role::Shown, Some(note), Host::Limit(1e9)));
    }
    arms
}

/// Where the programs are.
struct Programs {
    iperf3: PathBuf,
    nginx: PathBuf,
    wrk: PathBuf,
}

impl Programs {
    fn locate() -> Result<Programs> {
        let find = |n: usize| {
            let (name, places) = PROGRAMS[n];
            places.iter().map(PathBuf::from).find(|p| p.is_file()).ok_or_else(|| {
                Error::Missing(format!("program {name} not found; apt-get install iperf3 nginx wrk"))
            })
        };
        Ok(Programs { iperf3: find(0)?, nginx: find(1)?, wrk: find(2)? })
    }
}

/// Runs the experiment.
///
/// # Errors
/// If a program is missing or nothing could be measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    options.check()?;
    let programs = Programs::locate()?;
    let mut runner = Runner::new(options, progress)?;
    if runner.bench.weir.is_none() {
        return Err(Error::Missing("arm weir needs the program weir beside this one; build it".into()));
    }
    let arms = arms(options);
    let pairs = options.pairs.unwrap_or(if options.quick { 3 } else { 9 });
    let seconds = if options.quick { 1 } else { 2 };
    runner.total = u64::from(pairs) * (arms.len() * Way::ALL.len()) as u64 + u64::from(pairs) * 2;
    let mut taken =
        vec![[const { [const { Vec::<f64>::new() }; WORKLOADS.len()] }; Way::ALL.len()]; arms.len()];
    let mut switches = 0;
    for round in 0..pairs {
        for (w, way) in Way::ALL.into_iter().enumerate() {
            for a in crate::livelock::order(arms.len(), options.seed, u64::from(round)) {
                runner.say(&format!("{} at round {}, {}", arms[a].name, round + 1, way.name()));
                let (values, seen) = throughput(&runner.bench, &programs, &arms[a], way, seconds)?;
                taken[a][w].iter_mut().zip(values).for_each(|(all, value)| all.push(value));
                switches += seen;
                runner.step();
            }
        }
    }
    let mut waits = [const { Vec::<f64>::new() }; 2];
    for round in 0..pairs {
        for polled in [false, true] {
            runner.say(&format!("request/response at round {}", round + 1));
            waits[usize::from(polled)].push(request_response(&runner.bench, &arms[1], polled, options)?);
            runner.step();
        }
    }
    let mut document = runner.document(EXPERIMENT.name)?;
    document.arms = arms.iter().map(|arm| result_of(arm, options.reserve)).collect();
    let mut claims = Vec::new();
    for (w, way) in Way::ALL.into_iter().enumerate() {
        let mut panel = Panel {
            title: format!("throughput, {}", way.name()),
            x: Scale::named("workload", &WORKLOADS),
            y: Scale::of("Gbit/s and k requests/s", 2, false),
            ..Panel::default()
        };
        for (a, arm) in arms.iter().enumerate() {
            for (n, all) in taken[a][w].iter().enumerate() {
                panel.add(&arm.name, Mark::of(n as f64, all));
                if arm.role == Role::Weir {
                    claims.push(ratio(&format!("{}, {}", WORKLOADS[n], way.name()), all, &taken[0][w][n]));
                }
            }
        }
        document.panels.push(panel);
    }
    let mut panel = Panel {
        title: "p99 of TCP request/response".into(),
        x: Scale::named("", &["p99"]),
        y: Scale::of("us", 0, false),
        ..Panel::default()
    };
    for (name, all) in ["stock", "weir in poll mode"].iter().zip(&waits) {
        panel.add(name, Mark::of(0.0, all));
    }
    document.panels.push(panel);
    document.parameters.insert("pairs".into(), pairs.into());
    document.parameters.insert("mode_switches_below_overload".into(), switches.into());
    runner.finish(&mut document, &[], false);
    let more = stats::median(&waits[1]).zip(stats::median(&waits[0])).map(|(weir, stock)| weir - stock);
    claims.push(Verdict {
        unit: "us".into(),
        digits: 0,
        ..plan::claim("harm", "p99 of request/response in poll mode, more than stock", more, FLUSH_US)
    });
    document.verdict.retain(|v| v.id != Id::Ledger.name());
    document.verdict.extend(claims);
    Ok(document)
}

/// Medians of weir and of stock, as a claim.
fn ratio(what: &str, weir: &[f64], stock: &[f64]) -> Verdict {
    let value = stats::median(weir).zip(stats::median(stock)).filter(|(_, s)| *s > 0.0).map(|(w, s)| w / s);
    let claim = plan::claim("harm", &format!("{what}: weir / stock"), value, RATIO_MIN);
    Verdict { relation: Relation::AtLeast, holds: value.is_some_and(|v| v >= RATIO_MIN), ..claim }
}

/// One value per workload, and how often weir changed the mode meanwhile.
fn throughput(
    bench: &Bench,
    programs: &Programs,
    arm: &Arm,
    way: Way,
    seconds: u32,
) -> Result<([f64; WORKLOADS.len()], u64)> {
    let arm = Arm { wiring: way.wiring(), ..arm.clone() };
    bench.stage(&arm, &Scene::default(), |rig, _, _| {
        rig.reach(way == Way::Nic)?;
        bench.wire.look_for_edges(1, 0)?;
        let tcp = |reverse| iperf(bench, programs, rig, seconds, reverse);
        let values = [tcp(false)?, tcp(true)?, web(bench, programs, rig, seconds)?];
        Ok((values, bench.wire.edges()?.takeovers))
    })
}

pub(crate) fn child(
    bench: &Bench,
    path: &Path,
    args: &[String],
    ns: &Namespace,
    cpu: usize,
) -> Result<Leashed> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut command = Command::new(path);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    bench.interrupt.check()?;
    Leashed::start(&name, command, ns, cpu)
}

/// What a client prints until it ends.
pub(crate) fn output(mut client: Leashed, name: &str, seconds: u32) -> Result<String> {
    let mut out = client.child.stdout.take().ok_or_else(|| Error::program(name, "no pipe"))?;
    let (sender, text) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        // What it printed before an error is what there is.
        let _ = out.read_to_string(&mut text);
        let _ = sender.send(text);
    });
    let patience = Duration::from_secs(u64::from(seconds) + 10);
    text.recv_timeout(patience).map_err(|_| Error::program(name, format!("does not end in {patience:?}")))
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

/// Gbit/s that arrive; `reverse`: from the host.
fn iperf(bench: &Bench, programs: &Programs, rig: &Rig<'_>, seconds: u32, reverse: bool) -> Result<f64> {
    let address = rig.inputs[0].address;
    let args = words(&format!("-s -1 -p {IPERF_PORT} -B {address}"));
    let server = child(bench, &programs.iperf3, &args, &rig.host, bench.cpus.host)?;
    listens(&rig.host, IPERF_PORT, bench)?;
    let back = if reverse { "-R" } else { "" };
    let args = words(&format!("-c {address} -p {IPERF_PORT} -t {seconds} --connect-timeout 3000 -J {back}"));
    let client = child(bench, &programs.iperf3, &args, &rig.wire_side, bench.cpus.wire)?;
    let text = output(client, "iperf3", seconds)?;
    drop(server);
    let answer: serde_json::Value = serde_json::from_str(&text).map_err(|e| Error::program("iperf3", e))?;
    let rate = answer["end"]["sum_received"]["bits_per_second"].as_f64();
    let rate = rate.ok_or_else(|| Error::program("iperf3", format!("no result: {}", answer["error"])))?;
    Ok(rate / 1e9)
}

/// Waits until something listens on a TCP port of the host.
pub(crate) fn listens(ns: &Namespace, port: &str, bench: &Bench) -> Result<()> {
    let hex = format!(":{:04X}", port.parse::<u16>().unwrap_or(0));
    for _ in 0..300 {
        let table =
            ns.run(|| Ok(std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap_or_default()))?;
        let mut rows = table.lines().filter_map(|row| {
            let mut columns = row.split_whitespace().skip(1);
            Some((columns.next()?.to_string(), columns.nth(1)?.to_string()))
        });
        // 0A is LISTEN.
        if rows.any(|(local, state)| local.ends_with(&hex) && state == "0A") {
            return Ok(());
        }
        bench.interrupt.sleep(Duration::from_millis(10))?;
    }
    Err(Error::program("server", format!("does not listen on port {port}")))
}

/// Files of one web server; gone when dropped.
struct Site(PathBuf);

impl Site {
    fn make(rig: &Rig<'_>) -> std::io::Result<Site> {
        let site = Site(PathBuf::from(format!("/run/{}-nginx", rig.host.name())));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&site.0)?;
        let d = site.0.display();
        let address = rig.inputs[0].address;
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|what| format!(" {what}_temp_path {d}/{what};\n"))
            .collect();
        let conf = format!(
            "daemon off;\nuser root;\nworker_processes 1;\npid {d}/nginx.pid;\nerror_log {d}/error.log;\n\
             events {{ worker_connections 256; }}\n\
             http {{\n access_log off;\n keepalive_requests 10000000;\n{paths} \
             server {{ listen {address}:80; root {d}; }}\n}}\n"
        );
        std::fs::write(site.0.join("nginx.conf"), conf)?;
        std::fs::write(site.0.join("page"), vec![b'x'; PAGE])?;
        Ok(site)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // What is left is a few small files below /run.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Thousand requests/s that a web server with one worker answers.
fn web(bench: &Bench, programs: &Programs, rig: &Rig<'_>, seconds: u32) -> Result<f64> {
    let site = Site::make(rig).map_err(|e| Error::program("nginx", e))?;
    let d = site.0.display();
    let args = words(&format!("-p {d} -e {d}/error.log -c {d}/nginx.conf"));
    let server = child(bench, &programs.nginx, &args, &rig.host, bench.cpus.host)?;
    listens(&rig.host, "80", bench)?;
    let address = rig.inputs[0].address;
    let args = words(&format!("-t 1 -c {CONNECTIONS} -d {seconds}s http://{address}/page"));
    let client = child(bench, &programs.wrk, &args, &rig.wire_side, bench.cpus.wire)?;
    let text = output(client, "wrk", seconds)?;
    drop(server);
    requests(&text).map(|rate| rate / 1000.0).ok_or_else(|| Error::program("wrk", "no result"))
}

fn requests(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"))?.trim().parse().ok()
}

/// p99 of request/response over TCP in us, without other load: of stock, or with the source held in poll mode.
fn request_response(bench: &Bench, weir: &Arm, polled: bool, options: &Options) -> Result<f64> {
    let mut arm = Arm { wiring: Wiring::Timer, ..weir.clone() };
    match &mut arm.host {
        Host::Guard(own) if polled => own.extend(["--ablate".into(), "release".into()]),
        host => *host = Host::Plain,
    }
    bench.stage(&arm, &Scene::default(), |rig, cast, _| {
        rig.reach(true)?;
        flood(bench, rig)?;
        let mut probe = Probe::start(bench, rig, &["--tcp"])?;
        if polled {
            is_polled(cast)?;
        }
        bench.interrupt.sleep(Duration::from_millis(100))?;
        probe.reset()?;
        bench.interrupt.sleep(options.window().max(Duration::from_secs(1)))?;
        Ok(probe.report()?.tcp.p99_us)
    })
}

/// Has the source taken over.
pub fn flood(bench: &Bench, rig: &Rig<'_>) -> Result<()> {
    let phase = Phase { duration: FLOOD.1, rate: Some(FLOOD.0) };
    let target = bench.consumer.kind.target(&rig.inputs[0], 1);
    let load = rig.load(vec![phase], crate::trial::burst(Some(FLOOD.0)), target);
    bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?.wait()?;
    Ok(())
}

/// # Errors
/// If the guard does not poll its source now.
pub fn is_polled(cast: &Cast) -> Result<()> {
    let answer = cast.guard.as_ref().and_then(crate::guard::Guard::ask).unwrap_or_default();
    let source = &answer["interfaces"][0]["sources"][0];
    match source["mode"].as_str() {
        Some("poll") => Ok(()),
        _ => Err(Error::program("weir guard", format!("its source is not polled: {}", source["reason"]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_compared_and_a_loss_of_more_than_three_percent_falls_short() {
        let good = ratio("x", &[9.0, 9.8, 20.0], &[10.0, 10.0, 1.0]);
        assert!(good.holds && good.value.is_some_and(|v| (v - 0.98).abs() < 1e-9), "{good:?}");
        assert!(!ratio("x", &[9.6], &[10.0]).holds);
        assert!(!ratio("x", &[], &[10.0]).holds, "nothing measured");
    }

    #[test]
    fn a_result_is_read_from_what_wrk_prints() {
        let text = "Running 1s test\n  Latency   1.00ms\nRequests/sec:  12345.67\nTransfer/sec: 1MB\n";
        assert_eq!(requests(text), Some(12_345.67));
        assert_eq!(requests("unable to connect"), None);
    }

    #[test]
    fn stock_comes_first_and_weir_second() {
        let names = |quick| -> Vec<String> {
            let options = Options { quick, ..Options::default() };
            arms(&options).into_iter().map(|a| a.name).collect()
        };
        assert_eq!(names(false), ["stock", "weir", "xdp-pass"]);
        assert_eq!(names(true), ["stock", "weir"]);
    }
}
