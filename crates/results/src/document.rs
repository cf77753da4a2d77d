//! The `weir.lab/1` document: everything a run of the lab or of the simulator has measured.
//!
//! Units: rates in packets/s (`_pps`), shares from 0 to 1, times as the name says (`_us`, `_ms`). Counts
//! (`sent`, `delivered`, `drops`, `polls`, `unaccounted`) of a [`Point`] are sums over its trials, so that
//! its ledger closes; rates, shares and latencies are medians over the trials that are not void.
//!
//! The text is deterministic: fields in the order of declaration, maps by key, floats in their shortest form.
//! Unknown fields are ignored on reading, so that a later writer may add some; a field that is absent takes
//! its default. A value that was not measured is absent, never 0.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::measure::{Onset, PairedRate, Point};
use crate::panel::{MAX_PANELS, Panel};

/// The schema string of every document that this crate writes and reads.
pub const SCHEMA: &str = "weir.lab/1";
/// Largest document that is read or written, in bytes.
pub const MAX_BYTES: u64 = 64 << 20;
/// Most arms of a document.
pub const MAX_ARMS: usize = 64;
/// Most points of one arm.
pub const MAX_POINTS: usize = 1024;
/// Most trials of one point, pairs of one rate, or onsets of one condition.
pub const MAX_TRIALS: usize = 256;
/// Most samples of one onset series.
pub const MAX_SAMPLES: usize = 100_000;

/// Why a document could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file as the caller named it.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is no JSON, or a field has the wrong type.
    #[error("{path}:{line}:{column}: {message}")]
    Syntax {
        /// The file as the caller named it.
        path: String,
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// Another schema, or none.
    #[error(
        "{path}: schema is \"{found}\", not \"{SCHEMA}\"; give a file written by weir lab or weir sim --json"
    )]
    Schema {
        /// The file as the caller named it.
        path: String,
        /// The schema string that stands in the file.
        found: String,
    },
    /// More than a stated limit, or a number that is not finite.
    #[error("{path}: {what}")]
    Limit {
        /// The file as the caller named it.
        path: String,
        /// What is too large, with its limit.
        what: String,
    },
}

/// One run: its circumstances, its arms, and what was concluded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Name of the experiment, as `weir lab run NAME` takes it.
    pub experiment: String,
    /// Who ran it.
    pub backend: Backend,
    /// Start of the run, RFC 3339 in UTC; absent in the simulator, whose output depends on nothing but its
    /// input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// Where it ran; absent in the simulator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The command that repeats the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Options in force, by their names on the command line.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// What "1 x" means in this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// How much of the plan was done, if the run was cut short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<Partial>,
    /// The variants under comparison, in the order in which they are shown.
    #[serde(default)]
    pub arms: Vec<Arm>,
    /// Interleaved pairs below saturation (P4), one entry per rate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairedRate>,
    /// Onsets of a flood (P7), one entry per arm and condition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub onset: Vec<Onset>,
    /// Other quantities, in the order in which they are shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub panels: Vec<Panel>,
    /// The claims and how they came out.
    #[serde(default)]
    pub verdict: Vec<Verdict>,
}

/// Who produced the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The lab, on a running kernel.
    Kernel,
    /// The simulator.
    Sim,
}

/// The machine of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// CPUs online.
    pub cpus: u32,
    /// CPU model, as the kernel names it.
    pub model: String,
    /// CPU that generates and carries the packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_cpu: Option<u32>,
    /// CPU of the machine under test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cpu: Option<u32>,
    /// Device under test, such as `veth`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// The rate that multiples are of: the MLFRR of the best stock arm, or a rate that was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Base {
    /// The stock arm that reached it; no arm's name if the rate was given ([`Base::given`]).
    pub arm: String,
    /// Its MLFRR, or the rate that was given.
    pub mlfrr_pps: f64,
}

/// What stands for the arm's name where the rate was given.
const GIVEN: &str = "given";

impl Base {
    /// A rate that nobody measured.
    pub fn given(pps: f64) -> Base {
        Base { arm: GIVEN.to_string(), mlfrr_pps: pps }
    }

    /// Whether the rate was given.
    pub fn is_given(&self) -> bool {
        self.arm == GIVEN
    }
}

/// A run that ended before its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partial {
    /// Trials done.
    pub done: u64,
    /// Trials planned.
    pub total: u64,
}

/// What an arm stands for; decides which claims it takes part in and where it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The kernel as it comes. The best of these is the base of multiples and of P2.
    Stock,
    /// What a user could choose instead of weir (P9 counts these and the stock arms).
    Alternative,
    /// Shown beside, in no claim: arms that break a rule of the comparison, such as unpinned ones.
    #[default]
    Shown,
    /// Must fail P1: a guard that does nothing.
    Control,
    /// weir at its default options; at most one arm.
    Weir,
    /// weir with one mechanism off.
    Ablation,
    /// weir at other options than the default (such as another reserve): in P3 only.
    Variant,
}

