//! What is shown as lines: ledger, report, one row closely, help.

use super::draw::micros;
use super::lists::{Item, full_in, unit};
use super::state::{Feed, HISTORY, Pane, Target, View};
use super::theme::Tone;
use crate::out::{WIDTH, grouped, sentence, shown, wrap};
use crate::watch::table::{lost_by, named, rate};
use crate::watch::{accepts, guards, waits};
use see::Snapshot;
use see::accept::{Accept, Group, Worker};
use see::explain::{Finding, Report};
use see::guard::{Guard, Source};
use see::model::{Consumer, Cpu, Kind, Process, Queue};
use std::collections::BTreeMap;

/// One line: texts and what they are about.
pub type Line = Vec<(String, Tone)>;

/// Columns of a label.
const LABEL: usize = 12;
/// Columns of a bar.
const BAR: usize = 40;
/// Most counters that are listed.
const COUNTERS_MAX: usize = 256;

fn line(label: &str, text: impl Into<String>, tone: Tone) -> Line {
    vec![(format!("{label:<LABEL$}"), Tone::Dim), (text.into(), tone)]
}

fn plain(label: &str, text: impl Into<String>) -> Line {
    line(label, text, Tone::Plain)
}

fn head(text: &str) -> Line {
    vec![(text.to_owned(), Tone::Head)]
}

/// A paragraph under a label, as many lines as it needs.
fn paragraph(label: &str, text: &str, tone: Tone) -> Vec<Line> {
    let wrapped = wrap(&sentence(text), LABEL);
    let one = |(i, part): (usize, &str)| line(if i == 0 { label } else { "" }, part.trim_start(), tone);
    wrapped.lines().enumerate().map(one).collect()
}

/// Guards that the first pane has room for.
const GUARDS: usize = 2;

/// offered = delivered + lost + in queues + unaccounted, in three lines, and what guards do.
pub fn sums(s: &Snapshot) -> Vec<Line> {
    let l = &s.ledger;
    let list = |map: &BTreeMap<String, u64>| {
        let parts: Vec<String> = lost_by(map).map(|(name, n)| format!("{} {name}", rate(*n, s))).collect();
        if parts.is_empty() { "0.0".to_owned() } else { parts.join(" + ") }
    };
    let offered = format!("{} offered = delivered {}", rate(l.offered, s), list(&l.delivered));
    let shed = match l.shed() {
        0 => String::new(),
        n => format!(" + shed {}", rate(n, s)),
    };
    let lost = format!("+ lost {}{shed}", list(&l.drops));
    let rest =
        format!("+ {} packets in queues; unaccounted {}, known to +-{}", l.in_flight, l.unaccounted, l.skew);
    let tone = if l.lost() > 0 { Tone::Lost } else { Tone::Plain };
    let mut lines = vec![plain("ledger k/s", offered), line("", lost, tone), plain("", rest)];
    s.guards.iter().take(GUARDS).for_each(|guard| lines.extend(guard_lines(guard, s)));
    accept_groups(s).take(GUARDS).for_each(|(accept, group)| lines.extend(accept_lines(accept, group, s)));
    lines
}

fn accept_groups(s: &Snapshot) -> impl Iterator<Item = (&Accept, &Group)> {
    s.accepts.iter().flat_map(|accept| accept.groups.iter().map(move |group| (accept, group)))
}

fn accept_lines(accept: &Accept, group: &Group, s: &Snapshot) -> Vec<Line> {
    paragraph("accept", &accepts::sentence(accept, group, s), Tone::Weir)
}

fn guard_lines(guard: &Guard, s: &Snapshot) -> Vec<Line> {
    paragraph("guard", &guards::sentence(guard, s), Tone::Weir)
}

