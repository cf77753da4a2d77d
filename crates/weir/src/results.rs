//! `weir results`: what is done with results that are there.

use crate::cli::{ResultsCommand, ResultsMergeArgs};
use crate::error::usage;
use crate::lab::writable;
use crate::out::shown;
use sim::Shard;
use std::process::ExitCode;

/// Runs one of its commands.
///
/// # Errors
/// 2 for files that are no parts of one run, 1 if a checker had found something.
pub fn run(command: &ResultsCommand) -> anyhow::Result<ExitCode> {
    match command {
        ResultsCommand::Merge(args) => merge(args),
    }
}

fn merge(args: &ResultsMergeArgs) -> anyhow::Result<ExitCode> {
    [&args.json, &args.html].into_iter().flatten().try_for_each(|path| writable(path))?;
    let mut shards = Vec::new();
    for path in &args.files {
        let name = shown(&path.to_string_lossy());
        let shard = Shard::read(path).map_err(|why| usage(format!("{name}: {why}")))?;
        shards.push((name, shard));
    }
    let ran = sim::shard::merge(shards).map_err(usage)?;
    crate::sim::finish(&ran, args.json.as_deref(), args.html.as_deref())
}