/// One variant under comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Its name, such as `stock-irq`.
    pub name: String,
    /// What it stands for.
    #[serde(default)]
    pub role: Role,
    /// One line that a reader must know, such as `unpinned` or the setting found best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Reserve in force, as a share of the CPU; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<f64>,
    /// What others measured on the machine that this arm stands for, drawn over its curve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// Measured points, by hogs and then by offered rate.
    #[serde(default)]
    pub points: Vec<Point>,
    /// Summary of the points with the fewest hogs, normally 0.
    #[serde(flatten)]
    pub summary: Summary,
    /// Summary of the points with more hogs, by their number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub with_hogs: BTreeMap<String, Summary>,
}

/// Marks of a published figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Which figure, as `mogul96/6-1/unmodified_no_screend`.
    pub source: String,
    /// Offered rate and goodput, packets/s.
    pub points: Vec<(f64, f64)>,
}

/// The shape of one curve of goodput over offered rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Behaviour beyond the peak; absent if the curve does not go beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// Largest offered rate that loses at most 0.1 % in the median of its trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlfrr_pps: Option<f64>,
    /// Largest offered rate at which no trial lost anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlfrr_zero_pps: Option<f64>,
    /// Offered rate at which goodput falls to 1 % of its peak, extrapolated if the sweep ends before; only
    /// for class livelock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub livelock_pps: Option<f64>,
    /// Highest goodput of any point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_pps: Option<f64>,
    /// Mean goodput of the points beyond the MLFRR, or beyond the peak if there is no MLFRR.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plateau_pps: Option<f64>,
    /// Standard deviation of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plateau_sd_pps: Option<f64>,
    /// Offered rate from which goodput stays below 95 % of the peak; absent if it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decline_pps: Option<f64>,
    /// Goodput / peak at a multiple of the base MLFRR (`"10"`), and at the wire's maximum (`"max"`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flatness: BTreeMap<String, f64>,
}

/// The three behaviours of Mogul & Ramakrishnan; thresholds in `stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Everything offered is delivered.
    Ideal,
    /// Constant beyond the MLFRR.
    Realizable,
    /// Falls with what is offered.
    Livelock,
}

/// How a source was served for most of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The kernel's own.
    Interrupt,
    /// Taken over by the poller.
    Poll,
    /// NAPI kthread.
    Thread,
}

/// How a value is compared with its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Relation {
    /// At least the bound.
    #[serde(rename = ">=")]
    AtLeast,
    /// At most the bound.
    #[serde(rename = "<=")]
    AtMost,
    /// Exactly the bound.
    #[serde(rename = "=")]
    Equal,
    /// Below the bound: claims about arms that must fail.
    #[serde(rename = "<")]
    Below,
}