/// What a guard says of one source.
fn guarded(source: &Source, s: &Snapshot) -> Vec<Line> {
    let number = |n: Option<u64>| n.map_or("n/a".to_owned(), |n| rate(n, s));
    let what = format!(
        "{} by CPU {}; k/s: {} handed up, {} turns; {} foreign polls",
        source.mode,
        source.cpu,
        number(source.packets),
        number(source.turns),
        source.foreign_polls.map_or("n/a".to_owned(), grouped)
    );
    let mut lines = vec![line("guard", what, Tone::Weir)];
    lines.extend(paragraph("because", &source.reason, Tone::Plain));
    let list = |map: &BTreeMap<String, u64>| {
        let parts: Vec<String> = map.iter().map(|(class, n)| format!("{} {class}", rate(*n, s))).collect();
        parts.join(", ")
    };
    if source.classes.values().any(|n| *n > 0) {
        lines.push(plain("frames k/s", list(&source.classes)));
        let nobody = match source.nobody {
            0 => String::new(),
            n => format!("; {} of it for nobody", rate(n, s)),
        };
        let over = match source.over_share {
            0 => String::new(),
            n => format!("; {} over a share", rate(n, s)),
        };
        lines.push(plain("shed k/s", rate(source.shed, s) + &nobody + &over));
    }
    lines
}

/// Every place, and what the counters say that it was made from.
pub fn ledger(s: &Snapshot) -> Vec<Line> {
    let l = &s.ledger;
    let row = |sign: &str, name: &str, n: i128, tone: Tone| {
        let k = n as f64 / s.interval_s.max(1e-9) / 1e3;
        let share = n as f64 / l.offered.max(1) as f64 * 100.0;
        let packets =
            if n < 0 { format!("-{}", grouped(n.unsigned_abs() as u64)) } else { grouped(n as u64) };
        let text = format!("{sign:<2}{name:<26}{k:>10.1}{share:>10.2} %{packets:>16}");
        vec![(text, if n == 0 { Tone::Dim } else { tone })]
    };
    let mut lines =
        vec![head(&format!("{:<28}{:>10}{:>12}{:>16}", "packets", "k/s", "share", "in interval"))];
    lines.push(row("", "offered", l.offered.into(), Tone::Full));
    lines.extend(
        l.delivered.iter().map(|(name, n)| row("=", &format!("delivered: {name}"), (*n).into(), Tone::Plain)),
    );
    lines.extend(
        lost_by(&l.drops).map(|(name, n)| row("+", &format!("lost: {name}"), (*n).into(), Tone::Lost)),
    );
    lines.push(row("+", "shed by weir", l.shed().into(), Tone::Plain));
    lines.push(row("+", "more in queues", l.in_flight.into(), Tone::Plain));
    lines.push(row("+", "unaccounted", l.unaccounted.into(), Tone::Plain));
    lines.push(line(
        "",
        format!("known to +-{} packets; sent by all devices {}", l.skew, grouped(l.sent)),
        Tone::Dim,
    ));
    lines.extend(probed(s));
    for interface in &s.interfaces {
        lines.push(Line::new());
        let ring = interface.ring.map_or(String::new(), |n| format!(", ring {n}"));
        lines.push(head(&format!("{} ({}{ring}): counters that moved", interface.name, interface.kind)));
        lines.extend(counters(&interface.counters, s));
        for q in &interface.qdiscs {
            lines.push(plain(
                "",
                format!("{} {}: {} sent, {} lost, {} wait", q.kind, q.handle, q.sent, q.drops, q.waiting),
            ));
        }
    }
    lines.push(Line::new());
    lines.push(head("stack: counters that moved"));
    lines.extend(counters(&s.stack, s));
    for guard in &s.guards {
        lines.push(Line::new());
        lines.push(head(&format!("guard pid {}", guard.pid)));
        lines.extend(guard_lines(guard, s));
        for source in &guard.sources {
            lines.push(plain("source", &*source.name));
            lines.extend(guarded(source, s));
        }
        guard.missing.iter().for_each(|what| lines.extend(paragraph("without", what, Tone::Plain)));
    }
    for (accept, group) in accept_groups(s) {
        lines.push(Line::new());
        lines.push(head(&format!("accept pid {}: {}", accept.pid, shown(&group.address))));
        let tone = |worker: &Worker| if worker.stalled { Tone::Lost } else { Tone::Plain };
        for worker in group.worst_first() {
            lines.extend(paragraph(&shown(&worker.does), &group.describe(worker), tone(worker)));
        }
    }
    if !s.skipped.is_empty() || !s.missing.is_empty() {
        lines.push(Line::new());
        lines.push(head("not seen"));
    }
    for (what, n) in &s.skipped {
        lines.push(plain(
            "skipped",
            format!("{n} {what} that vanished, were too slow or could not be parsed"),
        ));
    }
    s.missing.iter().for_each(|what| lines.extend(paragraph("missing", what, Tone::Plain)));
    lines
}

