//! Frames that are no IPv4 datagram for the host: with IPv6, with TCP, in transit.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use kern::wire::source::{Payload, Target};
use testkit::packet::checksum;

use super::world::{World, address, far, near, peer, sh};
use super::{ms, within};

/// Hardware addresses of a frame from the wire to input `n` of the host.
fn macs(n: u8) -> [u8; 12] {
    [2, 0, 0, 0, 1, n, 2, 0, 0, 0, 2, n]
}

/// The host's IPv6 address at input `n`.
pub fn address6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd18, 0, 0, u16::from(n), 0, 0, 0, 1)
}

/// The wire's.
pub fn peer6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd18, 0, 0, u16::from(n), 0, 0, 0, 2)
}

/// Gives both ends of input `n` their IPv6 addresses, with permanent neighbours.
pub fn speak_ipv6(world: &World, n: u8) {
    let end = move |name: String, own: Ipv6Addr, other: Ipv6Addr, side: u8| {
        // Detection of duplicates would take a second or two. A device that is made anew has the default's value, and IPv6 at once.
        for (what, key) in [
            ("all", "accept_dad"),
            ("default", "accept_dad"),
            (name.as_str(), "accept_dad"),
            ("all", "disable_ipv6"),
            (name.as_str(), "disable_ipv6"),
        ] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{what}/{key}"), "0").unwrap();
        }
        sh(&format!("ip -6 addr add {own}/64 dev {name} nodad"));
        sh(&format!("ip -6 neigh replace {other} lladdr 02:00:00:00:{side:02x}:{n:02x} dev {name}"));
    };
    world.inside(move || end(far(n), address6(n), peer6(n), 2));
    let wire = || {
        end(near(n), peer6(n), address6(n), 1);
        Ok(())
    };
    world.wire_side.run(wire).unwrap();
    // Else a comparison of before and after finds that it has settled meanwhile.
    let shown = format!("ip addr show dev {}", far(n));
    within("the link's own address is settled", ms(3000), || !world.sh(&shown).contains("tentative"));
}

/// A datagram over IPv6 to `port` of input `n`.
pub fn udp6(n: u8, port: u16) -> Target {
    let (from, to) = (peer6(n).octets(), address6(n).octets());
    let mut udp = [10_000u16.to_be_bytes(), port.to_be_bytes(), [0, 26], [0, 0]].concat();
    udp.extend([0; 18]);
    let sum = checksum(&[&from, &to, &[0, 17, 0, 26], &udp]);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut frame = macs(n).to_vec();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 26, 17, 64]);
    frame.extend(from);
    frame.extend(to);
    frame.extend(udp);
    Target { frame, payload: Payload::Fixed, flows: 1 }
}

fn ipv4(n: u8, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = 20 + payload.len() as u16;
    let mut header = [&[0x45, 0][..], &length.to_be_bytes(), &[0, 0, 0x40, 0, 64, protocol, 0, 0]].concat();
    header.extend(peer(n).octets());
    header.extend(to.octets());
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [&macs(n)[..], &[8, 0], &header, payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// The first segment of a connection to `port` of input `n`.
pub fn syn(n: u8, from_port: u16, port: u16) -> Target {
    let mut tcp = [from_port.to_be_bytes(), port.to_be_bytes()].concat();
    // Sequence 1, five words of header, SYN, a window.
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    let (from, to) = (peer(n).octets(), address(n).octets());
    let sum = checksum(&[&from, &to, &[0, 6, 0, 20], &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    Target { frame: ipv4(n, address(n), 6, &tcp), payload: Payload::Fixed, flows: 1 }
}

/// A datagram that comes in at input `n` and is for the wire behind input `out`.
pub fn transit(n: u8, out: u8, port: u16) -> Target {
    let mut udp =
        testkit::packet::Udp::new(SocketAddrV4::new(peer(n), 10_000), SocketAddrV4::new(peer(out), port));
    (udp.source_mac, udp.target_mac) = ([2, 0, 0, 0, 2, n], [2, 0, 0, 0, 1, n]);
    udp.payload = vec![0; 18];
    Target { frame: udp.frame(), payload: Payload::Fixed, flows: 1 }
}
