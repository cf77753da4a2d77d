//! What rules can ask about a packet, read from its first bytes.

/// Extension headers of IPv6 that are followed.
const HEADERS_MAX: usize = 8;
/// What may stand between IPv6 and the protocol above it.
const EXTENSIONS: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];
/// Protocols whose header begins with two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
pub(super) const PORTED: [u8; 5] = [6, 17, 33, 132, 136];

/// What kind of packet it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Not IP, or not enough of it to tell.
    #[default]
    Other,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The headers of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Kind of packet.
    pub family: Family,
    /// Source address, counted as [`crate::prefix::Prefix`] does.
    pub source: u128,
    /// Destination address.
    pub target: u128,
    /// Protocol above IP; `None` if the chain of headers was not seen to its end.
    pub protocol: Option<u8>,
    /// Source and destination port; `None` where the protocol has none, and in later fragments.
    pub ports: Option<(u16, u16)>,
}

impl Packet {
    /// Reads a packet that begins with its network header. `ethertype` is the link's word for what it is.
    #[must_use]
    pub fn read(ethertype: u16, bytes: &[u8]) -> Packet {
        let packet = match (ethertype, bytes.first().map(|first| first >> 4)) {
            (0x0800, Some(4)) => v4(bytes),
            (0x86dd, Some(6)) => v6(bytes),
            _ => None,
        };
        packet.unwrap_or_default()
    }

    /// False if some rule that matches this packet would not be found: not IP, or a header that was not seen. Later
    /// fragments are such packets: their ports are in the first one.
    #[must_use]
    pub fn clear(&self) -> bool {
        match self.protocol {
            Some(protocol) => self.ports.is_some() || !PORTED.contains(&protocol),
            None => false,
        }
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Ports of a whole packet or a first fragment whose header above IP begins at `at`.
fn ports(protocol: u8, bytes: &[u8], at: usize) -> Option<(u16, u16)> {
    let [a, b, c, d] = array(bytes, at).filter(|_| PORTED.contains(&protocol))?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

fn v4(bytes: &[u8]) -> Option<Packet> {
    let header: [u8; 20] = array(bytes, 0)?;
    let length = usize::from(header[0] & 0xf) * 4;
    if length < 20 {
        return None;
    }
    let address = |at: usize| array(&header, at).map(|a| u128::from(u32::from_be_bytes(a)) << 96);
    let (protocol, later) = (header[9], (header[6] & 0x1f) | header[7] != 0);
    Some(Packet {
        family: Family::V4,
        source: address(12)?,
        target: address(16)?,
        protocol: Some(protocol),
        ports: if later { None } else { ports(protocol, bytes, length) },
    })
}

fn v6(bytes: &[u8]) -> Option<Packet> {
    let header: [u8; 40] = array(bytes, 0)?;
    let address = |at: usize| array(&header, at).map(u128::from_be_bytes);
    let mut packet =
        Packet { family: Family::V6, source: address(8)?, target: address(24)?, protocol: None, ports: None };
    let (mut next, mut at, mut later) = (header[6], 40, false);
    for _ in 0..=HEADERS_MAX {
        let units = match next {
            // Hop by hop, routing, destination, mobility, HIP, shim6: length in units of 8 without the first.
            0 | 43 | 60 | 135 | 139 | 140 => array(bytes, at).map(|[_, n]: [u8; 2]| 8 * (usize::from(n) + 1)),
            // Authentication: in units of 4 without the first two.
            51 => array(bytes, at).map(|[_, n]: [u8; 2]| 4 * (usize::from(n) + 2)),
            44 => array(bytes, at).map(|[_, _, high, low]: [u8; 4]| {
                later |= high != 0 || low & 0xf8 != 0;
                8
            }),
            protocol => {
                packet.protocol = Some(protocol);
                packet.ports = if later { None } else { ports(protocol, bytes, at) };
                return Some(packet);
            }
        };
        if later {
            // What follows is data of the fragment; the fragment header says what the packet is.
            packet.protocol = bytes.get(at).copied().filter(|next| !EXTENSIONS.contains(next));
            return Some(packet);
        }
        let (Some(units), Some(following)) = (units, bytes.get(at)) else { return Some(packet) };
        (next, at) = (*following, at + units);
    }
    Some(packet)
}
