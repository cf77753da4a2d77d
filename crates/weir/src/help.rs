//! Help texts in 80 columns: groups in the order of the reader's questions, the default last on the line in
//! brackets, and in the long help an example under each option. The words come from the table in `cli`.

use crate::cli::Cli;
use crate::out::{WIDTH, wrap};
use clap::{Arg, ArgAction, Command, CommandFactory};

/// Commands under the question they answer.
const GROUPS: [(&str, &[&str]); 4] = [
    ("See", &["check", "watch", "explain", "status", "predict", "bug-report"]),
    ("Protect", &["guard", "accept", "screen", "place", "undo"]),
    ("Prove", &["lab", "sim", "results"]),
    ("Install", &["completions", "man"]),
];

const ROOT_END: &str = "
Options
      --color WHEN   auto, always or never; NO_COLOR is respected         [auto]
  -V, --version      Version
  -h, --help         -h is short, --help has every option with an example

Start here
  weir check                       changes nothing
  sudo weir lab run livelock-udp   see collapse and cure on this kernel
  sudo weir guard eth0             protect; Ctrl-C puts everything back

Exit codes  0 done   1 an assertion of the run failed   2 usage or configuration
            3 privilege or kernel feature missing
";

/// The command table with help texts of this form, `long` for `--help`.
pub fn command(long: bool) -> Command {
    let table = Cli::command();
    let root = root(&table);
    decorate(table, long).override_help(root)
}

fn decorate(mut command: Command, long: bool) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, |sub| {
            let text = text(&sub, long);
            decorate(sub, long).override_help(text)
        });
    }
    command
}

fn root(command: &Command) -> String {
    let mut text = format!("{}\n\nUsage: weir COMMAND [IF...] [OPTIONS]\n", wrap(&about(command, false), 0));
    for (group, names) in GROUPS {
        text += &format!("\n{group}\n");
        let lines = names.iter().filter_map(|name| command.find_subcommand(name));
        lines.for_each(|sub| text += &command_line(sub));
    }
    text + ROOT_END
}

fn command_line(sub: &Command) -> String {
    format!("  {:<13}{}\n", sub.get_name(), about(sub, false))
}

fn about(command: &Command, long: bool) -> String {
    let short = command.get_about().map(ToString::to_string).unwrap_or_default();
    if long { command.get_long_about().map_or(short, ToString::to_string) } else { short }
}

fn text(command: &Command, long: bool) -> String {
    let gap = if long { "\n" } else { "" };
    let usage = command.clone().render_usage();
    let mut text = format!("{}\n\n{usage}\n", wrap(&about(command, long), 0));
    let subcommands: Vec<&Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    if !subcommands.is_empty() {
        text += "\nCommands\n";
        subcommands.iter().for_each(|sub| text += &command_line(sub));
    }
    // Some are for the long help and the man page only: the short one is a screen.
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && (long || !arg.is_hide_short_help_set());
    let mut args: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    // The usage line names the arguments; in the short help they cost two lines beside options.
    if !long && args.iter().any(|arg| !arg.is_positional()) {
        args.retain(|arg| !arg.is_positional());
    }
    let indent = args.iter().map(|arg| flags(arg).chars().count()).max().unwrap_or(0).clamp(12, 18) + 4;
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in &args {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    if !args.is_empty() && !long {
        text += "\n";
    }
    for heading in headings {
        let group = || args.iter().filter(move |arg| arg.get_help_heading() == heading);
        let title =
            heading.unwrap_or(if group().any(|arg| !arg.is_positional()) { "Options" } else { "Arguments" });
        text += &format!("{gap}{title}\n");
        group().for_each(|arg| text += &option(arg, indent, long));
    }
    let end = if long { command.get_after_long_help() } else { command.get_after_help() };
    match end.or(command.get_after_help()) {
        Some(end) => text + &format!("{gap}{end}\n"),
        None => text,
    }
}

/// `-q, --quiet`, `--reserve PCT` or `IF`.
fn flags(arg: &Arg) -> String {
    let value = arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let takes_value = !matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count);
    let name = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, Some(long)) => format!("--{long}"),
        (None, None) => return value,
    };
    if takes_value { format!("{name} {value}") } else { name }
}

