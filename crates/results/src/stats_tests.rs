use proptest::prelude::*;

use super::*;
use crate::measure::Trial;

fn point(offered: f64, goodput: f64) -> Point {
    let (sent, delivered) = (offered as u64, goodput as u64);
    Point { offered_pps: offered, goodput_pps: goodput, sent, delivered, ..Point::default() }
}

fn arm(points: &[(f64, f64)]) -> Arm {
    Arm { points: points.iter().map(|&(x, y)| point(x, y)).collect(), ..Arm::default() }
}

const STOCK: [(f64, f64); 7] = [
    (100e3, 100e3),
    (200e3, 200e3),
    (400e3, 230e3),
    (800e3, 71e3),
    (1600e3, 18e3),
    (4000e3, 3e3),
    (6800e3, 1e3),
];
const FLAT: [(f64, f64); 5] =
    [(100e3, 100e3), (400e3, 399.9e3), (800e3, 410e3), (4000e3, 405e3), (6800e3, 398e3)];

#[test]
fn a_collapsing_curve_is_summarised() {
    let arm = arm(&STOCK);
    let summary = summarise(&arm, 0, Some(400e3));
    assert_eq!(summary.class, Some(Class::Livelock));
    assert_eq!(summary.mlfrr_pps, Some(200e3));
    assert_eq!(summary.peak_pps, Some(230e3));
    assert!((summary.flatness["10"] - 3.0 / 230.0).abs() < 1e-12);
    // 1 % of the peak is 2.3 k/s, between 3 k/s at 4 M/s and 1 k/s at 6.8 M/s.
    let livelock = summary.livelock_pps.unwrap();
    assert!((4000e3..6800e3).contains(&livelock), "{livelock}");
    let decline = summary.decline_pps.unwrap();
    assert!((400e3..800e3).contains(&decline), "{decline}");
}

#[test]
fn a_flat_curve_is_realizable() {
    let summary = summarise(&arm(&FLAT), 0, Some(400e3));
    assert_eq!(summary.class, Some(Class::Realizable));
    assert_eq!(summary.mlfrr_pps, Some(400e3));
    assert_eq!(summary.mlfrr_zero_pps, Some(100e3));
    assert_eq!((summary.livelock_pps, summary.decline_pps), (None, None));
    assert!((summary.plateau_pps.unwrap() - (410e3 + 405e3 + 398e3) / 3.0).abs() < 1.0);
}

#[test]
fn an_ideal_curve_delivers_all() {
    let points = [(1e3, 1e3), (1e4, 1e4), (1e5, 0.995e5)];
    assert_eq!(summarise(&arm(&points), 0, None).class, Some(Class::Ideal));
    // One lossless point says nothing about what comes after it.
    assert_eq!(summarise(&arm(&points[..1]), 0, None).class, None);
}

#[test]
fn the_livelock_point_is_drawn_on_to_zero() {
    let curve = arm(&[(100.0, 100.0), (200.0, 150.0), (300.0, 100.0), (400.0, 50.0)]);
    assert_eq!(livelock(&super::curve(&curve, 0)), Some(500.0));
    let level = arm(&[(100.0, 100.0), (200.0, 50.0), (300.0, 50.0)]);
    assert_eq!(livelock(&super::curve(&level, 0)), None);
}

