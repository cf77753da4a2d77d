//! Which groups of listeners are meant, and why one cannot be attached to.

use crate::error::usage;
use kern::accept::{Choice, Group, Held, MEMBERS_MAX, Owner, Search, groups, name_owners};
use policy::accept::groups::MOST;
use policy::accept::obstacle::{Chooser, Obstacle, is_of, obstacle, stands_alone};
use std::collections::{BTreeMap, BTreeSet};

/// What the command line names.
#[derive(Clone, Debug)]
pub struct Targets {
    words: Vec<String>,
    /// Groups of UDP of any server.
    udp: bool,
}

/// Name of a server, for sentences: what its processes add for themselves ("nsd: server 1") is left out.
pub fn server(group: &Group) -> String {
    let owner = group.members.iter().find_map(|m| m.owner.as_ref().map(|o| o.name.clone()));
    let holder = || group.members.first().and_then(|m| m.holders.first()).and_then(|h| kern::proc::name(h.0));
    let name = owner.or_else(holder).unwrap_or_else(|| "?".into());
    name.split(':').next().unwrap_or_default().to_string()
}

impl Targets {
    pub fn parse(words: &[String], udp: bool) -> Targets {
        Targets { words: words.to_vec(), udp }
    }

    /// It may be chosen for at all.
    fn may(&self, one: &Held) -> bool {
        !one.udp || self.udp || stands_alone(one.local.port(), || kern::proc::name(one.pid))
    }

    /// Groups of UDP that are meant and left alone for want of `--udp`.
    pub fn skipped(&self, held: &[Held]) -> Vec<Group> {
        let ports: BTreeSet<u16> = held.iter().filter(|h| h.listens).map(|h| h.local.port()).collect();
        let taken: BTreeSet<_> =
            held.iter().filter(|h| h.udp && h.listens && self.may(h)).map(Held::key).collect();
        let mut all = groups(held, |one| one.udp && self.means(one, &ports));
        all.retain(|group| group.members.len() > 1 && !taken.contains(&group.key()));
        all
    }

    fn means(&self, one: &Held, ports: &BTreeSet<u16>) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| Targets::holds(word, one, ports))
    }

    fn holds(word: &str, one: &Held, ports: &BTreeSet<u16>) -> bool {
        match word.parse::<u32>() {
            Ok(port) if u16::try_from(port).is_ok_and(|port| ports.contains(&port)) => {
                u32::from(one.local.port()) == port
            }
            Ok(pid) => one.pid == pid || kern::proc::parent(one.pid) == Some(pid),
            Err(_) => kern::proc::name(one.pid).is_some_and(|name| is_of(&name, word)),
        }
    }

    /// Groups that are meant, as they are now, with their workers; those that cannot be attached to are among them. `known` tells who a
    /// worker was, by the inode of its listener.
    pub fn find(&self, held: &[Held], known: &BTreeMap<u64, Owner>) -> Vec<Group> {
        let ports: BTreeSet<u16> = held.iter().filter(|h| h.listens).map(|h| h.local.port()).collect();
        let mut all = groups(held, |one| self.may(one) && self.means(one, &ports));
        // A socket of UDP is alone more often than not, beside listeners too.
        all.retain(|group| group.members.len() > 1 || !(group.udp || self.words.is_empty()));
        let mut search = Search::new();
        for group in &mut all {
            name_owners(group, held, &mut search, |inode| known.get(&inode));
        }
        all
    }

    /// The groups to attach to.
    ///
    /// # Errors
    /// One line with the fix: 2.
    pub fn groups(&self, held: &[Held]) -> anyhow::Result<Vec<Group>> {
        let ports: BTreeSet<u16> = held.iter().filter(|h| h.listens).map(|h| h.local.port()).collect();
        for word in &self.words {
            let named = || held.iter().filter(|h| h.listens && Targets::holds(word, h, &ports));
            let shown = crate::out::shown(word);
            if named().next().is_none() {
                return Err(usage(format!(
                    "{shown}: no process listens by this port, process id or name (by UDP: with SO_REUSEPORT); start the server first (ss -lntup lists them)"
                )));
            }
            if named().all(|h| !self.may(h)) {
                return Err(usage(format!(
                    "{shown}: sockets of UDP only, whose datagrams may belong to sessions of one worker; if each stands alone: --udp"
                )));
            }
        }
        let all = self.find(held, &BTreeMap::new());
        let mut good = Vec::new();
        let mut why = None;
        for group in all {
            match in_the_way(&group) {
                None => good.push(group),
                // Of a server that was named, one listener of many (a status page) is no reason to refuse the others.
                Some(obstacle) => why = why.or_else(|| Some(obstacle_text(&group, obstacle))),
            }
        }
        match (good.is_empty(), why) {
            (false, _) if good.len() > MOST => {
                Err(usage(format!("{} groups of listeners, at most {MOST}; name ports", good.len())))
            }
            (false, _) => Ok(good),
            (true, Some(why)) => Err(usage(why)),
            (true, None) => Err(usage(
                "no server here has a listener per worker (SO_REUSEPORT); \
                 accept.md (in docs, installed in share/doc/weir) says how to configure one",
            )),
        }
    }
}

