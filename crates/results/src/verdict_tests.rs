use super::*;
use crate::document::Backend;
use crate::measure::Onset;

fn point(multiple: f64, goodput: f64, hogs: u32) -> Point {
    let (offered, sent) = (1000.0 * multiple, (1000.0 * multiple) as u64);
    let delivered = (goodput as u64).min(sent);
    Point {
        offered_pps: offered,
        multiple: Some(multiple),
        goodput_pps: goodput,
        sent,
        delivered,
        drops: Drops::from([("ring".into(), sent - delivered)]),
        wire_max: multiple == 17.0,
        hogs,
        ..Point::default()
    }
}

fn arm(name: &str, role: Role, goodput: [f64; 4]) -> Arm {
    let points = [1.0, 4.0, 10.0, 17.0].iter().zip(goodput).map(|(n, y)| point(*n, y, 0)).collect();
    Arm { name: name.into(), role, points, ..Arm::default() }
}

fn document() -> Document {
    let mut document = Document::new("livelock-udp", Backend::Kernel);
    document.arms = vec![
        arm("stock", Role::Stock, [1000.0, 300.0, 20.0, 10.0]),
        arm("threaded", Role::Alternative, [900.0, 800.0, 800.0, 700.0]),
        arm("no-op", Role::Control, [1000.0, 300.0, 20.0, 10.0]),
        arm("weir", Role::Weir, [1000.0, 1200.0, 1190.0, 1100.0]),
    ];
    document
}

fn find<'a>(verdicts: &'a [Verdict], id: &str, text: &str) -> &'a Verdict {
    let found = verdicts.iter().find(|verdict| verdict.id == id && verdict.claim.contains(text));
    found.unwrap_or_else(|| panic!("no {id} {text} in {verdicts:#?}"))
}

#[test]
fn a_good_run_holds() {
    let verdicts = judge(&document(), &[Id::P1, Id::P2, Id::P8, Id::P9, Id::NoOp, Id::Ledger]);
    assert!(verdicts.iter().all(|verdict| verdict.holds), "{verdicts:#?}");
    assert_eq!(find(&verdicts, "P1", "10x").value, Some(1190.0 / 1200.0));
    assert_eq!(find(&verdicts, "P2", "").value, Some(1.2));
    let lead = find(&verdicts, "P9", "");
    assert_eq!(lead.value, Some(1190.0 / 800.0));
    assert_eq!(lead.note.as_deref(), Some("over threaded at 10x"));
    assert_eq!(verdicts.len(), 7);
}

#[test]
fn each_claim_can_fall_short() {
    let mut document = document();
    document.arms[3] = arm("weir", Role::Weir, [1000.0, 1040.0, 790.0, 500.0]);
    document.arms[2] = arm("no-op", Role::Control, [1000.0, 1000.0, 990.0, 10.0]);
    for point in &mut document.arms[3].points {
        let ring = point.drops.remove("ring").unwrap_or(0);
        point.drops.insert("socket".into(), ring);
    }
    document.arms[0].points[0].unaccounted = -3;
    let verdicts = judge(&document, &Id::ALL);
    for id in Id::ALL {
        let claims: Vec<&Verdict> = verdicts.iter().filter(|verdict| verdict.id == id.name()).collect();
        assert!(!claims.is_empty(), "{}", id.name());
        assert!(claims.iter().all(|verdict| !verdict.holds), "{claims:#?}");
    }
    assert_eq!(find(&verdicts, "ledger", "").value, Some(3.0));
}

#[test]
fn a_ledger_is_not_taken_at_its_word() {
    let mut document = document();
    document.arms[1].points[2].delivered -= 7;
    let verdicts = judge(&document, &[]);
    assert_eq!(find(&verdicts, "ledger", "").value, Some(7.0));
}

#[test]
fn what_was_not_measured_is_left_out_unless_required() {
    let mut document = document();
    for arm in &mut document.arms {
        arm.points.truncate(2);
    }
    let verdicts = judge(&document, &[]);
    assert!(verdicts.iter().all(|verdict| verdict.id != "P1" && verdict.id != "P4"), "{verdicts:#?}");
    let required = judge(&document, &[Id::P1, Id::P7]);
    let ten = find(&required, "P1", "10x");
    assert_eq!((ten.value, ten.holds, ten.note.as_deref()), (None, false, Some("not measured")));
    assert!(!find(&required, "P7", "").holds);
}

