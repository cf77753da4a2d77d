//! The token that a client must know: read from a file, asked for as `Authorization: Bearer` (monitors) or as the password of any user
//! (`Basic`, browsers).
//!
//! A file that every user may read is used all the same: a Secret of Kubernetes is mounted so, where nobody else is.
//!
//! It crosses the network as it is. Whoever can read the network needs TLS before it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Fewest characters: fewer could be guessed.
pub const LEAST: usize = 16;
/// Most characters.
pub const MOST: usize = 256;

/// Readable by those who neither own a file nor are in its group.
const OTHERS_READ: u32 = 0o004;

/// A token.
pub struct Token {
    text: String,
    open: bool,
}

impl Token {
    /// The first line of a file, without blanks around it.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn read(path: &Path) -> Result<Token, String> {
        let (mut text, most) = (String::new(), 4 * MOST as u64);
        let file = File::open(path).map_err(|e| e.to_string())?;
        let meta = file.metadata().map_err(|e| e.to_string())?;
        file.take(most).read_to_string(&mut text).map_err(|e| e.to_string())?;
        let token = Token::of(text.lines().next().unwrap_or_default().trim())?;
        // What a pipe or a terminal lets others read is not the token.
        let open = meta.is_file() && meta.permissions().mode() & OTHERS_READ != 0;
        Ok(Token { open, ..token })
    }

    /// Every user of this host may read the file that it was read from.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// # Errors
    /// Why it cannot be used.
    pub fn of(text: &str) -> Result<Token, String> {
        match text.len() {
            LEAST..=MOST if text.bytes().all(|b| b.is_ascii_graphic()) => {
                Ok(Token { text: text.to_owned(), open: false })
            }
            LEAST..=MOST => Err("the token has characters other than printable ASCII".into()),
            n => Err(format!("the token has {n} characters; {LEAST} to {MOST} are needed")),
        }
    }

    /// The value of an `Authorization` header knows it. The time that this takes tells nothing but its length.
    #[must_use]
    pub fn is(&self, authorization: &str) -> bool {
        let Some((scheme, rest)) = authorization.trim().split_once(' ') else { return false };
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return same(rest.as_bytes(), self.text.as_bytes());
        }
        let basic = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(rest).ok()).flatten();
        let password = basic.as_ref().and_then(|all| Some(&all[all.iter().position(|b| *b == b':')? + 1..]));
        password.is_some_and(|password| same(password, self.text.as_bytes()))
    }
}

fn same(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    a.len() == b.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_it() {
        let token = Token::of("0123456789abcdef").unwrap();
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        for yes in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef "] {
            assert!(token.is(yes), "{yes}");
        }
        assert!(token.is(&basic("any:0123456789abcdef")) && token.is(&basic(":0123456789abcdef")));
        for no in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Digest 0123456789abcdef",
            "Basic %%%",
            "Basic ",
        ] {
            assert!(!token.is(no), "{no}");
        }
        for no in ["0123456789abcdef", "any:0123456789abcdeF", "any:0123456789abcdef0", "any"] {
            assert!(!token.is(&basic(no)), "{no}");
        }
        assert!(Token::of("short").is_err() && Token::of(&"x".repeat(257)).is_err());
        assert!(Token::of("sixteen characters").is_err() && Token::of("").is_err());
        assert!(Token::read(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn a_file_that_every_user_may_read_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        for (mode, open) in [(0o600, false), (0o640, false), (0o644, true), (0o404, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let token = Token::read(&path).unwrap();
            assert_eq!(token.is_open(), open, "{mode:o}");
            assert!(token.is("Bearer 0123456789abcdef"));
        }
    }
}
