//! Random and mutated frames through a guarded interface under overload: what becomes of each is judged by policy's own
//! reading of it. 100 000 of them, a million with `WEIR_SOAK=1`.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

use crate::common::dump::assert_same;
use crate::common::procs::{Guard, Sink, sources};
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{alone, ms, possible, rounds, within};
use policy::classes::{Rule, Table, flag};
use testkit::frames::{Random, frame};

/// Protected beside the default.
const RULES: [&str; 3] = ["src/10.0.0.0/8", "dscp/cs6", "vlan/5"];
/// Work of the program per datagram, us: a fraction of the flood is more than it can read.
const WORK: u64 = 20;
/// Frames between two looks at what has passed.
const BATCH: usize = 64;

/// A packet socket on one end of the pair.
struct Packets(OwnedFd);

impl Packets {
    /// Opens it on interface `name` of the caller's namespace. A `tap` sees every frame that XDP lets pass, before
    /// anything else in the stack does.
    fn open(name: &str, tap: bool) -> Packets {
        let protocol = if tap { (libc::ETH_P_ALL as u16).to_be() } else { 0 };
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new and owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = kern::netns::index_of(name).unwrap() as i32;
        let room: i32 = 64 << 20;
        // SAFETY: each pointer and length describe one value that lives through the call.
        let done = unsafe {
            let length = size_of::<i32>() as u32;
            let room = (&raw const room).cast();
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, room, length) == 0
                && libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) == 0
        };
        assert!(done, "{}", std::io::Error::last_os_error());
        Packets(socket)
    }

    /// False if the ring of the other end was full, or held all that this socket may send: then nobody saw the frame.
    fn send(&self, frame: &[u8]) -> bool {
        let (at, length) = (frame.as_ptr().cast(), frame.len());
        // SAFETY: the frame lives through the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), at, length, 0) };
        let error = std::io::Error::last_os_error();
        let full = matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN));
        assert!(sent >= 0 || full, "{error}: {frame:02x?}");
        sent >= 0
    }

    /// The next frame that waits, cut to the buffer.
    fn take<'a>(&self, buffer: &'a mut [u8; 512]) -> Option<&'a [u8]> {
        // SAFETY: the buffer is that long and lives through the call.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        usize::try_from(got).ok().map(|length| &buffer[..length])
    }

    /// Frames that found no room here.
    fn lost(&self) -> u32 {
        let mut counts = [0u32; 2];
        let mut length = size_of_val(&counts) as u32;
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: the pointer and the length describe `counts`.
        let rc = unsafe {
            libc::getsockopt(self.0.as_raw_fd(), level, name, counts.as_mut_ptr().cast(), &raw mut length)
        };
        assert_eq!(rc, 0);
        counts[1]
    }
}

/// One frame that reached the host's ring.
struct Seen {
    protected: bool,
    /// A whole datagram for the program that is full, or a fragment, which may be shed while the budget runs out: nothing else may.
    surplus: bool,
    /// Nothing stands behind its VLAN tag: the kernel drops it between XDP and the tap.
    no_tap: bool,
    passed: bool,
    /// What it begins with after the addresses.
    head: Vec<u8>,
}

/// The number of a frame stands in its source address, which no rule looks at.
fn number(frame: &mut [u8], n: u32) {
    frame[..8].copy_from_slice(&[2, 0, 0, 0, 1, 0, 2, 0x77]);
    frame[8..12].copy_from_slice(&n.to_be_bytes());
}

