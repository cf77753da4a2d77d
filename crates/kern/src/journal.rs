//! The journal: what weir may change on one interface, written down before the first change, so that whoever
//! is left (the guard, its keeper, `weir undo`) can put it back.
//!
//! One file `DIR/NETNS_INODE-IFINDEX.json` per guarded interface, root only, replaced atomically. It holds
//! values and names of known settings, never a path. Its presence with a live guard is also the claim on the
//! interface: a second guard is refused.
//!
//! An interface that is moved to another network namespace takes its settings along. What cannot be put back there is kept in
//! `DIR/DEVICE-away.json`, by what the device is known by in every namespace, until it is back.
//!
//! Beside those stands one for the host, `DIR/NETNS_INODE-0.json`: what `weir place` has changed, on any interface and on
//! none. The process that made it has usually ended; its settings stay until `weir undo`.
//!
//! What its version promises stands in `format`.

use crate::{
    cpus::CpuSet,
    error::{Error, Result},
    kernel::{Heir, Kernel},
    netns::{self, NetnsId},
    proc, rundir,
    settings::{Setting, Value},
};
pub use rundir::{Lock, MAX_BYTES, MAX_JOURNALS, journals as paths};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

mod claim;
mod entry;
mod format;
#[cfg(fuzzing)]
pub mod fuzz;
mod walk;

pub use claim::ClaimError;
use entry::{Entry, Kind, before, narrowed, tasks};
use format::SCHEMA;

/// Where journals are kept.
pub const DIR: &str = "/run/weir";
/// Most settings in one journal.
pub const MAX_ENTRIES: usize = 1024;
/// Most values of weir that are remembered for one setting (the newest).
pub const MAX_OURS: usize = 4;
/// Drivers take a NAPI away and bring it back with its settings when an XDP program is detached, as it is when a guard
/// dies: how often one that is absent is looked for in one last restore.
const ABSENCES: u32 = 10;

/// What a journal of the host is called where others have their interface's name.
pub const HOST: &str = "host";

/// A process, safe against reuse of its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub start: u64,
}

impl Owner {
    /// The calling process.
    pub fn me() -> Result<Self> {
        let pid = std::process::id();
        match proc::start_time(pid) {
            Some(start) => Ok(Owner { pid, start }),
            None => Err(Error::Invalid { what: format!("/proc/{pid}/stat"), why: "cannot be read".into() }),
        }
    }

    /// True while this very process runs; a zombie does not.
    pub fn alive(&self) -> bool {
        proc::start_time(self.pid) == Some(self.start)
    }
}

/// A change that weir is about to make, or may make at any time from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What is changed.
    pub setting: Setting,
    /// Receive queue it serves, if known: by it a NAPI is known again that comes back under another id.
    pub queue: Option<u32>,
    /// Value found, to be put back unless it is one of weir's.
    pub old: Value,
    /// Value that weir writes.
    pub new: Value,
}

/// What became of one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// Put back.
    Restored {
        /// Weir's value.
        from: String,
        /// The value it has again.
        to: String,
    },
    /// It had the old value already.
    Verified {
        /// That value.
        value: String,
    },
    /// It has neither the old value nor weir's: changed by someone else, so left as it is.
    Left {
        /// The value found.
        found: String,
        /// The value from before weir.
        old: String,
    },
    /// Its interface, NAPI or queue is gone, and the value with it.
    Gone,
    /// Its interface is down, its NAPI disabled, or its queue taken away, so it cannot be seen; it may come back with weir's value.
    Waiting,
    /// Its interface is not here and may live in another network namespace, where it cannot be reached; it may come back
    /// with weir's value.
    Moved,
    /// A guard has found it with this value of weir, and will put that back when it ends; or whoever undoes what a dead one has left.
    Guarded {
        /// That guard.
        pid: u32,
    },
    /// It could not be read or written.
    Failed {
        /// Why.
        why: String,
    },
}

/// Whose value a setting has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The one from before weir.
    Before,
    /// One of weir's.
    Ours,
    /// Somebody else's.
    Others,
}

/// One setting and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// `eth0/1`, or `eth0` if it is one of the device.
    pub target: String,
    /// The kernel's name of the setting.
    pub setting: &'static str,
    /// NAPI id, if it is one of a NAPI.
    pub napi_id: Option<u32>,
    /// What became of it.
    pub fate: Fate,
}

