//! What a poller is told and what it answers.

use crate::causes::Release;
use crate::switch::Timing;
use crate::watermark::Marks;
use crate::{Nanos, Permille};

/// Options of a poller; all can change while it runs. [`Config::for_host`] has the defaults.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Most packets of one turn; even, at least 2.
    pub quota: u32,
    /// The same of the only source while programs run before the poller, [`lend`](super::Poller::lend), or on a net CPU; less than `quota` counts as
    /// `quota`. Several sources share the CPU by turns: large ones let the one gain whose turns fit better.
    pub lent_quota: u32,
    /// Sleep after a turn that drained its ring, ns; up to eight times as long while the CPU is never idle and no
    /// protected packets come, and shorter where the ring would overflow meanwhile.
    pub nap: Nanos,
    /// The kernel's own timer on a source in poll mode, ns.
    pub flush_timeout: Nanos,
    /// Feedback; `None` switches it off.
    pub marks: Option<Marks>,
    /// Share of the CPU for packet work; 1000 switches the limit off.
    pub budget: Permille,
    /// Period of the budget, ns.
    pub period: Nanos,
    /// Packets that the smallest ring holds.
    pub ring: u32,
    /// Share of the CPU that may be spent on what will be shed; never more than `budget`.
    pub look: Permille,
    /// Sources are left to the kernel and the gate where that will do.
    pub shed: bool,
    /// The CPU does networking only, see [`crate::netcpu`]: sources are polled until they rest, and an idle CPU ends no nap.
    pub net: bool,
    /// When to take over and release.
    pub timing: Timing,
}

/// Events that end a sleep early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeOn {
    /// An inhibited consumer read down to its low water.
    pub level: bool,
    /// The CPU has nothing else to run.
    pub idle: bool,
    /// No event, but a request: protected packets may arrive, so that the sleep must end on time.
    pub on_time: bool,
}

/// What the poller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// One turn of `source` with at most `packets`.
    Turn {
        /// Index of the source.
        source: usize,
        /// Quota, or [`HEARTBEAT_PACKETS`](super::HEARTBEAT_PACKETS).
        packets: u32,
    },
    /// Sleep until `until` or an event of `wake`.
    Sleep {
        /// Deadline.
        until: Nanos,
        /// What ends it early.
        wake: WakeOn,
    },
    /// Give `source` back to the kernel.
    Release {
        /// Index of the source.
        source: usize,
        /// [`Release::Calm`], [`Release::Rests`], or [`Release::Sheds`]: then the gate stays.
        why: Release,
    },
    /// Nothing is taken over.
    Park,
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turned {
    /// Packets handed up.
    pub packets: u32,
    /// Frames that arrived in this turn, shed ones included; 0 if nobody counts them.
    pub frames: u32,
    /// Of these, for consumers that are inhibited or have no room, protected ones not counted.
    pub to_full: u32,
    /// Of the frames, those for nobody, all of which were shed.
    pub nobody: u32,
    /// Of the frames, SYNs that were shed: for listeners that accept nothing more, or that have had their share.
    pub syns: u32,
    /// Of the frames, those that were shed: for consumers without room, and for nobody.
    pub shed: u32,
    /// Of the frames, those that passed for consumers that are known here. What else passed is somebody else's.
    pub known: u32,
    /// Of the frames, those of innocents among the consumers that are known here, passed or shed: of quiet senders beside a loud one
    /// to the same consumer, for a consumer that nothing is kept away from beside one that something is, and for one that gets few
    /// beside one that gets most.
    pub innocents: u32,
    /// Frames that are protected.
    pub protected: u32,
    /// Of the frames that passed, those that no room can be asked for: TCP segments of connections, bridged frames, other protocols.
    pub unasked: u32,
    /// Packets handed up that a full queue refused which is no consumer here: the socket of a container.
    pub refused: u32,
    /// Time the turn took, ns.
    pub spent: Nanos,
    /// The ring was empty at its end.
    pub drained: bool,
}

impl Turned {
    /// Frames that were shed for consumers without room.
    pub(super) fn shed_for_full(&self) -> u32 {
        self.shed.saturating_sub(self.nobody + self.syns)
    }

    /// The innocents' frames of which the source is to be looked at. Most of what a full ring holds is no innocent's but the flood: its
    /// consumer reads all that its budget lets in, so that nothing has to be kept away from it.
    pub(super) fn harmed(&self) -> u32 {
        if self.drained || self.innocents < self.frames / 2 { self.innocents } else { 0 }
    }
}

/// How often each reason held the poller back; for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Turns, heartbeats included.
    pub turns: u64,
    /// Packets handed up.
    pub packets: u64,
    /// Turns that only held a pause.
    pub heartbeats: u64,
    /// Turns in a pause, in search of protected packets.
    pub looks: u64,
    /// Sleeps because the budget was spent.
    pub budget_sleeps: u64,
    /// Sleeps because all input was for full consumers.
    pub feedback_sleeps: u64,
    /// Naps after a drained ring.
    pub naps: u64,
    /// Inhibits.
    pub inhibits: u64,
    /// Inhibits ended by the timeout.
    pub timeouts: u64,
    /// Times the reserve was lent.
    pub lent: u64,
}
