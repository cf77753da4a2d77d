//! A profile in the place of the kernel's own accounting: without `CONFIG_IRQ_TIME_ACCOUNTING` that is sampled at the
//! tick, which softirqs that end between two ticks, or begin with it, make wrong.

use super::{Component, Cpu, Profile};
use crate::model::{self, Snapshot};

/// Fewest samples of a CPU that replace the kernel's shares: their noise is 5 points at most.
const ENOUGH: u64 = 300;

/// Puts the shares of the CPUs as `profile` has them into the snapshot of the same interval.
pub fn sharpen(snapshot: &mut Snapshot, profile: &Profile) {
    for cpu in &mut snapshot.cpus {
        let sampled = profile.cpus.iter().find(|c| c.cpu == cpu.cpu && c.samples >= ENOUGH);
        if let Some(sampled) = sampled {
            replace(cpu, sampled);
        }
    }
}

/// Time that was not sampled stays steal.
fn replace(cpu: &mut model::Cpu, sampled: &Cpu) {
    let there = 1.0 - cpu.steal;
    let share = |samples: u64| samples as f64 / sampled.samples as f64 * there;
    let interrupt = sampled.of(Component::Interrupt).min(sampled.softirq);
    cpu.irq = share(interrupt);
    cpu.softirq = share(sampled.softirq - interrupt);
    cpu.threads = share(sampled.threads);
    cpu.weir = share(sampled.of(Component::Weir));
    cpu.idle = share(sampled.of(Component::Idle));
    let known = cpu.irq + cpu.softirq + cpu.threads + cpu.weir + cpu.idle;
    cpu.programs = (there - known).max(0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_shares_replace_ticks_and_add_up() {
        let ticks = model::Cpu { cpu: 1, softirq: 0.1, programs: 0.8, steal: 0.1, ..model::Cpu::default() };
        let mut snapshot = Snapshot { cpus: vec![ticks.clone()], ..Snapshot::default() };
        let components = [
            (Component::Interrupt, 50),
            (Component::Stack, 450),
            (Component::UpperReceive, 100),
            (Component::Program, 200),
            (Component::Weir, 100),
            (Component::Idle, 100),
        ];
        let sampled = Cpu {
            cpu: 1,
            samples: 1000,
            components: components.into(),
            taken: 300,
            softirq: 400,
            threads: 100,
        };
        let few = Cpu { samples: 100, ..sampled.clone() };
        sharpen(&mut snapshot, &Profile { cpus: vec![few], ..Profile::default() });
        assert_eq!(snapshot.cpus, [ticks]);
        sharpen(&mut snapshot, &Profile { cpus: vec![sampled], ..Profile::default() });
        let cpu = &snapshot.cpus[0];
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(cpu.irq, 0.045);
        near(cpu.softirq, 0.315);
        near(cpu.threads, 0.09);
        near(cpu.programs, 0.27);
        near(cpu.irq + cpu.softirq + cpu.threads + cpu.weir + cpu.programs + cpu.idle + cpu.steal, 1.0);
    }
}
