//! The claims of the project, judged over one document. Bounds and aims are those of the design.
//!
//! A claim is judged if the document has the data for it, or if the caller requires it; a required claim
//! without data, and a claim whose point is void, does not hold and says why. Reading rules are those of
//! `stats`.
//!
//! - **P1** flatness of the arm weir at 10 x and at the wire's maximum, once per number of hogs; not measured where
//!   the curve has too few rates.
//! - **P2** peak of weir / best peak of a stock arm, without hogs.
//! - **P3** how far the CPU left to the program falls below the reserve, in points, worst over all loads; one
//!   claim per arm that has a reserve.
//! - **P4** worst rate of the interleaved pairs: median of the goodput ratio (to the 0.1 % that counts as
//!   loss-free), *upper* end of the 95 % interval of the p50 and p99 ratio, median of the extra CPU, mean of
//!   the switches. What the stock arm differs from itself stands beside the numbers and excuses nothing.
//! - **P7** the slowest of all takeovers, releases, recoveries; one claim each per condition.
//! - **P8** at 10 x, worst over hogs, a ratio of packets: those lost after the NIC / those handed up, where neither
//!   [`AT_THE_NIC`] nor shed packets count as handed up. It stands for the share of packet CPU time that is wasted, which
//!   cannot be measured here: one poll and one run of softirq serve packets of both fates, a stamp for each packet would
//!   cost as much as a part of its work, and most of what a lost packet costs falls before its fate is known. A
//!   document that has the time (`wasted_share`) is judged by it, and the claim says so.
//! - **P9** at each rate of weir from 4 x: its goodput / that of each stock and alternative arm at the same
//!   rate and with as many hogs; the least of them all. On a host that only forwards, an arm that leaves programs
//!   less than weir's reserve (by more than P3 allows) is no choice where there are programs; how often that was
//!   so stands beside the number.
//! - **P5**, **P6**, **P11** and **P12** are judged by the experiments that measure them: shed-cost, control-traffic and
//!   innocents.
//! - **no-op** a guard that does nothing falls short of P1; on a host that only forwards, where the kernel's own
//!   polling is flat, of P3 at the highest reserve of the run.
//! - **ledger** packets unaccounted for, over all trials, void ones too.

use crate::document::{Arm, Document, Relation, Role, Verdict};
use crate::measure::{Drops, Interval, Pair, PairedRate, Point};
use crate::stats::{self, Unread};

/// Places where a packet is lost before the host has spent CPU time on it.
pub const AT_THE_NIC: [&str; 2] = ["ring", "wire"];
/// Points by which the CPU of programs may fall short of the reserve.
const P3_MAX: f64 = 2.0;
/// The place of packets that weir dropped on purpose.
pub const SHED: &str = "shed";

/// The claims, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    /// Flatness.
    P1,
    /// Peak against stock.
    P2,
    /// CPU left to programs.
    P3,
    /// No harm below saturation.
    P4,
    /// Takeover, release, recovery.
    P7,
    /// Wasted work.
    P8,
    /// Lead over what a user could choose instead.
    P9,
    /// The control arm fails.
    NoOp,
    /// Every packet is accounted for.
    Ledger,
}

impl Id {
    /// All claims.
    pub const ALL: [Id; 9] = [Id::P1, Id::P2, Id::P3, Id::P4, Id::P7, Id::P8, Id::P9, Id::NoOp, Id::Ledger];

    /// As it stands in the document.
    pub fn name(self) -> &'static str {
        match self {
            Id::P1 => "P1",
            Id::P2 => "P2",
            Id::P3 => "P3",
            Id::P4 => "P4",
            Id::P7 => "P7",
            Id::P8 => "P8",
            Id::P9 => "P9",
            Id::NoOp => "no-op",
            Id::Ledger => "ledger",
        }
    }
}

/// Judges the claims; those in `required` are judged even if the document has no data for them, and then fall
/// short.
pub fn judge(document: &Document, required: &[Id]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for id in Id::ALL {
        let judged = match id {
            Id::P1 => flatness(document),
            Id::P2 => peak(document),
            Id::P3 => reserve(document),
            Id::P4 => below_saturation(document),
            Id::P7 => onset(document),
            Id::P8 => wasted(document),
            Id::P9 => lead(document),
            Id::NoOp => control(document),
            Id::Ledger => ledger(document),
        };
        let is_required = required.contains(&id);
        let before = verdicts.len();
        verdicts.extend(judged.into_iter().filter(|claim| claim.keep || is_required).map(Claim::judge));
        if is_required && verdicts.len() == before {
            verdicts.push(Claim::new(id, &format!("{} was to be measured", id.name())).missing().judge());
        }
    }
    verdicts
}

