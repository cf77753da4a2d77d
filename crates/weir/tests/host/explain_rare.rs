//! More planted faults for `weir explain`: sockets that refuse, somebody's XDP program, outputs that do not take what is
//! sent, queues that are too short, connections whose window is the limit. As in explain.rs, names, ports and
//! addresses are drawn anew each time, and nothing depends on how fast the machine is.

use crate::common::delay::{self, Line};
use crate::common::faults::{Host, inherit, rules};
use crate::common::{alone, foreign, ms, possible};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrIn, bind, connect, listen, sendto,
    setsockopt, socket, sockopt,
};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Runs `fault` if this machine can.
fn fault(name: &str, fault: impl FnOnce(&Host)) {
    if possible(name) {
        let _alone = alone();
        fault(&Host::new());
    }
}

fn have(name: &str, program: &str, package: &str) -> bool {
    let have = std::process::Command::new(program).arg("--version").output().is_ok();
    if !have {
        eprintln!("skipped: {name} needs {program}: apt-get install {package}");
    }
    have
}

#[test]
fn way_back_through_another_interface_root() {
    fault("way_back_through_another_interface_root", |host| {
        host.connect("back", "there", 250);
        host.sh(&format!("ip route add {}/32 dev back", host.wire_address()));
        host.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1");
        let _sink = host.sink(host.port, "");
        let _load = host.send(host.port, 5_000, 10);
        let Some(report) = host.finds("reverse-path") else { return };
        assert_eq!(rules(&report), ["reverse-path"], "{report:#}");
    });
}

#[test]
fn socket_that_refuses_root() {
    fault("socket_that_refuses_root", |host| {
        let socket = host.socket(host.port);
        // ret 0: every datagram is refused.
        let mut refuse = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut refuse };
        // SAFETY: the program and the instruction that it points to live through the call, and its size is passed.
        let rc = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as u32,
            )
        };
        assert_eq!(rc, 0);
        let _program = host.program("sleep 60", Some(inherit(socket)));
        let _load = host.send(host.port, 5_000, 10);
        let Some(report) = host.finds("refused") else { return };
        assert_eq!(rules(&report), ["refused"], "its queue was never full: {report:#}");
    });
}

#[test]
fn protocol_that_nobody_knows_root() {
    fault("protocol_that_nobody_knows_root", |host| {
        let raw = || {
            // SAFETY: a plain system call; 253 is for experiments (RFC 3692).
            let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 253) };
            assert!(fd >= 0);
            // SAFETY: the kernel has just made it.
            unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) }
        };
        let raw = host.wire.run(raw);
        let to = SockaddrIn::from(SocketAddrV4::new(host.address(), 0));
        let _load = host.repeat(2_000, 10, move || {
            let _ = sendto(raw.as_raw_fd(), &[0; 100], &to, nix::sys::socket::MsgFlags::empty());
        });
        host.finds("refused");
    });
}

#[test]
fn xdp_program_of_somebody_root() {
    fault("xdp_program_of_somebody_root", |host| {
        let _sink = host.sink(host.port, "");
        let name = host.name.clone();
        let _drops = host.host.run(move || foreign::xdp_drop(&name));
        let _load = host.send(host.port, 5_000, 10);
        let Some(report) = host.finds("xdp") else { return };
        let change = report["findings"][0]["change"].to_string();
        assert!(change.contains(&format!("ip -details link show {}", host.name)), "{change}");
    });
}

#[test]
fn output_that_does_not_take_root() {
    fault("output_that_does_not_take_root", |host| {
        host.sh("sysctl -qw net.ipv4.ip_forward=1");
        let via = host.address().to_string();
        host.wire.sh("ip", &["route", "add", "198.19.0.0/16", "via", &via]);
        host.sh(&format!("ip route add 198.19.0.0/16 via {}", host.wire_address()));
        // The other end takes packets from its ring of 256 only every 20 ms.
        host.wire.sh("ethtool", &["-K", &host.far, "gro", "on"]);
        // Else packets go round that ring.
        host.sh(&format!("ethtool -K {} tso off gso off", host.name));
        for (attribute, value) in [("napi_defer_hard_irqs", i32::MAX), ("gro_flush_timeout", 20_000_000)] {
            let write = format!("echo {value} > /sys/class/net/{}/{attribute}", host.far);
            // Has the namespace's own /sys.
            host.wire.sh("ip", &["netns", "exec", host.wire.name(), "sh", "-c", &write]);
        }
        let _load = host.send_to("198.19.3.4:5000".parse().unwrap(), 20_000, 1_000);
        host.finds("output-full");
    });
}

