//! Settings, journal and sysfs against the kernel, in namespaces of their own.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

use kern::{
    cpus::CpuSet,
    error::Error,
    ethtool,
    journal::{ClaimError, Fate, Journal, Lock, Outcome, Planned},
    napi::{self, Change, Client, Direction, Threaded},
    netns,
    settings::{Access, Presence, Setting, Value, presence},
    sysfs::Sysfs,
};
use std::{os::unix::fs::MetadataExt, path::Path};
use testkit::{NetNs, root_or_skip};

/// A namespace with the pair w0 - w1, both up, `queues` receive queues, GRO on w0 (so that it has NAPIs).
fn veth(tag: &str, queues: u32) -> NetNs {
    let ns = NetNs::new(tag);
    let q = queues.to_string();
    let pair = ["type", "veth", "peer", "name", "w1", "numrxqueues", &q, "numtxqueues", &q];
    ns.sh("ip", &[&["link", "add", "w0", "numrxqueues", &q, "numtxqueues", &q][..], &pair].concat());
    ns.sh("ip", &["link", "set", "w0", "up"]);
    ns.sh("ip", &["link", "set", "w1", "up"]);
    ns.run(|| ethtool::set_gro("w0", true).unwrap());
    ns
}

fn index() -> u32 {
    netns::index_of("w0").unwrap()
}

#[test]
fn napi_list_set_and_read_back_root() {
    if !root_or_skip("napi_list_set_and_read_back_root") {
        return;
    }
    veth("napi", 2).run(|| {
        let ifindex = index();
        let mut client = Client::open().unwrap();
        let list = client.list(ifindex).unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(list, napi::list(ifindex).unwrap());
        assert!(list.iter().all(|n| n.ifindex == ifindex && n.irq.is_none() && n.pid.is_none()));
        assert!(client.has_settings().unwrap());
        let id = list[0].id;
        // More than 32 bits of nanoseconds, which a reader of four bytes would cut off.
        for flush in [2_000_000, 5_000_000_000, 0] {
            let change =
                Change { defer_hard_irqs: Some(8), gro_flush_timeout_ns: Some(flush), ..Change::default() };
            client.set(id, change).unwrap();
            let now = client.get(id).unwrap();
            assert_eq!((now.defer_hard_irqs, now.gro_flush_timeout_ns), (Some(8), Some(flush)));
        }
        assert_eq!(client.get(list[1].id).unwrap().defer_hard_irqs, Some(0), "the other NAPI is untouched");
        let change = Change { threaded: Some(Threaded::On), ..Change::default() };
        client.set(id, change).unwrap();
        let pid = client.get(id).unwrap().pid.unwrap();
        assert!(kern::proc::name(pid).unwrap().starts_with("napi/w0"));

        let queues = client.queues(ifindex).unwrap();
        assert!(
            queues.contains_key(&(Direction::Rx, 1)) && queues.values().all(Option::is_none),
            "{queues:?}"
        );
        assert!(client.xdp_features(ifindex).unwrap().native());
        assert!(client.get(999_999).unwrap_err().is_gone());
        assert!(client.set(999_999, Change::default()).unwrap_err().is_gone());
        assert!(client.list(999_999).unwrap_or_default().is_empty());
        // After errors the connection still answers the right request.
        assert_eq!(client.get(id).unwrap().id, id);
    });
}

#[test]
fn every_setting_is_written_and_verified_root() {
    if !root_or_skip("every_setting_is_written_and_verified_root") {
        return;
    }
    veth("settings", 2).run(|| {
        let ifindex = index();
        let mut access = Access::for_current_netns().unwrap();
        let id = napi::list(ifindex).unwrap()[0].id;
        let cases = [
            (Setting::NapiDefer { ifindex, napi_id: id }, Value::Number(8)),
            (Setting::NapiFlush { ifindex, napi_id: id }, Value::Number(2_000_000)),
            (Setting::NapiThreaded { ifindex, napi_id: id }, Value::Number(1)),
            (Setting::DevDefer { ifindex }, Value::Number(4)),
            (Setting::DevFlush { ifindex }, Value::Number(3_000_000)),
            (Setting::DevThreaded { ifindex }, Value::Number(1)),
            (Setting::RpsCpus { ifindex, queue: 1 }, Value::Cpus(CpuSet::from_iter([0]))),
            (Setting::Gro { ifindex }, Value::Number(0)),
        ];
        for (setting, value) in cases {
            let old = access.read(&setting).unwrap();
            assert_ne!(old, value, "{setting:?}");
            access.write(&setting, &value).unwrap();
            assert_eq!(access.read(&setting).unwrap(), value);
            access.write(&setting, &old).unwrap();
            assert_eq!(access.read(&setting).unwrap(), old);
        }
        // Stale: the id belongs to no NAPI, or to one of another interface.
        let id = napi::list(ifindex).unwrap()[0].id;
        let other = netns::index_of("w1").unwrap();
        for setting in [
            Setting::NapiDefer { ifindex, napi_id: 999_999 },
            Setting::NapiDefer { ifindex: other, napi_id: id },
            Setting::RpsCpus { ifindex: 999_999, queue: 0 },
            // A queue that never was, or that the device has given up.
            Setting::RpsCpus { ifindex, queue: 7 },
        ] {
            assert!(access.read(&setting).unwrap_err().is_gone(), "{setting:?}");
        }
        assert!(access.write(&Setting::DevDefer { ifindex }, &Value::Cpus(CpuSet::new())).is_err());
    });
}

