//! The programs of a world as child processes. Each is ended, by its process id, when its value is dropped.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kern::wire::netns::Namespace;
use kern::wire::source::Running;
use kern::wire::tasks;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::world::{World, bind_to};
use super::{HOST_CPU, PATIENCE, WIRE_CPU, ms, within};

/// A program that does not answer in this time is broken; the wire's CPU is shared with the load.
const ANSWER: Duration = Duration::from_secs(10);

/// Sends a signal to a process of this test.
pub fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).unwrap_or_else(|e| panic!("{signal} to {pid}: {e}"));
}

/// What a sink says about a window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Datagrams read per second.
    pub pps: f64,
    /// Median latency, us.
    pub p50: f64,
    /// 99th percentile, us.
    pub p99: f64,
    /// Largest, us.
    pub max: f64,
    /// Datagrams read in it.
    pub received: u64,
    /// Datagrams read since the sink's start.
    pub total: u64,
    /// Sequence numbers below the highest that came in the window, and did not come themselves.
    pub missing: u64,
    /// Frames sent meanwhile. Only where the load was given.
    pub sent: u64,
    /// Datagrams read / frames sent; the wire may miss its rate when its CPU is wanted by others. Only
    /// where the load was given.
    pub share: f64,
}

/// udp-sink on the host CPU.
pub struct Sink {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Sink {
    /// Starts one and waits until it listens.
    pub fn start(world: &World, bind: SocketAddrV4) -> Sink {
        Sink::start_in(&world.host, world.loops, bind)
    }

    /// The same in another namespace; `loops` of work per datagram.
    pub fn start_in(ns: &Namespace, loops: u64, bind: SocketAddrV4) -> Sink {
        Sink::start_by(|mut command| ns.run(|| Ok(command.spawn())).unwrap().unwrap(), loops, bind)
    }

    /// The same by `spawn`, which may enter a namespace first.
    pub fn start_by(spawn: impl FnOnce(Command) -> Child, loops: u64, bind: SocketAddrV4) -> Sink {
        Sink::start_with(spawn, loops, bind.into(), Some(524_288))
    }

    /// A program as most are: with the kernel's default receive buffer.
    pub fn start_default(world: &World, bind: SocketAddr) -> Sink {
        let spawn = |mut command: Command| world.host.run(|| Ok(command.spawn())).unwrap().unwrap();
        Sink::start_with(spawn, world.loops, bind, None)
    }

    fn start_with(
        spawn: impl FnOnce(Command) -> Child,
        loops: u64,
        bind: SocketAddr,
        buffer: Option<u32>,
    ) -> Sink {
        let mut command = Command::new(lab::locate("udp-sink", None).unwrap());
        command.args(["--cpu", &HOST_CPU.to_string(), "--control-cpu", &WIRE_CPU.to_string()]);
        command.args(["--work-loops", &loops.to_string()]);
        if let Some(bytes) = buffer {
            command.args(["--rcvbuf", &bytes.to_string()]);
        }
        command.args(["--bind", &bind.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command);
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|l| sender.send(l)));
        let stdin = child.stdin.take().unwrap();
        let sink = Sink { child, stdin, lines };
        assert_eq!(sink.line()["ready"], true);
        sink
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&self) -> Value {
        let line = self.lines.recv_timeout(ANSWER).expect("udp-sink answers");
        serde_json::from_str(&line).unwrap()
    }

    /// Starts a window.
    pub fn reset(&mut self) {
        writeln!(self.stdin, "reset").unwrap();
        self.line();
    }

    /// The window so far.
    pub fn report(&mut self) -> Window {
        writeln!(self.stdin, "report").unwrap();
        let answer = self.line();
        let n = |name: &str| answer[name].as_u64().unwrap();
        let us = |name: &str| answer["latency_us"][name].as_f64().unwrap();
        Window {
            pps: n("received") as f64 / n("window_ns").max(1) as f64 * 1e9,
            p50: us("p50"),
            p99: us("p99"),
            max: us("max"),
            received: n("received"),
            total: n("total_received"),
            missing: n("missing"),
            sent: 0,
            share: f64::NAN,
        }
    }

    /// A window of `length` from now on.
    pub fn window(&mut self, length: Duration) -> Window {
        self.reset();
        std::thread::sleep(length);
        self.report()
    }

    /// The same under a load that is all for this sink.
    pub fn share(&mut self, load: &Running<'_>, length: Duration) -> Window {
        let sent = || load.progress().unwrap().0;
        self.reset();
        let from = sent();
        std::thread::sleep(length);
        let sent = sent() - from;
        let window = self.report();
        Window { sent, share: window.received as f64 / sent.max(1) as f64, ..window }
    }

