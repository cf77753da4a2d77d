//! The variants under comparison.

use kern::wire::tasks::Policy;
use results::Role;

use crate::options::RCVBUF_LARGE;
use crate::rig::{HOP_QUEUE, Wiring};

/// What stands at the host's device, beside the kernel's own stack.
#[derive(Debug, Clone, PartialEq)]
pub enum Host {
    /// Nothing.
    Plain,
    /// XDP drops every frame: what the way there costs.
    Drop {
        /// It reads the headers before.
        read: bool,
    },
    /// A static rate limit in packets/s.
    Limit(f64),
    /// `weir guard` with these options.
    Guard(Vec<String>),
}

/// One variant.
#[derive(Debug, Clone, PartialEq)]
pub struct Arm {
    /// Name, as in the results.
    pub name: String,
    /// What it is compared as.
    pub role: Role,
    /// A line for the reader.
    pub note: Option<String>,
    /// How receive work gets to the host CPU.
    pub wiring: Wiring,
    /// What stands at the device.
    pub host: Host,
    /// A forwarding host's output is emptied by a thread of normal priority instead of in softirq: transmit completions
    /// below input.
    pub slow_output: bool,
    /// A forwarding host asks no program about its packets, where the experiment's does.
    pub unscreened: bool,
    /// Receive buffer of the program in bytes, as given to SO_RCVBUF; `None`: that of the run.
    pub rcvbuf: Option<u32>,
}

const DEADLINE_RUNTIME_NS: u64 = 8_000_000;
const DEADLINE_PERIOD_NS: u64 = 10_000_000;

fn arm(name: &str, role: Role, note: &str, wiring: Wiring, host: Host) -> Arm {
    let note = (!note.is_empty()).then(|| note.to_string());
    Arm { name: name.into(), role, note, wiring, host, slow_output: false, unscreened: false, rcvbuf: None }
}

fn guard(options: &[&str], reserve: u8) -> Host {
    let own = options.iter().map(|o| (*o).to_string());
    Host::Guard(own.chain(["--reserve".into(), reserve.to_string()]).collect())
}

/// The arms that show what the kernel does by itself: the best of them is what weir is measured against.
#[must_use]
pub fn stock() -> Vec<Arm> {
    vec![
        arm(
            "stock-irq",
            Role::Stock,
            "a hop with real-time priority stands for the interrupt; its cost falls on the host CPU",
            Wiring::Hop(HOP_QUEUE),
            Host::Plain,
        ),
        arm("stock-rps", Role::Stock, "the driver's part runs on the wire CPU", Wiring::Rps, Host::Plain),
        arm(
            "stock-timer",
            Role::Stock,
            "the device's flush timer of 50 us stands for a moderated interrupt",
            Wiring::Timer,
            Host::Plain,
        ),
    ]
}

/// Threaded NAPI under a policy.
fn threaded(policy: Policy, bound: bool) -> Wiring {
    Wiring::Threaded { policy, bound }
}

