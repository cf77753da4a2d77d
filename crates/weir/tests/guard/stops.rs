//! Stops, freezes, aborts and kills of guard and keeper at random moments of a flood; then ordinary traffic to the same
//! port. What the program does not read of it, in milliseconds of that traffic.
//!
//! 12 stops; WEIR_STOPS=N as many, 1000 in the long runs. A failure prints the command that repeats its stop.
//!
//! Why it cannot flake: the stock kernel is measured with the same load in the same world, and what it loses is allowed on
//! top; so is the time in which the program wanted its CPU and another one had it, or another machine, which the kernel tells. A
//! program from which packets are held back does not want it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::common::dump::assert_same;
use crate::common::freezer::Freezer;
use crate::common::procs::{Guard, Manner, none_left, signal};
use crate::common::quiet::stolen;
use crate::common::world::{PORT, World, bind_to};
use crate::common::{HOST_CPU, Random, WIRE_CPU, alone, ms, possible, rounds, spread, within};
use kern::wire::tasks;
use nix::sys::signal::Signal;

/// What nobody may lose more of than on a stock kernel.
const BOUND: Duration = ms(50);
/// The flood, packets/s.
const FLOOD: f64 = 2e6;
/// Length of the flood before the traffic.
const BEFORE: Duration = ms(150);
/// Rates of the traffic after the flood, packets/s, and its length.
const AFTER: [(f64, Duration); 2] = [(5_000.0, ms(250)), (100_000.0, ms(200))];

/// Of the reader per datagram.
const WORK: Duration = Duration::from_micros(2);

/// What is done to guard and keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    /// SIGSTOP, and SIGCONT some time later.
    Stopped,
    /// SIGSTOP, and SIGKILL some time later.
    StoppedKilled,
    /// The cgroup that the guard was started in is frozen, and thawed some time later.
    Frozen,
    /// What a panic of any thread does.
    Aborted,
    /// A panic of a poller at a moment of the flood, in a guard that was started for it (builds with debug assertions).
    Panicked,
    GuardKilled,
    KeeperKilled,
    /// Nobody is left to act: measured, with what `weir undo` restores.
    BothStopped,
    BothKilled,
}

use Stop::{
    Aborted, BothKilled, BothStopped, Frozen, GuardKilled, KeeperKilled, Panicked, Stopped, StoppedKilled,
};

const STOPS: [Stop; 9] =
    [Stopped, StoppedKilled, Frozen, Aborted, Panicked, GuardKilled, KeeperKilled, BothStopped, BothKilled];

/// A program on the host CPU that remembers the number of each datagram it has read.
struct Reader {
    read: Arc<Mutex<Vec<u64>>>,
    tid: i32,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Reader {
    fn start(world: &World) -> Reader {
        let socket = world.server(0, PORT);
        socket.set_read_timeout(Some(ms(50))).unwrap();
        let (read, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (numbers, ends) = (Arc::clone(&read), Arc::clone(&stop));
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            bind_to(&[HOST_CPU]);
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            let mut bytes = [0u8; 64];
            while !ends.load(Relaxed) {
                if socket.recv(&mut bytes).is_ok_and(|length| length >= 16) {
                    let number = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
                    numbers.lock().unwrap().push(number);
                    // Work, so that the flood is one.
                    let begin = Instant::now();
                    while begin.elapsed() < WORK {}
                }
            }
        });
        Reader { read, tid: told.recv().unwrap(), stop, thread: Some(thread) }
    }

