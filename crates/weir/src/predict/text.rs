//! The report of `weir predict` in 80 columns.

use super::{Answer, Row};
use crate::out::{Paint, grouped, shown, wrap};
use model::cheaper::{CUTS, Gain};
use model::line::Estimate;
use model::path::{Class, Limit};

/// Packets/s in at most three digits and a unit.
pub(super) fn rate(pps: f64) -> String {
    match pps {
        // Of either sign.
        n if n.abs() < 0.5 => "0 /s".into(),
        n if n < 999.5 => format!("{n:.0} /s"),
        n if n < 99_950.0 => format!("{:.1} k/s", n / 1e3),
        n if n < 999_500.0 => format!("{:.0} k/s", n / 1e3),
        n => format!("{:.2} M/s", n / 1e6),
    }
}

fn interval(e: &Estimate) -> String {
    match e.high {
        Some(high) => format!("{} to {}", rate(e.low), rate(high)),
        None => format!("at least {}", rate(e.low)),
    }
}

/// Words for a limit on CPU `cpu`.
pub(super) fn limited_by(limit: Limit, cpu: u32) -> String {
    match limit {
        Limit::Cpu => format!("CPU {cpu}, full"),
        Limit::ProgramCpu => "program's CPU".into(),
        Limit::Ring => "ring".into(),
        Limit::Socket => "socket buffer".into(),
        Limit::Budget => "budget".into(),
        Limit::Link => "link".into(),
    }
}

/// True if a change makes no difference that its interval would show.
fn no_gain(row: &Row, today: &Row) -> bool {
    (row.mlfrr_pps.value / today.mlfrr_pps.value - 1.0).abs() < 0.01
}

pub(super) fn text(answer: &Answer, paint: Paint) -> String {
    let Answer { rows, costs, cpu, .. } = answer;
    let Some(today) = rows.first() else { return String::new() };
    let mut text = format!(
        "{}, from {:.0} s of its own traffic ({} packets, {}), no test load\n\n",
        shown(&answer.interface),
        answer.seconds,
        grouped(answer.packets),
        rate(answer.now_pps)
    );
    text += &format!("{:<19}{:>9}  {:<20}{:>6}  limited by\n", "", "MLFRR", "90 % interval", "x now");
    for row in rows {
        let gain = if row != today && no_gain(row, today) { ": no gain" } else { "" };
        let line = format!(
            "{:<19}{:>9}  {:<20}{:>6.1}  {}{gain}",
            row.change,
            rate(row.mlfrr_pps.value),
            interval(&row.mlfrr_pps),
            row.times_now,
            limited_by(row.limit, *cpu)
        );
        text += &format!("{line}\n");
    }
    let hidden = answer.readers.is_empty() && answer.hidden > 0;
    if hidden {
        let what = format!(
            "the program that reads: only root sees programs of other users, and the true rate is lower: sudo weir predict {}",
            shown(&kern::shell::quoted(&answer.interface))
        );
        text += &format!("\n{}  {}\n", paint.red("not counted"), wrap(&what, 13));
    }
    let beyond = match (today.class, &today.livelock_pps) {
        (Class::Livelock, Some(point)) => {
            paint.yellow("livelock")
                + &format!(
                    ": packets take the CPU from the program, which gets nothing from about {} on. With weir guard it is flat",
                    rate(point.value)
                )
        }
        (Class::Livelock, None) => "livelock: packets take the CPU from the program".into(),
        (Class::Realizable, _) => "what can be delivered is delivered, the rest is lost".into(),
    };
    text += &format!("\nbeyond it    {}\n", wrap(&beyond, 13));
    let us = |seconds: f64| format!("{:.2} us", seconds * 1e6);
    let mut per_packet = format!("receive {}", us(costs.receive.per_packet));
    if costs.program.per_packet > 0.0 {
        per_packet += &format!(", program {}", us(costs.program.per_packet));
    }
    per_packet += &match costs.per_pass {
        Some(pass) => {
            format!("; and {} per pass of the softirq, of which a busy CPU {cpu} makes few", us(pass))
        }
        None => format!(
            "; and {:.0} % of CPU {cpu} at any rate (polls, wakes, other work)",
            100.0 * (costs.receive.fixed + costs.program.fixed)
        ),
    };
    if costs.pass_assumed > 0.0 {
        per_packet += &format!(
            "; a pass of the softirq, of which a busy CPU makes few, is taken to cost {}",
            us(costs.pass_assumed)
        );
    }
    if costs.per_wake > 0.0 && costs.program.per_packet > 0.0 {
        per_packet +=
            &format!("; a wake of the program {}, of which under load there is none", us(costs.per_wake));
    }
    per_packet += &format!("; 1 us more costs {}", rate(-today.pps_per_us));
    text += &format!("per packet   {}\n", wrap(&per_packet, 13));
    if !answer.cheaper.is_empty() {
        text += &format!("cheaper      {}\n", wrap(&gains(&answer.cheaper), 13));
    }
    let mut assumes = String::from("the mix of now");
    let names: Vec<String> = answer
        .readers
        .iter()
        .take(3)
        .map(|r| format!("{} {:.0} %", shown(&r.name), 100.0 * r.share))
        .collect();
    if !names.is_empty() {
        assumes += &format!(": {} of a CPU", names.join(", "));
    }
    if !costs.varied {
        let bound = if hidden { "" } else { ", and the rate is a lower bound" };
        assumes += &format!(
            "; its rate hardly changed, so fixed costs could not be told from those per packet{bound}: watch longer with --for"
        );
    }
    if costs.varied && costs.alone {
        assumes += "; each packet came alone, with an interrupt and a wake of its own, which packets share under load: the rate \
                    is a lower bound";
    }
    text += &format!("assumes      {}\n", wrap(&assumes, 13));
    for line in &answer.missing {
        text += &format!("not known    {}\n", wrap(&shown_line(line), 13));
    }
    text
}

