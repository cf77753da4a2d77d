//! How the settings of a journal are put back one by one: here, or where their interface is now.

use super::{ABSENCES, Entry, Fate, HOST, Journal, Kind, Outcome, Whose, narrowed, outcomes, tasks};
use crate::{
    error::{Error, Result},
    kernel::{Elsewhere, Kernel},
    settings::{Presence, Setting, Value},
};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// How often an interface is looked for in all namespaces until it counts as deleted.
const LOOKS: u32 = 2;
/// How often its settings are gone through at most if it moves meanwhile.
const WALKS: u32 = 4;

impl Journal {
    /// What [`Journal::restore`] does, or [`Journal::dry_run`] unless it shall `write`, to the interface that has index `at`
    /// in the namespace of `kernel`; in the order of restoring.
    pub fn restore_at<K: Kernel>(&self, kernel: &mut K, at: u32, write: bool) -> Vec<Outcome> {
        outcomes(self.walk_at(kernel, at, write, if write { ABSENCES } else { 0 }))
    }

    /// Where the interface is: its index here.
    fn place<K: Kernel>(&self, kernel: &mut K) -> Option<u32> {
        let Some(device) = self.doc.device else { return Some(self.doc.ifindex) };
        match kernel.device(self.doc.ifindex) {
            Ok(Some(found)) if found == device => Some(self.doc.ifindex),
            // One whose identity cannot be told is taken for it.
            Err(_) | Ok(None) if kernel.presence(self.doc.ifindex) != Presence::Absent => {
                Some(self.doc.ifindex)
            }
            _ => kernel.index_of(device),
        }
    }

    /// `unseen` is the fate of an interface that is in no namespace at all.
    pub(super) fn walk<K: Kernel>(
        &self,
        kernel: &mut K,
        write: bool,
        patience: u32,
        unseen: &Fate,
    ) -> Vec<(&Entry, Outcome)> {
        // On its way from one namespace to another it is in neither for a moment.
        let (mut looks, mut walks) = (if patience > 0 { LOOKS } else { 1 }, WALKS);
        let mut all: Vec<(&Entry, Outcome)> = Vec::new();
        let mut last = None;
        let fate = loop {
            let place = self.place(kernel);
            let walked = match place {
                Some(at) => self.walk_at(kernel, at, write, if all.is_empty() { patience } else { 0 }),
                None => match kernel.elsewhere(self, write) {
                    Elsewhere::Found(outcomes) => self.in_order().into_iter().zip(outcomes).collect(),
                    Elsewhere::Hidden => break &Fate::Moved,
                    Elsewhere::Nowhere if looks <= 1 => break unseen,
                    Elsewhere::Nowhere => {
                        looks -= 1;
                        kernel.wait();
                        continue;
                    }
                },
            };
            let open = |o: &Outcome| !o.settled() || o.fate == Fate::Gone;
            match all.is_empty() {
                true => all = walked,
                false => all.iter_mut().zip(walked).filter(|(a, _)| open(&a.1)).for_each(|(a, b)| *a = b),
            }
            // What is gone may have moved with its interface meanwhile, and be back: so all of it is asked for twice.
            let gone = all.iter().filter(|(_, o)| o.fate == Fate::Gone).count();
            if self.doc.device.is_none() || gone == 0 || last == Some((place, gone)) {
                return all;
            }
            last = Some((place, gone));
            walks -= 1;
            if walks == 0 {
                break &Fate::Moved;
            }
        };
        if all.is_empty() {
            let told =
                |entry: &Entry| Some(self.told(entry, entry.setting(self.doc.ifindex)?, None, fate.clone()));
            return self.in_order().into_iter().filter_map(|entry| Some((entry, told(entry)?))).collect();
        }
        let open = all.iter_mut().filter(|(_, o)| !o.settled() || o.fate == Fate::Gone);
        open.for_each(|(_, outcome)| outcome.fate = fate.clone());
        all
    }

