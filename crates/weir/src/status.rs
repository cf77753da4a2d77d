//! `weir status`: asks the running guards and shows what they answer.
//!
//! A guard listens on `guard-PID.sock` in its control directory. To each connection it writes one JSON object,
//! schema `weir.status/1`, and closes. The same object is a line of `weir guard --status`. A field that a guard
//! does not measure is absent and shown as n/a; fields that this program does not know are left in `--json`.

use crate::cli::StatusArgs;
use crate::config::File;
use crate::error::{failed, missing, usage};
use crate::out::{self, Paint, shown};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde::Deserialize;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

mod table;

pub use guard::status::*;

/// Bytes of the longest answer.
const ANSWER_MAX: usize = 4 * 1024 * 1024;
/// A guard's control loop answers within one of its rounds; one that is stopped must not stop this program.
const PATIENCE: Duration = Duration::from_secs(2);

/// An average over more than this is not what happens now, s: the table waits for a [`FRESH`] one.
const STALE_S: f64 = 10.0;
/// Interval of a fresh answer.
const FRESH: Duration = Duration::from_secs(1);

/// Runs `weir status`. No guard is no error, unless interfaces are named: exit code 0 and a line that says so.
///
/// # Errors
/// 3 if a guard may not be asked, 1 if one does not answer.
pub fn run(args: &StatusArgs, paint: Paint) -> anyhow::Result<ExitCode> {
    let names = match &args.config {
        Some(path) => {
            let names: Vec<String> =
                File::read(path)?.given.interfaces.iter().map(|at| at.value.clone()).collect();
            if names.is_empty() {
                let path = shown(&path.to_string_lossy());
                return Err(usage(format!("{path}: no interface; name one: interfaces = [\"eth0\"]")));
            }
            names
        }
        None => args.interfaces.clone(),
    };
    match names.is_empty() {
        true => of_all(args, paint),
        false => of(&names, args, paint),
    }
}

