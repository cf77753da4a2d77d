//! Experiments on this kernel: a wire, a host under test, programs, arms, and a ledger that closes.
//!
//! A trial builds a fresh pair of namespaces joined by veth. The wire CPU only generates and carries frames; all
//! receive work, the programs and the guard run on the host CPU. Everything is deleted when the trial ends, also by
//! an error, a panic or an interrupt.

mod accept;
mod accept_rig;
mod arm;
mod bursts;
mod capture;
mod clocked;
mod consumer;
mod containers;
mod control_traffic;
mod cpu_net;
mod cpu_net_resize;
mod cpu_share;
mod error;
mod fair_sources;
mod fairness;
mod flood;
mod frame;
mod grid;
mod guard;
mod harm;
mod innocents;
mod ledger;
mod livelock;
mod many_consumers;
mod mlfrr;
mod onset;
mod options;
mod pairs;
mod plan;
mod probe;
mod program;
mod real_programs;
mod rig;
mod router;
mod search;
mod shed;
mod signal;
mod sinks;
mod small_buffers;
mod steering;
mod syn_flood;
mod takes;
mod trial;
mod workload;

pub use arm::{Arm, Host};
pub use consumer::{Kind, Setup};
pub use error::{Error, Result};
pub use mlfrr::{COUNT, COUNT_QUICK, Compared, GOAL_LOSS, compare};
pub use options::{Options, RCVBUF_LARGE};
pub use plan::Progress;
pub use program::locate;
pub use rig::{Cpus, MODERATION, Wiring};
pub use signal::Interrupt;
pub use takes::{Choice, refuse_ignored, refuse_not_simulated};
pub use trial::{Bench, Offer, Outcome, burst};
pub use workload::Workload;

use results::Document;

/// An experiment by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExperimentInfo {
    /// As `weir lab run NAME` takes it.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    /// Length at default options, in words.
    pub takes: &'static str,
}

