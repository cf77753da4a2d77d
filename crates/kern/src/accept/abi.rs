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
/// Numbers in `State::chosen`.
pub const CHOSEN: usize = 12;
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
    pub chosen: [AtomicU64; CHOSEN],
    pub cursor: AtomicU32,
    pub ticks: AtomicU32,
    pub group: AtomicU64,
    pub asked: AtomicU64,
    pub looks_done: AtomicU64,
    pub held: AtomicU64,
    pub queues: [Queue; QUEUES],
    pub own: [AtomicU32; CORES],
}
const _: () = assert!(size_of::<Queue>() == 104);
const _: () = assert!(size_of::<State>() == 192 + 104 * QUEUES + 4 * CORES);

/// `struct weir_held`, as bytes in the order of the header.
#[cfg(not(no_bpf))]
pub(super) const HELD: usize = 72;
