//! How many groups `weir accept` is attached to, and which one makes room for another: bounded, whatever the users of the host start.
//!
//! # Properties
//! - A group whose server is there never makes room.
//! - Of those that are gone the first to go does, and only where there is no other room.
//! - A group that is gone is forgotten after [`GONE`], not before.

use crate::{MILLISECOND, Nanos};

/// Most groups that are attached to.
pub const MOST: usize = 64;
/// A group that has been gone for so long is forgotten, ns. Nothing is to be detached from it.
pub const GONE: Nanos = 60_000 * MILLISECOND;

/// Where one more group finds room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Beside the others.
    Free,
    /// Instead of the one at this place, which is to be forgotten.
    Instead(usize),
    /// Nowhere: it is left alone.
    Nowhere,
}

/// Where one more group finds room among those that have been gone since these times, if they are.
#[must_use]
pub fn room(gone: impl ExactSizeIterator<Item = Option<Nanos>>) -> Room {
    if gone.len() < MOST {
        return Room::Free;
    }
    let first = gone.enumerate().filter_map(|(at, since)| Some((since?, at))).min();
    first.map_or(Room::Nowhere, |(_, at)| Room::Instead(at))
}

/// Whether one that has been gone `since` this time, if it is, is to be forgotten.
#[must_use]
pub fn is_forgotten(since: Option<Nanos>, now: Nanos) -> bool {
    since.is_some_and(|since| now.saturating_sub(since) >= GONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_sixty_fifth_group_finds_room() {
        let mut all: Vec<(u64, Option<Nanos>)> = Vec::new();
        // A container restarts: each time its group is another one, and that before has gone.
        for n in 0..65 {
            match room(all.iter().map(|one| one.1)) {
                Room::Free => {}
                Room::Instead(at) => drop(all.remove(at)),
                Room::Nowhere => panic!("{n}"),
            }
            all.iter_mut().for_each(|one| one.1 = one.1.or(Some(n)));
            all.push((n, None));
        }
        assert!(all.len() == MOST && all.iter().any(|one| one.0 == 64) && all.iter().all(|one| one.0 != 0));
        all.iter_mut().for_each(|one| one.1 = None);
        assert_eq!(room(all.iter().map(|one| one.1)), Room::Nowhere);
    }

    proptest! {
        #[test]
        fn only_one_that_is_gone_makes_room(gone in prop::collection::vec(prop::option::of(0u64..1000), 0..2 * MOST)) {
            match room(gone.iter().copied()) {
                Room::Free => prop_assert!(gone.len() < MOST),
                Room::Instead(at) => {
                    prop_assert!(gone.len() >= MOST && gone[at].is_some());
                    prop_assert_eq!(gone[at], gone.iter().copied().flatten().min());
                }
                Room::Nowhere => prop_assert!(gone.len() >= MOST && gone.iter().all(Option::is_none)),
            }
        }

        #[test]
        fn what_is_gone_is_forgotten_in_time(since: Option<u64>, after in 0..2 * GONE) {
            let now = since.unwrap_or(0).saturating_add(after);
            let away = since.map(|since| now - since);
            prop_assert_eq!(is_forgotten(since, now), away.is_some_and(|away| away >= GONE));
        }
    }
}
