//! Which ports sockets have, for the gate: what no socket has may be nobody's.

use std::sync::atomic::{Ordering::Relaxed, Ordering::Release, fence};

use super::{PORT_WORDS, Views};
use crate::error::Result;

/// Lists the ports that sockets of this namespace have, as of `begun` (in ticks of the gate, not 0, and not later than the first
/// socket was looked for); false if at its end it does not count, by `holds`. Takes about 1 us per socket.
///
/// What has a port by an older list keeps it until the new one is whole. A socket that came after the list was begun is known to
/// BPF from what it sends or from its bind.
///
/// # Errors
/// If the kernel's lists cannot be read; then the last one holds on.
pub fn list(views: &Views, begun: u32, holds: impl Fn() -> bool) -> Result<bool> {
    let mut words = vec![0u64; PORT_WORDS];
    let half = PORT_WORDS / 2;
    crate::proc::ports_in_use(|tcp, port| {
        let from = if tcp { half } else { 0 };
        match port {
            Some(port) => words[from + usize::from(port) / 64] |= 1 << (port % 64),
            None => words[from..from + half].fill(u64::MAX),
        }
    })?;
    let by_flow = u32::from(crate::discover::translates());
    if !holds() {
        return Ok(false);
    }
    for (to, from) in views.ports_used[0].word.iter().zip(words) {
        to.store(from, Relaxed);
    }
    let guard = &views.guard[0];
    guard.by_flow.store(by_flow, Relaxed);
    fence(Release);
    guard.listed.store(begun, Relaxed);
    Ok(true)
}
