//! The values of the guard's options, the same text on the command line and in the file. Each parser answers with the value
//! or with what is wrong and what to give instead; the caller puts the option's name or the place before it.

use clap::ValueEnum;
use kern::cpus::CpuSet;
use policy::classes::{self, Rule, RuleError};
use std::time::Duration;

/// Share that programs keep, percent.
pub fn reserve(text: &str) -> Result<u8, String> {
    match whole(text, "1 to 95")? {
        ..=0 => Err("programs would get no CPU; give 1 to 95".into()),
        n @ 1..=95 => Ok(n as u8),
        96..=99 => Err("packets would get less than 5 % of a CPU; give 1 to 95".into()),
        _ => Err("packets would get no CPU; give 1 to 95".into()),
    }
}

/// Packets of one turn. A turn hands up twice the kernel's busy-poll budget, hence even.
pub fn quota(text: &str) -> Result<u16, String> {
    match whole(text, "an even number, 2 to 256")? {
        n @ 2..=256 if n % 2 == 0 => Ok(n as u16),
        n @ 3..=255 => Err(format!("odd, and a turn hands up an even number; give {} or {}", n - 1, n + 1)),
        1 => Err("odd, and a turn hands up an even number; give 2".into()),
        _ => Err("out of range; give an even number, 2 to 256".into()),
    }
}

/// A water mark, percent of a consumer's capacity.
pub fn level(text: &str) -> Result<u8, String> {
    match whole(text, "1 to 99")? {
        n @ 1..=99 => Ok(n as u8),
        _ => Err("out of range; give 1 to 99".into()),
    }
}

/// Span over which the budget holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// From the depth of the ring, [`policy::host::PERIOD`].
    Auto,
    /// 1 ms to 100 ms.
    Fixed(Duration),
}

/// `auto`, or 1 ms to 100 ms.
pub fn period(text: &str) -> Result<Period, String> {
    if text == "auto" {
        return Ok(Period::Auto);
    }
    duration(text, Duration::from_millis(1), Duration::from_millis(100), "auto or 1ms to 100ms")
        .map(Period::Fixed)
}

/// Longest inhibit, 1 ms to 1 s.
pub fn timeout(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(1), Duration::from_secs(1), "1ms to 1s")
}

/// A class rule; `none`, which empties the default, is the caller's.
pub fn rule(text: &str) -> Result<Rule, String> {
    Rule::parse(text).map_err(|err| match err {
        RuleError::Value(range) => format!("not a rule; give {range}"),
        RuleError::Beyond(prefix) => format!("has bits beyond its prefix; give {prefix}"),
        RuleError::Unknown => match crate::out::nearest(text, classes::NAMES) {
            Some(name) => format!("unknown rule; did you mean {name}?"),
            None => format!(
                "unknown rule; give tcp/PORT, udp/PORT, src/PREFIX, dst/PREFIX, dscp/NAME, vlan/ID, {}",
                crate::out::listed(&classes::NAMES)
            ),
        },
    })
}

/// A number with a unit: us (or µs), ms, s. Decimals are allowed: `1.5ms`.
pub fn duration(text: &str, least: Duration, most: Duration, range: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let nanoseconds_per_unit: f64 = match unit {
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "" => return Err(format!("no unit; give {range}")),
        _ => return Err(format!("not a time; give {range}")),
    };
    let number: f64 = number.parse().map_err(|_| format!("not a time; give {range}"))?;
    // The product is exact enough: the longest time has 11 digits of nanoseconds, a float holds 15.
    let value = Duration::try_from_secs_f64((number * nanoseconds_per_unit).round() / 1e9)
        .map_err(|_| format!("out of range; give {range}"))?;
    if value < least || value > most {
        return Err(format!("out of range; give {range}"));
    }
    Ok(value)
}

/// A whole number in a `range`, which the error names.
pub fn whole(text: &str, range: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("not a whole number; give {range}"))
}

/// `0`, `0-3`, `0,2-3`.
pub fn cpus(text: &str) -> Result<CpuSet, String> {
    let set: CpuSet = text.parse().map_err(|_| "not a list of CPUs; give numbers, as 0,2-3".to_owned())?;
    if set.is_empty() { Err("names no CPU; give numbers, as 0,2-3".into()) } else { Ok(set) }
}

/// How busy sources are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The best that the device and the kernel can do.
    Auto,
    /// weir's poller takes busy sources over.
    Poll,
    /// The kernel's threaded NAPI.
    Thread,
    /// Interrupts as always; an XDP program drops what is for full sockets.
    Shed,
    /// Pollers on net CPUs take every source over, as soon as packets arrive.
    Net,
    /// A guard that changes nothing: the control arm of the lab.
    #[value(hide = true)]
    None,
}

impl Mode {
    /// Sources may be taken over by a poller.
    #[cfg_attr(no_bpf, allow(dead_code, reason = "only a guard asks"))]
    pub fn takes_over(self) -> bool {
        matches!(self, Mode::Auto | Mode::Poll | Mode::Net)
    }
}

/// A mechanism that an arm of the lab switches off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Ablate {
    /// Levels are read, but nothing is paused or inhibited for them.
    Feedback,
    /// The poller may take the whole CPU.
    Budget,
    /// A turn takes as much as the kernel's own poll.
    Quota,
    /// A source that is polled stays so for ever: pure polling.
    Release,
    /// All CPUs of mode net are net CPUs all the time, and sources are dealt out among them.
    Resize,
    /// A net CPU counts as full at a quarter of its time: where there are too few CPUs to fill one.
    FullCpu,
}

