//! The lists: queues, CPUs, sockets, processes. Which columns they have, how they are sorted and filtered, which row is
//! selected.

use super::theme::Tone;
use crate::watch::table::{lost_by, named, rate};
use see::Snapshot;
use see::model::{Consumer, Cpu, Kind, Process, Queue};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A row keeps its place so long after a change of order, seconds of the recording: the eye and the key enter find it.
const HOLD_S: f64 = 5.0;
/// From this level on a queue or a CPU is at its limit.
pub const FULL: f64 = 0.95;

/// Text of a cell and what it is about.
pub type Cell = (String, Tone);

/// What rows are ordered by.
pub enum Sort<'a> {
    /// The largest first.
    Number(f64),
    /// From A to Z.
    Text(&'a str),
}

/// One column.
pub struct Column<T: 'static> {
    /// Heading.
    pub title: &'static str,
    /// Columns of the terminal.
    pub width: u16,
    /// Text stands at its left end.
    pub left: bool,
    /// Narrowest terminal that has room for it.
    pub from: u16,
    /// Its text.
    pub cell: fn(&T, &Snapshot) -> Cell,
    /// Its order.
    pub sort: for<'a> fn(&'a T) -> Sort<'a>,
}

/// Something that is listed.
pub trait Item: Sized + 'static {
    /// From left to right.
    const COLUMNS: &'static [Column<Self>];
    /// The same for the same thing in another interval. A hash: two things of one interval share it with a probability
    /// below 1e-11 among 10 000, and then only a selection jumps.
    fn key(&self) -> u64;
    /// `Lost`, `Full` or `Plain`.
    fn mark(&self) -> Tone;
    /// What a filter looks at, and its name as a title.
    fn name(&self) -> String;
}

fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn plain(text: impl Into<String>) -> Cell {
    (text.into(), Tone::Plain)
}

/// Not measured is not zero.
fn maybe(n: Option<u64>, s: &Snapshot) -> Cell {
    n.map_or(("n/a".into(), Tone::Dim), |n| (rate(n, s), if n == 0 { Tone::Dim } else { Tone::Plain }))
}

fn lost(n: Option<u64>, s: &Snapshot) -> Cell {
    match n {
        Some(n) if n > 0 => (format!("{}!", rate(n, s)), Tone::Lost),
        n => maybe(n, s),
    }
}

fn percent(share: f64) -> Cell {
    (format!("{:.1}", share * 100.0), if share > 0.0 { Tone::Plain } else { Tone::Dim })
}

fn level(level: Option<f64>) -> Cell {
    match level {
        Some(l) => (format!("{:.0} %", l * 100.0), if l >= FULL { Tone::Full } else { Tone::Plain }),
        None => ("n/a".into(), Tone::Dim),
    }
}

fn option(n: Option<u64>) -> Sort<'static> {
    Sort::Number(n.map_or(-1.0, |n| n as f64))
}

/// `full`, `12 ms`, `3 s`, `-`.
pub fn full_in(seconds: Option<f64>) -> String {
    match seconds {
        Some(t) if t <= 0.0 => "full".into(),
        Some(t) if t < 1.0 => format!("{:.0} ms", t * 1e3),
        Some(t) => format!("{t:.0} s"),
        None => "-".into(),
    }
}

