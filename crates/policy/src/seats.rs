//! Which consumers are tracked when there are more than places.
//!
//! Tracking costs each poll a look per consumer, so places are few, and anybody may open sockets that lose. Who loses most has
//! a place: there feedback saves most work. And no user, but for root, keeps others out.
//!
//! # Properties
//! - While there is a free place, who asks gets it.
//! - Of a full table nobody who loses less than the one who asks keeps a place that the latter could have, but for packet
//!   filters, which never make room, and for those that hold input back just now.
//! - A user other than root with more than a quarter of the places makes room for any other user, and gets no more while
//!   the table is full.

use std::fmt;

/// One part of so many of the places is a user's share.
pub const SHARE: usize = 4;
/// The user without a share of his own.
const ROOT: u32 = 0;

/// The user that sockets of another network namespace count for: whatever users it has, it has the share of one.
pub fn user_of_namespace(inode: u32) -> u32 {
    // No user of a host has a number so large.
    inode | 1 << 31
}

/// Who has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its user.
    pub uid: u32,
    /// Packets that it lost lately, or that were shed for it.
    pub lost: u64,
    /// It never makes room: a packet filter, in which all frames in transit may end.
    pub fixed: bool,
    /// It holds input back now: it may lose nothing because of that.
    pub busy: bool,
}

/// Why one gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// His user has his share, and loses as much at each of its sockets.
    Share,
    /// All the others lose as much, or must stay.
    Loss,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Share => "its user has a quarter of the table",
            Refused::Loss => "the table is full of sockets that lose as much",
        })
    }
}

/// The place for a socket of `uid` that lost `lost` packets lately: a free one, or one whose holder leaves it.
///
/// # Errors
/// Why there is none.
pub fn admit(seats: &[Option<Seat>], uid: u32, lost: u64) -> Result<usize, Refused> {
    if let Some(free) = seats.iter().position(Option::is_none) {
        return Ok(free);
    }
    let share = (seats.len() / SHARE).max(1);
    let taken = || seats.iter().enumerate().filter_map(|(slot, seat)| Some((slot, seat.as_ref()?)));
    let held = |uid: u32| if uid == ROOT { 0 } else { taken().filter(|(_, s)| s.uid == uid).count() };
    let least = |of: &dyn Fn(&Seat) -> bool| {
        let found = taken().filter(|(_, s)| !s.fixed && of(s)).min_by_key(|(slot, s)| (s.lost, *slot));
        found.map(|(slot, s)| (slot, s.lost))
    };
    if held(uid) >= share {
        return match least(&|s| s.uid == uid) {
            Some((slot, least)) if least < lost => Ok(slot),
            _ => Err(Refused::Share),
        };
    }
    let greedy = taken().map(|(_, s)| s.uid).max_by_key(|uid| held(*uid)).filter(|uid| held(*uid) > share);
    if let Some((slot, _)) = greedy.and_then(|greedy| least(&|s| s.uid == greedy)) {
        return Ok(slot);
    }
    match least(&|s| !s.busy) {
        Some((slot, least)) if least < lost => Ok(slot),
        _ => Err(Refused::Loss),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seat(uid: u32, lost: u64) -> Option<Seat> {
        Some(Seat { uid, lost, fixed: false, busy: false })
    }

    #[test]
    fn a_free_place_is_for_anybody() {
        assert_eq!(admit(&[seat(7, 9), seat(7, 9), None], 7, 0), Ok(2));
    }

    #[test]
    fn who_loses_least_makes_room_for_who_loses_more() {
        let full = [seat(0, 5), seat(1, 2), seat(2, 8), seat(3, 9)];
        assert_eq!(admit(&full, 0, 3), Ok(1));
        assert_eq!(admit(&full, 0, 2), Err(Refused::Loss), "as much is no reason");
    }

    #[test]
    fn filters_and_those_that_hold_input_back_stay() {
        let fixed = Seat { uid: 0, lost: 0, fixed: true, busy: false };
        let busy = Seat { fixed: false, busy: true, ..fixed };
        assert_eq!(admit(&[Some(fixed), Some(busy), seat(0, 3), seat(0, 4)], 0, 9), Ok(2));
        assert_eq!(admit(&[Some(fixed), Some(busy)], 0, u64::MAX), Err(Refused::Loss));
    }

    #[test]
    fn a_user_with_more_than_his_share_makes_room_for_others_whatever_he_loses() {
        let mut full = vec![seat(0, 1); 4];
        full.extend((0..12).map(|n| seat(1000, 1_000_000 + n)));
        assert_eq!(admit(&full, 1001, 1), Ok(4));
        assert_eq!(admit(&full, 0, 1), Ok(4));
        assert_eq!(admit(&full, 1000, 999), Err(Refused::Share));
        assert_eq!(admit(&full, 1000, 1_000_001), Ok(4), "among his own");
    }

    #[test]
    fn root_has_no_share() {
        let full = vec![seat(0, 10); 16];
        assert_eq!(admit(&full, 0, 11), Ok(0));
        assert_eq!(admit(&full, 0, 10), Err(Refused::Loss));
    }

    proptest! {
        /// However many sockets a user opens and whatever they lose, another one that loses at all gets a place while the user
        /// has more than his share, and the user never gets beyond it once the table is full of others.
        #[test]
        fn nobody_is_kept_out(asks in prop::collection::vec((0u32..4, 0u64..50), 1..400)) {
            let mut seats: Vec<Option<Seat>> = vec![None; 16];
            for (uid, lost) in asks {
                let held = |seats: &[Option<Seat>], uid| seats.iter().flatten().filter(|s| s.uid == uid).count();
                let before = held(&seats, uid);
                let full = seats.iter().all(Option::is_some);
                let greedy = (1..4).any(|other| other != uid && held(&seats, other) > 4);
                match admit(&seats, uid, lost) {
                    Ok(slot) => {
                        if let Some(old) = seats[slot] {
                            prop_assert!(old.lost < lost || old.uid != uid && held(&seats, old.uid) > 4);
                        }
                        seats[slot] = seat(uid, lost);
                    }
                    Err(_) => {
                        prop_assert!(full);
                        prop_assert!(!greedy || uid != 0 && before >= 4, "{uid} was kept out");
                    }
                }
                if full && uid != 0 && before >= 4 {
                    prop_assert!(held(&seats, uid) <= before);
                }
            }
        }
    }
}
