//! NAPI instances through the `netdev` generic netlink family: list them, read and write their settings.
//!
//! The family appeared in 6.3, the list of NAPIs in 6.8, settings per NAPI in 6.13 and `threaded` per NAPI in
//! 6.17; each is probed. A [`Client`] belongs to the network namespace it was opened in.

use crate::error::{Error, Result};
use netlink_bindings::{
    netdev::{self, QueueType, Request},
    traits::NetlinkRequest,
    utils,
};
use netlink_socket2::{NetlinkSocket, ReplyError};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io};

/// Most NAPIs or queues that are read from one interface; a reply with more is an error.
pub const MAX_PER_DEVICE: usize = 4096;

/// `NETDEV_A_NAPI_*`, from the kernel's `netdev.yaml`.
const A_GRO_FLUSH_TIMEOUT: u16 = 6;
const A_IRQ_SUSPEND_TIMEOUT: u16 = 7;
/// `NETDEV_A_DEV_XDP_FEATURES`.
const A_XDP_FEATURES: u16 = 3;

/// How a NAPI is run when it is not busy polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threaded {
    /// In softirq.
    Off,
    /// In its own kernel thread.
    On,
    /// In its own kernel thread that busy polls (6.19).
    BusyPoll,
}

impl Threaded {
    /// From the number on the wire.
    pub fn from_wire(value: u32) -> Option<Self> {
        [Threaded::Off, Threaded::On, Threaded::BusyPoll].into_iter().find(|t| t.to_wire() == value)
    }

    /// The number on the wire.
    pub fn to_wire(self) -> u32 {
        match self {
            Threaded::Off => 0,
            Threaded::On => 1,
            Threaded::BusyPoll => 2,
        }
    }
}

/// One NAPI instance as the kernel shows it. `None`: this kernel does not tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Napi {
    /// Id, the same as `SO_INCOMING_NAPI_ID`. Not reused soon, but stale after down/up of many drivers.
    pub id: u32,
    /// Interface it belongs to.
    pub ifindex: u32,
    /// Interrupt number.
    pub irq: Option<u32>,
    /// Its kernel thread, if threaded.
    pub pid: Option<u32>,
    /// Timer expiries without a poll before interrupts come back.
    pub defer_hard_irqs: Option<u32>,
    /// Timer that polls when nobody else does, ns.
    pub gro_flush_timeout_ns: Option<u64>,
    /// Longest suspension of interrupts by epoll busy polling, ns; not 0 if a program uses it.
    pub irq_suspend_timeout_ns: Option<u64>,
    /// How it is run.
    pub threaded: Option<Threaded>,
}

/// What to change of one NAPI; `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Timer expiries without a poll before interrupts come back, 0 to 2^31 - 1.
    pub defer_hard_irqs: Option<u32>,
    /// Flush timer, ns.
    pub gro_flush_timeout_ns: Option<u64>,
    /// How to run it (6.17).
    pub threaded: Option<Threaded>,
}

/// Direction of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Receive.
    Rx,
    /// Transmit.
    Tx,
}

/// XDP abilities that the driver declares (`xdp-features`, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct XdpFeatures(pub u64);

impl XdpFeatures {
    /// The driver runs XDP programs itself, before memory is allocated.
    pub fn native(self) -> bool {
        self.0 & netdev::XdpAct::Basic as u64 != 0
    }

    /// Redirect works from this device.
    pub fn redirect(self) -> bool {
        self.0 & netdev::XdpAct::Redirect as u64 != 0
    }
}

/// A connection to the `netdev` family. One request is one send and one or two receives (data, then ack; a
/// change has only the ack), on a socket that stays open.
pub struct Client {
    sock: NetlinkSocket,
}

impl Client {
    /// Connects in the caller's network namespace. [`Error::Unsupported`] if the kernel has no such family.
    pub fn open() -> Result<Self> {
        let mut client = Client { sock: NetlinkSocket::new() };
        // The library opens the socket at the first request: it must be now, in this namespace.
        let mut request = Request::new().op_dev_get_do();
        request.encode().push_ifindex(1);
        match client.one(&request, "netdev netlink", |_| ()) {
            Ok(()) | Err(Error::Gone { .. }) => Ok(client),
            // The controller answers ENOENT for a family it does not have.
            Err(e) if e.errno() == Some(libc::ENOENT) => {
                Err(Error::Unsupported { what: "netdev netlink family".into(), since: "6.3" })
            }
            Err(e) => Err(e),
        }
    }

