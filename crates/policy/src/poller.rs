//! The next action of one CPU's poller (MR-15): quota and round robin over the sources that are taken over, under a
//! budget, held back by the feedback of full consumers.
//!
//! ```text
//! loop: action = poller.next(now)
//!       Turn    -> poll the source once, then poller.turned(..) and poller.level(..) for each consumer
//!       Sleep   -> sleep; on a wake for an idle CPU poller.cpu_idle(..); poller.level(..) for each consumer
//!       Release -> give the source back to interrupts, then poller.released(..)
//!       Park    -> nothing is taken over: wait for poller.overloaded(..)
//! ```
//!
//! **Gate.** What a turn finds for a consumer without room, or for nobody, is shed by the mechanism before a buffer exists for it
//! ([`crate::gate`]), so a turn never fills a consumer beyond its buffer.
//!
//! **Pause.** A source is left alone while its budget is spent, or while (nearly) all that arrives on it is for
//! inhibited consumers and nothing else is seen: then the NIC drops at no cost, and blindly (MR-18). The share is learnt from
//! the turns themselves, so a wrong guess costs one turn.
//!
//! **Heartbeat.** A pause is held by one turn every half `flush_timeout`, else the kernel's timer would drain the
//! ring outside quota and budget, and transmit completions that ride on the same vector would hang. In a pause for
//! the budget a heartbeat is the smallest turn; in a pause for feedback it is a look of one quota, which finds out
//! whether something else arrives by now.
//!
//! **Look.** A source that carries anything but the flood is polled in a pause for feedback too, see [`crate::look`], and what
//! the flooded consumers are given meanwhile is what this leaves of the budget, see [`crate::admission`].
//!
//! **Mode shed.** Where the turns are cheap although others are looked for, the kernel can do without them, see
//! [`crate::shedding`].
//!
//! **Room.** Where (nearly) all that arrives is for known consumers, and so few that the ring holds it, a turn takes no more than fits
//! into what is tracked: what a burst brings beyond that waits in the ring for the program to read, instead of being shed.
//!
//! **Net CPU.** Programs run elsewhere, so an idle CPU says nothing about them, and they read while a poll hands up. Every turn takes no
//! more than fits, a pause begins with the turn that fills a consumer, and small turns, peeks, tell when it reads again.
//!
//! **Joining.** What ends a sleep costs programs more than a turn does, so a source whose nap, heartbeat or look would be due within
//! a quarter of its wait has its turn as well: sources of one CPU keep one rhythm, and as many wakes as one of them needs.
//!
//! # Properties
//! - `next` does at most `SOURCES_MAX` steps and never allocates.
//! - Every source that is not paused is served before any other is served twice.
//! - No sleep is longer than half a flush timeout while anything is taken over.
//! - An inhibited consumer is enabled at the latest when its timeout ends.
//! - On a net CPU no turn takes more than [`FITS_LEAST`] or what fits into the fullest consumer that is not inhibited, but one that
//!   mostly sheds.

mod interface;

use crate::admission::Admission;
use crate::budget::Budget;
use crate::causes::Release;
use crate::look::{Bound, LOOK_PACKETS, Look, NAPS, Nap};
use crate::netcpu::{self, Arrivals};
use crate::rotation::Rotation;
use crate::shedding::Stretch;
use crate::switch::{Mode, ModeSwitch};
use crate::watermark::{Change, Watermark};
use crate::{MILLISECOND, Nanos, Permille};
pub use interface::{Action, Config, Counts, Turned, WakeOn};

