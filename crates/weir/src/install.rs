//! Completions and man pages, generated from the command table.

use crate::cli::Cli;
use crate::error::usage;
use crate::out::{self, shown};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::path::Path;
use std::process::ExitCode;

/// `weir completions SHELL`: the script, on standard output.
pub fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&Cli::command()), "weir", &mut script);
    out::data(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// `weir man DIR`: one page per command.
pub fn man(dir: &Path) -> anyhow::Result<ExitCode> {
    let name = shown(&dir.to_string_lossy());
    if !dir.is_dir() {
        return Err(usage(format!("{name}: no such directory; create it first: mkdir -p {name}")));
    }
    clap_mangen::generate_to(visible(&Cli::command()), dir)
        .map_err(|err| usage(format!("{name}: cannot be written ({err}); give a directory of yours")))?;
    Ok(ExitCode::SUCCESS)
}

/// The table without what is hidden: nobody is to be offered the internals.
fn visible(command: &Command) -> Command {
    let mut copy = Command::new(command.get_name().to_owned());
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        copy = copy.long_about(about.clone());
    }
    if let Some(version) = command.get_version() {
        copy = copy.version(version.to_owned());
    }
    if let Some(end) = command.get_after_long_help() {
        copy = copy.after_long_help(end.clone());
    }
    copy.args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible))
}
