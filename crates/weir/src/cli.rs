//! The command line. The first paragraph of an option's text is its line in the short help, with the default in
//! brackets at its end; the others are shown by the long help, an example last.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in help texts hold defaults")]

use crate::options::RUN_DIR;
use crate::out::ColorWhen;
use crate::parse;
use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

mod accept;
mod bug_report;
mod place;
mod results;
mod screen;
mod sim;

pub use accept::AcceptArgs;
pub use bug_report::BugReportArgs;
pub use guard::args::GuardArgs;
pub use place::{Layout, PlaceArgs};
pub use results::{ResultsCommand, ResultsMergeArgs};
pub use screen::ScreenArgs;
pub use sim::{SimCommand, SimRunArgs, SimTableArgs};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "weir", version, subcommand_required = true, arg_required_else_help = true)]
#[command(about = "weir: receive scheduler for Linux. Keeps a host working when packets arrive \
                   faster than it can handle.")]
#[command(override_usage = "weir COMMAND [IF...] [OPTIONS]")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// auto, always or never; NO_COLOR is respected [auto]
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto", hide_default_value = true)]
    pub color: ColorWhen,
}

/// Commands, in the order in which a newcomer needs them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What this host and NIC can do, and what is missing
    #[command(
        long_about = "What this host and NIC can do, what weir would use, what is missing and since which \
                      kernel. Features are probed, never guessed from a version. Changes nothing."
    )]
    Check(CheckArgs),
    /// Live: where every packet waits and is lost
    #[command(
        long_about = "Where packets wait and are lost on this host: the path from ring to program, levels, CPUs, \
                      consumers with their processes, and a ledger that says where each packet went. A live view on a \
                      terminal (? shows its keys), else a table per interval. Works without root with less, and says \
                      what is missing. Changes nothing."
    )]
    Watch(WatchArgs),
    /// Report: what loses packets, why, what to change
    #[command(
        long_about = "Watch this host for some seconds and say where packets are lost, why, and what the smallest \
                      change is that helps, with the command and the evidence. \"Nothing is wrong\" is an answer \
                      too. Changes nothing itself."
    )]
    Explain(ExplainArgs),
    /// Keep this host working at any packet rate, until stopped
    #[command(
        long_about = "Keep a host working at any packet rate, until stopped. Below saturation the kernel works \
                      as always. At overload weir polls the busy sources with a quota and a CPU budget, and \
                      leaves in the NIC what no program could read.",
        after_help = "Signals: INT and TERM put everything back and end it, HUP reads the file again\n\
                      Put back after a crash: weir undo IF",
        after_long_help = "Signals: INT and TERM put everything back and end it, HUP reads the file again\n\
                           Put back after a crash: weir undo IF       Short help: weir guard -h"
    )]
    Guard(Box<GuardArgs>),
    /// A packet screen in user space: accept, deny, count by rule
    #[command(
        long_about = "Screen packets that a firewall rule queues to this program (NFQUEUE): the first rule that \
                      accepts or denies a packet decides. Installs no firewall rule itself; it prints the one that \
                      brings packets to it. A guard on the interface holds input back while the screen is full.",
        after_help = "RULE: any, PREFIX, src/PREFIX, dst/PREFIX, tcp, udp, icmp, proto/N, tcp/PORTS,\n      \
                      udp/PORTS, sport/PORTS, dport/PORTS; several in quotes must all hold",
        after_long_help = "RULE: any, PREFIX, src/PREFIX, dst/PREFIX, tcp, udp, icmp, proto/N, tcp/PORTS,\n      \
                           udp/PORTS, sport/PORTS, dport/PORTS; several in quotes must all hold,\n      \
                           as --deny \"src/10.0.0.0/8 tcp/22\".\n\
                           A bare PREFIX is source or destination, PORTS of tcp and udp the destination's.\n\
                           Signals: INT and TERM answer what waits, then end."
    )]
    Screen(Box<ScreenArgs>),
    /// An accept queue per core with balancing, for running servers
    #[command(
        long_about = "An accept queue per core with balancing, for servers that have a listener per worker (nginx reuseport, \
                      HAProxy shards, anything with SO_REUSEPORT), until stopped. A connection goes to the worker of \
                      the core that receives it, unless that worker's queue is long or the worker stands still; then to \
                      a shorter one. The server is not changed and notices nothing; follows its reloads and restarts.",
        after_help = "Signals: INT and TERM detach; killed, it leaves the choice to the kernel",
        after_long_help = "Examples: weir accept nginx --dry-run      weir accept 443\n\
                           Signals: INT and TERM detach; killed, it leaves the choice to the kernel"
    )]
    Accept(AcceptArgs),
    /// Which CPUs do receive work: what is wrong, a plan, trial and undo
    #[command(
        long_about = "Which CPUs take this host's packets and run its programs, what is wrong with it in figures, and the \
                      settings that would be better: interrupts, RPS, XPS, NAPI threads, programs. Changes nothing \
                      without --apply or --watch.",
        after_help = "Put back: weir undo",
        after_long_help = "Put back: weir undo       Short help: weir place -h"
    )]
    Place(PlaceArgs),
    /// Ask the running guards: mode, reasons, drops, budget, levels
    #[command(
        long_about = "Ask the running guards what they do and why: mode of each source, drops by place, share of \
                      the CPU, levels of the consumers. Without a guard it says so and exits 0; asked for interfaces it \
                      exits 1."
    )]
    Status(StatusArgs),
    /// Put back every setting a dead weir left changed
    #[command(
        long_about = "Put back every setting that a weir changed and could not restore, because it was killed. \
                      A value that somebody else has changed since is reported and left. Settings of a guard \
                      that still runs are never touched."
    )]
    Undo(UndoArgs),
    /// One redacted archive of what happens here, for a bug report
    #[command(
        long_about = "Write one archive with what somebody needs who was not there: check, status, undo --dry-run, a second of \
                      watch, two of explain, journals, configuration, kernel and counters. Addresses and the name of the host \
                      are replaced, comments left out. Changes nothing and sends nothing."
    )]
    BugReport(BugReportArgs),
    /// The largest loss-free rate of this host, and what limits it
    #[command(
        long_about = "The largest rate that this host takes without loss (MLFRR), what limits it and what happens beyond, \
                      with an interval of 90 %. Watches the host's own traffic for a while and changes nothing: there is no \
                      test load. What-if options add a line each, and one with all of them."
    )]
    Predict(PredictArgs),
    /// Experiments on this kernel, in network namespaces
    #[command(subcommand_required = true, arg_required_else_help = true)]
    #[command(override_usage = "weir lab COMMAND [OPTIONS]")]
    Lab {
        /// What to do in the lab.
        #[command(subcommand)]
        command: LabCommand,
    },
    /// The same experiments in a simulator; the machines of the papers
    #[command(subcommand_required = true, arg_required_else_help = true)]
    #[command(override_usage = "weir sim COMMAND [OPTIONS]")]
    Sim {
        /// What to do in the simulator.
        #[command(subcommand)]
        command: SimCommand,
    },
    /// Results that are there: put the parts of a run together
    #[command(subcommand_required = true, arg_required_else_help = true)]
    #[command(override_usage = "weir results COMMAND [OPTIONS]")]
    Results {
        /// What to do with them.
        #[command(subcommand)]
        command: ResultsCommand,
    },
    /// Completions for a shell, on standard output
    #[command(override_usage = "weir completions SHELL")]
    Completions {
        /// bash, elvish, fish, powershell or zsh
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Man pages, one per command, into a directory
    #[command(override_usage = "weir man DIR")]
    Man {
        /// Existing directory
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// `weir check`.
#[derive(Debug, Args)]
#[command(override_usage = "weir check [IF...] [OPTIONS]")]
pub struct CheckArgs {
    /// Interfaces [all but loopback]
    #[arg(value_name = "IF")]
    pub interfaces: Vec<String>,

    /// One JSON document, schema weir.check/1
    ///
    /// weir check eth0 --json
    #[arg(long)]
    pub json: bool,

    /// Also what works, and what the driver's drop counters count
    ///
    /// weir check eth0 --all
    #[arg(long, conflicts_with = "json")]
    pub all: bool,

    /// Exit 3 unless WHAT works in full on every interface
    ///
    /// WHAT is guard. For provisioning scripts.
    ///
    /// weir check eth0 --require guard
    #[arg(long, value_name = "WHAT")]
    pub require: Option<Require>,
}

/// `weir watch`.
#[derive(Debug, Args)]
#[command(override_usage = "weir watch [IF...] [OPTIONS]")]
pub struct WatchArgs {
    /// Interfaces [all that receive]
    #[arg(value_name = "IF")]
    pub interfaces: Vec<String>,

    /// One interval, then exit
    ///
    /// weir watch eth0 --once
    #[arg(long)]
    pub once: bool,

    /// One JSON line per interval, schema weir.watch/1
    ///
    /// weir watch eth0 --json | jq .ledger
    #[arg(long)]
    pub json: bool,

    /// Time between two readings, 100ms to 60s [1s]
    ///
    /// weir watch eth0 --interval 5s
    #[arg(long, value_name = "DUR", value_parser = parse::interval, default_value = "1s", hide_default_value = true)]
    #[arg(allow_hyphen_values = true)]
    pub interval: Duration,

    /// Waiting times, drops by reason, rates per socket (root)
    ///
    /// Attaches BPF programs to tracepoints while it runs; what they cost stands in docs/watch-probes.md. Without root or BTF
    /// it says so, and the rest goes on.
    ///
    /// weir watch eth0 --probes --once
    #[arg(long, conflicts_with = "replay")]
    pub probes: bool,

    /// Live page for a browser, if asked for [127.0.0.1:9494]
    ///
    /// ADDR:PORT ([ADDR]:PORT for IPv6), an address, or a port of this host. Nothing is drawn in the terminal then, and nothing
    /// can be changed by the page. Of a recording one interval is shown per --interval.
    ///
    /// weir watch eth0 --web 127.0.0.1:8080
    #[arg(long, value_name = "ADDR", value_parser = parse::web, num_args = 0..=1)]
    #[arg(default_missing_value = "127.0.0.1:9494", conflicts_with = "once", allow_hyphen_values = false)]
    pub web: Option<SocketAddr>,

    /// OpenMetrics for a monitor, if asked for [127.0.0.1:9495]
    ///
    /// ADDR as for --web; with the same ADDR for both one server has both. The path is /metrics.
    ///
    /// weir watch eth0 --metrics 127.0.0.1:9100
    #[arg(long, value_name = "ADDR", value_parser = parse::metrics, num_args = 0..=1)]
    #[arg(default_missing_value = "127.0.0.1:9495", conflicts_with = "once", allow_hyphen_values = false)]
    pub metrics: Option<SocketAddr>,

    /// Answer only who knows the token in FILE
    ///
    /// Its first line, 16 to 256 printable characters: monitors give it as Bearer, browsers as the password of any user. It
    /// crosses the network as it is; where others can listen, put a proxy with TLS before it.
    ///
    /// weir watch eth0 --metrics 10.0.0.7:9495 --token /etc/weir/token
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,

    /// Answer whoever reaches ADDR, also beyond this host
    ///
    /// Without it an ADDR beyond the loopback needs --token.
    ///
    /// weir watch eth0 --metrics 10.0.0.7:9495 --anyone
    #[arg(long, conflicts_with = "token")]
    pub anyone: bool,

    /// Also write each interval to FILE, as --json does
    ///
    /// weir watch eth0 --record night.jsonl
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Show a recording instead of this host
    ///
    /// On a terminal in the live view, with its keys to pause and to step; elsewhere as tables.
    ///
    /// weir watch --replay night.jsonl
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "interfaces"])]
    pub replay: Option<PathBuf>,

    /// Where the CPU goes: time per component and packet (root)
    ///
    /// Samples the kernel's call chains 499 times per second and CPU. One JSON line per interval has schema weir.cpu/1;
    /// --record and --replay write and show these.
    ///
    /// weir watch eth0 --cpu --interval 10s --once --record before.jsonl
    #[arg(long, conflicts_with_all = ["web", "metrics", "probes"])]
    pub cpu: bool,

    /// Two recordings of --cpu by function: what costs more in B
    ///
    /// weir watch --cpu --diff before.jsonl after.jsonl
    #[arg(long, value_names = ["A", "B"], num_args = 2, requires = "cpu")]
    #[arg(conflicts_with_all = ["record", "replay", "interfaces", "once"])]
    pub diff: Vec<PathBuf>,

    /// Directory of the guards' sockets.
    #[arg(long, hide = true, default_value = RUN_DIR)]
    pub control_dir: PathBuf,
}