/// Most sources of one poller.
pub const SOURCES_MAX: usize = 64;
/// Most consumers whose level is watched.
pub const CONSUMERS_MAX: usize = 64;
/// Packets of a heartbeat in a pause for the budget: the least that two driver polls hand up.
pub const HEARTBEAT_PACKETS: u32 = 2;
/// Packets of a turn that a consumer's room does not make smaller: a turn costs as much as one or two.
pub const FITS_LEAST: u32 = 8;
/// Packets of a consumer's room that turns leave, since the gate gives no one sender the last places.
pub const FITS_LAST: u32 = crate::fair::LAST;
/// Longest time between two peeks, in naps: the ring is not to overflow before a program that reads again is seen to.
const PEEKS: Nanos = 8;
/// A consumer that has room for so many packets is not inhibited, however full it is: a quarter of a large buffer holds what comes
/// while its program stands still for long.
pub const ROOM_AMPLE: u32 = 1024;
/// Packets of a consumer's room that turns leave to peeks: seven of them, 2 ms.
pub const FITS_PEEKS: u32 = 14;
/// So long, in naps, what a turn has left in the ring is supposed to be for the consumer that it has filled. Others' wait with it.
const WAIT_NAPS: Nanos = 4;
/// Share of arrivals for inhibited consumers from which on a source counts as "all of it is for full consumers".
const ALL_FULL: Permille = 950;
/// Share of a turn's packets that full queues refused from which on the turn was in vain. What goes to other queues beside them
/// gains from a nap as well: its program gets the CPU.
const VAIN: Permille = 750;
/// Share of a turn's frames that were shed from which on the next one is a large one: what is shed costs little.
const MOSTLY: Permille = 500;
/// Sleep after a turn in vain, ns: programs that work 1 us per datagram read half of a small buffer meanwhile. Times the sources
/// whose turns are in vain: together they take what one takes, a tenth of the CPU.
const VAIN_NAP: Nanos = MILLISECOND / 2;
/// Longest nap after a drained ring while programs keep the CPU busy, in usual ones: each wake takes 20 to 40 us from them.
const BUSY_NAPS: Nanos = 8;
/// A wait ends this part of it earlier if the poller is awake anyway: a quarter keeps sources together whose rates differ.
pub(crate) const JOIN: Nanos = 4;
/// A consumer that was full so long ago tells that the programs may need the CPU, ns.
const FULL_LATELY: Nanos = 1000 * MILLISECOND;
/// A turn with fewer frames than this tells little: it is averaged in.
const LOOK_FRAMES_MIN: u32 = 8;

/// Packets that a consumer has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// From all sources together: what its level is about.
    pub all: u32,
    /// From one of the sources that share it: what a turn may bring.
    pub each: u32,
}

impl Room {
    /// Room for `packets` that nobody shares.
    pub fn alone(packets: u32) -> Self {
        Self { all: packets, each: packets }
    }
}

#[derive(Clone, Copy, Debug)]
struct Source {
    switch: ModeSwitch,
    last_turn: Nanos,
    /// End of the last turn that was no peek.
    beat: Nanos,
    /// The turn under way is a peek.
    peeks: bool,
    /// Time to the next peek: longer after each one while no program reads.
    peek: Nanos,
    nap_until: Nanos,
    /// When the nap ends on an idle CPU.
    nap_idle: Nanos,
    nap: Nap,
    /// Its last turn was in vain.
    vain: bool,
    /// The turn under way takes no more than its consumers have room for.
    fits: bool,
    /// Its last turn did, and nothing was shed for a full one: what is left waits in the ring.
    fitted: bool,
    /// When a consumer that it feeds has filled up.
    filled_at: Option<Nanos>,
    /// Until then it is supposed that what waits is for the consumer that has filled up.
    waits_until: Nanos,
    full_share: Permille,
    /// Share of the last turn that was for tracked consumers.
    known_share: Permille,
    /// Most of its last turn was for nobody, or was shed while others were looked for: a large turn costs little, and what is
    /// left in the ring would be lost to them.
    sheds: bool,
    /// Packets handed up since the levels were read for the `reading`-th time.
    fed: u32,
    reading: u64,
    stretch: Stretch,
    arrivals: Arrivals,
    release: Option<Release>,
}

impl Source {
    /// The first turn of a source that is taken over at `now`.
    fn new(now: Nanos, switch: ModeSwitch, nap: Nanos) -> Self {
        Self {
            switch,
            last_turn: now,
            beat: now,
            peeks: false,
            peek: nap,
            nap_until: 0,
            nap_idle: 0,
            nap: Nap::of(nap),
            vain: false,
            fits: false,
            fitted: false,
            filled_at: None,
            waits_until: 0,
            full_share: 0,
            known_share: 0,
            sheds: false,
            fed: 0,
            reading: 0,
            stretch: Stretch::default(),
            arrivals: Arrivals::default(),
            release: None,
        }
    }

    /// What share of its frames is for known consumers, and, while one is `inhibited`, for those that have no room.
    fn learn_shares(&mut self, turn: &Turned, inhibited: bool) {
        // Protected packets pass in any case: they say nothing about the rest.
        let frames = turn.frames.saturating_sub(turn.protected);
        if frames == 0 {
            return;
        }
        let of = |part: u32| (u64::from(part) * 1000 / u64::from(frames)).min(1000) as Permille;
        // Only while something is inhibited does the count of frames for full consumers mean anything.
        if inhibited {
            let share = of(turn.to_full + turn.nobody + turn.syns);
            self.full_share =
                if frames >= LOOK_FRAMES_MIN { share } else { (self.full_share * 3 + share) / 4 };
        }
        if frames >= LOOK_FRAMES_MIN {
            self.known_share = of(turn.known + turn.shed_for_full());
        }
    }

