//! The one clock of the guard: CLOCK_MONOTONIC in ns, the clock of `bpf_ktime_get_ns`.

use policy::Nanos;

fn read(clock: libc::clockid_t) -> Nanos {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(clock, &raw mut ts) };
    ts.tv_sec as Nanos * 1_000_000_000 + ts.tv_nsec as Nanos
}

/// Now.
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// Now, by the clock of the last tick, which BPF tells its ticks from: never later than [`now`].
pub fn coarse() -> Nanos {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}
