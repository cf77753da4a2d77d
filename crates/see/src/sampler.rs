//! Reads the kernel once per interval and makes snapshots of it.

use crate::{Snapshot, snapshot};
use kern::raw::{Raw, Reader, Want};
use std::time::{SystemTime, UNIX_EPOCH};

/// Makes a [`Snapshot`] of each interval between two calls. It belongs to the network namespace of the thread that
/// opened it, and never waits.
pub struct Sampler {
    reader: Reader,
    watched: Vec<String>,
    last: Raw,
}

impl Sampler {
    /// Takes the first reading. `want.devices` are also the interfaces that snapshots show; none: all that receive.
    ///
    /// # Errors
    /// If the kernel shows neither interfaces nor counters.
    pub fn open(want: Want) -> kern::error::Result<Sampler> {
        let watched = want.devices.clone();
        let mut reader = Reader::open(want);
        let last = reader.read()?;
        Ok(Sampler { reader, watched, last })
    }

    /// The interval since the last call, or since this was opened.
    ///
    /// # Errors
    /// As [`Sampler::open`].
    pub fn sample(&mut self) -> kern::error::Result<Snapshot> {
        let now = self.reader.read()?;
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
        let made = snapshot(&self.last, &now, &self.watched, self.reader.host(), time_s);
        self.last = now;
        Ok(made)
    }

    /// The reading that the next interval begins with.
    #[must_use]
    pub fn last(&self) -> &Raw {
        &self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_host() {
        let mut sampler = Sampler::open(Want::default()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let snapshot = sampler.sample().unwrap();
        assert!(snapshot.interval_s >= 0.05 && !snapshot.cpus.is_empty());
        let text = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
    }
}
