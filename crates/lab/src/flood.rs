//! The floods of the experiment `innocents`: what is sent, and what the host is prepared with.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kern::wire::link::{self, End};
use kern::wire::netns::Namespace;
use kern::wire::source::{Payload, Target};
use kern::wire::{connections, counters};

use crate::consumer::Kind;
use crate::rig::{Input, Rig};
use crate::{Error, Result, frame, probe};

/// Discard: no program of the lab has it, over UDP or TCP.
const CLOSED: u16 = 9;
/// Of TEST-NET-3: no address of any host.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// Source ports of a flood, counted up from the first.
const FLOWS: u32 = 64;
const FIRST_FLOW: u16 = 20_000;
/// Ports of one of the two halves of [`Flood::Scan`].
const HALF: u32 = 1 << 15;
/// Flows of a flood of which no two frames are to be alike.
const MANY: u32 = 60_000;
/// Source ports of the questions, counted up from [`probe::ANSWERS`].
pub const ASKING: u16 = 64;
/// Addresses that ask beside [`Flood::Loud`].
pub const SENDERS: u8 = 20;

/// These addresses, one after another.
pub fn senders(input: &Input) -> impl Iterator<Item = Ipv4Addr> {
    let [a, b, c, d] = input.peer.octets();
    (1..=SENDERS).map(move |n| Ipv4Addr::new(a, b, c, d + n))
}

/// Whether the question with this number comes from the first of them, the address of [`Flood::Spoofed`]: the wire's first is from
/// the second one.
pub fn is_spoofed(number: u64) -> bool {
    (number + 1).is_multiple_of(u64::from(SENDERS))
}

/// The address that [`Flood::Blocklisted`] comes from.
fn refused(input: &Input) -> Ipv4Addr {
    let [a, b, c, _] = input.peer.octets();
    Ipv4Addr::new(a, b, c, 77)
}

/// What floods the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flood {
    /// UDP for a program that reads.
    Reader,
    /// UDP for a program that has stopped.
    Hung,
    /// UDP for a port that nobody has.
    ClosedPort,
    /// SYNs over TCP for a port that nobody has.
    SynClosed,
    /// UDP for an address that is not the host's, sent to its hardware address; it does not forward.
    OtherHost,
    /// First fragments of UDP datagrams whose rest never comes.
    Fragments,
    /// UDP for a port that a rule of the host's firewall drops.
    Firewall,
    /// The same from 60,000 addresses.
    FirewallMany,
    /// The same on a host that forwards and translates addresses, as one with containers does: the gate cannot tell whose it is.
    TranslatedMany,
    /// UDP from one address for the very server that is asked: of the experiment `fair-sources` alone.
    Loud,
    /// The same from the address of one of 20 that ask: a resolver's address that is spoofed.
    Spoofed,
    /// UDP for the very server that is asked, from an address that the host's firewall refuses.
    Blocklisted,
    /// UDP from port 53, as answers of a resolver come, which are protected by default, for a port that nobody has.
    Reflection,
    /// UDP for all 65,536 ports, one after another and over and over.
    Scan,
    /// UDP from 60,000 addresses for the port of the server that is asked, which is connected to the one that asks: no socket
    /// takes it, and the port is somebody's.
    Connected,
    /// UDP for the very server that is asked, from ever other ports, while the table of connections has no place for another
    /// one, but has those who ask.
    Connections,
}

impl Flood {
    /// Those of `innocents`, in the order in which they are shown.
    pub const ALL: [Flood; 7] = [
        Flood::Reader,
        Flood::Hung,
        Flood::ClosedPort,
        Flood::SynClosed,
        Flood::OtherHost,
        Flood::Fragments,
        Flood::Firewall,
    ];
    /// What somebody does who knows the gate: only if they are named.
    pub const ATTACKS: [Flood; 8] = [
        Flood::FirewallMany,
        Flood::TranslatedMany,
        Flood::Spoofed,
        Flood::Blocklisted,
        Flood::Reflection,
        Flood::Scan,
        Flood::Connected,
        Flood::Connections,
    ];
    /// Those of a quick run.
    pub const QUICK: [Flood; 2] = [Flood::Reader, Flood::ClosedPort];

