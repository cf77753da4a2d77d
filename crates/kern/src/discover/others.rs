//! Whether packets may be for somebody else than the sockets of this namespace that have their addresses and ports.
//!
//! Asked is what is in use, since the code is part of many kernels whose hosts use none of it. Where use cannot be seen, the
//! code stands for it: too much caution sheds less, too little sheds what somebody waits for.

use crate::{
    netns,
    raw::netlink::{Dump, bytes, each},
};
use netlink_bindings::utils::find_attr;
use netlink_socket2::NetlinkSocket;
use std::{
    fs,
    io::{self, BufRead},
    path::Path,
    sync::OnceLock,
};

/// Of the calling thread's namespace; files directly below /proc are those of the main thread's.
const NET: &str = "/proc/thread-self/net";
/// Settings of the calling thread's namespace.
const SYSCTL: &str = "/proc/sys/net";
const MODULES: &str = "/sys/module";
const SYMBOLS: &str = "/proc/kallsyms";

/// `NFNL_SUBSYS_NFTABLES`, `NFT_MSG_GETCHAIN`; the header of its replies, and attributes of a chain.
const GETCHAIN: u16 = 10 << 8 | 4;
const NFGENMSG: usize = 4;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
/// `NF_IP_PRI_CONNTRACK`: what comes before it has not been looked up in the table of connections; at the same one it depends.
const CONNTRACK_PRIORITY: i32 = -200;
/// Families of tables whose first hook is prerouting: inet, ip, ip6.
const IP_FAMILIES: [u8; 3] = [1, 2, 10];
/// The bridge's, which has a table of connections of its own.
const BRIDGE_FAMILY: u8 = 7;

/// Modules that translate by rules of their own kind, in traffic control and in Open vSwitch.
const TRANSLATORS: [&str; 2] = ["act_ct", "openvswitch"];
/// Modules that take packets before the sockets of their addresses do: whoever loads one uses it, maybe in another namespace.
const TAKERS: [&str; 2] = ["macvlan", "nf_synproxy_core"];
/// The same of those that may be part of the kernel: a VLAN or ipvlan that another namespace has is not seen from this one, and has
/// the hardware address of the interface that it stands on.
const TAKERS_IN_KERNEL: [&str; 2] = ["8021q", "ipvlan"];
const TPROXIES: [&str; 2] = ["nf_tproxy_ipv4", "nf_tproxy_ipv6"];

/// Code that may be part of the kernel, which then has a directory in [`MODULES`] only if it has parameters; and a function of it.
const BUILT_IN: [(&str, &str); 5] = [
    ("8021q", "register_vlan_dev"),
    ("ipvlan", "ipvlan_queue_xmit"),
    ("nf_tables", "nft_register_chain_type"),
    ("nf_tproxy_ipv4", "nf_tproxy_get_sock_v4"),
    ("nf_tproxy_ipv6", "nf_tproxy_get_sock_v6"),
];

/// For whom packets may be that arrive by some interfaces, beside the sockets of this namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// They may be sent on, and to other hosts: containers behind a bridge of this one make it none that only routes.
    pub routes: bool,
    /// One may be for somebody although no socket here has its port: it is sent on, or its addresses are translated.
    pub translates: bool,
    /// A segment may be for somebody else than the socket that has its addresses and ports here, or be answered before that one.
    pub takes: bool,
    /// BPF programs give packets to other sockets than those that have their addresses and ports (`sk_lookup`).
    pub redirects: bool,
    /// A rule may drop what the table of connections calls invalid before the route is known.
    pub drops_early: bool,
}

impl Others {
    /// Nothing is known, so everything may be.
    pub const ANY: Others =
        Others { routes: true, translates: true, takes: true, redirects: true, drops_early: true };

