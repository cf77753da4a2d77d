//! CPUs: sets in the kernel's two notations (list "0-1,4", mask "3,00000001"), affinity, NUMA nodes.

use crate::error::{Error, Result};
use std::{fmt, fs, io, str::FromStr};

/// Highest CPU number plus one that a [`CpuSet`] holds (the kernel's largest `NR_CPUS`).
pub const MAX_CPUS: usize = 8192;

/// A set of CPUs, at most [`MAX_CPUS`]. Shown, parsed and serialised as a list such as `0-1,4`.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// 64 CPUs per word, without trailing zero words, so that equality is equality of sets.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `cpu`; false if it is [`MAX_CPUS`] or more and cannot be held.
    pub fn insert(&mut self, cpu: usize) -> bool {
        if cpu >= MAX_CPUS {
            return false;
        }
        if self.words.len() <= cpu / 64 {
            self.words.resize(cpu / 64 + 1, 0);
        }
        self.words[cpu / 64] |= 1 << (cpu % 64);
        true
    }

    /// True if `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|w| w >> (cpu % 64) & 1 == 1)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.words.len() * 64).filter(|&c| self.contains(c))
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// True if no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPUs that are in both sets.
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        self.iter().filter(|&cpu| other.contains(cpu)).collect()
    }

    /// Parses the kernel's mask notation: hexadecimal words of 32 bits, commas between, highest first.
    pub fn from_mask(text: &str) -> Result<Self> {
        let bad =
            |why: &str| Error::Invalid { what: format!("CPU mask {:?}", shorten(text)), why: why.into() };
        let parts: Vec<&str> = text.trim().split(',').collect();
        if parts.len() > MAX_CPUS / 32 {
            return Err(bad("too long"));
        }
        let mut set = CpuSet::new();
        for (i, part) in parts.iter().rev().enumerate() {
            if part.len() > 8 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad("not hexadecimal words of 32 bits"));
            }
            let word = u32::from_str_radix(part, 16).map_err(|_| bad("not a hexadecimal mask"))?;
            (0..32).filter(|b| word >> b & 1 == 1).for_each(|b| _ = set.insert(i * 32 + b));
        }
        Ok(set)
    }

    /// The set in the kernel's mask notation, as sysfs accepts it.
    pub fn to_mask(&self) -> String {
        let mut halves: Vec<u32> = self.words.iter().flat_map(|w| [*w as u32, (*w >> 32) as u32]).collect();
        while halves.len() > 1 && halves.last() == Some(&0) {
            halves.pop();
        }
        let Some((first, rest)) = halves.split_last() else { return "0".into() };
        rest.iter().rev().fold(format!("{first:x}"), |s, w| format!("{s},{w:08x}"))
    }
}

fn shorten(text: &str) -> String {
    text.trim().chars().take(40).collect()
}

impl FromIterator<usize> for CpuSet {
    /// CPUs of [`MAX_CPUS`] and more are left out.
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Self {
        let mut set = CpuSet::new();
        iter.into_iter().for_each(|c| _ = set.insert(c));
        set
    }
}

impl FromStr for CpuSet {
    type Err = Error;

    /// Parses a list such as `0-1,4`; the empty text is the empty set.
    fn from_str(text: &str) -> Result<Self> {
        let bad =
            |why: &str| Error::Invalid { what: format!("CPU list {:?}", shorten(text)), why: why.into() };
        let mut set = CpuSet::new();
        if text.trim().is_empty() {
            return Ok(set);
        }
        let number = |t: &str| -> Result<usize> {
            if t.is_empty() || !t.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad("give CPUs as in 0-1,4"));
            }
            let n: usize = t.parse().map_err(|_| bad("a number is too large"))?;
            if n < MAX_CPUS { Ok(n) } else { Err(bad("CPUs are below 8192")) }
        };
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(bad("a range runs backwards"));
            }
            (first..=last).for_each(|c| _ = set.insert(c));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.peek() == Some(&(last + 1)) {
                last += 1;
                cpus.next();
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl serde::Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// CPUs that are online now.
pub fn online() -> Result<CpuSet> {
    let what = "/sys/devices/system/cpu/online";
    match fs::read_to_string(what) {
        Ok(text) => text.parse(),
        // Without sysfs the affinity mask of init's children is the best that is known.
        Err(_) => affinity(0),
    }
}

/// CPUs that may ever be there, online or not.
///
/// # Errors
/// As [`online`].
pub fn possible() -> Result<CpuSet> {
    match fs::read_to_string("/sys/devices/system/cpu/possible") {
        Ok(text) => text.parse(),
        Err(_) => online(),
    }
}

/// CPUs that thread `tid` may run on; 0 is the calling thread.
pub fn affinity(tid: i32) -> Result<CpuSet> {
    let mut words = [0u64; MAX_CPUS / 64];
    // SAFETY: the kernel writes at most `size_of_val(&words)` bytes into `words`.
    let n =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, size_of_val(&words), words.as_mut_ptr()) };
    if n < 0 {
        return Err(thread_error(tid));
    }
    Ok((0..MAX_CPUS).filter(|c| words[c / 64] >> (c % 64) & 1 == 1).collect())
}

