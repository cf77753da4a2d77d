//! Journals of any bytes: none makes a guard, a keeper or `weir undo` panic, and one that is taken means the same when it is
//! written again. Built by scripts/fuzz.sh.

use super::{Document, parse};

/// Looks at the bytes of a file as at a journal.
///
/// # Panics
/// That is the finding.
pub fn look(bytes: &[u8]) {
    let Ok(document) = parse(bytes) else { return };
    let written = |document: &Document| serde_json::to_vec(document).expect("a document is JSON");
    let text = written(&document);
    let again = parse(&text).expect("what was taken is taken again");
    assert_eq!(written(&again), text);
    for entry in &document.entries {
        let setting = entry.setting(document.ifindex).expect("looked at when it was parsed");
        assert!(entry.is(&setting) && setting.accepts(&entry.old));
    }
}
