//! The poller's options for one host: the only place with their defaults, and with the period that its ring asks for.
//!
//! # Properties
//! - What a ring of the host takes in at [`FILL_RATE`] while the poller is away for the reserve fits into it, or the period is the
//!   shortest, [`PERIOD`].
//! - The period is within [`PERIOD`] unless the user has set it.

use crate::poller::Config;
use crate::switch::Timing;
use crate::watermark::Marks;
use crate::{MILLISECOND, Nanos, Permille};

/// Rate at which a ring fills while the poller is away, for the period chosen from its depth, packets/s.
pub const FILL_RATE: u64 = 1_000_000;
/// Shortest and longest period that is chosen from the depth of the ring, ns.
pub const PERIOD: (Nanos, Nanos) = (MILLISECOND, 10 * MILLISECOND);
/// A turn as large as the kernel's own poll can make it, for a poller without a quota.
pub const QUOTA_OFF: u32 = 128;
/// Timer expiries without a turn after which the kernel goes back to interrupts; each turn resets the count.
pub const DEFER: u64 = 8;
/// Flush timeout from a takeover until it has settled, ns: while other sources are taken over, which takes some ms each under
/// flood, the kernel is not to take this one back. No more: so long may a packet wait if guard and keeper die.
pub const FIRST_FLUSH: Nanos = 20 * MILLISECOND;
/// Between two looks of the guard at what sources carried, at links and at consumers, ns.
pub const TICK: Nanos = 200 * MILLISECOND;
/// Between two looks that cost more: for closed consumers and for NAPI ids that changed, ns.
pub const THOROUGH: Nanos = 1000 * MILLISECOND;
/// Interfaces at most whose NAPI ids, queues, RPS and addresses one thorough look asks for: an idle guard of many interfaces is to
/// cost no more than one of few.
pub const LOOKED_AT: usize = 2;
/// Thorough looks between two that ask what stands on interfaces although the kernel has said nothing of links.
pub const UNTOLD: u64 = 10;
/// Whether interface `index` of `all` is one that thorough look number `look` asks for.
#[must_use]
pub const fn is_looked_at(index: usize, all: usize, look: u64) -> bool {
    let rounds = all.div_ceil(LOOKED_AT) as u64;
    rounds < 2 || index as u64 % rounds == look % rounds
}

/// The programs that learn stay for so long after the last release, ns, and so does XDP of a source that may come back at any time: the
/// next onset finds them, and what they know.
pub const STAYS: Nanos = 2000 * MILLISECOND;

/// What is known of the host, and what the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Packets that the smallest ring holds.
    pub ring: u32,
    /// Share of each CPU that programs keep.
    pub reserve: Permille,
    /// Most packets of one turn; even.
    pub quota: u32,
    /// The same of the only source while programs run before the poller; even.
    pub lent_quota: u32,
    /// Period of the budget, ns; `None`: what the ring asks for.
    pub period: Option<Nanos>,
    /// Level of a consumer at which input for it is inhibited.
    pub high: Permille,
    /// Level at which it is enabled again.
    pub low: Permille,
    /// Longest inhibit, ns.
    pub timeout: Nanos,
    /// Flush timeout of a source in poll mode, ns.
    pub flush: Nanos,
    /// Sleep after a turn that drained its ring, ns.
    pub nap: Nanos,
    /// Share of each CPU that may be spent on what will be shed, as far as the reserve leaves it.
    pub look: Permille,
    /// Full consumers hold input back; the host tells their levels.
    pub feedback: bool,
    /// The budget is kept.
    pub budget: bool,
    /// Sources are left to the kernel and the gate where that will do.
    pub shed: bool,
    /// The pollers' CPUs do networking only: sources are polled from the first packets on, see [`crate::netcpu`].
    pub net: bool,
}

