//! Modules, dies and chips: what a modified cache line costs from core to core.

use super::settings::Settings;
use crate::engine::Nanos;

/// The cost of a line for each pair of cores, ns.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    cores: usize,
    module: usize,
    line: Box<[Nanos]>,
}

impl Topology {
    pub(super) fn new(s: &Settings) -> Self {
        let cores = usize::from(s.cores);
        let mut line = Vec::with_capacity(cores * cores);
        for a in 0..cores {
            for b in 0..cores {
                line.push(between(s, a, b));
            }
        }
        Self { cores, module: usize::from(s.module), line: line.into() }
    }

    /// A line that `from` has modified, read by `to`.
    #[inline]
    pub(super) fn line(&self, from: usize, to: usize) -> Nanos {
        self.line[from * self.cores + to]
    }

    /// The other cores of a core's module.
    #[inline]
    pub(super) fn siblings(&self, core: usize) -> impl Iterator<Item = usize> + use<> {
        let first = core - core % self.module;
        (first..(first + self.module).min(self.cores)).filter(move |other| *other != core)
    }
}

fn between(s: &Settings, a: usize, b: usize) -> Nanos {
    let same = |size: u16| a / usize::from(size) == b / usize::from(size);
    if a == b {
        return 0;
    }
    if same(s.module) {
        return s.line_module.0;
    }
    if same(s.die) {
        return s.line_die.0;
    }
    if same(s.chip) {
        return s.line_chip.0;
    }
    let chip = usize::from(s.chip);
    let chips = usize::from(s.cores).div_ceil(chip);
    let apart = (a / chip).abs_diff(b / chip);
    if apart.min(chips - apart) <= 1 { s.line_near.0 } else { s.line_far.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cost_more_the_farther_they_come() {
        let s = Settings::default();
        let t = Topology::new(&s);
        let from_0: Vec<Nanos> = [0, 1, 2, 8, 16, 32, 48].map(|core| t.line(0, core)).into();
        assert_eq!(from_0, [0, 10, 40, 80, 85, 120, 85]);
        assert!((0..64).all(|a| (0..64).all(|b| t.line(a, b) == t.line(b, a))));
        assert_eq!(t.siblings(5).collect::<Vec<_>>(), [4]);
    }
}