/// What the probes measured.
fn probed(s: &Snapshot) -> Vec<Line> {
    let Some(p) = &s.probes else { return Vec::new() };
    let mut lines = vec![Line::new(), head(&waits::head())];
    lines.extend(p.waits.iter().map(|w| vec![(waits::row(w), Tone::Plain)]));
    lines.extend(waits::lists(p).iter().flat_map(|(label, what)| paragraph(label, what, Tone::Plain)));
    lines
}

fn counters<'a>(map: &'a BTreeMap<String, u64>, s: &'a Snapshot) -> impl Iterator<Item = Line> + 'a {
    let one = |(name, n): (&String, &u64)| {
        vec![(format!("  {name:<36}{:>10} k/s{:>16}", rate(*n, s), grouped(*n)), Tone::Plain)]
    };
    map.iter().take(COUNTERS_MAX).map(one)
}

/// All findings of this interval.
pub fn report(r: &Report) -> Vec<Line> {
    let mut lines = Vec::new();
    r.guards.iter().for_each(|text| lines.extend(paragraph("guard", text, Tone::Plain)));
    for (number, finding) in (1..).zip(&r.findings) {
        lines.extend(self::finding(number, finding, r));
    }
    if r.findings.is_empty() {
        let text = match (r.lost, &r.unplaced) {
            (0, Some(rest)) => {
                let of = format!("{} of {} packets", grouped(rest.packets), grouped(r.offered));
                format!("{of} are in no counter: weir explain says what that can be")
            }
            (0, None) if !r.guards.is_empty() => {
                format!("nothing else is wrong: no packet was lost in {}", grouped(r.offered))
            }
            (0, None) => format!("nothing is wrong: no packet was lost in {}", grouped(r.offered)),
            (n, _) => {
                format!("{} of {} packets lost, and no rule finds a cause", grouped(n), grouped(r.offered))
            }
        };
        lines.extend([plain("", text), Line::new()]);
    }
    let checked = format!("{} rules; unaccounted {}, known to +-{}", r.rules, r.unaccounted, r.skew);
    lines.push(line("checked", checked, Tone::Dim));
    r.harmless.iter().for_each(|text| lines.extend(paragraph("harmless", text, Tone::Plain)));
    r.closest.iter().for_each(|text| lines.extend(paragraph("closest", text, Tone::Plain)));
    r.missing.iter().for_each(|text| lines.extend(paragraph("missing", text, Tone::Dim)));
    let more = "this interval only; weir explain looks for 10 s, and at all processes and connections";
    lines.extend(paragraph("", more, Tone::Dim));
    lines
}

fn finding(number: usize, f: &Finding, r: &Report) -> Vec<Line> {
    let rate = f.lost as f64 / r.seconds.max(1e-9) / 1e3;
    let mut lines = vec![vec![(format!("{number}  {}: {rate:.1} k/s lost", sentence(&f.title)), Tone::Lost)]];
    for (i, (name, value)) in f.evidence.iter().enumerate() {
        lines.extend(paragraph(
            if i == 0 { "evidence" } else { "" },
            &format!("{name}: {value}"),
            Tone::Plain,
        ));
    }
    f.also
        .iter()
        .for_each(|also| lines.extend(paragraph("", &format!("also explains: {also}"), Tone::Plain)));
    // A command is not wrapped: it is copied as it stands.
    let change =
        |(i, text): (usize, &String)| line(if i == 0 { "change" } else { "" }, sentence(text), Tone::Full);
    lines.extend(f.change.iter().enumerate().map(change));
    lines.extend(paragraph("effect", &f.effect, Tone::Plain));
    lines.extend(paragraph("source", &f.source, Tone::Dim));
    lines.push(Line::new());
    lines
}

