//! What the simulated kernel consists of: interfaces with their settings, files, processes. Nobody decides anything here;
//! what the administrator last wanted is kept beside each setting, so that every write of weir can be judged at once.

use kern::{
    cpus::CpuSet,
    error::{Error, Result},
    journal::{Fate, Outcome},
    restore::Journals,
    settings::{Setting, Value},
};
use std::path::PathBuf;

/// Flush timeout of weir until a takeover has settled, ns.
pub const FIRST_FLUSH: u64 = 20_000_000;
/// Expiries without a turn that weir allows.
pub const DEFER: u64 = 8;
/// Process ids of guards begin here.
pub const FIRST_PID: u32 = 100;

/// Kind of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    DevFlush,
    DevDefer,
    Threaded,
    Gro,
    Lro,
    GroHw,
    NapiFlush,
    NapiDefer,
    Rps,
}

const OF_DEVICE: [Kind; 6] =
    [Kind::DevFlush, Kind::DevDefer, Kind::Threaded, Kind::Gro, Kind::Lro, Kind::GroHw];
const OF_QUEUE: [Kind; 3] = [Kind::NapiFlush, Kind::NapiDefer, Kind::Rps];

/// Settings of an interface with so many queues.
pub fn cells(queues: usize) -> usize {
    OF_DEVICE.len() + OF_QUEUE.len() * queues
}

/// Where a setting is: interface and number of its cell.
pub type Place = (usize, usize);

/// One setting.
#[derive(Clone, Debug)]
pub struct Cell {
    /// A set of CPUs is its mask.
    pub value: u64,
    /// The guard whose value it is, 0 if it is the administrator's.
    pub by: u32,
    /// What the administrator wants; more than one value where nobody could tell.
    pub wanted: Vec<u64>,
    /// All that it ever wanted, where weir's value can also be its.
    pub ever: Vec<u64>,
    /// Counts writes of the administrator.
    pub writes: u32,
    /// Who has asked for it and was told that it is gone, last.
    pub gone_to: u32,
}

impl Cell {
    /// It was gone for as long as anybody waits; should it come back with weir's value, nobody can know.
    pub fn forgive(&mut self) {
        self.by = 0;
        self.wanted.push(self.value);
    }
}

/// State of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    Down,
    Deleted,
    /// In another namespace; up there or down.
    Moved(bool),
}

impl Link {
    /// Its NAPIs can be seen by those who are where it is.
    pub fn is_up(self) -> bool {
        matches!(self, Link::Up | Link::Moved(true))
    }
}

/// NAPI of a queue.
#[derive(Clone, Debug)]
pub struct Napi {
    pub id: u32,
    /// Waits until it is there again.
    pub away: u32,
    /// It is listed meanwhile.
    pub listed: bool,
}

/// One interface.
#[derive(Clone, Debug)]
pub struct Iface {
    pub index: u32,
    /// What it is known by everywhere.
    pub device: u64,
    pub link: Link,
    /// There has been a journal.
    pub journalled: bool,
    pub napis: Vec<Napi>,
    /// Queues that it has now; the others were taken away.
    pub present: usize,
    pub cells: Vec<Cell>,
}

/// A guard's keeper.
pub struct Keeper {
    pub guard: u32,
    pub alive: bool,
    /// It has restored, or was dismissed.
    pub done: bool,
    pub care: Journals,
    /// Sources whose settings are changed.
    pub armed: u32,
    /// How often it has put settings back under a guard that stood still.
    pub revoked: u32,
    /// It acts on a guard that does not move just now.
    pub revoking: bool,
}

