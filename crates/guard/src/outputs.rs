//! Where status objects go that nobody asked for: `--status`. Nobody waits for a reader.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::error::failed;
use crate::options::StatusTo;
use crate::out::shown;
use crate::outbox::{Outbox, Standard};
use crate::status::Status;

/// Status lines that wait for a reader at most.
const STATUS_MAX: usize = 8;

/// `--status`: one JSON line per second.
pub struct StatusWriter {
    to: Option<Outbox>,
}

impl StatusWriter {
    /// Opens the file for appending.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(to: Option<&StatusTo>) -> anyhow::Result<Self> {
        let to = match to {
            None => None,
            Some(StatusTo::Stdout) => Some(Outbox::new("weir-status", STATUS_MAX, Standard::Out)?),
            Some(StatusTo::File(path)) => Some(Outbox::new("weir-status", STATUS_MAX, append(path)?)?),
        };
        Ok(Self { to })
    }

    /// True while somebody wants lines; why not any more, once.
    pub fn wants(&mut self) -> Result<bool, String> {
        match self.to.as_ref().and_then(Outbox::over) {
            // A reader that went away does not end the guard.
            Some(why) => {
                self.to = None;
                Err(why)
            }
            None => Ok(self.to.is_some()),
        }
    }

    /// Writes a line.
    ///
    /// # Errors
    /// None that JSON can have here.
    pub fn write(&mut self, mut status: Status) -> anyhow::Result<()> {
        let Some(to) = &mut self.to else { return Ok(()) };
        status.status_lines_dropped = to.dropped();
        let mut line = serde_json::to_vec(&status)?;
        line.push(b'\n');
        // Nobody waits for a reader that has stopped: the line is counted, and the next one says so.
        to.send(line);
        Ok(())
    }
}

/// A FIFO that nobody reads is refused: waiting for a reader would keep the guard from its signals.
fn append(path: &Path) -> anyhow::Result<File> {
    let why = |e: std::io::Error| {
        let path = shown(&path.to_string_lossy());
        match e.raw_os_error() {
            Some(libc::ENXIO) => {
                failed(format!("--status {path}: nobody reads this FIFO; start its reader first"))
            }
            _ => failed(format!("--status {path}: {e}")),
        }
    };
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(why)?;
    // Lines are written by a thread that may wait.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND)).map_err(|e| why(e.into()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_needs_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let refused = append(&path).unwrap_err().to_string();
        assert!(refused.contains("nobody reads this FIFO"), "{refused}");
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let writer = append(&path).unwrap();
        let flags = OFlag::from_bits_retain(fcntl(&writer, FcntlArg::F_GETFL).unwrap());
        assert!(!flags.contains(OFlag::O_NONBLOCK), "{flags:?}");
        drop(reader);
    }
}
