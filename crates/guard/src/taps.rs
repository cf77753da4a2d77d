//! Captures on guarded interfaces. What XDP sheds no packet socket sees: whoever looks at a flood with tcpdump must know
//! how much of it is not shown.

use std::collections::BTreeMap;

use kern::proc::PacketSocket;

use crate::status::Taps as Status;

/// Protocols under which a packet socket sees frames that the gate may shed: every frame, IPv4, IPv6.
const SHED: [u16; 3] = [libc::ETH_P_ALL as u16, libc::ETH_P_IP as u16, libc::ETH_P_IPV6 as u16];

#[derive(Default)]
struct Seen {
    open: u64,
    /// Frames shed until the last look.
    shed: u64,
    missed: u64,
}

/// What captures see, by interface index.
#[derive(Default)]
pub struct Taps(BTreeMap<u32, Seen>);

impl Taps {
    /// Looks at the packet sockets and at what each guarded interface has shed since the guard started. What was shed
    /// since the last look counts as missed by a capture that is open now: to a tick.
    pub fn look(&mut self, sockets: &[PacketSocket], interfaces: impl Iterator<Item = (u32, u64)>) {
        let mut kept = BTreeMap::new();
        for (ifindex, shed) in interfaces {
            let here = |s: &&PacketSocket| s.ifindex == 0 || s.ifindex == ifindex;
            let open = sockets.iter().filter(here).filter(|s| SHED.contains(&s.protocol)).count() as u64;
            let mut seen = self.0.remove(&ifindex).unwrap_or(Seen { shed, ..Seen::default() });
            // Less than before: the source was found anew, and counts from zero.
            let more = shed.checked_sub(seen.shed).unwrap_or(shed);
            if open > 0 {
                seen.missed += more;
            }
            (seen.open, seen.shed) = (open, shed);
            kept.insert(ifindex, seen);
        }
        self.0 = kept;
    }

    /// For the status.
    pub fn status(&self, ifindex: u32) -> Status {
        self.0.get(&ifindex).map_or_else(Status::default, |s| Status { open: s.open, missed: s.missed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shed_while_a_capture_is_open_is_missed() {
        let socket = |protocol: i32, ifindex| PacketSocket { protocol: protocol as u16, ifindex };
        let mut taps = Taps::default();
        let mut look = |sockets: &[PacketSocket], shed| {
            taps.look(sockets, [(3, shed)].into_iter());
            let status = taps.status(3);
            (status.open, status.missed)
        };
        let capture = socket(libc::ETH_P_ALL, 3);
        assert_eq!(look(&[], 100), (0, 0));
        // Of another interface, and for frames that are never shed.
        assert_eq!(look(&[socket(libc::ETH_P_ALL, 4), socket(libc::ETH_P_ARP, 3)], 200), (0, 0));
        assert_eq!(look(&[capture], 250), (1, 50));
        assert_eq!(look(&[capture, socket(libc::ETH_P_IP, 0)], 350), (2, 150));
        assert_eq!(look(&[], 450), (0, 150));
        // The interface's sources were found anew.
        assert_eq!(look(&[capture], 10), (1, 160));
        taps.look(&[capture], std::iter::empty());
        assert_eq!(taps.status(3), Status::default());
    }
}
