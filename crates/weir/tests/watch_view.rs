//! The terminal view as a whole program on a pseudo-terminal: it starts, draws, obeys, and leaves the terminal as it was.
//! From a recording, so that it needs neither privileges nor a special kernel.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::pty::{LIMIT, Pty};

use nix::sys::signal::Signal;

const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/overload.jsonl");

fn weir(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .arg("watch")
        .args(args)
        .env("TERM", "xterm-256color")
        .env("LC_ALL", "C.UTF-8")
        .env_remove("NO_COLOR");
    command
}

fn replay(columns: u16, rows: u16) -> Pty {
    let mut pty = Pty::start(&mut weir(&["--replay", RECORDING]), columns, rows);
    // Paused at the start, so that nothing moves by itself.
    pty.wait_for("of 12");
    pty.keys("[");
    pty.wait_for("paused");
    pty.keys("{{");
    pty.wait_for("replay 1 of 12 paused");
    pty
}

/// Exit code 0, and the terminal as before.
fn left(pty: &mut Pty) {
    assert_eq!(pty.end().code(), Some(0), "{}", pty.text());
    assert!(!pty.raw(), "still raw");
    let (alternate, hidden) = pty.look(|screen| (screen.alternate_screen(), screen.hide_cursor()));
    assert!(!alternate && !hidden, "alternate screen {alternate}, cursor hidden {hidden}");
    assert_eq!(pty.text().trim(), "");
}

/// The line of keys is the last one: the whole screen is drawn on.
fn fills(pty: &mut Pty, rows: u16) {
    pty.wait("the last row", |screen| {
        let last = screen.rows(0, screen.size().1).nth(usize::from(rows) - 1);
        last.is_some_and(|row| row.contains("? help"))
    });
}

fn colour_of(pty: &Pty, part: &str) -> vt100::Color {
    pty.look(|screen| {
        let (row, text) =
            (0..).zip(screen.rows(0, screen.size().1)).find(|(_, row)| row.contains(part)).expect("it");
        let column = text[..text.find(part).expect("it")].chars().count();
        screen.cell(row, u16::try_from(column).expect("a column")).expect("a cell").fgcolor()
    })
}

#[test]
fn draws_obeys_and_leaves_at_both_sizes() {
    for (columns, rows) in [(80, 24), (200, 60)] {
        let mut pty = replay(columns, rows);
        assert!(pty.raw() && pty.look(|screen| screen.alternate_screen() && screen.hide_cursor()));
        fills(&mut pty, rows);
        assert!(pty.text().contains("[1 all]") && !pty.text().contains("!consumer"), "{}", pty.text());
        pty.keys("}}");
        pty.wait_for("replay 12 of 12 paused");
        pty.wait_for("!consumer");
        assert_eq!(colour_of(&pty, "!consumer"), vt100::Color::Idx(1), "red");
        assert_eq!(colour_of(&pty, "NAPI"), vt100::Color::Default);
        for (keys, part) in [
            ("\t", "[2 queues]"),
            ("\x1b[C", "[3 CPUs]"),
            ("\x1b[Z", "[2 queues]"),
            ("4", "[4 consumers]"),
            ("\r", "10.9.0.2:514"),
            ("\x1b", "[4 consumers]"),
            ("s", "▾"),
            ("/tcp\r", "/tcp   1 row "),
            ("\x1b", "udp 514"),
            ("6", "delivered: udp"),
            ("e", "evidence"),
            ("?", "signs and words"),
            ("?", "evidence"),
            ("1[", "replay 11 of 12 paused"),
        ] {
            pty.keys(keys);
            pty.wait_for(part);
        }
        pty.keys("q");
        left(&mut pty);
    }
}

#[test]
fn follows_the_size_of_the_window() {
    let mut pty = replay(80, 24);
    for (columns, rows) in [(200, 60), (100, 30), (80, 24), (300, 100)] {
        pty.resize(columns, rows);
        fills(&mut pty, rows);
    }
    pty.resize(60, 20);
    pty.wait_for("weir watch needs 80 x 24; here is 60 x 20");
    pty.resize(80, 24);
    fills(&mut pty, 24);
    pty.keys("q");
    left(&mut pty);
}

#[test]
fn ctrl_c_and_signals_leave_the_terminal_as_it_was() {
    let mut pty = replay(80, 24);
    pty.keys("\x03");
    left(&mut pty);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut pty = replay(80, 24);
        pty.signal(signal);
        left(&mut pty);
    }
}

#[test]
fn stops_as_a_job_of_a_shell_and_comes_back() {
    let script = "set -m; \"$@\"; echo stopped; read line; fg >/dev/null; echo code $?";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_weir"), "watch", "--replay", RECORDING]);
    let mut pty = Pty::start(shell.env("TERM", "xterm").env("LC_ALL", "C.UTF-8"), 80, 24);
    pty.wait_for("of 12");
    pty.keys("\x1a");
    pty.wait_for("stopped");
    assert!(!pty.raw() && !pty.look(|screen| screen.alternate_screen() || screen.hide_cursor()));
    pty.keys("\n");
    pty.wait_for("of 12");
    fills(&mut pty, 24);
    assert!(pty.raw() && pty.look(|screen| screen.alternate_screen()));
    pty.keys("q");
    pty.wait_for("code 0");
    assert_eq!(pty.end().code(), Some(0));
    assert!(!pty.raw());
}

