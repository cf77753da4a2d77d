//! The plan: all that weir changes on an interface, at start and while a source is polled, and what it leaves alone and why.
//! `--dry-run` prints it, the journal records it, the hands carry it out, and the status counts it.

use std::fmt;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use kern::change::{self, Change};
use kern::cpus::CpuSet;
use kern::guard::SOURCES;
use kern::journal::{Journal, Outcome};
use kern::napi::{Napi, Threaded};
use kern::settings::{Access, Setting, Value};
use policy::host::{DEFER, FIRST_FLUSH};

use crate::sched;

/// A journal that the threads of the guard share.
pub type Shared = Arc<Mutex<Journal>>;

/// Why a source is left as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftAlone {
    /// It has no NAPI.
    Down,
    /// A kernel thread polls it already.
    Threaded,
    /// A program suspends its interrupts.
    Suspended,
    /// RPS sends its packets to several CPUs.
    Spread(CpuSet),
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("it has no NAPI while it is down"),
            Self::Threaded => f.write_str("threaded NAPI is on already"),
            Self::Suspended => f.write_str("a program suspends its interrupts already"),
            Self::Spread(cpus) => {
                write!(f, "RPS spreads it over CPUs {cpus}, more than one poller can carry")
            }
        }
    }
}

/// What the user wants of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// That it is polled in overload, with this flush timeout, ns.
    Poll(u64),
    /// That a kernel thread polls it.
    Thread,
    /// That nothing is changed: XDP sheds.
    Shed,
}

/// What a plan is made from: the interface as it is now.
pub struct Found {
    /// Index.
    pub ifindex: u32,
    /// Receive queues, as far as there are slots for them.
    pub queues: u32,
    /// NAPI ids by receive queue, as far as the kernel tells; the handle's own id proves them at takeover.
    pub ids: Vec<u32>,
    napis: Vec<Napi>,
    /// The kernel lists NAPIs, and there is none.
    asleep: bool,
}

/// Whether the kernel is asked for its lists of NAPIs. In a build with debug assertions `WEIR_TEST_UNLISTED` makes it one that has none.
fn lists() -> bool {
    !cfg!(debug_assertions) || std::env::var_os("WEIR_TEST_UNLISTED").is_none()
}

impl Found {
    /// Looks.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn look(access: &mut Access, ifindex: u32) -> anyhow::Result<Self> {
        let queues = access.sysfs().device(ifindex)?.rx_queues()?.clamp(1, SOURCES as u32);
        let Some(netdev) = access.netdev().filter(|_| lists()) else {
            return Ok(Self::told(ifindex, queues, Vec::new(), None));
        };
        let ids = netdev.of_queues(ifindex, queues)?;
        Ok(Self::told(ifindex, queues, ids, netdev.list(ifindex).ok()))
    }

    /// Of what the kernel tells; `list` is none where it lists no NAPIs at all, as before 6.8.
    fn told(ifindex: u32, queues: u32, ids: Vec<u32>, list: Option<Vec<Napi>>) -> Self {
        let asleep = list.as_ref().is_some_and(Vec::is_empty);
        Self { ifindex, queues, ids, napis: list.unwrap_or_default(), asleep }
    }

    /// NAPI id of a queue; 0 if it is not known.
    pub fn id(&self, queue: u32) -> u32 {
        self.ids.get(queue as usize).copied().unwrap_or(0)
    }

    /// Why a source is left alone, if it is.
    pub fn left_alone(&self, access: &Access, queue: u32) -> Option<LeftAlone> {
        if self.asleep {
            return Some(LeftAlone::Down);
        }
        let napi = self.napis.iter().find(|n| n.id == self.id(queue));
        left_alone(access, self.ifindex, napi, &rps(access, self.ifindex, queue))
    }
}

/// Why a source is left as it was found, if it is.
pub fn left_alone(access: &Access, ifindex: u32, napi: Option<&Napi>, rps: &CpuSet) -> Option<LeftAlone> {
    let threaded = match napi.and_then(|n| n.threaded) {
        Some(threaded) => threaded != Threaded::Off,
        None => access.sysfs().device(ifindex).and_then(|d| d.threaded()).is_ok_and(|t| t != 0),
    };
    if threaded {
        return Some(LeftAlone::Threaded);
    }
    if napi.and_then(|n| n.irq_suspend_timeout_ns).is_some_and(|ns| ns != 0) {
        return Some(LeftAlone::Suspended);
    }
    (rps.len() > 1).then(|| LeftAlone::Spread(rps.clone()))
}