/// `weir explain`.
#[derive(Debug, Args)]
#[command(override_usage = "weir explain [IF...] [OPTIONS]")]
pub struct ExplainArgs {
    /// Interfaces [all that receive]
    #[arg(value_name = "IF")]
    pub interfaces: Vec<String>,

    /// How long to look, 500ms to 60s [10s]
    ///
    /// weir explain eth0 --for 30s
    #[arg(long, value_name = "DUR", value_parser = parse::window, default_value = "10s", hide_default_value = true)]
    #[arg(allow_hyphen_values = true)]
    pub r#for: Duration,

    /// Sample the CPUs too: rules about them see exact shares (root)
    ///
    /// Where the kernel counts softirq time by the tick, this finds what the tick misses.
    ///
    /// weir explain eth0 --cpu
    #[arg(long)]
    pub cpu: bool,

    /// One JSON document, schema weir.explain/1
    ///
    /// weir explain eth0 --json
    #[arg(long)]
    pub json: bool,

    /// Exit 1 if there is a finding: WHAT is loss
    ///
    /// weir explain eth0 --fail-on loss
    #[arg(long, value_name = "WHAT")]
    pub fail_on: Option<FailOn>,

    /// Directory of the sockets of running guards and `weir accept`s.
    #[arg(long, hide = true, default_value = RUN_DIR)]
    pub control_dir: PathBuf,
}

