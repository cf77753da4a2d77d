//! The program that reads the packets: the lab's own server, or one from Debian's packages.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kern::wire::counters;
use kern::wire::netns::Namespace;
use kern::wire::source::{Payload, SinkCounts, Target, Wire};
use kern::wire::{link::End, source, tasks};
use results::LatencyUs;
use serde_json::Value;

use crate::program::{Leashed, Program, locate};
use crate::rig::{Cpus, Input, PHANTOM, Rig};
use crate::{Error, Result, frame};

/// Payload of a packet in bytes: with it a frame has 60, the least on Ethernet.
const PAYLOAD: usize = 18;
/// Port of the sink.
const SINK_PORT: u16 = 9000;
/// Name that queries ask for.
const NAME: &str = "q.weir.test";
const NSD_START: Duration = Duration::from_secs(5);

/// Which program reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// `udp-sink`: reads, works a fixed amount, and knows what it read.
    #[default]
    Sink,
    /// `nsd`, an authoritative name server; goodput is its answers.
    Nsd,
    /// `screen`: the kernel asks it about each packet that it would forward.
    Screen,
    /// No program: the kernel forwards to another interface, and goodput is what arrives at its far end.
    Forward,
}

impl Kind {
    /// The kind of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        match name {
            "udp-sink" => Some(Kind::Sink),
            "nsd" => Some(Kind::Nsd),
            _ => None,
        }
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Kind::Sink => SINK_PORT,
            Kind::Nsd => 53,
            // Discard, at a host that is not there.
            Kind::Forward | Kind::Screen => 9,
        }
    }

    /// True if the host passes packets on.
    #[must_use]
    pub fn forwards(self) -> bool {
        matches!(self, Kind::Forward | Kind::Screen)
    }

    /// What the wire sends to it on `input`, from `flows` source ports.
    #[must_use]
    pub fn target(self, input: &Input, flows: u32) -> Target {
        self.sized(input, flows, PAYLOAD, 0)
    }

    /// The same with `bytes` of payload, 16 at least, and to the port `socket` above its own.
    fn sized(self, input: &Input, flows: u32, bytes: usize, socket: u8) -> Target {
        let (payload, content) = match self {
            Kind::Sink | Kind::Forward | Kind::Screen => (Payload::Stamp, vec![0; bytes.max(16)]),
            Kind::Nsd => (Payload::Dns, frame::dns_query(NAME)),
        };
        let End { mac, .. } = &input.near;
        let address = if self.forwards() { PHANTOM } else { input.address };
        let ends = ((input.peer, 10_000), (address, self.port() + u16::from(socket)));
        let frame = frame::udp(*mac, input.far.mac, ends.0, ends.1, &content);
        Target { frame, payload, flows }
    }
}

/// How a consumer is started.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Which one.
    pub kind: Kind,
    /// Its program.
    pub path: PathBuf,
    /// Rounds of work per datagram, for the sink and the screen; rules per packet where the kernel alone forwards.
    pub loops: u64,
    /// Receive buffer of the sink in bytes, as given to SO_RCVBUF; `None` for the system's default.
    pub rcvbuf: Option<u32>,
    /// Frames of a burst: the wait of each burst's first frame is measured by itself; 0: not.
    pub first_of: u32,
    /// Flows to each sink, in turn, whose order is looked at one by one; 0: the order of all packets together.
    pub flows: u32,
    /// UDP payload of each packet in bytes, 16 to 1472; not of queries to a name server.
    pub payload: usize,
    /// Nice value of the thread that reads, of a sink.
    pub nice: i32,
    /// Sinks behind one input, 1 to 8, on ports that follow each other; more than one for a single input only.
    pub sockets: u8,
}

impl Setup {
    /// Finds the program.
    ///
    /// # Errors
    /// If it is not there; for `nsd` the message names the package.
    pub fn locate(kind: Kind, directory: Option<&Path>, rcvbuf: Option<u32>) -> Result<Setup> {
        let path = match kind {
            Kind::Sink => locate("udp-sink", directory)?,
            Kind::Nsd => {
                let places = ["/usr/sbin/nsd", "/usr/local/sbin/nsd", "/usr/bin/nsd"];
                let found = places.iter().map(PathBuf::from).find(|p| p.is_file());
                found.ok_or_else(|| Error::Missing("program nsd not found; apt-get install nsd".into()))?
            }
            Kind::Screen => locate("screen", directory)?,
            Kind::Forward => PathBuf::new(),
        };
        Ok(Setup {
            kind,
            path,
            loops: 0,
            rcvbuf,
            first_of: 0,
            flows: 0,
            payload: PAYLOAD,
            nice: 0,
            sockets: 1,
        })
    }

