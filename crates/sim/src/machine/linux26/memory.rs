//! Memory of the host: what socket buffers take, what reclaim gives back, when allocations fail (WU-04, WU-16).

use super::settings::Linux26;
use crate::engine::{Nanos, SEC};

/// The state of memory, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// What buffers count as in use.
    pub accounted: u64,
    /// Page and buffer cache.
    pub cache: u64,
    available: u64,
    cache_least: u64,
    low: u64,
    least: u64,
    real_permille: u64,
    stalls: [Nanos; 3],
    stall: Nanos,
    reclaim: Nanos,
    /// Buffers that were granted in the stall that began then.
    granted: (Nanos, u64),
    /// The first and the last failure of the present shortage, and how many.
    failing: Option<(Nanos, Nanos, u32)>,
    kill_after: Nanos,
    /// Programs killed for memory.
    pub kills: u64,
    high: u64,
    pressure_at: u64,
}

/// A shortage without a failure for so long is over.
const FORGET: Nanos = 5 * SEC;
/// Failures before a program is killed.
const FAILURES: u32 = 10;
const KIB: u64 = 1024;
const PAGE: u64 = 4096;
/// Buffers in what reclaim frees at once: SWAP_CLUSTER_MAX, 32 pages of two buffers of 2 KiB.
const CLUSTER_BUFFERS: u64 = 64;

impl Memory {
    pub fn new(s: &Linux26) -> Self {
        Self {
            accounted: 0,
            cache: s.cache * KIB,
            available: s.memory.saturating_sub(s.memory_used) * KIB,
            cache_least: s.cache_least.min(s.cache) * KIB,
            low: s.free_low * KIB,
            least: s.free_least * KIB,
            real_permille: u64::from(s.real_permille),
            stalls: [s.stall_1.0, s.stall_2.0, s.stall_3.0],
            stall: s.stall.0,
            reclaim: s.reclaim.0,
            granted: (0, 0),
            failing: None,
            kill_after: s.kill_after.0,
            kills: 0,
            high: s.tcp_mem_high * PAGE,
            pressure_at: s.tcp_mem_pressure * PAGE,
        }
    }

    /// Memory behind the buffers.
    pub fn real(&self) -> u64 {
        self.accounted * self.real_permille / 1000
    }

    /// Free memory.
    pub fn free(&self) -> u64 {
        self.available.saturating_sub(self.cache + self.real())
    }

    /// Buffers have taken or given back memory: reclaim takes cache when little is free.
    pub fn changed(&mut self) {
        if self.free() < self.low {
            let missing = (self.cache + self.real() + self.low).saturating_sub(self.available);
            self.cache -= missing.min(self.cache - self.cache_least);
        }
    }

    /// Of `wanted` buffers for the ring, allocated in an interrupt at `now`, those that are there.
    pub fn refill(&mut self, now: Nanos, wanted: u32) -> u32 {
        let stall = self.stalls.iter().find(|at| **at > 0 && (**at..**at + self.stall).contains(&now));
        let short = self.free() < self.least;
        if short {
            let (first, _, count) =
                self.failing.filter(|(_, last, _)| now - last < FORGET).unwrap_or((now, now, 0));
            self.failing = Some((first, now, count + 1));
        }
        match stall {
            _ if short => 0,
            None => wanted,
            Some(began) => {
                if self.granted.0 != *began {
                    self.granted = (*began, 0);
                }
                let clusters = (now - began).checked_div(self.reclaim).unwrap_or(0);
                let left = (clusters * CLUSTER_BUFFERS).saturating_sub(self.granted.1).min(wanted.into());
                self.granted.1 += left;
                left as u32
            }
        }
    }

    /// True once allocations have failed for so long, and so often, that a program is killed: out_of_memory() of 2.6.
    pub fn kill(&mut self, now: Nanos) -> bool {
        let kill = self.failing.is_some_and(|(first, last, count)| {
            now - last < FORGET && now - first >= self.kill_after && count >= FAILURES
        });
        if kill {
            self.kills += 1;
            self.failing = None;
        }
        kill
    }

    /// tcp_mem: another `bytes` may be used.
    pub fn allowed(&self, bytes: u64) -> bool {
        self.accounted + bytes <= self.high
    }

    /// tcp_mem: windows are kept small.
    pub fn pressure(&self) -> bool {
        self.accounted >= self.pressure_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Time;

    #[test]
    fn cache_goes_first_then_allocations_fail_then_a_program_is_killed() {
        let mut m = Memory::new(&Linux26::default());
        let (free, cache) = (m.free(), m.cache);
        m.accounted = 40 << 20;
        m.changed();
        assert_eq!((m.cache, m.free()), (cache, free - m.real()));
        m.accounted = 160 << 20;
        m.changed();
        assert!(m.cache < cache && m.refill(0, 1) == 1);
        m.accounted = 400 << 20;
        m.changed();
        assert!((5..15).all(|now| m.refill(now, 1) == 0 && !m.kill(now)));
        assert!(!m.kill(SEC) && m.kill(SEC + 5) && !m.kill(SEC + 6));
    }

    #[test]
    fn a_stall_ends() {
        let stalled = Linux26 { stall_1: Time(100), stall: Time(10), ..Linux26::default() };
        let mut m = Memory::new(&stalled);
        assert_eq!([99, 100, 109, 110].map(|now| m.refill(now, 3)), [3, 0, 0, 3]);
    }

    #[test]
    fn reclaim_gives_back_clusters() {
        let stalled = Linux26 { stall_1: Time(100), stall: Time(10), reclaim: Time(5), ..Linux26::default() };
        let mut m = Memory::new(&stalled);
        assert_eq!([104, 105, 106, 109, 110].map(|now| m.refill(now, 40)), [0, 40, 24, 0, 40]);
    }
}
