//! Cannot flake: nothing but virtual time.

use super::*;

/// A scenario with two arms, a panel of each kind, hogs, and trials whose random numbers differ.
const TEXT: &str = r#"
about = "parts"
requirements = ["MR-24"]
machine = "mogul96"
load = "50ms"
trials = 3

[settings]
jitter = "50 %"

[sweep]
offered = [1000, 4000, 8000]

[[arm]]
name = "one"
role = "stock"

[[arm]]
name = "two"
role = "shown"
settings = { quota = 5 }
"#;

fn plan() -> Plan {
    let scenario =
        Texts { name: "parts".into(), path: "parts.toml".into(), text: TEXT.into(), ..Texts::default() };
    let command = "weir sim run parts.toml".into();
    Plan { command, scenario, sets: Vec::new(), kinds: None, arms: None, seed: 3, strict: false }
}

fn part(plan: &Plan, index: u32, of: u32) -> Shard {
    let stop = AtomicBool::new(false);
    Shard::run(plan.clone(), Part { index, of }, 2, &stop, &|_| {}).unwrap().unwrap()
}

/// As a file.
fn stored(shard: &Shard) -> Shard {
    Shard::parse(&serde_json::to_vec(shard).unwrap()).unwrap()
}

fn whole(plan: &Plan) -> String {
    let mut ran = crate::run(&plan.scenario().unwrap(), &plan.options(2), &AtomicBool::new(false), &|_| {});
    ran.document.command = Some(plan.command.clone());
    ran.document.to_json().unwrap()
}

#[test]
fn any_number_of_parts_gives_the_bytes_of_one_run() {
    let plan = plan();
    let whole = whole(&plan);
    // More parts than trials too: some are empty then.
    for of in [1, 2, 3, 7, 18, 25] {
        let mut shards: Vec<(String, Shard)> =
            (0..of).map(|i| (format!("{i}.json"), stored(&part(&plan, i, of)))).collect();
        // In any order of the files.
        shards.rotate_left(of as usize / 2);
        assert_eq!(merge(shards).unwrap().document.to_json().unwrap(), whole, "{of} parts");
    }
}

#[test]
fn a_part_that_is_missing_twice_there_or_of_another_run_is_named() {
    let plan = plan();
    let shards: Vec<Shard> = (0..3).map(|i| part(&plan, i, 3)).collect();
    let named = |list: &[&Shard]| -> Vec<(String, Shard)> {
        list.iter().enumerate().map(|(i, s)| (format!("{i}.json"), (*s).clone())).collect()
    };
    let why = |list: &[&Shard]| merge(named(list)).unwrap_err();
    assert!(why(&[&shards[0], &shards[2]]).contains("no file has part 1/3; run it"));
    assert!(why(&[&shards[0], &shards[1], &shards[0]]).contains("2.json: part 0/3 again, as in 0.json"));
    assert!(why(&[]).contains("no file"));
    let other = Plan { command: "weir sim run parts.toml --seed 4".into(), seed: 4, ..plan.clone() };
    let text = why(&[&shards[0], &part(&other, 1, 3)]);
    assert!(text.contains("1.json: of another run than 0.json") && text.contains("--seed 4"), "{text}");
    assert!(why(&[&shards[0], &part(&plan, 1, 4)]).contains("in 4 parts, not 3"));
    let mut short = shards[1].clone();
    short.trials.pop();
    assert!(why(&[&shards[0], &short, &shards[2]]).contains("1.json: has 5 trials, not 6"));
}

#[test]
fn files_of_other_kinds_and_versions_are_told_as_such() {
    let shard = part(&plan(), 0, 2);
    let text = serde_json::to_string(&shard).unwrap();
    let why = |text: &str| Shard::parse(text.as_bytes()).unwrap_err();
    assert!(why("{\"schema\": \"weir.lab/1\"}").contains("schema is \"weir.lab/1\""));
    assert!(why("").contains("give files written by weir sim run --shard"));
    let version = format!("\"version\":\"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(why(&text.replace(&version, "\"version\":\"0.0.9\"")).contains("written by weir 0.0.9"));
    assert!(why(&text.replace("\"index\":0", "\"index\":2")).contains("no part of a run: 2/2"));
    assert!(why(&text.replace("\"plan\"", "\"plam\"")).contains("unknown field"));
}

#[test]
fn a_part_that_is_stopped_is_none() {
    let stop = AtomicBool::new(true);
    assert_eq!(Shard::run(plan(), Part { index: 0, of: 2 }, 1, &stop, &|_| {}), Ok(None));
}
