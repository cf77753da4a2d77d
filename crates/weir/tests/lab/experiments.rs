//! Each experiment of the lab in its shortest form: it measures something, judges it, draws it, and leaves nothing.

use std::process::Command;

use crate::common::world::bind_to;
use crate::common::{HOST_CPU, WIRE_CPU, alone, possible};
use results::Document;

/// Runs one and answers its result.
fn run(name: &str, more: &str) -> Document {
    // The lab needs both CPUs; the lock has bound this thread to one.
    bind_to(&[WIRE_CPU, HOST_CPU]);
    let dir = tempfile::tempdir().unwrap();
    let file = |what: &str| dir.path().join(what).to_string_lossy().into_owned();
    let (json, html) = (file("result.json"), file("report.html"));
    let words = format!("lab run {name} --quick --busy --retries 1 --json {json} --html {html} {more}");
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(words.split_whitespace()).output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(matches!(output.status.code(), Some(0 | 1)), "{name}: {err}");
    assert!(out.contains("claim") && out.lines().all(|l| l.chars().count() <= 80), "{out}{err}");
    let page = std::fs::read_to_string(html).unwrap();
    let document = Document::read(json.as_ref()).unwrap();
    assert_eq!(document.experiment, name);
    assert!(!document.verdict.is_empty(), "{name} judges nothing");
    assert!(document.panels.iter().all(|p| page.contains(&p.title)), "{name}: a panel is not in the report");
    let marks = document.panels.iter().flat_map(|p| &p.lines).flat_map(|l| &l.marks);
    assert!(marks.clone().count() > 0 && marks.clone().all(|m| m.y.is_finite()), "{name}: {document:?}");
    document
}

#[test]
fn no_harm_compares_throughput_root() {
    if !possible("no_harm_compares_throughput_root") {
        return;
    }
    let installed =
        |p: &str| ["/usr/bin", "/usr/sbin"].iter().any(|d| std::path::Path::new(d).join(p).exists());
    if !["iperf3", "nginx", "wrk"].into_iter().all(installed) {
        eprintln!(
            "skipped: no_harm_compares_throughput_root needs iperf3, nginx and wrk; apt-get install iperf3 nginx wrk"
        );
        return;
    }
    let _alone = alone();
    let document = run("no-harm", "--pairs 1 --duration 200ms");
    assert_eq!(document.panels[0].lines.len(), 2, "{:?}", document.panels[0]);
    for line in &document.panels[0].lines {
        assert_eq!(line.marks.len(), 3, "{line:?}");
        assert!(line.marks.iter().all(|m| m.y > 0.1), "{line:?}");
    }
}

#[test]
fn control_traffic_measures_every_flow_root() {
    if !possible("control_traffic_measures_every_flow_root") {
        return;
    }
    let _alone = alone();
    // 1 x is given, so that nothing is searched for.
    let words = "--repeat 1 --base-pps 200000 --duration 200ms --multiples 4 --arms stock-timer,weir";
    let document = run("control-traffic", words);
    let unloaded = document.panels.iter().find(|p| p.title == "unloaded").unwrap();
    for line in &unloaded.lines {
        assert!(line.marks.len() == 2 && line.marks.iter().all(|m| m.y > 0.0 && m.y < 50_000.0), "{line:?}");
    }
    // Without a flood nobody loses a session; beside one the stock kernel may.
    assert!(document.verdict.iter().any(|v| v.claim.contains("session")), "{:?}", document.verdict);
}

#[test]
fn innocents_are_asked_beside_a_flood_root() {
    if !possible("innocents_are_asked_beside_a_flood_root") {
        return;
    }
    let _alone = alone();
    let document = run("innocents", "--duration 200ms --rates 300000 --arms stock-irq,weir");
    let panel = |title: &str| document.panels.iter().find(|p| p.title == title).unwrap();
    // Without a flood the server answers, whatever else runs on the machine: half of it is less than that.
    let hog = panel("beside one hog");
    assert!(hog.lines.len() == 2 && hog.lines.iter().all(|l| l.marks[0].y > 50.0), "{hog:?}");
    for kind in ["reader", "closed-port"] {
        let answered = panel(&format!("answered beside {kind}"));
        let shares = answered.lines.iter().filter(|l| !l.bound).flat_map(|l| &l.marks);
        assert!(shares.clone().count() == 2 && shares.clone().all(|m| m.y <= 100.0), "{answered:?}");
    }
    assert!(["P11", "P12"].iter().all(|id| document.verdict.iter().any(|v| v.id == *id)));
}

