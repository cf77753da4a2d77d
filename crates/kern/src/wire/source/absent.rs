//! The source in a build without BPF programs: it cannot be loaded, so nothing else of it can be called.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::time::Duration;

use super::super::netns::Namespace;
use super::super::{Error, Result};
use super::{Answer, Class, Edges, Load, Meter, SPREAD, Sent, SinkCounts, Spread};

/// Never exists in this build.
#[derive(Debug)]
pub struct Wire(Infallible);

/// Never exists in this build.
#[derive(Debug)]
pub struct Running<'a>(Infallible, PhantomData<&'a Wire>);

/// Never exists in this build.
#[derive(Debug)]
pub struct Spreading<'a>(Infallible, PhantomData<&'a Wire>);

/// Never exists in this build.
#[derive(Debug)]
pub struct Attached(#[allow(dead_code, reason = "uninhabited")] Infallible);

/// Never exists in this build.
#[derive(Debug)]
pub struct Watching(#[allow(dead_code, reason = "uninhabited")] Infallible);

macro_rules! absent {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $answer:ty;)*) => {
        $(
            /// Cannot be called: see the module.
            #[allow(unused_variables, clippy::missing_errors_doc, reason = "uninhabited")]
            pub fn $name(&self, $($arg: $ty),*) -> $answer {
                match self.0 {}
            }
        )*
    };
}

impl Wire {
    /// # Errors
    /// Always, with what to install.
    pub fn load() -> Result<Wire> {
        Err(Error::Missing(
            "this weir was built without BPF programs; install clang and libelf-dev and build again".into(),
        ))
    }

    absent! {
        output(target: u32, ns: &Namespace, index: u32) -> Result<()>;
        hop(cpu: usize, length: u32) -> Result<i32>;
        remove_hop(cpu: usize) -> Result<()>;
        spread(ns: &Namespace, index: u32, by: Spread, cpus: &[usize], length: u32) -> Result<Spreading<'_>>;
        spread_given() -> Result<[u64; SPREAD]>;
        meter(ns: &Namespace, index: u32) -> Result<()>;
        watch(pid: u32, class: Class) -> Result<()>;
        unwatch_all() -> Result<()>;
        watch_switches() -> Result<Watching>;
        switches() -> Result<u64>;
        meters() -> Result<Vec<Meter>>;
        look_for_edges(from_ns: u64, until_ns: u64) -> Result<()>;
        edges() -> Result<Edges>;
        attach_drop(ns: &Namespace, index: u32, read: bool) -> Result<Attached>;
        attach_limit(ns: &Namespace, index: u32, rate: f64, depth: u32) -> Result<Attached>;
        limit_drops() -> Result<u64>;
        attach_replies(ns: &Namespace, index: u32) -> Result<Attached>;
        replies() -> Result<u64>;
        attach_answers(ns: &Namespace, index: u32, port: u16) -> Result<Attached>;
        answers(numbers: std::ops::Range<u64>, since_ns: u64) -> Result<Vec<Answer>>;
        watch_output(near: (&Namespace, u32), far: (&Namespace, u32)) -> Result<Watching>;
        output_waits() -> Result<(Duration, Duration)>;
        attach_rules(ns: &Namespace, index: u32, rules: u32) -> Result<Attached>;
        rules_for(time: Duration) -> Result<u32>;
        attach_sink(ns: &Namespace, index: u32) -> Result<Attached>;
        sink() -> Result<SinkCounts>;
        prime(ns: &Namespace, cpu: usize, target: u32, frame: Vec<u8>) -> Result<()>;
        start(ns: &Namespace, cpu: usize, load: &Load) -> Result<Running<'_>>;
    }
}

impl Spreading<'_> {
    absent! {
        threads() -> &[(usize, i32)];
    }
}

impl Running<'_> {
    absent! {
        progress() -> Result<(u64, u64)>;
        by_target() -> Result<Vec<u64>>;
        started_ns() -> Result<Option<u64>>;
        finished() -> bool;
        stop() -> Result<()>;
    }

    /// Cannot be called: see the module.
    #[allow(clippy::missing_errors_doc, reason = "uninhabited")]
    pub fn wait(self) -> Result<Sent> {
        match self.0 {}
    }
}
