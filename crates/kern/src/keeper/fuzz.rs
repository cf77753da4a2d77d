//! Messages to a keeper, any bytes in any order: it refuses what it does not know, keeps its limits and goes on. Built by
//! scripts/fuzz.sh.

use super::{Care, KEPT_JOURNALS, MAX_HANDLES, greeting, split, tag};
use crate::settings::Access;
use std::{
    cell::Cell,
    collections::BTreeMap,
    fs::{self, File},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::PathBuf,
    sync::OnceLock,
};

/// Files that messages can name by their first byte, so that none names one of this machine: a journal of this network
/// namespace, one of another, one that is none, and none at all.
fn files() -> &'static [PathBuf] {
    static FILES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FILES.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("weir-fuzz-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let here = crate::netns::current().expect("a network namespace");
        let journal = |inode: u64, text: &str| {
            let path = dir.join(format!("{inode}-1.json"));
            let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
            std::io::Write::write_all(&mut file.expect("a file"), text.as_bytes()).expect("written");
            path
        };
        let netns = serde_json::to_string(&here).expect("JSON");
        let text = format!(
            r#"{{"schema":"weir.journal/1","netns":{netns},"ifindex":1,"name":"lo","guard":{{"pid":1,"start":1}},"entries":[]}}"#
        );
        let other = text.replace(&here.inode.to_string(), "7");
        vec![journal(here.inode, &text), journal(7, &other), journal(8, "none"), dir.join("9-1.json")]
    })
}

/// Takes the bytes as messages, each behind its length.
///
/// # Panics
/// That is the finding.
pub fn talk(mut bytes: &[u8]) {
    // Made once: its sockets would take a hundred times as long as the messages.
    thread_local!(static ACCESS: Cell<Option<Access>> = const { Cell::new(None) });
    let access = ACCESS.take().unwrap_or_else(|| Access::for_current_netns().expect("netlink"));
    let mut care = Care { access, journals: BTreeMap::new(), handles: BTreeMap::new() };
    while let Some((length, rest)) = bytes.split_first() {
        let (message, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        let Some((tag, _, content)) = split(message) else { continue };
        _ = greeting(content);
        let path = content.first().and_then(|n| files().get(usize::from(*n)));
        let content = match (tag, path) {
            (tag::JOURNAL, Some(path)) => path.as_os_str().as_bytes(),
            (tag::JOURNAL, None) => continue,
            _ => content,
        };
        // With and without a descriptor beside it.
        let passed = content.last().filter(|n| **n & 1 == 0).and_then(|_| File::open("/dev/null").ok());
        if care.take(tag, content, passed.map(Into::into)).is_ok() {
            assert!(care.journals.len() <= KEPT_JOURNALS && care.handles.len() <= MAX_HANDLES);
        }
    }
    ACCESS.set(Some(care.access));
}
