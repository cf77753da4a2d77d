//! The whole program from outside: what it prints where, and how it exits.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Exit code, standard output, standard error.
type Answer = (i32, String, String);

fn answer(output: Output) -> Answer {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("exit code"), text(output.stdout), text(output.stderr))
}

fn weir(words: &str) -> Answer {
    weir_args(&words.split_whitespace().collect::<Vec<_>>())
}

fn weir_args(args: &[&str]) -> Answer {
    let output = Command::new(WEIR).args(args).stdin(Stdio::null()).output();
    answer(output.expect("weir starts"))
}

/// Asserts exit code `code`, nothing on standard output, one line `error: TEXT` on standard error.
fn fails(answer: &Answer, code: i32, parts: &[&str]) {
    let (got, stdout, stderr) = answer;
    assert_eq!(*got, code, "{stderr}");
    assert_eq!(stdout, "");
    assert!(stderr.starts_with("error: ") && stderr.ends_with('\n'), "{stderr:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    parts.iter().for_each(|part| assert!(stderr.contains(part), "no {part:?} in {stderr}"));
}

/// The guard's own program answers as `weir guard` does, and is its keeper for nobody else.
#[test]
fn the_guard_is_a_program_of_its_own() {
    let guard = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir-guard")).args(words).stdin(Stdio::null()).output();
        answer(output.expect("weir-guard starts"))
    };
    fails(&guard(&["keeper", "--fd", "0"]), 2, &["--fd 0", "started by `weir guard` only"]);
    for words in [&["v0", "--quota", "15"][..], &["--nosuch"], &["weir-nosuch"], &["--color", "never"]] {
        let through = weir_args(&[&["guard"], words].concat());
        assert_eq!(guard(words), through);
        fails(&through, 2, &[]);
        // A global option may stand before the command.
        assert_eq!(weir_args(&[&["--color", "always", "guard"], &words[..words.len().min(1)]].concat()).0, 2);
    }
    let (code, help, _) = guard(&["--help"]);
    assert!(code == 0 && help.contains("see weir guard --help"), "{help}");
}