    /// What is so now for packets that are seen to arrive by `interfaces`: the guarded ones and those that stand on them. A device
    /// on a guarded one that takes packets over in this namespace (VLAN, macvlan, ipvlan) is not asked for here, but is one of them.
    ///
    /// `own` is the program that gives the caller's handles their packets.
    ///
    /// Costs two or three small files per interface; a list of the veths where packets are sent on, elsewhere one of the chains of
    /// nftables.
    pub fn look(interfaces: impl IntoIterator<Item = u32>, own: Option<u32>) -> Others {
        let redirects = crate::guard::redirects_sockets(own);
        if forwards(interfaces) {
            // A list that the kernel does not give makes a router.
            let routes = !crate::link::has_bridged_veth().unwrap_or(false);
            return Others { redirects, routes, ..Others::ANY };
        }
        let rules = Rules::read();
        let translates = rules.nat || redirects || TRANSLATORS.iter().any(|name| is_loaded(name));
        let net = Path::new(NET);
        let takes = translates
            || TAKERS.iter().any(|name| is_loaded(name))
            || TAKERS_IN_KERNEL.iter().any(|name| is_in_kernel(name))
            || has_services(net)
            || has_answered(net)
            || TPROXIES.iter().any(|name| is_loaded(name) || rules.early && is_in_kernel(name));
        Others { routes: false, translates, takes, redirects, drops_early: rules.nat || rules.between }
    }
}

/// True if packets of some family may be sent on that are seen to arrive by one of `interfaces` of this namespace.
pub fn forwards(interfaces: impl IntoIterator<Item = u32>) -> bool {
    // One that is gone receives nothing.
    sends_on(Path::new(SYSCTL), interfaces.into_iter().filter_map(|index| netns::name_of(index).ok()))
}

fn sends_on(sysctl: &Path, interfaces: impl Iterator<Item = String>) -> bool {
    let is_on = |family: &str, interface: &str, name: &str| {
        let path = sysctl.join(family).join("conf").join(interface).join(name);
        fs::read_to_string(path).is_ok_and(|value| value.trim() != "0")
    };
    // IPv4 asks the interface by which a packet arrives. IPv6 asks the switch for all: that of one interface makes it a router in
    // what it says to its neighbours, and only `force_forwarding` (6.17) one that forwards.
    is_on("ipv6", "all", "forwarding")
        || std::iter::once("all".to_owned())
            .chain(interfaces)
            .any(|name| is_on("ipv4", &name, "forwarding") || is_on("ipv6", &name, "force_forwarding"))
}

/// What rules of this namespace may do to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rules {
    /// Translate addresses.
    nat: bool,
    /// See packets before the route is known, as rules of a transparent proxy must.
    early: bool,
    /// See them between the table of connections and the routes.
    between: bool,
}

impl Rules {
    const ANY: Rules = Rules { nat: true, early: true, between: true };

    fn read() -> Rules {
        let mut rules = Rules::default();
        for file in ["ip_tables_names", "ip6_tables_names"] {
            rules.add(Rules::of_iptables(&Path::new(NET).join(file)));
        }
        if !rules.nat {
            rules.add(Rules::of_nftables());
        }
        rules
    }

    fn add(&mut self, other: Rules) {
        self.nat |= other.nat;
        self.early |= other.early;
        self.between |= other.between;
    }

