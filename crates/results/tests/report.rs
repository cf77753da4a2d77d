//! What is drawn and printed of a whole document, by its public interface. The documents are synthetic.

mod synthetic;

use std::collections::BTreeSet;

use proptest::prelude::*;
use results::{
    Arm, Backend, Base, Document, Drops, LatencyUs, Onset, OutputWait, Point, Role, Series, Trial, Verdict,
};

/// Checks that every tag is closed in order and every attribute quoted, as XML wants it; `void` elements of
/// HTML aside.
fn well_formed(text: &str) -> Result<(), String> {
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        if rest[..start].contains('>') {
            return Err(format!("stray > in {}", &rest[..start]));
        }
        rest = &rest[start..];
        if let Some(comment) = rest.strip_prefix("<!--") {
            rest = comment.split_once("-->").ok_or("open comment")?.1;
            continue;
        }
        let end = rest.find('>').ok_or("open tag")?;
        let tag = &rest[1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or("");
        if tag.contains('<') || tag.matches('"').count() % 2 == 1 {
            return Err(format!("bad tag {tag}"));
        }
        if let Some(closed) = tag.strip_prefix('/') {
            match open.pop() {
                Some(last) if last == closed => {}
                last => return Err(format!("{closed} closes {last:?}")),
            }
        } else if name == "style" {
            rest = rest.split_once("</style>").ok_or("open style")?.1;
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("never closed: {open:?}")) }
}

fn ids(text: &str) -> Vec<&str> {
    text.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn the_checker_can_fail() {
    for bad in ["<a><b></a></b>", "<a>", "</a>", "<a b=\"c>", "<a", "a > b <i></i>"] {
        assert!(well_formed(bad).is_err(), "{bad}");
    }
    assert_eq!(well_formed("<!DOCTYPE html><meta x=\"1\"><a><b/>x<!-- < --></a><style>a>b</style>"), Ok(()));
}

#[test]
fn the_table_is_as_it_was() {
    let table = results::table(&synthetic::livelock_udp());
    let expected = include_str!("synthetic/table.txt");
    assert_eq!(table, expected, "if the change is meant: cargo run -p weir-results --example draw FOLDER");
}

#[test]
fn the_table_has_80_columns_and_no_colour() {
    let table = results::table(&synthetic::livelock_udp());
    let longest = table.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(80), "{longest:?}");
    assert!(!table.contains('\u{1b}') && table.lines().all(|line| line.trim_end() == line));
}

/// A wait of half a second has six digits in microseconds, as many as a column is wide.
#[test]
fn long_waits_are_in_milliseconds() {
    let mut document = synthetic::livelock_udp();
    let waits = |document: &mut Document, longest_us: f64| {
        let points = document.arms.iter_mut().flat_map(|arm| &mut arm.points);
        points.for_each(|point| point.output = Some(OutputWait { starved_share: 0.9, longest_us }));
        results::table(document)
    };
    let table = waits(&mut document, 99_999.0);
    assert!(table.contains("output's longest wait, us") && table.contains(" 99999 99999"), "{table}");
    let table = waits(&mut document, 374_585.0);
    assert!(table.contains("output's longest wait, ms") && table.contains("   375   375"), "{table}");
}

#[test]
fn what_is_bad_is_said_as_plainly() {
    let mut document = synthetic::livelock_udp();
    document.partial = Some(results::Partial { done: 108, total: 180 });
    for arm in &mut document.arms {
        if arm.name == "weir" {
            for point in arm.points.iter_mut().filter(|point| point.multiple > Some(3.0)) {
                point.goodput_pps *= 0.6;
            }
        }
        if arm.name == "threaded" {
            arm.points[3].void = Some("rate missed by 9 %".to_string());
        }
    }
    document.finish(&[]);
    let (table, html) = (results::table(&document), results::html(&document).unwrap());
    for text in [&table, &html] {
        for words in ["FALLS SHORT", "108 of 180", "rate-limit reads more than weir", "rate missed by 9 %"] {
            let joined = text.replace("\n    ", " ").replace("</strong>", "");
            assert!(joined.contains(words), "no {words} in {joined}");
        }
    }
    assert!(table.contains("rate-limit *"), "{table}");
    assert!(table.contains(" void"), "{table}");
}

#[test]
fn a_given_rate_is_nobodys_mlfrr() {
    let mut document = synthetic::livelock_udp();
    document.base = Some(results::Base::given(93_800.0));
    let (table, html) = (results::table(&document), results::html(&document).unwrap());
    assert!(table.contains("1x was given as 93.8 k/s\n"), "{table}");
    assert!(html.contains("given as 93.8 k/s") && !html.contains("MLFRR of given"));
    assert!(!html.contains("times the stock MLFRR"));
}

