//! How weir's threads are scheduled.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use kern::guard::Views;
use kern::schedule;
use kern::wire::tasks;
use policy::{MILLISECOND, Nanos};

/// Between two looks whether a thread has ended.
const END_LOOK: Duration = Duration::from_millis(1);

/// Class of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// SCHED_FIFO, priority 1: runs before all programs, so it must sleep to let them run.
    Fifo,
    /// SCHED_OTHER with the strongest nice value that was permitted.
    Other,
}

impl Class {
    /// For the status.
    pub fn name(self) -> &'static str {
        match self {
            Class::Fifo => "fifo",
            Class::Other => "other",
        }
    }
}

/// Makes the calling thread SCHED_FIFO 1; where that is refused (a cgroup without realtime share, a missing
/// privilege) nice -20 if that is permitted, with the kernel's answer.
pub fn go_fifo() -> (Class, Option<io::Error>) {
    let Err(refused) = schedule::set(0, libc::SCHED_FIFO, 1) else {
        return (Class::Fifo, None);
    };
    // SAFETY: plain system call on the calling thread; a refusal leaves the nice value as it is.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    (Class::Other, Some(refused))
}

/// Nice value of the calling thread.
pub fn nice() -> i32 {
    // SAFETY: plain system call on the calling thread.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Makes the calling thread run before those of [`go_fifo`], where that is permitted.
pub fn go_above_fifo() {
    let _ = schedule::set(0, libc::SCHED_FIFO, 2);
}

/// Gives the calling thread the strongest nice value, where that is permitted: it shares the CPU with programs, and gets what it needs.
pub fn strong() {
    // SAFETY: plain system call on the calling thread; a refusal leaves the nice value as it is.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}

/// Slice of what is in no hurry: longer than any program's, so that each one that wakes runs first.
const PATIENT_SLICE: Nanos = 100 * MILLISECOND;

/// Lets every program that wakes run before the calling thread, which beside one that computes still gets the share of its nice value.
/// From Linux 6.12; before, and where it is refused, nothing changes.
pub fn patient(nice: i32) {
    if schedule::policy() == libc::SCHED_OTHER {
        let _ = tasks::schedule(0, tasks::Policy::Sliced(nice, PATIENT_SLICE));
    }
}

/// The calling thread is [`patient`] until this is dropped, and then [`strong`] with a short slice.
pub struct Patient(());

impl Patient {
    /// From here on. `starving`: programs may get too little of this CPU, and this thread would with them. Otherwise it takes no more
    /// than a program's share, which one that reads packets all the time needs.
    pub fn begin(starving: bool) -> Self {
        patient(if starving { -10 } else { 0 });
        Self(())
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        strong();
        tasks::short_slice(-20);
    }
}

/// The calling thread before all programs, as by [`go_fifo`], until this is dropped: a guard that starts or ends under
/// livelock is starved itself.
pub struct Urgent {
    policy: i32,
    nice: i32,
}

impl Urgent {
    /// From here on.
    pub fn begin() -> Self {
        let (policy, nice) = (schedule::policy(), nice());
        go_fifo();
        Self { policy, nice }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if self.policy != libc::SCHED_OTHER && self.policy != libc::SCHED_BATCH {
            return;
        }
        // Giving priority up is always permitted.
        let _ = schedule::set(0, self.policy, 0);
        // SAFETY: plain system call on the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.nice) };
    }
}

/// The calling thread shares its CPU with programs until this is dropped, if it is SCHED_FIFO: what waits for others by
/// trying again and again must let them run.
pub struct Gentle {
    fifo: bool,
}

impl Gentle {
    /// From here on.
    pub fn begin() -> Self {
        let fifo = schedule::policy() == libc::SCHED_FIFO;
        if fifo {
            ordinary();
            strong();
        }
        Self { fifo }
    }
}

impl Drop for Gentle {
    fn drop(&mut self) {
        if self.fifo {
            go_fifo();
        }
    }
}

/// Makes the calling thread SCHED_OTHER, whatever it has inherited.
pub fn ordinary() {
    // Giving priority up is always permitted.
    let _ = schedule::set(0, libc::SCHED_OTHER, 0);
}

/// Makes the calling thread run only when nothing else wants the CPU, where that is permitted.
pub fn go_idle() {
    let _ = schedule::set(0, libc::SCHED_IDLE, 0);
}

/// Makes thread `tid` of this process SCHED_OTHER with the nice value that it has; a thread that is gone changes nothing.
pub fn set_ordinary(tid: u32) {
    let _ = schedule::set(tid as i32, libc::SCHED_OTHER, 0);
}

/// Waits for the end of a thread that has been told to end. While it is SCHED_IDLE it runs when nothing else does, which beside programs
/// that compute is never: so it is made SCHED_OTHER until it has ended. `tid`: its own, 0 until it has said so.
pub fn join_idle<T>(thread: JoinHandle<T>, tid: &AtomicU32) {
    while !thread.is_finished() {
        // 0 would be the caller.
        if let tid @ 1.. = tid.load(Relaxed) {
            set_ordinary(tid);
        }
        std::thread::sleep(END_LOOK);
    }
    // One that panicked has ended the process.
    let _ = thread.join();
}

/// Makes thread `tid` of this process SCHED_FIFO 1 (true) or SCHED_IDLE; a thread that is gone or a refusal changes
/// nothing.
pub fn set_fifo(tid: u32, fifo: bool) {
    let policy = if fifo { libc::SCHED_FIFO } else { libc::SCHED_IDLE };
    let _ = schedule::set(tid as i32, policy, i32::from(fifo));
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: all-zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `cpu` is within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set lives through the call.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The CPU that the calling thread runs on just now; `usize::MAX` if the kernel does not say. No system call.
pub fn here() -> usize {
    // SAFETY: it reads the thread's own area, or asks the vdso.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
}

/// Tells which process this is. Where the kernel does not say, its threads count as programs.
pub fn known(views: &Views) {
    use std::os::unix::fs::MetadataExt;
    let Ok(namespace) = std::fs::metadata("/proc/self/ns/pid") else { return };
    let ctl = &views.guard[0];
    ctl.pidns_inode.store(namespace.ino() as u32, Relaxed);
    ctl.pidns_device.store(namespace.dev() as u32, Relaxed);
    ctl.process[0].store(std::process::id(), Relaxed);
}

/// Says that the calling thread, one of [`kern::guard::own`], runs from here on, or is about to sleep: while it waits for its CPU no
/// program does.
pub fn runs(views: &Views, thread: usize, runs: bool) {
    let cpu = if runs { here() as u32 } else { u32::MAX };
    views.guard[0].own[thread].store(cpu.wrapping_add(1), Relaxed);
}

/// Thread id of the caller, as its own PID namespace numbers it.
pub fn tid() -> u32 {
    // SAFETY: plain system call without arguments.
    unsafe { libc::gettid() as u32 }
}

/// Keeps the pages of this process in memory as they are touched, where that is permitted: a page fault in a turn
/// would wait for the disk while the ring overflows.
pub fn lock_memory() {
    // SAFETY: plain system call without pointers; a refusal changes nothing.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
}
