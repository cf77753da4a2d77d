//! Marks handles through `sk_lookup`: one datagram that the firewall has let through goes to the handle instead of its
//! socket. Loaded once; attached to the network namespace only while a handle waits.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::{Link, MapCore, MapFlags, Object};

use super::abi::{SOURCES, Steer};
use super::object::{Aligned, failed, open, program_id};
use super::{Error, Handle, Shared};

static STEER: &Aligned<{ include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o")).len() }> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o")));

/// Name of the program.
pub(super) const NAME: &str = "weir_steer";
/// Most interfaces from which the packets of one guarded interface are seen to come: itself and those that stand on it.
pub const UPPERS: usize = 16;

struct State {
    object: Object,
    link: Option<Link>,
    /// Requests that wait.
    waiting: u64,
}

/// See the module.
pub struct Steering {
    state: Mutex<State>,
    steers: Shared<Steer>,
    id: Option<u32>,
}

fn absent(what: &str) -> Error {
    Error::Bpf { what: what.into(), source: std::io::ErrorKind::NotFound.into() }
}

impl Steering {
    /// Loads the program. Attaches nothing.
    ///
    /// # Errors
    /// [`Error::Bpf`] on kernels whose `sk_lookup` programs do not see the interface of a packet (before 5.17).
    pub fn load() -> Result<Self, Error> {
        libbpf_rs::set_print(None);
        let object = open(&STEER.0, NAME)?.load().map_err(failed("program weir_steer"))?;
        let steers = {
            let map = object.maps().find(|m| m.name() == "steers").ok_or_else(|| absent("steers"))?;
            // SAFETY: guard.h declares the values with the struct that abi.rs mirrors, its size is asserted on both sides,
            // all fields are atomics, and the length is that of the map.
            unsafe { Shared::map(map.as_fd(), SOURCES) }
                .map_err(|source| Error::Bpf { what: "steers".into(), source })?
        };
        let id = object.progs().next().and_then(|program| program_id(program.as_fd()).ok());
        Ok(Self { state: Mutex::new(State { object, link: None, waiting: 0 }), steers, id })
    }

    /// The kernel's number of the program.
    pub fn id(&self) -> Option<u32> {
        self.id
    }

    /// Asks for one datagram of one of `interfaces` for `handle`, until `lease` (CLOCK_MONOTONIC, ns; [`Self::renew`]
    /// prolongs it): the first `spare` datagrams that somebody would miss are let go. `request` names it, below
    /// [`SOURCES`]; a new request of a name replaces the one before. Returns at once.
    ///
    /// # Errors
    /// What the kernel says: 64 other programs are attached there, or the namespace is another one by now.
    pub fn ask(
        &self,
        request: usize,
        interfaces: &[u32],
        handle: &Handle,
        spare: u32,
        lease: u64,
    ) -> Result<(), Error> {
        let mut state = self.state.lock().map_err(|_| absent("a thread broke weir_steer"))?;
        let State { object, link, waiting } = &mut *state;
        let steer = self.steers.get(request).ok_or_else(|| absent("a request of this number"))?;
        let key = (request as u32).to_ne_bytes();
        steer.wanted.store(0, Relaxed);
        let update = |name: &str, key: &[u8], value: &[u8]| {
            let map = object.maps().find(|m| m.name() == name).ok_or_else(|| absent(name))?;
            map.update(key, value, MapFlags::ANY).map_err(failed(name))
        };
        update("steer_handles", &key, &u64::from(handle.as_fd().as_raw_fd().unsigned_abs()).to_ne_bytes())?;
        for ifindex in interfaces.iter().take(UPPERS) {
            update("steer_interfaces", &ifindex.to_ne_bytes(), &key)?;
        }
        steer.spare.store(spare, Relaxed);
        steer.port.store(handle.port().into(), Relaxed);
        steer.lease.store(lease, Relaxed);
        steer.wanted.store(1, Relaxed);
        *waiting |= 1 << request;
        if link.is_none() {
            let netns = std::fs::File::open("/proc/thread-self/ns/net")
                .map_err(|source| Error::Bpf { what: "this network namespace".into(), source })?;
            let program = object.progs_mut().next().ok_or_else(|| absent(NAME))?;
            *link = Some(program.attach_netns(netns.as_raw_fd()).map_err(failed(NAME))?);
        }
        Ok(())
    }

    /// Ends the request; the last one detaches the program.
    pub fn end(&self, request: usize, interfaces: &[u32]) {
        let Ok(mut state) = self.state.lock() else { return };
        let Some(steer) = self.steers.get(request) else { return };
        steer.wanted.store(0, Relaxed);
        let delete = |name: &str, key: &[u8]| {
            if let Some(map) = state.object.maps().find(|m| m.name() == name) {
                // An entry that is not there is what was asked for.
                let _ = map.delete(key);
            }
        };
        for ifindex in interfaces.iter().take(UPPERS) {
            delete("steer_interfaces", &ifindex.to_ne_bytes());
        }
        // A handle that is closed leaves the map by itself.
        state.waiting &= !(1 << request);
        if state.waiting == 0 {
            state.link = None;
        }
    }

    /// Prolongs the leases of all requests to `lease`, ns.
    pub fn renew(&self, lease: u64) {
        for steer in self.steers.iter().filter(|s| s.wanted.load(Relaxed) != 0) {
            steer.lease.store(lease, Relaxed);
        }
    }

    /// True while a request waits.
    pub fn waits(&self) -> bool {
        self.steers.iter().any(|s| s.wanted.load(Relaxed) != 0)
    }

    /// Datagrams taken for the request so far; each is lost to its socket.
    pub fn taken(&self, request: usize) -> u64 {
        self.steers.get(request).map_or(0, |s| s.taken.load(Relaxed))
    }
}
