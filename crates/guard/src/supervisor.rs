//! What the service manager hears: systemd's notify protocol. Without a manager nothing is sent and no thread is asked.
//!
//! A manager whose queue is full makes its senders wait, so a thread of its own tells it: what does not fit before that thread
//! is dropped, and the next ping says the same.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use policy::Nanos;
use policy::watchdog::Watchdog;
use sd_notify::NotifyState;

/// Words that wait for the manager at most.
const WORDS_MAX: usize = 16;
/// Stack of the thread, bytes.
const STACK: usize = 64 * 1024;

/// What the manager is told.
enum Word {
    /// In force, with a line of status.
    Ready(String),
    /// The file is read again.
    Reloading,
    /// Everything is being put back.
    Stopping,
    /// All threads run, with a line of status.
    Ping(String),
}

/// See the module.
pub struct Supervisor {
    /// Only if the manager waits for pings (`WatchdogSec=`).
    watchdog: Option<Watchdog>,
    /// Only if there is a manager.
    words: Option<SyncSender<Word>>,
}

fn tell(words: &Receiver<Word>) {
    crate::outbox::ordinary();
    for word in words {
        // A manager that is not there must not stop the guard.
        let _ = match &word {
            Word::Ready(status) => sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)]),
            Word::Reloading => match NotifyState::monotonic_usec_now() {
                Ok(now) => sd_notify::notify(&[NotifyState::Reloading, now]),
                Err(_) => sd_notify::notify(&[NotifyState::Reloading]),
            },
            Word::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
            Word::Ping(status) => sd_notify::notify(&[NotifyState::Watchdog, NotifyState::Status(status)]),
        };
    }
}

impl Supervisor {
    /// By the environment that the manager gave to this process.
    pub fn new() -> Self {
        let patience = sd_notify::watchdog_enabled();
        let words = std::env::var_os("NOTIFY_SOCKET").and_then(|_| {
            let (words, inbox) = sync_channel(WORDS_MAX);
            let thread = std::thread::Builder::new().name("weir-manager".into()).stack_size(STACK);
            // Without a thread the manager hears nothing: it ends what does not say that it is ready.
            thread.spawn(move || tell(&inbox)).ok().map(|_| words)
        });
        Self { watchdog: patience.map(|p| Watchdog::new(p.as_nanos() as Nanos)), words }
    }

    fn say(&self, word: Word) {
        if let Some(words) = &self.words {
            let _ = words.try_send(word);
        }
    }

    /// The guard is in force.
    pub fn ready(&self, status: &str) {
        self.say(Word::Ready(status.to_owned()));
    }

    /// The file is read again; [`Self::ready`] ends it.
    pub fn reloading(&self) {
        self.say(Word::Reloading);
    }

    /// Everything is being put back.
    pub fn stopping(&self) {
        self.say(Word::Stopping);
    }

    /// Pings if every thread has answered; the number to ask them for now, if any. `slowest` and `status` are asked for
    /// only if there is somebody to tell.
    pub fn tick(
        &mut self,
        now: Nanos,
        slowest: impl FnOnce() -> Option<u64>,
        status: impl FnOnce() -> String,
    ) -> Option<u64> {
        let step = self.watchdog.as_mut()?.step(now, slowest());
        if step.ping {
            self.say(Word::Ping(status()));
        }
        step.ask
    }
}
