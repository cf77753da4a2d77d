//! Rules about the tree itself, each with its reason in CONTRIBUTING.md.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of the longest source file.
const LINES_MAX: usize = 900;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("workspace")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|err| panic!("{path}: {err}"))
}

/// Every file of the tree as text, without what is built and what git keeps.
fn files() -> Vec<(PathBuf, String)> {
    let mut list = Vec::new();
    let mut directories = vec![root()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("directory") {
            let path = entry.expect("entry").path();
            let name = path.file_name().expect("name").to_string_lossy().into_owned();
            if path.is_symlink() || name == "target" || name == ".git" {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                list.push((path, text));
            }
        }
    }
    assert!(list.len() > 50, "only {} files found", list.len());
    list
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|extension| extensions.iter().any(|other| extension == *other))
}

#[test]
fn no_file_is_too_long() {
    let sources =
        files().into_iter().filter(|(path, _)| has_extension(path, &["rs", "c", "h", "sh", "css", "js"]));
    let long: Vec<String> = sources
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| format!("{}: {lines} lines, at most {LINES_MAX}", path.display()))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn nothing_is_killed_by_name_and_no_path_of_one_machine_is_written_down() {
    // Put together here, so that this file does not contain them.
    let banned = [["pk", "ill"].concat(), ["kill", "all"].concat(), ["/wo", "rk/"].concat()];
    let code = files().into_iter().filter(|(path, _)| !has_extension(path, &["svg", "html", "json"]));
    let found: Vec<String> = code
        .flat_map(|(path, text)| {
            let hits = banned.iter().filter(|word| text.contains(word.as_str()));
            hits.map(|word| format!("{}: {word}", path.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn architecture_names_every_crate() {
    let text = read("ARCHITECTURE.md");
    let crates = std::fs::read_dir(root().join("crates")).expect("crates");
    let names: Vec<String> =
        crates.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        assert!(
            text.contains(&format!("**`crates/{name}`**")),
            "ARCHITECTURE.md does not name crates/{name}"
        );
    }
}

/// Long options that `weir COMMAND --help` shows.
fn options(command: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(command.split(' '))
        .arg("--help")
        .output()
        .expect("weir starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| word.len() > 2 && word.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn every_option_is_documented() {
    for (command, page) in [
        ("guard", "docs/guard.md"),
        ("check", "docs/operations.md"),
        ("watch", "docs/watch.md"),
        ("explain", "docs/explain.md"),
        ("predict", "docs/model.md"),
        ("screen", "docs/screen.md"),
        ("accept", "docs/accept.md"),
        ("place", "docs/place.md"),
        ("status", "docs/status.md"),
        ("undo", "docs/undo.md"),
        ("bug-report", "docs/bug-report.md"),
        ("lab run", "docs/lab.md"),
        ("lab list", "docs/lab.md"),
        ("sim run", "docs/simulator.md"),
        ("sim table", "docs/simulator.md"),
        ("sim list", "docs/simulator.md"),
        ("results merge", "docs/simulator.md"),
    ] {
        let text = read(page);
        let options = options(command);
        assert!(!options.is_empty(), "weir {command} --help shows no option");
        for option in options {
            assert!(text.contains(&option), "{page} does not explain {option} of weir {command}");
        }
    }
}

#[test]
fn every_experiment_is_documented() {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(["lab", "list", "--json"]).output();
    let list: serde_json::Value = serde_json::from_slice(&output.expect("weir starts").stdout).expect("JSON");
    let names = list["experiments"].as_array().expect("experiments");
    let text = read("docs/experiments.md");
    assert!(!names.is_empty());
    for name in names.iter().filter_map(|experiment| experiment["name"].as_str()) {
        assert!(text.contains(&format!("\n## {name}\n")), "docs/experiments.md has no section {name}");
    }
}

#[test]
fn the_documented_configuration_is_accepted() {
    let text = read("docs/operations.md");
    let lines = text.lines().skip_while(|line| !line.starts_with("    interfaces = "));
    let example: Vec<&str> = lines.take_while(|line| line.starts_with("    ")).collect();
    assert!(example.len() > 8, "{example:?}");
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("weir.toml");
    // Only the interfaces are not those of this machine: the error must be about them.
    std::fs::write(&file, example.join("\n").replace("eth0", "weir-nosuch").replace("0-1", "0"))
        .expect("file");
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("guard").arg("--config").arg(&file).output();
    let stderr = String::from_utf8(output.expect("weir starts").stderr).expect("UTF-8");
    assert!(stderr.contains("weir-nosuch: no such interface"), "{stderr}");
}

/// The part of a link after `#` that leads to this heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut links = 0;
    let documents: Vec<(PathBuf, String)> =
        files().into_iter().filter(|(path, _)| has_extension(path, &["md"])).collect();
    let anchors = |file: &Path| -> BTreeSet<String> {
        let text = std::fs::read_to_string(file).expect("document");
        text.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
    };
    for (path, text) in &documents {
        for rest in text.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            let (local, section) = target.split_once('#').unwrap_or((target, ""));
            if target.is_empty() || local.contains("://") {
                continue;
            }
            links += 1;
            let file = match local {
                "" => path.clone(),
                _ => path.parent().expect("directory").join(local),
            };
            assert!(file.exists(), "{}: no {local}", path.display());
            if !section.is_empty() && has_extension(&file, &["md"]) {
                assert!(anchors(&file).contains(section), "{}: no section {target}", path.display());
            }
        }
    }
    assert!(links > 100, "only {links} links found");
}

#[test]
fn a_heading_has_the_anchor_that_links_to_it_use() {
    assert_eq!(anchor("## How \"nobody\" is learnt"), "how-nobody-is-learnt");
    assert_eq!(anchor("### weir watch --cpu"), "weir-watch---cpu");
}

/// Pages below docs, by their path from there.
fn pages() -> Vec<(String, String)> {
    let docs = root().join("docs");
    let below = |path: &Path| path.strip_prefix(&docs).ok().map(|p| p.to_string_lossy().into_owned());
    let markdown = files().into_iter().filter(|(path, _)| has_extension(path, &["md"]));
    markdown.filter_map(|(path, text)| Some((below(&path)?, text))).collect()
}

#[test]
fn the_index_names_every_page() {
    let index = read("docs/index.md");
    let missing: Vec<String> = pages()
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name != "index.md" && !index.contains(&format!("]({name}")))
        .collect();
    assert!(missing.is_empty(), "docs/index.md does not name {}", missing.join(", "));
}

/// Whether a line has a date that is a word of its own, and no part of a file's name.
fn has_date(line: &str) -> bool {
    let digit = |(i, b): (usize, u8)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() };
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '.' | '/' | '_'));
    words
        .map(|word| word.trim_end_matches('.'))
        .any(|word| word.len() == 10 && word.bytes().enumerate().all(digit))
}

