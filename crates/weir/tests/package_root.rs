//! The Debian package in a clean Debian, under a systemd of its own: apt installs it from a repository, it guards under a
//! flood, is restarted, upgraded, rolled back and upgraded again there, hangs, crashes and is purged; at the end nothing is left.
//! What a killed guard of one version leaves, the other one puts back, or refuses and leaves as it is. Run by
//! `make package-test`, which makes the two things it needs: the repository with two versions (`WEIR_APT`) and the root
//! directory (`WEIR_DEBIAN`, which is copied).
//!
//! Cannot flake: what must come is waited for as a state, and deadlines are asserted five times as long as stated.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::dump::{Dump, assert_same};
use common::procs::{Sink, is_guard, signal, weirs};
use common::world::{FLOOD, PORT, World, bind_to, sh};
use common::{HOST_CPU, PATIENCE, WIRE_CPU, alone, ms, possible, resident_kib, within};
use nix::sys::signal::Signal;

/// A restart may cost the programs this long.
const DIP: Duration = ms(1000);
const UNIT: &str = "weir-guard@in0.service";

/// A container with a systemd, inside the network namespace of a world; gone when it is dropped.
struct Debian {
    root: PathBuf,
    nspawn: Child,
    init: String,
}

impl Debian {
    fn boot(world: &World, template: &Path) -> Debian {
        let root = template.with_extension("copy");
        let _ = std::fs::remove_dir_all(&root);
        sh(&format!("cp -a {} {}", template.display(), root.display()));
        let mut command = Command::new("systemd-nspawn");
        command.args(["--quiet", "--boot", "--register=no", "--keep-unit", "--capability=all"]);
        command.arg("--system-call-filter=bpf perf_event_open").arg("--directory").arg(&root);
        command.arg(format!("--network-namespace-path=/run/netns/{}", world.host.name()));
        command.arg(format!("--machine={}", world.host.name()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        bind_to(&[WIRE_CPU, HOST_CPU]);
        let nspawn = command.spawn().unwrap();
        bind_to(&[WIRE_CPU]);
        let children = format!("/proc/{0}/task/{0}/children", nspawn.id());
        let mut init = String::new();
        within("systemd starts", ms(5000), || {
            let found = std::fs::read_to_string(&children).unwrap_or_default();
            init = found.split_whitespace().next().unwrap_or_default().to_owned();
            let name = std::fs::read_to_string(format!("/proc/{init}/comm")).unwrap_or_default();
            name.trim() == "systemd"
        });
        let debian = Debian { root, nspawn, init };
        // It has booted once it answers; units that a container cannot have make it "degraded".
        within("systemd answers", ms(10_000), || {
            let state = debian.inside(&["systemctl", "is-system-running"]).1;
            matches!(state.trim(), "running" | "degraded")
        });
        // The manager's own /sys shows another network namespace than the one it was put into, and is read-only.
        debian.sh("mkdir -p /run/cg && mount --rbind /sys/fs/cgroup /run/cg && mount -t sysfs sysfs /sys && mount --rbind /run/cg /sys/fs/cgroup");
        debian
    }

    /// Exit code, and both outputs together.
    fn inside(&self, words: &[&str]) -> (i32, String) {
        let output = Command::new("nsenter").args(["-t", &self.init, "-a"]).args(words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    fn sh(&self, line: &str) -> String {
        let (code, text) = self.inside(&["sh", "-c", line]);
        assert_eq!(code, 0, "{line}: {text}\n{}", self.journal());
        text
    }

    fn journal(&self) -> String {
        self.inside(&["journalctl", "-u", UNIT, "-n", "40", "--no-pager", "-o", "short-monotonic"]).1
    }

    fn main_pid(&self) -> u32 {
        self.sh(&format!("systemctl show -p MainPID --value {UNIT}")).trim().parse().unwrap()
    }

    fn active(&self) -> bool {
        self.inside(&["systemctl", "is-active", "--quiet", UNIT]).0 == 0
    }

    /// Every file with its mode and size, but for what a running system and dpkg itself write.
    fn files(&self) -> BTreeSet<String> {
        const LIVE: &str = "-path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp \
                            -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/systemd \
                            -o -path /var/lib/apt -o -path /root";
        let list = self.sh(&format!(
            "find / \\( {LIVE} \\) -prune -o -printf '%p %m %y\\n'; ls -A /run/weir 2>&1; true"
        ));
        list.lines().map(str::to_owned).collect()
    }
}

impl Drop for Debian {
    fn drop(&mut self) {
        let _ = self.inside(&["systemctl", "poweroff"]);
        let end = Instant::now() + ms(10_000);
        while Instant::now() < end && matches!(self.nspawn.try_wait(), Ok(None)) {
            std::thread::sleep(ms(20));
        }
        // The container ends with its manager.
        let _ = self.nspawn.kill();
        let _ = self.nspawn.wait();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Waits for the takeover by a guard that was started in the flood.
fn taken(world: &World, debian: &Debian) {
    let end = Instant::now() + ms(500) * PATIENCE;
    while !world.taken(0) {
        assert!(Instant::now() < end, "no takeover: {}\n{}", debian.sh("weir status"), debian.journal());
        std::thread::sleep(ms(5));
    }
}

/// Does `work` under the load; time until goodput is back for good, spent below half of `full`.
fn dip(sink: &mut Sink, full: f64, what: &str, work: impl FnOnce() + Send) {
    let done = std::sync::atomic::AtomicBool::new(false);
    let low = std::thread::scope(|scope| {
        scope.spawn(|| {
            work();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let (mut low, mut good) = (Duration::ZERO, 0);
        let end = Instant::now() + ms(30_000);
        while good < 4 || !done.load(std::sync::atomic::Ordering::Relaxed) {
            assert!(Instant::now() < end, "{what}: goodput is not back");
            let at = Instant::now();
            if sink.window(ms(50)).pps < 0.5 * full {
                low += at.elapsed();
                good = 0;
            } else {
                good += 1;
            }
        }
        low
    });
    println!("{what}: {low:?} below half of {:.0} k/s", full / 1e3);
    assert!(low <= DIP * PATIENCE, "{what}: {low:?} of low goodput");
}

/// `apt-get` with the repository of this test and no other: the container reaches none.
const APT: &str = "DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dir::Etc::sourcelist=/root/weir.list \
                   -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root";

impl Debian {
    /// Copies the repository in; the versions that it has, the lower first.
    fn bring(&self, repository: &Path) -> [String; 2] {
        sh(&format!("cp -a {} {}", repository.display(), self.root.join("root/apt").display()));
        let trust = match repository.join("weir.gpg").exists() {
            true => "signed-by=/root/apt/weir.gpg",
            false => "trusted=yes",
        };
        println!("the repository is used with [{trust}]");
        let line = format!("deb [{trust}] file:/root/apt stable main\n");
        std::fs::write(self.root.join("root/weir.list"), line).unwrap();
        self.sh(&format!("{APT} update"));
        let list = self.sh("grep -h '^Version: ' /root/apt/dists/stable/main/binary-*/Packages | sort -V");
        let versions: Vec<String> =
            list.lines().map(|line| line.trim_start_matches("Version: ").to_owned()).collect();
        versions.try_into().expect("two versions")
    }

    fn apt(&self, words: &str) -> String {
        self.sh(&format!("{APT} {words}"))
    }

    fn version(&self) -> String {
        self.sh("dpkg-query -W -f '${Version}' weir").trim().to_owned()
    }
}

/// The smallest run that has every part: load, program, hog and guard are found under the installed prefix, and the
/// ledger closes. What it claims of weir is another test's.
fn a_lab_from_the_package(debian: &Debian) {
    // The thread of the test is bound to the wire's CPU.
    let run = "taskset -c 0,1 weir lab run livelock-udp --arms stock-timer,weir --hogs 1 --multiples 4 --base-pps 150000 \
               --duration 200ms --repeat 1 --json /root/lab.json";
    let (code, text) = debian.inside(&["sh", "-c", run]);
    // It measures nothing on a busy machine, and says so; whether its parts are found is not seen then.
    if code == 3 && text.contains("other programs use") {
        println!("skipped: the lab of the package needs two idle CPUs");
        return;
    }
    assert!(matches!(code, 0 | 1), "{run}: {code}: {text}");
    let result: serde_json::Value = serde_json::from_str(&debian.sh("cat /root/lab.json")).unwrap();
    for arm in result["arms"].as_array().unwrap() {
        let point = arm["points"].as_array().unwrap().iter().find(|p| p["multiple"] == 4.0).unwrap();
        println!("{}: {:.0} k/s read", arm["name"], point["goodput_pps"].as_f64().unwrap() / 1e3);
        assert!(point["goodput_pps"].as_f64() > Some(0.0) && point["unaccounted"] == 0, "{point}");
    }
    assert_eq!(result["arms"].as_array().map(Vec::len), Some(2), "{text}");
}

/// A guard of version `from` is killed under load together with its keeper, and the programs of version `to` are asked to put back
/// what it left. They do, or they say that they do not know it and change nothing; then those that wrote it can.
fn crossed(world: &World, debian: &Debian, settings: &Dump, from: &str, to: &str) {
    // The thread of the test is bound to the wire's CPU.
    debian.sh(&format!(
        "taskset -c 0,1 setsid /root/{from}/usr/bin/weir guard in0 --cpu 1 </dev/null >/root/guard.log 2>&1 &"
    ));
    let end = Instant::now() + ms(1000) * PATIENCE;
    while !world.taken(0) {
        assert!(Instant::now() < end, "no takeover by {from}: {}", debian.sh("cat /root/guard.log"));
        std::thread::sleep(ms(5));
    }
    for pid in weirs(&world.host) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), Signal::SIGKILL);
    }
    within("guard and keeper are dead", ms(500), || weirs(&world.host).is_empty());
    let journals = "cd /run/weir && find . -name '*.json' -exec cksum {} + | sort";
    let left = debian.sh(journals);
    assert!(!left.is_empty(), "no journal: {}", debian.sh("ls -l /run/weir; cat /root/guard.log"));
    // Who only looks is no reason to change anything.
    let status = debian.inside(&[&format!("/root/{to}/usr/bin/weir"), "status"]);
    println!("weir status of {to} about a dead guard of {from}: {}: {}", status.0, status.1.trim());
    assert_eq!(debian.sh(journals), left);
    let (code, text) = debian.inside(&[&format!("/root/{to}/usr/bin/weir"), "undo"]);
    println!("weir undo of {to} after a guard of {from}: {code}: {}", text.trim());
    if code != 0 {
        assert!(code > 0 && !text.contains("panicked") && text.contains("/run/weir/"), "{text}");
        assert_eq!(debian.sh(journals), left, "what is refused stays");
        debian.sh(&format!("/root/{from}/usr/bin/weir undo"));
    }
    assert_same(settings, &world.dump(), "undone");
    assert_eq!(debian.sh(journals), "");
}

#[test]
#[ignore = "make package-test"]
fn the_package_comes_guards_and_goes_root() {
    if !possible("the_package_comes_guards_and_goes_root") {
        return;
    }
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let (Some(repository), Some(template)) = (path("WEIR_APT"), path("WEIR_DEBIAN")) else {
        eprintln!(
            "skipped: the_package_comes_guards_and_goes_root needs WEIR_APT and WEIR_DEBIAN: make package-test"
        );
        return;
    };
    let _alone = alone();
    let world = World::new("package", 1);
    let settings = world.dump();
    let debian = Debian::boot(&world, &template);
    let [old, new] = debian.bring(&repository);
    let files = debian.files();
    assert!(files.len() > 1000, "{}", files.len());

    // As an administrator does who has the repository: what it depends on comes along, or is there.
    debian.apt(&format!("install weir={old}"));
    assert_eq!(debian.version(), old);
    for there in ["/usr/bin/weir", "/etc/weir/weir.toml", "/usr/share/man/man1/weir-guard.1.gz"] {
        assert!(debian.root.join(&there[1..]).exists(), "{there}");
    }
    assert!(!debian.active(), "nothing is started before an administrator names an interface");
    println!("{}", debian.sh(&format!("systemd-analyze verify --man=no {UNIT} && echo verified")));
    let exposure = debian.sh(&format!("systemd-analyze security --no-pager {UNIT} | tail -n 1"));
    println!("{}", exposure.trim());
    let check = debian.sh("weir check in0");
    assert!(check.contains("auto = poll"), "{check}");
    assert!(debian.sh("weir lab list").contains("livelock-udp"));

    // CPU 1 is the host's; the file is an administrator's from here on.
    debian.sh("sed -i 's/^#cpu = .*/cpu = \"1\"/' /etc/weir/weir.toml");
    debian.sh(&format!("systemctl enable --now {UNIT}"));
    assert!(debian.active());
    let mut sink = world.sink(0, PORT);
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    std::thread::sleep(ms(200));
    let full = (0..3).map(|_| sink.window(ms(200)).pps).fold(0.0, f64::max);
    let status: serde_json::Value = serde_json::from_str(debian.sh("weir status --json").trim()).unwrap();
    assert_eq!(status["pollers"][0]["sched"], "fifo");
    // What the unit withholds on purpose, and what a container's control group does not permit, is told; no capability of
    // those that the guard needs is missing.
    println!("missing: {}", status["missing"]);
    assert!(!status["missing"].to_string().contains("needs CAP_"), "{status:#}");
    println!("{:.0} k/s read under the unit", full / 1e3);

    // Of each version, the programs alone: no script of a package comes between.
    for version in [&old, &new] {
        debian.sh(&format!("dpkg-deb -x /root/apt/pool/weir_{version}_*.deb /root/{version}"));
    }
    dip(&mut sink, full, "systemctl restart", || drop(debian.sh(&format!("systemctl restart {UNIT}"))));
    let before = debian.main_pid();
    dip(&mut sink, full, "upgrade", || drop(debian.apt("install weir")));
    assert_eq!(debian.version(), new);
    let upgraded = debian.main_pid();
    assert_ne!(upgraded, before, "the upgrade has not restarted the guard");
    taken(&world, &debian);
    dip(&mut sink, full, "rollback", || {
        drop(debian.apt(&format!("install --allow-downgrades weir={old}")));
    });
    assert_eq!(debian.version(), old);
    assert_ne!(debian.main_pid(), upgraded, "the rollback has not restarted the guard");
    taken(&world, &debian);
    dip(&mut sink, full, "upgrade again", || drop(debian.apt("install weir")));
    assert_eq!(debian.version(), new);
    taken(&world, &debian);
    // What runs with capabilities is small. The manager's number of it is that of its own namespace.
    let size = std::fs::metadata(debian.root.join("usr/lib/weir/weir-guard")).unwrap().len();
    let guard = weirs(&world.host).into_iter().find(|pid| is_guard(*pid));
    let resident = resident_kib(guard.expect("a guard"));
    println!("weir-guard: {size} bytes, {resident} KiB resident");
    assert!(size <= 4 << 20 && resident <= 16 << 10, "{size} bytes, {resident} KiB");
    assert!(debian.sh("cat /etc/weir/weir.toml").contains("\ncpu = \"1\""), "the changed file was replaced");
    let hup = debian.sh(&format!("systemctl reload {UNIT} && systemctl is-active {UNIT}"));
    assert_eq!(hup.trim(), "active");
    debian.sh("sleep 1; journalctl -u weir-guard@in0 --no-pager | grep 'reload .*in force'");
    // Priorities reach the journal: nothing is worse than a warning.
    let errors = debian.sh(&format!("journalctl -u {UNIT} -p err --no-pager -q"));
    assert_eq!(errors.trim(), "", "{errors}");

    // It hangs: the watchdog ends it, and it comes back.
    let hung = debian.main_pid();
    weirs(&world.host).iter().filter(|pid| is_guard(**pid)).for_each(|pid| signal(*pid, Signal::SIGSTOP));
    let begin = Instant::now();
    within("the manager starts a hung guard again", ms(20_000), || {
        debian.active() && debian.main_pid() != hung
    });
    println!("hung: another guard after {:.1?}", begin.elapsed());
    taken(&world, &debian);
    // It and its keeper are killed: ExecStopPost undoes what they left.
    let killed = debian.main_pid();
    weirs(&world.host).iter().for_each(|pid| {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid as i32), Signal::SIGKILL);
    });
    within("another guard after the crash", ms(3000), || debian.active() && debian.main_pid() != killed);
    taken(&world, &debian);
    drop(load);

    debian.sh(&format!("systemctl stop {UNIT}"));
    within("no process is left", ms(500), || weirs(&world.host).is_empty());
    assert_same(&settings, &world.dump(), "the service has stopped");
    a_lab_from_the_package(&debian);
    {
        let _load = world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
        crossed(&world, &debian, &settings, &old, &new);
        crossed(&world, &debian, &settings, &new, &old);
    }
    // Purged while it guards, and enabled for the next boot.
    debian.sh(&format!("systemctl start {UNIT}"));
    println!("{}", debian.sh("dpkg -P weir").trim());
    within("no process is left", ms(500), || weirs(&world.host).is_empty());
    assert_same(&settings, &world.dump(), "the package was purged");
    let after = debian.files();
    let left: Vec<&String> = after.difference(&files).collect();
    let lost: Vec<&String> = files.difference(&after).collect();
    assert!(left.is_empty() && lost.is_empty(), "left: {left:#?}\nlost: {lost:#?}");
    assert!(!debian.root.join("run/weir").exists());
}
