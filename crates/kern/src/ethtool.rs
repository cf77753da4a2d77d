//! The few ethtool ioctls that weir needs, on interfaces of the caller's namespace.

use crate::{
    error::{Error, Result},
    netns,
};
use std::{io, os::fd::AsRawFd};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GDRVINFO: u32 = 0x03;
const GRINGPARAM: u32 = 0x10;
const GSTRINGS: u32 = 0x1b;
const GFLAGS: u32 = 0x25;
const GGRO: u32 = 0x2b;
const SGRO: u32 = 0x2c;
const GRXRINGS: u32 = 0x2d;
const GRXCLSRLCNT: u32 = 0x2e;
const GSSET_INFO: u32 = 0x37;
const GRXFHINDIR: u32 = 0x38;
const SRXFHINDIR: u32 = 0x39;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
const GCHANNELS: u32 = 0x3c;
/// Entries of a table of RSS at most; NICs have up to 2048.
pub const TABLE_MAX: usize = 2048;
const FLAG_LRO: u32 = 1 << 15;
/// The names of the features of devices, `ETH_SS_FEATURES`.
const SS_FEATURES: u32 = 4;
/// Length of a name, with the zeros behind it.
const NAME_LEN: usize = 32;
/// Features at most; kernels have about 64.
const FEATURES_MAX: usize = 256;
/// Their words.
const WORDS_MAX: usize = FEATURES_MAX / 32;

/// Large receive offload as the kernel names it among the features.
pub const LRO: &str = "rx-lro";
/// Generic receive offload done by the device.
pub const GRO_HW: &str = "rx-gro-hw";

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

/// `struct ethtool_sset_info` for one set.
#[repr(C)]
#[derive(Default)]
struct SetInfo {
    cmd: u32,
    reserved: u32,
    mask: u64,
    len: u32,
}

/// `struct ethtool_gstrings` with room for the names of all features.
#[repr(C)]
struct Names {
    cmd: u32,
    set: u32,
    len: u32,
    names: [[u8; NAME_LEN]; FEATURES_MAX],
}

/// `struct ethtool_get_features_block`: 32 features.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    /// What can be switched.
    available: u32,
    /// What is wished.
    wanted: u32,
    active: u32,
    never_changed: u32,
}

/// `struct ethtool_gfeatures`.
#[repr(C)]
#[derive(Default)]
struct Words {
    cmd: u32,
    size: u32,
    words: [Word; WORDS_MAX],
}

