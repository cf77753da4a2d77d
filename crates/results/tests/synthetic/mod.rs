//! A synthetic livelock-udp document, made by formulas: no number in it was measured.
//!
//! The host CPU has one second of time per second. A packet costs `RECEIVE` to take in and `READ` to read.
//! Under stock the kernel takes in first and the program gets what is left; under weir both get their part,
//! less `SHED` for each packet that the poller has to leave. A little noise that depends only on its seed
//! makes spreads visible.

use results::{
    Arm, Backend, CpuShares, Document, Drops, LatencyUs, Machine, Mode, Onset, Pair, PairedRate, Point, Role,
    Series, Trial,
};

const RECEIVE: f64 = 1.3e-6;
const READ: f64 = 1.2e-6;
const SECONDS: f64 = 2.0;
const MULTIPLES: [f64; 9] = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 10.0, 17.0];

/// Noise of +-1, the same for the same seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64 / f64::from(1_u32 << 31)) * 2.0 - 1.0
    }
}

/// How an arm answers to an offered rate: goodput, and the share of the CPU that packet work takes.
#[derive(Clone, Copy)]
enum Shape {
    /// Packet work first; `cost` scales what a packet costs the host CPU.
    Stock { cost: f64 },
    /// Falls to `floor` of the peak and stays there.
    Falls { peak: f64, floor: f64 },
    /// Keeps its peak, but for `fall` of it per factor e beyond saturation.
    Keeps { peak: f64, fall: f64 },
}

fn respond(shape: Shape, offered: f64, hogs: u32) -> (f64, f64) {
    let time = 1.0 / (1.0 + 0.35 * f64::from(hogs).sqrt());
    match shape {
        Shape::Stock { cost } => {
            let kernel = (offered * RECEIVE * cost).min(1.0);
            let left = ((1.0 - kernel) * time).max(0.003);
            (offered.min(left / READ), kernel.min(0.997))
        }
        Shape::Falls { peak, floor } => {
            let (peak, beyond) = (peak * time, (offered / (peak * time)).max(1.0));
            let level = floor + (1.0 - floor) / beyond.powf(1.4);
            (offered.min(peak * level), (offered * RECEIVE).min(0.6))
        }
        Shape::Keeps { peak, fall } => {
            let peak = peak * time;
            let level = 1.0 - fall * (offered / peak).max(1.0).ln();
            let good = offered.min(peak * level);
            (good, (good * RECEIVE).min(0.52))
        }
    }
}

fn trial(shape: Shape, offered: f64, hogs: u32, late: bool, noise: &mut Noise) -> Trial {
    let (ideal, net) = respond(shape, offered, hogs);
    let saturated = ideal < 0.999 * offered;
    let goodput = if saturated { ideal * (1.0 + 0.015 * noise.next()) } else { offered };
    let sent = (offered * SECONDS) as u64;
    let delivered = ((goodput * SECONDS) as u64).min(sent);
    let lost = sent - delivered;
    let socket = if late { (lost as f64 * 0.8 / (1.0 + offered / 3.0e6)) as u64 } else { lost / 50 };
    let drops = Drops::from([("socket".into(), socket), ("ring".into(), lost - socket)]);
    let program = (goodput * READ).min(1.0 - net);
    let hog = if hogs > 0 { (1.0 - net - program).max(0.0) } else { 0.0 };
    let polled = matches!(shape, Shape::Keeps { .. }) && saturated;
    let wait = if saturated { 212.0 / goodput.max(2000.0) * 1e6 } else { 9.0 + 20.0 * offered / 400e3 };
    Trial {
        offered_pps: offered,
        sent,
        delivered,
        goodput_pps: delivered as f64 / SECONDS,
        drops,
        unaccounted: 0,
        user_share: Some(program + hog),
        net_share: Some(net),
        cpu: Some(CpuShares {
            irq: if polled { 0.0 } else { net * 0.05 },
            softirq: if polled { 0.0 } else { net * 0.95 },
            weir: if polled { net } else { 0.0 },
            program,
            hog,
            idle: (1.0 - net - program - hog).max(0.0),
        }),
        user_of_alone: (hogs > 0).then(|| (program + hog).min(1.0)),
        wasted_share: Some(if late && saturated { (net * 0.9).min(0.95) } else { 0.01 }),
        latency_us: Some(LatencyUs {
            p50: wait * (1.0 + 0.03 * noise.next()),
            p99: wait * 2.6 * (1.0 + 0.05 * noise.next()),
            p999: wait * 4.4 * (1.0 + 0.1 * noise.next()),
        }),
        output: None,
        polls: Some(delivered / 16),
        rate_missed_percent: Some(0.4 + 0.3 * noise.next()),
        window_loss: Some(0.0),
        steal_share: Some(0.002),
        void: None,
    }
}

fn arm(name: &str, role: Role, shape: Shape, hogs: &[u32], base: f64, noise: &mut Noise) -> Arm {
    let late = !matches!(shape, Shape::Keeps { .. });
    let mut points = Vec::new();
    for &hogs in hogs {
        for multiple in MULTIPLES {
            let trials =
                (0..3).map(|_| trial(shape, multiple * base, hogs, late, noise)).collect::<Vec<Trial>>();
            let mode = if late || multiple < 1.1 { Mode::Interrupt } else { Mode::Poll };
            let mode = if name.starts_with("threaded") { Mode::Thread } else { mode };
            let mut point = Point::fold(trials, Some(mode));
            point.hogs = hogs;
            point.multiple = Some(multiple);
            point.wire_max = multiple == 17.0;
            point.burst = Some(32);
            points.push(point);
        }
    }
    let reserve = matches!(role, Role::Weir | Role::Ablation).then_some(0.2);
    Arm { name: name.to_string(), role, reserve, points, ..Arm::default() }
}

