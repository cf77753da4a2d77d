//! What the gate needs beside BPF: lists of the ports that sockets have, begun while a source is polled or sheds, and the switch of
//! the programs that learn.
//!
//! Nothing is learnt before a list that was begun with the programs attached: what leaves or is bound from then on they see, and
//! what was there before the list has. While they are not attached nobody sees what leaves, so what was learnt before counts no
//! more: they are attached again only when it has run out.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kern::guard::{Gauges, Nobody, Views, mode};
use policy::behind::Watch;
use policy::gate::{BRIEFLY, UNTIL_BOUND, next_list, tick};
use policy::{MILLISECOND, Nanos};

use super::{clock, sched};

/// Stack of the thread, bytes.
const STACK: usize = 64 * 1024;
/// The programs stay attached for so long after the last source was given back: the next onset finds what it knew.
const STAYS: Nanos = 2000 * MILLISECOND;
/// What was learnt before they were detached has run out by then.
const RUN_OUT: Nanos = ((UNTIL_BOUND + 2) as Nanos) << policy::gate::TICK_SHIFT;

/// What the control loop and the thread share.
struct Shared {
    views: Arc<Views>,
    /// Counts the times that the programs were attached; 0 while they are not.
    attached: AtomicU64,
    stop: AtomicBool,
}

/// See the module.
pub struct Gate {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Root of all cgroups; `None` where binds cannot be seen.
    cgroup: Option<OwnedFd>,
    /// How what is nobody's is known now.
    pub nobody: Nobody,
    times: u64,
    /// Whether losses of other namespaces are a reason to attach them too.
    behind: Watch,
    needed_at: Nanos,
    detached_at: Option<Nanos>,
}

impl Gate {
    /// Starts its thread, which sleeps until a source is polled.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub fn start(views: &Arc<Views>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            views: Arc::clone(views),
            attached: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("weir-ports".into()).stack_size(STACK);
        let thread = builder.spawn(move || own.run())?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            cgroup: kern::cgroups::root(),
            nobody: Nobody::Off,
            times: 0,
            behind: Watch::default(),
            needed_at: 0,
            detached_at: None,
        })
    }

    /// Attaches the programs while a source is polled or sheds, or containers lose packets, and says how many sources may feed one consumer at once.
    pub fn look(&mut self, gauges: &mut Gauges, now: Nanos) {
        let modes = self.shared.views.source_ctls.iter().map(|ctl| ctl.mode.load(Relaxed));
        let inputs = modes.filter(|m| matches!(*m, mode::POLL | mode::SHED)).count() as u32;
        let guard = &self.shared.views.guard[0];
        guard.slices.store(inputs, Relaxed);
        let views = &self.shared.views;
        let lost = views.cpu_stats.iter().map(|c| c.elsewhere.load(Relaxed)).sum();
        let behind = self.behind.look(now, lost, views.gate[0].evidence.load(Relaxed));
        // Where nothing is sent on nobody is behind this host.
        let needed = inputs > 0 || behind && kern::discover::translates();
        if needed {
            self.needed_at = now;
        }
        let attached = self.shared.attached.load(Relaxed) != 0;
        if attached && now.saturating_sub(self.needed_at) > STAYS {
            guard.nobody_ticks.store(0, Relaxed);
            self.shared.attached.store(0, Relaxed);
            guard.listed.store(0, Relaxed);
            self.nobody = gauges.watch_nobody(false, None);
            self.detached_at = Some(now);
        }
        let run_out = self.detached_at.is_none_or(|at| now.saturating_sub(at) > RUN_OUT);
        if needed && !attached && run_out {
            self.nobody = gauges.watch_nobody(true, self.cgroup.as_ref().map(AsFd::as_fd));
            let ticks = match self.nobody {
                Nobody::Off => return,
                Nobody::Briefly => BRIEFLY,
                Nobody::UntilBound => UNTIL_BOUND,
            };
            self.times += 1;
            guard.listed.store(0, Relaxed);
            self.shared.attached.store(self.times, Relaxed);
            guard.nobody_ticks.store(ticks, Relaxed);
            self.wake();
        }
    }

    fn wake(&self) {
        if let Ok(thread) = self.thread.lock()
            && let Some(thread) = thread.as_ref()
        {
            thread.thread().unpark();
        }
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.shared.stop.store(true, Relaxed);
        self.wake();
        let thread = self.thread.lock().ok().and_then(|mut t| t.take());
        // One that panicked has ended the process.
        let _ = thread.map(JoinHandle::join);
    }
}

impl Shared {
    fn run(&self) {
        // Where programs starve it would starve with them.
        sched::strong();
        while !self.stop.load(Relaxed) {
            let times = self.attached.load(Relaxed);
            if times == 0 {
                std::thread::park();
                continue;
            }
            let begun = clock::coarse();
            // It counts only if the programs have been attached all the while; one that cannot be read is tried again.
            let _ =
                kern::guard::list_ports(&self.views, tick(begun), || self.attached.load(Relaxed) == times);
            let next = next_list(begun, clock::now());
            // A wake ends it early, which costs one list.
            std::thread::park_timeout(Duration::from_nanos(next.saturating_sub(clock::now())));
        }
    }
}
