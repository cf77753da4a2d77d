//! The rig of `accept`, `accept-skew`, `udp-group` and `proxy`. Both CPUs are the host's. The server has a worker on each; the clients, in a namespace of their
//! own, a thread on each, so that a connection is received on the CPU of the client that opens it.
//!
//! In a closed loop the clients are in a control group with a quarter of the workers' weight: what the workers want they get. In an open
//! loop the clients go before everything, so that what is measured is the server's wait and not theirs; the load is bounded by its rate.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use kern::wire::counters;
use kern::wire::share::Share;
use kern::wire::tasks::{self, Policy};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::no_harm::words;
use crate::program::{Leashed, Program, locate};
use crate::proxy_rig::Pair;
use crate::rig::{Rig, Wiring};
use crate::sinks::now_ns;
use crate::trial::Bench;
use crate::{Error, Result};

const PORT: u16 = 8080;
/// Work for one request, and bytes of its answer.
const WORK_US: u64 = 20;
pub(crate) const BYTES: usize = 1024;
/// A visit without an answer for so long has failed.
const PATIENCE_MS: u64 = 1000;
/// Weight of the clients in percent of the workers'.
const CLIENTS_WEIGHT: u32 = 25;
/// Connections at once of each client in a closed loop.
pub(crate) const AT_ONCE: usize = 50;
/// A weir that does not say in this time that it runs does not.
const ATTACHED: Duration = Duration::from_secs(5);

/// How the first worker is kept from its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// SIGSTOP and SIGCONT.
    Stopped,
    /// It sleeps in a system call.
    Sleeps,
    /// It computes.
    Computes,
}

/// Stalls begin at each multiple of `period` of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stall {
    pub(crate) how: How,
    pub(crate) length: Duration,
    pub(crate) period: Duration,
}

/// What makes the load of the workers uneven.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Skew {
    /// Nothing.
    #[default]
    Nothing,
    /// The first worker stands now and then.
    Stall(Stall),
    /// One in so many requests of each worker computes for [`LONG`].
    Long(u64),
    /// Nine of ten connections are those of the first client.
    Uneven,
    /// The first CPU receives packets for half of the time, that no program waits for.
    Packets,
}

impl Skew {
    fn stall(self) -> Option<Stall> {
        match self {
            Skew::Stall(stall) => Some(stall),
            _ => None,
        }
    }
}

/// What a long request computes.
pub(crate) const LONG: Duration = Duration::from_millis(20);
/// Of each period the first CPU receives packets for half.
const PACKETS_PERIOD: Duration = Duration::from_millis(1);
/// Nobody has it.
const NOBODYS_PORT: u16 = 9;

/// What one run saw.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    /// The clients' report.
    pub(crate) report: Value,
    /// CPU time of the workers, ns.
    pub(crate) workers_ns: u64,
    /// Connections answered by the worker of the CPU that received them, in percent.
    pub(crate) affine: Option<f64>,
    /// How late a stop by signal began at most, ns.
    pub(crate) stop_late: u64,
    /// Share of the CPUs' time that was nobody's of the trial.
    pub(crate) others: f64,
}

impl Run {
    pub(crate) fn count(&self, name: &str) -> f64 {
        self.report[name].as_u64().unwrap_or(0) as f64
    }

    pub(crate) fn per_s(&self) -> f64 {
        self.count("answered") / (self.count("window_ns") / 1e9).max(1e-9)
    }

    /// Refused, reset and not opened; and without an answer in time.
    pub(crate) fn failed(&self) -> f64 {
        self.count("refused") + self.count("reset") + self.count("left_out")
    }

    /// ms.
    pub(crate) fn wait(&self, which: &str, quantile: &str) -> Option<f64> {
        self.report[which][quantile].as_f64().map(|us| us / 1000.0)
    }
}

/// Time of both CPUs: of the trial's own programs and threads for packets (ns), and all of it (ticks of 10 ms).
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    own: u64,
    busy: u64,
    total: u64,
}

impl Spent {
    /// Share of the time since `from` that somebody else took, the hypervisor too.
    fn others_since(&self, from: &Spent) -> f64 {
        let (busy, total) = (self.busy - from.busy, (self.total - from.total).max(1));
        let own = (self.own - from.own) as f64 / 1e7;
        ((busy as f64 - own) / total as f64).max(0.0)
    }
}

/// What is served.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Server {
    /// web-workers, one on each CPU.
    Pages {
        /// As it calls them.
        listeners: &'static str,
    },
    /// web-workers, two on each CPU, by UDP.
    Datagrams,
    /// nginx as reverse proxy.
    Proxy {
        /// A listener for each worker.
        reuseport: bool,
    },
}

