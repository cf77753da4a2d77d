//! The table against a matcher that knows nothing of lanes and masks: packets are built as bytes, rules as text.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

/// A rule as it is meant.
#[derive(Clone, Debug)]
struct Meant {
    action: Action,
    source: Option<(IpAddr, usize)>,
    target: Option<(IpAddr, usize)>,
    either: Option<(IpAddr, usize)>,
    protocol: Option<&'static str>,
    source_ports: Vec<(u16, u16)>,
    target_ports: Vec<(u16, u16)>,
}

/// A packet as it is meant.
#[derive(Clone, Debug)]
struct Sent {
    source: IpAddr,
    target: IpAddr,
    protocol: u8,
    ports: (u16, u16),
    /// Not the first fragment.
    later: bool,
    /// Words of options, or extension headers.
    extra: usize,
}

fn bits(address: IpAddr) -> Vec<bool> {
    let octets = match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    };
    octets.iter().flat_map(|octet| (0..8).rev().map(move |bit| octet >> bit & 1 == 1)).collect()
}

fn inside(address: IpAddr, prefix: Option<(IpAddr, usize)>) -> bool {
    prefix.is_none_or(|(of, length)| {
        address.is_ipv4() == of.is_ipv4() && bits(address)[..length] == bits(of)[..length]
    })
}

impl Meant {
    fn text(&self) -> String {
        let prefix = |name: &str, p: &Option<(IpAddr, usize)>| p.map(|(a, l)| format!("{name}{a}/{l}"));
        let ports = |name: &str, of: &[(u16, u16)]| {
            let items: Vec<String> = of.iter().map(|(a, b)| format!("{a}-{b}")).collect();
            (!of.is_empty()).then(|| format!("{name}{}", items.join(",")))
        };
        let terms = [
            prefix("src/", &self.source),
            self.protocol.map(str::to_owned),
            prefix("", &self.either),
            ports("dport/", &self.target_ports),
            prefix("dst/", &self.target),
            ports("sport/", &self.source_ports),
        ];
        let text = terms.into_iter().flatten().collect::<Vec<_>>().join("  ");
        if text.is_empty() { "any".to_owned() } else { text }
    }

    fn matches(&self, packet: &Sent) -> bool {
        let protocol = match self.protocol {
            None => true,
            Some("tcp") => packet.protocol == 6,
            Some("udp") => packet.protocol == 17,
            Some("icmp") => packet.protocol == if packet.source.is_ipv4() { 1 } else { 58 },
            Some(other) => other == format!("proto/{}", packet.protocol),
        };
        let has_ports = [6, 17, 132].contains(&packet.protocol) && !packet.later;
        let one = |of: &[(u16, u16)], port: u16| {
            of.is_empty() || (has_ports && of.iter().any(|(from, to)| port >= *from && port <= *to))
        };
        protocol
            && inside(packet.source, self.source)
            && inside(packet.target, self.target)
            && (inside(packet.source, self.either) || inside(packet.target, self.either))
            && one(&self.source_ports, packet.ports.0)
            && one(&self.target_ports, packet.ports.1)
    }
}

impl Sent {
    fn bytes(&self) -> (u16, Vec<u8>) {
        let mut bytes = Vec::new();
        let fragment: u16 = if self.later { 8 } else { 0 };
        let ethertype = match (self.source, self.target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                bytes.extend([0x45 + self.extra as u8, 0, 0, 60, 0, 1]);
                bytes.extend((fragment / 8).to_be_bytes());
                bytes.extend([64, self.protocol, 0, 0]);
                bytes.extend(source.octets());
                bytes.extend(target.octets());
                bytes.extend(vec![1; 4 * self.extra]);
                0x0800
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let mut chain = [0, 60, 43, 51, 60][..self.extra].to_vec();
                chain.extend(self.later.then_some(44));
                chain.push(self.protocol);
                bytes.extend([0x60, 0, 0, 0, 0, 40, chain[0], 64]);
                bytes.extend(source.octets());
                bytes.extend(target.octets());
                for pair in chain.windows(2) {
                    bytes.push(pair[1]);
                    match pair[0] {
                        44 => bytes.extend([[0].as_slice(), &fragment.to_be_bytes(), &[0; 4]].concat()),
                        // Two words beside the first two.
                        51 => bytes.extend([[2].as_slice(), &[0; 14]].concat()),
                        _ => bytes.extend([[1].as_slice(), &[0; 14]].concat()),
                    }
                }
                0x86dd
            }
            _ => unreachable!("one family"),
        };
        bytes.extend(self.ports.0.to_be_bytes());
        bytes.extend(self.ports.1.to_be_bytes());
        bytes.extend([0; 16]);
        (ethertype, bytes)
    }
}