/// Half of the IPv4 frames are for the host itself, with a checksum that its stack accepts.
fn for_host(frame: &mut [u8], random: &mut Random) {
    if random.below(2) == 0 || frame.len() < 34 || frame[12..15] != [8, 0, 0x45] {
        return;
    }
    frame[24..26].fill(0);
    frame[30..34].copy_from_slice(&[198, 18, 0, 1]);
    let sum = testkit::packet::checksum(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// What the guard has counted since the last time it was asked: normal, protected, over the bound, shed in all.
fn counted(world: &World, guard: &Guard) -> [u64; 4] {
    let status = guard.ask(world);
    let source = sources(&status).remove(0);
    assert_eq!(source["mode"], "poll", "{source}");
    let class = |name: &str| source["classes"][name].as_u64().unwrap();
    let shed = status["interfaces"][0]["drops_total"]["shed"].as_u64().unwrap();
    [class("normal"), class("protected"), source["over_bound"].as_u64().unwrap(), shed]
}

/// Lines of the kernel's log from here on that tell of a fault; `None` where it cannot be read.
fn faults() -> Option<impl FnMut() -> Vec<String>> {
    let mut log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok()?;
    log.seek(SeekFrom::End(0)).ok()?;
    Some(move || {
        let (mut lines, mut line) = (Vec::new(), [0; 8192]);
        loop {
            match log.read(&mut line) {
                Ok(length) => lines.push(String::from_utf8_lossy(&line[..length]).into_owned()),
                // Older lines were overwritten meanwhile.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
                Err(_) => break,
            }
        }
        let signs = ["BUG:", "WARNING:", "Oops", "general protection", "stall", "refcount_t", "hung task"];
        lines.retain(|l| signs.iter().any(|s| l.contains(s)));
        lines
    })
}

/// What was sent and what came of it.
struct Flow<'a> {
    from: Packets,
    tap: Packets,
    table: &'a Table,
    seen: Vec<Seen>,
    /// Frames of others by class: normal, protected.
    others: [u64; 2],
    refused: u64,
}

impl Flow<'_> {
    /// True if the frame got into the ring; then it is judged.
    fn send(&mut self, frame: &mut [u8]) -> bool {
        number(frame, self.seen.len() as u32);
        if !self.from.send(frame) {
            self.refused += 1;
            return false;
        }
        let (protector, view) = self.table.look(frame);
        let fragment = view.flags() & flag::FRAGMENT != 0;
        let whole = view.protocol() == 17 && view.flags() & (flag::PORTS | flag::FRAGMENT) == flag::PORTS;
        self.seen.push(Seen {
            protected: protector.is_some(),
            surplus: fragment || whole && view.ports().is_some_and(|(_, to)| to == PORT),
            no_tap: matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]) && frame.len() < 20,
            head: frame[12..].iter().take(28).copied().collect(),
            passed: false,
        });
        true
    }

    /// Marks what has passed; true if anything has.
    fn look(&mut self) -> bool {
        let (mut buffer, mut any) = ([0; 512], false);
        while let Some(frame) = self.tap.take(&mut buffer) {
            any = true;
            if frame[6..8] == [2, 0x77] {
                let n = u32::from_be_bytes(frame[8..12].try_into().unwrap());
                let seen = &mut self.seen[n as usize];
                assert!(!seen.passed, "frame {n} passed twice");
                seen.passed = true;
            } else if frame[6..12] == [2, 0, 0, 0, 2, 0] {
                let protected = self.table.protector(frame).is_some();
                self.others[usize::from(protected)] += 1;
            }
        }
        any
    }
}

