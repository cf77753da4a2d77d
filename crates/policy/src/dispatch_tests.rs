use super::*;
use crate::switch::Mode;
use proptest::prelude::*;

const MS: Nanos = MILLISECOND;

/// `sources` sources, and pollers on CPUs 0 and 1.
fn host(sources: usize) -> Dispatch {
    let mut dispatch = Dispatch::new(4);
    (0..2).for_each(|cpu| dispatch.add_poller(cpu));
    (0..sources).for_each(|slot| dispatch.add(slot, Timing::default(), None));
    dispatch
}

fn on(cpu: u32, packets: u64) -> Traffic {
    Traffic { cpu, packets }
}

fn around(here: Option<u64>, asked: bool) -> Surroundings {
    let ip = Ip { kept: here.unwrap_or(0), ..Ip::default() };
    Surroundings { ip: Some(ip), routes: here.is_some(), asked }
}

#[test]
fn full_polls_take_a_source_over_on_its_own_cpu() {
    let mut d = host(2);
    let order = d.full(5 * MS, 4 * MS, 1, 1, false).unwrap();
    assert_eq!((order.slot, order.poller, order.cause, order.evidence), (1, 1, Cause::FullPolls, 4 * MS));
    assert_eq!(order.switch.mode(), Mode::Poll);
    assert!(d.full(6 * MS, 6 * MS, 1, 1, false).is_none(), "an order is under way");
    assert!(d.waits(0) && !d.waits(1));
}

#[test]
fn sources_of_other_cpus_share_the_pollers() {
    let mut d = host(4);
    let got: Vec<usize> = (0..4).filter_map(|slot| d.full(0, 0, slot, 3, false)).map(|o| o.poller).collect();
    assert_eq!(got, [1, 0, 1, 0]);
    d.add(0, Timing::default(), Some(1));
    assert_eq!(d.full(0, 0, 0, 0, false).map(|o| o.poller), Some(1), "where RPS has its packets handled");
}

#[test]
fn net_cpus_take_sources_while_they_are_in_the_set() {
    let mut d = host(4);
    d.resize(1);
    assert_eq!(d.full(0, 0, 0, 1, false).map(|o| o.poller), Some(0), "CPU 1 is not a net CPU");
    let mut switch = d.full(0, 0, 1, 0, false).unwrap().switch;
    switch.revoked();
    assert!(d.follow(0, 2).is_none(), "nobody has moved it");
    // The set grows, and one source moves.
    d.resize(2);
    d.seat(1, 1);
    d.released(1, switch);
    let order = d.follow(MS, 1).unwrap();
    assert_eq!((order.slot, order.poller, order.cause), (1, 1, Cause::Resized));
    assert!(d.follow(MS, 1).is_none(), "it has moved");
    // A seat outside of the set, or whose poller is away, counts for nothing.
    d.seat(2, 1);
    d.resize(1);
    assert_eq!(d.full(0, 0, 2, 1, false).map(|o| o.poller), Some(0));
    // The set is one of those that are there.
    d.set_away(0, true);
    assert_eq!(d.full(0, 0, 3, 0, false).map(|o| o.poller), Some(1));
}

#[test]
fn an_overflow_blames_those_that_carry_most_and_once() {
    let mut d = host(3);
    let counts = |slot: usize| on(0, [1000, 900, 10][slot]);
    let mut orders = Vec::new();
    assert!(!d.overflows(0, 0, 0, counts, |o| orders.push((o.slot, o.cause))));
    assert_eq!(orders, [(0, Cause::Overflow), (1, Cause::Overflow)]);
    // Nothing has come since: nobody is blamed, and the packets came past the NAPIs.
    assert!(d.overflows(MS, MS, 0, counts, |o| panic!("{o:?}")));
    assert!(d.overflows(MS, MS, 1, counts, |o| panic!("{o:?}")), "no source works there");
}