/// What happened, over many schedules.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub schedules: u64,
    pub calls: u64,
    pub guard_crashes: u64,
    pub keeper_crashes: u64,
    pub undo_crashes: u64,
    pub freezes: u64,
    pub revoked: u64,
    pub refusals: u64,
    pub refused_late: u64,
    pub admin_writes: u64,
    pub links: u64,
    pub rivals: u64,
    pub rivals_refused: u64,
    pub late_keepers: u64,
    pub undos_beside: u64,
    pub takeovers: u64,
    pub failed_takeovers: u64,
    pub restored: u64,
    pub verified: u64,
    pub left: u64,
    pub gone: u64,
    pub waiting: u64,
    /// What has been said to be with an interface elsewhere.
    pub kept: u64,
    pub moves: u64,
    pub withdrawn: u64,
    pub failed: u64,
    pub lost: u64,
    pub forgiven: u64,
    pub waits: u64,
}

impl Counts {
    /// Adds up.
    pub fn add(&mut self, o: &Counts) {
        macro_rules! sum { ($($f:ident)*) => { $(self.$f += o.$f;)* } }
        sum!(schedules calls guard_crashes keeper_crashes undo_crashes freezes revoked refusals refused_late
            admin_writes links rivals rivals_refused late_keepers undos_beside takeovers failed_takeovers
            restored verified left gone waiting kept moves withdrawn failed lost forgiven waits);
    }
}

/// All there is.
pub struct World {
    /// Settings of NAPIs (6.13); else those of the device alone.
    pub modern: bool,
    pub ifaces: Vec<Iface>,
    /// Other namespaces can be looked into.
    pub sight: bool,
    /// Whoever calls just now is in the namespace that interfaces are moved to.
    pub abroad: bool,
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Guards that run, by number.
    pub alive: Vec<bool>,
    pub keepers: Vec<Keeper>,
    /// Who holds the lock of the journals.
    pub lock: Option<u32>,
    /// Runs of undo so far: each is a process of its own.
    pub undos: u32,
    pub next_napi: u32,
    pub next_index: u32,
    pub next_value: u64,
    /// What the last one who acted for good on each interface has said about its settings.
    pub said: Vec<Vec<(usize, Fate)>>,
    pub counts: Counts,
    pub trace: Option<Vec<String>>,
    /// The first rule that was broken.
    pub broken: Option<String>,
}