impl Item for Queue {
    const COLUMNS: &'static [Column<Queue>] = &[
        Column {
            title: "queue",
            width: 18,
            left: true,
            from: 0,
            cell: |q, _| plain(&*q.name),
            sort: |q| Sort::Text(&q.name),
        },
        Column {
            title: "in k/s",
            width: 10,
            left: false,
            from: 0,
            cell: |q, s| maybe(q.packets, s),
            sort: |q| option(q.packets),
        },
        Column {
            title: "lost k/s",
            width: 11,
            left: false,
            from: 0,
            cell: |q, s| lost(Some(lost_by(&q.drops).map(|(_, n)| n).sum()), s),
            sort: |q| Sort::Number(lost_by(&q.drops).map(|(_, n)| n).sum::<u64>() as f64),
        },
        Column {
            title: "irq k/s",
            width: 9,
            left: false,
            from: 0,
            cell: |q, s| maybe(q.interrupts, s),
            sort: |q| option(q.interrupts),
        },
        Column {
            title: "CPUs",
            width: 10,
            left: false,
            from: 0,
            cell: |q, _| plain(if q.cpus.is_empty() { "-" } else { &q.cpus }),
            sort: |q| Sort::Text(&q.cpus),
        },
        Column {
            title: "RPS to",
            width: 10,
            left: false,
            from: 0,
            cell: |q, _| plain(if q.rps.is_empty() { "-" } else { &q.rps }),
            sort: |q| Sort::Text(&q.rps),
        },
        Column {
            title: "NAPI id",
            width: 10,
            left: false,
            from: 0,
            cell: |q, _| plain(q.napi_id.map_or("n/a".into(), |id| id.to_string())),
            sort: |q| option(q.napi_id.map(u64::from)),
        },
        Column {
            title: "guard",
            width: 11,
            left: false,
            from: 90,
            cell: |q, _| match q.mode.as_str() {
                "" => plain("-"),
                "interrupt" => plain(&*q.mode),
                mode => (mode.to_owned(), Tone::Weir),
            },
            sort: |q| Sort::Text(&q.mode),
        },
        Column {
            title: "thread",
            width: 10,
            left: false,
            from: 100,
            cell: |q, _| plain(q.thread.map_or("-".into(), |pid| pid.to_string())),
            sort: |q| option(q.thread.map(u64::from)),
        },
        Column {
            title: "  lost, by reason",
            width: 50,
            left: true,
            from: 140,
            cell: |q, s| {
                let parts: Vec<String> =
                    lost_by(&q.drops).map(|(why, n)| format!("{why} {}", rate(*n, s))).collect();
                (format!("  {}", parts.join(", ")), Tone::Lost)
            },
            sort: |q| Sort::Text(q.drops.keys().next().map_or("", |k| k)),
        },
    ];

    fn key(&self) -> u64 {
        hash(("queue", &self.name))
    }

    fn mark(&self) -> Tone {
        if lost_by(&self.drops).any(|(_, n)| *n > 0) { Tone::Lost } else { Tone::Plain }
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Item for Cpu {
    const COLUMNS: &'static [Column<Cpu>] = &[
        Column {
            title: "CPU",
            width: 5,
            left: false,
            from: 0,
            cell: |c, _| plain(c.cpu.to_string()),
            sort: |c| Sort::Number(-f64::from(c.cpu)),
        },
        Column {
            title: "irq %",
            width: 7,
            left: false,
            from: 0,
            cell: |c, _| percent(c.irq),
            sort: |c| Sort::Number(c.irq),
        },
        Column {
            title: "softirq",
            width: 8,
            left: false,
            from: 0,
            cell: |c, _| percent(c.softirq),
            sort: |c| Sort::Number(c.softirq),
        },
        Column {
            title: "threads",
            width: 8,
            left: false,
            from: 0,
            cell: |c, _| percent(c.threads),
            sort: |c| Sort::Number(c.threads),
        },
        Column {
            title: "weir",
            width: 6,
            left: false,
            from: 0,
            cell: |c, _| percent(c.weir),
            sort: |c| Sort::Number(c.weir),
        },
        Column {
            title: "programs",
            width: 9,
            left: false,
            from: 0,
            cell: |c, _| percent(c.programs),
            sort: |c| Sort::Number(c.programs),
        },
        Column {
            title: "idle",
            width: 7,
            left: false,
            from: 0,
            cell: |c, _| percent(c.idle),
            sort: |c| Sort::Number(-c.idle),
        },
        Column {
            title: "k/s",
            width: 9,
            left: false,
            from: 110,
            cell: |c, s| maybe(Some(c.packets), s),
            sort: |c| Sort::Number(c.packets as f64),
        },
        Column {
            title: "squeezed",
            width: 10,
            left: false,
            from: 110,
            cell: |c, _| plain(c.squeezed.to_string()),
            sort: |c| Sort::Number(c.squeezed as f64),
        },
        Column {
            title: "backlog",
            width: 9,
            left: false,
            from: 130,
            cell: |c, _| plain(c.backlog.map_or("n/a".into(), |n| n.to_string())),
            sort: |c| option(c.backlog.map(u64::from)),
        },
        Column {
            title: "lost k/s",
            width: 10,
            left: false,
            from: 110,
            cell: |c, s| lost(Some(c.backlog_drops), s),
            sort: |c| Sort::Number(c.backlog_drops as f64),
        },
        Column {
            title: "steal",
            width: 7,
            left: false,
            from: 130,
            cell: |c, _| percent(c.steal),
            sort: |c| Sort::Number(c.steal),
        },
    ];

    fn key(&self) -> u64 {
        hash(("cpu", self.cpu))
    }

    fn mark(&self) -> Tone {
        match self {
            c if c.backlog_drops > 0 => Tone::Lost,
            c if 1.0 - c.idle >= FULL => Tone::Full,
            _ => Tone::Plain,
        }
    }

    fn name(&self) -> String {
        format!("CPU {}", self.cpu)
    }
}

