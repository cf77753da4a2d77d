//! How it is told by which interface a packet came that a full socket has refused, as far as this kernel tells it.

use libbpf_rs::OpenObject;
use libbpf_rs::btf::Btf;

use crate::probes::arguments;

/// What tells it; the first that this kernel has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// `udp:udp_fail_queue_rcv_skb` has the packet (since 6.10).
    ByPacket,
    /// `skb:kfree_skb` comes right before it, with the packet and the reason (since 5.17).
    ByDrop,
    /// Nothing: overflows on the loopback count as any other.
    #[default]
    Nothing,
}

impl Told {
    /// What this kernel can.
    pub(crate) fn here(btf: &Btf<'_>) -> Told {
        match (arguments(btf, "udp_fail_queue_rcv_skb"), arguments(btf, "kfree_skb")) {
            (3.., _) => Told::ByPacket,
            (_, 3..) => Told::ByDrop,
            _ => Told::Nothing,
        }
    }

    /// The programs that it takes, of those that there are for it.
    pub(super) fn choose(self, open: &mut OpenObject) {
        for mut program in open.progs_mut() {
            let wanted = match program.name().to_str() {
                Some("weir_udp_full") => self == Told::ByPacket,
                Some("weir_udp_full_old") => self != Told::ByPacket,
                Some("weir_dropped") => self == Told::ByDrop,
                _ => continue,
            };
            if !wanted {
                program.set_autoload(false);
            }
        }
    }

    /// What a guard has to do without, if so.
    pub(super) fn missing(self) -> Option<&'static str> {
        let text = "no packet tells which interface a full socket's loss came by (Linux 5.17): losses on the loopback are \
                    evidence too";
        (self == Told::Nothing).then_some(text)
    }
}
