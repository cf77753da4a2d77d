//! Which process holds a socket: a search through the descriptors of all processes, a part of it at a time. What was found
//! is kept for as long as socket and process live.

use crate::proc::{self, Holder};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::PathBuf,
};

/// How often the search comes to the last process before a socket is given up: those of other users and other
/// namespaces are never found. It may have begun in the middle, so each process is looked at once less at least.
const ROUNDS: u64 = 3;
/// Share of the time of a part for processes that hold sockets already: a new socket is most often one of theirs.
const KNOWN_SHARE: f64 = 0.5;

#[derive(Debug)]
struct Held {
    holder: Holder,
    /// Start time of the process, which tells it from a later one with the same pid.
    start: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Holders {
    proc: PathBuf,
    /// Process with which the search goes on.
    next: u32,
    /// How often it has come to the last process.
    rounds: u64,
    /// By inode of the socket.
    found: BTreeMap<u64, Held>,
    /// Sockets whose process is not known, with the round in which they were asked for first.
    sought: BTreeMap<u64, u64>,
}

impl Default for Holders {
    /// Of the processes that are seen from here.
    fn default() -> Holders {
        Holders::new(proc::PROC)
    }
}

impl Holders {
    /// Nothing is known yet. `proc`: where procfs is.
    #[must_use]
    pub fn new(proc: impl Into<PathBuf>) -> Holders {
        Holders { proc: proc.into(), next: 0, rounds: 0, found: BTreeMap::new(), sought: BTreeMap::new() }
    }

    /// Forgets sockets that are not there any more, and processes that have ended.
    pub fn retain(&mut self, lives: impl Fn(u64) -> bool) {
        let proc = &self.proc;
        self.sought.retain(|inode, _| lives(*inode));
        self.found.retain(|inode, held| {
            lives(*inode) && proc::start_time_in(proc, held.holder.pid) == Some(held.start)
        });
    }

    /// Looks for the processes of `wanted`, from where it stopped the last time. `spent` tells which share of the time
    /// is over; one process at least is looked at, so that it always goes on.
    pub fn find(&mut self, wanted: &[u64], mut spent: impl FnMut() -> f64) {
        let mut open = HashSet::new();
        for inode in wanted.iter().filter(|inode| !self.found.contains_key(inode)) {
            let since = *self.sought.entry(*inode).or_insert(self.rounds);
            if self.rounds - since < ROUNDS {
                open.insert(*inode);
            }
        }
        if open.is_empty() {
            return;
        }
        let known: BTreeSet<u32> = self.found.values().map(|held| held.holder.pid).collect();
        for pid in known {
            if open.is_empty() || spent() >= KNOWN_SHARE {
                break;
            }
            self.look(pid, &mut open);
        }
        let pids = proc::pids_in(&self.proc);
        let (before, after) = pids.split_at(pids.partition_point(|pid| *pid < self.next));
        for (i, pid) in after.iter().chain(before).enumerate() {
            if i == after.len() {
                self.rounds += 1;
            }
            if open.is_empty() {
                // The next search begins with the lowest pid: where several share a socket, that is the one that is named.
                self.next = 0;
                return;
            }
            if i > 0 && spent() >= 1.0 {
                self.next = *pid;
                return;
            }
            self.look(*pid, &mut open);
        }
        // All were looked at. Those from the middle on came first: what came to one of them since is seen the next time.
        self.rounds += u64::from(before.is_empty());
        self.next = 0;
    }

    fn look(&mut self, pid: u32, open: &mut HashSet<u64>) {
        for inode in proc::sockets_in(&self.proc, pid) {
            if !open.contains(&inode) {
                continue;
            }
            // It may have ended meanwhile.
            let Some(start) = proc::start_time_in(&self.proc, pid) else { return };
            let name = proc::name_in(&self.proc, pid).unwrap_or_default();
            self.found.insert(inode, Held { holder: Holder { pid, name }, start });
            self.sought.remove(&inode);
            open.remove(&inode);
        }
    }

    /// True if all processes were looked at so often that this socket is not looked for any more.
    #[must_use]
    pub fn given_up(&self, inode: u64) -> bool {
        self.sought.get(&inode).is_some_and(|since| self.rounds - since >= ROUNDS)
    }

    /// The process that holds this socket, if it is known.
    #[must_use]
    pub fn holder(&self, inode: u64) -> Option<&Holder> {
        self.found.get(&inode).map(|held| &held.holder)
    }

    /// What is known.
    #[must_use]
    pub fn found(&self) -> BTreeMap<u64, Holder> {
        self.found.iter().map(|(inode, held)| (*inode, held.holder.clone())).collect()
    }

    /// Sockets that were asked for and whose process is not known.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.sought.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink, path::Path};

    /// Processes `pids` in a procfs of files, each with the socket of inode 10000 + pid and a few other descriptors.
    fn procfs(pids: impl IntoIterator<Item = u32>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        pids.into_iter().for_each(|pid| process(dir.path(), pid, 4711));
        dir
    }

