//! `weir undo`: puts back what a dead guard has left, and says so setting by setting.

use crate::cli::UndoArgs;
use crate::error::missing;
use crate::out::{self, Paint, count};
use guard::outcome::{line, others, stay};
use kern::discover::{self, DiscoverError};
use kern::journal::Fate;
use kern::settings::Access;
use kern::shell::quoted;
use kern::undo::{Report, Undone};
use serde::Serialize;
use std::process::ExitCode;

/// The `--json` document.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    dry_run: bool,
    #[serde(flatten)]
    report: &'a Report,
}

/// Runs `weir undo`: exit code 0 if nothing of a dead weir is left, 1 if something is, or if weir still runs where it was
/// named.
///
/// # Errors
/// 3 without the privilege to look or to write.
pub fn run(args: &UndoArgs, paint: Paint) -> anyhow::Result<ExitCode> {
    let only = lower(&args.interfaces)?;
    let report = match (args.guards, args.dry_run) {
        (true, dry_run) => kern::undo::of_guards(&args.journal_dir, &only, !dry_run),
        (false, true) => kern::undo::dry_run(&args.journal_dir, &only),
        (false, false) => kern::undo::undo(&args.journal_dir, &only),
    };
    let report = report.map_err(|err| match err.errno() {
        Some(libc::EACCES | libc::EPERM) => {
            missing("undo needs CAP_NET_ADMIN and the right to read the journals; run it with sudo")
        }
        _ => err.into(),
    })?;
    if !args.dry_run && report.complete() {
        // By default the guards' sockets lie beside their journals; nobody answers on these any more.
        crate::status::sweep(&args.journal_dir);
    }
    if args.json {
        let document = Document { schema: "weir.undo/1", dry_run: args.dry_run, report: &report };
        out::data(&format!("{}\n", serde_json::to_string(&document)?))?;
    } else {
        out::data(&text(&report, args, paint))?;
    }
    for name in strangers(&args.interfaces, &report)? {
        let name = out::shown(name);
        out::talk(&format!(
            "weir: undo: no interface and no journal is called {name}; without names it undoes all"
        ));
    }
    Ok(ExitCode::from(u8::from(open(&report, args))))
}

/// Something is left that nobody takes care of, or that was named and has a guard. With `--guards` a guard is about to start: it
/// carries over what is in a journal, and one that does not start is worse than a setting that waits.
fn open(report: &Report, args: &UndoArgs) -> bool {
    // Without names it is asked for what dead guards have left.
    let refused = !args.interfaces.is_empty() && report.journals.iter().any(runs);
    let done = report.complete() && !refused;
    !(args.dry_run || done || (args.guards && report.carried_over()))
}

/// Nothing was done since weir runs there.
fn runs(journal: &Undone) -> bool {
    matches!(journal, Undone::Guarded { .. })
}

/// The names as given, and those of the interfaces that receive for them: journals are kept by the latter. A name that
/// is gone may still have a journal.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn lower(names: &[String]) -> anyhow::Result<Vec<String>> {
    let mut all = names.to_vec();
    if names.is_empty() {
        return Ok(all);
    }
    let mut access = Access::for_current_netns()?;
    for found in names.iter().filter_map(|name| discover::resolve(&mut access, name).ok()) {
        all.extend(found.into_iter().map(|interface| interface.name));
    }
    Ok(all)
}

/// Names that say nothing to this host: a word that was pasted along with the command, or a slip.
fn strangers<'a>(names: &'a [String], report: &Report) -> anyhow::Result<Vec<&'a str>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut access = Access::for_current_netns()?;
    let mut here = |name: &str| {
        !matches!(discover::resolve(&mut access, name), Err(DiscoverError::NoSuchInterface { .. }))
    };
    let kept = |name: &str| report.journals.iter().any(|j| j.interface() == Some(name));
    Ok(names.iter().map(String::as_str).filter(|name| !kept(name) && !here(name)).collect())
}

