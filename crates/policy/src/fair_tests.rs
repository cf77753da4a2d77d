//! Properties of the judgement, and what it is worth: senders of many kinds, one socket, polls of 64 frames, with and without it.
//! All numbers come from one generator with a fixed seed: a run is the same as the last one.

use proptest::prelude::*;

use super::*;
use crate::gate;

/// A sender whose places in the sketch no other one has.
fn apart(sender: u64) -> u64 {
    (0..ROWS).map(|row| (sender % CELLS as u64) << (24 + 10 * row)).sum()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 20) % n
    }
}

/// All of the room may be used.
fn uncut(free: u32, whole: u32) -> Room {
    Room { given: free, free, whole }
}

/// When the program reads what its socket holds.
#[derive(Clone, Copy, Debug)]
enum Reads {
    /// After each poll as many packets, as one on another CPU.
    Each(u32),
    /// All that is there after each poll.
    All,
    /// All that is there after so many polls.
    AllAfter(u32),
}

/// Packets that the socket holds.
const BUFFER: u32 = 90;
/// Frames of a poll, as of the kernel's.
const FRAMES: u32 = 64;
/// Polls before those that count: the share has settled.
const SETTLE: u32 = 2000;
const POLLS: u32 = 10_000;
/// A tick has so many polls: 1 M/s.
const POLLS_OF_A_TICK: u32 = 262;

struct Case {
    name: &'static str,
    /// How many senders, and how often each of them sends.
    senders: Vec<(u64, u64)>,
    /// Each of the frames of this weight is of a sender of its own.
    spoofed: u64,
    reads: Reads,
    frames: u32,
    /// Admitted of a poll, of 1000.
    admit: u16,
}

fn case_of(name: &'static str, senders: &[(u64, u64)], reads: Reads) -> Case {
    Case { name, senders: senders.to_vec(), spoofed: 0, reads, frames: FRAMES, admit: 1000 }
}

#[derive(Debug)]
struct Outcome {
    /// Of each kind of senders: packets that the program has read, of 1000 sent.
    served: Vec<u32>,
    /// The same, packets per sender.
    each: Vec<u32>,
    /// What the program has read.
    total: u32,
    /// Frames that were shed with room.
    over: u32,
}

fn run(case: &Case, fair: bool) -> Outcome {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut of, mut sketch) = (Fair::default(), Box::<Sketch>::default());
    let weight: u64 = case.senders.iter().map(|(n, each)| n * each).sum::<u64>() + case.spoofed;
    let kinds = case.senders.len() + usize::from(case.spoofed > 0);
    let (mut sent, mut passed) = (vec![0u32; kinds], vec![0u32; kinds]);
    let (mut queue, mut left, mut read, mut over) = (0u32, 0u32, 0u32, 0u32);
    for poll in 0..SETTLE + POLLS {
        let counts = poll >= SETTLE;
        let now = 1 + poll / POLLS_OF_A_TICK;
        let flooded = !fair || of.is_flooded();
        let given = gate::room_given(gate::room(BUFFER, queue, 1, 1), case.admit, poll, flooded);
        left = match fair {
            true => of.poll(&mut sketch, left, Room { given, free: BUFFER - queue, whole: BUFFER }, now),
            false => given,
        };
        for _ in 0..case.frames {
            let mut at = random.below(weight);
            let (mut kind, mut sender) = (kinds - 1, random.next() | 1 << 63);
            let mut first = 0;
            for (index, (n, each)) in case.senders.iter().enumerate() {
                if at < n * each {
                    (kind, sender) = (index, first + at / each);
                    break;
                }
                at -= n * each;
                first += n;
            }
            let verdict = match (fair, left) {
                (true, _) => of.judge(&mut sketch, hash(7, now, 3, sender), left),
                (false, 0) => Verdict::Full,
                (false, _) => Verdict::Pass,
            };
            assert!(left > 0 || verdict == Verdict::Full, "what is full stays full");
            of.weigh(verdict == Verdict::Pass);
            if verdict == Verdict::Pass {
                left -= 1;
                queue += 1;
            }
            if counts {
                sent[kind] += 1;
                passed[kind] += u32::from(verdict == Verdict::Pass);
                over += u32::from(verdict == Verdict::Over);
            }
        }
        let most = match case.reads {
            Reads::Each(n) => n,
            Reads::All => queue,
            Reads::AllAfter(n) => {
                if poll % n == 0 {
                    queue
                } else {
                    0
                }
            }
        };
        read += if counts { most.min(queue) } else { 0 };
        queue -= most.min(queue);
    }
    let share = |(sent, passed): (&u32, &u32)| (u64::from(*passed) * 1000 / u64::from(*sent).max(1)) as u32;
    let each = case.senders.iter().zip(&passed).map(|((n, _), passed)| passed / *n as u32);
    Outcome { served: sent.iter().zip(&passed).map(share).collect(), each: each.collect(), total: read, over }
}

