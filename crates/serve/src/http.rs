//! HTTP/1.1 for reading only, with a limit on everything: connections, streams, length of a request, time to ask, time to
//! take an answer. One thread and one request per connection, so a client that is slow delays only itself.
//!
//! Requests are parsed by `httparse`. A server that listens on the loopback answers only to names of the loopback: a page of
//! somebody else whose name was made to point here (DNS rebinding) reads nothing. One with a [`Token`] answers only to who
//! knows it.

use crate::token::Token;
use std::borrow::Cow;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest head of a request, bytes.
pub const HEAD_MAX: usize = 8 * 1024;
/// Most header lines of a request.
pub const HEADERS_MAX: usize = 64;
/// Stack of a connection's thread, bytes.
const STACK: usize = 512 * 1024;
/// Most bytes that are read and thrown away when a connection is closed, so that its answer is not reset.
const DRAIN_MAX: usize = 64 * 1024;
/// Longest time of that.
const DRAIN: Duration = Duration::from_millis(500);

/// What a server allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time; one more is answered 503 and closed.
    pub connections: usize,
    /// Of these, connections of one address that is not of this host, so that it cannot keep out all others.
    pub per_peer: usize,
    /// Of these, streams; the others stay free for pages and scrapes.
    pub streams: usize,
    /// Time from the start of a connection to the end of its request.
    pub ask: Duration,
    /// Time to take a whole answer, or one event of a stream.
    pub take: Duration,
    /// A stream in which nothing happened for so long gets an empty comment: so a client that is gone is noticed.
    pub quiet: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 32,
            per_peer: 8,
            streams: 16,
            ask: Duration::from_secs(5),
            take: Duration::from_secs(10),
            quiet: Duration::from_secs(15),
        }
    }
}

