//! MR-40: what a lower cost per packet gives. Cheaper code raises the loss-free rate and moves livelock away; by how much
//! depends on whose cost it is and on what limits.

use crate::path::Path;
use serde::Serialize;

/// Savings that are answered for: one tenth, and one hundredth, about what a few instructions less give.
pub const CUTS: [f64; 2] = [0.10, 0.01];

/// Who pays for a part of a packet's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The kernel, before any program: interrupt, driver, protocol.
    Receive,
    /// The program that reads, with its system calls.
    Program,
}

/// A part of the cost of a packet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// What it is.
    pub name: String,
    /// Who pays.
    pub side: Side,
    /// Seconds per packet.
    pub cost: f64,
}

/// What a saving gives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gain {
    /// What is saved in.
    pub part: Part,
    /// How much of it, 0 to 1.
    pub less: f64,
    /// MLFRR afterwards, packets/s.
    pub mlfrr: f64,
    /// MLFRR afterwards over MLFRR now, minus 1; 0 where something else limits.
    pub gain: f64,
}

/// The parts of a path: what receiving costs, and the program. Parts that cost nothing are left out.
#[must_use]
pub fn parts(path: &Path) -> Vec<Part> {
    let all = [("receive", Side::Receive, path.receive), ("program", Side::Program, path.program)];
    let cost = |line: crate::line::Line| line.per_packet;
    all.into_iter()
        .filter(|(_, _, line)| cost(*line) > 0.0)
        .map(|(name, side, line)| Part { name: name.into(), side, cost: cost(line) })
        .collect()
}

/// The same divided as `weights` say (name, side, any unit): a profile knows how the cost of a side divides, the path what
/// it is in all. A side of which nothing is known stays whole.
#[must_use]
pub fn divided(path: &Path, weights: &[(&str, Side, f64)]) -> Vec<Part> {
    let mut list = Vec::new();
    for whole in parts(path) {
        let own = || weights.iter().filter(|(_, side, weight)| *side == whole.side && *weight > 0.0);
        let sum: f64 = own().map(|(_, _, weight)| weight).sum();
        let part = |(name, side, weight): &(&str, Side, f64)| Part {
            name: (*name).to_owned(),
            side: *side,
            cost: whole.cost * weight / sum,
        };
        list.extend(own().map(part));
        if sum <= 0.0 {
            list.push(whole);
        }
    }
    list
}

/// What each of `cuts` in each of `parts` gives.
#[must_use]
pub fn gains(path: &Path, parts: &[Part], cuts: &[f64]) -> Vec<Gain> {
    let now = path.rate().mlfrr;
    let one = |part: &Part, less: f64| {
        let mut path = path.clone();
        let line = match part.side {
            Side::Receive => &mut path.receive,
            Side::Program => &mut path.program,
        };
        line.per_packet = (line.per_packet - less * part.cost).max(0.0);
        let mlfrr = path.rate().mlfrr;
        let gain = if now > 0.0 && now.is_finite() { mlfrr / now - 1.0 } else { 0.0 };
        Gain { part: part.clone(), less, mlfrr, gain }
    };
    parts.iter().flat_map(|part| cuts.iter().map(|less| one(part, *less))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;
    use crate::path::Limit;
    use proptest::prelude::*;

    fn path(receive: f64, program: f64) -> Path {
        Path::of(Line { fixed: 0.0, per_packet: receive }, Line { fixed: 0.0, per_packet: program })
    }

    #[test]
    fn a_tenth_of_half_the_cost_gives_a_twentieth_and_a_bit() {
        let path = path(1e-6, 1e-6);
        let found = gains(&path, &parts(&path), &CUTS);
        let shown: Vec<_> = found.iter().map(|g| (g.part.name.as_str(), g.less)).collect();
        assert_eq!(shown, [("receive", 0.10), ("receive", 0.01), ("program", 0.10), ("program", 0.01)]);
        for g in &found {
            assert!((g.gain - (1.0 / (1.0 - g.less / 2.0) - 1.0)).abs() < 1e-6, "{g:?}");
        }
    }

    #[test]
    fn where_the_cpu_does_not_limit_nothing_is_gained() {
        let path = Path { link: Some(1e5), ..path(1e-6, 1e-6) };
        assert_eq!(path.rate().limit, Limit::Link);
        assert!(gains(&path, &parts(&path), &CUTS).iter().all(|g| g.gain == 0.0));
        // The program on a CPU of its own is the bottleneck: cheaper receiving does not help.
        let apart = Path { together: false, ..self::path(1e-6, 2e-6) };
        let found = gains(&apart, &parts(&apart), &[0.1]);
        assert!(found[0].gain.abs() < 1e-9 && (found[1].gain - 1.0 / 9.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn a_profile_divides_the_cost() {
        let path = path(1e-6, 3e-6);
        let weights =
            [("stack", Side::Receive, 300.0), ("NAPI", Side::Receive, 100.0), ("idle", Side::Receive, 0.0)];
        let found = divided(&path, &weights);
        let shown: Vec<_> = found.iter().map(|p| (p.name.as_str(), (p.cost * 1e9).round())).collect();
        assert_eq!(shown, [("stack", 750.0), ("NAPI", 250.0), ("program", 3000.0)]);
        assert_eq!(parts(&self::path(1e-6, 0.0)).len(), 1);
    }

    proptest! {
        #[test]
        fn savings_never_harm_and_agree_with_the_derivative(
            receive in 1e-7f64..1e-5, program in 0f64..1e-5, fixed in 0f64..0.3, guarded: bool, off in 0f64..5e-3,
        ) {
            let guard = guarded.then_some(crate::path::Guard { budget: 0.8 });
            let program = Line { fixed: 0.0, per_packet: program };
            let path = Path { off, holds: Some(200.0), guard, ..Path::of(Line { fixed, per_packet: receive }, program) };
            for of_part in gains(&path, &parts(&path), &[1e-4, 0.01, 0.1, 1.0]).chunks(4) {
                prop_assert!(of_part.iter().all(|g| g.gain >= -1e-9));
                prop_assert!(of_part.windows(2).all(|w| w[0].mlfrr <= w[1].mlfrr * (1.0 + 1e-9)));
            }
            // Where the CPU alone limits.
            let path = Path { off: 0.0, ..path };
            let first = &gains(&path, &parts(&path), &[1e-4])[0];
            let slope = -path.sensitivity() * first.less * first.part.cost / path.rate().mlfrr;
            prop_assert!((first.gain - slope).abs() < 0.02 * slope + 1e-7, "{} {slope}", first.gain);
        }
    }
}
