//! The view as cells: a pure function of [`View`]. On top the path from left to right, what is the bottleneck and why; below it the
//! pane.

use super::lists::{FULL, each};
use super::state::{Feed, Pane, View};
use super::text;
use super::theme::{Theme, Tone};
use crate::out::{count, listed};
use crate::watch::guards::shed_beside;
use crate::watch::table::{lost_by, named, rate, title};
use ratatui::buffer::Buffer;
use ratatui::layout::{Rect, Size};
use ratatui::style::Modifier;
use ratatui::text::Span;
use see::Snapshot;
use see::model::{Cpu, Place, Stage};

/// Smallest terminal.
pub const MIN: Size = Size { width: 80, height: 24 };
/// Largest part of a terminal that is drawn on.
pub const MAX: Size = Size { width: 300, height: 100 };
/// Rows above the pane's title: title, path, bottleneck, explain.
pub const HEAD: u16 = 10;
/// Columns of the labels at the left.
const LABEL: u16 = 8;
/// Widest stage.
const STAGE_MAX: u16 = 28;

/// Draws everything.
pub fn draw(view: &View, area: Rect, buf: &mut Buffer) {
    let area = Rect { width: area.width.min(MAX.width), height: area.height.min(MAX.height), ..area };
    buf.set_style(area, view.theme.style(Tone::Plain));
    if area.width < MIN.width || area.height < MIN.height {
        return too_small(view, area, buf);
    }
    let pen = Pen { theme: view.theme, area };
    pen.title(view, buf);
    let Some(s) = &view.shown else {
        let seconds = view.interval.as_secs_f64();
        pen.label(buf, 2, "waiting", Tone::Dim);
        pen.at(buf, 2, 13, &format!("for the end of the first interval, {seconds} s"), Tone::Plain);
        return pen.keys(view, buf);
    };
    let y = pen.path(s, buf);
    pen.verdict(view, s, y, buf);
    pen.tabs(view, tabs_at(s, area.height), buf);
    let height = body(s, area.height);
    let body = Rect { y: area.bottom() - 1 - height, height, ..area };
    if view.help || view.detail.is_some() || view.pane.list().is_none() {
        self::text(view, body, buf);
    } else if view.pane == Pane::All {
        super::panes::all(view, s, body, buf);
    } else if let Some(rows) = view.pane.rows(s) {
        each!(&rows, items => super::panes::list(view, view.pane, items, s, body, buf));
    }
    pen.keys(view, buf);
}

fn waits(s: &Snapshot) -> bool {
    s.path.iter().any(|stage| stage.wait.is_some())
}

/// Row of the pane's title. Where there is room a line of air parts it from the head.
fn tabs_at(s: &Snapshot, height: u16) -> u16 {
    HEAD + u16::from(waits(s)) + u16::from(height >= 40)
}

/// Rows of the pane on a terminal of `height`: between its title and the line of keys.
pub fn body(s: &Snapshot, height: u16) -> u16 {
    height.min(MAX.height).saturating_sub(tabs_at(s, height.min(MAX.height)) + 2)
}

/// Says what it needs, and still what matters most.
fn too_small(view: &View, area: Rect, buf: &mut Buffer) {
    let is = format!("{} x {}", area.width, area.height);
    let lines = [
        format!("weir watch needs {} x {}; here is {is}", MIN.width, MIN.height),
        view.shown.as_ref().map_or_else(String::new, |s| {
            let (label, what, _) = bottleneck(view, s);
            format!("{label}: {what}")
        }),
        "q quit".to_owned(),
    ];
    for (y, line) in (area.y..area.bottom()).zip(&lines) {
        view.theme.put(buf, area.x, y, area.width, line, view.theme.style(Tone::Plain));
    }
}

/// The stage at which most is lost.
pub fn worst(s: &Snapshot) -> Option<&Stage> {
    s.path.iter().filter(|stage| stage.lost() > 0).max_by_key(|stage| stage.lost())
}

