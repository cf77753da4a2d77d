//! What the keeper does to depend on nothing that the guard depends on.

use crate::cpus;
use std::{
    io,
    os::fd::RawFd,
    path::{Path, PathBuf},
};

/// Makes the process independent of what it was started from; every descriptor above 2 but `fd` is closed. Each step is
/// tried: a keeper without it is better than none.
pub(super) fn isolate(fd: RawFd) {
    use Signal::*;
    use nix::sys::signal::{SigHandler, Signal, signal};
    for s in [SIGINT, SIGHUP, SIGTERM, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2, SIGTSTP, SIGTTIN, SIGTTOU] {
        // SAFETY: ignoring a signal installs no handler code.
        _ = unsafe { signal(s, SigHandler::SigIgn) };
    }
    // An open or current directory would keep its file system from being unmounted.
    _ = std::env::set_current_dir("/");
    let close = |first: RawFd, last: libc::c_uint| {
        if first >= 0 && (first as libc::c_uint) <= last {
            // SAFETY: no object of this process owns a descriptor above 2 besides the adopted one, which is
            // outside the range.
            unsafe { libc::syscall(libc::SYS_close_range, first as libc::c_uint, last, 0) };
        }
    };
    close(3, fd as libc::c_uint - 1);
    close(fd + 1, libc::c_uint::MAX);
    // The guard's thread may have been bound to one CPU; the keeper must run wherever there is time.
    _ = cpus::online().and_then(|all| cpus::set_affinity(0, &all));
    fifo();
    _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // Only what is touched stays in memory; receiving a journal walks through all of it once.
    // SAFETY: plain flags.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
    if let Ok((_, hard)) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE) {
        _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Before all programs, where that is permitted.
fn fifo() {
    // Under a flood a thread of the normal class can wait for seconds.
    let fifo = libc::sched_param { sched_priority: 1 };
    // SAFETY: `fifo` lives through the call; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const fifo) }
        < 0
    {
        // SAFETY: plain numbers; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
}

/// Does `work`, and lets programs run meanwhile if it `spins`: a SCHED_FIFO thread that tries again and again would keep the
/// owner of the kernel's lock from its CPU.
pub(super) fn gently<T>(spins: bool, work: impl FnOnce() -> T) -> T {
    if spins {
        let other = libc::sched_param { sched_priority: 0 };
        // SAFETY: `other` lives through the call; 0 is the calling thread.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const other) };
        // SAFETY: plain numbers; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
    let done = work();
    if spins {
        fifo();
    }
    done
}

/// Leaves every control group that could be frozen together with the guard's. True if the process is in none any more;
/// what refuses leaves it where it is.
pub(super) fn leave_cgroup() -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
    let hierarchies = hierarchies(&mounts);
    // Without a mount it cannot be left; without a hierarchy there is nothing to leave.
    let v2_seen = hierarchies.iter().any(|h| h.kind == Kind::Unified);
    for hierarchy in &hierarchies {
        // Refused where the file system is read-only, or by the kernel for a delegated part of the tree.
        _ = join(&hierarchy.root);
    }
    let Ok(mine) = std::fs::read_to_string("/proc/self/cgroup") else { return false };
    mine.lines().all(|line| match freezable(line) {
        None => true,
        Some((kind, path)) => {
            let mount = hierarchies.iter().find(|h| h.kind == kind);
            // The root of a namespace is no root: only that of the hierarchy has nothing to be frozen with.
            let root = |h: &Hierarchy| !h.root.join(kind.switch()).exists();
            path == "/" && mount.map_or(kind == Kind::Unified && !v2_seen, root)
        }
    })
}

fn join(root: &Path) -> io::Result<()> {
    std::fs::OpenOptions::new()
        .write(true)
        .open(root.join("cgroup.procs"))
        .and_then(|mut file| io::Write::write_all(&mut file, b"0"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Version 2.
    Unified,
    /// Version 1 with the controller that freezes.
    Freezer,
}

impl Kind {
    /// The file by which a group is frozen, which a root does not have.
    fn switch(self) -> &'static str {
        match self {
            Kind::Unified => "cgroup.freeze",
            Kind::Freezer => "freezer.state",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    kind: Kind,
    root: PathBuf,
}

/// The hierarchies that can freeze, out of `/proc/self/mountinfo`: `... ROOT POINT OPTIONS ... - TYPE SOURCE OPTIONS`.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let kind = match kind {
            "cgroup2" => Kind::Unified,
            "cgroup" if options.split(',').any(|o| o == "freezer") => Kind::Freezer,
            _ => return None,
        };
        // A part of the tree that is mounted alone has no way to its root; a path with escapes is none of the usual.
        (root == "/" && !point.contains('\\')).then(|| Hierarchy { kind, root: point.into() })
    };
    mountinfo.lines().filter_map(parse).collect()
}

/// A line of `/proc/self/cgroup`, `NUMBER:CONTROLLERS:PATH`, if it is one of a hierarchy that can freeze.
fn freezable(line: &str) -> Option<(Kind, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    match controllers {
        "" => Some((Kind::Unified, path)),
        c if c.split(',').any(|c| c == "freezer") => Some((Kind::Freezer, path)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_can_freeze() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n\
                      36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n\
                      42 31 0:38 /a/part /mnt rw - cgroup2 cgroup2 rw\nnonsense\n";
        let of = |kind, root: &str| Hierarchy { kind, root: root.into() };
        assert_eq!(
            hierarchies(mounts),
            [of(Kind::Freezer, "/sys/fs/cgroup/freezer"), of(Kind::Unified, "/sys/fs/cgroup/unified")]
        );
        assert_eq!(freezable("6:freezer:/a"), Some((Kind::Freezer, "/a")));
        assert_eq!(freezable("0::/"), Some((Kind::Unified, "/")));
        assert_eq!((freezable("4:memory:/x"), freezable("")), (None, None));
    }
}
