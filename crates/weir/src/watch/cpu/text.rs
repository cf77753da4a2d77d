//! A profile, and two of them compared, as text of 80 columns.

use crate::out::{Paint, count, grouped, listed, shown, wrap};
use see::cost::diff::{Diff, Row};
use see::cost::{Component, Cpu, Mechanism, Profile};

/// CPUs that are shown, the busiest ones.
const CPUS: usize = 16;
/// Functions that are shown.
const FUNCTIONS: usize = 10;
/// Functions of a comparison that are shown.
const DIFFERENCES: usize = 20;
/// Column at which the text of a line begins.
const INDENT: usize = 12;
/// Components in the table of CPUs, with their short names.
const COLUMNS: [(Component, &str); 10] = [
    (Component::Interrupt, "irq"),
    (Component::Napi, "NAPI"),
    (Component::Stack, "stack"),
    (Component::UpperReceive, "up rx"),
    (Component::UpperTransmit, "up tx"),
    (Component::LowerTransmit, "low tx"),
    (Component::Program, "progs"),
    (Component::Kernel, "other"),
    (Component::Weir, "weir"),
    (Component::Idle, "idle"),
];

fn percent(part: u64, all: u64) -> f64 {
    share(part, all as f64)
}

fn share(part: u64, all: f64) -> f64 {
    100.0 * part as f64 / all.max(1.0)
}

fn line(label: &str, what: &str) -> String {
    format!("{label:<INDENT$}{}\n", wrap(what, INDENT))
}

fn name(function: &str, columns: usize) -> String {
    shown(function).chars().take(columns).collect()
}

/// ns in at most five digits: `k` and `M` where few packets leave much for each.
fn short(ns: f64, most: f64, sign: bool) -> String {
    let (value, unit) = match ns.abs() {
        n if n < most => (ns, ""),
        n if n < 999_500.0 => (ns / 1e3, "k"),
        n if n < 999_500_000.0 => (ns / 1e6, "M"),
        _ => (ns / 1e9, "G"),
    };
    if sign { format!("{value:+.0}{unit}") } else { format!("{value:.0}{unit}") }
}

/// One interval.
pub fn profile(p: &Profile, paint: Paint) -> String {
    let seconds = p.time_s as u64 % 86_400;
    let clock = format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let left = format!("weir watch --cpu  {} {}", shown(&p.host), listed(&p.interfaces));
    let right = format!("{clock}  {:.1} s", p.interval_s);
    let gap = 80usize.saturating_sub(left.chars().count() + right.chars().count()).max(2);
    let mut text = format!("{left}{:gap$}{right}\n", "");
    let all = p.samples();
    let of_all = match p.cpus.len() {
        1 => "% of 1 CPU".to_owned(),
        n => format!("% of {n} CPUs"),
    };
    text += &format!("{:<24}{of_all:>14}{:>14}  {:<8} per packet\n", "component", "ns/packet", "+-");
    for component in Component::ALL {
        let samples = p.of(component);
        let cost = p.per_packet(component, samples).filter(|_| component != Component::Idle);
        let cost = cost.map_or(format!("{:>14}", "-"), |cost| {
            let which = if component.sends() { "sent" } else { "received" };
            format!("{:>14.0}  {:<8.0} {which}", cost.ns, cost.noise)
        });
        text += &format!("{:<24}{:>14.1}{cost}\n", component.name(), share(samples, p.room()));
    }
    let unseen = 100.0 * (1.0 - all as f64 / p.room().max(1.0));
    text += &format!("{:<24}{unseen:>14.1}{:>14}\n", "not seen", "-");
    text += &cpus(p);
    text += &functions(p);
    let packets = format!(
        "{} received, {} sent; +- is the noise of {} samples, 90 %",
        grouped(p.received),
        grouped(p.sent),
        grouped(all)
    );
    text += &line("packets", &packets);
    text += &line("taken", &taken(p));
    if let Some(share) = p.mechanism() {
        let each: Vec<String> = p.mechanisms.iter().map(|(m, n)| mechanism(*m, *n, p.work())).collect();
        let rest = 100.0 * (1.0 - share);
        text += &line(
            "mechanism",
            &format!("of the work for packets {rest:.0} % is protocol; {}", each.join(", ")),
        );
    }
    if p.lost + p.malformed > 0 {
        let what = format!("{} samples lost, {} not readable", grouped(p.lost), p.malformed);
        text += &paint.yellow(&line("missing", &what));
    }
    text + "\n"
}

