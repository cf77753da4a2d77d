//! A placement on a simulated kernel: `weir place` and `weir undo` die or are refused at any call, an administrator writes
//! before any call, a thread ends and its id comes back, a namespace is gone. In the end each setting has its value from
//! before, or the administrator's. No privilege, no clock, no scheduler: it cannot flake.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod placed;

use kern::{
    change::{self, Change},
    journal::{ClaimError, Fate, Journal, Outcome, Owner},
    settings::Setting,
    undo::{self, Of, Undone},
};
use placed::{DIR, Event, Sim, admins, cells, changes, cpus};
use std::path::Path;

/// Calls of a placement with its undo when nothing happens.
fn length() -> usize {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    for (setting, _, new) in cells() {
        assert_eq!(sim.values[&setting], new);
    }
    let report = sim.undo().unwrap();
    assert!(report.complete() && report.restored() == cells().len());
    sim.assert_as_before("undisturbed");
    sim.calls
}

#[test]
fn a_crash_or_a_refusal_at_any_call() {
    let calls = length();
    assert!(calls > 4 * cells().len(), "{calls}");
    let mut died = 0;
    for event in [Event::Crash, Event::Refuse] {
        for at in 0..calls {
            let mut sim = Sim::new(at, event);
            died += usize::from(!sim.place(100));
            // The event may hit the first undo: the second one is undisturbed.
            _ = sim.undo();
            let last = sim.undo();
            assert!(last.is_some_and(|r| r.complete()), "{at}");
            sim.assert_as_before(&format!("call {at}"));
        }
    }
    assert!(died > 2 * cells().len());
}

#[test]
fn a_mask_that_the_kernel_narrows_is_taken_back() {
    let placed = {
        let mut sim = Sim::new(usize::MAX, Event::Nothing);
        assert!(sim.place(100));
        sim.calls
    };
    let mut narrowed = 0;
    for at in 0..placed {
        let mut sim = Sim::new(at, Event::Narrow);
        assert!(sim.place(100));
        narrowed += usize::from(cells().iter().any(|(setting, _, new)| sim.values[setting] != *new));
        assert!(sim.undo().is_some_and(|report| report.complete()), "{at}");
        sim.assert_as_before(&format!("call {at}"));
    }
    assert!(narrowed > 2, "{narrowed}: the test shows nothing");
}

#[test]
fn an_administrator_at_any_call_keeps_what_he_wrote() {
    let (calls, mut left) = (length(), 0);
    for at in 0..calls {
        for n in 0..cells().len() {
            let mut sim = Sim::new(at, Event::Admin(n));
            sim.place(100);
            let placed = sim.values.clone();
            let report = sim.undo().unwrap();
            assert!(report.complete(), "{at} {n}");
            sim.assert_as_before(&format!("call {at}, administrator writes {n}"));
            let fates = report.journals.iter().flat_map(|j| match j {
                Undone::Restored { outcomes, .. } => outcomes.as_slice(),
                _ => &[],
            });
            let reported = fates.filter(|o: &&Outcome| matches!(o.fate, Fate::Left { .. })).count();
            let setting = cells()[n].0;
            // His value was there when undo looked, so it is there still, and said so.
            if placed[&setting] == admins(&setting) && sim.written == Some(setting) {
                assert_eq!(sim.values[&setting], admins(&setting));
                left += reported;
            }
        }
    }
    assert!(left > cells().len(), "{left}");
}

#[test]
fn what_guards_have_left_goes_and_the_placement_stays() {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    let (placed, host) = (sim.values.clone(), sim.files.clone());
    // A guard beside it takes RPS away, and dies.
    let setting = cells()[1].0;
    sim.me = Owner { pid: 200, start: 1 };
    let (mut journal, _) = Journal::claim(Path::new(DIR), &mut sim, setting.ifindex()).unwrap();
    let change = Change { setting, queue: None, new: cpus(""), first: None };
    change::make(&mut sim, &mut journal, &[change]).unwrap();
    assert!(sim.values != placed && sim.files.len() == 2);
    let guards = |sim: &mut Sim, write| undo::undo_with(sim, Path::new(DIR), &[], Of::Guards, write).unwrap();
    assert_eq!(guards(&mut sim, false).restored(), 1);
    let report = guards(&mut sim, true);
    assert!(report.complete() && report.journals.len() == 1, "{report:?}");
    assert_eq!((&sim.values, &sim.files), (&placed, &host));
    // Nor is a host's journal that cannot be read an obstacle for guards.
    sim.files.values_mut().for_each(Vec::clear);
    let broken = sim.files.clone();
    assert_eq!(guards(&mut sim, true), undo::Report::default());
    assert_eq!((&sim.values, &sim.files), (&placed, &broken));
}

