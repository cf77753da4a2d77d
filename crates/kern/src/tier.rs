//! What this host and its interfaces can do for weir, found by trying, never by comparing kernel versions
//! (distributions port features back). Nothing is changed, and each probe says what it saw.

use crate::{
    cpus,
    discover::Interface,
    error::{Error, Result},
    settings::Access,
};
use caps::{CapSet, Capability};
use serde::Serialize;
use std::{fs, io, os::fd::AsRawFd};

/// Answer of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Here {
    /// It works.
    #[serde(rename = "yes")]
    Yes,
    /// It does not.
    #[serde(rename = "no")]
    No,
    /// It cannot be told, or makes no sense here.
    #[serde(rename = "n/a")]
    NotKnown,
}

impl Here {
    /// True for [`Here::Yes`].
    pub fn yes(self) -> bool {
        self == Here::Yes
    }

    fn from_bool(yes: bool) -> Self {
        if yes { Here::Yes } else { Here::No }
    }
}

/// One row of `weir check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Name for the user.
    pub name: &'static str,
    /// Whether it is here.
    pub here: Here,
    /// First kernel version, or `driver`, `config`, `NIC`: what to look for.
    pub since: &'static str,
    /// What weir uses it for.
    pub used_for: &'static str,
    /// What is missed without it.
    pub missed: &'static str,
    /// What the probe saw.
    pub why: String,
    /// True if the probe could not tell for lack of privilege.
    pub needs_root: bool,
}

/// How much of weir works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Nothing that helps.
    None,
    /// Some of it.
    Part,
    /// All of it.
    Full,
}

/// What `--mode auto` does with the sources of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The poller takes a source over.
    Poll,
    /// NAPI in kernel threads.
    Thread,
    /// Early drop only.
    Shed,
    /// Nothing can be done.
    None,
}

/// The host's answers, for decisions; [`Host::features`] has them for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Probes {
    /// `SO_PREFER_BUSY_POLL`: a socket can be the handle of a source.
    pub prefer_busy_poll: Here,
    /// NAPIs are listed by netlink.
    pub napi_list: Here,
    /// Settings per NAPI; otherwise per device, so that all its sources are taken together or none.
    pub napi_settings: Here,
    /// NAPI in kernel threads.
    pub threaded: Here,
    /// BTF of the kernel.
    pub btf: Here,
    /// All tracepoints that the gauges need.
    pub tracepoints: Here,
    /// `bpf_rdonly_cast`: levels of sockets can be read in the packet path.
    pub levels: Here,
    /// SCHED_FIFO.
    pub fifo: Here,
    /// A handle is marked by a datagram of a flow that any firewall lets through.
    pub steering: Here,
    /// Asked by root. Otherwise missing privileges do not count against the host.
    pub root: bool,
    /// CAP_NET_ADMIN.
    pub net_admin: bool,
    /// CAP_BPF, or CAP_SYS_ADMIN.
    pub bpf: bool,
    /// CAP_PERFMON, or CAP_SYS_ADMIN.
    pub perfmon: bool,
}

/// The host part of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Host name.
    pub name: String,
    /// Kernel release; shown, never decided on.
    pub kernel: String,
    /// CPUs online.
    pub cpus: usize,
    /// Lockdown mode, `none` where the kernel has none.
    pub lockdown: String,
    /// Answers for decisions.
    pub probes: Probes,
    /// Answers for the user.
    pub features: Vec<Feature>,
}

/// The report of one interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The interface.
    pub interface: Interface,
    /// What `weir guard` can do here.
    pub tier: Tier,
    /// What it would do, in words.
    pub summary: String,
    /// The mode that `auto` would choose.
    pub mode: Mode,
    /// The host's features and the interface's.
    pub features: Vec<Feature>,
    /// What would help, most useful first; one sentence each.
    pub todo: Vec<String>,
}

impl Report {
    /// Probes that could not tell for lack of privilege.
    pub fn needs_root(&self) -> usize {
        self.features.iter().filter(|f| f.needs_root).count()
    }
}

