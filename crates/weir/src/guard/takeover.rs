//! Takeover and release of one source (drivers.md section 4): handle, settings, prove one turn, else undo at once.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use kern::guard::{Handle, Views, mode};
use kern::settings::Access;
use policy::causes::Refusal;
use policy::holding::Counters;
use policy::turns::Turns;

use super::source::Source;
use super::{clock, sched};

/// Longest wait for a packet that marks the handle.
const MARK_PATIENCE: Duration = Duration::from_millis(10);
/// Frames that may be rewritten per takeover in vain; each is lost to its consumer and counted as `marked`.
const MARKS_MAX: u16 = 4;
/// Tries of the first turn: the NAPI may belong to a softirq that is about to end. It ends after at most 64 packets,
/// which on the slowest machine takes some milliseconds.
const PROOF_TRIES: u32 = 200;
const PROOF_NAP: Duration = Duration::from_micros(50);

/// Why a takeover failed.
#[derive(Debug)]
pub struct Refused {
    /// At what.
    pub at: Refusal,
    /// More about it, for people.
    pub why: anyhow::Error,
}

impl Refused {
    fn at(at: Refusal) -> impl Fn(anyhow::Error) -> Self {
        move |why| Self { at, why }
    }
}

/// Takes the source over for the calling thread, poller number `poller` on `cpu`.
///
/// A handle that knows its id already needs no XDP program: then none is attached here, which takes milliseconds. That
/// is the control loop's to do, once the source is polled.
///
/// # Errors
/// If the handle cannot learn its id, a setting is refused, or no turn polls: then everything is as before.
pub fn take(
    source: &Source,
    views: &Views,
    access: &mut Access,
    quota: u32,
    (poller, cpu): (usize, usize),
) -> Result<(), Refused> {
    let taken = poll(source, views, access, quota, (poller, cpu));
    if taken.is_err() {
        source.release_rx(clock::now());
    }
    taken
}

fn poll(
    source: &Source,
    views: &Views,
    access: &mut Access,
    quota: u32,
    (poller, cpu): (usize, usize),
) -> Result<(), Refused> {
    let ctl = &views.source_ctls[source.slot];
    let stat = &views.source_stats[source.slot];
    let handle = source.handle.lock();
    let mut handle = handle.map_err(|_| Refused::at(Refusal::Other)(anyhow!("its handle is broken")))?;
    mark(source, views, &handle).map_err(Refused::at(Refusal::Unmarked))?;
    let armed = handle.arm(Turns::default().budget(quota)).context("preferred busy polling is refused");
    armed.map_err(Refused::at(Refusal::Other))?;
    ctl.cpu.store(cpu as u32, Relaxed);
    ctl.poller.store(poller as u32, Relaxed);
    ctl.poller_tid.store(sched::tid(), Relaxed);
    if let Err(e) = change(source, access) {
        put_back(source, access);
        return Err(Refused::at(Refusal::Setting)(e));
    }
    ctl.mode.store(mode::POLL, Relaxed);
    let polls = stat.own_polls.load(Relaxed);
    for _ in 0..PROOF_TRIES {
        handle.turn();
        if stat.own_polls.load(Relaxed) != polls {
            return Ok(());
        }
        std::thread::sleep(PROOF_NAP);
    }
    ctl.mode.store(mode::INTERRUPT, Relaxed);
    put_back(source, access);
    handle.turn();
    Err(Refused::at(Refusal::NoTurn)(anyhow!("its turns poll nothing")))
}

/// Back to interrupts: old settings, then one more turn, else the queue waits for the old timer.
pub fn give_back(source: &Source, views: &Views, access: &mut Access) {
    put_back(source, access);
    views.source_ctls[source.slot].mode.store(mode::INTERRUPT, Relaxed);
    if let Ok(handle) = source.handle.lock() {
        handle.turn();
    }
}

fn change(source: &Source, access: &mut Access) -> anyhow::Result<()> {
    let plan = source.plan.lock().map_err(|_| anyhow::anyhow!("its plan is broken"))?;
    // Held while writing: another source of the device must not be polled before its settings are in force.
    let mut polled = source.hold.0.lock().map_err(|_| anyhow::anyhow!("its device is broken"))?;
    source.held.store(true, Relaxed);
    *polled += 1;
    for planned in plan.iter().filter(|p| *polled == 1 || !p.of_device()) {
        access.write(&planned.setting, planned.first.as_ref().unwrap_or(&planned.new))?;
    }
    Ok(())
}