    /// What the wire sends on `input` to each of its sockets in turn.
    #[must_use]
    pub fn targets(&self, input: &Input) -> Vec<Target> {
        (0..self.sockets.max(1)).map(|socket| self.kind.sized(input, 1, self.payload, socket)).collect()
    }

    /// Rules that a forwarding host applies to each packet in the kernel.
    pub(crate) fn rules(&self) -> u32 {
        if self.kind == Kind::Forward { u32::try_from(self.loops).unwrap_or(u32::MAX) } else { 0 }
    }

    /// Rounds of work of the sink that take `time` on `cpu`: measured once, so that all trials do the same work.
    ///
    /// # Errors
    /// If the sink does not say.
    pub fn calibrate(&mut self, cpu: usize, time: Duration) -> Result<()> {
        if let Kind::Sink | Kind::Screen = self.kind {
            let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let output = Command::new(&self.path).args(["--calibrate", "--cpu", &cpu.to_string()]).output();
            let output = output.map_err(|e| Error::program(&name, e))?;
            let answer: Value =
                serde_json::from_slice(&output.stdout).map_err(|e| Error::program(&name, e))?;
            self.loops = answer["loops_per_ms"].as_u64().unwrap_or(0) * time.as_nanos() as u64 / 1_000_000;
        }
        Ok(())
    }
}

/// What a consumer says about a window.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Length of the window, by the consumer's own clock readings.
    pub window_ns: u64,
    /// Datagrams served in it.
    pub served: u64,
    /// CPU time in it, with the softirq work that interrupted it.
    pub cpu_ns: u64,
    /// From departure until read; absent if it cannot be known.
    pub latency: Option<LatencyUs>,
    /// The same of each burst's first frame, if that was asked for.
    pub first: Option<LatencyUs>,
    /// Datagrams read since its start.
    pub total: u64,
    /// Datagrams of the window whose number is below that of one before, of their flow if flows are told apart; only a sink
    /// tells.
    pub out_of_order: u64,
    /// Datagrams dropped at its socket since its start.
    pub drops: u64,
    /// Memory charged for what waits in its socket.
    pub queued_bytes: u64,
}

/// A running consumer.
#[derive(Debug)]
pub enum Consumer {
    /// udp-sink.
    Sink(Program),
    /// nsd.
    Nsd(Box<Nsd>),
    /// screen, and the far end of the host's output.
    Screen(Program, Box<Passed>),
    /// The far end of the host's output.
    Forward(Box<Passed>),
}

/// What a forwarding host has sent on since a window began.
#[derive(Debug, Default)]
pub struct Passed {
    /// Before the trial.
    before: u64,
    from: Option<(Instant, SinkCounts)>,
}

impl Passed {
    fn new(rig: &Rig<'_>) -> Result<Box<Passed>> {
        Ok(Box::new(Passed { before: rig.wire.sink()?.packets, from: None }))
    }

    fn reset(&mut self, rig: &Rig<'_>) -> Result<()> {
        self.from = Some((Instant::now(), rig.wire.sink()?));
        Ok(())
    }

    fn report(&self, rig: &Rig<'_>) -> Result<Report> {
        let (at, now) = (Instant::now(), rig.wire.sink()?);
        let mut report = Report { total: now.packets - self.before, ..Report::default() };
        if let Some((from, before)) = &self.from {
            let window = now.since(before);
            let us = |q| window.quantile_ns(q).map(|ns| ns as f64 / 1000.0);
            report.window_ns = (at - *from).as_nanos() as u64;
            report.served = window.packets;
            report.latency =
                us(0.5).zip(us(0.99)).zip(us(0.999)).map(|((p50, p99), p999)| LatencyUs { p50, p99, p999 });
        }
        Ok(report)
    }
}