    /// What it holds is for full consumers, or is supposed to be.
    fn is_for_full(&self, now: Nanos) -> bool {
        self.full_share >= ALL_FULL || now < self.waits_until
    }

    /// It handed up `fed` packets after the levels were read for the `reading`-th time.
    fn feeds(&mut self, fed: u32, reading: u64) {
        if std::mem::replace(&mut self.reading, reading) != reading {
            self.fed = 0;
        }
        self.fed += fed;
    }
}

/// The heartbeat that is next.
#[derive(Clone, Copy, Debug)]
struct Beat {
    source: usize,
    at: Nanos,
    due: bool,
}

/// A consumer as the poller sees it.
#[derive(Clone, Copy, Debug)]
struct Consumer {
    watermark: Watermark,
    level: Permille,
    /// Enabled because the CPU was idle, and not seen below high water since.
    probing: bool,
    /// Earliest time that an idle CPU enables it again.
    idle_from: Nanos,
    /// Its inhibit has timed out, and it was not seen below high water since.
    hangs: bool,
    /// Readings since its level moved.
    still: u8,
}

/// The state of one CPU's poller. Fixed size; about 10 KiB.
#[derive(Clone, Debug)]
pub struct Poller {
    config: Config,
    sources: [Option<Source>; SOURCES_MAX],
    consumers: [Option<Consumer>; CONSUMERS_MAX],
    inhibited: u32,
    lent: bool,
    /// When a consumer was inhibited last.
    full_at: Option<Nanos>,
    /// Packets handed up since the levels were read.
    fed: u32,
    /// How often the levels were read.
    readings: u64,
    /// Packets that fit into the fullest consumer that is not inhibited, by the last levels and as far as these are read anew.
    fits: u32,
    fits_next: u32,
    /// An inhibited consumer has less in it than when the levels were read before.
    read: bool,
    budget: Budget,
    look: Look,
    admission: Admission,
    bound: Bound,
    rotation: Rotation,
    /// A turn was made since the last sleep.
    awake: bool,
    counts: Counts,
}

impl Poller {
    /// Without sources.
    pub fn new(config: Config, now: Nanos) -> Self {
        Self {
            budget: Budget::new(config.period, config.budget, now),
            look: Look::new(config.period, config.look, config.nap, config.ring, now),
            admission: Admission::default(),
            bound: Bound::default(),
            config,
            sources: [None; SOURCES_MAX],
            consumers: [None; CONSUMERS_MAX],
            inhibited: 0,
            lent: false,
            full_at: None,
            fed: 0,
            readings: 0,
            fits: u32::MAX,
            fits_next: u32::MAX,
            read: false,
            rotation: Rotation::default(),
            awake: false,
            counts: Counts::default(),
        }
    }

    /// Takes new options; modes, levels and the budget used so far stay.
    pub fn configure(&mut self, config: Config) {
        self.budget.set(config.period, config.budget);
        self.look.set(config.period, config.look, config.nap, config.ring);
        if let Some(marks) = config.marks {
            for consumer in self.consumers.iter_mut().flatten() {
                consumer.watermark.set_marks(marks);
            }
        }
        self.config = config;
    }

    /// The options in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Counters since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Nanoseconds per protected packet: the bound of protected packets.
    pub fn protected_ns(&self) -> Nanos {
        self.bound.per_packet(self.config.budget)
    }

    /// Permille of a poll that one consumer may get of it.
    pub fn admits(&self) -> Permille {
        self.admission.permille()
    }

    /// True while this poller keeps input for `consumer` away.
    pub fn is_inhibited(&self, consumer: usize) -> bool {
        self.consumers.get(consumer).and_then(Option::as_ref).is_some_and(|c| c.watermark.is_inhibited())
    }

    /// The source is taken over from `now` on, with the mode switch that decided so.
    pub fn taken_over(&mut self, now: Nanos, source: usize, switch: ModeSwitch) {
        if let Some(slot) = self.sources.get_mut(source) {
            *slot = Some(Source::new(now, switch, self.config.nap));
            self.look.forget(source);
        }
    }

    /// The source is no longer polled; its mode switch comes back.
    pub fn released(&mut self, now: Nanos, source: usize) -> Option<ModeSwitch> {
        let mut state = self.sources.get_mut(source)?.take()?;
        state.switch.released(now);
        Some(state.switch)
    }

