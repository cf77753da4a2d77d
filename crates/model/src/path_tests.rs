//! The path against closed forms, the lab's results and the papers.

use super::*;
use crate::share::weight;
use proptest::prelude::*;

/// One CPU that receives and runs the program; costs in microseconds.
fn shared(fixed: f64, receive: f64, program: f64) -> Path {
    Path::of(Line { fixed, per_packet: receive * 1e-6 }, Line { fixed: 0.0, per_packet: program * 1e-6 })
}

fn close(a: f64, b: f64) {
    assert!((a / b - 1.0).abs() < 1e-6, "{a} {b}");
}

const HOG: Rival = Rival { weight: 1024.0, demand: 1.0 };

#[test]
fn one_cpu_is_full_where_its_costs_add_up() {
    let path = shared(0.2, 0.5, 1.5);
    close(path.rate().mlfrr, 0.8 / 2e-6);
    assert_eq!(path.rate().limit, Limit::Cpu);
    // A path without a program: all that it costs is softirq.
    let router = Path { program: Line::default(), ..shared(0.1, 1.2, 0.0) };
    close(router.rate().mlfrr, 0.9 / 1.2e-6);
    assert_eq!(router.class(), Class::Realizable);
}

#[test]
fn the_curve_of_the_shared_cpu_is_the_paper_s() {
    // Figure 6-1 with screend in the paper's own costs: it peaks at 1/(c_d + c_f) and is 0 at 1/c_d.
    let path = shared(0.0, 166.7, 333.3);
    let Rate { mlfrr, .. } = path.rate();
    close(mlfrr, 2000.0);
    assert_eq!(path.class(), Class::Livelock);
    let livelock = path.livelock().unwrap();
    assert!((livelock / 6000.0 - 1.0).abs() < 0.001, "{livelock}");
    close(path.delivered(1999.0), 1999.0);
    assert!(path.delivered(4000.0) < 1.01 * 1000.0 && path.delivered(4000.0) > 0.99 * 1000.0);
    assert_eq!(path.delivered(6100.0), 0.0);
}

#[test]
fn a_guard_keeps_what_the_path_can_carry() {
    let path = shared(0.2, 0.5, 1.5);
    let guarded = Path { guard: Some(Guard { budget: 0.8 }), ..path.clone() };
    assert_eq!((guarded.class(), guarded.livelock()), (Class::Realizable, None));
    // Full turns: what polls and wakes cost at a low rate is gone.
    close(guarded.rate().mlfrr, 1.0 / 2e-6);
    close(guarded.delivered(1e7), guarded.rate().mlfrr);
    assert!(path.delivered(1e7) < 1.0);
}

#[test]
fn a_budget_limits_only_against_rivals() {
    let guard = Some(Guard { budget: 0.25 });
    let router = Path { program: Line::default(), guard, ..shared(0.0, 1.0, 0.0) };
    close(router.rate().mlfrr, 1e6);
    assert_eq!(router.rate().limit, Limit::Cpu);
    let contended = Path { rivals: vec![HOG], ..router };
    close(contended.rate().mlfrr, 0.25e6);
    assert_eq!(contended.rate().limit, Limit::Budget);
    let stock = Path { guard: None, ..contended };
    close(stock.rate().mlfrr, 1e6);
}

#[test]
fn rivals_take_their_part_of_what_softirq_leaves() {
    let path = Path { rivals: vec![HOG], ..shared(0.0, 0.5, 1.5) };
    // c_p R = (1 - c_r R) / 2.
    close(path.rate().mlfrr, 0.5 / 1.75e-6);
    let nice = Path { weight: weight(-10), ..path.clone() };
    assert!(nice.rate().mlfrr > 1.6 * path.rate().mlfrr);
    // A thread that receives is one of those who share.
    let router = Path { program: Line::default(), threaded: true, ..path };
    close(router.rate().mlfrr, 0.5 / 0.5e-6);
}