impl Consumer {
    /// Starts it on the host CPU, listening on the address of `input`, for a sink `socket` ports above the first.
    ///
    /// # Errors
    /// If it does not start, and for a second nsd: its answers are counted by device, its datagrams by namespace.
    pub fn start(setup: &Setup, rig: &Rig<'_>, input: usize, socket: u8, series: bool) -> Result<Consumer> {
        if setup.kind != Kind::Sink && (input > 0 || socket > 0) {
            return Err(Error::Usage("one server at a time; only udp-sink serves several inputs".into()));
        }
        let input = &rig.inputs[input];
        match setup.kind {
            Kind::Sink => {
                let mut args = pinned(rig.cpus);
                args.extend([
                    "--bind".into(),
                    format!("{}:{}", input.address, SINK_PORT + u16::from(socket)),
                ]);
                args.extend(["--work-loops".into(), setup.loops.to_string()]);
                args.extend(setup.rcvbuf.iter().flat_map(|b| ["--rcvbuf".into(), b.to_string()]));
                args.extend(series.then(|| "--series".into()));
                if setup.first_of > 0 {
                    args.extend(["--first-of".into(), setup.first_of.to_string()]);
                }
                if setup.flows > 0 {
                    args.extend(["--flows".into(), setup.flows.to_string()]);
                }
                let sink = Program::start(&setup.path, &rig.host, &args)?;
                if setup.nice != 0 {
                    tasks::schedule(sink.id() as i32, tasks::Policy::Other(setup.nice))?;
                }
                Ok(Consumer::Sink(sink))
            }
            Kind::Nsd => Ok(Consumer::Nsd(Box::new(Nsd::start(&setup.path, rig)?))),
            Kind::Screen => {
                let mut args = pinned(rig.cpus);
                args.extend(["--work-loops".into(), setup.loops.to_string()]);
                let program = Program::start(&setup.path, &rig.host, &args)?;
                // Before the queue has a reader the rule would drop.
                rig.ask_screen()?;
                Ok(Consumer::Screen(program, Passed::new(rig)?))
            }
            Kind::Forward => Ok(Consumer::Forward(Passed::new(rig)?)),
        }
    }

    /// Process ids whose CPU time is its own.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        match self {
            Consumer::Sink(sink) => vec![sink.id()],
            Consumer::Nsd(nsd) => nsd.pids.clone(),
            Consumer::Screen(program, _) => vec![program.id()],
            Consumer::Forward(_) => Vec::new(),
        }
    }

    /// Starts a window.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn reset(&mut self, rig: &Rig<'_>) -> Result<()> {
        match self {
            Consumer::Sink(sink) => sink.ask("reset").map(drop),
            Consumer::Nsd(nsd) => nsd.mark(rig).map(|mark| nsd.from = mark),
            Consumer::Screen(program, passed) => {
                program.ask("reset")?;
                passed.reset(rig)
            }
            Consumer::Forward(passed) => passed.reset(rig),
        }
    }

    /// Reports on the window so far.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn report(&mut self, rig: &Rig<'_>) -> Result<Report> {
        match self {
            Consumer::Sink(sink) => Ok(sink_report(&sink.ask("report")?)),
            Consumer::Nsd(nsd) => nsd.report(rig),
            Consumer::Screen(program, passed) => {
                let answer = program.ask("report")?;
                let (cpu_ns, window_ns) = (answer["cpu_ns"].as_u64(), answer["window_ns"].as_u64());
                let mut report = passed.report(rig)?;
                // Its CPU time is of its own window, which is all but the same.
                let scale = report.window_ns as f64 / window_ns.unwrap_or(0).max(1) as f64;
                report.cpu_ns = (cpu_ns.unwrap_or(0) as f64 * scale) as u64;
                report.queued_bytes = rig.screen_queue()?.waiting;
                Ok(report)
            }
            Consumer::Forward(passed) => passed.report(rig),
        }
    }

    /// Datagrams read per millisecond and CLOCK_MONOTONIC of the first; only for a sink started with `series`.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn series(&mut self) -> Result<(u64, Vec<u64>)> {
        let Consumer::Sink(sink) = self else { return Ok((0, Vec::new())) };
        let answer = sink.ask("series")?;
        let per_ms = answer["per_ms"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        Ok((answer["first_ns"].as_u64().unwrap_or(0), per_ms))
    }
}

