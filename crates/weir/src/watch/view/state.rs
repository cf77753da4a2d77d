//! What is shown and what the user has chosen. No clock, no terminal: snapshots and keys in, actions out.

use super::lists::{Item, List, Rows, each};
use super::theme::Theme;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Size;
use see::Snapshot;
use see::explain::{Report, explain};
use see::model::{Consumer, Cpu, Process, Queue};
use std::sync::Arc;
use std::time::Duration;

/// Most intervals that are kept for going back and for the curves.
pub const HISTORY: usize = 120;
/// Most characters of a filter.
const FILTER_MAX: usize = 40;
/// Fastest replay.
const SPEED_MAX: u32 = 64;

/// What fills the lower part of the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    /// Something of everything.
    #[default]
    All,
    /// Receive queues.
    Queues,
    /// CPUs.
    Cpus,
    /// Sockets and other consumers.
    Consumers,
    /// Processes that receive or work on packets.
    Processes,
    /// Where every packet went.
    Ledger,
    /// Why.
    Explain,
}

impl Pane {
    /// In the order of their keys 1 to 7.
    pub const ALL: [Pane; 7] =
        [Pane::All, Pane::Queues, Pane::Cpus, Pane::Consumers, Pane::Processes, Pane::Ledger, Pane::Explain];

    /// Its word.
    pub fn name(self) -> &'static str {
        ["all", "queues", "CPUs", "consumers", "processes", "ledger", "explain"][self as usize]
    }

    /// The list that its keys move in.
    pub fn list(self) -> Option<usize> {
        match self {
            Pane::Queues => Some(0),
            Pane::Cpus => Some(1),
            Pane::All | Pane::Consumers => Some(2),
            Pane::Processes => Some(3),
            Pane::Ledger | Pane::Explain => None,
        }
    }

    /// Its rows in a snapshot.
    pub fn rows(self, s: &Snapshot) -> Option<Rows<'_>> {
        Some(match self.list()? {
            0 => Rows::Queues(s.interfaces.iter().flat_map(|i| &i.queues).collect()),
            1 => Rows::Cpus(s.cpus.iter().collect()),
            2 => Rows::Consumers(s.consumers.iter().collect()),
            _ => Rows::Processes(s.processes.iter().collect()),
        })
    }

    fn columns(self) -> usize {
        [Queue::COLUMNS.len(), Cpu::COLUMNS.len(), Consumer::COLUMNS.len(), Process::COLUMNS.len()]
            [self.list().unwrap_or(0)]
    }
}

/// Where snapshots come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Feed {
    /// This host.
    Live,
    /// A recording.
    Replay {
        /// Place of the interval that is shown, from 0.
        at: usize,
        /// Intervals in the file.
        total: usize,
        /// Times as fast as it was recorded.
        speed: u32,
    },
}

/// One row that is looked at closely.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Its list.
    pub pane: Pane,
    /// [`Item::key`].
    pub key: u64,
    /// [`Item::name`], also after it has gone.
    pub name: String,
}

/// What the caller has to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Draw.
    Draw,
    /// Nothing.
    Nothing,
    /// End.
    Quit,
    /// Stop as a job of the shell.
    Suspend,
    /// Draw all anew: something else has written to the terminal.
    Redraw,
    /// Show this interval of the recording.
    Seek(usize),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct View {
    /// Signs and colours.
    pub theme: Theme,
    /// Terminal, columns and rows.
    pub size: Size,
    /// Time between two readings.
    pub interval: Duration,
    /// Where snapshots come from.
    pub feed: Feed,
    /// What is shown.
    pub shown: Option<Arc<Snapshot>>,
    /// What it means.
    pub report: Report,
    /// Intervals, the newest last; at most [`HISTORY`].
    pub history: Vec<Arc<Snapshot>>,
    /// Nothing moves.
    pub paused: bool,
    /// Lower part.
    pub pane: Pane,
    /// Queues, CPUs, consumers, processes.
    pub lists: [List; 4],
    /// First line of a pane of lines or of a detail.
    pub scroll: usize,
    /// The row that is open.
    pub detail: Option<Target>,
    /// The help is shown.
    pub help: bool,
    /// Rows must contain it.
    pub filter: String,
    /// Keys go into the filter.
    pub typing: bool,
    /// Frames that a slow terminal did not get.
    pub frames_skipped: u64,
    /// Bytes of the recording that is written.
    pub recorded: Option<u64>,
    /// One line about what went wrong with the recording.
    pub note: Option<String>,
}

