//! Attached choices, and what becomes of them while servers reload, restart, crash and change their workers.

use super::lines::Lines;
use super::not_attached;
use super::targets::{Targets, in_the_way, obstacle_text, server};
use kern::accept::{Choice, FREED, Finder, Group, Owner, Where, detach, pidfd};
use kern::error::Result;
use kern::raw::monotonic_ns;
use policy::Nanos;
use policy::accept::groups::{self, Found, Known, Next, Room, Seat, are_same, is_forgotten};
use policy::accept::obstacle::Obstacle;
use policy::accept::pace::{LEASE, Pace};
use policy::accept::queues::Choice as Rules;
use policy::accept::watch::Watch;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// One group that is attached to.
pub struct Attached {
    /// As it was filled.
    pub group: Group,
    /// What was attached.
    pub choice: Choice,
    /// Since when its server is not there.
    gone: Option<Nanos>,
    watch: Watch,
    /// Readable when a worker has ended; descriptors of processes, never of sockets.
    workers: Vec<OwnedFd>,
}

impl Attached {
    fn new(group: Group, choice: Choice) -> Attached {
        Attached { workers: workers(&group), group, choice, gone: None, watch: Watch::default() }
    }

    /// It is as it was, but for workers that are not pinned and have moved.
    fn keep(&mut self, group: Group) {
        // A worker that has ended makes no more events.
        if ended(&self.workers) {
            self.workers = workers(&group);
        }
        self.group = in_order(group, &self.group);
        self.choice.seat(&self.group);
    }

    /// Its server is there.
    pub fn there(&self) -> bool {
        self.gone.is_none()
    }
}

/// See the module.
pub struct Following {
    targets: Targets,
    finder: Finder,
    rules: Rules,
    /// Who waits at a closed listener is moved.
    pub moves: bool,
    /// Groups, those whose server has just gone too.
    pub all: Vec<Attached>,
    pace: Pace,
    lines: Lines,
}

fn lease() -> u64 {
    monotonic_ns() + LEASE
}

fn rules_of(rules: &Rules, group: &Group) -> Rules {
    if group.udp { rules.for_datagrams() } else { *rules }
}

/// Fills and attaches; takes off what a killed weir has left, whose array keeps the listeners for a while: `patience`.
fn attach(choice: &mut Choice, group: &Group, patience: Duration) -> Result<()> {
    if group.program != 0 && group.program != choice.id() {
        detach(group)?;
    }
    choice.fill(group, patience)?;
    choice.renew(lease());
    if group.program == choice.id() { Ok(()) } else { choice.attach(group) }
}

fn workers(group: &Group) -> Vec<OwnedFd> {
    let pids: BTreeSet<u32> = group.members.iter().flat_map(|m| &m.holders).map(|(pid, _)| *pid).collect();
    pids.into_iter().filter_map(|pid| pidfd(pid).ok()).collect()
}

/// What of a group decides where connections go.
fn seats(group: &Group) -> impl Iterator<Item = Seat> {
    group.members.iter().map(|m| {
        let owner = m.owner.as_ref();
        let pinned = owner.filter(|o| o.known == Where::Pinned).and_then(|o| o.core);
        Seat { listener: m.inode, worker: owner.map(|o| (o.pid, o.tid)), pinned }
    })
}

/// The same members in the order of `filled`, which is that of their queues.
fn in_order(mut group: Group, filled: &Group) -> Group {
    let places: BTreeMap<u64, usize> =
        filled.members.iter().enumerate().map(|(place, m)| (m.inode, place)).collect();
    group.members.sort_by_key(|m| places.get(&m.inode).copied());
    group
}

/// The kernel's group has `seen` members, which are not those that are known.
fn unseen(group: &Group, seen: u32) -> String {
    let (name, known) = (group.name(), group.members.len() as u32);
    if seen > known {
        return format!(
            "weir: {name}: {} of {seen} members cannot be seen: the kernel chooses",
            seen - known
        );
    }
    format!(
        "weir: {name}: {} of {known} members are in another group of the kernel: the kernel chooses",
        known - seen
    )
}

