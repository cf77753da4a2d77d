//! Where text goes: data on standard output, talk on standard error.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::outbox::{Outbox, Standard};
use kern::text::deceives;

/// Lines of talk that wait for a reader at most.
const TALK_MAX: usize = 256;
/// How long the end of a program waits for readers of its last lines.
const LAST: Duration = Duration::from_millis(200);
/// Where talk goes once it must not wait.
static TALK: OnceLock<Outbox> = OnceLock::new();
/// Dropped lines of talk that were told.
static TOLD: AtomicU64 = AtomicU64::new(0);
/// Lines that were not even written, see [`left_out`].
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// From here on talk waits for nobody: what nobody takes is dropped, counted, and told in the next line that is taken.
pub fn never_wait() {
    // Without a thread it is written as before.
    if let Ok(outbox) = Outbox::new("weir-talk", TALK_MAX, Standard::Error) {
        let _ = TALK.set(outbox);
    }
}

/// Gives the last lines of talk a moment to be taken.
pub fn drain() {
    if let Some(talk) = TALK.get() {
        talk.drain(LAST);
    }
}

/// Lines of talk that were dropped, because nobody took them.
#[cfg_attr(no_bpf, allow(dead_code, reason = "the status of the guard has it"))]
pub fn dropped() -> u64 {
    TALK.get().map_or(0, Outbox::dropped) + LEFT_OUT.load(Relaxed)
}

/// A line is left out because too many others are said at once; [`dropped`] has it.
pub fn left_out() {
    LEFT_OUT.fetch_add(1, Relaxed);
}

/// Writes data to standard output. A reader that closed the pipe ends the command as a success.
pub fn data(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

/// How much a line of talk matters, as syslog numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// weir ends by it.
    Error = 3,
    /// Something is missing or was refused.
    Warning = 4,
    /// Everything else.
    Info = 6,
}

/// Writes one line of talk to standard error. Nobody may be listening, so a failure to write is none.
pub fn talk(line: &str) {
    tell(Weight::Info, line);
}

/// The same with its weight, which the journal is told: there each line has a priority, elsewhere the words say it.
pub fn tell(weight: Weight, line: &str) {
    static JOURNAL: OnceLock<bool> = OnceLock::new();
    let journal = *JOURNAL.get_or_init(kern::proc::stderr_is_journal);
    let Some(talk) = TALK.get() else {
        // In one call: lines of two processes that share the stream must not mix.
        let _ = std::io::stderr().lock().write_all(framed(weight, line, journal).as_bytes());
        return;
    };
    let dropped = talk.dropped();
    let before = TOLD.load(Relaxed);
    let mut text = String::new();
    if dropped > before {
        text = framed(Weight::Warning, &lost(dropped - before), journal);
    }
    text += &framed(weight, line, journal);
    if talk.send(text.into_bytes()) {
        TOLD.store(dropped, Relaxed);
    }
}

fn lost(lines: u64) -> String {
    format!("weir: {} dropped: nobody took them", count(usize::try_from(lines).unwrap_or(usize::MAX), "line"))
}

fn framed(weight: Weight, text: &str, journal: bool) -> String {
    let prefix = if journal { format!("<{}>", weight as u8) } else { String::new() };
    text.lines().map(|line| format!("{prefix}{line}\n")).collect()
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Also in pipes.
    Always,
    /// Nowhere.
    Never,
}

/// Colours of one output stream, or none. One meaning each; a word or sign always says the same.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// Colours for standard output.
    pub fn stdout(when: ColorWhen) -> Paint {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Paint::new(when, std::io::stdout().is_terminal(), unwanted)
    }

    fn new(when: ColorWhen, terminal: bool, unwanted: bool) -> Paint {
        let on = match when {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => terminal && !unwanted,
        };
        Paint { on }
    }

    /// True if text is painted.
    pub fn coloured(self) -> bool {
        self.on
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Lost packets, and what is missing.
    pub fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    /// Packets shed on purpose.
    pub fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    /// weir's own time and settings.
    pub fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }
}

/// A word of the user as it may be echoed to a terminal: what [`deceives`] is escaped, at most 60 characters.
pub fn shown(word: &str) -> String {
    limited(word, 60)
}