const EXPERIMENTS: &[ExperimentInfo] = &[
    ExperimentInfo {
        name: "livelock-udp",
        about: "goodput of a UDP server from below saturation to the wire's maximum, all arms",
        takes: "about 15 minutes, --quick 2",
    },
    ExperimentInfo {
        name: "livelock-router",
        about: "packets that a router forwards, and what is left for a program, up to the wire's maximum",
        takes: "about 15 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "screen",
        about: "a router that asks a program about each packet (NFQUEUE), up to the wire's maximum",
        takes: "about 15 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "quota",
        about: "a router with quotas from 4 to none: packets forwarded, and how long one takes",
        takes: "about 3 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "cycle-limit",
        about: "a router with budgets of 25 to 100 %: what a program that computes gets",
        takes: "about 3 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "tx-starvation",
        about: "whether a router's output stands still while its input is flooded",
        takes: "about 2 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "below-saturation",
        about: "latency, CPU and mode switches of weir against stock at 10 to 90 % of the loss-free rate, in pairs",
        takes: "about 6 minutes, --quick 2",
    },
    ExperimentInfo {
        name: "onset",
        about: "a flood begins and ends: takeover, release and goodput per millisecond",
        takes: "about 3 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "fairness",
        about: "2, 4 and 8 inputs: a flood on one, and equal floods on all",
        takes: "about 3 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "no-harm",
        about: "TCP both ways, nginx and request/response through a guarded interface without overload, against stock",
        takes: "about 8 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "control-traffic",
        about: "request/response, ARP and a session with keepalives beside a flood: loss, latency, goodput of the rest",
        takes: "about 4 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "innocents",
        about: "a server that nobody protects is asked 2,000 times a second beside floods of every kind: what it answers",
        takes: "about 25 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "syn-flood",
        about: "new connections to a listener that is flooded with SYNs or ACKs, and to another one: how many are served",
        takes: "about 5 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "fair-sources",
        about: "a server that 20 quiet senders ask while one loud sender floods its very port: what it answers",
        takes: "about 3 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "many-consumers",
        about: "32 programs, one flooded, one hung, one slow: what reaches the other 29",
        takes: "about 3 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "small-buffers",
        about: "receive buffers of 16 KiB to 4 MiB: what is lost in the socket after work was spent on it",
        takes: "about 6 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "capture",
        about: "a capture is open beside a flood: what it sees, what it costs the others",
        takes: "about 5 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "containers",
        about: "a program beside one that is flooded, on the host and behind a bridge and a translation",
        takes: "about 6 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "real-programs",
        about: "nsd, rsyslog, nginx, haproxy, sshd and iperf3 of Debian serve a client beside a flood",
        takes: "about 35 minutes, --quick 3",
    },
    ExperimentInfo {
        name: "accept",
        about: "a server with a listener per worker, evenly loaded: requests/s, CPU, affine connections, latency",
        takes: "about 2 minutes, --quick under 1",
    },
    ExperimentInfo {
        name: "accept-skew",
        about: "one of two workers stands for 50 ms of each 100 ms or second: latency of those that come meanwhile",
        takes: "about 6 minutes, --quick under 1",
    },
    ExperimentInfo {
        name: "mlfrr",
        about: "the largest loss-free rate of hosts that are drawn: packets, work, sockets, queues, rivals, forward, guarded",
        takes: "about 15 minutes, --quick 3",
    },
    ExperimentInfo {
        name: "shed-cost",
        about: "CPU time of a packet that is shed, against a bare XDP_DROP",
        takes: "about 1 minute",
    },
    ExperimentInfo {
        name: "burst-latency",
        about: "wait of the first packet of a burst, over the size of the burst and the quota",
        takes: "about 4 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "clocked",
        about: "polling every T, 50 us to 10 ms, without interrupts: latency, CPU time and goodput",
        takes: "about 2 minutes, --quick under 1",
    },
    ExperimentInfo {
        name: "cpu-net",
        about: "packets on the program's CPU, on one beside it, and on a net CPU of weir: switches, softirqs, CPU time",
        takes: "about 4 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "cpu-net-resize",
        about: "a step of load that one net CPU does not carry: reaction, loss, order, changes of the set",
        takes: "about 1 minute",
    },
    ExperimentInfo {
        name: "cpu-share",
        about: "what a program that reads gets of its CPU beside hogs, by its nice value: Wu's Figure 14 today",
        takes: "about 2 minutes, --quick 1",
    },
    ExperimentInfo {
        name: "steering",
        about: "one hot queue on one CPU, spread by RPS, and by weir place: goodput, evenness, the hottest CPU",
        takes: "about 1 minute",
    },
    ExperimentInfo {
        name: "cpus",
        about: "the same packets on one CPU and on two, with and without RPS",
        takes: "about 1 minute",
    },
];

/// All experiments.
#[must_use]
pub fn experiments() -> &'static [ExperimentInfo] {
    EXPERIMENTS
}

/// The arms of an experiment with these options, by name, in the order in which they are shown.
#[must_use]
pub fn arms(experiment: &str, options: &Options) -> Vec<String> {
    match experiment {
        "control-traffic" => control_traffic::ARMS.map(String::from).to_vec(),
        "innocents" => innocents::ARMS.map(String::from).to_vec(),
        "syn-flood" => syn_flood::ARMS.map(String::from).to_vec(),
        "fair-sources" => fair_sources::ARMS.map(String::from).to_vec(),
        "many-consumers" => names(many_consumers::arms(options.reserve)),
        "small-buffers" => names(small_buffers::arms(options.reserve)),
        "capture" => names(capture::arms(options.reserve)),
        "containers" => names(containers::arms(options.reserve)),
        "real-programs" => names(real_programs::arms(options.reserve)),
        "cpu-net" => names(cpu_net::arms(options.reserve, options.cpus.map_or(0, |cpus| cpus.wire))),
        "cpu-share" => names(cpu_share::arms()),
        "steering" => names(steering::arms()),
        "cpus" => names(steering::arms()).into_iter().take(2).collect(),
        "cpu-net-resize" => {
            let cpus = options.cpus.unwrap_or(rig::Cpus { wire: 0, host: 1 });
            names(cpu_net_resize::arms(options.reserve, cpus))
        }
        "accept" | "accept-skew" => names(accept::arms()),
        "mlfrr" => mlfrr::hosts(options).into_iter().map(|host| host.name).collect(),
        _ => sweep(experiment).unwrap_or(&livelock::UDP).names(options),
    }
}

