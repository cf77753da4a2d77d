//! The part of the source that needs the compiled BPF object.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder};
use nix::sched::{CloneFlags, setns};

use super::{
    ANSWERS, Answer, CLASSES, Class, Edges, Error, Load, Meter, PHASES, RawState, Result, SPREAD, Sent,
    SinkCounts, Spread, TARGETS,
};
use crate::wire::netns::Namespace;
use crate::wire::{Context, tasks};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wire.bpf.o"));

const METERS: [&str; 5] =
    ["meter_poll", "meter_softirq_entry", "meter_softirq_exit", "meter_hop_enqueue", "meter_hop_thread"];

/// The loaded programs: source, hop, meters, and what can be attached at the host side.
#[derive(Debug)]
pub struct Wire {
    object: Object,
    programs: BTreeMap<String, RawFd>,
    maps: BTreeMap<String, RawFd>,
    _meters: Vec<Link>,
}

const SWITCHES: [&str; 1] = ["task_switched"];
const OUTPUT: [&str; 2] = ["output_sent", "output_taken"];

/// Programs on tracepoints; detached when dropped.
#[derive(Debug)]
pub struct Watching {
    _links: Vec<Link>,
}

/// A program on an interface; detached when dropped.
#[derive(Debug)]
pub struct Attached {
    _link: OwnedFd,
}

/// See [`Wire::spread`]; it ends when this is dropped.
#[derive(Debug)]
pub struct Spreading<'a> {
    wire: &'a Wire,
    link: Option<Attached>,
    threads: Vec<(usize, i32)>,
}

impl Spreading<'_> {
    /// The CPUs with the kernel thread that works there.
    #[must_use]
    pub fn threads(&self) -> &[(usize, i32)] {
        &self.threads
    }
}

impl Drop for Spreading<'_> {
    fn drop(&mut self) {
        // Before the queues that it fills.
        self.link = None;
        for (cpu, _) in &self.threads {
            // Fails only if it is gone.
            let _ = self.wire.remove_hop(*cpu);
        }
    }
}

impl Wire {
    /// Loads all programs and starts the meters, which count for this machine until the value is dropped.
    ///
    /// # Errors
    /// Without CAP_BPF and CAP_PERFMON, or if the verifier refuses.
    pub fn load() -> Result<Wire> {
        let bpf = |e: libbpf_rs::Error| Error::Bpf(format!("wire.bpf.o: {e}"));
        let mut builder = ObjectBuilder::default();
        let open = builder.name("wire").and_then(|b| b.open_memory(OBJECT)).map_err(bpf)?;
        let object = open.load().map_err(bpf)?;
        let name = |n: &std::ffi::OsStr| n.to_string_lossy().into_owned();
        let programs = object.progs().map(|p| (name(p.name()), p.as_fd().as_raw_fd())).collect();
        let maps = object.maps().map(|m| (name(m.name()), m.as_fd().as_raw_fd())).collect();
        let mut meters = Vec::new();
        for program in object.progs_mut().filter(|p| METERS.iter().any(|m| p.name() == *m)) {
            meters
                .push(program.attach().map_err(|e| Error::Bpf(format!("meter {:?}: {e}", program.name())))?);
        }
        Ok(Wire { object, programs, maps, _meters: meters })
    }

    fn program(&self, name: &str) -> Result<RawFd> {
        self.programs
            .get(name)
            .copied()
            .ok_or_else(|| Error::Bpf(format!("wire.bpf.o has no program {name}")))
    }

    fn map_fd(&self, name: &str) -> Result<RawFd> {
        self.maps.get(name).copied().ok_or_else(|| Error::Bpf(format!("wire.bpf.o has no map {name}")))
    }