/// A host of which nothing is known, and a user who has set nothing.
pub const DEFAULTS: Host = Host {
    ring: 256,
    reserve: 200,
    quota: 32,
    // Two of the kernel's own polls.
    lent_quota: 128,
    period: None,
    high: 750,
    low: 250,
    timeout: 10 * MILLISECOND,
    flush: 5 * MILLISECOND,
    nap: 50_000,
    look: 1000,
    feedback: true,
    budget: true,
    shed: true,
    net: false,
};

impl Default for Host {
    fn default() -> Self {
        DEFAULTS
    }
}

impl Host {
    /// Period of the budget, ns: the ring must hold what arrives while the poller is away, reserve x period x rate <= depth.
    pub fn period(&self) -> Nanos {
        let percent = u64::from(self.reserve / 10).max(1);
        let fills = u64::from(self.ring) * 1_000_000_000 / FILL_RATE;
        self.period.unwrap_or((fills * 100 / percent).clamp(PERIOD.0, PERIOD.1))
    }

    /// When sources of this host are taken over and released.
    pub fn timing(&self) -> Timing {
        if self.net { crate::netcpu::timing() } else { Timing::scaled(self.flush) }
    }
}

impl Config {
    /// The options for `host`.
    pub fn for_host(host: &Host) -> Self {
        let budget = if host.budget { 1000 - host.reserve.min(1000) } else { 1000 };
        Self {
            quota: host.quota,
            lent_quota: host.lent_quota,
            nap: host.nap,
            flush_timeout: host.flush,
            marks: Marks::new(host.high, host.low, host.timeout).filter(|_| host.feedback),
            budget,
            look: host.look.min(budget),
            period: host.period(),
            ring: host.ring,
            shed: host.shed && host.feedback && !host.net,
            net: host.net,
            timing: Timing::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_period_follows_the_ring() {
        let period = |ring, reserve| Host { ring, reserve, ..DEFAULTS }.period();
        assert_eq!(period(256, 200), 1_280_000);
        assert_eq!(period(1024, 200), 5_120_000);
        assert_eq!(period(4096, 200), 10 * MILLISECOND);
        assert_eq!(period(16, 200), MILLISECOND);
        assert_eq!(Host { period: Some(7), ..DEFAULTS }.period(), 7);
    }

    #[test]
    fn what_is_off_is_off() {
        let config = Config::for_host(&Host { budget: false, feedback: false, ..DEFAULTS });
        assert_eq!((config.budget, config.marks), (1000, None));
        assert_eq!(Config::for_host(&DEFAULTS).budget, 800);
        assert_eq!(Config::for_host(&DEFAULTS).look, 800, "never more than the budget");
        assert_eq!(Config::for_host(&Host { look: 300, ..DEFAULTS }).look, 300);
    }

    proptest! {
        /// One look asks for few interfaces, and each has its turn.
        #[test]
        fn every_interface_is_looked_at(all in 1_usize..300, from in 0_u64..u64::MAX / 2) {
            let looked = |look| (0..all).filter(move |i| is_looked_at(*i, all, look)).collect::<Vec<_>>();
            let rounds = all.div_ceil(LOOKED_AT) as u64;
            let mut seen: Vec<usize> = (from..from + rounds).flat_map(looked).collect();
            prop_assert!((from..from + rounds).all(|look| looked(look).len() <= LOOKED_AT));
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..all).collect::<Vec<_>>());
        }

        /// What arrives in the reserve of one period fits into the ring, unless no shorter period is allowed.
        #[test]
        fn the_ring_holds_the_reserve(ring in 1u32..1 << 20, reserve in 1u16..=95) {
            let host = Host { ring, reserve: reserve * 10, ..DEFAULTS };
            let config = Config::for_host(&host);
            prop_assert!((PERIOD.0..=PERIOD.1).contains(&config.period));
            let away = config.period * u64::from(reserve) / 100;
            prop_assert!(away * FILL_RATE / 1_000_000_000 <= u64::from(ring) || config.period == PERIOD.0);
            prop_assert!(config.quota.is_multiple_of(2) && config.quota >= 2);
        }
    }
}