    /// As `--kind` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Flood::Reader => "reader",
            Flood::Hung => "hung",
            Flood::ClosedPort => "closed-port",
            Flood::SynClosed => "syn-closed",
            Flood::OtherHost => "other-host",
            Flood::Fragments => "fragments",
            Flood::Firewall => "firewall",
            Flood::FirewallMany => "firewall-many",
            Flood::TranslatedMany => "translated-many",
            Flood::Loud => "loud",
            Flood::Spoofed => "spoofed",
            Flood::Blocklisted => "blocklisted",
            Flood::Reflection => "reflection",
            Flood::Scan => "scan",
            Flood::Connected => "connected",
            Flood::Connections => "connections",
        }
    }

    /// Those of these names.
    ///
    /// # Errors
    /// About the first that is unknown.
    pub fn named(names: &[String]) -> Result<Vec<Flood>> {
        let one = |name: &String| {
            let mut all = Flood::ALL.into_iter().chain(Flood::ATTACKS);
            all.clone().find(|flood| flood.name() == name).ok_or_else(|| {
                let first = all.next().map_or("", Flood::name);
                let known = all.fold(first.to_string(), |list, flood| list + ", " + flood.name());
                Error::Usage(format!("--kind {name}: no such kind of flood; there are {known}"))
            })
        };
        names.iter().map(one).collect()
    }

    /// True if a program reads what arrives.
    #[must_use]
    pub fn reads(self) -> bool {
        self == Flood::Reader
    }

    /// All that the wire sends on `input`, in turn.
    #[must_use]
    pub fn targets(self, input: &Input) -> Vec<Target> {
        let target = self.target(input);
        let Flood::Scan = self else { return vec![target] };
        let mut upper = target.clone();
        upper.frame[36..38].copy_from_slice(&(HALF as u16).to_be_bytes());
        vec![target, upper]
    }

    /// What the wire sends on `input` first.
    #[must_use]
    pub fn target(self, input: &Input) -> Target {
        let End { mac, .. } = &input.near;
        let source = match self {
            Flood::Spoofed => (senders(input).next().unwrap_or(input.peer), FIRST_FLOW),
            Flood::Blocklisted => (refused(input), FIRST_FLOW),
            // Not the one that asks.
            Flood::Connected | Flood::FirewallMany | Flood::TranslatedMany => {
                (senders(input).next().unwrap_or(input.peer), FIRST_FLOW)
            }
            // One flow for each port, from 1 on.
            Flood::Connections => (refused(input), 0),
            Flood::Reflection => (input.peer, 53),
            _ => (input.peer, FIRST_FLOW),
        };
        let port = match self {
            Flood::Reader | Flood::Hung => Kind::Sink.port(),
            Flood::Loud | Flood::Spoofed | Flood::Blocklisted | Flood::Connected | Flood::Connections => {
                probe::UDP
            }
            Flood::Scan => 0,
            _ => CLOSED,
        };
        let address = if self == Flood::OtherHost { ELSEWHERE } else { input.address };
        let (to, ends) = (input.far.mac, (source, (address, port)));
        let (frame, payload) = match self {
            Flood::SynClosed => (frame::syn(*mac, to, ends.0, ends.1), Payload::Tcp),
            Flood::Fragments => (frame::fragment(*mac, to, ends.0, ends.1), Payload::Fragment),
            // Whatever answers it, this is the number of no question.
            Flood::Loud | Flood::Spoofed | Flood::Blocklisted | Flood::Connections => {
                (frame::udp(*mac, to, ends.0, ends.1, &[0xff; 18]), Payload::Fixed)
            }
            Flood::Scan => (frame::udp(*mac, to, ends.0, ends.1, &[0; 18]), Payload::Ports),
            Flood::Connected | Flood::FirewallMany | Flood::TranslatedMany => {
                (frame::udp(*mac, to, ends.0, ends.1, &[0; 18]), Payload::Senders)
            }
            _ => (frame::udp(*mac, to, ends.0, ends.1, &[0; 18]), Payload::Stamp),
        };
        let flows = match self {
            Flood::Reflection => 1,
            Flood::Scan => HALF,
            Flood::Connected | Flood::Connections | Flood::FirewallMany | Flood::TranslatedMany => MANY,
            _ => FLOWS,
        };
        Target { frame, payload, flows }
    }

    /// Gives the host what the flood meets there.
    ///
    /// # Errors
    /// If the kernel or a tool refuses.
    pub fn prepare(self, rig: &Rig<'_>) -> Result<()> {
        match self {
            // A new namespace takes the setting of the machine.
            Flood::OtherHost => Ok(rig.host.run(|| counters::set_sysctl("net/ipv4/ip_forward", "0"))?),
            Flood::Firewall => refuse_port(&rig.host).map_err(Error::Missing),
            Flood::Blocklisted => {
                let rule = format!("{CHAIN}add rule inet lab in ip saddr {} drop", refused(&rig.inputs[0]));
                tool(&rig.host, "nft", vec![rule]).map_err(Error::Missing)
            }
            Flood::Loud | Flood::Spoofed => {
                let input = &rig.inputs[0];
                let known = |address| link::neighbour(input.far.index, address, input.near.mac);
                Ok(rig.host.run(|| senders(input).try_for_each(known))?)
            }
            Flood::Connected => from_anywhere(rig),
            Flood::FirewallMany => {
                refuse_port(&rig.host).map_err(Error::Missing)?;
                from_anywhere(rig)
            }
            Flood::TranslatedMany => {
                refuse_port(&rig.host).map_err(Error::Missing)?;
                let rule =
                    "add table ip lab; add chain ip lab out { type nat hook postrouting priority 100; }";
                tool(&rig.host, "nft", vec![rule.into()]).map_err(Error::Missing)?;
                rig.host.run(|| counters::set_sysctl("net/ipv4/ip_forward", "1"))?;
                from_anywhere(rig)?;
                // A guard looks once a second.
                std::thread::sleep(Duration::from_millis(1200));
                Ok(())
            }
            Flood::Connections => {
                let rule = format!("{CHAIN}add rule inet lab in ct state established accept");
                tool(&rig.host, "nft", vec![rule]).map_err(Error::Missing)?;
                let input = &rig.inputs[0];
                let asks = |port| SocketAddrV4::new(input.peer, probe::ANSWERS + port);
                let known = (0..ASKING).map(|n| (asks(n), SocketAddrV4::new(input.address, probe::UDP)));
                Ok(rig.host.run(|| connections::fill(known))?)
            }
            _ => Ok(()),
        }
    }

    /// Why it cannot be had on this machine; `None` if it can. Makes a namespace to find out.
    #[must_use]
    pub fn impossible(self) -> Option<String> {
        let found = match self {
            Flood::Firewall | Flood::FirewallMany | Flood::TranslatedMany => {
                Namespace::create("firewall").map(|namespace| refuse_port(&namespace).err())
            }
            Flood::Connections => connections::impossible(),
            _ => return None,
        };
        found.unwrap_or_else(|e| Some(e.to_string()))
    }
}