/// One loud sender, or more of them, first; quiet ones last.
fn cases() -> Vec<(Case, u32)> {
    use Reads::{All, AllAfter, Each};
    let given = |admit, case| Case { admit, ..case };
    vec![
        // What quiet ones send fits: they lose next to nothing where the program has work all the time.
        (case_of("50 quiet, one 150 times as loud", &[(1, 150), (50, 1)], Each(30)), 970),
        (case_of("50 quiet, one 100 times as loud", &[(1, 100), (50, 1)], Each(30)), 970),
        (case_of("50 quiet, one 1000 times as loud", &[(1, 1000), (50, 1)], Each(6)), 970),
        (case_of("20 quiet, one 10000 times as loud", &[(1, 10_000), (20, 1)], Each(6)), 970),
        (case_of("2 quiet, one 20 times as loud", &[(1, 20), (2, 1)], Each(20)), 970),
        (case_of("50 quiet, ten 50 times as loud", &[(10, 50), (50, 1)], Each(10)), 960),
        (case_of("40 quiet, five 10 times, one 1000 times", &[(1, 1000), (5, 10), (40, 1)], Each(20)), 970),
        // Where it runs empty, room that is held is room that is lost.
        (Case { frames: 150, ..case_of("50 quiet, read empty", &[(1, 100), (50, 1)], All) }, 850),
        (case_of("50 quiet, read in bursts", &[(1, 1000), (50, 1)], AllAfter(20)), 850),
        (case_of("20 quiet, read in bursts", &[(1, 500), (20, 1)], AllAfter(10)), 800),
        // Where shedding needs the CPU a poll lets little through.
        (given(10, case_of("20 quiet, one packet per poll", &[(1, 2000), (20, 1)], Each(30))), 940),
        (given(1, case_of("20 quiet, a packet per eleven polls", &[(1, 100_000), (20, 1)], Each(30))), 900),
        (given(50, case_of("20 quiet, four packets per poll", &[(1, 1000), (20, 1)], Each(30))), 970),
    ]
}

#[test]
fn quiet_senders_are_served_and_no_room_is_wasted() {
    for (case, least) in cases() {
        let (without, with) = (run(&case, false), run(&case, true));
        println!("{}\n  without {without:?}\n  with    {with:?}", case.name);
        let (before, after) = (*without.served.last().unwrap(), *with.served.last().unwrap());
        assert!(after >= least && without.over == 0, "{}: {before} -> {after}", case.name);
        assert!(u64::from(with.total) * 1000 >= u64::from(without.total) * 980, "{}: total", case.name);
        // Senders between the two are no worse off than quiet ones, but for some percent.
        assert!(with.served[1] * 100 >= after * 95, "{}: {with:?}", case.name);
    }
}

/// Of the senders that ask for more than their share none gets much more than another, however loud.
#[test]
fn what_all_want_more_of_is_divided_evenly() {
    use Reads::{AllAfter, Each};
    let cases = [
        case_of("50 want four times their share, one 100 times as much", &[(1, 100), (50, 1)], Each(4)),
        case_of("50 want much more, one twice as much", &[(1, 2), (50, 1)], Each(6)),
        case_of("50 want much more, one 100 times as much, in bursts", &[(1, 100), (50, 1)], AllAfter(20)),
        case_of("10 and 10 ten times as loud", &[(10, 10), (10, 1)], Each(4)),
        Case { admit: 10, ..case_of("one packet per poll", &[(1, 100), (50, 1)], Each(30)) },
    ];
    for case in cases {
        let (without, with) = (run(&case, false), run(&case, true));
        println!("{}\n  without {without:?}\n  with    {with:?}", case.name);
        // Of 100 times as much, at most three times as much gets through.
        let spread = f64::from(with.each[0]) / f64::from(with.each[1].max(1));
        assert!((0.8..3.0).contains(&spread), "{}: {with:?}", case.name);
        assert!(u64::from(with.total) * 1000 >= u64::from(without.total) * 980, "{}: total", case.name);
    }
}

