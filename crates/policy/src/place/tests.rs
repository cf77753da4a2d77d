//! Properties of plans over drawn hosts. No clock and no thread: they cannot flake.

use super::Strategy;
use super::*;
use proptest::prelude::*;
use proptest::strategy::Strategy as Drawn;

fn cpus(ids: &[usize]) -> Cpus {
    ids.iter().copied().collect()
}

fn host(count: usize) -> Layout {
    let cpu = |id| Cpu { id, core: id, node: None, state: State::Usable };
    Layout { cpus: (0..count).map(cpu).collect(), ..Layout::default() }
}

fn source(queue: u32, irq: Option<&[usize]>, load: u64) -> Source {
    let irq = irq.map(|on| Irq { irq: 40 + queue, settable: true, cpus: cpus(on) });
    let name = format!("eth0/{queue}");
    Source {
        name,
        ifindex: 2,
        queue,
        node: None,
        irq,
        thread: None,
        as_sender: true,
        rps: Cpus::new(),
        rfs: 0,
        load,
    }
}

fn task(tid: u32, on: &[usize]) -> Task {
    Task { tid, start: 7, cpus: cpus(on), wished: cpus(on), bound: false, polls: false }
}

fn program(threads: u32, on: &[usize]) -> Program {
    let thread = |n| task(100 + n, on);
    Program {
        pid: 100,
        name: "p".into(),
        allowed: (0..64).collect(),
        threads: (0..threads).map(thread).collect(),
    }
}

fn request(strategy: Strategy) -> Request {
    Request { strategy, ..Request::default() }
}

#[test]
fn a_balancer_bars_interrupts_and_a_guard_everything() {
    let set = |what| Set { what, from: cpus(&[0]).into(), to: cpus(&[1]).into() };
    let (irq, task) = (set(What::Irq { irq: 40 }), set(What::Task { tid: 5, start: 7 }));
    assert_eq!(barred(&[task.clone(), irq.clone()], true, false), Some(Barred::Rival));
    assert_eq!(barred(std::slice::from_ref(&task), true, false), None);
    assert_eq!(barred(&[task], false, true), Some(Barred::Guard));
    assert_eq!(barred(&[irq], false, false), None);
}

#[test]
fn wishes_of_an_administrator_and_settings_of_a_guard_are_left() {
    let (irq, rps) = (What::Irq { irq: 40 }, What::Rps { ifindex: 2, queue: 0 });
    let left = |what| [Whose::Ours, Whose::Before, Whose::Others].map(|whose| is_somebody_elses(what, whose));
    // What a queue made anew has is nobody's wish.
    assert_eq!((left(irq), left(rps)), ([false, true, true], [false, false, true]));
    assert_eq!([left(What::Rss { ifindex: 2 }), left(What::RfsTable)], [[false, true, true]; 2]);
    let mut layout = host(2);
    let mut polled = source(0, None, 1);
    polled.thread = Some(task(77, &[0]));
    layout.sources = vec![polled];
    let thread = |tid| What::Task { tid, start: 7 };
    for guarded in [2, 3] {
        let theirs =
            [rps, thread(77), thread(78), irq].map(|what| is_a_guards(&layout, what, |i| i == guarded));
        assert_eq!(theirs, [guarded == 2, guarded == 2, false, false]);
    }
}

