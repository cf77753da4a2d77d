//! What is shipped beside the program and is read by others: rules and dashboard for a monitor, manifests for Kubernetes. Each
//! names things of the program that may not vanish behind its back.
//!
//! Cannot flake: files are read, and programs of others that look at files only.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("workspace")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|err| panic!("{path}: {err}"))
}

/// What a program of others answers; says that the test is skipped if it is not there.
fn other(test: &str, program: &str, how: &str, args: &[&str], dir: &str) -> Option<Output> {
    let output = Command::new(program).args(args).current_dir(root().join(dir)).output();
    if output.is_err() {
        eprintln!("skipped: {test} needs {program}: {how}");
    }
    output.ok()
}

/// What `make install` puts beside the program: every page that a page links to is there, in the package too.
#[test]
fn every_link_of_the_installed_documentation_leads_somewhere() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("directory");
    let build = dir.path().join("build");
    std::fs::create_dir(&build).expect("directory");
    let script = read("scripts/install.sh");
    let programs = script.lines().find_map(|line| line.strip_prefix("for program in ")).expect("programs");
    for program in programs.trim_end_matches("; do").split(' ') {
        // The pages of commands and the completions come from weir itself.
        let text = format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_weir"));
        std::fs::write(build.join(program), text).expect("program");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(build.join(program), mode).expect("mode");
    }
    let mut install = Command::new("sh");
    install.arg("scripts/install.sh").current_dir(root()).env("BUILD", &build).env("PREFIX", "/usr");
    let output = install.env("SYSCONFDIR", "/etc").env("DESTDIR", dir.path()).output().expect("sh");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let (mut directories, mut links) = (vec![dir.path().join("usr/share/doc/weir")], 0);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&path).expect("a page");
                let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
                for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
                    links += 1;
                    assert!(directory.join(target).exists(), "{}: no {target}", path.display());
                }
            }
        }
    }
    assert!(links > 100, "only {links} links found");
}

/// A guard that was started by hand outlives the package: its locks too, or a second one could take the same CPUs.
#[test]
fn a_purge_leaves_the_locks_that_somebody_holds() {
    if Command::new("flock").arg("--version").output().is_err() {
        eprintln!("skipped: a_purge_leaves_the_locks_that_somebody_holds needs flock");
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let (held, free) = (dir.path().join("cpu-0.lock"), dir.path().join("cpu-1.lock"));
    [&held, &free].into_iter().for_each(|lock| std::fs::write(lock, "1").expect("lock"));
    let file = std::fs::File::open(&held).expect("lock");
    file.lock().expect("lock");
    let script = read("packaging/deb/postrm").replace("/run/weir", &dir.path().to_string_lossy());
    let begin = script.find("    for lock in").expect("the loop over the locks");
    let end = begin + script[begin..].find("done").expect("its end") + "done".len();
    let text = format!("set -e\n{}", &script[begin..end]);
    let purge = || Command::new("sh").args(["-c", &text]).status().expect("sh").success();
    assert!(purge() && held.exists() && !free.exists(), "{text}");
    // Not by closing it: what another test starts has the file too, for a moment.
    file.unlock().expect("lock");
    assert!(purge() && !held.exists(), "{text}");
}

/// What `make demo` says when the lab gives `code`, and its own code; with `writes` there is a report.
fn demo(code: u8, writes: bool) -> (String, Option<i32>) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("directory");
    // Of an earlier run.
    let report = dir.path().join("report.html");
    std::fs::write(&report, "old").expect("report");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    std::fs::File::options().write(true).open(&report).and_then(|file| file.set_modified(old)).expect("time");
    let write = if writes { "sleep 0.1; echo new > report.html" } else { ":" };
    let weir = dir.path().join("weir");
    std::fs::write(&weir, format!("#!/bin/sh\n{write}\nexit {code}\n")).expect("program");
    std::fs::set_permissions(&weir, std::fs::Permissions::from_mode(0o755)).expect("mode");
    let mut sh = Command::new("sh");
    sh.arg(root().join("scripts/demo.sh")).current_dir(dir.path()).env("BUILD", dir.path());
    let output = sh.output().expect("sh");
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), output.status.code())
}

