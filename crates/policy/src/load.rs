//! Whether a source that was taken over because its polls were full, or sockets lost a little, carries a load that polling does no
//! good.
//!
//! [`Load::Bulk`]: a bulk transfer over TCP fills poll after poll and is no overload, since the receiver's window holds the sender.
//! Small turns undo what GRO merges, and on some drivers an XDP program has each packet copied, so that poll mode harms it, and with it
//! the program whose socket overflows beside it. So with mode auto a quarter of the frames is enough, if it is there for ten
//! windows in a row: that leaves the gate the time to learn what is nobody's, and if that is most of the rest, shedding it is worth more.
//! A flood is not answered and does not slow down, whatever it is dressed as; one of TCP segments takes the CPU from programs instead,
//! and that sign is judged apart. On net CPUs, in mode poll and on a router the source has to carry next to nothing else.
//!
//! [`Load::Unknown`]: of hardly any datagram the gate knows where it would end, so it has nothing to shed, and no socket is full that it
//! knows. A poller then hands up what the kernel's own NAPI would, at a higher price. So it is with fragments, whose ends nobody knows. Of
//! these a poller cuts what its budget does not last for: three of four at a rate that the kernel just carries, and nearly all at one that
//! it does not. Nor is there anything to learn of frames that are bridged, or of protocols whose sockets nobody asks (ESP, GRE): these may
//! be a gateway's or a guest's own work, and the kernel does that for less. Where programs take what the budget leaves, the kernel most
//! likely takes from them: it is tried [`HUNGRY`] later. Sockets that overflow are evidence of their own. If programs starve once the
//! kernel has it back, it is polled, and left to the kernel again less and less often.
//!
//! Where nothing counts frames, full polls alone are no evidence ([`crate::dispatch::Dispatch::carries`]).

use crate::gate::tick;
use crate::refusals::RETRY;
use crate::{MILLISECOND, Nanos, Permille};

/// Fewer frames in a window say nothing.
const FRAMES_MIN: u64 = 64;

/// What polling does no good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// TCP segments of connections that stand.
    Bulk,
    /// Datagrams, fragments and frames of other protocols of which the gate knows nothing.
    Unknown,
}

impl Load {
    /// Each of them.
    pub const ALL: [Load; 2] = [Load::Bulk, Load::Unknown];

    /// Time between two judgements. That a datagram is nobody's takes a thousand refusals to learn, and that a socket is full a look.
    pub fn window(self) -> Nanos {
        match self {
            Load::Bulk => 10 * MILLISECOND,
            Load::Unknown => 200 * MILLISECOND,
        }
    }

    /// For how long full polls of it are no evidence, at first. Where programs starve or sockets overflow that is told apart.
    pub fn pause(self) -> Nanos {
        match self {
            Load::Bulk => RETRY.0,
            Load::Unknown => 4 * RETRY.0,
        }
    }
}

/// Share of such frames from which on the source carries a load.
const MOST: Permille = 900;
/// Of the frames of a source, those of a transfer beside which a flood is no overload.
const QUARTER: Permille = 250;
/// So many windows in a row.
const TOGETHER: u32 = 10;
/// For each fragment that is handed up so many may have been cut.
const CUT: u64 = 4;
/// One flow in so many that is new, of the datagrams of which nothing is known, leaves nothing to learn.
const NEW: u64 = 16;
/// So many flows, each refused once, are too many to learn: a thousand refusals of each take longer than a flood often lasts.
const MANY: u64 = 16_384;
/// And then it is judged after so long.
const SOON: Nanos = 20 * MILLISECOND;
/// Beside programs that take what the budget leaves it is given back so much later. Not never: one that wants no more than it gets has as
/// much without a budget, and the kernel carries such packets for less.
pub const HUNGRY: Nanos = 4000 * MILLISECOND;

/// Of so many `frames` a `part` is a transfer's: true if a flood beside it is no overload. That is better shed if most of the rest is
/// `nobody`'s.
pub fn is_beside(frames: u64, part: u64, nobody: u64) -> bool {
    let rest = frames.saturating_sub(part);
    part.saturating_mul(1000) >= frames.saturating_mul(u64::from(QUARTER)) && nobody.saturating_mul(2) <= rest
}