/// CPUs that RPS spreads a queue over.
pub fn rps(access: &Access, ifindex: u32, queue: u32) -> CpuSet {
    access.sysfs().device(ifindex).and_then(|d| d.rps_cpus(queue)).unwrap_or_default()
}

/// The one CPU that RPS sends all packets to, if it is one.
pub fn only(rps: &CpuSet) -> Option<u32> {
    rps.iter().next().filter(|_| rps.len() == 1).map(|cpu| cpu as u32)
}

/// The same for one source, by what the kernel says at this moment.
pub fn left_alone_now(access: &mut Access, (ifindex, queue, napi_id): (u32, u32, u32)) -> Option<LeftAlone> {
    let napi = access.netdev().and_then(|n| n.get(napi_id).ok());
    let rps = rps(access, ifindex, queue);
    left_alone(access, ifindex, napi.as_ref(), &rps)
}

/// What is changed on an interface at start, before its sources are known: a veth has NAPIs only with an XDP program or with
/// GRO on, and GRO is the way without XDP. `own`: its program is weir's, and goes when no source is polled.
pub fn at_start(access: &mut Access, ifindex: u32, name: &str, own: bool) -> Vec<Change> {
    // Without a list nobody knows whether there are any; GRO on makes sure.
    let none = own || access.netdev().is_none_or(|n| n.list(ifindex).map_or(true, |l| l.is_empty()));
    let veth = kern::ethtool::driver(name).is_ok_and(|d| d == "veth");
    let off = kern::ethtool::gro(name).is_ok_and(|on| !on);
    if !(none && veth && off) {
        return Vec::new();
    }
    vec![Change { setting: Setting::Gro { ifindex }, queue: None, new: Value::Number(1), first: None }]
}

/// What is changed of a source: at start for a thread, else while it is polled. Nothing yet for a NAPI whose id is to be
/// learnt first.
///
/// # Errors
/// If no setting does what is wished.
pub fn of_source(
    access: &mut Access,
    (ifindex, queue, napi_id): (u32, u32, u32),
    wish: Wish,
) -> anyhow::Result<Vec<Change>> {
    match wish {
        Wish::Shed => Ok(Vec::new()),
        Wish::Thread => of_thread(access, (ifindex, queue, napi_id)),
        Wish::Poll(flush) => of_poll(access, (ifindex, queue, napi_id), flush),
    }
}

/// Of the NAPI alone where the kernel can (6.17), else of the device.
fn of_thread(access: &mut Access, (ifindex, queue, napi_id): (u32, u32, u32)) -> anyhow::Result<Vec<Change>> {
    let mut last = None;
    for setting in [Setting::NapiThreaded { ifindex, napi_id }, Setting::DevThreaded { ifindex }] {
        match access.read(&setting) {
            Ok(_) => {
                return Ok(vec![Change { setting, queue: Some(queue), new: Value::Number(1), first: None }]);
            }
            Err(e) => last = Some(e),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("no threaded NAPI"), Into::into))
}

/// Of the NAPI alone where the kernel can (6.13), else of the device; and nothing may queue between the driver and the
/// consumer.
fn of_poll(
    access: &mut Access,
    (ifindex, queue, napi_id): (u32, u32, u32),
    flush: u64,
) -> anyhow::Result<Vec<Change>> {
    let of_napi = [Setting::NapiFlush { ifindex, napi_id }, Setting::NapiDefer { ifindex, napi_id }];
    let of_device = [Setting::DevFlush { ifindex }, Setting::DevDefer { ifindex }];
    let settings = if napi_id == 0 {
        let later = access.netdev().is_some_and(|n| n.has_settings().unwrap_or(false));
        (!later).then_some(of_device)
    } else {
        match access.read(&of_napi[0]) {
            Err(kern::error::Error::Unsupported { .. }) => Some(of_device),
            _ => Some(of_napi),
        }
    };
    let first = (FIRST_FLUSH > flush).then_some(Value::Number(FIRST_FLUSH));
    let change = |setting, new, first| Change { setting, queue: Some(queue), new, first };
    let mut changes = match settings {
        Some([timer, defer]) => {
            vec![change(timer, Value::Number(flush), first), change(defer, Value::Number(DEFER), None)]
        }
        None => Vec::new(),
    };
    if !rps(access, ifindex, queue).is_empty() {
        changes.push(change(Setting::RpsCpus { ifindex, queue }, Value::Cpus(CpuSet::new()), None));
    }
    Ok(changes)
}

