//! `weir accept` beside servers as they are run: an nginx under load that reloads, loses a worker and gets more of
//! them, servers in several network namespaces, one with many ports, one that chooses itself, and too few rights.
//!
//! Why these cannot flake: what follows by itself is asked for again and again until it is so, and has five times
//! what is promised. That no connection is lost does not depend on who chooses: in a reload, after a worker's death
//! and when a worker is added nginx's master keeps every listener, so that what waits in one is answered by the next
//! worker, under the kernel's hash too. What waits in a listener that is closed is moved where a worker is known to
//! wait for it, which hangs on the moment: those are printed only. A worker is killed only while it has no connection
//! in its hands, and a client waits for longer than a busy machine takes. Every target is checked, before weir
//! attaches to it, to be in a network namespace of the test.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{metadata, read_dir, read_link, read_to_string};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::procs::signal;
use common::world::bind_to;
use common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};
use nix::fcntl::Flock;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use testkit::NetNs;

const CPUS: [usize; 2] = [WIRE_CPU, HOST_CPU];
const PORT: u16 = 8080;
/// Promised: so long after a server has changed weir is attached again, or, killed, does not choose any more.
const SOON: Duration = ms(1000);
/// What a step without a promise may take, a fifth of it.
const STEP: Duration = ms(4000);
/// Connections per second of the load, and the length of one.
const RATE: u64 = 300;
const LOAD_MS: u64 = 1500;
/// A client that has no answer for so long gets none.
const NO_ANSWER: Duration = ms(10_000);

/// False, with a line that says so, if this machine cannot run the test.
fn can(name: &str, program: &str) -> bool {
    if !possible(name) {
        return false;
    }
    let there = find(program).is_some();
    if !there {
        eprintln!("skipped: {name} needs {program}");
    }
    there
}

fn find(program: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(|dir| Path::new(dir).join(program));
    places.into_iter().find(|path| path.is_file())
}

/// Nobody else loads the CPUs; what the test starts may run on both.
fn turn() -> Flock<std::fs::File> {
    let lock = alone();
    bind_to(&CPUS);
    lock
}

fn host(tag: &str) -> NetNs {
    let ns = NetNs::new(tag);
    ns.sh("ip", &["link", "set", "lo", "up"]);
    ns
}

fn inode(ns: &NetNs) -> u64 {
    metadata(ns.path()).unwrap().ino()
}

/// Done when it is dropped.
struct Defer<F: FnMut()>(F);

impl<F: FnMut()> Drop for Defer<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A program that ends with this value, and with the test's thread.
struct Process(Child);

