//! Panes of lists, and the first one, which has something of everything.

use super::lists::{Column, Item, List};
use super::state::{Pane, View};
use super::text;
use super::theme::{Theme, Tone};
use crate::watch::table::rate;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use see::Snapshot;
use see::model::Cpu;

/// Columns of a list without its bar, from which on there is room for two lists side by side.
const TWO_SIDES: u16 = 150;
/// Rows of the curves and of their scale.
const CURVE_ROWS: u16 = 4;

/// One list: a line of headings, then as many rows as there is room for, the selected one among them. Cost: that of the rows
/// that are seen.
pub fn list<T: Item>(view: &View, pane: Pane, items: &[&T], s: &Snapshot, area: Rect, buf: &mut Buffer) {
    if let Some(at) = pane.list() {
        ordered(view, pane, &view.lists[at], items, s, area, buf);
    }
}

fn ordered<T: Item>(
    view: &View,
    pane: Pane,
    list: &List,
    items: &[&T],
    s: &Snapshot,
    area: Rect,
    buf: &mut Buffer,
) {
    if area.height < 2 {
        return;
    }
    let theme = view.theme;
    let columns: Vec<(usize, &Column<T>)> =
        T::COLUMNS.iter().enumerate().filter(|(_, c)| c.from <= area.width).collect();
    let mut x = area.x + 1;
    for (i, column) in &columns {
        let arrow = if list.reverse { theme.sign("▴", "^") } else { theme.sign("▾", "v") };
        let sorted = list.sort == Some(*i);
        let title = match (sorted, column.left) {
            (true, true) => format!("{}{arrow}", column.title),
            (true, false) => format!("{arrow}{}", column.title),
            (false, _) => column.title.to_owned(),
        };
        let style = theme.style(if sorted { Tone::Full } else { Tone::Dim });
        put(
            theme,
            buf,
            (x, area.y, column.width.min(area.right().saturating_sub(x))),
            column.left,
            &title,
            style,
        );
        x += column.width;
    }
    let bar = bar_area(pane, x, area);
    let room = usize::from(area.height) - 1;
    // The selected row stays in the middle while there are rows above and below that do not fit.
    let first = list.selected.saturating_sub(room / 2).min(list.order.len().saturating_sub(room));
    let rows = list.order.iter().enumerate().skip(first).take(room);
    for (y, (place, index)) in (area.y + 1..).zip(rows) {
        let Some(item) = items.get(*index as usize) else { continue };
        let mark = match item.mark() {
            Tone::Lost => "!",
            Tone::Full => theme.sign("▸", ">"),
            _ => "",
        };
        theme.put(buf, area.x, y, 1, mark, theme.style(item.mark()));
        let mut x = area.x + 1;
        for (_, column) in &columns {
            let (text, tone) = (column.cell)(item, s);
            let room = column.width.min(area.right().saturating_sub(x));
            put(theme, buf, (x, y, room), column.left, &text, theme.style(tone));
            x += column.width;
        }
        if place == list.selected && (view.pane == pane || pane == Pane::Consumers) {
            buf.set_style(
                Rect { y, height: 1, ..area },
                theme.style(Tone::Plain).add_modifier(Modifier::REVERSED),
            );
        }
        if let (Pane::Cpus, Some(bar), Some(cpu)) = (pane, bar, s.cpus.get(*index as usize)) {
            cpu_bar(theme, cpu, Rect { y, height: 1, ..bar }, buf);
        }
    }
    if let Some(bar) = bar {
        legend(theme, Rect { y: area.y, height: 1, ..bar }, buf);
    }
    if list.order.is_empty() {
        let why = if view.filter.is_empty() { "none" } else { "none matches; esc shows all" };
        theme.put(buf, area.x + 1, area.y + 1, area.width - 1, why, theme.style(Tone::Dim));
    }
}

fn put(
    theme: Theme,
    buf: &mut Buffer,
    (x, y, width): (u16, u16, u16),
    left: bool,
    text: &str,
    style: ratatui::style::Style,
) {
    match left {
        true => drop(theme.put(buf, x, y, width.saturating_sub(1), text, style)),
        false => theme.put_right(buf, x, y, width, text, style),
    }
}

/// What is left at the right of CPUs is for bars.
fn bar_area(pane: Pane, x: u16, area: Rect) -> Option<Rect> {
    let width = area.right().saturating_sub(x + 2);
    (pane == Pane::Cpus && width >= 10).then_some(Rect { x: x + 2, width: width.min(100), ..area })
}

