//! What a caller may choose.

use std::path::PathBuf;
use std::time::Duration;

use crate::consumer::Kind;
use crate::rig::Cpus;
use crate::signal::Interrupt;
use crate::{Error, Result};

/// Options of every experiment; each uses those that concern it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Fewer arms, rates and trials: about a minute and a half.
    pub quick: bool,
    /// Length of a trial's window, 50 ms to 60 s; `None`: 1 s, quick 400 ms.
    pub duration: Option<Duration>,
    /// Trials of each point, 1 to 99; `None`: 3, quick 2.
    pub repeat: Option<u32>,
    /// Arms by name; `None`: all, quick: stock-rps, stock-timer and weir.
    pub arms: Option<Vec<String>>,
    /// Numbers of hogs, each 0 to 16; `None`: 0, quick 0 and 1.
    pub hogs: Option<Vec<u32>>,
    /// The program that reads.
    pub consumer: Kind,
    /// Work of the sink for each datagram, 0 to 1 ms.
    pub work: Duration,
    /// Receive buffer of the sink as given to SO_RCVBUF; `None` for the system's default.
    pub rcvbuf: Option<u32>,
    /// The weir program; `None`: the running executable if it is called weir, else the one beside it.
    pub weir: Option<PathBuf>,
    /// Directory of udp-sink and hog; `None`: beside the running executable.
    pub programs: Option<PathBuf>,
    /// Options passed to every guard, for instance `--quota 16`.
    pub guard: Vec<String>,
    /// Reserve of the guard in percent, 1 to 99.
    pub reserve: u8,
    /// More arms `weir-reserve-N`, for P3.
    pub reserves: Vec<u8>,
    /// Multiples of the base rate; `None`: those of the design, quick: fewer.
    pub multiples: Option<Vec<f64>>,
    /// Whether to measure at the wire's maximum.
    pub wire_max: bool,
    /// 1 x in packets/s, instead of a search.
    pub base_pps: Option<f64>,
    /// Kinds of flood in the experiment `innocents`, by name; `None`: all, quick: reader and closed-port.
    pub kinds: Option<Vec<String>>,
    /// Its rates in packets/s, each 1 k to 20 M; `None`: 0.1, 0.3, 1 and 3 M/s, quick: 1 M/s.
    pub rates: Option<Vec<f64>>,
    /// Pairs per rate in the experiment `below-saturation`, 1 to 99; `None`: 20, quick 6.
    pub pairs: Option<u32>,
    /// Onsets per condition in the experiment `onset`, 1 to 99; `None`: 10, quick 3.
    pub onsets: Option<u32>,
    /// Wire and host CPU; `None`: 0 and 1.
    pub cpus: Option<Cpus>,
    /// The experiment, for what is said of this run.
    pub experiment: &'static str,
    /// Runs although other programs use the CPUs.
    pub busy: bool,
    /// A void trial is repeated at most this often.
    pub retries: u32,
    /// Order of the arms within a round.
    pub seed: u64,
    /// Raised to end the experiment early.
    pub interrupt: Interrupt,
}

/// The large receive buffer, as given to SO_RCVBUF, of the arms whose name ends with `-512k`. A veth frame from the
/// source is charged with a page and its head, 4352 bytes, where a NIC's driver charges a small packet with a fifth of
/// it. With this buffer the socket holds as many datagrams, 240, as the system's default holds behind such a NIC; with
/// the system's default of 212,992 bytes it holds 49 here.
pub const RCVBUF_LARGE: u32 = 512 << 10;

impl Default for Options {
    fn default() -> Options {
        Options {
            quick: false,
            duration: None,
            repeat: None,
            arms: None,
            hogs: None,
            consumer: Kind::Sink,
            work: Duration::from_micros(1),
            rcvbuf: None,
            weir: None,
            programs: None,
            guard: Vec::new(),
            reserve: 20,
            reserves: Vec::new(),
            multiples: None,
            wire_max: true,
            base_pps: None,
            kinds: None,
            rates: None,
            pairs: None,
            onsets: None,
            cpus: None,
            experiment: "NAME",
            busy: false,
            retries: 3,
            seed: 1,
            interrupt: Interrupt::new(),
        }
    }
}

impl Options {
    /// # Errors
    /// One line about the first option that is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::Usage(text));
        if self.duration.is_some_and(|d| d < Duration::from_millis(50) || d > Duration::from_secs(60)) {
            return wrong("duration: 50 ms to 60 s".into());
        }
        let counts = [("repeat", self.repeat), ("pairs", self.pairs), ("onsets", self.onsets)];
        for (name, count) in counts {
            if count.is_some_and(|n| n == 0 || n > 99) {
                return wrong(format!("{name}: 1 to 99"));
            }
        }
        if self.hogs.iter().flatten().any(|n| *n > 16) {
            return wrong("hogs: at most 16".into());
        }
        if self.work > Duration::from_millis(1) {
            return wrong("work: at most 1 ms".into());
        }
        if std::iter::once(&self.reserve).chain(&self.reserves).any(|r| *r == 0 || *r > 99) {
            return wrong("reserve: 1 to 99 percent".into());
        }
        if self.multiples.iter().flatten().any(|m| !(0.001..=1000.0).contains(m)) {
            return wrong("multiples: 0.001 to 1000".into());
        }
        if self.base_pps.is_some_and(|b| !(100.0..=1e8).contains(&b)) {
            return wrong("base rate: 100 to 100 M packets/s".into());
        }
        if self.rates.iter().flatten().any(|r| !(1e3..=20e6).contains(r)) {
            return wrong("rates: 1000 to 20000000 packets/s".into());
        }
        Ok(())
    }

    pub(crate) fn window(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_millis(if self.quick { 400 } else { 1000 }))
    }

    /// Long enough for a takeover.
    pub(crate) fn warm_up(&self) -> Duration {
        Duration::from_millis(if self.quick { 200 } else { 300 })
    }

    pub(crate) fn repeat(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 2 } else { 3 })
    }

    pub(crate) fn hogs(&self) -> Vec<u32> {
        self.hogs.clone().unwrap_or(if self.quick { vec![0, 1] } else { vec![0] })
    }

    pub(crate) fn multiples(&self) -> Vec<f64> {
        let full = [0.1, 0.3, 0.5, 0.9, 1.0, 1.5, 2.0, 4.0, 10.0];
        let quick = [0.5, 1.0, 2.0, 4.0, 10.0];
        self.multiples.clone().unwrap_or_else(|| if self.quick { quick.to_vec() } else { full.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range_and_nonsense_is_not() {
        let ok = Options::default();
        assert!(ok.check().is_ok());
        assert!(Options { repeat: Some(0), ..ok.clone() }.check().is_err());
        assert!(Options { duration: Some(Duration::from_millis(49)), ..ok.clone() }.check().is_err());
        assert!(Options { reserves: vec![100], ..ok.clone() }.check().is_err());
        assert!(Options { hogs: Some(vec![17]), ..ok.clone() }.check().is_err());
        assert!(Options { rates: Some(vec![1e6, 100.0]), ..ok.clone() }.check().is_err());
        assert!(Options { base_pps: Some(f64::NAN), ..ok }.check().is_err());
    }
}
