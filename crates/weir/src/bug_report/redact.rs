//! What a bug report must not tell: addresses and the name of the host. Each has a name of its own instead, the same
//! everywhere in the report, so that it can still be followed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// Remembers what it has replaced.
#[derive(Default)]
pub struct Redactor {
    /// Names of the host, longest first.
    hosts: Vec<String>,
    names: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
}

impl Redactor {
    /// One that also replaces `host` and its first label; names that everybody has are left, and those of one or two characters, which
    /// are words and keys elsewhere.
    pub fn new(host: &str) -> Self {
        let mut hosts = vec![host.to_owned()];
        hosts.extend(host.split_once('.').map(|(first, _)| first.to_owned()));
        hosts.retain(|name| name.len() >= 3 && !name.starts_with("localhost"));
        Self { hosts, ..Self::default() }
    }

    /// How many of each kind were replaced.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.counts.iter().map(|(kind, n)| (*kind, *n))
    }

    /// The text without them.
    pub fn text(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let of_address = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            // A word with other letters in it is no address: it is passed whole.
            let word = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == ':' || c == '.' || c == '_'));
            let (word, after) = rest.split_at(word.unwrap_or(rest.len()));
            if word.is_empty() {
                out.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            }
            let named = match word.chars().all(of_address) {
                true => self.address(word),
                false => self.interface(word),
            };
            out += named.as_deref().unwrap_or(word);
            rest = after;
        }
        for host in &self.hosts {
            out = whole_words(&out, host, "the-host");
        }
        out
    }

    /// The name for a word that is an address, perhaps with a port; `None` if it is none, or one that everybody has.
    fn address(&mut self, word: &str) -> Option<String> {
        // More may be said of an address behind a colon.
        let mac = word.trim_end_matches(['.', ':']);
        if is_mac(mac) {
            let everybodys = mac.bytes().all(|b| matches!(b, b'0' | b':'))
                || mac.bytes().all(|b| matches!(b, b'f' | b'F' | b':'));
            return (!everybodys).then(|| self.named("mac", &mac.to_lowercase()) + &word[mac.len()..]);
        }
        // A sentence may end here.
        let bare = word.trim_end_matches('.');
        let end = &word[bare.len()..];
        if let Ok(address) = bare.parse::<IpAddr>() {
            return self.ip(address).map(|name| name + end);
        }
        let (address, port) = bare.rsplit_once(':')?;
        let name = self.ip(address.parse().ok()?)?;
        Some(format!("{name}:{port}{end}"))
    }

    /// The name for a word that begins with that of an interface which has its Ethernet address in it, as systemd names USB devices:
    /// `enx020000aabb0c`. The address has the name that it has elsewhere.
    fn interface(&mut self, word: &str) -> Option<String> {
        const DIGITS: usize = 12;
        let start = word.get(..3).filter(|start| ["enx", "wlx", "wwx"].contains(start))?;
        let rest = &word[start.len()..];
        let digits = rest.get(..DIGITS).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
        let after = &rest[DIGITS..];
        if after.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return None;
        }
        let bytes: Vec<&str> = (0..DIGITS).step_by(2).map(|at| &digits[at..at + 2]).collect();
        Some(format!("{start}-{}{after}", self.named("mac", &bytes.join(":").to_lowercase())))
    }

    fn ip(&mut self, address: IpAddr) -> Option<String> {
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return None;
        }
        match address {
            IpAddr::V4(a) if a.is_broadcast() => None,
            IpAddr::V4(a) => Some(self.named("ipv4", &a.to_string())),
            // One of version 4 in the form of version 6 is the same.
            IpAddr::V6(a) => Some(match mapped(a) {
                Some(a) => self.named("ipv4", &a),
                None => self.named("ipv6", &a.to_string()),
            }),
        }
    }

    fn named(&mut self, kind: &'static str, what: &str) -> String {
        if let Some(name) = self.names.get(what) {
            return name.clone();
        }
        let n = self.counts.entry(kind).or_default();
        *n += 1;
        let name = format!("{kind}-{n}");
        self.names.insert(what.to_owned(), name.clone());
        name
    }
}