/// One row closely, or that it is not there.
pub fn detail(view: &View, s: &Snapshot, target: &Target) -> Vec<Line> {
    let found = match target.pane {
        Pane::Queues => {
            find(s.interfaces.iter().flat_map(|i| &i.queues), target.key).map(|q| queue(view, s, q))
        }
        Pane::Cpus => find(&s.cpus, target.key).map(|c| cpu(view, s, c)),
        Pane::Processes => find(&s.processes, target.key).map(|p| process(view, s, p)),
        _ => find(&s.consumers, target.key).map(|c| consumer(view, s, c)),
    };
    found.unwrap_or_else(|| vec![plain("", format!("{} is not in this interval", target.name))])
}

fn find<'a, T: Item>(items: impl IntoIterator<Item = &'a T>, key: u64) -> Option<&'a T> {
    items.into_iter().find(|item| item.key() == key)
}

fn bar(view: &View, label: &str, share: f64, tone: Tone) -> Line {
    let (full, rest) = view.theme.bar(share, BAR);
    vec![
        (format!("{label:<LABEL$}"), Tone::Dim),
        (format!("{:>6.1} %  ", share * 100.0), tone),
        (full, tone),
        (rest, Tone::Dim),
    ]
}

/// A value of each interval that is kept.
fn curve(view: &View, what: &str, value: impl Fn(&Snapshot) -> f64, top: f64) -> Line {
    let values: Vec<f64> = view.past().iter().map(|s| value(s)).collect();
    let width = WIDTH - LABEL - 2;
    let shown = values.len().min(width);
    plain("history", format!("{} {what}, {shown} intervals", view.theme.spark(&values, top, shown)))
}

fn lost_of(drops: &BTreeMap<String, u64>, s: &Snapshot) -> Line {
    let parts: Vec<String> = lost_by(drops).map(|(why, n)| format!("{why} {} k/s", rate(*n, s))).collect();
    match parts.is_empty() {
        true => line("lost", "nothing", Tone::Dim),
        false => line("lost", parts.join(", "), Tone::Lost),
    }
}

fn or_none(text: String) -> String {
    if text.is_empty() { "n/a".into() } else { text }
}

fn queue(view: &View, s: &Snapshot, q: &Queue) -> Vec<Line> {
    let number = |n: Option<u64>| n.map_or("n/a".to_owned(), |n| format!("{} k/s", rate(n, s)));
    let mut lines = vec![
        plain(
            "queue",
            format!(
                "{}, NAPI id {}",
                q.name,
                or_none(q.napi_id.map_or_else(String::new, |id| id.to_string()))
            ),
        ),
        plain("packets", number(q.packets)),
        lost_of(&q.drops, s),
        plain("interrupts", number(q.interrupts)),
        plain("to CPUs", or_none(q.cpus.clone())),
        plain("RPS to", if q.rps.is_empty() { "not in use".to_owned() } else { q.rps.clone() }),
        plain(
            "thread",
            q.thread.map_or("none: softirq".to_owned(), |pid| format!("threaded NAPI, pid {pid}")),
        ),
    ];
    if let Some(source) = s.guards.iter().flat_map(|g| &g.sources).find(|source| source.name == q.name) {
        lines.extend(guarded(source, s));
    }
    let key = q.key();
    let packets = |s: &Snapshot| {
        let found = find(s.interfaces.iter().flat_map(|i| &i.queues), key);
        found.and_then(|q| q.packets).unwrap_or(0) as f64 / s.interval_s.max(1e-9)
    };
    let top = view.past().iter().map(|s| packets(s)).fold(0.0, f64::max);
    if q.packets.is_some() {
        lines.push(curve(view, &format!("packets, up to {:.1} k/s", top / 1e3), packets, top));
    }
    if let Some(interface) = s.interfaces.iter().find(|i| i.queues.iter().any(|own| own.name == q.name)) {
        let depth = |n: Option<u32>| n.map_or("n/a".to_owned(), |n| n.to_string());
        lines.push(Line::new());
        lines.push(head(&format!("{} ({}): counters that moved", interface.name, interface.kind)));
        lines.push(plain(
            "ring",
            format!("{} packets of at most {}", depth(interface.ring), depth(interface.ring_max)),
        ));
        lines.extend(counters(&interface.counters, s));
    }
    lines
}

