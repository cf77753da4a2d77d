//! From windows of counters of a running host to a path with its costs.
//!
//! A window is a stretch of the host's own traffic. Rates that differ from window to window tell what is fixed from what is
//! per packet; if they do not differ, only a lower bound is known, and the estimate says so.

use crate::line::{Estimate, Line, jackknife};
use crate::nnls;
use crate::path::{Path, Rate};
use serde::Serialize;

/// What happened in one stretch of time on the CPU that receives. Shares are of that CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Window {
    /// Packets/s that the source handed up.
    pub rate: f64,
    /// Part of them, 0 to 1, that was lost anywhere in the host.
    pub lost: f64,
    /// All work on the CPU but that of the rivals and of niced programs.
    pub busy: f64,
    /// Softirq and interrupts.
    pub softirq: f64,
    /// CPU time of the programs that read, with the softirq that interrupted it.
    pub program: f64,
    /// Times/s that one of those programs was given a CPU.
    pub turns: f64,
    /// Times/s that the receive softirq ran.
    pub softirqs: f64,
    /// What rivals and niced programs took, which would otherwise have been idle.
    pub others: f64,
}

/// Fewest windows.
pub const WINDOWS: usize = 4;
/// Fewest packets/s in the busiest window: less drowns in the resolution of the kernel's clocks.
pub const RATE: f64 = 1000.0;
/// How much the highest rate must exceed the lowest to tell fixed costs from those per packet.
pub const SPREAD: f64 = 1.3;
/// Beyond this share of others, idle time says too little of the work of packets: the parts are measured one by one.
pub const OTHERS: f64 = 0.02;
/// A pass of the receive softirq ends when it has handled so many packets (net.core.netdev_budget): a busy CPU makes no more.
pub const PASS: f64 = 300.0;
/// Windows that lost more are left out: what is lost costs less than what is read.
pub const LOST: f64 = 0.02;

/// Why there is no estimate.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum TooLittle {
    /// Not enough windows without loss.
    #[error("{0} of {1} windows without loss are too few")]
    Windows(usize, usize),
    /// Hardly a packet.
    #[error("{0:.0} packets/s are too few")]
    Packets(f64),
    /// The packets cost nothing that can be seen.
    #[error("its packets cost no CPU time that can be seen")]
    Cost,
}

/// Costs of a path, from windows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Costs {
    /// Softirq and interrupts.
    pub receive: Line,
    /// The program, without the softirq that interrupted it.
    pub program: Line,
    /// False if the rates were too alike to tell fixed from per packet: then all counts as per packet.
    pub varied: bool,
    /// Seconds per pass of the receive softirq, with the end of the CPU's sleep and the program's wake: known if the
    /// packets per pass varied. Nothing is fixed then, and what is per packet has its part of a full pass.
    pub per_pass: Option<f64>,
    /// Seconds per wake of the program that were left out, because it does not sleep under load; 0: none were.
    pub per_wake: f64,
    /// Seconds per pass that were left out where `per_pass` is not known, because a busy CPU makes few: a wake's cost is
    /// assumed. 0: none were.
    pub pass_assumed: f64,
    /// True if each packet had a pass of its own: under load they share one and cost less, so the rate is a lower bound.
    pub alone: bool,
}

/// Packets per pass of a window.
fn batch(window: &Window) -> f64 {
    window.rate / window.softirqs.max(f64::MIN_POSITIVE)
}

/// Most packets per pass of windows in which packets come alone: a few pairs do not tell how it goes on.
const ALONE: f64 = 1.5;

/// Windows that tell something: those without loss.
fn usable(windows: &[Window]) -> Vec<Window> {
    windows.iter().filter(|w| w.lost <= LOST && w.rate > 0.0).copied().collect()
}

/// Largest over smallest.
fn spread(windows: &[Window], of: fn(&Window) -> f64) -> f64 {
    let low = windows.iter().map(of).fold(f64::INFINITY, f64::min);
    windows.iter().map(of).fold(0.0, f64::max) / low
}

/// What is known of the machine and the model beside the windows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    /// CPU time to wake a sleeping program, seconds; 0 if it is not known.
    pub wake: f64,
    /// Relative error of the model itself, from comparison with measured rates.
    pub error: f64,
}

