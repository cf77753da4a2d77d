//! Where packets can be lost, each place with its own counter. No bucket is what is left of a subtraction.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use kern::wire::source::{Sent, Wire};
use kern::wire::{counters, ethtool};
use results::{Drops, Trial};

use crate::arm::Host;
use crate::consumer::Report;
use crate::rig::Rig;
use crate::{Error, Result};

/// Readings of all counters at one moment, summed over the inputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Frames that the hop's queue or its thread dropped (tracepoints xdp_cpumap_*).
    pub wire: u64,
    /// Frames that found the device's ring full (driver statistic of the sending end).
    pub ring: u64,
    /// Frames that an XDP program dropped (driver statistic).
    pub xdp: u64,
    /// Frames for which the driver had no memory (driver statistic).
    pub memory: u64,
    /// Packets that found a CPU's backlog full (softnet_stat, the whole machine).
    pub backlog: u64,
    /// Packets that IP and UDP refused for other reasons than a full socket (snmp).
    pub ip: u64,
    /// Datagrams that UDP dropped for full sockets (snmp); checks the sockets' own counters.
    pub udp: u64,
    /// Packets that found the ring of a forwarding host's output full (interface statistic of the host's end).
    pub output: u64,
    /// Packets that found the queue to a packet filter, or its socket, full (nfnetlink_queue).
    pub queue: u64,
    /// What reached the far end of the output, by its driver; checks the sink's own count.
    pub sink: u64,
    /// What the sink counted as its own, as another's, and as sent on wrongly.
    pub sink_said: [u64; 3],
}

/// Counters of packets that IP and UDP refuse.
const REFUSED: [&str; 5] =
    ["Ip.InHdrErrors", "Ip.InAddrErrors", "Ip.InUnknownProtos", "Ip.InDiscards", "Udp.NoPorts"];
/// The same where packets are forwarded; a server's answers are nobody's packets.
const REFUSED_OUT: [&str; 2] = ["Ip.OutDiscards", "Ip.OutNoRoutes"];

fn named(map: &BTreeMap<String, u64>, name: &str) -> Result<u64> {
    map.get(name).copied().ok_or_else(|| Error::Missing(format!("this kernel has no counter {name}")))
}

impl Ledger {
    /// Reads all counters.
    ///
    /// # Errors
    /// If one is missing.
    pub fn read(wire: &Wire, rig: &Rig<'_>) -> Result<Ledger> {
        let screened = rig.screened.load(Ordering::Relaxed);
        let statistics = |far: bool| {
            rig.inputs
                .iter()
                .map(|i| ethtool::statistics(if far { &i.far.name } else { &i.near.name }))
                .collect::<kern::wire::Result<Vec<_>>>()
        };
        let near = rig.wire_side.run(|| statistics(false))?;
        let (far, snmp) = rig.host.run(|| Ok((statistics(true)?, counters::snmp()?)))?;
        let sum = |ends: &[BTreeMap<String, u64>], name: &str| {
            ends.iter().map(|end| named(end, name)).sum::<Result<u64>>()
        };
        let meters = wire.meters()?;
        let full = named(&snmp, "Udp.RcvbufErrors")? + snmp.get("Udp.MemErrors").copied().unwrap_or(0);
        let out: &[&str] = if rig.output.is_some() { &REFUSED_OUT } else { &[] };
        let refused = REFUSED.iter().chain(out).map(|name| named(&snmp, name)).sum::<Result<u64>>()?;
        let (mut output, mut queue, mut sink, mut sink_said) = (0, 0, 0, [0; 3]);
        if screened {
            queue = rig.screen_queue()?.drops;
        }
        if let Some(out) = &rig.output {
            output = rig.host.run(|| counters::interface(&out.near.name, "tx_dropped"))?;
            let far = rig.wire_side.run(|| ethtool::statistics(&out.far.name))?;
            sink = named(&far, "rx_queue_0_xdp_drops")?;
            let said = wire.sink()?;
            sink_said = [said.packets, said.other, said.bad];
        }
        Ok(Ledger {
            wire: meters.iter().map(|m| m.hop_enqueue_drops + m.hop_thread_drops).sum(),
            ring: sum(&near, "tx_queue_0_xdp_xmit_errors")?,
            xdp: sum(&far, "rx_queue_0_xdp_drops")?,
            memory: sum(&far, "rx_queue_0_drops")?,
            backlog: counters::backlog_drops()?,
            ip: refused + named(&snmp, "Udp.InErrors")?.saturating_sub(full),
            udp: full,
            output,
            queue,
            sink,
            sink_said,
        })
    }

    /// What was counted between `before` and this reading.
    #[must_use]
    pub fn since(&self, before: &Ledger) -> Ledger {
        Ledger {
            wire: self.wire - before.wire,
            ring: self.ring - before.ring,
            xdp: self.xdp - before.xdp,
            memory: self.memory - before.memory,
            backlog: self.backlog - before.backlog,
            ip: self.ip - before.ip,
            udp: self.udp - before.udp,
            output: self.output - before.output,
            queue: self.queue - before.queue,
            sink: self.sink - before.sink,
            sink_said: std::array::from_fn(|i| self.sink_said[i] - before.sink_said[i]),
        }
    }

