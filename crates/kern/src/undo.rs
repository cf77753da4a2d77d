//! `weir undo`: puts back what a dead guard has left, when its keeper died with it.

use crate::{
    error::Result,
    journal::{Fate, Journal, Outcome, is_host, paths},
    kernel::Kernel,
    settings::{Access, Setting},
};
use serde::Serialize;
use std::{path::Path, time::Duration};

/// What was done about one journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Undone {
    /// Its guard is dead: settings were put back. The journal is removed unless one is open still.
    Restored {
        /// Interface.
        interface: String,
        /// The dead guard.
        pid: u32,
        /// Setting by setting.
        outcomes: Vec<Outcome>,
    },
    /// Its guard lives: nothing was done.
    Guarded {
        /// Interface.
        interface: String,
        /// The live guard; stop it first.
        pid: u32,
    },
    /// It belongs to another network namespace: nothing was done.
    Elsewhere {
        /// Interface.
        interface: String,
        /// The guard.
        pid: u32,
        /// True if that guard lives.
        alive: bool,
        /// Inode of the namespace.
        netns: u64,
        /// Name to give to `ip netns exec`, if it has one.
        netns_name: Option<String>,
    },
    /// The namespace it belonged to is gone, and every setting with it. The journal is removed.
    NamespaceGone {
        /// Interface.
        interface: String,
        /// Inode that the namespace had.
        netns: u64,
    },
    /// Not a journal that weir wrote: left alone.
    Unreadable {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
}

/// What `undo` did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// One per journal; empty: nothing to undo.
    pub journals: Vec<Undone>,
    /// A queue that was polled when its guard and keeper died may stay silent until its old flush timer has
    /// fired: this long after the undo at most, ms (rounded up). 0 if nothing was put back.
    pub settles_in_ms: u64,
}

impl Undone {
    /// The interface whose journal it is; `None` if the file does not say.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Undone::Restored { interface, .. }
            | Undone::Guarded { interface, .. }
            | Undone::Elsewhere { interface, .. }
            | Undone::NamespaceGone { interface, .. } => Some(interface),
            Undone::Unreadable { .. } => None,
        }
    }
}

impl Report {
    /// Settings that have their old value again because of this call.
    pub fn restored(&self) -> usize {
        self.outcomes().filter(|o| matches!(o.fate, Fate::Restored { .. })).count()
    }

    /// True if nothing of a dead weir is left in this namespace; what an interface has taken along to another one is not in
    /// this.
    pub fn complete(&self) -> bool {
        self.outcomes().all(|o| o.settled() || o.fate == Fate::Moved) && self.carried_over()
    }

    /// True if a guard that starts would carry over whatever is left, as [`Journal::claim`] does: every journal could be read.
    pub fn carried_over(&self) -> bool {
        !self.journals.iter().any(|j| matches!(j, Undone::Unreadable { .. }))
    }

    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.journals.iter().flat_map(|j| match j {
            Undone::Restored { outcomes, .. } => outcomes.as_slice(),
            _ => &[],
        })
    }
}

/// Restores every journal in `dir` that belongs to the caller's network namespace and whose guard is dead; if `only`
/// names interfaces, no others are looked at. An error means that nothing could be looked at.
pub fn undo(dir: &Path, only: &[String]) -> Result<Report> {
    run(dir, only, Of::All, true)
}

/// What [`undo`] would do; changes nothing.
pub fn dry_run(dir: &Path, only: &[String]) -> Result<Report> {
    run(dir, only, Of::All, false)
}

/// As [`undo`], or [`dry_run`] unless it shall `write`, of what guards have left: a placement stays as it is.
pub fn of_guards(dir: &Path, only: &[String], write: bool) -> Result<Report> {
    run(dir, only, Of::Guards, write)
}

/// Journals in `dir` of this network namespace whose guard is dead: what [`undo`] would put back. What `weir place` has changed
/// stays for as long as its user wants it, and does not count. Reads journals only.
///
/// # Errors
/// If the directory or a journal may not be read, or the namespace cannot be told.
pub fn left(dir: &Path) -> Result<usize> {
    let paths = paths(dir)?;
    if paths.is_empty() {
        return Ok(0);
    }
    let here = crate::netns::current()?;
    let left =
        |journal: &Journal| journal.netns().same(&here) && (journal.is_away() || !journal.owner().alive());
    let mut count = 0;
    for path in paths.iter().filter(|path| !is_host(path)) {
        match Journal::load(path) {
            Ok(journal) => count += usize::from(left(&journal)),
            // What may not be known is not none.
            Err(e) if matches!(e.errno(), Some(libc::EACCES | libc::EPERM)) => return Err(e),
            Err(_) => {}
        }
    }
    Ok(count)
}

/// Journals in `dir` of guards of this network namespace: what lives, or has died without putting all back, will put back what it
/// has found.
///
/// # Errors
/// If the directory cannot be read, or the namespace cannot be told.
pub fn guards<K: Kernel>(kernel: &mut K, dir: &Path) -> Result<Vec<Journal>> {
    let here = kernel.here()?;
    let paths = kernel.journals(dir)?;
    let mut guards = Vec::new();
    for path in paths.iter().filter(|path| !is_host(path)) {
        let journal = Journal::load_from(kernel, path).ok();
        guards.extend(journal.filter(|j| !j.is_away() && j.netns().same(&here)));
    }
    Ok(guards)
}