/// Tracepoints that the gauges attach to.
pub const TRACEPOINTS: [&str; 7] = [
    "napi_poll",
    "softirq_entry",
    "softirq_exit",
    "udp_fail_queue_rcv_skb",
    "sock_recv_length",
    "sched_switch",
    "sk_data_ready",
];

/// Types of the running kernel.
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Name of the row that tells whether a socket can be the handle of a source.
const POLLER: &str = "poller by socket";

/// What a probe saw.
struct Seen {
    here: Here,
    why: String,
    needs_root: bool,
}

fn seen(here: Here, why: impl Into<String>) -> Seen {
    Seen { here, why: why.into(), needs_root: false }
}

fn hidden(why: impl Into<String>) -> Seen {
    Seen { here: Here::NotKnown, why: why.into(), needs_root: true }
}

/// Looks at the host. Opens a few sockets and one thread, changes nothing.
pub fn host(access: &mut Access) -> Host {
    let cap = |c| caps::has_cap(None, CapSet::Effective, c).unwrap_or(false);
    let admin = cap(Capability::CAP_SYS_ADMIN);
    let (net_admin, bpf, perfmon) = (
        cap(Capability::CAP_NET_ADMIN),
        admin || cap(Capability::CAP_BPF),
        admin || cap(Capability::CAP_PERFMON),
    );
    let [btf, tracepoints, levels, reasons] = kernel_types();
    let rows = [
        // The option is from 5.11; a guard needs BPF programs too that 5.12 is the first to take.
        (probe_prefer_busy_poll(), [POLLER, "5.12", "taking a source over", "the poller"]),
        (
            probe_napi_list(access),
            ["list of NAPIs", "6.8", "ids without waiting for a packet", "ids are learnt from packets"],
        ),
        (
            probe_napi_settings(access),
            [
                "settings per source",
                "6.13",
                "other sources stay as they are",
                "a device is taken over as a whole",
            ],
        ),
        (probe_threaded(access), ["threaded NAPI", "5.12", "--mode thread", "--mode thread"]),
        (btf, ["BTF in the kernel", "config", "all gauges", "feedback, shed, waits, reasons"]),
        (
            tracepoints,
            ["tracepoints with BTF", "6.3", "onset, levels, softirq time", "feedback within one turn"],
        ),
        (
            levels,
            ["levels in the packet path", "6.2", "feedback within one turn", "feedback within one turn"],
        ),
        (
            probe_fifo(),
            ["real-time class (FIFO)", "config", "pollers and keeper before hogs", "nice -20 instead"],
        ),
        (
            probe_steering(bpf),
            [
                "handle past firewalls",
                "5.17",
                "takeover of UDP behind any firewall",
                "mode thread where a firewall drops",
            ],
        ),
        (
            probe_io_uring(),
            [
                "handle by NAPI id",
                "6.13",
                "takeover of TCP and forwarded frames behind any firewall",
                "one frame is rewritten, else mode thread",
            ],
        ),
        (
            reasons,
            [
                "reasons of drops",
                "5.17",
                "what no program wants is shed",
                "neither what is nobody's nor what is for full sockets is shed",
            ],
        ),
        (
            probe_binds(),
            [
                "binds of all programs",
                "cgroup2",
                "a port is somebody's from its bind on",
                "what is nobody's is remembered for 50 ms, not for 1 s",
            ],
        ),
        (
            probe_connections(),
            [
                "who has a connection",
                "5.18",
                "of what is refused, only who is known passes",
                "floods pass where a table is full, or translates",
            ],
        ),
        (
            capabilities(net_admin, bpf, perfmon),
            ["privileges", "root", "everything that weir changes", "guard cannot run"],
        ),
    ];
    let here: Vec<Here> = rows.iter().map(|(s, _)| s.here).collect();
    let features = rows.map(|(seen, text)| feature(seen, text)).into();
    Host {
        name: uname(|u| u.nodename()),
        kernel: uname(|u| u.release()),
        cpus: cpus::online().map(|c| c.len()).unwrap_or(1),
        lockdown: lockdown(),
        probes: Probes {
            prefer_busy_poll: here[0],
            napi_list: here[1],
            napi_settings: here[2],
            threaded: here[3],
            btf: here[4],
            tracepoints: here[5],
            levels: here[6],
            fifo: here[7],
            steering: here[8],
            root: nix::unistd::geteuid().is_root(),
            net_admin,
            bpf,
            perfmon,
        },
        features,
    }
}