/// The host after the plan, with the loads that it expects.
fn apply(layout: &Layout, plan: &Plan) -> Layout {
    let mut layout = layout.clone();
    layout.sources.iter_mut().zip(&plan.seats).for_each(|(source, seat)| source.load = seat.load);
    for set in &plan.settings {
        let to = match &set.to {
            Value::Cpus(cpus) => cpus.clone(),
            Value::Entries(entries) => {
                match set.what {
                    What::RfsTable => layout.rfs_table = Some(*entries),
                    What::Rfs { ifindex, queue } => {
                        let mine = |s: &&mut Source| s.queue == queue && s.ifindex == ifindex;
                        layout.sources.iter_mut().filter(mine).for_each(|s| s.rfs = *entries);
                    }
                    what => panic!("{what:?} has no entries"),
                }
                continue;
            }
            Value::Queues(table) => {
                let nic = layout.nics.iter_mut().find(|nic| Some(nic.ifindex) == set.what.ifindex()).unwrap();
                assert!(table.iter().all(|queue| *queue < nic.queues) && table.len() == nic.table.len());
                nic.table.clone_from(table);
                continue;
            }
        };
        match set.what {
            What::Rss { .. } | What::Rfs { .. } | What::RfsTable => panic!("a table of CPUs"),
            What::Irq { irq } => {
                layout.sources.iter_mut().filter_map(|s| s.irq.as_mut()).filter(|i| i.irq == irq).for_each(
                    |i| {
                        assert!(i.settable);
                        i.cpus = to.clone();
                    },
                );
            }
            What::Rps { queue, ifindex } => {
                let mine = |s: &&mut Source| s.queue == queue && s.ifindex == ifindex;
                layout.sources.iter_mut().filter(mine).for_each(|s| s.rps = to.clone());
            }
            What::Xps { queue, .. } => {
                layout.outputs.iter_mut().filter(|o| o.queue == queue).for_each(|o| o.xps = to.clone());
            }
            What::Task { tid, .. } => {
                let own = layout.sources.iter_mut().filter_map(|s| s.thread.as_mut());
                let all = own.chain(layout.programs.iter_mut().flat_map(|p| &mut p.threads));
                all.filter(|t| t.tid == tid).for_each(|t| t.cpus = to.clone());
            }
        }
    }
    layout
}

#[test]
fn one_hot_queue_is_spread_and_queues_of_one_cpu_are_parted() {
    let mut layout = host(4);
    layout.sources = vec![source(0, Some(&[0]), 100_000)];
    let one = plan(&layout, &request(Strategy::Spread)).unwrap();
    assert_eq!(
        one.settings,
        [Set {
            what: What::Rps { ifindex: 2, queue: 0 },
            from: Cpus::new().into(),
            to: cpus(&[0, 1, 2, 3]).into()
        }]
    );
    layout.sources = (0..4).map(|q| source(q, Some(&[0, 1, 2, 3]), 1000)).collect();
    let four = plan(&layout, &request(Strategy::Spread)).unwrap();
    let seats: Vec<usize> = four.seats.iter().map(|s| s.cpu).collect();
    assert_eq!(seats, [0, 1, 2, 3]);
    assert!(four.settings.iter().all(|s| matches!(s.what, What::Irq { .. })), "{four:?}");
}

#[test]
fn packets_follow_their_readers_where_rfs_can_be_set() {
    let mut layout = host(4);
    layout.sources = vec![source(0, Some(&[0]), 100_000)];
    assert_eq!(plan(&layout, &request(Strategy::Follow)), Err(Impossible::NoRfs));
    layout.rfs_table = Some(0);
    let found = plan(&layout, &request(Strategy::Follow)).unwrap();
    let (rps, rfs) = (What::Rps { ifindex: 2, queue: 0 }, What::Rfs { ifindex: 2, queue: 0 });
    let entries = |what, to| Set { what, from: Value::Entries(0), to: Value::Entries(to) };
    assert_eq!(
        found.settings,
        [
            Set { what: rps, from: Cpus::new().into(), to: cpus(&[0, 1, 2, 3]).into() },
            entries(What::RfsTable, 32_768),
            entries(rfs, 32_768)
        ]
    );
    // What an administrator has made larger stays.
    layout.rfs_table = Some(1 << 18);
    layout.sources[0].rfs = 1 << 17;
    assert_eq!(plan(&layout, &request(Strategy::Follow)).unwrap().settings.len(), 1);
}

