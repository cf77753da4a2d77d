//! What is said of a setting that was put back, or was not.

use crate::out::{Paint, count};
use kern::journal::{Fate, Outcome};

/// What became, or would become, of one setting.
pub fn line(outcome: &Outcome, dry_run: bool, paint: Paint) -> String {
    let (verb, what) = match &outcome.fate {
        Fate::Restored { from, to } if dry_run => ("restore".to_owned(), format!("{from} -> {to}")),
        Fate::Restored { from, to } => ("restored".to_owned(), format!("{from} -> {to}")),
        Fate::Verified { value } => ("verified".to_owned(), format!("{value}, as before")),
        Fate::Left { found, old } => {
            ("left".to_owned(), format!("{found}: changed by someone else; before weir it was {old}"))
        }
        Fate::Gone => {
            ("gone".to_owned(), "gone with its interface, NAPI or process: nothing to do".to_owned())
        }
        Fate::Waiting => (
            paint.red("waiting "),
            "it or its interface is down, or its queue taken away; set it up and run weir undo again"
                .to_owned(),
        ),
        Fate::Moved => (
            paint.red("moved   "),
            "its interface is not here: deleted, or in another network namespace with weir's value"
                .to_owned(),
        ),
        Fate::Guarded { pid } => (
            paint.red("waiting "),
            format!(
                "a guard of its interface, pid {pid}, has changed it; once that has ended run weir undo again"
            ),
        ),
        Fate::Failed { why } => (paint.red("failed  "), why.clone()),
    };
    format!("{verb:<8}  {:<8}  {:<18}  {what}\n", outcome.target, outcome.setting)
}

/// How many of these somebody else has changed since: they stay, so not everything is as before.
pub fn others(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome.fate, Fate::Left { .. })).count()
}

/// What a summary says of as many of [`others`].
pub fn stay(others: usize) -> String {
    let (verb, them) = if others == 1 { ("stays", "it") } else { ("stay", "them") };
    format!("{} {verb} as somebody else has set {them}", count(others, "setting"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_somebody_elses_is_counted() {
        let of = |fate| Outcome { target: "eth0/1".into(), setting: "rps_cpus", napi_id: None, fate };
        let left = || of(Fate::Left { found: "3".into(), old: "0".into() });
        let all = [left(), of(Fate::Gone), of(Fate::Verified { value: "0".into() }), left()];
        assert_eq!(others(&all), 2);
        assert_eq!(stay(2), "2 settings stay as somebody else has set them");
        assert_eq!(stay(1), "1 setting stays as somebody else has set it");
    }
}
