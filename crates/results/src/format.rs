//! Numbers as people read them: digits are earned, above zero never prints as 0, "n/a" is what was not
//! measured.

use crate::document::{Relation, Verdict};

/// A multiple of the MLFRR in at most six characters up to 1e10: `0.25x`, `1.5x`, `10x`, `1.5e4x`.
pub fn multiple(n: f64) -> String {
    let text = match n {
        n if n >= 9999.5 => format!("{n:.1e}"),
        n if n >= 10.0 => format!("{n:.0}"),
        n if n >= 1.0 => trimmed(n, 1),
        n => trimmed(n, 2),
    };
    format!("{text}x")
}

/// `digits` after the point at most, without zeros at the end.
pub fn trimmed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// A rate in k/s with `digits` after the point; what is above zero and would print as 0 prints as `<` the
/// smallest.
pub fn kilo(pps: f64, digits: usize) -> String {
    at_least(pps / 1000.0, digits)
}

/// `value` with `digits` after the point, `<0.1` for what is above zero and too small.
pub fn at_least(value: f64, digits: usize) -> String {
    let smallest = 0.1_f64.powi(digits as i32);
    if value > 0.0 && value < smallest / 2.0 {
        return format!("<{smallest:.digits$}");
    }
    let text = format!("{value:.digits$}");
    let is_zero = text.starts_with('-') && text.chars().all(|c| matches!(c, '-' | '.' | '0'));
    if is_zero { text[1..].to_string() } else { text }
}

/// A rate inside a sentence, in k/s, with three digits that count: `405`, `45.2`, `2.31`, `0.04`.
pub fn kilo_said(pps: f64) -> String {
    let value = pps / 1000.0;
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        0.0 => "0".to_string(),
        v => at_least(v, 2),
    }
}

/// A share as percent with one digit: `98.5`; `<0.1` for what is above zero.
pub fn percent(share: f64) -> String {
    at_least(100.0 * share, 1)
}

/// A time in microseconds with three digits that count.
pub fn micros(us: f64) -> String {
    match us {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => at_least(v, 2),
    }
}

/// A count in groups of three: `884 222 930`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// The value of a claim, without its unit.
pub fn value(verdict: &Verdict) -> String {
    verdict.value.map_or("n/a".to_string(), |value| decimals(value, verdict))
}

/// What became of a claim. Words, not colour: what falls short does so in capitals.
pub fn judged(verdict: &Verdict) -> &'static str {
    match (verdict.holds, verdict.value) {
        (true, _) => "holds",
        (false, Some(_)) => "FALLS SHORT",
        (false, None) => "UNMEASURED",
    }
}

/// The bound of a claim, without its unit: `>= 0.95`.
pub fn bound(verdict: &Verdict) -> String {
    format!("{} {}", relation(verdict.relation), trimmed(verdict.bound, 3))
}

/// What the project would like to reach, without its unit, or `-`.
pub fn aim(verdict: &Verdict) -> String {
    verdict.aim.map_or("-".to_string(), |aim| format!("{} {}", relation(verdict.relation), trimmed(aim, 3)))
}

/// The value with the digits of its claim, and with as many more as it takes not to look equal to a bound
/// that it misses: 0.9498 must not print as 0.950 beside `>= 0.95 FALLS SHORT`.
/// From a million on it is an exponent's.
fn decimals(value: f64, verdict: &Verdict) -> String {
    if value.abs() >= 1e6 {
        return format!("{value:.2e}");
    }
    let first = usize::from(verdict.digits);
    let misleads =
        |text: &str| text.parse::<f64>().is_ok_and(|shown| shown == verdict.bound && value != shown);
    let text = (first..first + 6).map(|digits| at_least(value, digits)).find(|text| !misleads(text));
    text.unwrap_or_else(|| format!("{value}"))
}

/// The sign of a relation.
pub fn relation(relation: Relation) -> &'static str {
    match relation {
        Relation::AtLeast => ">=",
        Relation::AtMost => "<=",
        Relation::Equal => "=",
        Relation::Below => "<",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_is_never_zero() {
        assert_eq!(kilo(3.0, 0), "<1");
        assert_eq!(kilo(0.0, 0), "0");
        assert_eq!(kilo(700.0, 0), "1");
        assert_eq!(at_least(0.04, 1), "<0.1");
        assert_eq!(percent(0.00001), "<0.1");
        assert_eq!(kilo_said(1.0), "<0.01");
    }

    #[test]
    fn multiples_are_short() {
        let shown: Vec<String> =
            [0.25, 0.5, 1.0, 1.5, 2.0, 10.0, 16.98, 9999.4, 5.1e7].map(multiple).to_vec();
        assert_eq!(shown, ["0.25x", "0.5x", "1x", "1.5x", "2x", "10x", "17x", "9999x", "5.1e7x"]);
        assert_eq!(trimmed(100.0, 0), "100");
    }

    #[test]
    fn counts_have_groups() {
        assert_eq!([0, 999, 1000, 884_222_930].map(count), ["0", "999", "1 000", "884 222 930"]);
    }

    #[test]
    fn a_miss_never_looks_like_the_bound() {
        let verdict = Verdict {
            id: "P1".into(),
            claim: String::new(),
            value: Some(0.94996),
            relation: Relation::AtLeast,
            bound: 0.95,
            aim: None,
            digits: 3,
            unit: String::new(),
            holds: false,
            note: None,
        };
        assert_eq!(value(&verdict), "0.94996");
        assert_eq!(bound(&verdict), ">= 0.95");
        assert_eq!(value(&Verdict { value: Some(0.9312), ..verdict.clone() }), "0.931");
        let short = Verdict { holds: false, ..verdict.clone() };
        assert_eq!((judged(&Verdict { holds: true, ..verdict }), judged(&short)), ("holds", "FALLS SHORT"));
        let none = Verdict { value: None, ..short };
        assert_eq!((value(&none).as_str(), judged(&none)), ("n/a", "UNMEASURED"));
    }
}
