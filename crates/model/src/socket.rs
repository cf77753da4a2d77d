//! Sockets as queues between the kernel and a program (WU-12 to WU-16).

/// A socket's receive buffer and the rates at its two ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Socket {
    /// QB: most bytes that may be charged to it.
    pub quota: f64,
    /// B: bytes charged now, 0 to QB.
    pub level: f64,
    /// Bytes charged for one packet, greater than 0: its memory, not its length.
    pub per_packet: f64,
}

impl Socket {
    /// Packets that an empty one holds: the kernel takes one more when the charge before it is below QB.
    #[must_use]
    pub fn holds(&self) -> f64 {
        (self.quota / self.per_packet).floor() + 1.0
    }

    /// Equation (7): bytes that are free.
    #[must_use]
    pub fn free(&self) -> f64 {
        (self.quota - self.level).max(0.0)
    }

    /// Equation (6) over `seconds`: `arrive` (R_s) and `read` (R_d) in packets/s. Answers the packets that found it full:
    /// UDP has done all its work for them by then (WU-14).
    pub fn pass(&mut self, arrive: f64, read: f64, seconds: f64) -> f64 {
        let grows = (arrive - read) * self.per_packet * seconds;
        let level = self.level + grows;
        self.level = level.clamp(0.0, self.quota);
        (level - self.quota).max(0.0) / self.per_packet
    }

    /// Seconds until it is full at these rates in packets/s; `None` if it does not fill.
    #[must_use]
    pub fn time_to_full(&self, arrive: f64, read: f64) -> Option<f64> {
        (arrive > read).then(|| self.free() / ((arrive - read) * self.per_packet))
    }

    /// Seconds until it is empty at these rates; `None` if it does not empty.
    #[must_use]
    pub fn time_to_empty(&self, arrive: f64, read: f64) -> Option<f64> {
        (read > arrive).then(|| self.level / ((read - arrive) * self.per_packet))
    }
}

/// Equation (5): what a socket is offered cannot be more than its stream, nor than the kernel can serve.
#[must_use]
pub fn offered(stream: f64, kernel: f64) -> f64 {
    stream.min(kernel)
}

/// WU-15: bytes in flight on a path of `bits_per_second` and `round_trip` seconds; both buffers should hold as much.
#[must_use]
pub fn bandwidth_delay(bits_per_second: f64, round_trip: f64) -> f64 {
    bits_per_second * round_trip / 8.0
}

/// System memory per byte of receive buffer, from Table 3 of the paper (WU-F038).
pub const MEMORY_PER_BUFFER: f64 = 1.29;

/// WU-16: whether `sockets` buffers of `quota` bytes fit below a limit (tcp_mem, bytes) and in `memory` bytes.
#[must_use]
pub fn memory_fits(sockets: u64, quota: f64, limit: f64, memory: f64) -> bool {
    let wanted = sockets as f64 * quota * MEMORY_PER_BUFFER;
    // The kernel refuses at the limit, so what it can be made to use is the smaller of the two.
    wanted.min(limit * MEMORY_PER_BUFFER) < memory
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1024.0 * 1024.0;

    fn paper() -> Socket {
        // WU-F023: 24000 packets fill 40 MB, 1748 bytes each.
        Socket { quota: 40.0 * MB, level: 0.0, per_packet: 1748.0 }
    }

    #[test]
    fn the_paper_s_socket_holds_24000_packets() {
        assert!((paper().holds() - 24_000.0).abs() < 10.0, "{}", paper().holds());
    }

    #[test]
    fn fill_and_drain_times_are_those_of_figure_12() {
        // WU-F032: filled at 35.3 k/s net in 0.68 s, drained at 42.1 k/s in 0.57 s, within 1 %.
        let mut socket = paper();
        let fill = socket.time_to_full(35_300.0, 0.0).unwrap();
        assert!((fill / 0.68 - 1.0).abs() < 0.01, "{fill}");
        assert_eq!(socket.pass(35_300.0, 0.0, 0.5), 0.0);
        assert!(socket.pass(35_300.0, 0.0, 1.0) > 0.0);
        let drain = socket.time_to_empty(0.0, 42_100.0).unwrap();
        assert!((drain / 0.57 - 1.0).abs() < 0.01, "{drain}");
        assert_eq!(socket.time_to_full(1.0, 1.0), None);
        assert_eq!(socket.time_to_empty(1.0, 1.0), None);
    }

    #[test]
    fn udp_at_400_megabits_loses_78_percent() {
        // WU-F021, WU-F022: 862066 datagrams of 1450 bytes in 25 s, 88.1 Mb/s read: 77.8 % lost, within 1 %.
        let arrive = 862_066.0 / 25.0;
        let read = 88.1e6 / (1450.0 * 8.0);
        let mut socket = Socket { level: 40.0 * MB, ..paper() };
        let lost = socket.pass(offered(arrive, f64::INFINITY), read, 25.0) / 862_066.0;
        assert!((lost / 0.7779 - 1.0).abs() < 0.01, "{lost}");
        assert_eq!(offered(arrive, 10_000.0), 10_000.0);
    }

    #[test]
    fn the_bandwidth_delay_product_is_a_tenth_of_the_printed_one() {
        // WU-F008: 62.5 KB, printed as 625.
        assert_eq!(bandwidth_delay(1e9, 0.5e-3), 62_500.0);
    }

    #[test]
    fn five_buffers_of_80_mb_do_not_fit_and_the_corrected_limit_helps() {
        // WU-F016, WU-F040, WU-F041: 384 MB allowed on a host of 256 MB; 160 MB allowed.
        let memory = 256.0 * MB;
        assert!(!memory_fits(5, 80.0 * MB, 384.0 * MB, memory));
        assert!(memory_fits(5, 80.0 * MB, 160.0 * MB, memory));
        assert!(memory_fits(1, 80.0 * MB, 384.0 * MB, memory));
    }
}
