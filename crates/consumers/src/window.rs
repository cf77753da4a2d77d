//! The window of measurement: `reset` begins one, `report` tells what happened in it.

use nix::time::ClockId;
use serde_json::{Value, json};

use crate::{monotonic_ns, read_clock, serve, unknown};

/// What was read at one moment.
#[derive(Debug)]
pub struct Moment<T> {
    /// CLOCK_MONOTONIC, ns.
    pub at_ns: u64,
    /// CPU time of the measured thread, ns.
    pub cpu_ns: u64,
    /// The program's own counters.
    pub counts: T,
}

/// The time since the last `reset`, or since the program began.
pub struct Window<T, R> {
    clock: ClockId,
    read: R,
    from: Moment<T>,
}

impl<T, R: Fn() -> T> Window<T, R> {
    /// Begins now. `clock` is the CPU time of the measured thread, `read` reads the counters.
    pub fn new(clock: ClockId, read: R) -> Window<T, R> {
        let from = now(clock, &read);
        Window { clock, read, from }
    }

    /// The answer to `reset` and `report`, `None` to any other line. A report has `at_ns`, `window_ns`, `cpu_ns`, and what
    /// `say` makes of the window's begin and end.
    pub fn answer(&mut self, line: &str, say: impl FnOnce(&Moment<T>, &Moment<T>) -> Value) -> Option<Value> {
        match line {
            "reset" => {
                self.from = now(self.clock, &self.read);
                Some(json!({ "at_ns": self.from.at_ns }))
            }
            "report" => {
                let (from, to) = (&self.from, now(self.clock, &self.read));
                let mut report = json!({
                    "at_ns": to.at_ns,
                    "window_ns": to.at_ns - from.at_ns,
                    "cpu_ns": to.cpu_ns - from.cpu_ns,
                });
                if let (Value::Object(all), Value::Object(more)) = (&mut report, say(from, &to)) {
                    all.extend(more);
                }
                Some(report)
            }
            _ => None,
        }
    }

    /// Answers standard input as [`serve`]; `other` what is neither `reset` nor `report`.
    pub fn serve(
        mut self,
        say: impl Fn(&Moment<T>, &Moment<T>) -> Value,
        other: impl Fn(&str) -> Option<Value>,
    ) -> ! {
        serve(|line| {
            let answer = self.answer(line, &say).or_else(|| other(line));
            Some(answer.unwrap_or_else(|| unknown(line)))
        })
    }
}

fn now<T>(clock: ClockId, read: impl Fn() -> T) -> Moment<T> {
    Moment { at_ns: monotonic_ns(), cpu_ns: read_clock(clock), counts: read() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, thread_clock, work};

    #[test]
    fn a_report_tells_what_happened_since_the_reset() {
        let counter = Counter::new();
        counter.add(5);
        let mut window = Window::new(thread_clock().unwrap(), || counter.get());
        let say = |from: &Moment<u64>, to: &Moment<u64>| json!({ "done": to.counts - from.counts, "all": to.counts });
        counter.add(2);
        assert_eq!(window.answer("report", say).unwrap()["done"], 2);
        let reset = window.answer("reset", say).unwrap();
        counter.add(1);
        work(20_000);
        let report = window.answer("report", say).unwrap();
        assert_eq!((&report["done"], &report["all"]), (&json!(1), &json!(8)));
        let number = |name: &str| report[name].as_u64().unwrap();
        assert_eq!(number("at_ns") - number("window_ns"), reset["at_ns"].as_u64().unwrap());
        assert!(number("cpu_ns") > 0);
        assert!(window.answer("series", say).is_none());
    }
}
