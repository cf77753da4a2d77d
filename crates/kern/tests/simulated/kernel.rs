//! One process's view of the simulated kernel. Before each call something may happen: its death, a stop, a refusal, a write
//! of the administrator, an interface that goes away, or another participant that does all of its work.

use super::{
    actors,
    choices::{Action, Chooser},
    world::{Iface, Link, Place, World},
};
use kern::{
    error::{Error, Result},
    journal::{Journal, Owner},
    kernel::{Elsewhere, Kernel},
    netns::NetnsId,
    rundir::Lock,
    settings::{Presence, Setting, Value},
};
use std::{
    cell::{RefCell, RefMut},
    path::{Path, PathBuf},
};

/// Where the journals are.
pub const DIR: &str = "/run/weir";

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Guard,
    /// Of a dead guard, or of one that stands still.
    Keeper,
    Undo,
    /// Only looks, for a test.
    Witness,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Read,
    Write,
    Look,
    Wait,
    Ask,
    Lock,
    List,
    Load,
    Save,
    Remove,
}

/// A crash unwinds with this.
pub struct Crash;

/// The kernel, and who decides what happens.
pub struct Sim {
    world: RefCell<World>,
    chooser: RefCell<Chooser>,
}

impl Sim {
    pub fn new(world: World, chooser: Chooser) -> Self {
        Sim { world: RefCell::new(world), chooser: RefCell::new(chooser) }
    }

    pub fn world(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    pub fn chooser(&self) -> RefMut<'_, Chooser> {
        self.chooser.borrow_mut()
    }

    pub fn into_world(self) -> World {
        self.world.into_inner()
    }

    pub fn kernel(&self, role: Role, pid: u32) -> SimKernel<'_> {
        SimKernel { sim: self, role, pid, last: None, abroad: false }
    }
}

/// What the last call has read.
struct Seen {
    place: Place,
    writes: u32,
    wanted: Vec<u64>,
}

/// As one process sees it.
pub struct SimKernel<'a> {
    pub sim: &'a Sim,
    role: Role,
    /// The guard; of a keeper that of its guard.
    pub pid: u32,
    last: Option<Seen>,
    /// It is where interfaces are moved to.
    abroad: bool,
}

fn eio(what: &str) -> Error {
    Error::io(what, std::io::Error::from_raw_os_error(libc::EIO))
}

