//! The configuration file: TOML with the names of the options. Every error has its place: file, line, column, the
//! line itself and a caret under what is wrong.

use crate::error::Error;
use crate::options::rows::{FromFile, KEYS};
use crate::out::{nearest, shown};
use crate::parse;
use kern::cpus::CpuSet;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Bytes of the longest file that is read.
const FILE_MAX: u64 = 64 * 1024;

/// A value and where it stands in the file.
#[derive(Debug, Clone)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Bytes of the text it was read from.
    pub span: Range<usize>,
}

/// What one file says; absent keys are `None` or empty.
#[derive(Debug, Clone, Default)]
pub struct File {
    path: PathBuf,
    text: String,
    /// The options, by their names.
    pub given: FromFile,
}

impl File {
    /// Reads and checks a file of at most 64 KiB. Only a regular file: SIGHUP reads it again.
    pub fn read(path: &Path) -> Result<File, Error> {
        File::parse(path, text_of(path, "a TOML file")?)
    }

    fn parse(path: &Path, text: String) -> Result<File, Error> {
        let mut file = File { path: path.to_owned(), text: text.clone(), ..File::default() };
        let table = DeTable::parse(&text).map_err(|err| {
            let message = err.message().lines().collect::<Vec<_>>().join(", ");
            file.error(&err.span().unwrap_or(0..0), &message)
        })?;
        let mut given = FromFile::default();
        for (key, value) in table.get_ref() {
            let name: &str = key.get_ref();
            let item = Item { file: &file, key: name, value: value.get_ref(), span: value.span() };
            if !given.read(&item)? {
                let fix = match nearest(name, KEYS.iter().copied()) {
                    Some(key) => format!("did you mean \"{key}\"?"),
                    None => format!("keys are {}", KEYS.join(", ")),
                };
                return Err(file.error(&key.span(), &format!("unknown key \"{}\"; {fix}", shown(name))));
            }
        }
        file.given = given;
        Ok(file)
    }

    /// Parses any bytes as a file that somebody gave.
    #[cfg(fuzzing)]
    pub fn fuzz(bytes: &[u8]) {
        let path = Path::new("weir.toml");
        let Ok(file) = decoded(path, bytes.to_vec()).and_then(|text| File::parse(path, text)) else { return };
        for rule in &file.given.protect {
            // The place of an error is within the text.
            if let Err(why) = parse::rule(&rule.value) {
                _ = file.error(&rule.span, &why);
            }
        }
    }

    /// The error `message` with its place, as editors and people read it.
    pub fn error(&self, span: &Range<usize>, message: &str) -> Error {
        placed(&self.path, &self.text, span, message)
    }
}

/// The error `message` about the bytes `span` of the `text` of a file: place, line, and a caret under what is wrong.
pub fn placed(path: &Path, text: &str, span: &Range<usize>, message: &str) -> Error {
    let start = text.floor_char_boundary(span.start);
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let number = text[..start].matches('\n').count() + 1;
    let before = text[line_start..start].chars().count();
    let end = text.floor_char_boundary(span.end.clamp(start, line_end));
    let marked = text[start..end].chars().count().max(1);
    // One column per character, also for a tab or an escape, so that the caret stands right.
    let column_text = |c: char| if kern::text::deceives(c) { ' ' } else { c };
    let line: String = text[line_start..line_end].chars().take(200).map(column_text).collect();
    let name = shown(&path.to_string_lossy());
    let margin = " ".repeat(number.to_string().len());
    let pad = " ".repeat(before);
    let caret = "^".repeat(marked.min(200));
    let mut message = format!("{name}:{number}:{}: {message}", before + 1);
    if before < 200 && !line.trim().is_empty() {
        message += &format!("\n{margin} |\n{number} | {}\n{margin} | {pad}{caret}", line.trim_end());
    }
    Error::Usage(message)
}