#[test]
fn bad_options_are_one_line_with_the_fix() {
    for (words, parts) in [
        ("guard v0 --reserve 0", ["--reserve 0: programs would get no CPU", "give 1 to 95"]),
        ("guard v0 --reserve 100", ["--reserve 100: packets would get no CPU", "give 1 to 95"]),
        ("guard v0 --reserve -1", ["--reserve -1: ", "give 1 to 95"]),
        ("guard v0 --reserve abc", ["--reserve abc: not a whole number", "give 1 to 95"]),
        ("guard v0 --quota 15", ["--quota 15: odd", "give 14 or 16"]),
        ("guard v0 --quota 0", ["--quota 0: out of range", "2 to 256"]),
        ("guard v0 --period 10", ["--period 10: no unit", "1ms to 100ms"]),
        ("guard v0 --period 101ms", ["--period 101ms: out of range", "1ms to 100ms"]),
        ("guard v0 --timeout 0ms", ["--timeout 0ms: out of range", "1ms to 1s"]),
        ("guard v0 --high 100", ["--high 100: out of range", "give 1 to 99"]),
        ("guard v0 --low 75", ["--low 75: not below the high water", "give 1 to 74"]),
        ("guard v0 --high 25", ["--high 25: not above the low water", "give 26 to 99"]),
        ("guard v0 --cpu 9-1", ["--cpu 9-1: not a list of CPUs", "as 0,2-3"]),
        ("guard v0 --cpu 8000", ["--cpu 8000: no such CPU is online", "choose from 0"]),
        ("guard v0 --mode pol", ["--mode pol: no such choice", "did you mean poll?"]),
        ("guard v0 --protect shh", ["--protect shh: unknown rule", "did you mean ssh?"]),
        ("guard v0 --resreve 20", ["--resreve: no such option", "did you mean --reserve?"]),
        ("guard v0 --reserve", ["--reserve PCT: the value is missing", "see weir guard -h"]),
        ("guard v0 --reserve 20 --reserve 30", ["--reserve is given twice", "give it once"]),
        ("guard v0 --status /nonexistent/x", ["its directory does not exist", "create it"]),
        ("guard v0 --config /nonexistent/x", ["/nonexistent/x: cannot be read", "give a TOML file"]),
        ("guard", ["guard: no interface", "as weir guard "]),
        ("guard weir-nosuch", ["weir-nosuch: no such interface", "; "]),
        ("guard lo", ["lo: loopback has no source to poll", "name a network interface"]),
        ("gaurd v0", ["gaurd: no such command", "did you mean guard?"]),
        ("teleport", ["teleport: no such command", "choose from check, watch"]),
        ("wacth", ["wacth: no such command", "did you mean watch?"]),
        ("watch weir-nosuch", ["weir-nosuch: no such interface", "; "]),
        ("watch --interval 5", ["--interval 5: no unit", "100ms to 60s"]),
        ("watch --replay /nonexistent", ["--replay /nonexistent: ", "No such file"]),
        ("watch --replay /dev/null --record x", ["exclude each other", "give one"]),
        ("watch --once --record /nonexistent/x", ["--record /nonexistent/x: ", "No such file"]),
        ("watch --web weir-nosuch", ["--web weir-nosuch: not an address", "as 127.0.0.1:9494"]),
        ("watch --metrics 127.0.0.1:", ["--metrics 127.0.0.1:: not an address", "as 127.0.0.1:9495"]),
        ("watch --once --web 0", ["exclude each other", "give one"]),
        ("watch --web 192.0.2.1:1", ["--web 192.0.2.1:1: not of this host alone", "give --token FILE"]),
        ("watch --web 192.0.2.1:1 --anyone", ["--web 192.0.2.1:1: Cannot assign", "another address or port"]),
        ("watch --web --token /nonexistent/x", ["--token /nonexistent/x: No such file", "first line"]),
        ("explain weir-nosuch", ["weir-nosuch: no such interface", "; "]),
        ("explain --for 1ms", ["--for 1ms: out of range", "500ms to 60s"]),
        ("screen --deny 10.0.0.1/8", ["--deny 10.0.0.1/8: has bits beyond", "give 10.0.0.0/8"]),
        ("screen --accept tcp/x", ["--accept tcp/x: not ports", "as 53 or 80,443,8000-8099"]),
        ("screen --count ssh", ["--count ssh: unknown term", "give any, PREFIX, src/PREFIX"]),
        ("screen --queue 3-1", ["--queue 3-1: from the larger", "give 1-3"]),
        ("screen --queue -1", ["--queue -1: not queues", "up to 64 as 0-3"]),
        ("screen --default drop", ["--default drop: no such choice", "choose from accept, deny"]),
        ("screen --batch 0", ["--batch 0: out of range", "give 1 to 256"]),
        ("screen --fail-closed --full accept", ["must not", "give one of them"]),
        ("screen --rules /nonexistent/x", ["/nonexistent/x: cannot be read", "give a file of rules"]),
        ("completions bash v0", ["v0: one too many", "see weir completions -h"]),
        ("place weir-nosuch", ["weir-nosuch: no such interface", "; "]),
        ("place --strategy afine", ["--strategy afine: no such choice", "did you mean affine?"]),
        ("place --strategy affine", ["--strategy affine brings programs", "--program"]),
        ("predict weir-nosuch", ["weir-nosuch: no such choice", "; "]),
        ("predict --for 10", ["--for 10: no unit", "1s to 10min"]),
        ("predict --rcvbuf 4G", ["--rcvbuf 4G: not a size", "512K or 4M"]),
        ("lab rn", ["rn: no such command", "did you mean run?"]),
        ("lab run", ["NAME is missing", "see weir lab run -h"]),
        ("lab run livelock-upd", ["lab run livelock-upd: no such choice", "did you mean livelock-udp?"]),
        ("lab run livelock-udp --arms wier", ["--arms wier: no such choice", "did you mean weir?"]),
        ("lab run livelock-udp --hogs 0,17", ["--hogs 17: out of range", "give 0 to 16"]),
        ("lab run livelock-udp --consumer bind", ["--consumer bind: no such choice", "udp-sink, nsd"]),
        ("lab run livelock-udp --multiples 0", ["--multiples 0: not a multiple", "give 0.001 to 1000"]),
        ("lab run livelock-udp --json /nonexistent/x", ["its directory does not exist", "create it"]),
        ("lab run livelock-udp --html /", ["/: is a directory", "give a file"]),
        ("lab show /nonexistent", ["/nonexistent: ", "give a file written by weir lab run --json"]),
        ("lab compare /dev/null /dev/null", ["/dev/null:1:", "give a file written by weir lab run --json"]),
        ("lab run onset --arms weir", ["--arms has no effect on it; leave it out", "livelock-udp, "]),
        ("lab run fairness --hogs 1", ["--hogs has no effect on it", "it is for livelock-udp"]),
        ("lab run no-harm --multiples 1", ["--multiples has no effect on it", "control-traffic"]),
        ("lab run mlfrr --base-pps 1000", ["--base-pps has no effect on it", "below-saturation"]),
        ("lab run quota --kind hung", ["--kind has no effect on it", "it is for innocents"]),
        ("lab run innocents --kind hug", ["--kind hug: no such kind", "there are reader, hung, closed-port"]),
        ("lab run quota --rcvbuf 512K", ["--rcvbuf has no effect on it", "it is for livelock-udp"]),
        (
            "lab run quota --backend sim --repeat 2",
            ["--repeat has no effect on it", "--arms, --hogs, --seed"],
        ),
        ("lab run livelock-udp --repeat 0", ["--repeat 0: out of range", "give 1 to 99"]),
        ("lab run livelock-udp --duration 1h", ["--duration 1h: not a time", "50ms to 60s"]),
        (
            "lab run onset --backend sim",
            ["is not simulated", "nearest is weir sim run livelock-udp --set on="],
        ),
        ("sim rn", ["rn: no such command", "did you mean run?"]),
        ("sim run", ["NAME|FILE is missing", "see weir sim run -h"]),
        ("sim run quoat", ["quoat: no such choice", "did you mean quota?"]),
        ("sim run quota --arms quota-6", ["--arms quota-6: no such choice", "did you mean quota-"]),
        ("sim run quota --set rnig=1", ["--set rnig: no such setting", "did you mean \"ring\"?"]),
        ("sim run quota --set ring=0", ["--set ring=0: out of range", "give 1 to 4096"]),
        ("sim run quota --set ring", ["--set ring: not a setting", "give KEY=VALUE"]),
        ("sim run quota --jobs 0", ["--jobs 0: out of range", "give 1 to 256"]),
        ("sim run quota --json /nonexistent/x", ["its directory does not exist", "create it"]),
        ("sim run /nonexistent.toml", ["/nonexistent.toml: cannot be read", "give a TOML file"]),
        ("sim show quoat", ["quoat: no such choice", "did you mean quota?"]),
        ("man /nonexistent", ["/nonexistent: no such directory", "mkdir -p /nonexistent"]),
        ("completions tcsh", ["tcsh: no such choice", "choose from bash"]),
    ] {
        fails(&weir(words), 2, &parts);
    }
}

