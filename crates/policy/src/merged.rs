//! Whether a bulk transfer over TCP explains signs of overload of a source that the kernel polls (MR-10).
//!
//! A transfer fills polls, and a program beside it may lose what it would read otherwise; its sender slows itself down, and polling
//! harms both ([`crate::load`]). To take the source over in order to count its frames costs the transfer what is lost meanwhile, and a
//! timeout of 200 ms or more. The kernel tells it for less: it merges segments of one connection before the IP layer takes them (GRO), and
//! that layer counts packets, and the segments that are in them.
//!
//! These counts are of all interfaces of a network namespace, and of more than TCP. So of a source are those that nothing else can have
//! brought: no other source, none of the interfaces that are not guarded, and no more than the TCP packets that some socket took, the
//! source's packets, and the bytes of its interface can have held.
//!
//! # Properties
//! - A source that has carried fewer than [`ENOUGH`] packets between two looks explains nothing.
//! - Nor does one by datagrams or by segments without a connection, however they are merged, nor by a transfer that others have brought.

use crate::{MILLISECOND, Nanos, load};

/// Fewer packets between two looks tell nothing.
pub const ENOUGH: u64 = 1000;
/// Bytes that a merged segment has at least: who sends much sends full ones.
pub const SEGMENT: u64 = 1000;
/// The same on the loopback, whose packets are as large as what is merged.
const LOOPBACK: u64 = 32_768;
/// Most segments of one packet: 64 KiB of them.
const MOST: u64 = 45;
/// What was seen holds so long, ns: a transfer that has lost much is back by then, and drivers that bring their statistics once a second
/// have brought the next ones.
pub const FRESH: Nanos = 1400 * MILLISECOND;

/// What the host has counted so far, of all interfaces. Each may wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ip {
    /// Packets taken by the IP layer and not passed on.
    pub kept: u64,
    /// Segments that came inside of packets, beside the first one of each.
    pub merged: u64,
    /// TCP packets that were not refused.
    pub tcp: u64,
    /// Datagrams and segments for ports that nobody has.
    pub nobody: u64,
    /// Segments that interfaces which are not guarded can have brought: the sum of [`brought`].
    pub elsewhere: u64,
}

/// Segments that an interface can have brought in so many `bytes`.
pub fn brought(bytes: u64, loopback: bool) -> u64 {
    bytes / if loopback { LOOPBACK } else { SEGMENT }
}

/// What was counted at a look at a source. Each may wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Its packets.
    pub packets: u64,
    /// Bytes of its interface.
    pub bytes: u64,
    /// Packets of all sources.
    pub all: u64,
    /// The host's.
    pub ip: Ip,
}

impl Look {
    /// True if it tells nothing new: packets came, and the driver has not brought the bytes that go with them yet.
    pub fn is_early(&self, then: &Look) -> bool {
        self.bytes == then.bytes && self.packets != then.packets
    }

    /// True if a transfer explains what the source has carried since `then`.
    pub fn explains(&self, then: &Look) -> bool {
        let since = |of: fn(&Look) -> u64| of(self).wrapping_sub(of(then));
        let packets = since(|look| look.packets);
        let others =
            since(|look| look.all).wrapping_sub(packets).saturating_add(since(|look| look.ip.elsewhere));
        // Of TCP more may have been refused than came.
        let taken = since(|look| look.ip.tcp).cast_signed().max(0).cast_unsigned().saturating_mul(MOST);
        let own = since(|look| look.ip.merged).saturating_sub(others).min(taken);
        let possible = own <= packets && own.saturating_mul(SEGMENT) <= since(|look| look.bytes);
        packets >= ENOUGH && possible && load::is_beside(packets, own, since(|look| look.ip.nobody))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look that would be one of a transfer, but for what is changed.
    fn explains(change: impl Fn(&mut Look)) -> bool {
        let then = Look {
            packets: u64::MAX - 3,
            bytes: u64::MAX - 100,
            all: u64::MAX - 7,
            ip: Ip { merged: u64::MAX - 5, tcp: u64::MAX, nobody: u64::MAX, ..Ip::default() },
        };
        let mut look = Look {
            packets: 100_000,
            bytes: 100_000_000,
            all: 100_000,
            ip: Ip { merged: 30_000, tcp: 3000, ..Ip::default() },
        };
        change(&mut look);
        let add = |a: u64, b: u64| a.wrapping_add(b);
        let ip = Ip {
            merged: add(then.ip.merged, look.ip.merged),
            tcp: add(then.ip.tcp, look.ip.tcp),
            nobody: add(then.ip.nobody, look.ip.nobody),
            ..look.ip
        };
        Look {
            packets: add(then.packets, look.packets),
            bytes: add(then.bytes, look.bytes),
            all: add(then.all, look.all),
            ip,
        }
        .explains(&then)
    }

    #[test]
    fn a_quarter_that_came_merged_explains_it() {
        assert!(explains(|_| ()));
        assert!(explains(|look| look.ip.merged = 25_000));
        assert!(!explains(|look| look.ip.merged = 24_999));
        assert!(!explains(|look| (look.packets, look.all, look.ip.merged) = (999, 999, 900)), "too few");
        assert!(explains(|look| look.ip.nobody = 35_000));
        assert!(!explains(|look| look.ip.nobody = 35_001), "the rest is better shed");
    }

    #[test]
    fn what_came_by_other_ways_does_not() {
        assert!(!explains(|look| look.bytes = 20_000_000), "short packets came, and others sent long ones");
        assert!(!explains(|look| look.ip.merged = 100_001), "more than came");
        assert!(explains(|look| look.all = 105_000));
        assert!(!explains(|look| look.all = 105_001), "another source may have brought them");
        assert!(!explains(|look| look.ip.elsewhere = 5001), "or one that is not guarded");
        assert!(!explains(|look| look.ip.elsewhere = 0u64.wrapping_sub(1)), "one of those is gone");
        assert_eq!((brought(1_000_000, false), brought(1_000_000, true)), (1000, 30));
    }

    #[test]
    fn what_is_merged_and_no_connection_has_does_not() {
        assert!(explains(|look| look.ip.tcp = 600));
        assert!(!explains(|look| look.ip.tcp = 500), "datagrams are merged too, or a firewall refuses it");
        assert!(!explains(|look| look.ip.tcp = 0u64.wrapping_sub(9)), "each was answered by a reset");
    }

    #[test]
    fn a_driver_may_bring_its_bytes_later() {
        let look = |packets, bytes| Look { packets, bytes, ..Look::default() };
        assert!(look(9, 5).is_early(&look(3, 5)));
        assert!(!look(9, 6).is_early(&look(3, 5)) && !look(3, 5).is_early(&look(3, 5)));
    }
}
