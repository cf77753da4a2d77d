//! One setting of a journal: which it is, and whose value is found in its place.

use super::Whose;
use crate::{
    cpus::CpuSet,
    kernel::{Heir, Kernel},
    settings::{Setting, Value},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A setting as it stands in the file, with its value before weir and those of weir.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) set: Kind,
    /// NAPI id, queue, interrupt or thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<u32>,
    /// Interface, in the journal of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ifindex: Option<u32>,
    /// Start time of a thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queue: Option<u32>,
    /// Of a thread: when weir's first value was written down, clock ticks since boot. Who began before has inherited nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<u64>,
    pub(super) old: Value,
    pub(super) ours: Vec<Value>,
    /// This process has seen the value from before weir in force, and has written none of weir since.
    #[serde(skip)]
    pub(super) back: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    NapiDefer,
    NapiFlush,
    NapiThreaded,
    DevDefer,
    DevFlush,
    DevThreaded,
    Gro,
    Lro,
    GroHw,
    RpsCpus,
    XpsCpus,
    RssTable,
    RfsEntries,
    RfsTable,
    IrqCpus,
    TaskCpus,
}

impl Entry {
    /// The setting; `ifindex` is that of the journal, 0 for the host's.
    pub(super) fn setting(&self, ifindex: u32) -> Option<Setting> {
        let of_host = matches!(self.set, Kind::IrqCpus | Kind::TaskCpus | Kind::RfsTable);
        let ifindex = match (ifindex, self.ifindex) {
            (0, None) if of_host => 0,
            (0, Some(index)) if !of_host && (1..=i32::MAX as u32).contains(&index) => index,
            (1.., None) if !of_host => ifindex,
            _ => return None,
        };
        if self.start.is_some() != (self.set == Kind::TaskCpus) {
            return None;
        }
        Some(match (self.set, self.id) {
            (Kind::XpsCpus, Some(queue)) => Setting::XpsCpus { ifindex, queue },
            (Kind::IrqCpus, Some(irq)) => Setting::IrqCpus { irq },
            (Kind::TaskCpus, Some(tid)) if (1..=i32::MAX as u32).contains(&tid) => {
                Setting::TaskCpus { tid, start: self.start? }
            }
            (Kind::NapiDefer, Some(napi_id)) => Setting::NapiDefer { ifindex, napi_id },
            (Kind::NapiFlush, Some(napi_id)) => Setting::NapiFlush { ifindex, napi_id },
            (Kind::NapiThreaded, Some(napi_id)) => Setting::NapiThreaded { ifindex, napi_id },
            (Kind::RpsCpus, Some(queue)) => Setting::RpsCpus { ifindex, queue },
            (Kind::DevDefer, None) => Setting::DevDefer { ifindex },
            (Kind::DevFlush, None) => Setting::DevFlush { ifindex },
            (Kind::DevThreaded, None) => Setting::DevThreaded { ifindex },
            (Kind::Gro, None) => Setting::Gro { ifindex },
            (Kind::Lro, None) => Setting::Lro { ifindex },
            (Kind::GroHw, None) => Setting::GroHw { ifindex },
            (Kind::RssTable, None) => Setting::RssTable { ifindex },
            (Kind::RfsEntries, Some(queue)) => Setting::RfsEntries { ifindex, queue },
            (Kind::RfsTable, None) => Setting::RfsTable,
            _ => return None,
        })
    }

    pub(super) fn kind(setting: &Setting) -> (Kind, Option<u32>) {
        match *setting {
            Setting::NapiDefer { napi_id, .. } => (Kind::NapiDefer, Some(napi_id)),
            Setting::NapiFlush { napi_id, .. } => (Kind::NapiFlush, Some(napi_id)),
            Setting::NapiThreaded { napi_id, .. } => (Kind::NapiThreaded, Some(napi_id)),
            Setting::RpsCpus { queue, .. } => (Kind::RpsCpus, Some(queue)),
            Setting::XpsCpus { queue, .. } => (Kind::XpsCpus, Some(queue)),
            Setting::IrqCpus { irq } => (Kind::IrqCpus, Some(irq)),
            Setting::TaskCpus { tid, .. } => (Kind::TaskCpus, Some(tid)),
            Setting::DevDefer { .. } => (Kind::DevDefer, None),
            Setting::DevFlush { .. } => (Kind::DevFlush, None),
            Setting::DevThreaded { .. } => (Kind::DevThreaded, None),
            Setting::Gro { .. } => (Kind::Gro, None),
            Setting::Lro { .. } => (Kind::Lro, None),
            Setting::GroHw { .. } => (Kind::GroHw, None),
            Setting::RssTable { .. } => (Kind::RssTable, None),
            Setting::RfsEntries { queue, .. } => (Kind::RfsEntries, Some(queue)),
            Setting::RfsTable => (Kind::RfsTable, None),
        }
    }

