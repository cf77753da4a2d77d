//! Rights of `weir accept`: what it cannot run without, and what each of the others is for.

use crate::tier::lacking;
use caps::Capability::{self, CAP_BPF, CAP_DAC_READ_SEARCH, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE};
use std::fs::File;
use std::io::{BufRead, BufReader};

/// The capabilities that it cannot run without and does not have. The kernel loads a program that chooses a listener without
/// CAP_NET_ADMIN.
#[must_use]
pub fn lacks() -> Vec<String> {
    lacking(&[CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE])
}

/// What it does without, a sentence each.
#[must_use]
pub fn without() -> Vec<String> {
    let has = |capability: Capability| lacking(&[capability]).is_empty();
    let mut list = Vec::new();
    if !has(CAP_DAC_READ_SEARCH) {
        list.push(
            "without CAP_DAC_READ_SEARCH workers of other users are not found: their core is unknown"
                .to_owned(),
        );
    }
    if !addresses_shown() {
        list.push(
            "the kernel hides its addresses (needs CAP_SYSLOG, and kernel.kptr_restrict below 2): what idle workers wait for is \
             unknown, and who waits at a listener that is closed is reset, as without weir"
                .to_owned(),
        );
    }
    if !has(CAP_SYS_ADMIN) {
        list.push(
            "without CAP_SYS_ADMIN what a killed weir left attached is taken for another program's: the server has to be \
             restarted then"
                .to_owned(),
        );
    }
    list
}

/// False where `/proc/kallsyms` has zeros for all addresses: the program does not know the kernel's functions then. A few of the
/// first ones are at zero on some kernels.
fn addresses_shown() -> bool {
    const LINES: usize = 64;
    let Ok(file) = File::open("/proc/kallsyms") else { return false };
    let hidden = |line: String| line.bytes().take_while(|b| *b != b' ').all(|b| b == b'0');
    BufReader::new(file).lines().take(LINES).map_while(Result::ok).any(|line| !hidden(line))
}
