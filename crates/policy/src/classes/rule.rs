//! Rules as users write them: a name such as `ssh`, or a match such as `tcp/22` or `src 10.0.0.0/8`.

use super::table::{
    LANE_ICMP, LANE_LINK, LANE_OTHER, LANE_TCP, LANE_UDP, LANE_WIDE, Match, SIDE_SOURCE, SIDE_TARGET, flag,
};
use crate::prefix::{Prefix, PrefixError};

/// Rules that have a name.
pub const NAMES: [&str; 16] = [
    "arp",
    "nd",
    "icmp",
    "dhcp",
    "ssh",
    "bgp",
    "ospf",
    "vrrp",
    "bfd",
    "lacp",
    "ptp",
    "dns-replies",
    "dns",
    "ntp",
    "igmp",
    "lldp",
];

/// What is protected unless the user empties it: what a host needs to stay reachable and in the network.
pub const DEFAULT: [&str; 12] =
    ["arp", "nd", "icmp", "dhcp", "ssh", "bgp", "ospf", "vrrp", "bfd", "lacp", "ptp", "dns-replies"];

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// Neither a name nor a match.
    Unknown,
    /// A match whose value is wrong; what to give.
    Value(&'static str),
    /// A prefix with bits beyond its length; the prefix that was meant.
    Beyond(String),
}

/// One rule: its text and one to four matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    text: String,
    matches: Vec<(usize, Match)>,
}

/// Builds one match.
fn ethertype(value: u16) -> (usize, Match) {
    let mut m = Match::default();
    (m.value[0], m.mask[0]) = (u32::from(value) << 16, 0xffff_0000);
    (LANE_LINK, m)
}

fn protocol(value: u8) -> (usize, Match) {
    let mut m = Match::default();
    (m.value[0], m.mask[0]) = (u32::from(value) << 8, 0xff00);
    (LANE_OTHER, m)
}

/// `source` and `target` port, `more` flags beside.
fn ports(lane: usize, source: Option<u16>, target: Option<u16>, more: u32) -> (usize, Match) {
    let mut m = Match::default();
    if let Some(port) = source {
        m.value[1] |= u32::from(port) << 16;
        m.mask[1] |= 0xffff_0000;
    }
    if let Some(port) = target {
        m.value[1] |= u32::from(port);
        m.mask[1] |= 0xffff;
    }
    m.value[2] = flag::PORTS | more;
    m.mask[2] = m.value[2];
    (lane, m)
}

fn flags(lane: usize, set: u32) -> (usize, Match) {
    let mut m = Match::default();
    (m.value[2], m.mask[2]) = (set, set);
    (lane, m)
}

/// Segments of connections to and from a port, without the SYN that opens one.
fn established(port: u16) -> Vec<(usize, Match)> {
    vec![
        ports(LANE_TCP, None, Some(port), flag::ESTABLISHED),
        ports(LANE_TCP, Some(port), None, flag::ESTABLISHED),
    ]
}

fn either(lane: usize, port: u16) -> Vec<(usize, Match)> {
    vec![ports(lane, None, Some(port), 0), ports(lane, Some(port), None, 0)]
}

fn named(name: &str) -> Option<Vec<(usize, Match)>> {
    let to = |port| ports(LANE_UDP, None, Some(port), 0);
    Some(match name {
        "arp" => vec![ethertype(0x0806)],
        "nd" => vec![flags(LANE_ICMP, flag::ND)],
        "icmp" => {
            let (lane, mut any) = flags(LANE_ICMP, 0);
            any.bounded = 1;
            vec![(lane, any)]
        }
        // Servers answer from 67 to 68, or to a relay's 67; DHCPv6 from 547 to 546.
        "dhcp" => vec![
            ports(LANE_UDP, Some(67), Some(68), 0),
            ports(LANE_UDP, Some(67), Some(67), 0),
            ports(LANE_UDP, Some(547), Some(546), 0),
        ],
        "ssh" => established(22),
        "bgp" => established(179),
        "ospf" => vec![protocol(89)],
        "vrrp" => vec![protocol(112)],
        // One hop, its echo, several hops, on a member of a bond.
        "bfd" => vec![to(3784), to(3785), to(4784), to(6784)],
        "lacp" => vec![ethertype(0x8809)],
        "ptp" => vec![ethertype(0x88f7), to(319), to(320)],
        "dns-replies" => {
            vec![ports(LANE_UDP, Some(53), None, 0), ports(LANE_TCP, Some(53), None, flag::ESTABLISHED)]
        }
        "dns" => vec![to(53), ports(LANE_TCP, None, Some(53), 0)],
        "ntp" => either(LANE_UDP, 123),
        "igmp" => vec![protocol(2)],
        "lldp" => vec![ethertype(0x88cc)],
        _ => return None,
    })
}

