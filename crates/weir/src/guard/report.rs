//! What the guard tells: lines on standard error, status objects for `--status` and `weir status`.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use kern::journal::{Fate, Outcome};
use policy::Nanos;
use policy::classes::Class;

use super::arrived::Arrived;
use super::clock;
use super::control::Control;
use super::interface::Interface;
use super::poller::mode_name;
use crate::error::failed;
use crate::options::StatusTo;
use crate::out::{ColorWhen, Paint, Weight};
use crate::outbox::{self, Outbox, Standard};
use crate::status::{
    Change, Consumer, Cpu, Interface as IfStatus, Poller, SCHEMA, Source, SourceTotal, Status,
};

/// Changes kept for the next status; older ones are dropped and counted by `mode_switches` alone.
const CHANGES_MAX: usize = 256;
/// Lines of one kind about one subject: at most one in this time, ns.
const LINE_EVERY: Nanos = 1_000_000_000;
/// Status lines that wait for a reader at most.
const STATUS_MAX: usize = 8;
/// Stack of the thread that answers, bytes.
const ANSWERS_STACK: usize = 64 * 1024;
/// Subjects whose last line is remembered.
const SUBJECTS_MAX: usize = 256;

/// Lines for people, and the changes since the last status.
pub struct Log {
    quiet: bool,
    last: BTreeMap<(String, String), (Nanos, u64)>,
    changes: VecDeque<Change>,
    lines: VecDeque<String>,
}

impl Log {
    /// `quiet` keeps everything but warnings off standard error.
    pub fn new(quiet: bool) -> Self {
        Self { quiet, last: BTreeMap::new(), changes: VecDeque::new(), lines: VecDeque::new() }
    }