/// Parts of a CPU's time: name, sign, letter, share, tone.
fn parts(c: &Cpu) -> [(&'static str, &'static str, &'static str, f64, Tone); 5] {
    [
        ("irq", "▓", "i", c.irq, Tone::Kernel),
        ("soft", "▒", "s", c.softirq, Tone::Kernel),
        ("thr", "▚", "t", c.threads, Tone::Kernel),
        ("weir", "█", "w", c.weir, Tone::Weir),
        ("prog", "░", "p", c.programs, Tone::Plain),
    ]
}

fn legend(theme: Theme, area: Rect, buf: &mut Buffer) {
    let mut x = area.x;
    for (name, sign, letter, _, tone) in parts(&Cpu::default()) {
        let room = area.right().saturating_sub(x);
        x = theme.put(buf, x, area.y, room, theme.sign(sign, letter), theme.style(tone));
        let room = area.right().saturating_sub(x);
        x = theme.put(buf, x, area.y, room, name, theme.style(Tone::Dim)) + 1;
    }
}

fn cpu_bar(theme: Theme, c: &Cpu, area: Rect, buf: &mut Buffer) {
    let width = f64::from(area.width);
    let (mut x, mut sum) = (area.x, 0.0);
    for (_, sign, letter, share, tone) in parts(c) {
        sum += share;
        let end = area.x + (sum.clamp(0.0, 1.0) * width).round() as u16;
        while x < end {
            x = theme.put(buf, x, area.y, 1, theme.sign(sign, letter), theme.style(tone));
        }
    }
    let idle = theme.sign("·", ".").repeat(usize::from(area.right().saturating_sub(x)));
    theme.put(buf, x, area.y, area.right().saturating_sub(x), &idle, theme.style(Tone::Dim));
}

/// CPUs, consumers, ledger, and where there is room curves, queues and processes.
pub fn all(view: &View, s: &Snapshot, area: Rect, buf: &mut Buffer) {
    let ledger = text::sums(s);
    let ledger_rows = u16::try_from(ledger.len()).unwrap_or(3);
    let wide = area.width >= TWO_SIDES;
    let air = u16::from(area.height >= 24);
    // Each list has a line of headings.
    let rows_of = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).saturating_add(1);
    let cpu_rows = rows_of(s.cpus.len()).min((area.height / 3).max(3));
    let top = Rect { height: cpu_rows.max(if wide { CURVE_ROWS } else { 0 }), ..area };
    let (left, right) = if wide { halves(top) } else { (top, Rect::default()) };
    let cpus: Vec<&Cpu> = s.cpus.iter().collect();
    if s.cpus.len() < usize::from(cpu_rows) {
        list(view, Pane::Cpus, &cpus, s, left, buf);
    } else {
        ordered(view, Pane::Cpus, &List::busiest(&s.cpus), &cpus, s, left, buf);
    }
    let mut y = top.bottom() + air;
    if wide {
        curves(view, s, right, buf);
    } else if area.height >= 30 {
        curves(view, s, Rect { y, height: CURVE_ROWS, ..area }, buf);
        y += CURVE_ROWS + air;
    }
    let consumers: Vec<_> = s.consumers.iter().collect();
    let room = area.bottom().saturating_sub(y + ledger_rows + air);
    let middle = Rect { y, height: rows_of(consumers.len().max(1)).min(room), ..area };
    list(view, Pane::Consumers, &consumers, s, middle, buf);
    y = middle.bottom() + air;
    for (y, line) in (y..area.bottom()).zip(&ledger) {
        let mut x = area.x;
        for (part, tone) in line {
            x = view.theme.put(buf, x, y, area.right().saturating_sub(x), part, view.theme.style(*tone));
        }
    }
    y += ledger_rows + air;
    let left = |y: u16| Rect { y, height: area.bottom().saturating_sub(y), ..area };
    let queues: Vec<_> = s.interfaces.iter().flat_map(|i| &i.queues).collect();
    if left(y).height > 3 && !queues.is_empty() {
        // Half of what is left is for processes.
        let height = rows_of(queues.len()).min((left(y).height / 2).max(2));
        list(view, Pane::Queues, &queues, s, Rect { height, ..left(y) }, buf);
        y += height + air;
    }
    let processes: Vec<_> = s.processes.iter().collect();
    if left(y).height > 2 && !processes.is_empty() {
        list(view, Pane::Processes, &processes, s, left(y), buf);
    }
}

fn halves(area: Rect) -> (Rect, Rect) {
    let left = area.width / 2;
    (Rect { width: left, ..area }, Rect { x: area.x + left + 2, width: area.width - left - 2, ..area })
}

/// A number of an interval.
type Count = fn(&Snapshot) -> u64;

/// Offered, delivered and lost over the intervals that are kept, all on one scale.
fn curves(view: &View, s: &Snapshot, area: Rect, buf: &mut Buffer) {
    const LABEL: u16 = 22;
    if area.width <= LABEL || area.height == 0 {
        return;
    }
    let past = view.past();
    let per_second = |n: u64, s: &Snapshot| n as f64 / s.interval_s.max(1e-9);
    let of = |get: Count| past.iter().map(|s| per_second(get(s), s)).collect::<Vec<f64>>();
    let curves: [(&str, Count, Tone); 3] = [
        ("offered", |s| s.ledger.offered, Tone::Plain),
        ("delivered", |s| s.ledger.delivered(), Tone::Plain),
        ("lost", |s| s.ledger.lost(), Tone::Lost),
    ];
    let top = curves.iter().flat_map(|(_, get, _)| of(*get)).fold(0.0, f64::max);
    let width = area.width - LABEL;
    for (y, (name, get, tone)) in (area.y..area.bottom()).zip(curves) {
        let now = get(s);
        let label = format!("{name:<10}{:>7} k/s", rate(now, s));
        view.theme.put(
            buf,
            area.x,
            y,
            LABEL,
            &label,
            view.theme.style(if now > 0 { tone } else { Tone::Dim }),
        );
        let line = view.theme.spark(&of(get), top, width.into());
        view.theme.put(buf, area.x + LABEL, y, width, &line, view.theme.style(tone));
    }
    if area.height > 3 {
        let span = past.first().map_or(0.0, |first| s.time_s - first.time_s + first.interval_s);
        let text = format!("last {span:.0} s, one column per interval, one scale up to {:.1} k/s", top / 1e3);
        view.theme.put(buf, area.x, area.y + 3, area.width, &text, view.theme.style(Tone::Dim));
    }
}