/// No software device has offloads of a NIC that can be switched; what switches them works on those it has.
#[test]
fn features_are_switched_one_by_one_by_name_root() {
    if !root_or_skip("features_are_switched_one_by_one_by_name_root") {
        return;
    }
    veth("features", 1).run(|| {
        let ifindex = index();
        let mut access = Access::for_current_netns().unwrap();
        for setting in [Setting::Lro { ifindex }, Setting::GroHw { ifindex }] {
            let refused = access.read(&setting).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
            for value in [0, 1] {
                let refused = access.write(&setting, &Value::Number(value)).unwrap_err();
                assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
            }
        }
        let absent = Setting::Lro { ifindex: 999_999 };
        assert!(access.read(&absent).unwrap_err().is_gone());

        // One in the first word of bits, one in the second.
        let other = "rx-udp-gro-forwarding";
        assert!(ethtool::wanted("w0", "rx-gro").unwrap() && !ethtool::wanted("w0", other).unwrap());
        ethtool::set_wanted("w0", other, true).unwrap();
        ethtool::set_wanted("w0", "rx-gro", false).unwrap();
        assert!(!ethtool::gro("w0").unwrap() && ethtool::wanted("w0", other).unwrap());
        ethtool::set_wanted("w0", other, false).unwrap();
        ethtool::set_wanted("w0", "rx-gro", true).unwrap();
        assert!(ethtool::gro("w0").unwrap() && !ethtool::wanted("w0", other).unwrap());
        // What is wanted and cannot be now is wanted none the less: segmentation without checksums.
        ethtool::set_wanted("w0", "tx-checksum-ip-generic", false).unwrap();
        ethtool::set_wanted("w0", "tx-tcp-segmentation", false).unwrap();
        ethtool::set_wanted("w0", "tx-tcp-segmentation", true).unwrap();
        assert!(ethtool::wanted("w0", "tx-tcp-segmentation").unwrap());
    });
}

/// A queue that is taken away waits. veth brings it back without its values.
#[test]
fn a_queue_that_was_taken_away_waits_root() {
    if !root_or_skip("a_queue_that_was_taken_away_waits_root") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ns = veth("channels", 2);
    ns.run(|| {
        let ifindex = index();
        let mut access = Access::for_current_netns().unwrap();
        let (mut journal, _) = Journal::claim(dir.path(), &mut access, ifindex).unwrap();
        let napi_id = napi::list(ifindex).unwrap()[1].id;
        let setting = Setting::NapiDefer { ifindex, napi_id };
        let planned = Planned { queue: Some(1), ..plan(&mut access, setting, 8) };
        journal.record(&mut access, std::slice::from_ref(&planned)).unwrap();
        access.write(&setting, &planned.new).unwrap();
        ns.sh("ethtool", &["-L", "w1", "tx", "1"]);
        ns.sh("ethtool", &["-L", "w0", "rx", "1"]);
        assert_eq!(access.queues(ifindex), Some(1));
        let waiting = [("defer-hard-irqs", &Fate::Waiting)];
        assert_eq!(fates(&journal.restore(&mut access)), waiting);

        // The next guard takes it over.
        make_dead(journal.path());
        let (journal, before) = Journal::claim(dir.path(), &mut access, ifindex).unwrap();
        assert_eq!(fates(&before), waiting);
        assert_eq!((before[0].target.as_str(), journal.len()), ("w0/1", 1));
        ns.sh("ethtool", &["-L", "w0", "rx", "2"]);
        assert_eq!(fates(&journal.restore(&mut access)), [("defer-hard-irqs", &Fate::Gone)]);
        journal.remove().unwrap();
    });
}

