//! The command line of `weir bug-report`.

use crate::options::RUN_DIR;
use clap::Args;
use std::path::PathBuf;

/// `weir bug-report`.
#[derive(Debug, Args)]
#[command(override_usage = "weir bug-report [IF...] [OPTIONS]")]
pub struct BugReportArgs {
    /// Interfaces [all but loopback]
    #[arg(value_name = "IF")]
    pub interfaces: Vec<String>,

    /// Archive to write, a new file [weir-bug-report-TIME.tar]
    ///
    /// weir bug-report --output /tmp/report.tar
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Configuration of the guard [/etc/weir/weir.toml]
    ///
    /// Its comments are left out.
    ///
    /// weir bug-report --config /etc/weir/eth1.toml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Directory of the journals and of the guards' sockets.
    #[arg(long, hide = true, default_value = RUN_DIR)]
    pub journal_dir: PathBuf,
}