/// What `weir explain --fail-on` can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FailOn {
    /// Packets that are lost for a reason that was found.
    Loss,
}

/// What `weir check --require` can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Require {
    /// `weir guard` in full.
    Guard,
}

/// `weir status`.
#[derive(Debug, Args)]
#[command(override_usage = "weir status [IF...] [OPTIONS]")]
pub struct StatusArgs {
    /// Only the guards of these; exit 1 unless each has one that answers [all guards]
    #[arg(value_name = "IF")]
    pub interfaces: Vec<String>,

    /// As if the interfaces of this configuration file were named
    ///
    /// For a probe of the guard that was started with it.
    ///
    /// weir status --config /etc/weir/weir.toml
    #[arg(long, value_name = "FILE", conflicts_with = "interfaces")]
    pub config: Option<PathBuf>,

    /// One JSON line per guard, schema weir.status/1
    ///
    /// weir status --json
    #[arg(long)]
    pub json: bool,

    /// Directory of the guards' sockets.
    #[arg(long, hide = true, default_value = RUN_DIR)]
    pub control_dir: PathBuf,
}

/// `weir undo`.
#[derive(Debug, Args)]
#[command(override_usage = "weir undo [IF...] [OPTIONS]")]
pub struct UndoArgs {
    /// Interfaces [all]
    #[arg(value_name = "IF")]
    pub interfaces: Vec<String>,