/// What the kernel's refusals say of the datagrams of which the gate knows nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learning {
    /// Nothing yet.
    Untold,
    /// Flows come again: the gate is about to learn whose they are.
    Learns,
    /// They are of too many flows.
    Hopeless,
}

/// The kernel has `refused` some at this tick, and of so many `unknown` ones since the takeover `flows` were the first of their flow.
pub fn learning(now: u32, refused: u32, flows: u64, unknown: u64) -> Learning {
    // Another CPU may be a tick ahead.
    let lately = refused != 0 && now.saturating_sub(refused) < tick(Load::Unknown.window());
    match lately {
        // Refusals that are of no flow teach nothing of one.
        true if flows > 0 && flows.saturating_mul(NEW) < unknown => Learning::Learns,
        true if flows >= MANY => Learning::Hopeless,
        _ => Learning::Untold,
    }
}

/// Counts of a source since its start, for one load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// All frames.
    pub frames: u64,
    /// Those of the load, without fragments and opaque ones.
    pub part: u64,
    /// Those of it of which there is nothing to learn.
    pub opaque: u64,
    /// Frames that were shed since they are nobody's, or SYNs that no listener takes.
    pub nobody: u64,
    /// Fragments of it that were handed up.
    pub fragments: u64,
    /// Fragments of it that were shed, since the budget did not last for them.
    pub cut: u64,
    /// Sleeps of its poller because the budget was spent.
    pub spent: u64,
    /// Times that an idle CPU lent the reserve.
    pub lent: u64,
}

impl Counted {
    fn since(self, then: Counted) -> Counted {
        Counted {
            frames: self.frames.saturating_sub(then.frames),
            part: self.part.saturating_sub(then.part),
            opaque: self.opaque.saturating_sub(then.opaque),
            nobody: self.nobody.saturating_sub(then.nobody),
            fragments: self.fragments.saturating_sub(then.fragments),
            cut: self.cut.saturating_sub(then.cut),
            spent: self.spent.saturating_sub(then.spent),
            lent: self.lent.saturating_sub(then.lent),
        }
    }

    /// True if the budget ran out, and other programs wanted the CPU in most of the time that it left them.
    fn wanted(&self) -> bool {
        self.spent > self.lent.saturating_mul(2)
    }
}

/// Counts of one load at the last judgement.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    load: Load,
    /// A quarter is enough of bulk TCP; and in how many windows in a row it was so.
    quarter: bool,
    together: u32,
    at: Nanos,
    then: Counted,
    hunger: Hunger,
}

/// Whether a load was to be given back, but for programs that took what the budget left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hunger {
    None,
    /// They did once. A window says little: the guard's own threads take the CPU after a takeover, and learn what arrives.
    Once,
    /// They did again.
    Waited,
}

impl Share {
    /// A source that is watched from `at` on, with its counts then; `quarter`: of bulk TCP a quarter of them is enough.
    #[must_use]
    pub fn new(load: Load, quarter: bool, at: Nanos, then: Counted) -> Self {
        let (quarter, together) = (quarter && load == Load::Bulk, 0);
        Self { load, quarter, together, at, then, hunger: Hunger::None }
    }

    /// Which.
    #[must_use]
    pub fn load(&self) -> Load {
        self.load
    }

