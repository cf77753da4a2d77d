//! The kernel settings that weir may change: a closed list, each readable, writable and verified.

pub use crate::kernel::{Kernel, Swapped};
use crate::{
    cpus::{self, CpuSet},
    error::{Error, Result},
    ethtool, irq,
    napi::{Change, Client, Napi, Threaded},
    netns, proc,
    sysfs::{self, Sysfs},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// One setting of one interface, in the caller's network namespace, or of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setting {
    /// `defer-hard-irqs` of a NAPI (6.13).
    NapiDefer {
        /// Interface of the NAPI.
        ifindex: u32,
        /// NAPI id.
        napi_id: u32,
    },
    /// `gro-flush-timeout` of a NAPI, ns (6.13).
    NapiFlush {
        /// Interface of the NAPI.
        ifindex: u32,
        /// NAPI id.
        napi_id: u32,
    },
    /// `threaded` of a NAPI: 0, 1 or 2 (6.17).
    NapiThreaded {
        /// Interface of the NAPI.
        ifindex: u32,
        /// NAPI id.
        napi_id: u32,
    },
    /// `napi_defer_hard_irqs` of a device; from 6.13 writing it overwrites every NAPI's own value.
    DevDefer {
        /// The device.
        ifindex: u32,
    },
    /// `gro_flush_timeout` of a device, ns; from 6.13 writing it overwrites every NAPI's own value.
    DevFlush {
        /// The device.
        ifindex: u32,
    },
    /// `threaded` of a device: 0 or 1 (5.12).
    DevThreaded {
        /// The device.
        ifindex: u32,
    },
    /// Generic receive offload: 0 or 1.
    Gro {
        /// The device.
        ifindex: u32,
    },
    /// Large receive offload, by the NIC: 0 or 1. As it is wanted, which the kernel forgets where XDP is attached generically.
    Lro {
        /// The device.
        ifindex: u32,
    },
    /// Generic receive offload by the NIC (`rx-gro-hw`): 0 or 1, as it is wanted; forgotten as LRO is.
    GroHw {
        /// The device.
        ifindex: u32,
    },
    /// CPUs that a receive queue spreads its packets over.
    RpsCpus {
        /// The device.
        ifindex: u32,
        /// Receive queue.
        queue: u32,
    },
    /// CPUs whose senders use a transmit queue (XPS); interfaces of one transmit queue have none.
    XpsCpus {
        /// The device.
        ifindex: u32,
        /// Transmit queue.
        queue: u32,
    },
    /// The receive queue of each entry of the table of RSS.
    RssTable {
        /// The device.
        ifindex: u32,
    },
    /// Entries of RFS's table of a receive queue; 0: off.
    RfsEntries {
        /// The device.
        ifindex: u32,
        /// Receive queue.
        queue: u32,
    },
    /// Entries of RFS's table of all flows: of the host, not of an interface.
    RfsTable,
    /// CPUs that an interrupt may go to: of the host, not of an interface.
    IrqCpus {
        /// Its number.
        irq: u32,
    },
    /// CPUs that a thread may run on, a program's or a NAPI's: of the host, not of an interface.
    TaskCpus {
        /// Thread id.
        tid: u32,
        /// Start time, clock ticks since boot: another thread of that id is another one.
        start: u64,
    },
}

/// Value of a [`Setting`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A number; ns for the flush timeouts, 0 or 1 for switches.
    Number(u64),
    /// A set of CPUs.
    Cpus(CpuSet),
    /// Receive queues, one for each entry of a table.
    Queues(Vec<u32>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(n) => write!(f, "{n}"),
            Value::Cpus(c) if c.is_empty() => f.write_str("none"),
            Value::Cpus(c) => write!(f, "{c}"),
            Value::Queues(table) => f.write_str(&groups(table)),
        }
    }
}

/// Most entries of a table of RFS that are set.
const RFS_MAX: u64 = 1 << 20;
/// Queues of a text at most.
const SHOWN: usize = 8;

