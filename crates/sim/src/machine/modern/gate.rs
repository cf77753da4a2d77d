//! The gate before the stack: what weir's XDP program does with each frame, decided by policy's own code.

use super::settings::{Flood, Settings};
use super::state::State;
use crate::check::Packet;
use crate::engine::Nanos;
use policy::Permille;
use policy::fair::{self, Fair, Room, Sketch, Verdict};
use policy::gate::{self, LISTED_MOST, Port, Refusal, TRICKLE, UNTIL_BOUND, Watch, Watching, tick};
use policy::poller::Turned;
use policy::shedding::Became;
use policy::switch::Mode;
use policy::syns::{Set, Syns};

/// The one local address.
const ADDRESS: u32 = 1;
/// Of the hash of senders.
const SEED: u64 = 1;
/// A socket that is not known has room for all.
const ALL: u32 = u32::MAX;

/// A consumer as the gate knows it.
#[derive(Clone, Debug, Default)]
struct Known {
    /// It has refused a packet, which told its size.
    tracked: bool,
    fair: Fair,
    /// Room in this poll of the driver.
    left: u32,
    poll: u32,
    /// Tick in which input was kept away from it last.
    paused: u32,
}

/// What is done with a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Dropped before a buffer exists.
    pub shed: bool,
    /// Its consumer is inhibited or has no room.
    pub to_full: bool,
    /// It passes, and is nobody's whom the gate does not know.
    pub known: bool,
    /// Shed since nobody takes it.
    pub nobody: bool,
    /// A class protects it.
    pub protected: bool,
    /// A pause would lose it.
    pub innocent: bool,
}

impl Judged {
    /// Counts the frame in a turn.
    pub fn count(self, turn: &mut Turned) {
        turn.frames += 1;
        turn.packets += u32::from(!self.shed);
        turn.shed += u32::from(self.shed);
        turn.to_full += u32::from(self.to_full);
        turn.known += u32::from(self.known);
        turn.nobody += u32::from(self.nobody);
        turn.protected += u32::from(self.protected);
        turn.innocents += u32::from(self.innocent);
    }
}

/// See the module.
pub struct Gate {
    /// Of the source.
    pub mode: Mode,
    /// The poller feeds consumers that it inhibits.
    pub feeds: bool,
    /// Permille of a consumer's room that one poll may fill.
    pub admit: Permille,
    /// Most packets of one poll for one consumer; 0: no bound.
    pub quota: u32,
    /// What has become of frames so far.
    pub became: Became,
    /// Number of the driver's poll under way.
    poll: u32,
    frames: u64,
    known: Vec<Known>,
    /// Tick in which input was kept away from any consumer last.
    paused: u32,
    sketch: Box<Sketch>,
    fragments: (u32, u32),
    watching: Watching,
    /// What the kernel drops is learnt from.
    attached: bool,
    listed: u32,
    list_at: Nanos,
    port: Port,
    /// Of the flows, and the last one of the foreign address.
    refusals: Vec<Refusal>,
    /// Of the flood's destination, whoever sends it.
    destination: (Refusal, Set, Box<Syns>),
}

impl Gate {
    /// For so many consumers, and flows of a flood; nothing is known.
    pub fn new(consumers: usize, flows: u32) -> Self {
        Self {
            mode: Mode::Interrupt,
            feeds: false,
            admit: 1000,
            quota: 0,
            became: Became::default(),
            poll: 0,
            frames: 0,
            known: vec![Known::default(); consumers],
            paused: 0,
            sketch: Box::default(),
            fragments: (0, 0),
            watching: Watching::default(),
            attached: false,
            listed: 0,
            list_at: 0,
            port: Port::default(),
            refusals: vec![Refusal::default(); flows as usize + 1],
            destination: (Refusal::default(), Set::default(), Box::default()),
        }
    }

    /// The driver is polled: rooms are read anew.
    pub fn polls(&mut self) {
        self.poll = self.poll.wrapping_add(1).max(1);
    }

    /// Nobody polls any more: what a poller has set does not count.
    pub fn unpolled(&mut self) {
        (self.feeds, self.admit, self.quota) = (false, 1000, 0);
    }

    /// A socket has refused a packet.
    pub fn refused(&mut self, consumer: usize) {
        self.known[consumer].tracked = true;
    }

    /// Input is kept away from a consumer.
    pub fn pauses(&mut self, now: Nanos, consumer: usize) {
        (self.known[consumer].paused, self.paused) = (tick(now), tick(now));
    }

