//! The settings of one source at takeover and release (drivers.md section 4).

use std::sync::atomic::Ordering::Relaxed;

use kern::settings::Access;

use super::source::Source;

/// Makes the settings those of poll mode.
///
/// # Errors
/// If one is refused: then [`put_back`].
pub fn change(source: &Source, access: &mut Access) -> anyhow::Result<()> {
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
