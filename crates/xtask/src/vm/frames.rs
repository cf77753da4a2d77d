//! The wire: datagrams for the machine's program, paced by a thread.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;

/// Address of the machine's interface.
pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0x77, 0x65, 0x69];
/// Source ports in use, so that a device with several queues fills them all.
const FLOWS: u64 = 16;
/// Bytes of a datagram: departure time and sequence number, as udp-sink reads them, and some more.
const PAYLOAD: usize = 32;
/// Frames between two looks at the clock.
const BURST: u64 = 16;

/// Where frames go.
pub enum Wire {
    /// QEMU's `-netdev dgram`.
    Datagram(UdpSocket),
    /// A tap device, by a packet socket on it.
    Tap(OwnedFd),
}

impl Wire {
    /// To QEMU's socket on `port` of the loopback, from `from`.
    pub fn datagram(from: u16, port: u16) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind(("127.0.0.1", from)).context("a socket on the loopback")?;
        socket.connect(("127.0.0.1", port))?;
        Ok(Wire::Datagram(socket))
    }

    /// To the tap device `name`, which is set up first.
    pub fn tap(name: &str) -> anyhow::Result<Self> {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: plain system call; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error()).context("a packet socket");
        }
        // SAFETY: `fd` is new and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        crate::guest::net::set_up(name, true)?;
        let index = nix::net::if_::if_nametoindex(name)?;
        // SAFETY: all-zero is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` lives through the call and `len` is its size.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 {
            return Err(std::io::Error::last_os_error()).context("the tap device");
        }
        Ok(Wire::Tap(fd))
    }

    /// A frame that does not fit is lost, as on every wire.
    fn send(&self, frame: &[u8]) {
        match self {
            Wire::Datagram(socket) => {
                let _ = socket.send(frame);
            }
            Wire::Tap(fd) => {
                // SAFETY: the buffer lives through the call.
                unsafe { libc::send(fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT) };
            }
        }
    }
}

/// The `number`-th datagram from 10.0.0.1 to port 9000 of 10.0.0.2, in its frame.
pub fn frame(number: u64) -> Vec<u8> {
    let mut f = Vec::with_capacity(42 + PAYLOAD);
    f.extend(MAC);
    f.extend([0x52, 0x54, 0, 0, 0, 1, 8, 0]);
    let mut ip = [0u8; 20];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((28 + PAYLOAD) as u16).to_be_bytes());
    ip[8] = 64;
    ip[9] = 17;
    ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let check = !(((sum & 0xffff) + (sum >> 16)) as u16);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    f.extend(ip);
    f.extend((5000 + (number % FLOWS) as u16).to_be_bytes());
    f.extend(9000u16.to_be_bytes());
    f.extend(((8 + PAYLOAD) as u16).to_be_bytes());
    f.extend([0, 0]);
    f.extend([0; 8]);
    f.extend(number.to_ne_bytes());
    f.resize(42 + PAYLOAD, 0);
    f
}

/// Sends as it is told.
pub struct Sender {
    wire: Arc<Wire>,
    stop: Arc<AtomicBool>,
    number: Arc<AtomicU64>,
    flood: Mutex<Option<JoinHandle<()>>>,
}

impl Sender {
    /// Sends nothing yet.
    pub fn new(wire: Wire) -> Self {
        Self { wire: Arc::new(wire), stop: Arc::default(), number: Arc::default(), flood: Mutex::default() }
    }

    /// Sends `count` frames, `rate` per second.
    pub fn send(&self, count: u64, rate: u64) {
        run(&self.wire, &self.number, rate, |sent| sent < count);
    }

    /// Sends `rate` frames per second until [`Self::calm`].
    pub fn flood(&self, rate: u64) {
        self.calm();
        self.stop.store(false, Relaxed);
        let (wire, stop, number) = (Arc::clone(&self.wire), Arc::clone(&self.stop), Arc::clone(&self.number));
        let thread = std::thread::spawn(move || run(&wire, &number, rate, |_| !stop.load(Relaxed)));
        if let Ok(mut flood) = self.flood.lock() {
            *flood = Some(thread);
        }
    }

    /// Ends the flood.
    pub fn calm(&self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.flood.lock().ok().and_then(|mut f| f.take()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.calm();
    }
}

fn run(wire: &Wire, number: &AtomicU64, rate: u64, go_on: impl Fn(u64) -> bool) {
    let start = Instant::now();
    let burst = if rate < 2000 { 1 } else { BURST };
    let mut sent = 0;
    while go_on(sent) {
        for _ in 0..burst {
            if !go_on(sent) {
                break;
            }
            wire.send(&frame(number.fetch_add(1, Relaxed)));
            sent += 1;
        }
        let due = Duration::from_nanos(sent * 1_000_000_000 / rate.max(1));
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_whole() {
        let f = frame(17);
        assert_eq!(f.len(), 42 + PAYLOAD);
        let sum: u32 = f[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "checksum of the header");
        assert_eq!(u16::from_be_bytes([f[34], f[35]]), 5001);
        assert_eq!(f[50..58], 17u64.to_ne_bytes());
    }
}
