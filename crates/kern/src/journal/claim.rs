//! Who may have the journal of an interface or of the host, and what it takes over from the one before.

use super::{
    ABSENCES, Document, Entry, Fate, HOST, Journal, Outcome, SCHEMA, away_name, file_name, is_host, outcomes,
};
use crate::{
    error::{Error, Result},
    kernel::Kernel,
};
use std::path::Path;

/// Why a journal cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// A live guard has this interface.
    #[error("{name}: already guarded by weir, pid {pid}; stop that one first")]
    Guarded {
        /// The interface.
        name: String,
        /// The other guard.
        pid: u32,
    },
    /// Another `weir place` is at it.
    #[error("weir place runs already, pid {pid}; stop that one first")]
    Placing {
        /// The other one.
        pid: u32,
    },
    /// The file system refused, or the file there is no journal: then look at it and remove it.
    #[error(transparent)]
    Other(#[from] Error),
}

impl Journal {
    /// Claims `ifindex` of the caller's namespace for the calling process and writes its journal. What a dead
    /// guard left behind is put back first, and its outcomes are answered; what cannot be put back now (the
    /// interface is down) is carried over into the new journal, with the values from before the dead guard. The same
    /// holds for what the interface has brought along from another namespace, or from an earlier stay under another index.
    pub fn claim<K: Kernel>(
        dir: &Path,
        kernel: &mut K,
        ifindex: u32,
    ) -> std::result::Result<(Journal, Vec<Outcome>), ClaimError> {
        let name = kernel.name(ifindex)?;
        let doc = Document {
            schema: SCHEMA.into(),
            netns: kernel.here()?,
            ifindex,
            name: name.clone(),
            guard: kernel.me()?,
            device: kernel.device(ifindex)?,
            away: false,
            entries: Vec::new(),
        };
        let device = doc.device;
        let mut journal = Journal { path: dir.join(file_name(&doc)), doc };
        let _lock = kernel.lock(dir)?;
        let mut outcomes = Vec::new();
        if let Some(found) = Journal::load_if_present(kernel, &journal.path)? {
            if kernel.alive(found.owner()) {
                return Err(ClaimError::Guarded { name, pid: found.owner().pid });
            }
            let same_netns = found.netns().same(&journal.doc.netns);
            let unknown = found.doc.device.is_none() || device.is_none();
            if found.is_of(device) || (same_netns && unknown) {
                outcomes.extend(journal.inherit(kernel, &found)?);
            } else if !unknown {
                // Another interface had this index.
                found.put_aside(kernel, Fate::Gone)?;
            }
        }
        let mut taken = Vec::new();
        for path in kernel.journals(dir)? {
            if device.is_none() || path == journal.path || is_host(&path) {
                continue;
            }
            let found = match Journal::load_if_present(kernel, &path) {
                Ok(Some(found)) => found,
                // No journal that this weir knows: `weir undo` names it.
                Ok(None) | Err(Error::Invalid { .. }) => continue,
                Err(e) => return Err(e.into()),
            };
            if !found.is_of(device) {
                continue;
            }
            if !found.is_away() && kernel.alive(found.owner()) {
                return Err(ClaimError::Guarded { name, pid: found.owner().pid });
            }
            outcomes.extend(journal.inherit(kernel, &found)?);
            taken.push(found);
        }
        // Replaces the old one in one step: at no time is a changed setting without a journal.
        journal.save(kernel)?;
        for found in taken {
            // What stayed would be undone under a guard that lives.
            found.remove_from(kernel)?;
        }
        Ok((journal, outcomes))
    }

