//! Programs that are served from Debian's packages, and what asks them. All files are in one directory below /run that
//! goes with the trial; each program is a child in the host's namespace and no service of the system.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kern::wire::netns::Namespace;
use serde_json::Value;

use super::beside;
use crate::consumer;
use crate::experiment::containers;
use crate::no_harm::{child, listens, output, words};
use crate::program::{Leashed, Program, locate};
use crate::rig::Rig;
use crate::trial::Bench;
use crate::{Error, Result};

/// A program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    Nsd,
    Rsyslog,
    Nginx,
    Haproxy,
    Sshd,
    Iperf3,
    Rpcbind,
    /// nsd, and a capture of its questions.
    Tcpdump,
    /// nsd behind a packet filter in user space.
    Dhcpoptinj,
    /// nsd in a container with a published port.
    ContainerNsd,
    /// nginx in one.
    ContainerNginx,
}

/// Names, and the programs that each needs.
pub(super) const ALL: [(&str, Served, &[&str]); 11] = [
    ("nsd", Served::Nsd, &["nsd", "dnsperf"]),
    ("rsyslog", Served::Rsyslog, &["rsyslogd"]),
    ("nginx", Served::Nginx, &["nginx"]),
    ("haproxy", Served::Haproxy, &["haproxy"]),
    ("sshd", Served::Sshd, &["sshd", "ssh", "ssh-keygen"]),
    ("iperf3", Served::Iperf3, &["iperf3"]),
    ("rpcbind", Served::Rpcbind, &["rpcbind", "unshare"]),
    ("tcpdump", Served::Tcpdump, &["nsd", "dnsperf", "tcpdump"]),
    ("dhcpoptinj", Served::Dhcpoptinj, &["nsd", "dnsperf", "dhcpoptinj", "iptables"]),
    ("container-nsd", Served::ContainerNsd, &["nsd", "dnsperf", "ip", "nft"]),
    ("container-nginx", Served::ContainerNginx, &["nginx", "ip", "nft"]),
];

/// Questions per second to a name server, lines per second to a log.
pub(super) const PER_S: u32 = 500;
/// Time between two connections.
const CONNECT_EVERY_US: u32 = 5000;

fn find(name: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    places.iter().map(|place| Path::new(place).join(name)).find(|path| path.is_file())
}

pub(super) fn path(name: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| Error::Missing(format!("program {name} not found")))
}

impl Served {
    fn row(self) -> (&'static str, &'static [&'static str]) {
        ALL.iter().find(|p| p.1 == self).map_or(("", &[]), |p| (p.0, p.2))
    }

    pub(super) fn name(self) -> &'static str {
        self.row().0
    }

    /// The server itself.
    fn server(self) -> Served {
        match self {
            Served::Tcpdump | Served::Dhcpoptinj | Served::ContainerNsd => Served::Nsd,
            Served::ContainerNginx => Served::Nginx,
            itself => itself,
        }
    }

    /// Behind a published port.
    pub(super) fn contained(self) -> bool {
        matches!(self, Served::ContainerNsd | Served::ContainerNginx)
    }

    pub(super) fn port(self) -> u16 {
        match self.server() {
            Served::Rsyslog => 514,
            Served::Nginx | Served::Haproxy => 80,
            Served::Sshd => 22,
            Served::Iperf3 => 5201,
            Served::Rpcbind => 111,
            _ => 53,
        }
    }

    /// True if what floods its own port are SYNs.
    pub(super) fn tcp(self) -> bool {
        matches!(self.server(), Served::Nginx | Served::Haproxy | Served::Sshd)
    }

    /// True if its client is the lab's own, which opens connections for as long as it is let.
    pub(super) fn connects(self) -> bool {
        matches!(self.server(), Served::Nginx | Served::Haproxy)
    }

    /// Which of its programs is not installed.
    pub(super) fn missing(self) -> Option<String> {
        let (name, programs) = self.row();
        let missing = programs.iter().find(|p| find(p).is_none())?;
        Some(format!("{name}: program {missing} not found; apt-get install it"))
    }
}

/// A running program, and its files.
pub(super) struct Server {
    program: Served,
    directory: PathBuf,
    leashed: Option<Leashed>,
    /// Of new connections.
    probe: Option<Program>,
    /// What stands before or beside it.
    beside: Option<Leashed>,
    /// Where it runs, if that is not the host's own namespace.
    container: Option<Namespace>,
}

