//! A reverse proxy on many cores: NIC steering, softirqs, accept queues, locks and cache lines (BH-05 to BH-24).
//!
//! A request takes five bursts of frames to the proxy (connection request; connection and request; the server's
//! connection; its response; acknowledgements and the end) and three runs of a worker. Each is a list of steps in
//! `plan`; a step has a cost, may read lines of a connection that another core had, and may hold a lock:
//!
//! - **lines**: count x the cost of one line between the two cores. Each connection remembers who had it last.
//! - **locks**: first come first served, who waits spins. The holder also fetches the lines of what the lock
//!   guards from the holder before.
//! - **siblings**: two cores of a module slow each other down while both work.
//!
//! Nothing else depends on the number of cores: throughput against cores is a result. Where a connection waits and
//! who accepts it, is decided by [`policy::accept`], if there is a queue per core; with one queue any worker takes the
//! next one, the one that waits longest first.
//!
//! Clients are closed loops over links of a stated rate, or an open loop whose times do not depend on answers. Cores may receive unequal
//! shares, requests be of two lengths, and workers sleep now and then. The ideal queue has no lock, and is there to compare with. What the ring or an accept queue loses comes again after the
//! retransmission timeout, 15 times at most; then its request is given up.

mod host;
mod lock;
pub mod paper;
mod plan;
mod report;
mod settings;
mod softirq;
mod steps;
mod topology;
mod wire;
mod worker;

pub use settings::{Locks, Outgoing, Place, Queues, Settings, Steering};

use super::{Input, Kind, Machine, Outcome};
use crate::settings::{Given, Refused, Settings as _};

/// The kind of these machines.
pub const KIND: Kind = Kind {
    name: "proxy",
    about: "reverse proxy on many cores: steering, accept queues, locks and cache lines",
    keys: Settings::keys,
    new: || Box::new(Proxy::default()),
};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Proxy {
    settings: Settings,
}

impl Machine for Proxy {
    fn set(&mut self, key: &str, given: &Given) -> Result<(), Refused> {
        self.settings.set(key, given)
    }

    fn show(&self, key: &str) -> Option<String> {
        self.settings.show(key)
    }

    fn check(&self) -> Result<(), String> {
        self.settings.fits()
    }

    fn run(&self, input: &Input) -> Outcome {
        let Some(mut host) = host::Host::new(&self.settings, input) else {
            let faults = vec!["the rules of the accept queues do not fit".to_string()];
            return Outcome { faults, ..Outcome::default() };
        };
        if host.run(input) { host.outcome() } else { Outcome::default() }
    }

    fn boxed(&self) -> Box<dyn Machine> {
        Box::new(self.clone())
    }
}
