//! Whether a bulk transfer over TCP explains signs of overload of a source that the kernel polls (MR-10).
//!
//! A transfer fills polls, and a program beside it may lose what it would read otherwise; its sender slows itself down, and polling
//! harms both ([`crate::load`]). To take the source over in order to count its frames costs the transfer what is lost meanwhile, and a
//! timeout of 200 ms or more. The kernel tells it for less: it merges segments of one connection before the IP layer takes them (GRO), and
//! that layer counts packets, and the segments that are in them.
//!
//! These counts are of all interfaces of a network namespace, and those of local containers bring merged ones as well. So of a source
//! are those that no other source can have brought, if they are not more than the packets that it has carried, or than the bytes of its
//! interface can have held.
//!
//! # Properties
//! - A source that has carried fewer than [`ENOUGH`] packets between two looks explains nothing.
//! - Nor does one by a transfer that other sources have carried, or local containers beside an interface of short packets.

use crate::{MILLISECOND, Nanos, load};

/// Fewer packets between two looks tell nothing.
pub const ENOUGH: u64 = 1000;
/// Bytes that a merged segment has at least: who sends much sends full ones.
pub const SEGMENT: u64 = 500;
/// What was seen holds so long, ns: a transfer that has lost much is back by then.
pub const FRESH: Nanos = 1000 * MILLISECOND;

/// What the IP layer has counted so far, of all interfaces. Each may wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ip {
    /// Packets taken and not passed on.
    pub kept: u64,
    /// Segments that came inside of packets, beside the first one of each.
    pub merged: u64,
    /// Datagrams and segments for ports that nobody has.
    pub nobody: u64,
}

/// What a source has carried so far. Each may wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Packets.
    pub packets: u64,
    /// Bytes of all sources of its interface.
    pub bytes: u64,
}

impl Carried {
    /// Since `then`.
    pub fn since(self, then: Carried) -> Carried {
        Carried {
            packets: self.packets.wrapping_sub(then.packets),
            bytes: self.bytes.wrapping_sub(then.bytes),
        }
    }
}

/// True if a transfer explains what a source has carried between two looks, where all sources have carried `packets`; `then` and `now`:
/// what the IP layer had counted at these looks.
pub fn explains(carried: Carried, packets: u64, then: Ip, now: Ip) -> bool {
    let (merged, nobody) = (now.merged.wrapping_sub(then.merged), now.nobody.wrapping_sub(then.nobody));
    let own = merged.saturating_sub(packets.saturating_sub(carried.packets));
    let possible = own <= carried.packets && own.saturating_mul(SEGMENT) <= carried.bytes;
    carried.packets >= ENOUGH && possible && load::is_beside(carried.packets, own, nobody)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(merged: u64, nobody: u64) -> Ip {
        Ip { merged, nobody, ..Ip::default() }
    }

    fn alone(packets: u64, bytes: u64, merged: u64, nobody: u64) -> bool {
        let then = ip(u64::MAX - 5, u64::MAX);
        let now = ip(then.merged.wrapping_add(merged), then.nobody.wrapping_add(nobody));
        explains(Carried { packets, bytes }, packets, then, now)
    }

    #[test]
    fn a_quarter_that_came_merged_explains_it() {
        assert!(alone(100_000, 50_000_000, 90_000, 0));
        assert!(alone(100_000, 50_000_000, 25_000, 0));
        assert!(!alone(100_000, 50_000_000, 24_999, 0));
        assert!(!alone(999, 50_000_000, 900, 0), "too few");
        assert!(!alone(100_000, 50_000_000, 50_000, 25_001), "the rest is better shed");
    }

    #[test]
    fn what_came_by_other_ways_does_not() {
        assert!(!alone(100_000, 12_000_000, 25_000, 0), "short packets came, and containers sent long ones");
        assert!(!alone(100_000, 150_000_000, 100_001, 0), "more than came");
        let two = |packets| {
            let carried = Carried { packets: 100_000, bytes: 100_000_000 };
            explains(carried, packets, Ip::default(), ip(90_000, 0))
        };
        assert!(two(165_000) && !two(165_001), "another source may have brought them");
    }
}
