//! Keeps the softirqs of a flooded CPU short while a poller takes sources over.
//!
//! Each system call of a takeover ends several sections without softirqs, and at each end the kernel runs what is pending: up to
//! 10 rounds of `netdev_budget` packets, 2.7 ms under flood, unless another thread wants the CPU (`handle_softirqs` in
//! kernel/softirq.c asks `need_resched`). So a thread of higher priority wants it every 50 us, for nothing: one round is
//! left of ten. A takeover takes some 8 such ends, and a flush timeout puts what was taken over back to softirqs meanwhile.
//!
//! It costs a wake each time, a ninth of a CPU at most. `policy::settling` says how long it is on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use policy::Nanos;
use policy::settling::prod_nap;

use crate::{clock, sched};

/// Stack of the thread, bytes.
const STACK: usize = 64 * 1024;

#[derive(Debug, Default)]
struct Shared {
    /// When it goes to sleep by itself; 0 while it is off.
    until: AtomicU64,
    stop: AtomicBool,
    disabled: AtomicBool,
}

/// The thread, off until it is needed.
#[derive(Debug)]
pub struct Prod {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Prod {
    /// Its thread runs on `cpu`, before the poller.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub fn new(cpu: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("weir-prod".into()).stack_size(STACK);
        let thread = builder.spawn(move || run(&own, cpu))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Off for good: a poller that is no SCHED_FIFO thread shares its CPU with others that want it anyway.
    pub fn disable(&self) {
        self.shared.disabled.store(true, Relaxed);
        self.shared.until.store(0, Relaxed);
    }

    /// On until then, or off at 0.
    pub fn need(&self, until: Nanos) {
        if !self.shared.disabled.load(Relaxed)
            && self.shared.until.load(Relaxed) != until
            && self.shared.until.swap(until, Relaxed) == 0
            && until != 0
        {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Prod {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, home: usize) {
    // Elsewhere it would keep nothing short, and harm nobody.
    let _ = sched::pin(home);
    // Where it is refused the poller is no SCHED_FIFO thread either, and others want its CPU anyway.
    sched::go_above_fifo();
    let mut used = clock::thread_cpu();
    while !shared.stop.load(Relaxed) {
        let cpu = clock::thread_cpu();
        let busy = cpu.saturating_sub(std::mem::replace(&mut used, cpu));
        let until = shared.until.load(Relaxed);
        if until == 0 {
            std::thread::park();
            // Its CPU may have been offline since.
            let _ = sched::pin(home);
        } else if clock::now() >= until {
            let _ = shared.until.compare_exchange(until, 0, Relaxed, Relaxed);
        } else {
            std::thread::sleep(Duration::from_nanos(prod_nap(busy)));
        }
    }
}
