//! `weir accept` for a server of several processes, each with a listener and a core of its own, in a network namespace.
//!
//! Why these cannot flake: a connection to a listener that is read is waited for, not timed; whose core a connection comes to is set by
//! pinning the client; a stopped worker is stopped by a signal that is waited for; and what follows by itself is asked for again and
//! again until it is so, for far longer than it takes.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::NetNs;

const PORT: u16 = 8080;
/// What a step may take on a loaded machine; each takes far less.
const PATIENCE: Duration = Duration::from_secs(20);
/// A short backlog: the kernel takes one more.
const SHORT: i32 = 8;
const WORKER: &str = "WEIR_TEST_WORKER";

fn pin(pid: i32, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(pid), &set).unwrap();
}

/// A bound socket with SO_REUSEPORT unless `alone`, bound to a `device` too.
fn bound(sort: libc::c_int, alone: bool, device: Option<&str>) -> OwnedFd {
    // SAFETY: plain system calls with values that live for the calls; results are checked.
    unsafe {
        let fd = libc::socket(libc::AF_INET, sort | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let fd = OwnedFd::from_raw_fd(fd);
        if let Some(device) = device {
            nix::sys::socket::setsockopt(&fd, nix::sys::socket::sockopt::BindToDevice, &device.into())
                .unwrap();
        }
        let on: libc::c_int = 1;
        let option = if alone { libc::SO_REUSEADDR } else { libc::SO_REUSEPORT };
        let set = libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const on).cast(), 4);
        let mut to: libc::sockaddr_in = std::mem::zeroed();
        to.sin_family = libc::AF_INET as u16;
        to.sin_port = PORT.to_be();
        to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        assert_eq!(
            (set, libc::bind(fd.as_raw_fd(), (&raw const to).cast(), size_of_val(&to) as u32)),
            (0, 0)
        );
        fd
    }
}

fn listener(alone: bool, device: Option<&str>, backlog: i32) -> TcpListener {
    let fd = bound(libc::SOCK_STREAM, alone, device);
    // SAFETY: plain system call; the result is checked.
    assert_eq!(unsafe { libc::listen(fd.as_raw_fd(), backlog) }, 0);
    TcpListener::from(fd)
}

/// Tells each who asks its process id.
fn datagrams() -> ! {
    let socket = UdpSocket::from(bound(libc::SOCK_DGRAM, false, None));
    loop {
        if let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
            let _ = socket.send_to(std::process::id().to_string().as_bytes(), from);
        }
    }
}

/// Not a test: the body of a worker, a process of its own, which tells each client its process id. What it is called is its CPU and how
/// it waits: in an epoll, as most servers do, in poll(), or in accept(); `short`: in an epoll, with a short backlog; `prefork`: its child
/// does, in poll(); `udp`: for datagrams; `device`: its listener is bound to the loopback.
#[test]
#[ignore = "the worker process of the other tests"]
fn worker_process() {
    let Ok(what) = std::env::var(WORKER) else { return };
    let (cpu, how) = what.split_once(' ').unwrap_or((&what, "epoll"));
    let mut pid = std::process::id() as i32;
    match cpu.parse() {
        Ok(cpu) => [pid, 0].into_iter().for_each(|task| pin(task, cpu)),
        Err(_) => assert!(["alone", "loose"].contains(&cpu), "{cpu}"),
    }
    if how == "udp" {
        datagrams();
    }
    let bind = (how == "device").then_some("lo");
    let listener = listener(cpu == "alone", bind, if how == "short" { SHORT } else { 64 });
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    if how == "prefork" {
        // SAFETY: plain system calls; what the child shares with its parent is not used by threads that it does not have.
        unsafe {
            match libc::fork() {
                0 => assert_eq!(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), 0),
                _ => loop {
                    libc::pause();
                },
            }
        }
        pid = std::process::id() as i32;
    }
    if ["epoll", "short", "device"].contains(&how) {
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, 0)).unwrap();
    }
    loop {
        // A signal ends a wait too.
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match how {
            "epoll" | "short" | "device" => {
                while epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE).is_err() {}
            }
            "poll" | "prefork" => while poll(&mut fds, PollTimeout::NONE).is_err() {},
            _ => assert_eq!(how, "accept"),
        }
        let Ok((mut client, _)) = listener.accept() else { continue };
        let _ = client.write_all(format!("{pid}\n").as_bytes());
    }
}