#[test]
fn dates_are_told_from_names_of_files() {
    for line in ["2026-11-25, quiet", "seen ([2026-11-25](a.json))", "on 2026-11-25."] {
        assert!(has_date(line), "{line}");
    }
    for line in ["[x](results/quota-2026-11-25.json)", "2026-11-2", "1234-56-789", "soak-DATE.json"] {
        assert!(!has_date(line), "{line}");
    }
}

/// What was measured on a day stands in docs/measurements, with its conditions; other pages link to it. What a program prints,
/// in lines that are indented, may have a date.
#[test]
fn dated_runs_stand_in_measurements() {
    let mut found = Vec::new();
    for (name, text) in pages().into_iter().filter(|(name, _)| !name.starts_with("measurements/")) {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with("    ") && has_date(line));
        found.extend(lines.map(|(number, _)| format!("docs/{name}:{}", number + 1)));
    }
    assert!(found.is_empty(), "dated runs belong to docs/measurements: {}", found.join(", "));
}

#[test]
fn metrics_are_documented_as_the_code_has_them() {
    let made = serve::metrics::document();
    assert!(read("docs/metrics.md") == made, "docs/metrics.md: run cargo run -p xtask -- metrics");
}

/// Every string below `value`.
fn strings<'a>(value: &'a serde_json::Value, found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::String(text) => found.push(text),
        serde_json::Value::Array(list) => list.iter().for_each(|one| strings(one, found)),
        serde_json::Value::Object(map) => map.values().for_each(|one| strings(one, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_exist() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("packaging/grafana/weir.json")).expect("JSON");
    let names: BTreeSet<String> = serve::metrics::names().into_iter().collect();
    let mut texts = Vec::new();
    strings(&dashboard, &mut texts);
    let words = texts.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("weir_")).collect();
    assert!(asked.len() > 10, "{asked:?}");
    for name in &asked {
        // A histogram's own series.
        let name = name.strip_suffix("_bucket").unwrap_or(name);
        assert!(names.contains(name), "packaging/grafana/weir.json asks for {name}, which does not exist");
    }
    // Labels in a legend or a sum are those of a metric of the same query.
    let targets =
        dashboard["panels"].as_array().expect("panels").iter().flat_map(|panel| panel["targets"].as_array());
    for target in targets.flatten() {
        let (query, legend) =
            (target["expr"].as_str().expect("expr"), target["legendFormat"].as_str().expect("legend"));
        let family = serve::metrics::FAMILIES.iter().find(|family| query.contains(&family.full_name()));
        let family = family.unwrap_or_else(|| panic!("no metric in {query}"));
        for label in legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
            assert!(label == "instance" || family.labels.contains(&label), "{label} is no label of {query}");
        }
    }
}

