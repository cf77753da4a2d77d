//! Handles that the keeper has too, for the last turn after the guard's death.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use kern::keeper::Keeper;

/// What became of a handle that was to be kept.
pub enum Kept {
    /// The keeper has it, or can take no more of them.
    Yes,
    /// The keeper does not answer.
    Lost,
    /// There is no keeper.
    Nobody,
}

/// Gives the keeper the handle of the NAPI `id`: without a last turn on it a queue stays silent until its flush timer fires.
pub fn keep(keeper: &Mutex<Option<Keeper>>, id: u32, handle: &OwnedFd) -> Kept {
    let Ok(keeper) = keeper.lock() else { return Kept::Nobody };
    match keeper.as_ref().map(|k| k.handle(id, handle.as_fd())) {
        Some(Err(e)) if e.is_lost() => Kept::Lost,
        // One that it refuses, for there are too many, is served by the flush timer.
        Some(_) => Kept::Yes,
        None => Kept::Nobody,
    }
}
