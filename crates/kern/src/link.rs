//! Links by rtnetlink: what an interface is, and a watcher that tells when one changes.

use crate::error::{Error, Result};
use netlink_bindings::{
    builtin::Nlmsghdr,
    rt_link::{Ifinfomsg, IterableLinkAttrs, OpGetlinkDo, Request},
};
use netlink_socket2::NetlinkSocket;
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvmsg, socket,
    },
};
use serde::Serialize;
use std::{
    io::IoSliceMut,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// `RTEXT_FILTER_SKIP_STATS`: counters are not asked for, so that the reply stays small.
const SKIP_STATS: u32 = 1 << 3;
/// Most datagrams one [`LinkWatch::take`] reads.
pub const MAX_READS: usize = 64;
/// Buffer of the watcher, bytes; the kernel's link messages are below it.
const BUFFER: usize = 32 * 1024;

/// Where an XDP program sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// In the driver, before memory is allocated.
    Driver,
    /// In the stack, after it.
    Generic,
    /// In the NIC.
    Offload,
    /// More than one.
    Multi,
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Xdp {
    /// Program id; 0 if there are several.
    pub prog_id: u32,
    /// Where it sits.
    pub mode: XdpMode,
}

/// An interface as rtnetlink shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Set up by the administrator.
    pub up: bool,
    /// It is the loopback.
    pub loopback: bool,
    /// Kind of a virtual device (`veth`, `bond`, ...); `None` for hardware.
    pub kind: Option<String>,
    /// XDP program on it.
    pub xdp: Option<Xdp>,
}

/// The interface with this index in the caller's namespace; [`Error::Gone`] if there is none.
pub fn get(ifindex: u32) -> Result<Link> {
    let what = format!("interface {ifindex}");
    let index = i32::try_from(ifindex).map_err(|_| Error::Gone { what: what.clone() })?;
    let mut header = Ifinfomsg::new();
    header.ifi_index = index;
    let mut request = Request::new().op_getlink_do(&header);
    request.encode().push_ext_mask(SKIP_STATS);
    let mut sock = NetlinkSocket::new();
    let mut reply = sock.request(&request).map_err(|e| Error::io(&what, e))?;
    let (header, attrs) = reply.recv_one().map_err(|e| Error::io(&what, e.into()))?;
    Ok(decode(&header, &attrs))
}