impl Server {
    /// Starts it on the host CPU and waits until it listens.
    ///
    /// # Errors
    /// If it does not.
    pub(super) fn start(bench: &Bench, rig: &Rig<'_>, program: Served) -> Result<Server> {
        let directory = PathBuf::from(format!("/run/{}-real", rig.host.name()));
        let container = match program.contained() {
            true => {
                let protocol = if program.tcp() { "tcp" } else { "udp" };
                Some(containers::published(rig, protocol, program.port())?)
            }
            false => None,
        };
        let mut server = Server { program, directory, leashed: None, probe: None, beside: None, container };
        let (ns, address) = match &server.container {
            Some(container) => (container, containers::inside(0)),
            None => (&rig.host, rig.inputs[0].address),
        };
        let what = program.server();
        let args = server.configure(address).map_err(|e| Error::program(program.name(), e))?;
        let starts = if what == Served::Rpcbind { "unshare" } else { what.name() };
        let starts = if what == Served::Rsyslog { "rsyslogd" } else { starts };
        server.leashed = Some(child(bench, &path(starts)?, &args, ns, bench.cpus.host)?);
        match what {
            Served::Nsd | Served::Rsyslog | Served::Rpcbind => udp_listens(bench, ns, program)?,
            _ => listens(ns, &program.port().to_string(), bench)?,
        }
        if program.connects() {
            let mut args = words(&format!("--cpu {} --fifo --to {}", rig.cpus.wire, rig.inputs[0].address));
            args.extend(words(&format!("--every-us {CONNECT_EVERY_US} --connect {}", program.port())));
            server.probe =
                Some(Program::start(&locate("probe", bench.hog.parent())?, &rig.wire_side, &args)?);
        }
        server.beside = match program {
            Served::Tcpdump => Some(beside::capture(bench, rig, &server.directory)?),
            Served::Dhcpoptinj => Some(beside::filter(bench, rig)?),
            _ => None,
        };
        Ok(server)
    }