#[test]
fn siblings_come_last_and_the_devices_node_first() {
    let mut layout = host(8);
    for cpu in &mut layout.cpus {
        cpu.core = cpu.id % 4;
        cpu.node = Some(u32::from(cpu.id % 4 >= 2));
    }
    layout.sources = (0..3).map(|q| Source { node: Some(1), ..source(q, Some(&[0]), 10) }).collect();
    let plan = plan(&layout, &request(Strategy::Spread)).unwrap();
    let seats: Vec<usize> = plan.seats.iter().map(|s| s.cpu).collect();
    assert_eq!(seats, [2, 3, 6]);
}

#[test]
fn softirq_that_follows_the_sender_is_seated_by_rps() {
    let mut layout = host(2);
    layout.sources = (0..2).map(|q| source(q, None, 10)).collect();
    layout.programs = vec![program(2, &[0, 1])];
    let affine = plan(&layout, &request(Strategy::Affine)).unwrap();
    let to: Vec<Cpus> = affine.settings.iter().filter_map(|s| s.to.cpus().cloned()).collect();
    assert_eq!(to, [cpus(&[0]), cpus(&[1]), cpus(&[0]), cpus(&[1])]);
}

#[test]
fn dedicated_cpus_are_whole_cores_and_programs_keep_off_them() {
    let mut layout = host(8);
    layout.cpus.iter_mut().for_each(|cpu| cpu.core = cpu.id % 4);
    layout.sources = (0..2).map(|q| source(q, Some(&[q as usize]), 10)).collect();
    layout.programs = vec![program(1, &[0, 1, 2, 3, 4, 5, 6, 7])];
    layout.net_permille = 1500;
    let found = plan(&layout, &request(Strategy::Dedicate)).unwrap();
    assert_eq!(found.net, cpus(&[0, 4]), "1.5 CPUs and a quarter are two");
    assert_eq!(found.settings.last().map(|s| s.to.clone()), Some(cpus(&[1, 2, 3, 5, 6, 7]).into()));
    let all = plan(&layout, &Request { net: Some(8), ..request(Strategy::Dedicate) });
    assert_eq!(all, Err(Impossible::NoHostCpu { net: 8, usable: 8 }));
}

#[test]
fn a_thread_keeps_the_host_cpus_that_it_has() {
    let mut layout = host(4);
    layout.sources = vec![source(0, Some(&[0]), 10)];
    let workers = [(1, vec![1]), (2, vec![0]), (3, vec![0, 1, 2]), (4, vec![2, 3])];
    let threads = workers.iter().map(|(tid, on)| task(*tid, on)).collect();
    layout.programs = vec![Program { threads, ..program(0, &[]) }];
    let moved = |layout: &Layout, strategy| -> Vec<(u32, Cpus)> {
        let found = plan(layout, &Request { net: Some(1), ..request(strategy) }).unwrap();
        let of = |set: &Set| match set.what {
            What::Task { tid, .. } => Some((tid, set.to.cpus().unwrap().clone())),
            _ => None,
        };
        found.settings.iter().filter_map(of).collect()
    };
    let expected = [(2, cpus(&[1, 2, 3])), (3, cpus(&[1, 2]))];
    assert_eq!(moved(&layout, Strategy::Dedicate), expected, "a worker on CPU 1 stays there");
    let threads = &mut layout.programs[0].threads;
    threads[1].polls = true;
    threads[2].bound = true;
    assert!(moved(&layout, Strategy::Dedicate).is_empty(), "they stay where they are");
    assert_eq!(moved(&layout, Strategy::Affine), [(1, cpus(&[0])), (4, cpus(&[0]))]);
    layout.programs[0].threads[2] = Task { polls: true, ..task(3, &[0, 1, 2]) };
    assert_eq!(moved(&layout, Strategy::Dedicate), [(3, cpus(&[1, 2]))], "it polls on no CPU of its own");
    let seated: Vec<u32> = moved(&layout, Strategy::Affine).into_iter().map(|(tid, _)| tid).collect();
    assert_eq!(seated, [1, 4], "nor is it to poll on that of its program");
}

