//! `weir sim run --shard` and `weir results merge`: parts of a run, each a process of its own, give the bytes of one run.
//!
//! Cannot flake: the simulator knows no time but its own, and the parts are run one after the other.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use std::path::Path;
use std::process::Command;

/// Exit code and both outputs.
fn weir(dir: &Path, words: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(words).current_dir(dir).output();
    let output = output.expect("weir starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
}

fn read(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(name)).expect(name)
}

/// Runs `what` whole and in eight parts; the parts' files.
fn both(dir: &Path, what: &[&str]) -> Vec<String> {
    let whole = [&["sim", "run"], what, &["--json", "whole.json", "--html", "whole.html"]].concat();
    let (code, table, error) = weir(dir, &whole);
    assert!(code <= 1, "{error}");
    let parts: Vec<String> = (0..8).map(|n| format!("part-{n}.json")).collect();
    for (n, file) in parts.iter().enumerate() {
        let (part, jobs) = (format!("{n}/8"), (n % 3 + 1).to_string());
        let words = [&["sim", "run"], what, &["--shard", &part, "--json", file, "--jobs", &jobs]].concat();
        let (code, stdout, error) = weir(dir, &words);
        assert_eq!((code, stdout.as_str()), (0, ""), "{error}");
    }
    // In another order, as a shell may list them.
    let files: Vec<&str> = parts.iter().rev().map(String::as_str).collect();
    let words =
        [&["results", "merge"], files.as_slice(), &["--json", "merged.json", "--html", "merged.html"]];
    let merged = weir(dir, &words.concat());
    assert_eq!((merged.0, &merged.1), (code, &table), "{}", merged.2);
    for kind in ["json", "html"] {
        let same = read(dir, &format!("merged.{kind}")) == read(dir, &format!("whole.{kind}"));
        assert!(same, "{what:?}: {kind} differs");
    }
    parts
}

#[test]
fn eight_parts_merged_are_the_bytes_of_one_run() {
    let dir = tempfile::tempdir().expect("directory");
    // Panels over time too, several arms, settings and a seed.
    let parts = both(dir.path(), &["screen", "--seed", "7", "--set", "ring=64"]);

    let short: Vec<&str> = parts.iter().skip(1).map(String::as_str).collect();
    let (code, stdout, error) = weir(dir.path(), &[&["results", "merge"], short.as_slice()].concat());
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(error.contains("no file has part 0/8; run it"), "{error}");
    let (code, _, error) = weir(dir.path(), &["results", "merge", "whole.json"]);
    assert_eq!(code, 2);
    assert!(error.contains("whole.json: schema is \"weir.lab/1\", not \"weir.shard/1\""), "{error}");
    let (code, _, error) = weir(dir.path(), &["results", "merge", "nosuch.json"]);
    assert_eq!(code, 2);
    assert!(error.contains("nosuch.json: No such file"), "{error}");
}

#[test]
fn parts_of_a_run_of_ones_own_file_need_no_file_to_be_merged() {
    let dir = tempfile::tempdir().expect("directory");
    let (_, text, _) = weir(dir.path(), &["sim", "show", "trains"]);
    std::fs::write(dir.path().join("mine.toml"), text.replace("trains.trace", "mine.trace")).expect("file");
    std::fs::write(dir.path().join("mine.trace"), "0us 64\n40us 1500\n90us 64\n").expect("file");
    let parts = both(dir.path(), &["mine.toml"]);
    for file in ["mine.toml", "mine.trace", "merged.json"] {
        std::fs::remove_file(dir.path().join(file)).expect(file);
    }
    let files: Vec<&str> = parts.iter().map(String::as_str).collect();
    let words = [&["results", "merge"], files.as_slice(), &["--json", "merged.json"]].concat();
    let (code, _, error) = weir(dir.path(), &words);
    assert!(code <= 1, "{error}");
    assert!(read(dir.path(), "merged.json") == read(dir.path(), "whole.json"));
}

#[test]
fn a_part_needs_a_file_and_draws_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    for (more, why) in [
        (vec!["--shard", "0/8"], "--json"),
        (vec!["--shard", "0/8", "--json", "x", "--html", "y"], "exclude each other"),
        (vec!["--shard", "8/8", "--json", "x"], "give 0/8 to 7/8"),
    ] {
        let (code, stdout, error) = weir(dir.path(), &[vec!["sim", "run", "quota"], more].concat());
        assert_eq!((code, stdout.as_str()), (2, ""), "{error}");
        assert!(error.contains(why), "{error}");
    }
}
