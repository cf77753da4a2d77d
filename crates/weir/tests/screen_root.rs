//! `weir screen` in a network namespace of its own: what passes, what does not, what is counted, and how it ends.
//!
//! Why these cannot flake: every datagram has a number, fewer are sent than a queue holds, and the loopback loses none; what
//! is to arrive is waited for, and what is not to arrive can no more once the screen has ended with nothing waiting.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::NetNs;

/// A namespace with its loopback, or what this machine lacks.
fn host(name: &str) -> Option<NetNs> {
    if !testkit::root_or_skip(name) {
        return None;
    }
    if Command::new("iptables").arg("--version").output().is_err() {
        eprintln!("skipped: {name} needs iptables: apt-get install iptables");
        return None;
    }
    let host = NetNs::new("screen");
    host.sh("ip", &["link", "set", "lo", "up"]);
    Some(host)
}

/// Has what comes in by UDP queued, for IPv4 or IPv6.
fn ask(host: &NetNs, program: &str, queue: &str) {
    let words = format!("-w 5 -A INPUT -p udp -j NFQUEUE {queue}");
    host.sh(program, &words.split(' ').collect::<Vec<_>>());
}

/// A running screen; ended when dropped.
struct Screen {
    child: Child,
}

impl Screen {
    /// Starts it and waits until its queues are there.
    fn start(host: &NetNs, words: &[&str], queues: usize) -> Screen {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["screen", "--json", "--interval", "60s"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let before = host.run(kern::proc::filter_queues).len();
        let mut screen = Screen { child: host.run(|| command.spawn()).unwrap() };
        let end = Instant::now() + Duration::from_secs(20);
        while host.run(kern::proc::filter_queues).len() < before + queues {
            assert!(screen.child.try_wait().unwrap().is_none(), "weir screen has ended");
            assert!(Instant::now() < end, "no queue after 20 s");
            std::thread::sleep(Duration::from_millis(5));
        }
        screen
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Ends it; its last report.
    fn end(mut self) -> Value {
        self.signal(Signal::SIGTERM);
        let out = BufReader::new(self.child.stdout.take().unwrap());
        let last = out.lines().map_while(Result::ok).last().expect("a report");
        assert!(self.child.wait().unwrap().success());
        let report: Value = serde_json::from_str(&last).unwrap();
        assert_eq!((&report["schema"], &report["end"]), (&"weir.screen/1".into(), &true.into()));
        for queue in report["queues"].as_array().unwrap() {
            let zero = |name: &str| assert_eq!(queue[name], 0, "{name}: {report:#}");
            ["waiting", "queue_full", "socket_full", "refused"].into_iter().for_each(zero);
        }
        report
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads numbered datagrams until it is dropped.
struct Reader<'a> {
    sockets: Vec<UdpSocket>,
    host: &'a NetNs,
    got: BTreeSet<u32>,
}

impl<'a> Reader<'a> {
    fn new(host: &'a NetNs, ports: &[u16]) -> Reader<'a> {
        let open = |&port: &u16| {
            // One that takes both families.
            let socket = host.run(|| UdpSocket::bind(("::", port))).unwrap();
            socket.set_nonblocking(true).unwrap();
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(16 << 20))
                .unwrap();
            socket
        };
        Reader { sockets: ports.iter().map(open).collect(), host, got: BTreeSet::new() }
    }

    fn read(&mut self) -> usize {
        let mut datagram = [0; 64];
        for socket in &self.sockets {
            while let Ok(length) = socket.recv(&mut datagram) {
                assert!(length >= 4);
                let number = u32::from_ne_bytes(datagram[..4].try_into().unwrap());
                assert!(self.got.insert(number), "{number} came twice");
            }
        }
        self.got.len()
    }

    fn wait(&mut self, packets: usize) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.read() < packets {
            let missing = packets - self.got.len();
            assert!(
                Instant::now() < end,
                "{missing} missing: {:?}",
                self.host.run(kern::proc::filter_queues)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn send(host: &NetNs, number: u32, source: IpAddr, target: SocketAddr, size: usize) {
    let mut datagram = vec![0; size];
    datagram[..4].copy_from_slice(&number.to_ne_bytes());
    let socket = host.run(|| UdpSocket::bind((source, 0))).unwrap();
    assert_eq!(socket.send_to(&datagram, target).unwrap(), size);
}

/// A packet, and the rules that it must hit; the last of them decides.
struct Case {
    source: &'static str,
    target: &'static str,
    hits: &'static [usize],
    passes: bool,
}

const RULES: [&str; 8] = [
    "--deny=src/127.1.0.0/16",
    "--count=dst/127.0.0.1",
    "--accept=udp/7001,7003-7004",
    "--deny=udp/7002",
    "--count=tcp",
    "--deny=src/::1 udp/7005",
    "--accept=::1",
    "--default=deny",
];
/// Index of the default.
const DEFAULT: usize = 7;

const CASES: [Case; 9] = [
    Case { source: "127.0.0.1", target: "127.0.0.1:7001", hits: &[1, 2], passes: true },
    Case { source: "127.1.2.3", target: "127.0.0.1:7001", hits: &[0], passes: false },
    Case { source: "127.2.0.1", target: "127.0.0.2:7004", hits: &[2], passes: true },
    Case { source: "127.0.0.1", target: "127.0.0.1:7002", hits: &[1, 3], passes: false },
    Case { source: "127.0.255.1", target: "127.0.0.9:7005", hits: &[DEFAULT], passes: false },
    Case { source: "::1", target: "[::1]:7001", hits: &[2], passes: true },
    Case { source: "::1", target: "[::1]:7002", hits: &[3], passes: false },
    Case { source: "::1", target: "[::1]:7005", hits: &[5], passes: false },
    Case { source: "::1", target: "[::1]:7006", hits: &[6], passes: true },
];

#[test]
fn each_frame_has_the_verdict_of_its_rule_root() {
    let Some(host) = host("each_frame_has_the_verdict_of_its_rule_root") else { return };
    const ROUNDS: u32 = 60;
    for batch in ["--batch=64", "--batch=1"] {
        let screen = Screen::start(&host, &[&["--queue=5", batch], &RULES[..]].concat(), 1);
        if batch == "--batch=64" {
            ask(&host, "iptables", "--queue-num 5");
            ask(&host, "ip6tables", "--queue-num 5");
        }
        let mut reader = Reader::new(&host, &[7001, 7002, 7003, 7004, 7005, 7006]);
        // Stopped for the first half, so that batches are there to be answered.
        screen.signal(Signal::SIGSTOP);
        let (mut expected, mut hits, mut bytes) = (BTreeSet::new(), [0u64; 8], [0u64; 8]);
        for number in 0..ROUNDS * CASES.len() as u32 {
            // Runs of every length.
            let case = &CASES[(number as usize * 7 + number as usize / 20) % CASES.len()];
            let size = 4 + number as usize % 50;
            let (source, target): (IpAddr, SocketAddr) =
                (case.source.parse().unwrap(), case.target.parse().unwrap());
            send(&host, number, source, target, size);
            for hit in case.hits {
                hits[*hit] += 1;
                bytes[*hit] += (size + 8 + if source.is_ipv4() { 20 } else { 40 }) as u64;
            }
            if case.passes {
                expected.insert(number);
            }
            if number == ROUNDS * CASES.len() as u32 / 2 {
                screen.signal(Signal::SIGCONT);
            }
        }
        reader.wait(expected.len());
        let report = screen.end();
        reader.read();
        assert_eq!(reader.got, expected);
        let counted = |name: &str| -> Vec<u64> {
            let rules = report["rules"].as_array().unwrap().iter();
            rules.chain([&report["default"]]).map(|row| row[name].as_u64().unwrap()).collect()
        };
        assert_eq!(counted("packets"), hits, "{report:#}");
        assert_eq!(counted("bytes"), bytes, "{report:#}");
        assert_eq!(report["accepted"], expected.len());
        assert_eq!(report["unclear"], 0);
        let largest = report["queues"][0]["largest_batch"].as_u64().unwrap();
        // More than a batch waited when it went on.
        assert_eq!(largest, if batch == "--batch=1" { 1 } else { 64 }, "{report:#}");
    }
}

#[test]
fn several_queues_share_the_flows_root() {
    let Some(host) = host("several_queues_share_the_flows_root") else { return };
    let screen = Screen::start(&host, &["--queue=4-7", "--count=udp"], 4);
    ask(&host, "iptables", "--queue-balance 4:7");
    let mut reader = Reader::new(&host, &[7001]);
    for number in 0..512 {
        let source = Ipv4Addr::new(127, 0, 1, (number % 64) as u8);
        send(&host, number, source.into(), "127.0.0.1:7001".parse().unwrap(), 40);
    }
    reader.wait(512);
    let report = screen.end();
    let queues: Vec<u64> =
        report["queues"].as_array().unwrap().iter().map(|q| q["packets"].as_u64().unwrap()).collect();
    assert_eq!(queues.iter().sum::<u64>(), 512);
    // The kernel hashes addresses: that 64 sources have one queue does not happen.
    assert!(queues.iter().filter(|n| **n > 0).count() > 1, "{queues:?}");
    assert_eq!(report["rules"][0]["packets"], 512);
}

/// Sends 4,000 datagrams a second until `stop`.
fn stream(host: &NetNs, stop: &AtomicBool, sent: &AtomicU32) {
    let socket = host.run(|| UdpSocket::bind(("127.0.0.1", 0))).unwrap();
    while !stop.load(Relaxed) && sent.load(Relaxed) < 200_000 {
        for _ in 0..4 {
            let number = sent.fetch_add(1, Relaxed);
            assert_eq!(socket.send_to(&number.to_ne_bytes(), "127.0.0.1:7001").unwrap(), 4);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Raises the flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_screen_comes_and_goes_without_losing_a_packet_root() {
    let Some(host) = host("a_screen_comes_and_goes_without_losing_a_packet_root") else { return };
    // The firewall's line first: packets come from the moment a queue is there.
    ask(&host, "iptables", "--queue-num 5 --queue-bypass");
    let mut reader = Reader::new(&host, &[7001]);
    let (stop, sent) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| stream(&host, &stop, &sent));
        // Its buffer holds what comes in seconds.
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                reader.read();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // Also if an assertion ends this closure.
        let _ends = Ends(&stop);
        for _ in 0..5 {
            // A queue that holds all that is sent while other programs have the CPU.
            let screen = Screen::start(&host, &["--queue=5", "--length=65535"], 1);
            let from = sent.load(Relaxed);
            while sent.load(Relaxed) < from + 500 && !stop.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let report = screen.end();
            assert!(report["packets"].as_u64().unwrap() > 0, "{report:#}");
        }
    });
    reader.wait(sent.load(Relaxed) as usize);
}

#[test]
fn without_a_screen_packets_pass_only_where_that_was_asked_for_root() {
    let Some(host) = host("without_a_screen_packets_pass_only_where_that_was_asked_for_root") else { return };
    ask(&host, "iptables", "--queue-num 5");
    let mut reader = Reader::new(&host, &[7001]);
    let target = "127.0.0.1:7001".parse().unwrap();
    let screen = Screen::start(&host, &["--queue=5", "--fail-closed", "--accept=udp/7001"], 1);
    send(&host, 1, "127.0.0.1".parse().unwrap(), target, 4);
    reader.wait(1);
    screen.end();
    // The loopback delivers within the call that sends.
    send(&host, 2, "127.0.0.1".parse().unwrap(), target, 4);
    assert_eq!(reader.read(), 1);
}

#[test]
fn a_queue_has_one_screen_root() {
    let Some(host) = host("a_queue_has_one_screen_root") else { return };
    let first = Screen::start(&host, &["--queue=9"], 1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["screen", "--queue", "8-9"]).stdin(Stdio::null());
    let output = host.run(|| command.output()).unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("queue 9: another program reads it") && text.lines().count() == 1, "{text}");
    first.end();
    assert!(host.run(kern::proc::filter_queues).is_empty());
}
