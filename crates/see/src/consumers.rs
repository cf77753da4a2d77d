//! Queues that received packets end in: how full, whose, how fast in and out.

use crate::ledger::{moved32, moved64};
use crate::model::{CONSUMERS_MAX, Consumer, Kind, Tcp};
use kern::proc::FilterQueue;
use kern::raw::{self, Raw, Socket};
use std::collections::BTreeMap;

/// Its word, as in `udp 514`.
#[must_use]
pub fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Udp => "udp",
        Kind::Tcp | Kind::Accept => "tcp",
        Kind::Filter => "filter",
        Kind::Capture => "capture",
        Kind::Xdp => "xdp",
    }
}

fn kind(kind: raw::Kind) -> Kind {
    match kind {
        raw::Kind::Udp => Kind::Udp,
        raw::Kind::Tcp => Kind::Tcp,
        raw::Kind::Accept => Kind::Accept,
        raw::Kind::Capture => Kind::Capture,
        raw::Kind::Xdp => Kind::Xdp,
    }
}

/// A socket is the same in two readings by its inode; one that nobody has accepted yet has none, and is the same by
/// its addresses.
fn key(s: &Socket) -> (raw::Kind, u64, String) {
    let unnamed = || format!("{} {:?}", s.local, s.remote);
    (s.kind, s.inode, if s.inode == 0 { unnamed() } else { String::new() })
}

/// Consumers of `after`, the worst first, and how many more there are. `read`: datagrams that programs read in the
/// interval, all UDP sockets together.
pub fn consumers(before: &Raw, after: &Raw, read: u64) -> (Vec<Consumer>, u64) {
    let then: BTreeMap<_, &Socket> = before.sockets.iter().map(|s| (key(s), s)).collect();
    let seconds = after.begin_ns.saturating_sub(before.begin_ns).max(1) as f64 / 1e9;
    let mut all: Vec<Consumer> =
        after.sockets.iter().map(|now| socket(then.get(&key(now)).copied(), now, seconds)).collect();
    let old: BTreeMap<u16, &FilterQueue> = before.filters.iter().map(|f| (f.queue, f)).collect();
    all.extend(after.filters.iter().map(|now| filter(old.get(&now.queue).copied(), now, seconds)));
    for one in &mut all {
        if let Some(holder) = after.holders.get(&one.id).filter(|_| one.kind != Kind::Filter) {
            (one.pid, one.process) = (holder.pid, holder.name.clone());
        }
    }
    rates_of_the_only_one(&mut all, read);
    all.sort_by(|a, b| {
        rank(b).total_cmp(&rank(a)).then_with(|| a.socket.cmp(&b.socket)).then(a.id.cmp(&b.id))
    });
    // Connections in which nothing waits are many, and are of no interest here.
    let shown =
        |c: &Consumer| c.kind != Kind::Tcp || c.waiting > 0 || c.lost.unwrap_or(0) > 0 || c.tcp.is_some();
    let total = all.len();
    let list: Vec<Consumer> = all.into_iter().filter(shown).take(CONSUMERS_MAX).collect();
    let quiet = (total - list.len()) as u64;
    (list, quiet)
}

/// What is lost counts more than any level.
fn rank(c: &Consumer) -> f64 {
    c.lost.unwrap_or(0) as f64 * 10.0 + c.level.unwrap_or(0.0)
}

/// The kernel counts what programs read from UDP sockets for all together. Where only one can have read anything,
/// it is that one's.
fn rates_of_the_only_one(all: &mut [Consumer], read: u64) {
    let mut active: Vec<&mut Consumer> = all.iter_mut().filter(|c| c.kind == Kind::Udp).collect();
    if let [one] = active.as_mut_slice() {
        one.out = Some(read);
        one.r#in = one.lost.map(|lost| lost + read);
    }
}

fn full_in(then: u64, now: u64, limit: u64, seconds: f64) -> Option<f64> {
    if limit == 0 {
        return None;
    }
    if now >= limit {
        return Some(0.0);
    }
    // Below a tenth, growth is noise of packets that come and go.
    let grows = now > then && now > limit / 10;
    grows.then(|| (limit - now) as f64 / ((now - then) as f64 / seconds))
}

fn level(waiting: u64, limit: u64) -> Option<f64> {
    (limit > 0).then(|| (waiting as f64 / limit as f64).min(1.0))
}

fn socket(then: Option<&Socket>, now: &Socket, seconds: f64) -> Consumer {
    let kind = kind(now.kind);
    let named = match kind {
        Kind::Capture | Kind::Xdp => word(kind).to_owned(),
        _ => format!("{} {}", word(kind), now.local.port()),
    };
    // A mapped ring does not show what waits in it.
    let hidden = kind == Kind::Xdp || (kind == Kind::Capture && now.drops.is_none());
    let lost = |s: &Socket| s.drops.unwrap_or(0);
    let tcp = now.tcp.map(|tcp| {
        let old = then.and_then(|s| s.tcp).unwrap_or(tcp);
        Tcp {
            rtt_us: if tcp.receiver_rtt_us > 0 { tcp.receiver_rtt_us } else { tcp.rtt_us },
            window: tcp.window,
            received: moved64(old.received, tcp.received),
            out_of_order: moved32(old.out_of_order.into(), tcp.out_of_order.into()),
        }
    });
    Consumer {
        kind,
        socket: named,
        local: if now.local.port() == 0 { String::new() } else { now.local.to_string() },
        remote: now.remote.map(|r| r.to_string()),
        id: now.inode,
        waiting: now.waiting,
        limit: now.limit,
        level: level(now.waiting, now.limit).filter(|_| !hidden),
        // A socket that is new has lost all that it has lost in this interval. What a connection drops, such as segments that
        // came twice or out of its window, its peer sends again where it was wanted: its queue was not full.
        lost: now.drops.filter(|_| kind != Kind::Tcp).map(|drops| moved32(then.map_or(0, lost), drops)),
        full_in_s: full_in(then.map_or(0, |s| s.waiting), now.waiting, now.limit, seconds)
            .filter(|_| !hidden),
        tcp,
        ..Consumer::default()
    }
}

