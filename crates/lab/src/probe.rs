//! Protected flows: the programs `echo` on the host and `probe` on the wire, which asks and measures the answers.

use std::net::Ipv4Addr;

use serde_json::Value;

use crate::Result;
use crate::consumer::pinned;
use crate::program::{Program, locate};
use crate::rig::Rig;
use crate::trial::Bench;

/// Ports of the flows.
pub const TCP: u16 = 22;
/// See [`TCP`].
pub const UDP: u16 = 7;
/// See [`TCP`].
pub const SESSION: u16 = 179;
/// Where the answers to the wire's own questions go.
pub const ANSWERS: u16 = 10_001;
/// Time between two questions of a flow, us.
const EVERY_US: u32 = 4000;

/// What one flow saw in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Answers {
    /// Questions.
    pub asked: u64,
    /// Answers in time.
    pub answered: u64,
    /// Share that was lost: questions without an answer, or segments that had to be sent again.
    pub loss: f64,
    /// Median and p99 of the wait; a question without an answer waits for as long as the flow had patience.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
}

/// What all flows saw.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// TCP request/response.
    pub tcp: Answers,
    /// UDP request/response.
    pub udp: Answers,
    /// ARP.
    pub arp: Answers,
    /// Whether the session with keepalives is up.
    pub up: bool,
    /// Its longest silence, ms.
    pub silence_ms: f64,
}

/// What was answered of the `asked` questions of the wire.
#[must_use]
pub fn of_asked(counted: Answers, asked: u64) -> Answers {
    let lost = asked.saturating_sub(counted.answered);
    Answers { asked, loss: if asked > 0 { lost as f64 / asked as f64 } else { 0.0 }, ..counted }
}

/// Starts the UDP server alone, on the host CPU; its socket is connected to `peer`, if there is one.
///
/// # Errors
/// If it does not start.
pub fn server(bench: &Bench, rig: &Rig<'_>, peer: Option<(Ipv4Addr, u16)>) -> Result<Program> {
    let mut args = pinned(rig.cpus);
    args.extend(["--bind".into(), rig.inputs[0].address.to_string(), "--udp".into(), UDP.to_string()]);
    if let Some((address, port)) = peer {
        args.extend(["--peer".into(), format!("{address}:{port}")]);
    }
    Program::start(&locate("echo", bench.hog.parent())?, &rig.host, &args)
}

/// The two programs; they end when dropped.
#[derive(Debug)]
pub struct Probe {
    probe: Program,
    _echo: Program,
}

impl Probe {
    /// Starts the servers on the host CPU and, on the wire CPU, the flows named: `--tcp`, `--arp`, `--session`, or what
    /// counts the answers to the wire's own questions: `--count-udp`, `--count-arp`. Connections are made before this returns.
    ///
    /// # Errors
    /// If a program does not start or a connection is not made.
    pub fn start(bench: &Bench, rig: &Rig<'_>, flows: &[&str]) -> Result<Probe> {
        let input = &rig.inputs[0];
        let directory = bench.hog.parent();
        let mut args = pinned(rig.cpus);
        args.extend(["--bind".into(), input.address.to_string()]);
        args.extend(["--tcp".into(), TCP.to_string(), "--udp".into(), UDP.to_string()]);
        args.extend(["--session".into(), SESSION.to_string()]);
        let echo = Program::start(&locate("echo", directory)?, &rig.host, &args)?;
        let mut args = vec!["--cpu".to_string(), rig.cpus.wire.to_string(), "--fifo".into()];
        args.extend(["--to".into(), input.address.to_string(), "--every-us".into(), EVERY_US.to_string()]);
        for flow in flows {
            let value = match *flow {
                "--tcp" => TCP.to_string(),
                "--count-udp" => ANSWERS.to_string(),
                "--session" => SESSION.to_string(),
                _ => input.near.name.clone(),
            };
            args.extend([(*flow).to_string(), value]);
        }
        let probe = Program::start(&locate("probe", directory)?, &rig.wire_side, &args)?;
        Ok(Probe { probe, _echo: echo })
    }