    fn map<T>(&self, name: &str, f: impl FnOnce(&libbpf_rs::Map<'_>) -> libbpf_rs::Result<T>) -> Result<T> {
        let map = self.object.maps().find(|m| m.name() == name);
        let map = map.ok_or_else(|| Error::Bpf(format!("wire.bpf.o has no map {name}")))?;
        f(&map).map_err(|e| Error::Bpf(format!("map {name}: {e}")))
    }

    fn set(&self, map: &str, key: u32, value: &[u8]) -> Result<()> {
        self.map(map, |m| m.update(&key.to_ne_bytes(), value, MapFlags::ANY))
    }

    /// Sends target `target`'s frames to the interface `index` of `ns`.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn output(&self, target: u32, ns: &Namespace, index: u32) -> Result<()> {
        let fd = self.map_fd("wire_out")?;
        // The kernel resolves the index in the namespace of the caller.
        ns.run(|| {
            // SAFETY: key and value are live u32, the sizes the map was made with.
            let rc = unsafe {
                libbpf_sys::bpf_map_update_elem(fd, (&raw const target).cast(), (&raw const index).cast(), 0)
            };
            errno(rc).map(drop).what(|| format!("wire output to interface {index}"))
        })
    }

    /// Makes the hop: a queue of `length` frames and a kernel thread bound to `cpu` that hands them on to the
    /// output devices. Answers the thread's id.
    ///
    /// # Errors
    /// If the CPU does not exist.
    pub fn hop(&self, cpu: usize, length: u32) -> Result<i32> {
        self.thread(cpu, length, self.program("wire_hop_out")?)
    }

    /// A queue of the CPU map and its thread, which runs `program`; 0: none, what comes out goes up the stack.
    fn thread(&self, cpu: usize, length: u32, program: RawFd) -> Result<i32> {
        let wanted = format!("cpumap/{cpu}/map:{}", self.hop_map()?);
        let thread = || tasks::find(|name| name == wanted);
        // The thread of a removed hop ends a little later; it must not be taken for the new one.
        wait_for(|| Ok(thread()?.is_none().then_some(()))).map_err(|_| stuck(&wanted))?;
        let value = [length.to_ne_bytes(), program.to_ne_bytes()].concat();
        self.set("wire_hop", cpu as u32, &value)?;
        // It gets its name when it first runs.
        wait_for(thread).map_err(|_| {
            // Else a later one would find the queue of this one; fails only if it is gone.
            let _ = self.remove_hop(cpu);
            stuck(&wanted)
        })
    }

    /// Removes the hop on `cpu`; its thread ends.
    ///
    /// # Errors
    /// If there is none.
    pub fn remove_hop(&self, cpu: usize) -> Result<()> {
        self.map("wire_hop", |m| m.delete(&(cpu as u32).to_ne_bytes()))
    }