/// A claim before it is judged.
struct Claim {
    verdict: Verdict,
    /// Shown even if it is not required.
    keep: bool,
}

impl Claim {
    fn new(id: Id, claim: &str) -> Claim {
        let verdict = Verdict {
            id: id.name().to_string(),
            claim: claim.to_string(),
            value: None,
            relation: Relation::AtLeast,
            bound: 0.0,
            aim: None,
            digits: 3,
            unit: String::new(),
            holds: false,
            note: None,
        };
        Claim { verdict, keep: true }
    }

    fn bound(mut self, relation: Relation, bound: f64, aim: Option<f64>) -> Claim {
        self.verdict.relation = relation;
        self.verdict.bound = bound;
        self.verdict.aim = aim;
        self
    }

    fn show(mut self, digits: u8, unit: &str) -> Claim {
        self.verdict.digits = digits;
        self.verdict.unit = unit.to_string();
        self
    }

    fn value(mut self, value: Option<f64>) -> Claim {
        self.verdict.value = value;
        if value.is_none() { self.missing() } else { self }
    }

    fn note(mut self, note: String) -> Claim {
        self.verdict.note = (!note.is_empty()).then_some(note);
        self
    }

    fn missing(mut self) -> Claim {
        self.keep = false;
        self.note("not measured".to_string())
    }

    /// Takes a reading: what is void is shown, what was not measured only if it is required.
    fn reading(self, reading: Result<(f64, String), Unread>) -> Claim {
        match reading {
            Ok((value, note)) => self.value(Some(value)).note(note),
            Err(Unread::NotMeasured) => self.missing(),
            Err(Unread::Void(reason)) => self.note(format!("void: {reason}")),
            Err(Unread::TooFew(valid)) => self.note(format!(
                "{valid} of the rates can be used: {} are needed, one of them lower than this",
                stats::MIN_RATES
            )),
        }
    }

    fn judge(self) -> Verdict {
        let mut verdict = self.verdict;
        let bound = verdict.bound;
        verdict.holds = verdict.value.is_some_and(|value| match verdict.relation {
            Relation::AtLeast => value >= bound,
            Relation::AtMost => value <= bound,
            Relation::Equal => value == bound,
            Relation::Below => value < bound,
        });
        verdict
    }
}

fn weir(document: &Document) -> Option<&Arm> {
    document.arms.iter().find(|arm| arm.role == Role::Weir)
}

/// 1 x in packets/s.
fn base_pps(document: &Document) -> Result<f64, Unread> {
    stats::base(document).map(|base| base.mlfrr_pps).filter(|rate| *rate > 0.0).ok_or(Unread::NotMeasured)
}

fn hogs_suffix(hogs: u32) -> String {
    match hogs {
        0 => String::new(),
        1 => ", 1 hog".to_string(),
        n => format!(", {n} hogs"),
    }
}

/// Flatness of an arm, as a value and a note.
fn flat(arm: &Arm, hogs: u32, goodput: Result<stats::Reading, Unread>) -> Result<(f64, String), Unread> {
    let interpolated = goodput.as_ref().is_ok_and(|reading| reading.interpolated);
    let note = if interpolated { "interpolated between two rates" } else { "" };
    Ok((stats::flatness(arm, hogs, goodput)?, note.to_string()))
}

fn flatness(document: &Document) -> Vec<Claim> {
    let Some(arm) = weir(document) else { return Vec::new() };
    let mut claims = Vec::new();
    for hogs in stats::hog_counts(arm) {
        let suffix = hogs_suffix(hogs);
        let ten = base_pps(document).and_then(|base| stats::goodput_at(arm, hogs, 10.0 * base));
        claims.push(
            Claim::new(Id::P1, &format!("flatness at 10x{suffix}"))
                .bound(Relation::AtLeast, 0.95, Some(0.99))
                .reading(flat(arm, hogs, ten)),
        );
        claims.push(
            Claim::new(Id::P1, &format!("flatness at the wire's maximum{suffix}"))
                .bound(Relation::AtLeast, 0.85, Some(0.95))
                .reading(flat(arm, hogs, stats::goodput_at_max(arm, hogs))),
        );
    }
    claims
}

