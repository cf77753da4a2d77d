//! A guard's answer as text.

use super::Status;
use crate::out::{Paint, count, grouped, sentence, shown, wrap};

const NOT_MEASURED: &str = "n/a";

/// The answer of one guard in at most 80 columns, but for the reasons.
pub fn text(status: &Status, paint: Paint) -> String {
    let seconds = if status.interval_s > 0.0 { status.interval_s } else { 1.0 };
    let (pid, time, settings) = (status.pid, shown(&status.time), status.settings_changed);
    let changed = count(usize::try_from(settings).unwrap_or(usize::MAX), "setting");
    let mut text = format!("guard pid {pid}   {time}   {changed} changed while it runs\n");
    text += &format!("rates and counts of the last {seconds:.1} s; of pollers: since the start\n");
    for line in &status.missing {
        text += &format!("{} {}\n", paint.red("missing"), wrap(&sentence(line), 8));
    }
    sources(&mut text, status, seconds, paint);
    cpus(&mut text, status, paint);
    pollers(&mut text, status);
    consumers(&mut text, status, seconds, paint);
    ledgers(&mut text, status, seconds);
    for change in &status.changes {
        let (kind, source, why) = (shown(&change.kind), shown(&change.source), sentence(&change.why));
        text += &format!("{}\n", wrap(&format!("{kind} {source} {why}"), 2));
    }
    status.events.iter().for_each(|event| text += &format!("{}\n", wrap(&sentence(event), 2)));
    text
}

/// Thousands per second. Above zero never prints as 0.
fn rate(count: Option<u64>, seconds: f64) -> String {
    match count {
        None => NOT_MEASURED.to_owned(),
        Some(0) => "0.0".to_owned(),
        Some(n) => match n as f64 / seconds / 1000.0 {
            k if k < 0.05 => "<0.1".to_owned(),
            k => format!("{k:.1}"),
        },
    }
}

fn percent(share: Option<f64>, digits: usize) -> String {
    share.map_or(NOT_MEASURED.to_owned(), |share| format!("{:.digits$}", share * 100.0))
}

fn sources(text: &mut String, status: &Status, seconds: f64, paint: Paint) {
    let head = ("source", "CPU", "mode", "in k/s", "turns k/s", "foreign");
    *text +=
        &format!("\n{:<20}{:>4}  {:<10}{:>10}{:>11}{:>10}\n", head.0, head.1, head.2, head.3, head.4, head.5);
    for interface in &status.interfaces {
        if interface.state != "guarded" {
            *text += &format!("{:<20}{}\n", shown(&interface.name), paint.red(&shown(&interface.state)));
        }
        if interface.taps.open > 0 {
            let (open, missed) = (interface.taps.open, grouped(interface.taps.missed));
            let who = if open == 1 { "1 capture does" } else { &*format!("{open} captures do") };
            let line = format!("{}: {who} not see what is shed, {missed} so far", shown(&interface.name));
            *text += &format!("{}\n", wrap(&line, 2));
        }
        for source in &interface.sources {
            let mode = format!("{:<10}", shown(&source.mode));
            let mode = if source.mode == "interrupt" { mode } else { paint.cyan(&mode) };
            let foreign = source.foreign_polls.map_or(NOT_MEASURED.to_owned(), grouped);
            let (packets, turns) = (rate(source.packets, seconds), rate(source.turns, seconds));
            let name = shown(&source.name);
            *text += &format!("{name:<20}{:>4}  {mode}{packets:>10}{turns:>11}{foreign:>10}\n", source.cpu);
            if !source.reason.is_empty() {
                *text += &format!("  {}\n", wrap(&sentence(&source.reason), 2));
            }
            if source.classes.values().any(|n| *n > 0) {
                let class =
                    |(name, n): (&String, &u64)| format!("{} {}", rate(Some(*n), seconds), shown(name));
                let classes: Vec<String> = source.classes.iter().map(class).collect();
                let nobody = match source.nobody {
                    0 => String::new(),
                    n => format!(", {} of it for nobody", rate(Some(n), seconds)),
                };
                let syns = match source.syns {
                    0 => String::new(),
                    n => format!(", {} of it SYNs", rate(Some(n), seconds)),
                };
                let trimmed = match source.over_share {
                    0 => String::new(),
                    n => format!(", {} of senders over their share", rate(Some(n), seconds)),
                };
                let shed = match source.shed {
                    0 => String::new(),
                    n => format!("; shed {}{nobody}{syns}{trimmed}", rate(Some(n), seconds)),
                };
                let over = match source.over_bound {
                    0 => String::new(),
                    n => {
                        let of = match source.over_bound_rule.as_str() {
                            "" => String::new(),
                            rule => format!(" ({})", shown(rule)),
                        };
                        format!("; {} over the bound of protected{of}", rate(Some(n), seconds))
                    }
                };
                let line = format!("k/s by class: {}{shed}{over}", classes.join(", "));
                *text += &format!("  {}\n", wrap(&line, 2));
            }
        }
    }
}

