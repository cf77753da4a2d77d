//! What the keeper does to depend on nothing that the guard depends on.

use crate::{cpus, schedule, sysfs};
use std::{
    fs::File,
    io,
    os::fd::{OwnedFd, RawFd},
    path::Path,
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
    if schedule::set(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1).is_err() {
        // SAFETY: plain numbers; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
}

/// Does `work`, and lets programs run meanwhile if it `spins`: a SCHED_FIFO thread that tries again and again would keep the
/// owner of the kernel's lock from its CPU.
pub(super) fn gently<T>(spins: bool, work: impl FnOnce() -> T) -> T {
    if spins {
        let _ = schedule::set(0, libc::SCHED_OTHER, 0);
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
    let Ok(mine) = std::fs::read_to_string("/proc/self/cgroup") else { return false };
    let mut apart = true;
    for (kind, path) in mine.lines().filter_map(freezable) {
        apart &= kind.leave(path);
    }
    apart
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Version 2.
    Unified,
    /// Version 1 with the controller that freezes.
    Freezer,
}

impl Kind {
    /// The file by which a group is frozen. A root has none; that of a namespace is the group of somebody else.
    fn switch(self) -> &'static str {
        match self {
            Kind::Unified => "cgroup.freeze",
            Kind::Freezer => "freezer.state",
        }
    }

    /// The root of the hierarchy: through a mount of its own, since what is mounted here may be read-only, or hidden by a
    /// network namespace's sysfs; without CAP_SYS_ADMIN where it is usually mounted.
    fn root(self) -> Option<OwnedFd> {
        let (kind, flags, usual) = match self {
            Kind::Unified => (c"cgroup2", &[][..], &crate::cgroups::USUAL[..]),
            Kind::Freezer => (c"cgroup", &[c"freezer"][..], &["/sys/fs/cgroup/freezer"][..]),
        };
        sysfs::detached(kind, flags).ok().or_else(|| {
            let found = usual.iter().find(|path| Path::new(path).join("cgroup.procs").exists())?;
            File::open(found).ok().map(OwnedFd::from)
        })
    }

    /// Moves the process, which is in the group `path`, to the root of the hierarchy.
    fn leave(self, path: &str) -> bool {
        // Where nothing is to be seen of it, the kernel's own word counts.
        let Some(root) = self.root() else { return path == "/" };
        let moved = path == "/"
            || sysfs::open_below(&root, "cgroup.procs", libc::O_WRONLY)
                .is_ok_and(|fd| io::Write::write_all(&mut File::from(fd), b"0").is_ok());
        moved && sysfs::open_below(&root, self.switch(), libc::O_RDONLY).is_err()
    }
}

/// A line of `/proc/self/cgroup`, `NUMBER:CONTROLLERS:PATH`, if it is one of a group that can be frozen. Of version 1 not the
/// root: a mount would make the hierarchy anew where there is none. That of version 2 may be one of a namespace.
fn freezable(line: &str) -> Option<(Kind, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let kind = match controllers {
        "" => Kind::Unified,
        c if c.split(',').any(|c| c == "freezer") => Kind::Freezer,
        _ => return None,
    };
    (path != "/" || kind == Kind::Unified).then_some((kind, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_can_be_frozen() {
        assert_eq!(freezable("6:freezer:/a"), Some((Kind::Freezer, "/a")));
        assert_eq!(freezable("6:cpu,freezer:/a:b"), Some((Kind::Freezer, "/a:b")));
        assert_eq!(freezable("0::/system.slice/x"), Some((Kind::Unified, "/system.slice/x")));
        assert_eq!(
            (freezable("0::/"), freezable("6:freezer:/")),
            (Some((Kind::Unified, "/")), None),
            "a root"
        );
        assert_eq!((freezable("4:memory:/x"), freezable("")), (None, None));
    }
}