impl Item for Consumer {
    const COLUMNS: &'static [Column<Consumer>] = &[
        Column {
            title: "consumer",
            width: 30,
            left: true,
            from: 0,
            cell: |c, _| plain(named(c)),
            sort: |c| Sort::Text(if c.pid == 0 { &c.socket } else { &c.process }),
        },
        Column {
            title: "level",
            width: 7,
            left: false,
            from: 0,
            cell: |c, _| level(c.level),
            sort: |c| Sort::Number(c.level.unwrap_or(-1.0)),
        },
        Column {
            title: "in k/s",
            width: 10,
            left: false,
            from: 0,
            cell: |c, s| maybe(c.r#in, s),
            sort: |c| option(c.r#in),
        },
        Column {
            title: "out k/s",
            width: 10,
            left: false,
            from: 0,
            cell: |c, s| maybe(c.out, s),
            sort: |c| option(c.out),
        },
        Column {
            title: "lost k/s",
            width: 11,
            left: false,
            from: 0,
            cell: |c, s| lost(c.lost, s),
            sort: |c| option(c.lost),
        },
        Column {
            title: "full in",
            width: 9,
            left: false,
            from: 0,
            cell: |c, _| plain(full_in(c.full_in_s)),
            sort: |c| Sort::Number(c.full_in_s.map_or(f64::MIN, |t| -t)),
        },
        Column {
            title: "waiting",
            width: 11,
            left: false,
            from: 110,
            cell: |c, _| plain(c.waiting.to_string()),
            sort: |c| Sort::Number(c.waiting as f64),
        },
        Column {
            title: "limit",
            width: 11,
            left: false,
            from: 110,
            cell: |c, _| plain(if c.limit == 0 { "n/a".into() } else { c.limit.to_string() }),
            sort: |c| Sort::Number(c.limit as f64),
        },
        Column {
            title: "",
            width: 7,
            left: false,
            from: 120,
            cell: |c, _| (unit(c.kind).into(), Tone::Dim),
            sort: |c| Sort::Text(unit(c.kind)),
        },
        Column {
            title: "  bound to",
            width: 28,
            left: true,
            from: 150,
            cell: |c, _| plain(format!("  {}", c.local)),
            sort: |c| Sort::Text(&c.local),
        },
        Column {
            title: "peer",
            width: 26,
            left: true,
            from: 180,
            cell: |c, _| plain(c.remote.clone().unwrap_or_default()),
            sort: |c| Sort::Text(c.remote.as_deref().unwrap_or("")),
        },
    ];

    fn key(&self) -> u64 {
        hash((self.kind as u8, self.id, &self.socket, &self.local, &self.remote))
    }

    fn mark(&self) -> Tone {
        match self {
            c if c.lost.unwrap_or(0) > 0 => Tone::Lost,
            c if c.level.unwrap_or(0.0) >= FULL => Tone::Full,
            _ => Tone::Plain,
        }
    }

    fn name(&self) -> String {
        named(self)
    }
}

/// What `waiting` and `limit` of a consumer count.
pub fn unit(kind: Kind) -> &'static str {
    match kind {
        Kind::Accept => "conn",
        Kind::Filter => "packets",
        _ => "bytes",
    }
}

impl Item for Process {
    const COLUMNS: &'static [Column<Process>] = &[
        Column {
            title: "process",
            width: 22,
            left: true,
            from: 0,
            cell: |p, _| plain(&*p.name),
            sort: |p| Sort::Text(&p.name),
        },
        Column {
            title: "pid",
            width: 9,
            left: false,
            from: 0,
            cell: |p, _| plain(p.pid.to_string()),
            sort: |p| Sort::Number(-f64::from(p.pid)),
        },
        Column {
            title: "runs %",
            width: 9,
            left: false,
            from: 0,
            cell: |p, _| percent(p.runs),
            sort: |p| Sort::Number(p.runs),
        },
        Column {
            title: "waits %",
            width: 9,
            left: false,
            from: 0,
            cell: |p, _| percent(p.waits),
            sort: |p| Sort::Number(p.waits),
        },
        Column {
            title: "CPU",
            width: 5,
            left: false,
            from: 0,
            cell: |p, _| plain(p.cpu.to_string()),
            sort: |p| Sort::Number(-f64::from(p.cpu)),
        },
        Column {
            title: "nice",
            width: 6,
            left: false,
            from: 0,
            cell: |p, _| plain(p.nice.to_string()),
            sort: |p| Sort::Number(f64::from(p.nice)),
        },
        Column {
            title: "state",
            width: 7,
            left: false,
            from: 0,
            cell: |p, _| (p.state.clone(), if p.state == "T" { Tone::Full } else { Tone::Plain }),
            sort: |p| Sort::Text(&p.state),
        },
        Column {
            title: "receives",
            width: 10,
            left: false,
            from: 0,
            cell: |p, _| plain(if p.receives { "yes" } else { "-" }),
            sort: |p| Sort::Number(f64::from(u8::from(p.receives))),
        },
    ];

    fn key(&self) -> u64 {
        hash(("process", self.pid, &self.name))
    }

    fn mark(&self) -> Tone {
        if self.receives && self.state == "T" { Tone::Full } else { Tone::Plain }
    }

    fn name(&self) -> String {
        format!("{} {}", self.name, self.pid)
    }
}

