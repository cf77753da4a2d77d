//! One guard owns a CPU: two pollers on one CPU would each count the other's time as the programs'.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use crate::error::{failed, usage};

/// CPUs claimed for this process, as locks that end with it.
pub struct Claims(#[allow(dead_code, reason = "held for the locks")] Vec<Flock<File>>);

/// Claims each CPU.
///
/// # Errors
/// Usage error naming the guard that has one of them.
pub fn claim(dir: &Path, cpus: &[usize]) -> anyhow::Result<Claims> {
    create_dir_all(dir).map_err(|e| failed(format!("{}: {e}", dir.display())))?;
    let mut locks = Vec::new();
    for cpu in cpus {
        let path = dir.join(format!("cpu-{cpu}.lock"));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| failed(format!("{}: {e}", path.display())))?;
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
