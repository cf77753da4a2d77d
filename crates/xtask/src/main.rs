//! Chores of developers. `xtask vm-test` boots Debian kernels in emulated machines and runs weir on real drivers
//! there (docs/drivers.md); the same program is the first process of those machines. `xtask metrics` writes
//! docs/metrics.md from the table of metrics, `xtask pages` the tables of docs/measurements from the results, `xtask sbom`
//! what the programs are made of.

mod guest;
mod mutants;
mod sbom;
mod vm;

use anyhow::Context;
use std::process::ExitCode;

/// Experiments of the simulator whose results an emulated machine must write byte for byte as this one does: one of each of
/// three kinds of machines.
const SIMULATED: [&[&str]; 3] = [&["low-water"], &["first-drop"], &["livelock-udp", "--arms", "weir"]];

/// In place of a driver: a machine without a network device, which loads every BPF program.
const VERIFIER: &str = "verifier";

fn main() -> ExitCode {
    if std::process::id() == 1 {
        guest::main();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("vm-test") => vm::main(&args[1..]),
        Some("metrics") => metrics(),
        Some("pages") => pages(),
        Some("mutants") => mutants::main(&args[1..]),
        Some("sbom") => sbom::main(&args[1..]),
        _ => {
            Err(anyhow::anyhow!("none of vm-test (run it by `make vm-test`), metrics, pages, mutants, sbom"))
        }
    };
    result.unwrap_or_else(|e| {
        eprintln!("xtask: {e:#}");
        ExitCode::from(2)
    })
}

/// Run it in the root of the tree.
fn metrics() -> anyhow::Result<ExitCode> {
    const PAGE: &str = "docs/metrics.md";
    std::fs::write(PAGE, serve::metrics::document()).with_context(|| PAGE.to_owned())?;
    Ok(ExitCode::SUCCESS)
}

/// Run it in the root of the tree.
fn pages() -> anyhow::Result<ExitCode> {
    const DIRECTORY: &str = "docs/measurements";
    for entry in std::fs::read_dir(DIRECTORY).context(DIRECTORY)? {
        let path = entry?.path();
        let name = path.display().to_string();
        let text = std::fs::read_to_string(&path).with_context(|| name.clone())?;
        let read = |result: &str| {
            let file = std::path::Path::new(DIRECTORY).join(result);
            results::Document::read(&file).map_err(|err| err.to_string())
        };
        let made = results::markdown::page(&text, read).map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
        if made != text {
            std::fs::write(&path, made).with_context(|| name.clone())?;
            println!("{name}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
