//! Names of the programs behind sockets. The search reads much of /proc, so a thread that runs only on an idle CPU does it, a
//! part at a time; it goes on where it ended until all are found, or every process was looked at twice at least.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kern::holders::Holders;
use kern::proc::Holder;

use crate::sched;

/// Longest part of a search; the process that is looked at when it is over is finished.
const PART: Duration = Duration::from_secs(2);

/// See the module.
pub struct Names {
    /// What is known; nothing while a part of a search has it.
    known: Holders,
    search: Option<JoinHandle<Holders>>,
    part: Duration,
    /// The thread of the part under way.
    tid: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            known: Holders::default(),
            search: None,
            part: PART,
            tid: Arc::default(),
            stop: Arc::default(),
        }
    }
}

impl Names {
    /// Takes what a part that has ended has found. False: it has not ended yet.
    pub fn ready(&mut self) -> bool {
        if let Some(search) = self.search.take_if(|s| s.is_finished()) {
            // One that panicked has found nothing: all begins anew.
            self.known = search.join().unwrap_or_default();
        }
        self.search.is_none()
    }

    /// The process that holds this socket, once it is found.
    pub fn holder(&self, inode: u64) -> Option<&Holder> {
        self.known.holder(inode)
    }

    /// True if nobody who can be seen holds it.
    pub fn given_up(&self, inode: u64) -> bool {
        self.known.given_up(inode)
    }

    /// Begins the next part of the search, if something is `wanted`. What was found for sockets that are not `tracked` is
    /// forgotten. Only when [`Names::ready`].
    pub fn search(&mut self, tracked: Vec<u64>, wanted: Vec<u64>) {
        if wanted.is_empty() || self.search.is_some() {
            return;
        }
        let (mut known, part) = (std::mem::take(&mut self.known), self.part);
        self.tid.store(0, Relaxed);
        let (tid, stop) = (Arc::clone(&self.tid), Arc::clone(&self.stop));
        let thread = std::thread::Builder::new().name("weir-names".into()).spawn(move || {
            tid.store(sched::tid(), Relaxed);
            sched::go_idle();
            let begin = Instant::now();
            let over = || {
                if stop.load(Relaxed) { 1.0 } else { begin.elapsed().as_secs_f64() / part.as_secs_f64() }
            };
            known.retain(|inode| tracked.contains(&inode));
            known.find(&wanted, over);
            known
        });
        // Without a thread nothing is known, and it is tried again.
        self.search = thread.ok();
    }

    /// Ends the part under way: a process is there until its last thread has ended.
    pub fn end(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(search) = self.search.take() {
            sched::join_idle(search, &self.tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A procfs of files in which each process has the socket of inode 10000 + pid.
    fn procfs(processes: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for pid in 1..=processes {
            let own = dir.path().join(pid.to_string());
            fs::create_dir_all(own.join("fd")).unwrap();
            fs::write(own.join("stat"), format!("{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0\n"))
                .unwrap();
            fs::write(own.join("comm"), format!("server{pid}\n")).unwrap();
            symlink(format!("socket:[{}]", 10_000 + pid), own.join("fd/3")).unwrap();
        }
        dir
    }

    /// Parts until `enough`; each has time for one process only.
    fn parts(names: &mut Names, wanted: &[u64], enough: impl Fn(&Names) -> bool) -> usize {
        let end = Instant::now() + Duration::from_secs(60);
        for part in 0.. {
            while !names.ready() {
                assert!(Instant::now() < end, "a part does not end");
                std::thread::yield_now();
            }
            if enough(names) {
                return part;
            }
            names.search(wanted.to_vec(), wanted.to_vec());
        }
        unreachable!("the loop has no end")
    }

    #[test]
    fn a_search_whose_time_is_over_goes_on_where_it_ended() {
        let dir = procfs(40);
        let known = Holders::new(dir.path());
        let mut names = Names { known, part: Duration::from_nanos(1), ..Names::default() };
        let took = parts(&mut names, &[10_040], |names| names.holder(10_040).is_some());
        assert_eq!(names.holder(10_040), Some(&Holder { pid: 40, name: "server40".into() }));
        assert_eq!(took, 40, "a process each");
        // One that nobody holds ends too, and what was found stays known.
        let took = parts(&mut names, &[10_040, 99], |names| names.given_up(99));
        assert!((2 * 40..=4 * 40).contains(&took), "{took}");
        assert!(names.holder(10_040).is_some() && !names.given_up(10_040));
    }

    #[test]
    fn nothing_wanted_is_no_search() {
        let mut names = Names::default();
        names.search(vec![5], vec![]);
        assert!(names.ready() && names.search.is_none());
    }
}
