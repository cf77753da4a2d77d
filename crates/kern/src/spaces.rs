//! Other network namespaces, as far as /proc shows them: the UDP sockets there, through any process that lives in one.

use crate::proc::{self, UdpSocket};
use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt, path::PathBuf};

/// Most processes that are looked at in one search, one stat each: on a host with more some namespaces are not found.
const PROCESSES_MAX: usize = 8192;
/// A namespace with more sockets is not read again and again.
const SOCKETS_MAX: usize = 4096;
/// Time between two searches for namespaces that were not found, ns.
const AGAIN: u64 = 1_000_000_000;

/// See the module.
#[derive(Debug)]
pub struct Spaces {
    proc: PathBuf,
    /// A process of each namespace, by the inode of the namespace.
    of: BTreeMap<u32, u32>,
    searched_at: Option<u64>,
    /// What was read since [`Spaces::begin`]; `None`: it cannot be read.
    read: BTreeMap<u32, Option<Vec<UdpSocket>>>,
}

impl Default for Spaces {
    /// Of the processes that are seen from here.
    fn default() -> Spaces {
        Spaces::new(proc::PROC)
    }
}

impl Spaces {
    /// Nothing is known yet. `proc`: where procfs is.
    #[must_use]
    pub fn new(proc: impl Into<PathBuf>) -> Spaces {
        Spaces { proc: proc.into(), of: BTreeMap::new(), searched_at: None, read: BTreeMap::new() }
    }

    /// Lists are read anew from here on.
    pub fn begin(&mut self) {
        self.read.clear();
    }

    /// UDP sockets with `port` in the namespace whose inode is `netns`, by a list that was read since [`Self::begin`]; `None` if no
    /// process that can be seen lives there, or if it has more than 4096 sockets. Cost: that of the list, and once a second at most a
    /// search through all processes.
    pub fn udp_sockets(&mut self, netns: u32, port: u16, now: u64) -> Option<Vec<UdpSocket>> {
        if !self.read.contains_key(&netns) {
            let list = self.list(netns, now);
            self.read.insert(netns, list);
        }
        let all = self.read.get(&netns)?.as_ref()?;
        Some(all.iter().filter(|s| s.local.port() == port).cloned().collect())
    }

    fn list(&mut self, netns: u32, now: u64) -> Option<Vec<UdpSocket>> {
        let pid = self.process(netns, now)?;
        let list = proc::udp_sockets_of(&self.proc, &pid.to_string(), None, SOCKETS_MAX).ok()?;
        // It may have ended meanwhile, and its number may be another one's.
        (self.netns(pid) == Some(netns) && list.len() < SOCKETS_MAX).then_some(list)
    }

    fn netns(&self, pid: u32) -> Option<u32> {
        u32::try_from(fs::metadata(self.proc.join(format!("{pid}/ns/net"))).ok()?.ino()).ok()
    }

    fn process(&mut self, netns: u32, now: u64) -> Option<u32> {
        if let Some(pid) = self.of.get(&netns).copied()
            && self.netns(pid) == Some(netns)
        {
            return Some(pid);
        }
        if self.searched_at.is_none_or(|at| now.saturating_sub(at) >= AGAIN) {
            self.searched_at = Some(now);
            let pids = proc::pids_in(&self.proc);
            self.of =
                pids.into_iter().take(PROCESSES_MAX).filter_map(|p| Some((self.netns(p)?, p))).collect();
        }
        self.of.get(&netns).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "  12: 0100007F:0035 00000000:0000 07 00000000:00003400 00:00000000 00000000  101        0 4711 2 \
                        0000000000000000 99\n";

    /// A process with a namespace of its own and as many sockets on port 53.
    fn process(proc: &std::path::Path, pid: u32, sockets: usize) -> u32 {
        let own = proc.join(pid.to_string());
        fs::create_dir_all(own.join("ns")).unwrap();
        fs::create_dir_all(own.join("net")).unwrap();
        fs::write(own.join("ns/net"), "").unwrap();
        fs::write(own.join("net/udp"), format!("header\n{}", LINE.repeat(sockets))).unwrap();
        u32::try_from(fs::metadata(own.join("ns/net")).unwrap().ino()).unwrap()
    }

    #[test]
    fn sockets_of_another_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let (first, many) = (process(dir.path(), 5, 2), process(dir.path(), 6, SOCKETS_MAX));
        let mut spaces = Spaces::new(dir.path());
        assert_eq!(spaces.udp_sockets(first, 53, 0).map(|s| s.len()), Some(2));
        assert_eq!(spaces.udp_sockets(first, 54, 0).map(|s| s.len()), Some(0));
        assert_eq!(spaces.udp_sockets(many, 53, 0), None, "too many");
        // Read once until it begins anew; a namespace that comes later is found by the next search.
        fs::write(dir.path().join("5/net/udp"), format!("header\n{LINE}")).unwrap();
        assert_eq!(spaces.udp_sockets(first, 53, 0).map(|s| s.len()), Some(2));
        spaces.begin();
        assert_eq!(spaces.udp_sockets(first, 53, 0).map(|s| s.len()), Some(1));
        let later = process(dir.path(), 7, 1);
        assert_eq!(spaces.udp_sockets(later, 53, AGAIN - 1), None);
        spaces.begin();
        assert_eq!(spaces.udp_sockets(later, 53, AGAIN).map(|s| s.len()), Some(1));
        // Its last process has ended.
        fs::remove_dir_all(dir.path().join("7")).unwrap();
        spaces.begin();
        assert_eq!(spaces.udp_sockets(later, 53, 2 * AGAIN), None);
    }
}
