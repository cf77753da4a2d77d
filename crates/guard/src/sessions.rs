//! Whom a rule protects, as far as the host knows (MR-34): TCP connections that are established, programs that read all of a protocol
//! (OSPF, VRRP), and the peer of a bond. What is silent between two keepalives is seen too seldom in a ring that a flood overflows.

use std::net::{IpAddr, SocketAddr};

use kern::sysfs::Device;
use kern::{proc, raw};
use policy::classes::Table;
use policy::{MILLISECOND, Nanos};

/// They are listed at most this often: 10,000 connections take about 10 ms.
const EVERY: Nanos = 1000 * MILLISECOND;

/// What the last list said.
#[derive(Debug, Default)]
pub struct Sessions {
    at: Option<Nanos>,
    any: bool,
}

impl Sessions {
    /// True if there is one that `rules` protect. What cannot be listed counts as none.
    pub fn any(&mut self, now: Nanos, rules: &Table) -> bool {
        if self.at.is_none_or(|at| now.saturating_sub(at) >= EVERY) {
            self.any = !rules.is_empty()
                && (proc::raw_protocols().is_ok_and(|all| all.iter().any(|p| is_read(rules, *p)))
                    || raw::connections()
                        .is_ok_and(|list| list.iter().any(|&(local, remote)| is(rules, local, remote))));
            self.at = Some(now);
        }
        self.any
    }
}

/// True if the peer of the bond that this is a port of is heard, and protected.
pub fn has_peer(rules: &Table, device: &Device) -> bool {
    let mut frame = [0; 64];
    frame[12..14].copy_from_slice(&[0x88, 0x09]);
    rules.protector(&frame).is_some() && device.speaks_lacp()
}

/// True if a packet of this protocol is protected whatever it says.
fn is_read(rules: &Table, protocol: u8) -> bool {
    let mut frame = [0; 64];
    frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    (frame[17], frame[23]) = (50, protocol);
    rules.protector(&frame).is_some()
}

/// True if a segment from `remote` to `local` is protected.
fn is(rules: &Table, local: SocketAddr, remote: SocketAddr) -> bool {
    let (local, remote) = (plain(local), plain(remote));
    !local.ip().is_loopback() && rules.protector(&segment(local, remote)).is_some()
}

/// An IPv4 peer of a socket for both families as what it is.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The headers of an acknowledgement from `remote` to `local`.
fn segment(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let mut frame = vec![0; 12];
    match (local.ip(), remote.ip()) {
        (IpAddr::V4(to), IpAddr::V4(from)) => {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        (to, from) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
            frame.extend(octets(from));
            frame.extend(octets(to));
        }
    }
    frame.extend(remote.port().to_be_bytes());
    frame.extend(local.port().to_be_bytes());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::classes::Rule;

    #[test]
    fn connections_are_judged_as_their_segments_are() {
        let rules = Table::new(&Rule::defaults()).unwrap();
        let is = |local: &str, remote: &str| is(&rules, local.parse().unwrap(), remote.parse().unwrap());
        assert!(is("10.0.0.1:179", "10.0.0.2:40000"), "the peer opened it");
        assert!(is("10.0.0.1:40000", "10.0.0.2:179"), "this host opened it");
        assert!(is("[2001:db8::1]:22", "[2001:db8::2]:40000"));
        assert!(is("[::ffff:10.0.0.1]:22", "[::ffff:10.0.0.2]:40000"), "a socket for both families");
        assert!(!is("10.0.0.1:80", "10.0.0.2:40000"));
        assert!(!is("127.0.0.1:22", "127.0.0.1:40000"), "it never comes through a source");
        let by_prefix = Table::new(&[Rule::parse("src/10.0.0.0/8").unwrap()]).unwrap();
        let any =
            |remote: &str| super::is(&by_prefix, "192.0.2.1:80".parse().unwrap(), remote.parse().unwrap());
        assert!(any("10.1.2.3:5") && !any("11.1.2.3:5"));
    }

    #[test]
    fn protocols_are_judged_as_their_packets_are() {
        let rules = Table::new(&Rule::defaults()).unwrap();
        let protected: Vec<u8> = (0..=255).filter(|p| is_read(&rules, *p)).collect();
        assert_eq!(protected, [1, 89, 112], "ICMP, OSPF, VRRP");
    }

    #[test]
    fn connections_are_listed_once_a_second() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let listed = raw::connections().unwrap();
        assert!(listed.iter().any(|(_, remote)| *remote == listener.local_addr().unwrap()), "{listed:?}");
        let mut sessions = Sessions { at: Some(5), any: true };
        let rules = Table::new(&[]).unwrap();
        assert!(sessions.any(5 + EVERY - 1, &rules), "known from before");
        assert!(!sessions.any(5 + EVERY, &rules), "no rules");
    }
}
