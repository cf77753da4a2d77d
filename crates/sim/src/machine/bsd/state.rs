//! The machine while it runs.

use super::output::Output;
use super::report::Window;
use super::stops::{SCREEN, Stops};
use super::{Bsd, Completion, Kernel, Router};
use crate::check::{Ledger, Packet};
use crate::cpu::{Bsd as Scheduler, Class, Cpu, Done, Thread};
use crate::engine::{Agenda, MS, NEVER, Nanos, Rng, Timer};
use crate::machine::{Input, Outcome};
use crate::source::Source;
use policy::rotation::Rotation;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

/// Where packets are lost.
pub mod place {
    use crate::check::Place;

    /// Names, in the order of the constants.
    pub const NAMES: &[&str] = &["ring", "ip-queue", "screen-queue", "output-queue"];
    /// No receive descriptor.
    pub const RING: Place = Place(0);
    /// IP input queue full.
    pub const IP: Place = Place(1);
    /// Screening queue full.
    pub const SCREEN: Place = Place(2);
    /// Output queue full.
    pub const OUTPUT: Place = Place(3);
}

/// Where time goes.
pub mod bucket {
    use crate::cpu::Bucket;

    /// Device-level handlers.
    pub const DEVICE: Bucket = Bucket(1);
    /// IP thread or polling loop.
    pub const NET: Bucket = Bucket(2);
    /// Screening program.
    pub const SCREEN: Bucket = Bucket(3);
    /// Compute-bound program.
    pub const USER: Bucket = Bucket(4);
    /// The rest of the system.
    pub const SYSTEM: Bucket = Bucket(5);
}

/// Level of completions that are below input.
const BELOW: usize = 1;
/// Level of devices.
const DEVICE: usize = 2;
/// CPU time that packets may get to drain after the load, ns: under a cycle limit that takes longer.
const DRAIN_MAX: Nanos = 3_000 * MS;
/// Events between two looks whether to stop.
const STOP_EVERY: u64 = 1 << 14;
/// Turns of other work that are made up for later, at most.
const SYSTEM_MOST: u64 = 2;
/// A piece of the compute-bound program, ns.
const USER_PIECE: Nanos = 1_000 * MS;

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Arrive(u8),
    Cpu,
    Sent,
    Tick,
    System,
    Clocked,
    /// Deadline of an inhibit.
    Timeout,
    /// The cycle limit's period is over.
    Resume,
    LoadEnds,
}

/// What the handler at a level does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handler {
    None,
    /// Takes packets from the ring of this input.
    Receive(usize),
    /// Asks the polling loop to serve this input.
    Request(usize),
    /// Asks it to serve the output.
    RequestOutput,
    /// Handles completions.
    Complete,
}

/// What the polling loop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loop {
    Asleep,
    Pass,
    /// So many packets of this input in this callback so far.
    Receive(usize, u64),
    /// So many completions in this callback so far.
    Complete(u64),
}

pub(super) struct Interface {
    source: Source,
    arrival: Timer,
    pub ring: VecDeque<Packet>,
    /// Interrupts are let through.
    pub enabled: bool,
    /// Something arrived while they were not, or while a handler ran.
    pub pending: bool,
    /// The polling loop is to serve it.
    pub requested: bool,
    offered: u64,
    delivered: u64,
}

pub(super) struct State {
    pub s: Bsd,
    pub agenda: Agenda<Event>,
    pub cpu: Cpu<Scheduler>,
    cpu_timer: Timer,
    sent_timer: Timer,
    pub timeout_timer: Timer,
    pub resume_timer: Timer,
    ledger: Ledger,
    pub inputs: Vec<Interface>,
    load_end: Nanos,
    pub loading: bool,

    device: Handler,
    below: Handler,
    /// Input that the device level looks at first.
    next_input: usize,
    pub ip_queue: VecDeque<Packet>,
    in_ip: Option<Packet>,
    /// What that packet costs the IP thread.
    ip_cost: Nanos,
    pub screen_queue: VecDeque<Packet>,
    in_screen: Option<Packet>,
    pub hung: bool,
    pub output: Output,
    output_pending: bool,
    output_enabled: bool,
    pub output_requested: bool,

