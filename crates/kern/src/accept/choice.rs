//! The choice of one group: its program, its array of sockets and what both sides know of the queues.

use super::abi::{CHOSEN, CORES, State};
use super::{Group, any, cookie, detach, dup, set};
use crate::error::{Error, Result};
use crate::guard::object::{Aligned, failed, open, program_id};
use crate::guard::{Error as BpfError, Shared};
use libbpf_rs::{MapCore, MapFlags, Object, ProgramAttachType};
use policy::accept::queues::{Choice as Rules, QUEUES, Worker};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

static ACCEPT: &Aligned<{ include_bytes!(concat!(env!("OUT_DIR"), "/accept.bpf.o")).len() }> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/accept.bpf.o")));
/// Name of the program, by which one of a killed weir is known.
const NAME: &str = "weir_accept";
/// How long the sockets of a program that was taken off stay in its array.
pub const FREED: Duration = Duration::from_millis(900);

/// See the module. Dropping it does not detach: see [`Choice::detach`].
pub struct Choice {
    object: Object,
    state: Shared<State>,
    id: u32,
    filled: usize,
    /// Of those whose queues of one core are not neighbours.
    turn: usize,
}

/// What was seen of one queue.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Connections placed since it was filled; wraps.
    pub placed: u32,
    /// Of these, those that its worker's core received; wraps.
    pub affine: u32,
    /// Connections that waited.
    pub waiting: u32,
    /// When the oldest of them came (CLOCK_MONOTONIC, ns).
    pub oldest: Option<u64>,
    /// What its worker did.
    pub does: Worker,
}

impl Default for Seen {
    fn default() -> Self {
        Seen { placed: 0, affine: 0, waiting: 0, oldest: None, does: Worker::Unknown }
    }
}

fn absent(what: &str) -> BpfError {
    BpfError::Bpf { what: what.into(), source: io::ErrorKind::NotFound.into() }
}

impl Choice {
    /// Loads the program with these rules; it has the kernel move who waits at a closed listener if that `moves` ([`super::moves`]).
    /// Attaches nothing.
    ///
    /// # Errors
    /// [`BpfError::Bpf`]: no root, no BTF, or a kernel before 6.2.
    pub fn load(rules: &Rules, moves: bool) -> std::result::Result<Self, BpfError> {
        libbpf_rs::set_print(None);
        let mut object = open(&ACCEPT.0, NAME)?;
        for mut program in object.progs_mut().filter(|_| !moves) {
            program.set_attach_type(ProgramAttachType::SkReuseportSelect);
        }
        let object = object.load().map_err(failed("program weir_accept"))?;
        let map = object.maps().find(|m| m.name() == "accept_state").ok_or_else(|| absent("accept_state"))?;
        // SAFETY: listeners.h declares the value with the struct that abi.rs mirrors, its size is asserted, all fields are atomics, and
        // the map has one value.
        let state: Shared<State> = unsafe { Shared::map(map.as_fd(), 1) }
            .map_err(|source| BpfError::Bpf { what: "accept_state".into(), source })?;
        let program = object.progs().next().ok_or_else(|| absent(NAME))?;
        let id = program_id(program.as_fd()).map_err(|source| BpfError::Bpf { what: NAME.into(), source })?;
        let choice = Self { object, state, id, filled: 0, turn: 0 };
        let state = choice.state();
        state.late.store(rules.late, Relaxed);
        state.stalled.store(rules.stalled, Relaxed);
        state.high.store(rules.high, Relaxed);
        state.low.store(rules.low, Relaxed);
        state.looks.store(rules.looks, Relaxed);
        state.away.store(rules.away, Relaxed);
        Ok(choice)
    }

    fn state(&self) -> &State {
        &self.state[0]
    }

    /// Id of its program.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// True if a program with this id is one of weir's.
    pub fn is_weirs(id: u32) -> bool {
        crate::guard::program_name(id).is_some_and(|name| name == NAME)
    }

