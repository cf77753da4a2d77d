//! What the guard's plan, the journal, the keeper and `weir undo` see of the kernel: one trait, so that a simulated
//! kernel can stand in for it, in which any of them crashes, stops or is refused at any call.

use crate::{
    cpus::{self, CpuSet},
    discover, elsewhere,
    error::Result,
    journal::{Journal, Outcome, Owner},
    layout,
    netns::{self, NetnsId},
    proc,
    rundir::{self, Lock},
    settings::{Access, Presence, Setting, Value, presence},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Interfaces that stand on one, at most, among which is looked for one that sends on.
const STACK_MOST: usize = 16;
/// One [`Kernel::wait`].
pub const ABSENCE: Duration = Duration::from_millis(5);

/// What became of a compare and swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// It had an expected value and has the new one.
    Written {
        /// The value it had.
        from: Value,
    },
    /// It had the new value already.
    Same,
    /// It has a value that nobody expected: somebody else's, which is left.
    Left {
        /// That value.
        found: Value,
    },
}

/// What is found in other network namespaces of the interface that a journal is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// It is there, and this became of its settings, in the order of [`Journal::restore_at`].
    Found(Vec<Outcome>),
    /// It is in none of them.
    Nowhere,
    /// It is in none that can be looked into, and there are others.
    Hidden,
}

/// A thread that may have inherited the CPUs of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heir {
    /// Its id.
    pub tid: u32,
    /// Its start time, clock ticks since boot.
    pub start: u64,
    /// The threads asked for whose process it belongs to, or descends from.
    pub of: Arc<[u32]>,
}

impl Heir {
    /// The CPUs that it may run on.
    pub fn setting(&self) -> Setting {
        Setting::TaskCpus { tid: self.tid, start: self.start }
    }
}

/// The kernel and the files of weir, as one process sees them.
pub trait Kernel {
    /// As [`Access::read`].
    ///
    /// # Errors
    /// [`crate::error::Error::Gone`] if there is no such setting now.
    fn read(&mut self, setting: &Setting) -> Result<Value>;
    /// As [`Access::write`].
    ///
    /// # Errors
    /// If it is refused, or another value is there afterwards.
    fn write(&mut self, setting: &Setting, value: &Value) -> Result<()>;
    /// As [`Access::napi_of_queue`].
    fn napi_of_queue(&mut self, ifindex: u32, queue: u32) -> Option<u32>;
    /// Receive queues that an interface has now, if that can be told.
    fn queues(&mut self, _ifindex: u32) -> Option<u32> {
        None
    }
    /// The host sends on what arrives by an interface, or bridges it.
    fn forwards(&mut self, _ifindex: u32) -> bool {
        false
    }
    /// The NAPI is in the list of its interface; one that is listed and cannot be asked for is disabled.
    fn lists(&mut self, ifindex: u32, napi_id: u32) -> bool;
    /// As [`presence`], but one that is being set down is down.
    fn presence(&mut self, ifindex: u32) -> Presence;
    /// Name of an interface.
    ///
    /// # Errors
    /// If there is none with this index.
    fn name(&mut self, ifindex: u32) -> Result<String>;
    /// What an interface is known by in every namespace until the next boot, whatever its name and index; `None` where
    /// nothing tells.
    ///
    /// # Errors
    /// If there is none with this index, or it cannot be told now.
    fn device(&mut self, _ifindex: u32) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Index here of the interface that is known by `device`.
    fn index_of(&mut self, _device: u64) -> Option<u32> {
        None
    }
    /// Puts back what a journal has about an interface that is not here, in the namespace where it is now; only looks unless
    /// it shall `write`.
    fn elsewhere(&mut self, _journal: &Journal, _write: bool) -> Elsewhere {
        Elsewhere::Hidden
    }
    /// CPUs that a mask can have at present: those online, and for a thread those of its cpuset. What a mask names beside them the
    /// kernel leaves out. `None` if that is not known.
    fn usable(&mut self, _setting: &Setting) -> Option<CpuSet> {
        None
    }
    /// Threads of the processes that these threads (id, start time) belong to, and of their descendants.
    fn heirs(&mut self, _of: &[(u32, u64)]) -> Vec<Heir> {
        Vec::new()
    }
    /// Now, in clock ticks since boot, as start times are.
    fn ticks(&mut self) -> u64 {
        0
    }
    /// Lets [`ABSENCE`] pass.
    fn wait(&mut self);
    /// The namespace that all of this is about.
    ///
    /// # Errors
    /// If it cannot be told.
    fn here(&mut self) -> Result<NetnsId>;
    /// The calling process.
    ///
    /// # Errors
    /// If procfs cannot be read.
    fn me(&mut self) -> Result<Owner>;
    /// True while that very process runs, also while it is stopped.
    fn alive(&mut self, owner: Owner) -> bool;
    /// Makes the directory of the journals if need be, and keeps others from claiming or restoring in it.
    ///
    /// # Errors
    /// If it is not weir's own, or another process does not let go.
    fn lock(&mut self, dir: &Path) -> Result<Option<Lock>>;
    /// Paths of the journals there are.
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn journals(&mut self, dir: &Path) -> Result<Vec<PathBuf>>;
    /// Contents of a journal's file.
    ///
    /// # Errors
    /// With ENOENT if there is none; if it is not a file that weir wrote.
    fn load(&mut self, path: &Path) -> Result<Vec<u8>>;
    /// Replaces a journal's file in one step.
    ///
    /// # Errors
    /// If the file system refuses; then the file is as before.
    fn save(&mut self, path: &Path, bytes: &[u8]) -> Result<()>;
    /// Removes a journal's file; none is none the less removed.
    ///
    /// # Errors
    /// If the file system refuses.
    fn remove(&mut self, path: &Path) -> Result<()>;

