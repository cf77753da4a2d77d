//! Carries a plan out, or tries candidates one after the other.

use super::look::{self, Looked, Window};
use super::{name, text};
use crate::cli::PlaceArgs;
use crate::error::{failed, missing};
use crate::out::{grouped, talk};
use guard::outcome::{others, stay};
use kern::change::{self, Change};
use kern::cpus::CpuSet;
use kern::journal::{self, ClaimError, Fate, Journal};
use kern::settings::{Access, Setting, Value};
use policy::place::{self, Barred, Plan, Request, Verdict, What};
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What queues and caches get before a new layout is measured.
const SETTLE: Duration = Duration::from_millis(300);

/// Threads that may go back to the CPU they ran on before a trial have so long to wake there.
const BACK: Duration = Duration::from_millis(20);

/// What became of it.
#[derive(Default)]
pub struct Outcome {
    /// Settings that have been changed and are kept.
    pub applied: usize,
    /// The plan of auto that is kept.
    pub plan: Option<Plan>,
    /// Trials of auto.
    pub trials: Vec<Trial>,
    /// Settings that somebody else has changed during a trial: these are not as before it.
    pub others: usize,
}

/// One trial.
#[derive(Serialize)]
pub struct Trial {
    strategy: &'static str,
    verdict: &'static str,
    goodput_before: [u64; 2],
    goodput_after: u64,
    lost_before: [u64; 2],
    lost_after: u64,
    hottest_before: u64,
    hottest_after: u64,
}

impl Trial {
    fn of(trial: &place::Trial, kept: bool) -> Trial {
        let [a, b] = &trial.before;
        let hottest = |m: &place::Measured| m.hottest().map_or(0, |(_, share)| share);
        Trial {
            strategy: trial.plan.strategy.name(),
            verdict: match trial.verdict {
                Verdict::Better if kept => "better, kept",
                Verdict::Better => "better, but another one is better still, undone",
                Verdict::Same => "nothing gained, undone",
                Verdict::Worse => "worse, undone",
                Verdict::Unknown => "the load has changed, undone",
            },
            goodput_before: [a.goodput, b.goodput],
            goodput_after: trial.after.goodput,
            lost_before: [a.lost, b.lost],
            lost_after: trial.after.lost,
            hottest_before: hottest(b),
            hottest_after: hottest(&trial.after),
        }
    }
}

impl Outcome {
    /// True if the plan is in force: applied now or before.
    fn kept(&self, changes: bool) -> bool {
        changes && (self.applied > 0 || self.trials.is_empty())
    }

    /// The last lines of the report; `planned`: there is something to change; `guard` is what polls on the net CPUs of the plan.
    pub fn text(&self, args: &PlaceArgs, changes: bool, planned: bool, guard: Option<Vec<String>>) -> String {
        let mut text = String::new();
        for trial in &self.trials {
            text += &format!(
                "trial of {}: {}; goodput {} and {} before, {} after; lost {} and {}, {}; hottest CPU {} %, {} %\n",
                trial.strategy,
                trial.verdict,
                grouped(trial.goodput_before[0]),
                grouped(trial.goodput_before[1]),
                grouped(trial.goodput_after),
                grouped(trial.lost_before[0]),
                grouped(trial.lost_before[1]),
                grouped(trial.lost_after),
                (trial.hottest_before + 5) / 10,
                (trial.hottest_after + 5) / 10,
            );
        }
        text + &match (changes, self.applied, self.others) {
            (false, ..) if args.dry_run || !planned => "nothing was changed\n".to_owned(),
            (false, ..) => "nothing was changed; --apply makes the changes\n".to_owned(),
            (true, 0, 0) => "nothing is changed\n".to_owned(),
            (true, 0, others) => format!("{}; nothing else is changed\n", stay(others)),
            (true, n, _) => format!("{n} changed; put back with: sudo weir undo\n"),
        } + &guard.filter(|_| self.kept(changes)).map_or_else(String::new, next)
    }
}

/// What is left to do once the host is placed: the net CPUs are not polled yet.
pub fn next(guard: Vec<String>) -> String {
    format!(
        "the net CPUs are not polled yet; start the guard and let it run:\n    sudo {}\n\
         to end: stop the guard, then sudo weir undo\n",
        kern::shell::line(&guard)
    )
}

/// The plan's settings as the journal has them.
pub fn changes(plan: &Plan) -> Vec<Change> {
    let change = |set: &place::Set| {
        let setting = match set.what {
            What::Irq { irq } => Setting::IrqCpus { irq },
            What::Rps { ifindex, queue } => Setting::RpsCpus { ifindex, queue },
            What::Xps { ifindex, queue } => Setting::XpsCpus { ifindex, queue },
            What::Rss { ifindex } => Setting::RssTable { ifindex },
            What::Rfs { ifindex, queue } => Setting::RfsEntries { ifindex, queue },
            What::RfsTable => Setting::RfsTable,
            What::Task { tid, start } => Setting::TaskCpus { tid, start },
        };
        Change { setting, queue: None, new: value(&set.to), first: None }
    };
    plan.settings.iter().map(change).collect()
}

