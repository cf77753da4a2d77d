//! Test helpers: a gate for privileged tests, network namespaces that delete themselves, a packet builder,
//! random frames, and programs on a terminal.
//!
//! Nothing here is for programs that ship: a failed system call panics with what failed, because a test has
//! no better answer.

pub mod frames;
pub mod openmetrics;
pub mod packet;
pub mod pty;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::net::{ToSocketAddrs, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

/// Connections and SYNs that full accept queues have refused, by the text of a namespace's `/proc/net/netstat`.
pub fn listen_overflows(netstat: &str) -> Option<u64> {
    let mut rows = netstat.lines().filter(|line| line.starts_with("TcpExt:")).map(str::split_whitespace);
    let (mut names, mut values) = (rows.next()?, rows.next()?);
    values.nth(names.position(|name| name == "ListenOverflows")?)?.parse().ok()
}

/// A UDP socket on an address that one had a moment ago: a child that another test starts keeps that one open until it runs its program.
pub fn bind_again(address: impl ToSocketAddrs + Copy) -> UdpSocket {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match UdpSocket::bind(address) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(socket) => return socket,
            Err(e) => panic!("a socket: {e}"),
        }
    }
}

/// True with effective user id 0. Otherwise prints `skipped: NAME needs root` and answers false: the test
/// returns at once.
#[must_use]
pub fn root_or_skip(name: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: {name} needs root");
    }
    root
}

/// True if this thread may run on two CPUs, else says that `name` was skipped.
pub fn two_cpus_or_skip(name: &str) -> bool {
    let two = std::thread::available_parallelism().is_ok_and(|n| n.get() >= 2);
    if !two {
        eprintln!("skipped: {name} needs two CPUs");
    }
    two
}

/// True with nft; else says that the test is skipped.
pub fn nft_or_skip(name: &str) -> bool {
    let found = std::process::Command::new("nft").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {name} needs nft: apt-get install nftables");
    }
    found
}

/// Returns from the calling test, with a line that says so, unless it runs as root.
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::root_or_skip(std::thread::current().name().unwrap_or("test")) {
            return;
        }
    };
}

/// A named network namespace, visible to `ip netns`, deleted when this value is dropped.
#[derive(Debug)]
pub struct NetNs {
    name: String,
    path: PathBuf,
}

static SERIAL: AtomicU32 = AtomicU32::new(0);

impl NetNs {
    /// Makes the namespace `weir-PID-tTAG-SERIAL`; its loopback is down and nothing else is in it.
    ///
    /// # Panics
    /// If the namespace cannot be made (no CAP_SYS_ADMIN).
    #[must_use]
    pub fn new(tag: &str) -> NetNs {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-{}-t{tag}-{serial}", std::process::id());
        let path = Path::new("/run/netns").join(&name);
        fs::create_dir_all("/run/netns").unwrap_or_else(|e| panic!("/run/netns: {e}"));
        File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let target = path.clone();
        let made = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            // The bind mount keeps the namespace alive when this thread is gone.
            mount(Some("/proc/thread-self/ns/net"), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        })
        .join();
        // From here on Drop cleans up, also when the check below panics.
        let ns = NetNs { name, path };
        match made {
            Ok(Ok(())) => ns,
            Ok(Err(e)) => panic!("network namespace {}: {e}", ns.name),
            Err(_) => panic!("network namespace {}: thread panicked", ns.name),
        }
    }

    /// The name as `ip netns` shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file to open for `setns`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling thread into the namespace until the guard is dropped.
    ///
    /// # Panics
    /// If `setns` fails.
    #[must_use]
    pub fn enter(&self) -> Entered {
        let open = |p: &Path| File::open(p).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
        let before = open(Path::new("/proc/thread-self/ns/net"));
        setns(open(&self.path).as_fd(), CloneFlags::CLONE_NEWNET)
            .unwrap_or_else(|e| panic!("setns {}: {e}", self.name));
        Entered { before, not_send: PhantomData }
    }

    /// Runs `work` in a thread of its own inside the namespace and waits for it.
    ///
    /// # Panics
    /// With the panic of `work`, or if `setns` fails.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let result = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _inside = self.enter();
                    work()
                })
                .join()
        });
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs a command inside the namespace and answers its standard output.
    ///
    /// # Panics
    /// If it cannot be started or fails; the message carries its standard error.
    pub fn sh(&self, program: &str, args: &[&str]) -> String {
        let output = self.run(|| std::process::Command::new(program).args(args).output());
        let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?} in {}: {error}", self.name);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // A drop during a panic must not panic again: what is left is found by its dead process id.
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = fs::remove_file(&self.path);
    }
}

/// The calling thread is inside a namespace; dropping this brings it back. Not `Send`, because a namespace
/// belongs to a thread.
#[derive(Debug)]
pub struct Entered {
    before: File,
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let back = setns(self.before.as_fd(), CloneFlags::CLONE_NEWNET);
        if !std::thread::panicking() {
            back.unwrap_or_else(|e| panic!("setns back: {e}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_inode() -> u64 {
        use std::os::unix::fs::MetadataExt;
        fs::metadata("/proc/thread-self/ns/net").unwrap().ino()
    }

    #[test]
    fn namespace_is_entered_left_and_deleted_root() {
        need_root!();
        let before = own_inode();
        let ns = NetNs::new("self");
        let path = ns.path().to_owned();
        {
            let _inside = ns.enter();
            assert_ne!(own_inode(), before);
        }
        assert_eq!(own_inode(), before);
        assert_ne!(ns.run(own_inode), before);
        drop(ns);
        assert!(!path.exists());
    }

    #[test]
    fn namespace_is_deleted_when_its_test_panics_root() {
        need_root!();
        let ns = NetNs::new("panic");
        let path = ns.path().to_owned();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _inside = ns.enter();
            panic!("on purpose");
        }));
        assert!(result.is_err());
        assert!(!path.exists());
    }
}