    /// Process id of the servers.
    #[must_use]
    pub fn server(&self) -> u32 {
        self._echo.id()
    }

    /// Starts a window.
    ///
    /// # Errors
    /// If the program has ended.
    pub fn reset(&mut self) -> Result<()> {
        self.probe.ask("reset").map(drop)
    }

    /// What was seen in the window so far.
    ///
    /// # Errors
    /// If the program has ended.
    pub fn report(&mut self) -> Result<Seen> {
        let answer = self.probe.ask("report")?;
        Ok(seen(&answer))
    }
}

fn seen(answer: &Value) -> Seen {
    Seen {
        tcp: answers(&answer["tcp"]),
        udp: answers(&answer["udp"]),
        arp: answers(&answer["arp"]),
        up: answer["session"]["up"].as_bool().unwrap_or(false),
        silence_ms: answer["session"]["silence_ms"].as_f64().unwrap_or(0.0),
    }
}

fn answers(row: &Value) -> Answers {
    let n = |name: &str| row[name].as_u64().unwrap_or(0);
    let (asked, answered, again) = (n("asked"), n("answered"), n("again"));
    let us = |name: &str| row["latency_us"][name].as_f64().unwrap_or(0.0);
    // One that still has patience is neither answered nor lost; the program has waited for its end.
    let waits = row["waiting_us"].as_f64().unwrap_or(0.0);
    let given_up = n("latency_count").saturating_sub(answered) + n("unanswered");
    let lost = given_up + again;
    let all = answered + lost;
    // A wait longer than every answer is the longest there is.
    let p99_us = if waits > us("p99") && answered < 100 { waits } else { us("p99") };
    Answers {
        asked,
        answered,
        loss: if all > 0 { lost as f64 / all as f64 } else { f64::from(u8::from(asked > 0)) },
        p50_us: if answered == 0 { waits.max(us("p50")) } else { us("p50") },
        p99_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_are_compared_with_what_was_asked() {
        let counted = Answers { answered: 90, p99_us: 5.0, ..Answers::default() };
        let seen = of_asked(counted, 100);
        assert!((seen.loss - 0.1).abs() < 1e-9 && seen.p99_us == 5.0);
        // An answer to a question of the window before.
        assert_eq!(of_asked(counted, 89).loss, 0.0);
    }

    #[test]
    fn what_is_lost_is_what_was_given_up_or_sent_again() {
        let row = json!({"asked": 100, "answered": 89, "again": 0, "latency_count": 99, "waiting_us": 10.0,
            "latency_us": {"p50": 50.0, "p99": 50_000.0}});
        let a = answers(&row);
        assert!((a.loss - 10.0 / 99.0).abs() < 1e-9, "{a:?}");
        // A question that never returns is one loss, also in a window that begins after it.
        let row = json!({"asked": 99, "answered": 98, "again": 0, "unanswered": 1, "latency_count": 98,
            "waiting_us": 600_000.0, "latency_us": {"p50": 50.0, "p99": 60.0}});
        assert!((answers(&row).loss - 1.0 / 99.0).abs() < 1e-9);
        let row = json!({"asked": 0, "answered": 0, "again": 0, "unanswered": 1, "latency_count": 0,
            "waiting_us": 2_000_000.0, "latency_us": {"p50": 0.0, "p99": 0.0}});
        assert_eq!(answers(&row).loss, 1.0);
        let row = json!({"asked": 1, "answered": 0, "again": 3, "latency_count": 0, "waiting_us": 700_000.0,
            "latency_us": {"p50": 0.0, "p99": 0.0}});
        let a = answers(&row);
        assert_eq!((a.loss, a.p99_us), (1.0, 700_000.0));
        assert_eq!(answers(&json!({})), Answers::default(), "a flow that was not asked for");
    }
}
