//! Packet filters in user space as consumers (MR-22 for screend): queues that the kernel lists, matched with the sockets
//! that read them.
//!
//! What waits for a verdict waits in the program's netlink socket, so the level is that of its buffer or, where the
//! queue is shorter, that of its packets. The kernel does not tell the length of a queue: it is the default until a full
//! queue shows another. While (nearly) all packets of the guarded sources end in one filter, frames in transit count as
//! its own, so that input pauses when it is full; XDP sheds none of them, since only the rules know which are asked about.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use kern::guard::Gauges;
use kern::proc::FilterQueue;
use policy::Nanos;

use super::consumers::{Consumers, Placed, Untracked};
use super::dispatch::NewConsumer;

/// Length of a queue that its program did not set (NFQNL_QMAX_DEFAULT).
const MAXLEN: u32 = 1024;
/// A queue shorter than this is not believed: one look may find it just emptied.
const MAXLEN_MIN: u64 = 8;
/// Share of the packets of all guarded sources from which on a filter counts as what all of them end in, permille.
const NEARLY_ALL: u64 = 950;
/// Fewer packets than this between two looks tell no share.
const PACKETS_MIN: u64 = 200;

/// See the module.
#[derive(Default)]
pub struct Filters {
    /// Queues at the last look, by netlink port.
    known: HashMap<u32, FilterQueue>,
    packets: u64,
    /// Lengths learnt from full queues, by netlink port.
    maxlen: HashMap<u32, u32>,
}

/// Share of `packets` that came to a queue between two looks, permille; `None` if they are too few to tell.
fn share(before: &FilterQueue, now: &FilterQueue, packets: u64) -> Option<u64> {
    let came = |q: &FilterQueue| q.ids + q.queue_full;
    (packets >= PACKETS_MIN).then(|| came(now).saturating_sub(came(before)) * 1000 / packets)
}

impl Filters {
    /// Looks at the kernel's list; true while there is any queue, and then it wants to be called at each tick.
    pub fn look(&mut self, gauges: &mut Gauges, consumers: &Consumers) -> bool {
        let queues = kern::proc::filter_queues();
        let tracked: HashMap<u32, usize> =
            consumers.iter().filter_map(|(slot, c)| Some((c.filter?.1, slot))).collect();
        gauges.find_filters(queues.iter().any(|q| !tracked.contains_key(&q.port)));
        let packets: u64 = gauges.views.source_stats.iter().map(|s| s.packets.load(Relaxed)).sum();
        let handed_up = packets.wrapping_sub(std::mem::replace(&mut self.packets, packets));
        let mut transit = None;
        for queue in &queues {
            let before = self.known.get(&queue.port).copied().unwrap_or(*queue);
            let Some(slot) = tracked.get(&queue.port) else { continue };
            if queue.queue_full > before.queue_full && queue.waiting >= MAXLEN_MIN {
                let learnt = queue.waiting.min(u64::from(u32::MAX)) as u32;
                self.maxlen.insert(queue.port, learnt);
                gauges.views.consumer_ctls[*slot].maxlen.store(learnt, Relaxed);
            }
            let lost = queue.queue_full + queue.socket_full;
            gauges.views.consumer_stats[*slot].overflows.store(lost, Relaxed);
            match share(&before, queue, handed_up) {
                Some(permille) if permille >= NEARLY_ALL => transit = Some(*slot as u32 + 1),
                // Too few to tell: as before.
                None if gauges.views.guard[0].transit.load(Relaxed) == *slot as u32 + 1 => {
                    transit = Some(*slot as u32 + 1);
                }
                _ => {}
            }
        }
        gauges.views.guard[0].transit.store(transit.unwrap_or(0), Relaxed);
        self.maxlen.retain(|port, _| queues.iter().any(|q| q.port == *port));
        self.known = queues.iter().map(|q| (q.port, *q)).collect();
        !queues.is_empty()
    }

    /// A socket that read from netfilter: tracked if it reads a queue, and then its place.
    ///
    /// # Errors
    /// Why it is not tracked although it reads one.
    pub fn found(
        &self,
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
        if queues.len() == 1 {
            // Until the next look tells its share, the only filter counts as what all frames in transit end in: it is
            // full in the first milliseconds of a flood.
            gauges.views.guard[0].transit.store(placed.slot as u32 + 1, Relaxed);
        }
        Ok(Some(placed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_counts_what_was_refused_too() {
        let before = FilterQueue { ids: 100, queue_full: 10, ..FilterQueue::default() };
        let now = FilterQueue { ids: 500, queue_full: 110, ..before };
        assert_eq!(share(&before, &now, 1000), Some(500));
        assert_eq!(share(&before, &now, 500), Some(1000));
        assert_eq!(share(&before, &now, 100), None);
    }
}
