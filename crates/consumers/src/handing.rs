//! HAProxy's balancing of new connections between its threads (`tune.listener.multi-queue on`, its default), for workers that are
//! processes: whoever accepts a connection gives it to the less loaded of two workers, or keeps it.
//!
//! The rule is that of `listener_accept()` in HAProxy's `src/listener.c` (3.5-dev5), for one listener of at most 64 threads. The workers
//! share their table of descriptors, as threads do, so that a number is all that is handed over.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Most workers: the threads of a group there.
pub const MEMBERS: usize = 64;
/// Connections that a worker accepts, and takes from its ring, before it looks at the rest of its work (`tune.maxaccept`).
pub const AT_ONCE: usize = 4;
/// `ACCEPT_QUEUE_SIZE`.
const RING: usize = 1023;

/// The ring of one worker, and what it has.
#[repr(C, align(64))]
struct Member {
    /// Connections that it has taken and not closed (`thr_conn`).
    connections: AtomicU32,
    head: AtomicU32,
    tail: AtomicU32,
    /// It is about to wait, so that it must be woken.
    asleep: AtomicU32,
    /// Descriptors, plus one; 0 is a place that is not filled yet.
    entries: [AtomicI32; RING],
}

impl Member {
    fn length(&self) -> u32 {
        let (head, tail, size) = (self.head.load(SeqCst), self.tail.load(SeqCst), RING as u32);
        (tail + size - head) % size
    }

    fn load(&self) -> u32 {
        self.length() + self.connections.load(Relaxed)
    }
}

#[repr(C)]
struct Memory {
    /// The two running indexes, and how often they were changed.
    index: AtomicU32,
    members: [Member; MEMBERS],
}

/// What the workers share. It lives until the process ends.
pub struct Handing {
    memory: &'static Memory,
    wakes: Vec<EventFd>,
}

impl Handing {
    /// For so many workers, which are forked later by [`fork`].
    ///
    /// # Errors
    /// If there is no memory or no descriptor for it, or too many workers.
    pub fn new(count: usize) -> nix::Result<Handing> {
        if count == 0 || count > MEMBERS {
            return Err(nix::errno::Errno::EINVAL);
        }
        // SAFETY: a new mapping, shared with the children; what is returned is looked at below.
        let at = unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), size_of::<Memory>(), prot, flags, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(nix::errno::Errno::last());
        }
        // SAFETY: the mapping is as long as the type, begins at a page, is never unmapped, and zeroes are a value of each of its atomics.
        let memory = unsafe { &*at.cast::<Memory>() };
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wakes =
            (0..count).map(|_| EventFd::from_value_and_flags(0, flags)).collect::<nix::Result<_>>()?;
        Ok(Handing { memory, wakes })
    }

    /// What tells worker `own` that its ring has something.
    #[must_use]
    pub fn wake(&self, own: usize) -> &EventFd {
        &self.wakes[own]
    }

    /// Worker `own` has accepted a connection: into a ring with it, of its own or of another. Given back if that is full.
    pub fn give(&self, own: usize, connection: OwnedFd) -> Option<OwnedFd> {
        let mut index = self.memory.index.load(SeqCst);
        let to = loop {
            let load = |n: usize| self.memory.members[n].load();
            let (to, next) = choose(index, self.wakes.len(), own, load);
            match self.memory.index.compare_exchange(index, next, SeqCst, SeqCst) {
                Ok(_) => break to,
                Err(now) => index = now,
            }
        };
        self.push(to, connection)
    }

    fn push(&self, to: usize, connection: OwnedFd) -> Option<OwnedFd> {
        let member = &self.memory.members[to];
        let mut at = member.tail.load(SeqCst);
        loop {
            let next = (at + 1) % RING as u32;
            if next == member.head.load(SeqCst) {
                return Some(connection);
            }
            match member.tail.compare_exchange(at, next, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(now) => at = now,
            }
        }
        member.entries[at as usize].store(connection.into_raw_fd() + 1, SeqCst);
        if member.asleep.swap(0, SeqCst) == 1 {
            // It fails only if a wake is on its way already.
            let _ = self.wakes[to].write(1);
        }
        None
    }

    /// The next connection of worker `own`, which has it from now on.
    #[must_use]
    pub fn take(&self, own: usize) -> Option<OwnedFd> {
        let member = &self.memory.members[own];
        let at = member.head.load(SeqCst);
        if at == member.tail.load(SeqCst) {
            return None;
        }
        // 0: who gives it has its place and is about to fill it.
        let entry = member.entries[at as usize].swap(0, SeqCst);
        let fd: RawFd = entry.checked_sub(1).filter(|fd| *fd >= 0)?;
        member.head.store((at + 1) % RING as u32, SeqCst);
        self.kept(own);
        // SAFETY: who pushed it gave it up, and its place was emptied above.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Worker `own` has a connection that was in no ring.
    pub fn kept(&self, own: usize) {
        self.memory.members[own].connections.fetch_add(1, Relaxed);
    }

    /// Worker `own` has closed one.
    pub fn closed(&self, own: usize) {
        self.memory.members[own].connections.fetch_sub(1, Relaxed);
    }

    /// Worker `own` is about to wait; false if there is something in its ring.
    #[must_use]
    pub fn may_wait(&self, own: usize) -> bool {
        let member = &self.memory.members[own];
        member.asleep.store(1, SeqCst);
        let empty = member.length() == 0;
        if !empty {
            self.awake(own);
        }
        empty
    }

    /// Worker `own` waits no longer.
    pub fn awake(&self, own: usize) {
        self.memory.members[own].asleep.store(0, SeqCst);
    }

    /// Empties what woke worker `own`.
    pub fn woken(&self, own: usize) {
        // Empty is as good.
        let _ = self.wakes[own].read();
    }
}

