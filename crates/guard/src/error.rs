//! What can end a command, and the exit code each end has.

use std::fmt;

/// The reason a command ends without having done what was asked. Each text is one line: whose value, what is
/// wrong, what to do. Nothing was changed unless the text says so.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Usage or configuration, exit code 2. The only text that may have more lines: the place in a file.
    #[error("{0}")]
    Usage(String),
    /// A privilege or a kernel feature is missing, exit code 3.
    #[error("{0}")]
    Missing(String),
    /// What was measured or asked for failed, exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// The process's exit code: 1, 2 or 3.
    pub fn code(&self) -> u8 {
        match self {
            Error::Failed(_) => 1,
            Error::Usage(_) => 2,
            Error::Missing(_) => 3,
        }
    }
}

/// Usage error as `anyhow::Error`.
pub fn usage(text: impl fmt::Display) -> anyhow::Error {
    Error::Usage(text.to_string()).into()
}

/// Missing privilege or feature as `anyhow::Error`.
pub fn missing(text: impl fmt::Display) -> anyhow::Error {
    Error::Missing(text.to_string()).into()
}

/// Failure as `anyhow::Error`.
pub fn failed(text: impl fmt::Display) -> anyhow::Error {
    Error::Failed(text.to_string()).into()
}

/// Exit code of any error: 0 for a reader that closed the pipe (it has what it wanted), that of an [`Error`]
/// anywhere in the chain, 3 for what the kernel cannot do or does not permit, else 1.
pub fn code(err: &anyhow::Error) -> u8 {
    for cause in err.chain() {
        if let Some(err) = cause.downcast_ref::<Error>() {
            return err.code();
        }
        if let Some(err) = cause.downcast_ref::<kern::error::Error>() {
            use kern::error::Error::{Denied, Unsupported};
            if matches!(err, Denied { .. } | Unsupported { .. }) {
                return 3;
            }
        }
        if let Some(err) = cause.downcast_ref::<std::io::Error>() {
            match err.kind() {
                std::io::ErrorKind::BrokenPipe => return 0,
                std::io::ErrorKind::PermissionDenied => return 3,
                _ => {}
            }
        }
    }
    1
}

/// The chain of causes as the text after `error: `: one line, except where a configuration error shows its place.
pub fn text(err: &anyhow::Error) -> String {
    let text = format!("{err:#}");
    let has_place = err.chain().any(|cause| matches!(cause.downcast_ref(), Some(Error::Usage(_))));
    if has_place { text } else { text.trim_end().replace('\n', "; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use std::io::{Error as Io, ErrorKind};

    #[test]
    fn codes_survive_context() {
        for (err, expected) in [(usage("x"), 2), (missing("x"), 3), (failed("x"), 1)] {
            assert_eq!(code(&err.context("while doing y")), expected);
        }
        assert_eq!(code(&anyhow::anyhow!("x")), 1);
    }

    #[test]
    fn closed_pipe_is_success_and_permission_is_missing() {
        let pipe = Err::<(), _>(Io::from(ErrorKind::BrokenPipe)).context("writing").unwrap_err();
        assert_eq!(code(&pipe), 0);
        let denied = Err::<(), _>(Io::from(ErrorKind::PermissionDenied)).context("opening").unwrap_err();
        assert_eq!(code(&denied), 3);
    }

    #[test]
    fn other_errors_are_one_line() {
        assert_eq!(text(&anyhow::anyhow!("a\nb\n").context("c")), "c: a; b");
        assert_eq!(text(&usage("f:1:1: x\n  |\n1 | y")), "f:1:1: x\n  |\n1 | y");
    }
}
