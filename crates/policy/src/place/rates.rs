//! What two readings of a host's counters say: how much its CPUs and sources carry, what programs get and what is lost.
//!
//! How much a queue carries is what its driver counts. Many count by device only; then the interrupts of its queues tell the
//! ratio, and where a queue never rests, so that it has few or none, all queues count alike.
//!
//! # Properties
//! - Only differences count; a counter that goes back counts as one that stands.
//! - The only source of a device carries all its packets. Loads of several add up to no more than the device's packets, or than what
//!   its driver counts of them all.
//! - What the driver counts is used only if it counts each queue, and nine tenths of the packets.

use super::Measured;
use crate::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Packets of one interrupt from which on interrupts do not tell how much a queue carries.
const FEW_PER_INTERRUPT: u64 = 8;
/// Fewer interrupts per second do not tell whether they are spread.
const LEAST_INTERRUPTS: u64 = 100;

/// Counters of a host at a moment. Those of a list stand in the same order in all readings.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// When they were read.
    pub at: Nanos,
    /// Of packets that programs have read, and that were sent on.
    pub taken: Vec<u64>,
    /// Of packets that were lost after their device, on no certain CPU.
    pub lost: Vec<u64>,
    /// What each CPU has received.
    pub received: Vec<Received>,
    /// Time of each CPU in interrupts and softirqs, ns.
    pub times: Vec<(usize, Nanos)>,
    /// Devices with sources.
    pub devices: Vec<Device>,
}

/// Packets of a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// The CPU.
    pub cpu: usize,
    /// That the stack took; wraps.
    pub packets: u32,
    /// That were lost because its backlog was full; wraps.
    pub dropped: u32,
}

/// Counters of a device.
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// Its interface.
    pub ifindex: u32,
    /// Packets that it has received.
    pub packets: u64,
    /// Of packets that it has lost.
    pub lost: Vec<u64>,
    /// Its sources.
    pub queues: Vec<Queue>,
}

/// Counters of a source.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Its name.
    pub source: String,
    /// Its packets, if the driver counts them.
    pub packets: Option<u64>,
    /// Its interrupts by CPU, if they are known.
    pub interrupts: Option<Vec<u64>>,
}

/// What was measured between two readings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// What a trial is judged by.
    pub measured: Measured,
    /// Interrupts per second and CPU, by source.
    pub interrupts: BTreeMap<String, Vec<u64>>,
    /// Share of each CPU that went into interrupts and softirqs, permille.
    pub softirq: BTreeMap<usize, u64>,
    /// Packets per second, by source.
    pub loads: BTreeMap<String, u64>,
    /// Devices of which nothing tells what each source carries: they count alike.
    pub guessed: BTreeSet<u32>,
}

impl Rates {
    /// What a source carries; 0 if it is not known.
    #[must_use]
    pub fn load(&self, source: &str) -> u64 {
        self.loads.get(source).copied().unwrap_or(0)
    }

    /// CPU time of packet work, permille of one CPU, over all of them.
    #[must_use]
    pub fn net_permille(&self) -> u64 {
        self.softirq.values().fold(0, |sum, share| sum.saturating_add(*share))
    }