fn peak(document: &Document) -> Vec<Claim> {
    let top = |arm: &Arm, hogs: u32| stats::peak(&stats::curve(arm, hogs)).map(|point| point.goodput_pps);
    let Some(arm) = weir(document) else { return Vec::new() };
    // Below saturation nothing has its peak.
    if document.experiment == "below-saturation" {
        return Vec::new();
    }
    let hogs = stats::hog_counts(arm).first().copied().unwrap_or(0);
    let best = document
        .arms
        .iter()
        .filter(|arm| arm.role == Role::Stock)
        .filter_map(|arm| Some((top(arm, hogs)?, arm.name.as_str())))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|best| best.0 > 0.0);
    let ratio = best.and_then(|(best, _)| Some(top(arm, hogs)? / best));
    let note = best.map_or(String::new(), |(_, name)| format!("against {name}"));
    let claim =
        Claim::new(Id::P2, "peak / best stock peak").bound(Relation::AtLeast, 1.05, Some(1.3)).show(2, "");
    vec![match ratio {
        Some(_) => claim.value(ratio).note(note),
        None => claim.missing(),
    }]
}

fn reserve(document: &Document) -> Vec<Claim> {
    let guarded = document.arms.iter().filter(|arm| matches!(arm.role, Role::Weir | Role::Variant));
    let with_reserve = guarded.filter_map(|arm| arm.reserve.map(|reserve| (arm, reserve)));
    with_reserve
        .map(|(arm, reserve)| {
            let least = least_left(arm);
            let claim = Claim::new(Id::P3, &format!("CPU short of the reserve of {:.0} %", 100.0 * reserve))
                .bound(Relation::AtMost, P3_MAX, Some(0.5))
                .show(1, "points");
            match least {
                None => claim.missing(),
                Some((share, point)) => {
                    let steal =
                        point.steal_share.map_or(String::new(), |s| format!(", steal {:.1} %", 100.0 * s));
                    let at = at_multiple(point);
                    claim
                        .value(Some(100.0 * (reserve - share).max(0.0)))
                        .note(format!("least {:.1} % of its CPU alone{at}{steal}", 100.0 * share))
                }
            }
        })
        .collect()
}

/// " at 4x, 1 hog", as far as it is known.
fn at_multiple(point: &Point) -> String {
    let multiple = point.multiple.map_or(String::new(), |n| format!(" at {}", crate::format::multiple(n)));
    format!("{multiple}{}", hogs_suffix(point.hogs))
}

fn below_saturation(document: &Document) -> Vec<Claim> {
    let claim = |text: &str, relation, bound, aim| Claim::new(Id::P4, text).bound(relation, bound, Some(aim));
    let at = |rate: &PairedRate| format!("at {:.0} % of MLFRR", rate.percent_of_mlfrr);
    let mean = |rate: &PairedRate, value: fn(&Pair) -> Option<f64>| {
        let valid = rate.pairs.iter().filter(|pair| pair.void.is_none());
        stats::mean_sd(&valid.filter_map(value).collect::<Vec<f64>>()).map(|(mean, _)| mean)
    };
    // To three digits, because a loss of 0.1 % counts as none and both arms may lose a packet by chance.
    let goodput = worst(document, true, |rate| {
        let interval = rate.goodput_ratio?;
        Some(((1000.0 * interval.median).round() / 1000.0, at(rate)))
    });
    let ends = |rate: &PairedRate, of: fn(&PairedRate) -> Option<Interval>| {
        let ours = of(rate)?;
        let same = |c: &&PairedRate| c.is_control() && c.percent_of_mlfrr == rate.percent_of_mlfrr;
        let control = document.pairs.iter().find(same).and_then(|c| Some((c, of(c)?)));
        let control = control.map_or(String::new(), |(c, own)| {
            format!("; {} against itself {:.3} to {:.3}", c.arm, own.low, own.high)
        });
        Some((ours.high, format!("{:.3} to {:.3} {}{control}", ours.low, ours.high, at(rate))))
    };
    let p50 = worst(document, false, |rate| ends(rate, |r| r.p50_ratio));
    let p99 = worst(document, false, |rate| ends(rate, |r| r.p99_ratio));
    let cpu = worst(document, false, |rate| Some((rate.extra_cpu_points?.median, at(rate))));
    let switches = worst(document, false, |rate| {
        rate.mode_switches_per_s?;
        Some((mean(rate, |pair| pair.mode_switches_per_s)?, at(rate)))
    });
    vec![
        claim("goodput / stock's below MLFRR", Relation::AtLeast, 1.0, 1.0).reading(goodput),
        claim("p50 / stock's below MLFRR, 95 % upper end", Relation::AtMost, 1.05, 1.0).reading(p50),
        claim("p99 / stock's below MLFRR, 95 % upper end", Relation::AtMost, 1.15, 1.05).reading(p99),
        claim("extra CPU below MLFRR", Relation::AtMost, 2.0, 0.2).show(2, "points").reading(cpu),
        claim("mode switches below MLFRR", Relation::AtMost, 1.0, 0.1).show(2, "/s").reading(switches),
    ]
}