/// Ended when dropped.
struct Process(Child);

impl Process {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn worker(host: &NetNs, cpu: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker_process", "--ignored", "--nocapture"]).env(WORKER, cpu);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Process(host.run(|| command.spawn()).unwrap())
}

fn weir(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("accept").args(words).stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The namespace's only groups, by the plan; waits until there are `members`.
fn plan(pid: u32, members: usize) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let out = weir(&[&pid.to_string(), "--dry-run", "--json"]).output().unwrap();
        let plan: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        if plan["groups"][0]["workers"].as_array().is_some_and(|list| list.len() == members) {
            return plan;
        }
        assert!(Instant::now() < end, "{plan} {}", String::from_utf8_lossy(&out.stderr));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Who answers a connection from `cpu`; `None` if nobody does for `patience`.
fn ask(host: &NetNs, cpu: usize, patience: Duration) -> Option<u32> {
    host.run(|| {
        pin(0, cpu);
        let to = SocketAddr::from(([127, 0, 0, 1], PORT));
        let mut client = TcpStream::connect_timeout(&to, patience).ok()?;
        client.set_read_timeout(Some(patience)).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    })
}

/// Answers of `count` connections from `cpu`, by worker.
fn answers(host: &NetNs, cpu: usize, count: usize) -> BTreeMap<u32, usize> {
    let mut by = BTreeMap::new();
    for _ in 0..count {
        *by.entry(ask(host, cpu, PATIENCE).expect("an answer")).or_default() += 1;
    }
    by
}

/// Waits until the state of a process, as procfs has it, is `wanted`.
fn state(pid: u32, wanted: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(wanted)) {
            return;
        }
        assert!(Instant::now() < end, "{stat}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// It has stopped.
fn stopped(pid: u32) {
    state(pid, "T");
}

/// It sleeps: in its epoll or accept(), since it has nothing else to wait for.
fn waits(pid: u32) {
    state(pid, "S");
}

/// Waits until 40 connections from `cpu` all go to `only`, or, if that is `None`, to more than one worker. The other CPU brings as
/// many, however long that takes: one that brings more than its share gives some of them away.
fn until(host: &NetNs, cpu: usize, only: Option<u32>) {
    let end = Instant::now() + PATIENCE;
    loop {
        let by = answers(host, cpu, 40);
        answers(host, 1 - cpu, 40);
        if only.map_or(by.len() > 1, |pid| by.len() == 1 && by.contains_key(&pid)) {
            return;
        }
        assert!(Instant::now() < end, "{by:?} instead of {only:?}");
    }
}

fn host() -> Option<NetNs> {
    if !testkit::root_or_skip("weir accept") {
        return None;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("skipped: weir accept needs two CPUs");
        return None;
    }
    let host = NetNs::new("accept");
    host.sh("ip", &["link", "set", "lo", "up"]);
    Some(host)
}

#[test]
fn connections_stay_on_their_core_and_pass_by_a_stalled_worker_root() {
    let Some(host) = host() else { return };
    let workers = [worker(&host, "0 epoll"), worker(&host, "1 accept")];
    // One process is the target here: its group has the other one too.
    let target = workers[0].pid().to_string();
    let plan = plan(workers[0].pid(), 2);
    let cores: Vec<&Value> = plan["groups"][0]["workers"].as_array().unwrap().iter().collect();
    assert!(cores.iter().all(|w| w["pinned"] == true), "{plan}");
    let mut weir = Process(weir(&[&target, "--json", "--interval", "100ms"]).spawn().unwrap());
    for (cpu, worker) in workers.iter().enumerate() {
        until(&host, cpu, Some(worker.pid()));
    }
    // A stopped worker gets none: it has been seen to wait before, in an epoll and in accept(), and does not now. While the other one is
    // at work it is no better, and takes what comes when it waits again: each connection comes after the answer to the one before it, and
    // then the worker has only to ask for the next.
    for cpu in [0, 1] {
        workers[cpu].signal(Signal::SIGSTOP);
        stopped(workers[cpu].pid());
        waits(workers[1 - cpu].pid());
        assert_eq!(ask(&host, cpu, PATIENCE), Some(workers[1 - cpu].pid()), "worker {cpu} stands");
        // Those that came in between wait for it to go on: none is lost.
        workers[cpu].signal(Signal::SIGCONT);
        until(&host, cpu, Some(workers[cpu].pid()));
    }
    // One that stands with somebody in its queue is passed by, whatever the other one does: its client gives up, and the next is answered.
    workers[0].signal(Signal::SIGSTOP);
    let end = Instant::now() + PATIENCE;
    while ask(&host, 0, Duration::from_millis(100)) != Some(workers[1].pid()) {
        assert!(Instant::now() < end, "a stalled worker keeps its connections");
    }
    workers[0].signal(Signal::SIGCONT);
    until(&host, 0, Some(workers[0].pid()));
    // A worker that comes is seen: on the core of another one it gets its part of that core's connections.
    let third = worker(&host, "0");
    let end = Instant::now() + PATIENCE;
    loop {
        // Both, so that each core brings its share.
        let [first, second] = [0, 1].map(|cpu| answers(&host, cpu, 40));
        if first.contains_key(&third.pid()) && second.len() == 1 {
            break;
        }
        assert!(Instant::now() < end, "the third worker");
    }
    // A worker that is killed leaves the others their cores.
    drop(third);
    until(&host, 0, Some(workers[0].pid()));
    until(&host, 1, Some(workers[1].pid()));
    // It detaches: the kernel spreads by its hash again.
    weir.signal(Signal::SIGTERM);
    let mut text = String::new();
    weir.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(weir.0.wait().unwrap().success());
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["schema"], &last["end"]), (&"weir.accept/1".into(), &true.into()));
    let chosen = &last["groups"][0]["chosen"];
    assert!(chosen["away"].as_u64().unwrap() >= 2, "{last}");
    until(&host, 0, None);
}

/// Connections of this namespace that a full accept queue refused.
fn overflows(host: &NetNs) -> u64 {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat")).unwrap();
    testkit::listen_overflows(&text).unwrap()
}

/// A backlog of 8, which is full before any mark for long queues: what comes goes to the one below half, even to one that stands too, and
/// with `--no-stall`, which passes by nobody for standing. On the loopback a handshake ends before `connect` returns, so all lengths are
/// exact.
#[test]
fn no_queue_overflows_while_another_is_below_half_root() {
    let Some(host) = host() else { return };
    let connect = |count| -> Vec<TcpStream> {
        let to = SocketAddr::from(([127, 0, 0, 1], PORT));
        host.run(|| {
            pin(0, 0);
            (0..count).map(|_| TcpStream::connect_timeout(&to, PATIENCE).unwrap()).collect()
        })
    };
    for options in [&["--interval", "100ms"][..], &["--interval", "100ms", "--no-stall"]] {
        let workers = [worker(&host, "0 short"), worker(&host, "1 short")];
        let target = plan(workers[0].pid(), 2);
        assert_eq!(target["groups"][0]["workers"][0]["limit"], SHORT, "{target}");
        let pid = workers[0].pid().to_string();
        let weir = Process(weir(&[&[pid.as_str()], options].concat()).spawn().unwrap());
        until(&host, 0, Some(workers[0].pid()));
        until(&host, 1, Some(workers[1].pid()));
        for one in &workers {
            one.signal(Signal::SIGSTOP);
            stopped(one.pid());
        }
        let before = overflows(&host);
        // Each takes seven: from there on a queue counts as full.
        let held = connect(14);
        assert_eq!(overflows(&host) - before, 0, "{options:?}");
        // All go on, and answer.
        workers.iter().for_each(|one| one.signal(Signal::SIGCONT));
        for mut client in held {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            assert!(workers.iter().any(|one| one.pid().to_string() == text.trim()), "{text}");
        }
        drop(weir);
    }
}

/// A worker that stands is killed: its listener is closed, and the kernel moves who waits there. Why this cannot flake: with `--no-stall`
/// what comes goes to its own core's queue, who is not answered waits in that of the worker that stands, and the other one has all the
/// patience of a client.
#[test]
fn who_waits_at_a_killed_worker_is_answered_by_another_one_root() {
    let Some(host) = host() else { return };
    if !host.run(kern::accept::moves) {
        eprintln!(
            "skipped: who_waits_at_a_killed_worker_is_answered_by_another_one_root needs a kernel that wakes who gets them"
        );
        return;
    }
    let workers = [worker(&host, "0"), worker(&host, "1")];
    plan(workers[0].pid(), 2);
    let pid = workers[0].pid().to_string();
    let words = [pid.as_str(), "--no-stall", "--json", "--interval", "100ms"];
    let mut weir = Process(weir(&words).spawn().unwrap());
    until(&host, 0, Some(workers[0].pid()));
    until(&host, 1, Some(workers[1].pid()));
    workers[0].signal(Signal::SIGSTOP);
    stopped(workers[0].pid());
    let to = SocketAddr::from(([127, 0, 0, 1], PORT));
    let waiting: Vec<TcpStream> = host.run(|| {
        pin(0, 0);
        (0..5).map(|_| TcpStream::connect_timeout(&to, PATIENCE).unwrap()).collect()
    });
    for mut client in &waiting {
        client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(client.read(&mut [0; 16]).is_err(), "it waits at the one that stands");
    }
    workers[0].signal(Signal::SIGKILL);
    for mut client in waiting {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).expect("it is not reset");
        assert_eq!(text.trim(), workers[1].pid().to_string());
    }
    weir.signal(Signal::SIGTERM);
    let mut text = String::new();
    weir.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["groups"][0]["chosen"]["migrated"], 5, "{last}");
}