/// What weir has set itself is no wish: a smaller set of net CPUs gives threads back what a larger one took.
#[test]
fn a_thread_gets_back_what_an_earlier_plan_has_taken() {
    let mut layout = host(8);
    layout.sources = vec![source(0, Some(&[0]), 10)];
    let thread = Task { wished: (0..8).collect(), ..task(1, &[6, 7]) };
    layout.programs = vec![Program { threads: vec![thread], ..program(0, &[]) }];
    let found = plan(&layout, &Request { net: Some(2), ..request(Strategy::Dedicate) }).unwrap();
    assert_eq!(found.settings.last().map(|set| set.to.clone()), Some(cpus(&[2, 3, 4, 5, 6, 7]).into()));
}

#[test]
fn no_thread_leaves_its_cpuset() {
    let mut layout = host(8);
    layout.sources = vec![source(0, Some(&[0]), 10)];
    layout.programs = vec![Program { allowed: cpus(&[0, 1, 2]), ..program(1, &[0]) }];
    let dedicate =
        |layout: &Layout| plan(layout, &Request { net: Some(1), ..request(Strategy::Dedicate) }).unwrap();
    assert_eq!(dedicate(&layout).settings.last().map(|set| set.to.clone()), Some(cpus(&[1, 2]).into()));
    layout.programs[0].allowed = cpus(&[0]);
    let found = dedicate(&layout);
    assert!(!found.settings.iter().any(|set| matches!(set.what, What::Task { .. })), "{found:?}");
    assert_eq!(found.kept, [Kept { what: "threads of p (1)".into(), why: Why::Cpuset }]);
}

#[test]
fn transmit_queues_are_parted_within_their_class() {
    let mut layout = host(4);
    layout.sources = vec![source(0, Some(&[0]), 10)];
    let output = |(queue, class)| Output { ifindex: 2, queue, xps: Cpus::new(), class };
    layout.outputs = [Some(0), Some(0), Some(1), Some(1), None]
        .into_iter()
        .enumerate()
        .map(|(queue, class)| output((queue as u32, class)))
        .collect();
    let found = plan(&layout, &Request::default()).unwrap();
    let xps = |set: &Set| match set.what {
        What::Xps { queue, .. } => Some((queue, set.to.cpus().unwrap().clone())),
        _ => None,
    };
    let of: Vec<_> = found.settings.iter().filter_map(xps).collect();
    let halves = [cpus(&[0, 2]), cpus(&[1, 3])];
    let [even, odd] = halves;
    assert_eq!(of, [(0, even.clone()), (1, odd.clone()), (2, even), (3, odd)]);
    // Each CPU has one of a class already, as its driver has dealt them; of the other class one has none.
    for (queue, own) in [(0, [0, 1]), (1, [2, 3]), (2, [0, 1]), (3, [1, 2])] {
        layout.outputs[queue].xps = cpus(&own);
    }
    let found = plan(&layout, &Request::default()).unwrap();
    let of: Vec<_> = found.settings.iter().filter_map(xps).map(|(queue, _)| queue).collect();
    assert_eq!(of, [2, 3]);
}

#[test]
fn a_table_of_rss_that_somebody_counts_on_stays() {
    let mut layout = host(2);
    layout.sources = (0..2).map(|q| source(q, Some(&[q as usize]), 0)).collect();
    layout.sources[1].load = 80_000;
    let nic = Nic { ifindex: 2, queues: 2, table: vec![1; 8], counted: true, ..Nic::default() };
    let classes = Output { ifindex: 2, queue: 0, xps: Cpus::new(), class: Some(1) };
    let other = Output { ifindex: 3, ..classes.clone() };
    for (nic, output, stays) in [
        (nic.clone(), other.clone(), None),
        (Nic { rules: 1, ..nic.clone() }, other.clone(), Some(Why::Rules)),
        (Nic { fixed: true, ..nic.clone() }, other.clone(), Some(Why::Driver)),
        (Nic { xdp: true, ..nic.clone() }, other, Some(Why::Xdp)),
        (nic, classes, Some(Why::Classes)),
    ] {
        (layout.nics, layout.outputs) = (vec![nic], vec![output]);
        let found = plan(&layout, &Request::default()).unwrap();
        let set = found.settings.iter().any(|set| matches!(set.what, What::Rss { .. }));
        assert_eq!((set, found.kept.first().map(|kept| kept.why)), (stays.is_none(), stays));
    }
}

