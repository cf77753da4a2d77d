//! A small host for `weir explain`: a wire and a host in namespaces of their own, ordinary senders and programs.
//! Names, ports and addresses are drawn, so that nothing can be known by them.

use super::quiet::Quiet;
use super::{HOST_CPU, Random, WIRE_CPU, ms};
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::NetNs;

/// A child process, ended by its process id when dropped, also when it is stopped.
pub struct Program(Child);

impl Program {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A thread that sends until it is dropped.
pub struct Sender {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// The world of one test.
pub struct Host {
    pub wire: NetNs,
    pub host: NetNs,
    /// The host's end.
    pub name: String,
    /// The wire's end.
    pub far: String,
    /// A UDP or TCP port for the test.
    pub port: u16,
    /// A second one.
    pub other: u16,
    octet: u8,
    pids: RefCell<Vec<u32>>,
}

/// Longest that any sender of these tests sends.
const LONGEST: Duration = Duration::from_secs(60);

impl Host {
    pub fn new() -> Host {
        let mut random = Random::new();
        let mut draw = |n: u64| random.below(Duration::from_nanos(n)).as_nanos() as u64;
        let mut word = |first: char| -> String {
            let letters = (0..6).map(|_| char::from(b'a' + draw(26) as u8));
            std::iter::once(first).chain(letters).collect()
        };
        let (name, far) = (word('h'), word('w'));
        let octet = 1 + draw(200) as u8;
        let port = 1024 + draw(30_000) as u16;
        let other = 32_000 + draw(30_000) as u16;
        let (wire, host, pids) = (NetNs::new("xw"), NetNs::new("xh"), RefCell::default());
        let host = Host { wire, host, name, far, port, other, octet, pids };
        host.connect(&host.name, &host.far, octet);
        host
    }

    /// A veth pair between wire and host in network `198.18.OCTET.0/24`: the host is 1, the wire 2.
    pub fn connect(&self, name: &str, far: &str, octet: u8) {
        let near = self.host.name();
        self.wire.sh("ip", &["link", "add", far, "type", "veth", "peer", "name", name, "netns", near]);
        for (ns, dev, last) in [(&self.wire, far, 2), (&self.host, name, 1)] {
            let address = format!("198.18.{octet}.{last}/24");
            ns.sh("ip", &["link", "set", "lo", "up"]);
            ns.sh("ip", &["address", "add", &address, "dev", dev]);
            ns.sh("ip", &["link", "set", dev, "up"]);
        }
        let mac = |ns: &NetNs, dev: &str| {
            let text = ns.sh("ip", &["-o", "link", "show", dev]);
            text.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
        };
        // No ARP in the ledger.
        let (ours, theirs) = (mac(&self.host, name), mac(&self.wire, far));
        let known = |ns: &NetNs, dev: &str, last: u8, mac: &str| {
            let address = format!("198.18.{octet}.{last}");
            ns.sh("ip", &["neigh", "replace", &address, "lladdr", mac, "dev", dev]);
        };
        known(&self.wire, far, 1, &ours);
        known(&self.host, name, 2, &theirs);
    }

    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.octet, 1)
    }

