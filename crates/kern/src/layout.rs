//! What a placement has to know of a host: its CPUs and who may use them, threads, and programs that place interrupts too.

use crate::{
    cpus::{self, CpuSet},
    error::Result,
    kernel::Heir,
    proc,
};
use serde::Serialize;
use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

/// Most threads of one program that are looked at.
pub const MAX_THREADS: usize = 512;
/// Most generations of processes that are looked back.
const DEPTH: usize = 64;
/// Most heirs that are looked at in one go.
pub const MAX_HEIRS: usize = 65_536;
/// How the kernel names the threads that poll for an io_uring; the process id follows.
const SQPOLL: &str = "iou-sqp-";
/// Programs that write the settings of a placement themselves, by command name.
const RIVALS: [&str; 5] = ["irqbalance", "tuned", "tuna", "numad", "irqd"];

/// A CPU that is online.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Its number.
    pub id: usize,
    /// The lowest CPU of its core: equal for siblings (SMT).
    pub core: usize,
    /// The lowest CPU that shares its last-level cache; itself if the kernel does not tell.
    pub cache: usize,
    /// NUMA node, if the kernel tells.
    pub node: Option<u32>,
    /// Isolated at boot or by a cpuset, or without a tick (`nohz_full`): RPS cannot use such a CPU.
    pub isolated: bool,
    /// Among the CPUs of the caller's cpuset.
    pub allowed: bool,
}

/// A thread of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Start time, clock ticks since boot.
    pub start: u64,
    /// CPUs that it may run on.
    pub cpus: CpuSet,
    /// The kernel lets nobody change them.
    pub bound: bool,
    /// It polls the queue of an io_uring for its program (SQPOLL).
    pub polls: bool,
}

/// Another program that places interrupts or threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rival {
    /// Command name.
    pub name: String,
    /// Process id.
    pub pid: u32,
}

/// CPUs that are online, ascending.
///
/// # Errors
/// If neither sysfs nor the affinity of this process can be read.
pub fn cpus() -> Result<Vec<Cpu>> {
    let online = cpus::online()?;
    let kept_free = |file: &str| -> CpuSet {
        let text = fs::read_to_string(format!("/sys/devices/system/cpu/{file}"));
        text.ok().and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    let (isolated, tickless) = (kept_free("isolated"), kept_free("nohz_full"));
    let allowed = cpuset("self").unwrap_or_else(|| online.clone());
    let one = |id| Cpu {
        id,
        core: first(id, "topology/thread_siblings_list").unwrap_or(id),
        cache: last_cache(id).unwrap_or(id),
        node: cpus::numa_node(id),
        isolated: isolated.contains(id) || tickless.contains(id),
        allowed: allowed.contains(id),
    };
    Ok(online.iter().map(one).collect())
}

/// The lowest CPU of a list in the directory of `cpu`.
fn first(cpu: usize, file: &str) -> Option<usize> {
    let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/{file}")).ok()?;
    text.parse::<CpuSet>().ok()?.iter().next()
}

fn last_cache(cpu: usize) -> Option<usize> {
    (0..8).rev().find_map(|index| first(cpu, &format!("cache/index{index}/shared_cpu_list")))
}

/// CPUs that the kernel lets thread `tid` have: those of its cpuset, or without one those online.
pub fn cpuset_of(tid: u32) -> Option<CpuSet> {
    cpuset(&tid.to_string()).or_else(|| cpus::online().ok())
}

/// CPUs of the cpuset of process `of`, by v1 or v2 of control groups, whichever has one; its own affinity is not looked at.
fn cpuset(of: &str) -> Option<CpuSet> {
    let groups = fs::read_to_string(format!("/proc/{of}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let group = |line: &str| -> Option<(bool, String)> {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let unified = controllers.is_empty();
        (unified || controllers.split(',').any(|c| c == "cpuset")).then(|| (unified, path.to_owned()))
    };
    let root = |unified: bool| {
        mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut after = after.split(' ');
            let kind = after.next()?;
            let fits = match unified {
                true => kind == "cgroup2",
                false => kind == "cgroup" && after.nth(1)?.split(',').any(|option| option == "cpuset"),
            };
            fits.then(|| before.split(' ').nth(4).map(str::to_owned)).flatten()
        })
    };
    // In a namespace of control groups the path may lead out of the mount: then its root is what is seen.
    groups.lines().filter_map(group).find_map(|(unified, path)| {
        let root = root(unified)?;
        let file = if unified { "cpuset.cpus.effective" } else { "cpuset.effective_cpus" };
        let read = |dir: String| fs::read_to_string(format!("{dir}/{file}")).ok()?.parse().ok();
        let found: Option<CpuSet> = read(format!("{root}{path}")).or_else(|| read(root));
        found.filter(|cpus| !cpus.is_empty())
    })
}

