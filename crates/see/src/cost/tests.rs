use super::*;
use kern::profile::{Sample, Symbols, Unseen};
use proptest::prelude::*;

/// Chains as the kernel has them, outermost first, each with what it must count for.
const CHAINS: &str = include_str!("chains.txt");

fn classes(chain: &str) -> Vec<Class> {
    chain.split(';').rev().map(class).collect()
}

#[test]
fn each_chain_counts_for_what_it_works_for() {
    let mut seen = std::collections::BTreeSet::new();
    for line in CHAINS.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (expected, chain) = line.split_once(" < ").unwrap();
        let words: Vec<&str> = expected.split_whitespace().collect();
        let component: Component = serde_json::from_value(words[0].into()).unwrap();
        let mechanism: Option<Mechanism> =
            (words[1] != "-").then(|| serde_json::from_value(words[1].into()).unwrap());
        let placed = place(&classes(chain), false, false);
        let on = match words[2] {
            "taken" => On::Program,
            "other" => On::Other,
            "thread" => On::Thread,
            _ => On::Call,
        };
        assert_eq!(placed, Placed { component, mechanism, on }, "{chain}");
        seen.insert(component);
        // Under weir only what was a program's own is weir's.
        let own = place(&classes(chain), false, true);
        let weirs = if component == Component::Program { Component::Weir } else { component };
        let on = if on == On::Program { On::Other } else { on };
        assert_eq!((own.component, own.on), (weirs, on), "{chain}");
    }
    assert_eq!(seen.len(), Component::ALL.len() - 1, "{seen:?}");
}

#[test]
fn outside_the_kernel_is_a_program() {
    let programs = Placed { component: Component::Program, mechanism: None, on: On::Call };
    assert_eq!(place(&[], true, false), programs);
    assert_eq!(place(&[], true, true), Placed { component: Component::Weir, ..programs });
    assert_eq!(place(&[], false, false).component, Component::Kernel);
}

fn symbols() -> Symbols {
    let text = "ffffffff81000000 T do_idle\nffffffff81000100 T asm_common_interrupt\n\
                ffffffff81000200 T handle_softirqs\nffffffff81000300 T net_rx_action\n\
                ffffffff81000400 t veth_poll.isra.0\nffffffff81000500 T vfs_read\n\
                ffffffff81000600 T end\n";
    Symbols::parse(text.as_bytes()).unwrap()
}

fn address(function: u64) -> u64 {
    0xffff_ffff_8100_0000 + function * 0x100 + 0x10
}

fn sample(cpu: u32, pid: u32, user: bool, chain: &[u64]) -> Sample<'_> {
    Sample { cpu, pid, user, chain }
}

#[test]
fn samples_become_a_profile() {
    let mut folder = Folder::new(symbols(), 42);
    let poll = [address(4), address(3), address(2), address(1), address(5)];
    for _ in 0..10 {
        folder.add(&sample(1, 7, false, &poll));
    }
    folder.add(&sample(1, 0, false, &[address(0)]));
    folder.add(&sample(1, 7, true, &[]));
    folder.add(&sample(0, 42, true, &[]));
    // The address after a call that ends its function belongs to the caller.
    folder.add(&sample(0, 7, false, &[address(4), address(4) - 0x10]));
    assert!(!folder.lacks_names());
    folder.add(&sample(0, 7, false, &[0x1000]));
    assert!(folder.lacks_names());
    folder.unseen(Unseen { lost: 3, malformed: 1 });
    let mut profile = folder.finish([0, 1, 2].into_iter());
    profile.period_ns = 2_000_000;
    assert_eq!(
        profile.cpus.iter().map(|c| (c.cpu, c.samples, c.taken)).collect::<Vec<_>>(),
        [(0, 3, 0), (1, 12, 10), (2, 0, 0)]
    );
    assert_eq!((profile.cpus[1].softirq, profile.cpus[1].threads), (10, 0));
    assert_eq!(
        (profile.of(Component::Napi), profile.of(Component::Idle), profile.of(Component::Weir)),
        (11, 1, 1)
    );
    assert_eq!((profile.lost, profile.malformed, profile.work()), (3, 1, 11));
    assert_eq!(
        profile.functions[0],
        Function { name: "veth_poll".into(), component: Component::Napi, samples: 11 }
    );
    assert!(
        profile.functions.iter().any(|f| f.name == UNKNOWN)
            && profile.functions.iter().any(|f| f.name == OUTSIDE)
    );
    // Ten of twelve samples beside two of programs.
    assert!((profile.taken().unwrap() - 10.0 / 12.0).abs() < 1e-9);
    assert_eq!(profile.per_packet(Component::Napi, 11), None);
    profile.received = 1000;
    let cost = profile.per_packet(Component::Napi, 11).unwrap();
    assert!((cost.ns - 22_000.0).abs() < 1e-6 && (cost.noise - 1.645 * 11f64.sqrt() * 2000.0).abs() < 1e-6);
    let text = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
    assert_eq!(folder.finish([].into_iter()).samples(), 0);
}

