//! Names of the kernel's functions, from `/proc/kallsyms`.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

const PATH: &str = "/proc/kallsyms";
/// Most functions that are kept.
const MOST: usize = 1_000_000;
/// Longest line, bytes: names are at most 512 long.
const LINE: u64 = 1024;
/// A function is not longer than this: what lies further behind its start is something else.
const LONGEST: u64 = 64 * 1024;

/// Functions by address. 7 MiB at most for a kernel of 120 000 symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// Start of each function, ascending, and where its name begins in `names`.
    starts: Vec<(u64, u32)>,
    names: String,
}

impl Symbols {
    /// Those of the running kernel, its modules and BPF programs.
    ///
    /// # Errors
    /// [`Error::Denied`] if the kernel hides addresses.
    pub fn read() -> Result<Symbols> {
        let file = File::open(PATH).map_err(|e| Error::io(PATH, e))?;
        let found = Symbols::parse(BufReader::new(file)).map_err(|e| Error::io(PATH, e))?;
        if found.starts.is_empty() {
            let need = "CAP_SYSLOG, and kernel.kptr_restrict below 2";
            return Err(Error::Denied { what: format!("addresses in {PATH}"), need });
        }
        Ok(found)
    }

    /// Lines such as `ffffffff81e66eb0 t __napi_poll`; others, data, and functions without an address are left out.
    ///
    /// # Errors
    /// What reading says.
    pub fn parse(mut text: impl BufRead) -> std::io::Result<Symbols> {
        let mut list: Vec<(u64, u32)> = Vec::new();
        let mut names = String::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            if text.by_ref().take(LINE).read_until(b'\n', &mut line)? == 0 || list.len() >= MOST {
                break;
            }
            let mut words = std::str::from_utf8(&line).unwrap_or_default().split_ascii_whitespace();
            let start = words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(0);
            let code = matches!(words.next(), Some("t" | "T" | "w" | "W"));
            let Some(name) = words.next().filter(|_| start > 0 && code) else { continue };
            let Ok(at) = u32::try_from(names.len()) else { break };
            names.push_str(name);
            names.push('\n');
            list.push((start, at));
        }
        let name = |at: u32| names[at as usize..].split('\n').next().unwrap_or_default();
        // Of several names for one address the first in the alphabet, so that it is always the same one.
        list.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| name(a.1).cmp(name(b.1))));
        list.dedup_by_key(|(start, _)| *start);
        list.shrink_to_fit();
        Ok(Symbols { starts: list, names })
    }

    /// Number of the function that `address` is in; `None` if it is in none.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<u32> {
        let index = self.starts.partition_point(|(start, _)| *start <= address).checked_sub(1)?;
        (address - self.starts[index].0 < LONGEST).then_some(index as u32)
    }

    /// Its name, without what the compiler has added (`.isra.0`, `.part.0`, `.cold`).
    #[must_use]
    pub fn name(&self, number: u32) -> &str {
        let Some((_, at)) = self.starts.get(number as usize) else { return "" };
        let name = self.names[*at as usize..].split('\n').next().unwrap_or_default();
        name.find('.').filter(|dot| *dot > 0).map_or(name, |dot| &name[..dot])
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ffffffff81000100 T net_rx_action\n\
                        ffffffff81000000 T _text\n\
                        ffffffff81000000 T _stext\n\
                        not a line\n\
                        ffffffff81000180 d some_data\n\
                        ffffffff81000200 t veth_poll.isra.0\n\
                        ffffffffc0000000 t bpf_prog_6deef7357e7b4530_x\t[bpf]\n";

    #[test]
    fn addresses_have_names() {
        let symbols = Symbols::parse(TEXT.as_bytes()).unwrap();
        let name = |address| symbols.at(address).map(|n| symbols.name(n));
        assert_eq!(symbols.len(), 4);
        assert_eq!(name(0xffff_ffff_8100_0000), Some("_stext"));
        assert_eq!(name(0xffff_ffff_8100_01ff), Some("net_rx_action"));
        assert_eq!(name(0xffff_ffff_8100_0200), Some("veth_poll"));
        assert_eq!(name(0xffff_ffff_c000_0010), Some("bpf_prog_6deef7357e7b4530_x"));
        assert_eq!((name(0xffff_ffff_80ff_ffff), name(0xffff_ffff_9000_0000)), (None, None));
    }

    #[test]
    fn hidden_addresses_are_none() {
        let text = "0000000000000000 T _text\n0000000000000000 T net_rx_action\n";
        assert!(Symbols::parse(text.as_bytes()).unwrap().is_empty());
    }
}
