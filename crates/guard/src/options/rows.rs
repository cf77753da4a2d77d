//! The options of `weir guard` that its configuration file has too: one row each, in the order of the help.
//!
//! From a row come the option of the command line with its help, completions and man page, the key of the file, whether
//! a change waits for a restart, what is installed as weir.toml, and the table in docs/guard.md.

use crate::config::{At, Item};
use crate::error::Error;
use crate::parse::{self, Mode, Period};
use clap::Args;
use kern::cpus::CpuSet;
use std::time::Duration;

/// A row: `NAME: TYPE { arg, help, [default] (both in the short help), more, example (the long help), file (how the value
/// is read there), toml (the value shown in the installed file), restart (whether a change waits for one) }`.
macro_rules! options {
    ($(
        $name:ident: $wrap:ident<$type:ty> {
            arg: [$($arg:tt)*],
            help: $help:literal $([$default:literal])?,
            $(more: $more:literal,)?
            $(example: $example:literal,)?
            file: $file:expr,
            toml: $toml:literal,
            restart: $restart:literal,
        }
    )*) => {
        /// What the command line says of them.
        #[derive(Debug, Clone, Default, Args)]
        pub struct FromArgs {
            $(
                #[arg(
                    $($arg)*,
                    help = concat!($help $(, " [", $default, "]")?),
                    long_help = concat!(
                        $help $(, " [", $default, "]")? $(, "\n\n", $more)? $(, "\n\n", $example)?
                    )
                )]
                #[allow(missing_docs, reason = "the row is")]
                pub $name: $wrap<$type>,
            )*
        }

        /// What the file says of them; absent keys are `None` or empty.
        #[derive(Debug, Clone, Default)]
        pub struct FromFile {
            $(
                #[allow(missing_docs, reason = "the row is")]
                pub $name: $wrap<At<$type>>,
            )*
        }

        /// Keys of the file, in the order in which an error lists them.
        pub const KEYS: &[&str] = &[$(stringify!($name)),*];

        impl FromFile {
            /// Takes the value of a key; `false` if there is no such key.
            pub fn read(&mut self, item: &Item<'_>) -> Result<bool, Error> {
                $(
                    if item.key == stringify!($name) {
                        let read: fn(&Item<'_>) -> Result<$wrap<At<$type>>, Error> = $file;
                        self.$name = read(item)?;
                        return Ok(true);
                    }
                )*
                Ok(false)
            }
        }

        #[cfg_attr(no_bpf, allow(dead_code, reason = "the guard calls them on SIGHUP"))]
        impl super::GuardOptions {
            /// Options that differ in `new` and cannot change while a guard runs.
            pub fn need_restart(&self, new: &Self) -> Vec<&'static str> {
                let differs = [$(($restart && self.$name != new.$name, stringify!($name))),*];
                differs.into_iter().filter_map(|(differs, name)| differs.then_some(name)).collect()
            }

            /// Takes the values of these back from the options that were in force.
            pub fn keep_until_restart(&mut self, old: Self) {
                $(
                    if $restart {
                        self.$name = old.$name;
                    }
                )*
            }
        }

        /// What the documentation says of an option beside its help.
        #[cfg(test)]
        pub(super) const ROWS: &[Row] = &[$(Row {
            name: stringify!($name),
            text: concat!($help, "." $(, " ", $more)?),
            toml: $toml,
            restart: $restart,
        }),*];
    };
}

/// A row as documentation has it.
#[cfg(test)]
pub(super) struct Row {
    pub name: &'static str,
    pub text: &'static str,
    pub toml: &'static str,
    pub restart: bool,
}

