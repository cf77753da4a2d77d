//! Discovery of interfaces and the watcher of their changes, in namespaces of their own.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

use kern::{
    discover::{self, DiscoverError, Others, Role},
    ethtool,
    link::{LinkEvent, LinkWatch},
    netns,
    settings::Access,
};
use std::os::fd::{AsFd, AsRawFd};
use testkit::{NetNs, root_or_skip};

fn ip(ns: &NetNs, command: &str) {
    ns.sh("ip", &command.split(' ').collect::<Vec<_>>());
}

#[test]
fn a_veth_and_its_sources_root() {
    if !root_or_skip("a_veth_and_its_sources_root") {
        return;
    }
    let ns = NetNs::new("disc");
    ip(&ns, "link add w0 numrxqueues 2 numtxqueues 2 type veth peer name w1 numrxqueues 2 numtxqueues 2");
    ip(&ns, "link set w0 up");
    ip(&ns, "link set w1 up");
    ns.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let found = discover::interface(&mut access, "w0").unwrap();
        assert_eq!(
            (found.kind.as_str(), found.role, found.up, found.gro),
            ("veth", Role::Source, true, false)
        );
        assert_eq!((found.ring.unwrap().rx, discover::ring("w0")), (256, Some(256)));
        assert_eq!(found.channels.unwrap().rx, 2);
        assert_eq!((found.xdp, found.xdp_native, found.threaded), (None, Some(true), Some(false)));
        let names: Vec<&str> = found.sources.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["w0/0", "w0/1"]);
        assert!(found.sources.iter().all(|s| s.napi_id.is_none() && s.irq.is_none()), "no NAPI without GRO");

        ethtool::set_gro("w0", true).unwrap();
        let ids = kern::napi::list(found.ifindex).unwrap();
        let found = discover::interface(&mut access, "w0").unwrap();
        assert!(found.gro);
        let have: Vec<u32> = found.sources.iter().filter_map(|s| s.napi_id).collect();
        assert_eq!(have, ids.iter().map(|n| n.id).collect::<Vec<_>>());
        assert!(found.sources.iter().all(|s| s.thread.is_none() && !s.suspended && s.rps.is_empty()));

        access.sysfs().device(found.ifindex).unwrap().set_threaded(1).unwrap();
        ip(&ns, "link set w1 down");
        let found = discover::interface(&mut access, "w0").unwrap();
        assert_eq!(found.threaded, Some(true));
        assert!(found.sources.iter().all(|s| s.thread.is_some()));
        ip(&ns, "link set w0 down");
        let found = discover::interface(&mut access, "w0").unwrap();
        assert!(!found.up && found.sources.len() == 2 && found.sources[0].napi_id.is_none());
    });
}

#[test]
fn packets_are_seen_as_those_of_what_stands_on_their_interface_root() {
    if !root_or_skip("packets_are_seen_as_those_of_what_stands_on_their_interface_root") {
        return;
    }
    let ns = NetNs::new("seen");
    for command in
        ["link add a0 type veth peer name a1", "link add br0 type bridge", "link set a0 master br0"]
    {
        ip(&ns, command);
    }
    ns.run(|| {
        let access = Access::for_current_netns().unwrap();
        let index = |name| netns::index_of(name).unwrap();
        assert_eq!(discover::seen_as(&access, index("a0"), 16), [index("a0"), index("br0")]);
        assert_eq!(discover::seen_as(&access, index("a1"), 16), [index("a1")]);
        assert_eq!(discover::seen_as(&access, index("a0"), 1), [index("a0")], "a limit");
        // By this the guard knows that not all that arrives here is for the interface's own addresses.
        let args = ["link", "add", "link", "a1", "name", "m0", "type", "macvlan"];
        if std::process::Command::new("ip").args(args).output().unwrap().status.success() {
            assert_eq!(discover::seen_as(&access, index("a1"), 16), [index("a1"), index("m0")]);
        }
    });
}

#[test]
fn one_interface_that_forwards_makes_a_router_root() {
    if !root_or_skip("one_interface_that_forwards_makes_a_router_root") {
        return;
    }
    let ns = NetNs::new("forwards");
    ip(&ns, "link add a0 type veth peer name a1");
    ns.run(|| {
        let index = netns::index_of("a0").unwrap();
        let here = || (discover::forwards([index]), Others::look([index], None).translates);
        let elsewhere = || discover::forwards([netns::index_of("a1").unwrap(), 999_999]);
        assert_eq!((here(), elsewhere()), ((false, false), false));
        let check = |name: &str, expected: bool| {
            let path = format!("/proc/sys/net/{name}");
            if let Err(e) = std::fs::write(&path, "1") {
                eprintln!("not tested: {name}: {e}");
                return;
            }
            assert_eq!(here(), (expected, expected), "{name}");
            assert_eq!(elsewhere(), name.contains("all"), "{name}");
            std::fs::write(&path, "0").unwrap();
            assert!(!here().0 && !elsewhere(), "{name} is off again");
        };
        check("ipv4/conf/all/forwarding", true);
        check("ipv4/conf/a0/forwarding", true);
        check("ipv4/conf/default/forwarding", false);
        check("ipv6/conf/all/forwarding", true);
        // A router in what it says to its neighbours, which forwards nothing.
        check("ipv6/conf/a0/forwarding", false);
        check("ipv6/conf/default/force_forwarding", false);
        check("ipv6/conf/a0/force_forwarding", true);
    });
}

