//! The results in `docs/results`, written by earlier versions: they are read, and written again as they stand.

use results::Document;
use std::path::Path;

#[test]
fn published_results_are_read_and_written_as_they_stand() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let document = Document::parse(text.as_bytes(), "result")
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let again = document.to_json().unwrap();
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        // No field is lost, none is new. Those that another program has put into one line are not the same bytes.
        assert!(value(&again) == value(&text), "{}", path.display());
        if text.starts_with("{\n") {
            assert!(again == text, "{}: {}", path.display(), differs(&again, &text));
        }
        read += 1;
    }
    assert!(read >= 10, "only {read} results");
}

/// Where two texts part.
fn differs(a: &str, b: &str) -> String {
    let at = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| text.chars().skip(at.saturating_sub(40)).take(120).collect::<String>();
    format!("{:?} for {:?}", around(a), around(b))
}
