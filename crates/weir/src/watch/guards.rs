//! What running guards tell of the interfaces that are watched: they are asked once per interval, as `weir status` does.

use super::table::rate;
use crate::out::{listed, shown};
use crate::status::{self, Poller, Status};
use see::Snapshot;
use see::guard::{self, GUARDS_MAX, Guard, PARTS_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for the answers of all guards together, per interval.
const PATIENCE: Duration = Duration::from_millis(50);
/// What is missing where guards may not be asked.
const ROOT_ONLY: &str = "what guards do: their directory is root's; run weir as root";

/// Asks the guards of a network namespace.
pub struct Guards {
    dir: PathBuf,
    /// Inode of the namespace; a guard of another one may have interfaces of the same names.
    netns: u64,
    /// Last answers, by process id. That of a guard that was too slow stays: its counts then are of a longer time.
    last: BTreeMap<u32, Status>,
}

impl Guards {
    /// Those of the caller's namespace whose sockets are in `dir`. They are asked at once, so that the first interval has
    /// counts.
    pub fn open(dir: PathBuf) -> Guards {
        let netns = kern::netns::current_inode().unwrap_or(0);
        let mut guards = Guards { dir, netns, last: BTreeMap::new() };
        guards.add(&mut Snapshot::default());
        guards
    }

    /// Adds to a snapshot what they tell of its interfaces. Takes [`PATIENCE`] at most; a guard that is slower is left out and
    /// counted.
    pub fn add(&mut self, s: &mut Snapshot) {
        let until = Instant::now() + PATIENCE;
        let Ok(sockets) = status::sockets(&self.dir, status::GUARD) else {
            s.guards_hidden = true;
            s.missing.push(ROOT_ONLY.into());
            return;
        };
        // A keeper needs up to 0.2 s, so one interval alone says little.
        s.left_changed = kern::undo::left(&self.dir).ok().map(|n| n as u64);
        let mut now = BTreeMap::new();
        let (mut slow, mut denied) = (0, false);
        for (pid, path) in sockets.into_iter().take(GUARDS_MAX) {
            let left = until.saturating_duration_since(Instant::now());
            let answer = status::ask(&path, left).map(|text| serde_json::from_str::<Status>(&text));
            let before = self.last.remove(&pid);
            match answer {
                Ok(Ok(status)) if status.netns == self.netns => {
                    let told = told(before.as_ref(), &status, s);
                    s.guards.extend(told);
                    now.insert(pid, status);
                }
                // Of another namespace.
                Ok(Ok(_)) => {}
                // A dead one: `weir status` says what to do.
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {}
                Err(e) if e.kind() == ErrorKind::PermissionDenied => denied = true,
                Ok(Err(_)) | Err(_) => {
                    slow += 1;
                    now.extend(before.map(|status| (pid, status)));
                }
            }
        }
        let queues = s.interfaces.iter_mut().flat_map(|i| &mut i.queues);
        let modes: BTreeMap<&str, &str> =
            s.guards.iter().flat_map(|g| &g.sources).map(|source| (&*source.name, &*source.mode)).collect();
        for queue in queues {
            queue.mode = modes.get(&*queue.name).map_or_else(String::new, ToString::to_string);
        }
        if denied {
            s.guards_hidden = true;
            s.missing.push(ROOT_ONLY.into());
        }
        if slow > 0 {
            *s.skipped.entry("guards".into()).or_default() += slow;
        }
        // An interface has one program at a time. One that is slow has the program that it had; one that let go of it within the
        // interval has shed before.
        let gates = now.values().flat_map(|status| &status.interfaces);
        let gates = gates.filter(|i| i.gate || see::guard::shed_on(&s.guards, &i.name) > 0);
        let gates: BTreeSet<String> = gates.map(|i| i.name.clone()).collect();
        see::ledger::shed(s, &gates.iter().map(String::as_str).collect());
        self.last = now;
    }
}

/// `; weir sheds 12.3 k/s` after what is said about losses; nothing where nothing is shed.
pub fn shed_beside(s: &Snapshot) -> String {
    match s.ledger.shed() {
        0 => String::new(),
        n => format!("; weir sheds {} k/s", rate(n, s)),
    }
}

/// CPUs of a guard that [`sentence`] names, those that use most of their budget.
const CPUS: usize = 4;

/// A guard in a sentence: `pid 812: poll eth0/0; CPU 1 uses 43 % of its budget, 12 pauses; shed 12.3 k/s`.
pub fn sentence(guard: &Guard, s: &Snapshot) -> String {
    let mut by_mode: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in &guard.sources {
        by_mode.entry(&source.mode).or_default().push(&source.name);
    }
    let mut parts: Vec<String> =
        by_mode.iter().map(|(mode, names)| format!("{} {}", shown(mode), listed(names))).collect();
    // What is polled comes first.
    parts.sort_by_key(|part| !part.starts_with("poll"));
    let mut cpus: Vec<&guard::Poller> = guard.cpus.iter().filter(|c| c.budget_used.is_some()).collect();
    cpus.sort_by(|a, b| b.budget_used.unwrap_or(0.0).total_cmp(&a.budget_used.unwrap_or(0.0)));
    for cpu in cpus.iter().take(CPUS) {
        let times = |cause: &str, one: &str, many: &str| match cpu.sleeps.get(cause) {
            Some(1) => format!(", 1 {one}"),
            Some(n) if *n > 1 => format!(", {n} {many}"),
            _ => String::new(),
        };
        let used = cpu.budget_used.unwrap_or(0.0) * 100.0;
        let (pauses, waits) =
            (times("feedback", "pause", "pauses"), times("budget", "wait for budget", "waits for budget"));
        let role = if cpu.role.is_empty() { String::new() } else { format!("{} ", shown(&cpu.role)) };
        parts.push(format!("{role}CPU {} uses {used:.0} % of its budget{waits}{pauses}", cpu.cpu));
    }
    let shed: u64 = guard.sources.iter().map(|source| source.shed).sum();
    let nobody = match guard.sources.iter().map(|source| source.nobody).sum() {
        0 => String::new(),
        n => format!(", {} of it for nobody", rate(n, s)),
    };
    parts.extend((shed > 0).then(|| format!("shed {} k/s{nobody}", rate(shed, s))));
    let foreign: u64 = guard.sources.iter().filter_map(|source| source.foreign_polls).sum();
    parts.extend((foreign > 0).then(|| format!("{foreign} foreign polls")));
    format!("pid {}: {}", guard.pid, parts.join("; "))
}

/// What a guard did between two answers, as far as the interfaces of `s` go; `None` if it guards none of them.
fn told(before: Option<&Status>, now: &Status, s: &Snapshot) -> Option<Guard> {
    let watched = |name: &str| s.interfaces.iter().any(|i| i.name == name);
    let sources = now.interfaces.iter().filter(|i| watched(&i.name)).flat_map(|i| &i.sources);
    let sources: Vec<guard::Source> = sources.take(PARTS_MAX).map(|n| source(before, n)).collect();
    let poller = |p: &Poller| poller(before, now, p);
    let guard = Guard {
        pid: now.pid,
        sources,
        cpus: now.pollers.iter().take(PARTS_MAX).map(poller).collect(),
        shed_for: before.map(|_| shed_for(&now.consumers)).unwrap_or_default(),
        missing: now.missing.clone(),
    };
    now.interfaces.iter().any(|i| watched(&i.name)).then_some(guard)
}

/// Consumers for which most was shed since the guard's last answer. Only their order is told: somebody else may have asked since.
fn shed_for(consumers: &[status::Consumer]) -> Vec<String> {
    let mut shed: Vec<_> = consumers.iter().filter(|c| c.shed.is_some_and(|n| n > 0)).collect();
    shed.sort_by_key(|c| std::cmp::Reverse(c.shed));
    let name = |c: &&status::Consumer| [c.process.as_str(), &c.socket].join(" ").trim().to_owned();
    shed.iter().map(name).take(guard::SHED_FOR_MAX).collect()
}

fn moved(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let since =
        |(name, n): (&String, &u64)| (name.clone(), n.saturating_sub(before.get(name).copied().unwrap_or(0)));
    now.iter().map(since).collect()
}

fn source(before: Option<&Status>, now: &status::Source) -> guard::Source {
    let mut known = before.into_iter().flat_map(|s| &s.interfaces).flat_map(|i| &i.sources);
    let before = known.find(|s| s.name == now.name);
    let mut source = guard::Source {
        name: now.name.clone(),
        cpu: now.cpu,
        mode: now.mode.clone(),
        reason: now.reason.clone(),
        ..guard::Source::default()
    };
    let Some((before, (then, total))) =
        before.and_then(|b| Some((b, b.total.as_ref().zip(now.total.as_ref())?)))
    else {
        return source;
    };
    source.packets = Some(total.packets.saturating_sub(then.packets));
    source.turns = Some(total.turns.saturating_sub(then.turns));
    // Polls of the interrupt mode are nobody else's.
    let polled = before.mode == "poll" && now.mode == "poll" && before.mode_switches == now.mode_switches;
    source.foreign_polls = polled.then(|| total.other_polls.saturating_sub(then.other_polls));
    source.classes = moved(&then.classes, &total.classes);
    source.shed = total.shed.saturating_sub(then.shed);
    source.nobody = total.nobody.saturating_sub(then.nobody);
    source.over_share = total.over_share.saturating_sub(then.over_share);
    source.over_bound = total.over_bound.saturating_sub(then.over_bound);
    source
}

/// A count of a poller.
type Of = fn(&Poller) -> u64;

fn poller(before: Option<&Status>, now: &Status, poller: &Poller) -> guard::Poller {
    let reserve = now.cpus.iter().find(|c| c.cpu == poller.cpu).map_or(0.0, |c| c.reserve);
    let mut made =
        guard::Poller { cpu: poller.cpu, polling: poller.polling, reserve, ..guard::Poller::default() };
    made.role.clone_from(&poller.role);
    let known = before.and_then(|s| Some((s, s.pollers.iter().find(|p| p.cpu == poller.cpu)?)));
    let Some((before, then)) = known.filter(|(s, _)| now.time_ns > s.time_ns) else { return made };
    let time = (now.time_ns - before.time_ns) as f64 * (1.0 - reserve);
    let used =
        poller.busy_ns.saturating_sub(then.busy_ns) + poller.softirq_ns.saturating_sub(then.softirq_ns);
    made.budget_used = (time > 0.0).then(|| used as f64 / time);
    let sleeps: [(&str, Of); 3] =
        [("ring", |p| p.naps), ("budget", |p| p.budget_sleeps), ("feedback", |p| p.feedback_sleeps)];
    let since = |(name, of): (&str, Of)| (name.to_owned(), of(poller).saturating_sub(of(then)));
    made.sleeps = sleeps.into_iter().map(since).collect();
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Cpu, Interface, Source, SourceTotal};
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    fn status(time_s: u64, mode: &str, n: u64) -> Status {
        let source = Source {
            name: "eth0/1".into(),
            cpu: 1,
            mode: mode.into(),
            reason: "full polls".into(),
            total: Some(SourceTotal {
                packets: 1000 * n,
                turns: 100 * n,
                other_polls: 10 * n,
                classes: [("normal".to_owned(), 900 * n)].into(),
                shed: 300 * n,
                nobody: 100 * n,
                syns: 0,
                over_share: 0,
                over_bound: 0,
            }),
            ..Source::default()
        };
        let ns = n * 100_000_000;
        Status {
            pid: 7,
            time_ns: time_s * 1_000_000_000,
            interfaces: vec![
                Interface { name: "eth0".into(), sources: vec![source], ..Interface::default() },
                Interface { name: "eth1".into(), sources: vec![Source::default()], ..Interface::default() },
            ],
            cpus: vec![Cpu { cpu: 1, reserve: 0.2, ..Cpu::default() }],
            pollers: vec![Poller {
                cpu: 1,
                polling: 1,
                busy_ns: 3 * ns,
                softirq_ns: ns,
                naps: n,
                feedback_sleeps: 5 * n,
                ..Poller::default()
            }],
            ..Status::default()
        }
    }

    fn watched(name: &str) -> Snapshot {
        let queue = |n| see::model::Queue { name: format!("{name}/{n}"), ..Default::default() };
        let queues = vec![queue(0), queue(1)];
        let interface = see::model::Interface { name: name.into(), queues, ..Default::default() };
        Snapshot { interfaces: vec![interface], ..Snapshot::default() }
    }

    #[test]
    fn counts_are_of_the_time_between_two_answers() {
        let guard = told(Some(&status(10, "poll", 1)), &status(12, "poll", 3), &watched("eth0")).unwrap();
        assert_eq!((guard.pid, guard.sources.len()), (7, 1));
        let source = &guard.sources[0];
        assert_eq!((&*source.name, &*source.mode, &*source.reason), ("eth0/1", "poll", "full polls"));
        assert_eq!((source.packets, source.turns, source.foreign_polls), (Some(2000), Some(200), Some(20)));
        assert_eq!((source.classes["normal"], source.shed), (1800, 600));
        // 0.8 s of 2 s, of which four fifths are the budget.
        let cpu = &guard.cpus[0];
        assert!((cpu.budget_used.unwrap() - 0.5).abs() < 1e-9, "{cpu:?}");
        assert_eq!((cpu.sleeps["feedback"], cpu.sleeps["budget"], cpu.sleeps["ring"]), (10, 0, 2));
    }

    #[test]
    fn a_guard_in_a_sentence() {
        let (s, now) = (Snapshot { interval_s: 2.0, ..watched("eth0") }, status(12, "poll", 3));
        let mut guard = told(Some(&status(10, "poll", 1)), &now, &s).unwrap();
        guard.sources.push(guard::Source {
            name: "eth0/2".into(),
            mode: "interrupt".into(),
            ..Default::default()
        });
        assert_eq!(
            sentence(&guard, &s),
            "pid 7: poll eth0/1; interrupt eth0/2; CPU 1 uses 50 % of its budget, 10 pauses; shed 0.3 k/s, \
             0.1 of it for nobody; 20 foreign polls"
        );
        let first = told(None, &now, &s).unwrap();
        assert_eq!(sentence(&first, &s), "pid 7: poll eth0/1");
        // In mode net the CPU's role is told; the one that uses most comes first.
        let mut now = now;
        now.pollers[0].role = "net".into();
        let text = sentence(&told(Some(&status(10, "poll", 1)), &now, &s).unwrap(), &s);
        assert!(text.contains("; net CPU 1 uses 50 % of its budget"), "{text}");
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let first = told(None, &status(12, "poll", 3), &watched("eth0")).unwrap();
        assert_eq!((first.sources[0].packets, first.cpus[0].budget_used), (None, None));
        assert!(first.cpus[0].sleeps.is_empty());
        // Of a guard that tells no sums.
        let mut old = status(12, "poll", 3);
        old.interfaces[0].sources[0].total = None;
        let made = told(Some(&status(10, "poll", 1)), &old, &watched("eth0")).unwrap();
        assert_eq!(made.sources[0].packets, None);
        // It was not polled all the time: polls of the interrupt mode are none of somebody else.
        let taken =
            told(Some(&status(10, "interrupt", 1)), &status(12, "poll", 3), &watched("eth0")).unwrap();
        assert_eq!((taken.sources[0].foreign_polls, taken.sources[0].turns), (None, Some(200)));
    }

    #[test]
    fn guards_of_other_interfaces_are_left_out() {
        assert_eq!(told(None, &status(1, "poll", 1), &watched("eth2")), None);
    }

    #[test]
    fn counts_that_begin_again_are_zero() {
        let made = told(Some(&status(10, "poll", 3)), &status(12, "poll", 1), &watched("eth0")).unwrap();
        assert_eq!((made.sources[0].packets, made.cpus[0].budget_used), (Some(0), Some(0.0)));
    }

    /// A guard that answers `statuses` one after the other, and then accepts no more.
    fn guard(
        dir: &std::path::Path,
        pid: u32,
        statuses: Vec<Status>,
    ) -> std::thread::JoinHandle<UnixListener> {
        let listener = UnixListener::bind(dir.join(format!("guard-{pid}.sock"))).unwrap();
        std::thread::spawn(move || {
            for status in statuses {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&serde_json::to_vec(&status).unwrap()).unwrap();
            }
            listener
        })
    }

    #[test]
    fn a_guard_that_does_not_answer_is_counted_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let netns = kern::netns::current_inode().unwrap();
        let here = |time_s, n| Status { netns, ..status(time_s, "poll", n) };
        let elsewhere = Status { netns: netns + 1, pid: 8, ..status(1, "poll", 1) };
        let listening = [
            guard(dir.path(), 7, vec![here(10, 1), here(12, 3)]),
            guard(dir.path(), 8, vec![elsewhere.clone(), elsewhere]),
        ];
        let mut guards = Guards::open(dir.path().to_owned());
        let mut s = watched("eth0");
        guards.add(&mut s);
        assert_eq!((s.guards.len(), s.guards[0].sources[0].packets), (1, Some(2000)));
        assert_eq!((s.skipped.len(), s.missing.len()), (0, 0));
        let modes: Vec<&str> = s.interfaces[0].queues.iter().map(|q| &*q.mode).collect();
        assert_eq!(modes, ["", "poll"]);
        // Its sockets are there, and nobody answers.
        let _open = listening.map(|thread| thread.join().unwrap());
        let begin = Instant::now();
        let mut s = watched("eth0");
        guards.add(&mut s);
        assert!(begin.elapsed() < 5 * PATIENCE, "{:?}", begin.elapsed());
        assert_eq!((s.guards.len(), s.skipped.get("guards")), (0, Some(&2)));
    }

    /// Without the rights over files that root has, as the thread that it runs in.
    fn unprivileged<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let nobody = || {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
            work()
        };
        std::thread::spawn(nobody).join().unwrap()
    }

    #[test]
    fn where_journals_may_not_be_read_nobody_knows_what_is_left() {
        use std::fs::Permissions;
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        std::fs::write(path.join("1-2.json"), "{}").unwrap();
        std::fs::set_permissions(path.join("1-2.json"), Permissions::from_mode(0o000)).unwrap();
        let ask = |path: std::path::PathBuf| {
            unprivileged(move || {
                let mut s = watched("eth0");
                Guards::open(path).add(&mut s);
                (s.left_changed, s.guards_hidden)
            })
        };
        assert_eq!(ask(path.clone()).0, None);
        // A directory that may not be read hides the guards too.
        std::fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
        assert_eq!(ask(path.clone()), (None, true));
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn what_a_guard_sheds_is_in_the_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let netns = kern::netns::current_inode().unwrap();
        let here = |time_s, n| Status { netns, ..status(time_s, "poll", n) };
        let listening = guard(dir.path(), 7, vec![here(10, 1), here(12, 3)]);
        let mut guards = Guards::open(dir.path().to_owned());
        let mut s = watched("eth0");
        (s.ledger.offered, s.ledger.unaccounted) = (700, 700);
        guards.add(&mut s);
        listening.join().unwrap();
        assert_eq!((s.ledger.drops["shed"], s.ledger.unaccounted), (600, 100));
    }

    #[test]
    fn no_guard_is_nothing_to_say() {
        let dir = tempfile::tempdir().unwrap();
        let mut s = watched("eth0");
        Guards::open(dir.path().join("none")).add(&mut s);
        assert_eq!(s, Snapshot { left_changed: Some(0), ..watched("eth0") });
    }
}
