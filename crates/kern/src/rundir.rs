//! The directory of weir's files, such as `/run/weir`: its owner's alone. What others could write there they could make
//! weir trust.

use crate::{
    error::{Error, Result},
    proc,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Most journals that are listed from one directory: the first by name.
pub const MAX_JOURNALS: usize = 4096;
/// Second part of the name of a journal whose interface has left its namespace.
pub const AWAY: &str = "away";
/// Largest file that is read or written here, bytes.
pub const MAX_BYTES: usize = 512 * 1024;

/// Makes `dir` and its parents if need be, for this user alone (0700). One that is there must be a real directory of this
/// user that nobody else may write to; its mode is left as it is, for it may be one that others need.
///
/// # Errors
/// If it is a link or no directory, belongs to another user or may be written to by one, or cannot be made.
pub fn private(dir: &Path) -> Result<()> {
    let shown = || dir.display().to_string();
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return Err(Error::Denied { what: shown(), need: "write access" });
        }
        r => r.map_err(|e| Error::io(shown(), e))?,
    }
    let refused = |why: &str| Err(Error::Invalid { what: shown(), why: why.into() });
    // Opened first: what is checked is what is changed.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY).open(dir);
    let file = match opened {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)) => {
            return refused("a link or no directory, so not trusted; remove it");
        }
        r => r.map_err(|e| Error::io(shown(), e))?,
    };
    let meta = file.metadata().map_err(|e| Error::io(shown(), e))?;
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        return refused("belongs to another user, so not trusted");
    }
    if meta.permissions().mode() & 0o022 != 0 {
        return refused("others may write to it, so not trusted; chmod 0700 it, or name another one");
    }
    Ok(())
}

/// Reads a file that weir wrote here: for its owner only, no link, at most [`MAX_BYTES`] + 1 bytes of it.
///
/// # Errors
/// If it is none, or cannot be read.
pub fn load(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display().to_string();
    let bad = |why: &str| Error::Invalid { what: shown.clone(), why: why.into() };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|e| Error::io(&shown, e))?;
    let meta = file.metadata().map_err(|e| Error::io(&shown, e))?;
    if !meta.is_file() || meta.permissions().mode() & 0o077 != 0 {
        return Err(bad("not a file for its owner only (mode 0600): not written by weir, so not trusted"));
    }
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        return Err(bad("belongs to another user, so not trusted"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| Error::io(&shown, e))?;
    Ok(bytes)
}

/// Replaces the file in one step: at no time is there half of one.
///
/// # Errors
/// If the file system refuses; then the file is as before.
pub fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    let stem = path.file_name().unwrap_or_default().to_string_lossy();
    let temp = path.with_file_name(format!(".{stem}.{}.tmp", std::process::id()));
    replace(&temp, path, bytes).map_err(|e| {
        // The error is what counts; a temporary file left behind is swept by the next listing.
        _ = fs::remove_file(&temp);
        Error::io(path.display().to_string(), e)
    })
}

/// Removes the file, if there is one.
///
/// # Errors
/// If the file system refuses.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(path.display().to_string(), e)),
        _ => Ok(()),
    }
}

fn replace(temp: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(temp)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(temp, path)?;
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Paths of all journals in `dir`, sorted, at most [`MAX_JOURNALS`]; none if there is no such directory.
/// Temporary files of dead processes are removed.
pub fn journals(dir: &Path) -> Result<Vec<PathBuf>> {
    let shown = || dir.display().to_string();
    let entries = match fs::read_dir(dir) {
        Ok(e) => e,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(shown(), e)),
    };
    let mut paths = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        if let Some((a, b)) = name.strip_suffix(".json").and_then(|s| s.split_once('-')) {
            if digits(a) && (digits(b) || b == AWAY) {
                paths.push(entry.path());
            }
        } else if let Some((_, pid)) = name.strip_suffix(".tmp").and_then(|s| s.rsplit_once('.'))
            && name.starts_with('.')
            && pid.parse().is_ok_and(|p| proc::start_time(p).is_none())
        {
            _ = fs::remove_file(entry.path());
        }
    }
    paths.sort();
    paths.truncate(MAX_JOURNALS);
    Ok(paths)
}

/// Opens the file of a lock, which is made if need be, for its owner only.
///
/// # Errors
/// If it cannot be, or is a link: that would be somebody's way to a file of theirs.
pub fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Keeps two processes from restoring or claiming at the same time. Released on drop, also by death.
pub struct Lock(#[allow(dead_code, reason = "held for its lock")] nix::fcntl::Flock<File>);

impl Lock {
    /// Longest wait for another holder.
    pub const PATIENCE: Duration = Duration::from_secs(1);

    /// Takes the lock of `dir`, which must exist; waits at most [`Lock::PATIENCE`].
    pub fn take(dir: &Path) -> Result<Lock> {
        use nix::fcntl::{Flock, FlockArg};
        let path = dir.join(".lock");
        let open = || lock_file(&path);
        let mut file = open().map_err(|e| Error::io(path.display().to_string(), e))?;
        let until = Instant::now() + Lock::PATIENCE;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Lock(lock)),
                Err((f, nix::errno::Errno::EWOULDBLOCK | nix::errno::Errno::EINTR))
                    if Instant::now() < until =>
                {
                    file = f;
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err((_, e)) => return Err(Error::io(path.display().to_string(), io::Error::from(e))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(dir: &Path) -> u32 {
        fs::metadata(dir).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_directory_is_private_or_refused() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("run/weir");
        private(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
        // One that others may read is none that they could put something into.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        private(&dir).unwrap();
        assert_eq!(mode(&dir), 0o755, "left as it is");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(private(&dir).unwrap_err().to_string().contains("others may write"));
        assert_eq!(mode(&dir), 0o777);
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(private(&link).unwrap_err().to_string().contains("a link"));
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(private(&file).is_err());
    }

    #[test]
    fn a_directory_of_another_user_is_refused_root() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: a_directory_of_another_user_is_refused_root needs root");
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("weir");
        private(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(65534), None).unwrap();
        assert!(private(&dir).unwrap_err().to_string().contains("another user"));
    }

    #[test]
    fn a_lock_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::os::unix::fs::symlink(&victim, dir.path().join(".lock")).unwrap();
        assert!(Lock::take(dir.path()).is_err() && !victim.exists());
    }
}
