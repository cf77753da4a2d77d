//! Layouts of `bpf/listeners.h`.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Reasons of policy in `State::chosen`; behind them those of the kernel's own choice.
pub const PLACED: usize = policy::accept::queues::Why::ALL.len();
/// The lease was over.
pub const LEASE_OVER: usize = PLACED;
/// The group has other members than are known.
pub const MEMBERS_OTHER: usize = PLACED + 1;
/// The kernel did not take the choice: the listener was just closed.
pub const REFUSED: usize = PLACED + 2;
/// Not a new one: it was moved from a listener that was closed.
pub const MIGRATED: usize = PLACED + 3;
/// It was not, since no queue was good for it, and the kernel resets it.
pub const UNMOVED: usize = PLACED + 4;
/// Numbers in each of `State::chosen`.
pub const CHOSEN: usize = 12;
/// `WEIR_ACCEPT_SHARDS`.
const SHARDS: usize = 64;
/// `WEIR_ACCEPT_CORES`.
pub(super) const CORES: usize = 4096;
const QUEUES: usize = policy::accept::queues::QUEUES;

/// `struct weir_accept_queue`.
#[repr(C)]
pub(super) struct Queue {
    pub cookie: AtomicU64,
    pub head: AtomicU64,
    pub since: AtomicU64,
    pub length: AtomicU32,
    pub busy: AtomicU32,
    pub place: AtomicU32,
    pub placed: AtomicU32,
    pub affine: AtomicU32,
    pub worker: AtomicU32,
    pub seen: AtomicU64,
    pub born: AtomicU64,
    pub away: AtomicU64,
    pub rests: AtomicU64,
    pub ran: AtomicU64,
    pub waits_in: AtomicU64,
    pub task: AtomicU64,
    pub came: AtomicU32,
    pub epoch: AtomicU32,
    pub gives: AtomicU32,
    pub limit: AtomicU32,
}

/// `struct weir_accept_counts`.
#[repr(C)]
pub(super) struct Counts {
    pub of: [AtomicU64; CHOSEN],
    pub pad: [AtomicU64; 4],
}

/// `struct weir_accept`.
#[repr(C)]
pub(super) struct State {
    pub late: AtomicU64,
    pub stalled: AtomicU64,
    pub high: AtomicU32,
    pub low: AtomicU32,
    pub looks: AtomicU32,
    pub rules_pad: AtomicU32,
    pub away: AtomicU64,
    pub lease: AtomicU64,
    pub count: AtomicU32,
    pub sockets: AtomicU32,
    pub cursor: AtomicU32,
    pub ticks: AtomicU32,
    pub group: AtomicU64,
    pub asked: AtomicU64,
    pub looks_done: AtomicU64,
    pub held: AtomicU64,
    pub queues: [Queue; QUEUES],
    pub own: [AtomicU32; CORES],
    pub chosen: [Counts; SHARDS],
}
const _: () = assert!(size_of::<Queue>() == 120 && size_of::<Counts>() == 128);
const _: () = assert!(size_of::<State>() == 96 + 120 * QUEUES + 4 * CORES + 128 * SHARDS);

/// `struct weir_held`, which comes as bytes.
#[cfg(not(no_bpf))]
#[repr(C)]
#[allow(dead_code, reason = "only its layout is used")]
pub(super) struct RawHeld {
    pub inode: u64,
    pub pid: u32,
    pub fd: u32,
    pub netns: u32,
    pub device: u32,
    pub program: u32,
    pub waiting: u32,
    pub limit: u32,
    pub core: u32,
    pub sockets: u32,
    pub port: u16,
    pub family: u16,
    pub state: u8,
    pub reuseport: u8,
    pub udp: u8,
    pub pad: [u8; 5],
    pub address: [u8; 16],
}
#[cfg(not(no_bpf))]
const _: () = assert!(size_of::<RawHeld>() == 72);

/// What [`crate::abi_tests`] compares.
#[cfg(all(test, not(no_bpf)))]
pub fn layouts() -> Vec<crate::abi_tests::Layout> {
    use crate::abi_tests::layout;
    vec![
        layout!(Queue, "weir_accept_queue", {
            cookie, head, since, length, busy, place, placed, affine, worker, seen, born, away, rests, ran, waits_in, task,
            came, epoch, gives, limit
        }),
        layout!(Counts, "weir_accept_counts", { of, pad }),
        layout!(State, "weir_accept", {
            late = "rules.late", stalled = "rules.stalled", high = "rules.high", low = "rules.low", looks = "rules.looks",
            rules_pad = "rules.pad", away = "rules.away", lease, count, sockets, cursor, ticks, group, asked,
            looks_done = "looks", held, queues, own, chosen
        }),
    ]
}