#[test]
fn apart_the_slower_of_two_cpus_limits() {
    let path = Path { together: false, ..shared(0.0, 0.5, 1.5) };
    close(path.rate().mlfrr, 1.0 / 1.5e-6);
    assert_eq!((path.rate().limit, path.class()), (Limit::ProgramCpu, Class::Realizable));
    let two = Path { program_cpus: 4.0, ..path.clone() };
    close(two.rate().mlfrr, 1.0 / 0.5e-6);
    assert_eq!(two.rate().limit, Limit::Cpu);
}

#[test]
fn queues_hold_for_as_long_as_nobody_empties_them() {
    let base = shared(0.0, 0.5, 1.5);
    let ring = Path { ring: Some(256.0), delay: 4e-3, ..base.clone() };
    close(ring.rate().mlfrr, 64_000.0);
    assert_eq!(ring.rate().limit, Limit::Ring);
    let socket = Path { holds: Some(200.0), off: 4e-3, rivals: vec![HOG], ..base };
    close(socket.rate().mlfrr, 50_000.0);
    assert_eq!(socket.rate().limit, Limit::Socket);
    let more = Path { sockets: 2.0, ..socket.clone() };
    close(more.rate().mlfrr, 100_000.0);
    let guarded = Path { guard: Some(Guard { budget: 0.8 }), ring: Some(256.0), ..socket };
    close(guarded.rate().mlfrr, 456.0 / 4e-3);
    let link = Path { link: Some(1000.0), ..guarded };
    assert_eq!(link.rate(), Rate { mlfrr: 1000.0, limit: Limit::Link });
}

#[test]
fn a_small_queue_costs_the_time_away_once_for_each_filling() {
    // 124 packets, read in 0.25 ms, then 0.2 ms away: 1.61 us more per packet.
    let path = Path { holds: Some(124.0), away: 0.2e-3, ..shared(0.0, 0.5, 1.5) };
    close(path.rate().mlfrr, 1.0 / (2e-6 + 0.2e-3 / 124.0));
    let four = Path { sockets: 4.0, ..path.clone() };
    close(four.rate().mlfrr, 1.0 / (2e-6 + 0.2e-3 / 496.0));
    let router = Path { program: Line::default(), ..path };
    close(router.rate().mlfrr, 1.0 / 0.5e-6);
}

#[test]
fn sensitivity_is_minus_the_square_of_the_rate() {
    // MR-40: dMLFRR/dc = -MLFRR^2.
    let path = shared(0.0, 0.5, 1.5);
    let mlfrr = path.rate().mlfrr;
    assert!((path.sensitivity() / -(mlfrr * mlfrr) - 1.0).abs() < 1e-4);
    let socket = Path { holds: Some(10.0), off: 4e-3, ..path };
    assert_eq!(socket.sensitivity(), 0.0);
}

#[test]
fn a_path_without_cost_has_no_limit() {
    let path = Path { program: Line::default(), ..shared(0.0, 0.0, 0.0) };
    assert_eq!(path.rate().mlfrr, f64::INFINITY);
    assert_eq!(path.sensitivity(), 0.0);
}

proptest! {
    #[test]
    fn more_cost_never_raises_the_rate_and_a_guard_never_livelocks(
        fixed in 0.0..0.5f64, receive in 0.1..5.0f64, program in 0.1..50.0f64, hogs in 0usize..4, more in 1.0..3.0f64,
        offered in 1e3..1e8f64,
    ) {
        let path = Path { rivals: vec![HOG; hogs], ..shared(fixed, receive, program) };
        let dearer = Path { rivals: vec![HOG; hogs], ..shared(fixed, receive * more, program * more) };
        prop_assert!(dearer.rate().mlfrr <= path.rate().mlfrr * (1.0 + 1e-9));
        let alone = Path { rivals: Vec::new(), ..path.clone() };
        let guarded = Path { guard: Some(Guard { budget: 0.8 }), ..alone.clone() };
        prop_assert_eq!(guarded.class(), Class::Realizable);
        prop_assert!(guarded.delivered(offered) >= alone.delivered(offered) * (1.0 - 1e-9));
        prop_assert!(path.delivered(offered) <= offered * (1.0 + 1e-9));
        prop_assert!(path.livelock().is_none_or(|point| point >= path.rate().mlfrr));
    }
}
