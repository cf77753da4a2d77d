//! Takeover and release of one source (drivers.md section 4): handle, settings, prove one turn, else undo at once.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kern::guard::{Handle, Views, mode};
use kern::settings::Access;

use super::sched;
use super::source::Source;

/// Longest wait for a packet that marks the handle.
const MARK_PATIENCE: Duration = Duration::from_millis(10);
/// Frames that may be rewritten per takeover in vain; each is lost to its consumer and counted as `marked`.
const MARKS_MAX: u16 = 4;
/// Tries of the first turn: the NAPI may belong to a softirq that is about to end.
const PROOF_TRIES: u32 = 40;
const PROOF_NAP: Duration = Duration::from_micros(50);

/// Takes the source over for the calling thread on `cpu`; the number of driver calls per turn to begin with.
///
/// # Errors
/// If the handle cannot learn its id, a setting is refused, or no turn polls: then everything is as before.
pub fn take(
    source: &Source,
    views: &Views,
    access: &mut Access,
    quota: u32,
    cpu: usize,
) -> anyhow::Result<u32> {
    let ctl = &views.source_ctls[source.slot];
    let stat = &views.source_stats[source.slot];
    let mut handle = source.handle.lock().map_err(|_| anyhow::anyhow!("its handle is broken"))?;
    mark(source, views, &handle)?;
    // A full turn tells how many calls it makes; two is the safe guess, since it makes a turn smaller, never larger.
    let polls_per_turn = 2;
    handle.arm(quota / polls_per_turn).context("preferred busy polling is refused")?;
    ctl.cpu.store(cpu as u32, Relaxed);
    ctl.poller_tid.store(sched::tid(), Relaxed);
    if let Err(e) = change(source, access, true) {
        put_back(source, access);
        return Err(e);
    }
    ctl.mode.store(mode::POLL, Relaxed);
    let polls = stat.own_polls.load(Relaxed);
    for _ in 0..PROOF_TRIES {
        handle.turn();
        if stat.own_polls.load(Relaxed) != polls {
            return Ok(polls_per_turn);
        }
        std::thread::sleep(PROOF_NAP);
    }
    ctl.mode.store(mode::INTERRUPT, Relaxed);
    put_back(source, access);
    handle.turn();
    bail!("its turns poll nothing")
}

/// Back to interrupts: old settings, then one more turn, else the queue waits for the old timer.
pub fn give_back(source: &Source, views: &Views, access: &mut Access) {
    put_back(source, access);
    views.source_ctls[source.slot].mode.store(mode::INTERRUPT, Relaxed);
    if let Ok(handle) = source.handle.lock() {
        handle.turn();
    }
}

fn change(source: &Source, access: &mut Access, to_poll: bool) -> anyhow::Result<()> {
    let plan = source.plan.lock().map_err(|_| anyhow::anyhow!("its plan is broken"))?;
    for planned in plan.iter() {
        let value = if to_poll { &planned.new } else { &planned.old };
        access.write(&planned.setting, value)?;
    }
    Ok(())
}

/// Writes the old values back, newest change first.
pub fn put_back(source: &Source, access: &mut Access) {
    let Ok(plan) = source.plan.lock() else { return };
    for planned in plan.iter().rev() {
        // A setting that is gone with its NAPI needs no restoring; anything else is found and told by undo at exit.
        let _ = access.write(&planned.setting, &planned.old);
    }
}

/// Waits until a rewritten frame has told the handle its NAPI id, then closes the handle's intake.
fn mark(source: &Source, views: &Views, handle: &Handle) -> anyhow::Result<()> {
    let expected = source.napi_id.load(Relaxed);
    if handle.napi_id()?.is_some() {
        source.marked.store(true, Relaxed);
        return Ok(());
    }
    let ctl = &views.source_ctls[source.slot];
    let marked = views.rx_stats[source.slot].marked.load(Relaxed);
    ctl.mark_port.store(handle.port(), Relaxed);
    let start = Instant::now();
    let mut allowed = 0;
    let id = loop {
        if allowed < MARKS_MAX
            && views.rx_stats[source.slot].marked.load(Relaxed) == marked + u64::from(allowed)
        {
            allowed += 1;
            ctl.marks.store((marked as u16).wrapping_add(allowed), Relaxed);
        }
        if let Some(id) = handle.napi_id()? {
            break id;
        }
        if start.elapsed() > MARK_PATIENCE {
            ctl.marks.store(0, Relaxed);
            bail!("no packet told its NAPI id within {} ms", MARK_PATIENCE.as_millis());
        }
        std::thread::sleep(PROOF_NAP);
    };
    ctl.marks.store(0, Relaxed);
    handle.seal()?;
    if expected != 0 && id != expected {
        bail!("the packet came through NAPI {id}, not {expected}: its queue is read by another source");
    }
    source.napi_id.store(id, Relaxed);
    source.marked.store(true, Relaxed);
    Ok(())
}
