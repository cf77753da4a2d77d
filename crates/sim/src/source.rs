//! When packets arrive. Gaps are kept in 2^-16 ns, so that the mean rate is exact over any run.

use crate::engine::{Nanos, Rng, SEC};
use crate::settings::{Share, Time, settings};
use std::sync::Arc;

const FRACTION: u32 = 16;
/// Most packets that [`Pattern::gather`] sends back to back: the lab's load source has as many.
const GATHERED_MAX: u128 = 64;

settings! {
    /// How one source sends; the mean rate comes from the sweep.
    pub struct Pattern {
        /// part of each gap that is exponential: 0 % is constant, 100 % Poisson
        jitter: Share = Share(500), any;
        /// length of a burst at the higher rate; 0s for a steady source
        on: Time = Time(0), (Time(0)..=Time(10 * SEC));
        /// pause after a burst
        off: Time = Time(0), (Time(0)..=Time(10 * SEC));
        /// packets that are sent back to back
        burst: u32 = 1, (1..=1_000_000);
        /// packets due within this time are sent back to back, 64 at most; 0s: as burst says
        gather: Time = Time(0), (Time(0)..=Time(SEC));
        /// shortest gap of two packets on the wire
        frame_time: Time = Time(0), (Time(0)..=Time(SEC));
    }
}

impl Pattern {
    /// Packets that are sent back to back at this rate.
    pub fn burst_at(&self, rate: u64) -> u32 {
        if self.gather.0 == 0 {
            return self.burst;
        }
        let due = u128::from(rate) * u128::from(self.gather.0) / u128::from(SEC);
        due.clamp(1, GATHERED_MAX) as u32
    }
}

/// A stream of arrivals.
#[derive(Clone, Debug)]
pub struct Source {
    pattern: Pattern,
    rng: Rng,
    /// Mean gap of two bursts while sending, in 2^-16 ns.
    gap: u64,
    /// Sending time so far, in 2^-16 ns.
    at: u128,
    last: Option<Nanos>,
    left_of_burst: u32,
    first: bool,
    replay: Option<Replay>,
}

impl Source {
    /// A source of `rate` packets/s on average, at least 1.
    pub fn new(mut pattern: Pattern, rate: u64, rng: Rng) -> Self {
        pattern.burst = pattern.burst_at(rate);
        // While it is on, an on/off source sends faster, so that the mean is as asked.
        let (on, off) = (u128::from(pattern.on.0), u128::from(pattern.off.0));
        let one = u128::from(SEC) << FRACTION;
        let mean = one * u128::from(pattern.burst) / u128::from(rate.max(1));
        let gap = if on > 0 { mean * on / (on + off) } else { mean };
        Self {
            pattern,
            rng,
            gap: gap as u64,
            at: 0,
            last: None,
            left_of_burst: 0,
            first: false,
            replay: None,
        }
    }

    /// A source that replays `trace` over and over, stretched to `rate` packets/s on average. Of `pattern` only
    /// `frame_time` counts, in proportion to the bytes of a frame.
    pub fn replay(pattern: &Pattern, rate: u64, trace: Arc<Trace>) -> Self {
        let replay = Replay {
            period: trace.period(),
            trace,
            rate: u128::from(rate.max(1)),
            next: 0,
            round: 0,
            last: 0,
        };
        let pattern = Pattern { frame_time: pattern.frame_time, ..Pattern::default() };
        Self { replay: Some(replay), ..Self::new(pattern, rate, Rng::new(0)) }
    }

    /// True if the packet that [`Self::arrival`] gave last begins a burst.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// The time of the next packet.
    #[inline]
    pub fn arrival(&mut self) -> Nanos {
        if let Some(replay) = &mut self.replay {
            let (wanted, bytes, first) = replay.arrival();
            self.first = first;
            let shortest = u64::from(FRAME_LEAST + FRAME_EXTRA);
            let frame = self.pattern.frame_time.0 * u64::from(bytes + FRAME_EXTRA) / shortest;
            return self.sent(wanted, frame);
        }
        self.first = self.left_of_burst == 0;
        if self.left_of_burst == 0 {
            self.left_of_burst = self.pattern.burst;
            let random = (u128::from(self.gap) * u128::from(self.pattern.jitter.0) / 1000) as u64;
            let gap = if random > 0 { self.gap - random + self.rng.exponential(random) } else { self.gap };
            self.at += u128::from(gap);
        }
        self.left_of_burst -= 1;
        let sending = (self.at >> FRACTION) as Nanos;
        let (on, off) = (self.pattern.on.0, self.pattern.off.0);
        let wanted = if on > 0 && off > 0 { sending + sending / on * off } else { sending };
        self.sent(wanted, self.pattern.frame_time.0)
    }

    /// When a frame is there that takes `frame` ns on the wire: the wire may be busy with the one before.
    #[inline]
    fn sent(&mut self, wanted: Nanos, frame: Nanos) -> Nanos {
        let time = self.last.map_or(wanted, |last| wanted.max(last + frame));
        self.last = Some(time);
        time
    }
}

/// Most frames of a trace.
pub const FRAMES_MAX: usize = 1_000_000;
/// Bytes of a frame that [`Pattern::frame_time`] is the time of: the shortest of Ethernet, without its checksum.
pub const FRAME_LEAST: u32 = 60;
/// Bytes that a frame takes on the wire beside its own: preamble, checksum, gap.
const FRAME_EXTRA: u32 = 24;