impl Outcome {
    /// True if nothing of weir is left in this setting.
    pub fn settled(&self) -> bool {
        !matches!(self.fate, Fate::Waiting | Fate::Moved | Fate::Guarded { .. } | Fate::Failed { .. })
    }
}

/// On disk. The interface index stands once, at the top.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    netns: NetnsId,
    ifindex: u32,
    name: String,
    guard: Owner,
    /// As [`Kernel::device`] has it: what an interface is known by that has been moved to another namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<u64>,
    /// The interface has left its namespace with these settings; nobody guards it by this journal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    away: bool,
    entries: Vec<Entry>,
}

/// The journal of one interface.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    doc: Document,
}

impl Journal {
    /// It is the host's, not an interface's.
    pub fn of_host(&self) -> bool {
        self.doc.ifindex == 0
    }

    /// Reads and checks a journal.
    pub fn load(path: &Path) -> Result<Journal> {
        Journal::check(path, &rundir::load(path)?)
    }

    /// As [`Journal::load`], of the file as `kernel` has it.
    pub fn load_from<K: Kernel>(kernel: &mut K, path: &Path) -> Result<Journal> {
        let bytes = kernel.load(path)?;
        Journal::check(path, &bytes)
    }

    fn check(path: &Path, bytes: &[u8]) -> Result<Journal> {
        let bad = |why: String| Error::Invalid { what: path.display().to_string(), why };
        let doc = parse(bytes).map_err(bad)?;
        if path.file_name() != Some(file_name(&doc).as_ref()) {
            return Err(bad("its name does not fit its contents".into()));
        }
        Ok(Journal { path: path.into(), doc })
    }