#[test]
fn sysfs_shows_the_callers_namespace_root() {
    if !root_or_skip("sysfs_shows_the_callers_namespace_root") {
        return;
    }
    // Two namespaces that only differ in a setting: same names, same indices.
    let (a, b) = (veth("sysa", 1), veth("sysb", 3));
    let of = |ns: &NetNs| {
        ns.run(|| {
            let sysfs = Sysfs::for_current_netns().unwrap();
            let device = sysfs.device(index()).unwrap();
            (sysfs.is_private(), device.rx_queues().unwrap(), device.name().to_string(), device.msi_irqs())
        })
    };
    assert_eq!(of(&a), (true, 1, "w0".into(), vec![]));
    assert_eq!(of(&b), (true, 3, "w0".into(), vec![]));
    // A kept directory follows a rename and tells a deletion.
    a.run(|| {
        let sysfs = Sysfs::for_current_netns().unwrap();
        let ifindex = index();
        let device = sysfs.device(ifindex).unwrap();
        a.sh("ip", &["link", "set", "w0", "down"]);
        assert_eq!(presence(ifindex), Presence::Down);
        a.sh("ip", &["link", "set", "w0", "name", "renamed"]);
        device.set_defer_hard_irqs(3).unwrap();
        assert_eq!(sysfs.device(ifindex).unwrap().name(), "renamed");
        assert_eq!(sysfs.device(ifindex).unwrap().defer_hard_irqs().unwrap(), 3);
        a.sh("ip", &["link", "del", "renamed"]);
        assert!(device.defer_hard_irqs().unwrap_err().is_gone());
        assert!(sysfs.device(ifindex).unwrap_err().is_gone());
        assert_eq!(presence(ifindex), Presence::Absent);
    });
}

/// Without the right to mount, `/sys` is used where it shows this namespace, and refused where it does not.
#[test]
fn a_foreign_sysfs_is_refused_without_privilege_root() {
    if !root_or_skip("a_foreign_sysfs_is_refused_without_privilege_root") {
        return;
    }
    // Capabilities belong to the thread.
    let unprivileged = || {
        let (set, capability) = (caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN);
        caps::drop(None, set, capability).unwrap();
        let opened = Sysfs::for_current_netns();
        caps::raise(None, set, capability).unwrap();
        opened
    };
    let at_home = std::thread::spawn(unprivileged).join().unwrap().unwrap();
    assert!(!at_home.is_private());
    let error = veth("foreign", 1).run(unprivileged).unwrap_err().to_string();
    assert!(error.contains("shows another network namespace"), "{error}");
}

fn plan(access: &mut Access, setting: Setting, new: u64) -> Planned {
    Planned { setting, queue: Some(0), old: access.read(&setting).unwrap(), new: Value::Number(new) }
}

fn fates(outcomes: &[Outcome]) -> Vec<(&'static str, &Fate)> {
    outcomes.iter().map(|o| (o.setting, &o.fate)).collect()
}

#[test]
fn journal_restores_only_what_is_still_ours_root() {
    if !root_or_skip("journal_restores_only_what_is_still_ours_root") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ns = veth("journal", 2);
    ns.run(|| {
        let ifindex = index();
        let mut access = Access::for_current_netns().unwrap();
        let (mut journal, before) = Journal::claim(dir.path(), &mut access, ifindex).unwrap();
        assert!(before.is_empty() && journal.is_here() && journal.is_empty());
        let id = napi::list(ifindex).unwrap()[0].id;
        let defer = Setting::NapiDefer { ifindex, napi_id: id };
        let flush = Setting::NapiFlush { ifindex, napi_id: id };
        let gro = Setting::Gro { ifindex };
        let threaded = Setting::NapiThreaded { ifindex, napi_id: id };
        let planned = [
            plan(&mut access, gro, 0),
            plan(&mut access, flush, 2_000_000),
            plan(&mut access, defer, 8),
            plan(&mut access, threaded, 1),
        ];
        journal.record(&mut access, &planned).unwrap();
        for p in &planned[1..3] {
            access.write(&p.setting, &p.new).unwrap();
        }
        // Somebody else changes one of them.
        access.write(&flush, &Value::Number(77_000)).unwrap();

        let journal = Journal::load(journal.path()).unwrap();
        let dry = journal.dry_run(&mut access);
        assert_eq!(access.read(&defer).unwrap(), Value::Number(8), "a dry run changes nothing");
        let done = journal.restore(&mut access);
        assert_eq!(dry, done);
        let number = |text: &str| Fate::Verified { value: text.into() };
        assert_eq!(
            fates(&done),
            [
                ("threaded", &number("0")),
                ("defer-hard-irqs", &Fate::Restored { from: "8".into(), to: "0".into() }),
                ("gro", &number("on")),
                ("gro-flush-timeout", &Fate::Left { found: "77000 ns".into(), old: "0 ns".into() }),
            ]
        );
        assert!(done.iter().all(|o| o.target == "w0/0" && o.settled()));
        assert_eq!(access.read(&defer).unwrap(), Value::Number(0));
        assert_eq!(access.read(&flush).unwrap(), Value::Number(77_000));

        // Down: a NAPI cannot be seen. Deleted: its values are gone with it.
        ns.sh("ip", &["link", "set", "w0", "down"]);
        let down = journal.restore(&mut access);
        assert_eq!(down.iter().filter(|o| o.fate == Fate::Waiting).count(), 3, "{down:?}");
        ns.sh("ip", &["link", "del", "w0"]);
        let deleted = journal.restore(&mut access);
        assert!(deleted.iter().all(|o| o.fate == Fate::Gone), "{deleted:?}");
        journal.remove().unwrap();
    });
}

