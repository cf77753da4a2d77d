//! procfs of the calling thread's namespaces: processes, UDP sockets, softirq counters. Files of other
//! processes are untrusted text: each is read with a limit and parsed with checks.

use crate::error::{Error, Result};
use crate::text::deceives;
use crate::wire::counters::snmp_lines;
use policy::merged::Ip;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

/// Most UDP sockets that are read.
pub const MAX_SOCKETS: usize = 65_536;
/// Most descriptors that are looked at in one process.
pub const MAX_FDS: usize = 65_536;
/// Where procfs is.
pub(crate) const PROC: &str = "/proc";

/// True if standard error of this process goes to systemd's journal: `JOURNAL_STREAM` names its device and inode.
pub fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    nix::sys::stat::fstat(io::stderr()).is_ok_and(|s| stream == format!("{}:{}", s.st_dev, s.st_ino))
}

/// Start time of process `pid` in clock ticks since boot, which tells it from a later one with the same pid.
/// `None` if there is no such process, or it is a zombie.
pub fn start_time(pid: u32) -> Option<u64> {
    start_time_in(Path::new(PROC), pid)
}

pub(crate) fn start_time_in(proc: &Path, pid: u32) -> Option<u64> {
    Some(stat_in(proc, pid)?.start)
}

/// What the kernel tells of a thread in one line.
pub(crate) struct Stat {
    /// Its own name.
    pub name: String,
    /// As [`start_time`] has it.
    pub start: u64,
    /// Nobody may change the CPUs that it may run on (PF_NO_SETAFFINITY).
    pub bound: bool,
    /// It is the kernel's own (PF_KTHREAD): a program can give itself any name.
    pub kernel: bool,
}

const PF_KTHREAD: u64 = 0x0020_0000;
const PF_NO_SETAFFINITY: u64 = 0x0400_0000;

/// The line of thread `tid`; `None` as [`start_time`] has it.
pub(crate) fn stat(tid: u32) -> Option<Stat> {
    stat_in(Path::new(PROC), tid)
}

fn stat_in(proc: &Path, tid: u32) -> Option<Stat> {
    parse_stat(&read_limited(proc.join(format!("{tid}/stat")), 4096)?)
}

pub(crate) fn parse_stat(stat: &str) -> Option<Stat> {
    // The command name may hold anything, also spaces and parentheses: fields count from the last ')'.
    let (before, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let start = fields.nth(12)?.parse().ok()?;
    let is = |flag| flags & flag != 0;
    let name = before.split_once('(')?.1.to_owned();
    Some(Stat { name, start, bound: is(PF_NO_SETAFFINITY), kernel: is(PF_KTHREAD) })
}

/// Now, in clock ticks since boot, as [`start_time`] has it.
pub(crate) fn ticks() -> u64 {
    let hertz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100).max(1);
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    let now = now.unwrap_or_default();
    (now.as_nanos() * hertz.unsigned_abs() as u128 / 1_000_000_000) as u64
}

