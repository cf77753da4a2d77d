//! Listeners of running servers, and the choice between those of one group: what `weir accept` finds and attaches.
//!
//! A group is what SO_REUSEPORT makes of several listeners of one address. Nothing of a server is changed: a duplicate of one of its
//! listeners is made ([`dup`]), the program is attached through it and it is closed at once, since a duplicate that is held keeps a dead
//! listener in its group, whose connections nobody would accept. The array of sockets holds no reference to them.
//!
//! The attach is a socket option: it does not end with this process. What the program decides is a lease ([`Choice::renew`]); after it the
//! choice is the kernel's own.

mod abi;
#[cfg(all(test, not(no_bpf)))]
pub(crate) use abi::layouts;
#[cfg(not(no_bpf))]
mod choice;
#[cfg(not(no_bpf))]
mod find;
#[cfg(not(no_bpf))]
mod moves;
mod owner;
mod rights;

pub use abi::{LEASE_OVER, MEMBERS_OTHER, MIGRATED, PLACED, REFUSED, UNMOVED};
#[cfg(not(no_bpf))]
pub use choice::{Choice, FREED, Seen};
#[cfg(not(no_bpf))]
pub use find::Finder;
#[cfg(not(no_bpf))]
pub use moves::moves;
pub use owner::{Owner, Search, Where, own_cpus};
pub use rights::{lacks, without};

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// One TCP socket in the descriptors of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Inode of the socket.
    pub inode: u64,
    /// Process, and its descriptor.
    pub pid: u32,
    /// See `pid`.
    pub fd: u32,
    /// Inode of the network namespace.
    pub netns: u32,
    /// Index of the interface that it is bound to; 0: none.
    pub device: u32,
    /// Id of the program that chooses in its group; 0: none, `u32::MAX`: a classic filter.
    pub program: u32,
    /// Connections that wait, and how many may.
    pub waiting: u32,
    /// See `waiting`.
    pub limit: u32,
    /// Core that received last of it, of a connection.
    pub core: u32,
    /// Members of its group; 0: it is in none.
    pub sockets: u32,
    /// It listens, or is of UDP; else it is an established connection.
    pub listens: bool,
    /// It is of UDP.
    pub udp: bool,
    /// SO_REUSEPORT is set.
    pub reuseport: bool,
    /// Its own end.
    pub local: SocketAddr,
}

/// One listener of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Inode of its socket.
    pub inode: u64,
    /// Processes that have it, and their descriptors; sorted.
    pub holders: Vec<(u32, u32)>,
    /// Who accepts from it, if that is known.
    pub owner: Option<Owner>,
    /// Connections that wait, and how many may.
    pub waiting: u32,
    /// See `waiting`.
    pub limit: u32,
    /// Established connections that its owner has of this port.
    pub connections: u32,
    /// Those of them that were received by the owner's core.
    pub affine: u32,
}

impl Member {
    /// Core that its owner runs on.
    pub fn core(&self) -> Option<usize> {
        self.owner.as_ref().and_then(|owner| owner.core)
    }
}

/// What is one group, as it is for the kernel: UDP or TCP, network namespace, address, interface.
pub type Key = (bool, u32, SocketAddr, u32);

impl Held {
    /// Of which group it is, if it listens.
    pub fn key(&self) -> Key {
        (self.udp, self.netns, self.local, self.device)
    }
}

/// Listeners of one address in one network namespace, bound to one interface or to none; or sockets of UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Of UDP: datagrams take the place of connections.
    pub udp: bool,
    /// Inode of the network namespace.
    pub netns: u32,
    /// The address.
    pub local: SocketAddr,
    /// Index of the interface that they are bound to; 0: none.
    pub device: u32,
    /// Whether SO_REUSEPORT is set.
    pub reuseport: bool,
    /// Id of the program that chooses in it; 0: none, `u32::MAX`: a classic filter.
    pub program: u32,
    /// Its listeners.
    pub members: Vec<Member>,
}

impl Group {
    /// What it is.
    pub fn key(&self) -> Key {
        (self.udp, self.netns, self.local, self.device)
    }

    /// Its address, behind the word `udp` if it is of UDP, before the interface that it is bound to.
    pub fn name(&self) -> String {
        let device = if self.device == 0 { String::new() } else { format!(" on interface {}", self.device) };
        format!("{}{}{device}", if self.udp { "udp " } else { "" }, self.local)
    }
}

/// Most members of a group that can be chosen for.
pub const MEMBERS_MAX: usize = policy::accept::queues::QUEUES;

