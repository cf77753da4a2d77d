//! Gauges in, settings out: the only crate that knows libbpf, netlink, sysfs and procfs.
pub mod cpus;
pub mod discover;
pub mod error;
pub mod ethtool;
pub mod guard;
pub mod irq;
pub mod journal;
pub mod keeper;
pub mod link;
pub mod napi;
pub mod netns;
pub mod proc;
pub mod settings;
pub mod sysfs;
pub mod tier;
pub mod undo;
pub mod wire;
