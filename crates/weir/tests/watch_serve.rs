//! `weir watch --web --metrics` through the program: what it answers, to whom, and what a client cannot do to others.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod common;

use common::http::{Served, answer, ask, get, next_line, open, recording, say, second, shown, stream};
use common::{ms, within};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Limits of the program: connections and, of these, streams; time to ask.
const CONNECTIONS: usize = 32;
const STREAMS: usize = 16;
/// Connections of one address of another host.
const PER_PEER: usize = 8;
const ASK: Duration = Duration::from_secs(5);

/// A weir that serves a recording of `seconds` seconds, ten a second; its last half is an overload.
fn served(seconds: u64) -> (tempfile::TempDir, Served) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("night.jsonl");
    recording(
        &file,
        (0..seconds).map(|i| if i < seconds / 2 { second(i, 40, 40) } else { second(i, 400, 40) }),
    );
    let served = serve(&file, &["--web", "0", "--metrics", "0"]);
    (dir, served)
}

fn serve(file: &Path, addresses: &[&str]) -> Served {
    let file = ["--replay", file.to_str().unwrap(), "--interval", "100ms"];
    let served = Served::start(&[&file[..], addresses].concat());
    if let Some(web) = served.web {
        shown(web);
    }
    served
}

#[test]
fn the_page_and_its_data() {
    let (_dir, served) = served(40);
    let web = served.page();
    let page = get(web, "/");
    assert_eq!(page.status, 200);
    assert!(page.body.starts_with("<!doctype html>"));
    for line in
        ["Content-Security-Policy: default-src 'none'", "frame-ancestors 'none'", "nosniff", "no-store"]
    {
        assert!(page.head.contains(line), "no {line} in {}", page.head);
    }
    for name in ["page.css", "page.js", "draw.js", "uplot.js", "uplot.css"] {
        assert!(page.body.contains(name), "{name}");
        let file = get(web, &format!("/{name}?x=y"));
        assert_eq!(file.status, 200, "{name}");
        assert!(file.head.contains(&format!("Content-Length: {}\r\n", file.body.len())), "{}", file.head);
        let head = ask(web, "HEAD", &format!("/{name}"));
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        assert!(head.head.contains(&format!("Content-Length: {}\r\n", file.body.len())), "{}", head.head);
    }
    // The recording goes on, and ends in an overload that the page is told as such.
    let json = |path: &str| -> serde_json::Value { serde_json::from_str(&get(web, path).body).unwrap() };
    within("the overload", Duration::from_secs(3), || json("/snapshot.json")["ledger"]["offered"] == 400_000);
    assert_eq!(json("/snapshot.json")["schema"], "weir.watch/1");
    let report = json("/explain.json");
    assert_eq!(report["findings"][0]["rule"], "program-full", "{report}");
    within("the end", Duration::from_secs(5), || {
        json("/history.json")["points"].as_array().unwrap().len() == 40
    });
    let mut events = stream(web);
    let event: serde_json::Value = serde_json::from_str(&next_line(&mut events, "data: ")).unwrap();
    assert_eq!(event["bottleneck"], "consumer");
    assert_eq!((&event["recorded"], &event["point"]["seq"]), (&true.into(), &40.into()));
    assert!(event["finding"]["title"].as_str().unwrap().contains("rsyslogd"), "{event}");
    for path in ["/nothing", "/../Cargo.toml", "/metrics", "//"] {
        assert_eq!(get(web, path).status, 404, "{path}");
    }
}

#[test]
fn the_metrics_are_openmetrics_and_add_up() {
    let (_dir, served) = served(40);
    let metrics = served.metrics.unwrap();
    let scrape = || {
        let got = get(metrics, "/metrics");
        assert!(
            got.head.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
            "{}",
            got.head
        );
        testkit::openmetrics::parse(&got.body).unwrap_or_else(|e| panic!("{e}\n{}", got.body))
    };
    let value = |name: &str| scrape().iter().find(|s| s.name == name).map(|s| s.value);
    within("all intervals", Duration::from_secs(5), || value("weir_intervals_total") == Some(40.0));
    let lost = 20.0 * 360_000.0;
    assert_eq!(value("weir_ledger_offered_packets_total"), Some(20.0 * 440_000.0));
    let samples = scrape();
    let of = |name: &str, key: &str, label: &str| {
        let found = samples.iter().find(|s| s.name == name && s.labels.get(key).is_some_and(|l| l == label));
        found.unwrap_or_else(|| panic!("no {name} of {label}")).value
    };
    assert_eq!(of("weir_ledger_lost_packets_total", "place", "socket"), lost);
    assert_eq!(of("weir_consumer_lost_packets_total", "process", "rsyslogd"), lost);
    assert_eq!(of("weir_finding_lost_packets_total", "rule", "program-full"), lost);
    assert_eq!(of("weir_consumer_level_ratio", "socket", "udp 514"), 1.0);
    assert_eq!((get(metrics, "/").status, get(metrics, "/stream").status), (200, 404));
}