/// Costs from these windows; `crowded` if the CPU's idle time says little because somebody takes it; `together` if the
/// program runs on the CPU that receives.
fn costs(windows: &[Window], crowded: bool, together: bool, wake: f64) -> Option<Costs> {
    // A program that has the CPU for itself does not sleep when it counts. Beside a rival it is made to wait instead.
    let (pass, wake) = (wake, if crowded { 0.0 } else { wake });
    let awake = |share: f64, w: &Window| (share - wake * w.turns).max(0.0);
    let varied = spread(windows, |w| w.rate) >= SPREAD;
    let counted = windows.iter().all(|w| w.softirqs > 0.0);
    // A timer makes as many passes at any rate; a burst that wakes the CPU makes one, and is as long at any rate.
    let (batches, rates) = (spread(windows, batch), spread(windows, |w| w.rate));
    let passes = varied && counted && batches >= SPREAD.max(rates.sqrt());
    let alone = counted && windows.iter().all(|w| batch(w) < ALONE);
    // Passes that grow with the rate go away under load too: what is left of them is one for each PASS packets.
    let pass = if varied && counted && !passes { pass } else { 0.0 };
    let busy = |share: f64, w: &Window| (share - pass * (w.softirqs - w.rate / PASS).max(0.0)).max(0.0);
    // Per pass and per packet; in the place of the fixed part is what a pass costs.
    let line = |share: &dyn Fn(&Window) -> f64| -> Option<Line> {
        if passes {
            let rows: Vec<Vec<f64>> = windows.iter().map(|w| vec![w.softirqs, w.rate, share(w)]).collect();
            let c = nnls::solve(&rows)?.coefficients;
            return Some(Line { fixed: c[0], per_packet: c[1] });
        }
        let points: Vec<(f64, f64)> = windows.iter().map(|w| (w.rate, share(w))).collect();
        if varied {
            return Line::fit(&points);
        }
        let (packets, time) = points.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        Some(Line { fixed: 0.0, per_packet: time / packets })
    };
    // Softirq interrupts the program for its part of the time that the program runs.
    let own = |w: &Window| awake(w.program * (1.0 - w.softirq).max(0.0), w);
    let (receive, program) = (line(&|w| busy(w.softirq, w))?, line(&own)?);
    let full = |receive: Line, program: Line| {
        let lean = |line: Line| match passes {
            true => Line { fixed: 0.0, per_packet: line.per_packet + line.fixed / PASS },
            false => line,
        };
        let per_pass = passes.then_some(receive.fixed + program.fixed);
        Costs {
            receive: lean(receive),
            program: lean(program),
            varied,
            per_pass,
            per_wake: wake,
            pass_assumed: pass,
            alone,
        }
    };
    if crowded {
        return Some(full(receive, program));
    }
    // The whole is known best, because idle time is measured and softirq time sampled; the parts tell how it divides.
    let whole = line(&|w| busy(if together { awake(w.busy, w) } else { w.busy }, w))?;
    let divide = |whole: f64, receive: f64, program: f64| {
        let part = if receive + program > 0.0 { receive / (receive + program) } else { 1.0 };
        (whole * part, whole * (1.0 - part))
    };
    let fixed = divide(whole.fixed, receive.fixed, program.fixed);
    let per_packet = divide(whole.per_packet, receive.per_packet, program.per_packet);
    Some(full(
        Line { fixed: fixed.0, per_packet: per_packet.0 },
        Line { fixed: fixed.1, per_packet: per_packet.1 },
    ))
}

/// A path with costs from observation, and what it can do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fitted {
    /// With the costs.
    pub path: Path,
    /// Its MLFRR and what limits it.
    pub rate: Rate,
    /// The MLFRR with its interval.
    pub mlfrr: Estimate,
    /// The livelock point with its interval, if there is one.
    pub livelock: Option<Estimate>,
    /// The costs.
    pub costs: Costs,
    /// Windows that were used.
    pub windows: usize,
}

