use super::*;
use crate::document::{Arm, Backend, Role};
use crate::measure::PairedRate;

fn trial(goodput: f64, void: Option<&str>) -> Trial {
    Trial {
        offered_pps: 100.0,
        sent: 200,
        delivered: goodput as u64,
        goodput_pps: goodput,
        drops: Drops::from([("ring".into(), 200 - goodput as u64)]),
        void: void.map(str::to_string),
        ..Trial::default()
    }
}

#[test]
fn counts_are_sums_and_rates_are_medians() {
    let point = Point::fold(vec![trial(60.0, None), trial(90.0, None), trial(70.0, None)], Some(Mode::Poll));
    assert_eq!((point.sent, point.delivered, point.drops["ring"]), (600, 220, 380));
    assert_eq!(point.goodput_pps, 70.0);
    assert_eq!(point.spread.map(|spread| (spread.min, spread.max)), Some((60.0, 90.0)));
    assert_eq!((point.void.clone(), point.mode), (None, Some(Mode::Poll)));
    assert_eq!(point.latency_us, None);
}

#[test]
fn a_void_trial_does_not_count_but_stays() {
    let point = Point::fold(vec![trial(60.0, None), trial(5.0, Some("busy")), trial(70.0, None)], None);
    assert_eq!(
        (point.sent, point.goodput_pps, point.void.is_none(), point.trials.len()),
        (400, 65.0, true, 3)
    );
}

#[test]
fn a_point_is_void_when_most_of_it_is() {
    let point =
        Point::fold(vec![trial(60.0, None), trial(5.0, Some("busy")), trial(5.0, Some("busy"))], None);
    assert_eq!(point.void.as_deref(), Some("2 of 3 trials void: busy"));
    assert_eq!(point.goodput_pps, 5.0);
    assert_eq!(Point::fold(Vec::new(), None).void.as_deref(), Some("no trial"));
}

#[test]
fn finishing_fills_in_and_is_stable() {
    let mut document = Document::new("livelock-udp", Backend::Sim);
    let points = |hogs, top: f64| {
        [1.0, 2.0, 20.0].map(|n| Point {
            offered_pps: n * 1000.0,
            sent: (n * 1000.0) as u64,
            delivered: (n * 1000.0).min(top) as u64,
            drops: Drops::from([("ring".into(), (n * 1000.0 - top).max(0.0) as u64)]),
            goodput_pps: (n * 1000.0).min(top),
            hogs,
            ..Point::default()
        })
    };
    let arm = Arm {
        name: "stock".into(),
        role: Role::Stock,
        points: points(4, 500.0).into_iter().chain(points(0, 2000.0)).collect(),
        ..Arm::default()
    };
    document.arms.push(arm);
    let pairs = vec![Pair { goodput_ratio: 1.0, p50_ratio: Some(2.0), ..Pair::default() }; 6];
    document.pairs.push(PairedRate { pairs, ..PairedRate::default() });
    document.finish(&[]);
    assert_eq!(document.base.as_ref().map(|base| base.mlfrr_pps), Some(2000.0));
    let arm = &document.arms[0];
    assert_eq!(arm.points.iter().map(|point| point.hogs).collect::<Vec<u32>>(), [0, 0, 0, 4, 4, 4]);
    assert_eq!(arm.points[2].multiple, Some(10.0));
    assert_eq!(arm.summary.flatness["10"], 1.0);
    assert_eq!(arm.with_hogs["4"].peak_pps, Some(500.0));
    assert_eq!(document.pairs[0].p50_ratio.map(|interval| interval.high), Some(2.0));
    assert_eq!(document.pairs[0].p99_ratio, None);
    let once = document.clone();
    document.finish(&[]);
    assert_eq!(document, once);
}
