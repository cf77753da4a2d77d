//! Changes of settings, as a guard makes them and takes them back: old values first, and nothing is written over what somebody
//! else has written meanwhile.

use crate::{
    error::{Error, Result},
    journal::{Journal, Outcome, Planned},
    kernel::{Kernel, Swapped},
    settings::{Setting, Value},
};

/// One setting and the value that it is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What is changed.
    pub setting: Setting,
    /// Receive queue that it serves, if it is one of a queue or its NAPI.
    pub queue: Option<u32>,
    /// Value that it gets.
    pub new: Value,
    /// Value that it has until [`settle`], if that is another one.
    pub first: Option<Value>,
}

impl Change {
    /// It holds for the whole device, not for one source alone.
    pub fn of_device(&self) -> bool {
        matches!(self.setting, Setting::DevFlush { .. } | Setting::DevDefer { .. })
    }

    fn begins_with(&self) -> &Value {
        self.first.as_ref().unwrap_or(&self.new)
    }
}

/// Reads every setting anew, writes the values down in the journal, and makes the changes in order.
///
/// # Errors
/// If a setting is gone or refused, the journal cannot be written, or somebody else changes a setting at this very moment:
/// then everything is as before.
pub fn make<K: Kernel>(kernel: &mut K, journal: &mut Journal, changes: &[Change]) -> Result<()> {
    let mut found = Vec::with_capacity(changes.len());
    let mut planned = Vec::new();
    for change in changes {
        let old = kernel.read(&change.setting)?;
        planned.extend(change.first.iter().chain([&change.new]).map(|new| Planned {
            setting: change.setting,
            queue: change.queue,
            old: old.clone(),
            new: new.clone(),
        }));
        found.push(old);
    }
    journal.record(kernel, &planned)?;
    for (n, (change, old)) in changes.iter().zip(&found).enumerate() {
        let error = match kernel.swap(&change.setting, std::slice::from_ref(old), change.begins_with()) {
            Ok(Swapped::Written { .. } | Swapped::Same) => continue,
            Ok(Swapped::Left { found }) => Error::Invalid {
                what: change.setting.label().into(),
                why: format!("somebody else has just set it to {}", change.setting.show(&found)),
            },
            Err(e) => {
                // What the kernel has made of the value (a mask within a cpuset) is in no journal: nobody would know it again.
                if matches!(e, Error::ReadBack { .. })
                    && let Ok(made) = kernel.read(&change.setting)
                {
                    _ = kernel.swap(&change.setting, &[made], old);
                }
                e
            }
        };
        as_found(kernel, journal, &changes[..=n], &found);
        return Err(error);
    }
    Ok(())
}

/// Takes the first of a row of changes back. What the journal has from before weir may be older than what was found: then an
/// earlier placement stays in force, and that is put back.
fn as_found<K: Kernel>(kernel: &mut K, journal: &Journal, changes: &[Change], found: &[Value]) {
    let (mut before, mut earlier) = (Vec::new(), Vec::new());
    for (change, found) in changes.iter().zip(found) {
        match journal.known(&change.setting, change.queue) {
            Some((old, _)) if old != found => earlier.push((change, found)),
            _ => before.push(change.clone()),
        }
    }
    for (change, found) in earlier.into_iter().rev() {
        let ours = [change.begins_with().clone(), change.new.clone()];
        // One that is gone has nothing to be put back, and one that is refused is in the journal.
        _ = kernel.swap(&change.setting, &ours, found);
    }
    put_back(kernel, journal, &before);
}

/// Gives each setting that began with another value its own one, unless somebody else has changed it.
///
/// # Errors
/// If a setting is gone or refused; the others are settled all the same.
pub fn settle<K: Kernel>(kernel: &mut K, changes: &[Change]) -> Result<()> {
    let mut result = Ok(());
    for change in changes {
        if let Some(first) = &change.first
            && let Err(e) = kernel.swap(&change.setting, std::slice::from_ref(first), &change.new)
        {
            result = Err(e);
        }
    }
    result
}

/// Puts the values back that the journal has for these changes, where one of weir's is found: what somebody else has written
/// meanwhile is left, and said so. Does not wait for NAPIs that are away.
pub fn put_back<K: Kernel>(kernel: &mut K, journal: &Journal, changes: &[Change]) -> Vec<Outcome> {
    journal.restore_those(kernel, true, |setting| changes.iter().any(|c| c.setting == *setting))
}
