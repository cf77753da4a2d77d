//! Gauges in, settings out: the only crate that knows libbpf, netlink, sysfs and procfs.
pub mod guard;
