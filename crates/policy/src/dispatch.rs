//! Which source is taken over, when, for what, and by which poller (MR-10, MR-16, MR-19).
//!
//! ```text
//! evidence -> full(..) | overflow(..) | over_budget(..) | bypassed(..) | companion(..) | arrives(..)
//!             each gives an Order: take this source over, on that poller, for this cause
//! result   -> succeeded(..) | refused(..) | released(..) | carries(..)
//! ```
//!
//! The evidence names a source (its polls are full) or only a CPU; for a CPU, [`crate::blame`] finds the sources by what each has
//! carried since the last evidence, at most two ticks ago.
//!
//! # Properties
//! - A source that is taken over, or for which an order is under way, gets no second order before it is released or refused.
//! - No order comes within the pause after a refusal ([`crate::refusals`]), none for full polls, or sockets that
//!   overflow, while bulk TCP explains it, and none for full polls while the gate would know nothing of what comes.
//! - An order names a poller that exists, is on its CPU and runs; if the source's own CPU has one, that one. While none is there
//!   there is no order.

use crate::blame::{self, Carried};
use crate::causes::{Cause, Fallback, Refusal};
use crate::gate::BLIND;
use crate::load::Load;
use crate::merged::{self, Ip};
use crate::netcpu;
use crate::overflow::{LEAST_PPS, Overflow, Sign};
use crate::poller::SOURCES_MAX;
use crate::refusals::{Pause, Refusals};
use crate::shedding::{Became, Needed};
use crate::standing::{Call, Standing};
use crate::switch::{Mode, ModeSwitch, Timing};
use crate::transit::{Counted, FRESH, Transit};
use crate::{MILLISECOND, Nanos};

/// Full polls in a row that are evidence: 512 packets without an end, more than a burst of one ring.
pub const FULL_POLLS: u32 = 8;
/// An interface whose packets come past its NAPI is the flooded one if it receives this many in [`BUSY_SPAN`]: 20 k/s.
pub const BUSY_PACKETS: u64 = 40;
/// See [`BUSY_PACKETS`], ns.
pub const BUSY_SPAN: Nanos = 2 * MILLISECOND;
/// Packets between two looks from which on a source shares the polling of its device: fewer are served by the flush
/// timer, and waiting for one to mark its handle would hold up the poller.
pub const COMPANION_PACKETS: u64 = 64;

/// What is counted of a source.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// CPU of its last softirq.
    pub cpu: u32,
    /// Packets so far; may wrap.
    pub packets: u64,
}

/// A source is to be taken over.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Which.
    pub slot: usize,
    /// By which poller, in the order in which they were added.
    pub poller: usize,
    /// For what.
    pub cause: Cause,
    /// By load: since when it is watched for it, to be given back if it carries that.
    pub loads: [Option<Nanos>; Load::ALL.len()],
    /// Of bulk TCP a quarter of its frames is enough to give it back.
    pub quarter: bool,
    /// An io_uring may poll it: 8 packets at a time, which pass on a third of what the kernel's own polls do, and shed as well.
    pub by_io_uring: bool,
    /// The source's mode switch, which has decided so.
    pub switch: ModeSwitch,
    /// When the evidence was seen.
    pub evidence: Nanos,
}

/// Packets that a source had carried one and two ticks ago, or at the last evidence, and when that was.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    base: (u64, Nanos),
    next: (u64, Nanos),
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    known: bool,
    /// The one CPU that RPS sends its packets to.
    rps_cpu: Option<u32>,
    /// Unless it is polled, or an order is under way.
    switch: Option<ModeSwitch>,
    /// In mode shed.
    needed: Needed,
    refusals: Refusals,
    /// Until when full polls say nothing: the source carried bulk TCP.
    bulk: Option<Pause>,
    /// Until when sockets that overflow are explained by bulk TCP: beside that it was taken over for them.
    beside: Option<Pause>,
    /// What was counted at a tick before, and when a transfer explained last what came since.
    looked: Option<merged::Look>,
    transfers: Option<Nanos>,
    /// As `bulk`, since the gate knew nothing of what it carried.
    unknown: Option<Pause>,
    /// Left to the kernel since the gate knew nothing of it, it took the CPU from programs: until when it is not tried again.
    starved: Option<Pause>,
    /// As `bulk`, since nothing counts its frames.
    uncounted: Option<Pause>,
    seen: Seen,
    companion: Option<u64>,
    /// On net CPUs: packets at the last look, and when that was.
    arrived: Option<(Nanos, u64)>,
    /// The poller that is to have it, since the set has changed.
    seat: Option<usize>,
    /// The CPU of the poller that has it.
    polled_on: Option<usize>,
}