#[test]
fn what_the_wire_gave_each_arm_is_said_where_it_differs() {
    let mut document = synthetic::livelock_udp();
    assert!(!results::table(&document).contains("offered at"));
    let weir = document.arms.iter_mut().find(|arm| arm.name == "weir").unwrap();
    weir.points.iter_mut().filter(|point| point.wire_max).for_each(|point| point.offered_pps *= 2.0);
    let table = results::table(&document);
    let said: Vec<&str> = table.split("\noffered at 17x, k/s: stock-irq ").skip(1).collect();
    assert_eq!(said.len(), 3, "{table}");
    assert!(said.iter().all(|text| text.contains(" weir 14")), "{table}");
}

#[test]
fn a_search_before_the_points_is_said() {
    let mut document = synthetic::livelock_udp();
    assert!(!results::table(&document).contains("by a search"));
    document.base = Some(Base { arm: "stock-rps".into(), mlfrr_pps: 450e3 });
    let table = results::table(&document);
    assert!(table.contains("1x is 450 k/s, the MLFRR of stock-rps by a search before"), "{table}");
    assert!(!table.contains("may be no overload"), "{table}");
    document.base = Some(Base { arm: "stock-rps".into(), mlfrr_pps: 45e3 });
    let table = results::table(&document).replace("\n    ", " ");
    assert!(table.contains("that stock-rps reached, so its multiples may be no overload"), "{table}");
    document.base = Some(Base::given(45e3));
    assert!(!results::table(&document).contains("may be no overload"));
}

#[test]
fn the_table_says_where_its_words_are() {
    let mut document = synthetic::livelock_udp();
    assert!(results::table(&document).ends_with("\nwords: docs/words.md\n"));
    document.command = Some("weir lab run livelock-udp --html report.html".into());
    assert!(results::table(&document).ends_with("\nwords: end of the HTML report, or docs/words.md\n"));
}

#[test]
fn a_wide_spread_names_what_can_be_its_reason() {
    let mut document = synthetic::livelock_udp();
    let point = document.arms[0].points.iter_mut().max_by(|a, b| a.goodput_pps.total_cmp(&b.goodput_pps));
    let point = point.unwrap();
    point.spread = Some(results::Spread { min: 0.0, max: point.goodput_pps });
    let table = results::table(&document).replace("\n    ", " ");
    assert!(table.contains("differ by 100 %: other work on this machine, or its hypervisor"), "{table}");
    document.backend = Backend::Sim;
    assert!(!results::table(&document).contains("hypervisor"));
}

#[test]
fn the_report_has_every_chart_once_and_is_well_formed() {
    let document = synthetic::livelock_udp();
    let html = results::html(&document).unwrap();
    assert_eq!(well_formed(&html), Ok(()));
    let ids = ids(&html);
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(unique.len(), ids.len());
    for chart in [
        "goodput-w",
        "goodput-n",
        "goodput-4",
        "ledger-0",
        "cpu-0",
        "cpu-hogs-0",
        "wait-w",
        "worth-w",
        "takeover-1",
    ] {
        assert!(unique.contains(format!("{chart}-t").as_str()), "{chart} in {unique:?}");
    }
    for named in html.split("aria-labelledby=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(named.split(' ').all(|id| unique.contains(id)), "{named}");
    }
    for arm in &document.arms {
        assert!(html.contains(&arm.name), "{}", arm.name);
    }
    for verdict in &document.verdict {
        assert!(html.contains(&verdict.claim.replace('\'', "&#39;")) || html.contains(&verdict.claim));
    }
}

#[test]
fn the_report_needs_nothing_else() {
    let html = results::html(&synthetic::livelock_udp()).unwrap();
    assert!(!html.contains("<script") && !html.contains("<link") && !html.contains("@import"));
    let outside: Vec<&str> = html.split("http").skip(1).map(|rest| &rest[..rest.len().min(30)]).collect();
    assert!(outside.iter().all(|rest| rest.starts_with("://www.w3.org/2000/svg\"")), "{outside:?}");
    for query in ["prefers-color-scheme:dark", "@media print", "max-width:640px"] {
        assert!(html.contains(query), "{query}");
    }
}

#[test]
fn every_point_is_a_row() {
    let document = synthetic::livelock_udp();
    let html = results::html(&document).unwrap();
    let table = html.split("class=\"points\"").nth(1).and_then(|rest| rest.split("</table>").next()).unwrap();
    let points: usize = document.arms.iter().map(|arm| arm.points.len()).sum();
    // One more for the head.
    assert_eq!(table.matches("<tr").count(), points + 1);
}

