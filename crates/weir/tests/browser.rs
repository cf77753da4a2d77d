//! The page of `weir watch --web` in a real browser: it draws live data at once, says what an overload is, goes on after weir
//! was started again, and fits a phone. `make browser-test` installs the browser.
//!
//! `WEIR_SHOTS=DIR` also writes what the page looks like; with `WEIR_RECORDING=FILE` of that recording.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

#[path = "common/browser.rs"]
mod browser;
mod common;

use browser::{Browser, program_or_skip};
use common::PATIENCE;
use common::http::{Served, get, recording, second, shown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The curves and the path have something drawn in them.
const DRAWN: &str = "document.body.dataset.state === 'live' \
    && document.querySelectorAll('#path .box').length >= 6 \
    && [...document.querySelectorAll('.charts canvas')].length === 3 \
    && [...document.querySelectorAll('.charts canvas')].every(c => \
        c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(b => b !== 0)) \
    && document.querySelectorAll('#cpus li').length > 0";

/// What the issue asks for.
const DRAWS: Duration = Duration::from_secs(2);

fn url(served: &Served) -> String {
    format!("http://{}/", served.page())
}

/// Fails if the page had a fault or asked anybody but weir.
fn clean(browser: &Browser, served: &Served) {
    assert!(browser.faults.is_empty(), "{:?}", browser.faults);
    let origin = url(served);
    let others: Vec<_> =
        browser.asked.iter().filter(|url| !url.starts_with(&origin) && !url.starts_with("data:")).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn live_data_is_drawn_at_once() {
    let Some(program) = program_or_skip("live_data_is_drawn_at_once") else { return };
    let served = Served::start(&["--web", "0"]);
    shown(served.page());
    let mut browser = Browser::start(program);
    let begin = Instant::now();
    browser.open(&url(&served));
    browser.until(DRAWN, DRAWS * PATIENCE);
    println!("drawn {:?} after it was asked for", begin.elapsed());
    // It moves: another interval comes, with its time.
    let before = browser
        .eval("document.getElementById('sum').textContent + document.getElementById('time').textContent");
    let moved = format!(
        "document.getElementById('sum').textContent + document.getElementById('time').textContent !== {before}"
    );
    browser.until(&moved, DRAWS * PATIENCE);
    assert_eq!(browser.eval("document.querySelector('#state').textContent"), "live, every 1 s");
    clean(&browser, &served);
}

#[test]
fn a_tenfold_overload_is_shown_as_such() {
    let Some(program) = program_or_skip("a_tenfold_overload_is_shown_as_such") else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("overload.jsonl");
    recording(&file, (0..60).map(|i| if i < 30 { second(i, 40, 40) } else { second(i, 400, 40) }));
    let served = Served::start(&["--web", "0", "--interval", "100ms", "--replay", file.to_str().unwrap()]);
    shown(served.page());
    let mut browser = Browser::start(program);
    browser.open(&url(&served));
    browser.until("document.body.dataset.verdict === 'overload'", Duration::from_secs(10) * PATIENCE);
    let mut text = |id: &str| browser.eval(&format!("document.getElementById('{id}').textContent"));
    let line = text("verdict-line");
    assert_eq!(line, "Overload: 90 % of 400.0 k/s are lost, most at consumer (socket).");
    let why = text("why-title");
    assert!(why.as_str().unwrap().contains("rsyslogd"), "{why}");
    assert!(text("state").as_str().unwrap().contains("recording"));
    assert_eq!(browser.eval("document.title"), "! 360.0 k/s lost, edge1");
    assert_eq!(browser.eval("document.querySelector('#path .box.worst').dataset.place"), "consumer");
    assert_eq!(browser.eval("document.querySelectorAll('#consumers td.lost').length"), 1);
    // The height of a band is its rate: what goes in is ten times what comes out.
    let ratio = browser.eval(
        "(h => h(400000) / h(40000))(n => +document.querySelector(`#path .band[data-packets='${n}']`).getAttribute('height'))",
    );
    assert!((ratio.as_f64().unwrap() - 10.0).abs() < 0.5, "{ratio}");
    // On a phone nothing is wider than the screen, and the path is a list.
    browser.look(390, 844, true);
    browser.until("document.documentElement.scrollWidth <= 390", DRAWS * PATIENCE);
    assert_eq!(browser.eval("getComputedStyle(document.getElementById('steps')).display"), "block");
    assert_eq!(
        browser.eval("document.querySelector('#steps li.worst .note').textContent"),
        "360.0 k/s lost: socket"
    );
    clean(&browser, &served);
}

#[test]
fn the_page_outlives_its_server() {
    let Some(program) = program_or_skip("the_page_outlives_its_server") else { return };
    let first = Served::start(&["--web", "0", "--interval", "100ms"]);
    shown(first.page());
    let address = first.page();
    let mut browser = Browser::start(program);
    browser.open(&url(&first));
    browser.until(DRAWN, DRAWS * PATIENCE);
    assert!(first.end().success());
    browser.until("document.body.dataset.state === 'ended'", DRAWS * PATIENCE);
    assert_eq!(browser.eval("document.getElementById('trouble').hidden"), false);
    let again = Served::start(&["--web", &address.to_string(), "--interval", "100ms"]);
    browser.until("document.body.dataset.state === 'live'", DRAWS * PATIENCE);
    assert_eq!(browser.eval("document.getElementById('trouble').hidden"), true);
    // One that is killed says nothing: the page notices all the same.
    drop(again);
    browser.until("document.body.dataset.state === 'lost'", DRAWS * PATIENCE);
    let third = Served::start(&["--web", &address.to_string(), "--interval", "100ms"]);
    browser.until("document.body.dataset.state === 'live'", DRAWS * PATIENCE);
    assert_eq!(get(third.page(), "/").status, 200);
    clean(&browser, &third);
}

#[test]
fn the_theme_is_chosen_and_kept() {
    let Some(program) = program_or_skip("the_theme_is_chosen_and_kept") else { return };
    let served = Served::start(&["--web", "0"]);
    shown(served.page());
    let mut browser = Browser::start(program);
    browser.look(1280, 800, false);
    browser.open(&url(&served));
    browser.until(DRAWN, DRAWS * PATIENCE);
    let colour = "getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.eval(colour), "rgb(255, 255, 255)");
    browser.eval("document.getElementById('theme').click()");
    assert_eq!(browser.eval(colour), "rgb(15, 18, 21)");
    browser.open(&url(&served));
    browser.until(DRAWN, DRAWS * PATIENCE);
    assert_eq!(browser.eval(colour), "rgb(15, 18, 21)");
    clean(&browser, &served);
}

#[test]
#[ignore = "for people: WEIR_SHOTS=DIR"]
fn shots() {
    let Some(program) = program_or_skip("shots") else { return };
    let Some(dir) = std::env::var_os("WEIR_SHOTS").map(PathBuf::from) else { return };
    let kept = tempfile::tempdir().unwrap();
    let file = std::env::var_os("WEIR_RECORDING").map_or_else(
        || {
            let file = kept.path().join("made.jsonl");
            recording(
                &file,
                (0..60).map(|i| if i < 40 { second(i, 40 + i % 7, 40) } else { second(i, 400, 40) }),
            );
            file
        },
        PathBuf::from,
    );
    let served = Served::start(&["--web", "0", "--interval", "100ms", "--replay", file.to_str().unwrap()]);
    let lines = std::fs::read_to_string(&file).unwrap().lines().count();
    let mut browser = Browser::start(program);
    browser.open(&url(&served));
    let end = format!(
        "fetch('history.json').then(a => a.json()).then(h => h.points.length === {})",
        lines.min(600)
    );
    while browser.eval(&end) != true {
        std::thread::sleep(Duration::from_millis(200));
    }
    for (name, width, height, dark) in [
        ("desktop-dark", 1200, 1000, true),
        ("desktop-light", 1280, 1000, false),
        ("phone-dark", 390, 844, true),
        ("phone-light", 390, 844, false),
    ] {
        browser.look(width, height, dark);
        browser.open(&url(&served));
        browser.until(DRAWN, DRAWS * PATIENCE);
        browser.eval("document.getElementById('why').open = true");
        std::thread::sleep(Duration::from_millis(500));
        decode(&browser.shot(), &dir.join(format!("{name}.png")));
    }
}

fn decode(base64: &str, file: &Path) {
    let mut child = Command::new("base64")
        .arg("-d")
        .stdin(Stdio::piped())
        .stdout(std::fs::File::create(file).unwrap())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), base64.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}