fn text(report: &Report, args: &UndoArgs, paint: Paint) -> String {
    let dry_run = args.dry_run;
    if report.journals.is_empty() {
        return match args.interfaces.as_slice() {
            [] => "nothing to undo\n".into(),
            names => format!("nothing to undo for {}\n", out::listed(names)),
        };
    }
    let mut text = String::new();
    let (mut restored, mut open, mut away, mut theirs) = (0, 0, 0, 0);
    for journal in &report.journals {
        match journal {
            Undone::Restored { interface, pid, outcomes } => {
                text += &match interface == kern::journal::HOST {
                    true => format!("weir place, pid {pid}, has placed this host\n"),
                    false => format!("weir pid {pid} ended without restoring {interface}\n"),
                };
                theirs += others(outcomes);
                for outcome in outcomes {
                    restored += usize::from(matches!(outcome.fate, Fate::Restored { .. }));
                    away += usize::from(outcome.fate == Fate::Moved);
                    open += usize::from(!outcome.settled() && outcome.fate != Fate::Moved);
                    text += &line(outcome, dry_run, paint);
                }
            }
            Undone::Guarded { interface, pid } => {
                text += &match interface == kern::journal::HOST {
                    true => format!("{interface}: weir place --watch keeps it, pid {pid}; stop that first\n"),
                    false => format!("{interface}: guarded by weir, pid {pid}; stop that first\n"),
                };
            }
            Undone::Elsewhere { interface, pid, alive, netns, netns_name } => {
                let place = netns_name
                    .as_ref()
                    .map_or(format!("namespace {netns}"), |name| format!("namespace {name}"));
                // What was placed there stays, unless that is what is left.
                let only = if interface == kern::journal::HOST { kern::journal::HOST } else { "--guards" };
                text += &match (alive, netns_name) {
                    (true, _) => format!("{interface}: guarded in {place} by weir, pid {pid}\n"),
                    (false, Some(name)) => {
                        format!(
                            "{interface}: left in {place} by pid {pid}; \
                             run: sudo ip netns exec {} weir undo {only}\n",
                            quoted(name)
                        )
                    }
                    (false, None) => {
                        format!("{interface}: left in {place} by pid {pid}; run weir undo {only} in there\n")
                    }
                };
            }
            Undone::NamespaceGone { interface, netns } => {
                text += &format!("{interface}: namespace {netns} is gone, and every setting with it\n");
            }
            Undone::Unreadable { file, why } => {
                open += 1;
                text += &format!(
                    "{file}: {}; run weir undo of the version that wrote it, or else look at it and remove it\n",
                    paint.red(why)
                );
            }
        }
    }
    // It must not deny what the lines before name.
    let elsewhere = report.journals.iter().any(|journal| matches!(journal, Undone::Elsewhere { .. }));
    let nothing = match theirs > 0 || report.journals.iter().any(runs) {
        true => "nothing else",
        false => "nothing",
    };
    text += &match (dry_run, open) {
        (true, _) if report.journals.iter().all(runs) => {
            "nothing would be done, since weir runs there\n".to_owned()
        }
        (false, _) if report.journals.iter().all(runs) => {
            "nothing was done, since weir runs there\n".to_owned()
        }
        (true, _) => format!("{} would be restored; nothing was changed\n", count(restored, "setting")),
        (false, 0) if away > 0 || elsewhere => {
            format!("{} restored, {nothing} left changed here\n", count(restored, "setting"))
        }
        (false, 0) => format!("{} restored, {nothing} left changed\n", count(restored, "setting")),
        (false, _) => {
            let left = paint.red(&format!("{open} left"));
            let next = match args.guards && report.carried_over() {
                true => "the next guard there, or weir undo, puts that back",
                false => "run weir undo again when the cause is gone",
            };
            format!("{} restored, {left}; {next}\n", count(restored, "setting"))
        }
    };
    if theirs > 0 {
        text += &format!("{}\n", stay(theirs));
    }
    if away > 0 {
        text += &format!(
            "{} went with an interface that is not here; run weir undo as root of the host, outside of any \
             container, or when it is back\n",
            count(away, "setting")
        );
    }
    if report.settles_in_ms > 0 && !dry_run {
        text += &format!("a queue may stay silent for up to {} ms more\n", report.settles_in_ms);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::ColorWhen;
    use kern::journal::Outcome;

    fn outcome(fate: Fate) -> Outcome {
        Outcome { target: "eth0/1".into(), setting: "defer-hard-irqs", napi_id: Some(8), fate }
    }

    fn report(fates: Vec<Fate>) -> Report {
        let outcomes = fates.into_iter().map(outcome).collect();
        Report {
            journals: vec![Undone::Restored { interface: "eth0".into(), pid: 2211, outcomes }],
            settles_in_ms: 0,
        }
    }

    fn args(dry_run: bool, guards: bool) -> UndoArgs {
        UndoArgs { interfaces: Vec::new(), dry_run, guards, json: false, journal_dir: "/nowhere".into() }
    }

    fn shown(report: &Report, dry_run: bool) -> String {
        text(report, &args(dry_run, false), Paint::stdout(ColorWhen::Never))
    }

    #[test]
    fn says_what_was_put_back() {
        let report = report(vec![
            Fate::Restored { from: "8".into(), to: "0".into() },
            Fate::Verified { value: "0".into() },
        ]);
        assert_eq!(
            shown(&report, false),
            "weir pid 2211 ended without restoring eth0\n\
             restored  eth0/1    defer-hard-irqs     8 -> 0\n\
             verified  eth0/1    defer-hard-irqs     0, as before\n\
             1 setting restored, nothing left changed\n"
        );
        assert!(shown(&report, true).ends_with("1 setting would be restored; nothing was changed\n"));
        assert_eq!(shown(&Report::default(), false), "nothing to undo\n");
    }

    fn unreadable() -> Undone {
        Undone::Unreadable { file: "x".into(), why: "no JSON".into() }
    }

    #[test]
    fn before_a_guard_starts_only_what_it_cannot_carry_over_is_an_error() {
        for fate in [Fate::Waiting, Fate::Failed { why: "no".into() }] {
            let mut report = report(vec![fate]);
            assert!(open(&report, &args(false, false)) && !open(&report, &args(false, true)));
            let text = text(&report, &args(false, true), Paint::stdout(ColorWhen::Never));
            assert!(text.contains("eth0/1") && text.contains("1 left; the next guard there"), "{text}");
            report.journals.push(unreadable());
            assert!(open(&report, &args(false, true)));
        }
    }

    fn guarded() -> Undone {
        Undone::Guarded { interface: "eth0".into(), pid: 7 }
    }

    #[test]
    fn what_is_named_and_has_a_guard_is_not_undone() {
        let named = |dry_run, guards| UndoArgs { interfaces: vec!["eth0".into()], ..args(dry_run, guards) };
        let mut found = Report { journals: vec![guarded()], settles_in_ms: 0 };
        let said =
            |found: &Report, dry_run| text(found, &named(dry_run, false), Paint::stdout(ColorWhen::Never));
        assert_eq!(
            said(&found, false),
            "eth0: guarded by weir, pid 7; stop that first\nnothing was done, since weir runs there\n"
        );
        assert!(said(&found, true).ends_with("nothing would be done, since weir runs there\n"));
        assert!(open(&found, &named(false, false)));
        // Who asks for all, or before a guard starts, asks for what dead ones have left.
        for fine in [args(false, false), named(true, false), named(false, true)] {
            assert!(!open(&found, &fine));
        }
        found.journals.extend(report(vec![Fate::Gone]).journals);
        assert!(!open(&found, &args(false, false)));
        assert!(said(&found, false).ends_with("\n0 settings restored, nothing else left changed\n"));
    }

    #[test]
    fn what_is_somebody_elses_is_counted_and_no_failure() {
        let left = || Fate::Left { found: "3".into(), old: "0".into() };
        let report = report(vec![left(), Fate::Restored { from: "8".into(), to: "0".into() }, left()]);
        assert!(report.complete());
        assert!(
            shown(&report, false).ends_with(
                "1 setting restored, nothing else left changed\n2 settings stay as somebody else has set them\n"
            ),
            "{}",
            shown(&report, false)
        );
    }

    #[test]
    fn names_what_an_interface_has_taken_along() {
        let report = report(vec![Fate::Restored { from: "8".into(), to: "0".into() }, Fate::Moved]);
        assert!(report.complete(), "nothing is left in this namespace");
        let text = shown(&report, false);
        assert!(
            text.contains("moved") && text.contains("1 setting restored, nothing left changed here"),
            "{text}"
        );
        assert!(text.contains("1 setting went with an interface that is not here"), "{text}");
    }

    #[test]
    fn speaks_of_this_namespace_only_where_another_has_something_left() {
        let left = |alive| Undone::Elsewhere {
            interface: "eth1".into(),
            pid: 9,
            alive,
            netns: 4026532000,
            netns_name: Some("blue".into()),
        };
        for alive in [false, true] {
            let report = Report { journals: vec![left(alive)], settles_in_ms: 0 };
            assert!(shown(&report, false).ends_with("0 settings restored, nothing left changed here\n"));
        }
    }

    #[test]
    fn never_says_nothing_left_when_something_is() {
        for fate in [Fate::Waiting, Fate::Failed { why: "no".into() }] {
            let report = report(vec![fate]);
            assert!(!report.complete());
            let text = shown(&report, false);
            assert!(text.contains("0 settings restored, 1 left") && !text.contains("nothing left"), "{text}");
        }
        let unreadable = unreadable();
        let report = Report { journals: vec![unreadable], settles_in_ms: 0 };
        let text = shown(&report, false);
        assert!(text.contains("1 left"), "{text}");
        let (version, remove) = (text.find("of the version that wrote it"), text.find("remove it"));
        assert!(version.is_some() && version < remove, "{text}");
    }
}
