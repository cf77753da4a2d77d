//! What the probes measured, as text: waiting times, and drops by the kernel's own reasons.

use super::view::micros;
use crate::out::{grouped, shown, wrap};
use see::Snapshot;
use see::model::{Delay, Probes, Waited};
use std::collections::BTreeMap;

/// Reasons that are told, those with the most packets.
const REASONS: usize = 16;
/// Column at which a list begins.
const INDENT: usize = 11;

/// From when to when.
fn what(delay: Delay) -> &'static str {
    match delay {
        Delay::Softirq => "raised until it runs",
        Delay::Backlog => "queued for a CPU until handed up",
        Delay::Stack => "handed up until in its socket",
        Delay::Socket => "until its program has it",
        Delay::Whole => "stack and socket",
        Delay::Tcp => "handed up until read to its end",
        Delay::Wakeup => "its reader woken until it runs",
    }
}

/// Headings of [`row`].
pub fn head() -> String {
    format!("{:<9}{:>9}{:>9}{:>9}{:>9}  {}", "waits", "samples", "p50", "p99", "max", "from when to when")
}

/// One kind of waiting.
pub fn row(w: &Waited) -> String {
    let [p50, p99, max] = [w.p50_us, w.p99_us, w.max_us].map(micros);
    format!("{:<9}{:>9}{p50:>9}{p99:>9}{max:>9}  {}", w.of.name(), grouped(w.samples), what(w.of))
}

/// `SOCKET_RCVBUFF 1 200, NO_SOCKET 3`, the largest first.
pub fn reasons(drops: &BTreeMap<String, u64>) -> String {
    let mut all: Vec<(&String, &u64)> = drops.iter().collect();
    all.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let more = all.len().saturating_sub(REASONS);
    let one = |(name, n): &(&String, &u64)| format!("{} {}", shown(name), grouped(**n));
    let mut parts: Vec<String> = all.iter().take(REASONS).map(one).collect();
    if more > 0 {
        parts.push(format!("{more} more"));
    }
    if parts.is_empty() { "nothing".into() } else { parts.join(", ") }
}

/// Lines behind the labels `dropped`, `unplaced` and `not seen`; the last two only where there is something.
pub fn lists(p: &Probes) -> Vec<(&'static str, String)> {
    let mut lines = vec![("dropped", reasons(&p.drops))];
    if !p.unplaced.is_empty() {
        lines.push(("", format!("in this network namespace or another one: {}", reasons(&p.unplaced))));
    }
    for (n, what) in [
        (p.lost, "packets not followed: too many on the way"),
        (p.missed, "runs of probes left out by the kernel"),
    ] {
        if n > 0 {
            lines.push(("", format!("{} {what}", grouped(n))));
        }
    }
    lines
}

/// The block of the table; empty without probes.
pub fn table(s: &Snapshot) -> String {
    let Some(p) = &s.probes else { return String::new() };
    let mut text = format!("{}\n", head());
    if p.waits.is_empty() {
        text += "no packet was followed in this interval\n";
    }
    p.waits.iter().for_each(|w| text += &format!("{}\n", row(w)));
    for (label, what) in lists(p) {
        text += &format!("{label:<INDENT$}{}\n", wrap(&what, INDENT));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_has_what_was_measured_in_80_columns() {
        let wait = |of, samples| Waited {
            of,
            samples,
            p50_us: 3.4,
            p99_us: 51_234.0,
            max_us: 2e7,
            ..Default::default()
        };
        let probes = Probes {
            waits: vec![wait(Delay::Softirq, 9), wait(Delay::Wakeup, 123_456)],
            drops: (0..20).map(|i| (format!("REASON_{i:02}"), 1000 + i)).collect(),
            lost: 3,
            ..Probes::default()
        };
        let text = table(&Snapshot { probes: Some(probes), ..Snapshot::default() });
        assert!(
            text.contains("123 456     3 us 51.23 ms  20.00 s  its reader woken until it runs"),
            "{text}"
        );
        assert!(
            text.contains("dropped    REASON_19 1 019, REASON_18 1 018,") && !text.contains("REASON_03"),
            "{text}"
        );
        assert!(text.contains("3 packets not followed") && !text.contains("left out"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert_eq!(table(&Snapshot::default()), "");
        let empty = table(&Snapshot { probes: Some(Probes::default()), ..Snapshot::default() });
        assert!(empty.contains("no packet was followed") && empty.contains("dropped    nothing"), "{empty}");
    }
}
