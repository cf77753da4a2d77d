//! `weir watch --cpu` on hosts in namespaces: who receives, who sends, who is idle, what it costs, who may.

use crate::common::faults::Host;
use crate::common::watched::Watch;
use crate::common::{HOST_CPU, PATIENCE, WIRE_CPU, alone, possible};
use see::cost::{Component, Cpu, Profile};
use std::net::{SocketAddrV4, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output};
use std::time::Instant;
use testkit::NetNs;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const RECEIVE: [Component; 3] = [Component::Napi, Component::Stack, Component::UpperReceive];
const TRANSMIT: [Component; 2] = [Component::UpperTransmit, Component::LowerTransmit];
/// Samples from which shares can be judged: the noise of 60 is 20 %.
const ENOUGH: u64 = 60;
/// Intervals that are added up until there are so many: a machine that stands still, or a CPU that others have, gives hardly any
/// meanwhile. What shares are taken of grows with the time that these CPUs get, so a late machine makes the test long, not wrong.
const INTERVALS: usize = 30;

fn inside(ns: &NetNs) -> impl FnOnce(Command) -> Child + '_ {
    |mut command| ns.run(move || command.spawn()).unwrap()
}

fn weir(ns: &NetNs, args: &[&str]) -> Output {
    let mut command = Command::new(WEIR);
    command.args(args);
    ns.run(move || command.output()).unwrap()
}

/// A line of shell in a namespace, with the /sys of that namespace.
fn shell(ns: &NetNs, line: &str) {
    let status = Command::new("ip").args(["netns", "exec", ns.name(), "sh", "-c", line]).status();
    assert!(status.unwrap().success(), "{line}");
}

fn of(cpu: &Cpu, components: &[Component]) -> u64 {
    components.iter().map(|c| cpu.of(*c)).sum()
}

fn of_all(profile: &Profile, components: &[Component]) -> u64 {
    profile.cpus.iter().map(|c| of(c, components)).sum()
}

fn cpu(profile: &Profile, number: usize) -> &Cpu {
    profile.cpus.iter().find(|c| c.cpu as usize == number).unwrap()
}

/// Samples of a CPU's work for packets.
fn work(cpu: &Cpu) -> u64 {
    of(cpu, &RECEIVE) + of(cpu, &TRANSMIT)
}

/// Samples of what has the fewest of all that shares are taken of.
fn fewest(profile: &Profile, sends: usize, receives: usize) -> u64 {
    let of_cpu = |number| profile.cpus.iter().find(|c| c.cpu as usize == number).map_or(0, work);
    of_all(profile, &TRANSMIT).min(of_cpu(sends)).min(of_cpu(receives))
}

fn parse(line: &str) -> Profile {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

/// A host to which one thread on CPU `sends` sends as fast as it can; what arrives is received on CPU `receives`, in
/// softirq and by its program. `look` gets the host.
fn flooded<T>(sends: usize, receives: usize, look: impl FnOnce(&Host) -> T) -> T {
    let host = Host::new();
    // The softirq of a veth runs where the sender is; RPS takes the packets from there.
    shell(
        &host.host,
        &format!("echo {:x} > /sys/class/net/{}/queues/rx-0/rps_cpus", 1 << receives, host.name),
    );
    let sink = lab::locate("udp-sink", None).unwrap();
    let at = SocketAddrV4::new(host.address(), host.port);
    let _sink = host.program(&format!("taskset -c {receives} {} --bind {at}", sink.display()), None);
    let socket = host.wire.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let mut pinned = false;
    let _load = host.repeat(10_000_000, 1000, move || {
        if !pinned {
            kern::wire::tasks::pin(0, sends).unwrap();
            pinned = true;
        }
        let _ = socket.send_to(&[0; 100], at);
    });
    look(&host)
}

#[test]
fn who_receives_and_who_sends_is_seen_root() {
    if !possible("who_receives_and_who_sends_is_seen_root") {
        return;
    }
    let _alone = alone();
    for (sends, receives) in [(WIRE_CPU, HOST_CPU), (HOST_CPU, WIRE_CPU)] {
        let profile = flooded(sends, receives, |host| {
            let watch = Watch::start(&["--cpu", "--interval", "1s"], inside(&host.host));
            watch.line();
            let mut profile = parse(&watch.line());
            for _ in 1..INTERVALS {
                if fewest(&profile, sends, receives) >= ENOUGH {
                    break;
                }
                profile.add(&parse(&watch.line()));
            }
            watch.end();
            profile
        });
        let (sender, receiver) = (cpu(&profile, sends), cpu(&profile, receives));
        let least = fewest(&profile, sends, receives);
        assert!(least >= ENOUGH, "only {least} samples in {:.1} s: {profile:#?}", profile.interval_s);
        let share = |part: u64, of: u64| part as f64 / of as f64;
        let sent = share(of(sender, &TRANSMIT), of_all(&profile, &TRANSMIT));
        let sending = share(of(sender, &TRANSMIT), work(sender));
        let receiving = share(of(receiver, &RECEIVE), work(receiver));
        println!(
            "{least} samples in {:.1} s: {:.1} % of sending is on CPU {sends} and {:.1} % of its work for packets; receiving is {:.1} % of that of CPU {receives}",
            profile.interval_s,
            100.0 * sent,
            100.0 * sending,
            100.0 * receiving
        );
        // The sender's CPU also hands the packets to the other one's backlog, and interrupts it: that is lower receive.
        assert!(sent > 0.9 && sending > 0.25 && receiving > 0.9, "{profile:#?}");
        assert!(receiver.of(Component::UpperReceive) > sender.of(Component::UpperReceive), "{profile:#?}");
        let stack = profile.per_packet(Component::Stack, profile.of(Component::Stack)).unwrap();
        println!("{} received, stack {:.0} +- {:.0} ns each", profile.received, stack.ns, stack.noise);
        assert!(profile.received > 10_000 && stack.ns > 10.0 && stack.ns < 100_000.0, "{profile:#?}");
        assert_eq!((profile.lost, profile.malformed), (0, 0));
        // Of a host with all its symbols hardly a sample is in no function.
        let unknown: u64 =
            profile.functions.iter().filter(|f| f.name == see::cost::UNKNOWN).map(|f| f.samples).sum();
        assert!(unknown * 20 < profile.samples(), "{unknown} of {}", profile.samples());
    }
}

/// Ticks of all CPUs in which they were idle or taken by a hypervisor, and all.
fn ticks() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().next().unwrap();
    let all: Vec<u64> = line.split_whitespace().skip(1).take(8).map(|n| n.parse().unwrap()).collect();
    (all[3] + all[4] + all[7], all.iter().sum())
}

