//! Scenarios: machine, workload, arms and sweep of one experiment, as TOML.
//!
//! ```toml
//! about = "one line"
//! requirements = ["MR-24"]
//! machine = "mogul96"              # machines/NAME.toml: kind and values
//! load = "2s"                      # how long packets arrive per trial; or packets = 10000
//! trace = "bursts.trace"           # packets arrive as in this file beside the scenario; else as on, off, burst, jitter say
//! trials = 1
//! one_x = 380000                   # what 1 x means in ratios; else the MLFRR of the best stock arm
//! hogs = [0, 1]                    # of machines with a setting hogs: a curve for each
//! experiment = "livelock-udp"      # name in the document, if it is not that of the file
//! claims = "place-auto"            # what is judged of its panels; see `claims.rs`
//!
//! [settings]                       # of the machine, for all arms
//! user = true
//!
//! [[kind]]                         # the sweep is run for each kind of load; at most 16
//! name = "bursts"
//! settings = { burst = 16 }
//!
//! [sweep]                          # exactly one key: offered, in packets/s, or any setting of the machine
//! offered = [2000, 4000, 8000]
//!
//! [[arm]]
//! name = "quota-5"
//! role = "shown"                   # stock alternative shown control weir ablation variant
//! note = "one line"
//! settings = { quota = 5 }
//!
//! [[marks]]                        # the paper's marks: drawn over the arm's curve
//! arm = "quota-5"
//! series = "mogul96/6-5/quota_5"   # marks/mogul96.toml
//!
//! [[panel]]                        # a quantity other than goodput, by arm
//! title = "program's share of the CPU"  # with {kind} in it one for each kind, and else of the first kind
//! value = "user_percent"           # a value of the outcome; or series = "...", over time
//! unit = "%"
//! digits = 1
//! kind = "bursts"                  # of this kind alone
//! ```
//!
//! A trace has a line for each frame: its time from the start, with a unit, and its bytes (1 to 65535), without preamble
//! and checksum. Empty lines and lines that begin with `#` are skipped. It is stretched to the offered rate and begins again when it
//! is over; a frame takes `frame_time` of the wire, in proportion to its bytes and at 60 bytes exactly. Costs are per packet, whatever its
//! bytes. At most [`FRAMES_MAX`](crate::source::FRAMES_MAX) frames, an hour, 32 MiB.
//!
//! Unknown keys and impossible values are refused with file, line, column and the fix, before anything runs.

mod item;
mod library;
mod marks;
mod read;
mod trace;

pub use item::Fault;
pub use library::{named, names, text_of, trace_of};
pub use marks::{Series, all_series, series};
pub use read::FILE_MAX;
pub use trace::TRACE_MAX;

use crate::machine::Machine;
use crate::settings::Given;
use results::Role;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most packets of one trial.
pub const PACKETS_MAX: u64 = 1_000_000_000;
/// Most arms.
pub const ARMS_MAX: usize = 64;
/// Most values of a sweep.
pub const SWEEP_MAX: usize = 1024;
/// Most trials per point.
pub const TRIALS_MAX: u32 = 99;
/// Most packets of a scenario: of all its arms, values, hogs and trials.
pub const PACKETS_ALL_MAX: u64 = 100_000_000_000;
/// Most kinds of load.
pub const KINDS_MAX: usize = 16;
/// Longest simulated time of one trial, ns: an hour.
pub const LOAD_MAX: u64 = 3_600_000_000_000;

/// How much comes per trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// So many packets at the offered rate.
    Packets(u64),
    /// Packets for so long, ns.
    Time(u64),
}

/// One variant.
#[derive(Clone)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// What it is compared as.
    pub role: Role,
    /// One line for the reader.
    pub note: Option<String>,
    /// The machine with all its settings but the swept one.
    pub machine: Box<dyn Machine>,
}

/// One kind of load, for which all arms run the sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Its name.
    pub name: String,
    /// Its settings, beside those of the arm.
    pub settings: Vec<(String, Given)>,
}

/// What is varied within each arm.
#[derive(Clone, Debug, PartialEq)]
pub enum Sweep {
    /// The offered rate, packets/s.
    Offered(Vec<u64>),
    /// A setting of the machine.
    Setting {
        /// Its name.
        key: String,
        /// Its values.
        values: Vec<Given>,
        /// The offered rate at all of them, packets/s.
        offered: u64,
    },
}

