//! The network namespace of the calling thread: its identity, and its interface names.

use crate::error::{Error, Result};
use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

/// Longest interface name in bytes (`IFNAMSIZ` - 1).
pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// Identity of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetnsId {
    /// Inode of `/proc/thread-self/ns/net`. The kernel gives the inode of a dead namespace to a new one.
    pub inode: u64,
    /// The namespace's cookie, unique until the next boot; `None` before 5.14.
    pub cookie: Option<u64>,
}

impl NetnsId {
    /// True if both name the same namespace; decided by the cookies where both are known.
    pub fn same(&self, other: &NetnsId) -> bool {
        self.inode == other.inode
            && match (self.cookie, other.cookie) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            }
    }
}

/// Identity of the calling thread's network namespace.
pub fn current() -> Result<NetnsId> {
    let what = "/proc/thread-self/ns/net";
    let inode = fs::metadata(what).map_err(|e| Error::io(what, e))?.ino();
    Ok(NetnsId { inode, cookie: cookie() })
}

/// Inode of the calling thread's network namespace.
pub fn current_inode() -> Result<u64> {
    Ok(current()?.inode)
}

/// `SO_NETNS_COOKIE` of a socket opened here; `None` where the kernel has none (before 5.14).
fn cookie() -> Option<u64> {
    let sock = control_socket().ok()?;
    let mut value = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `value` and `len` are live for the call and `len` is the size of `value`.
    let r = unsafe {
        libc::getsockopt(
            sock.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    (r == 0 && len as usize == size_of::<u64>()).then_some(value)
}

const SO_NETNS_COOKIE: libc::c_int = 71;

/// A datagram socket of the caller's namespace, for interface ioctls. Works without IPv4.
pub(crate) fn control_socket() -> Result<OwnedFd> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|e| Error::io("socket", io::Error::from(e)))
}

/// Index of interface `name` in the caller's namespace; [`Error::Gone`] if there is none.
pub fn index_of(name: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(name).map_err(|e| Error::io(name, io::Error::from(e)))
}

/// Name of interface `ifindex` in the caller's namespace; [`Error::Gone`] if there is none.
pub fn name_of(ifindex: u32) -> Result<String> {
    // Not nix's wrapper: that answers an unknown index with an empty name.
    let mut buf = [0u8; libc::IFNAMSIZ];
    // SAFETY: the C library writes at most IFNAMSIZ bytes with a terminating NUL into `buf`.
    if unsafe { libc::if_indextoname(ifindex, buf.as_mut_ptr().cast()) }.is_null() {
        return Err(Error::last(format!("interface {ifindex}")));
    }
    let len = buf.iter().position(|&b| b == 0).unwrap_or(buf.len());
    Ok(String::from_utf8_lossy(&buf[..len]).into_owned())
}

/// Names and indices of all interfaces of the caller's namespace, in kernel order.
pub fn interfaces() -> Result<Vec<(String, u32)>> {
    let all = nix::net::if_::if_nameindex().map_err(|e| Error::io("if_nameindex", io::Error::from(e)))?;
    Ok(all.iter().map(|i| (i.name().to_string_lossy().into_owned(), i.index())).collect())
}

/// One address of each family that is the host's own, to be reached through interface `name`: the interface's if it
/// has one, else any but the loopback's. `None` where there is none.
pub fn own_addresses(name: &str) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let all = nix::ifaddrs::getifaddrs().map_err(|e| Error::io("getifaddrs", io::Error::from(e)))?;
    let (mut v4, mut v6) = ((None, false), (None, false));
    for entry in all {
        let here = entry.interface_name == name;
        let Some(address) = entry.address else { continue };
        if let Some(ip) = address.as_sockaddr_in().map(|a| a.ip()).filter(|ip| !ip.is_loopback())
            && (v4.0.is_none() || (here && !v4.1))
        {
            v4 = (Some(ip), here);
        }
        if let Some(ip) = address.as_sockaddr_in6().map(|a| a.ip()).filter(|ip| !ip.is_loopback())
            // A link-local address of another interface is not the host's here.
            && (here || !ip.is_unicast_link_local())
            && (v6.0.is_none() || (here && !v6.1))
        {
            v6 = (Some(ip), here);
        }
    }
    Ok((v4.0, v6.0))
}

/// True if `name` could be an interface name: 1 to 15 bytes, no control character, and no byte that the kernel refuses (spaces
/// of its table, which has 0xa0 too, '/' and ':').
pub fn valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != "."
        && name != ".."
        && !name.chars().any(char::is_control)
        && !name.bytes().any(|b| matches!(b, b' ' | 0xa0 | b'/' | b':'))
}

/// A handle on the caller's namespace, so that another thread can enter it.
pub fn open_current() -> Result<OwnedFd> {
    let what = "/proc/thread-self/ns/net";
    fs::File::open(what).map(OwnedFd::from).map_err(|e| Error::io(what, e))
}

/// Moves the calling thread (only) into the namespace behind `fd`. Needs CAP_SYS_ADMIN.
pub fn enter(fd: &OwnedFd) -> Result<()> {
    nix::sched::setns(fd.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET)
        .map_err(|e| Error::io("setns", io::Error::from(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for ok in ["eth0", "a", "veth.12@x", "0123456789abcde", "v\u{e9}"] {
            assert!(valid_name(ok), "{ok}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "a:1",
            "0123456789abcdef",
            "a\n",
            "a\u{1b}",
            "\u{e0}",
            "\u{85}",
            "12345678901234\u{e9}",
        ] {
            assert!(!valid_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn current_is_stable() {
        let a = current().unwrap();
        assert!(a.same(&current().unwrap()));
        assert!(
            !a.same(&NetnsId { inode: a.inode, cookie: a.cookie.map(|c| c + 1).or(Some(0)) })
                || a.cookie.is_none()
        );
    }

    #[test]
    fn unknown_interface_is_gone() {
        assert!(index_of("weir-none").unwrap_err().is_gone());
        assert!(name_of(u32::MAX - 1).unwrap_err().is_gone());
    }
}