/// Rows of one list, in the order of the snapshot.
pub enum Rows<'a> {
    /// Receive queues of the interfaces that are watched.
    Queues(Vec<&'a Queue>),
    /// CPUs.
    Cpus(Vec<&'a Cpu>),
    /// Sockets and other consumers.
    Consumers(Vec<&'a Consumer>),
    /// Processes.
    Processes(Vec<&'a Process>),
}

/// Evaluates an expression with the items of whatever list it is.
macro_rules! each {
    ($rows:expr, $items:ident => $what:expr) => {
        match $rows {
            $crate::watch::view::lists::Rows::Queues($items) => $what,
            $crate::watch::view::lists::Rows::Cpus($items) => $what,
            $crate::watch::view::lists::Rows::Consumers($items) => $what,
            $crate::watch::view::lists::Rows::Processes($items) => $what,
        }
    };
}
pub(super) use each;

/// What the user has chosen in one list, and the order that follows.
#[derive(Clone, Debug, Default)]
pub struct List {
    /// Column; none: the order of the snapshot, the worst first.
    pub sort: Option<usize>,
    /// The other way round.
    pub reverse: bool,
    /// Indices into the rows of the snapshot, filtered and sorted.
    pub order: Vec<u32>,
    /// Place of the selected row in `order`.
    pub selected: usize,
    selected_key: Option<u64>,
    /// Keys in the order that is held, and since when.
    held: Vec<u64>,
    held_since_s: Option<f64>,
}

impl List {
    /// CPUs that are least idle first.
    pub fn busiest(cpus: &[Cpu]) -> List {
        let mut order: Vec<u32> = (0..cpus.len() as u32).collect();
        order.sort_by(|a, b| cpus[*a as usize].idle.total_cmp(&cpus[*b as usize].idle));
        List { order, ..List::default() }
    }

    /// Orders the rows of a new snapshot, or again after a change of sort or filter (`fresh`); the selection stays on what
    /// it was on. Cost: n log n of the rows.
    pub fn settle<T: Item>(&mut self, items: &[&T], time_s: f64, filter: &str, fresh: bool) {
        let filter = filter.to_lowercase();
        let wanted = |item: &T| filter.is_empty() || item.name().to_lowercase().contains(&filter);
        let mut order: Vec<u32> = (0..items.len() as u32).filter(|i| wanted(items[*i as usize])).collect();
        let keys: Vec<u64> = items.iter().map(|item| item.key()).collect();
        if let Some(column) = self.sort.and_then(|column| T::COLUMNS.get(column)) {
            order.sort_by(|a, b| {
                compare((column.sort)(items[*a as usize]), (column.sort)(items[*b as usize]))
            });
        }
        if self.reverse {
            order.reverse();
        }
        let hold = |since: f64| !fresh && (0.0..HOLD_S).contains(&(time_s - since));
        if self.held_since_s.is_some_and(hold) {
            let place: HashMap<u64, usize> = self.held.iter().enumerate().map(|(i, key)| (*key, i)).collect();
            // What is new stands at the end until the order is made again.
            order.sort_by_key(|i| place.get(&keys[*i as usize]).copied().unwrap_or(usize::MAX));
        } else {
            self.held_since_s = Some(time_s);
        }
        self.held = order.iter().map(|i| keys[*i as usize]).collect();
        let found = self.selected_key.and_then(|key| self.held.iter().position(|held| *held == key));
        self.order = order;
        self.select(found.unwrap_or(self.selected));
    }

    /// Selects the row at `place`, or the last one.
    pub fn select(&mut self, place: usize) {
        self.selected = place.min(self.held.len().saturating_sub(1));
        // The first row follows the order until the user has chosen one.
        self.selected_key = self
            .held
            .get(self.selected)
            .copied()
            .filter(|_| self.selected > 0 || self.selected_key.is_some());
    }

    /// The user moves by `rows`.
    pub fn go(&mut self, rows: isize) {
        let place = self.selected.saturating_add_signed(rows);
        self.select(place);
        self.selected_key = self.held.get(self.selected).copied();
    }

    /// Key of the selected row.
    pub fn key(&self) -> Option<u64> {
        self.held.get(self.selected).copied()
    }

    /// The other way round, from the top.
    pub fn turn_round(&mut self) {
        self.reverse = !self.reverse;
        (self.selected, self.selected_key) = (0, None);
    }

    /// Sorts by the next column, after the last one as the snapshot is, from the top.
    pub fn next_sort(&mut self, columns: usize) {
        (self.selected, self.selected_key) = (0, None);
        self.sort = match self.sort {
            None => Some(0),
            Some(column) if column + 1 < columns => Some(column + 1),
            Some(_) => None,
        };
    }
}

fn compare(a: Sort<'_>, b: Sort<'_>) -> Ordering {
    match (a, b) {
        (Sort::Number(a), Sort::Number(b)) => b.total_cmp(&a),
        (Sort::Text(a), Sort::Text(b)) => a.cmp(b),
        _ => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(idle: &[f64]) -> Vec<Cpu> {
        (0..).zip(idle).map(|(cpu, idle)| Cpu { cpu, idle: *idle, ..Cpu::default() }).collect()
    }

    fn order(list: &mut List, cpus: &[Cpu], time_s: f64, fresh: bool) -> Vec<u32> {
        list.settle(&cpus.iter().collect::<Vec<_>>(), time_s, "", fresh);
        list.order.clone()
    }

    #[test]
    fn an_order_is_held_for_a_while_and_the_selection_for_good() {
        let mut list = List { sort: Some(6), ..List::default() };
        assert_eq!(order(&mut list, &cpus(&[0.9, 0.1, 0.5]), 100.0, false), [1, 2, 0]);
        list.go(1);
        assert_eq!(list.selected, 1);
        // CPU 0 is the busiest now; its row stays for five seconds, a new CPU comes last.
        assert_eq!(order(&mut list, &cpus(&[0.0, 0.1, 0.5, 0.05]), 104.0, false), [1, 2, 0, 3]);
        assert_eq!(order(&mut list, &cpus(&[0.0, 0.1, 0.5, 0.05]), 105.0, false), [0, 3, 1, 2]);
        assert_eq!(list.selected, 3, "still CPU 2");
        // A user who sorts does not wait, and time that goes back (a recording) holds nothing.
        list.reverse = true;
        assert_eq!(order(&mut list, &cpus(&[0.0, 0.1, 0.5]), 105.5, true), [2, 1, 0]);
        list.reverse = false;
        assert_eq!(order(&mut list, &cpus(&[0.0, 0.1, 0.5]), 50.0, false), [0, 1, 2]);
        // What was selected is gone: the nearest row is.
        assert_eq!(order(&mut list, &cpus(&[0.0]), 200.0, false), [0]);
        assert_eq!(list.selected, 0);
        assert_eq!(order(&mut list, &[], 201.0, false), [0; 0]);
        list.go(5);
        assert_eq!(list.key(), None);
    }

    #[test]
    fn filters_and_every_column_sorts() {
        let one = |process: &str, pid, lost| Consumer {
            process: process.into(),
            pid,
            lost,
            id: u64::from(pid),
            ..Consumer::default()
        };
        let all = [one("knotd", 2, None), one("Nginx", 1, Some(5)), one("knotd", 3, Some(9))];
        let items: Vec<&Consumer> = all.iter().collect();
        let mut list = List::default();
        list.settle(&items, 1.0, "KNOT", true);
        assert_eq!(list.order, [0, 2]);
        for (column, expected) in [(4, [2, 1, 0]), (0, [1, 0, 2])] {
            list.sort = Some(column);
            list.settle(&items, 1.0, "", true);
            assert_eq!(list.order, expected, "{column}");
        }
        list.sort = None;
        let mut seen = Vec::new();
        for _ in 0..=Consumer::COLUMNS.len() {
            list.next_sort(Consumer::COLUMNS.len());
            list.settle(&items, 1.0, "", true);
            seen.push(list.sort);
        }
        assert_eq!((seen[0], seen.last()), (Some(0), Some(&None)));
    }
}
