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

/// Packets longer than this do not fit into a page with the headroom of an XDP program, bytes.
const MTU_LONG: u64 = 3400;

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
        out::data(&text(&host, &reports, args.all, paint))?;
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

/// What matters for this host first: its interfaces, what is missing and the fix; with `all` then every probe and
/// counter; the verdict is the last line.
fn text(host: &Host, reports: &[Report], all: bool, paint: Paint) -> String {
    let mut text = format!(
        "{:<9} Linux {}, {}, BTF {}, lockdown {}\n",
        out::shown(&host.name),
        host.kernel,
        count(host.cpus, "CPU"),
        here(host.probes.btf),
        host.lockdown
    );
    for report in reports {
        text += &interface(&report.interface);
        let summary = match report.tier {
            Tier::None => paint.red(&wrap(&report.summary, 10)),
            Tier::Full | Tier::Part => wrap(&report.summary, 10),
        };
        text += &format!("{:<9} {summary}\n", "");
    }
    let own =
        |report: &Report| report.features.get(host.features.len()..).map(<[_]>::to_vec).unwrap_or_default();
    // With one interface its rows and the host's are one table.
    let tables: Vec<(&str, Vec<Feature>)> = match reports {
        [only] => vec![("feature", only.features.clone())],
        _ => std::iter::once(("feature", host.features.clone()))
            .chain(reports.iter().map(|report| (report.interface.name.as_str(), own(report))))
            .collect(),
    };
    tables.iter().for_each(|(title, features)| text += &missing_rows(features, title, paint));
    text += &todo(reports);
    // Sockets elsewhere can be behind any interface of a host that hands packets on.
    if let Some(why) = kern::discover::hands_on() {
        let line = format!(
            "not seen: {why}. Of the sockets behind it, in other network namespaces, weir knows UDP behind a veth of \
             this host. Of TCP it knows how many SYNs come for each published port, no more. It does not know UDP \
             sockets that share a port, macvlan, ipvlan and virtual functions, and translations that the host's \
             connection table does not have. For these quota and budget hold, and nothing is shed."
        );
        text += &format!("\n{}\n", wrap(&line, 2));
    }
    if all {
        tables.iter().for_each(|(title, features)| text += &table(features, title, paint));
        let kinds: BTreeSet<&str> = reports.iter().map(|r| r.interface.kind.as_str()).collect();
        kinds.into_iter().for_each(|kind| text += &counters(kind));
    }
    text + "\n" + &verdict(host, reports)
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
    if let Some(mtu) = interface.mtu.filter(|mtu| *mtu > MTU_LONG && interface.xdp_native != Some(false)) {
        parts.push(format!(
            "MTU {mtu}: if the driver refuses XDP because of it, the kernel's generic hook sheds, and a shed frame \
             costs a buffer"
        ));
    }
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

/// What was found missing: what is lost with it, and what the probe saw. What only root can find out is told by the
/// verdict.
fn missing_rows(features: &[Feature], title: &str, paint: Paint) -> String {
    let absent: Vec<&Feature> = features.iter().filter(|f| f.here != Here::Yes && !f.needs_root).collect();
    if absent.is_empty() {
        return String::new();
    }
    let title = match title {
        "feature" => "missing".to_owned(),
        name => format!("missing on {}", out::shown(name)),
    };
    let mut text = format!("\n{title:<29}  here  {:<7}  what you miss\n", "since");
    for feature in absent {
        text += &row(feature, feature.missed, paint);
        text += &format!("  {}\n", wrap(&out::sentence(&feature.why), 2));
    }
    text
}

/// Every probe, with the use of what it looks for.
fn table(features: &[Feature], title: &str, paint: Paint) -> String {
    if features.is_empty() {
        return String::new();
    }
    let rows: String = features.iter().map(|feature| row(feature, feature.used_for, paint)).collect();
    format!("\n{:<29}  here  {:<7}  used for\n{rows}", out::shown(title), "since")
}

fn row(feature: &Feature, what: &str, paint: Paint) -> String {
    let answer = format!("{:<4}", here(feature.here));
    let answer = if feature.here == Here::No { paint.red(&answer) } else { answer };
    format!("{:<29}  {answer}  {:<7}  {}\n", feature.name, feature.since, wrap(what, 46))
}

/// What the drop counters of this driver count: `weir watch` counts with the same rows.
fn counters(kind: &str) -> String {
    let mut text = format!("\n{:<29}  place    what it counts\n", format!("drops of {}", out::shown(kind)));
    for row in truth::rows(kind) {
        text += &format!("{:<29}  {:<7}  {}\n", row.name, row.loss.name(), wrap(&row.counts, 40));
    }
    text
}

/// What would help; empty if nothing would.
fn todo(reports: &[Report]) -> String {
    // The same advice for two interfaces is given once.
    let mut advice: Vec<&str> = Vec::new();
    for line in reports.iter().flat_map(|report| &report.todo) {
        if !advice.contains(&line.as_str()) {
            advice.push(line);
        }
    }
    if reports.is_empty() {
        advice.push("Set an interface up, or name one, as weir check eth0: ip -br link lists all.");
    }
    if advice.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nto do, most useful first\n");
    for (i, line) in advice.iter().enumerate() {
        text += &format!("{:<3}{}\n", i + 1, wrap(line, 3));
    }
    text
}

/// The last line: what `weir guard` can do here, and what to type next.
fn verdict(host: &Host, reports: &[Report]) -> String {
    if reports.is_empty() {
        return "verdict: none, no interface here can be guarded\n".into();
    }
    let of = |tier: Tier| {
        let names = reports.iter().filter(|report| report.tier == tier);
        names.map(|report| out::shown(&report.interface.name)).collect::<Vec<_>>()
    };
    let tiers = [("full", of(Tier::Full)), ("part", of(Tier::Part)), ("none", of(Tier::None))];
    let words: Vec<String> = match reports {
        [_] => tiers.iter().filter(|(_, n)| !n.is_empty()).map(|(word, _)| (*word).to_owned()).collect(),
        _ => tiers
            .iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(word, names)| format!("{word} for {}", names.join(" ")))
            .collect(),
    };
    let features = reports.first().map_or(&host.features, |report| &report.features);
    let hidden = features.iter().filter(|feature| feature.needs_root).count();
    let able: Vec<String> = tiers.iter().take(2).flat_map(|(_, names)| names.clone()).collect();
    let next = match (hidden, able.is_empty()) {
        (1.., _) => format!("{hidden} of {} probes need root: sudo weir check", features.len()),
        (0, true) => "weir guard cannot help here".into(),
        (0, false) => format!("protect with: sudo weir guard {}", kern::shell::line(&able)),
    };
    format!("{}\n", wrap(&format!("verdict: {}; {next}", words.join(", ")), 2))
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

    fn report(name: &str, tier: Tier, features: Vec<Feature>) -> Report {
        Report {
            interface: Interface {
                name: name.into(),
                ifindex: 2,
                kind: "veth".into(),
                role: discover::Role::Source,
                up: true,
                ring: None,
                channels: None,
                gro: true,
                lro: false,
                xdp: None,
                xdp_native: Some(true),
                mtu: Some(1500),
                threaded: Some(false),
                lower: Vec::new(),
                sources: Vec::new(),
            },
            tier,
            summary: "auto = poll".into(),
            mode: tier::Mode::Poll,
            features,
            todo: Vec::new(),
        }
    }

    fn host(features: Vec<Feature>) -> Host {
        let (yes, here) = (Here::Yes, true);
        Host {
            name: "h".into(),
            kernel: "6.18".into(),
            cpus: 2,
            lockdown: "none".into(),
            probes: tier::Probes {
                prefer_busy_poll: yes,
                napi_list: yes,
                napi_settings: yes,
                threaded: yes,
                btf: yes,
                tracepoints: yes,
                levels: yes,
                fifo: yes,
                steering: yes,
                root: here,
                net_admin: here,
                bpf: here,
                perfmon: here,
            },
            features,
        }
    }

    fn shown(reports: &[Report], features: Vec<Feature>, all: bool) -> String {
        text(&host(features), reports, all, Paint::stdout(ColorWhen::Never))
    }

    #[test]
    fn what_is_missing_stands_before_what_works() {
        let features = vec![feature("a", Here::Yes), feature("b", Here::No)];
        let reports = [report("v0", Tier::Part, features.clone())];
        let short = shown(&reports, features.clone(), false);
        let rows: Vec<&str> = short.lines().skip_while(|line| !line.starts_with("missing")).collect();
        assert!(rows[0].ends_with("what you miss"), "{short}");
        assert_eq!(rows[1], "b                              no    6.2      feedback");
        assert_eq!(rows[2], "  seen");
        assert!(!short.contains("used for") && !short.contains("drops of"), "{short}");
        let long = shown(&reports, features, true);
        let place = |what: &str| long.find(what).unwrap_or_else(|| panic!("no {what}: {long}"));
        assert!(place("what you miss") < place("used for") && place("used for") < place("drops of veth"));
        assert!(
            long.contains("a                              yes   6.2      feedback within one turn"),
            "{long}"
        );
    }

    #[test]
    fn a_long_mtu_is_told_where_the_driver_may_refuse_xdp() {
        let with = |mtu, native| {
            let mut report = report("v0", Tier::Full, Vec::new());
            (report.interface.mtu, report.interface.xdp_native) = (Some(mtu), native);
            shown(&[report], Vec::new(), false).contains("MTU 9000")
        };
        assert!(with(9000, Some(true)) && with(9000, None));
        assert!(!with(1500, Some(true)) && !with(9000, Some(false)), "generic anyway");
    }

    #[test]
    fn the_last_line_is_the_verdict() {
        let last = |reports: &[Report]| {
            let text = shown(reports, vec![feature("a", Here::Yes)], false);
            text.lines().last().unwrap_or_default().to_owned()
        };
        let of = |name: &str, tier, here| report(name, tier, vec![feature("a", here)]);
        assert_eq!(
            last(&[of("v0", Tier::Full, Here::Yes)]),
            "verdict: full; protect with: sudo weir guard v0"
        );
        assert_eq!(last(&[of("v0", Tier::None, Here::No)]), "verdict: none; weir guard cannot help here");
        assert_eq!(
            last(&[of("v0", Tier::Full, Here::NotKnown)]),
            "verdict: full; 1 of 1 probes need root: sudo weir check"
        );
        let three = [
            of("v0", Tier::Full, Here::Yes),
            of("v1", Tier::Part, Here::Yes),
            of("v2", Tier::None, Here::No),
        ];
        let text = shown(&three, Vec::new(), false).split_whitespace().collect::<Vec<_>>().join(" ");
        let end = "verdict: full for v0, part for v1, none for v2; protect with: sudo weir guard v0 v1";
        assert!(text.ends_with(end), "{text}");
        assert_eq!(last(&[]), "verdict: none, no interface here can be guarded");
    }
}
