//! Words of commands that somebody pastes into a shell.

use std::borrow::Cow;

/// `word` as the shell takes it for one word and nothing else: in single quotes, unless it is plain.
pub fn quoted(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")).into(),
    }
}

/// A command of these words.
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_sees_one_word() {
        for word in
            ["eth0", "veth.12@x", "bond0:1", "v;id>zz&", "$(id)", "a'b", "`id`", "v\u{e9}", "a*", "~", ""]
        {
            let out = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s/ x {}", quoted(word))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&out.stdout), format!("x/{word}/"));
        }
        assert_eq!(quoted("eth0.5"), "eth0.5");
        assert_eq!(line(&["weir".into(), "guard".into(), "a;b".into()]), "weir guard 'a;b'");
    }
}
