use super::*;
use crate::measure::Drops;

fn small() -> Document {
    let mut document = Document::new("livelock-udp", Backend::Kernel);
    document.started = Some("2026-11-20T14:02:31Z".to_string());
    document.machine =
        Some(Machine { kernel: "6.18.3".into(), cpus: 2, model: "x".into(), ..Machine::default() });
    document.parameters.insert("quota".into(), 16.into());
    let point = Point {
        offered_pps: 0.1 + 0.2,
        goodput_pps: 1.0 / 3.0,
        sent: 10,
        delivered: 7,
        drops: Drops::from([("socket".into(), 1), ("ring".into(), 2)]),
        mode: Some(Mode::Poll),
        ..Point::default()
    };
    let summary = Summary {
        class: Some(Class::Livelock),
        flatness: BTreeMap::from([("max".into(), 0.5), ("10".into(), 0.7)]),
        ..Summary::default()
    };
    let with_hogs = BTreeMap::from([("4".to_string(), summary.clone())]);
    document.arms.push(Arm {
        name: "weir".into(),
        role: Role::Weir,
        points: vec![point],
        summary,
        with_hogs,
        ..Arm::default()
    });
    document
}

#[test]
fn a_document_comes_back_as_it_was() {
    let document = small();
    let text = document.to_json().unwrap();
    let back = Document::parse(text.as_bytes(), "x").unwrap();
    assert_eq!(back, document);
    assert_eq!(back.to_json().unwrap(), text);
}

#[test]
fn fields_stand_where_the_format_says() {
    let value: serde_json::Value = serde_json::from_str(&small().to_json().unwrap()).unwrap();
    assert_eq!(value["schema"], "weir.lab/1");
    assert_eq!(value["backend"], "kernel");
    assert_eq!(value["arms"][0]["class"], "livelock");
    assert_eq!(value["arms"][0]["flatness"]["10"], 0.7);
    assert_eq!(value["arms"][0]["points"][0]["drops"]["ring"], 2);
    assert_eq!(value["arms"][0]["points"][0]["mode"], "poll");
    assert_eq!(value["arms"][0]["points"][0]["unaccounted"], 0);
}

#[test]
fn the_simulator_omits_started_and_machine() {
    let text = Document::new("livelock-udp", Backend::Sim).to_json().unwrap();
    assert!(!text.contains("started") && !text.contains("machine"), "{text}");
}

#[test]
fn unknown_fields_are_tolerated() {
    let text = r#"{"schema":"weir.lab/1","experiment":"e","backend":"sim","later":{"a":[1]},
        "arms":[{"name":"a","later":1,"points":[{"offered_pps":1,"goodput_pps":1,"later":null}]}]}"#;
    let document = Document::parse(text.as_bytes(), "x").unwrap();
    assert_eq!(document.arms[0].points[0].goodput_pps, 1.0);
    assert_eq!(document.arms[0].role, Role::Shown);
}

#[test]
fn another_schema_is_refused_by_name() {
    for (text, found) in [(r#"{"schema":"weir.lab/2"}"#, "weir.lab/2"), (r#"{"a":1}"#, "")] {
        match Document::parse(text.as_bytes(), "a.json") {
            Err(Error::Schema { found: got, .. }) => assert_eq!(got, found),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_syntax_error_has_its_place_once() {
    let text = "{\"schema\":\"weir.lab/1\",\n \"experiment\":1}";
    let err = Document::parse(text.as_bytes(), "a.json").unwrap_err().to_string();
    assert!(err.starts_with("a.json:2:"), "{err}");
    assert!(!err.contains("at line"), "{err}");
}

#[test]
fn a_number_that_is_not_finite_is_not_written() {
    let mut document = small();
    document.arms[0].points[0].goodput_pps = f64::NAN;
    assert!(matches!(document.to_json(), Err(Error::Limit { .. })));
    let mut document = small();
    document.arms[0].summary.peak_pps = Some(f64::INFINITY);
    assert!(matches!(document.to_json(), Err(Error::Limit { .. })));
}

#[test]
fn limits_hold_on_reading_and_writing() {
    let mut document = small();
    document.arms = vec![Arm::default(); MAX_ARMS + 1];
    assert!(matches!(document.to_json(), Err(Error::Limit { .. })));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.json");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(MAX_BYTES + 1).unwrap();
    assert!(matches!(Document::read(&path), Err(Error::Limit { .. })));
}

#[test]
fn write_leaves_one_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    small().write(&path).unwrap();
    assert_eq!(Document::read(&path).unwrap(), small());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let missing = folder.path().join("no/such/a.json");
    let err = small().write(&missing).unwrap_err().to_string();
    assert!(err.contains("no/such/a.json"), "{err}");
}