fn mapped(address: Ipv6Addr) -> Option<String> {
    address.to_ipv4_mapped().map(|a| a.to_string())
}

/// Six bytes in hexadecimal.
fn is_mac(word: &str) -> bool {
    let mut parts = 0;
    word.split(':').all(|part| {
        parts += 1;
        part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit())
    }) && parts == 6
}

/// `text` with `by` for each `word` that is not a part of a longer one.
fn whole_words(text: &str, word: &str, by: &str) -> String {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(word) {
        let (before, found) = rest.split_at(at);
        let after = &found[word.len()..];
        out += before;
        let whole =
            !inside(before.chars().next_back().or(out.chars().next_back())) && !inside(after.chars().next());
        out += if whole { by } else { word };
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_same_name_everywhere() {
        let mut redactor = Redactor::new("ns1.example.org");
        let text =
            "udp 192.0.2.7:53 from 198.51.100.1, then 192.0.2.7/24; [2001:db8::1]:53 at 02:00:00:aa:bb:0c.";
        assert_eq!(redactor.text(text), "udp ipv4-1:53 from ipv4-2, then ipv4-1/24; [ipv6-1]:53 at mac-1.");
        assert_eq!(redactor.text("::ffff:192.0.2.7 and 2001:DB8::1"), "ipv4-1 and ipv6-1");
        assert_eq!(redactor.counts().collect::<Vec<_>>(), [("ipv4", 2), ("ipv6", 1), ("mac", 1)]);
    }

    #[test]
    fn an_ethernet_address_is_found_before_a_colon_and_in_a_name() {
        let mut redactor = Redactor::new("host");
        assert_eq!(redactor.text("02:00:00:aa:bb:0c: unreachable"), "mac-1: unreachable");
        assert_eq!(
            redactor.text("enx020000aabb0c/0, wlx0200000000ff.7: up; wwx020000AABB0C"),
            "enx-mac-1/0, wlx-mac-2.7: up; wwx-mac-1"
        );
        for text in ["enx020000aabb0", "enx020000aabb0c1", "enxyz", "enp3s0", "anenx020000aabb0c"] {
            assert_eq!(redactor.text(text), text);
        }
    }

    #[test]
    fn what_everybody_has_and_what_is_no_address_stays() {
        let mut redactor = Redactor::new("host");
        for text in [
            "127.0.0.1:9495 0.0.0.0 :: ::1 ff02::1 224.0.0.251 255.255.255.255",
            "6.18.44-fc-v509 1.2 0.1.0 12:34:56 \"a\":1.5,\"b\":[1,2] eth0/1 dead beef 5:3 :: 00:00:00:00:00:00",
            "version1.2.3.4x ns::path::name x_1.2.3.4",
        ] {
            assert_eq!(redactor.text(text), text);
        }
    }

    #[test]
    fn the_host_has_no_name() {
        let mut redactor = Redactor::new("ns1.example.org");
        assert_eq!(
            redactor.text("{\"host\":\"ns1.example.org\"} ns1: up, dns1 and ns12 stay"),
            "{\"host\":\"the-host\"} the-host: up, dns1 and ns12 stay"
        );
        assert_eq!(Redactor::new("localhost").text("localhost"), "localhost");
        assert_eq!(Redactor::new("n.example.org").text("{\"n\":5} n.example.org"), "{\"n\":5} the-host");
    }

    #[test]
    fn json_stays_json() {
        let mut redactor = Redactor::new("h0st");
        let text = r#"{"address":"192.0.2.1","n":1.25,"mac":"02:00:00:00:00:01","at":"[fe80::1%eth0]:5"}"#;
        let value: serde_json::Value = serde_json::from_str(&redactor.text(text)).unwrap();
        assert_eq!(value["address"], "ipv4-1");
        assert_eq!(value["at"], "[ipv6-1%eth0]:5");
    }
}