/// True if a veth of the caller's namespace is a port of a bridge there, as the containers of most engines have it. Lists the veths, which
/// costs 5 us each (1,000 of them, AMD EPYC), and ends soon after the first such one.
///
/// # Errors
/// If the kernel gives no list.
pub fn has_bridged_veth() -> Result<bool> {
    let what = "list of veths";
    let header = Ifinfomsg::new();
    let mut request = Request::new().op_getlink_dump(&header);
    request.encode().push_ext_mask(SKIP_STATS).nested_linkinfo().push_kind(c"veth").end_nested();
    let mut sock = NetlinkSocket::new();
    let mut reply = sock.request(&request).map_err(|e| Error::io(what, e))?;
    while let Some(item) = reply.recv() {
        let (_, attrs) = item.map_err(|e| Error::io(what, e.into()))?;
        // Kernels that know no such filter list all.
        let is = attrs.get_linkinfo().is_ok_and(|info| {
            info.get_kind().is_ok_and(|kind| kind == c"veth")
                && info.get_slave_kind().is_ok_and(|kind| kind == c"bridge")
        });
        if is {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(crate) fn decode(header: &Ifinfomsg, attrs: &IterableLinkAttrs<'_>) -> Link {
    let text = |c: &std::ffi::CStr| c.to_string_lossy().into_owned();
    let xdp = attrs.get_xdp().ok().and_then(|x| {
        let mode = match x.get_attached().ok()? {
            1 => XdpMode::Driver,
            2 => XdpMode::Generic,
            3 => XdpMode::Offload,
            4 => XdpMode::Multi,
            _ => return None,
        };
        Some(Xdp { prog_id: x.get_prog_id().unwrap_or(0), mode })
    });
    Link {
        ifindex: u32::try_from(header.ifi_index).unwrap_or(0),
        name: attrs.get_ifname().map(text).unwrap_or_default(),
        up: header.ifi_flags & libc::IFF_UP as u32 != 0,
        loopback: header.ifi_flags & libc::IFF_LOOPBACK as u32 != 0,
        kind: attrs.get_linkinfo().ok().and_then(|i| i.get_kind().ok().map(text)),
        xdp,
    }
}

/// Something happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum LinkEvent {
    /// It is new, renamed, set up or down, or an option of it has changed.
    Changed {
        /// Index.
        ifindex: u32,
        /// Name now.
        name: String,
        /// Set up by the administrator.
        up: bool,
    },
    /// It has left this namespace.
    Gone {
        /// Index that it had.
        ifindex: u32,
        /// Name that it had.
        name: String,
        /// True if it lives on in another namespace.
        moved: bool,
    },
    /// Events were lost: look at all interfaces anew.
    Resync,
}

/// Tells changes of the interfaces of the namespace it was opened in. Its descriptor is for epoll.
#[derive(Debug)]
pub struct LinkWatch {
    sock: OwnedFd,
    buf: Vec<u8>,
}

impl LinkWatch {
    /// Opens it in the caller's namespace. Needs no privilege.
    pub fn open() -> Result<Self> {
        let io = |e: Errno| Error::io("link watcher", e.into());
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let sock =
            socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute).map_err(io)?;
        bind(sock.as_raw_fd(), &NetlinkAddr::new(0, libc::RTMGRP_LINK as u32)).map_err(io)?;
        Ok(LinkWatch { sock, buf: vec![0; BUFFER] })
    }

    /// The events since the last call, oldest first; empty if there are none. Reads at most [`MAX_READS`]
    /// datagrams, so that a storm of changes elsewhere cannot hold the caller: call again while the descriptor
    /// is readable. Never blocks.
    pub fn take(&mut self) -> Result<Vec<LinkEvent>> {
        let mut events = Vec::new();
        for _ in 0..MAX_READS {
            let mut parts = [IoSliceMut::new(&mut self.buf)];
            let (len, whole, sender) =
                match recvmsg::<NetlinkAddr>(self.sock.as_raw_fd(), &mut parts, None, MsgFlags::MSG_DONTWAIT)
                {
                    Err(Errno::EAGAIN) => break,
                    Err(Errno::EINTR) => continue,
                    Err(Errno::ENOBUFS) => {
                        events.push(LinkEvent::Resync);
                        continue;
                    }
                    Err(e) => return Err(Error::io("link watcher", e.into())),
                    Ok(m) => (m.bytes, !m.flags.contains(MsgFlags::MSG_TRUNC), m.address),
                };
            // A process with CAP_NET_ADMIN may send to the group too; only the kernel is believed.
            if sender.is_some_and(|s| s.pid() != 0) {
                continue;
            }
            if whole {
                parse(&self.buf[..len], &mut events);
            } else {
                events.push(LinkEvent::Resync);
            }
        }
        Ok(events)
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }
}

/// Splits a datagram into its messages. Lengths that do not fit end the walk.
fn parse(mut bytes: &[u8], events: &mut Vec<LinkEvent>) {
    while bytes.len() >= Nlmsghdr::len() {
        let len = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        if len < Nlmsghdr::len() || len > bytes.len() {
            return;
        }
        let payload = &bytes[Nlmsghdr::len()..len];
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        let deleted = match kind {
            libc::RTM_NEWLINK => false,
            libc::RTM_DELLINK => true,
            _ => continue,
        };
        if payload.len() < Ifinfomsg::len() {
            continue;
        }
        let (header, attrs) = OpGetlinkDo::decode_request(payload);
        // A bridge tells about its ports with the same message types; leaving a bridge is no deletion.
        if i32::from(header.ifi_family) != libc::AF_UNSPEC {
            continue;
        }
        let Link { ifindex, name, up, .. } = decode(&header, &attrs);
        events.push(if deleted {
            LinkEvent::Gone { ifindex, name, moved: attrs.get_new_netnsid().is_ok() }
        } else {
            LinkEvent::Changed { ifindex, name, up }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback() {
        let lo = get(1).unwrap();
        assert!(lo.loopback && lo.name == "lo" && lo.kind.is_none());
        assert!(get(999_999).unwrap_err().is_gone());
        assert!(get(u32::MAX).unwrap_err().is_gone());
    }

    #[test]
    fn broken_messages_end_the_walk() {
        let message = |len: u32, kind: u16, family: u8, payload: usize| {
            let mut m = Nlmsghdr { len, r#type: kind, flags: 0, seq: 0, pid: 0 }.as_slice().to_vec();
            m.resize(Nlmsghdr::len() + payload, 0);
            if payload > 0 {
                m[Nlmsghdr::len()] = family;
            }
            m
        };
        let count = |bytes: &[u8]| {
            let mut events = Vec::new();
            parse(bytes, &mut events);
            events.len()
        };
        let good = message(32, libc::RTM_NEWLINK, 0, 16);
        assert_eq!(count(&good), 1);
        assert_eq!(count(&[good.clone(), good.clone()].concat()), 2);
        assert_eq!(count(&message(32, libc::RTM_DELLINK, libc::AF_BRIDGE as u8, 16)), 0);
        assert_eq!(count(&message(20, libc::RTM_NEWLINK, 0, 4)), 0);
        assert_eq!(count(&message(0, libc::RTM_NEWLINK, 0, 16)), 0);
        assert_eq!(count(&message(4000, libc::RTM_NEWLINK, 0, 16)), 0);
        for cut in 0..good.len() {
            assert_eq!(count(&good[..cut]), 0);
        }
    }
}