/// An answer.
pub enum Answer {
    /// 200 with a body.
    Body {
        /// Media type.
        kind: &'static str,
        /// Bytes.
        bytes: Cow<'static, [u8]>,
    },
    /// Server-sent events.
    Stream(Box<dyn Feed>),
    /// 404.
    Nothing,
    /// 503, with the reason: there is nothing to show yet.
    Later(&'static str),
}

/// Where the events of a stream come from.
pub trait Feed: Send {
    /// Waits at most `wait` for the next event. Events that come faster than they are asked for may be left out.
    fn next(&mut self, wait: Duration) -> Event;
}

/// What a [`Feed`] has.
pub enum Event {
    /// Bytes as they are sent, each event ended by an empty line.
    Text(Arc<str>),
    /// Nothing happened.
    Quiet,
    /// The last bytes: the stream is closed after them.
    End(&'static str),
}

/// What a server shows.
pub trait Site: Send + Sync + 'static {
    /// The answer to a GET of `path`, which has no query.
    fn get(&self, path: &str) -> Answer;
}

/// A server that runs until the process ends.
pub struct Server {
    address: SocketAddr,
    open: Arc<AtomicUsize>,
}

impl Server {
    /// Begins to answer at `listener`.
    ///
    /// # Errors
    /// If the address cannot be asked for or no thread can be started.
    pub fn start(
        listener: TcpListener,
        site: Arc<dyn Site>,
        token: Option<Arc<Token>>,
        limits: Limits,
    ) -> io::Result<Server> {
        let address = listener.local_addr()?;
        let open = Arc::new(AtomicUsize::new(0));
        let shared = Arc::new(Shared {
            site,
            limits,
            token,
            streams: AtomicUsize::new(0),
            peers: Mutex::default(),
            loopback: address.ip().is_loopback(),
        });
        let count = Arc::clone(&open);
        std::thread::Builder::new().name("weir-http".into()).stack_size(STACK).spawn(move || {
            loop {
                match listener.accept() {
                    Ok((stream, peer)) => admit(stream, peer.ip().to_canonical(), &shared, &count),
                    // Out of descriptors or memory: the same call would fail at once again.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        })?;
        Ok(Server { address, open })
    }

    /// Where it listens; with the port that the kernel chose if port 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until no connection is open, at most `limit`: for answers that are on their way when a process ends.
    pub fn finish(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.open.load(Ordering::Acquire) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Shared {
    site: Arc<dyn Site>,
    limits: Limits,
    token: Option<Arc<Token>>,
    streams: AtomicUsize,
    /// Of each connection that is not from this host.
    peers: Mutex<Vec<IpAddr>>,
    loopback: bool,
}

/// A connection of one address, `None` if it is not counted; given back when dropped.
struct Peer<'a>(&'a Shared, Option<IpAddr>);

impl Shared {
    /// `own` is the address that it has reached.
    fn admit(&self, peer: IpAddr, own: Option<IpAddr>) -> Option<Peer<'_>> {
        // Behind a proxy on this host all clients are this host.
        if peer.is_loopback() || own == Some(peer) {
            return Some(Peer(self, None));
        }
        let peer = network(peer);
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.iter().filter(|known| **known == peer).count() >= self.limits.per_peer {
            return None;
        }
        peers.push(peer);
        Some(Peer(self, Some(peer)))
    }
}

/// Whom an address counts for: with IPv6 the /64, of which a host has all.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        let Some(peer) = self.1 else { return };
        let mut peers = self.0.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = peers.iter().position(|known| *known == peer) {
            peers.swap_remove(at);
        }
    }
}

/// One of a bounded number; given back when dropped.
struct Slot<'a>(&'a AtomicUsize);

impl<'a> Slot<'a> {
    fn take(count: &'a AtomicUsize, limit: usize) -> Option<Slot<'a>> {
        let more = |n: usize| (n < limit).then_some(n + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Slot(count))
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn admit(mut stream: TcpStream, peer: IpAddr, shared: &Arc<Shared>, count: &Arc<AtomicUsize>) {
    let slot = Slot::take(count, shared.limits.connections);
    let own = stream.local_addr().ok().map(|address| address.ip().to_canonical());
    let (Some(slot), Some(admitted)) = (slot, shared.admit(peer, own)) else {
        // It fits into any socket buffer; if not, this client gets less. The accepting thread never waits.
        let _ = stream.set_nonblocking(true);
        let _ = stream.write(&refusal(503, "too many connections; try again later\n"));
        return;
    };
    let counted = admitted.1;
    std::mem::forget((slot, admitted));
    let (shared_there, count_there) = (Arc::clone(shared), Arc::clone(count));
    let spawned =
        std::thread::Builder::new().name("weir-http-client".into()).stack_size(STACK).spawn(move || {
            let _slot = Slot(&count_there);
            let _peer = Peer(&shared_there, counted);
            let _ = converse(&mut stream, &shared_there);
            close(&mut stream);
        });
    if spawned.is_err() {
        drop(Slot(count));
        drop(Peer(shared, counted));
    }
}

/// A request as far as it matters.
struct Asked {
    head: bool,
    path: String,
}

fn converse(stream: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let limits = &shared.limits;
    // An event is small and must not wait for the one before it to be acknowledged.
    stream.set_nodelay(true)?;
    let asked = match ask(stream, Instant::now() + limits.ask, shared)? {
        Ok(asked) => asked,
        Err(refusal) => return send(stream, &refusal, Instant::now() + limits.take),
    };
    let whole = |stream: &mut TcpStream, bytes: Vec<u8>| {
        let end = if asked.head { head_length(&bytes) } else { bytes.len() };
        send(stream, &bytes[..end], Instant::now() + limits.take)
    };
    match shared.site.get(&asked.path) {
        Answer::Body { kind, bytes } => whole(stream, answer(200, kind, &bytes, "")),
        Answer::Nothing => whole(stream, refusal(404, "no such page; try /\n")),
        Answer::Later(reason) => whole(stream, refusal(503, reason)),
        Answer::Stream(_) if asked.head => whole(stream, answer(200, EVENTS, b"", "")),
        Answer::Stream(feed) => match Slot::take(&shared.streams, limits.streams) {
            None => whole(stream, refusal(503, "too many pages are open; close one\n")),
            Some(_slot) => events(stream, feed, limits),
        },
    }
}

const EVENTS: &str = "text/event-stream";

fn events(stream: &mut TcpStream, mut feed: Box<dyn Feed>, limits: &Limits) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {EVENTS}\r\n{COMMON}\r\nretry: 1000\n\n");
    send(stream, head.as_bytes(), Instant::now() + limits.take)?;
    loop {
        let event = feed.next(limits.quiet);
        let end = Instant::now() + limits.take;
        match event {
            Event::Text(text) => send(stream, text.as_bytes(), end)?,
            Event::Quiet => send(stream, b":\n\n", end)?,
            Event::End(text) => return send(stream, text.as_bytes(), end),
        }
    }
}

/// Reads one request. The outer error: the connection is of no use any more.
fn ask(stream: &mut TcpStream, end: Instant, shared: &Shared) -> io::Result<Result<Asked, Vec<u8>>> {
    let mut bytes = Vec::with_capacity(1024);
    let mut chunk = [0u8; 2048];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(refusal(408, "the request took too long\n")));
        }
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut
                ) =>
            {
                continue;
            }
            Err(e) => return Err(e),
        }
        if let Some(answer) = understand(&bytes, shared.loopback, shared.token.as_deref()) {
            return Ok(answer);
        }
        if bytes.len() > HEAD_MAX {
            return Ok(Err(refusal(431, "the request is too long\n")));
        }
    }
}

