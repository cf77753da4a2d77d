//! Everything that a guard could leave changed on an interface, as text, and what differs between two such dumps.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// One value by its name.
pub type Dump = BTreeMap<String, String>;

/// What the kernel's own tools show of an interface. A tool that refuses is compared by its refusal.
const TOOLS: [&str; 8] = [
    "ethtool -k IF",
    "ethtool -l IF",
    "ethtool -g IF",
    "ethtool -c IF",
    "ip -d link show dev IF",
    "ip addr show dev IF",
    "tc qdisc show dev IF",
    "tc filter show dev IF ingress",
];

/// What changes by itself.
const LIVE: [&str; 4] = ["statistics", "power", "subsystem", "uevent"];

/// Reads all of it, for `interfaces` of the caller's namespace.
pub fn take(interfaces: &[String]) -> Dump {
    let mut dump = Dump::new();
    for name in interfaces {
        files(Path::new(&format!("/sys/class/net/{name}")), name, &mut dump);
        napis(name, &mut dump);
        for tool in TOOLS {
            let line = tool.replace("IF", name);
            let words: Vec<&str> = line.split(' ').collect();
            let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
            let text = if output.status.success() { &output.stdout } else { &output.stderr };
            for (n, shown) in String::from_utf8_lossy(text).lines().enumerate() {
                dump.insert(format!("{line}: line {n}"), shown.trim_end().to_owned());
            }
        }
    }
    files(Path::new("/proc/sys/net/core"), "sysctl net.core", &mut dump);
    dump
}

fn files(directory: &Path, name: &str, dump: &mut Dump) {
    for entry in std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if LIVE.contains(&file.as_str()) || path.is_symlink() {
            continue;
        }
        let name = format!("{name}/{file}");
        if path.is_dir() {
            files(&path, &name, dump);
            continue;
        }
        // Some cannot be read in some states; that state is what is compared then.
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| e.to_string());
        dump.insert(name, text.trim_end().to_owned());
    }
}

fn napis(name: &str, dump: &mut Dump) {
    let ifindex = kern::netns::index_of(name).unwrap();
    let list = kern::napi::list(ifindex).unwrap();
    dump.insert(format!("{name} napis"), list.len().to_string());
    for (n, napi) in list.iter().enumerate() {
        dump.insert(format!("{name} napi {n}"), serde_json::to_string(napi).unwrap());
    }
}

/// What differs, one line each; empty if nothing does.
pub fn differences(before: &Dump, after: &Dump) -> Vec<String> {
    let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let show = |v: Option<&String>| v.map_or("absent".to_owned(), |v| format!("{v:?}"));
    keys.into_iter()
        .filter(|k| before.get(*k) != after.get(*k))
        .map(|k| format!("{k}: {} -> {}", show(before.get(k)), show(after.get(k))))
        .collect()
}

/// Panics with what differs.
pub fn assert_same(before: &Dump, after: &Dump, when: &str) {
    // A dump that is nearly empty would equal anything.
    assert!(before.len() > 100, "only {} values were read", before.len());
    let found = differences(before, after);
    assert!(found.is_empty(), "{when}: not as before:\n{}", found.join("\n"));
}
