//! Machines, workloads and policies drawn from seeds, with every checker on. `WEIR_SIM_SEED=N cargo test -p weir-sim
//! --test swarm` repeats one seed, `WEIR_SIM_SEEDS=N` in front of it runs the first N.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use sim::engine::Rng;
use sim::machine::{self, Input, Machine};
use sim::settings::Given;
use std::sync::atomic::AtomicBool;

/// Seeds of one run; `WEIR_SIM_SEEDS=N` runs so many.
const SEEDS: u64 = 300;
/// Machines at which something was wrong, as the swarm prints them, with the seed.
const FAULTS: [(u64, &str); 9] = [
    // The clock's empty passes took more than the limit, and input never came on again.
    (
        1258,
        "bsd kernel=clocked user=true inputs=2 first_share=95 % high=75 % low=49 % threshold=5 % tick_samples=2 \
         poll_every=0.1ms completion=polled system=0ns jitter=100 % on=0s offered=8000",
    ),
    // Two CPU-NETs at one interface overtook each other.
    (
        4431,
        "active arrangement=variant-2 cpus=4 net=3 nics=1 locks=0 buffer_lines=4 dip=0 % burst=20 offered=40000",
    ),
    // The set shrank and grew again while interrupts kept a CPU-NET's loop from ending: programs that had come to that CPU
    // meanwhile never ran again.
    (
        4047,
        "active arrangement=resize ring=1 writeback=3 writeback_delay=5ms miss=2us hold=5us locks=10 buffer_lines=0 \
         period=1ms periods=3 low=25 % dip=20 % jitter=100 % offered=160000",
    ),
    (
        4910,
        "active arrangement=resize cpus=16 net=15 nics=3 writeback=64 writeback_delay=5ms miss=0ns hold=5us locks=10 \
         period=1ms periods=1 low=25 % burst=1 offered=160000",
    ),
    // A thousand clients that send again in step, an accept queue of one: a client never gave up.
    (
        4697,
        "proxy cores=5 sibling=22 % rps_backlog=1000 poll_frames=1 irq_gap=0ns accept=per-core backlog=1 place=spill \
         busy_low=1 steal=false steal_local=5 migrate=1ms hot_share=100 % workers=1 think=0s links=1 syn_rto=20ms \
         hold_files=6.9us hold_syn=0us hold_jitter=0 % lines_lock=5 offered=14000",
    ),
    // Rings that a limit of 5 % takes longer to empty than the queues had time to drain.
    (
        381,
        "bsd kernel=device-level screend=false user=true inputs=5 quota=1 high=100 % low=25 % hang=false threshold=5 % \
         period=1ms tick_samples=2 poll_every=0.1ms ring=256 tx_ring=64 screen_queue=1 ip_queue=1 output_queue=1 \
         jitter=0 % burst=40 on=0s offered=8000",
    ),
    (
        3330,
        "bsd kernel=device-level user=true inputs=16 quota=5 high=75 % low=0 % timeout=0.2ms hang=false threshold=5 % \
         period=10ms poll_every=0.1ms completion=polled ring=256 screen_queue=32 ip_queue=50 output_queue=50 \
         jitter=30 % off=3ms offered=8000",
    ),
    (
        4809,
        "bsd user=true inputs=16 first_share=50 % quota=5 feedback=true high=75 % timeout=20ms hang=false threshold=5 % \
         period=100ms poll_every=1ms ring=256 tx_ring=1 screen_queue=500 ip_queue=50 system=30ms on=0s offered=8000",
    ),
    (1, "bsd kernel=clocked user=true quota=20 output_queue=25 threshold=3 % poll_every=0.1ms offered=25600"),
];

fn pick<'a>(rng: &mut Rng, words: &[&'a str]) -> &'a str {
    words[rng.below(words.len() as u64) as usize]
}

/// Settings that are drawn; values that do not fit together are refused by the machine's own check and drawn again.
const BSD: &[(&str, &[&str])] = &[
    ("kernel", &["unmodified", "no-polling", "polling", "device-level", "clocked"]),
    ("screend", &["true", "false"]),
    ("user", &["true", "false"]),
    ("inputs", &["1", "2", "5", "16"]),
    ("first_share", &["0 %", "50 %", "95 %"]),
    ("quota", &["1", "5", "20", "inf"]),
    ("feedback", &["true", "false"]),
    ("high", &["50 %", "75 %", "100 %"]),
    ("low", &["0 %", "25 %", "49 %"]),
    ("timeout", &["0.2ms", "1ms", "20ms"]),
    ("hang", &["false", "false", "true"]),
    ("threshold", &["5 %", "50 %", "100 %"]),
    ("period", &["1ms", "10ms", "100ms"]),
    ("tick_samples", &["0", "0", "2"]),
    ("stall", &["0s", "0s", "1ms", "10ms"]),
    ("poll_every", &["0.1ms", "1ms", "10ms"]),
    ("completion", &["device", "below", "polled"]),
    ("ring", &["1", "8", "32", "256"]),
    ("tx_ring", &["1", "8", "64"]),
    ("screen_queue", &["1", "32", "500"]),
    ("ip_queue", &["1", "50"]),
    ("output_queue", &["1", "50"]),
    ("system", &["0ns", "30ms"]),
    ("jitter", &["0 %", "30 %", "100 %"]),
    ("burst", &["1", "1", "40"]),
    ("on", &["0s", "5ms"]),
    ("off", &["0s", "3ms"]),
];

