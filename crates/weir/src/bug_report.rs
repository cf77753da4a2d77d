//! `weir bug-report`: one archive with what somebody needs who was not there. Nothing is sent anywhere, and what it asks is
//! asked as a user would: by weir's own commands.

mod archive;
mod redact;

use crate::cli::BugReportArgs;
use crate::error::{failed, usage};
use crate::out::{self, count, shown};
use archive::Archive;
use redact::Redactor;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Longest that one command may take; the slowest looks for 2 s.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest output of one command that is kept, bytes.
const OUTPUT_MAX: u64 = 4 * 1024 * 1024;
/// Where the service has its configuration.
const CONFIG: &str = "/etc/weir/weir.toml";
/// Longest configuration that is read, bytes: what the guard reads.
const CONFIG_MAX: u64 = 64 * 1024;

/// What the first file of the archive says.
const README: &str = "\
This is a report of weir bug-report. Look through it before you give it to anybody.

Replaced: addresses (IPv4, IPv6, Ethernet, also in names of interfaces) and the name of the host, each by a name that is the
same everywhere in this report; a host's name of one or two characters stays. Left out: comments of the configuration, what the kernel was booted with but for a few
parameters, command lines and users of programs. Still in it: names of interfaces and of programs, ports, rates, counters, the
kernel.
";

/// Runs `weir bug-report`.
///
/// # Errors
/// 2 if the file is there already, 1 if it cannot be written.
pub fn run(args: &BugReportArgs) -> anyhow::Result<ExitCode> {
    let time_s = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("weir-bug-report-{time_s}.tar")));
    // First of all, so that a wrong name costs no time.
    let mut file = create(&path)?;
    let host = nix::sys::utsname::uname().map(|u| u.nodename().to_os_string()).unwrap_or_default();
    let mut report = Report {
        archive: Archive::new(time_s),
        redactor: Redactor::new(&host.to_string_lossy()),
        index: String::new(),
    };
    report.fill(args);
    let bytes = report.end();
    let written = file.write_all(&bytes).and_then(|()| file.sync_all());
    written.map_err(|e| {
        // Half a report would be taken for one.
        let _ = std::fs::remove_file(&path);
        failed(format!("{}: {e}", shown(&path.to_string_lossy())))
    })?;
    out::data(&format!("{}\n", path.display()))?;
    out::talk("look through it before you give it to anybody: README.txt in it says what was replaced");
    Ok(ExitCode::SUCCESS)
}

/// A new file for its owner only.
fn create(path: &Path) -> anyhow::Result<File> {
    let name = shown(&path.to_string_lossy());
    File::options().write(true).create_new(true).mode(0o600).open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            usage(format!("--output {name}: is there already; give a new file"))
        }
        _ => usage(format!("--output {name}: {e}; give a file in a directory of yours")),
    })
}

/// An archive that is being filled.
struct Report {
    archive: Archive,
    redactor: Redactor,
    /// A line per file.
    index: String,
}

impl Report {
    fn fill(&mut self, args: &BugReportArgs) {
        self.add("version.txt", &version(), "what this weir is");
        let dir = args.journal_dir.to_string_lossy().into_owned();
        let (journals, sockets) = (format!("--journal-dir={dir}"), format!("--control-dir={dir}"));
        let names: Vec<&str> = args.interfaces.iter().map(String::as_str).collect();
        self.command("check.json", &with(&["check", "--json"], &names));
        self.command("status.json", &["status", "--json", &sockets]);
        self.command("undo.json", &with(&["undo", "--dry-run", "--json", &journals], &names));
        self.command("watch.json", &with(&["watch", "--once", "--json", &sockets], &names));
        self.command("explain.json", &with(&["explain", "--for", "2s", "--json"], &names));
        self.config(args.config.as_deref());
        self.journals(&args.journal_dir);
        for file in kern::host_files::read() {
            let name = format!("host{}", file.path);
            match file.text {
                Ok(text) => self.add(&name, &text, file.path),
                Err(e) => self.note(&name, &format!("not there: {e}")),
            }
        }
    }

    /// A file, without what must not be told.
    fn add(&mut self, name: &str, text: &str, what: &str) {
        let text = self.redactor.text(text);
        self.archive.add(name, text.as_bytes());
        self.note(name, what);
    }

    fn note(&mut self, name: &str, what: &str) {
        let line = self.redactor.text(&format!("{name}: {what}\n"));
        self.index += &line;
    }