/// The worst rate of the pairs. A rate that lacks the value makes the whole not measured: the worst may hide
/// there.
fn worst(
    document: &Document,
    low_is_bad: bool,
    value: impl Fn(&PairedRate) -> Option<(f64, String)>,
) -> Result<(f64, String), Unread> {
    let mut worst: Option<(f64, String)> = None;
    for rate in document.pairs.iter().filter(|rate| !rate.is_control()) {
        let Some(this) = value(rate) else {
            let valid = rate.pairs.iter().filter(|pair| pair.void.is_none()).count();
            return Err(Unread::Void(format!(
                "only {valid} pairs of use at {:.0} % of MLFRR, {} needed",
                rate.percent_of_mlfrr,
                stats::MIN_INTERVAL
            )));
        };
        let worse =
            worst.as_ref().is_none_or(|other| if low_is_bad { this.0 < other.0 } else { this.0 > other.0 });
        if worse {
            worst = Some(this);
        }
    }
    worst.ok_or(Unread::NotMeasured)
}

fn onset(document: &Document) -> Vec<Claim> {
    let mut claims = Vec::new();
    let weir_name = weir(document).map(|arm| arm.name.as_str());
    for onset in document.onset.iter().filter(|onset| Some(onset.arm.as_str()) == weir_name) {
        let lists = [
            ("takeover", &onset.takeover_ms, 20.0, 2.0),
            ("release", &onset.release_ms, 200.0, 50.0),
            ("recovery", &onset.recovery_ms, 200.0, 20.0),
        ];
        for (what, list, bound, aim) in lists {
            let claim = Claim::new(Id::P7, &format!("{what}, slowest, {}", onset.condition))
                .bound(Relation::AtMost, bound, Some(aim))
                .show(1, "ms");
            claims.push(match (stats::spread(list), stats::median(list)) {
                (Some(spread), Some(median)) => {
                    claim.value(Some(spread.max)).note(format!("median {median:.1} of {}", list.len()))
                }
                _ => claim.missing(),
            });
        }
    }
    claims
}

/// What is wasted at a point, and of what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wasted {
    /// Share of packet CPU time.
    Time(f64),
    /// Packets lost after the NIC / packets handed up.
    Packets(f64),
}

impl Wasted {
    fn share(self) -> f64 {
        let (Wasted::Time(share) | Wasted::Packets(share)) = self;
        share
    }

    /// As the claim is called.
    fn claim(self) -> &'static str {
        match self {
            Wasted::Time(_) => "packet CPU time wasted at 10x",
            Wasted::Packets(_) => "packets lost / handed up at 10x",
        }
    }
}

/// What is wasted at this point: as time where that was measured.
pub(crate) fn wasted_at(point: &Point) -> Option<Wasted> {
    if let Some(share) = point.wasted_share {
        return Some(Wasted::Time(share));
    }
    let late =
        point.drops.iter().filter(|(place, _)| *place != SHED && !AT_THE_NIC.contains(&place.as_str()));
    let lost: u64 = late.map(|(_, count)| count).sum();
    let handed_up = point.delivered + lost;
    (handed_up > 0).then(|| Wasted::Packets(lost as f64 / handed_up as f64))
}

