//! Planted faults: `weir explain` names each of them as the first cause. It sees the host alone; names, ports and
//! addresses are drawn anew each time.

use crate::common::faults::{EXPLAIN, Host, explained, inherit, raw_socket, rules};
use crate::common::procs::signal;
use crate::common::world::{PORT, World};
use crate::common::{alone, ms, possible};
use nix::sys::signal::Signal;
use std::net::{SocketAddrV4, TcpListener};
use std::time::Duration;

/// Runs `fault` if this machine can.
fn fault(name: &str, fault: impl FnOnce(&Host)) {
    if possible(name) {
        let _alone = alone();
        fault(&Host::new());
    }
}

#[test]
fn small_receive_buffer_root() {
    fault("small_receive_buffer_root", |host| {
        // Slower than a burst comes, faster than all of them.
        let _sink = host.sink(host.port, "--rcvbuf 8192 --work-ns 10000");
        let _load = host.send(host.port, 10_000, 200);
        host.finds("buffer-small");
    });
}

#[test]
fn stopped_program_root() {
    fault("stopped_program_root", |host| {
        let sink = host.sink(host.port, "");
        signal(sink.pid(), Signal::SIGSTOP);
        let _load = host.send(host.port, 20_000, 20);
        let Some(report) = host.finds("stopped") else { return };
        let change = report["findings"][0]["change"][0].as_str().unwrap();
        assert_eq!(change, format!("sudo kill -CONT {}", sink.pid()));
    });
}

#[test]
fn sleeping_program_root() {
    fault("sleeping_program_root", |host| {
        let socket = host.socket(host.port);
        let _program = host.program("sleep 60", Some(inherit(socket)));
        let _load = host.send(host.port, 20_000, 20);
        host.finds("asleep");
    });
}

#[test]
fn niced_program_beside_a_hog_root() {
    fault("niced_program_beside_a_hog_root", |host| {
        let sink = host.sink(host.port, "--work-ns 20000");
        let _ = host.sh(&format!("renice -n 19 -p {}", sink.pid()));
        let hog = lab::locate("hog", None).unwrap();
        let _hog = host.program(&hog.display().to_string(), None);
        let _load = host.send(host.port, 20_000, 20);
        let Some(report) = host.finds("starved-by-priority") else { return };
        assert!(report["findings"][0]["title"].as_str().unwrap().contains("nice 19"), "{report:#}");
    });
}

#[test]
fn cpu_hogs_root() {
    fault("cpu_hogs_root", |host| {
        let _sink = host.sink(host.port, "--work-ns 20000");
        let hog = lab::locate("hog", None).unwrap();
        let _hogs: Vec<_> = (0..4).map(|_| host.program(&hog.display().to_string(), None)).collect();
        let _load = host.send(host.port, 30_000, 20);
        let Some(report) = host.finds("starved-by-priority") else { return };
        assert!(report["findings"][0]["title"].as_str().unwrap().contains("hog"), "{report:#}");
    });
}

#[test]
fn program_that_is_too_slow_root() {
    fault("program_that_is_too_slow_root", |host| {
        let _sink = host.sink(host.port, "--work-ns 100000");
        let _load = host.send(host.port, 20_000, 20);
        host.finds("program-full");
    });
}

#[test]
fn full_accept_queue_root() {
    fault("full_accept_queue_root", |host| {
        let (address, port) = (host.address(), host.port);
        let listener = host.host.run(move || TcpListener::bind((address, port))).unwrap();
        let _program = host.program("sleep 60", Some(inherit(listener)));
        let wire = host.wire.path().to_owned();
        let _load = host.repeat(400, 1, move || connect(&wire, SocketAddrV4::new(address, port)));
        host.finds("accept-idle");
    });
}

/// Begins a connection and gives it up at once.
fn connect(wire: &std::path::Path, to: SocketAddrV4) {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, socket};
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(wire).unwrap();
    nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    let _ = connect(fd.as_raw_fd(), &SockaddrIn::from(to));
    std::thread::sleep(ms(1));
}

