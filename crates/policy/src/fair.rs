//! Fairness inside a flooded port: whose packets get the room of a consumer that has too little (MR-34).
//!
//! The judgement itself is the C header `src/c/fair.h`, which says how it works; this module is its mirror.
//!
//! # Properties
//! - While room is not short, everything passes and nothing is written.
//! - Without room nothing passes, and with it only a sender that has had more than its share is trimmed.
//! - A sender that sends no more than one of `spacing` packets is never trimmed, whatever others do.
//! - Whatever is held for senders that do not come is given up: at most two buffers are lost by it.
//! - Only packets that pass write to the sketch; no flood fills it.
//! - The one loud sender ([`crate::vote`]) leaves the last places of a large room to others, and gets the whole quota of a short turn
//!   where there is room for more.

use std::fmt;

use crate::vote::Vote;

/// Rows of the sketch.
const ROWS: usize = 4;
/// Cells of a row.
const CELLS: usize = 1024;
/// Senders among which a consumer's room is divided at most.
pub const MOST: u32 = 128;
/// A packet, in units of the clock.
pub const ONE: u32 = 16;

/// Places that the one loud sender leaves at most.
pub const LAST: u32 = 8;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is no room.
    Full,
    /// It passes.
    Pass,
    /// What room there is is held for senders that have had less.
    Over,
}

/// The room of a consumer when a poll begins, in packets.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// What one poll may use of it.
    pub given: u32,
    /// What there is.
    pub free: u32,
    /// What there would be if its buffer were empty.
    pub whole: u32,
}

/// One consumer at one source: `struct weir_fair`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Fair {
    spacing: u32,
    held: u32,
    shortage: u32,
    now: u32,
    active: u32,
    round: u32,
    since: u32,
    passed: u32,
    over: u32,
    refused: u32,
    dry: u32,
    crowd: u32,
    vote: Vote,
    last: u32,
    pressed: u32,
}
const _: () = assert!(size_of::<Fair>() == 64);

/// What senders of one source have had: `struct weir_sketch`.
#[repr(C)]
pub struct Sketch {
    clock: u32,
    rounds: u32,
    consumers: Vote,
    pad: [u32; 12],
    cell: [[u32; CELLS]; ROWS],
    refused: [u32; CELLS],
}
const _: () = assert!(size_of::<Sketch>() == 64 + 4 * CELLS * (ROWS + 1));

impl Default for Sketch {
    fn default() -> Self {
        Self {
            clock: 0,
            rounds: 0,
            consumers: Vote::default(),
            pad: [0; 12],
            cell: [[0; CELLS]; ROWS],
            refused: [0; CELLS],
        }
    }
}

impl fmt::Debug for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sketch")
            .field("clock", &self.clock)
            .field("rounds", &self.rounds)
            .finish_non_exhaustive()
    }
}

unsafe extern "C" {
    fn weir_host_fair_asks(of: *const Fair, left: u32, paused: u32) -> u32;
    fn weir_host_fair_flooded(of: *const Fair) -> u32;
    fn weir_host_fair_innocent(of: *const Fair, paused: u32, any: u32) -> u32;
    fn weir_host_fair_weigh(of: *mut Fair, passes: u32);
    fn weir_host_fair_gets_few(sketch: *mut Sketch, consumer: u32) -> u32;
    fn weir_host_fair_hash(seed: u64, now: u32, consumer: u32, sender: u64) -> u64;
    fn weir_host_fair_poll(
        of: *mut Fair,
        sketch: *mut Sketch,
        before: u32,
        left: u32,
        room: u32,
        whole: u32,
        now: u32,
    ) -> u32;
    fn weir_host_fair_judge(of: *mut Fair, sketch: *mut Sketch, hash: u64, left: u32) -> u32;
    fn weir_host_fair_leaves(of: *mut Fair, sender: u64, left: u32) -> u32;
    fn weir_host_fair_within(of: *const Fair, left: u32, quota: u32) -> u32;
    fn weir_host_fair_lead(sketch: *const Sketch, hash: u64) -> u32;
}

