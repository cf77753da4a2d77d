//! `weir watch --json` as a child process, interval by interval.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use see::Snapshot;

/// A line that does not come in this time never comes.
const LATE: Duration = Duration::from_secs(30);

/// One that runs; ended, by its process id, when dropped.
pub struct Watch {
    child: Child,
    lines: Receiver<String>,
}

impl Watch {
    /// Starts it with more arguments, by `spawn`, which may enter a namespace first.
    pub fn start(args: &[&str], spawn: impl FnOnce(Command) -> Child) -> Watch {
        Watch::of(Command::new(env!("CARGO_BIN_EXE_weir")), args, spawn)
    }

    /// The same of a command that leads to a weir.
    pub fn of(mut command: Command, args: &[&str], spawn: impl FnOnce(Command) -> Child) -> Watch {
        command.args(["watch", "--json"]).args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = spawn(command);
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|l| sender.send(l)));
        Watch { child, lines }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next interval as it was written.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(LATE).unwrap_or_else(|e| panic!("weir watch: {e}"))
    }

    /// The next interval.
    pub fn interval(&self) -> Snapshot {
        parse(&self.line())
    }

    /// Two intervals that begin after this call, with those before them: whatever has ended is in one of them.
    pub fn rest(&self) -> Vec<Snapshot> {
        let mut all: Vec<Snapshot> = self.lines.try_iter().map(|l| parse(&l)).collect();
        all.extend([self.interval(), self.interval()]);
        all
    }

    /// Ctrl-C; the lines that were left.
    pub fn end(mut self) -> Vec<String> {
        kill(Pid::from_raw(self.pid() as i32), Signal::SIGINT).unwrap();
        let mut left = Vec::new();
        loop {
            match self.lines.recv_timeout(LATE) {
                Ok(line) => left.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(e) => panic!("weir watch does not end: {e}"),
            }
        }
        assert!(self.child.wait().unwrap().success());
        left
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse(line: &str) -> Snapshot {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}
