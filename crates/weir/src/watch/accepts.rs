//! What running `weir accept`s tell of the listeners of the network namespace that is watched: they are asked once per interval.

use super::table::rate;
use crate::out::shown;
use crate::status;
use see::Snapshot;
use see::accept::{ACCEPTS_MAX, Accept, GROUPS_MAX, Group, Worker};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for the answers of all of them together, per interval.
const PATIENCE: Duration = Duration::from_millis(50);
/// Workers of a group that [`sentence`] names, the worst ones.
const WORKERS: usize = 4;

/// Asks them.
pub struct Accepts {
    dir: PathBuf,
    /// Inode of the namespace.
    netns: u32,
    /// Last answers, by process id; that of one that was too slow stays.
    last: BTreeMap<u32, Accept>,
}

impl Accepts {
    /// Those whose sockets are in `dir`. They are asked at once, so that the first interval has counts.
    pub fn open(dir: PathBuf) -> Accepts {
        let netns = kern::netns::current_inode().ok().and_then(|inode| u32::try_from(inode).ok());
        let mut accepts = Accepts { dir, netns: netns.unwrap_or(0), last: BTreeMap::new() };
        accepts.add(&mut Snapshot::default());
        accepts
    }

    /// Adds what they tell. Takes [`PATIENCE`] at most; one that is slower is left out and counted.
    pub fn add(&mut self, s: &mut Snapshot) {
        let until = Instant::now() + PATIENCE;
        // Where sockets may not be read, the guards' say so.
        let Ok(sockets) = status::sockets(&self.dir, status::ACCEPT) else { return };
        let (mut now, mut slow) = (BTreeMap::new(), 0);
        for (pid, path) in sockets.into_iter().take(ACCEPTS_MAX) {
            let left = until.saturating_duration_since(Instant::now());
            let before = self.last.remove(&pid);
            match status::ask(&path, left).map(|text| serde_json::from_str::<Accept>(&text)) {
                Ok(Ok(mut told)) => {
                    told.groups.retain(|group| group.netns == self.netns);
                    told.groups.truncate(GROUPS_MAX);
                    let groups = told.groups.iter().map(|group| since(before.as_ref(), group)).collect();
                    if !told.groups.is_empty() {
                        s.accepts.push(Accept { pid: told.pid, groups });
                    }
                    now.insert(pid, told);
                }
                // A dead one, and one of another user.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::PermissionDenied
                    ) => {}
                Ok(Err(_)) | Err(_) => {
                    slow += 1;
                    now.extend(before.map(|told| (pid, told)));
                }
            }
        }
        if slow > 0 {
            *s.skipped.entry("accepts".into()).or_default() += slow;
        }
        self.last = now;
    }
}

/// A group as it is now, with what was counted since `before`.
fn since(before: Option<&Accept>, now: &Group) -> Group {
    let then =
        before.and_then(|b| b.groups.iter().find(|g| (&g.address, g.netns) == (&now.address, now.netns)));
    let worker = |w: &Worker| {
        let then = then.and_then(|group| group.workers.iter().find(|t| t.tid.is_some() && t.tid == w.tid));
        // Counts begin again where its listeners have changed.
        let moved = |of: fn(&Worker) -> Option<u64>| Some(of(w)?.saturating_sub(of(then?)?));
        Worker { placed: moved(|w| w.placed), affine: moved(|w| w.affine), ..w.clone() }
    };
    let chosen = then.into_iter().flat_map(|then| {
        let at = |why: &String| then.chosen.get(why).copied().unwrap_or(0);
        now.chosen.iter().map(move |(why, n)| (why.clone(), n.saturating_sub(at(why))))
    });
    Group { chosen: chosen.collect(), workers: now.workers.iter().map(worker).collect(), ..now.clone() }
}

