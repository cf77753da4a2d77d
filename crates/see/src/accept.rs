//! What a running `weir accept` tells of the listeners that it chooses between, as part of a snapshot and of its own answer
//! (`weir.accept/1`): fields are added, never renamed or removed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most of these programs in a snapshot, and groups of one of them.
pub const ACCEPTS_MAX: usize = 16;
/// See [`ACCEPTS_MAX`].
pub const GROUPS_MAX: usize = 64;

/// One `weir accept`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Accept {
    /// Process id.
    pub pid: u32,
    /// Groups of the network namespace that is watched.
    pub groups: Vec<Group>,
}

/// Listeners of one address. In a snapshot counts are of the time between its last two answers, mostly the interval; `None`, and an
/// empty map: it has answered once only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// The address, behind the word `udp` if they are sockets of UDP.
    pub address: String,
    /// Inode of its network namespace.
    pub netns: u32,
    /// Name of the server's process.
    pub server: String,
    /// The server has listeners now.
    pub there: bool,
    /// Connections by the reason of their placing: `own`, `stalled`, `away`, `late`, `busy`, `share`, `no_own`; and those of the
    /// kernel's choice.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub chosen: BTreeMap<String, u64>,
    /// Its workers.
    pub workers: Vec<Worker>,
}

/// One worker and its queue, as it was last looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Worker {
    /// Thread, or its process where that has one only; `None`: it is not known who accepts from this listener.
    pub tid: Option<u32>,
    /// Core that it runs on.
    pub core: Option<u32>,
    /// Connections that wait for it.
    pub waiting: u32,
    /// How many may wait; 0 for datagrams, where bytes are limited.
    pub limit: u32,
    /// How long ago the oldest of them came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<f64>,
    /// It has taken none for 5 ms while somebody waited.
    pub stalled: bool,
    /// `waits` for events, `runs`, `sleeps` elsewhere, `unknown`.
    pub does: String,
    /// Connections that were put into its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placed: Option<u64>,
    /// Of these, those that its own core received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affine: Option<u64>,
}

impl Worker {
    /// Share of its connections that its own core received, 0 to 1; `None` without any.
    #[must_use]
    pub fn affine_share(&self) -> Option<f64> {
        let placed = self.placed.filter(|placed| *placed > 0)?;
        Some(self.affine? as f64 / placed as f64)
    }
}

impl Group {
    /// Connections that weir placed, and those of them that stayed on the core that received them.
    #[must_use]
    pub fn placed(&self) -> (u64, u64) {
        let sum = |of: fn(&Worker) -> Option<u64>| self.workers.iter().filter_map(of).sum();
        (sum(|w| w.placed), sum(|w| w.affine))
    }

    /// Its workers, those that somebody has to worry about first.
    #[must_use]
    pub fn worst_first(&self) -> Vec<&Worker> {
        let mut all: Vec<&Worker> = self.workers.iter().collect();
        let age = |w: &Worker| w.oldest_ms.unwrap_or(0.0);
        all.sort_by(|a, b| {
            b.stalled.cmp(&a.stalled).then(age(b).total_cmp(&age(a))).then(b.waiting.cmp(&a.waiting))
        });
        all
    }

    /// A worker in a few words: `worker 812 on CPU 0: 3 of 511 wait, the oldest for 12 ms, stalled; 99 % of its core's own`.
    #[must_use]
    pub fn describe(&self, worker: &Worker) -> String {
        let who =
            worker.tid.map_or("a listener without a known worker".into(), |tid| format!("worker {tid}"));
        let core = worker.core.map_or_else(String::new, |core| format!(" on CPU {core}"));
        let oldest = worker.oldest_ms.map_or_else(String::new, |ms| format!(", the oldest for {ms:.1} ms"));
        let stalled = if worker.stalled { ", stalled" } else { "" };
        let affine = worker
            .affine_share()
            .map_or_else(String::new, |share| format!(", {:.0} % affine", share * 100.0));
        let limit = if worker.limit == 0 { String::new() } else { format!(" of {}", worker.limit) };
        format!("{who}{core}: {}{limit} wait{oldest}{stalled}{affine}", worker.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_worker_comes_first_and_is_described() {
        let worker = |tid, waiting, oldest_ms, stalled| Worker {
            tid: Some(tid),
            core: Some(1),
            waiting,
            limit: 511,
            oldest_ms,
            stalled,
            placed: Some(200),
            affine: Some(198),
            ..Worker::default()
        };
        let idle = Worker { limit: 511, placed: Some(0), ..Worker::default() };
        let workers = vec![
            idle,
            worker(7, 9, Some(0.3), false),
            worker(8, 1, Some(21.0), true),
            worker(9, 0, None, false),
        ];
        let group = Group { workers, ..Group::default() };
        let order: Vec<Option<u32>> = group.worst_first().iter().map(|w| w.tid).collect();
        assert_eq!(order, [Some(8), Some(7), None, Some(9)]);
        assert_eq!(group.placed(), (600, 594));
        let text = |n: usize| group.describe(group.worst_first()[n]);
        assert_eq!(text(0), "worker 8 on CPU 1: 1 of 511 wait, the oldest for 21.0 ms, stalled, 99 % affine");
        assert_eq!(text(2), "a listener without a known worker: 0 of 511 wait");
    }
}