/// Whose journals are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Those of guards, and the host's.
    All,
    /// Those of guards alone. The host's is not even read.
    Guards,
}

fn run(dir: &Path, only: &[String], of: Of, write: bool) -> Result<Report> {
    if paths(dir)?.is_empty() {
        return Ok(Report::default());
    }
    undo_with(&mut Access::for_current_netns()?, dir, only, of, write)
}

/// As [`undo`], or [`dry_run`] unless it shall `write`, over any kernel.
pub fn undo_with<K: Kernel>(
    kernel: &mut K,
    dir: &Path,
    only: &[String],
    whose: Of,
    write: bool,
) -> Result<Report> {
    let mut report = Report::default();
    // A keeper may be at it: then it is done when the lock is free.
    let _lock = if write { kernel.lock(dir)? } else { None };
    let here = kernel.here()?;
    let mut journals = kernel.journals(dir)?;
    journals.retain(|path| whose == Of::All || !is_host(path));
    // A guard begins after the host was placed, so what it has changed lies over that.
    journals.sort_by_key(|path| is_host(path));
    let mut guards = Vec::new();
    for path in journals {
        let journal = match Journal::load_from(kernel, &path) {
            Ok(j) => j,
            Err(e) if e.errno() == Some(libc::ENOENT) => continue,
            Err(e) => {
                let file = path.display().to_string();
                report.journals.push(Undone::Unreadable { file, why: e.to_string() });
                continue;
            }
        };
        let (interface, pid) = (journal.name().to_string(), journal.owner().pid);
        let guarded = !journal.of_host() && !journal.is_away() && journal.netns().same(&here);
        if guarded && kernel.alive(journal.owner()) {
            guards.push(journal);
            if only.is_empty() || only.contains(&interface) {
                report.journals.push(Undone::Guarded { interface, pid });
            }
            continue;
        }
        if !only.is_empty() && !only.contains(&interface) {
            guards.extend(Some(journal).filter(|_| guarded));
            continue;
        }
        // What an interface has taken along is nobody's any more.
        let (alive, of) = (!journal.is_away() && kernel.alive(journal.owner()), journal.netns());
        let lost = of.inode == here.inode && !of.same(&here);
        // The interface has come here from its namespace, as those of hardware do when that ends.
        let come = !alive && !of.same(&here) && journal.is_seen(kernel);
        let state = if journal.is_away() || come {
            restored(kernel, &journal, &[], write, &mut report)?
        } else if lost && journal.of_host() && !alive {
            // Its interfaces are gone with their namespace; interrupts and threads are the machine's.
            let outcomes = journal.restore_those(kernel, write, Setting::of_host);
            close(kernel, &journal, write, &outcomes)?;
            Undone::Restored { interface, pid, outcomes }
        } else if lost {
            // This namespace has got the inode of a dead one.
            if write {
                journal.remove_from(kernel)?;
            }
            Undone::NamespaceGone { interface, netns: of.inode }
        } else if !of.same(&here) {
            let netns_name = named_netns(of.inode);
            Undone::Elsewhere { interface, pid, alive, netns: of.inode, netns_name }
        } else if alive {
            Undone::Guarded { interface, pid }
        } else {
            let state = restored(kernel, &journal, &guards, write, &mut report)?;
            let open =
                matches!(&state, Undone::Restored { outcomes, .. } if !outcomes.iter().all(Outcome::settled));
            guards.extend(Some(journal).filter(|_| guarded && open));
            state
        };
        report.journals.push(state);
    }
    Ok(report)
}

fn restored<K: Kernel>(
    kernel: &mut K,
    journal: &Journal,
    guards: &[Journal],
    write: bool,
    report: &mut Report,
) -> Result<Undone> {
    let outcomes = journal.restore_beside(kernel, guards, write);
    if outcomes.iter().any(|o| matches!(o.fate, Fate::Restored { .. })) {
        let flush = journal.longest_flush().min(Duration::from_secs(3600));
        report.settles_in_ms = report.settles_in_ms.max(flush.as_nanos().div_ceil(1_000_000) as u64);
    }
    close(kernel, journal, write, &outcomes)?;
    Ok(Undone::Restored { interface: journal.name().to_string(), pid: journal.owner().pid, outcomes })
}

/// A journal is of no more use once all of its settings are settled.
fn close<K: Kernel>(kernel: &mut K, journal: &Journal, write: bool, outcomes: &[Outcome]) -> Result<()> {
    if write && outcomes.iter().all(Outcome::settled) {
        journal.remove_from(kernel)?;
    }
    Ok(())
}

/// Name under `/run/netns` of the namespace with this inode.
fn named_netns(inode: u64) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    std::fs::read_dir("/run/netns").ok()?.flatten().take(4096).find_map(|e| {
        let meta = std::fs::metadata(e.path()).ok()?;
        (meta.ino() == inode).then(|| e.file_name().to_string_lossy().into_owned())
    })
}
