//! What `weir watch` says of hosts in namespaces: losses as the program itself counts them, ledgers of TCP, thousands of
//! sockets, and what it shows without privileges.

use crate::common::faults::Host;
use crate::common::procs::{Sink, signal};
use crate::common::watched::Watch;
use crate::common::{PATIENCE, alone, possible};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use see::Snapshot;
use see::model::Kind;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command};
use std::time::Duration;
use testkit::NetNs;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn inside(ns: &NetNs) -> impl FnOnce(Command) -> Child + '_ {
    |mut command| ns.run(move || command.spawn()).unwrap()
}

fn spawn(mut command: Command) -> Child {
    command.spawn().unwrap()
}

/// A program in a namespace, with the /sys of that namespace.
fn within(ns: &NetNs, program: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", ns.name()]).args(program);
    command
}

/// CPU time of it so far, ns.
fn used(watch: &Watch) -> u64 {
    kern::wire::tasks::process_cpu_ns(watch.pid() as i32).unwrap()
}

fn unaccounted(all: &[Snapshot]) -> i64 {
    all.iter().map(|s| s.ledger.unaccounted).sum()
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// A host on whose wire is nothing but what the test sends.
fn quiet_host() -> Host {
    let host = Host::new();
    for ns in [&host.wire, &host.host] {
        ns.sh("sysctl", &["-qw", "net.ipv6.conf.all.disable_ipv6=1"]);
    }
    host
}

#[test]
fn losses_are_the_numbers_that_the_program_misses_root() {
    if !possible("losses_are_the_numbers_that_the_program_misses_root") {
        return;
    }
    let _alone = alone();
    let host = quiet_host();
    let at = SocketAddrV4::new(host.address(), host.port);
    let mut sink = Sink::start_by(inside(&host.host), 0, at);
    let client = host.wire.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let watch = Watch::start(&["--interval", "100ms"], inside(&host.host));
    let mut all = vec![watch.interval()];
    let mut sent = 0u64;
    let mut send = |n: u64| {
        for _ in 0..n {
            client.send_to(&[now_ns().to_ne_bytes(), sent.to_ne_bytes()].concat(), at).unwrap();
            sent += 1;
        }
        sent
    };
    for _ in 0..3 {
        send(500);
        assert_eq!(sink.drained(), sink.report().total);
        // More than half a megabyte of buffer holds, of datagrams that are charged 512 bytes at least.
        signal(sink.pid(), Signal::SIGSTOP);
        send(5_000);
        all.extend(watch.rest());
        signal(sink.pid(), Signal::SIGCONT);
        sink.drained();
    }
    // The last number is not lost, so that all that are missing are known to be.
    let sent = send(1);
    let read = sink.drained();
    let missing = sink.report().missing;
    assert_eq!(missing, sent - read);
    all.extend(watch.rest());
    let own = |s: &Snapshot| -> u64 {
        let own = s.consumers.iter().filter(|c| c.pid == sink.pid() && c.kind == Kind::Udp);
        own.filter_map(|c| c.lost).sum()
    };
    let lost: u64 = all.iter().map(own).sum();
    println!("{sent} sent, {read} read, {missing} missing, {lost} lost; unaccounted {}", unaccounted(&all));
    assert!(missing > 3 * 1_000, "{missing}");
    assert_eq!(lost, missing);
    // All queues are empty again: every packet is in a place.
    let total = |get: fn(&Snapshot) -> u64| all.iter().map(get).sum::<u64>();
    assert_eq!(total(|s| s.ledger.drops.get("socket").copied().unwrap_or(0)), missing);
    assert_eq!(total(|s| s.ledger.delivered.get("udp").copied().unwrap_or(0)), read);
    assert_eq!(unaccounted(&all), 0);
    watch.end();
}

#[test]
fn bulk_tcp_is_accounted_for_root() {
    if !possible("bulk_tcp_is_accounted_for_root") {
        return;
    }
    let _alone = alone();
    // What is handed over as it was sent, up to 64 kB at once; in packets of the wire; in such that GRO merges here.
    bulk_tcp(256, &[], &[]);
    bulk_tcp(64, &["tso", "off", "gso", "off"], &[]);
    bulk_tcp(64, &["tso", "off", "gso", "off"], &["gro", "on"]);
}

/// Sends `megabytes` to a host, with these settings of `ethtool -K` on the wire's end and on the host's.
fn bulk_tcp(megabytes: u64, far: &[&str], near: &[&str]) {
    let host = quiet_host();
    for (ns, name, settings) in [(&host.wire, &host.far, far), (&host.host, &host.name, near)] {
        if !settings.is_empty() {
            ns.sh("ethtool", &[&["-K", name.as_str()], settings].concat());
        }
    }
    let (address, port) = (host.address(), host.port);
    let listener = host.host.run(move || TcpListener::bind((address, port))).unwrap();
    let watch = Watch::start(&["--interval", "200ms"], inside(&host.host));
    let mut all = vec![watch.interval()];
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut buffer = vec![0; 65_536];
        let mut read = 0;
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            read += n as u64;
        }
        read
    });
    let mut stream = host.wire.run(move || TcpStream::connect((address, port))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let data = vec![0; 64 * 1024];
    let mut written = 0u64;
    while written < megabytes * 1024 * 1024 {
        stream.write_all(&data).unwrap();
        written += data.len() as u64;
    }
    drop(stream);
    assert_eq!(reader.join().unwrap(), written);
    all.extend(watch.rest());
    for s in &all {
        let l = &s.ledger;
        println!(
            "{} offered, {:?}, lost {:?}, unaccounted {}, skew {}",
            l.offered, l.delivered, l.drops, l.unaccounted, l.skew
        );
        assert!(l.unaccounted.unsigned_abs() <= l.skew, "{l:?}");
        assert!(l.lost() == 0, "{l:?}");
    }
    let tcp: u64 = all.iter().filter_map(|s| s.ledger.delivered.get("tcp")).sum();
    assert!(tcp >= written / 65_536, "{tcp} segments for {written} bytes");
    assert_eq!(unaccounted(&all), 0, "when nothing is on the way any more");
    watch.end();
}

