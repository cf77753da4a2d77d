//! Death of the guard: the keeper puts everything back, `undo` does what a dead keeper could not.
//!
//! The guard and the keeper are processes of their own: this test program started again, with the test that
//! plays the part as its only one. Without the environment variable of its part such a test does nothing.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

use kern::{
    ethtool,
    journal::{Fate, Journal, Owner, Planned},
    keeper::{self, Keeper},
    napi, netns, proc,
    settings::{Access, Setting, Value},
    undo::{self, Undone},
};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::UdpSocket,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};
use testkit::{NetNs, root_or_skip};

/// Flush timer of the tests: what waits for it instead of a last turn is late by far.
const FLUSH_NS: u64 = 4_000_000_000;
/// Five times the time the keeper has.
const DEADLINE: Duration = Duration::from_secs(1);

#[test]
fn part_keeper() {
    if let Ok(fd) = std::env::var("KEEPER_FD") {
        keeper::main(fd.parse().unwrap()).unwrap();
        std::process::exit(0);
    }
}

#[test]
fn part_guard() {
    if let Ok(dir) = std::env::var("GUARD_DIR") {
        guard(Path::new(&dir));
        std::process::exit(0);
    }
}

/// Takes w0 over as a guard does, says so, and waits to be killed.
fn guard(dir: &Path) {
    let mut access = Access::for_current_netns().unwrap();
    let ifindex = netns::index_of("w0").unwrap();
    let (mut journal, _) = Journal::claim(&dir.join("run"), &mut access, ifindex).unwrap();
    let napi_id = napi::list(ifindex).unwrap()[0].id;
    let handle = UdpSocket::bind("10.9.0.1:7000").unwrap();
    println!("bound");
    handle.recv(&mut [0; 16]).unwrap();
    let set = |option: i32, value: i32| {
        // SAFETY: `value` lives through the call and its size is given.
        let r = unsafe {
            let value = (&raw const value).cast();
            libc::setsockopt(handle.as_raw_fd(), libc::SOL_SOCKET, option, value, 4)
        };
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
    };
    set(libc::SO_BUSY_POLL, 1);
    set(69, 1);
    set(70, 8);
    handle.set_nonblocking(true).unwrap();

    let planned = [
        (Setting::NapiFlush { ifindex, napi_id }, Value::Number(FLUSH_NS)),
        (Setting::NapiDefer { ifindex, napi_id }, Value::Number(8)),
    ]
    .map(|(setting, new)| Planned { setting, queue: Some(0), old: access.read(&setting).unwrap(), new });
    journal.record(&mut access, &planned).unwrap();
    let mut keeper = Keeper::spawn(&dir.join("keeper")).unwrap();
    keeper.journal(&journal).unwrap();
    keeper.handle(napi_id, handle.as_fd()).unwrap();
    let pulse = keeper.pulse();
    if std::env::var("GUARD_BEATS").is_ok() {
        pulse.arm();
        let beat = pulse.clone();
        std::thread::spawn(move || {
            loop {
                beat.tick();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    }
    for p in &planned {
        access.write(&p.setting, &p.new).unwrap();
    }
    let turn = || _ = handle.recv(&mut [0; 16]);
    turn();
    assert!(keeper.alive());
    println!("polling {} {}", keeper.pid(), keeper.left_cgroup());
    if std::env::var("GUARD_ENDS").is_ok() {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let done = journal.restore(&mut access);
        assert!(done.iter().all(|o| matches!(o.fate, Fate::Restored { .. })), "{done:?}");
        turn();
        journal.remove().unwrap();
        keeper.dismiss().unwrap();
        return;
    }
    let until = Instant::now() + Duration::from_secs(60);
    let mut seen = pulse.revoked();
    while Instant::now() < until {
        if pulse.revoked() != seen {
            seen = pulse.revoked();
            // As a guard does that has noticed: the source is taken over anew. A stop right after the first write must find the
            // keeper watching, whether the other thread has beaten since or not.
            pulse.disarm();
            pulse.arm();
            for p in &planned {
                access.write(&p.setting, &p.new).unwrap();
            }
            println!("revoked {seen}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A guard under test: a pair of namespaces, the guard inside one, the sender in the other.
struct Scene {
    host: NetNs,
    wire: NetNs,
    dir: tempfile::TempDir,
}

struct Guard {
    child: Child,
    out: BufReader<ChildStdout>,
    keeper: u32,
    apart: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Scene {
    fn new(tag: &str) -> Self {
        let (host, wire) = (NetNs::new(&format!("{tag}h")), NetNs::new(&format!("{tag}w")));
        host.sh("ip", &["link", "add", "w0", "type", "veth", "peer", "name", "w1", "netns", wire.name()]);
        host.sh("ip", &["addr", "add", "10.9.0.1/24", "dev", "w0"]);
        wire.sh("ip", &["addr", "add", "10.9.0.2/24", "dev", "w1"]);
        host.sh("ip", &["link", "set", "w0", "up"]);
        wire.sh("ip", &["link", "set", "w1", "up"]);
        host.run(|| ethtool::set_gro("w0", true).unwrap());
        // Datagrams of a sender with segmentation offload go round the receiver's NAPI.
        wire.sh("ethtool", &["-K", "w1", "tso", "off", "gso", "off"]);
        // No ARP later, when nobody polls.
        wire.sh("ip", &["neigh", "replace", "10.9.0.1", "lladdr", &mac(&host, "w0"), "dev", "w1"]);
        host.sh("ip", &["neigh", "replace", "10.9.0.2", "lladdr", &mac(&wire, "w1"), "dev", "w0"]);
        let dir = tempfile::tempdir().unwrap();
        let me = std::env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\n[ \"$1 $2\" = 'keeper --fd' ] || exit 9\nKEEPER_FD=$3 exec '{}' --exact part_keeper \
             --nocapture --test-threads=1\n",
            me.display()
        );
        fs::write(dir.path().join("keeper"), script).unwrap();
        fs::set_permissions(dir.path().join("keeper"), fs::Permissions::from_mode(0o755)).unwrap();
        Scene { host, wire, dir }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn guard(&self, ends: bool) -> Guard {
        self.start(if ends { "GUARD_ENDS" } else { "GUARD_STAYS" })
    }

    fn start(&self, how: &str) -> Guard {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "part_guard", "--nocapture", "--test-threads=1"]);
        command.env("GUARD_DIR", self.dir.path()).env(how, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A child is born in the namespace of the thread that starts it.
        let mut child = self.host.run(|| command.spawn().unwrap());
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut guard = Guard { child, out, keeper: 0, apart: false };
        guard.line("bound");
        self.send(7000, 1);
        let polling = guard.line("polling ");
        let (pid, apart) = polling.split_once(' ').unwrap();
        (guard.keeper, guard.apart) = (pid.parse().unwrap(), apart == "true");
        guard
    }

    fn send(&self, port: u16, count: usize) {
        self.wire.run(|| {
            let socket = UdpSocket::bind("10.9.0.2:0").unwrap();
            (0..count).for_each(|_| _ = socket.send_to(b"x", ("10.9.0.1", port)).unwrap());
        });
    }

    /// Current defer and flush of w0's NAPI.
    fn values(&self) -> (Option<u32>, Option<u64>) {
        self.host.run(|| {
            let list = napi::list(netns::index_of("w0").unwrap()).unwrap();
            (list[0].defer_hard_irqs, list[0].gro_flush_timeout_ns)
        })
    }

    fn journals(&self) -> usize {
        kern::journal::paths(&self.run_dir()).unwrap().len()
    }
}

impl Guard {
    /// Reads on until a line has `prefix` in it; answers what follows.
    fn line(&mut self, prefix: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the guard ended before it said {prefix:?}");
            if let Some((_, rest)) = line.split_once(prefix) {
                return rest.trim().into();
            }
        }
    }
}

fn mac(ns: &NetNs, interface: &str) -> String {
    let json: serde_json::Value =
        serde_json::from_str(&ns.sh("ip", &["-j", "link", "show", interface])).unwrap();
    json[0]["address"].as_str().unwrap().to_string()
}

fn wait_until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    begin.elapsed()
}

#[test]
fn keeper_restores_after_sigkill_and_makes_the_last_turn_root() {
    if !root_or_skip("keeper_restores_after_sigkill_and_makes_the_last_turn_root") {
        return;
    }
    let scene = Scene::new("kill");
    let receiver = scene.host.run(|| UdpSocket::bind("10.9.0.1:9000").unwrap());
    receiver.set_nonblocking(true).unwrap();
    let mut got = 0;
    let mut received = || {
        while receiver.recv(&mut [0; 16]).is_ok() {
            got += 1;
        }
        got
    };
    for round in 1..=3 {
        let mut guard = scene.guard(false);
        assert_eq!(scene.values(), (Some(8), Some(FLUSH_NS)));
        // More than one turn hands up, into a source that nobody polls any more.
        scene.send(9000, 20);
        std::thread::sleep(Duration::from_millis(50));
        // One datagram may pass: the interrupt that was enabled at takeover.
        assert!(received() <= (round - 1) * 20 + 2, "the source is not taken over");
        guard.child.kill().unwrap();
        let settings = wait_until("settings", DEADLINE, || scene.values() == (Some(0), Some(0)));
        let packets = wait_until("packets", DEADLINE, || received() == round * 20);
        wait_until("journal", DEADLINE, || scene.journals() == 0);
        wait_until("keeper's exit", DEADLINE, || proc::start_time(guard.keeper).is_none());
        println!("settings back after {settings:?}, packets {packets:?} later");
    }
}

#[test]
fn a_dismissed_keeper_leaves_nothing_root() {
    if !root_or_skip("a_dismissed_keeper_leaves_nothing_root") {
        return;
    }
    let scene = Scene::new("dismiss");
    let mut guard = scene.guard(true);
    drop(guard.child.stdin.take());
    assert!(guard.child.wait().unwrap().success());
    assert_eq!(proc::start_time(guard.keeper), None, "reaped by its guard");
    assert_eq!((scene.values(), scene.journals()), ((Some(0), Some(0)), 0));
}

#[test]
fn the_keeper_stands_apart_root() {
    if !root_or_skip("the_keeper_stands_apart_root") {
        return;
    }
    let scene = Scene::new("apart");
    let guard = scene.guard(false);
    let of = |pid: u32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let stat = of(guard.keeper, "stat");
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    assert_eq!(fields[3], guard.keeper.to_string(), "a session of its own");
    assert_eq!(fs::read_link(format!("/proc/{}/cwd", guard.keeper)).unwrap(), Path::new("/"));
    let fds: Vec<String> = fs::read_dir(format!("/proc/{}/fd", guard.keeper))
        .unwrap()
        .filter_map(|e| fs::read_link(e.unwrap().path()).ok())
        .map(|l| l.to_string_lossy().into_owned())
        .collect();
    // Standard streams, the guard's socket, the guard, its witness, the bell, the handle, netlink, and its own sysfs with its mount.
    assert!(fds.len() <= 3 + 8, "{fds:?}");
    assert!(!fds.iter().any(|f| f.contains("run") || f.contains(".json")), "{fds:?}");
    let used = || -> u64 {
        // All threads: here the keeper runs in a thread of the test program.
        fs::read_dir(format!("/proc/{}/task", guard.keeper))
            .unwrap()
            .filter_map(|t| fs::read_to_string(t.unwrap().path().join("schedstat")).ok())
            .map(|s| s.split(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    // The terminal's signals, and those of a shell that ends.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        // SAFETY: a plain system call on a process that this test has started.
        assert_eq!(unsafe { libc::kill(guard.keeper as i32, signal) }, 0);
    }
    std::thread::sleep(Duration::from_millis(50));
    let before = used();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(used(), before, "an idle keeper uses no CPU time");
    assert_eq!(scene.values(), (Some(8), Some(FLUSH_NS)), "and survives them");
}

#[test]
fn undo_restores_when_guard_and_keeper_died_root() {
    if !root_or_skip("undo_restores_when_guard_and_keeper_died_root") {
        return;
    }
    let scene = Scene::new("undo");
    let dir = scene.run_dir();
    let here = || scene.host.run(|| undo::undo(&dir, &[]).unwrap());
    assert_eq!(here(), undo::Report::default(), "nothing to undo");
    let mut guard = scene.guard(false);

    let interface = || "w0".to_string();
    let pid = guard.child.id();
    assert_eq!(here().journals, [Undone::Guarded { interface: interface(), pid }]);
    let outside = undo::undo(&dir, &[]).unwrap();
    let netns = scene.host.run(|| netns::current_inode().unwrap());
    let netns_name = Some(scene.host.name().to_string());
    assert_eq!(
        outside.journals,
        [Undone::Elsewhere { interface: interface(), pid, alive: true, netns, netns_name }]
    );
    assert_eq!(scene.values(), (Some(8), Some(FLUSH_NS)), "a live guard is never undone");

    // SAFETY: a plain system call on a process that this test has started.
    assert_eq!(unsafe { libc::kill(guard.keeper as i32, libc::SIGKILL) }, 0);
    wait_until("keeper's end", DEADLINE, || proc::start_time(guard.keeper).is_none());
    guard.child.kill().unwrap();
    guard.child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(scene.values(), (Some(8), Some(FLUSH_NS)), "nobody has restored yet");

    let dry = scene.host.run(|| undo::dry_run(&dir, &[]).unwrap());
    assert_eq!(scene.values(), (Some(8), Some(FLUSH_NS)), "a dry run changes nothing");
    let done = here();
    assert_eq!(dry, done);
    assert_eq!((done.restored(), done.complete(), done.settles_in_ms), (2, true, FLUSH_NS / 1_000_000));
    assert_eq!((scene.values(), scene.journals()), ((Some(0), Some(0)), 0));
    assert_eq!(here(), undo::Report::default());

    // A file that weir did not write is reported and left.
    let alien = dir.join("1-2.json");
    fs::write(&alien, "{}").unwrap();
    let report = here();
    assert!(matches!(report.journals[..], [Undone::Unreadable { .. }]) && !report.complete());
    assert!(alien.exists());
}

#[test]
fn a_keeper_leaves_the_journal_of_a_new_guard_alone_root() {
    if !root_or_skip("a_keeper_leaves_the_journal_of_a_new_guard_alone_root") {
        return;
    }
    let scene = Scene::new("newer");
    let mut guard = scene.guard(false);
    let path = kern::journal::paths(&scene.run_dir()).unwrap().remove(0);
    // As if another guard had claimed the interface between the death and the keeper's turn.
    let mut v: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    v["guard"] = serde_json::to_value(Owner::me().unwrap()).unwrap();
    fs::write(&path, v.to_string()).unwrap();
    guard.child.kill().unwrap();
    guard.child.wait().unwrap();
    wait_until("keeper's exit", DEADLINE, || proc::start_time(guard.keeper).is_none());
    assert_eq!(scene.values(), (Some(8), Some(FLUSH_NS)));
    assert_eq!(scene.journals(), 1);
}

#[test]
fn spawn_tells_why_it_fails_root() {
    if !root_or_skip("spawn_tells_why_it_fails_root") {
        return;
    }
    assert_eq!(Keeper::spawn(Path::new("/nonexistent/weir")).unwrap_err().errno(), Some(libc::ENOENT));
    let begin = Instant::now();
    let error = Keeper::spawn(Path::new("/bin/true")).unwrap_err();
    assert!(begin.elapsed() < DEADLINE && error.to_string().contains("exited"), "{error}");
    // Started by hand.
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "part_keeper", "--nocapture"])
        .env("KEEPER_FD", "7")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!child.wait().unwrap().success() && said.contains("started by `weir guard` only"), "{said}");
}

const OLD: (Option<u32>, Option<u64>) = (Some(0), Some(0));
const POLLED: (Option<u32>, Option<u64>) = (Some(8), Some(FLUSH_NS));

fn signal(pid: u32, signal: i32) {
    // SAFETY: a plain system call on a process that this test has started.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Stops a process; it stands when each of its threads has seen the signal.
fn stop(pid: u32) {
    signal(pid, libc::SIGSTOP);
    let stands = |task: std::io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    wait_until("stop", DEADLINE, || fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(stands));
}

/// A stopped guard is restored under within its time, is told so when it goes on, and is watched again. The time is
/// measured from the signal; its bound is the promise plus what a busy machine may be late, so the median is printed.
#[test]
fn a_guard_that_does_not_move_is_restored_under_root() {
    if !root_or_skip("a_guard_that_does_not_move_is_restored_under_root") {
        return;
    }
    let scene = Scene::new("stop");
    let mut guard = scene.start("GUARD_BEATS");
    // Several patiences: a guard that beats is left alone.
    std::thread::sleep(4 * keeper::PULSE_PATIENCE);
    assert_eq!(scene.values(), POLLED);
    let mut times = Vec::new();
    for round in 1..=5 {
        let begin = Instant::now();
        signal(guard.child.id(), libc::SIGSTOP);
        wait_until("settings", DEADLINE, || scene.values() == OLD);
        times.push(begin.elapsed());
        assert_eq!(scene.journals(), 1, "it lives, and so does its journal");
        assert!(Owner { pid: guard.keeper, start: proc::start_time(guard.keeper).unwrap() }.alive());
        signal(guard.child.id(), libc::SIGCONT);
        // It counts before its first write and after its last; a guard that goes on between the two hears both.
        let mut counted: u32 = guard.line("revoked ").parse().unwrap();
        if counted == 2 * round - 1 {
            counted = guard.line("revoked ").parse().unwrap();
        }
        assert_eq!(counted, 2 * round);
        assert_eq!(scene.values(), POLLED, "it has taken over anew, and is watched anew");
    }
    times.sort();
    println!("restored {times:?} after the stop");
    // The keeper it has is still the one that restores after a death.
    guard.child.kill().unwrap();
    wait_until("settings", DEADLINE, || scene.values() == OLD);
    wait_until("journal", DEADLINE, || scene.journals() == 0);
}

/// A group of this test in a hierarchy, removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(root: &str) -> Option<Group> {
        let path = Path::new(root).join(format!("weir-test-{}", std::process::id()));
        fs::create_dir(&path).is_ok().then_some(Group(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait_until("empty group", DEADLINE, || fs::remove_dir(&self.0).is_ok());
    }
}

/// Guard and whoever shares its control group are frozen; the keeper is not.
#[test]
fn a_freezer_does_not_stop_the_keeper_root() {
    if !root_or_skip("a_freezer_does_not_stop_the_keeper_root") {
        return;
    }
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let Some(root) = roots.into_iter().find(|r| Path::new(r).join("cgroup.controllers").exists()) else {
        eprintln!("skipped: no control groups of version 2");
        return;
    };
    let Some(group) = Group::new(root) else {
        eprintln!("skipped: no control group can be made");
        return;
    };
    let scene = Scene::new("freeze");
    // The guard's child is in its group from the start: a shell puts itself there before it becomes the keeper.
    let script = scene.dir.path().join("keeper");
    let text = fs::read_to_string(&script).unwrap();
    let enter = format!("echo 0 > '{}/cgroup.procs'\n", group.0.display());
    fs::write(&script, text.replacen('\n', &format!("\n{enter}"), 1)).unwrap();
    let guard = scene.start("GUARD_BEATS");
    fs::write(group.0.join("cgroup.procs"), guard.child.id().to_string()).unwrap();
    let of_keeper = fs::read_to_string(format!("/proc/{}/cgroup", guard.keeper)).unwrap();
    assert!(of_keeper.lines().any(|l| l == "0::/"), "{of_keeper}");
    assert!(guard.apart, "and the guard can say so");
    let begin = Instant::now();
    fs::write(group.0.join("cgroup.freeze"), "1").unwrap();
    wait_until("settings", DEADLINE, || scene.values() == OLD);
    println!("restored {:?} after the freeze", begin.elapsed());
    fs::write(group.0.join("cgroup.freeze"), "0").unwrap();
    drop(guard);
    wait_until("journal", DEADLINE, || scene.journals() == 0);
}

/// An answer that comes after the guard has given it up is never taken for that to the next request.
#[test]
fn a_late_answer_is_nobodys_root() {
    if !root_or_skip("a_late_answer_is_nobodys_root") {
        return;
    }
    let scene = Scene::new("late");
    let mut keeper = scene.host.run(|| Keeper::spawn(&scene.dir.path().join("keeper")).unwrap());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let pid = keeper.pid();
    for round in 1..=5 {
        stop(pid);
        let begin = Instant::now();
        // It would be refused: no descriptor is a handle of this request.
        let late = keeper.drop_handle(1).unwrap_err();
        assert!(late.is_lost() && begin.elapsed() < 2 * keeper::PATIENCE, "{late}");
        signal(pid, libc::SIGCONT);
        keeper.handle(round, socket.as_fd()).unwrap();
        assert!(keeper.alive());
    }
    stop(pid);
    keeper.kill();
    assert_eq!(proc::start_time(pid), None, "ended and reaped, though it was stopped");
}

/// Its class, without the flag that its children have none.
fn policy(pid: i32) -> i32 {
    // SAFETY: a plain system call.
    unsafe { libc::sched_getscheduler(pid) & !libc::SCHED_RESET_ON_FORK }
}

/// Puts a thread back into the normal class.
fn make_normal(tid: i32) -> i32 {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` lives through the call.
    unsafe { libc::sched_setscheduler(tid, libc::SCHED_OTHER, &raw const param) }
}

fn threads(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(|task| task.unwrap().file_name().to_str()?.parse().ok()).collect()
}

/// The guard dies while its keeper is being started: whoever is the parent by then is none of the keeper's business.
#[test]
fn a_keeper_without_a_guard_hurries_nobody_root() {
    if !root_or_skip("a_keeper_without_a_guard_hurries_nobody_root") {
        return;
    }
    let scene = Scene::new("orphan");
    let script = scene.dir.path().join("keeper");
    let text = fs::read_to_string(&script).unwrap();
    let (ready, go) = (scene.dir.path().join("ready"), scene.dir.path().join("go"));
    // The keeper's program begins when its parent is dead, and says when it has ended.
    let wait = format!(
        "echo $$ > '{0}.tmp'; mv '{0}.tmp' '{0}'\nwhile [ ! -e '{1}' ]; do sleep 0.01; done\n",
        ready.display(),
        go.display()
    );
    fs::write(&script, text.replacen('\n', &format!("\n{wait}"), 1)).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "part_guard", "--nocapture", "--test-threads=1"]);
    command.env("GUARD_DIR", scene.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = scene.host.run(|| command.spawn().unwrap());
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut guard = Guard { child, out, keeper: 0, apart: false };
    guard.line("bound");
    scene.send(7000, 1);
    wait_until("keeper", DEADLINE, || ready.exists());
    let keeper: u32 = fs::read_to_string(&ready).unwrap().trim().parse().unwrap();
    // The guard greets as soon as it has started the keeper's program: one that dies before is nobody's guard anyway.
    std::thread::sleep(Duration::from_millis(300));
    guard.child.kill().unwrap();
    guard.child.wait().unwrap();
    let stat = fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap();
    let parent: i32 = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap();
    let before =
        threads(1).into_iter().chain(threads(parent)).map(|tid| (tid, policy(tid))).collect::<Vec<_>>();
    // First, so that a test which fails leaves no keeper that waits.
    fs::write(&go, "").unwrap();
    assert!(before.iter().all(|(_, policy)| *policy == libc::SCHED_OTHER), "nothing to see here: {before:?}");
    wait_until("keeper's exit", DEADLINE, || proc::start_time(keeper).is_none());
    let hurried: Vec<i32> = before.iter().map(|(tid, _)| *tid).filter(|t| policy(*t) > 0).collect();
    // A keeper with this defect must not leave the machine's first process behind like that.
    hurried.iter().for_each(|tid| assert_eq!(make_normal(*tid), 0));
    assert!(hurried.is_empty(), "{hurried:?}");
    assert_eq!(scene.values(), OLD, "the guard had changed nothing");
}