impl World {
    pub fn new(modern: bool, ifaces: usize, queues: usize, counts: Counts) -> Self {
        let mut next_napi = 8193;
        let cell =
            |value| Cell { value, by: 0, wanted: vec![value], ever: vec![value], writes: 0, gone_to: 0 };
        let iface = |n: usize| {
            let napis = (0..queues).map(|_| {
                next_napi += 1;
                Napi { id: next_napi, away: 0, listed: true }
            });
            let napis = napis.collect();
            let of_queue = (0..queues).flat_map(|q| [cell(0), cell(0), cell((q as u64 + n as u64) % 2 * 2)]);
            // A NIC's own offloads are on, as its driver has them.
            let of_device = [0, 0, 0, 0, 1, 1].map(cell);
            let cells = of_device.into_iter().chain(of_queue).collect();
            Iface {
                index: 3 + n as u32,
                device: 501 + n as u64,
                link: Link::Up,
                journalled: false,
                napis,
                present: queues,
                cells,
            }
        };
        let ifaces: Vec<Iface> = (0..ifaces).map(iface).collect();
        World {
            modern,
            sight: true,
            abroad: false,
            next_index: 50,
            said: vec![Vec::new(); ifaces.len()],
            ifaces,
            files: Vec::new(),
            alive: Vec::new(),
            keepers: Vec::new(),
            lock: None,
            undos: 0,
            next_napi,
            next_value: 1000,
            counts,
            trace: None,
            broken: None,
        }
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    /// A rule is broken; the first counts.
    pub fn break_rule(&mut self, why: String) {
        self.note(|| format!("!! {why}"));
        self.broken.get_or_insert(why);
    }

    pub fn is_alive(&self, pid: u32) -> bool {
        pid.checked_sub(FIRST_PID).and_then(|n| self.alive.get(n as usize)).copied().unwrap_or(false)
    }

    pub fn kind(cell: usize) -> Kind {
        match cell.checked_sub(OF_DEVICE.len()) {
            None => OF_DEVICE[cell],
            Some(n) => OF_QUEUE[n % OF_QUEUE.len()],
        }
    }

    /// The cell of a flush timeout: of the device, or of the queue's NAPI.
    pub fn flush_of(setting: &Setting, queue: usize) -> usize {
        if setting.napi_id().is_some() { OF_DEVICE.len() + queue * OF_QUEUE.len() } else { 0 }
    }

    /// A flush timeout has its old value: interrupts must have been let in again before, if nothing was in the way.
    pub fn timer_is_back(&mut self, (iface, cell): Place) {
        let flush = matches!(Self::kind(cell), Kind::DevFlush | Kind::NapiFlush);
        let in_the_way = self.counts.refusals + self.counts.refused_late + self.counts.links > 0;
        if flush && !in_the_way && self.ifaces[iface].cells[cell + 1].by != 0 {
            let shown = self.show((iface, cell + 1));
            self.break_rule(format!("the timer is taken away before interrupts are let in: {shown}"));
        }
    }

    /// For the trace.
    pub fn show(&self, (iface, cell): Place) -> String {
        match cell.checked_sub(OF_DEVICE.len()) {
            None => format!("if{iface} {:?}", Self::kind(cell)),
            Some(n) => format!("if{iface}/{} {:?}", n / OF_QUEUE.len(), Self::kind(cell)),
        }
    }

    pub fn cell(&mut self, (iface, cell): Place) -> &mut Cell {
        &mut self.ifaces[iface].cells[cell]
    }

    /// Where whoever asks is just now.
    pub fn is_here(&self, iface: &Iface) -> bool {
        match iface.link {
            Link::Up | Link::Down => !self.abroad,
            Link::Moved(_) => self.abroad,
            Link::Deleted => false,
        }
    }

    pub fn iface_of(&self, index: u32) -> Option<usize> {
        self.ifaces.iter().position(|i| i.index == index && self.is_here(i))
    }

    /// The cell of a setting, as long as it can be asked for.
    pub fn locate(&mut self, setting: &Setting, who: u32) -> Result<Place> {
        let gone = || Error::Gone { what: setting.label().into() };
        let Some(n) = self.iface_of(setting.ifindex()) else {
            let deleted = |i: &&mut Iface| i.index == setting.ifindex() && i.link == Link::Deleted;
            for i in self.ifaces.iter_mut().filter(deleted) {
                i.cells.iter_mut().for_each(|c| c.gone_to = who);
            }
            return Err(gone());
        };
        let of_queue = |queue: usize, k: usize| (n, OF_DEVICE.len() + queue * OF_QUEUE.len() + k);
        let napi = |k: usize, world: &mut World, id: u32| {
            if !world.modern {
                return Err(Error::Unsupported { what: setting.label().into(), since: "6.13" });
            }
            let iface = &mut world.ifaces[n];
            let up = iface.link.is_up();
            let present = iface.napis.iter().take(iface.present);
            match present.clone().position(|q| q.id == id && q.away == 0).filter(|_| up) {
                Some(queue) => Ok(of_queue(queue, k)),
                None => {
                    // Down, disabled or known under another id it is not gone: weir is to see that.
                    let away = |q: &Napi| up && q.away > 0 && !(q.listed && q.id == id);
                    // What was taken away with its queue neither.
                    for queue in (0..iface.present).filter(|q| away(&iface.napis[*q])) {
                        iface.cells[of_queue(queue, k).1].gone_to = who;
                    }
                    Err(gone())
                }
            }
        };
        match *setting {
            Setting::DevFlush { .. } => Ok((n, 0)),
            Setting::DevDefer { .. } => Ok((n, 1)),
            Setting::DevThreaded { .. } => Ok((n, 2)),
            Setting::Gro { .. } => Ok((n, 3)),
            Setting::Lro { .. } => Ok((n, 4)),
            Setting::GroHw { .. } => Ok((n, 5)),
            Setting::NapiFlush { napi_id, .. } => napi(0, self, napi_id),
            Setting::NapiDefer { napi_id, .. } => napi(1, self, napi_id),
            Setting::RpsCpus { queue, .. } if (queue as usize) < self.ifaces[n].present => {
                Ok(of_queue(queue as usize, 2))
            }
            Setting::RpsCpus { .. } => Err(gone()),
            Setting::NapiThreaded { .. } => {
                Err(Error::Unsupported { what: setting.label().into(), since: "6.17" })
            }
            // Those of a placement: tests/placement.rs.
            Setting::RfsEntries { .. } | Setting::RfsTable => Err(gone()),
            Setting::XpsCpus { .. }
            | Setting::RssTable { .. }
            | Setting::IrqCpus { .. }
            | Setting::TaskCpus { .. } => Err(gone()),
        }
    }

    pub fn value(&self, (iface, cell): Place) -> Value {
        let value = self.ifaces[iface].cells[cell].value;
        if Self::kind(cell) != Kind::Rps {
            return Value::Number(value);
        }
        let mut cpus = CpuSet::new();
        (0..64).filter(|c| value >> c & 1 == 1).for_each(|c| _ = cpus.insert(c));
        Value::Cpus(cpus)
    }

    /// The administrator writes `value`; on a kernel with settings of NAPIs one of the device overwrites theirs.
    pub fn admin(&mut self, place: Place) {
        if self.ifaces[place.0].link == Link::Deleted || place.1 >= cells(self.ifaces[place.0].present) {
            return;
        }
        self.next_value += 1;
        let n = self.next_value;
        let kind = Self::kind(place.1);
        // What weir would write for this kind cannot be told from weir's own.
        let (value, own) = match kind {
            Kind::DevFlush | Kind::NapiFlush | Kind::DevDefer | Kind::NapiDefer => (n, None),
            Kind::Threaded | Kind::Gro => (n % 2, Some(1)),
            Kind::Lro | Kind::GroHw => (n % 2, Some(0)),
            Kind::Rps => (if n.is_multiple_of(4) { 0 } else { 1 << (n % 8) }, Some(0)),
        };
        self.counts.admin_writes += 1;
        let shown = self.show(place);
        self.note(|| format!("   administrator: {shown} = {value}"));
        let journalled = self.ifaces[place.0].journalled;
        let mut set = |cell: &mut Cell| {
            cell.wanted.clear();
            cell.wanted.push(value);
            if own.is_some() {
                cell.ever.push(value);
            }
            // Written down as weir's it is taken for that, whoever wrote it: the old value comes back.
            if own == Some(value) && journalled {
                cell.wanted.extend_from_slice(&cell.ever);
            }
            if cell.value != value {
                cell.by = 0;
            }
            cell.value = value;
            cell.writes += 1;
        };
        set(&mut self.ifaces[place.0].cells[place.1]);
        let overwritten = match kind {
            Kind::DevFlush => 0,
            Kind::DevDefer => 1,
            _ => return,
        };
        if self.modern {
            let cells = &mut self.ifaces[place.0].cells;
            cells[OF_DEVICE.len()..].iter_mut().skip(overwritten).step_by(OF_QUEUE.len()).for_each(&mut set);
        }
    }

    /// The interface that a journal is about.
    pub fn subject(&self, bytes: &[u8]) -> Option<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.ifaces.iter().position(|i| text.contains(&format!("\"device\":{},", i.device)))
    }

