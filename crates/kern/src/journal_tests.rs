//! Tests of the journal that need no privilege: its file, its checks.

use super::*;
use crate::change::{self, Change};
use crate::settings::{Access, Presence};
use std::{fs, os::unix::fs::PermissionsExt, time::Instant};

fn save(j: &Journal) {
    j.save(&mut Access::for_current_netns().unwrap()).unwrap();
}

fn record(j: &mut Journal, planned: &[Planned]) -> Result<()> {
    j.record(&mut Access::for_current_netns().unwrap(), planned)
}

pub(super) fn document() -> Document {
    let setting = |set, id, old: u64, new: u64| Entry {
        set,
        id,
        ifindex: None,
        start: None,
        since: None,
        queue: Some(0),
        old: old.into(),
        ours: vec![new.into()],
        back: Default::default(),
    };
    Document {
        schema: SCHEMA.into(),
        netns: NetnsId { inode: 4_026_531_840, cookie: Some(1) },
        ifindex: 7,
        name: "eth0".into(),
        guard: Owner { pid: 1234, start: 99 },
        device: None,
        away: false,
        entries: vec![
            setting(Kind::NapiDefer, Some(8193), 0, 8),
            setting(Kind::NapiFlush, Some(8193), 0, 2_000_000),
            setting(Kind::Gro, None, 0, 1),
        ],
    }
}

fn journal(dir: &Path) -> Journal {
    let doc = document();
    Journal { path: dir.join(file_name(&doc)), doc }
}

