//! Rules as operators write them: an action, and terms that must all hold, as `deny src/10.0.0.0/8 tcp/22`.

use std::ops::Range;

use super::packet::{Family, PORTED};
use crate::prefix::{Prefix, PrefixError};

/// Ports and ranges of one term.
const PORTS_MAX: usize = 8;
const TERMS: &str = "any, PREFIX, src/PREFIX, dst/PREFIX, tcp, udp, icmp, proto/N, tcp/PORTS, udp/PORTS, \
                     sport/PORTS or dport/PORTS";
const PORTS: &str = "ports, 0 to 65535, as 53 or 80,443,8000-8099";

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It is dropped.
    Deny,
}

impl Verdict {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Accept => "accept",
            Verdict::Deny => "deny",
        }
    }
}

/// What a rule does with what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Decides.
    Decide(Verdict),
    /// Counts, and the next rule is asked.
    Count,
}

impl Action {
    /// All of them, as an error lists them.
    pub const ALL: [Action; 3] =
        [Action::Decide(Verdict::Accept), Action::Decide(Verdict::Deny), Action::Count];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Action::Decide(verdict) => verdict.name(),
            Action::Count => "count",
        }
    }
}

/// What is wrong in a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Bytes of the text.
    pub at: Range<usize>,
    /// What is wrong, and what to give.
    pub why: String,
}

/// The protocols that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    One(u8),
    /// ICMP of the packet's own family.
    Icmp,
}

impl Protocol {
    pub(super) fn number(self, family: Family) -> u8 {
        match (self, family) {
            (Protocol::One(number), _) => number,
            (Protocol::Icmp, Family::V6) => 58,
            (Protocol::Icmp, _) => 1,
        }
    }
}

/// Ports from the first to the last, both included.
pub(super) type Ports = (u16, u16);

/// One rule: its action, its text, and what a packet must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    action: Action,
    text: String,
    pub(super) protocol: Option<Protocol>,
    pub(super) source: Option<Prefix>,
    pub(super) target: Option<Prefix>,
    /// Source or destination.
    pub(super) either: Option<Prefix>,
    pub(super) source_ports: Vec<Ports>,
    pub(super) target_ports: Vec<Ports>,
}

impl Rule {
    /// Reads the terms of a rule; `any` alone matches everything.
    ///
    /// # Errors
    /// Where the text is wrong, what is wrong with it, and what to give.
    pub fn parse(action: Action, text: &str) -> Result<Rule, Wrong> {
        let mut rule = Rule {
            action,
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
            protocol: None,
            source: None,
            target: None,
            either: None,
            source_ports: Vec::new(),
            target_ports: Vec::new(),
        };
        let (mut any, mut terms) = (false, 0);
        for word in text.split_whitespace() {
            let at = word.as_ptr() as usize - text.as_ptr() as usize;
            let wrong = |why: String| Wrong { at: at..at + word.len(), why };
            terms += 1;
            any |= word == "any";
            if any && terms > 1 {
                return Err(wrong("any stands alone; leave it out or leave the others out".into()));
            }
            rule.term(word).map_err(wrong)?;
        }
        let whole = |why: &str| Wrong { at: 0..text.len(), why: why.into() };
        if terms == 0 {
            return Err(whole(&format!("the rule is empty; give {TERMS}")));
        }
        let families: Vec<bool> = rule.prefixes().map(|prefix| prefix.v6).collect();
        if families.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(whole("an IPv4 and an IPv6 prefix: no packet has both; make two rules"));
        }
        let portless = match rule.protocol {
            Some(Protocol::One(number)) => !PORTED.contains(&number),
            Some(Protocol::Icmp) => true,
            None => false,
        };
        if portless && rule.has_ports() {
            return Err(whole("this protocol has no ports; leave them out, or give tcp or udp"));
        }
        Ok(rule)
    }

    /// What it does.
    #[must_use]
    pub fn action(&self) -> Action {
        self.action
    }

    /// Its terms as the operator wrote them, one space between two.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn has_ports(&self) -> bool {
        !self.source_ports.is_empty() || !self.target_ports.is_empty()
    }

    /// The only family of packets that it can match; `None` for all.
    pub(super) fn family(&self) -> Option<Family> {
        self.prefixes().next().map(|prefix| if prefix.v6 { Family::V6 } else { Family::V4 })
    }

    fn prefixes(&self) -> impl Iterator<Item = &Prefix> {
        [&self.source, &self.target, &self.either].into_iter().flatten()
    }

    fn term(&mut self, word: &str) -> Result<(), String> {
        let (kind, value) = match word.split_once('/') {
            Some((kind, value)) => (kind, Some(value)),
            None => (word, None),
        };
        match (kind, value) {
            ("any", None) => Ok(()),
            ("tcp", ports) => self.ported(6, ports),
            ("udp", ports) => self.ported(17, ports),
            ("icmp", None) => self.only(Protocol::Icmp),
            ("proto", Some(number)) => {
                let number = number.parse::<u8>().ok().filter(|_| !number.starts_with('+'));
                self.only(Protocol::One(number.ok_or("not a protocol; give a number, 0 to 255")?))
            }
            ("src", Some(value)) => once(&mut self.source, prefix(value)?),
            ("dst", Some(value)) => once(&mut self.target, prefix(value)?),
            ("sport", Some(value)) => ports(&mut self.source_ports, value),
            ("dport", Some(value)) => ports(&mut self.target_ports, value),
            (kind, _) if kind.contains(['.', ':']) => once(&mut self.either, prefix(word)?),
            _ => Err(format!("unknown term; give {TERMS}")),
        }
    }

    fn ported(&mut self, number: u8, value: Option<&str>) -> Result<(), String> {
        self.only(Protocol::One(number))?;
        value.map_or(Ok(()), |value| ports(&mut self.target_ports, value))
    }

    fn only(&mut self, protocol: Protocol) -> Result<(), String> {
        once(&mut self.protocol, protocol).map_err(|_| "a second protocol; make two rules".into())
    }
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err("a second one of its kind; make two rules".into()),
    }
}

fn prefix(text: &str) -> Result<Prefix, String> {
    Prefix::parse(text).map_err(|err| match err {
        PrefixError::Unreadable => format!("not a prefix; give {}", Prefix::WANTED),
        PrefixError::Beyond(meant) => format!("has bits beyond its prefix; give {meant}"),
    })
}

fn ports(slot: &mut Vec<Ports>, text: &str) -> Result<(), String> {
    if !slot.is_empty() {
        return Err("a second list of ports of one side; give one list, as 80,443".into());
    }
    let port = |text: &str| text.parse::<u16>().ok().filter(|_| !text.starts_with('+'));
    for item in text.split(',') {
        let (from, to) = item.split_once('-').unwrap_or((item, item));
        let range = port(from).zip(port(to)).ok_or_else(|| format!("not ports; give {PORTS}"))?;
        if range.0 > range.1 {
            return Err(format!("from the larger to the smaller port; give {}-{}", range.1, range.0));
        }
        if slot.len() == PORTS_MAX {
            return Err(format!("more than {PORTS_MAX} ports or ranges; make two rules"));
        }
        slot.push(range);
    }
    Ok(())
}
