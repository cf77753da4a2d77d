//! What the gate needs beside BPF: lists of the ports that sockets have, begun while a source is polled or sheds, and the switch of
//! the programs that learn.
//!
//! Nothing is learnt before a list that was begun with the programs attached: what leaves or is bound from then on they see, and
//! what was there before the list has.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kern::discover::Others;
use kern::guard::{Gauges, Nobody, Views, mode, own};
use policy::Nanos;
use policy::behind;
use policy::gate::{BRIEFLY, LIST_IDLE, UNTIL_BOUND, Watch, Watching, next_list, tick};

use crate::{clock, sched};

/// Stack of the thread, bytes.
const STACK: usize = 64 * 1024;

/// What the control loop and the thread share.
struct Shared {
    views: Arc<Views>,
    /// Counts the times that the programs were attached; 0 while they are not.
    attached: AtomicU64,
    stop: AtomicBool,
    /// The thread, and since when it lists TCP sockets in idle time; 0 while it does not.
    tid: AtomicU32,
    idle_since: AtomicU64,
}

/// See the module.
pub struct Gate {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Root of all cgroups; `None` where binds cannot be seen.
    cgroup: Option<OwnedFd>,
    /// How what is nobody's is known now, or was when sources were polled last.
    nobody: Option<Nobody>,
    times: u64,
    watching: Watching,
    /// Whether losses of other namespaces are a reason to attach them too.
    behind: behind::Watch,
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
            tid: AtomicU32::new(0),
            idle_since: AtomicU64::new(0),
        });
        let own = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("weir-ports".into()).stack_size(STACK);
        let thread = builder.spawn(move || own.run())?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            cgroup: kern::cgroups::root(),
            nobody: None,
            times: 0,
            watching: Watching::default(),
            behind: behind::Watch::default(),
        })
    }

    /// Attaches the programs while a source is polled or sheds, or containers lose packets, and says how many inputs may feed one
    /// consumer at once, and what the table of connections says. `net`: the pollers' CPUs are net CPUs.
    pub fn look(&mut self, gauges: &mut Gauges, now: Nanos, net: bool, others: Others) {
        let since = self.shared.idle_since.load(Relaxed);
        if since != 0 && now.saturating_sub(since) > LIST_IDLE {
            sched::set_ordinary(self.shared.tid.load(Relaxed));
        }
        let (mut pollers, mut sources) = (0u64, 0);
        for ctl in self.shared.views.source_ctls.iter() {
            match ctl.mode.load(Relaxed) {
                // The polls of one poller come one after the other, and each reads what room there is: what an input leaves to
                // each other one is for those that a flood beside them would leave nothing.
                mode::POLL if net => pollers |= 1 << (ctl.poller.load(Relaxed) % u64::BITS),
                mode::POLL | mode::SHED => sources += 1,
                _ => {}
            }
        }
        let inputs = sources + pollers.count_ones();
        let guard = &self.shared.views.guard[0];
        guard.slices.store(inputs, Relaxed);
        let views = &self.shared.views;
        let lost = views.cpu_stats.iter().map(|c| c.elsewhere.load(Relaxed)).sum();
        let behind = self.behind.look(now, lost, views.gate[0].evidence.load(Relaxed));
        // Where nothing is sent on nobody is behind this host.
        let needed = inputs > 0 || behind && others.translates;
        if needed {
            guard.table.store(kern::discover::table(others.drops_early), Relaxed);
        }
        match self.watching.next(now, needed) {
            None => {}
            Some(Watch::Detach) => {
                guard.nobody_ticks.store(0, Relaxed);
                self.shared.attached.store(0, Relaxed);
                guard.listed.iter().for_each(|l| l.store(0, Relaxed));
                gauges.watch_nobody(false, None);
                self.watching.detached(clock::now());
            }
            Some(Watch::Attach) => {
                let nobody = gauges.watch_nobody(true, self.cgroup.as_ref().map(AsFd::as_fd));
                self.nobody = Some(nobody);
                let ticks = match nobody {
                    Nobody::Off => return self.watching.refused(),
                    Nobody::Briefly => BRIEFLY,
                    Nobody::UntilBound => UNTIL_BOUND,
                };
                self.times += 1;
                guard.listed.iter().for_each(|l| l.store(0, Relaxed));
                self.shared.attached.store(self.times, Relaxed);
                guard.nobody_ticks.store(ticks, Relaxed);
                self.wake();
            }
        }
    }

    /// A source is left to the kernel since nothing can be learnt of what it carries: each drop costs while that is tried.
    pub fn learn_nothing(&mut self) {
        self.watching.learn_nothing();
    }

    /// What it has to do without, as far as that is known.
    pub fn missing(&self) -> Option<&'static str> {
        match self.nobody? {
            Nobody::Off => Some("drops are not seen: what is for nobody is not shed"),
            Nobody::Briefly => {
                Some("binds are not seen: what is for nobody is remembered for 50 ms, not for 1 s")
            }
            Nobody::UntilBound => None,
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
        let Some(thread) = self.thread.lock().ok().and_then(|mut t| t.take()) else { return };
        sched::join_idle(thread, &self.shared.tid);
    }
}

impl Shared {
    fn run(&self) {
        // Where programs starve it would starve with them, when a first list is asked for.
        sched::strong();
        self.tid.store(sched::tid(), Relaxed);
        // When each list is due, of UDP and of TCP.
        let (mut due, mut listed) = ([0; 2], 0);
        let mut first = true;
        while !self.stop.load(Relaxed) {
            let times = self.attached.load(Relaxed);
            if times == 0 {
                std::thread::park();
                continue;
            }
            if std::mem::replace(&mut listed, times) != times {
                (due, first) = ([0; 2], true);
            }
            // What is learnt waits for the first list; a later one has time.
            if !std::mem::take(&mut first) {
                sched::patient(0);
            }
            for (tcp, due) in [false, true].into_iter().zip(&mut due) {
                let (begun, spent) = (clock::coarse(), clock::thread_cpu());
                if begun >= *due {
                    sched::runs(&self.views, own::PORTS, true);
                    let holds = || self.attached.load(Relaxed) == times && !self.stop.load(Relaxed);
                    // The kernel walks its whole table of TCP connections: in the time of what receives packets it would lose some.
                    if tcp {
                        self.idle_since.store(clock::now().max(1), Relaxed);
                        sched::go_idle();
                    }
                    // It counts only if the programs have been attached all the while; one that cannot be read is tried again.
                    let _ = kern::guard::list_ports(&self.views, tcp, tick(begun), holds);
                    if tcp {
                        self.idle_since.store(0, Relaxed);
                        sched::ordinary();
                    }
                    *due = next_list(begun, clock::thread_cpu().saturating_sub(spent));
                }
            }
            sched::runs(&self.views, own::PORTS, false);
            sched::strong();
            let next = due.into_iter().min().unwrap_or_default();
            std::thread::park_timeout(Duration::from_nanos(next.saturating_sub(clock::now())));
        }
    }
}
