//! A session as routing protocols hold it: a word every second, and the end after three seconds of silence.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::is_pause;

/// Time between two keepalives: a third of the hold time.
pub const EVERY: Duration = Duration::from_secs(1);
/// Silence that ends the session.
pub const HOLD: Duration = Duration::from_secs(3);
/// Length of a keepalive, that of BGP.
const LENGTH: usize = 19;
/// How often the timers are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Holds the session until the peer closes it, its hold time expires, or `alive`, which is told the silence so far,
/// says no.
pub fn hold(stream: &TcpStream, mut alive: impl FnMut(Duration) -> bool) {
    let mut stream = stream;
    // Without it the loop would only look at its timers when the peer speaks.
    let _ = stream.set_read_timeout(Some(LOOK));
    let (mut heard, mut sent) = (Instant::now(), None::<Instant>);
    let mut buffer = [0u8; 256];
    while alive(heard.elapsed()) && heard.elapsed() < HOLD {
        if sent.is_none_or(|at| at.elapsed() >= EVERY) {
            sent = Some(Instant::now());
            if stream.write_all(&[0xff; LENGTH]).is_err() {
                return;
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => heard = Instant::now(),
            Err(e) if is_pause(&e) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_session_lives_on_keepalives_and_ends_with_silence() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let start = Instant::now();
        // The peer says nothing at all.
        hold(&stream, |_| true);
        assert!(start.elapsed() >= HOLD && start.elapsed() < HOLD * 3, "{:?}", start.elapsed());
        drop(peer);
    }
}
