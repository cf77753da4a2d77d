//! `weir guard` as a child inside the host's namespace, with all its threads on the host CPU, or those that it is given.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kern::wire::netns::Namespace;
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

use crate::program::Leashed;
use crate::{Error, Result};

/// The line that says that the guard is in force.
const IN_FORCE: &str = "weir: guarding";
/// Where guards answer.
const CONTROL: &str = "/run/weir";
/// A guard answers within one round of its control loop, but the host CPU may be busy.
const ANSWER: Duration = Duration::from_secs(2);
const START: Duration = Duration::from_secs(10);
const STOP: Duration = Duration::from_secs(5);

/// A running guard; stopped with SIGTERM and waited for when dropped.
#[derive(Debug)]
pub struct Guard {
    leashed: Leashed,
    status: PathBuf,
}

impl Guard {
    /// Starts `weir guard INTERFACES OPTIONS` and waits until it is in force.
    ///
    /// # Errors
    /// If it does not get there in 10 s; the message carries its last line.
    pub fn start(
        weir: &Path,
        ns: &Namespace,
        cpus: &[usize],
        interfaces: &[&str],
        options: &[String],
    ) -> Result<Guard> {
        // One file per run in a directory that only root writes to.
        let status = PathBuf::from(format!("/run/{}.status", ns.name()));
        // Gone already, normally.
        let _ = std::fs::remove_file(&status);
        let mut command = Command::new(weir);
        command.arg("guard").args(interfaces).args(options).arg("--status").arg(&status);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut leashed = Leashed::start_on("weir guard", command, ns, cpus)?;
        let child = &mut leashed.child;
        let (sender, lines) = mpsc::channel();
        // The readers go on to the end: a guard that blocks on a full pipe would be our fault.
        if let Some(out) = child.stdout.take() {
            let sender = sender.clone();
            std::thread::spawn(move || forward(BufReader::new(out), &sender));
        }
        if let Some(err) = child.stderr.take() {
            std::thread::spawn(move || forward(BufReader::new(err), &sender));
        }
        let guard = Guard { leashed, status };
        let end = Instant::now() + START;
        let mut last = String::from("it said nothing");
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with(IN_FORCE) => return Ok(guard),
                Ok(line) => last = line,
                Err(_) => return Err(Error::program("weir guard", format!("not in force: {last}"))),
            }
        }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.leashed.child.id()
    }

    /// What the guard answers to `weir status`: counts since the last time it was asked. `None` without an answer.
    #[must_use]
    pub fn ask(&self) -> Option<Value> {
        let mut stream =
            UnixStream::connect(format!("{CONTROL}/guard-{}.sock", self.leashed.child.id())).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Frames that the guard has used to mark its handle since the last time it was asked: it takes a few packets at
    /// each takeover and counts them.
    #[must_use]
    pub fn handle_frames(&self) -> u64 {
        let answer = self.ask().unwrap_or_default();
        let interfaces = answer["interfaces"].as_array().into_iter().flatten();
        interfaces.filter_map(|i| i["drops"]["handle"].as_u64()).sum()
    }

    /// When the guard took a source over, CLOCK_MONOTONIC ns, and why, oldest first.
    #[must_use]
    pub fn takeovers(&self) -> Vec<(u64, String)> {
        // The answer has what came after the last line, and is asked for first: a line that is written meanwhile has it then.
        let answer = self.ask();
        let told = self.status().into_iter().chain(answer);
        let changes = told.flat_map(|status| status["changes"].as_array().cloned().unwrap_or_default());
        let taken = changes.filter(|change| change["kind"] == "takeover").filter_map(|change| {
            let why = change["why"].as_str()?;
            Some((change["time_ns"].as_u64()?, why.split(';').next().unwrap_or(why).to_owned()))
        });
        taken.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The status lines so far, oldest first.
    #[must_use]
    pub fn status(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.status).unwrap_or_default();
        // The last line may be half written.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// The process id of the guard that polls this CPU, as it has written it; `None` if none does.
pub(crate) fn owner(cpu: usize) -> Option<String> {
    holder(&Path::new(CONTROL).join(format!("cpu-{cpu}.lock")))
}

/// What the holder of a lock has written into its file; `None` if nobody holds it.
fn holder(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    let refused = Flock::lock(file, FlockArg::LockSharedNonblock).err();
    let (mut file, _) = refused.filter(|(_, why)| *why == nix::errno::Errno::EWOULDBLOCK)?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn forward(reader: impl BufRead, sender: &mpsc::Sender<String>) {
    for line in reader.lines().map_while(std::result::Result::ok) {
        // Nobody listens any more once the guard is in force; the pipe must be emptied all the same.
        let _ = sender.send(line);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.leashed.stop(STOP);
        // Gone already if the guard never wrote to it.
        let _ = std::fs::remove_file(&self.status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_names_its_holder_only_while_it_is_held() {
        let path = std::env::temp_dir().join(format!("weir-lab-{}.lock", std::process::id()));
        assert_eq!(holder(&path), None);
        std::fs::write(&path, "42").unwrap();
        assert_eq!(holder(&path), None);
        let held = Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        assert_eq!(holder(&path), Some("42".into()));
        drop(held);
        assert_eq!(holder(&path), None);
        std::fs::remove_file(&path).unwrap();
    }
}