/// What stands in the way of attaching to `group`.
pub fn in_the_way(group: &Group) -> Option<Obstacle> {
    obstacle(group.members.len(), group.reuseport, || match group.program {
        0 => Chooser::Kernel,
        u32::MAX => Chooser::Filter,
        id if Choice::is_weirs(id) => Chooser::Weir { id, runs: kern::accept::is_held(id) },
        id => Chooser::Program(id),
    })
}

/// Why `group` is left alone, with what to do.
pub fn obstacle_text(group: &Group, obstacle: Obstacle) -> String {
    let (name, port) = (server(group), group.local.port());
    let why = match obstacle {
        Obstacle::OneListener => {
            let line = match name.as_str() {
                "nginx" => format!("\"listen {port} reuseport;\" and \"worker_processes auto;\""),
                "haproxy" => format!("\"bind :{port} shards by-thread\""),
                "envoy" => "\"enable_reuse_port: true\" and --concurrency above 1".into(),
                "gunicorn" => "a gunicorn for each core, each with \"--reuse-port --workers 1\"".into(),
                "node" => format!(
                    "\"listen({{port: {port}, reusePort: true}})\" in each worker (Node.js 23.1 or later)"
                ),
                _ => "a listener with SO_REUSEPORT in each worker".into(),
            };
            format!(
                "{name} has one listener for all its workers, so there is one queue only; configure {line}"
            )
        }
        Obstacle::TooMany => format!("more than {MEMBERS_MAX} listeners; it is left alone"),
        Obstacle::Filter => {
            format!(
                "{name} chooses by a filter of its own already (SO_ATTACH_REUSEPORT_CBPF); it is left alone"
            )
        }
        Obstacle::Weir(id) => {
            format!("another weir accept runs for {name} (program {id}); end that one first")
        }
        Obstacle::Program(id) => format!(
            "a program chooses for {name} already (BPF program {id}, as bpftool prog show id {id} tells); it is left alone"
        ),
    };
    format!("{}: {why}", group.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn held(inode: u64, udp: bool, port: u16) -> Held {
        Held {
            inode,
            pid: std::process::id(),
            fd: 3,
            netns: 1,
            device: 0,
            program: 0,
            waiting: 0,
            limit: 0,
            core: 0,
            sockets: 0,
            listens: true,
            udp,
            reuseport: true,
            local: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    #[test]
    fn groups_of_udp_are_skipped_unless_they_are_asked_for() {
        let all = [held(1, true, 853), held(2, true, 853), held(3, true, 53), held(4, false, 853)];
        let ports = |targets: &Targets| -> Vec<(u16, usize)> {
            targets.skipped(&all).iter().map(|g| (g.local.port(), g.members.len())).collect()
        };
        // One that is alone is no group.
        assert_eq!(ports(&Targets::parse(&[], false)), [(853, 2)]);
        assert_eq!(ports(&Targets::parse(&["853".into()], false)), [(853, 2)]);
        assert_eq!(ports(&Targets::parse(&["53".into()], false)), []);
        assert_eq!(ports(&Targets::parse(&[], true)), []);
    }
}