#[test]
fn idle_time_is_what_the_kernel_says_root() {
    if !possible("idle_time_is_what_the_kernel_says_root") {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    let watch = Watch::start(&["--cpu", "--interval", "1s"], inside(&host.host));
    watch.line();
    let before = ticks();
    let profile = parse(&watch.line());
    let after = ticks();
    watch.end();
    let kernel = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
    let room = profile.room();
    let busy = (profile.samples() - profile.of(Component::Idle)) as f64 / room;
    // A halted virtual CPU can be woken late for its sample: that time is idle too.
    println!(
        "idle: {:.1} % by the kernel; busy: {:.1} % by samples, {} of {room:.0}, {} lost",
        100.0 * kernel,
        100.0 * busy,
        profile.samples(),
        profile.lost
    );
    assert!((1.0 - busy - kernel).abs() < 0.1, "{busy} {kernel}");
    // Nobody sends here: packets cost next to nothing, whoever else uses the machine.
    let work: u64 = profile.cpus.iter().map(|c| of(c, &RECEIVE) + of(c, &TRANSMIT)).sum();
    assert!(work as f64 * 20.0 < room, "{profile:#?}");
    // A CPU that sleeps all the time need not give any.
    let one = room / profile.cpus.len().max(1) as f64;
    assert!(profile.samples() as f64 > 0.5 * one, "{} of {room}", profile.samples());
}

#[test]
fn recordings_are_shown_and_compared_root() {
    if !possible("recordings_are_shown_and_compared_root") {
        return;
    }
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (a, b) = (path("a.jsonl"), path("b.jsonl"));
    flooded(WIRE_CPU, HOST_CPU, |host| {
        for file in [&a, &b] {
            let args = ["watch", "--cpu", "--once", "--interval", "1s", "--record", file];
            let output = weir(&host.host, &args);
            assert!(output.status.success(), "{output:?}");
        }
        let text = |args: &[&str]| {
            let output = weir(&host.host, args);
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let shown = text(&["watch", "--cpu", "--replay", &a]);
        assert!(shown.contains("lower receive: stack") && shown.contains("% is protocol"), "{shown}");
        let compared = text(&["watch", "--cpu", "--diff", &a, &b]);
        println!("{compared}");
        assert!(compared.lines().all(|line| line.chars().count() <= 80), "{compared}");
        let same: serde_json::Value =
            serde_json::from_str(&text(&["watch", "--cpu", "--json", "--diff", &a, &a])).unwrap();
        assert_eq!(same["functions"].as_array().unwrap().len(), 0, "{same}");
        assert!(same["within_noise"].as_u64().unwrap() > 10, "{same}");
    });
}

#[test]
fn sampling_costs_little_root() {
    if !possible("sampling_costs_little_root") {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    let watch = Watch::start(&["--cpu", "--interval", "1s"], inside(&host.host));
    watch.line();
    let used = || kern::wire::tasks::process_cpu_ns(watch.pid() as i32).unwrap();
    let (begin, before) = (Instant::now(), used());
    (0..2).for_each(|_| _ = watch.line());
    let share = (used() - before) as f64 / begin.elapsed().as_nanos() as f64;
    let status = std::fs::read_to_string(format!("/proc/{}/status", watch.pid())).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    watch.end();
    println!("{:.2} % of a CPU, {:.1} MiB", 100.0 * share, kib as f64 / 1024.0);
    assert!(share < 0.01 * f64::from(PATIENCE) && kib < 48 * 1024 * u64::from(PATIENCE), "{share} {kib}");
}

#[test]
fn without_privileges_it_says_what_is_missing_root() {
    if !possible("without_privileges_it_says_what_is_missing_root") {
        return;
    }
    // A copy, because nobody may not look into the directory of the build.
    let public = tempfile::tempdir().unwrap();
    let copy = public.path().join("weir");
    std::fs::set_permissions(public.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(WEIR, &copy).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    let output = command.args(["watch", "--cpu", "--once"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(3), 1), "{said}");
    assert!(said.contains("CAP_PERFMON") && said.contains("sudo"), "{said}");
}