    /// Print what would be put back, change nothing
    ///
    /// weir undo --dry-run
    #[arg(long)]
    pub dry_run: bool,

    /// Only what dead guards have left, never what weir place has changed
    ///
    /// For what runs before a guard starts: what cannot be put back now is named, and the exit code is 0, because the guard
    /// carries it over.
    ///
    /// weir undo --guards
    #[arg(long)]
    pub guards: bool,

    /// One JSON document, schema weir.undo/1
    ///
    /// weir undo --json
    #[arg(long)]
    pub json: bool,

    /// Directory of the journal.
    #[arg(long, hide = true, default_value = RUN_DIR)]
    pub journal_dir: PathBuf,
}

/// `weir predict`.
#[derive(Debug, Args)]
#[command(override_usage = "weir predict [IF...] [OPTIONS]")]
pub struct PredictArgs {
    /// Interfaces [all that receive]
    #[arg(value_name = "IF")]
    pub interfaces: Vec<String>,

    /// How long to watch, 1s to 10min [10s, while the interval is wide up to 40s]
    ///
    /// The more the rate changes meanwhile, the narrower the interval.
    ///
    /// weir predict eth0 --for 60s
    #[arg(long = "for", value_name = "DUR", value_parser = parse::watch)]
    #[arg(allow_hyphen_values = true)]
    pub r#for: Option<Duration>,

