//! Handles that wait for a packet while nothing else does: those that are marked in peace, and the sockets that are to take the place
//! of rings.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use policy::Nanos;
use policy::marking::{self, IN_PEACE_MAX, LOOKS};

use super::{Life, Peace, Phase, Work};
use crate::clock;
use crate::marking::Search;
use crate::messages::Command;
use crate::source::Source;

impl Work {
    /// Looks for a socket in place of the io_uring that polls this source from now on.
    pub(super) fn improve(&mut self, slot: usize, now: Nanos) {
        if self.h.steering.is_some()
            && let Some(life) = self.lives.get_mut(&slot)
        {
            life.improving = Some(Search::begin(now));
            self.look = (now + LOOKS.0, LOOKS.0);
        }
    }

    /// Gives pollers the sockets that datagrams have marked meanwhile. True if some are still looked for.
    fn look_at_rings(&mut self, now: Nanos) -> bool {
        let Work { h, lives, .. } = self;
        // One handle of an interface can wait at a time.
        let mut asked = BTreeSet::new();
        for life in lives.values_mut() {
            let Phase::Polled { poller } = life.phase else { continue };
            let Some(mut search) = life.improving else { continue };
            if !asked.insert(life.source.first) {
                continue;
            }
            let found = life.marking.improve(&h.views, &mut search);
            let goes_on = found.is_none() && marking::improves(now.saturating_sub(search.since), search.lost);
            life.improving = goes_on.then_some(search);
            if !goes_on {
                life.marking.end(&h.views);
            }
            if let Some(handle) = found {
                let source = Arc::clone(&life.source);
                // A poller that has ended has given the source back.
                let _ = h.pollers[poller].commands.send(Command::Upgrade { source, handle });
            }
        }
        lives.values().any(|l| l.improving.is_some())
    }

    /// Notes which handles packets have marked; ends marking when all are, or when some have waited long enough while
    /// others got packets.
    pub(super) fn look_at_marks(&mut self) {
        let now = clock::now();
        let mut new = false;
        let asks = |l: &&mut Life| matches!(l.in_peace, Some(Peace::Asks(_))) && l.phase == Phase::Interrupt;
        for life in self.lives.values_mut().filter(asks) {
            new |= life.marking.look(&self.h.views);
        }
        let is_over = |l: &&mut Life| match l.in_peace {
            Some(Peace::Asks(since)) => l.marking.is_marked() || now.saturating_sub(since) > IN_PEACE_MAX,
            Some(Peace::Waits) | None => false,
        };
        let mut lives = std::mem::take(&mut self.lives);
        lives.values_mut().filter(is_over).for_each(|l| self.end_peace(l));
        self.lives = lives;
        new |= self.ask_in_peace(now);
        let waiting = self.lives.values().any(|l| l.in_peace.is_some());
        let waiting = self.look_at_rings(now) || waiting;
        let next = if new { LOOKS.0 } else { (2 * self.look.1).min(LOOKS.1) };
        self.look = (if waiting { now + next } else { Nanos::MAX }, next);
    }

    /// `source` is about to ask for its takeover: whoever of its interface asks in peace asks again at a later look.
    pub(super) fn wait_in_peace(&mut self, source: &Source) {
        let mut lives = std::mem::take(&mut self.lives);
        let others =
            lives.values_mut().filter(|l| l.source.first == source.first && l.source.slot != source.slot);
        for life in others.filter(|l| matches!(l.in_peace, Some(Peace::Asks(_)))) {
            self.end_peace(life);
            life.in_peace = Some(Peace::Waits);
            self.look = (clock::now() + LOOKS.1, LOOKS.1);
        }
        self.lives = lives;
    }

    /// Has one handle of each interface ask for a packet that marks it; true if that is a new one. May attach XDP programs, which takes
    /// milliseconds.
    pub(super) fn ask_in_peace(&mut self, now: Nanos) -> bool {
        let mut new = false;
        let asks = |l: &&Life| matches!(l.in_peace, Some(Peace::Asks(_)));
        let mut asked: BTreeSet<usize> = self.lives.values().filter(asks).map(|l| l.source.first).collect();
        for life in self.lives.values_mut() {
            let waits = life.in_peace == Some(Peace::Waits) && life.phase == Phase::Interrupt;
            if !waits || asked.contains(&life.source.first) {
                continue;
            }
            if life.source.hold_rx().is_err() {
                life.in_peace = None;
                continue;
            }
            asked.insert(life.source.first);
            life.in_peace = Some(Peace::Asks(now));
            life.source.now.is_marking.store(true, Relaxed);
            life.marking.ask(&self.h.views);
            self.h.pulse.wake();
            new = true;
        }
        new
    }

    /// It asks no more, and the next one may.
    pub(super) fn end_peace(&self, life: &mut Life) {
        if let Some(Peace::Asks(_)) = life.in_peace.take() {
            life.marking.end(&self.h.views);
            life.source.now.is_marking.store(false, Relaxed);
            life.source.release_rx(0);
        }
    }
}