#[test]
fn file_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let mut j = journal(dir.path());
    save(&j);
    assert_eq!(fs::metadata(j.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let loaded = Journal::load(j.path()).unwrap();
    assert_eq!(serde_json::to_string(&loaded.doc).unwrap(), serde_json::to_string(&j.doc).unwrap());
    assert_eq!(loaded.longest_flush(), Duration::from_millis(2));
    let setting = Setting::NapiDefer { ifindex: 7, napi_id: 8193 };
    for (old, new) in [(8, 9), (9, 10), (8, 11), (11, 12), (0, 8)] {
        record(&mut j, &[Planned { setting, queue: Some(0), old: old.into(), new: Value::Number(new) }])
            .unwrap();
    }
    let loaded = Journal::load(j.path()).unwrap();
    assert_eq!(loaded.len(), 3, "a known setting is not recorded twice");
    assert_eq!(loaded.doc.entries[0].old, Value::Number(0), "a value of weir is never the old one");
    assert_eq!(loaded.doc.entries[0].ours, [10, 11, 12, 8].map(Value::Number));
    assert_eq!(paths(dir.path()).unwrap(), [j.path().to_path_buf()]);
    j.remove().unwrap();
    j.remove().unwrap();
    assert!(paths(dir.path()).unwrap().is_empty());
}

/// A value of weir that is found is not the old one, also not on another NAPI of the queue; a value of anybody else is.
#[test]
fn values_from_before_weir_outlive_the_napi() {
    let dir = tempfile::tempdir().unwrap();
    let mut j = journal(dir.path());
    let defer = |napi_id| Setting::NapiDefer { ifindex: 7, napi_id };
    let before = |j: &Journal, id, queue, found: u64| j.before(&defer(id), Some(queue), &found.into());
    record(&mut j, &[Planned { setting: defer(8193), queue: Some(0), old: 3.into(), new: 8.into() }])
        .unwrap();
    assert_eq!(before(&j, 8193, 0, 8), 3.into());
    assert_eq!(before(&j, 8200, 0, 8), 3.into(), "the queue's next NAPI");
    assert_eq!(before(&j, 8200, 0, 4), 4.into(), "somebody's value");
    assert_eq!(before(&j, 8200, 1, 8), 8.into(), "another queue");
    assert_eq!(j.before(&Setting::NapiDefer { ifindex: 7, napi_id: 8200 }, None, &8.into()), 8.into());
    assert_eq!(j.before(&Setting::NapiFlush { ifindex: 7, napi_id: 8200 }, Some(0), &8.into()), 8.into());

    // However often it comes back, it is one entry with the first old value, and all of weir's values stay known.
    for napi_id in 8200..8300 {
        record(&mut j, &[Planned { setting: defer(napi_id), queue: Some(0), old: 8.into(), new: 9.into() }])
            .unwrap();
    }
    let j = Journal::load(j.path()).unwrap();
    assert_eq!(j.len(), 3);
    let entry = &j.doc.entries[0];
    assert_eq!((entry.id, &entry.old, &entry.ours), (Some(8299), &3.into(), &vec![8.into(), 9.into()]));
    assert_eq!(j.doc.entries[1].id, Some(8193), "another setting of the queue is left alone");
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
    assert!(record(&mut j, &[plan(8, 8.into())]).is_err(), "another interface");
    assert!(record(&mut j, &[plan(7, (1u64 << 31).into())]).is_err(), "out of range");
    assert!(record(&mut j, &[plan(7, Value::Cpus("0".parse().unwrap()))]).is_err(), "wrong kind");
    let many: Vec<_> = (0..=MAX_ENTRIES as u32)
        .map(|napi_id| Planned {
            setting: Setting::NapiDefer { ifindex: 7, napi_id },
            queue: None,
            old: 0.into(),
            new: 8.into(),
        })
        .collect();
    assert!(record(&mut j, &many).is_err());
    assert_eq!(j.len(), 3, "a refused record leaves the journal as it was");
    assert!(!j.path().exists());
    record(&mut j, &many[..MAX_ENTRIES - 3]).unwrap();
    assert!(fs::metadata(j.path()).unwrap().len() <= MAX_BYTES as u64);
    assert_eq!(Journal::load(j.path()).unwrap().len(), MAX_ENTRIES);
}

#[test]
fn refuses_files_it_did_not_write() {
    let dir = tempfile::tempdir().unwrap();
    let j = journal(dir.path());
    save(&j);
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

/// What the kernel forgets under an XDP program is written down as any switch.
#[test]
fn offloads_of_the_nic_are_entries() {
    let dir = tempfile::tempdir().unwrap();
    let mut j = journal(dir.path());
    for setting in [Setting::Lro { ifindex: 7 }, Setting::GroHw { ifindex: 7 }] {
        record(&mut j, &[Planned { setting, queue: None, old: 1.into(), new: 0.into() }]).unwrap();
        let found = Journal::load(j.path()).unwrap();
        assert_eq!(found.known(&setting, None), Some((&1.into(), &[0.into()][..])));
        assert!(
            record(&mut j, &[Planned { setting, queue: None, old: 1.into(), new: 2.into() }]).is_err(),
            "a switch"
        );
    }
    let text = fs::read_to_string(j.path()).unwrap();
    assert!(text.contains("{\"set\":\"lro\",\"old\":1,\"ours\":[0]}"), "{text}");
    assert!(text.contains("{\"set\":\"gro_hw\",\"old\":1,\"ours\":[0]}"), "{text}");
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

/// An interface with one queue whose NAPI goes away and comes back with its values under another id.
struct Returning {
    /// Id of the NAPI, and its flush timeout and defer count.
    napi: (u32, [u64; 2]),
    up: bool,
    /// Waits until it is there.
    absent: u32,
    /// While it is absent it is listed.
    listed: bool,
    /// Receive queues that the interface has.
    queues: u32,
    waits: u32,
    lro: u64,
    forwards: bool,
}

impl Returning {
    fn new() -> Self {
        Self {
            napi: (8193, [70_000, 3]),
            up: true,
            absent: 0,
            listed: false,
            queues: 1,
            waits: 0,
            lro: 1,
            forwards: false,
        }
    }

    /// It is away for `absent` waits, then there as `id`.
    fn goes_away(&mut self, absent: u32, id: u32) {
        (self.absent, self.napi.0) = (absent, id);
    }

    fn value(&mut self, setting: &Setting) -> Result<&mut u64> {
        let gone = || Err(Error::Gone { what: setting.label().into() });
        if let Setting::Lro { .. } = setting {
            return Ok(&mut self.lro);
        }
        if self.absent > 0 || self.queues == 0 || !self.up || setting.napi_id() != Some(self.napi.0) {
            return gone();
        }
        match setting {
            Setting::NapiFlush { .. } => Ok(&mut self.napi.1[0]),
            Setting::NapiDefer { .. } => Ok(&mut self.napi.1[1]),
            _ => gone(),
        }
    }
}

impl Kernel for Returning {
    fn read(&mut self, setting: &Setting) -> Result<Value> {
        self.value(setting).map(|v| Value::Number(*v))
    }

    fn write(&mut self, setting: &Setting, value: &Value) -> Result<()> {
        let Value::Number(n) = value else { panic!("{value}") };
        *self.value(setting)? = *n;
        Ok(())
    }

    fn napi_of_queue(&mut self, _: u32, queue: u32) -> Option<u32> {
        (self.up && self.absent == 0 && queue < self.queues).then_some(self.napi.0)
    }

    fn queues(&mut self, _: u32) -> Option<u32> {
        Some(self.queues)
    }

    fn forwards(&mut self, _: u32) -> bool {
        self.forwards
    }

    fn lists(&mut self, _: u32, napi_id: u32) -> bool {
        self.up && self.absent > 0 && self.listed && napi_id == self.napi.0
    }

    fn presence(&mut self, _: u32) -> Presence {
        if self.up { Presence::Up } else { Presence::Down }
    }

    fn name(&mut self, _: u32) -> Result<String> {
        Ok("eth0".into())
    }

    fn here(&mut self) -> Result<NetnsId> {
        Ok(document().netns)
    }

    fn me(&mut self) -> Result<Owner> {
        Owner::me()
    }

    fn alive(&mut self, owner: Owner) -> bool {
        owner.alive()
    }

    fn lock(&mut self, _: &Path) -> Result<Option<Lock>> {
        Ok(None)
    }

    fn journals(&mut self, dir: &Path) -> Result<Vec<PathBuf>> {
        paths(dir)
    }

    fn load(&mut self, path: &Path) -> Result<Vec<u8>> {
        rundir::load(path)
    }

    fn save(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        rundir::save(path, bytes)
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        rundir::remove(path)
    }

    fn wait(&mut self) {
        self.waits += 1;
        self.absent = self.absent.saturating_sub(1);
    }
}

/// What a guard does when it knows a source's NAPI: values of weir are put back, what was before is written down. Then it
/// is taken over.
fn take_over(j: &mut Journal, kernel: &mut Returning) {
    let napi_id = kernel.napi.0;
    let flush = Setting::NapiFlush { ifindex: 7, napi_id };
    for (setting, new) in [(flush, 5_000_000), (Setting::NapiDefer { ifindex: 7, napi_id }, 8)] {
        let found = kernel.read(&setting).unwrap();
        let old = j.before(&setting, Some(0), &found);
        kernel.write(&setting, &old).unwrap();
        j.record(kernel, &[Planned { setting, queue: Some(0), old, new: Value::Number(new) }]).unwrap();
        kernel.write(&setting, &Value::Number(new)).unwrap();
    }
}

fn empty_journal(dir: &Path) -> Journal {
    let mut j = journal(dir);
    j.doc.entries.clear();
    j
}

fn fates(walked: Vec<(&Entry, Outcome)>) -> Vec<Fate> {
    walked.into_iter().map(|(_, o)| o.fate).collect()
}

/// Whatever the guard sees of it, and however long the NAPI is away: 40 waits are 200 ms.
#[test]
fn values_of_weir_never_pass_for_those_found() {
    for case in 0..64u32 {
        let dir = tempfile::tempdir().unwrap();
        let (mut j, mut kernel) = (empty_journal(dir.path()), Returning::new());
        take_over(&mut j, &mut kernel);
        for round in 1..4 {
            kernel.up = case & 1 == 0;
            kernel.listed = case & 2 != 0;
            let id = if case & 4 != 0 { 8193 + round } else { 8193 };
            kernel.goes_away(if case & 8 != 0 { 40 } else { 0 }, id);
            if case & 16 != 0 {
                // Set up anew while it is away: nothing can be known, so nothing is forgotten.
                j.walk_at(&mut kernel, 7, true, 0);
            }
            kernel.up = true;
            kernel.absent = 0;
            if case & 32 != 0 {
                j.walk_at(&mut kernel, 7, true, 0);
                assert_eq!(kernel.napi.1, [70_000, 3], "case {case}");
            }
            take_over(&mut j, &mut kernel);
            assert_eq!((kernel.napi.1, j.len()), ([5_000_000, 8], 2), "case {case}");
        }
        let j = Journal::load(j.path()).unwrap();
        assert!(
            fates(j.walk_at(&mut kernel, 7, true, 0)).iter().all(|f| matches!(f, Fate::Restored { .. })),
            "case {case}"
        );
        assert_eq!(kernel.napi.1, [70_000, 3], "case {case}");
    }
}

#[test]
fn a_last_restore_finds_the_new_id_and_what_it_cannot_see_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (mut j, mut kernel) = (empty_journal(dir.path()), Returning::new());
    take_over(&mut j, &mut kernel);
    // Disabled: it may come back, and for longer than anybody waits.
    kernel.goes_away(40, 8193);
    kernel.listed = true;
    let walked = j.walk_at(&mut kernel, 7, true, ABSENCES);
    assert!(walked.iter().all(|(_, o)| o.fate == Fate::Waiting && !o.settled()), "{walked:?}");
    assert_eq!(kernel.waits, ABSENCES, "once for all settings");
    kernel.up = false;
    assert_eq!(fates(j.walk_at(&mut kernel, 7, true, ABSENCES)), [Fate::Waiting, Fate::Waiting]);
    assert_eq!(kernel.waits, ABSENCES, "down: it is not waited for");
    (kernel.up, kernel.listed) = (true, false);
    kernel.goes_away(2, 8194);
    assert_eq!(kernel.napi.1, [5_000_000, 8]);
    let walked = j.walk_at(&mut kernel, 7, true, ABSENCES);
    assert!(walked.iter().all(|(_, o)| o.napi_id == Some(8194)), "{walked:?}");
    assert!(walked.iter().all(|(_, o)| matches!(o.fate, Fate::Restored { .. })), "{walked:?}");
    assert_eq!(kernel.napi.1, [70_000, 3]);
    // What is not weir's on a new NAPI is none of its business.
    kernel.goes_away(0, 8195);
    kernel.napi.1 = [0, 1];
    assert_eq!(fates(j.walk_at(&mut kernel, 7, true, 0)), [Fate::Gone, Fate::Gone]);
    assert_eq!(kernel.napi.1, [0, 1]);
}

/// A host that began to forward meanwhile drops what LRO merges: the kernel has switched it off for good then.
#[test]
fn lro_stays_off_where_the_host_forwards() {
    for (forwards, after) in [(false, 1), (true, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut j, mut kernel) = (empty_journal(dir.path()), Returning::new());
        let off = Change { setting: Setting::Lro { ifindex: 7 }, queue: None, new: 0.into(), first: None };
        change::make(&mut kernel, &mut j, std::slice::from_ref(&off)).unwrap();
        kernel.forwards = forwards;
        let fates = fates(j.walk_at(&mut kernel, 7, true, 0));
        assert_eq!(matches!(fates[0], Fate::Left { .. }), forwards, "{fates:?}");
        assert_eq!(kernel.lro, after);
    }
}

/// A queue that was taken away with weir's values is waited for until its NAPI is back, with them or without.
#[test]
fn a_queue_that_was_taken_away_waits() {
    for (id, values, after) in [
        (8193, [5_000_000, 8], [70_000, 3]),
        (8194, [5_000_000, 8], [70_000, 3]),
        // The driver does not have the kernel keep them.
        (8194, [0, 0], [0, 0]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (mut j, mut kernel) = (empty_journal(dir.path()), Returning::new());
        take_over(&mut j, &mut kernel);
        kernel.queues = 0;
        let walked = j.walk_at(&mut kernel, 7, true, ABSENCES);
        assert!(walked.iter().all(|(_, o)| o.fate == Fate::Waiting && !o.settled()), "{walked:?}");
        assert_eq!(kernel.waits, 0, "it comes back when somebody wants it, not by itself");
        (kernel.queues, kernel.napi) = (1, (id, values));
        let walked = j.walk_at(&mut kernel, 7, true, ABSENCES);
        assert!(walked.iter().all(|(_, o)| o.settled()), "{walked:?}");
        assert_eq!(kernel.napi.1, after);
    }
    // It had its old values when it went.
    let dir = tempfile::tempdir().unwrap();
    let (mut j, mut kernel) = (empty_journal(dir.path()), Returning::new());
    take_over(&mut j, &mut kernel);
    let restored = |f: &Fate| matches!(f, Fate::Restored { .. });
    assert!(fates(j.walk_at(&mut kernel, 7, true, 0)).iter().all(restored));
    kernel.queues = 0;
    assert_eq!(fates(j.walk_at(&mut kernel, 7, true, 0)), [Fate::Gone, Fate::Gone]);
    // Taken over anew, it may not have them.
    kernel.queues = 1;
    take_over(&mut j, &mut kernel);
    kernel.queues = 0;
    assert_eq!(fates(j.walk_at(&mut kernel, 7, true, 0)), [Fate::Waiting, Fate::Waiting]);
    // It is here again but for its NAPI: what a driver does in between is waited for.
    let dir = tempfile::tempdir().unwrap();
    let (mut j, mut kernel) = (empty_journal(dir.path()), Returning::new());
    take_over(&mut j, &mut kernel);
    kernel.absent = 3;
    assert!(
        fates(j.walk_at(&mut kernel, 7, true, ABSENCES)).iter().all(|f| matches!(f, Fate::Restored { .. }))
    );
    // An entry that does not know its queue, as none of a guard, is gone with its NAPI.
    let dir = tempfile::tempdir().unwrap();
    let (mut j, mut kernel) = (empty_journal(dir.path()), Returning::new());
    take_over(&mut j, &mut kernel);
    j.doc.entries.iter_mut().for_each(|e| e.queue = None);
    kernel.queues = 0;
    assert_eq!(fates(j.walk_at(&mut kernel, 7, true, 0)), [Fate::Gone, Fate::Gone]);
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

#[test]
fn the_hosts_journal_is_known_by_its_name() {
    assert!(is_host(Path::new("4026531840-0.json")));
    for ifindex in [1, 10, 100] {
        assert!(!is_host(Path::new(&format!("4026531840-{ifindex}.json"))), "{ifindex}");
    }
}
