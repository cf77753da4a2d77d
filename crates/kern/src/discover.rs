//! What is there to guard: interfaces, what stands below them, and their sources.

mod others;

pub use others::{Others, forwards};

use crate::text::deceives;
use crate::{
    cpus::CpuSet,
    error::{Error, Result},
    ethtool::{self, Channels, Ring},
    guard::table,
    irq,
    link::{self, Link, Xdp},
    napi::{Direction, Napi, Threaded},
    netns,
    settings::Access,
    sysfs::Device,
};
use serde::Serialize;
use std::collections::BTreeSet;

/// Most interfaces that one name resolves to.
pub const MAX_LOWER: usize = 64;
/// Most receive queues that are looked at on one interface.
pub const MAX_QUEUES: u32 = 1024;
/// Longest chain of interfaces on top of each other.
const MAX_DEPTH: usize = 8;
/// Most names in a list of choices.
const MAX_CHOICES: usize = 8;
/// Depth of a veth's ring, which no interface tells; others that do not tell have no smaller one.
pub const RING_LEAST: u32 = 256;

/// Why an interface cannot be guarded: one line with the fix.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// No such interface in this namespace.
    #[error("{name}: no such interface; {}", choose(.choices))]
    NoSuchInterface {
        /// The name asked for, shortened and made printable.
        name: String,
        /// Interfaces that could be guarded, at most 8.
        choices: Vec<String>,
    },
    /// The loopback.
    #[error("{name}: loopback has no source to poll; name a network interface")]
    Loopback {
        /// The name asked for.
        name: String,
    },
    /// A device that never has a NAPI which can be polled.
    #[error(
        "{name}: {kind} devices have no source that can be polled; name the one that their packets come from"
    )]
    NeverPolled {
        /// The name asked for.
        name: String,
        /// Its kind.
        kind: String,
    },
    /// A bond, bridge, ... without a device below it.
    #[error("{name}: this {kind} has no device below it; add one, or name a network interface")]
    NoLower {
        /// The name asked for.
        name: String,
        /// Its kind.
        kind: String,
    },
    /// The kernel refused to tell.
    #[error(transparent)]
    Other(#[from] Error),
}

fn choose(choices: &[String]) -> String {
    match choices {
        [] => "this network namespace has none that can be guarded".into(),
        some => format!("choose from {}", some.join(", ")),
    }
}

impl DiscoverError {
    /// True if the user named the wrong thing, false if the system refused.
    pub fn is_usage(&self) -> bool {
        !matches!(self, DiscoverError::Other(_))
    }
}

/// What an interface is to weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Receives packets through NAPIs of its own.
    Source,
    /// Stands on other interfaces, which receive the packets.
    Stacked,
    /// The loopback.
    Loopback,
    /// Never has a NAPI that can be polled.
    Never,
}

/// One packet input: a device's receive queue and the NAPI behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// Receive queue.
    pub queue: u32,
    /// `eth0/1`.
    pub name: String,
    /// NAPI id; `None` if the kernel does not tell (down, before 6.8, or an unknown mapping).
    pub napi_id: Option<u32>,
    /// Interrupt; `None` for virtual devices or if it cannot be told.
    pub irq: Option<u32>,
    /// CPUs that the interrupt goes to; `None` without an interrupt.
    pub irq_cpus: Option<CpuSet>,
    /// NUMA node of the device.
    pub numa: Option<u32>,
    /// Kernel thread of the NAPI, if it runs in one.
    pub thread: Option<u32>,
    /// How its NAPI is run.
    pub threaded: Option<Threaded>,
    /// True if a program suspends this NAPI's interrupts itself (`irq-suspend-timeout`).
    pub suspended: bool,
    /// CPUs that its packets are spread over (RPS); empty: off.
    pub rps: CpuSet,
}

/// An interface with its sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Index.
    pub ifindex: u32,
    /// Driver, or the kind of a virtual device (`veth`, `bond`, ...).
    pub kind: String,
    /// What it is to weir.
    pub role: Role,
    /// Set up by the administrator.
    pub up: bool,
    /// Receive ring, if known.
    pub ring: Option<Ring>,
    /// Channels, if the driver tells.
    pub channels: Option<Channels>,
    /// Generic receive offload; on veth it is what makes NAPIs.
    pub gro: bool,
    /// Large receive offload by the NIC; with it packets carry no NAPI id on some drivers.
    pub lro: bool,
    /// XDP program on it.
    pub xdp: Option<Xdp>,
    /// The driver can run XDP programs; `None` if the kernel does not tell (before 6.3).
    pub xdp_native: Option<bool>,
    /// Longest packet, bytes; `None` if it cannot be read.
    pub mtu: Option<u64>,
    /// Threaded NAPI of the whole device; `None` before 5.12.
    pub threaded: Option<bool>,
    /// Interfaces directly below one that stands on others.
    pub lower: Vec<String>,
    /// Its sources, by queue; empty for stacked interfaces.
    pub sources: Vec<Source>,
}

