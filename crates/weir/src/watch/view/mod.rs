//! The live view on a terminal.
//!
//! One thread reads this host and puts the newest interval into a place of one; one writes frames to the terminal; one
//! waits for keys, one for signals. This one keeps the [`View`] and draws it when the terminal has taken the last frame: a
//! slow terminal misses frames, and nothing waits for it.

mod draw;
mod feed;
mod lists;
mod panes;
mod state;
mod terminal;
mod text;
mod theme;

#[cfg(test)]
mod tests;

pub use draw::micros;

use crate::cli::WatchArgs;
use crate::error::failed;
use crate::out::{ColorWhen, Paint};
use feed::{Live, Recording, Slot};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::layout::{Rect, Size};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use state::{Action, Feed, HISTORY, View};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use terminal::Screen;
use theme::Theme;

/// Most messages that wait; keys beyond wait in the terminal.
const MESSAGES_MAX: usize = 64;
/// Shortest and longest time that an interval of a recording is shown.
const SHOWN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(60));

/// What wakes the view.
enum Message {
    Key(KeyEvent),
    Resize(Size),
    /// A new interval, or a frame that was written: it looks itself.
    Look,
    /// A signal to end.
    Stop,
    /// The thread that reads this host has ended.
    Ended,
}

/// True if standard input and output are a terminal that can move its cursor.
pub fn possible() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !dumb
}

/// Shows this host, or the recording of `args`, until the user ends it.
///
/// # Errors
/// As `weir watch`; the terminal is as it was before the error is printed.
pub fn run(args: &WatchArgs, when: ColorWhen) -> anyhow::Result<ExitCode> {
    if when == ColorWhen::Always {
        // crossterm asks NO_COLOR itself; the option is stronger.
        ratatui::crossterm::style::force_color_output(true);
    }
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].map(|name| std::env::var(name).ok());
    let theme = Theme::new(Paint::stdout(when).coloured(), locale);
    let (sender, messages) = sync_channel(MESSAGES_MAX);
    let stop = Arc::new(AtomicBool::new(false));
    let source = match &args.replay {
        Some(path) => Source::Replay(Box::new(Recording::open(path)?)),
        None => Source::Live(host(args, &stop, &sender)?),
    };
    let feed = match &source {
        Source::Live(_) => Feed::Live,
        Source::Replay(recording) => Feed::Replay { at: 0, total: recording.len(), speed: 1 },
    };
    let mut view = View::new(theme, terminal::size(), args.interval, feed);
    view.recorded = args.record.as_ref().map(|_| 0);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let waker = sender.clone();
    let screen = Screen::enter(waking(&sender)).map_err(|e| failed(format!("the terminal: {e}")))?;
    std::thread::Builder::new().name("weir-signals".into()).spawn(move || {
        for _ in signals.forever() {
            let _ = waker.send(Message::Stop);
        }
    })?;
    let keys = sender.clone();
    std::thread::Builder::new().name("weir-keys".into()).spawn(move || read_keys(&keys))?;
    let mut shown = Shown { view, screen: Some(screen), source, drawn: None, due: None, sender };
    let result = shown.until_the_end(&messages);
    stop.store(true, Ordering::Relaxed);
    // The terminal first: an error is printed on the screen that the user had.
    shown.screen = None;
    // Nobody waits for room in it any more.
    drop(messages);
    result?;
    match shown.source {
        Source::Live(host) => match host.thread.join() {
            Ok(result) => result?,
            Err(panic) => std::panic::resume_unwind(panic),
        },
        Source::Replay(recording) => recording.tell(),
    }
    Ok(ExitCode::SUCCESS)
}

fn waking(sender: &SyncSender<Message>) -> impl Fn() + Send + use<> {
    let sender = sender.clone();
    // If the channel is full, it looks anyhow when it has read what is there.
    move || drop(sender.try_send(Message::Look))
}

fn read_keys(sender: &SyncSender<Message>) {
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Message::Key(key),
            Ok(Event::Resize(width, height)) => Message::Resize(Size { width, height }),
            Ok(_) => continue,
            Err(_) => Message::Stop,
        };
        let last = matches!(message, Message::Stop);
        if sender.send(message).is_err() || last {
            return;
        }
    }
}