/// A group in a sentence: `127.0.0.1:8080 nginx by pid 812: 1.2 k/s placed, 99 % affine; worker 4711 on CPU 0: 0 of 511 wait; ...`.
pub fn sentence(accept: &Accept, group: &Group, s: &Snapshot) -> String {
    let (placed, affine) = group.placed();
    let name = format!("{} {} by pid {}", shown(&group.address), shown(&group.server), accept.pid);
    let mut parts = vec![match (group.there, placed) {
        (false, _) => "its listeners are gone".to_owned(),
        (true, 0) => "no connection".to_owned(),
        (true, _) => {
            format!("{} k/s placed, {:.0} % affine", rate(placed, s), 100.0 * affine as f64 / placed as f64)
        }
    }];
    let moved: Vec<String> = ["stalled", "away", "late", "busy"]
        .iter()
        .filter_map(|why| Some((why, group.chosen.get(*why).copied().filter(|n| *n > 0)?)))
        .map(|(why, n)| format!("{n} past {why}"))
        .collect();
    parts.extend((!moved.is_empty()).then(|| moved.join(", ")));
    parts.extend(group.worst_first().into_iter().take(WORKERS).map(|worker| group.describe(worker)));
    let more = group.workers.len().saturating_sub(WORKERS);
    parts.extend((more > 0).then(|| format!("{more} more")));
    format!("{name}: {}", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    fn told(netns: u32, n: u64) -> Accept {
        let worker = |tid, core, stalled: bool| Worker {
            tid: Some(tid),
            core: Some(core),
            waiting: 3,
            limit: 511,
            oldest_ms: stalled.then_some(21.0),
            stalled,
            does: "sleeps".into(),
            placed: Some(500 * n),
            affine: Some(495 * n),
        };
        let group = |netns| Group {
            address: "127.0.0.1:8080".into(),
            netns,
            server: "nginx".into(),
            there: true,
            chosen: [("own".to_owned(), 990 * n), ("away".to_owned(), 10 * n)].into(),
            workers: vec![worker(811, 0, false), worker(812, 1, true)],
        };
        Accept { pid: 7, groups: vec![group(netns), group(netns + 1)] }
    }

    /// One that answers these, one after the other, and then accepts no more.
    fn accept(
        dir: &std::path::Path,
        pid: u32,
        answers: Vec<Accept>,
    ) -> std::thread::JoinHandle<UnixListener> {
        let listener = UnixListener::bind(dir.join(format!("accept-{pid}.sock"))).unwrap();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&serde_json::to_vec(&answer).unwrap()).unwrap();
            }
            listener
        })
    }

    /// Counts and what is asked for, no times: an answer that comes later than allowed is the second case.
    #[test]
    fn groups_of_this_namespace_are_told_with_the_counts_of_the_interval() {
        let dir = tempfile::tempdir().unwrap();
        let netns = u32::try_from(kern::netns::current_inode().unwrap()).unwrap();
        let first = since(None, &told(netns, 1).groups[0]);
        assert_eq!((first.workers[0].placed, first.chosen.len(), first.placed()), (None, 0, (0, 0)));
        let moved = since(Some(&told(netns, 1)), &told(netns, 3).groups[0]);
        assert_eq!(
            (moved.workers[1].placed, moved.workers[1].affine, moved.chosen["away"]),
            (Some(1000), Some(990), 20)
        );
        let other = since(Some(&told(netns + 7, 1)), &told(netns, 3).groups[0]);
        assert_eq!(other.workers[0].placed, None);
        let thread = accept(dir.path(), 7, vec![told(netns, 1); 1]);
        let mut accepts = Accepts::open(dir.path().to_owned());
        let listener = thread.join().unwrap();
        assert_eq!(accepts.last.len(), 1);
        // It does not answer: left out, counted, and what it said stays.
        let mut s = Snapshot::default();
        accepts.add(&mut s);
        assert_eq!((s.accepts.len(), s.skipped.get("accepts"), accepts.last.len()), (0, Some(&1), 1));
        // It has ended.
        drop(listener);
        let mut s = Snapshot::default();
        accepts.add(&mut s);
        assert_eq!((s.accepts.len(), s.skipped.get("accepts"), accepts.last.len()), (0, None, 0));
    }

    #[test]
    fn a_group_in_a_sentence() {
        let s = Snapshot { interval_s: 2.0, ..Snapshot::default() };
        let (then, now) = (told(1, 1), told(1, 3));
        let group = since(Some(&then), &now.groups[0]);
        assert_eq!(
            sentence(&now, &group, &s),
            "127.0.0.1:8080 nginx by pid 7: 1.0 k/s placed, 99 % affine; 20 past away; worker 812 on CPU 1: 3 of 511 wait, the \
             oldest for 21.0 ms, stalled, 99 % affine; worker 811 on CPU 0: 3 of 511 wait, 99 % affine"
        );
        let gone = Group { there: false, ..since(None, &now.groups[0]) };
        assert!(
            sentence(&now, &gone, &s)
                .starts_with("127.0.0.1:8080 nginx by pid 7: its listeners are gone; worker 812")
        );
    }
}
