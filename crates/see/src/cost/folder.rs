//! From samples to a profile.

use super::table::{Class, On, class, place};
use super::{Component, Cpu, Function, OUTSIDE, Profile, SCHEMA, UNKNOWN};
use kern::profile::{Sample, Symbols, Unseen};
use std::collections::{BTreeMap, HashMap};

/// Most pairs of function and component that are told apart in an interval.
const PAIRS: usize = 8192;
/// Numbers for what is in no function of the kernel.
const NOWHERE: u32 = u32::MAX;
const USER: u32 = u32::MAX - 1;

/// Counts samples until [`Folder::finish`] makes a profile of them. It keeps no sample.
pub struct Folder {
    symbols: Symbols,
    own: u32,
    classes: HashMap<u32, Class>,
    chain: Vec<Class>,
    cpus: BTreeMap<u32, Cpu>,
    functions: HashMap<(u32, Component), u64>,
    profile: Profile,
    unknown: u64,
}

impl Folder {
    /// `own`: the process whose time is weir's.
    #[must_use]
    pub fn new(symbols: Symbols, own: u32) -> Folder {
        Folder {
            symbols,
            own,
            classes: HashMap::new(),
            chain: Vec::new(),
            cpus: BTreeMap::new(),
            functions: HashMap::new(),
            profile: Profile::default(),
            unknown: 0,
        }
    }

    /// Other symbols from now on: those of modules and BPF programs come and go. Samples of before must have been taken
    /// by [`Folder::finish`].
    pub fn rename(&mut self, symbols: Symbols) {
        self.symbols = symbols;
        self.classes.clear();
    }

    /// True if more than a twentieth of the samples so far are in no function that has a name.
    #[must_use]
    pub fn lacks_names(&self) -> bool {
        let all: u64 = self.cpus.values().map(|c| c.samples).sum();
        self.unknown * 20 > all
    }

    /// Counts a sample.
    pub fn add(&mut self, sample: &Sample<'_>) {
        self.chain.clear();
        let mut innermost = NOWHERE;
        for (depth, address) in sample.chain.iter().enumerate() {
            // An address to return to may be behind the end of its function.
            let found = self.symbols.at(address - u64::from(depth > 0 && *address > 0));
            if depth == 0 {
                innermost = found.unwrap_or(NOWHERE);
            }
            let of = |number| class(self.symbols.name(number));
            self.chain
                .push(found.map_or(Class::default(), |n| *self.classes.entry(n).or_insert_with(|| of(n))));
        }
        let placed = place(&self.chain, sample.user, sample.pid == self.own);
        self.unknown += u64::from(!sample.user && innermost == NOWHERE);
        let cpu = self.cpus.entry(sample.cpu).or_insert_with(|| Cpu { cpu: sample.cpu, ..Cpu::default() });
        cpu.samples += 1;
        cpu.taken += u64::from(placed.on == On::Program);
        cpu.softirq += u64::from(matches!(placed.on, On::Program | On::Other));
        cpu.threads += u64::from(placed.on == On::Thread);
        *cpu.components.entry(placed.component).or_default() += 1;
        if let Some(mechanism) = placed.mechanism {
            *self.profile.mechanisms.entry(mechanism).or_default() += 1;
        }
        let key = (if sample.user { USER } else { innermost }, placed.component);
        if self.functions.len() < PAIRS || self.functions.contains_key(&key) {
            *self.functions.entry(key).or_default() += 1;
        } else {
            self.profile.others += 1;
        }
    }

    /// Counts what was not seen.
    pub fn unseen(&mut self, unseen: Unseen) {
        self.profile.lost += unseen.lost;
        self.profile.malformed += unseen.malformed;
    }

    /// The profile of all samples since the last call, without its times and packets. A CPU of `cpus` without a sample
    /// is in it too.
    pub fn finish(&mut self, cpus: impl Iterator<Item = u32>) -> Profile {
        let mut profile = std::mem::take(&mut self.profile);
        profile.schema = SCHEMA.into();
        let mut seen = std::mem::take(&mut self.cpus);
        cpus.for_each(|cpu| _ = seen.entry(cpu).or_insert_with(|| Cpu { cpu, ..Cpu::default() }));
        profile.cpus = seen.into_values().collect();
        // Several copies of a function have one name.
        let mut functions: BTreeMap<(String, Component), u64> = BTreeMap::new();
        for ((number, component), samples) in self.functions.drain() {
            let name = match number {
                USER => OUTSIDE,
                NOWHERE => UNKNOWN,
                number => self.symbols.name(number),
            };
            *functions.entry((name.to_owned(), component)).or_default() += samples;
        }
        let one = |((name, component), samples)| Function { name, component, samples };
        profile.functions = functions.into_iter().map(one).collect();
        profile.limit();
        self.unknown = 0;
        profile
    }
}