#[test]
fn what_is_impossible_is_one_sentence() {
    let mut layout = host(4);
    layout.sources = vec![source(0, Some(&[0]), 1)];
    layout.cpus[2].state = State::Isolated;
    layout.cpus[3].state = State::Forbidden;
    let with = |ids: &[usize]| Request { cpus: Some(cpus(ids)), ..Request::default() };
    for (request, part) in [
        (with(&[0]), "needs two CPUs"),
        (with(&[0, 9]), "CPU 9 is offline"),
        (with(&[0, 2]), "CPU 2 is isolated"),
        (with(&[0, 3]), "outside of this cpuset"),
    ] {
        let why = plan(&layout, &request).unwrap_err().to_string();
        assert!(why.contains(part) && !why.contains('\n'), "{why}");
    }
    layout.sources[0].irq = Some(Irq { irq: 9, settable: false, cpus: cpus(&[0]) });
    assert!(plan(&layout, &request(Strategy::Spread)).is_ok());
    let away = Request { net: Some(1), ..request(Strategy::Dedicate) };
    layout.sources[0].irq = Some(Irq { irq: 9, settable: false, cpus: cpus(&[3]) });
    assert!(matches!(plan(&layout, &away), Err(Impossible::Managed { irq: 9, cpu: 3, .. })));
    layout.sources.clear();
    assert_eq!(plan(&layout, &Request::default()), Err(Impossible::NoSource));
}

fn layouts() -> impl Drawn<Value = (Layout, Request)> {
    let cpu = (0u8..10, 0u8..2, 1usize..3);
    let input = (0u8..4, 0u64..1000, prop::collection::vec(0usize..12, 1..3), any::<bool>());
    (
        prop::collection::vec(cpu, 1..12),
        prop::collection::vec(input, 0..8),
        0u32..4,
        0usize..5,
        0u8..4,
        prop::option::of(0usize..6),
        0u64..5000,
        (prop::collection::vec(0u32..8, 0..33), 0u32..3, any::<bool>(), prop::option::of(0u32..21)),
    )
        .prop_map(
            |(
                cpus,
                sources,
                threads,
                outputs,
                strategy,
                net,
                net_permille,
                (table, rules, counted, rfs_table),
            )| {
                let count = cpus.len();
                let state = |s| match s {
                    0 => State::Isolated,
                    1 => State::Forbidden,
                    _ => State::Usable,
                };
                let mut layout = host(count);
                for (n, (drawn, node, per_core)) in cpus.into_iter().enumerate() {
                    layout.cpus[n].state = state(drawn);
                    layout.cpus[n].node = Some(node.into());
                    layout.cpus[n].core = n / per_core * per_core;
                }
                layout.sources = sources
                    .into_iter()
                    .enumerate()
                    .map(|(n, (kind, load, on, rps))| {
                        let on: Cpus = on.into_iter().map(|c| c % count).collect();
                        let mut made = source(n as u32, None, load);
                        made.rps = if rps { on.clone() } else { Cpus::new() };
                        match kind {
                            0 => {}
                            1 => {
                                made.thread =
                                    Some(Task { cpus: on.clone(), wished: on, ..task(500 + n as u32, &[]) })
                            }
                            k => made.irq = Some(Irq { irq: 40 + n as u32, settable: k == 2, cpus: on }),
                        }
                        made
                    })
                    .collect();
                let queues = layout.sources.len() as u32;
                let table =
                    if queues > 0 { table.into_iter().map(|pick| pick % queues).collect() } else { vec![] };
                layout.nics =
                    vec![Nic { ifindex: 2, queues, table, counted, rules: rules / 2, ..Nic::default() }];
                layout.rfs_table = rfs_table.map(|shift| 1 << shift);
                layout.outputs = (0..outputs as u32)
                    .map(|queue| Output { ifindex: 2, queue, xps: Cpus::new(), class: Some(0) })
                    .collect();
                layout.programs = vec![program(threads, &[0])];
                layout.net_permille = net_permille;
                let strategy = [Strategy::Spread, Strategy::Affine, Strategy::Dedicate, Strategy::Follow]
                    [strategy as usize];
                (layout, Request { strategy, cpus: None, net })
            },
        )
}