/// Another namespace has the inode of the one that was placed, which is gone with its interfaces: interrupts and threads are the machine's.
/// A dry run tells of them too, and changes nothing.
#[test]
fn what_outlives_its_namespace_is_told_and_undone() {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    sim.me = Owner { pid: 300, start: 1 };
    sim.netns.cookie = Some(6);
    let (placed, files) = (sim.values.clone(), sim.files.clone());
    let undo = |sim: &mut Sim, write| undo::undo_with(sim, Path::new(DIR), &[], Of::All, write).unwrap();
    let told = undo(&mut sim, false).restored();
    assert!(told > 0);
    assert_eq!((&sim.values, &sim.files), (&placed, &files));
    let report = undo(&mut sim, true);
    assert_eq!((report.restored(), report.complete()), (told, true), "{report:?}");
    assert!(sim.files.is_empty());
}

#[test]
fn a_second_placement_keeps_the_values_from_before_the_first() {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100) && sim.place(200));
    let other = Change { new: cpus("2"), ..changes()[0].clone() };
    sim.me = Owner { pid: 300, start: 1 };
    let mut journal = Journal::claim_host(Path::new(DIR), &mut sim).unwrap();
    change::make(&mut sim, &mut journal, &[other]).unwrap();
    assert_eq!((sim.values[&cells()[0].0].clone(), journal.len()), (cpus("2"), cells().len()));
    assert!(sim.undo().unwrap().complete());
    sim.assert_as_before("after two placements");
}

#[test]
fn one_that_runs_is_neither_joined_nor_undone() {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    sim.alive = vec![100];
    sim.me = Owner { pid: 200, start: 1 };
    let refused = Journal::claim_host(Path::new(DIR), &mut sim);
    assert!(matches!(refused, Err(ClaimError::Placing { pid: 100 })));
    let report = sim.undo().unwrap();
    assert!(matches!(report.journals.as_slice(), [Undone::Guarded { pid: 100, .. }]), "{report:?}");
    assert_eq!(sim.values[&cells()[0].0], cells()[0].2);
}

#[test]
fn a_thread_or_a_queue_that_has_gone_is_no_obstacle() {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    sim.values.remove(&cells()[3].0);
    sim.values.remove(&cells()[4].0);
    // The id is another thread's now.
    sim.values.insert(Setting::TaskCpus { tid: 700, start: 10 }, cpus("2"));
    assert!(sim.undo().unwrap().complete() && sim.files.is_empty());
    assert_eq!(sim.values[&Setting::TaskCpus { tid: 700, start: 10 }], cpus("2"));
}

#[test]
fn what_has_gone_can_be_forgotten_and_the_rest_is_still_undone() {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    let mut journal = Journal::claim_host(Path::new(DIR), &mut sim).unwrap();
    assert_eq!(journal.forget_gone(&mut sim).unwrap(), 0);
    let thread = cells()[4].0;
    let value = sim.values.remove(&thread).unwrap();
    assert_eq!((journal.forget_gone(&mut sim).unwrap(), journal.len()), (1, cells().len() - 1));
    // It is in the file too: the value is nobody's any more.
    sim.values.insert(thread, value.clone());
    assert_eq!(sim.undo().unwrap().restored(), cells().len() - 1);
    assert_eq!(sim.values[&thread], value);
}

#[test]
fn a_file_of_the_host_holds_known_settings_only() {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    let (path, bytes) = sim.files.first_key_value().map(|(p, b)| (p.clone(), b.clone())).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let swapped = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}: {text}");
        text.replacen(from, to, 1)
    };
    for bad in [
        swapped("\"irq_cpus\"", "\"sysctl\""),
        swapped("\"start\":9,", ""),
        swapped("\"ifindex\":2,\"old\"", "\"old\""),
        swapped("\"old\":\"0-3\"", "\"old\":\"\""),
        swapped("\"name\":\"host\"", "\"name\":\"eth0\""),
        swapped("\"id\":700", "\"id\":0"),
        swapped("\"ifindex\":0", "\"ifindex\":2"),
    ] {
        sim.files.insert(path.clone(), bad.clone().into_bytes());
        let report = sim.undo().unwrap();
        assert!(matches!(report.journals.as_slice(), [Undone::Unreadable { .. }]), "{bad}");
    }
    for (setting, _, new) in cells() {
        assert_eq!(sim.values[&setting], new, "nothing was written for a file that is none of weir's");
    }
}
