//! When a source is taken over from interrupts, and when it is released (MR-10, MR-19, MR-38).
//!
//! Takeover needs evidence that the kernel's own way fails: several full polls in a row, or a consumer that keeps
//! overflowing. Release needs calm: the source's ring was found drained at least every `gap`, for `hold` on end.
//! Under overload a ring is rarely found drained; below it, it is at almost every turn. Where frames for full
//! consumers are dropped cheaply the ring drains all the same, so a consumer that fills up begins the calm anew, unless what it had no
//! room for waits in the ring.
//!
//! Rates just above what interrupts can carry would switch to and fro, and each takeover finds the consumers full: what
//! looks calm to a poller is too much for interrupts. So a source that was taken over for such harm is kept [`STEADY`] times
//! as long unless its rate falls below [`FALLEN`] of the highest that was seen since the takeover, and for `hold_max` if the
//! takeover came within `flap` of the last release. Any takeover that comes so soon makes `hold` [`LONGER`] times as long, up
//! to `hold_max`; one after a longer peace starts from `hold_min` again. Full polls alone are no harm: a CPU that was
//! away for a while has them too.
//!
//! **Mode shed.** While a source is polled it may turn out that shedding alone keeps its CPU free ([`crate::shedding`]): then the
//! kernel polls it again and the gate stays. A takeover that comes soon after says that it was not enough, and the next such try
//! waits, twice as long each time.
//!
//! The race rule (a packet that arrives between the last look and the switch must not wait for the next one) is the
//! mechanism's: settings back first, then one more turn.
//!
//! # Properties
//! - Between two switches in the same direction at least `hold` passes.
//! - With evidence coming without end, switches per second go to `2 / hold_max`.

use crate::refusals::Pause;
use crate::{Nanos, Permille};

/// Factor of `hold` from a takeover to the next one that comes soon.
pub const LONGER: u64 = 8;
/// Factor of `hold` while the rate is the one that interrupts failed at.
pub const STEADY: u64 = 50;
/// A rate below this part of the highest since the takeover is another load than the one that interrupts failed at.
pub const FALLEN: Permille = 800;

/// Timing of the switch, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Shortest calm before release.
    pub hold_min: Nanos,
    /// Longest calm before release.
    pub hold_max: Nanos,
    /// Longest time between two drained turns that still counts as calm.
    pub gap: Nanos,
    /// A takeover this soon after a release counts as flapping.
    pub flap: Nanos,
}

impl Default for Timing {
    fn default() -> Self {
        let ms = crate::MILLISECOND;
        Self { hold_min: 20 * ms, hold_max: 10_000 * ms, gap: ms, flap: 2_000 * ms }
    }
}

impl Timing {
    /// For a machine on which the flush timeout had to be `flush` ns: what is 5 ms elsewhere.
    pub fn scaled(flush: Nanos) -> Self {
        let usual = Self::default();
        let scale = |t: Nanos| t.saturating_mul(flush).div_ceil(5 * crate::MILLISECOND).max(t);
        Self { hold_min: scale(usual.hold_min), gap: scale(usual.gap), ..usual }
    }

    /// The same for sources that are never given back.
    pub fn unreleased(self) -> Self {
        let never = Nanos::MAX / 2;
        Self { hold_min: never, hold_max: never, ..self }
    }
}

/// Who handles the packets of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The kernel, by interrupt.
    Interrupt,
    /// The poller.
    Poll,
    /// The kernel, and the gate sheds before it.
    Shed,
}

/// Why a source is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Polls in a row that were full.
    FullPolls,
    /// A consumer that overflows, or a CPU whose programs get too little.
    Harm,
}

/// The mode of one source.
#[derive(Clone, Copy, Debug)]
pub struct ModeSwitch {
    timing: Timing,
    mode: Mode,
    hold: Nanos,
    /// Start of the present calm, while polling.
    calm_since: Nanos,
    last_drained: Nanos,
    /// Since then, how much later the poller came to run than it meant to.
    away: Nanos,
    last_release: Option<Nanos>,
    /// The last takeover came soon after a release.
    flapping: bool,
    evidence: Evidence,
    rate: Rate,
    /// Since when shedding alone was tried last.
    shed_at: Nanos,
    /// It was not enough: it is not tried again before.
    shed_pause: Option<Pause>,
    switches: u64,
}

