//! The values of options, beside those of the guard. Each parser answers with the value or with what is wrong and what to give
//! instead; the caller puts the option's name before it.

pub use guard::parse::*;
use policy::screen;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn bounded_numbers() {
        assert_eq!((between::<1, 99>("1"), between::<1, 99>("99")), (Ok(1), Ok(99)));
        for text in ["0", "100", "-1", "4294967297"] {
            assert_eq!(between::<1, 99>(text).unwrap_err(), "out of range; give 1 to 99", "{text}");
        }
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        assert!(seed("-1").is_err() && seed("18446744073709551616").is_err());
    }
}
