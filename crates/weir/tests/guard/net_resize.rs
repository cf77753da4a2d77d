//! Mode net on two CPUs: the second one takes a source when there is much to do, and gives it back when there is not. What is
//! asserted are states that are waited for and the order of what is read, which no busy machine changes; how much the machine
//! can do is not asserted.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::common::procs::{Guard, Manner, sources};
use crate::common::world::{PORT, World, bind_to};
use crate::common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};

/// Packets/s of both inputs: more than a quarter of a CPU, which counts as a full one here, and far from what two can do.
const RATE: f64 = 250_000.0;
const LOAD: Duration = Duration::from_millis(3500);

/// Reads until told to stop: datagrams, and those whose number is not above that of the one before.
fn read(socket: &UdpSocket, stop: &AtomicBool) -> (u64, u64) {
    bind_to(&[HOST_CPU]);
    socket.set_read_timeout(Some(ms(50))).unwrap();
    let (mut buffer, mut count, mut wrong, mut next) = ([0; 64], 0, 0, 0);
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) if length >= 16 => {
                // Its number is behind the time of its departure.
                let number = u64::from_ne_bytes(buffer[8..16].try_into().unwrap());
                (count, wrong) = (count + 1, wrong + u64::from(number < next));
                next = number + 1;
            }
            Ok(_) => {}
            Err(_) if stop.load(Relaxed) => return (count, wrong),
            Err(_) => {}
        }
    }
}

#[test]
fn the_set_grows_and_shrinks_and_no_packet_overtakes_another_root() {
    if !possible("the_set_grows_and_shrinks_and_no_packet_overtakes_another_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("netr", 2);
    let before = world.dump();
    let sockets = [world.server(0, PORT), world.server(1, PORT)];
    let cpus = format!("{HOST_CPU},{WIRE_CPU}");
    let names = world.interfaces();
    let args = ["--mode", "net", "--cpu", &cpus, "--ablate", "full-cpu"].into_iter();
    let args: Vec<&str> = names.iter().map(String::as_str).chain(args).collect();
    let guard = Guard::start_as(&world, &args, &[WIRE_CPU, HOST_CPU], &Manner::default()).unwrap();
    let changes = || guard.all().iter().filter(|line| line.contains("net       CPUs")).count();
    within("released, as nothing comes", ms(5000), || !world.taken(0) && !world.taken(1));

    let stop = AtomicBool::new(false);
    let (load, read) = std::thread::scope(|scope| {
        let readers = sockets.each_ref().map(|socket| scope.spawn(|| read(socket, &stop)));
        let load = world.send(&[(0, PORT), (1, PORT)], &[0, 1], &[(LOAD, RATE)]);
        let apart = || {
            let status = guard.ask(&world);
            let cpus: Vec<_> =
                sources(&status).iter().map(|s| (s["mode"].clone(), s["cpu"].clone())).collect();
            cpus.iter().all(|(mode, _)| mode == "poll") && cpus[0].1 != cpus[1].1
        };
        within("one source on each CPU", ms(3000), apart);
        let sent = load.wait().unwrap();
        within("one CPU again", ms(5000), || changes() >= 2);
        stop.store(true, Relaxed);
        (sent, readers.map(|reader| reader.join().unwrap()))
    });
    for ((count, wrong), sent) in read.iter().zip(&load.by_target) {
        println!("{count} of {sent} read, {wrong} out of order");
        assert_eq!(*wrong, 0);
        assert!(*count > 0 && count <= sent);
    }
    assert_eq!(changes(), 2, "a step up and a step down: {:?}", guard.all());
    within("released, as nothing comes any more", ms(5000), || !world.taken(0) && !world.taken(1));
    drop(guard);
    crate::common::dump::assert_same(&before, &world.dump(), "after the guard");
}