options! {
    interfaces: Vec<String> {
        arg: [value_name = "IF"],
        help: "Interfaces to protect",
        more: "Those of the file if none is named; the services weir-guard@IF name theirs.",
        file: |item| item.list(),
        toml: "[\"eth0\"]",
        restart: true,
    }
    reserve: Option<u8> {
        arg: [long, value_name = "PCT", value_parser = parse::reserve, help_heading = "Budget", allow_hyphen_values = true],
        help: "CPU share that programs are sure to get, on each CPU" ["20"],
        more: "Percent, 1 to 95. What programs do not want is lent to packets.",
        example: "weir guard eth0 --reserve 50",
        file: |item| item.number(parse::reserve).map(Some),
        toml: "20",
        restart: false,
    }
    period: Option<Period> {
        arg: [long, value_name = "DUR", value_parser = parse::period, help_heading = "Budget", allow_hyphen_values = true],
        help: "Span over which the budget holds, 1ms to 100ms" ["auto"],
        more: "auto: as long as the ring can wait for a poller that is away, at most 10ms.",
        example: "weir guard eth0 --period 2ms",
        file: |item| item.text(parse::period).map(Some),
        toml: "\"auto\"",
        restart: false,
    }
    quota: Option<u16> {
        arg: [long, value_name = "N", value_parser = parse::quota, help_heading = "Budget", allow_hyphen_values = true],
        help: "Packets per turn of one source, even, 2 to 256" ["32"],
        more: "Not given, it is 32, but 128 while no other program wants the CPU. Where most is shed turns are 128 in any case.",
        example: "weir guard eth0 --quota 8",
        file: |item| item.number(parse::quota).map(Some),
        toml: "32",
        restart: false,
    }
    cpu: Option<CpuSet> {
        arg: [long, value_name = "LIST", value_parser = parse::cpus, help_heading = "Budget", allow_hyphen_values = true],
        help: "CPUs the pollers may use; a source's own first" ["all"],
        more: "One guard owns a CPU, and all services read the same file: of two, each needs CPUs of its own on its command line. In the file \"0-1\" or [0, 1].",
        example: "weir guard eth0 --cpu 0-1",
        file: |item| item.cpus().map(Some),
        toml: "\"0\"",
        restart: true,
    }
    mode: Option<Mode> {
        arg: [long, value_name = "MODE", help_heading = "Budget"],
        help: "Busy sources: auto, poll, thread, shed or net" ["auto"],
        more: "poll: weir's poller takes them over. thread: the kernel's threaded NAPI. shed: the kernel polls, and what \
               has no room is dropped early. net: the CPUs of --cpu only do networking, and poll from the first packets \
               on.",
        example: "weir guard eth0 --mode poll",
        file: |item| item.text(parse::word).map(Some),
        toml: "\"auto\"",
        restart: true,
    }
    high: Option<u8> {
        arg: [long, value_name = "PCT", value_parser = parse::level, help_heading = "Feedback from full queues", allow_hyphen_values = true],
        help: "Level at which input for a consumer is inhibited" ["75"],
        more: "Percent of what the buffer of its socket holds. One that still has room for 1,024 packets is not inhibited.",
        example: "weir guard eth0 --high 60",
        file: |item| item.number(parse::level).map(Some),
        toml: "75",
        restart: false,
    }
    low: Option<u8> {
        arg: [long, value_name = "PCT", value_parser = parse::level, help_heading = "Feedback from full queues", allow_hyphen_values = true],
        help: "Level at which it is enabled again" ["25"],
        example: "weir guard eth0 --high 60 --low 30",
        file: |item| item.number(parse::level).map(Some),
        toml: "25",
        restart: false,
    }
    timeout: Option<Duration> {
        arg: [long, value_name = "DUR", value_parser = parse::timeout, help_heading = "Feedback from full queues", allow_hyphen_values = true],
        help: "Longest inhibit, 1ms to 1s" ["10ms"],
        more: "A program that hangs blocks nobody else for longer.",
        example: "weir guard eth0 --timeout 50ms",
        file: |item| item.text(parse::timeout).map(Some),
        toml: "\"10ms\"",
        restart: false,
    }
    look: Option<u8> {
        arg: [long, value_name = "PCT", value_parser = parse::level, allow_hyphen_values = true, help_heading = "Feedback from full queues", hide_short_help = true],
        help: "Most of a CPU for packets that are shed" ["the budget"],
        more: "Percent, 1 to 99: so much of a CPU may go into shedding a flood so that others are served. Never more \
               than the budget, 100 less the reserve; less leaves more to programs.",
        example: "weir guard eth0 --look 20",
        file: |item| item.number(parse::level).map(Some),
        toml: "99",
        restart: false,
    }
    protect: Vec<String> {
        arg: [long, value_name = "RULE", value_delimiter = ',', help_heading = "Classes", allow_hyphen_values = true],
        help: "Never shed this; adds to the default, none empties it",
        more: "Names: arp nd icmp dhcp ssh bgp ospf vrrp bfd lacp ptp dns-replies (these are the default), dns ntp igmp \
               lldp. Matches: tcp/PORT, udp/PORT, src/PREFIX, dst/PREFIX, dscp/NAME, vlan/ID. Several with commas, in \
               the file an array.",
        example: "weir guard eth0 --protect dns,src/10.0.0.0/8",
        file: |item| item.list(),
        toml: "[\"ntp\", \"src 10.0.0.0/8\"]",
        restart: false,
    }
    status: Option<String> {
        arg: [long, value_name = "FILE", help_heading = "Output"],
        help: "One JSON line per second; - is standard output" ["none"],
        more: "weir status does not need it.",
        example: "weir guard eth0 --status - | jq .interfaces",
        file: |item| item.text(|text| Ok(text.to_owned())).map(Some),
        toml: "\"-\"",
        restart: true,
    }
}