impl Slot {
    /// True if bulk TCP explains this sign of overload.
    fn explains(&self, cause: Cause, evidence: Nanos) -> bool {
        let lasts = |pause: Option<Pause>| pause.is_some_and(|pause| pause.lasts(evidence));
        let beside = lasts(self.beside) || self.transfers(evidence);
        match cause {
            Cause::Overflow => beside,
            Cause::Trickle => beside || lasts(self.bulk),
            _ => false,
        }
    }

    /// A transfer explained lately what it carried.
    fn transfers(&self, evidence: Nanos) -> bool {
        self.transfers.is_some_and(|at| evidence.saturating_sub(at) < merged::FRESH)
    }

    /// That packets arrive is no evidence at `now`, and until then.
    fn says_nothing(&self, now: Nanos) -> Option<Nanos> {
        let pauses = [self.bulk, self.unknown, self.uncounted].into_iter().flatten();
        let pauses = pauses.filter(|pause| pause.lasts(now)).map(|pause| pause.until);
        // A gate that stays is in a transfer's way: with that, polling tells whether it is worth it.
        let sheds = self.switch.is_some_and(|switch| switch.mode() == Mode::Shed);
        pauses.chain((self.transfers(now) && !sheds).then_some(now + EXPLAINED)).max()
    }
}

/// So long after a source was left to the kernel its softirqs are no evidence: its ring is full, and programs of weir are detached
/// meanwhile, ns.
const LEAVES: Nanos = 200 * MILLISECOND;

/// For so long full polls and losses that a transfer explains, and full polls of what is only passed on, are not told again, ns: telling
/// takes several hundredths of a CPU.
pub const EXPLAINED: Nanos = 100 * MILLISECOND;

/// For how long sockets that overflow are explained by bulk TCP beside which they did, at first and at most, ns. Nothing tells when the
/// transfer ends, and a flood for a program that reads may be more than what the kernel carries well.
const BESIDE: (Nanos, Nanos) = (1000 * MILLISECOND, 4000 * MILLISECOND);

/// Who waits for less than so long before it runs lacks little, ns. Of a source that carries a transfer softirqs over the budget are then
/// no evidence: near what a CPU can take they are, and its programs get what they need.
pub const LONG: Nanos = 3 * MILLISECOND;
/// The same of a source that was left to the kernel since the gate knows nothing of it. Nobody holds its senders back, and where programs
/// wait for longer its ring overflows already, for others too.
pub const LONG_UNKNOWN: Nanos = MILLISECOND;

/// A CPU is overloaded.
#[derive(Clone, Copy, Debug)]
struct Told {
    evidence: Nanos,
    cpu: u32,
    cause: Cause,
    /// How long a task waits for it, on average.
    waited: Nanos,
}

impl Told {
    fn of(evidence: Nanos, cpu: u32, cause: Cause) -> Self {
        Self { evidence, cpu, cause, waited: Nanos::MAX }
    }
}

/// What bears a sign of overload of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bears {
    /// No source carries any packet.
    Nobody,
    /// All that carry any are polled already.
    Polled,
    /// Bulk TCP on this source explains it.
    Transfer {
        /// Its slot.
        slot: usize,
    },
    /// Sources may: they have orders, unless something else holds these back.
    Sources,
}

