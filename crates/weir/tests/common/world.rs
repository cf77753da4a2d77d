//! A wire and a host, joined by veth pairs, wired as the lab's `stock-timer`: the device's flush timer on the host
//! CPU stands for a moderated interrupt.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use kern::wire::netns::Namespace;
use kern::wire::source::{Load, Payload, Phase, Running, Target, Wire};
use kern::wire::{counters, ethtool, link, tasks};

use super::procs::{Guard, Manner, Sink};
use super::{HOST_CPU, WIRE_CPU, dump, ms};

/// A flood, packets/s: several times what the host can read.
pub const FLOOD: f64 = 1e6;
/// Port of the first sink.
pub const PORT: u16 = 9000;
/// Work of a sink per datagram.
const WORK: Duration = Duration::from_micros(1);
/// Period of the flush timer, ns.
const MODERATION_NS: u64 = 50_000;

/// Where frames of a load go: an input and a UDP port of the host.
pub type To = (u8, u16);

/// The world of one test; everything is gone when it is dropped.
pub struct World {
    /// The generator.
    pub wire: Wire,
    /// The machine under test.
    pub host: Arc<Namespace>,
    /// The other side.
    pub wire_side: Namespace,
    /// For journals, sockets and files of the guards.
    pub dir: tempfile::TempDir,
    /// Rounds of work per datagram that take 1 us on the host CPU.
    pub loops: u64,
    inputs: u8,
    resident: Resident,
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that lives inside a namespace and does one job after the other: entering costs mounts, which under load
/// can take longer than what is measured.
struct Resident {
    jobs: Option<Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Resident {
    fn new(ns: &Arc<Namespace>) -> Resident {
        let ns = Arc::clone(ns);
        let (sender, jobs) = channel::<Job>();
        let thread = std::thread::spawn(move || {
            ns.enter().unwrap();
            jobs.into_iter().for_each(|job| job());
        });
        Resident { jobs: Some(sender), thread: Some(thread) }
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, answer) = channel();
        // Without a listener the test has failed already.
        let job = move || drop(sender.send(work()));
        self.jobs.as_ref().unwrap().send(Box::new(job)).expect("the thread inside lives");
        answer.recv().expect("work inside the namespace panicked; see above")
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // A panic in there has been shown by the one who waited for its answer.
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Name of the host's end of input `n`.
pub fn far(n: u8) -> String {
    format!("in{n}")
}

/// Name of the wire's end of input `n`.
pub fn near(n: u8) -> String {
    format!("out{n}")
}

/// Address of the host at input `n`.
pub fn address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, n, 1)
}

/// Address of the wire at input `n`.
pub fn peer(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, n, 2)
}

/// Single datagrams from an ordinary socket of the wire; ends when dropped. The generator would wait actively between
/// two frames, and hold up everything else on its CPU for that long.
pub struct Trickle {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Trickle {
    /// Ends it; datagrams sent.
    pub fn end(mut self) -> u64 {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.sent.load(Relaxed)
    }
}

impl Drop for Trickle {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

impl World {
    /// A world with `inputs` pairs; `tag` tells it from the others of this program.
    pub fn new(tag: &str, inputs: u8) -> World {
        // Of test programs that were killed.
        let _ = kern::wire::netns::remove_stale();
        let host = Arc::new(Namespace::create(&format!("{tag}h")).unwrap());
        let world = World {
            wire: Wire::load().unwrap(),
            resident: Resident::new(&host),
            host,
            wire_side: Namespace::create(&format!("{tag}w")).unwrap(),
            dir: tempfile::tempdir().unwrap(),
            loops: calibrate(),
            inputs,
        };
        world.host.run(|| link::up(1)).unwrap();
        (0..inputs).for_each(|n| {
            world.connect(n);
            world.prime(n);
        });
        world
    }

    /// Makes input `n`: pair, address, wiring. Also after it was deleted, and under load.
    pub fn connect(&self, n: u8) {
        let (near, far) = (near(n), far(n));
        let ends = ((near.as_str(), [2, 0, 0, 0, 2, n]), (far.as_str(), [2, 0, 0, 0, 1, n]));
        let (near, _) = link::veth(&self.wire_side, ends.0, &self.host, ends.1).unwrap();
        self.wire.output(u32::from(n), &self.wire_side, near.index).unwrap();
        let ready = || {
            link::address(near.index, peer(n), 24)?;
            link::neighbour(near.index, address(n), [2, 0, 0, 0, 1, n])?;
            // Datagrams of a sender with segmentation offload go round the receiver's NAPI.
            sh(&format!("ethtool -K {} tso off gso off", near.name));
            Ok(())
        };
        self.wire_side.run(ready).unwrap();
        self.prepare(n);
    }