    /// As [`Self::released`]; the gate stays.
    pub fn sheds(&mut self, now: Nanos, source: usize) -> Option<ModeSwitch> {
        let mut state = self.sources.get_mut(source)?.take()?;
        state.switch.sheds(now);
        Some(state.switch)
    }

    /// As [`Self::released`], for a reason that says nothing about the source's packets.
    pub fn revoked(&mut self, source: usize) -> Option<ModeSwitch> {
        let mut state = self.sources.get_mut(source)?.take()?;
        state.switch.revoked();
        Some(state.switch)
    }

    /// True while the poller polls `source`.
    pub fn polls(&self, source: usize) -> bool {
        self.sources.get(source).is_some_and(Option::is_some)
    }

    /// The result of the turn of `source` that ended at `now`.
    pub fn turned(&mut self, now: Nanos, source: usize, turn: Turned) {
        self.budget.charge(now, turn.spent);
        self.counts.turns += 1;
        self.counts.packets += u64::from(turn.packets);
        let nap = self.config.nap;
        let polled = self.sources.iter().flatten().count() as u32;
        let all_vain = 1 + self.sources.iter().flatten().filter(|s| s.vain).count() as Nanos;
        let Some(Some(state)) = self.sources.get_mut(source) else { return };
        let all_vain = all_vain - Nanos::from(state.vain);
        state.last_turn = now;
        let peeked = std::mem::take(&mut state.peeks);
        // A program that does not read has been late for ever longer, and each peek takes some of the room that is left.
        state.peek = if peeked { (2 * state.peek).min(PEEKS * nap) } else { nap };
        if !peeked {
            state.beat = now;
        }
        self.bound.turned(turn.packets, turn.spent);
        let others =
            turn.frames.saturating_sub(turn.protected).saturating_sub(turn.known).saturating_sub(turn.shed);
        // Innocents are told apart only where frames are looked at: a pause would lose theirs with the rest.
        self.look.saw(now, source, turn.frames, turn.protected, others.max(turn.harmed()));
        if self.look.is_on(now, source) {
            self.admission.turned(turn.shed, turn.packets, turn.unasked, turn.spent);
        }
        let cheap = if self.look.is_on(now, source) { turn.shed } else { turn.nobody + turn.syns };
        state.sheds = u64::from(cheap) * 1000 > u64::from(turn.frames) * u64::from(MOSTLY);
        let look = self.inhibited > 0 && state.is_for_full(now);
        if look {
            self.look.looked(now, source, turn.frames, turn.spent, turn.drained);
        }
        state.learn_shares(&turn, self.inhibited > 0);
        let fed = turn.packets.saturating_sub(turn.protected);
        if fed > 0 {
            for consumer in self.consumers.iter_mut().flatten() {
                consumer.watermark.fed();
            }
        }
        self.fed += fed;
        state.feeds(fed, self.readings);
        // Most of the turn was for full queues whose levels nobody tells: it was in vain, and so would be the next ones.
        let vain = turn.packets >= LOOK_FRAMES_MIN
            && !self.look.finds(now, source)
            && u64::from(turn.refused) * 1000 >= u64::from(turn.packets) * u64::from(VAIN);
        // A turn too small to tell leaves it as it is.
        state.vain = vain || state.vain && turn.packets < LOOK_FRAMES_MIN && now < state.nap_until;
        if vain {
            let end = now + VAIN_NAP * all_vain;
            (state.nap_idle, state.nap_until) = (end, end);
            self.counts.feedback_sleeps += 1;
        }
        // One that programs run before takes no time from them, and what overflows a ring has no class. After a look the source is
        // polled as soon as its consumer has room.
        let most = match (self.config.net, self.look.finds(now, source)) {
            // Nobody shares its CPU.
            (true, true) => nap,
            (true, false) => nap * netcpu::NAPS,
            // They may be most of what comes, as the answers to a resolver, and each wake takes from whom they are for.
            (false, true) => nap * NAPS,
            (false, false) if self.lent => nap,
            (false, false) => nap * BUSY_NAPS,
        };
        let ring = if self.config.net { self.config.ring.min(netcpu::RING) } else { self.config.ring };
        let long = state.nap.after(now, turn.frames, turn.spent, turn.drained, most, ring);
        if let (Some(long), false) = (long, look) {
            let until = now + long;
            let idle = if self.config.net { until } else { until.min(now + nap) };
            (state.nap_idle, state.nap_until) = (idle, until);
        }
        state.switch.found(now, turn.frames.max(turn.packets));
        let calm = if self.config.net { Release::Rests } else { Release::Calm };
        if self.config.net && state.arrivals.turned(now, turn.frames.max(turn.packets)) {
            state.switch.overfed(now);
        }
        // What had to be shed for a consumer that fills up now and then is no calm; one that hangs does not fill up again.
        let for_full = turn.shed_for_full() > 0;
        state.fitted = std::mem::take(&mut state.fits) && !for_full;
        if for_full && state.filled_at.is_some_and(|at| now.saturating_sub(at) < self.config.timing.hold_min)
        {
            state.switch.overfed(now);
        }
        // A ring that is empty because its frames were shed is no sign of calm; the few for nobody that every host gets are none
        // of overload, nor are those for a listener that hangs.
        if turn.drained && turn.to_full == 0 && turn.nobody + turn.syns < LOOK_FRAMES_MIN {
            state.release = state.release.or(state.switch.drained(now).then_some(calm));
        }
        // Where no consumer is full, and none without room loses anything, there is no pause that would cost less. Sources of
        // one CPU share it by turns: one that the kernel polls would take what it wants.
        let pauses = self.inhibited > 0 || turn.to_full > 0;
        let others = polled == 1 && (self.look.is_on(now, source) || !pauses);
        let budget = self.config.budget;
        // What consumers that are known read of it; somebody else's packets are no flood.
        let became = (turn.shed, turn.known);
        let cheap = state.stretch.turned(now, turn.spent, became, turn.drained, others, budget);
        if cheap && self.config.shed && state.switch.may_shed(now) {
            state.release = state.release.or(Some(Release::Sheds));
        }
    }

