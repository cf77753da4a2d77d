//! Ordinary servers that give back what they get: TCP request/response on some ports, UDP on others, and a session
//! that sends a keepalive every second and ends when it has heard nothing for three (as BGP does) on a third kind.
//! Blocking sockets, one thread each; ends when standard input closes.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use consumers::{argument, is_pause, keepalive, number, pin_as_asked, serve, stand_aside, unknown};
use serde_json::json;

const USAGE: &str = "echo --bind ADDR [--tcp PORT,..] [--udp PORT,.. [--peer ADDR:PORT]] [--session PORT,..] [--cpu N] [--control-cpu N]";
/// Most connections of one port at a time.
const CONNECTIONS: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("echo: {message}");
        std::process::exit(2);
    }
}

fn run(args: &[String]) -> Result<(), String> {
    pin_as_asked(args)?;
    let bind: IpAddr =
        argument(args, "--bind").ok_or(USAGE)?.parse().map_err(|_| "--bind: not an address".to_string())?;
    for port in ports(args, "--udp")? {
        let socket = UdpSocket::bind((bind, port)).map_err(|e| format!("udp port {port}: {e}"))?;
        // Then it hears nobody else.
        if let Some(peer) = argument(args, "--peer") {
            socket.connect(&peer).map_err(|e| format!("--peer {peer}: {e}"))?;
        }
        std::thread::spawn(move || datagrams(&socket));
    }
    for (name, session) in [("--tcp", false), ("--session", true)] {
        for port in ports(args, name)? {
            let listener = TcpListener::bind((bind, port)).map_err(|e| format!("tcp port {port}: {e}"))?;
            std::thread::spawn(move || accept(&listener, session));
        }
    }
    println!("{}", json!({ "ready": true, "pid": std::process::id() }));
    stand_aside(number(args, "--control-cpu")?);
    serve(|line| Some(unknown(line)))
}

fn ports(args: &[String], name: &str) -> Result<Vec<u16>, String> {
    let list = argument(args, name).unwrap_or_default();
    let words = list.split(',').filter(|word| !word.is_empty());
    words.map(|word| word.parse().map_err(|_| format!("{name}: not a port: {word}"))).collect()
}

fn datagrams(socket: &UdpSocket) {
    let mut buffer = [0u8; 2048];
    loop {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            // A reply that cannot be sent is a reply that is lost, which the other side counts.
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}

fn accept(listener: &TcpListener, session: bool) {
    let threads = std::sync::Arc::new(());
    for stream in listener.incoming().flatten() {
        if std::sync::Arc::strong_count(&threads) > CONNECTIONS {
            continue;
        }
        let guard = std::sync::Arc::clone(&threads);
        std::thread::spawn(move || {
            let _guard = guard;
            // A small reply must not wait for the next one.
            let _ = stream.set_nodelay(true);
            if session { keepalive::hold(&stream, |_| true) } else { echo(stream) }
        });
    }
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0u8; 2048];
    let mut last = Instant::now();
    // A peer that went away without a word must not keep the thread for ever.
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    while last.elapsed() < Duration::from_secs(60) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                last = Instant::now();
                if stream.write_all(&buffer[..length]).is_err() {
                    return;
                }
            }
            Err(e) if is_pause(&e) => {}
            Err(_) => return,
        }
    }
}