    fn process(proc: &Path, pid: u32, start: u64) {
        let own = proc.join(pid.to_string());
        fs::create_dir_all(own.join("fd")).unwrap();
        let stat = format!("{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n");
        fs::write(own.join("stat"), stat).unwrap();
        fs::write(own.join("comm"), format!("server{pid}\n")).unwrap();
        for (fd, target) in ["/dev/null".to_owned(), "pipe:[5]".into(), socket(pid)].iter().enumerate() {
            // One that is there already is the same.
            let _ = symlink(target, own.join(format!("fd/{fd}")));
        }
    }

    fn socket(pid: u32) -> String {
        format!("socket:[{}]", 10_000 + pid)
    }

    /// Time for this many processes.
    fn time_for(processes: u32) -> impl FnMut() -> f64 {
        let mut looks = 0;
        move || {
            looks += 1;
            f64::from(looks) / f64::from(processes)
        }
    }

    #[test]
    fn all_of_2000_processes_are_named_after_a_few_readings() {
        let dir = procfs(1..=2000);
        let wanted: Vec<u64> = [1, 2, 700, 701, 1500, 1999, 2000].map(|pid| 10_000 + pid).to_vec();
        let mut holders = Holders::new(dir.path());
        let mut known = Vec::new();
        for _ in 0..7 {
            holders.find(&wanted, time_for(300));
            known.push(holders.found().len());
        }
        assert_eq!((known[0], known[6]), (2, 7), "{known:?}");
        assert!(known.is_sorted(), "what was found is kept: {known:?}");
        assert_eq!(holders.found()[&11_500], Holder { pid: 1500, name: "server1500".into() });
        assert_eq!(holders.unknown(), 0);
    }

    #[test]
    fn each_process_is_looked_at_although_every_reading_is_late() {
        let dir = procfs(1..=50);
        let mut holders = Holders::new(dir.path());
        let readings = (1..=50).find(|_| {
            holders.find(&[10_050], || 2.0);
            holders.unknown() == 0
        });
        assert_eq!(readings, Some(50));
    }

    #[test]
    fn what_nobody_holds_is_given_up_and_costs_nothing_then() {
        let dir = procfs(1..=20);
        let mut holders = Holders::new(dir.path());
        // Begins in the middle.
        holders.find(&[10_020], time_for(8));
        let mut looks = 0;
        for _ in 0..20 {
            holders.find(&[10_020, 99], || {
                looks += 1;
                0.0
            });
        }
        let before = looks;
        holders.find(&[10_020, 99], || {
            looks += 1;
            0.0
        });
        assert_eq!((looks, holders.unknown()), (before, 1));
        assert!(holders.given_up(99) && !holders.given_up(10_020) && !holders.given_up(5));
        assert!(before >= 2 * 20, "each process twice at least: {before}");
        assert_eq!(holders.found().keys().collect::<Vec<_>>(), [&10_020]);
        // Another one is looked for all the same, and the one that was given up is forgotten with its socket.
        holders.find(&[99, 10_007], || 0.0);
        assert!(holders.found().contains_key(&10_007));
        holders.retain(|inode| inode != 99);
        assert_eq!(holders.unknown(), 0);
    }

    #[test]
    fn a_process_that_ended_or_gave_its_pid_to_another_is_forgotten() {
        let dir = procfs([5, 6, 7]);
        let mut holders = Holders::new(dir.path());
        let all = [10_005, 10_006, 10_007];
        holders.find(&all, || 0.0);
        assert_eq!(holders.found().len(), 3);
        fs::remove_dir_all(dir.path().join("5")).unwrap();
        process(dir.path(), 6, 4712);
        holders.retain(|_| true);
        assert_eq!(holders.found().keys().collect::<Vec<_>>(), [&10_007]);
        // The later process has the socket: it is found again.
        holders.find(&all, || 0.0);
        assert_eq!(holders.found().keys().collect::<Vec<_>>(), [&10_006, &10_007]);
    }

    #[test]
    fn a_new_socket_of_a_known_process_is_found_at_once() {
        let dir = procfs(1..=2000);
        let mut holders = Holders::new(dir.path());
        (0..10).for_each(|_| holders.find(&[11_900], time_for(300)));
        symlink("socket:[77]", dir.path().join("1900/fd/9")).unwrap();
        holders.find(&[11_900, 77], time_for(300));
        assert_eq!(holders.found()[&77].pid, 1900);
    }

    #[test]
    fn of_several_the_lowest_pid_is_named() {
        let dir = procfs([3, 10, 200]);
        symlink("socket:[10200]", dir.path().join("10/fd/9")).unwrap();
        let mut holders = Holders::new(dir.path());
        holders.find(&[10_200], || 0.0);
        assert_eq!(holders.found()[&10_200].pid, 10);
    }
}
