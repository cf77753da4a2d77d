//! Which path shows what.

use crate::http::{Answer, Limits, Server, Site};
use crate::hub::{Follow, Hub};
use crate::metrics::MEDIA_TYPE;
use crate::token::Token;
use serde::Serialize;
use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Port of the page.
pub const WEB_PORT: u16 = 9494;
/// Port of the metrics.
pub const METRICS_PORT: u16 = 9495;

/// Time that the last words of streams have when weir ends.
const GOODBYE: Duration = Duration::from_millis(300);

/// `ADDR:PORT`, an address, or a port of the loopback. Brackets may stand around any address, so that who fills in one of
/// either family need not know which it is.
///
/// # Errors
/// What is wrong and what to give instead.
pub fn parse_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    // With no brackets the last group of an IPv6 address and a port look the same.
    let split = text
        .rsplit_once(':')
        .and_then(|(address, port)| Some((address.parse::<Ipv6Addr>().ok()?, port.parse::<u16>().ok()?)));
    if let Some((address, port)) = split {
        let whole = text.parse::<Ipv6Addr>().map(|all| format!(" or [{all}]")).unwrap_or_default();
        Err(format!("an IPv6 address with a port needs brackets; give [{address}]:{port}{whole}"))
    } else if let Ok(address) = text.parse() {
        Ok(address)
    } else if let Some(Ok(address)) =
        bracketed.map(|(ip, port)| format!("{ip}:{port}").parse::<SocketAddrV4>())
    {
        Ok(address.into())
    } else if let Ok(address) = bare.parse() {
        Ok(SocketAddr::new(address, port))
    } else if let Ok(port) = text.parse() {
        Ok(SocketAddr::new(loopback, port))
    } else {
        Err(format!("not an address; give ADDR:PORT, as 127.0.0.1:{port}"))
    }
}

/// What is shown and where.
pub struct Show {
    hub: Arc<Hub>,
    token: Option<Arc<Token>>,
    servers: Vec<Server>,
}

impl Show {
    /// Listens at both addresses; one server if they are the same. With a token both answer only to who knows it. The others: as for [`Hub::new`].
    ///
    /// # Errors
    /// The address that cannot be listened at, and why.
    pub fn start(
        web: Option<SocketAddr>,
        metrics: Option<SocketAddr>,
        run: String,
        recorded: bool,
        token: Option<Token>,
        limits: Limits,
    ) -> Result<Show, (SocketAddr, io::Error)> {
        let hub = Hub::new(run, recorded);
        let mut show = Show { hub, token: token.map(Arc::new), servers: Vec::new() };
        // Port 0 is another one each time.
        let same = metrics == web && metrics.is_some_and(|address| address.port() != 0);
        if let Some(address) = web {
            show.listen(address, true, same, limits)?;
        }
        if let Some(address) = metrics.filter(|_| !same) {
            show.listen(address, false, true, limits)?;
        }
        Ok(show)
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        page: bool,
        metrics: bool,
        limits: Limits,
    ) -> Result<(), (SocketAddr, io::Error)> {
        let fail = |e| (address, e);
        let listener = TcpListener::bind(address).map_err(fail)?;
        let site = Arc::new(Pages { hub: Arc::clone(&self.hub), page, metrics });
        self.servers.push(Server::start(listener, site, self.token.clone(), limits).map_err(fail)?);
        Ok(())
    }

    /// Where to give the snapshots.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Addresses in the order page, metrics.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.servers.iter().map(Server::address)
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        self.hub.end();
        self.servers.iter().for_each(|server| server.finish(GOODBYE));
    }
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";

/// Files of the page: path, media type, text.
const FILES: [(&str, &str, &str); 6] = [
    ("/", HTML, include_str!("../assets/page.html")),
    ("/page.css", CSS, include_str!("../assets/page.css")),
    ("/page.js", SCRIPT, include_str!("../assets/page.js")),
    ("/draw.js", SCRIPT, include_str!("../assets/draw.js")),
    ("/uplot.js", SCRIPT, include_str!("../assets/uplot/uPlot.iife.min.js")),
    ("/uplot.css", CSS, include_str!("../assets/uplot/uPlot.min.css")),
];

struct Pages {
    hub: Arc<Hub>,
    page: bool,
    metrics: bool,
}

impl Pages {
    fn json(&self, value: Option<impl Serialize>) -> Answer {
        match value.map(|value| serde_json::to_vec(&value)) {
            Some(Ok(bytes)) => Answer::Body { kind: JSON, bytes: Cow::Owned(bytes) },
            _ => Answer::Later("the first interval has not ended yet\n"),
        }
    }

