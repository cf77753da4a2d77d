//! The error of this crate's plumbing: what was tried, and why it did not work, as one line.

use std::io;

/// Why a kernel setting or gauge could not be read or written. `Display` is one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The NAPI, queue or interface does not exist any more (deleted, moved, or set down).
    #[error("{what}: it is gone")]
    Gone {
        /// What was looked for.
        what: String,
    },
    /// This kernel or driver cannot do it.
    #[error("{what}: not supported here (since {since})")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// The kernel version, option or driver that brings it.
        since: &'static str,
    },
    /// A capability is missing.
    #[error("{what}: needs {need}; run it with sudo")]
    Denied {
        /// What was asked for.
        what: String,
        /// The capability.
        need: &'static str,
    },
    /// The kernel took the value but shows another one.
    #[error("{what}: wrote {wrote}, reads back {found}")]
    ReadBack {
        /// The setting.
        what: String,
        /// The value written.
        wrote: String,
        /// The value found afterwards.
        found: String,
    },
    /// The keeper has not answered in time, or has ended: end it and start another one.
    #[error("keeper: {what}")]
    Lost {
        /// What was seen of it.
        what: String,
    },
    /// Bytes from outside (a file, a kernel reply) are not what they must be.
    #[error("{what}: {why}")]
    Invalid {
        /// Where the bytes came from.
        what: String,
        /// What is wrong with them.
        why: String,
    },
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps a failed operation on `what`. "No such" answers become [`Error::Gone`], "not supported"
    /// answers stay with their errno, because only the caller knows since when it is supported.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => Error::Gone { what },
            _ => Error::Io { what, source },
        }
    }

    /// The last errno of this thread, as an error on `what`.
    pub(crate) fn last(what: impl Into<String>) -> Self {
        Error::io(what, io::Error::last_os_error())
    }

    /// The errno behind this error, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// True if the keeper cannot be relied on any more.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. })
    }

    /// True if the thing asked for does not exist any more.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::Gone { .. })
    }
}