/// A value of the plan as the kernel has it.
pub fn value(value: &place::Value) -> Value {
    match value {
        place::Value::Cpus(cpus) => Value::Cpus(cpus.iter().copied().collect::<CpuSet>()),
        place::Value::Queues(table) => Value::Queues(table.clone()),
        place::Value::Entries(entries) => Value::Number(*entries),
    }
}

/// Refuses what would be taken back at once, or would take from a guard what it has set.
pub fn permitted(args: &PlaceArgs, looked: &Looked, plan: &Plan) -> anyhow::Result<()> {
    let balancer = looked.rivals.iter().find(|rival| rival.name == "irqbalance");
    let guarded = guarded(args, looked)?;
    match (place::barred(&plan.settings, balancer.is_some(), !guarded.is_empty()), balancer, guarded.first())
    {
        (Some(Barred::Rival), Some(rival), _) => Err(missing(format!(
            "irqbalance, pid {}, would move the interrupts back; stop it first, as systemctl stop irqbalance",
            rival.pid
        ))),
        (Some(Barred::Guard), _, Some(journal)) => Err(failed(format!(
            "{}: guarded by weir, pid {}, which has set some of this; stop it, place, and start it again",
            journal.name(),
            journal.owner().pid
        ))),
        _ => Ok(()),
    }
}

/// Journals of guards that live and have one of these interfaces.
pub fn guarded(args: &PlaceArgs, looked: &Looked) -> anyhow::Result<Vec<Journal>> {
    let journals =
        journal::paths(&args.journal_dir)?.into_iter().filter_map(|path| Journal::load(&path).ok());
    let of = |journal: &Journal| {
        let ours = looked.interfaces.iter().any(|interface| interface.ifindex == journal.ifindex());
        ours && journal.is_here() && journal.owner().alive()
    };
    Ok(journals.filter(of).collect())
}

/// The journal of the host, and whether it is a new one.
pub fn claim(args: &PlaceArgs, access: &mut Access) -> anyhow::Result<(Journal, bool)> {
    let journal = Journal::claim_host(&args.journal_dir, access).map_err(failed)?;
    let fresh = journal.is_empty();
    Ok((journal, fresh))
}

/// Carries the plan out: all of it, or nothing.
pub fn apply(args: &PlaceArgs, access: &mut Access, looked: &Looked, plan: &Plan) -> anyhow::Result<Outcome> {
    if plan.settings.is_empty() {
        return Ok(Outcome::default());
    }
    permitted(args, looked, plan)?;
    let (mut journal, fresh) = claim(args, access)?;
    carry_out(args, access, (&mut journal, fresh), plan)?;
    Ok(Outcome { applied: plan.settings.len(), ..Outcome::default() })
}

/// Makes the plan's changes, or puts back those that were made. What stood in a journal that is not fresh stays.
pub fn carry_out(
    args: &PlaceArgs,
    access: &mut Access,
    (journal, fresh): (&mut Journal, bool),
    plan: &Plan,
) -> anyhow::Result<()> {
    let Err(err) = change::make(access, journal, &changes(plan)) else { return Ok(()) };
    let others = if fresh { put_back(args, access, journal)? } else { 0 };
    Err(failed(format!("{err}; {}", as_before(others))))
}

/// What is said of the host once all is put back but for as many settings of others.
pub fn as_before(others: usize) -> String {
    match others {
        0 => "everything is as before".to_owned(),
        others => format!("everything else is as before; {}", stay(others)),
    }
}

/// Puts back all that is in the journal, says what is not as it was, and removes the journal. Returns how many settings
/// stay as somebody else has set them.
pub fn put_back(args: &PlaceArgs, access: &mut Access, journal: &Journal) -> anyhow::Result<usize> {
    let guards = kern::undo::guards(access, &args.journal_dir)?;
    let outcomes = journal.restore_beside(access, &guards, true);
    for outcome in &outcomes {
        match &outcome.fate {
            Fate::Left { found, old } => talk(&format!(
                "weir: {} {}: left at {found}, somebody else has set it; before weir it was {old}",
                outcome.target, outcome.setting
            )),
            Fate::Guarded { pid } => talk(&format!(
                "weir: {} {}: a guard of its interface, pid {pid}, has changed it; once that has ended run weir undo",
                outcome.target, outcome.setting
            )),
            Fate::Failed { why } => talk(&format!("weir: {} {}: {why}", outcome.target, outcome.setting)),
            _ => {}
        }
    }
    if outcomes.iter().all(journal::Outcome::settled) {
        journal.remove_from(access)?;
        return Ok(others(&outcomes));
    }
    Err(failed("not everything could be put back; run weir undo when the cause is gone"))
}

