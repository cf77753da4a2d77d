//! `weir predict`: the largest loss-free rate of this host, from its own traffic.

mod check;
mod observe;
mod scaling;
mod text;
mod wake;

use crate::cli::PredictArgs;
use crate::error::{failed, usage};
use crate::out::{self, Paint, shown};
use crate::parse::choose;
use kern::discover;
use kern::raw::{Reader, Want};
use kern::settings::Access;
use model::cheaper::{self, Gain, Side};
use model::line::Estimate;
use model::observe::{Costs, Fitted, Known, TooLittle};
use model::path::{Class, Limit, Path};
use model::whatif::Change;
use observe::{Observed, Reading};
use see::cost::Component;
use serde::Serialize;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long the host is watched at least, if nothing is said.
pub const WATCH: Duration = Duration::from_secs(10);
/// And at most: as long as an interval is wider than [`SURE`] on either side.
pub const WATCH_MOST: Duration = Duration::from_secs(40);
/// Half an interval over its value that is narrow enough; [`MODEL_ERROR`] alone is most of it.
const SURE: f64 = 0.22;
/// Length of a window: the kernel's ticks of 10 ms are 1 % of it.
const WINDOW: Duration = Duration::from_secs(1);
/// Fewest windows, however short they become, and most, however long.
const WINDOWS: (u32, u32) = (5, 120);
/// How often sockets are looked at for what waits in them.
const LOOK: Duration = Duration::from_millis(100);
/// Most looks that found something, per window.
const LOOKS: usize = 4096;
/// Relative error of the model beside what the observations leave open: 55 of the 72 hosts of `weir predict --check` (seeds 6001,
/// 7001 and 8001), calculated again with the present constants, are within it. docs/measurements has what a comparison gave.
const MODEL_ERROR: f64 = 0.2;

/// One row of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    /// `today`, `--guarded`, `all`.
    change: String,
    mlfrr_pps: Estimate,
    /// MLFRR over the mean rate of now.
    times_now: f64,
    limit: Limit,
    class: Class,
    #[serde(skip_serializing_if = "Option::is_none")]
    livelock_pps: Option<Estimate>,
    /// MR-40: packets/s of MLFRR per microsecond of cost per packet.
    pps_per_us: f64,
}

/// The answer for one interface.
#[derive(Debug, Clone, Serialize)]
struct Answer {
    interface: String,
    seconds: f64,
    packets: u64,
    now_pps: f64,
    cpu: u32,
    /// Part of the packets that this CPU receives.
    part: f64,
    /// What the costs come from.
    windows: Vec<model::observe::Window>,
    /// Windows that were used: those without loss.
    windows_used: usize,
    costs: Costs,
    /// What the model computes with, as it is today.
    path: Path,
    rows: Vec<Row>,
    /// MR-40: what a lower cost of each part gives.
    cheaper: Vec<Gain>,
    readers: Vec<observe::Reader>,
    missing: Vec<String>,
    /// Sockets of interest whose programs only root sees.
    hidden: u64,
}

/// The `--json` document.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    interfaces: &'a [Answer],
    /// Interfaces about which nothing could be said, each with the reason.
    unknown: Vec<(&'a str, &'a str)>,
}

