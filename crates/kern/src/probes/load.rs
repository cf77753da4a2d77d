//! Loads the probes, attaches them and reads their maps.

use super::abi::{BUCKETS, CpuStat, SOCKETS, SocketStat, WAITS, slot};
use super::{Cost, Cpu, Error, Reading};
use crate::guard::{self, Shared, object};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Enum, FuncProto, Typedef};
use libbpf_rs::{Link, MapCore, Object, OpenObject, libbpf_sys};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static OBJECT: &object::Aligned<{ include_bytes!(concat!(env!("OUT_DIR"), "/probes.bpf.o")).len() }> =
    &object::Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/probes.bpf.o")));

/// What a kernel without a tracepoint does not tell, and since when stock kernels have it.
const WITHOUT: [(&str, &str); 8] = [
    ("netif_rx", "waiting times in backlogs"),
    ("tcp_probe", "waiting times of TCP"),
    ("tcp_rcv_space_adjust", "waiting times of TCP"),
    ("sk_data_ready", "waiting times of datagrams (Linux 6.3)"),
    ("sock_recv_length", "waiting times of datagrams and rates of UDP sockets (Linux 6.3)"),
    ("kfree_skb", "drops by the kernel's reason (Linux 5.17)"),
    ("softirq_raise", "waiting times of softirqs"),
    ("sched_waking", "waiting times of readers for a CPU"),
];

/// Names of programs that are attached only where packets are spread over CPUs begin so.
const STEERED: &str = "weir_rps_";

/// Loaded and attached; dropping it detaches them.
pub struct Probes {
    cpus: Shared<CpuStat>,
    sockets: Shared<SocketStat>,
    reasons: BTreeMap<usize, String>,
    missing: Vec<String>,
    /// Places of sockets that were not there at the last reading.
    unknown: BTreeSet<usize>,
    programs: Vec<(String, OwnedFd)>,
    /// Those of programs for hosts with RPS; none: it has none.
    steered: Vec<Link>,
    _links: Vec<Link>,
    object: Object,
}

impl Probes {
    /// Attaches the probes; drops, sockets and datagrams of the network namespace `netns_inode` are told.
    ///
    /// # Errors
    /// [`Error`]: in most cases missing privileges.
    pub fn load(netns_inode: u32) -> Result<Probes, Error> {
        Probes::load_those(netns_inode, |_| true)
    }