#[test]
fn the_download_is_the_document() {
    let document = synthetic::livelock_udp();
    let html = results::html(&document).unwrap();
    let start = html.split("data:application/json;base64,").nth(1).unwrap();
    let bytes = decode(start.split('"').next().unwrap());
    assert_eq!(Document::parse(&bytes, "download").unwrap(), document);
    assert!(html.contains("download=\"livelock-udp.json\""));
}

fn decode(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => u32::from(c - b'A'),
        b'a'..=b'z' => u32::from(c - b'a') + 26,
        b'0'..=b'9' => u32::from(c - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let word = chunk.iter().fold(0, |word, c| word << 6 | value(*c)) << (6 * (4 - chunk.len()));
        bytes.extend(&word.to_be_bytes()[1..chunk.len()]);
    }
    bytes
}

#[test]
fn nothing_from_outside_reaches_the_page_unescaped() {
    let evil = "<script>alert('x')</script>\" onload=\"y & $z$ \u{1}";
    let mut document = synthetic::livelock_udp();
    document.experiment = evil.to_string();
    document.started = Some(evil.to_string());
    document.command = Some(evil.to_string());
    document.parameters.insert(evil.to_string(), evil.into());
    if let Some(machine) = &mut document.machine {
        machine.kernel = evil.to_string();
        machine.model = evil.to_string();
        machine.device = Some(evil.to_string());
    }
    for (nth, arm) in document.arms.iter_mut().enumerate() {
        arm.name = format!("{evil}{nth}");
        arm.note = Some(evil.to_string());
        arm.points[0].void = Some(evil.to_string());
        arm.points[1].drops.insert(evil.to_string(), 1);
    }
    document.base = None;
    for onset in &mut document.onset {
        onset.condition = evil.to_string();
        onset.arm = document.arms[7].name.clone();
    }
    document.finish(&[]);
    document.verdict[0].claim = evil.to_string();
    document.verdict[0].note = Some(evil.to_string());
    document.verdict[0].unit = evil.to_string();
    let html = results::html(&document).unwrap();
    let picture = results::picture(&document).unwrap();
    for page in [&html, &picture] {
        assert!(!page.contains("<script") && !page.contains("\" onload="), "unescaped");
        assert_eq!(well_formed(page), Ok(()));
    }
    assert!(!picture.contains('\u{1}'));
}

#[test]
fn the_same_document_gives_the_same_bytes() {
    let (a, b) = (synthetic::livelock_udp(), synthetic::livelock_udp());
    assert_eq!(results::html(&a).unwrap(), results::html(&b).unwrap());
    assert_eq!(results::picture(&a), results::picture(&b));
    assert_eq!(results::table(&a), results::table(&b));
}

#[test]
fn the_picture_says_its_result_in_words() {
    let picture = results::picture(&synthetic::livelock_udp()).unwrap();
    assert_eq!(well_formed(&picture), Ok(()));
    assert!(picture.starts_with("<svg xmlns=") && picture.contains("role=\"img\""));
    let words = picture.split("<desc").nth(1).and_then(|rest| rest.split("</desc>").next()).unwrap();
    assert!(words.contains("weir reads 4") && words.contains("stock-irq reads 2."), "{words}");
    assert!(picture.contains("prefers-color-scheme:dark") && !picture.contains("var("));
    // Without weir or without stock there is no collapse and no cure.
    let mut document = synthetic::livelock_udp();
    document.arms.retain(|arm| arm.role != Role::Weir);
    assert_eq!(results::picture(&document), None);
}

#[test]
fn a_simulated_report_says_so() {
    let mut document = synthetic::livelock_udp();
    document.backend = Backend::Sim;
    document.machine = None;
    document.started = None;
    let html = results::html(&document).unwrap();
    assert!(html.contains("<title>weir sim: livelock-udp, simulated</title>"));
    assert!(results::table(&document).starts_with("livelock-udp, simulated\n"));
    assert!(results::picture(&document).unwrap().contains("simulated by weir sim"));
}

#[test]
fn an_empty_document_is_no_error() {
    let document = Document::new("nothing", Backend::Kernel);
    assert_eq!(well_formed(&results::html(&document).unwrap()), Ok(()));
    assert!(results::table(&document).starts_with("nothing\n"));
    assert_eq!(results::picture(&document), None);
}

#[test]
fn a_document_agrees_with_itself() {
    let document = synthetic::livelock_udp();
    let comparison = results::compare(&document, &document, &results::Tolerances::default(), None);
    assert!(comparison.agrees(), "{}", comparison.table());
}

#[test]
fn claims_of_the_synthetic_run_hold() {
    let document = synthetic::livelock_udp();
    let short: Vec<&Verdict> = document.verdict.iter().filter(|verdict| !verdict.holds).collect();
    assert!(short.is_empty(), "{short:#?}");
    let claimed: BTreeSet<&str> = document.verdict.iter().map(|verdict| verdict.id.as_str()).collect();
    assert_eq!(claimed.len(), results::Id::ALL.len(), "{claimed:?}");
}