/// Asks the guards of these interfaces of this namespace. Which one a guard has, only its answer tells: all are asked at once, and
/// nobody is waited for when each interface is answered for. So a guard of another one that stands still is no obstacle.
fn of(names: &[String], args: &StatusArgs, paint: Paint) -> anyhow::Result<ExitCode> {
    let here = kern::netns::current_inode()?;
    let sockets = sockets(&args.control_dir, GUARD)?;
    let (sender, answers) = std::sync::mpsc::channel();
    for (pid, path) in sockets {
        let sender = sender.clone();
        let asked = move || {
            // Nobody listens once each interface is answered for.
            let _ = sender.send((pid, ask(&path, PATIENCE)));
        };
        std::thread::Builder::new().spawn(asked)?;
    }
    drop(sender);
    // Guards have interfaces that receive: of a bond, those below it.
    let mut open: Vec<(&String, Vec<String>)> = names
        .iter()
        .map(|name| {
            (name, crate::undo::lower(std::slice::from_ref(name)).unwrap_or_else(|_| vec![name.clone()]))
        })
        .collect();
    let mut silent = Vec::new();
    for (pid, answer) in answers {
        let text = match answer {
            Ok(text) => text,
            Err(err) if matches!(err.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => continue,
            Err(err) if err.kind() == ErrorKind::PermissionDenied => return Err(root_only(pid)),
            Err(_) => {
                silent.push(pid);
                continue;
            }
        };
        let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) else {
            silent.push(pid);
            continue;
        };
        let status = read(pid, &value)?;
        let before = open.len();
        let has = |name: &String| status.interfaces.iter().any(|i| i.name == *name || i.wanted == *name);
        open.retain(|(_, below)| status.netns != here || !below.iter().any(has));
        if open.len() < before {
            show(&value, &status, args, paint)?;
        }
        if open.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    silent.sort_unstable();
    let words: Vec<String> = open.iter().map(|(name, _)| shown(&kern::shell::quoted(name))).collect();
    let open: Vec<String> = open.iter().map(|(name, _)| shown(name)).collect();
    let open = open.join(", ");
    Err(failed(match silent.is_empty() {
        true => format!("{open}: no guard is running; to start one: sudo weir guard {}", words.join(" ")),
        false => {
            let pids: Vec<String> = silent.iter().map(u32::to_string).collect();
            let (pids, list) = (pids.join(", "), pids.join(","));
            format!(
                "{open}: no guard answers; guard pid {pids} does not within 2 s; see whether it is stopped: ps -p {list}"
            )
        }
    }))
}

fn root_only(pid: u32) -> anyhow::Error {
    missing(format!("status: guard pid {pid} answers root only; run it with sudo"))
}

fn read(pid: u32, value: &serde_json::Value) -> anyhow::Result<Status> {
    Status::deserialize(value).map_err(|err| {
        failed(format!("guard pid {pid}: no {SCHEMA} ({err}); use the weir it was started with"))
    })
}

/// One guard's answer; as JSON with what this program does not know.
fn show(value: &serde_json::Value, status: &Status, args: &StatusArgs, paint: Paint) -> anyhow::Result<()> {
    match args.json {
        true => out::data(&format!("{value}\n")),
        false => out::data(&table::text(status, paint)),
    }
}

fn of_all(args: &StatusArgs, paint: Paint) -> anyhow::Result<ExitCode> {
    let sockets = sockets(&args.control_dir, GUARD)?;
    let mut running = 0;
    let mut silent = Vec::new();
    for (pid, path) in &sockets {
        let answer = if args.json { ask(path, PATIENCE) } else { ask_fresh(path) };
        let text = match answer {
            Ok(text) => text,
            Err(err) if matches!(err.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
                out::talk(&format!(
                    "guard pid {pid} ended without cleaning up; what its keeper has not put back: sudo weir undo --guards"
                ));
                continue;
            }
            Err(err) if err.kind() == ErrorKind::PermissionDenied => {
                return Err(root_only(*pid));
            }
            Err(_) => {
                silent.push(pid.to_string());
                continue;
            }
        };
        let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) else {
            silent.push(pid.to_string());
            continue;
        };
        running += 1;
        if args.json {
            out::data(&format!("{value}\n"))?;
        } else {
            out::data(&table::text(&read(*pid, &value)?, paint))?;
        }
    }
    if !silent.is_empty() {
        return Err(failed(format!(
            "guard pid {} does not answer within 2 s; see whether it is stopped: ps -p {}",
            silent.join(", "),
            silent.join(",")
        )));
    }
    if running == 0 {
        let dir = shown(&args.control_dir.to_string_lossy());
        let text = format!("no guard is running: none answers in {dir}; to start one: sudo weir guard IF\n");
        if args.json {
            out::talk(text.trim_end());
        } else {
            out::data(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the guard answers for a reader: of the last second, if nobody has asked it for long.
fn ask_fresh(path: &Path) -> std::io::Result<String> {
    let text = ask(path, PATIENCE)?;
    if serde_json::from_str::<Status>(&text).is_ok_and(|status| status.interval_s > STALE_S) {
        std::thread::sleep(FRESH);
        return ask(path, PATIENCE);
    }
    Ok(text)
}

/// What the guard behind `path` answers, within `patience`. It never waits longer: not for one that is stopped, whose queue of
/// connections is full at last, and not for one that answers by the byte.
///
/// # Errors
/// `ConnectionRefused` or `NotFound` if there is no guard, `WouldBlock` or `TimedOut` if it is too slow.
pub fn ask(path: &Path, patience: Duration) -> std::io::Result<String> {
    let until = Instant::now() + patience;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let mut stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    let (mut text, mut part) = (Vec::new(), [0; 16 * 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return String::from_utf8(text).map_err(|_| ErrorKind::InvalidData.into()),
            Ok(n) if text.len() + n > ANSWER_MAX => return Err(ErrorKind::FileTooLarge.into()),
            Ok(n) => text.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    /// A socket in a directory of its own.
    fn listener() -> (tempfile::TempDir, PathBuf, UnixListener) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("guard-7.sock");
        let listener = UnixListener::bind(&path).unwrap();
        (dir, path, listener)
    }

    #[test]
    fn the_whole_answer_is_read() {
        let (dir, path, listener) = listener();
        let long = "x".repeat(100_000);
        let sent = long.clone();
        let guard = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(sent.as_bytes()).unwrap();
        });
        assert_eq!(ask(&path, Duration::from_secs(10)).unwrap(), long);
        guard.join().unwrap();
        assert_eq!(sockets(dir.path(), GUARD).unwrap(), [(7, path.clone())]);
        assert_eq!(sockets(dir.path(), ACCEPT).unwrap(), []);
        // The listener is gone, its socket is not.
        assert_eq!(ask(&path, PATIENCE).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn nobody_is_waited_for_longer_than_allowed() {
        use nix::sys::socket::{Backlog, listen};
        let (_dir, path, listener) = listener();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        // Nobody accepts: the first ones wait for an answer, then the queue is full and none can connect any more.
        for _ in 0..8 {
            let begin = Instant::now();
            let kind = ask(&path, Duration::from_millis(20)).unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind:?}");
            assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        }
    }

    #[test]
    fn one_that_answers_by_the_byte_is_not_waited_for() {
        let (_dir, path, listener) = listener();
        let guard = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let begin = Instant::now();
        assert!(ask(&path, Duration::from_millis(50)).is_err());
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        guard.join().unwrap();
    }
}
