//! One CPU's buffer of samples, which the kernel writes and this reads, and the records in it.

use super::Sample;
use crate::error::{Error, Result};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of samples that a buffer holds: the deepest chains (127 frames) of 200 ms.
const DATA: usize = 128 * 1024;

// include/uapi/linux/perf_event.h
const TYPE_SOFTWARE: u32 = 1;
const SW_CPU_CLOCK: u64 = 0;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const SAMPLE_CPU: u64 = 1 << 7;
const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
const FLAG_FD_CLOEXEC: u64 = 1 << 3;
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
const RECORD_LOST_SAMPLES: u32 = 13;
const MISC_MODE: u16 = 7;
const MISC_KERNEL: u16 = 1;
/// Addresses from here on say what follows them (kernel, program, guest) and are none.
const CONTEXT_MAX: u64 = -4095i64 as u64;
const HEAD: usize = 1024;
const TAIL: usize = 1032;
const OFFSET: usize = 1040;
const SIZE: usize = 1048;

/// `struct perf_event_attr`, in its fifth version (112 bytes), which every kernel since 4.8 takes.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
    config2: u64,
    branches: u64,
    registers_user: u64,
    stack_user: u32,
    clock: i32,
    registers_intr: u64,
    aux_watermark: u32,
    max_stack: u16,
    reserved: u16,
}

/// A buffer with its event.
#[derive(Debug)]
pub struct Ring {
    /// The CPU.
    pub cpu: u32,
    /// Keeps the event alive.
    _event: OwnedFd,
    map: NonNull<c_void>,
    mapped: NonZeroUsize,
    offset: usize,
    size: usize,
    tail: u64,
}

fn refused(cpu: u32, source: io::Error) -> Error {
    let what = format!("samples of CPU {cpu}");
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Error::Denied { what, need: "CAP_PERFMON" },
        Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOENT) => {
            Error::Unsupported { what, since: "CONFIG_PERF_EVENTS" }
        }
        _ => Error::io(what, source),
    }
}