#[test]
fn a_void_point_proves_nothing_and_is_shown() {
    let mut document = document();
    document.arms[3].points[2].void = Some("rate missed by 9 %".into());
    let verdicts = judge(&document, &[]);
    let ten = find(&verdicts, "P1", "10x");
    assert_eq!((ten.value, ten.holds), (None, false));
    assert_eq!(ten.note.as_deref(), Some("void: rate missed by 9 %"));
    assert!(!find(&verdicts, "P8", "").holds);
}

/// A run that was cut short: the point at 10 x is the peak because it is the only one.
#[test]
fn a_curve_of_too_few_rates_has_no_flatness() {
    let mut document = document();
    document.base = Some(crate::document::Base::given(1000.0));
    let ten = |document: &Document| find(&judge(document, &[]), "P1", "10x").clone();
    for void in [0, 1] {
        document.arms[3].points[void].void = Some("busy".into());
    }
    document.arms[3].points[3].void = Some("busy".into());
    let alone = ten(&document);
    assert_eq!((alone.value, alone.holds), (None, false));
    assert_eq!(crate::format::judged(&alone), "UNMEASURED");
    assert!(alone.note.as_deref().is_some_and(|note| note.starts_with("1 of the rates")), "{alone:?}");
    // Two more, but none below.
    document.arms[3].points[3].void = None;
    document.arms[3].points.push(point(25.0, 1000.0, 0));
    assert_eq!(ten(&document).value, None);
    document.arms[3].points[1].void = None;
    assert_eq!(ten(&document).value, Some(1190.0 / 1200.0));
}

#[test]
fn hogs_have_their_own_flatness() {
    let mut document = document();
    let with_hogs = [1.0, 4.0, 10.0].map(|n| point(n, if n > 5.0 { 300.0 } else { 600.0 }, 4));
    document.arms[3].points.extend(with_hogs);
    let verdicts = judge(&document, &[]);
    assert_eq!(find(&verdicts, "P1", "10x, 4 hogs").value, Some(0.5));
    assert!(find(&verdicts, "P1", "10x").holds);
    assert!(!verdicts.iter().any(|verdict| verdict.claim.contains("maximum, 4 hogs")));
}

#[test]
fn on_a_router_an_arm_that_starves_programs_is_no_choice() {
    let mut document = document();
    document.experiment = "livelock-router".into();
    document.arms[3].reserve = Some(0.2);
    let with_hog = |goodput, share| Point { user_of_alone: Some(share), ..point(10.0, goodput, 1) };
    document.arms[0].points.push(with_hog(2000.0, 0.05));
    document.arms[1].points.push(with_hog(500.0, 0.5));
    document.arms[2].points.push(with_hog(2000.0, 0.05));
    document.arms[3].points.push(with_hog(900.0, 0.21));
    let verdicts = judge(&document, &[]);
    let lead = find(&verdicts, "P9", "");
    assert_eq!(lead.value, Some(1190.0 / 800.0));
    assert!(lead.note.as_deref().is_some_and(|note| note.contains("1 left out")), "{lead:?}");
    let control = find(&verdicts, "no-op", "fails P3");
    assert_eq!((control.value, control.holds), (Some(0.05), true));
    assert!(leads(&document, 4.0).iter().all(|lead| !(lead.arm == "stock" && lead.hogs == 1)));
    document.experiment = "livelock-udp".into();
    assert_eq!(find(&judge(&document, &[]), "P9", "").value, Some(0.45));
}

#[test]
fn the_reserve_is_judged_at_the_worst_load() {
    let mut document = document();
    document.arms[3].reserve = Some(0.5);
    for (point, share) in document.arms[3].points.iter_mut().zip([0.9, 0.49, 0.475, 0.6]) {
        point.user_of_alone = Some(share);
    }
    let verdicts = judge(&document, &[]);
    let verdict = find(&verdicts, "P3", "50 %");
    assert!((verdict.value.unwrap() - 2.5).abs() < 1e-9 && !verdict.holds, "{verdict:?}");
    assert!(verdict.note.as_deref().unwrap().contains("at 10x"), "{verdict:?}");
}

#[test]
fn wasted_time_goes_before_wasted_packets() {
    let mut document = document();
    let point = &mut document.arms[3].points[2];
    point.drops = Drops::from([("ring".into(), 8710), ("socket".into(), 60), ("shed".into(), 40)]);
    // A ratio of packets is never called work or time.
    let packets = judge(&document, &[]);
    assert_eq!(find(&packets, "P8", "packets lost / handed up").value, Some(100.0 * (60.0 / 1250.0)));
    document.arms[3].points[2].wasted_share = Some(0.2);
    let time = judge(&document, &[]);
    assert!(!find(&time, "P8", "packet CPU time wasted").holds);
}