/// One sender alone, two alike, a flood of addresses that nobody has: there is nothing to trim, and nothing is lost by it.
#[test]
fn where_all_are_alike_nothing_changes() {
    let mut cases = vec![
        case_of("one sender", &[(1, 1)], Reads::Each(20)),
        case_of("one sender, in bursts", &[(1, 1)], Reads::AllAfter(10)),
        case_of("two alike", &[(2, 1)], Reads::Each(20)),
        case_of("500 alike", &[(500, 1)], Reads::Each(20)),
    ];
    cases.push(Case { spoofed: 100, ..case_of("spoofed", &[(50, 1)], Reads::Each(20)) });
    cases.push(Case { spoofed: 100, ..case_of("spoofed, one busy", &[(1, 20), (50, 1)], Reads::Each(20)) });
    for case in cases {
        let (without, with) = (run(&case, false), run(&case, true));
        println!("{}\n  without {without:?}\n  with    {with:?}", case.name);
        assert!(u64::from(with.total) * 1000 >= u64::from(without.total) * 990, "{}: total", case.name);
        for (before, after) in without.served.iter().zip(&with.served) {
            assert!(*after * 100 >= *before * 90, "{}: {before} -> {after}", case.name);
        }
    }
}

#[test]
fn with_room_nothing_is_written() {
    let (mut of, mut sketch) = (Fair::default(), Box::<Sketch>::default());
    for poll in 0..1000u32 {
        of.poll(&mut sketch, 30, uncut(90, 90), poll + 1);
        for n in 0..60 {
            assert_eq!(of.judge(&mut sketch, hash(1, poll, 0, 5), 90 - n), Verdict::Pass);
        }
    }
    assert!(!of.is_active() && sketch.clock == 0 && sketch.cell.iter().flatten().all(|cell| *cell == 0));
}

/// Once room is there again for three ticks, everything passes as before.
#[test]
fn what_was_learnt_ends_by_itself() {
    let (mut of, mut sketch) = (Fair::default(), Box::<Sketch>::default());
    of.poll(&mut sketch, 0, uncut(0, 90), 100);
    assert_eq!(of.judge(&mut sketch, apart(1), 0), Verdict::Full);
    assert!(of.is_active());
    of.poll(&mut sketch, 0, uncut(50, 90), 103);
    assert!(of.is_active());
    of.poll(&mut sketch, 20, uncut(50, 90), 104);
    assert!(!of.is_active());
}

/// The bound of the header: what is over its share by mistake, at the largest number of senders that are over theirs.
#[test]
fn a_sender_is_mistaken_for_another_as_seldom_as_stated() {
    for (over, most) in [(256u64, 1.0 / 256.0), (u64::from(MOST), 1.0 / 4000.0)] {
        let mut wrong = 0u32;
        const SEEDS: u64 = 200;
        for seed in 0..SEEDS {
            let (mut of, mut sketch) = (Fair::default(), Box::<Sketch>::default());
            // Active, as after a shortage.
            of.judge(&mut sketch, 0, 0);
            of.spacing = MOST / 2 * ONE;
            for sender in 0..over {
                // All that a sender can be ahead, and the clock as before.
                for _ in 0..4 {
                    of.judge(&mut sketch, hash(seed, 1, 2, sender), 1000);
                }
                sketch.clock = 0;
            }
            let over = |n: &u64| sketch.lead(hash(seed, 1, 2, 1 << 32 | n)) > 2 * of.spacing;
            wrong += (0..500).filter(over).count() as u32;
        }
        let share = f64::from(wrong) / (500.0 * SEEDS as f64);
        println!("{over} senders over their share: {share:.6} of the others mistaken, bound {most:.6}");
        assert!(share <= 1.2 * most, "{share}");
    }
}

/// Prefixes of IPv6 and neighbours of IPv4 differ in each row.
#[test]
fn places_of_near_senders_are_apart() {
    for senders in
        [(0..256).map(|n| n << 24).collect::<Vec<u64>>(), (0..256).map(|n| n << 56 | 0x20).collect()]
    {
        for row in 0..ROWS {
            let places: std::collections::BTreeSet<u64> =
                senders.iter().map(|s| hash(9, 1, 0, *s) >> (24 + 10 * row) & 1023).collect();
            // Of 256 drawn at random 226 places are expected.
            assert!(places.len() > 190, "row {row}: {}", places.len());
        }
    }
}

/// The flood stays and those that room was held for are gone: the places lost are bounded.
#[test]
fn what_is_held_for_those_who_left_is_given_up() {
    let (mut of, mut sketch) = (Fair::default(), Box::<Sketch>::default());
    let mut random = Random(5);
    let (mut left, mut lost) = (0u32, 0u32);
    for poll in 0..4000u32 {
        let quiet = poll < 2000;
        left = of.poll(&mut sketch, left, uncut(BUFFER, BUFFER), 1 + poll / POLLS_OF_A_TICK);
        for _ in 0..FRAMES * 2 {
            let sender = if quiet && random.below(3) == 0 { 1 + random.below(50) } else { 0 };
            if of.judge(&mut sketch, apart(sender), left) == Verdict::Pass {
                left -= 1;
            }
        }
        // The program reads all.
        lost += if quiet { 0 } else { left };
    }
    println!("{lost} places lost");
    assert!(lost <= 2 * BUFFER, "{lost}");
}