    /// Waits until nothing more arrives, at most 3 s; all datagrams read.
    pub fn drained(&mut self) -> u64 {
        let (mut last, mut since) = (self.report().total, Instant::now());
        let end = Instant::now() + ms(3000);
        while since.elapsed() < ms(60) && Instant::now() < end {
            std::thread::sleep(ms(5));
            let total = self.report().total;
            if total != last {
                (last, since) = (total, Instant::now());
            }
        }
        last
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // Also ends one that is stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines of a guard, each with when it was read.
type Lines = Arc<Mutex<VecDeque<(Instant, String)>>>;

/// `weir guard`.
pub struct Guard {
    child: Child,
    lines: Lines,
    status: PathBuf,
    control: String,
    keeper: u32,
}

/// How a guard that did not start said so.
#[derive(Debug)]
pub struct Refused {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output and standard error.
    pub lines: Vec<String>,
}

/// How a program is started, other than by a root that may do everything.
#[derive(Clone, Default)]
pub struct Manner {
    /// Words before the program, such as `setpriv --bounding-set ...`.
    pub prefix: Vec<String>,
    /// More environment.
    pub env: Vec<(String, String)>,
    /// Done between fork and exec: plain system calls only.
    pub before: Option<fn() -> std::io::Result<()>>,
    /// The program, if not the one that was built.
    pub program: Option<PathBuf>,
}

impl Manner {
    /// `weir` in this manner.
    pub fn command(&self) -> Command {
        use std::os::unix::process::CommandExt;
        // WEIR_PROGRAM: another build is judged by these tests.
        let other = std::env::var_os("WEIR_PROGRAM").map(PathBuf::from);
        let weir = self.program.clone().or(other).unwrap_or_else(|| env!("CARGO_BIN_EXE_weir").into());
        let mut command = match self.prefix.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(weir);
                command
            }
            None => Command::new(weir),
        };
        command.envs(self.env.clone()).stdin(Stdio::null());
        if let Some(before) = self.before {
            // SAFETY: by its contract it makes plain system calls only.
            unsafe { command.pre_exec(before) };
        }
        command
    }
}

impl Guard {
    /// Starts `weir guard ARGS` inside the host and waits until it is in force; it may run on both CPUs.
    pub fn start(world: &World, args: &[&str]) -> Guard {
        Guard::try_start(world, args, &[WIRE_CPU, HOST_CPU]).unwrap_or_else(|r| panic!("not in force: {r:?}"))
    }

    /// The same with all threads on `cpus`, except for those that bind themselves.
    pub fn try_start(world: &World, args: &[&str], cpus: &[usize]) -> Result<Guard, Refused> {
        Guard::start_as(world, args, cpus, &Manner::default())
    }

    /// The same in another manner.
    pub fn start_as(world: &World, args: &[&str], cpus: &[usize], manner: &Manner) -> Result<Guard, Refused> {
        static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let status = world.dir.path().join(format!("status-{serial}"));
        let dirs = world.dirs();
        let mut command = manner.command();
        command.arg("guard").args(args).args(&dirs).arg("--status").arg(&status);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawn = || {
            bind_to(cpus);
            Ok(command.spawn())
        };
        let mut child = world.host.run(spawn).unwrap().unwrap();
        let lines = Lines::default();
        // To the end: a guard that blocks on a full pipe would be this test's fault.
        let readers =
            [collect(child.stdout.take().unwrap(), &lines), collect(child.stderr.take().unwrap(), &lines)];
        let control = dirs[1].clone();
        let mut guard = Guard { child, lines, status, control, keeper: 0 };
        let end = Instant::now() + ms(10_000);
        loop {
            if guard.said("weir: guarding").is_some() {
                break;
            }
            if let Some(status) = guard.child.try_wait().unwrap() {
                readers.into_iter().for_each(|r| r.join().unwrap());
                return Err(Refused { code: status.code(), lines: guard.all() });
            }
            assert!(Instant::now() < end, "neither in force nor ended after 10 s: {:?}", guard.all());
            std::thread::sleep(ms(2));
        }
        guard.keeper = tasks::family(guard.pid() as i32).unwrap().get(1).copied().unwrap_or(0) as u32;
        assert!(guard.keeper != 0, "a guard in force has a keeper");
        Ok(guard)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its keeper's.
    pub fn keeper(&self) -> u32 {
        self.keeper
    }

    /// True while it runs.
    pub fn alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Everything it said.
    pub fn all(&self) -> Vec<String> {
        self.lines.lock().unwrap().iter().map(|(_, l)| l.clone()).collect()
    }

    /// The first line with `text` in it.
    pub fn said(&self, text: &str) -> Option<String> {
        self.all().into_iter().find(|l| l.contains(text))
    }

    /// The first line since `then` that has all of `parts`.
    pub fn said_since(&self, then: Instant, parts: &[&str]) -> Option<String> {
        let lines = self.lines.lock().unwrap();
        let fits = |l: &str| parts.iter().all(|p| l.contains(p));
        lines.iter().find(|(at, l)| *at >= then && fits(l)).map(|(_, l)| l.clone())
    }

    /// What `weir status --json` answers now.
    pub fn ask(&self, world: &World) -> Value {
        let (code, out, err) = world.weir(&["status", "--json", &self.control]);
        assert_eq!(code, 0, "weir status: {err}");
        let mine = |v: &Value| v["pid"] == self.pid();
        let found = out.lines().filter_map(|l| serde_json::from_str(l).ok()).find(mine);
        found.unwrap_or_else(|| panic!("no status of {}: {out} {err}", self.pid()))
    }

    /// The status lines so far.
    pub fn status(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.status).unwrap_or_default();
        // The last one may be half written.
        text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
    }

