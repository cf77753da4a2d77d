//! Packets of ARP. The kernel counts them nowhere above the device, so a packet socket counts them: it is bound to ARP,
//! and no other packet passes it (`packet_rcv`, net/packet/af_packet.c).

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Packets that are thrown away per reading; what is beyond finds the socket full at last, which is counted too.
const TAKEN_MAX: usize = 4096;

/// Counts from when it is opened, in the network namespace of who opens it.
pub(super) struct Arp {
    socket: OwnedFd,
    /// Of the socket, which is none of the host's captures.
    pub inode: u64,
    seen: u64,
}

impl Arp {
    /// Needs CAP_NET_RAW.
    pub fn open() -> nix::Result<Arp> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let protocol = i32::from((libc::ETH_P_ARP as u16).to_be());
        // SAFETY: a plain system call with three numbers.
        let fd = Errno::result(unsafe { libc::socket(libc::AF_PACKET, kind, protocol) })?;
        // SAFETY: the descriptor is new, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let inode = nix::sys::stat::fstat(&socket)?.st_ino;
        Ok(Arp { socket, inode, seen: 0 })
    }

    /// Packets so far.
    pub fn count(&mut self) -> u64 {
        // Reading sets them to 0; `tp_packets` has those that found the socket full as well.
        let mut new = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of_val(&new) as libc::socklen_t;
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: the pointer and the length describe `new`, which lives through the call.
        let rc = unsafe {
            libc::getsockopt(self.socket.as_raw_fd(), level, name, (&raw mut new).cast(), &raw mut length)
        };
        if rc == 0 {
            self.seen += u64::from(new.tp_packets);
        }
        let mut nothing = [0; 1];
        for _ in 0..TAKEN_MAX {
            if recv(self.socket.as_raw_fd(), &mut nothing, MsgFlags::MSG_DONTWAIT).is_err() {
                break;
            }
        }
        self.seen
    }
}