    /// The guard looks around: whether drops are learnt from, and the list of sockets.
    pub fn look(&mut self, now: Nanos) {
        match self.watching.next(now, self.mode != Mode::Interrupt) {
            Some(Watch::Attach) => (self.attached, self.list_at) = (true, now),
            Some(Watch::Detach) => (self.attached, self.listed) = (false, 0),
            None => {}
        }
        if self.attached && now >= self.list_at {
            // Few sockets: reading the list takes no time.
            (self.listed, self.list_at) = (tick(now), gate::next_list(now, 0));
        }
    }

    /// Flows, whose places are followed by that of the foreign address.
    fn flows(&self) -> usize {
        self.refusals.len() - 1
    }

    fn flow(&self, packet: &Packet) -> usize {
        packet.id as usize % self.flows()
    }

    /// Whether the connection table has a place for the packet's flow: `places` flows, spread among all, have one.
    fn has_place(&self, packet: &Packet, places: u32) -> bool {
        // A prime larger than any number of flows: each keeps a number of its own.
        const SPREAD: u64 = 2_654_435_761;
        self.flow(packet) as u64 * SPREAD % (self.flows() as u64) < u64::from(places)
    }

    /// The kernel has dropped a packet that nobody takes.
    pub fn dropped(&mut self, now: Nanos, flood: Flood, packet: &Packet) {
        if !self.attached {
            return;
        }
        let (now, flow, foreign) = (tick(now), self.flow(packet), self.flows());
        match flood {
            Flood::ClosedPort | Flood::SynClosed => {
                self.port.dropped(ADDRESS, false, self.listed, now, LISTED_MOST);
            }
            Flood::Firewall => self.refusals[flow].refuse(flow as u32 + 1, now),
            Flood::OtherHost => self.refusals[foreign].refuse(1, now),
            // Of a full table nothing else is learnt.
            Flood::Connections => {
                self.destination.0.refuse_for(1, now);
            }
            _ => {}
        }
    }

    /// True if one more packet of the flood for a port that a socket has, for which others are refused, is beyond its share.
    fn is_beyond(&mut self, now: Nanos, connected: bool) -> bool {
        let now = tick(now);
        let (refusal, set, all) = &mut self.destination;
        if !self.attached || !refusal.is_of(1) {
            return false;
        }
        if refusal.is_mostly(1, now, UNTIL_BOUND) {
            let admit = all.refused_admit(now, self.admit, self.mode == Mode::Shed);
            // All senders are one.
            if !set.syn(1, 0, now, self.poll, admit) {
                return !connected;
            }
        }
        refusal.passed();
        false
    }

    /// True if a packet of the flood is nobody's, by what became of those before it; one of the `trickle` passes.
    fn nobodys(&mut self, now: Nanos, flood: Flood, packet: &Packet, trickle: bool) -> bool {
        if !self.attached {
            return false;
        }
        let (now, flow) = (tick(now), self.flow(packet));
        let (place, mark) = match flood {
            Flood::ClosedPort | Flood::SynClosed => return self.port.nobodys(ADDRESS, now, UNTIL_BOUND),
            Flood::Firewall => (flow, flow as u32 + 1),
            Flood::OtherHost => (self.flows(), 1),
            _ => return false,
        };
        let is = self.refusals[place].is_refused(mark, 0, now, UNTIL_BOUND);
        if !is || trickle {
            self.refusals[place].passed();
        }
        is
    }

    /// True if one more fragment is within what a poll may hand up.
    fn fragment_fits(&mut self) -> bool {
        if self.mode != Mode::Poll || self.admit >= 1000 {
            return true;
        }
        if self.fragments.0 != self.poll {
            self.fragments = (self.poll, gate::fragments(self.admit));
        }
        let fits = self.fragments.1 > 0;
        self.fragments.1 -= u32::from(fits);
        fits
    }

    /// Whether a consumer whose socket of `size` datagrams holds `held` has room for one more of this sender; and whether a pause
    /// would lose it.
    fn fits(
        &mut self,
        now: Nanos,
        index: usize,
        (size, held): (u32, u32),
        (sender, inhibited): (u32, bool),
    ) -> (Verdict, bool) {
        let (admit, quota, poll, now) = (self.admit, self.quota, self.poll, tick(now));
        let Known { tracked, fair, left, poll: of, paused } = &mut self.known[index];
        if *of != poll {
            *of = poll;
            let room = |held| if *tracked { gate::room(size, held, 1, 1) } else { ALL };
            let (free, whole) = (room(held), room(0));
            let has = Room { given: gate::room_given(free, admit, poll, fair.is_flooded()), free, whole };
            *left = fair.poll(&mut self.sketch, *left, has, now);
            *left = fair.within(*left, quota);
        }
        let few = self.sketch.gets_few(index as u32);
        let (mut verdict, mut innocent) = (Verdict::Pass, false);
        if fair.asks(*left, *paused) {
            innocent = fair.is_quiet(u64::from(sender));
            if *left == 0 || fair.is_active() {
                let hash = fair::hash(SEED, now, index as u32, u64::from(sender));
                verdict = match fair.leaves(u64::from(sender), *left) {
                    true => {
                        fair.weigh(false);
                        return (Verdict::Over, false);
                    }
                    false => fair.judge(&mut self.sketch, hash, *left),
                };
            }
        }
        fair.weigh(verdict == Verdict::Pass);
        if verdict == Verdict::Pass {
            *left -= 1;
            innocent |= !inhibited && (few || fair.is_innocent(*paused, self.paused));
        }
        (verdict, innocent)
    }
}