    pub fn wire_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.octet, 2)
    }

    /// Runs a line of words inside the host.
    pub fn sh(&self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.host.sh(words[0], &words[1..])
    }

    /// A program inside the host on the host CPU; `input` is its standard input.
    pub fn program(&self, line: &str, input: Option<OwnedFd>) -> Program {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        command.stdin(input.map_or_else(Stdio::piped, Stdio::from));
        let child = self.host.run(move || {
            kern::wire::tasks::pin(0, HOST_CPU).unwrap();
            command.spawn()
        });
        let child = child.unwrap_or_else(|e| panic!("{line}: {e}"));
        self.pids.borrow_mut().push(child.id());
        Program(child)
    }

    /// `udp-sink` on a port of the host.
    pub fn sink(&self, port: u16, options: &str) -> Program {
        let sink = lab::locate("udp-sink", None).unwrap();
        let bind = SocketAddrV4::new(self.address(), port);
        let program = self.program(&format!("{} --bind {bind} {options}", sink.display()), None);
        let local = || kern::proc::udp_sockets(Some(port)).unwrap().len();
        super::within("sink is bound", ms(2000), || self.host.run(local) == 1);
        program
    }

    /// A UDP socket of the host.
    pub fn socket(&self, port: u16) -> UdpSocket {
        let address = self.address();
        self.host.run(move || UdpSocket::bind((address, port))).unwrap()
    }

    /// `rate` datagrams of 100 bytes a second to a port of the host, in bursts of `burst`.
    pub fn send(&self, port: u16, rate: u32, burst: u32) -> Sender {
        self.send_to(SocketAddrV4::new(self.address(), port), rate, burst)
    }

    /// The same to any address, which the wire must have a route to.
    pub fn send_to(&self, to: SocketAddrV4, rate: u32, burst: u32) -> Sender {
        let socket = self.wire.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        let mut sent = 0u64;
        self.repeat(rate, burst, move || {
            sent += 1;
            let _ = socket.send_to(&[&sent.to_ne_bytes()[..], &[0; 92]].concat(), to);
        })
    }

    /// Does `work` `rate` times a second on the wire's CPU, `burst` times in a row.
    pub fn repeat(&self, rate: u32, burst: u32, mut work: impl FnMut() + Send + 'static) -> Sender {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let _ = kern::wire::tasks::pin(0, WIRE_CPU);
            let begin = Instant::now();
            let mut bursts = 0u32;
            while !ends.load(Relaxed) && begin.elapsed() < LONGEST {
                (0..burst).for_each(|_| work());
                bursts += 1;
                let due = begin + Duration::from_secs(1) * bursts * burst / rate;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        Sender { stop, thread: Some(thread) }
    }

    /// Asserts that `weir explain` names `rule` first; the report, or `None` if the machine was too busy to tell.
    pub fn finds(&self, rule: &str) -> Option<Value> {
        let pids = self.pids.borrow();
        explained(&pids, || self.look(), |found| found.first().is_some_and(|first| first == rule))
    }

    /// Asserts that `weir explain` finds nothing.
    pub fn finds_nothing(&self) {
        let pids = self.pids.borrow();
        explained(&pids, || self.look(), <[String]>::is_empty);
    }

    /// What `weir explain` says, whatever it is.
    pub fn report(&self) -> Value {
        std::thread::sleep(Duration::from_millis(100));
        let (ok, text) = self.look();
        assert!(ok, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn look(&self) -> (bool, String) {
        let output = self.host.run(|| Command::new(env!("CARGO_BIN_EXE_weir")).args(EXPLAIN).output());
        let output = output.unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }
}

/// Arguments of a short look.
pub const EXPLAIN: [&str; 4] = ["explain", "--for", "1s", "--json"];
/// Looks at most, until nobody else has the host CPU: a program of somebody else is a fault of its own.
const LOOKS: usize = 4;

/// The report that `look` gets as text, whose rules are as `wanted` and whose ledger is unaccounted by its stated skew at
/// most. If it is not so twice although only `pids` had the host CPU, the test has failed; if others had it too often, it
/// says that it was skipped. Twice, because veth counts what a poll received at the poll's end: a reading in the middle of
/// one finds its packets lost and not yet received, and no second reading tells that they were under way.
pub fn explained(
    pids: &[u32],
    look: impl Fn() -> (bool, String),
    wanted: impl Fn(&[String]) -> bool,
) -> Option<Value> {
    // What was started has to be running.
    std::thread::sleep(ms(100));
    let mut wrong = 0;
    for _ in 0..LOOKS {
        let quiet = Quiet::watch(pids);
        let (ok, text) = look();
        let others = quiet.others();
        assert!(ok, "{text}");
        let report: Value = serde_json::from_str(&text).unwrap();
        let found = rules(&report);
        let (rest, offered, skew) = (&report["unaccounted"], &report["offered"], &report["skew"]);
        println!(
            "found {found:?}, unaccounted {rest} of {offered}, skew {skew}, others {:.0} %",
            others * 100.0
        );
        let whole = rest.as_i64().unwrap().unsigned_abs() <= skew.as_u64().unwrap();
        if wanted(&found) && whole {
            return Some(report);
        }
        wrong += u32::from(quiet.was());
        assert!(wrong < 2, "{report:#}");
    }
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    eprintln!("skipped: {name} needs CPU {HOST_CPU} for itself");
    None
}

/// Names of the rules that hold, the first cause first.
pub fn rules(report: &Value) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().map(|f| f["rule"].as_str().unwrap().to_owned()).collect()
}

/// A packet socket that sends on `dev`.
pub fn raw_socket(dev: &str) -> OwnedFd {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    use std::os::fd::AsRawFd;
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), None).unwrap();
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = nix::net::if_::if_nametoindex(dev).unwrap() as i32;
    // SAFETY: the pointer and length describe a live sockaddr_ll.
    let r = unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32)
    };
    assert_eq!(r, 0);
    fd
}

/// A descriptor that a child can have.
pub fn inherit(socket: impl Into<OwnedFd>) -> OwnedFd {
    socket.into()
}