    /// It is this setting.
    pub(super) fn is(&self, setting: &Setting) -> bool {
        self.id == Entry::kind(setting).1 && self.like(setting)
    }

    /// A thread that has the value `found`, and may have `usable` CPUs, has it from this one.
    pub(super) fn gave(&self, heir: &Heir, found: &Value, usable: Option<&CpuSet>) -> bool {
        let (Some(tid), Kind::TaskCpus) = (self.id, self.set) else { return false };
        heir.of.contains(&tid)
            && heir.start >= self.since.unwrap_or(0)
            && self.whose_of(&heir.setting(), found, || usable.cloned()) == Whose::Ours
    }

    /// It is this setting, or the same one of another NAPI of the queue.
    pub(super) fn concerns(&self, setting: &Setting, queue: Option<u32>) -> bool {
        let of_queue = setting.napi_id().is_some() && queue.is_some() && self.queue == queue;
        self.is(setting) || (of_queue && self.like(setting))
    }

    /// Whose value `found` is. Of a mask the kernel leaves out what is offline, or outside of the thread's cpuset.
    pub(super) fn whose<K: Kernel>(&self, kernel: &mut K, setting: &Setting, found: &Value) -> Whose {
        self.whose_of(setting, found, || kernel.usable(setting))
    }

    /// The same; the CPUs that it may have are asked for only where they matter.
    pub(super) fn whose_of(
        &self,
        setting: &Setting,
        found: &Value,
        usable: impl FnOnce() -> Option<CpuSet>,
    ) -> Whose {
        if *found == self.old {
            return Whose::Before;
        }
        if self.ours.contains(found) {
            return Whose::Ours;
        }
        let usable = if matches!(found, Value::Cpus(_)) { usable() } else { None };
        let Some(usable) = usable else { return Whose::Others };
        let is = |value: &Value| narrowed(setting, value, found, &usable);
        match () {
            () if self.ours.iter().any(is) => Whose::Ours,
            () if is(&self.old) => Whose::Before,
            () => Whose::Others,
        }
    }

    /// It is this setting but for its id.
    pub(super) fn like(&self, setting: &Setting) -> bool {
        let same_task = match *setting {
            Setting::TaskCpus { start, .. } => self.start == Some(start),
            _ => true,
        };
        self.set == Entry::kind(setting).0
            && same_task
            && self.ifindex.is_none_or(|index| index == setting.ifindex())
    }
}

/// Threads that the entries are about: id and start time.
pub(super) fn tasks(entries: &[Entry]) -> Vec<(u32, u64)> {
    entries.iter().filter_map(|e| e.id.zip(e.start)).collect()
}

/// `found` is what the kernel makes of the mask `value` where it may have `usable` CPUs alone.
pub(super) fn narrowed(setting: &Setting, value: &Value, found: &Value, usable: &CpuSet) -> bool {
    let (Value::Cpus(mask), Value::Cpus(found)) = (value, found) else { return false };
    let within = mask.and(usable);
    match within.is_empty() {
        false => within != *mask && *found == within,
        // An interrupt or a thread is never without a CPU: it gets all.
        true => setting.of_host() && !mask.is_empty() && found == usable,
    }
}

/// What `setting`, found with this value, had before weir.
pub(super) fn before(entries: &[Entry], setting: &Setting, queue: Option<u32>, found: &Value) -> Value {
    let known = entries.iter().rev().find(|e| e.concerns(setting, queue) && e.ours.contains(found));
    known.map_or(found, |e| &e.old).clone()
}