/// Groups of all listeners in `held` whose address is `wanted`, without owners. Of one that is too large [`MEMBERS_MAX`] members and one
/// more are named.
pub fn groups(held: &[Held], wanted: impl Fn(&Held) -> bool) -> Vec<Group> {
    let keys: std::collections::BTreeSet<Key> =
        held.iter().filter(|h| h.listens && wanted(h)).map(Held::key).collect();
    // With the places of its members, by inode: each worker may have all listeners.
    let mut all: BTreeMap<Key, (Group, BTreeMap<u64, usize>)> = BTreeMap::new();
    for one in held.iter().filter(|h| h.listens && keys.contains(&h.key())) {
        let (group, places) = all.entry(one.key()).or_insert_with(|| {
            let group = Group {
                udp: one.udp,
                netns: one.netns,
                local: one.local,
                device: one.device,
                reuseport: one.reuseport,
                program: 0,
                members: Vec::new(),
            };
            (group, BTreeMap::new())
        });
        group.program = group.program.max(one.program);
        group.reuseport &= one.reuseport;
        let count = group.members.len();
        match places.get(&one.inode).and_then(|place| group.members.get_mut(*place)) {
            Some(member) => member.holders.push((one.pid, one.fd)),
            None if count > MEMBERS_MAX => (),
            None => {
                places.insert(one.inode, count);
                group.members.push(Member {
                    inode: one.inode,
                    holders: vec![(one.pid, one.fd)],
                    owner: None,
                    waiting: one.waiting,
                    limit: one.limit,
                    connections: 0,
                    affine: 0,
                });
            }
        }
    }
    let mut all: Vec<Group> = all.into_values().map(|(group, _)| group).collect();
    for member in all.iter_mut().flat_map(|g| &mut g.members) {
        member.holders.sort_unstable();
    }
    all
}

/// Finds who accepts from each listener of `group`, and what connections they have; `known` tells who was found at the last search, by
/// the inode of a listener.
pub fn name_owners<'k>(
    group: &mut Group,
    held: &[Held],
    search: &mut Search,
    known: impl Fn(u64) -> Option<&'k Owner>,
) {
    for member in &mut group.members {
        member.owner = search.owner(member.inode, &member.holders, known(member.inode));
    }
    let many = |pid: u32, members: &[Member]| {
        members.iter().filter(|m| m.owner.as_ref().is_some_and(|o| o.pid == pid)).count()
    };
    let pids: Vec<usize> =
        group.members.iter().map(|m| m.owner.as_ref().map_or(0, |o| many(o.pid, &group.members))).collect();
    for (member, shared) in group.members.iter_mut().zip(pids) {
        // Threads share descriptors: which of them has accepted a connection cannot be told.
        let Some(owner) = member.owner.as_ref().filter(|_| shared == 1 && !group.udp) else { continue };
        let mine = held.iter().filter(|h| {
            !h.listens && h.pid == owner.pid && h.netns == group.netns && h.local.port() == group.local.port()
        });
        for connection in mine {
            member.connections += 1;
            member.affine += u32::from(owner.core == Some(connection.core as usize));
        }
    }
    // Neighbouring places for those of one core.
    group.members.sort_by_key(|m| (m.core().unwrap_or(usize::MAX), m.inode));
}

/// By core the first of its queues and how many follow, given the core of each queue. Only neighbours can be named: of queues that have
/// moved away from each other it is those around one of them, another one each `turn`, so that all have the same share.
#[cfg(not(no_bpf))]
fn seats(cores: &[Option<usize>], turn: usize) -> BTreeMap<usize, (u32, u32)> {
    let mut slots: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (slot, core) in cores.iter().enumerate() {
        if let Some(core) = core {
            slots.entry(*core).or_default().push(slot);
        }
    }
    let seat = |(core, slots): (usize, Vec<usize>)| {
        let mut runs = slots.chunk_by(|a, b| a + 1 == *b);
        let mut at = turn % slots.len();
        let run = runs.find(|run| {
            let found = at < run.len();
            at = at.saturating_sub(run.len());
            found
        })?;
        Some((core, (*run.first()? as u32, run.len() as u32)))
    };
    slots.into_iter().filter_map(seat).collect()
}

#[cfg(not(no_bpf))]
fn address(family: u16, bytes: &[u8; 16], port: u16) -> SocketAddr {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    let [a, b, c, d, ..] = *bytes;
    let ip: IpAddr = match i32::from(family) {
        libc::AF_INET => Ipv4Addr::new(a, b, c, d).into(),
        _ => Ipv6Addr::from(*bytes).into(),
    };
    SocketAddr::new(ip, port)
}

/// A process that can be waited for: readable once it has ended.
///
/// # Errors
/// It has ended already.
pub fn pidfd(pid: u32) -> Result<OwnedFd> {
    // SAFETY: plain system call; the result is checked.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return Err(not_there(format!("process {pid}"), io::Error::last_os_error()));
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A process that has ended, or a descriptor that it has closed, is gone.
fn not_there(what: String, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::EBADF) => Error::Gone { what },
        _ => Error::io(what, error),
    }
}

