//! What is wrong with a scenario is said with file, line and the fix, before anything runs.

use sim::Scenario;

const GOOD: &str = r#"about = "for the test"
machine = "mogul96"
packets = 1000

[settings]
kernel = "polling"

[sweep]
offered = [1000, 2000]

[[arm]]
name = "one"
settings = { quota = 5 }
"#;

fn parse(text: &str, sets: &[(String, String)], trace: &str) -> Result<Scenario, String> {
    let beside = |file: &str| match file {
        "x.trace" => Ok(trace.to_owned()),
        _ => Err("cannot be read".to_owned()),
    };
    Scenario::parse("x", "dir/x.toml", text, sets, &beside).map_err(|fault| fault.to_string())
}

fn fault(from: &str, to: &str, trace: &str) -> String {
    assert!(GOOD.contains(from));
    let text = GOOD.replacen(from, to, 1);
    parse(&text, &[], trace).err().unwrap_or_else(|| panic!("accepted: {to} {trace}"))
}

#[test]
fn a_good_one_is_accepted() {
    let scenario = parse(GOOD, &[], "").unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!((scenario.arms.len(), scenario.trials), (1, 1));
}

#[test]
fn wrong_ones_name_place_and_fix() {
    for (from, to, place, fix) in [
        ("packets = 1000", "pakets = 1000", "3:1", "did you mean \"packets\"?"),
        ("packets = 1000", "packets = 0", "3:11", "give 1 to 1000000000"),
        ("packets = 1000", "packets = 1_000_000_000_000", "3:11", "give 1 to 1000000000"),
        ("packets = 1000", "packets = 100_000_000", "3:11", "give fewer packets"),
        (
            "packets = 1000",
            "packets = 1000\ntrace = \"y.trace\"",
            "4:9",
            "give a text file beside the scenario",
        ),
        ("packets = 1000", "packets = 1000\ntrace = \"../x.trace\"", "4:9", "give one without a slash"),
        ("packets = 1000", "load = \"2h\"", "3:8", "with a unit"),
        ("packets = 1000", "load = \"0s\"", "3:8", "give more than 0s"),
        ("packets = 1000", "", "1:1", "load = \"2s\" or packets = 10000"),
        ("packets = 1000", "packets = 9\nload = \"1s\"", "4:8", "give one"),
        ("\"mogul96\"", "\"mogul69\"", "2:11", "did you mean \"mogul96\"?"),
        ("\"polling\"", "\"poling\"", "6:10", "choose from unmodified"),
        ("kernel = \"polling\"", "inputs = 0", "6:10", "give 1 to 16"),
        ("kernel = \"polling\"", "kernl = \"polling\"", "6:1", "did you mean \"kernel\"?"),
        ("kernel = \"polling\"", "wire = \"0ns\"", "6:8", "give 1ns to 1s"),
        ("[1000, 2000]", "[1000, 0]", "9:18", "give 1 to 1000000000"),
        ("[1000, 2000]", "[]", "9:11", "give 1 to 1024"),
        ("offered = [1000, 2000]", "quota = [5, \"many\"]", "9:13", "or \"inf\""),
        ("name = \"one\"", "name = \"\"", "11:", "give name"),
        ("{ quota = 5 }", "{ quota = 5, feedback = true }", "11:", "set screend = true"),
        ("{ quota = 5 }", "{ low = \"90 %\" }", "11:", "give a lower one"),
        ("name = \"one\"", "name = \"one\"\nrole = \"stck\"", "13:8", "did you mean \"stock\"?"),
        ("[[arm]]", "[[marks]]\narm = \"two\"\n\n[[arm]]", "12:7", "choose from one"),
        ("about = ", "about = = ", "1:", ""),
        ("[[arm]]", "[[kind]]\n\n[[arm]]", "11:", "give name"),
        (
            "[[arm]]",
            "[[kind]]\nname = \"a\"\nsettings = { wier = \"1us\" }\n\n[[arm]]",
            "13:14",
            "did you mean",
        ),
        (
            "[[arm]]",
            "[[kind]]\nname = \"a\"\n\n[[panel]]\ntitle = \"t\"\nvalue = \"v\"\nkind = \"b\"\n\n[[arm]]",
            "17:8",
            "did you mean \"a\"?",
        ),
    ] {
        let fault = fault(from, to, "");
        assert!(fault.starts_with(&format!("dir/x.toml:{place}")), "{to}: {fault}");
        assert!(fault.contains(fix), "{to}: {fault}");
    }
}

