//! The hierarchy of control groups.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::sysfs;

/// Where version 2 is usually mounted.
pub(crate) const USUAL: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The root of all groups of version 2: where it is usually mounted, or through a mount of its own (needs CAP_SYS_ADMIN), since
/// that of a network namespace may hide it. `None` where nothing shows it, as in most containers, whose hierarchy
/// begins below it, or where there is none.
pub fn root() -> Option<OwnedFd> {
    let mounted = || {
        let path = USUAL.iter().find(|path| Path::new(path).join("cgroup.controllers").exists())?;
        File::open(path).ok().map(OwnedFd::from)
    };
    // Only the root of all cannot be frozen.
    let of_all = |root: &OwnedFd| sysfs::open_below(root, "cgroup.freeze", libc::O_RDONLY).is_err();
    mounted().filter(of_all).or_else(|| sysfs::detached(c"cgroup2", &[]).ok().filter(of_all))
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

/// Hierarchies that the view of a network namespace hides (`ip netns exec` mounts another `/sys`), through mounts of their own, by
/// their controllers.
#[derive(Default)]
pub struct Hidden(BTreeMap<String, Option<OwnedFd>>);

impl Hidden {
    /// Limits that hold for process `pid`, that of the innermost group first.
    pub fn quotas(&mut self, pid: u32) -> Vec<Quota> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        quotas_in(Path::new(USUAL[0]), &text, |controllers| self.mount(controllers))
    }

    fn mount(&mut self, controllers: &str) -> Option<PathBuf> {
        let open = || {
            if controllers.is_empty() {
                return sysfs::detached(c"cgroup2", &[]).ok();
            }
            let names: Vec<CString> =
                controllers.split(',').filter_map(|name| CString::new(name).ok()).collect();
            // It exists, since a process is in it: this makes none.
            sysfs::detached(c"cgroup", &names.iter().map(CString::as_c_str).collect::<Vec<_>>()).ok()
        };
        let fd = self.0.entry(controllers.to_owned()).or_insert_with(open).as_ref()?;
        Some(format!("/proc/self/fd/{}", fd.as_raw_fd()).into())
    }
}

/// The same of the groups in `text` (cgroups(7), `/proc/PID/cgroup`), which are mounted below `usual`, or where `hidden` says.
fn quotas_in(usual: &Path, text: &str, mut hidden: impl FnMut(&str) -> Option<PathBuf>) -> Vec<Quota> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let Some(group) = group.strip_prefix('/') else { continue };
        let hierarchies: &[&str] = match controllers {
            "" => &["", "unified"],
            _ if controllers.split(',').any(|c| c == "cpu") => &["cpu", controllers],
            _ => continue,
        };
        // One outside of what this process may see is named by a way up; the root has no limit.
        if group.is_empty() || group.split('/').any(|part| part == "..") {
            continue;
        }
        let there = |hierarchy: &&&str| usual.join(hierarchy).join(group).is_dir();
        let (named, root) = match hierarchies.iter().find(there) {
            Some(hierarchy) => (*hierarchy, Some(usual.join(hierarchy))),
            None => (hierarchies[0], hidden(controllers)),
        };
        let Some(root) = root else { continue };
        let groups = Path::new(group).ancestors().take(DEPTH);
        found.extend(groups.filter_map(|group| quota(&root, named, group)));
    }
    found
}

/// That of one group; `None` if it has none.
fn quota(root: &Path, hierarchy: &str, group: &Path) -> Option<Quota> {
    let read = |name: &str| fs::read_to_string(root.join(group).join(name)).ok();
    let named = |name: &str| {
        let path = Path::new(USUAL[0]).join(hierarchy).join(group).join(name);
        path.to_string_lossy().into_owned()
    };
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

    fn none(_: &str) -> Option<PathBuf> {
        None
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
        assert_eq!(quotas_in(dir.path(), "0::/a/b\n", none), [want]);

        let dir = tempfile::tempdir().unwrap();
        let of = |quota| [("cpu.cfs_quota_us", quota), ("cpu.cfs_period_us", "100000\n"), stat];
        group(&dir.path().join("cpu,cpuacct/x"), &of("20000\n"));
        group(&dir.path().join("cpu,cpuacct"), &of("-1\n"));
        let text = "5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n";
        let found = quotas_in(dir.path(), text, none);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].file, "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us");
        assert_eq!((found[0].quota_us, found[0].throttled), (20_000, 38));

        // Another view has it elsewhere.
        let elsewhere = |_: &str| Some(dir.path().join("cpu,cpuacct"));
        let found = quotas_in(Path::new("/nowhere"), text, elsewhere);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].file, "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us");
        assert!(quotas_in(dir.path(), "4:cpu,cpuacct:/../x\n\n4\n4:cpu,cpuacct:\n", none).is_empty());
    }
}