/// Few addresses, so that rules match.
fn address(v6: bool) -> impl Strategy<Value = IpAddr> {
    let word = || prop::sample::select(vec![0u16, 1, 2, 0x8000, 0xffff]);
    (word(), word()).prop_map(move |(high, low)| match v6 {
        true => IpAddr::V6([0x2001, 0xdb8, high, 0, 0, 0, 0, low].into()),
        false => IpAddr::V4((u32::from(high) << 16 | u32::from(low)).into()),
    })
}

fn prefix(v6: bool) -> impl Strategy<Value = Option<(IpAddr, usize)>> {
    let length = 0..=if v6 { 128usize } else { 32 };
    prop::option::weighted(0.4, (address(v6), length)).prop_map(|prefix| {
        prefix.map(|(address, length)| {
            // Without the bits beyond: what the reader of rules asks for.
            let kept = |n: u128, size: u32| n & u128::MAX.checked_shl(size - length as u32).unwrap_or(0);
            let address = match address {
                IpAddr::V4(a) => IpAddr::V4((kept(u128::from(a.to_bits()), 32) as u32).into()),
                IpAddr::V6(a) => IpAddr::V6(kept(a.to_bits(), 128).into()),
            };
            (address, length)
        })
    })
}

fn ports() -> impl Strategy<Value = Vec<(u16, u16)>> {
    let range = (port(), 0..3u16).prop_map(|(from, more)| (from, from.saturating_add(more)));
    prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(range, 1..4)]
}

fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![0u16, 1, 22, 53, 54, 443, 65_534, 65_535])
}

fn rule() -> impl Strategy<Value = Meant> {
    any::<bool>().prop_flat_map(|v6| {
        let protocol = vec![
            None,
            None,
            Some("tcp"),
            Some("udp"),
            Some("icmp"),
            Some("proto/6"),
            Some("proto/58"),
            Some("proto/132"),
        ];
        let action = prop::sample::select(Action::ALL.to_vec());
        let protocol = prop::sample::select(protocol);
        let prefixes = (prefix(v6), prefix(v6), prefix(v6));
        (action, prefixes, protocol, ports(), ports()).prop_map(
            |(action, (source, target, either), protocol, source_ports, target_ports)| {
                let portless = matches!(protocol, Some("icmp" | "proto/58"));
                let kept = |ports: Vec<(u16, u16)>| if portless { Vec::new() } else { ports };
                let (source_ports, target_ports) = (kept(source_ports), kept(target_ports));
                Meant { action, source, target, either, protocol, source_ports, target_ports }
            },
        )
    })
}

fn packet() -> impl Strategy<Value = Sent> {
    any::<bool>().prop_flat_map(|v6| {
        let protocol = prop::sample::select(vec![6u8, 17, 17, 1, 58, 132, 89]);
        let more = (prop::bool::weighted(0.2), 0..5usize);
        (address(v6), address(v6), protocol, (port(), port()), more).prop_map(
            |(source, target, protocol, ports, (later, extra))| Sent {
                source,
                target,
                protocol,
                ports,
                later,
                extra,
            },
        )
    })
}

fn naive(rules: &[Meant], default: Verdict, packet: &Sent) -> (Verdict, Vec<usize>) {
    let mut hits = Vec::new();
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.matches(packet)) {
        hits.push(index);
        match rule.action {
            Action::Decide(verdict) => return (verdict, hits),
            Action::Count => {}
        }
    }
    hits.push(rules.len());
    (default, hits)
}