#[test]
fn a_veth_in_a_bridge_makes_a_host_of_containers_root() {
    if !root_or_skip("a_veth_in_a_bridge_makes_a_host_of_containers_root") {
        return;
    }
    let ns = NetNs::new("houses");
    ip(&ns, "link add a0 type veth peer name a1");
    ip(&ns, "link add br0 type bridge");
    ns.run(|| {
        let houses = || !Others::look([netns::index_of("a0").unwrap()], None).routes;
        std::fs::write("/proc/sys/net/ipv4/conf/all/forwarding", "1").unwrap();
        assert!(!houses(), "a veth in no bridge");
        ip(&ns, "link set a1 master br0");
        assert!(houses());
        ip(&ns, "link set a1 nomaster");
        assert!(!houses(), "taken out again");
    });
}

#[test]
fn translations_are_seen_by_their_rules_root() {
    const NAME: &str = "translations_are_seen_by_their_rules_root";
    if !root_or_skip(NAME) {
        return;
    }
    let run = |ns: &NetNs, command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        let out = ns.run(|| std::process::Command::new(words[0]).args(&words[1..]).output());
        out.is_ok_and(|out| out.status.success())
    };
    let ns = NetNs::new("rules");
    let look = || Others::look([1], None);
    let both = || {
        let now = ns.run(look);
        (now.translates, now.takes)
    };
    // Of modules that are loaded another namespace may have a use.
    let taken = both().1;
    assert!(!both().0, "no rule");
    for (family, hook) in [("ip", "prerouting"), ("ip6", "postrouting"), ("inet", "output")] {
        if !run(&ns, &format!("nft add table {family} t")) {
            eprintln!("{NAME}: not tested without nft: apt-get install nftables");
            break;
        }
        assert!(run(&ns, &format!("nft add chain {family} t c {{ type filter hook input priority 0 ; }}")));
        assert!(run(&ns, &format!("nft add chain {family} t nat")));
        assert_eq!(both(), (false, taken), "{family}: a filter, and a chain of that name");
        assert!(run(&ns, &format!("nft add chain {family} t n {{ type nat hook {hook} priority -100 ; }}")));
        assert_eq!(both(), (true, true), "{family} {hook}");
        assert!(run(&ns, &format!("nft delete table {family} t")));
        assert_eq!(both(), (false, taken), "{family}: the rules are gone");
    }
    for program in ["iptables-legacy", "ip6tables-legacy"] {
        let ns = NetNs::new("tables");
        if !run(&ns, &format!("{program} -t nat -S")) {
            eprintln!("not tested: {program} without a table for translations");
            continue;
        }
        assert!(ns.run(look).translates, "{program}");
    }
}

#[test]
fn stacked_interfaces_resolve_root() {
    if !root_or_skip("stacked_interfaces_resolve_root") {
        return;
    }
    let ns = NetNs::new("stack");
    for command in [
        "link add a0 type veth peer name a1",
        "link add b0 type veth peer name b1",
        "link add br0 type bridge",
        "link add br1 type bridge",
        "link set a0 master br0",
        "link set b0 master br0",
    ] {
        ip(&ns, command);
    }
    // A kernel without VLAN devices tests bridges alone.
    let vlan = ns.run(|| {
        std::process::Command::new("ip")
            .args(["link", "add", "link", "br0", "name", "br0.5", "type", "vlan", "id", "5"])
            .output()
            .unwrap()
            .status
            .success()
    });
    ns.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let mut names = |name: &str| -> Result<Vec<String>, DiscoverError> {
            Ok(discover::resolve(&mut access, name)?.into_iter().map(|i| i.name).collect())
        };
        assert_eq!(names("a0").unwrap(), ["a0"]);
        assert_eq!(names("br0").unwrap(), ["a0", "b0"]);
        if vlan {
            assert_eq!(names("br0.5").unwrap(), ["a0", "b0"]);
        }
        let text = |r: Result<Vec<String>, DiscoverError>| {
            let e = r.unwrap_err();
            assert!(e.is_usage());
            e.to_string()
        };
        assert_eq!(
            text(names("br1")),
            "br1: this bridge has no device below it; add one, or name a network interface"
        );
        assert_eq!(text(names("lo")), "lo: loopback has no source to poll; name a network interface");
        let some = discover::choices().join(", ");
        assert!(some.contains("a0") && !some.contains("lo"), "{some}");
        assert_eq!(text(names("eth9")), format!("eth9: no such interface; choose from {some}"));
        assert_eq!(
            text(names("../../etc/passwd\n")),
            format!("../../etc/passwd: no such interface; choose from {some}")
        );
    });
    let empty = NetNs::new("empty");
    empty.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let text = discover::resolve(&mut access, "eth0").unwrap_err().to_string();
        assert!(!text.contains("choose from"), "{text}");
    });
}

