//! What the lab needs from the kernel: namespaces and veth pairs, a source of frames, meters of receive work,
//! and readings of counters. The guard uses none of it, [`crate::raw`] the readings.

pub mod connections;
pub mod counters;
pub mod ethtool;
pub mod link;
pub mod netns;
pub mod share;
#[cfg_attr(no_bpf, allow(dead_code, reason = "limits of a source that this build does not have"))]
pub mod source;
pub mod tasks;

use std::io;

/// Why the lab's world could not be built or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or a file refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, with the object's name.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A BPF program or map was refused.
    #[error("{0}")]
    Bpf(String),
    /// This build, this kernel or this user lacks something; the text says what and how to get it.
    #[error("{0}")]
    Missing(String),
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) trait Context<T> {
    /// Names what was tried.
    fn what(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn what(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::Io { what: what(), source: e.into() })
    }
}

pub(crate) fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).what(|| path.into())
}

pub(crate) fn write(path: &str, value: &str) -> Result<()> {
    std::fs::write(path, value).what(|| format!("{path} = {value}"))
}