    /// One line about `subject`; repeats within a second are counted into the next one.
    pub fn line(&mut self, kind: &str, subject: &str, text: &str) {
        let now = clock::now();
        if self.last.len() >= SUBJECTS_MAX {
            self.last.retain(|_, (at, _)| now.saturating_sub(*at) < LINE_EVERY);
        }
        if self.last.len() >= SUBJECTS_MAX {
            return;
        }
        let entry = self.last.entry((kind.to_owned(), subject.to_owned())).or_insert((0, 0));
        if entry.0 != 0 && now.saturating_sub(entry.0) < LINE_EVERY {
            entry.1 += 1;
            return;
        }
        let more = match entry.1 {
            0 => String::new(),
            n => format!(" ({n} more since the last line)"),
        };
        *entry = (now, 0);
        let line = format!("{kind:<9} {subject}  {text}{more}");
        let weight = if matches!(kind, "warning" | "refused") { Weight::Warning } else { Weight::Info };
        if !self.quiet || kind == "warning" {
            crate::out::tell(weight, &line);
        }
        if self.lines.len() >= CHANGES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// A change of mode at `time`, for the status and as a line.
    pub fn event(&mut self, time: Nanos, kind: &str, source: &str, why: &str) {
        if self.changes.len() >= CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(Change {
            time_ns: time,
            kind: kind.to_owned(),
            source: source.to_owned(),
            why: why.to_owned(),
        });
        self.line(kind, source, why);
    }

    /// A setting that somebody else has changed.
    pub fn left(&mut self, outcome: &Outcome) {
        if let Fate::Left { found, old } = &outcome.fate {
            let text = format!("{} is {found}, not weir's and not {old}: left as it is", outcome.setting);
            self.line("left", &outcome.target, &text);
        }
    }

    /// What became of one setting at the end.
    pub fn outcome(&mut self, outcome: &Outcome) {
        if self.quiet && outcome.settled() {
            return;
        }
        let weight = if outcome.settled() { Weight::Info } else { Weight::Error };
        let plain = Paint::stdout(ColorWhen::Never);
        crate::out::tell(weight, crate::undo::line(outcome, false, plain).trim_end());
    }

    /// The last line of a guard.
    pub fn sum(&mut self, interfaces: &[Interface]) {
        if !self.quiet {
            let names: Vec<&str> = interfaces.iter().map(|i| i.wanted.as_str()).collect();
            crate::out::talk(&format!("weir: guarded {} no more; nothing left changed", names.join(" ")));
        }
    }
}

/// Totals at the start of a status interval.
#[derive(Default)]
struct Totals {
    time: Nanos,
    packets: BTreeMap<usize, [u64; 12]>,
    overflows: BTreeMap<usize, [u64; 2]>,
    steered: BTreeMap<usize, u64>,
    cpu: BTreeMap<usize, [u64; 2]>,
}

/// Makes status objects; counts are those since the last one it made.
#[derive(Default)]
struct Maker {
    last: Totals,
    arrived: Arrived,
    /// Inode of this network namespace; 0: not looked for yet, or not known.
    netns: u64,
}

impl Maker {
    fn status(&mut self, control: &Control, now: Nanos, changes: Vec<Change>, events: Vec<String>) -> Status {
        let views = &control.gauges.views;
        if self.netns == 0 {
            self.netns = kern::netns::current_inode().unwrap_or(0);
        }
        let interval = now.saturating_sub(self.last.time).max(1);
        let first = self.last.time == 0;
        self.last.time = now;
        let mut status = Status {
            schema: SCHEMA.to_owned(),
            pid: std::process::id(),
            time: rfc3339(SystemTime::now()),
            time_ns: now,
            netns: self.netns,
            interval_s: if first { 0.0 } else { interval as f64 / 1e9 },
            mode_switches: control.mode_switches,
            log_lines_dropped: crate::out::dropped(),
            consumers_refused: control.consumers.refused,
            consumers_evicted: control.consumers.evicted,
            consumers_untold: views.overflow_stats.iter().map(|s| s.untold.load(Relaxed)).sum(),
            losses_foreign: views.overflow_stats.iter().map(|s| s.foreign.load(Relaxed)).sum(),
            missing: control
                .missing()
                .into_iter()
                .map(|(subject, why)| format!("{subject}: {why}"))
                .collect(),
            protect: control.opts.protect.clone(),
            changes,
            events,
            ..Status::default()
        };
        for interface in &control.interfaces {
            let mut row = IfStatus {
                name: interface.wanted.clone(),
                state: interface.state.name().to_owned(),
                xdp: interface.rx.as_ref().map_or_else(String::new, |rx| {
                    match (rx.attached(), interface.is_marking()) {
                        (true, true) => "attached, until packets have marked its handles".to_owned(),
                        (true, false) => format!("attached, {}", interface.rx_when.1),
                        (false, _) => format!("waits, {}", interface.rx_when.1),
                    }
                }),
                ..IfStatus::default()
            };
            let (mut shed, mut marked) = (0, 0);
            // A datagram that was steered to a handle is lost to its socket, as a frame that was rewritten.
            let steered = control.steered(interface.first_slot);
            let mut shed_total = 0;
            let mut marked_total = steered;
            marked +=
                steered.saturating_sub(self.last.steered.insert(interface.first_slot, steered).unwrap_or(0));
            for source in &interface.sources {
                let (stat, rx) = (&views.source_stats[source.slot], &views.rx_stats[source.slot]);
                let now = [
                    stat.packets.load(Relaxed),
                    source.counts.turns.load(Relaxed),
                    stat.polls.load(Relaxed).saturating_sub(stat.own_polls.load(Relaxed)),
                    rx.shed.load(Relaxed),
                    rx.marked.load(Relaxed),
                    rx.by_class[0].load(Relaxed),
                    rx.by_class[1].load(Relaxed),
                    rx.by_class[2].load(Relaxed),
                    rx.over_bound.load(Relaxed),
                    rx.shed_class[0].load(Relaxed),
                    rx.shed_class[1].load(Relaxed),
                    rx.shed_class[2].load(Relaxed),
                ];
                let before = self.last.packets.insert(source.slot, now).unwrap_or_default();
                let delta: Vec<u64> = now.iter().zip(before).map(|(n, b)| n.saturating_sub(b)).collect();
                shed += delta[3];
                marked += delta[4];
                shed_total += now[3];
                marked_total += now[4];
                let class = |counts: &[u64]| {
                    let names = [Class::Normal, Class::Bulk, Class::Protected];
                    names.iter().map(|c| c.name().to_owned()).zip(counts.iter().copied()).collect()
                };
                let mode = mode_name(views, source.slot);
                row.sources.push(Source {
                    name: source.name.clone(),
                    cpu: match source.now.cpu.load(Relaxed) {
                        u32::MAX => stat.softirq_cpu.load(Relaxed),
                        cpu => cpu,
                    },
                    mode: mode.to_owned(),
                    reason: source.why(),
                    packets: Some(delta[0]),
                    turns: Some(delta[1]),
                    foreign_polls: (mode == "poll").then_some(delta[2]),
                    napi_id: source.now.napi_id.load(Relaxed),
                    mode_switches: source.switches(),
                    refused_turns: source.counts.refused.load(Relaxed),
                    classes: class(&delta[5..8]),
                    over_bound: delta[8],
                    shed: class(&delta[9..12]),
                    total: Some(SourceTotal {
                        packets: now[0],
                        turns: now[1],
                        other_polls: now[2],
                        classes: class(&now[5..8]),
                        shed: class(&now[9..12]),
                    }),
                });
            }
            let drops =
                |shed, marked| BTreeMap::from([("shed".to_owned(), shed), ("handle".to_owned(), marked)]);
            row.drops = drops(shed, marked);
            row.drops_total = drops(shed_total, marked_total);
            if let Some((moved, total)) = self.arrived.look(interface.ifindex) {
                row.offered = Some(moved.offered);
                row.drops.extend(moved.drops);
                row.drops_total.extend(total);
            }
            status.interfaces.push(row);
        }
        for (slot, consumer) in control.consumers.iter() {
            let (stat, ctl) = (&views.consumer_stats[slot], &views.consumer_ctls[slot]);
            let lost = stat.overflows.load(Relaxed).wrapping_add(stat.foreign.load(Relaxed));
            let now = [lost, stat.shed.load(Relaxed)];
            let before = self.last.overflows.insert(slot, now).unwrap_or_default();
            status.consumers.push(Consumer {
                process: if consumer.process.is_empty() { "?".to_owned() } else { consumer.process.clone() },
                pid: consumer.pid,
                socket: match consumer.filter {
                    Some((queue, _)) => format!("nfqueue {queue}"),
                    None => format!("udp {}", consumer.port),
                },
                level: Some(f64::from(stat.level.load(Relaxed)) / 1000.0),
                lost: Some(now[0].saturating_sub(before[0])),
                shed: Some(now[1].saturating_sub(before[1])),
                inhibited: ctl.inhibited.load(Relaxed) != 0,
                ..Consumer::default()
            });
        }
        for worker in &control.workers {
            let counts = worker.gauge.counts.lock().map(|c| *c).unwrap_or_default();
            let softirq = views.cpu_stats.get(worker.cpu).map_or(0, |c| c.net_rx_ns.load(Relaxed));
            let now = [worker.gauge.busy_ns.load(Relaxed), softirq];
            let before = self.last.cpu.insert(worker.cpu, now).unwrap_or_default();
            let share = |i: usize| now[i].saturating_sub(before[i]) as f64 / interval as f64;
            let reserve = f64::from(control.opts.reserve) / 100.0;
            status.cpus.push(Cpu {
                cpu: worker.cpu as u32,
                weir: Some(share(0)),
                softirq: Some(share(1)),
                budget_used: Some((share(0) + share(1)) / (1.0 - reserve)),
                reserve,
                ..Cpu::default()
            });
            status.pollers.push(Poller {
                cpu: worker.cpu as u32,
                sched: worker.class.to_owned(),
                polling: worker.gauge.polling.load(Relaxed),
                turns: counts.turns,
                packets: counts.packets,
                heartbeats: counts.heartbeats,
                looks: counts.looks,
                naps: counts.naps,
                budget_sleeps: counts.budget_sleeps,
                feedback_sleeps: counts.feedback_sleeps,
                inhibits: counts.inhibits,
                timeouts: counts.timeouts,
                lent: counts.lent,
                busy_ns: now[0],
                softirq_ns: now[1],
            });
        }
        status.settings_changed = control.interfaces.iter().map(Interface::changed).sum();
        status
    }
}

fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() as i64;
    // SAFETY: all-zero is a valid tm; gmtime_r writes it and keeps no pointer.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&raw const seconds, &raw mut tm);
        tm
    };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec
    )
}