/// None: the head of the request is not complete yet.
fn understand(bytes: &[u8], loopback: bool, token: Option<&Token>) -> Option<Result<Asked, Vec<u8>>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(length)) if length > HEAD_MAX => {
            return Some(Err(refusal(431, "the request is too long\n")));
        }
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(Err(refusal(431, "too many headers\n"))),
        Err(_) => return Some(Err(refusal(400, "not an HTTP request\n"))),
    }
    let only = |name: &str| {
        let mut all = request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name));
        match (all.next(), all.next()) {
            (Some(header), None) => std::str::from_utf8(header.value).ok(),
            _ => None,
        }
    };
    let host = || only("host");
    let old = request.version == Some(0);
    Some(match (request.method, request.path) {
        _ if host().is_none() && !old => Err(refusal(400, "one Host header is needed\n")),
        _ if loopback && !host().is_none_or(of_loopback) => {
            Err(refusal(421, "this name is not served on the loopback; use localhost or 127.0.0.1\n"))
        }
        _ if token.is_some_and(|token| !only("authorization").is_some_and(|given| token.is(given))) => {
            let asks = "WWW-Authenticate: Basic realm=\"weir\", charset=\"UTF-8\"\r\n";
            Err(answer(401, TEXT, b"the token is needed, as password of any user or as Bearer\n", asks))
        }
        (Some("GET" | "HEAD"), Some(target)) => {
            let path = target.split(['?', '#']).next().unwrap_or_default();
            Ok(Asked { head: request.method == Some("HEAD"), path: path.to_owned() })
        }
        _ => Err(answer(405, TEXT, b"nothing can be changed here; use GET\n", "Allow: GET, HEAD\r\n")),
    })
}

/// Whether a Host header names the loopback, or an address: no name that somebody else controls.
fn of_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.to_ascii_lowercase();
    name.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