/// `struct ethtool_sfeatures`: of each word the bits that are meant, and their values.
#[repr(C)]
#[derive(Default)]
struct Wish {
    cmd: u32,
    size: u32,
    words: [[u32; 2]; WORDS_MAX],
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

/// True if a feature of this name is wanted. What is wanted may still be off because of another setting, and is on again without it;
/// so this is what has to be put back, not what is in force.
///
/// # Errors
/// [`Error::Unsupported`] if the kernel or the device does not have it, or it cannot be switched.
pub fn wanted(name: &str, feature: &str) -> Result<bool> {
    let (bit, words) = features(name, feature)?;
    Ok(words.words[bit / 32].wanted & mask(bit) != 0)
}

/// Has a feature of this name be wanted, or not; whether it is in force then the device decides.
///
/// # Errors
/// As [`wanted`]; if the kernel refuses.
pub fn set_wanted(name: &str, feature: &str, on: bool) -> Result<()> {
    let (bit, words) = features(name, feature)?;
    let mut wish = Wish { cmd: SFEATURES, size: words.size, ..Wish::default() };
    wish.words[bit / 32] = [mask(bit), if on { mask(bit) } else { 0 }];
    ioctl(name, SIOCETHTOOL, &mut wish, feature)
}

/// A feature's bit, which can be switched, and the words of all features.
fn features(name: &str, feature: &str) -> Result<(usize, Words)> {
    let bit = feature_names(name, feature)?.iter().position(|known| is_name(known, feature));
    // The kernel writes as many words as there is room for, and says how many it has.
    let mut words = Words { cmd: GFEATURES, size: WORDS_MAX as u32, ..Words::default() };
    ioctl(name, SIOCETHTOOL, &mut words, feature)?;
    match bit.filter(|bit| switchable(&words, *bit)) {
        Some(bit) => Ok((bit, words)),
        None => Err(Error::Unsupported {
            what: format!("{name}: {feature}"),
            since: "a device that can switch it",
        }),
    }
}

/// The names of all features, by their bits.
fn feature_names(name: &str, what: &str) -> Result<Vec<[u8; NAME_LEN]>> {
    let mut info = SetInfo { cmd: GSSET_INFO, mask: 1 << SS_FEATURES, ..SetInfo::default() };
    ioctl(name, SIOCETHTOOL, &mut info, what)?;
    // The kernel writes all that it has, whatever there is room for. How many these are is fixed when it is built.
    if info.mask == 0 || info.len as usize > FEATURES_MAX {
        let why = format!("{} features, weir knows up to {FEATURES_MAX}", info.len);
        return Err(Error::Invalid { what: format!("{name}: {what}"), why });
    }
    let names = [[0; NAME_LEN]; FEATURES_MAX];
    let mut all = Box::new(Names { cmd: GSTRINGS, set: SS_FEATURES, len: info.len, names });
    ioctl(name, SIOCETHTOOL, &mut *all, what)?;
    Ok(all.names.iter().take(all.len as usize).copied().collect())
}

/// It is this name, up to its first zero.
fn is_name(known: &[u8; NAME_LEN], name: &str) -> bool {
    known.split(|b| *b == 0).next() == Some(name.as_bytes())
}

/// The bit is within what the kernel has told, and of what the device can switch.
fn switchable(words: &Words, bit: usize) -> bool {
    let word = words.words.iter().take(words.size as usize).nth(bit / 32);
    word.is_some_and(|word| word.available & !word.never_changed & mask(bit) != 0)
}

fn mask(bit: usize) -> u32 {
    1 << (bit % 32)
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
        assert_eq!((std::mem::offset_of!(SetInfo, mask), std::mem::offset_of!(SetInfo, len)), (8, 16));
        assert_eq!((std::mem::offset_of!(Names, names), size_of::<Names>()), (12, 12 + 32 * FEATURES_MAX));
        assert_eq!((std::mem::offset_of!(Words, words), size_of::<Word>()), (8, 16));
        assert_eq!((std::mem::offset_of!(Wish, words), size_of::<Wish>()), (8, 8 + 8 * WORDS_MAX));
    }

    #[test]
    fn what_has_no_queues_tells_nothing() {
        assert!(rss_table("lo").is_err() && set_rss_table("lo", &[0]).is_err());
        assert_eq!((rings("lo"), flow_rules("lo")), (None, 0));
    }

    fn padded(name: &str) -> [u8; NAME_LEN] {
        let mut all = [0; NAME_LEN];
        all.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        all
    }

    #[test]
    fn a_feature_is_known_by_its_whole_name() {
        assert!(is_name(&padded("rx-gro"), "rx-gro") && is_name(&padded(GRO_HW), GRO_HW));
        assert!(!is_name(&padded("rx-gro-hw"), "rx-gro") && !is_name(&padded("rx-gro"), "rx-gro-hw"));
        let full = "a-name-of-thirty-two-characters-";
        assert!(is_name(&padded(full), full) && !is_name(&padded(""), "rx-lro"));
    }

    #[test]
    fn only_what_can_be_switched_is_had() {
        let mut words = Words { size: 2, ..Words::default() };
        words.words[1] = Word { available: 0b011, wanted: 0b111, active: 0b111, never_changed: 0b010 };
        words.words[2].available = u32::MAX;
        assert!(switchable(&words, 32));
        assert!(!switchable(&words, 33), "never changed");
        assert!(!switchable(&words, 34), "fixed on");
        assert!(!switchable(&words, 0), "not had");
        assert!(!switchable(&words, 64) && !switchable(&words, 10_000), "beyond what the kernel told");
        words.size = u32::MAX;
        assert!(switchable(&words, 64) && !switchable(&words, FEATURES_MAX));
    }

    /// The loopback has the features of every kernel and none of a NIC.
    #[test]
    fn what_a_device_cannot_switch_is_unsupported() {
        let names = feature_names("lo", "names").unwrap();
        for feature in [LRO, GRO_HW, "rx-gro"] {
            assert_eq!(names.iter().filter(|known| is_name(known, feature)).count(), 1, "{feature}");
        }
        for feature in [LRO, GRO_HW, "no-such-feature"] {
            let refused = wanted("lo", feature).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
            assert!(matches!(set_wanted("lo", feature, false), Err(Error::Unsupported { .. })));
        }
        assert!(wanted("no-such-if", LRO).unwrap_err().is_gone());
    }
}