/// Id of the process that thread `tid` belongs to.
pub(crate) fn leader(tid: u32) -> Option<u32> {
    let status = read_limited(format!("{PROC}/{tid}/status"), 4096)?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Parent of process `pid`.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = read_limited(format!("{PROC}/{pid}/stat"), 4096)?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// What Node.js calls its first thread.
const MAIN_THREAD: &str = "MainThread";

/// Command name of process `pid`, printable characters only, at most 15; `None` if there is none. Where the process has given its first
/// thread a name that tells nothing, that of its program.
pub fn name(pid: u32) -> Option<String> {
    name_in(Path::new(PROC), pid)
}

pub(crate) fn name_in(proc: &Path, pid: u32) -> Option<String> {
    let mut text = read_limited(proc.join(format!("{pid}/comm")), 64)?;
    if text.trim_end() == MAIN_THREAD
        && let Ok(program) = std::fs::read_link(proc.join(format!("{pid}/exe")))
        && let Some(program) = program.file_name()
    {
        // One that was replaced since it was started is called so, too.
        let program = program.to_string_lossy();
        text = program.strip_suffix(" (deleted)").unwrap_or(&program).to_owned();
    }
    let clean: String = text.trim_end_matches('\n').chars().filter(|c| !deceives(*c)).take(15).collect();
    (!clean.is_empty()).then_some(clean)
}

fn read_limited(path: impl AsRef<Path>, limit: u64) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// One UDP socket of the caller's network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UdpSocket {
    /// Address it is bound to.
    pub local: SocketAddr,
    /// Peer it is connected to; `None` if it is not.
    pub remote: Option<SocketAddr>,
    /// Memory of the datagrams that wait in it, bytes (with overhead, as against `SO_RCVBUF`).
    pub rx_queue: u64,
    /// Datagrams it has lost since it was made.
    pub drops: u64,
    /// Inode, which also stands in the descriptors of its owner.
    pub inode: u64,
    /// User id of its owner.
    pub uid: u32,
    /// Index of the interface that it is bound to; 0: none, or the list does not tell.
    pub interface: u32,
}

/// A queue to a packet filter in user space (NFQUEUE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FilterQueue {
    /// Its number.
    pub queue: u16,
    /// Netlink port of the program that reads it; mostly its process id.
    pub port: u32,
    /// Packets that wait for a verdict.
    pub waiting: u64,
    /// Packets dropped because the queue was full.
    pub queue_full: u64,
    /// Packets dropped because the program's socket was full.
    pub socket_full: u64,
    /// Packets that got an id: all but those of `queue_full`.
    pub ids: u64,
}

/// Queues to packet filters of the caller's network namespace; none if the kernel has no NFQUEUE.
pub fn filter_queues() -> Vec<FilterQueue> {
    let path = "/proc/thread-self/net/netfilter/nfnetlink_queue";
    parse_filters(&read_limited(path, 65_536).unwrap_or_default())
}

pub(crate) fn parse_filters(text: &str) -> Vec<FilterQueue> {
    text.lines().filter_map(parse_filter).collect()
}

pub(crate) fn parse_filter(line: &str) -> Option<FilterQueue> {
    let fields: Vec<u64> = line.split_ascii_whitespace().map_while(|f| f.parse().ok()).collect();
    // Number, port, waiting, copy mode, copy range, queue full, socket full, last id.
    let [queue, port, waiting, _, _, queue_full, socket_full, ids, ..] = fields[..] else { return None };
    let (queue, port) = (u16::try_from(queue).ok()?, u32::try_from(port).ok()?);
    Some(FilterQueue { queue, port, waiting, queue_full, socket_full, ids })
}

/// A packet socket (`AF_PACKET`) of the caller's network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PacketSocket {
    /// Ethernet type of the frames that it sees, 3 for every frame, 0 for none.
    pub protocol: u16,
    /// Index of its interface; 0: all.
    pub ifindex: u32,
}

/// Packet sockets, at most those of the first 64 KiB of the kernel's list; none if there is no list.
pub fn packet_sockets() -> Vec<PacketSocket> {
    let path = "/proc/thread-self/net/packet";
    read_limited(path, 65_536).unwrap_or_default().lines().filter_map(parse_packet).collect()
}

pub(crate) fn parse_packet(line: &str) -> Option<PacketSocket> {
    // Address, references, type, protocol in hex, interface.
    let mut fields = line.split_ascii_whitespace().skip(3);
    let protocol = u16::from_str_radix(fields.next()?, 16).ok()?;
    Some(PacketSocket { protocol, ifindex: fields.next()?.parse().ok()? })
}

/// UDP sockets of the caller's network namespace, IPv4 then IPv6; with `port` only those bound to it.
pub fn udp_sockets(port: Option<u16>) -> Result<Vec<UdpSocket>> {
    udp_sockets_of(Path::new(PROC), "thread-self", port, MAX_SOCKETS)
}

