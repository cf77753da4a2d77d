//! All TCP sockets, and groups of UDP sockets, of all processes, in every network namespace, by one pass of the kernel's own list of descriptors.

use super::abi::RawHeld;
use super::{Held, address};
use crate::guard::Error;
use crate::guard::object::{Aligned, failed, open};
use libbpf_rs::{Iter, Link, Object};
use std::io::{self, Read};
use std::mem::offset_of;

static LISTENERS: &Aligned<{ include_bytes!(concat!(env!("OUT_DIR"), "/listeners.bpf.o")).len() }> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/listeners.bpf.o")));
/// Bytes of a record.
const HELD: usize = size_of::<RawHeld>();
/// Most sockets of one pass; further ones are counted.
const MAX: usize = 200_000;

/// See the module.
pub struct Finder {
    _object: Object,
    link: Link,
    /// Sockets beyond the most that are looked at, in the last pass.
    pub left_out: u64,
}

impl Finder {
    /// Loads the program; it runs in [`Self::all`] only.
    ///
    /// # Errors
    /// [`Error::Bpf`]: most often no root, or no BTF.
    pub fn load() -> Result<Self, Error> {
        libbpf_rs::set_print(None);
        let object =
            open(&LISTENERS.0, "weir_listeners")?.load().map_err(failed("program weir_listeners"))?;
        let program = object.progs_mut().next();
        let absent = || Error::Bpf { what: "weir_listeners".into(), source: io::ErrorKind::NotFound.into() };
        let link = program.ok_or_else(absent)?.attach().map_err(failed("weir_listeners"))?;
        Ok(Self { _object: object, link, left_out: 0 })
    }

    /// Listeners and established connections, now. Cost: some tens of nanoseconds for each descriptor of the host.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn all(&mut self) -> Result<Vec<Held>, Error> {
        let mut pass = Iter::new(&self.link).map_err(failed("list of sockets"))?;
        let (mut bytes, mut all) = (vec![0; 64 * 1024], Vec::new());
        let mut filled = 0;
        self.left_out = 0;
        loop {
            let got = match pass.read(bytes.get_mut(filled..).unwrap_or_default()) {
                Ok(0) => return Ok(all),
                Ok(got) => got,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => continue,
                Err(source) => return Err(Error::Bpf { what: "list of sockets".into(), source }),
            };
            let (records, rest) = bytes.get(..filled + got).unwrap_or_default().as_chunks::<HELD>();
            for record in records {
                if all.len() < MAX { all.extend(read(record)) } else { self.left_out += 1 }
            }
            let (from, left) = (filled + got - rest.len(), rest.len());
            bytes.copy_within(from..from + left, 0);
            filled = left;
        }
    }
}

fn read(record: &[u8; HELD]) -> Option<Held> {
    let word = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_ne_bytes(record.get(at..at + 2)?.try_into().ok()?));
    let address_at = offset_of!(RawHeld, address);
    let bytes: &[u8; 16] = record.get(address_at..address_at + 16)?.try_into().ok()?;
    Some(Held {
        inode: u64::from_ne_bytes(record.get(..8)?.try_into().ok()?),
        pid: word(offset_of!(RawHeld, pid))?,
        fd: word(offset_of!(RawHeld, fd))?,
        netns: word(offset_of!(RawHeld, netns))?,
        device: word(offset_of!(RawHeld, device))?,
        program: word(offset_of!(RawHeld, program))?,
        waiting: word(offset_of!(RawHeld, waiting))?,
        limit: word(offset_of!(RawHeld, limit))?,
        core: word(offset_of!(RawHeld, core))?,
        sockets: word(offset_of!(RawHeld, sockets))?,
        local: address(half(offset_of!(RawHeld, family))?, bytes, half(offset_of!(RawHeld, port))?),
        listens: *record.get(offset_of!(RawHeld, state))? == 10
            || *record.get(offset_of!(RawHeld, udp))? != 0,
        reuseport: *record.get(offset_of!(RawHeld, reuseport))? != 0,
        udp: *record.get(offset_of!(RawHeld, udp))? != 0,
    })
}
