//! `weir explain`: one report on why packets are lost here.

use crate::cli::ExplainArgs;
use crate::out::{self, Paint, count, grouped, sentence, shown, wrap};
use crate::watch::{Accepts, Costs, Guards, check_names, sleep_until, stop_flag, with_lower};
use kern::raw::Want;
use kern::shell::quoted;
use see::explain::{Finding, Report, Unplaced, explain, profiled};
use see::{Sampler, Snapshot};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Column at which the text of a line begins.
const INDENT: usize = 13;

/// Runs `weir explain`.
///
/// # Errors
/// 2 for an unknown interface, 1 if the kernel shows no counters, 3 if it may not be sampled (`--cpu`).
pub fn run(args: &ExplainArgs, paint: Paint) -> anyhow::Result<ExitCode> {
    check_names(&args.interfaces)?;
    let stop = stop_flag()?;
    let (snapshot, report) = look(args, &stop)?;
    if args.json {
        out::data(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else {
        let names: Vec<&str> = snapshot.interfaces.iter().map(|i| i.name.as_str()).collect();
        out::data(&text(&report, &out::listed(&names), paint))?;
    }
    let fails = args.fail_on.is_some() && report.findings.iter().any(|f| f.lost > 0);
    Ok(ExitCode::from(u8::from(fails)))
}

/// The window, and what it says. Ctrl-C ends it early: what was seen until then is explained.
fn look(args: &ExplainArgs, stop: &AtomicBool) -> anyhow::Result<(Snapshot, Report)> {
    let devices = with_lower(&args.interfaces);
    let want = Want { devices, tcp: true, all_tasks: true };
    let mut accepts = Accepts::open(args.control_dir.clone());
    let mut guards = Guards::open(args.control_dir.clone());
    if args.cpu {
        let mut costs = Costs::open(want)?;
        costs.watch_until(Instant::now() + args.r#for, stop);
        let (profile, mut snapshot) = costs.finish()?;
        guards.add(&mut snapshot);
        accepts.add(&mut snapshot);
        let report = profiled(&snapshot, &profile);
        return Ok((snapshot, report));
    }
    let mut sampler = Sampler::open(want)?;
    sleep_until(Instant::now() + args.r#for, stop);
    let mut snapshot = sampler.sample()?;
    guards.add(&mut snapshot);
    accepts.add(&mut snapshot);
    let report = explain(&snapshot);
    Ok((snapshot, report))
}

fn k(packets: u64, report: &Report) -> String {
    format!("{:.1} k/s", packets as f64 / report.seconds.max(1e-9) / 1e3)
}

fn line(indent: usize, label: &str, what: &str) -> String {
    format!("{:indent$}{label:<width$}{}\n", "", wrap(what, INDENT), width = INDENT - indent)
}

fn text(report: &Report, names: &str, paint: Paint) -> String {
    let received = report.lost.saturating_sub(report.lost_output);
    // Counters are not read at one moment.
    let share = (received as f64 / report.offered.max(1) as f64).min(1.0) * 100.0;
    let output = match report.lost_output {
        0 => String::new(),
        n => format!(", {} lost on the way out", k(n, report)),
    };
    let names = if names.is_empty() { "no interface that receives is up" } else { names };
    let mut text = format!(
        "{names}: {:.1} s, {} offered, {} lost ({share:.2} %){output}\n\n",
        report.seconds,
        k(report.offered, report),
        k(received, report)
    );
    report.guards.iter().for_each(|what| text += &line(3, "guard", &sentence(what)));
    text += if report.guards.is_empty() { "" } else { "\n" };
    for (i, finding) in report.findings.iter().enumerate() {
        text += &self::finding(i + 1, finding, paint);
    }
    match report.findings.len() {
        0 if report.offered == 0 && report.lost == 0 => {
            let what =
                "No packet arrived: look again while packets come, or for longer, as weir explain --for 60s.";
            text += &format!("{}\n\n", wrap(what, 0));
        }
        0 if report.unplaced.is_some() => text += "No loss has a cause that is known.\n\n",
        0 => {
            let lost = if report.lost == 0 {
                "no packet was lost".into()
            } else {
                format!("{} of", grouped(report.lost))
            };
            let nothing = if report.guards.is_empty() { "Nothing" } else { "Nothing else" };
            let what = match report.lost {
                0 => format!("{nothing} is wrong: {lost} in {}.", grouped(report.offered)),
                _ => format!(
                    "{nothing} is wrong: {lost} {} packets lost is within what is normal.",
                    grouped(report.offered)
                ),
            };
            text += &format!("{}\n\n", wrap(&what, 0));
        }
        n => text += &format!("{} in {} rules\n\n", count(n, "finding"), report.rules),
    }
    text += &report.unplaced.as_ref().map_or_else(String::new, |rest| unplaced(rest, report.offered));
    text += &line(
        3,
        "checked",
        &format!("{} rules; unaccounted {}, known to +-{}", report.rules, report.unaccounted, report.skew),
    );
    report.harmless.iter().for_each(|note| text += &line(3, "harmless", &sentence(note)));
    if !report.closest.is_empty() {
        text += &line(
            3,
            "closest",
            &format!("{}: the nearest to their limits", sentence(&report.closest.join("; "))),
        );
    }
    report.accepts.iter().for_each(|group| text += &line(3, "accept", &sentence(group)));
    report.missing.iter().for_each(|note| text += &line(3, "missing", &sentence(note)));
    text
}

/// What can be behind packets that no counter places, and where to look.
fn unplaced(rest: &Unplaced, offered: u64) -> String {
    let of = format!("{} of {} packets are in no counter", grouped(rest.packets), grouped(offered));
    if rest.below_ip * 2 <= rest.packets {
        let why = "IP received them and did not tell what became of them, such as datagrams of a socket that was closed";
        return line(3, "unknown", &format!("{of}: {why}")) + "\n";
    }
    let why = "devices received them and IP did not. A rule of nft's netdev family, tc or an XDP program drops them, or \
               they are passed on below IP or are not of IP, which is no loss: macvlan or ipvlan of containers, \
               flowtables, captures, PPPoE, CAN";
    let mut text = line(3, "unknown", &format!("{of}: {why}"));
    text += "\n   look      sudo nft list ruleset     # tables of the family netdev\n";
    for name in rest.interfaces.iter().map(|name| quoted(&shown(name)).into_owned()) {
        text += &format!("             tc -s filter show dev {name} ingress\n");
        text += &format!("             ip -details link show {name}     # XDP, and promiscuity\n");
    }
    text + "\n"
}

fn finding(number: usize, f: &Finding, paint: Paint) -> String {
    let mut text = format!("{}\n\n", paint.red(&format!("{number}  {}", wrap(&sentence(&f.title), 3))));
    for (i, (name, value)) in f.evidence.iter().enumerate() {
        let label = if i == 0 { "evidence" } else { "" };
        text += &line(3, label, &format!("{}: {}", shown(name), sentence(value)));
    }
    f.also.iter().for_each(|also| text += &line(3, "", &format!("also explains: {}", sentence(also))));
    text.push('\n');
    for (i, command) in f.change.iter().enumerate() {
        // Not wrapped: a command is pasted as it stands.
        text += &format!("   {:<10}{}\n", if i == 0 { "change" } else { "" }, sentence(command));
    }
    text += &format!("\n{}", line(3, "effect", &sentence(&f.effect)));
    text + &line(3, "source", &sentence(&f.source)) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::ColorWhen;

    fn plain(report: &Report) -> String {
        text(report, "eth0", Paint::stdout(ColorWhen::Never))
    }

    #[test]
    fn a_finding_has_evidence_change_effect_and_source() {
        let finding = Finding {
            title: "The ring of eth0 is too small".into(),
            lost: 500,
            evidence: vec![("ring".into(), "256 packets".into())],
            change: vec!["sudo ethtool -G eth0 rx 1024".into()],
            effect: "lost less".into(),
            source: "WU-05".into(),
            also: vec!["1 k/s lost at udp 5".into()],
            ..Finding::default()
        };
        let report = Report {
            seconds: 2.0,
            offered: 10_000,
            lost: 500,
            findings: vec![finding],
            rules: 31,
            ..Report::default()
        };
        let text = plain(&report);
        for part in [
            "eth0: 2.0 s, 5.0 k/s offered, 0.2 k/s lost (5.00 %)",
            "1  The ring of eth0 is too small",
            "   evidence  ring: 256 packets",
            "             also explains: 1 k/s lost at udp 5",
            "   change    sudo ethtool -G eth0 rx 1024",
            "   effect    lost less",
            "   source    WU-05",
            "1 finding in 31 rules",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }

    #[test]
    fn no_more_is_lost_than_came() {
        let head = |offered, lost, lost_output| {
            let report = Report { seconds: 1.0, offered, lost, lost_output, ..Report::default() };
            plain(&report).lines().next().unwrap().to_owned()
        };
        assert_eq!(head(10_000, 10_007, 0), "eth0: 1.0 s, 10.0 k/s offered, 10.0 k/s lost (100.00 %)");
        assert_eq!(
            head(2, 1_126, 1_126),
            "eth0: 1.0 s, 0.0 k/s offered, 0.0 k/s lost (0.00 %), 1.1 k/s lost on the way out"
        );
    }

    #[test]
    fn guards_are_asked() {
        use crate::status::{Interface, Source, Status};
        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("guard-7.sock")).unwrap();
        let source = Source { name: "lo/0".into(), mode: "poll".into(), ..Source::default() };
        let lo = Interface { name: "lo".into(), sources: vec![source], ..Interface::default() };
        let netns = kern::netns::current_inode().unwrap();
        let status = Status { pid: 7, netns, interfaces: vec![lo], ..Status::default() };
        let text = serde_json::to_vec(&status).unwrap();
        let guard = std::thread::spawn(move || {
            // Before the window and behind it.
            for _ in 0..2 {
                listener.accept().unwrap().0.write_all(&text).unwrap();
            }
        });
        let args = ExplainArgs {
            interfaces: vec!["lo".into()],
            r#for: std::time::Duration::from_millis(100),
            cpu: false,
            json: false,
            fail_on: None,
            control_dir: dir.path().to_owned(),
        };
        let (snapshot, _) = look(&args, &AtomicBool::new(false)).unwrap();
        guard.join().unwrap();
        assert_eq!((snapshot.guards.len(), snapshot.guards[0].sources[0].name.as_str()), (1, "lo/0"));
    }

    #[test]
    fn where_nothing_arrived_nothing_is_known() {
        let report = Report { seconds: 1.0, rules: 32, ..Report::default() };
        let text = text(&report, "", Paint::stdout(ColorWhen::Never));
        assert!(text.starts_with("no interface that receives is up: 1.0 s, "), "{text}");
        assert!(
            text.contains("No packet arrived: look again") && !text.contains("Nothing is wrong"),
            "{text}"
        );
    }

    #[test]
    fn packets_that_no_counter_places_are_no_good_news() {
        let rest = Unplaced { packets: 999, below_ip: 990, interfaces: vec!["eth0".into()] };
        let report = Report {
            seconds: 1.0,
            offered: 1_000,
            unaccounted: 999,
            unplaced: Some(rest),
            rules: 31,
            ..Report::default()
        };
        let text = plain(&report);
        for part in [
            "No loss has a cause that is known.",
            "   unknown   999 of 1 000 packets are in no counter: devices received them",
            "             tc -s filter show dev eth0 ingress",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(!text.contains("is wrong") && text.lines().all(|l| l.len() <= 80), "{text}");
    }

    #[test]
    fn nothing_is_wrong_is_an_answer() {
        let report = Report { seconds: 1.0, offered: 5, rules: 31, ..Report::default() };
        assert!(plain(&report).contains("Nothing is wrong: no packet was lost in 5."), "{}", plain(&report));
        let report = Report { lost: 2, ..report };
        assert!(plain(&report).contains("2 of 5 packets lost is within"), "{}", plain(&report));
    }
}