    /// Modes of all its sources now.
    pub fn modes(&self, world: &World) -> Vec<String> {
        sources(&self.ask(world)).iter().map(|s| s["mode"].as_str().unwrap_or("").to_owned()).collect()
    }

    /// SIGTERM, and waits for the end; how it ended and how long that took.
    pub fn stop(mut self) -> (ExitStatus, Duration) {
        let begin = Instant::now();
        signal(self.pid(), Signal::SIGTERM);
        let mut status = None;
        within("the guard's end", ms(2000), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap(), begin.elapsed())
    }

    /// SIGKILL for the guard alone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits until its last thread is gone, and reaps it.
    pub fn gone(&mut self, limit: Duration) {
        within("the guard's last thread is gone", limit, || self.child.try_wait().unwrap().is_some());
    }

    /// SIGKILL for the keeper and the guard, so close together that neither can act.
    pub fn kill_both(&mut self) {
        signal(self.keeper, Signal::SIGKILL);
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let pid = Pid::from_raw(self.child.id() as i32);
        // It may be stopped.
        let _ = kill(pid, Signal::SIGCONT);
        let _ = kill(pid, Signal::SIGTERM);
        let end = Instant::now() + ms(5000);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(ms(5));
        }
        // Its keeper ends by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(from: impl Read + Send + 'static, lines: &Lines) -> std::thread::JoinHandle<()> {
    let lines = Arc::clone(lines);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            lines.lock().unwrap().push_back((Instant::now(), line));
        }
    })
}

/// All sources of a status.
pub fn sources(status: &Value) -> Vec<Value> {
    let interfaces = status["interfaces"].as_array().cloned().unwrap_or_default();
    interfaces.iter().flat_map(|i| i["sources"].as_array().cloned().unwrap_or_default()).collect()
}

/// The state of interface `name` in a status.
pub fn state(status: &Value, name: &str) -> String {
    let interfaces = status["interfaces"].as_array().cloned().unwrap_or_default();
    let found = interfaces.iter().find(|i| i["name"] == name);
    found.and_then(|i| i["state"].as_str()).unwrap_or_default().to_owned()
}

/// Processes of weir in the namespace.
pub fn weirs(ns: &Namespace) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = numbers.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let of_weir = |pid: &u32| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        // A build meanwhile has replaced the file.
        let exe = exe.to_string_lossy();
        let weir = ["/weir", "/weir-guard"].iter().any(|n| exe.trim_end_matches(" (deleted)").ends_with(n));
        let inode = std::fs::metadata(format!("/proc/{pid}/ns/net")).map_or(0, |m| m.ino());
        weir && inode == u64::from(ns.inode())
    };
    pids.filter(of_weir).collect()
}

/// True for a guard that is not a keeper.
pub fn is_guard(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|b| *b == 0);
    words.next().is_some_and(|w| w.ends_with(b"weir-guard")) && words.next() != Some(b"keeper")
}

/// Puts the programs of a guard beside each other in `dir`: those files take the names, as a package manager does it.
pub fn install(dir: &std::path::Path) -> PathBuf {
    for (name, built) in
        [("weir", env!("CARGO_BIN_EXE_weir")), ("weir-guard", env!("CARGO_BIN_EXE_weir-guard"))]
    {
        let new = dir.join(format!("{name}.new"));
        std::fs::copy(built, &new).unwrap();
        std::fs::rename(&new, dir.join(name)).unwrap();
    }
    dir.join("weir")
}

/// Waits until no weir is left in the host; the time it took.
pub fn none_left(world: &World, deadline: Duration) -> Duration {
    within("the last process of weir ends", deadline, || weirs(&world.host).is_empty())
}

/// Asserts a time against its deadline, [`PATIENCE`] times.
pub fn timely(what: &str, took: Duration, deadline: Duration) {
    assert!(took <= deadline * PATIENCE, "{what} took {took:?}, {PATIENCE} x {deadline:?} are allowed");
}

/// A program that computes, until dropped.
pub struct Hog(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Hog {
    /// On this CPU.
    pub fn start(cpu: usize) -> Hog {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            bind_to(&[cpu]);
            while !ends.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        Hog(stop, Some(thread))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        let _ = self.1.take().map(JoinHandle::join);
    }
}
