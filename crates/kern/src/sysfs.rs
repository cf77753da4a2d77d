//! `/sys/class/net` of the caller's network namespace.
//!
//! A sysfs mount shows the namespace it was mounted from, not that of the reader: after `nsenter` or `setns`
//! `/sys` shows other interfaces, perhaps with the same names and indices. So this module asks the kernel for
//! a sysfs of its own, attached nowhere, and falls back to `/sys` only if that agrees with the namespace.

use crate::{
    cpus::CpuSet,
    error::{Error, Result},
    netns,
};
use std::{
    collections::BTreeSet,
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// Longest attribute that is read, in bytes; sysfs attributes are at most one page.
const ATTR_MAX: usize = 4096;

/// The directory `class/net` of the namespace it was opened in. Interface names and indices are resolved in
/// the caller's namespace, so use it from a thread of the same one.
#[derive(Debug)]
pub struct Sysfs {
    net: OwnedFd,
    /// A mount of our own. Closing it waits for all CPUs, seconds on one that is busy with packets: with this, and so at the end.
    private: Option<OwnedFd>,
}

impl Sysfs {
    /// Opens it for the caller's namespace. Needs no privilege if `/sys` already shows this namespace;
    /// otherwise CAP_SYS_ADMIN, or the error says that `/sys` shows another one.
    pub fn for_current_netns() -> Result<Self> {
        match private_mount() {
            Ok((net, mount)) => Ok(Sysfs { net, private: Some(mount) }),
            Err(refused) => {
                let net = open_at(libc::AT_FDCWD, "/sys/class/net", libc::O_PATH | libc::O_DIRECTORY)?;
                let sysfs = Sysfs { net, private: None };
                if sysfs.agrees()? {
                    return Ok(sysfs);
                }
                Err(Error::Invalid {
                    what: "/sys".into(),
                    why: format!(
                        "shows another network namespace, and a fresh one cannot be mounted ({refused}); use \
                         `ip netns exec` or CAP_SYS_ADMIN; a container of that namespace: without the volume /sys"
                    ),
                })
            }
        }
    }

    /// True if this is a mount of our own, false if it is the system's `/sys`.
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// True if each interface of the caller's namespace is here with the same index and address.
    fn agrees(&self) -> Result<bool> {
        for (name, ifindex) in netns::interfaces()? {
            let Ok(dir) = open_at(self.net.as_raw_fd(), &name, libc::O_PATH | libc::O_DIRECTORY) else {
                return Ok(false);
            };
            let device = Device { dir, name: name.clone() };
            if device.number("ifindex").ok() != Some(ifindex.into())
                || device.text("address").ok() != Some(crate::ethtool::address(&name)?)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The directory of the interface that has index `ifindex` now; [`Error::Gone`] if there is none.
    pub fn device(&self, ifindex: u32) -> Result<Device> {
        let name = netns::name_of(ifindex)?;
        if !netns::valid_name(&name) {
            return Err(Error::Invalid { what: format!("interface {ifindex}"), why: "unusable name".into() });
        }
        let dir = open_at(self.net.as_raw_fd(), &name, libc::O_PATH | libc::O_DIRECTORY)
            .map_err(|e| gone_if_missing(e, &name))?;
        let device = Device { dir, name };
        // A rename between the two steps above would have led to another interface.
        if device.number("ifindex")? != u64::from(ifindex) {
            return Err(Error::Gone { what: device.name });
        }
        Ok(device)
    }
}

/// Entries of RFS's table of all flows, which is the machine's and stands in its first network namespace alone.
const RFS_TABLE: &str = "/proc/sys/net/core/rps_sock_flow_entries";

/// Entries of that table, without which RFS is off.
///
/// # Errors
/// ENOENT in all other namespaces.
pub fn rfs_table() -> Result<u64> {
    let text = std::fs::read_to_string(RFS_TABLE).map_err(|e| Error::io(RFS_TABLE, e))?;
    text.trim().parse().map_err(|_| Error::Invalid { what: RFS_TABLE.into(), why: "no number".into() })
}

/// Sets them; the kernel takes the next power of two.
///
/// # Errors
/// If it is refused.
pub fn set_rfs_table(entries: u64) -> Result<()> {
    std::fs::write(RFS_TABLE, entries.to_string()).map_err(|e| Error::io(RFS_TABLE, e))
}

/// `ifindex` and all interfaces that stand on it in this namespace, on one another too; at most `most`, the lower ones first.
#[must_use]
pub fn stack(sysfs: &Sysfs, ifindex: u32, most: usize) -> BTreeSet<u32> {
    let (mut found, mut next) = (BTreeSet::from([ifindex]), vec![ifindex]);
    while let Some(below) = next.pop() {
        let names = sysfs.device(below).and_then(|device| device.upper()).unwrap_or_default();
        for index in names.iter().filter_map(|name| netns::index_of(name).ok()) {
            if found.len() < most && found.insert(index) {
                next.push(index);
            }
        }
    }
    found
}

/// One interface's directory. It follows the interface through a rename and answers [`Error::Gone`] after its
/// deletion.
#[derive(Debug)]
pub struct Device {
    dir: OwnedFd,
    name: String,
}

impl Device {
    /// The interface's name when this was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its Ethernet address; `None` if it has none.
    pub fn ethernet(&self) -> Option<[u8; 6]> {
        let text = self.text("address").ok()?;
        let mut parts = text.trim().split(':').map(|part| u8::from_str_radix(part, 16).ok());
        let address = std::array::from_fn(|_| parts.next().flatten());
        let whole = address.iter().all(Option::is_some) && parts.next().is_none();
        let address = address.map(Option::unwrap_or_default);
        (whole && address != [0; 6]).then_some(address)
    }

    /// What it is known by as long as it lives, in each sysfs and each namespace that it is moved to: the number that the
    /// kernel has given its directory and gives to no other until the next boot.
    pub fn id(&self) -> Result<u64> {
        let found = nix::sys::stat::fstat(&self.dir).map_err(|e| Error::io(&self.name, e.into()))?;
        Ok(found.st_ino)
    }

    /// `napi_defer_hard_irqs`: timer expiries without a poll before interrupts come back.
    pub fn defer_hard_irqs(&self) -> Result<u64> {
        self.number("napi_defer_hard_irqs")
    }

    /// Writes `napi_defer_hard_irqs`; from 6.13 this sets all NAPIs of the device.
    pub fn set_defer_hard_irqs(&self, value: u64) -> Result<()> {
        self.write("napi_defer_hard_irqs", &value.to_string())
    }

    /// `gro_flush_timeout`, ns.
    pub fn gro_flush_timeout_ns(&self) -> Result<u64> {
        self.number("gro_flush_timeout")
    }

    /// Writes `gro_flush_timeout`, ns; from 6.13 this sets all NAPIs of the device.
    pub fn set_gro_flush_timeout_ns(&self, value: u64) -> Result<()> {
        self.write("gro_flush_timeout", &value.to_string())
    }

    /// `threaded` of the device: 0 or 1; [`Error::Unsupported`] before 5.12.
    pub fn threaded(&self) -> Result<u64> {
        self.number("threaded").map_err(|e| match e {
            Error::Io { what, source } if source.raw_os_error() == Some(libc::ENOENT) => {
                Error::Unsupported { what, since: "5.12" }
            }
            e => e,
        })
    }

    /// Writes `threaded`. EOPNOTSUPP if the device has no NAPI at the moment.
    pub fn set_threaded(&self, value: u64) -> Result<()> {
        self.write("threaded", &value.to_string())
    }

    /// CPUs that receive queue `queue` spreads its packets over (RPS); empty is off.
    pub fn rps_cpus(&self, queue: u32) -> Result<CpuSet> {
        CpuSet::from_mask(&self.text(&format!("queues/rx-{queue}/rps_cpus"))?)
    }

    /// Entries of the table of RFS of receive queue `queue`; 0: off.
    pub fn rfs_entries(&self, queue: u32) -> Result<u64> {
        self.number(&format!("queues/rx-{queue}/rps_flow_cnt"))
    }

    /// Sets them; the kernel takes the next power of two.
    pub fn set_rfs_entries(&self, queue: u32, entries: u64) -> Result<()> {
        self.write(&format!("queues/rx-{queue}/rps_flow_cnt"), &entries.to_string())
    }

    /// Writes the CPUs of RPS of receive queue `queue`.
    pub fn set_rps_cpus(&self, queue: u32, cpus: &CpuSet) -> Result<()> {
        self.write(&format!("queues/rx-{queue}/rps_cpus"), &cpus.to_mask())
    }

    /// CPUs whose senders use transmit queue `queue` (XPS); empty is off. ENOENT for an interface of one transmit queue.
    pub fn xps_cpus(&self, queue: u32) -> Result<CpuSet> {
        CpuSet::from_mask(&self.text(&format!("queues/tx-{queue}/xps_cpus"))?)
    }

    /// Traffic class of transmit queue `queue`; 0 where the device has none. `None` for a queue that is in none of them, or lent to a
    /// device that stands on this one.
    pub fn traffic_class(&self, queue: u32) -> Option<u32> {
        self.text(&format!("queues/tx-{queue}/traffic_class")).ok()?.trim().parse().ok()
    }

    /// Writes the CPUs of XPS of transmit queue `queue`.
    pub fn set_xps_cpus(&self, queue: u32, cpus: &CpuSet) -> Result<()> {
        self.write(&format!("queues/tx-{queue}/xps_cpus"), &cpus.to_mask())
    }

    /// Number of transmit queues.
    pub fn tx_queues(&self) -> Result<u32> {
        let names = self.list("queues")?;
        let count = names.iter().filter(|n| n.starts_with("tx-")).count();
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Number of receive queues.
    pub fn rx_queues(&self) -> Result<u32> {
        let names = self.list("queues")?;
        let count = names.iter().filter(|n| n.starts_with("rx-")).count();
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// NUMA node of the device behind the interface; `None` if it has none.
    pub fn numa_node(&self) -> Option<u32> {
        self.text("device/numa_node").ok()?.parse().ok()
    }

    /// Interrupts of the device behind the interface (MSI), ascending; empty for virtual devices.
    pub fn msi_irqs(&self) -> Vec<u32> {
        // A virtio interface's device is the virtio one; the PCI device with the vectors is its parent.
        let mut irqs: Vec<u32> = ["device/msi_irqs", "device/../msi_irqs"]
            .iter()
            .find_map(|p| self.list(p).ok().filter(|l| !l.is_empty()))
            .unwrap_or_default()
            .iter()
            .filter_map(|n| n.parse().ok())
            .collect();
        irqs.sort_unstable();
        irqs
    }

    /// Names of the interfaces that this one stands on (bond, bridge, VLAN), and for a bond or bridge its ports.
    pub fn lower(&self) -> Result<Vec<String>> {
        self.neighbours("lower_")
    }

    /// Names of the interfaces that stand on this one: its bond, bridge, VRF and VLANs.
    pub fn upper(&self) -> Result<Vec<String>> {
        self.neighbours("upper_")
    }

    fn neighbours(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names: Vec<String> =
            self.list(".")?.iter().filter_map(|n| n.strip_prefix(prefix).map(String::from)).collect();
        names.sort();
        Ok(names)
    }

    /// True for a port of a bond that speaks LACP with its peer (802.3ad).
    pub fn speaks_lacp(&self) -> bool {
        self.text("master/bonding/mode").is_ok_and(|mode| mode.starts_with("802.3ad"))
    }

    /// A counter of `statistics/`; each is maintained by the kernel since the interface was made.
    pub fn statistic(&self, counter: &str) -> Result<u64> {
        if !counter.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
            return Err(Error::Invalid { what: counter.into(), why: "no such counter".into() });
        }
        self.number(&format!("statistics/{counter}"))
    }

    pub(crate) fn number(&self, attr: &str) -> Result<u64> {
        let text = self.text(attr)?;
        text.parse().map_err(|_| Error::Invalid {
            what: self.what(attr),
            why: format!("{:?} is not a number", text.chars().take(40).collect::<String>()),
        })
    }

    pub(crate) fn text(&self, attr: &str) -> Result<String> {
        // sysfs gives a value whole, in one read.
        let mut bytes = [0; ATTR_MAX];
        let n = File::from(self.open(attr, libc::O_RDONLY)?)
            .read(&mut bytes)
            .map_err(|e| Error::io(self.what(attr), e))?;
        Ok(String::from_utf8_lossy(&bytes[..n]).trim().to_string())
    }

    fn write(&self, attr: &str, value: &str) -> Result<()> {
        // One write call: sysfs takes each as a value of its own.
        let n = File::from(self.open(attr, libc::O_WRONLY)?)
            .write(value.as_bytes())
            .map_err(|e| Error::io(self.what(attr), e))?;
        if n < value.len() {
            return Err(Error::io(self.what(attr), io::ErrorKind::WriteZero.into()));
        }
        Ok(())
    }

    fn open(&self, attr: &str, flags: i32) -> Result<OwnedFd> {
        open_at(self.dir.as_raw_fd(), attr, flags).map_err(|e| match e {
            // The directory outlives the interface, empty: tell a deleted one from a missing attribute.
            Error::Io { source, .. } if source.raw_os_error() == Some(libc::ENOENT) => {
                match open_at(self.dir.as_raw_fd(), "ifindex", libc::O_RDONLY) {
                    Ok(_) => Error::io(self.what(attr), source),
                    Err(_) => Error::Gone { what: self.name.clone() },
                }
            }
            Error::Io { source, .. } => Error::io(self.what(attr), source),
            e => e,
        })
    }

    fn list(&self, sub: &str) -> Result<Vec<String>> {
        let fd = self.open(sub, libc::O_RDONLY | libc::O_DIRECTORY)?;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let dir = std::fs::read_dir(path).map_err(|e| Error::io(self.what(sub), e))?;
        Ok(dir.flatten().take(65536).map(|e| e.file_name().to_string_lossy().into_owned()).collect())
    }

    fn what(&self, attr: &str) -> String {
        format!("/sys/class/net/{}/{attr}", self.name)
    }
}

fn gone_if_missing(e: Error, name: &str) -> Error {
    match e.errno() {
        Some(libc::ENOENT) => Error::Gone { what: name.into() },
        _ => e,
    }
}

fn open_at(dir: i32, path: &str, flags: i32) -> Result<OwnedFd> {
    let Ok(c) = CString::new(path) else {
        return Err(Error::Invalid { what: path.escape_default().to_string(), why: "not a path".into() });
    };
    // SAFETY: `c` is a NUL-terminated string that lives through the call.
    let fd = unsafe { libc::openat(dir, c.as_ptr(), flags | libc::O_CLOEXEC) };
    owned(fd.into(), path)
}

fn owned(fd: libc::c_long, what: &str) -> Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel has just returned this descriptor, nobody else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Error::last(what)),
    }
}

/// `class/net` of a sysfs for this namespace, and its mount, which stands nowhere (since 5.2; needs CAP_SYS_ADMIN). It is gone
/// when both are closed, and does not keep the namespace alive.
fn private_mount() -> Result<(OwnedFd, OwnedFd)> {
    let mount = detached(c"sysfs", &[])?;
    let net = open_at(mount.as_raw_fd(), "class/net", libc::O_PATH | libc::O_DIRECTORY)?;
    Ok((net, mount))
}

/// The root of a file system that is mounted nowhere (since 5.2; needs CAP_SYS_ADMIN): what is mounted over it, read-only or
/// not at all in this process's view, is of no matter. `flags` are mount options without a value.
pub(crate) fn detached(kind: &CStr, flags: &[&CStr]) -> Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    const FSCONFIG_SET_FLAG: libc::c_uint = 0;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    const MOUNT_ATTRS: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: the name is a NUL-terminated string that lives through the call.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) }, "fsopen")?;
    let none = std::ptr::null::<libc::c_char>();
    let config = |command: libc::c_uint, key: *const libc::c_char| {
        // SAFETY: `key` is null or a NUL-terminated string that lives through the call; these commands take no value.
        match unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, none, 0) } {
            r if r < 0 => Err(Error::last("fsconfig")),
            _ => Ok(()),
        }
    };
    for flag in flags {
        config(FSCONFIG_SET_FLAG, flag.as_ptr())?;
    }
    config(FSCONFIG_CMD_CREATE, none)?;
    // SAFETY: plain numbers; MOUNT_ATTR_NOSUID, _NODEV and _NOEXEC have the values of the MS_ flags.
    owned(
        unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, MOUNT_ATTRS) },
        "fsmount",
    )
}

/// Opens a file below an open directory.
pub(crate) fn open_below(dir: &OwnedFd, path: &str, flags: i32) -> Result<OwnedFd> {
    open_at(dir.as_raw_fd(), path, flags)
}
