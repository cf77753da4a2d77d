//! The Rust side of `src/bpf/probes.h`: the same structs, with atomics, since the other side writes concurrently.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// What was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// `NET_RX` raised until it runs.
    Softirq,
    /// A packet: queued for a CPU's backlog until handed to the stack there.
    Backlog,
    /// A datagram: handed to the stack until it is in its socket.
    Stack,
    /// Then until the program has it.
    Socket,
    /// Both together.
    Whole,
    /// A segment of TCP: handed to the stack until its program has read it to its end.
    Tcp,
    /// The program that reads a datagram: woken until it runs.
    Wakeup,
}

impl Wait {
    /// In the order of the histograms.
    pub const ALL: [Wait; 7] =
        [Wait::Softirq, Wait::Backlog, Wait::Stack, Wait::Socket, Wait::Whole, Wait::Tcp, Wait::Wakeup];
}

/// Histograms of a CPU.
pub const WAITS: usize = Wait::ALL.len();
/// Buckets of a histogram: below 16 ns exact, then 16 per power of two up to 2^36 ns; the last one has all above.
pub const BUCKETS: usize = 528;
/// Reasons for drops that are told apart: four subsystems of 256.
pub const REASONS: usize = 1024;
/// UDP sockets whose reads are counted.
pub const SOCKETS: usize = 16_384;

/// The bucket's middle, ns; it is off by 3 % at most.
#[must_use]
pub fn middle_ns(bucket: usize) -> f64 {
    let (bucket, sub) = (bucket.min(BUCKETS - 1), bucket.min(BUCKETS - 1) % 16);
    match bucket / 16 {
        0 => bucket as f64,
        power => {
            let width = f64::from(1u32 << (power - 1));
            (16.0 + sub as f64) * width + (width - 1.0) / 2.0
        }
    }
}

/// The index under which BPF counts a reason of the kernel.
pub(super) fn slot(reason: u32) -> usize {
    let at = ((reason >> 16) << 8 | reason & 0xff) as usize;
    if at >= REASONS || reason & 0xff00 != 0 { 0 } else { at }
}

/// `struct weir_looks`.
#[repr(C)]
struct Looks {
    left: AtomicU32,
    gap: AtomicU32,
    looked_ns: AtomicU64,
}

/// `struct weir_probe_cpu`.
#[repr(C, align(64))]
pub(super) struct CpuStat {
    stack: Looks,
    backlog: Looks,
    pointer: AtomicU64,
    skb: AtomicU64,
    entry_ns: AtomicU64,
    weight: AtomicU32,
    waking: AtomicU32,
    raised_ns: AtomicU64,
    raises: AtomicU32,
    pending: AtomicU32,
    pub lost: AtomicU32,
    pub samples: [AtomicU32; WAITS],
    pub wait: [[AtomicU32; BUCKETS]; WAITS],
    pub drops: [AtomicU32; REASONS],
    pub unplaced: [AtomicU32; REASONS],
}

/// `struct weir_probe_socket`.
#[repr(C)]
pub(super) struct SocketStat {
    pub inode: AtomicU32,
    pub reads: AtomicU32,
}

// Ten words of counters and times, then 4 bytes each: as in C, up to the next cache line.
const _: () = {
    let words = 1 + WAITS + WAITS * BUCKETS + 2 * REASONS;
    assert!(std::mem::offset_of!(CpuStat, lost) == 80);
    assert!(std::mem::offset_of!(CpuStat, wait) == 84 + 4 * WAITS);
    assert!(size_of::<CpuStat>() == (80 + 4 * words).next_multiple_of(64));
    assert!(size_of::<SocketStat>() == 8);
};

/// What [`crate::abi_tests`] compares.
#[cfg(all(test, not(no_bpf)))]
pub fn layouts() -> Vec<crate::abi_tests::Layout> {
    use crate::abi_tests::layout;
    vec![
        layout!(Looks, "weir_looks", { left, gap, looked_ns }),
        layout!(CpuStat, "weir_probe_cpu", {
            stack, backlog, pointer, skb, entry_ns, weight, waking, raised_ns, raises, pending, lost, samples, wait, drops,
            unplaced
        }),
        layout!(SocketStat, "weir_probe_socket", { inode, reads }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_bucket_is_between_its_ends() {
        assert_eq!((middle_ns(0), middle_ns(15), middle_ns(16), middle_ns(31)), (0.0, 15.0, 16.0, 31.0));
        // 32 and 33 share the first bucket of two.
        assert_eq!(middle_ns(32), 32.5);
        assert!((1..BUCKETS).all(|i| middle_ns(i) > middle_ns(i - 1)));
        let last = middle_ns(BUCKETS - 1);
        assert!(last < (1u64 << 36) as f64 && last > (1u64 << 36) as f64 * 0.96, "{last}");
        assert_eq!(middle_ns(usize::MAX), last);
    }

    #[test]
    fn reasons_have_places_and_those_that_have_none_share_one() {
        assert_eq!((slot(6), slot(0x3_0005), slot(0x4_0005), slot(0x100)), (6, 0x305, 0, 0));
    }
}