/// The interface has several queues, and what holds interrupts back holds for all of them.
pub fn is_of_device(access: &mut Access, name: &str) -> bool {
    let settings = access.netdev().is_some_and(|n| n.has_settings().unwrap_or(false));
    let device = kern::netns::index_of(name).and_then(|ifindex| access.sysfs().device(ifindex));
    !settings && device.and_then(|d| d.rx_queues()).is_ok_and(|queues| queues > 1)
}

/// What a guard of the interface would change, and what it leaves as found; changes nothing.
///
/// # Errors
/// If the interface is gone, or a setting cannot be read.
pub fn preview(access: &mut Access, name: &str, wish: Wish) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let ifindex = kern::netns::index_of(name)?;
    let line = |access: &mut Access, target: &str, change: &Change| -> anyhow::Result<String> {
        let show = |value: &Value| change.setting.show(value);
        let old = show(&access.read(&change.setting)?);
        let first = change.first.as_ref().map_or(String::new(), |f| format!("{}, then ", show(f)));
        Ok(format!("{target}  {:<18} {old} -> {first}{}", change.setting.label(), show(&change.new)))
    };
    let start = at_start(access, ifindex, name, false);
    let early = start.iter().map(|c| line(access, name, c)).collect::<anyhow::Result<Vec<_>>>()?;
    let found = Found::look(access, ifindex)?;
    let mut late = Vec::new();
    for queue in 0..found.queues {
        let target = format!("{name}/{queue}");
        // What has no NAPI now has one once GRO is on.
        if let (Some(why), true) = (found.left_alone(access, queue), start.is_empty()) {
            late.push(format!("{target}  nothing: {why}"));
            continue;
        }
        let changes = of_source(access, (ifindex, queue, found.id(queue)), wish)?;
        if found.id(queue) == 0 && !changes.iter().any(Change::of_device) {
            late.push(format!("{target}  settings of its NAPI, once its id is known"));
        }
        for change in &changes {
            late.push(line(access, &target, change)?);
        }
    }
    Ok((early, late))
}

/// Makes changes, after the present values are in the journal.
///
/// # Errors
/// As [`change::make`]; then everything is as before.
pub fn make(access: &mut Access, journal: &Shared, changes: &[Change]) -> anyhow::Result<()> {
    let _gentle = gentle(changes);
    let mut journal = journal.lock().map_err(|_| anyhow::anyhow!("its journal is broken"))?;
    change::make(access, &mut journal, changes).context("a setting")
}

/// The takeover is over: what it held longer gets its value of poll mode.
///
/// # Errors
/// As [`change::settle`].
pub fn settle(access: &mut Access, changes: &[Change]) -> kern::error::Result<()> {
    let _gentle = gentle(changes);
    change::settle(access, changes)
}

fn gentle(changes: &[Change]) -> Option<sched::Gentle> {
    changes.iter().any(|c| c.setting.spins()).then(sched::Gentle::begin)
}

/// Puts the old values back; what somebody else has changed meanwhile is left.
pub fn put_back(access: &mut Access, journal: &Shared, changes: &[Change]) -> Vec<Outcome> {
    let _gentle = gentle(changes);
    journal.lock().map_or_else(|_| Vec::new(), |journal| change::put_back(access, &journal, changes))
}

/// A NAPI that came back with values of weir gets those from before weir.
///
/// # Errors
/// If a setting is refused.
pub fn disown(access: &mut Access, journal: &Shared, changes: &[Change]) -> anyhow::Result<()> {
    let journal = journal.lock().map_err(|_| anyhow::anyhow!("its journal is broken"))?;
    for change in changes.iter().rev() {
        let Ok(found) = access.read(&change.setting) else { continue };
        let before = journal.before(&change.setting, change.queue, &found);
        match if before == found { Ok(()) } else { access.write(&change.setting, &before) } {
            // Absent again: the journal knows.
            Err(e) if !e.is_gone() => return Err(e.into()),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_down_only_where_the_kernel_lists_no_napi_of_it() {
        let listed = |list| Found::told(2, 1, Vec::new(), list).asleep;
        assert!(listed(Some(Vec::new())));
        assert!(!listed(None), "a kernel before 6.8 lists none of what is up, either");
    }
}
