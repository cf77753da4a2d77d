//! Recordings of `weir watch`, and what watching costs. Nothing here needs a privilege: the host's own counters are read.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

#[path = "common/watched.rs"]
#[allow(dead_code, reason = "recordings are compared as text")]
mod watched;

#[path = "common/least.rs"]
mod least;

use least::least;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use watched::Watch;

/// A test asserts this many times the stated bound.
const PATIENCE: u32 = 5;

/// `weir ARGS`: exit code, standard output, standard error.
fn weir(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn replay(path: &Path, more: &[&str]) -> (i32, String, String) {
    weir(&[&["watch", "--replay", path.to_str().unwrap()], more].concat())
}

/// A recording of some intervals, and what was shown meanwhile.
fn recording(dir: &Path) -> (PathBuf, String) {
    let path = dir.join("night.jsonl");
    let args = ["--interval", "100ms", "--record", path.to_str().unwrap()];
    let watch = Watch::start(&args, |mut command| command.spawn().unwrap());
    let mut shown: Vec<String> = (0..4).map(|_| watch.line()).collect();
    shown.extend(watch.end());
    (path, shown.iter().map(|line| format!("{line}\n")).collect())
}

/// `error: ` with all of `parts`, in one line, and exit code 2.
fn refused((code, _, error): &(i32, String, String), parts: &[&str]) {
    assert_eq!(*code, 2, "{error}");
    assert!(error.starts_with("error: ") && error.lines().count() == 1, "{error}");
    parts.iter().for_each(|part| assert!(error.contains(part), "no {part:?} in {error}"));
}

#[test]
fn a_recording_gives_the_same_bytes_again() {
    let dir = tempfile::tempdir().unwrap();
    let (path, shown) = recording(dir.path());
    let recorded = std::fs::read_to_string(&path).unwrap();
    assert_eq!(recorded, shown, "--record writes what --json prints");
    let (code, again, error) = replay(&path, &["--json"]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(again, recorded);
    let (code, last, _) = replay(&path, &["--json", "--once"]);
    assert_eq!((code, Some(last.trim_end())), (0, recorded.lines().last()));
    // Where it would be shown by a server instead, too.
    for shown in [["--once"].as_slice(), &["--web", "127.0.0.1:0"], &["--metrics", "127.0.0.1:0"]] {
        let args = [&["watch", "--record", path.to_str().unwrap()], shown].concat();
        let (code, _, error) = weir(&args);
        refused(&(code, String::new(), error), &["--record ", "is there already; give a new file"]);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), recorded, "it is as it was");
    // As a table: one for each interval.
    let (code, tables, _) = replay(&path, &[]);
    assert_eq!((code, tables.matches("weir watch  ").count()), (0, recorded.lines().count()));
}

#[test]
fn a_recording_that_was_cut_off_shows_what_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (path, recorded) = recording(dir.path());
    let lines: Vec<&str> = recorded.lines().collect();
    let last = recorded.len() - lines.last().unwrap().len() / 2;
    std::fs::write(&path, &recorded[..last]).unwrap();
    let (code, again, error) = replay(&path, &["--json"]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(again.lines().collect::<Vec<_>>(), lines[..lines.len() - 1]);
    // Of which nothing is whole: that is an error.
    std::fs::write(&path, &recorded[..lines[0].len() / 2]).unwrap();
    refused(&replay(&path, &[]), &["--replay", "line 1 is no snapshot", "give a file of --record"]);
}

#[test]
fn a_newer_schema_is_named_and_new_fields_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (path, recorded) = recording(dir.path());
    let newer = recorded.replacen("\"schema\":\"weir.watch/1\"", "\"schema\":\"weir.watch/2\"", 1);
    assert_ne!(newer, recorded);
    std::fs::write(&path, newer).unwrap();
    refused(&replay(&path, &[]), &["line 1 is not weir.watch/1"]);
    std::fs::write(&path, recorded.replace("{\"schema\"", "{\"colour\":[1,{}],\"schema\"")).unwrap();
    let (code, again, error) = replay(&path, &["--json"]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(again, recorded);
}

#[test]
fn garbage_is_refused_with_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let (path, recorded) = recording(dir.path());
    for garbage in [&b"\x7fELF\x02\x01\x01\0\0"[..], b"null\n", b"[]\n", b"{}\n", b"\n", b"\xff\xfe\n{}\n"] {
        std::fs::write(&path, garbage).unwrap();
        refused(&replay(&path, &["--json"]), &["line 1 is no"]);
    }
    // In the middle: what stands before it is shown.
    let lines: Vec<&str> = recorded.lines().collect();
    std::fs::write(&path, format!("{}\n{}\n0 garbage\n{}\n", lines[0], lines[1], lines[2])).unwrap();
    let answer = replay(&path, &["--json"]);
    refused(&answer, &["line 3 is no snapshot"]);
    assert_eq!(answer.1.lines().collect::<Vec<_>>(), lines[..2]);
}

