//! `weir screen`: the reference packet screen in user space (MR-25). The kernel queues packets to it, a thread per queue
//! reads them in batches, asks `policy::screen` and answers.

mod plan;
mod report;
mod worker;

use crate::cli::ScreenArgs;
use crate::error::{failed, missing};
use crate::out;
use crate::outbox::{Outbox, Standard};
use crate::watch::{sleep_until, stop_flag};
use plan::Plan;
use report::Report;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use worker::Worker;

/// Reports that wait for a reader at most; a reader that hangs costs reports, not packets.
const REPORTS_MAX: usize = 16;
/// How long the end waits for a reader of the last report.
const LAST: Duration = Duration::from_millis(500);

/// Runs `weir screen` until a signal ends it.
///
/// # Errors
/// 2 for a wrong rule, 3 without CAP_NET_ADMIN or NFQUEUE, 1 if another program has the queue or a queue fails later.
pub fn run(args: &ScreenArgs) -> anyhow::Result<ExitCode> {
    let plan = Plan::resolve(args)?;
    if args.dry_run {
        out::data(&plan.text())?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop_flag()?;
    let mut workers = open(&plan, &stop)?;
    let outbox = Outbox::new("weir-report", REPORTS_MAX, Standard::Out)?;
    let begin = Instant::now();
    out::talk(&plan.greeting());
    let mut before = Report::take(&plan, &workers, Duration::ZERO);
    let mut next = begin + args.interval;
    while sleep_until(next, &stop) {
        let now = Report::take(&plan, &workers, begin.elapsed());
        outbox.send(if args.json { now.json(false)? } else { now.line(&before) }.into_bytes());
        before = now;
        next = (next + args.interval).max(Instant::now());
    }
    // Before the queues are closed: the kernel's counters go with them.
    let failures: Vec<String> = workers.iter_mut().filter_map(|worker| worker.end().err()).collect();
    let last = Report::take(&plan, &workers, begin.elapsed());
    outbox.send(if args.json { last.json(true)? } else { last.table(&plan) }.into_bytes());
    outbox.drain(LAST);
    match failures.first() {
        Some(why) => Err(failed(why)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Opens all queues, then starts their threads. A thread that fails raises `stop`.
fn open(plan: &Plan, stop: &Arc<AtomicBool>) -> anyhow::Result<Vec<Worker>> {
    // A queue that is opened and closed again drops what came meanwhile: first see whether all can be had.
    if let Some(taken) = kern::proc::filter_queues().iter().find(|queue| plan.queues().contains(&queue.queue))
    {
        return Err(refused(taken.queue, &io::Error::from_raw_os_error(libc::EBUSY)));
    }
    let queues: Vec<nfqueue::Queue> = plan
        .queues()
        .map(|number| nfqueue::Queue::open(number, &plan.options()).map_err(|e| refused(number, &e)))
        .collect::<anyhow::Result<_>>()?;
    let started: io::Result<Vec<Worker>> =
        queues.into_iter().map(|queue| Worker::start(queue, plan, Arc::clone(stop))).collect();
    // Threads that have started end by this flag if a later one does not start.
    started.inspect_err(|_| stop.store(true, Ordering::Relaxed)).map_err(|e| failed(format!("a thread: {e}")))
}

/// Why a queue cannot be opened, and what to do.
fn refused(number: u16, error: &io::Error) -> anyhow::Error {
    let taken = || kern::proc::filter_queues().into_iter().find(|queue| queue.queue == number);
    match (error.raw_os_error(), taken()) {
        (Some(libc::EPERM | libc::EBUSY), Some(queue)) => failed(format!(
            "queue {number}: another program reads it (netlink port {}, mostly its process id); \
             give another --queue or end that program",
            queue.port
        )),
        (Some(libc::EPERM | libc::EACCES), None) => missing("screen needs CAP_NET_ADMIN; run it with sudo"),
        (Some(libc::EINVAL | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT), None) => missing(format!(
            "queue {number}: this kernel has no NFQUEUE ({error}); load it: modprobe nfnetlink_queue"
        )),
        _ => failed(format!("queue {number}: {error}")),
    }
}
