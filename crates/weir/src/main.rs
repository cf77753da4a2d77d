//! weir: receive scheduler for Linux.

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(fuzzing, no_main, allow(dead_code, unused_imports, reason = "the fuzzer has its own main"))]

#[cfg(not(no_bpf))]
mod accept;
mod bug_report;
mod check;
mod cli;
mod config;
mod error;
mod explain;
#[cfg(fuzzing)]
mod fuzz;
mod guard;
mod help;
mod install;
mod lab;
mod options;
mod out;
mod outbox;
mod parse;
mod place;
mod predict;
mod results;
mod screen;
mod sim;
mod status;
mod undo;
mod usage;
mod watch;

use clap::FromArgMatches;
use clap::error::ErrorKind;
use cli::{Cli, Command};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let code = lead();
    out::drain();
    code
}

fn lead() -> ExitCode {
    match run(std::env::args_os().collect()) {
        Ok(code) => code,
        Err(err) => {
            let code = error::code(&err);
            if code != 0 {
                out::tell(out::Weight::Error, &format!("error: {}", error::text(&err)));
            }
            ExitCode::from(code)
        }
    }
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
            _ => return Err(usage::error(&err, &args).into()),
        },
    };
    let cli = Cli::from_arg_matches(&matches).map_err(|err| usage::error(&err, &args))?;
    command(cli)
}

fn command(cli: Cli) -> anyhow::Result<ExitCode> {
    let paint = out::Paint::stdout(cli.color);
    match cli.command {
        Command::Check(args) => check::run(&args, paint),
        Command::Watch(args) => watch::run(&args, cli.color),
        Command::Explain(args) => explain::run(&args, paint),
        Command::Guard(args) => guard(*args),
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
        Command::Keeper { fd } => {
            guard::last_words::aborts("the keeper");
            kern::keeper::main(fd).map_err(error::usage)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Predict(args) => predict::run(&args, paint),
        Command::Lab { command } => lab::run(&command),
        Command::Sim { command } => sim::run(&command),
        Command::Results { command } => results::run(&command),
    }
}

/// Options first: a wrong one is answered the same with and without privileges.
fn guard(args: cli::GuardArgs) -> anyhow::Result<ExitCode> {
    let opts = options::GuardOptions::resolve(args, &host()?)?;
    if !opts.dry_run {
        let mut access = kern::settings::Access::for_current_netns()?;
        kern::tier::require_privileges(&kern::tier::host(&mut access))?;
    }
    guard::last_words::aborts("the guard");
    if !opts.dry_run {
        out::never_wait();
    }
    guard::run(opts)
}

/// What the host has that options can name, now.
fn host() -> anyhow::Result<options::Host> {
    Ok(options::Host::here()?)
}
