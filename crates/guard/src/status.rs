//! What a running guard says of itself, and the directory of the sockets by which it is asked.

use crate::error::{failed, missing};
use crate::out::shown;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// What running programs are called in the names of their sockets: those of `weir guard` and of `weir accept`.
pub const KINDS: [&str; 2] = [GUARD, ACCEPT];
/// See [`KINDS`].
pub const GUARD: &str = "guard";
/// See [`KINDS`].
pub const ACCEPT: &str = "accept";
/// Schema string of [`Status`].
pub const SCHEMA: &str = "weir.status/1";
/// Programs that are asked.
pub const GUARDS_MAX: usize = 256;

/// What one guard does. Counts are those of the last interval, not rates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Process id of the guard.
    pub pid: u32,
    /// When the interval ended, RFC 3339, UTC.
    pub time: String,
    /// The same, CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// Inode of its network namespace.
    pub netns: u64,
    /// Length of the interval.
    pub interval_s: f64,
    /// Guarded interfaces.
    pub interfaces: Vec<Interface>,
    /// Consumers with a drop or above low water, at most 64.
    pub consumers: Vec<Consumer>,
    /// Other consumers.
    pub consumers_quiet: u64,
    /// CPUs with a guarded source.
    pub cpus: Vec<Cpu>,
    /// Rules whose frames are protected.
    pub protect: Vec<String>,
    /// Settings that are changed now and will be put back.
    pub settings_changed: u64,
    /// Takeovers and releases since the guard started.
    pub mode_switches: u64,
    /// Pollers, one per CPU in use; counts since the guard started.
    pub pollers: Vec<Poller>,
    /// Changes of mode in the interval, at most 256.
    pub changes: Vec<Change>,
    /// What happened in the interval.
    pub events: Vec<String>,
    /// What this guard has to do without, and why, one line each.
    pub missing: Vec<String>,
    /// Lines of `--status` that nobody took, since the guard started; in the lines of `--status` only.
    pub status_lines_dropped: u64,
    /// Lines on standard error that nobody took, or that too many others of one second left out, since the guard started.
    pub log_lines_dropped: u64,
    /// Messages between its threads that did not fit into their queue, since the start.
    pub messages_lost: u64,
    /// Times a full socket got no place among the consumers, since the guard started; it asks again once a second.
    pub consumers_refused: u64,
    /// Times a consumer made room for another one, since the guard started.
    pub consumers_evicted: u64,
    /// Losses of untracked sockets that the guard could not hear of, because too many lost at once.
    pub consumers_untold: u64,
    /// Datagrams that full sockets refused and no guarded interface had carried, since the guard started: evidence of nothing.
    pub losses_foreign: u64,
    /// Datagrams that full sockets of other network namespaces refused, as many as guarded interfaces had brought: evidence.
    pub losses_behind: u64,
    /// Datagrams for containers that nothing was learnt from: too many destinations, or a translation that the kernel does not tell.
    pub behind_unknown: u64,
    /// Listeners that made room for another one while their SYNs were counted: more SYNs pass for them.
    pub listeners_crowded: u64,
}

/// One change of mode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// When, CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// `takeover`, `release` or `refused`.
    pub kind: String,
    /// Source.
    pub source: String,
    /// Reason.
    pub why: String,
}

/// One poller; counts since the guard started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Poller {
    /// Its CPU.
    pub cpu: u32,
    /// Of its CPU in mode net: `net`, or `host` while it is not needed for packets; else empty.
    pub role: String,
    /// `fifo` or `other`.
    pub sched: String,
    /// Sources in poll mode at present.
    pub polling: u32,
    /// Turns.
    pub turns: u64,
    /// Packets handed up.
    pub packets: u64,
    /// Turns that only held a pause.
    pub heartbeats: u64,
    /// Turns in a pause, in search of packets for others than who is full.
    pub looks: u64,
    /// Sleeps after a drained ring.
    pub naps: u64,
    /// Sleeps because the budget was spent.
    pub budget_sleeps: u64,
    /// Sleeps because all input was for full consumers.
    pub feedback_sleeps: u64,
    /// Inhibits.
    pub inhibits: u64,
    /// Inhibits that the timeout ended.
    pub timeouts: u64,
    /// Times the reserve was lent.
    pub lent: u64,
    /// CPU time spent on packets, ns.
    pub busy_ns: u64,
    /// CPU time of NET_RX softirqs on its CPU, ns.
    pub softirq_ns: u64,
}

/// One guarded interface.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The name that the guard was started with, if it has another one by now; else empty.
    pub wanted: String,
    /// Its XDP program is attached.
    pub gate: bool,
    /// `guarded`, or why not: `gone`, `down`, ...
    pub state: String,
    /// Its XDP program: `attached` or `waits`, and when it is attached and why then; empty without one.
    pub xdp: String,
    /// Packets that arrived at the device: those that it received, and those that it dropped before (`ring` and other places
    /// of `drops`) as far as the counters tell that every device has. Absent in the first status, which has nothing to compare
    /// with.
    pub offered: Option<u64>,
    /// Packets that reached their consumer.
    pub delivered: Option<u64>,
    /// Drops by place: `shed` and `handle` by weir, `ring` and others by the device.
    pub drops: BTreeMap<String, u64>,
    /// The same drops since the guard started, those of the device since its first status.
    pub drops_total: BTreeMap<String, u64>,
    /// Packets between the device and a consumer when the interval ended.
    pub in_flight: Option<u64>,
    /// Captures on it.
    pub taps: Taps,
    /// Its sources.
    pub sources: Vec<Source>,
}