    /// Puts back what another journal has about this interface, and takes over what cannot be.
    fn inherit<K: Kernel>(&mut self, kernel: &mut K, found: &Journal) -> Result<Vec<Outcome>> {
        let walked = found.walk_at(kernel, self.doc.ifindex, true, ABSENCES);
        // What is gone may have moved with its interface meanwhile.
        let gone = walked.iter().any(|(_, outcome)| outcome.fate == Fate::Gone);
        if gone && self.doc.device.is_some() && kernel.device(self.doc.ifindex)? != self.doc.device {
            return Err(Error::Gone { what: self.doc.name.clone() });
        }
        let mut outcomes = Vec::with_capacity(walked.len());
        for (entry, outcome) in walked {
            if !outcome.settled() {
                self.doc.entries.insert(0, entry.clone());
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// The interface has left this namespace; `moved`: the kernel has said that it lives on, or does not, in another one.
    /// Puts its settings back where it is now. What cannot be put back is kept in a file of the device, which
    /// whoever guards it next takes over; the file of this journal is removed.
    ///
    /// # Errors
    /// If the file system refuses; then this journal is still there.
    pub fn let_go<K: Kernel>(&self, kernel: &mut K, moved: Option<bool>) -> Result<Vec<Outcome>> {
        if moved == Some(false) || self.doc.device.is_none() {
            self.remove_from(kernel)?;
            return Ok(Vec::new());
        }
        let _lock = kernel.lock(self.path.parent().unwrap_or(Path::new(".")))?;
        // One that moves is between two namespaces for a moment.
        self.put_aside(kernel, if moved == Some(true) { Fate::Moved } else { Fate::Gone })
    }

    fn put_aside<K: Kernel>(&self, kernel: &mut K, unseen: Fate) -> Result<Vec<Outcome>> {
        let walked = self.walk(kernel, true, ABSENCES, &unseen);
        let entries =
            walked.iter().filter(|(_, outcome)| !outcome.settled()).map(|(entry, _)| (*entry).clone());
        // They were met in reverse order.
        let entries: Vec<Entry> = entries.rev().collect();
        if !entries.is_empty() {
            let doc = Document { away: true, entries, ..self.doc.clone() };
            Journal { path: self.path.with_file_name(file_name(&doc)), doc }.save(kernel)?;
        }
        let outcomes = outcomes(walked);
        self.remove_from(kernel)?;
        Ok(outcomes)
    }

    /// Tries again to put back what an interface has taken along; `None` if somebody else has done so. The file is removed if
    /// nothing is left.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn again<K: Kernel>(kernel: &mut K, dir: &Path, device: u64) -> Result<Option<Vec<Outcome>>> {
        let _lock = kernel.lock(dir)?;
        let Some(journal) = Journal::load_if_present(kernel, &dir.join(away_name(device)))? else {
            return Ok(None);
        };
        let outcomes = journal.restore(kernel);
        if outcomes.iter().all(Outcome::settled) {
            journal.remove_from(kernel)?;
        }
        Ok(Some(outcomes))
    }

    /// Claims the host for the calling process and writes its journal, or takes over the one that an earlier `weir place`
    /// has left, with its values from before that.
    ///
    /// # Errors
    /// If another one is at it, or the file system refuses.
    pub fn claim_host<K: Kernel>(dir: &Path, kernel: &mut K) -> std::result::Result<Journal, ClaimError> {
        let doc = Document {
            schema: SCHEMA.into(),
            netns: kernel.here()?,
            ifindex: 0,
            name: HOST.into(),
            guard: kernel.me()?,
            device: None,
            away: false,
            entries: Vec::new(),
        };
        let mut journal = Journal { path: dir.join(file_name(&doc)), doc };
        let _lock = kernel.lock(dir)?;
        if let Some(found) = Journal::load_if_present(kernel, &journal.path)? {
            if kernel.alive(found.owner()) && found.owner() != journal.owner() {
                return Err(ClaimError::Placing { pid: found.owner().pid });
            }
            let same = found.netns().same(&journal.doc.netns);
            // Of a namespace that is gone the interfaces are, and interrupts and threads are not.
            journal.doc.entries =
                found.doc.entries.into_iter().filter(|e| same || e.ifindex.is_none()).collect();
        }
        journal.save(kernel)?;
        Ok(journal)
    }
}
