//! What pollers, the watch thread and BPF tell the control loop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kern::cpus::CpuSet;
use kern::discover::Others;
use kern::guard::{MACS, When};
use kern::sysfs::Sysfs;
use policy::causes::{Fallback, Release};
use policy::host::STAYS;
use policy::load::Load;
use policy::lull::Lull;
use policy::standing::Call;
use policy::{MILLISECOND, Nanos};

use super::{Control, State, Worker};
use crate::clock;
use crate::consumers::Around;
use crate::interface::Interface;
use crate::messages::{Command, Grounds, Report};
use crate::parse::{Ablate, Mode};
use crate::sessions;
use crate::source::Source;

/// Sockets that are looked at in one go: each takes a list of the kernel's, and whoever opens many must not keep the rest waiting.
const FOUND_MOST: usize = 16;
/// Interfaces that stand on one guarded interface, and it, whose packets count as its own.
const STACK_MAX: usize = 32;

/// CPUs that are online now. In a build with debug assertions `WEIR_TEST_ONLINE` names a file that says so instead: a test
/// cannot take a CPU from the machine.
fn online() -> kern::error::Result<CpuSet> {
    #[cfg(debug_assertions)]
    if let Some(file) = std::env::var_os("WEIR_TEST_ONLINE")
        && let Ok(text) = std::fs::read_to_string(file)
    {
        return text.parse();
    }
    kern::cpus::online()
}

impl Control {
    /// Takes in what was told, reports one by one: acting on one may take milliseconds, and sockets that overflow are not to
    /// wait for it.
    pub(super) fn take_in(&mut self) {
        self.find_consumers();
        while let Ok(report) = self.reports.1.try_recv() {
            self.hear(report);
            self.find_consumers();
        }
    }