#[test]
fn what_came_two_ticks_ago_blames_nobody() {
    let mut d = host(2);
    let counts = |slot: usize| on(0, [1000, 0][slot]);
    d.tick(0, counts, |_| 0, around(None, false));
    d.tick(0, counts, |_| 0, around(None, false));
    assert!(d.overflows(0, 0, 0, counts, |o| panic!("{o:?}")));
}

#[test]
fn bulk_tcp_fills_polls_for_a_while_without_effect() {
    let mut d = host(1);
    d.carries(0, 0, Load::Bulk, Cause::FullPolls);
    assert!(d.full(999 * MS, 999 * MS, 0, 0, false).is_none());
    let mut switch = d.full(1000 * MS, 1000 * MS, 0, 0, false).unwrap().switch;
    switch.released(1000 * MS);
    d.released(0, switch);
    d.carries(1000 * MS, 0, Load::Bulk, Cause::FullPolls);
    assert!(d.full(2999 * MS, 2999 * MS, 0, 0, false).is_none(), "twice as long");
    assert!(!d.overflows(1001 * MS, 1001 * MS, 0, |_| on(0, 100), |_| ()), "harm counts all the same");
    assert!(!d.waits(0));
}

/// 64 packets are lost on CPU 0 at each of these times, ms, of so many thousand a second that its sources carry: for what they are taken
/// over then.
fn lose(d: &mut Dispatch, times: impl IntoIterator<Item = u64>, kpps: u64) -> Vec<Cause> {
    let mut causes = Vec::new();
    for now in times.into_iter().map(|ms| ms * MS) {
        d.overflow(now, now, 0, |_| on(0, now / MS * kpps), |order| causes.push(order.cause));
    }
    causes
}

/// A socket that overflows beside a transfer; that packets take the CPU from programs counts all the same. What was taken over for full
/// polls says nothing of sockets that lose much, and a transfer explains them for seconds only.
#[test]
fn sockets_that_overflow_beside_bulk_tcp_are_no_overload() {
    let lose =
        |d: &mut Dispatch, from: u64, every: u64, kpps: u64| lose(d, (0..20).map(|n| from + n * every), kpps);
    let of = |cause| {
        let mut d = host(1);
        d.carries(0, 0, Load::Bulk, cause);
        d
    };
    for (cause, much) in [(Cause::FullPolls, vec![Cause::Overflow]), (Cause::Overflow, Vec::new())] {
        assert_eq!(lose(&mut of(cause), 10, 16, 100), [], "a little");
        assert_eq!(lose(&mut of(cause), 500, 1, 100), much, "much");
    }
    let mut d = of(Cause::Overflow);
    let mut starved = Vec::new();
    d.over_budget(900 * MS, 900 * MS, 0, 0, |_| on(0, 100_000), |order| starved.push(order.cause));
    assert_eq!(starved, [Cause::Budget]);
    // However often it came back.
    let mut d = of(Cause::Overflow);
    let mut now = 0;
    for _ in 0..8 {
        now += 4000 * MS;
        d.carries(now, 0, Load::Bulk, Cause::Overflow);
    }
    assert_eq!(lose(&mut d, now / MS + 4000, 1, 100), [Cause::Overflow]);
    assert_eq!(lose(&mut host(1), 10, 16, 100), [Cause::Trickle], "without bulk TCP");
    assert_eq!(lose(&mut host(1), 10, 16, 4), [], "little arrives at all");
    // Nothing counts its frames: a little lost is the one sign left.
    let mut d = host(1);
    d.is_uncounted(0, 0);
    assert!(d.full(10 * MS, 10 * MS, 0, 0, false).is_none());
    assert_eq!(lose(&mut d, 10, 16, 100), [Cause::Trickle]);
}