/// The takeover is over, those of other sources too: what it held longer has its value of poll mode from here on.
///
/// # Errors
/// If a setting is refused.
pub fn settle(source: &Source, access: &mut Access) -> anyhow::Result<()> {
    let plan = source.plan.lock().map_err(|_| anyhow::anyhow!("its plan is broken"))?;
    for planned in plan.iter().filter(|p| p.first.is_some()) {
        access.write(&planned.setting, &planned.new)?;
    }
    Ok(())
}

/// Writes the old values back, newest change first; those of the device after its last source.
pub fn put_back(source: &Source, access: &mut Access) {
    let (Ok(plan), Ok(mut polled)) = (source.plan.lock(), source.hold.0.lock()) else { return };
    if !source.held.swap(false, Relaxed) {
        return;
    }
    *polled = polled.saturating_sub(1);
    for planned in plan.iter().rev().filter(|p| *polled == 0 || !p.of_device()) {
        // A setting that is gone with its NAPI needs no restoring; anything else is found and told by undo at exit.
        let _ = access.write(&planned.setting, &planned.old);
    }
}

/// Counters by which the driver is judged; `None` if its interrupt cannot be counted.
pub fn counters(source: &Source, views: &Views) -> Option<Counters> {
    let interrupts = kern::irq::count(source.irq?).ok()?;
    let stat = &views.source_stats[source.slot];
    let (packets, own) = (stat.packets.load(Relaxed), stat.own_packets.load(Relaxed));
    Some(Counters { interrupts, packets, foreign: packets.saturating_sub(own) })
}

/// True once the handle knows its NAPI id; then its intake is closed.
///
/// # Errors
/// If the id is another one than the kernel lists for the queue.
pub fn marked(source: &Source, views: &Views, handle: &Handle) -> anyhow::Result<bool> {
    let Some(id) = handle.napi_id()? else { return Ok(false) };
    if source.marked.load(Relaxed) {
        return Ok(true);
    }
    views.source_ctls[source.slot].marks.store(0, Relaxed);
    handle.seal()?;
    let expected = source.napi_id.load(Relaxed);
    if expected != 0 && id != expected {
        bail!("the packet came through NAPI {id}, not {expected}: its queue is read by another source");
    }
    if expected == 0 {
        // The control loop prepares the source before it can be taken over.
        views.source_stats[source.slot].napi_id.store(id, Relaxed);
    }
    source.marked.store(true, Relaxed);
    Ok(true)
}

/// Asks for one frame to mark the handle; the first `spare` frames that somebody would miss are let go. Returns at once.
pub fn ask(source: &Source, views: &Views, handle: &Handle, spare: u32) {
    let (ctl, stat) = (&views.source_ctls[source.slot], &views.rx_stats[source.slot]);
    ctl.mark_port.store(handle.port(), Relaxed);
    ctl.spare.store(stat.spared.load(Relaxed).wrapping_add(spare), Relaxed);
    ctl.marks.store((stat.marked.load(Relaxed) as u16).wrapping_add(1), Relaxed);
}

/// Waits until a rewritten frame has told the handle its NAPI id, then closes the handle's intake.
fn mark(source: &Source, views: &Views, handle: &Handle) -> anyhow::Result<()> {
    if marked(source, views, handle)? {
        return Ok(());
    }
    source.hold_rx().context("its XDP program")?;
    let stat = &views.rx_stats[source.slot];
    let start = Instant::now();
    let mut asked = 0;
    let mut seen = None;
    while !marked(source, views, handle)? {
        let now = stat.marked.load(Relaxed);
        if asked < MARKS_MAX && seen != Some(now) {
            asked += 1;
            seen = Some(now);
            ask(source, views, handle, 0);
        }
        if start.elapsed() > MARK_PATIENCE {
            views.source_ctls[source.slot].marks.store(0, Relaxed);
            bail!("no packet told its NAPI id within {} ms", MARK_PATIENCE.as_millis());
        }
        std::thread::sleep(PROOF_NAP);
    }
    Ok(())
}