    /// Has `cpus` work on what comes in at interface `index` of `ns`, each behind a queue of `length` packets. It takes the
    /// place of the hop.
    ///
    /// # Errors
    /// If there are none or more than [`SPREAD`], if one does not exist, or if another program is there.
    pub fn spread(
        &self,
        ns: &Namespace,
        index: u32,
        by: Spread,
        cpus: &[usize],
        length: u32,
    ) -> Result<Spreading<'_>> {
        if cpus.is_empty() || cpus.len() > SPREAD {
            return Err(Error::Missing(format!("{} CPUs to spread over, 1 to {SPREAD}", cpus.len())));
        }
        self.set_spread(by, cpus)?;
        let mut spreading = Spreading { wire: self, link: None, threads: Vec::new() };
        for cpu in cpus {
            spreading.threads.push((*cpu, self.thread(*cpu, length, 0)?));
        }
        spreading.link = Some(self.link("wire_spread_out", ns, index, libbpf_sys::BPF_XDP)?);
        Ok(spreading)
    }

    fn set_spread(&self, by: Spread, cpus: &[usize]) -> Result<()> {
        let mut words = [0u32; 2 + SPREAD];
        words[0] = u32::from(by == Spread::Packet);
        words[1] = cpus.len() as u32;
        words[2..].iter_mut().zip(cpus).for_each(|(word, cpu)| *word = *cpu as u32);
        self.set("wire_spread", 0, &words.map(u32::to_ne_bytes).concat())
    }

    /// Packets that [`Wire::spread`] has handed out since the programs were loaded, by place in its list of CPUs.
    ///
    /// # Errors
    /// Of the map.
    pub fn spread_given(&self) -> Result<[u64; SPREAD]> {
        let cpus = self.map("wire_spread_turn", |m| m.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY))?;
        let cpus = cpus.unwrap_or_default();
        Ok(std::array::from_fn(|at| cpus.iter().map(|bytes| word(bytes, at * 8)).sum()))
    }

    fn hop_map(&self) -> Result<u32> {
        self.map("wire_hop", |m| m.info().map(|i| i.info.id))
    }

    /// Chooses the device whose polls are counted: `index` in `ns`.
    ///
    /// # Errors
    /// Of the map.
    pub fn meter(&self, ns: &Namespace, index: u32) -> Result<()> {
        let words = [ns.inode(), index, self.hop_map()?, 0];
        self.set("meter_config", 0, &words.map(u32::to_ne_bytes).concat())
    }

    /// Counts softirq time that interrupts the process `pid` under `class`; at most 64 processes.
    ///
    /// # Errors
    /// If there are more.
    pub fn watch(&self, pid: u32, class: Class) -> Result<()> {
        self.set("meter_watched", pid, &(class as u32).to_ne_bytes())
    }

    /// Ends every [`Wire::watch`].
    ///
    /// # Errors
    /// Of the map.
    pub fn unwatch_all(&self) -> Result<()> {
        self.map("meter_watched", |m| {
            let keys: Vec<Vec<u8>> = m.keys().collect();
            keys.iter().try_for_each(|key| m.delete(key))
        })
    }

    /// Counts switches to and from watched tasks until the answer is dropped. It costs a little time for each switch.
    ///
    /// # Errors
    /// If the kernel has no such tracepoint.
    pub fn watch_switches(&self) -> Result<Watching> {
        self.attach(&SWITCHES)
    }

    /// Switches that [`Wire::watch_switches`] has counted since the programs were loaded, of all CPUs.
    ///
    /// # Errors
    /// Of the map.
    pub fn switches(&self) -> Result<u64> {
        let cpus = self.map("meter_switched", |m| m.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY))?;
        Ok(cpus.unwrap_or_default().iter().map(|bytes| word(bytes, 0)).sum())
    }

    fn attach(&self, wanted: &[&str]) -> Result<Watching> {
        let mut links = Vec::new();
        for program in self.object.progs_mut().filter(|p| wanted.iter().any(|m| p.name() == *m)) {
            let name = program.name().to_os_string();
            links.push(program.attach().map_err(|e| Error::Bpf(format!("meter {name:?}: {e}")))?);
        }
        Ok(Watching { _links: links })
    }

    /// The meters of all CPUs, by CPU number.
    ///
    /// # Errors
    /// Of the map.
    pub fn meters(&self) -> Result<Vec<Meter>> {
        let cpus = self.map("meters", |m| m.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY))?;
        Ok(cpus.unwrap_or_default().iter().map(|bytes| meter(bytes)).collect())
    }

    /// Looks for the moments of a takeover from `from_ns` on, and of the release after `until_ns`, where the load ends that the guard is
    /// for (CLOCK_MONOTONIC). `from_ns` of 0 stops looking.
    ///
    /// # Errors
    /// Of the map.
    pub fn look_for_edges(&self, from_ns: u64, until_ns: u64) -> Result<()> {
        self.set("meter_edges", 0, &[from_ns, 0, 0, 0, 0, until_ns, 0].map(u64::to_ne_bytes).concat())
    }

    /// What [`Wire::look_for_edges`] has found.
    ///
    /// # Errors
    /// Of the map.
    pub fn edges(&self) -> Result<Edges> {
        let value =
            self.map("meter_edges", |m| m.lookup(&0u32.to_ne_bytes(), MapFlags::ANY))?.unwrap_or_default();
        let at = |i: usize| Some(word(&value, i * 8)).filter(|ns| *ns > 0);
        Ok(Edges {
            full_ns: at(1),
            guard_ns: at(2),
            guard_last_ns: at(3),
            takeovers: word(&value, 32),
            let_go_ns: at(6),
        })
    }

    /// Attaches the program that drops every frame to interface `index` of `ns`; if `read`, the one that reads its headers.
    ///
    /// # Errors
    /// If another program is there.
    pub fn attach_drop(&self, ns: &Namespace, index: u32, read: bool) -> Result<Attached> {
        self.link(if read { "wire_drop_read" } else { "wire_drop" }, ns, index, libbpf_sys::BPF_XDP)
    }

    /// Attaches the static rate limit: at most `rate` packets/s, of which up to `depth` may come at once.
    ///
    /// # Errors
    /// If another program is there.
    pub fn attach_limit(&self, ns: &Namespace, index: u32, rate: f64, depth: u32) -> Result<Attached> {
        let step = (1e9 / rate.max(1.0) * f64::from(1u32 << super::FRACTION)) as u64;
        let words = [step, step * u64::from(depth), 0, 0];
        self.set("wire_limit", 0, &words.map(u64::to_ne_bytes).concat())?;
        self.link("wire_rate_limit", ns, index, libbpf_sys::BPF_XDP)
    }

    /// Packets that the rate limit dropped since it was attached.
    ///
    /// # Errors
    /// Of the map.
    pub fn limit_drops(&self) -> Result<u64> {
        let value = self.map("wire_limit", |m| m.lookup(&0u32.to_ne_bytes(), MapFlags::ANY))?;
        Ok(value.map_or(0, |v| word(&v, 24)))
    }

    /// Counts UDP datagrams that leave by interface `index` of `ns`, and takes them off.
    ///
    /// # Errors
    /// If the kernel has no tcx (before 6.6).
    pub fn attach_replies(&self, ns: &Namespace, index: u32) -> Result<Attached> {
        self.link("wire_reply", ns, index, libbpf_sys::BPF_TCX_EGRESS)
    }

    /// Datagrams counted by [`Wire::attach_replies`] since the programs were loaded.
    ///
    /// # Errors
    /// Of the map.
    pub fn replies(&self) -> Result<u64> {
        let cpus = self.map("wire_replies", |m| m.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY))?;
        Ok(cpus.unwrap_or_default().iter().map(|bytes| word(bytes, 0)).sum())
    }

    /// Notes when the answers of the UDP server on `port` to the wire's questions leave by interface `index` of `ns`, and
    /// takes off everything that leaves there. The server gives back what it gets, [`super::Payload::Stamp`].
    ///
    /// # Errors
    /// If the kernel has no tcx (before 6.6).
    pub fn attach_answers(&self, ns: &Namespace, index: u32, port: u16) -> Result<Attached> {
        self.set("wire_answer_port", 0, &u32::from(port).to_ne_bytes())?;
        self.link("wire_answer", ns, index, libbpf_sys::BPF_TCX_EGRESS)
    }

    /// The answers so far to the questions with these numbers, counted by the target from 0, that were asked since
    /// `since_ns`; of the first [`ANSWERS`] questions only.
    ///
    /// # Errors
    /// Of the map.
    pub fn answers(&self, numbers: std::ops::Range<u64>, since_ns: u64) -> Result<Vec<Answer>> {
        self.map("wire_answers", |m| {
            let mut answers = Vec::new();
            for number in numbers.start..numbers.end.min(ANSWERS) {
                let value = m.lookup(&(number as u32).to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
                let answer = Answer { number, asked_ns: word(&value, 0), left_ns: word(&value, 8) };
                // What is older belongs to a load before.
                if answer.asked_ns >= since_ns {
                    answers.push(answer);
                }
            }
            Ok(answers)
        })
    }

    /// Watches how long packets wait between the interface `near` and the one `far` that takes them, until the answer is
    /// dropped. It costs a little time for each packet.
    ///
    /// # Errors
    /// If the kernel has no such tracepoints.
    pub fn watch_output(&self, near: (&Namespace, u32), far: (&Namespace, u32)) -> Result<Watching> {
        let words = [near.0.inode(), near.1, far.0.inode(), far.1].map(u32::to_ne_bytes).concat();
        self.set("meter_output", 0, &[words, vec![0; 32]].concat())?;
        self.attach(&OUTPUT)
    }

    /// What [`Wire::watch_output`] has seen: time in waits longer than 2 ms, and the longest wait.
    ///
    /// # Errors
    /// Of the map.
    pub fn output_waits(&self) -> Result<(Duration, Duration)> {
        let value = self.map("meter_output", |m| m.lookup(&0u32.to_ne_bytes(), MapFlags::ANY))?;
        let value = value.unwrap_or_default();
        Ok((Duration::from_nanos(word(&value, 32)), Duration::from_nanos(word(&value, 40))))
    }

    /// Attaches a rule set of `rules` rules to interface `index` of `ns`: work for each packet that comes in there.
    ///
    /// # Errors
    /// If the kernel has no tcx (before 6.6).
    pub fn attach_rules(&self, ns: &Namespace, index: u32, rules: u32) -> Result<Attached> {
        self.set("wire_rules", 0, &rules.to_ne_bytes())?;
        self.link("wire_rule_set", ns, index, libbpf_sys::BPF_TCX_INGRESS)
    }

    /// Rules that take `time` on the calling thread's CPU; the fastest of many runs counts.
    ///
    /// # Errors
    /// If the kernel cannot run the program for a test.
    pub fn rules_for(&self, time: Duration) -> Result<u32> {
        const RULES: u32 = 2000;
        self.set("wire_rules", 0, &RULES.to_ne_bytes())?;
        let program = self.program("wire_rule_set")?;
        let frame = [0u8; 64];
        let mut fastest = u32::MAX;
        for _ in 0..100 {
            let mut opts = libbpf_sys::bpf_test_run_opts {
                sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
                data_in: frame.as_ptr().cast(),
                data_size_in: frame.len() as u32,
                repeat: 20,
                ..Default::default()
            };
            // SAFETY: the options are a live struct of the size they say; data_in is live and has the stated size.
            let rc = unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &raw mut opts) };
            errno(rc).what(|| "BPF_PROG_TEST_RUN of the rule set".into())?;
            fastest = fastest.min(opts.duration.max(1));
        }
        Ok((time.as_nanos() as u64 * u64::from(RULES) / u64::from(fastest)).min(1 << 20) as u32)
    }

    /// Attaches the counter of forwarded packets to interface `index` of `ns`, the far end of a router's output.
    ///
    /// # Errors
    /// If another program is there.
    pub fn attach_sink(&self, ns: &Namespace, index: u32) -> Result<Attached> {
        self.link("wire_sink_in", ns, index, libbpf_sys::BPF_XDP)
    }

    /// What [`Wire::attach_sink`]'s program has counted since the programs were loaded.
    ///
    /// # Errors
    /// Of the map.
    pub fn sink(&self) -> Result<SinkCounts> {
        let cpus = self.map("wire_sink", |m| m.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY))?;
        let mut sum = SinkCounts::default();
        for bytes in cpus.unwrap_or_default() {
            sum.packets += word(&bytes, 0);
            sum.other += word(&bytes, 8);
            sum.bad += word(&bytes, 16);
            for (i, count) in sum.buckets.iter_mut().enumerate() {
                *count += word(&bytes, 24 + i * 8);
            }
        }
        Ok(sum)
    }

    fn link(
        &self,
        program: &str,
        ns: &Namespace,
        index: u32,
        kind: libbpf_sys::bpf_attach_type,
    ) -> Result<Attached> {
        let fd = self.program(program)?;
        let link = ns.run(|| {
            let mut opts = libbpf_sys::bpf_link_create_opts {
                sz: size_of::<libbpf_sys::bpf_link_create_opts>() as u64,
                ..Default::default()
            };
            if kind == libbpf_sys::BPF_XDP {
                opts.flags = libbpf_sys::XDP_FLAGS_DRV_MODE;
            }
            // SAFETY: the options are a live struct of the size they say, and the program is loaded.
            let rc = unsafe { libbpf_sys::bpf_link_create(fd, index as i32, kind, &raw const opts) };
            let link = errno(rc).what(|| format!("attach {program} to interface {index}"))?;
            // SAFETY: the kernel just made this descriptor for us.
            Ok(unsafe { OwnedFd::from_raw_fd(link) })
        })?;
        Ok(Attached { _link: link })
    }

    /// Sends one frame from `cpu` at once and waits for it. The device's NAPI is then scheduled on that CPU.
    ///
    /// # Errors
    /// If the kernel has no live frames (before 5.18).
    pub fn prime(&self, ns: &Namespace, cpu: usize, target: u32, frame: Vec<u8>) -> Result<()> {
        let one = super::Phase { duration: Duration::from_millis(1), rate: Some(1000.0) };
        let targets =
            vec![super::Target { frame, payload: super::Payload::Dns, flows: 1 }; target as usize + 1];
        let load = Load {
            phases: vec![one],
            burst: 1,
            targets,
            schedule: vec![target as u8],
            hop: None,
            rare: None,
            gentle: false,
        };
        self.start(ns, cpu, &load)?.wait().map(drop)
    }

    /// Starts a load from a thread on `cpu`; at most one load at a time runs.
    ///
    /// # Errors
    /// If the load is out of range, or of the maps.
    pub fn start(&self, ns: &Namespace, cpu: usize, load: &Load) -> Result<Running<'_>> {
        load.check()?;
        self.set("wire_config", 0, bytes_of(&load.raw()))?;
        self.set("wire_state", 0, bytes_of(&RawState::default()))?;
        self.set("wire_stop", 0, &0u32.to_ne_bytes())?;
        interruptible()?;
        let (program, repeat, burst) = (self.program("wire_source")?, load.repeat(), load.burst);
        let gentle = load.gentle;
        let mut frame = load.targets[0].frame.clone();
        let file = ns.file().try_clone().what(|| ns.name().into())?;
        let thread = std::thread::Builder::new().name("wire".into()).spawn(move || {
            setns(file.as_fd(), CloneFlags::CLONE_NEWNET).what(|| "enter wire namespace".into())?;
            tasks::pin(0, cpu)?;
            if gentle {
                tasks::schedule(0, tasks::Policy::Idle)?;
            }
            let start = thread_cpu_ns();
            let answer = test_run(program, &mut frame, repeat, burst);
            answer.what(|| "BPF_PROG_TEST_RUN with live frames (Linux 5.18)".into())?;
            Ok(thread_cpu_ns() - start)
        });
        let thread = thread.what(|| "thread wire".into())?;
        let over = Instant::now() + load.duration();
        Ok(Running {
            wire: self,
            thread: Some(thread),
            over,
            phases: load.phases.len(),
            targets: load.targets.len(),
        })
    }

    fn state(&self) -> Result<RawState> {
        let bytes = self.map("wire_state", |m| m.lookup(&0u32.to_ne_bytes(), MapFlags::ANY))?;
        let bytes = bytes.unwrap_or_default();
        if bytes.len() < size_of::<RawState>() {
            return Err(Error::Bpf("map wire_state: short".into()));
        }
        // SAFETY: the buffer holds a whole state, made of integers only.
        Ok(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }
}

