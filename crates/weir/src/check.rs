//! `weir check`: what this host and its interfaces can do, and what is missing.

use crate::cli::{CheckArgs, Require};
use crate::error::{missing, usage};
use crate::out::{self, Paint, count, wrap};
use kern::discover::{self, DiscoverError, Interface};
use kern::settings::Access;
use kern::tier::{self, Feature, Here, Host, Report, Tier};
use see::truth;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

/// Interfaces that are looked at when none is named.
const INTERFACES_MAX: usize = 64;

/// The `--json` document.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    host: &'a Host,
    interfaces: &'a [Report],
    /// What the drop counters of each driver count.
    counters: BTreeMap<&'a str, Vec<&'static truth::Row>>,
}

/// Runs `weir check`. Exit code 0 whatever it finds: a report was asked for and given.
///
/// # Errors
/// 2 for an interface that cannot be guarded, 3 if `--require` is not met.
pub fn run(args: &CheckArgs, paint: Paint) -> anyhow::Result<ExitCode> {
    let mut access = Access::for_current_netns()?;
    let names = if args.interfaces.is_empty() { all(&mut access)? } else { args.interfaces.clone() };
    let (host, reports) =
        tier::check(&mut access, &names).map_err(|err: DiscoverError| match err.is_usage() {
            true => usage(err),
            false => err.into(),
        })?;
    if args.json {
        let kinds = reports.iter().map(|r| r.interface.kind.as_str());
        let counters = kinds.map(|kind| (kind, truth::rows(kind))).collect();
        let document = Document { schema: "weir.check/1", host: &host, interfaces: &reports, counters };
        out::data(&format!("{}\n", serde_json::to_string(&document)?))?;
    } else {
        out::data(&text(&host, &reports, paint))?;
    }
    match args.require {
        Some(Require::Guard) => require_guard(&reports),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Names of this namespace's interfaces that can be guarded.
fn all(access: &mut Access) -> anyhow::Result<Vec<String>> {
    let names = kern::netns::interfaces()?.into_iter().map(|(name, _)| name);
    Ok(names.filter(|name| discover::resolve(access, name).is_ok()).take(INTERFACES_MAX).collect())
}

fn require_guard(reports: &[Report]) -> anyhow::Result<ExitCode> {
    let short: Vec<&str> =
        reports.iter().filter(|r| r.tier != Tier::Full).map(|r| r.interface.name.as_str()).collect();
    match (reports.is_empty(), short.as_slice()) {
        (true, _) => Err(missing("check: no interface here can be guarded; set one up, or name one")),
        (false, []) => Ok(ExitCode::SUCCESS),
        (false, names) => {
            Err(missing(format!("{}: guard does not work in full; weir check says why", out::listed(names))))
        }
    }
}

fn text(host: &Host, reports: &[Report], paint: Paint) -> String {
    let mut text = format!(
        "{:<9} Linux {}, {}, BTF {}, lockdown {}\n",
        out::shown(&host.name),
        host.kernel,
        count(host.cpus, "CPU"),
        here(host.probes.btf),
        host.lockdown
    );
    reports.iter().for_each(|report| text += &interface(&report.interface));
    text.push('\n');
    for report in reports {
        let tier = match report.tier {
            Tier::Full => "full   ".to_owned(),
            Tier::Part => "part   ".to_owned(),
            Tier::None => paint.red("none   "),
        };
        let name = if reports.len() == 1 { "guard" } else { &report.interface.name };
        text += &format!("{name:<9} {tier}{}\n", wrap(&report.summary, 17));
    }
    if reports.is_empty() {
        text += "guard     none   no interface here can be guarded\n";
    }
    let own =
        |report: &Report| report.features.get(host.features.len()..).map(<[_]>::to_vec).unwrap_or_default();
    match reports {
        [only] => text += &table(&only.features, "feature", paint),
        _ => {
            text += &table(&host.features, "feature", paint);
            reports.iter().for_each(|report| text += &table(&own(report), &report.interface.name, paint));
        }
    }
    let kinds: BTreeSet<&str> = reports.iter().map(|r| r.interface.kind.as_str()).collect();
    kinds.into_iter().for_each(|kind| text += &counters(kind));
    // Sockets elsewhere can be behind any interface of a host that hands packets on.
    if let Some(why) = kern::discover::hands_on() {
        let line = format!(
            "not seen: of sockets in other network namespaces, such as those of containers ({why}), TCP, UDP sockets \
             that share their port there, those that no veth of this host leads to (macvlan, ipvlan, virtual functions), and those behind a \
             translation that is not in this host's connection table (another program's XDP or tc, IPVS without \
             conntrack): no level and no shed for them; quota and budget hold, and turns that they refuse whole are \
             followed by a pause"
        );
        text += &format!("\n{}\n", wrap(&line, 2));
    }
    text + &todo(host, reports)
}

fn interface(interface: &Interface) -> String {
    let mut parts = vec![interface.kind.clone(), count(interface.sources.len(), "source")];
    if let Some(ring) = interface.ring {
        parts.push(if ring.rx < ring.rx_max {
            format!("ring {} (max {})", ring.rx, ring.rx_max)
        } else {
            format!("ring {}", ring.rx)
        });
    }
    parts.push(match interface.xdp_native {
        Some(true) => "XDP in the driver".into(),
        Some(false) => "no XDP in the driver".into(),
        None => "XDP not known".into(),
    });
    let (_, when) = kern::guard::When::for_driver(&interface.kind, interface.xdp_native);
    parts.push(format!("attached {when}"));
    if !interface.up {
        parts.push("down".into());
    }
    format!("{:<9} {}\n", out::shown(&interface.name), wrap(&parts.join(", "), 10))
}

fn here(here: Here) -> &'static str {
    match here {
        Here::Yes => "yes",
        Here::No => "no",
        Here::NotKnown => "n/a",
    }
}

/// What is missing comes first, with what is missed; the rest with its use, if nothing is missing.
fn table(features: &[Feature], title: &str, paint: Paint) -> String {
    if features.is_empty() {
        return String::new();
    }
    let absent = |feature: &&Feature| feature.here != Here::Yes;
    let short = features.iter().any(|feature| absent(&feature));
    let last = if short { "what you miss" } else { "used for" };
    let mut text = format!("\n{:<29}  here  {:<7}  {last}\n", out::shown(title), "since");
    let rows = features.iter().filter(absent).chain(features.iter().filter(|feature| !absent(feature)));
    for feature in rows {
        let answer = format!("{:<4}", here(feature.here));
        let answer = if feature.here == Here::No { paint.red(&answer) } else { answer };
        let what = match (absent(&feature), short) {
            (true, _) => feature.missed,
            (false, true) => "",
            (false, false) => feature.used_for,
        };
        let line = format!("{:<29}  {answer}  {:<7}  {}", feature.name, feature.since, wrap(what, 46));
        text += &format!("{}\n", line.trim_end());
        if feature.here == Here::No {
            text += &format!("  {}\n", wrap(&out::sentence(&feature.why), 2));
        }
    }
    text
}

/// What the drop counters of this driver count: `weir watch` counts with the same rows.
fn counters(kind: &str) -> String {
    let mut text = format!("\n{:<29}  place    what it counts\n", format!("drops of {}", out::shown(kind)));
    for row in truth::rows(kind) {
        text += &format!("{:<29}  {:<7}  {}\n", row.name, row.loss.name(), wrap(&row.counts, 40));
    }
    text
}

fn todo(host: &Host, reports: &[Report]) -> String {
    // The same advice for two interfaces is given once.
    let mut advice: Vec<&str> = Vec::new();
    for line in reports.iter().flat_map(|report| &report.todo) {
        if !advice.contains(&line.as_str()) {
            advice.push(line);
        }
    }
    let mut text = String::from("\n");
    if reports.is_empty() {
        advice.push("Set an interface up, or name one, as weir check eth0: ip -br link lists all.");
    }
    if advice.is_empty() {
        text += "nothing to do\n";
    } else {
        text += "to do, most useful first\n";
        for (i, line) in advice.iter().enumerate() {
            text += &format!("{:<3}{}\n", i + 1, wrap(line, 3));
        }
    }
    let features = reports.first().map_or(&host.features, |report| &report.features);
    let hidden = features.iter().filter(|feature| feature.needs_root).count();
    if hidden > 0 {
        text += &format!("{hidden} of {} probes need root: sudo weir check\n", features.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::ColorWhen;

    fn feature(name: &'static str, here: Here) -> Feature {
        Feature {
            name,
            here,
            since: "6.2",
            used_for: "feedback within one turn",
            missed: "feedback",
            why: "seen".into(),
            needs_root: here == Here::NotKnown,
        }
    }

    fn shown(features: &[Feature]) -> String {
        table(features, "feature", Paint::stdout(ColorWhen::Never))
    }

    #[test]
    fn missing_rows_come_first_and_say_what_is_missed() {
        let text = shown(&[feature("a", Here::Yes), feature("b", Here::No), feature("c", Here::NotKnown)]);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert!(rows[0].ends_with("what you miss"), "{text}");
        assert_eq!(rows[1], "b                              no    6.2      feedback");
        assert_eq!(rows[2], "  seen");
        assert_eq!(rows[3], "c                              n/a   6.2      feedback");
        assert_eq!(rows[4], "a                              yes   6.2");
    }

    #[test]
    fn nothing_missing_shows_the_use() {
        let text = shown(&[feature("a", Here::Yes)]);
        assert!(text.contains("used for") && text.contains("feedback within one turn"), "{text}");
    }
}
