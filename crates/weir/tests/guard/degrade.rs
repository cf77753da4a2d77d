//! A feature that is refused: `auto` goes on with the next mode, and says why in its log, in the status and in
//! `weir check`. What is refused here is refused to weir alone, by a filter or a mount of its own.

use std::io;
use std::time::Instant;

use crate::common::dump::assert_same;
use crate::common::foreign::xdp_pass;
use crate::common::procs::{Guard, Manner, sources};
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};

/// Loads a seccomp filter that answers `errno` to system call `number` if its argument `index` is one of `values`.
/// Only for between fork and exec: plain system calls on memory of its own.
fn refuse(number: i64, index: u32, value: u32, errno: i32) -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let answer = libc::BPF_RET | libc::BPF_K;
    // struct seccomp_data: number at 0, arguments from 16 on; the lower half of each comes first.
    let filter = [
        statement(load, 0),
        jump(number as u32, 0, 3),
        statement(load, 16 + 8 * index),
        jump(value, 0, 1),
        statement(answer, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(answer, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the filter lives through the call; the kernel copies it.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn no_busy_poll() -> io::Result<()> {
    const SO_PREFER_BUSY_POLL: u32 = 69;
    refuse(libc::SYS_setsockopt, 2, SO_PREFER_BUSY_POLL, libc::ENOPROTOOPT)
}

fn no_generic_netlink() -> io::Result<()> {
    refuse(libc::SYS_socket, 2, libc::NETLINK_GENERIC as u32, libc::EPROTONOSUPPORT)
}

/// Hides the kernel's types behind an empty directory.
fn no_btf() -> io::Result<()> {
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: plain system calls with strings that live through them.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, std::ptr::null()) == 0
            && libc::mount(
                c"none".as_ptr(),
                c"/sys/kernel/btf".as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                std::ptr::null(),
            ) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn before(what: fn() -> io::Result<()>) -> Manner {
    Manner { before: Some(what), ..Manner::default() }
}

/// One refused feature.
struct Case {
    what: &'static str,
    manner: Manner,
    /// Mode of the source in a flood; empty: the one that `weir check` promises.
    mode: &'static str,
    /// In the log and in the status.
    why: &'static str,
    /// In what `weir check` prints.
    check: &'static str,
}

fn assert_degrades(world: &World, case: &Case) {
    let Case { what, manner, why, check, .. } = case;
    let before = world.dump();
    let (code, out, err) = world.weir_as(&["check", "in0"], manner);
    assert_eq!(code, 0, "{what}: {err}");
    assert!(out.contains(check), "{what}: check does not say {check:?}:\n{out}");
    let promised = if out.contains("auto = thread") { "thread" } else { "poll" };
    let mode = if case.mode.is_empty() { promised } else { case.mode };
    assert_eq!(mode, promised, "{what}: check promises something else:\n{out}");
    let mut sink = world.sink(0, PORT);
    let cpus = [WIRE_CPU, HOST_CPU];
    let guard = Guard::start_as(world, &["in0", "--cpu", "1"], &cpus, manner);
    let guard = guard.unwrap_or_else(|r| panic!("{what}: not in force: {r:?}"));
    within(&format!("{what}: its warning"), ms(500), || guard.said(why).is_some());
    println!("{what}: {}", guard.said(why).unwrap());
    // Where the sender's CPU has come to do the driver's part the sink keeps up, and nothing is taken over: the flood begins anew,
    // with the timer on the host CPU. Nor is one that starved taken over, which is tried again after 1 s, then 2.
    let (mut load, mut begun, mut seen) = (None, Instant::now(), String::new());
    within(&format!("{what}: mode {mode}"), ms(2000), || {
        if load.is_none() || begun.elapsed() > ms(3500) {
            load = None;
            world.prime(0);
            load = Some(world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]));
            begun = Instant::now();
        }
        let source = sources(&guard.ask(world))[0].clone();
        let now = format!("{}: {}", source["mode"].as_str().unwrap(), source["reason"].as_str().unwrap());
        if now != seen {
            println!("{what}: mode {now}");
            seen = now;
        }
        source["mode"] == mode
    });
    // The flood is read, and not by the mode of a kernel without weir.
    let read = sink.window(ms(400)).pps;
    println!("{what}: {mode}, {:.0} k/s read of {:.0}", read / 1e3, FLOOD / 1e3);
    assert!(read > 2_000.0, "{what}: {read} datagrams per second read in a flood");
    let status = guard.ask(world);
    let missing = status["missing"].as_array().unwrap();
    assert!(missing.iter().any(|m| m.as_str().unwrap().contains(why)), "{what}: {missing:?}");
    if mode != "poll" {
        let reason = sources(&status)[0]["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains(why), "{what}: its source says {reason:?}");
    }
    let (code, table, _) = world.weir(&["status", &world.dirs()[1]]);
    assert!(code == 0 && table.contains("missing"), "{what}: {table}");
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0), "{what}");
    assert_same(&before, &world.dump(), what);
}