/// Arrivals as they were recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Time from the start, ns, never falling; bytes of the frame.
    frames: Vec<(Nanos, u32)>,
}

impl Trace {
    /// The trace of these frames: time from the start, ns, and bytes. `None` if it has no rate: fewer than two frames,
    /// more than [`FRAMES_MAX`], times that fall, or no time between the first and the last.
    pub fn new(frames: Vec<(Nanos, u32)>) -> Option<Self> {
        let rises = frames.windows(2).all(|pair| pair[0].0 <= pair[1].0);
        let takes_time = matches!((frames.first(), frames.last()), (Some(a), Some(b)) if a.0 < b.0);
        (rises && takes_time && frames.len() <= FRAMES_MAX).then_some(Self { frames })
    }

    /// Time from its first frame to the first one of its repetition: a mean gap after the last.
    fn period(&self) -> u128 {
        let spans = self.frames.len() as u128 - 1;
        let length = u128::from(self.frames[spans as usize].0 - self.frames[0].0);
        (length + length.div_ceil(spans)).max(1)
    }
}

/// Where a source is in its trace, which begins again when it is over.
#[derive(Clone, Debug)]
struct Replay {
    trace: Arc<Trace>,
    period: u128,
    /// Packets/s that are wanted.
    rate: u128,
    next: usize,
    round: u128,
    last: Nanos,
}

impl Replay {
    /// Time at the wanted rate, bytes, and whether more than a mean gap precedes.
    fn arrival(&mut self) -> (Nanos, u32, bool) {
        let frames = &self.trace.frames;
        let (time, bytes) = frames[self.next];
        let count = frames.len() as u128;
        let recorded = u128::from(time - frames[0].0) + self.round * self.period;
        // The trace's own rate is count / period; it is stretched to the one that is wanted.
        let at = (recorded * count * u128::from(SEC) / (self.period * self.rate)) as Nanos;
        let first = self.next == 0 || u128::from(at - self.last) * self.rate > u128::from(SEC);
        self.last = at;
        self.next += 1;
        if self.next == frames.len() {
            (self.next, self.round) = (0, self.round + 1);
        }
        (at, bytes, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_rate(pattern: Pattern, rate: u64) -> u64 {
        let mut source = Source::new(pattern, rate, Rng::new(1));
        let n = 400_000;
        let last = (0..n).map(|_| source.arrival()).last().unwrap_or(0);
        n * SEC / last
    }

    #[test]
    fn the_mean_rate_is_as_asked() {
        for jitter in [0, 250, 1000] {
            let steady = Pattern { jitter: Share(jitter), ..Pattern::default() };
            let bursts = Pattern { burst: 16, ..steady.clone() };
            let on_off = Pattern { on: Time(20_000_000), off: Time(5_000_000), ..steady.clone() };
            let gathers = Pattern { gather: Time(400_000), ..steady.clone() };
            for pattern in [steady, bursts, on_off, gathers] {
                let rate = mean_rate(pattern.clone(), 10_000);
                assert!(rate.abs_diff(10_000) < 100, "{rate} {pattern:?}");
            }
        }
    }

    #[test]
    fn the_wire_bounds_the_rate() {
        let pattern = Pattern { frame_time: Time(67_200), ..Pattern::default() };
        assert!(mean_rate(pattern, 20_000).abs_diff(14_880) <= 1);
    }

    #[test]
    fn an_on_off_source_is_silent_between() {
        let pattern =
            Pattern { jitter: Share(0), on: Time(1_000_000), off: Time(1_000_000), ..Pattern::default() };
        let mut source = Source::new(pattern, 10_000, Rng::new(1));
        let times: Vec<Nanos> = (0..100).map(|_| source.arrival()).collect();
        assert!(times.iter().all(|time| time % 2_000_000 <= 1_000_000), "{times:?}");
    }

    fn replay(frames: &[(Nanos, u32)], rate: u64, frame_time: Nanos) -> Vec<Nanos> {
        let trace = Trace::new(frames.to_vec()).map(Arc::new).unwrap();
        let pattern = Pattern { frame_time: Time(frame_time), ..Pattern::default() };
        let mut source = Source::replay(&pattern, rate, trace);
        (0..6).map(|_| source.arrival()).collect()
    }

    #[test]
    fn a_trace_is_replayed_at_any_rate() {
        // Three frames in 30 us: 100 000 packets/s.
        let frames = [(5_000, 60), (6_000, 60), (25_000, 60)];
        assert_eq!(replay(&frames, 100_000, 0), [0, 1_000, 20_000, 30_000, 31_000, 50_000]);
        assert_eq!(replay(&frames, 50_000, 0), [0, 2_000, 40_000, 60_000, 62_000, 100_000]);
    }

    #[test]
    fn the_bytes_of_a_trace_take_the_wire() {
        let frames = [(0, 60), (0, 144), (50_000, 60)];
        assert_eq!(replay(&frames, 40_000, 10_000)[..3], [0, 20_000, 50_000]);
    }

    #[test]
    fn a_trace_has_a_rate() {
        for frames in [vec![], vec![(1, 60)], vec![(1, 60), (1, 60)], vec![(2, 60), (1, 60)]] {
            assert_eq!(Trace::new(frames), None);
        }
    }
}
