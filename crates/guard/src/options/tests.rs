use super::rows::{KEYS, ROWS};
use super::*;
use crate::program::Program;
use clap::{CommandFactory, Parser};
use std::path::Path;

fn host_with(names: &[&str]) -> Host {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let choices = names.clone();
    let check = move |name: &str| match name {
        "lo" => Err(DiscoverError::Loopback { name: name.into() }),
        _ if names.iter().any(|here| here == name) => Ok(()),
        _ => Err(DiscoverError::NoSuchInterface { name: name.into(), choices: names.clone() }),
    };
    Host { check: Box::new(check), choices, cpus: set("0-1") }
}

fn host() -> Host {
    host_with(&["eth0", "eth1"])
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn args(words: &str) -> GuardArgs {
    Program::try_parse_from(["weir-guard"].into_iter().chain(words.split_whitespace())).unwrap().args
}

fn merged(words: &str) -> anyhow::Result<GuardOptions> {
    GuardOptions::resolve(args(words), &host())
}

fn error(words: &str) -> String {
    format!("{:#}", merged(words).unwrap_err())
}

/// Writes `text` as guard.toml and answers the words `--config PATH`.
fn config(dir: &tempfile::TempDir, text: &str) -> String {
    let path = dir.path().join("guard.toml");
    std::fs::write(&path, text).unwrap();
    format!("--config {}", path.display())
}

#[test]
fn defaults() {
    let opts = merged("eth0").unwrap();
    assert_eq!(opts.interfaces, ["eth0"]);
    assert_eq!((opts.reserve, opts.quota, opts.high, opts.low), (20, 32, 75, 25));
    assert_eq!(opts.lent_quota, 128);
    assert_eq!((opts.period, opts.timeout), (Period::Auto, Duration::from_millis(10)));
    assert_eq!((opts.mode, opts.cpu, opts.status), (Mode::Auto, None, None));
    assert_eq!(opts.journal_dir, PathBuf::from("/run/weir"));
    assert!(!opts.dry_run && !opts.quiet && opts.ablate.is_empty() && opts.sched == Sched::Auto);
}

/// The text of a file of the tree that is made, or of which a part is made: with WEIR_WRITE=1 it is written.
fn is_made(path: &str, make: impl Fn(&str) -> String) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let text = std::fs::read_to_string(&file).unwrap();
    let made = make(&text);
    if std::env::var_os("WEIR_WRITE").is_some() {
        std::fs::write(&file, &made).unwrap();
    } else {
        assert!(
            text == made,
            "{path}: run WEIR_WRITE=1 cargo test -p weir-guard options, it would be\n{made}"
        );
    }
}

fn need_restart() -> Vec<&'static str> {
    ROWS.iter().filter(|row| row.restart).map(|row| row.name).collect()
}

#[test]
fn the_installed_file_is_made_of_the_rows() {
    is_made("packaging/weir.toml", |_| {
        let mut made = format!(
            "# weir guard: options of the services weir-guard@IF. `man weir-guard` explains each.\n\
             #\n\
             # Take the # away to change a line. The command line wins. After a change:\n\
             #   systemctl reload weir-guard@eth0\n\
             # A file with an error changes nothing; the journal says which line it is. What a reload cannot\n\
             # change ({}) is named there too and needs a restart.\n",
            need_restart().join(", ")
        );
        for row in ROWS {
            let comment = crate::out::wrap(row.text, 2);
            made.push('\n');
            comment.lines().for_each(|line| made += &format!("# {}\n", line.trim()));
            made += &format!("#{} = {}\n", row.name, row.toml);
        }
        made
    });
}

/// The help's lines are the table's.
#[test]
fn the_page_of_the_guard_has_the_options_of_the_help() {
    is_made("docs/guard.md", |page| {
        let (before, rest) =
            page.split_once("| option | default | what it sets |\n| --- | --- | --- |\n").unwrap();
        let (_, after) = rest.split_once("| `--color").unwrap();
        let guard = Program::command();
        let shown = |arg: &&clap::Arg| !arg.is_hide_set() || ROWS.iter().any(|row| row.name == arg.get_id());
        let mut table = String::from("| option | default | what it sets |\n| --- | --- | --- |\n");
        for arg in
            guard.get_arguments().filter(shown).filter(|arg| !arg.is_positional() && arg.get_id() != "color")
        {
            let help = arg.get_help().unwrap().to_string();
            let (text, default) = help.rsplit_once(" [").unwrap_or((&help, ""));
            let names =
                if arg.get_action().takes_values() { arg.get_value_names().unwrap_or_default() } else { &[] };
            let value: String = names.iter().map(|name| format!(" {name}")).collect();
            let short = arg.get_short().map(|c| format!(", `-{c}`")).unwrap_or_default();
            let default = default.trim_end_matches(']');
            table += &format!("| `--{}{value}`{short} | {default} | {text} |\n", arg.get_long().unwrap());
        }
        format!("{before}{table}| `--color{after}")
    });
}

