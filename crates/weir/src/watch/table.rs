//! A snapshot as plain text of 80 columns: the path from left to right, CPUs, consumers, ledger.

use crate::out::{Paint, count, shown};
use see::Snapshot;
use see::model::{Consumer, Cpu, Place, SHED, Stage};
use std::collections::BTreeMap;

/// CPUs that are shown, the busiest ones.
const CPUS: usize = 8;
/// Consumers that are shown, the worst ones.
const CONSUMERS: usize = 12;
/// Columns of the bar of a CPU.
const BAR: usize = 26;

/// The whole text, a newline at its end.
pub fn text(s: &Snapshot, paint: Paint) -> String {
    let names: Vec<String> = s.interfaces.iter().map(|i| shown(&i.name)).collect();
    let names = crate::out::listed(&names);
    let seconds = s.time_s as u64 % 86_400;
    let clock = format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let left = format!("weir watch  {} {names}", shown(&s.host));
    let right = format!("{clock}  {:.1} s", s.interval_s);
    let gap = 80usize.saturating_sub(left.chars().count() + right.chars().count()).max(2);
    let mut text = format!("{left}{:gap$}{right}\n", "");
    if s.interfaces.is_empty() {
        text += "no interface that receives is up; name one, as weir watch eth0\n";
    }
    text += &path(s, paint);
    text += &format!("{}\n\n", verdict(s, paint));
    text += &cpus(&s.cpus);
    text += &consumers(s, paint);
    text += &super::waits::table(s);
    text += &ledger(s, paint);
    for guard in &s.guards {
        text += &format!("guard      {}\n", crate::out::wrap(&super::guards::sentence(guard, s), 11));
    }
    for (accept, group) in s.accepts.iter().flat_map(|a| a.groups.iter().map(move |g| (a, g))) {
        text +=
            &format!("accept     {}\n", crate::out::wrap(&super::accepts::sentence(accept, group, s), 11));
    }
    for (what, n) in &s.skipped {
        text += &format!("skipped    {n} {what} that vanished, were too slow or could not be parsed\n");
    }
    s.missing.iter().for_each(|line| text += &format!("missing    {}\n", crate::out::sentence(line)));
    text + "\n"
}

/// Thousands per second with one digit, as wide as a column.
pub(super) fn rate(packets: u64, s: &Snapshot) -> String {
    let k = packets as f64 / s.interval_s.max(1e-9) / 1e3;
    // What is above zero never shows as zero.
    if packets > 0 && k < 0.05 { "<0.1".into() } else { format!("{k:.1}") }
}

/// The word of a stage as a heading.
pub(super) fn title(place: Place) -> &'static str {
    match place {
        Place::Napi => "NAPI",
        Place::Xdp => "XDP",
        other => other.name(),
    }
}