/// The document, finished.
pub fn livelock_udp() -> Document {
    let mut noise = Noise(1);
    let mut document = Document::new("livelock-udp", Backend::Kernel);
    document.started = Some("2026-11-20T14:02:31Z".to_string());
    document.command = Some("weir lab run livelock-udp --seed 1".to_string());
    document.machine = Some(Machine {
        kernel: "6.18.3-synthetic".into(),
        cpus: 2,
        model: "Synthetic CPU (made by formulas)".into(),
        wire_cpu: Some(0),
        host_cpu: Some(1),
        device: Some("veth".into()),
    });
    let parameters = [("quota", 16), ("reserve", 20), ("repeat", 3), ("seed", 1)];
    document.parameters.extend(parameters.map(|(name, value)| (name.to_string(), value.into())));
    let base = 0.98 / (READ + 0.9 * RECEIVE);
    let with_hogs: &[u32] = &[0, 1, 4];
    let arms = [
        ("stock-irq", Role::Stock, Shape::Stock { cost: 1.0 }, with_hogs),
        ("stock-rps", Role::Stock, Shape::Stock { cost: 0.9 }, with_hogs),
        ("threaded", Role::Alternative, Shape::Falls { peak: 330e3, floor: 0.35 }, with_hogs),
        ("threaded-idle", Role::Alternative, Shape::Falls { peak: 345e3, floor: 0.31 }, with_hogs),
        ("rate-limit", Role::Alternative, Shape::Keeps { peak: 352e3, fall: 0.09 }, with_hogs),
        ("threaded-deadline", Role::Shown, Shape::Falls { peak: 350e3, floor: 0.55 }, &[0]),
        ("no-op", Role::Control, Shape::Stock { cost: 1.02 }, &[0]),
        ("weir", Role::Weir, Shape::Keeps { peak: 455e3, fall: 0.008 }, with_hogs),
        ("weir, no budget", Role::Ablation, Shape::Keeps { peak: 452e3, fall: 0.02 }, &[0]),
        ("weir, no feedback", Role::Ablation, Shape::Keeps { peak: 430e3, fall: 0.07 }, &[0]),
        ("weir, no quota", Role::Ablation, Shape::Falls { peak: 400e3, floor: 0.48 }, &[0]),
    ];
    document.arms =
        arms.map(|(name, role, shape, hogs)| arm(name, role, shape, hogs, base, &mut noise)).to_vec();
    if let Some(shown) = document.arms.iter_mut().find(|arm| arm.name == "threaded-deadline") {
        shown.note = Some("unpinned: SCHED_DEADLINE refuses an affinity".to_string());
    }
    for percent_of_mlfrr in [10.0, 30.0, 50.0, 90.0] {
        let pairs = (0..20)
            .map(|_| Pair {
                goodput_ratio: 1.0,
                p50_ratio: Some(1.0 + 0.01 * noise.next()),
                p99_ratio: Some(1.01 + 0.06 * noise.next()),
                extra_cpu_points: Some(0.12 + 0.1 * noise.next()),
                mode_switches_per_s: Some(if percent_of_mlfrr > 80.0 { 0.05 } else { 0.0 }),
                void: None,
            })
            .collect();
        document.pairs.push(PairedRate {
            arm: "weir".into(),
            against: "stock-rps".into(),
            percent_of_mlfrr,
            offered_pps: base * percent_of_mlfrr / 100.0,
            pairs,
            ..PairedRate::default()
        });
    }
    for (condition, slow) in [("quiet", 1.0), ("links created and deleted", 1.7)] {
        let series = (0..5).map(|_| onset(base, slow, &mut noise)).collect();
        document.onset.push(Onset {
            arm: "weir".into(),
            condition: condition.into(),
            takeover_ms: (0..5).map(|_| slow * (1.8 + 0.4 * noise.next())).collect(),
            release_ms: (0..5).map(|_| slow * (34.0 + 5.0 * noise.next())).collect(),
            polled_before: 0,
            not_released: 0,
            taken_again: 0,
            again_for: Default::default(),
            recovery_ms: (0..5).map(|_| slow * (9.0 + 2.0 * noise.next())).collect(),
            series,
        });
    }
    document.finish(&[]);
    document
}

fn onset(base: f64, slow: f64, noise: &mut Noise) -> Series {
    let goodput_per_ms = (-10..50)
        .map(|ms| {
            let ms = f64::from(ms);
            let level = if ms < 0.0 {
                0.3 * base
            } else if ms < 2.0 * slow {
                0.1 * base
            } else {
                1.1 * base * (1.0 - (-(ms - 2.0 * slow) / (2.0 * slow)).exp())
            };
            (level / 1000.0 * (1.0 + 0.03 * noise.next())).max(0.0)
        })
        .collect();
    Series { start_ms: -10.0, step_ms: 1.0, goodput_per_ms }
}
