//! Files of the host that a bug report carries: a closed list of counters and of what the kernel is, none with an address, a
//! command line of a program or the name of a user.

use std::{fs::File, io::Read};

/// Longest text that is read from one file, bytes.
pub const MAX_BYTES: usize = 256 * 1024;

/// The files, by their paths. Of those per network namespace the caller's are read.
const PATHS: [&str; 19] = [
    "/proc/version",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/stat",
    "/proc/softirqs",
    "/proc/interrupts",
    "/proc/pressure/cpu",
    "/proc/pressure/irq",
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/net/snmp6",
    "/proc/net/netstat",
    "/proc/net/sockstat",
    "/proc/net/softnet_stat",
    "/proc/sys/kernel/tainted",
    "/proc/sys/kernel/sched_rt_runtime_us",
    "/proc/sys/net/core/netdev_budget",
    "/proc/sys/net/core/rmem_max",
];

/// Parameters of the kernel's command line that matter here; the others may hold secrets.
const PARAMETERS: [&str; 14] = [
    "cgroup_no_v1",
    "idle",
    "intel_idle.max_cstate",
    "irqaffinity",
    "isolcpus",
    "lockdown",
    "mitigations",
    "nohz_full",
    "nosmt",
    "preempt",
    "processor.max_cstate",
    "rcu_nocbs",
    "threadirqs",
    "tsc",
];

/// One file, or what the kernel said instead.
#[derive(Debug)]
pub struct HostFile {
    /// Its path.
    pub path: &'static str,
    /// Its text, cut at [`MAX_BYTES`].
    pub text: std::io::Result<String>,
}

/// Reads all of them; one that is not there is an error of its own.
#[must_use]
pub fn read() -> Vec<HostFile> {
    let mut files: Vec<HostFile> = PATHS.iter().map(|path| HostFile { path, text: text(path) }).collect();
    files.push(HostFile { path: "/proc/cmdline", text: text("/proc/cmdline").map(|line| known(&line)) });
    files
}

fn text(path: &str) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The parameters of [`PARAMETERS`], one a line.
pub(crate) fn known(line: &str) -> String {
    let words = line.split_whitespace();
    let kept = words.filter(|word| PARAMETERS.contains(&word.split('=').next().unwrap_or_default()));
    kept.map(|word| format!("{word}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_nobody_asked_for_are_left_out() {
        let line = "BOOT_IMAGE=/vmlinuz root=UUID=1 isolcpus=1-3 token=secret threadirqs quiet\n";
        assert_eq!(known(line), "isolcpus=1-3\nthreadirqs\n");
    }

    #[test]
    fn what_is_there_is_read_and_what_is_not_says_so() {
        let files = read();
        let of = |path: &str| files.iter().find(|file| file.path == path).unwrap();
        assert!(of("/proc/version").text.as_ref().is_ok_and(|text| text.starts_with("Linux")));
        assert!(files.iter().all(|file| file.text.as_ref().map_or(0, String::len) <= 4 * MAX_BYTES));
    }
}