fn path(s: &Snapshot, paint: Paint) -> String {
    let stages: Vec<&Stage> = s.path.iter().collect();
    let mut row = format!("{:<8}", "path");
    for stage in &stages {
        let name = title(stage.place);
        row += &format!(" {}{name}>", "-".repeat(7usize.saturating_sub(name.chars().count())));
    }
    let mut text = row + "\n";
    let mut line = |label: &str, cell: &dyn Fn(&Stage) -> String, mark: bool| {
        let cells: Vec<String> = stages.iter().map(|stage| cell(stage)).collect();
        if cells.iter().all(String::is_empty) {
            return;
        }
        let mut row = format!("{label:<8}");
        for cell in cells {
            let padded = format!("{cell:>9}");
            row += &if mark && !cell.is_empty() { paint.red(&padded) } else { padded };
        }
        text += &format!("{}\n", row.trim_end());
    };
    line("level", &|stage| stage.level.map_or(String::new(), |l| format!("{:.0} %", l * 100.0)), false);
    line("in k/s", &|stage| stage.r#in.map_or(String::new(), |n| rate(n, s)), false);
    line("out k/s", &|stage| stage.out.map_or(String::new(), |n| rate(n, s)), false);
    let lost = |stage: &Stage| match stage.lost() {
        0 => String::new(),
        n => format!("{}!", rate(n, s)),
    };
    line("lost k/s", &lost, true);
    let shed = |stage: &Stage| match stage.shed() {
        0 => String::new(),
        n => rate(n, s),
    };
    line("shed k/s", &shed, false);
    text
}

fn verdict(s: &Snapshot, paint: Paint) -> String {
    let lossy = s.path.iter().filter(|stage| stage.lost() > 0).max_by_key(|stage| stage.lost());
    let Some(stage) = lossy else { return format!("no loss{}", super::guards::shed_beside(s)) };
    let place = match s.consumers.iter().find(|c| c.lost.unwrap_or(0) > 0) {
        Some(worst) if stage.place == Place::Consumer => format!("{}, {}", stage.place.name(), named(worst)),
        _ => stage.place.name().to_owned(),
    };
    let reasons: Vec<String> =
        lost_by(&stage.drops).map(|(why, n)| format!("{why} {} k/s", rate(*n, s))).collect();
    let what =
        format!("{place}: {}; weir explain says why{}", reasons.join(", "), super::guards::shed_beside(s));
    paint.red(&format!("loses most at  {}", crate::out::wrap(&what, 15)))
}

/// Losses by reason; what was shed is none.
pub fn lost_by(drops: &BTreeMap<String, u64>) -> impl Iterator<Item = (&String, &u64)> {
    drops.iter().filter(|(why, _)| *why != SHED)
}

/// `rsyslogd 1204 udp 514`
pub fn named(c: &Consumer) -> String {
    let program = if c.pid == 0 { "?".to_owned() } else { format!("{} {}", shown(&c.process), c.pid) };
    format!("{program} {}", c.socket)
}

fn cpus(cpus: &[Cpu]) -> String {
    let mut order: Vec<&Cpu> = cpus.iter().collect();
    if order.len() > CPUS {
        order.sort_by(|a, b| a.idle.total_cmp(&b.idle));
    }
    let mut text = format!(
        "{:<7}{:>6}{:>8}{:>8}{:>6}{:>9}{:>6}  i s t w p\n",
        "CPU %", "irq", "softirq", "threads", "weir", "programs", "idle"
    );
    for c in order.iter().take(CPUS) {
        let p = |share: f64| format!("{:.1}", share * 100.0);
        let parts = [('i', c.irq), ('s', c.softirq), ('t', c.threads), ('w', c.weir), ('p', c.programs)];
        let mut bar = String::new();
        let mut sum = 0.0;
        for (letter, share) in parts {
            sum += share;
            let end = ((sum * BAR as f64).round() as usize).min(BAR);
            bar.extend(std::iter::repeat_n(letter, end.saturating_sub(bar.len())));
        }
        bar.extend(std::iter::repeat_n('.', BAR - bar.len()));
        text += &format!(
            "{:>5}  {:>6}{:>8}{:>8}{:>6}{:>9}{:>6}  {bar}\n",
            c.cpu,
            p(c.irq),
            p(c.softirq),
            p(c.threads),
            p(c.weir),
            p(c.programs),
            p(c.idle)
        );
    }
    if order.len() > CPUS {
        text += &format!("       {} less busy\n", count(order.len() - CPUS, "CPU"));
    }
    text + "\n"
}

fn consumers(s: &Snapshot, paint: Paint) -> String {
    let mut text = format!(
        "{:<30}{:>7}{:>10}{:>10}{:>10}{:>9}\n",
        "consumer", "level", "in k/s", "out k/s", "lost k/s", "full in"
    );
    for c in s.consumers.iter().take(CONSUMERS) {
        let k = |n: Option<u64>| n.map_or("n/a".to_owned(), |n| rate(n, s));
        let lost = format!(
            "{:>10}",
            c.lost.map_or("n/a".to_owned(), |n| if n > 0 { rate(n, s) + "!" } else { rate(n, s) })
        );
        let full = match c.full_in_s {
            Some(t) if t <= 0.0 => "full".into(),
            Some(t) if t < 1.0 => format!("{:.0} ms", t * 1e3),
            Some(t) => format!("{t:.0} s"),
            None => "-".into(),
        };
        let name: String = named(c).chars().take(29).collect();
        text += &format!(
            "{name:<30}{:>7}{:>10}{:>10}{}{full:>9}\n",
            c.level.map_or("n/a".to_owned(), |l| format!("{:.0} %", l * 100.0)),
            k(c.r#in),
            k(c.out),
            if c.lost.unwrap_or(0) > 0 { paint.red(&lost) } else { lost },
        );
    }
    let more = s.consumers_quiet as usize + s.consumers.len().saturating_sub(CONSUMERS);
    if more > 0 {
        text += &format!("{more} more\n");
    }
    text + "\n"
}

fn ledger(s: &Snapshot, paint: Paint) -> String {
    let l = &s.ledger;
    let line = |label: &str, what: String| format!("{label:<11}{}\n", crate::out::wrap(&what, 11));
    let list = |map: &BTreeMap<String, u64>| {
        let parts: Vec<String> =
            lost_by(map).map(|(name, n)| format!("{} {name}", crate::out::grouped(*n))).collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    };
    let line_of_shed = match l.shed() {
        0 => String::new(),
        n => line("shed", crate::out::grouped(n)),
    };
    let lost = list(&l.drops);
    line("ledger", format!("{} packets offered", crate::out::grouped(l.offered)))
        + &line("delivered", list(&l.delivered))
        + &if l.lost() > 0 { paint.red(line("lost", lost).trim_end()) + "\n" } else { line("lost", lost) }
        + &line_of_shed
        + &line(
            "",
            format!("{} more in queues; unaccounted {}, known to +-{}", l.in_flight, l.unaccounted, l.skew),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::ColorWhen;
    use see::guard::{Guard, Source};
    use see::model::{Interface, Ledger};

    fn snapshot() -> Snapshot {
        let stage = |place, came, lost: u64| Stage {
            place,
            r#in: Some(came),
            out: Some(came - lost),
            drops: if lost > 0 { [("socket".to_owned(), lost)].into() } else { Default::default() },
            ..Stage::default()
        };
        Snapshot {
            host: "h".into(),
            interval_s: 2.0,
            time_s: 50_491.0,
            path: vec![stage(Place::Ring, 10_000, 0), stage(Place::Consumer, 10_000, 4_000)],
            interfaces: vec![Interface { name: "eth0".into(), ..Interface::default() }],
            cpus: vec![Cpu { cpu: 1, softirq: 0.5, idle: 0.5, ..Cpu::default() }],
            consumers: vec![Consumer {
                socket: "udp 53".into(),
                process: "knotd-of-a-name".into(),
                pid: 1234567,
                level: Some(1.0),
                lost: Some(4_000),
                full_in_s: Some(0.0),
                ..Consumer::default()
            }],
            ledger: Ledger {
                offered: 10_000,
                drops: [("socket".to_owned(), 4_000)].into(),
                ..Ledger::default()
            },
            guards: vec![Guard {
                pid: 812,
                sources: vec![Source {
                    name: "eth0/0".into(),
                    mode: "poll".into(),
                    shed: 2_000,
                    ..Source::default()
                }],
                ..Guard::default()
            }],
            missing: vec!["processes: needs root".into()],
            ..Snapshot::default()
        }
    }

    #[test]
    fn what_is_lost_has_a_mark_and_a_place() {
        let text = text(&snapshot(), Paint::stdout(ColorWhen::Never));
        assert!(text.contains("2.0!"), "{text}");
        assert!(
            text.contains("loses most at  consumer, knotd-of-a-name 1234567 udp 53: socket 2.0 k/s"),
            "{text}"
        );
        assert!(text.contains("14:01:31 UTC") && text.contains("sssssssssssss............."), "{text}");
        assert!(text.contains("missing    processes: needs root"), "{text}");
        assert!(text.contains("guard      pid 812: poll eth0/0; shed 1.0 k/s"), "{text}");
        let wide: Vec<&str> = text.lines().filter(|l| l.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{wide:?}");
    }

    #[test]
    fn without_an_interface_it_says_so() {
        let said = "no interface that receives is up";
        let of = |s: &Snapshot| text(s, Paint::stdout(ColorWhen::Never)).contains(said);
        assert!(of(&Snapshot::default()) && !of(&snapshot()));
    }

    #[test]
    fn little_is_not_nothing() {
        let s = snapshot();
        assert_eq!((rate(1, &s), rate(0, &s), rate(2_000, &s)), ("<0.1".into(), "0.0".into(), "1.0".into()));
    }
}
