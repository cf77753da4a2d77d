//! Runs trials one after another: repeats void ones within a limit, and tells how far it is.

use std::time::Duration;

use results::{Arm as ArmResult, Backend, Document, Machine, Partial, Relation, Verdict};

use kern::wire::counters::{self, CpuTimes};
use kern::wire::netns;
use kern::wire::source::Wire;
use kern::wire::tasks;
use serde_json::{Value, json};

use crate::arm::{Arm, Host};
use crate::consumer::{Kind, Setup};
use crate::guard;
use crate::options::Options;
use crate::program::locate;
use crate::rig::Cpus;
use crate::trial::{Bench, Offer, Outcome};
use crate::{Error, Result};

/// How long other programs are watched before the first trial, and how often: what has just ended is no obstacle.
const LISTEN: Duration = Duration::from_millis(500);
const LOOKS: u32 = 3;
/// Share of a CPU that other programs may use then, percent. More than a trial allows, since half a second tells little.
const OTHERS_MAX: u64 = 20;

/// How far an experiment is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Trials done.
    pub done: u64,
    /// Trials planned; a search makes it an estimate.
    pub total: u64,
    /// What comes next, in a few words.
    pub text: String,
}

/// Runs the trials of one experiment.
pub struct Runner<'a> {
    /// The caller's choices.
    pub options: &'a Options,
    /// What the trials share.
    pub bench: Bench,
    /// Trials planned.
    pub total: u64,
    done: u64,
    repeated: u64,
    progress: &'a mut dyn FnMut(Progress),
    affinity: nix::sched::CpuSet,
}