fn stuck(thread: &str) -> Error {
    Error::Missing(format!("kernel thread {thread} does not come or go"))
}

/// Asks until there is an answer, for at most a second.
fn wait_for<T>(ask: impl Fn() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() > end {
            return Err(Error::Missing("no answer".into()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A load under way. Dropping it stops the load and waits for its thread.
#[derive(Debug)]
pub struct Running<'a> {
    wire: &'a Wire,
    thread: Option<JoinHandle<Result<u64>>>,
    over: Instant,
    phases: usize,
    targets: usize,
}

/// A source that does not end this long after its load is stopped.
const OVERTIME: Duration = Duration::from_secs(1);

impl Running<'_> {
    /// Frames sent so far, and CLOCK_MONOTONIC of the last burst.
    ///
    /// # Errors
    /// Of the map.
    pub fn progress(&self) -> Result<(u64, u64)> {
        let state = self.wire.state()?;
        Ok((state.sent.iter().sum(), state.now_ns))
    }

    /// Frames sent so far, by target.
    ///
    /// # Errors
    /// Of the map.
    pub fn by_target(&self) -> Result<Vec<u64>> {
        Ok(self.wire.state()?.sent[..self.targets.min(TARGETS)].to_vec())
    }

    /// First departure, CLOCK_MONOTONIC; `None` before it.
    ///
    /// # Errors
    /// Of the map.
    pub fn started_ns(&self) -> Result<Option<u64>> {
        Ok(Some(self.wire.state()?.start_ns).filter(|ns| *ns > 0))
    }

    /// True when the sending thread has ended.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the load now.
    ///
    /// # Errors
    /// Of the map.
    pub fn stop(&self) -> Result<()> {
        self.wire.set("wire_stop", 0, &1u32.to_ne_bytes())
    }

    /// Waits for the end and answers what was sent.
    ///
    /// # Errors
    /// If the kernel refused to run the source.
    pub fn wait(mut self) -> Result<Sent> {
        std::thread::sleep(self.over.saturating_duration_since(Instant::now()));
        let cpu_ns = self.join()?;
        let state = self.wire.state()?;
        Ok(Sent {
            by_target: state.sent[..self.targets.min(TARGETS)].to_vec(),
            by_phase: state.sent_phase[..self.phases.min(PHASES)].to_vec(),
            start_ns: state.start_ns,
            end_ns: state.end_ns.max(state.now_ns),
            late_ns: state.late_ns,
            refused: state.refused,
            cpu_ns,
        })
    }

    fn join(&mut self) -> Result<u64> {
        let Some(thread) = self.thread.take() else { return Ok(0) };
        let stop = self.over + OVERTIME;
        while !thread.is_finished() {
            let state = self.wire.state();
            if Instant::now() > stop {
                // Best effort: the loop goes on until the thread is gone.
                let _ = self.stop();
            }
            if state.is_ok_and(|s| s.done != 0) {
                // The program sends nothing more; a signal spares the kernel the rest of its repeat count.
                // SAFETY: the thread is not joined, so its handle is valid; the signal's handler does nothing.
                // A pointer in musl, a number elsewhere.
                unsafe { libc::pthread_kill(thread.as_pthread_t() as _, wake_signal()) };
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        thread.join().map_err(|_| Error::Missing("the sending thread panicked".into()))?
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // Nothing to report to: the thread is waited for either way.
            let _ = self.stop();
            let _ = self.join();
        }
    }
}

fn test_run(program: RawFd, frame: &mut [u8], repeat: i32, burst: u32) -> io::Result<()> {
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat,
        flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: burst,
        ..Default::default()
    };
    // SAFETY: the options are a live struct of the size they say; data_in is live and has the stated size.
    let rc = unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &raw mut opts) };
    match errno(rc) {
        // Cut short on purpose, after the program was done.
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other.map(drop),
    }
}