/// What a stage is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) server: Server,
    /// Options of `weir accept`, `None` without it.
    pub(crate) options: Option<&'a [String]>,
    pub(crate) skew: Skew,
    /// The clients, and what is behind a proxy, have a share of the CPUs.
    pub(crate) closed: bool,
    /// Connections at once of each client in a closed loop.
    pub(crate) at_once: usize,
}

/// The program that serves.
enum Serves {
    Workers { _program: Program },
    Proxy(Pair),
}

/// A server, its clients, and what chooses between its listeners; all end when it is dropped.
pub(crate) struct Stage<'a> {
    bench: &'a Bench,
    clients: Program,
    workers: Vec<u32>,
    cpus: [usize; 2],
    stopper: Option<Beside>,
    _packets: Option<Beside>,
    weir: Option<Leashed>,
    at_once: usize,
    serves: Serves,
    _share: Option<Share>,
    _rig: Rig<'a>,
}

impl<'a> Stage<'a> {
    /// Starts all.
    ///
    /// # Errors
    /// If a part does not start.
    pub(crate) fn new(bench: &'a Bench, setup: &Setup<'_>) -> Result<Stage<'a>> {
        let Setup { server, options, skew, closed, at_once } = *setup;
        let stall = skew.stall();
        bench.interrupt.check()?;
        let rig = Rig::new(&bench.wire, bench.cpus, Wiring::Plain, 1)?;
        rig.reach(false)?;
        let (directory, address) = (bench.hog.parent(), rig.inputs[0].address);
        let cpus = [bench.cpus.wire, bench.cpus.host];
        let list = format!("{},{}", cpus[0], cpus[1]);
        let datagrams = matches!(server, Server::Datagrams);
        let sort = if datagrams { " --datagrams" } else { "" };
        let times = stall.map(|s| (s.length.as_micros(), s.period.as_micros()));
        let (serves, workers) = match server {
            Server::Proxy { reuseport } => {
                let pair = Pair::start(&rig, PORT, &cpus, reuseport, !closed)?;
                let workers = pair.workers().to_vec();
                (Serves::Proxy(pair), workers)
            }
            Server::Pages { listeners } => {
                pages(directory, &rig, &format!("{list} --listeners {listeners}"), skew)?
            }
            Server::Datagrams => pages(directory, &rig, &format!("{list},{list} --datagrams"), skew)?,
        };
        let weir = match (options, &bench.weir) {
            (Some(options), Some(weir)) => {
                let mut options = options.to_vec();
                options.extend(datagrams.then(|| "--udp".to_string()));
                Some(accept(weir, &rig, &workers, &cpus, &options)?)
            }
            _ => None,
        };
        let mut args = format!("--to {address}:{PORT} --cpus {list} --patience-ms {PATIENCE_MS}{sort}");
        if let Some((length, period)) = times {
            args.push_str(&format!(" --stall-us {length} --period-us {period}"));
        }
        if skew == Skew::Uneven {
            args.push_str(" --shares 9,1");
        }
        let clients = Program::start(&locate("web-clients", directory)?, &rig.wire_side, &words(&args))?;
        let share = if closed {
            let share = Share::create("clients", CLIENTS_WEIGHT)?;
            share.add(clients.id())?;
            if let Serves::Proxy(pair) = &serves {
                pair.behind().iter().try_for_each(|pid| share.add(*pid))?;
            }
            Some(share)
        } else {
            None
        };
        let stopped = stall.filter(|s| s.how == How::Stopped);
        let first = workers.first().copied();
        let stopper = stopped.zip(first).map(|(stall, pid)| stop_again_and_again(pid, stall, cpus[1]));
        let packets = match skew {
            Skew::Packets => Some(packets(&rig, cpus[0])?),
            _ => None,
        };
        Ok(Stage {
            bench,
            clients,
            workers,
            cpus,
            stopper,
            _packets: packets,
            weir,
            at_once,
            serves,
            _share: share,
            _rig: rig,
        })
    }

    /// Connections of a proxy to its back ends that are received on the CPU of their worker, in percent.
    pub(crate) fn affine_behind(&self) -> Option<f64> {
        match &self.serves {
            Serves::Proxy(pair) => pair.affine(),
            Serves::Workers { .. } => None,
        }
    }

    /// One run: `rate` per second, or without it as many as there can be.
    ///
    /// # Errors
    /// If a program has ended.
    pub(crate) fn run(&mut self, rate: Option<f64>, warm_up: Duration, window: Duration) -> Result<Run> {
        let (ms, load) = (Duration::as_millis, rate.unwrap_or(self.at_once as f64));
        let name = if rate.is_some() { "open" } else { "closed" };
        self.clients.ask(&format!("{name} {load} {} {}", ms(&warm_up), ms(&window)))?;
        self.bench.interrupt.sleep(warm_up)?;
        let (before, from) = (self.workers_ns()?, self.spent()?);
        self.bench.interrupt.sleep(window)?;
        let workers_ns = self.workers_ns()?.saturating_sub(before);
        let others = self.spent()?.others_since(&from);
        let report = self.clients.ask("report")?;
        if let Some(error) = report["error"].as_str() {
            return Err(Error::program("web-clients", error));
        }
        let stop_late = self.stopper.as_ref().map_or(0, |s| s.late.load(Ordering::Relaxed));
        Ok(Run { workers_ns, affine: self.affine(&report), report, stop_late, others })
    }

    fn workers_ns(&self) -> Result<u64> {
        let each = self.workers.iter().map(|pid| tasks::process_cpu_ns(*pid as i32));
        Ok(each.sum::<kern::wire::Result<u64>>()?)
    }

    fn spent(&self) -> Result<Spent> {
        let mut own = self.workers_ns()?;
        // Threads of clients end with the window: what they used must count after that too.
        let behind = match &self.serves {
            Serves::Proxy(pair) => pair.behind(),
            Serves::Workers { .. } => &[],
        };
        let beside = self.weir.iter().map(|w| w.child.id()).chain([self.clients.id()]);
        for pid in beside.chain(behind.iter().copied()) {
            own += tasks::process_ever_ns(pid as i32).unwrap_or(0);
        }
        let mut spent = Spent { own, ..Spent::default() };
        for cpu in self.cpus {
            let times = counters::cpu_times(cpu)?;
            spent.total += times.total;
            spent.busy += times.total - times.idle;
            let softirqd = tasks::find(|name| name == format!("ksoftirqd/{cpu}"))?;
            spent.own += softirqd.and_then(|pid| tasks::cpu_ns(pid).ok()).unwrap_or(0);
        }
        Ok(spent)
    }

    fn affine(&self, report: &Value) -> Option<f64> {
        let (mut own, mut all) = (0, 0);
        for row in report["by_cpu"].as_array()? {
            let cpu = row["cpu"].as_u64()?;
            for (worker, count) in row["workers"].as_object()? {
                let count = count.as_u64()?;
                let at = self.workers.iter().position(|pid| *pid.to_string() == **worker);
                // Two workers on each CPU have the same order twice.
                let mine = at.is_some_and(|at| self.cpus[at % self.cpus.len()] as u64 == cpu);
                all += count;
                own += if mine { count } else { 0 };
            }
        }
        (all > 0).then(|| 100.0 * own as f64 / all as f64)
    }
}