fn feature(seen: Seen, [name, since, used_for, missed]: [&'static str; 4]) -> Feature {
    Feature { name, here: seen.here, since, used_for, missed, why: seen.why, needs_root: seen.needs_root }
}

fn uname(part: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr) -> String {
    nix::sys::utsname::uname().map(|u| part(&u).to_string_lossy().into_owned()).unwrap_or_default()
}

fn lockdown() -> String {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let mode = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    mode.map_or("none", |(mode, _)| mode).into()
}

fn probe_prefer_busy_poll() -> Seen {
    const SO_PREFER_BUSY_POLL: libc::c_int = 69;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    // Unbound: a new namespace has no loopback that is up.
    let make = |family| socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
    let Ok(socket) = make(AddressFamily::Inet).or_else(|_| make(AddressFamily::Inet6)) else {
        return seen(Here::NotKnown, "no UDP socket can be made here");
    };
    let set = |value: libc::c_int| {
        // SAFETY: `value` lives through the call and its size is given.
        let r = unsafe {
            let value = (&raw const value).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, value, 4)
        };
        if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    match set(1) {
        Ok(()) => seen(Here::Yes, "SO_PREFER_BUSY_POLL is accepted"),
        // Switching it off needs no privilege, so it tells whether the option is known at all.
        Err(e) if e.raw_os_error() == Some(libc::EPERM) && set(0).is_ok() => {
            hidden("SO_PREFER_BUSY_POLL is known, using it needs CAP_NET_ADMIN")
        }
        Err(e) => seen(Here::No, format!("SO_PREFER_BUSY_POLL: {e}")),
    }
}

fn probe_napi_list(access: &mut Access) -> Seen {
    match access.netdev().map(|n| n.list(1)) {
        Some(Ok(_)) => seen(Here::Yes, "netlink family netdev lists NAPIs"),
        Some(Err(e)) => seen(Here::No, e.to_string()),
        None => seen(Here::No, access.no_netdev().unwrap_or_default()),
    }
}

fn probe_napi_settings(access: &mut Access) -> Seen {
    match access.netdev().map(|n| n.has_settings()) {
        Some(Ok(true)) => seen(Here::Yes, "netlink napi-set is known"),
        Some(Ok(false)) => seen(Here::No, "netlink napi-set is not known"),
        Some(Err(Error::Denied { .. })) => hidden("netlink napi-set needs CAP_NET_ADMIN"),
        Some(Err(e)) => seen(Here::NotKnown, e.to_string()),
        None => seen(Here::No, access.no_netdev().unwrap_or_default()),
    }
}

fn probe_threaded(access: &Access) -> Seen {
    // Every interface has the attribute, the loopback too.
    match access.sysfs().device(1).and_then(|lo| lo.threaded()) {
        Ok(_) => seen(Here::Yes, "/sys/class/net/IF/threaded"),
        Err(Error::Unsupported { .. }) => seen(Here::No, "no /sys/class/net/IF/threaded"),
        Err(e) => seen(Here::NotKnown, e.to_string()),
    }
}

fn probe_fifo() -> Seen {
    let tried = std::thread::Builder::new().name("weir-probe".into()).spawn(|| {
        // It ends right after.
        crate::schedule::set(0, libc::SCHED_FIFO, 1)
    });
    match tried.map(|t| t.join()) {
        Ok(Ok(Ok(()))) => seen(Here::Yes, "a thread was given SCHED_FIFO 1"),
        Ok(Ok(Err(e))) if !nix::unistd::geteuid().is_root() => hidden(format!("SCHED_FIFO 1: {e}")),
        Ok(Ok(Err(e))) => seen(Here::No, format!("SCHED_FIFO 1: {}", crate::schedule::refusal(&e))),
        _ => seen(Here::NotKnown, "no thread could be made"),
    }
}

/// Whether an io_uring takes NAPI ids; the one that is tried belongs to no NAPI.
fn probe_io_uring() -> Seen {
    // The least that can be a NAPI's id: it is not looked up before the first poll.
    const ID: u32 = 1 << 20;
    match crate::guard::io_uring::open(ID) {
        Ok(_) => seen(Here::Yes, "io_uring with static NAPI tracking"),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            seen(Here::No, "io_uring is disabled here (kernel.io_uring_disabled)")
        }
        Err(e) => seen(Here::No, format!("io_uring with static NAPI tracking: {e}")),
    }
}

