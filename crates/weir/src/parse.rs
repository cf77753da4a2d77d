//! The values of options, the same text on the command line and in the file. Each parser answers with the value
//! or with what is wrong and what to give instead; the caller puts the option's name or the place before it.

use clap::ValueEnum;
use kern::cpus::CpuSet;
use policy::classes::{self, Class, Rule, RuleError};
use policy::screen;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
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

/// `key=value` of a simulated machine; what it means is checked with the machine.
pub fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.into(), value.into())),
        _ => Err("not a setting; give KEY=VALUE".into()),
    }
}

/// `I/N`: part `I`, from 0, of `N`.
pub fn part(text: &str) -> Result<sim::Part, String> {
    let most = sim::shard::PARTS_MAX;
    let (index, of) = text.split_once('/').ok_or("not a part of a run; give I/N, as 0/8 to 7/8 of eight")?;
    let (Ok(index), Ok(of)) = (index.parse::<u32>(), of.parse::<u32>()) else {
        return Err("not a part of a run; give I/N, as 0/8 to 7/8 of eight".into());
    };
    match of {
        _ if of == 0 || of > most => Err(format!("not a number of parts; give 1 to {most} after the /")),
        _ if index >= of => Err(format!("parts are counted from 0; give 0/{of} to {}/{of}", of - 1)),
        _ => Ok(sim::Part { index, of }),
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

/// Where the page is served.
pub fn web(text: &str) -> Result<SocketAddr, String> {
    serve::parse_address(text, serve::WEB_PORT)
}

/// Where metrics are served.
pub fn metrics(text: &str) -> Result<SocketAddr, String> {
    serve::parse_address(text, serve::METRICS_PORT)
}

/// Length of one trial in the lab, 50 ms to 60 s.
pub fn trial(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(50), Duration::from_secs(60), "50ms to 60s")
}

/// Time between two readings of the kernel's counters, 100 ms to 60 s.
pub fn interval(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(100), Duration::from_secs(60), "100ms to 60s")
}

/// Window of a report, 500 ms to 60 s: in less than that times of CPUs are too coarse.
pub fn window(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(500), Duration::from_secs(60), "500ms to 60s")
}

/// How long a host is watched, 1 s to 10 min.
pub fn watch(text: &str) -> Result<Duration, String> {
    const RANGE: &str = "1s to 10min";
    let minutes =
        text.strip_suffix("min").map(|n| n.parse::<u64>().map_err(|_| format!("not a time; give {RANGE}")));
    let seconds = minutes.transpose()?.map(|n| format!("{}s", n.saturating_mul(60)));
    duration(seconds.as_deref().unwrap_or(text), Duration::from_secs(1), Duration::from_secs(600), RANGE)
}

/// Bytes, also as `512K` or `4M`, up to 2 G.
pub fn bytes(text: &str) -> Result<u64, String> {
    const RANGE: &str = "bytes, as 212992, 512K or 4M, at most 2047M";
    let (number, unit) = match text.trim_end_matches(['k', 'K', 'M']) {
        number if number.len() == text.len() => (number, 1),
        number if number.len() + 1 == text.len() && text.ends_with('M') => (number, 1 << 20),
        number if number.len() + 1 == text.len() => (number, 1 << 10),
        _ => return Err(format!("not a size; give {RANGE}")),
    };
    let number: u64 = number.parse().map_err(|_| format!("not a size; give {RANGE}"))?;
    let bytes = number.checked_mul(unit).filter(|n| (1..=2047 << 20).contains(n));
    bytes.ok_or_else(|| format!("out of range; give {RANGE}"))
}

/// CPU time per packet in microseconds.
pub fn work_us(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (0.0..=1e6).contains(n));
    number.ok_or_else(|| "not a time; give 0 to 1000000 microseconds".into())
}

/// Work of the lab's sink per datagram, 0 to 1 ms.
pub fn work(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, Duration::from_millis(1), "0us to 1ms")
}

/// A rate as a multiple of 1 x.
pub fn multiple(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (0.001..=1000.0).contains(n));
    number.ok_or_else(|| "not a multiple; give 0.001 to 1000".into())
}

/// Wire and host CPU, `0,1`.
pub fn cpu_pair(text: &str) -> Result<(usize, usize), String> {
    let pair = text.split_once(',').and_then(|(wire, host)| Some((wire.parse().ok()?, host.parse().ok()?)));
    pair.ok_or_else(|| "not two CPUs; give that of the wire and that of the host, as 0,1".into())
}

