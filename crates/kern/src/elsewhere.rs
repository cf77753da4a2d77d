//! An interface that has been moved to another network namespace: found there, and its settings put back. It takes a thread
//! of its own, which enters one namespace after the other.

use crate::{journal::Journal, kernel::Elsewhere, netns, proc, settings::Access, sysfs::Sysfs};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

/// Most processes that are asked for their namespace, one stat each.
const PROCESSES_MAX: usize = 8192;
/// Most namespaces that are entered.
const SPACES_MAX: usize = 1024;
/// The first pid namespace, the only one that shows all processes (`PROC_PID_INIT_INO`).
const ALL_PROCESSES: &str = "pid:[4026531836]";

/// Index in the caller's namespace, which is that of `sysfs`, of the interface whose directory has this number.
pub(crate) fn index_of(sysfs: &Sysfs, device: u64) -> Option<u32> {
    let all = netns::interfaces().ok()?;
    let is = |index: &u32| sysfs.device(*index).and_then(|d| d.id()).is_ok_and(|id| id == device);
    all.into_iter().map(|(_, index)| index).find(is)
}

/// As [`crate::kernel::Kernel::elsewhere`]. Namespaces are found through processes that live in them and where they are
/// mounted.
pub(crate) fn restore(journal: &Journal, write: bool) -> Elsewhere {
    let Some(device) = journal.device() else { return Elsewhere::Hidden };
    let Ok(here) = netns::current_inode() else { return Elsewhere::Hidden };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("weir-elsewhere".into());
        let search = thread.spawn_scoped(scope, || search(journal, device, here, write));
        search.ok().and_then(|search| search.join().ok()).unwrap_or(Elsewhere::Hidden)
    })
}

fn search(journal: &Journal, device: u64, here: u64, write: bool) -> Elsewhere {
    let (mut spaces, mut whole) = spaces();
    spaces.remove(&here);
    whole &= spaces.len() <= SPACES_MAX;
    for path in spaces.values().take(SPACES_MAX) {
        match in_space(path, journal, device, write) {
            Ok(Some(found)) => return found,
            Ok(None) => {}
            Err(_) => whole = false,
        }
    }
    if whole { Elsewhere::Nowhere } else { Elsewhere::Hidden }
}

fn in_space(
    path: &Path,
    journal: &Journal,
    device: u64,
    write: bool,
) -> crate::error::Result<Option<Elsewhere>> {
    let shown = path.display().to_string();
    let space: OwnedFd = match File::open(path) {
        // Its last process has ended, and what it had of interfaces is gone or elsewhere.
        Err(e) if has_ended(&e) => return Ok(None),
        file => file.map_err(|e| crate::error::Error::io(shown, e))?.into(),
    };
    netns::enter(&space)?;
    // Most have nothing that could have been moved there.
    if netns::interfaces()?.iter().all(|(name, _)| name == "lo") {
        return Ok(None);
    }
    let Some(index) = index_of(&Sysfs::for_current_netns()?, device) else { return Ok(None) };
    let mut access = Access::for_current_netns()?;
    Ok(Some(Elsewhere::Found(journal.restore_at(&mut access, index, write))))
}

/// Of a process that is not there any more.
fn has_ended(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH)
}

/// A path to each namespace there is, by inode; and whether these are all.
fn spaces() -> (BTreeMap<u64, PathBuf>, bool) {
    let mut spaces = BTreeMap::new();
    let mut pids = proc::pids_in(proc::PROC.as_ref());
    // It lives where the kernel's threads do, and is closed to all others on some hosts.
    pids.retain(|pid| *pid != 1);
    let all = fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns.as_os_str() == ALL_PROCESSES);
    let mut whole = all && pids.len() <= PROCESSES_MAX;
    let of_processes = pids.into_iter().take(PROCESSES_MAX).map(|pid| format!("{}/{pid}/ns/net", proc::PROC));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        fields.next()?.starts_with("net:[").then(|| fields.next().map(String::from))?
    });
    for path in of_processes.chain(mounted) {
        match fs::metadata(&path) {
            Ok(meta) => _ = spaces.entry(meta.ino()).or_insert(PathBuf::from(path)),
            Err(e) => whole &= has_ended(&e),
        }
    }
    (spaces, whole)
}