#[test]
fn errors_do_not_carry_escape_sequences() {
    let (code, _, stderr) = weir_args(&["guard", "v\u{1b}[31m0"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("0: no such interface") && !stderr.contains('\u{1b}'), "{stderr:?}");
}

#[test]
fn bad_configuration_shows_its_place() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("guard.toml");
    for (text, place, fix) in [
        ("quota = 16\n\nreserve = 120\n", ":3:11: reserve 120: ", "give 1 to 95"),
        ("hgih = 80\n", ":1:1: unknown key \"hgih\"; ", "did you mean \"high\"?"),
        ("high = 60\nlow = 60\n", ":2:7: low 60: ", "give 1 to 59"),
        ("interfaces = [\"lo\"]\n", ":1:15: lo: ", "name a network interface"),
        ("reserve = = 1\n", ":1:", "="),
    ] {
        std::fs::write(&path, text).expect("file");
        let file = path.to_str().expect("UTF-8");
        let (code, stdout, stderr) = weir_args(&["guard", "--config", file]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{text}: {stderr}");
        let lines: Vec<&str> = stderr.lines().collect();
        assert_eq!(lines.len(), 4, "{stderr}");
        assert!(lines[0].starts_with(&format!("error: {file}{place}")) && lines[0].contains(fix), "{stderr}");
        // The caret stands under the column that the first line names.
        let column: usize =
            lines[0][7 + file.len()..].split(':').nth(2).expect("column").parse().expect("number");
        let margin = lines[2].find("| ").expect("margin") + 2;
        assert_eq!(lines[3].find('^'), Some(margin + column - 1), "{stderr}");
    }
}

#[test]
fn a_wrong_rule_of_a_file_shows_its_place() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("screen.rules");
    let file = path.to_str().expect("UTF-8");
    std::fs::write(&path, "# the outside\naccept udp/53\ndeny  src/10.0.0.1/8 tcp\n").expect("file");
    let (code, stdout, stderr) = weir_args(&["screen", "--rules", file]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    let expected = format!(
        "error: {file}:3:7: has bits beyond its prefix; give 10.0.0.0/8\n  |\n\
         3 | deny  src/10.0.0.1/8 tcp\n  |       ^^^^^^^^^^^^^^\n"
    );
    assert_eq!(stderr, expected);
}

#[test]
fn a_screen_that_is_only_planned_shows_its_rules_and_the_line_of_the_firewall() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("screen.rules");
    std::fs::write(&path, "deny 2001:db8::/32 # no\ndefault deny\n").expect("file");
    let file = path.to_str().expect("UTF-8");
    let dry =
        ["screen", "--dry-run", "--queue", "2-3", "--rules", file, "--count", "udp", "--accept", "udp/53"];
    let (code, text, stderr) = weir_args(&dry);
    assert_eq!((code, stderr.as_str()), (0, ""));
    for part in [
        "   1  count   udp\n   2  accept  udp/53\n   3  deny    2001:db8::/32\n      deny    all others\n",
        "add rule inet weir_screen forward queue num 2-3 bypass'",
        "iptables -I FORWARD -j NFQUEUE --queue-balance 2:3 --queue-bypass",
        "nft delete table inet weir_screen",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let (_, closed, _) = weir("screen --dry-run --fail-closed");
    assert!(closed.contains("queue num 0'") && !closed.contains("bypass"), "{closed}");
}

/// Every visible command with its subcommands, from the help itself.
fn commands() -> Vec<Vec<String>> {
    let names = |path: &[&str]| -> Vec<String> {
        let (code, text, _) = weir_args(&[path, &["-h"]].concat());
        assert_eq!(code, 0);
        let listed = text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let first = |line: &str| line.trim_start().split(' ').next().unwrap_or_default().to_owned();
        listed
            .map(first)
            .filter(|name| name.chars().all(|c| c.is_ascii_lowercase()) && name != "weir" && name != "sudo")
            .collect()
    };
    let mut list = vec![Vec::new()];
    for name in names(&[]) {
        if name == "lab" {
            names(&["lab"]).into_iter().for_each(|sub| list.push(vec![name.clone(), sub]));
        }
        list.push(vec![name]);
    }
    list
}

#[test]
fn help_fits_80_columns_and_has_an_example() {
    let commands = commands();
    assert!(commands.len() >= 11, "{commands:?}");
    for path in commands {
        for flag in ["-h", "--help"] {
            let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
            args.push(flag);
            let (code, text, stderr) = weir_args(&args);
            assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
            let wide = text.lines().find(|line| line.chars().count() > 80);
            assert!(wide.is_none() && !text.contains('\u{1b}'), "{args:?}: {wide:?}");
            assert!(text.contains("Usage: weir"), "{text}");
        }
    }
    let (_, short, _) = weir("guard -h");
    let (_, long, _) = weir("guard --help");
    assert!(!short.contains("--reserve 50") && long.contains("weir guard eth0 --reserve 50"));
    assert_eq!(weir("help guard").1, long);
}

#[test]
fn without_a_command_the_help_goes_to_standard_error() {
    let (code, stdout, stderr) = weir("");
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert_eq!(stderr, weir("--help").1);
    assert_eq!(weir("lab").0, 2);
}

#[test]
fn version() {
    assert_eq!(weir("--version"), (0, format!("weir {}\n", env!("CARGO_PKG_VERSION")), String::new()));
}

#[test]
fn a_closed_pipe_is_no_error() {
    for words in ["--help", "completions bash", "guard --help", "lab list"] {
        let (reader, writer) = nix::unistd::pipe().expect("pipe");
        drop(reader);
        let mut command = Command::new(WEIR);
        command.args(words.split(' ')).stdout(Stdio::from(writer)).stderr(Stdio::piped());
        let output = command.output().expect("weir starts");
        assert_eq!(answer(output), (0, String::new(), String::new()), "{words}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let output = Command::new(WEIR).arg("--help").stdout(OwnedFd::from(full)).stderr(Stdio::piped()).output();
    fails(&answer(output.expect("weir starts")), 1, &["No space left"]);
}

#[test]
fn completions_and_man_pages_cover_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (code, script, _) = weir(&format!("completions {shell}"));
        assert_eq!(code, 0);
        for word in ["guard", "reserve", "status", "undo", "livelock"].iter().take(4) {
            assert!(script.contains(word), "{shell}: {word}");
        }
        for hidden in ["keeper", "ablate", "journal-dir"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
    let dir = tempfile::tempdir().expect("directory");
    let (code, _, stderr) = weir_args(&["man", dir.path().to_str().expect("UTF-8")]);
    assert_eq!(code, 0, "{stderr}");
    for path in commands() {
        let name = [&["weir".to_owned()], path.as_slice()].concat().join("-");
        let page = std::fs::read_to_string(dir.path().join(format!("{name}.1"))).expect(&name);
        assert!(page.starts_with(".ie") && page.contains(".SH NAME"), "{name}");
    }
    let guard = std::fs::read_to_string(dir.path().join("weir-guard.1")).expect("page");
    assert!(guard.contains("\\-\\-reserve") && !guard.contains("ablate"));
}

/// Answers `connections` connections to `guard-PID.sock` in `dir` with `text`.
fn fake_guard(dir: &Path, pid: u32, text: &'static str, connections: usize) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(dir.join(format!("guard-{pid}.sock"))).expect("socket");
    std::thread::spawn(move || {
        for stream in listener.incoming().take(connections) {
            stream.expect("connection").write_all(text.as_bytes()).expect("written");
        }
    })
}

fn status(dir: &Path, more: &[&str]) -> Answer {
    let dir = dir.to_str().expect("UTF-8");
    weir_args(&[&["status", "--control-dir", dir], more].concat())
}

#[test]
fn status_without_a_guard_says_so() {
    let dir = tempfile::tempdir().expect("directory");
    assert_eq!(status(dir.path(), &[]), (0, none(dir.path()), String::new()));
    let absent = dir.path().join("none");
    assert_eq!(status(&absent, &[]).1, none(&absent));
    assert_eq!(status(dir.path(), &["--json"]), (0, String::new(), none(dir.path())));
}

/// What `weir status` says where no guard of `dir` runs: where it looked, and what to do.
fn none(dir: &Path) -> String {
    format!("no guard is running: none answers in {}; to start one: sudo weir guard IF\n", dir.display())
}

const STATUS: &str = r#"{"schema":"weir.status/1","pid":7,"interval_s":1.0,"interfaces":[{"name":"v0","state":"guarded",
"offered":1000000,"delivered":400000,"drops":{"ring":600000},"sources":[{"name":"v0/0","cpu":1,"mode":"poll"}]}],"later":1}"#;