/// A child that shares the table of descriptors with its parent; its number, or 0 in the child.
///
/// # Safety
/// The caller has one thread only. What either closes is closed for both.
///
/// # Errors
/// Of the system call.
pub unsafe fn fork() -> nix::Result<libc::c_long> {
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without a stack and CLONE_VM the child goes on with a copy of everything, as after fork().
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, 0, 0, 0) };
    nix::errno::Errno::result(pid)
}

/// Who gets the next connection, which worker `own` has accepted, and the running indexes after it. One index visits the workers upwards,
/// one downwards. The less loaded of their two gets it and the other index moves on; of two that are equal it is the first, which moves
/// on. The accepting one keeps it if it is as good as the better of two that differ, or better than two that are equal.
fn choose(index: u32, count: usize, own: usize, load: impl Fn(usize) -> u32) -> (usize, u32) {
    let all = u64::MAX >> (64 - count.clamp(1, MEMBERS));
    let mut up = (index & 63) as usize;
    if all >> up == 0 {
        up = 0;
    }
    let mut down = index >> 6 & 63;
    loop {
        let mut below = all & (u64::MAX >> (63 - down));
        if below >> down & 1 == 1 && up != down as usize {
            break;
        }
        below &= !(1 << down);
        if below != 0 {
            down = 63 - below.leading_zeros();
            break;
        }
        down = 63;
    }
    let (own_load, first, second) = (load(own), load(up), load(down as usize));
    let (mut next_up, mut next_down) = (up as u32, down);
    let to = if first < second {
        next_down = down.checked_sub(1).unwrap_or(63);
        if own_load <= first { own } else { up }
    } else {
        next_up = (next_up + 1) & 63;
        match first > second {
            true if own_load <= second => own,
            true => down as usize,
            false if own_load < first => own,
            false => up,
        }
    };
    let changed = (index >> 12).wrapping_add(1) << 12;
    (to, changed | next_down << 6 | next_up)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who gets so many connections, one after the other, if each stays.
    fn given(count: usize, loads: &mut [u32], times: usize, own: usize) -> Vec<usize> {
        let mut index = 0;
        (0..times)
            .map(|_| {
                let (to, next) = choose(index, count, own, |n| loads[n]);
                index = next;
                loads[to] += 1;
                to
            })
            .collect()
    }

    #[test]
    fn equal_workers_get_connections_in_turn() {
        for count in [1, 2, 3, 7, 64] {
            let mut loads = vec![0; count];
            given(count, &mut loads, 10 * count, 0);
            assert!(loads.iter().all(|load| (8..=12).contains(load)), "{count}: {loads:?}");
        }
    }

    #[test]
    fn a_worker_that_holds_many_gets_none() {
        for own in [0, 1] {
            assert_eq!(given(2, &mut [0, 50], 20, own), vec![0; 20]);
            assert_eq!(given(2, &mut [50, 0], 20, own), vec![1; 20]);
        }
        let mut loads = [9, 0, 0, 0];
        assert!(given(4, &mut loads, 12, 1).iter().all(|to| *to != 0));
        assert_eq!(loads, [9, 4, 4, 4]);
    }

    #[test]
    fn who_accepts_keeps_what_nobody_would_have_sooner() {
        // The indexes begin at workers 0 and 3; both hold more than worker 2.
        assert_eq!(choose(3 << 6, 4, 2, |n| [1, 1, 0, 1][n]).0, 2);
        assert_eq!(choose(3 << 6, 4, 2, |n| [0, 1, 0, 1][n]).0, 2);
        assert_eq!(choose(3 << 6, 4, 2, |n| [0, 1, 1, 1][n]).0, 0);
    }

    #[test]
    fn what_is_given_is_taken_once_and_counted() {
        let handing = Handing::new(2).expect("memory");
        let connection = || OwnedFd::from(std::fs::File::open("/dev/null").expect("a file"));
        for _ in 0..3 {
            assert!(handing.give(0, connection()).is_none());
        }
        let counts = [0, 1].map(|own| std::iter::from_fn(|| handing.take(own)).count());
        assert_eq!(counts.iter().sum::<usize>(), 3);
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        for (own, count) in counts.into_iter().enumerate() {
            assert_eq!(handing.memory.members[own].load(), count as u32);
            (0..count).for_each(|_| handing.closed(own));
            assert!(handing.may_wait(own));
        }
        // Both sleep, so that the next one wakes somebody; a ring that is full gives back.
        assert!(handing.push(0, connection()).is_none());
        assert!(handing.wake(0).read().is_ok() && !handing.may_wait(0));
        (0..RING - 2).for_each(|_| assert!(handing.push(0, connection()).is_none()));
        assert!(handing.push(0, connection()).is_some());
    }
}
