//! When the XDP program of an interface is attached.
//!
//! What an attached program costs below overload, and what attaching costs under overload, depend on the driver.
//! Native XDP on veth takes the peer's TSO and copies each packet of the stack, generic XDP copies what GRO has
//! merged, and virtio_net gives up its receive coalescing: there it is attached at takeover. Other drivers reset
//! their rings to attach (igb its link), which must not happen under overload: there it is attached at start, if the
//! driver takes it. In mode thread there is nothing that it could shed for.

use crate::ethtool::Channels;

/// When the program of an interface is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// From start to end.
    Start,
    /// At takeover, until some time after the release.
    Takeover,
    /// Not at all.
    Never,
}

/// Why it waits where a driver that runs programs itself refuses this one: a long MTU, too few queues.
pub const REFUSED: (When, &str) =
    (When::Takeover, "at takeover: the driver refuses it, and generic XDP copies what GRO has merged");
/// In mode thread, where nothing is shed.
pub const NEVER: (When, &str) = (When::Never, "mode thread has no gate");

impl When {
    /// The choice for a driver, and the reason; `native`: the driver runs XDP programs itself, as far as is known.
    #[must_use]
    pub fn for_driver(driver: &str, native: Option<bool>) -> (When, &'static str) {
        match (driver, native) {
            ("veth", _) => {
                (When::Takeover, "at takeover: on veth it takes the peer's TSO and copies packets")
            }
            ("virtio_net", _) => (When::Takeover, "at takeover: virtio_net loses its receive coalescing"),
            (_, Some(false)) => (When::Takeover, "at takeover: generic XDP copies what GRO has merged"),
            (_, Some(true)) => (When::Start, "at start: attaching resets this driver's rings"),
            (_, None) => (When::Start, "at start, if the driver runs it: attaching may reset its rings"),
        }
    }

    /// True if this driver has fewer queues before a program is attached than with it, so that frames come to queues that nobody guards:
    /// virtio_net adds one for each of the host's `cpus`, if it has so many to spare.
    #[must_use]
    pub fn adds_queues(driver: &str, channels: Option<Channels>, cpus: usize) -> bool {
        let spare = |channels: Channels| channels.max_rx.saturating_sub(channels.combined) as usize;
        driver == "virtio_net" && channels.is_some_and(|channels| spare(channels) >= cpus)
    }

    /// True if this driver switches LRO and hardware GRO, as the generic hook wants, by a word to its device: others reset their rings.
    #[must_use]
    pub fn switches_cheaply(driver: &str) -> bool {
        ["virtio_net", "vmxnet3"].contains(&driver)
    }

    /// As the status says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            When::Start => "start",
            When::Takeover => "takeover",
            When::Never => "never",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_that_is_reset_to_switch_an_offload_is_left_alone() {
        assert!(!When::switches_cheaply("bnx2x") && When::switches_cheaply("vmxnet3"));
    }

    #[test]
    fn queues_that_attaching_would_add() {
        let adds = |driver, combined, max_rx| {
            When::adds_queues(driver, Some(Channels { rx: 0, tx: 0, combined, max_rx }), 4)
        };
        assert!(adds("virtio_net", 4, 8) && adds("virtio_net", 1, 16));
        assert!(!adds("virtio_net", 4, 7) && !adds("virtio_net", 8, 8) && !adds("mlx5_core", 4, 8));
        assert!(!When::adds_queues("virtio_net", None, 4));
    }

    #[test]
    fn a_driver_that_resets_its_rings_is_left_alone_under_overload() {
        assert_eq!(When::for_driver("igb", Some(true)).0, When::Start);
        assert_eq!(When::for_driver("mlx5_core", None).0, When::Start);
        for (driver, native) in [("veth", Some(true)), ("virtio_net", None), ("e1000e", Some(false))] {
            assert_eq!(When::for_driver(driver, native).0, When::Takeover, "{driver}");
        }
    }
}