/// How many entries of a table each queue has: `even over 4 queues`, or `queue 0: 96, 1: 32 of 128`.
fn groups(table: &[u32]) -> String {
    let mut of = BTreeMap::<u32, usize>::new();
    table.iter().for_each(|queue| *of.entry(*queue).or_default() += 1);
    let (least, most) = (of.values().min(), of.values().max());
    let whole = of.keys().next_back().is_some_and(|last| *last as usize + 1 == of.len());
    if whole && of.len() > 1 && least.zip(most).is_some_and(|(least, most)| most - least <= 1) {
        return format!("even over {} queues", of.len());
    }
    let each: Vec<String> =
        of.iter().take(SHOWN).map(|(queue, entries)| format!("{queue}: {entries}")).collect();
    let more = if of.len() > SHOWN { ", ..." } else { "" };
    format!("queue {}{more} of {}", each.join(", "), table.len())
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Value::Number(n)
    }
}

impl Setting {
    /// Interface it belongs to; 0 if it is one of the host.
    pub fn ifindex(&self) -> u32 {
        match *self {
            Setting::NapiDefer { ifindex, .. }
            | Setting::NapiFlush { ifindex, .. }
            | Setting::NapiThreaded { ifindex, .. }
            | Setting::DevDefer { ifindex }
            | Setting::DevFlush { ifindex }
            | Setting::DevThreaded { ifindex }
            | Setting::Gro { ifindex }
            | Setting::Lro { ifindex }
            | Setting::GroHw { ifindex }
            | Setting::RpsCpus { ifindex, .. }
            | Setting::RfsEntries { ifindex, .. }
            | Setting::RssTable { ifindex }
            | Setting::XpsCpus { ifindex, .. } => ifindex,
            Setting::IrqCpus { .. } | Setting::TaskCpus { .. } | Setting::RfsTable => 0,
        }
    }

    /// It belongs to no interface.
    pub fn of_host(&self) -> bool {
        matches!(self, Setting::IrqCpus { .. } | Setting::TaskCpus { .. } | Setting::RfsTable)
    }

    /// NAPI it belongs to, if it is one of a NAPI.
    pub fn napi_id(&self) -> Option<u32> {
        match *self {
            Setting::NapiDefer { napi_id, .. }
            | Setting::NapiFlush { napi_id, .. }
            | Setting::NapiThreaded { napi_id, .. } => Some(napi_id),
            _ => None,
        }
    }

    /// The same setting of another NAPI of its interface; itself if it is none of a NAPI.
    pub fn of_napi(self, napi_id: u32) -> Setting {
        match self {
            Setting::NapiDefer { ifindex, .. } => Setting::NapiDefer { ifindex, napi_id },
            Setting::NapiFlush { ifindex, .. } => Setting::NapiFlush { ifindex, napi_id },
            Setting::NapiThreaded { ifindex, .. } => Setting::NapiThreaded { ifindex, napi_id },
            of_device => of_device,
        }
    }