/// A class rule; `none`, which empties the default, is the caller's.
pub fn rule(text: &str) -> Result<Rule, String> {
    Rule::parse(text, Class::Protected).map_err(|err| match err {
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

/// A rule of `weir screen`.
pub fn screen_rule(action: screen::Action, text: &str) -> Result<screen::Rule, String> {
    screen::Rule::parse(action, text).map_err(|wrong| match text.get(wrong.at) {
        Some(part) if part != text => format!("{}: {}", crate::out::shown(part), wrong.why),
        _ => wrong.why,
    })
}

/// One queue of netfilter, or a range of at most 64.
pub fn queues(text: &str) -> Result<RangeInclusive<u16>, String> {
    const RANGE: &str = "a number, or up to 64 as 0-3";
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u16>().ok();
    let (first, last) = number(first).zip(number(last)).ok_or_else(|| format!("not queues; give {RANGE}"))?;
    match last.checked_sub(first) {
        Some(..64) => Ok(first..=last),
        Some(_) => Err(format!("too many queues; give {RANGE}")),
        None => Err(format!("from the larger to the smaller number; give {last}-{first}")),
    }
}

/// A number with a unit: us (or µs), ms, s. Decimals are allowed: `1.5ms`.
fn duration(text: &str, least: Duration, most: Duration, range: &str) -> Result<Duration, String> {
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

fn whole(text: &str, range: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("not a whole number; give {range}"))
}

/// A whole number from `LEAST` to `MOST`.
pub fn between<const LEAST: u32, const MOST: u32>(text: &str) -> Result<u32, String> {
    let range = format!("{LEAST} to {MOST}");
    let number = whole(text, &range)?;
    u32::try_from(number)
        .ok()
        .filter(|n| (LEAST..=MOST).contains(n))
        .ok_or_else(|| format!("out of range; give {range}"))
}

/// Any 64-bit number.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a whole number; give 0 to {}", u64::MAX))
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
    fn sizes_and_long_times() {
        assert_eq!((bytes("212992"), bytes("512K"), bytes("4M")), (Ok(212_992), Ok(524_288), Ok(4_194_304)));
        assert!(
            ["", "M", "4KM", "4G", "-1", "0", "2048M", "99999999999999999999"]
                .iter()
                .all(|t| bytes(t).is_err())
        );
        assert_eq!(
            (watch("90s"), watch("2min")),
            (Ok(Duration::from_secs(90)), Ok(Duration::from_secs(120)))
        );
        assert!(["", "min", "11min", "0.5s", "10"].iter().all(|t| watch(t).is_err()));
        assert_eq!(work_us("0.8"), Ok(0.8));
        assert!(["-1", "NaN", "1us"].iter().all(|t| work_us(t).is_err()));
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
    fn lab_values() {
        assert_eq!((multiple("0.5"), multiple("10")), (Ok(0.5), Ok(10.0)));
        for text in ["0", "-1", "nan", "inf", "1001", "x"] {
            assert!(multiple(text).unwrap_err().ends_with("give 0.001 to 1000"), "{text}");
        }
        assert_eq!(cpu_pair("0,1"), Ok((0, 1)));
        assert!(cpu_pair("0").is_err() && cpu_pair("0,1,2").is_err() && cpu_pair("-1,0").is_err());
        assert_eq!((work("0us"), trial("50ms")), (Ok(Duration::ZERO), Ok(Duration::from_millis(50))));
        assert!(work("2ms").is_err() && trial("61s").is_err());
    }

    #[test]
    fn parts_of_a_run() {
        assert_eq!(part("7/8"), Ok(sim::Part { index: 7, of: 8 }));
        assert_eq!(part("0/1024").map(|p| p.to_string()), Ok("0/1024".into()));
        for (text, why) in
            [("8/8", "give 0/8 to 7/8"), ("0/0", "give 1 to 1024"), ("0/1025", "give 1 to 1024")]
        {
            assert!(part(text).unwrap_err().contains(why), "{text}");
        }
        for text in ["", "8", "/8", "1/", "-1/8", "1/8/2", "a/b"] {
            assert!(part(text).unwrap_err().contains("give I/N"), "{text}");
        }
    }

    #[test]
    fn ranges_of_queues() {
        assert_eq!((queues("7"), queues("0-3"), queues("0-63")), (Ok(7..=7), Ok(0..=3), Ok(0..=63)));
        for (text, fix) in [
            ("", "as 0-3"),
            ("-1", "not queues"),
            ("0-64", "too many"),
            ("65536", "not queues"),
            ("3-1", "give 1-3"),
        ] {
            assert!(queues(text).unwrap_err().contains(fix), "{text}");
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
    fn bounded_numbers() {
        assert_eq!((between::<1, 99>("1"), between::<1, 99>("99")), (Ok(1), Ok(99)));
        for text in ["0", "100", "-1", "4294967297"] {
            assert_eq!(between::<1, 99>(text).unwrap_err(), "out of range; give 1 to 99", "{text}");
        }
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        assert!(seed("-1").is_err() && seed("18446744073709551616").is_err());
    }

    #[test]
    fn words_have_a_nearest_word() {
        assert_eq!(word::<Mode>("poll"), Ok(Mode::Poll));
        assert_eq!(word::<Mode>("pol").unwrap_err(), "no such choice; did you mean poll?");
        let err = word::<Mode>("turbo").unwrap_err();
        assert_eq!(err, "no such choice; choose from auto, poll, thread, shed, net");
    }
}
