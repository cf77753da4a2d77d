//! Clients of a web server, one thread per CPU, each bound to it: what they receive and send is handled there. `open RATE` (all clients
//! together, per second) or `closed N` (each) begins a run of `--warm-up-ms` and the given window, `report` waits for its end and tells
//! what was seen. `--shares`: what each client has of the open loop's rate, else all the same. `--datagrams`: each asks questions by UDP from many ports, in an open loop only. Ends when standard input closes.

use std::net::SocketAddrV4;
use std::thread::JoinHandle;
use std::time::Duration;

use consumers::asks;
use consumers::visits::{Pace, Plan, Seen, Stalls, report, run};
use consumers::{argument, monotonic_ns, number, pin, serve, unknown};
use serde_json::{Value, json};

const USAGE: &str = "web-clients --to ADDR:PORT --cpus 0,1 [--patience-ms N] [--stall-us N --period-us N] [--seed N] [--shares 9,1] [--datagrams]";

/// The thread of one client.
type Client = JoinHandle<Result<Seen, String>>;

struct Clients {
    to: SocketAddrV4,
    cpus: Vec<usize>,
    /// Of each client, adding up to 1.
    shares: Vec<f64>,
    patience: Duration,
    stalls: Option<Stalls>,
    seed: u64,
    datagrams: bool,
    running: Option<(Plan, Vec<Client>)>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = begin(&args) {
        eprintln!("web-clients: {message}");
        std::process::exit(2);
    }
}

fn begin(args: &[String]) -> Result<(), String> {
    let to = argument(args, "--to").ok_or(USAGE)?.parse().map_err(|_| "--to: not an address".to_string())?;
    let cpus = argument(args, "--cpus").ok_or(USAGE)?;
    let cpus: Result<Vec<usize>, String> =
        cpus.split(',').map(|n| n.parse().map_err(|_| format!("--cpus: not a CPU: {n}"))).collect();
    let cpus = cpus?;
    let shares = shares(args, cpus.len())?;
    let us = |name| Ok::<_, String>(number::<u64>(args, name)?.map(|us| us * 1000));
    let stalls = match (us("--stall-us")?, us("--period-us")?) {
        (Some(length), Some(period)) if length < period => Some(Stalls { period, length }),
        (None, None) => None,
        _ => return Err(USAGE.into()),
    };
    let mut clients = Clients {
        to,
        cpus,
        shares,
        patience: Duration::from_millis(number(args, "--patience-ms")?.unwrap_or(1000)),
        stalls,
        seed: number(args, "--seed")?.unwrap_or(1),
        datagrams: args.iter().any(|arg| arg == "--datagrams"),
        running: None,
    };
    more_descriptors();
    println!("{}", json!({ "ready": true, "pid": std::process::id() }));
    serve(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(match words.as_slice() {
            ["report"] => clients.report(),
            [loop_, load, warm_up, window] => {
                let ms = |text: &str| text.parse().map(Duration::from_millis);
                match (load.parse::<f64>(), ms(warm_up), ms(window)) {
                    // Datagrams have no closed loop.
                    (Ok(load), Ok(warm_up), Ok(window))
                        if load > 0.0 && (*loop_ == "open" || !clients.datagrams) =>
                    {
                        clients.start(*loop_ == "open", load, warm_up, window)
                    }
                    _ => unknown(line),
                }
            }
            _ => unknown(line),
        })
    })
}

/// What each of `count` clients has of the load.
fn shares(args: &[String], count: usize) -> Result<Vec<f64>, String> {
    let Some(list) = argument(args, "--shares") else { return Ok(vec![1.0 / count as f64; count]) };
    let parts: Result<Vec<f64>, String> =
        list.split(',').map(|n| n.parse().map_err(|_| format!("--shares: not a number: {n}"))).collect();
    let parts = parts?;
    let sum: f64 = parts.iter().sum();
    if parts.len() != count || parts.iter().any(|part| *part <= 0.0 || !part.is_finite()) {
        return Err(format!("--shares {list}: a number above 0 for each of {count} CPUs"));
    }
    Ok(parts.into_iter().map(|part| part / sum).collect())
}

/// A connection is a descriptor; where more are not allowed, those beyond are left out and counted.
fn more_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

impl Clients {
    fn start(&mut self, open: bool, load: f64, warm_up: Duration, window: Duration) -> Value {
        // All begin together, when all are there.
        let begin = monotonic_ns() + 20_000_000;
        let plan = |n: usize| Plan {
            to: self.to,
            pace: match open {
                true => Pace::Open {
                    per_s: load * self.shares.get(n).copied().unwrap_or(0.0),
                    seed: self.seed.wrapping_mul(1000) + n as u64,
                },
                false => Pace::Closed(load as usize),
            },
            begin,
            warm_up,
            window,
            patience: self.patience,
        };
        let go = if self.datagrams { asks::run } else { run };
        let threads = self.cpus.iter().enumerate().map(|(n, cpu)| {
            let (plan, cpu) = (plan(n), *cpu);
            std::thread::spawn(move || {
                pin(cpu).map_err(|e| format!("CPU {cpu}: {e}"))?;
                if open {
                    ahead();
                }
                go(&plan).map_err(|e| e.to_string())
            })
        });
        self.running = Some((plan(0), threads.collect()));
        json!({ "begin_ns": begin })
    }

    fn report(&mut self) -> Value {
        let Some((plan, threads)) = self.running.take() else { return json!({ "error": "nothing runs" }) };
        let seen: Result<Vec<Seen>, String> = threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err("a client panicked".into())))
            .collect();
        match seen {
            Ok(seen) => report(&seen, &self.cpus, self.stalls, &plan),
            Err(e) => json!({ "error": e }),
        }
    }
}

/// Visits that are due go before whatever else runs: a client that waits for the CPU of a busy worker would wait for its own
/// questions. Its load is bounded by its rate. A refusal shows in how late it was.
fn ahead() {
    let param = libc::sched_param { sched_priority: 10 };
    // SAFETY: plain system call on the calling thread with a struct that lives for the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) };
}
