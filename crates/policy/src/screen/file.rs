//! A file of rules: one on a line, what follows a `#` is a comment, `default accept` or `default deny` at most once.

use super::RULES_MAX;
use super::rule::{Action, Rule, Verdict, Wrong};

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// In their order.
    pub rules: Vec<Rule>,
    /// What becomes of a packet that no rule decides, if the file says it.
    pub default: Option<Verdict>,
}

/// Reads the text of a file.
///
/// # Errors
/// The first thing that is wrong, with its place in the whole text.
pub fn read(text: &str) -> Result<Rules, Wrong> {
    let mut found = Rules::default();
    let mut begin = 0;
    for whole in text.split_inclusive('\n') {
        let line = whole.split('#').next().unwrap_or_default();
        let lead = line.len() - line.trim_start().len();
        let (line, at) = (line.trim(), begin + lead);
        begin += whole.len();
        if line.is_empty() {
            continue;
        }
        let wrong = |why: String| Wrong { at: at..at + line.len(), why };
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest_at = at + line.len() - rest.len();
        if word == "default" {
            let verdict = [Verdict::Accept, Verdict::Deny].into_iter().find(|v| v.name() == rest.trim());
            let verdict = verdict.ok_or_else(|| wrong("not a default; give accept or deny".into()))?;
            if found.default.replace(verdict).is_some() {
                return Err(wrong("a second default; give one".into()));
            }
            continue;
        }
        let Some(action) = Action::ALL.into_iter().find(|action| action.name() == word) else {
            let at = at..at + word.len();
            let why = "not an action; a line begins with accept, deny, count or default".into();
            return Err(Wrong { at, why });
        };
        let rule = Rule::parse(action, rest).map_err(|err| match rest.trim().is_empty() {
            true => wrong(err.why),
            false => Wrong { at: rest_at + err.at.start..rest_at + err.at.end, why: err.why },
        })?;
        if found.rules.len() == RULES_MAX {
            return Err(wrong(format!("more than {RULES_MAX} rules; use prefixes and lists of ports")));
        }
        found.rules.push(rule);
    }
    Ok(found)
}
