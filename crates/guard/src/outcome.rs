//! What is said of a setting that was put back, or was not.

use crate::out::Paint;
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
            ("gone".to_owned(), "gone with its interface, queue or process: nothing to do".to_owned())
        }
        Fate::Waiting => (
            paint.red("waiting "),
            "it or its interface is down; set it up and run weir undo again".to_owned(),
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