#[test]
fn full_capture_root() {
    fault("full_capture_root", |host| {
        use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
        let open = || {
            let protocol = SockProtocol::EthAll;
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), protocol).unwrap()
        };
        let capture = host.host.run(open);
        let _program = host.program("sleep 60", Some(capture));
        let _sink = host.sink(host.port, "");
        let _load = host.send(host.port, 20_000, 20);
        let Some(report) = host.finds("asleep") else { return };
        assert!(report["findings"][0]["title"].as_str().unwrap().contains("sleep"), "{report:#}");
    });
}

fn have_nft(name: &str) -> bool {
    let have = std::process::Command::new("nft").arg("--version").output().is_ok();
    if !have {
        eprintln!("skipped: {name} needs nft: apt-get install nftables");
    }
    have
}

fn nft(host: &Host, lines: &[String]) {
    lines.iter().for_each(|line| _ = host.sh(&format!("nft {line}")));
}

fn input_rule(rule: &str) -> [String; 3] {
    [
        "add table ip t".into(),
        "add chain ip t c { type filter hook input priority 0 ; }".into(),
        format!("add rule ip t c {rule}"),
    ]
}

#[test]
fn firewall_root() {
    if !have_nft("firewall_root") {
        return;
    }
    fault("firewall_root", |host| {
        let _sink = host.sink(host.port, "");
        nft(host, &input_rule(&format!("udp dport {} drop", host.port)));
        let _load = host.send(host.port, 5_000, 10);
        host.finds("firewall");
    });
}

#[test]
fn packet_filter_that_is_stopped_root() {
    const NAME: &str = "packet_filter_that_is_stopped_root";
    if std::process::Command::new("iptables").arg("--version").output().is_err() {
        eprintln!("skipped: {NAME} needs iptables: apt-get install iptables");
        return;
    }
    fault(NAME, |host| {
        let _sink = host.sink(host.port, "");
        let screen = lab::locate("screen", None).unwrap();
        let filter = host.program(&format!("{} --queue 3", screen.display()), None);
        let queues = || kern::proc::filter_queues().len();
        crate::common::within("the filter has its queue", ms(2000), || host.host.run(queues) == 1);
        let what = format!("-p udp --dport {} -j NFQUEUE --queue-num 3", host.port);
        host.sh(&format!("iptables -w 5 -A INPUT {what}"));
        signal(filter.pid(), Signal::SIGSTOP);
        let _load = host.send(host.port, 20_000, 20);
        host.finds("stopped");
    });
}

#[test]
fn wrong_checksums_root() {
    fault("wrong_checksums_root", |host| {
        let _sink = host.sink(host.port, "");
        let mut udp = testkit::packet::Udp::new(
            SocketAddrV4::new(host.wire_address(), 4242),
            SocketAddrV4::new(host.address(), host.port),
        );
        udp.target_mac = [0xff; 6];
        udp.payload = vec![1; 40];
        let mut frame = udp.frame();
        frame[40] ^= 0x55;
        let far = host.far.clone();
        let raw = host.wire.run(move || raw_socket(&far));
        let _load = host.repeat(5_000, 10, move || {
            nix::unistd::write(&raw, &frame).unwrap();
        });
        host.finds("checksum");
    });
}

/// Makes the host a router, with a route on the wire to `198.19.0.0/16` through it.
fn router(host: &Host) {
    host.sh("sysctl -qw net.ipv4.ip_forward=1");
    let via = host.address().to_string();
    host.wire.sh("ip", &["route", "add", "198.19.0.0/16", "via", &via]);
}

#[test]
fn no_route_root() {
    fault("no_route_root", |host| {
        router(host);
        let _load = host.send_to("198.19.3.4:5000".parse().unwrap(), 5_000, 10);
        host.finds("route");
    });
}

#[test]
fn hops_used_up_root() {
    fault("hops_used_up_root", |host| {
        router(host);
        host.sh(&format!("ip route add 198.19.0.0/16 via {}", host.wire_address()));
        host.wire.sh("sysctl", &["-qw", "net.ipv4.ip_default_ttl=1"]);
        let _load = host.send_to("198.19.3.4:5000".parse().unwrap(), 2_000, 10);
        host.finds("header");
    });
}