fn cpu(view: &View, s: &Snapshot, c: &Cpu) -> Vec<Line> {
    let mut lines = vec![
        bar(view, "irq", c.irq, Tone::Kernel),
        bar(view, "softirq", c.softirq, Tone::Kernel),
        bar(view, "threads", c.threads, Tone::Kernel),
        bar(view, "weir", c.weir, Tone::Weir),
        bar(view, "programs", c.programs, Tone::Plain),
        bar(view, "steal", c.steal, Tone::Plain),
        bar(view, "idle", c.idle, Tone::Dim),
    ];
    let key = c.key();
    lines.push(curve(view, "busy", |s| find(&s.cpus, key).map_or(0.0, |c| 1.0 - c.idle), 1.0));
    lines.push(plain(
        "packets",
        format!(
            "{} k/s to the stack here; {} NET_RX softirqs, {} squeezed",
            rate(c.packets, s),
            c.net_rx,
            c.squeezed
        ),
    ));
    for (label, wait) in [("softirq", c.softirq_wait), ("readers", c.wakeup_wait)] {
        if let Some(w) = wait {
            lines.push(plain(label, format!("wait {}, p99 {}", micros(w.p50_us), micros(w.p99_us))));
        }
    }
    let backlog = c.backlog.map_or("n/a".to_owned(), |n| format!("{n} packets wait"));
    let tone = if c.backlog_drops > 0 { Tone::Lost } else { Tone::Plain };
    lines.push(line("backlog", format!("{backlog}, {} k/s lost", rate(c.backlog_drops, s)), tone));
    let queues = s
        .interfaces
        .iter()
        .flat_map(|i| &i.queues)
        .filter(|q| q.cpus.parse::<kern::cpus::CpuSet>().is_ok_and(|set| set.contains(c.cpu as usize)));
    for q in queues {
        lines.push(plain(
            "queue",
            format!("{}: {} k/s", q.name, q.packets.map_or("n/a".into(), |n| rate(n, s))),
        ));
    }
    for p in s.processes.iter().filter(|p| p.cpu == c.cpu && p.runs >= 0.001) {
        lines.push(plain(
            "process",
            format!("{}: runs {:.1} %, waits {:.1} %", p.name(), p.runs * 100.0, p.waits * 100.0),
        ));
    }
    lines
}

fn of_process(p: &Process) -> String {
    format!(
        "{} on CPU {}, nice {}, state {}: runs {:.1} %, waits {:.1} %",
        p.name(),
        p.cpu,
        p.nice,
        p.state,
        p.runs * 100.0,
        p.waits * 100.0
    )
}