    fn page(&self, path: &str) -> Answer {
        match path {
            "/stream" => Answer::Stream(Box::new(Follow::new(Arc::clone(&self.hub)))),
            "/history.json" => match self.hub.history() {
                Ok(bytes) => Answer::Body { kind: JSON, bytes: Cow::Owned(bytes) },
                Err(_) => Answer::Nothing,
            },
            "/snapshot.json" => self.json(self.hub.newest().as_ref().map(|entry| &entry.snapshot)),
            "/explain.json" => self.json(self.hub.report()),
            _ => match FILES.iter().find(|(name, ..)| *name == path) {
                Some((_, kind, text)) => Answer::Body { kind, bytes: Cow::Borrowed(text.as_bytes()) },
                None => Answer::Nothing,
            },
        }
    }
}

impl Site for Pages {
    fn get(&self, path: &str) -> Answer {
        match path {
            "/metrics" if self.metrics => {
                let text = self.hub.store().text();
                Answer::Body { kind: MEDIA_TYPE, bytes: Cow::Owned(text.into_bytes()) }
            }
            _ if self.page => self.page(path),
            "/" => Answer::Body {
                kind: HTML,
                bytes: Cow::Borrowed(
                    b"<!doctype html><title>weir</title><a href=\"/metrics\">/metrics</a>\n",
                ),
            },
            _ => Answer::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("80", "127.0.0.1:80"),
            ("0", "127.0.0.1:0"),
            ("0.0.0.0", "0.0.0.0:9494"),
            ("::1", "[::1]:9494"),
            ("[::1]", "[::1]:9494"),
            ("[::]:1", "[::]:1"),
            ("[10.0.0.7]", "10.0.0.7:9494"),
            ("[10.0.0.7]:80", "10.0.0.7:80"),
            ("fd00::a", "[fd00::a]:9494"),
            ("fd00::9495", "[fd00::9495]:9494"),
            ("fd00:0:0:0:0:0:0:1", "[fd00::1]:9494"),
        ] {
            assert_eq!(parse_address(text, WEB_PORT).map(|a| a.to_string()), Ok(expected.to_owned()));
        }
        for text in [
            "",
            "eth0",
            ":80",
            "1.2.3",
            "70000",
            "127.0.0.1:",
            "localhost:80",
            "[10.0.0.7:80]",
            "[10.0.0.7]80",
        ] {
            let refused = parse_address(text, WEB_PORT).unwrap_err();
            assert_eq!(refused, "not an address; give ADDR:PORT, as 127.0.0.1:9494", "{text}");
        }
    }

    #[test]
    fn an_ipv6_address_whose_port_is_a_guess_is_refused() {
        for (text, give) in [
            ("fd00::1:9495", "[fd00::1]:9495 or [fd00::1:9495]"),
            ("fd00:0:0:0:0:0:0:1:9495", "[fd00::1]:9495"),
        ] {
            let refused = parse_address(text, METRICS_PORT).unwrap_err();
            assert_eq!(refused, format!("an IPv6 address with a port needs brackets; give {give}"));
        }
    }

    #[test]
    fn the_manifest_names_an_address_of_either_family() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
        for (file, port) in [
            ("kubernetes/weir.yaml", "9495"),
            ("helm/weir/templates/daemonset.yaml", "{{ .Values.metrics.port }}"),
        ] {
            let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
            let (_, rest) = text.split_once("\"--metrics\", \"").unwrap();
            let given = rest.split('"').next().unwrap().replace(port, "9495");
            for (host, expected) in [("10.0.0.7", "10.0.0.7:9495"), ("fd00::1", "[fd00::1]:9495")] {
                let address = parse_address(&given.replace("$(NODE_ADDRESS)", host), 1);
                assert_eq!(address.map(|a| a.to_string()), Ok(expected.to_owned()), "{file}: {given}");
            }
        }
    }

    #[test]
    fn the_page_asks_nobody_else() {
        for (path, kind, text) in FILES {
            assert!(!text.is_empty(), "{path}");
            for scheme in ["http://", "https://", "//cdn", "@import", "url(h", "url(/", "url(\""] {
                let namespace = "http://www.w3.org/2000/svg";
                let rest = text.replace(namespace, "");
                // The licence line of the chart library names where it comes from.
                let found =
                    rest.lines().find(|l| l.contains(scheme) && !l.contains("github.com/leeoniya/uPlot"));
                assert_eq!(found, None, "{path} ({kind})");
            }
        }
    }

    #[test]
    fn files_that_the_page_names_are_there() {
        let html = FILES[0].2;
        let named = html.split(['"']).filter(|word| word.ends_with(".js") || word.ends_with(".css"));
        let named: Vec<&str> = named.collect();
        assert_eq!(named.len(), FILES.len() - 1, "{named:?}");
        for name in named {
            assert!(FILES.iter().any(|(path, ..)| path.trim_start_matches('/') == name), "{name}");
        }
    }
}