    /// The turn of `source` found the NAPI owned by somebody else: it is left alone for a nap.
    pub fn refused(&mut self, now: Nanos, source: usize, spent: Nanos) {
        self.budget.charge(now, spent);
        let nap = self.config.nap;
        if let Some(Some(state)) = self.sources.get_mut(source) {
            (state.last_turn, state.beat, state.peeks) = (now, now, false);
            (state.nap_idle, state.nap_until) = (now + nap, now + nap);
        }
    }

    /// The poller has slept `late` ns longer than it meant to: another had its CPU.
    pub fn overslept(&mut self, late: Nanos) {
        self.sources.iter_mut().flatten().for_each(|source| source.switch.away(late));
    }

    /// Packet work outside the turns (interrupts, softirqs, weir's own) that ended at `now`.
    pub fn charge(&mut self, now: Nanos, spent: Nanos) {
        self.budget.charge(now, spent);
    }

    /// The level of a consumer at `now`, and its room, if that is known; true if it was inhibited or enabled by that.
    pub fn level(&mut self, now: Nanos, consumer: usize, level: Permille, room: Option<Room>) -> bool {
        let ample = room.is_some_and(|room| room.all >= ROOM_AMPLE);
        let changed = self.watch(now, consumer, level, ample);
        if let Some(room) = room {
            self.has_room(consumer, room.each);
        }
        changed
    }

    fn watch(&mut self, now: Nanos, consumer: usize, level: Permille, ample: bool) -> bool {
        let Some(marks) = self.config.marks else { return false };
        let Some(slot) = self.consumers.get_mut(consumer) else { return false };
        let consumer = slot.get_or_insert_with(|| Consumer {
            watermark: Watermark::new(marks),
            level,
            probing: false,
            idle_from: 0,
            hangs: false,
            still: 0,
        });
        let was = std::mem::replace(&mut consumer.level, level);
        let reads = level < was;
        consumer.still = if level == was { consumer.still.saturating_add(1) } else { 0 };
        self.read |= reads && consumer.watermark.is_inhibited();
        let level = if ample { level.min(marks.high - 1) } else { level };
        let change = consumer.watermark.observe(now, level);
        let hangs = consumer.hangs;
        consumer.hangs = change == Some(Change::TimedOut) || hangs && level >= marks.high;
        match change {
            Some(Change::Inhibit) => {
                // A consumer that is as full as before does not read: an idle CPU says nothing about it.
                if std::mem::take(&mut consumer.probing) {
                    consumer.idle_from = now + marks.timeout;
                }
                // What it cannot take would be shed by a turn that finds out how much of the arrivals is for it.
                if self.config.net && self.inhibited == 0 {
                    for source in self.sources.iter_mut().flatten() {
                        source.full_share = source.full_share.max(source.known_share);
                    }
                }
                self.inhibited += 1;
                self.counts.inhibits += 1;
                self.full_at = Some(now);
                if !hangs {
                    self.overfed(now);
                }
            }
            Some(Change::Enable | Change::TimedOut) => {
                self.inhibited -= 1;
                self.counts.timeouts += u64::from(change == Some(Change::TimedOut));
                self.has_read();
                if self.inhibited > 0 {
                    // What share is for those that still are inhibited must be learnt anew.
                    for source in self.sources.iter_mut().flatten() {
                        source.full_share = 0;
                    }
                }
            }
            None => consumer.probing &= self.fed == 0 || level >= marks.high,
        }
        change.is_some()
    }

