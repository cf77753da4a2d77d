//! What happens to a placement between `weir place` and `weir undo`, on the simulated kernel of [`placed`]: a second placement that
//! fails, CPUs that go offline, threads that inherit, a guard beside it. No privilege, no clock: it cannot flake.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod placed;

use kern::{
    change::{self, Change},
    journal::{Fate, Journal, Outcome, Owner, Whose},
    kernel::Heir,
    settings::Setting,
    undo::{self, Of, Report, Undone},
};
use placed::{DIR, Event, PLACED, Sim, cells, changes, cpus};
use std::path::Path;

/// A second `weir place` with other values; true if it was carried out.
fn place_again(sim: &mut Sim, changes: &[Change]) -> bool {
    sim.me = Owner { pid: 300, start: 1 };
    let mut journal = Journal::claim_host(Path::new(DIR), sim).unwrap();
    change::make(sim, &mut journal, changes).is_ok()
}

/// A guard sets RPS of one source, and lives until its id is no longer among those alive.
fn guard(sim: &mut Sim, rps: &str) -> (Journal, [Change; 1]) {
    let setting = cells()[1].0;
    sim.me = Owner { pid: 200, start: 1 };
    let (mut journal, _) = Journal::claim(Path::new(DIR), sim, setting.ifindex()).unwrap();
    let change = [Change { setting, queue: None, new: cpus(rps), first: None }];
    change::make(sim, &mut journal, &change).unwrap();
    (journal, change)
}

fn outcomes(report: &Report) -> Vec<Outcome> {
    let of = |j: &Undone| match j {
        Undone::Restored { outcomes, .. } => outcomes.clone(),
        _ => Vec::new(),
    };
    report.journals.iter().flat_map(of).collect()
}

#[test]
fn a_second_placement_that_fails_leaves_the_first() {
    for n in 1..cells().len() {
        let mut sim = Sim::new(usize::MAX, Event::Nothing);
        assert!(sim.place(100));
        let first = sim.values.clone();
        let mut second: Vec<Change> =
            changes().into_iter().map(|c| Change { new: cpus("0,3"), ..c }).collect();
        // The kernel cannot make this mask: all that was changed before it is taken back.
        second[n].new = cpus("0,9");
        sim.usable = cpus_of("0-3");
        assert!(!place_again(&mut sim, &second), "{n}");
        assert_eq!(sim.values, first, "{n}: everything is as the first placement left it");
        sim.usable = None;
        assert!(sim.undo().unwrap().complete());
        sim.assert_as_before("after both");
    }
}

/// CPUs that masks can have.
fn cpus_of(list: &str) -> Option<kern::cpus::CpuSet> {
    Some(list.parse().unwrap())
}

#[test]
fn a_mask_without_the_cpus_that_went_offline_is_still_weirs() {
    let thread = Setting::TaskCpus { tid: 700, start: 9 };
    let irq = Setting::IrqCpus { irq: 38 };
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    assert!(place_again(&mut sim, &[Change { setting: thread, queue: None, new: cpus("2-3"), first: None }]));
    // CPU 3 goes: the thread is on the rest. CPU 1 goes too: the interrupt's only one, so it gets all.
    sim.usable = cpus_of("0,2");
    sim.values.insert(thread, cpus("2"));
    sim.values.insert(irq, cpus("0,2"));
    let journal = Journal::claim_host(Path::new(DIR), &mut sim).unwrap();
    assert_eq!(journal.whose(&mut sim, &thread, &cpus("2")), Some(Whose::Ours));
    assert_eq!(journal.whose(&mut sim, &thread, &cpus("0,2")), Some(Whose::Before));
    assert_eq!(journal.whose(&mut sim, &thread, &cpus("0")), Some(Whose::Others));
    // A third placement does not take the narrowed value for one from before weir.
    assert!(place_again(&mut sim, &[Change { setting: thread, queue: None, new: cpus("0"), first: None }]));
    let report = sim.undo().unwrap();
    assert!(report.complete() && sim.files.is_empty(), "{report:?}");
    // What there is of 0-3.
    assert_eq!((&sim.values[&thread], &sim.values[&irq]), (&cpus("0,2"), &cpus("0,2")));
}

#[test]
fn threads_that_have_begun_since_get_the_value_from_before() {
    let set = |tid| Setting::TaskCpus { tid, start: 20 };
    let heir = |tid| Heir { tid, start: 20, of: [700].into() };
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    // One with weir's value, one that has set its own, one that has ended, and a stranger with the same value.
    sim.family = vec![heir(801), heir(802), heir(803)];
    sim.values.extend([(set(801), cpus("2")), (set(802), cpus("1")), (set(900), cpus("2"))]);
    let planned = undo::undo_with(&mut sim, Path::new(DIR), &[], Of::All, false).unwrap();
    assert_eq!(planned.restored(), cells().len() + 1);
    // A plan that changes knows that the value is inherited.
    assert!(place_again(&mut sim, &[Change { setting: set(801), queue: None, new: cpus("3"), first: None }]));
    let known = Journal::claim_host(Path::new(DIR), &mut sim).unwrap();
    assert_eq!(known.known(&set(801), None).unwrap().0, &cpus("0-3"));
    sim.family.push(heir(804));
    sim.values.insert(set(804), cpus("2"));
    let report = sim.undo().unwrap();
    assert!(report.complete() && report.restored() == cells().len() + 2, "{report:?}");
    let found = [801, 802, 804, 900].map(|tid| sim.values[&set(tid)].clone());
    assert_eq!(found, [cpus("0-3"), cpus("1"), cpus("0-3"), cpus("2")]);
    sim.assert_as_before("heirs");
}