/// `--status`: one JSON line per second.
pub struct StatusWriter {
    to: Option<Outbox>,
    maker: Maker,
}

impl StatusWriter {
    /// Opens the file for appending.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(to: Option<&StatusTo>) -> anyhow::Result<Self> {
        let to = match to {
            None => None,
            Some(StatusTo::Stdout) => Some(Outbox::new("weir-status", STATUS_MAX, Standard::Out)?),
            Some(StatusTo::File(path)) => Some(Outbox::new("weir-status", STATUS_MAX, append(path)?)?),
        };
        Ok(Self { to, maker: Maker::default() })
    }

    /// Writes the line of the interval that ends at `now`.
    pub fn write(&mut self, control: &mut Control, now: Nanos) -> anyhow::Result<()> {
        let changes = control.log.changes.drain(..).collect();
        let events = control.log.lines.drain(..).collect();
        let Some(to) = &mut self.to else { return Ok(()) };
        if let Some(why) = to.over() {
            // A reader that went away does not end the guard.
            self.to = None;
            control.log.line("warning", "status", &format!("{why}: no more status lines"));
            return Ok(());
        }
        let mut status = self.maker.status(control, now, changes, events);
        status.status_lines_dropped = to.dropped();
        let mut line = serde_json::to_vec(&status)?;
        line.push(b'\n');
        // Nobody waits for a reader that has stopped: the line is counted, and the next one says so.
        to.send(line);
        Ok(())
    }
}