/// Frames per stretch of `hold_min` since the takeover.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// Start of the present stretch, and its frames. None before the first turn, which finds what waited.
    stretch: Option<(Nanos, u64)>,
    /// Frames/s of the last whole one.
    last: Option<u64>,
    /// Highest of them.
    most: u64,
}

impl Rate {
    fn saw(&mut self, now: Nanos, frames: u32, stretch: Nanos) {
        let Some((from, count)) = &mut self.stretch else {
            self.stretch = Some((now, 0));
            return;
        };
        *count += u64::from(frames);
        let past = now.saturating_sub(*from);
        if past >= stretch.max(1) {
            let rate = (u128::from(*count) * 1_000_000_000 / u128::from(past)) as u64;
            (self.last, self.most) = (Some(rate), self.most.max(rate));
            self.stretch = Some((now, 0));
        }
    }

    /// True if no more than `most` frames/s came in the last whole stretch, nor come in the present one.
    fn is_at_most(&self, most: u64, stretch: Nanos) -> bool {
        let in_stretch = u128::from(most) * u128::from(stretch) / 1_000_000_000;
        let comes = self.stretch.is_some_and(|(_, count)| u128::from(count) <= in_stretch);
        comes && self.last.is_some_and(|last| last <= most)
    }

    /// Where nobody tells frames, any rate counts as fallen.
    fn fallen(&self) -> bool {
        self.last.is_none_or(|last| u128::from(last) * 1000 <= u128::from(self.most) * u128::from(FALLEN))
    }
}