impl Interface {
    /// The XDP program on it, unless it is weir's own.
    #[must_use]
    pub fn foreign_xdp(&self) -> Option<Xdp> {
        let own =
            |xdp: &Xdp| crate::guard::program_name(xdp.prog_id).is_some_and(|name| name.starts_with("weir_"));
        self.xdp.filter(|xdp| !own(xdp))
    }
}

/// How the table of connections of the caller's network namespace is filled: one of [`mod@table`]. `drops_early`: as
/// [`Others::drops_early`].
pub fn table(drops_early: bool) -> u32 {
    let read = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")).ok()?;
        text.trim().parse().ok()
    };
    match read("count").zip(read("max")) {
        // Others may have ended since the last one was refused.
        Some((count, most)) if most > 0 && count >= most - most / 128 => table::FULL,
        Some((count, most)) if policy::gate::is_full(count, most) => table::SILENT,
        Some((1.., _)) if drops_early => table::SILENT,
        Some((1.., _)) => table::USED,
        _ => table::EMPTY,
    }
}

/// Why packets may end in another network namespace than this one, if that is so: it forwards, and has a
/// bridge.
pub fn hands_on() -> Option<String> {
    let all: Vec<u32> = netns::interfaces().ok()?.into_iter().map(|(_, index)| index).collect();
    if !forwards(all.iter().copied()) {
        return None;
    }
    let links = all.iter().filter_map(|index| link::get(*index).ok());
    let bridges: Vec<String> =
        links.filter(|l| l.kind.as_deref() == Some("bridge")).map(|l| l.name).take(MAX_CHOICES).collect();
    (!bridges.is_empty()).then(|| format!("this host forwards, and has {}", bridges.join(", ")))
}