/// The same for a sentence: at most 300 characters.
pub fn sentence(text: &str) -> String {
    limited(text, 300)
}

fn limited(word: &str, limit: usize) -> String {
    let mut text = String::new();
    for c in word.chars().take(limit) {
        if deceives(c) { text.extend(c.escape_default()) } else { text.push(c) }
    }
    if word.chars().nth(limit).is_some() {
        text.push_str("...");
    }
    text
}

/// Number with spaces between groups of three digits.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// `1 source`, `2 sources`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// At most eight of `words` with commas, and how many more there are.
pub fn listed<S: AsRef<str>>(words: &[S]) -> String {
    const SHOWN: usize = 8;
    let first: Vec<String> = words.iter().take(SHOWN).map(|word| shown(word.as_ref())).collect();
    let more = words.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", first.join(", "))
}

/// The candidate that `word` most probably meant: the fewest edits, at most one per three letters.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (edits(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace, swap of neighbours) from `a` to `b`; only the first 40 characters count.
fn edits(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(40).collect();
    let b: Vec<char> = b.chars().take(40).collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

/// Columns of every text that has no end of its own.
pub const WIDTH: usize = 80;

/// Breaks a paragraph at spaces so that no line is wider than [`WIDTH`]; lines after the first are indented.
pub fn wrap(paragraph: &str, indent: usize) -> String {
    let mut text = String::new();
    let mut column = indent;
    for word in paragraph.split_whitespace() {
        let width = word.chars().count();
        if column > indent && column + 1 + width > WIDTH {
            text += &format!("\n{}", " ".repeat(indent));
            column = indent;
        } else if column > indent {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += width;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1 000");
        assert_eq!(grouped(884_222_930), "884 222 930");
        assert_eq!(count(1, "source"), "1 source");
        assert_eq!(count(0, "source"), "0 sources");
    }

    #[test]
    fn echo_has_no_escape_sequences_and_a_bound() {
        assert_eq!(shown("eth0"), "eth0");
        assert_eq!(shown("a\x1b[31m"), "a\\u{1b}[31m");
        assert_eq!(sentence("x\u{202e}hss \u{61c}"), "x\\u{202e}hss \\u{61c}");
        assert_eq!(shown(&"x".repeat(61)).len(), 63);
    }

    #[test]
    fn nearest_word() {
        let keys = ["high", "low", "timeout", "quota"];
        assert_eq!(nearest("hgih", keys), Some("high"));
        assert_eq!(nearest("timout", keys), Some("timeout"));
        assert_eq!(nearest("colour", keys), None);
    }

    #[test]
    fn lists_are_bounded() {
        let names: Vec<String> = (0..10).map(|i| format!("eth{i}")).collect();
        assert_eq!(listed(&names[..2]), "eth0, eth1");
        assert!(listed(&names).ends_with("eth7 and 2 more"));
    }

    #[test]
    fn colour_only_when_wanted() {
        let shown = |when, terminal, unwanted| Paint::new(when, terminal, unwanted).red("x");
        assert_eq!(shown(ColorWhen::Auto, true, false), "\x1b[31mx\x1b[0m");
        assert_eq!(shown(ColorWhen::Auto, false, false), "x");
        assert_eq!(shown(ColorWhen::Auto, true, true), "x");
        assert_eq!(shown(ColorWhen::Always, false, true), "\x1b[31mx\x1b[0m");
        assert_eq!(shown(ColorWhen::Never, true, false), "x");
    }

    #[test]
    fn the_journal_is_told_the_priority_of_each_line() {
        assert_eq!(framed(Weight::Warning, "a\nb", true), "<4>a\n<4>b\n");
        assert_eq!(framed(Weight::Error, "a", true), "<3>a\n");
        assert_eq!(framed(Weight::Info, "a\n  b", false), "a\n  b\n");
    }

    #[test]
    fn wrapping() {
        let words = "word ".repeat(40);
        let text = wrap(&words, 20);
        assert!(text.lines().enumerate().all(|(i, line)| line.len() + if i == 0 { 20 } else { 0 } <= WIDTH));
        assert_eq!(text.split_whitespace().count(), 40);
    }
}