/// Whether the root of all control groups is in reach, where binds are seen.
fn probe_binds() -> Seen {
    match crate::cgroups::root() {
        Some(_) => seen(Here::Yes, "the root of all control groups is in reach"),
        None if !nix::unistd::geteuid().is_root() => hidden("the root of all control groups is not in reach"),
        None => seen(
            Here::No,
            "the root of all control groups (version 2) is not in reach: weir runs in a container, or there is none",
        ),
    }
}

/// Whether the XDP program can ask for a frame's connection.
fn probe_connections() -> Seen {
    use crate::guard::Connections;
    let told = crate::guard::connections();
    match (told, told.why_not()) {
        (Connections::Told, _) => seen(Here::Yes, "bpf_xdp_ct_lookup"),
        (Connections::Hidden, Some(why)) if !nix::unistd::geteuid().is_root() => hidden(why),
        (Connections::NoTable, _) | (_, None) => {
            seen(Here::NotKnown, "nf_conntrack is not loaded, so no table can be full")
        }
        (_, Some(why)) => seen(Here::No, why),
    }
}

/// Whether the program loads that marks a handle; it is attached to nothing.
#[cfg(not(no_bpf))]
fn probe_steering(bpf: bool) -> Seen {
    match crate::guard::Steering::load() {
        Ok(_) => seen(
            Here::Yes,
            "sk_lookup marks a handle by one datagram; TCP and forwarded frames need io_uring",
        ),
        Err(_) if !bpf => hidden("loading it needs CAP_BPF"),
        Err(e) => seen(Here::No, format!("sk_lookup: {}", crate::guard::short(&e))),
    }
}

#[cfg(no_bpf)]
fn probe_steering(_bpf: bool) -> Seen {
    seen(Here::NotKnown, "this weir was built without BPF programs; install clang and build again")
}

fn capabilities(net_admin: bool, bpf: bool, perfmon: bool) -> Seen {
    let wanted = [("CAP_NET_ADMIN", net_admin), ("CAP_BPF", bpf), ("CAP_PERFMON", perfmon)];
    let missing: Vec<&str> = wanted.iter().filter(|(_, have)| !have).map(|(name, _)| *name).collect();
    match missing[..] {
        [] => seen(Here::Yes, "CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON"),
        _ => seen(Here::No, format!("missing: {}; run it with sudo", missing.join(", "))),
    }
}

