//! What a keeper does to the settings of its guard, over any [`Kernel`].

use crate::{
    journal::{Fate, Journal, Outcome, Owner},
    kernel::Kernel,
    settings::Setting,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Attempts to restore what could not be restored at first, one or two [`crate::kernel::ABSENCE`]s apart.
const ATTEMPTS: u32 = 5;

/// The journals in a keeper's care, with the guard that each belonged to then.
pub type Journals = BTreeMap<PathBuf, Owner>;

/// One journal, and what became of its settings.
#[derive(Debug)]
pub struct Done {
    /// The journal.
    pub journal: Journal,
    /// Setting by setting.
    pub outcomes: Vec<Outcome>,
    /// Its file is removed: nothing of weir is left.
    pub removed: bool,
}

impl Done {
    /// For the user: the guard `what`, and how many settings are as before. `{open}` in `rest` is the number of those that
    /// are not; it is left out where there are none.
    pub(crate) fn line(&self, what: &str, rest: &str) -> String {
        let open = self.outcomes.iter().filter(|o| !o.settled()).count();
        let whole = open == 0 && (self.removed || !rest.contains("undo"));
        let rest = if whole { String::new() } else { rest.replace("{open}", &open.to_string()) };
        format!(
            "weir keeper: guard pid {} {what}; {}: {} settings as before{rest}",
            self.journal.owner().pid,
            self.journal.name(),
            self.outcomes.len() - open
        )
    }
}

/// The guard is dead: puts everything back, calls `turn` when that is done (a turn under weir's settings would start the
/// timer again), and removes the journals of which nothing is open. Those of a new guard are left alone.
pub fn after_death<K: Kernel>(kernel: &mut K, journals: &Journals, turn: impl FnOnce()) -> Vec<Done> {
    let dirs = journals.keys().filter_map(|p| p.parent()).take(1);
    // Whoever holds the lock restores the same settings; waiting for ever would help nobody.
    let locks: Vec<_> = dirs.map(|dir| kernel.lock(dir)).collect();
    // But it may be a new guard, whose journal would be removed.
    let alone = locks.iter().all(Result::is_ok);
    let mut done = Vec::new();
    for (path, owner) in journals {
        let Some(journal) = ours(kernel, path, *owner) else { continue };
        let mut outcomes = journal.restore(kernel);
        for _ in 1..ATTEMPTS {
            // What has left this namespace and cannot be reached now cannot be a moment later.
            if outcomes.iter().all(|o| o.settled() || o.fate == Fate::Moved) {
                break;
            }
            kernel.wait();
            kernel.wait();
            outcomes = journal.restore(kernel);
        }
        done.push(Done { journal, outcomes, removed: false });
    }
    turn();
    for d in &mut done {
        let settled = alone && d.outcomes.iter().all(Outcome::settled);
        d.removed = settled && d.journal.remove_from(kernel).is_ok();
    }
    drop(locks);
    done
}

/// The guard lives but does not move: puts back what a poller has to be there for. A kernel thread polls without one, and
/// nobody would make it again. The journals stay, because the guard goes on some day.
/// Nobody else restores the journal of a live guard, so no lock is waited for; the guard may hold it.
pub fn under_stop<K: Kernel>(kernel: &mut K, journals: &Journals, turn: impl FnOnce()) -> Vec<Done> {
    let mut done = Vec::new();
    for (path, owner) in journals {
        let Some(journal) = ours(kernel, path, *owner) else { continue };
        let mut outcomes = journal.restore_those(kernel, true, Setting::of_poll_mode);
        for _ in 1..ATTEMPTS {
            if !outcomes.iter().any(|o| matches!(o.fate, Fate::Failed { .. })) {
                break;
            }
            kernel.wait();
            outcomes = journal.restore_those(kernel, true, Setting::of_poll_mode);
        }
        done.push(Done { journal, outcomes, removed: false });
    }
    turn();
    done
}

/// The journal, unless it is gone (the guard restored it before it died) or another guard's (which has taken over).
fn ours<K: Kernel>(kernel: &mut K, path: &Path, owner: Owner) -> Option<Journal> {
    let journal = Journal::load_from(kernel, path).ok()?;
    let here = kernel.here().ok()?;
    (journal.owner() == owner && journal.netns().same(&here)).then_some(journal)
}