impl ModeSwitch {
    /// In interrupt mode.
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            mode: Mode::Interrupt,
            hold: timing.hold_min,
            calm_since: 0,
            last_drained: 0,
            away: 0,
            last_release: None,
            flapping: false,
            evidence: Evidence::FullPolls,
            rate: Rate::default(),
            shed_at: 0,
            shed_pause: None,
            switches: 0,
        }
    }

    /// The present mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Changes of mode so far.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// Calm needed before release at the present rate, ns.
    pub fn hold(&self) -> Nanos {
        if self.evidence == Evidence::FullPolls || self.rate.fallen() {
            return self.hold;
        }
        let steady = if self.flapping { Nanos::MAX } else { self.hold.saturating_mul(STEADY) };
        steady.min(self.timing.hold_max).max(self.hold)
    }

    /// A turn that ended at `now` found `frames`, whatever became of them.
    pub fn found(&mut self, now: Nanos, frames: u32) {
        if self.mode == Mode::Poll {
            self.rate.saw(now, frames, self.timing.hold_min);
        }
    }

    /// Evidence of overload in interrupt mode: true if the source is to be taken over now.
    pub fn overloaded(&mut self, now: Nanos, evidence: Evidence) -> bool {
        if self.mode == Mode::Poll {
            return false;
        }
        if self.mode == Mode::Shed {
            let soon = now.saturating_sub(self.shed_at) < self.timing.flap;
            self.shed_pause = soon.then(|| Pause::after(self.shed_pause, now));
        }
        let flapping =
            self.last_release.is_some_and(|t| now.saturating_sub(t) < self.timing.flap.max(self.hold));
        (self.flapping, self.evidence, self.rate) = (flapping, evidence, Rate::default());
        self.hold = if flapping {
            self.hold.saturating_mul(LONGER).min(self.timing.hold_max)
        } else {
            self.timing.hold_min
        };
        self.mode = Mode::Poll;
        self.switches += 1;
        (self.calm_since, self.last_drained, self.away) = (now, now, 0);
        true
    }

    /// A turn ended at `now` and left the ring empty: true if the source is to be released.
    pub fn drained(&mut self, now: Nanos) -> bool {
        if self.mode != Mode::Poll {
            return false;
        }
        let away = std::mem::take(&mut self.away);
        if now.saturating_sub(self.last_drained).saturating_sub(away) > self.timing.gap {
            self.calm_since = now;
        } else {
            self.calm_since = self.calm_since.saturating_add(away).min(now);
        }
        self.last_drained = now;
        now.saturating_sub(self.calm_since) >= self.hold()
    }

    /// The poller came to run `late` ns after it meant to, for a reason that is not this source's.
    pub fn away(&mut self, late: Nanos) {
        self.away = self.away.saturating_add(late);
    }

    /// True while the ring was found empty so lately, and so few frames come, at most `most` a second, that what it holds may wait.
    pub fn follows(&self, now: Nanos, most: u64) -> bool {
        let lately = now.saturating_sub(self.last_drained) <= self.timing.gap;
        self.mode == Mode::Poll && lately && self.rate.is_at_most(most, self.timing.hold_min)
    }

    /// A consumer that this source feeds is full: no calm.
    pub fn overfed(&mut self, now: Nanos) {
        self.calm_since = now;
    }

    /// The source had to be given back for a reason that says nothing about its packets: the next takeover holds as if it were
    /// the first.
    pub fn revoked(&mut self) {
        if self.mode == Mode::Poll {
            self.mode = Mode::Interrupt;
            self.switches += 1;
            self.last_release = None;
        }
    }

    /// True if shedding alone may be tried.
    pub fn may_shed(&self, now: Nanos) -> bool {
        self.mode == Mode::Poll && !self.shed_pause.is_some_and(|pause| pause.lasts(now))
    }

    /// The kernel polls the source again, and the gate stays.
    pub fn sheds(&mut self, now: Nanos) {
        if self.mode == Mode::Poll {
            (self.mode, self.shed_at) = (Mode::Shed, now);
            self.switches += 1;
        }
    }

    /// Nothing was shed for long enough: the gate is not needed any more.
    pub fn calmed(&mut self, now: Nanos) {
        if self.mode == Mode::Shed {
            self.mode = Mode::Interrupt;
            self.switches += 1;
            (self.last_release, self.shed_pause) = (Some(now), None);
        }
    }

    /// The source has been released, or its takeover failed.
    pub fn released(&mut self, now: Nanos) {
        if self.mode == Mode::Poll {
            self.mode = Mode::Interrupt;
            self.switches += 1;
            self.last_release = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: Timing = Timing { hold_min: 20, hold_max: 1000, gap: 2, flap: 100 };

    /// Drains every tick until release; returns the time of release.
    fn calm_until_release(s: &mut ModeSwitch, mut now: Nanos) -> Nanos {
        loop {
            now += 1;
            if s.drained(now) {
                s.released(now);
                return now;
            }
        }
    }

    #[test]
    fn a_takeover_after_a_revocation_holds_as_the_first() {
        let mut s = ModeSwitch::new(T);
        assert!(s.overloaded(0, Evidence::FullPolls));
        let first = s.hold();
        for now in [5, 10, 15] {
            s.revoked();
            assert!(s.overloaded(now, Evidence::FullPolls));
            assert_eq!(s.hold(), first);
        }
        s.released(16);
        assert!(s.overloaded(17, Evidence::FullPolls) && s.hold() > first, "a release counts");
    }

    #[test]
    fn releases_after_calm_and_not_before() {
        let mut s = ModeSwitch::new(T);
        assert!(s.overloaded(100, Evidence::Harm));
        assert!(!s.overloaded(101, Evidence::Harm), "already polling");
        assert_eq!(calm_until_release(&mut s, 100), 120);
        assert_eq!(s.mode(), Mode::Interrupt);
        assert_eq!(s.switches(), 2);
    }

    #[test]
    fn a_gap_starts_the_calm_anew() {
        let mut s = ModeSwitch::new(T);
        s.overloaded(0, Evidence::Harm);
        for now in 1..19 {
            assert!(!s.drained(now));
        }
        assert!(!s.drained(30), "the ring was not drained for 12");
        assert!(!s.drained(31));
        assert_eq!(calm_until_release(&mut s, 31), 50);
    }

    #[test]
    fn time_without_a_cpu_is_neither_calm_nor_its_end() {
        let mut s = ModeSwitch::new(T);
        s.overloaded(0, Evidence::Harm);
        let mut now = 0;
        // Of each 8 the hypervisor takes 7.
        for turn in 1..20 {
            now += 8;
            s.away(7);
            assert!(!s.drained(now), "turn {turn}");
        }
        now += 8;
        s.away(7);
        assert!(s.drained(now), "20 of its own time");
        // Once that is over a gap counts as before.
        assert!(!s.drained(now + 8) && !s.drained(now + 9));
    }

    #[test]
    fn a_full_consumer_starts_the_calm_anew() {
        let mut s = ModeSwitch::new(T);
        s.overloaded(0, Evidence::Harm);
        for now in 1..100 {
            assert!(!s.drained(now), "at {now}");
            if now % 19 == 0 {
                s.overfed(now);
            }
        }
        assert_eq!(calm_until_release(&mut s, 100), 115);
    }

    #[test]
    fn flapping_lengthens_the_hold_and_peace_resets_it() {
        let mut s = ModeSwitch::new(T);
        let mut now = 0;
        for hold in [20, 160, 1000, 1000] {
            now += 1;
            assert!(s.overloaded(now, Evidence::Harm));
            assert_eq!(s.hold(), hold);
            now = calm_until_release(&mut s, now);
        }
        assert!(s.overloaded(now + 1000, Evidence::Harm));
        assert_eq!(s.hold(), 20);
    }

    /// Polls with `frames` in each tick until release; returns the time of release.
    fn found_until_release(s: &mut ModeSwitch, mut now: Nanos, frames: u32) -> Nanos {
        loop {
            now += 1;
            s.found(now, frames);
            if s.drained(now) {
                s.released(now);
                return now;
            }
        }
    }

    const STEADY_MS: Nanos = 1000;
    const REAL: Timing = Timing { hold_min: 20, hold_max: 10 * STEADY_MS, gap: 2, flap: 2000 };

    #[test]
    fn a_rate_that_interrupts_failed_at_is_not_given_back_soon() {
        let mut s = ModeSwitch::new(REAL);
        s.overloaded(0, Evidence::Harm);
        s.found(0, 5000);
        let now = found_until_release(&mut s, 0, 100);
        assert_eq!(now, STEADY * REAL.hold_min);
        s.overloaded(now + 50, Evidence::Harm);
        s.found(now + 50, 5000);
        assert_eq!(found_until_release(&mut s, now + 50, 100), now + 50 + REAL.hold_max);
        let mut s = ModeSwitch::new(REAL);
        s.overloaded(0, Evidence::FullPolls);
        assert_eq!(found_until_release(&mut s, 0, 100), REAL.hold_min);
    }

    #[test]
    fn a_rate_that_falls_is_given_back() {
        for (frames, first, second) in [(85, 1000, 10_000), (79, 60, 160), (1, 60, 160), (0, 60, 160)] {
            let mut s = ModeSwitch::new(REAL);
            let mut now = 0;
            for held in [first, second] {
                let start = now + 50;
                s.overloaded(start, Evidence::Harm);
                for tick in 0..=40 {
                    s.found(start + tick, 100);
                    assert!(!s.drained(start + tick));
                }
                now = found_until_release(&mut s, start + 40, frames);
                assert!((now - start).abs_diff(held) <= 22, "{frames}: {} for {held}", now - start);
            }
        }
    }

    #[test]
    fn shedding_that_was_not_enough_is_tried_again_later_each_time() {
        let mut s = ModeSwitch::new(REAL);
        let mut now = 0;
        let pause = |s: &ModeSwitch, now| (0..).map(|n| n * 100_000_000).find(|wait| s.may_shed(now + wait));
        for wait in [0, 1, 2, 4] {
            assert!(s.overloaded(now, Evidence::Harm));
            assert_eq!(pause(&s, now), Some(wait * 1_000_000_000));
            s.sheds(now + wait * 1_000_000_000);
            now += wait * 1_000_000_000 + 10;
            assert_eq!((s.mode(), s.drained(now)), (Mode::Shed, false));
        }
        // Enough for a time: the next try does not wait, nor does one after calm.
        assert!(s.overloaded(now + REAL.flap, Evidence::Harm));
        assert!(s.may_shed(now + REAL.flap));
        s.sheds(now + REAL.flap);
        s.calmed(now + REAL.flap + 1);
        assert_eq!(s.mode(), Mode::Interrupt);
        assert!(s.overloaded(now + 9 * REAL.flap, Evidence::Harm) && s.may_shed(now + 9 * REAL.flap));
    }

    proptest! {
        /// P4: however bad the luck, switches are bounded by the holds between them.
        #[test]
        fn switches_are_bounded(gaps in prop::collection::vec(1u64..50, 10..500)) {
            let mut s = ModeSwitch::new(T);
            let (mut now, mut taken) = (0u64, None);
            for gap in gaps {
                now += gap;
                if s.overloaded(now, Evidence::Harm) { taken = Some(now); }
                let t = calm_until_release(&mut s, now);
                prop_assert!(t - taken.unwrap_or(0) >= T.hold_min);
                now = t;
            }
        }
    }
}