    /// Its settings are kept in a file of the device.
    pub fn has_left(&self, iface: usize) -> bool {
        let away = |path: &PathBuf| path.to_string_lossy().ends_with("-away.json");
        self.files.iter().any(|(path, bytes)| away(path) && self.subject(bytes) == Some(iface))
    }

    fn has_journal(&self, iface: usize) -> bool {
        self.files.iter().any(|(_, bytes)| self.subject(bytes) == Some(iface))
    }

    /// An interface is moved to another namespace with its values, and is up there or not.
    pub fn go(&mut self, iface: usize, up: bool) {
        if matches!(self.ifaces[iface].link, Link::Up | Link::Down) {
            self.counts.moves += 1;
            self.counts.links += 1;
            self.note(|| format!("   if{iface} is moved away"));
            self.ifaces[iface].link = Link::Moved(up);
            self.ifaces[iface].napis.iter_mut().for_each(|n| n.away = 0);
        }
    }

    /// It comes back, under the same index or another one, and is set up.
    pub fn come(&mut self, iface: usize, same_index: bool, same_ids: bool, keeps: bool) {
        if !matches!(self.ifaces[iface].link, Link::Moved(_)) {
            return;
        }
        if !same_index {
            self.next_index += 1;
            self.ifaces[iface].index = self.next_index;
        }
        self.ifaces[iface].link = Link::Down;
        let index = self.ifaces[iface].index;
        self.note(|| format!("   if{iface} is back, index {index}"));
        self.up(iface, same_ids, keeps);
    }