    /// A consumer has filled up: no calm for the sources that handed up a quarter or more since the levels were read.
    /// A source of few packets beside a flood keeps its own. What is left of a turn that fitted waits in the ring, which tells
    /// calm by being drained; it is looked at when the program has had time to read.
    fn overfed(&mut self, now: Nanos) {
        let all = u64::from(self.fed);
        for (index, source) in self.sources.iter_mut().enumerate() {
            let Some(source) = source else { continue };
            let handed_up = source.reading == self.readings && source.fed > 0;
            if !handed_up || u64::from(source.fed) * 4 < all {
                continue;
            }
            source.filled_at = Some(now);
            if source.fitted {
                source.waits_until = now + self.config.nap * WAIT_NAPS;
                self.look.waits(now, index);
            } else {
                source.switch.overfed(now);
            }
        }
    }

    /// A consumer has room again: nothing has to wait for it.
    fn has_read(&mut self) {
        self.sources.iter_mut().flatten().for_each(|source| source.waits_until = 0);
    }

    /// A consumer has room for `packets` more. One whose level has not moved for long gets nothing that would have to fit.
    fn has_room(&mut self, consumer: usize, packets: u32) {
        let moves = self.consumers.get(consumer).is_some_and(|c| c.is_some_and(|c| c.still < u8::MAX));
        if (moves || self.config.net) && !self.is_inhibited(consumer) {
            self.fits_next = self.fits_next.min(packets);
        }
    }

    /// All levels are read: the next rise is due to turns from here on.
    pub fn levels_read(&mut self) {
        self.fits = std::mem::replace(&mut self.fits_next, u32::MAX);
        if std::mem::take(&mut self.read) {
            self.sources.iter_mut().flatten().for_each(|source| source.peek = self.config.nap);
        }
        self.fed = 0;
        self.readings += 1;
    }

    /// The consumer is gone; true if it was inhibited.
    pub fn forget(&mut self, consumer: usize) -> bool {
        let Some(slot) = self.consumers.get_mut(consumer) else { return false };
        let inhibited = slot.take().is_some_and(|c| c.watermark.is_inhibited());
        self.inhibited -= u32::from(inhibited);
        inhibited
    }

    /// True from when programs run before this poller, false from when it runs before them. A short turn leaves the CPU to
    /// them soon, which is not needed where they take it: then turns are larger, and cost less per packet.
    pub fn lend(&mut self, lent: bool) {
        self.lent = lent;
    }

    /// True if a program did not follow lately: on an idle CPU the poller is then to run behind the programs.
    pub fn was_full(&self, now: Nanos) -> bool {
        self.full_at.is_some_and(|at| now.saturating_sub(at) < FULL_LATELY)
    }

    /// Nothing else wants the CPU: the reserve is lent, and inhibited consumers are enabled, since they have read
    /// what they had or wait for something else. True if that enabled one.
    pub fn cpu_idle(&mut self, now: Nanos) -> bool {
        if self.budget.resume_at(now).is_some() {
            self.counts.lent += 1;
        }
        self.budget.idle(now);
        for source in self.sources.iter_mut().flatten() {
            source.nap_until = source.nap_until.min(source.nap_idle);
        }
        let mut enabled = false;
        // Programs do not run on a net CPU: that it is idle says nothing of theirs.
        for consumer in self.consumers.iter_mut().flatten().filter(|_| !self.config.net) {
            if now >= consumer.idle_from && consumer.watermark.probe() {
                consumer.probing = true;
                self.inhibited -= 1;
                enabled = true;
            }
        }
        if enabled {
            self.has_read();
        }
        // A program that has just read what it had will want the CPU again.
        if !enabled {
            self.look.idle(now);
        }
        enabled
    }

    /// The host knows of protected packets that may come through `source`, which is polled: they are looked for.
    pub fn expect(&mut self, now: Nanos, source: usize) {
        if self.polls(source) {
            self.look.expect(now, source);
        }
    }

