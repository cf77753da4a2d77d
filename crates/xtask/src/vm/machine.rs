//! One machine: QEMU without KVM, its console in a file, its answers over a second serial line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::frames::{MAC, Sender, Wire};
use super::image::Archive;
use super::{Driver, Options, Row, board};

/// A machine that has not finished by then is ended; emulation is slow, and other work may have the CPUs.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Longest silence of a machine.
const SILENCE: Duration = Duration::from_secs(300);
/// Longest wait for QEMU to start.
const HELD_BACK: Duration = Duration::from_secs(1200);
const TAP: &str = "weirvm0";
/// Words that the kernel writes on its console when something broke.
const ALARMS: [&str; 6] = ["WARNING: CPU", "BUG:", "Oops", "Kernel panic", "rcu: INFO", "NETDEV WATCHDOG"];

/// Ends the machine whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The wrapper and what it started are one group; they may have ended by themselves.
        // SAFETY: plain system call; the child has not been waited for, so the group is its own.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

/// What this machine's simulator writes, for the other machine to compare: same scenario and seed, same bytes (P10).
fn simulated(opts: &Options, work: &Path, image: &mut Archive) -> anyhow::Result<()> {
    for (i, experiment) in crate::SIMULATED.iter().enumerate() {
        let json = work.join("simulated.json");
        // A file that an ended run left would be taken for the answer of this one.
        let _ = std::fs::remove_file(&json);
        let ran = Command::new(opts.programs.join("weir"))
            .args(["sim", "run"])
            .args(*experiment)
            .arg("--json")
            .arg(&json)
            .output()
            .context("weir sim run")?;
        anyhow::ensure!(json.exists(), "weir sim run: {}", String::from_utf8_lossy(&ran.stderr));
        image.file(&format!("expected/{i}.json"), &std::fs::read(&json)?);
        std::fs::remove_file(&json)?;
    }
    Ok(())
}

