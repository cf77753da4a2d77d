//! The Rust side of `src/c/classify.h`.

use crate::Nanos;

/// Most matches of one table; a rule takes one to four.
pub const RULES_MAX: usize = 64;
const LANES: usize = 6;
pub(super) const LANE_LINK: usize = 0;
pub(super) const LANE_TCP: usize = 1;
pub(super) const LANE_UDP: usize = 2;
pub(super) const LANE_ICMP: usize = 3;
pub(super) const LANE_OTHER: usize = 4;
pub(super) const LANE_WIDE: usize = 5;
pub(super) const SIDE_SOURCE: u8 = 1;
pub(super) const SIDE_TARGET: u8 = 2;

/// Flags of a [`View`].
pub mod flag {
    /// IPv4.
    pub const V4: u32 = 1;
    /// IPv6.
    pub const V6: u32 = 2;
    /// Its ports are known.
    pub const PORTS: u32 = 4;
    /// A fragment, the first one or a later one.
    pub const FRAGMENT: u32 = 8;
    /// A later fragment: it has no transport header.
    pub const LATER: u32 = 16;
    /// TCP, and not a bare SYN.
    pub const ESTABLISHED: u32 = 32;
    /// Neighbour discovery that did not pass a router.
    pub const ND: u32 = 64;
    /// Has a VLAN tag that is not a mere priority.
    pub const TAGGED: u32 = 128;
}

/// `struct weir_rule`: one mask and value over three words of the frame, and at most one prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Match {
    pub value: [u32; 3],
    pub mask: [u32; 3],
    pub address: [u32; 4],
    pub prefix: [u32; 4],
    pub side: u8,
    pub bounded: u8,
    pub pad: [u8; 6],
}

/// `struct weir_rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
struct Raw {
    first: [u8; LANES + 1],
    addresses: u8,
    source_bits: [u64; 2],
    target_bits: [u64; 2],
    pad: [u64; 3],
    rule: [Match; RULES_MAX],
}

const _: () = assert!(size_of::<Match>() == 64);
const _: () = assert!(size_of::<Raw>() == 64 + 64 * RULES_MAX);

/// A frame as rules see it; numbers in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct View {
    key: [u32; 3],
    lane: u32,
    l3: u32,
    l4: u32,
    source: [u32; 4],
    target: [u32; 4],
}

impl View {
    /// EtherType behind the VLAN tags.
    pub fn ethertype(&self) -> u16 {
        (self.key[0] >> 16) as u16
    }

    /// IP protocol behind the extension headers; 0 if unknown.
    pub fn protocol(&self) -> u8 {
        (self.key[0] >> 8) as u8
    }

    /// Differentiated services code point.
    pub fn dscp(&self) -> u8 {
        self.key[0] as u8
    }

    /// Source and target port, if known.
    pub fn ports(&self) -> Option<(u16, u16)> {
        (self.flags() & flag::PORTS != 0).then_some(((self.key[1] >> 16) as u16, self.key[1] as u16))
    }

    /// Bits of [`flag`].
    pub fn flags(&self) -> u32 {
        self.key[2] & 0xffff
    }

    /// VLAN id of the outermost tag that names one, 0 if none does.
    pub fn vlan(&self) -> u16 {
        (self.key[2] >> 16) as u16
    }

    /// Offsets of the IP and the transport header, 0 for one that is not there.
    pub fn offsets(&self) -> (usize, usize) {
        (self.l3 as usize, self.l4 as usize)
    }
}

/// The rules need more than [`RULES_MAX`] matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Index of the first rule that found no room.
    pub rule: usize,
    /// Matches that all rules up to it would need.
    pub needed: usize,
}

/// The rules as the packet path reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    raw: Box<Raw>,
    /// Of each match, the rule that it is of.
    rules: Vec<String>,
}

unsafe extern "C" {
    fn weir_host_protector(rules: *const Raw, data: *const u8, length: usize, view: *mut View) -> u32;
    #[cfg(test)]
    fn weir_host_short(rules: *const Raw, data: *const u8, length: usize, view: *mut View) -> u32;
    fn weir_host_may_pass(
        credit: *mut Credit,
        rule: u32,
        now: u64,
        per_packet: u64,
        own: u64,
        burst: u64,
    ) -> u32;
}

