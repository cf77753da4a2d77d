//! A plan on trial: kept if it helped, else undone.

use super::{Cpus, Strategy};

/// Below this many packets per second a measurement says nothing about a layout.
pub const LEAST_PPS: u64 = 1000;
/// Where nothing is lost and no CPU spends so much of its time on packets, permille, a way between CPUs costs latency and saves nothing.
const BUSY: u64 = 750;
/// A gain that is kept, permille.
pub(super) const GAIN: u64 = 50;
/// What goodput may differ by from window to window without anything being changed, permille: two windows can agree by chance.
const NOISE: u64 = 50;
/// Losses of this share of what arrived, permille, are some.
pub(super) const SOME_LOSS: u64 = 10;

/// A window of a few seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Packets that the stack took, per second and CPU, ascending by CPU.
    pub packets: Vec<(usize, u64)>,
    /// Packets that programs have read or the host has forwarded, per second.
    pub goodput: u64,
    /// Packets lost at any place that is counted, per second.
    pub lost: u64,
    /// Time in interrupts and softirqs of the CPU that spends the most in them, permille.
    pub busy: u64,
}

impl Measured {
    /// Packets per second.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.packets.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Share of the CPU that takes the most packets, permille, among those.
    #[must_use]
    pub fn hottest(&self) -> Option<(usize, u64)> {
        let total = self.total();
        let (cpu, most) = self.packets.iter().max_by_key(|(cpu, n)| (*n, std::cmp::Reverse(*cpu)))?;
        (total > 0).then(|| (*cpu, most.saturating_mul(1000) / total))
    }

    /// Lost of what arrived, permille.
    #[must_use]
    pub fn loss(&self) -> u64 {
        let all = self.goodput.saturating_add(self.lost);
        self.lost.saturating_mul(1000).checked_div(all).unwrap_or(0)
    }

    /// More is lost than by chance.
    #[must_use]
    pub fn is_losing(&self) -> bool {
        self.loss() >= SOME_LOSS
    }

    /// The CPU that takes the most packets, and its share, permille, if that is more than an even one of `cpus`.
    #[must_use]
    pub fn uneven(&self, cpus: usize) -> Option<(usize, u64)> {
        self.hottest().filter(|(_, share)| !is_even_share(*share, cpus))
    }
}

/// Half more than the even share of `cpus` CPUs, permille, is uneven.
pub(super) fn is_even_share(share: u64, cpus: usize) -> bool {
    share.saturating_mul(cpus as u64) <= 1500
}

/// What became of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Kept.
    Better,
    /// Undone: nothing was gained.
    Same,
    /// Undone.
    Worse,
    /// Undone: too little arrived, or a different load, to tell.
    Unknown,
}

/// The strategies worth a trial, best first; none if packets are spread well, no CPU is busy with them, or they are too few to tell.
#[must_use]
pub fn candidates(now: &Measured, usable: &Cpus, programs: bool) -> Vec<Strategy> {
    let well = now.uneven(usable.len()).is_none() || now.busy < BUSY;
    if now.total() < LEAST_PPS || usable.len() < 2 || (well && !now.is_losing()) {
        return Vec::new();
    }
    match programs {
        true => vec![Strategy::Spread, Strategy::Affine, Strategy::Dedicate],
        false => vec![Strategy::Spread],
    }
}

/// Whether a change helped. `first` and `second` are two windows without it: how far they lie apart is what chance does.
#[must_use]
pub fn judge(first: &Measured, second: &Measured, after: &Measured) -> Verdict {
    let before = [first, second];
    if before.iter().chain([&after]).any(|m| m.goodput.saturating_add(m.lost) < LEAST_PPS) {
        return Verdict::Unknown;
    }
    let least = first.goodput.min(second.goodput);
    let most = first.goodput.max(second.goodput);
    let chance = (most - least).max(most.saturating_mul(NOISE) / 1000);
    let (calm, worst) = (first.loss().min(second.loss()), first.loss().max(second.loss()));
    let spread = worst - calm;
    if after.loss() > worst.saturating_add(spread).saturating_add(SOME_LOSS) {
        return Verdict::Worse;
    }
    if after.goodput.saturating_add(chance) < least {
        // Fewer arrived: no loss says that the senders have stopped, not that the host has become slower.
        return if after.loss() <= worst { Verdict::Unknown } else { Verdict::Worse };
    }
    let more = after.goodput > most.saturating_add(chance).saturating_add(most.saturating_mul(GAIN) / 1000);
    let fewer = after.loss().saturating_add(spread).saturating_add(SOME_LOSS) < calm;
    let hottest = |m: &Measured| m.hottest().map_or(1000, |(_, share)| share);
    // A layout that only evens out keeps what it gains for the next rise of the load. Where packets are lost already the load has
    // risen, and only what arrives counts: evening out costs a way between CPUs, and can cost more than that.
    let carries = worst < SOME_LOSS && after.loss() < SOME_LOSS;
    let flatter = carries
        && hottest(after).saturating_mul(1000) < hottest(second).min(hottest(first)).saturating_mul(800);
    if more || fewer || flatter { Verdict::Better } else { Verdict::Same }
}
