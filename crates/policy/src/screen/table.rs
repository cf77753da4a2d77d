//! Rules in the form in which packets are compared with them.

use super::packet::{Family, Packet};
use super::rule::{Action, Ports, Rule, Verdict};

const FAMILIES: [Family; 3] = [Family::Other, Family::V4, Family::V6];
/// TCP, UDP, and everything else.
const KINDS: [Option<u8>; 3] = [Some(6), Some(17), None];

/// Bits that an address must have; a mask of 0 holds for all.
#[derive(Clone, Copy, Debug, Default)]
struct Bits {
    mask: u128,
    bits: u128,
}

impl Bits {
    #[inline]
    fn hold(self, address: u128) -> bool {
        address & self.mask == self.bits
    }
}

/// A rule among those that can match packets of one family and kind.
#[derive(Clone, Debug)]
struct Step {
    rule: u16,
    action: Action,
    source: Bits,
    target: Bits,
    either: Bits,
    /// `None` if the lane has no other.
    protocol: Option<u8>,
    source_ports: Box<[Ports]>,
    target_ports: Box<[Ports]>,
}

impl Step {
    /// The rule in the lane of `family` and `kind`; `None` if no packet there can match it.
    fn new(index: u16, rule: &Rule, family: Family, kind: Option<u8>) -> Option<Step> {
        let wanted = rule.protocol.map(|protocol| protocol.number(family));
        let unreadable = family == Family::Other && (wanted.is_some() || rule.has_ports());
        let foreign = rule.family().is_some_and(|only| only != family);
        let other = match (wanted, kind) {
            (Some(wanted), Some(kind)) => wanted != kind,
            (Some(wanted), None) => KINDS.contains(&Some(wanted)),
            (None, _) => false,
        };
        if unreadable || foreign || other {
            return None;
        }
        let bits = |prefix: Option<crate::prefix::Prefix>| {
            prefix.map(|p| Bits { mask: p.mask, bits: p.bits }).unwrap_or_default()
        };
        Some(Step {
            rule: index,
            action: rule.action(),
            source: bits(rule.source),
            target: bits(rule.target),
            either: bits(rule.either),
            protocol: wanted.filter(|_| kind.is_none()),
            source_ports: rule.source_ports.clone().into(),
            target_ports: rule.target_ports.clone().into(),
        })
    }

    #[inline]
    fn holds(&self, packet: &Packet) -> bool {
        self.source.hold(packet.source)
            && self.target.hold(packet.target)
            && (self.either.hold(packet.source) || self.either.hold(packet.target))
            && (self.protocol.is_none() || self.protocol == packet.protocol)
            && self.ports_hold(packet.ports)
    }

    #[inline]
    fn ports_hold(&self, ports: Option<(u16, u16)>) -> bool {
        let one =
            |of: &[Ports], port| of.is_empty() || of.iter().any(|(from, to)| (*from..=*to).contains(&port));
        match ports {
            Some((source, target)) => one(&self.source_ports, source) && one(&self.target_ports, target),
            None => self.source_ports.is_empty() && self.target_ports.is_empty(),
        }
    }
}

/// All rules and the default.
#[derive(Clone, Debug)]
pub struct Table {
    rules: Vec<Rule>,
    default: Verdict,
    lanes: [Vec<Step>; 9],
}

impl Table {
    /// From at most [`super::RULES_MAX`] rules; what is beyond is left out.
    #[must_use]
    pub fn new(mut rules: Vec<Rule>, default: Verdict) -> Table {
        rules.truncate(super::RULES_MAX);
        let lane = |lane: usize| -> Vec<Step> {
            let (family, kind) = (FAMILIES[lane / 3], KINDS[lane % 3]);
            let steps = (0u16..).zip(&rules).filter_map(|(index, rule)| Step::new(index, rule, family, kind));
            steps.collect()
        };
        let lanes = std::array::from_fn(lane);
        Table { rules, default, lanes }
    }

    /// The rules in their order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What becomes of what no rule decides.
    #[must_use]
    pub fn default(&self) -> Verdict {
        self.default
    }

    /// Decides. `hit` gets the index of each rule that matches, those that count and the one that decides; where none
    /// decides the last index is the number of rules, which stands for the default.
    #[inline]
    pub fn decide(&self, packet: &Packet, mut hit: impl FnMut(usize)) -> Verdict {
        let kind = match packet.protocol {
            Some(6) => 0,
            Some(17) => 1,
            _ => 2,
        };
        for step in &self.lanes[3 * packet.family as usize + kind] {
            if step.holds(packet) {
                hit(usize::from(step.rule));
                if let Action::Decide(verdict) = step.action {
                    return verdict;
                }
            }
        }
        hit(self.rules.len());
        self.default
    }
}