    /// Makes the members of `group`, in their order, its queues. Until that is done the choice is the kernel's. Those that another array
    /// still has are waited for, at most for `patience`.
    ///
    /// # Errors
    /// As of [`dup`]; [`Error::Unsupported`] for more than 512 members.
    pub fn fill(&mut self, group: &Group, patience: Duration) -> Result<()> {
        if group.members.len() > QUEUES {
            let what = format!("{} listeners of {}, at most {QUEUES}", group.members.len(), group.name());
            return Err(Error::Unsupported { what, since: "no kernel" });
        }
        self.state().count.store(0, Relaxed);
        // What the last connection saw was another group.
        self.state().sockets.store(0, Relaxed);
        let sockets = self.object.maps().find(|m| m.name() == "accept_sockets");
        let sockets = sockets.ok_or_else(|| Error::Gone { what: "accept_sockets".into() })?;
        // A socket is in one place of one array only.
        for slot in 0..self.filled {
            // One that was closed has left by itself.
            let _ = sockets.delete(&(slot as u32).to_ne_bytes());
        }
        self.filled = group.members.len();
        let end = Instant::now() + patience;
        for (slot, member) in group.members.iter().enumerate() {
            let mut got = Err(Error::Gone { what: format!("a listener of {}", group.name()) });
            for (pid, fd) in &member.holders {
                got = dup(*pid, *fd, member.inode);
                if got.is_ok() {
                    break;
                }
            }
            let fd = got?;
            let number = u64::from(fd.as_raw_fd().unsigned_abs()).to_ne_bytes();
            while let Err(e) = sockets.update(&(slot as u32).to_ne_bytes(), &number, MapFlags::ANY) {
                // The array of a weir that was killed is freed a grace period after its program was taken off.
                if Instant::now() >= end {
                    return Err(Error::Invalid {
                        what: format!("a listener of {}", group.name()),
                        why: format!("another program has it in a map ({e})"),
                    });
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let cookie = cookie(&fd).map_err(|e| Error::io("cookie of a listener", e))?;
            drop(fd);
            let queue = &self.state().queues[slot];
            queue.cookie.store(cookie, Relaxed);
            for number in [&queue.length, &queue.busy, &queue.placed, &queue.affine] {
                number.store(0, Relaxed);
            }
            for number in [&queue.head, &queue.seen, &queue.waits_in, &queue.task, &queue.ran] {
                number.store(0, Relaxed);
            }
            queue.worker.store(0, Relaxed);
            queue.place.store(slot as u32, Relaxed);
        }
        self.seat(group);
        self.state().count.store(group.members.len() as u32, Relaxed);
        Ok(())
    }

    /// True if it has queues: the last [`Choice::fill`] has not failed half-way.
    pub fn is_filled(&self) -> bool {
        self.state().count.load(Relaxed) != 0
    }

    /// Tells which cores the workers of `group` run on, whose members are in the order in which they were filled.
    pub fn seat(&mut self, group: &Group) {
        let cores: Vec<Option<usize>> =
            group.members.iter().map(|m| m.core().filter(|core| *core < CORES)).collect();
        let seats = super::seats(&cores, self.turn);
        self.turn = self.turn.wrapping_add(1);
        for (core, own) in self.state().own.iter().enumerate() {
            own.store(seats.get(&core).map_or(0, |(first, many)| first << 16 | many), Relaxed);
        }
    }

    /// Attaches the program to `group`, which must have none.
    ///
    /// # Errors
    /// As of [`dup`], and what the kernel says.
    pub fn attach(&self, group: &Group) -> Result<()> {
        let program = self.object.progs().next().ok_or_else(|| Error::Gone { what: NAME.into() })?;
        set(&any(group)?, libc::SO_ATTACH_REUSEPORT_EBPF, program.as_fd().as_raw_fd())
            .map_err(|e| Error::io(format!("attach to {}", group.name()), e))
    }

    /// Ends the choice and takes the program off `group`.
    ///
    /// # Errors
    /// As of [`detach`]: then the choice is the kernel's all the same.
    pub fn detach(&self, group: &Group) -> Result<()> {
        self.renew(0);
        detach(group)
    }

    /// The choice holds until `lease` (CLOCK_MONOTONIC, ns).
    pub fn renew(&self, lease: u64) {
        self.state().lease.store(lease, Relaxed);
    }

    /// Members that the kernel's group had at the last connection; 0: there was none yet.
    pub fn sockets(&self) -> u32 {
        self.state().sockets.load(Relaxed)
    }

    /// Connections by reason: [`policy::accept::queues::Why::ALL`], then those that the kernel chose for ([`super::LEASE_OVER`], ...).
    pub fn chosen(&self) -> [u64; CHOSEN] {
        std::array::from_fn(|n| self.state().chosen.iter().map(|shard| shard.of[n].load(Relaxed)).sum())
    }

    /// The queue at `slot`, as it was last seen.
    pub fn queue(&self, slot: usize) -> Seen {
        let Some(queue) = self.state().queues.get(slot) else { return Seen::default() };
        // When a datagram came is not known, only since when it has been the first.
        let born = (queue.head.load(Relaxed) != 0).then(|| match queue.born.load(Relaxed) {
            0 => queue.since.load(Relaxed),
            born => born,
        });
        Seen {
            placed: queue.placed.load(Relaxed),
            affine: queue.affine.load(Relaxed),
            waiting: queue.length.load(Relaxed),
            oldest: born.filter(|born| *born != 0),
            does: Worker::ALL.get(queue.worker.load(Relaxed) as usize).copied().unwrap_or(Worker::Unknown),
        }
    }

    /// Times that the timer has looked at what workers do.
    pub fn looks(&self) -> u64 {
        self.state().looks_done.load(Relaxed)
    }

    /// True if the queue at `slot` was not empty at `now` and nobody had taken from it for `ns` when it was last seen.
    pub fn stands(&self, slot: usize, now: u64, ns: u64) -> bool {
        self.state().queues.get(slot).is_some_and(|q| {
            q.length.load(Relaxed) > 0
                && q.head.load(Relaxed) != 0
                && now.saturating_sub(q.since.load(Relaxed)) >= ns
        })
    }
}