    pub(super) fn walk_at<K: Kernel>(
        &self,
        kernel: &mut K,
        at: u32,
        write: bool,
        mut patience: u32,
    ) -> Vec<(&Entry, Outcome)> {
        // NAPIs that were seen disabled.
        let mut disabled = BTreeSet::new();
        let mut settle = |entry| loop {
            let mut outcome = self.settle(kernel, entry, at, write)?;
            match (&outcome.fate, outcome.napi_id) {
                (Fate::Waiting, Some(id)) => _ = disabled.insert(id),
                // It has left the list since: gone for as long as anybody waits it is not, and may come back.
                (Fate::Gone, Some(id)) if disabled.contains(&id) => outcome.fate = Fate::Waiting,
                _ => {}
            }
            let absent = matches!(outcome.fate, Fate::Gone | Fate::Waiting) && outcome.napi_id.is_some();
            if !absent {
                return Some((entry, outcome));
            }
            match kernel.presence(entry.ifindex.unwrap_or(at)) {
                // A queue that was taken away is not waited for: it comes back when somebody wants it.
                Presence::Up if patience > 0 && !withdrawn(kernel, entry, at) => {}
                // Set down between two calls, it looked like a NAPI that is gone.
                Presence::Down => {
                    outcome.fate = Fate::Waiting;
                    return Some((entry, outcome));
                }
                _ => return Some((entry, outcome)),
            }
            patience -= 1;
            kernel.wait();
        };
        let entries = self.in_order();
        let mut settled: Vec<_> = entries.iter().filter_map(|entry| settle(*entry)).collect();
        settled.extend(self.heirs(kernel, &entries, write));
        settled
    }

    /// Threads and children that have begun since with the CPUs of a thread among `entries`: they have inherited weir's value and
    /// get the one from before it. Nothing is said of the others.
    pub(super) fn heirs<'a, K: Kernel>(
        &'a self,
        kernel: &mut K,
        entries: &[&'a Entry],
        write: bool,
    ) -> Vec<(&'a Entry, Outcome)> {
        let known = tasks(&self.doc.entries);
        let chosen: Vec<(u32, u64)> = entries.iter().filter_map(|e| e.id.zip(e.start)).collect();
        if chosen.is_empty() {
            return Vec::new();
        }
        let mut settled = Vec::new();
        for heir in kernel.heirs(&chosen) {
            if known.contains(&(heir.tid, heir.start)) {
                continue;
            }
            let Ok(found) = kernel.read(&heir.setting()) else { continue };
            let usable = kernel.usable(&heir.setting());
            let gave = entries.iter().find(|e| e.gave(&heir, &found, usable.as_ref()));
            let Some(&gave) = gave else { continue };
            let own = Entry { id: Some(heir.tid), start: Some(heir.start), ..gave.clone() };
            let outcome = self.settle(kernel, &own, self.doc.ifindex, write);
            let told =
                |o: &Outcome| !matches!(o.fate, Fate::Verified { .. } | Fate::Left { .. } | Fate::Gone);
            settled.extend(outcome.filter(told).map(|outcome| (gave, outcome)));
        }
        settled
    }

