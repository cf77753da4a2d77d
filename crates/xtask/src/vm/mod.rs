//! The host's side: machines, one per kernel and driver, and the table of what was seen.

mod frames;
mod image;
mod machine;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

/// What is tested on each kernel: its verifier, and drivers by the name of the module, QEMU's device and queues.
const DRIVERS: [Driver; 5] = [
    Driver { module: crate::VERIFIER, device: "", queues: 1, tap: false },
    Driver { module: "virtio_net", device: "virtio-net-pci", queues: 2, tap: true },
    Driver { module: "e1000e", device: "e1000e", queues: 1, tap: false },
    Driver { module: "igb", device: "igb", queues: 2, tap: false },
    Driver { module: "vmxnet3", device: "vmxnet3", queues: 1, tap: false },
];

/// A driver under test.
#[derive(Clone, Copy)]
pub struct Driver {
    module: &'static str,
    device: &'static str,
    queues: u32,
    /// Its queues are those of a tap device; other devices share frames out themselves.
    tap: bool,
}

/// What the machines of one architecture are.
struct Board {
    qemu: &'static str,
    /// Model, processor and memory.
    parts: &'static [&'static str],
    /// Device of the kernel's console.
    console: &'static str,
    /// The line to the host, for QEMU and in the machine.
    line: &'static [&'static str],
    device: &'static str,
}

const PC: Board = Board {
    qemu: "qemu-system-x86_64",
    parts: &["-M", "q35", "-cpu", "max", "-m", "768"],
    console: "ttyS0",
    line: &["-serial", "stdio"],
    device: "/dev/ttyS1",
};

/// Names of its kernels end so. It runs only where it is named: its programs are built for it alone.
const ARM64: &str = "arm64";
/// Its one port is the console; the line to the host is a card. Its clock counts instructions, 8 ns each, so that a host
/// with other work does not let its deadlines pass.
const VIRT: Board = Board {
    qemu: "qemu-system-aarch64",
    parts: &["-M", "virt", "-cpu", "cortex-a72", "-m", "1024", "-icount", "shift=3"],
    console: "ttyAMA0",
    line: &["-chardev", "stdio,id=host", "-device", "pci-serial,chardev=host"],
    device: "/dev/ttyS0",
};

/// The board for a kernel of this name.
fn board(kernel: &str) -> &'static Board {
    if kernel.ends_with(ARM64) { &VIRT } else { &PC }
}

/// Whether a machine of this title is asked for.
fn wanted(title: &str, kernel: &str, only: &[String]) -> bool {
    only.iter().all(|o| title.contains(o.as_str()))
        && (!kernel.ends_with(ARM64) || only.iter().any(|o| o == ARM64))
}

/// True if this QEMU has the device.
fn emulated(qemu: &str, device: &str) -> bool {
    let help = format!("{device},help");
    let asked = std::process::Command::new(qemu).args(["-M", "none", "-device", &help]).output();
    // The exit code does not tell.
    device.is_empty() || asked.is_ok_and(|o| !o.stdout.is_empty())
}

/// One answer of a machine.
pub struct Row {
    name: String,
    /// `ok`, `FAIL` or `skip`.
    answer: String,
    detail: String,
}

/// What the machines are made of.
pub struct Options {
    /// Holds one directory per kernel, with `vmlinuz` and `modules`.
    kernels: PathBuf,
    /// Directory of weir, udp-sink and this program.
    programs: PathBuf,
    /// The same for machines of the other architecture.
    arm64: PathBuf,
    only: Vec<String>,
    /// Put before QEMU's command line.
    wrapper: Vec<String>,
}

impl Options {
    /// The programs that `kernel` can run.
    fn programs_for(&self, kernel: &str) -> &Path {
        if kernel.ends_with(ARM64) { &self.arm64 } else { &self.programs }
    }
}