/// The same of the network namespace of process `of` in `proc`, at most `most` of them.
pub(crate) fn udp_sockets_of(
    proc: &Path,
    of: &str,
    port: Option<u16>,
    most: usize,
) -> Result<Vec<UdpSocket>> {
    let mut all = Vec::new();
    for file in ["udp", "udp6"] {
        let path = format!("{}/{of}/net/{file}", proc.display());
        let lines = match File::open(&path) {
            Ok(f) => BufReader::new(f).lines(),
            // A kernel without IPv6.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && file == "udp6" => continue,
            Err(e) => return Err(Error::io(path, e)),
        };
        for line in lines.skip(1) {
            let line = line.map_err(|e| Error::io(&path, e))?;
            let Some(socket) = parse_udp(&line) else { continue };
            if port.is_none_or(|p| socket.local.port() == p) && all.len() < most {
                all.push(socket);
            }
            if port.is_none() && all.len() >= most {
                return Ok(all);
            }
        }
    }
    Ok(all)
}

/// Name of the loopback interface.
pub const LOOPBACK: &str = "lo";

/// Bytes that each interface of the caller's network namespace has received. Takes some 2 us for each of them, more with many CPUs.
///
/// # Errors
/// If the kernel's counters cannot be read.
pub fn received() -> Result<BTreeMap<String, u64>> {
    let path = "/proc/thread-self/net/dev";
    Ok(received_in(&std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?))
}

fn received_in(text: &str) -> BTreeMap<String, u64> {
    let one = |line: &str| {
        // A name may hold a colon, as an alias has.
        let (name, counts) = line.rsplit_once(':')?;
        Some((name.trim().to_owned(), counts.split_ascii_whitespace().next()?.parse().ok()?))
    };
    text.lines().filter_map(one).collect()
}

/// What the IP layer of the caller's network namespace has counted, of both families. Takes some 100 us.
///
/// # Errors
/// If the kernel's counters cannot be read.
pub fn ip_counts() -> Result<Ip> {
    let read = |file: &str| {
        let path = format!("/proc/thread-self/net/{file}");
        std::fs::read_to_string(&path).map_err(|e| Error::io(path, e))
    };
    // Kernels without IPv6 have no snmp6.
    Ok(ip_of(&read("snmp")?, &read("netstat")?, &read("snmp6").unwrap_or_default()))
}

fn ip_of(snmp: &str, netstat: &str, snmp6: &str) -> Ip {
    let (snmp, netstat) = (snmp_lines(snmp, &mut 0), snmp_lines(netstat, &mut 0));
    let of4 = |name: &str| snmp.get(name).or_else(|| netstat.get(name)).copied().unwrap_or(0);
    let of6 = |name: &str| {
        let value = |line: &str| line.strip_prefix(name)?.trim().parse::<u64>().ok();
        snmp6.lines().find_map(value).unwrap_or(0)
    };
    let sum = |all: &[u64]| all.iter().fold(0u64, |sum, n| sum.wrapping_add(*n));
    let taken = sum(&[of4("Ip.InReceives"), of6("Ip6InReceives ")]);
    // By their congestion bits the kernel counts segments, also those that came inside of one packet.
    let segments4 = ["NoECT", "ECT1", "ECT0", "CE"].map(|bits| of4(&format!("IpExt.In{bits}Pkts")));
    let segments6 = ["NoECT", "ECT1", "ECT0", "CE"].map(|bits| of6(&format!("Ip6In{bits}Pkts ")));
    Ip {
        kept: taken.wrapping_sub(sum(&[of4("Ip.ForwDatagrams"), of6("Ip6OutForwDatagrams ")])),
        merged: sum(&segments4).wrapping_add(sum(&segments6)).wrapping_sub(taken),
        // Of both families.
        tcp: of4("Tcp.InSegs").wrapping_sub(sum(&[of4("Tcp.InErrs"), of4("Tcp.OutRsts")])),
        nobody: sum(&[of4("Udp.NoPorts"), of6("Udp6NoPorts "), of4("Tcp.OutRsts")]),
        elsewhere: 0,
    }
}

