//! The servers of the experiment `proxy`: nginx as reverse proxy in the host, with a worker on each CPU, and behind it a second nginx on
//! the other side with three ports, which stand for three back ends. One short connection for each request, on both sides.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kern::wire::netns::Namespace;
use kern::wire::tasks;

use crate::program::Leashed;
use crate::rig::Rig;
use crate::{Error, Result};

/// nginx in Debian's package, and where it is built from source.
const NGINX: [&str; 2] = ["/usr/sbin/nginx", "/usr/local/sbin/nginx"];
/// Bytes of a page: a result page of a search engine (BH-02).
const PAGE: usize = 18_800;
/// Ports of the back ends.
const BACK_ENDS: [u16; 3] = [9001, 9002, 9003];
/// A server that does not have its workers after this time does not start.
const STARTS: Duration = Duration::from_secs(5);

/// Which nginx there is.
///
/// # Errors
/// If there is none.
pub(crate) fn nginx() -> Result<PathBuf> {
    let found = NGINX.iter().map(PathBuf::from).find(|path| path.is_file());
    found.ok_or_else(|| Error::Missing("program nginx not found; apt-get install nginx".into()))
}

/// One nginx with a worker on each of some CPUs.
struct Server {
    /// By the order of the CPUs.
    workers: Vec<u32>,
    _program: Leashed,
}

/// Proxy and back ends, and their files; all are gone when it is dropped.
pub(crate) struct Pair {
    proxy: Server,
    back: Server,
    /// Last, so that both have ended before it goes.
    files: Files,
}

impl Pair {
    /// Starts both. `logged`: the proxy writes down which of its workers asked which of the back ends' for each request.
    ///
    /// # Errors
    /// If one of them does not start.
    pub(crate) fn start(
        rig: &Rig<'_>,
        port: u16,
        cpus: &[usize],
        reuseport: bool,
        logged: bool,
    ) -> Result<Pair> {
        let program = nginx()?;
        let directory = PathBuf::from(format!("/run/{}-nginx", rig.host.name()));
        let made = || -> std::io::Result<()> {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
            std::fs::write(directory.join("page"), page())
        };
        // From here on what is written goes with it.
        let files = Files(directory.clone());
        made().map_err(|e| Error::program("nginx", e))?;
        let (address, peer) = (rig.inputs[0].address, rig.inputs[0].peer);
        let back = Server::start(&program, &directory, "back", &back_ends(peer), &rig.wire_side, cpus)?;
        let front = front(address, port, peer, reuseport, logged.then_some(directory.as_path()));
        let proxy = Server::start(&program, &directory, "proxy", &front, &rig.host, cpus)?;
        Ok(Pair { proxy, back, files })
    }

    /// The proxy's workers, by the order of the CPUs.
    pub(crate) fn workers(&self) -> &[u32] {
        &self.proxy.workers
    }

    /// Processes of the back ends.
    pub(crate) fn behind(&self) -> &[u32] {
        &self.back.workers
    }

    /// Share of the requests whose back end's worker is on the CPU of the proxy's, in percent. Packets that the back end sends are
    /// received on the CPU that sends them.
    pub(crate) fn affine(&self) -> Option<f64> {
        // It writes in blocks; what it still has is as the rest.
        let log = std::fs::read_to_string(self.files.0.join("pairs.log")).ok()?;
        same(&log, &self.proxy.workers, &self.back.workers)
    }
}

