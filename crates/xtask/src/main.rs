//! Chores of developers. `xtask vm-test` boots Debian kernels in emulated machines and runs weir on real drivers
//! there (docs/drivers.md); the same program is the first process of those machines.

mod guest;
mod vm;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        guest::main();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("vm-test") => vm::main(&args[1..]),
        _ => Err(anyhow::anyhow!("not vm-test; run it by `make vm-test`")),
    };
    result.unwrap_or_else(|e| {
        eprintln!("xtask: {e:#}");
        ExitCode::from(2)
    })
}