impl<'a> SimKernel<'a> {
    fn world(&self) -> RefMut<'a, World> {
        let mut world = self.sim.world();
        world.abroad = self.abroad;
        world
    }

    /// Lets happen what is to happen before this call; true if it is to answer an error although it is done.
    fn point(&mut self, call: Call, what: impl Fn() -> String) -> Result<bool> {
        if self.role == Role::Witness {
            return Ok(false);
        }
        loop {
            let action = {
                let mut world = self.sim.world();
                world.counts.calls += 1;
                self.sim.chooser().next(self.role, call, &world)
            };
            let tell = |action: &str| {
                self.sim.world().note(|| format!("{:?} {}: {action}{}", self.role, self.pid, what()));
            };
            match action {
                Action::Go => {
                    tell("");
                    return Ok(false);
                }
                Action::Crash => {
                    tell("DIES before ");
                    let mut world = self.sim.world();
                    match self.role {
                        Role::Guard => world.counts.guard_crashes += 1,
                        Role::Keeper => world.counts.keeper_crashes += 1,
                        _ => world.counts.undo_crashes += 1,
                    }
                    drop(world);
                    std::panic::resume_unwind(Box::new(Crash));
                }
                Action::Freeze => {
                    tell("STANDS STILL before ");
                    self.sim.world().counts.freezes += 1;
                    actors::stopped(self.sim, self.pid);
                    tell("goes on before ");
                }
                Action::Refuse => {
                    tell("REFUSED ");
                    self.sim.world().counts.refusals += 1;
                    return Err(eio(&what()));
                }
                Action::RefuseLate => {
                    tell("DONE, but with an error: ");
                    self.sim.world().counts.refused_late += 1;
                    return Ok(true);
                }
                Action::Admin(place) => self.sim.world().admin(place),
                Action::Down(iface) => self.sim.world().down(iface),
                Action::Up(iface, same_ids, keeps) => self.sim.world().up(iface, same_ids, keeps),
                Action::Away(iface, queue, waits, listed) => {
                    self.sim.world().away(iface, queue, waits, listed);
                }
                Action::Channels(iface, present, keeps) => {
                    self.sim.world().channels(iface, present, keeps);
                }
                Action::Move(iface, up) => self.sim.world().go(iface, up),
                Action::Back(iface, same_index, same_ids, keeps) => {
                    self.sim.world().come(iface, same_index, same_ids, keeps);
                }
                Action::Delete(iface) => self.sim.world().delete(iface),
                Action::Undo => actors::undo_alongside(self.sim),
                Action::Rival => actors::rival(self.sim),
                Action::LateKeeper => actors::late_keepers(self.sim),
            }
        }
    }

    /// What weir may have: the rules for a write that is about to happen.
    fn check(&mut self, place: Place, setting: &Setting, new: &Value, seen: Option<Seen>) {
        let index = setting.ifindex();
        let mut world = self.sim.world();
        let shown = world.show(place);
        let value = number(new);
        let (role, pid) = (self.role, self.pid);
        let owner = world.cell(place).by;
        let revoking = world.keepers.iter().any(|k| k.guard == pid && k.revoking);
        let others = owner != pid && world.is_alive(owner);
        let of_living = owner == pid && role != Role::Guard && world.is_alive(pid) && !revoking;
        // What an interface has taken along is nobody's any more.
        let left = world.has_left(place.0);
        if owner != 0 && !left && (others || of_living) {
            world.break_rule(format!("{role:?} {pid} changes what is the living guard {owner}'s: {shown}"));
        }
        match seen {
            Some(seen) if seen.place == place => {
                let cell = world.cell(place);
                if seen.writes != cell.writes {
                    // Between read and write: the kernel has no compare and swap, so this one is lost.
                    cell.wanted.extend(seen.wanted);
                    world.counts.lost += 1;
                    world.note(|| format!("   a write of the administrator is lost: {shown}"));
                }
            }
            _ => {
                world.break_rule(format!("{role:?} {pid} writes {shown} without having read it just before"))
            }
        }
        let cell = world.cell(place);
        let back = cell.wanted.contains(&value);
        (cell.value, cell.by) = (value, if back { 0 } else { pid });
        if back {
            world.timer_is_back(place);
            return;
        }
        if role != Role::Guard {
            world.break_rule(format!("{role:?} {pid} writes {value}, which nobody wants: {shown}"));
        }
        let wanted = world.cell(place).wanted.clone();
        let queue = world.ifaces[place.0].napis.iter().position(|q| Some(q.id) == setting.napi_id());
        drop(world);
        let mut witness = self.sim.kernel(Role::Witness, 0);
        let journal = Journal::load_from(&mut witness, &journal_path(index));
        let why = match &journal {
            Err(e) => Some(format!("there is no journal ({e})")),
            Ok(j) if j.owner().pid != pid => Some("the journal is another guard's".into()),
            Ok(j) => match j.known(setting, queue.map(|q| q as u32)) {
                Some((_, ours)) if !ours.contains(new) => Some(format!("the journal has only {ours:?}")),
                Some((old, _)) if !wanted.contains(&number(old)) => {
                    Some(format!("the journal has {old} as the old value, the administrator's is {wanted:?}"))
                }
                Some(_) => None,
                None => Some("the journal does not know it".into()),
            },
        };
        if let Some(why) = why {
            self.sim.world().break_rule(format!("guard {pid} writes {value} to {shown}, but {why}"));
        }
    }
}

fn number(value: &Value) -> u64 {
    match value {
        Value::Number(n) => *n,
        Value::Cpus(cpus) => cpus.iter().map(|c| 1 << c).sum(),
        Value::Queues(_) => panic!("a table is a setting of a placement"),
    }
}

pub fn journal_path(index: u32) -> PathBuf {
    Path::new(DIR).join(format!("7-{index}.json"))
}