/// See the module. About 10 KiB.
#[derive(Clone, Debug)]
pub struct Dispatch {
    slots: [Slot; SOURCES_MAX],
    /// By CPU; the last one is for all CPUs that were not there at the start.
    overflows: Box<[Overflow]>,
    /// CPUs of the pollers.
    pollers: Vec<usize>,
    /// Whether each is away from it: the CPU is offline. Two on one CPU would each count the other's time as the programs'.
    away: Vec<bool>,
    /// Whether each runs.
    standing: Vec<Standing>,
    /// As many of those that are there are the set of net CPUs, the first ones.
    set: usize,
    next: usize,
    transit: Transit,
    /// When a consumer was found to overflow, here or in a container.
    harmed_at: Option<Nanos>,
    /// Programs are asked about packets.
    asked: bool,
    /// A source stays polled although polling does it no good.
    insists: bool,
    /// When a source was left to the kernel last since the gate knew nothing of it: what learns is detached then.
    left_at: Option<Nanos>,
}

/// What a tick tells beside the sources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings {
    /// What the host has counted, if that can be read.
    pub ip: Option<Ip>,
    /// This host forwards.
    pub routes: bool,
    /// Programs are asked about packets (NFQUEUE).
    pub asked: bool,
}

impl Dispatch {
    /// For CPUs below `cpus`, without sources and pollers.
    pub fn new(cpus: usize) -> Self {
        Self {
            slots: [Slot::default(); SOURCES_MAX],
            overflows: vec![Overflow::default(); cpus + 1].into(),
            pollers: Vec::with_capacity(cpus),
            away: Vec::with_capacity(cpus),
            standing: Vec::with_capacity(cpus),
            set: usize::MAX,
            next: 0,
            transit: Transit::default(),
            harmed_at: None,
            asked: false,
            insists: false,
            left_at: None,
        }
    }

    /// What was taken over stays polled although the gate knows nothing of what it carries: somebody has asked for that. Part of the
    /// construction.
    pub fn insist(&mut self) {
        self.insists = true;
    }

    /// One more poller, on `cpu`. Part of the construction: before the first evidence.
    pub fn add_poller(&mut self, cpu: usize) {
        self.pollers.push(cpu);
        self.away.push(false);
        self.standing.push(Standing::default());
    }

    /// The poller, by the order in which it was added, is not on its CPU, or is there again.
    pub fn set_away(&mut self, poller: usize, away: bool) {
        if let Some(state) = self.away.get_mut(poller) {
            *state = away;
        }
    }

    /// The poller was found at `now` not to run: it gets nothing until it has shown itself.
    pub fn stuck(&mut self, now: Nanos, poller: usize) {
        if let Some(state) = self.standing.get_mut(poller) {
            state.stuck(now);
        }
    }

    /// A look at the poller, which has said at `answered` that it runs: what is to be done about it.
    pub fn look_at_poller(&mut self, now: Nanos, poller: usize, answered: Nanos) -> Option<Call> {
        self.standing.get_mut(poller)?.look(now, answered)
    }

    /// Only the first `set` pollers of those that are there take sources from here on: they are the net CPUs.
    pub fn resize(&mut self, set: usize) {
        self.set = set.max(1);
    }

    /// The source in `slot` is given back for this poller to take it.
    pub fn seat(&mut self, slot: usize, poller: usize) {
        if let Some(state) = self.slots.get_mut(slot) {
            state.seat = Some(poller);
        }
    }

    /// The source has been given back for another poller: the order for that one.
    pub fn follow(&mut self, now: Nanos, slot: usize) -> Option<Order> {
        self.slots.get(slot)?.seat?;
        self.order(now, now, slot, usize::MAX, Cause::Resized)
    }

    /// The source in `slot`, in interrupt mode, may be taken over from here on. `rps_cpu`: where RPS has its packets
    /// handled, if that is one CPU.
    pub fn add(&mut self, slot: usize, timing: Timing, rps_cpu: Option<u32>) {
        let Some(state) = self.slots.get_mut(slot) else { return };
        let fresh = Slot { known: true, rps_cpu, switch: Some(ModeSwitch::new(timing)), ..Slot::default() };
        *state = Slot { seen: state.seen, companion: state.companion, ..fresh };
    }

    /// RPS has the packets of the source handled on this CPU, or no more on a single one.
    pub fn handled_on(&mut self, slot: usize, rps_cpu: Option<u32>) {
        if let Some(state) = self.slots.get_mut(slot) {
            state.rps_cpu = rps_cpu;
        }
    }