    fn find_consumers(&mut self) {
        for _ in 0..FOUND_MOST {
            let Ok(found) = self.new_consumers.1.try_recv() else { break };
            let now = clock::now();
            let placed = match found.netlink {
                0 => self.consumers.add(&self.gauges, &found, now).map(Some),
                _ => self.filters.found(&self.gauges, &mut self.consumers, &found, now),
            };
            match placed {
                Ok(Some(placed)) if placed.evicted => {
                    for worker in &self.workers {
                        let _ = worker.commands.send(Command::Forget(placed.slot));
                    }
                }
                Ok(_) => {}
                Err(why) => {
                    let text = format!("no feedback for one more socket: {why}");
                    self.log.line("warning", "consumers", &text);
                }
            }
        }
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Started { cpu, class, refused } => {
                if let Some(why) = &refused {
                    let text = format!("no SCHED_FIFO {why}");
                    self.log.line("warning", &format!("CPU {cpu}"), &text);
                }
                if let Some(worker) = self.workers.iter_mut().find(|w| w.cpu == cpu) {
                    (worker.class, worker.refused) = (class.name(), refused);
                }
            }
            Report::TakenOver { source, time, cpu, grounds } => {
                self.is_taken_over(&source, time, cpu, grounds);
            }
            Report::Refused { source, why, fallback } => self.is_refused(&source, why, fallback),
            Report::Released { source, time, why } => self.is_released(&source, time, why),
            Report::Left(outcome) => self.log.left(&outcome),
            Report::Warning { source, text } => self.log.line("warning", &source.name, &text),
            Report::Moved { cpu, away } => {
                let subject = format!("CPU {cpu}");
                if away {
                    self.log.line(
                        "away",
                        &subject,
                        "offline, or its poller was moved away: it polls nothing",
                    );
                } else {
                    self.log.line("back", &subject, "its poller is there again");
                }
            }
            Report::Contended { cpu } => self.is_contended(cpu),
            Report::Pressed { cpu } => self.press_net(clock::now(), cpu),
            Report::Stuck { cpu } => {
                let text = "its poller does not run: the kernel has its sources";
                self.log.line("stuck", &format!("CPU {cpu}"), text);
                self.look_at_stuck(clock::now());
            }
            Report::Shown => self.look_at_stuck(clock::now()),
            Report::KeeperLost => self.replace_keeper("it does not answer"),
            Report::Failed { cpu, why } => {
                // Nothing is ordered from it any more.
                if let (Some(index), Ok(mut dispatch)) =
                    (self.workers.iter().position(|w| w.cpu == cpu), self.dispatch.lock())
                {
                    self.workers[index].gauge.away.store(true, Relaxed);
                    dispatch.set_away(index, true);
                }
                self.log.line("warning", &format!("CPU {cpu}"), &format!("its poller ended: {why}"));
            }
        }
    }

    fn is_taken_over(&mut self, source: &Source, time: Nanos, cpu: usize, grounds: Grounds) {
        let why = grounds.reason(cpu);
        source.because(&why);
        self.mode_switches += 1;
        // Here, not in the poller: attaching waits for the whole kernel.
        let _ = self.gauges.watch_idle(true);
        self.look_at_gate();
        let mine = |w: &&Worker| w.cpu == source.now.cpu.load(Relaxed) as usize;
        let rules = &self.opts.classes;
        let device = || self.access.sysfs().device(source.ifindex);
        let known = self.sessions.any(clock::now(), rules)
            || device().is_ok_and(|device| sessions::has_peer(rules, &device));
        if let Some(worker) = self.workers.iter().find(mine).filter(|_| known) {
            let _ = worker.commands.send(Command::Expect(source.slot));
        }
        let after = time.saturating_sub(grounds.evidence) as f64 / MILLISECOND as f64;
        let text = format!("{why}; after {after:.2} ms");
        self.log.event(time, "takeover", &source.name, &text);
    }

    fn is_refused(&mut self, source: &Arc<Source>, why: String, fallback: Option<Fallback>) {
        source.because(format!("not taken over: {why}"));
        self.log.event(clock::now(), "refused", &source.name, &why);
        // What works for another source of the interface is not given up for this one.
        let polled = |i: &Interface| i.sources.iter().any(|s| s.now.changed.load(Relaxed) > 0);
        if let (Some(Fallback::Thread), Some(index), Mode::Auto | Mode::Net) =
            (fallback, self.interface_of(source), self.opts.mode)
            && !polled(&self.interfaces[index])
        {
            self.go_thread(index, why, Some(Lull::default()));
        }
    }

    fn is_released(&mut self, source: &Arc<Source>, time: Nanos, why: Release) {
        self.mode_switches += 1;
        source.because(format!("released: {why}"));
        if self.workers.iter().all(|w| w.gauge.polling.load(Relaxed) == 0) {
            self.contention.ends();
            self.watch_reads(false);
        }
        self.log.event(time, "release", &source.name, &why.to_string());
        match (why, self.interface_of(source)) {
            // A NAPI that is gone without a word of netlink: its successor's id is found or learnt.
            (Release::Stale, Some(index)) => self.interfaces[index].doubtful = true,
            (Release::Leaks, Some(index)) => self.go_thread(index, why.to_string(), None),
            (Release::Resized, _) => self.follow(source.slot),
            (Release::Load(Load::Unknown), _) => {
                self.gate.learn_nothing();
                self.look_at_gate();
            }
            _ => {}
        }
    }

    fn is_contended(&mut self, cpu: usize) {
        if self.level_wakes.load(Relaxed) {
            return;
        }
        self.watch_reads(true);
        // Said once per overload, however often it is tried without.
        if self.contention.found(clock::now()) {
            let text = "other programs run there: reads are watched";
            self.log.line("contended", &format!("CPU {cpu}"), text);
        }
    }

    /// The interface that has `source`.
    fn interface_of(&self, source: &Arc<Source>) -> Option<usize> {
        self.interfaces.iter().position(|i| i.sources.iter().any(|s| Arc::ptr_eq(s, source)))
    }

    /// Tells pollers whose CPU went offline or came back: one that sleeps does not notice.
    pub(super) fn look_at_cpus(&self) {
        let Ok(online) = online() else { return };
        for worker in &self.workers {
            let command = match (online.contains(worker.cpu), worker.gauge.away.load(Relaxed)) {
                (false, false) => Command::Leave,
                (true, true) => Command::Return,
                _ => continue,
            };
            // A poller that does not listen any more is ending with the guard.
            let _ = worker.commands.send(command);
        }
    }

    /// Asks pollers that did not run to show themselves, and lets those that have done so take sources again.
    pub(super) fn look_at_stuck(&mut self, now: Nanos) {
        for (index, worker) in self.workers.iter().enumerate() {
            let answered = worker.gauge.shown.load(Relaxed);
            let call = self.dispatch.lock().ok().and_then(|mut d| d.look_at_poller(now, index, answered));
            match call {
                // A poller that does not listen any more is ending with the guard.
                Some(Call::Ask) => _ = worker.commands.send(Command::Show),
                Some(Call::Return) => {
                    worker.gauge.stuck.store(false, Relaxed);
                    self.log.line("back", &format!("CPU {}", worker.cpu), "its poller runs again");
                }
                None => {}
            }
        }
    }

    /// Tells BPF which interfaces' packets are evidence: the guarded ones and what stands on them now; whether packets that
    /// arrive by them may be for others, and where the kernel's search for a TCP socket says who gets a segment.
    pub(super) fn look_at_evidence(&mut self) {
        let sysfs = self.access.sysfs();
        let guarded = self.interfaces.iter().enumerate().filter(|(_, i)| i.state == State::Guarded);
        let stacks: Vec<_> =
            guarded.map(|(n, i)| (n, kern::sysfs::stack(sysfs, i.ifindex, STACK_MAX))).collect();
        let now: BTreeSet<u32> = stacks.iter().flat_map(|(_, stack)| stack).copied().collect();
        for (index, stack) in stacks {
            let macs = macs(sysfs, &stack);
            let other = self.interfaces[index].is_seen_otherwise(&self.access);
            let interface = &mut self.interfaces[index];
            interface.doubtful |= other;
            interface.alone = stack.len() == 1;
            for source in &interface.sources {
                let to = &self.gauges.views.source_ctls[source.slot].mac;
                to.iter().zip(macs).for_each(|(mac, is)| mac.store(is, Relaxed));
            }
        }
        if now != self.evident {
            if let Err(e) = self.gauges.set_guarded(&self.evident, &now) {
                let why =
                    format!("losses that came by some interfaces are not seen: {}", kern::guard::short(&e));
                self.log.line("warning", "consumers", &why);
            }
            self.evident = now;
        }
        self.look_at_others();
    }

    /// Whether packets may be for others than the sockets here.
    pub(super) fn look_at_others(&mut self) {
        let own = self.steering.as_ref().and_then(|steering| steering.id());
        self.others = Others::look(self.evident.iter().copied(), own);
        self.gauges.views.guard[0].by_flow.store(self.others.translates.into(), Relaxed);
        // Where none is guarded nothing is known.
        let mut all = !self.evident.is_empty();
        let guarded: BTreeSet<u32> = self.interfaces.iter().map(|i| i.ifindex).collect();
        let above = self.evident.difference(&guarded).copied().collect();
        self.consumers.set_around(Around { above, redirects: self.others.redirects });
        for interface in self.interfaces.iter().filter(|i| i.state == State::Guarded) {
            // A socket may be bound to an interface that stands on this one: the search where XDP runs does not find it.
            let exact = !self.others.takes && interface.alone;
            all &= exact;
            for source in &interface.sources {
                self.gauges.views.source_ctls[source.slot].exact.store(u32::from(exact), Relaxed);
            }
        }
        self.gauges.views.guard[0].by_end.store(u32::from(!all), Relaxed);
    }

    pub(super) fn watch_reads(&mut self, on: bool) {
        let on = self.gauges.watch_reads(on);
        self.level_wakes.store(on, Relaxed);
    }

    /// Captures, and what they do not see.
    pub(super) fn look_at_taps(&mut self) {
        let rx = &self.gauges.views.rx_stats;
        let shed = |i: &Interface| i.sources.iter().map(|s| rx[s.slot].shed.load(Relaxed)).sum();
        let interfaces = self.interfaces.iter().filter(|i| i.ifindex != 0).map(|i| (i.ifindex, shed(i)));
        self.taps.look(&kern::proc::packet_sockets(), interfaces);
    }

    /// Queues of packet filters, if full consumers are to hold input back.
    pub(super) fn look_for_filters(&mut self) {
        let acts = self.opts.mode.takes_over();
        if acts && !self.opts.ablate.contains(&Ablate::Feedback) {
            self.has_filters = self.filters.look(&mut self.gauges, &self.consumers, clock::now());
        }
    }

    /// XDP programs that nothing needs any more.
    ///
    /// Detaching takes 5 to 20 ms, in which nobody hears of overflowing sockets: one at a time, and none in an overload, whose next
    /// takeover may want it.
    pub(super) fn detach_idle(&mut self, now: Nanos) {
        if self.workers.iter().any(|w| w.gauge.polling.load(Relaxed) > 0) {
            return;
        }
        let idle = |i: &Interface| {
            i.rx_when.0 == When::Takeover
                && i.rx.as_ref().is_some_and(|rx| rx.detach_idle(now.saturating_sub(STAYS)))
        };
        self.interfaces.iter().any(idle);
    }
}

/// The Ethernet addresses by which frames are these interfaces', as BPF has them; none if one has no address, or if there are more.
fn macs(sysfs: &Sysfs, stack: &BTreeSet<u32>) -> [u64; MACS] {
    let ethernet = |index: &u32| sysfs.device(*index).ok().and_then(|device| device.ethernet());
    let all: Option<BTreeSet<[u8; 6]>> = stack.iter().map(ethernet).collect();
    let all = all.filter(|all| all.len() <= MACS).unwrap_or_default();
    let mut macs = [0; MACS];
    for (mac, [a, b, c, d, e, f]) in macs.iter_mut().zip(all) {
        *mac = u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
    }
    macs
}
