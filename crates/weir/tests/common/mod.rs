//! What the whole-program tests of the guard share: a host and a wire in namespaces of their own, the programs in
//! them, and the comparison of everything that a guard could have left changed.
//!
//! CPU 0 is the wire: it generates the load and carries what answers for the programs. CPU 1 is the host. A test
//! that loads them holds [`alone`], because two floods at once would measure each other.
//!
//! `WEIR_SOAK=1` makes the rounds many, `WEIR_SEED=N` repeats their random moments.

#![allow(dead_code, reason = "each test program uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

pub mod delay;
pub mod dump;
pub mod faults;
pub mod foreign;
pub mod freezer;
pub mod http;
pub mod least;
pub mod podman;
pub mod procs;
pub mod quiet;
pub mod stamps;
pub mod targets;
pub mod watched;
pub mod world;

use std::fs::File;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

/// The CPU that generates and carries packets.
pub const WIRE_CPU: usize = 0;
/// The CPU of the machine under test.
pub const HOST_CPU: usize = 1;
/// A test asserts this many times the stated deadline; what was measured is printed.
pub const PATIENCE: u32 = 5;

/// True if this machine can run the test; otherwise says what it lacks.
pub fn possible(name: &str) -> bool {
    if !testkit::root_or_skip(name) {
        return false;
    }
    let cpus = kern::cpus::online().unwrap();
    let enough = cpus.contains(WIRE_CPU) && cpus.contains(HOST_CPU);
    if !enough {
        eprintln!("skipped: {name} needs CPU {WIRE_CPU} and CPU {HOST_CPU}");
    }
    enough
}

/// Waits until no other test loads the CPUs, in this program or another; held until dropped.
pub fn alone() -> Flock<File> {
    let path = std::env::temp_dir().join("weir-tests.lock");
    let file = File::options().create(true).append(true).open(&path).unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e).unwrap();
    // Threads that this test starts are the wire's unless they say otherwise.
    kern::wire::tasks::pin(0, WIRE_CPU).unwrap();
    lock
}

/// True in the long runs.
pub fn soak() -> bool {
    std::env::var("WEIR_SOAK").is_ok_and(|v| v == "1")
}

/// How often: `normal`, or `long` in the long runs.
pub fn rounds(normal: usize, long: usize) -> usize {
    if soak() { long } else { normal }
}

/// xorshift64: moments that nobody chose, the same ones for the same seed.
pub struct Random(u64);

impl Random {
    /// From WEIR_SEED, else from the clock; the seed is printed.
    pub fn new() -> Random {
        Random(Random::seed())
    }

    /// The same, for those that make several of it.
    pub fn seed() -> u64 {
        let given = std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok());
        let clock = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = given.unwrap_or_else(clock).max(1);
        println!("seed {seed}");
        seed
    }

    /// From a seed whose neighbours are used too: splitmix64 tells them apart.
    pub fn from(seed: u64) -> Random {
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((mixed ^ (mixed >> 31)).max(1))
    }

    /// A time below `end`.
    pub fn below(&mut self, end: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_nanos(self.0 % end.as_nanos() as u64)
    }
}

/// Milliseconds, for short.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Waits until `holds`; the time it took. Panics after [`PATIENCE`] times `limit`.
pub fn within(what: &str, limit: Duration, holds: impl FnMut() -> bool) -> Duration {
    within_or(what, limit, holds, String::new)
}

/// As [`within`]; a panic says what `why` gives, too.
pub fn within_or(
    what: &str,
    limit: Duration,
    mut holds: impl FnMut() -> bool,
    why: impl Fn() -> String,
) -> Duration {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < limit * PATIENCE, "{what}: not within {PATIENCE} x {limit:?} {}", why());
        std::thread::sleep(ms(5));
    }
    begin.elapsed()
}

/// Resident memory of a process, KiB.
pub fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Smallest, middle and largest of some values, in a line of the test's output.
pub fn spread(what: &str, unit: &str, values: &[f64]) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |q: f64| {
        sorted.get((sorted.len().saturating_sub(1) as f64 * q) as usize).copied().unwrap_or(f64::NAN)
    };
    println!(
        "{what}: n {} min {:.2} median {:.2} p90 {:.2} max {:.2} {unit}",
        sorted.len(),
        at(0.0),
        at(0.5),
        at(0.9),
        at(1.0)
    );
}
