//! What becomes of a group of listeners that `weir accept` has found, how many groups it is attached to, and which one makes room for
//! another: bounded, whatever the users of the host start.
//!
//! # Properties
//! - A choice of somebody else's is never replaced, and no group with more listeners than there are queues is attached to.
//! - What it is attached to already, as it should be, is not touched.
//! - At most [`MOST`] groups are followed, and of one search at most [`AT_ONCE`] new ones are attached to.
//! - A group whose server is there never makes room.
//! - Of those that are gone the first to go does, and only where there is no other room.
//! - A group that is gone is forgotten after [`GONE`], not before.

use super::queues::QUEUES;
use crate::{MILLISECOND, Nanos};

/// Most groups that are attached to.
pub const MOST: usize = 64;
/// New groups that one search attaches to, which takes about a tenth of a second for each: meanwhile nobody is answered. The next search is
/// for the others.
pub const AT_ONCE: usize = 4;
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

/// A group that a search has found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its listeners.
    pub members: usize,
    /// New groups that the search has attached to before this one.
    pub before: usize,
    /// What is known of it, if it is followed.
    pub known: Option<Known>,
}

/// One listener of a group, as far as it decides where connections go. The core of a worker that is not bound to one changes all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// Name of the listener.
    pub listener: u64,
    /// Process and thread of its worker.
    pub worker: Option<(u32, u32)>,
    /// The core that the worker is bound to.
    pub pinned: Option<usize>,
}

/// Whether the same listeners have the same workers, in whatever order they were found.
#[must_use]
pub fn are_same(one: impl Iterator<Item = Seat>, other: impl Iterator<Item = Seat>) -> bool {
    let sorted = |seats: &mut dyn Iterator<Item = Seat>| {
        let mut seats: Vec<Seat> = seats.collect();
        seats.sort_unstable();
        seats
    };
    let (mut one, mut other) = (one, other);
    sorted(&mut one) == sorted(&mut other)
}

/// A group that is followed.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The program that chooses in it is the one that was attached.
    pub own: bool,
    /// Its server was there until now.
    pub there: bool,
    /// Its listeners, their workers and the cores that these are bound to are those that the choice knows.
    pub same: bool,
}

/// What becomes of a group that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing but that workers may have moved.
    Keep,
    /// It is left alone: it has too many listeners.
    Many,
    /// It is left alone: something else stands in the way.
    Leave,
    /// It is left alone: too many others are followed.
    Full,
    /// It is attached to by the next search.
    Later,
    /// It is attached to, anew if it is followed.
    Attach,
}

/// What becomes of a group; whether something is in the way, and where it finds room, are asked only where that matters.
#[must_use]
pub fn next(found: &Found, in_the_way: impl FnOnce() -> bool, room: impl FnOnce() -> Room) -> Next {
    match found.known {
        Some(Known { own: true, there: true, same: true }) => Next::Keep,
        _ if found.members > QUEUES => Next::Many,
        Some(Known { own: true, .. }) => Next::Attach,
        _ if in_the_way() => Next::Leave,
        Some(_) => Next::Attach,
        None if room() == Room::Nowhere => Next::Full,
        None if found.before >= AT_ONCE => Next::Later,
        None => Next::Attach,
    }
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

    #[test]
    fn the_order_of_listeners_means_nothing() {
        let seat = |listener, pinned| Seat { listener, worker: Some((1, 2)), pinned };
        let (a, b) = (seat(7, Some(0)), seat(5, None));
        assert!(are_same([a, b].into_iter(), [b, a].into_iter()));
        assert!(!are_same([a, b].into_iter(), [a].into_iter()));
        assert!(!are_same([a].into_iter(), [seat(7, Some(1))].into_iter()));
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
        fn what_is_somebody_elses_or_as_it_should_be_stays(
            members in 0usize..2 * QUEUES,
            known in prop::option::of((any::<bool>(), any::<bool>(), any::<bool>())),
            before in 0..2 * AT_ONCE,
            in_the_way: bool,
            full: bool,
        ) {
            let known = known.map(|(own, there, same)| Known { own, there, same });
            let room = if full { Room::Nowhere } else { Room::Free };
            let next = next(&Found { members, before, known }, || in_the_way, || room);
            let own = known.is_some_and(|known| known.own);
            let as_it_should_be = known.is_some_and(|known| known.own && known.there && known.same);
            prop_assert_eq!(next == Next::Keep, as_it_should_be);
            if next == Next::Attach {
                prop_assert!(members <= QUEUES && (own || !in_the_way));
                prop_assert!(known.is_some() || !full && before < AT_ONCE);
            } else if next == Next::Later {
                prop_assert!(known.is_none() && !full && !in_the_way && before >= AT_ONCE);
            } else {
                // Each that is left alone is so for a reason.
                prop_assert!(as_it_should_be || members > QUEUES || in_the_way || full);
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
