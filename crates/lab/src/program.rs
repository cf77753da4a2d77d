//! The measured programs as child processes. Each ends when its standard input closes, so none outlives the lab.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kern::wire::netns::Namespace;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use crate::{Error, Result};

/// A program that does not answer within this time is broken: its control thread is on the wire CPU, which the
/// load shares with it at normal priority.
const ANSWER: Duration = Duration::from_secs(5);

/// Finds a program: in `directory` if given, else beside the running executable, one level above it (tests and
/// examples live in a directory of their own), or where it is installed: `PREFIX/lib/weir` for `PREFIX/bin/weir`.
///
/// # Errors
/// With the places that were looked at.
pub fn locate(name: &str, directory: Option<&Path>) -> Result<PathBuf> {
    let exe = std::env::current_exe().unwrap_or_default();
    let places: Vec<PathBuf> = match directory {
        Some(directory) => vec![directory.join(name)],
        None => {
            let above: Vec<&Path> = exe.ancestors().skip(1).take(2).collect();
            let installed = above.last().map(|prefix| prefix.join("lib/weir"));
            above.into_iter().map(Path::to_owned).chain(installed).map(|d| d.join(name)).collect()
        }
    };
    places.iter().find(|p| p.is_file()).cloned().ok_or_else(|| {
        let tried: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        Error::Missing(format!(
            "program {name} not found, looked at {}; build it with `make`, or install it with `make install`",
            tried.join(", ")
        ))
    })
}

/// A child that gets SIGTERM when the lab dies, however it dies: for programs that do not watch their standard input.
///
/// The kernel sends the signal when the *thread* that made the child ends, so that thread is kept.
#[derive(Debug)]
pub struct Leashed {
    /// The child.
    pub child: Child,
    let_go: Option<mpsc::Sender<()>>,
    holder: Option<JoinHandle<()>>,
}

impl Leashed {
    /// Starts `command` inside `ns`, bound to `cpu`.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(name: &str, command: Command, ns: &Namespace, cpu: usize) -> Result<Leashed> {
        Self::start_on(name, command, ns, &[cpu])
    }

    /// The same, bound to several CPUs.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_on(name: &str, mut command: Command, ns: &Namespace, cpus: &[usize]) -> Result<Leashed> {
        // SAFETY: prctl is a plain system call, which is all that may be called between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let mut set = nix::sched::CpuSet::new();
        for cpu in cpus {
            set.set(*cpu).map_err(|e| Error::program(name, e))?;
        }
        let door = ns.door()?;
        let (started, start) = mpsc::channel();
        let (let_go, held) = mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let mut spawn = || -> Result<Child> {
                door.enter()?;
                let here = nix::unistd::Pid::from_raw(0);
                nix::sched::sched_setaffinity(here, &set).map_err(|e| Error::program("its CPUs", e))?;
                command.spawn().map_err(|e| Error::program(&command.get_program().to_string_lossy(), e))
            };
            // Nobody listens only if the lab's thread is gone, and then the child goes with this one.
            if started.send(spawn()).is_ok() {
                // Ends when the sender is dropped.
                let _ = held.recv();
            }
        });
        let child = start.recv().map_err(|_| Error::program(name, "its thread ended"))??;
        Ok(Leashed { child, let_go: Some(let_go), holder: Some(holder) })
    }

    /// Sends SIGTERM, waits for at most `patience`, then ends the child the hard way.
    pub fn stop(&mut self, patience: Duration) {
        let running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        if running(&mut self.child) {
            let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
            // The child is ours and not reaped, so the id is its own.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        }
        let end = Instant::now() + patience;
        while Instant::now() < end && running(&mut self.child) {
            std::thread::sleep(Duration::from_millis(2));
        }
        if running(&mut self.child) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        self.stop(Duration::from_secs(5));
        drop(self.let_go.take());
        if let Some(holder) = self.holder.take() {
            // Its panic would have been seen at the start.
            let _ = holder.join();
        }
    }
}

/// A child that answers lines of JSON.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    pending: Vec<u8>,
}

impl Program {
    /// Starts `path` inside `ns` and waits for its first line.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(path: &Path, ns: &Namespace, args: &[String]) -> Result<Program> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut command = Command::new(path);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = ns.run(|| Ok(command.spawn()))?;
        let mut child = child.map_err(|e| Error::program(&name, e))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::program(&name, "no pipes"));
        };
        let mut program = Program { name, child, stdin: Some(stdin), stdout, pending: Vec::new() };
        let hello = program.line()?;
        if hello["ready"] != Value::Bool(true) {
            return Err(Error::program(&program.name, format!("says {hello} instead of being ready")));
        }
        Ok(program)
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends one line and reads the one that answers it.
    ///
    /// # Errors
    /// If it has ended or does not answer in time.
    pub fn ask(&mut self, line: &str) -> Result<Value> {
        if let Some(stdin) = &mut self.stdin {
            writeln!(stdin, "{line}").map_err(|e| Error::program(&self.name, e))?;
        }
        self.line()
    }

    fn line(&mut self) -> Result<Value> {
        let end = Instant::now() + ANSWER;
        loop {
            if let Some(at) = self.pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=at).collect();
                return serde_json::from_slice(&line).map_err(|e| Error::program(&self.name, e));
            }
            let left = end.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.stdout.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) => return Err(Error::program(&self.name, format!("no answer in {ANSWER:?}"))),
                Err(nix::errno::Errno::EINTR) => continue,
                Err(e) => return Err(Error::program(&self.name, e)),
                Ok(_) => {}
            }
            let mut buffer = [0u8; 65536];
            match self.stdout.read(&mut buffer) {
                Ok(0) => return Err(Error::program(&self.name, "ended unexpectedly")),
                Ok(n) => self.pending.extend(&buffer[..n]),
                Err(e) => return Err(Error::program(&self.name, e)),
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // A child that ignores the end of its input is ended the hard way; it is ours and not yet reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
