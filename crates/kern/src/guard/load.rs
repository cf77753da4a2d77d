//! The maps and programs of the guard as this process has them: loaded, attached, read and written.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use libbpf_rs::btf::Btf;
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenMapMut, OpenObject, libbpf_sys,
};

use super::abi::*;
use super::{Bell, Connections, Error, EventSource, Nobody, Rx, Shared, Told, connections};

#[repr(C, align(8))]
pub(crate) struct Aligned<const N: usize>(pub(crate) [u8; N]);
static GUARD: &Aligned<{ include_bytes!(concat!(env!("OUT_DIR"), "/guard.bpf.o")).len() }> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/guard.bpf.o")));
static RX: &Aligned<{ include_bytes!(concat!(env!("OUT_DIR"), "/rx.bpf.o")).len() }> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/rx.bpf.o")));

const RECV: &str = "weir_recv";
const FIND: &str = "weir_find_filter";
const LEARN: &str = "weir_learn_id";
const SWITCH: &str = "weir_switch";
/// What the gate learns from, and what takes it back; the last two are of cgroups.
const GATE: [&str; 2] = ["weir_nobody", "weir_left"];
const GATE_BINDS: [&str; 2] = ["weir_bound4", "weir_bound6"];

/// Gauges that are of no use on a kernel without their tracepoint; loading one would fail them all.
fn without_tracepoint(open: &mut OpenObject, refused: &mut Vec<String>) {
    use libbpf_rs::btf::types::Typedef;
    let Ok(btf) = Btf::from_vmlinux() else { return };
    for mut program in open.progs_mut().filter(|p| p.autoload()) {
        let section = program.section().to_string_lossy().into_owned();
        let Some(tracepoint) = section.strip_prefix("tp_btf/") else { continue };
        if btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{tracepoint}")).is_none() {
            program.set_autoload(false);
            refused.push(format!("no tracepoint {tracepoint} here"));
        }
    }
}

/// The same for what the gate learns from.
fn leave_out_of_the_gate(open: &mut OpenObject, refused: &mut Vec<String>) {
    let reasons = Btf::from_vmlinux().is_ok_and(|btf| crate::probes::arguments(&btf, "kfree_skb") >= 3);
    // SAFETY: the kernel is asked for a program of this type; no options are passed.
    let probed = unsafe {
        libbpf_sys::libbpf_probe_bpf_prog_type(libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK, std::ptr::null())
    };
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let absent = name == GATE[0] && !reasons || GATE_BINDS.contains(&&*name) && probed != 1;
        if absent {
            program.set_autoload(false);
        }
    }
    if !reasons {
        refused.push("no packet tells why it was dropped (Linux 5.17): nothing is nobody's".to_owned());
    }
}

pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Error {
    let what = what.into();
    move |e| {
        let kind = match e.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            libbpf_rs::ErrorKind::NotFound => io::ErrorKind::NotFound,
            libbpf_rs::ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            _ => io::ErrorKind::Other,
        };
        Error::Bpf { what, source: io::Error::new(kind, format!("{e:#}")) }
    }
}

fn failed_io(what: &str) -> impl FnOnce(io::Error) -> Error {
    let what = what.to_owned();
    move |source| Error::Bpf { what, source }
}

/// Name of the BPF program with this id; `None` if there is none, or without CAP_SYS_ADMIN.
pub fn program_name(id: u32) -> Option<String> {
    let fd = libbpf_rs::query::ProgInfoIter::default().find(|program| program.id == id)?;
    Some(fd.name.to_string_lossy().into_owned())
}

/// The kernel's number of a program.
pub(crate) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes of the struct.
    let done =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length) };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(info.id) }
}

/// Programs of one network namespace whose names are asked for.
const REDIRECTS_MAX: usize = 16;

