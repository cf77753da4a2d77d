//! `weir watch --web` and `--metrics`: intervals go to a page and to monitors instead of the terminal.

use super::replay::replay;
use super::{Host, check_names, record_to, sleep_until, stop_flag};
use crate::cli::WatchArgs;
use crate::error::usage;
use crate::out::{self, Weight};
use kern::shell::quoted;
use see::Snapshot;
use serve::Show;
use serve::http::Limits;
use serve::token::Token;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Runs until a signal ends it.
///
/// # Errors
/// 2 for an address that cannot be listened at, an unknown interface or a file that is no recording, 1 if the kernel shows
/// no counters.
pub fn run(args: &WatchArgs) -> anyhow::Result<ExitCode> {
    check_names(&args.interfaces)?;
    let stop = stop_flag()?;
    if args.replay.is_some() {
        return recorded(args, &stop);
    }
    let mut record = args.record.as_deref().map(record_to).transpose()?;
    let mut host = Host::open(args)?;
    let show = start(args)?;
    let mut next = Instant::now() + args.interval;
    while sleep_until(next, &stop) {
        let snapshot = host.sample()?;
        if let Some(file) = &mut record {
            writeln!(file, "{}", serde_json::to_string(&snapshot)?)?;
        }
        give(&show, &snapshot, args)?;
        next = (next + args.interval).max(Instant::now());
    }
    Ok(ExitCode::SUCCESS)
}

/// A signal came while a recording was shown.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
struct Stopped;

/// Shows a recording, an interval of it per `--interval`, and then its end until a signal comes.
fn recorded(args: &WatchArgs, stop: &AtomicBool) -> anyhow::Result<ExitCode> {
    let Some(file) = &args.replay else { return Ok(ExitCode::SUCCESS) };
    let mut show = None;
    let mut next = Instant::now();
    let end = replay(file, false, &mut |snapshot| {
        // The addresses are opened when the file has shown that it is a recording.
        let show = match &show {
            Some(show) => show,
            None => show.insert(start(args)?),
        };
        if !sleep_until(next, stop) {
            return Err(Stopped.into());
        }
        next += args.interval;
        give(show, snapshot, args)
    });
    match end {
        Err(e) if e.is::<Stopped>() => return Ok(ExitCode::SUCCESS),
        other => other?,
    }
    while sleep_until(Instant::now() + args.interval, stop) {}
    Ok(ExitCode::SUCCESS)
}

fn give(show: &Show, snapshot: &Snapshot, args: &WatchArgs) -> anyhow::Result<()> {
    show.hub().publish(snapshot);
    if args.json {
        out::data(&format!("{}\n", serde_json::to_string(snapshot)?))?;
    }
    Ok(())
}

fn start(args: &WatchArgs) -> anyhow::Result<Show> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos());
    let run = format!("{}-{now}", std::process::id());
    let token = match &args.token {
        Some(path) => Some(Token::read(path).map_err(|why| {
            usage(format!("--token {}: {why}; give a file whose first line is the token", path.display()))
        })?),
        None => None,
    };
    if let (Some(path), Some(true)) = (&args.token, token.as_ref().map(Token::is_open)) {
        let (name, word) = (path.display().to_string(), path.to_string_lossy());
        out::tell(
            Weight::Warning,
            &format!(
                "weir: --token {}: every user of this host may read it; run: chmod 600 {}",
                out::shown(&name),
                quoted(&word)
            ),
        );
    }
    let asked = [("--web", args.web), ("--metrics", args.metrics)].into_iter();
    let mut open = asked.filter_map(|(option, address)| Some((option, address?)));
    let open = open.find(|(_, address)| !address.ip().is_loopback());
    if let (Some((option, address)), None, false) = (open, &token, args.anyone) {
        return Err(usage(format!(
            "{option} {address}: not of this host alone, and who reaches it could read which programs receive and what \
             is lost; give --token FILE, or --anyone if they may"
        )));
    }
    let closed = token.is_some();
    let show = Show::start(args.web, args.metrics, run, args.replay.is_some(), token, Limits::default());
    let show = show.map_err(|(address, e)| {
        let option = if args.web == Some(address) { "--web" } else { "--metrics" };
        usage(format!("{option} {address}: {e}; give another address or port"))
    })?;
    let addresses: Vec<SocketAddr> = show.addresses().collect();
    for address in addresses.iter().filter(|address| !closed && !address.ip().is_loopback()) {
        let what = "can read there which programs receive and what is lost";
        out::tell(Weight::Warning, &format!("weir: not only this host: whoever reaches {address} {what}"));
    }
    if let Some(address) = addresses.first().filter(|_| args.web.is_some()) {
        out::talk(&format!("weir: page at http://{address}/"));
    }
    if let Some(address) = addresses.last().filter(|_| args.metrics.is_some()) {
        out::talk(&format!("weir: metrics at http://{address}/metrics"));
    }
    Ok(show)
}
