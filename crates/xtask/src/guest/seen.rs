//! What can be seen in a machine: interrupts, polls, weir's own words, what the program has read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;

/// Version of the running kernel; zeros if it cannot be read.
pub fn kernel() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Waits until `state`, at most `seconds`; the last answer.
pub fn wait(seconds: u64, mut state: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        if state() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Interrupts of the receive queues so far, by their lines in /proc/interrupts.
pub fn interrupts() -> u64 {
    let text = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    text.lines()
        .filter(|l| {
            let name = l.split_whitespace().last().unwrap_or_default();
            name.contains("-input.")
                || name.contains("-rx-")
                || name.contains("-rxtx-")
                || name.contains("-TxRx-")
        })
        .flat_map(|l| l.split_whitespace().skip(1).map_while(|w| w.parse::<u64>().ok()))
        .sum()
}

/// Packets that the interface has received.
pub fn received() -> u64 {
    number("/sys/class/net/eth0/statistics/rx_packets")
}

/// A number in a file; 0 if it is not there.
pub fn number(path: &str) -> u64 {
    fs::read_to_string(path).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
}

/// What the polls of eth0 did while they were traced.
#[derive(Default, Debug)]
pub struct Polls {
    /// Polls in weir's turns.
    pub own: u64,
    /// Packets in them.
    pub own_packets: u64,
    /// Others.
    pub foreign: u64,
    /// Packets in them.
    pub foreign_packets: u64,
    /// How many of weir's polls had this budget.
    pub budgets: BTreeMap<u64, u64>,
    /// Most packets of one of weir's polls.
    pub most: u64,
}

const TRACING: &str = "/sys/kernel/tracing";

/// Traces `napi:napi_poll` of eth0 while `during` runs.
pub fn polls(during: impl FnOnce()) -> Polls {
    let put = |file: &str, text: &str| {
        let _ = fs::write(format!("{TRACING}/{file}"), text);
    };
    put("tracing_on", "0");
    put("buffer_size_kb", "8192");
    put("trace", "");
    put("events/napi/napi_poll/filter", "dev_name == \"eth0\"");
    put("events/napi/napi_poll/enable", "1");
    put("tracing_on", "1");
    during();
    put("tracing_on", "0");
    put("events/napi/napi_poll/enable", "0");
    let mut polls = Polls::default();
    for line in fs::read_to_string(format!("{TRACING}/trace")).unwrap_or_default().lines() {
        let Some((who, what)) = line.split_once(" napi_poll: ") else { continue };
        let field = |name: &str| -> u64 {
            let mut words = what.split_whitespace();
            words.find(|w| *w == name);
            words.next().and_then(|w| w.parse().ok()).unwrap_or(0)
        };
        let (packets, budget) = (field("work"), field("budget"));
        // A softirq may borrow the poller's context.
        let flags = who.split('[').nth(1).and_then(|w| w.split_whitespace().nth(1)).unwrap_or_default();
        let softirq = flags.contains(['s', 'h', 'H']);
        if who.contains("weir-poll") && !softirq {
            polls.own += 1;
            polls.own_packets += packets;
            polls.most = polls.most.max(packets);
            *polls.budgets.entry(budget).or_default() += 1;
        } else {
            polls.foreign += 1;
            polls.foreign_packets += packets;
        }
    }
    put("trace", "");
    polls
}

/// Output of weir, standard error included, and its exit code.
pub fn weir(args: &[&str]) -> (i32, String) {
    match Command::new("/bin/weir").args(args).output() {
        Ok(o) => (
            o.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&o.stdout).into_owned() + &String::from_utf8_lossy(&o.stderr),
        ),
        Err(e) => (-1, e.to_string()),
    }
}

/// `weir status`, if a guard answers.
pub fn status() -> Option<Value> {
    let output = Command::new("/bin/weir").args(["status", "--json"]).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// The sources of eth0 as the guard tells.
pub fn sources() -> Vec<Value> {
    status().and_then(|s| s["interfaces"][0]["sources"].as_array().cloned()).unwrap_or_default()
}

/// Changes of mode of all sources so far.
pub fn switches() -> u64 {
    sources().iter().filter_map(|s| s["mode_switches"].as_u64()).sum()
}

/// Sources in `mode`.
pub fn in_mode(mode: &str) -> usize {
    sources().iter().filter(|s| s["mode"] == mode).count()
}

/// Reasons of all sources.
pub fn reasons() -> String {
    let all: Vec<String> = sources()
        .iter()
        .map(|s| {
            format!(
                "{} {}: {}",
                s["name"].as_str().unwrap_or("?"),
                s["mode"].as_str().unwrap_or("?"),
                s["reason"].as_str().unwrap_or("?")
            )
        })
        .collect();
    all.join("; ")
}

/// A running guard.
pub struct Guard {
    child: Child,
    log: String,
}

impl Guard {
    /// Starts it and waits until it is in force.
    pub fn start(args: &[&str]) -> anyhow::Result<Self> {
        // Its keeper must answer within 2 s, which a host with other work can take from an emulated machine.
        Self::try_start(args).or_else(|_| Self::try_start(args)).or_else(|_| Self::try_start(args))
    }

    fn try_start(args: &[&str]) -> anyhow::Result<Self> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = format!("/tmp/guard{number}.log");
        let child = Command::new("/bin/weir")
            .args(["guard", "eth0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()?;
        let mut guard = Self { child, log };
        wait(90, || status().is_some() || !guard.alive());
        if guard.alive() && status().is_some() {
            return Ok(guard);
        }
        anyhow::bail!("the guard does not start: {}", guard.log().trim())
    }

    /// What it said.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it `signal` and waits; its exit code.
    pub fn end(&mut self, signal: i32) -> Option<i32> {
        // SAFETY: plain system call; the child has not been waited for, so the id is its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
        let mut ended = false;
        wait(20, || {
            ended = !self.alive();
            ended
        });
        if !ended {
            let _ = self.child.kill();
        }
        self.child.wait().ok().and_then(|s| s.code())
    }

    /// The keeper's process id.
    pub fn keeper(&self) -> Option<i32> {
        fs::read_dir("/proc").ok()?.flatten().find_map(|e| {
            let pid: i32 = e.file_name().to_str()?.parse().ok()?;
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            line.split(|b| *b == 0).nth(1).filter(|a| *a == b"keeper").map(|_| pid)
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program that reads: datagrams that it has got.
pub struct Sink {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Sink {
    /// Reads port 9000.
    pub fn start() -> anyhow::Result<Self> {
        let mut child = Command::new("/bin/udp-sink")
            .args(["--bind", "0.0.0.0:9000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("its input")?;
        let output = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Self { child, input, output })
    }

    /// Ends the program, and its socket with it.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// All datagrams so far.
    pub fn total(&mut self) -> u64 {
        for _ in 0..4 {
            let mut line = String::new();
            if writeln!(self.input, "report").is_err() || self.output.read_line(&mut line).is_err() {
                return 0;
            }
            if let Some(total) =
                serde_json::from_str::<Value>(&line).ok().and_then(|v| v["total_received"].as_u64())
            {
                return total;
            }
        }
        0
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
    }
}