fn append(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|e| failed(format!("--status {}: {e}", path.display())))
}

/// The socket that `weir status` asks: root only, one answer per connection.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    maker: std::cell::RefCell<Maker>,
    answers: SyncSender<(UnixStream, Vec<u8>)>,
}

/// Connections answered in one round.
const ANSWERS_MAX: usize = 4;
/// Answers that wait to be written; more are not given.
const ANSWERS_WAITING: usize = 8;
/// A reader that takes nothing for so long gets no answer; others wait behind it.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);

impl Server {
    /// Listens on `guard-PID.sock` in `dir`.
    ///
    /// # Errors
    /// If the directory or the socket cannot be made.
    pub fn bind(dir: &Path) -> anyhow::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        crate::status::sweep(dir);
        let path = dir.join(format!("guard-{}.sock", std::process::id()));
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(|e| failed(format!("{}: {e}", path.display())))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let (answers, inbox) = sync_channel(ANSWERS_WAITING);
        let thread = std::thread::Builder::new().name("weir-answers".into()).stack_size(ANSWERS_STACK);
        thread.spawn(move || write_answers(&inbox))?;
        Ok(Self { listener, path, maker: std::cell::RefCell::default(), answers })
    }

    /// Answers those who ask.
    pub fn answer(&self, control: &Control, now: Nanos) {
        for _ in 0..ANSWERS_MAX {
            let Ok((stream, _)) = self.listener.accept() else { return };
            let status = self.maker.borrow_mut().status(
                control,
                now,
                control.log.changes.iter().cloned().collect(),
                control.log.lines.iter().cloned().collect(),
            );
            if let Ok(text) = serde_json::to_vec(&status) {
                // Too many ask at once: this one is told nothing, and asks again.
                let _ = self.answers.try_send((stream, text));
            }
        }
    }
}

/// Writes answers one by one; one that is not taken in time is cut short.
fn write_answers(answers: &Receiver<(UnixStream, Vec<u8>)>) {
    outbox::ordinary();
    for (mut stream, text) in answers {
        let end = Instant::now() + ANSWER_PATIENCE;
        let mut left = &text[..];
        while let Some(patience) = end.checked_duration_since(Instant::now()).filter(|p| !p.is_zero()) {
            let ready = stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(patience)));
            match ready.and_then(|()| stream.write(left)) {
                Ok(n) if n > 0 && n < left.len() => left = &left[n..],
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // Done, or a reader that went away has what it wanted.
                _ => break,
            }
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