/// What several consumers say together; waits are those of the first.
#[must_use]
pub fn together(reports: &[Report]) -> Report {
    let Some(first) = reports.first() else { return Report::default() };
    // Each has a window of its own, all but the same.
    let scaled = |n: u64, r: &Report| (n as f64 * first.window_ns as f64 / r.window_ns.max(1) as f64) as u64;
    Report {
        served: reports.iter().map(|r| scaled(r.served, r)).sum(),
        cpu_ns: reports.iter().map(|r| scaled(r.cpu_ns, r)).sum(),
        total: reports.iter().map(|r| r.total).sum(),
        drops: reports.iter().map(|r| r.drops).sum(),
        queued_bytes: reports.iter().map(|r| r.queued_bytes).sum(),
        ..first.clone()
    }
}

/// Arguments that put a program on the host CPU and what answers for it on the wire CPU.
pub fn pinned(cpus: Cpus) -> Vec<String> {
    vec!["--cpu".into(), cpus.host.to_string(), "--control-cpu".into(), cpus.wire.to_string()]
}

fn sink_report(answer: &Value) -> Report {
    let n = |name: &str| answer[name].as_u64().unwrap_or(0);
    let us = |name: &str| answer["latency_us"][name].as_f64().unwrap_or(0.0);
    let first = |name: &str| answer["first_us"][name].as_f64().unwrap_or(0.0);
    Report {
        window_ns: n("window_ns"),
        served: n("received"),
        cpu_ns: n("cpu_ns"),
        latency: (n("latency_count") > 0).then(|| LatencyUs {
            p50: us("p50"),
            p99: us("p99"),
            p999: us("p999"),
        }),
        first: (n("first_count") > 0).then(|| LatencyUs {
            p50: first("p50"),
            p99: first("p99"),
            p999: first("p999"),
        }),
        total: n("total_received"),
        out_of_order: n("out_of_order"),
        drops: n("drops"),
        queued_bytes: n("queued_bytes"),
    }
}

/// nsd serving one tiny zone; its answers are counted and taken off where they leave the host.
#[derive(Debug)]
pub struct Nsd {
    leashed: Leashed,
    pids: Vec<u32>,
    directory: PathBuf,
    from: Mark,
    first_reply: u64,
    _replies: source::Attached,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    replies: u64,
    cpu_ns: u64,
}