/// All arms but the static rate limit, whose rate is searched for, in the order in which they are shown.
/// `reserve` is the guard's, in percent.
#[must_use]
pub fn all(reserve: u8) -> Vec<Arm> {
    let deadline = Policy::Deadline(DEADLINE_RUNTIME_NS, DEADLINE_PERIOD_NS);
    let mut arms = stock();
    arms.extend([
        arm("threaded", Role::Alternative, "", threaded(Policy::Other(0), true), Host::Plain),
        arm("threaded-idle", Role::Alternative, "", threaded(Policy::Idle, true), Host::Plain),
        arm(
            "threaded-deadline",
            Role::Shown,
            "8 ms of every 10 ms; the kernel refuses to bind it, so it may use the wire CPU",
            threaded(deadline, false),
            Host::Plain,
        ),
        arm(
            "hop-only",
            Role::Shown,
            "stock-irq with every packet dropped by XDP",
            Wiring::Hop(HOP_QUEUE),
            Host::Drop { read: false },
        ),
        arm(
            "no-op",
            Role::Control,
            "a guard that does nothing",
            Wiring::Timer,
            guard(&["--mode", "none"], reserve),
        ),
        arm("weir", Role::Weir, "", Wiring::Timer, guard(&[], reserve)),
    ]);
    // XDP alone acts in mode shed: what takes packets out of the ring is the wiring's.
    arms.extend([
        arm(
            "shed",
            Role::Shown,
            "no poller: XDP drops what is for a full socket, the kernel polls as always",
            Wiring::Timer,
            guard(&["--mode", "shed"], reserve),
        ),
        arm(
            "threaded-shed",
            Role::Shown,
            "feedback in threaded NAPI: the same beside a kernel thread that polls",
            threaded(Policy::Other(0), true),
            guard(&["--mode", "shed"], reserve),
        ),
    ]);
    for part in ["feedback", "budget", "quota"] {
        let name = format!("weir-no-{part}");
        arms.push(arm(&name, Role::Ablation, "", Wiring::Timer, guard(&["--ablate", part], reserve)));
    }
    arms
}

/// Those of a program that reads from a socket: all, and the kernel and weir with a large buffer, which shows how much of a
/// difference is the program's buffer and not the kernel's or weir's doing.
#[must_use]
pub fn udp(reserve: u8) -> Vec<Arm> {
    let large = |name: &str, host| Arm {
        rcvbuf: Some(RCVBUF_LARGE),
        ..arm(name, Role::Shown, "the program sets SO_RCVBUF to 512 KiB", Wiring::Timer, host)
    };
    let buffers = [large("stock-timer-512k", Host::Plain), large("weir-512k", guard(&[], reserve))];
    all(reserve).into_iter().chain(buffers).collect()
}

/// weir with other options than the default.
#[must_use]
pub fn weir(name: &str, options: &[&str], reserve: u8) -> Arm {
    arm(name, Role::Variant, "", Wiring::Timer, guard(options, reserve))
}

/// The same arm with its output emptied by a thread.
#[must_use]
pub fn slow_output(arm: &Arm) -> Arm {
    let note = Some("the output is emptied by a thread of normal priority".to_string());
    Arm { name: format!("{}-tx-thread", arm.name), note, slow_output: true, ..arm.clone() }
}

/// The same arm on a host that asks no program about its packets: what the program costs.
#[must_use]
pub fn unscreened(arm: &Arm) -> Arm {
    let note = Some("the kernel forwards, and asks no program".to_string());
    Arm { name: format!("{}-unscreened", arm.name), role: Role::Shown, note, unscreened: true, ..arm.clone() }
}

/// weir with another reserve, in percent.
#[must_use]
pub fn reserve(percent: u8) -> Arm {
    arm(&format!("weir-reserve-{percent}"), Role::Variant, "", Wiring::Timer, guard(&[], percent))
}

/// The static rate limit at `rate` packets/s.
#[must_use]
pub fn rate_limit(rate: f64) -> Arm {
    let note = format!("XDP token bucket at {:.0} k/s, the best of a search", rate / 1000.0);
    arm("rate-limit", Role::Alternative, &note, Wiring::Timer, Host::Limit(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_weir_and_every_name_is_used_once() {
        let arms = udp(20);
        assert_eq!(arms.iter().filter(|a| a.role == Role::Weir).count(), 1);
        let mut names: Vec<_> = arms.iter().map(|a| a.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), arms.len());
    }

    /// Whoever runs the lab without options measures programs as they are.
    #[test]
    fn only_arms_that_say_so_have_a_large_buffer() {
        assert_eq!(crate::Options::default().rcvbuf, None);
        for arm in udp(20) {
            assert_eq!(arm.rcvbuf, arm.name.ends_with("-512k").then_some(RCVBUF_LARGE), "{}", arm.name);
        }
        assert!(all(20).iter().all(|arm| arm.rcvbuf.is_none()), "a router has no such buffer");
    }
}