/// MR-40: what is gained by a tenth and by a hundredth less of each part.
fn gains(gains: &[Gain]) -> String {
    let one = |of_part: &[Gain]| {
        let each: Vec<String> = of_part.iter().map(|g| format!("{:+.1} %", 100.0 * g.gain)).collect();
        let part = of_part.first().map_or("", |g| g.part.name.as_str());
        format!("{part} {}", each.join(" and "))
    };
    let parts: Vec<String> = gains.chunks(CUTS.len()).map(one).collect();
    format!(
        "{} and {} % less cost per packet give in MLFRR: {}",
        100.0 * CUTS[0],
        100.0 * CUTS[1],
        parts.join("; ")
    )
}

/// A line from the kernel's side, printable.
fn shown_line(line: &str) -> String {
    line.chars().filter(|c| !kern::text::deceives(*c)).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::{ColorWhen, WIDTH};
    use crate::predict::observe::Reader;
    use model::line::Line;
    use model::observe::Costs;

    fn answer(varied: bool) -> Answer {
        let estimate = |value: f64| Estimate { value, low: value * 0.9, high: varied.then_some(value * 1.1) };
        let row = |change: &str, value, limit, class| Row {
            change: change.into(),
            mlfrr_pps: estimate(value),
            times_now: value / 180e3,
            limit,
            class,
            livelock_pps: (class == Class::Livelock).then(|| estimate(1.07e6)),
            pps_per_us: -98_765.0,
        };
        Answer {
            interface: "eth0".into(),
            seconds: 10.0,
            packets: 1_812_345,
            now_pps: 180e3,
            cpu: 1,
            part: 1.0,
            windows: Vec::new(),
            windows_used: 10,
            costs: Costs {
                receive: Line { fixed: 0.1, per_packet: 0.4e-6 },
                program: Line { fixed: 0.1, per_packet: 1.7e-6 },
                varied,
                per_pass: None,
                per_wake: 1.8e-6,
                pass_assumed: 0.0,
                alone: false,
            },
            rows: vec![
                row("today", 374e3, Limit::Cpu, Class::Livelock),
                row("--rcvbuf 4194304", 374e3, Limit::Cpu, Class::Livelock),
                row("--guarded", 462e3, Limit::Cpu, Class::Realizable),
            ],
            cheaper: {
                let path = model::path::Path::of(
                    Line { fixed: 0.1, per_packet: 0.4e-6 },
                    Line { fixed: 0.1, per_packet: 1.7e-6 },
                );
                model::cheaper::gains(&path, &model::cheaper::parts(&path), &CUTS)
            },
            readers: vec![Reader { pid: 7, name: "knotd".into(), share: 0.41, lost: 0.0 }],
            path: model::path::Path::of(Line::default(), Line::default()),
            missing: vec!["processes of sockets of other users (3): needs root".into()],
            hidden: 3,
        }
    }

    #[test]
    fn a_report_fits_and_says_what_is_not_known() {
        for varied in [true, false] {
            let text = text(&answer(varied), Paint::stdout(ColorWhen::Never));
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
            assert!(
                text.contains("today") && text.contains("374 k/s") && text.contains("CPU 1, full: no gain"),
                "{text}"
            );
            assert!(
                text.contains("livelock") && text.contains("1.07 M/s") && text.contains("needs root"),
                "{text}"
            );
            // 0.8 / (2.1 - 0.04) us against 0.8 / 2.1 us.
            let words: Vec<&str> = text.split_whitespace().collect();
            assert!(
                words.join(" ").contains("receive +1.9 % and +0.2 %; program +8.8 % and +0.8 %"),
                "{text}"
            );
            assert_eq!(text.contains("at least 337 k/s"), !varied, "{text}");
            assert_eq!(text.contains("337 k/s to 411 k/s"), varied, "{text}");
        }
    }

    #[test]
    fn a_program_that_only_root_sees_is_told_before_the_rate_is_believed() {
        let hidden = Answer { readers: Vec::new(), ..answer(false) };
        let text = text(&hidden, Paint::stdout(ColorWhen::Never));
        assert!(text.contains("not counted  the program that reads: only root sees"), "{text}");
        assert!(text.contains("sudo weir predict eth0") && !text.contains("is a lower bound"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn rates_have_three_digits() {
        for (pps, said) in [
            (0.0, "0 /s"),
            (-0.0, "0 /s"),
            (999.4, "999 /s"),
            (1234.0, "1.2 k/s"),
            (455_400.0, "455 k/s"),
            (1.07e6, "1.07 M/s"),
        ] {
            assert_eq!(rate(pps), said);
        }
    }
}