fn option(arg: &Arg, indent: usize, long: bool) -> String {
    let flags = flags(arg);
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let (what, default) = match help.strip_suffix(']').and_then(|help| help.rsplit_once(" [")) {
        Some((what, default)) => (what, format!("[{default}]")),
        None => (help.as_str(), String::new()),
    };
    let body = wrap(what, indent);
    let mut text = if flags.chars().count() + 4 > indent {
        format!("  {flags}\n{}{body}", " ".repeat(indent))
    } else {
        format!("  {flags:<width$}{body}", width = indent - 2)
    };
    if !default.is_empty() {
        let last = text.lines().last().map_or(0, |line| line.chars().count());
        if last + 1 + default.chars().count() > WIDTH {
            text += &format!("\n{default:>WIDTH$}");
        } else {
            text += &format!("{default:>width$}", width = WIDTH - last);
        }
    }
    text.push('\n');
    if long {
        let more = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
        for paragraph in more.split("\n\n").skip(1) {
            text += &format!("{}{}\n", " ".repeat(indent), wrap(paragraph, indent));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options;
    use crate::parse::Period;

    /// Every visible command with its path, such as `lab run`.
    fn all(command: &Command, path: &str) -> Vec<(String, Command)> {
        let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        visible
            .flat_map(|sub| {
                let path = format!("{path} {}", sub.get_name());
                let below = all(sub, &path);
                std::iter::once((path.trim().to_owned(), sub.clone())).chain(below)
            })
            .collect()
    }

    #[test]
    fn table_is_consistent() {
        command(true).debug_assert();
    }

    #[test]
    fn every_visible_command_stands_in_one_group() {
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for (path, _) in all(&Cli::command(), "") {
            if !path.contains(' ') {
                assert_eq!(listed.iter().filter(|name| **name == path).count(), 1, "{path}");
            }
        }
        let root = root(&Cli::command());
        for name in listed {
            let about = Cli::command().find_subcommand(name).unwrap().get_about().unwrap().to_string();
            assert!(root.contains(&about), "{name}");
        }
    }

    #[test]
    fn short_help_is_a_line_per_option_and_a_screen() {
        for (path, command) in all(&Cli::command(), "") {
            let text = text(&command, false);
            assert!(text.lines().count() <= 24, "{path}: {} lines\n{text}", text.lines().count());
            let visible =
                |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && !arg.is_hide_short_help_set();
            for arg in command.get_arguments().filter(visible).filter(|arg| !arg.is_positional()) {
                let flags = flags(arg);
                let lines = text.lines().filter(|line| line.trim_start().starts_with(&flags));
                assert_eq!(lines.count(), 1, "{path} {flags}");
            }
        }
    }

    #[test]
    fn every_long_option_with_a_value_has_an_example_that_parses() {
        for (path, command) in all(&Cli::command(), "") {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_global_set()) {
                let Some(long) = arg.get_long() else { continue };
                let help = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
                let example = help.split("\n\n").last().unwrap().trim();
                assert!(example.starts_with(&format!("weir {path} ")), "{path} --{long}: {example:?}");
                assert!(example.contains(&format!("--{long}")), "{path} --{long}: {example:?}");
                let words = example.split(" | ").next().unwrap().split(' ');
                let parsed = Cli::command().try_get_matches_from(words);
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn defaults_in_the_help_are_the_defaults() {
        let table = Cli::command();
        let guard = table.find_subcommand("guard").unwrap();
        let shown = |name: &str| {
            let arg = guard.get_arguments().find(|arg| arg.get_long() == Some(name)).unwrap();
            let help = arg.get_help().unwrap().to_string();
            help.rsplit_once(" [").unwrap().1.trim_end_matches(']').to_owned()
        };
        assert_eq!(shown("reserve"), options::RESERVE.to_string());
        assert_eq!(shown("quota"), options::QUOTA.to_string());
        assert_eq!(shown("high"), options::HIGH.to_string());
        assert_eq!(shown("low"), options::LOW.to_string());
        assert_eq!(crate::parse::timeout(&shown("timeout")), Ok(options::TIMEOUT));
        assert_eq!(crate::parse::period(&shown("period")), Ok(Period::Auto));
    }
}