/// A release comes between reports that would be evidence together.
#[test]
fn losses_from_before_a_release_count_no_more() {
    assert_eq!(lose(&mut host(1), [10, 30, 50, 70], 100), [Cause::Trickle]);
    // Polled on `cpu` in between; refused where there is none.
    let after = |cpu: Option<usize>| {
        let mut d = host(2);
        assert_eq!(lose(&mut d, [10, 30, 50], 100), []);
        let mut switch = d.full(55 * MS, 55 * MS, 1, 0, false).unwrap().switch;
        match cpu {
            Some(cpu) => {
                d.succeeded(1, cpu);
                switch.released(60 * MS);
                d.released(1, switch);
            }
            None => _ = d.refused(60 * MS, 1, switch, Refusal::Other),
        }
        let taken = |times: &[u64], d: &mut Dispatch| !lose(d, times.iter().copied(), 100).is_empty();
        (taken(&[70], &mut d.clone()), taken(&[70, 90, 110, 130], &mut d))
    };
    assert_eq!(after(Some(0)), (false, true));
    assert_eq!(after(Some(1)), (true, true), "on another CPU");
    assert_eq!(after(None), (true, true), "it was never polled");
}

/// Full polls of what the gate knows nothing of take over for a moment, and less and less often; what harms programs does at once.
#[test]
fn what_the_gate_knows_nothing_of_is_left_to_the_kernel() {
    let mut d = host(1);
    let mut order = d.full(0, 0, 0, 0, false).unwrap();
    assert_eq!(order.loads, [Some(0), Some(0)]);
    order.switch.released(200 * MS);
    d.carries(200 * MS, 0, Load::Unknown, Cause::FullPolls);
    d.released(0, order.switch);
    let counts = |packets| move |_| on(0, packets);
    assert!(d.full(4100 * MS, 4100 * MS, 0, 0, false).is_none());
    assert_eq!([4100, 4200].map(|at| d.says_nothing(0, at * MS, false)), [Some(4200 * MS), None]);
    d.clone().over_budget(399 * MS, 399 * MS, 0, LONG_UNKNOWN, counts(50_000), |_| {
        panic!("its release costs too")
    });
    let mut starve = None;
    d.clone().over_budget(4100 * MS, 4100 * MS, 0, LONG_UNKNOWN - 1, counts(100_000), |_| {
        panic!("they come to run")
    });
    d.clone().over_budget(4100 * MS, 4100 * MS, 0, LONG_UNKNOWN, counts(100_000), |o| starve = Some(o.loads));
    assert_eq!(starve, Some([None, Some(5100 * MS)]), "it stays for a while, whatever the gate knows");
    let mut order = d.full(4300 * MS, 4300 * MS, 0, 0, false).unwrap();
    order.switch.released(4500 * MS);
    d.carries(4500 * MS, 0, Load::Unknown, Cause::FullPolls);
    d.released(0, order.switch);
    assert!(d.full(12_400 * MS, 12_400 * MS, 0, 0, false).is_none(), "twice as long");
    assert!(d.clone().full(12_600 * MS, 12_600 * MS, 0, 0, false).is_some());
    // A program is asked about packets, or the user wants it polled.
    d.tick(12_600 * MS, counts(0), |_| 0, around(None, true));
    assert_eq!(
        d.clone().full(12_600 * MS, 12_600 * MS, 0, 0, false).map(|o| o.loads),
        Some([Some(12_600 * MS), None])
    );
    d.tick(12_600 * MS, counts(0), |_| 0, around(None, false));
    d.insist();
    assert_eq!(
        d.full(12_600 * MS, 12_600 * MS, 0, 0, false).map(|o| o.loads),
        Some([Some(12_600 * MS), None])
    );
}

/// What learns goes with the release: a source that is taken over before it is back has not been told anything.
#[test]
fn another_source_is_not_judged_while_nothing_is_learnt() {
    let mut d = host(2);
    let mut order = d.full(0, 0, 0, 0, false).unwrap();
    order.switch.released(200 * MS);
    d.carries(200 * MS, 0, Load::Unknown, Cause::FullPolls);
    d.released(0, order.switch);
    let other = d.full(300 * MS, 300 * MS, 1, 0, false).unwrap();
    assert_eq!(other.loads, [Some(300 * MS), Some(200 * MS + LEAVES + BLIND)]);
    d.remove(0);
    assert_eq!(d.says_nothing(0, 300 * MS, false), None, "what takes its place has carried nothing");
}