#[test]
fn pairs_are_judged_at_their_worst_rate() {
    let mut document = document();
    let rate = |percent, p99: f64| PairedRate {
        arm: "weir".into(),
        against: "stock".into(),
        percent_of_mlfrr: percent,
        offered_pps: 10.0 * percent,
        pairs: (0..20)
            .map(|n| Pair {
                goodput_ratio: 0.9996,
                p50_ratio: Some(1.0 + 0.001 * f64::from(n)),
                p99_ratio: Some(p99 + 0.001 * f64::from(n)),
                extra_cpu_points: Some(0.5),
                mode_switches_per_s: Some(if n == 0 { 30.0 } else { 0.0 }),
                void: None,
            })
            .collect(),
        ..PairedRate::default()
    };
    document.pairs = vec![rate(10.0, 1.0), rate(90.0, 1.2)];
    document.finish(&[]);
    let verdicts = &document.verdict;
    assert!(find(verdicts, "P4", "goodput").holds);
    assert!(find(verdicts, "P4", "p50").holds);
    let p99 = find(verdicts, "P4", "p99");
    assert_eq!((p99.value, p99.holds), (Some(1.2 + 0.001 * 14.0), false));
    assert!(p99.note.as_deref().unwrap().ends_with("at 90 % of MLFRR"), "{p99:?}");
    // A median would hide the one pair that switched 30 times a second.
    assert_eq!(find(verdicts, "P4", "switches").value, Some(1.5));
    let control = PairedRate { arm: "stock".into(), ..rate(90.0, 3.0) };
    document.pairs.push(control);
    document.finish(&[]);
    let beside = find(&document.verdict, "P4", "p99");
    assert_eq!((beside.value, beside.holds), (Some(1.2 + 0.001 * 14.0), false), "a control excuses nothing");
    assert!(beside.note.as_deref().unwrap().ends_with("stock against itself 3.005 to 3.014"), "{beside:?}");
    document.pairs[0].pairs.truncate(5);
    document.finish(&[]);
    let few = find(&document.verdict, "P4", "p50");
    assert!(!few.holds && few.note.as_deref().unwrap().contains("only 5 pairs"), "{few:?}");
}

#[test]
fn the_slowest_onset_counts() {
    let mut document = document();
    document.onset.push(Onset {
        arm: "weir".into(),
        condition: "quiet".into(),
        takeover_ms: vec![1.0, 2.0, 25.0],
        release_ms: vec![30.0],
        ..Onset::default()
    });
    let verdicts = judge(&document, &[]);
    let takeover = find(&verdicts, "P7", "takeover");
    assert_eq!((takeover.value, takeover.holds), (Some(25.0), false));
    assert_eq!(takeover.note.as_deref(), Some("median 2.0 of 3"));
    assert!(find(&verdicts, "P7", "release").holds);
    assert!(!verdicts.iter().any(|verdict| verdict.claim.contains("recovery")));
}

#[test]
fn an_arm_that_beats_weir_is_found_whatever_its_role() {
    let mut document = document();
    document.arms[1].role = Role::Shown;
    document.arms[1].points[1].goodput_pps = 1300.0;
    let beaten: Vec<Lead> = leads(&document, 4.0).into_iter().filter(|lead| lead.ratio < 1.0).collect();
    assert_eq!(beaten.len(), 1);
    assert_eq!((beaten[0].arm.as_str(), beaten[0].multiple), ("threaded", 4.0));
    // It is no alternative, so the claim does not count it.
    assert!(find(&judge(&document, &[]), "P9", "").holds);
}

#[test]
fn a_dead_arm_leaves_a_finite_lead() {
    let mut document = document();
    document.arms[0].points[2].goodput_pps = 0.0;
    assert!(leads(&document, 4.0).iter().all(|lead| lead.ratio.is_finite()));
}

#[test]
fn a_void_comparison_is_counted_where_it_could_hide_a_defeat() {
    let mut document = document();
    document.arms[1].points[1].void = Some("busy".into());
    document.arms[2].points[2].void = Some("busy".into());
    let verdicts = judge(&document, &[]);
    let note = find(&verdicts, "P9", "").note.as_deref();
    assert_eq!(note, Some("over threaded at 10x; 1 more void"));
}

#[test]
fn below_saturation_nothing_is_said_of_peaks() {
    let mut document = document();
    let has_peak = |d: &Document| judge(d, &[]).iter().any(|claim| claim.id == "P2");
    assert!(has_peak(&document));
    document.experiment = "below-saturation".into();
    assert!(!has_peak(&document));
}