/// A duplicate of a listener of another process, if it is the one with `inode`. To be dropped at once.
///
/// # Errors
/// [`Error::Denied`] names the right that is missing; others: process or descriptor are not there any more.
pub fn dup(pid: u32, fd: u32, inode: u64) -> Result<OwnedFd> {
    let process = pidfd(pid)?;
    // SAFETY: plain system call; the result is checked.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) };
    let what = || format!("listener of process {pid}");
    if got < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EPERM) => Error::Denied { what: what(), need: missing_right() },
            _ => not_there(what(), error),
        });
    }
    // SAFETY: a new descriptor that nobody else has.
    let got = unsafe { OwnedFd::from_raw_fd(got as i32) };
    let link = std::fs::read_link(format!("/proc/self/fd/{}", got.as_raw_fd()));
    match link {
        Ok(link) if link.to_string_lossy() == format!("socket:[{inode}]") => Ok(got),
        _ => Err(Error::Gone { what: what() }),
    }
}

/// Which right [`dup`] lacks.
fn missing_right() -> &'static str {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if scope.trim() == "3" {
        return "kernel.yama.ptrace_scope below 3 (it is 3, until the next boot nobody may)";
    }
    "CAP_SYS_PTRACE"
}

/// Sets an option of a socket that takes an int.
fn set(fd: &OwnedFd, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the value lives for the call and has the length that is told.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The cookie of a socket.
#[cfg(not(no_bpf))]
fn cookie(fd: &OwnedFd) -> io::Result<u64> {
    let (mut value, mut length) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the kernel writes at most as many bytes as it is told.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// True if a process has a descriptor of the BPF program `id`: who attached it lives.
pub fn is_held(id: u32) -> bool {
    let wanted = format!("prog_id:\t{id}");
    crate::proc::pids_in(std::path::Path::new(crate::proc::PROC)).into_iter().any(|pid| {
        let list = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        list.take(65_536)
            .filter(|entry| {
                std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == "anon_inode:bpf-prog")
            })
            .any(|entry| {
                let fd = entry.file_name();
                let text = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", fd.to_string_lossy()));
                text.is_ok_and(|text| text.lines().any(|line| line == wanted))
            })
    })
}

/// Takes the program off `group`, whoever's it is: the caller has looked.
///
/// # Errors
/// As [`dup`], and what the kernel says.
pub fn detach(group: &Group) -> Result<()> {
    let fd = any(group)?;
    match set(&fd, libc::SO_DETACH_REUSEPORT_BPF, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other.map_err(|e| Error::io(format!("detach from {}", group.name()), e)),
    }
}

/// A duplicate of any listener of the group.
fn any(group: &Group) -> Result<OwnedFd> {
    let mut last = Error::Gone { what: format!("listeners of {}", group.name()) };
    for member in &group.members {
        for (pid, fd) in &member.holders {
            match dup(*pid, *fd, member.inode) {
                Ok(fd) => return Ok(fd),
                Err(e) => last = e,
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(no_bpf))]
    #[test]
    fn queues_of_one_core_take_turns_unless_they_are_neighbours() {
        let together = [Some(0), Some(0), Some(3), None];
        for turn in 0..3 {
            assert_eq!(seats(&together, turn), [(0, (0, 2)), (3, (2, 1))].into());
        }
        let apart = [Some(0), Some(1), Some(0), Some(0)];
        let of = |turn| seats(&apart, turn)[&0];
        assert_eq!([of(0), of(1), of(2), of(3)], [(0, 1), (2, 2), (2, 2), (0, 1)]);
        assert_eq!(seats(&apart, 7)[&1], (1, 1));
        assert!(seats(&[None], 5).is_empty());
    }

    #[test]
    fn a_group_has_a_member_for_each_inode_and_one_too_many_at_most() {
        let held = |inode: u64, pid: u32| Held {
            inode,
            pid,
            fd: 3,
            netns: 1,
            device: 0,
            program: 0,
            waiting: 0,
            limit: 0,
            core: 0,
            sockets: 0,
            listens: true,
            udp: false,
            reuseport: true,
            local: SocketAddr::from(([127, 0, 0, 1], 80)),
        };
        let all = groups(&[held(7, 2), held(8, 2), held(7, 1)], |_| true);
        assert_eq!(all.len(), 1);
        let members: Vec<_> = all[0].members.iter().map(|m| (m.inode, m.holders.clone())).collect();
        assert_eq!(members, [(7, vec![(1, 3), (2, 3)]), (8, vec![(2, 3)])]);
        let many: Vec<Held> = (0..2000).map(|inode| held(inode, 1)).collect();
        assert_eq!(groups(&many, |_| true)[0].members.len(), MEMBERS_MAX + 1);
    }
}