#[test]
fn settings_of_the_command_line_are_checked_too() {
    for (key, value, fix) in [
        ("qouta", "5", "--set qouta: no such setting; did you mean \"quota\"?"),
        ("quota", "0", "--set quota=0: out of range; give 1 to inf"),
        ("wire", "6", "--set wire=6: not a time with a unit"),
        ("feedback", "true", "set screend = true"),
    ] {
        let sets = [(key.to_owned(), value.to_owned())];
        let fault = parse(GOOD, &sets, "").err().expect("fault");
        assert!(fault.contains(fix), "{fault}");
    }
}

#[test]
fn a_trace_that_is_wrong_names_its_line() {
    for (trace, place, fix) in [
        ("", "1:1", "give two frames at different times"),
        ("1us 60\n", "1:7", "give two frames"),
        ("1us 60\n1us 60\n", "2:7", "give two frames at different times"),
        ("# c\n\n1us 60\n2 60\n", "4:1", "not a time with a unit"),
        ("1us 60\n2us\n", "2:1", "write it as 67.2us 60"),
        ("1us 60\n2us 60 9\n", "2:1", "write it as 67.2us 60"),
        ("1us 60\n2us 0\n", "2:1", "give 1 to 65535"),
        ("1us 60\n2us 65536\n", "2:1", "give 1 to 65535"),
        ("1us 60\n2us -60\n", "2:1", "give 1 to 65535"),
        ("1us 60\n9us 60\n8us 60\n", "3:1", "sort the lines by time"),
        ("1us 60\n3601s 60\n", "2:1", "give at most 3600s"),
    ] {
        let fault = fault("packets = 1000", "packets = 1000\ntrace = \"x.trace\"", trace);
        assert!(fault.starts_with(&format!("dir/x.trace:{place}")), "{trace:?}: {fault}");
        assert!(fault.contains(fix), "{trace:?}: {fault}");
    }
    let long: String = (0..=sim::source::FRAMES_MAX).map(|n| format!("{n}ns 60\n")).collect();
    let fault = fault("packets = 1000", "packets = 1000\ntrace = \"x.trace\"", &long);
    assert!(fault.contains(":1000001:1: more than 1000000 frames"), "{fault}");
}

/// A proxy's clients wait for answers: nothing can be replayed at it.
#[test]
fn a_trace_needs_a_machine_with_sources() {
    let text = GOOD
        .replace("mogul96", "beihang13")
        .replace("packets", "trace = \"x.trace\"\npackets")
        .replace("kernel = \"polling\"", "cores = 2");
    let fault = parse(&text, &[], "0us 60\n1us 60\n").err().expect("fault");
    assert!(fault.contains("x.toml:3:9: trace: no packets come to this machine from outside"), "{fault}");
}

/// Every file beside the code is in the program, by its name, and the documentation tells what it shows.
#[test]
fn every_scenario_is_shipped_and_documented() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_to_string(root.join("../../docs/simulator.md")).expect("docs/simulator.md");
    let words: Vec<&str> =
        docs.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|w| !w.is_empty()).collect();
    let files = std::fs::read_dir(root.join("scenarios")).expect("scenarios");
    let names: Vec<String> = files
        .map(|file| file.expect("a file").file_name().to_string_lossy().into_owned())
        .filter_map(|file| file.strip_suffix(".toml").map(str::to_owned))
        .collect();
    assert_eq!(names.len(), sim::scenario::names().len());
    for name in names {
        assert!(sim::scenario::names().contains(&name.as_str()), "{name} is not in the program");
        assert!(words.contains(&name.as_str()), "docs/simulator.md does not name {name}");
    }
}

