//! The probes of `weir watch` on this kernel: bounds of their tables, and places that are given to other sockets.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use kern::probes::{Probes, Reading, SOCKETS, WAITS, Wait};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use testkit::{NetNs, root_or_skip};

fn inode(socket: &UdpSocket) -> u64 {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
    link.to_str().unwrap().trim_start_matches("socket:[").trim_end_matches(']').parse().unwrap()
}

fn namespace() -> NetNs {
    let ns = NetNs::new("prb");
    ns.sh("ip", &["link", "set", "lo", "up"]);
    ns
}

fn load() -> Probes {
    let inode = kern::netns::current_inode().unwrap();
    let probes = Probes::load(u32::try_from(inode).unwrap()).unwrap();
    assert!(probes.missing().is_empty(), "{:?}", probes.missing());
    probes
}

fn cpus() -> Vec<u32> {
    kern::cpus::online().unwrap().iter().map(|cpu| cpu as u32).collect()
}

fn samples(reading: &Reading, wait: Wait) -> u32 {
    let at = Wait::ALL.iter().position(|w| *w == wait).unwrap();
    reading.cpus.iter().map(|c| c.samples[at]).sum()
}

/// Sends so many datagrams to it and reads them.
fn exchange(socket: &UdpSocket, datagrams: u32) {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut buffer = [0; 64];
    for _ in 0..datagrams {
        sender.send_to(&[0; 20], socket.local_addr().unwrap()).unwrap();
        assert_eq!(socket.recv(&mut buffer).unwrap(), 20);
    }
}

#[test]
fn reads_are_counted_per_socket_and_places_are_given_on_root() {
    if !root_or_skip("reads_are_counted_per_socket_and_places_are_given_on_root") {
        return;
    }
    namespace().run(|| {
        let mut probes = load();
        let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let first = bind();
        let other = bind();
        // Inodes are given out one after the other, per CPU in blocks: some socket has the place of the first.
        let end = Instant::now() + Duration::from_secs(20);
        let twin = loop {
            let socket = bind();
            if inode(&socket) % SOCKETS as u64 == inode(&first) % SOCKETS as u64 {
                break socket;
            }
            assert!(Instant::now() < end, "no second socket of this place");
        };
        let all = [&first, &other, &twin].map(inode);
        let read = |probes: &mut Probes, sockets: &[u64]| probes.read(&cpus(), sockets).reads;
        assert_eq!(read(&mut probes, &all), all.map(|inode| (inode, 0)).into());
        exchange(&first, 30);
        exchange(&other, 7);
        exchange(&twin, 5);
        let told = read(&mut probes, &all);
        assert_eq!(told, [(all[0], 30), (all[1], 7)].into(), "the place of the third is taken");
        // Errors are no reads, and a look is none either.
        other.set_nonblocking(true).unwrap();
        assert!(other.recv(&mut [0; 8]).is_err());
        let sender = bind();
        sender.send_to(&[], other.local_addr().unwrap()).unwrap();
        assert_eq!(other.peek(&mut [0; 8]).unwrap(), 0);
        assert_eq!(other.recv(&mut [0; 8]).unwrap(), 0, "an empty datagram is one");
        assert_eq!(read(&mut probes, &all)[&all[1]], 8);
        drop(first);
        let rest = [all[1], all[2]];
        // One that is not listed twice is gone.
        assert!(!read(&mut probes, &rest).contains_key(&all[2]));
        assert_eq!(read(&mut probes, &rest)[&all[2]], 0);
        exchange(&twin, 9);
        assert_eq!(read(&mut probes, &rest), [(all[1], 8), (all[2], 9)].into());
        // Those of other namespaces are not counted.
        let elsewhere = NetNs::new("prx");
        elsewhere.sh("ip", &["link", "set", "lo", "up"]);
        let (count, far) = elsewhere.run(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            exchange(&socket, 20);
            (probes.read(&cpus(), &[inode(&socket)]), inode(&socket))
        });
        assert!(matches!(count.reads.get(&far), None | Some(0)), "{:?}", count.reads);
    });
}

/// Datagrams that can be followed at one time (`WEIR_FOLLOWED`).
const FOLLOWED: u32 = 4096;

#[test]
fn more_datagrams_than_can_be_followed_are_counted_root() {
    if !root_or_skip("more_datagrams_than_can_be_followed_are_counted_root") {
        return;
    }
    namespace().run(|| {
        let mut probes = load();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(64 << 20)).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = [inode(&socket)];
        let before = probes.read(&cpus(), &own);
        // So slow that each is looked at: more than 200 us apart.
        let mut sent = 0u32;
        let begin = Instant::now();
        let lost = |reading: &Reading| reading.cpus.iter().map(|c| c.lost).sum::<u32>();
        let mut now = before.clone();
        while lost(&now) - lost(&before) < 200 && begin.elapsed() < Duration::from_secs(30) {
            for _ in 0..100 {
                sender.send_to(&[0; 20], socket.local_addr().unwrap()).unwrap();
                std::thread::sleep(Duration::from_micros(250));
            }
            sent += 100;
            now = probes.read(&cpus(), &own);
        }
        assert!(lost(&now) - lost(&before) >= 200, "{sent} sent, all followed");
        assert_eq!(samples(&now, Wait::Socket), samples(&before, Wait::Socket), "nothing was read yet");
        let mut buffer = [0; 64];
        (0..sent).for_each(|_| assert_eq!(socket.recv(&mut buffer).unwrap(), 20));
        let end = probes.read(&cpus(), &own);
        let followed = samples(&end, Wait::Socket) - samples(&before, Wait::Socket);
        println!("{sent} sent, {followed} followed, {} had no room", lost(&end) - lost(&before));
        // Places of those between that were not looked at stay free.
        assert!(followed <= FOLLOWED && followed > FOLLOWED * 3 / 4, "{followed}");
        assert_eq!(end.reads[&own[0]], sent);
        // There is room again.
        exchange(&socket, 2000);
        let after = probes.read(&cpus(), &own);
        assert!(samples(&after, Wait::Socket) > samples(&end, Wait::Socket));
        assert_eq!(lost(&after), lost(&end));
        assert_eq!(after.cpus[0].samples.len(), WAITS);
    });
}

#[test]
fn they_cost_what_the_kernel_counts_root() {
    if !root_or_skip("they_cost_what_the_kernel_counts_root") {
        return;
    }
    namespace().run(|| {
        let probes = load();
        let counting = kern::probes::count_costs().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        exchange(&socket, 1000);
        let costs = probes.costs();
        drop(counting);
        let of =
            |name: &str| costs.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("{name}: {costs:?}"));
        assert_eq!(costs.len(), 17, "{costs:?}");
        for name in ["weir_entry", "weir_ready", "weir_read"] {
            assert!(of(name).runs >= 1000 && of(name).ns > 0, "{costs:?}");
        }
        // Other namespaces are counted only if the machine does something there.
        println!("{costs:#?}");
    });
}