/// Of a flood the share of frames that are told to be quiet senders', of 1000.
fn quiet_of(senders: &[(u64, u64)], spoofed: u64) -> u32 {
    let mut random = Random(77);
    let mut of = Vote::default();
    let weight: u64 = senders.iter().map(|(n, each)| n * each).sum::<u64>() + spoofed;
    const ALL: u32 = 100_000;
    let one = |random: &mut Random| {
        let (mut at, mut first) = (random.below(weight), 0);
        for (n, each) in senders {
            if at < n * each {
                return first + at / each;
            }
            at -= n * each;
            first += n;
        }
        random.next() | 1 << 63
    };
    let quiet = (0..ALL).filter(|_| of.is_quiet(one(&mut random))).count() as u32;
    quiet * 1000 / (ALL / 1000) / 1000
}

#[test]
fn who_sends_little_beside_one_loud_sender_is_quiet() {
    assert_eq!(quiet_of(&[(1, 1)], 0), 0, "alone");
    assert_eq!(quiet_of(&[(2, 1)], 0), 0, "two alike");
    assert_eq!(quiet_of(&[(100, 1)], 0), 0, "a hundred alike");
    assert_eq!(quiet_of(&[], 1), 0, "addresses that nobody has");
    assert_eq!(quiet_of(&[(1, 3)], 1), 0, "a busy one among those");
    // 20 of 2000 frames are theirs, 20 of 400; each frame against the loud one counts eight times, so that it is known as long as
    // it sends more than eight in nine, and well known somewhat above.
    assert!((9..=11).contains(&quiet_of(&[(1, 1980), (20, 1)], 0)));
    assert!((45..=55).contains(&quiet_of(&[(1, 380), (20, 1)], 0)));
    assert!(quiet_of(&[(1, 100), (20, 1)], 0) <= 20);
}

/// One that gets a frame in a thousand beside a flooded one gets few; neither of two alike does, nor one alone.
#[test]
fn who_gets_few_is_told_by_all_frames_of_the_source() {
    let few = |of: fn(u32) -> u32| {
        let mut sketch = Box::<Sketch>::default();
        (0..10_000).filter(|n| sketch.gets_few(of(*n))).count()
    };
    assert_eq!(few(|_| 3), 0);
    assert_eq!(few(|n| n % 2), 0);
    assert!((9..=10).contains(&few(|n| u32::from(n % 1000 == 999))));
}

proptest! {
    /// A consumer most of whose frames are shed is no innocent, whatever was kept away from whom; one of which few are is one.
    #[test]
    fn who_is_shed_for_is_no_innocent(passes in 0_u32..20, sheds in 0_u32..20) {
        let (mut fair, mut sketch) = (Fair::default(), Box::<Sketch>::default());
        let _ = fair.poll(&mut sketch, 0, uncut(8, 8), 1000);
        for n in 0..100 * (passes + sheds) {
            fair.weigh(n % (passes + sheds) < passes);
        }
        prop_assert!(passes >= sheds || !fair.is_innocent(0, 1000));
        prop_assert!(passes <= sheds || fair.is_innocent(0, 1000));
    }

    /// A consumer that input was kept away from in the last seventh of a second is no innocent, and so none is one beside itself; any
    /// other is one as long as something is kept away from somebody.
    #[test]
    fn who_is_kept_away_from_is_no_innocent(now in 1000_u32..2000, ago in 0_u32..40, other in 0_u32..40) {
        let (mut fair, mut sketch) = (Fair::default(), Box::<Sketch>::default());
        let _ = fair.poll(&mut sketch, 0, uncut(8, 8), now);
        let any = now - other.min(ago);
        prop_assert!(!fair.is_innocent(any, any));
        prop_assert_eq!(fair.is_innocent(now - ago, any), ago > 8 && other <= 8);
        prop_assert_eq!(fair.is_innocent(0, any), other.min(ago) <= 8);
    }

    /// Whoever was loud before: a sender that is alone now is no longer taken for a quiet one after 16 frames.
    #[test]
    fn who_is_alone_is_not_quiet_for_long(before in proptest::collection::vec(0u64..5, 0..600)) {
        let mut of = Vote::default();
        for sender in before {
            of.is_quiet(sender);
        }
        let quiet = (0..1000).filter(|_| of.is_quiet(9)).count();
        prop_assert!(quiet <= 17, "{quiet}");
    }

    /// Whatever others send, whatever room there is: who sends one packet for each `MOST` that pass is never trimmed.
    #[test]
    fn who_keeps_to_a_share_is_never_trimmed(
        steps in proptest::collection::vec((0u64..200, 0u32..120, 0u32..3), 1..200),
    ) {
        let (mut of, mut sketch) = (Fair::default(), Box::<Sketch>::default());
        let (mut left, mut now, mut since) = (0u32, 10, 0);
        for (other, room, ticks) in steps {
            now += ticks;
            let given = room / (1 + other as u32 % 3);
            left = of.poll(&mut sketch, left, Room { given, free: room, whole: 120 }, now);
            prop_assert!(left <= room);
            for n in 0..100 {
                let who = if n % 3 == 0 { 1 + (other * n) % 900 } else { 1 + other };
                match of.judge(&mut sketch, apart(who), left) {
                    Verdict::Pass => { left -= 1; since += 1; }
                    Verdict::Full => prop_assert_eq!(left, 0),
                    Verdict::Over => prop_assert!(left > 0),
                }
                prop_assert!(of.spacing() <= MOST * ONE && of.held() <= 65_535 * ONE);
                if since >= MOST {
                    let verdict = of.judge(&mut sketch, apart(0), left);
                    prop_assert_ne!(verdict, Verdict::Over);
                    if verdict == Verdict::Pass {
                        left -= 1;
                        since = 0;
                    }
                }
            }
        }
    }
}