    /// True if what came in the last [`Load::window`] was that; false before it is watched, while the gate is about to learn what it is
    /// for, and, for [`HUNGRY`], where programs take what the budget leaves in two windows. Where learning is hopeless it does not take so long.
    pub fn is(&mut self, now: Nanos, counted: Counted, learning: Learning) -> bool {
        if now < self.at {
            self.then = counted;
            return false;
        }
        let soon = learning == Learning::Hopeless && self.hunger == Hunger::None;
        if now - self.at < if soon { SOON.min(self.load.window()) } else { self.load.window() } {
            return false;
        }
        let seen = counted.since(self.then);
        (self.at, self.then) = (now, counted);
        let of_load = seen.part + seen.opaque + seen.fragments + seen.cut;
        let most = |of: u64| seen.frames >= FRAMES_MIN && of * 1000 >= seen.frames * u64::from(MOST);
        let quarter =
            self.quarter && seen.frames >= FRAMES_MIN && is_beside(seen.frames, of_load, seen.nobody);
        self.together = if quarter { self.together + 1 } else { 0 };
        if self.together >= TOGETHER {
            return true;
        }
        let learns = learning == Learning::Learns && !most(seen.opaque);
        let is = !learns && seen.cut <= seen.fragments.saturating_mul(CUT) && most(of_load);
        if !is || !seen.wanted() {
            self.hunger = if self.hunger == Hunger::Once { Hunger::None } else { self.hunger };
            return is;
        }
        match self.hunger {
            Hunger::None => self.hunger = Hunger::Once,
            Hunger::Once => (self.at, self.hunger) = (now.saturating_add(HUNGRY), Hunger::Waited),
            Hunger::Waited => return true,
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_come_again_are_learnt() {
        let told = |refused, flows, unknown| learning(500, refused, flows, unknown);
        assert_eq!(told(499, 1000, 140_000), Learning::Learns, "a thousand flows");
        assert_eq!(told(501, 1000, 140_000), Learning::Learns, "told by another CPU");
        assert_eq!(told(499, 60_000, 140_000), Learning::Hopeless, "sixty thousand");
        assert_eq!(told(499, 9_000, 9_000), Learning::Untold, "all of them are new so far");
        assert_eq!(told(499, 0, 140_000), Learning::Untold, "what is refused is of no flow");
        assert_eq!(told(488, 0, 140_000), Learning::Untold, "nobody refuses them");
        assert_eq!(learning(5, 0, 0, 140_000), Learning::Untold, "or ever did");
    }

    #[test]
    fn a_load_is_told_from_floods_of_something_else() {
        for load in Load::ALL {
            let window = load.window();
            let counted = |frames, part| Counted { frames, part, ..Counted::default() };
            let mut carried = Share::new(load, false, 0, counted(100, 0));
            let mut is = |now, frames, part| carried.is(now, counted(frames, part), Learning::Untold);
            assert!(!is(window - 1, 1100, 1000), "too early");
            assert!(is(window, 1100, 1000));
            assert!(!is(2 * window, 2100, 1899), "one frame in ten is something else");
            assert!(!is(3 * window, 2110, 1909), "ten frames say nothing");
            assert!(!is(4 * window, 9000, 1909), "a flood of something else");
        }
    }

    /// It is there for 100 ms, and most of the rest is not shed as nobody's.
    #[test]
    fn a_transfer_that_keeps_a_quarter_of_the_frames_is_bulk() {
        let window = Load::Bulk.window();
        // The windows that pass before it is.
        let after = |quarter, part, nobody, gap| {
            let mut share = Share::new(Load::Bulk, quarter, 0, Counted::default());
            let mut counted = Counted::default();
            (1..100).find(|n| {
                let part = if n % gap == 0 { 0 } else { part };
                counted.frames += 1000;
                (counted.part, counted.nobody) = (counted.part + part, counted.nobody + nobody);
                share.is(n * window, counted, Learning::Untold)
            })
        };
        assert_eq!(after(true, 250, 375, 99), Some(u64::from(TOGETHER)));
        assert_eq!(after(true, 900, 0, 99), Some(1), "next to nothing else");
        assert_eq!(after(true, 249, 0, 99), None);
        assert_eq!(after(true, 250, 376, 99), None, "what is nobody's is better shed");
        assert_eq!(after(true, 500, 0, 10), None, "a part of the time");
        assert_eq!(after(false, 899, 0, 99), None, "net CPUs, mode poll, a router");
    }

    #[test]
    fn what_is_hopeless_is_not_waited_for_and_what_is_about_to_be_learnt_is() {
        let window = Load::Unknown.window();
        let is = |at, learning| {
            let all = Counted { frames: 1000, part: 1000, ..Counted::default() };
            Share::new(Load::Unknown, false, 0, Counted::default()).is(at, all, learning)
        };
        assert!(!is(SOON - 1, Learning::Hopeless));
        assert!(is(SOON, Learning::Hopeless));
        assert!(!is(SOON, Learning::Untold));
        assert!(!is(2 * window, Learning::Learns));
    }

    #[test]
    fn what_came_before_it_is_watched_says_nothing() {
        let window = Load::Unknown.window();
        let mut later = Share::new(Load::Unknown, false, 1000, Counted::default());
        let mut is = |now, frames, part| {
            later.is(now, Counted { frames, part, ..Counted::default() }, Learning::Untold)
        };
        assert!(!is(999, 50_000, 50_000));
        assert!(!is(1000 + window, 51_000, 50_000), "none since");
        assert!(is(1000 + 2 * window, 52_000, 51_000));
    }

    /// Beside a program that computes the budget is what it has the CPU by; beside one that waits for packets the CPU is idle now and
    /// then, and lends the rest.
    #[test]
    fn a_load_stays_polled_for_a_while_beside_programs_that_take_the_rest() {
        let window = Load::Unknown.window();
        let then = |spent, lent| {
            let mut counted = Counted { frames: 1000, part: 1000, spent, lent, ..Counted::default() };
            let mut share = Share::new(Load::Unknown, false, 0, Counted::default());
            let mut is = |now| {
                let is = share.is(now, counted, Learning::Untold);
                (counted.frames, counted.part) = (counted.frames + 1000, counted.part + 1000);
                (counted.spent, counted.lent) = (counted.spent + spent, counted.lent + lent);
                is
            };
            let last = 3 * window + HUNGRY;
            [window, 2 * window, 2 * window + HUNGRY, last - 1, last].map(&mut is)
        };
        assert!(then(0, 0)[0], "within the budget");
        assert!(then(20, 20)[0] && then(20, 10)[0]);
        for (spent, lent) in [(80, 0), (20, 9)] {
            assert_eq!(then(spent, lent), [false, false, false, false, true], "tried after a while");
        }
    }

    /// The guard's own threads take the CPU for a moment after a takeover.
    #[test]
    fn programs_that_take_the_rest_once_are_no_reason_to_wait() {
        let window = Load::Unknown.window();
        let mut share = Share::new(Load::Unknown, false, 0, Counted::default());
        let counted = |n, spent| Counted { frames: n, part: n, spent, ..Counted::default() };
        assert!(!share.is(SOON, counted(1000, 20), Learning::Hopeless));
        assert!(!share.is(2 * SOON, counted(2000, 20), Learning::Hopeless));
        assert!(share.is(SOON + window, counted(3000, 20), Learning::Hopeless));
    }

    /// A gateway of a VPN, or a host of virtual machines. Refusals of something else do not tell that these are about to be learnt.
    #[test]
    fn what_no_socket_can_be_asked_about_is_given_back() {
        let window = Load::Unknown.window();
        let is = |opaque, part, learning| {
            let counted = Counted { frames: 1000, opaque, part, ..Counted::default() };
            Share::new(Load::Unknown, false, 0, Counted::default()).is(window, counted, learning)
        };
        assert!(is(900, 0, Learning::Untold) && is(450, 450, Learning::Untold));
        assert!(!is(899, 0, Learning::Untold), "one frame in ten is something else");
        assert!(is(900, 0, Learning::Learns));
        assert!(!is(899, 101, Learning::Learns));
    }

    /// A poller hands up less than the kernel could; what neither of them carries is better looked at.
    #[test]
    fn fragments_that_are_cut_count_until_they_are_too_many() {
        let is = |part, fragments, cut| {
            let counted = Counted { frames: 1000, part, fragments, cut, ..Counted::default() };
            let mut share = Share::new(Load::Unknown, false, 0, Counted::default());
            share.is(Load::Unknown.window(), counted, Learning::Untold)
        };
        assert!(is(0, 1000, 0) && is(0, 250, 750) && is(500, 100, 300));
        assert!(!is(0, 50, 950) && !is(0, 0, 1000), "the kernel would carry no more");
        assert!(!is(750, 0, 250), "others are looked for, and all fragments cut");
        assert!(!is(0, 250, 600), "something else comes");
    }
}