/// Runs `weir predict`.
///
/// # Errors
/// 2 for an interface that is not there, 1 if what was seen is too little for all of them.
pub fn run(args: &PredictArgs, paint: Paint) -> anyhow::Result<ExitCode> {
    if args.check {
        return check::run(args, paint);
    }
    if let Some(file) = &args.scaling {
        return scaling::run(file, args.json);
    }
    let shares = args.profile.as_deref().map(shares).transpose()?.unwrap_or_default();
    // Where no thread may be started the wakes stay in the costs.
    let known = Known { wake: wake::cost().unwrap_or(0.0), error: MODEL_ERROR };
    let names = interfaces(args)?;
    let changes = changes(args);
    let about = |name: &str, readings: &[Reading]| {
        let seen = observe::observe(name, readings).map(|mut seen| {
            // veth does not tell its ring; all have the same.
            seen.path.ring = seen.path.ring.or(discover::ring(name).map(f64::from));
            seen
        });
        seen.and_then(|seen| answer(&seen, &changes, &shares, known))
    };
    let unsure =
        |readings: &[Reading]| names.iter().any(|name| about(name, readings).is_ok_and(|a| a.is_unsure()));
    let readings = watch(args, &names, unsure)?;
    let mut answers = Vec::new();
    let mut unknown: Vec<(&str, String)> = Vec::new();
    for name in &names {
        match about(name, &readings) {
            Ok(answer) => answers.push(answer),
            Err(why) => unknown.push((name, why)),
        }
    }
    if answers.is_empty() {
        let why: Vec<String> = unknown.iter().map(|(name, why)| format!("{}: {why}", shown(name))).collect();
        let fix = "wait for traffic and watch longer with --for, or measure with weir lab run mlfrr";
        return Err(failed(format!("{}; {fix}", why.join("; "))));
    }
    if args.json {
        let unknown = unknown.iter().map(|(name, why)| (*name, why.as_str())).collect();
        let document = Document { schema: "weir.predict/1", interfaces: &answers, unknown };
        out::data(&format!("{}\n", serde_json::to_string(&document)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let texts: Vec<String> = answers.iter().map(|a| text::text(a, paint)).collect();
    out::data(&texts.join("\n"))?;
    // Interfaces that were named are answered for, and what receives for them; of others nobody asked.
    for (name, why) in unknown.iter().filter(|_| !args.interfaces.is_empty()) {
        out::talk(&format!("{}: {why}", shown(name)));
    }
    Ok(ExitCode::SUCCESS)
}

impl Answer {
    /// True if an interval is so wide that watching longer would help.
    fn is_unsure(&self) -> bool {
        self.rows
            .iter()
            .any(|row| row.mlfrr_pps.high.is_some_and(|high| high > (1.0 + SURE) * row.mlfrr_pps.value))
    }
}

/// Names of the interfaces asked for, or of all that receive.
fn interfaces(args: &PredictArgs) -> anyhow::Result<Vec<String>> {
    let here: Vec<String> = kern::netns::interfaces()?.into_iter().map(|(name, _)| name).collect();
    if let Some(unknown) = args.interfaces.iter().find(|name| !here.contains(name)) {
        let why = choose(unknown, here.iter().map(String::as_str));
        return Err(usage(format!("{}: {why}", shown(unknown))));
    }
    let names = if args.interfaces.is_empty() { discover::choices() } else { args.interfaces.clone() };
    if names.is_empty() {
        return Err(usage("no interface here receives packets; set one up, or name one"));
    }
    Ok(receiving(names))
}

/// The interfaces that receive for these: of a bond, bridge or VLAN those below it, which have the rings. What cannot be resolved
/// stays, and is answered for.
fn receiving(names: Vec<String>) -> Vec<String> {
    let Ok(mut access) = Access::for_current_netns() else { return names };
    let mut all = Vec::new();
    for name in names {
        let below = match discover::resolve(&mut access, &name) {
            Ok(found) => found.into_iter().map(|interface| interface.name).collect(),
            Err(_) => vec![name],
        };
        all.extend(below);
    }
    let mut seen = BTreeSet::new();
    all.retain(|name| seen.insert(name.clone()));
    all
}

/// Watches the host for the time that was asked for; else longer while what was seen leaves it `unsure`.
fn watch(
    args: &PredictArgs,
    names: &[String],
    unsure: impl Fn(&[Reading]) -> bool,
) -> anyhow::Result<Vec<Reading>> {
    let want = Want { devices: names.to_vec(), tcp: false, all_tasks: true };
    let mut reader = Reader::open(want);
    let whole = args.r#for.unwrap_or(WATCH);
    let count = (whole.as_millis() / WINDOW.as_millis().max(1)).try_into().unwrap_or(WINDOWS.1);
    let count = u32::clamp(count, WINDOWS.0, WINDOWS.1);
    let mut readings = vec![take(&mut reader, Vec::new())?];
    let start = Instant::now();
    for n in 1..=count {
        let waiting = look_until(start + whole * n / count);
        readings.push(take(&mut reader, waiting)?);
    }
    // Each look at what is known so far takes below a millisecond.
    let mut told = false;
    while args.r#for.is_none() && start.elapsed() < WATCH_MOST && unsure(&readings) {
        if !std::mem::replace(&mut told, true) {
            let most = WATCH_MOST.as_secs();
            out::talk(&format!("the interval is still wide; watching on, {most} s at most. --for ends it"));
        }
        let waiting = look_until(Instant::now() + WINDOW);
        readings.push(take(&mut reader, waiting)?);
    }
    Ok(readings)
}

fn take(reader: &mut Reader, waiting: Vec<u64>) -> anyhow::Result<Reading> {
    let own = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    let own_ns = own.tv_sec() as u64 * 1_000_000_000 + own.tv_nsec() as u64;
    Ok(Reading { raw: reader.read()?, waiting, own_ns })
}

/// Looks at what waits in UDP sockets until `end`. With many sockets a look takes long, and there are fewer of them: they
/// take at most a twentieth of the time.
fn look_until(end: Instant) -> Vec<u64> {
    let mut waiting = Vec::new();
    loop {
        let before = Instant::now();
        let sockets = kern::proc::udp_sockets(None).unwrap_or_default();
        let room = LOOKS.saturating_sub(waiting.len());
        waiting.extend(sockets.iter().map(|s| s.rx_queue).filter(|n| *n > 0).take(room));
        let pause = LOOK.max(before.elapsed() * 20);
        let now = Instant::now();
        if now + pause >= end {
            std::thread::sleep(end.saturating_duration_since(now));
            return waiting;
        }
        std::thread::sleep(pause);
    }
}

/// The what-ifs of the command line with their names there.
fn changes(args: &PredictArgs) -> Vec<(String, Change)> {
    let mut list: Vec<(String, Change)> = Vec::new();
    let mut add = |name: String, change: Option<Change>| list.extend(change.map(|c| (name, c)));
    let word = |option: &str, value: Option<String>| format!("{option} {}", value.unwrap_or_default());
    add(word("--ring", args.ring.map(|n| n.to_string())), args.ring.map(Change::Ring));
    add(word("--rcvbuf", args.rcvbuf.map(|n| n.to_string())), args.rcvbuf.map(Change::Rcvbuf));
    add(word("--cores", args.cores.map(|n| n.to_string())), args.cores.map(Change::Cores));
    add(
        word("--packet-size", args.packet_size.map(|n| n.to_string())),
        args.packet_size.map(Change::PacketSize),
    );
    add(word("--work-us", args.work_us.map(|n| n.to_string())), args.work_us.map(Change::WorkUs));
    add(word("--budget", args.budget.map(|n| n.to_string())), args.budget.map(|n| Change::Budget(n as u8)));
    add("--guarded".into(), args.guarded.then_some(Change::Guarded));
    list
}

/// What a cheaper packet gives, of the whole interface.
fn cheaper(today: &Fitted, shares: &[(&str, Side, f64)], whole: f64) -> Vec<Gain> {
    let parts = cheaper::divided(&today.path, shares);
    let mut gains = cheaper::gains(&today.path, &parts, &cheaper::CUTS);
    gains.iter_mut().for_each(|gain| gain.mlfrr *= whole);
    gains
}

/// How the costs divide, by a recording of `weir watch --cpu`.
fn shares(file: &std::path::Path) -> anyhow::Result<Vec<(&'static str, Side, f64)>> {
    let profile = crate::watch::recorded(file, "--profile")?;
    let of = |component: Component, side| (component.name(), side, profile.of(component) as f64);
    Ok(vec![
        of(Component::Interrupt, Side::Receive),
        of(Component::Napi, Side::Receive),
        of(Component::Stack, Side::Receive),
        of(Component::LowerTransmit, Side::Receive),
        of(Component::UpperReceive, Side::Program),
        of(Component::UpperTransmit, Side::Program),
        of(Component::Program, Side::Program),
    ])
}

/// What the model says of one interface: now, after each change, and after all of them.
fn answer(
    seen: &Observed,
    changes: &[(String, Change)],
    shares: &[(&str, Side, f64)],
    known: Known,
) -> Result<Answer, String> {
    let fit = |ask: &dyn Fn(Path) -> Path| -> Result<Fitted, String> {
        model::observe::fit(&seen.windows, &seen.path, ask, known).map_err(|why| match why {
            TooLittle::Windows(..) => format!("{why}: it is beyond its loss-free rate now, or hardly used"),
            TooLittle::Packets(_) | TooLittle::Cost => why.to_string(),
        })
    };
    let whole = 1.0 / seen.part.max(f64::MIN_POSITIVE);
    let row = |change: &str, fitted: &Fitted| Row {
        change: change.into(),
        mlfrr_pps: fitted.mlfrr.scaled(whole),
        times_now: fitted.mlfrr.value * whole / seen.rate.max(f64::MIN_POSITIVE),
        limit: fitted.rate.limit,
        class: fitted.path.class(),
        livelock_pps: fitted.livelock.map(|e| e.scaled(whole)),
        pps_per_us: fitted.path.sensitivity() * 1e-6 * whole,
    };
    let today = fit(&|path| path)?;
    let mut rows = vec![row("today", &today)];
    for (name, change) in changes {
        rows.push(row(name, &fit(&|path| change.apply(&path, &seen.facts))?));
    }
    if changes.len() > 1 {
        let all =
            |path: Path| changes.iter().fold(path, |path, (_, change)| change.apply(&path, &seen.facts));
        rows.push(row("all of these", &fit(&all)?));
    }
    Ok(Answer {
        interface: seen.interface.clone(),
        seconds: seen.seconds,
        packets: seen.packets,
        now_pps: seen.rate,
        cpu: seen.cpu,
        part: seen.part,
        windows: seen.windows.clone(),
        windows_used: today.windows,
        costs: today.costs,
        path: today.path.clone(),
        rows,
        cheaper: cheaper(&today, shares, whole),
        readers: seen.readers.clone(),
        missing: seen.missing.clone(),
        hidden: seen.hidden,
    })
}