/// Without a flood connections are served, whatever else runs on the machine: half of them is less than that.
#[test]
fn connections_are_asked_for_beside_a_flood_over_tcp_root() {
    if !possible("connections_are_asked_for_beside_a_flood_over_tcp_root") {
        return;
    }
    let _alone = alone();
    let document = run("syn-flood", "--duration 300ms --rates 100000 --arms stock-timer,weir");
    for flood in ["SYNs", "ACKs"] {
        let title = format!("served at the other listener, {flood}");
        let served = document.panels.iter().find(|p| p.title == title).unwrap();
        assert_eq!(served.lines.len(), 2, "{served:?}");
        for line in &served.lines {
            assert!(line.marks.len() == 2 && line.marks[0].y > 50.0, "{line:?}");
            assert!(line.marks.iter().all(|m| m.y <= 100.0), "{line:?}");
        }
    }
    assert_eq!(document.verdict.iter().filter(|v| v.id == "P11").count(), 2);
}

#[test]
fn quiet_senders_ask_beside_a_loud_one_root() {
    if !possible("quiet_senders_ask_beside_a_loud_one_root") {
        return;
    }
    let _alone = alone();
    let document = run("fair-sources", "--duration 200ms --rates 300000 --arms stock-irq,weir");
    let answered = &document.panels[0];
    let shares: Vec<f64> = answered.lines.iter().flat_map(|l| &l.marks).map(|m| m.y).collect();
    // How large they are is the experiment's claim; that questions are answered at all shows that they arrive.
    assert!(shares.len() == 2 && shares.iter().all(|y| (0.0..=100.0).contains(y)), "{answered:?}");
    assert!(shares.iter().any(|y| *y > 1.0), "{answered:?}");
    assert_eq!(document.verdict.iter().filter(|v| v.claim.starts_with("weir:")).count(), 2);
}

#[test]
fn shed_cost_compares_with_bare_drops_root() {
    if !possible("shed_cost_compares_with_bare_drops_root") {
        return;
    }
    let _alone = alone();
    let document = run("shed-cost", "--repeat 1 --duration 200ms");
    let cost = &document.panels[0];
    for bare in ["xdp-drop-all", "xdp-read-and-drop"] {
        let drop = cost.lines.iter().find(|l| l.name == bare).unwrap();
        assert!(drop.marks.iter().all(|m| (5.0..5000.0).contains(&m.y)), "a bare drop costs {drop:?}");
        let dropped = document.panels[1].lines.iter().find(|l| l.name == bare).unwrap();
        assert!(dropped.marks.iter().all(|m| m.y > 95.0), "{bare} lets frames through: {dropped:?}");
    }
    // Guard or kernel polls what is shed, by the rate: either way it has a cost.
    let shed = cost.lines.iter().find(|l| l.name == "shed").unwrap();
    assert!(shed.marks.len() == 3 && shed.marks.iter().all(|m| (5.0..50_000.0).contains(&m.y)), "{shed:?}");
    let p5: Vec<_> = document.verdict.iter().filter(|v| v.id == "P5").collect();
    assert!(p5.len() == 1 && p5[0].claim.contains("reads the headers"), "{p5:?}");
}

/// Panels by title, each with so many lines of finite shares from 0 to 100.
fn shares<'a>(document: &'a Document, title: &str, lines: usize) -> Vec<&'a results::Mark> {
    let panel = document.panels.iter().find(|p| p.title == title).unwrap();
    assert_eq!(panel.lines.len(), lines, "{panel:?}");
    let marks: Vec<_> = panel.lines.iter().flat_map(|l| &l.marks).collect();
    assert!(marks.iter().all(|m| (0.0..=100.0).contains(&m.y)), "{panel:?}");
    marks
}