impl Following {
    /// Attaches to all of `groups`, or to none.
    ///
    /// # Errors
    /// As of `not_attached`.
    pub fn begin(
        targets: Targets,
        finder: Finder,
        rules: Rules,
        groups: Vec<Group>,
    ) -> anyhow::Result<Following> {
        let now = monotonic_ns();
        let (pace, lines) = (Pace::new(now), Lines::new(now));
        let moves = kern::accept::moves();
        let mut following = Following { targets, finder, rules, moves, all: Vec::new(), pace, lines };
        for group in groups {
            let mut choice =
                Choice::load(&rules_of(&following.rules, &group), following.moves).map_err(super::refused)?;
            match attach(&mut choice, &group, FREED) {
                Ok(()) => {}
                // A worker has ended since it was found: who has its place is found next.
                Err(e) if e.is_gone() => following.pace.event(now),
                Err(e) => {
                    let error = not_attached(&group, &e);
                    following.end();
                    return Err(error);
                }
            }
            following.all.push(Attached::new(group, choice));
        }
        following.renew();
        Ok(following)
    }

    /// Renews the leases.
    fn renew(&self) {
        self.all.iter().filter(|one| one.there()).for_each(|one| one.choice.renew(lease()));
    }

    /// Renews the leases; looks whether something has changed and follows it. Lines for the operator.
    pub fn step(&mut self) -> Vec<String> {
        let now = monotonic_ns();
        for one in self.all.iter_mut().filter(|one| one.there()) {
            one.choice.renew(lease());
            let (seen, known) = (one.choice.sockets(), one.group.members.len() as u32);
            if one.watch.look(seen, known, ended(&one.workers), now) {
                self.pace.event(now);
            }
            if let Some(seen) = one.watch.stands(now) {
                self.lines.once("unseen", one.group.key(), || unseen(&one.group, seen));
            }
        }
        if self.pace.due(now) {
            match self.finder.all() {
                Ok(held) => {
                    let found = self.targets.find(&held, &self.owners());
                    self.follow(found, now);
                }
                Err(e) => self.lines.say(now, || format!("weir: cannot list sockets: {e}")),
            }
        }
        self.lines.take()
    }

    fn follow(&mut self, found: Vec<Group>, now: Nanos) {
        let keys: BTreeSet<_> = found.iter().map(Group::key).collect();
        for one in &mut self.all {
            if one.there() && !keys.contains(&one.group.key()) {
                one.gone = Some(now);
                one.watch = Watch::default();
                one.workers.clear();
                self.pace.event(now);
                self.lines.say(now, || {
                    format!("weir: {}: its listeners are gone; waiting for them", one.group.name())
                });
            }
        }
        self.all.retain(|one| !is_forgotten(one.gone, now));
        let mut before = 0;
        for group in found {
            let at = self.all.iter().position(|o| o.group.key() == group.key());
            let known = at.and_then(|at| self.all.get(at));
            let told = known.map(|one| Known {
                own: one.choice.id() == group.program,
                there: one.there(),
                same: one.choice.is_filled() && are_same(seats(&one.group), seats(&group)),
            });
            let found = Found { members: group.members.len(), before, known: told };
            match groups::next(&found, || in_the_way(&group).is_some(), || self.room()) {
                Next::Keep => {
                    if let Some(one) = at.and_then(|at| self.all.get_mut(at)) {
                        one.keep(group);
                    }
                    continue;
                }
                Next::Many => {
                    let why = obstacle_text(&group, Obstacle::TooMany);
                    self.lines.once("many", group.key(), || format!("weir: {why}"));
                    continue;
                }
                Next::Leave => {
                    // One listener is how many servers are made.
                    if let Some(why) = in_the_way(&group).filter(|why| *why != Obstacle::OneListener) {
                        self.lines
                            .once("left", group.key(), || format!("weir: {}", obstacle_text(&group, why)));
                    }
                    continue;
                }
                Next::Later => {
                    self.pace.event(now);
                    continue;
                }
                Next::Full => {
                    self.lines.once("full", group.key(), || {
                        format!("weir: {}: left alone, {} groups are attached to", group.name(), groups::MOST)
                    });
                    continue;
                }
                Next::Attach => {}
            }
            if let (None, Room::Instead(first)) = (at, self.room()) {
                self.all.remove(first);
            }
            before += usize::from(at.is_none());
            // To load the choice of a new group takes a good part of a lease.
            self.renew();
            let result = match at.and_then(|at| self.all.get_mut(at)) {
                Some(one) => attach(&mut one.choice, &group, Duration::ZERO).map(|()| {
                    one.workers = workers(&group);
                    one.gone = None;
                    one.watch = Watch::default();
                    one.group = group.clone();
                }),
                None => match Choice::load(&rules_of(&self.rules, &group), self.moves) {
                    Ok(mut choice) => attach(&mut choice, &group, Duration::ZERO)
                        .map(|()| self.all.push(Attached::new(group.clone(), choice))),
                    Err(e) => {
                        self.lines.say(now, || format!("weir: {}: {e}", group.name()));
                        continue;
                    }
                },
            };
            // One that fails is tried again: a server that starts or ends has listeners for a moment.
            self.pace.event(now);
            if let Err(e) = &result {
                // A worker that has just ended, and the array of a weir that was killed, are gone at the next try.
                if !e.is_gone() && group.program == 0 {
                    self.lines.say(now, || format!("weir: {}: {e}; tried again", group.name()));
                }
            } else {
                self.lines.say(now, || {
                    format!(
                        "weir: {}: {} of {} attached",
                        group.name(),
                        crate::out::count(group.members.len(), "listener"),
                        server(&group)
                    )
                });
            }
        }
    }