#[test]
fn status_shows_each_guard_and_passes_json_through() {
    let dir = tempfile::tempdir().expect("directory");
    let guards = [fake_guard(dir.path(), 7, STATUS, 3), fake_guard(dir.path(), 8, STATUS, 3)];
    let (code, table, stderr) = status(dir.path(), &[]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(table.matches("1000.0 offered = 400.0 delivered + 600.0 ring").count(), 2, "{table}");
    assert!(!table.contains('\u{1b}'));
    // A pipe gets colours only when asked.
    assert!(status(dir.path(), &["--color", "always"]).1.contains("\u{1b}[36mpoll"));
    let (code, lines, _) = status(dir.path(), &["--json"]);
    assert_eq!((code, lines.lines().count()), (0, 2));
    for line in lines.lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!((&value["schema"], &value["later"]), (&"weir.status/1".into(), &1.into()));
    }
    guards.into_iter().for_each(|guard| guard.join().expect("served"));
}

#[test]
fn status_names_a_dead_and_a_silent_guard() {
    let dir = tempfile::tempdir().expect("directory");
    drop(UnixListener::bind(dir.path().join("guard-7.sock")).expect("socket"));
    let (code, stdout, stderr) = status(dir.path(), &[]);
    assert_eq!((code, stdout), (0, none(dir.path())));
    assert!(stderr.contains("pid 7") && stderr.contains("sudo weir undo"), "{stderr}");
    fake_guard(dir.path(), 8, "{\"sch", 1);
    let (code, _, stderr) = status(dir.path(), &[]);
    assert_eq!(code, 1);
    assert!(stderr.contains("guard pid 8 does not answer"), "{stderr}");
}