/// Where a sender to a consumer stands in the sketch at tick `now`: an IPv4 address, or the first half of an IPv6 one.
pub fn hash(seed: u64, now: u32, consumer: u32, sender: u64) -> u64 {
    // SAFETY: a pure function of its arguments.
    unsafe { weir_host_fair_hash(seed, now, consumer, sender) }
}

impl Sketch {
    /// How far a sender is ahead of the clock, in [`ONE`] per packet: never too little.
    pub fn lead(&self, hash: u64) -> u32 {
        // SAFETY: a pure function of its arguments and of this struct, whose layout is that of the header.
        unsafe { weir_host_fair_lead(self, hash) }
    }

    /// A frame for the tracked `consumer` has come: true if that one gets few beside another that gets most of the source's.
    pub fn gets_few(&mut self, consumer: u32) -> bool {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_fair_gets_few(self, consumer) != 0 }
    }
}

impl Fair {
    /// A poll begins at tick `now`: how many packets it has room for. The one before has left room for `before`.
    pub fn poll(&mut self, sketch: &mut Sketch, before: u32, has: Room, now: u32) -> u32 {
        // SAFETY: only these two structs are written, whose layout is that of the header.
        unsafe { weir_host_fair_poll(self, sketch, before, has.given, has.free, has.whole, now) }
    }

    /// The verdict on a frame of the sender `hash`, while there is room for `left` packets.
    pub fn judge(&mut self, sketch: &mut Sketch, hash: u64, left: u32) -> Verdict {
        // SAFETY: as above.
        match unsafe { weir_host_fair_judge(self, sketch, hash, left) } {
            0 => Verdict::Full,
            1 => Verdict::Pass,
            _ => Verdict::Over,
        }
    }

    /// A frame of `sender` has come while room is short: true if it is a quiet one beside one that sends more than eight in
    /// nine of all frames. A pause would lose it, whatever its share.
    pub fn is_quiet(&mut self, sender: u64) -> bool {
        self.vote.is_quiet(sender)
    }

    /// True if a frame is asked about, of whose consumer input was kept away last at tick `paused`; else it passes.
    pub fn asks(&self, left: u32, paused: u32) -> bool {
        // SAFETY: this struct is only read, whose layout is that of the header.
        unsafe { weir_host_fair_asks(self, left, paused) != 0 }
    }

    /// A frame for the consumer passes, or is shed.
    pub fn weigh(&mut self, passes: bool) {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_fair_weigh(self, passes.into()) }
    }

    /// True if most of the consumer's frames are shed: one that a poll may give nothing ([`crate::gate::room_given`]).
    pub fn is_flooded(&self) -> bool {
        // SAFETY: this struct is only read, whose layout is that of the header.
        unsafe { weir_host_fair_flooded(self) != 0 }
    }

    /// True if a pause would lose a frame although its consumer is an innocent: input was kept away from another one last at tick
    /// `any`, and from this one at `paused`, and most of its frames pass.
    pub fn is_innocent(&self, paused: u32, any: u32) -> bool {
        // SAFETY: this struct is only read, whose layout is that of the header.
        unsafe { weir_host_fair_innocent(self, paused, any) != 0 }
    }

    /// True if a frame of `sender` is shed although there is room for `left` packets, since it is the one loud sender's, and these
    /// places are for the others. To be asked after [`Self::is_quiet`] and before [`Self::judge`].
    pub fn leaves(&mut self, sender: u64, left: u32) -> bool {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_fair_leaves(self, sender, left) != 0 }
    }

    /// Of the room that a poll has, `left` packets, what it may use where the turn is to be short: `quota` of them, and beside them the
    /// places that the loud sender leaves. 0: no quota.
    pub fn within(&self, left: u32, quota: u32) -> u32 {
        // SAFETY: this struct is only read, whose layout is that of the header.
        unsafe { weir_host_fair_within(self, left, quota) }
    }

    /// Of how many packets that pass one is a sender's share, in [`ONE`] per packet; 0 while room was never short.
    pub fn spacing(&self) -> u32 {
        self.spacing
    }

    /// Room that is held for senders within their share, in [`ONE`] per packet.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Whether room was short lately.
    pub fn is_active(&self) -> bool {
        self.active != 0
    }
}

#[cfg(test)]
#[path = "fair_tests.rs"]
mod tests;