impl<'a> Runner<'a> {
    /// Prepares the machine: removes what dead labs left, binds the calling thread to the wire CPU, loads the
    /// programs, calibrates the sink.
    ///
    /// # Errors
    /// Without root or a second CPU, if a program is missing, or if other programs use the CPUs.
    pub fn new(options: &'a Options, progress: &'a mut dyn FnMut(Progress)) -> Result<Runner<'a>> {
        options.check()?;
        let cpus = options.cpus.unwrap_or(Cpus { wire: 0, host: 1 });
        let online = std::thread::available_parallelism().map_or(1, usize::from);
        if cpus.wire == cpus.host {
            return Err(Error::Usage("wire and host need a CPU each".into()));
        }
        if !nix::unistd::geteuid().is_root() {
            return Err(Error::Missing(
                "the lab needs root: it makes network namespaces; run it with sudo".into(),
            ));
        }
        if online < 2 {
            return Err(Error::Missing(
                "the lab needs two CPUs, one for the wire and one for the host; this machine lets it use one"
                    .into(),
            ));
        }
        if !options.busy {
            idle(cpus)?;
        }
        kern::wire::share::remove_stale();
        for name in netns::remove_stale() {
            // Files of guards and servers in those namespaces; most had none.
            let _ = std::fs::remove_file(format!("/run/{name}.status"));
            let _ = std::fs::remove_dir_all(format!("/run/{name}-nsd"));
            let _ = std::fs::remove_dir_all(format!("/run/{name}-nginx"));
            let _ = std::fs::remove_dir_all(format!("/run/{name}-real"));
        }
        let affinity = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap_or_default();
        tasks::pin(0, cpus.wire)?;
        let directory = options.programs.as_deref();
        let mut consumer = Setup::locate(options.consumer, directory, options.rcvbuf)?;
        consumer.calibrate(cpus.host, options.work)?;
        let wire = Wire::load()?;
        if options.consumer == Kind::Forward {
            consumer.loops = u64::from(wire.rules_for(options.work)?);
        }
        let bench = Bench {
            wire,
            cpus,
            consumer,
            watch_output: false,
            hog: locate("hog", directory)?,
            weir: options.weir.clone().or_else(|| find_weir(options)),
            interrupt: options.interrupt.clone(),
        };
        Ok(Runner { options, bench, total: 0, done: 0, repeated: 0, progress, affinity })
    }

    /// Refuses arms with a guard where none could run.
    ///
    /// # Errors
    /// If the program weir is not there, or a guard of this machine has the host CPU already.
    pub fn can_guard(&self, arms: &[Arm]) -> Result<()> {
        let Some(arm) = arms.iter().find(|arm| matches!(arm.host, Host::Guard(_))) else { return Ok(()) };
        if self.bench.weir.is_none() {
            return Err(Error::Missing(format!(
                "arm {} needs the program weir beside this one; build it",
                arm.name
            )));
        }
        let cpu = self.bench.cpus.host;
        match guard::owner(cpu) {
            None => Ok(()),
            Some(pid) => Err(Error::Missing(format!(
                "CPU {cpu}: already polled by weir, pid {pid}, and arm {} needs it for a guard of its own: nothing was \
                 measured. Stop that guard meanwhile, or give --cpus with a host CPU that no guard has",
                arm.name
            ))),
        }
    }

    /// Runs a trial, again if it is void; the last one counts.
    ///
    /// # Errors
    /// Of the trial.
    pub fn trial(&mut self, arm: &Arm, offer: &Offer, text: &str) -> Result<Outcome> {
        self.say(text);
        let outcome =
            self.again_if_void(|bench| bench.trial(arm, offer), |outcome| outcome.trial.void.is_some())?;
        self.done += 1;
        Ok(outcome)
    }

    /// Does something once, or until it is not void, within a limit; the last time counts.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn again_if_void<T>(
        &mut self,
        act: impl Fn(&Bench) -> Result<T>,
        void: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let mut outcome = act(&self.bench)?;
        for _ in 0..self.options.retries {
            if !void(&outcome) {
                break;
            }
            self.repeated += 1;
            outcome = act(&self.bench)?;
        }
        Ok(outcome)
    }

    /// Tells what comes next.
    pub fn say(&mut self, text: &str) {
        self.total = self.total.max(self.done);
        (self.progress)(Progress { done: self.done, total: self.total, text: text.into() });
    }

    /// Counts a step that is not a trial.
    pub fn step(&mut self) {
        self.done += 1;
    }

    /// Trials done so far.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// An empty document with the circumstances of this run.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn document(&self, experiment: &str) -> Result<Document> {
        let o = self.options;
        let mut document = Document::new(experiment, Backend::Kernel);
        document.started = Some(rfc3339(std::time::SystemTime::now()));
        document.machine = Some(Machine {
            kernel: counters::kernel_release()?,
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32).max(2),
            model: counters::cpu_model(),
            wire_cpu: Some(self.bench.cpus.wire as u32),
            host_cpu: Some(self.bench.cpus.host as u32),
            device: Some("veth".into()),
        });
        let parameters: [(&str, Value); 10] = [
            ("duration_ms", json!(o.window().as_millis() as u64)),
            ("warm_up_ms", json!(o.warm_up().as_millis() as u64)),
            ("repeat", json!(o.repeat())),
            ("consumer", json!(format!("{:?}", o.consumer).to_lowercase())),
            ("work_us", json!(o.work.as_secs_f64() * 1e6)),
            ("work_loops", json!(self.bench.consumer.loops)),
            ("rcvbuf", json!(o.rcvbuf)),
            ("rcvbuf_effective", json!(effective(o.rcvbuf))),
            ("reserve", json!(o.reserve)),
            ("seed", json!(o.seed)),
        ];
        document.parameters = parameters.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Ok(document)
    }

    /// Writes down what is known only at the end, and completes the document.
    pub fn finish(&self, document: &mut Document, required: &[results::Id], cut_short: bool) {
        document.parameters.insert("void_trials_repeated".into(), json!(self.repeated));
        if cut_short {
            document.partial = Some(Partial { done: self.done, total: self.total.max(self.done) });
        }
        document.finish(required);
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        // The caller's thread goes back to the CPUs it had.
        let _ = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &self.affinity);
    }
}

