//! What weir must do on a real driver, in the order of a guard's life.

use std::time::Duration;

use super::Host;
use super::net;
use super::seen::{self, Guard, Sink, wait};

/// Frames per second of a flood: more than an emulated machine can read.
const FLOOD: u64 = 40_000;
/// Waits end long before this unless something is wrong, s.
const PATIENCE: u64 = 60;
/// Settings of the device, which kernels without settings per source have.
const FLUSH: &str = "/sys/class/net/eth0/gro_flush_timeout";
/// A machine that is emulated may be away for longer than the default.
const SLOW: [&str; 2] = ["--flush", "200ms"];
const DEFER: &str = "/sys/class/net/eth0/napi_defer_hard_irqs";

/// The first kernel that polls: 5.11 has the option, but refuses most of the BPF programs.
const POLLS: (u32, u32) = (5, 12);

/// What is expected of a driver.
struct Expected {
    virtio: bool,
    /// Most interrupts per thousand packets in poll mode.
    leaks: u64,
    queues: usize,
}

/// All checks, by driver.
pub fn run(host: &mut Host, driver: &str, queues: usize) -> anyhow::Result<()> {
    let lro = net::lro("eth0");
    let (_, text) = seen::weir(&["check", "eth0"]);
    host.note(&text);
    let (_, json) = seen::weir(&["check", "eth0", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&json).unwrap_or_default();
    let i = &found["interfaces"][0];
    let interface = if i["interface"].is_object() { &i["interface"] } else { i };
    host.row(
        interface["kind"] == driver
            && (driver == "vmxnet3" || interface["sources"].as_array().is_some_and(|s| s.len() == queues)),
        "check",
        &format!(
            "driver {}, {} sources, tier {}, mode {}{}",
            interface["kind"].as_str().unwrap_or("?"),
            interface["sources"].as_array().map_or(0, Vec::len),
            i["tier"].as_str().unwrap_or("?"),
            i["mode"].as_str().unwrap_or("?"),
            if lro { ", LRO on" } else { "" },
        ),
    );
    if driver == "virtio_net" {
        simulated(host);
    }
    if driver == "igb" {
        parted(host, queues)?;
    }
    if driver == "virtio_net" && seen::kernel() >= POLLS {
        holds(host)?;
    }
    let mut sink = Sink::start()?;
    if seen::kernel() < POLLS {
        return too_old(host, &mut sink);
    }
    let expected = Expected {
        virtio: driver == "virtio_net",
        leaks: if driver == "virtio_net" { 20 } else { 1 },
        queues,
    };
    // On igb too, as QEMU emulates it, interrupts keep coming.
    let ignores = ["vmxnet3", "igb"].contains(&driver);
    if ignores { not_holding(host, &mut sink, lro) } else { life(host, &mut sink, &expected) }
}

/// Small datagrams that a socket of the default buffer holds, without weir's XDP program and with it: from some version on the driver
/// then hands each packet up in a buffer of a page, all of which the kernel charges.
fn holds(host: &mut Host) -> anyhow::Result<()> {
    /// More than fit.
    const SENT: u64 = 600;
    let mut held = || -> anyhow::Result<usize> {
        let socket = std::net::UdpSocket::bind("0.0.0.0:9000")?;
        host.send(SENT, 1000);
        // Until all have arrived: what is read makes room.
        std::thread::sleep(Duration::from_secs(1));
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut byte = [0u8; 64];
        Ok(std::iter::from_fn(|| socket.recv(&mut byte).ok()).count())
    };
    let without = held()?;
    let mut guard = Guard::start(&["--mode", "shed"])?;
    let with = held()?;
    guard.end(libc::SIGTERM);
    let after = held()?;
    host.row(
        without == after && with > 0,
        "room in a buffer",
        &format!("{without} datagrams, {with} with the XDP program, {after} after it"),
    );
    Ok(())
}

/// The table of RSS is read as it is: even at first, then all on one queue. A plan parts it, undo puts it back, and what an
/// administrator has set meanwhile stays.
fn parted(host: &mut Host, queues: usize) -> anyhow::Result<()> {
    let placed = || -> serde_json::Value {
        let (_, json) = seen::weir(&["place", "eth0", "--for", "50ms", "--json"]);
        serde_json::from_str(&json).unwrap_or_default()
    };
    let table = |found: &serde_json::Value| -> Vec<u64> {
        let entries = found["nics"][0]["rss_table"].as_array();
        entries.into_iter().flatten().filter_map(serde_json::Value::as_u64).collect()
    };
    let says = |found: &serde_json::Value| {
        let all = found["findings"].as_array().into_iter().flatten();
        all.filter_map(|finding| finding.as_str()).any(|text| text.contains("RSS of eth0"))
    };
    let even = placed();
    let entries = table(&even).len();
    net::rss_on("eth0", entries, 1)?;
    let uneven = placed();
    let spread = || seen::weir(&["place", "eth0", "--strategy", "spread", "--apply", "--for", "50ms"]);
    let (code, said) = spread();
    let parted = placed();
    let (undone, _) = seen::weir(&["undo"]);
    let before = placed();
    let groups = |found: &serde_json::Value, queue| table(found).iter().filter(|q| **q == queue).count();
    let set = code == 0
        && groups(&parted, 0) == entries / 2
        && groups(&parted, 1) == entries - entries / 2
        && undone == 0
        && table(&before) == table(&uneven);
    host.row(set, "place", &format!("RSS is parted and put back: {}", said.lines().last().unwrap_or("")));
    let flows = || {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let of = |queue| read(&format!("/sys/class/net/eth0/queues/rx-{queue}/rps_flow_cnt"));
        [read("/proc/sys/net/core/rps_sock_flow_entries"), of(0), of(1)]
    };
    let off = flows();
    let (code, _) = seen::weir(&["place", "eth0", "--strategy", "follow", "--apply", "--for", "50ms"]);
    let on = flows();
    seen::weir(&["undo"]);
    let set = code == 0 && off == ["0", "0", "0"] && on == ["32768", "16384", "16384"] && flows() == off;
    host.row(set, "place", &format!("RFS is set and put back: {off:?}, {on:?}"));
    spread();
    net::rss_on("eth0", entries, 0)?;
    let (left, told) = seen::weir(&["undo"]);
    let theirs = placed();
    let held = table(&theirs) == vec![0; entries] && told.contains("somebody else");
    host.row(held, "place", &format!("RSS that somebody else has set is left, exit code {left}"));
    net::rss_default("eth0")?;
    let back = placed();
    let held = entries > 1
        && even["nics"][0]["queues"] == queues
        && !says(&even)
        && table(&uneven) == vec![1; entries]
        && says(&uneven)
        && table(&back).len() == entries
        && !says(&back);
    host.row(held, "place", &format!("RSS of {entries} entries: {}", uneven["findings"]));
    Ok(())
}

/// The simulator writes here, on an emulated processor with floating point in software, what it wrote on the host (P10).
fn simulated(host: &mut Host) {
    for (i, experiment) in crate::SIMULATED.iter().enumerate() {
        let json = format!("/tmp/{i}.json");
        let (_, text) = seen::weir(&[&["sim", "run"], *experiment, &["--json", &json]].concat());
        let read = |path: &str| std::fs::read(path).unwrap_or_default();
        let (here, there) = (read(&json), read(&format!("/expected/{i}.json")));
        let same = !here.is_empty() && here == there;
        if !same {
            host.note(&text);
        }
        host.row(same, "same bytes", &format!("sim run {}, {} bytes", experiment.join(" "), here.len()));
    }
}

/// Until every source is polled under a flood, which goes on.
fn taken_over(host: &mut Host, name: &str) -> bool {
    host.flood(FLOOD);
    let taken = wait(PATIENCE, || {
        let all = seen::sources();
        !all.is_empty() && all.iter().all(|s| s["mode"] == "poll")
    });
    host.row(taken, name, &seen::reasons());
    taken
}

/// Until every source is in interrupt mode again after the flood.
fn released(host: &mut Host, name: &str) {
    host.calm();
    let released = wait(PATIENCE, || {
        let all = seen::sources();
        !all.is_empty() && all.iter().all(|s| s["mode"] == "interrupt")
    });
    host.row(released, name, &seen::reasons());
}

/// Settings as they were before weir: a dry run tells them, per source where the kernel has that.
fn restored(host: &mut Host, name: &str) {
    let (_, plan) = seen::weir(&["guard", "eth0", "--dry-run"]);
    let lines: Vec<&str> = plan.lines().filter(|l| l.contains(" -> ") && l.contains('/')).collect();
    let clean = !lines.is_empty() && lines.iter().all(|l| l.contains(" 0 ns -> ") || l.contains(" 0 -> "));
    let device = (seen::number(FLUSH), seen::number(DEFER));
    host.row(
        clean && device == (0, 0),
        name,
        &if clean && device == (0, 0) {
            "gro_flush_timeout 0, napi_defer_hard_irqs 0".to_owned()
        } else {
            format!("device {device:?}; {}", lines.join("; "))
        },
    );
}

/// Until what is left of a flood between host and machine has arrived.
fn quiet(sink: &mut Sink) {
    let mut last = u64::MAX;
    wait(PATIENCE, || {
        let now = sink.total();
        std::mem::replace(&mut last, now) == now
    });
}

/// Slow frames come by interrupt, and all arrive.
fn by_interrupt(host: &mut Host, sink: &mut Sink, name: &str, count: u64) {
    quiet(sink);
    let (irqs, got) = (seen::interrupts(), sink.total());
    host.send(count, 100);
    let mut arrived = 0;
    // What a frame of marking takes is counted by the guard.
    wait(5, || {
        arrived = sink.total() - got;
        arrived >= count
    });
    let moved = seen::interrupts() - irqs;
    host.row(
        moved >= count / 4 && arrived + 4 >= count,
        name,
        &format!("{arrived} of {count} packets read, {moved} interrupts"),
    );
}

fn pollers(field: &str) -> u64 {
    let status = seen::status().unwrap_or_default();
    status["pollers"].as_array().map_or(0, |all| all.iter().filter_map(|p| p[field].as_u64()).sum())
}

/// Packets of one poll at most: a turn of a lent poller, or of a look, is of 128 packets, which are two polls, or one where
/// the kernel does not follow a full driver call with a second.
const POLL_MOST: u64 = 128;

/// Interrupts stand still and turns keep their size.
fn polled(host: &mut Host, sink: &mut Sink, e: &Expected) {
    let (irqs, packets, got) = (seen::interrupts(), seen::received(), sink.total());
    let (turns, switches) = (pollers("turns"), seen::switches());
    let polls = seen::polls(|| std::thread::sleep(Duration::from_secs(2)));
    let (turns, switches) = (pollers("turns") - turns, seen::switches() - switches);
    let (irqs, packets, got) = (seen::interrupts() - irqs, seen::received() - packets, sink.total() - got);
    host.row(
        packets > 1000 && irqs * 1000 <= packets * e.leaks,
        "interrupts stay off",
        &format!("{irqs} interrupts for {packets} packets, {got} read"),
    );
    host.row(
        polls.own_packets > 500 && polls.most <= POLL_MOST && polls.budgets.keys().all(|b| *b <= POLL_MOST),
        "turns keep their size",
        &format!(
            "{} polls of at most {} packets (budget: polls {:?}) in about {turns} turns",
            polls.own, polls.most, polls.budgets
        ),
    );
    let all = polls.own_packets + polls.foreign_packets;
    host.row(
        polls.foreign_packets * 1000 <= all * e.leaks.max(20),
        "own turns",
        &format!(
            "{} of {all} packets in {} polls that are not weir's, {switches} changes of mode",
            polls.foreign_packets, polls.foreign
        ),
    );
}

fn ids(host: &mut Host, name: &str, e: &Expected) {
    let known = || {
        let all = seen::sources();
        all.len() == e.queues && all.iter().all(|s| s["napi_id"].as_u64().unwrap_or(0) != 0)
    };
    let ok = wait(5, known);
    let ids: Vec<String> = seen::sources().iter().map(|s| s["napi_id"].to_string()).collect();
    host.row(ok, name, &format!("ids {}", ids.join(" ")));
}

fn life(host: &mut Host, sink: &mut Sink, e: &Expected) -> anyhow::Result<()> {
    let mut guard = Guard::start(&SLOW)?;
    by_interrupt(host, sink, "interrupt mode", 60);
    ids(host, "ids of the sources", e);
    if taken_over(host, "takeover") {
        let handle = seen::status().unwrap_or_default()["interfaces"][0]["drops_total"]["handle"].clone();
        host.row(
            handle.as_u64().is_some_and(|n| n > 0),
            "handle by one frame",
            &format!("{handle} frames rewritten"),
        );
        polled(host, sink, e);
    }
    released(host, "release");
    restored(host, "settings restored");
    by_interrupt(host, sink, "interrupts again", 60);
    nobody(host, sink)?;
    released(host, "release after shedding");
    by_interrupt(host, sink, "a program that comes back", 60);
    watched(host);

    // Down and up, with the flood going on.
    taken_over(host, "before link down");
    net::set_up("eth0", false)?;
    let down = wait(PATIENCE, || seen::status().is_some_and(|s| s["interfaces"][0]["state"] == "down"));
    net::set_up("eth0", true)?;
    let up = wait(PATIENCE, || seen::status().is_some_and(|s| s["interfaces"][0]["state"] == "guarded"));
    host.row(down && up, "link down, up", &seen::reasons());
    ids(host, "ids after it", e);
    taken_over(host, "takeover after it");
    released(host, "release after it");

    if e.virtio && e.queues > 1 {
        let refused = net::channels("eth0", 1);
        host.row(
            refused.is_err(),
            "ethtool -L beside XDP",
            "virtio-net refuses it while any XDP program is attached",
        );
        let code = guard.end(libc::SIGTERM);
        host.note(&guard.log());
        restored(host, "settings restored at exit");
        net::channels("eth0", 1)?;
        guard = Guard::start(&SLOW)?;
        let sources = seen::sources().len();
        host.row(code == Some(0) && sources == 1, "ethtool -L combined 1", &format!("{sources} source"));
        host.send(30, 100);
        taken_over(host, "takeover of one queue");
        released(host, "release of one queue");
        guard.end(libc::SIGTERM);
        net::channels("eth0", e.queues as u32)?;
        guard = Guard::start(&SLOW)?;
        host.row(seen::sources().len() == e.queues, "back to all queues", &seen::reasons());
        by_interrupt(host, sink, "all queues receive", 60);
    } else {
        restored(host, "settings after it");
    }

    taken_over(host, "before SIGKILL");
    guard.end(libc::SIGKILL);
    let gone = wait(PATIENCE, || guard.keeper().is_none());
    host.calm();
    host.row(gone, "keeper, guard killed", guard.log().lines().last().unwrap_or("it said nothing"));
    host.note(&guard.log());
    restored(host, "settings restored by it");
    by_interrupt(host, sink, "interrupts after it", 60);
    drop(guard);

    let mut guard = Guard::start(&SLOW)?;
    by_interrupt(host, sink, "the next guard", 30);
    taken_over(host, "before both are killed");
    if let Some(pid) = guard.keeper() {
        // SAFETY: plain system call; the keeper lives as long as its guard.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    guard.end(libc::SIGKILL);
    host.calm();
    quiet(sink);
    let got = sink.total();
    host.send(30, 100);
    let mut arrived = 0;
    wait(5, || {
        arrived = sink.total() - got;
        arrived >= 30
    });
    host.row(arrived >= 30, "both killed: all arrives", &format!("{arrived} of 30 packets read"));
    let (code, text) = seen::weir(&["undo"]);
    host.row(
        code == 0,
        "weir undo",
        &format!("exit code {code}: {}", text.lines().last().unwrap_or_default()),
    );
    restored(host, "settings restored by undo");
    by_interrupt(host, sink, "interrupts after undo", 60);
    drop(guard);

    let mut guard = Guard::start(&SLOW)?;
    host.send(30, 100);
    taken_over(host, "before SIGTERM");
    let code = guard.end(libc::SIGTERM);
    host.calm();
    host.row(code == Some(0), "SIGTERM in poll mode", &format!("exit code {code:?}"));
    restored(host, "settings restored again");
    host.note(&guard.log());
    Ok(())
}

/// `weir watch` reads counters of the kernel's alone.
fn watched(host: &mut Host) {
    let (code, text) = seen::weir(&["watch", "--once"]);
    host.note(&text);
    host.row(
        code == 0,
        "weir watch",
        &format!("exit code {code}: {}", text.lines().last().unwrap_or_default()),
    );
}

/// Where a program has ended under a flood, its frames are shed before the kernel sees them; one that comes back gets
/// its own again.
fn nobody(host: &mut Host, sink: &mut Sink) -> anyhow::Result<()> {
    taken_over(host, "before shedding");
    let shed =
        || seen::status().and_then(|s| s["interfaces"][0]["drops_total"]["shed"].as_u64()).unwrap_or(0);
    sink.end();
    let before = shed();
    let sheds = wait(PATIENCE, || shed() > before + 1000);
    host.row(
        sheds,
        "sheds what nobody reads",
        &format!("{} frames shed, {before} before; {}", shed().saturating_sub(before), seen::reasons()),
    );
    host.calm();
    *sink = Sink::start()?;
    Ok(())
}

/// A kernel with neither busy polling nor threaded NAPI: weir says so, and touches nothing.
fn too_old(host: &mut Host, sink: &mut Sink) -> anyhow::Result<()> {
    let packets = |host: &mut Host, sink: &mut Sink, name: &str| by_interrupt(host, sink, name, 60);
    packets(host, sink, "interrupt mode");
    let (code, text) = seen::weir(&["guard", "eth0"]);
    host.note(&text);
    let why = text.lines().last().unwrap_or_default();
    host.row(code == 3 && text.contains("5.1"), "guard refuses", &format!("exit code {code}: {why}"));
    let device = (seen::number(FLUSH), seen::number(DEFER));
    host.row(
        device == (0, 0),
        "settings untouched",
        &format!("gro_flush_timeout {}, napi_defer_hard_irqs {}", device.0, device.1),
    );
    let (code, text) = seen::weir(&["undo"]);
    host.row(
        code == 0,
        "weir undo",
        &format!("exit code {code}: {}", text.lines().last().unwrap_or_default()),
    );
    watched(host);
    packets(host, sink, "interrupts after it");
    Ok(())
}

/// A driver that ignores the end of a poll: mode thread, by itself.
fn not_holding(host: &mut Host, sink: &mut Sink, lro: bool) -> anyhow::Result<()> {
    let threads = || seen::in_mode("thread") > 0;
    if lro {
        let mut guard = Guard::start(&SLOW)?;
        host.send(60, 100);
        let known = || seen::sources().iter().any(|s| s["napi_id"].as_u64().unwrap_or(0) != 0);
        let known = wait(PATIENCE, || known() || threads());
        let on = |on| if on { "on" } else { "off" };
        let during = on(net::lro("eth0"));
        let code = guard.end(libc::SIGTERM);
        let after = on(net::lro("eth0"));
        host.row(
            known && code == Some(0),
            "found with LRO on",
            &format!("LRO is {during} beside weir's XDP program, {after} after it"),
        );
        net::lro_off("eth0")?;
    }
    let mut guard = Guard::start(&SLOW)?;
    by_interrupt(host, sink, "interrupt mode", 60);
    host.flood(FLOOD);
    let taken = wait(PATIENCE, || seen::in_mode("poll") + seen::in_mode("thread") > 0);
    host.row(taken, "takeover", &seen::reasons());
    std::thread::sleep(Duration::from_secs(1));
    host.calm();
    // Turns that empty the ring are what makes it interrupt.
    let mut thread = false;
    for _ in 0..10 {
        host.flood(3000);
        thread = wait(2, threads);
        host.calm();
        if thread {
            break;
        }
        host.flood(FLOOD);
        wait(3, || seen::in_mode("poll") + seen::in_mode("thread") > 0);
    }
    host.calm();
    host.row(thread, "mode thread by itself", &seen::reasons());
    by_interrupt(host, sink, "packets in mode thread", 60);
    let device = (seen::number(FLUSH), seen::number(DEFER));
    host.row(
        device == (0, 0),
        "settings restored",
        &format!("gro_flush_timeout {}, defer {}", device.0, device.1),
    );
    host.note(&guard.log());
    guard.end(libc::SIGKILL);
    wait(PATIENCE, || guard.keeper().is_none());
    let threaded = seen::number("/sys/class/net/eth0/threaded");
    host.row(threaded == 0, "keeper ends the threads", &format!("threaded {threaded}"));
    by_interrupt(host, sink, "interrupts again", 60);
    Ok(())
}