#[test]
fn without_colours_and_utf8_the_signs_are_the_same() {
    let mut command = weir(&["--replay", RECORDING]);
    let mut pty = Pty::start(command.env("NO_COLOR", "1").env("LC_ALL", "C"), 80, 24);
    pty.wait_for("of 12");
    pty.keys("{}}");
    pty.wait_for("replay 12 of 12 paused");
    pty.wait_for("!consumer");
    assert!(pty.text().is_ascii(), "{}", pty.text());
    let plain = |screen: &vt100::Screen| {
        let cells = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
        let mut cells = cells.filter_map(|(row, column)| screen.cell(row, column));
        cells.all(|cell| cell.fgcolor() == vt100::Color::Default && cell.bgcolor() == vt100::Color::Default)
    };
    assert!(pty.look(plain));
    pty.keys("q");
    left(&mut pty);
}

#[test]
fn a_recording_plays_by_itself_and_names_what_is_broken() {
    let text = std::fs::read_to_string(RECORDING).expect("the recording");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.insert(1, "{\"schema\":\"weir.watch/2\"}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    // The last line is cut off: it is left out.
    std::fs::write(file.path(), lines.join("\n")).expect("written");
    let name = file.path().to_str().expect("UTF-8").to_owned();
    let mut pty = Pty::start(&mut weir(&["--replay", &name]), 200, 60);
    pty.wait_for("of 12");
    pty.keys("[{]");
    pty.wait_for("line 2 is not weir.watch/1");
    pty.keys(" ++++++");
    pty.wait_for("replay 12 of 12 paused");
    assert!(!pty.text().contains("line 2"), "{}", pty.text());
    pty.keys("q");
    left(&mut pty);
}

#[test]
fn this_host_needs_no_privileges() {
    let mut pty = Pty::start(&mut weir(&["--interval", "100ms"]), 80, 24);
    pty.wait_for("  live");
    pty.wait_for("[1 all]");
    pty.keys("3");
    pty.wait_for("[3 CPUs]");
    pty.keys(" ");
    pty.wait_for("paused");
    pty.keys("q");
    left(&mut pty);
}

fn intervals(file: &Path) -> usize {
    std::fs::read(file).expect("the recording").iter().filter(|b| **b == b'\n').count()
}

/// More than a pseudo-terminal holds (64 kB and 4 kB), as new panes, and nobody reads it; then `reading` goes on.
fn flood(pty: &mut Pty, reading: impl Fn() -> usize) {
    pty.hold(true);
    for pane in ["2", "3", "4", "5", "6", "7"].iter().cycle().take(240) {
        pty.keys(pane);
        std::thread::sleep(Duration::from_millis(10));
    }
    let (seen, end) = (reading(), Instant::now() + LIMIT);
    while reading() < seen + 5 {
        assert!(Instant::now() < end, "reading has stopped at {seen} intervals");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_terminal_that_takes_nothing_stops_neither_reading_nor_the_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("record.jsonl");
    let name = file.to_str().expect("UTF-8").to_owned();
    let start = || {
        // A recording is never written over.
        let _ = std::fs::remove_file(&file);
        let mut pty = Pty::start(&mut weir(&["--interval", "100ms", "--record", &name]), 200, 60);
        pty.wait_for("[1 all]");
        pty
    };
    let mut pty = start();
    let end = Instant::now() + LIMIT;
    // Until it has missed frames: then it has waited for the terminal, and reading went on meanwhile.
    while !pty.text().contains("frames skipped") {
        assert!(Instant::now() < end, "{}", pty.text());
        flood(&mut pty, || intervals(&file));
        pty.hold(false);
        let shown = intervals(&file) + 5;
        while intervals(&file) < shown && !pty.text().contains("frames skipped") {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    pty.keys("q");
    left(&mut pty);
    // Its end does not wait for the terminal either.
    let mut pty = start();
    flood(&mut pty, || intervals(&file));
    pty.signal(Signal::SIGTERM);
    let end = Instant::now() + LIMIT;
    while pty.raw() {
        assert!(Instant::now() < end, "still raw");
        std::thread::sleep(Duration::from_millis(10));
    }
    pty.hold(false);
    assert_eq!(pty.end().code(), Some(0));
}

#[test]
fn errors_are_printed_where_the_user_was_and_text_stays_text() {
    let mut pty = Pty::start(&mut weir(&["weir-nosuch"]), 80, 24);
    assert_eq!(pty.end().code(), Some(2));
    assert!(pty.text().contains("error: weir-nosuch: no such interface"), "{}", pty.text());
    for args in [["--once", "--replay"], ["--json", "--replay"]] {
        let mut pty = Pty::start(&mut weir(&[args[0], args[1], RECORDING]), 80, 24);
        assert_eq!(pty.end().code(), Some(0));
        assert!(
            !pty.look(|screen| screen.alternate_screen()) && !pty.text().contains("[1 all]"),
            "{}",
            pty.text()
        );
    }
    let mut dumb = Pty::start(weir(&["--replay", RECORDING]).env("TERM", "dumb"), 80, 24);
    assert_eq!(dumb.end().code(), Some(0));
    assert!(dumb.text().contains("unaccounted"), "{}", dumb.text());
}
