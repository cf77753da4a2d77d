//! Reads the kernel once per interval and makes snapshots of it.

use crate::{Snapshot, snapshot, waits};
use kern::probes::{Probes, Reading};
use kern::raw::{Kind, Raw, Reader, Want};
use std::time::{SystemTime, UNIX_EPOCH};

/// Makes a [`Snapshot`] of each interval between two calls. It belongs to the network namespace of the thread that
/// opened it, and never waits.
pub struct Sampler {
    reader: Reader,
    watched: Vec<String>,
    last: Raw,
    probes: Option<(Probes, Reading)>,
    /// What probes do not tell here.
    missing: Vec<String>,
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
        Ok(Sampler { reader, watched, last, probes: None, missing: Vec::new() })
    }

    /// Attaches the probes: snapshots have [`Snapshot::probes`] from now on. What they cannot tell here, one line each, is
    /// returned, and stands in `missing` of all snapshots.
    pub fn probe(&mut self) -> &[String] {
        let inode = kern::netns::current_inode().ok().and_then(|inode| u32::try_from(inode).ok());
        match Probes::load(inode.unwrap_or(0)) {
            Ok(mut probes) => {
                self.missing = probes.missing().to_vec();
                // If it is refused, the first interval says so.
                let _ = probes.steer(steered(&self.last));
                let first = read(&mut probes, &self.last);
                self.probes = Some((probes, first));
            }
            Err(e) => self.missing = vec![e.to_string()],
        }
        &self.missing
    }

    /// The interval since the last call, or since this was opened.
    ///
    /// # Errors
    /// As [`Sampler::open`].
    pub fn sample(&mut self) -> kern::error::Result<Snapshot> {
        let now = self.reader.read()?;
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
        let mut made = snapshot(&self.last, &now, &self.watched, self.reader.host(), time_s);
        if let Some((probes, before)) = &mut self.probes {
            if let Err(e) = probes.steer(steered(&now)) {
                made.missing.push(e.to_string());
            }
            let after = read(probes, &now);
            waits::add(&mut made, before, &after, |slot| probes.reason(slot));
            *before = after;
        }
        made.missing.extend(self.missing.iter().cloned());
        self.last = now;
        Ok(made)
    }

    /// The reading that the next interval begins with.
    #[must_use]
    pub fn last(&self) -> &Raw {
        &self.last
    }
}

/// True if packets of some queue are spread over CPUs.
fn steered(raw: &Raw) -> bool {
    raw.devices.iter().flat_map(|d| &d.queues).any(|q| !q.rps.is_empty())
}

fn read(probes: &mut Probes, raw: &Raw) -> Reading {
    let cpus: Vec<u32> = raw.cpus.iter().map(|c| c.cpu).collect();
    let udp = raw.sockets.iter().filter(|s| s.kind == Kind::Udp && s.inode != 0);
    probes.read(&cpus, &udp.map(|s| s.inode).collect::<Vec<u64>>())
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
