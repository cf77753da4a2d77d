//! One line for each way in which a command line can be wrong: whose value, what is wrong, what to do.

use crate::error::Error;
use crate::out::{listed, nearest, shown};
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error as _;
use std::ffi::OsString;

/// The usage error that clap found in `args` of the program `root`, in weir's form.
pub fn error(err: &clap::Error, args: &[OsString], root: Command) -> Error {
    let (parent, path) = parent(root, args);
    let help = format!("see {path} -h");
    let text = match err.kind() {
        ErrorKind::ValueValidation => {
            let why = err.source().map(ToString::to_string).unwrap_or_default();
            format!("{}: {why}", given(err))
        }
        ErrorKind::InvalidValue => invalid_value(err, &help),
        ErrorKind::UnknownArgument => unknown_argument(err, &help),
        ErrorKind::InvalidSubcommand => {
            let word = word(err, ContextKind::InvalidSubcommand);
            format!("{}: no such command; {}", shown(&word), command_hint(&word, &parent))
        }
        ErrorKind::MissingSubcommand => {
            format!("{path}: the command is missing; {}", command_hint("", &parent))
        }
        ErrorKind::MissingRequiredArgument => {
            format!("{path}: {} is missing; {help}", plain(&word(err, ContextKind::InvalidArg)))
        }
        ErrorKind::ArgumentConflict => {
            let (one, other) = (name(err, ContextKind::InvalidArg), name(err, ContextKind::PriorArg));
            if one == other {
                format!("{one} is given twice; give it once")
            } else {
                format!("{one} and {other} exclude each other; give one")
            }
        }
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8; give it in UTF-8".to_owned(),
        _ => {
            let text = err.to_string();
            let first = text.lines().next().unwrap_or_default();
            format!("{}; {help}", first.strip_prefix("error: ").unwrap_or(first))
        }
    };
    Error::Usage(text)
}

fn invalid_value(err: &clap::Error, help: &str) -> String {
    let value = word(err, ContextKind::InvalidValue);
    let valid = words(err, ContextKind::ValidValue);
    if value.is_empty() {
        let fix = if valid.is_empty() { help.to_owned() } else { format!("choose from {}", listed(&valid)) };
        return format!("{}: the value is missing; {fix}", plain(&word(err, ContextKind::InvalidArg)));
    }
    format!("{}: {}", given(err), crate::parse::choose(&value, valid.iter().map(String::as_str)))
}

fn unknown_argument(err: &clap::Error, help: &str) -> String {
    let word = word(err, ContextKind::InvalidArg);
    let fix = match err.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(near)) => format!("did you mean {}?", plain(near)),
        _ => help.to_owned(),
    };
    let what = if word.starts_with('-') { "no such option" } else { "one too many" };
    format!("{}: {what}; {fix}", shown(&word))
}

/// `--reserve 0`: the option and its value as the user gave them.
fn given(err: &clap::Error) -> String {
    format!("{} {}", name(err, ContextKind::InvalidArg), shown(&word(err, ContextKind::InvalidValue)))
}

/// The argument's name without its placeholder.
fn name(err: &clap::Error, kind: ContextKind) -> String {
    let text = plain(&word(err, kind));
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Without the angle brackets of clap.
fn plain(text: &str) -> String {
    text.replace(['<', '>'], "")
}

/// The innermost command that `args` name, and its path.
fn parent(mut command: Command, args: &[OsString]) -> (Command, String) {
    let mut path = command.get_name().to_owned();
    for word in args.iter().skip(1).filter_map(|arg| arg.to_str()) {
        if let Some(sub) = command.find_subcommand(word).cloned() {
            command = sub;
            path += &format!(" {word}");
        }
    }
    (command, path)
}

fn command_hint(word: &str, parent: &Command) -> String {
    let names: Vec<&str> =
        parent.get_subcommands().filter(|sub| !sub.is_hide_set()).map(Command::get_name).collect();
    match nearest(word, names.iter().copied()) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("choose from {}", listed(&names)),
    }
}

fn word(err: &clap::Error, kind: ContextKind) -> String {
    words(err, kind).join(", ")
}

fn words(err: &clap::Error, kind: ContextKind) -> Vec<String> {
    match err.get(kind) {
        Some(ContextValue::String(word)) => vec![word.clone()],
        Some(ContextValue::Strings(words)) => words.clone(),
        Some(value) => vec![value.to_string()],
        None => Vec::new(),
    }
}