#[test]
fn a_thread_that_had_the_planned_value_before_keeps_it() {
    let own = Setting::TaskCpus { tid: 801, start: PLACED - 1 };
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    // As a worker that its server has bound itself: no plan changes it, so it is in no journal.
    sim.family = vec![Heir { tid: 801, start: PLACED - 1, of: [700].into() }];
    sim.values.insert(own, cpus("2"));
    assert!(sim.place(100));
    assert_eq!(sim.undo().unwrap().restored(), cells().len());
    assert_eq!(sim.values[&own], cpus("2"));
    sim.assert_as_before("a bound worker");
}

#[test]
fn an_heir_of_any_thread_of_a_process_is_known() {
    let set = |tid, start| Setting::TaskCpus { tid, start };
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    sim.values.insert(set(701, 9), cpus("0-3"));
    assert!(sim.place(100));
    assert!(place_again(
        &mut sim,
        &[Change { setting: set(701, 9), queue: None, new: cpus("1"), first: None }]
    ));
    // One of each of the two threads, which have different CPUs.
    let heir = |tid| Heir { tid, start: 20, of: [700, 701].into() };
    sim.family = vec![heir(801), heir(802)];
    sim.values.extend([(set(801, 20), cpus("2")), (set(802, 20), cpus("1"))]);
    assert!(sim.undo().unwrap().complete());
    assert_eq!([801, 802].map(|tid| sim.values[&set(tid, 20)].clone()), [cpus("0-3"), cpus("0-3")]);
}

#[test]
fn a_mask_from_before_that_is_narrowed_now_stays_the_value_from_before() {
    let thread = Setting::TaskCpus { tid: 700, start: 9 };
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    sim.usable = cpus_of("0-2");
    sim.values.insert(thread, cpus("0-2"));
    assert!(place_again(&mut sim, &[Change { setting: thread, queue: None, new: cpus("1"), first: None }]));
    sim.usable = None;
    assert!(sim.undo().unwrap().complete());
    sim.assert_as_before("with its CPU back");
}

/// RPS of one CPU is what guards take away while they poll, and none is what there was before weir.
#[test]
fn what_a_guard_will_put_back_waits_for_it_whatever_is_there_now() {
    for polled in [true, false] {
        let mut sim = Sim::new(usize::MAX, Event::Nothing);
        assert!(sim.place(100));
        let (guards, change) = guard(&mut sim, "");
        if !polled {
            change::put_back(&mut sim, &guards, &change);
        }
        sim.alive = vec![200];
        let report = sim.undo().unwrap();
        assert!(!report.complete() && sim.files.len() == 2, "{polled}: {report:?}");
        guards.restore(&mut sim);
        guards.remove_from(&mut sim).unwrap();
        sim.alive.clear();
        assert!(sim.undo().unwrap().complete());
        sim.assert_as_before("after the guard");
    }
}

#[test]
fn an_inherited_mask_that_is_narrowed_is_known_as_inherited() {
    let worker = Setting::TaskCpus { tid: 801, start: 20 };
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    let wider = [Change { new: cpus("2-3"), ..changes()[4].clone() }];
    assert!(place_again(&mut sim, &wider));
    // CPU 3 is offline when the worker begins, and when it is placed.
    sim.usable = cpus_of("0-2");
    sim.values.extend([(wider[0].setting, cpus("2")), (worker, cpus("2"))]);
    sim.family = vec![Heir { tid: 801, start: 20, of: [700].into() }];
    assert!(place_again(&mut sim, &[Change { setting: worker, queue: None, new: cpus("1"), first: None }]));
    sim.usable = None;
    assert!(sim.undo().unwrap().complete());
    assert_eq!(sim.values[&worker], cpus("0-3"));
}

#[test]
fn what_a_dead_guard_has_left_is_put_back_before_the_placement() {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    guard(&mut sim, "");
    // Guard and keeper die. Only the placement is to go: it cannot yet.
    sim.alive.clear();
    let report = undo::undo_with(&mut sim, Path::new(DIR), &["host".into()], Of::All, true).unwrap();
    assert!(!report.complete() && sim.files.len() == 2, "{report:?}");
    assert!(sim.undo().unwrap().complete());
    sim.assert_as_before("after both");
}

#[test]
fn what_a_live_guard_has_changed_over_it_waits_for_the_guard() {
    let mut sim = Sim::new(usize::MAX, Event::Nothing);
    assert!(sim.place(100));
    let (setting, before, placed) = cells()[1].clone();
    let (guards, _) = guard(&mut sim, "3");
    sim.alive = vec![200];
    let report = sim.undo().unwrap();
    let waiting: Vec<Outcome> = outcomes(&report).into_iter().filter(|o| !o.settled()).collect();
    assert!(!report.complete() && waiting.len() == 1, "{report:?}");
    assert_eq!(waiting[0].fate, Fate::Guarded { pid: 200 });
    assert_eq!((&sim.values[&setting], sim.files.len()), (&cpus("3"), 2));
    // It ends, and puts back what it found.
    guards.restore(&mut sim);
    guards.remove_from(&mut sim).unwrap();
    sim.alive.clear();
    assert_eq!(sim.values[&setting], placed);
    assert!(sim.undo().unwrap().complete());
    assert_eq!(sim.values[&setting], before);
    sim.assert_as_before("after the guard");
}