/// Label and sentence about where the path is narrowest.
pub fn bottleneck(view: &View, s: &Snapshot) -> (&'static str, String, Tone) {
    let busy = s.cpus.iter().filter(|c| 1.0 - c.idle >= FULL).min_by(|a, b| a.idle.total_cmp(&b.idle));
    let packets = |c: &Cpu| c.irq + c.softirq + c.threads;
    let Some(stage) = worst(s) else {
        let closest = &view.report.closest;
        let near = if closest.is_empty() {
            String::new()
        } else {
            format!("; closest to its limit: {}", closest.join("; "))
        };
        return match busy {
            Some(c) if packets(c) >= 0.5 => {
                let what = format!(
                    "nothing is lost yet; CPU {} is full, packets take {:.0} %",
                    c.cpu,
                    packets(c) * 100.0
                );
                ("at limit", what, Tone::Full)
            }
            Some(c) => {
                let what = format!(
                    "nothing is lost; CPU {} is full, programs take {:.0} %",
                    c.cpu,
                    c.programs * 100.0
                );
                ("at limit", what, Tone::Full)
            }
            None => {
                let what = format!("{} k/s{}{near}", rate(s.ledger.offered, s), shed_beside(s));
                ("no loss", what, Tone::Plain)
            }
        };
    };
    let worst =
        s.consumers.iter().find(|c| c.lost.unwrap_or(0) > 0).filter(|_| stage.place == Place::Consumer);
    let whose = worst.map_or(String::new(), |c| format!(", {}", named(c)));
    let cpu = busy.filter(|c| packets(c) >= 0.5);
    let cpu =
        cpu.map_or(String::new(), |c| format!("; packets take {:.0} % of CPU {}", packets(c) * 100.0, c.cpu));
    let share = stage.lost() as f64 / s.ledger.offered.max(1) as f64 * 100.0;
    let what =
        format!("{}{whose}: {} k/s, {share:.1} % of all{cpu}", stage.place.name(), rate(stage.lost(), s));
    ("loses at", what, Tone::Lost)
}

/// Writes rows of the head.
struct Pen {
    theme: Theme,
    area: Rect,
}

impl Pen {
    fn at(&self, buf: &mut Buffer, y: u16, x: u16, text: &str, tone: Tone) -> u16 {
        let room = self.area.width.saturating_sub(x);
        self.theme.put(buf, self.area.x + x, self.area.y + y, room, text, self.theme.style(tone))
    }

    fn label(&self, buf: &mut Buffer, y: u16, text: &str, tone: Tone) {
        self.theme.put(buf, self.area.x, self.area.y + y, LABEL + 4, text, self.theme.style(tone));
    }

    fn right(&self, buf: &mut Buffer, y: u16, x: u16, width: u16, text: &str, tone: Tone) {
        self.theme.put_right(buf, self.area.x + x, self.area.y + y, width, text, self.theme.style(tone));
    }

    fn title(&self, view: &View, buf: &mut Buffer) {
        let mut right = Vec::new();
        if let Some(s) = &view.shown {
            right.push(clock(s.time_s));
            right.push(format!("{:.1} s", s.interval_s));
        }
        if view.frames_skipped > 0 {
            right.push(format!("{} frames skipped", view.frames_skipped));
        }
        if let Some(bytes) = view.recorded {
            right.push(format!("rec {}", size(bytes)));
        }
        right.push(mode(view));
        let right = right.join("  ");
        let used =
            u16::try_from(Span::raw(right.as_str()).width()).unwrap_or(self.area.width).min(self.area.width);
        let (host, names) = match &view.shown {
            Some(s) => (s.host.clone(), listed(&s.interfaces.iter().map(|i| &*i.name).collect::<Vec<_>>())),
            None => (String::new(), String::new()),
        };
        let left = format!("weir watch  {host} {names}");
        let room = self.area.width.saturating_sub(used + 2);
        self.theme.put(buf, self.area.x, self.area.y, room, &left, self.theme.style(Tone::Full));
        let tone = if view.paused { Tone::Full } else { Tone::Plain };
        self.right(buf, 0, self.area.width - used, used, &right, tone);
    }