    /// Packets that were dropped anywhere.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let places = [self.wire, self.ring, self.xdp, self.memory, self.backlog, self.ip, self.udp];
        places.iter().sum::<u64>() + self.queue + self.output
    }

    /// The ledger of a trial in which `sent` was sent, `reports` are the consumers' last words, and the guard used `handle`
    /// frames for itself.
    #[must_use]
    pub fn close(&self, host: &Host, sent: &Sent, reports: &[Report], handle: u64) -> Trial {
        let mut delivered: u64 = reports.iter().map(|r| r.total).sum();
        let socket: u64 = reports.iter().map(|r| r.drops).sum();
        let xdp = match host {
            Host::Drop { .. } => {
                delivered += self.xdp;
                None
            }
            Host::Limit(_) => Some("limit"),
            Host::Plain | Host::Guard(_) => Some(results::SHED),
        };
        let places = [
            ("wire", self.wire),
            ("ring", self.ring),
            ("memory", self.memory),
            ("backlog", self.backlog),
            ("ip", self.ip),
            ("socket", socket),
            ("queue", self.queue),
            ("output", self.output),
            ("handle", handle),
        ];
        let places = places.into_iter().chain(xdp.map(|place| (place, self.xdp)));
        let drops: Drops = places.filter(|(_, n)| *n > 0).map(|(place, n)| (place.to_string(), n)).collect();
        let accounted = delivered + drops.values().sum::<u64>();
        let void = (socket != self.udp)
            .then(|| format!("the sockets count {socket} drops, the UDP layer {}", self.udp))
            .or_else(|| self.sink_wrong())
            .or_else(|| (sent.refused > 0).then(|| format!("{} frames had no device", sent.refused)));
        Trial {
            sent: sent.total(),
            delivered,
            unaccounted: sent.total() as i64 - accounted as i64,
            drops,
            void,
            ..Trial::default()
        }
    }

    /// Why the sink's count must not be believed.
    fn sink_wrong(&self) -> Option<String> {
        let [own, other, bad] = self.sink_said;
        let (said, seen) = (own + other, self.sink);
        (said != seen)
            .then(|| format!("the sink counts {said} frames, its driver {seen}"))
            .or_else(|| (bad > 0).then(|| format!("{bad} sampled packets have a wrong TTL or checksum")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(n: u64) -> Sent {
        Sent { by_target: vec![n], ..Sent::default() }
    }

    #[test]
    fn a_ledger_closes_only_if_every_packet_is_somewhere() {
        let ledger = Ledger { ring: 3, backlog: 1, udp: 2, ..Ledger::default() };
        let report = [Report { total: 4, drops: 2, ..Report::default() }];
        let trial = ledger.close(&Host::Plain, &sent(10), &report, 0);
        assert_eq!((trial.unaccounted, trial.void), (0, None));
        assert_eq!(trial.drops.len(), 3, "places without drops are not shown");
        assert_eq!(ledger.close(&Host::Plain, &sent(11), &report, 0).unaccounted, 1);
        assert_eq!(ledger.close(&Host::Plain, &sent(12), &report, 2).unaccounted, 0);
        assert_eq!(ledger.close(&Host::Plain, &sent(9), &report, 0).unaccounted, -1);
    }

    #[test]
    fn what_xdp_drops_is_named_by_who_drops_it() {
        let ledger = Ledger { xdp: 5, ..Ledger::default() };
        let close = |host: Host| ledger.close(&host, &sent(5), &[], 0);
        assert_eq!(close(Host::Limit(1.0)).drops["limit"], 5);
        assert_eq!(close(Host::Guard(vec![])).drops["shed"], 5);
        assert_eq!(close(Host::Drop { read: false }).delivered, 5);
        assert!(
            [Host::Limit(1.0), Host::Drop { read: false }].into_iter().all(|h| close(h).unaccounted == 0)
        );
    }

    #[test]
    fn a_forwarding_ledger_has_its_output_and_a_sink_that_is_checked() {
        let ledger = Ledger { ring: 3, output: 2, sink: 5, sink_said: [4, 1, 0], ..Ledger::default() };
        let report = [Report { total: 4, ..Report::default() }];
        let trial = ledger.close(&Host::Plain, &sent(9), &report, 0);
        assert_eq!((trial.unaccounted, trial.drops["output"], trial.void), (0, 2, None));
        let short = Ledger { sink: 6, ..ledger };
        assert!(
            short.close(&Host::Plain, &sent(9), &report, 0).void.is_some_and(|why| why.contains("driver 6"))
        );
        let broken = Ledger { sink_said: [4, 1, 1], ..ledger };
        assert!(broken.close(&Host::Plain, &sent(9), &report, 0).void.is_some_and(|why| why.contains("TTL")));
    }

    #[test]
    fn counters_that_disagree_make_a_trial_void() {
        let ledger = Ledger { udp: 1, ..Ledger::default() };
        let trial = ledger.close(&Host::Plain, &sent(0), &[], 0);
        assert!(trial.void.is_some_and(|why| why.contains("UDP layer 1")));
    }
}
