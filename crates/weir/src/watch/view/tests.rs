//! What is drawn and what keys do, from a recording of an overload and from made-up snapshots.

use super::draw::{self, HEAD};
use super::state::{Action, Feed, HISTORY, Pane, View};
use super::theme::Theme;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Size;
use ratatui::style::{Color, Modifier};
use see::Snapshot;
use see::guard::{Guard, Poller, Source};
use see::model::{Consumer, Cpu, Interface, Kind, Ledger, Place, Process, Queue, Stage};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

const COLOUR: Theme = Theme { colour: true, unicode: true };
const PLAIN: Theme = Theme { colour: false, unicode: false };

fn size(width: u16, height: u16) -> Size {
    Size { width, height }
}

fn view(theme: Theme, width: u16, height: u16) -> View {
    View::new(theme, size(width, height), Duration::from_secs(1), Feed::Live)
}

/// The recording of an overload: calm, then a program that does not read fast enough.
fn recording() -> Vec<Snapshot> {
    let text = include_str!("../../../tests/data/overload.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn buffer(view: &View) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(view.size.width, view.size.height)).unwrap();
    terminal.draw(|frame| draw::draw(view, frame.area(), frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

fn rows(buf: &Buffer) -> Vec<String> {
    let row = |y| (0..buf.area.width).map(|x| buf[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..buf.area.height).map(row).collect()
}

fn text(view: &View) -> String {
    rows(&buffer(view)).join("\n")
}

fn press(view: &mut View, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            '\u{2191}' => KeyCode::Up,
            '\u{2193}' => KeyCode::Down,
            '\u{2190}' => KeyCode::Left,
            other => KeyCode::Char(other),
        };
        view.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

/// The colour in which `part` is drawn, and whether it is bold.
fn style_of(buf: &Buffer, part: &str) -> (Color, bool) {
    for (y, row) in (0..).zip(rows(buf)) {
        if let Some(at) = row.find(part) {
            let cell = &buf[(row[..at].chars().count() as u16, y)];
            return (cell.fg, cell.modifier.contains(Modifier::BOLD));
        }
    }
    panic!("no {part:?} in\n{}", rows(buf).join("\n"));
}

fn stage(place: Place, came: u64, lost: u64, level: Option<f64>) -> Stage {
    let drops = if lost > 0 { [("full".to_owned(), lost)].into() } else { Default::default() };
    Stage { place, r#in: Some(came), out: Some(came - lost), drops, level, ..Stage::default() }
}

/// A host with every stage, in which `place` loses a third.
fn lossy(place: Option<Place>) -> Snapshot {
    let mut came = 900_000;
    let mut path = Vec::new();
    for at in Place::ALL {
        let lost = if Some(at) == place { came / 3 } else { 0 };
        path.push(stage(at, came, lost, [Place::Ring, Place::Consumer].contains(&at).then_some(0.4)));
        came -= lost;
    }
    Snapshot {
        host: "edge1".into(),
        time_s: 50_491.0,
        interval_s: 1.0,
        path,
        interfaces: vec![Interface { name: "eth0".into(), ..Interface::default() }],
        cpus: vec![Cpu { softirq: 0.5, idle: 0.5, ..Cpu::default() }],
        ledger: Ledger { offered: 900_000, ..Ledger::default() },
        ..Snapshot::default()
    }
}

/// `queues` receive queues and CPUs, `sockets` sockets.
fn large(queues: u32, sockets: u32) -> Snapshot {
    let queue = |q| Queue {
        name: format!("eth0/{q}"),
        queue: q,
        packets: Some(1_000 + u64::from(q)),
        ..Queue::default()
    };
    let socket = |n: u32| Consumer {
        kind: Kind::Udp,
        socket: format!("udp {}", 1_000 + n),
        process: format!("program-{n}"),
        pid: n + 1,
        id: u64::from(n),
        level: Some(f64::from(n % 100) / 100.0),
        lost: Some(u64::from(n % 7)),
        ..Consumer::default()
    };
    Snapshot {
        interfaces: vec![Interface {
            name: "eth0".into(),
            queues: (0..queues).map(queue).collect(),
            ..Interface::default()
        }],
        cpus: (0..queues).map(|cpu| Cpu { cpu, idle: f64::from(cpu) / 64.0, ..Cpu::default() }).collect(),
        consumers: (0..sockets).map(socket).collect(),
        processes: (0..256)
            .map(|pid| Process { pid, name: format!("p{pid}"), ..Process::default() })
            .collect(),
        ..lossy(None)
    }
}

#[test]
fn an_overload_at_80_x_24() {
    let mut view = view(COLOUR, 80, 24);
    recording().into_iter().for_each(|s| view.arrived(Arc::new(s)));
    let buf = buffer(&view);
    let text = rows(&buf).join("\n");
    for part in [
        "!consumer▸",
        "loses at    consumer, receiver ",
        "lost by     consumer socket ",
        "because     ",
        "[1 all]",
        "ledger k/s",
        "! receiver",
    ] {
        assert!(text.contains(part) || text.contains(&part.replace("! ", "!")), "no {part:?} in\n{text}");
    }
    assert_eq!(style_of(&buf, "!consumer"), (Color::Red, true));
    assert_eq!(style_of(&buf, "loses at"), (Color::Red, true));
    assert_eq!(style_of(&buf, "NAPI"), (Color::Reset, false));
    // One tank is full, and it is the red one.
    assert_eq!(style_of(&buf, "█"), (Color::Red, true));
}

#[test]
fn an_overload_at_200_x_60_has_curves_and_all_rows() {
    let mut view = view(COLOUR, 200, 60);
    recording().into_iter().for_each(|s| view.arrived(Arc::new(s)));
    let text = text(&view);
    for part in ["offered", "delivered", "one scale up to", "bound to", "10.9.0.2:514", "212", "ledger k/s"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn the_bottleneck_is_marked_by_a_sign_and_a_colour_wherever_it_is() {
    for place in Place::ALL {
        let mut view = view(COLOUR, 80, 24);
        view.arrived(Arc::new(lossy(Some(place))));
        let name = format!("!{}", crate::watch::table::title(place));
        assert_eq!(style_of(&buffer(&view), &name), (Color::Red, true), "{name}");
        // Without colours the signs are the same, in ASCII.
        view.theme = PLAIN;
        let buf = buffer(&view);
        let text = rows(&buf).join("\n");
        assert!(text.contains(&name) && text.contains("300.0!"), "{text}");
        assert!(text.is_ascii(), "{text}");
        assert!(buf.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
    let mut view = view(COLOUR, 80, 24);
    view.arrived(Arc::new(lossy(None)));
    let buf = buffer(&view);
    assert!(!rows(&buf).join("").contains('!'), "{}", rows(&buf).join("\n"));
    assert!(buf.content().iter().all(|cell| cell.fg != Color::Red));
}

#[test]
fn a_full_cpu_without_loss_is_said() {
    let mut s = lossy(None);
    s.cpus[0] = Cpu { softirq: 0.97, programs: 0.03, ..Cpu::default() };
    let mut view = view(COLOUR, 80, 24);
    view.arrived(Arc::new(s));
    let text = text(&view);
    assert!(text.contains("at limit    nothing is lost yet; CPU 0 is full, packets take 97 %"), "{text}");
    assert!(text.contains("\n▸    0"), "{text}");
}

#[test]
fn little_is_not_drawn_as_nothing_and_all_columns_fit() {
    for (width, height) in [(80, 24), (100, 30), (132, 43), (160, 50), (200, 60), (500, 200)] {
        for pane in 0..Pane::ALL.len() {
            let mut view = view(COLOUR, width, height);
            let mut s = large(4, 20);
            s.path = lossy(Some(Place::Consumer)).path;
            s.ledger.drops = [("socket".into(), 1), ("ring".into(), 300_000)].into();
            view.arrived(Arc::new(s));
            press(&mut view, &(pane + 1).to_string());
            let text = text(&view);
            assert!(text.contains(&format!("[{} {}]", pane + 1, Pane::ALL[pane].name())), "{text}");
            assert!(pane != 0 || text.contains("<0.1 socket"), "{text}");
            assert!(text.contains("? help"), "{width} {pane}\n{text}");
            let cut: Vec<&str> = text.lines().skip(1).filter(|row| row.contains('…')).collect();
            assert!(cut.is_empty() || pane == 6, "{width} {pane}: {cut:#?}");
        }
    }
}

#[test]
fn too_small_says_what_it_needs_and_what_is_wrong() {
    for (width, height) in [(79, 24), (80, 23), (40, 10), (1, 1), (0, 0)] {
        let mut view = view(COLOUR, width, height);
        view.arrived(Arc::new(lossy(Some(Place::Ring))));
        let text = text(&view);
        if width >= 40 {
            assert!(text.contains("weir watch needs 80 x 24") && text.contains("loses at: ring"), "{text}");
        }
        press(&mut view, "?4/x\n\n\x1b");
        buffer(&view);
    }
}

#[test]
fn before_the_first_interval_it_says_what_it_waits_for() {
    let mut view = view(COLOUR, 80, 24);
    press(&mut view, "234567 s[]{}\n?\x1b/\n");
    assert!(text(&view).contains("waiting"), "{}", text(&view));
}

#[test]
fn names_cannot_move_the_cursor() {
    let evil = "a\x1b[2Jb\u{202e}c\nd\u{7f}\u{9b}";
    let mut s = lossy(Some(Place::Consumer));
    s.host = evil.into();
    s.interfaces[0].name = evil.into();
    s.path[0].drops = [(evil.to_owned(), 5)].into();
    s.ledger.drops = s.path[0].drops.clone();
    s.missing = vec![evil.into()];
    s.stack = [(evil.to_owned(), 1)].into();
    s.consumers = vec![Consumer {
        process: evil.into(),
        pid: 1,
        socket: evil.into(),
        local: evil.into(),
        lost: Some(3),
        ..Consumer::default()
    }];
    s.processes = vec![Process { name: evil.into(), pid: 1, state: evil.into(), ..Process::default() }];
    s.interfaces[0].queues = vec![Queue { name: evil.into(), cpus: evil.into(), ..Queue::default() }];
    for theme in [COLOUR, PLAIN] {
        for keys in ["", "2", "2\n", "3\n", "4", "4\n", "5", "5\n", "6", "7", "4/\u{202e}\n"] {
            let mut view = view(theme, 200, 60);
            view.arrived(Arc::new(s.clone()));
            view.note = Some(evil.into());
            press(&mut view, keys);
            for row in rows(&buffer(&view)) {
                assert!(!row.chars().any(|c| c.is_control() || c == '\u{202e}'), "{keys:?}: {row:?}");
            }
        }
    }
}

#[test]
fn many_rows_scroll_and_are_found_again() {
    let mut view = view(COLOUR, 80, 24);
    view.arrived(Arc::new(large(64, 10_000)));
    press(&mut view, "4G");
    let text_at_end = text(&view);
    assert!(text_at_end.contains("program-9999 ") && !text_at_end.contains("program-0 "), "{text_at_end}");
    press(&mut view, "/program-77\n");
    assert!(text(&view).contains("/program-77   111 rows"), "{}", text(&view));
    // Sorted by level, the fullest first, then the other way round.
    press(&mut view, "\x1bgss");
    let sorted = text(&view);
    assert!(
        sorted.contains("▾level") && rows(&buffer(&view))[usize::from(HEAD) + 2].contains("99 %"),
        "{sorted}"
    );
    press(&mut view, "S");
    assert!(rows(&buffer(&view))[usize::from(HEAD) + 2].contains(" 0 %"), "{}", text(&view));
    press(&mut view, "2G");
    assert!(text(&view).contains("eth0/63 "), "{}", text(&view));
    press(&mut view, "\n");
    assert!(text(&view).contains("▸ eth0/63") && text(&view).contains("1.1 k/s"), "{}", text(&view));
    // The busiest CPUs are those of the first pane.
    press(&mut view, "1");
    assert!(text(&view).contains("\n▸    0") && !text(&view).contains("\n    63"), "{}", text(&view));
}

#[test]
fn a_frame_costs_what_is_seen() {
    let time = |sockets, width, height| {
        let mut view = view(COLOUR, width, height);
        let snapshot = Arc::new(large(64, sockets));
        press(&mut view, "4");
        let begin = Instant::now();
        view.arrived(snapshot);
        let settle = begin.elapsed();
        let mut buf = Buffer::empty(ratatui::layout::Rect::new(0, 0, width, height));
        let mut draws: Vec<Duration> = (0..21)
            .map(|_| {
                let begin = Instant::now();
                buf.reset();
                draw::draw(&view, buf.area, &mut buf);
                begin.elapsed()
            })
            .collect();
        draws.sort();
        (settle, draws[draws.len() / 2])
    };
    for (width, height) in [(80, 24), (200, 60)] {
        for sockets in [100, 10_000] {
            let (settle, draw) = time(sockets, width, height);
            let line = format!(
                "{width} x {height}, 64 queues, {sockets} sockets: order {settle:?}, draw {draw:?}\n"
            );
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            // A tenth of the default interval for all of it.
            assert!(settle + draw < Duration::from_millis(500), "{settle:?} {draw:?}");
        }
    }
}

#[test]
fn what_a_guard_does_is_shown_where_its_queue_is() {
    let source = Source {
        name: "eth0/1".into(),
        cpu: 1,
        mode: "poll".into(),
        reason: "polls were full".into(),
        packets: Some(200_000),
        turns: Some(12_000),
        foreign_polls: Some(3),
        classes: [("normal".to_owned(), 900_000), ("protected".to_owned(), 400)].into(),
        shed: 700_000,
        nobody: 500_000,
        over_share: 20_000,
        over_bound: 0,
    };
    let cpu = Poller { cpu: 1, budget_used: Some(0.43), ..Poller::default() };
    let guard = Guard {
        pid: 812,
        sources: vec![source],
        cpus: vec![cpu],
        missing: vec!["x: y".into()],
        ..Guard::default()
    };
    let mut snapshot = large(2, 3);
    snapshot.interfaces[0].queues[1].mode = "poll".into();
    snapshot.guards = vec![guard];
    let mut view = view(PLAIN, 100, 40);
    view.arrived(Arc::new(snapshot));
    for (keys, part) in [
        ("", "guard       pid 812: poll eth0/1; CPU 1 uses 43 % of its budget; shed 700.0"),
        ("2", "guard"),
        ("/0/1\n\n", "guard       poll by CPU 1; k/s: 200.0 handed up, 12.0 turns; 3 foreign polls"),
        ("\x1b6", "without     x: y"),
        ("", "because     polls were full"),
        ("", "shed k/s    700.0; 500.0 of it for nobody; 20.0 over a share"),
    ] {
        press(&mut view, keys);
        assert!(text(&view).contains(part), "{keys:?}: no {part:?} in\n{}", text(&view));
    }
}

#[test]
fn pause_and_steps_of_the_running_host() {
    let mut view = view(COLOUR, 80, 24);
    let at = |i: u32| Arc::new(Snapshot { time_s: f64::from(i), ..lossy(None) });
    (0..10).for_each(|i| view.arrived(at(i)));
    assert!(text(&view).contains("live"));
    press(&mut view, " ");
    view.arrived(at(10));
    assert_eq!(view.shown.as_ref().unwrap().time_s, 9.0);
    assert!(text(&view).contains("paused 1 s ago"), "{}", text(&view));
    press(&mut view, "[[");
    assert_eq!(view.shown.as_ref().unwrap().time_s, 7.0);
    assert_eq!(view.past().len(), 8);
    press(&mut view, "{");
    assert_eq!(view.shown.as_ref().unwrap().time_s, 0.0);
    press(&mut view, "}]]");
    assert_eq!(view.shown.as_ref().unwrap().time_s, 10.0);
    // A pause outlives what is kept, and ends at the newest.
    (11..500).for_each(|i| view.arrived(at(i)));
    assert_eq!((view.history.len(), view.shown.as_ref().unwrap().time_s), (HISTORY, 10.0));
    buffer(&view);
    press(&mut view, " ");
    assert_eq!(view.shown.as_ref().unwrap().time_s, 499.0);
    assert!(text(&view).contains("live"));
}

#[test]
fn a_recording_is_sought() {
    let mut view = view(COLOUR, 80, 24);
    let all: Vec<Arc<Snapshot>> = recording().into_iter().map(Arc::new).collect();
    view.feed = Feed::Replay { at: 0, total: all.len(), speed: 1 };
    let seek = |view: &mut View, key: char| {
        let action = view.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
        if let Action::Seek(at) = action {
            view.replayed(at, Arc::clone(&all[at]), || all[..at].to_vec());
        }
        action
    };
    view.replayed(0, Arc::clone(&all[0]), Vec::new);
    assert!(text(&view).contains("replay 1 of 12 x1"), "{}", text(&view));
    assert_eq!(seek(&mut view, ']'), Action::Seek(1));
    assert_eq!(seek(&mut view, ']'), Action::Seek(2));
    assert_eq!(view.past().len(), 3);
    assert_eq!(seek(&mut view, '['), Action::Seek(1));
    assert_eq!(view.past().len(), 2);
    assert!(text(&view).contains("replay 2 of 12 paused"), "{}", text(&view));
    assert_eq!(seek(&mut view, '}'), Action::Seek(11));
    assert_eq!(view.past().len(), 12);
    assert_eq!(seek(&mut view, ']'), Action::Seek(11));
    assert_eq!(seek(&mut view, '{'), Action::Seek(1));
    assert_eq!(seek(&mut view, '{'), Action::Seek(0));
    for _ in 0..9 {
        seek(&mut view, '+');
    }
    assert_eq!(seek(&mut view, ' '), Action::Draw);
    assert!(text(&view).contains("replay 1 of 12 x64"), "{}", text(&view));
}

#[test]
fn panes_details_and_back() {
    let mut view = view(COLOUR, 80, 24);
    recording().into_iter().for_each(|s| view.arrived(Arc::new(s)));
    for (keys, part) in [
        ("\n", "▸ receiver"),
        ("", "full in     "),
        ("\x1b\t", "[2 queues]"),
        ("\t\n", "▸ CPU 0"),
        ("", "NET_RX softirqs"),
        ("5\n", "waits: ready to run"),
        ("6", "delivered: udp"),
        ("7", "evidence"),
        ("\u{2190}", "[6 ledger]"),
        ("?", "signs"),
        ("\x1b\x1b", "[1 all]"),
        ("e", "[7 explain]"),
        ("4/tcp\n", "/tcp   1 row "),
        ("/x\x08\x08\x08nothing\n", "none matches; esc shows all"),
        ("\x1b", "receiver"),
    ] {
        press(&mut view, keys);
        assert!(text(&view).contains(part), "{keys:?}: no {part:?} in\n{}", text(&view));
    }
    let ctrl = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    assert_eq!(view.key(ctrl('c')), Action::Quit);
    assert_eq!(view.key(ctrl('l')), Action::Redraw);
    press(&mut view, "/");
    assert_eq!(
        view.key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)),
        Action::Draw,
        "a letter of the filter"
    );
    press(&mut view, "\x1b");
    assert_eq!(view.key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)), Action::Quit);
}

#[test]
fn a_row_that_has_gone_is_said_and_lines_scroll() {
    let mut view = view(COLOUR, 80, 24);
    view.arrived(Arc::new(large(64, 10)));
    press(&mut view, "4\n");
    view.arrived(Arc::new(large(64, 0)));
    assert!(text(&view).contains("program-0 1 udp 1000 is not in this interval"), "{}", text(&view));
    let mut s = large(1, 0);
    s.stack = (0..100).map(|i| (format!("Counter{i:03}"), i)).collect();
    view.arrived(Arc::new(s));
    press(&mut view, "6");
    assert!(text(&view).contains("more lines below"), "{}", text(&view));
    view.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    assert!(text(&view).contains("Counter099"), "{}", text(&view));
    press(&mut view, "\u{2191}");
    assert!(!text(&view).contains("Counter099"), "{}", text(&view));
}

#[test]
fn help_fits_the_smallest_terminal() {
    for theme in [COLOUR, PLAIN] {
        let mut view = view(theme, 80, 24);
        view.arrived(Arc::new(lossy(None)));
        press(&mut view, "?");
        let text = text(&view);
        assert!(
            text.contains("history") && !text.contains("more lines below") && !text.contains('…'),
            "{text}"
        );
    }
}

/// The picture in docs/my-host-drops-packets.md is what is drawn.
#[test]
fn the_picture_in_the_documents_is_drawn() {
    let page = include_str!("../../../../../docs/my-host-drops-packets.md");
    let mut view = view(COLOUR, 80, 24);
    recording().into_iter().for_each(|s| view.arrived(Arc::new(s)));
    let drawn = rows(&buffer(&view));
    let missing: Vec<&String> = drawn.iter().filter(|row| !page.contains(row.trim_end())).collect();
    assert!(missing.is_empty(), "not in the page: {missing:#?}");
}

#[test]
fn what_probes_measured_stands_on_the_path_in_the_ledger_and_at_its_cpu() {
    use see::model::{Delay, Probes, Wait, Waited};
    let wait = Some(Wait { p50_us: 3.0, p99_us: 51_000.0, estimated: false });
    let mut s = lossy(None);
    s.path.iter_mut().find(|stage| stage.place == Place::Consumer).unwrap().wait = wait;
    s.cpus[0].softirq_wait = wait;
    s.probes = Some(Probes {
        waits: vec![Waited { of: Delay::Socket, samples: 1234, p99_us: 51_000.0, ..Waited::default() }],
        drops: [("SOCKET_RCVBUFF".to_owned(), 1500)].into(),
        ..Probes::default()
    });
    let mut view = view(PLAIN, 100, 40);
    view.arrived(Arc::new(s));
    assert!(
        text(&view).lines().any(|l| l.starts_with("wait p99") && l.contains("51.00 ms")),
        "{}",
        text(&view)
    );
    press(&mut view, "6");
    let ledger = text(&view);
    assert!(ledger.contains("socket       1 234     0 us 51.00 ms"), "{ledger}");
    assert!(ledger.contains("SOCKET_RCVBUFF 1 500"), "{ledger}");
    press(&mut view, "3\n");
    assert!(text(&view).contains("wait 3 us, p99 51.00 ms"), "{}", text(&view));
}
