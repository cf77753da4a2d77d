//! Claims of single experiments, judged over the panels of their document, so that the parts of a run that are merged give the
//! same verdict as one run.

use results::{Document, Mark, Relation, Verdict};

/// What an experiment claims.
#[derive(Debug)]
pub struct Claims {
    /// As a scenario names them.
    pub name: &'static str,
    /// Judges the document.
    pub judge: fn(&Document) -> Vec<Verdict>,
}

/// All of them.
pub const ALL: &[Claims] = &[
    Claims { name: "place-auto", judge: place_auto },
    Claims { name: "place-rss", judge: place_rss },
    Claims { name: "place-spread", judge: place_spread },
    Claims { name: "accept-zipf", judge: |document| near_ideal("accept-zipf", document) },
    Claims { name: "accept-stall", judge: |document| near_ideal("accept-stall", document) },
    Claims { name: "accept-mixed", judge: |document| near_ideal("accept-mixed", document) },
];

/// What a layout that was planted badly has to gain.
const GAIN: f64 = 0.1;
/// Layouts of ten that are planted badly, at least.
const PLANTED: f64 = 3.0;
/// What is no difference, of the value: a full program reads the same to a packet, whatever the seed.
const RESOLUTION: f64 = 0.001;
/// What CPUs carry that share the packets of one, against one CPU.
const SPREAD: [(f64, f64); 2] = [(2.0, 1.7), (8.0, 6.0)];
/// What few queues with flows carry after auto, against all of them.
const PARTED: f64 = 0.95;
/// Largest p99 of balanced queues, against one ideal queue.
const NEAR: f64 = 1.2;
/// And against those that nothing balances: a simulated p99 has three digits.
const NO_WORSE: f64 = 1.02;
/// Beginnings of the titles of the panels.
const GOODPUT: &str = "goodput";
const WAIT: &str = "p99";

/// A layout, before and after.
#[derive(Clone, Copy, Debug)]
struct Pair {
    layout: f64,
    before: Mark,
    after: Mark,
}

impl Pair {
    /// What the trials without a change lie apart.
    fn spread(&self) -> f64 {
        let spread = self.before.high.unwrap_or(self.before.y) - self.before.low.unwrap_or(self.before.y);
        spread.max(RESOLUTION * self.before.y)
    }

    /// By how much it is worse, beyond what chance does; 0 if it is not.
    fn worse(&self, more_is_better: bool) -> f64 {
        let worse = if more_is_better { self.before.y - self.after.y } else { self.after.y - self.before.y };
        (worse - self.spread()).max(0.0)
    }

    fn ratio(&self) -> f64 {
        self.after.y / self.before.y
    }
}

fn pairs(document: &Document, title: &str, after: &str) -> Vec<Pair> {
    let Some(panel) = document.panels.iter().find(|panel| panel.title.starts_with(title)) else {
        return Vec::new();
    };
    let marks = |name: &str| panel.lines.iter().find(|line| line.name == name).map(|line| &line.marks);
    let (Some(before), Some(after)) = (marks("drawn"), marks(after)) else { return Vec::new() };
    let of = |before: &Mark| {
        let after = after.iter().find(|mark| mark.x == before.x)?;
        Some(Pair { layout: before.x, before: *before, after: *after })
    };
    before.iter().filter_map(of).collect()
}

/// The largest ratio of two arms of a panel over its points; none if there are none.
fn largest(document: &Document, title: &str, arm: &str, other: &str) -> Option<f64> {
    let panel = document.panels.iter().find(|panel| panel.title.starts_with(title))?;
    let marks = |name: &str| panel.lines.iter().find(|line| line.name == name).map(|line| &line.marks);
    let (ours, theirs) = (marks(arm)?, marks(other)?);
    let ratio = |mark: &Mark| Some(mark.y / theirs.iter().find(|other| other.x == mark.x)?.y);
    ours.iter().filter_map(ratio).max_by(f64::total_cmp)
}

/// The choice of `weir accept` keeps the p99 near that of one queue without a lock, and is never worse than no choice (BH-20).
fn near_ideal(id: &str, document: &Document) -> Vec<Verdict> {
    let against = |other, bound| {
        let text = format!("p99 of the response: spill / {other}, the largest");
        let value = largest(document, "response, p99", "spill", other);
        Verdict { id: id.into(), ..claim(&text, value, Relation::AtMost, bound, 2) }
    };
    vec![against("ideal", NEAR), against("own", NO_WORSE)]
}

fn claim(text: &str, value: Option<f64>, relation: Relation, bound: f64, digits: u8) -> Verdict {
    of("place-auto", text, value, relation, bound, digits)
}

