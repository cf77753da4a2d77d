//! The command line of `weir screen`. Rules of different options keep their common order: the first that decides wins.

use crate::parse;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use policy::screen::{Action, Rule, Verdict};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// `weir screen`.
#[derive(Debug, Args)]
#[command(override_usage = "weir screen [OPTIONS]")]
pub struct ScreenArgs {
    /// Rules of the command line, in their order.
    #[command(flatten)]
    pub given: GivenRules,

    /// More rules, one per line; they follow those given here
    ///
    /// A line is accept, deny or count with a rule, or default accept, or default deny. What follows # is a comment.
    ///
    /// weir screen --rules /etc/weir/screen.rules
    #[arg(long, value_name = "FILE", help_heading = "Rules")]
    pub rules: Option<PathBuf>,

    /// What becomes of all others, accept or deny [accept]
    ///
    /// weir screen --accept tcp/22 --default deny
    #[arg(long, value_name = "VERDICT", help_heading = "Rules")]
    pub default: Option<ScreenVerdict>,

    /// Queue, or several, each with its own thread [0]
    ///
    /// weir screen --queue 0-3
    #[arg(long, value_name = "N[-M]", value_parser = parse::queues, default_value = "0", hide_default_value = true)]
    #[arg(help_heading = "Queues", allow_hyphen_values = true)]
    pub queue: RangeInclusive<u16>,

    /// Packets that may wait in a queue, 1 to 65535 [1024]
    ///
    /// weir screen --length 256
    #[arg(long, value_name = "N", value_parser = parse::between::<1, 65_535>, default_value = "1024")]
    #[arg(help_heading = "Queues", hide_default_value = true, allow_hyphen_values = true)]
    pub length: u32,

    /// Packets read and answered at once, 1 to 256 [64]
    ///
    /// weir screen --batch 1
    #[arg(long, value_name = "N", value_parser = parse::between::<1, 256>, default_value = "64")]
    #[arg(help_heading = "Queues", hide_default_value = true, allow_hyphen_values = true)]
    pub batch: u32,

    /// What becomes of packets that find their queue full [deny]
    ///
    /// weir screen --full accept
    #[arg(long, value_name = "VERDICT", help_heading = "Queues")]
    pub full: Option<ScreenVerdict>,

    /// Nothing passes that was not screened, also without a screen
    ///
    /// The line that it prints has no bypass: packets are dropped while no screen runs, and while one ends.
    ///
    /// weir screen --fail-closed
    #[arg(long, help_heading = "Queues")]
    pub fail_closed: bool,

    /// Time between two lines of status, 100ms to 60s [10s]
    ///
    /// weir screen --interval 1s
    #[arg(long, value_name = "DUR", value_parser = parse::interval, default_value = "10s")]
    #[arg(help_heading = "Output", hide_default_value = true, allow_hyphen_values = true)]
    pub interval: Duration,

    /// One JSON line per interval and at the end, weir.screen/1
    ///
    /// weir screen --interval 1s --json
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Check the rules, print them and the firewall's line, end
    ///
    /// weir screen --rules /etc/weir/screen.rules --dry-run
    #[arg(long, help_heading = "Output")]
    pub dry_run: bool,
}

/// `accept` or `deny`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScreenVerdict {
    /// It goes on.
    Accept,
    /// It is dropped.
    Deny,
}

impl From<ScreenVerdict> for Verdict {
    fn from(verdict: ScreenVerdict) -> Verdict {
        match verdict {
            ScreenVerdict::Accept => Verdict::Accept,
            ScreenVerdict::Deny => Verdict::Deny,
        }
    }
}

/// The rules of `--accept`, `--deny` and `--count` in the order in which they were given.
#[derive(Debug, Clone, Default)]
pub struct GivenRules(pub Vec<Rule>);

fn option(action: Action) -> Arg {
    let (help, more) = match action {
        Action::Decide(Verdict::Accept) => {
            ("Let these pass; may be repeated, the first wins", "weir screen --accept udp/53 --default deny")
        }
        Action::Decide(Verdict::Deny) => ("Drop these", "weir screen --deny src/10.0.0.0/8 --deny tcp/22,23"),
        Action::Count => {
            ("Count these; the next rule decides", "weir screen --count 2001:db8::/32 --deny udp/123")
        }
    };
    Arg::new(action.name())
        .long(action.name())
        .value_name("RULE")
        .action(ArgAction::Append)
        .value_parser(move |text: &str| parse::screen_rule(action, text))
        .help_heading("Rules")
        .help(help)
        .long_help(format!("{help}\n\n{more}"))
}

impl Args for GivenRules {
    fn augment_args(command: Command) -> Command {
        command.args(Action::ALL.map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        GivenRules::augment_args(command)
    }
}

impl FromArgMatches for GivenRules {
    fn from_arg_matches(matches: &ArgMatches) -> Result<GivenRules, clap::Error> {
        let mut rules: Vec<(usize, Rule)> = Vec::new();
        for action in Action::ALL {
            let places = matches.indices_of(action.name()).into_iter().flatten();
            let values = matches.get_many::<Rule>(action.name()).into_iter().flatten();
            rules.extend(places.zip(values.cloned()));
        }
        rules.sort_by_key(|(place, _)| *place);
        Ok(GivenRules(rules.into_iter().map(|(_, rule)| rule).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = GivenRules::from_arg_matches(matches)?;
        Ok(())
    }
}
