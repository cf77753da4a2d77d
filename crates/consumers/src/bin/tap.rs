//! A capture: reads what a device shows to taps, as tcpdump without a file, and counts it. It answers `report` on
//! standard input and ends when that closes.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use consumers::{Counter, argument, number, pin_as_asked, stand_aside};
use serde_json::{Value, json};

const USAGE: &str = "tap --interface NAME [--port N] [--cpu N] [--control-cpu N]";

/// Frames that came in; what the host sends is seen too, and not counted.
static SEEN: Counter = Counter::new();

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("tap: {message}");
        std::process::exit(2);
    }
}

fn run(args: &[String]) -> Result<(), String> {
    pin_as_asked(args)?;
    let name = argument(args, "--interface").ok_or(USAGE)?;
    let index = nix::net::if_::if_nametoindex(&*name).map_err(|e| format!("--interface {name}: {e}"))?;
    let socket = open(index, number(args, "--port")?).map_err(|e| format!("{name}: {e}"))?;
    let control_cpu = number(args, "--control-cpu")?;
    let fd = socket.as_raw_fd();
    println!("{}", json!({ "ready": true, "pid": std::process::id() }));
    std::thread::spawn(move || {
        stand_aside(control_cpu);
        let mut lost = 0;
        consumers::serve(|line| match line {
            "report" => {
                lost += statistics(fd);
                Some(json!({ "seen": SEEN.get(), "lost": lost }))
            }
            _ => Some(consumers::unknown(line)) as Option<Value>,
        })
    });
    read(&socket)
}

/// A packet socket for every frame of the interface, or for UDP over IPv4 from or to `port` alone.
fn open(index: u32, port: Option<u16>) -> std::io::Result<OwnedFd> {
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: socket() takes no pointers; the descriptor is checked before it is owned.
    let socket = unsafe {
        // Bound to no protocol yet, so that nothing is queued before the filter is there.
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    if let Some(port) = port {
        filter(&socket, port)?;
    }
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = index as i32;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and the length describe the live address.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(socket),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// As `tcpdump udp port N` has it, for IPv4 without options.
fn filter(socket: &OwnedFd, port: u16) -> std::io::Result<()> {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (half, byte) =
        (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, libc::BPF_LD | libc::BPF_B | libc::BPF_ABS);
    let (equal, answer) = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::BPF_RET | libc::BPF_K);
    let mut program = [
        op(half, 0, 0, 12),
        op(equal, 0, 6, 0x0800),
        op(byte, 0, 0, 23),
        op(equal, 0, 4, 17),
        op(half, 0, 0, 34),
        op(equal, 1, 0, port.into()),
        op(half, 0, 0, 36),
        op(equal, 0, 1, port.into()),
        op(answer, 0, 0, 262_144),
        op(answer, 0, 0, 0),
    ];
    // A source port that matches goes on to the answer.
    program[5].jt = 2;
    program[1].jf = 7;
    program[3].jf = 5;
    let all = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let length = size_of_val(&all) as libc::socklen_t;
    // SAFETY: the program and the description of it are live for the call, which copies both.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const all).cast(),
            length,
        )
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Frames that did not fit into the socket since the last call.
fn statistics(fd: i32) -> u64 {
    let mut stats = [0u32; 2];
    let mut length = size_of_val(&stats) as libc::socklen_t;
    // SAFETY: the pointers describe the live buffer and its length.
    let done = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            stats.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done == 0 { u64::from(stats[1]) } else { 0 }
}

fn read(socket: &OwnedFd) -> Result<(), String> {
    let mut buffer = [0u8; 2048];
    loop {
        // SAFETY: an all-zero sockaddr_ll is valid.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&from) as libc::socklen_t;
        // SAFETY: the pointers and lengths describe live buffers.
        let got = unsafe {
            libc::recvfrom(
                socket.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut from).cast(),
                &raw mut length,
            )
        };
        if got < 0 {
            let error = std::io::Error::last_os_error();
            if error.kind() == std::io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error.to_string());
        }
        if from.sll_pkttype != libc::PACKET_OUTGOING {
            SEEN.add(1);
        }
    }
}