/// The text of a regular file of at most 64 KiB; `wanted` says what to give instead of what is none.
pub fn text_of(path: &Path, wanted: &str) -> Result<String, Error> {
    let name = shown(&path.to_string_lossy());
    let unreadable =
        |err: std::io::Error| Error::Usage(format!("{name}: cannot be read ({err}); give {wanted}"));
    let meta = std::fs::metadata(path).map_err(unreadable)?;
    if !meta.is_file() {
        return Err(Error::Usage(format!("{name}: not a regular file; give {wanted}")));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(Error::Usage(format!("{name}: longer than 64 KiB; give {wanted}")));
    }
    decoded(path, bytes)
}

fn decoded(path: &Path, bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|err| {
        let valid = err.utf8_error().valid_up_to();
        let line = err.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
        let name = shown(&path.to_string_lossy());
        Error::Usage(format!("{name}:{line}: not UTF-8; save the file as UTF-8"))
    })
}

/// One key's value while it is checked.
pub struct Item<'a> {
    file: &'a File,
    /// Its name.
    pub key: &'a str,
    value: &'a DeValue<'a>,
    span: Range<usize>,
}

impl Item<'_> {
    fn wrong(&self, message: &str) -> Error {
        self.file.error(&self.span, message)
    }

    /// A value written without quotes.
    pub fn number<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Result<At<T>, Error> {
        let DeValue::Integer(number) = self.value else {
            return Err(self.wrong(&format!("{} is a whole number, without quotes", self.key)));
        };
        // Text in another base is no number the parser knows; i128 holds whatever TOML allows.
        let text = i128::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| number.as_str().to_owned(), |value| value.to_string());
        self.parsed(&text, parse)
    }

    /// A value written as a string.
    pub fn text<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Result<At<T>, Error> {
        match self.value {
            DeValue::String(text) => self.parsed(text, parse),
            _ => Err(self.wrong(&format!("{} is a string, in double quotes", self.key))),
        }
    }

    fn parsed<T>(&self, text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<At<T>, Error> {
        let value = parse(text).map_err(|why| self.wrong(&format!("{} {}: {why}", self.key, shown(text))))?;
        Ok(At { value, span: self.span.clone() })
    }

    /// An array of strings.
    pub fn list(&self) -> Result<Vec<At<String>>, Error> {
        let DeValue::Array(items) = self.value else {
            return Err(self.wrong(&format!("{} is an array of strings, as [\"...\"]", self.key)));
        };
        items
            .iter()
            .map(|item| {
                Item { file: self.file, key: self.key, value: item.get_ref(), span: item.span() }
                    .text(|text| Ok(text.to_owned()))
            })
            .collect()
    }

    /// `"0,2-3"` or `[0, 2, 3]`.
    pub fn cpus(&self) -> Result<At<CpuSet>, Error> {
        let DeValue::Array(items) = self.value else { return self.text(parse::cpus) };
        let mut cpus = CpuSet::new();
        for item in items.iter() {
            let item = Item { file: self.file, key: self.key, value: item.get_ref(), span: item.span() };
            item.number(parse::cpus)?.value.iter().for_each(|cpu| _ = cpus.insert(cpu));
        }
        if cpus.is_empty() {
            return Err(self.wrong("cpu names no CPU; leave it out or give numbers, as [0, 1]"));
        }
        Ok(At { value: cpus, span: self.span.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Mode, Period};
    use std::time::Duration;

    fn parse_text(text: &str) -> Result<File, Error> {
        File::parse(Path::new("guard.toml"), text.to_owned())
    }

    fn error_of(text: &str) -> String {
        parse_text(text).unwrap_err().to_string()
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            interfaces = ["eth0", "eth1"]
            reserve = 50
            period = "2ms"
            quota = 8
            cpu = [1, 0]
            mode = "poll"
            high = 60
            low = 30
            timeout = "50ms"
            look = 40
            protect = ["ssh"]
            status = "-"
        "#;
        for key in KEYS {
            assert!(text.contains(&format!("{key} = ")), "{key} is not in this test");
        }
        let file = parse_text(text).unwrap().given;
        assert_eq!(file.interfaces.iter().map(|at| at.value.as_str()).collect::<Vec<_>>(), ["eth0", "eth1"]);
        assert_eq!(file.reserve.unwrap().value, 50);
        assert_eq!(file.period.unwrap().value, Period::Fixed(Duration::from_millis(2)));
        assert_eq!(file.quota.unwrap().value, 8);
        assert_eq!(file.cpu.unwrap().value.to_string(), "0-1");
        assert_eq!(file.mode.unwrap().value, Mode::Poll);
        assert_eq!((file.high.unwrap().value, file.low.unwrap().value), (60, 30));
        assert_eq!(file.timeout.unwrap().value, Duration::from_millis(50));
        assert_eq!(file.protect[0].value, "ssh");
        assert_eq!(file.status.unwrap().value, "-");
    }

    #[test]
    fn errors_show_place_line_caret_and_fix() {
        assert_eq!(
            error_of("quota = 16\n\nreserve = 120\n"),
            "guard.toml:3:11: reserve 120: packets would get no CPU; give 1 to 95\n  |\n3 | reserve = 120\n  |           ^^^"
        );
        assert_eq!(
            error_of("hgih = 80\n"),
            "guard.toml:1:1: unknown key \"hgih\"; did you mean \"high\"?\n  |\n1 | hgih = 80\n  | ^^^^"
        );
    }

    #[test]
    fn wrong_types_name_the_right_one() {
        for (text, place, fix) in [
            ("reserve = \"20\"", "1:11", "without quotes"),
            ("mode = 3", "1:8", "in double quotes"),
            ("interfaces = \"eth0\"", "1:14", "array of strings"),
            ("protect = [\"ssh\", 7]", "1:19", "in double quotes"),
            ("cpu = []", "1:7", "names no CPU"),
            ("cpu = [0, -1]", "1:11", "not a list of CPUs"),
            ("period = \"5\"", "1:10", "no unit"),
            ("mode = \"pol\"", "1:8", "did you mean poll?"),
            ("[guard]\nreserve = 20", "1:2", "keys are interfaces, reserve"),
        ] {
            let err = error_of(text);
            assert!(err.starts_with(&format!("guard.toml:{place}: ")) && err.contains(fix), "{text}: {err}");
        }
    }

    #[test]
    fn syntax_errors_have_a_place_too() {
        for text in ["reserve = ", "reserve 20", "reserve = 20\nreserve = 30", "x = [1,", "\u{feff}="] {
            let err = error_of(text);
            assert!(err.starts_with("guard.toml:"), "{text:?}: {err}");
        }
    }

    #[test]
    fn hostile_bytes_do_not_reach_the_terminal() {
        let err = error_of("a\u{1b}[31m = 1");
        assert!(!err.contains('\u{1b}'), "{err:?}");
        let err = decoded(Path::new("g.toml"), vec![b'a', b'\n', 0xff]).unwrap_err().to_string();
        assert_eq!(err, "g.toml:2: not UTF-8; save the file as UTF-8");
        // A tab takes one column, so that the caret stands under the value.
        assert!(error_of("\treserve =\t0").contains("1 |  reserve = 0\n  |            ^"));
    }

    #[test]
    fn only_a_short_regular_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert!(File::read(dir.path()).unwrap_err().to_string().contains("not a regular file"));
        let missing = dir.path().join("no.toml");
        assert!(File::read(&missing).unwrap_err().to_string().contains("cannot be read"));
        let long = dir.path().join("long.toml");
        std::fs::write(&long, "#".repeat(70_000)).unwrap();
        assert!(File::read(&long).unwrap_err().to_string().contains("longer than 64 KiB"));
    }
}
