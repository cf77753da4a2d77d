//! LRO and hardware GRO of an interface, which the kernel switches off for good where an XDP program is attached by its generic hook.
//!
//! Many drivers reset their rings for that, some the link: under overload that costs more than a gate is worth.

use std::io;
use std::sync::Mutex;

use kern::change::Change;
use kern::guard::Offloads;
use kern::settings::{Access, Setting, Value};

use crate::plan;

/// Of one interface; what is switched off is in its journal until it is back.
pub struct Switched {
    ifindex: u32,
    may: bool,
    journal: plan::Shared,
    off: Mutex<Vec<Change>>,
}

impl Switched {
    /// Nothing yet; `may`: they may be switched.
    pub fn new(ifindex: u32, may: bool, journal: plan::Shared) -> Self {
        Self { ifindex, may, journal, off: Mutex::default() }
    }
}

impl Offloads for Switched {
    fn off(&self) -> io::Result<()> {
        let broken = |_| io::Error::other("a thread broke what is known of its offloads");
        let mut off = self.off.lock().map_err(broken)?;
        let mut access = Access::for_current_netns().map_err(io::Error::other)?;
        let ifindex = self.ifindex;
        let both = [Setting::Lro { ifindex }, Setting::GroHw { ifindex }];
        // What a device does not have, and what it cannot change, is not read.
        let on = |setting: &Setting| access.read(setting).is_ok_and(|value| value == Value::Number(1));
        let on: Vec<Setting> = both.into_iter().filter(on).collect();
        let change = |setting| Change { setting, queue: None, new: Value::Number(0), first: None };
        let changes: Vec<Change> = on.into_iter().map(change).collect();
        if changes.is_empty() {
            return Ok(());
        }
        if !self.may {
            let named = |change: &Change| match change.setting {
                Setting::Lro { .. } => " lro off",
                _ => " rx-gro-hw off",
            };
            let name = kern::netns::name_of(ifindex).map_err(io::Error::other)?;
            let which: String = changes.iter().map(named).collect();
            let why =
                format!("to switch LRO or hardware GRO off may reset the NIC: ethtool -K {name}{which}");
            return Err(io::Error::other(why));
        }
        plan::make(&mut access, &self.journal, &changes).map_err(io::Error::other)?;
        *off = changes;
        Ok(())
    }

    fn back(&self) {
        // A lock that a thread broke, and a namespace that cannot be read any more: the journal has them.
        let Ok(changes) = self.off.lock().map(|mut off| std::mem::take(&mut *off)) else { return };
        if changes.is_empty() {
            return;
        }
        let Ok(mut access) = Access::for_current_netns() else { return };
        plan::put_back(&mut access, &self.journal, &changes);
    }
}
