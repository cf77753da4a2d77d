//! Interfaces by ioctl: there is no other program in the machine.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::Context;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GET_CHANNELS: u32 = 0x3c;
const SET_CHANNELS: u32 = 0x3d;
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;
/// `ETHTOOL_SRXFHINDIR`.
const SET_RSS: u32 = 0x39;
/// `ETH_FLAG_LRO`.
const LRO: u32 = 1 << 15;

fn socket() -> anyhow::Result<OwnedFd> {
    // SAFETY: plain system call; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error()).context("a socket");
    }
    // SAFETY: `fd` is new and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
        *to = from as libc::c_char;
    }
    request
}

fn call(number: libc::c_ulong, request: &mut libc::ifreq, what: &str) -> anyhow::Result<()> {
    let socket = socket()?;
    // SAFETY: the request lives through the call and is the one that these numbers expect.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), number as libc::Ioctl, &raw mut *request) };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context(what.to_owned()) }
}

/// Sets the interface up or down.
pub fn set_up(name: &str, up: bool) -> anyhow::Result<()> {
    let mut r = request(name);
    call(libc::SIOCGIFFLAGS, &mut r, name)?;
    // SAFETY: the kernel has just written the flags.
    let flags = i32::from(unsafe { r.ifr_ifru.ifru_flags });
    let flags = if up { flags | libc::IFF_UP } else { flags & !libc::IFF_UP };
    r.ifr_ifru.ifru_flags = flags as i16;
    call(libc::SIOCSIFFLAGS, &mut r, name)
}

/// Gives it an address in a network of 256.
pub fn address(name: &str, address: [u8; 4]) -> anyhow::Result<()> {
    for (number, octets) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, [255, 255, 255, 0])] {
        let mut r = request(name);
        // SAFETY: all-zero is a valid sockaddr_in, which has the size of a sockaddr.
        let mut a: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        a.sin_family = libc::AF_INET as u16;
        a.sin_addr.s_addr = u32::from_ne_bytes(octets);
        // SAFETY: both have 16 bytes and no invalid values.
        r.ifr_ifru.ifru_addr = unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(a) };
        call(number, &mut r, name)?;
    }
    Ok(())
}

fn ethtool(name: &str, data: &mut [u32]) -> anyhow::Result<()> {
    let mut r = request(name);
    r.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
    call(SIOCETHTOOL, &mut r, name)
}

/// `ethtool -L NAME combined N`.
pub fn channels(name: &str, combined: u32) -> anyhow::Result<()> {
    let mut data = [0u32; 9];
    data[0] = GET_CHANNELS;
    ethtool(name, &mut data)?;
    data[0] = SET_CHANNELS;
    data[8] = combined;
    ethtool(name, &mut data)
}

/// Has RSS send all flows to one queue, by a table of so many entries.
pub fn rss_on(name: &str, entries: usize, queue: u32) -> anyhow::Result<()> {
    let mut table = vec![SET_RSS, entries as u32];
    table.resize(entries + 2, queue);
    ethtool(name, &mut table)
}

/// Gives RSS the driver's own table.
pub fn rss_default(name: &str) -> anyhow::Result<()> {
    ethtool(name, &mut [SET_RSS, 0])
}

/// True if large receive offload is on.
pub fn lro(name: &str) -> bool {
    let mut data = [GET_FLAGS, 0];
    ethtool(name, &mut data).is_ok() && data[1] & LRO != 0
}

/// `ethtool -K NAME lro off`.
pub fn lro_off(name: &str) -> anyhow::Result<()> {
    let mut data = [GET_FLAGS, 0];
    ethtool(name, &mut data)?;
    let mut data = [SET_FLAGS, data[1] & !LRO];
    ethtool(name, &mut data)
}
