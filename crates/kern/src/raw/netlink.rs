//! Dumps over raw netlink whose requests and replies are fixed structures with attributes behind them.

use crate::error::{Error, Result};
use netlink_bindings::traits::{NetlinkRequest, Protocol};
use netlink_socket2::NetlinkSocket;

/// `NLM_F_DUMP`.
const DUMP: u16 = 0x300;

/// A dump request: family, message type, header with attributes.
pub(crate) struct Dump {
    pub protonum: u16,
    pub kind: u16,
    pub payload: Vec<u8>,
}

impl NetlinkRequest for Dump {
    fn protocol(&self) -> Protocol {
        Protocol::Raw { protonum: self.protonum, request_type: self.kind }
    }

    fn flags(&self) -> u16 {
        DUMP
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    type ReplyType<'buf> = &'buf [u8];

    fn decode_reply(buf: &[u8]) -> &[u8] {
        buf
    }
}

/// Runs `dump` and gives each reply to `take`, until there is none or `take` answers false.
pub(crate) fn each(
    sock: &mut NetlinkSocket,
    dump: &Dump,
    what: &str,
    mut take: impl FnMut(&[u8]) -> bool,
) -> Result<()> {
    let mut reply = sock.request(dump).map_err(|e| Error::io(what, e))?;
    let mut wanted = true;
    // A dump is read to its end: what is left unread would answer the next request.
    while let Some(item) = reply.recv() {
        let item = item.map_err(|e| Error::io(what, e.into()))?;
        wanted = wanted && take(item);
    }
    Ok(())
}

/// The `N` bytes at `at`.
pub(crate) fn bytes<const N: usize>(buf: &[u8], at: usize) -> Option<[u8; N]> {
    buf.get(at..at + N)?.try_into().ok()
}

/// The 32-bit word at `at`, in the machine's byte order.
pub(crate) fn word(buf: &[u8], at: usize) -> Option<u32> {
    bytes(buf, at).map(u32::from_ne_bytes)
}