/// A flood of which the gate knows nothing, that takes the CPU from programs whenever the kernel has it: these lose less and less of it.
#[test]
fn what_starves_programs_is_tried_with_the_kernel_ever_more_seldom() {
    let mut d = host(1);
    let (mut now, mut packets, mut polled) = (0, 0, Vec::new());
    for _ in 0..9 {
        packets += 100_000;
        let mut order = None;
        d.over_budget(now, now, 0, LONG, |_| on(0, packets), |o| order = Some(o));
        let mut order = order.unwrap();
        let since = order.loads[Load::Unknown as usize].unwrap();
        let release = since + Load::Unknown.window();
        polled.push((release - now) / MS);
        order.switch.released(release);
        d.carries(release, 0, Load::Unknown, Cause::FullPolls);
        d.released(0, order.switch);
        now = release + 300 * MS;
    }
    assert_eq!(polled, [200, 1200, 2200, 4200, 8200, 16_200, 30_200, 30_200, 30_200]);
    // Once programs had what they need, it is tried soon again.
    now += 100_000 * MS;
    let mut order = None;
    d.over_budget(now, now, 0, 0, |_| on(0, packets + 100_000), |o| order = Some(o));
    assert_eq!(order.unwrap().loads, [None, Some(now)]);
}

/// Losses that go on while all is polled are nothing to order, and need not be told so often.
#[test]
fn losses_of_what_is_polled_already_are_told_apart() {
    let mut d = host(1);
    assert!(d.full(MS, MS, 0, 0, false).is_some());
    let mut lose =
        |packets| (0..8).map(|n| d.overflow(n * MS, n * MS, 0, |_| on(0, packets), |_| panic!())).last();
    assert_eq!(lose(200_000), Some(Bears::Polled));
    assert_eq!(lose(200_000), Some(Bears::Nobody), "nothing has come since");
    let mut trickle = |n: u64| {
        let now = (100 + 16 * n) * MS;
        d.overflow(now, now, 0, |_| on(0, 300_000), |_| panic!())
    };
    assert!((0..40).all(|n| trickle(n) == Bears::Sources), "a trickle comes past no NAPI");
}

/// What the kernel merges tells of a transfer before anything is taken over; that softirqs hold up programs for long counts all the same.
#[test]
fn a_transfer_that_the_kernel_merges_explains_what_looks_like_overload() {
    let ticked = |mut d: Dispatch, asked: bool, here: Option<u64>, merged: u64| {
        for n in 0..2 {
            let ip = Ip { merged: n * merged, tcp: n * merged / 16, ..Ip::default() };
            let around = Surroundings { ip: Some(ip), ..around(here, asked) };
            d.tick(n * 200 * MS, |_| on(0, n * 100_000), |_| n * 100_000_000, around);
        }
        d
    };
    let transfer = || ticked(host(1), false, None, 30_000);
    let full = |d: &mut Dispatch, ms: u64| d.full(ms * MS, ms * MS, 0, 0, true).is_some();
    assert!(full(&mut ticked(host(1), false, None, 20_000), 210), "too little of it");
    assert!(!full(&mut transfer(), 1599) && full(&mut transfer(), 1600), "for a while");
    let lost = |d: &mut Dispatch, from: u64| {
        let lose = |ms| d.overflow(ms * MS, ms * MS, 0, |_| on(0, 120_000), |_| ());
        (from..from + 8).map(lose).last()
    };
    assert_eq!(lost(&mut transfer(), 210), Some(Bears::Transfer { slot: 0 }));
    assert_eq!(lost(&mut transfer(), 1610), Some(Bears::Sources));
    let starved = |waited| {
        let mut orders = 0;
        transfer().over_budget(210 * MS, 210 * MS, 0, waited, |_| on(0, 120_000), |_| orders += 1);
        orders
    };
    assert_eq!((starved(LONG - 1), starved(LONG)), (0, 1));
    let mut gated = host(1);
    let mut switch = gated.full(0, 0, 0, 0, true).unwrap().switch;
    switch.sheds(100 * MS);
    gated.released(0, switch);
    assert!(full(&mut ticked(gated, false, None, 30_000), 1500), "the gate is in its way");
    let mut insists = host(1);
    insists.insist();
    assert!(full(&mut ticked(insists, false, None, 30_000), 210));
    assert!(full(&mut ticked(host(1), true, None, 30_000), 210), "programs are asked");
    assert!(full(&mut ticked(host(1), false, Some(0), 30_000), 210), "a router");
}