fn wasted(document: &Document) -> Vec<Claim> {
    let Some(arm) = weir(document) else { return Vec::new() };
    let claim = |wasted: Wasted| {
        Claim::new(Id::P8, wasted.claim()).bound(Relation::AtMost, 15.0, Some(3.0)).show(1, "%")
    };
    let none = claim(Wasted::Packets(0.0));
    let Ok(base) = base_pps(document) else { return vec![none.missing()] };
    let mut worst: Option<(Wasted, u32)> = None;
    for hogs in stats::hog_counts(arm) {
        let Some(point) = stats::point_at(arm, hogs, 10.0 * base) else { continue };
        if let Some(reason) = &point.void {
            return vec![none.reading(Err(Unread::Void(reason.clone())))];
        }
        if let Some(wasted) = wasted_at(point)
            && worst.is_none_or(|(other, _)| wasted.share() > other.share())
        {
            worst = Some((wasted, hogs));
        }
    }
    vec![match worst {
        None => none.reading(Err(Unread::NotMeasured)),
        Some((wasted, hogs)) => {
            let claim = claim(wasted).value(Some(100.0 * wasted.share()));
            if hogs > 0 { claim.note(format!("worst{}", hogs_suffix(hogs))) } else { claim }
        }
    }]
}

/// One rate at which weir and another arm are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Lead {
    /// The other arm.
    pub arm: String,
    /// Multiple of the base MLFRR.
    pub multiple: f64,
    /// Hogs at both.
    pub hogs: u32,
    /// Goodput of weir / goodput of the other arm, which is taken as at least 1 packet/s.
    pub ratio: f64,
    /// Goodput of weir in packets/s.
    pub weir_pps: f64,
    /// Goodput of the other arm in packets/s.
    pub other_pps: f64,
}

/// Every comparison of weir with another arm at a rate of at least `from` x the base MLFRR.
///
/// Arms of all roles take part, so that a reader also sees an arm that beats weir without being an
/// alternative. What is void on either side is left out.
pub fn leads(document: &Document, from: f64) -> Vec<Lead> {
    comparisons(document, from).leads
}

/// The comparisons of [`leads`], and how many more there were to be.
#[derive(Default)]
struct Comparisons {
    leads: Vec<Lead>,
    /// But for void points of weir or of an arm that could be chosen instead.
    void: usize,
    /// But for arms that starve programs.
    starving: usize,
}

/// What the host does with the packets that count: "reads" or "forwards".
pub(crate) fn verb(document: &Document) -> &'static str {
    match document.experiment.as_str() {
        "livelock-router" | "screen" | "quota" | "cycle-limit" | "tx-starvation" => "forwards",
        _ => "reads",
    }
}

/// True if nothing but packets forwarded counts as goodput: then an arm may buy it with the programs' CPU time.
pub(crate) fn only_forwards(document: &Document) -> bool {
    document.experiment == "livelock-router"
}

/// Whether `other` leaves programs less than weir's reserve at this point of weir.
fn starves(document: &Document, weir: &Arm, other: &Arm, at: &Point) -> bool {
    let Some(reserve) = weir.reserve.filter(|_| only_forwards(document) && at.hogs > 0) else { return false };
    let same = match at.wire_max {
        true => other.points.iter().find(|p| p.wire_max && p.hogs == at.hogs),
        false => stats::point_at(other, at.hogs, at.offered_pps),
    };
    same.and_then(|p| p.user_of_alone).is_some_and(|share| share < reserve - P3_MAX / 100.0)
}

fn comparisons(document: &Document, from: f64) -> Comparisons {
    let (Some(weir), Ok(base)) = (weir(document), base_pps(document)) else { return Comparisons::default() };
    let Comparisons { mut leads, mut void, mut starving } = Comparisons::default();
    for point in &weir.points {
        let multiple = point.offered_pps / base;
        if multiple < from * (1.0 - stats::SAME_RATE) {
            continue;
        }
        if point.void.is_some() {
            void += 1;
            continue;
        }
        for other in document.arms.iter().filter(|arm| arm.name != weir.name) {
            if starves(document, weir, other, point) {
                starving += usize::from(could_be_chosen(other));
                continue;
            }
            let reading = match stats::goodput_at(other, point.hogs, point.offered_pps) {
                // Arms reach different maxima; at the wire's maximum each is taken at its own.
                Err(Unread::NotMeasured) if point.wire_max => stats::goodput_at_max(other, point.hogs),
                reading => reading,
            };
            match reading {
                Ok(reading) => leads.push(Lead {
                    arm: other.name.clone(),
                    multiple,
                    hogs: point.hogs,
                    ratio: point.goodput_pps / reading.goodput_pps.max(1.0),
                    weir_pps: point.goodput_pps,
                    other_pps: reading.goodput_pps,
                }),
                Err(Unread::Void(_)) if could_be_chosen(other) => void += 1,
                Err(_) => {}
            }
        }
    }
    Comparisons { leads, void, starving }
}

