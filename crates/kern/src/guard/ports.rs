//! Which ports sockets have, for the gate: what no socket has may be nobody's.

use std::sync::atomic::{Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

use super::{PORT_WORDS, Views};
use crate::error::Result;
use crate::proc::ports_in_use;

/// Lists the ports that UDP sockets of this namespace have, or TCP sockets, as of `begun` (in ticks of the gate, not 0, and not later
/// than the first socket was looked for); false if at its end it does not count, by `holds`. For its cost see [`ports_in_use`].
///
/// What has a port by an older list keeps it until the new one is whole. A socket that came after the list was begun is known to
/// BPF from what it sends or from its bind; a raw one of either protocol from the next list of either.
///
/// # Errors
/// If the kernel's lists cannot be read; then the last one holds on.
pub fn list(views: &Views, tcp: bool, begun: u32, holds: impl Fn() -> bool) -> Result<bool> {
    const HALF: usize = PORT_WORDS / 2;
    let mut words = [vec![0u64; HALF], vec![0u64; HALF]];
    ports_in_use(tcp, |tcp, port| {
        let words = &mut words[usize::from(tcp)];
        match port {
            Some(port) => words[usize::from(port) / 64] |= 1 << (port % 64),
            None => words.fill(u64::MAX),
        }
    })?;
    if !holds() {
        return Ok(false);
    }
    let to = &views.ports_used[0].word;
    for (list, words) in words.into_iter().enumerate() {
        let to = &to[list * HALF..][..HALF];
        for (to, from) in to.iter().zip(words) {
            // Of the other protocol only raw sockets were looked for.
            let keep = if list == usize::from(tcp) { 0 } else { to.load(Relaxed) };
            to.store(from | keep, Relaxed);
        }
    }
    let guard = &views.guard[0];
    fence(Release);
    let listed = &guard.listed[usize::from(tcp)];
    listed.store(begun, Relaxed);
    fence(SeqCst);
    // This thread may have stood still since it was asked.
    if !holds() {
        listed.store(0, Relaxed);
        return Ok(false);
    }
    Ok(true)
}
