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
            replace(cpu, sampled, sampled.room(profile.interval_s, profile.period_ns));
        }
    }
}

/// Time without samples is idle on a CPU that was seen idle, because a halted CPU is woken late for them; elsewhere nobody
/// knows, and the other samples stand for it.
fn replace(cpu: &mut model::Cpu, sampled: &Cpu, room: f64) {
    let there = 1.0 - cpu.steal;
    let whole = if sampled.of(Component::Idle) > 0 {
        room.max(1.0)
    } else {
        sampled.samples as f64 / there.max(0.01)
    };
    let share = |samples: u64| samples as f64 / whole;
    let interrupt = sampled.of(Component::Interrupt).min(sampled.softirq);
    let busy = sampled.samples - sampled.of(Component::Idle);
    cpu.irq = share(interrupt);
    cpu.softirq = share(sampled.softirq - interrupt);
    cpu.threads = share(sampled.threads);
    cpu.weir = share(sampled.of(Component::Weir));
    cpu.programs = (share(busy) - cpu.irq - cpu.softirq - cpu.threads - cpu.weir).max(0.0);
    cpu.idle = (there - share(busy)).max(0.0);
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
        // 2 ms each in 2.5 s: 250 samples are missing.
        let profile =
            |cpu| Profile { cpus: vec![cpu], interval_s: 2.5, period_ns: 2_000_000, ..Profile::default() };
        sharpen(&mut snapshot, &profile(sampled.clone()));
        let cpu = &snapshot.cpus[0];
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(cpu.irq, 0.04);
        near(cpu.softirq, 0.28);
        near(cpu.threads, 0.08);
        near(cpu.programs, 0.24);
        near(cpu.idle, 0.9 - 0.72);
        near(cpu.irq + cpu.softirq + cpu.threads + cpu.weir + cpu.programs + cpu.idle + cpu.steal, 1.0);
        // Never idle: what is missing was not there.
        let full = Cpu { components: [(Component::Program, 1000)].into(), softirq: 0, threads: 0, ..sampled };
        sharpen(&mut snapshot, &profile(full));
        near(snapshot.cpus[0].programs, 0.9);
        near(snapshot.cpus[0].idle, 0.0);
    }
}