#[test]
fn the_demo_ends_with_0_only_if_there_is_a_report() {
    let (text, code) = demo(0, true);
    assert!(
        code == Some(0) && text.contains("look at report.html") && !text.contains("falls short"),
        "{text}"
    );
    let (text, code) = demo(1, true);
    assert!(code == Some(0) && text.contains("falls short") && text.contains("--html report.html"), "{text}");
    for lab in [1, 2, 3] {
        let (text, code) = demo(lab, false);
        assert!(code == Some(i32::from(lab)) && text.contains("nothing was written"), "{text}");
        assert!(!text.contains("look at report.html") && !text.contains("falls short"), "{text}");
    }
}

const RULES: &str = "packaging/prometheus/weir.rules.yml";

/// Words of a query, with colons: names of metrics, recorded ones too, labels, functions.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')
}

#[test]
fn rules_ask_for_metrics_that_exist() {
    let text = read(RULES);
    let names: BTreeSet<String> = serve::metrics::names().into_iter().collect();
    let recorded: BTreeSet<&str> = text.lines().filter_map(|l| l.trim().strip_prefix("- record: ")).collect();
    assert!(recorded.len() >= 4, "{recorded:?}");
    // Comments and annotations may name what they like.
    let queries = text.lines().filter(|line| !line.trim().starts_with('#') && !line.contains("summary: "));
    let queries: Vec<&str> =
        queries.filter(|line| !line.contains("action: ") && !line.contains("page: ")).collect();
    let mut asked = BTreeSet::new();
    for word in queries.iter().flat_map(|line| words(line)) {
        if word.contains(":weir_") {
            assert!(recorded.contains(word), "{RULES}: nothing records {word}");
        } else if word.starts_with("weir_") {
            assert!(names.contains(word), "{RULES} asks for {word}, which does not exist");
            asked.insert(word);
        }
    }
    assert!(asked.len() >= 8, "{asked:?}");
    // What stands in braces after a metric are labels of that metric.
    let text = queries.join("\n");
    let mut labels = 0;
    for (at, _) in text.match_indices('{') {
        let before = &text[..at];
        let name = words(before).last().unwrap_or_default();
        if !name.starts_with("weir_") || name.contains(':') {
            continue;
        }
        let family = serve::metrics::FAMILIES.iter().find(|family| family.full_name() == name);
        let family = family.unwrap_or_else(|| panic!("{name} is no family"));
        let inside = text[at + 1..].split('}').next().unwrap_or_default();
        for label in inside.split(',').map(|part| part.split(['=', '!']).next().unwrap_or_default().trim()) {
            assert!(family.labels.contains(&label), "{label} is no label of {name}");
            labels += 1;
        }
    }
    assert!(labels >= 4, "{labels}");
}

#[test]
fn every_alert_is_explained_and_tested() {
    let (rules, page, tests) =
        (read(RULES), read("docs/alerts.md"), read("packaging/prometheus/weir.test.yml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 5, "{alerts:?}");
    for alert in &alerts {
        assert!(page.contains(&format!("\n## {alert}\n")), "docs/alerts.md has no section {alert}");
        let anchor = format!("page: docs/alerts.md#{}", alert.to_lowercase());
        assert!(rules.contains(&anchor), "{RULES}: {alert} names no page");
        assert!(tests.contains(&format!("alertname: {alert}\n")), "no test of {alert}");
    }
    let sections = page.lines().filter_map(|l| l.strip_prefix("## Weir")).count();
    assert_eq!(sections, alerts.len(), "docs/alerts.md explains an alert that is not there");
}

#[test]
fn the_rules_do_what_their_tests_say() {
    let name = "the_rules_do_what_their_tests_say";
    for args in [["check", "rules", "weir.rules.yml"], ["test", "rules", "weir.test.yml"]] {
        let how = "apt-get install prometheus";
        let Some(output) = other(name, "promtool", how, &args, "packaging/prometheus") else { return };
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    }
}

const MANIFEST: &str = "packaging/kubernetes/weir.yaml";

/// The capabilities that the service's unit names, as a container's runtime writes them.
fn of_the_unit() -> BTreeSet<String> {
    let unit = read("packaging/weir-guard@.service");
    let line = unit.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).expect("capabilities");
    line.split(' ').map(|c| c.trim_start_matches("CAP_").to_owned()).collect()
}

/// Keys that stand in the text of a YAML file.
fn keys(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
    let key = |line: &'_ str| -> Option<usize> {
        let end = line.find(':')?;
        let word = line[..end].bytes().all(|b| b.is_ascii_alphanumeric() || b"-./_".contains(&b));
        (word && end > 0 && line[end + 1..].chars().next().is_none_or(|c| c == ' ')).then_some(end)
    };
    lines.filter(|line| !line.starts_with('#')).filter_map(|line| Some(&line[..key(line)?])).collect()
}