    /// Writes `new` if the setting has one of the `expected` values. It is read and then written: the kernel has no such
    /// call, so a value that somebody writes between the two is lost.
    ///
    /// # Errors
    /// As [`Kernel::read`] and [`Kernel::write`].
    fn swap(&mut self, setting: &Setting, expected: &[Value], new: &Value) -> Result<Swapped> {
        let found = self.read(setting)?;
        if found == *new {
            return Ok(Swapped::Same);
        }
        if !expected.contains(&found) {
            return Ok(Swapped::Left { found });
        }
        self.write(setting, new)?;
        Ok(Swapped::Written { from: found })
    }
}

impl Kernel for Access {
    fn read(&mut self, setting: &Setting) -> Result<Value> {
        Access::read(self, setting)
    }

    fn write(&mut self, setting: &Setting, value: &Value) -> Result<()> {
        Access::write(self, setting, value)
    }

    fn napi_of_queue(&mut self, ifindex: u32, queue: u32) -> Option<u32> {
        Access::napi_of_queue(self, ifindex, queue)
    }

    fn queues(&mut self, ifindex: u32) -> Option<u32> {
        Access::queues(self, ifindex)
    }

    fn forwards(&mut self, ifindex: u32) -> bool {
        let bridged = self.sysfs().device(ifindex).and_then(|d| d.text("brport/state")).is_ok();
        bridged || discover::forwards(discover::seen_as(self, ifindex, STACK_MOST))
    }

    fn lists(&mut self, ifindex: u32, napi_id: u32) -> bool {
        let list = self.netdev().and_then(|n| n.list(ifindex).ok());
        list.is_some_and(|all| all.iter().any(|n| n.id == napi_id))
    }

    fn presence(&mut self, ifindex: u32) -> Presence {
        match presence(ifindex) {
            // It has its flag until it is down, but no carrier that can be read, and no NAPIs.
            Presence::Up if self.sysfs().device(ifindex).and_then(|d| d.text("carrier")).is_err() => {
                Presence::Down
            }
            presence => presence,
        }
    }

    fn name(&mut self, ifindex: u32) -> Result<String> {
        netns::name_of(ifindex)
    }

    fn device(&mut self, ifindex: u32) -> Result<Option<u64>> {
        self.sysfs().device(ifindex)?.id().map(Some)
    }

    fn index_of(&mut self, device: u64) -> Option<u32> {
        elsewhere::index_of(self.sysfs(), device)
    }

    fn elsewhere(&mut self, journal: &Journal, write: bool) -> Elsewhere {
        elsewhere::restore(journal, write)
    }

    fn usable(&mut self, setting: &Setting) -> Option<CpuSet> {
        match *setting {
            Setting::TaskCpus { tid, .. } => layout::cpuset_of(tid),
            Setting::IrqCpus { .. } | Setting::RpsCpus { .. } | Setting::XpsCpus { .. } => {
                cpus::online().ok()
            }
            _ => None,
        }
    }

    fn heirs(&mut self, of: &[(u32, u64)]) -> Vec<Heir> {
        layout::heirs(of)
    }

    fn ticks(&mut self) -> u64 {
        proc::ticks()
    }

    fn wait(&mut self) {
        std::thread::sleep(ABSENCE);
    }

    fn here(&mut self) -> Result<NetnsId> {
        netns::current()
    }

    fn me(&mut self) -> Result<Owner> {
        Owner::me()
    }

    fn alive(&mut self, owner: Owner) -> bool {
        owner.alive()
    }

    fn lock(&mut self, dir: &Path) -> Result<Option<Lock>> {
        rundir::private(dir)?;
        Lock::take(dir).map(Some)
    }

    fn journals(&mut self, dir: &Path) -> Result<Vec<PathBuf>> {
        rundir::journals(dir)
    }

    fn load(&mut self, path: &Path) -> Result<Vec<u8>> {
        rundir::load(path)
    }

    fn save(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        rundir::save(path, bytes)
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        rundir::remove(path)
    }
}