impl Table {
    /// The table of `rules`; a match that is there already takes no room.
    ///
    /// # Errors
    /// [`Full`] if there is no room for one of them.
    pub fn new(rules: &[super::Rule]) -> Result<Self, Full> {
        let mut lanes: [Vec<(Match, &str)>; LANES] = Default::default();
        let mut needed = 0;
        for (index, rule) in rules.iter().enumerate() {
            for (lane, found) in rule.matches() {
                if lanes[*lane].iter().any(|(held, _)| held == found) {
                    continue;
                }
                lanes[*lane].push((*found, rule.text()));
                needed += 1;
            }
            if needed > RULES_MAX {
                return Err(Full { rule: index, needed });
            }
        }
        let mut raw = Box::new(Raw {
            first: [0; LANES + 1],
            addresses: 0,
            source_bits: [0; 2],
            target_bits: [0; 2],
            pad: [0; 3],
            rule: [Match::default(); RULES_MAX],
        });
        let mut names = Vec::new();
        let mut next = 0;
        for (lane, matches) in lanes.iter().enumerate() {
            raw.first[lane] = next as u8;
            for (found, name) in matches.iter() {
                raw.rule[next] = *found;
                names.push((*name).to_owned());
                next += 1;
                raw.addresses |= u8::from(found.side != 0);
                if lane == LANE_TCP || lane == LANE_UDP {
                    let (source, target) = (found.mask[1] >> 16, found.mask[1] & 0xffff);
                    let port = |shift: u32| 1u64 << ((found.value[1] >> shift) & 63);
                    // A match without a port would be missed by the fast way: then every port is looked at.
                    raw.source_bits[lane - LANE_TCP] |= if source == 0xffff {
                        port(16)
                    } else if target == 0 {
                        u64::MAX
                    } else {
                        0
                    };
                    raw.target_bits[lane - LANE_TCP] |= if target == 0xffff { port(0) } else { 0 };
                }
            }
        }
        raw.first[LANES] = next as u8;
        Ok(Self { raw, rules: names })
    }

    /// The place of the match that protects a frame, which begins with its Ethernet header.
    pub fn protector(&self, frame: &[u8]) -> Option<usize> {
        self.look(frame).0
    }

    /// The same, and what the rules saw of the frame.
    pub fn look(&self, frame: &[u8]) -> (Option<usize>, View) {
        let mut view = View::default();
        // SAFETY: all pointers are valid for the call: Raw and View have the layout of the header's structs (sizes are
        // asserted on both sides), the frame is read within its length, and only the view is written.
        let raw =
            unsafe { weir_host_protector(&raw const *self.raw, frame.as_ptr(), frame.len(), &raw mut view) };
        (raw.checked_sub(1).map(|place| place as usize), view)
    }

    /// What the packet path's short ways tell: whether one has read all of the frame, whether one tells that no rule protects it, and
    /// the view then.
    #[cfg(test)]
    pub(super) fn short(&self, frame: &[u8]) -> (bool, bool, View) {
        let mut view = View::default();
        // SAFETY: as in `look`.
        let told =
            unsafe { weir_host_short(&raw const *self.raw, frame.as_ptr(), frame.len(), &raw mut view) };
        (told & 1 != 0, told & 2 != 0, view)
    }

    /// Matches in use.
    pub fn len(&self) -> usize {
        usize::from(self.raw.first[LANES])
    }

    /// The rule that the match at `place` is of.
    pub fn rule(&self, place: usize) -> Option<&str> {
        self.rules.get(place).map(String::as_str)
    }

    /// True if every frame is normal.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The table as BPF reads it, `struct weir_rules`.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: Raw has no padding: its fields add up to its size, which is asserted above.
        unsafe { std::slice::from_raw_parts((&raw const *self.raw).cast(), size_of::<Raw>()) }
    }
}

/// The header's credit of one poller, for tests of what it lets through.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Credit {
    all: u64,
    rule: [u64; RULES_MAX],
    sure: [u64; RULES_MAX],
    pad: [u64; 7],
}

impl Default for Credit {
    fn default() -> Self {
        Self { all: 0, rule: [0; RULES_MAX], sure: [0; RULES_MAX], pad: [0; 7] }
    }
}

impl Credit {
    /// True if a frame that `rule` protects may pass at `now`: all rules have one per `per_packet` ns, with `burst` ns saved up,
    /// this one at most one per `own` ns if that is not 0.
    pub fn may_pass(&mut self, rule: u32, now: Nanos, per_packet: Nanos, own: Nanos, burst: Nanos) -> bool {
        // SAFETY: the one pointer is valid for the call, and Credit has the layout of the header's struct.
        unsafe { weir_host_may_pass(&raw mut *self, rule, now, per_packet, own, burst) != 0 }
    }
}
