//! NAPI in softirq, in ksoftirqd, or in a kthread of its own, by the kernel's rules.

use super::gate::Judged;
use super::settings::{Receive, Settings};
use super::state::{SOFT, State, bucket, place};
use crate::check::Packet;
use crate::cpu::{Class, Cpu, Scheduler, Thread};
use crate::engine::{MS, Nanos, SEC};
use policy::causes::Cause;
use policy::dispatch::FULL_POLLS;
use policy::switch::Mode;

/// Packets that the filter lets through at once after a pause.
const LIMIT_BURST: u64 = 64;
/// In mode shed polls are filled by what is shed too: it takes so many times as many of them in a row.
const SHED_POLLS: u32 = 4;
/// MAX_SOFTIRQ_TIME, ns.
const RESTART_TIME: Nanos = 2 * MS;

/// Where a softirq runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Context {
    None,
    /// On the way out of an interrupt or of a system call.
    Inline,
    Ksoftirqd,
    /// A kthread polls; there is no softirq.
    Kthread,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Softirq {
    /// Runs softirqs that take too long.
    pub ksoftirqd: Thread,
    /// Threaded NAPI.
    pub kthread: Thread,
    /// NAPI is on a poll list: interrupts are off.
    pub scheduled: bool,
    /// When it was last taken off.
    pub completed: Nanos,
    /// Raised and not run.
    pending: bool,
    context: Context,
    packet: Option<(Packet, Judged)>,
    /// The filter drops it.
    limited: bool,
    /// The time up to which the filter's tokens are spent.
    limit_from: Nanos,
    /// The interrupt has found the CPU at work.
    pub preempts: bool,
    /// In the poll: the fixed part is done, so many packets since.
    polled: Option<u32>,
    /// Polling has ended and its timer is being started.
    arming: bool,
    action_from: Nanos,
    action_packets: u32,
    softirq_from: Nanos,
    restarts: u32,
    thread_at_start: Option<Thread>,
    /// Polls that took a whole weight, in a row.
    full_polls: u32,
    overflow: policy::overflow::Sockets,
    /// Sockets overflow long enough.
    overflows: bool,
}

impl Softirq {
    /// With its threads.
    pub fn new<S: Scheduler>(cpu: &mut Cpu<S>, s: &Settings) -> Self {
        let class = match s.receive {
            Receive::ThreadedIdle => Class::Idle,
            Receive::Hop => Class::Fifo(1),
            _ => Class::Normal(0),
        };
        let (ksoftirqd, kthread) = (cpu.thread(Class::Normal(0)), cpu.thread(class));
        cpu.refilling(kthread, s.away.0, s.refill.0);
        Self {
            ksoftirqd,
            kthread,
            scheduled: false,
            completed: 0,
            pending: false,
            context: Context::None,
            packet: None,
            limited: false,
            limit_from: 0,
            preempts: false,
            polled: None,
            arming: false,
            action_from: 0,
            action_packets: 0,
            softirq_from: 0,
            restarts: 0,
            thread_at_start: None,
            full_polls: 0,
            overflow: policy::overflow::Sockets::default(),
            overflows: false,
        }
    }

    /// True while a packet is between ring and socket.
    pub fn has_packet(&self) -> bool {
        self.packet.is_some()
    }
}

impl State {
    fn threaded(&self) -> bool {
        matches!(self.s.receive, Receive::Threaded | Receive::ThreadedIdle | Receive::Hop)
            || self.weir.threads
    }

    /// The interrupt has put NAPI on the poll list.
    pub(super) fn napi_scheduled(&mut self, now: Nanos) {
        if self.weir.polls() {
            self.soft.scheduled = false;
        } else if self.threaded() {
            if self.soft.context == Context::None {
                self.soft.context = Context::Kthread;
                self.poll(now);
            }
        } else {
            self.soft.pending = true;
            self.softirq_check(now);
        }
    }

