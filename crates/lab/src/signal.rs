//! SIGINT and SIGTERM end an experiment between two steps, so that every guard value is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Longest time between two looks at the flag.
const STEP: Duration = Duration::from_millis(20);

/// A flag that whoever handles signals raises.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// A flag that is down.
    #[must_use]
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Ends the experiment at its next step.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag, for a signal handler of the caller's.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// # Errors
    /// [`Error::Interrupted`] once the flag is up.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Sleeps, but not past the flag.
    ///
    /// # Errors
    /// [`Error::Interrupted`] once the flag is up.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(STEP));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_flag_ends_a_sleep() {
        let interrupt = Interrupt::new();
        let other = interrupt.clone();
        let start = Instant::now();
        let raise = std::thread::spawn(move || other.raise());
        let answer = interrupt.sleep(Duration::from_secs(60));
        assert!(matches!(answer, Err(Error::Interrupted)));
        assert!(start.elapsed() < Duration::from_secs(30));
        raise.join().unwrap();
        assert!(interrupt.check().is_err());
    }
}
