//! What a screen is told: its rules, its queues, what becomes of packets that it cannot be asked about.

use crate::cli::ScreenArgs;
use crate::config::{placed, text_of};
use crate::error::usage;
use crate::out::count;
use policy::screen::{Action, RULES_MAX, Table, Verdict, read};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// First bytes of each packet that are read: IPv6 with several extension headers. The kernel's copy takes as much memory
/// as for one byte.
const COPY: u32 = 256;
/// Memory that a waiting packet takes in the socket's buffer at most, for its copy and what the kernel keeps beside it.
const TRUESIZE: u32 = 2048;

/// See the module.
pub struct Plan {
    /// Shared by all threads.
    pub table: Arc<Table>,
    /// Packets that are read and answered at once.
    pub batch: usize,
    /// What becomes of packets that nobody can be asked about, while the screen ends and when it has ended.
    pub absent: Verdict,
    queues: RangeInclusive<u16>,
    length: u32,
    full: Verdict,
}

impl Plan {
    /// Merges command line and file.
    ///
    /// # Errors
    /// Usage, with the place in the file.
    pub fn resolve(args: &ScreenArgs) -> anyhow::Result<Plan> {
        let mut rules = args.given.0.clone();
        let mut default = args.default.map(Verdict::from);
        if let Some(path) = &args.rules {
            let text = text_of(path, "a file of rules")?;
            let file = read(&text).map_err(|wrong| placed(path, &text, &wrong.at, &wrong.why))?;
            rules.extend(file.rules);
            default = default.or(file.default);
        }
        if rules.len() > RULES_MAX {
            return Err(usage(format!(
                "{} rules; give at most {RULES_MAX}: use prefixes and lists of ports",
                rules.len()
            )));
        }
        let full = args.full.map_or(Verdict::Deny, Verdict::from);
        if args.fail_closed && full == Verdict::Accept {
            return Err(usage(
                "--full accept lets packets pass that --fail-closed must not; give one of them",
            ));
        }
        Ok(Plan {
            table: Arc::new(Table::new(rules, default.unwrap_or(Verdict::Accept))),
            batch: args.batch as usize,
            absent: if args.fail_closed { Verdict::Deny } else { Verdict::Accept },
            queues: args.queue.clone(),
            length: args.length,
            full,
        })
    }

    /// Numbers of the queues.
    pub fn queues(&self) -> RangeInclusive<u16> {
        self.queues.clone()
    }

    /// `0`, or `0-3`.
    pub fn range(&self) -> String {
        match (self.queues.start(), self.queues.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        }
    }

    /// How each queue is opened. The buffer holds as many packets as the queue, so that the queue is what fills: its length
    /// is what was asked for, and a guard knows how full it is.
    pub fn options(&self) -> nfqueue::Options {
        nfqueue::Options {
            copy: COPY,
            length: Some(self.length),
            buffer: Some(self.length.saturating_mul(TRUESIZE)),
            accept_when_full: self.full == Verdict::Accept,
            whole_segments: true,
            quiet: true,
            batches: self.batch > 1,
        }
    }

    /// The command that brings forwarded packets to the queues, and the one that ends it.
    fn nft(&self) -> [String; 2] {
        let bypass = if self.absent == Verdict::Accept { " bypass" } else { "" };
        let chain = "add chain inet weir_screen forward { type filter hook forward priority 0; }";
        [
            format!(
                "nft 'add table inet weir_screen; {chain}; add rule inet weir_screen forward queue num {}{bypass}'",
                self.range()
            ),
            "nft delete table inet weir_screen".to_owned(),
        ]
    }

    /// The same for iptables.
    fn iptables(&self) -> String {
        let queue = match (self.queues.start(), self.queues.end()) {
            (first, last) if first == last => format!("--queue-num {first}"),
            (first, last) => format!("--queue-balance {first}:{last}"),
        };
        let bypass = if self.absent == Verdict::Accept { " --queue-bypass" } else { "" };
        format!("iptables -I FORWARD -j NFQUEUE {queue}{bypass}")
    }

    /// The lines at the start.
    pub fn greeting(&self) -> String {
        let [begin, end] = self.nft();
        format!(
            "weir: screening queue {}: {}, then {}; a packet that finds it full: {}; while no screen runs: {}\n\
             weir: packets come by    {begin}\n\
             weir: and no longer by   {end}",
            self.range(),
            count(self.table.rules().len(), "rule"),
            self.table.default().name(),
            self.full.name(),
            self.absent.name(),
        )
    }

    /// What `--dry-run` prints.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (number, rule) in self.table.rules().iter().enumerate() {
            text += &format!("{:>4}  {:<6}  {}\n", number + 1, rule.action().name(), rule.text());
        }
        let [begin, end] = self.nft();
        let more = if self.queues.clone().count() > 1 { "; each flow has one of them" } else { "" };
        text += &format!(
            "      {:<6}  all others\n\n\
             queue {}, at most {} packets each{more}\n\
             a packet that finds its queue full: {}; while no screen runs: {}\n\n\
             forwarded packets come by\n  {begin}\nor\n  {}\nand no longer by\n  {end}\n",
            self.table.default().name(),
            self.range(),
            self.length,
            self.full.name(),
            self.absent.name(),
            self.iptables(),
        );
        text
    }
}

/// What the rule decides, if it does.
pub fn decides(action: Action) -> Option<Verdict> {
    match action {
        Action::Decide(verdict) => Some(verdict),
        Action::Count => None,
    }
}