fn names(arms: Vec<Arm>) -> Vec<String> {
    arms.into_iter().map(|arm| arm.name).collect()
}

/// Experiments that measure goodput over offered rate.
const SWEEPS: [&livelock::Sweep; 6] = [
    &livelock::UDP,
    &router::LIVELOCK,
    &router::SCREEN,
    &router::QUOTA,
    &router::CYCLE_LIMIT,
    &router::TX_STARVATION,
];

fn sweep(name: &str) -> Option<&'static livelock::Sweep> {
    SWEEPS.into_iter().find(|s| s.name == name)
}

/// All arms but the static rate limit, with the guard's reserve in percent: for single trials with [`Bench`].
#[must_use]
pub fn all_arms(reserve: u8) -> Vec<Arm> {
    arm::all(reserve)
}

/// Runs an experiment and answers its results, judged.
///
/// An interrupt gives what was measured so far, marked as partial.
///
/// # Errors
/// [`Error::Usage`] for an unknown name, an option out of range or one that the experiment ignores, [`Error::Missing`] without root, a second CPU, BPF
/// programs or a measured program, and what the kernel refuses.
pub fn run(name: &str, options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    refuse_ignored(name, options)?;
    if let Some(sweep) = sweep(name) {
        return sweep.run(options, progress);
    }
    match name {
        "below-saturation" => pairs::run(options, progress),
        "onset" => onset::run(options, progress),
        "fairness" => fairness::run(options, progress),
        "no-harm" => harm::run(options, progress),
        "control-traffic" => control_traffic::run(options, progress),
        "innocents" => innocents::run(options, progress),
        "syn-flood" => syn_flood::run(options, progress),
        "fair-sources" => fair_sources::run(options, progress),
        "many-consumers" => many_consumers::run(options, progress),
        "small-buffers" => small_buffers::run(options, progress),
        "capture" => capture::run(options, progress),
        "containers" => containers::run(options, progress),
        "real-programs" => real_programs::run(options, progress),
        "accept" => accept::even(options, progress),
        "accept-skew" => accept::skew(options, progress),
        "mlfrr" => mlfrr::run(options, progress),
        "shed-cost" => shed::run(options, progress),
        "burst-latency" => bursts::run(options, progress),
        "clocked" => clocked::run(options, progress),
        "cpu-net" => cpu_net::run(options, progress),
        "cpu-net-resize" => cpu_net_resize::run(options, progress),
        "cpu-share" => cpu_share::run(options, progress),
        "steering" => steering::run(options, progress),
        "cpus" => steering::cpus(options, progress),
        _ => {
            let names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
            Err(Error::Usage(format!("no experiment {name}; there are {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_listed_can_be_run_and_no_other() {
        // An option out of range is refused before anything is touched, so this tells names apart without root.
        let options = Options { reserve: 0, ..Options::default() };
        for experiment in experiments() {
            let answer = run(experiment.name, &options, &mut |_| {});
            assert!(matches!(&answer, Err(Error::Usage(text)) if text.contains("reserve")), "{answer:?}");
        }
        let answer = run("livelock", &options, &mut |_| {});
        assert!(matches!(&answer, Err(Error::Usage(text)) if text.contains("livelock-udp")), "{answer:?}");
    }
}
