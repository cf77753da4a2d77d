//! The hierarchy of control groups.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::sysfs;

/// Where version 2 is usually mounted.
pub(crate) const USUAL: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The root of all groups of version 2, through a mount of its own, since that of a network namespace may hide it; without
/// CAP_SYS_ADMIN where it is usually mounted. `None` where the hierarchy of this process begins below it, in a container, or where
/// there is none.
pub fn root() -> Option<OwnedFd> {
    let mounted = || {
        let path = USUAL.iter().find(|path| Path::new(path).join("cgroup.controllers").exists())?;
        File::open(path).ok().map(OwnedFd::from)
    };
    let root = sysfs::detached(c"cgroup2", None).ok().or_else(mounted)?;
    // Only the root of all cannot be frozen.
    sysfs::open_below(&root, "cgroup.freeze", libc::O_RDONLY).is_err().then_some(root)
}

/// A limit of CPU time that a control group has (`cpu.max`; in version 1 `cpu.cfs_quota_us`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The file that holds it, where it is usually mounted.
    pub file: String,
    /// CPU time for the group in each period, us.
    pub quota_us: u64,
    /// The period, us.
    pub period_us: u64,
    /// Periods in which the group ran.
    pub periods: u64,
    /// Of these, those in which it used its quota up.
    pub throttled: u64,
}

/// Most groups, one in the other, that are looked at.
const DEPTH: usize = 32;

/// Limits that hold for process `pid`, that of the innermost group first.
pub fn quotas(pid: u32) -> Vec<Quota> {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return Vec::new() };
    // The view of the first process has the groups even where that of a network namespace hides them.
    let mounts = ["/proc/1/root/sys/fs/cgroup", "/sys/fs/cgroup"].map(Path::new);
    mounts.iter().map(|mount| quotas_in(mount, &text)).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The same of the groups in `text` (cgroups(7), `/proc/PID/cgroup`), which are mounted at `mount`.
fn quotas_in(mount: &Path, text: &str) -> Vec<Quota> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let Some(below) = group.strip_prefix('/') else { continue };
        let hierarchies: &[&str] = match controllers {
            "" => &["", "unified"],
            _ if controllers.split(',').any(|c| c == "cpu") => &["cpu", controllers],
            _ => continue,
        };
        // One outside of what this process may see is named by a way up.
        if group.split('/').any(|part| part == "..") {
            continue;
        }
        let Some(hierarchy) = hierarchies.iter().find(|h| mount.join(h).join(below).is_dir()) else {
            continue;
        };
        let groups = Path::new(group).ancestors().take(DEPTH);
        found.extend(groups.filter_map(|group| quota(mount, hierarchy, group)));
    }
    found
}

/// That of one group; `None` if it has none.
fn quota(mount: &Path, hierarchy: &str, group: &Path) -> Option<Quota> {
    let below = Path::new(hierarchy).join(group.strip_prefix("/").ok()?);
    let read = |name: &str| fs::read_to_string(mount.join(&below).join(name)).ok();
    let named = |name: &str| Path::new(USUAL[0]).join(&below).join(name).to_string_lossy().into_owned();
    let (file, quota, period) = match read("cpu.max") {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (named("cpu.max"), quota.to_owned(), period.to_owned())
        }
        None => (named("cpu.cfs_quota_us"), read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
    };
    let stat = read("cpu.stat")?;
    let at = |name: &str| {
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        stat.lines().find_map(value)
    };
    Some(Quota {
        file,
        // Without a limit it is no number: `max`, or -1.
        quota_us: quota.trim().parse().ok()?,
        period_us: period.trim().parse().ok().filter(|us| *us > 0)?,
        periods: at("nr_periods")?,
        throttled: at("nr_throttled")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(at: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(at).unwrap();
        files.iter().for_each(|(name, text)| fs::write(at.join(name), text).unwrap());
    }

    #[test]
    fn limits_of_both_versions_and_of_the_groups_above() {
        let dir = tempfile::tempdir().unwrap();
        let stat = ("cpu.stat", "usage_usec 9\nnr_periods 40\nnr_throttled 38\nthrottled_usec 3\n");
        group(&dir.path().join("a/b"), &[("cpu.max", "max 100000\n"), stat]);
        group(&dir.path().join("a"), &[("cpu.max", "10000 100000\n"), stat]);
        let want = Quota {
            file: "/sys/fs/cgroup/a/cpu.max".into(),
            quota_us: 10_000,
            period_us: 100_000,
            periods: 40,
            throttled: 38,
        };
        assert_eq!(quotas_in(dir.path(), "0::/a/b\n"), [want]);

        let dir = tempfile::tempdir().unwrap();
        let of = |quota| [("cpu.cfs_quota_us", quota), ("cpu.cfs_period_us", "100000\n"), stat];
        group(&dir.path().join("cpu,cpuacct/x"), &of("20000\n"));
        group(&dir.path().join("cpu,cpuacct"), &of("-1\n"));
        let found = quotas_in(dir.path(), "5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].file, "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us");
        assert_eq!((found[0].quota_us, found[0].throttled), (20_000, 38));

        assert!(quotas_in(dir.path(), "4:cpu,cpuacct:/../x\n\n4\n4:cpu,cpuacct:\n").is_empty());
    }
}