/// Whether the kernel counts what IP sends (6.6): else nothing tells a packet that was forwarded from one that was to be.
fn counts_sent(name: &str) -> bool {
    let told = std::fs::read_to_string("/proc/net/snmp").unwrap().contains("OutTransmits");
    if !told {
        eprintln!("skipped: {name} needs a kernel that counts OutTransmits");
    }
    told
}

/// Makes the host a router between the wire and a second link, which has networks 198.19.0.0/16 and fd19::/64 behind it.
fn router(host: &Host) {
    host.connect("out", "beyond", 250);
    host.sh("sysctl -qw net.ipv4.ip_forward=1");
    host.sh("sysctl -qw net.ipv6.conf.all.forwarding=1");
    let via = host.address().to_string();
    host.wire.sh("ip", &["route", "add", "198.19.0.0/16", "via", &via]);
    host.sh("ip route add 198.19.0.0/16 via 198.18.250.2");
    host.sh(&format!("ip address add fd18::1/64 dev {} nodad", host.name));
    host.sh("ip address add fd19::1/64 dev out nodad");
    host.sh("ip neigh replace fd19::7 lladdr 02:00:00:00:00:77 dev out");
    host.wire.sh("ip", &["address", "add", "fd18::2/64", "dev", &host.far, "nodad"]);
    host.wire.sh("ip", &["route", "add", "fd19::/64", "via", "fd18::1"]);
}

/// Sends datagrams of 1400 bytes, which nobody may split, as long as their first link takes them.
fn send_whole(host: &Host, to: std::net::SocketAddr) -> crate::common::faults::Sender {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = host.wire.run(|| std::net::UdpSocket::bind(any)).unwrap();
    let (level, name) = match to.is_ipv4() {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    };
    let probe: libc::c_int = libc::IP_PMTUDISC_PROBE;
    // SAFETY: the number lives through the call, and its size is passed.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const probe).cast(),
            size_of_val(&probe) as u32,
        )
    };
    assert_eq!(rc, 0);
    host.repeat(2_000, 10, move || _ = socket.send_to(&[0; 1400], to))
}

const BEHIND: [&str; 2] = ["198.19.3.4:5000", "[fd19::7]:5000"];

#[test]
fn firewall_that_forwards_nothing_root() {
    const NAME: &str = "firewall_that_forwards_nothing_root";
    if !have(NAME, "nft", "nftables") || !counts_sent(NAME) {
        return;
    }
    fault(NAME, |host| {
        router(host);
        host.sh("nft add table inet t");
        host.sh("nft add chain inet t c { type filter hook forward priority 0 ; }");
        host.sh("nft add rule inet t c drop");
        for to in BEHIND {
            let _load = send_whole(host, to.parse().unwrap());
            let Some(report) = host.finds("firewall") else { return };
            assert!(report["findings"][0]["title"].as_str().unwrap().contains("sent on"), "{report:#}");
        }
    });
}

#[test]
fn link_that_takes_shorter_packets_root() {
    fault("link_that_takes_shorter_packets_root", |host| {
        router(host);
        host.sh("ip link set out mtu 1280");
        for to in BEHIND {
            let _load = send_whole(host, to.parse().unwrap());
            host.finds("too-big");
        }
    });
}

#[test]
fn frames_longer_than_the_mtu_root() {
    fault("frames_longer_than_the_mtu_root", |host| {
        host.sh(&format!("ip link set {} mtu 1000", host.name));
        let to = SocketAddrV4::new(host.address(), host.port);
        let _load = send_whole(host, to.into());
        let Some(report) = host.finds("oversize") else { return };
        assert_eq!(rules(&report), ["oversize"], "{report:#}");
    });
}

