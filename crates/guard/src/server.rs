//! The socket in the control directory by which a running weir is asked what it does. Who asks is never waited for.

use crate::error::failed;
use crate::outbox;
use serde::Serialize;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Stack of the thread that answers, bytes.
const ANSWERS_STACK: usize = 64 * 1024;

/// The socket: root only, one answer per connection.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    answers: SyncSender<(UnixStream, Vec<u8>)>,
}

/// Connections answered in one round.
pub const ANSWERS_MAX: usize = 4;
/// Answers that wait to be written; more are not given.
const ANSWERS_WAITING: usize = 8;
/// A reader that takes nothing for so long gets no answer; others wait behind it.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);

impl Server {
    /// Listens on `KIND-PID.sock` in `dir`: one of [`crate::status::KINDS`].
    ///
    /// # Errors
    /// If the directory or the socket cannot be made.
    pub fn bind(dir: &Path, kind: &str) -> anyhow::Result<Self> {
        kern::rundir::private(dir)?;
        crate::status::sweep(dir);
        let path = dir.join(format!("{kind}-{}.sock", std::process::id()));
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(|e| failed(format!("{}: {e}", path.display())))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let (answers, inbox) = sync_channel(ANSWERS_WAITING);
        let thread = std::thread::Builder::new().name("weir-answers".into()).stack_size(ANSWERS_STACK);
        thread.spawn(move || write_answers(&inbox))?;
        Ok(Self { listener, path, answers })
    }

    /// The next one who asks.
    pub fn asked(&self) -> Option<UnixStream> {
        self.listener.accept().ok().map(|(stream, _)| stream)
    }

    /// Answers.
    pub fn answer(&self, stream: UnixStream, status: &impl Serialize) {
        if let Ok(text) = serde_json::to_vec(status) {
            // Too many ask at once: this one is told nothing, and asks again.
            let _ = self.answers.try_send((stream, text));
        }
    }
}

/// Writes answers one by one; one that is not taken in time is cut short.
fn write_answers(answers: &Receiver<(UnixStream, Vec<u8>)>) {
    outbox::ordinary();
    for (mut stream, text) in answers {
        let end = Instant::now() + ANSWER_PATIENCE;
        let mut left = &text[..];
        while let Some(patience) = end.checked_duration_since(Instant::now()).filter(|p| !p.is_zero()) {
            let ready = stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(patience)));
            match ready.and_then(|()| stream.write(left)) {
                Ok(n) if n > 0 && n < left.len() => left = &left[n..],
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // Done, or a reader that went away has what it wanted.
                _ => break,
            }
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
