//! The few ethtool ioctls that weir needs, on interfaces of the caller's namespace.

use crate::{
    error::{Error, Result},
    netns,
};
use std::{io, os::fd::AsRawFd};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GDRVINFO: u32 = 0x03;
const GRINGPARAM: u32 = 0x10;
const GFLAGS: u32 = 0x25;
const GGRO: u32 = 0x2b;
const SGRO: u32 = 0x2c;
const GRXRINGS: u32 = 0x2d;
const GRXCLSRLCNT: u32 = 0x2e;
const GRXFHINDIR: u32 = 0x38;
const SRXFHINDIR: u32 = 0x39;
const GCHANNELS: u32 = 0x3c;
/// Entries of a table of RSS at most; NICs have up to 2048.
pub const TABLE_MAX: usize = 2048;
const FLAG_LRO: u32 = 1 << 15;

/// `struct ethtool_value`.
#[repr(C)]
struct Scalar {
    cmd: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Drvinfo {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    fw_version: [u8; 32],
    bus_info: [u8; 32],
    erom_version: [u8; 32],
    reserved2: [u8; 12],
    n_priv_flags: u32,
    n_stats: u32,
    testinfo_len: u32,
    eedump_len: u32,
    regdump_len: u32,
}

/// `struct ethtool_ringparam`.
#[repr(C)]
#[derive(Default)]
struct Ringparam {
    cmd: u32,
    rx_max: u32,
    rx_mini_max: u32,
    rx_jumbo_max: u32,
    tx_max: u32,
    rx: u32,
    rx_mini: u32,
    rx_jumbo: u32,
    tx: u32,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct RawChannels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_rxfh_indir` with room for the largest table.
#[repr(C)]
struct Table {
    cmd: u32,
    size: u32,
    queues: [u32; TABLE_MAX],
}

impl Table {
    fn new(cmd: u32) -> Box<Table> {
        Box::new(Table { cmd, size: 0, queues: [0; TABLE_MAX] })
    }
}

/// `struct ethtool_rxnfc` as far as the number of rules or of rings is read from it.
#[repr(C)]
#[derive(Default)]
struct Rules {
    cmd: u32,
    flow_type: u32,
    data: u64,
    /// `struct ethtool_rx_flow_spec`.
    spec: [u64; 21],
    count: u32,
}

/// Depth of the receive ring in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Ring {
    /// Depth now.
    pub rx: u32,
    /// Deepest the driver allows.
    pub rx_max: u32,
}

/// Queues in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Channels {
    /// Receive-only channels.
    pub rx: u32,
    /// Transmit-only channels.
    pub tx: u32,
    /// Channels with both directions.
    pub combined: u32,
    /// Most receive queues the device could have.
    pub max_rx: u32,
}

/// Runs an interface ioctl whose `ifr_data` is `data`.
fn ioctl<T>(name: &str, request: libc::c_ulong, data: &mut T, what: &str) -> Result<()> {
    let what = || format!("{name}: {what}");
    if !netns::valid_name(name) {
        return Err(Error::Gone { what: what() });
    }
    let sock = netns::control_socket()?;
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request_block: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request_block.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request_block.ifr_ifru.ifru_data = (data as *mut T).cast();
    // SAFETY: the block and `data` live through the call; each caller passes the structure that its command
    // reads and writes.
    let r = unsafe { libc::ioctl(sock.as_raw_fd(), request as _, &raw mut request_block) };
    if r < 0 { Err(Error::last(what())) } else { Ok(()) }
}

/// Driver name by `ETHTOOL_GDRVINFO`.
pub fn driver(name: &str) -> Result<String> {
    // SAFETY: all-zero bytes are a valid value of this plain structure.
    let mut info: Drvinfo = unsafe { std::mem::zeroed() };
    info.cmd = GDRVINFO;
    ioctl(name, SIOCETHTOOL, &mut info, "driver")?;
    let len = info.driver.iter().position(|&b| b == 0).unwrap_or(info.driver.len());
    Ok(String::from_utf8_lossy(&info.driver[..len]).into_owned())
}

/// Receive ring depth; `None` if the driver does not tell.
pub fn ring(name: &str) -> Option<Ring> {
    let mut p = Ringparam { cmd: GRINGPARAM, ..Default::default() };
    ioctl(name, SIOCETHTOOL, &mut p, "ring").ok()?;
    Some(Ring { rx: p.rx, rx_max: p.rx_max })
}

/// Channels; `None` if the driver does not tell.
pub fn channels(name: &str) -> Option<Channels> {
    let mut c = RawChannels { cmd: GCHANNELS, ..Default::default() };
    ioctl(name, SIOCETHTOOL, &mut c, "channels").ok()?;
    Some(Channels { rx: c.rx, tx: c.tx, combined: c.combined, max_rx: c.max_rx.max(c.max_combined) })
}

/// How the NIC parts flows over its receive queues (RSS): the queue of each entry of its table.
///
/// # Errors
/// If the driver has none or does not tell, or it has more than [`TABLE_MAX`] entries.
pub fn rss_table(name: &str) -> Result<Vec<u32>> {
    let mut table = Table::new(GRXFHINDIR);
    // Asked for none it says how many there are.
    ioctl(name, SIOCETHTOOL, &mut *table, "RSS")?;
    if !(1..=TABLE_MAX).contains(&(table.size as usize)) {
        let why = format!("{} entries, weir knows tables of 1 to {TABLE_MAX}", table.size);
        return Err(Error::Invalid { what: format!("{name}: RSS"), why });
    }
    ioctl(name, SIOCETHTOOL, &mut *table, "RSS")?;
    Ok(table.queues.iter().take(table.size as usize).copied().collect())
}

/// Sets that table, whose length the NIC gives. The table that a driver begins with is set as its default: then it follows again when
/// the number of queues changes, which a table that somebody has set does not.
///
/// # Errors
/// What the driver says: one that is busy or down may refuse, and a queue must be there.
pub fn set_rss_table(name: &str, queues: &[u32]) -> Result<()> {
    let set = |size: usize| {
        let mut table = Table::new(SRXFHINDIR);
        table.size = size as u32;
        table.queues.iter_mut().zip(queues).for_each(|(to, from)| *to = *from);
        ioctl(name, SIOCETHTOOL, &mut *table, "RSS")
    };
    let default = |rings: u32| queues.iter().enumerate().all(|(n, queue)| *queue == n as u32 % rings);
    match rings(name) {
        // Asked for none the kernel takes the default.
        Some(rings) if default(rings) => set(0),
        _ => set(queues.len()),
    }
}

/// Whether the driver has a way to set that table; `None` without the right to ask.
pub fn sets_rss_table(name: &str) -> Option<bool> {
    let mut table = Table::new(SRXFHINDIR);
    // The kernel looks for the way first, and refuses a table of a wrong length, which this is of any, before it reads it.
    table.size = u32::MAX;
    match ioctl(name, SIOCETHTOOL, &mut *table, "RSS") {
        Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => Some(false),
        Err(e) if matches!(e.errno(), Some(libc::EPERM | libc::EACCES)) => None,
        _ => Some(true),
    }
}

/// Receive queues that RSS and flow rules may name, if the driver tells.
pub fn rings(name: &str) -> Option<u32> {
    let mut rules = Rules { cmd: GRXRINGS, ..Rules::default() };
    ioctl(name, SIOCETHTOOL, &mut rules, "receive rings").ok()?;
    u32::try_from(rules.data).ok().filter(|rings| *rings > 0)
}

/// Rules by which the NIC chooses a queue for some packets (ntuple, Flow Director); 0 if the driver has none or does not tell.
pub fn flow_rules(name: &str) -> u32 {
    let mut rules = Rules { cmd: GRXCLSRLCNT, ..Rules::default() };
    ioctl(name, SIOCETHTOOL, &mut rules, "flow rules").map_or(0, |()| rules.count)
}

/// True if generic receive offload is on.
pub fn gro(name: &str) -> Result<bool> {
    let mut v = Scalar { cmd: GGRO, data: 0 };
    ioctl(name, SIOCETHTOOL, &mut v, "GRO")?;
    Ok(v.data != 0)
}

/// Switches generic receive offload. On veth this makes or removes its NAPIs.
pub fn set_gro(name: &str, on: bool) -> Result<()> {
    ioctl(name, SIOCETHTOOL, &mut Scalar { cmd: SGRO, data: on.into() }, "GRO")
}

/// True if large receive offload (by the NIC) is on.
pub fn lro(name: &str) -> Result<bool> {
    let mut v = Scalar { cmd: GFLAGS, data: 0 };
    ioctl(name, SIOCETHTOOL, &mut v, "LRO")?;
    Ok(v.data & FLAG_LRO != 0)
}

/// Interface flags (`IFF_UP` and so on).
pub fn flags(name: &str) -> Result<i32> {
    Ok(i32::from(interface_ioctl(name, libc::SIOCGIFFLAGS as libc::c_ulong)?.0))
}

/// Hardware address as sysfs writes it.
pub(crate) fn address(name: &str) -> Result<String> {
    let (_, bytes) = interface_ioctl(name, libc::SIOCGIFHWADDR as libc::c_ulong)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":"))
}

/// An ioctl that answers in the request block: first short of the union, and six bytes of an address.
fn interface_ioctl(name: &str, request: libc::c_ulong) -> Result<(i16, [u8; 6])> {
    if !netns::valid_name(name) {
        return Err(Error::Gone { what: name.into() });
    }
    let sock = netns::control_socket()?;
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut block: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in block.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: `block` lives through the call.
    if unsafe { libc::ioctl(sock.as_raw_fd(), request as _, &raw mut block) } < 0 {
        return Err(Error::io(name, io::Error::last_os_error()));
    }
    // SAFETY: the block is fully initialised, and any bytes are valid for these members.
    let (flags, hwaddr) = unsafe { (block.ifr_ifru.ifru_flags, block.ifr_ifru.ifru_hwaddr) };
    let mut bytes = [0u8; 6];
    bytes.iter_mut().zip(hwaddr.sa_data).for_each(|(to, from)| *to = from as u8);
    Ok((flags, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel writes as much as its own structures hold.
    #[test]
    fn structures_are_as_large_as_the_kernels() {
        assert_eq!((size_of::<Rules>(), std::mem::offset_of!(Rules, count)), (192, 184));
        assert_eq!(std::mem::offset_of!(Table, queues), 8);
    }

    #[test]
    fn what_has_no_queues_tells_nothing() {
        assert!(rss_table("lo").is_err() && set_rss_table("lo", &[0]).is_err());
        assert_eq!((rings("lo"), flow_rules("lo")), (None, 0));
    }
}