#[test]
fn devices_without_napi_are_refused_root() {
    if !root_or_skip("devices_without_napi_are_refused_root") {
        return;
    }
    let ns = NetNs::new("never");
    ip(&ns, "link add i0 type ifb");
    ns.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let e = discover::resolve(&mut access, "i0").unwrap_err();
        assert_eq!(
            e.to_string(),
            "i0: ifb devices have no source that can be polled; name the one that their packets come from"
        );
        assert!(!discover::choices().contains(&"i0".to_string()));
    });
}

#[test]
fn the_watcher_sees_every_change_root() {
    if !root_or_skip("the_watcher_sees_every_change_root") {
        return;
    }
    let (ns, other) = (NetNs::new("watch"), NetNs::new("other"));
    ip(&ns, "link add w0 type veth peer name w1");
    ip(&ns, "link add m0 type veth peer name m1");
    ns.run(|| {
        let index = |n: &str| netns::index_of(n).unwrap();
        let (w0, m0) = (index("w0"), index("m0"));
        let mut watch = LinkWatch::open().unwrap();
        assert_eq!(watch.take().unwrap(), []);
        let of = |events: Vec<LinkEvent>, wanted: u32| -> Vec<LinkEvent> {
            events
                .into_iter()
                .filter(|e| match e {
                    LinkEvent::Changed { ifindex, .. } | LinkEvent::Gone { ifindex, .. } => {
                        *ifindex == wanted
                    }
                    LinkEvent::Resync => true,
                })
                .collect()
        };
        let changed = |name: &str, up| LinkEvent::Changed { ifindex: w0, name: name.into(), up };
        ip(&ns, "link set w0 up");
        assert_eq!(of(watch.take().unwrap(), w0).last(), Some(&changed("w0", true)));
        ip(&ns, "link set w0 down");
        assert_eq!(of(watch.take().unwrap(), w0).last(), Some(&changed("w0", false)));
        ip(&ns, "link set w0 name renamed");
        assert_eq!(of(watch.take().unwrap(), w0).last(), Some(&changed("renamed", false)));
        // Out of a bridge is not out of the namespace.
        ip(&ns, "link add br0 type bridge");
        ip(&ns, "link set renamed master br0");
        ip(&ns, "link set renamed nomaster");
        let events = of(watch.take().unwrap(), w0);
        assert!(
            !events.is_empty() && !events.iter().any(|e| matches!(e, LinkEvent::Gone { .. })),
            "{events:?}"
        );
        ip(&ns, "link del renamed");
        let gone = LinkEvent::Gone { ifindex: w0, name: "renamed".into(), moved: false };
        assert_eq!(of(watch.take().unwrap(), w0).last(), Some(&gone));
        ip(&ns, &format!("link set m0 netns {}", other.name()));
        let moved = LinkEvent::Gone { ifindex: m0, name: "m0".into(), moved: true };
        assert_eq!(of(watch.take().unwrap(), m0).last(), Some(&moved));
        assert_eq!(watch.take().unwrap(), []);

        // More than fits: told as such, and the next event arrives again.
        let small: libc::c_int = 4096;
        // SAFETY: `small` lives through the call and its size is given.
        let r = unsafe {
            let value = (&raw const small).cast();
            libc::setsockopt(watch.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, value, 4)
        };
        assert_eq!(r, 0);
        for _ in 0..20 {
            ip(&ns, "link set br0 up");
            ip(&ns, "link set br0 down");
        }
        let mut events = Vec::new();
        loop {
            match watch.take().unwrap() {
                none if none.is_empty() => break,
                some => events.extend(some),
            }
        }
        assert!(events.contains(&LinkEvent::Resync), "{events:?}");
        let br0 = index("br0");
        ip(&ns, "link set br0 up");
        let up = LinkEvent::Changed { ifindex: br0, name: "br0".into(), up: true };
        assert_eq!(of(watch.take().unwrap(), br0).last(), Some(&up));
    });
}