/// What a packet is for.
enum Aim {
    Consumer(usize),
    Nobody,
    /// A socket has the port; the table of connections has no place for it.
    Refused,
    Fragment,
    Transit,
}

impl State {
    /// Consumers of all kinds.
    pub(super) fn sockets(s: &Settings) -> u32 {
        s.consumers + u32::from(s.protected > 0) + if s.asked > 0 { s.servers } else { 0 }
    }

    /// The socket that the packet goes to; no program may read it.
    pub(super) fn consumer(&self, packet: &Packet) -> usize {
        (packet.flow % Self::sockets(&self.s)) as usize
    }

    /// The flow of what the host forwards beside its programs: the one after all others.
    pub(super) fn transit(s: &Settings) -> u32 {
        Self::sockets(s) * s.senders
    }

    /// True if the host forwards the packet.
    pub(super) fn is_transit(&self, packet: &Packet) -> bool {
        self.consumers.is_empty() || packet.flow == Self::transit(&self.s)
    }

    fn aim(&self, packet: &Packet) -> Aim {
        let consumer = self.consumer(packet);
        match self.s.flood {
            _ if self.is_transit(packet) => Aim::Transit,
            flood if consumer == 0 && flood.is_nobodys() => Aim::Nobody,
            Flood::Fragments if consumer == 0 => Aim::Fragment,
            Flood::Connections if consumer == 0 && !self.gate.has_place(packet, self.s.places) => {
                Aim::Refused
            }
            _ => Aim::Consumer(consumer),
        }
    }

    /// True if no socket takes the packet.
    pub(super) fn is_nobodys(&self, packet: &Packet) -> bool {
        matches!(self.aim(packet), Aim::Nobody | Aim::Refused | Aim::Fragment)
    }

    /// True if the packet is of the flood that meets a full table of connections, and beyond the share of where it goes.
    fn is_beyond(&mut self, now: Nanos, packet: &Packet) -> bool {
        let meets = self.s.feedback && self.s.flood == Flood::Connections && self.consumer(packet) == 0;
        let connected = self.gate.has_place(packet, self.s.places);
        meets && self.gate.is_beyond(now, connected)
    }

    /// What the gate does with a frame of a source that is polled or sheds.
    pub(super) fn judge(&mut self, now: Nanos, packet: &Packet) -> Judged {
        let gate = &mut self.gate;
        gate.frames += 1;
        let trickle = gate.frames.is_multiple_of(TRICKLE);
        if self.is_protected(packet) {
            return Judged { protected: true, ..Judged::default() };
        }
        let (flood, feedback) = (self.s.flood, self.s.feedback);
        match self.aim(packet) {
            Aim::Transit => Judged::default(),
            Aim::Consumer(index) if self.gate.known[index].tracked => {
                let inhibited = self.weir.is_inhibited(index);
                let level = (self.s.socket, self.consumers[index].queue.len() as u32);
                let sender = packet.flow / Self::sockets(&self.s);
                let (verdict, innocent) = match inhibited && !self.gate.feeds {
                    _ if !feedback => (Verdict::Pass, false),
                    true => {
                        self.gate.sketch.gets_few(index as u32);
                        (Verdict::Full, false)
                    }
                    false => self.gate.fits(now, index, level, (sender, inhibited)),
                };
                let full = verdict != Verdict::Pass;
                let nobody = !full && self.is_beyond(now, packet);
                let shed = full || nobody;
                Judged {
                    shed,
                    nobody,
                    to_full: full || inhibited,
                    known: !shed,
                    innocent,
                    ..Judged::default()
                }
            }
            Aim::Consumer(_) | Aim::Refused => {
                let shed = self.is_beyond(now, packet);
                Judged { shed, nobody: shed, ..Judged::default() }
            }
            Aim::Nobody => {
                let is = feedback && self.gate.nobodys(now, flood, packet, trickle);
                Judged {
                    shed: is && !trickle,
                    nobody: is && !trickle,
                    known: is && trickle,
                    ..Judged::default()
                }
            }
            Aim::Fragment => Judged { shed: feedback && !self.gate.fragment_fits(), ..Judged::default() },
        }
    }
}