    /// One JSON document, schema weir.predict/1
    ///
    /// weir predict eth0 --json
    #[arg(long)]
    pub json: bool,

    /// Descriptors of each receive ring
    ///
    /// weir predict eth0 --ring 4096
    #[arg(long, value_name = "N", value_parser = parse::between::<1, 1_048_576>, help_heading = "What if")]
    pub ring: Option<u32>,

    /// Receive buffer of each socket, bytes, as SO_RCVBUF
    ///
    /// Also 512K or 4M.
    ///
    /// weir predict eth0 --rcvbuf 4M
    #[arg(long, value_name = "BYTES", value_parser = parse::bytes, help_heading = "What if")]
    pub rcvbuf: Option<u64>,

    /// CPUs that receive, each with its part of the program
    ///
    /// weir predict eth0 --cores 4
    #[arg(long, value_name = "N", value_parser = parse::between::<1, 1024>, help_heading = "What if")]
    pub cores: Option<u32>,

    /// Bytes of each packet
    ///
    /// weir predict eth0 --packet-size 1500
    #[arg(long, value_name = "BYTES", value_parser = parse::between::<46, 65_535>, help_heading = "What if")]
    pub packet_size: Option<u32>,

    /// CPU time of the program per packet, microseconds
    ///
    /// weir predict eth0 --work-us 0.8
    #[arg(long, value_name = "US", value_parser = parse::work_us, help_heading = "What if")]
    pub work_us: Option<f64>,

    /// weir guard with this share of the CPU for packets, percent
    ///
    /// weir predict eth0 --budget 50
    #[arg(long, value_name = "PCT", value_parser = parse::between::<1, 99>, help_heading = "What if")]
    pub budget: Option<u32>,

    /// weir guard with its defaults
    ///
    /// weir predict eth0 --guarded
    #[arg(long, help_heading = "What if")]
    pub guarded: bool,

    /// Divide the costs as a recording of weir watch --cpu does
    ///
    /// weir predict eth0 --profile cpu.jsonl
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,

    /// Throughput over CPUs from a result: fit, peak, residual
    ///
    /// A result of weir lab or weir sim --json with a panel over cores or cpus (universal scalability law).
    ///
    /// weir predict --scaling cores.json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["interfaces", "for", "check", "profile"])]
    pub scaling: Option<PathBuf>,

    /// Compare with measured rates of drawn workloads, in the lab
    ///
    /// 24 hosts, half an hour, with nothing else running. Each is measured before and after it is predicted, so that
    /// the machine's own part in an error shows. Needs root and two CPUs. Exits 1 if the predictions miss their aim.
    ///
    /// weir predict --check
    #[arg(long, help_heading = "In the lab", conflicts_with_all = ["interfaces", "for", "ring", "rcvbuf", "cores"])]
    #[arg(conflicts_with_all = ["packet_size", "work_us", "budget", "guarded"])]
    pub check: bool,

    /// Fewer workloads: about five minutes
    ///
    /// weir predict --check --quick
    #[arg(long, help_heading = "In the lab", requires = "check")]
    pub quick: bool,

    /// Which workloads are drawn [1]
    ///
    /// weir predict --check --seed 7
    #[arg(long, value_name = "N", value_parser = parse::seed, help_heading = "In the lab", requires = "check")]
    pub seed: Option<u64>,

    /// Only these of them, with commas
    ///
    /// weir predict --check --seed 7 --hosts w03,w18
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        help_heading = "In the lab",
        requires = "check"
    )]
    pub hosts: Option<Vec<String>>,
}

/// `weir lab`.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Experiments by name, and what each shows
    List(LabListArgs),
    /// Run one experiment in namespaces of its own
    #[command(
        long_about = "Run one experiment on this kernel, in network namespaces that are deleted afterwards. \
                      Arms are interleaved rate by rate. Prints a table and the claims; exits 1 if a claim \
                      falls short. Needs root and two CPUs.",
        after_help = "Experiments: weir lab list"
    )]
    Run(Box<LabRunArgs>),
    /// Table and report of a result that was written before
    Show(LabShowArgs),
    /// What differs between two results: class, onset, plateau, panels
    Compare(LabCompareArgs),
}

