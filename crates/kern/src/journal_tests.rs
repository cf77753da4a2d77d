//! Tests of the journal that need no privilege: its file, its checks.

use super::*;

fn document() -> Document {
    let setting = |set, id, old: u64, new: u64| Entry {
        set,
        id,
        queue: Some(0),
        old: old.into(),
        ours: vec![new.into()],
    };
    Document {
        schema: SCHEMA.into(),
        netns: NetnsId { inode: 4_026_531_840, cookie: Some(1) },
        ifindex: 7,
        name: "eth0".into(),
        guard: Owner { pid: 1234, start: 99 },
        entries: vec![
            setting(Kind::NapiDefer, Some(8193), 0, 8),
            setting(Kind::NapiFlush, Some(8193), 0, 2_000_000),
            setting(Kind::Gro, None, 0, 1),
        ],
    }
}

fn journal(dir: &Path) -> Journal {
    let doc = document();
    Journal { path: dir.join(file_name(doc.netns.inode, doc.ifindex)), doc }
}

#[test]
fn file_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let mut j = journal(dir.path());
    j.save().unwrap();
    assert_eq!(fs::metadata(j.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let loaded = Journal::load(j.path()).unwrap();
    assert_eq!(serde_json::to_string(&loaded.doc).unwrap(), serde_json::to_string(&j.doc).unwrap());
    assert_eq!(loaded.longest_flush(), Duration::from_millis(2));
    let setting = Setting::NapiDefer { ifindex: 7, napi_id: 8193 };
    for new in [9, 10, 11, 12, 8] {
        j.record(&[Planned { setting, queue: Some(0), old: 5.into(), new: Value::Number(new) }]).unwrap();
    }
    let loaded = Journal::load(j.path()).unwrap();
    assert_eq!(loaded.len(), 3, "a known setting is not recorded twice");
    assert_eq!(loaded.doc.entries[0].old, Value::Number(0), "the first old value stays");
    assert_eq!(loaded.doc.entries[0].ours, [10, 11, 12, 8].map(Value::Number));
    assert_eq!(paths(dir.path()).unwrap(), [j.path().to_path_buf()]);
    j.remove().unwrap();
    j.remove().unwrap();
    assert!(paths(dir.path()).unwrap().is_empty());
}

#[test]
fn record_refuses_what_it_could_not_restore() {
    let dir = tempfile::tempdir().unwrap();
    let mut j = journal(dir.path());
    let plan = |ifindex, new: Value| Planned {
        setting: Setting::DevDefer { ifindex },
        queue: None,
        old: 0.into(),
        new,
    };
    assert!(j.record(&[plan(8, 8.into())]).is_err(), "another interface");
    assert!(j.record(&[plan(7, (1u64 << 31).into())]).is_err(), "out of range");
    assert!(j.record(&[plan(7, Value::Cpus("0".parse().unwrap()))]).is_err(), "wrong kind");
    let many: Vec<_> = (0..=MAX_ENTRIES as u32)
        .map(|napi_id| Planned {
            setting: Setting::NapiDefer { ifindex: 7, napi_id },
            queue: None,
            old: 0.into(),
            new: 8.into(),
        })
        .collect();
    assert!(j.record(&many).is_err());
    assert_eq!(j.len(), 3, "a refused record leaves the journal as it was");
    assert!(!j.path().exists());
    j.record(&many[..MAX_ENTRIES - 3]).unwrap();
    assert!(fs::metadata(j.path()).unwrap().len() <= MAX_BYTES as u64);
    assert_eq!(Journal::load(j.path()).unwrap().len(), MAX_ENTRIES);
}

#[test]
fn refuses_files_it_did_not_write() {
    let dir = tempfile::tempdir().unwrap();
    let j = journal(dir.path());
    j.save().unwrap();
    let set_mode = |mode| fs::set_permissions(j.path(), fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o644);
    assert!(Journal::load(j.path()).is_err(), "readable by others");
    set_mode(0o600);
    let other = dir.path().join("4026531840-8.json");
    fs::rename(j.path(), &other).unwrap();
    assert!(Journal::load(&other).is_err(), "name and contents differ");
    std::os::unix::fs::symlink(&other, j.path()).unwrap();
    assert!(Journal::load(j.path()).is_err(), "a symbolic link");
    fs::remove_file(j.path()).unwrap();
    nix::unistd::mkfifo(j.path(), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    assert!(Journal::load(j.path()).is_err(), "a pipe");
}

#[test]
fn strict_contents() {
    let good = serde_json::to_value(document()).unwrap();
    let text = |v: &serde_json::Value| serde_json::to_vec(v).unwrap();
    assert!(parse(&text(&good)).is_ok());
    let broken = |change: fn(&mut serde_json::Value)| {
        let mut v = good.clone();
        change(&mut v);
        assert!(parse(&text(&v)).is_err(), "{v}");
    };
    broken(|v| v["schema"] = "weir.journal/2".into());
    broken(|v| v["path"] = "/etc/passwd".into());
    broken(|v| v["name"] = "../../etc".into());
    broken(|v| v["name"] = "".into());
    broken(|v| v["ifindex"] = 0.into());
    broken(|v| v["ifindex"] = (-1).into());
    broken(|v| v["guard"]["pid"] = 0.into());
    broken(|v| v["guard"]["pid"] = 4_294_967_295u32.into());
    broken(|v| v["netns"]["path"] = "x".into());
    broken(|v| v["entries"][0]["set"] = "sysctl".into());
    broken(|v| v["entries"][0]["path"] = "/proc/sys/kernel/panic".into());
    broken(|v| v["entries"][0]["id"] = serde_json::Value::Null);
    broken(|v| v["entries"][2]["id"] = 3.into());
    broken(|v| v["entries"][0]["old"] = "0-1".into());
    broken(|v| v["entries"][0]["old"] = 2_147_483_648u32.into());
    broken(|v| v["entries"][0]["ours"] = serde_json::json!([]));
    broken(|v| v["entries"][0]["ours"] = serde_json::json!([1, 2, 3, 4, 5]));
    broken(|v| v["entries"][2]["ours"] = serde_json::json!([2]));
    broken(|v| v["entries"] = serde_json::Value::Array(vec![v["entries"][0].clone(); MAX_ENTRIES + 1]));
    assert!(parse(&vec![b' '; MAX_BYTES + 1]).is_err());
    assert!(parse(b"").is_err());
}

/// Any bytes are refused or understood, never a panic; what is understood can be written again.
#[test]
fn garbage() {
    let good = serde_json::to_vec(&document()).unwrap();
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut understood = 0;
    for round in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + random() % 4 {
            let at = (random() % bytes.len() as u64) as usize;
            match random() % 4 {
                0 => bytes[at] = random() as u8,
                1 => bytes.truncate(at.max(1)),
                2 => bytes[at] = b"0123456789{}[]\",:"[(random() % 17) as usize],
                _ => bytes.insert(at, b'9'),
            }
        }
        if round % 4 == 0 {
            bytes = (0..random() % 400).map(|_| random() as u8).collect();
        }
        if let Ok(doc) = parse(&bytes) {
            understood += 1;
            assert!(doc.entries.iter().all(|e| e.setting(doc.ifindex).is_some_and(|s| s.accepts(&e.old))));
            assert!(parse(&serde_json::to_vec(&doc).unwrap()).is_ok());
        }
    }
    assert!(understood > 100, "the mutations are too rough: {understood}");
}

#[test]
fn temporary_files_of_the_dead_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    let dead = dir.path().join(".1-2.json.4194999.tmp");
    let live = dir.path().join(format!(".1-2.json.{}.tmp", std::process::id()));
    fs::write(&dead, "").unwrap();
    fs::write(&live, "").unwrap();
    for other in ["x.json", "1-.json", "1-2.json.bak", "README"] {
        fs::write(dir.path().join(other), "").unwrap();
    }
    assert!(paths(dir.path()).unwrap().is_empty());
    assert!(!dead.exists() && live.exists() && dir.path().join("README").exists());
    assert!(paths(&dir.path().join("none")).unwrap().is_empty());
}

#[test]
fn the_lock_excludes() {
    let dir = tempfile::tempdir().unwrap();
    let held = Lock::take(dir.path()).unwrap();
    let begin = Instant::now();
    assert!(Lock::take(dir.path()).is_err());
    assert!(begin.elapsed() >= Lock::PATIENCE);
    drop(held);
    Lock::take(dir.path()).unwrap();
}
