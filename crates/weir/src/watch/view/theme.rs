//! Signs and colours of the view. A colour has one meaning and a sign beside it, so that the view reads the same
//! without colours; without UTF-8 it uses ASCII only.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

/// What a text is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// All that is well.
    #[default]
    Plain,
    /// Packets lost.
    Lost,
    /// At its limit, nothing lost.
    Full,
    /// Time of the kernel for packets.
    Kernel,
    /// weir itself.
    Weir,
    /// Unused, zero, or of little interest.
    Dim,
    /// Headings.
    Head,
}

/// How the terminal can be drawn on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Colours are wanted.
    pub colour: bool,
    /// The locale is UTF-8.
    pub unicode: bool,
}

impl Theme {
    /// `locale`: values of LC_ALL, LC_CTYPE and LANG; the first that is set and not empty decides.
    pub fn new(colour: bool, locale: [Option<String>; 3]) -> Theme {
        let first = locale.into_iter().flatten().find(|value| !value.is_empty()).unwrap_or_default();
        let name = first.to_ascii_lowercase().replace('-', "");
        Theme { colour, unicode: name.contains("utf8") }
    }

    /// The style of a tone.
    pub fn style(self, tone: Tone) -> Style {
        let style = Style::new();
        let painted = |colour| if self.colour { style.fg(colour) } else { style };
        match tone {
            Tone::Plain => style,
            Tone::Lost => painted(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Full => style.add_modifier(Modifier::BOLD),
            Tone::Kernel => painted(Color::Magenta),
            Tone::Weir => painted(Color::Cyan),
            Tone::Dim => style.add_modifier(Modifier::DIM),
            Tone::Head => style.add_modifier(Modifier::UNDERLINED),
        }
    }

    /// `unicode`, or `ascii` where the locale has no more.
    pub fn sign(self, unicode: &'static str, ascii: &'static str) -> &'static str {
        if self.unicode { unicode } else { ascii }
    }

    /// Text as it may reach a terminal: control and formatting characters are `?`, and all that is not ASCII where the
    /// locale has no more.
    pub fn clean(self, text: &str) -> String {
        let safe = |c: char| {
            if kern::text::deceives(c) || (!self.unicode && !c.is_ascii()) { '?' } else { c }
        };
        text.chars().map(safe).collect()
    }

    /// A bar of `width` columns, `level` 0 to 1: what is full, then what is not. Above zero it is never empty.
    pub fn bar(self, level: f64, width: usize) -> (String, String) {
        let level = if level.is_finite() { level.clamp(0.0, 1.0) } else { 0.0 };
        let mut full = String::new();
        let steps = if self.unicode { 8 } else { 1 };
        let mut eighths = (level * (width * steps) as f64).round() as usize;
        if level > 0.0 {
            eighths = eighths.max(1);
        }
        full.extend(std::iter::repeat_n(self.sign("█", "#"), eighths / steps));
        if !eighths.is_multiple_of(steps) {
            full.push(['▏', '▎', '▍', '▌', '▋', '▊', '▉'][eighths % steps - 1]);
        }
        let used = full.chars().count();
        (full, self.sign("·", ".").repeat(width.saturating_sub(used)))
    }

