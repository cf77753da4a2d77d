//! An interface that is moved to another network namespace takes weir's values along: they are put back there, or when it
//! is back, and never taken for its own.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

use kern::{
    journal::{Fate, Journal, Outcome, Planned},
    kernel::Kernel,
    netns,
    settings::{Access, Setting, Value},
    undo,
};
use std::path::Path;
use testkit::{NetNs, root_or_skip};

/// Values from before weir, and weir's: of the device, so that they stay in it wherever it is.
const BEFORE: [u64; 2] = [1_234_567, 3];
const OURS: [u64; 2] = [5_000_000, 8];

fn settings(ifindex: u32) -> [Setting; 2] {
    [Setting::DevFlush { ifindex }, Setting::DevDefer { ifindex }]
}

/// Two namespaces; w0 is in the first one, with the values from before.
fn scene() -> (NetNs, NetNs) {
    let (home, pod) = (NetNs::new("home"), NetNs::new("pod"));
    home.sh("ip", &["link", "add", "w0", "type", "veth", "peer", "name", "w1"]);
    home.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let index = netns::index_of("w0").unwrap();
        for (setting, value) in settings(index).iter().zip(BEFORE) {
            access.write(setting, &value.into()).unwrap();
        }
    });
    (home, pod)
}

/// Claims w0 and gives it weir's values.
fn take(access: &mut Access, dir: &Path) -> Journal {
    let index = netns::index_of("w0").unwrap();
    let (mut journal, left) = Journal::claim(dir, access, index).unwrap();
    assert_eq!(left, []);
    let planned: Vec<Planned> = settings(index)
        .into_iter()
        .zip(OURS)
        .map(|(setting, new)| {
            let old = access.read(&setting).unwrap();
            Planned { setting, queue: None, old, new: new.into() }
        })
        .collect();
    journal.record(access, &planned).unwrap();
    for p in planned {
        access.write(&p.setting, &p.new).unwrap();
    }
    journal
}

fn values() -> Vec<Value> {
    let mut access = Access::for_current_netns().unwrap();
    settings(netns::index_of("w0").unwrap()).iter().map(|s| access.read(s).unwrap()).collect()
}

fn numbers(values: [u64; 2]) -> Vec<Value> {
    values.map(Value::Number).to_vec()
}

fn fates(outcomes: &[Outcome]) -> Vec<&'static str> {
    let name = |o: &Outcome| match o.fate {
        Fate::Restored { .. } => "restored",
        Fate::Moved => "moved",
        Fate::Gone => "gone",
        _ => "another",
    };
    outcomes.iter().map(name).collect()
}

fn send(name: &str, to: &NetNs) {
    let done = std::process::Command::new("ip").args(["link", "set", name, "netns", to.name()]).status();
    assert!(done.unwrap().success());
}

#[test]
fn settings_are_put_back_where_an_interface_has_been_moved_to_root() {
    if !root_or_skip("settings_are_put_back_where_an_interface_has_been_moved_to_root") {
        return;
    }
    let (home, pod) = scene();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    home.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let journal = take(&mut access, &run);
        send("w0", &pod);
        assert_eq!(pod.run(values), numbers(OURS), "it took them along");
        let outcomes = journal.let_go(&mut access, Some(true)).unwrap();
        assert_eq!(fates(&outcomes), ["restored", "restored"], "{outcomes:?}");
    });
    assert_eq!(pod.run(values), numbers(BEFORE));
    assert!(undo::undo(&run, &[]).unwrap().journals.is_empty(), "nothing is left to undo");
}

#[test]
fn an_interface_that_comes_back_under_another_index_gets_its_old_values_root() {
    if !root_or_skip("an_interface_that_comes_back_under_another_index_gets_its_old_values_root") {
        return;
    }
    let (home, pod) = scene();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let away = home.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let journal = take(&mut access, &run);
        send("w0", &pod);
        // Without this no other namespace can be entered.
        let admin = (caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN);
        caps::drop(None, admin.0, admin.1).unwrap();
        let outcomes = journal.let_go(&mut access, Some(true)).unwrap();
        assert_eq!(fates(&outcomes), ["moved", "moved"], "{outcomes:?}");
        assert!(!journal.path().exists(), "the index may be another interface's");
        let report = undo::undo_with(&mut access, &run, &[], undo::Of::All, true).unwrap();
        assert!(report.complete() && report.restored() == 0, "{report:?}");
        assert_eq!(undo::left(&run).unwrap(), 1);
        let device = journal.device().unwrap();
        assert!(Journal::again(&mut access, &run, device).unwrap().is_some_and(|o| fates(&o)[0] == "moved"));
        caps::raise(None, admin.0, admin.1).unwrap();
        journal.ifindex()
    });
    assert_eq!(pod.run(values), numbers(OURS));
    // Another interface has its index now, and nothing of it.
    home.sh("ip", &["link", "add", "x0", "index", &away.to_string(), "type", "veth", "peer", "name", "x1"]);
    home.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let (journal, left) = Journal::claim(&run, &mut access, away).unwrap();
        assert!(left.is_empty() && journal.is_empty(), "{left:?}");
        journal.remove().unwrap();
        pod.run(|| send("w0", &home));
        let index = netns::index_of("w0").unwrap();
        assert_ne!(index, away);
        assert_eq!(values(), numbers(OURS));
        let (journal, left) = Journal::claim(&run, &mut access, index).unwrap();
        assert_eq!(fates(&left), ["restored", "restored"], "{left:?}");
        assert_eq!(values(), numbers(BEFORE));
        assert!(journal.is_empty());
        let files = Kernel::journals(&mut access, &run).unwrap();
        assert_eq!(files, [journal.path().to_path_buf()], "what it had taken along is settled");
    });
}

#[test]
fn what_undo_finds_in_another_namespace_it_puts_back_root() {
    if !root_or_skip("what_undo_finds_in_another_namespace_it_puts_back_root") {
        return;
    }
    let (home, pod) = scene();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    home.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let journal = take(&mut access, &run);
        send("w0", &pod);
        // A guard that may not enter the other namespace has kept them.
        std::thread::scope(|scope| {
            let kept = scope.spawn(|| {
                caps::drop(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN).unwrap();
                journal.let_go(&mut access, None).unwrap()
            });
            assert_eq!(fates(&kept.join().unwrap()), ["moved", "moved"]);
        });
        assert_eq!(undo::dry_run(&run, &[]).unwrap().restored(), 2);
        assert_eq!(pod.run(values), numbers(OURS), "a dry run changes nothing there either");
        let report = undo::undo(&run, &[]).unwrap();
        assert_eq!(report.restored(), 2, "{report:?}");
        assert!(undo::undo(&run, &[]).unwrap().journals.is_empty());
    });
    assert_eq!(pod.run(values), numbers(BEFORE));
}