    /// Interrupts per second of all sources, on `cpu`.
    #[must_use]
    pub fn interrupts_on(&self, cpu: usize) -> u64 {
        self.interrupts.values().filter_map(|all| all.get(cpu)).fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Interrupts per second of all sources.
    #[must_use]
    pub fn all_interrupts(&self) -> u64 {
        self.interrupts.values().flatten().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// The one of `cpus` with the most interrupts, if it has half more than its even share of them.
    #[must_use]
    pub fn piled_on(&self, cpus: &[usize]) -> Option<usize> {
        let all = self.all_interrupts();
        let cpu = cpus.iter().copied().max_by_key(|&cpu| self.interrupts_on(cpu))?;
        let share = self.interrupts_on(cpu).saturating_mul(1000).checked_div(all)?;
        (all >= LEAST_INTERRUPTS && !super::trial::is_even_share(share, cpus.len())).then_some(cpu)
    }
}

fn sum(all: &[u64]) -> u64 {
    all.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

/// Of counters that stand in the same order, how far all of them moved together.
fn moved(then: &[u64], now: &[u64]) -> u64 {
    now.iter().zip(then).fold(0, |sum, (now, then)| sum.saturating_add(now.saturating_sub(*then)))
}

/// What happened between two readings of the same sources.
#[must_use]
pub fn rates(then: &Counters, now: &Counters) -> Rates {
    let span = now.at.saturating_sub(then.at).max(1);
    let rate = |delta: u64| (u128::from(delta) * 1_000_000_000 / u128::from(span)) as u64;
    let mut rates = Rates::default();
    let mut lost = moved(&then.lost, &now.lost);
    for now in &now.received {
        let Some(then) = then.received.iter().find(|then| then.cpu == now.cpu) else { continue };
        rates.measured.packets.push((now.cpu, rate(now.packets.wrapping_sub(then.packets).into())));
        lost = lost.saturating_add(now.dropped.wrapping_sub(then.dropped).into());
    }
    for (cpu, now) in &now.times {
        let Some((_, then)) = then.times.iter().find(|(other, _)| other == cpu) else { continue };
        rates.softirq.insert(*cpu, now.saturating_sub(*then).saturating_mul(1000) / span);
    }
    for now in &now.devices {
        let Some(then) = then.devices.iter().find(|then| then.ifindex == now.ifindex) else { continue };
        lost = lost.saturating_add(moved(&then.lost, &now.lost));
        loads(&mut rates, then, now, rate);
    }
    rates.measured.busy = rates.softirq.values().copied().max().unwrap_or(0);
    rates.measured.goodput = rate(moved(&then.taken, &now.taken));
    rates.measured.lost = rate(lost);
    rates
}

/// What the sources of a device carry, in packets, so that devices compare.
fn loads(rates: &mut Rates, then: &Device, now: &Device, rate: impl Fn(u64) -> u64) {
    let packets = rate(now.packets.saturating_sub(then.packets));
    let both = || now.queues.iter().zip(&then.queues);
    let fired = |now: &Queue, then: &Queue| {
        let (now, then) = now.interrupts.as_ref().zip(then.interrupts.as_ref())?;
        Some(now.iter().zip(then).map(|(now, then)| rate(now.saturating_sub(*then))).collect::<Vec<_>>())
    };
    let fired: Vec<Option<Vec<u64>>> = both().map(|(now, then)| fired(now, then)).collect();
    let counted = |now: &Queue, then: &Queue| Some(rate(now.packets?.saturating_sub(then.packets?)));
    let counted: Option<Vec<u64>> = both().map(|(now, then)| counted(now, then)).collect();
    // Some drivers count what comes through one of several ways.
    let counted = counted.filter(|all| sum(all).saturating_mul(10) >= packets.saturating_mul(9));
    let told: Option<Vec<u64>> = fired.iter().map(|all| all.as_deref().map(sum)).collect();
    let interrupts = told.as_deref().map_or(0, sum);
    // A queue that never rests has few interrupts or none, and would count as the lightest.
    let tells = interrupts > 0 && interrupts.saturating_mul(FEW_PER_INTERRUPT) >= packets;
    let told = told.filter(|_| tells);
    let count = now.queues.len().max(1) as u64;
    if counted.is_none() && told.is_none() && count > 1 {
        rates.guessed.insert(now.ifindex);
    }
    for (n, (queue, fired)) in now.queues.iter().zip(fired).enumerate() {
        let counted = counted.as_ref().and_then(|all| all.get(n)).copied();
        let own = told.as_ref().and_then(|all| all.get(n)).copied();
        let load = match (counted, own) {
            _ if count == 1 => packets,
            (Some(packets), _) => packets,
            (None, Some(own)) => {
                (u128::from(packets) * u128::from(own) / u128::from(interrupts.max(1))) as u64
            }
            (None, None) => packets / count,
        };
        rates.loads.insert(queue.source.clone(), load);
        rates.interrupts.extend(fired.map(|all| (queue.source.clone(), all)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Nanos = 1_000_000_000;

    fn queue(n: usize, packets: Option<u64>, interrupts: Option<Vec<u64>>) -> Queue {
        Queue { source: format!("eth0/{n}"), packets, interrupts }
    }

    /// A device that has these counters a second after all were 0.
    fn of(packets: u64, queues: Vec<Queue>) -> Rates {
        let zero = |queue: &Queue| Queue {
            source: queue.source.clone(),
            packets: queue.packets.map(|_| 0),
            interrupts: queue.interrupts.as_ref().map(|all| vec![0; all.len()]),
        };
        let then = Device { ifindex: 2, queues: queues.iter().map(zero).collect(), ..Device::default() };
        let now = Device { ifindex: 2, packets, queues, ..Device::default() };
        rates(
            &Counters { devices: vec![then], ..Counters::default() },
            &Counters { at: SECOND, devices: vec![now], ..Counters::default() },
        )
    }

    fn loads_of(rates: &Rates) -> Vec<u64> {
        let alike = rates.loads.values().all(|load| rates.loads.values().next() == Some(load));
        assert!(alike || rates.guessed.is_empty(), "{rates:?}");
        rates.loads.values().copied().collect()
    }

    #[test]
    fn what_a_queue_carries_is_counted_told_or_even() {
        let both = |packets: [Option<u64>; 2], interrupts: [u64; 2]| {
            let queues = (0..2).map(|n| queue(n, packets[n], Some(vec![interrupts[n], 0])));
            loads_of(&of(1000, queues.collect()))
        };
        assert_eq!(both([Some(800), Some(200)], [1, 99]), [800, 200]);
        assert_eq!(both([Some(800), Some(99)], [300, 100]), [750, 250], "it counts less than nine tenths");
        assert_eq!(both([Some(950), None], [300, 100]), [750, 250], "it counts one queue only");
        assert_eq!(both([None, None], [100, 25]), [800, 200], "eight packets each");
        assert_eq!(both([None, None], [100, 24]), [500, 500], "a queue that never rests");
        assert_eq!(both([None, None], [0, 0]), [500, 500]);
        let unknown = of(1000, vec![queue(0, None, Some(vec![500])), queue(1, None, None)]);
        assert_eq!(loads_of(&unknown), [500, 500], "interrupts of one are unknown");
        assert_eq!(unknown.interrupts.len(), 1);
        assert_eq!(loads_of(&of(1000, vec![queue(0, Some(7), None)])), [1000]);
    }

    #[test]
    fn interrupts_are_piled_where_one_cpu_has_half_more_than_its_share() {
        let fired = |all: &[u64]| of(1, vec![queue(0, None, Some(all.to_vec()))]).piled_on(&[0, 1]);
        assert_eq!(fired(&[751, 249]), Some(0));
        assert_eq!(fired(&[750, 250]), None);
        assert_eq!(fired(&[0, 99]), None, "too few");
        assert_eq!(fired(&[0, 100]), Some(1));
        assert_eq!(Rates::default().piled_on(&[]), None);
    }

    #[test]
    fn what_has_come_or_gone_meanwhile_does_not_count() {
        let one = |cpu, ifindex| Counters {
            received: vec![Received { cpu, packets: 5, dropped: 5 }],
            times: vec![(cpu, 5)],
            devices: vec![Device { ifindex, packets: 5, lost: vec![5], queues: vec![queue(0, None, None)] }],
            ..Counters::default()
        };
        assert_eq!(rates(&one(0, 1), &one(1, 2)), Rates::default());
    }

    fn counters() -> impl Strategy<Value = Counters> {
        let number = || prop_oneof![Just(0u64), 0u64..100_000, any::<u64>()];
        let each = (prop::option::of(number()), prop::option::of(prop::collection::vec(number(), 0..3)));
        let device = (number(), prop::collection::vec(number(), 0..3), prop::collection::vec(each, 0..4));
        let received = (0usize..3, any::<u32>(), any::<u32>());
        let lists = (prop::collection::vec(number(), 3), prop::collection::vec(number(), 3));
        let cpus =
            (prop::collection::vec(received, 0..3), prop::collection::vec((0usize..3, number()), 0..3));
        (number(), lists, cpus, prop::collection::vec(device, 0..2)).prop_map(
            |(at, (taken, lost), (received, times), devices)| Counters {
                at,
                taken,
                lost,
                received: received
                    .into_iter()
                    .map(|(cpu, packets, dropped)| Received { cpu, packets, dropped })
                    .collect(),
                times,
                devices: devices
                    .into_iter()
                    .enumerate()
                    .map(|(n, (packets, lost, queues))| Device {
                        ifindex: n as u32,
                        packets,
                        lost,
                        queues: (0..).zip(queues).map(|(n, (p, i))| queue(n, p, i)).collect(),
                    })
                    .collect(),
            },
        )
    }

    proptest! {
        /// Whatever is read, also nonsense: nothing overflows.
        #[test]
        fn any_two_readings_make_rates(then in counters(), now in counters()) {
            let found = rates(&then, &now);
            prop_assert!(found.softirq.values().all(|share| *share <= found.net_permille()));
            prop_assert_eq!(rates(&now, &now).loads.values().sum::<u64>(), 0);
        }

        /// The same amount more in both readings changes nothing.
        #[test]
        fn only_differences_count(
            packets in 0u64..1 << 40,
            queues in prop::collection::vec((0u64..1 << 30, 0u64..1 << 30), 1..5),
            more in 0u64..1 << 40,
            from: u32,
        ) {
            let at = |part: u64, more: u64, at: Nanos| Counters {
                at: at + more,
                taken: vec![packets * part + more],
                lost: vec![more],
                received: vec![Received { cpu: 0, packets: from.wrapping_add(part as u32), dropped: from }],
                times: vec![(0, part * 1000 + more)],
                devices: vec![Device {
                    ifindex: 2,
                    packets: packets * part + more,
                    lost: vec![part + more],
                    queues: queues.iter().enumerate().map(|(n, (counted, fired))| queue(
                        n,
                        Some(counted * part + more),
                        Some(vec![fired * part + more]),
                    )).collect(),
                }],
            };
            let found = rates(&at(0, more, 0), &at(1, more, SECOND));
            prop_assert_eq!(&found, &rates(&at(0, 0, 0), &at(1, 0, SECOND)));
            prop_assert_eq!((found.measured.goodput, found.measured.lost), (packets, 1));
        }

        #[test]
        fn loads_add_up(
            packets in 0u64..1 << 40,
            queues in prop::collection::vec(
                (prop::option::of(0u64..1 << 40), prop::option::of(prop::collection::vec(0u64..1 << 38, 1..4))), 1..6),
        ) {
            let counted: Option<u64> = queues.iter().map(|(counted, _)| *counted).sum();
            let all: Vec<Queue> =
                queues.into_iter().enumerate().map(|(n, (packets, fired))| queue(n, packets, fired)).collect();
            let one = all.len() == 1;
            let found = of(packets, all);
            let sum = loads_of(&found).iter().sum::<u64>();
            prop_assert!(!one || sum == packets);
            prop_assert!(sum <= packets || Some(sum) == counted, "{} of {}", sum, packets);
        }
    }
}