/// CPU time of one sample of 64 queues, stated in docs/watch.md.
const QUEUES_SAMPLE: Duration = Duration::from_millis(4);
/// Sockets of the test of many.
const SOCKETS: usize = 10_000;
/// CPU time of one sample of them, stated in docs/watch.md.
const SAMPLE: Duration = Duration::from_millis(32);
/// Memory of `weir watch` with them, KiB, stated there too.
const MEMORY: u64 = 17 * 1024;

#[test]
fn ten_thousand_sockets_are_no_problem_root() {
    if !possible("ten_thousand_sockets_are_no_problem_root") {
        return;
    }
    let _alone = alone();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most.max(SOCKETS as u64 + 500), most.max(SOCKETS as u64 + 500))
        .unwrap();
    let ns = NetNs::new("wms");
    ns.sh("ip", &["link", "set", "lo", "up"]);
    let bind =
        || -> Vec<UdpSocket> { (0..SOCKETS).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect() };
    let sockets = ns.run(bind);
    let watch = Watch::start(&["--interval", "500ms"], inside(&ns));
    watch.line();
    // Holders have been looked for by then.
    (0..4).for_each(|_| _ = watch.line());
    // The one that loses is found among them.
    let full = &sockets[SOCKETS / 2];
    let sender = ns.run(|| UdpSocket::bind("127.0.0.1:0")).unwrap();
    (0..1000).for_each(|_| _ = sender.send_to(&[0; 1000], full.local_addr().unwrap()));
    let found = watch.rest();
    let seen = found.iter().find(|s| s.consumers[0].lost.unwrap_or(0) > 0).expect("it loses");
    let worst = &seen.consumers[0];
    assert_eq!(worst.local, full.local_addr().unwrap().to_string());
    assert_eq!((worst.pid, worst.level.is_some_and(|l| l > 0.9)), (std::process::id(), true), "{worst:?}");
    assert_eq!(seen.consumers.len() as u64 + seen.consumers_quiet, SOCKETS as u64 + 1);
    let from = used(&watch);
    const SAMPLES: u32 = 4;
    let lines: Vec<usize> = (0..SAMPLES).map(|_| watch.line().len()).collect();
    let each = Duration::from_nanos((used(&watch) - from) / u64::from(SAMPLES));
    let text = std::fs::read_to_string(format!("/proc/{}/status", watch.pid())).unwrap();
    let peak = text.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    println!("{each:?} of CPU time per sample, {peak} KiB, {} bytes of JSON", lines[0]);
    assert!(each < SAMPLE * PATIENCE, "{each:?}");
    assert!(peak < MEMORY * u64::from(PATIENCE), "{peak} KiB");
    watch.end();
}