    /// The path; returns the row below it.
    fn path(&self, s: &Snapshot, buf: &mut Buffer) -> u16 {
        let stages: Vec<&Stage> = s.path.iter().collect();
        let count = u16::try_from(stages.len().max(1)).unwrap_or(u16::MAX);
        let width = ((self.area.width - LABEL) / count).clamp(1, STAGE_MAX);
        let worst = worst(s).map(|stage| stage.place);
        let wait = waits(s);
        for (row, label) in (1..).zip(["path", "", "level", "in k/s", "out k/s", "lost k/s"]) {
            self.label(buf, row, label, Tone::Dim);
        }
        if wait {
            self.label(buf, 7, "wait p99", Tone::Dim);
        }
        let shown = usize::from((self.area.width - LABEL) / width);
        for (i, stage) in (0..).zip(stages.iter().take(shown)) {
            let x = LABEL + i * width;
            let is_worst = worst == Some(stage.place);
            // A sign before the name and one behind the number say what the colour says.
            let mark = if is_worst { "!" } else { "" };
            let mut name = format!("{mark}{}{}", title(stage.place), self.theme.sign("▸", ">"));
            if name.chars().count() > usize::from(width) {
                name.pop();
            }
            let used = u16::try_from(Span::raw(name.as_str()).width()).unwrap_or(width).min(width);
            let line = self.theme.sign("─", "-").repeat(usize::from(width.saturating_sub(used + 2)));
            self.at(buf, 1, x + 1, &line, Tone::Dim);
            self.right(buf, 1, x, width, &name, if is_worst { Tone::Lost } else { Tone::Plain });
            if let Some(level) = stage.level {
                let tone = match level {
                    _ if is_worst => Tone::Lost,
                    l if l >= FULL => Tone::Full,
                    _ => Tone::Plain,
                };
                let (full, rest) = self.theme.bar(level, usize::from(width - 2));
                let end = self.at(buf, 2, x + 2, &full, tone);
                self.at(buf, 2, end - self.area.x, &rest, Tone::Dim);
                self.right(buf, 3, x, width, &format!("{:.0} %", level * 100.0), tone);
            }
            for (row, count) in [(4, stage.r#in), (5, stage.out)] {
                if let Some(n) = count {
                    let tone = if n == 0 { Tone::Dim } else { Tone::Plain };
                    self.right(buf, row, x, width, &rate(n, s), tone);
                }
            }
            match stage.lost() {
                0 => self.right(buf, 6, x, width, "0.0", Tone::Dim),
                n => self.right(buf, 6, x, width, &format!("{}!", rate(n, s)), Tone::Lost),
            }
            if let Some(wait) = stage.wait {
                let about = if wait.estimated { "~" } else { "" };
                self.right(buf, 7, x, width, &format!("{about}{}", micros(wait.p99_us)), Tone::Plain);
            }
        }
        let y = 7 + u16::from(wait);
        self.label(buf, y, "lost by", Tone::Dim);
        let reasons = s.path.iter().flat_map(|stage| {
            lost_by(&stage.drops).map(|(why, n)| format!("{} {why} {}", stage.place.name(), rate(*n, s)))
        });
        let reasons: Vec<String> = reasons.collect();
        match reasons.is_empty() {
            true => self.at(buf, y, LABEL + 4, &format!("nothing{}", shed_beside(s)), Tone::Dim),
            false => {
                let what = format!("{} k/s{}", reasons.join(", "), shed_beside(s));
                self.at(buf, y, LABEL + 4, &what, Tone::Lost)
            }
        };
        y + 1
    }

    /// Two lines: where, and why.
    fn verdict(&self, view: &View, s: &Snapshot, y: u16, buf: &mut Buffer) {
        let (label, what, tone) = bottleneck(view, s);
        self.label(buf, y, label, tone);
        self.at(buf, y, LABEL + 4, &what, tone);
        self.label(buf, y + 1, "because", Tone::Dim);
        let (why, tone) = match view.report.findings.first() {
            Some(finding) => {
                let more = match view.report.findings.len() - 1 {
                    0 => String::new(),
                    n => format!("; {n} more"),
                };
                (format!("{}{more}", finding.title), Tone::Plain)
            }
            None if view.report.lost > 0 => {
                ("no rule of weir explain finds a cause in this interval".to_owned(), Tone::Dim)
            }
            None if view.report.unplaced.is_some() => {
                ("not known: packets are in no counter, see weir explain".to_owned(), Tone::Dim)
            }
            None => ("nothing is wrong".to_owned(), Tone::Dim),
        };
        self.at(buf, y + 1, LABEL + 4, &why, tone);
    }

    fn tabs(&self, view: &View, y: u16, buf: &mut Buffer) {
        let mut x = 0;
        for (number, pane) in (1..).zip(Pane::ALL) {
            let name = format!("{number} {}", pane.name());
            let style = match pane == view.pane {
                true => self.theme.style(Tone::Plain).add_modifier(Modifier::REVERSED),
                false => self.theme.style(Tone::Plain),
            };
            // Reverse video is not everywhere: brackets say the same.
            let text = if pane == view.pane { format!("[{name}]") } else { format!(" {name} ") };
            x = self.theme.put(buf, self.area.x + x, self.area.y + y, self.area.width - x, &text, style)
                - self.area.x;
        }
        let Some(list) = view.pane.list().map(|list| &view.lists[list]) else { return };
        let room = self.area.width.saturating_sub(x + 1);
        let rows = list.order.len().to_string();
        if view.detail.is_none() && !view.help {
            self.right(buf, y, x + 1, room, &rows, Tone::Dim);
        }
    }

    fn keys(&self, view: &View, buf: &mut Buffer) {
        let y = self.area.height - 1;
        if let Some(note) = &view.note {
            self.at(buf, y, 0, note, Tone::Lost);
            return;
        }
        let mut x = 0;
        if view.typing || (!view.filter.is_empty() && view.pane.list().is_some()) {
            let cursor = if view.typing { "_" } else { "" };
            let rows = view.pane.list().map_or(0, |list| view.lists[list].order.len());
            let filter = format!("/{}{cursor}   {}   ", view.filter, count(rows, "row"));
            x = self.at(buf, y, 0, &filter, Tone::Full) - self.area.x;
        }
        self.at(buf, y, x, hint(view), Tone::Dim);
    }
}

/// What the keys do now.
fn hint(view: &View) -> &'static str {
    match view {
        v if v.typing => "enter keep   esc all rows",
        v if v.help => "esc back   q quit",
        v if v.detail.is_some() => {
            "esc back   up down scroll   tab pane   space pause   [ ] step   ? help   q quit"
        }
        v if v.pane.list().is_none() => {
            "up down scroll   tab pane   space pause   [ ] step   ? help   q quit"
        }
        v if !v.filter.is_empty() => "enter open   esc all rows   s sort   ? help",
        _ => "enter open  e explain  s sort  / filter  tab pane  space pause  [ ] step  ? help",
    }
}