/// Puts the costs that `windows` tell into `path` (whose own costs do not matter) and estimates what `ask` makes of it: the
/// identity for now, a change for a what-if.
///
/// # Errors
/// If the windows tell too little.
pub fn fit(
    windows: &[Window],
    path: &Path,
    ask: &dyn Fn(Path) -> Path,
    known: Known,
) -> Result<Fitted, TooLittle> {
    let used = usable(windows);
    if used.len() < WINDOWS {
        return Err(TooLittle::Windows(used.len(), windows.len()));
    }
    let most = used.iter().map(|w| w.rate).fold(0.0, f64::max);
    if most < RATE {
        return Err(TooLittle::Packets(most));
    }
    let others = used.iter().map(|w| w.others).sum::<f64>() / used.len() as f64;
    let crowded = others > OTHERS || path.rivals.iter().any(|r| r.demand >= 1.0);
    let with = |left_out: Option<usize>| -> Option<(Path, Costs)> {
        let rest: Vec<Window> =
            used.iter().enumerate().filter(|(i, _)| Some(*i) != left_out).map(|(_, w)| *w).collect();
        let costs = costs(&rest, crowded, path.together, known.wake)?;
        let costed = Path { receive: costs.receive, program: costs.program, ..path.clone() };
        Some((ask(costed), costs))
    };
    let finite = |value: f64| value.is_finite().then_some(value);
    let (asked, costs) = with(None).ok_or(TooLittle::Cost)?;
    let mlfrr = jackknife(used.len(), |i| finite(with(i)?.0.rate().mlfrr)).ok_or(TooLittle::Cost)?;
    let livelock = jackknife(used.len(), |i| finite(with(i)?.0.livelock()?));
    // Costs that are fixed in truth were taken for costs per packet: the rate is at least so high.
    let open = |e: Estimate| if costs.varied && !costs.alone { e } else { Estimate { high: None, ..e } };
    Ok(Fitted {
        rate: asked.rate(),
        mlfrr: open(mlfrr.widened(known.error)),
        livelock: livelock.map(|e| open(e.widened(known.error))),
        path: asked,
        costs,
        windows: used.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{Class, Limit};
    use crate::share::{Rival, weight};
    use crate::whatif::{Change, Facts};

    const FACTS: Facts = Facts { charge: None, packet: 60.0, per_byte: 0.0, link_bits: None };

    const EXACT: Known = Known { wake: 0.0, error: 0.0 };

    fn blank() -> Path {
        Path::of(Line::default(), Line::default())
    }

    /// A host with 0.12 fixed and 0.4 us of softirq, 0.1 fixed and 1.7 us of program, as the lab's is.
    fn window(rate: f64) -> Window {
        let softirq = 0.12 + 0.4e-6 * rate;
        let own = 0.1 + 1.7e-6 * rate;
        Window { rate, busy: softirq + own, softirq, program: own / (1.0 - softirq), ..Window::default() }
    }

    fn rates(rates: &[f64]) -> Vec<Window> {
        rates.iter().map(|r| window(*r)).collect()
    }

    #[test]
    fn costs_of_a_varied_load_are_found() {
        let fitted = fit(&rates(&[20e3, 50e3, 80e3, 110e3, 140e3]), &blank(), &|p| p, EXACT).unwrap();
        assert!((fitted.mlfrr.value / (0.78 / 2.1e-6) - 1.0).abs() < 1e-3, "{:?}", fitted.mlfrr);
        assert!((fitted.costs.receive.per_packet / 0.4e-6 - 1.0).abs() < 1e-3);
        assert!((fitted.costs.program.per_packet / 1.7e-6 - 1.0).abs() < 1e-3);
        assert_eq!(fitted.rate.limit, Limit::Cpu);
        assert_eq!(fitted.path.class(), Class::Livelock);
        assert!((fitted.livelock.unwrap().value / (0.88 / 0.4e-6) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn a_constant_load_gives_a_lower_bound_only() {
        let windows = rates(&[100e3, 101e3, 99e3, 100e3, 100.5e3]);
        let fitted = fit(&windows, &blank(), &|p| p, Known { error: 0.05, ..EXACT }).unwrap();
        let truth = 0.78 / 2.1e-6;
        assert!(!fitted.costs.varied && fitted.mlfrr.high.is_none());
        assert!(fitted.mlfrr.value < truth && fitted.mlfrr.covers(truth));
    }

    #[test]
    fn windows_that_lose_are_left_out() {
        let mut windows = rates(&[20e3, 50e3, 80e3, 110e3]);
        windows.push(Window { lost: 0.3, busy: 1.0, ..window(500e3) });
        assert_eq!(fit(&windows, &blank(), &|p| p, EXACT).unwrap().windows, 4);
        windows.remove(0);
        assert_eq!(fit(&windows, &blank(), &|p| p, EXACT), Err(TooLittle::Windows(3, 4)));
        assert_eq!(fit(&rates(&[1.0; 5]), &blank(), &|p| p, EXACT), Err(TooLittle::Packets(1.0)));
    }

    #[test]
    fn beside_a_rival_the_parts_are_measured_one_by_one() {
        let path = Path { rivals: vec![Rival { weight: weight(0), demand: 1.0 }], ..blank() };
        let windows: Vec<Window> =
            [20e3, 50e3, 80e3, 110e3].map(|r| Window { busy: 1.0, ..window(r) }).into_iter().collect();
        let fitted = fit(&windows, &path, &|p| p, EXACT).unwrap();
        // 0.1 + 1.7 R = (1 - 0.12 - 0.4 R) / 2.
        assert!((fitted.mlfrr.value / (0.34 / 1.9e-6) - 1.0).abs() < 1e-3, "{:?}", fitted.mlfrr);
    }

    #[test]
    fn beside_niced_programs_idle_time_is_not_believed() {
        let mut windows = rates(&[20e3, 50e3, 80e3, 110e3, 140e3]);
        windows.iter_mut().for_each(|w| (w.others, w.busy) = (0.3, 0.05));
        let fitted = fit(&windows, &blank(), &|p| p, EXACT).unwrap();
        assert!((fitted.mlfrr.value / (0.78 / 2.1e-6) - 1.0).abs() < 1e-3, "{:?}", fitted.mlfrr);
    }

    #[test]
    fn passes_of_the_softirq_are_told_from_packets() {
        // A timer that starts passes while the softirq has time: 12 us each, 2 us per packet, a quarter of it in softirq.
        let window = |rate: f64| {
            let softirqs = 15e3 * (1.0 - 0.5e-6 * rate);
            let busy = 12e-6 * softirqs + 2e-6 * rate;
            Window { rate, busy, softirq: 0.5 * busy, softirqs, ..Window::default() }
        };
        let windows: Vec<Window> = [30e3, 60e3, 90e3, 120e3, 150e3].map(window).into();
        let fitted = fit(&windows, &blank(), &|p| p, EXACT).unwrap();
        assert!((fitted.costs.per_pass.unwrap() / 12e-6 - 1.0).abs() < 1e-3, "{:?}", fitted.costs);
        // All passes are full at the end, and none is fixed: the line through the same points says 429 k/s.
        let truth = 1.0 / (2e-6 + 12e-6 / PASS);
        assert!(
            (fitted.mlfrr.value / truth - 1.0).abs() < 1e-3 && fitted.mlfrr.high.is_some(),
            "{:?}",
            fitted.mlfrr
        );
        let uncounted: Vec<Window> = windows.iter().map(|w| Window { softirqs: 0.0, ..*w }).collect();
        let line = fit(&uncounted, &blank(), &|p| p, EXACT).unwrap();
        assert!(line.costs.per_pass.is_none() && line.mlfrr.value < 0.9 * truth, "{:?}", line.mlfrr);
    }

    #[test]
    fn bursts_that_only_grow_a_little_are_no_timer() {
        // Passes nearly as packets: what one costs without the other cannot be told, and a fit would say that passes are all.
        let window = |rate: f64| Window { softirqs: rate / 3.0 * (1.0 - rate * 2e-6), ..window(rate) };
        let windows: Vec<Window> = [37e3, 59e3, 80e3, 119e3, 124e3].map(window).into();
        let costs = fit(&windows, &blank(), &|p| p, EXACT).unwrap().costs;
        assert!(costs.per_pass.is_none() && !costs.alone, "{costs:?}");
    }

    #[test]
    fn passes_that_grow_with_the_rate_are_taken_to_cost_a_wake_each() {
        // One pass for three packets at any rate, 2 us each.
        let window = |rate: f64| {
            let passes = Window { softirqs: rate / 3.0, ..window(rate) };
            Window {
                busy: passes.busy + 2e-6 * rate / 3.0,
                softirq: passes.softirq + 2e-6 * rate / 3.0,
                ..passes
            }
        };
        let windows: Vec<Window> = [20e3, 40e3, 60e3, 80e3].map(window).into();
        let with = |wake| fit(&windows, &blank(), &|p| p, Known { wake, ..EXACT }).unwrap();
        let (known, unknown) = (with(2e-6), with(0.0));
        assert!(
            (unknown.mlfrr.value / (0.78 / (2.1e-6 + 2e-6 / 3.0)) - 1.0).abs() < 1e-3,
            "{:?}",
            unknown.mlfrr
        );
        // A full CPU makes one for 300 packets.
        assert!(
            (known.mlfrr.value / (0.78 / (2.1e-6 + 2e-6 / PASS)) - 1.0).abs() < 1e-3,
            "{:?}",
            known.mlfrr
        );
        assert_eq!((known.costs.pass_assumed, known.costs.per_pass), (2e-6, None));
    }

    #[test]
    fn packets_that_come_alone_give_a_lower_bound() {
        let windows: Vec<Window> = rates(&[20e3, 50e3, 80e3, 110e3, 140e3])
            .into_iter()
            .map(|w| Window { softirqs: 0.95 * w.rate, ..w })
            .collect();
        let fitted = fit(&windows, &blank(), &|p| p, EXACT).unwrap();
        assert!(fitted.costs.alone && fitted.costs.per_pass.is_none() && fitted.mlfrr.high.is_none());
        let pairs: Vec<Window> = windows.iter().map(|w| Window { softirqs: 0.5 * w.rate, ..*w }).collect();
        assert!(!fit(&pairs, &blank(), &|p| p, EXACT).unwrap().costs.alone);
    }

    #[test]
    fn wakes_are_gone_under_load_but_beside_a_rival() {
        // Each packet wakes the program for 2 us, and costs 2.1 us beside.
        let woken = |w: Window| {
            let own = w.program * (1.0 - w.softirq) + 2e-6 * w.rate;
            Window { turns: w.rate, busy: w.busy + 2e-6 * w.rate, program: own / (1.0 - w.softirq), ..w }
        };
        let windows: Vec<Window> = rates(&[20e3, 40e3, 60e3, 80e3]).into_iter().map(woken).collect();
        let known = Known { wake: 2e-6, ..EXACT };
        let asleep = fit(&windows, &blank(), &|p| p, EXACT).unwrap();
        assert!((asleep.mlfrr.value / (0.78 / 4.1e-6) - 1.0).abs() < 1e-3, "{:?}", asleep.mlfrr);
        let awake = fit(&windows, &blank(), &|p| p, known).unwrap();
        assert!((awake.mlfrr.value / (0.78 / 2.1e-6) - 1.0).abs() < 1e-3, "{:?}", awake.mlfrr);
        assert!(awake.costs.per_wake == 2e-6 && (awake.costs.program.per_packet / 1.7e-6 - 1.0).abs() < 1e-3);
        let beside = Path { rivals: vec![Rival { weight: weight(0), demand: 1.0 }], ..blank() };
        let rival = |known| fit(&windows, &beside, &|p| p, known).unwrap().mlfrr;
        assert_eq!(rival(known), rival(EXACT));
    }

    #[test]
    fn a_what_if_has_an_interval_of_its_own() {
        let mut windows = rates(&[20e3, 50e3, 80e3, 110e3, 140e3]);
        windows[2].busy += 0.02;
        let guarded = |path: Path| Change::Guarded.apply(&path, &FACTS);
        let fitted = fit(&windows, &blank(), &guarded, EXACT).unwrap();
        assert!(fitted.mlfrr.value > 1.2 * fit(&windows, &blank(), &|p| p, EXACT).unwrap().mlfrr.value);
        assert!(fitted.mlfrr.low < fitted.mlfrr.value && fitted.livelock.is_none());
    }
}