#[test]
fn sixty_four_queues_are_no_problem_root() {
    if !possible("sixty_four_queues_are_no_problem_root") {
        return;
    }
    let _alone = alone();
    let ns = NetNs::new("wqu");
    let wide = ["numrxqueues", "64", "numtxqueues", "64"];
    let pair = ["type", "veth", "peer", "name", "wide1"];
    ns.sh("ip", &[&["link", "add", "wide0"][..], &wide, &pair, &wide].concat());
    ns.sh("ethtool", &["-K", "wide0", "gro", "on"]);
    ["wide0", "wide1"].iter().for_each(|name| _ = ns.sh("ip", &["link", "set", name, "up"]));
    let watch = Watch::of(within(&ns, &[WEIR]), &["wide0", "--interval", "200ms"], spawn);
    let seen = watch.interval();
    let queues = &seen.interfaces[0].queues;
    assert_eq!((seen.interfaces.len(), queues.len()), (1, 64), "{seen:#?}");
    assert_eq!(queues[63].name, "wide0/63");
    // All queues are looked at anew each 5 s, and where the link has changed: one such look is among the samples.
    ns.sh("ip", &["link", "set", "wide0", "down"]);
    watch.rest();
    let from = used(&watch);
    const SAMPLES: u32 = 12;
    ns.sh("ip", &["link", "set", "wide0", "up"]);
    (0..SAMPLES).for_each(|_| _ = watch.line());
    let each = Duration::from_nanos((used(&watch) - from) / u64::from(SAMPLES));
    println!("{each:?} of CPU time per sample");
    assert!(each < QUEUES_SAMPLE * PATIENCE, "{each:?}");
    watch.end();
}

#[test]
fn without_privileges_it_says_what_more_root_would_show_root() {
    if !possible("without_privileges_it_says_what_more_root_would_show_root") {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    let sink = host.sink(host.port, "--rcvbuf 8192");
    // However fast the machine is, this one loses.
    signal(sink.pid(), Signal::SIGSTOP);
    // A copy, because nobody may not look into the directory of the build.
    let public = tempfile::tempdir().unwrap();
    let weir = public.path().join("weir");
    std::fs::set_permissions(public.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::copy(WEIR, &weir).unwrap();
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", weir.to_str().unwrap()];
    let as_nobody = || within(&host.host, &nobody);
    let look = |command: Command| {
        let watch = Watch::of(command, &["--interval", "300ms"], spawn);
        watch.line();
        let load = host.send(host.port, 10_000, 500);
        let all: Vec<Snapshot> = (0..4).map(|_| watch.interval()).collect();
        drop(load);
        watch.end();
        let loses = |s: &Snapshot| s.consumers.first().is_some_and(|c| c.lost.unwrap_or(0) > 0);
        all.into_iter().find(loses).expect("a program that has stopped loses")
    };
    let (nobody, root) = (look(as_nobody()), look(within(&host.host, &[WEIR])));
    // The path, the socket and its losses are the same; whose socket it is only root sees.
    for seen in [&nobody, &root] {
        assert!(seen.ledger.offered > 0 && !seen.cpus.is_empty() && !seen.limits.is_empty(), "{seen:#?}");
        assert_eq!(seen.consumers[0].socket, format!("udp {}", host.port));
        assert!(seen.consumers[0].limit > 0 && seen.interfaces[0].name == host.name);
    }
    assert_eq!((nobody.consumers[0].pid, root.consumers[0].pid), (0, sink.pid()));
    // A directory of guards that only root may read is there or not, by what ran on this machine before.
    let guards = "what guards do: their directory is root's; run weir as root";
    let missing: Vec<&String> = nobody.missing.iter().filter(|text| *text != guards).collect();
    let [arp, holders] = missing.as_slice() else { panic!("{:?}", nobody.missing) };
    assert_eq!(*arp, "packets of ARP, which are unaccounted: needs CAP_NET_RAW");
    assert!(holders.ends_with("sockets of other users (1): needs root"), "{holders}");
    assert!(root.missing.is_empty(), "{:?}", root.missing);
    // The table says so in its last lines, and the exit code is that of success.
    let mut once = as_nobody();
    once.args(["watch", "--once", "--interval", "300ms"]);
    let output = once.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{text}");
    assert!(
        text.trim_end().lines().rev().take(2).any(|l| l.starts_with("missing    processes of sockets")),
        "{text}"
    );
    // An explanation needs no root either: the socket is named by its port.
    let mut why = as_nobody();
    why.args(["explain", "--for", "1s"]);
    let load = host.send(host.port, 10_000, 500);
    let output = why.output().unwrap();
    drop(load);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains(&format!("udp {}", host.port)), "{text}");
    assert!(text.contains("needs root"), "{text}");
}