fn could_be_chosen(arm: &Arm) -> bool {
    matches!(arm.role, Role::Stock | Role::Alternative)
}

fn lead(document: &Document) -> Vec<Claim> {
    let Comparisons { leads, void, starving } = comparisons(document, 4.0);
    let least = leads
        .into_iter()
        .filter(|lead| document.arm(&lead.arm).is_some_and(could_be_chosen))
        .min_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let claim = Claim::new(Id::P9, "least lead over any other choice, from 4x")
        .bound(Relation::AtLeast, 1.0, Some(1.2))
        .show(2, "");
    let void = match void {
        0 => String::new(),
        n => format!("; {n} more void"),
    };
    let starving = match starving {
        0 => String::new(),
        n => format!("; {n} left out that leave programs less than the reserve"),
    };
    vec![match least {
        None => claim.missing(),
        Some(lead) => {
            let at = crate::format::multiple(lead.multiple);
            let note = format!("over {} at {at}{}{void}{starving}", lead.arm, hogs_suffix(lead.hogs));
            claim.value(Some(lead.ratio)).note(note)
        }
    }]
}

/// The least that an arm leaves of the CPU that a program has alone.
fn least_left(arm: &Arm) -> Option<(f64, &Point)> {
    let measured = arm.points.iter().filter(|point| point.void.is_none());
    measured.filter_map(|point| Some((point.user_of_alone?, point))).min_by(|a, b| a.0.total_cmp(&b.0))
}

fn control(document: &Document) -> Vec<Claim> {
    if only_forwards(document) {
        let guarded = document.arms.iter().filter(|arm| matches!(arm.role, Role::Weir | Role::Variant));
        let reserve = guarded.filter_map(|arm| arm.reserve).max_by(f64::total_cmp).unwrap_or(0.0);
        let controls = document.arms.iter().filter(|arm| arm.role == Role::Control);
        return controls
            .map(|arm| {
                let text = format!("{} fails P3: program's CPU / alone", arm.name);
                let claim =
                    Claim::new(Id::NoOp, &text).bound(Relation::Below, reserve - P3_MAX / 100.0, None);
                match least_left(arm) {
                    None => claim.missing(),
                    Some((share, point)) => {
                        claim.value(Some(share)).note(format!("least{}", at_multiple(point)))
                    }
                }
            })
            .collect();
    }
    let controls = document.arms.iter().filter(|arm| arm.role == Role::Control);
    controls
        .map(|arm| {
            let hogs = stats::hog_counts(arm).first().copied().unwrap_or(0);
            let ten = base_pps(document).and_then(|base| stats::goodput_at(arm, hogs, 10.0 * base));
            Claim::new(Id::NoOp, &format!("{} fails P1: its flatness at 10x", arm.name))
                .bound(Relation::Below, 0.95, None)
                .reading(flat(arm, hogs, ten))
        })
        .collect()
}

fn ledger(document: &Document) -> Vec<Claim> {
    let points = || document.arms.iter().flat_map(|arm| &arm.points);
    if points().next().is_none() {
        return Vec::new();
    }
    let trials: usize = points().map(|point| point.trials.len().max(1)).sum();
    // What the run says is checked against its own counts, and the sum of a point must not hide one trial's
    // surplus behind another's deficit.
    let unaccounted: u64 = points()
        .map(|point| {
            let of_trials = point
                .trials
                .iter()
                .map(|trial| rest(trial.unaccounted, trial.sent, trial.delivered, &trial.drops))
                .sum::<u64>();
            of_trials.max(rest(point.unaccounted, point.sent, point.delivered, &point.drops))
        })
        .sum();
    let text = format!("unaccounted packets in {trials} trials");
    vec![
        Claim::new(Id::Ledger, &text)
            .bound(Relation::Equal, 0.0, None)
            .show(0, "")
            .value(Some(unaccounted as f64)),
    ]
}

/// Packets of a ledger that are unaccounted for: as it says itself, or as its counts say, whichever is more.
fn rest(said: i64, sent: u64, delivered: u64, drops: &Drops) -> u64 {
    let explained = drops.values().sum::<u64>() + delivered;
    said.unsigned_abs().max(sent.abs_diff(explained))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