fn cpus(text: &mut String, status: &Status, paint: Paint) {
    if status.cpus.is_empty() {
        return;
    }
    *text += "\nCPU %        irq softirq    weir  programs    idle   reserve  budget used\n";
    for cpu in &status.cpus {
        let [irq, softirq, programs, idle] =
            [cpu.irq, cpu.softirq, cpu.programs, cpu.idle].map(|share| percent(share, 1));
        let weir = paint.cyan(&format!("{:>8}", percent(cpu.weir, 1)));
        let (reserve, used) = (percent(Some(cpu.reserve), 0), percent(cpu.budget_used, 1));
        let number = cpu.cpu;
        *text +=
            &format!("{number:<8}{irq:>8}{softirq:>8}{weir}{programs:>10}{idle:>8}{reserve:>10}{used:>13}\n");
    }
}

fn pollers(text: &mut String, status: &Status) {
    if !status.pollers.is_empty() {
        *text += "\npoller CPU   sched    polls  packets          sleeps: ring   budget   feedback\n";
    }
    for poller in &status.pollers {
        let (cpu, sched, polling) = (poller.cpu, shown(&poller.sched), poller.polling);
        let [packets, ring, budget, feedback] =
            [poller.packets, poller.naps, poller.budget_sleeps, poller.feedback_sleeps].map(grouped);
        *text +=
            &format!("{cpu:<13}{sched:<9}{polling:<5}{packets:>10}{ring:>22}{budget:>9}{feedback:>11}\n");
    }
}