    /// Puts the host's end of input `n` up with its address and its wiring, for the first time or again.
    pub fn prepare(&self, n: u8) {
        let name = far(n);
        self.host
            .run(|| {
                let index = nix::net::if_::if_nametoindex(name.as_str()).unwrap();
                link::up(index)?;
                ethtool::gro_on(&name)?;
                link::address(index, address(n), 24)?;
                link::neighbour(index, peer(n), [2, 0, 0, 0, 2, n])
            })
            .unwrap();
        self.prepare_settings(n);
    }

    /// Gives the host's end of input `n` the timer of its wiring, for the first time or again.
    pub fn prepare_settings(&self, n: u8) {
        let name = far(n);
        self.host
            .run(|| {
                // Never counts down to zero within a test: the timer is the only thing that starts a poll.
                counters::set_interface(&name, "napi_defer_hard_irqs", &i32::MAX.to_string())?;
                counters::set_interface(&name, "gro_flush_timeout", &MODERATION_NS.to_string())
            })
            .unwrap();
    }

    /// Has the NAPI of input `n` polled once on the host CPU, to which its timer belongs from then on. Not while a
    /// load runs: then the wire's CPU gets the timer.
    pub fn prime(&self, n: u8) {
        // A timer that never counts down stays on the CPU that has it, whoever sends: without a timeout its next poll
        // is the last, and the CPU of the next frame gets it.
        let name = far(n);
        let end_timer = || {
            let before = std::fs::read_to_string(format!("/sys/class/net/{name}/gro_flush_timeout")).unwrap();
            counters::set_interface(&name, "gro_flush_timeout", "0")?;
            std::thread::sleep(ms(2));
            counters::set_interface(&name, "gro_flush_timeout", before.trim())
        };
        self.host.run(end_timer).unwrap();
        let mut frame = [[2, 0, 0, 0, 1, n], [2, 0, 0, 0, 2, n]].concat();
        frame.extend([0x88, 0xb5]);
        frame.resize(60, 0);
        self.wire.prime(&self.wire_side, HOST_CPU, u32::from(n), frame).unwrap();
    }

    /// Names of the host's ends.
    pub fn interfaces(&self) -> Vec<String> {
        (0..self.inputs).map(far).collect()
    }

    /// Starts a load: `phases` of duration and rate over all targets, frames for the targets in the order of
    /// `schedule` (empty: all for the first).
    pub fn send(&self, to: &[To], schedule: &[u8], phases: &[(Duration, f64)]) -> Running<'_> {
        let target = |&(n, port): &To| {
            let mut udp = testkit::packet::Udp::new(
                SocketAddrV4::new(peer(n), 10_000),
                SocketAddrV4::new(address(n), port),
            );
            (udp.source_mac, udp.target_mac) = ([2, 0, 0, 0, 2, n], [2, 0, 0, 0, 1, n]);
            udp.payload = vec![0; 18];
            let mut frame = udp.frame();
            // The source changes the payload of each frame; RFC 768 permits no checksum.
            frame[40..42].fill(0);
            Target { frame, payload: Payload::Stamp, flows: 1 }
        };
        let inputs: Vec<u8> = to.iter().map(|(n, _)| *n).collect();
        self.send_targets(&inputs, to.iter().map(target).collect(), schedule, phases)
    }

    /// The same with frames of the caller's; `inputs[n]` is where target `n` goes.
    pub fn send_targets(
        &self,
        inputs: &[u8],
        targets: Vec<Target>,
        schedule: &[u8],
        phases: &[(Duration, f64)],
    ) -> Running<'_> {
        let fastest = phases.iter().map(|p| p.1).fold(0.0, f64::max);
        let load = Load {
            phases: phases.iter().map(|(d, r)| Phase { duration: *d, rate: Some(*r) }).collect(),
            burst: lab::burst(Some(fastest)).max(schedule.len() as u32),
            targets,
            schedule: schedule.to_vec(),
            hop: None,
            rare: None,
            gentle: false,
        };
        // Targets are devices of the wire too: two ports of one input share its device.
        for (target, n) in inputs.iter().enumerate() {
            let index = self.wire_side.run(|| Ok(nix::net::if_::if_nametoindex(near(*n).as_str()).unwrap()));
            self.wire.output(target as u32, &self.wire_side, index.unwrap()).unwrap();
        }
        self.wire.start(&self.wire_side, WIRE_CPU, &load).unwrap()
    }