#[test]
fn the_page_about_the_file_has_every_key_and_what_needs_a_restart() {
    let page = include_str!("../../../../docs/operations.md");
    for key in KEYS {
        // One that is best left out is shown as a comment.
        let shown = ["    ", "    # "].map(|before| format!("\n{before}{key} = "));
        assert!(
            shown.iter().any(|line| page.contains(line)),
            "docs/operations.md has no {key} in its example"
        );
    }
    let words: Vec<&str> = page.split_whitespace().collect();
    let names: Vec<String> = need_restart().iter().map(|name| format!("`{name}`")).collect();
    let (last, others) = names.split_last().unwrap();
    let sentence = format!("{} and {last} need a restart.", others.join(", "));
    assert!(words.join(" ").contains(&sentence), "docs/operations.md does not say: {sentence}");
}

/// The file that is installed: as it is, and with every option in force.
#[test]
fn the_installed_file_shows_every_default() {
    let text = include_str!("../../../../packaging/weir.toml");
    let options = |line: &&str| line.starts_with('#') && !line.starts_with("# ") && line.len() > 1;
    let shown: Vec<&str> = text.lines().filter(options).map(|line| &line[1..]).collect();
    let dir = tempfile::tempdir().unwrap();
    let default = merged("eth0").unwrap();
    let installed = merged(&format!("eth0 {}", config(&dir, text))).unwrap();
    let uncommented = merged(&config(&dir, &shown.join("\n"))).unwrap();
    // These two have no default of their own.
    assert_eq!((uncommented.cpu, uncommented.status), (Some(set("0")), Some(StatusTo::Stdout)));
    assert_eq!((&installed.cpu, &installed.status), (&None, &None));
    let uncommented = merged(&config(&dir, &shown.join("\n"))).unwrap();
    for opts in [installed, uncommented] {
        assert_eq!((opts.interfaces, opts.reserve, opts.quota), (vec!["eth0".into()], RESERVE, QUOTA));
        assert_eq!((opts.high, opts.low, opts.timeout), (default.high, default.low, default.timeout));
        assert_eq!((opts.period, opts.mode), (default.period, default.mode));
    }
}

#[test]
fn command_line_wins_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(
        &dir,
        "interfaces = [\"eth1\"]\nreserve = 50\nquota = 8\nhigh = 60\ncpu = \"1\"\nstatus = \"-\"",
    );
    let opts = merged(&file).unwrap();
    assert_eq!((opts.interfaces, opts.reserve, opts.quota, opts.high), (vec!["eth1".into()], 50, 8, 60));
    assert_eq!(opts.lent_quota, 8, "a quota that was given holds always");
    assert_eq!((opts.cpu, opts.status), (Some(set("1")), Some(StatusTo::Stdout)));
    let opts = merged(&format!("eth0 --reserve 30 --cpu 0 {file}")).unwrap();
    assert_eq!((opts.interfaces, opts.reserve, opts.quota), (vec!["eth0".into()], 30, 8));
    assert_eq!(opts.cpu, Some(set("0")));
}

#[test]
fn interfaces_that_cannot_be_guarded() {
    assert_eq!(error("eth9"), "eth9: no such interface; choose from eth0, eth1");
    assert_eq!(error("lo"), "lo: loopback has no source to poll; name a network interface");
    assert_eq!(error("eth0 eth1 eth0"), "eth0: named twice; name it once");
    assert_eq!(error(""), "guard: no interface; name one, as weir guard eth0");
    let dir = tempfile::tempdir().unwrap();
    let err = error(&config(&dir, "interfaces = [\"eth0\", \"eth9\"]"));
    assert!(err.contains("guard.toml:1:23: eth9: no such interface; choose from eth0, eth1\n"), "{err}");
}