/// Removed when dropped.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        // What is left is a few small files below /run.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Server {
    fn start(
        program: &Path,
        directory: &Path,
        name: &str,
        http: &str,
        ns: &Namespace,
        cpus: &[usize],
    ) -> Result<Server> {
        let file = directory.join(format!("{name}.conf"));
        let written = std::fs::write(&file, configuration(directory, name, http, cpus));
        written.map_err(|e| Error::program("nginx", e))?;
        let error_log = directory.join(format!("{name}-error.log"));
        let mut command = Command::new(program);
        command.arg("-p").arg(directory).arg("-e").arg(&error_log).arg("-c").arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let program = Leashed::start_on("nginx", command, ns, cpus)?;
        let master = program.child.id();
        let end = Instant::now() + STARTS;
        loop {
            let family = tasks::family(master as i32).unwrap_or_default();
            let mut workers: Vec<u32> = family.into_iter().map(|pid| pid as u32).collect();
            workers.retain(|pid| *pid != master);
            // In the order in which they were made, and bound.
            workers.sort_unstable();
            if workers.len() == cpus.len() {
                return Ok(Server { workers, _program: program });
            }
            if Instant::now() > end {
                let why = std::fs::read_to_string(&error_log).unwrap_or_default();
                let why = why.lines().last().unwrap_or("its workers do not start").to_owned();
                return Err(Error::program("nginx", why));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn configuration(directory: &Path, name: &str, http: &str, cpus: &[usize]) -> String {
    let d = directory.display();
    let masks = cpus.iter().fold(String::new(), |mut text, cpu| {
        // Writing into a string does not fail.
        let _ = write!(text, " {:b}", 1u128 << (cpu % 128));
        text
    });
    let paths =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].iter().fold(String::new(), |mut text, what| {
            let _ = writeln!(text, " {what}_temp_path {d}/{name}-{what};");
            text
        });
    format!(
        "daemon off;\nuser root;\nworker_processes {};\nworker_cpu_affinity{masks};\nworker_rlimit_nofile 16384;\n\
         pid {d}/{name}.pid;\nevents {{ worker_connections 8192; }}\n\
         http {{\n keepalive_timeout 0;\n{paths}{http}}}\n",
        cpus.len()
    )
}

fn back_ends(address: Ipv4Addr) -> String {
    let listen = BACK_ENDS.iter().fold(String::new(), |mut text, port| {
        let _ = write!(text, " listen {address}:{port} reuseport backlog=4096;");
        text
    });
    format!(" access_log off;\n server {{{listen} root .; add_header X-Back $pid; }}\n")
}

fn front(address: Ipv4Addr, port: u16, peer: Ipv4Addr, reuseport: bool, log: Option<&Path>) -> String {
    let servers = BACK_ENDS.iter().fold(String::new(), |mut text, port| {
        let _ = write!(text, " server {peer}:{port};");
        text
    });
    let log = match log {
        Some(d) => format!(
            " log_format pair \"$pid $upstream_http_x_back\";\n access_log {}/pairs.log pair buffer=4k;\n",
            d.display()
        ),
        None => " access_log off;\n".into(),
    };
    let reuseport = if reuseport { " reuseport" } else { "" };
    format!(
        "{log} upstream back {{{servers} }}\n server {{ listen {address}:{port}{reuseport} backlog=4096;\n \
         location / {{ proxy_pass http://back/page; add_header X-Worker $pid; }} }}\n"
    )
}

/// Content that does not compress, the same each time.
fn page() -> Vec<u8> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b'a' + (state >> 24) as u8 % 26
    };
    std::iter::repeat_with(next).take(PAGE).collect()
}

/// Of the lines "worker worker" those whose two have the same place in their lists, in percent.
fn same(log: &str, proxy: &[u32], back: &[u32]) -> Option<f64> {
    let place = |list: &[u32], text: &str| list.iter().position(|pid| text.parse() == Ok(*pid));
    let (mut own, mut all) = (0u64, 0u64);
    for (a, b) in log.lines().filter_map(|line| line.split_once(' ')) {
        let (Some(a), Some(b)) = (place(proxy, a), place(back, b)) else { continue };
        all += 1;
        own += u64::from(a == b);
    }
    (all > 0).then(|| 100.0 * own as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_on_the_same_cpu_are_counted() {
        let log = "10 20\n10 21\n11 21\n11 -\n12 20\n10 2";
        assert!(same(log, &[10, 11], &[20, 21]).is_some_and(|share| (share - 200.0 / 3.0).abs() < 1e-9));
        assert_eq!(same("", &[10], &[20]), None);
    }

    #[test]
    fn a_worker_is_bound_to_each_cpu() {
        let text = configuration(Path::new("/run/x"), "proxy", " x\n", &[0, 3]);
        assert!(text.contains("worker_processes 2;\nworker_cpu_affinity 1 1000;\n"), "{text}");
        let front = front(Ipv4Addr::LOCALHOST, 80, Ipv4Addr::LOCALHOST, true, None);
        assert!(
            front.contains("listen 127.0.0.1:80 reuseport") && front.matches(":900").count() == 3,
            "{front}"
        );
        assert_eq!(page().len(), PAGE);
    }
}
