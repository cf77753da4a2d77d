//! The machines. A machine is a state machine over an [`crate::engine::Agenda`]; it has costs and queues, and asks
//! `policy` whenever something is to be decided.
//!
//! To add one: a module with a `settings!` struct that implements [`Design`] (or a type that implements [`Machine`], if
//! no packets come from outside), one line in [`KINDS`], and a file `machines/NAME.toml` with its values and where they come from. Several named machines may share a kind.

pub mod active;
pub mod bsd;
pub mod linux26;
pub mod modern;
pub mod placed;
pub mod proxy;

use crate::check::Recovery;
use crate::engine::{Nanos, Rng};
use crate::settings::{Given, Key, Refused, Settings};
use crate::source::{Pattern, Source, Trace};
use results::Trial;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A kind of machine.
#[derive(Clone, Copy)]
pub struct Kind {
    /// As `kind = ` names it.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// Every setting it has.
    pub keys: fn() -> Vec<Key>,
    /// A new one with its defaults.
    pub new: fn() -> Box<dyn Machine>,
}

impl Kind {
    /// The kind of the machines that sources send packets to.
    const fn sourced<D: Design>(name: &'static str, about: &'static str) -> Kind {
        Kind {
            name,
            about,
            keys: || [D::keys(), Pattern::keys()].concat(),
            new: || Box::new(Sourced::<D>::default()),
        }
    }
}

/// All kinds, in the order in which they are listed.
#[rustfmt::skip]
pub const KINDS: &[Kind] = &[
    bsd::KIND,
    modern::KIND,
    linux26::KIND,
    proxy::KIND,
    active::KIND,
    placed::KIND,
];

/// The kind of that name.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// What one trial is to do.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    /// Packets/s of all sources together, at least 1; machines without packets from outside ignore it.
    pub offered: u64,
    /// How long packets arrive, ns; then the queues drain.
    pub load: Nanos,
    /// For every random stream of this trial.
    pub seed: u64,
    /// Checkers that cost time: packet by packet. The others are always on.
    pub strict: bool,
    /// Raised to end early; what was measured by then is thrown away.
    pub stop: &'a AtomicBool,
}

/// What one trial gave.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The measured trial, for the arm's point.
    pub trial: Trial,
    /// Other quantities by name, for panels.
    pub values: BTreeMap<&'static str, f64>,
    /// Quantities over time, x in seconds, by name, for panels.
    pub series: BTreeMap<&'static str, Vec<(f64, f64)>>,
    /// How the source was served for most of the window.
    pub mode: Option<results::Mode>,
    /// Packets delivered over time, for the checker.
    pub over_time: Recovery,
    /// Events that happened.
    pub events: u64,
    /// What the checkers found.
    pub faults: Vec<String>,
}

/// A machine with its settings.
pub trait Machine: Send + Sync {
    /// Takes one setting.
    ///
    /// # Errors
    /// The name is unknown or the value is wrong.
    fn set(&mut self, key: &str, given: &Given) -> Result<(), Refused>;
    /// The value in force, as it would be written.
    fn show(&self, key: &str) -> Option<String>;
    /// Whether the settings fit together, asked once all are set.
    ///
    /// # Errors
    /// What does not, with the fix.
    fn check(&self) -> Result<(), String>;
    /// Packets arrive as in `trace` from now on; false if none come from outside.
    fn replay(&mut self, _trace: &Arc<Trace>) -> bool {
        false
    }
    /// Runs one trial. The same input gives the same outcome.
    fn run(&self, input: &Input) -> Outcome;
    /// A copy.
    fn boxed(&self) -> Box<dyn Machine>;
}

/// The settings of a machine that sources send packets to, and what makes it that machine.
pub trait Design: Settings + Clone + Default + Send + Sync + 'static {
    /// As [`Machine::check`].
    ///
    /// # Errors
    /// What does not fit, with the fix.
    fn check(&self) -> Result<(), String>;
    /// As [`Machine::run`].
    fn run(machine: &Sourced<Self>, input: &Input) -> Outcome;
}

/// A machine with sources.
#[derive(Clone, Debug, Default)]
pub struct Sourced<D> {
    /// Kernel, queues, costs.
    pub settings: D,
    /// How each source sends.
    pub pattern: Pattern,
    /// What it replays instead.
    pub trace: Option<Arc<Trace>>,
}

impl<D> Sourced<D> {
    /// A source of `rate` packets/s on average, at least 1.
    pub fn source(&self, rate: u64, rng: Rng) -> Source {
        match &self.trace {
            Some(trace) => Source::replay(&self.pattern, rate, Arc::clone(trace)),
            None => Source::new(self.pattern.clone(), rate, rng),
        }
    }
}

impl<D: Design> Machine for Sourced<D> {
    fn set(&mut self, key: &str, given: &Given) -> Result<(), Refused> {
        match self.settings.set(key, given) {
            Err(Refused::Unknown) => self.pattern.set(key, given),
            result => result,
        }
    }

    fn show(&self, key: &str) -> Option<String> {
        self.settings.show(key).or_else(|| self.pattern.show(key))
    }

    fn check(&self) -> Result<(), String> {
        self.settings.check()
    }

    fn replay(&mut self, trace: &Arc<Trace>) -> bool {
        self.trace = Some(Arc::clone(trace));
        true
    }

    fn run(&self, input: &Input) -> Outcome {
        D::run(self, input)
    }

    fn boxed(&self) -> Box<dyn Machine> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Machine> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}