impl Process {
    fn start(ns: &NetNs, command: &mut Command) -> Process {
        let leash = || {
            // SAFETY: a plain system call, in the new process.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
            Ok(())
        };
        // SAFETY: only a system call between fork and exec.
        unsafe { command.pre_exec(leash) };
        // By this thread: that of NetNs::run ends at once.
        let _inside = ns.enter();
        Process(command.spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn children(&self) -> BTreeSet<u32> {
        let family = kern::wire::tasks::family(self.pid() as i32).unwrap();
        family.into_iter().map(|pid| pid as u32).filter(|pid| *pid != self.pid()).collect()
    }

    /// True once it has ended; `limit` is the longest wait for that.
    fn ends(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(ms(5));
        }
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        signal(self.pid(), Signal::SIGTERM);
        if !self.ends(STEP) {
            // Its children first, while they are its children.
            self.children().into_iter().for_each(|pid| signal(pid, Signal::SIGKILL));
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// nginx that has a listener for each worker, which answers with its process id.
struct Nginx {
    program: Process,
    dir: TempDir,
}

fn configure(dir: &Path, workers: usize, ports: &[u16]) {
    let listen: String = ports.iter().map(|port| format!("listen 127.0.0.1:{port} reuseport;\n")).collect();
    let masks = ["01", "10"].into_iter().cycle().take(workers).collect::<Vec<_>>().join(" ");
    let d = dir.display();
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {d}/{what};\n"))
        .concat();
    let text = format!(
        "daemon off;\nuser root;\npid {d}/pid;\nerror_log {d}/error.log;\nworker_processes {workers};\n\
         worker_cpu_affinity {masks};\nevents {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\n\
         keepalive_timeout 0;\n{paths}server {{\n{listen}add_header X-Worker $pid;\nreturn 200 yes;\n}}\n}}\n"
    );
    std::fs::write(dir.join("conf"), text).unwrap();
}

impl Nginx {
    fn start(ns: &NetNs, ports: &[u16]) -> Nginx {
        let dir = tempfile::tempdir().unwrap();
        configure(dir.path(), 2, ports);
        let mut command = Command::new(find("nginx").unwrap());
        command.arg("-p").arg(dir.path()).arg("-e").arg(dir.path().join("error.log"));
        command.arg("-c").arg(dir.path().join("conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let nginx = Nginx { program: Process::start(ns, &mut command), dir };
        // Each has the listeners from its begin on.
        within(&format!("nginx starts, {}", nginx.dir.path().display()), STEP, || nginx.workers().len() == 2);
        nginx
    }

    fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Those that were told to end too, until they have.
    fn workers(&self) -> BTreeSet<u32> {
        self.program.children()
    }

    /// Has as many workers from now on.
    fn reload(&self, workers: usize, ports: &[u16]) {
        configure(self.dir.path(), workers, ports);
        signal(self.pid(), Signal::SIGHUP);
    }
}

/// Kills a worker while it has no connection in its hands: one that it has taken dies with it, whoever chose it.
fn kill(worker: u32) {
    let stopped = || {
        let stat = read_to_string(format!("/proc/{worker}/stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    within("a worker without a connection", STEP, || {
        signal(worker, Signal::SIGSTOP);
        within("it stops", STEP, stopped);
        let own: BTreeSet<String> = read_dir(format!("/proc/{worker}/fd"))
            .unwrap()
            .map(|fd| read_link(fd.unwrap().path()).unwrap().to_string_lossy().into_owned())
            .collect();
        let table = read_to_string(format!("/proc/{worker}/net/tcp")).unwrap();
        // Of those that do not listen (0A).
        let busy = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let busy = busy
            .filter(|words| words[3] != "0A")
            .any(|words| own.contains(&format!("socket:[{}]", words[9])));
        signal(worker, if busy { Signal::SIGCONT } else { Signal::SIGKILL });
        !busy
    });
}

fn weir(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("accept").args(words).stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Asserts that it ends with this exit code and one line, which contains `parts`.
fn refused(ns: &NetNs, command: &mut Command, code: i32, parts: &[&str]) {
    let mut program = Process::start(ns, command.stdout(Stdio::null()).stderr(Stdio::piped()));
    assert!(program.ends(STEP), "{parts:?}: it goes on");
    let mut text = String::new();
    program.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    println!("refused: {}", text.trim_end());
    let is = program.0.wait().unwrap().code();
    assert!(is == Some(code) && text.lines().count() == 1, "{is:?}: {text}");
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
}

fn groups(told: &Value) -> Vec<Value> {
    told["groups"].as_array().cloned().unwrap_or_default()
}

/// What `weir accept WORDS` would attach to; `None` if to nothing. Attaches nothing.
fn plan(words: &[&str]) -> Option<Value> {
    let out = weir(words).args(["--dry-run", "--json"]).output().unwrap();
    serde_json::from_slice(&out.stdout).ok()
}

/// The plan for port `port` in the namespace: the only one with a group there that `words` may have.
fn group_of(words: &[&str], ns: &NetNs, port: u16) -> Value {
    let address = format!("127.0.0.1:{port}");
    let found = groups(&plan(words).unwrap());
    found.into_iter().find(|group| group["netns"] == inode(ns) && group["address"] == *address).unwrap()
}

/// Reads to the end, so that the writer never waits.
fn read(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text
    })
}

/// A running `weir accept`.
struct Weir {
    program: Process,
    /// What it writes: a line of JSON for each interval, and what it says.
    output: [JoinHandle<String>; 2],
    control: TempDir,
}

impl Weir {
    /// Attaches to these servers from within `ns`, if all that they listen on is in `theirs`.
    fn attach(ns: &NetNs, servers: &[&Nginx], theirs: &[&NetNs]) -> Weir {
        let pids: Vec<String> = servers.iter().map(|nginx| nginx.pid().to_string()).collect();
        let mut words: Vec<&str> = pids.iter().map(String::as_str).collect();
        // A number may be somebody else's port.
        let allowed: Vec<Value> = theirs.iter().map(|ns| inode(ns).into()).collect();
        let plan = plan(&words).unwrap();
        assert!(groups(&plan).iter().all(|group| allowed.contains(&group["netns"])), "{plan}");
        let control = tempfile::tempdir().unwrap();
        let option = format!("--control-dir={}", control.path().display());
        words.extend(["--json", "--interval", "100ms", &option]);
        let mut program = Process::start(ns, &mut weir(&words));
        let output = [read(program.0.stdout.take().unwrap()), read(program.0.stderr.take().unwrap())];
        Weir { program, output, control }
    }

    /// What it answers; `None` if it does not yet.
    fn told(&self) -> Option<Value> {
        let mut text = String::new();
        let path = self.control.path().join(format!("accept-{}.sock", self.program.pid()));
        UnixStream::connect(path).ok()?.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// True if it has placed connections at each of `workers`, which are all that it knows of its only group.
    fn serves(&self, workers: &BTreeSet<u32>) -> bool {
        let told = self.told().unwrap_or_default();
        let rows = told["groups"][0]["workers"].as_array().cloned().unwrap_or_default();
        let placed = |row: &Value| row["placed"].as_u64().is_some_and(|n| n > 0);
        let pids: Vec<u32> = rows.iter().filter_map(|row| Some(row["pid"].as_u64()? as u32)).collect();
        let same = pids.len() == workers.len() && workers.iter().eq(&BTreeSet::from_iter(pids));
        same && told["groups"][0]["there"] == true && rows.iter().all(placed)
    }

    /// Ends it; its last line of JSON, and what it has said.
    fn end(mut self) -> (Value, String) {
        signal(self.program.pid(), Signal::SIGTERM);
        assert!(self.program.ends(STEP), "weir does not end");
        let [lines, said] = self.output.map(|reader| reader.join().unwrap());
        (serde_json::from_str(lines.lines().last().unwrap()).unwrap(), said)
    }
}

/// Connections that weir placed in a group.
fn placed(group: &Value) -> u64 {
    let reasons = ["own", "stalled", "away", "late", "busy", "share", "no_own"];
    reasons.iter().map(|why| group["chosen"][why].as_u64().unwrap()).sum()
}

/// Answers of `count` connections from `cpu` by worker.
fn ask(ns: &NetNs, cpu: usize, port: u16, count: usize) -> BTreeMap<u32, usize> {
    ns.run(|| {
        bind_to(&[cpu]);
        let mut by = BTreeMap::new();
        for _ in 0..count {
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            let mut client = TcpStream::connect_timeout(&to, NO_ANSWER).unwrap();
            client.set_read_timeout(Some(NO_ANSWER)).unwrap();
            client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            let worker = text.lines().find_map(|line| line.strip_prefix("X-Worker: ")).unwrap();
            *by.entry(worker.parse().unwrap()).or_default() += 1;
        }
        by
    })
}

/// How many of 40 connections from each CPU are answered by a worker that is bound to it.
fn own(ns: &NetNs) -> usize {
    let bound = |pid: u32, cpu| kern::cpus::affinity(pid as i32).is_ok_and(|cpus| cpus.contains(cpu));
    let answers = |cpu| ask(ns, cpu, PORT, 40).into_iter().filter(move |(pid, _)| bound(*pid, cpu));
    CPUS.into_iter().flat_map(answers).map(|(_, count)| count).sum()
}

/// All but those that are moved, because a worker is at work.
fn weir_chooses(ns: &NetNs) -> bool {
    own(ns) >= 72
}

/// A hash leaves half of them, and more than three quarters with one in 100,000.
fn kernel_chooses(ns: &NetNs) -> bool {
    own(ns) <= 60
}

/// The program web-clients, which opens connections at times that are fixed before.
struct Clients {
    _program: Process,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Clients {
    fn start(ns: &NetNs) -> Clients {
        let mut command = Command::new(lab::locate("web-clients", None).unwrap());
        command.args(["--to", &format!("127.0.0.1:{PORT}"), "--cpus", "0,1"]);
        command.args(["--patience-ms", &NO_ANSWER.as_millis().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Process::start(ns, &mut command);
        let (input, out) = (program.0.stdin.take().unwrap(), program.0.stdout.take().unwrap());
        let (sender, lines) = channel();
        // Ends with the program.
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let clients = Clients { _program: program, input, lines };
        clients.line();
        clients
    }

    fn line(&self) -> Value {
        let line = self.lines.recv_timeout(NO_ANSWER * 2).expect("web-clients answers");
        serde_json::from_str(&line).unwrap()
    }

    fn say(&mut self, line: &str) -> Value {
        writeln!(self.input, "{line}").unwrap();
        self.line()
    }

    /// Does `work` while connections come; how many of them were not answered.
    fn during(&mut self, what: &str, work: impl FnOnce()) -> u64 {
        self.say(&format!("open {RATE} 0 {LOAD_MS}"));
        work();
        let seen = self.say("report");
        let count = |name: &str| seen[name].as_u64().unwrap();
        let (asked, lost) = (count("asked"), count("asked") - count("answered"));
        let (refused, reset, late) = (count("refused"), count("reset"), count("timed_out"));
        println!(
            "{what}: {lost} of {asked} lost, {refused} refused, {reset} reset, {late} without an answer"
        );
        assert!(asked >= RATE * LOAD_MS / 1000 * 9 / 10 && count("left_out") == 0, "{seen}");
        lost
    }
}

#[test]
fn nginx_reloads_crashes_and_grows_without_a_loss_and_weir_follows_root() {
    if !can("nginx_reloads_crashes_and_grows_without_a_loss_and_weir_follows_root", "nginx") {
        return;
    }
    let _turn = turn();
    let ns = host("nginx");
    let nginx = Nginx::start(&ns, &[PORT]);
    let mut clients = Clients::start(&ns);
    let weir = Weir::attach(&ns, &[&nginx], &[&ns]);
    let followed = |weir: &Weir, what: &str, count: usize, gone: &BTreeSet<u32>| {
        let took = within(what, SOON, || {
            let workers = nginx.workers();
            workers.len() == count && workers.is_disjoint(gone) && weir.serves(&workers)
        });
        println!("{what}: attached again after {took:?}");
    };
    type Event<'a> = (&'a str, usize, &'a dyn Fn(&BTreeSet<u32>) -> BTreeSet<u32>);
    // Each does something and tells which workers end by it.
    let events: [Event<'_>; 3] = [
        ("a reload", 2, &|workers| {
            nginx.reload(2, &[PORT]);
            workers.clone()
        }),
        ("a killed worker", 2, &|workers| {
            let first = *workers.first().unwrap();
            kill(first);
            [first].into()
        }),
        ("a third worker", 3, &|workers| {
            nginx.reload(3, &[PORT]);
            workers.clone()
        }),
    ];
    for (what, count, event) in events {
        let lost = clients.during(what, || {
            let workers = nginx.workers();
            within("weir places what comes", STEP, || weir.serves(&workers));
            let gone = event(&workers);
            followed(&weir, what, count, &gone);
        });
        assert_eq!(lost, 0, "{what}");
    }

    let lost = clients.during("a killed weir", || {
        within("weir chooses", STEP, || weir_chooses(&ns));
        signal(weir.program.pid(), Signal::SIGKILL);
        let took = within("the kernel chooses", SOON, || kernel_chooses(&ns));
        println!("a killed weir: the kernel chooses after {took:?}");
    });
    assert_eq!(lost, 0, "a killed weir");
    drop(weir);

    let weir = Weir::attach(&ns, &[&nginx], &[&ns]);
    clients.during("a closed listener", || {
        let workers = nginx.workers();
        within("weir places what comes", STEP, || weir.serves(&workers));
        nginx.reload(2, &[PORT]);
        followed(&weir, "a closed listener", 2, &workers);
    });
    let lost = clients.during("afterwards", || {
        within("weir chooses", STEP, || weir_chooses(&ns));
    });
    assert_eq!(lost, 0, "afterwards");
    let (last, _) = weir.end();
    assert_eq!((&last["end"], groups(&last).len()), (&true.into(), 1), "{last}");
}

#[test]
fn servers_of_several_network_namespaces_are_found_and_chosen_for_root() {
    if !can("servers_of_several_network_namespaces_are_found_and_chosen_for_root", "nginx") {
        return;
    }
    let _turn = turn();
    // The same address in both, as pods may have it.
    let (first, second, third) = (host("pod"), host("pod"), host("weir"));
    let servers = [Nginx::start(&first, &[PORT]), Nginx::start(&second, &[PORT])];
    // Without a target it finds them, beside what else this machine runs: that is never attached to.
    let out = third.run(|| weir(&["--dry-run", "--json"]).output()).unwrap();
    let plan: Value = serde_json::from_slice(&out.stdout).unwrap();
    for ns in [&first, &second] {
        let here: Vec<Value> =
            groups(&plan).into_iter().filter(|group| group["netns"] == inode(ns)).collect();
        assert_eq!(here.len(), 1, "{plan}");
        assert_eq!(here[0]["workers"].as_array().unwrap().len(), 2, "{plan}");
    }
    let weir = Weir::attach(&third, &[&servers[0], &servers[1]], &[&first, &second]);
    within("weir attaches to both", STEP, || groups(&weir.told().unwrap_or_default()).len() == 2);
    for ns in [&first, &second] {
        within("weir chooses in each", STEP, || weir_chooses(ns));
    }
    let (last, said) = weir.end();
    println!("{}", said.trim_end());
    assert_eq!(last["end"], true, "{last}");
    for (ns, server) in [&first, &second].into_iter().zip(&servers) {
        let here: Vec<Value> =
            groups(&last).into_iter().filter(|group| group["netns"] == inode(ns)).collect();
        assert!(here.len() == 1 && here[0]["there"] == true, "{last}");
        let rows = here[0]["workers"].as_array().unwrap();
        let pids: BTreeSet<u32> = rows.iter().map(|row| row["pid"].as_u64().unwrap() as u32).collect();
        assert_eq!(pids, server.workers(), "{last}");
        assert!(placed(&here[0]) >= 80 && here[0]["chosen"]["refused"] == 0, "{last}");
    }
}

#[test]
fn twenty_ports_are_attached_to_and_seventy_are_too_many_root() {
    if !can("twenty_ports_are_attached_to_and_seventy_are_too_many_root", "nginx") {
        return;
    }
    let _turn = turn();
    let ns = host("ports");
    let ports: Vec<u16> = (PORT..PORT + 70).collect();
    let nginx = Nginx::start(&ns, &ports[..20]);
    let begin = Instant::now();
    let first = |told: &Value| {
        let named = |group: &Value| group["address"] == format!("127.0.0.1:{PORT}");
        groups(told).into_iter().find(named).unwrap()
    };
    let running = Weir::attach(&ns, &[&nginx], &[&ns]);
    within("weir attaches to 20", STEP, || groups(&running.told().unwrap_or_default()).len() == 20);
    println!("20 groups: attached after {:?}", begin.elapsed());
    within("weir chooses at each port", STEP, || {
        for port in &ports[..20] {
            CPUS.into_iter().for_each(|cpu| drop(ask(&ns, cpu, *port, 1)));
        }
        let all = groups(&running.told().unwrap());
        all.iter().all(|one| placed(one) > 0 && one["workers"].as_array().unwrap().len() == 2)
    });
    // Of one that gets more while weir runs, as many as there may be; what it has attached to stays its own meanwhile.
    let before = first(&running.told().unwrap());
    nginx.reload(2, &ports);
    let attached = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !attached.load(Relaxed) {
                CPUS.into_iter().for_each(|cpu| drop(ask(&ns, cpu, PORT, 4)));
            }
        });
        let _ends = Defer(|| attached.store(true, Relaxed));
        let took = within("weir attaches to 64", STEP, || groups(&running.told().unwrap()).len() == 64);
        println!("64 groups: attached after {took:?}");
    });
    let (last, said) = running.end();
    let after = first(&last);
    let late = |group: &Value| group["chosen"]["lease_over"].as_u64().unwrap();
    let (ours, lapsed) = (placed(&after) - placed(&before), late(&after) - late(&before));
    println!("meanwhile {ours} at the first port placed, {lapsed} without a lease");
    assert!(ours > 4 * lapsed, "{after}");
    let left: Vec<&str> = said.lines().filter(|line| line.contains("left alone")).collect();
    assert!(left.len() == 6 && left.iter().all(|line| line.contains("64 groups are attached to")), "{said}");
    let pid = nginx.pid().to_string();
    refused(&ns, &mut weir(&[&pid]), 2, &["70 groups of listeners, at most 64; name ports"]);
    // Named by its port one is good, and has no program.
    let one = group_of(&[&PORT.to_string()], &ns, PORT);
    assert!(one["replaces"].is_null() && one["workers"].as_array().unwrap().len() == 2, "{one}");
}

/// Listeners of this process, in one group.
fn listeners(ns: &NetNs, count: usize) -> Vec<TcpListener> {
    let one = || {
        // SAFETY: plain system calls with values that live for the calls; results are checked.
        unsafe {
            let fd =
                libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
            assert!(fd >= 0);
            let fd = OwnedFd::from_raw_fd(fd);
            let on: libc::c_int = 1;
            let mut to: libc::sockaddr_in = std::mem::zeroed();
            to.sin_family = libc::AF_INET as u16;
            to.sin_port = PORT.to_be();
            to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
            let raw = fd.as_raw_fd();
            let set = libc::setsockopt(raw, libc::SOL_SOCKET, libc::SO_REUSEPORT, (&raw const on).cast(), 4);
            let bound = libc::bind(raw, (&raw const to).cast(), size_of_val(&to) as u32);
            assert_eq!((set, bound, libc::listen(raw, 64)), (0, 0, 0));
            TcpListener::from(fd)
        }
    };
    ns.run(|| (0..count).map(|_| one()).collect())
}

/// Has the group of `listener` choose its member `place` for all.
fn choose(listener: &TcpListener, place: u32) {
    let mut filter = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: place };
    let program = libc::sock_fprog { len: 1, filter: &raw mut filter };
    // SAFETY: the program and its filter live for the call, which copies them.
    let set = unsafe {
        let length = size_of_val(&program) as u32;
        let option = libc::SO_ATTACH_REUSEPORT_CBPF;
        libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const program).cast(), length)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// How many of eight new connections from each CPU wait in each of them.
fn arrive(ns: &NetNs, listeners: &[TcpListener]) -> Vec<usize> {
    let open = |cpu| {
        ns.run(move || {
            bind_to(&[cpu]);
            (0..8).map(|_| TcpStream::connect(("127.0.0.1", PORT)).unwrap()).collect::<Vec<_>>()
        })
    };
    let _clients: Vec<TcpStream> = CPUS.into_iter().flat_map(open).collect();
    listeners.iter().map(|one| std::iter::from_fn(|| one.accept().ok()).count()).collect()
}

#[test]
fn a_group_that_chooses_by_a_filter_of_its_own_is_left_alone_root() {
    if !possible("a_group_that_chooses_by_a_filter_of_its_own_is_left_alone_root") {
        return;
    }
    let _turn = turn();
    let ns = host("filter");
    let all = listeners(&ns, 2);
    let target = std::process::id().to_string();
    // Without it there is nothing in the way.
    assert_eq!(group_of(&[&target], &ns, PORT)["workers"].as_array().unwrap().len(), 2);
    choose(&all[0], 1);
    assert_eq!(arrive(&ns, &all), [0, 16]);
    for words in [[target.as_str()].as_slice(), &[&target, "--dry-run"]] {
        refused(&ns, &mut weir(words), 2, &["127.0.0.1:8080", "SO_ATTACH_REUSEPORT_CBPF", "left alone"]);
    }
    assert_eq!(arrive(&ns, &all), [0, 16]);
}

/// The kernel puts it in the place of weir's program, and nobody else may take it away.
#[test]
fn a_filter_that_comes_later_stays_when_weir_ends_root() {
    if !possible("a_filter_that_comes_later_stays_when_weir_ends_root") {
        return;
    }
    let _turn = turn();
    let ns = host("later");
    let all = listeners(&ns, 2);
    let control = tempfile::tempdir().unwrap();
    let option = format!("--control-dir={}", control.path().display());
    let words = [&std::process::id().to_string(), "--json", "--interval", "100ms", &option];
    let mut program = Process::start(&ns, &mut weir(&words));
    let output = [read(program.0.stdout.take().unwrap()), read(program.0.stderr.take().unwrap())];
    let weir = Weir { program, output, control };
    within("it attaches", STEP, || weir.told().is_some_and(|told| told["groups"][0]["there"] == true));
    choose(&all[0], 1);
    assert_eq!(arrive(&ns, &all), [0, 16]);
    weir.end();
    assert_eq!(arrive(&ns, &all), [0, 16], "the server's filter is still there");
}

#[test]
fn a_right_that_is_missing_is_named_and_nothing_is_attached_root() {
    let name = "a_right_that_is_missing_is_named_and_nothing_is_attached_root";
    if !can(name, "nginx") || !can(name, "setpriv") {
        return;
    }
    let _turn = turn();
    let ns = host("rights");
    let nginx = Nginx::start(&ns, &[PORT]);
    let target = nginx.pid().to_string();
    // CAP_SYS_ADMIN stands for the two of BPF.
    for (without, missing) in [
        ("-sys_ptrace", "CAP_SYS_PTRACE"),
        ("-bpf,-sys_admin", "CAP_BPF"),
        ("-perfmon,-sys_admin", "CAP_PERFMON"),
        ("-all", "CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE"),
    ] {
        let mut command = Command::new(find("setpriv").unwrap());
        command.args(["--bounding-set", without, "--inh-caps", "-all"]);
        command.arg(env!("CARGO_BIN_EXE_weir")).args(["accept", &target]).stdin(Stdio::null());
        refused(&ns, &mut command, 3, &[missing]);
        let group = group_of(&[&target], &ns, PORT);
        assert!(group["replaces"].is_null(), "{group}");
    }
    CPUS.into_iter().for_each(|cpu| drop(ask(&ns, cpu, PORT, 4)));
}