/// Threads of process `pid`, at most [`MAX_THREADS`], ascending; none if there is no such process.
pub fn threads(pid: u32) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids: Vec<u32> = tasks.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    tids.into_iter().take(MAX_THREADS).filter_map(thread).collect()
}

/// One thread, if it is there.
pub fn thread(tid: u32) -> Option<Thread> {
    let stat = proc::stat(tid)?;
    let cpus = cpus::affinity(tid.cast_signed()).ok()?;
    Some(Thread { tid, start: stat.start, cpus, bound: stat.bound, polls: stat.name.starts_with(SQPOLL) })
}

/// Threads of the processes that these threads (id, start time) belong to, and of the descendants of those, at most
/// [`MAX_HEIRS`]; none of a process whose own parent was among them and has ended.
pub fn heirs(of: &[(u32, u64)]) -> Vec<Heir> {
    let mut asked = BTreeMap::<u32, Vec<u32>>::new();
    for &(tid, start) in of {
        if let Some(leader) = proc::leader(tid).filter(|_| proc::start_time(tid) == Some(start)) {
            asked.entry(leader).or_default().push(tid);
        }
    }
    if asked.is_empty() {
        return Vec::new();
    }
    let parents: BTreeMap<u32, u32> = proc::pids_in(Path::new(proc::PROC))
        .into_iter()
        .filter_map(|pid| Some((pid, proc::parent(pid)?)))
        .collect();
    let mut heirs = Vec::new();
    for &pid in parents.keys() {
        // Its own and those of its ancestors, the nearest first. A parent that has ended is not there.
        let line = std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(DEPTH);
        let of: Arc<[u32]> = line.filter_map(|pid| asked.get(&pid)).flatten().copied().collect();
        if !of.is_empty() && heirs.len() < MAX_HEIRS {
            heirs.extend(threads(pid).iter().map(|t| Heir {
                tid: t.tid,
                start: t.start,
                of: Arc::clone(&of),
            }));
        }
    }
    heirs.truncate(MAX_HEIRS);
    heirs
}

/// Processes by command name, ascending.
pub fn named(name: &str) -> Vec<u32> {
    let mut pids: Vec<u32> = running().into_iter().filter(|(_, n)| n == name).map(|(pid, _)| pid).collect();
    pids.sort_unstable();
    pids
}

/// Running programs that would work against a placement, one of each name.
pub fn rivals() -> Vec<Rival> {
    let mut found = BTreeMap::new();
    let is = |(pid, name): &(u32, String)| RIVALS.contains(&name.as_str()) && may_move(*pid);
    for (pid, name) in running().into_iter().filter(is) {
        found.entry(name).or_insert(pid);
    }
    found.into_iter().map(|(name, pid)| Rival { name, pid }).collect()
}

/// By its user, since any program can have such a name.
fn may_move(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut uids =
        status.lines().filter_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().nth(1));
    uids.next() == Some("0")
}

fn running() -> Vec<(u32, String)> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, proc::name(pid)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host() {
        let cpus = cpus().unwrap();
        assert!(!cpus.is_empty() && cpus.iter().any(|c| c.allowed));
        assert!(cpus.iter().all(|c| c.core <= c.id && c.cache <= c.id));
        let me = std::process::id();
        let mine = threads(me);
        assert!(mine.iter().any(|t| t.tid == me && !t.cpus.is_empty() && t.start > 0), "{mine:?}");
        assert!(threads(u32::MAX).is_empty() && thread(u32::MAX).is_none());
        assert!(named("no such name").is_empty());
        assert!(cpuset_of(me).is_some_and(|cpus| !cpus.is_empty()));
    }

    #[test]
    fn threads_and_children_are_heirs() {
        let me = std::process::id();
        let start = proc::start_time(me).unwrap();
        // It reads until its input ends, with the test.
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let heirs = heirs(&[(me, start), (me, start + 1), (u32::MAX, 1)]);
        let found = |tid: u32| heirs.iter().filter(|h| h.tid == tid && *h.of == [me] && h.start > 0).count();
        assert_eq!((found(me), found(child.id())), (1, 1), "{heirs:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(super::heirs(&[(me, start + 1)]).is_empty());
        // It has begun before now, and not a minute ago: a tick is 10 ms on hosts of today.
        let ticks = proc::ticks();
        assert!(start <= ticks && ticks - start < 600 * 100, "{start} {ticks}");
    }
}
