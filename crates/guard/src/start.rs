//! What a guard finds out before it changes anything.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kern::discover;
use kern::guard::{Gauges, POLLERS, When};
use kern::settings::Access;
use policy::Nanos;

use crate::error::{failed, missing, usage};
use crate::options::GuardOptions;
use crate::parse::Mode;
use crate::plan::{self, Wish};

/// The gauges, or none and why: mode thread works without.
pub fn load(opts: &GuardOptions, cpus: usize, netns_inode: u32) -> anyhow::Result<(Gauges, Option<String>)> {
    let why = match Gauges::load(cpus, netns_inode) {
        Ok(gauges) if gauges.probes.napi_poll => return Ok((gauges, None)),
        Ok(_) => "the tracepoint napi:napi_poll cannot be attached".to_owned(),
        Err(e) if kern::tier::has_btf() => format!("{e}"),
        Err(_) => "no BTF in the kernel (CONFIG_DEBUG_INFO_BTF)".to_owned(),
    };
    match opts.mode {
        Mode::Auto | Mode::Thread => Ok((Gauges::blind(cpus)?, Some(why))),
        _ => Err(missing(format!("guard: {why}; see weir check, or use --mode auto"))),
    }
}

/// Prints what would be changed, and changes nothing.
pub fn dry_run(opts: &GuardOptions, names: &[String], access: &mut Access) -> anyhow::Result<ExitCode> {
    let wish = match opts.mode {
        Mode::Thread => Wish::Thread,
        Mode::Shed => Wish::Shed,
        _ => Wish::Poll(opts.flush.as_nanos() as Nanos),
    };
    // A program of somebody else's on the XDP hook, or a kernel that cannot poll: mode auto makes do with threads.
    let unpolled: Vec<String> = match opts.mode {
        Mode::Auto => {
            let (_, reports) = kern::tier::check(access, names)?;
            let thread = reports.into_iter().filter(|report| report.mode == kern::tier::Mode::Thread);
            thread.map(|report| report.interface.name).collect()
        }
        _ => Vec::new(),
    };
    let wish = |name: &String| if unpolled.contains(name) { Wish::Thread } else { wish };
    let (mut early, mut late) = (Vec::new(), Vec::new());
    for name in names {
        let wish = wish(name);
        if wish == Wish::Thread {
            continue;
        }
        let when = crate::interface::rx_when(access, kern::netns::index_of(name)?, name).0;
        let (list, end) = match when {
            _ if wish == Wish::Shed => (&mut early, "weir ends"),
            When::Start => (&mut early, "weir ends"),
            When::Takeover | When::Never => (&mut late, "it is not polled any more"),
        };
        list.push(format!("{name}  XDP program  none -> weir_rx   gone when {end}"));
    }
    for name in names {
        if unpolled.contains(name) {
            early.push(format!("{name}  mode thread, since it cannot be polled: weir check {name} says why"));
        }
        let wish = wish(name);
        let (start, polled) = plan::preview(access, name, wish)?;
        early.extend(start);
        // A thread polls from start to end.
        if wish == Wish::Thread { &mut early } else { &mut late }.extend(polled);
    }
    let mut text = String::new();
    for (when, lines) in [("at start", early), ("only while a source is polled", late)] {
        // Without lines the second says nothing that is new.
        if lines.is_empty() && when != "at start" {
            continue;
        }
        text.push_str(&format!("{when}\n"));
        let none = if lines.is_empty() { "  nothing\n" } else { "" };
        text.push_str(none);
        lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    text.push_str("nothing was changed\n");
    crate::out::data(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The interfaces that receive for those the user named: a bond, bridge or VLAN stands on others.
pub fn resolve(opts: &GuardOptions, access: &mut Access) -> anyhow::Result<Vec<String>> {
    kern::tier::require_privileges(&kern::tier::host(access)).map_err(missing)?;
    let mut names: Vec<String> = Vec::new();
    for name in &opts.interfaces {
        let found = discover::resolve(access, name);
        for interface in found.map_err(|e| if e.is_usage() { usage(e) } else { failed(e) })? {
            if !names.contains(&interface.name) {
                names.push(interface.name);
            }
        }
    }
    Ok(names)
}

/// CPUs that pollers may use.
pub fn allowed_cpus(opts: &GuardOptions) -> anyhow::Result<Vec<usize>> {
    let affinity = kern::cpus::affinity(0)?;
    let mut cpus: Vec<usize> = match &opts.cpu {
        Some(list) => {
            if let Some(cpu) = list.iter().find(|cpu| !affinity.contains(*cpu)) {
                return Err(usage(format!(
                    "--cpu {cpu}: this process may not run there; choose from {affinity}"
                )));
            }
            list.iter().collect()
        }
        None => affinity.iter().collect(),
    };
    cpus.truncate(POLLERS);
    Ok(cpus)
}

/// Signals, noted by flags; the eventfd ends the wait.
pub struct Signals {
    /// SIGTERM or SIGINT came.
    pub stop: Arc<AtomicBool>,
    /// SIGHUP came.
    pub reload: Arc<AtomicBool>,
    /// Becomes readable at each signal.
    pub wake: std::os::unix::net::UnixStream,
}

impl Signals {
    /// Catches the signals from here on.
    pub fn install() -> anyhow::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let (stop, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (wake, ring) = std::os::unix::net::UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        ring.set_nonblocking(true)?;
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
            signal_hook::low_level::pipe::register(signal, ring.try_clone()?)?;
        }
        signal_hook::flag::register(SIGHUP, Arc::clone(&reload))?;
        signal_hook::low_level::pipe::register(SIGHUP, ring)?;
        Ok(Self { stop, reload, wake })
    }

    /// Empties `wake`.
    pub fn drain(&self) {
        use std::io::Read;
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(n) if n > 0) {}
    }
}