fn of(id: &str, text: &str, value: Option<f64>, relation: Relation, bound: f64, digits: u8) -> Verdict {
    let holds = value.is_some_and(|value| match relation {
        Relation::AtLeast => value >= bound,
        Relation::AtMost => value <= bound,
        Relation::Equal => value == bound,
        Relation::Below => value < bound,
    });
    Verdict {
        id: id.into(),
        claim: text.into(),
        value,
        relation,
        bound,
        aim: None,
        digits,
        unit: String::new(),
        holds,
        note: None,
    }
}

/// Layouts by number, with the ratio of after to before; none if there are none.
fn named(pairs: &[&Pair]) -> Option<String> {
    let one = |pair: &&Pair| format!("layout {}: {:.2} of before", pair.layout, pair.ratio());
    let all: Vec<String> = pairs.iter().map(one).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Goodput of an arm at a point.
fn goodput(document: &Document, arm: &str, x: f64) -> Option<f64> {
    let panel = document.panels.iter().find(|panel| panel.title.starts_with(GOODPUT))?;
    let line = panel.lines.iter().find(|line| line.name == arm)?;
    Some(line.marks.iter().find(|mark| mark.x == x)?.y)
}

/// However few queues RSS gives flows to, the host carries as much once they are parted.
fn place_rss(document: &Document) -> Vec<Verdict> {
    let at = |queues| goodput(document, "auto", queues);
    let of_one = at(1.0).zip(at(8.0).filter(|y| *y > 0.0)).map(|(one, all)| one / all);
    let text = "goodput after auto, flows on one queue of 8 / on all";
    vec![of("place-rss", text, of_one, Relation::AtLeast, PARTED, 2)]
}

/// More CPUs that are given the packets of one carry nearly as much more.
fn place_spread(document: &Document) -> Vec<Verdict> {
    let at = |arm: &str, cpus: f64| goodput(document, arm, cpus);
    let one = at("hot", 1.0).filter(|y| *y > 0.0);
    let claim = |(cpus, bound): (f64, f64)| {
        let text = format!("goodput of {cpus} CPUs after auto / of one CPU");
        let gain = at("auto", cpus).zip(one).map(|(all, one)| all / one);
        of("place-spread", &text, gain, Relation::AtLeast, bound, 2)
    };
    SPREAD.map(claim).to_vec()
}

/// No layout is worse beyond its A/A spread; all that are planted badly gain a tenth of goodput, and at least three of p99 too.
/// A packet that is lost counts in the p99 as one that never arrives.
fn place_auto(document: &Document) -> Vec<Verdict> {
    let (goodput, p99) = (pairs(document, GOODPUT, "auto"), pairs(document, WAIT, "auto"));
    let planted = pairs(document, "planted", "drawn");
    let is_planted =
        |pair: &&Pair| planted.iter().any(|other| other.layout == pair.layout && other.before.y > 0.0);
    let least = goodput.iter().filter(is_planted).map(Pair::ratio).min_by(f64::total_cmp);
    let sooner = |pair: &&Pair| is_planted(pair) && pair.ratio() <= 1.0 - GAIN;
    let sooner = (!p99.is_empty()).then(|| p99.iter().filter(sooner).count() as f64);
    let count = planted.iter().filter(is_planted).count() as f64;
    let less: Vec<&Pair> = goodput.iter().filter(|pair| pair.worse(true) > 0.0).collect();
    let longer: Vec<&Pair> = p99.iter().filter(|pair| pair.worse(false) > 0.0).collect();
    let of = |found: &[&Pair], pairs: &[Pair]| (!pairs.is_empty()).then_some(found.len() as f64);
    let mut verdicts = vec![
        Verdict {
            note: named(&less),
            ..claim("layouts with less goodput, beyond A/A", of(&less, &goodput), Relation::Equal, 0.0, 0)
        },
        Verdict {
            note: named(&longer),
            ..claim("layouts with a longer p99, beyond A/A", of(&longer, &p99), Relation::Equal, 0.0, 0)
        },
        claim("layouts planted badly", Some(count), Relation::AtLeast, PLANTED, 0),
        claim("least goodput of these, after / before", least, Relation::AtLeast, 1.0 + GAIN, 2),
        claim("those of them whose p99 is shorter by a tenth", sooner, Relation::AtLeast, PLANTED, 0),
    ];
    // The check itself: a planner that is broken falls through.
    let piled = pairs(document, GOODPUT, "piled");
    if !piled.is_empty() {
        let fell = piled.iter().filter(|pair| pair.worse(true) > 0.0).count() as f64;
        verdicts.push(claim("layouts that a broken planner worsens", Some(fell), Relation::AtLeast, 1.0, 0));
    }
    verdicts
}