#[test]
fn one_address_has_both() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one.jsonl");
    recording(&file, [second(0, 1, 1)].into_iter());
    // The port of a server that has just ended is free, and taken again at once.
    let first = serve(&file, &["--web", "0"]);
    let address = first.page().to_string();
    assert_eq!(get(first.page(), "/metrics").status, 404, "only what was asked for");
    assert!(first.end().success());
    let both = serve(&file, &["--web", &address, "--metrics", &address]);
    assert_eq!(both.metrics, both.web);
    assert_eq!((get(both.page(), "/metrics").status, get(both.page(), "/").status), (200, 200));
}

#[test]
fn what_is_no_request_is_refused() {
    let (_dir, served) = served(1);
    let web = served.page();
    for (bytes, status) in [
        ("\r\n\r\nnonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n", 421),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405),
        ("PUT /snapshot.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("GET /%2e%2e/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ] {
        let got = say(web, bytes.as_bytes());
        assert_eq!(got.status, status, "{bytes:?}: {}", got.head);
    }
    let endless = format!("GET /{} HTTP/1.1\r\n", "a".repeat(100_000));
    assert_eq!(say(web, endless.as_bytes()).status, 431);
    let headers = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(100));
    assert_eq!(say(web, headers.as_bytes()).status, 431);
    assert_eq!(get(web, "/").status, 200, "and goes on");
}

#[test]
fn a_request_that_does_not_end_ends() {
    let (_dir, served) = served(1);
    let begin = Instant::now();
    let mut slow = open(served.page());
    slow.write_all(b"GET / HT").unwrap();
    assert_eq!(answer(&mut slow).status, 408);
    assert!(begin.elapsed() >= ASK, "{:?}", begin.elapsed());
}

#[test]
fn clients_that_never_read_hold_up_nobody() {
    let (_dir, served) = served(400);
    let (web, metrics) = (served.page(), served.metrics.unwrap());
    // As many as there may be; none of them reads a byte.
    let deaf: Vec<TcpStream> = (0..STREAMS)
        .map(|_| {
            let mut client = open(web);
            write!(client, "GET /stream HTTP/1.1\r\nHost: {web}\r\n\r\n").unwrap();
            client
        })
        .collect();
    within("one stream too many", Duration::from_secs(2), || {
        let mut client = open(web);
        client.set_read_timeout(Some(ms(300))).unwrap();
        write!(client, "GET /stream HTTP/1.1\r\nHost: {web}\r\n\r\n").unwrap();
        let mut start = [0u8; 12];
        matches!(std::io::Read::read_exact(&mut client, &mut start), Ok(()) if &start == b"HTTP/1.1 503")
    });
    let seq = || -> u64 {
        let history: serde_json::Value = serde_json::from_str(&get(web, "/history.json").body).unwrap();
        history["points"].as_array().unwrap().last().unwrap()["seq"].as_u64().unwrap()
    };
    let first = seq();
    // Sampling goes on at its pace, and others are answered meanwhile.
    within("ten more intervals", Duration::from_secs(2), || {
        assert_eq!((get(web, "/").status, get(metrics, "/metrics").status), (200, 200));
        seq() >= first + 10
    });
    drop(deaf);
    within("a place for a stream", Duration::from_secs(2), || {
        let mut client = open(web);
        write!(client, "GET /stream HTTP/1.1\r\nHost: {web}\r\n\r\n").unwrap();
        let mut start = [0u8; 12];
        std::io::Read::read_exact(&mut client, &mut start).unwrap();
        &start == b"HTTP/1.1 200"
    });
}

#[test]
fn too_many_connections_are_told_so() {
    let (_dir, served) = served(1);
    let metrics = served.metrics.unwrap();
    let mut idle: Vec<TcpStream> = (0..CONNECTIONS).map(|_| open(metrics)).collect();
    // Each holds its place for as long as a request may take.
    let got = answer(&mut open(metrics));
    assert_eq!(got.status, 503);
    assert!(got.head.contains("Retry-After: 1"), "{}", got.head);
    assert_eq!(get(served.page(), "/").status, 200, "the page has places of its own");
    idle.clear();
    within("a place", Duration::from_secs(2), || get(metrics, "/metrics").status == 200);
}

#[test]
fn a_stream_ends_with_weir_and_begins_again() {
    let (dir, first) = served(100);
    let web = first.page();
    let mut events = stream(web);
    next_line(&mut events, "data: ");
    assert!(first.end().success());
    next_line(&mut events, "event: end");
    let again = serve(&dir.path().join("night.jsonl"), &["--web", &web.to_string()]);
    let mut events = stream(again.page());
    next_line(&mut events, "data: ");
}

#[test]
fn on_a_terminal_it_serves_too() {
    let dir = tempfile::tempdir().unwrap();
    let (file, said) = (dir.path().join("one.jsonl"), dir.path().join("said"));
    recording(&file, [second(0, 1, 1)].into_iter());
    // script(1) is a terminal; timeout(1) ends weir should this test not.
    let weir = env!("CARGO_BIN_EXE_weir");
    let (replay, errors) = (file.display(), said.display());
    let command = format!("exec timeout 60 {weir} watch --web 0 --replay {replay} 2>{errors}");
    let mut terminal = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = None;
    within("its address", Duration::from_secs(3), || {
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        address =
            text.split("page at http://").nth(1).and_then(|rest| rest.split_once("/\n")?.0.parse().ok());
        address.is_some()
    });
    shown(address.unwrap());
    terminal.kill().unwrap();
    let output = terminal.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is drawn in the terminal");
}

