//! The command line of `weir accept`.

use crate::options::RUN_DIR;
use crate::parse;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// `weir accept`.
#[derive(Debug, Args)]
#[command(override_usage = "weir accept [PORT|PID|NAME...] [OPTIONS]")]
pub struct AcceptArgs {
    /// Ports, processes or names of servers [all groups]
    ///
    /// A number is a port if somebody listens on it, else a process. Network namespaces of all processes are searched.
    ///
    /// weir accept 443 haproxy
    #[arg(value_name = "PORT|PID|NAME")]
    pub targets: Vec<String>,

    /// Print what would be attached and how even it is today; end
    ///
    /// weir accept nginx --dry-run
    #[arg(long)]
    pub dry_run: bool,

    /// One JSON line per interval and at the end, weir.accept/1
    ///
    /// weir accept 443 --json | jq .groups
    #[arg(long)]
    pub json: bool,

    /// Time between two lines of progress, 100ms to 60s [10s]
    ///
    /// weir accept 443 --interval 1s
    #[arg(long, value_name = "DUR", value_parser = parse::interval, default_value = "10s", hide_default_value = true)]
    #[arg(allow_hyphen_values = true)]
    pub interval: Duration,

    /// Never pass by a worker that has stopped; only a long queue is spread
    ///
    /// To see what the detection is worth.
    ///
    /// weir accept 443 --no-stall
    #[arg(long)]
    pub no_stall: bool,

    /// Groups of UDP sockets too: each datagram may go to any worker
    ///
    /// For servers that keep nothing between two datagrams. knot, unbound, nsd and dnsdist on port 53 and rsyslog on port 514 are known to
    /// be so and need no option; on other ports they do. Never for QUIC, DTLS, SIP or media.
    ///
    /// weir accept 5300 --udp
    #[arg(long)]
    pub udp: bool,

    /// Directory of the socket for `weir watch`.
    #[arg(long, hide = true, default_value = RUN_DIR)]
    pub control_dir: PathBuf,
}