impl View {
    /// Before the first snapshot.
    pub fn new(theme: Theme, size: Size, interval: Duration, feed: Feed) -> View {
        View {
            theme,
            size,
            interval,
            feed,
            shown: None,
            report: Report::default(),
            history: Vec::new(),
            paused: false,
            pane: Pane::All,
            lists: Default::default(),
            scroll: 0,
            detail: None,
            help: false,
            filter: String::new(),
            typing: false,
            frames_skipped: 0,
            recorded: None,
            note: None,
        }
    }

    /// A new interval of this host. While paused it is only kept.
    pub fn arrived(&mut self, snapshot: Arc<Snapshot>) {
        if self.history.len() == HISTORY {
            self.history.remove(0);
        }
        self.history.push(Arc::clone(&snapshot));
        if !self.paused {
            self.show(snapshot);
        }
    }

    /// Interval `at` of the recording; `past` gives those before it after a jump.
    pub fn replayed(
        &mut self,
        at: usize,
        snapshot: Arc<Snapshot>,
        past: impl FnOnce() -> Vec<Arc<Snapshot>>,
    ) {
        let Feed::Replay { at: before, .. } = &mut self.feed else { return };
        let back = before.checked_sub(at);
        let next = *before + 1 == at;
        *before = at;
        match back {
            Some(back) if back < self.history.len() => self.history.truncate(self.history.len() - 1 - back),
            None if next => {}
            _ => self.history = past(),
        }
        let most = self.history.len().min(HISTORY - 1);
        self.history.drain(..self.history.len() - most);
        self.history.push(Arc::clone(&snapshot));
        self.show(snapshot);
    }

    fn show(&mut self, snapshot: Arc<Snapshot>) {
        self.report = explain(&snapshot);
        self.shown = Some(snapshot);
        self.settle(false);
    }

    /// Orders all lists; `fresh`: at once, because the user asked.
    fn settle(&mut self, fresh: bool) {
        let Some(s) = self.shown.clone() else { return };
        for pane in [Pane::Queues, Pane::Cpus, Pane::Consumers, Pane::Processes] {
            let (Some(at), Some(rows)) = (pane.list(), pane.rows(&s)) else { continue };
            each!(&rows, items => self.lists[at].settle(items, s.time_s, &self.filter, fresh));
        }
    }

    /// Intervals up to the one that is shown.
    pub fn past(&self) -> &[Arc<Snapshot>] {
        let Some(shown) = &self.shown else { return &[] };
        let end = self.history.iter().position(|s| Arc::ptr_eq(s, shown));
        &self.history[..end.map_or(0, |end| end + 1)]
    }

    /// Rows of the pane.
    fn body(&self) -> usize {
        self.shown.as_ref().map_or(1, |s| usize::from(super::draw::body(s, self.size.height))).max(1)
    }