    /// True if consumers that are inhibited get what fits of `source`: while others' packets are looked for, and on a net CPU. In a
    /// pause they are left to run dry, which tells whether their programs read.
    pub fn feeds(&self, now: Nanos, source: usize) -> bool {
        self.config.net || self.look.is_on(now, source)
    }

    /// Most packets that one consumer gets of a turn that is large because most of it is shed; 0: all that fit.
    pub fn feed(&self, now: Nanos, source: usize) -> u32 {
        let large = self.look.is_on(now, source) && !self.config.net;
        if large { self.config.quota } else { 0 }
    }

    /// True while a source that is polled is looked at in its pauses: then the ring must not wait for programs that run before the
    /// poller, since what overflows it is anybody's (MR-34).
    pub fn looks(&self, now: Nanos) -> bool {
        self.sources.iter().enumerate().any(|(index, s)| s.is_some() && self.look.is_on(now, index))
    }

    /// When a wait from `from` until `until` ends: earlier if the poller is awake anyway.
    fn ends(&self, from: Nanos, until: Nanos) -> Nanos {
        until - if self.awake { until.saturating_sub(from) / JOIN } else { 0 }
    }

    fn blocked(&self, now: Nanos, source: &Source) -> bool {
        self.inhibited > 0 && source.is_for_full(now)
    }

    /// What to do at `now`.
    pub fn next(&mut self, now: Nanos) -> Action {
        let action = self.decide(now);
        self.awake = matches!(action, Action::Turn { .. });
        action
    }

    fn decide(&mut self, now: Nanos) -> Action {
        let ended = |(source, state): (usize, &Option<Source>)| {
            state.as_ref()?.release.map(|why| Action::Release { source, why })
        };
        if let Some(release) = self.sources.iter().enumerate().find_map(ended) {
            return release;
        }
        let Some(beat) = self.first_beat(now) else { return Action::Park };
        if let Some(resume) = self.budget.resume_at(now) {
            return self.spent(now, resume, beat);
        }
        self.admission.calm(now, self.config.period);
        if let Some(turn) = self.ready(now) {
            return turn;
        }
        if beat.due {
            return self.heartbeat(beat.source);
        }
        self.wait(now, beat.at)
    }

    /// The heartbeat that is next; `None` if nothing is taken over.
    fn first_beat(&self, now: Nanos) -> Option<Beat> {
        let heartbeat = (self.config.flush_timeout / 2).max(1);
        let sources = self.sources.iter().enumerate().filter_map(|(i, source)| Some((i, source.as_ref()?)));
        let (source, state) = sources.min_by_key(|(_, source)| source.beat)?;
        let at = state.beat.saturating_add(heartbeat);
        Some(Beat { source, at, due: now >= self.ends(state.beat, at) })
    }

    /// The budget is spent until `resume`.
    fn spent(&mut self, now: Nanos, resume: Nanos, beat: Beat) -> Action {
        if self.looks(now) {
            self.admission.exhausted(now, self.config.period);
        }
        if beat.due {
            self.counts.heartbeats += 1;
            return Action::Turn { source: beat.source, packets: HEARTBEAT_PACKETS.min(self.config.quota) };
        }
        self.counts.budget_sleeps += 1;
        Action::Sleep { until: resume.min(beat.at), wake: WakeOn { idle: true, ..WakeOn::default() } }
    }

    /// A turn of a source that neither naps nor stands in a pause, if there is one.
    fn ready(&mut self, now: Nanos) -> Option<Action> {
        let polled = self.sources.iter().flatten().count();
        let mut rotation = self.rotation;
        let picked = rotation.pick(SOURCES_MAX, |i| {
            self.sources[i]
                .as_ref()
                .is_some_and(|s| now >= self.ends(s.last_turn, s.nap_until) && !self.blocked(now, s))
        });
        self.rotation = rotation;
        let source = picked?;
        let state = self.sources[source].as_mut()?;
        let quota = self.config.quota;
        // On the CPU of programs, only if a pause would follow, else others' packets would wait for the flooded program; and only
        // where the ring was empty lately and a wait brings a quarter of it, since in an overload it would be full meanwhile.
        let for_known = state.known_share >= ALL_FULL;
        let most = u64::from(self.config.ring) * 1_000_000_000 / (4 * WAIT_NAPS * self.config.nap.max(1));
        let waits = self.config.marks.is_some() && for_known && state.switch.follows(now, most);
        let (leaves, least) = match self.config.net {
            true => (Some(FITS_PEEKS), FITS_LEAST),
            // Where sources share the room, each has little of it.
            false if polled > 1 => (waits.then_some(FITS_LAST), FITS_LEAST),
            false => (waits.then_some(FITS_LAST), HEARTBEAT_PACKETS),
        };
        let leaves = leaves.filter(|_| self.fits != u32::MAX);
        let fits = leaves.map_or(u32::MAX, |leaves| self.fits.saturating_sub(leaves).max(least) & !1);
        state.fits = leaves.is_some() && !state.sheds && !self.config.net;
        let packets = match (state.sheds, (self.lent || self.config.net) && polled == 1) {
            (true, _) => LOOK_PACKETS.max(quota),
            (_, true) => self.config.lent_quota.max(quota).min(fits),
            _ => quota.min(fits),
        };
        Some(Action::Turn { source, packets })
    }