impl Kernel for SimKernel<'_> {
    fn read(&mut self, setting: &Setting) -> Result<Value> {
        self.last = None;
        let late = self.point(Call::Read, || format!("read {setting:?}"))?;
        let mut world = self.world();
        let place = world.locate(setting, who(self.role, self.pid))?;
        if late {
            return Err(eio("read"));
        }
        let cell = world.cell(place);
        self.last = Some(Seen { place, writes: cell.writes, wanted: cell.wanted.clone() });
        let value = world.value(place);
        world.note(|| format!("   is {value}"));
        Ok(value)
    }

    fn write(&mut self, setting: &Setting, value: &Value) -> Result<()> {
        let seen = self.last.take();
        let late = self.point(Call::Write, || format!("write {setting:?} = {value}"))?;
        let place = self.world().locate(setting, who(self.role, self.pid))?;
        self.check(place, setting, value, seen);
        if late { Err(eio("written, but not read back")) } else { Ok(()) }
    }

    fn napi_of_queue(&mut self, ifindex: u32, queue: u32) -> Option<u32> {
        self.last = None;
        self.point(Call::Look, || format!("NAPI of {ifindex}/{queue}")).ok()?;
        let world = self.world();
        let iface = &world.ifaces[world.iface_of(ifindex)?];
        let napi = iface.napis.get(queue as usize).filter(|_| (queue as usize) < iface.present)?;
        (world.modern && iface.link.is_up() && (napi.away == 0 || napi.listed)).then_some(napi.id)
    }

    fn queues(&mut self, ifindex: u32) -> Option<u32> {
        self.last = None;
        self.point(Call::Look, || format!("queues of {ifindex}")).ok()?;
        let world = self.world();
        Some(world.ifaces[world.iface_of(ifindex)?].present as u32)
    }

    fn lists(&mut self, ifindex: u32, napi_id: u32) -> bool {
        self.last = None;
        if self.point(Call::Look, || format!("is NAPI {napi_id} of {ifindex} listed")).is_err() {
            return false;
        }
        let world = self.world();
        let listed = |i: &Iface| {
            i.link.is_up()
                && i.napis.iter().take(i.present).any(|n| n.id == napi_id && (n.away == 0 || n.listed))
        };
        world.modern && world.iface_of(ifindex).is_some_and(|n| listed(&world.ifaces[n]))
    }

    fn presence(&mut self, ifindex: u32) -> Presence {
        self.last = None;
        // It answers always.
        _ = self.point(Call::Look, || format!("presence of {ifindex}"));
        let world = self.world();
        match world.iface_of(ifindex).map(|n| world.ifaces[n].link.is_up()) {
            Some(true) => Presence::Up,
            Some(false) => Presence::Down,
            None => Presence::Absent,
        }
    }

    fn name(&mut self, ifindex: u32) -> Result<String> {
        self.last = None;
        self.point(Call::Ask, || format!("name of {ifindex}"))?;
        let world = self.world();
        let n = world.iface_of(ifindex).ok_or_else(|| Error::Gone { what: "interface".into() })?;
        Ok(format!("if{n}"))
    }

    fn device(&mut self, ifindex: u32) -> Result<Option<u64>> {
        self.last = None;
        self.point(Call::Ask, || format!("device of {ifindex}"))?;
        let world = self.world();
        let n = world.iface_of(ifindex).ok_or_else(|| Error::Gone { what: "interface".into() })?;
        Ok(Some(world.ifaces[n].device))
    }

    fn index_of(&mut self, device: u64) -> Option<u32> {
        self.last = None;
        // It answers always.
        _ = self.point(Call::Look, || format!("index of device {device}"));
        let world = self.world();
        world.ifaces.iter().find(|i| i.device == device && world.is_here(i)).map(|i| i.index)
    }

    fn elsewhere(&mut self, journal: &Journal, write: bool) -> Elsewhere {
        self.last = None;
        if self.point(Call::Ask, || format!("where is {:?}", journal.device())).is_err() {
            return Elsewhere::Hidden;
        }
        let found = {
            let world = self.world();
            let there = |i: &&Iface| journal.is_of(Some(i.device)) && matches!(i.link, Link::Moved(_));
            match world.sight {
                true => world.ifaces.iter().find(there).map(|i| i.index),
                false => return Elsewhere::Hidden,
            }
        };
        let Some(index) = found else { return Elsewhere::Nowhere };
        self.abroad = true;
        let outcomes = journal.restore_at(self, index, write);
        self.abroad = false;
        Elsewhere::Found(outcomes)
    }

    fn wait(&mut self) {
        self.last = None;
        // Time passes always.
        _ = self.point(Call::Wait, || "wait".into());
        let mut world = self.sim.world();
        world.counts.waits += 1;
        let napis = world.ifaces.iter_mut().flat_map(|i| &mut i.napis);
        napis.for_each(|n| n.away = n.away.saturating_sub(1));
    }

    fn here(&mut self) -> Result<NetnsId> {
        self.last = None;
        self.point(Call::Ask, || "which namespace".into())?;
        Ok(NetnsId { inode: 7, cookie: Some(1) })
    }

    fn me(&mut self) -> Result<Owner> {
        self.last = None;
        self.point(Call::Ask, || "who am I".into())?;
        Ok(Owner { pid: self.pid, start: 1 })
    }

    fn alive(&mut self, owner: Owner) -> bool {
        self.last = None;
        // It answers always.
        _ = self.point(Call::Look, || format!("is {} alive", owner.pid));
        self.sim.world().is_alive(owner.pid)
    }

    fn lock(&mut self, _dir: &Path) -> Result<Option<Lock>> {
        self.last = None;
        self.point(Call::Lock, || "lock".into())?;
        let mut world = self.sim.world();
        if world.lock.is_some() {
            world.note(|| "   held by somebody who does not let go".into());
            return Err(eio("lock"));
        }
        world.lock = Some(who(self.role, self.pid));
        Ok(None)
    }

    fn journals(&mut self, _dir: &Path) -> Result<Vec<PathBuf>> {
        self.last = None;
        self.point(Call::List, || "list journals".into())?;
        let mut paths: Vec<PathBuf> = self.sim.world().files.iter().map(|(path, _)| path.clone()).collect();
        paths.sort();
        Ok(paths)
    }

    fn load(&mut self, path: &Path) -> Result<Vec<u8>> {
        self.last = None;
        self.point(Call::Load, || format!("load {}", path.display()))?;
        let world = self.sim.world();
        let file = world.files.iter().find(|(p, _)| p == path);
        let none = || Error::io("load", std::io::Error::from_raw_os_error(libc::ENOENT));
        file.map(|(_, bytes)| bytes.clone()).ok_or_else(none)
    }

    fn save(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.last = None;
        let late =
            self.point(Call::Save, || format!("save {}", String::from_utf8_lossy(bytes).trim_end()))?;
        let mut world = self.sim.world();
        if let Some(n) = world.subject(bytes) {
            world.ifaces[n].journalled = true;
        }
        match world.files.iter_mut().find(|(p, _)| p == path) {
            Some((_, old)) => *old = bytes.to_vec(),
            None => world.files.push((path.into(), bytes.to_vec())),
        }
        if late { Err(eio("saved, but its directory is not on the disk")) } else { Ok(()) }
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        self.last = None;
        let late = self.point(Call::Remove, || format!("remove {}", path.display()))?;
        let (who, role) = (who(self.role, self.pid), self.role);
        let mut world = self.sim.world();
        let file = world.files.iter().position(|(p, _)| p == path);
        let n = file.and_then(|n| world.subject(&world.files[n].1));
        // There may be another one of the same interface.
        let others = |n: &usize| world.files.iter().any(|(p, b)| p != path && world.subject(b) == Some(*n));
        if let Some(n) = n.filter(|n| !others(n)).filter(|n| world.ifaces[*n].link != Link::Deleted) {
            for k in 0..world.ifaces[n].cells.len() {
                let cell = world.cell((n, k));
                match (cell.by, cell.gone_to == who) {
                    (0, _) => {}
                    (_, true) => {
                        cell.forgive();
                        world.counts.forgiven += 1;
                    }
                    (_, false) => {
                        let shown = world.show((n, k));
                        world.break_rule(format!(
                            "{role:?} {who} removes the journal, but weir still has {shown}"
                        ));
                    }
                }
            }
        }
        world.files.retain(|(p, _)| p != path);
        if late { Err(eio("removed, but its directory is not on the disk")) } else { Ok(()) }
    }
}

/// One process: a keeper is another one than its guard.
pub fn who(role: Role, pid: u32) -> u32 {
    pid * 4 + role as u32
}
