//! Questions to a server of datagrams from many ports, at times that are fixed before the first of them. An answer names its question, and
//! the worker that gave it as that of a page does ([`crate::visits`]).

use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::monotonic_ns;
use crate::visits::{Fate, Plan, Seen, worker};

/// Ports that are asked from: the kernel's hash spreads them.
pub const PORTS: usize = 64;

/// Runs an open loop on the calling thread.
///
/// # Errors
/// If there are no sockets.
pub fn run(plan: &Plan) -> io::Result<Seen> {
    let sockets: io::Result<Vec<UdpSocket>> = (0..PORTS)
        .map(|_| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(plan.to)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })
        .collect();
    let (sockets, mut seen) = (sockets?, Seen::default());
    let end = plan.begin + (plan.warm_up + plan.window).as_nanos() as u64;
    let patience = plan.patience.as_nanos() as u64;
    // Those that wait for their answer, by number from `first` on; `None`: answered.
    let (mut first, mut waiting) = (0u64, VecDeque::<Option<u64>>::new());
    let mut next = plan.begin + plan.due(0).unwrap_or(0);
    let mut buffer = [0u8; 2048];
    loop {
        let now = monotonic_ns();
        while next <= now && next < end {
            let number = first + waiting.len() as u64;
            seen.late(plan, next, now);
            // One that cannot be sent is one without an answer.
            let _ = sockets[number as usize % PORTS].send(&number.to_be_bytes());
            waiting.push_back(Some(next));
            next = plan.begin + plan.due(number + 1).unwrap_or(u64::MAX);
        }
        while let Some(due) = waiting.front().filter(|due| due.is_none_or(|due| now >= due + patience)) {
            if let Some(due) = due {
                seen.tell(plan, *due, Fate::TimedOut);
            }
            waiting.pop_front();
            first += 1;
        }
        if now >= end && waiting.is_empty() {
            return Ok(seen);
        }
        let oldest = waiting.front().copied().flatten().map_or(u64::MAX, |due| due + patience);
        let wake = if next < end { next.min(oldest) } else { oldest };
        let left = Duration::from_nanos(wake.saturating_sub(monotonic_ns()).min(1_000_000_000));
        let mut fds: Vec<PollFd<'_>> =
            sockets.iter().map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN)).collect();
        match ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        let ready: Vec<bool> =
            fds.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect();
        for (socket, _) in sockets.iter().zip(ready).filter(|(_, ready)| *ready) {
            // An error of the other side (no port) is one without an answer.
            while let Ok(length) = socket.recv(&mut buffer) {
                let answer = buffer.get(..length).unwrap_or_default();
                let Some(number) = answer.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)) else {
                    continue;
                };
                let place = number.checked_sub(first).and_then(|at| waiting.get_mut(at as usize));
                let Some(due) = place.and_then(Option::take) else { continue };
                seen.tell(plan, due, Fate::Answered(monotonic_ns().saturating_sub(due)));
                if let Some(worker) = worker(answer).filter(|_| plan.counts(due)) {
                    *seen.workers.entry(worker).or_default() += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::visits::Pace;
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    /// Counts, no times: patience is far longer than an answer takes, but for those that get none.
    #[test]
    fn answered_and_unanswered_questions_are_told_apart() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(to) = server.local_addr().unwrap() else { panic!("IPv4") };
        std::thread::spawn(move || {
            let mut buffer = [0u8; 64];
            while let Ok((length, from)) = server.recv_from(&mut buffer) {
                // Each fourth gets no answer.
                if buffer[7] % 4 > 0 {
                    let _ = server.send_to(&[&buffer[..length], b"X-Worker: 7\r\n"].concat(), from);
                }
            }
        });
        let plan = Plan {
            to,
            pace: Pace::Open { per_s: 200.0, seed: 3 },
            begin: monotonic_ns(),
            warm_up: Duration::ZERO,
            window: Duration::from_millis(200),
            patience: Duration::from_secs(2),
        };
        let seen = run(&plan).unwrap();
        let lost = seen.visits.iter().filter(|(_, fate)| *fate == Fate::TimedOut).count();
        assert_eq!((seen.visits.len(), lost), (40, 10), "{seen:?}");
        assert_eq!(seen.workers, BTreeMap::from([(7, 30)]));
    }
}