/// This host while auto tries its plans.
struct Live<'a> {
    args: &'a PlaceArgs,
    access: &'a mut Access,
    pids: &'a [u32],
    first: (&'a Looked, &'a Window),
    stop: &'a AtomicBool,
    /// As it was read last.
    now: Option<Looked>,
    /// Of the plan that is in force.
    journal: Option<Journal>,
    /// Where each thread ran before that plan.
    ran: Vec<(place::Set, usize)>,
    /// See [`Outcome::others`].
    others: usize,
}

/// Threads of the plan, and where they run now.
fn where_they_run(plan: &Plan) -> Vec<(place::Set, usize)> {
    let ran = |set: &place::Set| match set.what {
        What::Task { tid, .. } => kern::cpus::ran_on(tid as i32)
            .filter(|cpu| set.from.cpus().is_some_and(|cpus| cpus.contains(cpu))),
        _ => None,
    };
    plan.settings.iter().filter_map(|set| Some((set.clone(), ran(set)?))).collect()
}

/// Has the threads wake where they ran before the plan: the kernel leaves a thread where it is when it may run elsewhere again, and
/// several of a plan would stay on few CPUs. Those whose CPUs somebody else has set are his.
fn to_where_they_ran(access: &mut Access, journal: &mut Journal, ran: &[(place::Set, usize)]) {
    let back = |(set, cpu): &(place::Set, usize)| {
        let What::Task { tid, start } = set.what else { return None };
        let ours = Value::Cpus(kern::cpus::affinity(tid as i32).ok()?) == value(&set.to);
        let new = Value::Cpus(CpuSet::from_iter([*cpu]));
        ours.then_some(Change { setting: Setting::TaskCpus { tid, start }, queue: None, new, first: None })
    };
    let changes: Vec<Change> = ran.iter().filter_map(back).collect();
    // Where that fails they stay where they are, and all else is put back as ever.
    if changes.is_empty() || change::make(access, journal, &changes).is_err() {
        return;
    }
    let end = Instant::now() + BACK;
    let away = |(set, cpu): &(place::Set, usize)| match set.what {
        What::Task { tid, .. } => kern::cpus::ran_on(tid as i32).is_some_and(|on| on != *cpu),
        _ => false,
    };
    while ran.iter().any(away) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Live<'_> {
    fn looked(&self) -> &Looked {
        self.now.as_ref().unwrap_or(self.first.0)
    }

    fn sleep(&self, length: Duration) -> bool {
        crate::watch::sleep_until(Instant::now() + length, self.stop)
    }
}

impl place::Host for Live<'_> {
    type Error = anyhow::Error;

    fn layout(&mut self) -> anyhow::Result<place::Layout> {
        let looked = look::look(
            self.access,
            &self.args.journal_dir,
            &self.args.interfaces,
            self.pids,
            Some(self.first.1),
        )?;
        Ok(self.now.insert(looked).layout.clone())
    }

    fn permit(&mut self, plan: &Plan) -> anyhow::Result<()> {
        permitted(self.args, self.looked(), plan)?;
        not_placed(self.args)
    }

    fn measure(&mut self) -> anyhow::Result<place::Measured> {
        let window = look::measure(self.looked(), self.args.r#for, |length| self.sleep(length))?;
        Ok(window.rates.measured)
    }

    fn carry_out(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let (mut journal, fresh) = claim(self.args, self.access)?;
        if !fresh {
            return Err(failed(PLACED));
        }
        self.ran = where_they_run(plan);
        carry_out(self.args, self.access, (&mut journal, fresh), plan)?;
        talk(&format!(
            "weir: trying {}: {}",
            plan.strategy.name(),
            crate::out::count(plan.settings.len(), "setting")
        ));
        self.journal = Some(journal);
        if !self.sleep(SETTLE) {
            self.put_back()?;
            return Err(failed("stopped by a signal"));
        }
        Ok(())
    }

    fn put_back(&mut self) -> anyhow::Result<()> {
        if let Some(mut journal) = self.journal.take() {
            to_where_they_ran(self.access, &mut journal, &self.ran);
            self.others += put_back(self.args, self.access, &journal)?;
        }
        Ok(())
    }
}

const PLACED: &str = "this host is placed already; run sudo weir undo, then try again";