/// True if BPF programs choose who gets packets for sockets of the caller's network namespace (`sk_lookup`), or if that is not
/// known. Those of [`Steering`](super::Steering), of which `own` is the caller's, are not among them: they take what nobody misses.
pub fn redirects_sockets(own: Option<u32>) -> bool {
    let Ok(netns) = std::fs::File::open("/proc/thread-self/ns/net") else { return true };
    let (mut flags, mut ids, mut count) = (0, [0; REDIRECTS_MAX], REDIRECTS_MAX as u32);
    // SAFETY: the kernel writes the two numbers, and as many ids as it is told that there is room for.
    let asked = unsafe {
        libbpf_sys::bpf_prog_query(
            netns.as_fd().as_raw_fd(),
            libbpf_sys::BPF_SK_LOOKUP,
            0,
            &raw mut flags,
            ids.as_mut_ptr(),
            &raw mut count,
        )
    };
    if asked != 0 {
        // A kernel before 5.9 does not know them.
        return asked != -libc::EINVAL;
    }
    let others = ids.iter().take(count as usize).filter(|id| Some(**id) != own);
    others.map(|id| program_name(*id)).any(|name| name.as_deref() != Some(super::steer::NAME))
}

/// Which tracepoints could be attached; a missing one costs the feature named here, nothing else.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// `napi:napi_poll`: saturation, packets per turn. Without it there is no poll mode.
    pub napi_poll: bool,
    /// `udp:udp_fail_queue_rcv_skb`: feedback.
    pub udp_full: bool,
    /// What tells which interface's packets a full socket has refused.
    pub told: Told,
    /// `sock:sock_recv_length` (since 6.3): wake at low water while other programs compete for the CPU.
    pub recv: bool,
    /// `sched:sched_switch`: the reserve is lent as soon as the CPU is idle.
    pub switch: bool,
    /// `irq:softirq_entry` and `softirq_exit`: the softirq meter.
    pub softirq: bool,
    /// Names of those refused, with the kernel's answer.
    pub refused: Vec<String>,
}

/// The maps as this process sees them; shared by all threads.
pub struct Views {
    /// Global switches.
    pub guard: Shared<GuardCtl>,
    /// Per source, written here.
    pub source_ctls: Shared<SourceCtl>,
    /// Per source, NAPI work.
    pub source_stats: Shared<SourceStat>,
    /// Per source, XDP counts.
    pub rx_stats: Shared<RxStat>,
    /// Per consumer, written here.
    pub consumer_ctls: Shared<ConsumerCtl>,
    /// Per consumer, levels.
    pub consumer_stats: Shared<ConsumerStat>,
    /// Per source, what it shed for each consumer.
    pub sheds: Shared<Sheds>,
    /// Per poller, what it waits for.
    pub poller_ctls: Shared<PollerCtl>,
    /// Per CPU, softirq time.
    pub cpu_stats: Shared<CpuStat>,
    /// Per CPU, packets that sockets refused.
    pub overflow_stats: Shared<OverflowStat>,
    /// Ports that some socket has, written here.
    pub ports_used: Shared<PortsUsed>,
    /// What the gate has learnt.
    pub gate: Shared<GateStat>,
}

impl Views {
    /// Frames that all sources shed for the consumer in this place, and for those that had it before.
    pub fn shed_for(&self, consumer: usize) -> u64 {
        self.sheds.iter().fold(0, |sum, source| sum.wrapping_add(source.of[consumer].load(Relaxed)))
    }

    /// Packets of guarded interfaces that the consumer in this place, the socket `sk`, has refused.
    pub fn refused_by(&self, consumer: usize, sk: u64) -> u64 {
        let again = self.overflow_stats.iter().filter(|cpu| cpu.again_sk.load(Relaxed) == sk);
        let counted = self.consumer_stats[consumer].overflows.load(Relaxed);
        again.fold(counted, |sum, cpu| sum.wrapping_add(u64::from(cpu.pending.load(Relaxed))))
    }
}

/// The loaded gauges. Dropping detaches everything.
pub struct Gauges {
    /// `None`: nothing is measured.
    object: Option<Object>,
    _links: Vec<Link>,
    recv: Option<Link>,
    switch: Option<Link>,
    find: Option<Link>,
    learn: Option<Link>,
    learning: BTreeSet<u32>,
    gate: Vec<Link>,
    seed: u32,
    /// What could be attached.
    pub probes: Probes,
    /// The maps.
    pub views: Arc<Views>,
}

/// Attaches the program `name` while `on`; true if it is attached now.
fn attach_while(on: bool, object: Option<&mut Object>, name: &str, link: &mut Option<Link>) -> bool {
    if !on {
        *link = None;
    } else if link.is_none() {
        let program = object.and_then(|o| o.progs_mut().find(|p| p.name() == name));
        *link = program.and_then(|p| p.attach().ok());
    }
    link.is_some()
}