#[test]
fn claims_exclude_each_other_root() {
    if !root_or_skip("claims_exclude_each_other_root") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/weir");
    let ns = veth("claim", 1);
    ns.run(|| {
        let ifindex = index();
        let mut access = Access::for_current_netns().unwrap();
        let (mut journal, _) = Journal::claim(&path, &mut access, ifindex).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let error = Journal::claim(&path, &mut access, ifindex).unwrap_err();
        assert!(matches!(error, ClaimError::Guarded { pid, .. } if pid == std::process::id()));
        assert_eq!(
            error.to_string(),
            format!("w0: already guarded by weir, pid {}; stop that one first", std::process::id())
        );
        let defer = Setting::DevDefer { ifindex };
        let planned = plan(&mut access, defer, 8);
        journal.record(&mut access, std::slice::from_ref(&planned)).unwrap();
        access.write(&defer, &planned.new).unwrap();

        // The same journal by a guard that is dead: put back first, then claimed.
        make_dead(journal.path());
        let (journal, before) = Journal::claim(&path, &mut access, ifindex).unwrap();
        assert_eq!(
            fates(&before),
            [("napi_defer_hard_irqs", &Fate::Restored { from: "8".into(), to: "0".into() })]
        );
        assert_eq!(access.read(&defer).unwrap(), Value::Number(0));
        assert!(journal.is_empty() && journal.owner().alive());

        // It is down: what cannot be seen is carried over, with the value from before.
        let napi_id = napi::list(ifindex).unwrap()[0].id;
        let napi = Setting::NapiDefer { ifindex, napi_id };
        let mut journal = journal;
        let planned = [plan(&mut access, napi, 8)];
        journal.record(&mut access, &planned).unwrap();
        ns.sh("ip", &["link", "set", "w0", "down"]);
        make_dead(journal.path());
        let (journal, before) = Journal::claim(&path, &mut access, ifindex).unwrap();
        assert_eq!(fates(&before), [("defer-hard-irqs", &Fate::Waiting)]);
        assert_eq!(Journal::load(journal.path()).unwrap().len(), 1);
        ns.sh("ip", &["link", "set", "w0", "up"]);
        assert_eq!(journal.restore(&mut access)[0].fate, Fate::Gone, "veth makes new NAPIs");

        // A journal of a dead namespace whose inode this one has got: nothing is done with it.
        let text = std::fs::read_to_string(journal.path()).unwrap();
        let mut v: serde_json::Value = serde_json::from_str(&text).unwrap();
        v["netns"]["cookie"] = 1_u64.into();
        v["device"] = 1_u64.into();
        v["entries"] = serde_json::json!([{"set": "dev_defer", "old": 5, "ours": [0]}]);
        std::fs::write(journal.path(), v.to_string()).unwrap();
        make_dead(journal.path());
        assert!(!Journal::load(journal.path()).unwrap().is_here());
        let (journal, before) = Journal::claim(&path, &mut access, ifindex).unwrap();
        assert!(before.is_empty());
        assert_eq!(access.read(&defer).unwrap(), Value::Number(0));
        journal.remove().unwrap();
        assert!(Lock::take(&path).is_ok());
    });
}

/// Rewrites a journal so that its guard is a process that has ended.
fn make_dead(path: &Path) {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let mut v: serde_json::Value = serde_json::from_str(&text).unwrap();
    v["guard"] = serde_json::json!({"pid": pid, "start": 1});
    std::fs::write(path, v.to_string()).unwrap();
}
