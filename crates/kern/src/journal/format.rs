//! The version of a journal's format.
//!
//! A journal may outlive the weir that wrote it, and one that reads it must heed all of it: a field that it does not know may say
//! that a value is not to be put back. So a reader takes no field, no setting and no form of a value that it does not know, and
//! first of all no other version: the error names it, and `weir undo` of the version that wrote it has to be run. What of a
//! version is written never changes once it is released; what is added, left out or means something else is a new version. The
//! test below holds what version 1 is.

use serde::Deserialize;

/// Name and version.
pub(super) const SCHEMA: &str = "weir.journal/1";

/// What every version has.
#[derive(Deserialize)]
struct Any {
    schema: String,
}

/// Refuses another version, whatever else it holds.
pub(super) fn known(bytes: &[u8]) -> Result<(), String> {
    let any: Any = serde_json::from_slice(bytes).map_err(|e| format!("not a journal: {e}"))?;
    if any.schema == SCHEMA {
        return Ok(());
    }
    let found: String = any.schema.chars().filter(|c| c.is_ascii_graphic()).take(40).collect();
    Err(format!("schema {found}, this weir knows {SCHEMA}; run weir undo of the version that wrote it"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::document;
    use super::super::{Document, Entry, Kind, parse};
    use super::SCHEMA;
    use crate::cpus::CpuSet;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    const KINDS: [(Kind, &str); 16] = [
        (Kind::NapiDefer, "napi_defer"),
        (Kind::NapiFlush, "napi_flush"),
        (Kind::NapiThreaded, "napi_threaded"),
        (Kind::DevDefer, "dev_defer"),
        (Kind::DevFlush, "dev_flush"),
        (Kind::DevThreaded, "dev_threaded"),
        (Kind::Gro, "gro"),
        (Kind::Lro, "lro"),
        (Kind::GroHw, "gro_hw"),
        (Kind::RpsCpus, "rps_cpus"),
        (Kind::XpsCpus, "xps_cpus"),
        (Kind::RssTable, "rss_table"),
        (Kind::RfsEntries, "rfs_entries"),
        (Kind::RfsTable, "rfs_table"),
        (Kind::IrqCpus, "irq_cpus"),
        (Kind::TaskCpus, "task_cpus"),
    ];

    /// One with every field, which no journal has at once.
    fn full() -> Document {
        Document {
            device: Some(5),
            away: true,
            entries: vec![Entry {
                set: Kind::TaskCpus,
                id: Some(1),
                ifindex: Some(2),
                start: Some(3),
                queue: Some(4),
                since: Some(6),
                old: 0.into(),
                ours: vec![crate::settings::Value::Cpus([0, 2].into_iter().collect::<CpuSet>())],
                back: Default::default(),
            }],
            ..document()
        }
    }

    /// Paths of all fields below a value, with what is there: a number, a text or a switch.
    fn fields(value: &Value, path: &str, all: &mut BTreeMap<String, &'static str>) {
        match value {
            Value::Object(of) => {
                of.iter().for_each(|(name, value)| fields(value, &format!("{path}.{name}"), all))
            }
            Value::Array(of) => of.iter().for_each(|value| fields(value, &format!("{path}[]"), all)),
            Value::Number(_) => drop(all.insert(path.into(), "number")),
            Value::String(_) => drop(all.insert(path.into(), "text")),
            Value::Bool(_) => drop(all.insert(path.into(), "switch")),
            Value::Null => drop(all.insert(path.into(), "nothing")),
        }
    }

    /// If this fails, the format has changed: then the number changes too, and the changelog says so.
    #[test]
    fn version_1_has_these_fields_and_settings() {
        let mut found = BTreeMap::new();
        fields(&serde_json::to_value(full()).unwrap(), "", &mut found);
        let found: Vec<_> = found.iter().map(|(path, what)| (path.as_str(), *what)).collect();
        let wanted = [
            (".away", "switch"),
            (".device", "number"),
            (".entries[].id", "number"),
            (".entries[].ifindex", "number"),
            (".entries[].old", "number"),
            (".entries[].ours[]", "text"),
            (".entries[].queue", "number"),
            (".entries[].set", "text"),
            (".entries[].since", "number"),
            (".entries[].start", "number"),
            (".guard.pid", "number"),
            (".guard.start", "number"),
            (".ifindex", "number"),
            (".name", "text"),
            (".netns.cookie", "number"),
            (".netns.inode", "number"),
            (".schema", "text"),
        ];
        assert_eq!((SCHEMA, &found[..]), ("weir.journal/1", &wanted[..]));
        for (kind, name) in KINDS {
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
        }
        let unknown = serde_json::from_value::<Kind>(json!("none")).unwrap_err().to_string();
        assert_eq!(unknown.matches('`').count(), 2 * (1 + KINDS.len()), "{unknown}");
    }

    /// What is not known is refused wherever it stands, and of another version only that is said.
    #[test]
    fn a_newer_journal_is_refused_knowingly() {
        let good = json!({
            "schema": SCHEMA,
            "netns": {"inode": 1, "cookie": 1},
            "ifindex": 7,
            "name": "eth0",
            "guard": {"pid": 1, "start": 1},
            "entries": [{"set": "gro", "old": 0, "ours": [1]}],
        });
        let answer = |value: &Value| parse(&serde_json::to_vec(value).unwrap());
        assert!(answer(&good).is_ok());
        for place in ["", "/netns", "/guard", "/entries/0"] {
            let mut newer = good.clone();
            newer.pointer_mut(place).unwrap()["later"] = json!({"keep": true});
            assert!(answer(&newer).unwrap_err().contains("unknown field `later`"), "{place}");
            newer["schema"] = json!("weir.journal/2");
            let why = answer(&newer).unwrap_err();
            assert!(why.starts_with("schema weir.journal/2, this weir knows weir.journal/1;"), "{why}");
        }
        assert!(
            answer(&json!({"schema": "weir.journal/2"})).unwrap_err().starts_with("schema weir.journal/2,")
        );
    }
}