    fn numbers(&self) -> MutexGuard<'_, Vec<u64>> {
        self.read.lock().unwrap()
    }

    /// For how long it has wanted the CPU without having it, so far.
    fn waited(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.tid)).unwrap();
        Duration::from_nanos(text.split_whitespace().nth(1).unwrap().parse().unwrap())
    }

    /// Waits until nothing more arrives, at most 1 s.
    fn drained(&self) {
        let (mut last, mut since, begin) = (self.numbers().len(), Instant::now(), Instant::now());
        while since.elapsed() < ms(40) && begin.elapsed() < ms(1000) {
            std::thread::sleep(ms(5));
            let now = self.numbers().len();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// The world of all stops.
struct Scene {
    world: World,
    reader: Reader,
    freezer: Option<Freezer>,
    guard: Option<Guard>,
    /// Milliseconds lost of the same traffic after `weir undo`.
    undone: Vec<f64>,
}

impl Scene {
    /// A flood and then traffic, with `act` meanwhile; milliseconds of the traffic that were not read, without those in
    /// which another program or another machine had the CPU.
    fn lost(&self, after: (f64, Duration), act: impl FnOnce()) -> f64 {
        if !self.world.taken(0) {
            self.world.prime(0);
        }
        self.reader.drained();
        self.reader.numbers().clear();
        let load = self.world.send(&[(0, PORT)], &[], &[(BEFORE, FLOOD), (after.1, after.0)]);
        // What another machine had may be in what the program has waited.
        let elsewhere = || (self.reader.waited(), Duration::from_nanos(stolen(&[HOST_CPU])));
        let (sent, missed) = std::thread::scope(|scope| {
            let from = scope.spawn(|| {
                std::thread::sleep(BEFORE);
                elsewhere()
            });
            act();
            let sent = load.wait().unwrap();
            let (from, to) = (from.join().unwrap(), elsewhere());
            (sent, to.0.saturating_sub(from.0).max(to.1.saturating_sub(from.1)))
        });
        self.reader.drained();
        let from = sent.by_phase[0];
        let read = self.reader.numbers().iter().filter(|n| **n >= from).count() as u64;
        let lost = sent.by_phase[1].saturating_sub(read);
        (lost as f64 / after.0 * 1e3 - missed.as_secs_f64() * 1e3).max(0.0)
    }

    fn guard(&mut self) -> &mut Guard {
        if self.guard.is_none() {
            let start = || self.world.guard(&[]);
            // As a service manager does: the guard begins its life in a group of its own.
            self.guard = Some(self.freezer.as_ref().map_or_else(start, |f| f.around(start)));
        }
        self.guard.as_mut().unwrap()
    }

    /// True if freezing the guard's group freezes its keeper too.
    fn together(&mut self) -> bool {
        let (guard, keeper) = (self.guard().pid(), self.guard().keeper());
        self.freezer.as_ref().is_some_and(|f| f.holds(guard) && f.holds(keeper))
    }

    /// One stop at `at` of the load, ended `later`; milliseconds lost, and if the source was polled then.
    fn one(&mut self, stop: Stop, after: (f64, Duration), at: Duration, later: Duration) -> (f64, bool) {
        if stop == Panicked {
            drop(self.guard.take());
            // From its first turn on.
            let env = vec![("WEIR_TEST_PANIC".to_owned(), format!("poller:{}", at.as_millis()))];
            let manner = Manner { env, ..Manner::default() };
            let cpus = [WIRE_CPU, HOST_CPU];
            self.guard = Some(Guard::start_as(&self.world, &["in0", "--cpu", "1"], &cpus, &manner).unwrap());
        }
        let (pid, keeper) = (self.guard().pid(), self.guard().keeper());
        let scene = &*self;
        let mut polled = false;
        let freezer = || scene.freezer.as_ref().unwrap();
        let lost = scene.lost(after, || {
            std::thread::sleep(at);
            polled = scene.world.taken(0);
            match stop {
                Stopped | StoppedKilled => signal(pid, Signal::SIGSTOP),
                Frozen => freezer().freeze(),
                Aborted => signal(pid, Signal::SIGABRT),
                GuardKilled => signal(pid, Signal::SIGKILL),
                KeeperKilled => signal(keeper, Signal::SIGKILL),
                BothStopped => [keeper, pid].into_iter().for_each(|p| signal(p, Signal::SIGSTOP)),
                // The poller does it by itself.
                Panicked => {}
                BothKilled => [keeper, pid].into_iter().for_each(|p| signal(p, Signal::SIGKILL)),
            }
            std::thread::sleep(later);
            match stop {
                Stopped => signal(pid, Signal::SIGCONT),
                StoppedKilled => signal(pid, Signal::SIGKILL),
                Frozen => freezer().thaw(),
                BothStopped => [keeper, pid].into_iter().for_each(|p| signal(p, Signal::SIGCONT)),
                _ => {}
            }
        });
        self.settle(stop, keeper, after);
        (lost, polled)
    }

    /// Waits until the stop is over: a guard in force with a keeper, or none and nothing left changed.
    fn settle(&mut self, stop: Stop, keeper: u32, after: (f64, Duration)) {
        let mut guard = self.guard.take().unwrap();
        match stop {
            Stopped | Frozen | BothStopped => {
                assert!(guard.alive(), "{stop:?}: {:?}", guard.all());
                guard.ask(&self.world);
                self.guard = Some(guard);
            }
            KeeperKilled => {
                assert!(guard.alive(), "{stop:?}: {:?}", guard.all());
                let pid = guard.pid() as i32;
                let mut found = 0;
                within("another keeper", ms(500), || {
                    let family = tasks::family(pid).unwrap();
                    let other = family.iter().skip(1).find(|p| **p as u32 != keeper);
                    found = other.copied().unwrap_or(0);
                    found != 0
                });
                // Its own record of the keeper is the old one.
                assert_eq!(guard.stop().0.code(), Some(0), "{stop:?}");
                none_left(&self.world, ms(200));
            }
            Panicked if guard.alive() => {
                println!("no panic: no turn, or a build without debug assertions");
                assert_eq!(guard.stop().0.code(), Some(0), "{stop:?}");
            }
            StoppedKilled | Aborted | Panicked | GuardKilled => {
                guard.gone(ms(1000));
                none_left(&self.world, ms(200));
                assert!(!self.world.taken(0), "{stop:?}: the keeper has put nothing back");
            }
            BothKilled => {
                guard.gone(ms(1000));
                let (code, out, err) = self.world.undo();
                assert_eq!((code, err.as_str()), (0, ""), "{out}");
                let lost = self.lost(after, || ());
                self.undone.push(lost);
            }
        }
    }
}

/// `WEIR_STOPS`, else 12, and 1000 in the long runs.
fn wanted() -> usize {
    let given = std::env::var("WEIR_STOPS").ok().and_then(|n| n.parse().ok());
    given.unwrap_or_else(|| rounds(12, 1000))
}

#[test]
fn a_stop_loses_no_more_than_50_ms_root() {
    const NAME: &str = "a_stop_loses_no_more_than_50_ms_root";
    if !possible(NAME) {
        return;
    }
    let _alone = alone();
    let world = World::new("stops", 1);
    let reader = Reader::start(&world);
    let freezer = Freezer::new("stops");
    if freezer.is_none() {
        println!("no cgroup freezer: nothing is frozen");
    }
    let mut scene = Scene { world, reader, freezer, guard: None, undone: Vec::new() };
    let before = scene.world.dump();
    // What the stock kernel loses of the same traffic.
    let stock = AFTER.map(|after| (0..3).map(|_| scene.lost(after, || ())).fold(0.0, f64::max));
    println!("stock loses at most {stock:.1?} ms");
    let first = Random::seed();
    let mut losses: BTreeMap<(Stop, bool), Vec<f64>> = BTreeMap::new();
    let (together, mut bads, mut polled) = (scene.together(), Vec::new(), 0);
    println!("freezing the guard's group freezes its keeper: {together}");
    for n in 0..wanted() as u64 {
        let seed = first.wrapping_add(n);
        let stop = STOPS[(seed % STOPS.len() as u64) as usize];
        if stop == Frozen && scene.freezer.is_none() {
            continue;
        }
        let fast = seed / STOPS.len() as u64 % 2 == 1;
        let after = AFTER[usize::from(fast)];
        let mut random = Random::from(seed);
        // Long enough to show in the traffic: what ends before it, or in its first 50 ms, can lose no more than that.
        let at = random.below(BEFORE);
        let later = BEFORE - at + BOUND * 2 + random.below(after.1 - BOUND * 2);
        let (lost, in_poll) = scene.one(stop, after, at, later);
        let beyond = (lost - stock[usize::from(fast)]).max(0.0);
        let measured = matches!(stop, BothStopped | BothKilled) || (stop == Frozen && together);
        if !measured && beyond > BOUND.as_secs_f64() * 1e3 {
            bads.push(format!(
                "{stop:?} {at:.0?} after the flood's start, for {later:.0?}, then {:.0} k/s: {beyond:.1} ms lost, \
                 {BOUND:?} are allowed; to repeat it:\n\
                 WEIR_SEED={seed} WEIR_STOPS=1 cargo test -p weir --test guard {NAME} -- --nocapture",
                after.0 / 1e3
            ));
        }
        polled += usize::from(in_poll);
        losses.entry((stop, fast)).or_default().push(beyond);
    }
    drop(scene.guard.take());
    for ((stop, fast), lost) in &losses {
        let most = lost.iter().copied().fold(0.0, f64::max);
        println!(
            "{stop:?}, then {:.0} k/s: {} stops, at most {most:.1} ms lost",
            AFTER[usize::from(*fast)].0 / 1e3,
            lost.len()
        );
    }
    println!("{polled} in poll mode");
    spread("lost after a death of both and undo", "ms", &scene.undone);
    let most = scene.undone.iter().copied().fold(0.0, f64::max);
    let allowed = stock[0].max(stock[1]) + BOUND.as_secs_f64() * 1e3;
    assert!(most <= allowed, "{most:.1} ms lost after undo, stock {stock:.1?}");
    assert!(polled > 0, "no stop in poll mode: the test shows nothing");
    assert!(bads.is_empty(), "{} stops lost too much:\n{}", bads.len(), bads.join("\n"));
    // Nothing of weir is left.
    assert_same(&before, &scene.world.dump(), "after all stops");
    let light = scene.lost(AFTER[0], || ());
    assert!(light <= stock[0] + BOUND.as_secs_f64() * 1e3, "{light:.1} ms lost when all is over");
}
