//! What users of the host itself do changes nothing for the guard's interfaces.

use std::net::{Ipv4Addr, UdpSocket};

use crate::common::world::{FLOOD, PORT, World, address};
use crate::common::{alone, ms, possible, within};
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};

/// First port of the sockets that nobody reads.
const FIRST: u16 = 20_000;
/// Datagrams that overflow one of them.
const MANY: usize = 64;

/// Sockets of `uid` that nobody reads.
fn unread(world: &World, uid: u32, ports: std::ops::Range<u16>) -> Vec<UdpSocket> {
    let make = move || {
        // The calling thread alone: the library would change all.
        let user = |id: u32| {
            // SAFETY: a plain system call; -1 leaves the real and the saved id alone.
            let rc = unsafe { libc::syscall(libc::SYS_setresuid, -1, id, -1) };
            assert_eq!(rc, 0, "setresuid");
        };
        user(uid);
        let sockets: Vec<UdpSocket> =
            ports.map(|port| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap()).collect();
        user(0);
        sockets.iter().for_each(|socket| setsockopt(socket, RcvBuf, &2048).unwrap());
        sockets
    };
    world.inside(make)
}

/// Overflows each of the ports by datagrams of the wire.
fn overflow(world: &World, ports: std::ops::Range<u16>) {
    let send = move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        for port in ports {
            (0..MANY).for_each(|_| drop(socket.send_to(&[0; 200], (address(0), port))));
        }
        Ok(())
    };
    world.wire_side.run(send).unwrap();
}

/// The guard hears of everything that the loopback loses before it hears of the flood that comes after it: the takeover that
/// is waited for shows that the others would have been seen.
#[test]
fn losses_on_the_loopback_are_evidence_of_nothing_root() {
    if !possible("losses_on_the_loopback_are_evidence_of_nothing_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("local", 1);
    let _sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    let unread = unread(&world, 0, FIRST..FIRST + 8);
    // Half a second, several 100 k/s: without the distinction it is overload after 8 ms.
    world.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let end = std::time::Instant::now() + ms(500);
        while std::time::Instant::now() < end {
            for port in FIRST..FIRST + 8 {
                let _ = socket.send_to(&[0; 200], (Ipv4Addr::LOCALHOST, port));
            }
        }
    });
    let status = guard.ask(&world);
    println!("{} losses on the loopback", status["losses_foreign"]);
    assert!(status["losses_foreign"].as_u64().unwrap() > 10_000, "{status}");
    assert_eq!((&status["mode_switches"], status["consumers"].as_array().unwrap().len()), (&0.into(), 0));
    let load = world.send(&[(0, PORT)], &[], &[(ms(500), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    load.wait().unwrap();
    drop(unread);
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// States are waited for: each round of the wire's datagrams is followed by a look at the table, until it is as it must be.
#[test]
fn a_user_with_many_sockets_keeps_nobody_out_root() {
    if !possible("a_user_with_many_sockets_keeps_nobody_out_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("table", 1);
    let guard = world.guard(&[]);
    let (greedy, other) = (FIRST..FIRST + 100, FIRST + 200..FIRST + 203);
    let sockets = [unread(&world, 1000, greedy.clone()), unread(&world, 1001, other.clone())];
    let tracked = |ports: &std::ops::Range<u16>| {
        let status = guard.ask(&world);
        let consumers = status["consumers"].as_array().unwrap().clone();
        let port = |c: &serde_json::Value| c["socket"].as_str()?.strip_prefix("udp ")?.parse().ok();
        (consumers.iter().filter_map(port).filter(|p| ports.contains(p)).count(), status)
    };
    within("the table is full of one user's", ms(4000), || {
        overflow(&world, greedy.clone());
        tracked(&greedy).0 == 64
    });
    within("the other one's sockets are tracked", ms(4000), || {
        overflow(&world, other.clone());
        tracked(&other).0 == 3
    });
    within("one is refused for its user's share", ms(4000), || {
        overflow(&world, greedy.clone());
        guard.said("its user has a quarter of the table").is_some()
    });
    let (there, status) = tracked(&other);
    println!("{} refused, {} evicted", status["consumers_refused"], status["consumers_evicted"]);
    assert_eq!(there, 3, "{status}");
    assert!(
        status["consumers_evicted"].as_u64().unwrap() >= 3 && status["consumers_refused"] != 0,
        "{status}"
    );
    drop(sockets);
    assert_eq!(guard.stop().0.code(), Some(0));
}
