//! Why an experiment could not be run.

use std::io;

/// An experiment ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option that cannot be met; the text says which and how to put it right.
    #[error("{0}")]
    Usage(String),
    /// Privilege, kernel, build or idle CPUs are lacking; the text says what and how to get it.
    #[error("{0}")]
    Missing(String),
    /// SIGINT or SIGTERM. Everything is cleaned up.
    #[error("interrupted")]
    Interrupted,
    /// A namespace, device, counter or BPF program refused.
    #[error(transparent)]
    Wire(#[from] kern::wire::Error),
    /// A measured program could not be started or did not answer.
    #[error("{program}: {what}")]
    Program {
        /// Its name.
        program: String,
        /// What went wrong.
        what: String,
    },
}

impl Error {
    pub(crate) fn program(program: &str, what: impl ToString) -> Error {
        Error::Program { program: program.into(), what: what.to_string() }
    }

    /// True if a privilege or a feature is missing, and not the measurement broken.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        match self {
            Error::Missing(_) | Error::Wire(kern::wire::Error::Missing(_)) => true,
            Error::Wire(kern::wire::Error::Io { source, .. }) => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            _ => false,
        }
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