/// Every key and string below `value`.
fn told<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Array(list) => list.iter().for_each(|one| told(one, found)),
        Value::Object(map) => map.iter().for_each(|(key, one)| {
            found.insert(key);
            told(one, found);
        }),
        _ => {}
    }
}

/// The objects of a manifest as the API's own types have them: a field that they do not know is dropped on the way, and a
/// value of a wrong type is an error. `None` without kubectl, which asks no server for this.
fn objects(test: &str, path: &str) -> Option<Vec<Value>> {
    let args = ["label", "--local", "-f", path, "-o", "json", "weir.test/is=one"];
    let output = other(test, "kubectl", "see kubernetes.io", &args, ".")?;
    assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    let list = serde_json::Deserializer::from_slice(&output.stdout).into_iter().collect::<Result<_, _>>();
    Some(list.expect("JSON"))
}

#[test]
fn the_manifest_is_what_the_api_knows_and_what_the_guard_needs() {
    let text = read(MANIFEST);
    let wanted: Vec<String> = of_the_unit().into_iter().collect();
    let quoted: BTreeSet<String> = wanted.iter().map(|c| format!("\"{c}\"")).collect();
    let line = text.lines().find_map(|l| l.trim().strip_prefix("add: [")).expect("capabilities");
    let added: BTreeSet<String> = line.trim_end_matches(']').split(", ").map(str::to_owned).collect();
    assert_eq!(added, quoted, "the unit and the manifest name different capabilities");

    // A pod's restart is no reason to take a placement back.
    assert!(text.contains("\n          args: [\"undo\", \"--guards\"]\n"), "what runs before the guard");
    // The guard of another interface that stands still is no reason to end this one; and the file that names the interfaces is the
    // one that the guard has read.
    let file = "/etc/weir/weir.toml";
    for line in [
        format!("\n          args: [\"guard\", \"--config\", \"{file}\"]\n"),
        format!("\n              command: [\"/weir\", \"status\", \"--config\", \"{file}\"]\n"),
        format!("\n              mountPath: {file}\n              subPath: weir.toml\n"),
    ] {
        assert!(text.contains(&line), "the manifest has no {line}");
    }

    let name = "the_manifest_is_what_the_api_knows_and_what_the_guard_needs";
    let Some(objects) = objects(name, MANIFEST) else { return };
    let mut known = BTreeSet::new();
    objects.iter().for_each(|object| told(object, &mut known));
    let dropped: Vec<&str> = keys(&text).into_iter().filter(|key| !known.contains(key)).collect();
    // Of the configuration inside the ConfigMap, whose keys are weir's.
    assert!(dropped.is_empty(), "{MANIFEST}: the API knows no {dropped:?}");

    let set = objects.iter().find(|o| o["kind"] == "DaemonSet").expect("a DaemonSet");
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!((&pod["hostNetwork"], &pod["hostPID"]), (&true.into(), &true.into()));
    let volumes: BTreeSet<&str> =
        pod["volumes"].as_array().expect("volumes").iter().filter_map(|v| v["name"].as_str()).collect();
    let all = |kind: &str| pod[kind].as_array().expect("containers").clone();
    let containers = [all("initContainers"), all("containers")].concat();
    let names: Vec<&str> = containers.iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["undo", "guard", "metrics"]);
    for container in &containers {
        let rights = &container["securityContext"];
        assert_eq!(
            (&rights["readOnlyRootFilesystem"], &rights["allowPrivilegeEscalation"]),
            (&true.into(), &false.into())
        );
        assert_eq!(rights["capabilities"]["drop"], serde_json::json!(["ALL"]), "{}", container["name"]);
        assert_eq!(container["image"], containers[0]["image"], "one image");
        assert!(container["resources"]["limits"]["cpu"].is_null(), "a CPU limit stops a poller in its turn");
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            assert!(volumes.contains(mount["name"].as_str().expect("name")), "{mount}");
        }
    }
    assert_eq!(containers[0]["args"], serde_json::json!(["undo", "--guards"]));
    let guard = &containers[1]["securityContext"]["capabilities"]["add"];
    let added: BTreeSet<&str> =
        guard.as_array().expect("capabilities").iter().filter_map(Value::as_str).collect();
    assert_eq!(added, wanted.iter().map(String::as_str).collect());
    assert!(
        containers[2]["securityContext"]["capabilities"]["add"].is_null(),
        "who serves metrics needs none"
    );
    let get = &containers[2]["readinessProbe"]["httpGet"];
    assert_eq!((&get["path"], &get["port"]), (&"/metrics".into(), &"metrics".into()));
    assert_eq!(containers[2]["livenessProbe"]["tcpSocket"]["port"], "metrics");

    // Its configuration is one that the guard takes: only the interface is not one of this machine.
    let toml = objects.iter().find_map(|o| o["data"]["weir.toml"].as_str()).expect("a configuration");
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("weir.toml");
    std::fs::write(&file, toml.replace("eth0", "weir-nosuch")).expect("file");
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("guard").arg("--config").arg(&file).output();
    let stderr = String::from_utf8(output.expect("weir starts").stderr).expect("UTF-8");
    assert!(stderr.contains("weir-nosuch: no such interface"), "{stderr}");
}