impl Nsd {
    fn start(path: &Path, rig: &Rig<'_>) -> Result<Nsd> {
        let directory = PathBuf::from(format!("/run/{}-nsd", rig.host.name()));
        configure(&directory, rig.inputs[0].address)
            .map_err(|e| Error::program("nsd", format!("{}: {e}", directory.display())))?;
        let replies = rig.wire.attach_replies(&rig.host, rig.inputs[0].far.index)?;
        let mut command = Command::new(path);
        command.arg("-d").arg("-c").arg(directory.join("nsd.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let leashed = Leashed::start("nsd", command, &rig.host, rig.cpus.host)?;
        let from = Mark { at: Instant::now(), replies: 0, cpu_ns: 0 };
        let mut nsd = Nsd { leashed, pids: Vec::new(), directory, from, first_reply: 0, _replies: replies };
        let end = Instant::now() + NSD_START;
        // It forks its server after the socket is bound; both must be there.
        while nsd.pids.len() < 3 || rig.host.run(|| counters::udp_socket(53))?.is_none() {
            if Instant::now() > end || !matches!(nsd.leashed.child.try_wait(), Ok(None)) {
                return Err(Error::program("nsd", "does not listen"));
            }
            std::thread::sleep(Duration::from_millis(10));
            nsd.pids = tasks::family(nsd.leashed.child.id() as i32)?.iter().map(|p| *p as u32).collect();
        }
        nsd.from = nsd.mark(rig)?;
        nsd.first_reply = nsd.from.replies;
        Ok(nsd)
    }

    fn mark(&self, rig: &Rig<'_>) -> Result<Mark> {
        let mut cpu_ns = 0;
        for pid in &self.pids {
            cpu_ns += tasks::process_cpu_ns(*pid as i32)?;
        }
        Ok(Mark { at: Instant::now(), replies: rig.wire.replies()?, cpu_ns })
    }

    fn report(&self, rig: &Rig<'_>) -> Result<Report> {
        let now = self.mark(rig)?;
        let socket = rig.host.run(|| counters::udp_socket(53))?;
        let socket = socket.ok_or_else(|| Error::program("nsd", "closed its socket"))?;
        Ok(Report {
            window_ns: (now.at - self.from.at).as_nanos() as u64,
            served: now.replies - self.from.replies,
            cpu_ns: now.cpu_ns - self.from.cpu_ns,
            latency: None,
            first: None,
            out_of_order: 0,
            // One answer leaves for each query that is read; the UDP layer's count of reads holds weir's handle too.
            total: now.replies - self.first_reply,
            drops: socket.drops,
            queued_bytes: socket.queued_bytes,
        })
    }
}

pub(crate) fn configure(directory: &Path, address: Ipv4Addr) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let d = directory.display();
    let conf = format!(
        "server:\n server-count: 1\n ip-address: {address}\n port: 53\n username: \"\"\n chroot: \"\"\n \
         zonesdir: \"{d}\"\n pidfile: \"{d}/nsd.pid\"\n xfrdfile: \"{d}/xfrd.state\"\n \
         xfrdir: \"{d}\"\n zonelistfile: \"{d}/zone.list\"\n database: \"\"\n logfile: \"{d}/nsd.log\"\n \
         hide-version: yes\n rrl-ratelimit: 0\n\
         remote-control:\n control-enable: no\n\
         zone:\n name: \"weir.test\"\n zonefile: \"weir.test.zone\"\n"
    );
    let zone = format!(
        "$ORIGIN weir.test.\n$TTL 3600\n@ IN SOA ns root 1 3600 600 86400 3600\n@ IN NS ns\nns IN A {address}\n\
         q IN A 192.0.2.1\n"
    );
    fs::write(directory.join("nsd.conf"), conf)?;
    fs::write(directory.join("weir.test.zone"), zone)
}

impl Drop for Nsd {
    fn drop(&mut self) {
        // It ends its children itself.
        self.leashed.stop(Duration::from_secs(2));
        // What is left is a few small files below /run.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Watches a consumer's processes.
///
/// # Errors
/// If there are more than the meters can watch.
pub fn watch(wire: &Wire, consumer: &Consumer) -> Result<()> {
    for pid in consumer.ids() {
        wire.watch(pid, source::Class::Consumer)?;
    }
    Ok(())
}

/// Waits until everything that was sent is read or lost, and answers the last report of each consumer. Programs that
/// compete for the host CPU must have ended: they can keep a ring from being emptied for as long as they like.
///
/// # Errors
/// If a consumer does not answer.
pub fn drain(
    consumers: &mut [Consumer],
    rig: &Rig<'_>,
    sleep: impl Fn(Duration) -> Result<()>,
) -> Result<Vec<Report>> {
    /// Queues count as drained when nothing has moved for this long: longer than any flush timeout.
    const QUIET: Duration = Duration::from_millis(30);
    const LONGEST: Duration = Duration::from_secs(5);
    let end = Instant::now() + LONGEST;
    let mut last = (u64::MAX, Instant::now());
    loop {
        let reports = consumers.iter_mut().map(|c| c.report(rig)).collect::<Result<Vec<_>>>()?;
        let total = reports.iter().map(|r| r.total).sum();
        // A ring can stand still for long if what empties it has the lowest priority.
        if total != last.0 || rig.in_rings()? > 0 {
            last = (total, Instant::now());
        }
        // The kernel takes read datagrams off the queue's size late, so a rest without movement is no queue.
        let empty = reports.iter().all(|r| r.queued_bytes == 0);
        let quiet = last.1.elapsed() > if empty { QUIET } else { QUIET * 4 };
        if quiet || Instant::now() > end {
            return Ok(reports);
        }
        sleep(Duration::from_millis(3))?;
    }
}

/// Starts `count` hogs on the host CPU.
///
/// # Errors
/// If one does not start.
pub fn hogs(path: &Path, ns: &Namespace, cpus: Cpus, count: u32) -> Result<Vec<Program>> {
    (0..count).map(|_| Program::start(path, ns, &pinned(cpus))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_with_windows_of_their_own_are_added_up() {
        let report = |window_ns, served, drops| Report { window_ns, served, drops, ..Report::default() };
        let sum = together(&[report(1000, 10, 1), report(500, 10, 2)]);
        assert_eq!((sum.window_ns, sum.served, sum.drops), (1000, 30, 3));
        assert_eq!(together(&[]).served, 0);
    }
}
