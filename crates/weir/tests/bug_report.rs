//! `weir bug-report` from outside: one archive that tar reads, complete, and without what must not be told.
//!
//! Cannot flake: nothing is measured, and each of its commands has a limit of its own far above what it needs.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn weir(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(args).stdin(Stdio::null()).output().expect("weir starts")
}

/// The files of an archive, by tar's own reading.
fn unpack(archive: &Path, into: &Path) -> BTreeMap<String, String> {
    let tar = |args: &[&str]| {
        Command::new("tar").args(args).arg(archive).arg("-C").arg(into).output().expect("tar")
    };
    let done = tar(&["-x", "-f"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let list = Command::new("tar").arg("-tf").arg(archive).output().expect("tar");
    let names = String::from_utf8(list.stdout).expect("UTF-8");
    let read = |name: &str| (name.to_owned(), std::fs::read_to_string(into.join(name)).expect("UTF-8"));
    names.lines().map(read).collect()
}

/// Addresses of this machine's interfaces, but for the loopback's.
fn addresses() -> Vec<String> {
    let found = nix::ifaddrs::getifaddrs().expect("addresses").filter_map(|entry| {
        let address = entry.address?;
        let ip = address.as_sockaddr_in().map(|a| a.ip().to_string());
        let ip = ip.or_else(|| address.as_sockaddr_in6().map(|a| a.ip().to_string()));
        ip.or_else(|| address.as_link_addr()?.addr().map(|mac| mac.map(|b| format!("{b:02x}")).join(":")))
    });
    found.filter(|a| !a.starts_with("127.") && a != "::1" && a != "00:00:00:00:00:00").collect()
}

#[test]
fn a_report_has_every_part_and_no_secret() {
    let dir = tempfile::tempdir().expect("directory");
    let run = dir.path().join("run");
    std::fs::create_dir(&run).expect("directory");
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o700)).expect("mode");
    let config = dir.path().join("weir.toml");
    std::fs::write(&config, "# the key is hunter2\nreserve = 30 # of 192.0.2.99\n").expect("file");
    // Not one that weir wrote: it is carried as it is, for somebody to see what is wrong with it.
    let journal = run.join("4026531840-2.json");
    std::fs::write(&journal, "{\"peer\":\"192.0.2.77\",\"again\":\"192.0.2.77\"}").expect("file");
    std::fs::set_permissions(&journal, std::fs::Permissions::from_mode(0o600)).expect("mode");

    let archive = dir.path().join("report.tar");
    let path = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    let (out, toml) = (path(&archive), path(&config));
    let journals = format!("--journal-dir={}", path(&run));
    let args = ["bug-report", "--output", &out, "--config", &toml, &journals];
    let output = weir(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{out}\n"));
    let mode = std::fs::metadata(&archive).expect("archive").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others can read it");

    let into = dir.path().join("unpacked");
    std::fs::create_dir(&into).expect("directory");
    let files = unpack(&archive, &into);
    let index = &files["README.txt"];
    for name in [
        "version.txt",
        "check.json",
        "status.json",
        "undo.json",
        "watch.json",
        "explain.json",
        "weir.toml",
        "journal/4026531840-2.json",
        "host/proc/version",
        "host/proc/stat",
        "host/proc/net/snmp",
        "host/proc/interrupts",
    ] {
        assert!(files.contains_key(name), "no {name}: {:?}", files.keys());
        assert!(index.contains(&format!("\n{name}: ")), "README.txt does not list {name}: {index}");
    }
    for (name, schema) in
        [("check.json", "weir.check/1"), ("watch.json", "weir.watch/1"), ("explain.json", "weir.explain/1")]
    {
        let value: serde_json::Value =
            serde_json::from_str(&files[name]).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(value["schema"], schema, "{name}");
    }
    assert_eq!(files["weir.toml"], "reserve = 30\n");
    assert_eq!(files["journal/4026531840-2.json"], "{\"peer\":\"ipv4-1\",\"again\":\"ipv4-1\"}");

    let name = nix::sys::utsname::uname().expect("name");
    let host = name.nodename().to_string_lossy().into_owned();
    let mut secrets = addresses();
    secrets.extend(["hunter2".to_owned(), "192.0.2.99".to_owned(), "192.0.2.77".to_owned()]);
    for (name, text) in &files {
        for secret in &secrets {
            let whole = text.match_indices(secret.as_str()).any(|(at, _)| {
                let next = text[at + secret.len()..].chars().next();
                !next.is_some_and(|c| c.is_ascii_alphanumeric())
            });
            assert!(!whole, "{name} has {secret}");
        }
    }
    if host.len() >= 3 && !host.starts_with("localhost") {
        let value: serde_json::Value = serde_json::from_str(&files["watch.json"]).expect("JSON");
        assert_eq!(value["host"], "the-host");
    }

    // A report is never written over another.
    let before = std::fs::read(&archive).expect("archive");
    let again = weir(&args);
    let error = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(2), "{error}");
    assert!(error.starts_with("error: --output ") && error.contains("is there already"), "{error}");
    assert_eq!(std::fs::read(&archive).expect("archive"), before);
}