#[test]
fn a_rate_is_read_off_by_the_stated_rule() {
    let mut arm = arm(&FLAT);
    let near = goodput_at(&arm, 0, 4100e3).unwrap();
    assert_eq!(near, Reading { offered_pps: near.offered_pps, goodput_pps: 405e3, interpolated: false });
    let middle = goodput_at(&arm, 0, 2400e3).unwrap();
    assert!(middle.interpolated && (middle.goodput_pps - 407.5e3).abs() < 1e-3, "{middle:?}");
    assert_eq!(goodput_at(&arm, 0, 8000e3), Err(Unread::NotMeasured));
    assert_eq!(goodput_at(&arm, 0, 50e3), Err(Unread::NotMeasured));
    assert_eq!(goodput_at(&arm, 1, 400e3), Err(Unread::NotMeasured));
    arm.points[3].void = Some("rate missed by 9 %".into());
    assert_eq!(goodput_at(&arm, 0, 4000e3), Err(Unread::Void("rate missed by 9 %".into())));
    // It missed 4 M/s by 9 %, so it is found beside it.
    arm.points[3].offered_pps = 3640e3;
    assert_eq!(goodput_at(&arm, 0, 4000e3), Err(Unread::Void("rate missed by 9 %".into())));
}

#[test]
fn the_maximum_is_the_unpaced_point() {
    let mut arm = arm(&FLAT);
    assert_eq!(goodput_at_max(&arm, 0), Err(Unread::NotMeasured));
    arm.points[4].wire_max = true;
    assert_eq!(goodput_at_max(&arm, 0).unwrap().goodput_pps, 398e3);
    arm.points[4].void = Some("busy".into());
    assert_eq!(goodput_at_max(&arm, 0), Err(Unread::Void("busy".into())));
}

#[test]
fn loss_is_that_of_the_median_trial() {
    let trial = |delivered| Trial { sent: 1000, delivered, ..Trial::default() };
    let mut point = Point { trials: vec![trial(1000), trial(999), trial(500)], ..point(10.0, 10.0) };
    assert!((loss(&point) - 0.001).abs() < 1e-12);
    assert_eq!(mlfrr(&[&point]), Some(10.0));
    assert_eq!(mlfrr_zero(&[&point]), None);
    point.trials[2].void = Some("busy".into());
    point.trials[1].delivered = 1000;
    assert_eq!(mlfrr_zero(&[&point]), Some(10.0));
}

#[test]
fn the_interval_of_twenty_pairs_is_the_6th_to_the_15th() {
    let values: Vec<f64> = (1..=20).rev().map(f64::from).collect();
    assert_eq!(median_interval(&values), Some(Interval { low: 6.0, median: 10.5, high: 15.0 }));
    let six: Vec<f64> = (1..=6).map(f64::from).collect();
    assert_eq!(median_interval(&six), Some(Interval { low: 1.0, median: 3.5, high: 6.0 }));
    assert_eq!(median_interval(&six[..5]), None);
}

#[test]
fn the_interval_covers_the_median_as_often_as_it_says() {
    // 4000 samples of 20 from a skewed distribution with median 1, by a fixed generator.
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 / (1_u64 << 53) as f64).max(1e-12)
    };
    let covered = (0..4000).filter(|_| {
        let sample: Vec<f64> = (0..20).map(|_| -next().log2()).collect();
        let interval = median_interval(&sample).unwrap();
        interval.low <= 1.0 && 1.0 <= interval.high
    });
    let share = covered.count() as f64 / 4000.0;
    assert!((0.945..0.975).contains(&share), "{share}");
}

#[test]
fn jain_knows_its_ends() {
    assert_eq!(jain(&[]), None);
    assert_eq!(jain(&[0.0, 0.0]), Some(1.0));
    assert_eq!(jain(&[5.0, 5.0, 5.0]), Some(1.0));
    assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
}

fn values() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.0..1e9_f64, 1..60)
}

fn curves() -> impl Strategy<Value = Vec<(f64, f64)>> {
    prop::collection::vec((1.0..1e7_f64, 0.0..1.0_f64), 1..30)
        .prop_map(|points| points.into_iter().map(|(x, share)| (x, x * share)).collect())
}