/// `live`, `paused 12 s ago`, `replay 3 of 60 x4`.
fn mode(view: &View) -> String {
    match view.feed {
        Feed::Replay { at, total, speed } => {
            let how = if view.paused { "paused".to_owned() } else { format!("x{speed}") };
            format!("replay {} of {total} {how}", at + 1)
        }
        Feed::Live if !view.paused => "live".into(),
        Feed::Live => match (&view.shown, view.history.last()) {
            (Some(s), Some(newest)) => format!("paused {:.0} s ago", (newest.time_s - s.time_s).max(0.0)),
            _ => "paused".into(),
        },
    }
}

/// Time of day of a moment, seconds since 1970.
pub fn clock(time_s: f64) -> String {
    let seconds = time_s as u64 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 1e6 => format!("{:.0} kB", b / 1e3),
        b => format!("{:.1} MB", b / 1e6),
    }
}

/// `12 us`, `1.25 ms`, `1.20 s`.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Lines of what is shown as text: help, detail, ledger or report.
pub fn lines(view: &View) -> Vec<text::Line> {
    match (&view.shown, &view.detail) {
        _ if view.help => text::help(view),
        (Some(s), Some(target)) => {
            let name = vec![(format!("{} {}", view.theme.sign("▸", ">"), target.name), Tone::Full)];
            std::iter::once(name).chain(text::detail(view, s, target)).collect()
        }
        (Some(s), None) if view.pane == Pane::Ledger => text::ledger(s),
        (Some(_), None) if view.pane == Pane::Explain => text::report(&view.report),
        _ => Vec::new(),
    }
}

fn text(view: &View, area: Rect, buf: &mut Buffer) {
    let lines = lines(view);
    let room = usize::from(area.height);
    let first = if view.help { 0 } else { view.scroll.min(lines.len().saturating_sub(room)) };
    for (y, line) in (area.y..area.bottom()).zip(lines.iter().skip(first)) {
        let mut x = area.x;
        for (part, tone) in line {
            x = view.theme.put(buf, x, y, area.right().saturating_sub(x), part, view.theme.style(*tone));
        }
    }
    let below = lines.len().saturating_sub(first + room);
    if below > 0 && area.height > 0 {
        let more = format!(" {below} more lines below ");
        view.theme.put_right(buf, area.x, area.bottom() - 1, area.width, &more, view.theme.style(Tone::Full));
    }
}
