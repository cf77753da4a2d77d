//! Programs that count what they read by the millisecond, so that nobody has to ask them while the wire is busy.

use std::net::Ipv4Addr;

use kern::wire::netns::Namespace;
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::Result;
use crate::consumer::pinned;
use crate::program::{Program, locate};
use crate::rig::Rig;
use crate::trial::Bench;

/// CLOCK_MONOTONIC in ns.
pub(crate) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// Starts a udp-sink with its own count by the millisecond in `ns`; `work` is rounds of work per datagram.
///
/// # Errors
/// If it does not start.
pub(crate) fn start(
    bench: &Bench,
    rig: &Rig<'_>,
    ns: &Namespace,
    to: (Ipv4Addr, u16),
    work: u64,
) -> Result<Program> {
    let mut args = pinned(rig.cpus);
    args.extend(["--bind".into(), format!("{}:{}", to.0, to.1)]);
    args.extend(["--work-loops".into(), work.to_string(), "--series".into()]);
    Program::start(&locate("udp-sink", bench.hog.parent())?, ns, &args)
}

/// Datagrams that a sink read from `from` to `to`, CLOCK_MONOTONIC ns: to a millisecond.
///
/// # Errors
/// If it does not answer.
pub(crate) fn read_between(sink: &mut Program, from: u64, to: u64) -> Result<u64> {
    Ok(between(&sink.ask("series")?, from, to))
}

fn between(answer: &Value, from: u64, to: u64) -> u64 {
    let first = answer["first_ns"].as_u64().unwrap_or(0);
    let per_ms = answer["per_ms"].as_array().into_iter().flatten().filter_map(Value::as_u64);
    let begun = |ms: usize| first + ms as u64 * 1_000_000;
    per_ms.enumerate().filter(|(ms, _)| (from..to).contains(&begun(*ms))).map(|(_, n)| n).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_read_in_the_window_counts() {
        let answer = json!({"first_ns": 5_000_000, "per_ms": [1, 2, 4, 8]});
        assert_eq!(between(&answer, 0, u64::MAX), 15);
        assert_eq!(between(&answer, 6_000_000, 8_000_000), 6);
        assert_eq!(between(&answer, 9_000_000, 10_000_000), 0);
        assert_eq!(between(&json!({}), 0, u64::MAX), 0);
        assert!(now_ns() > 0);
    }
}
