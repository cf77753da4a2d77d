//! Builds Ethernet/IPv4/UDP frames for tests.

use std::net::SocketAddrV4;

/// Length of the Ethernet, IPv4 and UDP headers together.
pub const HEADERS: usize = 14 + 20 + 8;

/// One UDP datagram in an Ethernet frame. The defaults are valid; a test changes what it is about.
#[derive(Debug, Clone)]
pub struct Udp {
    /// Source hardware address.
    pub source_mac: [u8; 6],
    /// Destination hardware address.
    pub target_mac: [u8; 6],
    /// Source address and port.
    pub source: SocketAddrV4,
    /// Destination address and port.
    pub target: SocketAddrV4,
    /// Differentiated services byte, code point in the upper six bits.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// What the datagram carries.
    pub payload: Vec<u8>,
}

impl Udp {
    /// A datagram between two addresses, without payload.
    #[must_use]
    pub fn new(source: SocketAddrV4, target: SocketAddrV4) -> Udp {
        Udp {
            source_mac: [2, 0, 0, 0, 0, 1],
            target_mac: [2, 0, 0, 0, 0, 2],
            source,
            target,
            tos: 0,
            ttl: 64,
            payload: Vec::new(),
        }
    }

    /// The frame, padded with zeros to Ethernet's 60 bytes. Both checksums are right.
    ///
    /// # Panics
    /// If the payload exceeds 65,507 bytes.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let udp_len = u16::try_from(8 + self.payload.len()).unwrap_or_else(|_| panic!("payload too long"));
        let ip_len = udp_len.checked_add(20).unwrap_or_else(|| panic!("payload too long"));
        let mut frame = Vec::with_capacity(HEADERS + self.payload.len());
        frame.extend(self.target_mac);
        frame.extend(self.source_mac);
        frame.extend([0x08, 0x00, 0x45, self.tos]);
        frame.extend(ip_len.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, self.ttl, 17, 0, 0]);
        frame.extend(self.source.ip().octets());
        frame.extend(self.target.ip().octets());
        let ip_sum = checksum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&ip_sum.to_be_bytes());
        frame.extend(self.source.port().to_be_bytes());
        frame.extend(self.target.port().to_be_bytes());
        frame.extend(udp_len.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(&self.payload);
        let pseudo = [0, 17, udp_len.to_be_bytes()[0], udp_len.to_be_bytes()[1]];
        let udp_sum = match checksum(&[&frame[26..34], &pseudo, &frame[34..]]) {
            // Zero means "no checksum" on the wire, so a sum of zero is sent as its other form.
            0 => 0xffff,
            sum => sum,
        };
        frame[40..42].copy_from_slice(&udp_sum.to_be_bytes());
        frame.resize(frame.len().max(60), 0);
        frame
    }
}

/// The Internet checksum over parts; each part but the last has an even length.
#[must_use]
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
        }
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_checksum_matches_the_example_of_rfc_1071_readers() {
        // The IPv4 header that textbooks use; its checksum field (0xb861) is zeroed here.
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(checksum(&[&header]), 0xb861);
    }

    #[test]
    fn frame_is_padded_and_its_checksums_verify() {
        let mut packet = Udp::new("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:53".parse().unwrap());
        packet.payload = vec![1, 2, 3];
        let frame = packet.frame();
        assert_eq!(frame.len(), 60);
        assert_eq!(checksum(&[&frame[14..34]]), 0, "a header with its checksum sums to zero");
        let pseudo = [0, 17, 0, 11];
        assert_eq!(checksum(&[&frame[26..34], &pseudo, &frame[34..45]]), 0);
        assert_eq!(frame[36..38], 53u16.to_be_bytes());
    }
}
