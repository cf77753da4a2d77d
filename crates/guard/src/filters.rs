//! Packet filters in user space as consumers (MR-22 for screend): queues that the kernel lists, matched with the sockets
//! that read them.
//!
//! What waits for a verdict waits in the program's netlink socket, so the level is that of its buffer or, where the
//! queue is shorter, that of its packets. The kernel does not tell the length of a queue: it is the default until a full
//! queue shows another. While (nearly) all packets of the guarded sources end in filters, frames in transit count as those of the
//! one that `policy::filters` names; XDP sheds none of them, since only the rules know which are asked about.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use kern::guard::Gauges;
use kern::proc::FilterQueue;
use policy::filters::{self, Seen};
use policy::{Nanos, Permille};

use crate::consumers::{Consumers, Placed, Untracked};
use crate::dispatch::NewConsumer;

/// Length of a queue that its program did not set (NFQNL_QMAX_DEFAULT).
const MAXLEN: u32 = 1024;
/// A queue shorter than this is not believed: one look may find it just emptied.
const MAXLEN_MIN: u64 = 8;

/// See the module.
#[derive(Default)]
pub struct Filters {
    /// Packets that found each queue full at the last look, by netlink port.
    refused: HashMap<u32, u64>,
    policy: filters::Filters,
    /// Lengths learnt from full queues, by netlink port.
    maxlen: HashMap<u32, u32>,
}

/// A queue, with its place among the consumers.
fn seen(queue: &FilterQueue, slot: Option<usize>, gauges: &Gauges) -> Seen {
    let level = |slot: usize| gauges.views.consumer_stats[slot].level.load(Relaxed).min(1000) as Permille;
    Seen {
        queue: queue.queue,
        came: queue.ids + queue.queue_full,
        place: slot.map(|slot| (slot, level(slot))),
    }
}

impl Filters {
    /// Looks at the kernel's list; true while there is any queue, and then it wants to be called at each tick.
    pub fn look(&mut self, gauges: &mut Gauges, consumers: &Consumers, now: Nanos) -> bool {
        let queues = kern::proc::filter_queues();
        let tracked: HashMap<u32, usize> =
            consumers.iter().filter_map(|(slot, c)| Some((c.filter?.1, slot))).collect();
        gauges.find_filters(queues.iter().any(|q| !tracked.contains_key(&q.port)));
        let packets: u64 = gauges.views.source_stats.iter().map(|s| s.packets.load(Relaxed)).sum();
        for queue in &queues {
            let Some(slot) = tracked.get(&queue.port) else { continue };
            let before = self.refused.get(&queue.port).copied().unwrap_or(queue.queue_full);
            if queue.queue_full > before && queue.waiting >= MAXLEN_MIN {
                let learnt = queue.waiting.min(u64::from(u32::MAX)) as u32;
                self.maxlen.insert(queue.port, learnt);
                gauges.views.consumer_ctls[*slot].maxlen.store(learnt, Relaxed);
            }
            let lost = queue.queue_full + queue.socket_full;
            gauges.views.consumer_stats[*slot].overflows.store(lost, Relaxed);
        }
        let all: Vec<Seen> = queues.iter().map(|q| seen(q, tracked.get(&q.port).copied(), gauges)).collect();
        let decides = self.policy.look(now, packets, &all);
        gauges.views.guard[0].transit.store(decides.map_or(0, |slot| slot as u32 + 1), Relaxed);
        self.maxlen.retain(|port, _| queues.iter().any(|q| q.port == *port));
        self.refused = queues.iter().map(|q| (q.port, q.queue_full)).collect();
        !queues.is_empty()
    }

    /// A socket that read from netfilter: tracked if it reads a queue, and then its place.
    ///
    /// # Errors
    /// Why it is not tracked although it reads one.
    pub fn found(
        &mut self,
        gauges: &Gauges,
        consumers: &mut Consumers,
        new: &NewConsumer,
        now: Nanos,
    ) -> Result<Option<Placed>, Untracked> {
        let queues = kern::proc::filter_queues();
        let mut own = queues.iter().filter(|q| q.port == new.netlink);
        // One socket may read several queues; then one full queue says nothing about the others.
        let (Some(queue), None) = (own.next(), own.next()) else { return Ok(None) };
        let maxlen = self.maxlen.get(&queue.port).copied().unwrap_or(MAXLEN);
        let socket = (new.sk, new.cookie);
        let placed = consumers.add_filter(gauges, socket, (queue.queue, queue.port), maxlen, now)?;
        if queues.len() == 1
            && let Some(slot) = self.policy.only(now, &seen(queue, Some(placed.slot), gauges))
        {
            gauges.views.guard[0].transit.store(slot as u32 + 1, Relaxed);
        }
        Ok(Some(placed))
    }
}