/// One sends a thousand times as much as the other, whose frames are too rare for what is held to be learnt.
#[test]
fn one_rare_sender_beside_a_loud_one_finds_room() {
    let (mut of, mut sketch) = (Fair::default(), Sketch::default());
    let (mut left, mut rare, mut lost) = (0, 0, 0);
    for poll in 0..20_000u32 {
        let now = 1 + poll / 1000;
        // The program reads 30 of its 256 places in each poll's time, and 60 frames come.
        let free = (left + 30).min(256);
        left = of.poll(&mut sketch, left, Room { given: free, free, whole: 256 }, now);
        for frame in 0..60 {
            let sender = if frame == 59 && poll % 17 == 0 { 2 } else { 1 };
            let _ = of.is_quiet(sender);
            let passes = !of.leaves(sender, left)
                && of.judge(&mut sketch, hash(7, now, 0, sender), left) == Verdict::Pass;
            left -= u32::from(passes);
            // Who is loud is known by then.
            if sender == 2 && poll > 100 {
                (rare, lost) = (rare + 1, lost + u32::from(!passes));
            }
        }
    }
    assert!(rare > 1000 && lost * 100 <= rare, "{lost} of {rare} lost");
}

/// A flood that its program reads: room was short once, and then short turns hand up all that comes, since there is room for more. With
/// the last places kept out of each turn's quota the loud sender would get half of it for ever.
#[test]
fn a_short_turn_gives_the_loud_sender_its_quota() {
    let (mut of, mut sketch) = (Fair::default(), Sketch::default());
    let (quota, mut left, mut held, mut lost) = (16, 0, 256, 0);
    for poll in 0..5000u32 {
        let now = 1 + poll / 1000;
        let free = 256 - held;
        left = of.poll(&mut sketch, left, Room { given: free, free, whole: 256 }, now);
        left = of.within(left, quota);
        assert!(left <= quota + 8);
        for _ in 0..quota {
            let _ = of.is_quiet(1);
            let passes =
                !of.leaves(1, left) && of.judge(&mut sketch, hash(7, now, 0, 1), left) == Verdict::Pass;
            (left, held) = (left - u32::from(passes), held + u32::from(passes));
            lost += u32::from(!passes && poll > 100);
        }
        // Faster than it comes, by one packet a poll.
        held = held.saturating_sub(quota + 1);
    }
    assert_eq!(lost, 0);
}

#[test]
fn of_a_small_buffer_nothing_is_kept() {
    let (mut of, mut sketch) = (Fair::default(), Sketch::default());
    for poll in 0..1000 {
        let mut left = of.poll(&mut sketch, 0, Room { given: 5, free: 5, whole: 15 }, 1 + poll / 1000);
        for _ in 0..60 {
            let _ = of.is_quiet(1);
            assert!(!of.leaves(1, left));
            left -= u32::from(of.judge(&mut sketch, hash(7, 1, 0, 1), left) == Verdict::Pass);
        }
    }
}