#[test]
fn status_of_an_interface_asks_for_its_guard_alone() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().expect("directory");
    // It accepts connections, as one that is stopped does, and never answers.
    let silent = UnixListener::bind(dir.path().join("guard-8.sock")).expect("socket");
    let netns = std::fs::metadata("/proc/self/ns/net").expect("namespace").ino();
    let mine = STATUS.replace("\"pid\":7", &format!("\"pid\":7,\"netns\":{netns}"));
    let guard = fake_guard(dir.path(), 7, mine.leak(), 4);
    assert_eq!(status(dir.path(), &[]).0, 1, "all are asked, and one is silent");
    let (code, table, stderr) = status(dir.path(), &["v0"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(table.matches("1000.0 offered").count(), 1, "{table}");
    // The file's interfaces, as a probe gives them.
    let file = dir.path().join("weir.toml");
    std::fs::write(&file, "interfaces = [\"v0\"]\n").expect("file");
    let config = ["--json", "--config", file.to_str().expect("UTF-8")];
    assert_eq!(status(dir.path(), &config).0, 0);
    // The one that is asked for may be the silent one.
    let (code, _, stderr) = status(dir.path(), &["v0", "v1"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("v1: no guard answers; guard pid 8"), "{stderr}");
    guard.join().expect("served");
    drop(silent);
    // No guard, and one of the same name in another namespace.
    let (code, _, stderr) = status(dir.path(), &config);
    assert_eq!(code, 1);
    assert!(stderr.contains("v0: no guard is running; to start one: sudo weir guard v0"), "{stderr}");
    let elsewhere = fake_guard(dir.path(), 9, STATUS, 1);
    assert_eq!(status(dir.path(), &["v0"]).0, 1);
    elsewhere.join().expect("served");
    std::fs::write(&file, "").expect("file");
    assert_eq!(status(dir.path(), &config).0, 2);
}

#[test]
fn undo_with_nothing_to_do() {
    let dir = tempfile::tempdir().expect("directory");
    for journals in [dir.path().to_owned(), dir.path().join("none")] {
        let journals = journals.to_str().expect("UTF-8");
        assert_eq!(
            weir_args(&["undo", "--journal-dir", journals]),
            (0, "nothing to undo\n".into(), String::new())
        );
        let (code, json, _) = weir_args(&["undo", "--json", "--dry-run", "--journal-dir", journals]);
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((code, &value["schema"], &value["dry_run"]), (0, &"weir.undo/1".into(), &true.into()));
        // Words that were pasted along with the command must not read as if everything had been looked at.
        let (code, said, aside) = weir_args(&["undo", "puts", "it", "back", "--journal-dir", journals]);
        assert_eq!((code, said.as_str()), (0, "nothing to undo for puts, it, back\n"));
        assert!(aside.contains("no interface and no journal is called puts; without names"), "{aside}");
    }
}

/// A copy of the program that every user can run.
struct Public {
    dir: tempfile::TempDir,
}

impl Public {
    fn new() -> Public {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("mode");
        for (program, name) in [(WEIR, "weir"), (env!("CARGO_BIN_EXE_weir-guard"), "weir-guard")] {
            std::fs::copy(program, dir.path().join(name)).expect("copy");
        }
        Public { dir }
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join("weir")
    }

    /// Runs the copy without privileges: as nobody if this test is root, else as it is.
    fn run(&self, args: &[&str]) -> Answer {
        let mut command = Command::new(self.program());
        if nix::unistd::geteuid().is_root() {
            command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(self.program());
        }
        answer(command.args(args).stdin(Stdio::null()).output().expect("weir starts"))
    }
}

/// Some interface here that could be guarded; nothing is done to it, because the program has no privilege.
fn interface(test: &str) -> Option<String> {
    let (_, json, _) = weir("check --json");
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let name = report["interfaces"][0]["interface"]["name"].as_str().map(str::to_owned);
    if name.is_none() {
        eprintln!("skipped: {test} needs a network interface");
    }
    name
}

#[test]
fn without_privileges_guard_and_lab_name_what_is_missing() {
    let Some(name) = interface("without_privileges_guard_and_lab_name_what_is_missing") else { return };
    let public = Public::new();
    fails(
        &public.run(&["guard", &name]),
        3,
        &["guard", "CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON", "run it with sudo"],
    );
    fails(&public.run(&["lab", "run", "livelock-udp", "--quick"]), 3, &["root", "run it with sudo"]);
    // What is wrong anyway is said first, with the same words as to root.
    fails(&public.run(&["guard", &name, "--reserve", "0"]), 2, &["--reserve 0"]);
    fails(&public.run(&["guard", "lo"]), 2, &["loopback"]);
    let (code, text, _) = public.run(&["check", &name]);
    assert_eq!(code, 0);
    assert!(
        text.lines().last().is_some_and(|line| line.ends_with("probes need root: sudo weir check")),
        "{text}"
    );
    fails_after_report(&public.run(&["check", &name, "--require", "guard"]));
}

/// `--require` prints the report and then the error.
fn fails_after_report((code, stdout, stderr): &Answer) {
    assert_eq!((*code, stderr.lines().count()), (3, 1), "{stderr}");
    assert!(stdout.contains("guard") && stderr.contains("does not work in full"), "{stdout}{stderr}");
}

#[test]
fn capabilities_count_and_not_the_user_id_root() {
    if !testkit::root_or_skip("capabilities_count_and_not_the_user_id_root") {
        return;
    }
    let Some(name) = interface("capabilities_count_and_not_the_user_id_root") else { return };
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", WEIR, "guard", &name]);
    let output = command.stdin(Stdio::null()).output().expect("setpriv starts");
    fails(&answer(output), 3, &["CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON"]);
}

#[test]
fn check_in_a_namespace_without_interfaces_root() {
    if !testkit::root_or_skip("check_in_a_namespace_without_interfaces_root") {
        return;
    }
    let ns = testkit::NetNs::new("cli");
    let (code, text, _) = ns.run(|| weir("check"));
    assert_eq!(code, 0);
    assert_eq!(text.lines().last(), Some("verdict: none, no interface here can be guarded"), "{text}");
    fails_after_report_none(&ns.run(|| weir("check --require guard")));
    fails(&ns.run(|| weir("guard eth0")), 2, &["eth0: no such interface"]);
    ns.sh("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
    ns.sh("ip", &["link", "add", "b0", "type", "bridge"]);
    let (code, text, _) = ns.run(|| weir("check v0"));
    assert!(code == 0 && text.contains("v0        veth, "), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("verdict: ")), "{text}");
    assert!(!text.contains("drops of veth"), "{text}");
    let (code, all, _) = ns.run(|| weir("check v0 --all"));
    assert!(code == 0 && all.contains("drops of veth") && all.contains("used for"), "{all}");
    assert!([text, all].iter().all(|text| text.lines().all(|line| line.chars().count() <= 80)));
    fails(&ns.run(|| weir("guard v0 nosuch")), 2, &["nosuch: no such interface; choose from ", "v0"]);
    fails(&ns.run(|| weir("guard v0 v0")), 2, &["v0: named twice; name it once"]);
    fails(&ns.run(|| weir("guard b0")), 2, &["b0: this bridge has no device below it"]);
    let json = ns.run(|| weir("check v0 --json")).1;
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&value["schema"], &value["interfaces"][0]["interface"]["name"]),
        (&"weir.check/1".into(), &"v0".into())
    );
}

