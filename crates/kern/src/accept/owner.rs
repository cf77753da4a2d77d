//! Who accepts from a listener, and on which core: through epoll's own list, since workers inherit listeners that they do not use.

use crate::cpus;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// How the core of a worker is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// It may run there only.
    Pinned,
    /// It ran there last.
    Ran,
}

/// Who accepts from a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Process.
    pub pid: u32,
    /// Thread; that of the process where it has one only or the thread is not known.
    pub tid: u32,
    /// Name of the process.
    pub name: String,
    /// Core.
    pub core: Option<usize>,
    /// How that is known.
    pub known: Where,
    /// Who held the listener then, and the epoll descriptors of each.
    pub among: Vec<(u32, Vec<u32>)>,
}

impl Owner {
    fn lives(&self) -> bool {
        fs::exists(format!("/proc/{}/task/{}", self.pid, self.tid)).is_ok_and(|is| is)
    }
}

/// CPUs that the calling thread may run on; empty if that cannot be read.
pub fn own_cpus() -> usize {
    cpus::online().map_or(1, |set| set.len())
}

/// What one search has read of each process.
pub struct Search {
    /// Its epoll descriptors.
    fds: BTreeMap<u32, Vec<u32>>,
    /// The inodes that each of them waits for. To read them the kernel keeps the process out of its epoll, for longer the more
    /// connections that has: it is done only where something is new.
    epolls: BTreeMap<u32, Vec<(u32, Vec<u64>)>>,
    /// Until then threads that are at work are looked for once more.
    until: Instant,
}

impl Search {
    /// From now on.
    #[expect(clippy::new_without_default, reason = "it has a beginning")]
    pub fn new() -> Search {
        let (fds, epolls) = Default::default();
        Search { fds, epolls, until: Instant::now() + WORKING_MAX }
    }
}

/// The longest that one search waits for threads that are at work: the leases of all groups are renewed between searches.
const WORKING_MAX: Duration = Duration::from_millis(60);
/// Most looks for one of them.
const LOOKS: u32 = 20;
/// From one to the next.
const LOOK_EVERY: Duration = Duration::from_micros(300);

/// Most descriptors of one process that are looked at.
const DESCRIPTORS_MAX: usize = 65_536;
/// And threads.
const THREADS_MAX: usize = 4096;

impl Search {
    /// The owner of the listener `inode` among its holders: the one whose epoll waits for it; if none does, the only holder that is not
    /// the parent of another one. A thread can be told only while it waits: `known`, who it was at the last search, stays the owner
    /// while it is at work, and while neither the holders nor their epolls are others.
    pub(super) fn owner(
        &mut self,
        inode: u64,
        holders: &[(u32, u32)],
        known: Option<&Owner>,
    ) -> Option<Owner> {
        let among = self.among(holders);
        if let Some(owner) = known.filter(|known| known.among == among && known.lives()) {
            let (core, known) = core(owner.tid);
            return Some(Owner { core, known, ..owner.clone() });
        }
        let mut waits: Vec<(u32, u32, usize)> = Vec::new();
        for (pid, fds) in &among {
            let epolls = self.epolls.entry(*pid).or_insert_with(|| epolls(*pid, fds));
            if let Some((fd, _)) = epolls.iter().find(|(_, inodes)| inodes.contains(&inode)) {
                waits.push((*pid, *fd, epolls.len()));
            }
        }
        let mut pids: Vec<u32> = among.iter().map(|(pid, _)| *pid).collect();
        if waits.is_empty() {
            pids = children(&pids, crate::proc::parent);
        }
        let (pid, tid) = match (waits.as_slice(), pids.as_slice()) {
            ([(pid, _, 1)], _) => (*pid, *pid),
            ([(pid, epoll, _)], _) => (*pid, self.thread(*pid, *epoll, known)?),
            ([], [pid]) => (*pid, *pid),
            _ => return None,
        };
        let (core, known) = core(tid);
        Some(Owner { pid, tid, name: crate::proc::name(pid).unwrap_or_default(), core, known, among })
    }

    /// The processes of these holders, each once, with their epoll descriptors.
    fn among(&mut self, holders: &[(u32, u32)]) -> Vec<(u32, Vec<u32>)> {
        let mut pids: Vec<u32> = holders.iter().map(|(pid, _)| *pid).collect();
        pids.dedup();
        let mut fds = |pid| self.fds.entry(pid).or_insert_with(|| epoll_fds(pid)).clone();
        pids.into_iter().map(|pid| (pid, fds(pid))).collect()
    }

    /// The thread that waits in this epoll now, or did when it was last looked for; a few looks, since it may be at work.
    fn thread(&mut self, pid: u32, epoll: u32, known: Option<&Owner>) -> Option<u32> {
        if let Some(tid) = waiter(pid, epoll) {
            return Some(tid);
        }
        if let Some(owner) = known.filter(|owner| owner.pid == pid && owner.lives()) {
            return Some(owner.tid);
        }
        for _ in 0..LOOKS {
            if Instant::now() >= self.until {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
            if let Some(tid) = waiter(pid, epoll) {
                return Some(tid);
            }
        }
        None
    }
}

/// Those that are not the parent of another one: a master keeps the listeners of its workers and accepts nothing.
fn children(pids: &[u32], parent: impl Fn(u32) -> Option<u32>) -> Vec<u32> {
    let parents: Vec<u32> = pids.iter().filter_map(|pid| parent(*pid)).collect();
    pids.iter().copied().filter(|pid| !parents.contains(pid)).collect()
}

fn epoll_fds(pid: u32) -> Vec<u32> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().take(DESCRIPTORS_MAX);
    let epolls = all.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == "anon_inode:[eventpoll]")
    });
    let mut fds: Vec<u32> = epolls.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    fds.sort_unstable();
    fds
}