/// A scenario of days is refused as a whole, though each of its trials is allowed.
#[test]
fn all_trials_together_are_bounded() {
    let text =
        GOOD.replace("packets = 1000", "trials = 60\npackets = 900_000_000").replace("[1000", "[900_000_000");
    let text = text.replace("2000]", "1_000_000_000]");
    let fault = parse(&text, &[], "").err().expect("fault");
    assert!(fault.starts_with("dir/x.toml:4:11: 108000000000 packets in all trials"), "{fault}");
    assert!(fault.contains("give fewer arms, values or trials"), "{fault}");
    assert!(parse(&text.replace("trials = 60", "trials = 2"), &[], "").is_ok());
}

/// X-01: the bytes of a result are the same on every machine, so that nothing on its way may call a mathematical library, whose
/// last digit differs. Drawing, and tests themselves, may.
#[test]
fn no_mathematical_library_is_in_the_path_of_a_result() {
    const CALLS: [&str; 14] = [
        ".ln(",
        ".exp(",
        ".exp2(",
        ".log(",
        ".log2(",
        ".log10(",
        ".powf(",
        ".sin(",
        ".cos(",
        ".tan(",
        ".cbrt(",
        ".hypot(",
        ".tanh(",
        ".mul_add(",
    ];
    const MAY: [&str; 2] = ["figures.rs", "stats_tests.rs"];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories: Vec<_> =
        ["src", "../results/src", "../policy/src"].map(|path| root.join(path)).into();
    let mut files = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if !name.ends_with(".rs") || MAY.contains(&name.as_str()) {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a file");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let call = CALLS.iter().find(|call| code.contains(**call));
            assert_eq!(call, None, "{}", path.display());
            files += 1;
        }
    }
    assert!(files > 80, "{files}");
}

/// Two kinds of load, of which the first has another panel too.
const KINDS: &str = r#"
[[kind]]
name = "short"
settings = { burst = 1 }

[[kind]]
name = "long"
settings = { burst = 8 }

[[panel]]
title = "goodput of {kind}"
value = "goodput"

[[panel]]
title = "of the first"
value = "goodput"

[[panel]]
title = "of the long ones"
value = "goodput"
kind = "long"
"#;

#[test]
fn a_sweep_is_run_for_each_kind_of_load() {
    let scenario = parse(&format!("{GOOD}{KINDS}"), &[], "").unwrap_or_else(|fault| panic!("{fault}"));
    let titles = |scenario: &Scenario| {
        let options = sim::Options { strict: true, ..sim::Options::default() };
        let ran = sim::run(scenario, &options, &std::sync::atomic::AtomicBool::new(false), &|_| ());
        assert!(ran.faults.is_empty(), "{:?}", ran.faults);
        let marks = ran.document.panels.iter().flat_map(|panel| &panel.lines).map(|line| line.marks.len());
        assert!(marks.into_iter().all(|marks| marks == 2));
        ran.document.panels.iter().map(|panel| panel.title.clone()).collect::<Vec<_>>()
    };
    let all = ["goodput of short", "goodput of long", "of the first", "of the long ones"];
    assert_eq!(titles(&scenario), all);
    let mut one = scenario.clone();
    one.only(&["short".to_owned()]).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(titles(&one), ["goodput of short", "of the first"]);
    let none = one.only(&["lnog".to_owned()]).expect_err("no such kind");
    assert!(none.to_string().contains("--kind lnog: no such kind"), "{none}");
}

#[test]
fn what_tells_kinds_apart_is_not_set_for_all() {
    let set = |key: &str| parse(&format!("{GOOD}{KINDS}"), &[(key.to_owned(), "2".to_owned())], "");
    assert!(set("quota").is_ok());
    let fault = set("burst").err().unwrap_or_default();
    assert!(fault.contains("--set burst: in it the kinds of load differ; give --kind LIST"), "{fault}");
}