impl Ring {
    /// Samples `cpu` each `period` ns from now on.
    pub fn open(cpu: u32, period: u64) -> Result<Ring> {
        let attr = Attr {
            kind: TYPE_SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: SW_CPU_CLOCK,
            period,
            sample_type: SAMPLE_TID | SAMPLE_CPU | SAMPLE_CALLCHAIN,
            flags: EXCLUDE_CALLCHAIN_USER,
            ..Attr::default()
        };
        // SAFETY: the attributes are of the size they say and live through the call; -1: all processes, no group.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, cpu as i32, -1, FLAG_FD_CLOEXEC)
        };
        if fd < 0 {
            return Err(refused(cpu, io::Error::last_os_error()));
        }
        // SAFETY: a descriptor that the kernel has just made and nobody else has.
        let event = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let page =
            nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as usize;
        let Some(mapped) = NonZeroUsize::new(page + DATA.max(page)) else {
            return Err(Error::Invalid { what: "page size".into(), why: "0".into() });
        };
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else uses it.
        let map = unsafe {
            mmap(None, mapped, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, &event, 0)
        };
        let map = map.map_err(|e| refused(cpu, e.into()))?;
        let mut ring = Ring { cpu, _event: event, map, mapped, offset: page, size: DATA.max(page), tail: 0 };
        // Kernels before 4.1 leave both at 0, and then the data begin at the second page.
        let (offset, size) =
            (ring.word(OFFSET).load(Ordering::Relaxed), ring.word(SIZE).load(Ordering::Relaxed));
        let end = (offset as usize).checked_add(size as usize);
        if offset > 0 && size > 0 && end.is_some_and(|end| end <= mapped.get()) {
            (ring.offset, ring.size) = (offset as usize, size as usize);
        }
        Ok(ring)
    }

    /// A word of the first page.
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the first page is mapped for as long as `self` lives, `at` is one of four aligned offsets within it, and
        // the kernel reads and writes these words as atomics too.
        unsafe { self.map.cast::<u8>().add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Replaces `bytes` by what has been written since the last call.
    pub fn take(&mut self, bytes: &mut Vec<u8>) {
        bytes.clear();
        let head = self.word(HEAD).load(Ordering::Acquire);
        let length = head.wrapping_sub(self.tail).min(self.size as u64) as usize;
        let start = (self.tail % self.size as u64) as usize;
        let first = length.min(self.size - start);
        for (at, count) in [(start, first), (0, length - first)] {
            // SAFETY: `at + count` is within the mapped data, and the kernel does not write what lies between tail and
            // head until the tail moves.
            let part = unsafe {
                std::slice::from_raw_parts(self.map.cast::<u8>().add(self.offset + at).as_ptr(), count)
            };
            bytes.extend_from_slice(part);
        }
        self.tail = head;
        self.word(TAIL).store(head, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`, of that length, and no reference into it is left.
        _ = unsafe { munmap(self.map, self.mapped.get()) };
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// So many samples found no room.
    Lost(u64),
}

/// Goes through the records in `bytes`; `chain` is scratch space. Returns how many are not as they must be; after one
/// without a length nothing more can be read.
pub fn records(bytes: &[u8], chain: &mut Vec<u64>, mut each: impl FnMut(Record<'_>)) -> u64 {
    let mut malformed = 0;
    let mut rest = bytes;
    while !rest.is_empty() {
        let header = word32(rest, 0).zip(word32(rest, 4));
        let Some((kind, second)) = header else { return malformed + 1 };
        let (misc, length) = (second as u16, (second >> 16) as usize);
        if length < 8 || length > rest.len() {
            return malformed + 1;
        }
        let (body, next) = (&rest[8..length], &rest[length..]);
        rest = next;
        let read = match kind {
            RECORD_SAMPLE => sample(body, misc, chain).map(Record::Sample),
            RECORD_LOST => word64(body, 8).map(Record::Lost),
            RECORD_LOST_SAMPLES => word64(body, 0).map(Record::Lost),
            _ => continue,
        };
        match read {
            Some(record) => each(record),
            None => malformed += 1,
        }
    }
    malformed
}

/// The fields of SAMPLE_TID, SAMPLE_CPU and SAMPLE_CALLCHAIN, in the order in which the kernel writes them.
fn sample<'a>(body: &[u8], misc: u16, chain: &'a mut Vec<u64>) -> Option<Sample<'a>> {
    let (pid, cpu, count) = (word32(body, 0)?, word32(body, 8)?, word64(body, 16)?);
    let addresses = body.get(24..)?;
    if count > (addresses.len() / 8) as u64 {
        return None;
    }
    let user = misc & MISC_MODE != MISC_KERNEL;
    chain.clear();
    if !user {
        let all = (0..count as usize).filter_map(|i| word64(addresses, 8 * i));
        chain.extend(all.filter(|address| *address < CONTEXT_MAX));
    }
    Some(Sample { cpu, pid, user, chain })
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, misc: u16, body: &[u64]) -> Vec<u8> {
        let length = (8 + 8 * body.len()) as u16;
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(length.to_ne_bytes());
        body.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    /// pid 7, CPU 1, and a chain.
    fn body(chain: &[u64]) -> Vec<u64> {
        let tid = u64::from_ne_bytes([7, 0, 0, 0, 8, 0, 0, 0]);
        let cpu = u64::from_ne_bytes([1, 0, 0, 0, 0, 0, 0, 0]);
        [&[tid, cpu, chain.len() as u64], chain].concat()
    }

    fn read(bytes: &[u8]) -> (Vec<String>, u64) {
        let mut seen = Vec::new();
        let bad = records(bytes, &mut Vec::new(), |r| seen.push(format!("{r:?}")));
        (seen, bad)
    }

    #[test]
    fn attributes_are_of_the_size_that_the_kernel_knows() {
        assert_eq!(size_of::<Attr>(), 112);
    }

    #[test]
    fn samples_and_losses() {
        let kernel =
            record(RECORD_SAMPLE, 1, &body(&[-128i64 as u64, 0xffff_ffff_8100_0010, 0xffff_ffff_8100_0020]));
        let user = record(RECORD_SAMPLE, 0x4002, &body(&[]));
        let bytes = [kernel, record(3, 0, &[1, 2]), user, record(RECORD_LOST, 0, &[5, 12])].concat();
        let (seen, bad) = read(&bytes);
        assert_eq!(bad, 0);
        assert_eq!(
            seen,
            [
                "Sample(Sample { cpu: 1, pid: 7, user: false, chain: [18446744071578845200, 18446744071578845216] })",
                "Sample(Sample { cpu: 1, pid: 7, user: true, chain: [] })",
                "Lost(12)"
            ]
        );
    }

    #[test]
    fn what_is_cut_off_or_lies_is_counted() {
        let mut lies = body(&[1, 2]);
        lies[2] = 3;
        let bytes = [record(RECORD_SAMPLE, 1, &lies), record(RECORD_LOST, 0, &[0, 4])].concat();
        assert_eq!(read(&bytes), (vec!["Lost(4)".to_owned()], 1));
        assert_eq!(read(&bytes[..bytes.len() - 1]).1, 2);
        assert_eq!(read(&[0; 16]), (vec![], 1));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let (seen, bad) = read(&bytes);
            prop_assert!(seen.len() as u64 + bad <= bytes.len() as u64);
        }
    }
}