    /// One column per value, the last `width` of them, right-aligned, on a scale up to `top`. Above zero it is never empty.
    pub fn spark(self, values: &[f64], top: f64, width: usize) -> String {
        let signs: &[char] = if self.unicode {
            &[' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        } else {
            &[' ', '.', ':', '-', '=', '+', '*', '#']
        };
        let last = signs.len() - 1;
        let one = |value: &f64| {
            let step = (value / top.max(f64::MIN_POSITIVE) * last as f64).round() as usize;
            signs[if *value > 0.0 { step.clamp(1, last) } else { 0 }]
        };
        let shown = &values[values.len().saturating_sub(width)..];
        let line: String = shown.iter().map(one).collect();
        format!("{line:>width$}")
    }

    /// Writes cleaned text at (x, y), at most `width` columns of it; what does not fit ends in a sign. Returns the column
    /// behind it.
    pub fn put(self, buf: &mut Buffer, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        if !buf.area.contains((x, y).into()) || width == 0 {
            return x;
        }
        // Only what can be seen is looked at, however long the text is.
        let cut: String = text.chars().take(usize::from(width) * 2 + 1).collect();
        let text = self.clean(&cut);
        let width = width.min(buf.area.right() - x);
        if Span::raw(text.as_str()).width() <= usize::from(width) {
            return buf.set_stringn(x, y, &text, width.into(), style).0;
        }
        let (end, _) = buf.set_stringn(x, y, &text, usize::from(width) - 1, style);
        buf.set_stringn(end, y, self.sign("…", "~"), 1, style).0
    }

    /// The same, its end at column x + width.
    pub fn put_right(self, buf: &mut Buffer, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let cut: String = text.chars().take(usize::from(width) * 2 + 1).collect();
        let text = self.clean(&cut);
        let used = u16::try_from(Span::raw(text.as_str()).width()).unwrap_or(width).min(width);
        self.put(buf, x + width - used, y, used, &text, style);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;

    const UNICODE: Theme = Theme { colour: true, unicode: true };
    const ASCII: Theme = Theme { colour: false, unicode: false };

    #[test]
    fn the_locale_decides() {
        let of = |all: &str, ctype: &str, lang: &str| {
            let some = |s: &str| Some(s.to_owned());
            Theme::new(true, [some(all), some(ctype), some(lang)]).unicode
        };
        assert!(of("", "", "en_US.UTF-8") && of("C.utf8", "", "") && of("", "de_DE.UTF-8", "C"));
        assert!(!of("C", "", "en_US.UTF-8") && !of("", "", "") && !of("", "POSIX", "en_US.UTF-8"));
    }

    #[test]
    fn bars_are_as_wide_as_asked_and_little_is_not_nothing() {
        for theme in [UNICODE, ASCII] {
            for level in [0.0, 0.001, 0.33, 0.5, 0.999, 1.0, 7.0, -1.0, f64::NAN] {
                let (full, rest) = theme.bar(level, 10);
                assert_eq!(full.chars().count() + rest.chars().count(), 10, "{level}");
                assert_eq!(full.is_empty(), level <= 0.0 || level.is_nan(), "{level}");
            }
            assert!(theme.bar(1.0, 10).1.is_empty());
        }
        assert_eq!(UNICODE.bar(0.5, 3).0, "█▌");
        assert_eq!(ASCII.bar(0.5, 4), ("##".into(), "..".into()));
    }

    #[test]
    fn sparks_have_a_floor_and_a_ceiling() {
        assert_eq!(UNICODE.spark(&[0.0, 0.001, 8.0, 99.0], 8.0, 6), "   ▁██");
        assert_eq!(ASCII.spark(&[1.0, 2.0, 3.0], 3.0, 2), "+#");
        assert_eq!(UNICODE.spark(&[0.0], 0.0, 3), "   ");
    }

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        let mut buf = Buffer::empty(Rect::new(0, 0, 12, 1));
        UNICODE.put(&mut buf, 0, 0, 12, "a\x1b[2J\u{202e}b\u{9b}c", Style::new());
        assert_eq!(buf.content().iter().map(|c| c.symbol()).collect::<String>(), "a?[2J?b?c   ");
        assert_eq!(ASCII.clean("a█b"), "a?b");
        UNICODE.put(&mut buf, 0, 0, 5, "abcdefgh", Style::new());
        UNICODE.put_right(&mut buf, 7, 0, 4, "日本語", Style::new());
        assert_eq!(buf[(4, 0)].symbol(), "…");
        assert_eq!((buf[(7, 0)].symbol(), buf[(9, 0)].symbol()), ("日", "…"));
        // Beside the area nothing is written, and nothing fails.
        UNICODE.put(&mut buf, 12, 0, 5, "x", Style::new());
        UNICODE.put(&mut buf, 0, 1, 5, "x", Style::new());
    }
}