/// Nobody outside can know it.
fn seed() -> u32 {
    let mut bytes = [0u8; 4];
    // SAFETY: the kernel writes at most as many bytes as there are.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 4 { u32::from_ne_bytes(bytes) } else { std::process::id().wrapping_mul(0x9e37_79b1) }
}

/// This kernel tells an XDP program whether a segment acknowledges one of its cookies.
pub(crate) fn tells_cookies() -> bool {
    static TELLS: OnceLock<bool> = OnceLock::new();
    *TELLS.get_or_init(|| {
        // SAFETY: the kernel is asked for a helper of this type of program; no options are passed.
        let probed = unsafe {
            libbpf_sys::libbpf_probe_bpf_helper(
                libbpf_sys::BPF_PROG_TYPE_XDP,
                libbpf_sys::BPF_FUNC_tcp_raw_check_syncookie_ipv4,
                std::ptr::null(),
            )
        };
        probed == 1
    })
}

pub(crate) fn wake_ring() -> Result<MapHandle, Error> {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    MapHandle::create(MapType::RingBuf, Some("weir_wake"), 0, 0, 4096, &opts)
        .map_err(failed("ring of a poller"))
}

pub(crate) fn open(bytes: &[u8], name: &str) -> Result<OpenObject, Error> {
    ObjectBuilder::default()
        .name(name)
        .and_then(|b| b.open_memory(bytes))
        .map_err(failed(format!("object {name}")))
}

pub(crate) fn write_rodata(map: &mut OpenMapMut<'_>, words: &[u32]) -> Result<(), Error> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let data = map.initial_value_mut().filter(|d| d.len() == bytes.len());
    let data =
        data.ok_or_else(|| Error::Bpf { what: "rodata".into(), source: io::ErrorKind::InvalidData.into() })?;
    data.copy_from_slice(&bytes);
    Ok(())
}

/// Cookie of the namespace that `inode` stands for, if it is the caller's and the kernel tells; else 0.
fn netns_cookie(inode: u32) -> u64 {
    let here = crate::netns::current().ok().filter(|id| id.inode as u32 == inode);
    here.and_then(|id| id.cookie).unwrap_or(0)
}

/// Inode and device of the PID namespace, which a container has of its own; zeros in the initial one.
fn pid_namespace() -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    const INITIAL: u64 = 0xeffffffc;
    match std::fs::metadata("/proc/self/ns/pid") {
        Ok(meta) if meta.ino() != INITIAL => (meta.ino() as u32, meta.dev() as u32),
        _ => (0, 0),
    }
}

impl Gauges {
    /// Loads the programs for a machine with `cpus` possible CPUs and attaches every tracepoint it can. Sockets
    /// of the network namespace `netns_inode` can become consumers.
    ///
    /// # Errors
    /// [`Error::Bpf`] if maps or programs are refused: most often missing CAP_BPF and CAP_PERFMON, or a
    /// kernel without BTF.
    pub fn load(cpus: usize, netns_inode: u32) -> Result<Self, Error> {
        let told = Btf::from_vmlinux().map_or(Told::Nothing, |btf| Told::here(&btf));
        Self::load_told(cpus, netns_inode, told)
    }