    /// The kernel's name of it, for the user.
    pub fn label(&self) -> &'static str {
        match self {
            Setting::NapiDefer { .. } => "defer-hard-irqs",
            Setting::NapiFlush { .. } => "gro-flush-timeout",
            Setting::DevDefer { .. } => "napi_defer_hard_irqs",
            Setting::DevFlush { .. } => "gro_flush_timeout",
            Setting::NapiThreaded { .. } | Setting::DevThreaded { .. } => "threaded",
            Setting::Gro { .. } => "gro",
            Setting::Lro { .. } => "lro",
            Setting::GroHw { .. } => "rx-gro-hw",
            Setting::RpsCpus { .. } => "rps_cpus",
            Setting::XpsCpus { .. } => "xps_cpus",
            Setting::RssTable { .. } => "rss_table",
            Setting::RfsEntries { .. } => "rps_flow_cnt",
            Setting::RfsTable => "rps_sock_flow_entries",
            Setting::IrqCpus { .. } => "smp_affinity",
            Setting::TaskCpus { .. } => "affinity",
        }
    }

    /// `value` with its unit, for the user.
    pub fn show(&self, value: &Value) -> String {
        match (self, value) {
            (Setting::NapiFlush { .. } | Setting::DevFlush { .. }, v) => format!("{v} ns"),
            (Setting::Gro { .. } | Setting::Lro { .. } | Setting::GroHw { .. }, Value::Number(n)) => {
                if *n == 0 { "off" } else { "on" }.into()
            }
            (_, v) => v.to_string(),
        }
    }

    /// It belongs to poll mode: without a poller packets wait for a timer.
    pub fn of_poll_mode(&self) -> bool {
        match self {
            Setting::NapiDefer { .. } | Setting::NapiFlush { .. } => true,
            Setting::DevDefer { .. } | Setting::DevFlush { .. } | Setting::RpsCpus { .. } => true,
            Setting::NapiThreaded { .. } | Setting::DevThreaded { .. } | Setting::Gro { .. } => false,
            // It goes with an XDP program, which stays while a guard stands still.
            Setting::Lro { .. } | Setting::GroHw { .. } => false,
            Setting::XpsCpus { .. } | Setting::RssTable { .. } => false,
            Setting::RfsEntries { .. } | Setting::RfsTable => false,
            Setting::IrqCpus { .. } | Setting::TaskCpus { .. } => false,
        }
    }

    /// It is a file whose write waits for the kernel's lock by trying again and again, so that a SCHED_FIFO thread would keep
    /// the lock's owner from its CPU.
    pub fn spins(&self) -> bool {
        let ioctl = matches!(
            self,
            Setting::Gro { .. } | Setting::Lro { .. } | Setting::GroHw { .. } | Setting::RssTable { .. }
        );
        self.napi_id().is_none() && !self.of_host() && !ioctl
    }

    /// True if the setting can have this value.
    pub fn accepts(&self, value: &Value) -> bool {
        match (self, value) {
            (Setting::RpsCpus { .. } | Setting::XpsCpus { .. }, v) => matches!(v, Value::Cpus(_)),
            // Without a CPU an interrupt or a thread would be nowhere.
            (Setting::IrqCpus { .. } | Setting::TaskCpus { .. }, v) => {
                matches!(v, Value::Cpus(cpus) if !cpus.is_empty())
            }
            (Setting::RssTable { .. }, v) => {
                matches!(v, Value::Queues(table) if (1..=ethtool::TABLE_MAX).contains(&table.len()))
            }
            (_, Value::Cpus(_) | Value::Queues(_)) => false,
            // The kernel takes powers of two; what it made of another one would be nobody's.
            (Setting::RfsEntries { .. } | Setting::RfsTable, Value::Number(n)) => {
                *n == 0 || (n.is_power_of_two() && *n <= RFS_MAX)
            }
            (Setting::NapiDefer { .. } | Setting::DevDefer { .. }, Value::Number(n)) => *n <= i32::MAX as u64,
            // The kernel arms a timer with it as signed 64-bit nanoseconds.
            (Setting::NapiFlush { .. } | Setting::DevFlush { .. }, Value::Number(n)) => *n <= i64::MAX as u64,
            (Setting::NapiThreaded { .. }, Value::Number(n)) => *n <= 2,
            (Setting::DevThreaded { .. } | Setting::Gro { .. }, Value::Number(n)) => *n <= 1,
            (Setting::Lro { .. } | Setting::GroHw { .. }, Value::Number(n)) => *n <= 1,
        }
    }

    fn what(&self) -> String {
        match self {
            Setting::IrqCpus { irq } => return format!("interrupt {irq}: {}", self.label()),
            Setting::TaskCpus { tid, .. } => return format!("thread {tid}: {}", self.label()),
            Setting::RfsTable => return self.label().into(),
            _ => {}
        }
        let name = netns::name_of(self.ifindex()).unwrap_or_else(|_| format!("interface {}", self.ifindex()));
        match self.napi_id() {
            Some(id) => format!("{name}: {} of NAPI {id}", self.label()),
            None => format!("{name}: {}", self.label()),
        }
    }
}

/// Whether an interface can be worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// There is no interface with this index here.
    Absent,
    /// It is there, but down: its NAPIs cannot be seen.
    Down,
    /// It is up.
    Up,
}

/// State of interface `ifindex` in the caller's namespace.
pub fn presence(ifindex: u32) -> Presence {
    match netns::name_of(ifindex).and_then(|name| ethtool::flags(&name)) {
        Ok(flags) if flags & libc::IFF_UP != 0 => Presence::Up,
        Ok(_) => Presence::Down,
        Err(_) => Presence::Absent,
    }
}

/// What settings are read and written through, in the namespace it was opened in.
pub struct Access {
    netdev: Option<Client>,
    refused: Option<String>,
    sysfs: Sysfs,
}