    /// Sends `rate` datagrams per second to input `n`, each alone, until the value is dropped.
    pub fn trickle(&self, n: u8, port: u16, rate: u32) -> Trickle {
        let bind = || Ok(UdpSocket::bind((peer(n), 0)));
        let socket = self.wire_side.run(bind).unwrap().unwrap();
        socket.connect((address(n), port)).unwrap();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            bind_to(&[WIRE_CPU]);
            while !ends.load(Relaxed) {
                let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
                let stamp = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
                let datagram = [stamp.to_ne_bytes(), counts.load(Relaxed).to_ne_bytes()].concat();
                // Refused while nobody listens or while there is no such interface: then it is not sent.
                if socket.send(&datagram).is_ok() {
                    counts.fetch_add(1, Relaxed);
                }
                std::thread::sleep(Duration::from_secs(1) / rate);
            }
        });
        Trickle { stop, sent, thread: Some(thread) }
    }

    /// A socket of the host at `port` of input `n`.
    pub fn server(&self, n: u8, port: u16) -> UdpSocket {
        self.inside(move || UdpSocket::bind((address(n), port))).unwrap()
    }

    /// A socket of the wire that talks to `port` of input `n`.
    pub fn client(&self, n: u8, port: u16) -> UdpSocket {
        let socket = self.wire_side.run(|| Ok(UdpSocket::bind((peer(n), 0)))).unwrap().unwrap();
        socket.connect((address(n), port)).unwrap();
        socket
    }

    /// Makes the wire ask for the hardware address of input `n` again.
    pub fn forget_neighbour(&self, n: u8) {
        self.wire_side.run(|| Ok(sh(&format!("ip neigh del {} dev {}", address(n), near(n))))).unwrap();
    }

    /// True if the wire has the hardware address of input `n`.
    pub fn knows_neighbour(&self, n: u8) -> bool {
        let show = || Ok(sh(&format!("ip neigh show {} dev {}", address(n), near(n))));
        self.wire_side.run(show).unwrap().contains("lladdr")
    }

    /// The flush timeout of the NAPI of input `n` now.
    pub fn flush(&self, n: u8) -> Duration {
        let list = move || kern::napi::list(kern::netns::index_of(&far(n)).unwrap()).unwrap();
        Duration::from_nanos(self.inside(list)[0].gro_flush_timeout_ns.unwrap())
    }

    /// True while input `n` has a guard's settings instead of the wiring's.
    pub fn taken(&self, n: u8) -> bool {
        self.flush(n) != Duration::from_nanos(MODERATION_NS)
    }

    /// A sink on input `n`.
    pub fn sink(&self, n: u8, port: u16) -> Sink {
        Sink::start(self, SocketAddrV4::new(address(n), port))
    }

    /// A guard of the host CPU over all inputs, in force; its other threads may run on both CPUs.
    pub fn guard(&self, options: &[&str]) -> Guard {
        self.guard_on(&[WIRE_CPU, HOST_CPU], options)
    }

    /// The same with all its threads on `cpus`.
    pub fn guard_on(&self, cpus: &[usize], options: &[&str]) -> Guard {
        let names = self.interfaces();
        let mut args: Vec<&str> = names.iter().map(String::as_str).collect();
        args.extend(["--cpu", "1"]);
        args.extend(options);
        Guard::try_start(self, &args, cpus).unwrap_or_else(|r| panic!("not in force: {r:?}"))
    }

    /// Arguments that put a guard's files into this world's directory.
    pub fn dirs(&self) -> Vec<String> {
        // One for both, as by default.
        let dir = |what: &str| format!("--{what}-dir={}", self.dir.path().join("run").display());
        vec![dir("journal"), dir("control")]
    }

    /// Journals that are there.
    pub fn journals(&self) -> Vec<PathBuf> {
        kern::journal::paths(&self.dir.path().join("run")).unwrap()
    }

    /// Does something inside the host.
    pub fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.resident.run(work)
    }

    /// `weir ARGS` inside the host: exit code, standard output, standard error.
    pub fn weir(&self, args: &[&str]) -> (i32, String, String) {
        self.weir_as(args, &Manner::default())
    }

    /// The same in another manner.
    pub fn weir_as(&self, args: &[&str], manner: &Manner) -> (i32, String, String) {
        let mut command = manner.command();
        command.args(args);
        let output = self.inside(move || command.output()).unwrap();
        let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }

    /// `weir undo` of this world's journals.
    pub fn undo(&self) -> (i32, String, String) {
        self.weir(&["undo", &self.dirs()[0]])
    }

    /// A program of the system inside the host; panics if it fails.
    pub fn sh(&self, line: &str) -> String {
        let line = line.to_owned();
        self.inside(move || sh(&line))
    }

    /// Everything that a guard could change on the inputs.
    pub fn dump(&self) -> dump::Dump {
        let interfaces = self.interfaces();
        self.inside(move || dump::take(&interfaces))
    }
}

/// Runs a command line of words; panics if it fails.
pub fn sh(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|e| panic!("{line}: {e}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn calibrate() -> u64 {
    let sink = lab::locate("udp-sink", None).unwrap();
    let output = Command::new(sink).args(["--calibrate", "--cpu", "1"]).output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["loops_per_ms"].as_u64().unwrap() * WORK.as_nanos() as u64 / 1_000_000
}

/// Binds the calling thread, and what it starts, to `cpus`.
pub fn bind_to(cpus: &[usize]) {
    match cpus {
        [one] => tasks::pin(0, *one).unwrap(),
        _ => {
            let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
            kern::cpus::set_affinity(0, &list.join(",").parse().unwrap()).unwrap();
        }
    }
}