/// One claim and how it came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Number of the requirement (`P1` ... `P12`, `no-op`, `ledger`).
    pub id: String,
    /// What is claimed, as a reader sees it.
    pub claim: String,
    /// What was measured; absent if it was not, and then the claim does not hold.
    pub value: Option<f64>,
    /// How the value is compared.
    pub relation: Relation,
    /// What it is compared with.
    pub bound: f64,
    /// What the project would like to reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aim: Option<f64>,
    /// Digits after the point that the value is shown with.
    #[serde(default)]
    pub digits: u8,
    /// Unit of value, bound and aim; empty for ratios and counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Whether the claim holds.
    pub holds: bool,
    /// What belongs beside the number: the arm, the interval, why it could not be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Document {
    /// An empty document of the current schema.
    pub fn new(experiment: &str, backend: Backend) -> Self {
        Document {
            schema: SCHEMA.to_string(),
            experiment: experiment.to_string(),
            backend,
            started: None,
            machine: None,
            command: None,
            parameters: BTreeMap::new(),
            base: None,
            partial: None,
            arms: Vec::new(),
            pairs: Vec::new(),
            onset: Vec::new(),
            panels: Vec::new(),
            verdict: Vec::new(),
        }
    }

    /// The arm of that name.
    pub fn arm(&self, name: &str) -> Option<&Arm> {
        self.arms.iter().find(|arm| arm.name == name)
    }

    /// Reads a document of at most [`MAX_BYTES`].
    ///
    /// # Errors The file cannot be read, is too large, is no JSON of this shape, has another schema, or
    /// exceeds a limit.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let io = |source| Error::Io { path: name.clone(), source };
        let file = std::fs::File::open(path).map_err(io)?;
        let mut text = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(io)?;
        Self::parse(&text, &name)
    }

    /// Reads a document from memory; `name` stands in the errors.
    ///
    /// # Errors
    /// As [`Document::read`], but for the file.
    pub fn parse(text: &[u8], name: &str) -> Result<Self, Error> {
        let path = name.to_string();
        if text.len() as u64 > MAX_BYTES {
            return Err(Error::Limit { path, what: format!("larger than {} MiB", MAX_BYTES >> 20) });
        }
        // The schema is looked at alone: a document of another schema differs in shape too, and the reader
        // should learn the cause, not the first symptom.
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            schema: String,
        }
        let syntax = |err: serde_json::Error| Error::Syntax {
            path: name.to_string(),
            line: err.line(),
            column: err.column(),
            message: without_position(&err),
        };
        let head: Head = serde_json::from_slice(text).map_err(syntax)?;
        if head.schema != SCHEMA {
            return Err(Error::Schema { path, found: head.schema });
        }
        let document: Self = serde_json::from_slice(text).map_err(syntax)?;
        document.check(name)?;
        Ok(document)
    }

    /// The document as text, one line end at its end.
    ///
    /// # Errors
    /// A limit is exceeded or a number is not finite.
    pub fn to_json(&self) -> Result<String, Error> {
        self.check("document")?;
        let limit = |what: String| Error::Limit { path: "document".to_string(), what };
        let mut text = serde_json::to_string_pretty(self).map_err(|err| limit(err.to_string()))?;
        text.push('\n');
        // JSON has no infinity: such a number is written as null and does not come back. Reading the text
        // again finds every one of them, wherever it stands.
        match Self::parse(text.as_bytes(), "document") {
            Ok(back) if back == *self => Ok(text),
            Ok(_) | Err(Error::Syntax { .. }) => Err(limit("a number is not finite".to_string())),
            Err(err) => Err(err),
        }
    }

    /// Writes the document beside `path` and renames it, so that a reader never sees half of it.
    ///
    /// # Errors
    /// As [`Document::to_json`], or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = self.to_json()?;
        write_whole(path, text.as_bytes())
    }

    fn check(&self, name: &str) -> Result<(), Error> {
        let fail = |what: String| Err(Error::Limit { path: name.to_string(), what });
        if self.schema != SCHEMA {
            return Err(Error::Schema { path: name.to_string(), found: self.schema.clone() });
        }
        if self.arms.len() > MAX_ARMS {
            return fail(format!("{} arms; at most {MAX_ARMS}", self.arms.len()));
        }
        for arm in &self.arms {
            let marks = arm.reference.as_ref().map_or(0, |reference| reference.points.len());
            if marks > MAX_POINTS {
                return fail(format!("{marks} marks over arm {}; at most {MAX_POINTS}", arm.name));
            }
            if arm.points.len() > MAX_POINTS {
                return fail(format!(
                    "{} points in arm {}; at most {MAX_POINTS}",
                    arm.points.len(),
                    arm.name
                ));
            }
            if let Some(point) = arm.points.iter().find(|point| point.trials.len() > MAX_TRIALS) {
                return fail(format!(
                    "{} trials in arm {}; at most {MAX_TRIALS}",
                    point.trials.len(),
                    arm.name
                ));
            }
        }
        if self.pairs.len() > MAX_POINTS || self.pairs.iter().any(|rate| rate.pairs.len() > MAX_TRIALS) {
            return fail(format!("more than {MAX_POINTS} paired rates or {MAX_TRIALS} pairs"));
        }
        let too_long = |onset: &Onset| {
            let lists = [&onset.takeover_ms, &onset.release_ms, &onset.recovery_ms];
            onset.series.len() > MAX_TRIALS
                || lists.iter().any(|list| list.len() > MAX_TRIALS)
                || onset.series.iter().any(|series| series.goodput_per_ms.len() > MAX_SAMPLES)
        };
        if self.onset.len() > MAX_ARMS || self.onset.iter().any(too_long) {
            return fail(format!("more than {MAX_TRIALS} onsets or {MAX_SAMPLES} samples"));
        }
        if self.panels.len() > MAX_PANELS {
            return fail(format!("{} panels; at most {MAX_PANELS}", self.panels.len()));
        }
        match self.panels.iter().find_map(Panel::excess) {
            Some(what) => fail(what),
            None => Ok(()),
        }
    }
}

/// Writes a file under a temporary name in the same folder, then renames it.
///
/// # Errors
/// It cannot be written; then `path` is as before.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let io = |source| Error::Io { path: path.display().to_string(), source };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = std::path::PathBuf::from(temporary);
    let written = std::fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|source| {
        let _ = std::fs::remove_file(&temporary);
        io(source)
    })
}

/// The message of a JSON error without its " at line L column C", which the caller prints in front.
fn without_position(err: &serde_json::Error) -> String {
    let text = err.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_string(),
        None => text,
    }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