    /// An interface goes down.
    pub fn down(&mut self, iface: usize) {
        if self.ifaces[iface].link == Link::Up {
            self.counts.links += 1;
            self.note(|| format!("   if{iface} goes down"));
            self.ifaces[iface].link = Link::Down;
        }
    }

    /// It comes up, with the NAPI ids and their values as before or with others.
    pub fn up(&mut self, iface: usize, same_ids: bool, keeps: bool) {
        let i = &mut self.ifaces[iface];
        if i.link != Link::Down {
            return;
        }
        i.link = Link::Up;
        // What is kept for a queue that was taken away stays.
        for (queue, napi) in i.napis.iter_mut().take(i.present).enumerate() {
            napi.away = 0;
            if !same_ids {
                self.next_napi += 1;
                napi.id = self.next_napi;
            }
            for k in (0..2).filter(|_| !keeps) {
                let value = i.cells[k].value;
                let cell = &mut i.cells[OF_DEVICE.len() + queue * OF_QUEUE.len() + k];
                (cell.value, cell.by, cell.writes) = (value, 0, cell.writes + 1);
                cell.wanted.clear();
                cell.wanted.push(value);
            }
        }
        let ids: Vec<u32> = i.napis.iter().map(|n| n.id).collect();
        self.counts.links += 1;
        self.note(|| format!("   if{iface} comes up, NAPIs {ids:?}, values kept: {keeps}"));
    }

    /// A NAPI is taken away for some waits, as by an XDP program that is detached.
    pub fn away(&mut self, iface: usize, queue: usize, waits: u32, listed: bool) {
        let i = &mut self.ifaces[iface];
        if i.link == Link::Up && queue < i.present {
            self.counts.links += 1;
            let napi = &mut i.napis[queue];
            (napi.away, napi.listed) = (waits, listed);
            self.note(|| format!("   if{iface}/{queue}: NAPI away for {waits} waits, listed: {listed}"));
        }
    }

    /// The interface has `present` queues from now on, as by `ethtool -L`. Where the driver lets it, the kernel keeps the values
    /// of a queue that is taken away, and its NAPI's id, until it is back; else it comes back as a new one.
    pub fn channels(&mut self, iface: usize, present: usize, keeps: bool) {
        let i = &mut self.ifaces[iface];
        let (before, present) = (i.present, present.clamp(1, i.napis.len()));
        if matches!(i.link, Link::Deleted | Link::Moved(_)) || before == present {
            return;
        }
        i.present = present;
        let device = [i.cells[0].value, i.cells[1].value];
        for queue in present.min(before)..present.max(before) {
            let at = cells(queue);
            let anew = |cell: &mut Cell, value| {
                (cell.value, cell.by, cell.writes) = (value, 0, cell.writes + 1);
                cell.wanted.clear();
                cell.wanted.push(value);
            };
            i.napis[queue].away = 0;
            if present < before {
                // Its mask of RPS is gone for good; none is also weir's value.
                anew(&mut i.cells[at + 2], 0);
                let ever = i.cells[at + 2].ever.clone();
                i.cells[at + 2].wanted.extend(ever);
            } else if !keeps {
                self.next_napi += 1;
                i.napis[queue].id = self.next_napi;
                device.into_iter().enumerate().for_each(|(k, value)| anew(&mut i.cells[at + k], value));
            }
        }
        self.counts.links += 1;
        self.counts.withdrawn += u64::from(present < before);
        self.note(|| format!("   if{iface} has {present} queues, values kept: {keeps}"));
    }

