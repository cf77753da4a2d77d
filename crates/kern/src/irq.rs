//! Hardware interrupts: their counters, their CPUs, and which of them serves which receive queue.

use crate::{
    cpus::CpuSet,
    error::{Error, Result},
};
use serde::Serialize;
use std::{fs, io::Write};

/// One row of `/proc/interrupts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Irq {
    /// Interrupt number.
    pub irq: u32,
    /// Interrupts since boot, all CPUs.
    pub count: u64,
    /// Name that the driver gave it, e.g. `eth0-TxRx-1`; several, comma separated, if it is shared.
    pub name: String,
}

/// All numbered interrupts.
pub fn list() -> Result<Vec<Irq>> {
    let path = "/proc/interrupts";
    fs::read_to_string(path).map(|text| parse(&text)).map_err(|e| Error::io(path, e))
}

pub(crate) fn parse(text: &str) -> Vec<Irq> {
    let mut lines = text.lines();
    let cpus = lines.next().map_or(0, |l| l.split_ascii_whitespace().count());
    lines
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let irq = number.trim().parse().ok()?;
            let mut fields = rest.split_ascii_whitespace();
            let mut count = 0u64;
            for _ in 0..cpus {
                count = count.wrapping_add(fields.next()?.parse().ok()?);
            }
            // Chip, hardware number and trigger come first; shared names are separated by ", ".
            let rest: Vec<&str> = fields.collect();
            let first = rest
                .iter()
                .rposition(|f| !f.ends_with(','))
                .map_or(0, |last| rest[..last].iter().rposition(|f| !f.ends_with(',')).map_or(0, |p| p + 1));
            Some(Irq { irq, count, name: rest.get(first..).unwrap_or_default().join(" ") })
        })
        .collect()
}

/// Interrupts of number `irq` since boot on all CPUs, without reading the whole table.
pub fn count(irq: u32) -> Result<u64> {
    let path = format!("/sys/kernel/irq/{irq}/per_cpu_count");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().split(',').filter_map(|n| n.parse().ok()).fold(0, u64::wrapping_add)),
        // Kernels without CONFIG_SPARSE_IRQ have no such directory.
        Err(_) => match list()?.into_iter().find(|i| i.irq == irq) {
            Some(i) => Ok(i.count),
            None => Err(Error::Gone { what: format!("interrupt {irq}") }),
        },
    }
}

/// True if other devices have interrupt `irq` too, as on a line of PCI that is not of messages (INTx); false if that cannot be read.
pub fn is_shared(irq: u32) -> bool {
    // The names of all who handle it, with commas.
    fs::read_to_string(format!("/sys/kernel/irq/{irq}/actions")).is_ok_and(|names| names.contains(','))
}

/// CPUs that interrupt `irq` goes to now.
pub fn cpus(irq: u32) -> Result<CpuSet> {
    let read = |file: &str| {
        let path = format!("/proc/irq/{irq}/{file}");
        fs::read_to_string(&path).map_err(|e| Error::io(path, e))
    };
    match read("effective_affinity_list") {
        Ok(text) if !text.trim().is_empty() => text.parse(),
        _ => read("smp_affinity_list")?.parse(),
    }
}

/// CPUs that interrupt `irq` may go to, as somebody has set it or the kernel has.
///
/// # Errors
/// [`Error::Gone`] if there is no such interrupt.
pub fn allowed(irq: u32) -> Result<CpuSet> {
    let path = format!("/proc/irq/{irq}/smp_affinity");
    match fs::read_to_string(&path) {
        Ok(mask) => CpuSet::from_mask(&mask),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::Gone { what: format!("interrupt {irq}") })
        }
        Err(e) => Err(Error::io(path, e)),
    }
}

/// Lets interrupt `irq` go to `cpus` only.
///
/// # Errors
/// If it is managed by the kernel, or all of them are offline.
pub fn allow(irq: u32, cpus: &CpuSet) -> Result<()> {
    let path = format!("/proc/irq/{irq}/smp_affinity");
    let file = fs::OpenOptions::new().write(true).open(&path);
    // One write call: the kernel takes each as a value of its own.
    let wrote = file.and_then(|mut file| file.write_all(cpus.to_mask().as_bytes()));
    wrote.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) => Error::Gone { what: format!("interrupt {irq}") },
        Some(libc::EIO | libc::EPERM) => Error::Invalid {
            what: format!("interrupt {irq}"),
            why: "the kernel manages its CPUs and lets nobody change them".into(),
        },
        _ => Error::io(path, e),
    })
}