/// web-workers with these CPUs and options.
fn pages(directory: Option<&Path>, rig: &Rig<'_>, members: &str, skew: Skew) -> Result<(Serves, Vec<u32>)> {
    let address = rig.inputs[0].address;
    let mut args = format!(
        "--bind {address} --port {PORT} --bytes {BYTES} --work-ns {} --cpus {members}",
        WORK_US * 1000
    );
    let by_itself = match skew.stall().map(|s| s.how) {
        Some(How::Sleeps) => Some("sleep"),
        Some(How::Computes) => Some("compute"),
        _ => None,
    };
    if let (Some(how), Some(stall)) = (by_itself, skew.stall()) {
        let (length, period) = (stall.length.as_micros(), stall.period.as_micros());
        args.push_str(&format!(" --stall {how} --stall-us {length} --period-us {period}"));
    }
    if let Skew::Long(every) = skew {
        args.push_str(&format!(" --long-every {every} --long-us {}", LONG.as_micros()));
    }
    let mut program = Program::start(&locate("web-workers", directory)?, &rig.host, &words(&args))?;
    let answer = program.ask("workers")?;
    let workers: Vec<u32> = answer["workers"]
        .as_array()
        .map(|list| list.iter().filter_map(|pid| Some(pid.as_u64()? as u32)).collect())
        .unwrap_or_default();
    Ok((Serves::Workers { _program: program }, workers))
}