    /// All NAPIs of `ifindex`, by ascending id; none if the interface is down. [`Error::Unsupported`] before 6.8.
    pub fn list(&mut self, ifindex: u32) -> Result<Vec<Napi>> {
        let mut request = Request::new().op_napi_get_dump();
        request.encode().push_ifindex(ifindex);
        let what = format!("NAPI list of interface {ifindex}");
        let mut all = self.dump(&request, &what, |r| decode(&r, &what))?;
        all.sort_by_key(|n| n.id);
        Ok(all)
    }

    /// One NAPI; [`Error::Gone`] if there is no such id (also while its interface is down).
    pub fn get(&mut self, id: u32) -> Result<Napi> {
        let mut request = Request::new().op_napi_get_do();
        request.encode().push_id(id);
        let what = format!("NAPI {id}");
        self.one(&request, &what, |r| decode(&r, &what)).map_err(|e| napi_gone(e, &what))?
    }

    /// Changes one NAPI: one send, one receive. [`Error::Gone`] if there is no such id,
    /// [`Error::Unsupported`] before 6.13, [`Error::Denied`] without CAP_NET_ADMIN.
    pub fn set(&mut self, id: u32, change: Change) -> Result<()> {
        let mut request = Request::new().op_napi_set_do();
        {
            let mut encoder = request.encode().push_id(id);
            if let Some(v) = change.defer_hard_irqs {
                encoder = encoder.push_defer_hard_irqs(v);
            }
            if let Some(v) = change.gro_flush_timeout_ns {
                push_uint(&mut encoder, A_GRO_FLUSH_TIMEOUT, v);
            }
            if let Some(v) = change.threaded {
                encoder.push_threaded(v.to_wire());
            }
        }
        let what = format!("setting NAPI {id}");
        let mut reply = self.sock.request(&request).map_err(|e| Error::io(&what, e))?;
        let result = reply.recv_ack().map_err(|e| reply_error(e, &what));
        result.map_err(|e| match e.errno() {
            Some(libc::EPERM) => Error::Denied { what, need: "CAP_NET_ADMIN" },
            Some(libc::EOPNOTSUPP) => Error::Unsupported { what, since: "6.13" },
            _ => napi_gone(e, &what),
        })
    }