    /// Writes its files; the arguments that have it use them.
    fn configure(&self, address: Ipv4Addr) -> std::io::Result<Vec<String>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let d = self.directory.display();
        let write = |name: &str, text: String| fs::write(self.directory.join(name), text);
        match self.program.server() {
            Served::Nsd => {
                consumer::configure(&self.directory, address)?;
                write("queries", "q.weir.test A\n".into())?;
                Ok(words(&format!("-d -c {d}/nsd.conf")))
            }
            Served::Rsyslog => {
                let conf = format!(
                    "module(load=\"imudp\")\ninput(type=\"imudp\" port=\"514\" address=\"{address}\")\n\
                     template(name=\"line\" type=\"string\" string=\"%msg%\\n\")\n\
                     *.* action(type=\"omfile\" file=\"{d}/log\" template=\"line\")\n"
                );
                write("rsyslog.conf", conf)?;
                Ok(words(&format!("-n -f {d}/rsyslog.conf -i {d}/pid")))
            }
            Served::Nginx => {
                let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                    .iter()
                    .map(|what| format!(" {what}_temp_path {d}/{what};\n"))
                    .collect();
                let conf = format!(
                    "daemon off;\nuser root;\nworker_processes 1;\npid {d}/nginx.pid;\nerror_log {d}/error.log;\n\
                     events {{ }}\nhttp {{\n access_log {d}/access.log;\n{paths} \
                     server {{ listen {address}:80; root {d}; }}\n}}\n"
                );
                write("nginx.conf", conf)?;
                write("index.html", "weir\n".into())?;
                Ok(words(&format!("-p {d} -e {d}/error.log -c {d}/nginx.conf")))
            }
            Served::Haproxy => {
                let conf = format!(
                    "defaults\n mode http\n timeout connect 5s\n timeout client 50s\n timeout server 50s\n\
                     frontend web\n bind {address}:80\n http-request return status 200\n"
                );
                write("haproxy.cfg", conf)?;
                Ok(words(&format!("-db -f {d}/haproxy.cfg")))
            }
            Served::Sshd => {
                for key in ["host", "user"] {
                    let file = self.directory.join(key);
                    let made = Command::new(find("ssh-keygen").unwrap_or_default())
                        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                        .arg(file)
                        .stdin(Stdio::null())
                        .status()?;
                    if !made.success() {
                        return Err(std::io::Error::other("ssh-keygen made no key"));
                    }
                }
                fs::copy(self.directory.join("user.pub"), self.directory.join("allowed"))?;
                // Where it locks its unprivileged part in; a machine without the service has none.
                fs::DirBuilder::new().recursive(true).mode(0o755).create("/run/sshd")?;
                let conf = format!(
                    "Port 22\nListenAddress {address}\nHostKey {d}/host\nAuthorizedKeysFile {d}/allowed\n\
                     StrictModes no\nPidFile none\nUsePAM no\n"
                );
                write("sshd_config", conf)?;
                Ok(words(&format!("-D -e -f {d}/sshd_config")))
            }
            // Its lock and its socket are at fixed places: it gets a /run of its own.
            Served::Rpcbind => {
                let mut args = words("-m sh -c");
                args.push(format!("mount -t tmpfs weir /run && exec rpcbind -f -h {address}"));
                Ok(args)
            }
            _ => Ok(words(&format!("-s -B {address} -p 5201"))),
        }
    }

    /// Lets its client ask for as long as the window; how much of it was served, and how much what stands beside it saw, in percent.
    ///
    /// # Errors
    /// If a client does not start.
    pub(super) fn ask(
        &mut self,
        bench: &Bench,
        rig: &Rig<'_>,
        window: Duration,
    ) -> Result<(f64, Option<f64>)> {
        if self.program != Served::Tcpdump {
            return Ok((self.ask_server(bench, rig, window)?.0, None));
        }
        let (served, sent) = self.ask_server(bench, rig, window)?;
        // It writes what it has at its end.
        drop(self.beside.take());
        Ok((served, Some(100.0 * beside::captured(&self.directory) / sent.max(1.0))))
    }

    /// What was served in percent, and for a name server how many questions were sent.
    fn ask_server(&mut self, bench: &Bench, rig: &Rig<'_>, window: Duration) -> Result<(f64, f64)> {
        let (d, address) = (self.directory.display().to_string(), rig.inputs[0].address);
        let seconds = window.as_secs().max(1) as u32;
        let served = match self.program.server() {
            Served::Nsd => {
                let args =
                    format!("-s {address} -d {d}/queries -Q {PER_S} -l {seconds} -t 1 -q 5000 -c 1 -T 1");
                let text = client(bench, rig, "dnsperf", &args, seconds)?;
                return Ok(dnsperf(&text));
            }
            Served::Rsyslog => {
                let lines = rig.wire_side.run(|| Ok(log(rig.cpus.wire, (address, 514).into(), seconds)))?;
                let lines = lines.map_err(|e| Error::program("sender", e))?;
                // What it has read is written soon.
                bench.interrupt.sleep(Duration::from_millis(500))?;
                let text = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                100.0 * written(&text, lines) as f64 / f64::from(lines.max(1))
            }
            Served::Nginx | Served::Haproxy => {
                let Some(probe) = &mut self.probe else { return Ok((0.0, 0.0)) };
                probe.ask("reset")?;
                bench.interrupt.sleep(window)?;
                let answer = probe.ask("report")?;
                connected(&answer["connect-1"])
            }
            Served::Sshd => {
                let args = format!(
                    "-i {d}/user -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
                     -o ConnectTimeout={seconds} root@{address} echo logged in"
                );
                let begin = Instant::now();
                let mut ssh = fifo(bench, rig, "ssh", &args)?;
                while begin.elapsed() < window && matches!(ssh.child.try_wait(), Ok(None)) {
                    bench.interrupt.sleep(Duration::from_millis(5))?;
                }
                let done = matches!(ssh.child.try_wait(), Ok(Some(status)) if status.success());
                if done { 100.0 } else { 0.0 }
            }
            Served::Rpcbind => {
                let asked =
                    rig.wire_side.run(|| Ok(beside::rpc(rig.cpus.wire, (address, 111).into(), seconds)))?;
                asked.map_err(|e| Error::program("client", e))?
            }
            _ => {
                let args =
                    format!("-c {address} -p 5201 -u -b 5M -l 1000 -t {seconds} --connect-timeout 2000 -J");
                let text = client(bench, rig, "iperf3", &args, seconds)?;
                iperf3(&text)
            }
        };
        Ok((served, 0.0))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.probe.take());
        drop(self.beside.take());
        if let Some(leashed) = &mut self.leashed {
            leashed.stop(Duration::from_secs(2));
        }
        // What is left is a few small files below /run.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A client on the wire CPU, before the wire.