    /// The source is gone.
    pub fn remove(&mut self, slot: usize) {
        if let Some(state) = self.slots.get_mut(slot) {
            (state.known, state.switch) = (false, None);
            // What takes its place has carried nothing.
            (state.bulk, state.unknown, state.uncounted) = (None, None, None);
        }
    }

    /// True if the source may be taken over now or later, and is in interrupt mode.
    pub fn waits(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|s| s.known && s.switch.is_some())
    }

    /// The source is in interrupt mode again. What sockets lost on its poller's CPU while it was polled says nothing of the kernel's
    /// own way.
    pub fn released(&mut self, slot: usize, switch: ModeSwitch) {
        let polled_on = self.slots.get_mut(slot).and_then(|s| s.polled_on.take());
        if let Some(account) = polled_on.and_then(|cpu| self.overflows.get_mut(cpu)) {
            *account = Overflow::default();
        }
        if let Some(state) = self.slots.get_mut(slot).filter(|s| s.known) {
            state.switch = Some(switch);
        }
    }

    /// What has `became` of the source's frames so far: true if it is in mode shed, and that is over by `now`.
    pub fn gate_is_over(&mut self, now: Nanos, slot: usize, became: Became) -> bool {
        let Some(state) = self.slots.get_mut(slot) else { return false };
        if state.switch.is_none_or(|s| s.mode() != Mode::Shed) {
            state.needed = Needed::default();
            return false;
        }
        state.needed.is_over(now, became)
    }

    /// The source has left mode shed.
    pub fn calmed(&mut self, now: Nanos, slot: usize) {
        if let Some(switch) = self.slots.get_mut(slot).and_then(|s| s.switch.as_mut()) {
            switch.calmed(now);
        }
    }

    /// A takeover was refused at `now`: the next one waits. What takes its place, if it is given up.
    pub fn refused(
        &mut self,
        now: Nanos,
        slot: usize,
        mut switch: ModeSwitch,
        why: Refusal,
    ) -> Option<Fallback> {
        switch.released(now);
        self.released(slot, switch);
        self.slots.get_mut(slot)?.refusals.refused(now, why)
    }

    /// A takeover succeeded: the source is polled on this CPU.
    pub fn succeeded(&mut self, slot: usize, cpu: usize) {
        if let Some(state) = self.slots.get_mut(slot) {
            (state.refusals, state.polled_on) = (Refusals::default(), Some(cpu));
        }
    }

    /// The source, taken over for `cause`, carried this load: full polls of it are no evidence for a while, longer each time. Nor are
    /// sockets that lose a little, beside bulk TCP; nor any that overflow, if that was the cause.
    pub fn carries(&mut self, now: Nanos, slot: usize, load: Load, cause: Cause) {
        if load == Load::Unknown {
            self.left_at = Some(now);
        }
        if let Some(state) = self.slots.get_mut(slot) {
            let pause = match load {
                Load::Bulk => &mut state.bulk,
                Load::Unknown => &mut state.unknown,
            };
            *pause = Some(Pause::of(load.pause(), *pause, now));
            if load == Load::Bulk && cause.by_sockets() {
                state.beside = Some(Pause::between(BESIDE, state.beside, now));
            }
        }
    }

    /// Nothing counts the frames of the source, which would tell bulk TCP: full polls of it are no evidence for a while, longer each
    /// time.
    pub fn is_uncounted(&mut self, now: Nanos, slot: usize) {
        if let Some(state) = self.slots.get_mut(slot) {
            state.uncounted = Some(Pause::after(state.uncounted, now));
        }
    }

    /// A tick has passed: what a source carried before the one before it blames it for nothing. `bytes`: those that the interface of
    /// a source has received so far.
    pub fn tick(
        &mut self,
        now: Nanos,
        traffic: impl Fn(usize) -> Traffic,
        bytes: impl Fn(usize) -> u64,
        around: Surroundings,
    ) {
        self.asked = around.asked;
        let mut arrived = 0u64;
        for (slot, state) in self.slots.iter_mut().enumerate().filter(|(_, s)| s.known) {
            let packets = traffic(slot).packets;
            arrived = arrived.wrapping_add(packets);
            state.seen = Seen { base: state.seen.next, next: (packets, now) };
        }
        let here = around.ip.filter(|_| around.routes).map(|ip| ip.kept);
        self.transit.look(now, here.map(|here| Counted { arrived, here }));
        let ip = around.ip.filter(|_| self.gives_back_beside());
        for (slot, state) in self.slots.iter_mut().enumerate().filter(|(_, s)| s.known) {
            let (packets, bytes) = (state.seen.next.0, bytes(slot));
            let look = ip.map(|ip| merged::Look { packets, bytes, all: arrived, ip });
            let then = state.looked.zip(look);
            if then.is_some_and(|(then, look)| look.is_early(&then)) {
                continue;
            }
            if then.is_some_and(|(then, look)| look.explains(&then)) {
                state.transfers = Some(now);
            }
            state.looked = look;
        }
    }

    /// A quarter of bulk TCP is enough to leave a source to the kernel. A router always carries TCP, whoever of its own programs is
    /// flooded; and of what a program is asked about nothing is shed.
    fn gives_back_beside(&self) -> bool {
        !self.insists && !self.asked && !self.transit.forwards()
    }

    /// The polls of a source on `cpu` were full, as seen at `evidence`. `queued`: what this host forwards may wait in a packet
    /// filter's queue, which is what is full then.
    pub fn full(
        &mut self,
        now: Nanos,
        evidence: Nanos,
        slot: usize,
        cpu: usize,
        queued: bool,
    ) -> Option<Order> {
        if self.says_nothing(slot, evidence, queued).is_some() {
            return None;
        }
        self.order(now, evidence, slot, cpu, Cause::FullPolls)
    }

    /// Until when full polls of the source say nothing at `now`: it carried what polling does no good, or what arrives is only passed on,
    /// and none of that is `queued` for a packet filter.
    pub fn says_nothing(&self, slot: usize, now: Nanos, queued: bool) -> Option<Nanos> {
        let passed_on = (!queued && self.passes_on(now)).then_some(now + EXPLAINED);
        self.slots.get(slot)?.says_nothing(now).max(passed_on)
    }

    /// At `now` that is since bulk TCP explains them, as the kernel's own counts tell.
    pub fn transfers(&self, slot: usize, now: Nanos) -> bool {
        self.slots.get(slot).is_some_and(|state| state.transfers(now))
    }

    /// The kernel polls the source, and nothing is shed of it.
    pub fn is_left_alone(&self, slot: usize) -> bool {
        let switch = self.slots.get(slot).and_then(|state| state.switch);
        switch.is_some_and(|switch| switch.mode() == Mode::Interrupt)
    }

    /// Full polls say nothing at `now`: what arrives is only passed on.
    pub fn passes_on(&self, now: Nanos) -> bool {
        !self.transit.full_polls_count(now)
    }

    /// Sockets on `cpu` have lost [`crate::overflow::STEP`] more packets at `evidence`. What bears that, if it is evidence;
    /// [`Bears::Nobody`] and [`Bears::Polled`] only of much that is lost.
    pub fn overflow(
        &mut self,
        now: Nanos,
        evidence: Nanos,
        cpu: u32,
        traffic: impl Fn(usize) -> Traffic,
        give: impl FnMut(Order),
    ) -> Bears {
        let last = self.overflows.len() - 1;
        let account = &mut self.overflows[(cpu as usize).min(last)];
        let (cause, much) = match account.report(evidence) {
            Some(Sign::Much) => (Cause::Overflow, true),
            Some(Sign::Little) => (Cause::Trickle, false),
            None => return Bears::Sources,
        };
        match self.flooded(now, Told::of(evidence, cpu, cause), traffic, give) {
            Bears::Nobody | Bears::Polled if !much => Bears::Sources,
            bears => bears,
        }
    }

    /// The same, where somebody else has found the overflows of `cpu` to be evidence.
    pub fn overflows(
        &mut self,
        now: Nanos,
        evidence: Nanos,
        cpu: u32,
        traffic: impl Fn(usize) -> Traffic,
        give: impl FnMut(Order),
    ) -> bool {
        let bears = self.flooded(now, Told::of(evidence, cpu, Cause::Overflow), traffic, give);
        matches!(bears, Bears::Nobody | Bears::Polled)
    }

    /// Softirqs took more of `cpu` than the budget, while programs wanted it, and each of them waits for so long.
    pub fn over_budget(
        &mut self,
        now: Nanos,
        evidence: Nanos,
        cpu: u32,
        waited: Nanos,
        traffic: impl Fn(usize) -> Traffic,
        give: impl FnMut(Order),
    ) {
        let told = Told { waited, ..Told::of(evidence, cpu, Cause::Budget) };
        self.flooded(now, told, traffic, give);
    }

    /// Packets that overflow sockets of `cpu` come past every NAPI, and the interface of this source receives most.
    pub fn bypassed(&mut self, now: Nanos, evidence: Nanos, slot: usize, cpu: usize) -> Option<Order> {
        self.order(now, evidence, slot, cpu, Cause::Bypassed)
    }

    /// Another source of its device is polled under settings of the device: this one is taken over too, if packets
    /// came since the last look.
    pub fn companion(&mut self, now: Nanos, slot: usize, traffic: Traffic) -> Option<Order> {
        let before = self.slots.get_mut(slot)?.companion.replace(traffic.packets)?;
        let carries = traffic.packets.wrapping_sub(before) >= COMPANION_PACKETS;
        carries.then(|| self.order(now, now, slot, traffic.cpu as usize, Cause::Companion)).flatten()
    }

    /// A look at a source of net CPUs: it is taken over if packets arrive, and at the first look, so that one that cannot be polled
    /// is known from the start. Bulk TCP stays with interrupts.
    pub fn arrives(&mut self, now: Nanos, slot: usize, traffic: Traffic) -> Option<Order> {
        let state = self.slots.get_mut(slot).filter(|s| s.known)?;
        let before = state.arrived.replace((now, traffic.packets));
        let calls =
            |(at, packets)| netcpu::calls(now.saturating_sub(at), traffic.packets.wrapping_sub(packets));
        if !before.is_none_or(calls) || state.says_nothing(now).is_some() {
            return None;
        }
        self.order(now, now, slot, traffic.cpu as usize, Cause::Arrives)
    }

    /// `cpu` is overloaded: orders for those of its sources that are flooded most, although their rings are not full.
    fn flooded(
        &mut self,
        now: Nanos,
        told: Told,
        traffic: impl Fn(usize) -> Traffic,
        mut give: impl FnMut(Order),
    ) -> Bears {
        let Told { evidence, cpu, cause, waited } = told;
        let mut carried = [Carried { slot: 0, packets: 0, polled: true }; SOURCES_MAX];
        // One whose bulk TCP explains this, and its packets.
        let (mut count, mut explained) = (0, None::<(u64, usize)>);
        // Packets per second of all of them.
        let mut rate = 0u128;
        for (slot, state) in self.slots.iter_mut().enumerate().filter(|(_, s)| s.known) {
            let seen = traffic(slot);
            // With RPS the socket overflows on another CPU than the one that polls.
            if state.rps_cpu.unwrap_or(seen.cpu) != cpu {
                continue;
            }
            let (base, since) = state.seen.base;
            let packets = seen.packets.wrapping_sub(base);
            rate += u128::from(packets) * 1_000_000_000 / u128::from(now.saturating_sub(since).max(1));
            state.seen = Seen { base: (seen.packets, now), next: (seen.packets, now) };
            // It bears nothing of this, and hides no other one that does.
            let explains = state.switch.is_some() && state.explains(cause, evidence);
            explained = if explains { explained.max(Some((packets, slot))) } else { explained };
            carried[count] = Carried { slot, packets, polled: state.switch.is_none() || explains };
            count += 1;
        }
        let carried = &carried[..count];
        if carried.iter().all(|c| c.polled || c.packets == 0) {
            let explained = explained.filter(|(packets, _)| *packets > 0);
            let nobody = carried.iter().all(|c| c.packets == 0);
            let bears = if nobody { Bears::Nobody } else { Bears::Polled };
            return explained.map_or(bears, |(_, slot)| Bears::Transfer { slot });
        }
        if cause == Cause::Trickle && rate < u128::from(LEAST_PPS) {
            return Bears::Sources;
        }
        if cause.by_sockets() {
            self.harmed_at = Some(now);
        }
        for slot in blame::flooded(carried) {
            // Beside that one it carries too little to be what overflows a socket.
            let few = |c: &Carried| {
                c.slot == slot && c.packets.saturating_mul(4) < explained.map_or(0, |(packets, _)| packets)
            };
            if carried.iter().any(few) {
                continue;
            }
            let state = self.slots.get(slot);
            let unknown = state.and_then(|state| state.unknown);
            let bears = |pause: Pause| {
                pause.begins(evidence, LEAVES) || waited < LONG_UNKNOWN && pause.lasts(evidence)
            };
            let transfers = waited < LONG && state.is_some_and(|state| state.transfers(evidence));
            if cause == Cause::Budget && (transfers || unknown.is_some_and(bears)) {
                continue;
            }
            if let Some(order) = self.order(now, evidence, slot, cpu as usize, cause) {
                give(order);
            }
        }
        Bears::Sources
    }

    /// Evidence of overload on a source whose softirq ran on `cpu`.
    fn order(&mut self, now: Nanos, evidence: Nanos, slot: usize, cpu: usize, cause: Cause) -> Option<Order> {
        let harmed = self.harmed_at.is_some_and(|at| now.saturating_sub(at) < FRESH);
        // Where something is full, what is shed or paused is worth more than the io_uring costs.
        let by_io_uring = cause != Cause::Budget || harmed || self.asked || !self.passes_on(now);
        let quarter = self.gives_back_beside();
        let state = self.slots.get_mut(slot).filter(|s| s.known && s.refusals.allow(now))?;
        let there = self.away.iter().zip(&self.standing).map(|(away, standing)| !away && standing.takes());
        let able = self.pollers.iter().zip(there).enumerate();
        let mut able = able.filter_map(|(n, (cpu, there))| there.then_some((n, *cpu))).take(self.set);
        let there = able.clone().count();
        if there == 0 {
            return None;
        }
        let switch = state.switch.as_mut()?;
        if !switch.overloaded(now, cause.evidence()) {
            return None;
        }
        let switch = state.switch.take()?;
        // The CPU where the work of this source is done already, if weir may use it; else they share the rest.
        let cpu = state.rps_cpu.map_or(cpu, |c| c as usize);
        let seat = state.seat.take().filter(|seat| able.clone().any(|(poller, _)| poller == *seat));
        let poller = seat.or_else(|| able.clone().find(|(_, c)| *c == cpu).map(|(poller, _)| poller));
        let poller = poller.or_else(|| {
            self.next = self.next.wrapping_add(1);
            able.nth(self.next % there).map(|(poller, _)| poller)
        })?;
        // Of what a program is asked about the gate knows nothing, and its queue may be what is full.
        let given_back = |load| cause.may_be(load) && (load == Load::Bulk || !self.insists && !self.asked);
        if cause == Cause::Budget && state.unknown.is_some_and(|pause| pause.lasts(now)) {
            state.starved = Some(Pause::after(state.starved, now));
        }
        let tried = state.starved.filter(|pause| pause.lasts(now)).map_or(now, |pause| pause.until);
        // Nothing is learnt of it before what learns is back; that takes a moment to go.
        let blind = self.left_at.map_or(0, |at| at + LEAVES + BLIND).max(tried);
        let since = |load| if load == Load::Unknown { blind } else { now };
        let loads = Load::ALL.map(|load| given_back(load).then(|| since(load)));
        Some(Order { slot, poller, cause, loads, quarter, by_io_uring, switch, evidence })
    }
}

/// The slot of the source whose interface has received most in [`BUSY_SPAN`], if as many as in a flood.
pub fn busiest(received: impl Iterator<Item = (usize, u64)>) -> Option<usize> {
    let (slot, most) = received.max_by_key(|(_, packets)| *packets)?;
    (most >= BUSY_PACKETS).then_some(slot)
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