/// Has the host take what comes from addresses that have no way back.
fn from_anywhere(rig: &Rig<'_>) -> Result<()> {
    let name = &rig.inputs[0].far.name;
    let off = |of| counters::set_sysctl(&format!("net/ipv4/conf/{of}/rp_filter"), "0");
    Ok(rig.host.run(|| ["all", name].into_iter().try_for_each(off))?)
}

/// A chain of nftables for what is for the host, as the beginning of a line of rules for it.
pub(crate) const CHAIN: &str =
    "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; ";

/// Has the first tool that works drop UDP for [`CLOSED`] in `namespace`; else what they say.
fn refuse_port(namespace: &Namespace) -> std::result::Result<(), String> {
    let nft = format!("{CHAIN}add rule inet lab in udp dport {CLOSED} drop");
    let iptables = format!("-w 5 -A INPUT -p udp --dport {CLOSED} -j DROP");
    let words = iptables.split_whitespace().map(str::to_owned).collect();
    let mut why = Vec::new();
    for (name, args) in [("nft", vec![nft]), ("iptables", words)] {
        match tool(namespace, name, args) {
            Ok(()) => return Ok(()),
            Err(text) => why.push(text),
        }
    }
    Err(format!("kind firewall: {}; apt-get install nftables", why.join(", ")))
}

