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
use see::Snapshot;
use see::accept::{Accept, Group, Worker};
use see::guard::{Guard, Poller, Source};
use see::model::{Delay, Probes, Waited};
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

/// The same second with a guard on the interface, which sheds what is lost, and with probes.
fn guarded(number: u64, offered: u64, read: u64) -> Snapshot {
    let mut s = second(number, offered, read);
    let lost = (offered - read) * 1000;
    let source = |queue: u32, mode: &str| Source {
        name: format!("eth0/{queue}"),
        mode: mode.into(),
        reason: "overload".into(),
        cpu: 1 + queue,
        packets: Some(offered * 500),
        turns: Some(offered * 16),
        foreign_polls: (mode == "poll").then_some(2),
        shed: lost,
        ..Source::default()
    };
    let poller = Poller {
        cpu: 1,
        budget_used: Some(0.5),
        sleeps: [("feedback".to_owned(), 812), ("budget".to_owned(), 3)].into(),
        ..Poller::default()
    };
    s.guards = vec![Guard {
        pid: 4711,
        sources: vec![source(0, "poll"), source(1, "interrupt")],
        cpus: vec![poller],
        ..Guard::default()
    }];
    let worker = |tid, stalled| Worker {
        tid: Some(tid),
        core: Some(tid - 811),
        waiting: 3,
        oldest_ms: Some(21.0),
        stalled,
        does: "sleeps".into(),
        placed: Some(200),
        affine: Some(198),
        ..Worker::default()
    };
    s.accepts = vec![Accept {
        pid: 4712,
        groups: vec![Group {
            address: "0.0.0.0:443".into(),
            server: "nginx".into(),
            there: true,
            chosen: [("own".to_owned(), 398), ("no_own".to_owned(), 2)].into(),
            workers: vec![worker(811, false), worker(812, true)],
            ..Group::default()
        }],
    }];
    let wait = |of, us: f64| Waited {
        of,
        samples: 2400,
        count: 153_600,
        p50_us: us,
        p99_us: us * 4.0,
        max_us: us * 30.0,
        ..Waited::default()
    };
    let slow = if lost > 0 { 50.0 } else { 1.0 };
    s.probes = Some(Probes {
        waits: vec![
            wait(Delay::Softirq, 4.0),
            wait(Delay::Backlog, 9.0 * slow),
            wait(Delay::Stack, 1.2),
            wait(Delay::Socket, 80.0 * slow),
            wait(Delay::Whole, 82.0 * slow),
            wait(Delay::Tcp, 120.0),
            wait(Delay::Wakeup, 30.0),
        ],
        drops: [("SOCKET_RCVBUFF".to_owned(), lost), ("NO_SOCKET".to_owned(), 3)].into(),
        lost: 7,
        ..Probes::default()
    });
    s
}

#[test]
fn a_guard_accept_and_probes_have_panels() {
    let Some(program) = program_or_skip("a_guard_accept_and_probes_have_panels") else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("guarded.jsonl");
    let at = |i: u64| match i {
        0..10 => second(i, 40, 40),
        10..40 => guarded(i, 40, 40),
        _ => guarded(i, 400, 40),
    };
    recording(&file, (0..80).map(at));
    let served = Served::start(&["--web", "0", "--interval", "100ms", "--replay", file.to_str().unwrap()]);
    shown(served.page());
    let mut browser = Browser::start(program);
    browser.look(1280, 1000, false);
    browser.open(&url(&served));
    browser.until("document.body.dataset.verdict === 'overload'", Duration::from_secs(20) * PATIENCE);
    let text = |browser: &mut Browser, css: &str| {
        let found = browser.eval(&format!("document.querySelector({css:?}).innerText"));
        found.as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for id in ["guard", "accept", "probes"] {
        assert_eq!(browser.eval(&format!("document.getElementById('{id}').hidden")), false);
    }
    let source = text(&mut browser, "#sources tr");
    assert_eq!(source, "eth0/0 poll 1 200.0 6.4 396.0 2");
    assert_eq!(browser.eval("document.querySelectorAll('#sources td.shed').length"), 2);
    let budget = text(&mut browser, "#budget");
    assert_eq!(budget, "CPU 1 uses 50 % of its budget, 812 pauses, 3 waits for budget");
    // The worker that somebody has to look after is the first.
    assert_eq!(text(&mut browser, "#workers tr"), "812 0.0.0.0:443 3 21.0 ms 99 % stalled 1");
    assert_eq!(text(&mut browser, "#placed"), "0.0.0.0:443 nginx: 2 no own, 398 own");
    // Each wait with where it begins and ends, and a bar that is longer the longer it is.
    let waits =
        browser.eval("[...document.querySelectorAll('#waits tr')].map(row => row.cells[0].innerText)");
    assert_eq!(waits, serde_json::json!(["softirq", "backlog", "stack", "socket", "whole", "tcp", "wakeup"]));
    let socket = text(&mut browser, "#waits tr:nth-child(4)");
    assert_eq!(socket, "socket until its program has it 4.00 ms 16.0 ms 120.0 ms 2 400");
    let end = |row: u32| {
        format!(
            "(r => r.right)(document.querySelector('#waits tr:nth-child({row}) .flow').getBoundingClientRect())"
        )
    };
    let (softirq, socket) = (browser.eval(&end(1)), browser.eval(&end(4)));
    assert!(socket.as_f64().unwrap() > softirq.as_f64().unwrap() + 20.0, "{socket} {softirq}");
    let reasons = text(&mut browser, "#reasons");
    assert!(
        reasons.starts_with("dropped, by the kernel's reason: 360 000 SOCKET_RCVBUFF, 3 NO_SOCKET;"),
        "{reasons}"
    );
    assert!(reasons.contains("7 samples not followed"), "{reasons}");
    let drawn = "[...document.querySelectorAll('#chart-waits canvas')].some(c => \
        c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(b => b !== 0))";
    assert_eq!(browser.eval(drawn), true);
    // Nothing is wider than its panel on a screen, and nothing wider than a phone.
    for (width, what) in [(1280, "screen"), (768, "tablet"), (390, "phone")] {
        browser.look(width, 844, true);
        browser.until(&format!("document.documentElement.scrollWidth <= {width}"), DRAWS * PATIENCE);
        let cut = "[...document.querySelectorAll('#guard .scroll, #accept .scroll, #probes .scroll')].filter(s => \
            s.scrollWidth > s.clientWidth).map(s => s.scrollWidth + ' in ' + s.clientWidth)";
        let whole = browser.eval(cut);
        assert_eq!(whole, serde_json::json!([]), "{what}");
        let wide =
            browser.eval("document.querySelector('#chart-waits canvas').getBoundingClientRect().right");
        assert!(wide.as_f64().unwrap() <= f64::from(width), "{what}: {wide}");
    }
    let phone = text(&mut browser, "#waits tr:nth-child(4)");
    assert_eq!(phone, "socket 4.00 ms 16.0 ms 120.0 ms");
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
                (0..60).map(|i| if i < 40 { guarded(i, 40 + i % 7, 40) } else { guarded(i, 400, 40) }),
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