    pub fn delete(&mut self, iface: usize) {
        self.counts.links += 1;
        self.note(|| format!("   if{iface} is deleted"));
        self.ifaces[iface].link = Link::Deleted;
    }

    /// Takes down what somebody says for good about an interface.
    pub fn hear(&mut self, who: u32, interface: &str, outcomes: &[Outcome]) {
        let number = interface.strip_prefix("if").and_then(|n| n.parse::<usize>().ok());
        let Some(iface) = number.filter(|n| *n < self.ifaces.len()) else { return };
        self.said[iface].clear();
        for outcome in outcomes {
            let queue = outcome.target.split_once('/').and_then(|(_, q)| q.parse::<usize>().ok());
            let of_queue = |k: usize| queue.map(|q| OF_DEVICE.len() + q * OF_QUEUE.len() + k);
            let cell = match outcome.setting {
                "gro_flush_timeout" => Some(0),
                "napi_defer_hard_irqs" => Some(1),
                "threaded" => Some(2),
                "gro" => Some(3),
                "lro" => Some(4),
                "rx-gro-hw" => Some(5),
                "gro-flush-timeout" => of_queue(0),
                "defer-hard-irqs" => of_queue(1),
                _ => of_queue(2),
            };
            let Some(cell) = cell else { continue };
            match outcome.fate {
                Fate::Restored { .. } => self.counts.restored += 1,
                Fate::Verified { .. } => self.counts.verified += 1,
                Fate::Left { .. } => self.counts.left += 1,
                Fate::Gone => self.counts.gone += 1,
                Fate::Waiting | Fate::Guarded { .. } => self.counts.waiting += 1,
                Fate::Moved => self.counts.kept += 1,
                Fate::Failed { .. } => self.counts.failed += 1,
            }
            let c = &mut self.ifaces[iface].cells[cell];
            if outcome.fate == Fate::Gone && c.by != 0 && c.gone_to == who {
                c.forgive();
                self.counts.forgiven += 1;
            }
            self.said[iface].push((cell, outcome.fate.clone()));
        }
        let said = &self.said[iface];
        if let Some(trace) = &mut self.trace {
            trace.push(format!("   {who} says of if{iface}: {said:?}"));
        }
    }

    /// Once the last survivor has done its work. `healed`: nothing is in the way any more, so nothing may be left at all.
    pub fn judge(&mut self, healed: bool) {
        let mut wrong = Vec::new();
        for (n, iface) in self.ifaces.iter().enumerate().filter(|(_, i)| i.link != Link::Deleted) {
            let file = self.has_journal(n);
            for (k, cell) in iface.cells.iter().enumerate() {
                let what = || format!("{}: {:?}", self.show((n, k)), cell);
                let open = |(c, fate): &(usize, Fate)| {
                    *c == k && matches!(fate, Fate::Waiting | Fate::Moved | Fate::Failed { .. } | Fate::Gone)
                };
                if cell.by != 0 && (healed || !file || !self.said[n].iter().any(open)) {
                    wrong.push(format!("a value of weir is left: {}", what()));
                }
                if cell.by == 0 && !cell.wanted.contains(&cell.value) {
                    wrong.push(format!("not as the administrator wants it: {}", what()));
                }
            }
        }
        if healed && !self.files.is_empty() {
            wrong.push("a journal is left".into());
        }
        wrong.into_iter().for_each(|w| self.break_rule(w));
    }
}
