//! Every inhibit ends: at low water, or at its timeout (MR-22).

use crate::engine::Nanos;

/// Watches inhibits from outside the policy.
#[derive(Clone, Debug)]
pub struct Inhibits {
    limit: Nanos,
    since: Vec<Option<Nanos>>,
    faults: Vec<String>,
    /// Longest inhibit that has ended, ns.
    pub longest: Nanos,
    /// Inhibits so far.
    pub count: u64,
}

impl Inhibits {
    /// `limit` ns is the longest that any of `consumers` may be inhibited.
    pub fn new(consumers: usize, limit: Nanos) -> Self {
        Self { limit, since: vec![None; consumers], faults: Vec::new(), longest: 0, count: 0 }
    }

    /// The state of a consumer at `now`; called at least whenever it changes.
    pub fn observe(&mut self, now: Nanos, consumer: usize, inhibited: bool) {
        let Some(since) = self.since.get_mut(consumer) else { return };
        match (*since, inhibited) {
            (None, true) => {
                *since = Some(now);
                self.count += 1;
            }
            (Some(start), false) => {
                *since = None;
                self.longest = self.longest.max(now - start);
                self.check(consumer, now - start);
            }
            _ => {}
        }
    }

    fn check(&mut self, consumer: usize, lasted: Nanos) {
        if lasted > self.limit && self.faults.len() < 8 {
            self.faults
                .push(format!("consumer {consumer} was inhibited for {lasted} ns, at most {}", self.limit));
        }
    }

    /// What was wrong up to the end at `now`.
    pub fn faults(&mut self, now: Nanos) -> Vec<String> {
        for consumer in 0..self.since.len() {
            if let Some(start) = self.since[consumer] {
                self.check(consumer, now - start);
            }
        }
        self.faults.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inhibit_that_does_not_end_is_found() {
        let mut watch = Inhibits::new(2, 100);
        watch.observe(0, 0, true);
        watch.observe(90, 0, false);
        assert_eq!((watch.faults(1000), watch.longest), (vec![], 90));
        watch.observe(1000, 1, true);
        assert_eq!(watch.faults(1101).len(), 1);
    }
}