/// As gunicorn does: the master keeps the listener that its only worker accepts from.
#[test]
fn a_master_is_not_taken_for_its_worker_root() {
    let Some(host) = host() else { return };
    let masters = [worker(&host, "0 prefork"), worker(&host, "1 prefork")];
    let plan = plan(masters[0].pid(), 2);
    let workers = plan["groups"][0]["workers"].as_array().unwrap();
    let child = |of: &Process| {
        let mut pids = workers.iter().filter_map(|w| w["pid"].as_u64()).map(|pid| pid as u32);
        let found = pids.find(|pid| kern::proc::parent(*pid) == Some(of.pid()));
        found.unwrap_or_else(|| panic!("no child of {}: {plan}", of.pid()))
    };
    let children = [child(&masters[0]), child(&masters[1])];
    let _weir = Process(weir(&[&masters[0].pid().to_string(), "--interval", "100ms"]).spawn().unwrap());
    for (cpu, child) in children.into_iter().enumerate() {
        until(&host, cpu, Some(child));
    }
}

/// What a running `weir accept` answers; `None` if it does not yet.
fn answer(dir: &Path, weir: &Process) -> Option<Value> {
    let mut text = String::new();
    UnixStream::connect(dir.join(format!("accept-{}.sock", weir.pid())))
        .ok()?
        .read_to_string(&mut text)
        .ok()?;
    serde_json::from_str(&text).ok()
}