/// Marks of a paper over the curve of an arm.
#[derive(Clone, Debug, PartialEq)]
pub struct Marks {
    /// The arm.
    pub arm: String,
    /// What they are.
    pub series: Series,
    /// The panel's value that they show; goodput if absent.
    pub value: Option<String>,
}

/// What a panel shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shows {
    /// A value of the outcome over the sweep.
    Value(String),
    /// A series of the outcome over time, at the sweep's last value.
    Series(String),
}

/// A quantity beside goodput.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PanelPlan {
    /// Heading.
    pub title: String,
    /// What it shows.
    pub shows: Shows,
    /// Its unit.
    pub unit: String,
    /// Digits after the point.
    pub digits: u8,
    /// One line for the reader.
    pub note: Option<String>,
    /// The kind of load that it is of.
    pub kind: Option<String>,
}

/// One experiment.
#[derive(Clone)]
pub struct Scenario {
    /// Its name: that of the file.
    pub name: String,
    /// One line.
    pub about: String,
    /// Requirement numbers.
    pub requirements: Vec<String>,
    /// The machine's name.
    pub machine: String,
    /// What kind of machine that is.
    pub kind: &'static crate::machine::Kind,
    /// The name in the document: that of the lab's experiment where there is one.
    pub experiment: String,
    /// What 1 x means, packets/s; absent: the MLFRR of the best stock arm.
    pub one_x: Option<u64>,
    /// Values of the machine's setting `hogs`, each a curve of its own.
    pub hogs: Vec<u32>,
    /// How much comes per trial.
    pub load: Load,
    /// Trials per point, each with a stream of its own.
    pub trials: u32,
    /// The variants.
    pub arms: Vec<Arm>,
    /// Kinds of load; none: one without a name.
    pub kinds: Vec<Kind>,
    /// What is varied.
    pub sweep: Sweep,
    /// What is drawn over the curves.
    pub marks: Vec<Marks>,
    /// Other quantities.
    pub panels: Vec<PanelPlan>,
    /// What is claimed of it, beside the claims that are judged of every document.
    pub claims: Option<&'static crate::claims::Claims>,
}

/// A scenario as it was read, so that it can be read again where its files are not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Texts {
    /// Its name.
    pub name: String,
    /// What errors call it.
    pub path: String,
    /// Its text.
    pub text: String,
    /// The texts of the files beside it, by their names; one that is missing is that of the binary.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub beside: BTreeMap<String, String>,
}

impl Texts {
    /// Those of a scenario of the binary; `None` if there is none of that name.
    pub fn named(name: &str) -> Option<Texts> {
        let text = text_of(name)?.to_owned();
        Some(Texts { name: name.into(), path: format!("{name}.toml"), text, beside: BTreeMap::new() })
    }

    /// The scenario, as [`Scenario::parse`] reads it.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and the fix.
    pub fn scenario(&self, sets: &[(String, String)]) -> Result<Scenario, Fault> {
        let beside = |file: &str| {
            let text = self.beside.get(file).map(String::as_str).or_else(|| trace_of(file));
            text.map(str::to_owned).ok_or_else(|| "no such trace".to_owned())
        };
        Scenario::parse(&self.name, &self.path, &self.text, sets, &beside)
    }
}

/// Every setting of the scenario's machine, with its value in the first arm.
pub fn settings_of(scenario: &Scenario) -> Vec<(crate::settings::Key, String)> {
    let Some(arm) = scenario.arms.first() else { return Vec::new() };
    (scenario.kind.keys)().into_iter().filter_map(|key| Some((key, arm.machine.show(key.name)?))).collect()
}

impl Scenario {
    /// Keeps these kinds of load.
    ///
    /// # Errors
    /// A name that no kind has, and those that there are.
    pub fn only(&mut self, names: &[String]) -> Result<(), Fault> {
        let known: Vec<&str> = self.kinds.iter().map(|kind| kind.name.as_str()).collect();
        if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
            let why = match known.is_empty() {
                true => "this scenario has no kinds of load; leave it out".to_owned(),
                false => format!("no such kind; {}", item::choose(name, &known)),
            };
            return Err(Fault(format!("--kind {name}: {why}")));
        }
        self.kinds.retain(|kind| names.contains(&kind.name));
        Ok(())
    }

    /// The scenario in `text`, whose errors name `path`; `sets` are `key=value` of the command line, taken last;
    /// `beside` gives the text of a file beside the scenario, or why it cannot.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and the fix.
    pub fn parse(
        name: &str,
        path: &str,
        text: &str,
        sets: &[(String, String)],
        beside: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Self, Fault> {
        read::scenario(name, path, text, sets, beside)
    }
}