#[test]
fn an_upgrade_undoes_what_dead_guards_have_left_and_no_placement() {
    let dir = tempfile::tempdir().expect("directory");
    let (asked, program) = (dir.path().join("asked"), dir.path().join("weir"));
    // It fails, which must not stop dpkg.
    let script = format!("#!/bin/sh\necho \"$*\" >> {}\nexit 1\n", asked.display());
    std::fs::write(&program, script).expect("file");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
    let prerm = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/deb/prerm");
    for (words, expected) in [
        (["upgrade", "0.2.0"], "undo --guards\n"),
        (["failed-upgrade", "0.1.0"], "undo --guards\n"),
        (["deconfigure", "in-favour"], ""),
    ] {
        let _ = std::fs::remove_file(&asked);
        let output = Command::new("/bin/sh").arg(prerm).args(words).env("PATH", dir.path()).output();
        assert!(output.expect("sh starts").status.success(), "{words:?}");
        assert_eq!(std::fs::read_to_string(&asked).unwrap_or_default(), expected, "{words:?}");
    }
}

/// A directory with programs, each a script of the shell.
fn programs(dir: &Path, all: &[(&str, &str)]) {
    for (name, text) in all {
        let program = dir.join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).expect("program");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("mode");
    }
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_upgrade_tells_of_guards_that_do_not_start_again() {
    let dir = tempfile::tempdir().expect("directory");
    // It asks whether systemd runs, by a directory.
    let script = read("packaging/deb/postinst").replace("/run/systemd/system", "/");
    for (listed, told) in [
        (
            "weir-guard@eth0.service loaded failed failed x\nweir-guard@eth1.service loaded activating auto-restart x\n",
            true,
        ),
        ("", false),
    ] {
        let systemctl = format!("case $1 in list-units) printf '{listed}' ;; try-restart) exit 1 ;; esac");
        programs(
            dir.path(),
            &[("systemctl", &systemctl), ("postinst", script.trim_start_matches("#!/bin/sh"))],
        );
        let mut postinst = Command::new("/bin/sh");
        postinst.arg(dir.path().join("postinst")).args(["configure", "0.1.0"]).env("PATH", dir.path());
        let output = postinst.output().expect("sh starts");
        assert!(output.status.success());
        let complaint = complaint(&output);
        assert_eq!(
            complaint.contains(": weir-guard@eth0.service weir-guard@eth1.service;"),
            told,
            "{complaint}"
        );
        assert_eq!(complaint.is_empty(), !told, "{complaint}");
    }
}

#[test]
fn no_package_without_bpf_programs() {
    for script in ["scripts/deb.sh", "scripts/rpm.sh"] {
        let mut build = Command::new("sh");
        build.arg(script).arg("/nowhere").current_dir(root()).env("BPF_CLANG", "/nowhere/clang");
        let output = build.output().expect("sh starts");
        assert_eq!(output.status.code(), Some(3));
        assert!(complaint(&output).contains("no package without BPF programs"), "{}", complaint(&output));
    }
}

