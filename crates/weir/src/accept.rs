//! `weir accept`: an accept queue per core with balancing (BH-17, BH-20) for unmodified servers, until stopped. The choice of a queue is
//! made by a program in the kernel; this process finds listeners, attaches, renews its lease and follows what the server does.

mod follow;
mod lines;
mod report;
mod targets;

use crate::cli::AcceptArgs;
use crate::error::{missing, usage};
use crate::out;
use crate::outbox::{Outbox, Standard};
use crate::watch::stop_flag;
use guard::server::{ANSWERS_MAX, Server};
use kern::accept::{Finder, Group};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use policy::accept::pace;
use policy::accept::queues::Choice as Rules;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use targets::Targets;

/// Reports that wait for a reader at most.
const REPORTS_MAX: usize = 16;
/// How long the end waits for a reader of the last report.
const LAST: Duration = Duration::from_millis(500);
/// See [`pace::STEP`].
const STEP: Duration = Duration::from_nanos(pace::STEP);

/// Runs `weir accept` until a signal ends it.
///
/// # Errors
/// 2 if there is nothing to attach to, 3 without the rights or the kernel for it. Nothing was changed then.
pub fn run(args: &AcceptArgs) -> anyhow::Result<ExitCode> {
    let mut finder = Finder::load().map_err(refused)?;
    let targets = Targets::parse(&args.targets, args.udp);
    let held = finder.all().map_err(refused)?;
    if finder.left_out > 0 {
        out::talk(&format!(
            "weir: {} sockets of processes were not looked at: some servers may be missing",
            out::grouped(finder.left_out)
        ));
    }
    kern::accept::without().iter().for_each(|line| out::talk(&format!("weir: {line}")));
    let groups = targets.groups(&held)?;
    if args.dry_run {
        let skipped = targets.skipped(&held);
        let text = if args.json {
            report::planned_json(&groups, &skipped)?
        } else {
            report::planned(&groups, &skipped)
        };
        out::data(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop_flag()?;
    let rules = if args.no_stall { Rules::NO_STALL } else { Rules::DEFAULT };
    let outbox = Outbox::new("weir-report", REPORTS_MAX, Standard::Out)?;
    let mut following = follow::Following::begin(targets, finder, rules, groups)?;
    out::talk(&report::greeting(&following));
    let server = Server::bind(&args.control_dir, crate::status::ACCEPT)
        .map_err(|e| out::talk(&format!("weir: weir watch cannot ask this one: {e}")))
        .ok();
    let mut next = Instant::now() + args.interval;
    let mut step = Instant::now() + STEP;
    while !stop.load(Relaxed) {
        wait(server.as_ref(), step);
        if let Some(server) = &server {
            for stream in std::iter::from_fn(|| server.asked()).take(ANSWERS_MAX) {
                server.answer(stream, &report::told(&following, false));
            }
        }
        if Instant::now() < step {
            continue;
        }
        step = Instant::now() + STEP;
        for line in following.step() {
            out::talk(&line);
        }
        if Instant::now() >= next {
            outbox.send(if args.json {
                report::json(&following, false)?.into_bytes()
            } else {
                report::lines(&following).into_bytes()
            });
            next = (next + args.interval).max(Instant::now());
        }
    }
    outbox.send(if args.json {
        report::json(&following, true)?.into_bytes()
    } else {
        report::lines(&following).into_bytes()
    });
    let left = following.end();
    for line in &left {
        out::talk(line);
    }
    outbox.drain(LAST);
    if left.is_empty() {
        out::talk("weir: detached; the kernel chooses again");
    }
    Ok(ExitCode::SUCCESS)
}

/// Until `then`, or somebody asks.
fn wait(server: Option<&Server>, then: Instant) {
    let left = then.saturating_duration_since(Instant::now());
    let Some(server) = server else { return std::thread::sleep(left) };
    let mut fds = [PollFd::new(server.as_fd(), PollFlags::POLLIN)];
    // A signal that ends it early is what it waits for too.
    let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None);
}

fn refused(error: kern::guard::Error) -> anyhow::Error {
    let lacks = kern::accept::lacks();
    match error {
        kern::guard::Error::NotBuilt => missing(error),
        _ if !lacks.is_empty() && !nix::unistd::geteuid().is_root() => {
            missing(format!("accept needs {}; run it with sudo", lacks.join(", ")))
        }
        _ if !lacks.is_empty() => missing(format!("accept needs {}: {error}", lacks.join(", "))),
        _ => missing(format!("accept needs Linux 6.2 with BTF, and CAP_BPF and CAP_PERFMON: {error}")),
    }
}

/// A failed first attach: nothing is left attached.
fn not_attached(group: &Group, error: &kern::error::Error) -> anyhow::Error {
    match error {
        kern::error::Error::Denied { .. } | kern::error::Error::Unsupported { .. } => missing(error),
        _ => usage(format!("{}: {error}; nothing was changed", group.name())),
    }
}