/// Cannot flake: interfaces stay as they were made.
#[test]
fn what_is_below_a_bridge_is_looked_at_with_it_root() {
    if !testkit::root_or_skip("what_is_below_a_bridge_is_looked_at_with_it_root") {
        return;
    }
    let ns = testkit::NetNs::new("cli");
    ns.sh("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
    ns.sh("ip", &["link", "add", "b0", "type", "bridge"]);
    ns.sh("ip", &["link", "set", "v0", "master", "b0", "up"]);
    ns.sh("ip", &["link", "set", "b0", "up"]);
    let (code, text, stderr) = ns.run(|| weir("watch b0 --once --json --interval 100ms"));
    assert_eq!(code, 0, "{stderr}");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let interfaces = value["interfaces"].as_array().expect("interfaces");
    let shown = |name: &str| interfaces.iter().find(|i| i["name"] == name).map(|i| i["stacked"] == true);
    assert_eq!((interfaces.len(), shown("v0"), shown("b0")), (2, Some(false), Some(true)), "{text}");
    let missing = value["missing"].as_array().expect("missing");
    let passed_on = "frames passed on below IP by b0, which are unaccounted";
    assert!(missing.iter().any(|line| line == passed_on), "{missing:?}");
    let (_, text, stderr) = ns.run(|| weir("explain b0 --for 500ms"));
    let names = text.split(':').next().unwrap_or_default();
    assert!(names.contains("b0") && names.contains("v0"), "{text} {stderr}");
    // The model is that of the ring below.
    let (_, _, stderr) = ns.run(|| weir("predict b0 --for 5s"));
    assert!(stderr.contains("v0: ") && !stderr.contains("b0: "), "{stderr}");
}

fn fails_after_report_none((code, _, stderr): &Answer) {
    assert_eq!(*code, 3);
    assert!(stderr.contains("no interface here can be guarded"), "{stderr}");
}

/// A result with two arms whose goodput differs by `factor`.
fn result(dir: &Path, name: &str, factor: f64) -> PathBuf {
    let point = |multiple: f64, share: f64| {
        let offered = 100_000.0 * multiple;
        serde_json::json!({"multiple": multiple, "offered_pps": offered, "goodput_pps": offered * share, "sent": 100,
            "delivered": 100, "drops": {}, "unaccounted": 0})
    };
    let arm = |name: &str, role: &str, share: f64| serde_json::json!({"name": name, "role": role, "points": [point(0.5, 1.0), point(1.0, 1.0), point(10.0, share)]});
    let document = serde_json::json!({"schema": "weir.lab/1", "experiment": "livelock-udp", "backend": "kernel",
        "base": {"arm": "stock-rps", "mlfrr_pps": 100_000.0},
        "arms": [arm("stock-rps", "stock", 0.001), arm("weir", "weir", 0.1 * factor)]});
    let path = dir.join(name);
    std::fs::write(&path, document.to_string()).expect("file");
    path
}

#[test]
fn results_are_shown_and_compared() {
    let dir = tempfile::tempdir().expect("directory");
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (a, b) = (result(dir.path(), "a.json", 1.0), result(dir.path(), "b.json", 0.3));
    let (a, b) = (a.to_string_lossy(), b.to_string_lossy());
    let (code, table, stderr) =
        weir_args(&["lab", "show", &a, "--html", &file("a.html"), "--svg", &file("a.svg")]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(table.contains("stock-rps") && table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(std::fs::read_to_string(file("a.html")).expect("html").contains("<html"));
    assert!(std::fs::read_to_string(file("a.svg")).expect("svg").contains("<svg"));
    assert_eq!(weir_args(&["lab", "compare", &a, &a]).0, 0);
    let (code, table, _) = weir_args(&["lab", "compare", &a, &b]);
    assert_eq!(code, 1, "{table}");
}

/// A run of the lab that is kept against one of the simulator, whose time is virtual: it cannot flake.
#[test]
fn panels_of_lab_and_simulator_are_compared() {
    let lab =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/innocents-timer-2026-11-25.json");
    let lab = lab.to_string_lossy();
    let dir = tempfile::tempdir().expect("directory");
    let sim = dir.path().join("sim.json").to_string_lossy().into_owned();
    let run = ["sim", "run", "innocents", "--kind", "hung", "--arms", "weir", "--json", &sim];
    assert_eq!(weir_args(&run).0, 0);
    let (code, text, _) = weir_args(&["lab", "compare", &lab, &sim]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    // At 3 M/s the simulator's innocents lose less than five points less.
    let answered = lines.iter().position(|line| *line == "answered beside hung, %").expect("a panel");
    assert_eq!(
        lines[answered + 1].split_whitespace().collect::<Vec<_>>(),
        ["flood,", "k/s", "300", "1000", "3000"]
    );
    assert!(
        lines[answered + 2].starts_with("weir              A ") && lines[answered + 3].contains(" B "),
        "{text}"
    );
    assert_eq!(lines[answered + 4], "agrees: within 5 points", "{text}");
    assert!(text.contains("panels only in A: answered beside reader, "), "{text}");
    let differ = lines.iter().filter(|line| line.contains("DIFFER: within")).count();
    let last = lines.last().expect("a line");
    assert_eq!(code, i32::from(differ > 0));
    assert!(differ == 0 || last.starts_with(&format!("{differ} of 4 panels differ: ")), "{text}");
    // Without an arm in common nothing is said to agree.
    let (code, text, _) = weir_args(&["lab", "compare", &lab, &sim, "--arms", "stock-timer"]);
    assert!(code == 1 && text.contains("nothing was compared"), "{text}");
    fails(
        &weir_args(&["lab", "compare", &lab, &sim, "--arms", "wier"]),
        2,
        &["--arms wier: ", "did you mean weir?"],
    );
    fails(
        &weir_args(&["sim", "run", "innocents", "--kind", "hug"]),
        2,
        &["--kind hug: no such kind", "did you mean \"hung\"?"],
    );
}

#[test]
fn experiments_are_listed_for_people_and_programs() {
    let (code, json, _) = weir("lab list --json");
    let list: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let names: Vec<&str> =
        list["experiments"].as_array().expect("list").iter().filter_map(|e| e["name"].as_str()).collect();
    assert!(code == 0 && names.contains(&"livelock-udp"), "{json}");
    let text = weir("lab list").1;
    for name in names {
        assert!(text.lines().any(|line| line.starts_with(name)), "{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

/// A scenario in a file, with the lines that matter in the middle.
fn scenario_file(dir: &Path, machine: &str, lines: &str) -> String {
    let path = dir.join("mine.toml");
    let text = format!("about = \"x\"\nmachine = \"{machine}\"\n{lines}\n[[arm]]\nname = \"one\"\n");
    std::fs::write(&path, text).expect("file");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_bad_scenario_shows_its_place() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("mine.trace"), "0us 60\n9us 60\n8us 60\n").expect("file");
    let sweep = "[sweep]\noffered = [1000]";
    for (machine, lines, place, fix) in [
        (
            "mogul96",
            format!("pakets = 9\n{sweep}"),
            "mine.toml:3:1: unknown key",
            "did you mean \"packets\"?",
        ),
        ("mogul96", format!("packets = 1000000000000\n{sweep}"), "mine.toml:3:11: packets", "give 1 to"),
        ("mogul96", "packets = 9\n[sweep]\noffered = [0]".into(), "mine.toml:5:12: offered", "give 1 to"),
        (
            "mogul96",
            format!("load = \"1s\"\n[settings]\nquota = 0\n{sweep}"),
            "mine.toml:5:9: quota",
            "give 1",
        ),
        (
            "activo07",
            format!("load = \"1s\"\n[settings]\ncpus = 0\n{sweep}"),
            "mine.toml:5:8: cpus",
            "give 2 to 16",
        ),
        ("beihang13", "load = \"1s\"\n[sweep]\ncores = [0]".into(), "mine.toml:5:10: cores", "give 1 to"),
        (
            "mogul96",
            format!("load = \"1s\"\ntrace = \"mine.trace\"\n{sweep}"),
            "mine.trace:3:1: ",
            "sort the lines",
        ),
    ] {
        let file = scenario_file(dir.path(), machine, &lines);
        let json = dir.path().join("result.json");
        let (code, stdout, stderr) =
            weir_args(&["sim", "run", &file, "--json", json.to_str().expect("UTF-8")]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        let first = stderr.lines().next().unwrap_or_default();
        assert!(first.contains(place) && first.contains(fix), "{stderr}");
        assert!(!json.exists(), "{stderr}");
    }
}

/// True once the process has a handler for SIGINT; it runs, since nothing else ends it before.
fn catches_interrupt(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("SigCgt");
    let mask = u64::from_str_radix(caught.trim(), 16).expect("mask");
    mask & 1 << (nix::libc::SIGINT - 1) != 0
}

/// Ctrl-C during a run of many points: what is done is written, and says that it is partial.
#[test]
fn an_interrupted_simulation_writes_what_is_done() {
    let dir = tempfile::tempdir().expect("directory");
    let rates: Vec<String> = (0..1000).map(|n| (1000 + 10 * n).to_string()).collect();
    let lines = format!("load = \"100s\"\n[sweep]\noffered = [{}]", rates.join(", "));
    let file = scenario_file(dir.path(), "mogul96", &lines);
    let (json, html) = (dir.path().join("part.json"), dir.path().join("part.html"));
    for attempt in 0..12 {
        let child = Command::new(WEIR)
            .args(["sim", "run", &file, "--jobs", "1", "--json"])
            .arg(&json)
            .arg("--html")
            .arg(&html)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("weir starts");
        while !catches_interrupt(child.id()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(100 << attempt));
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("signal");
        let (code, stdout, stderr) = answer(child.wait_with_output().expect("weir ends"));
        assert_eq!(code, 1, "{stderr}");
        if stderr.contains("before the first trial") {
            // Too early for this machine: nothing is claimed, nothing is written.
            assert!(!json.exists() && stdout.is_empty(), "{stdout}{stderr}");
            continue;
        }
        assert!(stderr.contains("interrupted: partial, "), "{stderr}");
        assert!(stdout.contains("partial: "), "{stdout}");
        let result: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).expect("result")).expect("JSON");
        let done = result["partial"]["done"].as_u64().expect("done");
        let points = result["arms"][0]["points"].as_array().expect("points");
        assert!(done > 0 && done < 1000 && points.len() as u64 == done, "{done}");
        assert_eq!(result["partial"]["total"], 1000);
        assert!(std::fs::read_to_string(&html).expect("html").contains("Partial"));
        return;
    }
    panic!("no trial was done in six minutes");
}

#[test]
fn the_simulator_gives_the_same_bytes_with_any_number_of_threads() {
    let dir = tempfile::tempdir().expect("directory");
    let json = |jobs: &str| {
        let path = dir.path().join(jobs);
        let file = path.to_str().expect("UTF-8");
        let (code, _, stderr) =
            weir_args(&["sim", "run", "screen", "--arms", "polling", "--jobs", jobs, "--json", file]);
        assert_eq!(code, 0, "{stderr}");
        std::fs::read(path).expect("file")
    };
    assert_eq!(json("1"), json("3"));
}

/// Every experiment of the lab runs in the simulator, or one line says which scenario is nearest.
#[test]
fn every_experiment_of_the_lab_has_an_answer_of_the_simulator() {
    let (_, list, _) = weir("lab list --json");
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let (_, scenarios, _) = weir("sim list --json");
    let dir = tempfile::tempdir().expect("directory");
    let experiments = list["experiments"].as_array().expect("experiments");
    assert!(experiments.len() > 10);
    let mut run = 0;
    for name in experiments.iter().map(|experiment| experiment["name"].as_str().expect("name")) {
        let file = dir.path().join(name);
        let mut words = vec!["lab", "run", name, "--backend", "sim", "--quick", "--hogs", "0"];
        words.extend(["--arms", "weir", "--json", file.to_str().expect("UTF-8")]);
        if name == "cycle-limit" {
            words[9] = "budget-50";
        }
        let (code, table, stderr) = weir_args(&words);
        if code == 2 {
            assert_eq!((table.as_str(), stderr.lines().count()), ("", 1), "{stderr}");
            let nearest = stderr.split("nearest is weir sim run ").nth(1).expect("nearest");
            let nearest = nearest.split_whitespace().next().expect("a scenario");
            assert!(scenarios.contains(&format!("\"name\":\"{nearest}\"")), "{nearest}");
            continue;
        }
        // A claim may fall short; a checker's fault says so.
        assert!(code <= 1 && !stderr.contains("error"), "{name}: {stderr}");
        let result: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).expect("result")).expect("JSON");
        assert_eq!((result["experiment"].as_str(), result["backend"].as_str()), (Some(name), Some("sim")));
        assert!(table.contains("weir") || table.contains("budget-50"), "{table}");
        run += 1;
    }
    assert!(run >= 6, "{run}");
}

#[test]
fn a_scenario_that_is_shown_can_be_run() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("copy.toml");
    let (code, text, _) = weir("sim show screen");
    assert_eq!(code, 0);
    std::fs::write(&path, text).expect("file");
    let (code, table, stderr) =
        weir_args(&["sim", "run", path.to_str().expect("UTF-8"), "--arms", "polling", "--strict"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(table.contains("polling"), "{table}");
}
