//! The command line of `weir results`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `weir results`.
#[derive(Debug, Subcommand)]
pub enum ResultsCommand {
    /// One result of all parts of a run in the simulator
    #[command(
        long_about = "Put the parts of one run together: the files of weir sim run --shard I/N, all N of them, in any order. \
                      The result has the same bytes as of a run in one piece. Prints table and claims as the run does; \
                      exits 1 if a claim falls short, 2 if a part is missing or of another run."
    )]
    Merge(ResultsMergeArgs),
}

/// `weir results merge`.
#[derive(Debug, Args)]
#[command(override_usage = "weir results merge FILE... [OPTIONS]")]
pub struct ResultsMergeArgs {
    /// Files of all parts
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Write the result, schema weir.lab/1
    ///
    /// weir results merge part-0.json part-1.json --json quota.json
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the curves, with the paper's marks, one file
    ///
    /// weir results merge part-0.json part-1.json --html quota.html
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
