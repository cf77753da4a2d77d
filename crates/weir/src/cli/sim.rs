//! The command line of `weir sim`.

use crate::parse;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `weir sim`.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Experiments by name, with machine and requirements
    List(SimListArgs),
    /// Run one experiment
    #[command(
        long_about = "Run one experiment on a simulated machine. The same policies that guard real hosts decide. The \
                      result depends on experiment, settings and seed alone: not on this machine, its load or \
                      --jobs. Needs no privileges.",
        after_help = "Experiments: weir sim list       One as a file: weir sim show NAME"
    )]
    Run(SimRunArgs),
    /// The text of an experiment, to copy and change, with all settings
    Show(SimShowArgs),
    /// Curves against the marks of the papers' figures
    Table(SimTableArgs),
}

/// `weir sim list`.
#[derive(Debug, Args)]
#[command(override_usage = "weir sim list [OPTIONS]")]
pub struct SimListArgs {
    /// One JSON document
    ///
    /// weir sim list --json
    #[arg(long)]
    pub json: bool,
}

/// `weir sim run`.
#[derive(Debug, Clone, Args)]
#[command(override_usage = "weir sim run NAME|FILE [OPTIONS]")]
pub struct SimRunArgs {
    /// Experiment, or a file of your own
    #[arg(value_name = "NAME|FILE")]
    pub name: String,

    /// Arms, with commas [all]
    ///
    /// weir sim run quota --arms quota-5,quota-inf
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub arms: Option<Vec<String>>,

    /// Kinds of load of an experiment that has several, with commas [all]
    ///
    /// weir sim run innocents --kind hung,fragments
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub kind: Option<Vec<String>>,

    /// Another value of a setting, in all arms; may be repeated
    ///
    /// weir sim run quota --set ring=64 --set "wire=6.72us"
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse::setting)]
    pub set: Vec<(String, String)>,

    /// Of every random number [1]
    ///
    /// weir sim run quota --seed 7
    #[arg(long, value_name = "N", value_parser = parse::seed)]
    pub seed: Option<u64>,

    /// Threads, 1 to 256 [one per CPU]
    ///
    /// weir sim run quota --jobs 1
    #[arg(long, value_name = "N", value_parser = parse::between::<1, 256>)]
    pub jobs: Option<u32>,

    /// Only part I of N, from 0, for weir results merge
    ///
    /// --json gets the part, schema weir.shard/1. All N parts merged give the same bytes as one run.
    ///
    /// weir sim run quota --shard 0/8 --json part-0.json
    #[arg(long, value_name = "I/N", value_parser = parse::part, requires = "json", conflicts_with = "html")]
    pub shard: Option<sim::Part>,

    /// Check packet by packet; exits 1 if a checker finds something
    ///
    /// weir sim run quota --strict
    #[arg(long)]
    pub strict: bool,

    /// Write the result, schema weir.lab/1
    ///
    /// weir sim run quota --json quota.json
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,

    /// Draw the curves, with the paper's marks, one file
    ///
    /// weir sim run quota --html quota.html
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
}

/// `weir sim show`.
#[derive(Debug, Args)]
#[command(override_usage = "weir sim show NAME")]
pub struct SimShowArgs {
    /// Experiment
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// `weir sim table`.
#[derive(Debug, Args)]
#[command(override_usage = "weir sim table [NAME...] [OPTIONS]")]
pub struct SimTableArgs {
    /// Experiments [all with marks]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Another value of a setting; may be repeated
    ///
    /// weir sim table quota --set "receive=150us"
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse::setting)]
    pub set: Vec<(String, String)>,

    /// Of every random number [1]
    ///
    /// weir sim table --seed 7
    #[arg(long, value_name = "N", value_parser = parse::seed)]
    pub seed: Option<u64>,
}