fn fifo(bench: &Bench, rig: &Rig<'_>, name: &str, args: &str) -> Result<Leashed> {
    let mut all = words("-f 10");
    all.push(path(name)?.display().to_string());
    all.extend(words(args));
    child(bench, &path("chrt")?, &all, &rig.wire_side, bench.cpus.wire)
}

fn client(bench: &Bench, rig: &Rig<'_>, name: &str, args: &str, seconds: u32) -> Result<String> {
    // One that is not served at all ends late, and says nothing more.
    Ok(output(fifo(bench, rig, name, args)?, name, seconds).unwrap_or_default())
}

fn udp_listens(bench: &Bench, ns: &Namespace, program: Served) -> Result<()> {
    for _ in 0..300 {
        if ns.run(|| kern::wire::counters::udp_socket(program.port()))?.is_some() {
            return Ok(());
        }
        bench.interrupt.sleep(Duration::from_millis(10))?;
    }
    Err(Error::program(program.name(), "does not listen"))
}

/// A socket of a thread that runs before the wire from now on.
pub(super) fn wire_client(cpu: usize) -> std::io::Result<UdpSocket> {
    kern::wire::tasks::pin(0, cpu).map_err(std::io::Error::other)?;
    kern::wire::tasks::schedule(0, kern::wire::tasks::Policy::Fifo(10)).map_err(std::io::Error::other)?;
    UdpSocket::bind("0.0.0.0:0")
}

/// Sends numbered lines; how many.
fn log(cpu: usize, to: std::net::SocketAddr, seconds: u32) -> std::io::Result<u32> {
    let socket = wire_client(cpu)?;
    let every = Duration::from_secs(1) / PER_S;
    let begin = Instant::now();
    let lines = seconds * PER_S;
    for n in 0..lines {
        // A full queue of the sender loses a line, which counts as lost.
        let _ = socket.send_to(format!("<13>weir: line {n} end").as_bytes(), to);
        std::thread::sleep((begin + every * (n + 1)).saturating_duration_since(Instant::now()));
    }
    Ok(lines)
}

/// Different lines of `lines` that are in the log.
fn written(log: &str, lines: u32) -> usize {
    let number = |line: &str| line.split("line ").nth(1)?.split(' ').next()?.parse::<u32>().ok();
    log.lines().filter_map(number).filter(|n| *n < lines).collect::<BTreeSet<u32>>().len()
}

/// The share that was answered, and the questions.
fn dnsperf(text: &str) -> (f64, f64) {
    let count = |what: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(what))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    let sent = count("Queries sent:").unwrap_or(0.0);
    (100.0 * count("Queries completed:").unwrap_or(0.0) / sent.max(1.0), sent)
}

fn iperf3(text: &str) -> f64 {
    let answer: Value = serde_json::from_str(text).unwrap_or_default();
    answer["end"]["sum"]["lost_percent"].as_f64().map_or(0.0, |lost| 100.0 - lost)
}

fn connected(row: &Value) -> f64 {
    let n = |name: &str| row[name].as_u64().unwrap_or(0) as f64;
    100.0 * n("answered") / n("latency_count").max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_served_is_read_from_what_clients_print() {
        let text = "Statistics:\n\n  Queries sent:         1000\n  Queries completed:    750 (75.00%)\n";
        assert_eq!(dnsperf(text), (75.0, 1000.0));
        assert_eq!(dnsperf("cannot connect"), (0.0, 0.0));
        assert_eq!(iperf3(&json!({"end": {"sum": {"lost_percent": 2.5}}}).to_string()), 97.5);
        assert_eq!(iperf3(&json!({"error": "unable to connect"}).to_string()), 0.0);
        assert_eq!(iperf3(""), 0.0);
        assert_eq!(connected(&json!({"answered": 9, "latency_count": 12})), 75.0);
        // Twice the same line, one of another sender, garbage of the flood.
        let log = "weir: line 3 end\nweir: line 3 end\nweir: line 0 end\nline 99 end\n\u{fffd}\n";
        assert_eq!(written(log, 10), 2);
    }

    #[test]
    fn every_program_has_its_name_and_port() {
        for (name, program, needs) in ALL {
            assert_eq!(program.name(), name);
            assert!(!needs.is_empty() && program.port() > 0);
        }
    }
}