fn mechanism(mechanism: Mechanism, samples: u64, work: u64) -> String {
    format!("{} {:.1} %", mechanism.name(), percent(samples, work))
}

fn taken(p: &Profile) -> String {
    match p.taken() {
        None => "no program ran".into(),
        Some(share) => format!(
            "{:.1} % of the time of programs, by interrupts and by packets that were received on top of them",
            100.0 * share
        ),
    }
}

fn cpus(p: &Profile) -> String {
    let mut order: Vec<&Cpu> = p.cpus.iter().collect();
    if order.len() > CPUS {
        let idle = |c: &Cpu| percent(c.of(Component::Idle), c.samples);
        order.sort_by(|a, b| idle(a).total_cmp(&idle(b)));
    }
    let mut text = format!("{:<6}", "CPU %");
    COLUMNS.iter().for_each(|(_, short)| text += &format!("{short:>7}"));
    text = text.trim_end().to_owned() + "\n";
    for c in order.iter().take(CPUS) {
        let room = c.room(p.interval_s, p.period_ns);
        let mut row = format!("{:>5} ", c.cpu);
        COLUMNS.iter().for_each(|(component, _)| row += &format!("{:>7.1}", share(c.of(*component), room)));
        let missed = c.missed(p.interval_s, p.period_ns);
        if c.samples == 0 {
            row = format!("{:>5}  no sample", c.cpu);
        }
        text += &format!("{row}\n");
        if missed > 0.02 && c.samples > 0 {
            let why = if c.of(Component::Idle) > 0 {
                "idle and woken late for it, or the hypervisor had it"
            } else {
                "interrupts off for long, or the hypervisor had it"
            };
            text += &format!("{:6} {:.0} % not seen: {why}\n", "", 100.0 * missed);
        }
    }
    let more = order.len().saturating_sub(CPUS);
    if more > 0 {
        text += &format!("{:>5}  more: --json has all\n", more);
    }
    text
}

fn functions(p: &Profile) -> String {
    let busy = p.functions.iter().filter(|f| f.component != Component::Idle);
    let mut text = format!("{:<33}{:<22}{:>9}{:>14}\n", "function", "component", "% busy", "ns/packet");
    let all = p.samples() - p.of(Component::Idle);
    for f in busy.take(FUNCTIONS) {
        let cost = p.per_packet(f.component, f.samples).map_or("-".into(), |c| format!("{:.0}", c.ns));
        text += &format!(
            "{:<33}{:<22}{:>9.1}{cost:>14}\n",
            name(&f.name, 32),
            f.component.name(),
            percent(f.samples, all)
        );
    }
    text
}