/// A result that no document names proves nothing to anybody: it is named, or it goes.
#[test]
fn every_result_is_named_by_a_document() {
    let documents: Vec<String> = files()
        .into_iter()
        .filter(|(path, _)| has_extension(path, &["md"]) && !path.ends_with("CHANGELOG.md"))
        .map(|(_, text)| text)
        .collect();
    let mut directories = vec![root().join("docs/results")];
    let (mut found, mut unnamed) = (0, Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("docs/results") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            found += 1;
            let name = path.file_name().expect("name").to_string_lossy().into_owned();
            if !documents.iter().any(|text| text.contains(&name)) {
                unnamed.push(name);
            }
        }
    }
    assert!(found > 10, "only {found} results found");
    assert!(unnamed.is_empty(), "docs/results: no document names {}", unnamed.join(", "));
}

/// Columns of the longest line of a document.
const COLUMNS_MAX: usize = 100;

/// A line that cannot be broken: an address, or a picture with its text.
fn one_piece(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("![") || (line.contains("://") && !line.contains(' '))
}

#[test]
fn lines_of_documents_fit_a_terminal() {
    let mut found = Vec::new();
    for (path, text) in files().into_iter().filter(|(path, _)| has_extension(path, &["md"])) {
        let name = path.strip_prefix(root()).expect("in the tree").to_string_lossy().into_owned();
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !one_piece(line) {
                found.push(format!("{name}:{}: {columns} columns, at most {COLUMNS_MAX}", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Numbers of requirements (`MR-` and digits, and so on) and of claims (`P` and one or two digits) in a text, as words.
fn citations(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
    let number = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let claim =
        |word: &str| word.strip_prefix('P').is_some_and(|rest| number(rest, 2) && !rest.starts_with('0'));
    let requirement = |word: &str| {
        let (letters, rest) = word.split_once('-').unwrap_or_default();
        ["MR", "WU", "ES", "BH", "X"].contains(&letters) && number(rest, 2)
    };
    words.filter(|word| claim(word) || requirement(word)).map(str::to_owned).collect()
}

#[test]
fn citations_are_told_from_other_words() {
    let cited = citations("(MR-05, P10); BH-F027, UTF-8, IPv6 P99x P0 P123 X-2, \"P4\" p50 MR-5x ES-");
    assert_eq!(cited.into_iter().collect::<Vec<_>>(), ["MR-05", "P10", "P4", "X-2"]);
}

/// A reader of any file finds what its numbers mean, and the page has nothing that nobody needs.
#[test]
fn every_number_that_is_cited_is_explained_and_no_other() {
    let page = read("docs/sources.md");
    let entries = page.lines().filter_map(|line| line.strip_prefix("- **")?.split("**").next());
    let explained: BTreeSet<String> = entries.flat_map(citations).collect();
    assert!(explained.len() > 100, "{explained:?}");
    let mut cited: std::collections::BTreeMap<String, PathBuf> = std::collections::BTreeMap::new();
    for (path, text) in files() {
        let itself = path.ends_with("docs/sources.md") || path.ends_with("tests/tidy.rs");
        if itself || has_extension(&path, &["svg", "html", "log"]) {
            continue;
        }
        for number in citations(&text) {
            cited.entry(number).or_insert_with(|| path.clone());
        }
    }
    let unknown: Vec<String> = cited
        .iter()
        .filter(|(number, _)| !explained.contains(*number))
        .map(|(number, path)| format!("{number}, cited in {}", path.display()))
        .collect();
    assert!(unknown.is_empty(), "docs/sources.md does not explain {}", unknown.join("; "));
    let dead: Vec<&String> = explained.iter().filter(|number| !cited.contains_key(*number)).collect();
    assert!(dead.is_empty(), "docs/sources.md explains what nobody cites: {dead:?}");
}

/// The tables of dependencies of a crate of the workspace, by name: those of the program, of its build, and of its tests.
fn dependencies(name: &str, table: &str) -> BTreeSet<String> {
    let manifest: toml::Table = read(&format!("crates/{name}/Cargo.toml")).parse().expect("TOML");
    // A table for one target only would hide a dependency from these rules.
    assert!(!manifest.contains_key("target"), "crates/{name}/Cargo.toml: dependencies of one target");
    let keys = manifest.get(table).and_then(toml::Value::as_table);
    keys.map(|table| table.keys().cloned().collect()).unwrap_or_default()
}

/// What each crate of the workspace may use of the others, as ARCHITECTURE.md draws it.
const MAY_USE: &[(&str, &[&str])] = &[
    ("consumers", &["nfqueue"]),
    ("guard", &["kern", "policy", "see"]),
    ("kern", &["policy"]),
    ("lab", &["kern", "results"]),
    ("model", &[]),
    ("nfqueue", &[]),
    ("policy", &[]),
    ("results", &[]),
    ("see", &["kern"]),
    ("serve", &["see"]),
    ("sim", &["policy", "results"]),
    ("testkit", &[]),
    ("weir", &["guard", "kern", "lab", "model", "nfqueue", "policy", "results", "see", "serve", "sim"]),
    ("xtask", &["kern", "results", "serve"]),
];

/// Libraries that reach the kernel, and the crates that may have them.
const TO_THE_KERNEL: &[(&str, &[&str])] = &[
    ("libbpf-rs", &["kern"]),
    ("libbpf-sys", &["kern"]),
    ("netlink-bindings", &["kern"]),
    ("netlink-socket2", &["kern"]),
    ("procfs", &["kern"]),
    ("caps", &["kern"]),
    // Sockets, threads, signals and processes of their own; no setting of the kernel.
    ("nix", &["consumers", "guard", "kern", "lab", "testkit", "weir", "xtask"]),
    ("libc", &["consumers", "guard", "kern", "lab", "nfqueue", "testkit", "weir", "xtask"]),
];

#[test]
fn crates_depend_on_each_other_as_the_map_says() {
    let crates = std::fs::read_dir(root().join("crates")).expect("crates");
    let names: BTreeSet<String> =
        crates.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
    let mapped: BTreeSet<String> = MAY_USE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names, mapped, "MAY_USE has a line for each crate");
    for (name, may) in MAY_USE {
        let used = dependencies(name, "dependencies");
        for other in used.intersection(&names) {
            assert!(may.contains(&other.as_str()), "crates/{name} must not depend on {other}");
        }
        for other in *may {
            assert!(used.contains(*other), "crates/{name} does not use {other} any more: shorten MAY_USE");
        }
        for (library, of) in TO_THE_KERNEL.iter().filter(|(library, _)| used.contains(*library)) {
            assert!(of.contains(name), "crates/{name} must not depend on {library}");
        }
        // Tests may have the helpers and what the crate itself may have, but nothing else of the tree.
        for other in dependencies(name, "dev-dependencies").intersection(&names) {
            assert!(other == "testkit" || may.contains(&other.as_str()), "tests of crates/{name}: {other}");
        }
    }
    // Decisions are pure: nothing at all is linked into them.
    assert_eq!(dependencies("policy", "dependencies"), BTreeSet::new(), "policy has no dependency");
    assert_eq!(dependencies("policy", "build-dependencies"), BTreeSet::from(["cc".to_owned()]));
}

/// What runs with capabilities has no library without a reason.
#[test]
fn every_library_of_the_guard_has_its_reason() {
    let page = read("docs/dependencies.md");
    let ours = ["kern", "policy", "see"];
    let mut needed = BTreeSet::from(["guard".to_owned()]);
    needed.extend(ours.map(str::to_owned));
    let used: BTreeSet<String> = needed.iter().flat_map(|name| dependencies(name, "dependencies")).collect();
    for library in used.iter().filter(|name| !ours.contains(&name.as_str())) {
        assert!(page.contains(&format!("`{library}`")), "docs/dependencies.md has no reason for {library}");
    }
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let names = row.split('|').nth(1).unwrap_or_default().split(',').map(|n| n.trim().trim_matches('`'));
        for name in names {
            assert!(used.contains(name), "docs/dependencies.md: {name} is not in the guard any more");
        }
    }
}

/// kern is the only way to the kernel's settings: no other crate has the name of a file with one. What is printed for the
/// user to type does not begin with it.
#[test]
fn only_kern_names_files_with_settings() {
    let crates = root().join("crates");
    let mut found = Vec::new();
    for (path, text) in files().into_iter().filter(|(path, _)| has_extension(path, &["rs"])) {
        let Ok(below) = path.strip_prefix(&crates) else { continue };
        let source = below.iter().nth(1).is_some_and(|part| part == "src");
        if !source || ["kern", "testkit", "xtask"].iter().any(|name| below.starts_with(name)) {
            continue;
        }
        // A test module is the end of its file.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            if ["\"/sys/", "\"/proc/sys/"].iter().any(|start| line.contains(start)) {
                found.push(format!("crates/{}:{}", below.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "settings are for crates/kern: {}", found.join(", "));
}

/// A table that names its result has the result's figures.
#[test]
fn tables_of_measurements_are_made_of_results() {
    let mut tables = 0;
    for (name, text) in pages().into_iter().filter(|(name, _)| name.starts_with("measurements/")) {
        let read = |result: &str| {
            let file = root().join("docs/measurements").join(result);
            results::Document::read(&file).map_err(|err| err.to_string())
        };
        let made = results::markdown::page(&text, read).unwrap_or_else(|why| panic!("docs/{name}: {why}"));
        assert!(
            made == text,
            "docs/{name} has other figures than its results: run cargo run -p xtask -- pages"
        );
        tables += text.matches("<!-- table ").count();
    }
    assert!(tables > 10, "only {tables} tables are made of results");
}
