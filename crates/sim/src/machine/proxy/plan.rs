//! What the kernel and the workers do, step by step: cost, lines of a connection, lock, and what follows.

use super::settings::Settings;
use crate::cpu::Bucket;
use crate::engine::Nanos;

pub(super) const SOFTIRQ: Bucket = Bucket(1);
pub(super) const SOFTIRQ_SPIN: Bucket = Bucket(2);
pub(super) const NET: Bucket = Bucket(3);
pub(super) const SYS: Bucket = Bucket(4);
pub(super) const USER: Bucket = Bucket(5);
pub(super) const SPIN: Bucket = Bucket(6);
pub(super) const SWITCH: Bucket = Bucket(7);

/// Frames that arrive back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Train {
    /// Client: connection request.
    Syn,
    /// Client: connection established, and the request.
    Open,
    /// Server: connection established.
    Connected,
    /// Server: the response and the end of the connection.
    Response,
    /// Client: acknowledgements and the end of the connection.
    Acks,
}

impl Train {
    /// Whether it belongs to the client's connection.
    pub(super) fn is_client(self) -> bool {
        matches!(self, Train::Syn | Train::Open | Train::Acks)
    }
}

/// What a worker is woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// Its connection to the server is there.
    Connected,
    /// The server's response is there.
    Response,
}

/// A connection of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// Locks of the kernel; a listener's is told by its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockName {
    /// Open files: programs only, softirqs go on on the same core.
    Files,
    /// Local ports, softirqs wait.
    Ports,
    /// Closed connections, softirqs wait.
    Closed,
    /// The listener that the connection came to, softirqs wait.
    Listener,
}

/// What follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The next step.
    Next,
    /// The client is answered.
    AnswerClient,
    /// The connection goes to an accept queue.
    Established,
    /// The worker of the connection is woken.
    Wake(Ready),
    /// The connection is gone.
    End,
    /// The server is asked for a connection.
    Connect,
    /// The request goes to the server.
    Request,
    /// The response goes to the client.
    Reply,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub bucket: Bucket,
    pub cost: Nanos,
    /// Lines of a connection, from the core that had it before.
    pub lines: Option<(Side, u32)>,
    /// The other lines of the connection stay where they are.
    pub part: bool,
    /// Taken before and released after.
    pub lock: Option<LockName>,
    pub then: Then,
}

/// All steps, with their costs resolved.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    syn: Vec<Step>,
    open: Vec<Step>,
    connected: Vec<Step>,
    response: Vec<Step>,
    acks: Vec<Step>,
    accept: Vec<Step>,
    send: Vec<Step>,
    reply: Vec<Step>,
}

fn work(bucket: Bucket, cost: Nanos) -> Step {
    Step { bucket, cost, lines: None, part: false, lock: None, then: Then::Next }
}

impl Step {
    fn lines(self, side: Side, count: u32) -> Self {
        Self { lines: Some((side, count)), ..self }
    }

    fn part(self, side: Side, count: u32) -> Self {
        Self { lines: Some((side, count)), part: true, ..self }
    }

    fn lock(self, lock: LockName) -> Self {
        Self { lock: Some(lock), ..self }
    }

    fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }
}

impl Plan {
    pub(super) fn new(s: &Settings) -> Self {
        use LockName::{Closed, Files, Listener, Ports};
        use Side::{Client, Server};
        let frames = |count: u32, tcp: Nanos| work(SOFTIRQ, s.frame.0 * Nanos::from(count) + tcp);
        let tcp = s.tcp.0;
        Self {
            syn: vec![
                frames(1, s.tcp_syn.0),
                work(SOFTIRQ, s.hold_syn.0).lock(Listener).then(Then::AnswerClient),
            ],
            open: vec![
                frames(2, s.tcp_open.0),
                work(SOFTIRQ, s.hold_open.0).lock(Listener).then(Then::Established),
            ],
            connected: vec![frames(1, tcp).lines(Server, s.lines_softirq).then(Then::Wake(Ready::Connected))],
            response: vec![
                frames(s.response_frames, tcp)
                    .lines(Server, s.lines_softirq)
                    .then(Then::Wake(Ready::Response)),
            ],
            acks: vec![
                frames(s.ack_frames, tcp).part(Client, s.lines_softirq),
                work(SOFTIRQ, s.hold_close.0).lines(Client, s.lines_close).lock(Closed).then(Then::End),
            ],
            accept: vec![
                work(NET, s.hold_accept.0).lock(Listener),
                work(SYS, s.hold_files.0).part(Client, s.lines_file).lock(Files),
                work(NET, s.net_accept.0).lines(Client, s.lines_accept),
                work(USER, s.user_request.0),
                work(SYS, s.hold_files.0).lock(Files),
                work(SYS, s.hold_port.0).lock(Ports),
                work(SYS, s.sys_request.0),
                work(NET, s.net_connect.0).then(Then::Connect),
            ],
            send: vec![work(NET, s.net_send.0).lines(Server, s.lines_connected).then(Then::Request)],
            reply: vec![
                work(NET, s.net_read.0).lines(Server, s.lines_response),
                work(USER, s.user_response.0),
                work(SYS, s.sys_response.0),
                work(NET, s.net_reply.0).lines(Client, s.lines_connected).then(Then::Reply),
                work(SYS, s.hold_files.0).lock(Files),
                work(SYS, s.hold_close.0).lock(Closed),
                work(SYS, s.hold_files.0).lock(Files),
            ],
        }
    }

    /// Steps of a softirq for a train.
    #[inline]
    pub(super) fn softirq(&self, train: Train) -> &[Step] {
        match train {
            Train::Syn => &self.syn,
            Train::Open => &self.open,
            Train::Connected => &self.connected,
            Train::Response => &self.response,
            Train::Acks => &self.acks,
        }
    }

    /// Steps of a worker: what it is woken for, or `None` for accept.
    #[inline]
    pub(super) fn worker(&self, ready: Option<Ready>) -> &[Step] {
        match ready {
            None => &self.accept,
            Some(Ready::Connected) => &self.send,
            Some(Ready::Response) => &self.reply,
        }
    }
}