/// A source whose transfer explains what is lost hides no other one of its CPU.
#[test]
fn a_transfer_on_one_source_hides_no_flood_on_another() {
    let taken = |transfer: u64, other: u64| {
        let mut d = host(2);
        d.carries(0, 0, Load::Bulk, Cause::Overflow);
        let mut slots = Vec::new();
        for now in (500..520).map(|ms| ms * MS) {
            let carried = |slot| on(0, now / MS * if slot == 0 { transfer } else { other });
            d.overflow(now, now, 0, carried, |order| slots.push(order.slot));
        }
        slots
    };
    assert_eq!(taken(200, 90), [1]);
    assert_eq!(taken(500, 30), [], "one that carries little is not blamed for it either");
    assert_eq!(taken(500, 0), []);
}

#[test]
fn a_quarter_of_bulk_tcp_is_enough_with_mode_auto_on_a_host_that_does_not_forward() {
    let quarter = |d: &mut Dispatch| d.full(10 * MS, 10 * MS, 0, 0, true).unwrap().quarter;
    assert!(quarter(&mut host(1)));
    let mut insists = host(1);
    insists.insist();
    assert!(!quarter(&mut insists));
    let mut router = host(1);
    router.tick(0, |_| on(0, 0), |_| 0, around(Some(0), false));
    assert!(!quarter(&mut router));
    let mut asks = host(1);
    asks.tick(0, |_| on(0, 0), |_| 0, around(None, true));
    assert!(!quarter(&mut asks));
}

/// Without weir's XDP program nothing tells bulk TCP from a flood: neither full polls nor arrivals take the source over, and each
/// try waits longer.
#[test]
fn frames_that_are_not_counted_may_be_bulk_tcp() {
    let mut d = host(1);
    let (mut now, mut tries) = (0, Vec::new());
    for look in 0..600 {
        now = look * 200 * MS;
        let order = d.full(now, now, 0, 0, false).or_else(|| d.arrives(now, 0, on(0, look * 1_000_000)));
        let Some(mut order) = order else { continue };
        tries.push(now / (1000 * MS));
        d.is_uncounted(now, 0);
        order.switch.revoked();
        d.released(0, order.switch);
    }
    assert_eq!(tries, [0, 1, 3, 7, 15, 31, 61, 91]);
    let mut harm = Vec::new();
    d.over_budget(now, now, 0, 0, |_| on(0, u64::MAX / 2), |order| harm.push(order.cause));
    assert_eq!(harm, [Cause::Budget], "harm counts all the same");
}

#[test]
fn a_companion_needs_packets_between_two_looks() {
    let mut d = host(2);
    assert!(d.companion(0, 1, on(0, 1000)).is_none(), "the first look");
    assert!(d.companion(MS, 1, on(0, 1063)).is_none());
    assert_eq!(d.companion(2 * MS, 1, on(0, 1127)).map(|o| o.cause), Some(Cause::Companion));
}