/// rpm tells its scripts how many versions are there afterwards, and runs those of the new one before those of the old.
#[test]
fn scripts_of_rpm_say_what_those_of_debian_say() {
    let dir = tempfile::tempdir().expect("directory");
    let asked = dir.path().join("asked");
    let note = |name: &str| format!("echo \"{name} $*\" >>{}; exit 1", asked.display());
    programs(
        dir.path(),
        &[("weir", &note("weir")), ("systemctl", &note("systemctl")), ("rm", ":"), ("rmdir", ":")],
    );
    let spec = read("packaging/rpm/weir.spec");
    let script = |section: &str| -> String {
        let text = spec.split(&format!("\n%{section}\n")).nth(1).expect("a section");
        let lines = text.lines().take_while(|line| !line.starts_with('%'));
        let line = |line: &str| match line.strip_prefix('@').and_then(|l| l.strip_suffix('@')) {
            // It asks whether systemd runs, by a directory; and this host has no settings to be removed.
            Some(file) => read(&format!("packaging/deb/{file}"))
                .replace("/run/systemd/system", "/")
                .replace("/run/weir", "/nowhere"),
            None => line.to_owned(),
        };
        lines.map(line).collect::<Vec<_>>().join("\n")
    };
    let (reload, again) = ("systemctl --system daemon-reload", "systemctl try-restart weir-guard@*.service");
    let list = "systemctl list-units --plain --no-legend --state=failed,auto-restart weir-guard@*.service";
    for (section, count, expected) in [
        ("pre", "1", vec![]),
        ("post", "1", vec![reload]),
        ("pre", "2", vec!["weir undo --guards"]),
        ("post", "2", vec![reload, again, list]),
        ("preun", "1", vec![]),
        ("postun", "1", vec![]),
        ("preun", "0", vec!["systemctl stop weir-guard@*.service", "weir undo"]),
        ("postun", "0", vec![reload]),
    ] {
        let _ = std::fs::remove_file(&asked);
        let mut run = Command::new("/bin/sh");
        run.args(["-c", &script(section), section, count]).env("PATH", dir.path());
        let output = run.output().expect("sh starts");
        assert!(output.status.success(), "{section} {count}: {}", complaint(&output));
        let asked = std::fs::read_to_string(&asked).unwrap_or_default();
        assert_eq!(asked.lines().collect::<Vec<_>>(), expected, "{section} {count}");
    }
}

/// `scripts/deps.sh WHAT` with the programs in `dir` and no others.
fn deps(dir: &Path, what: &str, sudo_user: &str) -> Output {
    let script = dir.join("deps.sh");
    std::fs::write(&script, read("scripts/deps.sh").replace(":/usr/sbin:/sbin", "")).expect("script");
    let mut deps = Command::new("/bin/sh");
    deps.arg(script).arg(what).env_clear();
    deps.env("PATH", dir).env("SUDO_USER", sudo_user).output().expect("sh starts")
}

#[test]
fn root_without_a_toolchain_is_told_who_has_one() {
    let dir = tempfile::tempdir().expect("directory");
    for (user, told) in [
        ("alice", "build as alice with make, then sudo sh scripts/demo.sh"),
        ("", "install Rust 1.95 or later with rustup"),
    ] {
        let output = deps(dir.path(), "build", user);
        assert_eq!(output.status.code(), Some(3));
        assert!(complaint(&output).contains(told), "{}", complaint(&output));
    }
    // That of Debian 12.
    programs(dir.path(), &[("cargo", "echo cargo 1.63.0")]);
    let output = deps(dir.path(), "build", "");
    assert_eq!(output.status.code(), Some(3));
    assert!(complaint(&output).contains("cargo 1.63 is too old"), "{}", complaint(&output));
    let makefile = read("Makefile");
    assert!(!makefile.contains("sudo make demo"), "root's PATH has no cargo of rustup's");
}

#[test]
fn services_that_come_with_tests_do_not_start_when_the_host_boots() {
    let dir = tempfile::tempdir().expect("directory");
    let (installed, asked) = (dir.path().join("installed"), dir.path().join("asked"));
    // nsd was there before, iperf3 was started by hand, nginx comes with this installation. Nothing is written on this host.
    let systemctl = format!(
        "case $1-$2$3 in is-enabled-nsd.service) echo enabled ;; \
         is-active--qiperf3.service) exit 0 ;; is-active-*) exit 3 ;; \
         is-enabled-nginx.service|is-enabled-iperf3.service) [ ! -e {0} ] || echo enabled ;; \
         disable-*) echo \"$*\" >>{1} ;; esac",
        installed.display(),
        asked.display()
    );
    let apt = format!(": >{}", installed.display());
    let nothing =
        ["cargo", "cc", "make", "pkg-config", "clang", "chmod", "rm", "cat"].map(|name| (name, ":"));
    programs(dir.path(), &nothing);
    programs(
        dir.path(),
        &[
            ("id", "echo 0"),
            ("tee", "while read -r line; do :; done"),
            ("apt-get", &apt),
            ("env", "shift; exec \"$@\""),
            ("systemctl", &systemctl),
        ],
    );
    let output = deps(dir.path(), "rules", "");
    assert!(complaint(&output).contains("installing: prometheus"), "{}", complaint(&output));
    let asked = std::fs::read_to_string(asked).unwrap_or_default();
    assert_eq!(asked, "disable --now nginx.service\n");
}