#[test]
fn fragments_that_never_become_whole_root() {
    fault("fragments_that_never_become_whole_root", |host| {
        host.sh("sysctl -qw net.ipv4.ipfrag_time=1");
        // SAFETY: a plain system call; the kernel has just made what it returns.
        let raw = host.wire.run(|| unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW);
            assert!(fd >= 0);
            <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd)
        });
        let to = SockaddrIn::from(SocketAddrV4::new(host.address(), 0));
        // IPv4, more fragments follow, UDP; the kernel fills in length and checksum.
        let mut packet = [0; 20 + 800];
        (packet[0], packet[6], packet[8], packet[9]) = (0x45, 0x20, 64, 17);
        packet[12..16].copy_from_slice(&host.wire_address().octets());
        packet[16..20].copy_from_slice(&host.address().octets());
        let mut id = 0u16;
        let _load = host.repeat(300, 3, move || {
            id = id.wrapping_add(1).max(1);
            packet[4..6].copy_from_slice(&id.to_be_bytes());
            let _ = sendto(raw.as_raw_fd(), &packet, &to, nix::sys::socket::MsgFlags::empty());
        });
        let given_up = || {
            let text = host.sh("cat /proc/net/snmp");
            let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
            let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
            let mut both = names.split(' ').zip(numbers.split(' '));
            both.any(|(name, n)| name == "ReasmFails" && n != "0")
        };
        crate::common::within("the first ones are given up", ms(5000), given_up);
        host.finds("reassembly");
    });
}

#[test]
fn rule_below_ip_is_no_good_news_root() {
    const NAME: &str = "rule_below_ip_is_no_good_news_root";
    if !have(NAME, "nft", "nftables") {
        return;
    }
    fault(NAME, |host| {
        let _sink = host.sink(host.port, "");
        host.sh("nft add table netdev t");
        host.sh(&format!(
            "nft add chain netdev t c {{ type filter hook ingress device {} priority 0 ; }}",
            host.name
        ));
        host.sh(&format!("nft add rule netdev t c udp dport {} drop", host.port));
        let _load = host.send(host.port, 5_000, 10);
        let report = host.report();
        let (rest, offered) = (&report["unplaced"], report["offered"].as_u64().unwrap());
        assert!(rest["below_ip"].as_u64().unwrap() * 10 > offered * 9, "{report:#}");
        assert_eq!(rest["interfaces"][0], host.name, "{report:#}");
        assert_eq!(rules(&report), Vec::<String>::new(), "{report:#}");
    });
}

#[test]
fn filter_queue_that_is_short_root() {
    const NAME: &str = "filter_queue_that_is_short_root";
    if !have(NAME, "iptables", "iptables") {
        return;
    }
    fault(NAME, |host| {
        let _sink = host.sink(host.port, "");
        let screen = lab::locate("screen", None).unwrap();
        // It has the time for what it gets; bursts find its queue full.
        let _filter =
            host.program(&format!("{} --queue 3 --maxlen 64 --work-ns 100000", screen.display()), None);
        let queues = || kern::proc::filter_queues().len();
        crate::common::within("the filter has its queue", ms(2000), || host.host.run(queues) == 1);
        let what = format!("-p udp --dport {} -j NFQUEUE --queue-num 3", host.port);
        host.sh(&format!("iptables -w 5 -A INPUT {what}"));
        let _load = host.send(host.port, 20_000, 1_000);
        host.finds("filter-small");
    });
}

/// A listener of the host with an accept queue of 4.
fn listener(host: &Host) -> OwnedFd {
    let at = SockaddrIn::from(SocketAddrV4::new(host.address(), host.port));
    host.host.run(move || {
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), SockProtocol::Tcp).unwrap();
        bind(fd.as_raw_fd(), &at).unwrap();
        listen(&fd, Backlog::new(4).unwrap()).unwrap();
        fd
    })
}