    /// The same with some of the programs only, by their names: for measuring what each costs.
    ///
    /// # Errors
    /// As [`Probes::load`].
    pub fn load_those(netns_inode: u32, wanted: impl Fn(&str) -> bool) -> Result<Probes, Error> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(Error::NoBtf);
        }
        let may = |cap| caps::has_cap(None, caps::CapSet::Effective, cap).unwrap_or(false);
        let both = may(caps::Capability::CAP_BPF) && may(caps::Capability::CAP_PERFMON);
        if !both && !may(caps::Capability::CAP_SYS_ADMIN) {
            return Err(Error::Denied);
        }
        libbpf_rs::set_print(None);
        let btf = Btf::from_vmlinux().map_err(|e| Error::Refused(format!("BTF: {e:#}")))?;
        let possible = libbpf_rs::num_possible_cpus().map_err(|e| Error::Refused(format!("CPUs: {e:#}")))?;
        let mut open = object::open(&OBJECT.0, "weir_probes").map_err(refused)?;
        let arguments = arguments(&btf, "kfree_skb");
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name.ends_with(".rodata") {
                object::write_rodata(&mut map, &[netns_inode, arguments]).map_err(refused)?;
            } else if name == "probe_cpus" {
                let size = map.set_max_entries(possible as u32);
                size.map_err(|e| Error::Refused(format!("map size: {e:#}")))?;
            }
        }
        let missing = leave_out(&mut open, &btf, arguments);
        for mut program in open.progs_mut() {
            if !wanted(&program.name().to_string_lossy()) {
                program.set_autoload(false);
            }
        }
        let object = open.load().map_err(object::failed("BPF programs")).map_err(refused)?;
        let mut links = Vec::new();
        let mut programs = Vec::new();
        for program in object.progs_mut().filter(|p| p.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            if !name.starts_with(STEERED) {
                links.push(program.attach().map_err(object::failed(name.clone())).map_err(refused)?);
            }
            let own = program.as_fd().try_clone_to_owned();
            programs.push((name, own.map_err(|e| Error::Refused(format!("programs: {e}")))?));
        }
        let map = |name: &str| object.maps().find(|m| m.name() == name);
        let (Some(cpus), Some(sockets)) = (map("probe_cpus"), map("probe_sockets")) else {
            return Err(Error::Refused("no maps in the object".into()));
        };
        // SAFETY: probes.h declares the values of these maps, which abi.rs mirrors with atomics; sizes are asserted there,
        // and the lengths are those of the maps.
        let shared = unsafe {
            Shared::map(cpus.as_fd(), possible).and_then(|c| Ok((c, Shared::map(sockets.as_fd(), SOCKETS)?)))
        };
        let (cpus, sockets) = shared.map_err(|e| Error::Refused(format!("maps: {e}")))?;
        let (reasons, unknown, steered) = (reasons(&btf), BTreeSet::new(), Vec::new());
        Ok(Probes { cpus, sockets, reasons, missing, unknown, programs, steered, _links: links, object })
    }

    /// Attaches what sees packets before RPS spreads them, or detaches it: hosts without RPS do not pay for it.
    ///
    /// # Errors
    /// [`Error::Refused`]; nothing is attached then.
    pub fn steer(&mut self, rps: bool) -> Result<(), Error> {
        if !rps {
            self.steered.clear();
        }
        if !rps || !self.steered.is_empty() {
            return Ok(());
        }
        let mut links = Vec::new();
        for program in self.object.progs_mut().filter(|p| p.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            if name.starts_with(STEERED) {
                links.push(program.attach().map_err(object::failed(name)).map_err(refused)?);
            }
        }
        self.steered = links;
        Ok(())
    }

    /// What these CPUs have counted, and the reads of these sockets (inodes of all UDP sockets that there are: places of
    /// others are freed). Cost: some 20 us per CPU, and 30 us for the sockets' table.
    pub fn read(&mut self, cpus: &[u32], sockets: &[u64]) -> Reading {
        let all = |from: &[AtomicU32]| from.iter().map(|n| n.load(Relaxed)).collect::<Vec<u32>>();
        let one = |cpu: &u32| {
            let stat = self.cpus.get(*cpu as usize)?;
            let mut wait = Vec::with_capacity(WAITS * BUCKETS);
            stat.wait.iter().for_each(|histogram| wait.extend(all(histogram)));
            let (drops, unplaced) = (all(&stat.drops), all(&stat.unplaced));
            let (samples, lost) = (all(&stat.samples), stat.lost.load(Relaxed));
            Some(Cpu { cpu: *cpu, samples, wait, drops, unplaced, lost })
        };
        let cpus = cpus.iter().filter_map(one).collect();
        let present: BTreeSet<u32> = sockets.iter().filter_map(|inode| u32::try_from(*inode).ok()).collect();
        self.free(&present);
        let mut reads = BTreeMap::new();
        if self.missing.iter().all(|line| !line.contains("sock_recv_length")) {
            for inode in &present {
                let place = &self.sockets[*inode as usize % SOCKETS];
                match place.inode.load(Relaxed) {
                    // Nothing was read yet.
                    0 => _ = reads.insert(u64::from(*inode), 0),
                    holder if holder == *inode => {
                        reads.insert(u64::from(*inode), place.reads.load(Relaxed));
                    }
                    _ => {}
                }
            }
        }
        let missed = self.programs.iter().map(|(_, fd)| info(fd).recursion_misses).sum();
        Reading { cpus, reads, missed }
    }

    /// Frees places of sockets that were not there twice: one that is new may have been read before it was listed.
    fn free(&mut self, present: &BTreeSet<u32>) {
        let mut unknown = BTreeSet::new();
        for (at, place) in self.sockets.iter().enumerate() {
            let inode = place.inode.load(Relaxed);
            if inode == 0 || present.contains(&inode) {
                continue;
            }
            if self.unknown.contains(&at) {
                place.reads.store(0, Relaxed);
                place.inode.store(0, Relaxed);
            } else {
                unknown.insert(at);
            }
        }
        self.unknown = unknown;
    }

    /// The kernel's name for the reason that is counted under `slot`.
    #[must_use]
    pub fn reason(&self, slot: usize) -> String {
        self.reasons.get(&slot).cloned().unwrap_or_else(|| match slot {
            0 => "OTHER".to_owned(),
            slot => format!("REASON_{}_{}", slot >> 8, slot & 0xff),
        })
    }

    /// What this kernel does not tell, one line each.
    #[must_use]
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Runs and times of each probe, as the kernel counts them while [`count_costs`] is held.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        self.programs.iter().map(|(name, fd)| cost(name, fd.as_fd())).collect()
    }
}

