//! What stands before or beside a server of `served`: a capture, a packet filter in user space. And the client of rpcbind.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use kern::wire::counters;

use super::served::{PER_S, path, wire_client};
use crate::no_harm::{child, words};
use crate::program::Leashed;
use crate::rig::Rig;
use crate::trial::Bench;
use crate::{Error, Result, flood};

/// A program may take so long to be there.
const READY: Duration = Duration::from_secs(5);
/// Bytes of a capture's file before its first packet, and before the bytes of each.
const PCAP: (usize, usize) = (24, 16);
/// Questions are answered at most so long after the last one.
const LATE: Duration = Duration::from_secs(1);

fn until(bench: &Bench, name: &str, ready: impl Fn() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + READY;
    while !ready()? {
        if Instant::now() > end {
            return Err(Error::program(name, format!("is not ready after {READY:?}")));
        }
        bench.interrupt.sleep(Duration::from_millis(10))?;
    }
    Ok(())
}

/// tcpdump on the flooded interface, of what the client sends to the name server.
///
/// # Errors
/// If it does not start.
pub(super) fn capture(bench: &Bench, rig: &Rig<'_>, directory: &Path) -> Result<Leashed> {
    let input = &rig.inputs[0];
    let file = directory.join("capture.pcap");
    let args = format!(
        "-i {} -n -U -Z root -w {} udp and dst port 53 and src host {}",
        input.far.name,
        file.display(),
        input.peer
    );
    let capture = child(bench, &path("tcpdump")?, &words(&args), &rig.host, bench.cpus.host)?;
    until(bench, "tcpdump", || Ok(fs::metadata(&file).is_ok_and(|file| file.len() >= PCAP.0 as u64)))?;
    Ok(capture)
}

/// Packets in its file.
pub(super) fn captured(directory: &Path) -> f64 {
    packets(&fs::read(directory.join("capture.pcap")).unwrap_or_default()) as f64
}

fn packets(file: &[u8]) -> usize {
    let (mut at, mut count) = (PCAP.0, 0);
    while let Some(length) = file.get(at + 8..at + 12).and_then(|l| l.try_into().ok()) {
        at += PCAP.1 + u32::from_le_bytes(length) as usize;
        count += usize::from(at <= file.len());
    }
    count
}

/// dhcpoptinj, which the kernel asks about each datagram for the name server (NFQUEUE): it lets pass what is no DHCP.
///
/// # Errors
/// If it does not start, and without iptables.
pub(super) fn filter(bench: &Bench, rig: &Rig<'_>) -> Result<Leashed> {
    let args = words("--foreground --queue 0 --option 0c77656972");
    let filter = child(bench, &path("dhcpoptinj")?, &args, &rig.host, bench.cpus.host)?;
    until(bench, "dhcpoptinj", || Ok(rig.host.run(counters::filter_queues)?.is_some()))?;
    let rule = "-w 5 -A INPUT -p udp --dport 53 -j NFQUEUE --queue-num 0";
    flood::tool(&rig.host, "iptables", words(rule)).map_err(Error::Missing)?;
    Ok(filter)
}

/// Asks rpcbind for nothing (procedure 0) at a fixed rate: how much was answered, in percent.
pub(super) fn rpc(cpu: usize, to: SocketAddr, seconds: u32) -> std::io::Result<f64> {
    let socket = wire_client(cpu)?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    let mut answered = BTreeSet::new();
    let hear = |answered: &mut BTreeSet<u32>, socket: &UdpSocket| {
        let mut answer = [0; 64];
        // A refusal by ICMP is no answer.
        while let Ok(length) = socket.recv(&mut answer) {
            answered.extend(replied(&answer[..length]));
        }
    };
    let (every, begin, calls) = (Duration::from_secs(1) / PER_S, Instant::now(), seconds * PER_S);
    for n in 0..calls {
        let _ = socket.send(&call(n));
        std::thread::sleep((begin + every * (n + 1)).saturating_duration_since(Instant::now()));
        hear(&mut answered, &socket);
    }
    let end = Instant::now() + LATE;
    while Instant::now() < end && answered.len() < calls as usize {
        std::thread::sleep(Duration::from_millis(5));
        hear(&mut answered, &socket);
    }
    Ok(100.0 * answered.len() as f64 / f64::from(calls.max(1)))
}

/// A call of procedure 0 of the port mapper, version 2, as RFC 5531 has it.
fn call(id: u32) -> Vec<u8> {
    [id, 0, 2, 100_000, 2, 0, 0, 0, 0, 0].iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Which call was answered with success.
fn replied(answer: &[u8]) -> Option<u32> {
    let word = |n: usize| Some(u32::from_be_bytes(answer.get(4 * n..4 * n + 4)?.try_into().ok()?));
    // A reply, accepted, no verifier, success.
    (word(1)? == 1 && word(2)? == 0 && word(5)? == 0).then(|| word(0))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_capture_are_counted() {
        let mut file = vec![0; PCAP.0];
        for length in [5u32, 60] {
            file.extend(
                [[0; 8].as_slice(), &length.to_le_bytes(), &[0; 4], &vec![7; length as usize]].concat(),
            );
        }
        assert_eq!(packets(&file), 2);
        assert_eq!(packets(&file[..file.len() - 1]), 1, "the last one is not whole");
        assert_eq!((packets(&[]), packets(&file[..PCAP.0])), (0, 0));
    }

    #[test]
    fn an_answer_names_its_call() {
        assert_eq!(call(7).len(), 40);
        let answer = |words: [u32; 6]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
        assert_eq!(replied(&answer([7, 1, 0, 0, 0, 0])), Some(7));
        assert_eq!(replied(&answer([7, 1, 1, 0, 0, 0])), None, "denied");
        assert_eq!(replied(&answer([7, 1, 0, 0, 0, 2])), None, "no such version");
        assert_eq!(replied(&call(7)), None);
        assert_eq!(replied(&[]), None);
    }
}
