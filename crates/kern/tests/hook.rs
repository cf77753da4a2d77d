//! Which hook runs the XDP program: that of the driver, or the kernel's generic one, which takes offloads that it does not give back.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::io;
use std::sync::{Arc, Mutex};

use kern::guard::{Gauges, Offloads, Rx};
use kern::link::XdpMode;
use testkit::NetNs;

/// What was asked for, and the program that the interface had then.
type Asked = Vec<(&'static str, Option<XdpMode>)>;

#[derive(Clone, Default)]
struct Owed {
    ifindex: u32,
    refuses: bool,
    asked: Arc<Mutex<Asked>>,
}

impl Owed {
    fn note(&self, what: &'static str) {
        self.asked.lock().unwrap().push((what, mode(self.ifindex)));
    }

    fn take(&self) -> Asked {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

impl Offloads for Owed {
    fn off(&self) -> io::Result<()> {
        self.note("off");
        if self.refuses { Err(io::Error::other("the journal")) } else { Ok(()) }
    }

    fn back(&self) {
        self.note("back");
    }
}

fn mode(ifindex: u32) -> Option<XdpMode> {
    kern::link::get(ifindex).unwrap().xdp.map(|xdp| xdp.mode)
}

/// The program of an interface of this namespace, and what it owes.
fn rx(name: &str, refuses: bool) -> (Rx, Owed) {
    let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
    let gauges = Gauges::load(cpus, kern::netns::current_inode().unwrap() as u32).unwrap();
    let ifindex = kern::netns::index_of(name).unwrap();
    let owed = Owed { ifindex, refuses, ..Owed::default() };
    (gauges.load_rx(0, 1).unwrap().of(ifindex).owing(Box::new(owed.clone())), owed)
}

#[test]
fn what_the_generic_hook_takes_is_given_back_root() {
    if !testkit::root_or_skip("what_the_generic_hook_takes_is_given_back_root") {
        return;
    }
    let host = NetNs::new("hook");
    host.sh("ip", &["link", "add", "plain0", "type", "bridge"]);
    host.sh("ip", &["link", "add", "in0", "type", "veth", "peer", "name", "out0"]);
    host.run(|| {
        // A driver that runs no programs: only the generic hook has it.
        let (rx, owed) = rx("plain0", false);
        let index = rx.ifindex();
        assert!(!rx.hold_in_driver().unwrap());
        assert_eq!((mode(index), rx.attached(), rx.held(), owed.take()), (None, false, false, vec![]));
        rx.hold().unwrap();
        assert_eq!((mode(index), rx.generic()), (Some(XdpMode::Generic), true));
        assert_eq!(owed.take(), [("off", None)], "before it is attached");
        rx.hold().unwrap();
        rx.release(1);
        assert!(!rx.detach_idle(2) && owed.take().is_empty(), "somebody uses it");
        rx.release(1);
        assert!(rx.detach_idle(2));
        assert_eq!(owed.take(), [("back", None)], "after it is detached");
        rx.hold().unwrap();
        rx.close();
        assert_eq!(owed.take(), [("off", None), ("back", None)]);
        rx.close();
        assert!(owed.take().is_empty(), "once");

        // What cannot be written down is not taken.
        let (rx, owed) = self::rx("plain0", true);
        assert!(rx.hold().is_err());
        assert_eq!((mode(index), owed.take()), (None, vec![("off", None)]));

        // A driver that runs them owes nothing.
        let (rx, owed) = self::rx("in0", false);
        assert!(rx.hold_in_driver().unwrap());
        assert_eq!((mode(rx.ifindex()), rx.generic()), (Some(XdpMode::Driver), false));
        rx.close();
        assert!(owed.take().is_empty());
    });
}
