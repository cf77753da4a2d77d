//! XDP programs of sources that are polled, by a thread of its own: attaching and detaching wait for the whole kernel (an RCU grace
//! period, which a program of a high SCHED_FIFO priority holds up), and the hands must put a poller's settings back meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use kern::guard::mode;

use super::{Peace, Phase, Work};
use crate::messages::{Command, Order, Report};
use crate::source::Source;
use crate::{clock, sched};

/// Stack of the thread, bytes.
pub(super) const STACK: usize = 64 * 1024;

/// What the thread is told.
pub(super) enum Job {
    /// The program counts and sheds this source's frames from here on; answered by [`Order::Attached`].
    Attach(Arc<Source>),
    /// Nobody may need the program any more.
    Detach(Arc<Source>),
}

/// The thread: it ends when nobody tells it anything any more.
pub(super) fn run(jobs: &Receiver<Job>, hands: &Sender<Order>) {
    // What it waits for may need its CPU.
    sched::ordinary();
    sched::strong();
    // Sources whose program may be needed no more: a flood that has just come does not wait for it to go.
    let mut idle: VecDeque<Arc<Source>> = VecDeque::new();
    loop {
        let job = match idle.is_empty() {
            true => jobs.recv().map_err(|_| TryRecvError::Disconnected),
            false => jobs.try_recv(),
        };
        match job {
            Ok(Job::Attach(source)) => {
                let held = source.hold_rx();
                // Hands that do not listen any more are ending with the guard.
                let _ = hands.send(Order::Attached { source, held });
            }
            // At most one of each source.
            Ok(Job::Detach(source)) if idle.iter().any(|s| Arc::ptr_eq(s, &source)) => {}
            Ok(Job::Detach(source)) => idle.push_back(source),
            Err(TryRecvError::Empty) => idle.pop_front().iter().for_each(|source| source.detach_rx()),
            Err(TryRecvError::Disconnected) => return idle.iter().for_each(|source| source.detach_rx()),
        }
    }
}

/// Whether a source needs its program: one that is polled, or whose poller has still to give it back, one that sheds, and one whose
/// handle is being marked. `phase` is none for one that is gone.
fn needs_rx(phase: Option<Phase>, sheds: bool, marks: bool) -> bool {
    phase.is_some_and(|phase| phase != Phase::Interrupt || sheds || marks)
}

impl Work {
    /// The next program that is to be attached, one at a time.
    pub(super) fn attach_next(&mut self) {
        let Some(source) = self.attach.pop() else { return };
        self.attaching = self.jobs.send(Job::Attach(source)).is_ok();
    }

    /// A program is attached, or refused. Its source may be polled no more.
    pub(super) fn attached(&mut self, source: Arc<Source>, held: std::io::Result<()>) {
        self.attaching = false;
        let counted = held.is_ok() && source.rx_attached();
        source.now.uncounted.store(!counted, Relaxed);
        let life = self.lives.get(&source.slot).filter(|l| Arc::ptr_eq(&l.source, &source));
        let phase = life.map(|l| l.phase);
        let sheds = self.h.views.source_ctls[source.slot].mode.load(Relaxed) == mode::SHED;
        let marks = life.is_some_and(|l| matches!(l.in_peace, Some(Peace::Asks(_))));
        if !needs_rx(phase, sheds, marks) {
            // It was released when nothing was attached for it yet, and nobody would release it again.
            self.bare(&source);
        }
        let Some(phase) = phase else { return };
        if let Phase::Polled { poller } = phase
            && !counted
            && source.now.by_polls.load(Relaxed)
        {
            // Before it can be ordered anew.
            if let Ok(mut dispatch) = self.h.dispatch.lock() {
                dispatch.is_uncounted(source.slot, clock::now());
            }
            let _ = self.h.pollers[poller].commands.send(Command::Uncounted(source.slot));
        }
        if let Err(e) = held {
            self.h.reports.send(Report::Warning { source, text: format!("no XDP program ({e}): no shed") });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_released_meanwhile_keeps_no_program() {
        assert!(!needs_rx(None, true, true) && !needs_rx(Some(Phase::Interrupt), false, false));
        assert!(
            needs_rx(Some(Phase::Interrupt), true, false) && needs_rx(Some(Phase::Interrupt), false, true)
        );
        assert!(needs_rx(Some(Phase::Polled { poller: 0 }), false, false));
        assert!(needs_rx(Some(Phase::Seized { poller: 0 }), false, false));
    }
}