fn consumer(view: &View, s: &Snapshot, c: &Consumer) -> Vec<Line> {
    let rate_of = |n: Option<u64>| n.map_or("n/a".to_owned(), |n| rate(n, s));
    let holder = s.processes.iter().find(|p| p.pid == c.pid && c.pid != 0);
    let who = match (holder, c.pid) {
        (Some(p), _) => of_process(p),
        (None, 0) => "not known; root sees those of other users".to_owned(),
        (None, pid) => format!("{} {pid}", c.process),
    };
    let peer = c.remote.as_ref().map_or(String::new(), |r| format!(", peer {r}"));
    let mut lines = vec![
        plain("process", who),
        plain(
            "socket",
            format!("{}, {}{peer}", c.socket, if c.local.is_empty() { "not bound" } else { &c.local }),
        ),
        plain(
            "buffer",
            format!(
                "{} of {} {} wait",
                grouped(c.waiting),
                if c.limit == 0 { "?".to_owned() } else { grouped(c.limit) },
                unit(c.kind)
            ),
        ),
    ];
    let key = c.key();
    if let Some(level) = c.level {
        let tone = if c.mark() == Tone::Plain { Tone::Plain } else { c.mark() };
        lines.push(bar(view, "level", level, tone));
        lines.push(curve(
            view,
            "level",
            |s| find(&s.consumers, key).and_then(|c| c.level).unwrap_or(0.0),
            1.0,
        ));
    }
    lines.push(plain("k/s", format!("{} in, {} out", rate_of(c.r#in), rate_of(c.out))));
    match c.lost {
        None => lines.push(line("lost", "n/a: the kernel does not tell for this kind", Tone::Dim)),
        Some(0) => lines.push(line("lost", "nothing", Tone::Dim)),
        Some(n) => {
            lines.push(line("lost", format!("{} k/s, {} packets", rate(n, s), grouped(n)), Tone::Lost));
            let lost = |s: &Snapshot| {
                find(&s.consumers, key).and_then(|c| c.lost).unwrap_or(0) as f64 / s.interval_s.max(1e-9)
            };
            let top = view.past().iter().map(|s| lost(s)).fold(0.0, f64::max);
            lines.push(curve(view, &format!("lost, up to {:.1} k/s", top / 1e3), lost, top));
        }
    }
    lines.push(plain("full in", full_in(c.full_in_s)));
    if let Some(tcp) = c.tcp {
        let text = format!(
            "round trip {}, window {} bytes, {} bytes received, {} segments out of order",
            micros(tcp.rtt_us.into()),
            grouped(tcp.window.into()),
            grouped(tcp.received),
            tcp.out_of_order
        );
        lines.push(plain("TCP", text));
    }
    if c.kind == Kind::Udp && c.r#in.is_none() {
        lines.push(line("", "rates of several UDP sockets are told with --probes", Tone::Dim));
    }
    lines
}

fn process(view: &View, s: &Snapshot, p: &Process) -> Vec<Line> {
    let mut lines = vec![
        plain("process", format!("{} on CPU {}, nice {}, state {}", p.name(), p.cpu, p.nice, p.state)),
        bar(view, "runs", p.runs, Tone::Plain),
        bar(view, "waits", p.waits, if p.waits > p.runs { Tone::Full } else { Tone::Plain }),
    ];
    let key = p.key();
    lines.push(curve(view, "runs", |s| find(&s.processes, key).map_or(0.0, |p| p.runs), 1.0));
    lines.push(line("", "waits: ready to run, and another one has the CPU", Tone::Dim));
    for c in s.consumers.iter().filter(|c| c.pid == p.pid) {
        let lost = c.lost.map_or("n/a".to_owned(), |n| rate(n, s));
        let level = c.level.map_or("n/a".to_owned(), |l| format!("{:.0} %", l * 100.0));
        lines.push(line("holds", format!("{}: level {level}, {lost} k/s lost", named(c)), c.mark()));
    }
    lines
}

/// Keys, signs and words.
pub fn help(view: &View) -> Vec<Line> {
    let full = view.theme.sign("▸", ">");
    let row = |(keys, what, more, other): (&str, &str, &str, &str)| {
        vec![
            (format!("{keys:<10}"), Tone::Full),
            (format!("{what:<27}"), Tone::Plain),
            (format!("{more:<9}"), Tone::Full),
            (other.to_owned(), Tone::Plain),
        ]
    };
    let speed = match view.feed {
        Feed::Live => ("", ""),
        Feed::Replay { .. } => ("+ -", "replay faster, slower"),
    };
    let mut lines: Vec<Line> = [
        ("tab, 1-7", "panes; left, right too", "s  S", "sort by next column, reverse"),
        ("up, down", "select a row, scroll; j k", "/", "rows that contain a text"),
        ("enter", "open the row", "e", "why, and what to do"),
        ("esc", "back", "[ ] { }", "one, ten steps back, forward"),
        ("space", "pause; reading goes on", speed.0, speed.1),
    ]
    .map(row)
    .into();
    lines.extend([
        head("signs and words"),
        plain("!", "loses packets; before a stage: here most are lost (red)"),
        plain(full, "at its limit: a CPU or a queue from 95 % on"),
        plain("n/a", "not measured; it is never zero"),
        plain("level", "how full, at the end of the interval"),
        plain("magenta", "the kernel's time for packets; cyan: weir's own"),
        plain("history", format!("{HISTORY} intervals are kept to go back in")),
    ]);
    lines
}
