//! The hierarchy of control groups.

use std::os::fd::OwnedFd;

use crate::sysfs;

/// The root of all groups of version 2, through a mount of its own; `None` where the hierarchy of this process begins below it, in
/// a container, or where there is none.
pub fn root() -> Option<OwnedFd> {
    let root = sysfs::detached(c"cgroup2", None).ok()?;
    // Only the root of all cannot be frozen.
    sysfs::open_below(&root, "cgroup.freeze", libc::O_RDONLY).is_err().then_some(root)
}
