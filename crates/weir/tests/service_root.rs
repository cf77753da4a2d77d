//! The service, without a service manager: what weir tells one, what it writes into its journal, and the four
//! capabilities that the unit leaves it. `make package-test` runs the unit itself under systemd.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::dump::assert_same;
use common::procs::{Guard, Manner, signal};
use common::world::{FLOOD, PORT, World, bind_to};
use common::{HOST_CPU, PATIENCE, WIRE_CPU, alone, ms, possible, within};
use nix::sys::signal::Signal;

const CPUS: [usize; 2] = [WIRE_CPU, HOST_CPU];
/// What the manager of these tests waits for a ping.
const WATCHDOG: Duration = ms(2000);

/// A manager that only listens.
struct Manager {
    heard: Arc<Mutex<Vec<(Instant, String)>>>,
    socket: std::path::PathBuf,
}

impl Manager {
    fn new(world: &World) -> Manager {
        let socket = world.dir.path().join("notify");
        let listener = UnixDatagram::bind(&socket).unwrap();
        let heard = Arc::<Mutex<Vec<(Instant, String)>>>::default();
        let notes = Arc::clone(&heard);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends with the test program.
            while let Ok(n) = listener.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                notes.lock().unwrap().push((Instant::now(), text));
            }
        });
        Manager { heard, socket }
    }

    fn manner(&self) -> Manner {
        let env = [
            ("NOTIFY_SOCKET", self.socket.display().to_string()),
            ("WATCHDOG_USEC", WATCHDOG.as_micros().to_string()),
        ];
        Manner { env: env.map(|(k, v)| (k.to_owned(), v)).into(), ..Manner::default() }
    }

    /// Messages with `part` since `then`.
    fn since(&self, then: Instant, part: &str) -> Vec<(Instant, String)> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|(at, text)| *at >= then && text.contains(part)).cloned().collect()
    }
}

/// Stops one thread of a process, and only that, until dropped.
struct Frozen(libc::pid_t);