const MODERN: &[(&str, &[&str])] = &[
    ("receive", &["stock", "threaded", "threaded-idle", "hop", "clocked", "weir", "weir", "weir"]),
    ("workload", &["udp", "udp", "router"]),
    ("hogs", &["0", "0", "1", "4"]),
    ("consumers", &["1", "2", "16"]),
    ("hang", &["false", "false", "true"]),
    ("first", &["0 %", "0 %", "90 %"]),
    ("protected", &["0", "0", "2000"]),
    ("refusals", &["0", "0", "2", "1000"]),
    ("lending", &["true", "true", "false"]),
    ("watched", &["false", "true"]),
    ("ring", &["2", "64", "256", "4096"]),
    ("socket", &["1", "16", "49", "240", "5000"]),
    ("moderation", &["0ns", "50us", "1ms"]),
    ("weight", &["1", "64", "256"]),
    ("softirq_restarts", &["0", "10"]),
    ("ksoftirqd_first", &["true", "false"]),
    ("slice", &["0.1ms", "2.8ms"]),
    ("cold", &["0ns", "1us"]),
    ("bounce", &["0ns", "8ns", "220ns"]),
    ("bulk", &["1", "16"]),
    ("arm", &["0ns", "12us"]),
    ("group_cpus", &["0", "1", "2"]),
    ("limit", &["0", "0", "100000"]),
    ("gather", &["0s", "20us"]),
    ("quota", &["2", "32", "256"]),
    ("polled", &["false", "false", "true"]),
    ("reserve", &["1 %", "20 %", "90 %"]),
    ("feedback", &["true", "false"]),
    ("budget", &["true", "false"]),
    ("warm_up", &["1ms", "20ms"]),
    ("burst", &["1", "1", "100"]),
    ("jitter", &["0 %", "50 %", "100 %"]),
];

const PROXY: &[(&str, &[&str])] = &[
    ("cores", &["1", "2", "5", "16", "64", "128"]),
    ("module", &["1", "2"]),
    ("sibling", &["0 %", "22 %", "100 %"]),
    ("steering", &["single", "rps", "rss", "flow-table"]),
    ("rss_queues", &["1", "16"]),
    ("rps_backlog", &["1", "10", "1000"]),
    ("ring", &["14", "64", "512"]),
    ("poll_frames", &["1", "12", "64"]),
    ("irq_gap", &["0ns", "3.4us", "50us"]),
    ("accept", &["global", "per-core", "per-core"]),
    ("backlog", &["1", "10", "511"]),
    ("place", &["own", "shortest-of-two", "spill"]),
    ("busy_high", &["1", "4", "50"]),
    ("busy_low", &["0", "1", "10"]),
    ("steal", &["true", "false"]),
    ("steal_local", &["1", "5"]),
    ("scan", &["1", "8"]),
    ("migrate", &["0s", "1ms", "10ms"]),
    ("outgoing", &["hash", "own-core"]),
    ("hot_share", &["0 %", "50 %", "100 %"]),
    ("workers", &["1", "3"]),
    ("workers_to", &["0", "127", "127", "127"]),
    ("clients", &["1", "30", "300"]),
    ("think", &["0s", "1ms"]),
    ("links", &["1", "3"]),
    ("rto", &["1ms", "20ms"]),
    ("syn_rto", &["1ms", "20ms"]),
    ("hold_files", &["0us", "6.9us"]),
    ("hold_syn", &["0us", "50us"]),
    ("hold_jitter", &["0 %", "100 %"]),
    ("lines_lock", &["0", "5", "500"]),
    ("locks", &["ticket", "queued"]),
];

const LINUX26: &[(&str, &[&str])] = &[
    ("protocol", &["udp", "tcp", "tcp"]),
    ("connections", &["1", "1", "5"]),
    ("nice", &["-15", "0", "19"]),
    ("jobs", &["0", "1", "10"]),
    ("ring", &["2", "64", "384"]),
    ("buffer", &["1", "40", "80"]),
    ("delay", &["0us", "250us", "5ms"]),
    ("udp_start", &["0ms", "150ms"]),
    ("udp_cold", &["0us", "5us"]),
    ("read_size", &["1", "6", "1000"]),
    ("rto", &["1ms", "200ms"]),
    ("threshold", &["2", "640", "inf"]),
    ("round", &["1", "300"]),
    ("restarts", &["1", "10"]),
    ("weight", &["1", "64"]),
    ("memory", &["65536", "262144"]),
    ("tcp_mem_pressure", &["100", "65536"]),
    ("tcp_mem_high", &["200", "98304"]),
    ("kill_after", &["1ms", "1s"]),
    ("stall_1", &["0s", "10ms"]),
    ("stall", &["1ms", "60ms"]),
    ("reclaim", &["0s", "1ms", "5ms"]),
    ("before", &["0", "0", "2"]),
    ("before_jobs", &["0", "4"]),
    ("weir", &["false", "true"]),
    ("feedback", &["true", "false"]),
    ("budget", &["10 %", "80 %", "100 %"]),
    ("quota", &["2", "32"]),
    ("burst", &["1", "50"]),
    ("jitter", &["0 %", "100 %"]),
];

