//! A simulated kernel, the participants that work on it, and what may happen to them.

pub mod actors;
pub mod choices;
pub mod kernel;
pub mod world;

use choices::{Action, After, Chooser, Rng, Shape};
use kernel::Sim;
use world::{Counts, Link, World};

/// What became of a schedule.
pub struct Ran {
    pub counts: Counts,
    pub calls: u64,
    pub broken: Option<String>,
    pub trace: Vec<String>,
}

/// One schedule, to the end: the guard, its keeper, those who come after, and a last undo when nothing is in the way.
fn run(shape: &Shape, chooser: Chooser, trace: bool) -> Ran {
    let mut world = World::new(shape.modern, shape.ifaces, shape.queues, Counts::default());
    world.trace = trace.then(Vec::new);
    world.sight = shape.sight;
    world.note(|| format!("{shape:?}"));
    world.counts.schedules = 1;
    let sim = Sim::new(world, chooser);
    actors::guard(&sim, shape);
    for after in &shape.after {
        match after {
            After::Undo => _ = actors::undo(&sim),
            After::Guard => actors::guard(&sim, shape),
        }
    }
    actors::late_keepers(&sim);
    let calls = sim.chooser().calls;
    sim.chooser().hush();
    // The last survivor.
    if actors::undo(&sim) {
        sim.world().judge(false);
    }
    {
        let mut world = sim.world();
        world.sight = true;
        for iface in 0..world.ifaces.len() {
            let same = world.next_value.is_multiple_of(2);
            let queues = world.ifaces[iface].napis.len();
            world.come(iface, false, same, true);
            if world.ifaces[iface].link == Link::Down {
                let same_ids = world.next_value.is_multiple_of(2);
                world.up(iface, same_ids, true);
            }
            world.ifaces[iface].napis.iter_mut().for_each(|n| n.away = 0);
            world.channels(iface, queues, true);
        }
    }
    actors::undo(&sim);
    sim.world().judge(true);
    let world = sim.into_world();
    Ran { counts: world.counts, calls, broken: world.broken, trace: world.trace.unwrap_or_default() }
}

/// The schedule of a seed.
pub fn seeded(seed: u64, trace: bool) -> Ran {
    let mut rng = Rng::new(seed);
    let shape = rng.shape();
    run(&shape, Chooser::seed(rng), trace)
}

/// A shape with what happens before which calls.
pub fn planned(shape: &Shape, plan: &[(u64, Action)], trace: bool) -> Ran {
    run(shape, Chooser::plan(plan.to_vec()), trace)
}
