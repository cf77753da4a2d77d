//! `weir undo`: puts back what a dead guard has left, and says so setting by setting.

use crate::cli::UndoArgs;
use crate::error::missing;
use crate::out::{self, Paint, count};
use guard::outcome::line;
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

/// Runs `weir undo`: exit code 0 if nothing of a dead weir is left, 1 if something is.
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

/// Something is left that nobody takes care of. With `--guards` a guard is about to start: it carries over what is in a journal,
/// and one that does not start is worse than a setting that waits.
fn open(report: &Report, args: &UndoArgs) -> bool {
    !(args.dry_run || report.complete() || (args.guards && report.carried_over()))
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
    let (mut restored, mut open, mut away) = (0, 0, 0);
    for journal in &report.journals {
        match journal {
            Undone::Restored { interface, pid, outcomes } => {
                text += &match interface == kern::journal::HOST {
                    true => format!("weir place, pid {pid}, has placed this host\n"),
                    false => format!("weir pid {pid} ended without restoring {interface}\n"),
                };
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
                text += &match (alive, netns_name) {
                    (true, _) => format!("{interface}: guarded in {place} by weir, pid {pid}\n"),
                    (false, Some(name)) => {
                        format!(
                            "{interface}: left in {place} by pid {pid}; run: ip netns exec {} weir undo\n",
                            quoted(name)
                        )
                    }
                    (false, None) => {
                        format!("{interface}: left in {place} by pid {pid}; run weir undo in there\n")
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
    text += &match (dry_run, open) {
        (true, _) => format!("{} would be restored; nothing was changed\n", count(restored, "setting")),
        (false, 0) if away > 0 => {
            format!("{} restored, nothing left changed here\n", count(restored, "setting"))
        }
        (false, 0) => format!("{} restored, nothing left changed\n", count(restored, "setting")),
        (false, _) => {
            let left = paint.red(&format!("{open} left"));
            let next = match args.guards && report.carried_over() {
                true => "the next guard there, or weir undo, puts that back",
                false => "run weir undo again when the cause is gone",
            };
            format!("{} restored, {left}; {next}\n", count(restored, "setting"))
        }
    };
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
