use super::*;
use proptest::prelude::*;

/// An Ethernet frame of `ethertype` behind `tags`.
fn ether(tags: &[(u16, u16)], ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for (kind, tag) in tags {
        frame.extend(kind.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(rest);
    frame
}

/// An IPv4 packet; `fragment` as in the header.
fn v4(protocol: u8, dscp: u8, fragment: u16, options: usize, rest: &[u8]) -> Vec<u8> {
    let mut p = vec![0x45 + options as u8, dscp << 2];
    p.extend(((20 + 4 * options + rest.len()) as u16).to_be_bytes());
    p.extend([0, 1]);
    p.extend(fragment.to_be_bytes());
    p.extend([64, protocol, 0, 0, 10, 1, 2, 3, 192, 0, 2, 1]);
    p.extend(vec![1; 4 * options]);
    p.extend(rest);
    p
}

/// An IPv6 packet from 2001:db8::1 to fe80::2 with these extension headers (kind, whole header without its "next").
fn v6(protocol: u8, hops: u8, extensions: &[(u8, Vec<u8>)], rest: &[u8]) -> Vec<u8> {
    let first = extensions.first().map_or(protocol, |e| e.0);
    let mut p = vec![0x6b, 0x80, 0, 0, 0, 0, first, hops];
    p.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    p.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    for (index, (_, header)) in extensions.iter().enumerate() {
        p.push(extensions.get(index + 1).map_or(protocol, |e| e.0));
        p.extend(header);
    }
    p.extend(rest);
    p
}

fn udp(source: u16, target: u16) -> Vec<u8> {
    let mut p = [source.to_be_bytes(), target.to_be_bytes()].concat();
    p.extend([0, 8, 0, 0]);
    p
}

fn tcp(source: u16, target: u16, flags: u8) -> Vec<u8> {
    let mut p = [source.to_be_bytes(), target.to_be_bytes()].concat();
    p.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    p
}

const SYN: u8 = 2;
const ACK: u8 = 16;

fn table(rules: &[&str]) -> Table {
    let rules: Vec<Rule> = rules.iter().map(|r| Rule::parse(r).unwrap()).collect();
    Table::new(&rules).unwrap()
}

fn defaults() -> Table {
    Table::new(&Rule::defaults()).unwrap()
}

fn protects(table: &Table, frame: &[u8]) -> bool {
    table.protector(frame).is_some()
}

fn ip4(protocol: u8, rest: &[u8]) -> Vec<u8> {
    ether(&[], 0x0800, &v4(protocol, 0, 0x4000, 0, rest))
}

fn ip6(protocol: u8, rest: &[u8]) -> Vec<u8> {
    ether(&[], 0x86dd, &v6(protocol, 64, &[], rest))
}

#[test]
fn the_default_protects_what_it_says() {
    let table = defaults();
    assert_eq!(table.len(), 22);
    for (what, frame) in [
        ("arp", ether(&[], 0x0806, &[0; 28])),
        ("arp in a VLAN", ether(&[(0x8100, 7)], 0x0806, &[0; 28])),
        ("lacp", ether(&[], 0x8809, &[1; 46])),
        ("ptp over Ethernet", ether(&[], 0x88f7, &[0; 46])),
        ("ptp over UDP", ip4(17, &udp(319, 319))),
        ("icmp", ip4(1, &[8, 0, 0, 0])),
        ("icmpv6", ip6(58, &[128, 0, 0, 0])),
        ("dhcp", ip4(17, &udp(67, 68))),
        ("dhcpv6", ip6(17, &udp(547, 546))),
        ("ssh", ip4(6, &tcp(40_000, 22, ACK))),
        ("ssh of a client here", ip4(6, &tcp(22, 40_000, SYN | ACK))),
        ("bgp", ip6(6, &tcp(40_000, 179, ACK))),
        ("ospf", ip4(89, &[2; 24])),
        ("ospf v3", ip6(89, &[3; 24])),
        ("vrrp", ip4(112, &[0x31; 8])),
        ("bfd", ip4(17, &udp(50_000, 3784))),
        ("resolver's reply", ip4(17, &udp(53, 40_000))),
        ("resolver's reply by TCP", ip6(6, &tcp(53, 40_000, ACK))),
    ] {
        assert!(protects(&table, &frame), "{what}");
    }
    let nd = ether(&[], 0x86dd, &v6(58, 255, &[], &[135, 0, 0, 0]));
    assert!(protects(&table, &nd));
    for (what, frame) in [
        ("a flood", ip4(17, &udp(40_000, 9000))),
        ("a query for a name server here", ip4(17, &udp(40_000, 53))),
        ("a SYN to ssh", ip4(6, &tcp(40_000, 22, SYN))),
        ("a SYN from port 53", ip4(6, &tcp(53, 22, SYN))),
        ("ICMPv6 in IPv4", ip4(58, &[135, 0, 0, 0])),
        ("a DHCP client", ip4(17, &udp(68, 67))),
        ("nothing", vec![]),
        ("half an address", vec![0xff; 9]),
    ] {
        assert_eq!(table.protector(&frame), None, "{what}");
    }
}

#[test]
fn neighbour_discovery_that_passed_a_router_is_mere_icmp() {
    let table = table(&["nd"]);
    let frame = |hops, kind| ether(&[], 0x86dd, &v6(58, hops, &[], &[kind, 0, 0, 0]));
    assert!((133..=137).all(|kind| protects(&table, &frame(255, kind))));
    assert!(!protects(&table, &frame(254, 135)) && !protects(&table, &frame(255, 128)));
}

#[test]
fn headers_are_found_behind_tags_options_and_extensions() {
    let table = table(&["udp/5000", "vlan/7"]);
    let inner = udp(1, 5000);
    let hop = (0u8, vec![0, 0, 0, 0, 0, 0, 0]);
    let long = (60u8, [vec![1], vec![0; 14]].concat());
    let auth = (51u8, [vec![2], vec![0; 14]].concat());
    let whole = (44u8, vec![0, 0, 0, 0, 0, 0, 1]);
    let first = (44u8, vec![0, 0, 1, 0, 0, 0, 1]);
    let later = (44u8, vec![0, 1, 0, 0, 0, 0, 1]);
    for (what, frame, protected) in [
        ("options", ether(&[], 0x0800, &v4(17, 0, 0, 10, &inner)), true),
        ("QinQ", ether(&[(0x88a8, 2), (0x8100, 3)], 0x0800, &v4(17, 0, 0, 0, &inner)), true),
        (
            "three tags",
            ether(&[(0x88a8, 2), (0x8100, 3), (0x8100, 4)], 0x0800, &v4(17, 0, 0, 0, &inner)),
            false,
        ),
        (
            "VLAN 7, inner tag of a priority",
            ether(&[(0x8100, 7), (0x8100, 0)], 0x0800, &v4(1, 0, 0, 0, &[])),
            true,
        ),
        ("VLAN 7 behind a priority", ether(&[(0x8100, 0x2000), (0x8100, 7)], 0x9999, &[]), true),
        ("VLAN 7 inside VLAN 2", ether(&[(0x88a8, 2), (0x8100, 7)], 0x9999, &[]), false),
        ("extensions", ether(&[], 0x86dd, &v6(17, 1, &[hop.clone(), long.clone(), auth], &inner)), true),
        ("an atomic fragment", ether(&[], 0x86dd, &v6(17, 1, &[whole], &inner)), true),
        ("a first fragment", ether(&[], 0x86dd, &v6(17, 1, &[first], &inner)), true),
        ("a later fragment", ether(&[], 0x86dd, &v6(17, 1, &[later], &inner)), false),
        ("six extensions", ether(&[], 0x86dd, &v6(17, 1, &vec![long.clone(); 6], &inner)), true),
        ("seven extensions", ether(&[], 0x86dd, &v6(17, 1, &vec![long; 7], &inner)), false),
        ("a first fragment, v4", ether(&[], 0x0800, &v4(17, 0, 0x2000, 0, &inner)), true),
        ("a later fragment, v4", ether(&[], 0x0800, &v4(17, 0, 0x2001, 0, &inner)), false),
        ("a header that is cut", ether(&[], 0x0800, &v4(17, 0, 0, 0, &inner[..7])), false),
        ("IPv4 that is none", ether(&[], 0x0800, &v6(17, 1, &[], &inner)), false),
        ("IPv6 that is none", ether(&[], 0x86dd, &v4(17, 0, 0, 0, &inner)), false),
    ] {
        assert_eq!(protects(&table, &frame), protected, "{what}: {:?}", table.look(&frame));
    }
}

#[test]
fn wide_rules_match_any_transport() {
    let later = ether(&[], 0x0800, &v4(17, 46, 0x2001, 0, &[0; 8]));
    let seen = table(&["ssh"]).look(&later).1;
    assert_eq!((seen.protocol(), seen.dscp(), seen.ports(), seen.offsets()), (17, 46, None, (14, 34)));
    assert_eq!(seen.flags(), flag::V4 | flag::FRAGMENT | flag::LATER);
    for (rule, yes) in [
        ("src 10.0.0.0/8", true),
        ("src/10.1.2.3", true),
        ("src 0.0.0.0/0", true),
        ("src 11.0.0.0/8", false),
        ("dst 192.0.2.0/24", true),
        ("dst 10.0.0.0/8", false),
        ("src ::/0", false),
        ("dscp/ef", true),
        ("dscp/46", true),
        ("dscp/cs6", false),
    ] {
        assert_eq!(protects(&table(&[rule]), &later), yes, "{rule}");
    }
    let six = ether(&[], 0x86dd, &v6(6, 9, &[], &[]));
    assert_eq!(table(&["ssh"]).look(&six).1.dscp(), 0x2e);
    for (rule, yes) in [
        ("src 2001:db8::/32", true),
        ("src 2001:db8::1", true),
        ("dst fe80::/10", true),
        ("dst fe80::1", false),
        ("src 0.0.0.0/0", false),
        ("dscp/ef", true),
    ] {
        assert_eq!(protects(&table(&[rule]), &six), yes, "{rule}");
    }
}

#[test]
fn a_narrow_rule_is_looked_at_before_a_wide_one() {
    let frame = ip4(17, &udp(9, 514));
    let of = |rules: &[&str]| {
        let table = table(rules);
        table.protector(&frame).map(|place| table.rule(place).unwrap().to_owned())
    };
    assert_eq!(of(&["src 10.0.0.0/8", "udp/514"]).as_deref(), Some("udp/514"));
    assert_eq!(of(&["udp/515", "src 10.0.0.0/8"]).as_deref(), Some("src 10.0.0.0/8"));
    assert_eq!(of(&["udp/515"]), None);
}

#[test]
fn a_full_table_is_an_error_and_repeats_take_no_room() {
    let rules =
        |n: u16| -> Vec<Rule> { (1..=n).map(|p| Rule::parse(&format!("tcp/{p}")).unwrap()).collect() };
    assert_eq!(Table::new(&rules(32)).unwrap().len(), RULES_MAX);
    assert_eq!(Table::new(&rules(33)), Err(Full { rule: 32, needed: 66 }));
    let twice = [rules(32), rules(32)].concat();
    assert_eq!(Table::new(&twice).unwrap().len(), RULES_MAX);
}

#[test]
fn every_name_is_a_rule() {
    for name in NAMES {
        assert_eq!(Rule::parse(name).unwrap().text(), name);
    }
    assert_eq!(Rule::defaults().len(), DEFAULT.len());
    for text in [
        "",
        "tcp",
        "tcp/",
        "tcp/+1",
        "tcp/65536",
        "/",
        "src/",
        "src/1.2.3.4/33",
        "src/::/129",
        "dscp/af44",
        "dscp/",
        "dscp/064",
    ] {
        assert!(Rule::parse(text).is_err(), "{text}");
    }
}

/// They are for the frames of floods: by default no rule is looked at for them.
#[test]
fn a_flood_takes_the_short_ways() {
    for (protocol, rest) in [(17, udp(4000, 9000)), (6, tcp(4000, 80, 2))] {
        let plain = ether(&[], 0x0800, &v4(protocol, 0, 0, 0, &rest));
        assert!(matches!(defaults().short(&plain), (true, true, _)), "{protocol}");
        let tagged = ether(&[(0x8100, 5)], 0x0800, &v4(protocol, 0, 0, 0, &rest));
        assert!(matches!(defaults().short(&tagged), (false, true, _)), "{protocol}");
    }
    let protected = ether(&[], 0x0800, &v4(6, 0, 0, 0, &tcp(4000, 22, 16)));
    assert!(matches!(defaults().short(&protected), (true, false, _)));
    // A rule for every frame has to be looked at.
    let plain = ether(&[], 0x0800, &v4(17, 0, 0, 0, &udp(4000, 9000)));
    assert!(matches!(table(&["vlan/5"]).short(&plain), (true, false, _)));
}

/// What the table says, said again in the plainest way: for each rule a look at the view.
fn reference(rule: &str, view: &View) -> bool {
    let (ports, set) = (view.ports(), view.flags());
    let has = |f: u32| set & f == f;
    match rule {
        "ssh" => {
            view.protocol() == 6 && has(flag::ESTABLISHED) && ports.is_some_and(|p| p.0 == 22 || p.1 == 22)
        }
        "udp/53" => view.protocol() == 17 && ports.is_some_and(|p| p.0 == 53 || p.1 == 53),
        "icmp" => view.protocol() == 1 && has(flag::V4) || view.protocol() == 58 && has(flag::V6),
        "ospf" => view.protocol() == 89 && set & (flag::V4 | flag::V6) != 0,
        "arp" => view.ethertype() == 0x0806,
        "vlan/5" => view.vlan() == 5,
        "dscp/cs6" => view.dscp() == 48 && set & (flag::V4 | flag::V6) != 0,
        other => panic!("{other}"),
    }
}

/// Frames that look like frames: valid headers with small faults.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let port = || prop_oneof![Just(22u16), Just(53), Just(179), Just(9000), any::<u16>()];
    let transport = prop_oneof![
        (port(), port()).prop_map(|(s, t)| (17u8, udp(s, t))),
        (port(), port(), any::<u8>()).prop_map(|(s, t, f)| (6u8, tcp(s, t, f))),
        (any::<u8>(), prop::collection::vec(any::<u8>(), 0..24)),
        (130u8..140).prop_map(|kind| (58u8, vec![kind, 0, 0, 0])),
    ];
    let tags = prop::collection::vec((prop_oneof![Just(0x8100u16), Just(0x88a8)], 0u16..10), 0..4);
    let extension = prop_oneof![
        (prop_oneof![Just(0u8), Just(43), Just(60)], 0u8..3)
            .prop_map(|(kind, n)| (kind, [vec![n], vec![0; 6 + 8 * usize::from(n)]].concat())),
        any::<u16>().prop_map(|o| (44u8, [vec![0], o.to_be_bytes().to_vec(), vec![0; 4]].concat())),
    ];
    let extensions = prop::collection::vec(extension, 0..8);
    let packet = prop_oneof![
        (
            transport.clone(),
            prop_oneof![Just(48u8), 0u8..64],
            prop_oneof![Just(0u16), any::<u16>()],
            0usize..11
        )
            .prop_map(|((p, rest), dscp, fragment, options)| (
                0x0800u16,
                v4(p, dscp, fragment, options, &rest)
            )),
        (transport, prop_oneof![Just(255u8), any::<u8>()], extensions)
            .prop_map(|((p, rest), hops, ext)| (0x86dd, v6(p, hops, &ext, &rest))),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|rest| (0x0806, rest)),
    ];
    let faults = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (tags, packet, faults, any::<prop::sample::Index>(), 0..4u8).prop_map(
        |(tags, (kind, rest), faults, cut, whole)| {
            let mut frame = ether(&tags, kind, &rest);
            for (at, value) in faults {
                let at = at.index(frame.len());
                frame[at] = value;
            }
            if whole == 0 {
                frame.truncate(cut.index(frame.len() + 1));
            }
            frame
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The table agrees with the plain reading of each rule, and the sorted one with each rule alone.
    #[test]
    fn table_is_the_sum_of_its_rules(frame in frame()) {
        let rules = ["ssh", "udp/53", "icmp", "ospf", "arp", "vlan/5", "dscp/cs6"];
        let mut any = false;
        for rule in rules {
            let (protector, view) = table(&[rule]).look(&frame);
            let expected = reference(rule, &view);
            prop_assert_eq!(protector.is_some(), expected, "{} {:?}", rule, view);
            any |= expected;
        }
        prop_assert_eq!(protects(&table(&rules), &frame), any);
    }

    /// The short ways of the packet path tell what the long ones do.
    #[test]
    fn the_short_ways_agree(
        frame in frame(),
        rules in prop::sample::subsequence(vec!["ssh", "udp/53", "icmp", "arp", "vlan/5", "dscp/cs6", "src/10.0.0.0/8"], 0..7),
    ) {
        let table = table(&rules);
        let (protector, view) = table.look(&frame);
        let (_, none, short) = table.short(&frame);
        prop_assert_eq!(view, short);
        prop_assert!(!none || protector.is_none());
    }

    /// Whatever the bytes are, the headers that the view names lie within the frame.
    #[test]
    fn view_stays_within_the_frame(bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0usize..4) {
        let mut bytes = bytes;
        if bytes.len() > 15 {
            bytes[12..14].copy_from_slice(&[0x0800u16, 0x86dd, 0x8100, 0x0806][kind].to_be_bytes());
            bytes[14] = [0x45, 0x60, bytes[14], bytes[14]][kind];
        }
        let view = defaults().look(&bytes).1;
        let (l3, l4) = view.offsets();
        prop_assert!(l3 <= bytes.len() && l4 <= bytes.len());
        prop_assert!(view.ports().is_none() || l4 + 8 <= bytes.len());
        prop_assert!(view.flags() & flag::LATER == 0 || view.flags() & flag::FRAGMENT != 0);
    }

    /// Over any span a rule lets through at most half of the bound and one burst; a slow sender loses nothing.
    #[test]
    fn a_rule_keeps_its_rate(cost in 1u64..5000, saved in 1u64..50, gaps in prop::collection::vec(0u64..4000, 1..400)) {
        let (burst, mut credit, mut now, mut passed) = (2 * cost * saved, Credit::default(), 1_000_000_000, 0u64);
        let start = now;
        for gap in gaps {
            now += gap;
            passed += u64::from(credit.may_pass(3, now, cost, 0, burst));
        }
        prop_assert!(passed <= (now - start + burst) / (2 * cost) + 1, "{} of {}", passed, (now - start) / cost);
        for _ in 0..saved * 2 {
            now += 2 * cost;
            prop_assert!(credit.may_pass(3, now, cost, 0, burst) || saved < 2);
        }
    }

    /// However many rules are flooded, together they have the bound and their sure parts, and another rule its own.
    #[test]
    fn a_flooded_rule_leaves_others_their_part(cost in 1u64..5000, flooded in 1u32..63) {
        let (burst, mut credit, start) = (100 * cost, Credit::default(), 1_000_000_000);
        let (span, every) = (2000 * 64 * cost, RULES_MAX as u64 * cost);
        let (mut passed, mut asked, mut lost, mut now) = (0u64, 0u64, 0u64, start);
        for turn in 0u64.. {
            if now >= start + span {
                break;
            }
            passed += u64::from(credit.may_pass((turn % u64::from(flooded)) as u32, now, cost, 0, burst));
            if turn % 128 == 0 {
                asked += 1;
                lost += u64::from(!credit.may_pass(63, now, cost, 0, burst));
            }
            now += every / 64;
        }
        let bound_of_all = (span + burst) / cost + u64::from(flooded) * ((span + burst) / every + 1);
        prop_assert!(passed <= bound_of_all, "{} of {}", passed, bound_of_all);
        prop_assert!(asked > 500 && lost == 0, "{} of {}", lost, asked);
    }
}
