//! The pod of the DaemonSet (packaging/kubernetes/weir.yaml), started by `podman kube play` on a device of the test: undo, then
//! guard and metrics, with the rights that the manifest gives them and no other. Run by `make kube-test`, which makes the image
//! (`WEIR_IMAGE`).
//!
//! Podman is no kubelet. What it does not take from a manifest, this test gives it: see [`pod`].
//!
//! Cannot flake: what must come is waited for as a state, and deadlines are asserted five times as long as stated.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::dump::assert_same;
use common::podman::{GUARD_BITS, Podman, effective, guards, image};
use common::procs::weirs;
use common::world::{FLOOD, PORT, World};
use common::{alone, ms, possible, within};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The pod as the DaemonSet has it, and its configuration, with what is of a node: the interface, the CPU and the directory.
///
/// Podman knows no DaemonSet, so its template stands as a pod; it takes seccomp profiles from annotations only, does not know
/// the node's address nor a single file of a configuration, starts even the first container again and again if the others are to be started again, refuses ports of a pod that has the network of the node anyway, and has no probes without systemd.
fn pod(world: &World, image: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/weir.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let documents: Vec<&str> = text.split("\n---\n").collect();
    let (config, set) = (documents[1], documents[2]);
    let (_, template) = set.split_once("\n  template:\n").unwrap();
    let lines = template.lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
    let template = lines.collect::<Vec<_>>().join("\n");
    let run = format!("path: {}\n", world.dir.path().join("run").display());
    let changes = [
        (
            "metadata:\n",
            "metadata:\n  name: weir\n  annotations:\n    seccomp.security.alpha.kubernetes.io/pod: unconfined\n",
        ),
        ("\nspec:\n", "\nspec:\n  restartPolicy: Never\n"),
        ("localhost/weir:0.1.0", image),
        ("path: /run/weir\n", run.as_str()),
        ("$(NODE_ADDRESS)", "127.0.0.1"),
        ("mountPath: /etc/weir/weir.toml\n          subPath: weir.toml\n", "mountPath: /etc/weir\n"),
        ("fieldPath: status.hostIP", "fieldPath: metadata.name"),
        (
            "      ports:\n        - name: metrics\n          containerPort: 9495\n          hostPort: 9495\n          protocol: TCP\n",
            "",
        ),
        ("port: metrics\n", "port: 9495\n"),
    ];
    let pod = changes.iter().fold(template, |text, (old, new)| {
        assert!(text.contains(old), "the manifest has no {old}");
        text.replacen(old, new, if *old == "metadata:\n" { 1 } else { usize::MAX })
    });
    let config = config.replace("interfaces = [\"eth0\"]", "interfaces = [\"in0\"]\n    cpu = \"1\"");
    let file = world.dir.path().join("pod.yaml");
    std::fs::write(&file, format!("{config}\n---\napiVersion: v1\nkind: Pod\n{pod}\n")).unwrap();
    file
}

/// A pod that was started; taken down when dropped.
struct Pod<'w> {
    podman: &'w Podman<'w>,
    file: PathBuf,
}

impl<'w> Pod<'w> {
    fn play(podman: &'w Podman<'w>) -> Pod<'w> {
        let pod = Pod { podman, file: pod(podman.world, &podman.image) };
        let output = pod.podman(&["kube", "play", pod.file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        within("the guard is in force", ms(5000), || pod.said("guard").contains("weir: guarding in0"));
        pod
    }

    /// Podman as on a node: in the namespaces of the host, on both CPUs.
    fn podman(&self, words: &[&str]) -> Output {
        // The /sys of the namespace's devices, with the control groups of the machine below it.
        let script = self.podman.world.dir.path().join("podman.sh");
        let text = "set -e; d=$(mktemp -d); mount --rbind /sys/fs/cgroup $d; mount -t sysfs sysfs /sys\n\
                    mount --rbind $d /sys/fs/cgroup; umount -l $d; rmdir $d\nexec taskset -c 0,1 podman \"$@\"\n";
        std::fs::write(&script, text).unwrap();
        // Without CAP_SYS_RESOURCE podman cannot raise them, as it does by default.
        let limits = self.podman.world.dir.path().join("containers.conf");
        let text = "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n";
        std::fs::write(&limits, text).unwrap();
        let net = format!("nsenter --net=/run/netns/{}", self.podman.world.host.name());
        let mut command = self.podman.command_by(&format!("{net} unshare --mount sh {}", script.display()));
        command.args(words).env("CONTAINERS_CONF", limits).output().unwrap()
    }

    /// Everything that a container has printed.
    fn said(&self, container: &str) -> String {
        let output = self.podman(&["logs", &format!("weir-{container}")]);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    fn down(&self) {
        let output = self.podman(&["kube", "down", self.file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        let _ = self.podman(&["pod", "rm", "--force", "--all", "--time", "5"]);
    }
}

/// A page, as it comes.
fn page(server: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(ms(10_000)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
#[ignore = "make kube-test"]
fn the_pod_of_the_daemonset_guards_root() {
    let name = "the_pod_of_the_daemonset_guards_root";
    if !possible(name) {
        return;
    }
    let Some(image) = image(name, "kube-test") else { return };
    let _alone = alone();
    let world = World::new("kube", 1);
    std::fs::create_dir_all(world.dir.path().join("run")).unwrap();
    let before = world.dump();
    let mut sink = world.sink(0, PORT);
    let podman = Podman::new(&world, &image);

    let pod = Pod::play(&podman);
    let guard = guards(&world)[0];
    assert_eq!(effective(guard), GUARD_BITS, "other capabilities than those four");
    let watch = weirs(&world.host).into_iter().find(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|c| c.split(|b| *b == 0).any(|w| w == b"watch"))
    });
    assert_eq!(effective(watch.expect("who serves the metrics")), 0, "who serves metrics needs none");
    let load = world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
    within("takeover", ms(500), || world.taken(0));
    let read = sink.window(ms(500)).pps;
    println!("{:.0} k/s read", read / 1e3);
    assert!(read > 1e4, "{read}");
    // What the probes ask.
    let probe = ["exec", "weir-guard", "/weir", "status", "--config", "/etc/weir/weir.toml", "--json"];
    let status = pod.podman(&probe);
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    // On a fast CPU shedding alone will do.
    let mode = status["interfaces"][0]["sources"][0]["mode"].as_str();
    assert!(matches!(mode, Some("poll" | "shed")), "{status:#}");
    let pids = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    println!("the node's processes are seen: {}", pids(&guard.to_string()) == pids("self"));
    within("metrics with a guard", ms(10_000), || {
        let page = world.inside(|| page("127.0.0.1:9495", "/metrics")).unwrap_or_default();
        page.lines().any(|line| line == "weir_guards 1.0")
    });

    // All of it dies at once; the next pod's first container puts back what is left.
    for pid in weirs(&world.host) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), Signal::SIGKILL);
    }
    within("every process ends", ms(2000), || weirs(&world.host).is_empty());
    assert!(world.taken(0), "somebody has put it back already: the test shows nothing");
    drop(load);
    drop(pod);
    let pod = Pod::play(&podman);
    assert_same(&before, &world.dump(), "undone by the pod's first container");
    pod.down();
    within("every process ends", ms(3000), || weirs(&world.host).is_empty());
    assert_same(&before, &world.dump(), "the pod was taken down");
}