/// What interface `link` is to weir, by its kind.
fn role(link: &Link, driver: &str) -> Role {
    const STACKED: [&str; 9] =
        ["bond", "team", "bridge", "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "vrf"];
    if link.loopback {
        return Role::Loopback;
    }
    match link.kind.as_deref() {
        Some("veth") => Role::Source,
        Some(kind) if STACKED.contains(&kind) => Role::Stacked,
        // Tunnels and their like: no NAPI, or a shared one that the kernel excludes from busy polling.
        Some(_) => Role::Never,
        None if matches!(driver, "tun" | "dummy") => Role::Never,
        None => Role::Source,
    }
}

/// Looks at one interface of the caller's namespace as it is, without resolving it.
pub fn interface(access: &mut Access, name: &str) -> std::result::Result<Interface, DiscoverError> {
    let ifindex = match netns::valid_name(name).then(|| netns::index_of(name)) {
        Some(Ok(i)) => i,
        Some(Err(e)) if !e.is_gone() => return Err(e.into()),
        _ => {
            let name = name.chars().filter(|c| !deceives(*c)).take(40).collect();
            return Err(DiscoverError::NoSuchInterface { name, choices: choices() });
        }
    };
    Ok(look(access, ifindex)?)
}

pub(crate) fn look(access: &mut Access, ifindex: u32) -> Result<Interface> {
    let link = link::get(ifindex)?;
    let device = access.sysfs().device(ifindex)?;
    let name = device.name().to_string();
    let driver = ethtool::driver(&name).unwrap_or_default();
    let role = role(&link, &driver);
    let kind = link.kind.clone().unwrap_or_else(|| match role {
        Role::Loopback => "loopback".into(),
        _ if driver.is_empty() => "unknown".into(),
        _ => driver.clone(),
    });
    let ring =
        ethtool::ring(&name).or((kind == "veth").then_some(Ring { rx: RING_LEAST, rx_max: RING_LEAST }));
    let xdp_native = access.netdev().and_then(|n| n.xdp_features(ifindex).ok()).map(|f| f.native());
    // A switch of Open vSwitch has no source of its own either, but it takes what its ports receive.
    let stands = role == Role::Stacked || kind == "openvswitch";
    let lower = if stands { device.lower()? } else { Vec::new() };
    let sources = if role == Role::Source { sources(access, &device, ifindex, &kind)? } else { Vec::new() };
    Ok(Interface {
        ifindex,
        kind,
        role,
        up: link.up,
        ring,
        channels: ethtool::channels(&name),
        gro: ethtool::gro(&name).unwrap_or(false),
        lro: ethtool::lro(&name).unwrap_or(false),
        xdp: link.xdp,
        xdp_native,
        mtu: device.number("mtu").ok(),
        threaded: device.threaded().ok().map(|t| t != 0),
        lower,
        sources,
        name,
    })
}

fn sources(access: &mut Access, device: &Device, ifindex: u32, kind: &str) -> Result<Vec<Source>> {
    let queues = device.rx_queues()?.min(MAX_QUEUES);
    let (napis, map) = match access.netdev() {
        // A kernel without the lists has the settings of the device only.
        Some(n) => (n.list(ifindex).unwrap_or_default(), n.queues(ifindex).unwrap_or_default()),
        None => Default::default(),
    };
    let irqs = named_irqs(device);
    let numa = device.numa_node();
    (0..queues)
        .map(|queue| {
            let linked = map.get(&(Direction::Rx, queue)).copied().flatten();
            let napi: Option<&Napi> = match linked {
                Some(id) => napis.iter().find(|n| n.id == id),
                // Ids are given in the order of the queues. Only where there is one NAPI per receive queue;
                // elsewhere those of transmission stand among them.
                None if napis.len() == queues as usize => napis.get(queue as usize),
                None => None,
            };
            let irq =
                napi.and_then(|n| n.irq).or_else(|| irq_of(&irqs, queue, queues)).filter(|_| kind != "veth");
            Ok(Source {
                queue,
                name: format!("{}/{queue}", device.name()),
                napi_id: napi.map(|n| n.id).or(linked),
                irq,
                irq_cpus: irq.and_then(|i| irq::cpus(i).ok()),
                numa,
                thread: napi.and_then(|n| n.pid),
                threaded: napi.and_then(|n| n.threaded),
                suspended: napi.and_then(|n| n.irq_suspend_timeout_ns).is_some_and(|t| t > 0),
                rps: device.rps_cpus(queue).unwrap_or_default(),
            })
        })
        .collect()
}

/// Interrupts that are of this device by number (MSI) or by name.
fn named_irqs(device: &Device) -> Vec<irq::Irq> {
    let msi = device.msi_irqs();
    let named = |i: &irq::Irq| i.name.split([',', ' ', '-', '.', '@', ':']).any(|part| part == device.name());
    let all = irq::list().unwrap_or_default();
    all.into_iter().filter(|i| msi.contains(&i.irq) || named(i)).collect()
}

fn irq_of(irqs: &[irq::Irq], queue: u32, queues: u32) -> Option<u32> {
    let by_name = irqs.iter().find(|i| irq::rx_queue(&i.name) == Some(queue));
    match (by_name, irqs) {
        (Some(i), _) => Some(i.irq),
        // One queue and one interrupt for everything.
        (None, [only]) if queues == 1 => Some(only.irq),
        _ => None,
    }
}

/// Interfaces whose sources carry the packets of `name`: itself, or all devices below a bond, bridge, VLAN and
/// the like. At most [`MAX_LOWER`], in order of discovery, each once.
pub fn resolve(access: &mut Access, name: &str) -> std::result::Result<Vec<Interface>, DiscoverError> {
    let top = interface(access, name)?;
    let refused = |i: &Interface| match i.role {
        Role::Loopback => Some(DiscoverError::Loopback { name: i.name.clone() }),
        Role::Never => Some(DiscoverError::NeverPolled { name: i.name.clone(), kind: i.kind.clone() }),
        _ => None,
    };
    if let Some(e) = refused(&top) {
        return Err(e);
    }
    let none = DiscoverError::NoLower { name: top.name.clone(), kind: top.kind.clone() };
    let (mut seen, mut found) = (BTreeSet::from([top.ifindex]), Vec::new());
    let mut level = vec![top];
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for i in level {
            if i.role == Role::Source {
                found.push(i);
                continue;
            }
            for lower in &i.lower {
                let lower = match interface(access, lower) {
                    Ok(l) => l,
                    // Deleted meanwhile.
                    Err(DiscoverError::NoSuchInterface { .. }) => continue,
                    Err(e) => return Err(e),
                };
                if refused(&lower).is_none() && seen.len() <= MAX_LOWER && seen.insert(lower.ifindex) {
                    next.push(lower);
                }
            }
        }
        level = next;
    }
    if found.is_empty() { Err(none) } else { Ok(found) }
}

/// Indices under which the stack sees what `ifindex` receives: its own, and those of the interfaces that stand on it (bond,
/// bridge, VRF, VLAN), which take its packets over. At most `most`, itself first.
pub fn seen_as(access: &Access, ifindex: u32, most: usize) -> Vec<u32> {
    let mut seen = vec![ifindex];
    let mut next = 0;
    while next < seen.len() && seen.len() < most {
        let above = access.sysfs().device(seen[next]).and_then(|d| d.upper()).unwrap_or_default();
        for index in above.iter().filter_map(|name| netns::index_of(name).ok()) {
            if !seen.contains(&index) && seen.len() < most {
                seen.push(index);
            }
        }
        next += 1;
    }
    seen
}

/// Names of interfaces of this namespace that could be guarded, at most eight, in kernel order.
pub fn choices() -> Vec<String> {
    let all = netns::interfaces().unwrap_or_default();
    let guardable = |name: &str, ifindex: u32| {
        link::get(ifindex).is_ok_and(|l| {
            matches!(role(&l, &ethtool::driver(name).unwrap_or_default()), Role::Source | Role::Stacked)
        })
    };
    all.into_iter().filter(|(n, i)| guardable(n, *i)).take(MAX_CHOICES).map(|(n, _)| n).collect()
}

/// Depth of the receive ring of `name` in packets, if known.
pub fn ring(name: &str) -> Option<u32> {
    ethtool::ring(name)
        .map(|r| r.rx)
        .or_else(|| (ethtool::driver(name).ok()? == "veth").then_some(RING_LEAST))
}