#[test]
fn a_handle_without_an_id_falls_back_within_a_second() {
    let mut d = host(1);
    let mut tries = 0;
    for now in (0..1000).map(|ms| ms * MS) {
        let Some(order) = d.full(now, now, 0, 0, false) else { continue };
        tries += 1;
        if d.refused(now, 0, order.switch, Refusal::Unmarked) == Some(Fallback::Thread) {
            assert_eq!((tries, now), (5, 700 * MS));
            return;
        }
    }
    panic!("no fallback after {tries} tries");
}

#[test]
fn without_pollers_nothing_is_lost() {
    let mut d = Dispatch::new(1);
    d.add(0, Timing::default(), None);
    assert!(d.full(0, 0, 0, 0, false).is_none());
    assert!(d.waits(0));
}

#[test]
fn the_busiest_interface_is_flooded_or_none() {
    assert_eq!(busiest([(3, 40), (5, 90), (7, 10)].into_iter()), Some(5));
    assert_eq!(busiest([(3, 39)].into_iter()), None);
    assert_eq!(busiest(std::iter::empty()), None);
}

/// What may happen.
#[derive(Clone, Copy, Debug)]
enum Step {
    Full(usize, usize),
    Overflow(u32),
    Budget(u32),
    Companion(usize),
    Bulk(usize),
    Tick,
    Remove(usize),
    Add(usize, Option<u32>),
    Ended(usize, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..70, 0usize..6).prop_map(|(s, c)| Step::Full(s, c)),
        3 => (0u32..6).prop_map(Step::Overflow),
        1 => (0u32..6).prop_map(Step::Budget),
        1 => (0usize..8).prop_map(Step::Companion),
        1 => (0usize..8).prop_map(Step::Bulk),
        1 => Just(Step::Tick),
        1 => (0usize..8).prop_map(Step::Remove),
        2 => (0usize..8, prop::option::of(0u32..3)).prop_map(|(s, r)| Step::Add(s, r)),
        6 => (0usize..8, 0u8..6).prop_map(|(s, how)| Step::Ended(s, how)),
    ]
}

proptest! {
    /// However evidence, results and changes of the host are mixed: no source has two orders, none comes within its pause,
    /// and each names a poller that exists.
    #[test]
    fn orders_are_sound(steps in prop::collection::vec((0u64..400, 0u64..500, step()), 1..300)) {
        let mut d = host(8);
        // What has an order, and until when the others wait.
        let mut under_way: [Option<ModeSwitch>; 8] = [None; 8];
        let mut known = [true; 8];
        let mut waits = [0u64; 8];
        let (mut now, mut packets) = (0, [0u64; 8]);
        for (gap, came, step) in steps {
            now += gap * MS;
            let mut orders = Vec::new();
            let mut traffic = [Traffic::default(); SOURCES_MAX];
            for (slot, packets) in packets.iter_mut().enumerate() {
                *packets = packets.wrapping_add(came * (slot as u64 + 1));
                traffic[slot] = on(slot as u32 % 3, *packets);
            }
            match step {
                Step::Full(slot, cpu) => orders.extend(d.full(now, now, slot, cpu, false)),
                Step::Overflow(cpu) => _ = d.overflow(now, now, cpu, |s| traffic[s], |o| orders.push(o)),
                Step::Budget(cpu) => d.over_budget(now, now, cpu, LONG, |s| traffic[s], |o| orders.push(o)),
                Step::Companion(slot) => orders.extend(d.companion(now, slot, traffic[slot])),
                Step::Bulk(slot) => d.carries(now, slot, Load::Bulk, Cause::Overflow),
                Step::Tick => d.tick(now, |s| traffic[s], |_| 0, around(None, false)),
                Step::Remove(slot) => {
                    d.remove(slot);
                    (known[slot], under_way[slot]) = (false, None);
                }
                Step::Add(slot, rps) => {
                    d.add(slot, Timing::default(), rps);
                    (known[slot], under_way[slot], waits[slot]) = (true, None, 0);
                }
                Step::Ended(slot, how) => {
                    let Some(mut switch) = under_way[slot].take() else { continue };
                    switch.released(now);
                    let why = [Refusal::Unmarked, Refusal::Setting, Refusal::NoTurn, Refusal::Other];
                    match why.get(usize::from(how)) {
                        Some(why) => {
                            let fallback = d.refused(now, slot, switch, *why);
                            prop_assert!(fallback.is_none() || *why == Refusal::Unmarked);
                            waits[slot] = now + 1;
                        }
                        None => {
                            d.succeeded(slot, slot % 2);
                            d.released(slot, switch);
                            waits[slot] = 0;
                        }
                    }
                }
            }
            for order in orders {
                prop_assert!(order.slot < 8 && known[order.slot]);
                prop_assert!(under_way[order.slot].is_none(), "two orders for {}", order.slot);
                prop_assert!(now >= waits[order.slot]);
                prop_assert!(order.poller < 2);
                under_way[order.slot] = Some(order.switch);
            }
            for slot in 0..8 {
                prop_assert_eq!(d.waits(slot), known[slot] && under_way[slot].is_none());
            }
        }
    }
}