#[test]
fn intervals_add_up() {
    let mut folder = Folder::new(symbols(), 42);
    let mut one = || {
        folder.add(&Sample { cpu: 1, pid: 7, user: false, chain: &[address(4), address(3), address(1)] });
        Profile { interval_s: 0.5, received: 5, period_ns: 2_000_000, ..folder.finish([1].into_iter()) }
    };
    let (mut sum, second) = (one(), one());
    sum.add(&second);
    assert_eq!((sum.samples(), sum.received, sum.interval_s, sum.functions.len()), (2, 10, 1.0, 1));
    assert!((sum.cpus[0].missed(1.0, 2_000_000) - 0.996).abs() < 1e-9);
}

#[test]
fn functions_are_bounded() {
    let function =
        |i: usize| Function { name: format!("f{i}"), component: Component::Kernel, samples: 1 + i as u64 };
    let mut a = Profile { functions: (0..FUNCTIONS_MAX).map(function).collect(), ..Profile::default() };
    let b = Profile {
        functions: (FUNCTIONS_MAX..FUNCTIONS_MAX + 3).map(function).collect(),
        ..Profile::default()
    };
    a.add(&b);
    assert_eq!((a.functions.len(), a.others), (FUNCTIONS_MAX, 1 + 2 + 3));
}

/// A profile in which function i of NAPI has so many samples.
fn counted(counts: &[u64], received: u64) -> Profile {
    let function =
        |(i, n): (usize, &u64)| Function { name: format!("f{i}"), component: Component::Napi, samples: *n };
    let samples = counts.iter().sum();
    let cpu = Cpu { cpu: 0, samples, components: [(Component::Napi, samples)].into(), ..Cpu::default() };
    Profile {
        functions: counts.iter().enumerate().map(function).collect(),
        cpus: vec![cpu],
        received,
        period_ns: 2_000_000,
        ..Profile::default()
    }
}

#[test]
fn a_function_that_costs_more_is_found_and_first() {
    let a = counted(&[1000, 500, 200, 0], 1_000_000);
    // Twice the packets: all but the second cost the same each; the fourth is new.
    let b = counted(&[2000, 2000, 410, 90], 2_000_000);
    let found = diff::diff(&a, &b);
    let names: Vec<&str> = found.functions.iter().map(|r| r.name.as_str()).collect();
    assert_eq!((names, found.within_noise), (vec!["f1", "f3"], 2));
    assert!((found.functions[0].more_ns - 1000.0).abs() < 1e-9, "{:?}", found.functions[0]);
    let napi = found.components.iter().find(|r| r.component == Component::Napi).unwrap();
    assert!((napi.a_ns - 3400.0).abs() < 1e-9 && (napi.b_ns - 4500.0).abs() < 1e-9 && napi.differs());
    // Nothing was sent: what sending costs cannot be said.
    assert_eq!(found.without_packets, 2);
    assert_eq!(diff::diff(&a, &Profile::default()).functions, []);
}

/// Counts of one mean, by Knuth's method in steps that do not underflow.
fn poisson(mean: f64, random: &mut impl FnMut() -> f64) -> u64 {
    let (mut n, mut left) = (0, mean);
    while left > 0.0 {
        let step = left.min(30.0);
        left -= step;
        let (end, mut product) = ((-step).exp(), random());
        while product > end {
            n += 1;
            product *= random();
        }
    }
    n
}

#[test]
fn equal_hosts_do_not_differ() {
    // 200 comparisons of 60 functions each: with a chance of 0.05 more than 20 with a difference have one of 10^-3.
    let mut state = 88_172_645_463_325_252u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let means: Vec<f64> = (0..60).map(|i| 1.3f64.powi(i % 24)).collect();
    let mut wrong = 0;
    for _ in 0..200 {
        let draw = |random: &mut dyn FnMut() -> f64, scale: f64| -> Vec<u64> {
            means.iter().map(|mean| poisson(mean * scale, &mut || random())).collect()
        };
        let a = counted(&draw(&mut random, 1.0), 1_000_000);
        let b = counted(&draw(&mut random, 3.0), 3_000_000);
        wrong += u32::from(!diff::diff(&a, &b).functions.is_empty());
    }
    println!("{wrong} of 200 equal pairs differ");
    assert!(wrong <= 20, "{wrong}");
}

proptest! {
    #[test]
    fn a_comparison_turns_around(a in proptest::collection::vec(0u64..5000, 1..20), b in proptest::collection::vec(0u64..5000, 1..20),
                                 packets in 1u64..10_000_000) {
        let (a, b) = (counted(&a, packets), counted(&b, 1_000_000));
        let (there, back) = (diff::diff(&a, &b), diff::diff(&b, &a));
        prop_assert_eq!(there.functions.len(), back.functions.len());
        for (x, y) in there.functions.iter().zip(&back.functions) {
            prop_assert!((x.more_ns + y.more_ns).abs() < 1e-6 * x.more_ns.abs().max(1.0));
        }
        prop_assert!(diff::diff(&a, &a).functions.is_empty());
    }

    #[test]
    fn any_chain_has_a_place(picks in proptest::collection::vec(0usize..40, 0..60), user: bool, own: bool) {
        let all: Vec<&str> = CHAINS.lines().filter_map(|l| l.split_once(" < ")).flat_map(|(_, c)| c.split(';')).collect();
        let chain: Vec<Class> = picks.iter().map(|i| class(all[i * all.len() / 40])).collect();
        let placed = place(&chain, user, own);
        prop_assert!(placed.mechanism.is_none() || placed.component.packets());
        prop_assert!(placed.on == On::Call || (placed.component.packets() && !user));
        prop_assert!(placed.on != On::Program || !own);
    }
}
