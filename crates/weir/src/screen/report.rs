//! What a screen says: a line per interval, a table at the end, or both as JSON.

use super::plan::{Plan, decides};
use super::worker::Worker;
use crate::out::{count, grouped};
use kern::proc::FilterQueue;
use policy::screen::Verdict;
use serde::Serialize;
use std::time::Duration;

/// All counters at one moment, since the start.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    schema: &'static str,
    seconds: f64,
    end: bool,
    packets: u64,
    bytes: u64,
    accepted: u64,
    denied: u64,
    unclear: u64,
    rules: Vec<RuleRow>,
    default: RuleRow,
    queues: Vec<QueueRow>,
}

/// A rule, or the default.
#[derive(Debug, Clone, Serialize)]
struct RuleRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    action: &'static str,
    packets: u64,
    bytes: u64,
}

/// A queue: what its thread has counted, and what the kernel says of it.
#[derive(Debug, Clone, Serialize)]
struct QueueRow {
    queue: u16,
    packets: u64,
    batches: u64,
    largest_batch: u64,
    refused: u64,
    waiting: u64,
    queue_full: u64,
    socket_full: u64,
}

impl Report {
    /// Reads the counters of all threads and the kernel's.
    pub fn take(plan: &Plan, workers: &[Worker], time: Duration) -> Report {
        let kernel = kern::proc::filter_queues();
        Report::of(plan, workers, time, &kernel)
    }