/// The comparison of two recordings.
pub fn diff(d: &Diff, [a, b]: [&Profile; 2], paint: Paint) -> String {
    let mut text = format!("{:<29}{:<21}{:>7}{:>7}{:>8}{:>6}\n", "ns/packet", "", "A", "B", "B-A", "noise");
    let one = |r: &Row, first: &str, second: &str| {
        let row = format!(
            "{first:<29}{second:<21}{:>7}{:>7}{:>8}{:>6}",
            short(r.a_ns, 99_999.5, false),
            short(r.b_ns, 99_999.5, false),
            short(r.more_ns, 99_999.5, true),
            short(r.noise_ns, 9_999.5, false)
        );
        let painted = match (r.differs(), r.more_ns > 0.0) {
            (true, true) => paint.red(&row),
            (true, false) => paint.cyan(&row),
            _ => row,
        };
        format!("{painted}{}\n", if r.differs() { "" } else { " ~" })
    };
    d.components.iter().for_each(|r| text += &one(r, r.component.name(), ""));
    text.push('\n');
    d.functions
        .iter()
        .take(DIFFERENCES)
        .for_each(|r| text += &one(r, &name(&r.name, 28), r.component.name()));
    let more = d.functions.len().saturating_sub(DIFFERENCES);
    if more > 0 {
        text += &format!("{more} more that differ: --json has all\n");
    }
    let length = |p: &Profile| {
        format!(
            "{:.0} s, {} samples, {} packets received",
            p.interval_s,
            grouped(p.samples()),
            grouped(p.received)
        )
    };
    text += &line("A", &length(a));
    text += &line("B", &length(b));
    let within = format!(
        "{} by more than the noise of the samples, {} not (~); a machine that changes between A and B is no such noise: \
         record A twice to see it",
        count(d.functions.len(), "function"),
        d.within_noise
    );
    text += &line("differ", &within);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::{ColorWhen, WIDTH};
    use see::cost::Function;
    use see::cost::diff::diff as compare;

    fn plain() -> Paint {
        Paint::stdout(ColorWhen::Never)
    }

    fn host(cpus: u32, receive: u64) -> Profile {
        let cpu = |cpu| Cpu {
            cpu,
            samples: 4990,
            components: [
                (Component::Napi, receive),
                (Component::Program, 400),
                (Component::Idle, 4590 - receive),
            ]
            .into(),
            taken: 200,
            ..Cpu::default()
        };
        let function = |name: &str, component, samples| Function { name: name.into(), component, samples };
        Profile {
            schema: see::cost::SCHEMA.into(),
            host: "vm".into(),
            interval_s: 10.0,
            period_ns: kern::profile::PERIOD_NS,
            interfaces: vec!["eth0".into()],
            received: 1_000_000,
            cpus: (0..cpus).map(cpu).collect(),
            mechanisms: [(Mechanism::Copies, receive / 10)].into(),
            functions: vec![
                function("veth_poll", Component::Napi, receive),
                function("a_function_with_a_name_that_is_longer_than_all", Component::Program, 400),
            ],
            ..Profile::default()
        }
    }

    #[test]
    fn a_profile_fits_and_says_what_a_packet_costs() {
        for cpus in [1, 2, 40] {
            let text = profile(&host(cpus, 1000), plain());
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
            assert!(text.contains("lower receive: NAPI"), "{text}");
            assert_eq!(text.contains("24  more: --json has all"), cpus == 40, "{text}");
        }
        let text = profile(&host(1, 1000), plain());
        // 1000 samples of 2.004 ms over 10^6 packets.
        assert!(
            text.contains("2004  104      received") && text.contains("33.3 % of the time of programs"),
            "{text}"
        );
        assert!(text.contains("90 % is protocol; copies 10.0 %") && !text.contains("missing"), "{text}");
        let lossy = Profile { lost: 5, ..host(1, 1000) };
        assert!(profile(&lossy, plain()).contains("5 samples lost"));
        let silent = Profile { received: 0, ..host(1, 1000) };
        assert!(
            profile(&silent, plain())
                .lines()
                .any(|l| l.starts_with("lower receive: NAPI") && l.ends_with('-'))
        );
    }

    #[test]
    fn few_packets_leave_the_columns_as_they_are() {
        let few = |received, receive| Profile { received, ..host(2, receive) };
        let (a, b) = (few(3, 1000), few(1, 4000));
        let text = diff(&compare(&a, &b), [&a, &b], plain());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        for (ns, said) in [(99_999.0, "+99999"), (-100_000.0, "-100k"), (2.5e6, "+2M"), (1.5e10, "+15G")] {
            assert_eq!(short(ns, 99_999.5, true), said);
        }
    }

    #[test]
    fn a_cpu_that_was_away_is_told() {
        let mut away = host(1, 1000);
        away.interval_s = 20.0;
        assert!(profile(&away, plain()).contains("50 % not seen"), "{}", profile(&away, plain()));
    }

    #[test]
    fn a_comparison_fits_and_keeps_noise_apart() {
        let (a, b) = (host(2, 1000), host(2, 1500));
        let text = diff(&compare(&a, &b), [&a, &b], plain());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("1 function by more than the noise of the samples, 1 not"), "{text}");
        assert!(text.lines().any(|l| l.starts_with("programs") && l.ends_with(" ~")), "{text}");
        assert!(text.lines().any(|l| l.starts_with("veth_poll") && !l.ends_with(" ~")), "{text}");
    }
}