#[test]
fn files_are_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    results::write_html(&synthetic::livelock_udp(), &path).unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().ends_with("</html>"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_table_keeps_its_width_far_beyond_the_mlfrr() {
    let point = |(offered, share): (f64, f64)| {
        let trial = Trial {
            offered_pps: offered,
            sent: offered as u64,
            delivered: (offered * share) as u64,
            drops: Drops::from([("ring".into(), offered as u64 - (offered * share) as u64)]),
            goodput_pps: offered * share,
            ..Trial::default()
        };
        let mut point = Point::fold(vec![trial], None);
        point.offered_pps = offered;
        point.wire_max = offered > 8e7;
        point
    };
    let rates = [(1.7, 1.0), (17.0, 0.1), (2.6e7, 0.0), (4.5e7, 0.0), (8.9e7, 0.0)];
    let mut document = Document::new("a very slow host", Backend::Sim);
    let points = rates.map(point).to_vec();
    document.arms = vec![Arm { name: "stock-irq".into(), role: Role::Stock, points, ..Arm::default() }];
    document.finish(&results::Id::ALL);
    let table = results::table(&document);
    assert!(table.contains("5.2e7x"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
}

fn points() -> impl Strategy<Value = Vec<Point>> {
    let rate = prop_oneof![Just(0.0), 1.0..100.0_f64, 1e3..9e7_f64];
    let point = (rate, 0.0..=1.0_f64, 0_u32..3, any::<bool>(), any::<bool>(), 0_usize..3);
    let point = point.prop_map(|(offered, share, hogs, void, wire_max, trials)| {
        let trial = Trial {
            offered_pps: offered,
            sent: offered as u64,
            delivered: (offered * share) as u64,
            goodput_pps: offered * share,
            drops: Drops::from([("ring".into(), offered as u64 - (offered * share) as u64)]),
            latency_us: Some(LatencyUs { p50: share, p99: 2.0 * share, p999: 1e6 * share }),
            void: void.then(|| "busy".to_string()),
            ..Trial::default()
        };
        let mut point = Point::fold(vec![trial; trials], None);
        point.offered_pps = offered;
        point.hogs = hogs;
        point.wire_max = wire_max;
        point
    });
    prop::collection::vec(point, 0..8)
}

fn documents() -> impl Strategy<Value = Document> {
    let roles = [Role::Stock, Role::Alternative, Role::Weir, Role::Ablation, Role::Control, Role::Shown];
    let arm = (prop::sample::select(roles.to_vec()), points());
    let series = prop::collection::vec(0.0..1e4_f64, 0..20);
    (prop::collection::vec(arm, 0..6), prop::collection::vec(series, 0..3)).prop_map(|(arms, all_series)| {
        let mut document = Document::new("random", Backend::Sim);
        let arm = |(nth, (role, points)): (usize, (Role, Vec<Point>))| Arm {
            name: format!("arm {nth}"),
            role,
            points,
            ..Arm::default()
        };
        document.arms = arms.into_iter().enumerate().map(arm).collect();
        let name = document.arms.iter().find(|arm| arm.role == Role::Weir).map(|arm| arm.name.clone());
        let series = |goodput_per_ms| Series { start_ms: -3.0, step_ms: 1.0, goodput_per_ms };
        document.onset.push(Onset {
            arm: name.unwrap_or_default(),
            series: all_series.into_iter().map(series).collect(),
            ..Onset::default()
        });
        document
    })
}

#[test]
fn an_onset_tells_what_its_times_do_not() {
    let mut document = Document::new("onset", Backend::Kernel);
    let mut onset = Onset {
        arm: "weir".into(),
        condition: "quiet".into(),
        recovery_ms: vec![1.0; 4],
        ..Onset::default()
    };
    document.onset.push(onset.clone());
    assert!(!results::table(&document).contains("of 4"));
    (onset.polled_before, onset.not_released) = (1, 3);
    document.onset = vec![onset];
    let table = results::table(&document);
    assert!(
        table.contains("1 of 4 polled before the flood") && table.contains("3 of 4 polled when"),
        "{table}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_document_breaks_a_report(mut document in documents()) {
        document.finish(&results::Id::ALL);
        let html = results::html(&document).unwrap();
        prop_assert_eq!(well_formed(&html), Ok(()));
        for bad in ["NaN", "inf\"", ">inf", " inf "] {
            prop_assert!(!html.contains(bad), "{} in the page", bad);
        }
        let table = results::table(&document);
        prop_assert!(table.lines().all(|line| line.chars().count() <= 80), "{}", table);
        if let Some(picture) = results::picture(&document) {
            prop_assert_eq!(well_formed(&picture), Ok(()));
        }
    }
}
