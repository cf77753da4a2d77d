//! weir: receive scheduler for Linux.

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(fuzzing, no_main, allow(dead_code, unused_imports, reason = "the fuzzer has its own main"))]

#[cfg(not(no_bpf))]
mod accept;
mod bug_report;
mod check;
mod cli;
mod explain;
#[cfg(fuzzing)]
mod fuzz;
mod help;
mod install;
mod lab;
mod parse;
mod place;
mod predict;
mod results;
mod screen;
mod sim;
mod status;
mod undo;
mod watch;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use cli::{Cli, Command};
use guard::{config, error, options, out, outbox, usage};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

fn main() -> ExitCode {
    guard::program::lead(|| run(std::env::args_os().collect()))
}

fn run(args: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let long = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--help")
        || args.get(1).is_some_and(|arg| arg == "help");
    let matches = match help::command(long).try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(err) => match err.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                out::data(&err.render().to_string())?;
                return Ok(ExitCode::SUCCESS);
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                out::talk(err.render().to_string().trim_end());
                return Ok(ExitCode::from(2));
            }
            _ => return Err(usage::error(&err, &args, Cli::command()).into()),
        },
    };
    let cli = Cli::from_arg_matches(&matches).map_err(|err| usage::error(&err, &args, Cli::command()))?;
    command(cli, args)
}

/// The guard is a program of its own, which takes the place of this one.
fn guarding(mut args: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let program = ::lab::locate("weir-guard", None).map_err(error::missing)?;
    args.remove(0);
    if let Some(at) = args.iter().position(|arg| arg == "guard") {
        args.remove(at);
    }
    let err = std::process::Command::new(&program).arg0("weir-guard").args(args).exec();
    Err(error::failed(format!("{}: {err}", program.display())))
}

fn command(cli: Cli, args: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let paint = out::Paint::stdout(cli.color);
    match cli.command {
        Command::Check(args) => check::run(&args, paint),
        Command::Watch(args) => watch::run(&args, cli.color),
        Command::Explain(args) => explain::run(&args, paint),
        Command::Guard(_) => guarding(args),
        Command::Screen(args) => screen::run(&args),
        #[cfg(not(no_bpf))]
        Command::Accept(args) => accept::run(&args),
        #[cfg(no_bpf)]
        Command::Accept(_) => Err(error::missing(kern::guard::Error::NotBuilt)),
        Command::Place(args) => place::run(&args, paint),
        Command::Status(args) => status::run(&args, paint),
        Command::Completions { shell } => install::completions(shell),
        Command::Man { dir } => install::man(&dir),
        Command::BugReport(args) => bug_report::run(&args),
        Command::Undo(args) => undo::run(&args, paint),
        Command::Predict(args) => predict::run(&args, paint),
        Command::Lab { command } => lab::run(&command),
        Command::Sim { command } => sim::run(&command),
        Command::Results { command } => results::run(&command),
    }
}