proptest! {
    #[test]
    fn the_table_decides_as_the_rules_read(
        rules in prop::collection::vec(rule(), 0..12),
        packets in prop::collection::vec(packet(), 1..30),
        deny in any::<bool>(),
    ) {
        let default = if deny { Verdict::Deny } else { Verdict::Accept };
        let text: String = rules.iter().map(|r| format!("{}\t{} # x\n", r.action.name(), r.text())).collect();
        let read = read(&text).unwrap();
        let table = Table::new(read.rules, default);
        for sent in &packets {
            let (ethertype, bytes) = sent.bytes();
            let packet = Packet::read(ethertype, &bytes);
            let mut hits = Vec::new();
            let verdict = table.decide(&packet, |index| hits.push(index));
            prop_assert_eq!((verdict, hits), naive(&rules, default, sent), "{} {:?}", &text, sent);
            let unclear = sent.later && [6, 17, 132].contains(&sent.protocol);
            prop_assert_eq!(packet.clear(), !unclear);
        }
    }

    #[test]
    fn packets_that_are_cut_are_read_as_far_as_they_go(sent in packet(), cut in 0..120usize) {
        let (ethertype, bytes) = sent.bytes();
        let cut = cut.min(bytes.len());
        let (whole, part) = (Packet::read(ethertype, &bytes), Packet::read(ethertype, &bytes[..cut]));
        prop_assert!(part.ports.is_none() || part == whole);
        prop_assert!(part.protocol.is_none() || part.protocol == whole.protocol);
        prop_assert!(part.family == Family::Other || part.source == whole.source);
    }

    #[test]
    fn any_bytes_and_any_text_are_survived(bytes in any::<Vec<u8>>(), text in "[ -~\n\té]{0,60}", v6 in any::<bool>()) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = *first & 0xf | if v6 { 0x60 } else { 0x40 };
        }
        let packet = Packet::read(if v6 { 0x86dd } else { 0x0800 }, &bytes);
        prop_assert!(packet.clear() || packet.ports.is_none());
        if let Err(wrong) = read(&text) {
            prop_assert!(text.get(wrong.at).is_some());
        }
    }
}

fn wrong(text: &str) -> (String, String) {
    let wrong = read(text).unwrap_err();
    (text[wrong.at].to_owned(), wrong.why)
}

#[test]
fn errors_stand_where_the_mistake_is() {
    for (text, place, why) in [
        ("deny 10.0.0.1/8", "10.0.0.1/8", "has bits beyond its prefix; give 10.0.0.0/8"),
        ("accept tcp\n drop tcp/22\n", "drop", "begins with accept, deny, count or default"),
        ("deny tcp/22 udp/53", "udp/53", "a second protocol; make two rules"),
        ("deny tcp/x", "tcp/x", "not ports; give ports, 0 to 65535"),
        ("deny tcp/80-22", "tcp/80-22", "give 22-80"),
        ("deny dport/1,2,3,4,5,6,7,8,9", "dport/1,2,3,4,5,6,7,8,9", "more than 8 ports"),
        ("deny src/10.0.0.0/33", "src/10.0.0.0/33", "not a prefix; give an address or a prefix"),
        ("deny src/10.0.0.0/8 dst/2001:db8::/32", "src/10.0.0.0/8 dst/2001:db8::/32", "make two rules"),
        ("deny icmp dport/7", "icmp dport/7", "has no ports"),
        ("deny any tcp", "tcp", "any stands alone"),
        ("deny tcp any", "any", "any stands alone"),
        ("count   # nothing", "count", "the rule is empty; give any, PREFIX"),
        ("default maybe", "default maybe", "not a default; give accept or deny"),
        ("default deny\ndefault deny", "default deny", "a second default"),
        ("deny ssh", "ssh", "unknown term; give any"),
        ("deny proto/300", "proto/300", "give a number, 0 to 255"),
    ] {
        let (at, said) = wrong(text);
        assert!(at == place && said.contains(why), "{text:?}: {at:?} {said:?}");
    }
}

#[test]
fn a_table_is_bounded() {
    let text = "count any\n".repeat(RULES_MAX);
    assert_eq!(read(&text).unwrap().rules.len(), RULES_MAX);
    assert!(wrong(&format!("{text}count any")).1.contains("more than 1024 rules"));
}

#[test]
fn what_is_no_ip_matches_only_rules_that_name_nothing() {
    let rules =
        read("deny src/0.0.0.0/0\ndeny src/::/0\ndeny proto/0\ndeny dport/0-65535\ncount any").unwrap();
    let table = Table::new(rules.rules, Verdict::Accept);
    let mut hits = Vec::new();
    assert_eq!(table.decide(&Packet::read(0x0806, &[0; 28]), |i| hits.push(i)), Verdict::Accept);
    assert_eq!(hits, [4, 5]);
}