/// Packet sockets (tcpdump, a DHCP client) that see the frames of an interface, but not those that are shed before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Taps {
    /// Open now.
    pub open: u64,
    /// Frames shed while one was open, since the guard started.
    pub missed: u64,
}

/// One source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Source {
    /// Such as `eth0/1`.
    pub name: String,
    /// CPU that polls it or would.
    pub cpu: u32,
    /// `interrupt`, `poll`, `shed` or `thread`.
    pub mode: String,
    /// Why this mode and this CPU.
    pub reason: String,
    /// Packets handed up.
    pub packets: Option<u64>,
    /// Turns of the poller.
    pub turns: Option<u64>,
    /// Polls that were not the poller's while the source was polled.
    pub foreign_polls: Option<u64>,
    /// What its turns go through while it is polled: `socket`, or `io_uring` where no packet could mark one yet.
    pub handle: String,
    /// NAPI id, 0 if unknown.
    pub napi_id: u32,
    /// Changes of mode since the source is known.
    pub mode_switches: u64,
    /// Turns that found the NAPI owned by somebody else.
    pub refused_turns: u64,
    /// Frames by class, while the source was polled: normal, protected.
    pub classes: BTreeMap<String, u64>,
    /// Of the normal ones, those that a rule protects, but not that many of them.
    pub over_bound: u64,
    /// The rule of the last of these; empty: none in this interval.
    pub over_bound_rule: String,
    /// Frames shed, which are of the normal ones.
    pub shed: u64,
    /// Of these, those that nobody would have taken: no socket has their port, their very flow was refused, or no connection has the
    /// segment.
    pub nobody: u64,
    /// Of those shed, SYNs: for listeners that accept nothing more, or that have had their share.
    pub syns: u64,
    /// Of these too, those that there was room for, but held for senders that have had less.
    pub over_share: u64,
    /// Since the guard started.
    pub total: Option<SourceTotal>,
}

/// Counts of one source since the guard started: who asks now and then knows what happened meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceTotal {
    /// Packets handed up.
    pub packets: u64,
    /// Turns of the poller.
    pub turns: u64,
    /// Polls that were not the poller's, in any mode.
    pub other_polls: u64,
    /// Frames by class.
    pub classes: BTreeMap<String, u64>,
    /// Frames shed, which are of the normal ones.
    pub shed: u64,
    /// Of these, those that nobody would have taken.
    pub nobody: u64,
    /// Of those shed, SYNs.
    pub syns: u64,
    /// Of these too, those of senders over their share.
    pub over_share: u64,
    /// Frames that a rule protects, beyond their bound: they count as normal.
    pub over_bound: u64,
}

/// One consumer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Consumer {
    /// Program's name.
    pub process: String,
    /// Program's process id.
    pub pid: u32,
    /// Such as `udp 514`.
    pub socket: String,
    /// Inode of its network namespace, if it is another one than the guard's (a container); else 0.
    pub netns: u64,
    /// Address there that its packets go to; empty for IPv6, and in the guard's own namespace.
    pub address: String,
    /// Used part of its buffer, 0 to 1, as read last; `None` while no source is polled or sheds, since nothing reads it then.
    pub level: Option<f64>,
    /// Packets that came in.
    pub r#in: Option<u64>,
    /// Packets the program read.
    pub out: Option<u64>,
    /// Packets shed for it.
    pub shed: Option<u64>,
    /// Packets lost at its full queue.
    pub lost: Option<u64>,
    /// Times it was inhibited.
    pub inhibits: Option<u64>,
    /// Whether it is inhibited now.
    pub inhibited: bool,
}

/// Where one CPU's time went, shares from 0 to 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Its number.
    pub cpu: u32,
    /// Interrupt handlers.
    pub irq: Option<f64>,
    /// Softirq.
    pub softirq: Option<f64>,
    /// weir, with the packet work of its turns.
    pub weir: Option<f64>,
    /// Programs.
    pub programs: Option<f64>,
    /// Nothing to do.
    pub idle: Option<f64>,
    /// Share of the budget that was used.
    pub budget_used: Option<f64>,
    /// What programs are sure to get.
    pub reserve: f64,
}

/// Removes the sockets that dead programs have left in `dir`. A live one is never touched: it accepts connections, or
/// is about to.
pub fn sweep(dir: &Path) {
    for (pid, path) in KINDS.iter().flat_map(|kind| sockets(dir, kind).unwrap_or_default()) {
        let refused = UnixStream::connect(&path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
        if refused && kern::proc::start_time(pid).is_none() {
            // Left over for the next time.
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Sockets of running programs of a kind in `dir` by process id, at most [`GUARDS_MAX`].
///
/// # Errors
/// 3 if only root may look, 1 if the directory cannot be read.
pub fn sockets(dir: &Path, kind: &str) -> anyhow::Result<Vec<(u32, PathBuf)>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) if err.kind() == ErrorKind::PermissionDenied => {
            return Err(missing("status: only root may ask the guards; run it with sudo"));
        }
        Err(err) => return Err(failed(format!("{}: {err}", shown(&dir.to_string_lossy())))),
    };
    let mut list: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let pid =
                name.to_str()?.strip_prefix(kind)?.strip_prefix('-')?.strip_suffix(".sock")?.parse().ok()?;
            Some((pid, entry.path()))
        })
        .take(GUARDS_MAX)
        .collect();
    list.sort();
    Ok(list)
}