fn options(args: &[String]) -> anyhow::Result<Options> {
    let mut opts = Options {
        kernels: "target/vm/kernels".into(),
        programs: "target/release".into(),
        arm64: "target/aarch64-unknown-linux-musl/release".into(),
        only: Vec::new(),
        wrapper: Vec::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--kernels" => opts.kernels = value()?.into(),
            "--programs" => opts.programs = value()?.into(),
            "--arm64-programs" => opts.arm64 = value()?.into(),
            "--only" => opts.only.extend(value()?.split(',').map(str::to_owned)),
            "--wrapper" => opts.wrapper.extend(value()?.split_whitespace().map(str::to_owned)),
            other => bail!("{other}: not --kernels, --programs, --arm64-programs, --only or --wrapper"),
        }
    }
    Ok(opts)
}

/// Runs every machine; exit code 1 if a check failed.
pub fn main(args: &[String]) -> anyhow::Result<ExitCode> {
    let opts = options(args)?;
    let kernels = kernels(&opts.kernels)?;
    let work = opts.kernels.parent().unwrap_or(Path::new(".")).join("run");
    std::fs::create_dir_all(&work)?;
    if std::env::var_os("WEIR_VM_NETNS").is_some() {
        crate::guest::net::set_up("lo", true)?;
    }
    let mut failed = 0;
    let mut summary = Vec::new();
    for kernel in &kernels {
        for driver in DRIVERS {
            let title = format!("{kernel} {}", driver.module);
            if !wanted(&title, kernel, &opts.only) {
                continue;
            }
            if !emulated(board(kernel).qemu, driver.device) {
                println!("skipped: {title}: this QEMU has no device {}", driver.device);
                continue;
            }
            let rows = machine::run(&opts, kernel, driver, &work.join(title.replace(' ', "-")))
                .unwrap_or_else(|e| vec![Row::new("machine", "FAIL", &format!("{e:#}"))]);
            let bad = rows.iter().filter(|r| r.answer == "FAIL").count();
            failed += bad;
            print(&title, &rows)?;
            summary.push((title, rows.len(), bad));
        }
    }
    if summary.is_empty() {
        println!("skipped: no machine that is asked for; kernels here: {}", kernels.join(" "));
        return Ok(ExitCode::SUCCESS);
    }
    println!("kernel and driver                         checks  failed");
    for (title, checks, bad) in summary {
        println!("{title:<40} {checks:>7} {bad:>7}");
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// Names of the kernels that are there, oldest first.
fn kernels(dir: &Path) -> anyhow::Result<Vec<String>> {
    let version = |name: &str| -> Vec<u32> {
        name.split(|c: char| !c.is_ascii_digit()).take(3).filter_map(|n| n.parse().ok()).collect()
    };
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .with_context(|| format!("{}; run it by `make vm-test`", dir.display()))?
        .flatten()
        .filter(|e| e.path().join("vmlinuz").exists())
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_by_key(|n| version(n));
    Ok(names)
}

impl Row {
    fn new(name: &str, answer: &str, detail: &str) -> Self {
        Self { name: name.into(), answer: answer.into(), detail: detail.into() }
    }
}

fn print(title: &str, rows: &[Row]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{title}")?;
    for row in rows {
        writeln!(out, "  {:<4} {:<26} {}", row.answer, row.name, row.detail)?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_of_another_architecture_are_named() {
        let only = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let (here, there) = ("6.12.117+deb13", "6.12.117+deb13-arm64");
        let wanted = |kernel: &str, words: &[&str]| wanted(&format!("{kernel} e1000e"), kernel, &only(words));
        assert!(wanted(here, &[]) && wanted(here, &["6.12.", "e1000e"]) && !wanted(here, &["arm64"]));
        assert!(!wanted(there, &[]) && !wanted(there, &["6.12."]));
        assert!(wanted(there, &["arm64"]) && wanted(there, &["arm64", "e1000e"]));
        assert!(!wanted(there, &["arm64", "igb"]));
        assert_eq!((board(here).qemu, board(there).qemu), ("qemu-system-x86_64", "qemu-system-aarch64"));
    }
}