proptest! {
    #[test]
    fn masks_are_never_empty_nor_of_cpus_that_may_not_be_used((layout, request) in layouts()) {
        if let Ok(plan) = plan(&layout, &request) {
            let usable = layout.usable();
            prop_assert!(plan.settings.len() <= MOST);
            for set in &plan.settings {
                prop_assert!(set.from != set.to);
                let to = match &set.to {
                    Value::Cpus(to) => to,
                    Value::Queues(_) => {
                        prop_assert!(layout.nics[0].rules == 0 && request.strategy != Strategy::Affine, "{set:?}");
                        continue;
                    }
                    Value::Entries(to) => {
                        let Value::Entries(from) = set.from else { panic!("{set:?}") };
                        prop_assert!(to.is_power_of_two() && *to > from && request.strategy == Strategy::Follow);
                        continue;
                    }
                };
                prop_assert!(to.is_subset(&usable), "{set:?}");
                prop_assert!(!to.is_empty() || matches!(set.what, What::Rps { .. }), "{set:?}");
            }
            let mut whats: Vec<What> = plan.settings.iter().map(|s| s.what).collect();
            whats.sort_unstable();
            whats.dedup();
            prop_assert_eq!(whats.len(), plan.settings.len(), "one setting twice");
            if request.strategy == Strategy::Dedicate {
                prop_assert!(plan.net.is_disjoint(&plan.host) && !plan.net.is_empty() && !plan.host.is_empty());
            }
        }
    }

    /// It is one of the plan's CPUs, with at least an even share of what the plan seats.
    #[test]
    fn the_heaviest_cpu_of_a_plan_has_at_least_an_even_share((layout, request) in layouts()) {
        if let Ok(plan) = plan(&layout, &request) {
            let total: u64 = plan.seats.iter().map(|seat| seat.load).sum();
            let offered: u64 = layout.sources.iter().map(|source| source.load).sum();
            prop_assert_eq!(total, offered);
            let hottest = plan.hottest();
            prop_assert_eq!(hottest.is_some(), total > 0);
            if let Some((cpu, share)) = hottest {
                prop_assert!(plan.net.contains(&cpu) || plan.seats.iter().any(|seat| seat.rps.contains(&cpu)));
                // What is left of a division is not given to any CPU: a packet of each source and CPU at most.
                let lost = (layout.sources.len() * layout.cpus.len()) as u64 * 1000 / total;
                prop_assert!(share <= 1000 && (share + lost + 1) * layout.cpus.len() as u64 >= 1000, "{}", share);
            }
        }
    }

    #[test]
    fn the_plan_of_a_planned_host_is_empty((layout, request) in layouts()) {
        if let Ok(first) = plan(&layout, &request) {
            let again = plan(&apply(&layout, &first), &request);
            prop_assert!(again.as_ref().is_ok_and(|p| p.settings.is_empty()), "{first:?}\n{again:?}");
        }
    }

    /// It may tip what sat barely well enough; it does not tip it back.
    #[test]
    fn a_load_that_wavers_by_a_tenth_moves_nothing_twice((layout, request) in layouts(), wave in 0u64..100) {
        let request = Request { strategy: Strategy::Affine, ..request };
        let mut calm = layout;
        for source in &mut calm.sources {
            source.load *= 1000;
            source.irq.iter_mut().for_each(|irq| irq.settable = true);
        }
        if let Ok(first) = plan(&calm, &request) {
            let mut waved = apply(&calm, &first);
            for (n, source) in waved.sources.iter_mut().enumerate() {
                // Each by another share.
                source.load = source.load * (1000 + (wave + 37 * n as u64) % 100) / 1000;
            }
            let mut back = apply(&waved, &plan(&waved, &request).unwrap());
            back.sources.iter_mut().zip(&calm.sources).for_each(|(s, then)| s.load = then.load);
            let again = plan(&back, &request).unwrap();
            prop_assert!(again.settings.is_empty(), "{again:?}");
        }
    }

    /// The same window again is no gain, and a change that loses everything is never kept.
    #[test]
    fn a_trial_keeps_only_what_helps(a in 2000u64..1_000_000, noise in 0u64..100, lost in 0u64..100_000) {
        let m = |goodput, lost| Measured { packets: vec![(0, goodput), (1, goodput / 4)], goodput, lost, busy: 900 };
        let (first, second) = (m(a, lost), m(a * (1000 - noise) / 1000, lost));
        prop_assert_eq!(judge(&first, &second, &second), Verdict::Same);
        prop_assert_eq!(judge(&first, &second, &m(a / 10, lost + a)), Verdict::Worse);
        prop_assert_eq!(judge(&m(a, 0), &m(a, 0), &m(a * 2, 0)), Verdict::Better);
        prop_assert_eq!(judge(&first, &second, &m(0, 0)), Verdict::Unknown);
    }
}