/// Raw sockets of UDP and TCP.
fn listeners() -> Vec<OwnedFd> {
    let kinds = [libc::AF_INET, libc::AF_INET6]
        .map(|family| [(family, libc::IPPROTO_UDP), (family, libc::IPPROTO_TCP)]);
    let one = |(family, protocol): (i32, i32)| {
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(family, libc::SOCK_RAW, protocol) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new and owned by nobody else.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    kinds.into_iter().flatten().map(one).collect()
}

#[test]
fn random_frames_keep_their_class_under_overload_root() {
    if !possible("random_frames_keep_their_class_under_overload_root") {
        return;
    }
    let _alone = alone();
    let wanted = rounds(100_000, 1_000_000);
    let mut faults = faults();
    let world = World::new("frames", 1);
    world.inside(|| {
        // A kernel without IPv6 drops such frames later, which is as good.
        for what in ["all/accept_dad", "in0/accept_dad", "all/disable_ipv6", "in0/disable_ipv6"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{what}"), "0");
        }
    });
    within("the address is the interface's for good", ms(1000), || {
        !world.sh("ip addr show dev in0").contains("tentative")
    });
    let before = world.dump();
    let bind = SocketAddrV4::new([198, 18, 0, 1].into(), PORT);
    let mut sink = Sink::start_in(&world.host, world.loops * WORK, bind);
    // Whoever listens to all datagrams and segments makes every port somebody's: what is shed here is for the full program alone.
    let _all = world.host.run(|| Ok(listeners())).unwrap();
    let protect = RULES.join(",");
    // It stays polled, so that every frame is classed.
    let guard = world.guard(&["--ablate", "release", "--protect", &protect]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(300), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    load.wait().unwrap();
    sink.drained();

    let mut rules = Rule::defaults();
    rules.extend(RULES.iter().map(|r| Rule::parse(r).unwrap()));
    let table = Table::new(&rules).unwrap();
    let mut flow = Flow {
        from: world.wire_side.run(|| Ok(Packets::open("out0", false))).unwrap(),
        tap: world.host.run(|| Ok(Packets::open("in0", true))).unwrap(),
        table: &table,
        seen: Vec::with_capacity(3 * wanted),
        others: [0; 2],
        refused: 0,
    };
    let mut plain = {
        let to = SocketAddrV4::new([198, 18, 0, 2].into(), 10_000);
        testkit::packet::Udp::new(to, bind).frame()
    };
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let [.., shed_before] = counted(&world, &guard);
    let begin = Instant::now();
    let mut sent = 0;
    while sent < wanted && begin.elapsed() < ms(600_000) {
        for _ in 0..BATCH {
            let mut frame = frame(&mut random, PORT);
            for_host(&mut frame, &mut random);
            sent += usize::from(flow.send(&mut frame));
            // The flood: one datagram for each of them, and as many again as the ring takes.
            flow.send(&mut plain);
            flow.send(&mut plain);
        }
        flow.look();
    }
    let took = begin.elapsed();
    // Until nothing has come for a while.
    let mut calm = Instant::now();
    while calm.elapsed() < ms(200) {
        if flow.look() {
            calm = Instant::now();
        }
        std::thread::sleep(ms(1));
    }
    let [normal, protected, over, shed] = counted(&world, &guard);
    let shed = shed - shed_before;
    assert_eq!(flow.tap.lost(), 0, "the tap itself was too slow");

    let count = |what: &dyn Fn(&Seen) -> bool| flow.seen.iter().filter(|s| what(s)).count() as u64;
    let missing = count(&|s| !s.passed && !s.no_tap);
    let wrong: Vec<&Seen> = flow.seen.iter().filter(|s| !s.passed && !s.no_tap && !s.surplus).collect();
    let protected_missing = count(&|s| !s.passed && !s.no_tap && s.protected);
    let sent_protected = count(&|s| s.protected);
    let all = flow.seen.len() as u64;
    println!(
        "{sent} random frames and {} of the flood in {took:.1?}, {} found the ring full; {protected} protected, \
         {over} over their bound, {shed} shed; {:?} of others",
        all - sent as u64,
        flow.refused,
        flow.others
    );
    assert!(sent >= wanted, "{sent} random frames in {took:?}");
    let first: Vec<&Vec<u8>> = wrong.iter().take(8).map(|s| &s.head).collect();
    assert!(
        wrong.is_empty(),
        "{} frames that are neither for the full program nor fragments are gone: {first:02x?}",
        wrong.len()
    );
    assert!(
        protected_missing <= over,
        "{protected_missing} protected frames were shed, {over} were over a bound"
    );
    assert_eq!(missing, shed, "each frame either passed or was counted as shed");
    assert_eq!(protected + over, sent_protected + flow.others[1], "protected");
    assert_eq!(normal + protected, all + flow.others[0] + flow.others[1], "each frame has one class");
    assert!(shed * 10 > all && protected * 50 > all, "the frames show nothing");
    if let Some(faults) = &mut faults {
        assert_eq!(faults(), Vec::<String>::new(), "in the kernel's log");
    }
    drop(sink);
    assert_eq!(guard.stop().0.code(), Some(0));
    assert_same(&before, &world.dump(), "after random frames");
}

/// A port is full on this host only: what goes through it to the same port of another one is passed on.
#[test]
fn what_a_host_forwards_is_not_shed_root() {
    if !possible("what_a_host_forwards_is_not_shed_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("transit", 1);
    world.inside(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    });
    world.sh("ip address add 198.18.0.77/32 dev in0");
    world.sh("ip route add 203.0.113.0/24 dev in0");
    world.sh("ip neigh replace 203.0.113.5 lladdr 02:00:00:00:02:00 dev in0");
    let any = SocketAddrV4::new([0, 0, 0, 0].into(), PORT);
    let mut sink = Sink::start_in(&world.host, world.loops * 5 * WORK, any);
    let guard = world.guard(&["--ablate", "release", "--protect", "none"]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(300), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    load.wait().unwrap();
    sink.drained();

    let table = Table::new(&[]).unwrap();
    let mut flow = Flow {
        from: world.wire_side.run(|| Ok(Packets::open("out0", false))).unwrap(),
        tap: world.host.run(|| Ok(Packets::open("in0", true))).unwrap(),
        table: &table,
        seen: Vec::new(),
        others: [0; 2],
        refused: 0,
    };
    let from = SocketAddrV4::new([198, 18, 0, 2].into(), 10_000);
    // Each of its addresses, and one behind it.
    let mut frames = [[198, 18, 0, 1], [198, 18, 0, 77], [203, 0, 113, 5]]
        .map(|to| testkit::packet::Udp::new(from, SocketAddrV4::new(to.into(), PORT)).frame());
    let mut sent: [Vec<usize>; 3] = Default::default();
    let wanted = rounds(15_000, 150_000);
    let begin = Instant::now();
    while flow.seen.len() < wanted && begin.elapsed() < ms(60_000) {
        for (frame, sent) in frames.iter_mut().zip(&mut sent) {
            let number = flow.seen.len();
            if flow.send(frame) {
                sent.push(number);
            } else {
                std::thread::sleep(ms(1));
            }
        }
        flow.look();
    }
    std::thread::sleep(ms(200));
    flow.look();
    assert_eq!(flow.tap.lost(), 0, "the tap itself was too slow");
    let shed = sent.each_ref().map(|sent| sent.iter().filter(|&&n| !flow.seen[n].passed).count());
    println!("of {:?} sent {shed:?} were shed", sent.each_ref().map(Vec::len));
    assert!(shed[0] * 10 > sent[0].len() && shed[1] * 10 > sent[1].len(), "nothing was shed: {shed:?}");
    assert_eq!(shed[2], 0, "of {} frames in transit", sent[2].len());
    drop(sink);
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// Two programs on one port, each on an address of its own: what the kernel gives to the full one is shed, and the other one
/// gets all that is for it.
#[test]
fn of_two_sockets_on_a_port_the_full_one_is_shed_for_root() {
    if !possible("of_two_sockets_on_a_port_the_full_one_is_shed_for_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("shared", 1);
    world.sh("ip address add 198.18.0.77/32 dev in0");
    let [slow, quick] = [[198, 18, 0, 1], [198, 18, 0, 77]].map(|to| SocketAddrV4::new(to.into(), PORT));
    let mut full = Sink::start_in(&world.host, world.loops * 40 * WORK, slow);
    let mut other = Sink::start_in(&world.host, world.loops, quick);
    let guard = world.guard(&["--ablate", "release", "--protect", "none"]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(300), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    load.wait().unwrap();
    full.drained();
    let before = other.drained();

    let table = Table::new(&[]).unwrap();
    let mut flow = Flow {
        from: world.wire_side.run(|| Ok(Packets::open("out0", false))).unwrap(),
        tap: world.host.run(|| Ok(Packets::open("in0", true))).unwrap(),
        table: &table,
        seen: Vec::new(),
        others: [0; 2],
        refused: 0,
    };
    let from = SocketAddrV4::new([198, 18, 0, 2].into(), 10_000);
    let mut frames = [slow, quick].map(|to| testkit::packet::Udp::new(from, to).frame());
    let mut sent: [Vec<usize>; 2] = Default::default();
    let wanted = rounds(10_000, 100_000);
    let begin = Instant::now();
    while flow.seen.len() < wanted && begin.elapsed() < ms(60_000) {
        // Less than the ring and the other one's socket hold, so that only the full one loses.
        for _ in 0..16 {
            for (frame, sent) in frames.iter_mut().zip(&mut sent) {
                let number = flow.seen.len();
                if flow.send(frame) {
                    sent.push(number);
                }
            }
        }
        flow.look();
        std::thread::sleep(ms(1));
    }
    std::thread::sleep(ms(200));
    flow.look();
    assert_eq!(flow.tap.lost(), 0, "the tap itself was too slow");
    let shed = sent.each_ref().map(|sent| sent.iter().filter(|&&n| !flow.seen[n].passed).count());
    println!("of {:?} sent {shed:?} were shed", sent.each_ref().map(Vec::len));
    assert!(shed[0] * 10 > sent[0].len(), "nothing was shed: {shed:?}");
    assert_eq!(shed[1], 0, "for the other one, of {}", sent[1].len());
    let read = other.drained() - before;
    assert_eq!(read, sent[1].len() as u64, "read by the other one");
    drop((full, other));
    assert_eq!(guard.stop().0.code(), Some(0));
}