fn consumers(text: &mut String, status: &Status, seconds: f64, paint: Paint) {
    if !status.consumers.is_empty() {
        *text += "\nconsumer          socket      level %   in k/s  out k/s shed k/s lost k/s\n";
    }
    for consumer in &status.consumers {
        let name: String =
            format!("{} {}", shown(&consumer.process), consumer.pid).chars().take(17).collect();
        let rate = |count| format!("{:>9}", rate(count, seconds));
        let (shed, lost) = (rate(consumer.shed), rate(consumer.lost));
        let shed = if consumer.shed.unwrap_or(0) > 0 { paint.yellow(&shed) } else { shed };
        let lost = if consumer.lost.unwrap_or(0) > 0 { paint.red(&lost) } else { lost };
        let (socket, level) = (shown(&consumer.socket), percent(consumer.level, 0));
        let (input, output) = (rate(consumer.r#in), rate(consumer.out));
        let state = if consumer.inhibited { " held" } else { "" };
        *text += &format!("{name:<18}{socket:<12}{level:>7}{input}{output}{shed}{lost}{state}\n");
        if consumer.netns != 0 {
            let at = if consumer.address.is_empty() { "" } else { " at " };
            let address = shown(&consumer.address);
            *text += &format!("{:18}in network namespace {}{at}{address}\n", "", consumer.netns);
        }
    }
    if status.consumers_quiet > 0 {
        *text += &format!("{} more without a drop and below low water\n", grouped(status.consumers_quiet));
    }
}

fn ledgers(text: &mut String, status: &Status, seconds: f64) {
    text.push('\n');
    for interface in &status.interfaces {
        let drop = |(place, n): (&String, &u64)| format!("{} {}", rate(Some(*n), seconds), shown(place));
        let drops: Vec<String> = interface.drops.iter().map(drop).collect();
        let in_flight = interface.in_flight.map_or(String::new(), |n| format!("; {} in flight", grouped(n)));
        let offered = rate(interface.offered, seconds);
        // Without what was delivered it is no sum.
        let ledger = match interface.delivered {
            Some(n) => {
                let parts = [vec![format!("{} delivered", rate(Some(n), seconds))], drops].concat();
                format!("{offered} offered = {}{in_flight}", parts.join(" + "))
            }
            None if drops.is_empty() => format!("{offered} offered{in_flight}"),
            None => format!("{offered} offered; lost or shed of it: {}{in_flight}", drops.join(", ")),
        };
        *text += &format!("{:<8} k/s   {}\n", shown(&interface.name), wrap(&ledger, 15));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::ColorWhen;
    use crate::status::{Consumer, Cpu, Interface, Poller, SCHEMA, Source};
    use std::collections::BTreeMap;

    fn sample() -> Status {
        let interface = Interface {
            name: "eth0".into(),
            state: "guarded".into(),
            offered: Some(1_204_213),
            delivered: Some(381_480),
            drops: BTreeMap::from([("ring".into(), 822_733), ("socket".into(), 0)]),
            in_flight: Some(12),
            sources: vec![
                Source {
                    name: "eth0/0".into(),
                    cpu: 0,
                    mode: "interrupt".into(),
                    packets: Some(20),
                    ..Source::default()
                },
                Source {
                    name: "eth0/1".into(),
                    cpu: 1,
                    mode: "poll".into(),
                    reason: "turns were full".into(),
                    classes: BTreeMap::from([("normal".into(), 81_000), ("protected".into(), 200)]),
                    over_bound: 7,
                    over_bound_rule: "ssh".into(),
                    shed: 79_000,
                    ..Source::default()
                },
            ],
            ..Interface::default()
        };
        let consumer = Consumer {
            process: "rsyslogd".into(),
            pid: 1204,
            socket: "udp 514".into(),
            level: Some(0.76),
            lost: Some(9),
            ..Consumer::default()
        };
        let poller =
            Poller { cpu: 1, sched: "other".into(), polling: 1, packets: 9_153_602, ..Poller::default() };
        Status {
            pollers: vec![poller],
            schema: SCHEMA.into(),
            pid: 7,
            interval_s: 1.0,
            interfaces: vec![interface],
            consumers: vec![consumer],
            consumers_quiet: 6,
            cpus: vec![Cpu { cpu: 1, weir: Some(0.492), reserve: 0.2, ..Cpu::default() }],
            ..Status::default()
        }
    }

    #[test]
    fn table_fits_and_says_what_is_not_measured() {
        let text = text(&sample(), Paint::stdout(ColorWhen::Never));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "\nrates and counts of the last 1.0 s; of pollers: since the start\n",
            "eth0/0                 0  interrupt       <0.1        n/a       n/a",
            "  turns were full",
            "  k/s by class: 81.0 normal, 0.2 protected; shed 79.0; <0.1 over the bound of",
            "  protected (ssh)",
            "1            n/a     n/a    49.2       n/a     n/a        20          n/a",
            "rsyslogd 1204     udp 514          76      n/a      n/a      n/a     <0.1",
            "1            other    1     9 153 602",
            "6 more without a drop",
            "eth0     k/s   1204.2 offered = 381.5 delivered + 822.7 ring + 0.0 socket; 12 in",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn without_what_was_delivered_there_is_no_sum() {
        let mut status = sample();
        status.interfaces[0].delivered = None;
        let said = text(&status, Paint::stdout(ColorWhen::Never));
        let line = "eth0     k/s   1204.2 offered; lost or shed of it: 822.7 ring, 0.0 socket; 12 in";
        assert!(said.contains(line), "{said}");
        status.interfaces[0].drops.clear();
        let said = text(&status, Paint::stdout(ColorWhen::Never));
        assert!(said.contains("eth0     k/s   1204.2 offered; 12 in flight\n"), "{said}");
    }

    #[test]
    fn answers_with_missing_and_unknown_fields_are_read() {
        let status: Status = serde_json::from_str(r#"{"schema":"weir.status/1","pid":7,"new":1}"#).unwrap();
        assert_eq!((status.pid, status.interfaces.len()), (7, 0));
        let text = serde_json::to_string(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), sample());
    }
}
