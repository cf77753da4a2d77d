//! Network namespaces of the lab, named `weir-PID-TAG` so that `ip netns` shows them and so that those of a dead
//! lab can be found.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use super::{Context, Error, Result};

const DIRECTORY: &str = "/run/netns";

/// A namespace that this process made; deleted when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    path: PathBuf,
    file: File,
    inode: u32,
}

impl Namespace {
    /// Makes `weir-PID-TAG`. IPv6 is off in it, so that no neighbour discovery adds packets to a ledger.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or if the name exists.
    pub fn create(tag: &str) -> Result<Namespace> {
        let name = format!("weir-{}-{tag}", std::process::id());
        let path = Path::new(DIRECTORY).join(&name);
        share().what(|| format!("{DIRECTORY} (needs root or CAP_SYS_ADMIN)"))?;
        File::create_new(&path).what(|| format!("namespace {name}"))?;
        let target = path.clone();
        let made = in_thread(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            for scope in ["all", "default"] {
                // A kernel without IPv6 has no such file and needs none.
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            }
            // The bind mount keeps the namespace alive when this thread is gone.
            mount(Some("/proc/thread-self/ns/net"), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
            Ok::<(), io::Error>(())
        });
        let made = made.and_then(|r| {
            r.what(|| format!("namespace {name} (needs root or CAP_SYS_ADMIN)"))?;
            let file = File::open(&path).what(|| path.display().to_string())?;
            let inode = file.metadata().what(|| path.display().to_string())?.ino();
            Ok((file, inode as u32))
        });
        match made {
            Ok((file, inode)) => Ok(Namespace { name, path, file, inode }),
            Err(e) => {
                remove(&path);
                Err(e)
            }
        }
    }

    /// The name as `ip netns` shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Inode number of the namespace, by which BPF programs know it.
    #[must_use]
    pub fn inode(&self) -> u32 {
        self.inode
    }

    /// Runs `work` in a thread inside the namespace, with /sys showing the namespace's devices, and waits for
    /// it. A process that `work` spawns lives in the same namespace, as under `ip netns exec`.
    ///
    /// # Errors
    /// If the thread cannot enter, and whatever `work` answers.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        in_thread(|| {
            self.enter()?;
            work()
        })?
    }

    /// Moves the calling thread in for good. For threads that live and end inside.
    ///
    /// # Errors
    /// If one of the steps is refused.
    pub fn enter(&self) -> Result<()> {
        self.door()?.enter()
    }

    /// A way in for a thread that outlives the borrow of this value.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn door(&self) -> Result<Door> {
        Ok(Door { name: self.name.clone(), file: self.file.try_clone().what(|| self.name.clone())? })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

/// See [`Namespace::door`]. It keeps the namespace alive, but not its name.
#[derive(Debug)]
pub struct Door {
    name: String,
    file: File,
}

impl Door {
    /// As [`Namespace::enter`].
    ///
    /// # Errors
    /// If one of the steps is refused.
    pub fn enter(&self) -> Result<()> {
        let what = || format!("enter namespace {}", self.name);
        setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET).what(what)?;
        // /sys shows the devices of the namespace it was mounted in, so it is mounted again, in a mount
        // namespace of this thread's own.
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).what(what)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).what(what)?;
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).what(what)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Makes the directory of names a shared mount, as `ip netns add` does: else a namespace made now has no name for
/// threads and programs that entered another one before, on a machine whose `/` is private.
fn share() -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    // Two at once would mount it twice; closing the descriptor unlocks.
    let lock = File::open(DIRECTORY)?;
    lock.lock()?;
    let none = None::<&str>;
    let shared = || mount(none, DIRECTORY, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none);
    // EINVAL: it is no mount point yet.
    if let Err(Errno::EINVAL) = shared() {
        mount(Some(DIRECTORY), DIRECTORY, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
        shared()?;
    }
    Ok(())
}

fn remove(path: &Path) {
    // Nothing can be done about a failure here; the next lab removes what a dead one left.
    let _ = umount2(path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(path);
}

/// Removes the namespaces of labs that are no longer alive and answers their names.
#[must_use]
pub fn remove_stale() -> Vec<String> {
    let entries = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    let stale =
        names.filter(|name| owner(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    stale.inspect(|name| remove(&Path::new(DIRECTORY).join(name))).collect()
}

/// Process id in the name of a lab's namespace.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("weir-")?.split_once('-')?.0.parse().ok()
}

/// Namespaces belong to threads, so whatever enters one runs in a thread of its own.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| scope.spawn(work).join()).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        Error::Missing(format!("thread in namespace panicked: {text}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_read_from_the_name_only() {
        assert_eq!(owner("weir-12-wire"), Some(12));
        assert_eq!(owner("weir-12"), None);
        assert_eq!(owner("weir-x-wire"), None);
        assert_eq!(owner("mine"), None);
    }

    #[test]
    fn a_namespace_shows_its_own_devices_and_goes_root() {
        if !testkit::root_or_skip("a_namespace_shows_its_own_devices_and_goes_root") {
            return;
        }
        let ns = Namespace::create("nstest").unwrap();
        let path = ns.path.clone();
        let devices = ns
            .run(|| {
                Ok(fs::read_dir("/sys/class/net")
                    .unwrap()
                    .flatten()
                    .map(|e| e.file_name())
                    .collect::<Vec<_>>())
            })
            .unwrap();
        assert_eq!(devices, ["lo"]);
        drop(ns);
        assert!(!path.exists());
    }

    #[test]
    fn a_namespace_is_known_by_name_inside_one_made_before_root() {
        if !testkit::root_or_skip("a_namespace_is_known_by_name_inside_one_made_before_root") {
            return;
        }
        let old = Namespace::create("nsold").unwrap();
        let (inside, entered) = std::sync::mpsc::channel();
        let (done, made) = std::sync::mpsc::channel::<PathBuf>();
        let door = old.door().unwrap();
        let seen = std::thread::spawn(move || {
            door.enter().unwrap();
            inside.send(()).unwrap();
            fs::metadata(made.recv().unwrap()).unwrap().ino()
        });
        entered.recv().unwrap();
        let new = Namespace::create("nsnew").unwrap();
        done.send(new.path.clone()).unwrap();
        assert_eq!(seen.join().unwrap(), u64::from(new.inode()));
    }
}
