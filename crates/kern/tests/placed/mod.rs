//! The simulated kernel of the placement's tests: `weir place` and `weir undo` die or are refused at any call, an administrator
//! writes before any call.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]
#![allow(dead_code, reason = "not every test needs all of it")]

use kern::{
    change::{self, Change},
    cpus::CpuSet,
    error::{Error, Result},
    journal::{Journal, Owner},
    kernel::{Heir, Kernel},
    netns::NetnsId,
    rundir::Lock,
    settings::{Presence, Setting, Value},
    undo::{self, Of},
};
use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
};

pub const DIR: &str = "/run/weir";

/// When a placement is made, clock ticks since boot.
pub const PLACED: u64 = 15;

/// How a participant dies.
pub struct Crash;

/// What happens before a call.
#[derive(Clone, Copy, PartialEq)]
pub enum Event {
    Nothing,
    Crash,
    Refuse,
    /// Of the mask that is written the kernel takes all but the lowest CPU, as within a cpuset.
    Narrow,
    Admin(usize),
}

pub struct Sim {
    pub values: HashMap<Setting, Value>,
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    pub netns: NetnsId,
    pub me: Owner,
    pub alive: Vec<u32>,
    pub calls: usize,
    at: usize,
    event: Event,
    /// What the administrator has written.
    pub written: Option<Setting>,
    /// The value that is written next is narrowed.
    narrow: bool,
    /// CPUs that masks can have; without it any.
    pub usable: Option<CpuSet>,
    /// Threads that have begun since, of which.
    pub family: Vec<Heir>,
}

pub fn cpus(list: &str) -> Value {
    Value::Cpus(list.parse::<CpuSet>().unwrap())
}

/// One of each kind, with the value from before and the one of the plan.
pub fn cells() -> Vec<(Setting, Value, Value)> {
    vec![
        (Setting::IrqCpus { irq: 38 }, cpus("0-3"), cpus("1")),
        (Setting::RpsCpus { ifindex: 2, queue: 0 }, cpus(""), cpus("0-1")),
        (Setting::RpsCpus { ifindex: 3, queue: 0 }, cpus("2"), cpus("0-1")),
        (Setting::XpsCpus { ifindex: 2, queue: 1 }, cpus(""), cpus("0,2")),
        (Setting::TaskCpus { tid: 700, start: 9 }, cpus("0-3"), cpus("2")),
        (
            Setting::RssTable { ifindex: 2 },
            Value::Queues(vec![1; 8]),
            Value::Queues(vec![0, 1, 0, 1, 0, 1, 0, 1]),
        ),
        (Setting::RfsTable, Value::Number(0), Value::Number(32_768)),
        (Setting::RfsEntries { ifindex: 2, queue: 0 }, Value::Number(64), Value::Number(32_768)),
    ]
}

pub fn changes() -> Vec<Change> {
    cells().into_iter().map(|(setting, _, new)| Change { setting, queue: None, new, first: None }).collect()
}

pub fn admins(setting: &Setting) -> Value {
    match setting {
        Setting::RssTable { .. } => Value::Queues(vec![0; 8]),
        Setting::RfsTable | Setting::RfsEntries { .. } => Value::Number(1024),
        _ => cpus("3"),
    }
}

impl Sim {
    pub fn new(at: usize, event: Event) -> Sim {
        Sim {
            values: cells().into_iter().map(|(setting, old, _)| (setting, old)).collect(),
            files: BTreeMap::new(),
            netns: NetnsId { inode: 4_026_532_000, cookie: Some(5) },
            me: Owner { pid: 100, start: 1 },
            alive: Vec::new(),
            calls: 0,
            at,
            event,
            written: None,
            narrow: false,
            usable: None,
            family: Vec::new(),
        }
    }

    fn call(&mut self, refusable: bool) -> Result<()> {
        self.calls += 1;
        if self.calls - 1 != self.at {
            return Ok(());
        }
        match self.event {
            Event::Nothing => Ok(()),
            Event::Crash => resume_unwind(Box::new(Crash)),
            Event::Refuse if refusable => Err(Error::Invalid { what: "call".into(), why: "refused".into() }),
            Event::Refuse => Ok(()),
            Event::Narrow => {
                self.narrow = true;
                Ok(())
            }
            Event::Admin(n) => {
                let setting = cells()[n].0;
                self.values.insert(setting, admins(&setting));
                self.written = Some(setting);
                Ok(())
            }
        }
    }