    pub net: Thread,
    pub screen: Thread,
    pub user: Thread,
    system: Thread,
    /// Receive work ran since the screening program did.
    screen_cold: bool,
    system_owed: Nanos,

    pub polling: Loop,
    pass_from: Nanos,
    last_slot: Option<usize>,
    rotation: Rotation,
    pub stops: Stops,
    window: Window,
}

impl State {
    pub(super) fn new(router: &Router, input: &Input) -> Self {
        let s = router.settings.clone();
        let mut agenda = Agenda::new();
        let mut cpu = Cpu::new(Scheduler::default(), 0, crate::cpu::IDLE);
        let net = cpu.thread(Class::Fifo(20));
        let system = cpu.thread(Class::Fifo(1));
        let screen = cpu.thread(Class::Normal(0));
        let user = cpu.thread(Class::Normal(0));
        let count = s.inputs as usize;
        let inputs = (0..count)
            .map(|index| {
                let rng = Rng::stream(input.seed, "source", index as u64);
                let rate = rate_of(&s, input.offered, index);
                let arrival = agenda.timer(Event::Arrive(index as u8));
                Interface {
                    source: router.source(rate, rng),
                    arrival,
                    ring: VecDeque::with_capacity(s.ring as usize),
                    enabled: true,
                    pending: false,
                    requested: false,
                    offered: 0,
                    delivered: 0,
                }
            })
            .collect();
        let flows = Some(count);
        let mut state = Self {
            cpu_timer: agenda.timer(Event::Cpu),
            sent_timer: agenda.timer(Event::Sent),
            timeout_timer: agenda.timer(Event::Timeout),
            resume_timer: agenda.timer(Event::Resume),
            agenda,
            cpu,
            ledger: Ledger::new(place::NAMES, input.strict, flows),
            inputs,
            load_end: input.load,
            loading: true,
            device: Handler::None,
            below: Handler::None,
            next_input: 0,
            ip_queue: VecDeque::new(),
            in_ip: None,
            ip_cost: 0,
            screen_queue: VecDeque::new(),
            in_screen: None,
            hung: false,
            output: Output::new(s.output_queue as usize, s.tx_ring as usize, s.wire.0),
            output_pending: false,
            output_enabled: s.completion != Completion::Polled && s.kernel != Kernel::Clocked,
            output_requested: false,
            net,
            screen,
            user,
            system,
            screen_cold: true,
            system_owed: 0,
            polling: Loop::Asleep,
            pass_from: 0,
            last_slot: None,
            rotation: Rotation::default(),
            stops: Stops::new(&s),
            window: Window::default(),
            s,
        };
        if state.s.kernel == Kernel::Clocked {
            state.inputs.iter_mut().for_each(|input| input.enabled = false);
        }
        state
    }

    pub(super) fn polls(&self) -> bool {
        matches!(self.s.kernel, Kernel::Polling | Kernel::DeviceLevel | Kernel::Clocked)
    }

    /// Runs the trial.
    pub(super) fn run(mut self, input: &Input) -> Outcome {
        for index in 0..self.inputs.len() {
            self.schedule_arrival(index);
        }
        self.agenda.once(self.s.tick.0, Event::Tick);
        if self.s.system.0 > 0 {
            self.agenda.once(self.s.system_every.0 / 2, Event::System);
        }
        self.agenda.once(self.load_end, Event::LoadEnds);
        if self.s.kernel == Kernel::Clocked {
            self.agenda.once(self.s.poll_every.0, Event::Clocked);
        }
        if self.s.user {
            self.cpu.burst(0, self.user, USER_PIECE, bucket::USER);
        }
        self.settle(0);
        let drain_end = self.load_end + DRAIN_MAX * 1000 / u64::from(self.s.threshold.0);
        while let Some((now, event)) = self.agenda.pop() {
            self.handle(now, event);
            self.settle(now);
            if !self.loading && (self.is_drained() || now > drain_end) {
                break;
            }
            if self.agenda.fired().is_multiple_of(STOP_EVERY) && input.stop.load(Relaxed) {
                break;
            }
        }
        let now = self.agenda.now();
        self.report(now)
    }

    pub(super) fn is_drained(&self) -> bool {
        self.queued() == 0 && self.ledger.unaccounted() == 0
    }