/// libbpf answers with a negative error number.
fn errno(rc: i32) -> io::Result<i32> {
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(rc) }
}

fn thread_cpu_ns() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// The signal that cuts a finished source short.
fn wake_signal() -> i32 {
    libc::SIGRTMIN() + 5
}

extern "C" fn nothing(_: libc::c_int) {}

/// Gives [`wake_signal`] a handler without effect: its only use is to interrupt a system call.
fn interruptible() -> Result<()> {
    // SAFETY: an all-zero sigaction is valid, and the handler is async-signal-safe because it does nothing.
    let rc = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(wake_signal(), &raw const action, std::ptr::null_mut())
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()).what(|| "signal handler".into()) }
}

/// A struct of integers without padding, as the bytes that the kernel copies.
fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: used for RawConfig and RawState only, whose sizes are asserted to hold no padding.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// struct meter of wire.bpf.c.
fn meter(bytes: &[u8]) -> Meter {
    let at = |i: usize| word(bytes, i * 8);
    Meter {
        polls: at(0),
        packets: at(1),
        full: at(2),
        softirq_polls: at(3),
        softirq_ns: at(4),
        softirq_runs: at(5),
        hop_enqueue_drops: at(7),
        hop_thread_drops: at(8),
        hop_packets: at(9),
        stolen_ns: std::array::from_fn(|i| at(10 + i)),
        packets_by: std::array::from_fn(|i| at(10 + CLASSES + i)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One run of the program over a frame that nothing receives; the answer is that of XDP.
    fn ask(wire: &Wire, frame: &[u8]) -> u32 {
        let mut opts = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            ..Default::default()
        };
        let program = wire.program("wire_spread_out").unwrap();
        // SAFETY: the options are a live struct of the size they say; data_in is live and has the stated size.
        errno(unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &raw mut opts) }).unwrap();
        opts.retval
    }

    /// The place in the list of CPUs that each frame was given to; `None`: it went up the stack where it was.
    fn places(wire: &Wire, frames: &[Vec<u8>]) -> Vec<Option<usize>> {
        let one = |frame: &Vec<u8>| {
            let before = wire.spread_given().unwrap();
            ask(wire, frame);
            let after = wire.spread_given().unwrap();
            (0..SPREAD).find(|at| after[*at] > before[*at])
        };
        frames.iter().map(one).collect()
    }

    fn datagram(port: u16) -> Vec<u8> {
        let (source, target) = ("198.18.0.2".parse().unwrap(), "198.18.0.1:9000".parse().unwrap());
        testkit::packet::Udp::new(std::net::SocketAddrV4::new(source, port), target).frame()
    }

    const PASS: u32 = 2;
    const REDIRECT: u32 = 4;

    /// It cannot flake: a test run goes through no device, nobody else runs this process's program, and this thread stays on a CPU,
    /// since each CPU has its own turn.
    #[test]
    fn packets_are_spread_by_flow_or_in_turn_root() {
        if !testkit::root_or_skip("packets_are_spread_by_flow_or_in_turn_root") {
            return;
        }
        let wire = Wire::load().unwrap();
        wire.thread(0, 16, 0).unwrap();
        let here = crate::cpus::affinity(0).unwrap().iter().next().unwrap();
        crate::wire::tasks::pin(0, here).unwrap();
        let flows: Vec<Vec<u8>> = (0..126).map(|flow| datagram(10_000 + flow)).collect();

        wire.set_spread(Spread::Flow, &[0, 0]).unwrap();
        assert_eq!(ask(&wire, &flows[0]), REDIRECT);
        let first = places(&wire, &flows);
        assert_eq!(first, places(&wire, &flows), "a flow is always given to the same CPU");
        let zero = first.iter().filter(|place| **place == Some(0)).count();
        assert!((32..=94).contains(&zero) && first.iter().all(Option::is_some), "{zero} of 126 flows");
        // Of fragments only the first has ports, so that none counts.
        let fragment = |port: u16| {
            let mut frame = datagram(port);
            frame[20] = 0x20;
            frame
        };
        let fragments: Vec<Vec<u8>> = (0..16).map(|flow| fragment(10_000 + flow)).collect();
        let at = places(&wire, &fragments);
        assert!(at.iter().all(|place| *place == at[0] && place.is_some()), "{at:?}");

        wire.set_spread(Spread::Packet, &[0, 0, 0]).unwrap();
        let one = vec![flows[0].clone(); 9];
        let turns = places(&wire, &one);
        let start = turns[0].unwrap();
        let expected: Vec<_> = (0..9).map(|n| Some((start + n) % 3)).collect();
        assert_eq!(turns, expected, "one flow goes round all CPUs");

        for by in [Spread::Flow, Spread::Packet] {
            wire.set_spread(by, &[0, 0]).unwrap();
            let mut other = flows[0].clone();
            other[12..14].copy_from_slice(&0x86ddu16.to_be_bytes());
            let mut options = flows[0].clone();
            options[14] = 0x46;
            let short = flows[0][..20].to_vec();
            for frame in [other, options, short] {
                assert_eq!((ask(&wire, &frame), places(&wire, &[frame])), (PASS, vec![None]));
            }
            // A CPU without a queue is as if the program were not there.
            wire.set_spread(by, &[255]).unwrap();
            assert_eq!(ask(&wire, &flows[0]), PASS);
        }
    }
}