#[test]
fn neighbour_that_does_not_answer_root() {
    fault("neighbour_that_does_not_answer_root", |host| {
        router(host);
        host.sh(&format!(
            "ip route add 198.19.0.0/16 via {}",
            std::net::Ipv4Addr::from(u32::from(host.wire_address()) + 7)
        ));
        let _load = host.send_to("198.19.3.4:5000".parse().unwrap(), 5_000, 10);
        host.finds("neighbour");
    });
}

#[test]
fn address_of_another_host_root() {
    fault("address_of_another_host_root", |host| {
        let via = host.address().to_string();
        host.wire.sh("ip", &["route", "add", "198.19.0.0/16", "via", &via]);
        host.sh(&format!("ip route add default via {}", host.wire_address()));
        let _load = host.send_to("198.19.3.4:5000".parse().unwrap(), 5_000, 10);
        host.finds("address");
    });
}

#[test]
fn nobody_listens_root() {
    fault("nobody_listens_root", |host| {
        let _load = host.send(host.port, 10_000, 20);
        host.finds("no-port");
    });
}

#[test]
fn queue_to_transmit_root() {
    fault("queue_to_transmit_root", |host| {
        router(host);
        host.sh(&format!("ip route add 198.19.0.0/16 via {}", host.wire_address()));
        host.sh(&format!("tc qdisc add dev {} root tbf rate 1mbit burst 2000 limit 4000", host.name));
        let _load = host.send_to("198.19.3.4:5000".parse().unwrap(), 5_000, 10);
        host.finds("queue-full");
    });
}

#[test]
fn two_faults_at_once_root() {
    if !have_nft("two_faults_at_once_root") {
        return;
    }
    fault("two_faults_at_once_root", |host| {
        let sink = host.sink(host.port, "");
        let _second = host.sink(host.other, "");
        signal(sink.pid(), Signal::SIGSTOP);
        nft(host, &input_rule(&format!("udp dport {} drop", host.other)));
        let _load = host.send(host.port, 20_000, 20);
        let _other = host.send(host.other, 4_000, 10);
        let Some(report) = host.finds("stopped") else { return };
        assert_eq!(rules(&report), ["stopped", "firewall"]);
    });
}

/// Asserts that the rules are as `wanted` on a host that is flooded through the lab's wire, whose device has a ring.
fn flooded(world: &World, pid: u32, wanted: impl Fn(&[String]) -> bool) {
    let look = || {
        let (code, out, _) = world.weir(&EXPLAIN);
        (code == 0, out)
    };
    std::thread::sleep(ms(300));
    explained(&[pid], look, wanted);
}

#[test]
fn softirq_flood_on_another_port_root() {
    if !possible("softirq_flood_on_another_port_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("xs", 1);
    let sink = world.sink(0, PORT);
    let _load = world.send(&[(0, PORT), (0, PORT + 1)], &[0, 1, 1, 1, 1, 1, 1, 1], &[(ms(20_000), 3e6)]);
    // The same CPU is why the ring overflows and why the program starves: either may have lost more.
    let one = |found: &[String]| {
        ["cpu-full", "starved-by-softirq"].contains(&found.first().map_or("", String::as_str))
    };
    flooded(&world, sink.pid(), one);
}

#[test]
fn small_ring_root() {
    if !possible("small_ring_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("xr", 1);
    let sink = world.sink(0, PORT);
    // A softirq that comes only every 10 ms, as behind a thread that holds the CPU, and a ring of 256.
    let slow = Duration::from_millis(10).as_nanos().to_string();
    world.inside(move || kern::wire::counters::set_interface("in0", "gro_flush_timeout", &slow).unwrap());
    let _load = world.send(&[(0, PORT)], &[], &[(ms(20_000), 60e3)]);
    flooded(&world, sink.pid(), |found| found.first().is_some_and(|first| first == "ring-small"));
}
