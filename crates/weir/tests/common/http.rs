//! `weir watch --web --metrics` as a child, and the smallest client that shows what a server does.

use super::within;
use see::Snapshot;
use see::model::{Consumer, Cpu, Interface, Kind, Ledger, Place, Process, Stage};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a client here waits for anything.
pub const WAIT: Duration = Duration::from_secs(20);

/// A weir that serves; killed when dropped.
pub struct Served {
    child: Child,
    /// Address of the page.
    pub web: Option<SocketAddr>,
    /// Address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// Lines on standard error until both were told.
    pub said: Vec<String>,
}

impl Served {
    /// Starts `weir watch` with `args` and waits until it has told its addresses.
    pub fn start(args: &[&str]) -> Served {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("watch")
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut served = Served { child, web: None, metrics: None, said: Vec::new() };
        let wanted = |option: &str| args.contains(&option);
        while (wanted("--web") && served.web.is_none()) || (wanted("--metrics") && served.metrics.is_none()) {
            let line = lines.next().unwrap_or_else(|| panic!("weir ended: {:?}", served.said)).unwrap();
            let address = || line.split("http://").nth(1)?.split('/').next()?.parse().ok();
            match line.strip_prefix("weir: ").unwrap_or_default() {
                text if text.starts_with("page at ") => served.web = address(),
                text if text.starts_with("metrics at ") => served.metrics = address(),
                _ => {}
            }
            served.said.push(line);
        }
        // What follows must not fill a pipe.
        std::thread::spawn(move || lines.for_each(drop));
        served
    }

    /// Address of the page.
    pub fn page(&self) -> SocketAddr {
        self.web.unwrap()
    }

    /// Asks it to end and waits.
    pub fn end(mut self) -> ExitStatus {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let mut status = None;
        within("weir ends", Duration::from_secs(2), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer.
pub struct Got {
    /// Status code.
    pub status: u16,
    /// Head, with the status line.
    pub head: String,
    /// What follows it.
    pub body: String,
}

/// A connection that gives up after [`WAIT`].
pub fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, WAIT).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    stream.set_write_timeout(Some(WAIT)).unwrap();
    stream
}

/// Sends `bytes` and reads until the server closes.
pub fn say(address: SocketAddr, bytes: &[u8]) -> Got {
    let mut stream = open(address);
    // A server that has refused already may have closed.
    let _ = stream.write_all(bytes);
    answer(&mut stream)
}

/// Reads until the server closes; panics after [`WAIT`].
pub fn answer(stream: &mut TcpStream) -> Got {
    let (mut bytes, mut chunk, begin) = (Vec::new(), [0u8; 16 * 1024], Instant::now());
    loop {
        match stream.read(&mut chunk).unwrap() {
            0 => break,
            n => bytes.extend_from_slice(&chunk[..n]),
        }
        assert!(begin.elapsed() < WAIT, "it does not end: {}", String::from_utf8_lossy(&bytes));
    }
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Got { status, head: head.to_owned(), body: body.to_owned() }
}

/// `GET` or `HEAD` of `path`.
pub fn ask(address: SocketAddr, method: &str, path: &str) -> Got {
    say(address, format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
}

/// `GET` of `path`.
pub fn get(address: SocketAddr, path: &str) -> Got {
    ask(address, "GET", path)
}

/// A connection to the stream whose head has been read, and its first `bytes` bytes at least.
pub fn stream(address: SocketAddr) -> BufReader<TcpStream> {
    let mut stream = open(address);
    write!(stream, "GET /stream HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    reader
}

/// The next line of `reader` that begins with `start`.
pub fn next_line(reader: &mut BufReader<TcpStream>, start: &str) -> String {
    let begin = Instant::now();
    loop {
        let mut line = String::new();
        let n = reader.read_line(&mut line).unwrap();
        assert!(n > 0 && begin.elapsed() < WAIT, "no {start}");
        if let Some(rest) = line.strip_prefix(start) {
            return rest.trim_end().to_owned();
        }
    }
}

/// One second in which `read` of `offered` thousand datagrams were read and the rest found the socket full.
pub fn second(number: u64, offered: u64, read: u64) -> Snapshot {
    let (offered, read) = (offered * 1000, read * 1000);
    let lost = offered - read;
    let stage =
        |place, came: u64, left: u64| Stage { place, r#in: Some(came), out: Some(left), ..Stage::default() };
    let mut consumer = stage(Place::Consumer, offered, read);
    let full = lost > 0;
    consumer.level = Some(if full { 1.0 } else { 0.1 });
    let drops = || if full { [("socket".to_owned(), lost)].into() } else { Default::default() };
    consumer.drops = drops();
    let queue = Consumer {
        kind: Kind::Udp,
        socket: "udp 514".into(),
        local: "0.0.0.0:514".into(),
        id: 77,
        pid: 1204,
        process: "rsyslogd".into(),
        waiting: if full { 212_992 } else { 21_000 },
        limit: 212_992,
        level: consumer.level,
        r#in: Some(offered),
        out: Some(read),
        lost: Some(lost),
        full_in_s: full.then_some(0.0),
        ..Consumer::default()
    };
    Snapshot {
        schema: see::SCHEMA.into(),
        host: "edge1".into(),
        time_s: 1_795_000_000.0 + number as f64,
        interval_s: 1.0,
        path: vec![
            stage(Place::Ring, offered, offered),
            stage(Place::Napi, offered, offered),
            Stage { place: Place::Backlog, level: Some(0.0), ..Stage::default() },
            stage(Place::Stack, offered, offered),
            consumer,
            Stage { place: Place::Program, r#in: Some(read), ..Stage::default() },
            stage(Place::Output, 100, 100),
        ],
        interfaces: vec![Interface { name: "eth0".into(), up: true, offered, ..Interface::default() }],
        cpus: vec![
            Cpu { cpu: 0, programs: 0.05, idle: 0.95, ..Cpu::default() },
            Cpu { cpu: 1, softirq: 0.3, programs: 0.65, idle: 0.05, ..Cpu::default() },
        ],
        consumers: vec![queue],
        processes: vec![Process {
            pid: 1204,
            name: "rsyslogd".into(),
            state: "R".into(),
            cpu: 1,
            runs: if full { 0.97 } else { 0.2 },
            receives: true,
            ..Process::default()
        }],
        ledger: Ledger {
            offered,
            delivered: [("udp".to_owned(), read)].into(),
            drops: drops(),
            skew: 12,
            sent: 100,
            ..Ledger::default()
        },
        ..Snapshot::default()
    }
}

/// Writes a recording of `snapshots` as `--record` does.
pub fn recording(file: &Path, snapshots: impl Iterator<Item = Snapshot>) {
    let lines: String = snapshots.map(|s| serde_json::to_string(&s).unwrap() + "\n").collect();
    std::fs::write(file, lines).unwrap();
}

/// Waits until the page at `address` has an interval to show.
pub fn shown(address: SocketAddr) {
    within("the first interval", Duration::from_secs(3), || get(address, "/snapshot.json").status == 200);
}