/// Begins `burst` connections at once, `rate` a second, and gives them up.
fn connections(host: &Host, rate: u32, burst: u32) -> crate::common::faults::Sender {
    let (wire, to) =
        (std::fs::File::open(host.wire.path()).unwrap(), SocketAddrV4::new(host.address(), host.port));
    let mut inside = false;
    let mut open = Vec::new();
    host.repeat(rate, burst, move || {
        if !inside {
            nix::sched::setns(&wire, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            inside = true;
        }
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        let _ = connect(fd.as_raw_fd(), &SockaddrIn::from(to));
        // Those of the burst before are given up, answered or not.
        open.push(fd);
        if open.len() > 2 * burst as usize {
            open.drain(..burst as usize);
        }
    })
}

#[test]
fn program_that_accepts_slowly_root() {
    const NAME: &str = "program_that_accepts_slowly_root";
    if !have(NAME, "perl", "perl") {
        return;
    }
    fault(NAME, |host| {
        let accept = "while(accept(C,STDIN)){select(undef,undef,undef,0.1)}";
        let _program = host.program(&format!("perl -e {accept}"), Some(listener(host)));
        let _load = connections(host, 200, 10);
        host.finds("accept-idle");
    });
}

#[test]
fn accept_queue_that_is_short_root() {
    const NAME: &str = "accept_queue_that_is_short_root";
    if !have(NAME, "perl", "perl") {
        return;
    }
    fault(NAME, |host| {
        let fd = listener(host);
        nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        // It takes all that wait every 20 ms, and works for 6 ms of CPU time in between.
        let busy = "$e=clock()+0.006;1while(clock()<$e);";
        let accept = format!("while(1){{while(accept(C,STDIN)){{}}{busy}select(undef,undef,undef,0.014)}}");
        // Before all others: else it would have to wait for them.
        let _program = host.program(&format!("chrt -f 1 perl -MTime::HiRes=clock -e {accept}"), Some(fd));
        let _load = connections(host, 500, 50);
        host.finds("accept-small");
    });
}

/// A connection through a line that takes 40 ms each way: what the host reads, the wire sends.
fn long_way(host: &Host, buffer: Option<usize>) -> (Line, TcpStream) {
    let line = delay::line(&host.host, &host.wire, ms(40));
    let port = host.port;
    let listener = host.host.run(move || {
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), SockProtocol::Tcp).unwrap();
        if let Some(bytes) = buffer {
            setsockopt(&fd, sockopt::RcvBuf, &bytes).unwrap();
        }
        bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(delay::NEAR, port))).unwrap();
        listen(&fd, Backlog::new(4).unwrap()).unwrap();
        TcpListener::from(fd)
    });
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let mut data = vec![0; 65_536];
        while stream.read(&mut data).is_ok_and(|n| n > 0) {}
    });
    let stream = host.wire.run(move || TcpStream::connect((delay::NEAR, port))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    (line, stream)
}

#[test]
fn window_below_the_way_root() {
    fault("window_below_the_way_root", |host| {
        let (_line, mut stream) = long_way(host, Some(32_768));
        let data = vec![0; 16_384];
        // As much as it takes: a write waits for the window.
        let _load = host.repeat(5_000, 1, move || _ = stream.write_all(&data));
        // Some times there and back, until the sender fills the window.
        std::thread::sleep(ms(500));
        let Some(report) = host.finds("window") else { return };
        assert_eq!(rules(&report), ["window"], "{report:#}");
        let change = report["findings"][0]["change"].to_string();
        assert!(change.contains("has set SO_RCVBUF"), "{change}");
    });
}

#[test]
fn long_way_with_a_buffer_that_grows_root() {
    fault("long_way_with_a_buffer_that_grows_root", |host| {
        let (_line, mut stream) = long_way(host, None);
        let data = vec![0; 16_384];
        // 0.4 MB/s: 33 kB are on the way.
        let _load = host.repeat(25, 1, move || _ = stream.write_all(&data));
        host.finds_nothing();
    });
}
