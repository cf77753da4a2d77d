//! What the probes counted between two readings, as waiting times, drops and rates.

use crate::ledger::moved32;
use crate::model::{BOUNDS_US, Delay, Kind, Place, Probes, Snapshot, Wait, Waited};
use kern::probes::{self, BUCKETS, Cpu, REASONS, Reading, WAITS};
use std::collections::BTreeMap;

fn delay(wait: probes::Wait) -> Delay {
    match wait {
        probes::Wait::Softirq => Delay::Softirq,
        probes::Wait::Backlog => Delay::Backlog,
        probes::Wait::Stack => Delay::Stack,
        probes::Wait::Socket => Delay::Socket,
        probes::Wait::Whole => Delay::Whole,
        probes::Wait::Tcp => Delay::Tcp,
        probes::Wait::Wakeup => Delay::Wakeup,
    }
}

/// What one CPU counted in the interval.
struct Moved {
    cpu: u32,
    samples: Vec<u64>,
    wait: Vec<u64>,
    drops: Vec<u64>,
    unplaced: Vec<u64>,
    lost: u64,
}

/// Lists of other lengths than they must have count as zeros.
fn moved(then: &[u32], now: &[u32], length: usize) -> Vec<u64> {
    let at = |list: &[u32], i: usize| list.get(i).copied().unwrap_or(0).into();
    (0..length).map(|i| moved32(at(then, i), at(now, i))).collect()
}

fn since(before: &Reading, now: &Cpu) -> Option<Moved> {
    // A CPU that has just come online is seen from the next interval on.
    let then = before.cpus.iter().find(|c| c.cpu == now.cpu)?;
    Some(Moved {
        cpu: now.cpu,
        samples: moved(&then.samples, &now.samples, WAITS),
        wait: moved(&then.wait, &now.wait, WAITS * BUCKETS),
        drops: moved(&then.drops, &now.drops, REASONS),
        unplaced: moved(&then.unplaced, &now.unplaced, REASONS),
        lost: moved32(then.lost.into(), now.lost.into()),
    })
}

/// One histogram of some CPUs; `None` if nothing was measured.
fn waited(cpus: &[&Moved], wait: probes::Wait) -> Option<Waited> {
    let at = probes::Wait::ALL.iter().position(|w| *w == wait)?;
    let bucket = |i: usize| cpus.iter().map(|c| c.wait[at * BUCKETS + i]).sum::<u64>();
    let counts: Vec<u64> = (0..BUCKETS).map(bucket).collect();
    let count: u64 = counts.iter().sum();
    if count == 0 {
        return None;
    }
    let us = |i: usize| probes::middle_ns(i) / 1e3;
    let quantile = |q: f64| {
        let rank = ((count as f64 * q).ceil() as u64).clamp(1, count);
        let mut below = 0;
        let found = counts.iter().position(|n| {
            below += n;
            below >= rank
        });
        us(found.unwrap_or(BUCKETS - 1))
    };
    let mut buckets = vec![0; BOUNDS_US.len() + 1];
    for (i, n) in counts.iter().enumerate() {
        buckets[BOUNDS_US.partition_point(|bound| *bound < us(i))] += n;
    }
    Some(Waited {
        of: delay(wait),
        samples: cpus.iter().map(|c| c.samples[at]).sum(),
        count,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        max_us: quantile(1.0),
        sum_us: counts.iter().enumerate().map(|(i, n)| *n as f64 * us(i)).sum(),
        buckets,
    })
}

fn short(waited: &Waited) -> Wait {
    Wait { p50_us: waited.p50_us, p99_us: waited.p99_us, estimated: false }
}

