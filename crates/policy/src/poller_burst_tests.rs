//! Bursts for a program that shares the CPU with the poller, and keeps up with them on average or does not.

use super::*;
use crate::switch::Evidence;

/// What a poller does with bursts for one program on its CPU that keeps up with them on average.
#[derive(Clone, Copy, Debug, Default)]
struct Bursts {
    shed: u64,
    overflows: u64,
    /// Turns that found nothing.
    empty: u64,
    /// When the source was given back.
    released: Option<Nanos>,
}

/// Bursts of `burst` frames at `pps` for 200 ms; the program takes `service` ns for a packet, its socket holds `places`, and the gate
/// leaves the last ones of them. `others`: somebody is looked for.
fn bursts(pps: u64, burst: u64, service: Nanos, places: u64, others: bool) -> Bursts {
    const RING: u64 = 256;
    const STEP: Nanos = 1000;
    let config =
        Config { timing: crate::host::DEFAULTS.timing(), ..Config::for_host(&crate::host::DEFAULTS) };
    let mut p = Poller::new(config, 0);
    let mut switch = ModeSwitch::new(config.timing);
    assert!(switch.overloaded(0, Evidence::FullPolls));
    p.taken_over(0, 0, switch);
    p.look.first_is_over(0);
    let every = burst * 1_000_000_000 / pps;
    // What the gate holds for others after a flood.
    let last = u64::from(crate::fair::LAST);
    let (mut ring, mut queue, mut work, mut now, mut next) = (0, 0_u64, 0, 0, every);
    let mut seen = Bursts::default();
    let mut arrive = |now: Nanos, ring: &mut u64| {
        let mut lost = 0;
        while next <= now {
            next += every;
            lost += (*ring + burst).saturating_sub(RING);
            *ring = (*ring + burst).min(RING);
        }
        lost
    };
    let level = |queue: u64| (queue * 1000 / places) as Permille;
    while now < 200 * MILLISECOND {
        if others {
            p.look.saw(now, 0, 1, 0, 1);
        }
        p.level(now, 0, level(queue), Some(Room::alone((places - queue) as u32)));
        p.levels_read();
        match p.next(now) {
            Action::Turn { source, packets } => {
                let inhibited = p.is_inhibited(0);
                let frames = ring.min(u64::from(packets));
                let fits = if inhibited && !p.feeds(now, source) {
                    0
                } else {
                    places - last - queue.min(places - last)
                };
                let pass = frames.min(fits);
                (ring, queue) = (ring - frames, queue + pass);
                let to_full = if inhibited { frames } else { frames - pass } as u32;
                let spent = STEP * (2 + pass / 2 + (frames - pass) / 4);
                now += spent;
                seen.overflows += arrive(now, &mut ring);
                // Before that nobody knows the rate.
                seen.shed += if now > config.timing.hold_min { frames - pass } else { 0 };
                let (packets, known, shed) = (pass as u32, pass as u32, (frames - pass) as u32);
                let frames = frames as u32;
                seen.empty += u64::from(frames == 0);
                let drained = ring == 0;
                p.turned(
                    now,
                    source,
                    Turned { packets, frames, known, shed, to_full, spent, drained, ..Turned::default() },
                );
            }
            Action::Sleep { until, wake } => {
                assert!(until > now);
                while now < until {
                    now += STEP;
                    seen.overflows += arrive(now, &mut ring);
                    work = if queue > 0 { work + STEP } else { 0 };
                    let read = (work / service).min(queue);
                    (queue, work) = (queue - read, work - read * service);
                    if wake.level && p.is_inhibited(0) && level(queue) <= 250 {
                        break;
                    }
                    if wake.idle && queue == 0 {
                        p.cpu_idle(now);
                        break;
                    }
                }
            }
            Action::Release { .. } => {
                seen.released = Some(now);
                break;
            }
            Action::Park => panic!("it is polled"),
        }
    }
    seen
}

/// P7: a frame of a veth with XDP takes a page, so a socket of the default size holds 48 of them, fewer than a burst brings.
#[test]
fn a_burst_waits_in_the_ring_for_a_program_that_keeps_up() {
    for others in [false, true] {
        // Where others are looked for, twice what the socket holds is too much to wait for.
        for (pps, burst) in
            [(20_000, 38), (20_000, 50), (75_000, 50), (75_000, 64), (150_000, if others { 60 } else { 120 })]
        {
            let seen = bursts(pps, burst, 1500, 48, others);
            assert!(seen.empty * 40_000 < seen.released.unwrap_or(200 * MILLISECOND), "it spins: {seen:?}");
            assert!(
                seen.overflows == 0
                    && seen.shed <= burst
                    && seen.released.is_some_and(|at| at < 60 * MILLISECOND),
                "{pps}/s in bursts of {burst}, others {others}: {seen:?}"
            );
        }
    }
}

/// What the program cannot read is no calm, whether it waits in the ring or is shed.
#[test]
fn bursts_that_are_too_much_are_not_given_back() {
    for others in [false, true] {
        for (pps, burst) in [(900_000, 50), (2_000_000, 64), (700_000, 1)] {
            let seen = bursts(pps, burst, 1500, 48, others);
            assert!(
                seen.released.is_none() && seen.overflows + seen.shed > 0,
                "{pps}/s in {burst}: {seen:?}"
            );
        }
    }
}

/// A socket that one source has filled keeps nothing of another one waiting.
#[test]
fn a_wait_is_for_the_source_that_has_filled_the_socket() {
    let config = Config::for_host(&crate::host::DEFAULTS);
    let mut p = Poller::new(config, 0);
    for source in 0..2 {
        let mut switch = ModeSwitch::new(config.timing);
        assert!(switch.overloaded(0, Evidence::FullPolls));
        p.taken_over(0, source, switch);
    }
    let turn =
        |packets| Turned { packets, frames: packets, known: packets, drained: true, ..Turned::default() };
    for (source, packets) in [(0, 2), (1, 30)] {
        if let Some(state) = p.sources[source].as_mut() {
            state.fits = true;
        }
        p.turned(1000, source, turn(packets));
    }
    assert!(p.level(2000, 0, 800, None));
    let blocked = |p: &Poller| [0, 1].map(|i| p.sources[i].as_ref().is_some_and(|s| p.blocked(2000, s)));
    assert_eq!(blocked(&p), [false, true]);
    assert!(p.level(2000, 0, 200, None), "it has read");
    assert_eq!(blocked(&p), [false, false]);
}

/// A program that hangs is enabled by each timeout, and inhibited again by the next packet for anybody: that begins no calm anew.
#[test]
fn a_program_that_hangs_keeps_no_source() {
    let config = Config::for_host(&crate::host::DEFAULTS);
    let mut p = Poller::new(config, 0);
    let mut switch = ModeSwitch::new(config.timing);
    assert!(switch.overloaded(0, Evidence::FullPolls));
    p.taken_over(0, 0, switch);
    let released = (1..200).map(|n| n * MILLISECOND / 2).find(|now| {
        p.turned(*now, 0, Turned { packets: 1, frames: 1, drained: true, ..Turned::default() });
        p.level(*now, 0, 900, None);
        p.levels_read();
        matches!(p.next(*now), Action::Release { .. })
    });
    assert!(released.is_some_and(|at| at < 2 * config.timing.hold_min), "{released:?}");
    assert!(p.counts.timeouts > 0, "it hangs for longer than a timeout");
}
