//! What happens before which call: as a list says, or as a seed has it.

use super::{
    kernel::{Call, Role},
    world::{Link, Place, World},
};

/// What happens before a call, or to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The call is made.
    Go,
    /// The caller dies.
    Crash,
    /// The caller, a guard, stands still; whoever notices does what it does then.
    Freeze,
    /// An error, and nothing is done.
    Refuse,
    /// An error, although it is done.
    RefuseLate,
    /// The administrator writes this setting.
    Admin(Place),
    Down(usize),
    /// Interface, same NAPI ids, values kept.
    Up(usize, bool, bool),
    /// Interface, queue, waits, listed.
    Away(usize, usize, u32, bool),
    /// Interface, queues that it has from now on, values of those that were taken away kept.
    Channels(usize, usize, bool),
    Delete(usize),
    /// Interface, up in its other namespace.
    Move(usize, bool),
    /// Interface, same index, same NAPI ids, values kept.
    Back(usize, bool, bool, bool),
    /// `weir undo` runs meanwhile.
    Undo,
    /// Another guard tries to start.
    Rival,
    /// Keepers of dead guards that have not yet begun do their work.
    LateKeeper,
}

/// What a guard does after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Take(usize),
    Settle(usize),
    Release(usize),
    /// Interfaces whose NAPIs have other ids are set up anew; those that are gone are let go, and claimed when they are back.
    Look,
}

/// Who comes after a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Undo,
    Guard,
}

/// The parts of a schedule that no call decides.
#[derive(Clone, Debug)]
pub struct Shape {
    pub modern: bool,
    pub ifaces: usize,
    pub queues: usize,
    /// Mode thread instead of mode poll.
    pub threads: bool,
    /// Its XDP programs are attached generically.
    pub generic: bool,
    /// Other namespaces can be looked into.
    pub sight: bool,
    /// A keeper that has died is replaced.
    pub replaced: bool,
    /// Keepers of dead guards begin when somebody else has begun.
    pub late: bool,
    pub script: Vec<Op>,
    pub after: Vec<After>,
}

impl Shape {
    /// Sources are numbered through, interface by interface.
    pub fn sources(&self) -> usize {
        self.ifaces * self.queues
    }

    /// One that goes on after an interface has left and come back.
    pub fn that_looks(modern: bool, sight: bool, after: &[After]) -> Shape {
        use Op::{Look, Release, Settle, Take};
        Shape {
            modern,
            ifaces: 1,
            queues: 1,
            threads: false,
            generic: false,
            sight,
            replaced: sight,
            late: false,
            script: vec![Take(0), Look, Look, Take(0), Settle(0), Look, Take(0), Release(0)],
            after: after.to_vec(),
        }
    }

    /// One that polls the second queue of an interface.
    pub fn of_two_queues(after: &[After]) -> Shape {
        use Op::{Look, Take};
        Shape {
            modern: true,
            ifaces: 1,
            queues: 2,
            threads: false,
            generic: false,
            sight: true,
            replaced: false,
            late: false,
            script: vec![Take(1), Look],
            after: after.to_vec(),
        }
    }

    /// Some that differ in what they reach.
    pub fn few() -> Vec<Shape> {
        use Op::{Look, Release, Settle, Take};
        let shape = |modern, queues, script: &[Op], after: &[After]| Shape {
            modern,
            ifaces: 1,
            queues,
            threads: false,
            generic: false,
            sight: true,
            replaced: false,
            late: false,
            script: script.to_vec(),
            after: after.to_vec(),
        };
        let twice = [Take(0), Settle(0), Release(0), Take(0), Settle(0)];
        let both = [Take(0), Take(1), Settle(0), Settle(1), Release(0), Look, Take(0)];
        vec![
            shape(true, 1, &twice, &[After::Undo]),
            shape(false, 2, &both, &[After::Undo]),
            shape(true, 2, &both, &[After::Guard]),
            Shape { late: true, ..shape(false, 1, &twice, &[After::Guard, After::Undo]) },
            Shape { generic: true, ..shape(true, 1, &[Take(0), Release(0), Take(0)], &[After::Undo]) },
            Shape { threads: true, ..shape(true, 1, &[Look], &[After::Undo, After::Guard]) },
        ]
    }
}

