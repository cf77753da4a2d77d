//! The pulse: a page that guard and keeper share, by which the keeper knows that the guard moves.
//!
//! A guard that polls beats by storing the time; that is no system call. Only the beat that finds the keeper asleep rings
//! a bell, so that it looks at the page from then on, at the moment when the last beat becomes too old.

use crate::error::{Error, Result};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

/// A guard that polls and has not beaten for so long does not move. It beats every 10 to 12 ms.
pub const PULSE_PATIENCE: Duration = Duration::from_millis(50);

/// What both see. Zeroed at first.
#[repr(C)]
struct Page {
    /// Time of the last beat, ns of CLOCK_MONOTONIC.
    last: AtomicU64,
    /// Sources that are polled, as the guard says.
    polled: AtomicU32,
    /// 1 while the keeper will look at `last` without being woken.
    watched: AtomicU32,
    /// How often the keeper has put everything back under a guard that did not move.
    revoked: AtomicU32,
    /// 1 once the keeper is in no control group that can be frozen.
    apart: AtomicU32,
}

const BYTES: usize = size_of::<Page>();

/// A mapping of the page.
struct Map(NonNull<Page>);

// SAFETY: the page consists of atomics and is unmapped only when its one owner is dropped.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn of(memory: BorrowedFd<'_>) -> io::Result<Map> {
        // SAFETY: `stat` is written by the kernel before it is read; a failure is checked.
        let size = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(memory.as_raw_fd(), &raw mut stat) < 0 {
                return Err(io::Error::last_os_error());
            }
            stat.st_size
        };
        if size < BYTES as libc::off_t {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, placed by the kernel, of a file that is large enough (checked above).
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, prot, libc::MAP_SHARED, memory.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).map(Map).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl std::ops::Deref for Map {
    type Target = Page;

    fn deref(&self) -> &Page {
        // SAFETY: mapped for as long as `self` lives; all-zero bytes and any others are valid atomics.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this mapping is this value's, and no reference into it outlives the value.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

/// The guard's side. Clones are the same pulse; one outlives its keeper and is handed to the next.
#[derive(Clone)]
pub struct Pulse(Arc<Inner>);

struct Inner {
    map: Map,
    memory: OwnedFd,
    bell: OwnedFd,
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulse").field("polled", &self.0.map.polled).finish_non_exhaustive()
    }
}

impl Pulse {
    /// A pulse that no keeper watches yet.
    ///
    /// # Errors
    /// If there is no memory or descriptor for it.
    pub fn new() -> Result<Pulse> {
        // SAFETY: a constant name; the result is checked.
        let memory = unsafe { libc::memfd_create(c"weir-pulse".as_ptr(), libc::MFD_CLOEXEC) };
        let memory = own(memory).map_err(|e| Error::io("memfd_create", e))?;
        // SAFETY: plain numbers.
        if unsafe { libc::ftruncate(memory.as_raw_fd(), BYTES as libc::off_t) } < 0 {
            return Err(Error::last("ftruncate"));
        }
        // SAFETY: plain numbers; the result is checked.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let bell = own(bell).map_err(|e| Error::io("eventfd", e))?;
        let map = Map::of(memory.as_fd()).map_err(|e| Error::io("mmap", e))?;
        Ok(Pulse(Arc::new(Inner { map, memory, bell })))
    }

    /// One more source is about to be polled: called before its first write. Never blocks.
    pub fn arm(&self) {
        self.0.map.last.store(now(), SeqCst);
        self.0.map.polled.fetch_add(1, SeqCst);
        self.ring();
    }

    /// A source of [`Pulse::arm`] is as before. Never blocks.
    pub fn disarm(&self) {
        // More disarmed than armed would wrap round; it stays at 0.
        _ = self.0.map.polled.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
    }

    /// The guard lives; what is polled has not changed. Never blocks.
    pub fn tick(&self) {
        self.0.map.last.store(now(), SeqCst);
        self.ring();
    }

    /// Sources that are polled, as last said.
    pub fn polled(&self) -> u32 {
        self.0.map.polled.load(SeqCst)
    }

    /// How often the keeper has put everything back because the guard did not move. It counts after it has put back. Read
    /// before a takeover begins and again at each turn: another number means that the settings are not weir's any more.
    pub fn revoked(&self) -> u32 {
        self.0.map.revoked.load(SeqCst)
    }

    /// The keeper is in no control group that can be frozen.
    pub fn apart(&self) -> bool {
        self.0.map.apart.load(SeqCst) == 1
    }

    /// Descriptors for a keeper. A keeper before it may have died while it watched.
    pub(super) fn hand_over(&self) -> [BorrowedFd<'_>; 2] {
        self.0.map.watched.store(0, SeqCst);
        self.0.map.apart.store(0, SeqCst);
        [self.0.memory.as_fd(), self.0.bell.as_fd()]
    }

    fn ring(&self) {
        // The order is that of `Watch::next` turned round: either this sees that the keeper does not watch, or the keeper
        // sees the beat before it sleeps.
        if self.0.map.polled.load(SeqCst) > 0 && self.0.map.watched.load(SeqCst) == 0 {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight bytes that live through the call. A full counter is a wake already.
            unsafe { libc::write(self.0.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }
}

/// What the keeper does about the pulse now.
pub(super) enum Next {
    /// Nothing is polled: it sleeps until the bell rings.
    Sleep,
    /// It looks again after this time.
    Look(Duration),
    /// The guard does not move.
    Missed,
}

/// The keeper's side.
pub(super) struct Watch {
    map: Map,
    bell: OwnedFd,
    /// The last beat before everything was put back: that guard is watched again when it beats again.
    dead: Option<u64>,
}

impl Watch {
    pub fn new(memory: &OwnedFd, bell: OwnedFd) -> Result<Watch> {
        let map = Map::of(memory.as_fd()).map_err(|e| Error::io("pulse", e))?;
        Ok(Watch { map, bell, dead: None })
    }

    pub fn set_apart(&self, apart: bool) {
        self.map.apart.store(apart.into(), SeqCst);
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes note that the bell has rung.
    pub fn silence(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes that live through the call; nothing to read is an error that changes nothing.
        unsafe { libc::read(self.bell.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    pub fn next(&self) -> Next {
        if !self.expects() {
            self.map.watched.store(0, SeqCst);
            // A beat since the look above has not rung.
            if !self.expects() {
                return Next::Sleep;
            }
        }
        self.map.watched.store(1, SeqCst);
        let age = Duration::from_nanos(now().saturating_sub(self.map.last.load(SeqCst)));
        // A source that has been armed meanwhile has a beat of its own.
        match PULSE_PATIENCE.checked_sub(age) {
            Some(left) if !left.is_zero() => Next::Look(left),
            _ => Next::Missed,
        }
    }

    fn expects(&self) -> bool {
        self.map.polled.load(SeqCst) > 0 && self.dead != Some(self.map.last.load(SeqCst))
    }

    /// To be called before anything is put back: a beat from here on is one of a guard that moves again.
    pub fn give_up(&mut self) {
        self.dead = Some(self.map.last.load(SeqCst));
    }

    /// Everything is put back.
    pub fn count(&self) {
        self.map.revoked.fetch_add(1, SeqCst);
    }
}

fn own(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// CLOCK_MONOTONIC, which all processes share and which stands still while the machine is suspended, ns.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives through the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Pulse, Watch) {
        let pulse = Pulse::new().unwrap();
        let [memory, bell] = pulse.hand_over().map(|fd| fd.try_clone_to_owned().unwrap());
        let watch = Watch::new(&memory, bell).unwrap();
        (pulse, watch)
    }

    fn rung(watch: &Watch) -> bool {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes that live through the call.
        unsafe { libc::read(watch.bell.as_raw_fd(), count.as_mut_ptr().cast(), 8) == 8 }
    }

    #[test]
    fn only_the_beat_that_finds_nobody_awake_rings() {
        let (pulse, watch) = pair();
        assert!(matches!(watch.next(), Next::Sleep));
        pulse.tick();
        assert!(!rung(&watch) && matches!(watch.next(), Next::Sleep));
        pulse.arm();
        assert!(rung(&watch) && matches!(watch.next(), Next::Look(_)));
        pulse.tick();
        pulse.arm();
        assert!(!rung(&watch), "it looks by itself");
        pulse.disarm();
        pulse.disarm();
        assert!(matches!(watch.next(), Next::Sleep));
        pulse.arm();
        assert!(rung(&watch));
        pulse.disarm();
        pulse.disarm();
        assert_eq!(pulse.polled(), 0);
    }

    #[test]
    fn an_old_beat_is_missed_once_and_a_new_one_is_watched() {
        let (pulse, mut watch) = pair();
        pulse.arm();
        let old = now() - PULSE_PATIENCE.as_nanos() as u64;
        pulse.0.map.last.store(old, SeqCst);
        assert!(matches!(watch.next(), Next::Missed));
        watch.give_up();
        watch.count();
        assert_eq!(pulse.revoked(), 1);
        assert!(matches!(watch.next(), Next::Sleep), "it is not put back again and again");
        pulse.tick();
        assert!(matches!(watch.next(), Next::Look(_)));
    }
}