    /// The same as on a kernel that tells no more than `told` about overflows; this one must tell as much.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_told(cpus: usize, netns_inode: u32, told: Told) -> Result<Self, Error> {
        libbpf_rs::set_print(None);
        let mut open = open(&GUARD.0, "weir_guard")?;
        let inner = wake_ring()?;
        let seed = seed();
        let mut probes_refused = Vec::new();
        for mut map in open.maps_mut() {
            if map.name().to_string_lossy().ends_with(".rodata") {
                let (pidns_inode, pidns_dev) = pid_namespace();
                let by_drop = u32::from(told == Told::ByDrop);
                let [a, b, c, d, e, f, g, h] = netns_cookie(netns_inode).to_ne_bytes();
                let (first, second) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
                write_rodata(&mut map, &[first, second, netns_inode, pidns_inode, pidns_dev, by_drop, seed])?;
                continue;
            }
            let result = match map.name().to_str() {
                Some("cpu_stats" | "overflow_stats" | "cpu_pollers") => map.set_max_entries(cpus as u32),
                Some("wakes") => map.set_inner_map_fd(inner.as_fd()),
                _ => Ok(()),
            };
            result.map_err(failed("map size"))?;
        }
        told.choose(&mut open);
        leave_out_of_the_gate(&mut open, &mut probes_refused);
        let mut probes = Probes { told, refused: probes_refused, ..Probes::default() };
        probes.refused.extend(told.missing().map(str::to_owned));
        without_tracepoint(&mut open, &mut probes.refused);
        let object = open.load().map_err(failed("BPF programs"))?;
        let mut links = Vec::new();
        for program in object.progs_mut().filter(|p| p.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            // Attached only while an id is to be learnt, or a source is overloaded: they run for every packet.
            if name == LEARN || GATE.contains(&&*name) || GATE_BINDS.contains(&&*name) {
                continue;
            }
            match program.attach() {
                Ok(link) => {
                    // Attached only while they are needed: they run at every read or switch.
                    match name.as_str() {
                        RECV => probes.recv = true,
                        SWITCH => probes.switch = true,
                        FIND => {}
                        _ => links.push(link),
                    }
                    match name.as_str() {
                        "weir_napi_poll" => probes.napi_poll = true,
                        "weir_udp_full" | "weir_udp_full_old" => probes.udp_full = true,
                        "weir_softirq_exit" => probes.softirq = true,
                        _ => {}
                    }
                }
                Err(e) => probes.refused.push(format!("{name}: {e:#}")),
            }
        }
        let map = |name: &str| {
            object.maps().find(|m| m.name() == name).ok_or_else(|| Error::Bpf {
                what: format!("map {name}"),
                source: io::ErrorKind::NotFound.into(),
            })
        };
        // SAFETY: guard_maps.h declares these maps with the structs that abi.rs mirrors, sizes are asserted on
        // both sides, all fields are atomics, and the lengths are those of the maps.
        unsafe {
            let views = Views {
                guard: Shared::map(map("guard_ctl")?.as_fd(), 1).map_err(failed_io("guard_ctl"))?,
                source_ctls: Shared::map(map("source_ctls")?.as_fd(), SOURCES)
                    .map_err(failed_io("source_ctls"))?,
                source_stats: Shared::map(map("source_stats")?.as_fd(), SOURCES)
                    .map_err(failed_io("source_stats"))?,
                rx_stats: Shared::map(map("rx_stats")?.as_fd(), SOURCES).map_err(failed_io("rx_stats"))?,
                consumer_ctls: Shared::map(map("consumer_ctls")?.as_fd(), CONSUMERS)
                    .map_err(failed_io("consumer_ctls"))?,
                consumer_stats: Shared::map(map("consumer_stats")?.as_fd(), CONSUMERS)
                    .map_err(failed_io("consumer_stats"))?,
                sheds: Shared::map(map("consumer_sheds")?.as_fd(), SOURCES)
                    .map_err(failed_io("consumer_sheds"))?,
                poller_ctls: Shared::map(map("poller_ctls")?.as_fd(), POLLERS)
                    .map_err(failed_io("poller_ctls"))?,
                cpu_stats: Shared::map(map("cpu_stats")?.as_fd(), cpus).map_err(failed_io("cpu_stats"))?,
                overflow_stats: Shared::map(map("overflow_stats")?.as_fd(), cpus)
                    .map_err(failed_io("overflow_stats"))?,
                ports_used: Shared::map(map("ports_used")?.as_fd(), 1).map_err(failed_io("ports_used"))?,
                gate: Shared::map(map("gate_stats")?.as_fd(), 1).map_err(failed_io("gate_stats"))?,
            };
            Ok(Self {
                seed,
                gate: Vec::new(),
                views: Arc::new(views),
                probes,
                _links: links,
                recv: None,
                switch: None,
                find: None,
                learn: None,
                learning: BTreeSet::new(),
                object: Some(object),
            })
        }
    }

    /// Without BPF, for a guard that polls nothing: everything reads 0, and nothing can be attached.
    ///
    /// # Errors
    /// No memory.
    pub fn blind(cpus: usize) -> io::Result<Self> {
        // SAFETY: the structs of abi.rs consist of atomics.
        let views = unsafe {
            Views {
                guard: Shared::unwatched(1)?,
                source_ctls: Shared::unwatched(SOURCES)?,
                source_stats: Shared::unwatched(SOURCES)?,
                rx_stats: Shared::unwatched(SOURCES)?,
                consumer_ctls: Shared::unwatched(CONSUMERS)?,
                consumer_stats: Shared::unwatched(CONSUMERS)?,
                sheds: Shared::unwatched(SOURCES)?,
                poller_ctls: Shared::unwatched(POLLERS)?,
                cpu_stats: Shared::unwatched(cpus)?,
                overflow_stats: Shared::unwatched(cpus)?,
                ports_used: Shared::unwatched(1)?,
                gate: Shared::unwatched(1)?,
            }
        };
        let (probes, _links) = (Probes::default(), Vec::new());
        let (views, learning) = (Arc::new(views), BTreeSet::new());
        Ok(Self {
            views,
            probes,
            _links,
            seed: 0,
            gate: Vec::new(),
            recv: None,
            switch: None,
            find: None,
            learn: None,
            learning,
            object: None,
        })
    }

    /// True if nothing is measured.
    pub fn is_blind(&self) -> bool {
        self.object.is_none()
    }

    /// The loaded object; an error without BPF.
    fn object(&self) -> Result<&Object, Error> {
        let absent = || Error::Bpf { what: "no BPF".into(), source: io::ErrorKind::Unsupported.into() };
        self.object.as_ref().ok_or_else(absent)
    }

    fn update(&self, map: &str, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.object()?
            .maps()
            .find(|m| m.name() == map)
            .ok_or_else(|| Error::Bpf { what: map.into(), source: io::ErrorKind::NotFound.into() })?
            .update(key, value, MapFlags::ANY)
            .map_err(failed(map))
    }

    fn delete(&self, map: &str, key: &[u8]) {
        let Ok(object) = self.object() else { return };
        if let Some(map) = object.maps().find(|m| m.name() == map) {
            // An entry that is not there is what was asked for.
            let _ = map.delete(key);
        }
    }

    /// Counts polls of the NAPI `id` for source `slot` from here on.
    pub fn watch_napi(&self, id: u32, slot: usize) -> Result<(), Error> {
        if self.is_blind() {
            return Ok(());
        }
        self.update("napi_slots", &id.to_ne_bytes(), &(slot as u32).to_ne_bytes())
    }

    /// Ends [`Self::watch_napi`].
    pub fn unwatch_napi(&self, id: u32) {
        self.delete("napi_slots", &id.to_ne_bytes());
    }

    /// Learns the NAPI ids of an interface from its packets: each id appears in [`SourceStat::napi_id`] and is
    /// watched from then on. `sources` slots from `first_source` on are its queues. Costs every packet of the
    /// machine a look-up, until [`Self::unlearn`].
    pub fn learn(&mut self, ifindex: u32, first_source: usize, sources: usize) -> Result<(), Error> {
        if self.learn.is_some() && self.learning.contains(&ifindex) {
            return Ok(());
        }
        let value = [(first_source as u32).to_ne_bytes(), (sources as u32).to_ne_bytes()].concat();
        self.update("learn_slots", &ifindex.to_ne_bytes(), &value)?;
        self.learning.insert(ifindex);
        if self.learn.is_none() {
            let program = self.object.as_mut().and_then(|o| o.progs_mut().find(|p| p.name() == LEARN));
            let program = program.filter(|p| p.autoload()).ok_or_else(|| Error::Bpf {
                what: "napi_gro_receive_entry".into(),
                source: io::ErrorKind::NotFound.into(),
            })?;
            self.learn = Some(program.attach().map_err(failed("napi_gro_receive_entry"))?);
        }
        Ok(())
    }

    /// Ends [`Self::learn`]; the last one detaches it.
    pub fn unlearn(&mut self, ifindex: u32) {
        if self.learning.remove(&ifindex) {
            self.delete("learn_slots", &ifindex.to_ne_bytes());
        }
        if self.learning.is_empty() {
            self.learn = None;
        }
    }

    /// Overflows are evidence only by packets of these interfaces from here on, besides those of watched NAPIs; `old` are
    /// those said before. Those that the table has no room for are the last ones.
    ///
    /// # Errors
    /// The table is full; the rest is as before.
    pub fn set_guarded(&self, old: &BTreeSet<u32>, new: &BTreeSet<u32>) -> Result<(), Error> {
        if self.is_blind() {
            return Ok(());
        }
        for index in old.difference(new) {
            self.delete("guarded_interfaces", &index.to_ne_bytes());
        }
        new.difference(old)
            .try_for_each(|index| self.update("guarded_interfaces", &index.to_ne_bytes(), &[1]))
    }

    /// Tracks the socket `sk` in consumer slot `slot`.
    pub fn track_consumer(&self, sk: u64, slot: usize) -> Result<(), Error> {
        self.update("consumer_slots", &sk.to_ne_bytes(), &(slot as u32).to_ne_bytes())
    }

    /// Forgets the socket; a later overflow reports it anew.
    pub fn untrack_consumer(&self, sk: u64) {
        self.delete("consumer_slots", &sk.to_ne_bytes());
    }

    /// No consumer has room for one more packet of `source` in the poll under way, until its next poll: for tests, in which no
    /// poll comes.
    pub fn fill(&self, source: usize) -> Result<(), Error> {
        let share = [1u32.to_ne_bytes(), 0u32.to_ne_bytes()].concat();
        self.update("shares", &(source as u32).to_ne_bytes(), &share.repeat(CONSUMERS + 2))
    }

    /// Says which consumer (or none) gets the datagrams for local UDP port `port`.
    pub fn set_port(&self, port: u16, taker: Taker) -> Result<(), Error> {
        let value = match taker {
            Taker::Untracked => 0,
            Taker::Only(consumer) => consumer as u8 + 1,
            Taker::Shared => PORT_SHARED,
        };
        self.update("port_consumers", &u32::from(port).to_ne_bytes(), &[value])
    }

    /// What goes to `inner`, behind the host, is for this consumer; or for none that is tracked.
    ///
    /// # Errors
    /// The table is full; nothing is judged by it.
    pub fn set_inner(&self, inner: u64, consumer: Option<usize>) -> Result<(), Error> {
        match consumer {
            Some(slot) => self.update("inner_consumers", &inner.to_ne_bytes(), &(slot as u32).to_ne_bytes()),
            None => {
                self.delete("inner_consumers", &inner.to_ne_bytes());
                Ok(())
            }
        }
    }

    /// Classes of frames from here on. The table in force stays so until the new one is whole. Without BPF nothing
    /// is shed, and no rule is needed.
    pub fn set_rules(&self, table: &policy::classes::Table) -> Result<(), Error> {
        if self.is_blind() {
            return Ok(());
        }
        let current = &self.views.guard[0].rules;
        let next = 1 - current.load(Relaxed).min(1);
        self.update("class_rules", &next.to_ne_bytes(), table.as_bytes())?;
        current.store(next, Relaxed);
        // Places of the old table name other rules in the new one.
        self.views.rx_stats.iter().for_each(|stat| stat.over_rule.store(0, Relaxed));
        Ok(())
    }

    /// Runs and times of each program, as the kernel counts them while [`crate::probes::count_costs`] is held.
    pub fn costs(&self) -> Vec<crate::probes::Cost> {
        let programs = self.object.iter().flat_map(|o| o.progs_mut()).filter(|p| p.autoload());
        programs.map(|p| crate::probes::cost(&p.name().to_string_lossy(), p.as_fd())).collect()
    }

    /// The ring of events; the thread that reads them opens it.
    pub fn events(&self) -> Result<EventSource, Error> {
        let map = self.object()?.maps().find(|m| m.name() == "events");
        let map =
            map.ok_or_else(|| Error::Bpf { what: "events".into(), source: io::ErrorKind::NotFound.into() })?;
        MapHandle::try_from(&map).map(EventSource::new).map_err(failed("events"))
    }

    /// Attaches or detaches the program that wakes a poller at low water; true if it is attached now. Costs
    /// each read of each socket about 40 ns while attached.
    pub fn watch_reads(&mut self, on: bool) -> bool {
        attach_while(on && self.probes.recv, self.object.as_mut(), RECV, &mut self.recv)
    }

    /// Starts or ends the watch for idle CPUs; true if it is on. It runs at every switch of threads: needed while a
    /// source is polled, and for the sign that softirq takes more than its budget.
    pub fn watch_idle(&mut self, on: bool) -> bool {
        attach_while(on && self.probes.switch, self.object.as_mut(), SWITCH, &mut self.switch)
    }

    /// Begins or ends what the gate learns from: the kernel's drops, and what takes back what was learnt, packets that leave
    /// and sockets that are bound below `cgroup`, the root of all of them. Costs some tens of ns per packet that is dropped or
    /// leaves.
    pub fn watch_nobody(&mut self, on: bool, cgroup: Option<BorrowedFd<'_>>) -> Nobody {
        if !on {
            self.gate.clear();
            return Nobody::Off;
        }
        if self.gate.is_empty() {
            let Some(object) = self.object.as_ref() else { return Nobody::Off };
            let find = |name: &str| object.progs_mut().find(|p| p.name() == name && p.autoload());
            let links: Vec<Link> = GATE.iter().filter_map(|n| find(n)?.attach().ok()).collect();
            // What is never taken back is not learnt either.
            if links.len() < GATE.len() {
                return Nobody::Off;
            }
            self.gate = links;
            let binds = cgroup.map(|fd| fd.as_raw_fd());
            let bind = |n: &&str| find(n)?.attach_cgroup(binds?).ok();
            self.gate.extend(GATE_BINDS.iter().filter_map(bind));
        }
        let all = GATE.len() + GATE_BINDS.len();
        if self.gate.len() == all { Nobody::UntilBound } else { Nobody::Briefly }
    }

    /// Starts or ends the search for the readers of packet filters' queues. Costs each read of each socket a few ns
    /// while it goes on.
    pub fn find_filters(&mut self, on: bool) {
        attach_while(on, self.object.as_mut(), FIND, &mut self.find);
    }

    /// What poller `index`, which runs on `cpu`, sleeps on.
    pub fn bell(&self, index: usize, cpu: usize) -> Result<Bell, Error> {
        let ring = wake_ring()?;
        self.update(
            "wakes",
            &(index as u32).to_ne_bytes(),
            &(ring.as_fd().as_raw_fd() as u32).to_ne_bytes(),
        )?;
        self.update("cpu_pollers", &(cpu as u32).to_ne_bytes(), &(index as u32 + 1).to_ne_bytes())?;
        Ok(Bell::new(ring))
    }

    /// Loads the XDP program for an interface whose queues are the sources from `first_source` on; see [`Rx::hold`].
    ///
    /// # Errors
    /// [`Error::Bpf`] if the kernel refuses it.
    pub fn load_rx(&self, first_source: usize, sources: usize) -> Result<Rx, Error> {
        // A kernel that refuses the program because of what it says of connections sheds all else.
        let told = connections();
        match self.load_rx_told(first_source, sources, told) {
            Err(_) if told == Connections::Told => {
                self.load_rx_told(first_source, sources, Connections::Refused)
            }
            loaded => loaded,
        }
    }

    fn load_rx_told(&self, first_source: usize, sources: usize, told: Connections) -> Result<Rx, Error> {
        let own = self.object()?;
        let mut open = open(&RX.0, "weir_rx")?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if let Some(shared) = own.maps().find(|m| *m.name() == *name) {
                map.reuse_fd(shared.as_fd()).map_err(failed(name))?;
            } else if name.ends_with(".rodata") {
                let [cookies, connections] = [tells_cookies(), told == Connections::Told].map(u32::from);
                let constants = [first_source as u32, sources as u32, self.seed, cookies, connections];
                write_rodata(&mut map, &constants)?;
            }
        }
        let object = open.load().map_err(failed("XDP program"))?;
        let program = object.progs_mut().next().ok_or_else(|| Error::Bpf {
            what: "XDP program".into(),
            source: io::ErrorKind::NotFound.into(),
        })?;
        // The program holds its maps; the object is of no use any more.
        let fd = program.as_fd().try_clone_to_owned().map_err(failed_io("XDP program"))?;
        Ok(Rx::new(fd, told))
    }
}
