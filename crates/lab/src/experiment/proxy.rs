//! The experiment `proxy`: the testbed of the Beihang study in namespaces (BH-01 to BH-04), and where a proxy's connections to its back
//! ends are received (BH-24).

use results::{Document, Role};
use serde_json::json;

use crate::accept_rig::{Server, Setup, Skew, Stage};
use crate::arm::Arm;
use crate::experiment::{Experiment, Simulated, accept, names};
use crate::grid::{self, Figure, Grid, Sample};
use crate::options::Options;
use crate::plan::{Progress, Runner};
use crate::takes::Choice;
use crate::trial::Bench;
use crate::{Result, proxy_rig};

/// The experiment `proxy`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "proxy",
    about: "nginx as reverse proxy with a worker on each CPU: requests/s, CPU, connections on their own core",
    takes: "about 2 minutes, --quick under 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Arms, Choice::Seed],
    arms: |_| names(arms()),
    run,
    simulated_by: Simulated::No { lacks: "a live proxy's listeners", nearest: "accept" },
};

const QUICK: [&str; 2] = ["hash", "weir"];
const NAMES: [&str; 4] = ["one-listener", "hash", "hash-again", "weir"];
const FIGURES: [Figure; 7] = [
    ("requests, closed loop", "k/s"),
    ("CPU of the workers per request", "us"),
    ("clients' connections on their own core", "%"),
    ("back ends' connections on their own core", "%"),
    ("median wait, open loop", "ms"),
    ("p99 of the wait, open loop", "ms"),
    ("refused, reset, not opened or without an answer", "count"),
];
/// Connections at once (BH-03).
const AT_ONCE: usize = 1000;
/// Of what the kernel's hash serves, in the open loop.
const LOAD: f64 = 0.4;

fn arms() -> Vec<Arm> {
    accept::arms().into_iter().filter(|arm| NAMES.contains(&arm.name.as_str())).collect()
}

fn stage<'a>(bench: &'a Bench, arm: &Arm, closed: bool) -> Result<Stage<'a>> {
    let own = (arm.role == Role::Weir).then(Vec::new);
    let server = Server::Proxy { reuseport: arm.name != "one-listener" };
    Stage::new(
        bench,
        &Setup { server, options: own.as_deref(), skew: Skew::Nothing, closed, at_once: AT_ONCE / 2 },
    )
}

fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    proxy_rig::nginx()?;
    let arms = grid::chosen(options, arms(), &QUICK)?;
    let mut runner = Runner::new(options, progress)?;
    accept::needs(&runner, &arms)?;
    runner.say("what the kernel's hash serves");
    let hash = accept::arms().into_iter().find(|arm| arm.name == "hash");
    let mut capacity = 0.0;
    if let Some(hash) = &hash {
        let mut stage = stage(&runner.bench, hash, true)?;
        capacity = stage.run(None, options.warm_up(), options.window())?.per_s();
    }
    let rate = (capacity * LOAD / 100.0).round().max(1.0) * 100.0;
    let mut grid = Grid {
        name: EXPERIMENT.name,
        figures: &FIGURES,
        x: "requests/s",
        kinds: vec!["even".into()],
        xs: vec![rate],
        arms,
        taken: Vec::new(),
    };
    grid.measure(&mut runner, |bench, arm, _, per_s| one(bench, arm, per_s, options))?;
    let verdict = accept::even_verdict(&grid, "clients' connections on their own core");
    grid.document(&runner, vec![("capacity_per_s", json!(capacity)), ("at_once", AT_ONCE.into())], verdict)
}

fn one(bench: &Bench, arm: &Arm, per_s: f64, options: &Options) -> Result<Sample> {
    let closed = stage(bench, arm, true)?.run(None, options.warm_up(), options.window())?;
    let mut stage = stage(bench, arm, false)?;
    let open = stage.run(Some(per_s), options.warm_up(), options.window())?;
    let failed = |run: &crate::accept_rig::Run| run.failed() + run.count("timed_out");
    Ok(Sample {
        figures: vec![
            Some(closed.per_s() / 1000.0),
            Some(closed.workers_ns as f64 / 1000.0 / closed.count("answered").max(1.0)),
            open.affine,
            stage.affine_behind(),
            open.wait("wait_us", "p50"),
            open.wait("wait_us", "p99"),
            Some(failed(&closed) + failed(&open)),
        ],
        void: accept::shared(&closed).or_else(|| accept::void(&open)),
    })
}