/// Refuses CPUs that other programs use all the time: minutes later every trial would be void.
fn idle(cpus: Cpus) -> Result<()> {
    let busy = |cpu: usize, before: CpuTimes| -> Result<u64> {
        let now = counters::cpu_times(cpu)?;
        let (all, idle) = (now.total.saturating_sub(before.total), now.idle.saturating_sub(before.idle));
        Ok(all.saturating_sub(idle) * 100 / all.max(1))
    };
    let (mut wire, mut host) = (0, 0);
    for _ in 0..LOOKS {
        let before = (counters::cpu_times(cpus.wire)?, counters::cpu_times(cpus.host)?);
        std::thread::sleep(LISTEN);
        (wire, host) = (busy(cpus.wire, before.0)?, busy(cpus.host, before.1)?);
        if wire.max(host) <= OTHERS_MAX {
            return Ok(());
        }
    }
    Err(Error::Missing(format!(
        "other programs use {wire} % of CPU {} and {host} % of CPU {}, which the lab needs for itself: nothing was \
         measured. End them or wait until they are done (top shows them), or run it all the same, with --busy: most trials \
         are void then",
        cpus.wire, cpus.host
    )))
}

/// Bytes that a socket's buffer has: the kernel doubles what SO_RCVBUF is given, and has a default of its own.
fn effective(rcvbuf: Option<u32>) -> Option<u64> {
    let default = || counters::sysctl("net/core/rmem_default").ok()?.parse().ok();
    rcvbuf.map_or_else(default, |given| Some(2 * u64::from(given)))
}

fn find_weir(options: &Options) -> Option<std::path::PathBuf> {
    let exe = std::env::current_exe().ok()?;
    if exe.file_name()? == "weir" {
        return Some(exe);
    }
    locate("weir", options.programs.as_deref()).ok()
}

/// The arm's place in the results.
#[must_use]
pub fn result_of(arm: &Arm, reserve: u8) -> ArmResult {
    let reserve = match (&arm.host, arm.role) {
        (Host::Guard(options), results::Role::Weir | results::Role::Variant) => {
            let given =
                options.iter().skip_while(|o| *o != "--reserve").nth(1).and_then(|r| r.parse::<f64>().ok());
            Some(given.unwrap_or(f64::from(reserve)) / 100.0)
        }
        _ => None,
    };
    ArmResult {
        name: arm.name.clone(),
        role: arm.role,
        note: arm.note.clone(),
        reserve,
        ..ArmResult::default()
    }
}

/// A claim of an experiment's own: `value` is at most `bound`.
#[must_use]
pub fn claim(id: &str, text: &str, value: Option<f64>, bound: f64) -> Verdict {
    Verdict {
        id: id.into(),
        claim: text.into(),
        value,
        relation: Relation::AtMost,
        bound,
        aim: None,
        digits: if bound == 0.0 { 0 } else { 3 },
        unit: String::new(),
        holds: value.is_some_and(|v| v <= bound),
        note: None,
    }
}

/// A moment as RFC 3339 writes it, in UTC, to the second.
fn rfc3339(time: std::time::SystemTime) -> String {
    let seconds = time.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs()) as i64;
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 1 March of year 0, in eras of 400 years: leap days then fall on the end of a year.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_rfc_3339() {
        let at = |s| rfc3339(std::time::UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_795_188_929), "2026-11-20T15:35:29Z");
    }

    #[test]
    fn only_arms_of_weir_have_a_reserve() {
        let arms = crate::arm::all(20);
        let reserve =
            |name: &str| arms.iter().find(|a| a.name == name).and_then(|a| result_of(a, 20).reserve);
        assert_eq!(reserve("weir"), Some(0.2));
        assert_eq!(reserve("stock-rps"), None);
        assert_eq!(reserve("weir-no-budget"), None);
    }
}