/// Has a server of either kind understand the bytes of a request.
///
/// # Panics
/// That is the finding.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    let token = Token::of("sixteen-or-more-characters").ok();
    for (loopback, token) in [(false, None), (true, None), (false, token.as_ref())] {
        match understand(bytes, loopback, token) {
            Some(Ok(asked)) => assert!(asked.path.len() <= HEAD_MAX && !asked.path.contains(['?', '#'])),
            Some(Err(refusal)) => assert!(head_length(&refusal) < refusal.len()),
            None => {}
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

/// Lines of every head. Only what this server sends may be loaded or run, and nobody may frame it.
const COMMON: &str = "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
    Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

fn refusal(status: u16, why: &str) -> Vec<u8> {
    answer(status, TEXT, why.as_bytes(), if status == 503 { "Retry-After: 1\r\n" } else { "" })
}

fn answer(status: u16, kind: &str, body: &[u8], more: &str) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}{COMMON}\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Bytes of an answer before its body.
fn head_length(answer: &[u8]) -> usize {
    answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(answer.len(), |at| at + 4)
}

fn send(stream: &mut TcpStream, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Closes so that the client gets what was sent: bytes that were not read would make the kernel reset the connection.
fn close(stream: &mut TcpStream) {
    let end = Instant::now() + DRAIN;
    let mut left = DRAIN_MAX;
    let mut chunk = [0u8; 4096];
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    while left > 0 {
        let wait = end.saturating_duration_since(Instant::now());
        if wait.is_zero() || stream.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).is_err() {
            return;
        }
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(n) => left = left.saturating_sub(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &[u8]) -> u16 {
        told(understand(request, true, None))
    }

    fn told(answer: Option<Result<Asked, Vec<u8>>>) -> u16 {
        match answer {
            None => 0,
            Some(Ok(_)) => 200,
            Some(Err(bytes)) => String::from_utf8_lossy(&bytes[9..12]).parse().unwrap(),
        }
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_client() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn without_the_token_nothing_is_shown() {
        let token = Token::of("0123456789abcdef").unwrap();
        for (header, expected) in [
            ("", 401),
            ("Authorization: Bearer 0123456789abcdef\r\n", 200),
            ("Authorization: Bearer 0123456789abcdef\r\nAuthorization: Bearer x\r\n", 401),
            ("Authorization: Bearer 0123456789abcdeg\r\n", 401),
            ("Authorization: Basic YW55OjAxMjM0NTY3ODlhYmNkZWY=\r\n", 200),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\nHost: edge1\r\n{header}\r\n");
            assert_eq!(told(understand(request.as_bytes(), false, Some(&token))), expected, "{header}");
        }
    }

    #[test]
    fn requests_are_understood_or_refused() {
        for (request, expected) in [
            ("GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n", 200),
            ("GET / HTTP/1.0\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: [::1]:9494\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: weir.localhost\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: local", 0),
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: somebody.example\r\n\r\n", 421),
            ("GET / HTTP/1.1\r\nHost: localhost.somebody.example\r\n\r\n", 421),
            ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
            ("\u{1}\u{2}\r\n\r\n", 400),
            ("GET  HTTP/9.9\r\n\r\n", 400),
        ] {
            assert_eq!(status(request.as_bytes()), expected, "{request:?}");
        }
        let many: String = (0..HEADERS_MAX + 1).map(|i| format!("X-{i}: y\r\n")).collect();
        assert_eq!(status(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()), 431);
        let long = format!("GET /{} HTTP/1.1\r\nHost: ::1\r\n\r\n", "x".repeat(HEAD_MAX));
        assert_eq!(status(long.as_bytes()), 431);
    }

    #[test]
    fn the_query_is_no_part_of_the_path() {
        let request = b"HEAD /a/b?c=d HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n";
        let asked = understand(request, true, None).unwrap().ok().unwrap();
        assert_eq!((asked.path.as_str(), asked.head), ("/a/b", true));
    }

    #[test]
    fn other_names_are_served_where_others_may_ask() {
        let request = b"GET / HTTP/1.1\r\nHost: edge1\r\n\r\n";
        assert!(matches!(understand(request, false, None), Some(Ok(_))));
    }
}