    /// What one of weir's own commands says on standard output; how it ended, and what it complained of, in the index.
    fn command(&mut self, name: &str, words: &[&str]) {
        let line = format!("weir {}", words.join(" "));
        match answer(words) {
            Ok((end, text, complaint)) => {
                let complaint = complaint.lines().next().map_or_else(String::new, |line| format!(", {line}"));
                self.add(name, &text, &format!("{line}: {end}{complaint}"));
            }
            Err(e) => self.note(name, &format!("{line}: {e}")),
        }
    }

    /// The configuration without its comments.
    fn config(&mut self, given: Option<&Path>) {
        let path = given.unwrap_or(Path::new(CONFIG));
        let mut text = String::new();
        match File::open(path).and_then(|file| file.take(CONFIG_MAX).read_to_string(&mut text)) {
            Ok(_) => self.add("weir.toml", &without_comments(&text), &path.to_string_lossy()),
            Err(e) => self.note("weir.toml", &format!("{}: {e}", path.display())),
        }
    }

    fn journals(&mut self, dir: &Path) {
        let paths = match kern::journal::paths(dir) {
            Ok(paths) => paths,
            Err(e) => return self.note("journal", &e.to_string()),
        };
        if paths.is_empty() {
            self.note("journal", "none: nothing is changed by weir now");
        }
        for path in paths {
            let name = format!("journal/{}", path.file_name().unwrap_or_default().to_string_lossy());
            match kern::rundir::load(&path) {
                Ok(bytes) => self.add(&name, &String::from_utf8_lossy(&bytes), "old values of settings"),
                Err(e) => self.note(&name, &e.to_string()),
            }
        }
    }

    fn end(mut self) -> Vec<u8> {
        let replaced: Vec<String> = self.redactor.counts().map(|(kind, n)| count(n, kind)).collect();
        let replaced = if replaced.is_empty() { "nothing".to_owned() } else { replaced.join(", ") };
        let text = format!("{README}\nReplaced here: {replaced}.\n\n{}", self.index);
        self.archive.add("README.txt", text.as_bytes());
        self.archive.end()
    }
}

/// A command of weir with the interfaces that were named.
fn with<'a>(words: &[&'a str], names: &[&'a str]) -> Vec<&'a str> {
    [words, names].concat()
}

/// Exit, standard output and standard error of `weir WORDS`.
fn answer(words: &[&str]) -> std::io::Result<(String, String, String)> {
    let mut command = Command::new("/proc/self/exe");
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let readers = [read_all(out), read_all(err)];
    let end = Instant::now() + PATIENCE;
    let ended = loop {
        match child.try_wait()? {
            Some(status) => {
                break status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}"));
            }
            None if Instant::now() > end => {
                child.kill()?;
                child.wait()?;
                break format!("ended after {} s without an answer", PATIENCE.as_secs());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let [out, err] = readers.map(|reader| reader.join().unwrap_or_default());
    Ok((ended, out, err))
}

/// Reads to the end in a thread of its own, so that a full pipe holds nobody up; keeps at most [`OUTPUT_MAX`].
fn read_all(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // What was read until an error is kept.
            let _ = from.by_ref().take(OUTPUT_MAX).read_to_end(&mut bytes);
            let _ = std::io::copy(&mut from, &mut std::io::sink());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Lines of a TOML file without comments. A `#` in a string stays: it is not the first of its line, nor after a value's end.
fn without_comments(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let (mut quote, mut end) = (None, line.len());
        for (at, c) in line.char_indices() {
            match (quote, c) {
                (None, '#') => {
                    end = at;
                    break;
                }
                (None, '"' | '\'') => quote = Some(c),
                (Some(q), c) if q == c => quote = None,
                _ => {}
            }
        }
        let kept = line[..end].trim_end();
        if !kept.is_empty() {
            out += kept;
            out.push('\n');
        }
    }
    out
}

fn version() -> String {
    let bpf = if cfg!(no_bpf) { "without BPF programs" } else { "with BPF programs" };
    let libc = if cfg!(target_env = "musl") { "static, musl" } else { "glibc" };
    format!("weir {}, {bpf}, {libc}, {}\n", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_left_out_and_values_are_not() {
        let text =
            "# secret\nreserve = 20   # percent\n\nprotect = [\"a#b\", 'c#d'] # \"x\"\nstatus = \"-\"\n";
        assert_eq!(without_comments(text), "reserve = 20\nprotect = [\"a#b\", 'c#d']\nstatus = \"-\"\n");
    }
}
