//! Healthy workloads: `weir explain` finds nothing wrong with them.

use crate::common::faults::{Host, raw_socket};
use crate::common::{alone, ms, possible};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Runs `work` if this machine can, and asserts that its host is found healthy.
fn healthy<T>(name: &str, work: impl FnOnce(&Host) -> T) {
    if !possible(name) {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    let _running = work(&host);
    host.finds_nothing();
}

#[test]
fn idle_root() {
    healthy("idle_root", |_| ());
}

/// Requests for the address of somebody else: IP never sees them, and the ledger has them all the same.
#[test]
fn arp_root() {
    healthy("arp_root", |host| {
        let mut frame = [0; 42];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        // ARP: Ethernet, IPv4, a request.
        frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame[22..28].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame[28..32].copy_from_slice(&host.wire_address().octets());
        frame[38..42].copy_from_slice(&[198, 19, 7, 7]);
        let far = host.far.clone();
        let raw = host.wire.run(move || raw_socket(&far));
        let arp = host.repeat(500, 5, move || {
            nix::unistd::write(&raw, &frame).unwrap();
        });
        (host.sink(host.port, ""), host.send(host.port, 1_000, 5), arp)
    });
}

/// Frames for somebody else's address, which a promiscuous interface receives and IP does not.
#[test]
fn promiscuous_root() {
    healthy("promiscuous_root", |host| {
        host.sh(&format!("ip link set {} promisc on", host.name));
        let other = std::net::Ipv4Addr::from(u32::from(host.address()) + 8).to_string();
        host.wire.sh("ip", &["neigh", "replace", &other, "lladdr", "02:00:00:00:00:77", "dev", &host.far]);
        let to = SocketAddrV4::new(other.parse().unwrap(), host.port);
        (host.sink(host.port, ""), host.send(host.port, 1_000, 5), host.send_to(to, 2_000, 5))
    });
}

#[test]
fn steady_datagrams_root() {
    healthy("steady_datagrams_root", |host| (host.sink(host.port, ""), host.send(host.port, 5_000, 5)));
}

#[test]
fn bursts_that_the_buffer_holds_root() {
    healthy("bursts_that_the_buffer_holds_root", |host| {
        (host.sink(host.port, ""), host.send(host.port, 2_000, 50))
    });
}

#[test]
fn two_programs_root() {
    healthy("two_programs_root", |host| {
        let programs = (host.sink(host.port, "--work-ns 5000"), host.sink(host.other, ""));
        (programs, host.send(host.port, 3_000, 10), host.send(host.other, 3_000, 10))
    });
}

#[test]
fn niced_program_with_time_enough_root() {
    healthy("niced_program_with_time_enough_root", |host| {
        let sink = host.sink(host.port, "");
        host.sh(&format!("renice -n 19 -p {}", sink.pid()));
        (sink, host.send(host.port, 2_000, 5))
    });
}

#[test]
fn hog_beside_a_program_with_time_enough_root() {
    healthy("hog_beside_a_program_with_time_enough_root", |host| {
        let hog = lab::locate("hog", None).unwrap();
        let hog = host.program(&hog.display().to_string(), None);
        (hog, host.sink(host.port, ""), host.send(host.port, 1_000, 2))
    });
}

#[test]
fn bulk_tcp_root() {
    healthy("bulk_tcp_root", |host| {
        let (address, port) = (host.address(), host.port);
        let listener = host.host.run(move || TcpListener::bind((address, port))).unwrap();
        std::thread::spawn(move || {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut buffer = vec![0; 65_536];
            while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
        });
        let mut stream = host.wire.run(move || TcpStream::connect((address, port))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        let data = vec![0; 16_384];
        host.repeat(2_000, 1, move || _ = stream.write_all(&data))
    });
}

#[test]
fn short_connections_root() {
    healthy("short_connections_root", |host| {
        let (address, port) = (host.address(), host.port);
        let listener = host.host.run(move || TcpListener::bind((address, port))).unwrap();
        std::thread::spawn(move || {
            let begin = Instant::now();
            for stream in listener.incoming() {
                drop(stream);
                if begin.elapsed() > Duration::from_secs(20) {
                    return;
                }
            }
        });
        let wire = std::fs::File::open(host.wire.path()).unwrap();
        let mut inside = false;
        host.repeat(100, 1, move || {
            if !inside {
                nix::sched::setns(&wire, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                inside = true;
            }
            let to = SocketAddrV4::new(address, port).into();
            _ = TcpStream::connect_timeout(&to, Duration::from_secs(1));
        })
    });
}

#[test]
fn router_root() {
    healthy("router_root", |host| {
        host.sh("sysctl -qw net.ipv4.ip_forward=1");
        let via = host.address().to_string();
        host.wire.sh("ip", &["route", "add", "198.19.0.0/16", "via", &via]);
        host.sh(&format!("ip route add 198.19.0.0/16 via {}", host.wire_address()));
        host.send_to("198.19.3.4:5000".parse().unwrap(), 3_000, 5)
    });
}

#[test]
fn program_that_talks_to_itself_root() {
    healthy("program_that_talks_to_itself_root", |host| {
        let sink = host.sink(host.port, "");
        let socket = host.host.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap();
        let to = SocketAddrV4::new(host.address(), host.port);
        (sink, host.repeat(3_000, 5, move || _ = socket.send_to(&[0; 100], to)))
    });
}

#[test]
fn multicast_that_nobody_joined_root() {
    healthy("multicast_that_nobody_joined_root", |host| {
        host.wire.sh("ip", &["route", "add", "224.0.0.0/4", "dev", &host.far]);
        host.send_to("224.0.0.251:5353".parse().unwrap(), 10, 1)
    });
}

#[test]
fn a_few_datagrams_to_a_closed_port_root() {
    healthy("a_few_datagrams_to_a_closed_port_root", |host| {
        (host.sink(host.port, ""), host.send(host.port, 2_000, 5), host.send(host.other, 10, 1))
    });
}

#[test]
fn burst_that_ended_before_root() {
    healthy("burst_that_ended_before_root", |host| {
        let sink = host.sink(host.port, "--rcvbuf 4096");
        let load = host.send(host.port, 20_000, 200);
        std::thread::sleep(ms(200));
        drop(load);
        sink
    });
}