    fn of(plan: &Plan, workers: &[Worker], time: Duration, kernel: &[FilterQueue]) -> Report {
        let rules = plan.table.rules();
        let row = |index: usize, rule: Option<String>, action: &'static str| {
            let hits = || workers.iter().filter_map(move |worker| worker.counts.hits.get(index));
            RuleRow {
                rule,
                action,
                packets: hits().map(|hits| hits.packets.get()).sum(),
                bytes: hits().map(|hits| hits.bytes.get()).sum(),
            }
        };
        let rows: Vec<RuleRow> = rules
            .iter()
            .enumerate()
            .map(|(index, rule)| row(index, Some(rule.text().to_owned()), rule.action().name()))
            .collect();
        let default = row(rules.len(), None, plan.table.default().name());
        let verdicts = rules.iter().map(|rule| decides(rule.action())).chain([Some(plan.table.default())]);
        let deciding: Vec<(Verdict, &RuleRow)> =
            verdicts.zip(rows.iter().chain([&default])).filter_map(|(v, row)| Some((v?, row))).collect();
        let of = |wanted: Verdict| {
            deciding.iter().filter(|(verdict, _)| *verdict == wanted).map(|(_, row)| row.packets).sum()
        };
        let (accepted, denied): (u64, u64) = (of(Verdict::Accept), of(Verdict::Deny));
        let queue = |worker: &Worker| {
            let (hits, counts) = (&worker.counts.hits, &worker.counts);
            let ends = plan.table.rules().iter().map(|rule| decides(rule.action()).is_some()).chain([true]);
            let kernel = kernel.iter().find(|queue| queue.queue == worker.queue).copied().unwrap_or_default();
            QueueRow {
                queue: worker.queue,
                packets: hits.iter().zip(ends).filter(|(_, end)| *end).map(|(h, _)| h.packets.get()).sum(),
                batches: counts.batches.get(),
                largest_batch: counts.largest.get(),
                refused: counts.refused.get(),
                waiting: kernel.waiting,
                queue_full: kernel.queue_full,
                socket_full: kernel.socket_full,
            }
        };
        Report {
            schema: "weir.screen/1",
            seconds: (time.as_secs_f64() * 1000.0).round() / 1000.0,
            end: false,
            packets: accepted + denied,
            bytes: deciding.iter().map(|(_, row)| row.bytes).sum(),
            accepted,
            denied,
            unclear: workers.iter().map(|worker| worker.counts.unclear.get()).sum(),
            queues: workers.iter().map(queue).collect(),
            rules: rows.clone(),
            default: default.clone(),
        }
    }

    fn sum(&self, of: impl Fn(&QueueRow) -> u64) -> u64 {
        self.queues.iter().map(of).sum()
    }

    /// One line of JSON.
    ///
    /// # Errors
    /// None that is known.
    pub fn json(&self, end: bool) -> anyhow::Result<String> {
        Ok(serde_json::to_string(&Report { end, ..self.clone() })? + "\n")
    }

    /// One line about the time since `before`.
    pub fn line(&self, before: &Report) -> String {
        let time = (self.seconds - before.seconds).max(0.001);
        let rate = |now: u64, then: u64| format!("{:.1}", now.saturating_sub(then) as f64 / time / 1000.0);
        let lost = |of: fn(&QueueRow) -> u64| grouped(self.sum(of).saturating_sub(before.sum(of)));
        format!(
            "{:>7.1} s  k/s {} screened, {} accepted, {} denied; lost {} queue full, {} socket full; {} waiting\n",
            self.seconds,
            rate(self.packets, before.packets),
            rate(self.accepted, before.accepted),
            rate(self.denied, before.denied),
            lost(|queue| queue.queue_full),
            lost(|queue| queue.socket_full),
            grouped(self.sum(|queue| queue.waiting)),
        )
    }

    /// The table at the end.
    pub fn table(&self, plan: &Plan) -> String {
        let mut text =
            format!("\n{:>4}  {:<6}  {:<30}  {:>13}  {:>16}\n", "rule", "action", "", "packets", "bytes");
        let numbers = |row: &RuleRow| format!("{:>13}  {:>16}", grouped(row.packets), grouped(row.bytes));
        for (number, row) in self.rules.iter().enumerate() {
            let rule = row.rule.as_deref().unwrap_or_default();
            text += &format!("{:>4}  {:<6}  {rule:<30}  {}\n", number + 1, row.action, numbers(row));
        }
        text += &format!(
            "{:>4}  {:<6}  {:<30}  {}\n",
            "",
            self.default.action,
            "all others",
            numbers(&self.default)
        );
        let batches = self.sum(|queue| queue.batches);
        text += &format!(
            "\nqueue {}: {} in {:.1} s, {:.1} at once, at most {}; {} accepted, {} denied\n\
             lost: {} queue full, {} socket full; {} verdicts refused; {} not IP or without visible ports\n",
            plan.range(),
            count(usize::try_from(self.packets).unwrap_or(usize::MAX), "packet"),
            self.seconds,
            self.packets as f64 / batches.max(1) as f64,
            self.queues.iter().map(|queue| queue.largest_batch).max().unwrap_or(0),
            grouped(self.accepted),
            grouped(self.denied),
            grouped(self.sum(|queue| queue.queue_full)),
            grouped(self.sum(|queue| queue.socket_full)),
            grouped(self.sum(|queue| queue.refused)),
            grouped(self.unclear),
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    fn plan(words: &str) -> Plan {
        let cli = Cli::try_parse_from(words.split(' ')).unwrap();
        match cli.command {
            crate::cli::Command::Screen(args) => Plan::resolve(&args).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Two queues with one deciding and one counting rule each.
    fn reports() -> (Plan, Report, Report) {
        let plan = plan("weir screen --queue 4-5 --deny 10.0.0.0/8 --count udp/53 --accept tcp");
        let workers = [Worker::idle(4, 3), Worker::idle(5, 3)];
        let before = Report::of(&plan, &workers, Duration::ZERO, &[]);
        for (worker, packets) in workers.iter().zip([1000, 10]) {
            for (hits, times) in worker.counts.hits.iter().zip([1, 2, 3, 4]) {
                hits.packets.add(packets * times);
                hits.bytes.add(packets * times * 100);
            }
            worker.counts.batches.add(packets);
        }
        let kernel = FilterQueue { queue: 5, waiting: 7, queue_full: 11, ..FilterQueue::default() };
        let now = Report::of(&plan, &workers, Duration::from_millis(2000), &[kernel]);
        (plan, before, now)
    }

    #[test]
    fn rules_that_count_are_not_counted_twice() {
        let (_, before, now) = reports();
        assert_eq!((before.packets, now.packets), (0, 1010 * 8));
        assert_eq!((now.accepted, now.denied, now.bytes), (1010 * 7, 1010, 1010 * 800));
        assert_eq!(now.queues.iter().map(|queue| queue.packets).collect::<Vec<_>>(), [8000, 80]);
        let line = now.line(&before);
        assert_eq!(
            line,
            "    2.0 s  k/s 4.0 screened, 3.5 accepted, 0.5 denied; lost 11 queue full, 0 socket full; 7 waiting\n"
        );
    }

    #[test]
    fn the_table_has_every_rule_and_the_default() {
        let (plan, _, now) = reports();
        let text = now.table(&plan);
        for part in ["1  deny    10.0.0.0/8", "2  count   udp/53", "3  accept  tcp", "accept  all others"] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        assert!(text.contains("queue 4-5: 8080 packets in 2.0 s, 8.0 at once"), "{text}");
    }

    #[test]
    fn json_is_one_line_with_all_of_it() {
        let (_, _, now) = reports();
        let text = now.json(true).unwrap();
        assert!(text.ends_with('\n') && text.lines().count() == 1);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["schema"], &value["end"]), (&"weir.screen/1".into(), &true.into()));
        assert_eq!(
            (&value["rules"][1]["action"], &value["rules"][1]["packets"]),
            (&"count".into(), &2020.into())
        );
        assert_eq!(
            (&value["default"]["action"], &value["queues"][1]["waiting"]),
            (&"accept".into(), &7.into())
        );
    }

    #[test]
    fn rules_keep_the_order_of_the_command_line() {
        let plan = plan("weir screen --deny udp/1 --accept udp/2 --deny udp/3 --count udp/4 --accept any");
        let rules: Vec<String> = plan
            .table
            .rules()
            .iter()
            .map(|rule| format!("{} {}", rule.action().name(), rule.text()))
            .collect();
        assert_eq!(rules, ["deny udp/1", "accept udp/2", "deny udp/3", "count udp/4", "accept any"]);
    }
}