    /// Rows of a list, without its headings.
    fn page(&self) -> isize {
        isize::try_from(self.body()).unwrap_or(isize::MAX).saturating_sub(1).max(1)
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                KeyCode::Char('l') => Action::Redraw,
                _ => Action::Nothing,
            };
        }
        if self.typing {
            return self.typed(key.code);
        }
        if self.help {
            return match key.code {
                KeyCode::Char('q') => Action::Quit,
                KeyCode::Esc | KeyCode::Char('?') => {
                    self.help = false;
                    Action::Draw
                }
                _ => Action::Nothing,
            };
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('?') => self.help = true,
            KeyCode::Esc => self.back(),
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Pane::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='7') => self.open(Pane::ALL[digit as usize - '1' as usize]),
            KeyCode::Char('e') => self.open(Pane::Explain),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-self.page()),
            KeyCode::PageDown => self.go(self.page()),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            KeyCode::Enter => self.enter(),
            KeyCode::Char('s') | KeyCode::Char('S') => return self.sort(key.code == KeyCode::Char('S')),
            KeyCode::Char('/') if self.pane.list().is_some() => {
                self.detail = None;
                self.typing = true;
            }
            KeyCode::Char(' ') => return self.pause(),
            KeyCode::Char('[') => return self.step(-1),
            KeyCode::Char(']') => return self.step(1),
            KeyCode::Char('{') => return self.step(-10),
            KeyCode::Char('}') => return self.step(10),
            KeyCode::Char('+') => return self.faster(true),
            KeyCode::Char('-') => return self.faster(false),
            _ => return Action::Nothing,
        }
        Action::Draw
    }

    fn typed(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
            _ => return Action::Nothing,
        }
        self.settle(true);
        Action::Draw
    }

    fn back(&mut self) {
        self.scroll = 0;
        if self.detail.take().is_some() {
        } else if !self.filter.is_empty() {
            self.filter.clear();
            self.settle(true);
        } else {
            self.pane = Pane::All;
        }
    }

    fn turn(&mut self, by: usize) {
        self.open(Pane::ALL[(self.pane as usize + by) % Pane::ALL.len()]);
    }

    fn open(&mut self, pane: Pane) {
        self.pane = pane;
        self.detail = None;
        self.scroll = 0;
    }

    fn go(&mut self, rows: isize) {
        match self.pane.list().filter(|_| self.detail.is_none()) {
            Some(list) => self.lists[list].go(rows),
            // The last line stays in sight.
            None => {
                let last = super::draw::lines(self).len().saturating_sub(self.body());
                self.scroll = self.scroll.saturating_add_signed(rows).min(last);
            }
        }
    }

    fn enter(&mut self) {
        let (Some(s), Some(list), None) = (&self.shown, self.pane.list(), &self.detail) else { return };
        let list = &self.lists[list];
        let (Some(key), Some(place)) = (list.key(), list.order.get(list.selected)) else { return };
        let pane = if self.pane == Pane::All { Pane::Consumers } else { self.pane };
        let Some(rows) = pane.rows(s) else { return };
        let name = each!(&rows, items => items.get(*place as usize).map(|item| item.name()));
        self.detail = name.map(|name| Target { pane, key, name });
        self.scroll = 0;
    }

    fn sort(&mut self, reverse: bool) -> Action {
        let Some(at) = self.pane.list().filter(|_| self.detail.is_none()) else { return Action::Nothing };
        let columns = self.pane.columns();
        let list = &mut self.lists[at];
        match reverse {
            true => list.turn_round(),
            false => list.next_sort(columns),
        }
        self.settle(true);
        Action::Draw
    }

    fn pause(&mut self) -> Action {
        self.paused = !self.paused;
        if let (false, Feed::Live, Some(newest)) = (self.paused, &self.feed, self.history.last().cloned()) {
            self.show(newest);
        }
        Action::Draw
    }

    /// A step in the history or the recording: what moves by hand does not move by itself.
    fn step(&mut self, by: isize) -> Action {
        if self.shown.is_none() {
            return Action::Nothing;
        }
        self.paused = true;
        if let Feed::Replay { at, total, .. } = self.feed {
            return Action::Seek(at.saturating_add_signed(by).min(total.saturating_sub(1)));
        }
        // What is shown may be older than all that is kept.
        let at = self.past().len().saturating_sub(1);
        let to = at.saturating_add_signed(by).min(self.history.len().saturating_sub(1));
        if let Some(snapshot) = self.history.get(to).cloned() {
            self.show(snapshot);
        }
        Action::Draw
    }

    fn faster(&mut self, faster: bool) -> Action {
        let Feed::Replay { speed, .. } = &mut self.feed else { return Action::Nothing };
        *speed = if faster { (*speed * 2).min(SPEED_MAX) } else { (*speed / 2).max(1) };
        Action::Draw
    }
}
