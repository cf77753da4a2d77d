//! `weir watch --probes`: waiting times against those that the program itself sees, drops against the socket's own counter,
//! rates of several sockets, and what it says where there can be no probes.

use crate::common::faults::Host;
use crate::common::stamps::{Reader, inside, now_ns, wait};
use crate::common::watched::Watch;
use crate::common::{HOST_CPU, alone, ms, possible};
use see::Snapshot;
use see::model::{Delay, Kind, Place};
use std::net::{SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::Duration;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A program that reads datagrams with their times of sending.
fn reader(socket: UdpSocket, pause: Duration, idle_class: bool) -> Reader {
    socket.set_read_timeout(Some(ms(20))).unwrap();
    let mut buffer = [0; 128];
    let next = move || match socket.recv(&mut buffer) {
        Ok(8..) => Some(u64::from_ne_bytes(buffer[..8].try_into().unwrap())),
        _ => None,
    };
    Reader::start(next, pause, idle_class)
}

/// Sends the time `rate` times a second to a port of the host.
fn stamps(host: &Host, rate: u32) -> crate::common::faults::Sender {
    let to = SocketAddrV4::new(host.address(), host.port);
    let socket = host.wire.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    host.repeat(rate, 1, move || _ = socket.send_to(&now_ns().to_ne_bytes(), to))
}

/// One interval of 1 s, after one that is left out, while a reader with this pause has 500 datagrams a second; and the
/// reader's own waits.
fn paused(host: &Host, pause: Duration) -> (Snapshot, Vec<f64>) {
    let reader = reader(host.socket(host.port), pause, false);
    let load = stamps(host, 500);
    let watch = Watch::start(&["--probes", "--interval", "1s"], inside(&host.host));
    watch.line();
    let seen = watch.interval();
    drop(load);
    watch.end();
    assert!(seen.missing.iter().all(|m| !m.contains("probes")), "{:?}", seen.missing);
    (seen, reader.end())
}

#[test]
fn a_pause_of_the_reader_is_a_wait_in_its_socket_root() {
    if !possible("a_pause_of_the_reader_is_a_wait_in_its_socket_root") {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    let at = |sorted: &[f64], q: f64| sorted[((sorted.len() - 1) as f64 * q) as usize];
    let (seen, own) = paused(&host, ms(50));
    let [socket, whole, stack] = [Delay::Socket, Delay::Whole, Delay::Stack]
        .map(|of| wait(&seen, of).expect("it was measured").clone());
    println!(
        "socket {socket:?}\nwhole {whole:?}\nstack {stack:?}\nprogram p50 {} p99 {}",
        at(&own, 0.5),
        at(&own, 0.99)
    );
    assert!(socket.p99_us >= 40e3 && whole.p99_us >= 40e3, "a pause of 50 ms");
    assert!(socket.samples >= 100 && socket.count >= socket.samples && socket.p50_us < socket.p99_us);
    // Nearly all of it is in the socket, and what the program itself sees is the same.
    let near = |a: f64, b: f64| (a - b).abs() < 0.2 * b + 2e3;
    assert!(near(whole.p50_us, at(&own, 0.5)) && near(whole.p99_us, at(&own, 0.99)));
    let stage = |place| seen.path.iter().find(|s| s.place == place).unwrap().wait.unwrap();
    assert_eq!((stage(Place::Consumer).p99_us, stage(Place::Stack).p50_us), (socket.p99_us, stack.p50_us));
    assert!(stack.p50_us < 1e3, "nothing holds a packet on its way up");
    assert!(wait(&seen, Delay::Softirq).is_some_and(|w| w.samples > 0 && w.p50_us < 10e3));
    // And without the pause there is no such wait.
    let (seen, own) = paused(&host, Duration::ZERO);
    let socket = wait(&seen, Delay::Socket).expect("it was measured");
    println!("socket {socket:?}\nprogram p50 {} p99 {}", at(&own, 0.5), at(&own, 0.99));
    assert!(socket.p50_us < 5e3 && near(socket.p50_us, at(&own, 0.5)), "{socket:?}");
}

#[test]
fn a_reader_that_gets_no_cpu_waits_for_it_root() {
    if !possible("a_reader_that_gets_no_cpu_waits_for_it_root") {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    // It has the CPU only when nobody else wants it.
    let reader = reader(host.socket(host.port), Duration::ZERO, true);
    let hog = host.program(lab::locate("hog", None).unwrap().to_str().unwrap(), None);
    let load = stamps(&host, 500);
    let watch = Watch::start(&["--probes", "--interval", "1s"], inside(&host.host));
    watch.line();
    let seen = watch.interval();
    drop((hog, load));
    watch.end();
    reader.end();
    let [woken, socket] = [Delay::Wakeup, Delay::Socket].map(|of| wait(&seen, of).expect("it was measured"));
    println!("woken {woken:?}\nsocket {socket:?}");
    // A time slice of the hog at least, and what waits in the socket waits for that.
    assert!(woken.samples > 0 && woken.max_us > 1e3, "{woken:?}");
    assert!(socket.max_us >= 0.9 * woken.max_us, "{socket:?}");
    let on = |cpu: usize| seen.cpus.iter().find(|c| c.cpu as usize == cpu).unwrap();
    assert!(on(HOST_CPU).wakeup_wait.is_some());
}

fn sums(all: &[Snapshot], get: impl Fn(&Snapshot) -> u64) -> u64 {
    all.iter().map(get).sum()
}

#[test]
fn drops_have_the_kernels_reasons_and_equal_its_counters_root() {
    if !possible("drops_have_the_kernels_reasons_and_equal_its_counters_root") {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    let full = host.socket(host.port);
    let client = host.wire.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let watch = Watch::start(&["--probes", "--interval", "200ms"], inside(&host.host));
    let mut all = vec![watch.interval()];
    let send = |port: u16, n: u32| {
        // The answer that nobody listens there is an error of the next call.
        (0..n).for_each(|_| _ = client.send_to(&[0; 100], SocketAddrV4::new(host.address(), port)));
    };
    send(host.port, 5_000);
    send(host.other, 700);
    all.extend(watch.rest());
    watch.end();
    let probes = |s: &Snapshot| s.probes.clone().unwrap();
    let reason = |name: &str| sums(&all, |s| probes(s).drops.get(name).copied().unwrap_or(0));
    let own = |s: &Snapshot| s.consumers.iter().filter(|c| c.kind == Kind::Udp).filter_map(|c| c.lost).sum();
    let (lost, refused) =
        (sums(&all, own), sums(&all, |s| s.ledger.drops.get("no port").copied().unwrap_or(0)));
    let missed = sums(&all, |s| probes(s).missed);
    println!(
        "full {lost}: {}, no port {refused}: {}, {missed} missed",
        reason("SOCKET_RCVBUFF"),
        reason("NO_SOCKET")
    );
    assert!(lost > 3_000 && refused > 300, "{lost} {refused}");
    if missed == 0 {
        assert_eq!((reason("SOCKET_RCVBUFF"), reason("NO_SOCKET")), (lost, refused));
    }
    assert!(reason("SOCKET_RCVBUFF") + missed >= lost && reason("NO_SOCKET") + missed >= refused);
    drop(full);
    // Those of another namespace are not ours.
    let watch = Watch::start(&["--probes", "--interval", "200ms"], inside(&host.wire));
    watch.line();
    send(host.other, 700);
    let seen = watch.rest();
    watch.end();
    assert_eq!(sums(&seen, |s| probes(s).drops.get("NO_SOCKET").copied().unwrap_or(0)), 0, "{seen:#?}");
}

#[test]
fn each_of_several_sockets_has_its_rates_root() {
    if !possible("each_of_several_sockets_has_its_rates_root") {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    let sockets = [host.port, host.other].map(|port| host.socket(port));
    let client = host.wire.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let watch = Watch::start(&["--probes", "--interval", "200ms"], inside(&host.host));
    let mut all = vec![watch.interval()];
    let mut buffer = [0; 128];
    for (socket, datagrams) in sockets.iter().zip([300, 40]) {
        for _ in 0..datagrams {
            client.send_to(&[0; 100], socket.local_addr().unwrap()).unwrap();
            socket.set_read_timeout(Some(ms(5_000))).unwrap();
            socket.recv(&mut buffer).unwrap();
        }
    }
    // One reads none of 2000 and loses what does not fit.
    (0..2_000).for_each(|_| _ = client.send_to(&[0; 100], sockets[1].local_addr().unwrap()).unwrap());
    all.extend(watch.rest());
    watch.end();
    let of = |port: u16, get: fn(&see::model::Consumer) -> Option<u64>| {
        let named = format!("udp {port}");
        sums(&all, |s| s.consumers.iter().filter(|c| c.socket == named).filter_map(get).sum())
    };
    let [first, second] = [host.port, host.other];
    assert_eq!((of(first, |c| c.out), of(first, |c| c.r#in)), (300, 300));
    let lost = of(second, |c| c.lost);
    assert!(lost > 100, "{lost}");
    assert_eq!((of(second, |c| c.out), of(second, |c| c.r#in)), (40, 40 + lost));
}

#[test]
fn where_there_can_be_no_probes_it_says_so_and_goes_on_root() {
    if !possible("where_there_can_be_no_probes_it_says_so_and_goes_on_root") {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    let public = tempfile::tempdir().unwrap();
    let weir = public.path().join("weir");
    std::fs::set_permissions(public.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::copy(WEIR, &weir).unwrap();
    let weir = weir.to_str().unwrap();
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", weir];
    let hidden = "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"";
    let blind = ["unshare", "-m", "sh", "-c", hidden, "sh", weir];
    for (program, why) in [
        (&nobody[..], "probes: needs root (CAP_BPF and CAP_PERFMON)"),
        (&blind[..], "probes: this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"),
    ] {
        let run = |args: &[&str]| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", host.host.name()]).args(program).args(["watch", "--once"]);
            let output = command.args(["--interval", "200ms", "--probes"]).args(args).output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let (out, error) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{error}");
            assert_eq!(error, format!("weir: {why}\n"));
            out
        };
        let text = run(&[]);
        let joined: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(joined.contains(&format!("missing P{}", &why[1..])) || joined.contains(why), "{text}");
        let seen: Snapshot = serde_json::from_str(&run(&["--json"])).unwrap();
        assert!(seen.probes.is_none() && seen.missing.contains(&why.to_owned()), "{:?}", seen.missing);
        assert!(!seen.cpus.is_empty() && seen.interfaces.len() == 1);
    }
    // With root there is the block.
    let mut once = Command::new(WEIR);
    once.args(["watch", "--once", "--interval", "200ms", "--probes"]);
    let output = host.host.run(|| once.output()).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{text}");
    assert!(text.contains("from when to when") && text.contains("\ndropped    "), "{text}");
}
