//! The command line of `weir place`.

use crate::options::RUN_DIR;
use crate::parse;
use clap::{Args, ValueEnum};
use kern::cpus::CpuSet;
use std::path::PathBuf;
use std::time::Duration;

/// How a host is to be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// By measurement.
    Auto,
    /// Over all CPUs.
    Spread,
    /// With the programs.
    Affine,
    /// On CPUs of its own.
    Dedicate,
    /// To the CPU of the reader.
    Follow,
}

/// `weir place`.
#[derive(Debug, Args)]
#[command(override_usage = "weir place [IF...] [OPTIONS]")]
pub struct PlaceArgs {
    /// Interfaces [all that receive]
    #[arg(value_name = "IF")]
    pub interfaces: Vec<String>,

    /// auto, spread, affine, dedicate or follow [auto]
    ///
    /// spread: receive work over all CPUs. affine: interrupt, softirq and the programs of --program on one CPU.
    /// dedicate: some CPUs for receive work only, the programs on the others. follow: packets of a flow to the CPU on which
    /// its program read last (RFS). auto: what a measurement asks for; with
    /// --apply each candidate has a trial and is undone unless it helps.
    ///
    /// weir place eth0 --strategy dedicate --program named --apply
    #[arg(long, value_name = "HOW", value_enum, default_value = "auto", hide_default_value = true)]
    #[arg(hide_possible_values = true)]
    pub strategy: Layout,

    /// Programs whose threads are placed too: PID or NAME
    ///
    /// May be given several times. Without it no program is touched.
    ///
    /// weir place eth0 --strategy affine --program 4711
    #[arg(long = "program", value_name = "PROG")]
    pub programs: Vec<String>,

    /// CPUs to use [all that may be used]
    ///
    /// Isolated CPUs and those outside of the cpuset are never used.
    ///
    /// weir place eth0 --cpu 0-3
    #[arg(long, value_name = "LIST", value_parser = parse::cpus)]
    pub cpu: Option<CpuSet>,

    /// CPUs for receive work, with dedicate [what packets need]
    ///
    /// weir place eth0 --strategy dedicate --net 2
    #[arg(long, value_name = "N", value_parser = parse::between::<1, 4096>)]
    pub net: Option<u32>,

    /// How long to measure, 50ms to 60s [1s]
    ///
    /// A trial of auto measures twice before and once after each candidate.
    ///
    /// weir place eth0 --for 5s --apply
    #[arg(long = "for", value_name = "DUR", value_parser = parse::trial, default_value = "1s")]
    #[arg(hide_default_value = true, allow_hyphen_values = true)]
    pub r#for: Duration,

    /// Make the changes; weir undo puts them back
    ///
    /// weir place eth0 --strategy spread --apply
    #[arg(long)]
    pub apply: bool,

    /// Print the changes only, also beside --apply
    ///
    /// weir place eth0 --strategy spread --dry-run
    #[arg(long)]
    pub dry_run: bool,

    /// Make the changes, keep them as things change, until stopped
    ///
    /// Interfaces, queues, threads of NAPIs and of programs are looked at each second. What somebody else sets meanwhile is
    /// left and reported. At the end everything is put back.
    ///
    /// weir place eth0 --strategy spread --watch
    #[arg(long, conflicts_with_all = ["apply", "dry_run", "json"])]
    pub watch: bool,

    /// One JSON document, schema weir.place/1
    ///
    /// weir place --json
    #[arg(long)]
    pub json: bool,

    /// Directory of the journal.
    #[arg(long, hide = true, default_value = RUN_DIR)]
    pub journal_dir: PathBuf,
}