#[test]
fn a_recording_without_an_interval_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("night.jsonl");
    std::fs::write(&path, "").unwrap();
    for more in [&[][..], &["--json"], &["--once"], &["--web", "0"]] {
        refused(&replay(&path, more), &["--replay", "no interval is in it", "give a file of --record"]);
    }
    // A directory, and nothing.
    for path in [dir.path(), &dir.path().join("none")] {
        refused(&replay(path, &["--json"]), &["--replay", "directory", "give a file of --record"]);
    }
}

#[test]
fn a_line_that_is_too_long_is_skipped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (path, recorded) = recording(dir.path());
    let lines: Vec<&str> = recorded.lines().collect();
    let long = " ".repeat(16 * 1024 * 1024);
    std::fs::write(&path, format!("{}\n{long}\n{}\n", lines[0], lines[1])).unwrap();
    let (code, again, error) = replay(&path, &["--json"]);
    assert_eq!(code, 0, "{error}");
    assert_eq!(again.lines().collect::<Vec<_>>(), lines[..2]);
    assert!(error.contains("1 line of more than 16 MiB skipped") && error.lines().count() == 1, "{error}");
    // Nothing else is in it.
    std::fs::write(&path, format!("{long}\n{long}\n")).unwrap();
    refused(&replay(&path, &[]), &["no interval is in it but 2 lines of more than 16 MiB"]);
}

/// CPU time of a process, all its threads, ns.
fn cpu_ns(pid: u32) -> u64 {
    kern::wire::tasks::process_cpu_ns(pid as i32).unwrap()
}

/// Most memory that a process has had, KiB.
fn peak_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn watching_costs_little() {
    let watch = Watch::start(&["--interval", "1s"], |mut command| command.spawn().unwrap());
    // The start, and the first look at everything, are not what it costs to leave it on.
    watch.line();
    let most = 0.005 * f64::from(PATIENCE);
    let share = least(most, || {
        let (begin, used) = (Instant::now(), cpu_ns(watch.pid()));
        // One of these reads again what seldom changes.
        (0..6).for_each(|_| _ = watch.line());
        (cpu_ns(watch.pid()) - used) as f64 / begin.elapsed().as_nanos() as f64
    });
    let memory = peak_kib(watch.pid());
    println!("{:.2} % of a CPU, {:.1} MiB", share * 100.0, memory as f64 / 1024.0);
    assert!(share <= most, "{:.2} % of a CPU", share * 100.0);
    assert!(memory < 48 * 1024 * u64::from(PATIENCE), "{memory} KiB");
    watch.end();
}

#[test]
fn a_watch_ends_at_once_when_it_is_told_to() {
    let watch = Watch::start(&["--interval", "60s"], |mut command| command.spawn().unwrap());
    let path = format!("/proc/{}/status", watch.pid());
    let handles = || {
        let status = std::fs::read_to_string(&path).unwrap();
        let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << (libc::SIGINT - 1) != 0
    };
    let begin = Instant::now();
    while !handles() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it never handles SIGINT");
        std::thread::sleep(Duration::from_millis(5));
    }
    let begin = Instant::now();
    assert!(watch.end().is_empty());
    assert!(begin.elapsed() < Duration::from_secs(1) * PATIENCE, "{:?}", begin.elapsed());
}

#[test]
fn a_profile_without_an_interval_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cpu.jsonl");
    std::fs::write(&path, "").unwrap();
    refused(&replay(&path, &["--cpu"]), &["--replay", "no interval is in it", "--cpu --record"]);
    let file = path.to_str().unwrap();
    refused(&weir(&["watch", "--cpu", "--diff", file, file]), &["--diff", "no interval is in it"]);
    // A line that is no profile is named.
    std::fs::write(&path, "{}").unwrap();
    refused(&replay(&path, &["--cpu"]), &["line 1"]);
}
