//! The thread of one queue. It shares no line with the others: each has its own counters, which the report adds up.

use super::plan::Plan;
use nfqueue::{Message, Queue, Room, Verdicts};
use policy::screen::{Packet, Table, Verdict};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time in which a thread without packets does not see that it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// When nothing comes for this time after nothing new was let in, nothing waits.
const QUIET: Duration = Duration::from_millis(20);
/// Longest time in which what waits is answered at the end.
const LAST: Duration = Duration::from_secs(2);

/// A number with one writer: no locked instruction per packet.
#[derive(Debug, Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Adds; only ever called by the thread that counts.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    fn raise(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).max(n), Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What a rule has matched.
#[derive(Debug, Default)]
pub struct Hits {
    /// Packets.
    pub packets: Number,
    /// Bytes from the network header on.
    pub bytes: Number,
}

/// Counters of one thread.
#[derive(Debug, Default)]
pub struct Counts {
    /// One per rule, then that of the default.
    pub hits: Vec<Hits>,
    /// Reads that brought packets.
    pub batches: Number,
    /// Packets of the largest of them.
    pub largest: Number,
    /// Packets that were not IP, or whose ports or protocol were not seen.
    pub unclear: Number,
    /// Verdicts that the kernel did not take.
    pub refused: Number,
}

/// A queue with its thread.
pub struct Worker {
    /// Number of the queue.
    pub queue: u16,
    /// Its counters.
    pub counts: Arc<Counts>,
    thread: Option<JoinHandle<Result<Queue, String>>>,
    /// Open until the last report is made: the kernel's counters go with the queue.
    kept: Option<Queue>,
}

impl Worker {
    /// Starts the thread. If it fails it raises `stop`.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub fn start(queue: Queue, plan: &Plan, stop: Arc<AtomicBool>) -> io::Result<Worker> {
        let number = queue.number();
        let hits = (0..=plan.table.rules().len()).map(|_| Hits::default()).collect();
        let counts = Arc::new(Counts { hits, ..Counts::default() });
        let screen = Screen {
            table: Arc::clone(&plan.table),
            counts: Arc::clone(&counts),
            batch: plan.batch,
            absent: plan.absent,
        };
        let work = move || {
            // However it ends, the others end too: half a screen is none.
            let stop = Raise(stop);
            let mut queue = queue;
            let result = screen.work(&mut queue, &stop.0);
            result.map(|()| queue).map_err(|e| format!("queue {number}: {e}; the screen has ended"))
        };
        let thread = std::thread::Builder::new().name(format!("screen-{number}")).spawn(work)?;
        Ok(Worker { queue: number, counts, thread: Some(thread), kept: None })
    }

    /// Waits for the thread, which `stop` ends; why it failed, if it did. The queue lets nothing in any more.
    pub fn end(&mut self) -> Result<(), String> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let panicked = |_| format!("queue {}: its thread panicked; the screen has ended", self.queue);
        self.kept = Some(thread.join().map_err(panicked)??);
        Ok(())
    }

    /// One without queue and thread.
    #[cfg(test)]
    pub fn idle(queue: u16, rules: usize) -> Worker {
        let hits = (0..=rules).map(|_| Hits::default()).collect();
        Worker { queue, counts: Arc::new(Counts { hits, ..Counts::default() }), thread: None, kept: None }
    }
}

/// Raises the flag when it is dropped, by a panic too.
struct Raise(Arc<AtomicBool>);

impl Drop for Raise {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// What a thread knows.
struct Screen {
    table: Arc<Table>,
    counts: Arc<Counts>,
    batch: usize,
    absent: Verdict,
}

impl Screen {
    fn work(&self, queue: &mut Queue, stop: &AtomicBool) -> io::Result<()> {
        let (mut room, mut verdicts) = (Room::new(self.batch), queue.verdicts());
        queue.set_patience(LOOK)?;
        while !stop.load(Relaxed) {
            self.turn(queue, &mut room, &mut verdicts)?;
        }
        // What waits would be dropped with the queue.
        queue.let_nothing_in(self.absent == Verdict::Accept)?;
        queue.set_patience(QUIET)?;
        let end = Instant::now() + LAST;
        while self.turn(queue, &mut room, &mut verdicts)? && Instant::now() < end {}
        Ok(())
    }

    /// Reads what there is and answers it; false if there was nothing.
    fn turn(&self, queue: &mut Queue, room: &mut Room, verdicts: &mut Verdicts) -> io::Result<bool> {
        queue.receive(room)?;
        let mut packets = 0;
        for message in room.messages() {
            match message {
                Message::Packet(packet) => {
                    packets += 1;
                    verdicts.push(packet.id, self.judge(&packet));
                }
                Message::Done { errno: 0, .. } => {}
                Message::Done { .. } => self.counts.refused.add(1),
            }
        }
        if packets == 0 {
            return Ok(false);
        }
        self.counts.batches.add(1);
        self.counts.largest.raise(packets);
        if queue.answer(verdicts).is_err() {
            // They wait on, as `waiting` shows; where runs share a message the next run answers them too.
            self.counts.refused.add(packets);
        }
        Ok(true)
    }

    fn judge(&self, packet: &nfqueue::Packet<'_>) -> nfqueue::Verdict {
        let headers = Packet::read(packet.ethertype, packet.bytes);
        if !headers.clear() {
            self.counts.unclear.add(1);
        }
        let verdict = self.table.decide(&headers, |rule| {
            if let Some(hits) = self.counts.hits.get(rule) {
                hits.packets.add(1);
                hits.bytes.add(u64::from(packet.length));
            }
        });
        match verdict {
            Verdict::Accept => nfqueue::Verdict::Accept,
            Verdict::Deny => nfqueue::Verdict::Drop,
        }
    }
}
