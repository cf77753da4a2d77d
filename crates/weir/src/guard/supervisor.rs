//! What the service manager hears: systemd's notify protocol. Without a manager nothing is sent and no thread is asked.

use policy::Nanos;
use policy::watchdog::Watchdog;
use sd_notify::NotifyState;

/// See the module.
pub struct Supervisor {
    /// Only if the manager waits for pings (`WatchdogSec=`).
    watchdog: Option<Watchdog>,
}

/// A manager that is not there, or does not listen, must not stop the guard.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

impl Supervisor {
    /// By the environment that the manager gave to this process.
    pub fn new() -> Self {
        let patience = sd_notify::watchdog_enabled();
        Self { watchdog: patience.map(|p| Watchdog::new(p.as_nanos() as Nanos)) }
    }

    /// The guard is in force.
    pub fn ready(&self, status: &str) {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The file is read again; [`Self::ready`] ends it.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(_) => tell(&[NotifyState::Reloading]),
        }
    }

    /// Everything is being put back.
    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
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
            tell(&[NotifyState::Watchdog, NotifyState::Status(&status())]);
        }
        step.ask
    }
}