    fn queued(&self) -> usize {
        let held = usize::from(self.in_ip.is_some()) + usize::from(self.in_screen.is_some());
        let rings: usize = self.inputs.iter().map(|input| input.ring.len()).sum();
        rings + self.ip_queue.len() + self.screen_queue.len() + self.output.len() + held
    }

    fn schedule_arrival(&mut self, index: usize) {
        let input = &mut self.inputs[index];
        let at = input.source.arrival();
        if at < self.load_end {
            self.agenda.set(input.arrival, at);
        }
    }

    fn handle(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Arrive(index) => self.arrive(now, usize::from(index)),
            Event::Cpu => {
                while let Some(done) = self.cpu.done(now) {
                    match done {
                        Done::Level(DEVICE) => self.device_done(now),
                        Done::Level(_) => self.below_done(now),
                        Done::Thread(thread) => self.thread_done(now, thread),
                    }
                }
            }
            Event::Sent => {
                if let Some(packet) = self.output.sent(now) {
                    self.ledger.deliver(now, &packet);
                    self.inputs[packet.flow as usize].delivered += 1;
                    self.window.forwarded(now, &packet, self.loading);
                    self.output_pending = true;
                }
            }
            Event::Tick => self.tick(now),
            Event::System => {
                self.agenda.once(now + self.s.system_every.0, Event::System);
                self.system_owed = (self.system_owed + self.s.system.0).min(SYSTEM_MOST * self.s.system.0);
                if self.cpu.is_blocked(self.system) {
                    self.next_system(now);
                }
            }
            Event::Clocked => {
                self.agenda.once(now + self.s.poll_every.0, Event::Clocked);
                // While input is off the clock has nothing to poll but completions: empty passes would be charged to
                // the limit, and where they take more than that, input would never come on again.
                if !self.inhibited() || self.output.done > 0 {
                    self.inputs.iter_mut().for_each(|input| input.requested = true);
                    self.output_requested = true;
                    self.wake_loop(now);
                }
            }
            Event::Timeout => self.timeout(now),
            Event::Resume => self.resume(now),
            Event::LoadEnds => {
                self.loading = false;
                let accounts = self.cpu.accounts(now);
                self.window.ends(now, accounts, self.output.starvation(now));
            }
        }
    }

    /// After every event: what became possible by it, and when the CPU is to be looked at.
    fn settle(&mut self, now: Nanos) {
        self.dispatch(now);
        if self.cpu.is_idle() && self.s.threshold.0 < 1000 && self.idles(now) {
            self.dispatch(now);
        }
        self.agenda.set_or_cancel(self.cpu_timer, self.cpu.next());
        self.agenda.set_or_cancel(self.sent_timer, self.output.sent_at().unwrap_or(NEVER));
    }

    fn arrive(&mut self, now: Nanos, index: usize) {
        let tag = u32::from(self.inputs[index].source.is_first());
        let packet = self.ledger.offer(now, index as u32, tag);
        let input = &mut self.inputs[index];
        input.offered += 1;
        if input.ring.len() >= self.s.ring as usize {
            self.ledger.drop(&packet, place::RING);
        } else {
            input.ring.push_back(packet);
            input.pending = true;
        }
        self.schedule_arrival(index);
    }

    /// Starts the handlers of what is pending at levels that are free.
    fn dispatch(&mut self, now: Nanos) {
        if !self.cpu.is_active(DEVICE) && self.device == Handler::None {
            self.dispatch_device(now);
        }
        if self.s.completion == Completion::Below
            && self.output_pending
            && self.output_enabled
            && !self.cpu.is_active(BELOW)
        {
            self.output_pending = false;
            self.below = if self.polls() { Handler::RequestOutput } else { Handler::Complete };
            let cost = if self.polls() { self.s.tx_interrupt.0 } else { self.s.complete.0 };
            self.cpu.raise(now, BELOW, cost, bucket::DEVICE);
        }
    }

    fn dispatch_device(&mut self, now: Nanos) {
        let count = self.inputs.len();
        let masked = self.is_masked();
        // Input and output take turns at the same level.
        for step in 0..=count {
            let slot = (self.next_input + step) % (count + 1);
            let handler = if slot == count {
                if !(self.output_pending && self.output_enabled && self.s.completion == Completion::Device) {
                    continue;
                }
                self.output_pending = false;
                if self.polls() { Handler::RequestOutput } else { Handler::Complete }
            } else {
                let input = &mut self.inputs[slot];
                if !(input.pending && input.enabled && !masked) {
                    continue;
                }
                input.pending = false;
                if input.ring.is_empty() {
                    continue;
                }
                if self.polls() { Handler::Request(slot) } else { Handler::Receive(slot) }
            };
            self.next_input = (slot + 1) % (count + 1);
            let cost = match handler {
                Handler::Receive(_) => self.device_cost(),
                Handler::Request(_) => self.s.interrupt.0,
                Handler::RequestOutput => self.s.tx_interrupt.0,
                _ => self.s.complete.0,
            };
            self.device = handler;
            self.cpu.raise(now, DEVICE, cost, bucket::DEVICE);
            return;
        }
    }

    fn device_cost(&self) -> Nanos {
        if self.s.kernel == Kernel::NoPolling { self.s.np_device.0 } else { self.s.device.0 }
    }

    fn device_done(&mut self, now: Nanos) {
        match std::mem::replace(&mut self.device, Handler::None) {
            Handler::Receive(index) => {
                if let Some(packet) = self.inputs[index].ring.pop_front() {
                    if self.ip_queue.len() >= self.s.ip_queue as usize {
                        self.ledger.drop(&packet, place::IP);
                    } else {
                        self.ip_queue.push_back(packet);
                        self.wake_ip(now);
                    }
                    self.came_in();
                    self.ip_level(now);
                }
                self.charge_kernel(now, self.device_cost());
                // A handler goes on until its device is empty, or input stops.
                if !self.inputs[index].ring.is_empty() && !self.is_masked() {
                    self.device = Handler::Receive(index);
                    self.cpu.raise(now, DEVICE, self.device_cost(), bucket::DEVICE);
                }
            }
            Handler::Request(index) => {
                let input = &mut self.inputs[index];
                input.enabled = false;
                input.requested = true;
                self.wake_loop(now);
            }
            Handler::RequestOutput => {
                self.output_enabled = false;
                self.output_requested = true;
                self.wake_loop(now);
            }
            Handler::Complete => {
                self.charge_kernel(now, self.s.complete.0);
                self.output.reclaim();
                if self.output.done > 0 {
                    self.device = Handler::Complete;
                    self.cpu.raise(now, DEVICE, self.s.complete.0, bucket::DEVICE);
                } else {
                    self.output.load(now);
                }
            }
            // The polling loop at device level.
            Handler::None => self.loop_done(now),
        }
    }

    fn below_done(&mut self, now: Nanos) {
        if std::mem::replace(&mut self.below, Handler::None) == Handler::RequestOutput {
            self.output_enabled = false;
            self.output_requested = true;
            self.wake_loop(now);
            return;
        }
        self.charge_kernel(now, self.s.complete.0);
        self.output.reclaim();
        self.output.load(now);
        self.output_pending = self.output.done > 0;
    }

    fn thread_done(&mut self, now: Nanos, thread: Thread) {
        if thread == self.net {
            if self.polls() { self.loop_done(now) } else { self.ip_done(now) }
        } else if thread == self.screen {
            self.screen_done(now);
        } else if thread == self.user {
            self.cpu.burst(now, self.user, USER_PIECE, bucket::USER);
        } else {
            self.next_system(now);
        }
    }

    fn wake_ip(&mut self, now: Nanos) {
        if self.in_ip.is_none() {
            self.next_ip(now);
        }
    }

    /// The cycle limit of a kernel without polling counts each handler and each packet of the IP thread.
    fn charge_kernel(&mut self, now: Nanos, spent: Nanos) {
        if self.s.threshold.0 < 1000 {
            self.charge(now, spent);
        }
    }

    fn next_ip(&mut self, now: Nanos) {
        self.in_ip = self.ip_queue.pop_front();
        self.ip_level(now);
        if self.in_ip.is_none() {
            self.cpu.block(now, self.net);
            return;
        }
        let mut cost = match (self.s.screend, self.s.kernel) {
            (true, _) => self.s.ip_input.0,
            (false, Kernel::NoPolling) => self.s.np_forward.0,
            (false, _) => self.s.forward.0,
        };
        cost += self.reclaim_polled(now);
        self.ip_cost = cost;
        self.screen_cold = true;
        self.cpu.burst(now, self.net, cost, bucket::NET);
    }

    /// Takes back descriptors on the way, where completions do not interrupt; their cost.
    fn reclaim_polled(&mut self, now: Nanos) -> Nanos {
        let mut cost = 0;
        if self.s.completion == Completion::Polled && !self.polls() {
            while self.output.done > 0 {
                self.output.reclaim();
                cost += self.s.complete.0;
            }
            self.output.load(now);
        }
        cost
    }

    fn ip_done(&mut self, now: Nanos) {
        self.charge_kernel(now, self.ip_cost);
        if let Some(packet) = self.in_ip.take() {
            if self.s.screend { self.pass_to_screen(now, packet) } else { self.forward(now, packet) }
        }
        self.next_ip(now);
    }

    fn forward(&mut self, now: Nanos, packet: Packet) {
        self.output.send(now, packet, &mut self.ledger);
    }

    fn pass_to_screen(&mut self, now: Nanos, packet: Packet) {
        if self.screen_queue.len() >= self.s.screen_queue as usize {
            self.ledger.drop(&packet, place::SCREEN);
        } else {
            self.screen_queue.push_back(packet);
            if self.in_screen.is_none() {
                self.next_screen(now);
            }
        }
        self.stops.fed(SCREEN);
        self.screen_level(now);
    }

    pub(super) fn next_screen(&mut self, now: Nanos) {
        self.hung = self.s.hang && now >= self.load_end / 2 && self.loading;
        self.in_screen = if self.hung { None } else { self.screen_queue.pop_front() };
        self.screen_level(now);
        if self.in_screen.is_none() {
            if self.cpu.current() == Some(self.screen) && !self.cpu.is_blocked(self.screen) {
                self.cpu.block(now, self.screen);
            }
            return;
        }
        let mut cost = if self.polls() { self.s.pm_screen.0 } else { self.s.screen.0 };
        if std::mem::take(&mut self.screen_cold) {
            cost += self.s.resume.0;
        }
        cost += self.reclaim_polled(now);
        self.cpu.burst(now, self.screen, cost, bucket::SCREEN);
    }

    fn screen_done(&mut self, now: Nanos) {
        if let Some(packet) = self.in_screen.take() {
            self.forward(now, packet);
        }
        self.next_screen(now);
    }

    pub(super) fn wake_loop(&mut self, now: Nanos) {
        // At device level a handler that is under way starts the loop when it ends.
        let busy = self.s.kernel == Kernel::DeviceLevel && self.cpu.is_active(DEVICE);
        if self.polling == Loop::Asleep && !busy {
            self.start_pass(now);
        }
    }

    /// A piece of the polling loop: in its thread, or at device level.
    fn work(&mut self, now: Nanos, what: Loop, cost: Nanos) {
        self.polling = what;
        self.screen_cold |= matches!(what, Loop::Receive(..));
        if self.s.kernel == Kernel::DeviceLevel {
            self.device = Handler::None;
            self.cpu.raise(now, DEVICE, cost, bucket::NET);
        } else {
            self.cpu.burst(now, self.net, cost, bucket::NET);
        }
    }

    fn start_pass(&mut self, now: Nanos) {
        self.pass_from = now;
        self.last_slot = None;
        self.work(now, Loop::Pass, self.s.pass.0);
    }

    fn loop_done(&mut self, now: Nanos) {
        match self.polling {
            Loop::Asleep => return,
            Loop::Pass => {}
            Loop::Receive(index, count) => {
                if let Some(packet) = self.inputs[index].ring.pop_front() {
                    if self.s.screend { self.pass_to_screen(now, packet) } else { self.forward(now, packet) }
                }
                if self.inputs[index].ring.is_empty() {
                    self.inputs[index].requested = false;
                } else if count + 1 < self.s.quota.0 && !self.inhibited() {
                    self.work(now, Loop::Receive(index, count + 1), self.receive_cost());
                    return;
                }
            }
            Loop::Complete(count) => {
                self.output.reclaim();
                if self.output.done > 0 && count + 1 < self.s.quota.0 {
                    self.work(now, Loop::Complete(count + 1), self.s.complete.0);
                    return;
                }
                self.output_requested = self.output.done > 0;
                // Free descriptors are filled once, at the end of the callback: one callback sends no more than these.
                self.output.load(now);
            }
        }
        self.next_service(now);
    }

    fn receive_cost(&self) -> Nanos {
        if self.s.screend { self.s.receive_screen.0 } else { self.s.receive.0 }
    }

    fn next_service(&mut self, now: Nanos) {
        let count = self.inputs.len();
        let masked = self.inhibited();
        // While the loop runs, devices whose interrupt is off ask it without one; at device level none gets through.
        let deaf = self.s.kernel == Kernel::DeviceLevel;
        for input in &mut self.inputs {
            input.requested |= !input.ring.is_empty() && (deaf || !input.enabled);
        }
        let deaf = deaf || self.s.completion == Completion::Polled;
        if self.output.done > 0 && (deaf || !self.output_enabled) {
            self.output_requested = true;
        }
        let (inputs, output) = (&self.inputs, self.output_requested && self.output.done > 0);
        let mut rotation = self.rotation;
        let slot = rotation.pick(count + 1, |slot| match inputs.get(slot) {
            Some(input) => input.requested && !masked && !input.ring.is_empty(),
            None => output,
        });
        let Some(slot) = slot else {
            self.charge(now, now - self.pass_from);
            self.fall_asleep(now);
            return;
        };
        if self.last_slot.is_some_and(|last| slot <= last) {
            // The round robin is round: the cursor stays, so that the service comes first in the next pass.
            self.charge(now, now - self.pass_from);
            self.start_pass(now);
            return;
        }
        self.rotation = rotation;
        self.last_slot = Some(slot);
        if slot == count {
            self.work(now, Loop::Complete(0), self.s.complete.0);
        } else {
            self.work(now, Loop::Receive(slot, 0), self.receive_cost());
        }
    }

    fn fall_asleep(&mut self, now: Nanos) {
        self.polling = Loop::Asleep;
        if self.s.kernel != Kernel::DeviceLevel {
            self.cpu.block(now, self.net);
        }
        let clocked = self.s.kernel == Kernel::Clocked;
        let inhibited = self.inhibited();
        for input in &mut self.inputs {
            if !clocked && !inhibited {
                // The race rule: what arrived since the last look still interrupts (MR-19).
                input.requested = false;
                input.enabled = true;
                input.pending = !input.ring.is_empty();
            }
        }
        self.output_requested = false;
        if self.s.completion != Completion::Polled && !clocked {
            self.output_enabled = true;
            self.output_pending = self.output.done > 0;
        }
    }

    /// Work that the system could not do because of packets is done later.
    fn next_system(&mut self, now: Nanos) {
        match std::mem::take(&mut self.system_owed) {
            0 if self.cpu.is_blocked(self.system) => {}
            0 => self.cpu.block(now, self.system),
            owed => self.cpu.burst(now, self.system, owed, bucket::SYSTEM),
        }
    }

    fn report(mut self, now: Nanos) -> Outcome {
        let accounts = self.cpu.accounts(now);
        let mut faults = self.ledger.faults(self.queued() as u64);
        faults.extend(crate::check::time(0, &accounts, now).err());
        faults.extend(self.stops.inhibits.faults(now));
        let by_input: Vec<(u64, u64)> =
            self.inputs.iter().map(|input| (input.offered, input.delivered)).collect();
        let mut outcome = self.window.outcome(&self.ledger, &by_input, self.agenda.fired(), faults);
        if let Some(share) = self.stops.timed_out() {
            outcome.values.insert("timed_out_percent", 100.0 * share);
        }
        outcome
    }
}

/// Packets/s of one input.
fn rate_of(s: &Bsd, offered: u64, index: usize) -> u64 {
    let count = u64::from(s.inputs);
    let first = u64::from(s.first_share.0);
    if first == 0 || count == 1 {
        return (offered / count).max(1);
    }
    let rate =
        if index == 0 { offered * first / 1000 } else { offered * (1000 - first) / 1000 / (count - 1) };
    rate.max(1)
}