    /// The tables of iptables' own kind, one a line.
    fn of_iptables(names: &Path) -> Rules {
        match fs::read_to_string(names) {
            Ok(text) => {
                let has = |name| text.lines().any(|line| line == name);
                Rules { nat: has("nat"), early: has("mangle"), between: has("mangle") }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Rules::default(),
            // There are tables, and only root may know which.
            Err(_) => Rules::ANY,
        }
    }

    /// The chains of nftables, which has those of iptables-nft too.
    fn of_nftables() -> Rules {
        // The question alone would load the module.
        if !is_in_kernel("nf_tables") {
            return Rules::default();
        }
        let mut rules = Rules::default();
        let dump = Dump {
            protonum: libc::NETLINK_NETFILTER as u16,
            kind: GETCHAIN,
            payload: vec![0; NFGENMSG], // all families
        };
        let asked = each(&mut NetlinkSocket::new(), &dump, "chains of nftables", |reply| {
            rules.add(Rules::of_chain(reply).unwrap_or_default());
            !rules.nat
        });
        match asked {
            Ok(()) => rules,
            // No such subsystem.
            Err(e) if e.errno() == Some(libc::EINVAL) => Rules::default(),
            Err(_) => Rules::ANY,
        }
    }

    /// `None` for a chain that is only jumped to.
    fn of_chain(reply: &[u8]) -> Option<Rules> {
        let attributes = reply.get(NFGENMSG..)?;
        let hook = find_attr(attributes, NFTA_CHAIN_HOOK)?;
        let first = bytes(find_attr(hook, NFTA_HOOK_HOOKNUM)?, 0).map(u32::from_be_bytes) == Some(0);
        let priority = find_attr(hook, NFTA_HOOK_PRIORITY).and_then(|p| bytes(p, 0)).map(i32::from_be_bytes);
        let kind = find_attr(attributes, NFTA_CHAIN_TYPE)?;
        let early = first && IP_FAMILIES.contains(&reply[0]);
        let bridge = first && reply[0] == BRIDGE_FAMILY;
        Some(Rules {
            nat: kind.strip_suffix(&[0]).unwrap_or(kind) == b"nat",
            early,
            between: bridge || early && priority.is_none_or(|p| p >= CONNTRACK_PRIORITY),
        })
    }
}

/// True if IPVS has a service.
fn has_services(net: &Path) -> bool {
    const KINDS: [&str; 4] = ["TCP ", "UDP ", "SCTP", "FWM "];
    // Behind three lines of heads; servers of a service begin with an arrow.
    let text = fs::read_to_string(net.join("ip_vs")).unwrap_or_default();
    text.lines().any(|line| KINDS.iter().any(|kind| line.starts_with(kind)))
}

/// True if SYNPROXY has seen a SYN here: the second column of a line per CPU, in hexadecimal.
fn has_answered(net: &Path) -> bool {
    let text = fs::read_to_string(net.join("stat/synproxy")).unwrap_or_default();
    let seen = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().skip(1).filter_map(seen).any(|count| count > 0)
}

fn is_loaded(module: &str) -> bool {
    Path::new(MODULES).join(module).exists()
}

/// True if `module`, one of [`BUILT_IN`], is loaded, or part of the kernel.
fn is_in_kernel(module: &str) -> bool {
    static FOUND: OnceLock<[bool; BUILT_IN.len()]> = OnceLock::new();
    // Takes 40 ms for 120,000 symbols, and what is built in stays so.
    let built_in = || {
        let found = fs::File::open(SYMBOLS).and_then(|file| find_built_in(io::BufReader::new(file)));
        found.unwrap_or([true; BUILT_IN.len()])
    };
    is_loaded(module)
        || BUILT_IN
            .iter()
            .zip(FOUND.get_or_init(built_in))
            .any(|((name, _), found)| *found && *name == module)
}

/// Which of [`BUILT_IN`] have their function in the kernel's list of symbols: address, kind, name, and the module if there is one.
fn find_built_in(mut symbols: impl BufRead) -> io::Result<[bool; BUILT_IN.len()]> {
    let mut found = [false; BUILT_IN.len()];
    let mut line = Vec::new();
    while symbols.read_until(b'\n', &mut line)? > 0 {
        let name = line.trim_ascii_end().splitn(3, |b| *b == b' ').nth(2);
        for (found, (_, function)) in found.iter_mut().zip(BUILT_IN) {
            *found |= name == Some(function.as_bytes());
        }
        line.clear();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut all = (4 + value.len() as u16).to_ne_bytes().to_vec();
        all.extend(kind.to_ne_bytes());
        all.extend(value);
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_switch_of_an_interface_by_which_packets_arrive() {
        const FORWARDING: [&str; 7] = [
            "ipv4/conf/all/forwarding",
            "ipv4/conf/default/forwarding",
            "ipv4/conf/eth0/forwarding",
            "ipv4/conf/eth1/forwarding",
            "ipv6/conf/all/forwarding",
            "ipv6/conf/eth0/forwarding",
            "ipv6/conf/eth0/force_forwarding",
        ];
        let dir = tempfile::tempdir().unwrap();
        let on = |interfaces: &[&str]| sends_on(dir.path(), interfaces.iter().map(|&name| name.into()));
        assert!(!on(&["eth0"]), "neither family is there");
        FORWARDING.iter().for_each(|name| write(dir.path(), name, "0\n"));
        let by = FORWARDING.map(|name| {
            write(dir.path(), name, "1\n");
            let found = (on(&["gone", "eth0"]), on(&[]));
            write(dir.path(), name, "0\n");
            found
        });
        let (all, eth0, none) = ((true, true), (true, false), (false, false));
        assert_eq!(by, [all, none, eth0, none, all, none, eth0]);
        assert!(!on(&["eth0", "eth1"]));
    }

    #[test]
    fn chains_by_type_and_hook() {
        let at = |family: u8, hook: u32, priority: i32, kind: &[u8]| {
            let (hook, priority) = (hook.to_be_bytes(), priority.to_be_bytes());
            let hook =
                [attribute(NFTA_HOOK_HOOKNUM, &hook), attribute(NFTA_HOOK_PRIORITY, &priority)].concat();
            let hook = attribute(NFTA_CHAIN_HOOK, &hook);
            [vec![family, 0, 0, 0], hook, attribute(NFTA_CHAIN_TYPE, kind)].concat()
        };
        let chain = |family, hook, kind: &[u8]| at(family, hook, -150, kind);
        let rules = |nat, early| Some(Rules { nat, early, between: early });
        let raw = Some(Rules { nat: false, early: true, between: false });
        assert_eq!(Rules::of_chain(&at(2, 0, -300, b"filter\0")), raw, "before connections are looked up");
        assert_eq!(Rules::of_chain(&at(2, 0, -200, b"filter\0")), rules(false, true), "nobody knows");
        let bridge = Some(Rules { nat: false, early: false, between: true });
        assert_eq!(Rules::of_chain(&at(7, 0, -300, b"filter\0")), bridge);
        assert_eq!(Rules::of_chain(&chain(2, 0, b"nat\0")), rules(true, true));
        assert_eq!(Rules::of_chain(&chain(10, 4, b"nat\0")), rules(true, false));
        assert_eq!(Rules::of_chain(&chain(1, 0, b"filter\0")), rules(false, true));
        assert_eq!(Rules::of_chain(&chain(1, 1, b"filter\0")), rules(false, false));
        assert_eq!(Rules::of_chain(&chain(5, 0, b"filter\0")), rules(false, false), "ingress of a device");
        assert_eq!(Rules::of_chain(&[2, 0, 0, 0]), None, "only jumped to");
        let whole = chain(2, 0, b"nat\0");
        assert!((0..whole.len()).all(|cut| Rules::of_chain(&whole[..cut]).is_none()), "cut off");
    }

    #[test]
    fn tables_of_iptables() {
        let dir = tempfile::tempdir().unwrap();
        let names = dir.path().join("ip_tables_names");
        let rules = |nat, early| Rules { nat, early, between: early };
        assert_eq!(Rules::of_iptables(&names), rules(false, false));
        for (text, expected) in [
            ("", rules(false, false)),
            ("filter\nnatural\n", rules(false, false)),
            ("filter\nnat\n", rules(true, false)),
        ] {
            write(dir.path(), "ip_tables_names", text);
            assert_eq!(Rules::of_iptables(&names), expected, "{text}");
        }
        write(dir.path(), "ip_tables_names", "mangle\n");
        assert_eq!(Rules::of_iptables(&names), rules(false, true));
        assert_eq!(Rules::of_iptables(dir.path()), Rules::ANY, "cannot be read");
    }

    #[test]
    fn services_and_proxied_handshakes() {
        const HEADS: &str = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  \
                             -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_services(dir.path()) && !has_answered(dir.path()));
        write(dir.path(), "ip_vs", HEADS);
        assert!(!has_services(dir.path()));
        write(dir.path(), "ip_vs", &format!("{HEADS}TCP  0A000001:0050 rr \n"));
        assert!(has_services(dir.path()));
        let stat = |seen| {
            format!("entries\t\tsyn_received\tcookie_invalid\n0000000a\t00000000\t00000001\n00\t{seen}\t0\n")
        };
        write(dir.path(), "stat/synproxy", &stat("00000000"));
        assert!(!has_answered(dir.path()));
        write(dir.path(), "stat/synproxy", &stat("0000000b"));
        assert!(has_answered(dir.path()));
    }

    #[test]
    fn what_is_built_in() {
        let text =
            b"ffffffff81f667e0 T nft_register_chain_type\nffffffffc0a0 t ipvlan_queue_xmit\t[ipvlan]\n\
                     ffffffff8208d4c0 r __ksymtab_nf_tproxy_get_sock_v4\nffffffff820a1230 T register_vlan_dev\n\n\
                     broken\n\xff\xfe T x\n";
        assert_eq!(find_built_in(&text[..]).unwrap(), [true, false, true, false, false]);
    }
}