/// `a.b` of a file of values with one level of nesting; each value is a line.
fn values(text: &str) -> BTreeMap<String, String> {
    let (mut found, mut outer) = (BTreeMap::new(), String::new());
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (inner, value) = (key.starts_with(' '), value.trim());
        match (inner, value) {
            (false, "") => key.clone_into(&mut outer),
            (false, _) => drop(found.insert(key.to_owned(), value.to_owned())),
            (true, _) => drop(found.insert(format!("{outer}.{}", key.trim()), value.to_owned())),
        }
    }
    found
}

/// A pod reads its configuration when it starts: another configuration makes another pod.
const CHECKSUM: &str =
    "        checksum/config: {{ include (print $.Template.BasePath \"/configmap.yaml\") . | sha256sum }}";

#[test]
fn another_configuration_makes_other_pods() {
    let template = read("packaging/helm/weir/templates/daemonset.yaml");
    let pod = template.split("\n  template:\n").nth(1).expect("a pod");
    let metadata = pod.split("\n    spec:\n").next().expect("metadata");
    assert!(metadata.ends_with(&format!("\n      annotations:\n{CHECKSUM}")), "{metadata}");
}

/// A template of the chart with its own values: what it repeats or leaves out depends on values that are empty.
fn rendered(template: &str, values: &BTreeMap<String, String>) -> String {
    let (mut out, mut inside) = (String::new(), false);
    // The manifest is not made anew for another configuration, so it has no sum of it.
    let (sum, of) = (CHECKSUM.trim_start(), "annotations:");
    let kept = |line: &&str| !line.starts_with("{{- /*") && line.trim() != sum && line.trim() != of;
    for line in template.lines().filter(kept) {
        let word = line.trim();
        if word.starts_with("{{- range ") || word.starts_with("{{- with ") {
            let name = word.split(".Values.").nth(1).and_then(|w| w.split(' ').next()).expect("a value");
            assert_eq!(values[name], "{}", "only what is empty can be left out here");
            inside = true;
        } else if word.starts_with("{{- if ") {
            let name = word.split(".Values.").nth(1).and_then(|w| w.split(' ').next()).expect("a value");
            assert_eq!(values[name], "\"\"", "only what is empty can be left out here");
            inside = true;
        } else if word == "{{- end }}" || word == "{{- else }}" {
            inside = false;
        } else if !inside {
            let mut line = line.to_owned();
            while let Some((before, rest)) = line.clone().split_once("{{ ") {
                let (what, after) = rest.split_once(" }}").expect("an end");
                let value = match what.trim_end_matches(" | toJson") {
                    ".Release.Namespace" => "weir",
                    what => values[what.strip_prefix(".Values.").expect("a value")].as_str(),
                };
                line = format!("{before}{value}{after}");
            }
            out += &line;
            out.push('\n');
        }
    }
    out
}

#[test]
fn the_chart_makes_what_the_manifest_has() {
    let chart = "packaging/helm/weir";
    let (values, manifest) = (values(&read(&format!("{chart}/values.yaml"))), read(MANIFEST));
    let documents: Vec<&str> = manifest.split("\n---\n").collect();
    for (template, document) in [("configmap", documents[1]), ("daemonset", documents[2])] {
        let made = rendered(&read(&format!("{chart}/templates/{template}.yaml")), &values);
        assert_eq!(made.trim_end(), document.trim_end(), "{template}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let meta = read(&format!("{chart}/Chart.yaml"));
    assert!(
        meta.contains(&format!("\nappVersion: \"{version}\"\n")),
        "Chart.yaml: another version than {version}"
    );
    assert_eq!(values["image.tag"], version, "values.yaml: another version");

    let name = "the_chart_makes_what_the_manifest_has";
    let Some(lint) = other(name, "helm", "see helm.sh", &["lint", "--strict", chart], ".") else { return };
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}
