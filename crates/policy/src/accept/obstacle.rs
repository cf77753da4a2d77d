//! What stands in the way of choosing for a group of listeners, and for which groups of datagrams weir chooses unasked.
//!
//! # Properties
//! - A choice of somebody else's, and one of a weir that runs, is in the way; one that a killed weir has left is not.
//! - A group of one listener, or of more than there are queues, is never chosen for.
//! - Unasked, datagrams are chosen for only where each stands alone.

use super::queues::QUEUES;

/// Who chooses in a group now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// The kernel's hash.
    Kernel,
    /// A classic filter of the server's.
    Filter,
    /// The program of a weir with this id.
    Weir {
        /// Id of the program.
        id: u32,
        /// That weir runs.
        runs: bool,
    },
    /// Another program with this id.
    Program(u32),
}

/// Why a group is not chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// There is one queue only.
    OneListener,
    /// More listeners than there are queues.
    TooMany,
    /// The server chooses by a filter of its own.
    Filter,
    /// Another weir runs for it, with this program.
    Weir(u32),
    /// This program chooses already.
    Program(u32),
}

/// What stands in the way of choosing in a group of so many listeners. Who chooses now is asked only where that matters.
#[must_use]
pub fn obstacle(members: usize, reuseport: bool, chooser: impl FnOnce() -> Chooser) -> Option<Obstacle> {
    if members < 2 || !reuseport {
        return Some(Obstacle::OneListener);
    }
    if members > QUEUES {
        return Some(Obstacle::TooMany);
    }
    match chooser() {
        Chooser::Kernel | Chooser::Weir { runs: false, .. } => None,
        Chooser::Filter => Some(Obstacle::Filter),
        Chooser::Weir { id, runs: true } => Some(Obstacle::Weir(id)),
        Chooser::Program(id) => Some(Obstacle::Program(id)),
    }
}

/// Servers and the port on which each of their datagrams stands alone: it may go to any of their workers. On other ports, and of other
/// servers, it may belong to a session that one worker has: the same servers speak QUIC and DTLS.
const STATELESS: [(&str, u16); 5] =
    [("knotd", 53), ("unbound", 53), ("nsd", 53), ("dnsdist", 53), ("rsyslogd", 514)];

/// Whether each datagram for this port of a process stands alone. Its name is asked only where the port may do.
#[must_use]
pub fn stands_alone(port: u16, name: impl FnOnce() -> Option<String>) -> bool {
    STATELESS.iter().any(|(_, of)| *of == port)
        && name().is_some_and(|name| STATELESS.iter().any(|(of, at)| *at == port && is_of(&name, of)))
}

/// Whether a process of this name is one of the server `server`: some name each of their processes, "nsd: server 1".
#[must_use]
pub fn is_of(name: &str, server: &str) -> bool {
    name.strip_prefix(server).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_plain_ports_of_known_servers_stand_alone() {
        let alone = |name: &str, port| stands_alone(port, || Some(name.to_string()));
        for name in ["knotd", "unbound", "nsd", "dnsdist"] {
            assert!(alone(name, 53), "{name}");
            // QUIC, DTLS, multicast, and whatever else.
            for port in [443, 514, 784, 853, 5300, 5353, 6514, 8853] {
                assert!(!alone(name, port), "{name} {port}");
            }
        }
        assert!(alone("rsyslogd", 514) && !alone("rsyslogd", 53));
        // As NSD 4.6 names its processes.
        assert!(
            alone("nsd: server 1", 53) && alone("nsd: main", 53) && !alone("nsdx", 53) && !alone("ns", 53)
        );
        assert!(!alone("rsyslogd", 6514) && !alone("nginx", 53) && !stands_alone(53, || None));
    }

    fn choosers() -> impl Strategy<Value = Chooser> {
        prop_oneof![
            Just(Chooser::Kernel),
            Just(Chooser::Filter),
            (any::<u32>(), any::<bool>()).prop_map(|(id, runs)| Chooser::Weir { id, runs }),
            any::<u32>().prop_map(Chooser::Program),
        ]
    }

    proptest! {
        #[test]
        fn nobody_elses_choice_is_replaced(members in 0usize..2 * QUEUES, reuseport: bool, chooser in choosers()) {
            let ours = matches!(chooser, Chooser::Kernel | Chooser::Weir { runs: false, .. });
            let fits = reuseport && (2..=QUEUES).contains(&members);
            prop_assert_eq!(obstacle(members, reuseport, || chooser).is_none(), ours && fits);
        }
    }
}
