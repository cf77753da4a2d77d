//! Clients, servers and links; frames to the receive queues.

use super::host::{Event, GROUPS, Host, Queued, Request};
use super::plan::{Then, Train};
use super::settings::{Outgoing, Settings, Steering};
use crate::check::Place as Lost;
use crate::engine::Nanos;

/// Entries of the RSS table (BH-10).
const RSS_ENTRIES: usize = 128;
/// Most doublings of a retransmission timeout.
const BACKOFF_MAX: u8 = 6;
/// Times that a train is sent again; then its connection is given up (tcp_retries2).
const TRIES_MAX: u8 = 15;
/// Trains of a request.
const TRAINS: u64 = 5;
const RING: Lost = Lost(0);

impl Host<'_> {
    pub(super) fn start(&mut self, now: Nanos, client: u32) {
        if now >= self.load {
            return;
        }
        let cores = usize::from(self.s.cores);
        let mut group = self.flows.below(GROUPS as u64) as usize;
        if self.flows.below(1000) < u64::from(self.s.hot_share.0) {
            group = (group / cores * cores + usize::from(self.s.hot_core)) % (GROUPS / cores * cores);
        }
        if !self.shares.is_empty() {
            let at = self.flows.below(1 << 32) as f64 / (1u64 << 32) as f64;
            let core = self.shares.partition_point(|sum| *sum <= at).min(cores - 1);
            group = (group / cores * cores + core) % (GROUPS / cores * cores);
        }
        let long = self.s.long_share.0 > 0 && self.lengths.below(1000) < u64::from(self.s.long_share.0);
        let server_group = self.flows.below(GROUPS as u64) as u16;
        let request = Request {
            client,
            group: group as u16,
            server_group,
            started: now,
            extra: if long { self.s.long.0 } else { 0 },
            in_use: true,
            ..Request::default()
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.requests[index as usize] = request;
                index
            }
            None => {
                self.requests.push(request);
                self.requests.len() as u32 - 1
            }
        };
        self.agenda.once(now + self.s.rtt.0 / 2, Event::Arrive(index, Train::Syn));
    }

    /// When a response that is sent now is on the other side, by the links to the clients or from the servers.
    pub(super) fn over_link(&mut self, now: Nanos, to_client: bool) -> Nanos {
        let time = Nanos::from(self.s.response) * 8 * 1000 / Nanos::from(self.s.link_rate);
        let links = if to_client { &mut self.to_client } else { &mut self.to_proxy };
        let index = self.peers.below(links.len() as u64) as usize;
        let link = &mut links[index];
        *link = (*link).max(now) + time;
        *link
    }

    /// Cores of the NIC's queue and of the protocol work for a train.
    pub(super) fn steer(&self, request: &Request, train: Train) -> (usize, usize) {
        let cores = usize::from(self.s.cores);
        let irq = usize::from(self.s.irq_core);
        let client = train.is_client();
        let group = usize::from(if client { request.group } else { request.server_group });
        let queues = match self.s.steering {
            Steering::Single => return (irq, irq),
            Steering::Rss => usize::from(self.s.rss_queues).min(cores),
            _ => cores,
        };
        let own = self.workers[usize::from(request.worker)].core;
        let to = if !client && self.s.outgoing == Outgoing::OwnCore && own < queues {
            own
        } else if self.s.steering == Steering::FlowTable {
            self.accept.steer(group)
        } else if self.s.steering == Steering::Rss {
            group % RSS_ENTRIES % queues
        } else {
            group % cores
        };
        if self.s.steering == Steering::Rps { (irq, to) } else { (to, to) }
    }

    pub(super) fn frames(&self, train: Train) -> u32 {
        match train {
            Train::Syn | Train::Connected => 1,
            Train::Open => 2,
            Train::Response => self.s.response_frames,
            Train::Acks => self.s.ack_frames,
        }
    }

    /// A train that was lost comes again, each time after twice as long, until it is given up.
    pub(super) fn again(&mut self, now: Nanos, lost: &Queued, place: Lost) {
        self.ledger.drop(&lost.packet, place);
        let late = matches!(lost.train, Train::Syn | Train::Connected);
        let first = if late { self.s.syn_rto.0 } else { self.s.rto.0 };
        let request = &mut self.requests[lost.request as usize];
        if request.tries == TRIES_MAX {
            let client = request.client;
            request.in_use = false;
            self.free.push(lost.request);
            self.counts.given_up += 1;
            // With the response in hand it has gone on long ago.
            if lost.train != Train::Acks && self.s.rate == 0 {
                self.agenda.once(now + self.s.think.0, Event::Start(client));
            }
            return;
        }
        let after = first << request.tries.min(BACKOFF_MAX);
        request.tries += 1;
        self.agenda.once(now + after, Event::Arrive(lost.request, lost.train));
    }

    /// The longest that a request takes to end, if each of its trains is lost as often as can be.
    pub(super) fn longest(s: &Settings) -> Nanos {
        let waits: u64 = (0..TRIES_MAX).map(|tries| 1 << tries.min(BACKOFF_MAX)).sum();
        TRAINS * waits * s.rto.0.max(s.syn_rto.0)
    }

    pub(super) fn arrive(&mut self, now: Nanos, index: u32, train: Train) {
        let request = self.requests[index as usize];
        let (core, _) = self.steer(&request, train);
        let frames = self.frames(train);
        let packet = self.ledger.offer(now, index, frames);
        let queued = Queued { packet, request: index, train, frames };
        let receive = &mut self.cores[core].receive;
        if receive.ring_frames + frames > self.s.ring {
            self.again(now, &queued, RING);
            return;
        }
        self.requests[index as usize].entered = now;
        receive.ring_frames += frames;
        receive.ring.push_back(queued);
        let polled = receive.burst.is_some() && !receive.from_backlog;
        if !polled && !receive.coming {
            receive.coming = true;
            self.agenda.once(now + self.s.irq_gap.0, Event::Interrupt(core as u16));
        }
    }

    /// A worker's step is done that sends something.
    pub(super) fn send(&mut self, now: Nanos, index: u32, then: Then) {
        let request = &mut self.requests[index as usize];
        request.inside += now - request.entered;
        match then {
            Then::Connect => {
                self.agenda.once(now + self.s.rtt.0, Event::Arrive(index, Train::Connected));
            }
            Then::Request => {
                self.agenda.once(now + self.s.rtt.0 / 2 + self.s.server.0, Event::Serve(index));
            }
            Then::Reply => {
                let (client, started, inside) = (request.client, request.started, request.inside);
                let end = self.over_link(now, true) + self.s.rtt.0 / 2;
                self.counts.reply(self.counted(end), end - started, inside);
                self.agenda.once(end + self.s.rtt.0 / 2, Event::Arrive(index, Train::Acks));
                if self.s.rate == 0 {
                    self.agenda.once(end + self.s.think.0, Event::Start(client));
                }
            }
            _ => {}
        }
    }
}