fn dscp(text: &str) -> Option<u8> {
    let number = |text: &str, least: u8, most: u8| {
        text.parse::<u8>().ok().filter(|n| (least..=most).contains(n) && text.len() < 3)
    };
    if let Some(class) = text.strip_prefix("cs") {
        return number(class, 0, 7).map(|n| n * 8);
    }
    if let Some(digits) = text.strip_prefix("af") {
        let (class, drop) = digits.split_at_checked(1)?;
        return Some(number(class, 1, 4)? * 8 + number(drop, 1, 3)? * 2);
    }
    match text {
        "ef" => Some(46),
        _ => number(text, 0, 63),
    }
}

fn prefix(text: &str, side: u8) -> Result<(usize, Match), RuleError> {
    let given = Prefix::parse(text).map_err(|err| match err {
        PrefixError::Unreadable => RuleError::Value(Prefix::WANTED),
        PrefixError::Beyond(meant) => RuleError::Beyond(meant),
    })?;
    let words = |bits: u128| [96, 64, 32, 0].map(|shift| (bits >> shift) as u32);
    let family = if given.v6 { flag::V6 } else { flag::V4 };
    let (lane, mut m) = flags(LANE_WIDE, family);
    (m.address, m.prefix, m.side) = (words(given.bits), words(given.mask), side);
    Ok((lane, m))
}

impl Rule {
    /// Reads a rule: a name out of [`NAMES`], `tcp/PORT`, `udp/PORT`, `src PREFIX`, `dst PREFIX`,
    /// `dscp/NAME`, `vlan/ID`. A space and a slash after the first word are the same.
    ///
    /// # Errors
    /// [`RuleError`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let text = text.trim();
        let port = |text: &str| {
            let ok = |n: &u16| *n != 0 && !text.starts_with('+');
            text.parse::<u16>().ok().filter(ok).ok_or(RuleError::Value("a port, 1 to 65535"))
        };
        let matches = match (named(text), text.split_once([' ', '/'])) {
            (Some(matches), _) => matches,
            (None, None) => return Err(RuleError::Unknown),
            (None, Some((kind, value))) => {
                let value = value.trim();
                match kind {
                    "tcp" => either(LANE_TCP, port(value)?),
                    "udp" => either(LANE_UDP, port(value)?),
                    "src" => vec![prefix(value, SIDE_SOURCE)?],
                    "dst" => vec![prefix(value, SIDE_TARGET)?],
                    "dscp" => {
                        let wrong = RuleError::Value("cs0 to cs7, af11 to af43, ef, or 0 to 63");
                        let point = dscp(value).ok_or(wrong)?;
                        [flag::V4, flag::V6]
                            .map(|family| {
                                let (lane, mut m) = flags(LANE_WIDE, family);
                                (m.value[0], m.mask[0]) = (u32::from(point), 0xff);
                                (lane, m)
                            })
                            .to_vec()
                    }
                    "vlan" => {
                        let wrong = RuleError::Value("a VLAN id, 1 to 4094");
                        let ok = |n: &u16| (1..=4094).contains(n) && !value.starts_with('+');
                        let id = value.parse::<u16>().ok().filter(ok).ok_or(wrong)?;
                        let (lane, mut m) = flags(LANE_WIDE, flag::TAGGED);
                        m.value[2] |= u32::from(id) << 16;
                        m.mask[2] |= 0xffff_0000;
                        vec![(lane, m)]
                    }
                    _ => return Err(RuleError::Unknown),
                }
            }
        };
        Ok(Self { text: text.to_owned(), matches })
    }

    /// As the user wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn matches(&self) -> &[(usize, Match)] {
        &self.matches
    }

    /// The rules of [`DEFAULT`].
    pub fn defaults() -> Vec<Rule> {
        DEFAULT.iter().filter_map(|name| Rule::parse(name).ok()).collect()
    }
}
