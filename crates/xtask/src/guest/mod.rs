//! The first process of a machine: mounts, loads the driver, runs weir against it, and tells the host what it saw.
//! Counts decide, never times: in an emulated machine time means nothing.

mod checks;
pub mod net;
mod seen;
mod verifier;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;

use anyhow::Context;

/// The line to the host.
pub struct Host {
    out: File,
    input: BufReader<File>,
}

impl Host {
    fn open() -> anyhow::Result<Self> {
        let out = OpenOptions::new().read(true).write(true).open(parameter("line"))?;
        // SAFETY: all-zero is a valid termios; the kernel fills it.
        let mut raw: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: `raw` lives through the calls.
        unsafe {
            libc::tcgetattr(out.as_raw_fd(), &raw mut raw);
            libc::cfmakeraw(&raw mut raw);
            libc::tcsetattr(out.as_raw_fd(), libc::TCSANOW, &raw const raw);
        }
        let input = BufReader::new(out.try_clone()?);
        Ok(Self { out, input })
    }

    fn tell(&mut self, line: &str) {
        // Without the host nothing can be told.
        let _ = writeln!(self.out, "{line}");
        let _ = self.out.flush();
    }

    fn ask(&mut self, line: &str) {
        self.tell(line);
        let mut answer = String::new();
        let _ = self.input.read_line(&mut answer);
    }

    /// One row of the table.
    pub fn row(&mut self, ok: bool, name: &str, detail: &str) {
        let detail = detail.replace(['\n', '\t'], " ");
        self.tell(&format!("row\t{}\t{name}\t{detail}", if ok { "ok" } else { "FAIL" }));
    }

    /// Something for the log of the host.
    pub fn note(&mut self, text: &str) {
        for line in text.lines() {
            self.tell(&format!("note {line}"));
        }
    }

    /// The host sends `rate` frames per second until [`Self::calm`].
    pub fn flood(&mut self, rate: u64) {
        self.tell(&format!("flood {rate}"));
    }

    /// The flood has ended.
    pub fn calm(&mut self) {
        self.ask("calm");
    }

    /// The host has sent `count` frames at `rate` per second.
    pub fn send(&mut self, count: u64, rate: u64) {
        self.ask(&format!("send {count} {rate}"));
    }
}

/// Value of `weir.NAME=` on the kernel's command line.
fn parameter(name: &str) -> String {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let key = format!("weir.{name}=");
    line.split_whitespace().find_map(|w| w.strip_prefix(&key)).unwrap_or_default().to_owned()
}

fn mount(kind: &str, at: &str) {
    let none: Option<&str> = None;
    // What is mounted already, or unknown to this kernel, is missed by what needs it.
    let _ = nix::mount::mount(Some(kind), at, Some(kind), nix::mount::MsFlags::empty(), none);
}

fn load_modules() -> anyhow::Result<()> {
    let mut names: Vec<_> = std::fs::read_dir("/modules")?.flatten().map(|e| e.path()).collect();
    names.sort();
    for path in names {
        let file = File::open(&path)?;
        // SAFETY: plain system call; the descriptor and the empty string live through it.
        let rc = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
        let error = std::io::Error::last_os_error();
        if rc != 0 && error.raw_os_error() != Some(libc::EEXIST) {
            return Err(error).with_context(|| path.display().to_string());
        }
    }
    Ok(())
}

fn work(host: &mut Host) -> anyhow::Result<()> {
    load_modules()?;
    if parameter("driver") == crate::VERIFIER {
        return verifier::run(host);
    }
    seen::wait(20, || std::path::Path::new("/sys/class/net/eth0").exists())
        .then_some(())
        .context("no eth0 after loading the driver")?;
    net::set_up("lo", true)?;
    net::address("eth0", [10, 0, 0, 2])?;
    net::set_up("eth0", true)?;
    host.tell("ready");
    checks::run(host, &parameter("driver"), parameter("queues").parse().unwrap_or(1))
}

/// Never returns: the machine ends with it.
pub fn main() -> ! {
    for (kind, at) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run")] {
        mount(kind, at);
    }
    mount("tracefs", "/sys/kernel/tracing");
    mount("securityfs", "/sys/kernel/security");
    if let Ok(mut host) = Host::open() {
        if let Err(e) = work(&mut host) {
            host.row(false, "machine", &format!("{e:#}"));
        }
        host.tell("done");
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    let _ = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_AUTOBOOT);
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}