/// CPU that thread `tid` ran on last, while it lives.
pub fn ran_on(tid: i32) -> Option<usize> {
    processor(&fs::read_to_string(format!("/proc/{tid}/stat")).ok()?)
}

/// The same by its line of procfs; the name in parentheses may hold anything.
fn processor(stat: &str) -> Option<usize> {
    // Field 39; the text behind the name begins with field 3.
    stat.rsplit_once(')')?.1.split_whitespace().nth(36)?.parse().ok()
}

/// Binds thread `tid` to `cpus`; 0 is the calling thread. The set must hold an allowed CPU.
pub fn set_affinity(tid: i32, cpus: &CpuSet) -> Result<()> {
    let mut words = [0u64; MAX_CPUS / 64];
    words[..cpus.words.len()].copy_from_slice(&cpus.words);
    // SAFETY: the kernel reads at most `size_of_val(&words)` bytes from `words`.
    let r = unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(&words), words.as_ptr()) };
    if r < 0 { Err(thread_error(tid)) } else { Ok(()) }
}

fn thread_error(tid: i32) -> Error {
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::ESRCH) => Error::Gone { what: format!("thread {tid}") },
        _ => Error::io(format!("affinity of thread {tid}"), e),
    }
}

/// NUMA node of `cpu`; `None` on a machine without NUMA information.
pub fn numa_node(cpu: usize) -> Option<u32> {
    let dir = fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")).ok()?;
    dir.flatten().find_map(|e| e.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_and_mask_round_trip() {
        for (list, mask) in [
            ("", "0"),
            ("0", "1"),
            ("0-1,4", "13"),
            ("31-32", "1,80000000"),
            ("64", "1,00000000,00000000"),
            ("0,8191", &format!("80000000{},00000001", ",00000000".repeat(254))),
        ] {
            let set: CpuSet = list.parse().unwrap();
            assert_eq!(set.to_string(), list);
            assert_eq!(set.to_mask(), mask, "{list}");
            assert_eq!(CpuSet::from_mask(mask).unwrap(), set);
            let json = serde_json::to_string(&set).unwrap();
            assert_eq!(serde_json::from_str::<CpuSet>(&json).unwrap(), set);
        }
        assert_eq!(CpuSet::from_mask("00000003\n").unwrap().to_string(), "0-1");
    }

    #[test]
    fn bad_lists() {
        for bad in ["x", "1-", "-1", "2-1", "1,,2", "8192", "+1", "1-2-3", "99999999999999999999999"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
        for bad in ["", "g", "123456789", "+1", "1,,2", &"1,".repeat(300)] {
            assert!(CpuSet::from_mask(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn where_a_thread_ran() {
        let words: Vec<String> = (4..39).map(|n| n.to_string()).collect();
        assert_eq!(processor(&format!("7 (a) b) S {} 3 0 0", words.join(" "))), Some(3));
        assert!(affinity(0).unwrap().contains(ran_on(std::process::id() as i32).unwrap()));
    }

    #[test]
    fn own_affinity() {
        let all = affinity(0).unwrap();
        assert!(!all.is_empty());
        std::thread::spawn(move || {
            let one: CpuSet = all.iter().take(1).collect();
            set_affinity(0, &one).unwrap();
            assert_eq!(affinity(0).unwrap(), one);
            assert!(set_affinity(0, &CpuSet::new()).is_err());
        })
        .join()
        .unwrap();
        assert!(!online().unwrap().is_empty());
    }
}