    /// Reverse order of recording, but interrupts are let in again before the timer that stands in for them is
    /// taken away.
    pub(super) fn in_order(&self) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.doc.entries.iter().rev().collect();
        entries.sort_by_key(|e| matches!(e.set, Kind::NapiFlush | Kind::DevFlush));
        entries
    }

    /// Where an entry's setting is, with its value. From 6.13 on a NAPI that is disabled and enabled again keeps its
    /// values, but its id only if its driver has the kernel keep that too (`napi_hash_add` in net/core/dev.c): then it is
    /// known by its queue and by weir's value in it.
    fn find<K: Kernel>(&self, kernel: &mut K, entry: &Entry, setting: Setting) -> Result<(Setting, Value)> {
        let found = kernel.read(&setting).map(|value| (setting, value));
        let (Err(e), Some(id), Some(queue)) = (&found, entry.id, entry.queue) else { return found };
        if !e.is_gone() || setting.napi_id().is_none() {
            return found;
        }
        let Some(now) = kernel.napi_of_queue(setting.ifindex(), queue).filter(|now| *now != id) else {
            return found;
        };
        let there = setting.of_napi(now);
        match kernel.read(&there) {
            Ok(value) if entry.ours.contains(&value) => Ok((there, value)),
            // It may have weir's value: not known to be gone.
            Err(e) if !e.is_gone() => Err(e),
            _ => found,
        }
    }

    pub(super) fn settle<K: Kernel>(
        &self,
        kernel: &mut K,
        entry: &Entry,
        at: u32,
        write: bool,
    ) -> Option<Outcome> {
        let setting = entry.setting(at)?;
        let show = |v: &Value| setting.show(v);
        let ifindex = setting.ifindex();
        let failed = |kernel: &mut K, e: Error| match (e.is_gone(), setting.napi_id()) {
            // In this order: a NAPI that comes back with its queue meanwhile is listed.
            (true, Some(id))
                if kernel.presence(ifindex) == Presence::Down
                    || withdrawn(kernel, entry, at)
                    || kernel.lists(ifindex, id) =>
            {
                Fate::Waiting
            }
            (true, _) => Fate::Gone,
            (false, _) => Fate::Failed { why: e.to_string() },
        };
        let (setting, found) = match self.find(kernel, entry, setting) {
            Ok((there, value)) => (there, Ok(value)),
            Err(e) => (setting, Err(e)),
        };
        let fate = match found {
            Err(e) => failed(kernel, e),
            // From here on as [`Kernel::swap`], with the value that has just been read.
            Ok(found) => match entry.whose(kernel, &setting, &found) {
                Whose::Before => Fate::Verified { value: show(&found) },
                // The kernel drops what LRO has merged and the host sends on, and has switched it off for good when that began.
                Whose::Ours if matches!(setting, Setting::Lro { .. }) && kernel.forwards(ifindex) => {
                    Fate::Left { found: show(&found), old: show(&entry.old) }
                }
                Whose::Others => Fate::Left { found: show(&found), old: show(&entry.old) },
                Whose::Ours => match if write { kernel.write(&setting, &entry.old) } else { Ok(()) } {
                    Ok(()) => Fate::Restored { from: show(&found), to: show(&entry.old) },
                    Err(e) => match made_of(kernel, &setting, &entry.old, &e) {
                        Some(made) => Fate::Restored { from: show(&found), to: show(&made) },
                        None => failed(kernel, e),
                    },
                },
            },
        };
        match fate {
            Fate::Verified { .. } => entry.back.store(true, Relaxed),
            Fate::Restored { .. } => entry.back.store(write, Relaxed),
            _ => {}
        }
        Some(self.told(entry, setting, kernel.name(ifindex).ok(), fate))
    }

    pub(super) fn told(&self, entry: &Entry, setting: Setting, name: Option<String>, fate: Fate) -> Outcome {
        // The journal of a host has settings of several interfaces.
        let name = name.unwrap_or_else(|| match self.doc.name == HOST {
            true => format!("interface {}", setting.ifindex()),
            false => self.doc.name.clone(),
        });
        let target = match (setting, entry.queue) {
            (Setting::IrqCpus { irq }, _) => format!("irq {irq}"),
            (Setting::TaskCpus { tid, .. }, _) => format!("task {tid}"),
            (Setting::RfsTable, _) => "host".into(),
            (Setting::XpsCpus { queue, .. }, _) => format!("{name}/tx{queue}"),
            (Setting::RpsCpus { queue, .. } | Setting::RfsEntries { queue, .. }, _) | (_, Some(queue)) => {
                format!("{name}/{queue}")
            }
            _ => name,
        };
        Outcome { target, setting: setting.label(), napi_id: setting.napi_id(), fate }
    }
}

/// It is a setting of the NAPI of a queue that its interface does not have now, as after `ethtool -L`. The kernel keeps its values
/// for the queue (`napi_config`, 6.13) where the driver lets it, and the NAPI comes back with them; whether it does is not told.
/// Kernels without such settings have no entry of a NAPI. One that had its old value when it went comes back with that.
fn withdrawn<K: Kernel>(kernel: &mut K, entry: &Entry, at: u32) -> bool {
    let of_napi =
        entry.setting(at).filter(|setting| setting.napi_id().is_some() && !entry.back.load(Relaxed));
    let Some((setting, queue)) = of_napi.zip(entry.queue) else { return false };
    kernel.queues(setting.ifindex()).is_some_and(|present| queue >= present)
}

/// What the kernel has made of the mask `old` that was written, if it has left out no more than the CPUs that are offline or outside of
/// the thread's cpuset: there is no better value now.
fn made_of<K: Kernel>(kernel: &mut K, setting: &Setting, old: &Value, error: &Error) -> Option<Value> {
    let (Error::ReadBack { .. }, Some(usable)) = (error, kernel.usable(setting)) else { return None };
    kernel.read(setting).ok().filter(|made| narrowed(setting, old, made, &usable))
}