/// `weir lab list`.
#[derive(Debug, Args)]
#[command(override_usage = "weir lab list [OPTIONS]")]
pub struct LabListArgs {
    /// One JSON document
    ///
    /// weir lab list --json
    #[arg(long)]
    pub json: bool,
}

/// `weir lab run`.
#[derive(Debug, Clone, Args)]
#[command(override_usage = "weir lab run NAME [OPTIONS]")]
pub struct LabRunArgs {
    /// Experiment
    #[arg(value_name = "NAME")]
    pub name: String,

    /// Fewer arms, rates and trials: about two minutes
    ///
    /// weir lab run livelock-udp --quick
    #[arg(long, help_heading = "Size")]
    pub quick: bool,

    /// kernel, or sim: simulated, without privileges [kernel]
    ///
    /// The simulator takes --quick, --arms, --hogs, --seed, --json and --html.
    ///
    /// weir lab run livelock-udp --backend sim
    #[arg(long, value_name = "NAME", default_value = "kernel", help_heading = "What runs")]
    pub backend: LabBackend,

    /// Length of one trial, 50ms to 60s [1s, quick 400ms]
    ///
    /// weir lab run livelock-udp --duration 500ms
    #[arg(long, value_name = "DUR", value_parser = parse::trial, help_heading = "Size")]
    pub duration: Option<Duration>,

    /// Trials of each point, 1 to 99 [3, quick 2]
    ///
    /// weir lab run livelock-udp --repeat 9
    #[arg(long, value_name = "N", value_parser = parse::between::<1, 99>, help_heading = "Size")]
    pub repeat: Option<u32>,

    /// Pairs per rate of below-saturation [20, quick 6]
    ///
    /// weir lab run below-saturation --pairs 40
    #[arg(long, value_name = "N", value_parser = parse::between::<1, 99>, help_heading = "Size")]
    pub pairs: Option<u32>,

    /// Onsets per condition of onset [10, quick 3]
    ///
    /// weir lab run onset --onsets 20
    #[arg(long, value_name = "N", value_parser = parse::between::<1, 99>, help_heading = "Size")]
    pub onsets: Option<u32>,