/// The thread that reads this host.
struct Host {
    live: Arc<Live>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// Tells the view that a thread has ended, also by a panic.
struct OnEnd(SyncSender<Message>);

impl Drop for OnEnd {
    fn drop(&mut self) {
        let _ = self.0.send(Message::Ended);
    }
}

fn host(args: &WatchArgs, stop: &Arc<AtomicBool>, sender: &SyncSender<Message>) -> anyhow::Result<Host> {
    crate::watch::check_names(&args.interfaces)?;
    let mut record = args.record.as_deref().map(crate::watch::record_to).transpose()?;
    let mut sampled = crate::watch::Host::open(args)?;
    let live = Arc::new(Live { newest: Slot::new(), stop: Arc::clone(stop), recorded: AtomicU64::new(0) });
    let (shared, wake, end, interval) =
        (Arc::clone(&live), waking(sender), OnEnd(sender.clone()), args.interval);
    let thread = std::thread::Builder::new().name("weir-sample".into()).spawn(move || {
        let _end = end;
        feed::sample(&shared, &mut sampled, interval, &mut record, wake)
    })?;
    Ok(Host { live, thread })
}

enum Source {
    Live(Host),
    Replay(Box<Recording>),
}

/// The view and all that it is connected with.
struct Shown {
    view: View,
    screen: Option<Screen>,
    source: Source,
    /// What the terminal shows; none: unknown.
    drawn: Option<Buffer>,
    /// When the next interval of a recording is shown.
    due: Option<Instant>,
    sender: SyncSender<Message>,
}

impl Shown {
    fn until_the_end(&mut self, messages: &Receiver<Message>) -> anyhow::Result<()> {
        if let Source::Replay(_) = self.source {
            self.seek(0);
        }
        let mut dirty = true;
        loop {
            dirty |= self.newest(dirty);
            if self.screen.as_ref().is_some_and(Screen::failed) {
                return Err(failed("the terminal cannot be written to any more"));
            }
            if dirty && self.screen.as_ref().is_some_and(Screen::ready) {
                self.draw()?;
                dirty = false;
            }
            self.plan();
            let first = match self.due {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            if let Err(RecvTimeoutError::Timeout) = first {
                dirty |= self.play();
            }
            // Keys that came together make one frame.
            for message in first.into_iter().chain(messages.try_iter().take(MESSAGES_MAX)) {
                match self.handle(message)? {
                    Action::Quit => return Ok(()),
                    Action::Nothing => {}
                    Action::Draw => dirty = true,
                    Action::Redraw => (dirty, self.drawn) = (true, None),
                    Action::Seek(at) => dirty |= self.seek(at),
                    Action::Suspend => dirty |= self.suspend()?,
                }
            }
        }
    }

    /// Takes the newest interval of this host. `waits`: one before it has not been drawn yet.
    fn newest(&mut self, waits: bool) -> bool {
        let Source::Live(host) = &self.source else { return false };
        let Some(snapshot) = host.live.newest.take() else { return false };
        if self.view.recorded.is_some() {
            self.view.recorded = Some(host.live.recorded.load(Ordering::Relaxed));
        }
        let late = waits && self.view.shown.is_some() && !self.screen.as_ref().is_some_and(Screen::ready);
        self.view.frames_skipped += u64::from(late);
        self.view.arrived(snapshot);
        true
    }

    fn handle(&mut self, message: Message) -> anyhow::Result<Action> {
        Ok(match message {
            Message::Key(key) => self.view.key(key),
            Message::Resize(size) => {
                self.view.size = size;
                Action::Redraw
            }
            Message::Look => Action::Nothing,
            Message::Stop | Message::Ended => Action::Quit,
        })
    }

    /// Draws what has changed, as one write.
    fn draw(&mut self) -> anyhow::Result<()> {
        let Some(screen) = &self.screen else { return Ok(()) };
        let Size { width, height } = self.view.size;
        let area = Rect::new(0, 0, width.min(draw::MAX.width), height.min(draw::MAX.height));
        let mut next = Buffer::empty(area);
        draw::draw(&self.view, area, &mut next);
        let mut bytes = Vec::new();
        let before = match self.drawn.take() {
            Some(before) if before.area == area => before,
            _ => {
                bytes = terminal::clear_sequence();
                Buffer::empty(area)
            }
        };
        CrosstermBackend::new(&mut bytes).draw(before.diff(&next).into_iter())?;
        screen.send(bytes);
        self.drawn = Some(next);
        Ok(())
    }

    /// Shows interval `at` of the recording; one that cannot be read is named.
    fn seek(&mut self, at: usize) -> bool {
        let Source::Replay(recording) = &mut self.source else { return false };
        match recording.read(at) {
            Ok(snapshot) => {
                self.view.note = None;
                let past = || feed::past(recording, at, HISTORY - 1);
                self.view.replayed(at, Arc::new(snapshot), past);
            }
            Err(error) => {
                self.view.note = Some(format!("{error:#}"));
                if let Feed::Replay { at: shown, .. } = &mut self.view.feed {
                    *shown = at;
                }
            }
        }
        self.due = None;
        true
    }

    /// The next interval of the recording; behind the last one it pauses.
    fn play(&mut self) -> bool {
        let Feed::Replay { at, total, .. } = self.view.feed else { return false };
        if at + 1 < total {
            return self.seek(at + 1);
        }
        self.view.paused = true;
        self.due = None;
        true
    }

    /// When the next interval of the recording is due.
    fn plan(&mut self) {
        let Feed::Replay { speed, .. } = self.view.feed else { return };
        if self.view.paused {
            self.due = None;
        } else if self.due.is_none() {
            let lasts = self.view.shown.as_ref().map_or(1.0, |s| s.interval_s) / f64::from(speed);
            let lasts = Duration::try_from_secs_f64(lasts).unwrap_or(SHOWN.1).clamp(SHOWN.0, SHOWN.1);
            self.due = Some(Instant::now() + lasts);
        }
    }

    /// Stops as a job of the shell, with the terminal as it was.
    fn suspend(&mut self) -> anyhow::Result<bool> {
        self.screen = None;
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGTSTP)?;
        self.screen = Some(Screen::enter(waking(&self.sender))?);
        (self.view.size, self.drawn) = (terminal::size(), None);
        Ok(true)
    }
}