fn filter(then: Option<&FilterQueue>, now: &FilterQueue, seconds: f64) -> Consumer {
    // Another program has a queue of its own under the same number: its counters begin at 0.
    let old = then.filter(|f| f.port == now.port).copied().unwrap_or_default();
    let queue_full = moved32(old.queue_full, now.queue_full);
    let socket_full = moved32(old.socket_full, now.socket_full);
    let came = moved32(old.ids, now.ids);
    // The kernel does not tell the length that the program asked for; a queue that has dropped stands at it.
    let limit = if queue_full > 0 { now.waiting.max(1) } else { FILTER_DEFAULT.max(now.waiting) };
    let grown = now.waiting.saturating_sub(old.waiting);
    Consumer {
        kind: Kind::Filter,
        socket: format!("filter {}", now.queue),
        id: now.queue.into(),
        pid: now.port,
        process: kern::proc::name(now.port).unwrap_or_default(),
        waiting: now.waiting,
        limit,
        level: level(now.waiting, limit),
        // Ids are given before the program's socket is tried, and not to those that find the queue full.
        r#in: Some(came + queue_full),
        out: Some(came.saturating_sub(grown.saturating_add(socket_full))),
        lost: Some(queue_full + socket_full),
        full_in_s: full_in(old.waiting, now.waiting, limit, seconds),
        ..Consumer::default()
    }
}

/// `NFQNL_QMAX_DEFAULT`, net/netfilter/nfnetlink_queue.c.
const FILTER_DEFAULT: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use kern::proc::Holder;

    fn udp(port: u16, inode: u64, waiting: u64, drops: u64) -> Socket {
        Socket {
            kind: raw::Kind::Udp,
            local: ([127, 0, 0, 1], port).into(),
            remote: None,
            inode,
            uid: 0,
            interface: 0,
            waiting,
            limit: 1000,
            backlog: 0,
            drops: Some(drops),
            tcp: None,
        }
    }

    fn raw(second: u64, sockets: Vec<Socket>, filters: Vec<FilterQueue>) -> Raw {
        let holders = [(7, Holder { pid: 70, name: "one".into() })].into();
        Raw { begin_ns: second * 1_000_000_000, sockets, filters, holders, ..Raw::default() }
    }

    #[test]
    fn the_worst_comes_first_with_its_process() {
        let before = raw(0, vec![udp(5, 7, 0, 100), udp(6, 8, 0, 0)], vec![]);
        let after = raw(1, vec![udp(6, 8, 900, 0), udp(5, 7, 0, 130)], vec![]);
        let (list, quiet) = consumers(&before, &after, 50);
        assert_eq!((list[0].socket.as_str(), list[0].lost, list[0].pid), ("udp 5", Some(30), 70));
        assert_eq!(list[1].level, Some(0.9));
        assert!((list[1].full_in_s.unwrap() - 1.0 / 9.0).abs() < 1e-9);
        assert_eq!((list[0].out, quiet), (None, 0), "two may have read");
    }

    #[test]
    fn the_only_socket_has_all_the_reads() {
        let before = raw(0, vec![udp(5, 7, 0, 0)], vec![]);
        let (list, _) = consumers(&before, &raw(1, vec![udp(5, 7, 0, 10)], vec![]), 50);
        assert_eq!((list[0].r#in, list[0].out), (Some(60), Some(50)));
    }

    #[test]
    fn drops_of_a_connection_are_no_loss_of_a_consumer() {
        let tcp = |kind, drops| Socket { kind, ..udp(443, 7, 0, drops) };
        for (kind, lost) in [(raw::Kind::Tcp, None), (raw::Kind::Accept, Some(30))] {
            let (before, after) =
                (raw(0, vec![tcp(kind, 100)], vec![]), raw(1, vec![tcp(kind, 130)], vec![]));
            let (list, quiet) = consumers(&before, &after, 0);
            assert_eq!(list.first().and_then(|c| c.lost), lost, "{kind:?}");
            assert_eq!(quiet, u64::from(lost.is_none()), "{kind:?}");
        }
    }

    #[test]
    fn filters_count_what_came_and_what_was_lost() {
        let queue = |waiting, queue_full, ids| FilterQueue {
            queue: 3,
            port: u32::MAX,
            waiting,
            queue_full,
            socket_full: 0,
            ids,
        };
        let before = raw(0, vec![], vec![queue(0, 0, 10)]);
        let (list, _) = consumers(&before, &raw(1, vec![], vec![queue(20, 5, 110)]), 0);
        let one = &list[0];
        assert_eq!((one.r#in, one.out, one.lost, one.level), (Some(105), Some(80), Some(5), Some(1.0)));
    }
}