/// Adds to a snapshot what the probes counted in its interval: waiting times of stages and CPUs, drops by the names that
/// `reason` has for their places, and the rates of UDP sockets that the kernel's counters do not tell.
pub fn add(s: &mut Snapshot, before: &Reading, after: &Reading, reason: impl Fn(usize) -> String) {
    let cpus: Vec<Moved> = after.cpus.iter().filter_map(|now| since(before, now)).collect();
    let all: Vec<&Moved> = cpus.iter().collect();
    let waits: Vec<Waited> = probes::Wait::ALL.iter().filter_map(|wait| waited(&all, *wait)).collect();
    let of = |delay: Delay| waits.iter().find(|w| w.of == delay).map(short);
    for stage in &mut s.path {
        match stage.place {
            Place::Backlog => stage.wait = of(Delay::Backlog),
            Place::Stack => stage.wait = of(Delay::Stack),
            Place::Consumer => stage.wait = of(Delay::Socket),
            _ => {}
        }
    }
    for cpu in &mut s.cpus {
        let own: Vec<&Moved> = cpus.iter().filter(|c| c.cpu == cpu.cpu).collect();
        cpu.softirq_wait = waited(&own, probes::Wait::Softirq).as_ref().map(short);
        cpu.wakeup_wait = waited(&own, probes::Wait::Wakeup).as_ref().map(short);
    }
    let drops = |of: fn(&Moved) -> &[u64]| {
        let mut named = BTreeMap::new();
        for (slot, n) in cpus.iter().flat_map(|c| of(c).iter().enumerate()).filter(|(_, n)| **n > 0) {
            *named.entry(reason(slot)).or_default() += n;
        }
        named
    };
    s.probes = Some(Probes {
        drops: drops(|c| &c.drops),
        unplaced: drops(|c| &c.unplaced),
        lost: cpus.iter().map(|c| c.lost).sum(),
        missed: after.missed.saturating_sub(before.missed),
        waits,
    });
    for one in s.consumers.iter_mut().filter(|c| c.kind == Kind::Udp && c.out.is_none()) {
        // One that was not there before has been read from 0 on.
        let Some(reads) = after.reads.get(&one.id) else { continue };
        let read = moved32(before.reads.get(&one.id).copied().unwrap_or(0).into(), (*reads).into());
        one.out = Some(read);
        one.r#in = one.lost.map(|lost| lost + read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{self, Consumer, Stage};

    /// A reading of CPU 1 with these waits: which, bucket, packets.
    fn reading(waits: &[(probes::Wait, usize, u32)]) -> Reading {
        let mut cpu = Cpu {
            cpu: 1,
            samples: vec![0; WAITS],
            wait: vec![0; WAITS * BUCKETS],
            drops: vec![0; REASONS],
            unplaced: vec![0; REASONS],
            lost: 0,
        };
        for (wait, bucket, packets) in waits {
            let at = probes::Wait::ALL.iter().position(|w| w == wait).unwrap();
            cpu.samples[at] += 1;
            cpu.wait[at * BUCKETS + bucket] += packets;
        }
        Reading { cpus: vec![cpu], ..Reading::default() }
    }

    fn snapshot() -> Snapshot {
        let stage = |place| Stage { place, ..Stage::default() };
        let udp = |id, lost, out| Consumer { id, lost: Some(lost), out, ..Consumer::default() };
        Snapshot {
            path: vec![stage(Place::Napi), stage(Place::Stack), stage(Place::Consumer)],
            cpus: vec![
                model::Cpu { cpu: 0, ..Default::default() },
                model::Cpu { cpu: 1, ..Default::default() },
            ],
            consumers: vec![udp(7, 3, None), udp(8, 0, None), udp(9, 0, Some(5))],
            ..Snapshot::default()
        }
    }

    fn name(slot: usize) -> String {
        format!("R{slot}")
    }

    #[test]
    fn waits_are_those_of_the_interval_by_their_weight() {
        use probes::Wait::{Socket, Softirq, Whole};
        // 97 at 10 us, 3 at 50 ms, and what was there before.
        let bucket = |us: f64| (0..BUCKETS).find(|i| probes::middle_ns(*i) >= us * 1e3).unwrap();
        let (short, long) = (bucket(10.0), bucket(50e3));
        let before = reading(&[(Socket, long, 1_000), (Softirq, short, 8)]);
        let mut after = before.clone();
        let more = reading(&[(Socket, short, 97), (Socket, long, 3), (Whole, long, 3)]);
        for (to, add) in after.cpus[0].wait.iter_mut().zip(&more.cpus[0].wait) {
            *to += add;
        }
        after.cpus[0].samples[3] += 2;
        let mut s = snapshot();
        add(&mut s, &before, &after, name);
        let probes = s.probes.unwrap();
        let names: Vec<&str> = probes.waits.iter().map(|w| w.of.name()).collect();
        assert_eq!(names, ["socket", "whole"], "what was not measured is not there");
        let socket = &probes.waits[0];
        assert_eq!((socket.samples, socket.count), (2, 100));
        let near = |is: f64, should: f64| assert!((is / should - 1.0).abs() < 0.07, "{is} {should}");
        near(socket.p50_us, 10.0);
        near(socket.p99_us, 50e3);
        near(socket.max_us, 50e3);
        near(socket.sum_us, 97.0 * 10.0 + 3.0 * 50e3);
        assert_eq!(socket.buckets.iter().sum::<u64>(), 100);
        assert_eq!(socket.buckets.len(), BOUNDS_US.len() + 1);
        assert_eq!((s.path[1].wait, s.path[2].wait.unwrap().p50_us), (None, socket.p50_us));
        assert!(s.cpus.iter().all(|c| c.softirq_wait.is_none()));
    }

    #[test]
    fn a_wait_belongs_to_its_cpu() {
        let before = reading(&[]);
        let mut s = snapshot();
        add(&mut s, &before, &reading(&[(probes::Wait::Softirq, 100, 8)]), name);
        assert_eq!((s.cpus[0].softirq_wait.is_some(), s.cpus[1].softirq_wait.is_some()), (false, true));
        // One that has just come online has no reading to begin with.
        add(&mut s, &Reading::default(), &reading(&[(probes::Wait::Softirq, 100, 8)]), name);
        assert!(s.probes.unwrap().waits.is_empty() && s.cpus[1].softirq_wait.is_none());
    }

    #[test]
    fn drops_have_names_and_counters_run_over() {
        let (mut before, mut after) = (reading(&[]), reading(&[]));
        (before.cpus[0].drops[6], after.cpus[0].drops[6]) = (u32::MAX - 1, 3);
        after.cpus[0].unplaced[2] = 4;
        (before.missed, after.missed) = (5, 6);
        let mut s = snapshot();
        add(&mut s, &before, &after, name);
        let probes = s.probes.unwrap();
        assert_eq!(probes.drops, [("R6".to_owned(), 5)].into());
        assert_eq!((probes.unplaced, probes.missed), ([("R2".to_owned(), 4)].into(), 1));
    }

    #[test]
    fn sockets_have_rates_unless_counters_tell_them() {
        let (mut before, mut after) = (reading(&[]), reading(&[]));
        before.reads = [(7, 10), (9, 0)].into();
        after.reads = [(7, 110), (9, 70)].into();
        let mut s = snapshot();
        add(&mut s, &before, &after, name);
        let rates: Vec<_> = s.consumers.iter().map(|c| (c.r#in, c.out)).collect();
        assert_eq!(rates, [(Some(103), Some(100)), (None, None), (None, Some(5))]);
    }
}
