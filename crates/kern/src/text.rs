//! Characters that others choose (names of programs and interfaces, words, files) and that reach a terminal or a monitor.

/// It acts on a terminal, is not seen, or changes the order in which the rest is seen: nobody may write a line with it that looks
/// like another one.
pub fn deceives(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_and_what_turns_text_around() {
        let turns = ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        let marks = ['\u{200e}', '\u{200f}', '\u{61c}', '\u{feff}', '\x1b', '\n', '\u{9b}', '\x7f'];
        assert!(turns.chain(marks).all(deceives));
        assert!(!"nginx: worker-1 \u{e9}\u{5d0}\u{627}\u{fffd}".chars().any(deceives));
    }
}