    /// True if settings per NAPI exist (6.13), found by changing a NAPI that cannot exist.
    /// [`Error::Denied`] without CAP_NET_ADMIN: then it cannot be told.
    pub fn has_settings(&mut self) -> Result<bool> {
        // Ids are positive 32-bit signed in the kernel, so this one is never given out.
        match self.set(u32::MAX, Change::default()) {
            Err(Error::Gone { .. }) | Ok(()) => Ok(true),
            Err(Error::Unsupported { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// NAPI of each queue of `ifindex`; `None` where the driver does not link them (veth). Empty if the
    /// interface is down. [`Error::Unsupported`] before 6.8.
    pub fn queues(&mut self, ifindex: u32) -> Result<BTreeMap<(Direction, u32), Option<u32>>> {
        let mut request = Request::new().op_queue_get_dump();
        request.encode().push_ifindex(ifindex);
        let what = format!("queue list of interface {ifindex}");
        let list = self.dump(&request, &what, |r| {
            let kind = r.get_type().map_err(|e| invalid(&what, e))?;
            let direction = match QueueType::from_value(kind.into()) {
                Some(QueueType::Rx) => Direction::Rx,
                Some(QueueType::Tx) => Direction::Tx,
                None => return Err(invalid(&what, format!("unknown queue type {kind}"))),
            };
            let id = r.get_id().map_err(|e| invalid(&what, e))?;
            // 6.8 to 6.12 send 0 where they know no NAPI.
            Ok(((direction, id), r.get_napi_id().ok().filter(|&n| n != 0)))
        })?;
        Ok(list.into_iter().collect())
    }

    /// NAPI ids of the first `queues` receive queues of `ifindex`: from the kernel's queue map, else by order where there
    /// are as many NAPIs as queues; empty if neither tells, as before 6.8.
    pub fn of_queues(&mut self, ifindex: u32, queues: u32) -> Result<Vec<u32>> {
        let map = self.queues(ifindex).unwrap_or_default();
        let mapped: Vec<u32> =
            (0..queues).map_while(|q| map.get(&(Direction::Rx, q)).copied().flatten()).collect();
        if mapped.len() == queues as usize {
            return Ok(mapped);
        }
        in_order(self.list(ifindex), queues)
    }

    /// XDP features that the driver of `ifindex` declares.
    pub fn xdp_features(&mut self, ifindex: u32) -> Result<XdpFeatures> {
        let mut request = Request::new().op_dev_get_do();
        request.encode().push_ifindex(ifindex);
        let what = format!("XDP features of interface {ifindex}");
        self.one(&request, &what, |r| {
            uint(r.get_buf(), A_XDP_FEATURES).map(XdpFeatures).ok_or_else(|| invalid(&what, "no features"))
        })?
    }

    fn one<R: NetlinkRequest, T>(
        &mut self,
        request: &R,
        what: &str,
        decode: impl FnOnce(R::ReplyType<'_>) -> T,
    ) -> Result<T> {
        let mut reply = self.sock.request(request).map_err(|e| Error::io(what, e))?;
        let value = decode(reply.recv_one().map_err(|e| reply_error(e, what))?);
        // Takes the ack, so that it does not stand before the next reply.
        reply.recv_ack().map_err(|e| reply_error(e, what))?;
        Ok(value)
    }

    fn dump<R: NetlinkRequest, T>(
        &mut self,
        request: &R,
        what: &str,
        mut decode: impl FnMut(R::ReplyType<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut reply = self.sock.request(request).map_err(|e| Error::io(what, e))?;
        let mut all = Vec::new();
        while let Some(item) = reply.recv() {
            let item = item.map_err(|e| match reply_error(e, what) {
                e if e.errno() == Some(libc::EOPNOTSUPP) => {
                    Error::Unsupported { what: what.into(), since: "6.8" }
                }
                e => e,
            })?;
            if all.len() == MAX_PER_DEVICE {
                return Err(invalid(what, format!("more than {MAX_PER_DEVICE} entries")));
            }
            all.push(decode(item)?);
        }
        Ok(all)
    }
}

/// Ids are given in the order of the queues. A kernel without the list tells none, which is no failure: packets tell them.
fn in_order(list: Result<Vec<Napi>>, queues: u32) -> Result<Vec<u32>> {
    match list {
        Ok(list) if list.len() == queues as usize => Ok(list.into_iter().map(|n| n.id).collect()),
        Ok(_) | Err(Error::Unsupported { .. }) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// All NAPIs of `ifindex`, through a connection of its own.
pub fn list(ifindex: u32) -> Result<Vec<Napi>> {
    Client::open()?.list(ifindex)
}

/// Kernel threads of the NAPIs of the interface `name`, by their names: the kernel tells them by netlink from 6.8 on
/// only, and those of transmission belong to no queue that is looked at.
pub fn threads(name: &str) -> Result<Vec<i32>> {
    let all = std::fs::read_dir("/proc").map_err(|e| Error::io("/proc", e))?;
    let named = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| is_thread_of(&comm, name))
            && u32::try_from(*pid).ok().and_then(crate::proc::stat).is_some_and(|stat| stat.kernel)
    };
    Ok(all.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(named).collect())
}

/// `napi/NAME-ID`, which kernels before 5.17 cut after 15 bytes.
fn is_thread_of(comm: &str, name: &str) -> bool {
    let id =
        comm.trim_end().strip_prefix("napi/").and_then(|rest| rest.strip_prefix(name)?.strip_prefix('-'));
    id.is_some_and(|id| id.bytes().all(|b| b.is_ascii_digit()))
}

fn decode(reply: &netdev::IterableNapi<'_>, what: &str) -> Result<Napi> {
    let buf = reply.get_buf();
    Ok(Napi {
        id: reply.get_id().map_err(|e| invalid(what, e))?,
        ifindex: reply.get_ifindex().map_err(|e| invalid(what, e))?,
        irq: reply.get_irq().ok(),
        pid: reply.get_pid().ok(),
        defer_hard_irqs: reply.get_defer_hard_irqs().ok(),
        gro_flush_timeout_ns: uint(buf, A_GRO_FLUSH_TIMEOUT),
        irq_suspend_timeout_ns: uint(buf, A_IRQ_SUSPEND_TIMEOUT),
        threaded: reply.get_threaded().ok().and_then(Threaded::from_wire),
    })
}

/// An attribute of the specification's type `uint`: 4 or 8 bytes, as the value needs. The typed getters read
/// only the first four.
fn uint(buf: &[u8], attr: u16) -> Option<u64> {
    let bytes = utils::find_attr(buf, attr)?;
    match bytes.len() {
        4 => Some(u32::from_ne_bytes(bytes.try_into().ok()?).into()),
        8 => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

fn push_uint(encoder: &mut impl utils::Pusher, attr: u16, value: u64) {
    let buf = encoder.as_vec_mut();
    match u32::try_from(value) {
        Ok(v) => {
            utils::push_header(buf, attr, 4);
            buf.extend(v.to_ne_bytes());
        }
        Err(_) => {
            utils::push_header(buf, attr, 8);
            buf.extend(value.to_ne_bytes());
        }
    }
}

fn invalid(what: &str, why: impl ToString) -> Error {
    Error::Invalid { what: what.into(), why: why.to_string() }
}

/// Keeps the errno and adds the kernel's own words (extended ack), if it said any.
fn reply_error(e: ReplyError, what: &str) -> Error {
    let said = e.ext_ack().and_then(|a| a.get_msg().ok().map(|m| m.to_string_lossy().into_owned()));
    let what = said.map_or_else(|| what.to_string(), |m| format!("{what} ({m})"));
    Error::io(what, io::Error::from(e))
}

fn napi_gone(e: Error, what: &str) -> Error {
    match e.errno() {
        Some(libc::ENOENT) => Error::Gone { what: what.into() },
        _ => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn napi(id: u32) -> Napi {
        Napi {
            id,
            ifindex: 2,
            irq: None,
            pid: None,
            defer_hard_irqs: None,
            gro_flush_timeout_ns: None,
            irq_suspend_timeout_ns: None,
            threaded: None,
        }
    }

    #[test]
    fn a_kernel_that_lists_no_napis_is_no_failure() {
        let none = |since| Err(Error::Unsupported { what: String::new(), since });
        assert_eq!(in_order(none("6.8"), 2).unwrap(), Vec::<u32>::new());
        assert_eq!(in_order(Ok(vec![napi(8193), napi(8194)]), 2).unwrap(), [8193, 8194]);
        assert!(in_order(Ok(vec![napi(8193)]), 2).unwrap().is_empty(), "whose it is nobody knows");
        assert!(in_order(Err(Error::Gone { what: String::new() }), 2).is_err());
    }

    #[test]
    fn threads_of_an_interface_are_told_from_those_of_other_interfaces() {
        for (comm, is) in [
            ("napi/eth0-8193\n", true),
            // As a kernel before 5.17 cuts it.
            ("napi/eth0-", true),
            ("napi/eth0-lan-8193", false),
            ("napi/eth01-8193", false),
            ("eth0-8193", false),
        ] {
            assert_eq!(is_thread_of(comm, "eth0"), is, "{comm}");
        }
    }

    #[test]
    fn uint_takes_four_and_eight_bytes() {
        let mut buf: Vec<u8> = Vec::new();
        push_uint(&mut buf, 6, 2_000_000);
        push_uint(&mut buf, 7, 5_000_000_000);
        assert_eq!(uint(&buf, 6), Some(2_000_000));
        assert_eq!(uint(&buf, 7), Some(5_000_000_000));
        assert_eq!(uint(&buf, 8), None);
        assert_eq!(uint(&buf[..buf.len() - 4], 7), None);
    }

    #[test]
    fn threaded_numbers() {
        for t in [Threaded::Off, Threaded::On, Threaded::BusyPoll] {
            assert_eq!(Threaded::from_wire(t.to_wire()), Some(t));
        }
        assert_eq!(Threaded::from_wire(3), None);
    }
}
