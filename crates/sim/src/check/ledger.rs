//! The ledger: offered = delivered + drops by place + in flight, packet by packet when it is strict.

use super::Recovery;
use crate::engine::Nanos;
use results::Drops;

/// Most places where packets can end.
pub const PLACES_MAX: usize = 12;
/// Most faults that are kept; the rest is counted.
const FAULTS_MAX: usize = 8;
/// Most packets that a strict ledger knows one by one; later ones are only counted.
const STRICT_MAX: usize = 1 << 26;

/// One packet in flight: 24 bytes. Everything a machine queues is made of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// When it arrived at the device.
    pub born: Nanos,
    /// Number in the run, from 0.
    pub id: u64,
    /// Its flow.
    pub flow: u32,
    /// For the machine: class, connection, length ...
    pub tag: u32,
}

/// A place where packets are lost, as an index into the names given to [`Ledger::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub usize);

/// See the module.
#[derive(Clone, Debug)]
pub struct Ledger {
    places: &'static [&'static str],
    offered: u64,
    delivered: u64,
    dropped: [u64; PLACES_MAX],
    /// One bit per packet that has ended, if strict.
    ended: Option<Vec<u64>>,
    /// Highest id delivered of each flow, plus 1, if order is promised.
    last: Option<Vec<u64>>,
    over_time: Recovery,
    faults: Vec<String>,
    more: u64,
}

impl Ledger {
    /// With these places of loss, at most [`PLACES_MAX`]. `strict`: packet by packet; `flows`: order within so many
    /// flows is promised.
    pub fn new(places: &'static [&'static str], strict: bool, flows: Option<usize>) -> Self {
        debug_assert!(places.len() <= PLACES_MAX);
        Self {
            places,
            offered: 0,
            delivered: 0,
            dropped: [0; PLACES_MAX],
            ended: strict.then(Vec::new),
            last: flows.filter(|_| strict).map(|flows| vec![0; flows]),
            over_time: Recovery::default(),
            faults: Vec::new(),
            more: 0,
        }
    }

    fn fault(&mut self, text: String) {
        if self.faults.len() < FAULTS_MAX { self.faults.push(text) } else { self.more += 1 }
    }

    /// A packet arrives.
    #[inline]
    pub fn offer(&mut self, now: Nanos, flow: u32, tag: u32) -> Packet {
        let id = self.offered;
        self.offered += 1;
        if let Some(ended) = &mut self.ended
            && id as usize / 64 >= ended.len()
            && (id as usize) < STRICT_MAX
        {
            ended.push(0);
        }
        Packet { born: now, id, flow, tag }
    }

    #[inline]
    fn end(&mut self, packet: &Packet) {
        let Some(ended) = &mut self.ended else { return };
        let (word, bit) = (packet.id as usize / 64, 1 << (packet.id % 64));
        match ended.get_mut(word) {
            Some(word) if *word & bit == 0 => *word |= bit,
            Some(_) => self.fault(format!("packet {} ends twice", packet.id)),
            None if (packet.id as usize) < STRICT_MAX => {
                self.fault(format!("packet {} was never offered", packet.id));
            }
            None => {}
        }
    }

    /// The packet has reached its end.
    #[inline]
    pub fn deliver(&mut self, now: Nanos, packet: &Packet) {
        self.delivered += 1;
        self.over_time.deliver(now);
        self.end(packet);
        if let Some(last) = &mut self.last {
            match last.get_mut(packet.flow as usize) {
                Some(last) if packet.id >= *last => *last = packet.id + 1,
                Some(_) => self.fault(format!("packet {} of flow {} overtaken", packet.id, packet.flow)),
                None => self.fault(format!("flow {} was not declared", packet.flow)),
            }
        }
    }

    /// The packet is lost at `place`.
    #[inline]
    pub fn drop(&mut self, packet: &Packet, place: Place) {
        self.dropped[place.0] += 1;
        self.end(packet);
    }

    /// Packets offered so far.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// Packets delivered so far.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Packets delivered, slot by slot.
    pub fn over_time(&self) -> &Recovery {
        &self.over_time
    }

    /// Packets lost at `place` so far.
    pub fn dropped(&self, place: Place) -> u64 {
        self.dropped[place.0]
    }

    /// Packets neither delivered nor lost.
    pub fn in_flight(&self) -> u64 {
        self.offered - self.delivered - self.dropped.iter().sum::<u64>().min(self.offered - self.delivered)
    }

    /// Drops by place, without those that did not occur.
    pub fn drops(&self) -> Drops {
        let places = self.places.iter().zip(self.dropped);
        places.filter(|(_, count)| *count > 0).map(|(name, count)| ((*name).to_string(), count)).collect()
    }

    /// `offered - delivered - drops`, when nothing should be in flight any more.
    pub fn unaccounted(&self) -> i64 {
        self.offered as i64 - self.delivered as i64 - self.dropped.iter().sum::<u64>() as i64
    }

    /// Everything that was wrong, `queued` packets being still in the machine's queues.
    pub fn faults(&self, queued: u64) -> Vec<String> {
        let mut faults = self.faults.clone();
        if self.more > 0 {
            faults.push(format!("and {} more", self.more));
        }
        let open = self.unaccounted();
        if open != queued as i64 {
            faults.push(format!("{open} packets have no end and {queued} are queued: {:?}", self.drops()));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: Place = Place(0);

    fn ledger() -> Ledger {
        Ledger::new(&["ring", "socket"], true, Some(2))
    }

    #[test]
    fn a_packet_ends_once() {
        let mut ledger = ledger();
        let (one, two) = (ledger.offer(0, 0, 0), ledger.offer(1, 1, 0));
        ledger.deliver(2, &one);
        assert_eq!((ledger.in_flight(), ledger.faults(1)), (1, vec![]));
        ledger.drop(&two, RING);
        assert_eq!((ledger.unaccounted(), ledger.faults(0)), (0, vec![]));
        ledger.drop(&one, RING);
        assert!(ledger.faults(0)[0].contains("packet 0 ends twice"));
        assert_eq!(ledger.unaccounted(), -1);
    }

    #[test]
    fn order_within_a_flow_is_watched() {
        let mut ledger = ledger();
        let packets: Vec<Packet> = [0, 1, 0].into_iter().map(|flow| ledger.offer(0, flow, 0)).collect();
        ledger.deliver(0, &packets[2]);
        ledger.deliver(0, &packets[1]);
        assert_eq!(ledger.faults(1), Vec::<String>::new());
        ledger.deliver(0, &packets[0]);
        assert!(ledger.faults(0)[0].contains("packet 0 of flow 0 overtaken"));
    }

    #[test]
    fn a_lost_packet_is_missed() {
        let mut ledger = ledger();
        ledger.offer(0, 0, 0);
        assert!(ledger.faults(0)[0].contains("1 packets have no end and 0 are queued"));
    }

    #[test]
    fn a_packet_in_flight_is_small() {
        assert!(std::mem::size_of::<Packet>() <= 24);
    }
}