#[test]
fn only_an_uneven_or_losing_host_is_tried() {
    let usable = cpus(&[0, 1]);
    let m = |a, b, lost| Measured { packets: vec![(0, a), (1, b)], goodput: a + b, lost, busy: 900 };
    assert!(candidates(&m(500, 0, 0), &usable, true).is_empty(), "too few packets to tell");
    assert!(candidates(&m(60_000, 40_000, 0), &usable, true).is_empty(), "even enough");
    assert_eq!(candidates(&m(90_000, 1_000, 0), &usable, false), [Strategy::Spread]);
    assert_eq!(candidates(&m(60_000, 40_000, 50_000), &usable, true).len(), 3);
    // A way between CPUs only costs where no CPU is busy with packets and none is lost.
    let idle = Measured { busy: 300, ..m(90_000, 1_000, 0) };
    assert!(candidates(&idle, &usable, true).is_empty());
    assert_eq!(candidates(&Measured { lost: 9_000, ..idle }, &usable, true).len(), 3);
    assert_eq!(m(90_000, 10_000, 0).hottest(), Some((0, 900)));
}

#[test]
fn what_comes_in_at_an_unknown_place_is_not_sent_to_one_cpu() {
    let mut layout = host(4);
    layout.sources = vec![source(0, None, 10), source(1, None, 10)];
    // As a veth: where it is sent from.
    let placed = plan(&layout, &request(Strategy::Affine)).unwrap();
    assert_eq!((placed.settings.len(), placed.kept.len()), (2, 0));
    layout.sources.iter_mut().for_each(|s| s.as_sender = false);
    let placed = plan(&layout, &request(Strategy::Affine)).unwrap();
    assert_eq!((placed.settings.len(), placed.kept.len()), (0, 2), "{placed:?}");
    assert!(placed.kept.iter().all(|kept| kept.why == Why::Unknown));
    // Spread over several CPUs it is worth its hop.
    let placed = plan(&layout, &request(Strategy::Spread)).unwrap();
    assert!(placed.settings.iter().all(|set| set.to.cpus().is_some_and(|to| to.len() > 1)), "{placed:?}");
}

/// A host on which a plan does to goodput what was drawn for it; 100,000 packets/s arrive.
struct Fake {
    layout: Layout,
    /// Goodput without a plan, and with that of each strategy.
    before: u64,
    with: [u64; 3],
    in_force: Option<Plan>,
    /// Fails at this call.
    fails: usize,
    calls: usize,
}

const ARRIVE: u64 = 100_000;

impl Fake {
    fn goodput(&self) -> u64 {
        self.in_force.as_ref().map_or(self.before, |plan| self.with[plan.strategy as usize])
    }