fn epolls(pid: u32, fds: &[u32]) -> Vec<(u32, Vec<u64>)> {
    let read = |fd| fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    fds.iter().map(|fd| (*fd, targets(&read(fd)))).collect()
}

/// Inodes in the information on an epoll descriptor.
fn targets(text: &str) -> Vec<u64> {
    let lines = text.lines().filter(|line| line.starts_with("tfd:"));
    lines
        .filter_map(|line| {
            let inode = line.split("ino:").nth(1)?.split_whitespace().next()?;
            u64::from_str_radix(inode, 16).ok()
        })
        .collect()
}

/// The thread that waits in this epoll.
fn waiter(pid: u32, epoll: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut waits = tasks.flatten().take(THREADS_MAX).filter(|entry| {
        let text = fs::read_to_string(entry.path().join("syscall")).unwrap_or_default();
        waits_in(&text) == Some(epoll)
    });
    waits.next()?.file_name().to_str()?.parse().ok()
}

/// The epoll descriptor of a thread that waits in one, from its line in procfs.
fn waits_in(text: &str) -> Option<u32> {
    let mut words = text.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    #[cfg(target_arch = "x86_64")]
    let waits = number == libc::SYS_epoll_wait;
    #[cfg(not(target_arch = "x86_64"))]
    let waits = false;
    if !waits && number != libc::SYS_epoll_pwait && number != libc::SYS_epoll_pwait2 {
        return None;
    }
    u32::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()
}

fn core(tid: u32) -> (Option<usize>, Where) {
    if let Ok(set) = cpus::affinity(tid as i32)
        && set.len() == 1
    {
        return (set.iter().next(), Where::Pinned);
    }
    (cpus::ran_on(tid as i32), Where::Ran)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_at_work_stays_the_worker() {
        use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
        use std::os::{fd::AsRawFd, unix::fs::MetadataExt};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // Two epolls, as of a program with two threads; nobody waits in them.
        let epolls = [0, 1].map(|_| Epoll::new(EpollCreateFlags::empty()).unwrap());
        epolls[0].add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, 0)).unwrap();
        let inode = fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap().ino();
        let (pid, tid) = (std::process::id(), nix::unistd::gettid().as_raw() as u32);
        let holders = [(pid, listener.as_raw_fd() as u32)];
        let known = |tid| Owner { pid, tid, name: "a".into(), core: None, known: Where::Ran, among: vec![] };
        let mut search = Search::new();
        let begun = Instant::now();
        assert_eq!(search.owner(inode, &holders, None), None);
        assert!(begun.elapsed() >= LOOKS * LOOK_EVERY, "it is waited for");
        assert_eq!(search.owner(inode, &holders, Some(&known(tid))).map(|owner| owner.tid), Some(tid));
        assert_eq!(search.owner(inode, &holders, Some(&known(u32::MAX))), None, "it has ended");
        search.until = begun;
        assert_eq!(search.owner(inode, &holders, None), None, "the search has had its time");
        // Where nothing is new no epoll is read.
        let mut search = Search::new();
        let first = search.owner(inode, &holders, Some(&known(tid))).unwrap();
        assert_eq!(search.epolls.len(), 1);
        let mut search = Search::new();
        let again = search.owner(inode, &holders, Some(&first)).unwrap();
        assert_eq!((again.tid, &again.among, search.epolls.len()), (tid, &first.among, 0));
        drop(epolls);
        let mut search = Search::new();
        assert_eq!(search.owner(inode, &holders, Some(&first)).map(|owner| owner.tid), Some(pid));
        assert_eq!(search.epolls.len(), 1, "its epolls are others");
    }

    #[test]
    fn a_master_is_no_worker() {
        let parent =
            |pid: u32| [(11, 10), (12, 10), (10, 1)].iter().find(|(child, _)| *child == pid).map(|p| p.1);
        assert_eq!(children(&[10, 11], parent), [11]);
        assert_eq!(children(&[10, 11, 12], parent), [11, 12]);
        assert_eq!(children(&[10], parent), [10]);
    }

    #[test]
    fn lines_of_procfs() {
        let text = "pos:\t0\nflags:\t02\ntfd:        6 events: 2019 data: 7f  pos:0 ino:1a2b sdev:8\n\
                    tfd:        8 events:       19 data:                8  pos:0 ino:ff sdev:8\n";
        assert_eq!(targets(text), [0x1a2b, 0xff]);
        assert_eq!(waits_in("running"), None);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(waits_in("232 0xa 0x55 0x200 0xffffffff 0x0 0x0 0x7ffd 0x7f5"), Some(10));
        assert_eq!(waits_in("0 0xa 0x55 0x200 0x0"), None);
    }
}