#[test]
fn a_poller_that_is_away_gets_nothing_and_all_away_take_nothing() {
    let mut dispatch = Dispatch::new(4);
    (1..4).for_each(|cpu| dispatch.add_poller(cpu));
    for slot in 0..8 {
        dispatch.add(slot, Timing::default(), None);
    }
    let now = 1000 * MILLISECOND;
    assert_eq!(dispatch.full(now, now, 0, 2, false).map(|o| o.poller), Some(1), "of CPU 2");
    dispatch.set_away(1, true);
    let mut got: Vec<usize> =
        (1..5).filter_map(|slot| dispatch.full(now, now, slot, 2, false)).map(|o| o.poller).collect();
    got.sort_unstable();
    assert_eq!(got, [0, 0, 2, 2], "the others share what is its");
    dispatch.set_away(0, true);
    dispatch.set_away(2, true);
    assert!(dispatch.full(now, now, 5, 2, false).is_none());
    assert!(dispatch.waits(5), "it waits for a poller, and its switch is not lost");
    dispatch.set_away(1, false);
    assert_eq!(dispatch.full(now, now, 5, 7, false).map(|o| o.poller), Some(1), "of CPU 2");
}

#[test]
fn full_polls_of_what_is_passed_on_take_nothing_over() {
    let mut d = host(1);
    let counts = |packets| move |_| on(0, packets);
    d.tick(0, counts(0), |_| 0, around(Some(0), false));
    d.tick(200 * MS, counts(100_000), |_| 0, around(Some(100), false));
    assert!(d.full(200 * MS, 200 * MS, 0, 0, false).is_none());
    let quiet = |d: &Dispatch, queued| d.says_nothing(0, 200 * MS, queued);
    assert_eq!((quiet(&d, false), quiet(&d, true)), (Some(200 * MS + EXPLAINED), None));
    assert!(d.clone().full(200 * MS, 200 * MS, 0, 0, true).is_some(), "a packet filter's queue is full");
    assert!(
        d.clone().full(200 * MS, 200 * MS, 0, 0, true).is_some_and(|o| o.by_io_uring),
        "the queue is what is paused for"
    );
    let starve = |d: &Dispatch, now: Nanos| {
        let mut order = None;
        d.clone().over_budget(now, now, 0, LONG, counts(400_000), |o| order = Some((o.cause, o.by_io_uring)));
        order
    };
    assert_eq!(starve(&d, 200 * MS), Some((Cause::Budget, false)), "programs lack CPU");
    let mut asked = d.clone();
    asked.tick(300 * MS, counts(200_000), |_| 0, around(Some(200), true));
    assert_eq!(starve(&asked, 300 * MS), Some((Cause::Budget, true)), "a program's queue may be full");
    let mut container = d.clone();
    assert!(!container.overflows(210 * MS, 210 * MS, 0, counts(300_000), |o| assert!(o.by_io_uring)));
    assert_eq!(container.slots[0].switch.map(|s| s.mode()), None);
    container.add(0, Timing::default(), None);
    assert_eq!(starve(&container, 800 * MS), Some((Cause::Budget, true)), "a container's socket is full");
    assert_eq!(starve(&container, 810 * MS), Some((Cause::Budget, false)), "no more");
    d.tick(400 * MS, counts(200_000), |_| 0, around(Some(50_000), false));
    assert_eq!(starve(&d, 400 * MS), Some((Cause::Budget, true)), "most is for the host");
    assert!(quiet(&d, false).is_none() && d.full(400 * MS, 400 * MS, 0, 0, false).is_some());
}