    fn call(&mut self) -> Result<(), ()> {
        self.calls += 1;
        if self.calls == self.fails { Err(()) } else { Ok(()) }
    }
}

impl Host for Fake {
    type Error = ();

    fn layout(&mut self) -> Result<Layout, ()> {
        assert_eq!(self.in_force, None, "a plan is made of the host as it was");
        self.call().map(|()| self.layout.clone())
    }

    fn measure(&mut self) -> Result<Measured, ()> {
        let goodput = self.goodput();
        self.call()?;
        Ok(Measured { packets: vec![(0, ARRIVE), (1, 0)], goodput, lost: ARRIVE - goodput, busy: 900 })
    }

    fn carry_out(&mut self, plan: &Plan) -> Result<(), ()> {
        assert_eq!(self.in_force, None, "one after the other");
        self.call()?;
        self.in_force = Some(plan.clone());
        Ok(())
    }

    fn put_back(&mut self) -> Result<(), ()> {
        self.in_force = None;
        Ok(())
    }
}

fn fake(before: u64, with: [u64; 3], fails: usize) -> Fake {
    let mut layout = host(4);
    layout.sources = vec![source(0, Some(&[0]), ARRIVE), source(1, Some(&[0]), ARRIVE)];
    layout.programs = vec![program(2, &[0])];
    layout.net_permille = 1000;
    Fake { layout, before, with, in_force: None, fails, calls: 0 }
}

fn course(fake: &mut Fake) -> Result<Course, ()> {
    let all = [Strategy::Spread, Strategy::Affine, Strategy::Dedicate].map(request);
    auto(fake, &all, plan)
}

proptest! {
    /// No host is left worse, what is in force is what the course says, and nothing is in force after an error.
    #[test]
    fn auto_leaves_no_host_worse(
        before in 1000..=ARRIVE,
        with in prop::array::uniform3(1000..=ARRIVE),
        fails in 0usize..40,
    ) {
        let mut fake = fake(before, with, fails);
        match course(&mut fake) {
            Err(()) => prop_assert_eq!(fake.in_force, None),
            Ok(course) => {
                prop_assert_eq!(fake.in_force.as_ref(), course.kept().map(|trial| &trial.plan));
                prop_assert!(fake.goodput() >= before, "{} after {before}", fake.goodput());
                // Of those that were tried none would have been clearly better.
                for trial in course.trials {
                    prop_assert!(trial.after.goodput * 100 <= fake.goodput().max(before) * 117, "{:?}", with);
                }
            }
        }
    }
}

#[test]
fn auto_goes_on_while_packets_are_lost_and_keeps_the_best() {
    let tried = |with| {
        let mut fake = fake(40_000, with, 0);
        let course = course(&mut fake).unwrap();
        (course.trials.len(), course.kept().map(|trial| trial.plan.strategy))
    };
    // Nothing is lost any more.
    assert_eq!(tried([ARRIVE, 0, 0]), (1, Some(Strategy::Spread)));
    assert_eq!(tried([50_000, 45_000, 90_000]), (3, Some(Strategy::Dedicate)));
    assert_eq!(
        tried([50_000, 90_000, 92_000]),
        (3, Some(Strategy::Affine)),
        "a chance is no reason to go on"
    );
    assert_eq!(tried([30_000, 20_000, 40_000]), (3, None));
}

/// What evens out a host that loses can cost more than chance hides.
#[test]
fn a_flatter_layout_is_no_gain_where_packets_are_lost() {
    let m =
        |goodput, lost, other| Measured { packets: vec![(0, 100_000), (1, other)], goodput, lost, busy: 900 };
    let after = m(96_000, 104_000, 100_000);
    assert_eq!(judge(&m(100_000, 100_000, 0), &m(98_000, 102_000, 0), &after), Verdict::Same);
    assert_eq!(judge(&m(100_000, 0, 0), &m(98_000, 0, 0), &m(98_000, 0, 100_000)), Verdict::Better);
}
