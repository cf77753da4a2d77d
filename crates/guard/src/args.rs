//! The command line of the guard: options that its file has too, and those that it has alone. The first paragraph of an option's
//! text is its line in the short help, with the default in brackets at its end.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in help texts hold defaults")]

use crate::options::RUN_DIR;
use crate::options::rows::FromArgs;
use crate::parse::{self, Ablate, Sched};
use clap::Args;
use std::path::PathBuf;

/// `weir guard`.
#[derive(Debug, Clone, Args)]
#[command(override_usage = "weir guard IF... [OPTIONS]")]
pub struct GuardArgs {
    /// Those that the configuration file has too.
    #[command(flatten)]
    pub given: FromArgs,

    /// Print every change, make none
    ///
    /// weir guard eth0 --dry-run
    #[arg(long, help_heading = "Output")]
    pub dry_run: bool,

    /// Errors only
    ///
    /// weir guard eth0 --quiet --status weir.jsonl
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// The same names in TOML; the command line wins
    ///
    /// SIGHUP reads it again; a bad file changes nothing.
    ///
    /// weir guard eth0 --config guard.toml
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub config: Option<PathBuf>,

    /// Switch one mechanism off, for the lab.
    #[arg(long, hide = true)]
    pub ablate: Vec<Ablate>,

    /// Flush timeout of a source in poll mode. An emulated machine is too slow for the default.
    #[arg(long, value_name = "DUR", hide = true, default_value = "5ms", value_parser = parse::timeout)]
    pub flush: std::time::Duration,

    /// How the poller is scheduled.
    #[arg(long, hide = true, default_value = "auto")]
    pub sched: Sched,

    /// Directory of the journal.
    #[arg(long, hide = true, default_value = RUN_DIR)]
    pub journal_dir: PathBuf,

    /// Directory of the socket for `weir status`.
    #[arg(long, hide = true, default_value = RUN_DIR)]
    pub control_dir: PathBuf,
}
