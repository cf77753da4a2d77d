//! When sockets that overflow are evidence that the kernel's own way fails (MR-10, MR-19).
//!
//! A program that waits for another one's time slice (3 ms) overflows its socket for less than that, now and then;
//! overload goes on. Two signs tell it: much is lost at once, or a little is lost again and again. The second one finds
//! the rates just above what interrupts carry, where a poller, which pays for no interrupt and no wake, carries all.
//!
//! # Properties
//! - Losses all within [`APART`] and fewer than [`REPORTS`] reports are no evidence.
//! - A loss of more than [`STEP`] packets per [`GAP`] that does not end is evidence after [`LASTING`] reports, 64 ms and
//!   256 packets at that rate.

use crate::{MILLISECOND, Nanos};

/// Overflows on one CPU between two reports, which come at most once per [`EVERY`].
pub const STEP: u32 = 64;
/// Least time between two reports, as `WEIR_EVENT_EVERY_NS` in BPF.
pub const EVERY: Nanos = MILLISECOND;
/// Reports that are evidence at once, if they come within [`SPAN`].
pub const REPORTS: u32 = 8;
/// See [`REPORTS`].
pub const SPAN: Nanos = 20 * MILLISECOND;
/// Reports that are evidence if each comes at least [`APART`] and at most [`GAP`] after the one before: a stall of the
/// machine gives one or two.
pub const LASTING: u32 = 4;
/// See [`LASTING`].
pub const APART: Nanos = 5 * MILLISECOND;
/// See [`LASTING`].
pub const GAP: Nanos = 50 * MILLISECOND;

/// Where the sources of a CPU carry fewer packets per second together, they cost some hundredths of it: who loses a little of them,
/// as a program that hangs, does so for its own sake, and polling gives it nothing.
pub const LEAST_PPS: u64 = 25_000;

/// How much sockets lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Much at once.
    Much,
    /// A little, again and again: no overload where little arrives ([`LEAST_PPS`]).
    Little,
}

/// What the sockets of one CPU lost lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overflow {
    began: Nanos,
    reports: u32,
    /// The last report that counted for [`LASTING`], and how many did in a row.
    last: Nanos,
    lasting: u32,
}

impl Overflow {
    /// [`STEP`] more packets were lost: whether that is evidence. After it everything is counted anew.
    pub fn report(&mut self, now: Nanos) -> Option<Sign> {
        if now.saturating_sub(self.began) > SPAN {
            (self.began, self.reports) = (now, 0);
        }
        self.reports += 1;
        let since = now.saturating_sub(self.last);
        if self.lasting == 0 || since > GAP {
            (self.last, self.lasting) = (now, 1);
        } else if since >= APART {
            (self.last, self.lasting) = (now, self.lasting + 1);
        }
        let sign = match (self.reports >= REPORTS, self.lasting >= LASTING) {
            (true, _) => Sign::Much,
            (_, true) => Sign::Little,
            _ => return None,
        };
        *self = Self::default();
        Some(sign)
    }
}

/// The same, told of each packet: what BPF counts in the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sockets {
    overflow: Overflow,
    refused: u32,
    reported: Option<Nanos>,
}

impl Sockets {
    /// A full socket has refused a packet: true if that is evidence.
    pub fn refused(&mut self, now: Nanos) -> bool {
        self.refused += 1;
        if self.refused < STEP {
            return false;
        }
        self.refused = 0;
        let soon = self.reported.is_some_and(|at| now.saturating_sub(at) < EVERY);
        if !soon {
            self.reported = Some(now);
        }
        !soon && self.overflow.report(now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Times, in ms, at which evidence is found.
    fn found(reports: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut overflow = Overflow::default();
        reports.into_iter().filter(|t| overflow.report(t * MILLISECOND).is_some()).collect()
    }

    #[test]
    fn a_hiccup_is_no_evidence_and_overload_is() {
        assert_eq!(found(1000..1007), [], "7 ms of overflow");
        assert_eq!(found(1000..1008), [1007], "8 ms without an end");
        assert_eq!(found([1000, 1004, 1100, 1104, 1200, 1204, 1300]), [], "stalls of 4 ms, ten a second");
    }

    #[test]
    fn a_little_that_goes_on_is_evidence() {
        assert_eq!(found((0..10).map(|n| 1000 + 16 * n)), [1048, 1112], "4 % of 100 k/s");
        assert_eq!(found((0..10).map(|n| 1000 + 50 * n)), [1150, 1350], "1.3 %");
        assert_eq!(found((0..100).map(|n| 1000 + 51 * n)), [], "less");
    }

    #[test]
    fn much_is_told_from_a_little() {
        let sign = |every: u64| {
            let mut overflow = Overflow::default();
            (0..20).find_map(|n| overflow.report((1000 + n * every) * MILLISECOND))
        };
        assert_eq!((sign(1), sign(2)), (Some(Sign::Much), Some(Sign::Much)), "32 k/s");
        assert_eq!((sign(16), sign(50), sign(51)), (Some(Sign::Little), Some(Sign::Little), None));
    }

    #[test]
    fn packets_are_counted_as_bpf_does() {
        let ms = MILLISECOND;
        let mut sockets = Sockets::default();
        let mut lose = |from: Nanos, every: Nanos, packets: u64| {
            (0..packets).map(|n| from + n * every).find(|t| sockets.refused(*t))
        };
        assert_eq!(lose(ms, 10, 1_000_000 / 16), None, "all within a millisecond");
        assert_eq!(lose(1000 * ms, ms / 64, 2000).map(|t| t / ms), Some(1007), "64 per ms");
        assert_eq!(lose(3000 * ms, ms / 4, 2000).map(|t| t / ms), Some(3063), "4 per ms");
    }

    proptest! {
        /// Whatever is found was preceded by 4 reports at least, the first of them no more than 150 ms before.
        #[test]
        fn evidence_has_its_reports(gaps in prop::collection::vec(1u64..80, 1..200)) {
            let mut overflow = Overflow::default();
            let (mut now, mut seen) = (1000 * MILLISECOND, Vec::new());
            for gap in gaps {
                now += gap * MILLISECOND;
                seen.push(now);
                if overflow.report(now).is_some() {
                    prop_assert!(seen.len() >= LASTING as usize);
                    prop_assert!(now - seen[seen.len() - LASTING as usize] <= 3 * GAP);
                    seen.clear();
                }
            }
        }
    }
}