    /// The turn that holds a pause of `source`.
    fn heartbeat(&mut self, source: usize) -> Action {
        self.counts.heartbeats += 1;
        let quota = self.config.quota;
        // What is shed costs little, and a larger turn finds protected packets sooner; one in vain sheds nothing.
        let vain = self.sources[source].is_some_and(|s| s.vain);
        let packets = match (vain, self.look.is_classed(source)) {
            (true, _) => HEARTBEAT_PACKETS.min(quota),
            (_, true) => LOOK_PACKETS.max(quota),
            _ => quota,
        };
        Action::Turn { source, packets }
    }

    /// All sources nap or stand in a pause: a look or a peek if one is due, else a sleep until `beat_at` at the latest.
    fn wait(&mut self, now: Nanos, beat_at: Nanos) -> Action {
        let (mut until, mut on_time) = (beat_at, false);
        if self.inhibited > 0 {
            // The one that has waited longest; a pause of all costs one step per source.
            let mut oldest = (Nanos::MAX, 0);
            for (index, source) in self.sources.iter().enumerate() {
                let Some(source) = source.as_ref().filter(|s| self.blocked(now, s)) else { continue };
                match self.look.due(now, index, self.awake) {
                    Some(at) if at <= now => oldest = oldest.min((source.last_turn, index)),
                    Some(at) => (until, on_time) = (until.min(at), true),
                    None => {}
                }
            }
            if oldest.0 != Nanos::MAX {
                self.counts.looks += 1;
                return Action::Turn { source: oldest.1, packets: LOOK_PACKETS.max(self.config.quota) };
            }
        }
        if self.config.net
            && let Some(peek) = self.peek(now, &mut until)
        {
            return peek;
        }
        self.sleep(now, until, on_time)
    }

    fn sleep(&mut self, now: Nanos, mut until: Nanos, on_time: bool) -> Action {
        let mut blocked = false;
        let idle = self.consumers.iter().flatten().any(|c| c.watermark.is_inhibited() && now >= c.idle_from)
            && !self.config.net;
        let mut naps = false;
        for source in self.sources.iter().flatten() {
            if self.blocked(now, source) {
                blocked = true;
                if source.full_share < ALL_FULL {
                    until = until.min(source.waits_until);
                }
            } else {
                until = until.min(source.nap_until);
                naps |= source.nap_idle < source.nap_until;
            }
        }
        if blocked {
            for consumer in self.consumers.iter().flatten() {
                until = until.min(consumer.watermark.deadline().unwrap_or(Nanos::MAX));
            }
            self.counts.feedback_sleeps += 1;
        } else {
            self.counts.naps += 1;
        }
        Action::Sleep { until, wake: WakeOn { level: blocked, idle: blocked && idle || naps, on_time } }
    }

    /// On a net CPU: the smallest turn of a source that stands in a pause, if one is due; else `until` is when it is, if that is earlier.
    fn peek(&mut self, now: Nanos, until: &mut Nanos) -> Option<Action> {
        for index in 0..SOURCES_MAX {
            let Some(source) = self.sources[index].filter(|s| self.blocked(now, s)) else { continue };
            let due = source.last_turn.saturating_add(source.peek);
            if now < due {
                *until = (*until).min(due);
            } else if let Some(state) = self.sources[index].as_mut() {
                state.peeks = true;
                return Some(Action::Turn {
                    source: index,
                    packets: HEARTBEAT_PACKETS.min(self.config.quota),
                });
            }
        }
        None
    }

    /// Mode of a source this poller knows.
    pub fn mode(&self, source: usize) -> Option<Mode> {
        self.sources.get(source)?.as_ref().map(|s| s.switch.mode())
    }
}

#[cfg(test)]
#[path = "poller_burst_tests.rs"]
mod burst_tests;
#[cfg(test)]
#[path = "poller_tests.rs"]
mod tests;
