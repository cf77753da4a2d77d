//! Tests of the decisions, on made-up hosts, and of the probes on this one.

use super::*;
use crate::{discover::Role, ethtool::Ring};

fn good() -> Host {
    let probes = Probes {
        prefer_busy_poll: Here::Yes,
        napi_list: Here::Yes,
        napi_settings: Here::Yes,
        threaded: Here::Yes,
        btf: Here::Yes,
        tracepoints: Here::Yes,
        levels: Here::Yes,
        fifo: Here::Yes,
        steering: Here::Yes,
        root: true,
        net_admin: true,
        bpf: true,
        perfmon: true,
    };
    Host {
        name: "edge1".into(),
        kernel: "6.18.3".into(),
        cpus: 4,
        lockdown: "none".into(),
        probes,
        features: Vec::new(),
    }
}

fn nic(kind: &str) -> Interface {
    Interface {
        name: "eth0".into(),
        ifindex: 2,
        kind: kind.into(),
        role: Role::Source,
        up: true,
        ring: Some(Ring { rx: 256, rx_max: 4096 }),
        channels: None,
        gro: true,
        lro: false,
        xdp: None,
        xdp_native: Some(true),
        mtu: Some(1500),
        threaded: Some(false),
        lower: Vec::new(),
        sources: (0..2)
            .map(|queue| crate::discover::Source {
                queue,
                name: format!("eth0/{queue}"),
                napi_id: Some(8193 + queue),
                irq: Some(30 + queue),
                irq_cpus: None,
                numa: None,
                thread: None,
                threaded: None,
                suspended: false,
                rps: Default::default(),
            })
            .collect(),
    }
}

#[test]
fn a_good_host() {
    let r = report(&good(), nic("ixgbe"));
    assert_eq!((r.tier, r.mode), (Tier::Full, Mode::Poll));
    assert_eq!(r.summary, "auto = poll, with feedback, budget and shed");
    assert_eq!(r.needs_root(), 0);
    let ring = "sudo ethtool -G eth0 rx 1024   Ring 256 lasts 0.25 ms while the poller is away at 1 M/s; 1024 lasts \
                1.02 ms.";
    assert_eq!(r.todo, [ring]);
}

#[test]
fn poorer_hosts() {
    let with = |change: fn(&mut Host, &mut Interface)| {
        let (mut host, mut interface) = (good(), nic("ixgbe"));
        change(&mut host, &mut interface);
        let r = report(&host, interface);
        (r.tier, r.mode)
    };
    assert_eq!(with(|h, _| h.probes.napi_settings = Here::No), (Tier::Part, Mode::Poll));
    assert_eq!(with(|h, _| h.probes.tracepoints = Here::No), (Tier::Part, Mode::Poll));
    assert_eq!(with(|_, i| i.xdp_native = Some(false)), (Tier::Part, Mode::Poll));
    assert_eq!(with(|_, i| i.xdp_native = None), (Tier::Full, Mode::Poll), "known by name");
    let unknown = |_: &mut Host, i: &mut Interface| (i.xdp_native, i.kind) = (None, "new_nic".into());
    assert_eq!(with(unknown), (Tier::Part, Mode::Poll));
    assert_eq!(with(|_, i| i.kind = "vmxnet3".into()), (Tier::Part, Mode::Poll), "it is measured");
    assert_eq!(with(|_, i| i.lro = true), (Tier::Part, Mode::Thread));
    assert_eq!(with(|h, _| h.probes.prefer_busy_poll = Here::No), (Tier::Part, Mode::Thread));
    assert_eq!(with(|h, _| h.probes.btf = Here::No), (Tier::Part, Mode::Thread), "no tracepoint, no poller");
    let foreign = |_: &mut Host, i: &mut Interface| {
        i.xdp = Some(crate::link::Xdp { prog_id: u32::MAX, mode: crate::link::XdpMode::Driver });
    };
    assert_eq!(with(foreign), (Tier::Part, Mode::Thread), "nothing marks the handle");
    let old = |h: &mut Host| (h.probes.prefer_busy_poll, h.probes.threaded) = (Here::No, Here::No);
    let mut host = good();
    old(&mut host);
    assert_eq!(report(&host, nic("e1000e")).mode, Mode::Shed);
    host.probes.bpf = false;
    let r = report(&host, nic("e1000e"));
    assert_eq!((r.tier, r.mode), (Tier::None, Mode::None));
    assert!(r.todo[0].starts_with("Run it with sudo"));
    assert_eq!(require_privileges(&host).unwrap_err().to_string(), "guard: needs CAP_BPF; run it with sudo");
    (host.probes.net_admin, host.probes.perfmon) = (false, false);
    assert_eq!(
        require_privileges(&host).unwrap_err().to_string(),
        "guard: needs CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON; run it with sudo"
    );
    require_privileges(&good()).unwrap();
    // A user who only asks sees what root would get, as far as it can be told without being root.
    let mut asked = good();
    (asked.probes.root, asked.probes.net_admin, asked.probes.bpf, asked.probes.perfmon) =
        (false, false, false, false);
    (asked.probes.prefer_busy_poll, asked.probes.napi_settings) = (Here::NotKnown, Here::NotKnown);
    let r = report(&asked, nic("e1000e"));
    assert_eq!((r.tier, r.mode), (Tier::Part, Mode::Poll));
    assert!(require_privileges(&asked).is_err());
}

#[test]
fn no_driver_is_on_both_lists() {
    let both: Vec<_> = HOLDING.split(' ').filter(|d| LEAKING.split(' ').any(|l| l == *d)).collect();
    assert!(both.is_empty(), "{both:?}");
    assert_eq!(driver_holds("e1000e"), Here::Yes);
    assert_eq!(driver_holds("tg3"), Here::No);
    assert_eq!(driver_holds("some_new_nic"), Here::NotKnown);
}

#[test]
fn serialised_words() {
    let words: Vec<_> =
        [Here::Yes, Here::No, Here::NotKnown].iter().map(|h| serde_json::to_value(h).unwrap()).collect();
    assert_eq!(words, ["yes", "no", "n/a"]);
    assert_eq!(serde_json::to_value(Tier::Full).unwrap(), "full");
}

#[test]
fn this_host_is_probed_without_a_change_root() {
    if !testkit::root_or_skip("this_host_is_probed_without_a_change_root") {
        return;
    }
    let ns = testkit::NetNs::new("tier");
    ns.run(|| {
        let mut access = Access::for_current_netns().unwrap();
        let host = host(&mut access);
        assert_eq!(host.features.len(), 14);
        assert!(host.features.iter().all(|f| !f.why.is_empty()), "{:?}", host.features);
        assert!(host.cpus > 0 && !host.kernel.is_empty());
        // Root with all capabilities: nothing is hidden. What is refused is refused with a reason.
        assert!(!host.features.iter().any(|f| f.needs_root), "{:?}", host.features);
        for f in &host.features {
            println!("{:30} {:?} {}", f.name, f.here, f.why);
        }
    });
}