const ACTIVE: &[(&str, &[&str])] = &[
    ("arrangement", &["affinity", "spread", "one-cpu", "variant-1", "variant-2", "resize", "resize"]),
    ("cpus", &["2", "4", "16"]),
    ("net", &["1", "3", "15"]),
    ("nics", &["1", "3", "20"]),
    ("ring", &["1", "256"]),
    ("writeback", &["1", "3", "64"]),
    ("writeback_delay", &["0us", "43us", "5ms"]),
    ("miss", &["0ns", "120ns", "2us"]),
    ("hold", &["0ns", "150ns", "5us"]),
    ("locks", &["0", "10"]),
    ("buffer_lines", &["0", "4", "64"]),
    ("period", &["1ms", "10ms"]),
    ("periods", &["1", "3"]),
    ("first", &["5 %", "40 %"]),
    ("low", &["1 %", "25 %"]),
    ("dip", &["0 %", "20 %", "100 %"]),
    ("burst", &["1", "20"]),
    ("jitter", &["0 %", "100 %"]),
];

fn draw(rng: &mut Rng) -> (String, Box<dyn Machine>, u64, u64) {
    loop {
        let (name, table, scale, load) = match rng.below(5) {
            0 => ("bsd", BSD, 1, 200_000_000),
            1 => ("modern", MODERN, 300, 20_000_000),
            2 => ("linux26", LINUX26, 5, 300_000_000),
            3 => ("active", ACTIVE, 20, 60_000_000),
            // Closed loops: the rate is theirs.
            _ => ("proxy", PROXY, 1, 40_000_000),
        };
        let mut machine = (machine::kind(name).expect("kind").new)();
        let mut text = name.to_string();
        for (key, values) in table {
            if rng.chance(2, 3) {
                let value = pick(rng, values);
                machine.set(key, &Given::word(value)).expect("a setting in its range");
                text += &format!(" {key}={value}");
            }
        }
        let offered = [50, 2_000, 8_000, 14_000][rng.below(4) as usize] * scale;
        if machine.check().is_ok() {
            return (format!("{text} offered={offered}"), machine, offered, load);
        }
    }
}

#[test]
fn nothing_is_lost_and_time_is_conserved_whatever_the_machine() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let one = number("WEIR_SIM_SEED");
    let all = number("WEIR_SIM_SEEDS").unwrap_or(SEEDS);
    let seeds = one.map_or(0..all, |seed| seed..seed + 1);
    let mut wrong = Vec::new();
    for seed in seeds {
        let mut rng = Rng::stream(seed, "swarm", 0);
        let (text, machine, offered, load) = draw(&mut rng);
        if one.is_some() {
            println!("{text}");
        }
        let faults = faults(machine.as_ref(), offered, load, seed);
        if !faults.is_empty() {
            wrong.push(format!("WEIR_SIM_SEED={seed}: {faults:?}\n  {text}"));
        }
    }
    assert!(wrong.is_empty(), "{} seeds:\n{}", wrong.len(), wrong.join("\n"));
}

/// What is wrong with two runs of the machine.
fn faults(machine: &dyn Machine, offered: u64, load: u64, seed: u64) -> Vec<String> {
    let stop = AtomicBool::new(false);
    let input = Input { offered, load, seed, strict: true, stop: &stop };
    let outcome = machine.run(&input);
    let mut faults = outcome.faults;
    if outcome.trial.unaccounted != 0 {
        faults.push(format!("{} unaccounted", outcome.trial.unaccounted));
    }
    let again = machine.run(&input);
    if again.trial != outcome.trial || again.events != outcome.events {
        faults.push("a second run differs".into());
    }
    faults
}

/// What was found once stays found, whatever the tables above draw.
#[test]
fn what_was_wrong_is_right() {
    for (seed, text) in FAULTS {
        let mut words = text.split(' ');
        let mut machine = (machine::kind(words.next().expect("kind")).expect("kind").new)();
        let mut offered = 0;
        // A share is written with a blank before its sign.
        for word in words.filter(|word| *word != "%") {
            let (key, value) = word.split_once('=').expect("key=value");
            let share = text.contains(&format!("{word} %"));
            let value = if share { format!("{value} %") } else { value.to_owned() };
            match key {
                "offered" => offered = value.parse().expect("a rate"),
                _ => machine.set(key, &Given::word(&value)).expect("a setting"),
            }
        }
        assert_eq!(faults(machine.as_ref(), offered, 200_000_000, seed), Vec::<String>::new(), "{text}");
    }
}
