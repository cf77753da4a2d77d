//! XDP programs of sources that are polled, by a thread of its own: attaching and detaching wait for the whole kernel (an RCU grace
//! period, which a program of a high SCHED_FIFO priority holds up), and the hands must put a poller's settings back meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};

use super::{Phase, Work};
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
    for job in jobs {
        match job {
            Job::Attach(source) => {
                let held = source.hold_rx();
                // Hands that do not listen any more are ending with the guard.
                let _ = hands.send(Order::Attached { source, held });
            }
            Job::Detach(source) => source.detach_rx(),
        }
    }
}

impl Work {
    /// The next program that is to be attached, one at a time.
    pub(super) fn attach_next(&mut self) {
        let Some(source) = self.attach.pop() else { return };
        self.attaching = self.jobs.send(Job::Attach(source)).is_ok();
    }

    /// A program is attached, or refused. Its source may be polled no more: then it is released already.
    pub(super) fn attached(&mut self, source: Arc<Source>, held: std::io::Result<()>) {
        self.attaching = false;
        let counted = held.is_ok() && source.rx_attached();
        source.now.uncounted.store(!counted, Relaxed);
        let life = self.lives.get(&source.slot).filter(|l| Arc::ptr_eq(&l.source, &source));
        let Some(phase) = life.map(|l| l.phase) else { return };
        if let Phase::Polled { poller } = phase
            && !counted
            && source.now.by_polls.load(Relaxed)
        {
            // Before it can be ordered anew.
            if let Ok(mut dispatch) = self.h.dispatch.lock() {
                dispatch.was_bulk(source.slot, clock::now());
            }
            let _ = self.h.pollers[poller].commands.send(Command::Uncounted(source.slot));
        }
        if let Err(e) = held {
            self.h.reports.send(Report::Warning { source, text: format!("no XDP program ({e}): no shed") });
        }
    }
}