    /// `weir place --apply`; false if it died.
    pub fn place(&mut self, pid: u32) -> bool {
        self.me = Owner { pid, start: 1 };
        self.alive = vec![pid];
        let run = AssertUnwindSafe(|| {
            let Ok(mut journal) = Journal::claim_host(Path::new(DIR), self) else { return };
            _ = change::make(self, &mut journal, &changes());
        });
        let done = catch_unwind(run);
        self.alive.clear();
        done.is_ok()
    }

    /// `weir undo`; `None` if it died or could not look.
    pub fn undo(&mut self) -> Option<undo::Report> {
        let run = AssertUnwindSafe(|| undo::undo_with(self, Path::new(DIR), &[], Of::All, true));
        catch_unwind(run).ok()?.ok()
    }

    /// Each setting is as before or as the administrator has it, and no journal is left.
    pub fn assert_as_before(&self, what: &str) {
        for (setting, old, _) in cells() {
            let want =
                if self.written == Some(setting) { [old, admins(&setting)] } else { [old.clone(), old] };
            let found = &self.values[&setting];
            assert!(want.contains(found), "{what}: {setting:?} is {found}, was {}", want[0]);
        }
        assert!(self.files.is_empty(), "{what}: a journal is left");
    }
}

impl Kernel for Sim {
    fn read(&mut self, setting: &Setting) -> Result<Value> {
        self.call(true)?;
        let found = self.values.get(setting).cloned();
        found.ok_or_else(|| Error::Gone { what: setting.label().into() })
    }

    fn write(&mut self, setting: &Setting, value: &Value) -> Result<()> {
        self.call(true)?;
        assert!(setting.accepts(value), "{setting:?} {value}");
        // Old values first: what is written is in the journal, as a value of weir or from before it.
        let text: String =
            self.files.values().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        assert!(text.contains(&serde_json::to_string(value).unwrap()), "{setting:?} {value}: {text}");
        let mut value = value.clone();
        let narrowed = match &mut value {
            Value::Cpus(cpus) if self.narrow && cpus.iter().count() > 1 => {
                *cpus = cpus.iter().skip(1).collect();
                true
            }
            _ => false,
        };
        self.narrow = false;
        let narrowed = match (&mut value, &self.usable) {
            (Value::Cpus(cpus), Some(usable)) if cpus.and(usable) != *cpus => {
                *cpus = cpus.and(usable);
                true
            }
            _ => narrowed,
        };
        match self.values.get_mut(setting) {
            Some(cell) => *cell = value,
            None => return Err(Error::Gone { what: setting.label().into() }),
        }
        let text = String::new;
        if narrowed { Err(Error::ReadBack { what: text(), wrote: text(), found: text() }) } else { Ok(()) }
    }

    fn napi_of_queue(&mut self, _: u32, _: u32) -> Option<u32> {
        None
    }

    fn lists(&mut self, _: u32, _: u32) -> bool {
        false
    }

    fn presence(&mut self, _: u32) -> Presence {
        Presence::Up
    }

    fn name(&mut self, ifindex: u32) -> Result<String> {
        match ifindex {
            0 => Err(Error::Gone { what: "interface 0".into() }),
            n => Ok(format!("if{n}")),
        }
    }

    fn usable(&mut self, _: &Setting) -> Option<CpuSet> {
        self.usable.clone()
    }

    fn heirs(&mut self, of: &[(u32, u64)]) -> Vec<Heir> {
        let of = |tid: &u32| of.iter().any(|(t, _)| t == tid);
        self.family.iter().filter(|heir| heir.of.iter().any(of)).cloned().collect()
    }

    fn ticks(&mut self) -> u64 {
        PLACED
    }

    fn wait(&mut self) {}

    fn here(&mut self) -> Result<NetnsId> {
        Ok(self.netns)
    }

    fn me(&mut self) -> Result<Owner> {
        Ok(self.me)
    }

    fn alive(&mut self, owner: Owner) -> bool {
        self.alive.contains(&owner.pid)
    }

    fn lock(&mut self, _: &Path) -> Result<Option<Lock>> {
        Ok(None)
    }

    fn journals(&mut self, _: &Path) -> Result<Vec<PathBuf>> {
        Ok(self.files.keys().cloned().collect())
    }

    fn load(&mut self, path: &Path) -> Result<Vec<u8>> {
        self.call(false)?;
        let absent =
            || Error::io(path.display().to_string(), std::io::Error::from_raw_os_error(libc::ENOENT));
        self.files.get(path).cloned().ok_or_else(absent)
    }

    fn save(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.call(true)?;
        self.files.insert(path.into(), bytes.into());
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        self.call(true)?;
        self.files.remove(path);
        Ok(())
    }
}