    /// Runs a pending softirq inline, if the rules let it.
    pub(super) fn softirq_check(&mut self, now: Nanos) {
        let deferred = self.s.ksoftirqd_first && !self.cpu.is_blocked(self.soft.ksoftirqd);
        if !self.soft.pending || self.soft.context != Context::None || deferred || self.cpu.is_active(SOFT) {
            return;
        }
        self.begin(now, Context::Inline);
    }

    fn begin(&mut self, now: Nanos, context: Context) {
        self.soft.context = context;
        self.soft.softirq_from = now;
        self.soft.restarts = self.s.softirq_restarts;
        self.soft.thread_at_start = self.cpu.current();
        self.action(now);
    }

    fn action(&mut self, now: Nanos) {
        self.soft.pending = false;
        self.soft.action_from = now;
        self.soft.action_packets = 0;
        self.poll(now);
    }

    fn poll(&mut self, now: Nanos) {
        // A poll runs with softirqs disabled, and so without preemption.
        match self.soft.context {
            Context::Ksoftirqd => self.cpu.hold(self.soft.ksoftirqd),
            Context::Kthread => self.cpu.hold(self.soft.kthread),
            _ => {}
        }
        self.soft.polled = None;
        self.gate.polls();
        let woken = std::mem::take(&mut self.soft.preempts) && self.s.receive == Receive::Hop;
        let wake = if woken { self.s.preempt.0 } else { 0 };
        self.soft_work(now, self.s.poll.0.max(1) + wake);
    }

    fn soft_work(&mut self, now: Nanos, cost: Nanos) {
        match self.soft.context {
            Context::Inline | Context::None => self.cpu.raise(now, SOFT, cost, bucket::SOFTIRQ),
            Context::Ksoftirqd => self.cpu.burst(now, self.soft.ksoftirqd, cost, bucket::SOFTIRQ),
            Context::Kthread => self.cpu.burst(now, self.soft.kthread, cost, bucket::SOFTIRQ),
        }
    }

    /// A piece of the softirq is done, or of the thread that runs it.
    pub(super) fn softirq_piece(&mut self, now: Nanos, thread: Option<Thread>) {
        let runs = match self.soft.context {
            Context::None => None,
            Context::Inline => Some(None),
            Context::Ksoftirqd => Some(Some(self.soft.ksoftirqd)),
            Context::Kthread => Some(Some(self.soft.kthread)),
        };
        if runs != Some(thread) {
            // A thread that was woken, or that was preempted at the end of its work.
            match thread {
                Some(thread) if thread == self.soft.ksoftirqd && runs.is_none() && self.soft.pending => {
                    self.begin(now, Context::Ksoftirqd);
                }
                Some(thread) => self.cpu.block(now, thread),
                None => {}
            }
            return;
        }
        if std::mem::take(&mut self.soft.arming) {
            self.leave(now);
            self.arm(now);
            return;
        }
        let mut count = match self.soft.polled {
            None => 0,
            Some(count) => {
                if let Some((packet, judged)) = self.soft.packet.take() {
                    if std::mem::take(&mut self.soft.limited) {
                        self.ledger.drop(&packet, place::LIMIT);
                    } else {
                        let refused = self.pass(now, packet, judged);
                        self.soft.overflows |= refused && self.soft.overflow.refused(now);
                    }
                }
                count + 1
            }
        };
        if count < self.s.weight
            && !self.weir.polls()
            && let Some(packet) = self.ring.pop_front()
        {
            let sheds = self.gate.mode == Mode::Shed;
            let judged = if sheds { self.judge(now, &packet) } else { Judged::default() };
            self.soft.packet = Some((packet, judged));
            self.soft.polled = Some(count);
            self.soft.limited = self.is_over_limit(now);
            let cost = if self.soft.limited {
                self.s.shed.0.max(1) + self.contention()
            } else {
                self.judged_cost(&packet, judged)
            };
            let hop = if self.s.receive == Receive::Hop { self.s.hop.0 } else { 0 };
            self.soft_work(now, cost + hop);
            return;
        }
        if self.soft.polled.is_none() {
            count = 0;
        }
        self.poll_ends(now, count);
    }