impl Frozen {
    fn new(pid: u32, name: &str) -> Frozen {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let named = |p: &Path| std::fs::read_to_string(p.join("comm")).unwrap().trim() == name;
        let task = tasks.map(|t| t.path()).find(|p| named(p)).unwrap_or_else(|| panic!("no thread {name}"));
        let tid: libc::pid_t = task.file_name().unwrap().to_str().unwrap().parse().unwrap();
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            // SAFETY: plain system calls without pointers.
            let done = unsafe { libc::ptrace(request, tid, 0, 0) };
            assert_eq!(done, 0, "ptrace {request}: {}", std::io::Error::last_os_error());
        }
        // SAFETY: waits for the stop of that thread; no status is wanted.
        unsafe { libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL) };
        Frozen(tid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: plain system call without pointers.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

#[test]
fn a_service_manager_hears_what_it_must_root() {
    if !possible("a_service_manager_hears_what_it_must_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("notify", 1);
    let _sink = world.sink(0, PORT);
    let manager = Manager::new(&world);
    let begin = Instant::now();
    // Its status is looked at in the flood: polled to the end.
    let arguments = ["in0", "--mode", "poll"];
    let guard = Guard::start_as(&world, &arguments, &CPUS, &manager.manner()).unwrap();
    within("READY=1", ms(500), || !manager.since(begin, "READY=1").is_empty());
    let status = "STATUS=guarding in0: 0 of 1 sources polled";
    assert!(!manager.since(begin, status).is_empty(), "{:?}", manager.since(begin, ""));

    // Under a flood too, and with the pollers asleep.
    world.prime(0);
    let load = world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    std::thread::sleep(WATCHDOG * 2);
    let pings = manager.since(begin, "WATCHDOG=1");
    let gaps: Vec<Duration> = pings.windows(2).map(|p| p[1].0 - p[0].0).collect();
    println!("{} pings, at most {:?} apart", pings.len(), gaps.iter().max());
    assert!(pings.len() >= 4 && gaps.iter().all(|gap| *gap < WATCHDOG), "{gaps:?}");
    within("its status", WATCHDOG, || !manager.since(begin, "1 of 1 sources polled").is_empty());

    let hup = Instant::now();
    signal(guard.pid(), Signal::SIGHUP);
    within("RELOADING=1", ms(500), || !manager.since(hup, "RELOADING=1\nMONOTONIC_USEC=").is_empty());
    within("READY=1 again", ms(500), || !manager.since(hup, "READY=1").is_empty());

    // A thread that hangs: first one that sleeps, then one that polls.
    for thread in ["weir-poll-0", "weir-poll-1", "weir-watch"] {
        let frozen = Frozen::new(guard.pid(), thread);
        std::thread::sleep(WATCHDOG / 2);
        let then = Instant::now();
        std::thread::sleep(WATCHDOG);
        let pings = manager.since(then, "WATCHDOG=1");
        assert!(pings.is_empty(), "{thread} hangs and the manager hears that all is well: {pings:?}");
        drop(frozen);
        let again =
            within(&format!("{thread} again"), WATCHDOG, || !manager.since(then, "WATCHDOG=1").is_empty());
        println!("{thread} went on: a ping after {again:?}");
    }
    drop(load);
    let end = Instant::now();
    assert_eq!(guard.stop().0.code(), Some(0));
    within("STOPPING=1", ms(500), || !manager.since(end, "STOPPING=1").is_empty());
}

/// Lines of a guard that writes to what it takes for the journal, under a load that comes and goes.
#[test]
fn the_journal_has_one_line_per_cause_and_second_root() {
    if !possible("the_journal_has_one_line_per_cause_and_second_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("journal", 1);
    let _sinks = [world.sink(0, PORT), world.sink(0, PORT + 1)];
    let (reader, writer) = std::io::pipe().unwrap();
    let meta = nix::sys::stat::fstat(writer.as_fd()).unwrap();
    let manner = Manner {
        env: vec![("JOURNAL_STREAM".into(), format!("{}:{}", meta.st_dev, meta.st_ino))],
        ..Manner::default()
    };
    let mut command = manner.command();
    command.args(["guard", "in0", "--cpu", "1"]).args(world.dirs()).stderr(writer);
    let spawn = move || {
        bind_to(&CPUS);
        Ok(command.spawn())
    };
    let mut child = world.host.run(spawn).unwrap().unwrap();
    let collected = std::thread::spawn(move || {
        use std::io::BufRead;
        let lines = std::io::BufReader::new(reader).lines().map_while(Result::ok);
        lines.map(|line| (Instant::now(), line)).collect::<Vec<_>>()
    });
    let pulses: Vec<(Duration, f64)> =
        (0..20).map(|n| (ms(150), if n % 2 == 0 { FLOOD } else { 1000.0 })).collect();
    let load = world.send(&[(0, PORT), (0, PORT + 1)], &[0, 1], &pulses);
    std::thread::sleep(ms(3500));
    drop(load);
    signal(child.id(), Signal::SIGTERM);
    let ended = child.wait().unwrap();
    let lines = collected.join().unwrap();
    assert!(ended.success(), "{ended}: {lines:?}");
    assert!(
        lines.iter().any(|(_, l)| l.contains("takeover")),
        "no takeover: the test shows nothing: {lines:?}"
    );
    let mut last: BTreeMap<String, Instant> = BTreeMap::new();
    for (at, line) in &lines {
        let weight = ["<3>", "<4>", "<6>"].iter().find_map(|w| line.strip_prefix(w));
        let text = weight.unwrap_or_else(|| panic!("no priority: {line:?}"));
        assert!(!line.contains('\u{1b}'), "a colour: {line:?}");
        let clock = text.split(' ').any(|w| w.matches(':').count() == 2 && w.starts_with(char::is_numeric));
        assert!(!clock, "the journal has a clock of its own: {line:?}");
        let words: Vec<&str> = text.split_whitespace().take(2).collect();
        let once = ["weir:", "restored", "verified", "gone"].contains(&words[0]);
        if let (false, Some(before)) = (once, last.insert(words.join(" "), *at)) {
            assert!(*at - before > ms(900), "twice within a second: {line:?}");
        }
    }
    println!("{} lines", lines.len());
    // It says what did not fit, too.
    assert!(lines.len() < 60, "{} lines in 3.5 s", lines.len());
}

/// What the unit's capabilities do not permit where connection tracking is a module.
const ASKING: &str =
    "gate: who has a connection cannot be asked: nf_conntrack is a module, which takes CAP_SYS_ADMIN to ask";

/// The capabilities that the unit names.
fn of_the_unit() -> Vec<String> {
    let unit = include_str!("../../../packaging/weir-guard@.service");
    let line = unit.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).unwrap();
    line.split(' ').map(|c| c.trim_start_matches("CAP_").to_lowercase()).collect()
}

fn with(capabilities: &[String]) -> Manner {
    let set: Vec<String> = capabilities.iter().map(|c| format!("+{c}")).collect();
    let set = format!("-all,{}", set.join(","));
    // The control groups stand where systemd shows them to the unit, read-only; this namespace has a /sys of its own, without any.
    let mount = "mount -t cgroup2 -o ro cgroup2 /sys/fs/cgroup; exec \"$@\"";
    let mount = ["unshare", "--mount", "sh", "-c", mount, "sh"];
    let drop = ["setpriv", "--bounding-set", &set, "--inh-caps", "-all", "--no-new-privs"];
    Manner { prefix: mount.iter().chain(&drop).map(|w| (*w).to_owned()).collect(), ..Manner::default() }
}

#[test]
fn the_units_capabilities_are_enough_and_none_is_too_many_root() {
    if !possible("the_units_capabilities_are_enough_and_none_is_too_many_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("caps", 1);
    let before = world.dump();
    let mut sink = world.sink(0, PORT);
    let all = of_the_unit();
    assert_eq!(all.len(), 4, "{all:?}");

    let guard = Guard::start_as(&world, &["in0", "--cpu", "1"], &CPUS, &with(&all)).unwrap();
    let effective = std::fs::read_to_string(format!("/proc/{}/status", guard.pid())).unwrap();
    let effective = effective.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap().trim().to_owned();
    assert_eq!(u64::from_str_radix(&effective, 16).unwrap().count_ones(), 4, "{effective}");
    world.prime(0);
    let load = world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    std::thread::sleep(ms(100));
    let guarded = sink.window(ms(500)).pps;
    let status = guard.ask(&world);
    assert_eq!(status["pollers"][0]["sched"], "fifo", "{status:#}");
    let missing = status["missing"].as_array().unwrap().iter().map(|m| m.as_str().unwrap());
    // Where connection tracking is a module, it takes more to ask it. In a cgroup namespace nothing shows the root of all groups.
    let initial = std::fs::read_link("/proc/self/ns/cgroup").unwrap().as_os_str() == "cgroup:[4026531835]";
    let unseen = |line: &str| line == ASKING || !initial && line.starts_with("gate: binds");
    let missing: Vec<&str> = missing.filter(|m| !unseen(m)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
    assert_same(&before, &world.dump(), "a guard with four capabilities");

    // The same under a guard that may do everything, for comparison.
    let guard = world.guard(&[]);
    world.prime(0);
    let load = world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    std::thread::sleep(ms(100));
    let ratio = guarded / sink.window(ms(500)).pps;
    println!("with four capabilities: {:.0} k/s read, {ratio:.2} of those with all", guarded / 1e3);
    assert!(ratio > 1.0 / f64::from(PATIENCE), "{ratio}");
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));

    // The keeper that is left needs no more than its guard.
    let mut guard = Guard::start_as(&world, &["in0", "--cpu", "1"], &CPUS, &with(&all)).unwrap();
    world.prime(0);
    let load = world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    guard.kill();
    within("the keeper puts everything back", ms(200), || !world.taken(0));
    drop(load);
    drop(guard);

    for (n, missing) in all.iter().enumerate() {
        let rest: Vec<String> =
            all.iter().enumerate().filter(|(i, _)| *i != n).map(|(_, c)| c.clone()).collect();
        let result = Guard::start_as(&world, &["in0", "--cpu", "1"], &CPUS, &with(&rest));
        match (missing.as_str(), result) {
            // Works, less well.
            ("sys_nice", Ok(guard)) => {
                within("its warning", ms(500), || guard.said("no SCHED_FIFO (needs CAP_SYS_NICE)").is_some());
                assert_eq!(guard.stop().0.code(), Some(0));
            }
            (_, Err(refused)) => {
                assert_eq!(refused.code, Some(3), "without {missing}: {refused:?}");
                let says = refused.lines.iter().any(|l| l.to_lowercase().contains(&format!("cap_{missing}")));
                assert!(says, "without {missing}: {refused:?}");
            }
            (_, Ok(_)) => panic!("{missing} is not needed"),
        }
    }
    assert_same(&before, &world.dump(), "at the end");
}