/// Refuses a trial on a host of which settings stand in a journal: measured with them, no candidate can be compared with what was
/// before.
fn not_placed(args: &PlaceArgs) -> anyhow::Result<()> {
    match look::placed(&args.journal_dir).filter(|journal| !journal.is_empty()) {
        Some(journal) if journal.owner().alive() => {
            Err(failed(ClaimError::Placing { pid: journal.owner().pid }))
        }
        Some(_) => Err(failed(PLACED)),
        None => Ok(()),
    }
}

/// Tries one plan after the other and keeps the one that helps most.
pub fn trial(
    args: &PlaceArgs,
    access: &mut Access,
    pids: &[u32],
    requests: &[Request],
    first: (&Looked, &Window),
    stop: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let mut live =
        Live { args, access, pids, first, stop, now: None, journal: None, ran: Vec::new(), others: 0 };
    let course = place::auto(&mut live, requests, place::plan)?;
    let plan = course.kept().map(|trial| trial.plan.clone());
    let trials = course.trials.iter().enumerate().map(|(n, trial)| Trial::of(trial, course.kept == Some(n)));
    Ok(Outcome {
        applied: plan.as_ref().map_or(0, |plan| plan.settings.len()),
        plan,
        trials: trials.collect(),
        others: live.others,
    })
}

/// `task 4711 udp-sink affinity 0-1 -> 1`, for the log of `--watch`.
pub fn shown(looked: &Looked, set: &place::Set) -> String {
    let (target, label) = name(looked, set.what);
    format!("{target} {label} {} -> {}", text::value(&set.from), text::value(&set.to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn the_last_line_counts_what_is_somebody_elses() {
        assert_eq!(as_before(0), "everything is as before");
        assert_eq!(as_before(1), "everything else is as before; 1 setting stays as somebody else has set it");
        let Command::Place(args) = Cli::try_parse_from(["weir", "place", "eth0", "--apply"]).unwrap().command
        else {
            panic!("not place")
        };
        let text = |others| Outcome { others, ..Outcome::default() }.text(&args, true, true, None);
        assert_eq!(text(0), "nothing is changed\n");
        assert_eq!(text(2), "2 settings stay as somebody else has set them; nothing else is changed\n");
    }

    /// It wakes 1,000 times a second, and where it ran last is where it wakes: one of five tries is enough, since the kernel may
    /// move it at any moment. Without going back it wakes on the CPU of the plan.
    #[test]
    fn an_undone_plan_leaves_threads_where_they_ran_root() {
        const NAME: &str = "an_undone_plan_leaves_threads_where_they_ran_root";
        if !testkit::root_or_skip(NAME) || !testkit::two_cpus_or_skip(NAME) {
            return;
        }
        let all = kern::cpus::affinity(0).unwrap();
        let cpus: Vec<usize> = all.iter().take(2).collect();
        let &[first, second] = cpus.as_slice() else { panic!("{all} are two CPUs") };
        let (stop, dir) = (Arc::new(AtomicBool::new(false)), tempfile::tempdir().unwrap());
        let (ends, (tell, told)) = (Arc::clone(&stop), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            while !ends.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let tid = told.recv().unwrap();
        let start = kern::proc::start_time(tid as u32).unwrap();
        let mut access = Access::for_current_netns().unwrap();
        let wakes_on = |cpu| {
            let end = Instant::now() + Duration::from_secs(10);
            while kern::cpus::ran_on(tid) != Some(cpu) {
                assert!(Instant::now() < end, "it does not wake");
                std::thread::yield_now();
            }
        };
        let back = (0..5).any(|_| {
            // Where it runs before the plan.
            kern::cpus::set_affinity(tid, &CpuSet::from_iter([first])).unwrap();
            wakes_on(first);
            kern::cpus::set_affinity(tid, &all).unwrap();
            let what = What::Task { tid: tid as u32, start };
            let from = all.iter().collect::<place::Cpus>().into();
            let set = place::Set { what, from, to: place::Cpus::from([second]).into() };
            let mut journal = Journal::claim_host(dir.path(), &mut access).unwrap();
            let to = Value::Cpus(CpuSet::from_iter([second]));
            let setting = Setting::TaskCpus { tid: tid as u32, start };
            let change = Change { setting, queue: None, new: to, first: None };
            change::make(&mut access, &mut journal, &[change]).unwrap();
            wakes_on(second);
            to_where_they_ran(&mut access, &mut journal, &[(set, first)]);
            let ran = kern::cpus::ran_on(tid);
            let outcomes = journal.restore(&mut access);
            assert!(outcomes.iter().all(journal::Outcome::settled), "{outcomes:?}");
            journal.remove_from(&mut access).unwrap();
            assert_eq!(kern::cpus::affinity(tid).unwrap(), all);
            ran == Some(first)
        });
        stop.store(true, Relaxed);
        thread.join().unwrap();
        assert!(back);
    }
}