/// Boots `kernel` with `driver` and does what the machine asks for; its answers.
pub fn run(opts: &Options, kernel: &str, driver: Driver, work: &Path) -> anyhow::Result<Vec<Row>> {
    std::fs::create_dir_all(work)?;
    let dir = opts.kernels.join(kernel);
    let board = board(kernel);
    let programs = opts.programs_for(kernel);
    let mut image = Archive::new();
    image.program(&programs.join("xtask"), "init")?;
    if driver.device.starts_with("virtio") {
        simulated(opts, work, &mut image)?;
        // Some kernels have it built in.
        let _ = image.modules(&dir.join("modules"), "virtio_pci");
    }
    if !driver.device.is_empty() {
        for program in ["weir", "weir-guard", "udp-sink"] {
            image.program(&programs.join(program), &format!("bin/{program}"))?;
        }
        image.modules(&dir.join("modules"), driver.module)?;
    } else {
        // Older kernels do not name it as what the next one needs; newer ones have it built in.
        let _ = image.modules(&dir.join("modules"), "crc32c_generic");
        // The XDP program asks it for connections, by what a module alone knows of itself.
        image.modules(&dir.join("modules"), "nf_conntrack")?;
    }
    let initrd = work.join("initrd");
    std::fs::write(&initrd, image.finish())?;
    let console = work.join("console.log");

    let tap = driver.tap && may_tap();
    let queues = if tap || !driver.tap { driver.queues } else { 1 };
    let (ours, theirs) = ports()?;
    let mac = MAC.map(|b| format!("{b:02x}")).join(":");
    let (netdev, more) = if tap {
        (
            format!("tap,id=n,ifname={TAP},script=no,downscript=no,vhost=off,queues={queues}"),
            format!(",mq=on,vectors={}", 2 * queues + 2),
        )
    } else {
        (
            format!(
                "dgram,id=n,local.type=inet,local.host=127.0.0.1,local.port={theirs},\
                 remote.type=inet,remote.host=127.0.0.1,remote.port={ours}"
            ),
            String::new(),
        )
    };
    let mut line: Vec<String> = opts.wrapper.clone();
    // One thread for both CPUs: with two, QEMU 7.2 lets a CPU run into a breakpoint that the kernel has removed
    // already, whenever a tracepoint is switched on.
    line.extend(["nice", board.qemu, "-accel", "tcg,thread=single", "-smp", "2"].map(str::to_owned));
    line.extend(board.parts.iter().map(|p| (*p).to_owned()));
    line.extend(["-display", "none", "-no-reboot", "-nodefaults"].map(str::to_owned));
    line.extend(["-kernel".into(), dir.join("vmlinuz").display().to_string()]);
    line.extend(["-initrd".into(), initrd.display().to_string()]);
    line.extend([
        "-append".into(),
        format!(
            "console={} panic=-1 no_timer_check cryptomgr.notests=1 net.ifnames=0 mitigations=off loglevel=5 weir.line={} weir.driver={} weir.queues={queues}",
            board.console, board.device, driver.module
        ),
    ]);
    line.extend(["-serial".into(), format!("file:{}", console.display())]);
    line.extend(board.line.iter().map(|p| (*p).to_owned()));
    if !driver.device.is_empty() {
        line.extend(["-netdev".into(), netdev]);
        line.extend(["-device".into(), format!("{},netdev=n,mac={mac}{more}", driver.device)]);
    }
    let log = std::fs::File::create(work.join("qemu.log"))?;
    let _ = std::fs::remove_file(&console);
    let mut child = Command::new(&line[0])
        .args(&line[1..])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .with_context(|| line[0].clone())?;
    let input = child.stdin.take().context("the serial line")?;
    let output = child.stdout.take().context("the serial line")?;
    let mut running = Running(child);

    // A wrapper may hold it back.
    let began = Instant::now();
    while !console.exists() && began.elapsed() < HELD_BACK && matches!(running.0.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (tell, lines) = channel();
    // Ends with the machine, whose end closes the line.
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    let mut talk =
        Talk { lines, input, rows: Vec::new(), log: std::fs::File::create(work.join("talk.log"))? };
    let wire = move || if tap { Wire::tap(TAP) } else { Wire::datagram(ours, theirs) };
    talk.serve(&wire)?;
    let mut rows = talk.rows;
    if queues < driver.queues {
        rows.push(Row::new(
            "queues",
            "skip",
            "two queues need a tap device: root, or the right to open /dev/net/tun",
        ));
    }
    let text = std::fs::read(&console).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let alarm = text.lines().find(|l| ALARMS.iter().any(|a| l.contains(a)));
    rows.push(match alarm {
        Some(line) => Row::new("kernel log", "FAIL", line.trim()),
        None => Row::new("kernel log", "ok", "no warning"),
    });
    Ok(rows)
}

struct Talk {
    lines: Receiver<String>,
    input: ChildStdin,
    rows: Vec<Row>,
    log: std::fs::File,
}

impl Talk {
    /// Does what the machine asks for until it is done.
    fn serve(&mut self, wire: &dyn Fn() -> anyhow::Result<Wire>) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut sender: Option<Sender> = None;
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed()).min(SILENCE);
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    self.rows.push(Row::new("machine", "FAIL", "it hangs; see its console.log"));
                    return Ok(());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.rows.push(Row::new("machine", "FAIL", "it ended early; see its console.log"));
                    return Ok(());
                }
            };
            writeln!(self.log, "{:7.2} {line}", start.elapsed().as_secs_f64())?;
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |i: usize| words.get(i).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
            match words.first() {
                Some(&"ready") => sender = Some(Sender::new(wire()?)),
                Some(&"flood") => {
                    if let Some(s) = &sender {
                        s.flood(number(1));
                    }
                }
                Some(&"calm") => {
                    if let Some(s) = &sender {
                        s.calm();
                    }
                    writeln!(self.input, "calm")?;
                }
                Some(&"send") => {
                    if let Some(s) = &sender {
                        s.send(number(1), number(2));
                    }
                    writeln!(self.input, "sent")?;
                }
                Some(&"row") => {
                    let mut parts = line.splitn(4, '\t').skip(1);
                    let mut part = || parts.next().unwrap_or_default().trim().to_owned();
                    let (answer, name, detail) = (part(), part(), part());
                    self.rows.push(Row { name, answer, detail });
                }
                Some(&"done") => return Ok(()),
                _ => {}
            }
        }
    }
}

/// Two free ports of the loopback.
fn ports() -> anyhow::Result<(u16, u16)> {
    let socket = || std::net::UdpSocket::bind("127.0.0.1:0").context("a socket on the loopback");
    let (a, b) = (socket()?, socket()?);
    Ok((a.local_addr()?.port(), b.local_addr()?.port()))
}

/// Whether a tap device can be made: the right to open it, and a namespace of one's own to make it in.
fn may_tap() -> bool {
    let open = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
    open && std::env::var_os("WEIR_VM_NETNS").is_some()
}
