//! A group of processes that can be frozen, of the first version of cgroups or the second.

use std::path::{Path, PathBuf};

use super::{ms, within};

/// A group; empty and gone when it is dropped.
pub struct Freezer {
    path: PathBuf,
    second: bool,
}

impl Freezer {
    /// Makes one; `None` where the kernel or the mounts have no freezer.
    pub fn new(tag: &str) -> Option<Freezer> {
        let name = format!("weir-test-{}-{tag}", std::process::id());
        for (root, second) in [("/sys/fs/cgroup/freezer", false), ("/sys/fs/cgroup", true)] {
            let path = Path::new(root).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Freezer { path, second };
            if group.path.join(group.file()).exists() {
                return Some(group);
            }
        }
        None
    }

    fn file(&self) -> &'static str {
        if self.second { "cgroup.freeze" } else { "freezer.state" }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path.join(file);
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{text} to {}: {e}", path.display()));
    }

    /// Runs `start` so that processes it makes begin in this group. The caller is in it meanwhile.
    pub fn around<T>(&self, start: impl FnOnce() -> T) -> T {
        self.write("cgroup.procs", &std::process::id().to_string());
        let made = start();
        let parent = self.path.parent().unwrap().join("cgroup.procs");
        std::fs::write(parent, std::process::id().to_string()).unwrap();
        made
    }

    /// True if the process is in the group.
    pub fn holds(&self, pid: u32) -> bool {
        let text = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap();
        text.lines().any(|line| line == pid.to_string())
    }

    /// Freezes the group and waits until it is.
    pub fn freeze(&self) {
        let state = || std::fs::read_to_string(self.path.join("freezer.state")).unwrap_or_default();
        self.write(self.file(), if self.second { "1" } else { "FROZEN" });
        if !self.second {
            within("the group is frozen", ms(200), || state().trim() == "FROZEN");
        }
    }

    /// Thaws it.
    pub fn thaw(&self) {
        self.write(self.file(), if self.second { "0" } else { "THAWED" });
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path.join(self.file()), if self.second { "0" } else { "THAWED" });
        // Whoever is still in it goes to the parent; it is empty after that.
        let parent = self.path.parent().unwrap().join("cgroup.procs");
        for pid in std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write(&parent, pid);
        }
        let _ = std::fs::remove_dir(&self.path);
    }
}