/// Ports that UDP sockets of the caller's network namespace have, or TCP sockets, one by one and in any order: `take(tcp, port)`. Raw
/// sockets of a protocol see all its packets: `None` stands for all its ports, of either protocol. Takes less than 1 us per socket;
/// of TCP also some milliseconds for the kernel's table of connections, however empty, in which nothing else runs on the CPU.
///
/// # Errors
/// If a list cannot be read.
pub fn ports_in_use(tcp: bool, mut take: impl FnMut(bool, Option<u16>)) -> Result<()> {
    const TCP: u16 = 6;
    const UDP: u16 = 17;
    let [own, own6] = match tcp {
        true => ["tcp", "tcp6"],
        false if crate::raw::udp_ports(|port| take(false, Some(port))).is_ok() => ["", ""],
        false => ["udp", "udp6"],
    };
    for file in [own, own6, "raw", "raw6"].into_iter().filter(|file| !file.is_empty()) {
        local_ports(file, |port| match (file.trim_end_matches('6'), port) {
            ("raw", TCP | UDP) => take(port == TCP, None),
            ("raw", _) => {}
            (_, port) => take(tcp, Some(port)),
        })?;
    }
    Ok(())
}

/// IP protocols of which raw sockets of the caller's network namespace see all packets.
///
/// # Errors
/// If a list cannot be read.
pub fn raw_protocols() -> Result<BTreeSet<u8>> {
    let mut found = BTreeSet::new();
    for file in ["raw", "raw6"] {
        local_ports(file, |protocol| found.extend(u8::try_from(protocol)))?;
    }
    Ok(found)
}

/// Local ports in a list of sockets; of raw ones their protocol, which stands in that place.
fn local_ports(file: &str, mut take: impl FnMut(u16)) -> Result<()> {
    let path = format!("/proc/thread-self/net/{file}");
    let mut lines = match File::open(&path) {
        Ok(f) => BufReader::new(f),
        // A kernel without IPv6.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && file.ends_with('6') => return Ok(()),
        Err(e) => return Err(Error::io(path, e)),
    };
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line).map_err(|e| Error::io(&path, e))? == 0 {
            return Ok(());
        }
        let local = line.split_ascii_whitespace().nth(1).and_then(|l| l.rsplit_once(':'));
        local.and_then(|(_, port)| u16::from_str_radix(port, 16).ok()).into_iter().for_each(&mut take);
    }
}

pub(crate) fn parse_udp(line: &str) -> Option<UdpSocket> {
    // sl local remote st tx:rx tr:when retransmits uid timeout inode ref pointer drops
    let f: Vec<&str> = line.split_ascii_whitespace().collect();
    let remote = parse_address(f.get(2)?)?;
    Some(UdpSocket {
        local: parse_address(f.get(1)?)?,
        remote: (remote.port() != 0).then_some(remote),
        rx_queue: u64::from_str_radix(f.get(4)?.split_once(':')?.1, 16).ok()?,
        uid: f.get(7)?.parse().ok()?,
        inode: f.get(9)?.parse().ok()?,
        drops: f.get(12)?.parse().ok()?,
        interface: 0,
    })
}

fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // The address is written as 32-bit words in the machine's byte order.
    let word = |i: usize| Some(u32::from_str_radix(ip.get(i * 8..i * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut bytes = [0u8; 16];
            for (i, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(i)?);
            }
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// A process that holds a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Process id, as seen from here.
    pub pid: u32,
    /// Command name.
    pub name: String,
}

/// Ids of the processes in `proc`, the lowest first.
pub(crate) fn pids_in(proc: &Path) -> Vec<u32> {
    let dir = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = dir.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Inodes of the sockets among the first [`MAX_FDS`] descriptors of process `pid` in `proc`; none if it may not be
/// looked at. Cost: one readlink per descriptor.
pub(crate) fn sockets_in(proc: &Path, pid: u32) -> impl Iterator<Item = u64> {
    let fds = fs::read_dir(proc.join(format!("{pid}/fd"))).into_iter().flatten().flatten().take(MAX_FDS);
    fds.filter_map(|fd| socket_inode(fs::read_link(fd.path()).ok()?.to_str()?))
}

fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Receive counters of one CPU (`softnet_stat`), since boot, over all namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Softnet {
    /// The CPU.
    pub cpu: u32,
    /// Packets handed to the stack.
    pub processed: u32,
    /// Packets lost because the CPU's backlog was full.
    pub dropped: u32,
    /// Softirq runs that ended with work left.
    pub time_squeeze: u32,
    /// Packets that wait in the CPU's backlog now; `None` before 5.10.
    pub backlog: Option<u32>,
}

pub(crate) fn parse_softnet(row: usize, line: &str) -> Option<Softnet> {
    let columns: Vec<u32> = line
        .split_ascii_whitespace()
        .map(|c| u32::from_str_radix(c, 16))
        .collect::<std::result::Result<_, _>>()
        .ok()?;
    Some(Softnet {
        // Rows are of online CPUs only; the number stands in column 12 since 5.10.
        cpu: columns.get(12).copied().unwrap_or(u32::try_from(row).ok()?),
        processed: *columns.first()?,
        dropped: *columns.get(1)?,
        time_squeeze: *columns.get(2)?,
        backlog: columns.get(11).copied(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket as StdSocket;
    use std::time::{Duration, Instant};

    #[test]
    fn a_program_is_named_where_its_first_thread_tells_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for (pid, comm, exe) in [
            ("7", "MainThread", "/opt/node"),
            ("8", "MainThread", "/opt/node (deleted)"),
            ("9", "knotd", "/sbin/x"),
            ("11", "\u{202e}dh\u{2066}ss", "/sbin/x"),
        ] {
            std::fs::create_dir(dir.path().join(pid)).unwrap();
            std::fs::write(dir.path().join(pid).join("comm"), format!("{comm}\n")).unwrap();
            std::os::unix::fs::symlink(exe, dir.path().join(pid).join("exe")).unwrap();
        }
        let names = [7, 8, 9, 10, 11].map(|pid| name_in(dir.path(), pid));
        assert_eq!(
            names,
            [Some("node".into()), Some("node".into()), Some("knotd".into()), None, Some("dhss".into())]
        );
    }

    #[test]
    fn ip_counts_are_of_both_families() {
        let snmp = "Ip: Forwarding InReceives ForwDatagrams InDelivers\nIp: 1 100 30 20\nTcp: InSegs InErrs OutRsts\nTcp: 20 1 2\nUdp: NoPorts\nUdp: 7\n";
        let netstat = "IpExt: InOctets InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts\nIpExt: 9 400 0 50 1\n";
        let snmp6 = "Ip6InReceives                   \t9\nIp6OutForwDatagrams            \t4\nIp6InNoECTPkts  \t29\nUdp6NoPorts  \t1\n";
        let counts = ip_of(snmp, netstat, snmp6);
        assert_eq!(counts, Ip { kept: 75, merged: 451 + 29 - 109, tcp: 17, nobody: 10, elsewhere: 0 });
        let dev = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n    lo:     216       3    0\n  eth0.5: 9 1 2\n";
        assert_eq!(received_in(dev), [("lo".to_owned(), 216), ("eth0.5".to_owned(), 9)].into());
        assert_eq!(ip_of("", "", ""), Ip::default());
    }

    #[test]
    fn filter_queues_are_parsed() {
        let text = "    7  31621   200 2   128     5     7    90000  1\nnonsense\n99999 1 2 3 4 5 6 7 1\n";
        let want =
            FilterQueue { queue: 7, port: 31621, waiting: 200, queue_full: 5, socket_full: 7, ids: 90000 };
        assert_eq!(parse_filters(text), [want]);
    }

    #[test]
    fn packet_sockets_are_parsed() {
        let line = "ffff8880 3      3    0003   7     1 0      0      81234";
        assert_eq!(parse_packet(line), Some(PacketSocket { protocol: 3, ifindex: 7 }));
        let head = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode";
        assert_eq!(parse_packet(head), None);
        assert_eq!(parse_packet("1 2 3"), None);
    }

    #[test]
    fn start_times() {
        let me = std::process::id();
        let first = start_time(me).unwrap();
        assert!(first > 0);
        assert_eq!(start_time(me), Some(first));
        assert_eq!(start_time(u32::MAX), None);
        let tail = "S 1 1 1 0 -1 4194624 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let told = |text: &str| parse_stat(text).map(|stat| (stat.name, stat.start, stat.bound));
        assert!(
            parse_stat("32 (napi/eth0-8193) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 44")
                .unwrap()
                .kernel
        );
        // A program by that name, and one whose name would end it.
        for program in ["napi/eth0-8193", "a) S 2 0 0 0 -1 2129984 0"] {
            let line = format!("33 ({program}) S 1 33 33 0 -1 4227072 0 0 0 0 0 0 0 0 20 0 1 0 44");
            assert!(!parse_stat(&line).unwrap().kernel, "{program}");
        }
        assert_eq!(told(&format!("12 (a) b (c)) {tail}")), Some(("a) b (c)".into(), 4711, false)));
        let bound = tail.replace("4194624", "69238880");
        assert_eq!(told(&format!("12 (kworker/0:1) {bound}")), Some(("kworker/0:1".into(), 4711, true)));
        assert_eq!(told(&format!("12 (a) {}", tail.replace('S', "Z"))), None);
        assert_eq!(told("12 (a"), None);
        assert_eq!(told("12 (a) S 1"), None);
    }

    #[test]
    fn a_zombie_has_no_start_time() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(start_time(child.id()).is_some());
        child.kill().unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while start_time(child.id()).is_some() {
            assert!(Instant::now() < until, "still there");
        }
        child.wait().unwrap();
    }

    #[test]
    fn own_udp_socket_is_found() {
        let socket = StdSocket::bind("127.0.0.1:0").unwrap();
        let local = socket.local_addr().unwrap();
        let found = udp_sockets(Some(local.port())).unwrap();
        let one = found.iter().find(|s| s.local == local).unwrap();
        assert_eq!(one.remote, None);
        let mut holders = crate::holders::Holders::default();
        holders.find(&[one.inode], || 0.0);
        assert_eq!(holders.found()[&one.inode].pid, std::process::id());
    }

    #[test]
    fn udp_lines() {
        let line = "  12: 0100007F:0035 00000000:0000 07 00000000:00003400 00:00000000 00000000  101        0 4711 2 \
                    0000000000000000 99";
        let s = parse_udp(line).unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(s.local, "127.0.0.1:53".parse().unwrap());
        }
        assert_eq!((s.rx_queue, s.uid, s.inode, s.drops), (0x3400, 101, 4711, 99));
        let v6 = parse_address("00000000000000000000000001000000:0035").unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(v6, "[::1]:53".parse().unwrap());
        }
        for bad in ["", "x", "1: 0100007F:0035", "0100007\u{e9}:0035 a b c d"] {
            assert!(parse_udp(bad).is_none(), "{bad}");
        }
        assert!(parse_address("0100\u{e9}07:0035").is_none());
    }

    #[test]
    fn softnet_rows() {
        let line = "0000000a 00000001 00000002 0 0 0 0 0 0 0 0 00000003 00000005";
        let row = parse_softnet(0, line).unwrap();
        assert_eq!(row, Softnet { cpu: 5, processed: 10, dropped: 1, time_squeeze: 2, backlog: Some(3) });
        assert!(parse_softnet(0, "zz").is_none());
    }
}
