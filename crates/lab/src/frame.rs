//! Frames that the wire sends.

use std::net::Ipv4Addr;

/// Hardware address of the host's end of input `n`; the hop reads the target number from its last byte.
#[must_use]
pub fn host_mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, n]
}

/// Hardware address of the wire's end of input `n`.
#[must_use]
pub fn wire_mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 2, n]
}

/// Hardware address of a forwarding host's end of its output.
pub const OUTPUT_MAC: [u8; 6] = [2, 0, 0, 0, 4, 0];
/// Hardware address of the far end.
pub const SINK_MAC: [u8; 6] = [2, 0, 0, 0, 5, 0];

/// A UDP datagram without UDP checksum, as RFC 768 allows: the source changes the payload in each frame.
#[must_use]
pub fn udp(
    from: [u8; 6],
    to: [u8; 6],
    source: (Ipv4Addr, u16),
    target: (Ipv4Addr, u16),
    payload: &[u8],
) -> Vec<u8> {
    let udp_len = 8 + payload.len() as u16;
    let mut frame = [to, from].concat();
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(source.0.octets());
    frame.extend(target.0.octets());
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend(source.1.to_be_bytes());
    frame.extend(target.1.to_be_bytes());
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    // The source writes whole words.
    frame.resize(frame.len().max(60).next_multiple_of(4), 0);
    frame
}

/// The first fragment of a UDP datagram whose rest never comes. Its identification is 0.
#[must_use]
pub fn fragment(from: [u8; 6], to: [u8; 6], source: (Ipv4Addr, u16), target: (Ipv4Addr, u16)) -> Vec<u8> {
    // All but the last fragment are a multiple of 8 bytes long.
    let mut frame = udp(from, to, source, target, &[0; 16]);
    // As long as a datagram of two such fragments.
    frame[38..40].copy_from_slice(&48u16.to_be_bytes());
    // More fragments follow, offset 0.
    frame[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A SYN over TCP.
#[must_use]
pub fn syn(from: [u8; 6], to: [u8; 6], source: (Ipv4Addr, u16), target: (Ipv4Addr, u16)) -> Vec<u8> {
    segment(from, to, source, target, 0x02)
}

/// An acknowledgement over TCP, of a connection that was never made.
#[must_use]
pub fn ack(from: [u8; 6], to: [u8; 6], source: (Ipv4Addr, u16), target: (Ipv4Addr, u16)) -> Vec<u8> {
    segment(from, to, source, target, 0x10)
}

fn segment(
    from: [u8; 6],
    to: [u8; 6],
    source: (Ipv4Addr, u16),
    target: (Ipv4Addr, u16),
    flags: u8,
) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(source.0.octets());
    frame.extend(target.0.octets());
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend(source.1.to_be_bytes());
    frame.extend(target.1.to_be_bytes());
    // Sequence number, no acknowledgement, a header of five words, a window.
    frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    let pseudo = [&frame[26..34], &[0, 6, 0, 20], &frame[34..54]].concat();
    let sum = checksum(&pseudo);
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
    frame.resize(60, 0);
    frame
}

/// Who has an IPv4 address: a question that a host's stack answers.
#[must_use]
pub fn arp(from: [u8; 6], asker: Ipv4Addr, wanted: Ipv4Addr) -> Vec<u8> {
    let mut frame = [[0xff; 6], from].concat();
    frame.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame.extend(from);
    frame.extend(asker.octets());
    frame.extend([0; 6]);
    frame.extend(wanted.octets());
    frame.resize(60, 0);
    frame
}

/// A frame of the type that is set aside for experiments: the host's stack drops it without an answer.
#[must_use]
pub fn stray(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend([0x88, 0xb5]);
    frame.resize(60, 0);
    frame
}

/// A DNS query for the A record of `name`; the first two bytes are the id.
#[must_use]
pub fn dns_query(name: &str) -> Vec<u8> {
    let mut query = vec![0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks_exact(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_what_the_test_builder_makes() {
        let (a, b) = (Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 18, 0, 1));
        let ours = udp(wire_mac(0), host_mac(0), (a, 1000), (b, 53), b"query");
        let mut theirs = testkit::packet::Udp::new(
            std::net::SocketAddrV4::new(a, 1000),
            std::net::SocketAddrV4::new(b, 53),
        );
        (theirs.source_mac, theirs.target_mac) = (wire_mac(0), host_mac(0));
        theirs.payload = b"query".to_vec();
        let mut theirs = theirs.frame();
        theirs[40..42].fill(0);
        assert_eq!(ours, theirs);
    }

    #[test]
    fn a_fragment_is_the_first_of_more() {
        let (a, b) = (Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 18, 0, 1));
        let frame = fragment(wire_mac(0), host_mac(0), (a, 1000), (b, 9));
        assert_eq!((frame.len(), checksum(&frame[14..34])), (60, 0));
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (total, flags, udp_len) = (word(16), word(20), word(38));
        assert_eq!((flags, (total - 20) % 8), (0x2000, 0));
        assert!(udp_len > total - 20, "the rest is missing");
    }

    #[test]
    fn a_syn_is_what_the_kernel_would_take() {
        let (a, b) = (Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 18, 0, 1));
        let frame = syn(wire_mac(0), host_mac(0), (a, 1000), (b, 9));
        assert_eq!((frame.len(), checksum(&frame[14..34])), (60, 0));
        let pseudo = [&frame[26..34], &[0, 6, 0, 20], &frame[34..54]].concat();
        assert_eq!((checksum(&pseudo), frame[23], frame[47]), (0, 6, 0x02));
    }

    #[test]
    fn a_query_has_one_question() {
        let query = dns_query("q.weir.test");
        assert_eq!(query.len(), 12 + 1 + 1 + 1 + 4 + 1 + 4 + 1 + 4);
        assert_eq!(&query[12..15], b"\x01q\x04");
    }
}