    /// Arms, with commas [all; quick: three]
    ///
    /// weir lab run livelock-udp --arms stock-irq,weir
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "What runs")]
    pub arms: Option<Vec<String>>,

    /// Numbers of hogs on the host CPU, 0 to 16 [0, quick 0,1]
    ///
    /// A hog is a program that only computes.
    ///
    /// weir lab run livelock-udp --hogs 0,1,4
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse::between::<0, 16>)]
    #[arg(help_heading = "What runs")]
    pub hogs: Option<Vec<u32>>,

    /// Program that reads: udp-sink or nsd [udp-sink]
    ///
    /// weir lab run livelock-udp --consumer nsd
    #[arg(long, value_name = "NAME", default_value = "udp-sink", help_heading = "What runs")]
    pub consumer: LabConsumer,

    /// Receive buffer of udp-sink [the kernel's default]
    ///
    /// As given to SO_RCVBUF; also 512K or 4M.
    ///
    /// weir lab run livelock-udp --rcvbuf 512K
    #[arg(long, value_name = "BYTES", value_parser = parse::bytes, help_heading = "What runs")]
    pub rcvbuf: Option<u64>,

    /// Rates as multiples of 1 x [0.1 to 10]
    ///
    /// 1 x is the MLFRR of the best stock arm, which is measured first.
    ///
    /// weir lab run livelock-udp --multiples 1,10
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse::multiple)]
    #[arg(help_heading = "What runs")]
    pub multiples: Option<Vec<f64>>,

    /// More arms: weir at these reserves, 1 to 95 %
    ///
    /// weir lab run livelock-udp --hogs 1 --reserves 50,75
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse::reserve)]
    #[arg(help_heading = "What runs")]
    pub reserves: Vec<u8>,

    /// Options for every weir, in one word
    ///
    /// weir lab run livelock-udp --guard=--quota=64
    #[arg(long, value_name = "OPTS", allow_hyphen_values = true, help_heading = "What runs")]
    pub guard: Option<String>,

    /// Order of the trials [1]
    ///
    /// weir lab run livelock-udp --seed 7
    #[arg(long, value_name = "N", value_parser = parse::seed, help_heading = "What runs")]
    pub seed: Option<u64>,

    /// Write the result, schema weir.lab/1
    ///
    /// weir lab run livelock-udp --json report.json
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,

    /// Draw the curves, one file
    ///
    /// weir lab run livelock-udp --html report.html
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,

    /// 1 x in packets/s, instead of measuring it
    ///
    /// weir lab run livelock-udp --base-pps 350000
    #[arg(long, hide_short_help = true, value_name = "PPS", help_heading = "Size")]
    pub base_pps: Option<f64>,

    /// Kinds, of experiments that have several [all]
    ///
    /// A kind that does not exist is answered with those that do.
    ///
    /// weir lab run innocents --kind reader,closed-port
    #[arg(
        long,
        hide_short_help = true,
        value_delimiter = ',',
        value_name = "LIST",
        help_heading = "What runs"
    )]
    pub kind: Option<Vec<String>>,

    /// Packets per second, of experiments with fixed rates
    ///
    /// weir lab run innocents --rates 1000000,3000000
    #[arg(long, hide_short_help = true, value_delimiter = ',', value_name = "LIST", help_heading = "Size")]
    pub rates: Option<Vec<f64>>,

    /// Run although other programs use the CPUs
    ///
    /// Trials in which they do are void: they are repeated, and told in the result.
    ///
    /// weir lab run livelock-udp --quick --busy
    #[arg(long, hide_short_help = true, help_heading = "What runs")]
    pub busy: bool,

    /// Repeat a void trial at most so often, 0 to 99 [3]
    ///
    /// A trial is void if other work took more of a CPU than the result allows; 0 is for a quick look on a machine that is never quiet.
    ///
    /// weir lab run livelock-udp --quick --busy --retries 0
    #[arg(long, hide_short_help = true, value_parser = clap::value_parser!(u8).range(0..=99), value_name = "N", help_heading = "What runs")]
    pub retries: Option<u8>,

    /// CPU of the wire and CPU of the host [0,1]
    ///
    /// weir lab run livelock-udp --cpus 2,3
    #[arg(long, hide_short_help = true, value_parser = parse::cpu_pair, value_name = "W,H", help_heading = "What runs")]
    pub cpus: Option<(usize, usize)>,

    /// Work of udp-sink per datagram [1us]
    ///
    /// weir lab run livelock-udp --work 4us
    #[arg(long, hide_short_help = true, value_parser = parse::work, value_name = "DUR", help_heading = "What runs")]
    pub work: Option<Duration>,
}

/// What `weir lab run --backend` can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LabBackend {
    /// This kernel.
    Kernel,
    /// The simulator.
    Sim,
}

/// What `weir lab run --consumer` can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LabConsumer {
    /// Reads and works a fixed amount.
    UdpSink,
    /// A name server of Debian's packages.
    Nsd,
}

/// `weir lab show`.
#[derive(Debug, Args)]
#[command(override_usage = "weir lab show FILE [OPTIONS]")]
pub struct LabShowArgs {
    /// Result of weir lab run --json
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Draw the curves, one file
    ///
    /// weir lab show report.json --html report.html
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Draw the first chart alone, light and dark
    ///
    /// weir lab show report.json --svg docs/livelock-udp.svg
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// `weir lab compare`.
#[derive(Debug, Args)]
#[command(override_usage = "weir lab compare A.json B.json [OPTIONS]")]
pub struct LabCompareArgs {
    /// First result
    #[arg(value_name = "A.json")]
    pub a: PathBuf,
    /// Second result
    #[arg(value_name = "B.json")]
    pub b: PathBuf,

    /// Only these arms, with commas [all that both have]
    ///
    /// weir lab compare lab.json sim.json --arms weir
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub arms: Option<Vec<String>>,
}