#[test]
fn number_of_interfaces_is_bounded() {
    let names: Vec<String> = (0..=INTERFACES_MAX).map(|i| format!("v{i}")).collect();
    let host = host_with(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let all = GuardOptions::resolve(args(&names.join(" ")), &host).unwrap_err().to_string();
    assert!(all.starts_with("more than 64 interfaces"), "{all}");
    assert!(GuardOptions::resolve(args(&names[..INTERFACES_MAX].join(" ")), &host).is_ok());
}

#[test]
fn water_marks_in_the_wrong_order() {
    assert_eq!(error("eth0 --low 75"), "--low 75: not below the high water, 75; give 1 to 74");
    assert_eq!(
        error("eth0 --high 20"),
        "--high 20: not above the low water, 25; give 26 to 99, or a lower --low"
    );
    assert_eq!(
        error("eth0 --high 1 --low 1"),
        "--low 1: nothing is below the high water, 1; give --high 2 or more"
    );
    let dir = tempfile::tempdir().unwrap();
    let err = error(&format!("eth0 {}", config(&dir, "high = 60\nlow = 60")));
    assert!(err.contains("guard.toml:2:7: low 60: not below the high water, 60; give 1 to 59\n"), "{err}");
    // The command line is at fault even if the other mark stands in the file.
    let err = error(&format!("eth0 --low 70 {}", config(&dir, "high = 60")));
    assert!(err.starts_with("--low 70: not below"), "{err}");
}

#[test]
fn mode_shed_takes_nothing_over() {
    let opts = merged("eth0 --mode shed").unwrap();
    assert!(opts.mode == Mode::Shed && !opts.mode.takes_over());
}

#[test]
fn rules_add_to_the_default_and_none_empties_it() {
    let default = merged("eth0").unwrap();
    assert_eq!(default.protect, policy::classes::DEFAULT);
    let more = merged("eth0 --protect ntp,src/10.0.0.0/8 --protect ssh").unwrap();
    assert_eq!(more.protect[12..], ["ntp", "src/10.0.0.0/8", "ssh"]);
    assert_eq!(more.classes.len(), default.classes.len() + 3, "ssh is there already, ntp has two matches");
    let only = merged("eth0 --protect none,tcp/22").unwrap();
    assert_eq!((only.protect, only.classes.len()), (vec!["tcp/22".to_owned()], 2));
    assert!(merged("eth0 --protect none").unwrap().classes.is_empty());
    let dir = tempfile::tempdir().unwrap();
    let file = config(&dir, "protect = [\"none\", \"src 10.0.0.0/8\"]");
    assert_eq!(merged(&format!("eth0 {file}")).unwrap().protect, ["src 10.0.0.0/8"]);
    assert_eq!(merged(&format!("eth0 --protect none {file}")).unwrap().protect, Vec::<String>::new());
}

#[test]
fn wrong_rules_have_a_place_and_a_fix() {
    assert_eq!(error("eth0 --protect shh"), "--protect shh: unknown rule; did you mean ssh?");
    let dir = tempfile::tempdir().unwrap();
    let err = error(&format!("eth0 {}", config(&dir, "protect = [\"arp\", \"shh\"]")));
    assert!(err.contains("guard.toml:1:19: protect \"shh\": unknown rule; did you mean ssh?\n"), "{err}");
    let many: Vec<String> = (1..=64).map(|n| format!("udp/{n}")).collect();
    let err = error(&format!("eth0 --protect {}", many.join(",")));
    assert!(err.starts_with("--protect udp/2") && err.contains("the table of 64 matches is full"), "{err}");
}

#[test]
fn cpus_must_be_online() {
    assert_eq!(error("eth0 --cpu 0,7"), "--cpu 7: no such CPU is online; choose from 0-1");
    assert_eq!(merged("eth0 --cpu 0-1").unwrap().cpu, Some(set("0-1")));
}

#[test]
fn status_target() {
    assert_eq!(merged("eth0 --status -").unwrap().status, Some(StatusTo::Stdout));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.jsonl");
    assert_eq!(
        merged(&format!("eth0 --status {}", file.display())).unwrap().status,
        Some(StatusTo::File(file))
    );
    assert!(error(&format!("eth0 --status {}", dir.path().display())).contains("is a directory"));
    assert!(error("eth0 --status /nonexistent/x").contains("does not exist"));
    // The guard's own directory is there when it writes, on a host where no guard has run yet too.
    let own = format!("--control-dir {0}/none --status {0}/none/s.jsonl", dir.path().display());
    assert!(merged(&format!("eth0 {own}")).is_ok());
}

#[test]
fn reload_keeps_the_command_line_and_waits_for_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(&dir, "reserve = 50\nquota = 8");
    let opts = merged(&format!("eth1 --quota 4 {file}")).unwrap();
    config(&dir, "reserve = 60\nquota = 32\nmode = \"poll\"");
    let gone = host_with(&[]);
    let new = opts.reload(&gone).unwrap();
    assert_eq!((new.reserve, new.quota, new.interfaces.as_slice()), (60, 4, opts.interfaces.as_slice()));
    assert_eq!(opts.need_restart(&new), ["mode"]);
    config(&dir, "reserve = 0");
    assert!(opts.reload(&gone).unwrap_err().to_string().contains("guard.toml:1:11"));
}

#[test]
fn reload_of_a_file_without_interfaces_keeps_those_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(&dir, "interfaces = [\"eth1\"]\nreserve = 50");
    let opts = merged(&file).unwrap();
    config(&dir, "reserve = 60");
    let new = opts.reload(&host()).unwrap();
    assert_eq!((new.interfaces.as_slice(), new.reserve), (opts.interfaces.as_slice(), 60));
    assert_eq!(opts.need_restart(&new), [""; 0]);
    // A start has none to keep.
    assert!(merged(&file).unwrap_err().to_string().contains("no interface"));
}