/// `weir accept` beside the server, on any CPU.
fn accept(
    path: &Path,
    rig: &Rig<'_>,
    workers: &[u32],
    cpus: &[usize],
    options: &[String],
) -> Result<Leashed> {
    let pid = workers.first().copied().unwrap_or(0);
    let mut command = Command::new(path);
    command.args(["accept", &pid.to_string(), "--json", "--interval", "100ms"]).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut leashed = Leashed::start("weir", command, &rig.host, cpus[1])?;
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu).map_err(|e| Error::program("weir", e))?;
    }
    sched_setaffinity(Pid::from_raw(leashed.child.id() as i32), &set)
        .map_err(|e| Error::program("weir", e))?;
    let out = leashed.child.stdout.take().ok_or_else(|| Error::program("weir", "no pipe"))?;
    let (send, first) = channel();
    std::thread::spawn(move || {
        // Read to its end, so that weir never waits for a reader; it ends with weir.
        let mut lines = BufReader::new(out).lines().map_while(std::result::Result::ok);
        let _ = lines.next().map(|line| send.send(line));
        lines.for_each(drop);
    });
    // Its first line comes an interval after it has attached.
    match first.recv_timeout(ATTACHED) {
        Ok(_) => Ok(leashed),
        Err(_) => Err(Error::program("weir", "weir accept does not attach to the server")),
    }
}

/// A thread beside the trial, before whatever else runs on its CPU. It ends with this value.
struct Beside {
    stop: Arc<AtomicBool>,
    /// How late its work began at most, ns.
    late: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Beside {
    /// `work` is given what tells it to end, and where to say how late it was.
    fn start(
        cpu: usize,
        priority: u32,
        work: impl FnOnce(&AtomicBool, &AtomicU64) + Send + 'static,
    ) -> Beside {
        let (stop, late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, latest) = (Arc::clone(&stop), Arc::clone(&late));
        let thread = std::thread::spawn(move || {
            // A refusal shows in how late it is.
            let _ = tasks::pin(0, cpu).and_then(|()| tasks::schedule(0, Policy::Fifo(priority)));
            work(&ends, &latest);
        });
        Beside { stop, late, thread: Some(thread) }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}

fn sleep_until(at: u64) {
    std::thread::sleep(Duration::from_nanos(at.saturating_sub(now_ns())));
}

/// Stops a process again and again.
fn stop_again_and_again(pid: u32, stall: Stall, cpu: usize) -> Beside {
    let pid = Pid::from_raw(pid as i32);
    Beside::start(cpu, 20, move |ends, late| {
        let (period, length) = (stall.period.as_nanos() as u64, stall.length.as_nanos() as u64);
        while !ends.load(Ordering::Relaxed) {
            let at = (now_ns() / period + 1) * period;
            // In steps, so that the end of a trial does not wait for a period.
            while now_ns() + 20_000_000 < at && !ends.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
            }
            if ends.load(Ordering::Relaxed) {
                return;
            }
            sleep_until(at);
            late.fetch_max(now_ns().saturating_sub(at), Ordering::Relaxed);
            // The worker lives as long as its master, which outlives this thread.
            let _ = kill(pid, Signal::SIGSTOP);
            sleep_until(at + length);
            let _ = kill(pid, Signal::SIGCONT);
        }
    })
}

/// Has `cpu` receive packets for half of the time, as a queue of a NIC with a hot flow would; what they cost is a matter of the machine.
fn packets(rig: &Rig<'_>, cpu: usize) -> Result<Beside> {
    let (door, to) = (rig.wire_side.door()?, rig.inputs[0].address);
    let (ready, entered) = channel();
    let beside = Beside::start(cpu, 11, move |ends, _| {
        let socket = door.enter().and_then(|()| {
            UdpSocket::bind("0.0.0.0:0").map_err(|e| kern::wire::Error::Missing(format!("a socket: {e}")))
        });
        let socket = match socket {
            Ok(socket) => socket,
            Err(e) => return drop(ready.send(Err(e))),
        };
        let _ = ready.send(Ok(()));
        while !ends.load(Ordering::Relaxed) {
            let begin = now_ns();
            while now_ns() - begin < PACKETS_PERIOD.as_nanos() as u64 / 2 {
                // Refusals come back by ICMP and are the next call's error.
                let _ = socket.send_to(&[0; 18], (to, NOBODYS_PORT));
            }
            sleep_until(begin + PACKETS_PERIOD.as_nanos() as u64);
        }
    });
    let entered = entered.recv().map_err(|_| Error::program("packets", "their thread has ended"))?;
    entered?;
    Ok(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 s of two CPUs, of which 3 s were busy: 2.8 s with the trial, so 5 % of all with something else.
    #[test]
    fn what_is_nobodys_of_the_trial_is_somebody_elses() {
        let from = Spent { own: 1_000_000_000, busy: 50, total: 1000 };
        let to = |own_ms: u64| Spent { own: from.own + own_ms * 1_000_000, busy: 350, total: 1400 };
        assert!((to(2800).others_since(&from) - 0.05).abs() < 1e-9);
        assert!(to(3005).others_since(&from) < 1e-9);
    }
}