#[test]
fn addresses_are_checked_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one.jsonl");
    recording(&file, [second(0, 1, 1)].into_iter());
    let served = serve(&file, &["--web", "0"]);
    let taken = served.page().to_string();
    let empty = dir.path().join("empty.jsonl");
    std::fs::write(&empty, "").unwrap();
    for (file, address, parts) in [
        (&file, taken.as_str(), ["Address already in use", "give another address or port"]),
        (&empty, "0", ["no interval is in it", "give a file of --record"]),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["watch", "--web", address, "--replay"])
            .arg(file)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn an_address_that_others_reach_is_told_root() {
    testkit::need_root!();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one.jsonl");
    recording(&file, [second(0, 1, 1)].into_iter());
    let ns = testkit::NetNs::new("web");
    ns.sh("ip", &["link", "set", "lo", "up"]);
    let said = ns.run(|| {
        let served = serve(&file, &["--web", "0.0.0.0:0", "--metrics", "0", "--anyone"]);
        let local = std::net::SocketAddr::from(([127, 0, 0, 1], served.page().port()));
        // Here any name may be meant.
        let got = say(local, b"GET / HTTP/1.1\r\nHost: edge1\r\n\r\n");
        assert_eq!(got.status, 200, "{}", got.head);
        served.said.clone()
    });
    assert!(said.iter().any(|line| line.starts_with("weir: not only this host: ")), "{said:?}");
}

/// The first line of the file, as a monitor gives it.
#[test]
fn only_who_knows_the_token_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (file, token) = (dir.path().join("one.jsonl"), dir.path().join("token"));
    recording(&file, [second(0, 1, 1)].into_iter());
    std::fs::write(&token, "a-token-of-this-test\nnot this\n").unwrap();
    let file = ["--replay", file.to_str().unwrap(), "--interval", "100ms"];
    let args = [&file[..], &["--web", "0", "--metrics", "0", "--token", token.to_str().unwrap()]].concat();
    let served = Served::start(&args);
    for (address, path) in [(served.page(), "/"), (served.metrics.unwrap(), "/metrics")] {
        let ask = |header: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
            say(address, request.as_bytes())
        };
        let refused = ask("");
        assert_eq!(refused.status, 401, "{}", refused.head);
        assert!(refused.head.contains("WWW-Authenticate: Basic"), "{}", refused.head);
        assert_eq!(ask("Authorization: Bearer not-this-token-here\r\n").status, 401);
        // Without a first interval there are no metrics yet.
        within("the token opens", Duration::from_secs(5), || {
            ask("Authorization: Bearer a-token-of-this-test\r\n").status == 200
        });
    }
}

/// One address of another host cannot keep out all others; this host is not bounded, since a proxy is one address.
#[test]
fn one_address_has_some_of_the_connections_root() {
    testkit::need_root!();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one.jsonl");
    recording(&file, [second(0, 1, 1)].into_iter());
    let (ns, peer) = (testkit::NetNs::new("weba"), testkit::NetNs::new("webb"));
    ns.sh("ip", &["link", "add", "wa", "type", "veth", "peer", "name", "wb"]);
    ns.sh("ip", &["link", "set", "wb", "netns", peer.name()]);
    for (ns, name, address) in [(&ns, "wa", "198.18.7.1/24"), (&peer, "wb", "198.18.7.2/24")] {
        ns.sh("ip", &["addr", "add", address, "dev", name]);
        ns.sh("ip", &["link", "set", name, "up"]);
        ns.sh("ip", &["link", "set", "lo", "up"]);
    }
    let (served, address) = ns.run(|| {
        let served = Served::start(&[
            "--replay",
            file.to_str().unwrap(),
            "--interval",
            "100ms",
            "--web",
            "198.18.7.1:0",
            "--anyone",
        ]);
        let address = served.page();
        (served, address)
    });
    let request = b"GET / HTTP/1.1\r\nHost: edge1\r\n\r\n";
    let held: Vec<std::net::TcpStream> =
        peer.run(|| (0..PER_PEER).map(|_| std::net::TcpStream::connect(address).unwrap()).collect());
    // Each holds its place for as long as a request may take. What is refused has not been read.
    assert_eq!(peer.run(|| answer(&mut open(address)).status), 503);
    // From its own address too, of which all of these are.
    let own: Vec<std::net::TcpStream> =
        ns.run(|| (0..PER_PEER).map(|_| std::net::TcpStream::connect(address).unwrap()).collect());
    assert_eq!(ns.run(|| say(address, request).status), 200);
    drop((held, own));
    within("it may again", ASK, || peer.run(|| say(address, request).status) == 200);
    drop(served);
}