#[test]
fn each_refused_feature_leads_to_the_next_mode_root() {
    if !possible("each_refused_feature_leads_to_the_next_mode_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("degrade", 1);
    let no_nice = ["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-all"].map(str::to_owned).into();
    for case in [
        Case {
            what: "prefer-busy-poll",
            manner: before(no_busy_poll),
            mode: "thread",
            why: "SO_PREFER_BUSY_POLL: Protocol not available",
            check: "SO_PREFER_BUSY_POLL: Protocol not available",
        },
        Case {
            what: "BTF",
            manner: before(no_btf),
            mode: "thread",
            why: "no BTF in the kernel",
            check: "/sys/kernel/btf/vmlinux",
        },
        Case {
            what: "netlink",
            manner: before(no_generic_netlink),
            mode: "",
            why: "netdev netlink: ",
            check: "netdev netlink: ",
        },
        Case {
            what: "FIFO",
            manner: Manner { prefix: no_nice, ..Manner::default() },
            mode: "poll",
            why: "no SCHED_FIFO (needs CAP_SYS_NICE",
            check: "SCHED_FIFO 1: needs CAP_SYS_NICE",
        },
    ] {
        assert_degrades(&world, &case);
    }
}

#[test]
fn a_foreign_xdp_program_stays_and_threads_do_the_work_root() {
    if !possible("a_foreign_xdp_program_stays_and_threads_do_the_work_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("foreign", 1);
    let link = xdp_pass(&world, "in0");
    let case = Case {
        what: "XDP",
        manner: Manner::default(),
        mode: "thread",
        why: "no XDP program (",
        check: "of another owner stays where it is",
    };
    let begin = Instant::now();
    assert_degrades(&world, &case);
    println!("{:?}", begin.elapsed());
    // Asked to poll, it says that it cannot.
    let guard = Guard::try_start(&world, &["in0", "--cpu", "1", "--mode", "poll"], &[WIRE_CPU, HOST_CPU]);
    let guard = guard.expect("in force: the kernel still receives");
    within("its warning", ms(500), || guard.said("no XDP program").is_some());
    drop(guard);
    drop(link);
}

/// From then on its packets are seen to come by the bridge, so that a handle that learns its source from a packet must listen there.
#[test]
fn an_interface_that_joins_a_bridge_is_polled_as_before_root() {
    if !possible("an_interface_that_joins_a_bridge_is_polled_as_before_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("joins", 1);
    let _sink = world.sink(0, PORT);
    let manner = before(no_generic_netlink);
    let guard = Guard::start_as(&world, &["in0", "--cpu", "1"], &[WIRE_CPU, HOST_CPU], &manner).unwrap();
    for line in [
        "link add br0 address 02:00:00:00:01:00 type bridge",
        "link set br0 up",
        "addr del 198.18.0.1/24 dev in0",
        "link set in0 master br0",
        "addr add 198.18.0.1/24 dev br0",
        "neigh replace 198.18.0.2 lladdr 02:00:00:00:02:00 dev br0",
    ] {
        world.sh(&format!("ip {line}"));
    }
    within("it is set up anew", ms(3000), || guard.said("found").is_some());
    world.prime(0);
    let _load = world.send(&[(0, PORT)], &[], &[(ms(60_000), 3.0 * FLOOD)]);
    within("it is polled", ms(3000), || {
        let source = &sources(&guard.ask(&world))[0];
        assert_ne!(source["mode"], "thread", "{source:#}");
        source["mode"] == "poll"
    });
}