/// Xorshift, seeded well enough for neighbouring seeds.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Rng((x ^ (x >> 31)) | 1)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32).wrapping_mul(n as u64) >> 32) as usize
    }

    pub fn chance(&mut self, in_1000: usize) -> bool {
        self.below(1000) < in_1000
    }

    pub fn shape(&mut self) -> Shape {
        let (ifaces, queues) = (1 + self.below(2), 1 + self.below(2));
        let mut script = Vec::new();
        for _ in 0..1 + self.below(8) {
            let source = self.below(ifaces * queues);
            script.push(match self.below(8) {
                0..=3 => Op::Take(source),
                4 | 5 => Op::Settle(source),
                6 => Op::Release(source),
                _ => Op::Look,
            });
        }
        let after = (0..1 + self.below(3)).map(|_| if self.chance(400) { After::Guard } else { After::Undo });
        let after = after.collect();
        Shape {
            modern: self.chance(600),
            ifaces,
            queues,
            threads: self.chance(100),
            generic: self.chance(300),
            sight: self.chance(500),
            replaced: self.chance(500),
            late: self.chance(300),
            script,
            after,
        }
    }
}

enum Source {
    /// Calls by number, and what happens before them.
    Plan(Vec<(u64, Action)>),
    /// Something happens before so many of 1000 calls, as long as there is a budget.
    Seed { rng: Rng, rate: usize, budget: u32 },
    /// Nothing does.
    Quiet,
}

/// Decides.
pub struct Chooser {
    source: Source,
    /// Calls so far.
    pub calls: u64,
    /// Participants inside of participants.
    pub depth: u32,
}

impl Chooser {
    pub fn plan(plan: Vec<(u64, Action)>) -> Self {
        Chooser { source: Source::Plan(plan), calls: 0, depth: 0 }
    }

    pub fn seed(mut rng: Rng) -> Self {
        let rate = [5, 15, 40, 100, 250][rng.below(5)];
        let budget = 1 + rng.below(12) as u32;
        Chooser { source: Source::Seed { rng, rate, budget }, calls: 0, depth: 0 }
    }

    pub fn hush(&mut self) {
        self.source = Source::Quiet;
    }

    pub fn next(&mut self, role: Role, call: Call, world: &World) -> Action {
        match &mut self.source {
            Source::Quiet => Action::Go,
            Source::Plan(plan) => match plan.iter().position(|(n, _)| *n == self.calls) {
                Some(i) => {
                    let action = plan.remove(i).1;
                    if matches!(action, Action::Refuse | Action::RefuseLate) {
                        self.calls += 1;
                    }
                    action
                }
                None => {
                    self.calls += 1;
                    Action::Go
                }
            },
            Source::Seed { rng, rate, budget } => {
                if *budget == 0 || !rng.chance(*rate) {
                    return Action::Go;
                }
                *budget -= 1;
                some(rng, role, call, world, self.depth)
            }
        }
    }
}

fn some(rng: &mut Rng, role: Role, call: Call, world: &World, depth: u32) -> Action {
    let iface = rng.below(world.ifaces.len());
    let cells = world.ifaces[iface].cells.len();
    let queues = world.ifaces[iface].napis.len();
    let refusable = !matches!(call, Call::Look | Call::Wait);
    let lasting = matches!(call, Call::Write | Call::Save | Call::Remove);
    match rng.below(23) {
        0..=2 => Action::Crash,
        3..=5 if role == Role::Guard => Action::Freeze,
        6..=7 if refusable => Action::Refuse,
        8 if lasting => Action::RefuseLate,
        9..=12 => Action::Admin((iface, rng.below(cells))),
        13 | 14 => match world.ifaces[iface].link {
            Link::Up => Action::Down(iface),
            Link::Moved(_) => Action::Back(iface, rng.chance(400), rng.chance(400), rng.chance(600)),
            _ => Action::Up(iface, rng.chance(400), rng.chance(600)),
        },
        15 => Action::Up(iface, rng.chance(400), rng.chance(600)),
        16 => Action::Away(iface, rng.below(queues), 1 + rng.below(15) as u32, rng.chance(500)),
        17 if rng.chance(100) => Action::Delete(iface),
        20 => Action::Move(iface, rng.chance(500)),
        21 => Action::Back(iface, rng.chance(400), rng.chance(400), rng.chance(600)),
        22 => Action::Channels(iface, 1 + rng.below(queues), rng.chance(700)),
        18 if depth < 2 && rng.chance(500) => Action::Undo,
        18 if depth < 2 => Action::Rival,
        19 if depth < 2 => Action::LateKeeper,
        _ => Action::Go,
    }
}