/// Runs a system's tool in `namespace`; else what it says.
pub(crate) fn tool(namespace: &Namespace, name: &str, args: Vec<String>) -> std::result::Result<(), String> {
    let places = ["/usr/sbin", "/sbin", "/usr/bin"].map(|place| Path::new(place).join(name));
    let Some(path) = places.iter().find(|path| path.is_file()) else {
        return Err(format!("program {name} not found"));
    };
    let mut command = Command::new(path);
    command.args::<Vec<String>, _>(args);
    match namespace.run(|| Ok(command.output())) {
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(format!("{name}: {}", text.lines().next().unwrap_or_default()))
        }
        Ok(Err(e)) => Err(format!("{name}: {e}")),
        Err(e) => Err(format!("{name}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use kern::wire::source::{Phase, Wire};

    use super::*;
    use crate::rig::{Cpus, Wiring};

    fn input() -> Input {
        let end = |name: &str, mac| End { name: name.into(), mac, index: 1 };
        Input {
            near: end("near", frame::wire_mac(0)),
            far: end("far", frame::host_mac(0)),
            address: Ipv4Addr::new(198, 18, 0, 1),
            peer: Ipv4Addr::new(198, 18, 0, 2),
        }
    }

    #[test]
    fn every_flood_reaches_the_host_with_what_it_is_named_after() {
        let input = input();
        for flood in Flood::ALL {
            let target = flood.target(&input);
            let frame = &target.frame;
            let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
            // The questions among it are as long, and one load has frames of one length.
            assert_eq!((frame.len(), &frame[..6]), (60, &input.far.mac[..]), "{}", flood.name());
            assert_eq!(word(34), FIRST_FLOW, "{}", flood.name());
            let closed = !matches!(flood, Flood::Reader | Flood::Hung);
            assert_eq!(word(36), if closed { CLOSED } else { Kind::Sink.port() }, "{}", flood.name());
            assert_eq!(frame[30..34] == input.address.octets(), flood != Flood::OtherHost);
            assert_eq!(frame[23] == 6, flood == Flood::SynClosed);
            assert_eq!(word(20) & 0x2000 != 0, flood == Flood::Fragments);
        }
    }

    /// It cannot flake: a tenth of what is sent is enough, and that nothing is refused for another reason holds for any
    /// number of frames.
    #[test]
    fn the_kernel_refuses_each_flood_for_the_reason_it_is_named_after_root() {
        if !testkit::root_or_skip("the_kernel_refuses_each_flood_for_the_reason_it_is_named_after_root") {
            return;
        }
        let wire = Wire::load().unwrap();
        let cpus = Cpus { wire: 0, host: 1 };
        for flood in Flood::ALL.into_iter().chain(Flood::ATTACKS) {
            if let Some(why) = flood.impossible() {
                eprintln!("skipped: a part of the_kernel_refuses_each_flood: {why}");
                continue;
            }
            let rig = Rig::new(&wire, cpus, Wiring::Rps, 1).unwrap();
            flood.prepare(&rig).unwrap();
            let phases = vec![Phase { duration: Duration::from_millis(50), rate: Some(40_000.0) }];
            let mut load = rig.load(phases, 1, flood.target(&rig.inputs[0]));
            load.targets = flood.targets(&rig.inputs[0]);
            load.schedule = (0..load.targets.len() as u8).collect();
            for target in 0..load.targets.len() as u32 {
                wire.output(target, &rig.wire_side, rig.inputs[0].near.index).unwrap();
            }
            let sent = wire.start(&rig.wire_side, cpus.wire, &load).unwrap().wait().unwrap().total();
            let end = Instant::now() + Duration::from_secs(5);
            let (counter, none) = match flood {
                Flood::SynClosed => ("Tcp.OutRsts", "Udp.NoPorts"),
                Flood::OtherHost => ("Ip.InAddrErrors", "Udp.NoPorts"),
                Flood::Fragments => ("Ip.ReasmReqds", "Udp.NoPorts"),
                Flood::Firewall
                | Flood::FirewallMany
                | Flood::TranslatedMany
                | Flood::Blocklisted
                | Flood::Connections => ("Ip.InReceives", "Udp.NoPorts"),
                // No program runs here.
                _ => ("Udp.NoPorts", "Udp.InDatagrams"),
            };
            let read = || rig.host.run(counters::snmp).unwrap();
            while read()[counter] < sent / 10 {
                assert!(Instant::now() < end, "{}: {sent} sent, {:?}", flood.name(), read());
                std::thread::sleep(Duration::from_millis(2));
            }
            let all = read();
            for error in [none, "Ip.InHdrErrors", "Tcp.InCsumErrors", "Udp.InCsumErrors"] {
                assert_eq!(all[error], 0, "{}: {error} {all:?}", flood.name());
            }
            // A fragment that repeats another one is not kept; of these the kernel keeps what its memory for them holds.
            let kept = all["Ip.ReasmReqds"] - all["Ip.ReasmFails"];
            assert_eq!(kept > 100, flood == Flood::Fragments, "{}: {all:?}", flood.name());
        }
    }

    #[test]
    fn floods_are_chosen_by_name() {
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_string()).collect::<Vec<_>>();
        assert_eq!(Flood::named(&names(&["hung", "reader"])).unwrap(), [Flood::Hung, Flood::Reader]);
        let answer = Flood::named(&names(&["reader", "readers"]));
        assert!(matches!(&answer, Err(Error::Usage(text)) if text.contains("closed-port")), "{answer:?}");
        assert!(Flood::QUICK.iter().all(|flood| Flood::ALL.contains(flood)));
    }
}
