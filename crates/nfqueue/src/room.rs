//! Memory for the messages of one read.

use std::io;
use std::os::fd::RawFd;

use crate::message::{Message, Messages};

/// Bytes per message: headers and attributes take less than 400, the rest is for the packet's first bytes.
const SLOT: usize = 2048;

/// Room for some messages, used again for each read.
pub struct Room {
    bytes: Box<[u8]>,
    parts: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    /// Length of each message that was read last.
    lengths: Vec<usize>,
}

impl Room {
    /// Room for at most `messages` messages, at least one.
    #[must_use]
    pub fn new(messages: usize) -> Room {
        let messages = messages.max(1);
        let mut bytes = vec![0u8; messages * SLOT].into_boxed_slice();
        let part = |slot: &mut [u8]| libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT };
        let mut parts: Box<[libc::iovec]> = bytes.chunks_exact_mut(SLOT).map(part).collect();
        let header = |part: &mut libc::iovec| {
            // SAFETY: all-zero is a valid mmsghdr: no name, no control data.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header
        };
        let headers = parts.iter_mut().map(header).collect();
        Room { bytes, parts, headers, lengths: Vec::with_capacity(messages) }
    }

    /// The messages that were read last, in their order.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let slots = self.bytes.chunks_exact(SLOT).zip(&self.lengths);
        slots.flat_map(|(slot, length)| Messages(&slot[..(*length).min(SLOT)]))
    }

    /// Waits for the first message, then reads what else there is.
    pub(crate) fn receive(&mut self, socket: RawFd) -> io::Result<()> {
        self.lengths.clear();
        if let [part] = &self.parts[..] {
            // SAFETY: the part is the whole of `bytes`, which nobody else uses meanwhile.
            let got = unsafe { libc::recv(socket, part.iov_base, part.iov_len, 0) };
            let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
            self.lengths.push(got);
            return Ok(());
        }
        // SAFETY: each header points to one part, each part to its slot of `bytes`; all live as long as `self`, are boxed
        // and so do not move, and nobody else uses them meanwhile.
        let got = unsafe {
            libc::recvmmsg(
                socket,
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                // Signed or not, as the library has it.
                libc::MSG_WAITFORONE as _,
                std::ptr::null_mut(),
            )
        };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        self.lengths.extend(self.headers.iter().take(got).map(|header| header.msg_len as usize));
        Ok(())
    }

    /// Puts one message in, as if it had been read.
    pub(crate) fn put(&mut self, message: &[u8]) {
        let length = message.len().min(SLOT);
        self.bytes[..length].copy_from_slice(&message[..length]);
        self.lengths.clear();
        self.lengths.push(length);
    }

    /// The bytes of the first message.
    pub(crate) fn first(&self) -> &[u8] {
        &self.bytes[..self.lengths.first().copied().unwrap_or(0).min(SLOT)]
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("messages", &self.headers.len()).field("lengths", &self.lengths).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_batch_is_what_there_is_and_at_most_the_room() {
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        let message = |request: u32| {
            let mut bytes = vec![36, 0, 0, 0];
            bytes.extend((libc::NLMSG_ERROR as u16).to_ne_bytes());
            bytes.extend([0; 14 + 8]);
            bytes.extend(request.to_ne_bytes());
            bytes.extend([0; 4]);
            let length = bytes.len() as u32;
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            bytes
        };
        (0..5).for_each(|n| _ = sender.send(&message(n)).unwrap());
        let mut room = Room::new(3);
        let mut read = || {
            room.receive(receiver.as_raw_fd()).unwrap();
            let request = |m| match m {
                Message::Done { request, .. } => request,
                Message::Packet(_) => u32::MAX,
            };
            room.messages().map(request).collect::<Vec<_>>()
        };
        assert_eq!(read(), [0, 1, 2]);
        assert_eq!(read(), [3, 4]);
    }
}