impl Access {
    /// Opens it for the caller's namespace; use it from threads of that one only.
    pub fn for_current_netns() -> Result<Self> {
        // What is refused here is done through sysfs, or not at all: then the one who asks says why.
        let (netdev, refused) = match Client::open() {
            Ok(client) => (Some(client), None),
            Err(Error::Unsupported { .. }) => (None, None),
            Err(e) => (None, Some(e.to_string())),
        };
        Ok(Access { netdev, refused, sysfs: Sysfs::for_current_netns()? })
    }

    /// The connection for NAPI settings; `None` on kernels without the family.
    pub fn netdev(&mut self) -> Option<&mut Client> {
        self.netdev.as_mut()
    }

    /// Why there is no such connection.
    pub fn no_netdev(&self) -> Option<String> {
        let why = || self.refused.clone().unwrap_or_else(|| "no netlink family netdev".into());
        self.netdev.is_none().then(why)
    }

    /// The sysfs of this namespace.
    pub fn sysfs(&self) -> &Sysfs {
        &self.sysfs
    }

    /// The NAPI that serves receive queue `queue` of `ifindex` now, if the kernel tells.
    pub fn napi_of_queue(&mut self, ifindex: u32, queue: u32) -> Option<u32> {
        let queues = self.queues(ifindex)?;
        let ids = self.netdev.as_mut()?.of_queues(ifindex, queues).ok()?;
        ids.get(queue as usize).copied()
    }

    /// Receive queues that `ifindex` has now.
    pub fn queues(&self, ifindex: u32) -> Option<u32> {
        self.sysfs.device(ifindex).and_then(|d| d.rx_queues()).ok()
    }

    /// The setting's value now. [`Error::Gone`] if its interface, NAPI or queue does not exist, also for the
    /// NAPIs of an interface that is down.
    pub fn read(&mut self, setting: &Setting) -> Result<Value> {
        let number = match *setting {
            Setting::NapiDefer { .. } => {
                need(self.napi(setting)?.defer_hard_irqs.map(u64::from), setting, "6.13")
            }
            Setting::NapiFlush { .. } => need(self.napi(setting)?.gro_flush_timeout_ns, setting, "6.13"),
            Setting::NapiThreaded { .. } => {
                need(self.napi(setting)?.threaded.map(|t| t.to_wire().into()), setting, "6.17")
            }
            Setting::DevDefer { ifindex } => self.sysfs.device(ifindex)?.defer_hard_irqs(),
            Setting::DevFlush { ifindex } => self.sysfs.device(ifindex)?.gro_flush_timeout_ns(),
            Setting::DevThreaded { ifindex } => self.sysfs.device(ifindex)?.threaded(),
            Setting::Gro { ifindex } => ethtool::gro(&netns::name_of(ifindex)?).map(u64::from),
            Setting::Lro { ifindex } => {
                ethtool::wanted(&netns::name_of(ifindex)?, ethtool::LRO).map(u64::from)
            }
            Setting::GroHw { ifindex } => {
                ethtool::wanted(&netns::name_of(ifindex)?, ethtool::GRO_HW).map(u64::from)
            }
            Setting::RpsCpus { ifindex, queue } => {
                let found = self.sysfs.device(ifindex)?.rps_cpus(queue);
                return found.map(Value::Cpus).map_err(|e| gone_queue(e, setting));
            }
            Setting::XpsCpus { ifindex, queue } => {
                let found = self.sysfs.device(ifindex)?.xps_cpus(queue);
                return found.map(Value::Cpus).map_err(|e| gone_queue(e, setting));
            }
            Setting::RfsEntries { ifindex, queue } => {
                self.sysfs.device(ifindex)?.rfs_entries(queue).map_err(|e| gone_queue(e, setting))
            }
            Setting::RfsTable => sysfs::rfs_table(),
            Setting::RssTable { ifindex } => {
                return ethtool::rss_table(&netns::name_of(ifindex)?).map(Value::Queues);
            }
            Setting::IrqCpus { irq } => return irq::allowed(irq).map(Value::Cpus),
            Setting::TaskCpus { tid, start } => return same_task(tid, start).map(Value::Cpus),
        };
        number.map(Value::Number)
    }

