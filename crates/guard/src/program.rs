//! The program weir-guard, and how every program of weir ends.

use crate::args::GuardArgs;
use crate::options::{GuardOptions, Host};
use crate::out::{self, ColorWhen, Weight};
use crate::{error, last_words, usage};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use std::ffi::OsString;
use std::process::ExitCode;

const HELP: &str = "\
weir-guard is what `weir guard` runs, with the same options: see weir guard --help
";

/// The command line: that of `weir guard`.
#[derive(Debug, Parser)]
#[command(name = "weir guard", version, override_help = HELP)]
pub(crate) struct Program {
    /// The same.
    #[command(flatten)]
    pub args: GuardArgs,

    /// The guard has no colours; weir passes the option on.
    #[arg(long, default_value = "auto")]
    color: ColorWhen,
}

/// The guard, or with the words `keeper --fd N` its keeper.
pub fn main() -> ExitCode {
    lead(|| {
        let args: Vec<OsString> = std::env::args_os().collect();
        match keeper(&args) {
            Some(fd) => {
                last_words::aborts("the keeper");
                kern::keeper::main(fd).map_err(error::usage)?;
                Ok(ExitCode::SUCCESS)
            }
            None => run(&args),
        }
    })
}

/// The descriptor of a keeper's pipe.
fn keeper(args: &[OsString]) -> Option<i32> {
    match args {
        [_, keeper, option, fd] if keeper == "keeper" && option == "--fd" => fd.to_str()?.parse().ok(),
        _ => None,
    }
}

/// Does what was asked, and says why it could not.
pub fn lead(run: impl FnOnce() -> anyhow::Result<ExitCode>) -> ExitCode {
    let code = run().unwrap_or_else(|err| {
        let code = error::code(&err);
        if code != 0 {
            out::tell(Weight::Error, &format!("error: {}", error::text(&err)));
        }
        ExitCode::from(code)
    });
    out::drain();
    code
}

/// Options first: a wrong one is answered the same with and without privileges.
fn run(args: &[OsString]) -> anyhow::Result<ExitCode> {
    let usage = |err: &clap::Error| usage::error(err, args, Program::command());
    let program = match Program::command().try_get_matches_from(args) {
        Ok(matches) => Program::from_arg_matches(&matches).map_err(|err| usage(&err))?,
        Err(err) if matches!(err.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            out::data(&err.render().to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(err) => return Err(usage(&err).into()),
    };
    let opts = GuardOptions::resolve(program.args, &Host::here()?)?;
    if !opts.dry_run {
        let mut access = kern::settings::Access::for_current_netns()?;
        kern::tier::require_privileges(&kern::tier::host(&mut access))?;
    }
    last_words::aborts("the guard");
    if !opts.dry_run {
        out::never_wait();
    }
    crate::run(opts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_keeper_is_one() {
        let keeper = |words: &str| super::keeper(&words.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(keeper("weir-guard keeper --fd 7"), Some(7));
        assert_eq!(keeper("weir-guard keeper --fd"), None, "an interface of that name");
        assert_eq!(keeper("weir-guard keeper --quota 8"), None);
    }

    #[test]
    fn table_is_consistent() {
        Program::command().debug_assert();
    }
}