/// Runs and time of a program, as the kernel counts them while [`count_costs`] is held.
pub(crate) fn cost(name: &str, program: BorrowedFd<'_>) -> Cost {
    let info = info(&program);
    Cost { name: name.to_owned(), runs: info.run_cnt, ns: info.run_time_ns }
}

/// Instructions that the verifier walked to accept a program; 0 if the kernel does not tell.
pub(crate) fn verified(program: &impl AsRawFd) -> u32 {
    info(program).verified_insns
}

/// What the kernel says about a program; zeros if it does not.
fn info(program: &impl AsRawFd) -> libbpf_sys::bpf_prog_info {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut size = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `size` bytes to `info`, whose pointers are null: nothing is written through them.
    unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut size) };
    info
}

/// Makes the kernel count runs and times of all BPF programs until the value is dropped, which costs each run two readings
/// of a clock.
///
/// # Errors
/// The kernel's answer, most often missing privileges.
pub fn count_costs() -> std::io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn refused(error: guard::Error) -> Error {
    match error {
        guard::Error::NotBuilt => Error::NotBuilt,
        guard::Error::Bpf { what, source } => Error::Refused(format!("{what}: {source}")),
    }
}

/// Arguments of a tracepoint; 0: there is no such tracepoint.
pub(crate) fn arguments(btf: &Btf<'_>, tracepoint: &str) -> u32 {
    let defined = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{tracepoint}"));
    let function = defined.and_then(|t| t.next_type()).and_then(|pointer| pointer.next_type());
    let function = function.and_then(|t| FuncProto::try_from(t).ok());
    // The first one is the attached program's own.
    function.map_or(0, |f| f.len().saturating_sub(1) as u32)
}

/// Leaves out programs whose tracepoints are not here; what that costs.
fn leave_out(open: &mut OpenObject, btf: &Btf<'_>, kfree_skb: u32) -> Vec<String> {
    let mut missing = Vec::new();
    for mut program in open.progs_mut() {
        let section = program.section().to_string_lossy().into_owned();
        let Some(tracepoint) = section.strip_prefix("tp_btf/") else { continue };
        let here = match tracepoint {
            // Without the reason it tells nothing.
            "kfree_skb" => kfree_skb >= 3,
            other => arguments(btf, other) > 0,
        };
        if here {
            continue;
        }
        program.set_autoload(false);
        let what = WITHOUT.iter().find(|(name, _)| *name == tracepoint).map(|(_, what)| *what);
        missing.extend(what.map(|what| format!("probes: no tracepoint {tracepoint} here: no {what}")));
    }
    missing
}

/// Names of reasons by the place under which they are counted. Those of modules are not among the kernel's own types: they
/// have the name of their subsystem and a number.
fn reasons(btf: &Btf<'_>) -> BTreeMap<usize, String> {
    const CORE: &str = "SKB_DROP_REASON_";
    const SUBSYSTEM: &str = "SKB_DROP_REASON_SUBSYS_";
    let members = |name: &str| -> Vec<(String, u32)> {
        let Some(found) = btf.type_by_name::<Enum<'_>>(name) else { return Vec::new() };
        let one =
            |m: libbpf_rs::btf::types::EnumMember<'_>| Some((m.name?.to_str()?.to_owned(), m.value as u32));
        (0..found.len()).filter_map(|i| found.get(i)).filter_map(one).collect()
    };
    let mut names = BTreeMap::new();
    for (name, subsystem) in members("skb_drop_reason_subsys") {
        let Some(name) = name.strip_prefix(SUBSYSTEM).filter(|_| (1..4).contains(&subsystem)) else {
            continue;
        };
        names.extend((0..256).map(|n| ((subsystem as usize) << 8 | n, format!("{name}_{n}"))));
    }
    for (name, value) in ["mac80211_drop_reason", "ovs_drop_reason", "skb_drop_reason"].map(members).concat()
    {
        let place = slot(value);
        if place != 0 && !name.ends_with("_MAX") && !name.ends_with("_MASK") {
            names.insert(place, name.strip_prefix(CORE).unwrap_or(&name).to_owned());
        }
    }
    names
}