#[test]
fn a_poller_that_does_not_run_gets_nothing_until_it_has_answered() {
    let mut d = host(4);
    d.stuck(MS, 1);
    assert_eq!(d.look_at_poller(MS, 1, 0), Some(Call::Ask));
    assert_eq!(d.full(2 * MS, 2 * MS, 0, 1, false).map(|o| o.poller), Some(0));
    assert_eq!(d.look_at_poller(3 * MS, 0, 3 * MS), None, "the other one runs");
    assert_eq!(d.look_at_poller(3 * MS, 1, MS), None, "no answer yet");
    assert_eq!(d.look_at_poller(4 * MS, 1, 4 * MS), Some(Call::Return));
    assert_eq!(d.full(5 * MS, 5 * MS, 1, 1, false).map(|o| o.poller), Some(1));
    // Soon again: it is not asked before a second has passed.
    d.stuck(100 * MS, 1);
    assert_eq!(d.look_at_poller(1099 * MS, 1, 1099 * MS), None);
    assert_eq!(d.full(1099 * MS, 1099 * MS, 2, 1, false).map(|o| o.poller), Some(0));
    // With none that runs a source waits, and its switch is not lost.
    d.stuck(1099 * MS, 0);
    assert!(d.full(1099 * MS, 1099 * MS, 3, 1, false).is_none() && d.waits(3));
}

proptest! {
    /// Whoever is away or does not run: an order names one of the first pollers of the set that are there.
    #[test]
    fn orders_are_for_those_that_are_there(steps in prop::collection::vec((0usize..4, 0u8..4, 1usize..5), 1..60)) {
        let mut d = Dispatch::new(4);
        (0..4).for_each(|cpu| d.add_poller(cpu));
        d.add(0, Timing::default(), None);
        let (mut away, mut stuck, mut now) = ([false; 4], [false; 4], 0);
        for (poller, what, set) in steps {
            now += 40_000 * MS;
            match what {
                0 => (away[poller], _) = (!away[poller], d.set_away(poller, !away[poller])),
                1 if !stuck[poller] => (stuck[poller], _) = (true, d.stuck(now, poller)),
                2 => {
                    let asked = d.look_at_poller(now, poller, 0);
                    let back = d.look_at_poller(now + 2, poller, now + 1);
                    prop_assert_eq!((asked, back).0, stuck[poller].then_some(Call::Ask));
                    prop_assert_eq!(back, stuck[poller].then_some(Call::Return));
                    stuck[poller] = false;
                }
                _ => d.resize(set),
            }
            let set = if what > 2 { set } else { d.set };
            let there: Vec<usize> = (0..4).filter(|n| !away[*n] && !stuck[*n]).take(set).collect();
            let order = d.full(now, now, 0, poller, false);
            prop_assert_eq!(order.is_some(), !there.is_empty());
            if let Some(mut order) = order {
                prop_assert!(there.contains(&order.poller), "{} of {there:?}", order.poller);
                prop_assert!(!there.contains(&poller) || order.poller == poller);
                order.switch.revoked();
                d.released(0, order.switch);
            }
        }
    }
}