    /// Writes the value and reads it back; [`Error::ReadBack`] if the kernel shows another one.
    pub fn write(&mut self, setting: &Setting, value: &Value) -> Result<()> {
        if !setting.accepts(value) {
            return Err(Error::Invalid { what: setting.what(), why: format!("cannot be {value}") });
        }
        match (*setting, value) {
            (Setting::RpsCpus { ifindex, queue }, Value::Cpus(cpus)) => {
                self.sysfs.device(ifindex)?.set_rps_cpus(queue, cpus)?;
            }
            (Setting::XpsCpus { ifindex, queue }, Value::Cpus(cpus)) => {
                self.sysfs.device(ifindex)?.set_xps_cpus(queue, cpus)?;
            }
            (Setting::IrqCpus { irq }, Value::Cpus(cpus)) => irq::allow(irq, cpus)?,
            (Setting::TaskCpus { tid, start }, Value::Cpus(cpus)) => {
                same_task(tid, start)?;
                cpus::set_affinity(tid.cast_signed(), cpus)?;
            }
            (Setting::RssTable { ifindex }, Value::Queues(table)) => {
                ethtool::set_rss_table(&netns::name_of(ifindex)?, table)?;
            }
            (_, Value::Number(n)) => self.write_number(setting, *n)?,
            // `accepts` has refused the rest.
            (_, Value::Cpus(_) | Value::Queues(_)) => {}
        }
        let found = self.read(setting)?;
        if found != *value {
            return Err(Error::ReadBack {
                what: setting.what(),
                wrote: setting.show(value),
                found: setting.show(&found),
            });
        }
        Ok(())
    }

    fn write_number(&mut self, setting: &Setting, n: u64) -> Result<()> {
        match *setting {
            Setting::NapiDefer { .. } => {
                self.change(setting, Change { defer_hard_irqs: u32::try_from(n).ok(), ..Change::default() })
            }
            Setting::NapiFlush { .. } => {
                self.change(setting, Change { gro_flush_timeout_ns: Some(n), ..Change::default() })
            }
            Setting::NapiThreaded { .. } => {
                let threaded = u32::try_from(n).ok().and_then(Threaded::from_wire);
                self.change(setting, Change { threaded, ..Change::default() })
            }
            Setting::DevDefer { ifindex } => self.sysfs.device(ifindex)?.set_defer_hard_irqs(n),
            Setting::DevFlush { ifindex } => self.sysfs.device(ifindex)?.set_gro_flush_timeout_ns(n),
            Setting::DevThreaded { ifindex } => self.sysfs.device(ifindex)?.set_threaded(n),
            Setting::Gro { ifindex } => ethtool::set_gro(&netns::name_of(ifindex)?, n != 0),
            Setting::Lro { ifindex } => ethtool::set_wanted(&netns::name_of(ifindex)?, ethtool::LRO, n != 0),
            Setting::GroHw { ifindex } => {
                ethtool::set_wanted(&netns::name_of(ifindex)?, ethtool::GRO_HW, n != 0)
            }
            Setting::RfsEntries { ifindex, queue } => self.sysfs.device(ifindex)?.set_rfs_entries(queue, n),
            Setting::RfsTable => sysfs::set_rfs_table(n),
            // Its value is a set of CPUs or a table, never a number.
            Setting::RpsCpus { .. }
            | Setting::XpsCpus { .. }
            | Setting::RssTable { .. }
            | Setting::IrqCpus { .. }
            | Setting::TaskCpus { .. } => Ok(()),
        }
    }

    fn change(&mut self, setting: &Setting, change: Change) -> Result<()> {
        // An id of another interface would be a stale one that has been given out again.
        let id = self.napi(setting)?.id;
        self.client(setting)?.set(id, change)
    }

    /// The setting's NAPI, if it still belongs to the setting's interface.
    fn napi(&mut self, setting: &Setting) -> Result<Napi> {
        let gone = || Error::Gone { what: setting.what() };
        let napi = self.client(setting)?.get(setting.napi_id().ok_or_else(gone)?)?;
        if napi.ifindex == setting.ifindex() { Ok(napi) } else { Err(gone()) }
    }

    fn client(&mut self, setting: &Setting) -> Result<&mut Client> {
        self.netdev.as_mut().ok_or_else(|| Error::Unsupported { what: setting.what(), since: "6.13" })
    }
}

fn need(value: Option<u64>, setting: &Setting, since: &'static str) -> Result<u64> {
    value.ok_or_else(|| Error::Unsupported { what: setting.what(), since })
}

/// A queue that the interface has no more.
fn gone_queue(e: Error, setting: &Setting) -> Error {
    match e.errno() {
        Some(libc::ENOENT) => Error::Gone { what: setting.what() },
        _ => e,
    }
}