    fn load_if_present<K: Kernel>(kernel: &mut K, path: &Path) -> Result<Option<Journal>> {
        match Journal::load_from(kernel, path) {
            Ok(j) => Ok(Some(j)),
            Err(e) if e.errno() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// What is known of a setting, also as that of the NAPI that the queue had before: the value from before weir, and
    /// those of weir.
    pub fn known(&self, setting: &Setting, queue: Option<u32>) -> Option<(&Value, &[Value])> {
        let same = self.doc.entries.iter().find(|e| e.is(setting));
        let entry = same.or_else(|| self.doc.entries.iter().rev().find(|e| e.concerns(setting, queue)))?;
        Some((&entry.old, &entry.ours))
    }

    /// Whose value `found` is that a setting has; `None` if the journal does not know the setting.
    pub fn whose<K: Kernel>(&self, kernel: &mut K, setting: &Setting, found: &Value) -> Option<Whose> {
        let entry = self.doc.entries.iter().find(|e| e.is(setting))?;
        Some(entry.whose(kernel, setting, found))
    }

    /// The guard of this journal will put one of these values back when it ends.
    fn returns(&self, setting: &Setting, values: &[Value]) -> bool {
        self.doc.ifindex == setting.ifindex()
            && self.doc.entries.iter().any(|e| e.is(setting) && values.contains(&e.old))
    }

    /// The value from before weir of a setting that has the value `found` now. One of weir's values that is found in
    /// force is not it, also not on a NAPI that serves the `queue` under a new id and came with the values of the old.
    pub fn before(&self, setting: &Setting, queue: Option<u32>, found: &Value) -> Value {
        before(&self.doc.entries, setting, queue, found)
    }

    /// The CPUs from before weir of threads (id, start time) that have these now; those of a thread that has inherited weir's are
    /// what its parent had.
    pub fn cpus_before<K: Kernel>(&self, kernel: &mut K, found: &[(u32, u64, CpuSet)]) -> Vec<CpuSet> {
        let mut heirs = None;
        let mut one = |(tid, start, cpus): &(u32, u64, CpuSet)| {
            let (setting, now) = (Setting::TaskCpus { tid: *tid, start: *start }, Value::Cpus(cpus.clone()));
            match original(kernel, &self.doc.entries, &mut heirs, setting, None, &now) {
                Value::Cpus(before) => before,
                _ => cpus.clone(),
            }
        };
        found.iter().map(&mut one).collect()
    }

    /// Writes down changes before they are made. What was weir's value for a setting, or for that of the NAPI that the
    /// queue had before, stays weir's; `old` is taken as [`Journal::before`] has it. Nothing may be changed unless this
    /// succeeds.
    pub fn record<K: Kernel>(&mut self, kernel: &mut K, planned: &[Planned]) -> Result<()> {
        let mut entries = self.doc.entries.clone();
        let mut heirs = None;
        for p in planned {
            let refused = |why: &str| {
                let what = format!("{}: {}", self.doc.name, p.setting.label());
                Err(Error::Invalid { what, why: why.into() })
            };
            if p.setting.ifindex() != self.doc.ifindex && !self.of_host() {
                return refused("belongs to another interface than this journal");
            }
            if !p.setting.accepts(&p.old) || !p.setting.accepts(&p.new) {
                return refused("cannot have this value");
            }
            let old = original(kernel, &entries, &mut heirs, p.setting, p.queue, &p.old);
            let (set, id) = Entry::kind(&p.setting);
            let concerned = |e: &Entry| e.concerns(&p.setting, p.queue);
            let known = entries.iter().position(|e| e.is(&p.setting));
            let place = known.or_else(|| entries.iter().position(concerned)).unwrap_or(entries.len());
            let mut ours: Vec<Value> =
                entries.iter().filter(|e| concerned(e)).flat_map(|e| e.ours.clone()).collect();
            ours.retain(|v| *v != p.new);
            ours.push(p.new.clone());
            let surplus = ours.len().saturating_sub(MAX_OURS);
            ours.drain(..surplus);
            // A setting of the device keeps the first queue that it was written down for.
            let of_device = known.filter(|_| p.setting.napi_id().is_none());
            let queue = of_device.and_then(|i| entries[i].queue).or(p.queue);
            let ifindex = Some(p.setting.ifindex()).filter(|index| self.of_host() && *index != 0);
            let start = match p.setting {
                Setting::TaskCpus { start, .. } => Some(start),
                _ => None,
            };
            let known_since = known.and_then(|i| entries[i].since);
            let since = start.map(|_| known_since.unwrap_or_else(|| kernel.ticks()));
            let entry = Entry { set, id, ifindex, start, queue, since, old, ours, back: Default::default() };
            match entries.get_mut(place) {
                Some(e) => *e = entry,
                None => entries.push(entry),
            }
            // A queue has one NAPI: what was to be remembered of an earlier one is remembered of this.
            let mut index = 0..;
            entries.retain(|e| index.next() == Some(place) || !concerned(e));
        }
        if entries.len() > MAX_ENTRIES {
            return Err(Error::Invalid {
                what: self.doc.name.clone(),
                why: format!("more than {MAX_ENTRIES} settings to change"),
            });
        }
        if serde_json::to_string(&entries).ok() == serde_json::to_string(&self.doc.entries).ok() {
            // What is in no file differs: these may have weir's values from here on.
            self.doc.entries = entries;
            return Ok(());
        }
        let before = std::mem::replace(&mut self.doc.entries, entries);
        self.save(kernel).inspect_err(|_| self.doc.entries = before)
    }

    /// Drops what is of threads, interrupts and interfaces that are gone, so that a journal of the host that is kept for long
    /// does not fill up; how many. A restore would find nothing there either.
    ///
    /// # Errors
    /// If the journal cannot be written; then it is as before.
    pub fn forget_gone<K: Kernel>(&mut self, kernel: &mut K) -> Result<usize> {
        let index = self.doc.ifindex;
        let mut entries = self.doc.entries.clone();
        entries.retain(|e| {
            let gone = |setting: Setting| kernel.read(&setting).is_err_and(|e| e.is_gone());
            !e.setting(index).filter(|s| s.napi_id().is_none()).is_some_and(gone)
        });
        let dropped = self.doc.entries.len() - entries.len();
        if dropped > 0 {
            let before = std::mem::replace(&mut self.doc.entries, entries);
            self.save(kernel).inspect_err(|_| self.doc.entries = before)?;
        }
        Ok(dropped)
    }

    /// Puts back every setting that still has a value of weir, newest first, also one that a NAPI has taken along to a
    /// new id, or the interface to another index or namespace. Waits up to 50 ms for NAPIs that are absent from an interface
    /// that is up. Does not touch the file.
    pub fn restore<K: Kernel>(&self, kernel: &mut K) -> Vec<Outcome> {
        outcomes(self.walk(kernel, true, ABSENCES, &Fate::Gone))
    }

    /// As [`Journal::restore`], without waiting: for a guard that keeps the journal, and so does not need to know now.
    pub fn restore_present<K: Kernel>(&self, kernel: &mut K) -> Vec<Outcome> {
        outcomes(self.walk(kernel, true, 0, &Fate::Gone))
    }

    /// As [`Journal::restore_present`], for the settings that `which` names.
    /// Unless it shall `write` it only tells what would be.
    pub fn restore_those<K: Kernel>(
        &self,
        kernel: &mut K,
        write: bool,
        which: impl Fn(&Setting) -> bool,
    ) -> Vec<Outcome> {
        let chosen = |e: &&Entry| e.setting(self.doc.ifindex).is_some_and(|s| which(&s));
        let entries: Vec<&Entry> = self.in_order().into_iter().filter(chosen).collect();
        let settle = |entry: &&Entry| self.settle(kernel, entry, self.doc.ifindex, write);
        let mut settled: Vec<Outcome> = entries.iter().filter_map(settle).collect();
        settled.extend(outcomes(self.heirs(kernel, &entries, write)));
        settled
    }

    /// As [`Journal::restore`], or [`Journal::dry_run`] unless it shall `write`, beside the journals of `guards`. What one of them has
    /// found with a value of this journal waits for it: it would put that back over whatever is here by then.
    pub fn restore_beside<K: Kernel>(&self, kernel: &mut K, guards: &[Journal], write: bool) -> Vec<Outcome> {
        let guard = |entry: &Entry| {
            let setting = entry.setting(self.doc.ifindex)?;
            guards.iter().find(|guard| guard.returns(&setting, &entry.ours)).map(|guard| (setting, guard))
        };
        let free = self.doc.entries.iter().filter(|entry| guard(entry).is_none()).cloned().collect();
        let rest = Journal { path: self.path.clone(), doc: Document { entries: free, ..self.doc.clone() } };
        let patience = if write { ABSENCES } else { 0 };
        let mut all = outcomes(rest.walk(kernel, write, patience, &Fate::Gone));
        for (entry, (setting, guard)) in self.in_order().into_iter().filter_map(|e| Some((e, guard(e)?))) {
            let name = kernel.name(setting.ifindex()).ok();
            all.push(self.told(entry, setting, name, Fate::Guarded { pid: guard.owner().pid }));
        }
        all
    }

    /// What [`Journal::restore`] would do; changes nothing. `Restored` then means "would be".
    pub fn dry_run<K: Kernel>(&self, kernel: &mut K) -> Vec<Outcome> {
        outcomes(self.walk(kernel, false, 0, &Fate::Gone))
    }

    /// True if one of its settings is written by trying again and again, as [`Setting::spins`] says.
    pub fn spins(&self) -> bool {
        self.doc.entries.iter().filter_map(|e| e.setting(self.doc.ifindex)).any(|s| s.spins())
    }

    /// Removes the file: nothing of weir is left on the interface.
    pub fn remove(&self) -> Result<()> {
        rundir::remove(&self.path)
    }

    /// As [`Journal::remove`], of the file as `kernel` has it.
    pub fn remove_from<K: Kernel>(&self, kernel: &mut K) -> Result<()> {
        kernel.remove(&self.path)
    }

    /// Where it is kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The guard that made it.
    pub fn owner(&self) -> Owner {
        self.doc.guard
    }

    /// Interface index; 0 if it is the host's.
    pub fn ifindex(&self) -> u32 {
        self.doc.ifindex
    }

    /// What the interface is known by in every namespace, if that could be told.
    pub fn device(&self) -> Option<u64> {
        self.doc.device
    }

    /// It is about this device.
    pub fn is_of(&self, device: Option<u64>) -> bool {
        device.is_some() && self.doc.device == device
    }

    /// Its interface has left its namespace, and nobody guards it by this journal.
    pub fn is_away(&self) -> bool {
        self.doc.away
    }

    /// Its interface is in the namespace of `kernel`, under whatever index.
    pub fn is_seen<K: Kernel>(&self, kernel: &mut K) -> bool {
        self.doc.device.is_some_and(|device| kernel.index_of(device).is_some())
    }

    /// Interface name when the journal was made.
    pub fn name(&self) -> &str {
        &self.doc.name
    }

    /// The namespace it belongs to.
    pub fn netns(&self) -> NetnsId {
        self.doc.netns
    }

    /// True if it belongs to the caller's namespace.
    pub fn is_here(&self) -> bool {
        netns::current().is_ok_and(|n| n.same(&self.doc.netns))
    }

    /// Number of settings in it.
    pub fn len(&self) -> usize {
        self.doc.entries.len()
    }

    /// True if it holds no setting.
    pub fn is_empty(&self) -> bool {
        self.doc.entries.is_empty()
    }

    /// Longest flush timer that weir has set: how long a queue may stay silent after its settings were put
    /// back without a turn.
    pub fn longest_flush(&self) -> Duration {
        let flush = |e: &&Entry| matches!(e.set, Kind::NapiFlush | Kind::DevFlush);
        let values = self.doc.entries.iter().filter(flush).flat_map(|e| &e.ours);
        let ns = values.map(|v| if let Value::Number(n) = v { *n } else { 0 }).max().unwrap_or(0);
        Duration::from_nanos(ns)
    }

    fn save<K: Kernel>(&self, kernel: &mut K) -> Result<()> {
        let mut bytes = serde_json::to_vec(&self.doc)
            .map_err(|e| Error::Invalid { what: self.path.display().to_string(), why: e.to_string() })?;
        bytes.push(b'\n');
        if bytes.len() > MAX_BYTES {
            return Err(Error::Invalid {
                what: self.doc.name.clone(),
                why: format!("too many settings to change: the journal would exceed {MAX_BYTES} bytes"),
            });
        }
        kernel.save(&self.path, &bytes)
    }
}

fn outcomes(walked: Vec<(&Entry, Outcome)>) -> Vec<Outcome> {
    walked.into_iter().map(|(_, outcome)| outcome).collect()
}

fn file_name(doc: &Document) -> String {
    match doc.device {
        Some(device) if doc.away => away_name(device),
        _ => format!("{}-{}.json", doc.netns.inode, doc.ifindex),
    }
}

fn away_name(device: u64) -> String {
    format!("{device}-{}.json", rundir::AWAY)
}

/// The value from before weir of a setting that has the value `found` now. `heirs` are those of the threads among the entries, once
/// they have been looked for.
fn original<K: Kernel>(
    kernel: &mut K,
    entries: &[Entry],
    heirs: &mut Option<Vec<Heir>>,
    setting: Setting,
    queue: Option<u32>,
    found: &Value,
) -> Value {
    let old = before(entries, &setting, queue, found);
    if let Some(e) = entries.iter().find(|e| e.is(&setting)) {
        return if e.whose(kernel, &setting, found) == Whose::Others { old } else { e.old.clone() };
    }
    let Setting::TaskCpus { tid, start } = setting else { return old };
    let heirs = heirs.get_or_insert_with(|| kernel.heirs(&tasks(entries)));
    let Some(heir) = heirs.iter().find(|h| (h.tid, h.start) == (tid, start)) else { return old };
    let usable = kernel.usable(&setting);
    // Not its own from before weir: it began with weir's.
    let gave = entries.iter().find(|e| e.gave(heir, found, usable.as_ref()));
    gave.map_or(old, |e| e.old.clone())
}

/// True if the journal at `path` is the host's, by its name.
pub fn is_host(path: &Path) -> bool {
    let index = path.file_stem().and_then(|stem| stem.to_str()?.rsplit_once('-'));
    index.is_some_and(|(_, ifindex)| ifindex == "0")
}

/// Parses and checks the bytes of a journal.
fn parse(bytes: &[u8]) -> std::result::Result<Document, String> {
    if bytes.len() > MAX_BYTES {
        return Err(format!("larger than {MAX_BYTES} bytes"));
    }
    format::known(bytes)?;
    let doc: Document = serde_json::from_slice(bytes).map_err(|e| format!("not a journal: {e}"))?;
    if doc.entries.len() > MAX_ENTRIES {
        return Err(format!("more than {MAX_ENTRIES} settings"));
    }
    if !netns::valid_name(&doc.name)
        || (doc.ifindex == 0 && doc.name != HOST)
        || doc.ifindex > i32::MAX as u32
    {
        return Err("no usable interface name or index".into());
    }
    if (doc.away && doc.device.is_none()) || (doc.ifindex == 0 && doc.device.is_some()) {
        return Err("no usable device".into());
    }
    if doc.guard.pid == 0 || doc.guard.pid > i32::MAX as u32 {
        return Err("no usable guard pid".into());
    }
    for e in &doc.entries {
        let Some(setting) = e.setting(doc.ifindex) else {
            return Err("a setting without its NAPI, queue, interrupt, thread or interface".into());
        };
        if e.ours.is_empty() || e.ours.len() > MAX_OURS {
            return Err(format!("{}: 1 to {MAX_OURS} values are weir's", setting.label()));
        }
        if !e.ours.iter().chain([&e.old]).all(|v| setting.accepts(v)) {
            return Err(format!("{}: a value that it cannot have", setting.label()));
        }
    }
    Ok(doc)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