    /// Workers as far as they are known, by the inodes of their listeners.
    fn owners(&self) -> BTreeMap<u64, Owner> {
        let members = self.all.iter().flat_map(|one| &one.group.members);
        members.filter_map(|member| Some((member.inode, member.owner.clone()?))).collect()
    }

    /// Where one more group finds room.
    fn room(&self) -> Room {
        groups::room(self.all.iter().map(|one| one.gone))
    }

    /// Takes the program off everything it is attached to.
    pub fn end(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        // Whose program it is by now: a server may have put its own in the place, and that one stays.
        let owners = self.owners();
        let found = self.finder.all().map(|held| self.targets.find(&held, &owners));
        for one in self.all.iter().filter(|one| one.there()) {
            let why = match &found {
                Ok(found) => {
                    let now = found.iter().find(|g| g.key() == one.group.key());
                    let own = now.filter(|group| group.program == one.choice.id());
                    own.and_then(|group| one.choice.detach(group).err()).map(|e| e.to_string())
                }
                Err(e) => Some(e.to_string()),
            };
            if let Some(why) = why {
                lines.push(format!(
                    "weir: {}: the program stays ({why}); it leaves the choice to the kernel",
                    one.group.name()
                ));
            }
        }
        self.all.clear();
        lines
    }
}

/// True if a process of these has ended.
fn ended(workers: &[OwnedFd]) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut list: Vec<PollFd<'_>> =
        workers.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    poll(&mut list, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kern::accept::Member;
    use std::net::SocketAddr;

    #[test]
    fn a_worker_that_moves_keeps_its_queue() {
        let group = |members: &[(u64, usize)]| Group {
            udp: false,
            netns: 1,
            device: 0,
            local: SocketAddr::from(([127, 0, 0, 1], 80)),
            reuseport: true,
            program: 0,
            members: members
                .iter()
                .map(|(inode, core)| Member {
                    inode: *inode,
                    holders: Vec::new(),
                    owner: Some(Owner {
                        pid: *inode as u32,
                        tid: *inode as u32,
                        name: "a".into(),
                        core: Some(*core),
                        known: Where::Ran,
                        among: Vec::new(),
                    }),
                    waiting: 0,
                    limit: 0,
                    connections: 0,
                    affine: 0,
                })
                .collect(),
        };
        // Both have moved; they are found in the order of their cores.
        let (filled, found) = (group(&[(7, 0), (5, 1)]), group(&[(5, 0), (7, 1)]));
        assert!(are_same(seats(&filled), seats(&found)));
        let now = in_order(found, &filled);
        assert_eq!(now, group(&[(7, 1), (5, 0)]));
    }
}