    /// The filter's token bucket: true if it holds nothing for this packet.
    fn is_over_limit(&mut self, now: Nanos) -> bool {
        if self.s.limit == 0 {
            return false;
        }
        let gap = SEC / u64::from(self.s.limit);
        // When the bucket was last empty: at most a burst ago.
        let empty = self.soft.limit_from.max(now.saturating_sub(LIMIT_BURST * gap));
        let over = empty + gap > now;
        self.soft.limit_from = if over { empty } else { empty + gap };
        over
    }

    fn poll_ends(&mut self, now: Nanos, count: u32) {
        self.soft.polled = None;
        let full = count >= self.s.weight && !self.weir.polls();
        self.soft.full_polls = if full { self.soft.full_polls + 1 } else { 0 };
        self.evidence(now);
        if !full {
            self.soft.scheduled = false;
            self.soft.completed = now;
            if self.s.moderation.0 > 0 && self.s.arm.0 > 0 && !self.weir.polls() {
                self.soft.arming = true;
                self.soft_work(now, self.s.arm.0);
                return;
            }
            self.leave(now);
            self.arm(now);
            return;
        }
        if self.soft.context == Context::Kthread {
            self.cpu.release(now);
            self.poll(now);
            return;
        }
        if self.weir.threads {
            // From its next poll on the NAPI is its thread's.
            self.leave(now);
            self.soft.context = Context::Kthread;
            self.poll(now);
            return;
        }
        self.soft.action_packets += count;
        let squeezed = self.soft.action_packets >= self.s.softirq_packets
            || now - self.soft.action_from >= self.s.softirq_time.0;
        if !squeezed {
            self.poll(now);
            return;
        }
        self.soft.pending = true;
        let waits = self.cpu.current() != self.soft.thread_at_start || self.cpu.is_due();
        let again = self.soft.restarts > 0 && now - self.soft.softirq_from < RESTART_TIME && !waits;
        if self.soft.context == Context::Ksoftirqd {
            // It begins again at once, unless others are due: then whoever enables softirqs runs it inline.
            self.cpu.release(now);
            if self.cpu.current() == Some(self.soft.ksoftirqd) {
                self.begin(now, Context::Ksoftirqd);
            } else {
                self.soft.context = Context::None;
            }
        } else if again {
            self.soft.restarts -= 1;
            self.action(now);
        } else {
            self.leave(now);
            if self.cpu.is_blocked(self.soft.ksoftirqd) {
                self.cpu.burst(now, self.soft.ksoftirqd, self.s.poll.0.max(1), bucket::SOFTIRQ);
            }
        }
    }

    fn leave(&mut self, now: Nanos) {
        self.meter(now);
        let context = std::mem::replace(&mut self.soft.context, Context::None);
        if matches!(context, Context::Ksoftirqd | Context::Kthread) {
            self.cpu.release(now);
        }
        match context {
            Context::Ksoftirqd if self.cpu.current() == Some(self.soft.ksoftirqd) => {
                self.cpu.block(now, self.soft.ksoftirqd);
            }
            Context::Kthread if self.cpu.current() == Some(self.soft.kthread) => {
                self.cpu.block(now, self.soft.kthread);
            }
            _ => {}
        }
    }

    fn most_full_polls(&self) -> u32 {
        if self.gate.mode == Mode::Shed { FULL_POLLS * SHED_POLLS } else { FULL_POLLS }
    }

    /// What the guard takes for overload: polls that are full in a row, or sockets that go on overflowing.
    fn evidence(&mut self, now: Nanos) {
        let overflows = std::mem::take(&mut self.soft.overflows);
        if self.guarded() && overflows {
            self.overloaded(now, Cause::Overflow);
        } else if self.guarded() && self.soft.full_polls >= self.most_full_polls() {
            self.overloaded(now, Cause::FullPolls);
        }
    }
}
