//! A control group of the lab's own: programs in it get the CPU by its weight while others want it.

use std::path::{Path, PathBuf};

use super::{Error, Result, write};

const PREFIX: &str = "weir-lab-";
/// Weight of a group as the kernel makes it, in each version.
const USUAL: (u32, u32) = (1024, 100);

/// Removed when dropped, once its programs have ended.
#[derive(Debug)]
pub struct Share(PathBuf);

/// Where groups with a CPU weight are made, and whether that is version 1.
fn hierarchy() -> Option<(PathBuf, bool)> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mounted: Vec<_> = lines.filter(|w| w.len() > 3).collect();
    let first = mounted.iter().find(|w| w[2] == "cgroup" && w[3].split(',').any(|option| option == "cpu"));
    if let Some(words) = first {
        return Some((words[1].into(), true));
    }
    let second = mounted.iter().find(|w| w[2] == "cgroup2")?;
    let control = std::fs::read_to_string(Path::new(second[1]).join("cgroup.subtree_control")).ok()?;
    control.split_whitespace().any(|c| c == "cpu").then(|| (second[1].into(), false))
}

impl Share {
    /// A group `weir-lab-PID-TAG` with so many percent of the usual weight.
    ///
    /// # Errors
    /// [`Error::Missing`] without a hierarchy that weighs CPU time, and what the kernel refuses.
    pub fn create(tag: &str, percent: u32) -> Result<Share> {
        let Some((root, first)) = hierarchy() else {
            return Err(Error::Missing("no control groups with a CPU weight (controller cpu)".into()));
        };
        let path = root.join(format!("{PREFIX}{}-{tag}", std::process::id()));
        std::fs::create_dir(&path)
            .map_err(|source| Error::Io { what: path.display().to_string(), source })?;
        let share = Share(path);
        let (name, usual) = if first { ("cpu.shares", USUAL.0) } else { ("cpu.weight", USUAL.1) };
        share.set(name, &(usual * percent / 100).max(2).to_string())?;
        Ok(share)
    }

    /// Puts a process into it.
    ///
    /// # Errors
    /// If it has ended.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.set("cgroup.procs", &pid.to_string())
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        write(&self.0.join(name).to_string_lossy(), value)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // A program that was just ended leaves it a moment later.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// Removes the groups of labs that are no longer alive.
pub fn remove_stale() {
    let Some((root, _)) = hierarchy() else { return };
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}
