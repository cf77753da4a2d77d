//! Podman with a store of its own, and weir's image in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::world::{World, bind_to};
use super::{HOST_CPU, WIRE_CPU};

/// What a guard needs, as the unit and the DaemonSet name it.
pub const GUARD: [&str; 4] = ["BPF", "PERFMON", "NET_ADMIN", "SYS_NICE"];
/// The same as the kernel's bits: 39, 38, 12, 23.
pub const GUARD_BITS: u64 = (1 << 39) | (1 << 38) | (1 << 12) | (1 << 23);

/// Gone, with its images and containers, when it is dropped.
pub struct Podman<'w> {
    /// Whose host the containers are on.
    pub world: &'w World,
    dir: tempfile::TempDir,
    /// The image's name.
    pub image: String,
}

impl Podman<'_> {
    /// A store with the image of this file.
    pub fn new<'w>(world: &'w World, image: &Path) -> Podman<'w> {
        let mut podman = Podman { world, dir: tempfile::tempdir().unwrap(), image: String::new() };
        let loaded = podman.command().args(["load", "-i"]).arg(image).output().unwrap();
        let text = String::from_utf8_lossy(&loaded.stdout).into_owned();
        assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
        podman.image = text.trim().rsplit(' ').next().unwrap().to_owned();
        podman
    }

    /// `podman` with its store.
    pub fn command(&self) -> Command {
        self.command_by("podman")
    }

    /// The same behind other words.
    pub fn command_by(&self, words: &str) -> Command {
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        let dir = |name: &str| self.dir.path().join(name);
        command.arg("--root").arg(dir("root")).arg("--runroot").arg(dir("run"));
        command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]);
        // crun refuses where both versions of control groups are mounted.
        if Path::new("/sys/fs/cgroup/unified").exists() {
            command.args(["--runtime", "runc"]);
        }
        command.stdin(Stdio::null());
        command
    }

    /// `podman run` of the image with these capabilities, in the network namespace of the host under test.
    pub fn run(&self, capabilities: &[&str], more: &[&str]) -> Command {
        let mut command = self.command();
        command.args(["run", "--rm", "--read-only", "--cap-drop", "all"]);
        for cap in capabilities {
            command.args(["--cap-add", cap]);
        }
        // The default profile of podman 4 lets only CAP_SYS_ADMIN call bpf().
        command.args(["--security-opt", "seccomp=unconfined"]);
        // That of AppArmor lets nobody write to /sys.
        command.args(["--security-opt", "apparmor=unconfined"]);
        // Without CAP_SYS_RESOURCE podman cannot raise them, as it does by default.
        command.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
        command.arg(format!("--network=ns:/run/netns/{}", self.world.host.name()));
        let run = self.world.dir.path().join("run");
        command.arg("--volume").arg(format!("{}:/run/weir", run.display()));
        command.args(more).arg(&self.image);
        command
    }

    /// Exit code and both outputs of one that ends.
    pub fn ask(&self, capabilities: &[&str], more: &[&str], words: &[&str]) -> (i32, String, String) {
        bind_to(&[WIRE_CPU, HOST_CPU]);
        let output = self.run(capabilities, more).args(words).output().unwrap();
        bind_to(&[WIRE_CPU]);
        let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }
}

/// Processes `weir guard` in the host's namespace, as this machine numbers them.
pub fn guards(world: &World) -> Vec<u32> {
    super::procs::weirs(&world.host).into_iter().filter(|pid| super::procs::is_guard(*pid)).collect()
}

/// The effective capabilities of a process.
pub fn effective(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// The image's file; else says what the test lacks. `target` makes it.
pub fn image(name: &str, target: &str) -> Option<PathBuf> {
    let image = std::env::var_os("WEIR_IMAGE").map(PathBuf::from);
    if image.is_none() {
        eprintln!("skipped: {name} needs WEIR_IMAGE: make {target}");
    } else if Command::new("podman").arg("--version").output().is_err() {
        eprintln!("skipped: {name} needs podman: apt-get install podman runc");
        return None;
    }
    image
}
