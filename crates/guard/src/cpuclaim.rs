//! One guard owns a CPU: two pollers on one CPU would each count the other's time as the programs'.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use crate::error::{failed, usage};

/// CPUs claimed for this process, as locks that end with it.
pub struct Claims(#[allow(dead_code, reason = "held for the locks")] Vec<Flock<File>>);

/// Claims each CPU.
///
/// # Errors
/// Usage error naming the guard that has one of them. A failure if the directory is not private or a lock file is a link.
pub fn claim(dir: &Path, cpus: &[usize]) -> anyhow::Result<Claims> {
    kern::rundir::private(dir).map_err(failed)?;
    let mut locks = Vec::new();
    for cpu in cpus {
        let path = dir.join(format!("cpu-{cpu}.lock"));
        let mut file =
            kern::rundir::lock_file(&path).map_err(|e| failed(format!("{}: {e}", path.display())))?;
        let mut owner = String::new();
        Read::by_ref(&mut file).take(32).read_to_string(&mut owner).ok();
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                lock.set_len(0).and_then(|()| lock.rewind()).ok();
                // Only for the message of the next one; the lock is what counts.
                write!(lock, "{}", std::process::id()).ok();
                locks.push(lock);
            }
            Err(_) => {
                return Err(usage(format!(
                    "CPU {cpu}: already polled by weir, pid {}; stop that one first or give --cpu with other CPUs",
                    owner.trim()
                )));
            }
        }
    }
    Ok(Claims(locks))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn text(result: anyhow::Result<Claims>) -> String {
        format!("{:#}", result.err().expect("refused"))
    }

    #[test]
    fn a_new_directory_and_its_locks_are_private() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("run");
        let held = claim(&dir, &[7]).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&dir), mode(&dir.join("cpu-7.lock"))), (0o700, 0o600));
        assert!(text(claim(&dir, &[7])).contains(&format!("pid {}", std::process::id())));
        drop(held);
        drop(claim(&dir, &[7]).unwrap());
    }

    #[test]
    fn a_link_is_not_followed() {
        let top = tempfile::tempdir().unwrap();
        let (dir, victim) = (top.path().join("run"), top.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        kern::rundir::private(&dir).unwrap();
        symlink(&victim, dir.join("cpu-0.lock")).unwrap();
        text(claim(&dir, &[0]));
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        let link = top.path().join("link");
        symlink(&dir, &link).unwrap();
        assert!(text(claim(&link, &[1])).contains("a link or no directory"));
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let top = tempfile::tempdir().unwrap();
        std::fs::set_permissions(top.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(text(claim(top.path(), &[0])).contains("others may write"));
        // Readable for all is no way in.
        std::fs::set_permissions(top.path(), Permissions::from_mode(0o755)).unwrap();
        drop(claim(top.path(), &[0]).unwrap());
    }
}