/// How much reaches them is the experiment's claim; that anything does shows that it arrives where it is counted.
#[test]
fn of_many_programs_the_others_are_reached_root() {
    if !possible("of_many_programs_the_others_are_reached_root") {
        return;
    }
    let _alone = alone();
    let document = run("many-consumers", "--duration 300ms --rates 50000 --arms stock-timer,weir");
    let reached = shares(&document, "reached the others", 2);
    assert!(reached.iter().any(|m| m.y > 1.0), "{reached:?}");
    shares(&document, "reached the worst of the others", 2);
    assert_eq!(document.verdict.len(), 2);
}

/// What the guard says about it is checked for its place only: how much is shed depends on the machine.
#[test]
fn a_capture_sees_something_and_the_guard_counts_root() {
    if !possible("a_capture_sees_something_and_the_guard_counts_root") {
        return;
    }
    let _alone = alone();
    let document = run("capture", "--duration 200ms --rates 300000 --kind all --arms stock-timer,weir");
    let seen = &document.panels.iter().find(|p| p.title == "seen by the capture").unwrap().lines[0].marks[0];
    assert!(seen.y > 0.0, "{seen:?}");
    shares(&document, "missed by the guard's count", 1);
}

/// Without a flood worth the name the server answers somebody, whatever else runs on the machine.
#[test]
fn a_program_of_the_distribution_is_asked_root() {
    const NAME: &str = "a_program_of_the_distribution_is_asked_root";
    if !possible(NAME) {
        return;
    }
    if !std::path::Path::new("/usr/sbin/nginx").is_file() {
        eprintln!("skipped: {NAME} needs nginx; apt-get install nginx");
        return;
    }
    let _alone = alone();
    let document = run("real-programs", "--rates 20000 --kind nginx --arms stock-timer,weir");
    let served = document.panels.iter().filter(|p| p.title.starts_with("served"));
    let best = served.flat_map(|p| &p.lines).flat_map(|l| &l.marks).map(|m| m.y).fold(0.0, f64::max);
    assert!(best > 10.0, "{:?}", document.panels);
}

#[test]
fn containers_and_buffers_are_measured_root() {
    const NAME: &str = "containers_and_buffers_are_measured_root";
    if !possible(NAME) {
        return;
    }
    let _alone = alone();
    let document = run("small-buffers", "--duration 200ms --rates 300000 --arms stock-timer,weir");
    shares(&document, "lost in the socket", 2);
    if std::process::Command::new("nft").arg("--version").output().is_err() {
        eprintln!("skipped: a part of {NAME} needs nft: apt-get install nftables");
        return;
    }
    let document = run("containers", "--duration 200ms --rates 50000 --kind three --arms stock-timer,weir");
    let reached = shares(&document, "reached the other program", 2);
    assert!(reached.iter().any(|m| m.y > 1.0), "{reached:?}");
}