proptest! {
    #[test]
    fn quantiles_are_ordered_and_within(values in values(), a in 0.0..1.0_f64, b in 0.0..1.0_f64) {
        let (low, high) = (a.min(b), a.max(b));
        let spread = spread(&values).unwrap();
        let (q_low, q_high) = (quantile(&values, low).unwrap(), quantile(&values, high).unwrap());
        prop_assert!(spread.min <= q_low && q_low <= q_high && q_high <= spread.max);
    }

    #[test]
    fn the_median_does_not_know_the_order(mut values in values()) {
        let before = median(&values);
        values.reverse();
        prop_assert_eq!(median(&values), before);
    }

    #[test]
    fn an_interval_holds_its_median_and_scales(values in values(), factor in 0.1..10.0_f64) {
        if let Some(interval) = median_interval(&values) {
            prop_assert!(values.len() >= MIN_INTERVAL);
            prop_assert!(interval.low <= interval.median && interval.median <= interval.high);
            let scaled: Vec<f64> = values.iter().map(|value| value * factor).collect();
            prop_assert_eq!(median_interval(&scaled).unwrap().low, interval.low * factor);
        } else {
            prop_assert!(values.len() < MIN_INTERVAL);
        }
    }

    #[test]
    fn jain_is_between_1_over_n_and_1(shares in values()) {
        let index = jain(&shares).unwrap();
        prop_assert!(index <= 1.0 + 1e-12 && index >= 1.0 / shares.len() as f64 - 1e-12);
    }

    #[test]
    fn readings_stay_between_their_neighbours(points in curves(), rate in 1.0..1e7_f64) {
        let arm = arm(&points);
        if let Ok(reading) = goodput_at(&arm, 0, rate) {
            let all = spread(&points.iter().map(|&(_, y)| y).collect::<Vec<f64>>()).unwrap();
            let slack = 1e-9 * all.max;
            prop_assert!(reading.goodput_pps >= all.min - slack && reading.goodput_pps <= all.max + slack);
        }
    }

    #[test]
    fn summaries_are_consistent(points in curves()) {
        let arm = arm(&points);
        let summary = summarise(&arm, 0, Some(1e5));
        let peak = summary.peak_pps.unwrap();
        prop_assert!(points.iter().all(|&(_, y)| y <= peak));
        for flatness in summary.flatness.values() {
            prop_assert!((0.0..=1.0 + 1e-9).contains(flatness));
        }
        if let Some(rate) = summary.livelock_pps {
            prop_assert_eq!(summary.class, Some(Class::Livelock));
            prop_assert!(rate.is_finite() && rate > 0.0);
        }
        if let (Some(zero), Some(mlfrr)) = (summary.mlfrr_zero_pps, summary.mlfrr_pps) {
            prop_assert!(zero <= mlfrr);
        }
        // Twice the rates and twice the goodput is the same curve in other units.
        let twice: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (2.0 * x, 2.0 * y)).collect();
prop_assert_eq!(summarise(&super::tests::arm(&twice), 0, Some(2e5)).peak_pps, Some(2.0 * peak));
    }
}

#[test]
fn the_thresholds_are_where_they_are_stated() {
    let ends_at = |share: f64| arm(&[(100e3, 100e3), (400e3, 400e3), (4000e3, 400e3 * share)]);
    let of = |share| summarise(&ends_at(share), 0, None);
    assert_eq!(of(0.76).class, Some(Class::Realizable));
    assert_eq!(of(0.74).class, Some(Class::Livelock));
    assert_eq!(of(0.96).decline_pps, None);
    assert!(of(0.94).decline_pps.is_some());
    let loses = |share: f64| arm(&[(100e3, 100e3), (1000e3, 1000e3 * (1.0 - share))]);
    assert_eq!(summarise(&loses(0.009), 0, None).class, Some(Class::Ideal));
    assert_ne!(summarise(&loses(0.011), 0, None).class, Some(Class::Ideal));
    assert_eq!(summarise(&loses(0.001), 0, None).mlfrr_pps, Some(1000e3));
    assert_eq!(summarise(&loses(0.0011), 0, None).mlfrr_pps, Some(100e3));
}