/// The CPUs of interrupt `irq` can be changed. From 6.11 on the file's mode tells; before, a managed interrupt refuses the
/// write with EIO.
pub fn settable(irq: u32) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(format!("/proc/irq/{irq}/smp_affinity")).is_ok_and(|m| m.permissions().mode() & 0o200 != 0)
}

/// Interrupts of number `irq` since boot, by CPU number.
///
/// # Errors
/// [`Error::Gone`] if there is no such interrupt, or the kernel has no `CONFIG_SPARSE_IRQ`.
pub fn per_cpu(irq: u32) -> Result<Vec<u64>> {
    let path = format!("/sys/kernel/irq/{irq}/per_cpu_count");
    let text = fs::read_to_string(&path).map_err(|_| Error::Gone { what: format!("interrupt {irq}") })?;
    Ok(text.trim().split(',').map(|n| n.parse().unwrap_or(0)).collect())
}

/// Which receive queue the interrupt called `name` serves, by the naming habits of drivers: `eth0-TxRx-1`,
/// `i40e-eth0-TxRx-1`, `eth0-rx-1`, `virtio2-input.1`, `mlx5_comp1@pci:0000:01:00.0`, `ena-eth0-Tx-Rx-1`.
/// `None` for transmit, control and unknown names.
pub fn rx_queue(name: &str) -> Option<u32> {
    let name = name.split('@').next()?.trim().to_ascii_lowercase();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let queue = name[stem.len()..].parse().ok()?;
    let stem = stem.trim_end_matches(['-', '.', '_', ':']);
    let role = stem.rsplit(['-', '.', '_', ':', ' ']).next()?;
    matches!(
        role,
        "rx" | "txrx" | "rxtx" | "trx" | "input" | "comp" | "fp" | "q" | "queue" | "ntfy" | "block"
    )
    .then_some(queue)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let text = "           CPU0       CPU1\n 24:          1          2  IO-APIC   5-edge      ACPI:Ged\n\
                    38:  0  3574 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n\
                    16:  5  6 IO-APIC 16-fasteoi ehci_hcd:usb1, eth0\n\
                    NMI:          0          0   Non-maskable interrupts\nERR:          0\n 40: 1\n 41: x y z\n";
        let irq = |irq, count, name: &str| Irq { irq, count, name: name.into() };
        assert_eq!(
            parse(text),
            [irq(24, 3, "ACPI:Ged"), irq(38, 3574, "virtio2-input.0"), irq(16, 11, "ehci_hcd:usb1, eth0")]
        );
        assert!(parse("").is_empty());
    }

    #[test]
    fn queues_by_name() {
        for (name, queue) in [
            ("eth0-TxRx-1", Some(1)),
            ("i40e-ens1f0-TxRx-12", Some(12)),
            ("ena-eth0-Tx-Rx-3", Some(3)),
            ("eth0-rx-0", Some(0)),
            ("virtio2-input.5", Some(5)),
            ("mlx5_comp7@pci:0000:01:00.0", Some(7)),
            ("eth0-tx-0", None),
            ("virtio2-output.0", None),
            ("virtio2-config", None),
            ("mlx5_async0@pci:0000:01:00.0", None),
            ("eth0", None),
            ("enp3s0", None),
            ("", None),
            ("99999999999999", None),
        ] {
            assert_eq!(rx_queue(name), queue, "{name}");
        }
    }

    #[test]
    fn live_table() {
        let all = list().unwrap();
        let Some(busy) = all.iter().max_by_key(|i| i.count) else { return };
        assert!(count(busy.irq).unwrap() >= busy.count);
        assert!(!cpus(busy.irq).unwrap().is_empty());
        assert!(count(4_000_000).unwrap_err().is_gone());
    }
}
