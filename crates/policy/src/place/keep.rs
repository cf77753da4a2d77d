//! What of a plan may be carried out: beside a program that moves interrupts itself, beside guards, and, while a plan is kept, beside an
//! administrator.
//!
//! # Properties
//! - A plan that would be taken back at once, or would take from a guard what it has set, is not carried out.
//! - What an administrator has set since stays his.
//! - A guard's interfaces, and the NAPI threads of their sources, are left to the guard.

use super::{Layout, Set, What};

/// Why no part of a plan is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// A program that moves interrupts would move them back.
    Rival,
    /// A guard has set some of what the plan would.
    Guard,
}

/// Whether something bars these settings: `balancer` moves interrupts by itself, `guarded`: a guard has one of the interfaces.
#[must_use]
pub fn barred(settings: &[Set], balancer: bool, guarded: bool) -> Option<Barred> {
    let irqs = settings.iter().any(|set| matches!(set.what, What::Irq { .. }));
    match (irqs && balancer, guarded) {
        (true, _) => Some(Barred::Rival),
        (false, true) => Some(Barred::Guard),
        (false, false) => None,
    }
}

/// Whose the value is that a setting has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// weir's, or weir has never set it.
    Ours,
    /// It is as it was before weir.
    Before,
    /// Somebody else's.
    Others,
}

/// Whether a setting that is not as planned is somebody's wish, and stays. A queue that was made anew has the value from before;
/// an interrupt or a table of RSS is not made anew without its device, and the machine's table of RFS never, so there that is a wish too.
#[must_use]
pub fn is_somebody_elses(what: What, whose: Whose) -> bool {
    match whose {
        Whose::Others => true,
        Whose::Before => matches!(what, What::Irq { .. } | What::Rss { .. } | What::RfsTable),
        Whose::Ours => false,
    }
}

/// Whether a guard of one of the interfaces that `guards` names sets this itself: while it polls it has RPS off, and in mode thread its
/// own CPUs for the threads of NAPIs.
#[must_use]
pub fn is_a_guards(layout: &Layout, what: What, guards: impl Fn(u32) -> bool) -> bool {
    match what {
        What::Task { tid, .. } => {
            let mut sources = layout.sources.iter().filter(|source| guards(source.ifindex));
            sources.any(|source| source.thread.as_ref().is_some_and(|thread| thread.tid == tid))
        }
        what => what.ifindex().is_some_and(guards),
    }
}
