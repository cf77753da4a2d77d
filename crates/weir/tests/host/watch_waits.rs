//! Waits of `weir watch --probes` before and beside datagrams: of TCP against those that the program itself sees, and of a full
//! backlog behind RPS against its length over its rate.

use crate::common::faults::Host;
use crate::common::stamps::{Reader, inside, now_ns, wait};
use crate::common::watched::Watch;
use crate::common::world::{FLOOD, PORT, World, far};
use crate::common::{HOST_CPU, alone, ms, possible};
use kern::wire::counters;
use see::Snapshot;
use see::model::{Delay, Place, Waited};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A program that reads times of sending from a connection.
fn reader(mut stream: TcpStream, pause: Duration) -> Reader {
    stream.set_read_timeout(Some(ms(20))).unwrap();
    let (mut kept, mut buffer) = (0, [0; 8]);
    let next = move || {
        kept += stream.read(&mut buffer[kept..]).ok()?;
        (kept == buffer.len()).then(|| {
            kept = 0;
            u64::from_ne_bytes(buffer)
        })
    };
    Reader::start(next, pause, false)
}

/// The wait of TCP in 1 s while a reader with this pause gets 500 messages a second, and the reader's own waits.
fn paused(host: &Host, pause: Duration) -> (Waited, Vec<f64>) {
    let address = host.address();
    let listener = host.host.run(|| TcpListener::bind((address, 0))).unwrap();
    let to = listener.local_addr().unwrap();
    let mut client = host.wire.run(|| TcpStream::connect(to)).unwrap();
    client.set_nodelay(true).unwrap();
    let reader = reader(listener.accept().unwrap().0, pause);
    let load = host.repeat(500, 1, move || _ = client.write_all(&now_ns().to_ne_bytes()));
    let watch = Watch::start(&["--probes", "--interval", "1s"], inside(&host.host));
    watch.line();
    let seen = watch.interval();
    drop(load);
    watch.end();
    assert!(seen.missing.iter().all(|m| !m.contains("probes")), "{:?}", seen.missing);
    (wait(&seen, Delay::Tcp).expect("it was measured").clone(), reader.end())
}

#[test]
fn a_pause_of_a_tcp_reader_is_a_wait_root() {
    if !possible("a_pause_of_a_tcp_reader_is_a_wait_root") {
        return;
    }
    let _alone = alone();
    let host = Host::new();
    let at = |sorted: &[f64], q: f64| sorted[((sorted.len() - 1) as f64 * q) as usize];
    let near = |a: f64, b: f64| (a - b).abs() < 0.2 * b + 2e3;
    let (tcp, own) = paused(&host, ms(50));
    println!("{tcp:?}\nprogram p50 {} p99 {} max {}", at(&own, 0.5), at(&own, 0.99), at(&own, 1.0));
    assert!(tcp.p99_us >= 40e3, "a pause of 50 ms");
    assert!(tcp.samples >= 100 && tcp.count >= tcp.samples && tcp.p50_us < tcp.p99_us, "{tcp:?}");
    assert!(near(tcp.p50_us, at(&own, 0.5)) && near(tcp.p99_us, at(&own, 0.99)), "what the program sees");
    // And without the pause there is no such wait.
    let (tcp, own) = paused(&host, Duration::ZERO);
    println!("{tcp:?}\nprogram p50 {} p99 {}", at(&own, 0.5), at(&own, 0.99));
    assert!(tcp.p50_us < 5e3 && near(tcp.p50_us, at(&own, 0.5)), "{tcp:?}");
}

/// Watches the host inside for an interval of this length, after one that is left out.
fn watched(world: &World, interval: &str) -> Snapshot {
    let watch = Watch::start(&["--probes", "--interval", interval], |mut command| {
        world.inside(move || command.spawn()).unwrap()
    });
    watch.line();
    let seen = watch.interval();
    watch.end();
    assert!(seen.missing.iter().all(|m| !m.contains("probes")), "{:?}", seen.missing);
    seen
}

#[test]
fn a_full_backlog_is_waited_in_for_its_length_over_its_rate_root() {
    if !possible("a_full_backlog_is_waited_in_for_its_length_over_its_rate_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("wbl", 1);
    let sink = world.sink(0, PORT);
    let set = |attribute: &str, value: &str| {
        let (attribute, value) = (attribute.to_owned(), value.to_owned());
        world.inside(move || counters::set_interface(&far(0), &attribute, &value)).unwrap();
    };
    // Without the timer the wire's CPU polls the device; without RPS there is no backlog.
    set("gro_flush_timeout", "0");
    set("napi_defer_hard_irqs", "0");
    let load = world.send(&[(0, PORT)], &[], &[(ms(60_000), 50e3)]);
    let seen = watched(&world, "1s");
    assert!(wait(&seen, Delay::Stack).is_some_and(|w| w.samples > 100), "{:?}", seen.probes);
    assert!(wait(&seen, Delay::Backlog).is_none(), "{:?}", seen.probes);
    drop(load);
    set("queues/rx-0/rps_cpus", "2");
    // More than the fastest host hands up: some carry FLOOD.
    let _load = world.send(&[(0, PORT)], &[], &[(ms(60_000), 8.0 * FLOOD)]);
    // Longer: beside the flood the kernel's counters and the probes' are read some time apart, and compared below.
    let seen = watched(&world, "1500ms");
    let backlog = wait(&seen, Delay::Backlog).expect("it was measured").clone();
    let stage = seen.path.iter().find(|s| s.place == Place::Backlog).unwrap();
    let cpu = seen.cpus.iter().find(|c| c.cpu as usize == HOST_CPU).unwrap();
    let room: f64 =
        std::fs::read_to_string("/proc/sys/net/core/netdev_max_backlog").unwrap().trim().parse().unwrap();
    let rate = cpu.packets as f64 / seen.interval_s;
    println!(
        "{backlog:?}\nlost {}, {:.0} k/s handed up; {room} packets take {:.0} us",
        stage.lost(),
        rate / 1e3,
        room / rate * 1e6
    );
    assert!(stage.lost() > 0, "the backlog was full: {:?}", stage.drops);
    assert_eq!(stage.wait.unwrap().p50_us, backlog.p50_us);
    assert!(backlog.samples > 100 && backlog.count > 10 * backlog.samples, "{backlog:?}");
    // Little: as many are in it in the mean as come while one waits. There is room for as many in work and as many behind them.
    let mean = backlog.sum_us / backlog.count as f64 / 1e6 * rate;
    println!("{mean:.0} wait in the mean");
    assert!(mean < 2.0 * room, "{mean} in {room}");
    // Those that found it nearly full had all the others before them, which are handed up several times as fast in a row.
    assert!(backlog.max_us > 0.3 * room / rate * 1e6, "{backlog:?}");
    // Each packet that came through it stands for itself or was stood for, but for samples whose place another one has taken: of 256
    // places some 30 to 60 are taken anew while one waits, the more the slower the host.
    let share = backlog.count as f64 / cpu.packets as f64;
    assert!((0.65..1.2).contains(&share), "{share} of what came");
    drop(sink);
}