/// How large the figures are is the experiments' claims; that each is there shows that every part of the rig did its work.
#[test]
fn connections_of_a_server_with_workers_are_measured_root() {
    if !possible("connections_of_a_server_with_workers_are_measured_root") {
        return;
    }
    let _alone = alone();
    let document = run("accept", "--repeat 1 --duration 300ms --arms hash,weir");
    for panel in &document.panels {
        assert_eq!(panel.lines.iter().filter(|l| l.marks.len() == 1).count(), 2, "{panel:?}");
    }
    assert_eq!((document.panels.len(), document.verdict.len()), (7, 3));
    assert!(shares(&document, "received and served on the same CPU", 2).iter().any(|m| m.y > 0.0));
    let document = run("accept-skew", "--repeat 1 --kind sleep-100ms --arms hash,haproxy-rule,weir");
    // A stall need not catch anybody.
    let others = document.panels.iter().filter(|p| !p.title.contains("caught"));
    let full = others.filter(|p| p.lines.len() == 3 && p.lines.iter().all(|l| l.marks.len() == 1));
    assert_eq!((full.count(), document.verdict.len()), (6, 2), "{:?}", document.panels);
    if std::path::Path::new("/usr/sbin/nginx").exists() {
        // Long enough for nginx to write a block of its log also where it serves little.
        let document = run("proxy", "--repeat 1 --duration 1s --arms hash,weir");
        assert_eq!((document.panels.len(), document.verdict.len()), (7, 3));
        for panel in document.panels.iter().filter(|p| p.title.contains("on their own core")) {
            assert_eq!(panel.lines.iter().filter(|l| l.marks.len() == 1).count(), 2, "{panel:?}");
        }
    } else {
        eprintln!("proxy: skipped, no nginx; apt-get install nginx");
    }
    let document = run("udp-group", "--repeat 1 --arms hash,weir");
    assert!(
        shares(&document, "answered of those that came while a member stood", 2).iter().all(|m| m.y > 0.0),
        "{:?}",
        document.panels
    );
}

#[test]
fn the_interrupt_is_on_the_workers_cpu_or_on_the_other_one_root() {
    if !possible("the_interrupt_is_on_the_workers_cpu_or_on_the_other_one_root") {
        return;
    }
    let _alone = alone();
    let document = run("affinity", "--repeat 1 --duration 300ms --kind halting");
    assert_eq!((document.panels.len(), document.verdict.len()), (8, 2));
    let panel = document.panels.iter().find(|p| p.title.contains("polls of the queue")).expect("the panel");
    let at = |arm: &str| panel.at(arm, 1000.0).unwrap_or_else(|| panic!("{arm}: {panel:?}"));
    assert!(at("affine") > 90.0 && at("non-affine") < 10.0, "{panel:?}");
}

/// That each figure is there shows that it is counted; only what a net CPU does whatever else the machine does is asserted.
#[test]
fn a_net_cpu_is_measured_beside_softirq_there_root() {
    if !possible("a_net_cpu_is_measured_beside_softirq_there_root") {
        return;
    }
    let _alone = alone();
    let document = run("cpu-net", "--repeat 1 --duration 200ms --arms split,weir");
    let at = |title: &str, arm: &str| {
        let panel = document.panels.iter().find(|p| p.title.contains(title)).expect("the panel");
        panel.at(arm, 20e3).unwrap_or_else(|| panic!("{arm}: {panel:?}"))
    };
    for arm in ["split", "weir"] {
        assert!(at("switches", arm) > 0.0 && at("CPU time", arm) > 0.0);
    }
    // The kernel's softirq does not poll what a net CPU polls.
    assert!(at("NET_RX", "weir") < at("NET_RX", "split"), "{:?}", document.panels[1]);
    assert!(at("weir", "weir") > 0.0);
    assert_eq!(document.verdict.len(), 6, "{:?}", document.verdict);
}

/// That datagrams arrive and are counted whoever sends them; how fast depends on what else the machine does, and nothing is said of it.
#[test]
fn a_program_and_the_kernel_thread_of_its_io_uring_send_root() {
    if !possible("a_program_and_the_kernel_thread_of_its_io_uring_send_root") {
        return;
    }
    let _alone = alone();
    let document = run("transmit", "--repeat 1 --duration 200ms");
    let at = |title: &str, arm: &str| {
        let panel = document.panels.iter().find(|p| p.title.starts_with(title)).expect("the panel");
        panel.at(arm, 20e3)
    };
    let refused = document.parameters["skipped"] != serde_json::json!([]);
    for arm in ["sendto", "sendmmsg", "sqpoll-net"].into_iter().take(if refused { 2 } else { 3 }) {
        assert!(at("arrived", arm) > Some(0.0) && at("CPU time of the program", arm) > Some(0.0), "{arm}");
    }
    assert_eq!(at("system calls", "sendto"), Some(1000.0));
    assert_eq!(document.verdict.len(), 5, "{:?}", document.verdict);
}
