//! The hierarchy of control groups.

use std::fs::File;
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