/// CPUs of a thread, if it is the one that was meant.
fn same_task(tid: u32, start: u64) -> Result<CpuSet> {
    if proc::start_time(tid) != Some(start) {
        return Err(Error::Gone { what: format!("thread {tid}") });
    }
    cpus::affinity(tid.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_its_own_range() {
        let (ifindex, napi_id) = (2, 8193);
        let defer = Setting::NapiDefer { ifindex, napi_id };
        assert!(defer.accepts(&Value::Number(8)));
        assert!(!defer.accepts(&Value::Number(1 << 31)));
        assert!(!defer.accepts(&Value::Cpus(CpuSet::new())));
        for switch in [Setting::Gro { ifindex }, Setting::Lro { ifindex }, Setting::GroHw { ifindex }] {
            assert!(switch.accepts(&Value::Number(1)) && !switch.accepts(&Value::Number(2)));
            assert_eq!([0, 1].map(|n| switch.show(&Value::Number(n))), ["off", "on"]);
            assert!(!switch.accepts(&Value::Cpus(CpuSet::new())) && !switch.spins());
            assert!(!switch.of_poll_mode() && !switch.of_host() && switch.ifindex() == ifindex);
        }
        let labels = [Setting::Lro { ifindex }.label(), Setting::GroHw { ifindex }.label()];
        assert_eq!(labels, ["lro", "rx-gro-hw"]);
        assert!(Setting::NapiThreaded { ifindex, napi_id }.accepts(&Value::Number(2)));
        assert!(!Setting::DevThreaded { ifindex }.accepts(&Value::Number(2)));
        assert!(!Setting::RpsCpus { ifindex, queue: 0 }.accepts(&Value::Number(0)));
        let rss = Setting::RssTable { ifindex };
        assert!(rss.accepts(&Value::Queues(vec![0, 1])) && !rss.accepts(&Value::Queues(vec![])));
        assert!(
            !rss.accepts(&Value::Queues(vec![0; ethtool::TABLE_MAX + 1])) && !rss.accepts(&Value::Number(0))
        );
        assert!(!defer.accepts(&Value::Queues(vec![0])));
        for rfs in [Setting::RfsTable, Setting::RfsEntries { ifindex, queue: 0 }] {
            let accepted = [0, 1, 32_768, RFS_MAX].iter().all(|n| rfs.accepts(&Value::Number(*n)));
            assert!(accepted && !rfs.accepts(&Value::Number(3)) && !rfs.accepts(&Value::Number(RFS_MAX * 2)));
        }
    }

    #[test]
    fn values_as_json() {
        assert_eq!(serde_json::to_string(&Value::Number(5)).unwrap(), "5");
        let cpus = Value::Cpus("0-1,4".parse().unwrap());
        assert_eq!(serde_json::to_string(&cpus).unwrap(), "\"0-1,4\"");
        assert_eq!(serde_json::from_str::<Value>("\"0-1,4\"").unwrap(), cpus);
        let queues = Value::Queues(vec![0, 1, 0]);
        assert_eq!(serde_json::to_string(&queues).unwrap(), "[0,1,0]");
        assert_eq!(serde_json::from_str::<Value>("[0,1,0]").unwrap(), queues);
        assert!(serde_json::from_str::<Value>("[0,-1]").is_err());
        assert!(serde_json::from_str::<Value>("-1").is_err());
        assert!(serde_json::from_str::<Value>("\"/etc/passwd\"").is_err());
        assert!(serde_json::from_str::<Value>("1.5").is_err());
    }

    #[test]
    fn a_table_is_shown_by_queue() {
        let shown = |table: &[u32]| Value::Queues(table.to_vec()).to_string();
        assert_eq!(shown(&[0, 1, 0, 1, 0]), "even over 2 queues");
        assert_eq!(shown(&[1, 1, 1]), "queue 1: 3 of 3");
        assert_eq!(shown(&[0, 0, 0, 1]), "queue 0: 3, 1: 1 of 4");
        assert_eq!(shown(&[1, 2]), "queue 1: 1, 2: 1 of 2");
        let many: Vec<u32> = (1..20).collect();
        assert!(shown(&many).ends_with("8: 1, ... of 19"), "{}", shown(&many));
    }
}