/// BTF, the tracepoints, the cast that reads a socket's level, and the reasons of drops.
#[cfg(not(no_bpf))]
fn kernel_types() -> [Seen; 4] {
    use libbpf_rs::btf::{Btf, types};
    let btf = match Btf::from_vmlinux() {
        Ok(btf) => btf,
        Err(e) => {
            let without = || seen(Here::No, "no BTF in the kernel");
            // The file is readable by all where it exists.
            return [seen(Here::No, format!("{BTF}: {e}")), without(), without(), without()];
        }
    };
    let missing: Vec<&str> = TRACEPOINTS
        .into_iter()
        .filter(|t| btf.type_by_name::<types::Typedef<'_>>(&format!("btf_trace_{t}")).is_none())
        .collect();
    let tracepoints = match missing[..] {
        [] => seen(Here::Yes, TRACEPOINTS.join(", ")),
        _ => seen(Here::No, format!("missing: {}", missing.join(", "))),
    };
    let cast = btf.type_by_name::<types::Func<'_>>("bpf_rdonly_cast").is_some();
    let levels = seen(Here::from_bool(cast), if cast { "bpf_rdonly_cast" } else { "no bpf_rdonly_cast" });
    let told = btf.type_by_name::<types::Enum<'_>>("skb_drop_reason").is_some();
    let reasons = seen(Here::from_bool(told), if told { "skb_drop_reason" } else { "no skb_drop_reason" });
    [seen(Here::Yes, BTF), tracepoints, levels, reasons]
}

#[cfg(no_bpf)]
fn kernel_types() -> [Seen; 4] {
    let without =
        || seen(Here::NotKnown, "this weir was built without BPF programs; install clang and build again");
    [without(), without(), without(), without()]
}

/// Drivers that honour the answer of `napi_complete_done()`, by their source.
const HOLDING: &str = "e1000 e1000e igb igc ixgbe ixgbevf i40e iavf ice mlx4_en mlx4_core mlx5_core bnxt_en bnx2x ena \
    gve hv_netvsc virtio_net r8169 8139cp 8139too ionic nfp sfc st_gmac amd-xgbe rvu-nicpf rvu_nicpf hns3 skge enic \
    bcmgenet veth";
/// Drivers that ignore it: their interrupts come back at each short turn.
const LEAKING: &str = "vmxnet3 tg3 vif xen-netfront atlantic cxgb3 cxgb4 be2net qede qlcnic netxen_nic bnx2 bna nicvf \
    LiquidIO hinic sky2 alx atl1 atl1c atl1e b44 forcedeth fec fsl_enetc fsl_dpa fsl_dpaa2_eth gianfar mvneta mvpp2 \
    cpsw lan78xx mana ib_ipoib wireguard tun netdevsim myri10ge niu";

/// Drivers that have long run XDP programs themselves, for kernels that do not tell.
const XDP_CAPABLE: &str = "bnxt_en ena gve mlx4_en mlx4_core mlx5_core i40e ice igb igc ixgbe ixgbevf virtio_net veth \
    hv_netvsc nfp qede sfc st_gmac mvneta mvpp2 fsl_dpaa2_eth fsl_enetc cpsw nicvf rvu-nicpf rvu_nicpf vif";

/// Whether the driver keeps its interrupts off when told to at the end of a poll: by its source for the known
/// ones. Weir measures it at takeover, whatever is said here.
pub fn driver_holds(driver: &str) -> Here {
    let listed = |list: &str| list.split_ascii_whitespace().any(|d| d == driver);
    match (listed(HOLDING), listed(LEAKING)) {
        (true, _) => Here::Yes,
        (_, true) => Here::No,
        _ => Here::NotKnown,
    }
}

/// The report of one interface, which [`crate::discover::resolve`] has answered.
pub fn report(host: &Host, interface: Interface) -> Report {
    let p = &host.probes;
    let holds = driver_holds(&interface.kind);
    let ids = match (interface.up, interface.sources.iter().filter(|s| s.napi_id.is_some()).count()) {
        (false, _) => seen(Here::NotKnown, "the interface is down"),
        (_, n) if n > 0 && n == interface.sources.len() => seen(Here::Yes, "each receive queue has its id"),
        (_, 0) if interface.kind == "veth" && !interface.gro => {
            seen(Here::Yes, "weir switches GRO on, which makes them")
        }
        _ => seen(Here::No, "netlink links no NAPI to some receive queue"),
    };
    let (native, native_by) = match interface.xdp_native {
        Some(n) => (Here::from_bool(n), "netlink xdp-features of the driver"),
        None if XDP_CAPABLE.split_ascii_whitespace().any(|d| d == interface.kind) => {
            (Here::Yes, "known driver; this kernel does not tell (since 6.3)")
        }
        None => (Here::NotKnown, "this kernel does not tell (since 6.3)"),
    };
    let mut own = vec![
        feature(
            seen(
                holds,
                match holds {
                    Here::Yes => "by the driver's source; measured at takeover",
                    Here::No => "the driver ignores it, by its source; measured at takeover",
                    Here::NotKnown => "unknown driver; measured at takeover",
                },
            ),
            [
                "interrupts stay off",
                "driver",
                "polling without interrupts",
                "the poller: threaded NAPI instead",
            ],
        ),
        feature(
            ids,
            [
                "id of each source",
                "driver",
                "which queue a poll belongs to",
                "the poller: threaded NAPI instead",
            ],
        ),
        feature(
            seen(native, native_by),
            [
                "XDP in the driver",
                "driver",
                "shed, before memory is allocated",
                "cheap shed: about 5 times dearer",
            ],
        ),
    ];
    // The guard that runs now is no obstacle to itself.
    let foreign = interface.foreign_xdp();
    if let Some(xdp) = foreign {
        let name = crate::guard::program_name(xdp.prog_id).map_or(String::new(), |n| format!(" ({n})"));
        own.push(feature(
            seen(Here::No, format!("program {}{name} of another owner stays where it is", xdp.prog_id)),
            [
                "XDP hook is free",
                "option",
                "ids of sources, shed",
                "the poller and shed: threaded NAPI instead",
            ],
        ));
    }
    if interface.lro {
        own.push(feature(
            seen(Here::No, "LRO is on"),
            ["LRO off", "option", "packets keep the id of their source", "taking a source over"],
        ));
    }

    let may = |capability: bool| capability || !p.root;
    let poll = p.prefer_busy_poll != Here::No
        && p.btf != Here::No
        && foreign.is_none()
        && may(p.net_admin)
        && !interface.lro;
    let thread = p.threaded.yes() && may(p.net_admin);
    let gauges = p.tracepoints.yes() && may(p.bpf && p.perfmon);
    let shed = gauges && foreign.is_none() && may(p.net_admin);
    let mode = match (poll, thread, shed) {
        (true, _, _) => Mode::Poll,
        (_, true, _) => Mode::Thread,
        (_, _, true) => Mode::Shed,
        _ => Mode::None,
    };
    let tier = match mode {
        Mode::None => Tier::None,
        Mode::Poll
            if holds != Here::No && gauges && p.levels.yes() && p.napi_settings.yes() && native.yes() =>
        {
            Tier::Full
        }
        _ => Tier::Part,
    };
    let summary = match (mode, holds) {
        // The guard believes what it measures, not a list.
        (Mode::Poll, Here::No) => {
            "auto = poll at the first overload, then thread: by its source this driver does not keep its \
                                   interrupts off"
                .to_owned()
        }
        _ => summary(mode, gauges, native.yes(), p.napi_settings.yes() || interface.sources.len() == 1),
    };
    let todo = todo(host, &interface, holds, foreign.is_some());
    let features = host.features.iter().cloned().chain(own.drain(..)).collect();
    Report { interface, tier, summary, mode, features, todo }
}

fn summary(mode: Mode, gauges: bool, native: bool, alone: bool) -> String {
    let how = match mode {
        Mode::Poll => "poll",
        Mode::Thread => {
            return "auto = thread: the scheduler shares the CPU; no quota, budget or feedback".into();
        }
        Mode::Shed => "shed",
        Mode::None => return "nothing: see what is missing".into(),
    };
    let with = match (gauges, native) {
        (true, true) => "with feedback, budget and shed",
        (true, false) => "with feedback and budget; shed is dear",
        (false, _) => "with quota and budget; no feedback, no shed",
    };
    let whole = if mode == Mode::Poll && !alone { "; all sources of the device together" } else { "" };
    format!("auto = {how}, {with}{whole}")
}

fn todo(host: &Host, interface: &Interface, holds: Here, foreign: bool) -> Vec<String> {
    let (p, name) = (&host.probes, crate::shell::quoted(&interface.name));
    let mut todo = Vec::new();
    if !(p.net_admin && p.bpf && p.perfmon) {
        todo.push("Run it with sudo: guard needs CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON.".into());
    }
    if p.btf == Here::No {
        todo.push(
            "Boot a kernel with BTF (CONFIG_DEBUG_INFO_BTF=y; the stock kernels of Debian, Fedora and Ubuntu have \
             it). Brings feedback and shed."
                .into(),
        );
    }
    if !interface.up {
        todo.push(format!(
            "sudo ip link set {name} up   A source of an interface that is down cannot be seen."
        ));
    }
    if let Some(xdp) = interface.xdp.filter(|_| foreign) {
        todo.push(format!(
            "sudo ip link set {name} xdp off   If program {} is not needed: weir needs the place for its own.",
            xdp.prog_id
        ));
    }
    if interface.lro {
        todo.push(format!("sudo ethtool -K {name} lro off   With LRO packets carry no id of their source."));
    }
    if holds == Here::No {
        todo.push(format!(
            "--mode thread   Spares the driver {} the takeover at which its interrupts are seen.",
            interface.kind
        ));
    }
    if let Some(ring) = interface.ring.filter(|r| r.rx < r.rx_max && r.rx < 1024) {
        let deeper = ring.rx_max.min(1024);
        todo.push(format!(
            "sudo ethtool -G {name} rx {deeper}   Ring {} lasts {} while the poller is away at 1 M/s; {deeper} \
             lasts {}.",
            ring.rx,
            lasts(ring.rx),
            lasts(deeper)
        ));
    }
    if p.prefer_busy_poll == Here::No {
        todo.push("Linux 5.12 or later: the poller.".into());
    } else if p.napi_settings == Here::No && interface.sources.len() > 1 {
        todo.push("Linux 6.13 or later: settings per source.".into());
    }
    if p.btf.yes() && !(p.levels.yes() && p.tracepoints.yes()) {
        todo.push("Linux 6.3 or later: feedback within one turn.".into());
    }
    todo
}

/// How long a ring of `packets` takes to fill at a million packets per second.
fn lasts(packets: u32) -> String {
    format!("{}.{:02} ms", packets / 1000, packets % 1000 / 10)
}

/// True if the kernel has BTF, without which no gauge can be had.
pub fn has_btf() -> bool {
    std::path::Path::new(BTF).exists()
}

/// Why no source of this host can be polled, if that is so: what a probe saw.
pub fn no_poll(host: &Host) -> Option<String> {
    let row = host.features.iter().find(|f| f.name == POLLER)?;
    (row.here == Here::No).then(|| row.why.clone())
}

/// Looks at the host and at the interfaces behind the names; the first name that cannot be guarded is the error.
pub fn check(
    access: &mut Access,
    names: &[String],
) -> std::result::Result<(Host, Vec<Report>), crate::discover::DiscoverError> {
    let host = host(access);
    let mut reports: Vec<Report> = Vec::new();
    for name in names {
        for interface in crate::discover::resolve(access, name)? {
            if !reports.iter().any(|r| r.interface.ifindex == interface.ifindex) {
                reports.push(report(&host, interface));
            }
        }
    }
    Ok((host, reports))
}

/// What is missing for `weir guard`, as one line with the way to get it; `Ok` if it can run.
pub fn require_privileges(host: &Host) -> Result<()> {
    let p = &host.probes;
    let need = match (p.net_admin, p.bpf, p.perfmon) {
        (true, true, true) => return Ok(()),
        (false, false, false) => "CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON",
        (true, false, false) => "CAP_BPF and CAP_PERFMON",
        (false, true, false) => "CAP_NET_ADMIN and CAP_PERFMON",
        (false, false, true) => "CAP_NET_ADMIN and CAP_BPF",
        (false, true, true) => "CAP_NET_ADMIN",
        (true, false, true) => "CAP_BPF",
        (true, true, false) => "CAP_PERFMON",
    };
    Err(Error::Denied { what: "guard".into(), need })
}

/// Those of `wanted` that this process does not have. CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON, as in the kernel.
#[must_use]
pub fn lacking(wanted: &[Capability]) -> Vec<String> {
    let has = |cap| caps::has_cap(None, CapSet::Effective, cap).unwrap_or(false);
    let by_admin = |cap| matches!(cap, Capability::CAP_BPF | Capability::CAP_PERFMON);
    let may = |cap| has(cap) || (by_admin(cap) && has(Capability::CAP_SYS_ADMIN));
    wanted.iter().filter(|cap| !may(**cap)).map(ToString::to_string).collect()
}

#[cfg(test)]
#[path = "tier_tests.rs"]
mod tests;