/// How the poller is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sched {
    /// The one that was measured to be better.
    Auto,
    /// SCHED_FIFO, priority 1, that sleeps when it must.
    Fifo,
    /// SCHED_OTHER that yields after each turn.
    Other,
}

/// A value out of a fixed set of words.
pub fn word<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let words: Vec<String> = T::value_variants()
            .iter()
            .filter_map(ValueEnum::to_possible_value)
            .filter(|value| !value.is_hide_set())
            .map(|value| value.get_name().to_owned())
            .collect();
        choose(text, words.iter().map(String::as_str))
    })
}

/// What to say when `text` is none of `words`.
pub fn choose<'a>(text: &str, words: impl Iterator<Item = &'a str> + Clone) -> String {
    match crate::out::nearest(text, words.clone()) {
        Some(word) => format!("no such choice; did you mean {word}?"),
        None => format!("no such choice; choose from {}", crate::out::listed(&words.collect::<Vec<_>>())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_says_who_would_starve() {
        assert_eq!(reserve("1"), Ok(1));
        assert_eq!(reserve("95"), Ok(95));
        for (text, why) in [
            ("0", "programs would get no CPU"),
            ("-1", "programs would get no CPU"),
            ("96", "less than 5 %"),
            ("100", "packets would get no CPU"),
            ("abc", "not a whole number"),
            ("20.5", "not a whole number"),
            ("", "not a whole number"),
            ("99999999999999999999", "not a whole number"),
        ] {
            let err = reserve(text).unwrap_err();
            assert!(err.contains(why) && err.ends_with("give 1 to 95"), "{text}: {err}");
        }
    }

    #[test]
    fn quota_is_even_and_bounded() {
        for n in ["2", "16", "256"] {
            assert_eq!(quota(n), Ok(n.parse().unwrap()));
        }
        assert!(quota("15").unwrap_err().ends_with("give 14 or 16"));
        assert!(quota("255").unwrap_err().ends_with("give 254 or 256"));
        assert!(quota("1").unwrap_err().ends_with("give 2"));
        for text in ["0", "257", "258", "-2", "x"] {
            assert!(quota(text).unwrap_err().ends_with("an even number, 2 to 256"), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit_and_keep_their_range() {
        assert_eq!(timeout("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(timeout("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(timeout("1500us"), timeout("1500µs"));
        assert_eq!(timeout("1s"), Ok(Duration::from_secs(1)));
        assert!(timeout("10").unwrap_err().starts_with("no unit"));
        assert!(timeout("").unwrap_err().starts_with("no unit"));
        for text in ["500us", "1001ms", "2s", "0ms", "99999999999999999999s"] {
            assert!(timeout(text).unwrap_err().starts_with("out of range"), "{text}");
        }
        for text in ["ms", "-5ms", "5 ms", "1.2.3ms", "1h", "nanms", "infs", "1e3ms"] {
            assert!(timeout(text).unwrap_err().starts_with("not a time"), "{text}");
        }
    }

    #[test]
    fn periods() {
        assert_eq!(period("auto"), Ok(Period::Auto));
        assert_eq!(period("100ms"), Ok(Period::Fixed(Duration::from_millis(100))));
        assert!(period("101ms").is_err() && period("999us").is_err() && period("AUTO").is_err());
    }

    #[test]
    fn rules_say_what_to_give() {
        for text in ["ssh", "tcp/22", "src 10.0.0.0/8", "src/2001:db8::/32", "dscp/cs6", "vlan/7"] {
            assert_eq!(rule(text).unwrap().text(), text);
        }
        for (text, why) in [
            ("shh", "unknown rule; did you mean ssh?"),
            ("tcp/0", "not a rule; give a port, 1 to 65535"),
            ("udp/x", "not a rule; give a port, 1 to 65535"),
            ("src 10.0.0.1/8", "has bits beyond its prefix; give 10.0.0.0/8"),
            ("dst/2001:db8::1/64", "has bits beyond its prefix; give 2001:db8::/64"),
            ("dscp/cs9", "not a rule; give cs0 to cs7, af11 to af43, ef, or 0 to 63"),
            ("vlan/4095", "not a rule; give a VLAN id, 1 to 4094"),
        ] {
            assert_eq!(rule(text).unwrap_err(), why, "{text}");
        }
        assert!(rule("frobnicate").unwrap_err().starts_with("unknown rule; give tcp/PORT, "));
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(cpus("3,0-1,1").unwrap().to_string(), "0-1,3");
        for text in ["a", "0,", "0-", "-1", "3-1", "0-4294967295"] {
            assert!(cpus(text).unwrap_err().starts_with("not a list"), "{text}");
        }
        assert!(cpus("").unwrap_err().starts_with("names no CPU"));
    }

    #[test]
    fn words_have_a_nearest_word() {
        assert_eq!(word::<Mode>("poll"), Ok(Mode::Poll));
        assert_eq!(word::<Mode>("pol").unwrap_err(), "no such choice; did you mean poll?");
        let err = word::<Mode>("turbo").unwrap_err();
        assert_eq!(err, "no such choice; choose from auto, poll, thread, shed, net");
    }
}
