//! A line that takes time: packets of one TUN device come out of another one, in another namespace, some time later.
//! Kernels without netem have no other.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use testkit::NetNs;

/// Address of the near end, in the first namespace.
pub const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 250, 1);
/// Of the far end, in the second.
pub const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 250, 2);
/// Most packets on the way, each way; more are lost.
const ON_THE_WAY: usize = 8192;
/// `TUNSETIFF`, and the flags of a device that carries IP packets and nothing before them.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUN_NO_PI: libc::c_short = 0x0001 | 0x1000;

/// Both ends; gone when it is dropped.
pub struct Line {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn tun(ns: &NetNs, address: Ipv4Addr) -> File {
    let file = ns.run(|| {
        let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
        let file = file.unwrap_or_else(|e| panic!("/dev/net/tun: {e}"));
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(b"long0") {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = TUN_NO_PI;
        // SAFETY: the request lives through the call.
        let rc = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        file
    });
    ns.sh("ip", &["address", "add", &format!("{address}/30"), "dev", "long0"]);
    ns.sh("ip", &["link", "set", "long0", "up"]);
    file
}

/// A line between two namespaces on which each packet is for `delay`, each way. The device is called `long0` at both ends.
pub fn line(near: &NetNs, far: &NetNs, delay: Duration) -> Line {
    let ends = [tun(near, NEAR), tun(far, FAR)];
    let stop = Arc::new(AtomicBool::new(false));
    let ends_then = Arc::clone(&stop);
    let thread = std::thread::spawn(move || carry(&ends, delay, &ends_then));
    Line { stop, thread: Some(thread) }
}

fn carry(ends: &[File; 2], delay: Duration, stop: &AtomicBool) {
    let mut ways: [VecDeque<(Instant, Vec<u8>)>; 2] = Default::default();
    let mut buffer = vec![0; 65_536];
    while !stop.load(Relaxed) {
        let next = ways.iter().filter_map(|way| way.front()).map(|(due, _)| *due).min();
        let wait =
            next.map_or(Duration::from_millis(50), |due| due.saturating_duration_since(Instant::now()));
        let mut fds = ends.each_ref().map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
        // A part of a millisecond is waited for as a whole one.
        let millis = u16::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(50);
        let _ = poll(&mut fds, PollTimeout::from(millis));
        for (from, way) in ways.iter_mut().enumerate() {
            loop {
                match (&ends[from]).read(&mut buffer) {
                    Ok(n) if way.len() < ON_THE_WAY => {
                        way.push_back((Instant::now() + delay, buffer[..n].to_vec()));
                    }
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            while way.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                let Some((_, packet)) = way.pop_front() else { break };
                let _ = (&ends[1 - from]).write(&packet);
            }
        }
    }
}
