//! Statistics and switches of one interface through the ethtool ioctl, in the calling thread's namespace.

use std::collections::BTreeMap;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use super::{Context, Result};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const STATS_SET: u32 = 1;
const NAME: usize = 32;
/// More statistics than this are not read.
const STATS_MAX: usize = 4096;

/// One ethtool call; `buffer` begins with the command and has the size the command needs.
fn call(interface: &str, buffer: &mut [u64]) -> io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
    // SAFETY: the request and the buffer it points to live through the call; callers size the buffer.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn halves(low: u32, high: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (low.to_ne_bytes(), high.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn second_half(word: u64) -> u32 {
    let b = word.to_ne_bytes();
    u32::from_ne_bytes([b[4], b[5], b[6], b[7]])
}

/// Turns generic receive offload on: for a veth that also makes its NAPI.
///
/// # Errors
/// If the interface does not exist or refuses.
pub fn gro_on(interface: &str) -> Result<()> {
    call(interface, &mut [halves(ETHTOOL_SGRO, 1)]).what(|| format!("gro of {interface}"))
}

/// Turns segmentation offload for TCP off: what a veth sends then goes through the peer's NAPI.
///
/// # Errors
/// If the interface does not exist or refuses.
pub fn tso_off(interface: &str) -> Result<()> {
    match call(interface, &mut [halves(ETHTOOL_STSO, 0)]) {
        // An XDP program at the peer has taken it away already.
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        answer => answer.what(|| format!("tso of {interface}")),
    }
}

/// Has the sender sum its packets itself, so that they bear an XDP program at the peer that hands them to another CPU.
///
/// # Errors
/// If the interface does not exist or refuses.
pub fn checksums_off(interface: &str) -> Result<()> {
    call(interface, &mut [halves(ETHTOOL_STXCSUM, 0)]).what(|| format!("checksums of {interface}"))
}

/// All driver statistics of the interface by name (`ethtool -S`); those of one name are added up, as vmxnet3 has one of
/// each queue under the same name.
///
/// # Errors
/// If the interface does not exist or has none.
pub fn statistics(interface: &str) -> Result<BTreeMap<String, u64>> {
    read_statistics(interface).what(|| format!("statistics of {interface}"))
}

fn read_statistics(interface: &str) -> io::Result<BTreeMap<String, u64>> {
    // struct ethtool_sset_info: cmd, reserved, mask, then a count for the one bit set.
    let mut info = [halves(ETHTOOL_GSSET_INFO, 0), 1 << STATS_SET, 0];
    call(interface, &mut info)?;
    let count =
        (info[2].to_ne_bytes()[0..4].try_into().map_or(0, u32::from_ne_bytes) as usize).min(STATS_MAX);

    // struct ethtool_gstrings: cmd, set, count, then the names; the data begins at byte 12.
    let mut names = vec![0u64; (12 + count * NAME).div_ceil(8)];
    names[0] = halves(ETHTOOL_GSTRINGS, STATS_SET);
    names[1] = halves(count as u32, 0);
    call(interface, &mut names)?;
    let bytes: Vec<u8> = names.iter().flat_map(|w| w.to_ne_bytes()).collect();

    let mut values = vec![0u64; 1 + count];
    values[0] = halves(ETHTOOL_GSTATS, count as u32);
    call(interface, &mut values)?;
    debug_assert!(second_half(values[0]) as usize <= count);
    Ok(by_name(&bytes[12..], &values[1..]))
}

/// Names of [`NAME`] bytes each, with their values.
fn by_name(names: &[u8], values: &[u64]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::<String, u64>::new();
    for (name, value) in names.chunks_exact(NAME).zip(values) {
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let sum = all.entry(String::from_utf8_lossy(name).into_owned()).or_default();
        *sum = sum.wrapping_add(*value);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_one_name_are_added_up() {
        let names = ["  pkts rx OOB", "rx_drops", "  pkts rx OOB"];
        let mut bytes = vec![0; names.len() * NAME];
        for (place, name) in bytes.chunks_exact_mut(NAME).zip(names) {
            place[..name.len()].copy_from_slice(name.as_bytes());
        }
        let all = by_name(&bytes, &[5, 7, 30]);
        assert_eq!((all["  pkts rx OOB"], all["rx_drops"], all.len()), (35, 7, 2));
    }
}