/// Waits until it answers something that is `so`.
fn answers_that(dir: &Path, weir: &Process, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let told = answer(dir, weir);
        if let Some(told) = told.as_ref().filter(|told| so(told)) {
            return told.clone();
        }
        assert!(Instant::now() < end, "{what}: {told:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What is told of the worker `pid` in the only group.
fn told_of(told: &Value, pid: u32) -> Value {
    let workers = told["groups"][0]["workers"].as_array().cloned().unwrap_or_default();
    workers.into_iter().find(|worker| worker["pid"] == pid).unwrap_or_default()
}

#[test]
fn what_workers_do_is_seen_however_they_wait_and_told_to_who_watches_root() {
    let Some(host) = host() else { return };
    let dir = tempfile::tempdir().unwrap();
    let control = format!("--control-dir={}", dir.path().display());
    for how in ["epoll", "poll", "accept"] {
        let workers = [worker(&host, &format!("0 {how}")), worker(&host, "1")];
        plan(workers[0].pid(), 2);
        let weir =
            Process(weir(&[&workers[0].pid().to_string(), "--interval", "100ms", &control]).spawn().unwrap());
        until(&host, 0, Some(workers[0].pid()));
        // It rests between two connections, and is looked at for as long as they come.
        let first = workers[0].pid();
        answers_that(dir.path(), &weir, how, |told| {
            answers(&host, 0, 1);
            told_of(told, first)["does"] == "waits"
        });
        // Stopped with somebody in its queue: that is told for as long as it is so, though nobody asks for more.
        workers[0].signal(Signal::SIGSTOP);
        stopped(first);
        let end = Instant::now() + PATIENCE;
        while told_of(&answer(dir.path(), &weir).unwrap(), first)["stalled"] != true {
            assert!(Instant::now() < end, "{how}: {:?}", answer(dir.path(), &weir));
            // All of them, also while the other worker is at work: one of these waits for the first one in the end.
            let _ = ask(&host, 0, Duration::from_millis(20));
            workers[1].signal(Signal::SIGSTOP);
            let _ = ask(&host, 0, Duration::from_millis(20));
            workers[1].signal(Signal::SIGCONT);
        }
        let told = told_of(&answer(dir.path(), &weir).unwrap(), first);
        assert_eq!(told["does"], "sleeps", "{told}");
        assert!(told["waiting"].as_u64().unwrap() > 0 && told["oldest_ms"].as_f64().unwrap() > 0.0, "{told}");
        workers[0].signal(Signal::SIGCONT);
        // Nobody comes any more: its queue is seen to become empty, and then the timer ends.
        answers_that(dir.path(), &weir, "empty", |told| told_of(told, first)["waiting"] == 0);
        let looks = |told: &Value| told["groups"][0]["looks"].as_u64().unwrap();
        answers_that(dir.path(), &weir, "the timer goes on", |told| {
            std::thread::sleep(Duration::from_millis(300));
            answer(dir.path(), &weir).is_some_and(|later| looks(&later) == looks(told))
        });
        let before = looks(&answer(dir.path(), &weir).unwrap());
        until(&host, 0, Some(first));
        answers_that(dir.path(), &weir, "the timer begins", |told| looks(told) > before);
    }
}

/// Who answers a datagram from `cpu` and a port of its own; `None` if nobody does for `patience`.
fn ask_by_udp(host: &NetNs, cpu: usize, patience: Duration) -> Option<u32> {
    host.run(|| {
        pin(0, cpu);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        socket.send_to(b"who", ("127.0.0.1", PORT)).unwrap();
        let mut text = [0; 16];
        let length = socket.recv(&mut text).ok()?;
        std::str::from_utf8(&text[..length]).ok()?.parse().ok()
    })
}

#[test]
fn datagrams_of_a_stateless_server_pass_by_a_stopped_member_if_that_is_asked_for_root() {
    let Some(host) = host() else { return };
    let workers = [worker(&host, "0 udp"), worker(&host, "1 udp")];
    let target = workers[0].pid().to_string();
    // They are there once both answer by the kernel's hash.
    let end = Instant::now() + PATIENCE;
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2 {
        seen.extend(ask_by_udp(&host, 0, Duration::from_millis(100)));
        assert!(Instant::now() < end, "{seen:?}");
    }
    let out = weir(&[&target]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(2) && text.lines().count() == 1 && text.contains("--udp"), "{text}");
    let dir = tempfile::tempdir().unwrap();
    let control = format!("--control-dir={}", dir.path().display());
    let weir = Process(weir(&[&target, "--udp", &control]).spawn().unwrap());
    let told = answers_that(dir.path(), &weir, "it answers", |told| told["pid"] == weir.pid());
    assert_eq!(told["groups"][0]["address"], "udp 127.0.0.1:8080", "{told}");
    for (cpu, worker) in workers.iter().enumerate() {
        let end = Instant::now() + PATIENCE;
        while (0..20).any(|_| ask_by_udp(&host, cpu, PATIENCE) != Some(worker.pid())) {
            assert!(Instant::now() < end, "datagrams of CPU {cpu} go elsewhere");
        }
    }
    // One that waits in a stopped member's queue is lost to its client; then that one is passed by.
    workers[0].signal(Signal::SIGSTOP);
    stopped(workers[0].pid());
    let end = Instant::now() + PATIENCE;
    while (0..20).any(|_| ask_by_udp(&host, 0, Duration::from_millis(200)) != Some(workers[1].pid())) {
        assert!(Instant::now() < end, "a stopped member keeps getting datagrams");
    }
    workers[0].signal(Signal::SIGCONT);
    let end = Instant::now() + PATIENCE;
    while (0..20).any(|_| ask_by_udp(&host, 0, PATIENCE) != Some(workers[0].pid())) {
        assert!(Instant::now() < end, "it does not come back");
    }
}

/// Makes a worker that may run on both CPUs run on this one, without a connection, and wait there.
fn move_to(worker: &Process, cpu: usize) {
    let pid = worker.pid() as i32;
    // One that goes on after a stop runs for a moment, on the only CPU that it has then.
    worker.signal(Signal::SIGSTOP);
    stopped(worker.pid());
    pin(pid, cpu);
    worker.signal(Signal::SIGCONT);
    waits(worker.pid());
    let mut both = CpuSet::new();
    both.set(0).unwrap();
    both.set(1).unwrap();
    sched_setaffinity(Pid::from_raw(pid), &both).unwrap();
}

#[test]
fn a_worker_that_is_not_pinned_is_followed_to_another_core_root() {
    let Some(host) = host() else { return };
    let dir = tempfile::tempdir().unwrap();
    let control = format!("--control-dir={}", dir.path().display());
    let workers = [worker(&host, "0"), worker(&host, "loose")];
    let loose = workers[1].pid();
    plan(workers[0].pid(), 2);
    let weir = Process(weir(&[&workers[0].pid().to_string(), &control]).spawn().unwrap());
    for cpu in [0, 1, 0] {
        answers_that(dir.path(), &weir, "it answers", |told| told["pid"] == weir.pid());
        move_to(&workers[1], cpu);
        // Nobody connects: only the search of each 5 s sees it.
        let told = answers_that(dir.path(), &weir, "it is not followed", |told| {
            let told = told_of(told, loose);
            told["core"] == cpu && told["pinned"] == false
        });
        assert_eq!(told["groups"][0]["there"], true, "{told}");
    }
    // It shares the connections of its core with the other one.
    let end = Instant::now() + PATIENCE;
    while !answers(&host, 0, 40).contains_key(&loose) {
        assert!(Instant::now() < end, "nothing goes to it");
    }
}

#[test]
fn listeners_that_are_bound_to_an_interface_are_a_group_of_their_own_root() {
    let Some(host) = host() else { return };
    // Those of the interface come last: of groups that share a port the kernel takes the one that it meets first, and it meets the
    // latest listener first.
    let mut workers = Vec::new();
    for pair in [["0", "1"], ["0 device", "1 device"]] {
        workers.extend(pair.map(|what| worker(&host, what)));
        workers.iter().rev().take(2).for_each(|worker| drop(plan(worker.pid(), 2)));
    }
    let dir = tempfile::tempdir().unwrap();
    let control = format!("--control-dir={}", dir.path().display());
    // A process of each group: the port would mean the other tests' namespaces too.
    let targets = [&workers[0], &workers[2]].map(|worker| worker.pid().to_string());
    let weir = Process(weir(&[&targets[0], &targets[1], "--interval", "100ms", &control]).spawn().unwrap());
    answers_that(dir.path(), &weir, "two groups", |told| {
        told["groups"].as_array().is_some_and(|g| g.len() == 2)
    });
    // The kernel asks the group of the interface, in which weir chooses. Which worker it chooses depends on what they do.
    answers_that(dir.path(), &weir, "it places nothing", |told| {
        let by = ask(&host, 0, PATIENCE);
        assert!(workers[2..].iter().any(|worker| Some(worker.pid()) == by), "{by:?}");
        let placed = |group: &Value| -> u64 {
            group["workers"].as_array().into_iter().flatten().filter_map(|w| w["placed"].as_u64()).sum()
        };
        let bound = |group: &&Value| group["address"].as_str().is_some_and(|a| a.ends_with("on interface 1"));
        told["groups"].as_array().into_iter().flatten().find(bound).is_some_and(|group| placed(group) > 0)
    });
}

#[test]
fn watch_and_explain_show_the_workers_of_a_running_accept_root() {
    let Some(host) = host() else { return };
    let dir = tempfile::tempdir().unwrap();
    let control = format!("--control-dir={}", dir.path().display());
    let workers = [worker(&host, "0"), worker(&host, "1")];
    plan(workers[0].pid(), 2);
    let accept = Process(weir(&[&workers[0].pid().to_string(), &control]).spawn().unwrap());
    until(&host, 0, Some(workers[0].pid()));
    answers_that(dir.path(), &accept, "it answers", |told| told["schema"] == "weir.accept/1");
    // Connections come for as long as it looks.
    let shown = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(words).arg(&control).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
        let mut child = host.run(|| command.spawn()).unwrap();
        while child.try_wait().unwrap().is_none() {
            answers(&host, 0, 10);
        }
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    let seen: see::Snapshot =
        serde_json::from_str(&shown(&["watch", "lo", "--once", "--json", "--interval", "500ms"])).unwrap();
    assert_eq!((seen.accepts.len(), seen.accepts[0].pid), (1, accept.pid()), "{seen:?}");
    let group = &seen.accepts[0].groups[0];
    assert_eq!((&*group.address, group.workers.len(), group.there), ("127.0.0.1:8080", 2, true));
    let own = group.workers.iter().find(|worker| worker.tid == Some(workers[0].pid())).unwrap();
    assert!(own.placed.unwrap() > 0 && own.core == Some(0) && own.limit > 0, "{own:?}");
    assert_eq!(own.affine_share(), Some(1.0), "{own:?}");
    let text = shown(&["watch", "lo", "--once", "--interval", "500ms", "--color", "never"]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // One may wait at this moment.
    let worker = format!("worker {} on CPU 0: ", workers[0].pid());
    let waits =
        text.split_once(&worker).and_then(|(_, rest)| rest.split_once(" of 64 wait")?.0.parse::<u32>().ok());
    assert!(text.contains("accept 127.0.0.1:8080") && waits.is_some_and(|n| n <= 64), "{text}");
    let text = shown(&["explain", "lo", "--for", "500ms", "--color", "never"]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("accept 127.0.0.1:8080") && text.contains("on CPU 0:"), "{text}");
    // It is gone with its socket.
    accept.signal(Signal::SIGTERM);
    let end = Instant::now() + PATIENCE;
    while std::fs::read_dir(dir.path()).unwrap().next().is_some() {
        assert!(Instant::now() < end, "its socket stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_weir_leaves_the_choice_to_the_kernel_and_is_replaced_root() {
    let Some(host) = host() else { return };
    let workers = [worker(&host, "0"), worker(&host, "1")];
    let target = workers[0].pid().to_string();
    plan(workers[0].pid(), 2);
    let start = || Process(weir(&[&target]).spawn().unwrap());
    let first = start();
    until(&host, 0, Some(workers[0].pid()));
    let second = weir(&[&target]).output().unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(2) && text.contains("another weir accept runs"), "{text}");
    first.signal(Signal::SIGKILL);
    let killed = Instant::now();
    until(&host, 0, None);
    // 1 s is promised: five times that.
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    drop(first);
    assert!(plan(workers[0].pid(), 2)["groups"][0]["replaces"].is_u64());
    let third = start();
    until(&host, 0, Some(workers[0].pid()));
    until(&host, 1, Some(workers[1].pid()));
    third.signal(Signal::SIGTERM);
}

#[test]
fn one_listener_and_no_listener_are_refused_with_the_fix_root() {
    let Some(host) = host() else { return };
    let alone = worker(&host, "alone");
    let end = Instant::now() + PATIENCE;
    loop {
        let out = weir(&[&alone.pid().to_string()]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && text.lines().count() == 1, "{text}");
        if text.contains("has one listener for all its workers") && text.contains("SO_REUSEPORT") {
            break;
        }
        assert!(text.contains("no process listens") && Instant::now() < end, "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
