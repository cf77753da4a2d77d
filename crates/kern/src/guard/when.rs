//! When the XDP program of an interface is attached.
//!
//! What an attached program costs below overload, and what attaching costs under overload, depend on the driver.
//! Native XDP on veth takes the peer's TSO and copies each packet of the stack, generic XDP copies what GRO has
//! merged, and virtio_net gives up its receive coalescing: there it is attached at takeover. Other drivers reset
//! their rings to attach (igb its link), which must not happen under overload: there it is attached at start, if the
//! driver takes it. In mode thread there is nothing that it could shed for.

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
    fn a_driver_that_resets_its_rings_is_left_alone_under_overload() {
        assert_eq!(When::for_driver("igb", Some(true)).0, When::Start);
        assert_eq!(When::for_driver("mlx5_core", None).0, When::Start);
        for (driver, native) in [("veth", Some(true)), ("virtio_net", None), ("e1000e", Some(false))] {
            assert_eq!(When::for_driver(driver, native).0, When::Takeover, "{driver}");
        }
    }
}
